"""Gives every dim and axis a number: the declared ones, those that the caller sets, and the rest.

Sizes that nobody gives are small and divide whatever splits them anywhere in the plan. Raises
`SH601` where a size that was given does not divide, `SH602` where it is no size at all.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from shardlang.backends.jax.errors import BadSize, failure, SizeDoesNotDivide
from shardlang.ir.ops import Rename
from shardlang.ir.plan import Plan
from shardlang.ir.types import Array, Axis, Dim, subscript
from shardlang.source import Span

OPEN_AXIS = 2
"""The size of an axis that nobody sized."""

OPEN_AXES = 6
"""How many axes that nobody sized get more than one device."""

LARGEST = 2**62


@dataclass(frozen=True)
class Numbers:
    """The size of every axis and dim of a plan; `chosen` names those that nobody gave."""

    axes: Mapping[Axis, int]
    dims: Mapping[Dim, int]
    chosen: tuple[str, ...] = ()

    def parts(self, axes: tuple[Axis, ...]) -> int:
        """Say into how many parts axes split a dim."""
        return math.prod(self.axes[axis] for axis in axes)

    @property
    def devices(self) -> int:
        """Say how many devices the mesh has."""
        return math.prod(self.axes.values())


def arrays(plan: Plan) -> Iterator[Array]:
    """Go through every array of a plan, some of them several times."""
    for leaf in plan.program.leaves:
        yield leaf.array
    for _, step in plan.steps():
        yield from step.inputs
        yield step.output
    yield from plan.outputs
    yield from plan.cotangents


def dims_of(plan: Plan) -> tuple[Dim, ...]:
    """List the dims of a plan in the order in which they first occur."""
    return tuple(dict.fromkeys(dim for array in arrays(plan) for dim in array.tensor.dims))


def axes_of(plan: Plan) -> tuple[Axis, ...]:
    """List the axes of the mesh, and after them any that the plan uses besides."""
    used = (axis for array in arrays(plan) for axis in sorted(array.layout.used))
    return tuple(dict.fromkeys((*(info.axis for info in plan.program.mesh.axes), *used)))


def renamings(plan: Plan) -> Mapping[Dim, Dim]:
    """Give each dim one that stands for all that a Rename makes equal to it in size."""
    stands: dict[Dim, Dim] = {dim: dim for dim in dims_of(plan)}
    pairs = [
        pair
        for _, step in plan.steps()
        if isinstance(step.op, Rename)
        for pair in zip(step.inputs[0].tensor.dims, step.op.dims, strict=True)
    ]
    for left, right in pairs:
        old, new = stands[right], stands[left]
        stands = {dim: new if root == old else root for dim, root in stands.items()}
    return stands


def splits(plan: Plan) -> Mapping[Dim, set[tuple[Axis, ...]]]:
    """List the tuples of axes that split each dim, or one of its renamings, anywhere in the plan."""
    stands = renamings(plan)
    found: dict[Dim, set[tuple[Axis, ...]]] = {root: set() for root in stands.values()}
    for array in arrays(plan):
        for dim, axes in zip(array.tensor.dims, array.layout.sharding, strict=True):
            found[stands[dim]].add(axes)
    return {dim: found[root] - {()} for dim, root in stands.items()}


def choose(plan: Plan, given: Mapping[str, int] | None = None) -> Numbers:
    """Size everything; a dim that nobody sized is some times what its axes need."""
    known = {**plan.program.sizes.known, **(given or {})}
    for name, size in known.items():
        if not 1 <= size <= LARGEST:
            raise failure(plan, BadSize(name, size))
    chosen: list[str] = []
    axes: dict[Axis, int] = {}
    for axis in axes_of(plan):
        size = known.get(axis.name)
        if size is None:
            size = OPEN_AXIS if len(chosen) < OPEN_AXES else 1
            chosen.append(axis.name)
        axes[axis] = size
    dims: dict[Dim, int] = {}
    stands, split = renamings(plan), splits(plan)
    given_by_root = {stands[dim]: known[dim.name] for dim in stands if dim.name in known}
    for index, dim in enumerate(stands):
        size = known.get(dim.name, given_by_root.get(stands[dim]))
        if size is None:
            size = _needed(split[dim], axes) * (4 + 2 * (index % 4))
            given_by_root[stands[dim]] = size
        if dim.name not in known:
            chosen.append(dim.name)
        dims[dim] = size
    numbers = Numbers(axes, dims, tuple(chosen))
    _check(plan, numbers)
    return numbers


def _needed(split: set[tuple[Axis, ...]], axes: Mapping[Axis, int]) -> int:
    """Give the least size that all these tuples of axes divide."""
    return math.lcm(*(math.prod(axes[axis] for axis in over) for over in split))


def shrink(
    plan: Plan,
    numbers: Numbers,
    *,
    devices: int,
    fixed: frozenset[Dim] = frozenset(),
) -> Numbers:
    """Give small sizes of the same kind, for a run on one machine.

    Axes keep their size while the mesh has at most `devices` devices; else each shrinks to 2 (or
    to its least factor, where it splits a `fixed` dim), and to 1 from the seventh on. Dims become
    small, with different sizes for neighbours, but for the fixed ones.
    """
    axes = dict(numbers.axes)
    stands, split = renamings(plan), splits(plan)
    if numbers.devices > devices:
        bound = {axis for dim in fixed for over in split[dim] for axis in over}
        big = [axis for axis, size in axes.items() if size > 1]
        for axis in big:
            size = axes[axis]
            least = next(n for n in range(2, size + 1) if size % n == 0) if axis in bound else 2
            axes[axis] = least if big.index(axis) < 6 else 1
    small: dict[Dim, int] = {stands[dim]: numbers.dims[dim] for dim in fixed}
    for index, dim in enumerate(numbers.dims):
        small.setdefault(stands[dim], _needed(split[dim], axes) * (2 + index % 3))
    dims = {dim: small[stands[dim]] for dim in numbers.dims}
    return Numbers(axes, dims, numbers.chosen)


def _placed(plan: Plan) -> Iterator[tuple[Array, Span | None]]:
    """Go through the arrays with the places of the text that they serve."""
    for leaf in plan.program.leaves:
        yield leaf.array, leaf.span
    for _, step in plan.steps():
        for array in (*step.inputs, step.output):
            yield array, step.span


def _check(plan: Plan, numbers: Numbers) -> None:
    """Raise where a dim is not divided by what splits it."""
    for array, span in _placed(plan):
        for dim, axes in zip(array.tensor.dims, array.layout.sharding, strict=True):
            parts = numbers.parts(axes)
            if numbers.dims[dim] % parts:
                text = subscript(axes).removeprefix("_")
                mistake = SizeDoesNotDivide(str(array), dim.name, numbers.dims[dim], text, parts)
                raise failure(plan, mistake, span)
