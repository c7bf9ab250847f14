"""One search: a program, prices, and whose copies may be kept, to the best plan of least sum.

`problem` writes the program as operations with ways and values with trees, `bound` says what every
plan costs at least, `search` looks for the best, `build` writes it out. Least is the sum of the prices
(bytes that a device moves, or seconds together with those of its FLOPs), then the FLOPs of a device,
then the number of collectives.

All plans count that do the program's own operations, each once (with a `save` line, those that it makes
necessary once more in the backward pass), and its stated collectives; that begin and end where the book
plan does; and that have every value in the layouts that the text declares for it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import prod
from time import monotonic

from shardlang.cost.flops import counts, flops
from shardlang.ir.plan import Objective, Plan, Proof, Step
from shardlang.ir.program import Program
from shardlang.ir.types import Dim
from shardlang.passes import lower
from shardlang.planner.bound import Folded
from shardlang.planner.build import build_plan
from shardlang.planner.formulate import build
from shardlang.planner.measure import total_of
from shardlang.planner.prices import price_plan, Prices
from shardlang.planner.problem import OutOfTimeError, Problem, UnplannableError
from shardlang.planner.reshard import extent
from shardlang.planner.search import search, Start


@dataclass(frozen=True)
class Task:
    """A program to plan.

    `books` are its plans by the rules, the last one that of strategy `book`. `may` are the parameters
    whose gathered copies may be kept for the backward pass, `must` those for which that is asked.
    The search begins at `start`, by default at the first book plan.
    """

    books: tuple[Plan, ...]
    may: frozenset[str]
    must: frozenset[str]
    forward_only: bool
    start: Start

    @staticmethod
    def of(
        program: Program,
        *,
        keep_gathered: bool | None = None,
        forward_only: bool = False,
        start: Start | None = None,
    ) -> Task:
        """Lower a program by the rules; `keep_gathered` None leaves open which copies are kept.

        Raises `ShardlangError`.
        """
        weights = frozenset(leaf.array.name for leaf in program.leaves if leaf.kind == "param")
        kept = (True, None) if keep_gathered is None else (keep_gathered,)
        books = tuple(
            lower(program, "book", keep_gathered=each, forward_only=forward_only) for each in kept
        )
        must = program.save.names & weights
        if keep_gathered is not None:
            must = weights if keep_gathered else frozenset[str]()
        may = weights if keep_gathered is not False else frozenset[str]()
        return Task(books, may, must, forward_only, start or Start(books[0]))


def solve(
    task: Task,
    prices: Prices,
    *,
    rate: Fraction | None = None,
    budget: float,
    kept: Collection[str] | None = None,
    lean: Fraction = Fraction(0),
    in_place: bool = False,
) -> Plan:
    """Find the plan of least sum, in at most so many seconds, with a proof.

    With a `rate`, the FLOPs/s of one device, and prices in seconds, the aim is T_serial: the time of
    the FLOPs that count and of all collectives, one after the other. What only the rules can lower
    (see `UnplannableError`) is lowered by them, with a warning and no proof; if time is over before the
    search begins, their best plan is the answer, with nothing proven. `kept` narrows down whose
    copies may be kept, `lean` is a price for each byte that an operation reads or makes, and with
    `in_place` layers hand values on where the book plan does: the proof is then of that question, and the
    rules' plans are no rivals. Raises `ShardlangError`.
    """
    start, book = monotonic(), task.books[0]
    may = task.may if kept is None else kept

    def late() -> bool:
        return monotonic() - start > budget

    try:
        problem = build(
            book,
            prices,
            rate=rate,
            kept=may,
            lean=lean,
            forward_only=task.forward_only,
            late=late,
            in_place=in_place,
        )
    except UnplannableError as why:
        book = task.books[-1]
        text = f"planned by the rules of `book`, without a search: {why}"
        return replace(book, warnings=(*book.warnings, text))
    except OutOfTimeError:
        problem = Problem(
            book.program, book.program.mesh, dict(book.program.sizes.known), prices, rate
        )
        return _proven(task.books, problem, Fraction(0))
    folded = Folded(problem)
    found = search(problem, folded, task.start, late)
    plans = [build_plan(problem, folded.trees, found.ways, book)]
    if kept is None and not lean and not in_place:
        plans += task.books
    least = int(found.bound) // problem.scale.digit * problem.scale.unit
    return _proven(plans, problem, least + problem.sent)


def _proven(plans: Sequence[Plan], problem: Problem, least: Fraction) -> Plan:
    """Give the best of some plans, with the least that any plan costs."""
    plan = min(plans, key=lambda each: total_of(each, problem))
    cost = total_of(plan, problem)
    objective: Objective = "bytes" if problem.rate is None else "serial"
    proof = Proof(objective, problem.prices.name, cost, min(least, cost))
    return replace(plan, strategy="optimal", warnings=(), proof=proof)


def times_of(plan: Plan, prices: Prices, rate: Fraction) -> tuple[Fraction, Fraction, Fraction]:
    """Give T_math and T_comms of a plan, and the T_math that no plan of its program is below.

    That one is the FLOPs that count over all devices: no way divides them by more.
    """
    mesh, sizes = plan.program.mesh, plan.program.sizes.known
    math = least = Fraction(0)
    comms = price_plan(plan, prices)
    stages = () if plan.program.pipeline is None else plan.program.pipeline.axes
    devices = prod(info.size or 1 for info in mesh.axes if info.axis not in stages)
    for section, step in plan.steps():
        if counts(step, section):
            times = plan.times(section, step)
            math += ((flops(step) * times).evaluate(sizes).number or 0) / rate
            many = times.evaluate(sizes).number or 1
            whole = prod(extent(d, sizes) for d in index_dims(step)) * 2 * many
            least += Fraction(whole) / devices / rate
    return math, comms, least


def index_dims(step: Step) -> list[Dim]:
    """Give every dim of a step's index space."""
    arrays = (*step.inputs, step.output)
    return list(dict.fromkeys(dim for array in arrays for dim in array.tensor.dims))


@dataclass(frozen=True)
class Aim:
    """What is to be least: an objective, by a price list, with the FLOPs/s of a device for times."""

    objective: Objective
    prices: Prices
    rate: Fraction = Fraction(1)

    def of(self, plan: Plan) -> tuple[Fraction, ...]:
        """Give what a plan comes to, and then what decides between equals.

        Of plans that move as much, the one of fewer FLOPs; of those of equal T_overlapped, the one of
        less T_serial; then that of fewer collectives.
        """
        math, comms, _ = times_of(plan, self.prices, self.rate)
        count = Fraction(sum(step.is_collective for _, step in plan.steps()))
        match self.objective:
            case "bytes":
                return comms, math, count
            case "serial":
                return math + comms, count
            case "time":
                return max(math, comms), math + comms, count
