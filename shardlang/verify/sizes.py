"""The sizes that a plan is run at when it is verified."""

from __future__ import annotations

import math
from collections.abc import Mapping

from shardlang.backends.jax.sizes import arrays, choose, Numbers, shrink
from shardlang.ir.plan import Plan

DEVICES = 16
"""The largest mesh that is run as the program declares it; a larger one is shrunk."""


LARGEST_ARRAY = 2**22
"""The most elements of an array at sizes that the caller gives."""


def small_sizes(plan: Plan, sizes: Mapping[str, int] | None = None) -> Numbers:
    """Choose sizes to run a plan at; those in `sizes` are taken as they are, if they are small."""
    numbers = choose(plan, sizes)
    small = shrink(plan, numbers, devices=DEVICES)
    given = sizes or {}
    axes = {axis.name: given.get(axis.name, n) for axis, n in small.axes.items()}
    dims = {dim.name: given.get(dim.name, n) for dim, n in small.dims.items()}
    elements = (math.prod(dims[dim.name] for dim in x.tensor.dims) for x in arrays(plan))
    too_large = math.prod(axes.values()) > DEVICES or max(elements, default=0) > LARGEST_ARRAY
    if too_large:
        axes = {axis.name: n for axis, n in small.axes.items()}
        dims = {dim.name: n for dim, n in small.dims.items()}
    return choose(plan, {**axes, **dims})
