"""Lower bounds: what every plan of a problem costs at least, and which ways no better plan has.

The problem falls apart into its operations and its values if each slot is charged: what one side pays
for a state, the other side gets back. Whatever the charges, the sum of what each part costs at least
is a lower bound for all plans. Charges are moved so that it rises: each part in turn hands its
min-marginals on to the parts after it, then, in the other direction, to those before it, as in
sequential tree-reweighted message passing. Every move rounds to whole numbers, and sums of whole
numbers below 2**53 are exact in floats, so that the bound is proven and not merely computed.

A way whose own min-marginal lies above the cost of a known plan is in no better plan, and goes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from shardlang.planner.network import Flags, NEVER, Places, Vector
from shardlang.planner.problem import Problem
from shardlang.planner.trees import Given, Marginals, Trees

_REACH = float(3 << 51)
"""How large the charges of all places of a value may get together."""

_NARROW = 480
"""In how few states a value is looked at in these alone."""


@dataclass(slots=True)
class Domain:
    """The ways that an operation has left: their numbers, costs, and states by end."""

    ways: Places
    cost: Vector
    states: list[Places]

    def only(self, keep: Places) -> Domain:
        """Give those at some places."""
        return Domain(self.ways[keep], self.cost[keep], [s[keep] for s in self.states])


@dataclass(slots=True)
class Charges:
    """A point of the search: the ways left, the charge of each state of each slot, and the bound."""

    domains: dict[int, Domain]
    charge: dict[int, Vector]
    allowed: dict[int, Vector]
    single: dict[int, int]
    """The slots with one state left, and that state."""
    trees: dict[int, Trees]
    """The cost functions of the values, in the states that are left."""
    bound: float = float("-inf")
    above: dict[int, Vector] = field(default_factory=dict[int, Vector])
    """By operation, how much more than the bound each way costs at least."""

    def copy(self) -> Charges:
        """Give one that can be changed apart; domains are replaced and never changed."""
        charge = {slot: vector.copy() for slot, vector in self.charge.items()}
        return Charges(
            dict(self.domains),
            charge,
            dict(self.allowed),
            dict(self.single),
            dict(self.trees),
            self.bound,
            dict(self.above),
        )


class Folded:
    """A problem with the values folded away that one operation alone chooses for.

    `base` is what is paid whatever is chosen, `cost` what each operation's ways cost with its own
    values, `active` the values that are left, and `trees` the cost functions of all.
    """

    def __init__(self, problem: Problem) -> None:
        """Add each such value's least cost to the ways of its operation."""
        self.problem = problem
        self.trees = [Trees(value) for value in problem.values]
        self.base = 0.0
        self.folded: list[bool] = [False] * len(problem.slots)
        self.active: list[int] = []
        cost = [operation.cost.copy() for operation in problem.operations]
        for index, value in enumerate(problem.values):
            slots = [*value.sources, *value.targets]
            if not value.targets and not value.terminals:
                for (
                    slot
                ) in value.sources:  # nothing reads it: it costs nothing, wherever it is made
                    self.folded[slot] = True
                continue
            if not slots:
                assert value.root is not None
                self.base += self.trees[index].least([value.root], value.terminals)
            elif len(slots) == 1:
                free: Given = np.zeros(len(value.codes))
                sources: list[Given] = [free] if value.sources else [value.root or 0]
                targets: list[Given] = [*([free] if value.targets else []), *value.terminals]
                found = self.trees[index].marginals(sources, targets)
                vector = found.sources[0] if value.sources else found.targets[0]
                assert vector is not None
                slot = problem.slots[slots[0]]
                states = problem.operations[slot.op].states[slot.end]
                cost[slot.op] = np.minimum(cost[slot.op] + vector[states], problem.most)
                self.folded[slots[0]] = True
            else:
                self.active.append(index)
        self.cost = cost
        self.slots_of = [
            [s for s in operation.slots if not self.folded[s]] for operation in problem.operations
        ]

    def components(self) -> list[Bound]:
        """Give the groups of operations that values join: each is a problem of its own."""
        group = list(range(len(self.cost)))

        def find(op: int) -> int:
            while group[op] != op:
                group[op] = op = group[group[op]]
            return op

        slots = self.problem.slots
        joined = {
            index: [slots[s].op for s in (*value.sources, *value.targets)]
            for index, value in enumerate(self.problem.values)
            if index in set(self.active)
        }
        for ops in joined.values():
            for op in ops[1:]:
                group[find(op)] = find(ops[0])
        found: dict[int, tuple[list[int], list[int]]] = {}
        for op in range(len(group)):
            found.setdefault(find(op), ([], []))[0].append(op)
        for index, ops in joined.items():
            found[find(ops[0])][1].append(index)
        return [Bound(self, ops, values) for ops, values in found.values()]


class Bound:
    """The parts of a component, in an order in which they can run."""

    def __init__(self, folded: Folded, ops: list[int], values: list[int]) -> None:
        """Take the operations and the values between them."""
        self.problem, self.trees = folded.problem, folded.trees
        self.cost, self.slots_of = folded.cost, folded.slots_of
        self.ops, self.active = ops, values
        self._fixed: dict[tuple[int, tuple[int, ...]], float] = {}
        self.order = self._order()
        self.rank = {part: i for i, part in enumerate(self.order)}

    def _order(self) -> list[tuple[str, int]]:
        """List the parts: each value after those that make it and before those that read it."""
        first: dict[int, list[int]] = {}
        for index in self.active:
            makers = [self.problem.slots[s].op for s in self.problem.values[index].sources]
            first.setdefault(max(makers, default=-1), []).append(index)
        found = [("value", index) for index in first.get(-1, [])]
        for op in self.ops:
            found.append(("operation", op))
            found += [("value", index) for index in first.get(op, [])]
        return found

    def start(self) -> Charges:
        """Give the point with all ways and no charges."""
        made = Charges({}, {}, {}, {}, {index: self.trees[index] for index in self.active})
        for op in self.ops:
            states = self.problem.operations[op].states
            made.domains[op] = Domain(np.arange(len(self.cost[op])), self.cost[op], states)
            for slot in self.slots_of[op]:
                value = self.problem.values[self.problem.slots[slot].value]
                made.charge[slot] = np.zeros(len(value.codes))
            self.allow(made, op)
        return made

    def allow(self, at: Charges, op: int) -> None:
        """Note the states that an operation's ways still have: other states are forbidden."""
        for slot in self.slots_of[op]:
            end = self.problem.slots[slot].end
            forbidden = np.full(len(at.charge[slot]), NEVER)
            states = at.domains[op].states[end]
            forbidden[states] = 0.0
            at.allowed[slot] = forbidden
            if (states == states[0]).all():
                at.single[slot] = int(states[0])

    # Parts ----------------------------------------------------------------------------------

    def totals(self, at: Charges, op: int) -> Vector:
        """Give the cost of each way of an operation, charges included."""
        domain = at.domains[op]
        total = domain.cost.copy()
        for slot in self.slots_of[op]:
            total += at.charge[slot][domain.states[self.problem.slots[slot].end]]
        return total

    def marginals(self, at: Charges, value: int, *, inner: bool = False) -> Marginals:
        """Give a value's least cost and min-marginals, charges included, `inner` ones if asked for.

        Of a place with one state left, the min-marginal is right in that state alone.
        """
        found = self.problem.values[value]
        places = (*found.sources, *found.targets)
        paid = sum(float(at.charge[s][at.single[s]]) for s in places if s in at.single)
        given: list[Given] = [
            at.single[s] if s in at.single else at.allowed[s] - at.charge[s] for s in places
        ]
        many = len(found.sources)
        sources = given[:many]
        if not sources:
            assert found.root is not None
            sources = [found.root]
        targets = [*given[many:], *found.terminals]
        if len(places) > sum(s in at.single for s in places):
            made = at.trees[value].marginals(sources, targets, inner=inner)
        else:
            states = tuple(at.single[s] for s in places)
            key = (value, states)
            if key not in self._fixed:
                fixed = self.trees[value].marginals(sources, targets)
                self._fixed[key] = fixed.least
            made = Marginals(self._fixed[key], [None] * many, [None] * len(targets))
        least = made.least - paid
        flat = np.full(len(found.codes), least)
        return Marginals(
            least,
            [flat if v is None else v - paid for v in made.sources],
            [flat if v is None else v - paid for v in made.targets],
            None if made.inner is None else made.inner - paid,
        )

    # Ascent ---------------------------------------------------------------------------------

    def sweep(self, at: Charges, late: Callable[[], bool], *, forward: bool) -> None:
        """Move charges along the order once, or back, in time."""
        for part in self.order if forward else reversed(self.order):
            if late():
                return
            self._hand_on(at, part, forward=forward)

    def _hand_on(self, at: Charges, part: tuple[str, int], *, forward: bool) -> None:
        """Hand a part's min-marginals on to the parts behind it, in equal shares."""
        kind, index = part
        here = self.rank[part]
        slots = self.problem.slots
        if kind == "operation":
            own = self.slots_of[index]
            later = [s for s in own if (self.rank["value", slots[s].value] > here) == forward]
            if not later or len(at.domains[index].ways) == 1:
                return
            total = self.totals(at, index)
            for left, slot in enumerate(reversed(later), 1):
                states = at.domains[index].states[slots[slot].end]
                vector = np.full(len(at.charge[slot]), NEVER)
                np.minimum.at(vector, states, total)
                moved = np.floor(vector / (len(later) + 1 - left))
                self._charge(at, slot, -moved)
                total -= moved[states]
            return
        value = self.problem.values[index]
        own = [*value.sources, *value.targets]
        later = [s for s in own if (self.rank["operation", slots[s].op] > here) == forward]
        if not later or all(s in at.single for s in own):
            return
        found = self.marginals(at, index)
        limit = found.least + self.problem.most
        for slot in later:
            side = found.sources if slots[slot].source else found.targets
            vector = side[slots[slot].place]
            assert vector is not None
            self._charge(at, slot, np.floor(np.minimum(vector, limit) / len(later)))

    def _charge(self, at: Charges, slot: int, more: Vector) -> None:
        """Add to the charges of a slot.

        Charges of all its states alike say nothing, and none needs to be far above what a plan may
        cost: the least charge is nothing, and the others end where sums of them would not be exact.
        """
        value = self.problem.values[self.problem.slots[slot].value]
        most = _REACH // (len(value.sources) + len(value.targets))
        charge = at.charge[slot] + more
        left = at.allowed[slot] == 0.0
        charge -= charge[left].min()
        charge[~left] = 0.0
        at.charge[slot] = np.minimum(charge, min(most, 2 * self.problem.most))

    def shrink(self, at: Charges, limit: float) -> bool:
        """Bring the bound up to date, and drop the ways that are in no plan below a limit.

        With a way chosen, its operation costs what the way does, and each value next to it at least
        what the state that the way has there does. Says whether every operation has a way left.
        """
        found = {value: self.marginals(at, value, inner=True) for value in self.active}
        totals = {op: self.totals(at, op) for op in self.ops}
        at.bound = sum(float(total.min()) for total in totals.values())
        at.bound += sum(each.least for each in found.values())
        for op, total in totals.items():
            domain = at.domains[op]
            above = total - total.min()
            around: dict[int, Vector] = {}
            for s in self.slots_of[op]:
                slot = self.problem.slots[s]
                each = found[slot.value]
                vector = (each.sources if slot.source else each.targets)[slot.place]
                assert vector is not None
                more = vector[domain.states[slot.end]] - each.least
                known = around.get(slot.value)
                around[slot.value] = more if known is None else np.maximum(known, more)
            for more in around.values():
                above += more
            keep = np.flatnonzero(above + at.bound < limit)
            if not len(keep):
                return False
            at.above[op] = above[keep]
            if len(keep) < len(total):
                at.domains[op] = domain.only(keep)
                self.allow(at, op)
        for value, each in found.items():
            if each.inner is not None:
                self._narrow(at, value, each.inner - each.least + at.bound < limit)
        return True

    def _narrow(self, at: Charges, value: int, inner: Flags) -> None:
        """Leave out a value's states that are no place's, and where no branches meet in a better plan."""
        found, trees = self.problem.values[value], at.trees[value]
        for s in (*found.sources, *found.targets):
            slot = self.problem.slots[s]
            inner[at.domains[slot.op].states[slot.end]] = True
        inner[[*found.terminals, *([] if found.root is None else [found.root])]] = True
        nodes = np.flatnonzero(inner)
        if len(nodes) <= min(_NARROW, 0.7 * trees.size):
            at.trees[value] = trees.only(nodes)


def ascend(bound: Bound, at: Charges, limit: float, late: Callable[[], bool]) -> bool:
    """Raise the bound by a sweep both ways, in time; say whether it stays below a limit."""
    bound.sweep(at, late, forward=True)
    bound.sweep(at, late, forward=False)
    return late() or (bound.shrink(at, limit) and at.bound < limit)
