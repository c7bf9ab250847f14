"""Lowering: from a resolved program to a plan.

The order of the passes is the order of the calls in `lower`: axes of size 1 go, the forward pass is
inferred, the backward pass is derived from it, then the update of a training step where one is
declared, and collectives are marked as critical or not. An
explicit program is only checked, since its lines are the steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from shardlang.diagnostics import Diagnostic, Reporter
from shardlang.ir.plan import Plan, Step
from shardlang.ir.program import Block, Program
from shardlang.ir.types import Array, Layout, Tensor
from shardlang.passes.backward import backward, BackwardResult
from shardlang.passes.explicit import check_explicit, outputs_of
from shardlang.passes.infer import infer_statement
from shardlang.passes.keep import alternatives, keep, named
from shardlang.passes.layers import bodies, left_inside, settled, stack
from shardlang.passes.leaves import not_used, not_weights
from shardlang.passes.live import alive, mark_critical, prune
from shardlang.passes.lowering import Lowering, Reason
from shardlang.passes.normal import drop_unit_axes
from shardlang.passes.partial import left_partial, terms
from shardlang.passes.positions import rounded_places
from shardlang.passes.update import update
from shardlang.rules.errors import Unused


def lower(
    program: Program,
    strategy: str = "book",
    *,
    keep_gathered: bool | None = None,
    forward_only: bool = False,
) -> Plan:
    """Lower a program to a plan by the rules of a strategy.

    `keep_gathered` keeps the gathered copies of all parameters for the backward pass, or of none,
    whatever the program's `save` line names; `forward_only` leaves the backward pass out. The plan's
    program names the parameters whose copies the backward pass reads. Raises ShardlangError with
    every mistake found.
    """
    reporter = Reporter(program.source)
    plan = _lower(keep(program, keep_gathered), strategy, reporter, forward_only=forward_only)
    reporter.raise_if_errors()
    plan = named(plan)
    return replace(plan, alternatives=(*plan.alternatives, *alternatives(plan)))


def check(
    program: Program,
    *,
    explicit: bool = False,
    forward_only: bool = False,
) -> list[Diagnostic]:
    """Give every error and warning of lowering a program, in the order of the text.

    With `explicit`, the lines of a program without headings are taken as steps too: each has to be
    legal as it stands.
    """
    reporter = Reporter(program.source)
    if explicit and not program.explicit:
        program = replace(program, explicit=True)
    for leaves, mistake in (*not_weights(program), *not_used(program)):
        reporter.report(leaves[0].span, mistake)
    for statement, rounded in rounded_places(program):
        reporter.report(statement.span, rounded)
    _lower(program, "book", reporter, forward_only=forward_only)
    return sorted(reporter.diagnostics, key=lambda d: (d.span.start, d.span.end))


def _lower(
    program: Program,
    strategy: str,
    reporter: Reporter,
    *,
    forward_only: bool,
) -> Plan:
    if strategy != "book":
        raise ValueError(f"no strategy {strategy!r}: there are 'book' and 'optimal'")
    program = drop_unit_axes(program)
    if program.explicit:
        return check_explicit(program, reporter, forward_only=forward_only)
    state = Lowering(
        dict(program.sizes.known),
        permutes=program.pipeline is None,
        partial_over=left_partial(program.statements),
        terms=terms(program.statements),
    )
    for leaf in program.leaves:
        state.give(leaf.array)
    ends = _ends(program)
    hands: dict[int, dict[str, list[Array]]] = {}
    for block, statements in bodies(program.statements):
        if block is not None:
            _enter(state, program, block)
        for statement in statements:
            infer_statement(state, statement, reporter)
        if block is not None:
            for tensor in left_inside(program, ends, block):
                _obtain_output(state, tensor, ends[tensor])
            state.send()
            hands[block.number] = state.leave()
    inside = {t for block in program.blocks for t in left_inside(program, ends, block)}
    outputs = tuple(Array(t, ends[t] or state.home[t.name]) for t in ends)
    for output in outputs:
        if output.tensor not in inside:
            _obtain_output(state, output.tensor, output.layout)
    result = BackwardResult((), (), (), (), ())
    if not forward_only and not reporter.errors:
        result = backward(program, state, hands, outputs, reporter)
    _warn_of_dead_lines(state.steps, result, outputs, reporter)
    forward, behind = prune(tuple(state.steps), result.steps, outputs, result.gradients)
    forward, behind = mark_critical(program, forward, behind, outputs, result.gradients)
    taken = {a.name for s in (*forward, *behind) for a in (*s.inputs, s.output)}
    taken.update(leaf.array.name for leaf in program.leaves)
    return Plan(
        program,
        strategy,
        forward,
        behind,
        outputs,
        result.cotangents,
        result.gradients,
        (*state.alternatives, *result.alternatives),
        tuple(dict.fromkeys((*state.warnings, *result.warnings))),
        update=update(program, result.gradients, taken, reporter),
    )


def _warn_of_dead_lines(
    forward: Sequence[Step],
    backward: BackwardResult,
    outputs: tuple[Array, ...],
    reporter: Reporter,
) -> None:
    """Warn of collectives that a line asks for and no result is made from."""
    gradients = [gradient.gradient for gradient in backward.gradients]
    lives = alive(forward, backward.steps, outputs, gradients)
    for step, living in zip((*forward, *backward.steps), lives, strict=True):
        asked = step.rule in ("asked", "stated") and step.is_collective
        if asked and not living and step.span is not None:
            reporter.report(step.span, Unused(str(step.output)))


def _ends(program: Program) -> dict[Tensor, Layout | None]:
    """Give the outputs, each with the layout that it was last asked for, None where it lives."""
    last = {s.result.name: s.target for s in program.statements if s.target is not None}
    return {tensor: last.get(tensor.name) for tensor in outputs_of(program.statements)}


def _enter(state: Lowering, program: Program, block: Block) -> None:
    """Begin a block: what it hands on is where it lives, and so are the leaves of its stack."""
    given = {leaf.array.name: [leaf.array] for leaf in stack(program, block)}
    for carry in block.carries:
        home = state.home[carry.entry.name]
        given[carry.entry.name] = [Array(carry.entry, home)]
    state.enter(settled(block, state.home), given)


def _obtain_output(state: Lowering, tensor: Tensor, layout: Layout | None) -> None:
    output = Array(tensor, layout or state.home[tensor.name])
    state.obtain(tensor, output.layout, Reason("output", f"{output} is an output"))
