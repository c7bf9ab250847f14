"""The plan of least T_overlapped: the time of the FLOPs or that of the collectives, the longer one.

A maximum does not fall apart into operations and values as a sum does. But for any weight w between 0
and 1, w*T_math + (1-w)*T_comms is never above it, and the least of that sum is found, with a bound, as
any other. The best plans of a few weights are the candidates; the best of their bounds is the bound,
together with T_math of the least FLOPs that the program can be done in. Where all of the time is
FLOPs, or all of it collectives, the first weights prove it; in between a gap may be left.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from time import monotonic

from shardlang.ir.plan import Plan, Proof
from shardlang.planner.prices import Derived, Moved, Prices
from shardlang.planner.solve import Aim, solve, Task, times_of

MATH = Fraction((1 << 20) - 1, 1 << 20)
"""A weight so near 1 that the FLOPs come first."""

ROUNDS = 8
"""How many weights are tried between two plans, one bound by FLOPs and one by collectives."""


@dataclass(frozen=True, slots=True)
class Weighted(Derived):
    """A price list times a factor."""

    factor: Fraction = Fraction(1)

    def changed(self, price: Fraction, moved: Moved, *, reduces: bool) -> Fraction:
        """Multiply the price."""
        del moved, reduces
        return price * self.factor


@dataclass(frozen=True, slots=True)
class _Tried:
    """A plan with its T_math and T_comms, and a bound for T_overlapped of any plan."""

    plan: Plan
    math: Fraction
    comms: Fraction
    bound: Fraction


def weighted(aim: Aim, weight: Fraction) -> tuple[Prices, Fraction | None]:
    """Give the prices and the FLOPs/s with which the sum is weight*T_math + (1-weight)*T_comms."""
    if not weight:
        return aim.prices, None
    return Weighted(aim.prices, 1 - weight), aim.rate / weight


def plan_overlapped(task: Task, aim: Aim, *, budget: float) -> Plan:
    """Find the plan of least T_overlapped, for prices in seconds and a device's FLOPs/s.

    Of plans that take equally long, one of less T_serial is preferred among those that were looked at,
    then one of fewer collectives. Raises `ShardlangError` as `solve` does.
    """
    end = monotonic() + budget

    def attempt(weight: Fraction) -> _Tried | Plan:
        prices, rate = weighted(aim, weight)
        plan = solve(task, prices, rate=rate, budget=max(end - monotonic(), 0.0))
        if plan.proof is None:
            return plan
        math, comms, least = times_of(plan, aim.prices, aim.rate)
        return _Tried(plan, math, comms, max(plan.proof.bound, least))

    found = _tried(attempt, lambda: monotonic() > end)
    if isinstance(found, Plan):
        return found
    best = min((*(each.plan for each in found), *task.books), key=aim.of)
    cost = aim.of(best)[0]
    bound = min(max(each.bound for each in found), cost)
    proof = Proof("time", aim.prices.name, cost, bound)
    return replace(best, strategy="optimal", warnings=(), proof=proof)


def _tried(
    attempt: Callable[[Fraction], _Tried | Plan], late: Callable[[], bool]
) -> list[_Tried] | Plan:
    """Try weights until a bound meets the best plan, or more of them don't help."""
    found: list[_Tried] = []

    def closed() -> bool:
        return max(e.bound for e in found) >= min(max(e.math, e.comms) for e in found) or late()

    for weight in (Fraction(1, 2), Fraction(0), MATH):
        made = attempt(weight)
        if isinstance(made, Plan):
            return made
        found.append(made)
        if closed():
            return found
    for _ in range(ROUNDS):
        slow = min((e for e in found if e.comms >= e.math), key=lambda e: e.comms, default=None)
        heavy = min((e for e in found if e.math > e.comms), key=lambda e: e.math, default=None)
        if slow is None or heavy is None:
            break
        more, less = heavy.math - slow.math, slow.comms - heavy.comms
        if more <= 0 or less <= 0:
            break
        weight = less / (more + less)
        made = attempt(weight.limit_denominator(1 << 20))
        assert isinstance(made, _Tried)
        known = any((e.math, e.comms) == (made.math, made.comms) for e in found)
        found.append(made)
        if known or closed():
            break
    return found
