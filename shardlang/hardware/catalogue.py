"""The hardware catalogue: figures of chips from TOML, each with its unit and source.

The catalogue and a user's own file have one form and one reader; what is wrong in a file is a
diagnostic at its place. Reading is cheap: nothing but `tomllib`, and only when asked for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import cast

from shardlang.diagnostics import Diagnostic, Mistake, ShardlangError
from shardlang.hardware.errors import (
    BadFigure,
    MissingFigure,
    NotOneChip,
    NotToml,
    UnknownHardware,
    UnreadableHardware,
)
from shardlang.hardware.slices import split_shape
from shardlang.source import Source, Span

CATALOGUE = Path(__file__).with_name("catalogue.toml")
REQUIRED = ("flops.bf16", "W_ici")
UNITS: Mapping[str, str] = {
    "hbm": "B",
    "W_hbm": "B/s",
    "W_ici": "B/s",
    "w_ici": "B/s",
    "ici_axes": "axes",
    "W_dcn": "B/s",
}
MEANINGS: Mapping[str, str] = {
    "flops": "peak, dense",
    "hbm": "memory",
    "W_hbm": "memory bandwidth",
    "W_ici": "interconnect, one axis",
    "w_ici": "interconnect, one link, one way",
    "ici_axes": "axes of the interconnect",
    "W_dcn": "data-centre network, a chip",
}

Table = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure with its unit and where it comes from."""

    value: float
    unit: str
    source: str


@dataclass(frozen=True, slots=True)
class Hardware:
    """A chip: FLOP/s by dtype and the other figures, by their names in the catalogue."""

    name: str
    title: str
    flops: Mapping[str, Figure]
    figures: Mapping[str, Figure]

    def get(self, figure: str) -> float | None:
        """Give a figure's value (`C` is `flops.bf16`), None where the chip has none."""
        if figure == "C":
            return self.flops["bf16"].value
        found = self.figures.get(figure)
        return None if found is None else found.value

    def peak(self, dtype: str) -> float | None:
        """Give the FLOP/s at a dtype of the notation; both forms of f8 are `fp8`."""
        found = self.flops.get("fp8" if dtype.startswith("f8") else dtype)
        return None if found is None else found.value


def load_hardware(name: str, source: Source | None = None, span: Span | None = None) -> Hardware:
    """Load a chip by its name in the catalogue, or from a TOML file by its path (`FILE#CHIP`).

    `source` and `span` say where the name was written; a relative path is looked for beside that
    source too. A slice's shape behind the name (`tpu_v5p 4x4x4`) is not looked at. Raises
    `ShardlangError`.
    """
    name, _ = split_shape(name)
    chips = _catalogue()
    key = re.sub(r"[\s-]+", "_", name.strip()).lower()
    if key in chips:
        return chips[key]
    where = source or Source("--hardware", name)
    place = span or Span(0, len(where.text) if source is None else 0)
    path, _, chip = name.partition("#")
    found = _find(path, source)
    if found is None:
        import difflib  # noqa: PLC0415  (for the error alone)

        near = difflib.get_close_matches(key, chips, n=1, cutoff=0.5)
        mistake = UnknownHardware(name, near[0] if near else None, tuple(chips))
        raise ShardlangError([Diagnostic(where, place, mistake)])
    try:
        text = found.read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        why = "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else str(error.strerror)
        raise ShardlangError([Diagnostic(where, place, UnreadableHardware(path, why))]) from None
    own = read_chips(Source(path, text), found.stem)
    if chip:
        own = {name: own[name] for name in own if name == chip}
    if len(own) != 1:
        raise ShardlangError([Diagnostic(where, place, NotOneChip(path, tuple(own)))])
    return next(iter(own.values()))


def known_hardware() -> tuple[str, ...]:
    """List the names in the catalogue."""
    return tuple(_catalogue())


def _find(path: str, source: Source | None) -> Path | None:
    """Find a file as named, or beside the program that names it."""
    tries = [Path(path)]
    if source is not None:
        tries.append(Path(source.name).parent / path)
    for candidate in tries:
        try:
            if path and candidate.exists():
                return candidate
        except (OSError, ValueError):  # too long, or with a zero byte in it
            return None
    return None


@cache
def _catalogue() -> Mapping[str, Hardware]:
    return read_chips(Source(CATALOGUE.name, CATALOGUE.read_text(encoding="utf-8")), "")


def read_chips(source: Source, stem: str) -> Mapping[str, Hardware]:
    """Read the chips of a TOML text; figures outside of any table are the chip named `stem`.

    Raises `ShardlangError` with everything that is wrong in it.
    """
    import tomllib  # noqa: PLC0415  (not needed where no hardware is named)

    try:
        data: Table = tomllib.loads(source.text)
    except (ValueError, RecursionError) as error:  # an integer may be too long for `int`, too
        raise ShardlangError([_not_toml(source, str(error))]) from None
    reader = _Reader(source)
    if any(key in UNITS or key == "flops" for key in data):
        data = {stem: data}
    chips = {
        name: reader.chip(name, cast("Table", table))
        for name, table in data.items()
        if isinstance(table, dict)
    }
    if reader.diagnostics:
        raise ShardlangError(reader.diagnostics)
    return chips


def _not_toml(source: Source, text: str) -> Diagnostic:
    """Place what `tomllib` says; it gives the place in words only."""
    found = re.search(r" \(at line (\d+), column (\d+)\)$", text)
    if found is None:
        end = len(source.text)
        return Diagnostic(
            source, Span(end, end), NotToml(text.removesuffix(" (at end of document)"))
        )
    line, column = int(found[1]), int(found[2])
    start = sum(len(x) + 1 for x in source.text.split("\n")[: line - 1]) + column - 1
    start = min(start, len(source.text))
    span = Span(start, min(start + 1, len(source.text)))
    return Diagnostic(source, span, NotToml(text[: found.start()]))


class _Reader:
    """Reads chips out of parsed TOML and collects what is wrong with them."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.diagnostics: list[Diagnostic] = []

    def chip(self, name: str, table: Table) -> Hardware:
        """Read one chip's table."""
        before = len(self.diagnostics)
        given = table.get("flops")
        flops = cast("Table", given) if isinstance(given, dict) else {}
        if given is not None and not isinstance(given, dict):
            self._bad(name, "flops", "must be a table of figures by dtype, as in flops.bf16")
        peaks = {
            dtype: self._figure(name, f"flops.{dtype}", value, "FLOP/s")
            for dtype, value in flops.items()
        }
        figures = {
            key: self._figure(name, key, table[key], unit)
            for key, unit in UNITS.items()
            if key in table
        }
        for key in table:
            if key not in UNITS and key not in ("flops", "title"):
                self._unknown(name, key)
        if len(self.diagnostics) == before:
            have = {f"flops.{dtype}" for dtype in peaks} | set(figures)
            for key in REQUIRED:
                if key not in have:
                    self._report(name, MissingFigure(name, key))
        title = table.get("title")
        return Hardware(name, title if isinstance(title, str) else name, peaks, figures)

    def _figure(self, chip: str, key: str, given: object, unit: str) -> Figure:
        entry = cast("Table", given) if isinstance(given, dict) else {"value": given}
        value = entry.get("value")
        if not isinstance(value, int | float) or isinstance(value, bool):
            self._bad(chip, key, "must be a number" if "value" in entry else "has no value")
            return Figure(1.0, unit, "")
        if not 0 < value < 1e300:
            self._bad(chip, key, "must be positive and finite")
            return Figure(1.0, unit, "")
        if entry.get("unit", unit) != unit:
            self._bad(chip, key, f"must be in {unit}, not {entry['unit']}")
        return Figure(float(value), unit, str(entry.get("source", self.source.name)))

    def _unknown(self, chip: str, key: str) -> None:
        import difflib  # noqa: PLC0415  (for the error alone)

        known = ("flops", *UNITS)
        near = difflib.get_close_matches(key, known, n=1, cutoff=0.7)
        why = f"is none that is known ({', '.join(known)})"
        self._report(chip, BadFigure(chip, key, why, near[0] if near else None), key)

    def _bad(self, chip: str, key: str, why: str) -> None:
        self._report(chip, BadFigure(chip, key, why), key)

    def _report(self, chip: str, mistake: Mistake, key: str = "") -> None:
        """Report at the key within its chip's table, as far as a search finds it."""
        text = self.source.text
        head = re.search(rf"^\s*\[\s*\"?{re.escape(chip)}\"?\s*\]", text, re.MULTILINE)
        start, end = (head.start(), head.end()) if head else (0, 0)
        if key:
            last = key.rpartition(".")[2]
            found = re.compile(rf"(?<![\w-]){re.escape(last)}(?![\w-])").search(text, end)
            if found:
                start, end = found.span()
        self.diagnostics.append(Diagnostic(self.source, Span(start, end), mistake))


def _rows(chip: Hardware) -> Iterable[tuple[str, str, Figure]]:
    for dtype, figure in chip.flops.items():
        yield f"flops.{dtype}", f"{MEANINGS['flops']}, {dtype}", figure
    for key in UNITS:
        if key in chip.figures:
            yield key, MEANINGS[key], chip.figures[key]


def _wrap(text: str, width: int) -> list[str]:
    lines = [""]
    for word in text.split():
        if lines[-1] and len(lines[-1]) + 1 + len(word) > width:
            lines.append("")
        lines[-1] += f" {word}" if lines[-1] else word
    return lines


def hardware_text(name: str | None = None) -> str:
    """Print the catalogue as a table, or one chip with the source of each figure."""
    if name is not None:
        chip = load_hardware(name)
        lines = [f"{chip.title} ({chip.name})"]
        for key, meaning, figure in _rows(chip):
            lines.append(f"  {key:<11} {figure.value:>9.4g} {figure.unit:<7} {meaning}")
            lines += [f"  {'':<11} {line}" for line in _wrap(f"source: {figure.source}", 66)]
        return "\n".join(lines) + "\n"
    columns = ("C", "hbm", "W_hbm", "W_ici", "ici_axes", "W_dcn")
    units = ("FLOP/s", "B", "B/s", "B/s", "", "B/s")
    lines = [
        f"{'':<10}" + "".join(f"{column:>11}" for column in columns),
        f"{'':<10}" + "".join(f"{unit:>11}" for unit in units).rstrip(),
    ]
    for key, chip in _catalogue().items():
        values = [chip.get(column) for column in columns]
        cells = ["-" if value is None else f"{value:.4g}" for value in values]
        lines.append(f"{key:<10}" + "".join(f"{cell:>11}" for cell in cells))
    lines += [
        "",
        "C: bf16, dense. W_ici: one axis, both directions; h100: NVLink, one direction.",
        "`shardlang hardware NAME` shows a chip with the source of each figure.",
    ]
    return "\n".join(lines) + "\n"
