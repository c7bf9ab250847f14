"""How a model is split over a mesh: a scheme is a sum of parts, and each part is an axis.

A part decides which dims its axis splits, of weights and of activations; the page's writer asks for
the axes of a dim and knows no scheme.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """One part: its axis, and the line that explains it on the page."""

    axis: str
    says: str


PARTS: Mapping[str, Part] = {
    "dp": Part(
        "X", "Data parallel over X: each group has its own sequences and a copy of all weights."
    ),
    "fsdp": Part(
        "X", "FSDP over X: sequences and weights are split, and weights gathered as needed."
    ),
    "ep": Part("X", "Experts over X: tokens are sent to the devices of their experts and back."),
    "tp": Part("Y", "Tensor parallel over Y: heads, hidden units and the vocabulary are split."),
    "context": Part(
        "W", "Context parallel over W: sequences are split; keys and values are gathered."
    ),
    "pipeline": Part(
        "Z", "Pipeline over Z: each stage has its share of the layers; i microbatches go through."
    ),
}
"""The parts by name."""

ALONE = (("dp", "fsdp"),)
"""Parts of which a scheme has one at most."""


@dataclass(frozen=True)
class Scheme:
    """Axes by role, each a string of axes that may be empty."""

    parts: tuple[str, ...]
    batch: str
    context: str
    tensor: str
    weights: str
    experts: str
    stages: str

    @property
    def axes(self) -> tuple[str, ...]:
        """The mesh axes in the order of the mesh line."""
        return tuple(axis for axis in "ZWXY" if axis in {PARTS[part].axis for part in self.parts})


def scheme(text: str) -> Scheme | str:
    """Read `fsdp+tp`; give what is wrong with it, in words, where something is."""
    parts = tuple(dict.fromkeys(word.strip() for word in text.split("+")))
    for part in parts:
        if part not in PARTS:
            return f"'{part[:40]}' is no way to split a model; there are {', '.join(PARTS)}, and sums of them"
    for group in ALONE:
        if len([part for part in parts if part in group]) > 1:
            return f"{' and '.join(group)} are two ways to use one axis: name one of them"
    ordered = tuple(part for part in PARTS if part in parts)
    context = "W" if "context" in parts else ""
    data = "X" if {"dp", "fsdp", "ep"} & set(parts) else ""
    return Scheme(
        parts=ordered,
        batch=data,
        context=context,
        tensor="Y" if "tp" in parts else "",
        weights=f"X{context}" if "fsdp" in parts else "",
        experts="X" if "ep" in parts else "",
        stages="Z" if "pipeline" in parts else "",
    )
