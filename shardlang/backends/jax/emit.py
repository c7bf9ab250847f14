"""Writes a plan as a standalone JAX module: every step of both passes, with its notation above it.

Reads the plan and nothing else. The module's text is data until somebody runs it: names of the
program become identifiers through `names`, everything else of it stands in comments or literals.

`flow` follows the plan's values; `passes` writes the steps (`steps`, `compute`) and the layers of blocks,
`tables`, `public` and `check` the other parts of the module.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePath

from shardlang.backends.jax import attention, passes, rings, stages
from shardlang.backends.jax.check import check
from shardlang.backends.jax.context import Context
from shardlang.backends.jax.errors import AxisNotAscii, failure, NotInStages, ScheduleNotEmitted
from shardlang.backends.jax.functions import HELPERS
from shardlang.backends.jax.names import docstring_text, filled
from shardlang.backends.jax.public import public
from shardlang.backends.jax.sizes import choose, Numbers
from shardlang.backends.jax.tables import sizes_function, tables
from shardlang.backends.jax.train import training, trains
from shardlang.ir.ops import Permute, Ring, RingAttention
from shardlang.ir.plan import Plan, Step
from shardlang.ir.printer import statement
from shardlang.passes.normal import without_axes
from shardlang.pipelines.orders import ORDERS


def emit_jax(plan: Plan, sizes: Mapping[str, int] | None = None) -> str:
    """Write a plan as the text of a Python module, as docs and `interface.md` describe it.

    `sizes` are global sizes of dims and axes by name; they win over the program's. Those that
    nobody gives are chosen. Raises ShardlangError with an SH6xx code.
    """
    kept, numbers = emittable(plan, sizes)
    return _text(Context(plan, kept, numbers, frozenset(sizes or {})))


def emittable(plan: Plan, sizes: Mapping[str, int] | None = None) -> tuple[Plan, Numbers]:
    """Give what is emitted: the plan without axes of size 1, and its sizes.

    Raises ShardlangError where code is written for no such plan.
    """
    numbers = choose(plan, sizes)
    for axis in numbers.axes:
        if not axis.name.isascii():
            raise failure(plan, AxisNotAscii(axis.name))
    declared = plan.program.mesh.sizes
    ones = frozenset(
        axis
        for axis, size in numbers.axes.items()
        if size == 1 and (axis.name in declared or axis.name in (sizes or {}))
    )
    kept = without_axes(plan, ones)
    _can_schedule(kept)
    _can_be_staged(kept)
    return kept, numbers


def _can_schedule(plan: Plan) -> None:
    """Raise where the order of a pipeline's work is none that is emitted."""
    staged = next((s for s in plan.forward if s.loop is not None and s.loop.pipeline), None)
    if staged is None or plan.program.pipeline is None:
        return
    schedule = plan.program.pipeline.schedule
    if schedule not in ORDERS:
        raise failure(plan, ScheduleNotEmitted(schedule, tuple(ORDERS)), staged.span)


def _can_be_staged(plan: Plan) -> None:
    """Raise where a stage's work, of either pass, sends from device to device.

    The emitted module chooses a stage's work by `lax.switch`. A collective permute in a branch that not all
    devices take gives wrong numbers on XLA's CPU backend, with no error; others wait for their groups alone.
    """
    if plan.program.pipeline is None:
        return
    for step in (*plan.forward, *plan.backward):
        if not step.sends and (found := _sending(step)) is not None:
            raise failure(plan, NotInStages(statement(step), *found), step.span)


def _sending(step: Step) -> tuple[str, str] | None:
    """Say what of a step sends from device to device, and what does the same without; None of others."""
    match step.op:
        case Permute(axes) if axes:
            return "a Permute", "lay it out by AllToAll, or by AllGather and Slice"
        case Ring(_, move):
            return "a ring", f"write {type(move).__name__} and the product as two steps"
        case RingAttention(axes) if axes:
            return "ring attention", "gather keys and values, as `--attention gather` does"
        case _:
            return None


def _text(context: Context) -> str:
    """Write the whole module."""
    own = check(context)
    functions = passes.functions if context.stages is None else stages.functions
    functions(context)
    steps = "\n\n\n".join(functions(context))
    step = training(context)
    rounds = rings.helpers(steps) + attention.helpers(steps + own)
    callers = "".join((steps, step, own, *rounds))
    helpers = [text.strip("\n") for name, text in HELPERS.items() if f"{name}(" in callers]
    helpers += rounds
    parts = [
        _head(context, "".join((*helpers, steps, step, own))),
        tables(context),
        *helpers,
        sizes_function(context),
        steps,
        public(context),
        step,
        own,
    ]
    return (
        "\n\n\n".join(part.strip("\n") for part in parts if part).replace(
            "\n\n\nMESH_AXES", "\n\nMESH_AXES", 1
        )
        + "\n"
    )


def _head(context: Context, code: str) -> str:
    """Write the docstring and the imports."""
    program = context.plan.program
    name = docstring_text(PurePath(program.source.name).name) or "a program"
    what = "forward and backward" if context.has_backward else "forward"
    what = "a training step" if context.plan.update and trains(context.plan) else what
    lines = [f'"""{name} in JAX: {what} with explicit collectives under jax.shard_map.', ""]
    lines.append(
        "Written by shardlang from a plan. The notation of each step stands above its code."
    )
    lines += _notes(context)
    lines += ['"""', ""]
    lines += ["import functools", "import math", "import os", "import sys", ""]
    lines += ["import jax", "import jax.numpy as jnp", "import numpy as np"]
    if re.search(r"\blax\.", code):
        lines.append("from jax import lax")
    lines += [
        "from jax.sharding import AxisType, Mesh, NamedSharding",
        "from jax.sharding import PartitionSpec as P",
    ]
    if context.x64:
        lines += ["", 'jax.config.update("jax_enable_x64", True)']
    return "\n".join(lines)


def _notes(context: Context) -> list[str]:
    """Say in the docstring what a reader could not see in the code."""
    notes: list[str] = []
    numbers, flow = context.numbers, context.flow
    if numbers.chosen:
        axes = {axis.name: size for axis, size in numbers.axes.items()}
        known = {**axes, **{dim.name: size for dim, size in numbers.dims.items()}}
        sizes = [f"{docstring_text(n)}={known[n]}" for n in numbers.chosen]
        notes += ["", *filled("Sizes that nobody gave were chosen: ", sizes)]
    ends = [value.array for value in (*flow.leaves, *flow.outputs)]
    stacked = [array.name for array in ends if array.layout.unreduced]
    if stacked:
        start = "Partial results, one a device group, are stacked along a leading dim of: "
        notes += ["", *filled(start, stacked)]
    if context.stages is not None:
        many = docstring_text(str(context.plan.program.microbatches))
        notes += [
            "",
            *filled(
                f"All microbatches are given at once: a first dim {many} of all but: ",
                [x.array.name for x in flow.leaves if not context.microbatches(x)] or ["nothing"],
            ),
        ]
    stacks = [x for x in (*flow.leaves, *flow.outputs) if x.loop is not None]
    for loop in dict.fromkeys(x.loop for x in stacks):
        mine = [x for x in stacks if x.loop == loop]
        name, chunks = docstring_text(str(loop)), context.chunks(mine[0])
        along = f"along a first dim {name}: "
        if chunks > 1:  # such that each stage holds parts that are not consecutive
            along = f"as x.reshape({chunks}, {name} // {chunks}, ...) of all layers in order: "
        start = f"Of these there is one a layer, stacked {along}"
        notes += ["", *filled(start, [x.array.name for x in mine])]
    none = sorted(context.without_gradient) if context.has_backward else []
    if none:
        notes += ["", *filled("No gradient flows to these, which get zeros: ", none)]
    if not context.has_backward:
        notes += ["", "The plan has no backward pass, so there is no forward_backward."]
    return notes
