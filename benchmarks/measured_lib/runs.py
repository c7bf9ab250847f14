"""The measured runs and the models that they trained, as the files in `benchmarks/runs` give them.

A family's file has a title, a source, and one table a run; a key that stands above the tables holds for
all runs that do not give it. Times are seconds of a step, FLOP rates TFLOP/s of a chip, MFU percent.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

FOLDER = Path(__file__).parents[1] / "runs"

Attention = Literal["full", "causal"]
Convention = Literal["full", "causal", "halves", "hardware"]
"""How a publisher counts: attention in full; what a causal mask leaves of it; half of it, also within
a window; in full and with the forward pass of every layer computed again."""


@dataclass(frozen=True)
class Layer:
    """A kind of layer: the parts of its program, its count, and the sizes of its dims.

    `window` is that of sliding attention, `experts` how many a position uses, and `layout` what is
    written for what in the parts.
    """

    parts: tuple[str, ...]
    count: int
    dims: Mapping[str, int]
    window: int | None = None
    experts: int = 0
    layout: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def head(self) -> bool:
        """Whether it stands behind the layers, and is never computed again."""
        return self.parts[-1] == "head"


Model = tuple[Layer, ...]
"""The kinds of a model's layers, and the head as the last."""


@dataclass(frozen=True)
class Run:
    """One measured run.

    `save` is what its forward pass keeps of a layer ("full": nothing, all is computed again).
    `attention` says what its kernel computes, `convention` what its publisher counts. `stages` are
    those of a pipeline, which the notation does not have: `micro` batches go through them, each
    device holding `interleave` pieces of the model. `capacity` is what experts' places are made
    for, over what they get. `tokens` are those a second and chip.
    """

    name: str
    model: str
    hardware: str
    mesh: Mapping[str, int]
    batch: int
    seq: int
    save: str
    attention: Attention
    convention: Convention
    seconds: float | None = None
    tflops: float | None = None
    mfu: float | None = None
    tokens: float | None = None
    peak: str = "bf16"
    stages: int = 1
    interleave: int = 1
    microbatch: int = 1
    capacity: float = 1.0
    layout: Mapping[str, str] = field(default_factory=dict[str, str])
    parts_of: str | None = None

    @property
    def chips(self) -> int:
        """All chips, those of a pipeline's stages too."""
        return math.prod(self.mesh.values()) * self.stages

    @property
    def bubble(self) -> float:
        """The idle share of a pipeline's devices, over the time in which they work."""
        replicas = math.prod(size for axis, size in self.mesh.items() if axis in "PZX")
        micro = self.batch / replicas / self.microbatch
        return (self.stages - 1) / (micro * self.interleave)


@dataclass(frozen=True)
class Family:
    """Runs of one source, whose figures can be compared."""

    key: str
    title: str
    source: str
    statement: str
    notes: str
    runs: tuple[Run, ...]


SHARED = ("hardware", "seq", "save", "attention", "convention")


def models() -> dict[str, Model]:
    """Read all models."""
    table = tomllib.loads((FOLDER / "models.toml").read_text("utf-8"))
    return {name: tuple(_layer(row) for row in model["layers"]) for name, model in table.items()}


def _layer(row: Mapping[str, Any]) -> Layer:
    return Layer(**{**row, "parts": tuple(row["parts"])})


def families() -> tuple[Family, ...]:
    """Read all families, in the order of the report."""
    return tuple(family(key) for key in ORDER)


def family(key: str) -> Family:
    """Read one family's file."""
    table = tomllib.loads((FOLDER / f"{key}.toml").read_text("utf-8"))
    shared = {name: table[name] for name in SHARED if name in table}
    runs = tuple(Run(**{**shared, **row}) for row in table["run"])
    words = {name: table.get(name, "") for name in ("title", "source", "statement", "notes")}
    return Family(key, runs=runs, **words)


ORDER: Sequence[str] = (
    "maxtext_tpu7x",
    "maxtext_v6e",
    "maxtext_v5p_recipes",
    "maxtext_v5e",
    "maxtext_v5p",
    "palm",
    "megatron_a100",
    "megatron_recompute",
    "megatron_h100",
)
