"""What a collective costs, as exact numbers: the planner's view of a collective model.

A price list is any object with the methods of `Prices`. They get the bytes that one device holds
before and after and the axes in question, and answer in one unit of their own, bytes or seconds, as
a `Fraction`, so that ties are ties. Slices and masks are free, and so is anything over axes of size
1 alone: those never reach a price list.

| collective    | book             | link            | switch          |
| ------------- | ---------------- | --------------- | --------------- |
| AllGather     | result           | result (n-1)/n  | operand         |
| ReduceScatter | operand          | operand (n-1)/n | operand (n-1)/n |
| AllReduce     | 2 operand        | 2 operand (n-1)/n | operand       |
| AllToAll      | operand n/4      | operand (n-1)/n | operand (n-1)/n |
| Permute       | operand          | operand         | operand         |

`book` and `link` are the interface's two models (what `bytes` means). `switch` is an example of
another network: switches that copy and add in flight, so that a device sends a block once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Protocol

from shardlang.ir.ops import (
    AllGather,
    AllReduce,
    AllToAll,
    Mask,
    Permute,
    ReduceScatter,
    Relayout,
    Slice,
)
from shardlang.ir.plan import Plan, Step
from shardlang.ir.program import Program
from shardlang.ir.types import Array, Axis, AxisInfo, Mesh
from shardlang.passes.overlap import gathered_ahead


@dataclass(frozen=True, slots=True)
class Moved:
    """What a price is asked for: local bytes before and after, and the axes that take part.

    `axes` are in mesh order and all larger than 1; `n` is the product of their sizes.
    """

    operand: Fraction
    result: Fraction
    axes: tuple[AxisInfo, ...]
    n: int


class Prices(Protocol):
    """A price list: one method a collective, each giving what one device pays.

    `linear` promises that every price is proportional to the bytes, all else equal; the planner
    then shares its tables between arrays of different sizes.
    """

    @property
    def name(self) -> str:
        """What reports call it."""
        ...

    @property
    def linear(self) -> bool:
        """Whether prices are proportional to the bytes."""
        ...

    def all_gather(self, moved: Moved) -> Fraction:
        """Join shards."""
        ...

    def reduce_scatter(self, moved: Moved) -> Fraction:
        """Add up and leave split."""
        ...

    def all_reduce(self, moved: Moved) -> Fraction:
        """Add up and leave whole."""
        ...

    def all_to_all(self, moved: Moved) -> Fraction:
        """Move a split from dim to dim."""
        ...

    def permute(self, moved: Moved) -> Fraction:
        """Exchange whole shards."""
        ...


class Book:
    """The book's convention, in bytes: the size of the gathered array, whatever the axis size."""

    name: str = "book"
    linear: bool = True

    def all_gather(self, moved: Moved) -> Fraction:
        """Give V, the result."""
        return moved.result

    def reduce_scatter(self, moved: Moved) -> Fraction:
        """Give V, the operand."""
        return moved.operand

    def all_reduce(self, moved: Moved) -> Fraction:
        """Give 2V."""
        return 2 * moved.operand

    def all_to_all(self, moved: Moved) -> Fraction:
        """Give V/4 with V the operand times the axes' size."""
        return moved.operand * moved.n / 4

    def permute(self, moved: Moved) -> Fraction:
        """Give the operand."""
        return moved.operand


class Link:
    """The bytes that one device sends on a ring, exactly."""

    name: str = "link"
    linear: bool = True

    def all_gather(self, moved: Moved) -> Fraction:
        """Give v(n-1) of the shard v."""
        return moved.operand * (moved.n - 1)

    def reduce_scatter(self, moved: Moved) -> Fraction:
        """Give V(n-1)/n."""
        return moved.operand * (moved.n - 1) / moved.n

    def all_reduce(self, moved: Moved) -> Fraction:
        """Give 2V(n-1)/n: a ReduceScatter and an AllGather."""
        return 2 * moved.operand * (moved.n - 1) / moved.n

    def all_to_all(self, moved: Moved) -> Fraction:
        """Give v(n-1)/n: the own block stays."""
        return moved.operand * (moved.n - 1) / moved.n

    def all_to_all_load(self, moved: Moved) -> Fraction:
        """Give V/4, what the links of a ring carry, since blocks are forwarded: it takes the time."""
        return moved.operand * moved.n / 4

    def permute(self, moved: Moved) -> Fraction:
        """Give the operand."""
        return moved.operand


class Switch:
    """The bytes that one device sends into switches that copy and add in flight."""

    name: str = "switch"
    linear: bool = True

    def all_gather(self, moved: Moved) -> Fraction:
        """Give the own shard: the switch copies it to the others."""
        return moved.operand

    def reduce_scatter(self, moved: Moved) -> Fraction:
        """Give V(n-1)/n: the own block stays."""
        return moved.operand * (moved.n - 1) / moved.n

    def all_reduce(self, moved: Moved) -> Fraction:
        """Give V, sent once and added on the way."""
        return moved.operand

    def all_to_all(self, moved: Moved) -> Fraction:
        """Give v(n-1)/n."""
        return moved.operand * (moved.n - 1) / moved.n

    def permute(self, moved: Moved) -> Fraction:
        """Give the operand."""
        return moved.operand


@dataclass(frozen=True, slots=True)
class Derived:
    """A list that changes the prices of another."""

    base: Prices

    @property
    def name(self) -> str:
        """What reports call it."""
        return self.base.name

    @property
    def linear(self) -> bool:
        """Whether prices are proportional to the bytes."""
        return self.base.linear

    def changed(self, price: Fraction, moved: Moved, *, reduces: bool) -> Fraction:
        """Give the new price of what costs `price` in the other list."""
        raise NotImplementedError

    def all_gather(self, moved: Moved) -> Fraction:
        """Change the price of joining shards."""
        return self.changed(self.base.all_gather(moved), moved, reduces=False)

    def reduce_scatter(self, moved: Moved) -> Fraction:
        """Change the price of adding up and leaving split."""
        return self.changed(self.base.reduce_scatter(moved), moved, reduces=True)

    def all_reduce(self, moved: Moved) -> Fraction:
        """Change the price of adding up and leaving whole."""
        return self.changed(self.base.all_reduce(moved), moved, reduces=True)

    def all_to_all(self, moved: Moved) -> Fraction:
        """Change the price of moving a split from dim to dim."""
        return self.changed(self.base.all_to_all(moved), moved, reduces=False)

    def permute(self, moved: Moved) -> Fraction:
        """Change the price of exchanging whole shards."""
        return self.changed(self.base.permute(moved), moved, reduces=False)


@dataclass(frozen=True, slots=True)
class Wide(Derived):
    """Reductions in a wider type: `factor` times the bytes, 2 where bf16 is added up in f32."""

    factor: Fraction = Fraction(2)

    def changed(self, price: Fraction, moved: Moved, *, reduces: bool) -> Fraction:
        """Multiply what adds up."""
        del moved
        return price * self.factor if reduces else price


@dataclass(frozen=True, slots=True)
class Seconds(Derived):
    """Seconds from a list of bytes: bytes over the bandwidth of the axes, plus a latency.

    `bandwidths` gives bytes/s by axis name. As in `cost`, that of several axes is the sum, and with
    `@dcn` axes among them that of a chip's one way out alone; parts of one axis have its bandwidth, once.
    `latency` is in seconds a collective.
    """

    bandwidths: tuple[tuple[str, Fraction], ...]
    latency: Fraction = Fraction(0)
    one_way_out: bool = False
    """Whether all axes share a chip's links, as they do behind a switch."""

    @property
    def name(self) -> str:
        """What reports call it."""
        return f"{self.base.name} seconds"

    @property
    def linear(self) -> bool:
        """Whether there is no latency."""
        return self.base.linear and not self.latency

    def all_to_all(self, moved: Moved) -> Fraction:
        """Take the time of what the links carry, where the list tells it from what is sent."""
        load = getattr(self.base, "all_to_all_load", self.base.all_to_all)
        return self.changed(load(moved), moved, reduces=False)

    def changed(self, price: Fraction, moved: Moved, *, reduces: bool) -> Fraction:
        """Divide by the bandwidth."""
        del reduces
        table, wires = dict(self.bandwidths), {info.wire.name: info for info in moved.axes}
        slow = {wire: info for wire, info in wires.items() if info.network == "dcn"}
        if not slow:
            each = [table[wire] for wire in wires]
            return self.latency + price / (max(each) if self.one_way_out else sum(each))
        # a chip has one way out into the data-centre network, however many axes cross it
        egress = min(table[wire] / info.links for wire, info in slow.items())
        links = sum(info.links for info in slow.values() if info.links != 1) or 1
        return self.latency + price / (egress * links)


def seconds(
    bandwidths: Mapping[str, Fraction | float],
    *,
    prices: str | Prices = "link",
    latency: Fraction | float = 0,
    one_way_out: bool = False,
) -> Seconds:
    """Make a list of seconds from bandwidths in bytes/s by axis name; floats are taken exactly.

    With `one_way_out` the axes share a chip's links and their bandwidths don't add up.
    """
    table = tuple(sorted((name, Fraction(value)) for name, value in bandwidths.items()))
    return Seconds(prices_of(prices), table, Fraction(latency), one_way_out)


PRICES: Mapping[str, Prices] = {"book": Book(), "link": Link(), "switch": Switch()}
"""The price lists by name; a list of one's own is any object with the same methods."""


def prices_of(prices: str | Prices) -> Prices:
    """Give a price list by its name; an object is taken as it is."""
    if not isinstance(prices, str):
        return prices
    if prices not in PRICES:
        raise ValueError(f"no prices are called '{prices}': known are {', '.join(PRICES)}")
    return PRICES[prices]


def price(
    op: Relayout,
    operand: Array,
    result: Array,
    mesh: Mesh,
    sizes: Mapping[str, int],
    prices: str | Prices = "link",
) -> Fraction:
    """Give what one relayout of an array costs one device, in the list's unit.

    Needs the sizes of the array's dims and of the axes, in `sizes` or in the mesh.
    """
    known = {**mesh.sizes, **sizes}
    axes = tuple(info for info in sized(mesh, known) if info.axis in op.axes and info.size != 1)
    if not axes or isinstance(op, Slice | Mask):
        return Fraction(0)
    before, after = (array.local_bytes.evaluate(known).number for array in (operand, result))
    assert before is not None
    assert after is not None
    n = 1
    for info in axes:
        n *= info.size or 1
    moved, table = Moved(before, after, axes, n), prices_of(prices)
    match op:
        case AllGather():
            return table.all_gather(moved)
        case ReduceScatter():
            return table.reduce_scatter(moved)
        case AllReduce():
            return table.all_reduce(moved)
        case AllToAll():
            return table.all_to_all(moved)
        case Permute():
            return table.permute(moved)


def price_all(
    steps: Iterable[Step], mesh: Mesh, sizes: Mapping[str, int], prices: str | Prices = "link"
) -> Fraction:
    """Add up what the relayouts among some steps cost one device, in the list's unit.

    Those of a block's body count once a layer, as far as the number of layers is known.
    """
    return sum(
        (
            price(step.op, step.inputs[0], step.output, mesh, sizes, prices)
            * step.times.evaluate(sizes).coefficient
            for step in steps
            if isinstance(step.op, Relayout)
        ),
        Fraction(0),
    )


def price_plan(plan: Plan, prices: str | Prices = "link") -> Fraction:
    """Add up what a plan's relayouts cost one device, those of its microbatches as often as there are some.

    Of what is prefetched the last layer gathers once more, for nobody.
    """
    program = plan.program
    sizes, early = program.sizes.known, {id(step) for step in gathered_ahead(plan)}
    total = Fraction(0)
    for section, step in plan.steps():
        one = price_step(step, program, prices)
        batches = plan.times(section, step) / step.times
        total += one * batches.evaluate(sizes).coefficient
        if id(step) in early:
            total += one * (batches / step.times).evaluate(sizes).coefficient
    return total


def price_step(step: Step, program: Program, prices: str | Prices = "link") -> Fraction:
    """Give what a relayout costs one device in a microbatch, in all layers in which it is done."""
    return price_all((step,), program.mesh, program.sizes.known, prices)


def sized(mesh: Mesh, known: Mapping[str, int]) -> tuple[AxisInfo, ...]:
    """Give the mesh's axes with the sizes that are known filled in; the map wins over the mesh."""
    return tuple(replace(info, size=known.get(info.axis.name, info.size)) for info in mesh.axes)


def mesh_of(mesh: Mesh | str | Mapping[str, int]) -> Mesh:
    """Give a mesh from `X=4,Y=2` or a map of sizes; a mesh is taken as it is."""
    if isinstance(mesh, Mesh):
        return mesh
    if isinstance(mesh, str):
        pairs = [part.partition("=") for part in mesh.replace(" ", "").split(",") if part]
        mesh = {name: int(size) for name, _, size in pairs}
    return Mesh(tuple(AxisInfo(Axis(name), size) for name, size in mesh.items()))
