"""Training runs and FLOP conventions for people: text, and tables for Markdown, LaTeX and HTML."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from shardlang.backends import report_latex, report_markdown
from shardlang.backends.report_tables import Block, Cell
from shardlang.backends.report_text import table, wrap
from shardlang.backends.units import amount, count, si
from shardlang.cost.conventions import Counts
from shardlang.cost.formula import Formula
from shardlang.cost.quantities import Quantity
from shardlang.cost.report import Report
from shardlang.cost.run import DAY, HFU, HOUR, MFU, Ratio, Run, TIMES
from shardlang.ir.size import Monomial

STEP = "T_step"
"""What formulas call the time of a step."""

_WORDS = {10**12: "trillion", 10**9: "billion", 10**6: "million"}

LABELS = {MFU: "MFU", HFU: "HFU", "hardware-causal": "HFU, causal"}
"""Shares of the peak that have names of their own; others are MFU under their convention."""

_SPARE = "nothing is counted for restarts, evaluation and checkpoints"


@dataclass(frozen=True, slots=True)
class _Row:
    """A figure of a run: its formula in the time of a step, and its value for each step time."""

    label: str
    formula: Cell
    values: tuple[str, ...]


def counts(found: Counts, form: str, width: int = 80) -> str:
    """Print FLOPs by convention in a format: `text`, `markdown` or `latex`."""
    match form:
        case "markdown":
            return report_markdown.sections([_counts(found)])
        case "latex":
            return report_latex.sections([_counts(found)])
        case _:
            return "\n".join(_counts_text(found, max(width, 40))) + "\n"


def run(report: Report, found: Run, form: str, width: int = 80) -> str:
    """Print a training run in a format: `text`, `markdown` or `latex`."""
    match form:
        case "markdown":
            return report_markdown.sections([_run(report, found)])
        case "latex":
            return report_latex.sections([_run(report, found)])
        case _:
            return "\n".join(_run_text(report, found, max(width, 40))) + "\n"


# --- conventions ---


def _counts(found: Counts) -> Block:
    rows: list[tuple[Cell, ...]] = []
    for name, each in found.by_name.items():
        whole, token = each.total, each.token
        rows.append(
            (
                name,
                "" if whole is None else whole.formula,
                "" if whole is None else amount(whole, "FLOP"),
                "" if token is None else amount(token, "FLOP"),
                each.convention.counts,
                each.convention.users,
            )
        )
    return Block(
        "FLOPs of a step by convention",
        ("convention", "all devices", "FLOP", "a token", "what counts", "used by"),
        tuple(rows),
        ("all devices",),
        ("FLOP", "a token"),
        notes=tuple(f"{note[0].upper()}{note[1:]}." for note in _about(found)),
        wide=("what counts", "used by"),
    )


def _about(found: Counts) -> Iterator[str]:
    """Say what the conventions differ in here."""
    if found.halved:
        yield f"attention, half under a causal mask: {', '.join(found.halved)}"
    words = [f"{_plain(found.parameters)} parameters"]
    if found.read.formula != found.parameters.formula:
        words.append(f"{_plain(found.read)} that contractions read")
    yield ", ".join(words)
    if found.tokens is None:
        yield "no batch: no input has a dim that no weight has"
    else:
        yield f"{_plain(found.tokens)} tokens a step"


def _plain(quantity: Quantity) -> str:
    number = quantity.number
    return str(quantity) if number is None else _large(float(number))


def _large(value: float) -> str:
    """Print a large number in words: `15 trillion`."""
    for size, word in _WORDS.items():
        if value >= size:
            return f"{value / size:.4g} {word}"
    return f"{value:_.0f}" if value >= 1000 else f"{value:.4g}"


def _counts_text(found: Counts, width: int) -> Iterator[str]:
    yield "FLOPs of a step by convention, all devices"
    rows = [["", "", "", "a token"]]
    for name, each in found.by_name.items():
        whole, token = each.total, each.token
        open_ = whole is not None and whole.value is None
        rows.append(
            [
                name,
                str(whole) if open_ or width >= 120 else "",
                "" if whole is None else amount(whole, "FLOP"),
                "" if token is None else amount(token, "FLOP") or ("" if open_ else str(token)),
            ]
        )
    if not any(row[3] for row in rows[1:]):
        del rows[0]
    yield from table(rows, width, (2, 3), "  ")
    for name, each in found.by_name.items():
        text = f"{name}: {each.convention.counts} ({each.convention.users})"
        yield from _item(text, width)
    for note in _about(found):
        yield from _item(note, width)


def _item(text: str, width: int) -> Iterator[str]:
    for number, line in enumerate(wrap(text, width - 4)):
        yield f"  {'- ' if number == 0 else '  '}{line}"


# --- runs ---


def _rows(report: Report, found: Run) -> Iterator[_Row]:
    """Give the figures of a run, those that are known or have a formula."""
    paces = list(found.paces.values())
    time = Monomial.of(STEP)
    peak = Monomial.of(report.symbols.figures["C"])
    (devices,) = found.devices.formula.terms
    yield _Row("step", "", tuple(amount(pace.seconds, "s") for pace in paces))
    if found.step_tokens is not None:
        tokens = found.step_tokens.formula / time
        each = [pace.tokens_per_second for pace in paces]
        own = [pace.tokens_per_second_device for pace in paces]
        yield _Row("tokens/s", tokens, tuple(map(_rate, each)))
        yield _Row("tokens/s, a device", tokens / devices, tuple(map(_rate, own)))
    for name in _shown(found):
        device = found.counts[name].device
        if device is not None:
            label = LABELS.get(name, f"MFU, {name}")
            shares = tuple(_share(pace.utilization[name]) for pace in paces)
            yield _Row(label, device.formula / (peak * time), shares)
    if found.steps is not None:
        run = Formula.of(time) * found.steps.formula.terms[0]
        hours = run * (devices / HOUR)
        yield _Row("days", run / Monomial(Fraction(DAY)), tuple(_days(pace.days) for pace in paces))
        spent = tuple(_whole(pace.device_hours) for pace in paces)
        yield _Row("device-hours", hours, spent)
        if found.price is not None:
            paid = tuple(_whole(pace.usd) for pace in paces)
            yield _Row("USD", hours * Monomial(found.price), paid)
    if "measured" in found.paces:
        for label, key in (("T_overlapped", "over_overlapped"), ("T_serial", "over_serial")):
            ratios = [
                p.over_overlapped if key == "over_overlapped" else p.over_serial for p in paces
            ]
            shown = ("" if r.number is None else f"{float(r.number):.3g}" for r in ratios)
            yield _Row(f"step / {label}", f"{STEP}/{label}", tuple(shown))


def _shown(found: Run) -> list[str]:
    """Name the conventions that a run tells its utilization by: those that differ, and what was asked."""
    names: list[str] = []
    seen: set[Formula] = set()
    for name in (MFU, "model-causal", HFU, "parameters-all", "parameters", "hardware-causal"):
        total = found.counts[name].total
        if total is not None and (total.formula not in seen or name in (HFU, found.convention)):
            names.append(name)
            seen.add(total.formula)
    return names


def _rate(ratio: Ratio | None) -> str:
    return "" if ratio is None or ratio.number is None else si(float(ratio.number), "").rstrip()


def _whole(quantity: Quantity | None) -> str:
    if quantity is None or quantity.number is None:
        return ""
    return si(float(quantity.number), "").rstrip()


def _days(quantity: Quantity | None) -> str:
    return "" if quantity is None or quantity.number is None else f"{quantity.number:.4g}"


def _share(ratio: Ratio) -> str:
    return "" if ratio.number is None else f"{100 * float(ratio.number):.1f} %"


def _head(found: Run) -> list[str]:
    """Name the step times."""
    names = dict(TIMES)
    if found.mfu is not None:
        names["mfu"] = f"at {_convention(found)} {float(found.mfu):.4g}"
    return [names[name] for name in found.paces]


def _convention(found: Run) -> str:
    return LABELS.get(found.convention, found.convention)


def _facts(report: Report, found: Run) -> Iterator[tuple[str, str]]:
    """Give what a run is of, with labels."""
    number = found.devices.number
    shown = str(found.devices) if number is None else count(number)
    chip = "" if report.hardware is None else f" of {report.hardware.name}"
    yield "devices", f"{shown}{chip}"
    if found.step_tokens is not None:
        tokens = found.step_tokens
        text = f"{_plain(tokens)} a step"
        if tokens.number is not None:
            text += f" ({tokens})"
        if found.tokens is not None and found.steps is not None:
            text = f"{_large(float(found.tokens))}, {text}: {_plain(found.steps)} steps"
        yield "tokens", text
    if found.steps is not None:
        if found.price is None:
            yield "price", "not known: --price 4.2 gives dollars"
        else:
            where = "" if found.priced == "given" else f" ({found.priced})"
            yield "price", f"{float(found.price):g} USD for a device and an hour{where}"
    elif found.priced == "given":
        yield "price", "with --tokens it gives dollars"
    for name in found.paces:
        if name == "mfu" and found.paces[name].seconds.value is None:
            yield STEP, f"{found.paces[name].seconds} {_head(found)[list(found.paces).index(name)]}"


def _notes(found: Run) -> Iterator[str]:
    kinds = [name for name in ("model-causal",) if name in _shown(found)]
    yield (
        "MFU counts each contraction once and attention in full"
        + (", model-causal attention half" if kinds else "")
        + "; HFU what the devices run; both over the peak C"
    )
    if found.bubble:
        yield "T_overlapped, T_serial and T_scheduled have the bubble of the pipeline"
    if found.steps is not None:
        yield _SPARE
    seconds = {name: pace.seconds.value for name, pace in found.paces.items()}
    least, measured = seconds.get("overlapped"), seconds.get("measured")
    if least is not None and measured is not None and measured < least:
        yield (
            "measured in less than T_overlapped: the program, a size, the dtype, the chip or the time is not"
            " what was measured"
        )


def _run(report: Report, found: Run) -> Block:
    head = _head(found)
    rows = [(row.label, row.formula, *row.values) for row in _rows(report, found)]
    return Block(
        "Training run",
        ("quantity", "formula", *head),
        tuple(rows),
        ("formula",),
        tuple(head),
        notes=(
            *(f"{label[0].upper()}{label[1:]}: {text}." for label, text in _facts(report, found)),
            *(f"{note[0].upper()}{note[1:]}." for note in _notes(found)),
        ),
    )


def _run_text(report: Report, found: Run, width: int) -> Iterator[str]:
    yield "Training run"
    for label, text in _facts(report, found):
        for number, line in enumerate(wrap(text, width - 11)):
            yield f"  {label if number == 0 else '':<7}  {line}"
    rows = list(_rows(report, found))
    head = _head(found)
    known = all(pace.seconds.value is not None for pace in found.paces.values())
    formulas = not known or width >= 120
    listed = [["", "", *head]] if any(any(row.values) for row in rows) else []
    listed += [
        [row.label, str(row.formula) if formulas else "", *row.values]
        for row in rows
        if any(row.values) or formulas
    ]
    yield from table(_without_empty(listed), width, range(2, len(head) + 2), "  ")
    for note in _notes(found):
        yield from _item(note, width)


def _without_empty(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    """Leave out rows that have a label alone, and the heads of columns that have no value."""
    head, *body = rows
    if head[0]:
        return [list(row) for row in rows if any(row[1:])]
    body = [row for row in body if any(row[1:])]
    heads = [text if any(row[i] for row in body) else "" for i, text in enumerate(head)]
    return [heads, *map(list, body)]
