"""Writes the training step of a module: the gradients of all microbatches, and an optimizer's update of shards.

There is one where the plan has a backward pass, parameters and a loss: the one output that is a
scalar of a float type and has a cotangent. The caller gives the optimizer (a GradientTransformation of optax, or
whatever has its `init` and `update`); it is applied to global arrays that lie as the plan says that the
optimizer's state does, so that what it takes of all parameters, such as their norm, is right.

The update's steps over the parameters of a block are done for all layers at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
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
    CHECK_TRAINING,
    GRADIENTS,
    MICROBATCHES,
    MOVED,
    OF_ONE,
    ONE_BATCH,
    STAGES,
    STEP,
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


def trains(plan: Plan) -> bool:
    """Say whether the module of a plan has a training step."""
    wants = plan.program.optimizer not in (None, "none") or bool(plan.update)
    weights = plan.parameters
    given = [gradient for gradient in plan.gradients if gradient.leaf.tensor in weights]
    partial = any(gradient.leaf.layout.unreduced for gradient in given)
    return wants and bool(given) and not partial and loss_of(plan) is not None


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
    """Write the training step, or nothing where the plan has none."""
    plan = context.plan
    if not trains(plan):
        return ""
    rows = updated(plan, context.original)
    functions = [
        _moves(context, kind, [(row.leaf, getattr(row, kind.steps)) for row in rows])
        for kind in _kinds(plan, rows)
    ]
    return "\n\n\n".join((_tables(context, rows), *functions, *_public(context, rows)))


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
    narrow = any(row.leaf.array.tensor.dtype.bits < 32 for row in rows)
    return plan.program.optimizer in MASTERS and narrow


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
    counted = context.plan.program.microbatches
    many = "all microbatches of a step" if counted else "the batch of a step"
    lines += ["", f"# Name: (global shape, dtype, PartitionSpec) of {many}."]
    entries: list[Entry] = []
    for value in _batch(context, rows):
        shape: list[Item] = [str(n) for n in context.shape(value, context.numbers)]
        own = partition_spec(value.array.layout, context.front(value))
        if counted is not None and context.stages is None:
            shape.insert(0, str(context.numbers.dims[counted]))
            own = call("P", "None", f"*INPUTS[{quoted(value.array.name)}][2]")
        row = parens(parens(*shape), f'"{jax_dtype(value.array.tensor.dtype)}"', own)
        entries.append(Entry(f"{quoted(value.array.name)}: ", row))
    lines += layout("BATCH = ", dictionary(*entries), 0, force=bool(entries))
    if counted is not None and context.stages is None:
        lines += [
            "",
            "# The dtype in which each gradient is added up, and the axes along which it varies.",
        ]
        lines += layout("ACCUMULATORS = ", parens(*(_accumulator(context, x) for x in rows)), 0)
    return "\n".join(lines)


def _accumulator(context: Context, row: Updated) -> Item:
    """Write what a gradient is added up in, and along which axes it varies by its type."""
    summed = context.plan.accumulators.get(row.gradient, row.gradient)
    value = context.flow.gradients[row.name]
    axes = context.varying.type(value) | value.array.layout.used
    names = parens(*(quoted(axis.name) for axis in sorted(axes)))
    return parens(f'"{jax_dtype(summed.tensor.dtype)}"', names)


def _batch(context: Context, rows: Sequence[Updated]) -> list[Value]:
    """List the leaves that are not trained: they come with the batch."""
    names = {row.name for row in rows}
    return [value for value in context.flow.leaves if value.array.name not in names]


def _public(context: Context, rows: Sequence[Updated]) -> Iterator[str]:
    """Write what the module offers."""
    plan = context.plan
    loss = loss_of(plan)
    assert loss is not None
    masters = _masters(plan, rows)
    kinds = {kind.steps for kind in _kinds(plan, rows)}
    trained = {row.name for row in rows}
    leaves = context.flow.leaves
    named = [
        f"{'parameters' if leaf.array.name in trained else 'data'}[{quoted(leaf.array.name)}]"
        for leaf in leaves
    ]
    places = {leaf.array.name: index for index, leaf in enumerate(leaves)}
    many = plan.program.microbatches is not None
    staged = context.stages is not None
    first = "{name: x[0] for name, x in batch.items()}" if many and not staged else "batch"
    sized = bool(context.sized)
    own = '_own_parts_of(mesh, state["parameters"])' if "own" in kinds else 'state["parameters"]'
    old = [
        f"        old = {own}",
        "        old = {name: x.astype(_wide_dtype(name)) for name, x in old.items()}",
    ]
    marks: dict[str, Item] = {
        "mean": "mean " if many else "",
        "data": f"    data = {first}" if sized else "",
        "sizes": "\n".join(layout("sizes = ", call("_sizes", parens(*named)), 1)) if sized else "",
        "inputs": parens(*named),
        "pass_sizes": ", sizes" if sized else "",
        "count": count(context) if staged else "",
        "leaves": parens(*(f"inputs[{places[leaf.array.name]}]" for leaf in context.again)),
        "dtype": jax_dtype(plan.outputs[loss].tensor.dtype),
        "loss": str(loss),
        "wanted": parens(*(f"gradients[{places[row.name]}]" for row in rows)),
        "masters": "a copy of them in f32 " if masters else "",
        "keep_masters": '    state["masters"] = wide' if masters else "",
        "old": '        old = state["masters"]' if masters else "\n".join(old),
        "whole": "        parameters = _whole_of(mesh, parameters)" if "whole" in kinds else "",
        "masters_too": ', "masters": new' if masters else "",
    }
    marks["reduced"] = "_reduced(gradients)" if "reduced" in kinds else "gradients"
    parts = (STAGES,) if staged else (OF_ONE, MICROBATCHES if many else ONE_BATCH)
    marks["body"] = "\n\n".join(fill(part, marks).strip("\n") for part in parts)
    yield fill(GRADIENTS, marks).strip("\n")
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


def training_check(context: Context) -> str:
    """Write what the module's own check compares of a training step: its loss and its gradients."""
    plan = context.plan
    if not trains(plan):
        return ""
    many = plan.program.microbatches is not None and context.stages is None
    stacked = "{name: jnp.stack([each[name] for each in batches]) for name in BATCH}"
    marks: dict[str, Item] = {
        "loss": str(loss_of(plan)),
        "count": "2" if many else "1",
        "batch": stacked if many else "batches[0]",
    }
    return "\n" + fill(CHECK_TRAINING, marks).strip("\n")
