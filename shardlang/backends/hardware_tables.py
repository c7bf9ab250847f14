"""The hardware catalogue for people: all chips, one with its sources, or several side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from shardlang.backends import report_latex, report_markdown
from shardlang.backends.report_tables import Block
from shardlang.backends.report_text import table, wrap
from shardlang.backends.units import si
from shardlang.hardware.chip import Hardware, Ratio, RATIOS, ratios
from shardlang.hardware.figures import COUNTS, DTYPES, Figure, FIGURES, shape_text

View: TypeAlias = Literal["list", "one", "compared"]

_LISTED = {"C": 1e12, "hbm": 1e9, "W_hbm": 1e9, "W_ici": 1e9, "W_dcn": 1e9}
_LIST_UNITS = ("", "TFLOP/s", "GB", "GB/s", "GB/s", "GB/s", "")
_MEANINGS = (
    "C: bf16, dense. W_ici: an axis of the torus, both directions; elsewhere what a chip sends,"
    " one direction."
)
_MORE = (
    "`shardlang hardware NAME` shows a chip with the source of each figure,"
    " `shardlang hardware A B` compares."
)
_INDENT = "  "
_NARROWEST = 20


def amount(value: float, unit: str, shape: tuple[int, ...] = ()) -> str:
    """Print a value with its unit: `459 TFLOP/s`, `16x20x28`, `8 chips`, `2550`.

    Memories on the chip are told in the binary units in which they are built.
    """
    match unit:
        case "FLOP/B":
            return f"{value:.0f}" if value >= 1000 else f"{value:.4g}"
        case "B" if value < 1e9 and value % 2**18 == 0:
            return f"{value / 2**20:g} MiB"
        case "yes/no":
            return "yes" if value else "no"
        case "USD/h":
            return f"{value:g} {unit}"
        case "chips" if shape:
            return shape_text(shape)
        case _ if unit in COUNTS or unit == "hosts":
            one = unit.removesuffix("es") + "is" if unit == "axes" else unit.removesuffix("s")
            return f"{value:.0f} {one if value == 1 else unit}"
        case _:
            return si(value, unit)


def render(chips: Sequence[Hardware], view: View, form: str, width: int = 80) -> str:
    """Print chips in a format: `text`, `markdown` or `latex`."""
    match form:
        case "markdown":
            return report_markdown.tables("Hardware", _blocks(chips, view))
        case "latex":
            return report_latex.tables("Hardware, made by shardlang.", _blocks(chips, view))
        case _:
            lines = _text(chips, view, max(width, 40))
            return "\n".join(line.rstrip() for line in lines) + "\n"


def described(chip: Hardware) -> dict[str, Any]:
    """Give a chip as JSON has it: every figure in its plain unit."""
    return {
        "name": chip.name,
        "title": chip.title,
        "variants": list(chip.variants),
        "topology": None if chip.topology is None else chip.topology.kind,
        "figures": {key: _figure(figure) for key, _, figure in chip.all()},
        "derived": {
            name: {"value": value, "unit": RATIOS[name].unit}
            for name, value in ratios(chip).items()
        },
        "sources": dict(chip.sources),
    }


def _figure(figure: Figure) -> dict[str, Any]:
    data: dict[str, Any] = {"value": figure.value, "unit": figure.unit, "source": figure.source}
    if figure.unit == "yes/no":
        data["value"] = bool(figure.value)
    if figure.date:
        data["date"] = figure.date
    if figure.shape:
        data["shape"] = list(figure.shape)
    return data


# --- text ---


def _text(chips: Sequence[Hardware], view: View, width: int) -> Iterator[str]:
    match view:
        case "list":
            head = ("", *_LISTED, "interconnect")
            rows = [head, _LIST_UNITS, *map(_listed, chips)]
            yield from table(rows, width, range(1, len(_LISTED) + 1))
            for note in (_MEANINGS, _variants(chips), _MORE):
                yield ""
                yield from wrap(note, width)
        case "one":
            for chip in chips:
                yield from _one(chip, width)
        case "compared":
            yield from _compared(chips, width)


def _listed(chip: Hardware) -> tuple[str, ...]:
    values = ((chip.get(figure), unit) for figure, unit in _LISTED.items())
    cells = ("-" if value is None else f"{value / unit:g}" for value, unit in values)
    return (chip.name, *cells, _joined(chip))


def _variants(chips: Sequence[Hardware]) -> str:
    others = [name for chip in chips for name in chip.variants]
    return (
        "TPUs have the book's figures, GPUs their data sheets'. Variants with other figures:"
        f" {', '.join(name for name in others if not _same(name, chips))}."
    )


def _same(name: str, chips: Sequence[Hardware]) -> bool:
    """Say whether a variant's name is another name of its chip."""
    return any(name in chip.variants and chip.basis == name for chip in chips)


def _joined(chip: Hardware) -> str:
    topology = chip.topology
    if topology is None:
        return "-"
    match topology.kind:
        case "torus":
            return f"{topology.axes}D torus"
        case "switch":
            return "switch" if topology.node is None else f"switch, {topology.node} chips"
        case "full":
            return "all pairs" if topology.node is None else f"all pairs, {topology.node} chips"


def _one(chip: Hardware, width: int) -> Iterator[str]:
    yield from wrap(f"{chip.title} ({chip.name})", width)
    if chip.topology is not None:
        yield from wrap(chip.topology.rule(), width)
    if chip.variants:
        yield from wrap(f"variants: {', '.join(chip.variants)}", width)
    rows = [
        (key, amount(figure.value, figure.unit, figure.shape), _meaning(meaning, figure), figure)
        for key, meaning, figure in chip.all()
    ]
    names = max(len(key) for key, *_ in rows)
    values = max(len(value) for _, value, *_ in rows)
    margin = f"{_INDENT}{'':<{names}}  {'':<{values}}  "
    room = max(width - len(margin), _NARROWEST)
    yield ""
    for key, value, meaning, figure in rows:
        said = wrap(meaning, room)
        yield f"{_INDENT}{key:<{names}}  {value:>{values}}  {said[0]}"
        source = f"source: {_source(figure)}"
        for line in (*said[1:], *wrap(source, room)):
            yield margin + line
    derived = list(_derived(chip))
    if derived:
        yield ""
        yield "derived"
        yield from table(derived, width, (1,), _INDENT)
    if chip.sources:
        yield ""
        yield "sources"
        for name, full in chip.sources.items():
            yield from _hanging(f"{_INDENT}{name}: {full}", width)


def _derived(chip: Hardware) -> Iterator[tuple[str, str, str]]:
    for name, value in ratios(chip).items():
        ratio: Ratio = RATIOS[name]
        yield name, amount(value, ratio.unit), ratio.meaning


def _meaning(meaning: str, figure: Figure) -> str:
    """Say what a figure is, and how much it is in GiB or in chips."""
    if figure.shape:
        return f"{meaning}: {figure.value:.0f}"
    if figure.unit == "B" and figure.value % 2**30 == 0:
        return f"{meaning} ({figure.value / 2**30:g} GiB)"
    return meaning


def _source(figure: Figure) -> str:
    return f"{figure.source} ({figure.date})" if figure.date else figure.source


def _hanging(text: str, width: int) -> Iterator[str]:
    first, *rest = wrap(text.strip(), width - 2 * len(_INDENT))
    yield _INDENT + first
    for line in rest:
        yield 2 * _INDENT + line


def _compared(chips: Sequence[Hardware], width: int) -> Iterator[str]:
    """Lay chips out side by side, as many as fit."""
    columns = [_column(chip) for chip in chips]
    keys = [*_keys(), *RATIOS]
    first = max(len(key) for key in keys if any(key in column for column in columns))
    start = 0
    while start < len(chips):
        room, end = width - first, start
        while end < len(chips):
            room -= 2 + max(map(len, (chips[end].name, *columns[end].values())))
            if room < 0 and end > start:
                break
            end += 1
        if start:
            yield ""
        shown = columns[start:end]
        names = [chip.name for chip in chips[start:end]]
        own = [key for key in keys if any(key in column for column in shown)]
        rows = [("", *names), *((key, *(x.get(key, "-") for x in shown)) for key in own)]
        lines = table(rows, width, range(1, end - start + 1))
        for key, line in zip(["", *own], lines, strict=False):
            if key == next((key for key in own if key in RATIOS), None):
                yield ""
            yield line
        start = end


def _keys() -> Iterator[str]:
    yield "interconnect"
    yield from (f"flops.{dtype}" for dtype in DTYPES)
    yield from FIGURES


def _column(chip: Hardware) -> Mapping[str, str]:
    figures = {
        key: amount(figure.value, figure.unit, figure.shape) for key, _, figure in chip.all()
    }
    derived = {name: value for name, value, _ in _derived(chip)}
    return {"interconnect": _joined(chip), **figures, **derived}


# --- tables for Markdown and LaTeX ---


def _blocks(chips: Sequence[Hardware], view: View) -> Iterator[Block]:
    match view:
        case "list":
            heads = [
                f"{name} ({unit})" if unit else name
                for name, unit in zip(("chip", *_LISTED, "interconnect"), _LIST_UNITS, strict=True)
            ]
            yield Block(
                "Chips",
                tuple(heads),
                tuple(map(_listed, chips)),
                numbers=tuple(heads[1:-1]),
                notes=(_MEANINGS, _variants(chips)),
            )
        case "one":
            for chip in chips:
                yield from _blocks_of(chip)
        case "compared":
            columns = [_column(chip) for chip in chips]
            names = tuple(chip.name for chip in chips)
            for title, keys in (("Figures", tuple(_keys())), ("Derived", tuple(RATIOS))):
                yield Block(
                    title,
                    ("figure", *names),
                    tuple(
                        (key, *(column.get(key, "-") for column in columns))
                        for key in keys
                        if any(key in column for column in columns)
                    ),
                    numbers=names,
                )


def _blocks_of(chip: Hardware) -> Iterator[Block]:
    topology = chip.topology
    yield Block(
        f"{chip.title} ({chip.name})",
        ("figure", "value", "meaning", "source", "date"),
        tuple(
            (
                key,
                amount(figure.value, figure.unit, figure.shape),
                _meaning(meaning, figure),
                figure.source,
                figure.date,
            )
            for key, meaning, figure in chip.all()
        ),
        numbers=("value",),
        wide=("meaning", "source"),
        notes=(
            *(() if topology is None else (topology.rule(),)),
            *(f"{name}: {full}" for name, full in chip.sources.items()),
        ),
    )
    yield Block(
        "Derived", ("number", "value", "meaning"), tuple(_derived(chip)), numbers=("value",)
    )
