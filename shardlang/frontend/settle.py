"""Which collective a call means: its axes and dims, from its subscript or from its two layouts.

Collectives follow the suffix rule: gathers take a dim's innermost axes, scatters append inside.
Whether one is legal is not decided here; a layout that can't be computed is None.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

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
from shardlang.ir.types import Axis, Dim, Layout, Mesh

Axes = tuple[Axis, ...]


class NotSettledError(Exception):
    """The call does not say enough; the text says what is missing."""


class SplitsNothingError(Exception):
    """An axis that is to be gathered or moved splits no dim of the operand."""

    def __init__(self, axis: Axis) -> None:
        """Keep the axis."""
        super().__init__(axis.name)
        self.axis = axis


@dataclass(frozen=True, slots=True)
class Situation:
    """What is known of a call: the operand's dims, its layout, and the layout declared after it.

    `axes` and `dim` are the subscript's, None where it has none.
    """

    dims: tuple[Dim, ...]
    before: Layout | None
    after: Layout | None
    axes: Axes | None
    dim: Dim | None
    mesh: Mesh

    def split(self) -> Iterable[tuple[Dim, Axes]]:
        """Go through the operand's dims with their axes."""
        if self.before is None:
            raise NotSettledError("the layout of the operand is not written")
        return zip(self.dims, self.before.sharding, strict=True)

    def declared(self) -> Layout:
        """Give the layout declared for the result, which has to be there."""
        if self.after is None:
            raise NotSettledError(
                "nothing says over which axes" if self.axes is None else "no dim is named"
            )
        return self.after

    def moved(self) -> Axes:
        """List the axes that change their place."""
        if self.before is None:
            raise NotSettledError("the layout of the operand is not written")
        return self.before.moved(self.declared())

    def gained(self) -> list[tuple[Dim, Axes]]:
        """List the axes that each dim gains, of those in the subscript if there is one."""
        after = self.declared()
        found: list[tuple[Dim, Axes]] = []
        for (dim, old), new in zip(self.split(), after.sharding, strict=True):
            axes = tuple(a for a in new if a not in old and (self.axes is None or a in self.axes))
            if axes and self.dim in (None, dim):
                found.append((dim, axes))
        if not found:
            raise NotSettledError("no dim of the result is split by more axes than before")
        return found

    def lost(self) -> list[tuple[Dim, Axes]]:
        """List the axes that each dim loses."""
        after = self.declared()
        found: list[tuple[Dim, Axes]] = []
        for (dim, old), new in zip(self.split(), after.sharding, strict=True):
            axes = tuple(axis for axis in old if axis not in new)
            if axes and self.dim in (None, dim):
                found.append((dim, axes))
        if not found:
            raise NotSettledError("no dim of the result is split by fewer axes than before")
        return found

    def holders(self, axes: Sequence[Axis]) -> list[tuple[Dim, Axes]]:
        """List the dims that the axes split, each with its part of them in its own order."""
        found: list[tuple[Dim, Axes]] = []
        for dim, old in self.split():
            part = tuple(axis for axis in old if axis in axes)
            if part and self.dim in (None, dim):
                found.append((dim, part))
        held = {axis for _, part in found for axis in part}
        for axis in axes:
            if axis not in held:
                raise SplitsNothingError(axis)
        return found

    def partial(self) -> Axes:
        """Give the axes over which the operand is unreduced and the result is not."""
        if self.before is None:
            raise NotSettledError("the layout of the operand is not written")
        left = self.after.unreduced if self.after is not None else frozenset[Axis]()
        axes = self.mesh.order(self.before.unreduced - left)
        if not axes:
            raise NotSettledError("nothing is left to reduce")
        return axes


def settle(head: str, situation: Situation) -> list[Relayout]:
    """Give the collectives that a call means, in a legal order: one a dim."""
    match head:
        case "AllGather":
            return _gathers(situation)
        case "ReduceScatter":
            return _scatters(situation)
        case "AllReduce":
            axes = situation.axes
            return [AllReduce(situation.partial() if axes is None else axes)]
        case "AllToAll":
            return _moves(situation)
        case "Slice":
            if situation.axes is not None and situation.dim is not None:
                return [Slice(situation.axes, situation.dim)]
            return [Slice(axes, dim) for dim, axes in situation.gained()]
        case "Mask":
            return [Mask(_masked(situation) if situation.axes is None else situation.axes)]
        case _:
            return [Permute(situation.moved() if situation.axes is None else situation.axes)]


def _gathers(at: Situation) -> list[Relayout]:
    if at.axes is None and at.dim is not None and at.after is None:
        parts = [(dim, axes) for dim, axes in at.split() if dim == at.dim]
    else:
        parts = at.lost() if at.axes is None else at.holders(at.axes)
    if not parts and at.dims:
        return [AllGather((), at.dim or at.dims[0])]
    return [AllGather(axes, dim) for dim, axes in parts]


def _scatters(at: Situation) -> list[Relayout]:
    if at.dim is not None:
        return [ReduceScatter(at.partial() if at.axes is None else at.axes, at.dim)]
    return [ReduceScatter(axes, dim) for dim, axes in at.gained()]


def _moves(at: Situation) -> list[Relayout]:
    goals = at.gained() if at.axes is None or at.dim is None else [(at.dim, at.axes)]
    found: list[Relayout] = []
    for goal, axes in goals:
        owners = {axis: dim for dim, part in replace(at, dim=None).holders(axes) for axis in part}
        group: list[Axis] = []
        for axis in axes:
            if group and owners[axis] != owners[group[-1]]:
                found.append(AllToAll(tuple(group), owners[group[-1]], goal))
                group = []
            group.append(axis)
        if group:
            found.append(AllToAll(tuple(group), owners[group[-1]], goal))
    if not found and at.dims and at.dim is not None:
        return [AllToAll((), at.dim, at.dim)]
    return found


def _masked(at: Situation) -> Axes:
    before = at.before.unreduced if at.before is not None else frozenset[Axis]()
    axes = at.mesh.order(at.declared().unreduced - before)
    if not axes:
        raise NotSettledError("the result is not unreduced over any further axis")
    return axes


def result(op: Relayout, dims: Sequence[Dim], before: Layout | None) -> Layout | None:
    """Give the layout that a collective leaves, or None where it is not legal or not known."""
    if before is None:
        return None
    axes = dict(zip(dims, before.sharding, strict=True))
    left = before.unreduced
    match op:
        case AllGather(moved, dim):
            if not _take(axes, dim, moved):
                return None
        case ReduceScatter(moved, dim):
            axes[dim] = (*axes[dim], *moved)
            left = left.difference(moved)
        case AllReduce(moved):
            left = left.difference(moved)
        case AllToAll(moved, source, dim):
            if not _take(axes, source, moved):
                return None
            axes[dim] = (*axes[dim], *moved)
        case Slice(moved, dim):
            axes[dim] = (*axes[dim], *moved)
        case Mask(moved):
            left = left.union(moved)
        case Permute():
            return None
    layout = Layout(tuple(axes[dim] for dim in dims), left, before.reduction if left else "sum")
    return None if layout.duplicates() else layout


def _take(axes: dict[Dim, Axes], dim: Dim, moved: Axes) -> bool:
    """Take axes off the inside of a dim, if they are there."""
    kept = len(axes[dim]) - len(moved)
    if kept < 0 or axes[dim][kept:] != moved:
        return False
    axes[dim] = axes[dim][:kept]
    return True
