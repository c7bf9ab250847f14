"""The forward pass: each statement of an ordinary program with the communication that it needs.

Precondition: a resolved program. Effect: steps in which every operand is in a layout that was made
before, and every result is in its declared layout.
"""

from __future__ import annotations

from dataclasses import replace

from shardlang.diagnostics import Reporter
from shardlang.ir.ops import Compute, Linear, Permute, Relayout, Rename
from shardlang.ir.plan import Step
from shardlang.ir.program import Statement
from shardlang.ir.types import Array, Axis, Layout, partial_marker
from shardlang.passes.lowering import Delayed, Lowering, Reason
from shardlang.passes.partial import added_partial
from shardlang.passes.reshard import reachable
from shardlang.rules.collectives import Illegal, permutable, relayout
from shardlang.rules.errors import (
    CannotCommunicate,
    IllegalStep,
    LocalResult,
    NoPartialMaxima,
    OtherLayout,
    PartialCarry,
)
from shardlang.rules.local import partial_axes
from shardlang.source import Span


def infer_statement(state: Lowering, statement: Statement, reporter: Reporter) -> None:
    """Append the steps of one statement; a mistake is reported and its result taken as declared."""
    statement = _handed_on(state, statement, reporter)
    if not _possible(state, statement, reporter):
        made = None
    elif isinstance(statement.op, Rename):
        made = _view(state, statement)
    elif isinstance(statement.op, Relayout):
        made = _explicit_relayout(state, statement, reporter)
    elif statement.result == statement.operands[0].tensor and isinstance(statement.op, Linear):
        made = _relayout_request(state, statement)
    else:
        made = _compute(state, statement, reporter)
    if made is None:
        layout = statement.target or Layout.replicated(len(statement.result.dims))
        state.give(Array(statement.result, layout))
        return
    state.home.setdefault(statement.result.name, made.layout)


def _handed_on(state: Lowering, statement: Statement, reporter: Reporter) -> Statement:
    """Let what a layer hands on end where the next one finds it, and report it where it does not."""
    carries = () if statement.block is None else statement.block.carries
    for carry in carries:
        if statement.result != carry.exit:
            continue
        written = replace(carry.entry, name=carry.word or carry.entry.name)
        first = Array(written, state.home[carry.entry.name])
        if first.layout.unreduced:
            reporter.report(statement.span, PartialCarry(str(first)))
        elif statement.target not in (None, first.layout) and not _same(statement):
            last = Array(written, statement.target or first.layout)
            reporter.report(statement.span, OtherLayout(str(first), str(last)))
        return statement if _same(statement) else replace(statement, target=first.layout)
    return statement


def _same(statement: Statement) -> bool:
    """Say whether a statement only lays its result out anew."""
    return statement.result == statement.operands[0].tensor


def _possible(state: Lowering, statement: Statement, reporter: Reporter) -> bool:
    """Report partial maxima that nothing can make: an operand's, or a declared result's."""
    possible = True
    for use in statement.operands:
        home = state.array(use.tensor).layout
        if use.layout is not None and not reachable(home, use.layout):
            wanted, there = Array(use.tensor, use.layout), Array(use.tensor, home)
            reporter.report(use.span, NoPartialMaxima(str(wanted), str(there)))
            possible = False
    target = statement.target
    if possible and target is not None and target.reduction != "sum" and target.unreduced:
        arrays = tuple(operand(state, statement, i) for i in range(len(statement.operands)))
        made = partial_axes(statement.op, arrays)
        if not (made.reduction == target.reduction and target.unreduced <= made.unreduced):
            wanted = Array(statement.result, target)
            reporter.report(statement.span, NoPartialMaxima(str(wanted), None))
            possible = False
    return possible


def operand(state: Lowering, statement: Statement, index: int) -> Array:
    """Give an operand in the layout that its brackets ask for, else where it lives.

    It need not exist yet in that layout: whatever reads it obtains what it reads.
    """
    use = statement.operands[index]
    array = state.array(use.tensor)
    return array if use.layout is None else array.with_layout(use.layout)


def _at_hand(state: Lowering, array: Array, span: Span) -> Array:
    """Make sure that an operand exists in the layout that a line reads it in."""
    reason = Reason("asked", f"the line asks for {array}")
    return state.obtain(array.tensor, array.layout, reason, span)


def _operands(state: Lowering, statement: Statement) -> tuple[Array, ...]:
    return tuple(operand(state, statement, index) for index in range(len(statement.operands)))


def _view(state: Lowering, statement: Statement) -> Array:
    """Note a value under other dim names; a step comes when something reads it."""
    assert isinstance(statement.op, Rename)
    state.view(statement.result, statement.op, operand(state, statement, 0).tensor)
    if statement.target is not None:
        reason = Reason("asked", f"the line asks for {Array(statement.result, statement.target)}")
        made = state.obtain(statement.result, statement.target, reason, statement.span)
        state.home[statement.result.name] = made.layout
        return made
    return state.array(statement.result)


def _relayout_request(state: Lowering, statement: Statement) -> Array:
    assert statement.target is not None
    use = statement.operands[0]
    array = _at_hand(state, operand(state, statement, 0), statement.span)
    reason = Reason("asked", f"the line asks for {array.with_layout(statement.target)}")
    if use.layout is None:
        return state.obtain(array.tensor, statement.target, reason, statement.span)
    wanted = array.with_layout(statement.target)
    known = state.at_hand[array.name]
    if (
        wanted in known[:-1] and wanted != array
    ):  # made on the way to a later layout: the line says that it ends here
        known.remove(wanted)
    moves = state.route(array, statement.target)
    return state.follow(array, moves, reason, statement.span)


def _explicit_relayout(state: Lowering, statement: Statement, reporter: Reporter) -> Array | None:
    """Append a collective that the program states."""
    assert isinstance(statement.op, Relayout)
    array = _at_hand(state, operand(state, statement, 0), statement.span)
    made = stated_layout(statement.op, array, statement.target, state.sizes)
    if isinstance(made, Illegal):
        reporter.report(statement.span, IllegalStep(made.why, made.hint))
        return None
    output = Array(statement.result, made)
    if statement.target is not None and statement.target != made:
        wanted = Array(statement.result, statement.target)
        reporter.report(statement.span, LocalResult(str(output), str(wanted)))
        return None
    return state.add(
        Step(statement.op, (array,), output, "stated", "the line states it", span=statement.span)
    )


def stated_layout(
    op: Relayout, array: Array, target: Layout | None, sizes: dict[str, int]
) -> Layout | Illegal:
    """Give what a stated relayout makes; a Permute makes what is declared, if it can."""
    if not isinstance(op, Permute):
        return relayout(op, array)
    if target is None:
        return Illegal("Permute needs its result written out", "Permute(A[I_XY] -> A[I_YX])")
    if not permutable(array.layout, target, sizes):
        return Illegal(
            f"Permute sends whole shards, and {array} has others than {array.with_layout(target)}"
        )
    return target


def _compute(state: Lowering, statement: Statement, reporter: Reporter) -> Array | None:
    assert isinstance(statement.op, Compute)
    arrays = _operands(state, statement)
    if statement.keep_unreduced:
        return _local_only(state, statement, arrays, reporter)
    arrays = _added(state, statement, arrays)
    wish = statement.target or statement.hint
    kept = state.partial_over.get(statement.result.name, frozenset())

    def end(made: Array) -> Layout:
        """Give the declared layout, or with none declared the one with nothing left to reduce."""
        if statement.target is not None:
            return statement.target
        return _reduced(made, statement.hint, kept)

    made, decision = state.compute(
        statement.op, arrays, statement.result, wish, statement.span, end=end
    )
    if statement.result.name in state.terms and made.layout.reduction == "sum":
        state.delayed[made.name] = Delayed(statement.hint, decision.reasons(None))
        return made
    moves = state.route(made, end(made))
    return state.follow(made, moves, decision.reasons(None), statement.span)


def _added(state: Lowering, statement: Statement, arrays: tuple[Array, ...]) -> tuple[Array, ...]:
    """Reduce the terms of a sum that were left for it, but for what all of its terms are partial over."""
    if state.terms.isdisjoint(array.name for array in arrays):
        return arrays
    assert isinstance(statement.op, Compute)
    shared = added_partial(statement.op, arrays, statement.result)
    ready: list[Array] = []
    for array in arrays:
        term = state.delayed.pop(array.name, None)
        if term is None:
            ready.append(array)
            continue
        kept = shared | state.partial_over.get(array.name, frozenset())
        wanted = _reduced(array, term.hint, kept)
        moves = state.route(array, wanted)
        ready.append(state.follow(array, moves, term.because, statement.span))
        state.home[array.name] = wanted
    return tuple(ready)


def _reduced(made: Array, hint: Layout | None, kept: frozenset[Axis]) -> Layout:
    """Give the layout of a result with nothing left to reduce, scattered where a hint wants it.

    Sums that are partial over `kept` are left so.
    """
    layout = made.layout
    if layout.reduction != "sum":
        return layout.reduced()
    left = set(layout.unreduced - kept)
    partial = layout.unreduced & kept
    if hint is None:
        return Layout(layout.sharding, partial)
    sharding: list[tuple[Axis, ...]] = []
    for have, want in zip(layout.sharding, hint.sharding, strict=True):
        axes = have
        if want[: len(have)] == have:
            for axis in want[len(have) :]:
                if axis not in left:
                    break
                left.discard(axis)
                axes = (*axes, axis)
        sharding.append(axes)
    return Layout(tuple(sharding), partial)


def _local_only(
    state: Lowering, statement: Statement, arrays: tuple[Array, ...], reporter: Reporter
) -> Array | None:
    """Multiply the shards as they are: `·_LOCAL`."""
    assert isinstance(statement.op, Compute)
    ready = tuple(_at_hand(state, array, statement.span) for array in arrays)
    made = state.local(statement.op, ready, statement.result, statement.span)
    if isinstance(made, Illegal):
        reporter.report(statement.span, CannotCommunicate(made.why))
        return None
    if statement.target is not None and statement.target != made.layout:
        wanted = str(made.with_layout(statement.target))
        marker = partial_marker(made.layout)
        reporter.report(
            statement.span,
            LocalResult(str(made), wanted, f"·_LOCAL leaves {marker}" if marker else None),
        )
        return None
    return made
