"""The best split of a mesh over axes whose product is fixed: `X*Y = N`.

A time that is a sum of products is a posynomial, and the least of it is a geometric program. With one
more kind of term than free axes its dual has one point, so that the optimum is in closed form (Duffin,
Peterson and Zener, *Geometric Programming*, 1967): with weights d that add up to 1 and under which all
exponents cancel, the least of the sum is the product of (c/d)**d, reached where each term is its weight
times that; the least of the maximum is the product of c**d, where all terms are equal. Otherwise it is
found numerically, in the logarithms of the axes, in which such a time is convex.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, Literal

from shardlang.cost.errors import BadConstraint
from shardlang.cost.formula import Formula
from shardlang.cost.report import Report
from shardlang.cost.roots import Root, Sums
from shardlang.diagnostics import Diagnostic, ShardlangError
from shardlang.ir.size import Monomial
from shardlang.source import Source, Span

Pass = Literal["forward", "backward", "total"]
How = Literal["closed form", "numerically", "at the end", "flat", "open"]
Timer = Callable[[Sequence[float]], float]


@dataclass(frozen=True)
class Constraint:
    """The product of some axes is what stands on the right: `X*Y = N` or `X*Y = 64`."""

    axes: tuple[str, ...]
    product: Monomial
    known: Mapping[str, Fraction] = field(default_factory=dict[str, Fraction])

    @property
    def names(self) -> tuple[str, ...]:
        """The names on the right."""
        return tuple(name for name, _ in self.product.powers)

    @property
    def value(self) -> Fraction | None:
        """The number on the right where it is known."""
        return Formula.of(self.product).value(self.known)

    @property
    def last(self) -> Monomial:
        """The last axis, as the rest of the product."""
        return self.product / Monomial.of(*self.axes[:-1])

    def reduce(self, formula: Formula) -> Formula:
        """Put the rest of the product in place of the last axis."""
        return formula.rewrite({self.axes[-1]: self.last})


def read_constraint(text: str, over: Sequence[str], values: Mapping[str, Fraction]) -> Constraint:
    """Read `X*Y=N`: the axes that are chosen, each once, and a name, a number or a product.

    Raises `ShardlangError` (SH522) for anything else.
    """

    def wrong(why: str) -> ShardlangError:
        where = Diagnostic(Source("--with", text), Span(0, len(text)), BadConstraint(text, why))
        return ShardlangError([where])

    left, equals, right = text.partition("=")
    if not equals or not right.strip():
        raise wrong("it has no '='")
    axes = tuple(part.strip() for part in left.split("*"))
    if sorted(axes) != sorted(over):
        listed = "*".join(over)
        raise wrong(f"its left side is not the product of what is chosen, {listed}")
    product = Monomial()
    for part in right.split("*"):
        word = part.strip()
        if re.fullmatch(r"[0-9][0-9_]*", word) and int(word):
            product *= int(word)
        elif re.fullmatch(r"[^\W\d]\w*", word) and word not in axes:
            product *= Monomial.of(word)
        else:
            raise wrong(f"'{word}' is no name and no whole number above 0")
    return Constraint(tuple(over), product, values)


@dataclass(frozen=True)
class Split:
    """The best split: each axis in closed form or as a number, and the least time.

    `least` and `values` are there in closed form alone; `numbers` where everything is known; `whole`
    is the best split into whole numbers with its time.
    """

    how: How
    text: str
    values: Mapping[str, Root] = field(default_factory=dict[str, Root])
    least: Root | None = None
    constant: Formula = field(default_factory=Formula)
    numbers: Mapping[str, float] = field(default_factory=dict[str, float])
    seconds: float | None = None
    whole: Mapping[str, int] = field(default_factory=dict[str, int])
    whole_seconds: float | None = None
    constraint: Constraint | None = None
    sums: Sums = field(default_factory=Sums)

    def to_dict(self) -> dict[str, Any]:
        """Give it as data."""
        return {
            "how": self.how,
            "split": {name: self.sums.text(root) for name, root in self.values.items()},
            "numbers": dict(self.numbers),
            "least": {"formula": self.text, "seconds": self.seconds},
            "whole": {"split": dict(self.whole), "seconds": self.whole_seconds},
        }


def best_split(
    report: Report,
    over: Sequence[str],
    constraint: Constraint,
    which: Pass = "total",
    what: str = "t_comms",
) -> Split:
    """Find the split of the axes `over` that makes a time of a pass least.

    The closed form is that of the formulas, for splits in which every axis is larger than 1; over an
    axis of size 1 nothing moves, which the search in numbers knows: its ends and whole numbers can be
    less than the closed form's time.
    """
    free = tuple(over[:-1])
    report = report.freed(over)
    reduced = constraint.reduce(report.totals[which].quantity(what).formula)
    sums = Sums()
    found = _closed(reduced, free, sums)
    total = constraint.value
    time = _timer(report, over, f"{which}.{what}", total)
    whole, whole_seconds = _whole(time, over, total)
    numbers: dict[str, float] = {}
    if not reduced.names.intersection(free):
        return _judged(
            Split("flat", str(reduced), whole=whole, whole_seconds=whole_seconds), constraint, time
        )
    if found is not None:
        least, made, constant = found
        last = Root.of(constraint.product)
        for root in made.values():
            last = last / root
        made[over[-1]] = last
        text = sums.text(least) + (f" + {constant}" if constant else "")
        known = {n: v for n, v in report.known.items() if n not in over}
        every = sums.values({**known, **constraint.known})
        values = {name: root.value(every) for name, root in made.items()}
        numbers = {name: value for name, value in values.items() if value is not None}
        split = Split(
            "closed form",
            text,
            made,
            None if constant else least,
            constant,
            numbers if len(numbers) == len(over) else {},
            whole=whole,
            whole_seconds=whole_seconds,
            sums=sums,
        )
        if all(value >= 1 for value in split.numbers.values()):
            return _judged(split, constraint, time)
    if time is None or total is None:
        return _judged(
            Split("open", str(reduced), whole=whole, whole_seconds=whole_seconds), constraint, time
        )
    numbers, ended = _numeric(time, free, over, float(total))
    # latency and nodes make steps and corners, in which the search may end beside the optimum
    if whole_seconds is not None and whole_seconds < time([numbers[name] for name in over]):
        numbers = {name: float(whole[name]) for name in over}
        ended = 1 in whole.values()
    how: How = "at the end" if ended else "numerically"
    return _judged(
        Split(how, str(reduced), numbers=numbers, whole=whole, whole_seconds=whole_seconds),
        constraint,
        time,
    )


def _judged(split: Split, constraint: Constraint, time: Timer | None) -> Split:
    """Put the time at the split beside it."""
    seconds = None
    if time is not None and split.numbers:
        seconds = time([split.numbers[name] for name in constraint.axes])
    return replace(split, seconds=seconds, constraint=constraint)


def _timer(
    report: Report, over: Sequence[str], output: str, total: Fraction | None
) -> Timer | None:
    """Give the time as a function of the axes, where all else is known."""
    if total is None or total < 1:
        return None
    try:
        function = report.compile(over, outputs=[output])
    except ValueError:
        return None
    return lambda values: float(function(*values)[0])


def _grouped(terms: Sequence[Monomial], free: Sequence[str]) -> dict[tuple[int, ...], Formula]:
    """Add up the terms of equal exponents in the free axes."""
    found: dict[tuple[int, ...], list[Monomial]] = {}
    for term in terms:
        powers = dict(term.powers)
        key = tuple(powers.get(name, 0) for name in free)
        rest = Monomial(term.coefficient, tuple(p for p in term.powers if p[0] not in free))
        found.setdefault(key, []).append(rest)
    return {key: Formula.of(*listed) for key, listed in found.items()}


def _closed(
    time: Formula, free: Sequence[str], sums: Sums
) -> tuple[Root, dict[str, Root], Formula] | None:
    """Solve the geometric program where its dual has one point, with all weights positive."""
    if time.hidden.intersection(free):
        return None
    zero = (0,) * len(free)
    constant = Formula()
    largest = len(time.maxima) == 1 and not time.terms
    if largest:
        groups: list[tuple[tuple[int, ...], Formula]] = []
        for option in time.maxima[0]:
            own = _grouped(option.terms, free)
            if len(own) != 1 or option.maxima:
                return None
            groups += own.items()
        if len({key for key, _ in groups}) < len(groups):
            return None
    elif time.maxima:
        return None
    else:
        listed = _grouped(time.terms, free)
        constant = listed.pop(zero, Formula())
        groups = list(listed.items())
    if len(groups) != len(free) + 1 or any(
        term.coefficient < 0 for _, formula in groups for term in formula.terms
    ):
        return None
    weights = _solve_linear(
        [[Fraction(1)] * len(groups)]
        + [[Fraction(key[i]) for key, _ in groups] for i in range(len(free))],
        [Fraction(1), *[Fraction(0)] * len(free)],
    )
    if weights is None or any(weight <= 0 for weight in weights):
        return None
    coefficients = [Root.of(sums.name(formula)) for _, formula in groups]
    least = Root()
    for weight, coefficient in zip(weights, coefficients, strict=True):
        share = Root.of(Monomial(weight)) if not largest else Root()
        least = least * (coefficient / share) ** weight
    # each term is its share of the least: log-linear in the axes
    targets = [
        least * (Root.of(Monomial(weight)) if not largest else Root()) / coefficient
        for weight, coefficient in zip(weights, coefficients, strict=True)
    ]
    rows = [[Fraction(e) for e in key] for key, _ in groups][: len(free)]
    axes: dict[str, Root] = {}
    for i, name in enumerate(free):
        unit = [Fraction(int(i == j)) for j in range(len(free))]
        mix = _solve_linear([list(column) for column in zip(*rows, strict=True)], unit)
        if mix is None:
            return None
        root = Root()
        for share, target in zip(mix, targets, strict=False):
            root = root * target**share
        axes[name] = root
    return least, axes, constant


def _solve_linear(
    rows: Sequence[Sequence[Fraction]], right: Sequence[Fraction]
) -> list[Fraction] | None:
    """Solve a square system exactly, None where it has not one solution."""
    many = len(rows)
    table = [[*row, value] for row, value in zip(rows, right, strict=True)]
    if any(len(row) != many + 1 for row in table):
        return None
    for at in range(many):
        pivot = next((i for i in range(at, many) if table[i][at]), None)
        if pivot is None:
            return None
        table[at], table[pivot] = table[pivot], table[at]
        table[at] = [value / table[at][at] for value in table[at]]
        for i in range(many):
            if i != at and table[i][at]:
                factor = table[i][at]
                table[i] = [a - factor * b for a, b in zip(table[i], table[at], strict=True)]
    return [row[-1] for row in table]


# Numbers -----------------------------------------------------------------------------------------


def _numeric(
    time: Timer,
    free: Sequence[str],
    over: Sequence[str],
    total: float,
) -> tuple[dict[str, float], bool]:
    """Search the logarithms of the axes, each at least 1; says whether the optimum is at an end."""

    def inner(fixed: list[float], left: float) -> tuple[float, list[float]]:
        if len(fixed) == len(free):
            return time([*fixed, total / math.prod(fixed)]), fixed
        low, high = 0.0, math.log(left)
        ratio = (math.sqrt(5) - 1) / 2

        def at(position: float) -> tuple[float, list[float]]:
            return inner([*fixed, math.exp(position)], left / math.exp(position))

        a, b = high - ratio * (high - low), low + ratio * (high - low)
        fa, fb = at(a), at(b)
        for _ in range(60):
            if fa[0] <= fb[0]:
                high, b, fb = b, a, fa
                a = high - ratio * (high - low)
                fa = at(a)
            else:
                low, a, fa = a, b, fb
                b = low + ratio * (high - low)
                fb = at(b)
        ends = [at(0.0), at(math.log(left))]
        return min([fa, fb, *ends], key=lambda each: each[0])

    _, best = inner([], total)
    numbers = dict(zip(free, best, strict=True))
    numbers[over[-1]] = total / math.prod(best)
    ended = any(value <= 1 + 1e-6 or value >= total * (1 - 1e-6) for value in numbers.values())
    return numbers, ended


_LARGEST = 1 << 24
"""The largest product whose divisors are listed."""


def _whole(
    time: Timer | None, over: Sequence[str], total: Fraction | None
) -> tuple[dict[str, int], float | None]:
    """Find the best split into whole numbers."""
    if time is None or total is None or total.denominator != 1 or total > _LARGEST:
        return {}, None
    sizes = divisors(int(total))
    best: tuple[float, tuple[int, ...]] | None = None
    for chosen in itertools.product(sizes, repeat=len(over) - 1):
        rest = int(total)
        if rest % math.prod(chosen):
            continue
        rest //= math.prod(chosen)
        found = time([float(value) for value in (*chosen, rest)]), (*chosen, rest)
        best = found if best is None else min(best, found)
    assert best is not None
    return dict(zip(over, best[1], strict=True)), best[0]


def divisors(number: int) -> list[int]:
    """List the divisors of a number, the small ones first."""
    small = [i for i in range(1, math.isqrt(number) + 1) if number % i == 0]
    return sorted({*small, *(number // i for i in small)})
