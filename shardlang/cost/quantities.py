"""What reports are made of: formulas with their values, priced steps, totals and memory.

Attributes such as `totals.t_comms` are sympy expressions, made when they are asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, cast

from shardlang.cost.bound import Condition, quotient
from shardlang.cost.formula import Formula
from shardlang.ir.ops import AllGather, AllToAll, Collective, ReduceScatter, Ring, RingAttention
from shardlang.ir.plan import Pass, Step
from shardlang.ir.printer import statement
from shardlang.ir.types import Axis, Dim, subscript

LARGEST = 10**300
"""Values beyond are left out of reports: neither a float nor most readers of JSON hold them."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """A formula and its value where everything in it is known; `expr` is the sympy expression."""

    formula: Formula
    value: Fraction | None

    @property
    def expr(self) -> Any:
        """Give it as a sympy expression."""
        return self.formula.sympy()

    @property
    def number(self) -> int | float | None:
        """Give the value as an integer where it is one, None where unknown or beyond 1e300."""
        if self.value is None or self.value > LARGEST:
            return None
        return self.value.numerator if self.value.denominator == 1 else float(self.value)

    def __str__(self) -> str:
        """Print the formula."""
        return str(self.formula)


def ratio(over: Fraction | None, under: Fraction | None) -> float | None:
    """Give a quotient, None where either is unknown, it has no value, or is beyond 1e300."""
    if over is None or not under or over / under > LARGEST:
        return None
    return float(over / under)


@dataclass(frozen=True, slots=True)
class CollectiveCost:
    """A collective and its price, all of the times that it is done: `repeats` are the dims that count them.

    `exposed` is the part of its time that is hidden behind nothing, None in a plan that says
    nothing of that: one with no rings and no prefetch.
    """

    pass_: Pass
    step: Step
    bytes: Quantity
    time: Quantity
    repeats: tuple[Dim, ...] = ()
    exposed: Quantity | None = None

    @property
    def op(self) -> str:
        """The collective's name."""
        if isinstance(self.step.op, RingAttention):
            return "RingAttention"
        return type(self.step.moving.op).__name__

    @property
    def move(self) -> str:
        """The collective with its axes, as the notation writes it: `AllGather_{XY}`, `RingGather_Y`."""
        op = self.step.op
        name = self.op
        if isinstance(op, Ring):
            name = "RingGather" if op.gathers else "RingScatter"
        return f"{name}{subscript(cast('Collective', op).axes)}"

    @property
    def tensor(self) -> str:
        """The tensor that moves."""
        op = self.step.op
        if isinstance(op, RingAttention):
            moved = (*self.step.inputs[op.query + 1 : op.query + 3], *(op.kept if op.back else ()))
            return ", ".join(array.name for array in moved)
        return self.step.moving.inputs[0].name

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes that it runs over."""
        return tuple(axis.name for axis in cast("Collective", self.step.op).axes)

    @property
    def dim(self) -> str | None:
        """The dim that is joined or split, None for AllReduce and Permute."""
        match self.step.moving.op:
            case AllGather(_, dim) | ReduceScatter(_, dim) | AllToAll(_, _, dim):
                return dim.name
            case _:
                return None


@dataclass(frozen=True, slots=True)
class ComputeCost:
    """A compute step and its FLOPs; `counted` says whether they are in the totals.

    `moved` are the bytes that it reads and writes in a device's memory, `time` what it takes: both are
    0 where it is not counted. `memory_bound` says which rate takes longer at it, None where that is
    not known. `repeats` are the dims that count how often it is done.
    """

    pass_: Pass
    step: Step
    flops: Quantity
    counted: bool
    moved: Quantity
    time: Quantity
    memory_bound: bool | None = None
    repeats: tuple[Dim, ...] = ()

    @property
    def intensity(self) -> str:
        """The FLOPs a byte, as a formula."""
        return quotient(self.flops.formula, self.moved.formula)

    @property
    def intensity_value(self) -> float | None:
        """The FLOPs a byte, where they are known."""
        return ratio(self.flops.value, self.moved.value)

    @property
    def einsum(self) -> str:
        """The step in the notation."""
        return statement(self.step)


def together(times: Mapping[tuple[str, ...], Formula], wires: Mapping[str, Axis] | None) -> Formula:
    """Give T_comms, in seconds, of what runs over each set of axes: the sum.

    Where axes overlap it is the busiest one's sum; `wires` says for each axis whose links it has.
    """
    if wires is None:
        return Formula.sum(times.values())
    busy = dict.fromkeys(wires[axis] for key in times for axis in key)
    return Formula.largest(
        Formula.sum(
            seconds for key, seconds in times.items() if any(wires[axis] == wire for axis in key)
        )
        for wire in busy
    )


@dataclass(frozen=True, slots=True)
class Totals:
    """What a pass (or both) comes to; each attribute is a sympy expression.

    `quantity(name)` gives the same with its value; `elementwise` are the FLOPs outside of
    contractions, which no other total includes.
    """

    quantities: Mapping[str, Quantity]
    condition: Condition

    def quantity(self, name: str) -> Quantity:
        """Give a total by its name, with formula and value."""
        return self.quantities[name]

    @property
    def flops(self) -> Any:
        """FLOPs of contractions on one device."""
        return self.quantities["flops"].expr

    @property
    def elementwise(self) -> Any:
        """FLOPs of everything else on one device."""
        return self.quantities["elementwise"].expr

    @property
    def bytes(self) -> Any:
        """Bytes that one device moves."""
        return self.quantities["bytes"].expr

    @property
    def t_math(self) -> Any:
        """FLOPs over C, in seconds; with `hbm` no contraction less than its bytes over W_hbm."""
        return self.quantities["t_math"].expr

    @property
    def t_load(self) -> Any:
        """Time to read every weight and every cache once, in seconds."""
        return self.quantities["t_load"].expr

    @property
    def hbm_bytes(self) -> Any:
        """Bytes that contractions read and write in one device's memory."""
        return self.quantities["hbm_bytes"].expr

    @property
    def t_hbm(self) -> Any:
        """`hbm_bytes` over W_hbm, in seconds."""
        return self.quantities["t_hbm"].expr

    @property
    def fused_bytes(self) -> Any:
        """Bytes that the pass reads and writes where all that it can stays on the chip."""
        return self.quantities["fused_bytes"].expr

    @property
    def t_comms(self) -> Any:
        """Time of the collectives, in seconds."""
        return self.quantities["t_comms"].expr

    @property
    def t_overlapped(self) -> Any:
        """The larger of T_math and T_comms, in seconds: a lower bound, at peak rates."""
        return self.quantities["t_overlapped"].expr

    @property
    def t_serial(self) -> Any:
        """The sum of T_math and T_comms, in seconds."""
        return self.quantities["t_serial"].expr


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of one device by what they hold (`shardlang.cost.memory`); sympy expressions."""

    quantities: Mapping[str, Quantity]

    def quantity(self, name: str) -> Quantity:
        """Give a part by its name, with formula and value."""
        return self.quantities[name]

    @property
    def parameters(self) -> Any:
        """The weights."""
        return self.quantities["parameters"].expr

    @property
    def gradients(self) -> Any:
        """The weights' gradients."""
        return self.quantities["gradients"].expr

    @property
    def optimizer(self) -> Any:
        """The optimizer's state."""
        return self.quantities["optimizer"].expr

    @property
    def caches(self) -> Any:
        """State of serving: what `cache` lines declare."""
        return self.quantities["caches"].expr

    @property
    def peak(self) -> Any:
        """The most that is alive at once over the whole plan, temporaries included."""
        return self.quantities["peak"].expr

    @property
    def activations(self) -> Any:
        """What is kept for the backward pass."""
        return self.quantities["activations"].expr

    @property
    def gathered_peak(self) -> Any:
        """The most that temporary gathered copies take."""
        return self.quantities["gathered_peak"].expr

    @property
    def total(self) -> Any:
        """The sum."""
        return self.quantities["total"].expr
