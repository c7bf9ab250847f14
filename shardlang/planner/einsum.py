"""The cheapest plan of one einsum: from given layouts of its operands to a given one of its result.

A plan reshards the operands, multiplies locally, and reshards the result. For the multiplication each
mesh axis has one role (rules.local):

- *of a dim*: the dim is split by it in every operand that has it, and the others are replicated over
  it; so is the result, or it is unreduced over the axis where the dim is contracted;
- *through an operand*: that operand is unreduced over it, the others are replicated, and the result
  is unreduced;
- *none*: everything is replicated over it, and the work is repeated.

Axes of one dim have one order, the same in all operands. All of this is enumerated, and each choice
is priced by exact distances, so that the answer is exact for the prices given. What is least is, in
this order: the price, the FLOPs of a device, the number of collectives, the number of moves.

An operand that stands twice is resharded once where both places want one layout, and along a shared
beginning of both routes where they don't.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from math import lcm, prod

from shardlang.ir.ops import Einsum
from shardlang.ir.plan import Step
from shardlang.ir.types import Array, AxisInfo, Dim, Mesh
from shardlang.planner.errors import NoRoute, wrong
from shardlang.planner.prices import Prices, prices_of, sized
from shardlang.planner.reshard import (
    check_layout,
    count_collectives,
    extent,
    Layouts,
    layouts,
    refined,
    refinements,
    steps_along,
)
from shardlang.planner.states import Tree, UNIT


@dataclass(frozen=True, slots=True)
class EinsumPlan:
    """A plan's steps, in order; what one device pays, in the list's unit; and its FLOPs.

    FLOPs count as in `cost.flops`: 2 a point of a contraction's index space. `mesh` is the one that
    the steps are on: the mesh given, or one with some of its axes split.
    """

    steps: tuple[Step, ...]
    cost: Fraction
    flops: Fraction
    mesh: Mesh

    @property
    def collectives(self) -> int:
        """How many of the steps move data; over axes of size 1 none does."""
        return count_collectives(self.steps, self.mesh)

    @property
    def local(self) -> Step:
        """The multiplication."""
        return next(step for step in self.steps if step.is_compute)


@dataclass(frozen=True, slots=True)
class Local:
    """A way to multiply locally: a state for each operand and for the result.

    `split` are the axes that divide the work.
    """

    operands: tuple[int, ...]
    result: int
    split: int


def local_ways(
    op: Einsum,
    operands: Sequence[tuple[Layouts, tuple[Dim, ...]]],
    result: tuple[Layouts, tuple[Dim, ...]],
) -> Iterator[Local]:
    """List every way to multiply locally, as states of the operands' and the result's graphs."""
    ends = (*operands, result)
    spaces = [graph.space for graph, _ in ends]
    dims = list(dict.fromkeys(dim for _, own in ends for dim in own))
    gone = set(op.contracted)
    space = spaces[0]
    last = len(operands)
    places = [
        [(i, own.index(dim)) for i, (_, own) in enumerate(ends) if dim in own] for dim in dims
    ]
    fits = [
        [all(spaces[i].fits[d][mask] for i, d in where) for mask in range(space.full + 1)]
        for where in places
    ]
    highs = [each.high for each in spaces]

    def roles(at: int, free: int, split: int, codes: tuple[int, ...]) -> Iterator[Local]:
        if at == len(dims):
            yield from partials(0, free, codes, split)
            return
        where = places[at]
        for index, mask in enumerate(space.masks):
            if mask & ~free or not fits[at][mask]:
                continue
            made = list(codes)
            for i, d in where:
                made[i] |= index << spaces[i].shifts[d]
            if dims[at] in gone:
                made[last] |= mask << highs[last]
            yield from roles(at + 1, free & ~mask, split | mask, tuple(made))

    def partials(operand: int, free: int, codes: tuple[int, ...], split: int) -> Iterator[Local]:
        if operand == last or not free:
            yield Local(codes[:last], codes[last], split)
            return
        sub = free
        while True:
            if sub:
                made = list(codes)
                made[operand] |= sub << highs[operand]
                made[last] |= sub << highs[last]
                yield from partials(operand + 1, free & ~sub, tuple(made), split)
            else:
                yield from partials(operand + 1, free, codes, split)
                return
            sub = (sub - 1) & free

    yield from roles(0, space.full, 0, (0,) * len(ends))


def plan_einsum(
    op: Einsum,
    operands: tuple[Array, ...],
    result: Array,
    mesh: Mesh,
    sizes: Mapping[str, int],
    prices: str | Prices = "link",
    *,
    rate: Fraction | float | None = None,
    sub_axes: bool = False,
) -> EinsumPlan:
    """Find the cheapest plan of an einsum, all of its operands multiplied at once.

    Ties are broken by FLOPs, then by the number of collectives. With a `rate`, the FLOPs/s of one
    device, and prices in seconds, the aim is time: that of the FLOPs or of the collectives,
    whichever is longer, then their sum, then the number of collectives. With `sub_axes`, plans on
    meshes with some axes split count as well. Raises `ShardlangError` as `reshard` does.
    """
    on = Mesh(sized(mesh, sizes))
    table = prices_of(prices)
    speed = None if rate is None else Fraction(rate)
    best, key = _plan(op, (*operands, result), on, sizes, table, speed)
    if not sub_axes:
        return best
    dims = {dim for array in (*operands, result) for dim in array.tensor.dims}
    for finer, parts in refinements(on, dims):
        ends = tuple(refined(array, parts) for array in (*operands, result))
        known = {**sizes, **finer.sizes}
        plan, cost = _plan(op, ends, finer, known, table, speed)
        if cost[:2] < key[:2]:
            best, key = plan, cost
    return best


Key = tuple[Fraction, Fraction, int]
"""What plans are compared by, first things first; the last is a weight's counts."""


def _plan(
    op: Einsum,
    ends: tuple[Array, ...],
    mesh: Mesh,
    sizes: Mapping[str, int],
    prices: Prices,
    rate: Fraction | None,
) -> tuple[EinsumPlan, Key]:
    """Find the cheapest plan on one mesh, and what it was compared by; the result is the last end."""
    known = {**mesh.sizes, **sizes}
    *operands, result = ends
    graphs = [layouts(a, mesh, sizes, prices) for a in ends]
    for array in ends:
        check_layout(array, mesh, sizes)
    codes = [g.space.encode(a.layout) for g, a in zip(graphs, ends, strict=True)]
    common = lcm(*(graph.factor.denominator for graph in graphs))
    factors = [int(graph.factor * common) for graph in graphs]
    groups = _groups(operands)
    shared = _Shared(graphs, codes)
    single = [(g[0], graphs[g[0]].space.distances_from(codes[g[0]])) for g in groups if len(g) == 1]
    after = graphs[-1].space.distances_to(codes[-1])
    flops = _flops(op, ends, mesh.axes, known)
    best: tuple[Key, int, Local] | None = None
    described = [(graph, array.tensor.dims) for graph, array in zip(graphs, ends, strict=True)]
    for way in local_ways(op, described[:-1], described[-1]):
        weights = [(len(operands), after.get(way.result))]
        weights += [(i, table.get(way.operands[i])) for i, table in single]
        for group in groups:
            if len(group) > 1:
                tree = shared.tree(group, way.operands)
                weights.append((group[0], None if tree is None else tree.weight))
        price = rest = 0
        for i, weight in weights:
            if weight is None:
                break
            price += weight // UNIT * factors[i]
            rest += weight % UNIT
        else:
            if best is None or rate is not None or price <= best[1]:
                key = _key(Fraction(price, common), flops(way.split), rate, rest)
                if best is None or key < best[0]:
                    best = key, price, way
    if best is None:
        raise wrong(NoRoute(", ".join(map(str, operands)), str(result)))
    key, price, way = best
    steps = _steps(op, ends, graphs, codes[-1], way, groups, shared)
    return EinsumPlan(steps, Fraction(price, common), flops(way.split), mesh), key


def _key(price: Fraction, flops: Fraction, rate: Fraction | None, rest: int) -> Key:
    if rate is None:
        return price, flops, rest
    math = flops / rate
    return max(price, math), price + math, rest


def _flops(
    op: Einsum, ends: Sequence[Array], axes: Sequence[AxisInfo], known: Mapping[str, int]
) -> Callable[[int], Fraction]:
    """Give the FLOPs of one device as a function of the axes that divide the work."""
    dims = dict.fromkeys(dim for array in ends for dim in array.tensor.dims)
    points = prod(extent(dim, known) for dim in dims) * (2 if op.contracted else len(ends) - 2)

    @cache
    def flops(split: int) -> Fraction:
        return Fraction(points, prod(i.size or 1 for a, i in enumerate(axes) if split >> a & 1))

    return flops


def _groups(operands: Sequence[Array]) -> list[tuple[int, ...]]:
    """Put the places of one array together."""
    found: dict[Array, list[int]] = {}
    for index, array in enumerate(operands):
        found.setdefault(array, []).append(index)
    return [tuple(places) for places in found.values()]


class _Shared:
    """The moves from each operand to the one or more states that its places want."""

    def __init__(self, graphs: Sequence[Layouts], sources: Sequence[int]) -> None:
        self._graphs = graphs
        self._sources = sources
        self._known: dict[tuple[int, ...], Tree | None] = {}

    def tree(self, group: tuple[int, ...], states: Sequence[int]) -> Tree | None:
        """Give the least moves that make all states wanted of the group's array."""
        first = group[0]
        wanted = sorted({states[i] for i in group})
        key = (first, *wanted)
        if key not in self._known:
            space, source = self._graphs[first].space, self._sources[first]
            if len(wanted) > 1:
                self._known[key] = space.tree(source, wanted)
            else:
                weight = space.distance(source, wanted[0])
                trail = () if weight is None else tuple(space.trail(source, wanted[0]))
                self._known[key] = None if weight is None else Tree(weight, (trail,))
        return self._known[key]


def _steps(
    op: Einsum,
    ends: Sequence[Array],
    graphs: Sequence[Layouts],
    target: int,
    way: Local,
    groups: Sequence[tuple[int, ...]],
    shared: _Shared,
) -> tuple[Step, ...]:
    """Write the plan out."""
    *operands, result = ends
    steps: list[Step] = []
    for group in groups:
        array, graph = operands[group[0]], graphs[group[0]]
        tree = shared.tree(group, way.operands)
        assert tree is not None
        made = {array}
        for leg in tree.legs:
            source = array.with_layout(graph.space.decode(leg[0]))
            for step in steps_along(graph, source, leg):
                if step.output not in made:
                    steps.append(step)
                    made.add(step.output)
    inputs = tuple(
        array.with_layout(graph.space.decode(code))
        for array, graph, code in zip(operands, graphs, way.operands, strict=False)
    )
    space = graphs[-1].space
    product = result.with_layout(space.decode(way.result))
    steps.append(Step(op, inputs, product, rule="einsum"))
    trail = space.trail(way.result, target, backwards=True)
    return (*steps, *steps_along(graphs[-1], product, trail))
