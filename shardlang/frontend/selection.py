"""Comparisons, `where`, `take` and `put`: what chooses values by numbers of places.

Decides which of two numbers is a bound, which dims ids are of and what a put sums over. Errors are
reported; the part that has one is then None.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

from shardlang.frontend import expression_errors, numbers
from shardlang.frontend.heads import PUT
from shardlang.frontend.products import dims_named, names
from shardlang.frontend.syntax import Call, Comparison, Expr, Negate, TensorRef
from shardlang.frontend.terms import Number, Pending, Value, Want
from shardlang.frontend.values import union
from shardlang.ir.ops import Coefficient, Compare, Linear, Put, Relation, Select, Take
from shardlang.ir.printer import number
from shardlang.ir.program import Use
from shardlang.ir.size import Monomial
from shardlang.ir.types import Dim
from shardlang.source import Span

if TYPE_CHECKING:
    from shardlang.frontend.expressions import Expressions

TURNED: Mapping[Relation, Relation] = {
    "==": "==",
    "!=": "!=",
    "<": ">",
    "<=": ">=",
    ">": "<",
    ">=": "<=",
}
"""The relation with its sides exchanged."""


class Selection:
    """Evaluates comparisons and selections, in an expression."""

    def __init__(self, expressions: Expressions) -> None:
        """Work for an evaluator of expressions, which evaluates the arguments."""
        self.expressions = expressions
        self.reporter = expressions.reporter

    def call(self, call: Call, want: Want | None) -> Pending | None:
        """Evaluate a call of one of `SELECTIONS`."""
        if call.result is not None:
            text = f"{call.head.text} is no collective, so its brackets hold no arrow"
            self.reporter.report(call.result.span, expression_errors.Misplaced(text))
            return None
        match call.head.text:
            case "where":
                return self._where(call, want)
            case "take":
                return self._take(call, want)
            case _:
                return self._put(call, want)

    # --- comparisons

    def compare(self, node: Comparison, want: Want | None) -> Pending | None:
        """Evaluate `A <= B`; one side may be a number, with sizes as in `2 * |C|`."""
        left = self._side(node.left, want)
        right = self._side(node.right, want)
        if left is None or right is None:
            return None
        if isinstance(left, Number):
            if isinstance(right, Number):
                self.reporter.report(node.span, expression_errors.NoTensor())
                return None
            return self._bounded(TURNED[node.relation], right, left, node.span)
        if isinstance(right, Number):
            return self._bounded(node.relation, left, right, node.span)
        return Pending(Compare(node.relation), (left, right), union((left, right)), node.span)

    def _bounded(self, relation: Relation, use: Use, number: Number, span: Span) -> Pending | None:
        bound = numbers.bound(number, self.reporter)
        return (
            None
            if bound is None
            else Pending(Compare(relation, bound), (use,), use.tensor.dims, span)
        )

    def _side(self, expr: Expr, want: Want | None) -> Number | Use | None:
        """Evaluate one of two sides: a number, or an operand."""
        value = self.expressions.value(expr, want)
        if value is None or isinstance(value, Number):
            return value
        return self.expressions.operand(value, want)

    # --- where

    def _where(self, call: Call, want: Want | None) -> Pending | None:
        """Read `where(mask, A, B)`: A where the mask is not 0, else B; one of both may be a number."""
        if not self._plain(call) or not self._count(call, 3):
            return None
        mask = self._operand(call.arguments[0], want)
        chosen, other = (self._choice(argument, want) for argument in call.arguments[1:])
        if mask is None or chosen is None or other is None:
            return None
        span = call.span
        match chosen, other:
            case Use(), Use():
                return self._either(mask, chosen, other, span, want)
            case Use(), Select():
                return self._filled(other, mask, chosen, span)
            case Select(), Use():
                return self._filled(chosen, self._turned(mask, span, want), other, span)
            case _:
                self.reporter.report(span, expression_errors.NothingSelected())
                return None

    def _choice(self, expr: Expr, want: Want | None) -> Use | Select | None:
        """Evaluate what is chosen: an operand, or a number that fills in."""
        inner, negative = expr, False
        if isinstance(inner, Negate):
            inner, negative = inner.operand, True
        if isinstance(inner, TensorRef) and inner.name is not None and inner.dims is None:
            name = inner.name.text
            if name in ("inf", "infinity") and name not in self.expressions.values.entries:
                if negative:
                    return Select(None)
                text = f"{name} is filled in with its minus alone"
                self.reporter.report(expr.span, expression_errors.WhereTo(text))
                return None
        side = self._side(expr, want)
        if not isinstance(side, Number):
            return side
        fill = numbers.constant(side, self.reporter)
        return None if fill is None else Select(fill)

    def _filled(self, op: Select, mask: Use | None, operand: Use, span: Span) -> Pending | None:
        """Give what a number fills in; of integers a whole one."""
        dtype = operand.tensor.dtype
        if dtype.kind != "float" and op.fill is not None and op.fill.denominator != 1:
            text = f"{operand.tensor.name} is {dtype}, and {number(op.fill)} is no whole number"
            self.reporter.report(span, expression_errors.WhereTo(text))
            return None
        if mask is None:
            return None
        return Pending(op, (mask, operand), union((operand, mask)), span)

    def _turned(self, mask: Use, span: Span, want: Want | None) -> Use | None:
        """Give the mask of all other places."""
        op = Compare("==", Monomial(Fraction(0)))
        return self.expressions.name(Pending(op, (mask,), mask.tensor.dims, span), want)

    def _either(
        self, mask: Use, chosen: Use, other: Use, span: Span, want: Want | None
    ) -> Pending | None:
        """Write out the choice between two tensors: each is 0 where the other one counts."""
        first = self._named(Select(), (mask, chosen), span, want)
        turned = self._turned(mask, span, want)
        if first is None or turned is None:
            return None
        second = self._named(Select(), (turned, other), span, want)
        if second is None:
            return None
        both = (first, second)
        return Pending(Linear((Coefficient(), Coefficient())), both, union(both), span)

    def _named(
        self, op: Select, uses: tuple[Use, Use], span: Span, want: Want | None
    ) -> Use | None:
        """Make a statement of a selection, with the dims of what is selected first."""
        return self.expressions.name(Pending(op, uses, union(reversed(uses)), span), want)

    # --- take and put

    def _take(self, call: Call, want: Want | None) -> Pending | None:
        """Read `take_{E,C}(table, choice, place)`: ids for each dim of the subscript, in its order."""
        uses = self._operands(call, want)
        if uses is None:
            return None
        table, *ids = uses
        if not call.subscript:
            dims = names(table.tensor.dims)
            self.reporter.report(
                call.head.span, expression_errors.WrongSubscript(call.head.text, dims)
            )
            return None
        gone = dims_named(call.subscript, table.tensor.dims, table.tensor.name, self.reporter)
        if gone is None or not self._count(call, 1 + len(gone)):
            return None
        if not self.are_ids(call, gone, ids, new=False):
            return None
        dims = tuple(dim for dim in union(uses) if dim not in gone)
        return Pending(Take(gone), uses, dims, call.span)

    def _put(self, call: Call, want: Want | None) -> Pending | None:
        """Read `put_{E,C}(values, choice, place)`; what the declared result lacks is summed over."""
        uses = self._operands(call, want)
        if uses is None:
            return None
        new: list[Dim] = []
        for word in call.subscript or ():
            if self.expressions.relayouts.axes.ends_in_axes(word.text):
                mistake = expression_errors.RenameToAxes(word.text, PUT)
                self.reporter.report(word.span, mistake)
                return None
            new.append(Dim(word.text))
        if not new:
            self.reporter.report(call.head.span, expression_errors.WrongSubscript(PUT, ("E",)))
            return None
        if not self._count(call, 1 + len(new)) or not self.are_ids(call, new, uses, new=True):
            return None
        dims = union(uses)
        if want is None or want.chain:
            shown = tuple(dim.name for dim in new)
            mistake = expression_errors.PutWhere(shown, names(dims))
            self.reporter.report(call.head.span, mistake)
            return None
        summed = tuple(dim for dim in dims if dim not in want.axes)
        kept = tuple(dim for dim in dims if dim in want.axes)
        return Pending(Put(tuple(new), summed), uses, (*new, *kept), call.span)

    def are_ids(self, call: Call, dims: Sequence[Dim], uses: Sequence[Use], *, new: bool) -> bool:
        """Say whether operands can be ids of dims; report those that can't.

        With `new` dims the first operand has the values, and none may have such a dim.
        """
        good = True
        for use in uses[1:] if new else uses:
            if use.tensor.dtype.kind != "int":
                mistake = expression_errors.NotIds(
                    call.head.text, use.tensor.name, use.tensor.dtype.name
                )
                self.reporter.report(use.span, mistake)
                good = False
        for use in uses:
            twice = next((dim for dim in dims if dim in use.tensor.dims), None)
            if twice is not None:
                mistake = expression_errors.DimOfIds(
                    call.head.text, use.tensor.name, twice.name, new
                )
                self.reporter.report(use.span, mistake)
                good = False
        return good

    # --- arguments

    def _plain(self, call: Call) -> bool:
        """Report a subscript where none belongs."""
        if call.subscript is None:
            return True
        mistake = expression_errors.WrongSubscript(call.head.text)
        self.reporter.report(call.head.span, mistake)
        return False

    def _count(self, call: Call, wanted: int) -> bool:
        """Report another number of arguments than is wanted."""
        given = len(call.arguments)
        if given == wanted:
            return True
        head = call.head.text
        words = [word.text for word in call.subscript or ()]
        if words:
            head += f"_{words[0]}" if len(words) == 1 else f"_{{{','.join(words)}}}"
        self.reporter.report(call.span, expression_errors.WrongArguments(head, wanted, given))
        return False

    def _operand(self, expr: Expr, want: Want | None) -> Use | None:
        value: Value | None = self.expressions.value(expr, want)
        return None if value is None else self.expressions.operand(value, want)

    def _operands(self, call: Call, want: Want | None) -> tuple[Use, ...] | None:
        """Evaluate all arguments, which have other dims than the result."""
        inside = None if want is None else want.inside()
        if not call.arguments:
            self.reporter.report(call.span, expression_errors.WrongArguments(call.head.text, 2, 0))
            return None
        found = [self._operand(argument, inside) for argument in call.arguments]
        uses = tuple(use for use in found if use is not None)
        return uses if len(uses) == len(found) else None
