"""The cost of a value as a function of what its makers and readers choose.

A value's cost is the least tree of moves: from its sources together to where it is complete, and from
there to all its targets. `Trees` gives, for weights on the states of each place, the least of cost and
weights, and for each place and state the least with that state (its *min-marginals*): the dynamic
program of Dreyfus and Wagner over subsets of the places, once inwards and once back outwards. What is
given for a place is either a vector of weights, or the number of the one state that it is fixed to.

A value whose states are known to be few, those of its places and those where branches may part or meet,
is looked at in them alone (`Trees.only`); vectors keep their length, and are right in those states.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cache

import numpy as np

from shardlang.planner.network import Distances, NEVER, Places, Vector
from shardlang.planner.problem import Value

Given = Vector | int
"""Weights of all states, or the one state."""


@dataclass(slots=True)
class Marginals:
    """The least cost, and by place the least cost with each state (None where it is fixed).

    `inner`, if asked for, is the least cost with branches parting or meeting in each state, or, of a
    value that is reduced first, with that having been done there.
    """

    least: float
    sources: list[Vector | None]
    targets: list[Vector | None]
    inner: Vector | None = None


Spread = Callable[[Vector], Vector]
Row = Callable[[int], Vector]


class Trees:
    """The cost function of one value."""

    def __init__(self, value: Value) -> None:
        """Take a value, with its distances."""
        self.cost: Distances = value.cost
        self.adding = value.adding if len(value.adding) else np.zeros(len(value.codes))
        self.partial = None if not value.once else ~value.whole
        self.many = self.size = len(value.codes)
        self._nodes: Places | None = None
        self._where: Places | None = None

    def only(self, nodes: Places) -> Trees:
        """Give the same function for trees whose places and branchings are in some states."""
        own = nodes if self._where is None else self._where[nodes]
        made = copy(self)
        made.cost = self.cost.table(own)
        made.adding = self.adding[own]
        made.partial = None if self.partial is None else self.partial[own]
        made.size = len(nodes)
        made._nodes = nodes  # noqa: SLF001 (one of its own)
        made._where = np.full(self.many, -1)  # noqa: SLF001
        made._where[nodes] = np.arange(len(nodes))  # noqa: SLF001
        return made

    def _taken(self, given: Given) -> Given:
        """Write what is given for a place by the states that are looked at."""
        if self._nodes is None or self._where is None:
            return given
        return int(self._where[given]) if isinstance(given, int) else given[self._nodes]

    def _given(self, vector: Vector | None) -> Vector | None:
        """Write a vector by all states."""
        if self._nodes is None or vector is None:
            return vector
        whole = np.full(self.many, NEVER)
        whole[self._nodes] = vector
        return whole

    def _inward(
        self, given: Sequence[Given], spread: Spread, row: Row, adding: Vector | None
    ) -> tuple[Vector, Vector]:
        """Give, for each set of places, what it costs in each state, and what where its parts meet.

        Rows are numbered by the sets; those of single places say nothing in the second.
        """
        there = np.empty((1 << len(given), self.size))
        meet = np.empty_like(there)
        loose = [i for i, each in enumerate(given) if not isinstance(each, int)]
        if loose:
            there[[1 << i for i in loose]] = spread(np.array([given[i] for i in loose]))
        for i, each in enumerate(given):
            if isinstance(each, int):
                there[1 << i] = row(each)
        for level in _meetings(len(given)):
            found = _cheapest(there, there, level)
            if adding is not None:
                found += adding
            meet[level.sets] = found
            if adding is None or len(level.sets) > 1:
                there[level.sets] = spread(found)
        return there, meet

    def _outward(
        self,
        given: Sequence[Given],
        inward: tuple[Vector, Vector],
        top: Vector,
        back: Spread,
        adding: Vector | None,
        inner: Vector | None,
    ) -> list[Vector | None]:
        """Give each place's min-marginals, `top` being what the rest costs where all places meet.

        Into `inner` goes the least cost with parts meeting in each state.
        """
        there, meet = inward
        every = (1 << len(given)) - 1
        free = sum(1 << i for i, each in enumerate(given) if not isinstance(each, int))
        rest = np.empty_like(there)
        rest[every] = top
        if every & (every - 1):
            if inner is not None:
                np.minimum(inner, top + meet[every], out=inner)
            if adding is not None:
                rest[every] += adding
        for level in _partings(len(given), free, free if inner is None else every):
            found = back(_cheapest(rest, there, level))
            if inner is not None and int(level.sets[0]).bit_count() > 1:
                np.minimum(inner, (found + meet[level.sets]).min(axis=0), out=inner)
            if adding is not None and int(level.sets[0]).bit_count() > 1:
                found += adding
            rest[level.sets] = found
        return [None if isinstance(e, int) else rest[1 << i] + e for i, e in enumerate(given)]

    def marginals(
        self, sources: Sequence[Given], targets: Sequence[Given], *, inner: bool = False
    ) -> Marginals:
        """Give the least cost and all min-marginals; a given root counts as a source.

        `inner` asks for those of the states in between as well.
        """
        places = _distinct(sources, targets, always=self.partial is not None)
        made = self._marginals(
            [self._taken(each) for each in sources],
            [self._taken(targets[place]) for place in places],
            inner=inner,
        )
        outs: list[Vector | None] = [None] * len(targets)
        for place, vector in zip(places, made.targets, strict=True):
            outs[place] = self._given(vector)
        ins = [self._given(vector) for vector in made.sources]
        return Marginals(made.least, ins, outs, self._given(made.inner))

    def _marginals(
        self, sources: Sequence[Given], targets: Sequence[Given], *, inner: bool
    ) -> Marginals:
        inward = self._inward(targets, self.cost.before, self.cost.into, None)
        ready = whole = inward[0][(1 << len(targets)) - 1]
        if self.partial is not None:
            ready = np.where(self.partial, NEVER, whole)
            whole = self.cost.before(ready)
        between = np.full(self.size, NEVER) if inner else None
        gathered: tuple[Vector, Vector] | None = None
        if len(sources) > 1:
            gathered = self._inward(sources, self.cost.after, self.cost.out, self.adding)
            arrived: Given = gathered[1][(1 << len(sources)) - 1]
        else:
            arrived = sources[0]
        top = self.cost.out(arrived) if isinstance(arrived, int) else None
        least = float(whole[arrived] if isinstance(arrived, int) else (whole + arrived).min())
        outs: list[Vector | None] = [None] * len(targets)
        branches = inner and (len(targets) > 1 or self.partial is not None)
        if branches or not all(isinstance(each, int) for each in targets):
            if top is None:
                assert not isinstance(arrived, int)
                top = self.cost.after(arrived)
            if self.partial is not None:
                if between is not None:
                    np.minimum(between, top + ready, out=between)
                top = self.cost.after(np.where(self.partial, NEVER, top))
            outs = self._outward(targets, inward, top, self.cost.after, None, between)
        if gathered is None:
            ins = [None if isinstance(arrived, int) else whole + arrived]
        else:
            back, adding = self.cost.before, self.adding
            ins = self._outward(sources, gathered, whole, back, adding, between)
        return Marginals(least, ins, outs, between)

    def inside(
        self, sources: Sequence[int], targets: Sequence[int]
    ) -> tuple[Vector, Vector, Vector]:
        """Give, by set of sources, the costs to bring it to each state and to add it there.

        The third is what all targets cost from each state.
        """
        there, _ = self._inward(targets, self.cost.before, self.cost.into, None)
        whole = there[(1 << len(targets)) - 1]
        if self.partial is not None:
            whole = self.cost.before(np.where(self.partial, NEVER, whole))
        return *self._inward(sources, self.cost.after, self.cost.out, self.adding), whole

    def reduced(self, root: int, targets: Sequence[int]) -> int:
        """Give the state with nothing unreduced that the targets are best reached through."""
        assert self.partial is not None
        there, _ = self._inward(targets, self.cost.before, self.cost.into, None)
        whole = np.where(self.partial, NEVER, there[(1 << len(targets)) - 1])
        return int(np.argmin(self.cost.out(root) + whole))

    def least(self, sources: Sequence[int], targets: Sequence[int]) -> float:
        """Give the cost with every place fixed."""
        places = _distinct(sources, targets, always=self.partial is not None)
        there, _ = self._inward(
            [targets[place] for place in places], self.cost.before, self.cost.into, None
        )
        whole = there[(1 << len(places)) - 1]
        if self.partial is not None:
            whole = self.cost.before(np.where(self.partial, NEVER, whole))
        if len(sources) == 1:
            return float(whole[sources[0]])
        _, meet = self._inward(sources, self.cost.after, self.cost.out, self.adding)
        return float((whole + meet[(1 << len(sources)) - 1]).min())


def _distinct(sources: Sequence[Given], targets: Sequence[Given], *, always: bool) -> list[int]:
    """List the targets that count: not those that are fixed to a state which is there anyway.

    Another target's state is, and that of the only source, unless the value is `always` changed first.
    """
    seen: set[int] = set()
    if len(sources) == 1 and isinstance(sources[0], int) and not always:
        seen.add(sources[0])
    found: list[int] = []
    for place, each in enumerate(targets):
        if not isinstance(each, int):
            found.append(place)
        elif each not in seen:
            seen.add(each)
            found.append(place)
    return found or [0]


@dataclass(frozen=True, slots=True)
class _Level:
    """Sets of places of one size: `[i, j]` of both tables is the i-th pair of sets for the j-th."""

    sets: Places
    ones: Places
    twos: Places


def _cheapest(ones: Vector, twos: Vector, level: _Level) -> Vector:
    """Give the least sum of a row of one table and one of another, for each set of a level."""
    found = ones[level.ones[0]]
    found += twos[level.twos[0]]
    for one, two in zip(level.ones[1:], level.twos[1:], strict=True):
        more = ones[one]
        more += twos[two]
        np.minimum(found, more, out=found)
    return found


@cache
def _meetings(places: int) -> tuple[_Level, ...]:
    """List the sets of two or more places, smaller ones first, each with its ways to split in two."""
    found: list[_Level] = []
    for size in range(2, places + 1):
        sets = [s for s in range(1, 1 << places) if s.bit_count() == size]
        pairs = np.array([halves(s) for s in sets], dtype=np.intp)
        found.append(_Level(np.array(sets), pairs[:, :, 0].T, pairs[:, :, 1].T))
    return tuple(found)


@cache
def _partings(places: int, free: int, wanted: int) -> tuple[_Level, ...]:
    """List the sets of fewer than all places, larger ones first, each with those to join it to.

    The first of a pair is the set they make together. Places are listed if `free`, and sets of
    several if one of theirs is `wanted`.
    """
    every = (1 << places) - 1
    found: list[_Level] = []
    for size in reversed(range(1, places)):
        asked = wanted if size > 1 else free
        sets = [s for s in range(1, every) if s.bit_count() == size and s & asked]
        if not sets:
            continue
        others = np.array([_subsets(every ^ s) for s in sets], dtype=np.intp).T
        found.append(_Level(np.array(sets), others | np.array(sets), others))
    return tuple(found)


def _subsets(whole: int) -> list[int]:
    """List the sets inside a set but for the empty one."""
    found: list[int] = []
    sub = whole
    while sub:
        found.append(sub)
        sub = (sub - 1) & whole
    return found


def halves(subset: int) -> list[tuple[int, int]]:
    """List the ways to split a set in two, each once."""
    low = subset & -subset
    return [(subset ^ sub, sub) for sub in _subsets(subset ^ low)]
