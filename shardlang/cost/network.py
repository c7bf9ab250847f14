"""The network that a collective crosses: a mesh axis laid onto physical axes, nodes and the DCN.

A collective runs over *levels*, the fast one inside. A torus is one level of *lines*, its physical
axes: a line may close to a ring. A node behind a switch is a level of devices that all reach each
other, and so is the data-centre network above it, with each device's own share of it.

How the mesh lies on the wires follows from the chip, and on a torus from the slice's shape:

- each mesh axis takes whole axes of the slice, whose product is its size. Where there are several
  ways, the first in the order of the slice's axes counts, and `remarks` says that there are others.
  (JAX's `create_device_mesh` takes whole axes too, and refuses what does not fit.)
- with no shape, or sizes that are not known, each mesh axis is taken as one ring (the book's
  assumption) with M_X links from device to device;
- in nodes, the last mesh axes lie inside. An axis too large for what is left of a node spans both
  levels: 16 on nodes of 8 is 8 inside and 2 across.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import product
from math import gcd, prod
from typing import Literal

from shardlang.cost.formula import Min
from shardlang.diagnostics import Mistake
from shardlang.hardware.catalogue import Hardware
from shardlang.hardware.errors import NoSlice, NotLaid, SliceSize
from shardlang.ir.size import Monomial
from shardlang.ir.types import Axis, AxisInfo

ONE = Monomial()


@dataclass(frozen=True, slots=True)
class Line:
    """A physical axis of a torus, or what is taken as one: its devices, and whether it is a ring.

    `links` counts the links side by side from a device to the next: 1, or M_X where an axis is
    taken as one ring. A ring of 2 has two links, one each way round.
    """

    size: Monomial
    ring: bool = True
    links: Monomial = ONE


@dataclass(frozen=True, slots=True)
class Level:
    """One network that a collective crosses, and how many devices it joins.

    `bandwidth` is in bytes/s and one direction: of one link of a line, else of all that one device
    can send; with `pairs`, where every two devices have a link of their own, of that link. `latency`
    is the seconds of a hop. `in_network` says that a switch adds up what it passes on. With `open`
    the size may turn out to be 1, where nothing crosses it.
    """

    size: Monomial
    bandwidth: Monomial
    latency: Monomial
    lines: tuple[Line, ...] = ()
    pairs: bool = False
    in_network: bool = False
    open: bool = False


# --- what a chip's figures say; a rule for each kind of chip in one place ---


@dataclass(frozen=True, slots=True)
class Topology:
    """How chips are joined.

    `wrap_axis` is the size at which an axis of a slice is a ring; all are rings where each is a
    multiple of `wrap_cube`. `node` counts the chips behind one switch, or linked each to each.
    """

    kind: Literal["torus", "switch", "full"]
    axes: int = 1
    node: int | None = None
    in_network: bool = False
    wrap_axis: int | None = None
    wrap_cube: int | None = None

    def wraps(self, shape: tuple[int, ...]) -> tuple[bool, ...]:
        """Say of each axis of a slice whether it is a ring."""
        whole = (*shape, *(1,) * (self.axes - len(shape)))
        cubes = self.wrap_cube is not None and all(size % self.wrap_cube == 0 for size in whole)
        return tuple(cubes or size == self.wrap_axis for size in shape)


TOPOLOGIES: Mapping[str, Topology] = {
    "tpu_v4p": Topology("torus", 3, wrap_cube=4),
    "tpu_v5p": Topology("torus", 3, wrap_cube=4),
    "tpu_v5e": Topology("torus", 2, wrap_axis=16),
    "tpu_v6e": Topology("torus", 2, wrap_axis=16),
    "h100": Topology("switch", node=8),
}
"""The book's rules, by the chip's name."""

HOP = 1e-6
"""Seconds of a hop between neighbours of a torus: about 1 us (book)."""


def topology_of(chip: Hardware | None) -> Topology | None:
    """Give how a chip is joined to others, None where nothing says so."""
    return None if chip is None else TOPOLOGIES.get(chip.name)


def latency_of(chip: Hardware, figure: str) -> float | None:
    """Give a latency of a chip in seconds, None where nothing says so."""
    given = chip.get(figure)
    topology = topology_of(chip)
    torus = topology is not None and topology.kind == "torus"
    return HOP if given is None and torus and figure == "hop_latency" else given


# --- the mesh on a slice ---

Layout = tuple[tuple[int, ...], ...]
"""For each mesh axis, the places of the slice's axes that it takes."""


def layouts(shape: Sequence[int], sizes: Sequence[int], links: Sequence[int]) -> Iterator[Layout]:
    """Give every way to share a slice's axes among mesh axes, first axes to first axes first.

    Axes of one chip are nobody's. `links` above 1 ask for that many axes of the slice.
    """
    places = [i for i, size in enumerate(shape) if size > 1]
    for owners in product(range(len(sizes)), repeat=len(places)):
        taken = tuple(
            tuple(p for p, owner in zip(places, owners, strict=True) if owner == axis)
            for axis in range(len(sizes))
        )
        fits = all(
            prod(shape[p] for p in own) == size and (size == 1 or asked in (1, len(own)))
            for own, size, asked in zip(taken, sizes, links, strict=True)
        )
        if fits:
            yield taken


@dataclass(frozen=True)
class Wiring:
    """How the mesh lies on a slice or on nodes.

    `lines` give, for the axes that are laid on a slice, sizes of physical axes with True for a ring;
    `inside` the part of an axis that lies in a node, `across` the rest; where sizes are
    open, `fill` are the axes in the order in which they fill a node. `fixed` are the axes whose sizes this rests on.
    `remarks` say what was taken how.
    """

    lines: Mapping[Axis, tuple[tuple[int, bool], ...]] = field(
        default_factory=dict[Axis, tuple[tuple[int, bool], ...]]
    )
    inside: Mapping[Axis, int] = field(default_factory=dict[Axis, int])
    across: Mapping[Axis, int] = field(default_factory=dict[Axis, int])
    fill: tuple[Axis, ...] = ()
    fixed: frozenset[Axis] = frozenset()
    remarks: tuple[str, ...] = ()
    slice: str | None = None


def on_slice(
    shape: tuple[int, ...], wraps: Sequence[bool], axes: Sequence[AxisInfo], sizes: Sequence[int]
) -> Wiring | None:
    """Lay mesh axes onto a slice; None where that can't be done."""
    ways = list(layouts(shape, sizes, [info.links for info in axes]))
    if not ways:
        return None
    lines = {
        info.axis: tuple((shape[p], wraps[p]) for p in own)
        for info, own in zip(axes, ways[0], strict=True)
    }
    words = [f"{info.axis} on {_named(lines[info.axis])}" for info in axes if lines[info.axis]]
    different = {tuple(tuple(sorted(shape[p] for p in own)) for own in way) for way in ways}
    remarks: list[str] = []
    if len(different) > 1:
        remarks.append(
            "the mesh fits the slice in other ways too; @ici(2) behind an axis asks for two of its axes"
        )
    text = f"{'x'.join(map(str, shape))}: {', '.join(words) or 'one chip'}"
    return Wiring(lines, fixed=frozenset(i.axis for i in axes), remarks=tuple(remarks), slice=text)


def _named(lines: Sequence[tuple[int, bool]]) -> str:
    sizes = "x".join(str(size) for size, _ in lines)
    rings = [ring for _, ring in lines]
    many = len(lines) > 1
    if all(rings):
        return f"{sizes} ({'rings' if many else 'ring'})"
    if not any(rings):
        return f"{sizes} ({'lines' if many else 'line'})"
    return f"{sizes} ({', '.join('ring' if ring else 'line' for ring in rings)})"


def in_nodes(node: int, axes: Sequence[AxisInfo], sizes: Sequence[int]) -> Wiring:
    """Fill nodes with the mesh, its last axes first."""
    inside: dict[Axis, int] = {}
    left = node
    for info, size in reversed(list(zip(axes, sizes, strict=True))):
        own = size if size <= left else gcd(size, left)
        inside[info.axis] = own
        left = left // own if own == size else 1
    across = {i.axis: size // inside[i.axis] for i, size in zip(axes, sizes, strict=True)}
    words = [f"{axis} {inside[axis]} inside, {n} across" for axis, n in across.items()]
    text = f"nodes of {node}: {'; '.join(words)}" if prod(across.values()) > 1 else None
    fixed = frozenset(i.axis for i in axes)
    return Wiring(inside=inside, across=across, fixed=fixed, slice=text)


def wire(
    topology: Topology | None,
    shape: tuple[int, ...],
    axes: Sequence[AxisInfo],
    known: Mapping[str, Fraction],
) -> Wiring | Mistake:
    """Lay the mesh axes of the interconnect on what the chip has; or say why that can't be done.

    `known` are sizes by the axes' names; `shape` is empty where nobody gave one.
    """
    own = [info for info in axes if info.network == "ici"]
    sizes = [known.get(info.axis.name) for info in own]
    open_ = [info.axis.name for info, size in zip(own, sizes, strict=True) if size is None]
    whole = [int(size) for size in sizes if size is not None]
    if topology is None or topology.kind == "torus":
        return _wire_torus(topology, shape, own, whole, open_)
    if shape:
        return NoSlice("x".join(map(str, shape)), "its chips lie in nodes, not on a torus")
    if topology.node is None:
        return Wiring(remarks=("all devices are taken to lie in one node",))
    if open_:
        said = f"nodes of {topology.node}, sizes taken to divide or to be multiples"
        return Wiring(fill=tuple(info.axis for info in reversed(own)), remarks=(said,))
    return in_nodes(topology.node, own, whole)


def _wire_torus(
    topology: Topology | None,
    shape: tuple[int, ...],
    own: Sequence[AxisInfo],
    sizes: Sequence[int],
    unknown: Sequence[str],
) -> Wiring | Mistake:
    names = ", ".join(info.axis.name for info in own)
    rings = (
        f"{names} {'is taken as a ring' if len(own) == 1 else 'are taken as rings'}" if own else ""
    )
    text = "x".join(map(str, shape))
    if not shape:
        chip = "NAME" if topology is None else "the hardware's name"
        said = f"{rings}: with a slice's shape behind {chip} (4x8) the chip's rule decides"
        return Wiring(remarks=(said,) if own else ())
    if topology is not None and len([n for n in shape if n > 1]) > topology.axes:
        return NoSlice(text, f"its torus has {topology.axes} axes")
    if unknown:
        listed = ", ".join(unknown)
        return Wiring(
            remarks=(f"the slice {text} is not used, since {listed} has no size: {rings}",)
        )
    if prod(sizes) != prod(shape):
        return SliceSize(text, prod(shape), names, prod(sizes))
    wraps = (True,) * len(shape) if topology is None else topology.wraps(shape)
    found = on_slice(shape, wraps, own, sizes)
    if found is None:
        mesh = ", ".join(f"{i.axis}={n}" for i, n in zip(own, sizes, strict=True))
        return NotLaid(text, mesh)
    if topology is None:
        said = "nothing says when this chip's slices wrap around: every axis is taken as a ring"
        return replace(found, remarks=(*found.remarks, said))
    return found


@dataclass(frozen=True)
class Network:
    """Gives the levels of collectives, in a report's symbols.

    `symbol` gives an axis' size, `links` its number of physical axes (M_X), `figure` a figure of the
    hardware, `bandwidth` that of axes over the data-centre network.
    """

    topology: Topology | None
    wiring: Wiring
    symbol: Callable[[Axis], Monomial]
    links: Callable[[Axis], Monomial]
    figure: Callable[[str], Monomial]
    bandwidth: Callable[[Iterable[Axis]], Monomial]

    def levels(self, infos: Sequence[AxisInfo]) -> tuple[Level, ...]:
        """List the levels that a collective over the axes crosses, the innermost first."""
        own = [info.axis for info in infos if info.network == "ici"]
        far = [info for info in infos if info.network == "dcn"]
        across = _product(self.symbol(info.axis) for info in far)
        found: list[Level] = []
        if own and (self.topology is None or self.topology.kind == "torus"):
            lines = tuple(line for axis in own for line in self._lines(axis))
            size = _product(map(self.symbol, own))
            half = self.figure("W_ici") / 2
            found.append(Level(size, half, self.figure("T_hop"), lines))
        elif own:
            inside = [self._inside(axis) for axis in own]
            across *= _product(map(self.symbol, own)) / _product(inside)
            size = _product(inside)
            if size != ONE:
                found.append(self._node(size))
        if across != ONE:
            egress = self.bandwidth(i.axis for i in far) if far else self.figure("W_dcn")
            may = bool(self.wiring.fill) and not far
            found.append(Level(across, egress, self.figure("T_dcn"), open=may))
        return tuple(found)

    def _lines(self, axis: Axis) -> Iterator[Line]:
        laid = self.wiring.lines.get(axis)
        if laid is None:
            yield Line(self.symbol(axis), links=self.links(axis))
            return
        for size, ring in laid:
            length = self.symbol(axis) if len(laid) == 1 else Monomial(Fraction(size))
            yield Line(length, ring, self.links(axis) / len(laid))

    def _inside(self, axis: Axis) -> Monomial:
        if axis in self.wiring.fill:
            return self._filled(axis)
        own, whole = self.wiring.inside.get(axis), self.symbol(axis)
        known = self.wiring.across.get(axis, 1)
        return whole if own is None or known == 1 else Monomial(Fraction(own))

    def _filled(self, axis: Axis) -> Monomial:
        """Give what of an axis of open size lies in a node: what fits beside the axes inside of it."""
        assert self.topology is not None
        left = Monomial(Fraction(self.topology.node or 1))
        for other in self.wiring.fill:
            own = Min.of(self.symbol(other), left)
            if other == axis:
                return own
            left /= own
        return ONE

    def _node(self, size: Monomial) -> Level:
        assert self.topology is not None
        egress, hop, may = self.figure("W_ici"), self.figure("T_hop"), bool(self.wiring.fill)
        if self.topology.kind == "full":
            link = egress / max((self.topology.node or 2) - 1, 1)
            return Level(size, link, hop, pairs=True, open=may)
        return Level(size, egress, hop, in_network=self.topology.in_network, open=may)


def _product(sizes: Iterable[Monomial]) -> Monomial:
    result = Monomial()
    for size in sizes:
        result *= size
    return result
