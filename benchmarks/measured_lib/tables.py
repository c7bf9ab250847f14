"""The report's tables, in Markdown, and the rank correlation that it prints."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby

from measured_lib import collectives, toy
from measured_lib.collectives import Point
from measured_lib.programs import model_flops, report, step_programs, Times, times
from measured_lib.runs import Convention, families, Family, family, Model, models, Run


@dataclass(frozen=True)
class Result:
    """A run with its figures: FLOPs of a chip and step as published and as a model's, and times.

    `stated` are the FLOPs that the published rate comes to, None where the time was derived from it.
    """

    run: Run
    flops: float
    model: float
    times: Times
    measured: float
    stated: float | None
    toy: float

    @property
    def deviation(self) -> float | None:
        """How far our FLOPs are from those published."""
        return None if self.stated is None else self.flops / self.stated - 1


@dataclass(frozen=True)
class Predictor:
    """A time that a step is predicted to take, and what it is called."""

    name: str
    seconds: Callable[[Result], float]


PREDICTORS: Sequence[Predictor] = (
    Predictor("T_overlapped", lambda r: r.times.overlapped),
    Predictor("scheduled", lambda r: r.times.scheduled),
    Predictor("T_serial", lambda r: r.times.serial),
    Predictor("estimate", lambda r: r.times.estimate),
    Predictor("six terms", lambda r: r.toy),
)

COUNTED: dict[Convention, str] = {
    "full": "attention in full",
    "causal": "what a causal mask leaves",
    "halves": "half of attention",
    "hardware": "in full, all computed again",
}


@cache
def results(key: str) -> tuple[Result, ...]:
    """Give the runs of a family's file with their figures."""
    known = models()
    return tuple(_result(run, known[run.model]) for run in family(key).runs)


def _result(run: Run, model: Model) -> Result:
    flops = model_flops(run, model)
    rate = _rate(run, model)
    stated = None
    seconds = run.seconds
    if seconds is None:
        assert rate is not None
        seconds = flops / rate
    elif rate is not None:
        each = run.batch * run.seq / run.chips
        stated = rate * (seconds if run.tokens is None else each / run.tokens)
    whole = model_flops(replace(run, convention="full"), model)
    return Result(run, flops, whole, times(run, model), seconds, stated, toy.seconds(run, model))


def _rate(run: Run, model: Model) -> float | None:
    """Give the published FLOP/s of a chip."""
    if run.tflops is not None:
        return run.tflops * 1e12
    if run.mfu is None:
        return None
    chip = report(step_programs(run, model)[0][0]).hardware
    assert chip is not None
    return run.mfu / 100 * (chip.peak("bf16") or 0)


def flops_table() -> Iterator[str]:
    """List the runs whose time and FLOP rate are both published."""
    rows = (
        (
            result.run.name,
            COUNTED[result.run.convention],
            f"{result.flops / 1e12:,.1f}",
            f"{result.stated / 1e12:,.1f}",
            f"{round(100 * result.deviation, 3) + 0:+.3f} %",
        )
        for each in families()
        for result in results(each.key)
        if result.stated is not None and result.deviation is not None
    )
    head = ("run", "counts", "TFLOP here", "published", "deviation")
    yield from table(head, rows, "llrrr")


def times_table(each: Family) -> Iterator[str]:
    """List a family's times."""
    head = (
        "run",
        "T_overlapped",
        "T_serial",
        "scheduled",
        "estimate",
        "measured",
        "over bound",
        "over est.",
    )
    rows = (
        (
            result.run.name,
            *(_seconds(value) for value in _columns(result)),
            f"{result.measured / result.times.overlapped:.2f}",
            f"{result.measured / result.times.estimate:.2f}",
        )
        for result in results(each.key)
    )
    yield from table(head, rows, "lrrrrrrr")


def _columns(result: Result) -> tuple[float, ...]:
    own = result.times
    return own.overlapped, own.serial, own.scheduled, own.estimate, result.measured


def _seconds(value: float) -> str:
    return f"{value:.3f}" if value < 10 else f"{value:.2f}"


def nccl_table() -> Iterator[str]:
    """List NCCL's times, one line a chip and operation."""
    head = ("chip, operation", *dict.fromkeys(point.size for point in points()), "least ratio")
    rows = (
        (
            f"{chip} {operation}",
            *(f"{_micro(point.bound)} / {_micro(point.measured)}" for point in own),
            f"{min(point.ratio for point in own):.2f}",
        )
        for (chip, operation), group in groupby(points(), key=lambda p: (p.what, p.operation))
        for own in [list(group)]
    )
    yield from table(head, rows, "lrrrrrrr")


@cache
def points() -> tuple[Point, ...]:
    """Give all points of NCCL's tables."""
    return tuple(collectives.nccl())


def rings_table() -> Iterator[str]:
    """List the points that would lie below the bound if a switch did not add up what it passes on."""
    rows = (
        (
            f"{point.what} {point.operation}, {point.size}",
            _micro(point.ring),
            _micro(point.bound),
            _micro(point.measured),
        )
        for point in points()
        if point.measured < point.ring
    )
    yield from table(("point", "rings, µs", "in the switch, µs", "measured, µs"), rows, "lrrr")


def single_table() -> Iterator[str]:
    """List the single operations on TPUs."""
    rows = (
        (
            f"{point.what} {point.operation} {point.size}".strip(),
            _micro(point.bound),
            _micro(point.measured),
            f"{point.ratio:.2f}",
        )
        for point in collectives.single()
    )
    yield from table(("operation", "bound, µs", "measured, µs", "ratio"), rows, "lrrr")


def _micro(seconds: float) -> str:
    value = seconds * 1e6
    return f"{value:,.0f}" if value >= 100 else f"{value:.3f}" if value < 1 else f"{value:.3g}"


def ranks_table() -> Iterator[str]:
    """List the rank correlations of predicted with measured times, and of FLOP rates."""
    head = ("family", "n", *(predictor.name for predictor in PREDICTORS))
    rows: list[tuple[str, ...]] = []
    for each in families():
        found = results(each.key)
        if len(found) > 2:
            own = [_ranks(found, predictor) for predictor in PREDICTORS]
            rows.append((each.title, str(len(found)), *(f"{a:.2f} / {b:.2f}" for a, b in own)))
    yield from table(head, rows, "lrrrrrr")


def _ranks(found: Sequence[Result], predictor: Predictor) -> tuple[float, float]:
    """Correlate the ranks of step times, and of model FLOPs a second."""
    predicted = [predictor.seconds(result) for result in found]
    measured = [result.measured for result in found]
    rates = [
        [result.model / seconds for result, seconds in zip(found, own, strict=True)]
        for own in (predicted, measured)
    ]
    return spearman(predicted, measured), spearman(*rates)


def nccl_ranks_table() -> Iterator[str]:
    """List the rank correlations of all NCCL points of a chip."""
    rows = (
        (chip, str(len(own)), f"{spearman([p.bound for p in own], [p.measured for p in own]):.2f}")
        for chip in dict.fromkeys(point.what for point in points())
        for own in [[point for point in points() if point.what == chip]]
    )
    yield from table(("chip", "n", "`link`"), rows, "lrr")


def spearman(one: Sequence[float], other: Sequence[float]) -> float:
    """Give Spearman's rank correlation; equal values share the mean of their ranks."""
    a, b = _ranked(one), _ranked(other)
    mean = (len(a) + 1) / 2
    both = sum((x - mean) * (y - mean) for x, y in zip(a, b, strict=True))
    squares = [sum((x - mean) ** 2 for x in own) for own in (a, b)]
    return both / (squares[0] * squares[1]) ** 0.5


def _ranked(values: Sequence[float]) -> list[float]:
    return [
        sum(other < value for other in values) + (sum(other == value for other in values) + 1) / 2
        for value in values
    ]


def table(head: Sequence[str], rows: Iterable[Sequence[str]], sides: str) -> Iterator[str]:
    """Write a Markdown table; `sides` has l or r for each column."""
    yield _line(head)
    yield _line([{"l": "---", "r": "---:"}[side] for side in sides])
    for row in rows:
        yield _line(row)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
