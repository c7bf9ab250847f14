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
  levels: 16 on nodes of 8 is 8 inside and 2 across;
- parts of an axis (`@part(X)`) share its links, the first part outermost. The devices of an inner part
  are neighbours on a line; those of an outer part lie as far apart as what is inside it has devices,
  and as many groups share each link. Messages go the shortest way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import groupby, product
from math import gcd, prod

from shardlang.cost.formula import Min
from shardlang.diagnostics import Mistake
from shardlang.hardware.errors import NoSlice, NotLaid, SliceSize
from shardlang.hardware.topology import Topology
from shardlang.ir.size import Monomial
from shardlang.ir.types import Axis, AxisInfo

ONE = Monomial()


@dataclass(frozen=True, slots=True)
class Line:
    """A physical axis of a torus, or what is taken as one: its devices, and whether it is a ring.

    `links` counts the links side by side from a device to the next: 1, or M_X where an axis is
    taken as one ring. A ring of 2 has two links, one each way round. `stride` is above 1 where a
    collective's devices are not neighbours: from one to the next go so many links, which as many
    groups share.
    """

    size: Monomial
    ring: bool = True
    links: Monomial = ONE
    stride: Monomial = ONE


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


@dataclass(frozen=True, slots=True)
class Strand:
    """A physical axis, and the mesh axes on it with their sizes there, outermost first.

    There are several where parts of one axis lie on it. A size None is all of the mesh axis.
    """

    ring: bool
    cells: tuple[tuple[Axis, int | None], ...]


@dataclass(frozen=True)
class Wiring:
    """How the mesh lies on a slice or on nodes.

    `strands` give, for the axes that are laid on a slice (by the whole axis where there are parts),
    the physical axes that they take; `inside` the part of an axis that lies in a node, `across` the
    rest; where sizes are open, `fill` are the axes in the order in which they fill a node. `fixed`
    are the axes whose sizes this rests on. `remarks` say what was taken how.
    """

    strands: Mapping[Axis, tuple[Strand, ...]] = field(
        default_factory=dict[Axis, tuple[Strand, ...]]
    )
    inside: Mapping[Axis, int] = field(default_factory=dict[Axis, int])
    across: Mapping[Axis, int] = field(default_factory=dict[Axis, int])
    fill: tuple[Axis, ...] = ()
    fixed: frozenset[Axis] = frozenset()
    remarks: tuple[str, ...] = ()
    slice: str | None = None


@dataclass(frozen=True, slots=True)
class Whole:
    """An axis that is laid as one: itself, or all its parts, outermost first, with their sizes."""

    axis: Axis
    links: int
    parts: tuple[tuple[Axis, int], ...]

    @property
    def size(self) -> int:
        """All of its devices."""
        return prod(size for _, size in self.parts)


def wholes(axes: Sequence[AxisInfo], sizes: Sequence[int]) -> list[Whole]:
    """Put the parts of axes together."""
    found: dict[Axis, list[tuple[AxisInfo, int]]] = {}
    for info, size in zip(axes, sizes, strict=True):
        found.setdefault(info.wire, []).append((info, size))
    return [
        Whole(axis, own[0][0].links, tuple((info.axis, size) for info, size in own))
        for axis, own in found.items()
    ]


def on_slice(
    shape: tuple[int, ...], wraps: Sequence[bool], axes: Sequence[AxisInfo], sizes: Sequence[int]
) -> Wiring | None:
    """Lay mesh axes onto a slice; None where that can't be done."""
    own = wholes(axes, sizes)
    ways = list(layouts(shape, [whole.size for whole in own], [whole.links for whole in own]))
    if not ways:
        return None
    lines = {
        whole: tuple((shape[p], wraps[p]) for p in places)
        for whole, places in zip(own, ways[0], strict=True)
    }
    words = [f"{whole.axis} on {_named(lines[whole])}" for whole in own if lines[whole]]
    different = {tuple(tuple(sorted(shape[p] for p in own)) for own in way) for way in ways}
    remarks: list[str] = []
    if len(different) > 1:
        remarks.append(
            "the mesh fits the slice in other ways too; @ici(2) behind an axis asks for two of its axes"
        )
    strands: dict[Axis, tuple[Strand, ...]] = {}
    for whole, laid in lines.items():
        cut = _cut(whole, laid)
        if cut is None:
            remarks.append(
                f"parts of {whole.axis} cut its axes of the slice unevenly: taken as one ring"
            )
        else:
            strands[whole.axis] = cut
    text = f"{'x'.join(map(str, shape))}: {', '.join(words) or 'one chip'}"
    fixed = frozenset(i.axis for i in axes)
    return Wiring(strands, fixed=fixed, remarks=tuple(remarks), slice=text)


def _cut(whole: Whole, laid: Sequence[tuple[int, bool]]) -> tuple[Strand, ...] | None:
    """Lay the parts of an axis on its physical axes, the last on the last; None if they don't divide."""
    cells: list[list[tuple[Axis, int]]] = [[] for _ in laid]
    at = len(laid) - 1
    left = laid[at][0] if laid else 1
    for part, size in reversed(whole.parts):
        need = size
        while need > 1:
            if left == 1:
                at -= 1
                left = laid[at][0]
            own = min(need, left)
            if need % own or left % own:
                return None
            cells[at].insert(0, (part, own))
            need, left = need // own, left // own
    many = {part: sum(part == p for row in cells for p, _ in row) for part, _ in whole.parts}
    return tuple(
        Strand(ring, tuple((part, size if many[part] > 1 else None) for part, size in row))
        for (_, ring), row in zip(laid, cells, strict=True)
    )


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
        found = _wire_torus(topology, shape, own, whole, open_)
        return found if isinstance(found, Mistake) else _with_parts(found, own)
    if shape:
        return NoSlice("x".join(map(str, shape)), "its chips lie in nodes, not on a torus")
    if topology.node is None:
        return Wiring(remarks=("all devices are taken to lie in one node",))
    if open_:
        said = f"nodes of {topology.node}, sizes taken to divide or to be multiples"
        return Wiring(fill=tuple(info.axis for info in reversed(own)), remarks=(said,))
    return in_nodes(topology.node, own, whole)


def _with_parts(wiring: Wiring, axes: Sequence[AxisInfo]) -> Wiring:
    """Say what is taken of parts of axes."""
    many = [sum(i.wire == wire for i in axes) for wire in {i.wire for i in axes if i.whole}]
    if not many:
        return wiring
    said = "an inner part of an axis is a line; the groups of an outer part share its links"
    if max(many) > 2:
        said += "; parts that lie apart count links of their own, so that times can be too short"
    return replace(wiring, remarks=(*wiring.remarks, said))


def _wire_torus(
    topology: Topology | None,
    shape: tuple[int, ...],
    own: Sequence[AxisInfo],
    sizes: Sequence[int],
    unknown: Sequence[str],
) -> Wiring | Mistake:
    wires = dict.fromkeys(info.wire.name for info in own)
    names = ", ".join(wires)
    taken = f"{names} {'is taken as a ring' if len(wires) == 1 else 'are taken as rings'}"
    text = "x".join(map(str, shape))
    if not shape:
        chip = "NAME" if topology is None else "the hardware's name"
        said = f"{taken}: with a slice's shape behind {chip} (4x8) the chip's rule decides"
        return Wiring(remarks=(said,) if own else ())
    long = tuple(n for n in shape if n > 1)
    if topology is not None and len(long) > topology.axes:
        return NoSlice(text, f"its torus has {topology.axes} axes")
    if topology is not None and topology.node is not None and prod(shape) > topology.node:
        return NoSlice(text, f"its largest torus has {topology.node} chips")
    if unknown:
        listed = ", ".join(unknown)
        return Wiring(
            remarks=(f"the slice {text} is not used, since {listed} has no size: {taken}",)
        )
    if prod(sizes) != prod(shape):
        return SliceSize(text, prod(shape), names, prod(sizes))
    rings = iter((True,) * len(long) if topology is None else topology.wraps(long))
    wraps = [n > 1 and next(rings) for n in shape]
    found = on_slice(shape, wraps, own, sizes)
    if found is None:
        mesh = ", ".join(f"{whole.axis}={whole.size}" for whole in wholes(own, sizes))
        return NotLaid(text, mesh)
    if topology is None:
        said = "nothing says when this chip's slices wrap around: every axis is taken as a ring"
        return replace(found, remarks=(*found.remarks, said))
    return found


@dataclass(frozen=True)
class Network:
    """Gives the levels of collectives, in a report's symbols.

    `parts` list the axes that share the links of one, outermost first. `symbol` gives an axis' size,
    `links` its number of physical axes (M_X), `figure` a figure of the hardware, `bandwidth` that of
    axes over the data-centre network.
    """

    topology: Topology | None
    wiring: Wiring
    parts: Mapping[Axis, tuple[Axis, ...]]
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
            lines = tuple(self._lines([info for info in infos if info.network == "ici"]))
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

    def _lines(self, infos: Sequence[AxisInfo]) -> Iterator[Line]:
        """Give what the axes take of physical axes: parts side by side there are one line."""
        used = {info.axis for info in infos}
        firsts: dict[Axis, Axis] = {}
        for info in infos:
            firsts.setdefault(info.wire, info.axis)
        for wire, axis in firsts.items():
            whole = tuple((part, None) for part in self.parts.get(wire, (axis,)))
            strands = self.wiring.strands.get(wire, (Strand(ring=True, cells=whole),))
            for strand in strands:
                yield from self._runs(strand, used, self.links(axis) / len(strands))

    def _runs(self, strand: Strand, used: set[Axis], links: Monomial) -> Iterator[Line]:
        """Give the stretches of a physical axis that lie on the axes used, outermost first."""
        runs = [
            (mine, _product(self._cell(*cell) for cell in cells))
            for mine, cells in groupby(strand.cells, key=lambda cell: cell[0] in used)
        ]
        for place, (mine, size) in enumerate(runs):
            if mine:
                inner = _product(other for _, other in runs[place + 1 :])
                yield Line(size, strand.ring and place == 0, links, inner)

    def _cell(self, axis: Axis, size: int | None) -> Monomial:
        return self.symbol(axis) if size is None else Monomial(Fraction(size))

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
