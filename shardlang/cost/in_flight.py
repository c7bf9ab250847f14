"""How many microbatches' activations a device of a pipeline holds, as a formula of stages and microbatches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from shardlang.cost.formula import Formula
from shardlang.ir.plan import Plan
from shardlang.ir.program import Pipeline
from shardlang.ir.size import Monomial
from shardlang.pipelines.schedules import Schedule, SCHEDULES

MANY = 1_000_000
"""A number of microbatches that no schedule runs out of."""


def in_flight(
    row: Schedule,
    pipeline: Pipeline,
    stages: Monomial,
    microbatches: Monomial,
    known: Mapping[str, Fraction],
    back: int,
) -> Formula:
    """Give the microbatches that a stage holds: the first, or the one `back` places before the end, from 1.

    With fewer microbatches than the schedule can have in flight, the number is that of these sizes.
    """

    def held(p: int, m: int) -> Fraction:
        return row.held(p - back if back else 0, p, m, pipeline.chunks)

    base, wider, more = held(4, MANY), held(6, MANY), held(4, MANY + 2)
    a, b = (wider - base) / 2, (more - base) / 2
    c = base - 4 * a - MANY * b
    terms = (stages * a, microbatches * b, Monomial() * c)
    formula = Formula.of(*(term for term in terms if term.coefficient))
    numbers = [Formula.of(each).value(known) for each in (stages, microbatches)]
    if all(number is not None and number.denominator == 1 for number in numbers):
        p, m = (int(number or 0) for number in numbers)
        exact = held(p, m)
        if exact != formula.value(known):
            return Formula.of(Monomial() * exact)
    return formula


@dataclass(frozen=True)
class InFlight:
    """How many microbatches' values a device holds: of its stage's layers, of the lines before and behind.

    Lines before the layers are the first stage's, those behind them the last one's.
    """

    inside: Formula
    behind: Formula

    @staticmethod
    def of(plan: Plan) -> InFlight | None:
        """Give it of a plan, in the plan's own names; None where it has no pipeline."""
        pipeline, counted = plan.program.pipeline, plan.program.microbatches
        if pipeline is None:
            return None
        row = SCHEDULES[pipeline.schedule]
        sizes = {name: Fraction(size) for name, size in plan.program.sizes.known.items()}
        microbatches = Monomial() if counted is None else Monomial.of(counted.name)
        first, last = (
            in_flight(row, pipeline, pipeline.stages, microbatches, sizes, back) for back in (0, 1)
        )
        return InFlight(first, last)
