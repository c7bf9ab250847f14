"""The data of a page: what the programs cost, for every mesh, chip and size that it can be asked for."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from shardlang.backends.explore.formulas import (
    Formulas,
    Names,
    number,
    size_names,
    size_text,
    Variable,
)
from shardlang.backends.explore.machines import Machine, machines
from shardlang.backends.explore.meshes import Grid, Way, ways
from shardlang.backends.report_tables import LABELS
from shardlang.cost.bound import batch_of
from shardlang.cost.formula import Formula
from shardlang.cost.models import Model
from shardlang.cost.report import cost, Overlap, Report
from shardlang.cost.symbols import evaluate_size, literal_size
from shardlang.hardware.catalogue import Hardware
from shardlang.ir.plan import Plan
from shardlang.ir.types import AxisInfo

OPEN_DIM = 8192
"""The size of a dim that is left open, at first."""

OPEN_BATCH = 2**17
"""The product of the batch's dims where all are left open, at first."""

OPEN_LENGTH = 2048
"""The sizes of the batch's dims behind the first, where they are left open, at first."""

UNLIMITED = 1e300
"""A memory that everything fits in: the page itself says what does not."""

Settings = Mapping[str, float | Fraction]


@dataclass(frozen=True)
class Subject:
    """A program of the page: what it is called, its plan, and what is set for it besides sizes."""

    label: str
    plan: Plan
    sets: Settings


def page_data(
    subjects: Sequence[Subject],
    hardware: str | Hardware | None = None,
    model: str | Model = "book",
    overlap: Overlap = None,
    *,
    hbm: bool = False,
) -> dict[str, Any]:
    """Give all that a page needs to compute, as JSON. Raises `ShardlangError` as `cost` does."""
    return _Page(subjects, hardware, model, overlap, hbm=hbm).data()


class _Page:
    """Prices the programs on every machine, and collects formulas and sizes."""

    def __init__(
        self,
        subjects: Sequence[Subject],
        hardware: str | Hardware | None,
        model: str | Model,
        overlap: Overlap,
        *,
        hbm: bool,
    ) -> None:
        self.subjects = subjects
        self.hbm = hbm
        self.model: str | Model = model
        self.overlap: Overlap = overlap
        # asked for as it stands, so that what is wrong with the start is said as `cost` says it
        self.base = [cost(s.plan, hardware, model, overlap, s.sets, hbm=hbm) for s in subjects]
        self.machines = machines([s.plan.program for s in subjects], hardware)
        self.table = Formulas()
        self.grids: dict[tuple[AxisInfo, ...], Grid] = {}
        for report in self.base:
            self._grid(report)
        self.meshes = list(self.grids)
        self.messages: dict[str, int] = {}
        self.layouts: dict[tuple[int, ...], int] = {}

    def _grid(self, report: Report) -> Grid:
        """Give the mesh of a program; programs with the same axes share it."""
        key = _axes(report)
        if key not in self.grids:
            sizes = {name: None if n is None else int(n) for name, n in report.mesh.items()}
            self.grids[key] = Grid.of(report.axes, sizes)
        return self.grids[key]

    def data(self) -> dict[str, Any]:
        """Put it together."""
        programs = [self._program(*pair) for pair in zip(self.subjects, self.base, strict=True)]
        report = self.base[0]
        return {
            "model": report.model,
            "overlap": report.overlap,
            "exact": report.exact,
            "labels": {**LABELS, "bytes": "bytes moved"},
            "sums": list(_sums(report)),
            "open": self._open(),
            "dims": self._dims(),
            "meshes": [
                {
                    "axes": [
                        {"name": i.axis.name, "network": i.network, "wire": i.wire.name}
                        for i in grid.axes
                    ],
                    "first": grid.first,
                    "stops": grid.stops,
                }
                for grid in self.grids.values()
            ],
            "machines": [self._machine(each) for each in self.machines],
            "programs": programs,
            "messages": list(self.messages),
            "layouts": [list(layout) for layout in self.layouts],
            "variables": [list(variable) for variable in self.table.variables],
            "products": self.table.products,
            "atoms": self.table.atoms,
            "formulas": self.table.formulas,
        }

    def _open(self) -> list[str]:
        """List what nothing gives a value: dims, axes, and the hardware."""
        sizes = [
            item for report in self.base for item in (*report.dims.items(), *report.mesh.items())
        ]
        found = dict.fromkeys(name for name, size in sizes if size is None)
        named = any(report.hardware is not None for report in self.base)
        return [*found, *(() if named else ("the hardware",))]

    # --- names and sizes ---

    def _mesh(self, report: Report) -> int:
        return self.meshes.index(_axes(report))

    def _names(self, report: Report) -> dict[str, Variable]:
        """Give what each symbol of a report stands for."""
        symbols, mesh = report.symbols, self._mesh(report)
        axes = {info.axis.name for info in report.axes}
        found: dict[str, Variable] = {}
        for name, symbol in symbols.of.items():
            found[symbol] = ("axis", mesh, name) if name in axes else ("dim", name)
        for figure, symbol in symbols.figures.items():
            found[symbol] = ("figure", figure)
        for info in report.axes:
            found[symbols.links(info.axis)] = ("links", mesh, info.axis.name)
        for symbol in symbols.kinds:
            found.setdefault(symbol, ("figure", symbol))
        return found

    def _derived(self, report: Report) -> dict[str, Any]:
        """Give the dims that follow others, with how."""
        known = {own: report.known.get(symbol) for own, symbol in report.symbols.of.items()}
        sizes = {own: value for own, value in known.items() if value is not None}
        found: dict[str, Any] = {}
        for info in report.plan.program.dims:
            name, expr = info.dim.name, info.declared
            if expr is None or not size_names(expr) or name not in known:
                continue
            if evaluate_size(expr, sizes) == known[name]:  # else --set has another size
                found[name] = expr
        return found

    def _dims(self) -> list[dict[str, Any]]:
        """List the dims that have a size of their own in some program, with it."""
        used = set(self.table.variables)
        found: dict[str, dict[str, Any]] = {}
        for report in self.base:
            follow = self._derived(report)
            batch = _batch(report)
            own = [name for name in report.dims if name not in follow and ("dim", name) in used]
            opened = [name for name in batch if name in own and report.dims[name] is None]
            for name in own:
                size = report.dims[name]
                entry = found.setdefault(name, {"name": name, "batch": False, "open": True})
                entry["batch"] |= name in batch
                if size is not None and entry["open"]:
                    entry.update(size=size, open=False)
                entry.setdefault("size", _open_size(name, opened))
        for name, entry in found.items():
            entry["variable"] = self.table.variables["dim", name]
        return list(found.values())

    # --- machines ---

    def _kind(self, machine: Machine) -> Hashable:
        """Give what the formulas depend on; a model that knows no network asks for the slice alone."""
        return machine.kind if self.base[0].exact else (machine.shape and machine.name)

    @property
    def kinds(self) -> dict[Hashable, Machine]:
        """One machine of each kind."""
        found: dict[Hashable, Machine] = {}
        for machine in self.machines:
            found.setdefault(self._kind(machine), machine)
        return found

    def _machine(self, machine: Machine) -> dict[str, Any]:
        chip = machine.chip
        values: list[list[list[float]]] = []
        warnings: list[list[str]] = []
        for subject, base in zip(self.subjects, self.base, strict=True):
            names = self._names(base)
            alone = {info.axis.name: 1 for info in base.axes}
            sets = {**subject.sets, **alone, "hbm": UNLIMITED}
            report = cost(subject.plan, chip, self.model, self.overlap, sets, hbm=self.hbm)
            figures = [
                [self.table.variables[names[symbol]], number(value)]
                for symbol, value in report.known.items()
                if names[symbol][0] == "figure" and names[symbol] in self.table.variables
            ]
            values.append(figures)
            warnings.append([w for w in report.warnings if w not in subject.plan.warnings])
        hbm = self.subjects[0].sets.get("hbm", chip.get("hbm"))
        return {
            "name": machine.name,
            "title": chip.title,
            "torus": chip.kind == "torus" or chip.kind is None,
            "kind": list(self.kinds).index(self._kind(machine)),
            "hbm": None if hbm is None else float(hbm),
            "ici_axes": chip.get("ici_axes"),
            "figures": [
                [name, value]
                for name in ("C", "W_ici", "W_dcn", "W_hbm")
                if (value := chip.get(name)) is not None
            ],
            "values": values,
            "warnings": warnings,
        }

    # --- programs ---

    def _program(self, subject: Subject, report: Report) -> dict[str, Any]:
        plan = subject.plan
        names = self._names(report)
        own = {name: names[symbol] for name, symbol in report.symbols.of.items()}
        kinds: list[dict[str, Any]] = []
        variants: dict[str, int] = {}
        listed: list[dict[str, Any]] = []
        for machine in self.kinds.values():
            layout, found = self._priced(subject, machine)
            numbers: list[int] = []
            for each in found:
                variant = self._variant(each, names, laid=bool(machine.shape))
                key = repr(variant)
                if key not in variants:
                    variants[key] = len(listed)
                    listed.append(variant)
                numbers.append(variants[key])
            kinds.append({"layout": layout, "variants": numbers})
        follow = self._derived(report)
        return {
            "label": subject.label,
            "source": plan.program.source.text,
            "strategy": plan.strategy,
            "mesh": self._mesh(report),
            "passes": list(report.passes),
            "batch": _batch(report),
            "follow": [
                {
                    "name": name,
                    "text": size_text(expr),
                    "variable": self.table.variable(own[name]),
                    "size": self.table.size(expr, own),
                }
                for name, expr in follow.items()
            ],
            "collectives": [
                {
                    "pass": each.pass_,
                    "op": each.op,
                    "tensor": each.tensor,
                    "axes": each.axes,
                    "dim": each.dim,
                    "critical": each.step.critical,
                }
                for each in report.collectives
            ],
            "memory": self._memory(report, names),
            "splits": list(self._splits(report, own)),
            "alternatives": [[a.at, a.instead, a.cheaper_when] for a in plan.alternatives],
            "warnings": list(plan.warnings),
            "kinds": kinds,
            "variants": listed,
        }

    def _priced(self, subject: Subject, machine: Machine) -> tuple[int, list[Report]]:
        """Price each way to lie on a machine; the layout says which of them each position has."""
        grid = self.grids[self.meshes[self._mesh(self.base[self.subjects.index(subject)])]]
        found: dict[Way, int] = {}
        reports: list[Report] = []
        layout: list[int] = []
        nodes = self.base[0].exact
        for sizes, way in ways(grid, machine.chip.topology, machine.shape, nodes=nodes):
            if isinstance(way, str):
                layout.append(-1 - self.messages.setdefault(way, len(self.messages)))
                continue
            if way not in found:
                found[way] = len(reports)
                sets = {**subject.sets, **grid.at(sizes)}
                reports.append(
                    cost(subject.plan, machine.asked, self.model, self.overlap, sets, hbm=self.hbm)
                )
            layout.append(found[way])
        return self.layouts.setdefault(tuple(layout), len(self.layouts)), reports

    def _variant(self, report: Report, names: Names, *, laid: bool) -> dict[str, Any]:
        """Write down a report's formulas; `laid` says that the mesh lies on a slice."""

        def formula(of: Formula) -> int:
            return self.table.formula(of, names)

        passes = report.passes
        own = {symbol: name for name, symbol in report.symbols.of.items()}
        variant: dict[str, Any] = {
            "totals": {
                name: [
                    [key, formula(quantity.formula)]
                    for key, quantity in report.totals[name].quantities.items()
                ]
                for name in passes
            },
            "groups": {
                name: [
                    [[own[symbol] for symbol in axes], formula(sent), formula(seconds)]
                    for axes, (sent, seconds) in report.groups[name].items()
                ]
                for name in passes
            },
            "collectives": [
                [formula(c.bytes.formula), formula(c.time.formula)] for c in report.collectives
            ],
            "conditions": {
                name: [str(report.compute_bound[name]), report.compute_bound[name].solved]
                for name in passes
            },
            "slice": report.slice if laid else None,
            "notes": list(report.notes),
            "memory": self._memory(report, names),
        }
        links = [report.symbols.links(info.axis) for info in report.axes]
        spans = [number(report.known[symbol]) for symbol in links]
        used = self.table.variables
        variant["spans"] = spans
        variant["links"] = [
            [used[names[symbol]], span]
            for symbol, span in zip(links, spans, strict=True)
            if names[symbol] in used
        ]
        return variant

    def _memory(self, report: Report, names: Names) -> list[list[Any]]:
        """Give each figure of the memory: its name, what it is called, its formula, and if it is a part."""
        return [
            [
                key,
                LABELS.get(key, key),
                self.table.formula(quantity.formula, names),
                key not in ("total", "peak"),
            ]
            for key, quantity in report.memory.quantities.items()
        ]

    def _splits(self, report: Report, own: Names) -> Iterator[tuple[int, list[str]]]:
        """List each dim, as a variable or as minus the size that it is written as, with axes over it."""
        plan = report.plan
        arrays = [leaf.array for leaf in plan.program.leaves]
        arrays.extend(a for _, step in plan.steps() for a in (*step.inputs, step.output))
        found: dict[tuple[str, tuple[str, ...]], None] = {}
        for array in arrays:
            for dim in array.tensor.dims:
                axes = tuple(axis.name for axis in array.axes(dim))
                if axes:
                    found[dim.name, axes] = None
        for name, axes in found:
            size = literal_size(name)
            yield self.table.variable(own[name]) if size is None else -size, list(axes)


def _sums(report: Report) -> Iterator[tuple[str, str]]:
    """Give the totals that are short to say in others."""
    math, comms = (report.total.quantity(key).formula for key in ("t_math", "t_comms"))
    if report.total.quantity("t_overlapped").formula == Formula.largest((math, comms)):
        yield "t_overlapped", "max(T_math, T_comms)"
    if report.total.quantity("t_serial").formula == math + comms:
        yield "t_serial", "T_math + T_comms"


def _axes(report: Report) -> tuple[AxisInfo, ...]:
    """Give what makes two meshes one: the axes with their networks, without their sizes."""
    return tuple(replace(info, size=None) for info in report.axes)


def _batch(report: Report) -> list[str]:
    """List the dims of the batch, in the order of the report."""
    dims = batch_of(report.plan, report.symbols).dims
    return [name for name in report.dims if report.symbols.of[name] in dims]


def _open_size(name: str, batch: Sequence[str]) -> int:
    """Give the size at first of a dim that is left open; `batch` are those of the batch."""
    if name not in batch:
        return OPEN_DIM
    if name != batch[0]:
        return OPEN_LENGTH
    return max(OPEN_BATCH // OPEN_LENGTH ** (len(batch) - 1), 16)
