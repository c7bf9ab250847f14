"""The search: plans that get better, bounds that rise, and branching where they don't meet.

It starts from the book plan's own ways, improves an operation at a time, reads plans off the charges
of the bound while that rises, and where a gap is left splits the ways of an operation and goes on with
the part of the lowest bound. It can stop at any time with the best plan so far and the least that any
plan costs.

Where the bound is far from the best plan and comes nearer slowly, the search supposes that there is a
plan below a cost between the two. Few ways are in such plans, so that this is soon settled: either one
is found, and then the best of all is among them, or there is none, and that cost is a bound.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count

import numpy as np

from shardlang.ir.plan import Plan
from shardlang.ir.types import Axis
from shardlang.planner.bound import ascend, Bound, Charges, Folded
from shardlang.planner.measure import FINEST
from shardlang.planner.network import Vector
from shardlang.planner.problem import Problem
from shardlang.planner.reshard import refined_layout
from shardlang.planner.trees import Given, Marginals

Assignment = dict[int, int]
"""The number of the way that each operation is done in."""

SLOW = 0.1
"""The part of the gap that a sweep both ways closes at least before the search begins to suppose."""

FAR = 4.0
"""How many more such rises a bound is away from the best plan if it rises too slowly,"""

FEWER = 0.9
"""unless it leaves no more than this part of the ways;"""

DROP = 0.75
"""and this part before anything is branched on."""

WIDE = 0.15
"""The gap, as a part of the best cost, above which the search supposes a plan in it before it branches."""

TIES = 3
"""Rounds and branchings that are spent on ties once no plan can move less."""


@dataclass
class Found:
    """The best assignment, its cost, the least that any can cost, and how much was searched."""

    ways: Assignment
    cost: float
    bound: float
    nodes: int = 0
    sweeps: int = 0


@dataclass
class Search:
    """A component with its bound, the best assignment so far, and a clock."""

    problem: Problem
    bound: Bound
    late: Callable[[], bool]
    best: Assignment = field(default_factory=dict[int, int])
    cost: float = float("inf")
    guess: float = float("inf")
    """What the plans cost less than that are looked at."""
    nodes: int = 0
    sweeps: int = 0
    _known: dict[object, Marginals] = field(default_factory=dict[object, Marginals])

    # Assignments ----------------------------------------------------------------------------

    def cost_of(self, ways: Assignment) -> float:
        """Give the cost of an assignment: exact, in the problem's units."""
        total = 0.0
        for op, way in ways.items():
            total += float(self.bound.cost[op][way])
        return total + sum(self.value_cost(value, ways) for value in self.bound.active)

    def _fixed(self, value: int, ways: Assignment) -> list[list[int]]:
        found = self.problem.values[value]
        sides: list[list[int]] = []
        for places in (found.sources, found.targets):
            slots = [self.problem.slots[s] for s in places]
            chosen = [(self.problem.operations[s.op].states[s.end], ways[s.op]) for s in slots]
            sides.append([int(states[way]) for states, way in chosen])
        return [sides[0] or [found.root or 0], [*sides[1], *found.terminals]]

    def value_cost(self, value: int, ways: Assignment) -> float:
        """Give the cost of a value's tree."""
        return self.bound.trees[value].least(*self._fixed(value, ways))

    def scores(self, op: int, chosen: Mapping[int, int], at: Charges) -> Vector:
        """Give what each way of an operation costs, with what is chosen and charges for the rest."""
        domain, slots = at.domains[op], self.problem.slots
        total = domain.cost.copy()
        seen: dict[int, Marginals] = {}
        for s in self.bound.slots_of[op]:
            slot = slots[s]
            if slot.value not in seen:
                seen[slot.value] = self._around(op, slot.value, chosen, at)
            side = seen[slot.value].sources if slot.source else seen[slot.value].targets
            vector = side[slot.place]
            assert vector is not None
            total += vector[domain.states[slot.end]]
        return total

    def _around(self, op: int, value: int, chosen: Mapping[int, int], at: Charges) -> Marginals:
        """Give the min-marginals of a value with an operation's own places free."""
        found = self.problem.values[value]
        free = np.zeros(len(found.codes))
        trees = at.trees[value]
        key: list[object] | None = [op, trees]
        sides: list[list[Given]] = []
        for places in (found.sources, found.targets):
            given: list[Given] = []
            for s in places:
                slot = self.problem.slots[s]
                if slot.op == op:
                    given.append(free)
                elif slot.op in chosen:
                    state = self.problem.operations[slot.op].states[slot.end][chosen[slot.op]]
                    given.append(int(state))
                    if key is not None:
                        key.append(int(state))
                else:
                    given.append(at.allowed[s] - at.charge[s])
                    key = None
            sides.append(given)
        sources = sides[0] or [found.root or 0]
        known = None if key is None else tuple(key)
        if known is not None and known in self._known:
            return self._known[known]
        made = trees.marginals(sources, [*sides[1], *found.terminals])
        if known is not None:
            if len(self._known) > 20_000:
                self._known.clear()
            self._known[known] = made
        return made

    def fill(self, at: Charges, chosen: dict[int, int] | None = None) -> Assignment:
        """Choose a way for each operation that has none, in order, each the best for those before."""
        made = dict(chosen or {})
        for op in self.bound.ops:
            if op not in made:
                place = int(np.argmin(self.scores(op, made, at)))
                made[op] = int(at.domains[op].ways[place])
        return made

    def improve(self, ways: Assignment, everything: Charges) -> Assignment:
        """Change one operation at a time while that helps; the others stay as they are."""
        ways = dict(ways)
        todo = list(self.bound.ops)
        while todo and not self.late():
            op = todo.pop(0)
            scores = self.scores(op, ways, everything)
            best = int(everything.domains[op].ways[int(np.argmin(scores))])
            if best == ways[op]:
                continue
            before = self._near(op, ways)
            old, ways[op] = ways[op], best
            if self._near(op, ways) >= before:
                ways[op] = old
                continue
            for s in self.bound.slots_of[op]:
                value = self.problem.values[self.problem.slots[s].value]
                for other in (*value.sources, *value.targets):
                    near = self.problem.slots[other].op
                    if near not in todo:
                        todo.append(near)
        return ways

    def _near(self, op: int, ways: Assignment) -> float:
        values = {self.problem.slots[s].value for s in self.bound.slots_of[op]}
        return float(self.bound.cost[op][ways[op]]) + sum(self.value_cost(v, ways) for v in values)

    def offer(self, ways: Assignment) -> None:
        """Take an assignment if it is better than the best."""
        cost = self.cost_of(ways)
        if cost < self.cost:
            self.best, self.cost = ways, cost

    # The search -----------------------------------------------------------------------------

    @property
    def limit(self) -> float:
        """What a bound has to reach so that nothing better is left: costs are multiples."""
        return min(self.cost - FINEST + 1, self.guess)

    def run(self, begin: Assignment, without: Mapping[int, Vector] | None = None) -> Found:
        """Search until the bound meets the best plan or time is over.

        `without` gives, for some operations, 1 for each way that is left and 0 for the others;
        `begin` uses none of those.
        """
        everything = self.bound.start()
        for op, left in (without or {}).items():
            everything.domains[op] = everything.domains[op].only(np.flatnonzero(left))
            self.bound.allow(everything, op)
        self.offer(self.fill(everything, begin))
        self.offer(self.improve(self.best, everything))
        root = everything.copy()
        root.bound = sum(float(domain.cost.min()) for domain in root.domains.values())
        if not self._raise(root, everything, slow=SLOW):
            return self._found(self.cost)
        lowest = root.bound
        while lowest < self.cost:
            self.guess = float("inf")
            rest = self._explore(root.copy(), everything, lowest)
            if rest is not None:
                return self._found(max(lowest, rest))
            lowest = min(self.guess, self.cost)
        return self._found(lowest)

    def _found(self, lowest: float) -> Found:
        return Found(self.best, self.cost, min(lowest, self.cost), self.nodes, self.sweeps)

    def _explore(self, root: Charges, everything: Charges, lowest: float) -> float | None:
        """Search the plans below the limit; give the least that those not looked at cost, if any.

        While the bound is far from the best plan and rises slowly, a plan between them is supposed.
        """
        heap: list[tuple[float, int, Charges]] = []
        order = count()
        while self._raise(root, everything, fewer=DROP):
            gap = self.limit - max(root.bound, lowest)
            if self.late() or gap < WIDE * self.limit or self.settled(root.bound):
                heappush(heap, (root.bound, next(order), root))
                break
            self.guess = self.limit - gap / 3
        while heap:
            bound, _, at = heappop(heap)
            if bound >= self.limit:
                break
            if self.late() or (self.settled(bound) and self.nodes >= TIES):
                return bound
            self.nodes += 1
            for child in self.branch(at):
                if self._raise(child, everything, rounds=8):
                    heappush(heap, (child.bound, next(order), child))
        return None

    def settled(self, bound: float) -> bool:
        """Say whether only ties are left: by FLOPs, and by the number of collectives."""
        digit = self.problem.scale.digit
        return bound // digit == self.cost // digit

    def _raise(
        self,
        at: Charges,
        everything: Charges,
        rounds: int = 1000,
        slow: float = 0.0,
        fewer: float = FEWER,
    ) -> bool:
        """Raise a bound until it meets the best plan, rises too slowly, or time is over.

        It ends as well when it closes less than a part of the gap that is `slow`. Says whether
        something better may be left.
        """
        proven = 0
        for turn in range(rounds):
            before, ways = at.bound, _ways(at)
            if not ascend(self.bound, at, self.limit, self.late):
                return False
            self.sweeps += 1
            proven += self.settled(at.bound)
            if self.late() or proven > TIES:
                return True
            if proven == 1 or turn in (0, 2, 4, 8, 16) or turn % 32 == 0:
                filled = self.fill(at)
                self.offer(filled)
                self.offer(self.improve(filled, everything))
                if at.bound >= self.limit:
                    return False
            left = _ways(at)
            if left == len(at.domains):
                break
            rise = at.bound - before
            slowly = rise < slow * (self.cost - before)
            far = self.limit - at.bound > FAR * rise
            if turn and (slowly or (far and left > fewer * ways)):
                break
        return at.bound < self.limit

    def branch(self, at: Charges) -> list[Charges]:
        """Split the ways of an operation in the best one and the others.

        It is the operation of which the bound tells the second best one apart by the most.
        """
        open_ = [op for op, domain in at.domains.items() if len(domain.ways) > 1]
        if not open_:
            self.offer({op: int(domain.ways[0]) for op, domain in at.domains.items()})
            return []

        def apart(op: int) -> tuple[float, int]:
            first, second = np.partition(at.above[op], 1)[:2]
            return float(first + second), -len(at.above[op])

        op = max(open_, key=apart)
        order = np.argsort(at.above[op], kind="stable")
        children: list[Charges] = []
        for part in (order[:1], order[1:]):
            child = at.copy()
            child.domains[op] = at.domains[op].only(np.sort(part))
            self.bound.allow(child, op)
            child.above[op] = at.above[op][np.sort(part)]
            child.bound = at.bound + float(child.above[op].min())
            if child.bound < self.limit:
                children.append(child)
        return children


def _ways(at: Charges) -> int:
    """Count the ways that are left."""
    return sum(len(domain.ways) for domain in at.domains.values())


@dataclass(frozen=True, slots=True)
class Start:
    """A plan that a search begins at: of the same program, on a mesh whose axes may be whole there.

    `parts` are those that the problem has an axis of the plan in.
    """

    plan: Plan
    parts: Mapping[Axis, tuple[Axis, ...]] = field(default_factory=dict[Axis, "tuple[Axis, ...]"])


def search(problem: Problem, folded: Folded, start: Start, late: Callable[[], bool]) -> Found:
    """Find the best assignment, a component at a time, those of the fewest operations first."""
    begin = ways_of(problem, start)
    found = Found({}, folded.base, folded.base)
    for bound in sorted(folded.components(), key=lambda each: len(each.ops)):
        own = {op: begin[op] for op in bound.ops if op in begin}
        best = Search(problem, bound, late).run(own)
        found.ways.update(best.ways)
        found.cost += best.cost
        found.bound += best.bound
        found.nodes += best.nodes
        found.sweeps += best.sweeps
    return found


def ways_of(problem: Problem, start: Start) -> dict[int, int]:
    """Give the ways that a plan does operations in, and hands values on, where it has them."""
    plan = start.plan
    steps = {(section, step.output.name): step for section, step in plan.steps() if step.is_compute}
    handed = {
        (section, step.loop.number, carry.entry): carry.layout
        for section, step in plan.steps()
        if step.loop is not None
        for carry in step.loop.carries
    }
    ends = {each.gradient.name: each.gradient.layout for each in plan.gradients}
    found: dict[int, int] = {}
    for index, operation in enumerate(problem.operations):
        if operation.section == "update":
            space = problem.values[problem.slots[operation.slots[0]].value].graph.space
            code = space.encode(refined_layout(ends[operation.operands[0].name], start.parts))
            found[index] = [way.result for way in operation.ways].index(code)
            continue
        if operation.chooses and operation.region is not None and operation.slots:
            space = problem.values[problem.slots[operation.slots[0]].value].graph.space
            layout = handed.get((operation.section, operation.region, operation.result))
            codes = [way.result for way in operation.ways]
            if layout is not None:
                found[index] = codes.index(space.encode(refined_layout(layout, start.parts)))
            continue
        step = steps.get((operation.section, operation.result.name))
        if operation.op is None or step is None or step.op != operation.op:
            continue
        values = [problem.values[problem.slots[s].value] for s in operation.slots]
        arrays = (*step.inputs, step.output)
        codes = [
            v.graph.space.encode(refined_layout(a.layout, start.parts))
            for v, a in zip(values, arrays, strict=True)
        ]
        for number, way in enumerate(operation.ways):
            if [*way.operands, way.result] == codes:
                found[index] = number
                break
    return found
