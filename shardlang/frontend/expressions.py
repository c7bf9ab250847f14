"""Expressions: each becomes primitive statements, in the order in which they are evaluated.

Decides what is multiplied by what and summed over what, and names what has no name. Precondition:
every mention's brackets are read. Errors are reported; the part that has one then is None, and so
is all that depends on it.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from shardlang.diagnostics import Reporter
from shardlang.frontend import expression_errors, numbers
from shardlang.frontend.attention import Attention
from shardlang.frontend.functions import Functions
from shardlang.frontend.products import contracted, names
from shardlang.frontend.relayout import Relayouts
from shardlang.frontend.rings import Rings
from shardlang.frontend.selection import Selection
from shardlang.frontend.syntax import (
    Binary,
    Call,
    Comparison,
    Expr,
    Negate,
    NumberRef,
    Product,
    SizeOf,
    TensorRef,
)
from shardlang.frontend.terms import Arriving, Factors, just, Number, ONE, Pending, Sum, Value, Want
from shardlang.frontend.values import Goal, union, Values
from shardlang.ir.ops import Coefficient, Compute, Divide, Einsum, Linear, Map
from shardlang.ir.program import Statement, Use
from shardlang.ir.types import Dim
from shardlang.source import Span

DEEPEST = 100
"""How deep an expression may be nested; chains don't count."""


class Expressions:
    """Evaluates expressions of one program into its values and statements."""

    def __init__(
        self,
        values: Values,
        dims: frozenset[Dim],
        relayouts: Relayouts,
        blocks: tuple[str, ...] = (),
    ) -> None:
        """Work on the values of a program that has these dims, and blocks to call."""
        self.values = values
        self.blocks = blocks
        self.reporter: Reporter = values.reporter
        self.dims = dims
        self.functions = Functions(self)
        self.selection = Selection(self)
        self.relayouts = relayouts
        self.rings = Rings(self)
        self.attention = Attention(self)
        self.depth = 0

    # --- parts

    def value(self, expr: Expr, want: Want | None, base: str | None = None) -> Value | None:
        """Evaluate a part of an expression.

        `want` is what the declared result says about it; `base` is the result's name, for the parts
        of softmax and rmsnorm.
        """
        if self.depth > DEEPEST:
            self.reporter.report(expr.span, expression_errors.TooDeep())
            return None
        self.depth += 1
        try:
            return self._spine(expr, want, base)
        finally:
            self.depth -= 1

    def _spine(self, expr: Expr, want: Want | None, base: str | None) -> Value | None:
        """Go down the left side of a chain, then combine upwards: chains may be long."""
        spine: list[tuple[Product | Binary, Want | None]] = []
        node = expr
        while isinstance(node, (Product, Binary)):
            spine.append((node, want))
            want = _inside(node, want)
            node = node.left
        result = self._single(node, want, None if spine else base)
        for parent, wanted in reversed(spine):
            result = self._left(parent, result, _inside(parent, wanted))
            right = self.value(parent.right, _inside(parent, wanted))
            if result is None or right is None:
                result = None
                continue
            if isinstance(parent, Binary):
                result = self._binary(parent, result, right, wanted)
            else:
                result = self._product(parent, result, right, wanted)
        return result

    def _left(
        self, parent: Product | Binary, value: Value | None, want: Want | None
    ) -> Value | None:
        """Name an operation on the left before the right side is read, so that lines keep order."""
        if isinstance(value, Factors):
            dot = isinstance(parent, Binary) or parent.subscript is not None
            if not dot and parent.op == value.kind:
                return value
            value = self.closed(value, want)
        if not isinstance(value, Pending):
            return value
        use = self.name(value, want)
        return None if use is None else just(use)

    def _single(self, expr: Expr, want: Want | None, base: str | None) -> Value | None:
        match expr:
            case TensorRef():
                use = self.values.mention(expr)
                return None if use is None else just(use)
            case NumberRef():
                return numbers.literal(expr, self.reporter)
            case SizeOf():
                return self._size(expr)
            case Negate():
                inner = self.value(expr.operand, want)
                return None if inner is None else self.scale(inner, Coefficient(Fraction(-1)), want)
            case Call():
                if self.relayouts.is_one(expr):
                    use = self.relayouts.apply(expr, None, self)
                    return None if use is None else just(use)
                if self.rings.is_one(expr):
                    return self.rings.apply(expr, want)
                if self.attention.is_one(expr):
                    return self.attention.apply(expr)
                return self.functions.call(expr, want, base)
            case Comparison():
                return self.selection.compare(expr, want)
            case Product() | Binary():
                return self.value(expr, want)

    def _size(self, expr: SizeOf) -> Number | None:
        dim = Dim(expr.dim.text)
        if dim not in self.dims:
            known = names(sorted(self.dims))
            mistake = expression_errors.UnknownDim(dim.name, known, "this program")
            self.reporter.report(expr.dim.span, mistake)
            return None
        return Number(Coefficient.size(dim), expr.span)

    # --- sums and quotients

    def _binary(self, node: Binary, left: Value, right: Value, want: Want | None) -> Value | None:
        if node.op == "/":
            return self._divide(node, left, right, want)
        if isinstance(left, Number) and isinstance(right, Number):
            return self._fold(node, left, right)
        sign = Coefficient(Fraction(1 if node.op == "+" else -1))
        first, second = self.sum(left, want), self.sum(right, want)
        if first is None or second is None:
            return None
        terms = tuple((scalar * sign, use) for scalar, use in second.terms)
        constant = first.constant + sign.value * second.constant
        return Sum(first.terms + terms, constant, node.span)

    def _fold(self, node: Binary, left: Number, right: Number) -> Number | None:
        sizes = numbers.sum_of_sizes(left, node.op, right)
        first = numbers.constant(left, self.reporter, sizes)
        second = numbers.constant(right, self.reporter, sizes)
        if first is None or second is None:
            return None
        total = first + second if node.op == "+" else first - second
        return Number(Coefficient(total), node.span)

    def _divide(self, node: Binary, left: Value, right: Value, want: Want | None) -> Value | None:
        if isinstance(right, Number):
            factor = numbers.inverse(right, self.reporter)
            return None if factor is None else self.scale(left, factor, want)
        if isinstance(left, Number):
            below = self.operand(right, want)
            if below is None:
                return None
            result = Pending(Map("reciprocal"), (below,), below.tensor.dims, node.span)
            return self.scale(result, left.scalar, want)
        above, below = self.operand(left, want), self.operand(right, want)
        if above is None or below is None:
            return None
        return Pending(Divide(), (above, below), union((above, below)), node.span)

    def scale(self, value: Value, factor: Coefficient, want: Want | None) -> Value | None:
        """Multiply by a number."""
        if factor == ONE:
            return value
        match value:
            case Number():
                return replace(value, scalar=value.scalar * factor)
            case Factors():
                return replace(value, scale=value.scale * factor)
            case Arriving():
                return self.rings.alone(value)
            case Sum() | Pending():
                whole = self.sum(value, want)
                if whole is None:
                    return None
                terms = tuple((scalar * factor, use) for scalar, use in whole.terms)
                if not whole.constant:
                    return Sum(terms, whole.constant, whole.span)
                added = numbers.constant(Number(factor, whole.span), self.reporter)
                return None if added is None else Sum(terms, whole.constant * added, whole.span)

    # --- products

    def _product(self, node: Product, left: Value, right: Value, want: Want | None) -> Value | None:
        if node.op == "dot" or node.subscript is not None:
            return self._dot(node, left, right, want)
        if isinstance(left, Number):
            return self.scale(right, left.scalar, want)
        if isinstance(right, Number):
            return self.scale(left, right.scalar, want)
        first = self._factors(node, left, want)
        second = self._factors(node, right, want)
        if first is None or second is None:
            return None
        factors = first.factors + second.factors
        return Factors(first.kind, factors, node.span, first.scale * second.scale)

    def _factors(self, node: Product, value: Value, want: Want | None) -> Factors | None:
        """Open a value as a product of the same kind, keeping its number apart."""
        kind = "star" if node.op == "star" else "hadamard"
        if isinstance(value, Factors) and value.kind == kind:
            return value
        if isinstance(value, Factors) and value.scale != ONE:
            inner = self.operand(replace(value, scale=ONE), want)
            return None if inner is None else Factors(kind, (inner,), value.span, value.scale)
        match value:
            case Sum(((scalar, use),), constant) if not constant:
                return Factors(kind, (use,), value.span, scalar)
            case _:
                use = self.operand(value, want)
                return None if use is None else Factors(kind, (use,), value.span)

    def _dot(self, node: Product, left: Value, right: Value, want: Want | None) -> Value | None:
        inner = _inside(node, want)
        if isinstance(left, Arriving) or isinstance(right, Arriving):
            return self.rings.product(node, left, right, want)
        if isinstance(left, Number) or isinstance(right, Number):
            return self._scaled_dot(node, left, right, inner)
        first, second = self.operand(left, inner), self.operand(right, inner)
        if first is None or second is None:
            return None
        dims = contracted(node, first.tensor.dims, second.tensor.dims, want, self.reporter)
        if dims is None:
            return None
        kept = tuple(dim for dim in union((first, second)) if dim not in dims)
        operands = (first, second)
        return Pending(Einsum(dims), operands, kept, node.span, node.local, operator=node.operator)

    def _scaled_dot(
        self, node: Product, left: Value, right: Value, want: Want | None
    ) -> Value | None:
        """Read `2 · A`: a coefficient, and a sum where the subscript names dims."""
        number, other = (left, right) if isinstance(left, Number) else (right, left)
        assert isinstance(number, Number)
        if node.subscript:
            if isinstance(other, Number):
                self.reporter.report(node.span, expression_errors.NoTensor())
                return None
            use = self.operand(other, want)
            other = None if use is None else self.functions.total(node.subscript, use, node.span)
        return None if other is None else self.scale(other, number.scalar, want)

    # --- giving names

    def closed(self, value: Value, want: Want | None) -> Number | Sum | Pending | None:
        """Close an open product: decide what it sums over."""
        if isinstance(value, Arriving):
            return self.rings.alone(value)
        if not isinstance(value, Factors):
            return value
        if len(value.factors) == 1:
            return Sum(((value.scale, value.factors[0]),), Fraction(0), value.span)
        dims = union(value.factors)
        lacking: tuple[Dim, ...] = ()
        if value.kind == "star" and want is not None and not want.chain:
            lacking = tuple(dim for dim in dims if dim not in want.axes)
        kept = tuple(dim for dim in dims if dim not in lacking)
        product = Pending(Einsum(lacking), value.factors, kept, value.span, implied=lacking)
        return product if value.scale == ONE else self._scaled(product, value.scale, want)

    def _scaled(self, product: Pending, scale: Coefficient, want: Want | None) -> Sum | None:
        use = self.operand(product, want)
        return None if use is None else Sum(((scale, use),), Fraction(0), product.span)

    def sum(self, value: Value, want: Want | None) -> Sum | None:
        """Give a value as a sum, naming what is inside."""
        match self.closed(value, want):
            case None:
                return None
            case Number() as number:
                added = numbers.constant(number, self.reporter)
                return None if added is None else Sum((), added, number.span)
            case Sum() as whole:
                return whole
            case Pending() as pending:
                use = self.name(pending, want)
                return None if use is None else just(use)

    def operand(self, value: Value, want: Want | None) -> Use | None:
        """Give a value as an operand, naming it where it has no name."""
        closed = self.closed(value, want)
        if isinstance(closed, Sum) and closed.atom is not None:
            return closed.atom
        ready = None if closed is None else self.pending(closed)
        return None if ready is None else self.name(ready, want)

    def pending(self, value: Number | Sum | Pending) -> Pending | None:
        """Give a value as one operation; a sum becomes a linear combination."""
        if isinstance(value, Pending):
            return value
        if isinstance(value, Number) or not value.terms:
            self.reporter.report(value.span, expression_errors.NoTensor())
            return None
        numbers_of = [numbers.settled(c.value, value.span, self.reporter) for c, _ in value.terms]
        added = numbers.settled(value.constant, value.span, self.reporter)
        factors = [
            replace(factor, value=number)
            for (factor, _), number in zip(value.terms, numbers_of, strict=True)
            if number is not None
        ]
        if added is None or len(factors) < len(value.terms):
            return None
        operands = tuple(use for _, use in value.terms)
        return Pending(Linear(tuple(factors), added), operands, value.dims, value.span)

    def name(self, pending: Pending, want: Want | None) -> Use | None:
        """Make a statement of an operation inside an expression, under a name of its own."""
        hint = None if want is None else want.hint(pending.dims)
        name = pending.name or self.values.fresh("Tmp")
        result = self.values.define(None, pending.dims, pending.op, pending.operands, name)
        if result is None:
            return None
        self.values.add(
            Statement(
                pending.op,
                pending.operands,
                result,
                None,
                pending.span,
                hint,
                pending.keep_unreduced,
                section=self.values.section,
                inner=True,
            )
        )
        return Use(result, None, pending.span)

    def part(
        self, op: Compute, operands: tuple[Use, ...], dims: tuple[Dim, ...], name: str,
        span: Span, want: Want | None, *, constant: bool = False,
    ) -> Use:  # fmt: skip
        """Make a statement of one part of a macro, such as softmax."""
        hint = None if want is None else want.hint(dims)
        result = self.values.define(None, dims, op, operands, name)
        assert result is not None
        section = self.values.section
        statement = Statement(
            op, operands, result, None, span, hint, constant=constant, section=section, inner=True
        )
        self.values.add(statement)
        return Use(result, None, span)

    def finish(self, pending: Pending, goal: Goal | None, span: Span) -> Use | None:
        """Make the statement that defines a line's result."""
        spare = pending.name or ("Out" if goal is None or goal.ref.name is None else "")
        name = self.values.fresh(spare) if spare == "Out" else spare
        result = self.values.define(goal, pending.dims, pending.op, pending.operands, name)
        if result is None:
            return None
        brackets = None if goal is None else goal.brackets
        target = None if brackets is None else brackets.layout(result.dims)
        self.values.add(
            Statement(
                pending.op,
                pending.operands,
                result,
                target,
                span,
                keep_unreduced=pending.keep_unreduced,
                follows=None if goal is None else self.values.followed(goal.ref),
                section=self.values.section,
            )
        )
        return Use(result, target, span)


def _inside(node: Product | Binary, want: Want | None) -> Want | None:
    """Give what is wanted of the operands of a node: nothing much, under a `·`."""
    if want is None or isinstance(node, Binary):
        return want
    return want.inside() if node.op == "dot" or node.subscript is not None else want
