"""Names what the steps of a module need: a variable for each array, an einsum letter for each dim."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from shardlang.backends.jax.errors import failure, TooManyDims
from shardlang.backends.jax.flow import Flow, Value
from shardlang.backends.jax.names import Names
from shardlang.backends.jax.sizes import dims_of
from shardlang.ir.ops import (
    AllGather,
    AllReduce,
    AllToAll,
    Mask,
    Permute,
    ReduceScatter,
    RingAttention,
    Slice,
)
from shardlang.ir.plan import Plan, Step
from shardlang.ir.types import Array, Dim, Layout

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass
class Letters:
    """Gives each dim an einsum letter, the same one in the whole module where 52 suffice."""

    plan: Plan
    _table: dict[Dim, str] = field(default_factory=dict[Dim, str])

    def __post_init__(self) -> None:
        """Let every dim have its own initial where it is free."""
        dims = dims_of(self.plan)
        if len(dims) <= len(LETTERS):
            self._table = _letters(dims)

    def one(self, dim: Dim) -> str:
        """Give a dim's letter."""
        return self._table[dim]

    def of(self, dims: tuple[Dim, ...]) -> Mapping[Dim, str]:
        """Give the letters of a step's dims."""
        if self._table:
            return self._table
        if len(dims) > len(LETTERS):
            names = ", ".join(dim.name for dim in dims[:3])
            raise failure(self.plan, TooManyDims(f"the einsum over {names}, ...", len(dims)))
        return _letters(dims)


def _letters(dims: Iterable[Dim]) -> dict[Dim, str]:
    """Give each dim the lower-case initial of its name where free, else some free letter."""
    table: dict[Dim, str] = {}
    for dim in dims:
        initial = dim.name[:1]
        wanted = [initial.lower(), initial.upper(), *LETTERS]
        free = (x for x in wanted if x in LETTERS and x and x not in table.values())
        table[dim] = next(free)
    return table


class Variables:
    """Names every array of a plan: the bare name for a tensor's usual layout, else with a suffix.

    The function of a layer has the same names for its own arrays.
    """

    def __init__(self, plan: Plan, flow: Flow) -> None:
        """Give out the names, those of usual layouts first."""
        self._names = Names()
        self._table: dict[tuple[str, Layout], str] = {}
        home: dict[str, Layout] = {}
        ends = (*(g.gradient for g in plan.gradients), *plan.outputs, *plan.cotangents)
        for array in (*(leaf.array for leaf in plan.program.leaves), *ends):
            home.setdefault(array.name, array.layout)
        steps = [step for _, step in plan.steps()]
        for step in steps:
            if not step.output.layout.unreduced:
                home.setdefault(step.output.name, step.output.layout)
        for step in steps:
            home.setdefault(step.output.name, step.output.layout)
        for step in steps:
            if isinstance(step.op, RingAttention):
                for array in step.op.kept:
                    home.setdefault(array.name, array.layout)
        for name, layout in home.items():
            self._table[name, layout] = self._names.fresh(name)
        for array, word in _others(flow, steps):
            if (array.name, array.layout) not in self._table:
                self._table[array.name, array.layout] = self._names.fresh(f"{array.name}_{word}")
        self._stacks = self._stacked(flow)

    def _stacked(self, flow: Flow) -> dict[Value, str]:
        """Name the stacks that blocks give: as a layer's value, but `x_layers` where x is one outside."""
        carried = {x.name for scan in flow.scans for x in (*scan.entries, *scan.exits)}
        found: dict[Value, str] = {}
        for value in (*flow.cotangents, *(value for scan in flow.scans for value in scan.given)):
            if value.loop is None or value in found:
                continue
            bare = self[value.array]
            clash = value.array.name in carried or bare in found.values()
            found[value] = self._names.fresh(f"{bare}_layers") if clash else bare
        return found

    def __getitem__(self, array: Array) -> str:
        """Give the variable that holds an array: in the function of a layer, the layer's."""
        return self._table[array.name, array.layout]

    def whole(self, value: Value) -> str:
        """Give the variable that holds a value outside of blocks: of all layers where each has one."""
        return self._stacks.get(value) or self[value.array]


def _others(flow: Flow, steps: Iterable[Step]) -> Iterator[tuple[Array, str]]:
    """Go through all arrays, each with what its variable is called after its name."""
    for scan in flow.scans:
        for array in (*scan.entries, *scan.exits):
            yield array, "handed"
    for step in steps:
        yield step.output, _suffix(step)
        for array in step.outputs[1:]:
            yield array, "kept" if isinstance(step.op, RingAttention) else "gathered"
        for array in step.inputs:
            yield array, "relaid"


def _suffix(step: Step) -> str:
    """Say in a word how a step's result differs from the tensor's usual layout."""
    match step.op:
        case AllGather():
            return "gathered"
        case ReduceScatter():
            return "scattered"
        case AllReduce():
            return "reduced"
        case AllToAll() | Permute():
            return "moved"
        case Slice():
            return "sliced"
        case Mask():
            return "masked"
        case _:
            return "partial" if step.output.layout.unreduced else "local"
