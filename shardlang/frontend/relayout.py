"""Collectives, slices and masks that a text states: each call becomes statements, one a dim.

The result has the operand's name, and is then the same value in another layout, or a new one, and
is then a copy. Legality is left to the passes; axes and dims that don't exist are reported here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardlang.diagnostics import Label, Reporter
from shardlang.frontend import errors, expression_errors, settle
from shardlang.frontend.heads import COLLECTIVES
from shardlang.frontend.local import local_layout
from shardlang.frontend.names import AxisNames, Brackets
from shardlang.frontend.products import names
from shardlang.frontend.syntax import Call, TensorRef
from shardlang.frontend.terms import Pending, Sum, Want
from shardlang.frontend.values import Goal, Values
from shardlang.ir.ops import Relayout
from shardlang.ir.program import Statement, Use
from shardlang.ir.types import Array, Axis, Dim, Mesh, Tensor
from shardlang.source import Span

if TYPE_CHECKING:
    from shardlang.frontend.expressions import Expressions

FORMS = {
    "AllGather": "AllGather_X(A[I_X, J]) -> A[I, J]",
    "ReduceScatter": "ReduceScatter_{X,J}(A[I, J]{U_X}) -> A[I, J_X]",
    "AllReduce": "AllReduce_X(A[I, J]{U_X}) -> A[I, J]",
    "AllToAll": "AllToAll_{X,J}(A[I_X, J]) -> A[I, J_X]",
    "Permute": "Permute(A[I_XY] -> A[I_YX])",
    "Slice": "Slice_{X,J}(A[I, J]) -> A[I, J_X]",
    "Mask": "Mask_X(A[I, J]) -> A[I, J]{U_X}",
}
"""A full spelling of each."""


@dataclass(frozen=True)
class Relayouts:
    """Reads stated relayouts of one program."""

    values: Values
    axes: AxisNames
    mesh: Mesh
    dims: frozenset[Dim]

    @property
    def reporter(self) -> Reporter:
        """Where mistakes go."""
        return self.values.reporter

    def is_one(self, call: Call) -> bool:
        """Say whether a call is a relayout."""
        return call.head.text in COLLECTIVES

    def apply(
        self, call: Call, goal: Goal | None, expressions: Expressions, span: Span | None = None
    ) -> Use | None:
        """Make the statements of a call and give its result; `goal` is None inside an expression.

        Nothing is given back where something is wrong, which is then reported.
        """
        if len(call.arguments) != 1:
            mistake = expression_errors.WrongArguments(call.head.text, 1, len(call.arguments))
            self.reporter.report(call.span, mistake)
            return None
        if call.result is not None:
            inner = Goal(call.result, self.values.brackets[id(call.result)])
            goal = inner if goal is None else self._both(call, goal, inner)
        use = self._operand(call, goal, expressions)
        if use is None or (goal is not None and not self._same_dims(call, goal, use)):
            return None
        subscript = self.subscript(call, use.tensor)
        if subscript is None:
            return None
        axes, dim = subscript
        before = self.values.layout_of(use)
        brackets = None if goal is None else goal.brackets
        after = None if brackets is None else brackets.layout(use.tensor.dims)
        at = settle.Situation(use.tensor.dims, before, after, axes, dim, self.mesh)
        ops = self.settled(call, call.head.text, FORMS[call.head.text], at, use)
        return None if ops is None else self._write(ops, use, goal, at, span or call.span)

    def _both(self, call: Call, outer: Goal, inner: Goal) -> Goal | None:
        """Join the result inside the brackets with the one of the line; they have to agree."""
        if outer.brackets is None:
            return Goal(outer.ref, inner.brackets)
        if inner.brackets is not None:
            same = set(inner.brackets.dims) == set(outer.brackets.dims)
            dims = inner.brackets.dims
            if not same or inner.brackets.layout(dims) != outer.brackets.layout(dims):
                self._unsettled(call, "the result is written twice, in two layouts")
        return outer

    def _operand(self, call: Call, goal: Goal | None, expressions: Expressions) -> Use | None:
        """Evaluate the argument; an inner operation is left as it lies, under the result's name."""
        argument = call.arguments[0]
        if isinstance(argument, TensorRef):
            use = self.values.mention(argument)
            if use is not None and use.layout is None:
                return Use(use.tensor, self.values.layout_of(use), use.span)
            return use
        want = Want.of(None if goal is None else goal.brackets)
        want = None if want is None else Want(want.axes, hints=False)
        value = expressions.value(argument, want)
        closed = None if value is None else expressions.closed(value, want)
        if closed is None:
            return None
        if isinstance(closed, Sum) and closed.atom is not None:
            return closed.atom
        pending = expressions.pending(closed)
        return None if pending is None else self._inner(call, pending, goal)

    def _inner(self, call: Call, pending: Pending, goal: Goal | None) -> Use | None:
        inner = None if goal is None or goal.ref.name is None else goal
        name = pending.name or ("" if inner is not None else self.values.fresh("Tmp"))
        brackets = None if inner is None else inner.brackets
        if brackets is not None and set(brackets.dims) != set(pending.dims):
            self._changed(call, brackets, pending.dims)
            return None
        result = self.values.define(inner, pending.dims, pending.op, pending.operands, name)
        if result is None:
            return None
        layout = local_layout(pending, result.dims, self.values.layout_of)
        reduces = call.head.text in ("AllReduce", "ReduceScatter")
        statement = Statement(
            pending.op,
            pending.operands,
            result,
            layout,
            pending.span,
            keep_unreduced=pending.keep_unreduced or (reduces and layout is None),
            section=self.values.section,
        )
        self.values.add(statement)
        return Use(result, layout, pending.span)

    def _same_dims(self, call: Call, goal: Goal, use: Use) -> bool:
        """Check that the declared result has the operand's dims; report it where not."""
        if goal.brackets is None or set(goal.brackets.dims) == set(use.tensor.dims):
            return True
        if goal.name in (use.tensor.name, self.values.original(use.tensor)):
            here, there = names(goal.brackets.dims), names(use.tensor.dims)
            label = Label(self.values.entries[use.tensor.name].span, "first written here")
            mistake = errors.DimsMismatch(use.tensor.name, here, there)
            self.reporter.report(goal.ref.span, mistake, [label])
        else:
            self._changed(call, goal.brackets, use.tensor.dims)
        return False

    def _changed(self, call: Call, brackets: Brackets, dims: Sequence[Dim]) -> None:
        mistake = expression_errors.DimsChanged(call.head.text, names(dims), names(brackets.dims))
        self.reporter.report(call.head.span, mistake)

    def subscript(
        self, call: Call, tensor: Tensor
    ) -> tuple[tuple[Axis, ...] | None, Dim | None] | None:
        """Read a subscript: its last word may be a dim, the others are axes."""
        if call.subscript is None:
            return None, None
        axes: dict[Axis, None] = {}
        dim: Dim | None = None
        wrong = False
        for number, word in enumerate(call.subscript, 1):
            places = self.axes.places(word)
            if places is not None:
                for place in places:
                    if place.axis in axes:
                        mistake = errors.AxisTwice(place.axis.name, f"{call.head.text}'s subscript")
                        self.reporter.report(place.span, mistake)
                        wrong = True
                    axes[place.axis] = None
            elif number == len(call.subscript) and Dim(word.text) in tensor.dims:
                dim = Dim(word.text)
            else:
                wrong = True
                known = names(tensor.dims)
                if Dim(word.text) in self.dims:
                    mistake = expression_errors.UnknownDim(word.text, known, tensor.name)
                else:
                    last = known if number == len(call.subscript) > 1 else ()
                    mistake = errors.UnknownAxis(word.text, (*self.axes.names, *last))
                self.reporter.report(word.span, mistake)
        if wrong:
            return None
        return (tuple(axes) if axes or dim is None else None), dim

    def settled(
        self, call: Call, head: str, form: str, at: settle.Situation, use: Use
    ) -> list[Relayout] | None:
        """Give the collectives that a call means; `head` is their name, `form` a full spelling."""
        before = at.before
        try:
            return settle.settle(head, at)
        except settle.NotSettledError as reason:
            mistake = expression_errors.Unsettled(call.head.text, str(reason), form)
            self.reporter.report(call.span, mistake)
        except settle.SplitsNothingError as reason:
            array = use.tensor.name if before is None else str(Array(use.tensor, before))
            split = () if before is None else before.sharding
            mistake = expression_errors.NotSplit(
                call.head.text,
                reason.axis.name,
                array,
                tuple(axis.name for axes in split for axis in axes),
                () if before is None else tuple(axis.name for axis in before.unreduced),
            )
            self.reporter.report(call.span, mistake)
        return None

    def _unsettled(self, call: Call, reason: str) -> None:
        mistake = expression_errors.Unsettled(call.head.text, reason, FORMS[call.head.text])
        self.reporter.report(call.span, mistake)

    def _write(
        self, ops: list[Relayout], use: Use, goal: Goal | None, at: settle.Situation, span: Span
    ) -> Use | None:
        """Make the statements; the last one has the declared layout and the result's name."""
        result = use.tensor
        own = (None, use.tensor.name, self.values.original(use.tensor))
        if goal is not None and goal.name not in own:
            made = Goal(goal.ref, goal.brackets and goal.brackets.ordered(at.dims))
            defined = self.values.define(made, at.dims, ops[-1], (use,), "")
            if defined is None:
                return None
            result = defined
        for number, op in enumerate(ops, 1):
            last = number == len(ops)
            layout = settle.result(op, at.dims, use.layout)
            if last and at.after is not None:
                layout = at.after
            tensor = result if last else use.tensor
            section = self.values.section
            self.values.add(Statement(op, (use,), tensor, layout, span, section=section))
            use = Use(tensor, layout, span)
        return use
