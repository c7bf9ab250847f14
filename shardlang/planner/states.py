"""The layouts of a tensor as a graph: every move between them with its exact price.

A state is an ordered list of axes per dim and the set of unreduced axes; every other axis is
replicated over. The moves are those of `rules.collectives`, over one axis or several at once:

| move          | what it does                                             | price         |
| ------------- | -------------------------------------------------------- | ------------- |
| AllGather     | takes a suffix of one dim's axes off                     | the list's    |
| AllToAll      | moves a suffix of one dim to the inside of another       | the list's    |
| AllReduce     | finishes any subset of the unreduced axes                | the list's    |
| ReduceScatter | finishes an ordered subset of them, inside one dim       | the list's    |
| Permute       | goes to any state of the same local shape and partials   | the list's    |
| Slice         | puts an idle axis inside a dim; never an unreduced one   | free          |
| Mask          | makes an idle axis unreduced                             | free          |

A Permute needs a bijection of devices, and there always is one: two states with the same number of
shards in every dim cut the tensor into the same blocks. With the same unreduced axes, a *place* is a
block together with one index along those axes, and either state deals the N devices out to the same
p places, exactly N/p to each. Pair, for each place, its holders before with its holders after. This
holds for idle axes as well as for those that split a dim. Of every dim's axes, a beginning and an end
that stay the same may be left out of it, since the blocks' numbers have mixed radixes.

Weights are integers: bytes (or seconds) in a common unit, then the number of collectives, then that
of moves, one field above the other, so that comparing two weights is comparing lexicographically. A
Slice or a Mask counts one move an axis. Moves over axes of size 1 alone cost nothing.

States are integers, generated as a search reaches them: the field of a dim holds the number of its
ordered axes in a list of all ordered subsets, and above the dims stand the unreduced axes and how
they combine. A Permute goes through a *hub*, a node for all states of one local shape.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from heapq import heapify, heappop, heappush
from math import lcm, prod
from typing import TYPE_CHECKING

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
from shardlang.ir.types import Axis, AxisInfo, Dim, Layout, Reduction
from shardlang.planner.prices import Moved, Prices

if TYPE_CHECKING:
    from shardlang.planner.network import Network

MOVE = 1
"""The weight of a move, in the lowest field."""

COLLECTIVE = 1 << 12
"""The weight of a collective, in the middle field."""

UNIT = 1 << 24
"""The weight of a unit of bytes or seconds, in the highest field."""

KINDS: tuple[Reduction, ...] = ("sum", "max", "min")
"""How partial results combine, by the number that states use."""

Edge = tuple[int, int]
"""A state that a move leads to, and the move's weight."""

_SEARCHES = 512
"""How many searches a space remembers."""


@dataclass(frozen=True, slots=True)
class Tariff:
    """The weights of all collectives of one mesh and volume, by masks of axes.

    `gather[split][group]` and so on: `split` are the axes that split the operand. `scale` units make
    one byte (or second) of the list. `flat[split]` is a Permute's weight where it is the same for
    all axes, else None.
    """

    scale: int
    gather: Sequence[Mapping[int, int]]
    exchange: Sequence[Mapping[int, int]]
    reduce: Sequence[Mapping[int, int]]
    scatter: Sequence[Mapping[int, int]]
    permute: Sequence[Mapping[int, int]]
    flat: Sequence[int | None]


def tariff(axes: Sequence[AxisInfo], prices: Prices, volume: Fraction) -> Tariff:
    """Ask a price list for everything that can happen to an array of `volume` bytes."""
    full = (1 << len(axes)) - 1
    counts = [prod(axes[a].size or 1 for a in _bits(mask)) for mask in range(full + 1)]
    large = sum(1 << a for a, info in enumerate(axes) if info.size != 1)
    rows: dict[str, list[dict[int, Fraction]]] = {}
    for kind in ("gather", "exchange", "reduce", "scatter", "permute"):
        ask = {
            "gather": prices.all_gather,
            "exchange": prices.all_to_all,
            "reduce": prices.all_reduce,
            "scatter": prices.reduce_scatter,
            "permute": prices.permute,
        }[kind]
        rows[kind] = table = []
        for split in range(full + 1):
            operand = volume / counts[split]
            row: dict[int, Fraction] = {}
            for group in range(1, full + 1):
                inside = group & split == group
                outside = not group & split
                if (kind in ("gather", "exchange") and not inside) or (
                    kind in ("reduce", "scatter") and not outside
                ):
                    continue
                n = counts[group]
                if n == 1:
                    row[group] = Fraction(0)
                    continue
                result = {"gather": operand * n, "scatter": operand / n}.get(kind, operand)
                counting = tuple(axes[a] for a in _bits(group & large))
                row[group] = Fraction(ask(Moved(operand, result, counting, n)))
                if row[group] < 0:
                    raise ValueError(f"the prices '{prices.name}' go below zero")
            table.append(row)
    scale = lcm(*(p.denominator for t in rows.values() for row in t for p in row.values()))

    def weights(kind: str) -> list[dict[int, int]]:
        return [
            {
                group: int(p * scale) * UNIT + (COLLECTIVE if group & large else 0) + MOVE
                for group, p in row.items()
            }
            for row in rows[kind]
        ]

    permute = weights("permute")
    flat: list[int | None] = []
    for weights_of in permute:
        found = {weight for group, weight in weights_of.items() if group & large}
        flat.append(found.pop() if len(found) == 1 else None)
    return Tariff(
        scale,
        weights("gather"),
        weights("exchange"),
        weights("reduce"),
        weights("scatter"),
        permute,
        flat,
    )


def scaled(weight: int, scale: int) -> int:
    """Multiply a weight's price, and leave its counts."""
    return weight + weight // UNIT * (scale - 1) * UNIT


def _bits(mask: int) -> list[int]:
    return [a for a in range(mask.bit_length()) if mask >> a & 1]


def _changed(left: Sequence[int], right: Sequence[int]) -> int:
    """Give what either order has between the beginning and the end that both have."""
    while left and right and left[0] == right[0]:
        left, right = left[1:], right[1:]
    while left and right and left[-1] == right[-1]:
        left, right = left[:-1], right[:-1]
    return sum(1 << a for a in {*left, *right})


def _submasks(mask: int) -> Iterable[int]:
    sub = mask
    while sub:
        yield sub
        sub = (sub - 1) & mask


@dataclass(frozen=True, slots=True)
class Tree:
    """Moves that make several states of one: their weight, and routes whose starts come earlier."""

    weight: int
    legs: tuple[tuple[int, ...], ...]


class Search:
    """Dijkstra from one state, or to one, that stops when it knows enough and can go on later.

    Of routes with equal weights it keeps the one through the states that come first in (weight,
    number), which depends on the graph alone: equal questions get equal answers.
    """

    def __init__(self, expand: Callable[[int], Sequence[Edge]], start: int) -> None:
        """Begin at a state; `expand` gives a node's edges, forwards or backwards."""
        self._expand = expand
        self._heap: list[Edge] = [(0, start)]
        self._known: dict[int, int] = {start: 0}
        self._before: dict[int, int] = {}
        self.settled: dict[int, int] = {}

    def until(self, goal: int | None = None) -> int | None:
        """Go on until a state is settled, or all are; give its weight, None where none leads there."""
        if goal in self.settled:
            return self.settled[goal]
        heap, known, settled, before = self._heap, self._known, self.settled, self._before
        while heap:
            weight, node = heappop(heap)
            if node in settled:
                continue
            settled[node] = weight
            for other, more in self._expand(node):
                total = weight + more
                best = known.get(other)
                if best is None or total < best:
                    known[other] = total
                    before[other] = node
                    heappush(heap, (total, other))
            if node == goal:
                return weight
        return None

    def trail(self, node: int) -> list[int]:
        """Give the nodes from the search's start to a settled one."""
        found = [node]
        while found[-1] in self._before:
            found.append(self._before[found[-1]])
        return found[::-1]


class Space:
    """All states of a tensor of some rank on a mesh, with exact distances.

    `fits[d][mask]` says whether the axes of a mask divide dim d. `made` are pairs of states: of the
    first the second is made in any case, so that moving on there costs nothing. `permutes` says whether
    a Permute may be one of the moves.
    """

    def __init__(
        self,
        axes: Sequence[AxisInfo],
        fits: Sequence[Sequence[bool]],
        prices: Tariff,
        made: Sequence[tuple[Layout, Layout]] = (),
        *,
        permutes: bool = True,
    ) -> None:
        """Number the ordered subsets of the axes; no state is made yet."""
        self.permutes = permutes
        self.axes = tuple(info.axis for info in axes)
        self.rank = len(fits)
        self.fits = fits
        self.tariff = prices
        many = len(axes)
        self.full = (1 << many) - 1
        self.ones = sum(1 << a for a, info in enumerate(axes) if info.size == 1)
        self.orders: list[tuple[int, ...]] = [
            order for size in range(many + 1) for order in itertools.permutations(range(many), size)
        ]
        self.number = {order: index for index, order in enumerate(self.orders)}
        self.masks = [sum(1 << a for a in order) for order in self.orders]
        self.counts = [prod(axes[a].size or 1 for a in order) for order in self.orders]
        self.cuts = [
            [(self.number[order[:at]], self.number[order[at:]]) for at in range(len(order))]
            for order in self.orders
        ]
        self.width = (len(self.orders) - 1).bit_length() or 1
        self.field = (1 << self.width) - 1
        self.shifts = [self.width * d for d in range(self.rank)]
        self.high = self.width * self.rank
        self.kind = self.high + many
        self.hub = 1 << (self.kind + 2)
        self._by_count: dict[int, list[int]] = {}
        for index, count in enumerate(self.counts):
            self._by_count.setdefault(count, []).append(index)
        self._made = [(self.encode(before), self.encode(after)) for before, after in made]
        self._joined: dict[tuple[int, int], int] = {}
        self._within: dict[int, list[int]] = {}
        self._forward: dict[int, list[Edge]] = {}
        self._backward: dict[int, list[Edge]] = {}
        self._members: dict[tuple[tuple[int, ...], int], list[int]] = {}
        self._hubs: dict[int, list[int]] = {}
        self._from: dict[int, Search] = {}
        self._to: dict[int, Search] = {}
        self._networks: dict[tuple[int, ...], Network] = {}

    # States and layouts ---------------------------------------------------------------------

    def encode(self, layout: Layout) -> int:
        """Give the number of a layout over this mesh's axes."""
        place = {axis: a for a, axis in enumerate(self.axes)}
        code = 0
        for shift, axes in zip(self.shifts, layout.sharding, strict=True):
            code |= self.number[tuple(place[axis] for axis in axes)] << shift
        partial = sum(1 << place[axis] for axis in layout.unreduced)
        kind = KINDS.index(layout.reduction) if partial else 0
        return code | partial << self.high | kind << self.kind

    def decode(self, code: int) -> Layout:
        """Give the layout that a number stands for."""
        sharding = tuple(
            tuple(self.axes[a] for a in self.orders[code >> shift & self.field])
            for shift in self.shifts
        )
        partial = code >> self.high & self.full
        unreduced = frozenset(self.axes[a] for a in _bits(partial))
        return Layout(sharding, unreduced, KINDS[code >> self.kind & 3])

    def parts(self, code: int) -> tuple[list[int], int, int]:
        """Give a state's order numbers by dim, its unreduced axes, and how they combine."""
        dims = [code >> shift & self.field for shift in self.shifts]
        return dims, code >> self.high & self.full, code >> self.kind & 3

    def used(self, code: int) -> int:
        """Give the axes that split something in a state, or are unreduced, as a mask."""
        dims, partial, _ = self.parts(code)
        return partial | sum(self.masks[index] for index in dims)

    def states(self) -> list[int]:
        """List every state whose partial results are sums, in order of their numbers."""
        found: list[int] = []

        def place(dim: int, used: int, code: int) -> None:
            if dim == self.rank:
                rest = self.full & ~used
                found.extend(code | sub << self.high for sub in (0, *_submasks(rest)))
                return
            for index, mask in enumerate(self.masks):
                if not mask & used and self.fits[dim][mask]:
                    place(dim + 1, used | mask, code | index << self.shifts[dim])

        place(0, 0, 0)
        return sorted(found)

    def _join(self, outer: int, inner: int) -> int:
        key = (outer, inner)
        if key not in self._joined:
            self._joined[key] = self.number[self.orders[outer] + self.orders[inner]]
        return self._joined[key]

    def _inside(self, mask: int) -> list[int]:
        """List the orders, not empty, of axes of a mask."""
        if mask not in self._within:
            bits = _bits(mask)
            self._within[mask] = [
                self.number[order]
                for size in range(1, len(bits) + 1)
                for order in itertools.permutations(bits, size)
            ]
        return self._within[mask]

    # Moves ----------------------------------------------------------------------------------

    def successors(self, node: int) -> list[Edge]:
        """List where one move leads from a state, or from a hub, with weights."""
        edges = self._forward.get(node)
        if edges is None:
            edges = self._forward[node] = self._leave(node)
        return edges

    def predecessors(self, node: int) -> list[Edge]:
        """List from where one move leads to a state, or to a hub, with weights."""
        edges = self._backward.get(node)
        if edges is None:
            edges = self._backward[node] = self._arrive(node)
        return edges

    def _leave(self, node: int) -> list[Edge]:
        if node & self.hub:
            return [(member, 0) for member in self._hubs[node]]
        dims, partial, kind = self.parts(node)
        masks = [self.masks[index] for index in dims]
        split = sum(masks)
        idle = self.full & ~split & ~partial
        gather, exchange = self.tariff.gather[split], self.tariff.exchange[split]
        edges: list[Edge] = []
        for dim, index in enumerate(dims):
            shift, fits = self.shifts[dim], self.fits[dim]
            for rest, group in self.cuts[index]:
                less = node + (rest - index << shift)
                mask = self.masks[group]
                edges.append((less, gather[mask]))
                for other, own in enumerate(dims):
                    if other != dim and self.fits[other][masks[other] | mask]:
                        more = self._join(own, group) - own << self.shifts[other]
                        edges.append((less + more, exchange[mask]))
            for a in _bits(idle):
                if fits[masks[dim] | 1 << a]:
                    more = self._join(index, self.number[a,]) - index << shift
                    edges.append((node + more, MOVE))
            if partial and not kind:
                scatter = self.tariff.scatter[split]
                for group in self._inside(partial):
                    mask = self.masks[group]
                    if fits[masks[dim] | mask]:
                        more = self._join(index, group) - index << shift
                        edges.append((node + more - (mask << self.high), scatter[mask]))
        for sub in _submasks(partial):
            code = node - (sub << self.high)
            if sub == partial:
                code -= kind << self.kind
            edges.append((code, self.tariff.reduce[split][sub]))
        if not kind:
            edges.extend((node + (1 << a + self.high), MOVE) for a in _bits(idle))
        edges.extend(self._permutes(node, dims, split))
        edges.extend((after, MOVE) for before, after in self._made if before == node)
        return edges

    def _arrive(self, node: int) -> list[Edge]:
        """Undo each move; what an AllReduce leaves whole is taken to have been partial sums."""
        if node & self.hub:
            return [(member, self._entry(member)) for member in self._hubs[node]]
        dims, partial, kind = self.parts(node)
        masks = [self.masks[index] for index in dims]
        split = sum(masks)
        idle = self.full & ~split & ~partial
        edges: list[Edge] = []
        for dim, index in enumerate(dims):
            shift, fits = self.shifts[dim], self.fits[dim]
            for group in self._inside(idle):
                mask = self.masks[group]
                if fits[masks[dim] | mask]:
                    more = self._join(index, group) - index << shift
                    edges.append((node + more, self.tariff.gather[split | mask][mask]))
            for rest, group in self.cuts[index]:
                less = node + (rest - index << shift)
                mask = self.masks[group]
                for other, own in enumerate(dims):
                    if other != dim and self.fits[other][masks[other] | mask]:
                        more = self._join(own, group) - own << self.shifts[other]
                        edges.append((less + more, self.tariff.exchange[split][mask]))
                if not kind:
                    scatter = self.tariff.scatter[split & ~mask][mask]
                    edges.append((less + (mask << self.high), scatter))
                if len(self.orders[group]) == 1:
                    edges.append((less, MOVE))
        finish = self.tariff.reduce[split]
        edges.extend((node + (sub << self.high), finish[sub]) for sub in _submasks(idle))
        if not kind:
            edges.extend((node - (1 << a + self.high), MOVE) for a in _bits(partial))
        edges.extend(self._permutes(node, dims, split, backwards=True))
        edges.extend((before, MOVE) for before, after in self._made if after == node)
        return edges

    def _entry(self, member: int) -> int:
        """Give the weight of a Permute from a state that has a hub: all of its states pay the same."""
        weight = self.tariff.flat[sum(self.masks[index] for index in self.parts(member)[0])]
        assert weight is not None
        return weight

    def _permutes(
        self, node: int, dims: list[int], split: int, *, backwards: bool = False
    ) -> list[Edge]:
        """Give the edge to the hub of a state's local shape, or edges to all of its states."""
        if not self.permutes:
            return []
        above = node >> self.high
        shape = tuple(self.counts[index] for index in dims)
        allowed = self.full & ~(above & self.full)
        key = (shape, allowed)
        members = self._members.get(key)
        if members is None:
            members = self._members[key] = self._arrangements(*key)
        if len(members) == 1:
            return []
        low = node & ((1 << self.high) - 1)
        edges: list[Edge] = []
        if self.ones:
            squeezed = self._squeezed(low)
            edges += [
                (other | above << self.high, MOVE)
                for other in members
                if other != low and self._squeezed(other) == squeezed
            ]
        if self.tariff.flat[split] is not None:
            hub = self.hub | members[0] | above << self.high
            if hub not in self._hubs:
                self._hubs[hub] = [member | above << self.high for member in members]
            return [*edges, (hub, 0 if backwards else self._entry(node))]
        for other in members:
            moved = self.moved(low, other)
            if other != low and moved & ~self.ones:
                their = sum(self.masks[index] for index in self.parts(other)[0])
                weight = self.tariff.permute[their if backwards else split][moved]
                edges.append((other | above << self.high, weight))
        return edges

    def _arrangements(self, shape: tuple[int, ...], allowed: int) -> list[int]:
        """List the ways to split dims into given numbers of shards, as states with no partials."""
        found: list[int] = []

        def place(dim: int, free: int, code: int) -> None:
            if dim == self.rank:
                found.append(code)
                return
            for index in self._by_count[shape[dim]]:
                mask = self.masks[index]
                if not mask & ~free and self.fits[dim][mask]:
                    place(dim + 1, free & ~mask, code | index << self.shifts[dim])

        place(0, allowed, 0)
        return sorted(found)

    def _squeezed(self, code: int) -> tuple[tuple[int, ...], ...]:
        return tuple(
            tuple(a for a in self.orders[index] if not self.ones >> a & 1)
            for index in self.parts(code)[0]
        )

    def moved(self, before: int, after: int) -> int:
        """Give the axes along which a Permute moves shards: each dim's but for what stays at its ends."""
        mask = 0
        for have, want in zip(self.parts(before)[0], self.parts(after)[0], strict=True):
            left, right = self.orders[have], self.orders[want]
            mask |= _changed(left, right) & self.ones
            if self.ones:
                left, right = (tuple(a for a in o if not self.ones >> a & 1) for o in (left, right))
            mask |= _changed(left, right)
        return mask

    # Distances ------------------------------------------------------------------------------

    def forward(self, source: int) -> Search:
        """Give the search from a state, remembered."""
        return _remembered(self._from, self.successors, source)

    def backward(self, target: int) -> Search:
        """Give the search to a state, remembered; it starts from no partial maxima (see `_arrive`)."""
        return _remembered(self._to, self.predecessors, target)

    def distance(self, source: int, target: int) -> int | None:
        """Give the least weight from a state to another, or None where no moves lead there."""
        done = self._to.get(target)
        if done is not None and source in done.settled:
            return done.settled[source]
        return self.forward(source).until(target)

    def distances_from(self, source: int) -> Mapping[int, int]:
        """Give the least weight from a state to each node that it reaches, hubs among them."""
        search = self.forward(source)
        search.until()
        return search.settled

    def distances_to(self, target: int) -> Mapping[int, int]:
        """Give the least weight to a state from each node that reaches it, hubs among them."""
        search = self.backward(target)
        search.until()
        return search.settled

    def trail(self, source: int, target: int, *, backwards: bool = False) -> list[int]:
        """Give the nodes of a least route, both ends included; the states must be connected.

        `backwards` reads it off the search to the target, for callers that have made that one.
        """
        search = self.backward(target) if backwards else self.forward(source)
        found = search.until(source if backwards else target)
        assert found is not None
        return search.trail(source)[::-1] if backwards else search.trail(target)

    def tree(self, source: int, targets: Sequence[int]) -> Tree | None:
        """Give the least moves that make several states of one, each move paid once.

        That is a Steiner arborescence; this is the dynamic program of Dreyfus and Wagner over subsets
        of the targets, with Dijkstra between branchings. Exact; the time grows as 3**targets.
        """
        every = (1 << len(targets)) - 1
        best: dict[int, Mapping[int, int]] = {}
        onward: dict[int, dict[int, int]] = {}
        branch: dict[int, dict[int, int]] = {}
        for subset in range(1, every + 1):
            if subset.bit_count() == 1:
                best[subset] = self.distances_to(targets[subset.bit_length() - 1])
                continue
            branch[subset] = {}
            start: dict[int, int] = {}
            for part in _submasks(subset & (subset - 1)):
                one, two = best[part], best[subset ^ part]
                for node, weight in one.items():
                    if not node & self.hub and node in two:
                        total = weight + two[node]
                        if node not in start or total < start[node]:
                            start[node], branch[subset][node] = total, part
            best[subset], onward[subset] = self.spread(start, backwards=True)
        before: list[tuple[int, ...]] = []
        total, root = best[every].get(source), source
        if total is None:
            there = self.distances_from(source)
            joint = [(w + best[every][n], n) for n, w in there.items() if n in best[every]]
            if not joint:
                return None
            total, root = min(joint)
            before.append(tuple(self.trail(source, root)))

        def legs(subset: int, node: int) -> Iterator[tuple[int, ...]]:
            if subset.bit_count() == 1:
                target = targets[subset.bit_length() - 1]
                yield tuple(self.trail(node, target, backwards=True))
                return
            leg = [node]
            while leg[-1] in onward[subset]:
                leg.append(onward[subset][leg[-1]])
            yield tuple(leg)
            part = branch[subset][leg[-1]]
            yield from legs(part, leg[-1])
            yield from legs(subset ^ part, leg[-1])

        return Tree(total, (*before, *legs(every, root)))

    def spread(
        self, start: Mapping[int, int], *, backwards: bool = False, scale: int = 1
    ) -> tuple[dict[int, int], dict[int, int]]:
        """Extend weights at some nodes to all that they lead to, or that lead to them.

        Gives the least weights, and for each node but the starts the neighbor that its weight comes
        from. `scale` multiplies the prices of moves: planners that add up weights of tensors of
        different sizes put them into one unit with it.
        """
        expand = self.predecessors if backwards else self.successors
        known = dict(start)
        via: dict[int, int] = {}
        settled: dict[int, int] = {}
        heap = [(weight, node) for node, weight in start.items()]
        heapify(heap)
        while heap:
            weight, node = heappop(heap)
            if node in settled:
                continue
            settled[node] = weight
            for other, more in expand(node):
                total = weight + more if scale == 1 else weight + scaled(more, scale)
                if other not in known or total < known[other]:
                    known[other], via[other] = total, node
                    heappush(heap, (total, other))
        return settled, via

    def exchanges(self) -> Iterator[Callable[[int], int]]:
        """Give what the exchange of two dims makes of a state, and that of two axes, for every two."""

        def dims(one: int, two: int) -> Callable[[int], int]:
            def exchange(code: int) -> int:
                low, high = code >> self.shifts[one], code >> self.shifts[two]
                both = (low ^ high) & self.field
                return code ^ both << self.shifts[one] ^ both << self.shifts[two]

            return exchange

        def axes(one: int, two: int) -> Callable[[int], int]:
            to = {one: two, two: one}
            turned = [self.number[tuple(to.get(a, a) for a in order)] for order in self.orders]

            def exchange(code: int) -> int:
                own, partial, kind = self.parts(code)
                both = (partial >> one ^ partial >> two) & 1
                partial ^= both << one | both << two
                made = partial << self.high | kind << self.kind
                for shift, index in zip(self.shifts, own, strict=True):
                    made |= turned[index] << shift
                return made

            return exchange

        yield from itertools.starmap(dims, itertools.combinations(range(self.rank), 2))
        yield from itertools.starmap(axes, itertools.combinations(range(len(self.axes)), 2))

    def network(self, extra: Sequence[int] = ()) -> Network:
        """Give the graph over all states of sums, and some of partial maxima, as arrays; made once."""
        from shardlang.planner.network import Network  # noqa: PLC0415 (only programs need numpy)

        key = tuple(extra)
        if key not in self._networks:
            self._networks[key] = Network(self, [*self.states(), *key])
        return self._networks[key]

    def relayouts(self, trail: Sequence[int], dims: Sequence[Dim]) -> list[tuple[Relayout, Layout]]:
        """Turn the nodes of a route into operations and the layouts that they make.

        Slices in a row are one operation a dim, and masks in a row are one.
        """
        moves: list[tuple[Relayout, Layout]] = []
        states = [node for node in trail if not node & self.hub]
        for before, after in itertools.pairwise(states):
            moves.append((self._operation(before, after, dims), self.decode(after)))
        return _merged(self.decode(states[0]), moves, dims)

    def _operation(self, before: int, after: int, dims: Sequence[Dim]) -> Relayout:
        (have, partial, _), (want, left, _) = self.parts(before), self.parts(after)
        lost: list[tuple[Dim, tuple[int, ...]]] = []
        gained: list[tuple[Dim, tuple[int, ...]]] = []
        for dim, old, new in zip(dims, have, want, strict=True):
            a, b = self.orders[old], self.orders[new]
            if a == b:
                continue
            if a[: len(b)] == b:
                lost.append((dim, a[len(b) :]))
            elif b[: len(a)] == a:
                gained.append((dim, b[len(a) :]))
            else:
                return self._permute(before, after)
        if partial != left:
            axes = self._named(_bits(partial ^ left))
            if left & ~partial:
                return Mask(axes)
            return (
                ReduceScatter(self._named(gained[0][1]), gained[0][0])
                if gained
                else AllReduce(axes)
            )
        match lost, gained:
            case [(dim, axes)], []:
                return AllGather(self._named(axes), dim)
            case [], [(dim, axes)]:
                return Slice(self._named(axes), dim)
            case [(source, axes)], [(dim, same)] if axes == same:
                return AllToAll(self._named(axes), source, dim)
            case _:
                return self._permute(before, after)

    def _permute(self, before: int, after: int) -> Permute:
        return Permute(self._named(_bits(self.moved(before, after))))

    def _named(self, axes: Iterable[int]) -> tuple[Axis, ...]:
        return tuple(self.axes[a] for a in axes)


def _remembered(
    searches: dict[int, Search], expand: Callable[[int], Sequence[Edge]], start: int
) -> Search:
    search = searches.get(start)
    if search is None:
        while len(searches) >= _SEARCHES:
            del searches[next(iter(searches))]
        search = searches[start] = Search(expand, start)
    return search


def _merged(
    start: Layout, moves: Sequence[tuple[Relayout, Layout]], dims: Sequence[Dim]
) -> list[tuple[Relayout, Layout]]:
    """Join the slices of a run by dim, in order of the dims, and the masks of a run."""
    found: list[tuple[Relayout, Layout]] = []
    current = start
    for kind, run in itertools.groupby(moves, key=lambda move: type(move[0])):
        group = list(run)
        after = group[-1][1]
        if kind is Mask:
            gained = after.unreduced - current.unreduced
            found.append((Mask(tuple(sorted(gained))), after))
        elif kind is Slice:
            sharding = list(current.sharding)
            for index, dim in enumerate(dims):
                axes = after.sharding[index][len(sharding[index]) :]
                if axes:
                    sharding[index] = after.sharding[index]
                    made = Layout(tuple(sharding), current.unreduced, current.reduction)
                    found.append((Slice(axes, dim), made))
        else:
            found.extend(group)
        current = after
    return found


def divisors(axes: Sequence[AxisInfo], size: int) -> tuple[bool, ...]:
    """Say, for each mask of axes, whether together they divide a dim."""
    return tuple(
        size % prod(axes[a].size or 1 for a in _bits(mask)) == 0 for mask in range(1 << len(axes))
    )
