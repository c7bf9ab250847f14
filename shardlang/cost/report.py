"""The cost report: data only, in formulas and numbers, made from a plan.

`cost` prices every step of the plan once (`shardlang.cost.pricing`); a `Report` holds the result.
Attributes such as `report.total.t_comms` are sympy expressions, made (and sympy imported) when they
are asked for; texts and `to_dict` need no sympy. Bytes, FLOPs and memory are those of one device;
times are in seconds, at peak rates unless efficiencies are set (`rates`), and leave out what `left_out`
lists.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from importlib import import_module
from typing import Any, Literal, TYPE_CHECKING

from shardlang.cost.bound import Condition
from shardlang.cost.formula import Formula
from shardlang.cost.hardware import hardware_of
from shardlang.cost.models import Model, MODELS
from shardlang.cost.quantities import (
    CollectiveCost,
    ComputeCost,
    Memory,
    Quantity,
    ratio,
    Totals,
)
from shardlang.cost.symbols import Symbols
from shardlang.diagnostics import of_kind
from shardlang.hardware.catalogue import Hardware, load_hardware
from shardlang.hardware.figures import EFFICIENCIES
from shardlang.hardware.slices import split_shape
from shardlang.ir.ops import Ring, RingAttention
from shardlang.ir.plan import Plan
from shardlang.ir.types import AxisInfo

if TYPE_CHECKING:
    from shardlang.cost.conventions import Counts
    from shardlang.cost.few_layers import Exactness
    from shardlang.cost.pipeline import PipelineCost
    from shardlang.cost.run import Pace, Run
    from shardlang.cost.schedule import Timeline

Overlap = Literal["axes"] | None
Section = Literal["forward", "backward", "update", "total"]


def passes_of(plan: Plan) -> tuple[Section, ...]:
    """Name the passes that totals are given for: `update` where the plan has one."""
    return ("forward", "backward", *(("update",) if plan.update else ()), "total")


TOTALS = ("flops", "bytes", "t_math", "t_comms", "t_overlapped", "t_serial")
EXPOSED = ("t_exposed",)
"""What plans with rings have besides."""
HBM = ("t_load", "hbm_bytes", "t_hbm", "fused_bytes")
MEMORY = (
    "parameters",
    "gradients",
    "optimizer",
    "caches",
    "activations",
    "gathered_peak",
    "total",
    "peak",
)

LEFT_OUT = (
    "reading and writing memory",
    "elementwise steps",
    "the optimizer's update",
    "launching kernels",
    "waiting for input and for slower devices",
)
"""What takes no time in any report, besides latency where the model has none."""

RENDERERS: Mapping[str, str] = {
    "text": "shardlang.backends.report_text",
    "latex": "shardlang.backends.report_latex",
    "markdown": "shardlang.backends.report_markdown",
    "html": "shardlang.backends.report_html",
}
"""Where each format is made; a renderer reads the report, and is loaded by name when needed."""


@dataclass(frozen=True)
class Report:
    """The cost of a plan.

    `known` gives the value of each symbol that has one; `groups` holds the communication of each
    pass by the axes it runs over, as (bytes, seconds). `slice` says how the mesh lies on a slice or
    on nodes, `notes` what the model counts and takes as given, and `fixed` are the axes, as symbols,
    whose sizes the formulas rest on for that reason. `exact` says that the model knows the network
    and its latency. With `hbm` no contraction takes less than its reads and writes; `capacity` is the
    size of a device's memory in bytes, where it is known. `again` prices the plan once more: with
    efficiencies `named` in formulas, with axes that are `single`, as symbols, taken to have size 1, or `free`,
    with formulas for any sizes of the axes, which `varies` says to be possible. `lying` is the plan without
    axes of size 1; `alone` names the parts of memory whose formula is that of the program's own number of
    layers alone. `ends` are the sums over a pipeline's stages at the end of a step, which are in no total.
    """

    plan: Plan
    hardware: Hardware | None
    model: str
    overlap: Overlap
    symbols: Symbols
    known: Mapping[str, Fraction]
    axes: tuple[AxisInfo, ...]
    collectives: tuple[CollectiveCost, ...]
    compute: tuple[ComputeCost, ...]
    totals: Mapping[str, Totals]
    memory: Memory
    warnings: tuple[str, ...] = ()
    slice: str | None = None
    notes: tuple[str, ...] = ()
    fixed: frozenset[str] = frozenset()
    exact: bool = False
    hbm: bool = False
    capacity: Fraction | None = None
    varies: bool = False
    again: Callable[..., Report] | None = field(default=None, repr=False, compare=False)
    lying: Plan | None = field(default=None, repr=False, compare=False)
    alone: frozenset[str] = frozenset()
    ends: tuple[CollectiveCost, ...] = ()
    groups: Mapping[str, Mapping[tuple[str, ...], tuple[Formula, Formula]]] = field(
        default_factory=dict[str, "Mapping[tuple[str, ...], tuple[Formula, Formula]]"], repr=False
    )

    @property
    def forward(self) -> Totals:
        """The forward pass."""
        return self.totals["forward"]

    @property
    def backward(self) -> Totals:
        """The backward pass."""
        return self.totals["backward"]

    @property
    def total(self) -> Totals:
        """All passes: a training step where the program says what one is."""
        return self.totals["total"]

    @property
    def passes(self) -> tuple[Section, ...]:
        """The passes that are shown: those that the plan has, and where there are several the total."""
        return passes_of(self.plan) if self.plan.backward else ("forward",)

    @property
    def pipeline(self) -> PipelineCost | None:
        """What the layers on stages come to, where there are any: see `shardlang.cost.pipeline`."""
        from shardlang.cost.pipeline import pipeline_of  # noqa: PLC0415  (it reads reports)

        return pipeline_of(self)

    @property
    def exact_from(self) -> Mapping[str, int]:
        """The parts of memory whose formula is exact from so many layers on, where that is not 1.

        Those in `alone` have another formula.
        """
        return self.exactness.counts

    @property
    def exactness(self) -> Exactness:
        """From how many layers on the formulas of memory are exact, and which may be too low for fewer."""
        from shardlang.cost.few_layers import exactness  # noqa: PLC0415  (when asked for)

        return exactness(self.lying or self.plan)

    @property
    def compute_bound(self) -> Mapping[str, Condition]:
        """The condition under which each pass is compute-bound."""
        return {name: self.totals[name].condition for name in passes_of(self.plan)}

    @property
    def rates(self) -> str:
        """Say in a few words at what rates its times are."""
        named = {name: self.known.get(name) for name in self.symbols.efficiencies}
        if all(value == 1 for value in named.values()):
            return "peak rates"
        shares = [n if v is None else f"{n}={float(v):g}" for n, v in named.items() if v != 1]
        return f"{' and '.join(shares)} of the peak rates"

    @property
    def is_bound(self) -> bool:
        """Whether no step can take less than T_overlapped: at peak rates, with no efficiency set.

        In a plan with rings or a prefetch T_overlapped counts what stays exposed, and is an estimate.
        """
        return self.rates == "peak rates" and not self.plan.overlaps

    @property
    def left_out(self) -> tuple[str, ...]:
        """List what takes no time in its times."""
        memory = LEFT_OUT[:1] if not self.hbm else ()
        return (*(() if self.exact else ("latency",)), *memory, *LEFT_OUT[1:])

    @property
    def dims(self) -> Mapping[str, int | float | None]:
        """The dims with their sizes, None where they are symbols."""
        names = [name for name, s in self.symbols.of.items() if self.symbols.kinds[s] == "dim"]
        return {name: self._size(name) for name in names}

    @property
    def mesh(self) -> Mapping[str, int | float | None]:
        """The axes with their sizes, None where they are symbols."""
        return {info.axis.name: self._size(info.axis.name) for info in self.axes}

    @property
    def share(self) -> float | None:
        """The part of a device's memory that is needed, where both are known."""
        return ratio(self.needed[1].value, self.capacity)

    @property
    def needed(self) -> tuple[str, Quantity]:
        """The larger of the total and what is alive at once (`peak`), with its name: both have to fit."""
        both = ("total", "peak")
        return max(
            ((name, self.memory.quantity(name)) for name in both),
            key=lambda each: each[1].value or 0,
        )

    def _size(self, name: str) -> int | float | None:
        value = self.known.get(self.symbols.of[name])
        return Quantity(Formula(), value).number

    def to_dict(self) -> dict[str, Any]:
        """Give the report as the JSON object of schema 1."""
        return {
            "schema": 1,
            "strategy": self.plan.strategy,
            "mesh": dict(self.mesh),
            "dims": dict(self.dims),
            "hardware": None if self.hardware is None else self.hardware.name,
            "collectives": [
                {
                    "pass": cost.pass_,
                    "op": cost.op,
                    "tensor": cost.tensor,
                    "axes": list(cost.axes),
                    "dim": cost.dim,
                    "from": str(cost.step.moving.inputs[0]),
                    "to": str(cost.step.moving.output),
                    "bytes": _entry(cost.bytes),
                    "time": _entry(cost.time, "seconds"),
                    **_ring(cost),
                    "critical": cost.step.critical,
                    "reason": cost.step.reason,
                    **_loop(cost),
                }
                for cost in self.collectives
            ],
            "compute": [
                {
                    "pass": cost.pass_,
                    "einsum": cost.einsum,
                    "flops": _entry(cost.flops),
                    **_loop(cost),
                    **(_roofline(cost) if cost.counted else {}),
                }
                for cost in self.compute
            ],
            "totals": {
                name: {
                    key: _entry(totals.quantity(key), "seconds" if key[:2] == "t_" else "value")
                    for key in (*TOTALS, *EXPOSED, *HBM)
                    if key in totals.quantities
                }
                for name, totals in self.totals.items()
            },
            "compute_bound": {name: str(value) for name, value in self.compute_bound.items()},
            "memory": {key: _entry(self.memory.quantity(key)) for key in MEMORY},
            **self._layers(),
            "fits": {
                "hbm": Quantity(Formula(), self.capacity).number,
                "share": self.share,
                "holds": None if self.share is None else self.share <= 1,
            },
            "alternatives": [
                {"at": a.at, "instead": a.instead, "cheaper_when": a.cheaper_when}
                for a in self.plan.alternatives
            ],
            "warnings": list(self.warnings),
            "bound": {"lower": self.is_bound, "rates": self.rates, "zero": list(self.left_out)},
            "symbols": dict(self.symbols.kinds),
            **self._network(),
            **({} if self.pipeline is None else {"pipeline": self.pipeline.to_dict()}),
        }

    def _layers(self) -> dict[str, Any]:
        """Give what JSON says of formulas of memory that do not hold for any number of layers."""
        if not self.plan.program.blocks:
            return {}
        exact = self.exactness
        limits = {"exact_from": dict(exact.counts), "low": sorted(exact.low)}
        return {"layers": {**limits, "alone": sorted(self.alone)}} if exact.counts else {}

    def _network(self) -> dict[str, Any]:
        """Give what JSON says of the network; `book` without a slice knows of none."""
        if not self.notes and self.slice is None:
            return {}
        return {"network": {"slice": self.slice, "notes": list(self.notes)}}

    def to_json(self) -> str:
        """Give the report as JSON text."""
        return json.dumps(self.to_dict(), ensure_ascii=False, indent=2) + "\n"

    def _render(self, form: str, **options: Any) -> str:
        render: Callable[..., str] = import_module(RENDERERS[form]).render
        return render(self, **options)

    def to_text(self, width: int = 80, *, color: bool = False) -> str:
        """Give the report for people, in `width` columns."""
        return self._render("text", width=width, color=color)

    def to_latex(self) -> str:
        """Give the report as LaTeX tables, to be included in a document."""
        return self._render("latex")

    def to_markdown(self) -> str:
        """Give the report as Markdown."""
        return self._render("markdown")

    def to_html(self) -> str:
        """Give the report as a piece of HTML."""
        return self._render("html")

    def __str__(self) -> str:
        """Print the report as text."""
        return self.to_text().rstrip("\n")

    def __repr__(self) -> str:
        """Say what it is, in a line: the text has all of it."""
        hardware = "" if self.hardware is None else f" on {self.hardware.name}"
        return f"<Report of {self.plan!r}, model {self.model}{hardware}>"

    def _repr_html_(self) -> str:
        return self.to_html()

    def _repr_latex_(self) -> str:
        return self._render("latex", notebook=True)

    def schedule(self) -> Timeline:
        """Simulate the plan's steps, where all is known: see `shardlang.cost.schedule`."""
        from shardlang.cost.schedule import schedule  # noqa: PLC0415  (it reads reports)

        return schedule(self)

    def quantity(self, formula: Formula) -> Quantity:
        """Put a value beside a formula, where everything in it is known."""
        return Quantity(formula, formula.value(self.known))

    def conventions(self) -> Counts:
        """Count the FLOPs of a step under every convention: see `shardlang.cost.conventions`."""
        from shardlang.cost.conventions import conventions  # noqa: PLC0415  (when asked for)

        return conventions(self)

    def run(
        self,
        tokens: float | Fraction | None = None,
        mfu: float | Fraction | None = None,
        price: float | Fraction | None = None,
        *,
        convention: str = "model",
        measured: float | Fraction | None = None,
    ) -> Run:
        """Tell what a training run comes to, in tokens/s, MFU, days and dollars.

        See `shardlang.cost.run`. `convention` is what `mfu` counts.
        """
        from shardlang.cost.run import run  # noqa: PLC0415  (when asked for)

        return run(self, tokens, mfu, price, convention=convention, measured=measured)

    def measured(self, seconds: float | Fraction) -> Pace:
        """Tell what a measured step time comes to: tokens/s, MFU and HFU, times the bound."""
        from shardlang.cost.run import measured  # noqa: PLC0415  (when asked for)

        return measured(self, seconds)

    def compile(
        self, names: Sequence[str], outputs: str | Sequence[str] = (*TOTALS, "memory")
    ) -> Callable[..., Any]:
        """Give a numpy function of the named symbols over arrays that broadcast.

        See `shardlang.cost.numeric.Compiled`.
        """
        from shardlang.cost.numeric import Compiled  # noqa: PLC0415  (imports numpy)

        wanted = (outputs,) if isinstance(outputs, str) else tuple(outputs)
        return Compiled.of(self.freed(names), tuple(names), wanted)

    def freed(self, names: Sequence[str]) -> Report:
        """Give the report whose formulas hold for any values of the named symbols, where there is one.

        Axes may have sizes that formulas rest on; efficiencies that nobody has set are in no formula.
        """
        shares = [
            name
            for name in EFFICIENCIES.values()
            if name in names and name not in (*self.symbols.figures, *self.symbols.of)
        ]
        if self.again is None:
            return self
        if shares:
            return self.again(named=shares).freed(names)
        rests = any(self.symbols.of.get(name, name) in self.fixed for name in names)
        return self.again(free=True) if rests and self.varies else self


def _roofline(cost: ComputeCost) -> dict[str, Any]:
    bound = {None: None, True: "memory", False: "compute"}[cost.memory_bound]
    return {
        "hbm_bytes": _entry(cost.moved),
        "time": _entry(cost.time, "seconds"),
        "intensity": {"formula": cost.intensity, "value": cost.intensity_value},
        "bound": bound,
    }


def _ring(cost: CollectiveCost) -> dict[str, Any]:
    """Say what stays exposed, in a plan with rings, and whether this collective is one."""
    if cost.exposed is None:
        return {}
    ring = isinstance(cost.step.op, Ring | RingAttention)
    return {"ring": ring, "exposed": _entry(cost.exposed, "seconds")}


def _loop(cost: CollectiveCost | ComputeCost) -> dict[str, str]:
    """Name the dims that count layers and microbatches, of a step that each of them does."""
    layers = None if cost.step.loop is None else cost.step.loop.dim
    outer = [dim.name for dim in cost.repeats if dim != layers]
    found = {} if layers is None else {"loop": layers.name}
    return {**found, **({"microbatches": outer[0]} if outer else {})}


def _entry(quantity: Quantity, key: str = "value") -> dict[str, Any]:
    number = quantity.number
    if key == "seconds" and number is not None:
        number = float(number)
    return {"formula": str(quantity.formula), key: number}


def cost(
    plan: Plan,
    hardware: str | Hardware | None = None,
    model: str | Model = "book",
    overlap: Overlap = None,
    sets: Mapping[str, float | Fraction] | None = None,
    *,
    hbm: bool = False,
) -> Report:
    """Price a plan.

    `hardware` is a name or a path (else the program's own, else its figures stay symbols); `sets`
    gives sizes and hardware figures by name and wins over both. A slice's shape may stand behind the
    name (`tpu_v5p 16x16x16`): the mesh is laid on it. `overlap="axes"` lets collectives
    over different axes run at once; with `hbm` no contraction takes less than what it reads and
    writes takes at W_hbm. Raises `ShardlangError` for hardware that does not exist and
    for names or values in `sets` that make no sense.
    """
    of_kind(plan, Plan, "cost takes a plan, as sl.lower(program) gives it")
    if overlap not in (None, "axes"):
        raise ValueError(f"overlap is 'axes' or None, not {overlap!r}")
    if isinstance(model, str):
        if model not in MODELS:
            raise ValueError(f"no model is called {model!r}: {', '.join(MODELS)}")
        model = MODELS[model]
    from shardlang.cost.pricing import Pricing  # noqa: PLC0415  (it makes reports)

    chip, shape = _hardware(plan, hardware)
    return Pricing(plan, chip, model, overlap, sets or {}, shape, hbm=hbm).report()


def _hardware(plan: Plan, given: str | Hardware | None) -> tuple[Hardware | None, tuple[int, ...]]:
    """Load what is asked for, or what the program names, with the place where it does.

    With it comes the shape of the slice, empty where none is given.
    """
    if isinstance(given, Hardware):
        return given, ()
    if given is not None:
        return load_hardware(given), split_shape(given)[1]
    program = plan.program
    if program.hardware is None:
        return None, ()
    return hardware_of(program.source, program.hardware), program.slice
