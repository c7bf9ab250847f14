"""The plans next to the best one: for each of its collectives, the best plan that does without it.

What a collective serves is done otherwise: a reduction's operation may not leave partial sums over its
axes, and whoever reads what a move makes may not read it so. The program is searched again under each
such condition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from time import monotonic

import numpy as np

from shardlang.ir.ops import AllReduce, ReduceScatter
from shardlang.ir.plan import Pass, Plan, Step
from shardlang.ir.types import Layout
from shardlang.planner.bound import Folded
from shardlang.planner.build import build_plan
from shardlang.planner.formulate import build
from shardlang.planner.measure import total_of
from shardlang.planner.network import Vector
from shardlang.planner.problem import Operation, Problem
from shardlang.planner.reasons import Uses
from shardlang.planner.search import Search, Start, ways_of
from shardlang.planner.solve import Aim, Task

Collectives = tuple[tuple[Pass, Step], ...]


@dataclass(frozen=True, slots=True)
class Close:
    """A plan that does without a collective of the best one, and what it costs.

    `proven` says that no plan that does without it costs less.
    """

    without: Step
    plan: Plan
    cost: Fraction
    proven: bool


def close_plans(
    plan: Plan,
    aim: Aim,
    *,
    keep_gathered: bool | None = None,
    forward_only: bool = False,
    budget: float = 3.0,
) -> list[Close]:
    """Give, for each collective of a searched plan, the best plan found that does otherwise.

    Cheapest first, each set of collectives once. The searches take `budget` seconds together at the
    most; collectives that time does not suffice for are left out. Raises `UnplannableError`.
    """
    end = monotonic() + budget
    task = Task.of(plan.program, keep_gathered=keep_gathered, forward_only=forward_only)
    book = task.books[0]
    rate = None if aim.objective == "bytes" else aim.rate
    problem = build(book, aim.prices, rate=rate, kept=task.may, forward_only=forward_only)
    work = _Neighbors(problem, plan, book)
    found: dict[object, Close] = {}
    for number, (_, step) in enumerate(plan.steps()):
        if not step.is_collective or monotonic() > end:
            continue
        share = max((end - monotonic()) / 4, 0.05)
        made = work.otherwise(number, step, monotonic() + share)
        if made is not None:
            known = found.get(_key(made.plan))
            if known is None or made.cost < known.cost:
                found[_key(made.plan)] = made
    return sorted(found.values(), key=lambda close: close.cost)


def collectives(plan: Plan) -> Collectives:
    """Give the collectives of a plan, by pass."""
    return tuple((section, step) for section, step in plan.steps() if step.is_collective)


def _key(plan: Plan) -> frozenset[object]:
    return frozenset((p, s.op, s.inputs, s.output) for p, s in collectives(plan))


class _Neighbors:
    """The problem of a plan, searched again under conditions."""

    def __init__(self, problem: Problem, plan: Plan, book: Plan) -> None:
        """Fold the problem once; every search begins at the plan."""
        self.problem, self.plan, self.book = problem, plan, book
        self.folded = Folded(problem)
        self.components = self.folded.components()
        self.begin = ways_of(problem, Start(plan))
        self.uses = Uses(plan)
        self.op_of = {
            (o.section, o.result.name): index
            for index, o in enumerate(problem.operations)
            if o.op is not None
        }

    def otherwise(self, number: int, step: Step, until: float) -> Close | None:
        """Find the best plan without what a collective serves; None where there is none."""
        without = self._without(number, step)
        if not without or not all(left.any() for left in without.values()):
            return None
        chosen: dict[int, int] = {}
        proven = True
        for bound in self.components:
            begin = {o: w for o, w in self.begin.items() if o in bound.ops and o not in without}
            own = {op: left for op, left in without.items() if op in bound.ops}
            search = Search(self.problem, bound, lambda: monotonic() > until)
            found = search.run(begin, own)
            chosen.update(found.ways)
            proven = proven and found.bound >= found.cost
        plan = build_plan(self.problem, self.folded.trees, chosen, self.book)
        section = self.uses.steps[number][0]
        if (section, step.op, step.inputs, step.output) in _key(plan):
            return None  # it came back by another way
        return Close(step, plan, total_of(plan, self.problem), proven)

    def _without(self, number: int, step: Step) -> dict[int, Vector]:
        """Give the operations that have to change, with the ways that they may take."""
        served = self.uses.served(number)
        readers = [*served.direct, *served.beyond]
        maker = self.uses.maker(number)
        if maker is not None and isinstance(step.op, AllReduce | ReduceScatter):
            axes = frozenset(step.op.axes)
            return self._changed(maker, [-1], lambda _, new: not axes & new.unreduced)
        if maker is not None and not readers:
            return self._changed(maker, [-1], lambda old, new: old != new)
        left: dict[int, Vector] = {}
        for reader in readers:
            inputs = self.uses.steps[reader][1].inputs
            ends = [e for e, a in enumerate(inputs) if a.name == step.output.name]
            left |= self._changed(reader, ends, lambda old, new: old != new)
        return left

    def _changed(
        self, number: int, ends: Iterable[int], allowed: Callable[[Layout, Layout], bool]
    ) -> dict[int, Vector]:
        """Let an operation take the ways alone in which some of its ends are had in allowed layouts.

        `allowed` is given the layout that an end has now, and another.
        """
        section, step = self.uses.steps[number]
        op = self.op_of.get((section, step.output.name))
        if op is None or op not in self.begin:
            return {}
        operation: Operation = self.problem.operations[op]
        left = np.ones(len(operation.ways))
        for end in ends:
            value = self.problem.values[self.problem.slots[operation.slots[end]].value]
            states = operation.states[end]
            now = value.layout(int(states[self.begin[op]]))
            fits = np.array([allowed(now, value.layout(s)) for s in range(len(value.codes))])
            left *= fits[states]
        return {op: left}
