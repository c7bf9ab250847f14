"""Whether a model's sizes can be split over a mesh as its scheme splits them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from shardlang.models.config import Config
from shardlang.models.page import parameters, sizes
from shardlang.models.scheme import Scheme


@dataclass(frozen=True)
class Uneven:
    """A dim that its axes don't divide; `field` is what a configuration calls it."""

    dim: str
    field: str | None
    size: int
    axes: str
    parts: int


FIELDS: Mapping[str, str] = {
    "D": "hidden_size",
    "F": "intermediate_size",
    "K": "num_key_value_heads",
    "V": "vocab_size",
    "L": "num_hidden_layers",
    "E": "num_local_experts",
}
"""Where a configuration has the size of a dim that is split."""


def uneven(
    config: Config, scheme: Scheme, mesh: Mapping[str, int | None], given: Mapping[str, int]
) -> Iterator[Uneven]:
    """Give the dims that can't be split; axes of no size fit always."""
    size = {**sizes(config), **given}
    split = {dim: axes for each in parameters(config, scheme) for dim, axes in each.dims if axes}
    split.update(L=scheme.stages, B=scheme.batch, T=scheme.context + scheme.tensor)
    for dim, axes in split.items():
        parts = math.prod(mesh.get(axis) or 1 for axis in axes)
        if dim in size and size[dim] % parts:
            yield Uneven(dim, FIELDS.get(dim), size[dim], axes, parts)
