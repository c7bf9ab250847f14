"""Schedules as tables: for each stage, what it does in which order.

A *stage* is a device (or a group of them) that holds a part of the layers; a *chunk* is one of the parts
that it holds. A microbatch goes through the places of its *route*, forward and then back. Stages,
chunks and microbatches count from 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

Kind = Literal["F", "B", "W", "BW"]
"""Forward; backward for the input (dX); backward for the weights (dW); both of these in one."""


@dataclass(frozen=True, slots=True, order=True)
class Work:
    """One piece of work of a stage: one microbatch through one chunk.

    One that is `joined` runs together with the next: both begin when both can, and end together.
    """

    kind: Kind
    microbatch: int
    chunk: int = 0
    joined: bool = False

    def text(self, *, chunks: bool) -> str:
        """Write it: `F3`, or `F3b` where stages hold several chunks of one route."""
        return f"{self.kind}{self.microbatch}{_letter(self.chunk) if chunks else ''}"


def _letter(chunk: int) -> str:
    return chr(ord("a") + chunk) if chunk < 26 else f".{chunk}"


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """A chunk on a stage."""

    stage: int
    chunk: int = 0


@dataclass(frozen=True)
class Table:
    """A schedule for some number of stages and microbatches.

    `routes` has each microbatch's places in the order of the layers, `orders` the work of each stage.
    A stage holds `chunks` chunks, each with `share` of the layers that a stage has where the model lies
    on them once.
    """

    schedule: str
    routes: tuple[tuple[Place, ...], ...]
    orders: tuple[tuple[Work, ...], ...]
    chunks: int = 1
    share: Fraction = Fraction(1)

    @property
    def stages(self) -> int:
        """How many stages there are."""
        return len(self.orders)

    @property
    def microbatches(self) -> int:
        """How many microbatches there are."""
        return len(self.routes)

    @property
    def weights(self) -> Fraction:
        """How many copies of the model's weights all stages hold together."""
        return self.chunks * self.share

    @property
    def lettered(self) -> bool:
        """Whether a microbatch comes to a stage more than once, so that its chunks need letters."""
        return self.share < 1

    def text(self) -> str:
        """Write the table, a line for each stage."""
        return "\n".join(
            f"stage {stage}: " + " ".join(work.text(chunks=self.lettered) for work in order)
            for stage, order in enumerate(self.orders)
        )
