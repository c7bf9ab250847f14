"""From one layout of a value to another: which collectives, in which order.

Strategy `book`: what is free comes first (slices), then what makes an array smaller (ReduceScatter),
what keeps its size (AllToAll), AllReduce, and gathers last; so an AllReduce or a gather never
precedes a slice that could have come before it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from shardlang.ir.ops import (
    AllGather,
    AllReduce,
    AllToAll,
    Mask,
    Permute,
    ReduceScatter,
    Relayout,
    Slice,
)
from shardlang.ir.types import Array, Axis, Layout
from shardlang.rules.collectives import Illegal, permutable, relayout


@dataclass(frozen=True, slots=True)
class Move:
    """One relayout on the way, and the array that it makes."""

    op: Relayout
    output: Array


def prefix(left: tuple[Axis, ...], right: tuple[Axis, ...]) -> tuple[Axis, ...]:
    """Give the axes that both begin with."""
    length = 0
    while length < min(len(left), len(right)) and left[length] == right[length]:
        length += 1
    return left[:length]


def route(array: Array, target: Layout, sizes: dict[str, int]) -> list[Move]:
    """Give the moves that bring an array into a layout of the same tensor."""
    moves: list[Move] = []
    current = array
    while current.layout != target:
        move = _next(current, target, sizes)
        current = move.output
        moves.append(move)
    return moves


def _made(array: Array, op: Relayout) -> Move:
    layout = relayout(op, array)
    assert not isinstance(layout, Illegal), f"{op} on {array}: {layout.why}"
    return Move(op, array.with_layout(layout))


def _missing(array: Array, target: Layout) -> Iterable[tuple[int, tuple[Axis, ...]]]:
    """Give, for each dim that is a beginning of its target, the axes that are still to come."""
    for index, (have, want) in enumerate(zip(array.layout.sharding, target.sharding, strict=True)):
        if len(have) < len(want) and want[: len(have)] == have:
            yield index, want[len(have) :]


def _leading(axes: tuple[Axis, ...], allowed: frozenset[Axis] | set[Axis]) -> tuple[Axis, ...]:
    length = 0
    while length < len(axes) and axes[length] in allowed:
        length += 1
    return axes[:length]


def _next(array: Array, target: Layout, sizes: dict[str, int]) -> Move:
    layout, dims = array.layout, array.tensor.dims
    sums = layout.unreduced if layout.reduction == "sum" else frozenset[Axis]()
    for index, wanted in _missing(array, target):
        axes = _leading(wanted, set(wanted) - layout.used)
        if axes:
            return _made(array, Slice(axes, dims[index]))
    for index, wanted in _missing(array, target):
        axes = _leading(wanted, sums - target.unreduced)
        if axes:
            return _made(array, ReduceScatter(axes, dims[index]))
    for index, wanted in _missing(array, target):
        for source, have in enumerate(layout.sharding):
            surplus = have[len(prefix(have, target.sharding[source])) :]
            for length in range(min(len(surplus), len(wanted)), 0, -1):
                if source != index and surplus[-length:] == wanted[:length]:
                    return _made(array, AllToAll(wanted[:length], dims[source], dims[index]))
    extra = layout.unreduced - target.unreduced
    if layout.unreduced and layout.reduction != target.reduction:
        extra = layout.unreduced
    settled = extra - {axis for axis in target.split_axes if axis in sums}
    if settled:
        return _made(array, AllReduce(tuple(sorted(settled))))
    if permutable(layout, target, sizes):
        return Move(Permute(layout.moved(target)), array.with_layout(target))
    for index, (have, want) in enumerate(zip(layout.sharding, target.sharding, strict=True)):
        keep = len(prefix(have, want))
        if len(have) > keep:
            return _made(array, AllGather(have[keep:], dims[index]))
    free = target.unreduced - layout.used
    if free and target.reduction == "sum":
        return _made(array, Mask(tuple(sorted(free))))
    if extra:
        return _made(array, AllReduce(tuple(sorted(extra))))
    raise AssertionError(f"no way from {array} to {array.with_layout(target)}")
