"""Writes the training step of a module: the gradients of all microbatches, and an optimizer's update of shards.

There is one where the plan has a backward pass, parameters and a loss: the one output that is a
scalar of a float type and has a cotangent. Where a plan has an update and no such output, the caller gives
cotangents, and there are the gradients alone. The caller gives the optimizer (a GradientTransformation of optax, or
whatever has its `init` and `update`); it is applied to global arrays that lie as the plan says that the
optimizer's state does, so that what it takes of all parameters, such as their norm, is right.

The update's steps over the parameters of a block are done for all layers at once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from shardlang.backends.jax.compute import jax_dtype
from shardlang.backends.jax.context import Context
from shardlang.backends.jax.flow import Value
from shardlang.backends.jax.layout import partition_spec
from shardlang.backends.jax.names import quoted
from shardlang.backends.jax.pretty import (
    call,
    dictionary,
    Entry,
    Item,
    layout,
    parens,
    unpack,
)
from shardlang.backends.jax.stages import count
from shardlang.backends.jax.steps import note, relayout
from shardlang.backends.jax.template import fill
from shardlang.backends.jax.train_template import (
    CHECK_GRADIENTS,
    CHECK_LOSS,
    CHECK_OUTPUTS,
    CHECK_TRAINING,
    GRADIENTS,
    MICROBATCHES,
    MOVED,
    OF_ONE,
    ONE_BATCH,
    STAGES,
    STEP,
    WIDE_DTYPE,
)
from shardlang.ir.ops import Relayout
from shardlang.ir.plan import Plan, Step
from shardlang.ir.program import Leaf
from shardlang.ir.types import Array, Tensor
from shardlang.passes.update import of_all_layers

MASTERS = frozenset({"adamw"})
"""Optimizers whose state has a copy of narrow parameters in f32 (see `cost/memory`)."""


@dataclass(frozen=True)
class Updated:
    """A parameter that is trained: its leaf, its gradient, and the steps that the update does with it.

    `reduced` are those of the gradient, `own` those that cut the parameter's part, `whole` those
    that make all of the new one; each step stands beside the same one as the plan is printed.
    """

    leaf: Leaf
    gradient: Array
    state: Array
    reduced: tuple[tuple[Step, Step], ...]
    own: tuple[tuple[Step, Step], ...]
    whole: tuple[tuple[Step, Step], ...]

    @property
    def name(self) -> str:
        """The parameter's name."""
        return self.leaf.array.name


def loss_of(plan: Plan) -> int | None:
    """Give the place of the loss among the outputs; None where there is no one scalar to descend."""
    gradients = {cotangent.name for cotangent in plan.cotangents}
    scalars = [
        place
        for place, output in enumerate(plan.outputs)
        if not output.tensor.dims and output.tensor.dtype.kind == "float"
        if f"d{output.name}" in gradients and not output.layout.unreduced
    ]
    return scalars[0] if len(scalars) == 1 and len(plan.cotangents) == 1 else None


def accumulates(plan: Plan) -> bool:
    """Say whether the module of a plan gives the gradients of all that a step sees."""
    wants = plan.program.optimizer not in (None, "none") and loss_of(plan) is not None
    weights = plan.parameters
    given = [gradient for gradient in plan.gradients if gradient.leaf.tensor in weights]
    partial = any(gradient.leaf.layout.unreduced for gradient in given)
    return (wants or bool(plan.update)) and bool(given) and not partial


def trains(plan: Plan) -> bool:
    """Say whether it has a training step, which needs a loss."""
    return accumulates(plan) and loss_of(plan) is not None


def updated(plan: Plan, original: Plan) -> tuple[Updated, ...]:
    """List the parameters that are trained, in the order of the leaves."""
    pairs = tuple(zip(plan.update, original.update, strict=True))
    added, states = plan.accumulators, plan.states
    new = {leaf: array.tensor for array, leaf in plan.renewed.items()}
    found: list[Updated] = []
    gradients = {gradient.leaf: gradient.gradient for gradient in plan.gradients}
    for leaf in plan.program.leaves:
        if leaf.kind != "param" or leaf.array not in gradients:
            continue
        gradient = gradients[leaf.array]
        summed = added.get(gradient, gradient)
        tensors = (summed.tensor, leaf.array.tensor, new.get(leaf.array))
        steps = (tuple(_of(pairs, tensor)) for tensor in tensors)
        state = states.get(leaf.array.tensor, leaf.array)
        found.append(Updated(leaf, gradient, state, *steps))
    return tuple(found)


def _of(pairs: Sequence[tuple[Step, Step]], tensor: Tensor | None) -> Iterator[tuple[Step, Step]]:
    """Go through the steps of an update that lay a value out anew."""
    for step, original in pairs:
        if isinstance(step.op, Relayout) and step.output.tensor == tensor:
            yield step, original


def training(context: Context) -> str:
    """Write the training step, or the gradients of all microbatches; nothing where the plan has neither."""
    plan = context.plan
    if not accumulates(plan):
        return ""
    rows = updated(plan, context.original)
    functions = [
        _moves(context, kind, [(row.leaf, getattr(row, kind.steps)) for row in rows])
        for kind in _kinds(plan, rows)
    ]
    if moves_home(plan):
        functions.append(_home(context, rows))
    return "\n\n\n".join((_tables(context, rows), *functions, *_public(context, rows)))


def moves_home(plan: Plan) -> bool:
    """Say whether gradients end the backward pass elsewhere than their parameters live."""
    homes = {leaf.array: leaf.array.layout.reduced() for leaf in plan.program.leaves}
    return any(x.gradient.layout != homes[x.leaf] for x in plan.gradients)


def _home(context: Context, rows: Sequence[Updated]) -> str:
    """Write how the gradients of one batch go to where inputs live: as those of a step, then as new parameters."""
    plan, kinds = context.plan, {kind.steps for kind in _kinds(context.plan, rows)}
    places = {leaf.array.name: index for index, leaf in enumerate(context.flow.leaves)}
    found: dict[str, str] = {name: f"gradients[{index}]" for name, index in places.items()}
    lines = layout("own = ", parens(*(found[row.name] for row in rows)), 1)
    wide = {_summed(plan, row).tensor.dtype for row in rows}
    casts = wide != {row.gradient.tensor.dtype for row in rows}
    if casts and _scans(context):
        pairs = "for x, (dtype, _) in zip(own, ACCUMULATORS, strict=True)"
        lines.append(f"    own = tuple(x.astype(dtype) {pairs})")
    if "reduced" in kinds:
        lines.append("    own = _reduced(own)")
    if casts:
        pairs = "for name, x in zip(STATES, own, strict=True)"
        lines.append(f"    own = tuple(x.astype(INPUTS[name][1]) {pairs})")
    if "whole" in kinds:
        lines.append("    own = _whole(own)")
    found |= {row.name: context.names[row.leaf.array] for row in rows}
    text = "Bring the gradients of one batch, in the order of INPUTS, to where these live."
    return "\n".join(
        [
            "def _home(gradients):",
            f'    """{text}"""',
            *lines,
            *unpack([found[row.name] for row in rows], "own", 1),
            *layout("return ", parens(*(found[name] for name in places)), 1),
        ]
    )


def _summed(plan: Plan, row: Updated) -> Array:
    """Give the array in which a gradient is added up over microbatches; with none it is the gradient."""
    return plan.accumulators.get(row.gradient, row.gradient)


def _scans(context: Context) -> bool:
    """Say whether a step goes through its microbatches one by one: in a pipeline they go all at once."""
    return context.plan.program.microbatches is not None and context.stages is None


@dataclass(frozen=True)
class _Kind:
    """One of the update's changes of layout: its steps (of `Updated`), its function, and what it does."""

    steps: Literal["reduced", "own", "whole"]
    function: str
    argument: str
    what: str


_KINDS = (
    _Kind(
        "reduced", "_reduced", "gradients", "Bring gradients to where the optimizer's state lies."
    ),
    _Kind(
        "own", "_own_parts", "parameters", "Keep the parts of parameters that this device updates."
    ),
    _Kind("whole", "_whole", "parameters", "Bring new parameters to where they live."),
)


def _masters(plan: Plan, rows: Sequence[Updated]) -> bool:
    """Say whether the state holds the parameters in f32 as well."""
    return plan.program.optimizer in MASTERS and _narrow(rows)


def _narrow(rows: Sequence[Updated]) -> bool:
    """Say whether some parameter is narrower than f32, in which it is updated then."""
    return any(row.leaf.array.tensor.dtype.bits < 32 for row in rows)


def _kinds(plan: Plan, rows: Sequence[Updated]) -> tuple[_Kind, ...]:
    """List the changes of layout that a step makes: of masters the own part is there."""
    skipped = "own" if _masters(plan, rows) else ""
    there = (kind for kind in _KINDS if any(getattr(row, kind.steps) for row in rows))
    return tuple(kind for kind in there if kind.steps != skipped)


def _moves(
    context: Context, kind: _Kind, rows: Iterable[tuple[Leaf, Sequence[tuple[Step, Step]]]]
) -> str:
    """Write a function of one device that lays a value of each parameter out anew."""
    listed = list(rows)
    names = [context.names[leaf.array] for leaf, _ in listed]
    lines = [f"def {kind.function}({kind.argument}):", f'    """{kind.what}"""']
    lines += unpack(names, kind.argument, 1)
    for name, (_, steps) in zip(names, listed, strict=True):
        for step, original in steps:
            stacked = of_all_layers(step)
            assert isinstance(stacked.op, Relayout)
            lines += [*note(original), *relayout(context, stacked.op, stacked, name, name)]
    return "\n".join([*lines, *layout("return ", parens(*names), 1)])


def _tables(context: Context, rows: Sequence[Updated]) -> str:
    """Write where each parameter is updated, and what a batch is."""
    specs = [
        Entry(
            f"{quoted(row.name)}: ",
            partition_spec(row.state.layout, context.front(Value(row.leaf.array, row.leaf.loop))),
        )
        for row in rows
    ]
    lines = ["# Where the optimizer's state of each parameter lies, and its new value is made."]
    lines += layout("STATES = ", dictionary(*specs), 0, force=True)
    frozen = _frozen(context.plan)
    if frozen:
        lines += ["", "# Parameters that get no gradient: no step changes them."]
        lines += layout("FROZEN = ", parens(*map(quoted, frozen)), 0)
        lines.append("PARAMETERS = (*STATES, *FROZEN)")
    many = "all microbatches" if context.plan.program.microbatches else "the batch"
    lines += ["", f"# Name: (global shape, dtype, PartitionSpec) of {many} of a step."]
    entries = [_of_all(context, x, f"INPUTS[{quoted(x.array.name)}][2]") for x in _batch(context)]
    lines += layout("BATCH = ", dictionary(*entries), 0, force=bool(entries))
    if loss_of(context.plan) is None:
        lines += ["", f"# The same of the cotangents of {many}, by the names of their outputs."]
        seeds = [
            _of_all(
                context,
                replace(x, array=x.array.with_layout(x.array.layout.reduced())),
                f"COTANGENTS[{i}]",
            )
            for i, x in enumerate(_seeded(context))
        ]
        lines += layout("SEEDS = ", dictionary(*seeds), 0, force=True)
    if _scans(context):
        lines += [
            "",
            "# The dtype in which each gradient is added up, and the axes along which it varies.",
        ]
        lines += layout("ACCUMULATORS = ", parens(*(_accumulator(context, x) for x in rows)), 0)
    return "\n".join(lines)


def _of_all(context: Context, value: Value, spec_of_one: str) -> Entry:
    """Write the row of what there is one of in each microbatch, and `spec_of_one` is the spec."""
    counted = context.plan.program.microbatches
    shape: list[Item] = [str(n) for n in context.shape(value, context.numbers)]
    own = partition_spec(value.array.layout, context.front(value))
    if counted is not None and _scans(context):
        shape.insert(0, str(context.numbers.dims[counted]))
        own = call("P", "None", f"*{spec_of_one}")
    row = parens(parens(*shape), f'"{jax_dtype(value.array.tensor.dtype)}"', own)
    return Entry(f"{quoted(value.array.name)}: ", row)


def _seeded(context: Context) -> list[Value]:
    """List the outputs that have cotangents, in the order of these."""
    outputs = {f"d{output.array.name}": output for output in context.flow.outputs}
    return [outputs[cotangent.name] for cotangent in context.plan.cotangents]


def _accumulator(context: Context, row: Updated) -> Item:
    """Write what a gradient is added up in, and along which axes it varies by its type."""
    value = context.flow.gradients[row.name]
    axes = context.varying.type(value) | value.array.layout.used
    names = parens(*(quoted(axis.name) for axis in sorted(axes)))
    return parens(f'"{jax_dtype(_summed(context.plan, row).tensor.dtype)}"', names)


def _batch(context: Context) -> list[Value]:
    """List the leaves that are no parameters: they come with the batch."""
    weights = context.plan.parameters
    return [value for value in context.flow.leaves if value.array.tensor not in weights]


def _frozen(plan: Plan) -> list[str]:
    """Name the parameters that get no gradient: given once as the others are, they stay as they are."""
    trained = {gradient.leaf for gradient in plan.gradients}
    weights = (leaf.array for leaf in plan.program.leaves if leaf.kind == "param")
    return [array.name for array in weights if array not in trained]


def _public(context: Context, rows: Sequence[Updated]) -> Iterator[str]:
    """Write what the module offers."""
    plan = context.plan
    loss = loss_of(plan)
    masters = _masters(plan, rows)
    kinds = {kind.steps for kind in _kinds(plan, rows)}
    weights, frozen = plan.parameters, bool(_frozen(plan))
    leaves, many = context.flow.leaves, plan.program.microbatches

    def named(data: str) -> Item:
        return parens(
            *(
                f"{'parameters' if x.array.tensor in weights else data}[{quoted(x.array.name)}]"
                for x in leaves
            )
        )

    places = {leaf.array.name: index for index, leaf in enumerate(leaves)}
    staged = context.stages is not None
    sized = bool(context.sized)
    marks: dict[str, Item] = {
        **(_of_outputs(context) if loss is None else _of_loss(context, loss)),
        "data": "    data = {name: x[0] for name, x in batch.items()}"
        if sized and _scans(context)
        else "",
        "sizes": "\n".join(
            layout("sizes = ", call("_sizes", named("data" if _scans(context) else "batch")), 1)
        )
        if sized
        else "",
        "inputs": named("batch" if staged else "data"),
        "pass_sizes": ", sizes" if sized else "",
        "count": count(context) if staged else "",
        "leaves": context.leaves_read,
        "length": ""
        if many is None or _batch(context)
        else f", length={context.numbers.dims[many]}",
        **_of_frozen(frozen=frozen),
        "wanted": parens(*(f"gradients[{places[row.name]}]" for row in rows)),
        **_of_state(kinds, narrow=_narrow(rows), masters=masters, frozen=frozen),
    }
    marks["reduced"] = "_reduced(gradients)" if "reduced" in kinds else "gradients"
    parts = (STAGES,) if staged else (OF_ONE, MICROBATCHES if _scans(context) else ONE_BATCH)
    marks["body"] = "\n\n".join(fill(part, marks).strip("\n") for part in parts)
    yield fill(GRADIENTS, marks).strip("\n")
    if loss is None:
        return
    for kind in _KINDS:
        inward = kind.steps == "own"
        if kind.steps in kinds and kind.steps != "reduced":
            moved: dict[str, Item] = {
                "name": f"{kind.function}_of",
                "function": kind.function,
                "argument": kind.argument,
                "what": kind.what,
                "before": "lying" if inward else "STATES",
                "behind": "STATES" if inward else "lying",
            }
            yield fill(MOVED, moved).strip("\n")
    yield fill(STEP, marks).strip("\n")


def _of_state(
    kinds: Collection[str], *, narrow: bool, masters: bool, frozen: bool
) -> dict[str, Item]:
    """Write what a step does with parameters before and behind the optimizer, and in which dtypes."""
    own = '_own_parts_of(mesh, state["parameters"])' if "own" in kinds else 'state["parameters"]'
    old = ['        old = state["masters"]' if masters else f"        old = {own}"]
    if narrow and not masters:
        old.append("        old = {name: x.astype(_wide_dtype(name)) for name, x in old.items()}")
    new = "{name: x.astype(INPUTS[name][1]) for name, x in new.items()}" if narrow else "new"
    parameters = [f"        parameters = {new}"]
    if "whole" in kinds:
        whole = f"        parameters = _whole_of(mesh, {'parameters' if narrow else 'new'})"
        parameters = [*parameters, whole] if narrow else [whole]
    wider = "        gradients = {name: gradients[name].astype(x.dtype) for name, x in old.items()}"
    entries = ['"parameters": parameters', '"optimizer": moments']
    entries += ['"masters": new'] if masters else []
    entries += ['"frozen": state["frozen"]'] if frozen else []
    ended = [f"        return {{{', '.join(entries)}}}, loss"]
    if len(ended[0]) > 100:
        rows = (f"            {entry}," for entry in entries)
        ended = ["        return {", *rows, "        }, loss"]
    return {
        "masters": "a copy of them in f32, " if masters else "",
        "own_dtype": "_wide_dtype(name)" if narrow else "INPUTS[name][1]",
        "keep_masters": '    state["masters"] = own' if masters else "",
        "old": "\n".join(old),
        "widen": wider if narrow else "",
        "parameters": "\n".join(parameters),
        "ended": "\n".join(ended),
        "wide_dtype": WIDE_DTYPE.strip("\n") + "\n\n" if narrow else "",
    }


def _of_frozen(*, frozen: bool) -> dict[str, Item]:
    """Write what there is only where some parameters get no gradient."""
    rows = {
        "all_own": ("PARAMETERS", "STATES"),
        "join": ('        parameters = state["parameters"] | state["frozen"]', ""),
        "all_of_state": ("parameters", 'state["parameters"]'),
        "and_frozen": (", and apart those that no step changes", ""),
        "keep_frozen": (
            '    state["frozen"] = {name: placed(name, *INPUTS[name][1:]) for name in FROZEN}',
            "",
        ),
    }
    return {name: row[0 if frozen else 1] for name, row in rows.items()}


def _of_loss(context: Context, loss: int) -> dict[str, Item]:
    """Write what there is only where a loss gives the cotangents."""
    many, dtype = (
        context.plan.program.microbatches,
        jax_dtype(context.plan.outputs[loss].tensor.dtype),
    )
    ones = "(count,)" if context.stages is not None else "()"
    return {
        "function": "loss_and_gradients",
        "what": f"{'mean ' if many else ''}loss of a batch, and its gradients",
        "arguments": "`parameters` and `batch` hold global arrays by their names in STATES and in BATCH.",
        "cotangents": f'(jnp.ones({ones}, "{dtype}"),)',
        "found": f"outputs[{loss}]",
        "mean_found": f"jnp.mean(outputs[{loss}])",
        "one": "loss",
        "all": "losses",
        "counted": "losses",
        "mean_of_all": "jnp.mean(losses)",
        "specs": "P()",
        "seeds": "",
        "seeds_of_all": ",",
        "cast_seeds": "",
        "specs_of_seeds": "",
    }


def _of_outputs(context: Context) -> dict[str, Item]:
    """Write what there is only where the caller gives the cotangents."""
    many = context.plan.program.microbatches
    gradients = "the means of their gradients" if many else "their gradients"
    spec = "P(None, *spec)" if _scans(context) else "spec"
    return {
        "function": "outputs_and_gradients",
        "what": f"outputs of {'all microbatches' if many else 'a batch'}, and {gradients}",
        "arguments": "The arguments hold global arrays by their names in STATES, BATCH and SEEDS.",
        "cotangents": "tuple(cotangents[name] for name in SEEDS)",
        "found": "outputs",
        "mean_found": "outputs",
        "one": "outputs",
        "all": "outputs",
        "counted": "outputs[0]",
        "mean_of_all": "outputs",
        "specs": f"tuple({spec} for _, _, spec in OUTPUTS.values())",
        "seeds": ", cotangents",
        "seeds_of_all": ", cotangents",
        "cast_seeds": "    cotangents = {\n        name: jnp.asarray(cotangents[name], dtype) for name, (_, dtype, _) in SEEDS.items()\n    }",
        "specs_of_seeds": "        {name: spec for name, (_, _, spec) in SEEDS.items()},",
    }


def training_check(context: Context, combine: str, *, gradients: bool) -> list[str]:
    """Write what the module's own check compares of a training step.

    `combine` is the line that combines stacked partial outputs; `gradients` says whether they are compared too.
    """
    plan = context.plan
    if not accumulates(plan):
        return []
    loss, scans, frozen = loss_of(plan), _scans(context), bool(_frozen(plan))
    stacked = "{name: jnp.stack([each[name] for each in batches]) for name in BATCH}"
    rolled = "{name: jnp.roll(x, 1, -1) if x.ndim else x for name, x in rest.items()}"
    divisor = "len(batches)" if scans else "1"
    marks: dict[str, Item] = {
        "what": "outputs" if loss is None else "loss",
        "loss": str(loss),
        "batches": f"[rest, {rolled}]" if scans else "[rest]",
        "batch": stacked if scans else "batches[0]",
        "seeds": "jnp.stack([seeds[name]] * 2)" if scans else "seeds[name]",
        "expected": "tuple(map(jnp.stack, zip(*found, strict=True)))" if scans else "found[0]",
        "divisor": divisor if context.stages is None else "len(cotangents[0])",
        "combine_all": combine,
        "fixed": "        fixed = {name: x for name, x in zip(INPUTS, inputs, strict=True) if name in FROZEN}"
        if frozen
        else "",
        "given": "(fixed | batch)" if frozen else "batch",
        "all_trained": "trained | fixed" if frozen else "trained",
    }
    parts = [CHECK_TRAINING, CHECK_OUTPUTS if loss is None else CHECK_LOSS]
    parts += [CHECK_GRADIENTS] if gradients else []
    first, second, *last = (fill(part, marks).strip("\n") for part in parts)
    return ["\n".join([first, f"\n{second}", *last])]
