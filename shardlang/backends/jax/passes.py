"""Writes the two passes as functions of one device's shards, and the layers of blocks as scans.

A block of a pass is one `lax.scan` over a function of one layer, so that the module (and the time that
XLA takes to compile it) does not grow with the layers. That function is given values from outside of the
block, what the layer before hands on, and the layer's part of each stack; it gives what it hands on and
its part of the stacks that others read: outputs, gradients, and what the backward pass reads. Sums over
layers are handed on too, in 32 bits where they are narrower: a sum is rounded once, however many
layers there are, as those within a step are. What a layer gathers for the next one is handed on as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from shardlang.backends.jax.again import Again
from shardlang.backends.jax.compute import aligned, cast, dtype_code, jax_dtype, wide
from shardlang.backends.jax.context import Context, own_part
from shardlang.backends.jax.flow import Run, Scan, Value
from shardlang.backends.jax.layout import names_of_axes
from shardlang.backends.jax.names import comments
from shardlang.backends.jax.pretty import call, chain, flat, Item, layout, parens, unpack
from shardlang.backends.jax.scans import Layer
from shardlang.backends.jax.steps import note, step_lines
from shardlang.ir.plan import Step
from shardlang.ir.printer import head
from shardlang.ir.types import Array, Axis


def functions(context: Context) -> list[str]:
    """Write the functions of both passes, after those of their layers.

    Any step may be the first to need the size of a dim, and then all functions take the sizes: the context
    knows it when all have been written once.
    """
    flow = context.flow
    found = [*layers(context, flow.forward), _forward(context)]
    if context.has_backward:
        found += [*layers(context, flow.backward), _backward(context)]
    return found


def _forward(context: Context) -> str:
    flow = context.flow
    outputs, saved = (map(context.packed, values) for values in (flow.outputs, flow.saved))
    return "\n".join(
        [
            f"def _forward_steps({context.parameters('inputs')}):",
            '    """Run the forward pass on one device: its outputs, and what backward reads."""',
            *context.unpack(flow.leaves, "inputs"),
            *runs(context, flow.forward),
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
            *runs(context, flow.backward, Again(context)),
            *layout("return ", parens(*(gradient_of(context, leaf) for leaf in flow.leaves)), 1),
        ]
    )


def gradient_of(context: Context, leaf: Value) -> str:
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


def runs(context: Context, passed: Sequence[Run], again: Again | None = None) -> list[str]:
    """Write a pass: the indices that it reads, its steps outside of blocks, and the scans of blocks.

    `again` writes the barriers of a backward pass.
    """
    return [*indices(context, passed), *run_lines(context, passed, again)]


def indices(context: Context, passed: Iterable[Run]) -> list[str]:
    """Write the indices that a pass reads."""
    lines: list[str] = []
    read = frozenset[Array]().union(*(run.reads for run in passed))
    for index in context.flow.indices:
        if index in read:
            (dim,) = index.tensor.dims
            lines += comments(f"{index}: the places along {dim}", 1)
            lines += layout(f"{context.names[index]} = ", context.places(dim), 1)
    return lines


def run_lines(context: Context, passed: Iterable[Run], again: Again | None = None) -> list[str]:
    """Write the steps of a pass outside of blocks, and the scans of blocks."""
    lines: list[str] = []
    for run in passed:
        if isinstance(run, Scan):
            lines += scan_lines(context, run)
            continue
        for place, (step, original) in enumerate(zip(run.steps, run.originals, strict=True)):
            if again is not None:
                lines += again.lines(step, run.steps[place:])
            lines += step_lines(context, step, original)
    return lines


# --- Blocks


def layers(context: Context, passed: Iterable[Run]) -> list[str]:
    """Write the functions of the layers of a pass."""
    found: list[str] = []
    for run in passed:
        if isinstance(run, Scan):
            found += [_gathering(context, run)] if run.ahead else []
            found.append(layer(context, run).text())
    return found


def layer(context: Context, scan: Scan) -> Layer:
    """Give the function of one layer."""
    names, casts, body = context.names, context.varying.cast(scan), _body(context, scan)
    way = "Go back through" if scan.back else "Run"
    return Layer(
        scan.function,
        f"{way} a layer of `layers {scan.block.dim}`: what it hands on, and its part of stacks.",
        [names[array] for array in scan.outside],
        "sizes[" in "\n".join(body),
        [names[array] for array in (*scan.entries, *scan.sums, *scan.ready)],
        [*(names[value.array] for value in scan.stacked), *(["number"] if scan.ahead else [])],
        body,
        [
            *(_varies(names[array], casts.next[array]) for array in scan.exits),
            *(names[array] for array in scan.sums),
            *(["*ahead"] if scan.ahead else []),
        ],
        [
            f"{names[value.array]}[None]" if value.array.layout.unreduced else names[value.array]
            for value in scan.given
        ],
        [names.whole(value) for value in scan.sources],
    )


def _body(context: Context, scan: Scan) -> list[str]:
    """Write the steps of a layer."""
    lines: list[str] = []
    for value in scan.stacked:
        lines += own_part(context.names[value.array], value)
    if scan.ahead:
        lines += comments(
            "What the next layer reads of its parameters; nothing below waits for it", 1
        )
        lines += layout("ahead = ", _next(scan, "stacks", "number"), 1)
    for step, original in scan.body:
        if step.accumulates:
            lines += [*note(original), *_added(context, step)]
        else:
            lines += step_lines(context, step, original)
    return lines


def _next(scan: Scan, stacks: Item, number: str) -> Item:
    """Write the call that does for the layer after a numbered one what is done ahead."""
    return call("_next", scan.gathering, stacks, number, "-1" if scan.back else "1")


def _gathering(context: Context, scan: Scan) -> str:
    """Write the function that lays out a layer's parameters anew, one layer ahead of it."""
    names = context.names
    lines = [
        f"def {scan.gathering}(layer):",
        f'    """Gather what a layer of `layers {scan.block.dim}` reads, one layer ahead of it."""',
        *unpack([names[value.array] for value in scan.sources], "layer", 1),
    ]
    for value in scan.sources:
        lines += own_part(names[value.array], value)
    for step, original in scan.early:
        lines += step_lines(context, step, original)
    return "\n".join([*lines, *layout("return ", parens(*(names[x] for x in scan.ready)), 1)])


def scan_lines(context: Context, scan: Scan, own: str = "") -> list[str]:
    """Write the scan of a block under its head, after the zeros that its sums begin with.

    On stages it begins with what is made here where `own` holds, and else with what was sent.
    """
    names, casts = context.names, context.varying.cast(scan)
    sums = [names[array] for array in scan.sums]
    # The length follows from the stacks, where there are any.
    counted = scan.stacked or scan.ahead
    parts = f" // {flat(call('lax.axis_size', context.stage_axes))}" if own else ""
    if own and context.stages is not None and context.stages.chunks > 1:
        parts += f" // {context.stages.chunks}"
    options = [] if counted else [f"length={context.size(scan.block.dim)}{parts}"]
    options += ["reverse=True"] if scan.back else []
    sources = [names.whole(value) for value in scan.sources]
    before = flat(_next(scan, parens(*sources), "0" if scan.back else "-1")) if scan.ahead else ""
    first: list[Item] = [_varies(names[array], casts.first[array]) for array in scan.entries]
    entered: list[str] = []
    if own:
        entered = layout("entered = ", call("_either", own, parens(*first), "sent"), 1)
        first = ["*entered"]
    return [
        *comments(head(scan.originals[0].loop or scan.block), 1),
        *entered,
        *(line for x in scan.sums for line in _zeros(context, x, casts.sums[x])),
        *layer(context, scan).scan(
            [
                *first,
                *sums,
                *([f"*{before}"] if scan.ahead else []),
            ],
            [
                *(names.whole(value) for value in scan.stacked),
                *([f"jnp.arange({sources[0]}.shape[0])"] if scan.ahead else []),
            ],
            [*(names[array] for array in scan.exits), *sums, *(["*_"] if scan.ahead else [])],
            [names.whole(value) for value in scan.given],
            *options,
        ),
        *(line for array in scan.sums for line in _rounded(context, array)),
    ]


def _rounded(context: Context, array: Array) -> list[str]:
    """Bring a sum over layers to its own dtype, where it was wider."""
    name, dtype = context.names[array], jax_dtype(array.tensor.dtype)
    if wide([dtype]) == dtype:
        return []
    return layout(f"{name} = ", call(f"{name}.astype", dtype_code(dtype)), 1)


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


def _added(context: Context, step: Step) -> list[str]:
    """Add a layer's part to the sum over layers."""
    total, part = context.names[step.output], context.names[step.inputs[0]]
    tensor = step.inputs[0].tensor
    part = aligned(part, tensor.dims, step.output.tensor.dims)
    wider = wide([jax_dtype(step.output.tensor.dtype)])
    terms = [("", total), ("+", cast(part, jax_dtype(tensor.dtype), wider))]
    return chain(f"{total} = ", terms, 1)
