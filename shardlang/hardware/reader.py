"""Reads chips out of TOML, and says at its place what is wrong there.

The catalogue and a user's own file have one form: a table a chip, `[my_chip]`, with a figure a key,
and below it `[my_chip.variant.fast]` for each variant, which holds the figures that differ and has
the rest from the chip.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import cast, get_args

from shardlang.diagnostics import Diagnostic, Mistake, ShardlangError
from shardlang.hardware.chip import Hardware
from shardlang.hardware.errors import BadFigure, MissingFigure, NotToml, SparsePeak
from shardlang.hardware.figures import (
    COUNTS,
    DTYPES,
    Figure,
    FIGURES,
    nearest_unit,
    scale,
    SHAPED,
)
from shardlang.hardware.topology import TopologyKind
from shardlang.source import Source, Span

REQUIRED = ("flops.bf16", "W_ici")
WORDS = ("title", "topology", "basis", "also", "variant")
"""What a chip's table may hold besides figures."""

SOURCES = "sources"
"""The table of what short names of sources stand for."""

Table = Mapping[str, object]

_PARTS = ("value", "unit", "source", "date", "sparse")
_LIMIT = 10**300
_SPARSE = re.compile(r"spars", re.IGNORECASE)
_WITH_SPARSITY = re.compile(r"\bwith\s+(?:\S+\s+)?sparsity\b", re.IGNORECASE)
_DATE = re.compile(r"\d{4}(?:-\d\d){0,2}")


def read_chips(source: Source, stem: str) -> Mapping[str, Hardware]:
    """Read the chips of a TOML text by every name that they have, variants included.

    Figures outside of any table are the chip named `stem`. Raises `ShardlangError` with everything
    that is wrong in it.
    """
    import tomllib  # noqa: PLC0415  (not needed where no hardware is named)

    try:
        data: Table = tomllib.loads(source.text)
    except (ValueError, RecursionError) as error:  # an integer may be too long for `int`, too
        raise ShardlangError([_not_toml(source, str(error))]) from None
    reader = _Reader(source, data)
    chips: dict[str, Hardware] = {}
    if any(key in FIGURES or key == "flops" for key in data):
        reader.chip(_Place(stem, ()), data, chips)
    else:
        for name, table in data.items():
            if isinstance(table, dict) and name != SOURCES:
                reader.chip(_Place(name, (name,)), cast("Table", table), chips)
    if reader.diagnostics:
        raise ShardlangError(reader.diagnostics)
    return chips


def base_names(chips: Mapping[str, Hardware]) -> tuple[str, ...]:
    """List the chips by their own names, without variants and further names."""
    return tuple(name for name, chip in chips.items() if name == chip.name and ":" not in name)


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


@dataclass(frozen=True, slots=True)
class _Place:
    """A chip or a variant: its name, and the keys of its table."""

    name: str
    keys: tuple[str, ...]

    def variant(self, name: str) -> _Place:
        return _Place(f"{self.name}:{name}", (*self.keys, "variant", name))


class _Reader:
    """Reads chips out of parsed TOML and collects what is wrong with them."""

    def __init__(self, source: Source, data: Table) -> None:
        self.source = source
        self.diagnostics: list[Diagnostic] = []
        self.sources = self._sources(data)

    def chip(self, place: _Place, table: Table, chips: dict[str, Hardware]) -> None:
        """Read one chip's table and its variants', and add them under all their names."""
        before = len(self.diagnostics)
        chip = self._own(place, table, Hardware(place.name, place.name, {}, {}))
        if len(self.diagnostics) == before:
            have = {f"flops.{dtype}" for dtype in chip.flops} | set(chip.figures)
            for key in REQUIRED:
                if key not in have:
                    self._report(place, MissingFigure(place.name, key))
        variants: dict[str, Hardware] = {}
        basis = self._basis(place, table)
        if basis is not None:
            variants[basis] = chip
        for name, own in self._variants(place, table).items():
            if name in variants:
                self._bad(place, "basis", f"has the name of a variant, {name}")
            inherited = replace(chip, name=f"{chip.name}:{name}")
            variants[name] = self._own(place.variant(name), own, inherited)
        chip = self._complete(chip, variants, basis)
        variants = {
            name: chip if name == basis else self._complete(each, variants, basis)
            for name, each in variants.items()
        }
        for own in (place.name, *self._also(place, table)):
            chips[own] = chip
            chips.update({f"{own}:{name}": each for name, each in variants.items()})

    def _complete(
        self, chip: Hardware, variants: Mapping[str, Hardware], basis: str | None
    ) -> Hardware:
        """Tell a chip or a variant of all variants, and of what its sources' short names mean."""
        name = chip.name.partition(":")[0]
        figures = (*chip.flops.values(), *chip.figures.values())
        said = " ".join(figure.source for figure in figures)
        return replace(
            chip,
            variants=tuple(f"{name}:{variant}" for variant in variants),
            basis="" if basis is None else f"{name}:{basis}",
            sources={
                short: full
                for short, full in self.sources.items()
                if re.search(rf"\b{re.escape(short)}\b", said)
            },
        )

    def _own(self, place: _Place, table: Table, inherited: Hardware) -> Hardware:
        """Read what one table says over what it inherits."""
        for key in table:
            known = (*FIGURES, *WORDS, "flops", *(() if place.keys else (SOURCES,)))
            if key not in known:
                self._unknown(place, key)
        if place.keys and place.keys[-2:-1] == ("variant",):
            for key in ("basis", "also", "variant"):
                if key in table:
                    self._bad(place, key, "belongs to the chip, not to a variant")
        figures = {
            key: self._figure(place, key, table[key], kind.unit)
            for key, kind in FIGURES.items()
            if key in table
        }
        title = table.get("title", inherited.title)
        if not isinstance(title, str):
            self._bad(place, "title", "must be a text")
        return replace(
            inherited,
            title=str(title),
            flops={**inherited.flops, **self._peaks(place, table.get("flops"))},
            figures={**inherited.figures, **figures},
            kind=self._topology(place, table) or inherited.kind,
        )

    # --- words ---

    def _sources(self, data: Table) -> Mapping[str, str]:
        """Read what short names of sources stand for."""
        given = data.get(SOURCES, {})
        if isinstance(given, dict):
            names = cast("Table", given)
            if all(isinstance(full, str) for full in names.values()):
                return cast("Mapping[str, str]", names)
        self._bad(_Place(SOURCES, (SOURCES,)), SOURCES, "must be texts by short name")
        return {}

    def _topology(self, place: _Place, table: Table) -> TopologyKind | None:
        given = table.get("topology")
        if given is None:
            return None
        for kind in get_args(TopologyKind):
            if given == kind:
                return kind
        self._bad(place, "topology", f"must be one of {', '.join(get_args(TopologyKind))}")
        return None

    def _basis(self, place: _Place, table: Table) -> str | None:
        given = table.get("basis")
        if given is None or isinstance(given, str):
            return given
        self._bad(place, "basis", "must be a name, such as book")
        return None

    def _also(self, place: _Place, table: Table) -> list[str]:
        given = table.get("also", [])
        names = cast("list[object]", given) if isinstance(given, list) else [given]
        found = [name for name in names if isinstance(name, str)]
        if len(found) < len(names) or not isinstance(given, list):
            self._bad(place, "also", "must be a list of names")
        return found

    def _variants(self, place: _Place, table: Table) -> Mapping[str, Table]:
        given = table.get("variant", {})
        if isinstance(given, dict):
            tables = cast("Table", given)
            if all(isinstance(own, dict) for own in tables.values()):
                return cast("Mapping[str, Table]", tables)
        head = ".".join((*place.keys, "variant", "fast"))
        self._bad(place, "variant", f"must be tables of figures by name, as in [{head}]")
        return {}

    # --- figures ---

    def _peaks(self, place: _Place, given: object) -> dict[str, Figure]:
        if given is None:
            return {}
        if not isinstance(given, dict):
            self._bad(place, "flops", "must be a table of figures by dtype, as in flops.bf16")
            return {}
        peaks: dict[str, Figure] = {}
        for dtype, value in cast("Table", given).items():
            key = f"flops.{dtype}"
            if dtype not in DTYPES:
                self._unknown(place, key)
            else:
                peaks[dtype] = self._figure(place, key, value, "FLOP/s")
        return peaks

    def _figure(self, place: _Place, key: str, given: object, plain: str) -> Figure:
        """Read one figure; one that is wrong is reported, and any figure given in its place."""
        entry = cast("Table", given) if isinstance(given, dict) else {"value": given}
        source = entry.get("source", self.source.name)
        before = len(self.diagnostics)
        for part in entry:
            if part not in _PARTS:
                self._bad(place, key, f"has a '{part}', which is none of {', '.join(_PARTS)}")
        if not isinstance(source, str):
            self._bad(place, key, "must have a text as its source")
        elif entry.get("sparse", False) is not False or _WITH_SPARSITY.search(source):
            self._report(place, SparsePeak(place.name, key), key)
        date = str(entry.get("date", ""))
        if date and _DATE.fullmatch(date) is None:
            self._bad(place, key, 'must have a date such as "2025", "2025-02" or "2025-02-28"')
        shape: tuple[int, ...] = ()
        value = entry.get("value")
        if "value" not in entry:
            self._bad(place, key, "has no value")
            return Figure(1.0, plain, "")
        if plain == "yes/no":
            if not isinstance(value, bool):
                self._bad(place, key, "must be true or false")
            value = int(value is True)
        elif key in SHAPED and isinstance(value, str):
            value, shape = self._shape(place, key, value)
        number = self._number(place, key, value, plain, entry.get("unit", plain))
        if len(self.diagnostics) > before:
            return Figure(1.0, plain, "")
        return Figure(number, plain, str(source), date, shape)

    def _shape(self, place: _Place, key: str, text: str) -> tuple[object, tuple[int, ...]]:
        """Read `"16x20x28"`: the number of chips, and the shape."""
        if re.fullmatch(r"[1-9]\d{0,8}(?:x[1-9]\d{0,8}){0,5}", text) is None:
            self._bad(place, key, 'must be a number of chips or a shape such as "16x20x28"')
            return 1, ()
        shape = tuple(map(int, text.split("x")))
        chips = 1
        for size in shape:
            chips *= size
        return chips, shape

    def _number(self, place: _Place, key: str, value: object, plain: str, unit: object) -> float:
        """Give a value in its plain unit."""
        if not isinstance(value, int | float) or isinstance(value, bool):
            self._bad(place, key, "must be a number")
            return 1.0
        size = scale(unit, plain) if isinstance(unit, str) else None
        if size is None:
            near = nearest_unit(unit, plain) if isinstance(unit, str) else None
            mistake = BadFigure(place.name, key, f"must be in {plain}, not {unit}", near)
            self._report(place, mistake, key)
            return 1.0
        least = -1 if plain == "yes/no" else 0
        if not least < value < _LIMIT:
            self._bad(place, key, "must be positive and finite")
            return 1.0
        exact = Fraction(repr(value)) * size
        if plain in COUNTS and exact.denominator != 1:
            self._bad(place, key, "must be a whole number")
        if exact >= _LIMIT:
            self._bad(place, key, "must be positive and finite")
            return 1.0
        return float(exact)

    # --- what is wrong ---

    def _unknown(self, place: _Place, key: str) -> None:
        import difflib  # noqa: PLC0415  (for the error alone)

        if _SPARSE.search(key):
            self._report(place, SparsePeak(place.name, key), key)
            return
        if key.startswith("flops."):
            known = [f"flops.{dtype}" for dtype in DTYPES]
            listed = f"flops. with {', '.join(DTYPES)}"
        else:
            known = ["flops", *FIGURES, *WORDS]
            listed = ", ".join(("flops", *FIGURES))
        near = difflib.get_close_matches(key, known, n=1, cutoff=0.7)
        mistake = BadFigure(
            place.name, key, f"is none that is known ({listed})", near[0] if near else None
        )
        self._report(place, mistake, key)

    def _bad(self, place: _Place, key: str, why: str) -> None:
        self._report(place, BadFigure(place.name, key, why), key)

    def _report(self, place: _Place, mistake: Mistake, key: str = "") -> None:
        """Report at the key within its table, as far as a search finds it."""
        text = self.source.text
        start = end = 0
        if place.keys:
            path = r"\s*\.\s*".join(rf"[\"']?{re.escape(part)}[\"']?" for part in place.keys)
            head = re.search(rf"^\s*\[\s*{path}\s*\]", text, re.MULTILINE)
            start, end = (head.start(), head.end()) if head else (0, 0)
        if key:
            last = re.escape(key.rpartition(".")[2])
            found = re.compile(rf"(?<![\w-]){last}(?![\w-])").search(text, end)
            if found:
                start, end = found.span()
        self.diagnostics.append(Diagnostic(self.source, Span(start, end), mistake))
