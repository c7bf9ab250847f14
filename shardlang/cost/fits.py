"""When a program fits: memory of one device no larger than its HBM, solved for a symbol.

The memory is the report's total, or some of its parts: a sum of products of sizes and of maxima, so that
`shardlang.cost.solve` solves it as it does a compute-bound condition. A dim has a largest value, an axis a
smallest one. The size of the HBM is the symbol `hbm` in formulas.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from shardlang.cost.errors import NoPart
from shardlang.cost.formula import Formula
from shardlang.cost.report import MEMORY, Report
from shardlang.cost.solve import check_symbol, compare, followers, freed, Solution
from shardlang.diagnostics import Diagnostic, ShardlangError
from shardlang.ir.size import Monomial
from shardlang.source import Source, Span

CHOICES = 12
"""The most choices among the maxima of the memory that are written as conditions one by one."""


@dataclass(frozen=True, slots=True)
class Fit:
    """When the memory fits, as a condition on a symbol.

    `most` is the largest whole value that fits, `least` the smallest one, where they are known; neither
    is there where nothing fits (`solution.how` is `never`) or everything does. `hbm` is the memory's
    symbol and `capacity` its bytes. `rest` is what does not depend on the symbol.
    """

    solution: Solution
    parts: tuple[str, ...]
    hbm: str
    capacity: Fraction | None
    rest: Formula
    rest_value: Fraction | None
    most: int | None = None
    least: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Give it as data."""
        rest = None if self.rest_value is None else float(self.rest_value)
        return {
            **self.solution.to_dict(),
            "parts": list(self.parts),
            "hbm": None if self.capacity is None else float(self.capacity),
            "rest": {"formula": str(self.rest), "value": rest},
            "most": self.most,
            "least": self.least,
        }


def fits(report: Report, symbol: str, parts: Sequence[str] = ("total",)) -> Fit:
    """Solve `memory <= hbm` for a symbol; `parts` are the parts of the memory that count.

    Raises `ShardlangError` for a name that no formula has (SH521), for an axis that a slice lays
    (SH524) and for a part that there is not (SH526).
    """
    for part in parts:
        if part not in MEMORY:
            where = Source("--parts", part)
            raise ShardlangError([Diagnostic(where, Span(0, len(part)), NoPart(part, MEMORY))])
    name = check_symbol(report, symbol, where="--fits")
    report = freed(report, "--fits", [name])
    followed = followers(report, name, "--fits")
    held = Formula.sum(report.memory.quantity(part).formula for part in parts).rewrite(followed)
    known = {n: v for n, v in report.known.items() if n != name and n not in followed}
    hbm = "hbm"
    while hbm in report.symbols.kinds:
        hbm += "_hw"
    if report.capacity is not None:
        known[hbm] = report.capacity
    found = compare(
        report, name, Formula.of(Monomial.of(hbm)), held, known, {}, strict=False, most=CHOICES
    )
    if name not in held.names and held.value(known) == report.capacity:
        found = replace(found, how="always")  # full to the byte
    rest = _without(held, name)

    def fitting(size: int) -> bool:
        taken = held.value({**known, name: Fraction(size)}) if size > 0 else Fraction(0)
        return taken is not None and report.capacity is not None and taken <= report.capacity

    return Fit(
        found,
        tuple(parts),
        hbm,
        report.capacity,
        rest,
        rest.value(known),
        None if found.high is None else _last(round(found.high), -1, fitting),
        None if found.low is None else _last(max(round(found.low), 1), 1, fitting),
    )


def _last(near: int, step: int, fitting: Callable[[int], bool]) -> int:
    """Give the whole number at a border that is the last to fit; floats may have missed it by one."""
    return near if fitting(near) else near + step


def _without(formula: Formula, name: str) -> Formula:
    """Give what is left of a formula without the terms that have a name."""
    terms = [term for term in formula.terms if name not in dict(term.powers)]
    maxima = (Formula.largest(_without(o, name) for o in options) for options in formula.maxima)
    return Formula.sum((Formula.of(*terms), *maxima))
