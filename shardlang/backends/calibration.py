"""Calibrations for people: what was fitted, and each run's times."""

from __future__ import annotations

from collections.abc import Iterator

from shardlang.backends import report_latex, report_markdown
from shardlang.backends.report_tables import Block
from shardlang.backends.report_text import table, wrap
from shardlang.backends.units import si
from shardlang.cost.calibrate import Calibration, Fitted, Prediction

RUN_COLUMNS = ("run", "measured", "at peak", "predicted", "error", "band")


def render(found: Calibration, form: str, width: int = 80) -> str:
    """Print a calibration in a format: `text`, `markdown` or `latex`."""
    match form:
        case "markdown":
            return report_markdown.tables("Calibration", _blocks(found))
        case "latex":
            return report_latex.tables("A calibration, made by shardlang.", _blocks(found))
        case _:
            return "\n".join(line.rstrip() for line in _text(found, max(width, 40))) + "\n"


def _figure(each: Fitted) -> list[str]:
    """Give a figure's name, value and error band."""
    if each.value is None:
        return [each.name, "not told", ""]
    band = ""
    if each.low is not None and each.high is not None:
        band = f"{_value(each.name, each.low)} to {_value(each.name, each.high)}"
    return [each.name, _value(each.name, each.value), band]


def _value(name: str, value: float) -> str:
    return si(value, "s") if name.startswith("T_") else f"{value:.3f}"


def _run(run: Prediction) -> list[str]:
    band = (
        "" if run.low is None or run.high is None else f"{si(run.low, 's')} to {si(run.high, 's')}"
    )
    times = (si(each, "s") for each in (run.measured, run.peak, run.predicted))
    return [run.name, *times, f"{round(100 * run.error, 1) + 0.0:+.1f} %", band]


def _sets(found: Calibration) -> str:
    return " ".join(f"--set {name}={value:.4g}" for name, value in found.sets.items())


def _notes(found: Calibration) -> Iterator[str]:
    """Say how well it fits, what the runs do not tell, and how it is used."""
    typical, worst = 100 * found.typical, 100 * found.worst
    yield f"error of a run: {typical:.1f} % (root mean square), {worst:.1f} % at worst"
    if found.spread is None:
        yield "no bands: there are no more runs than figures"
    yield from found.notes
    if found.sets:
        yield f"use it: {_sets(found)}"


def _title(found: Calibration) -> str:
    many = len(found.runs)
    return f"Calibration of T_{found.time} by {many} run{'' if many == 1 else 's'}"


def _text(found: Calibration, width: int) -> Iterator[str]:
    yield _title(found)
    yield from table([["", "", ""], *map(_figure, found.figures)], width, (1,), "  ")
    yield ""
    yield from table([list(RUN_COLUMNS), *map(_run, found.runs)], width, (1, 2, 3, 4), "  ")
    yield ""
    for note in _notes(found):
        for number, line in enumerate(wrap(note, width - 4)):
            yield f"  {'- ' if number == 0 else '  '}{line}"


def _blocks(found: Calibration) -> Iterator[Block]:
    yield Block(
        _title(found),
        ("figure", "value", "band"),
        tuple(tuple(_figure(each)) for each in found.figures),
        ("figure",),
        ("value",),
    )
    yield Block(
        "Runs",
        RUN_COLUMNS,
        tuple(tuple(_run(run)) for run in found.runs),
        (),
        RUN_COLUMNS[1:5],
        notes=tuple(_notes(found)),
    )
