"""The sizes that a plan is run at when it is verified."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

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
from shardlang.pipelines.schedules import Durations, SCHEDULES
from shardlang.pipelines.simulate import simulate

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


def stage_notes(plan: Plan, numbers: Numbers) -> tuple[str, ...]:
    """Say how the collectives of a pipeline's stages are counted."""
    done = ticks(plan, numbers)
    if done is None:
        return ()
    many = plan.program.microbatches
    count = 1 if many is None else numbers.dims[many]
    count *= 1 if plan.program.pipeline is None else plan.program.pipeline.chunks
    text = (
        f"collectives are counted in each of the {done.forward} ticks of forward and the {done.both} "
        f"of both passes; a stage does its work of a pass in {count} of them, and sends in all"
    )
    return (text,)


@dataclass(frozen=True, slots=True)
class Ticks:
    """In how many ticks the code of a pass stands: of `forward` alone, and of each pass of `both`.

    `both` is the number of each of the two, where they are not the same ticks, as in `gpipe`.
    """

    forward: int
    both: int


def ticks(plan: Plan, numbers: Numbers) -> Ticks | None:
    """Count a pipeline's ticks: the schedule's own table with a tick for each piece of work."""
    pipeline, many = plan.program.pipeline, plan.program.microbatches
    if pipeline is None or many is None:
        return None
    stages, count = numbers.parts(pipeline.axes), numbers.dims[many]
    table = SCHEDULES[pipeline.schedule].make(stages, count, pipeline.chunks)
    whole = Fraction(pipeline.chunks)  # so that a piece of work takes a tick
    done = simulate(table, Durations(whole, whole / 2, whole / 2))
    forward = stages + count * pipeline.chunks - 1
    last = max(e.end for row in done.events for e in row if e.work.kind == "F")
    first = min(e.start for row in done.events for e in row if e.work.kind != "F")
    return Ticks(forward, forward if last <= first else int(done.seconds))


def size_notes(
    plan: Plan, numbers: Numbers, sizes: Mapping[str, int] | None = None
) -> tuple[str, ...]:
    """Say which declared and given sizes a run does not have because they are too large."""
    words = shrunk(choose(plan, sizes), numbers)
    return (f"made small for this run: {', '.join(words)}",) if words else ()
