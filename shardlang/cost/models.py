"""Collective models: what a collective moves and how long that takes, a method a collective.

A method is given what moves (`Moved`) and gives a `Price`: the bytes that one device sends, what the
busiest links carry, and the latency. The simplest form gives a `Formula` instead, the bytes alone:
their time is then bytes over the bandwidth of the axes. `Book` is of that form.

| collective    | V                               | book | link, sent  |
| ------------- | ------------------------------- | ---- | ----------- |
| AllGather     | the result                      | V    | V(n-1)/n    |
| ReduceScatter | the operand                     | V    | V(n-1)/n    |
| AllReduce     | the operand                     | 2V   | 2V(n-1)/n   |
| AllToAll      | the operand times the axis size | V/4  | (V/n)(n-1)/n |
| Permute       | the operand                     | V    | V           |

V is in local bytes, n the product of the axis sizes. An axis of size 1 takes no part: over such axes
alone nothing moves. `Link` also knows the network: rings and lines of a torus, switched and fully
linked nodes, and the data-centre network above them (`shardlang.cost.network`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, Protocol

from shardlang.cost.formula import Floor, Formula, Min, Sum
from shardlang.cost.network import Level, Line, ONE
from shardlang.ir.ops import AllGather, AllReduce, AllToAll, Permute, ReduceScatter
from shardlang.ir.plan import Step
from shardlang.ir.size import Monomial


@dataclass(frozen=True, slots=True)
class Moved:
    """What a model is given: local bytes before and after, the product n of the axis sizes, the network.

    `levels` are the networks that the collective crosses, the innermost (and fastest) first; the
    product of their sizes is n.
    """

    operand: Monomial
    result: Monomial
    n: Monomial
    levels: tuple[Level, ...] = ()


@dataclass(frozen=True, slots=True)
class Load:
    """What the busiest of the links of one level carries in one direction, and that link's bytes/s."""

    bytes: Formula
    bandwidth: Monomial

    @property
    def time(self) -> Formula:
        """Give the seconds that it takes."""
        return self.bytes / self.bandwidth


@dataclass(frozen=True, slots=True)
class Price:
    """What a collective comes to.

    `sent` is in bytes of one device. Links of different levels carry their loads at once, block by
    block, and the latency hides behind them, so that the time is the largest of them all.
    `latencies` are seconds; where there are several, the longest counts.
    """

    sent: Formula
    loads: tuple[Load, ...] = ()
    latencies: tuple[Formula, ...] = ()

    @property
    def time(self) -> Formula:
        """Give the seconds: a lower bound."""
        return Formula.largest((*self.latencies, *(load.time for load in self.loads)))


class Model(Protocol):
    """A collective model: a name, and a method a collective that gives its price.

    A model may list, as `figures`, the hardware figures that its formulas use besides bandwidths.
    They are then names in formulas, with the value that the hardware or `--set` gives them.
    """

    @property
    def name(self) -> str:
        """What reports call it."""
        ...

    def all_gather(self, moved: Moved) -> Price | Formula:
        """Join shards."""
        ...

    def reduce_scatter(self, moved: Moved) -> Price | Formula:
        """Add up and leave split."""
        ...

    def all_reduce(self, moved: Moved) -> Price | Formula:
        """Add up and leave whole."""
        ...

    def all_to_all(self, moved: Moved) -> Price | Formula:
        """Move a split from dim to dim."""
        ...

    def permute(self, moved: Moved) -> Price | Formula:
        """Exchange whole shards."""
        ...


class Book:
    """The book's convention: the size of the gathered array, whatever the axis size.

    Source: How to Scale Your Model, chapter on sharded matrices, the table of its section on
    collectives.
    """

    name = "book"

    def all_gather(self, moved: Moved) -> Formula:
        """Give V, the result."""
        return Formula.of(moved.result)

    def reduce_scatter(self, moved: Moved) -> Formula:
        """Give V, the operand: the dual of AllGather."""
        return Formula.of(moved.operand)

    def all_reduce(self, moved: Moved) -> Formula:
        """Give 2V: a ReduceScatter and an AllGather."""
        return Formula.of(moved.operand * 2)

    def all_to_all(self, moved: Moved) -> Formula:
        """Give V/4 with V the operand over all of the axis: a quarter of the AllGather."""
        return Formula.of(moved.operand * moved.n / 4)

    def permute(self, moved: Moved) -> Formula:
        """Give the operand: each device sends its shard once."""
        return Formula.of(moved.operand)


LATENCIES: Mapping[str, str] = {"T_hop": "hop_latency", "T_dcn": "dcn_latency"}
"""The figures of latency by their names in formulas, with their names in the catalogue."""


@dataclass(frozen=True)
class Link:
    """Exact loads of the busiest link, and hops.

    `one_way` lets rings send in one direction only. `ring_steps` passes blocks around a ring also
    through a switch, in n-1 steps, as NCCL's ring does; else every device writes to every other in
    one step.

    Sources: How to Scale Your Model, the sections on collectives (rings, lines, hops), its questions
    2, 3, 6 and 10, and its chapter on GPUs (switches, two levels); the benchmark notes of nccl-tests,
    PERFORMANCE.md (2(n-1)/n of an AllReduce); Thakur, Rabenseifner and Gropp, Optimization of
    Collective Communication Operations in MPICH, 2005 (the least that each must send).
    """

    name: str = "link"
    one_way: bool = False
    ring_steps: bool = False
    figures: ClassVar[tuple[str, ...]] = tuple(LATENCIES)

    @property
    def in_network(self) -> bool:
        """Whether a switch that can add up does: rings don't let it."""
        return not self.ring_steps

    @property
    def note(self) -> str:
        """Say in a line what the time is."""
        ways = ", rings one way round" if self.one_way else ""
        steps = ", rings through switches" if self.ring_steps else ""
        return f"the busiest link's bytes or the latency of the hops, the longer{ways}{steps}"

    def all_gather(self, moved: Moved) -> Price:
        """Send v(n-1) of the shard v in all, which is V(n-1)/n.

        Outer levels join first, while blocks are small, then the inner ones. On a torus each axis
        in turn is a ring, and parts of the block take the axes in other orders, so that all ports of
        a device are busy: V(n-1)/n over 2 ports an axis that wraps around, 1 at the end of a line.
        (Book: V(n-1)/(n W) on a ring, twice that on a line, 1/M of it on M axes.)
        """
        return self._joining(moved, moved.result)

    def reduce_scatter(self, moved: Moved) -> Price:
        """Give the AllGather's price: each block goes the same way back, added up as it goes (book)."""
        return self._joining(moved, moved.operand)

    def all_reduce(self, moved: Moved) -> Price:
        """Give a ReduceScatter and an AllGather: 2V(n-1)/n; the levels nest (inside, across, inside).

        Behind a switch that adds up what it passes on, a device's link carries V(n+1)/n: all of its
        own partial sums, and its share of the result (NVLink SHARP: NVIDIA/nccl-tests, pull request
        239; the book's chapter on GPUs). That is less than the rings' from n = 4 on, and more for 2,
        where the rings' counts. The bytes stay those of the rings.
        """
        price = self._joining(moved, moved.operand * 2)
        steps = Formula.sum(price.latencies) * Monomial(Fraction(2))
        loads = list(price.loads)
        for i, (level, size) in enumerate(_joined(moved.levels, moved.operand)):
            if level.in_network and self.in_network:
                n, one = level.size, Monomial()
                fewest = Min.of(Sum.of((n, one)), Sum.of((n, one * -1)) * 2)
                loads[i] = Load(Formula.of(size / n * fewest), level.bandwidth)
        return Price(price.sent, tuple(loads), (steps,))

    def all_to_all(self, moved: Moved) -> Price:
        """Send v(n-1)/n of the operand v, each block straight to its device.

        On a torus blocks are forwarded, axis by axis the shortest way, half a turn both ways. Of an
        axis of n each link carries, a direction, floor(n**2/4)/2 blocks of v/n on a ring (V/8 where
        n is even, so the book's V/(4 W)), floor(n**2/4) on a line, (n-1)/2 of v one way round (the
        book's question 10). On several axes the busiest counts, which is the book's
        V*max(sizes)/(4 N W).
        """
        levels = moved.levels
        loads: list[Load] = []
        beyond = Monomial()
        for level in reversed(levels):
            size = moved.operand / beyond
            beyond *= level.size
            if level.lines:
                loads.extend(self._crossing(line, size, level.bandwidth) for line in level.lines)
            else:
                loads.append(Load(_sent(size, level), level.bandwidth))
        hops = [Formula.of(*self._hops(level, direct=True)) * level.latency for level in levels]
        return Price(_all_but_own(moved.operand, moved.n), tuple(loads), tuple(hops))

    def permute(self, moved: Moved) -> Price:
        """Send the operand to one other device, inside or across, over all ports of a device.

        No exchange of a device's whole shard takes less (book: v/W). The nearest device of another
        part of an axis is a stride away.
        """
        loads: list[Load] = []
        hops: list[Formula] = []
        for level in moved.levels:
            ports = self._ports(level.lines) if level.lines else Monomial()
            share = moved.operand / ports
            loads.append(Load(Formula.of(share, *_never(share, level)), level.bandwidth))
            hop = level.latency * (level.lines[0].stride if len(level.lines) == 1 else ONE)
            hops.append(Formula.of(hop, *_never(hop, level)))
        return Price(Formula.of(moved.operand), tuple(loads), tuple(hops))

    def _joining(self, moved: Moved, whole: Monomial) -> Price:
        """Price an AllGather to `whole` or a ReduceScatter of it."""
        loads: list[Load] = []
        hops: list[Formula] = []
        for level, size in _joined(moved.levels, whole):
            if level.lines:
                load = _all_but_own(size, level.size) / self._ports(level.lines)
                loads.extend(self._own_blocks(level, size))
            else:
                load = _sent(size, level)
            loads.append(Load(load, level.bandwidth))
            hops.append(Formula.of(*self._hops(level)) * level.latency)
        return Price(_all_but_own(whole, moved.n), tuple(loads), (Formula.sum(hops),))

    def _ports(self, lines: Iterable[Line]) -> Monomial:
        """Count the links by which the device with the fewest receives, and its share of them."""
        return Sum.of(
            line.links / line.stride * (2 if line.ring and not self.one_way else 1)
            for line in lines
        )

    def _own_blocks(self, level: Level, size: Monomial) -> Iterable[Load]:
        """Give what a line carries at least beside others: its own devices' shards.

        It counts where links are shared with other groups, so that the others take most of the load.
        """
        for line in level.lines if len(level.lines) > 1 else ():
            if line.stride != ONE:
                shard = size / level.size / self._ports((line,))
                yield Load(Formula.of(shard * line.size, shard * -1), level.bandwidth)

    def _hops(self, level: Level, *, direct: bool = False) -> Iterable[Monomial]:
        """Count the hops to the farthest device, as a sum."""
        for line in level.lines:
            if line.ring and not self.one_way:
                yield Floor.of(line.size / 2) * line.stride
            else:
                yield line.size * line.stride
                yield line.stride * -1
        if not level.lines:
            if self.ring_steps and not direct:
                yield level.size
                yield Monomial(Fraction(-1))
            else:
                yield Monomial()
                yield from _never(Monomial(), level)

    def _crossing(self, line: Line, size: Monomial, bandwidth: Monomial) -> Load:
        """Give the load of an AllToAll of `size` bytes a device along one physical axis."""
        if line.ring and self.one_way:
            load = Formula.of(size * line.size / 2, size / -2)
        else:
            blocks = Floor.of(line.size * line.size / 4)
            load = Formula.of(blocks * size / line.size / (2 if line.ring else 1))
        return Load(load * line.stride / line.links, bandwidth)


def _joined(levels: Sequence[Level], whole: Monomial) -> Iterable[tuple[Level, Monomial]]:
    """Give each level with the bytes of a device's array after it: outer ones have fewer."""
    for level in levels:
        yield level, whole
        whole /= level.size


def _sent(size: Monomial, level: Level) -> Formula:
    """Give what one link of a device carries that writes all but its own share to the others."""
    if level.pairs:
        return Formula.of(size / level.size, *_never(size, level))
    return _all_but_own(size, level.size)


def _never(value: Monomial, level: Level) -> Iterable[Monomial]:
    """Take a value away where a level of open size turns out to have size 1."""
    if level.open:
        yield value * Floor.of(Monomial() / level.size) * -1


def _all_but_own(size: Monomial, n: Monomial) -> Formula:
    return Formula.of(size, size / n * -1)


MODELS: Mapping[str, Model] = {
    "book": Book(),
    "link": Link(),
    "link-one-way": Link("link-one-way", one_way=True),
    "link-ring": Link("link-ring", ring_steps=True),
}
"""The models by name; a model of one's own is any object with the same methods."""

COST: Mapping[type, str] = {
    AllGather: "all_gather",
    ReduceScatter: "reduce_scatter",
    AllReduce: "all_reduce",
    AllToAll: "all_to_all",
    Permute: "permute",
}
"""The method of a model that prices a collective."""


def price(model: Model, step: Step, moved: Moved) -> Price | Formula:
    """Give what a collective comes to; where no axis counts (n is 1) nothing moves."""
    method = COST.get(type(step.op))
    if method is None:
        raise LookupError(f"internal error: {type(step.op).__name__} has no row in the table COST")
    if moved.n == Monomial():
        return Formula()
    result: Price | Formula = getattr(model, method)(moved)
    return result


def bytes_moved(model: Model, step: Step, moved: Moved) -> Formula:
    """Give the bytes of one device that a collective comes to."""
    found = price(model, step, moved)
    return found.sent if isinstance(found, Price) else found
