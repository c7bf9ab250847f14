"""Writes the tables of a module: the mesh, inputs, outputs, what lies between the passes, and sizes."""

from __future__ import annotations

from collections.abc import Iterable

from shardlang.backends.jax.compute import jax_dtype
from shardlang.backends.jax.context import Context
from shardlang.backends.jax.flow import Value
from shardlang.backends.jax.layout import partition_spec
from shardlang.backends.jax.names import comment, quoted
from shardlang.backends.jax.pretty import call, dictionary, Entry, Item, layout, parens
from shardlang.backends.jax.template import MODULE
from shardlang.ir.types import Axis, Dim


def tables(context: Context) -> str:
    """Write MESH_AXES, INPUTS, OUTPUTS and the specs of what lies between the passes."""
    flow = context.flow
    axes = [Entry(f"{quoted(a.name)}: ", str(n)) for a, n in context.numbers.axes.items()]
    lines = layout("MESH_AXES = ", dictionary(*axes), 0)
    lines += [comment(line) for line in _parts(context)]
    lines += [
        "",
        "# Name: (global shape, dtype, PartitionSpec), in the order of the arguments.",
    ]
    lines += _table(context, "INPUTS", flow.leaves)
    lines.append("")
    lines += _table(context, "OUTPUTS", flow.outputs)
    if context.has_backward:
        lines += [
            "",
            "# The specs of the outputs' cotangents, and of what the forward pass keeps.",
        ]
        lines += layout("COTANGENTS = ", specs(context, flow.cotangents), 0)
        lines += layout("SAVED = ", parens(*(_kept(context, x) for x in flow.saved)), 0)
    return "\n".join(lines)


def spec(context: Context, value: Value) -> Item:
    """Write the PartitionSpec of a value outside of the devices."""
    return partition_spec(value.array.layout, context.front(value))


def specs(context: Context, values: Iterable[Value]) -> Item:
    """Write the PartitionSpecs of values."""
    return parens(*(spec(context, value) for value in values))


def _kept(context: Context, value: Value) -> Item:
    """Write the PartitionSpec of what the forward pass keeps: of a pipeline, that of each stage by itself."""
    if context.stages is None:
        return spec(context, value)
    layers = ["None"] if value.loop is not None else []
    return partition_spec(value.array.layout, [context.stage_axes, "None", *layers])


def _parts(context: Context) -> list[str]:
    """Say which axes are parts of one, and that its devices are theirs."""
    wholes: dict[Axis, list[str]] = {}
    for info in context.plan.program.mesh.axes:
        if info.whole is not None:
            wholes.setdefault(info.whole, []).append(info.axis.name)
    return [
        f"{', '.join(own)} are the parts of an axis {whole}, on the same devices in the same order."
        for whole, own in wholes.items()
    ]


def _table(context: Context, name: str, rows: tuple[Value, ...]) -> list[str]:
    entries = [entry(context, value) for value in rows]
    return layout(f"{name} = ", dictionary(*entries), 0, force=bool(entries))


def entry(context: Context, value: Value) -> Entry:
    """Write a row of a table: global shape, dtype and PartitionSpec, by name."""
    tensor = value.array.tensor
    shape = parens(*(str(n) for n in context.shape(value, context.numbers)))
    return Entry(
        f"{quoted(tensor.name)}: ",
        parens(shape, f'"{jax_dtype(tensor.dtype)}"', spec(context, value)),
    )


def sizes_function(context: Context) -> str:
    """Write the function that reads the global sizes off the inputs' shapes."""
    if not context.sized:
        return ""
    entries = [Entry(f"{quoted(dim.name)}: ", _size(context, dim)) for dim in context.sized]
    lines = [
        "def _sizes(inputs):",
        '    """Give the global sizes of the dims that steps need."""',
    ]
    lines += layout("return ", call("_Sizes", dictionary(*entries)), 1)
    return MODULE["sizes_class"].strip("\n") + "\n\n\n" + "\n".join(lines)


def _size(context: Context, dim: Dim) -> str:
    """Write where a size is read: from the first input that has the dim, else it is a number."""
    root = context.roots[dim]
    for index, leaf in enumerate(context.flow.leaves):
        many, chunks = context.microbatches(leaf), context.chunks(leaf) > 1
        front = [context.roots[own] for own in (many, leaf.loop) if own is not None]
        if chunks:  # the layers' dim is two
            front.insert(len(front) - 1, "")
        sizes = [*front, *([""] if leaf.array.layout.unreduced else [])]
        sizes += [context.roots[own] for own in leaf.array.tensor.dims]
        if root in sizes:
            place = sizes.index(root)
            whole = f"inputs[{index}].shape[{place}]"
            split = chunks and place == len(front) - 1
            return f"inputs[{index}].shape[{place - 1}] * {whole}" if split else whole
    return str(context.numbers.dims[dim])
