"""The sizes that a plan is run at when it is verified."""

from __future__ import annotations

from collections.abc import Mapping

from shardlang.backends.jax.sizes import (
    arrays,
    choose,
    DEEP,
    elements,
    fitted,
    layers_of,
    Numbers,
    shrunk,
)
from shardlang.ir.plan import Plan

DEVICES = 16
"""The largest mesh that is run as the program declares it; a larger one is shrunk."""

SMALL = 2**14
"""The most elements of an array for a run at the sizes that the program declares."""


def small_sizes(plan: Plan, sizes: Mapping[str, int] | None = None) -> Numbers:
    """Choose sizes to run a plan at: those in `sizes` as they are, if one machine holds them.

    Declared ones stay where all of them are small.
    """
    numbers = choose(plan, sizes)
    declared = {*plan.program.sizes.known, *(sizes or {})}
    small = fitted(plan, numbers, declared, devices=DEVICES)
    largest = max((elements(array, small) for array in arrays(plan)), default=0)
    deep = any(small.dims[loop] > DEEP for loop in layers_of(plan))
    if largest > SMALL or deep or shrunk(numbers, small) or small.devices > DEVICES:
        small = fitted(plan, numbers, sizes or {}, devices=DEVICES)
    axes = {axis.name: n for axis, n in small.axes.items()}
    return choose(plan, {**axes, **{dim.name: n for dim, n in small.dims.items()}})


def training_notes(plan: Plan) -> tuple[str, ...]:
    """Say what of a training step is run."""
    text = "of the training step one microbatch is run, without the update"
    return (text,) if plan.update else ()


def stage_notes(plan: Plan) -> tuple[str, ...]:
    """Say how the stages of a pipeline are run."""
    text = "all layers of the pipeline are run on every stage, and nothing is sent between stages"
    return (text,) if plan.program.pipeline is not None else ()


def size_notes(
    plan: Plan, numbers: Numbers, sizes: Mapping[str, int] | None = None
) -> tuple[str, ...]:
    """Say which declared and given sizes a run does not have because they are too large."""
    words = shrunk(choose(plan, sizes), numbers)
    return (f"made small for this run: {', '.join(words)}",) if words else ()
