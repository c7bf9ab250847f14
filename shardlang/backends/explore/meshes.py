"""The meshes of a page: the sizes that axes can take, and which of them are priced alike.

A report's formulas hold for all sizes of the axes, but for three things: an axis of size 1 takes no
part in collectives, on nodes it matters what of an axis lies inside, and a slice's axes are shared out.
So every position of the sliders gets the number of a *way* to lie on a chip, and each way is priced
once, by the library. A position that a slice has no room for gets the library's message instead.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from math import prod

from shardlang.cost.network import wire, Wiring
from shardlang.hardware.topology import Topology
from shardlang.ir.types import Axis, AxisInfo

LARGEST = 8192
"""Up to this size an axis goes, where there are few enough axes."""

POSITIONS = 4096
"""A page holds at most about so many positions of a mesh."""

OPEN_CHIPS = 64
"""The chips of a mesh whose axes all have no size, at first."""


@dataclass(frozen=True)
class Grid:
    """The axes of a mesh with their sizes at first, and those that each can take, ascending."""

    axes: tuple[AxisInfo, ...]
    first: tuple[int, ...]
    stops: tuple[tuple[int, ...], ...]

    @staticmethod
    def of(axes: Sequence[AxisInfo], sizes: Mapping[str, int | None]) -> Grid:
        """Choose the sizes: powers of two times the odd divisors of the sizes that are given."""
        first = _first([sizes.get(info.axis.name) for info in axes])
        odd = {1}
        for size in first:
            part = size // (size & -size)
            odd |= {a * d for a in odd for d in range(1, part + 1, 2) if part % d == 0}
        most = max(LARGEST, *first, 1)
        while True:
            own = [_stops(odd, max(most, size)) for size in first]
            if prod(map(len, own)) <= POSITIONS or most < 2:
                return Grid(tuple(axes), first, tuple(own))
            most //= 2

    def positions(self) -> Iterator[tuple[int, ...]]:
        """Give every choice of sizes, the last axis fastest."""
        return product(*self.stops)

    def at(self, sizes: Sequence[int]) -> dict[str, int]:
        """Give sizes by the axes' names."""
        return {info.axis.name: n for info, n in zip(self.axes, sizes, strict=True)}


def _first(given: Sequence[int | None]) -> tuple[int, ...]:
    """Fill in the sizes that are open: 64 chips where none is given, the first axis the largest."""
    if any(size is not None for size in given):
        return tuple(4 if size is None else size for size in given)
    rest = (4,) * (len(given) - 1) if len(given) <= 3 else (2,) * (len(given) - 1)
    return (max(OPEN_CHIPS // prod(rest), 2), *rest) if given else ()


def _stops(odd: set[int], most: int) -> tuple[int, ...]:
    powers = (2**k for k in range(most.bit_length()))
    return tuple(sorted({p * d for p in powers for d in odd if p * d <= most}))


Way = Hashable
"""What the formulas of a position rest on: two positions with equal ways are priced alike."""


def ways(
    grid: Grid, topology: Topology | None, shape: tuple[int, ...], *, nodes: bool
) -> Iterator[tuple[tuple[int, ...], Way | str]]:
    """Give each position with its way, or with the message that says why it does not fit the slice.

    `nodes` says that the model's formulas know of nodes.
    """
    in_nodes = nodes and topology is not None and topology.kind != "torus"
    for sizes in grid.positions():
        if not shape and not in_nodes:
            yield sizes, tuple(size == 1 for size in sizes)
            continue
        known = {name: Fraction(size) for name, size in grid.at(sizes).items()}
        found = wire(topology, shape, grid.axes, known)
        if isinstance(found, Wiring):
            yield sizes, (tuple(size == 1 for size in sizes), *_lies(found, nodes=nodes))
        else:
            yield sizes, found.message()


def _lies(wiring: Wiring, *, nodes: bool) -> tuple[Way, Way]:
    strands = tuple((axis, laid) for axis, laid in wiring.strands.items())
    inside: dict[Axis, int] = {}
    if nodes:
        across = wiring.across
        inside = {axis: n for axis, n in wiring.inside.items() if across.get(axis, 1) != 1}
    return strands, tuple(inside.items())
