"""Writes a pipeline: what a stage does with one microbatch, and the ticks in which all stages do their work.

The functions of steps are those of any plan, with what was sent by the stage before (or behind) as one more
parameter. All stages run the same code. Lines before the layers are done by each of them, since layers may
read any of it; the first stage alone begins its layers with what they make. Lines behind the layers run on the last
stage, elsewhere they give zeros. What the backward pass makes is linear in the cotangents, so that a gradient
is the sum of what the stages make of it: of lines behind the layers that is 0 but on the last, of
those before them it comes from what the first stage's layers hand back.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from shardlang.backends.jax.again import Again
from shardlang.backends.jax.context import Context
from shardlang.backends.jax.flow import Run, Scan, Straight, Value
from shardlang.backends.jax.layout import names_of_axes
from shardlang.backends.jax.names import comments, quoted
from shardlang.backends.jax.passes import gradient_of, indices, layers, run_lines, scan_lines
from shardlang.backends.jax.pretty import call, flat, Item, layout, parens, unpack
from shardlang.backends.jax.stages_template import (
    BACK,
    ONLY_IF,
    SEND_BACK,
    STAGES,
    TICKS,
)
from shardlang.backends.jax.template import fill
from shardlang.ir.printer import statement
from shardlang.ir.types import Array, Axis
from shardlang.pipelines import orders


def functions(context: Context) -> list[str]:
    """Write the functions of a stage's steps, and of the ticks."""
    flow = context.flow
    found = [*layers(context, flow.forward), *_forward(context)]
    if context.has_backward:
        found += [*layers(context, flow.backward), *_backward(context)]
    if any("_only_if(" in text for text in found):
        found.insert(0, ONLY_IF.strip("\n"))
    return [*found, _ticks(context)]


def count(context: Context) -> Item:
    """Write how many microbatches there are: the first dim of what has it, else a number."""
    for index, leaf in enumerate(context.flow.leaves):
        if context.microbatches(leaf) is not None:
            return f"inputs[{index}].shape[0]"
    assert context.plan.program.microbatches is not None
    return str(context.numbers.dims[context.plan.program.microbatches])


@dataclass(frozen=True)
class _Parts:
    """A pass in three: what is before the layers on stages, these layers, and what is behind them.

    A backward pass in whose layers there is nothing to do has none: it ends before them.
    """

    before: tuple[Run, ...]
    layers: Scan | None
    behind: tuple[Run, ...]

    @staticmethod
    def of(runs: Sequence[Run]) -> _Parts:
        """Split a pass at its layers on stages."""
        for at, run in enumerate(runs):
            if isinstance(run, Scan) and run.block.pipeline is not None:
                return _Parts(tuple(runs[:at]), run, tuple(runs[at + 1 :]))
        return _Parts(tuple(runs), None, ())

    def staged(self, context: Context, own: str) -> list[str]:
        """Write the layers, which begin with what is made here where `own`, and keep what they hand on."""
        if self.layers is None:
            return layout("handed = ", parens(), 1)
        exits = parens(*(context.names[array] for array in self.exits))
        return [*scan_lines(context, self.layers, own), *layout("handed = ", exits, 1)]

    @property
    def exits(self) -> tuple[Array, ...]:
        """What the layers of a stage hand on."""
        return () if self.layers is None else self.layers.exits


# --- Forward


def _forward(context: Context) -> list[str]:
    """Write the forward pass of a microbatch on a stage, after what the last stage alone does."""
    flow = context.flow
    parts = _Parts.of(flow.forward)
    outputs, saved = (map(context.packed, values) for values in (flow.outputs, flow.saved))
    begin = [
        *context.unpack(flow.leaves, "inputs"),
        *indices(context, flow.forward),
        *run_lines(context, parts.before),
        *parts.staged(context, "first"),
    ]
    end = layout("return ", parens(parens(*outputs), parens(*saved), "handed"), 1)
    own = _Alone("_last_steps", "Run the lines behind the layers, which are the last stage's.")
    function, called = own.lines(context, run_lines(context, parts.behind), begin, end)
    lines = [
        f"def _forward_steps({context.parameters('inputs', 'sent', 'first', 'last')}):",
        '    """Run a stage with a microbatch: its outputs, what backward reads, and what it hands on."""',
        *begin,
        *called,
        *end,
    ]
    return [*function, "\n".join(lines)]


# --- Backward


def _backward(context: Context) -> list[str]:
    """Write the backward pass of a microbatch on a stage, after what the last stage alone does."""
    flow = context.flow
    parts = _Parts.of(flow.backward)
    again = Again(context)
    free, own = _apart(parts, (value.array for value in flow.cotangents))
    begin = [
        *context.unpack(context.again, "leaves"),
        *context.unpack(flow.saved, "saved"),
        *context.unpack(flow.cotangents, "cotangents"),
        *indices(context, flow.backward),
        *run_lines(context, free, again),
    ]
    body = run_lines(context, own, again)
    handed = parts.staged(context, "last")
    rest = run_lines(context, parts.behind, again)
    rest += layout(
        "return ", parens(parens(*(gradient_of(context, x) for x in flow.leaves)), "handed"), 1
    )
    read = _names(rest).read
    for name in (context.names[array] for array in parts.exits):
        if name in read:
            zeros = call("jnp.where", "first", name, f"jnp.zeros_like({name})")
            handed += layout(f"{name} = ", zeros, 1)
    alone = _Alone(
        "_last_steps_backward", "Go back through the lines behind the layers, on the last stage."
    )
    function, called = alone.lines(context, body, begin, [*handed, *rest])
    lines = [
        f"def _backward_steps({context.parameters('leaves', 'saved', 'cotangents', 'sent', 'first', 'last')}):",
        '    """Go back through a stage with a microbatch: gradients (INPUTS), and what it hands back."""',
        *begin,
        *called,
        *handed,
        *rest,
    ]
    return [*function, "\n".join(lines)]


def _apart(parts: _Parts, cotangents: Iterable[Array]) -> tuple[list[Run], list[Run]]:
    """Take from what is before the layers the steps that others than the last stage need as well.

    These are made of no cotangent: values that the layers, or lines behind them, read, made again or laid out anew.
    """
    tainted = set(cotangents)
    pure: list[bool] = []
    steps = [step for run in parts.before for step in run.steps]
    straight = {id(s) for run in parts.before if isinstance(run, Straight) for s in run.steps}
    for step in steps:
        own = id(step) in straight and tainted.isdisjoint(step.inputs)
        pure.append(own)
        if not own:
            tainted.update(step.outputs)
    later = (*([] if parts.layers is None else [parts.layers]), *parts.behind)
    needed = {array for run in later for array in run.reads}
    wanted: set[int] = set()
    for step, own in zip(reversed(steps), reversed(pure), strict=True):
        if own and not needed.isdisjoint(step.outputs):
            wanted.add(id(step))
            needed.update(step.inputs)
    free, last = list[Run](), list[Run]()
    for run in parts.before:
        if isinstance(run, Scan):
            last.append(run)
            continue
        free.append(_only(run, lambda step: id(step) in wanted))
        last.append(_only(run, lambda step: id(step) not in wanted))
    return free, last


def _only(run: Straight, chosen: Callable[[object], bool]) -> Straight:
    """Keep some of the steps of a run."""
    pairs = [x for x in zip(run.steps, run.originals, strict=True) if chosen(x[0])]
    return replace(run, steps=tuple(s for s, _ in pairs), originals=tuple(o for _, o in pairs))


# --- What the last stage alone does


@dataclass(frozen=True)
class _Names:
    """The variables that code reads and makes, in order."""

    read: dict[str, None]
    made: dict[str, None]


def _names(lines: Sequence[str]) -> _Names:
    """Look through the lines of a function."""
    tree = ast.parse("\n".join(["def function():", *lines, "    pass"]))
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    return _Names(
        {x.id: None for x in names if isinstance(x.ctx, ast.Load)},
        {x.id: None for x in names if isinstance(x.ctx, ast.Store)},
    )


@dataclass(frozen=True)
class _Alone:
    """A function of lines that one stage alone runs."""

    name: str
    says: str

    def lines(
        self, context: Context, body: Sequence[str], before: Sequence[str], behind: Sequence[str]
    ) -> tuple[list[str], list[str]]:
        """Write the function and its call, between lines `before` and `behind` it; nothing of no body."""
        own = _names(body)
        made, later = _names(before).made, _names(behind).read
        reads = [name for name in own.read if name in made]
        gives = [name for name in own.made if name in later and name not in reads]
        if not gives:
            return [], []
        text = [
            f"def {self.name}({', '.join([*(['sizes'] if context.sized else []), 'values'])}):",
            f'    """{self.says}"""',
            *unpack(reads, "values", 1),
            *body,
            *layout("return ", parens(*gives), 1),
        ]
        sized = call("functools.partial", self.name, "sizes") if context.sized else self.name
        here = call("_only_if", "last", sized, parens(*reads))
        names = parens(*gives)
        target = ", ".join(gives) if len(gives) > 1 else flat(names)
        called = layout(f"{target} = ", here, 1)
        return ["\n".join(text)], [
            *comments("Lines behind the layers: the last stage's", 1),
            *called,
        ]


# --- Ticks


def _ticks(context: Context) -> str:
    """Write the schedule, and what goes through its ticks."""
    assert context.stages is not None
    flow = context.flow
    sized = bool(context.sized)
    order = {leaf.array: index for index, leaf in enumerate(flow.leaves)}
    chunks = context.stages.chunks
    marks: dict[str, Item] = {
        "axes": flat(context.stage_axes),
        "moving": flat(names_of_axes(_in_mesh_order(context))),
        "places": flat(_places(context)),
        "next": "i + 1" if chunks == 1 else "(i + 1) % stages",
        "senders": "stages - 1" if chunks == 1 else "stages",
        "count": count(context),
        "chunks": str(chunks),
        "chunks_too": "" if chunks == 1 else f", chunks={chunks}",
        "sizes_parameter": ", sizes" if sized else "",
        "pass_sizes": ", sizes" if sized else "",
        "pass_sizes_named": ", sizes=sizes" if sized else "",
        "orders": orders.text(context.stages.schedule).strip("\n"),
        "forward_notes": "\n".join(_notes(context, back=False)),
        "backward_notes": "\n".join(_notes(context, back=True)),
        "send_back": "",
    }
    tables = [
        "# What the first dims of each input count: i microbatches, c chunks of a stage's layers.",
        *_row("FRONT", (_front(context, x) for x in flow.leaves)),
        "# The same of outputs, and whether each is the last stage's; others are in parts on the stages.",
        *_row("OUTPUTS_FRONT", (_front(context, x) for x in flow.outputs)),
        *_row("LAST", (str(not context.staged(x)) for x in flow.outputs)),
        "# Of what backward reads, whether it is of the layers and before them, or of the lines behind them.",
        *_row("KEPT", _kept(context)),
        "# The first piece of work: all have its shapes.",
        'FIRST = {"i": 0, "c": 0}',
    ]
    if not context.has_backward:
        texts = (_filled(text, marks) for text in (TICKS, STAGES))
        return "\n\n\n".join(("\n".join(tables), *texts))
    without = context.without_gradient
    summed = (not context.staged(x) and x.array.name not in without for x in flow.leaves)
    tables += [
        "# What the first dims of cotangents count.",
        *_row("SEEDS_FRONT", (_front(context, x) for x in flow.cotangents)),
        "# Of the gradient of each input whether it is the sum of what the stages have of it.",
        *_row("SUMMED", map(str, summed)),
        "",
        "# The inputs that the backward pass reads.",
        *_row("LEAVES", (str(order[x.array]) for x in context.again)),
    ]
    if context.sent(back=True):
        marks["send_back"] = fill(SEND_BACK, marks).strip("\n")
    texts = (_filled(text, marks) for text in (TICKS, STAGES, BACK))
    return "\n\n\n".join(("\n".join(tables), *texts))


def _front(context: Context, value: Value) -> str:
    """Write what the dims in front of a value count that a piece of work has one of."""
    many = "i" if context.microbatches(value) is not None else ""
    return quoted(f"{many}{'c' if context.chunks(value) > 1 else ''}")


def _kept(context: Context) -> Iterator[str]:
    """Say of what the backward pass reads whether it is made by lines behind the layers."""
    behind = _Parts.of(context.flow.forward).behind
    ends = {array for run in behind for step in run.steps for array in step.outputs}
    yield from (quoted("ends" if x.array in ends else "kept") for x in context.flow.saved)


def _in_mesh_order(context: Context) -> list[Axis]:
    """Give the axes of the stages as JAX takes them in a ppermute: in the order of the mesh."""
    own = () if context.stages is None else context.stages.axes
    return [axis for axis in context.numbers.axes if axis in own]


def _places(context: Context) -> Item:
    """Write the place of each stage among the devices along its axes, as a ppermute counts them."""
    own = () if context.stages is None else context.stages.axes
    moving = _in_mesh_order(context)
    if tuple(moving) == own:
        return "range(stages)"
    sizes = parens(*(call("lax.axis_size", names_of_axes([axis])) for axis in moving))
    order = parens(*(str(moving.index(axis)) for axis in own))
    return f"np.arange(stages).reshape({flat(sizes)}).transpose({flat(order)}).ravel().tolist()"


def _filled(text: str, marks: dict[str, Item]) -> str:
    return fill(text, marks).strip("\n")


def _row(name: str, items: Iterable[str]) -> list[str]:
    return layout(f"{name} = ", parens(*items), 0)


def _notes(context: Context, *, back: bool) -> list[str]:
    """Write the notation of what is sent."""
    return [
        f"        {line}"
        for step in context.sent(back=back)
        for line in comments(f"{statement(step)}  // on the critical path", 1)
    ]
