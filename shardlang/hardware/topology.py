"""How the chips of a node or a pod are joined: what a model of collectives reads of a chip.

A torus has axes with two links each; whether an axis of a slice closes to a ring is the chip's own
rule. Behind a switch every chip reaches every other with all that it can send. In a fully connected
node each pair has one link of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

TopologyKind: TypeAlias = Literal["torus", "switch", "full"]


@dataclass(frozen=True, slots=True)
class Topology:
    """The interconnect of a chip; None is what its figures don't say.

    - `axes`: of the torus; 1 for the other kinds.
    - `link`: B/s that two neighbours can send each other, one way. Behind a switch that is all that
      a chip can send.
    - `egress`: B/s that one chip can send over all its links at once, one way.
    - `node`: chips that reach each other without the data-centre network; of a torus its largest.
    - `pod`: the shape of the largest torus.
    - `in_network`: the switch adds up what it passes on, so that an AllReduce sends its bytes once.
    - `hop_latency`: seconds that a hop takes however little it carries.
    - `wrap_axis`, `wrap_cube`: the rule of `wraps`; a torus with neither never wraps around.
    """

    kind: TopologyKind
    axes: int
    link: float | None
    egress: float | None
    node: int | None = None
    pod: tuple[int, ...] = ()
    in_network: bool = False
    hop_latency: float | None = None
    wrap_axis: int | None = None
    wrap_cube: int | None = None

    def wraps(self, shape: tuple[int, ...]) -> tuple[bool, ...]:
        """Say of each axis of a slice whether it closes to a ring.

        An axis does if it has `wrap_axis` chips (TPU v5e: 16), and all do if each is a multiple of
        `wrap_cube` (TPU v5p: 4). A shape with fewer axes than the torus lies along the first ones,
        the others having one chip. Nothing wraps around where there is no torus. Raises
        `ValueError` for a size below 1, or more axes than the torus has.
        """
        if any(size < 1 for size in shape):
            raise ValueError(f"no slice has the shape {'x'.join(map(str, shape))}")
        if self.kind != "torus":
            return (False,) * len(shape)
        if len(shape) > self.axes:
            raise ValueError(f"the shape has {len(shape)} axes, and the torus {self.axes}")
        whole = shape + (1,) * (self.axes - len(shape))
        cubes = self.wrap_cube is not None and all(size % self.wrap_cube == 0 for size in whole)
        return tuple(cubes or size == self.wrap_axis for size in shape)

    def rule(self) -> str:
        """Say in words what joins the chips, and when a torus wraps around."""
        match self.kind:
            case "switch":
                adds = ", which adds up what it passes on" if self.in_network else ""
                return f"{self._chips()} behind one switch{adds}"
            case "full":
                return f"{self._chips()}, each linked to every other"
            case "torus":
                rules: list[str] = []
                if self.wrap_axis is not None:
                    rules.append(f"an axis of {self.wrap_axis} wraps around")
                if self.wrap_cube == 1:
                    rules.append("every slice wraps around")
                elif self.wrap_cube is not None:
                    rules.append(f"slices of multiples of {self.wrap_cube} wrap around")
                said = " and ".join(rules) or "no axis wraps around"
                return f"torus of {self.axes} {'axis' if self.axes == 1 else 'axes'}; {said}"

    def _chips(self) -> str:
        return "chips" if self.node is None else f"{self.node} chips"
