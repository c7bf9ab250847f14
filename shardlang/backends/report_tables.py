"""A report as titled tables of strings: what Markdown, HTML and LaTeX have in common."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from shardlang.backends.units import amount, count, UNITS
from shardlang.cost.bound import Condition
from shardlang.cost.formula import Formula
from shardlang.cost.quantities import Quantity
from shardlang.cost.report import MEMORY, PASSES, Report, TOTALS
from shardlang.ir.plan import Step
from shardlang.ir.types import Array

LABELS = {
    "t_math": "T_math",
    "t_comms": "T_comms",
    "t_overlapped": "T_overlapped",
    "t_serial": "T_serial",
    "flops": "FLOPs",
    "gathered_peak": "gathered",
}

Cell = str | Formula | Array | Condition
"""A cell keeps its formula, array or condition, for those who print them otherwise."""


@dataclass(frozen=True)
class Block:
    """A titled table: `code` columns hold formulas and notation, `numbers` are flush right.

    `wide` columns hold sentences, which may be broken into lines.

    `cells` are the rows with formulas and arrays as objects; `rows` the same as text.
    """

    title: str
    columns: tuple[str, ...] = ()
    cells: tuple[tuple[Cell, ...], ...] = ()
    code: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())
    wide: tuple[str, ...] = field(default=())

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
                f"{cost.op} over {', '.join(cost.axes)}{_times(cost.step)}",
                cost.step.inputs[0],
                cost.step.output,
                cost.bytes.formula,
                amount(cost.bytes, "B"),
                cost.time.formula,
                amount(cost.time, "s"),
                "yes" if cost.step.critical else "no",
                cost.step.reason,
            )
            for cost in report.collectives
        ),
        ("from", "to", "bytes", "seconds"),
        ("B", "s"),
        () if report.collectives else ("none",),
    )
    yield Block(
        "Compute",
        ("pass", "step", "FLOPs", "FLOP"),
        tuple(
            (cost.pass_, cost.einsum, cost.flops.formula, amount(cost.flops, "FLOP"))
            for cost in report.compute
        ),
        ("step", "FLOPs"),
        ("FLOP",),
    )
    for name in PASSES if report.plan.backward else PASSES[:1]:
        totals = report.totals[name]
        rows = [_row(key, totals.quantity(key), UNITS.get(key, "s")) for key in TOTALS]
        if totals.quantity("elementwise").formula:
            rows.insert(1, _row("elementwise", totals.quantity("elementwise"), "FLOP"))
        holds = {True: "holds", False: "does not hold", None: ""}[totals.condition.holds]
        condition: tuple[Cell, ...] = ("compute-bound", totals.condition, holds)
        title = {"forward": "Forward", "backward": "Backward", "total": "Both passes"}[name]
        yield Block(
            title, ("quantity", "formula", "value"), (*rows, condition), ("formula",), ("value",)
        )
    yield Block(
        "Memory of one device",
        ("quantity", "formula", "value"),
        tuple(_row(key, report.memory.quantity(key), "B") for key in MEMORY),
        ("formula",),
        ("value",),
    )
    if report.plan.alternatives:
        yield Block(
            "Alternatives",
            ("at", "instead", "cheaper when"),
            tuple((a.at, a.instead, a.cheaper_when) for a in report.plan.alternatives),
            ("at", "instead", "cheaper when"),
        )
    if report.warnings:
        yield Block("Warnings", notes=report.warnings)


def _times(step: Step) -> str:
    return "" if step.loop is None else f", in each of {step.loop.dim} layers"


def _row(key: str, quantity: Quantity, unit: str) -> tuple[Cell, ...]:
    return (LABELS.get(key, key), quantity.formula, amount(quantity, unit))


def _setting(report: Report) -> Block:
    rows: list[tuple[Cell, ...]] = [
        ("strategy", report.plan.strategy),
        ("model", report.model + (", axes overlap" if report.overlap else "")),
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
