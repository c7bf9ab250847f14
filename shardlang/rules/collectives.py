"""What each collective and local move does to a layout, and when it is legal.

The suffix rule keeps the data in order: AllGather and AllToAll take the innermost axes of a dim,
ReduceScatter, AllToAll and Slice put axes inside those that a dim has. `I_XY` is X-major, so its
blocks of Y are neighbours on a device's ring and gathering X alone would interleave them.
"""

from __future__ import annotations

from collections.abc import Mapping
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
from shardlang.ir.types import Array, Axis, Dim, Layout, subscript


@dataclass(frozen=True, slots=True)
class Illegal:
    """Why an operation can't be done as it stands, in the notation's words, and what would do."""

    why: str
    hint: str | None = None


def _axes(axes: tuple[Axis, ...]) -> str:
    return subscript(axes).lstrip("_").strip("{}").replace(",", ", ")


def _replace(layout: Layout, index: int, axes: tuple[Axis, ...]) -> Layout:
    sharding = list(layout.sharding)
    sharding[index] = axes
    return Layout(tuple(sharding), layout.unreduced, layout.reduction)


def _index(array: Array, dim: Dim) -> int | None:
    return array.tensor.dims.index(dim) if dim in array.tensor.dims else None


def _take(array: Array, axes: tuple[Axis, ...], dim: Dim, verb: str) -> Layout | Illegal:
    """Take the innermost axes off a dim."""
    index = _index(array, dim)
    if index is None:
        return Illegal(f"{array} has no dim {dim}")
    own = array.layout.sharding[index]
    missing = [axis for axis in axes if axis not in own]
    if missing:
        return Illegal(f"{_axes(tuple(missing))} does not split {dim} in {array}")
    if own[len(own) - len(axes) :] != axes:
        inner = own[min(own.index(axis) for axis in axes) :]
        return Illegal(
            f"{verb} takes the innermost axes of a dim, and {dim}{subscript(own)} is split over "
            f"{_axes(own)} from the outside in",
            f"take {_axes(inner)} together, or Permute first",
        )
    return _replace(array.layout, index, own[: len(own) - len(axes)])


def _put(array: Array, layout: Layout, axes: tuple[Axis, ...], dim: Dim) -> Layout | Illegal:
    """Put axes inside those that a dim has."""
    index = _index(array, dim)
    if index is None:
        return Illegal(f"{array} has no dim {dim}")
    used = [axis for axis in axes if axis in layout.used]
    if used:
        return Illegal(f"{array} uses {_axes(tuple(used))} already")
    return _replace(layout, index, layout.sharding[index] + axes)


def _drop_partial(array: Array, axes: tuple[Axis, ...]) -> Layout | Illegal:
    missing = [axis for axis in axes if axis not in array.layout.unreduced]
    if missing:
        names = _axes(tuple(missing))
        return Illegal(
            f"{array} holds no partial sums over {names}: reducing over {names} would count it "
            "once for every device",
        )
    left = array.layout.unreduced.difference(axes)
    reduction = array.layout.reduction if left else "sum"
    return Layout(array.layout.sharding, left, reduction)


def relayout(op: Relayout, array: Array) -> Layout | Illegal:
    """Give the layout that a relayout makes of an array, or say why it is illegal.

    A Permute goes to any layout of the same local shape, so it is typed by `permutable` instead and
    is refused here.
    """
    match op:
        case AllGather(axes, dim):
            return _take(array, axes, dim, "AllGather")
        case AllReduce(axes):
            return _drop_partial(array, axes)
        case ReduceScatter(axes, dim):
            if array.layout.reduction != "sum":
                return Illegal(f"ReduceScatter adds, and {array} holds partial maxima")
            reduced = _drop_partial(array, axes)
            return reduced if isinstance(reduced, Illegal) else _put(array, reduced, axes, dim)
        case AllToAll(axes, source, dim):
            if source == dim:
                return Illegal(f"AllToAll moves axes to another dim, and {dim} is where they are")
            taken = _take(array, axes, source, "AllToAll")
            return taken if isinstance(taken, Illegal) else _put(array, taken, axes, dim)
        case Slice(axes, dim):
            partial = array.layout.unreduced.intersection(axes)
            if partial:
                names = _axes(tuple(sorted(partial)))
                return Illegal(
                    f"{array} is unreduced over {names}: a slice would lose the other partial sums",
                    f"ReduceScatter_{{{names},{dim}}}",
                )
            return _put(array, array.layout, axes, dim)
        case Mask(axes):
            used = array.layout.used.intersection(axes)
            if used:
                return Illegal(f"{array} uses {_axes(tuple(sorted(used)))} already")
            if array.layout.unreduced and array.layout.reduction != "sum":
                return Illegal(f"{array} holds partial maxima")
            return Layout(array.layout.sharding, array.layout.unreduced.union(axes))
        case Permute():
            raise TypeError("a Permute is typed by its two layouts: see permutable")


def permutable(before: Layout, after: Layout, sizes: Mapping[str, int]) -> bool:
    """Say whether whole shards can be sent from one layout to make the other.

    Both need the same unreduced axes and, dim by dim, the same number of shards; axes whose size is
    a symbol have to be the same axes. Other axes may split afterwards than before, as in
    `A[I_X] -> A[I_Y]`: either layout gives every block to equally many devices, so that there always
    is a way for each device to send one shard and get one.
    """
    if (before.unreduced, before.reduction) != (after.unreduced, after.reduction):
        return False

    def count(axes: tuple[Axis, ...]) -> tuple[int, tuple[str, ...]]:
        product = 1
        symbols: list[str] = []
        for axis in axes:
            if axis.name in sizes:
                product *= sizes[axis.name]
            else:
                symbols.append(axis.name)
        return product, tuple(sorted(symbols))

    return all(count(a) == count(b) for a, b in zip(before.sharding, after.sharding, strict=True))
