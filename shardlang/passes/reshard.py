"""From one layout of a value to another: which collectives, in which order.

Strategy `book`: what is free comes first (slices), then what makes an array smaller (ReduceScatter),
what keeps its size (AllToAll), AllReduce, and gathers last; so an AllReduce or a gather never
precedes a slice that could have come before it.

In a program with stages nothing is laid out by a Permute: it needs every device of the mesh at once, while each
stage does work of its own. Other collectives need those of their groups alone, which are one stage's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from shardlang.ir.ops import (
    AllGather,
    AllReduce,
    AllToAll,
    Collective,
    Mask,
    Permute,
    ReduceScatter,
    Relayout,
    Slice,
)
from shardlang.ir.types import Array, Axis, Layout, prefix
from shardlang.rules.collectives import Illegal, permutable, relayout
from shardlang.rules.price import book_bytes


@dataclass(frozen=True, slots=True)
class Move:
    """One relayout on the way, and the array that it makes."""

    op: Relayout
    output: Array


def route(
    array: Array, target: Layout, sizes: Mapping[str, int], *, permutes: bool = True
) -> list[Move]:
    """Give the moves that bring an array into a layout of the same tensor.

    Where only a gather leads on and there are several to begin with, all are tried, and the fewest
    bytes taken, at nominal sizes where sizes are not known. `permutes` says whether a Permute may be one
    of the moves.
    """
    moves: list[Move] = []
    current = array
    while current.layout != target:
        move = _next(current, target, sizes, permutes=permutes)
        if move is None:
            gathers = _gathers(current, target)
            rests = [
                [gather, *route(gather.output, target, sizes, permutes=permutes)]
                for gather in gathers
            ]
            return [*moves, *min(rests, key=lambda rest: nominal(current, rest, sizes))]
        current = move.output
        moves.append(move)
    return moves


def reachable(layout: Layout, target: Layout) -> bool:
    """Say whether a layout can be made from another: partial maxima come from a maximum alone."""
    if target.reduction == "sum" or not target.unreduced:
        return True
    return layout.reduction == target.reduction and target.unreduced <= layout.unreduced


NOMINAL_AXIS, NOMINAL_DIM = 4, 4096
"""What sizes count as that are not known, where routes are compared."""


def nominal(array: Array, moves: list[Move], sizes: Mapping[str, int]) -> tuple[Fraction, int]:
    """Give what a route moves, with nominal sizes for those not known, and its collectives."""
    dims = {dim.name for dim in array.tensor.dims}
    total, count = Fraction(0), 0
    for move in moves:
        size = book_bytes(move.op, array, move.output).evaluate(sizes)
        guessed = {n: NOMINAL_DIM if n in dims else NOMINAL_AXIS for n, _ in size.powers}
        total += size.evaluate(guessed).coefficient
        count += isinstance(move.op, Collective)
        array = move.output
    return total, count


def _gathers(array: Array, target: Layout) -> list[Move]:
    """Give every gather that takes axes off which are not where the target has them.

    Of a dim's axes all that are too many come first, then fewer: the rest may still move elsewhere.
    """
    found: list[Move] = []
    for dim, have, want in zip(
        array.tensor.dims, array.layout.sharding, target.sharding, strict=True
    ):
        keep = len(prefix(have, want))
        found.extend(_made(array, AllGather(have[first:], dim)) for first in range(keep, len(have)))
    return found


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


def _next(array: Array, target: Layout, sizes: Mapping[str, int], *, permutes: bool) -> Move | None:
    """Give the next move that needs no choice, or None where only a gather leads on."""
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
    if permutes and permutable(layout, target, sizes):
        return Move(Permute(layout.moved(target)), array.with_layout(target))
    if any(
        len(have) > len(prefix(have, want))
        for have, want in zip(layout.sharding, target.sharding, strict=True)
    ):
        return None
    free = target.unreduced - layout.used
    if free and target.reduction == "sum":
        return _made(array, Mask(tuple(sorted(free))))
    if extra:
        return _made(array, AllReduce(tuple(sorted(extra))))
    raise AssertionError(f"no way from {array} to {array.with_layout(target)}")
