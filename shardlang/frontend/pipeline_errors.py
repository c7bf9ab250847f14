"""What can be wrong with a pipeline in a text (codes SH29x)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from shardlang.diagnostics import Mistake


@dataclass(frozen=True)
class NoMicrobatch(Mistake):
    """`In[B, D][3]`."""

    code: ClassVar[str] = "SH331"
    title: ClassVar[str] = "a single microbatch"
    text: str

    def message(self) -> str:
        """Say what brackets behind brackets mean."""
        return f"[{self.text}] names one microbatch: a program says what is done with each of them"

    def hint(self) -> str | None:
        """Show the form."""
        return "mark a value of each microbatch with a letter: In[B, D][i]"


@dataclass(frozen=True)
class OtherMicrobatch(Mistake):
    """`In[B, D][i]` and `Out[B, D][j]`."""

    code: ClassVar[str] = "SH332"
    title: ClassVar[str] = "another microbatch"
    text: str
    known: str

    def message(self) -> str:
        """Name both."""
        return f"[{self.text}] where microbatches are counted by {self.known}"

    def hint(self) -> str | None:
        """Say what to do."""
        return f"every microbatch goes through all lines by itself: write [{self.known}]"


@dataclass(frozen=True)
class NoStages(Mistake):
    """`schedule 1f1b` in a program with no `layers L_Z:`."""

    code: ClassVar[str] = "SH333"
    title: ClassVar[str] = "a schedule of no pipeline"
    name: str

    def message(self) -> str:
        """Say what is missing."""
        return f"schedule {self.name} is for layers on several stages, and no block has stages"

    def hint(self) -> str | None:
        """Show the form."""
        return "write `layers L_Z:` where the devices of Z hold consecutive layers"


@dataclass(frozen=True)
class TwoPipelines(Mistake):
    """Two blocks `layers L_Z:`."""

    code: ClassVar[str] = "SH334"
    title: ClassVar[str] = "two pipelines"

    def message(self) -> str:
        """Say how many there may be."""
        return "a second block of layers on stages: a program has one pipeline"

    def hint(self) -> str | None:
        """Say what to do."""
        return (
            "put all layers into one block, or leave the others whole on the first and last stage"
        )


@dataclass(frozen=True)
class StageAxis(Mistake):
    """`x[B_Z, D]` with `layers L_Z:`."""

    code: ClassVar[str] = "SH335"
    title: ClassVar[str] = "an axis of stages"
    axis: str
    block: str

    def message(self) -> str:
        """Say what the axis does."""
        return f"the devices of {self.axis} are the stages of `layers {self.block}_{self.axis}:`, and split nothing else"

    def hint(self) -> str | None:
        """Say what to do."""
        return "split over another axis: the devices of one stage"


@dataclass(frozen=True)
class OtherStages(Mistake):
    """`param W: [L, D]` or `[L_Y, D]` with `layers L_Z:`."""

    code: ClassVar[str] = "SH265"
    title: ClassVar[str] = "layers on different devices"
    name: str
    block: str
    written: str

    def message(self) -> str:
        """Give both."""
        return (
            f"{self.name} has its layers as {self.written}, and the block is `layers {self.block}:`"
        )

    def hint(self) -> str | None:
        """Say what to do."""
        if "_" in self.block:
            return f"write {self.name}: [{self.block}, ..]"
        return f"write `layers {self.written}:` for layers on stages, or {self.name}: [{self.block}, ..]"


@dataclass(frozen=True)
class BadChunks(Mistake):
    """`schedule interleaved, parts 2`."""

    code: ClassVar[str] = "SH336"
    title: ClassVar[str] = "chunks of a stage"
    text: str

    def message(self) -> str:
        """Say what is expected."""
        return f"{self.text} is not `chunks` with a whole number"

    def hint(self) -> str | None:
        """Show the form."""
        return "schedule interleaved, chunks 2"


@dataclass(frozen=True)
class UnevenStages(Mistake):
    """`dims L=12`, Z=4 and 2 chunks."""

    code: ClassVar[str] = "SH337"
    title: ClassVar[str] = "layers in equal chunks"
    block: str
    layers: int
    stages: int
    chunks: int

    def message(self) -> str:
        """Give the numbers."""
        chunks = f" of {self.chunks} chunks each" if self.chunks > 1 else ""
        return (
            f"{self.block}={self.layers} layers can't be divided into {self.stages} stages{chunks}"
        )

    def hint(self) -> str | None:
        """Give the next numbers that fit."""
        whole = self.stages * self.chunks
        below = self.layers // whole * whole
        near: Sequence[str] = [str(n) for n in (below, below + whole) if n > 0]
        return f"take {' or '.join(near)} layers"
