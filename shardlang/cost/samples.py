"""Tables of measured runs, in TOML or CSV, read into samples for calibration.

In TOML, keys before the first `[[run]]` hold for all runs that do not say otherwise:

    hardware = "tpu_v5p"
    [[run]]
    program = "mlp.shd"
    seconds = 0.0151
    set = { B = 131072, X = 16 }

In CSV a row is a run, and every column but `name`, `program`, `hardware`, `model`, `overlap` and
`seconds` is a size or a figure to set. A program's path is looked for beside the table.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any, cast, NoReturn

from shardlang.cost.calibrate import Sample
from shardlang.cost.errors import BadEntry, BadTable
from shardlang.cost.models import MODELS
from shardlang.cost.report import cost, Overlap, Report
from shardlang.diagnostics import Diagnostic, Mistake, ShardlangError
from shardlang.frontend.files import read_source
from shardlang.frontend.parser import parse
from shardlang.frontend.resolve import Overrides, resolve
from shardlang.passes import lower
from shardlang.source import Source, Span

KEYS = ("name", "program", "hardware", "model", "overlap", "seconds")
"""What a run may have beside `set`."""


@dataclass(frozen=True)
class Row:
    """A run as written: its keys, what it sets, and its place in the table."""

    number: int
    keys: Mapping[str, Any]
    sets: Mapping[str, Any]
    span: Span
    source: Source = field(repr=False)

    @property
    def name(self) -> str:
        """What it is called: its name, else its number."""
        return str(self.keys.get("name") or f"run {self.number}")

    def refuse(self, why: str, advice: str | None = None) -> NoReturn:
        """Report a mistake in it."""
        _refuse(self.source, self.span, BadEntry(self.name, why, advice))


def read_samples(path: str) -> list[Sample]:
    """Read a table of runs, lower each one's program and price it.

    Raises `ShardlangError`: SH534 for a table that can't be read, SH535 for a run, and whatever is wrong
    in its program.
    """
    try:
        source = read_source(path)
    except ShardlangError as error:
        place = error.diagnostics[0]
        _refuse(place.source, place.span, BadTable(place.message))
    rows = list(_from_csv(source) if path.lower().endswith(".csv") else _from_toml(source))
    if not rows:
        _refuse(source, Span(0, 0), BadTable("it has no runs"))
    return [_sample(row, Path(path).parent) for row in rows]


def _refuse(source: Source, span: Span, mistake: Mistake) -> NoReturn:
    raise ShardlangError([Diagnostic(source, span, mistake)])


def _from_toml(source: Source) -> Iterator[Row]:
    import tomllib  # noqa: PLC0415  (for this form alone)

    try:
        data = tomllib.loads(source.text)
    except tomllib.TOMLDecodeError as error:
        found = re.search(r"line (\d+)", str(error))
        span = _line(source, int(found[1])) if found else Span(0, 0)
        _refuse(source, span, BadTable(f"{str(error)[:100]}"))
    runs = data.pop("run", [])
    places = [m.span() for m in re.finditer(r"^[ \t]*\[\[\s*run\s*\]\]", source.text, re.MULTILINE)]
    if not isinstance(runs, list):
        _refuse(source, Span(0, 0), BadTable("`run` is no list: write [[run]]"))
    for number, own in enumerate(cast("list[Any]", runs)):
        span = Span(*places[number]) if number < len(places) else Span(0, 0)
        given = cast("dict[str, Any]", own) if isinstance(own, dict) else {}
        sets = {**_table(data.get("set")), **_table(given.get("set"))}
        keys = {k: v for k, v in {**data, **given}.items() if k != "set"}
        yield Row(number + 1, keys, sets, span, source)


def _table(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _line(source: Source, number: int) -> Span:
    """Give the place of a line, counted from 1."""
    lines = source.text.splitlines(keepends=True)
    start = sum(len(line) for line in lines[: number - 1])
    length = len(lines[number - 1].rstrip()) if number <= len(lines) else 0
    return Span(start, start + length)


def _from_csv(source: Source) -> Iterator[Row]:
    reader = csv.DictReader(io.StringIO(source.text), skipinitialspace=True)
    columns = [column.strip() for column in reader.fieldnames or ()]
    for wanted in ("program", "seconds"):
        if wanted not in columns:
            _refuse(source, _line(source, 1), BadTable(f"CSV has no column {wanted}"))
    for number, row in enumerate(reader):
        span = _line(source, reader.line_num)
        if None in row or any(value is None for value in row.values()):
            count = len(columns)
            _refuse(source, span, BadTable(f"this line of CSV has not {count} values"))
        cells = {key.strip(): value.strip() for key, value in row.items()}
        keys = {key: value for key, value in cells.items() if key in KEYS and value}
        sets = {key: value for key, value in cells.items() if key not in KEYS and value}
        yield Row(number + 1, keys, sets, span, source)


def _sample(row: Row, folder: Path) -> Sample:
    """Price a run's program with what it sets."""
    for key in row.keys.keys() - set(KEYS):
        row.refuse(
            f"there is no key '{key}'", f"a run has {', '.join(KEYS)}, and set = {{{key} = 1}}"
        )
    program = row.keys.get("program")
    if not isinstance(program, str):
        row.refuse("it names no program", 'write program = "mlp.shd"')
    seconds = _number(row, "seconds", row.keys.get("seconds"))
    if seconds <= 0:
        row.refuse("its seconds are no number above 0", "write seconds = 0.0151")
    model, overlap = row.keys.get("model", "book"), row.keys.get("overlap")
    if model not in MODELS:
        row.refuse(f"no model is called '{model}'", f"there are {', '.join(MODELS)}")
    if overlap not in (None, "axes"):
        row.refuse(f"overlap is 'axes' or left out, not '{overlap}'")
    values = {name: _number(row, name, value) for name, value in row.sets.items()}
    hardware = row.keys.get("hardware")
    if hardware is not None and not isinstance(hardware, str):
        row.refuse("its hardware is no name", 'write hardware = "tpu_v5p"')
    try:
        report = _priced(str(folder / program), values, hardware, str(model), overlap)
    except ShardlangError as error:
        first = error.diagnostics[0]
        if first.code.startswith("SH90"):
            row.refuse(first.message)
        if first.source.name.startswith("--"):
            row.refuse(first.message, first.hint)
        raise
    if report.total.quantity("t_serial").value is None:
        used = report.total.quantity("t_serial").formula.names
        open_ = [name for name in report.symbols.kinds if name in used - set(report.known)]
        row.refuse(
            f"nothing gives a value for {', '.join(open_)}",
            "give sizes in `set`, and name the hardware",
        )
    if not report.total.quantity("t_serial").value:
        row.refuse("its program takes no time: it has no contraction and no collective")
    return Sample(row.name, report, float(seconds))


def _priced(
    path: str,
    values: Mapping[str, Fraction],
    hardware: str | None,
    model: str,
    overlap: Overlap,
) -> Report:
    """Lower a program by the book's rules, or as its lines are, and price it."""
    source = read_source(path)
    sizes = {name: int(value) for name, value in values.items() if value.denominator == 1}
    program = resolve(parse(source), source, Overrides(sizes=sizes, hardware=hardware))
    names = {info.dim.name for info in program.dims}.union(program.mesh.names)
    figures = {name: value for name, value in values.items() if name not in names}
    return cost(lower(program), hardware=hardware, model=model, overlap=overlap, sets=figures)


def _number(row: Row, key: str, value: Any) -> Fraction:
    """Read a number, as TOML has it or as text."""
    plain = isinstance(value, int | float | str) and not isinstance(value, bool)
    try:
        found = Fraction(str(value).replace("_", "")) if plain else None
    except (ValueError, ZeroDivisionError):
        found = None
    if found is None:
        shown = "missing" if value is None else f"no number: {str(value)[:40]!r}"
        row.refuse(f"{key} is {shown}", f"write {key} = 4096")
    return found
