"""What a pipeline adds to a plan: the bubble, the step's time with it, and the microbatches in flight.

A plan's steps are one microbatch's, and its times those of all microbatches on one stage, one behind the
other. The bubble is the literature's (`shardlang.pipelines.schedules`) for F = B = W, as papers give it:
a backward pass that takes twice the forward pass. `durations` has what the plan's own steps take.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TYPE_CHECKING

from shardlang.cost.formula import Formula, Sum
from shardlang.cost.in_flight import in_flight
from shardlang.cost.quantities import CollectiveCost, Quantity, together
from shardlang.ir.plan import Plan, Step
from shardlang.ir.program import Pipeline
from shardlang.ir.size import Monomial
from shardlang.ir.types import Array
from shardlang.passes.live import alive
from shardlang.pipelines.schedules import Durations, Schedule, SCHEDULES

if TYPE_CHECKING:
    from shardlang.cost.report import Report

PASSES = ("forward", "backward", "update")


@dataclass(frozen=True)
class PipelineCost:
    """A pipeline's figures: `share` of a step in which a stage waits, `held` microbatches in flight on it.

    `times` are those of a whole step, both passes with the bubble and the update behind them. In no total are `sums`, what the stages add up at the end of
    a step, and `idle`, the bytes of Permutes that an emitted module sends in ticks in which a stage has nothing to
    send; None where no module is emitted. `before` and `behind` say whether there are lines on that side of the layers,
    `updates` whether there is an update.
    """

    pipeline: Pipeline
    schedule: Schedule
    stages: Quantity
    microbatches: Quantity
    share: Quantity
    held: Quantity
    times: Mapping[str, Quantity]
    sums: tuple[CollectiveCost, ...] = ()
    idle: Quantity | None = None
    before: bool = False
    behind: bool = False
    updates: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Give it as JSON."""
        entries = {
            "stages": self.stages,
            "microbatches": self.microbatches,
            "bubble": self.share,
            "held": self.held,
        }
        return {
            "schedule": self.schedule.name,
            "chunks": self.pipeline.chunks,
            "axes": [axis.name for axis in self.pipeline.axes],
            "idle": self.schedule.formula,
            **{key: {"formula": str(q.formula), "value": q.number} for key, q in entries.items()},
            "times": {
                key: {
                    "formula": str(q.formula),
                    "seconds": None if q.number is None else float(q.number),
                }
                for key, q in self.times.items()
            },
            "sums": [
                {
                    "op": cost.op,
                    "tensor": cost.tensor,
                    "axes": list(cost.axes),
                    "bytes": {"formula": str(cost.bytes.formula), "value": cost.bytes.number},
                    "time": {
                        "formula": str(cost.time.formula),
                        "seconds": None if cost.time.number is None else float(cost.time.number),
                    },
                }
                for cost in self.sums
            ],
            "idle_bytes": None
            if self.idle is None
            else {"formula": str(self.idle.formula), "value": self.idle.number},
        }


def pipeline_of(report: Report) -> PipelineCost | None:
    """Give the figures of a report's pipeline; None where it has none."""
    program = report.plan.program
    pipeline = program.pipeline
    if pipeline is None:
        return None
    row = SCHEDULES[pipeline.schedule]
    counted = program.microbatches
    name = report.symbols.monomial
    stages = name(pipeline.stages)
    microbatches = Monomial() if counted is None else name(Monomial.of(counted.name))
    per_stage, fixed = _idle(row, pipeline.chunks)
    idle = [term for term in (stages * per_stage, Monomial() * fixed) if term.coefficient]
    work = microbatches * 3
    share, factor = Formula(), Monomial()
    if idle:
        whole = Sum.of([work, *idle])
        share, factor = Formula.of(Sum.of(idle) / whole), whole / work
    return PipelineCost(
        pipeline,
        row,
        report.quantity(Formula.of(stages)),
        report.quantity(Formula.of(microbatches)),
        report.quantity(share),
        report.quantity(in_flight(row, pipeline, stages, microbatches, report.known, 0)),
        _times(report, factor),
        report.ends,
        _idle_ticks(report, stages, microbatches),
        *_outside(report.plan),
        updates=bool(report.plan.update),
    )


def _times(report: Report, factor: Monomial) -> dict[str, Quantity]:
    """Give the times of a step: those of both passes times a factor, and the update's, once behind them."""

    def step(forward: Formula, backward: Formula, update: Formula) -> Formula:
        return (forward + backward) * factor + update

    def of(key: str) -> Formula:
        return step(
            *(
                report.totals[name].quantities[key].formula
                if name in report.totals and key in report.totals[name].quantities
                else Formula()
                for name in PASSES
            )
        )

    none = Formula(), Formula()
    comms = together(
        {
            axes: step(*(report.groups.get(name, {}).get(axes, none)[1] for name in PASSES))
            for axes in report.groups["total"]
        },
        None
        if report.overlap is None
        else {report.symbols.of[info.axis.name]: info.wire for info in report.axes},
    )
    math = of("t_math")
    found = {
        "t_math": math,
        "t_comms": comms,
        "t_overlapped": Formula.largest((math + of("t_exposed"), comms)),
        "t_serial": math + comms,
    }
    return {key: report.quantity(formula) for key, formula in found.items()}


LOCKSTEP: Mapping[str, int] = {"gpipe": 1, "1f1b": 2, "interleaved": 2}
"""The schedules that are emitted, and in how many ticks a piece of work and a stage their passes send each way.

With v chunks a stage, a step has so many times (m v + p - 1) ticks that send one way: in gpipe those of one
pass, in the others those of both.
"""


def _idle_ticks(report: Report, stages: Monomial, microbatches: Monomial) -> Quantity | None:
    """Give the bytes of Permutes in ticks in which there is nothing to send: of each, what its m v do not need."""
    pipeline = report.plan.program.pipeline
    ticks = None if pipeline is None else LOCKSTEP.get(pipeline.schedule)
    if pipeline is None or ticks is None:
        return None
    ticks = ticks if report.plan.backward else 1
    sent = Formula.sum(cost.bytes.formula for cost in report.collectives if cost.step.sends)
    pieces = microbatches * pipeline.chunks
    one = sent / pieces
    more = (stages * ticks, pieces * (ticks - 1), Monomial() * -ticks)
    parts = (one * Monomial(abs(x.coefficient), x.powers) for x in more if x.coefficient > 0)
    less = Formula.of(*(term * Fraction(-ticks) for term in one.terms))
    return report.quantity(Formula.sum((*parts, less)))


def _outside(plan: Plan) -> tuple[bool, bool]:
    """Say whether a program has lines before its layers on stages, and behind them."""
    places = [place for place, step in enumerate(plan.forward) if _staged(step)]
    return places[0] > 0, places[-1] < len(plan.forward) - 1


def _idle(row: Schedule, chunks: int) -> tuple[Fraction, Fraction]:
    """Give a stage's idle time for F = B = W = 1: what each stage adds, and what is there in any case."""
    one, two = (row.bubble(p, chunks, Durations()) for p in (1, 2))
    return two - one, 2 * one - two


# ---- What the plan's steps take -------------------------------------------------------------------


def durations(report: Report) -> Durations | None:
    """Give what a stage needs for a microbatch by the plan: forward, dX, dW, sending; None where unknown.

    Of each the larger of its contractions and its collectives. What the gradient handed to the stage
    before is made from is dX, the rest of the backward pass is dW. Lines outside of the layers are left out: they
    are the first and the last stage's.
    """
    plan = report.plan
    counted = plan.program.microbatches
    many = 1 if counted is None else report.known.get(report.symbols.of[counted.name])
    if plan.program.pipeline is None or not many:
        return None
    inside = {id(step) for _, step in plan.steps() if _staged(step)}
    needed = _for_input(plan)
    kinds: dict[str, Callable[[str, Step], bool]] = {
        "forward": lambda section, _: section == "forward",
        "input": lambda section, step: section == "backward" and id(step) in needed,
        "weights": lambda section, step: section == "backward" and id(step) not in needed,
    }
    found: dict[str, Fraction] = {}
    for kind, mine in kinds.items():
        math = [
            c.time.value
            for c in report.compute
            if c.counted and mine(c.pass_, c.step) and id(c.step) in inside
        ]
        comms = [
            c.time.value
            for c in report.collectives
            if mine(c.pass_, c.step) and id(c.step) in inside and not c.step.sends
        ]
        if None in math or None in comms:
            return None
        sums = (sum((t for t in ts if t is not None), Fraction(0)) for ts in (math, comms))
        found[kind] = max(sums) / many
    forward = {id(step) for step in plan.forward if step.sends}
    sent = [c.time.value for c in report.collectives if id(c.step) in forward]
    if None in sent:
        return None
    total = sum((t for t in sent if t is not None), Fraction(0))
    return Durations(**found, send=total / many / plan.program.pipeline.chunks)


def _staged(step: Step) -> bool:
    return step.loop is not None and step.loop.pipeline is not None


def _for_input(plan: Plan) -> frozenset[int]:
    """Name the steps of the backward pass that the gradients handed on are made from."""
    ends = [
        Array(carry.exit, carry.layout)
        for step in plan.backward
        if step.loop is not None and step.loop.pipeline is not None
        for carry in step.loop.carries
        if carry.layout is not None
    ]
    lives = alive((), plan.backward, (), ends)
    return frozenset(id(step) for step, living in zip(plan.backward, lives, strict=True) if living)
