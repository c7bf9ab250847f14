"""Rings: what of their time stays exposed, and which collectives of a plan are worth one.

A ring over n devices is bidirectional: shards come from both neighbours, in H = floor(n/2) hops that take as
long as the collective does, t. The device's own shard is there at once, each hop brings two more (the last one
brings one where n is even), and each shard's part of the product takes m/n of the product's time m. The matrix unit
waits for the first hop, where a part takes less than a hop, and for all that is left of the last one:

    T = Max(m, t/H + m(n-1)/n, t + m(n+1-2H)/n), exposed = T - m

A ReduceScatter is the same backwards: the partial sums that have the farthest way are made first.

Ring attention has n-1 hops, as half of each shard goes either way and all of it round: T = Max(m, t + m/n).
Backward t is the time of k, v, dk and dv, and the last hop of dk and dv, half of what a hop sends, waits for
the last product.

Over several axes a ring goes over one axis at a time, so that it takes as long as over the slowest of them.

A pair is done as a ring where the product takes at least as long as the collective, each hop is then hidden
behind the parts that are multiplied meanwhile, and where something waits for the collective at all (`critical`):
gathers of parameters run ahead anyway. Where a size is not known nothing is done, and the plan says under which
condition it would pay.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING

from shardlang.cost.formula import Floor, Formula, Sum
from shardlang.cost.models import Model
from shardlang.hardware.catalogue import Hardware
from shardlang.ir.plan import Alternative, Plan
from shardlang.ir.printer import statement
from shardlang.ir.size import Monomial
from shardlang.passes.overlap import Pair, pairs, prefetchable, with_rings

if TYPE_CHECKING:
    from shardlang.cost.report import Report

ONE = Monomial()


def exposed(comms: Formula, math: Formula, n: Monomial) -> Formula:
    """Give the seconds in which the matrix unit waits in a ring over n devices.

    `comms` is the time of the collective, `math` that of the product, a sum with no maxima in it.
    """
    hops, alone = (
        Floor.of(n / 2),
        Floor.of(ONE / n),
    )  # of one device alone there is no hop to divide by
    part = math / n
    last = Sum.of((n, ONE, hops * -2))
    whole = (
        math,
        comms / Sum.of((hops, alone)) + part * Sum.of((n, ONE * -1)),
        comms + part * last,
    )
    return Formula.largest(whole) + _negative(math)


def exposed_attention(comms: Formula, math: Formula, n: Monomial, *, back: bool) -> Formula:
    """Give the seconds in which the matrix unit waits in ring attention over n devices.

    `comms` is the time of all that goes round, `math` that of the products.
    """
    hops = Sum.of((n, ONE * -1, Floor.of(ONE / n)))  # of one device alone there is none
    whole = Formula.largest((math, comms + math / n)) + _negative(math)
    return whole + comms / hops * (ONE * Fraction(1, 2)) if back else whole


def _negative(formula: Formula) -> Formula:
    return Formula.of(*(term * -1 for term in formula.terms))


def overlap(
    plan: Plan,
    hardware: str | Hardware | None = None,
    model: str | Model = "book",
    sets: Mapping[str, float | Fraction] | None = None,
    *,
    always: bool = False,
) -> Plan:
    """Do collectives of a plan as rings, where that pays on some hardware.

    With `always` every pair of steps that can be a ring is one, of several pairs with a step in common the
    first. Raises ShardlangError as `cost` does.
    """
    from shardlang.cost.report import cost  # noqa: PLC0415  (it prices rings)

    found = pairs(plan)
    if always:
        return _prefetching(with_rings(plan, _disjoint(found)))
    report = cost(plan, hardware, model, sets=sets)
    times = _Times(report)
    worth: list[tuple[Fraction, Pair]] = []
    notes: list[Alternative] = []
    for pair in found:
        comms, math = times.of(pair)
        if not comms or not pair.ring.moving.critical:
            continue
        seconds, needed = (report.quantity(f).value for f in (math, comms))
        if seconds is None or needed is None:
            notes.append(_note(pair, comms, math))
        elif seconds >= needed:
            worth.append((needed, pair))
    worth.sort(key=lambda each: -each[0])
    done = with_rings(plan, _disjoint([pair for _, pair in worth]))
    return _prefetching(replace(done, alternatives=(*done.alternatives, *notes)))


def _prefetching(plan: Plan) -> Plan:
    """Let layers gather their parameters one layer ahead."""
    return replace(plan, program=replace(plan.program, prefetch=prefetchable(plan)))


class _Times:
    """The times of a plan's steps, by the report that prices them."""

    def __init__(self, report: Report) -> None:
        self.steps = {"forward": report.plan.forward, "backward": report.plan.backward}
        self.comms = {id(cost.step): cost.time.formula for cost in report.collectives}
        self.math = {id(cost.step): cost.time.formula for cost in report.compute}

    def of(self, pair: Pair) -> tuple[Formula, Formula]:
        """Give the time of a pair's collective, and of its product."""
        steps = self.steps[pair.section]
        return self.comms[id(steps[pair.move])], self.math[id(steps[pair.product])]


def _note(pair: Pair, comms: Formula, math: Formula) -> Alternative:
    move = pair.ring.moving
    return Alternative(
        f"{move.inputs[0].name} in {pair.section}",
        f"`{statement(pair.ring)}`",
        f"{math} > {comms}",
    )


def _disjoint(found: list[Pair]) -> list[Pair]:
    """Give pairs that have no step in common, those that come first."""
    used: set[tuple[str, int]] = set()
    kept: list[Pair] = []
    for pair in found:
        if used.isdisjoint(pair.places):
            used |= pair.places
            kept.append(pair)
    return kept
