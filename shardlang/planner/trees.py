"""The cost of a value as a function of what its makers and readers choose.

A value's cost is the least tree of moves: from its sources together to where it is complete, and from
there to all its targets. `Trees` gives, for weights on the states of each place, the least of cost and
weights, and for each place and state the least with that state (its *min-marginals*): the dynamic
program of Dreyfus and Wagner over subsets of the places, once inwards and once back outwards. What is
given for a place is either a vector of weights, or the number of the one state that it is fixed to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from shardlang.planner.network import NEVER
from shardlang.planner.problem import Value, Vector

Given = Vector | int
"""Weights of all states, or the one state."""


@dataclass(slots=True)
class Marginals:
    """The least cost, and by place the least cost with each state (None where it is fixed)."""

    least: float
    sources: list[Vector | None]
    targets: list[Vector | None]


Spread = Callable[[Vector], Vector]
Row = Callable[[int], Vector]


class Trees:
    """The cost function of one value."""

    def __init__(self, value: Value) -> None:
        """Take a value, with its distances."""
        self.value = value
        self.cost = value.cost
        self.adding = value.adding if len(value.adding) else np.zeros(len(value.codes))
        self.partial = None if not value.once else ~value.whole
        self._splits: dict[int, list[tuple[int, list[tuple[int, int]]]]] = {}

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
        there: dict[int, Vector],
        top: Vector,
        back: Spread,
        adding: Vector | None,
    ) -> list[Vector | None]:
        """Give each place's min-marginals, `top` being what the rest costs where all places meet."""
        outside: dict[int, Vector] = {}
        every = (1 << len(given)) - 1
        free = sum(1 << i for i, each in enumerate(given) if not isinstance(each, int))
        for subset, halves in reversed(self.splits(len(given))):
            if not subset & free:
                continue
            rest = top if subset == every else back(outside[subset])
            if adding is not None:
                rest = rest + adding
            for one, two in halves:
                for part, other in ((one, two), (two, one)):
                    if not part & free:
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

    def marginals(self, sources: Sequence[Given], targets: Sequence[Given]) -> Marginals:
        """Give the least cost and all min-marginals; a given root counts as a source."""
        there, _ = self._inward(targets, self.cost.before, self.cost.into, None)
        whole = there[(1 << len(targets)) - 1]
        if self.partial is not None:
            whole = self.cost.before(np.where(self.partial, NEVER, whole))
        gathered: dict[int, Vector] = {}
        if len(sources) > 1:
            gathered, meet = self._inward(sources, self.cost.after, self.cost.out, self.adding)
            arrived: Given = meet[(1 << len(sources)) - 1]
        else:
            arrived = sources[0]
        if isinstance(arrived, int):
            least = float(whole[arrived])
            top = self.cost.out(arrived)
        else:
            least = float((whole + arrived).min())
            top = None
        if all(isinstance(each, int) for each in targets):
            outs: list[Vector | None] = [None] * len(targets)
        else:
            if top is None:
                assert not isinstance(arrived, int)
                top = self.cost.after(arrived)
            if self.partial is not None:
                top = self.cost.after(np.where(self.partial, NEVER, top))
            outs = self._outward(targets, there, top, self.cost.after, None)
        if len(sources) == 1:
            ins = [None if isinstance(arrived, int) else whole + arrived]
        else:
            ins = self._outward(sources, gathered, whole, self.cost.before, self.adding)
        return Marginals(least, ins, outs)

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
        there, _ = self._inward(targets, self.cost.before, self.cost.into, None)
        whole = there[(1 << len(targets)) - 1]
        if self.partial is not None:
            whole = self.cost.before(np.where(self.partial, NEVER, whole))
        if len(sources) == 1:
            return float(whole[sources[0]])
        _, meet = self._inward(sources, self.cost.after, self.cost.out, self.adding)
        return float((whole + meet[(1 << len(sources)) - 1]).min())


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
