"""Writes the two passes as functions of one device's shards, and the layers of blocks as scans.

A block of a pass is one `lax.scan` over a function of one layer, so that the module (and the time that
XLA takes to compile it) does not grow with the layers. That function is given values from outside of the
block, what the layer before hands on, and the layer's part of each stack; it gives what it hands on and
its part of the stacks that others read: outputs, gradients, and what the backward pass reads. Sums over
layers are handed on too, in 32 bits where they are narrower: a sum is rounded once, however many
layers there are, as those within a step are.
"""

from __future__ import annotations

from collections.abc import Sequence

from shardlang.backends.jax.again import Again
from shardlang.backends.jax.compute import aligned, cast, dtype_code, jax_dtype, wide
from shardlang.backends.jax.context import Context, own_part
from shardlang.backends.jax.flow import Run, Scan, Value
from shardlang.backends.jax.layout import names_of_axes
from shardlang.backends.jax.names import comments
from shardlang.backends.jax.pretty import call, flat, Item, layout, parens, unpack
from shardlang.backends.jax.steps import note, step_lines
from shardlang.ir.plan import Step
from shardlang.ir.printer import head
from shardlang.ir.types import Array, Axis


def prepare(context: Context) -> None:
    """Find out which global sizes the steps need: any may be the first to need one."""
    for runs in (context.flow.forward, context.flow.backward):
        _runs(context, runs)
        for run in runs:
            if isinstance(run, Scan):
                layer(context, run)


def functions(context: Context) -> list[str]:
    """Write the functions of both passes, after those of their layers."""
    flow = context.flow
    layers = [layer(context, run) for run in flow.forward if isinstance(run, Scan)]
    if not context.has_backward:
        return [*layers, _forward(context)]
    back = [layer(context, run) for run in flow.backward if isinstance(run, Scan)]
    return [*layers, _forward(context), *back, _backward(context)]


def _forward(context: Context) -> str:
    flow = context.flow
    outputs, saved = (map(context.packed, values) for values in (flow.outputs, flow.saved))
    return "\n".join(
        [
            f"def _forward_steps({context.parameters('inputs')}):",
            '    """Run the forward pass on one device: its outputs, and what backward reads."""',
            *context.unpack(flow.leaves, "inputs"),
            *_runs(context, flow.forward),
            *layout("return ", parens(parens(*outputs), parens(*saved)), 1),
        ]
    )


def _backward(context: Context) -> str:
    flow = context.flow
    return "\n".join(
        [
            f"def _backward_steps({context.parameters('leaves', 'saved', 'cotangents')}):",
            '    """Run the backward pass on one device: the gradients in the order of INPUTS."""',
            *context.unpack(context.again, "leaves"),
            *context.unpack(flow.saved, "saved"),
            *context.unpack(flow.cotangents, "cotangents"),
            *_runs(context, flow.backward, Again(context)),
            *layout("return ", parens(*(_gradient(context, leaf) for leaf in flow.leaves)), 1),
        ]
    )


def _gradient(context: Context, leaf: Value) -> str:
    """Write a leaf's gradient as it leaves the devices: zeros where none flows to it."""
    own, gradient = leaf.array.layout, context.flow.gradients.get(leaf.array.name)
    if gradient is None:
        zeros = f"jnp.zeros_like({context.names[leaf.array]})"
        return f"{zeros}[None]" if own.unreduced and leaf.loop is None else zeros
    if context.plan.update:  # what the update reduces leaves the pass as each device has it
        partial = gradient.array.layout.unreduced and gradient.loop is not None
        return f"{context.names.whole(gradient)}{'[:, 0]' if partial else ''}"
    if gradient.array.layout != own.reduced():
        text = f"the gradient {gradient.array} is not laid out as its leaf {leaf.array}"
        raise context.defect(text)
    partial = "[None]" if leaf.loop is None else "[:, None]"
    return f"{context.names.whole(gradient)}{partial if own.unreduced else ''}"


def _runs(context: Context, runs: Sequence[Run], again: Again | None = None) -> list[str]:
    """Write a pass: the indices that it reads, and its runs of steps."""
    read: set[Array] = set()
    for run in runs:
        read.update(
            run.outside if isinstance(run, Scan) else (x for s in run.steps for x in s.inputs)
        )
    lines: list[str] = []
    for array in context.flow.indices:
        if array in read:
            (dim,) = array.tensor.dims
            lines += comments(f"{array}: the places along {dim}", 1)
            lines += layout(f"{context.names[array]} = ", context.places(dim), 1)
    return [*lines, *(line for run in runs for line in _run(context, run, again))]


def _run(context: Context, run: Run, again: Again | None = None) -> list[str]:
    """Write steps outside of blocks, or the scan of a block; `again` writes the barriers of a backward pass."""
    if isinstance(run, Scan):
        return _scan(context, run)
    lines: list[str] = []
    for place, (step, original) in enumerate(zip(run.steps, run.originals, strict=True)):
        if again is not None:
            lines += again.lines(step, run.steps[place:])
        lines += step_lines(context, step, original)
    return lines


# --- Blocks


def scanned(
    function: str,
    fixed: Sequence[Item],
    handed: Sequence[Item],
    stacked: Sequence[str],
    *options: str,
) -> Item:
    """Write the call of a scan; the function of a layer takes `fixed`, what is handed on, and stacks."""
    body = call("functools.partial", function, *fixed) if fixed else function
    return call("lax.scan", body, parens(*handed), parens(*stacked), *options)


def _scan(context: Context, scan: Scan) -> list[str]:
    """Write the scan of a block: what it is given, the call, and what is there behind it."""
    names, casts = context.names, context.varying.cast(scan)
    lines = comments(head(scan.originals[0].loop or scan.block), 1)
    for array in scan.sums:
        lines += _zeros(context, array, casts.sums[array])
    first = (_varies(names[array], casts.first[array]) for array in scan.entries)
    handed = (*first, *(names[array] for array in scan.sums))
    outside = [names[array] for array in scan.outside]
    fixed: list[Item] = [parens(*outside)] if outside else []
    # The length follows from the stacks, where there are any.
    options = [] if scan.stacked else [f"length={context.size(scan.block.dim)}"]
    options += ["reverse=True"] if scan.back else []
    stacked = [names.whole(value) for value in scan.stacked]
    fixed += ["sizes"] if context.sized else []
    item = scanned(scan.function, fixed, handed, stacked, *options)
    ends = [names[array] for array in (*scan.exits, *scan.sums)]
    target = f"{'carry' if ends else '_'}, {'layers' if scan.given else '_'} = "
    lines += layout(target, item, 1)
    lines += unpack(ends, "carry", 1) if ends else []
    given = [names.whole(value) for value in scan.given]
    lines += unpack(given, "layers", 1) if given else []
    for array in scan.sums:
        name, dtype = names[array], jax_dtype(array.tensor.dtype)
        narrow = cast(name, wide([dtype]), dtype)
        lines += [] if narrow == name else [f"    {name} = {narrow}"]
    return lines


def _varies(name: str, axes: frozenset[Axis]) -> Item:
    """Let a value vary along axes, by its type, that those of other layers vary along."""
    if not axes:
        return name
    return call("lax.pcast", name, names_of_axes(sorted(axes)), 'to="varying"')


def _zeros(context: Context, array: Array, axes: frozenset[Axis]) -> list[str]:
    """Write the zeros that a sum over layers begins with."""
    name, shape = context.names[array], list[Item]()
    for dim in array.tensor.dims:
        over = array.axes(dim)
        parts = f" // {flat(call('lax.axis_size', names_of_axes(over)))}" if over else ""
        shape.append(f"{context.size(dim)}{parts}")
    dtype = dtype_code(wide([jax_dtype(array.tensor.dtype)]))
    lines = layout(f"{name} = ", call("jnp.zeros", parens(*shape), dtype), 1)
    return lines + (layout(f"{name} = ", _varies(name, axes), 1) if axes else [])


def layer(context: Context, scan: Scan) -> str:
    """Write the function of one layer."""
    names, casts = context.names, context.varying.cast(scan)
    parameters = [*(["outside"] if scan.outside else []), *(["sizes"] if context.sized else [])]
    way = "Go back through" if scan.back else "Run"
    lines = [
        f"def {scan.function}({', '.join((*parameters, 'carry', 'layer'))}):",
        f'    """{way} a layer of `layers {scan.block.dim}`: what it hands on, and its part of stacks."""',
    ]
    if scan.outside:
        lines += unpack([names[array] for array in scan.outside], "outside", 1)
    handed = [names[array] for array in (*scan.entries, *scan.sums)]
    lines += unpack(handed, "carry", 1) if handed else []
    if scan.stacked:
        lines += unpack([names[value.array] for value in scan.stacked], "layer", 1)
    for value in scan.stacked:
        lines += own_part(names[value.array], value)
    for step, original in zip(scan.steps, scan.originals, strict=True):
        if step.accumulates:
            lines += [*note(original), *_added(context, step)]
        else:
            lines += step_lines(context, step, original)
    exits = [_varies(names[array], casts.next[array]) for array in scan.exits]
    given = (
        f"{names[value.array]}[None]" if value.array.layout.unreduced else names[value.array]
        for value in scan.given
    )
    exits += [names[array] for array in scan.sums]
    return "\n".join([*lines, *layout("return ", parens(parens(*exits), parens(*given)), 1)])


def _added(context: Context, step: Step) -> list[str]:
    """Add a layer's part to the sum over layers."""
    total, part = context.names[step.output], context.names[step.inputs[0]]
    tensor = step.inputs[0].tensor
    part = aligned(part, tensor.dims, step.output.tensor.dims)
    wider = wide([jax_dtype(step.output.tensor.dtype)])
    return layout(f"{total} = ", f"{total} + {cast(part, jax_dtype(tensor.dtype), wider)}", 1)
