"""Every layout of a tensor over some axes, and programs of one operation over them."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

from shardlang.ir.ops import Compute
from shardlang.ir.program import DimInfo, Leaf, Program, Statement, Use
from shardlang.ir.types import Array, Axis, AxisInfo, Dim, DTYPES, Layout, Mesh, Tensor
from shardlang.source import Source, Span

NOWHERE = Span(0, 0)


def all_layouts(rank: int, axes: str, *, partial: bool = True) -> list[Layout]:
    """List the layouts of a tensor over single-letter axes: each on a dim, unreduced, or unused."""
    places = [*range(rank), *(["U"] if partial else []), None]
    found: dict[Layout, None] = {}
    for choice in itertools.product(places, repeat=len(axes)):
        for order in itertools.permutations(range(len(axes))):
            sharding: list[list[Axis]] = [[] for _ in range(rank)]
            unreduced: set[Axis] = set()
            for index in order:
                place, axis = choice[index], Axis(axes[index])
                if place == "U":
                    unreduced.add(axis)
                elif isinstance(place, int):
                    sharding[place].append(axis)
            found[Layout(tuple(map(tuple, sharding)), frozenset(unreduced))] = None
    return list(found)


def one_operation(
    op: Compute,
    operands: list[tuple[str, Layout]],
    result: str,
    target: Layout | None,
    axes: str,
    sizes: dict[str, int] | None = None,
) -> Program:
    """Make a program of one operation; operands and result are strings of one-letter dims."""
    known = sizes or {}
    bf16 = DTYPES["bf16"]
    tensors = [
        Tensor(name, tuple(map(Dim, dims)), bf16)
        for name, (dims, _) in zip("AVQR", operands, strict=False)
    ]
    leaves = tuple(
        Leaf(Array(tensor, layout), "input", NOWHERE)
        for tensor, (_, layout) in zip(tensors, operands, strict=True)
    )
    uses = tuple(
        Use(tensor, layout, NOWHERE) for tensor, (_, layout) in zip(tensors, operands, strict=True)
    )
    made = Tensor("C", tuple(map(Dim, result)), bf16)
    dims = dict.fromkeys(dim for tensor in [*tensors, made] for dim in tensor.dims)
    return Program(
        Source("test", ""),
        Mesh(tuple(AxisInfo(Axis(axis), known.get(axis)) for axis in axes)),
        tuple(DimInfo(dim, known.get(dim.name)) for dim in dims),
        leaves,
        (Statement(op, uses, made, target, NOWHERE),),
    )


def samples(
    *pools: list[Layout | None], count: int, seed: int
) -> Iterator[tuple[Layout | None, ...]]:
    """Draw combinations, without repeating one, in an order that a seed fixes."""
    rng = random.Random(seed)
    total = 1
    for pool in pools:
        total *= len(pool)
    for drawn in rng.sample(range(total), min(count, total)):
        number = drawn
        chosen: list[Layout | None] = []
        for pool in pools:
            number, place = divmod(number, len(pool))
            chosen.append(pool[place])
        yield tuple(chosen)
