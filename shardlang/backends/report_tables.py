"""A report as titled tables of strings: what Markdown, HTML and LaTeX have in common."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction

from shardlang.backends.units import amount, count, fit, UNITS
from shardlang.cost.bound import Condition
from shardlang.cost.formula import Formula
from shardlang.cost.pipeline import PipelineCost
from shardlang.cost.quantities import CollectiveCost, Quantity
from shardlang.cost.report import EXPOSED, HBM, MEMORY, Report, TOTALS
from shardlang.ir.types import Array

LABELS = {
    "t_math": "T_math",
    "t_comms": "T_comms",
    "t_exposed": "T_exposed",
    "t_overlapped": "T_overlapped",
    "t_serial": "T_serial",
    "flops": "FLOPs",
    "t_load": "T_load",
    "t_hbm": "T_hbm",
    "hbm_bytes": "HBM bytes",
    "fused_bytes": "HBM bytes, fused",
    "gathered_peak": "gathered",
    "peak": "at once",
}


BEHIND = {"t_overlapped": "the larger of these two", "t_serial": "the sum of these two"}
"""What times of a pipeline's step are, where an update is behind both passes."""


class Notation(str):
    """A line of the notation."""

    __slots__ = ()


Cell = str | Formula | Array | Condition
"""A cell keeps its formula, array, condition or line, for those who print them otherwise."""


@dataclass(frozen=True)
class Block:
    """A titled table: `code` columns hold formulas and notation, `numbers` are flush right.

    `wide` columns hold sentences, which may be broken into lines; a narrow page leaves out the `more` ones.

    `cells` are the rows with formulas and arrays as objects; `rows` the same as text.
    """

    title: str
    columns: tuple[str, ...] = ()
    cells: tuple[tuple[Cell, ...], ...] = ()
    code: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())
    wide: tuple[str, ...] = field(default=())
    more: tuple[str, ...] = field(default=())

    @property
    def rows(self) -> list[list[str]]:
        """The rows as text."""
        return [[str(cell) for cell in row] for row in self.cells]


def blocks(report: Report) -> Iterator[Block]:
    """Give a report's tables, in the order in which they are shown."""
    yield _setting(report)
    yield Block(
        "Collectives",
        ("pass", "collective", "from", "to", "bytes", "B", "seconds", "s", "critical", "reason"),
        tuple(
            (
                cost.pass_,
                Notation(cost.move) if not cost.repeats else f"{cost.move}{_times(cost)}",
                cost.step.moving.inputs[0],
                cost.step.moving.output,
                cost.bytes.formula,
                amount(cost.bytes, "B"),
                cost.time.formula,
                amount(cost.time, "s"),
                "yes" if cost.step.critical else "no",
                cost.step.reason,
            )
            for cost in report.collectives
        ),
        ("collective", "from", "to", "bytes", "seconds"),
        ("B", "s"),
        () if report.collectives else ("none",),
        ("from", "to"),
        ("seconds", "reason"),
    )
    yield _compute(report)
    extra = EXPOSED if report.plan.overlaps else ()
    keys = (*TOTALS, *extra, *HBM) if report.hbm else (*TOTALS, *extra)
    for name in report.passes:
        totals = report.totals[name]
        rows = [_row(key, totals.quantity(key), UNITS.get(key, "s")) for key in keys]
        if totals.quantity("elementwise").formula:
            rows.insert(1, _row("elementwise", totals.quantity("elementwise"), "FLOP"))
        holds = {True: "holds", False: "does not hold", None: ""}[totals.condition.holds]
        condition: tuple[Cell, ...] = ("compute-bound", totals.condition, holds)
        both = "All of a step" if report.plan.update else "Both passes"
        title = both if name == "total" else name.capitalize()
        yield Block(
            title,
            ("quantity", "formula", "value"),
            (*rows, condition),
            ("formula",),
            ("value",),
            wide=("formula",),
        )
    if report.pipeline is not None:
        yield Block(
            "Pipeline",
            ("quantity", "formula", "value"),
            tuple(pipeline_rows(report.pipeline)),
            ("formula",),
            ("value",),
            (f"{staged(report.pipeline)}; F = B = W.",),
            wide=("formula",),
        )
    yield Block(
        "Memory of one device",
        ("quantity", "formula", "value"),
        tuple(
            _memory_row(key, report.memory.quantity(key))
            for key in MEMORY
            if key != "caches" or report.memory.quantity(key).formula
        ),
        ("formula",),
        ("value",),
        tuple(_memory_notes(report)),
        wide=("formula",),
    )
    if report.plan.alternatives:
        yield Block(
            "Alternatives",
            ("at", "instead", "cheaper when"),
            tuple((a.at, a.instead, a.cheaper_when) for a in report.plan.alternatives),
            ("at", "instead", "cheaper when"),
            wide=("at", "instead", "cheaper when"),
        )
    if report.warnings:
        yield Block("Warnings", notes=report.warnings)


def staged(found: PipelineCost) -> str:
    """Say which schedule runs on which stages."""
    axes = "".join(axis.name for axis in found.pipeline.axes)
    chunks = f", {found.pipeline.chunks} chunks each" if found.pipeline.chunks > 1 else ""
    stages, microbatches = (
        str(q.formula) if q.number is None else f"{q.number}"
        for q in (found.stages, found.microbatches)
    )
    return (
        f"{found.schedule.name} on {stages} stages of {axes}{chunks}, {microbatches} microbatches"
    )


def pipeline_rows(found: PipelineCost) -> Iterator[tuple[str, str, str]]:
    """Give the figures of a pipeline: what, its formula or what it is, and its value."""
    share = found.share.value
    yield "bubble", str(found.share), "" if share is None else f"{float(100 * share):.1f}%"
    held = found.held.value
    text = f"{found.held} microbatches, the first stage's activations"
    yield "in flight", text, "" if held is None else f"{float(held):.4g}"
    for key, quantity in found.times.items():
        text = f"{LABELS[key]}/(1 - bubble)"
        if found.updates:
            text = BEHIND.get(key, "of both passes/(1 - bubble), and of the update")
        yield LABELS[key], text, amount(quantity, "s")
    yield from _beside(found)


def _beside(found: PipelineCost) -> Iterator[tuple[str, str, str]]:
    """Give what a pipeline's totals leave out, and whose lines outside of the layers are."""
    axes = "".join(axis.name for axis in found.pipeline.axes)
    if found.sums:
        sent, time = (
            Quantity(Formula.sum(q.formula for q in each), _sum(q.value for q in each))
            for each in ([c.bytes for c in found.sums], [c.time for c in found.sums])
        )
        names = ", ".join(cost.tensor for cost in found.sums)
        text = (
            f"{sent} bytes: AllReduce_{axes} of {names} once a step, behind the ticks, in no total"
        )
        yield "at the end", text, amount(sent, "B")
        yield "", f"{time} seconds", amount(time, "s")
    if found.idle is not None:
        text = f"{found.idle} bytes: Permutes of an emitted module that carry nothing, in no total"
        yield "idle ticks", text, amount(found.idle, "B")
    sides = [
        *(["every stage computes the lines before the layers"] if found.before else []),
        *(["the last stage alone those behind them"] if found.before and found.behind else []),
        *(["the last stage alone computes the lines behind the layers"] if found.behind else []),
    ]
    if sides:
        yield "counted", f"{' and '.join(sides[:2])}: all of them are in the totals", ""


def _sum(values: Iterator[Fraction | None]) -> Fraction | None:
    known = list(values)
    return None if None in known else sum((x for x in known if x is not None), Fraction(0))


def _times(cost: CollectiveCost) -> str:
    loop = cost.step.loop
    layers = None if loop is None else loop.dim
    own = "layers" if loop is None or loop.pipeline is None else "layers, those of a stage"
    kinds = (own if dim == layers else "microbatches" for dim in cost.repeats)
    counted = (f"{dim} {kind}" for dim, kind in zip(cost.repeats, kinds, strict=True))
    return f", in each of {' and '.join(counted)}" if cost.repeats else ""


def _compute(report: Report) -> Block:
    """Give the steps that compute; where HBM counts, with what bounds the contractions."""
    columns: tuple[str, ...] = ("pass", "step", "FLOPs", "FLOP")
    rows: list[tuple[Cell, ...]] = [
        (cost.pass_, Notation(cost.einsum), cost.flops.formula, amount(cost.flops, "FLOP"))
        for cost in report.compute
    ]
    if report.hbm:
        columns += ("FLOP/B", "s", "bound by")
        words = {None: "", True: "memory", False: "compute"}
        rows = [
            (
                *row,
                "" if cost.intensity_value is None else f"{cost.intensity_value:.4g}",
                amount(cost.time, "s"),
                words[cost.memory_bound],
            )
            for row, cost in zip(rows, report.compute, strict=True)
        ]
    numbers = ("FLOP", "FLOP/B", "s")
    return Block("Compute", columns, tuple(rows), ("step", "FLOPs"), numbers, wide=("step",))


def layers_note(report: Report) -> str:
    """Say which formulas of memory do not hold for any number of layers; nothing where all do."""
    if not report.plan.program.blocks:
        return ""
    exact = report.exactness
    limits = exact.counts
    alone = [LABELS.get(key, key) for key in limits if key in report.alone]
    by_count: dict[tuple[int, bool], list[str]] = {}
    for key, least in limits.items():
        if key not in report.alone:
            by_count.setdefault((least, key in exact.low), []).append(LABELS.get(key, key))
    said = [f"{_listed(alone)}: of this number of layers alone"] if alone else []
    said += [
        f"{_listed(names)}: exact from {least} layers on"
        + (", no bound for fewer" if low else ", for fewer an upper bound")
        for (least, low), names in sorted(by_count.items())
    ]
    return "; ".join(said)


def _listed(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _memory_notes(report: Report) -> Iterator[str]:
    if said := layers_note(report):
        yield f"{said[0].upper()}{said[1:]}."
    if report.share is not None:
        yield f"{'Fits' if report.share <= 1 else 'Does not fit'}: {fit(report)}."


LONGEST = 600
"""So many characters of a formula are printed in a table."""


def _memory_row(key: str, quantity: Quantity) -> tuple[Cell, ...]:
    """Give a part of the memory; a maximum over very many moments is said in words."""
    label, formula, value = _row(key, quantity, "B")
    long = len(str(formula)) > LONGEST
    return (label, "a long maximum: JSON has it" if long else formula, value)


def _row(key: str, quantity: Quantity, unit: str) -> tuple[Cell, ...]:
    return (LABELS.get(key, key), quantity.formula, amount(quantity, unit))


def _setting(report: Report) -> Block:
    rows: list[tuple[Cell, ...]] = [
        ("strategy", report.plan.strategy),
        (
            "model",
            report.model
            + (", axes overlap" if report.overlap else "")
            + (", overlap" if report.plan.overlaps else ""),
        ),
        ("mesh", ", ".join(_size(*item) for item in report.mesh.items())),
        ("dims", ", ".join(_size(*item) for item in report.dims.items())),
        ("hardware", "none" if report.hardware is None else report.hardware.name),
    ]
    if report.slice:
        rows.append(("slice", report.slice))
    bound = "T_overlapped is a lower bound" if report.is_bound else "T_overlapped is an estimate"
    notes = [
        f"Every figure is of one device. Times are at {report.rates}: {bound}.",
        f"No time is counted for {', '.join(report.left_out)}.",
        *(f"{note[0].upper()}{note[1:]}." for note in report.notes),
    ]
    return Block("Setting", ("what", "value"), tuple(rows), ("value",), notes=tuple(notes))


def _size(name: str, size: float | None) -> str:
    return name if size is None else f"{name}={count(size)}"
