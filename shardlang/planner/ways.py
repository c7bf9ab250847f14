"""Every way to do an operation locally: the layouts of its operands and what it makes of them.

Each mesh axis has one role. It may be *of a dim*: the dim is split by it wherever it occurs, and a dim
that is combined along leaves the result partial over it. It may run *through operands*: what the
operation is linear in is unreduced over it, and so is the result. Or it has none, and the work is
repeated. `rules.local` is the type checker that says the same of one step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from shardlang.ir.ops import (
    Compute,
    Divide,
    Einsum,
    Linear,
    Put,
    Reduce,
    Reshape,
    Rotary,
    Select,
    Take,
)
from shardlang.ir.types import Dim
from shardlang.planner.states import KINDS, Space
from shardlang.rules.local import summed
from shardlang.rules.whole import needed_whole

End = tuple[Space, tuple[Dim, ...]]
"""A tensor's graph of layouts and its dims."""


@dataclass(frozen=True, slots=True)
class Local:
    """A way to compute locally: a state for each operand and for the result.

    `split` are the axes that divide the work.
    """

    operands: tuple[int, ...]
    result: int
    split: int


def linear_in(op: Compute, operands: int) -> list[tuple[int, ...]]:
    """Give the sets of operands that may be unreduced together: the operation is linear in them."""
    match op:
        case Einsum():
            return [(index,) for index in range(operands)]
        case Linear(_, constant) if not constant:
            return [tuple(range(operands))]
        case Divide() | Rotary() | Reshape() | Reduce("sum" | "mean", _) | Take() | Put():
            return [(0,)]
        case Select(fill) if fill == 0:
            return [(1,)]
        case _:
            return []


def ways(
    op: Compute, operands: Sequence[End], result: End, sizes: Mapping[str, int]
) -> Iterator[Local]:
    """List every local way of an operation, as states of the operands' and the result's graphs.

    Operands are whole or sums; a result of `max` and `min` may be a partial maximum. Of a reshaped dim
    each factor has a role; `sizes` say which axes use one up, so that the next may be split as well.
    """
    listing = _Listing(op, (*operands, result), sizes)
    yield from listing.factors(0, listing.space.full, 0, (0,) * len(listing.ends), ())


class _Listing:
    """The ways of one operation. States are made up by adding the fields of dims to `codes`."""

    def __init__(self, op: Compute, ends: Sequence[End], sizes: Mapping[str, int]) -> None:
        self.ends, self.last, self.sizes = ends, len(ends) - 1, sizes
        self.spaces = [space for space, _ in ends]
        self.space = self.spaces[0]
        self.parts = op.factors if isinstance(op, Reshape) else ()
        one = [op.whole] if isinstance(op, Reshape) else []
        others = (d for _, own in ends for d in own if d not in one)
        self.dims = list(dict.fromkeys((*self.parts, *others)))
        self.gone = set(summed(op))
        whole = needed_whole(op)
        self.kind = KINDS.index(op.combines) if isinstance(op, Reduce) else 0
        self.places = [self._places(dim) for dim in self.dims]
        self.fits = [
            [not mask for mask in range(self.space.full + 1)] if dim in whole else self._fits(where)
            for dim, where in zip(self.dims, self.places, strict=True)
        ]
        self.joined = [place for dim in one for place in self._places(dim)]
        self.joined_fits = self._fits(self.joined)
        self.highs = [each.high for each in self.spaces]
        self.through = linear_in(op, self.last)

    def _places(self, dim: Dim) -> list[tuple[int, int]]:
        """Give the ends that have a dim, and where."""
        return [(i, own.index(dim)) for i, (_, own) in enumerate(self.ends) if dim in own]

    def _fits(self, where: Sequence[tuple[int, int]]) -> list[bool]:
        """Say of every set of axes whether it divides the dim in these places."""
        spaces = self.spaces
        return [all(spaces[i].fits[d][m] for i, d in where) for m in range(self.space.full + 1)]

    def _put(
        self, codes: tuple[int, ...], where: Sequence[tuple[int, int]], index: int
    ) -> tuple[int, ...]:
        """Split a dim over the axes of an order, in each of its places."""
        made = list(codes)
        for i, d in where:
            made[i] |= index << self.spaces[i].shifts[d]
        return tuple(made)

    def factors(
        self, at: int, free: int, split: int, codes: tuple[int, ...], order: tuple[int, ...]
    ) -> Iterator[Local]:
        """Give factors their axes, the outermost first, and then the reshaped dim all of them.

        `order` are those given so far: a factor gets some only if those before are used up.
        """
        if at == len(self.parts):
            if self.joined_fits[split]:
                joined = self._put(codes, self.joined, self.space.number[order])
                yield from self.roles(at, free, split, joined)
            return
        for index, mask in enumerate(self.space.masks):
            if mask & ~free or not self.fits[at][mask]:
                continue
            made = self._put(codes, self.places[at], index)
            longer = (*order, *self.space.orders[index])
            left, both = free & ~mask, split | mask
            if self.sizes.get(self.parts[at].name) == self.space.counts[index]:
                yield from self.factors(at + 1, left, both, made, longer)
            elif self.joined_fits[both]:
                joined = self._put(made, self.joined, self.space.number[longer])
                yield from self.roles(len(self.parts), left, both, joined)

    def roles(self, at: int, free: int, split: int, codes: tuple[int, ...]) -> Iterator[Local]:
        """Give the dims from one on their axes."""
        if at == len(self.dims):
            yield from self.partials(0, free, codes, split)
            return
        for index, mask in enumerate(self.space.masks):
            if mask & ~free or not self.fits[at][mask]:
                continue
            made = self._put(codes, self.places[at], index)
            if self.dims[at] in self.gone:
                made = (*made[:-1], made[-1] | mask << self.highs[self.last])
            yield from self.roles(at + 1, free & ~mask, split | mask, made)

    def partials(
        self, group: int, free: int, codes: tuple[int, ...], split: int
    ) -> Iterator[Local]:
        """Let axes run through operands that the operation is linear in."""
        high = self.highs[self.last]
        if group == len(self.through) or not free:
            made = codes[self.last]
            if self.kind and made >> high & self.space.full:
                made |= self.kind << self.spaces[self.last].kind
            yield Local(codes[: self.last], made, split)
            return
        sub = free
        while True:
            made = list(codes)
            if sub:
                for operand in (*self.through[group], self.last):
                    made[operand] |= sub << self.highs[operand]
            yield from self.partials(group + 1, free & ~sub, tuple(made), split)
            if not sub:
                return
            sub = (sub - 1) & free
