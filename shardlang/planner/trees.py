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
        self._splits: dict[int, list[tuple[int, list[tuple[int, int]]]]] = {}

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

    def splits(self, places: int) -> list[tuple[int, list[tuple[int, int]]]]:
        """List the sets of two or more places, smaller ones first, each with its ways to split in two."""
        if places not in self._splits:
            sets = sorted(range(1, 1 << places), key=int.bit_count)
            self._splits[places] = [(s, _halves(s)) for s in sets if s.bit_count() > 1]
        return self._splits[places]

    def _inward(
        self, given: Sequence[Given], spread: Spread, row: Row, adding: Vector | None
    ) -> tuple[dict[int, Vector], dict[int, Vector]]:
        """Give, for each set of places, what it costs in each state: where its parts meet, and before."""
        there: dict[int, Vector] = {}
        meet: dict[int, Vector] = {}
        for i, each in enumerate(given):
            there[1 << i] = row(each) if isinstance(each, int) else spread(each)
        every = (1 << len(given)) - 1
        for subset, halves in self.splits(len(given)):
            found = there[halves[0][0]] + there[halves[0][1]]
            for one, two in halves[1:]:
                np.minimum(found, there[one] + there[two], out=found)
            meet[subset] = found if adding is None else found + adding
            if subset != every or adding is None:
                there[subset] = spread(meet[subset])
        return there, meet

    def _outward(
        self,
        given: Sequence[Given],
        inward: tuple[dict[int, Vector], dict[int, Vector]],
        top: Vector,
        back: Spread,
        adding: Vector | None,
        inner: Vector | None,
    ) -> list[Vector | None]:
        """Give each place's min-marginals, `top` being what the rest costs where all places meet.

        Into `inner` goes the least cost with parts meeting in each state.
        """
        there, meet = inward
        outside: dict[int, Vector] = {}
        every = (1 << len(given)) - 1
        free = sum(1 << i for i, each in enumerate(given) if not isinstance(each, int))
        wanted = free if inner is None else every
        for subset, halves in reversed(self.splits(len(given))):
            if not subset & wanted:
                continue
            rest = top if subset == every else back(outside[subset])
            if inner is not None:
                np.minimum(inner, rest + meet[subset], out=inner)
            if adding is not None:
                rest = rest + adding
            for one, two in halves:
                for part, other in ((one, two), (two, one)):
                    if not part & (free if not part & (part - 1) else wanted):
                        continue
                    cost = rest + there[other]
                    known = outside.get(part)
                    outside[part] = cost if known is None else np.minimum(known, cost, out=known)
        found: list[Vector | None] = []
        for i, each in enumerate(given):
            if isinstance(each, int):
                found.append(None)
            elif len(given) == 1:
                found.append(top + each)
            else:
                found.append(back(outside[1 << i]) + each)
        return found

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
        gathered: tuple[dict[int, Vector], dict[int, Vector]] = ({}, {})
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
        if len(sources) == 1:
            ins = [None if isinstance(arrived, int) else whole + arrived]
        else:
            back, adding = self.cost.before, self.adding
            ins = self._outward(sources, gathered, whole, back, adding, between)
        return Marginals(least, ins, outs, between)

    def inside(
        self, sources: Sequence[int], targets: Sequence[int]
    ) -> tuple[dict[int, Vector], dict[int, Vector], Vector]:
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


def _halves(subset: int) -> list[tuple[int, int]]:
    """List the ways to split a set in two, each once."""
    low = subset & -subset
    rest = subset ^ low
    found: list[tuple[int, int]] = []
    sub = rest
    while sub:
        found.append((subset ^ sub, sub))
        sub = (sub - 1) & rest
    return found
