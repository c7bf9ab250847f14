"""Writes what a module offers: make_mesh, forward, forward_backward and differentiable."""

from __future__ import annotations

from dataclasses import replace
from textwrap import wrap

from shardlang.backends.jax.context import Context
from shardlang.backends.jax.names import comment
from shardlang.backends.jax.pretty import call, dictionary, Entry, flat, Item, layout, parens
from shardlang.backends.jax.tables import entry, specs
from shardlang.backends.jax.template import BOTH_STEPS, BOTH_WAYS, fill, MODULE
from shardlang.backends.jax.train import accumulates, moves_home, trains


def public(context: Context) -> str:
    """Write the public functions."""
    flow = context.flow
    positions = _cotangent_positions(context)
    outputs, leaves = flow.outputs, flow.leaves
    every = positions == tuple(range(len(outputs)))
    given = [f"cotangents[{i}]" for i in positions]
    partial = [bool(outputs[i].array.layout.unreduced) for i in positions]
    parts: list[Item] = [
        f"{cotangent}[{':, ' * len(context.front(outputs[i]))}0]" if stacked else cotangent
        for cotangent, i, stacked in zip(given, positions, partial, strict=True)
    ]
    integer = [leaf.array.tensor.dtype.kind != "float" for leaf in leaves]
    floats = ["None" if no else f"gradients[{i}]" for i, no in enumerate(integer)]
    renamed: list[str] = []
    if any(partial) or not every:
        renamed = layout("cotangents = ", parens(*parts), 2)
    returned = ["        return _backward(mesh, *kept, cotangents)"]
    if any(integer):
        returned = ["        gradients = _backward(mesh, *kept, cotangents)"]
        returned += layout("return ", parens(*floats), 2)
    sized = bool(context.sized)
    mapped = ["function", "mesh=mesh", "in_specs=in_specs", "out_specs=out_specs"]
    mapped += ["check_vma=False"] if context.unproven or context.stages else []
    home = moves_home(context.plan)
    marks: dict[str, Item] = {
        "what": _of_what(context),
        "home": "_home(" if home else "",
        "at_home": ")" if home else "",
        "sizes": "    sizes = _sizes(inputs)" if sized else "",
        "pass_sizes": ", sizes" if sized else "",
        "sizes_parameter": "sizes, " if sized else "",
        "static_sizes": ", _sizes(inputs)" if sized else "",
        "leaves": context.leaves_read,
        "forward_steps": "_forward_all" if context.stages else "_forward_steps",
        "backward_steps": "_backward_all" if context.stages else "_backward_steps",
        "both": BOTH_WAYS if context.stages else BOTH_STEPS,
        "backward_specs": parens(
            "_specs(INPUTS)" if context.again == leaves else specs(context, context.again),
            "SAVED",
            "COTANGENTS",
        ),
        "unchecked_why": "\n".join(_unchecked(context)),
        "mapped": call("jax.shard_map", *mapped),
        "cotangents": "_arrays(cotangents, OUTPUTS)" if every else parens(*given),
        "placed": _placed(context),
        "placed_what": _placed_what(context),
        "vjp_cotangents": "\n".join(renamed),
        "vjp_gradients": "\n".join(returned),
        "stacked": (
            "\n    A loss may depend on stacked partial results through their sum alone."
            if any(partial)
            else ""
        ),
    }
    names = ["make_mesh", "place", "on_devices", "arrays", "specs", "forward"]
    if context.has_backward:
        names += ["forward_backward", "differentiable"]
    marks["both"] = fill(flat(marks["both"]), marks).strip("\n")
    return "\n\n\n".join(fill(MODULE[name], marks).strip("\n") for name in names)


def _placed(context: Context) -> Item:
    """Write the table of what a caller makes: the inputs, and cotangents by their output."""
    if not context.has_backward:
        return "INPUTS"
    if accumulates(context.plan) and context.plan.update:
        given = (
            ["**INPUTS", "**BATCH"] if trains(context.plan) else ["**SEEDS", "**INPUTS", "**BATCH"]
        )
        return dictionary(*given)
    cotangents: list[Entry] = []
    for output in context.flow.outputs:
        if output.array.layout.unreduced:
            whole = replace(output, array=output.array.with_layout(output.array.layout.reduced()))
            cotangents.append(entry(context, whole))
    return dictionary("**OUTPUTS", *cotangents, "**INPUTS")


def _placed_what(context: Context) -> str:
    """Say what these are."""
    if context.plan.update:
        if trains(context.plan):
            return "a parameter, or what a batch holds,"
        return "a parameter, what a batch holds, or a cotangent"
    return "an input, or an output's cotangent," if context.has_backward else "an input"


def _of_what(context: Context) -> str:
    """Say what forward_backward runs."""
    if not context.plan.update:
        return "the whole plan as one program"
    if context.stages is not None:
        return "both passes of all microbatches"
    many = context.plan.program.microbatches is not None
    return "both passes of one microbatch" if many else "both passes of a batch"


def _cotangent_positions(context: Context) -> tuple[int, ...]:
    """Say for each cotangent of the plan which output it belongs to."""
    outputs, cotangents = context.plan.outputs, context.plan.cotangents
    if len(outputs) == len(cotangents):
        return tuple(range(len(outputs)))
    names = {f"d{array.name}": index for index, array in enumerate(outputs)}
    if any(array.name not in names for array in cotangents):
        raise context.defect("there is not one cotangent an output")
    return tuple(names[array.name] for array in cotangents)


def _unchecked(context: Context) -> list[str]:
    """Say why JAX can't check what leaves the devices, where it can't."""
    if context.stages is not None:
        return [
            "    # Which stage does what depends on the device, so JAX can't tell what is the same on all."
        ]
    if not context.unproven:
        return []
    ends = [
        f"{context.names.whole(value)} along {', '.join(axis.name for axis in axes)}"
        for value, axes in context.unproven
    ]
    text = (
        "By JAX's types what a ppermute makes varies along all axes that it ran over, and no cast "
        f"says otherwise. These are in fact the same: {'; '.join(ends)}."
    )
    return [f"    {comment(line)}" for line in wrap(text, 90)]
