"""Along which axes a value may vary by JAX's types, which need not be those that it does vary along.

Under `check_vma`, JAX types every value in a `jax.shard_map` with the axes along which it may vary.
What a `ppermute` makes varies, by its type, along all axes that it ran over; after `A[I_X] -> A[I_Y]`
the value is the same along X, and no cast says so (`lax.pcast` goes the other way only). That is no
matter until such a value leaves the devices: its PartitionSpec would have to name X. So it is with what has
gone round a ring.

What a scan hands on has one type in all layers, so it varies along whatever its first value or that of any
later layer does, and both are cast to that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from shardlang.backends.jax.flow import Flow, Run, Scan, Value
from shardlang.ir.ops import (
    AllGather,
    AllReduce,
    AllToAll,
    Mask,
    Permute,
    Put,
    ReduceScatter,
    Ring,
    RingAttention,
    Slice,
    Take,
)
from shardlang.ir.plan import Step
from shardlang.ir.types import Array, Axis

Axes = frozenset[Axis]


@dataclass(frozen=True)
class Casts:
    """Axes that a scan's values have to be cast to vary along.

    `first` are those of the values that the first layer is handed, `next` those of what each layer hands
    on, by the arrays; `sums` those of the sums, which begin at zero.
    """

    first: Mapping[Array, Axes]
    next: Mapping[Array, Axes]
    sums: Mapping[Array, Axes]


@dataclass
class Varying:
    """The types of all values of a plan."""

    types: dict[Value, Axes] = field(default_factory=dict[Value, Axes])
    casts: dict[tuple[int, bool], Casts] = field(default_factory=dict[tuple[int, bool], Casts])

    @staticmethod
    def of(flow: Flow) -> Varying:
        """Go through both passes."""
        found = Varying()
        for value in (*flow.leaves, *flow.cotangents):
            found.types[value] = value.array.layout.used
        for run in (*flow.forward, *flow.backward):
            found.run(run)
        return found

    def unproven(self, ends: Iterable[Value]) -> list[tuple[Value, tuple[Axis, ...]]]:
        """Give those of the `ends` that JAX can't tell to be the same along some axes, with these axes."""
        found: list[tuple[Value, tuple[Axis, ...]]] = []
        for value in dict.fromkeys(ends):
            used = value.array.layout.used
            more = self.types.get(value, used) - used
            if more:
                found.append((value, tuple(sorted(more))))
        return found

    def cast(self, scan: Scan) -> Casts:
        """Give the casts of a scan."""
        return self.casts[scan.block.number, scan.back]

    def run(self, run: Run) -> None:
        """Type what a run of steps makes."""
        if isinstance(run, Scan):
            self.scan(run)
            return
        for step in run.steps:
            inputs = (self.type(Value(x)) for x in step.inputs)
            type_ = _varies(step, Axes().union(*inputs))
            self.types.update((Value(array), type_) for array in step.outputs)

    def type(self, value: Value) -> Axes:
        """Give the type of a value; that of a leaf follows from its layout."""
        return self.types.get(value, value.array.layout.used)

    def scan(self, scan: Scan) -> None:
        """Type what a layer makes, as long as a layer hands on more than it was handed."""
        pairs = tuple(zip(scan.entries, scan.exits, strict=True))
        start = {entry: self.type(Value(entry)) for entry in scan.entries}
        carried = dict(start)
        while True:
            local = self.layer(scan, carried)
            wider = {entry: carried[entry] | local[leaving] for entry, leaving in pairs}
            if wider == carried:
                break
            carried = wider
        sums = {step.output: local[step.output] for step in scan.steps if step.accumulates}
        self.types.update(
            {Value(x, scan.block.dim, scan.block.number): t for x, t in local.items()}
        )
        self.types.update({Value(leaving): carried[entry] for entry, leaving in pairs})
        self.types.update({Value(array): type_ for array, type_ in sums.items()})
        self.casts[scan.block.number, scan.back] = Casts(
            {entry: carried[entry] - start[entry] for entry in scan.entries},
            {leaving: carried[entry] - local[leaving] for entry, leaving in pairs},
            sums,
        )

    def layer(self, scan: Scan, carried: Mapping[Array, Axes]) -> dict[Array, Axes]:
        """Type what one layer makes, of what it is handed."""
        local = {array: self.type(Value(array)) for array in scan.outside}
        local |= {value.array: self.type(value) for value in (*scan.stacked, *scan.sources)}
        local |= carried
        for step in scan.steps:
            inputs = (local[array] for array in step.inputs)
            local.update(dict.fromkeys(step.outputs, _varies(step, Axes().union(*inputs))))
        return local


def _varies(step: Step, before: Axes) -> Axes:
    """Give the axes along which JAX lets a step's result vary, from those of what it reads."""
    match step.op:
        case AllGather(axes) | AllReduce(axes):
            return before.difference(axes)
        case Ring() | RingAttention():
            return before.union(step.op.axes)
        case ReduceScatter(axes) | AllToAll(axes) | Slice(axes) | Mask(axes):
            return before.union(axes)
        case Permute():
            return before.union(step.output.layout.split_axes)
        case Take(dims):  # each device looks its own rows up
            return before.union(a for dim in dims for a in step.inputs[0].axes(dim))
        case Put(dims):
            return before.union(a for dim in dims for a in step.output.axes(dim))
        case _:
            return before
