"""Reports side by side: a row a program, the book's table of what a layer costs under each scheme.

Formulas are of one device, forward and backward apart, so that a reader sees what divides the work and
what divides the communication. Where everything is known the numbers follow in a table of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from shardlang.backends.report_html import tables as html
from shardlang.backends.report_latex import tables as latex
from shardlang.backends.report_markdown import tables as markdown
from shardlang.backends.report_tables import Block, Cell
from shardlang.backends.report_text import broken, table, wrap
from shardlang.backends.units import amount, count
from shardlang.cost.formula import Formula
from shardlang.cost.quantities import Quantity
from shardlang.cost.report import Report

STATE = ("parameters", "gradients", "optimizer")
"""The parts of memory that are there whatever the batch is."""

NUMBERS = {
    "t_math": "T_math",
    "t_comms": "T_comms",
    "t_overlapped": "T_overlapped",
    "t_serial": "T_serial",
}
"""The totals of both passes that are shown as numbers, with their columns."""


@dataclass(frozen=True)
class Comparison:
    """Cost reports by the names that they are shown under, in order."""

    reports: Mapping[str, Report]

    def blocks(self) -> Iterator[Block]:
        """Give the tables."""
        both = any(report.plan.backward for report in self.reports.values())
        passes = ("forward", "backward") if both else ("forward",)
        yield self._block(
            "FLOPs and bytes of a device",
            {
                f"{words}, {name}": lambda report, key=key, name=name: (
                    report.totals[name].quantity(key).formula
                )
                for key, words in (("flops", "FLOPs"), ("bytes", "bytes"))
                for name in passes
            },
        )
        yield self._block(
            "Compute-bound when",
            {name: lambda report, name=name: report.totals[name].condition for name in passes},
        )
        yield self._block(
            "Memory of a device, in bytes",
            {
                "weights, gradients, optimizer" if both else "weights": _state,
                "activations": lambda report: report.memory.quantity("activations").formula,
                "gathered": lambda report: report.memory.quantity("gathered_peak").formula,
            },
        )
        if any(self._known(report) for report in self.reports.values()):
            title = "In numbers, forward and backward" if both else "In numbers"
            yield self._numbers(title)

    def _block(self, title: str, columns: Mapping[str, Callable[[Report], Cell]]) -> Block:
        rows = tuple(
            (name, *(of(report) for of in columns.values()))
            for name, report in self.reports.items()
        )
        return Block(title, ("program", *columns), rows, tuple(columns))

    def _numbers(self, title: str) -> Block:
        rows: list[tuple[Cell, ...]] = []
        for name, report in self.reports.items():
            totals = [
                amount(report.total.quantity(key), "s") or _zero(report, key) for key in NUMBERS
            ]
            devices = _devices(report)
            memory = amount(report.memory.quantity("total"), "B")
            rows.append((name, "" if devices is None else count(devices), *totals, memory))
        columns = ("devices", *NUMBERS.values(), "memory")
        return Block(
            title, ("program", *columns), tuple(rows), numbers=columns, notes=tuple(self._notes())
        )

    def _notes(self) -> Iterator[str]:
        """Name the fastest program of those with equal devices, and those that need too much memory."""
        known = {
            name: value
            for name, report in self.reports.items()
            if (value := _step(report).value) is not None
        }
        devices = {_devices(self.reports[name]) for name in known}
        if len(known) > 1 and len(devices) == 1:
            least = min(known.values())
            best = [name for name, value in known.items() if value == least]
            yield f"least T_overlapped: {', '.join(best)}"
        for name, report in self.reports.items():
            if report.pipeline is not None and (step := amount(_step(report), "s")):
                yield f"{name} is a pipeline: T_overlapped with its bubble is {step}"
            size = None if report.hardware is None else report.hardware.get("hbm")
            needed = report.needed[1].value
            if size is not None and needed is not None and needed > size:
                yield f"{name} needs more than a device's {size / 1e9:g} GB"

    def _known(self, report: Report) -> bool:
        return report.total.quantity("flops").value is not None

    def to_dict(self) -> dict[str, Any]:
        """Give all reports, each as the JSON object of `cost`, by name."""
        return {
            "schema": 1,
            "programs": {n: report.to_dict() for n, report in self.reports.items()},
        }

    def to_text(self, width: int = 80) -> str:
        """Print the tables in `width` columns."""
        lines: list[str] = []
        for block in self.blocks():
            lines += ["", block.title] if lines else [block.title]
            right = [i for i, column in enumerate(block.columns) if column in block.numbers]
            rows = [["", *block.columns[1:]], *block.rows]
            if broken(rows, width, "  "):
                lines += _one_by_one(block, width)
            else:
                lines += table(rows, width, right, "  ")
            lines += [f"  {part}" for note in block.notes for part in wrap(note, width - 2)]
        return "\n".join(lines) + "\n"

    def to_markdown(self) -> str:
        """Print the tables as Markdown."""
        return markdown("Comparison", self.blocks())

    def to_latex(self) -> str:
        """Print the tables as LaTeX."""
        return latex("Costs of plans side by side, made by shardlang.", self.blocks())

    def to_html(self) -> str:
        """Print the tables as a piece of HTML."""
        return html(self.blocks())

    def _repr_html_(self) -> str:
        return self.to_html()

    def __str__(self) -> str:
        """Print the tables as text."""
        return self.to_text().rstrip("\n")


def _step(report: Report) -> Quantity:
    """Give T_overlapped of a step, with the bubble where there is one."""
    pipeline = report.pipeline
    return (
        report.total.quantity("t_overlapped")
        if pipeline is None
        else pipeline.times["t_overlapped"]
    )


def _one_by_one(block: Block, width: int) -> Iterator[str]:
    """Print the rows of a table whose formulas do not fit beside each other one below the other."""
    for name, *cells in block.rows:
        yield f"  {name}"
        rows = [list(pair) for pair in zip(block.columns[1:], cells, strict=True)]
        yield from table(rows, width, (), "    ")


def _state(report: Report) -> Formula:
    return Formula.sum(report.memory.quantity(key).formula for key in STATE)


def _devices(report: Report) -> int | None:
    """Give the number of devices of a mesh, None where a size is open."""
    sizes = list(report.mesh.values())
    return None if None in sizes else prod(int(size) for size in sizes if size is not None)


def _zero(report: Report, key: str) -> str:
    """Print a total that is plainly zero, which `amount` leaves out."""
    return "0" if not report.total.quantity(key).formula else ""
