"""Lowering: from a resolved program to a plan.

The order of the passes is the order of the calls in `lower`: axes of size 1 go, the forward pass is
inferred, the backward pass is derived from it, and collectives are marked as critical or not. An
explicit program is only checked, since its lines are the steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from shardlang.diagnostics import Diagnostic, Reporter
from shardlang.ir.plan import Plan, Step
from shardlang.ir.program import Program
from shardlang.ir.types import Array
from shardlang.passes.backward import backward, BackwardResult
from shardlang.passes.explicit import check_explicit, outputs_of
from shardlang.passes.infer import infer_statement
from shardlang.passes.keep import alternatives, keep, named
from shardlang.passes.live import alive, mark_critical, prune
from shardlang.passes.lowering import Lowering, Reason
from shardlang.passes.normal import drop_unit_axes
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
    state = Lowering(dict(program.sizes.known))
    for leaf in program.leaves:
        state.give(leaf.array)
    for statement in program.statements:
        infer_statement(state, statement, reporter)
    outputs = tuple(_ends(state, program))
    for output in outputs:
        reason = Reason("output", f"{output} is an output")
        state.obtain(output.tensor, output.layout, reason)
    result = BackwardResult((), (), (), ())
    if not forward_only and not reporter.errors:
        result = backward(program, state, outputs, reporter)
    _warn_of_dead_lines(state.steps, result, outputs, reporter)
    forward, behind = prune(tuple(state.steps), result.steps, outputs, result.gradients)
    forward, behind = mark_critical(program, forward, behind, outputs, result.gradients)
    return Plan(
        program,
        strategy,
        forward,
        behind,
        outputs,
        result.cotangents,
        result.gradients,
        (*state.alternatives, *result.alternatives),
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


def _ends(state: Lowering, program: Program) -> list[Array]:
    """Give the outputs, each in the layout that it was last asked for."""
    last = {s.result.name: s.target for s in program.statements if s.target is not None}
    return [
        Array(tensor, last.get(tensor.name) or state.home[tensor.name])
        for tensor in outputs_of(program.statements)
    ]
