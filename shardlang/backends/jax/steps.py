"""Writes steps as JAX code, each under its notation: compute, collectives, local changes of layout."""

from __future__ import annotations

from shardlang.backends.jax.attention import attention
from shardlang.backends.jax.compute import compute
from shardlang.backends.jax.context import Context
from shardlang.backends.jax.layout import names_of_axes
from shardlang.backends.jax.names import comments, quoted
from shardlang.backends.jax.pretty import call, flat, Item, layout, parens
from shardlang.backends.jax.rings import ring
from shardlang.ir.ops import (
    AllGather,
    AllReduce,
    AllToAll,
    Coefficient,
    Compute,
    Linear,
    Mask,
    Permute,
    ReduceScatter,
    Relayout,
    Ring,
    RingAttention,
    Slice,
)
from shardlang.ir.plan import Step
from shardlang.ir.printer import statement
from shardlang.ir.types import Array, Dim


def step_lines(context: Context, step: Step, original: Step) -> list[str]:
    """Write a step under its notation, which is that of the plan as it is printed."""
    return [*note(original), *_step(context, step)]


def note(original: Step) -> list[str]:
    """Write a step's notation as a comment; of a collective it says whether all wait for it."""
    critical = "  // on the critical path" if original.is_collective and original.critical else ""
    return comments(statement(original) + critical, 1)


def _step(context: Context, step: Step) -> list[str]:
    target = context.names[step.output]
    sources = [context.names[array] for array in step.inputs]
    if isinstance(step.op, Ring):
        kept = next((context.names[array] for array in step.outputs[1:]), None)
        return ring(step, sources, target, kept, context.scope)
    if isinstance(step.op, RingAttention):
        targets = [context.names[array] for array in step.outputs]
        return attention(step, sources, targets, context.scope)
    if isinstance(step.op, Compute):
        if _is_copy(step):
            return layout(f"{target} = ", sources[0], 1)
        return compute(step.op, step.inputs, sources, step.output, target, context.scope)
    return relayout(context, step.op, step, sources[0], target)


def _is_copy(step: Step) -> bool:
    """Say whether a step gives its operand another name and changes nothing."""
    op, source, target = step.op, step.inputs[0].tensor, step.output.tensor
    plain = isinstance(op, Linear) and op.coefficients == (Coefficient(),) and not op.constant
    return plain and source.dims == target.dims and source.dtype == target.dtype


def relayout(context: Context, op: Relayout, step: Step, source: str, target: str) -> list[str]:
    """Write a collective or a local change of layout; over no axes it does nothing."""
    dims = step.inputs[0].tensor.dims
    if not op.axes and not isinstance(op, Permute):
        expression: Item = source
    else:
        expression = _moved(context, op, step, source, dims)
    lines = layout(f"{target} = ", expression, 1)
    wanted = step.output.tensor.dims
    if wanted != dims:
        order = parens(*(str(dims.index(dim)) for dim in wanted))
        lines += layout(f"{target} = ", call("jnp.transpose", target, order), 1)
    return lines


def _moved(context: Context, op: Relayout, step: Step, source: str, dims: tuple[Dim, ...]) -> Item:
    """Write the call of a relayout."""
    axes = names_of_axes(op.axes) if op.axes else "()"
    match op:
        case AllGather(_, dim):
            where = f"axis={dims.index(dim)}"
            return call("lax.all_gather", source, axes, where, "tiled=True", 'to="invarying"')
        case ReduceScatter(_, dim):
            where = f"scatter_dimension={dims.index(dim)}"
            return call("lax.psum_scatter", source, axes, where, "tiled=True")
        case AllReduce():
            function = {"sum": "psum", "max": "pmax", "min": "pmin"}
            return call(f"lax.{function[step.inputs[0].layout.reduction]}", source, axes)
        case AllToAll(_, gathered, dim):
            split, concat = (
                f"split_axis={dims.index(dim)}",
                f"concat_axis={dims.index(gathered)}",
            )
            return call("lax.all_to_all", source, axes, split, concat, "tiled=True")
        case Slice(_, dim):
            return call("_own_shard", source, axes, f"dim={dims.index(dim)}")
        case Mask():
            index = f"{flat(call('lax.axis_index', axes))} == 0"
            return call("jnp.where", index, source, f"jnp.zeros_like({source})")
        case Permute():
            return _permute(context, step, source)


def _permute(context: Context, step: Step, source: str) -> Item:
    """Write a permutation of shards, computed from both layouts when the code is traced."""
    have, want = step.inputs[0], step.output
    split = {*have.layout.split_axes, *want.layout.split_axes}
    moving = [axis for axis in context.numbers.axes if axis in split]
    axes = names_of_axes(moving)

    def written(array: Array) -> Item:
        per_dim = (array.axes(dim) for dim in have.tensor.dims)
        return parens(*(parens(*(quoted(a.name) for a in axes)) for axes in per_dim))

    whole = axes if len(moving) > 1 else parens(axes)
    moves = call("_shard_moves", whole, written(have), written(want))
    return call("lax.ppermute", source, axes, moves)
