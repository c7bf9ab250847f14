"""The cheapest way from one layout of a tensor to another, exactly.

`reshard` gives the steps, `reshard_cost` the price; planners call `layouts` for the graph itself.
What is cheapest is so for the price list given, of all routes through the graph of `states`. Prices
of routes are distances in that graph, so they obey the triangle inequality and are zero from a layout
to itself.

A mesh axis may be split into sub-axes: `I_X` over X=4 is `I_{X1,X2}` over X1=2, X2=2, on the same
devices in the same order. With `sub_axes`, routes on such a refined mesh count as well, and one that
is cheaper is given with that mesh, on which its steps are ordinary steps.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import prod

from shardlang.ir.ops import Collective
from shardlang.ir.plan import Step
from shardlang.ir.size import Monomial
from shardlang.ir.types import Array, Axis, AxisInfo, Dim, Layout, Mesh
from shardlang.planner.errors import (
    BadAxis,
    DifferentDims,
    NoRoute,
    SizesNeeded,
    UnevenSplit,
    wrong,
)
from shardlang.planner.prices import mesh_of, Prices, prices_of, sized
from shardlang.planner.states import divisors, Space, Tariff, tariff, UNIT

_TARIFFS: dict[tuple[object, ...], Tariff] = {}
_SPACES: dict[tuple[object, ...], Space] = {}
_REMEMBERED = 128


@dataclass(frozen=True, slots=True)
class Route:
    """The steps from one layout to another, and what one device pays for them.

    `price` is in the price list's unit, times the dims whose sizes were not given. `mesh` is the one
    that the steps are on: the mesh given, or one with some of its axes split; `source` and `target`
    are the ends as that mesh writes them.
    """

    steps: tuple[Step, ...]
    price: Monomial
    mesh: Mesh
    source: Array
    target: Array

    @property
    def cost(self) -> Fraction:
        """The price as a number; raises `ShardlangError` (SH351) where a dim has no size."""
        if self.price.number is None and self.price.coefficient:
            raise wrong(SizesNeeded(tuple(name for name, _ in self.price.powers)))
        return self.price.coefficient

    @property
    def collectives(self) -> int:
        """How many of the steps move data; over axes of size 1 none does."""
        return count_collectives(self.steps, self.mesh)


@dataclass(frozen=True, slots=True)
class Layouts:
    """The graph of layouts of one tensor: a shared space, and what a unit of its weights is worth."""

    space: Space
    factor: Fraction
    dims: tuple[Dim, ...]

    def cost(self, weight: int) -> Fraction:
        """Give the price of a weight, in the list's unit."""
        return weight // UNIT * self.factor

    def distance(self, source: Layout, target: Layout) -> int | None:
        """Give the least weight between two layouts, or None where no moves lead there."""
        return self.space.distance(self.space.encode(source), self.space.encode(target))

    def steps(self, source: Array, target: Layout) -> tuple[Step, ...]:
        """Give the steps of a least route; there must be one."""
        trail = self.space.trail(self.space.encode(source.layout), self.space.encode(target))
        return steps_along(self, source, trail)


def count_collectives(steps: Iterable[Step], mesh: Mesh) -> int:
    """Count the steps that move data: the collectives over some axis larger than 1."""
    return sum(
        isinstance(step.op, Collective) and any(mesh[axis].size != 1 for axis in step.op.axes)
        for step in steps
    )


def steps_along(layouts: Layouts, source: Array, trail: Sequence[int]) -> tuple[Step, ...]:
    """Turn the nodes of a route into steps on an array."""
    steps: list[Step] = []
    current = source
    for op, layout in layouts.space.relayouts(trail, layouts.dims):
        made = current.with_layout(layout)
        steps.append(Step(op, (current,), made, rule="reshard"))
        current = made
    return tuple(steps)


def layouts(
    array: Array,
    mesh: Mesh,
    sizes: Mapping[str, int],
    prices: str | Prices = "link",
    *,
    symbolic: bool = False,
    made: tuple[tuple[Layout, Layout], ...] = (),
    permutes: bool = True,
) -> Layouts:
    """Give the graph of an array's layouts; equal questions share one.

    `sizes` of dims and axes win over the mesh's; all that matter must be there (SH351). If
    `symbolic`, a dim may be without where prices are proportional to the bytes: it counts as 1, and
    everything divides it. `made` are pairs of layouts: of the first the second is made in any case.
    Without `permutes` nothing is moved by a Permute.
    """
    known = {**mesh.sizes, **sizes}
    axes = sized(mesh, known)
    whole = [extent(dim, known) for dim in array.tensor.dims]
    table = prices_of(prices)
    missing = [info.axis.name for info in axes if info.size is None]
    if not symbolic or not table.linear:
        missing += [d.name for d, n in zip(array.tensor.dims, whole, strict=True) if not n]
    if missing:
        raise wrong(SizesNeeded(tuple(missing)))
    volume = Fraction(prod(n or 1 for n in whole) * array.tensor.dtype.bits, 8)
    unit = Fraction(1) if table.linear else volume
    listed = _tariff(axes, table, unit)
    fits = tuple(divisors(axes, size) for size in whole)
    key = (id(listed), fits, made, permutes)
    space = _SPACES.get(key)
    if space is None:
        _trim(_SPACES)
        space = _SPACES[key] = Space(axes, fits, listed, made, permutes=permutes)
    return Layouts(space, volume / unit / listed.scale, array.tensor.dims)


def _tariff(axes: tuple[AxisInfo, ...], prices: Prices, unit: Fraction) -> Tariff:
    try:
        key: tuple[object, ...] = (axes, prices, unit)
        found = _TARIFFS.get(key)
    except TypeError:  # a list of one's own that can't be hashed
        return tariff(axes, prices, unit)
    if found is None:
        _trim(_TARIFFS)
        found = _TARIFFS[key] = tariff(axes, prices, unit)
    return found


def _trim(cache: dict[tuple[object, ...], Space] | dict[tuple[object, ...], Tariff]) -> None:
    while len(cache) >= _REMEMBERED:
        del cache[next(iter(cache))]


def extent(dim: Dim, known: Mapping[str, int]) -> int:
    """Give a dim's size, 0 where it is a symbol; a dim may be written as one, as in `A[128, K]`."""
    bare = dim.name.rstrip("'")
    return known.get(dim.name, int(bare) if bare.isdecimal() else 0)


def reshard(
    source: Array | str,
    target: Array | str,
    mesh: Mesh | str | Mapping[str, int],
    sizes: Mapping[str, int] | None = None,
    prices: str | Prices = "link",
    *,
    sub_axes: bool = False,
) -> Route:
    """Find the cheapest route between two layouts of a tensor.

    Arrays may be written in the notation (`"A[I_X, J]{U_Y}"`), meshes as `"X=4,Y=2"` or as a map.
    `prices` is `book`, `link`, `switch` or an object (see `prices`). Of routes of one cost, one with
    the fewest collectives is given. Dims without a size are taken to be divided by everything, and
    stay symbols in the price. Raises `ShardlangError` where an axis has no size (SH351), a split is
    uneven (SH352), no route exists (SH353), the arrays are of different tensors (SH354), or a layout
    has an axis twice or one that the mesh lacks (SH355).
    """
    on = Mesh(sized(mesh_of(mesh), sizes or {}))
    start, end = _arrays(source, target, on)
    route = _reshard(start, end, on, sizes or {}, prices)
    if not sub_axes:
        return route
    for finer, parts in refinements(on, {*start.tensor.dims, *end.tensor.dims}):
        axes_of = {**(sizes or {}), **finer.sizes}
        ends = refined(start, parts), refined(end, parts)
        other = _reshard(*ends, finer, axes_of, prices)
        if other.price.coefficient < route.price.coefficient:
            route = other
    return route


def reshard_cost(
    source: Array | str,
    target: Array | str,
    mesh: Mesh | str | Mapping[str, int],
    sizes: Mapping[str, int] | None = None,
    prices: str | Prices = "link",
    *,
    sub_axes: bool = False,
) -> Fraction:
    """Give what one device pays for the cheapest route between two layouts, in the list's unit.

    Raises `ShardlangError` as `reshard` does, and where a dim has no size (SH351).
    """
    return reshard(source, target, mesh, sizes, prices, sub_axes=sub_axes).cost


def _reshard(
    source: Array,
    target: Array,
    mesh: Mesh,
    sizes: Mapping[str, int],
    prices: str | Prices,
) -> Route:
    graph = layouts(source, mesh, sizes, prices, symbolic=True)
    for array in (source, target):
        check_layout(array, mesh, sizes)
    weight = graph.distance(source.layout, target.layout)
    if weight is None:
        raise wrong(NoRoute(str(source), str(target)))
    open_dims = (dim.name for dim in source.tensor.dims if not extent(dim, {**mesh.sizes, **sizes}))
    price = Monomial.of(*open_dims) * graph.cost(weight)
    return Route(graph.steps(source, target.layout), price, mesh, source, target)


def check_layout(array: Array, mesh: Mesh, sizes: Mapping[str, int]) -> None:
    """Refuse axes that the mesh lacks or that stand twice (SH355), or that don't divide (SH352)."""
    strange = [
        axis for axis in (*array.layout.split_axes, *array.layout.unreduced) if axis not in mesh
    ]
    for axis in (*strange, *array.layout.duplicates()):
        raise wrong(BadAxis(str(array), axis.name, twice=axis in mesh))
    known = {**mesh.sizes, **sizes}
    for dim, axes in zip(array.tensor.dims, array.layout.sharding, strict=True):
        shards = prod(known.get(axis.name, 1) for axis in axes)
        size = extent(dim, known)
        if size % shards:
            raise wrong(UnevenSplit(str(array), dim.name, size, shards))


def _arrays(source: Array | str, target: Array | str, mesh: Mesh) -> tuple[Array, Array]:
    """Read what is text, and give both ends as layouts of the source's tensor."""
    if isinstance(source, str):
        source = read(source, mesh)
    if isinstance(target, str):
        target = read(target, mesh)
    if set(source.tensor.dims) != set(target.tensor.dims):
        raise wrong(DifferentDims(str(source), str(target)))
    layout = Layout(
        tuple(target.axes(dim) for dim in source.tensor.dims),
        target.layout.unreduced,
        target.layout.reduction,
    )
    return source, source.with_layout(layout)


def read(text: str, mesh: Mesh) -> Array:
    """Read one array in the notation through the front end."""
    from shardlang.frontend.resolve import load_text  # noqa: PLC0415 (lark loads when text is read)

    axes = ", ".join(f"{info.axis}={info.size}" for info in mesh.axes)
    declared = f"mesh {axes}\n" if axes else ""
    copy = text.partition("[")[0].strip() + "_copy"
    program = load_text(f"{declared}{copy} = {text}\n", "layout")
    return program.leaves[0].array


def refinements(mesh: Mesh, taken: set[Dim]) -> list[tuple[Mesh, dict[Axis, tuple[Axis, ...]]]]:
    """List the meshes with some axes split into factors, those of the fewest axes first.

    The factors of X are X1, X2, ..., the outermost first, with zeros before the number where such a
    name is taken. Meshes of more than 6 axes, or of more than 2 axes more, are left out.
    """
    names = {dim.name for dim in taken}.union(mesh.names)
    choices = [_factorizations(info.size or 1) for info in mesh.axes]
    most = min(len(mesh.axes) + 2, 6)
    found: list[tuple[Mesh, dict[Axis, tuple[Axis, ...]]]] = []
    for chosen in sorted(itertools.product(*choices), key=lambda c: (sum(map(len, c)), c)):
        if not len(mesh.axes) < sum(map(len, chosen)) <= most:
            continue
        axes: list[AxisInfo] = []
        split: dict[Axis, tuple[Axis, ...]] = {}
        for info, factors in zip(mesh.axes, chosen, strict=True):
            if len(factors) < 2:
                axes.append(info)
                continue
            stem = info.axis.name
            while any(f"{stem}{i}" in names for i in range(1, len(factors) + 1)):
                stem += "0"
            parts = [
                AxisInfo(Axis(f"{stem}{i}"), factor, info.network, info.links, info.wire)
                for i, factor in enumerate(factors, 1)
            ]
            axes += parts
            split[info.axis] = tuple(part.axis for part in parts)
        found.append((Mesh(tuple(axes)), split))
    return found


def _factorizations(number: int) -> list[tuple[int, ...]]:
    """List the ways to write a size as an ordered product of factors above 1; itself comes first."""
    found = [(number,)]
    for first in range(2, number // 2 + 1):
        if number % first == 0:
            found += [(first, *rest) for rest in _factorizations(number // first)]
    return found


def refined(array: Array, parts: Mapping[Axis, tuple[Axis, ...]]) -> Array:
    """Write an array on a mesh with some axes split."""
    return array.with_layout(refined_layout(array.layout, parts))


def refined_layout(layout: Layout, parts: Mapping[Axis, tuple[Axis, ...]]) -> Layout:
    """Write a layout on a mesh with some axes split: each axis becomes its parts, in order."""

    def all_parts(axes: Sequence[Axis] | frozenset[Axis]) -> tuple[Axis, ...]:
        return tuple(part for axis in axes for part in parts.get(axis, (axis,)))

    return Layout(
        tuple(all_parts(axes) for axes in layout.sharding),
        frozenset(all_parts(layout.unreduced)),
        layout.reduction,
    )
