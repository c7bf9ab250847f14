"""Costs as curves: math and communication of plans over a range of one symbol, and where they cross.

A program may come in several versions, one for each way to split its devices over the mesh axes. Each
point of its curve is then that of the best version there: of least T_overlapped and, among equals, of
least T_comms. Every version is a report of its own, with the plan of its own sizes and, on a slice, its
own way to lie there; a report's numbers over the whole range are one call of its compiled function.

Where T_math and T_comms change places is found by bisection on the same numbers, down to neighboring
floats, so that it is where `shardlang.cost.solve` puts it. Sizes of dims count as real numbers; axes take
powers of two, but the crossing between two of them is a real number too, as in the book (`Y < 11.8`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from math import ceil, floor, log2, nextafter, prod, sqrt
from typing import Any, TYPE_CHECKING

import numpy as np

from shardlang.cost.errors import BadRange, BadSplit, LoneAxis, NotDrawn
from shardlang.cost.solve import check_symbol, freed
from shardlang.cost.split import divisors
from shardlang.diagnostics import Diagnostic, ShardlangError
from shardlang.hardware.figures import EFFICIENCIES
from shardlang.source import Source, Span

if TYPE_CHECKING:
    from shardlang.cost.report import Report
    from shardlang.cost.symbols import Kind

POINTS = 241
"""Points of a curve over a dim or a hardware figure, at equal ratios."""

MOST = 500
"""The most ways to split a mesh that are priced, each with a plan of its own."""

EQUAL = 1 + 1e-9
"""Times of two versions within this ratio count as equal."""

Times = Callable[[Any], tuple[Any, Any]]
"""T_math and T_comms in seconds at values of the symbol."""


@dataclass(frozen=True)
class Sweep:
    """A symbol and the range that it takes, both ends with it."""

    name: str
    low: float
    high: float

    @property
    def text(self) -> str:
        """Print it as it is written."""
        return f"{self.name}={self.low:g}:{self.high:g}"


@dataclass(frozen=True)
class Version:
    """One way to run a program: its report, and the sizes of the axes that were chosen for it."""

    report: Report
    split: Mapping[str, int] = field(default_factory=dict[str, int])


@dataclass(frozen=True, slots=True)
class Crossover:
    """Where T_math = T_comms; `above` says that the program is compute-bound beyond it."""

    at: float
    seconds: float
    above: bool


@dataclass(frozen=True)
class Curve:
    """One program over the range: seconds at each value, the best split there, and the crossovers.

    `splits` is empty where nothing was chosen; `starts` says whether it is compute-bound at the first
    value; `facts` are its sizes that not all curves of the chart share.
    """

    name: str
    at: tuple[float, ...]
    t_math: tuple[float, ...]
    t_comms: tuple[float, ...]
    splits: tuple[Mapping[str, int], ...]
    starts: bool
    crossovers: tuple[Crossover, ...]
    facts: tuple[str, ...] = ()

    @property
    def ratio(self) -> tuple[float, ...]:
        """T_math over T_comms, infinite where nothing moves."""
        return tuple(
            math / comms if comms else float("inf")
            for math, comms in zip(self.t_math, self.t_comms, strict=True)
        )

    @property
    def bound(self) -> tuple[tuple[float | None, float | None], ...]:
        """The stretches on which it is compute-bound; None where one reaches the end of the range."""
        found: list[tuple[float | None, float | None]] = []
        low, inside = None, self.starts
        for crossover in self.crossovers:
            if inside:
                found.append((low, crossover.at))
            low, inside = crossover.at, crossover.above
        return (*found, (low, None)) if inside else tuple(found)

    def to_dict(self) -> dict[str, Any]:
        """Give it as data."""
        return {
            "name": self.name,
            "facts": list(self.facts),
            "at": list(self.at),
            "t_math": list(self.t_math),
            "t_comms": list(self.t_comms),
            "splits": [dict(split) for split in self.splits],
            "compute_bound": [{"low": low, "high": high} for low, high in self.bound],
            "crossovers": [
                {"at": each.at, "seconds": each.seconds, "compute_bound_above": each.above}
                for each in self.crossovers
            ],
        }


@dataclass(frozen=True)
class Chart:
    """Curves over one symbol; `facts` are the sizes and settings that all of them share."""

    sweep: Sweep
    kind: Kind
    curves: tuple[Curve, ...]
    facts: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Give it as data."""
        return {
            "over": {"name": self.sweep.name, "low": self.sweep.low, "high": self.sweep.high},
            "facts": list(self.facts),
            "curves": [curve.to_dict() for curve in self.curves],
        }


def chart(programs: Mapping[str, Sequence[Version]], sweep: Sweep) -> Chart:
    """Draw up the curves of programs, by the names that they are shown under.

    Raises `ShardlangError` for a name that no formula has (SH521), an axis that is laid on a slice (SH524)
    or has size 1 (SH541), a range that holds no two values (SH542), and what is not known (SH543).
    """
    kind = _kind(programs, sweep)
    at = _values(sweep, kind)
    facts = {name: _facts(versions, sweep) for name, versions in programs.items()}
    first, *rest = facts.values()
    shared = tuple(fact for fact in first if all(fact in other for other in rest))
    curves = tuple(
        _curve(name, versions, sweep, at, tuple(f for f in facts[name] if f not in shared))
        for name, versions in programs.items()
    )
    return Chart(sweep, kind, curves, shared)


# The range ---------------------------------------------------------------------------------------


def _kind(programs: Mapping[str, Sequence[Version]], sweep: Sweep) -> Kind:
    """Say what is varied; a program that has no such symbol is the same all along."""
    reports = [version.report for versions in programs.values() for version in versions]
    for report in reports:
        symbol = _symbol(report, sweep.name)
        if symbol is not None:
            return report.symbols.kinds.get(symbol, "hardware")
    check_symbol(reports[0], sweep.name, where="--over")
    raise AssertionError  # it has raised


def _symbol(report: Report, name: str) -> str | None:
    """Give the symbol of a name in a report; efficiencies get into its formulas when they are asked for."""
    symbols = report.symbols
    symbol = symbols.of.get(name) or symbols.figures.get(name) or name
    return symbol if symbol in symbols.kinds or symbol in EFFICIENCIES.values() else None


def _values(sweep: Sweep, kind: Kind) -> Any:
    """Give the values of the symbol."""

    def wrong(why: str) -> ShardlangError:
        where = Source("--over", sweep.text)
        mistake = BadRange(sweep.text, why)
        return ShardlangError([Diagnostic(where, Span(0, len(where.text)), mistake)])

    if kind != "hardware" and sweep.low < 1:
        raise wrong("a size is at least 1")
    if sweep.name in EFFICIENCIES.values() and kind == "hardware" and sweep.high > 1:
        raise wrong("an efficiency is at most 1")
    if kind != "axis":
        return np.geomspace(sweep.low, sweep.high, POINTS)
    powers = [2.0**power for power in range(ceil(log2(sweep.low)), floor(log2(sweep.high)) + 1)]
    whole = [end for end in (sweep.low, sweep.high) if floor(end) == end]
    found = sorted({*powers, *whole})
    if len(found) < 2:
        raise wrong("it holds no two powers of two")
    return np.array(found)


def splits(axes: Sequence[str], devices: int) -> list[dict[str, int]]:
    """List the ways to split devices over axes into whole sizes, 1 among them.

    Raises `ShardlangError` (SH544) where there are too many to price.
    """
    found: list[dict[str, int]] = [{}]
    for place, axis in enumerate(axes):
        last = place == len(axes) - 1
        longer: list[dict[str, int]] = []
        for sizes in found:
            left = devices // prod(sizes.values())
            longer += [{**sizes, axis: size} for size in ((left,) if last else divisors(left))]
        found = longer
        if len(found) > MOST:
            text = f"{'*'.join(axes)}={devices}"
            mistake = BadSplit(text, f"there are more than {MOST} ways, too many to price")
            raise ShardlangError([Diagnostic(Source("--split", text), Span(0, len(text)), mistake)])
    return found


# Curves ------------------------------------------------------------------------------------------


def _curve(
    name: str, versions: Sequence[Version], sweep: Sweep, at: Any, facts: tuple[str, ...]
) -> Curve:
    times = [_times(version.report, sweep) for version in versions]
    math, comms, best = _best(times, at)
    holds = math > comms
    found = [
        _between(times, low, high)
        for (low, left), (high, right) in pairwise(zip(at.tolist(), holds.tolist(), strict=True))
        if left != right
    ]
    chosen = tuple(versions[index].split for index in best.tolist())
    return Curve(
        name,
        tuple(at.tolist()),
        tuple(math.tolist()),
        tuple(comms.tolist()),
        chosen if len(versions) > 1 else (),
        bool(holds[0]),
        tuple(each for each in found if each is not None),
        facts,
    )


def _times(report: Report, sweep: Sweep) -> Times:
    """Give a report's times as a function of the symbol."""
    symbol = _symbol(report, sweep.name)
    if symbol is not None:
        report = freed(report, "--over", [sweep.name])
        if report.symbols.kinds[symbol] == "axis" and report.known.get(symbol) == 1:
            where = Source("--over", sweep.text)
            place = Span(0, len(sweep.name))
            raise ShardlangError([Diagnostic(where, place, LoneAxis(sweep.name))])
    try:
        function = report.compile([] if symbol is None else [symbol], ["t_math", "t_comms"])
    except ValueError as error:
        program = report.plan.program
        span = program.statements[0].span if program.statements else None
        mistake = NotDrawn(sweep.name, str(error).partition(":")[0])
        raise ShardlangError([Diagnostic(program.source, span or Span(0, 0), mistake)]) from None

    def times(at: Any) -> tuple[Any, Any]:
        math, comms = function() if symbol is None else function(at)
        return np.broadcast_to(math, np.shape(at)), np.broadcast_to(comms, np.shape(at))

    return times


def _best(times: Sequence[Times], at: Any) -> tuple[Any, Any, Any]:
    """Give the times of the best version at each value, and which one that is."""
    both = [each(at) for each in times]
    math = np.stack([one for one, _ in both])
    comms = np.stack([other for _, other in both])
    longest = np.maximum(math, comms)
    close = longest <= longest.min(axis=0) * EQUAL
    best = np.where(close, comms, np.inf).argmin(axis=0)
    row = best[np.newaxis]
    math, comms = (np.take_along_axis(each, row, axis=0)[0] for each in (math, comms))
    return math, comms, best


def _between(times: Sequence[Times], low: float, high: float) -> Crossover | None:
    """Find the crossover between two values; None where there is but the jump of an axis of size 1."""

    def holds(at: float) -> bool:
        math, comms, _ = _best(times, np.array([at]))
        return bool(math[0] > comms[0])

    if low == 1:
        low = nextafter(low, high)
    above = holds(high)
    if holds(low) == above:
        return None
    while low < (middle := sqrt(low) * sqrt(high)) < high:
        low, high = (low, middle) if holds(middle) == above else (middle, high)
    return Crossover(high, float(_best(times, np.array([high]))[0][0]), above)


# What is said ------------------------------------------------------------------------------------


def facts(reports: Iterable[Report], without: str | None = None) -> tuple[str, ...]:
    """List the hardware, sizes and settings that all reports share; `without` is the name that varies."""
    first, *rest = [_settings(report, without) for report in reports]
    return tuple(fact for fact in first if all(fact in other for other in rest))


def _facts(versions: Sequence[Version], sweep: Sweep) -> tuple[str, ...]:
    shared = facts((version.report for version in versions), sweep.name)
    names = "*".join(versions[0].split)
    if not names or len(versions) == 1:
        return shared
    devices = prod(versions[0].split.values())
    return (*shared, f"{names}={devices}, the best split at each {sweep.name}")


def _settings(report: Report, without: str | None) -> tuple[str, ...]:
    symbols = report.symbols
    found: list[str] = []
    if report.hardware is not None:
        shape = (report.slice or "").partition(":")[0]
        found.append(f"{report.hardware.name} {shape}".strip())
    for name, value in {**report.dims, **report.mesh}.items():
        if value is not None and name != without:
            found.append(f"{name}={value}")
    for plain, symbol in symbols.figures.items():
        value = report.known.get(symbol, Fraction(1))
        if plain.startswith("M_") and value != 1 and plain != without:
            found.append(f"{plain}={float(value):g}")
    found.append(
        f"model {report.model}"
        + (", axes overlap" if report.overlap else "")
        + (", memory counts" if report.hbm else "")
    )
    found.append("forward and backward" if report.plan.backward else "forward pass")
    return tuple(found)
