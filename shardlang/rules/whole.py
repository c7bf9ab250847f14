"""Which dims an operation needs whole, and which axes of a dim stay when it is written as others.

A *stray* axis splits a dim in a way that the operation can't work with, so that it is gathered first.
Of an N that is written as K and G (`Reshape_{N->K,G}`), row by row, axes go to K as long as they divide
it, and on to G where K is used up exactly, so that each device has one place of it; the other way round
only K may be split, and G where K is used up. Where sizes are not known the axes are taken to divide the
first factor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from shardlang.ir.ops import Compute, Rank, Rename, Reshape, Rotary, Top
from shardlang.ir.types import Array, Axis, Dim, Layout, Tensor

Axes = tuple[Axis, ...]


@dataclass(frozen=True, slots=True)
class Stray:
    """Axes that can't stay on a dim of an operand, and why: it ends the sentence `X splits H of q, ...`."""

    dim: Dim
    axes: Axes
    why: str


def needed_whole(op: Compute) -> tuple[Dim, ...]:
    """Give the dims that an operation needs whole, in its operands and in its result."""
    match op:
        case Rotary(dim, half):
            return (dim, half)
        case Top(dim, into):
            return (dim, into)
        case Rank(dims):
            return dims
        case _:
            return ()


def verb(op: Compute) -> str:
    """Give an operation's name in the notation, for sentences."""
    match op:
        case Rotary(back=True):
            return "unrotary"
        case Rotary() | Top() | Rank():
            return type(op).__name__.lower()
        case _:
            return type(op).__name__


def assumed(op: Compute, array: Array, sizes: Mapping[str, int]) -> tuple[Axes, Dim] | None:
    """Give the axes that are taken to divide the first factor of a dim, where sizes don't say so."""
    if not isinstance(op, Reshape) or not op.splits:
        return None
    axes, first = array.axes(op.whole), op.factors[0]
    known = first.name in sizes and all(axis.name in sizes for axis in axes)
    return None if known or not axes else (axes, first)


def spread(op: Reshape, axes: Axes, sizes: Mapping[str, int]) -> tuple[tuple[Axes, ...], str]:
    """Put the axes of the one dim on its factors, as far as they go; say why not further."""
    found: list[list[Axis]] = [[] for _ in op.factors]
    place = 0
    for axis in axes:
        while place < len(found) and used_up(op.factors[place], found[place], sizes):
            place += 1
        if place == len(found):
            return tuple(map(tuple, found)), f"and no place of {op.whole} is left to split"
        factor, parts = op.factors[place], _parts((*found[place], axis), sizes)
        if sizes.get(factor.name, parts) % parts:
            size = sizes[factor.name]
            return (
                tuple(map(tuple, found)),
                f"and its factor {factor}={size} does not divide into {parts} parts",
            )
        found[place].append(axis)
    return tuple(map(tuple, found)), ""


def used_up(factor: Dim, axes: Sequence[Axis], sizes: Mapping[str, int]) -> bool:
    """Say whether axes split a factor into single places, as far as sizes are known."""
    return sizes.get(factor.name) == _parts(axes, sizes)


def _parts(axes: Sequence[Axis], sizes: Mapping[str, int]) -> int:
    return prod(sizes.get(axis.name, 1) for axis in axes)


def _leading(op: Reshape, array: Array, sizes: Mapping[str, int]) -> tuple[Stray, ...]:
    """List what has to be gathered before factors are joined: all behind one that is not used up."""
    strays: list[Stray] = []
    open_: Dim | None = None
    for factor in op.factors:
        axes = array.axes(factor)
        if open_ is not None and axes:
            why = f"and lies inside {open_} in {op.whole}: its shards are no blocks of {op.whole}"
            strays.append(Stray(factor, axes, why))
        if open_ is None and not used_up(factor, axes, sizes):
            open_ = factor
    return tuple(strays)


def seen_as(op: Compute, array: Array, sizes: Mapping[str, int]) -> tuple[Array, tuple[Stray, ...]]:
    """Give an operand under the dim names of the operation, without stray axes, and these.

    The dims of a Rename are the result's, those of a Reshape its factors.
    """
    match op:
        case Rename(dims):
            return Array(Tensor(array.name, dims, array.tensor.dtype), array.layout), ()
        case Reshape() if op.splits:
            parts, why = spread(op, array.axes(op.whole), sizes)
            left = array.axes(op.whole)[sum(map(len, parts)) :]
            tensor = by_factors(op, array.tensor)
            split = dict(zip(op.factors, parts, strict=True))
            sharding = (split[d] if d in split else array.axes(d) for d in tensor.dims)
            layout = Layout(tuple(sharding), array.layout.unreduced, array.layout.reduction)
            return Array(tensor, layout), (Stray(op.whole, left, why),) if left else ()
        case Reshape():
            strays = _leading(op, array, sizes)
        case _:
            whole = [dim for dim in array.tensor.dims if dim in needed_whole(op)]
            why = f"which {verb(op)} needs whole"
            strays = tuple(Stray(d, array.axes(d), why) for d in whole if array.axes(d))
    gone = {stray.dim for stray in strays}
    sharding = (() if d in gone else array.axes(d) for d in array.tensor.dims)
    kept = Layout(tuple(sharding), array.layout.unreduced, array.layout.reduction)
    return array.with_layout(kept), strays


def by_factors(op: Compute, tensor: Tensor) -> Tensor:
    """Give a tensor of a Reshape with the factors in the place of their product; others as they are."""
    if not isinstance(op, Reshape) or op.whole not in tensor.dims:
        return tensor
    dims = (d for dim in tensor.dims for d in (op.factors if dim == op.whole else (dim,)))
    return Tensor(tensor.name, tuple(dims), tensor.dtype)


def wish_by_factors(
    op: Compute, tensor: Tensor, wish: Layout | None, sizes: Mapping[str, int]
) -> Layout | None:
    """Give a layout wanted for a result, as one of its factors; what fits on none of them is left out."""
    if wish is None or not isinstance(op, Reshape) or op.whole not in tensor.dims:
        return wish
    array = Array(tensor, wish)
    parts, _ = spread(op, array.axes(op.whole), sizes)
    split = dict(zip(op.factors, parts, strict=True))
    dims = by_factors(op, tensor).dims
    sharding = tuple(split[d] if d in split else array.axes(d) for d in dims)
    return Layout(sharding, wish.unreduced, wish.reduction)


def given_as(op: Compute, tensor: Tensor, layout: Layout) -> Layout:
    """Give an operand's layout under the names of the operation as one of the operand itself."""
    if not isinstance(op, Reshape) or op.whole not in tensor.dims:
        return layout
    split = dict(zip(by_factors(op, tensor).dims, layout.sharding, strict=True))
    split[op.whole] = tuple(axis for factor in op.factors for axis in split[factor])
    sharding = tuple(split[dim] for dim in tensor.dims)
    return Layout(sharding, layout.unreduced, layout.reduction)
