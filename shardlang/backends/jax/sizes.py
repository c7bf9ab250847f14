"""Gives every dim and axis a number: the declared ones, those that the caller sets, and the rest.

Sizes that nobody gives are small and divide whatever splits them anywhere in the plan. Raises
`SH601` where a size that was given does not divide, `SH602` where it is no size at all, `SH607` and
`SH608` where sizes that belong together can't be chosen so, `SH609` where axes that a Permute puts in
each other's place differ in size.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass

from shardlang.backends.jax.errors import (
    BadSize,
    failure,
    NoSizes,
    ShardsApart,
    SizeDoesNotDivide,
    SizesApart,
)
from shardlang.backends.jax.relations import Relations
from shardlang.ir.ops import Permute, sizes_in, Top
from shardlang.ir.plan import Plan, Step
from shardlang.ir.printer import size_expr, statement
from shardlang.ir.program import Pipeline
from shardlang.ir.size import BinOp, Name, SizeExpr
from shardlang.ir.types import Array, Axis, Dim, subscript
from shardlang.pipelines.schedules import SCHEDULES
from shardlang.source import Span

OPEN_AXIS = 2
"""The size of an axis that nobody sized."""

OPEN_AXES = 6
"""How many axes that nobody sized get more than one device."""

FEW_LAYERS = 3
"""How many layers a block has that nobody said the layers of: a first, a last, and one between."""

DEEP = 4
"""Up to so many layers are tried as they are; in more of them narrow floats round too often to compare."""

LARGEST = 2**62

GIVEN_DEVICES = 64
"""The largest mesh that is simulated because somebody gave it."""

GIVEN_ELEMENTS = 2**24
"""The most elements of an array that is made at the sizes that somebody gave."""


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
        yield from step.outputs
    yield from plan.outputs
    yield from plan.cotangents


def dims_of(plan: Plan) -> tuple[Dim, ...]:
    """List the dims of a plan in the order in which they first occur, then those that no array has.

    Those are dims of layers and microbatches, and those whose size alone is read.
    """
    dims = (dim for array in arrays(plan) for dim in array.tensor.dims)
    many = plan.program.microbatches
    read = (dim for _, step in plan.steps() for dim in sizes_in(step.op))
    others = (*layers_of(plan), *(() if many is None else (many,)), *read)
    return tuple(dict.fromkeys((*dims, *others)))


def layers_of(plan: Plan) -> tuple[Dim, ...]:
    """List the dims that blocks are repeated over."""
    loops = (step.loop.dim for _, step in plan.steps() if step.loop is not None)
    stacks = (leaf.loop for leaf in plan.program.leaves if leaf.loop is not None)
    return tuple(dict.fromkeys((*loops, *stacks)))


def stacks_of(plan: Plan) -> dict[Dim, tuple[Axis, ...]]:
    """Give the axes of the stages that hold the layers of a pipeline, by the dim of the layers."""
    return {dim: pipeline.axes for dim, pipeline in pipelines_of(plan).items()}


def pipelines_of(plan: Plan) -> dict[Dim, Pipeline]:
    """Say how layers lie on stages, by the dim of the layers."""
    blocks = plan.program.blocks
    return {block.dim: block.pipeline for block in blocks if block.pipeline is not None}


def axes_of(plan: Plan) -> tuple[Axis, ...]:
    """List the axes of the mesh, and after them any that the plan uses besides."""
    used = (axis for array in arrays(plan) for axis in sorted(array.layout.used))
    return tuple(dict.fromkeys((*(info.axis for info in plan.program.mesh.axes), *used)))


def roots(plan: Plan) -> Mapping[Dim, str]:
    """Give each dim a name that stands for its size: dims of one size under two names have the same."""
    stands = Relations.of(plan, (dim.name for dim in dims_of(plan))).stands
    return {dim: stands[dim.name] for dim in dims_of(plan)}


@dataclass(frozen=True)
class _Sizing:
    """What a choice of sizes has to respect: relations, and the tuples of axes that split dims."""

    plan: Plan
    relations: Relations
    splits: Mapping[str, set[tuple[Axis, ...]]]

    @staticmethod
    def of(plan: Plan, own: Container[str]) -> _Sizing:
        """Look through a plan; of the dims in `own` the declared expressions don't count."""
        relations = Relations.of(plan, (dim.name for dim in dims_of(plan)), own)
        splits: dict[str, set[tuple[Axis, ...]]] = {x: set() for x in relations.stands.values()}
        for array in arrays(plan):
            for dim, axes in zip(array.tensor.dims, array.layout.sharding, strict=True):
                splits[relations.stands[dim.name]].add(axes)
        for dim, axes in stacks_of(plan).items():
            splits[relations.stands[dim.name]].add(axes)
        return _Sizing(plan, relations, splits)

    def root(self, dim: Dim) -> str:
        """Give the name that stands for a dim's size."""
        return self.relations.stands[dim.name]

    def solve(
        self, fixed: Mapping[str, int], axes: Mapping[Axis, int], few: tuple[int, int, int]
    ) -> dict[Dim, int] | tuple[str, SizeExpr]:
        """Give every dim a size; an open one is a few times what its axes need.

        `few` are the least factor, the step to the next dim's, and after how many it starts again.
        """
        parts = {name: _needed(over, axes) for name, over in self.splits.items()}
        start = dict[str, int]()
        for layers, pipeline in pipelines_of(self.plan).items():
            for dim, count in _in_stages(self.plan, layers, pipeline, axes):
                parts[self.root(dim)] = math.lcm(parts[self.root(dim)], count)
                once = dim == layers and pipeline.chunks > 1  # a stage has several layers then
                start[self.root(dim)] = parts[self.root(dim)] * (1 if once else 2)
        least, step, period = few
        for dim in layers_of(self.plan):
            start.setdefault(self.root(dim), FEW_LAYERS)
        for index, dim in enumerate(dims_of(self.plan)):
            factor = least + step * (index % period)
            start.setdefault(self.root(dim), parts[self.root(dim)] * factor)
        for name in self.relations.stands.values():
            start.setdefault(name, parts[name] * least)
        for few_of, many in _at_most(self.plan):
            most, root = self.root(many), self.root(few_of)
            start[root] = min(start[root], max(1, fixed.get(most, start[most]) // 2))
        by_name = {axis.name: size for axis, size in axes.items()}
        found = self.relations.solve(fixed, start, by_name, parts)
        if isinstance(found, tuple):
            return found
        return {dim: found[self.root(dim)] for dim in dims_of(self.plan)}


def _in_stages(
    plan: Plan, layers: Dim, pipeline: Pipeline, axes: Mapping[Axis, int]
) -> Iterator[tuple[Dim, int]]:
    """Give what a pipeline's layers and microbatches have to be multiples of."""
    stages, many = math.prod(axes[axis] for axis in pipeline.axes), plan.program.microbatches
    yield layers, stages * pipeline.chunks
    if many is not None and SCHEDULES[pipeline.schedule].grouped:
        yield many, stages


def _at_most(plan: Plan) -> Iterator[tuple[Dim, Dim]]:
    """Go through pairs of dims of which the first has no more places than the second.

    It gets at most half as many, so that something is left out.
    """
    for _, step in plan.steps():
        if isinstance(step.op, Top):
            yield step.op.into, step.op.dim


def choose(plan: Plan, given: Mapping[str, int] | None = None) -> Numbers:
    """Size everything; a dim that nobody sized is some times what its axes need.

    Sizes that belong together (`F=4*D`, a Rename's two names) stay so; `given` ones win.
    """
    given = given or {}
    known = {**plan.program.sizes.known, **given}
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
    sizing = _Sizing.of(plan, frozenset(given))
    fixed = _fixed(plan, sizing.relations, given)
    dims = sizing.solve(fixed, axes, (4, 2, 4))
    if isinstance(dims, tuple):
        raise failure(plan, NoSizes(dims[0], size_expr(dims[1])))
    settled = sizing.relations.settled(fixed, {axis.name: size for axis, size in axes.items()})
    chosen += [dim.name for dim in dims if sizing.root(dim) not in settled]
    numbers = Numbers(axes, dims, tuple(chosen))
    _check(plan, numbers)
    return numbers


def _fixed(plan: Plan, relations: Relations, given: Mapping[str, int]) -> dict[str, int]:
    """Give the sizes that are numbers, by what stands for them; given ones before declared ones."""
    fixed: dict[str, int] = {}
    owner: dict[str, str] = {}
    for name, size in given.items():
        root = relations.stands.get(name)
        if root is None:
            continue
        if fixed.setdefault(root, size) != size:
            raise failure(plan, SizesApart(owner[root], fixed[root], name, size))
        owner.setdefault(root, name)
    for info in plan.program.dims:
        symbolic = isinstance(info.declared, Name | BinOp)
        if info.size is not None and info.dim.name in relations.stands and not symbolic:
            fixed.setdefault(relations.stands[info.dim.name], info.size)
    return fixed


def _needed(split: set[tuple[Axis, ...]], axes: Mapping[Axis, int]) -> int:
    """Give the least size that all these tuples of axes divide."""
    return math.lcm(*(math.prod(axes[axis] for axis in over) for over in split))


def shrink(
    plan: Plan,
    numbers: Numbers,
    *,
    devices: int,
    fixed: frozenset[Dim] = frozenset(),
    keep: frozenset[str] = frozenset(),
) -> Numbers:
    """Give small sizes of the same kind, for a run on one machine.

    Axes keep their size while the mesh has at most `devices` devices; else each shrinks to 2 (or
    to its least factor, where it splits a dim that stays), and to 1 from the seventh on, but stays
    larger where a Permute puts it in the place of others. Dims
    become small, with different sizes for neighbours, but for the fixed ones and what hangs
    together with them. Dims and axes named in `keep` stay too.
    """
    sizing = _Sizing.of(plan, keep)
    bound = sizing.relations.together(dim.name for dim in fixed)
    stay = {sizing.root(dim) for dim in numbers.dims if dim.name in keep} | bound
    values = {sizing.root(d): n for d, n in numbers.dims.items() if sizing.root(d) in stay}
    axes = dict(numbers.axes)
    if numbers.devices > devices:
        by_name = {axis.name: size for axis, size in axes.items()}
        firm = sizing.relations.settled(values, by_name).keys() & sizing.splits.keys()
        tight = {axis for name in firm for over in sizing.splits[name] for axis in over}
        big = [axis for axis, size in axes.items() if size > 1 and axis.name not in keep]
        for axis in big:
            size = axes[axis]
            least = next(n for n in range(2, size + 1) if size % n == 0) if axis in tight else 2
            axes[axis] = least if big.index(axis) < 6 else 1
        if next(_apart(plan, axes), None) is not None:
            axes = _together(plan, numbers.axes, axes)
    dims = sizing.solve(values, axes, (2, 1, 3))
    return numbers if isinstance(dims, tuple) else Numbers(axes, dims, numbers.chosen)


def _apart(plan: Plan, axes: Mapping[Axis, int]) -> Iterator[tuple[Step, Dim, int, int]]:
    """Go through the Permutes that are none at some sizes: a dim has other shards than before."""
    for _, step in plan.steps():
        if not isinstance(step.op, Permute):
            continue
        for dim in step.output.tensor.dims:
            before, after = (
                math.prod(axes[axis] for axis in array.axes(dim))
                for array in (step.inputs[0], step.output)
            )
            if before != after:
                yield step, dim, before, after


def _together(plan: Plan, whole: Mapping[Axis, int], small: Mapping[Axis, int]) -> dict[Axis, int]:
    """Give the fewest devices with which every Permute is one; no axis has less than in `small`."""
    choices = [
        [n for n in range(small[axis], size + 1) if size % n == 0] for axis, size in whole.items()
    ]
    for sizes in sorted(itertools.product(*choices), key=lambda sizes: (math.prod(sizes), sizes)):
        axes = dict(zip(whole, sizes, strict=True))
        if next(_apart(plan, axes), None) is None:
            return axes
    return dict(whole)


def fitted(
    plan: Plan,
    numbers: Numbers,
    given: Iterable[str],
    *,
    devices: int,
    fixed: frozenset[Dim] = frozenset(),
) -> Numbers:
    """Shrink for a run on one machine, but keep what is given as far as one machine holds it.

    A mesh with a given axis may have `GIVEN_DEVICES`, an array `GIVEN_ELEMENTS`. Past that the mesh
    shrinks as a whole, and of dims the largest given one of the largest array, until all fit.
    """
    keep = set(given)
    if any(axis.name in keep for axis in numbers.axes):
        limit = max(devices, GIVEN_DEVICES)
        small = shrink(plan, numbers, devices=limit, fixed=fixed, keep=frozenset(keep))
        if small.devices > limit:
            keep -= {axis.name for axis in numbers.axes}
        else:
            devices = limit
    while True:
        small = shrink(plan, numbers, devices=devices, fixed=fixed, keep=frozenset(keep))
        drop = _excess(plan, small, keep)
        if drop is None:
            return small
        keep -= drop


def _excess(plan: Plan, numbers: Numbers, keep: set[str]) -> set[str] | None:
    """Name the dims of one size that have to shrink before all arrays fit on one machine."""
    largest = max(arrays(plan), key=lambda x: elements(x, numbers), default=None)
    if largest is None or elements(largest, numbers) <= GIVEN_ELEMENTS:
        return None
    kept = [dim for dim in numbers.dims if dim.name in keep]
    if not kept:
        return None
    inside = [dim for dim in kept if dim in largest.tensor.dims] or kept
    size = max(numbers.dims[dim] for dim in inside)
    return {dim.name for dim in inside if numbers.dims[dim] == size}


def elements(array: Array, numbers: Numbers) -> int:
    """Say how many elements an array has in all."""
    return math.prod(numbers.dims[dim] for dim in array.tensor.dims)


def shrunk(numbers: Numbers, small: Numbers) -> tuple[str, ...]:
    """Say which of the sizes that somebody gave are others in a small run: `T=4096 to 8`."""
    pairs = [
        *((axis.name, size, small.axes[axis]) for axis, size in numbers.axes.items()),
        *((dim.name, size, small.dims[dim]) for dim, size in numbers.dims.items()),
    ]
    return tuple(
        f"{f'layers {name}' if name.isdigit() else f'{name}={size}'} to {now}"
        for name, size, now in pairs
        if size != now and name not in numbers.chosen
    )


def _placed(plan: Plan) -> Iterator[tuple[Array, Span | None]]:
    """Go through the arrays with the places of the text that they serve."""
    for leaf in plan.program.leaves:
        yield leaf.array, leaf.span
    for _, step in plan.steps():
        for array in (*step.inputs, step.output):
            yield array, step.span


def _check(plan: Plan, numbers: Numbers) -> None:
    """Raise where a dim is not divided by what splits it, or a Permute has none to send to."""
    for array, span in _placed(plan):
        for dim, axes in zip(array.tensor.dims, array.layout.sharding, strict=True):
            parts = numbers.parts(axes)
            if numbers.dims[dim] % parts:
                text = subscript(axes).removeprefix("_")
                mistake = SizeDoesNotDivide(str(array), dim.name, numbers.dims[dim], text, parts)
                raise failure(plan, mistake, span)
    for dim, pipeline in pipelines_of(plan).items():
        _check_stages(plan, numbers, dim, pipeline)
    for step, dim, before, after in _apart(plan, numbers.axes):
        raise failure(plan, ShardsApart(statement(step), dim.name, before, after), step.span)


def _check_stages(plan: Plan, numbers: Numbers, layers: Dim, pipeline: Pipeline) -> None:
    """Raise where layers are no multiple of the stages' chunks, or a schedule doesn't take the microbatches."""
    axes, many = subscript(pipeline.axes), plan.program.microbatches
    stages, size = numbers.parts(pipeline.axes), numbers.dims[layers]
    if size % (stages * pipeline.chunks):
        text = axes.removeprefix("_")
        text += f" with {pipeline.chunks} chunks a stage" if pipeline.chunks > 1 else ""
        stack, parts = f"layers {layers}{axes}", stages * pipeline.chunks
        raise failure(plan, SizeDoesNotDivide(stack, layers.name, size, text, parts))
    row = SCHEDULES[pipeline.schedule]
    if row.grouped and many is not None and stages > 1:
        mistake = row.mistake(stages, numbers.dims[many], pipeline.chunks)
        if mistake is not None:
            raise failure(plan, mistake)
