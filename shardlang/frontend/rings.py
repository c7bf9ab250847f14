"""Rings: products whose operand, or whose result, goes round the devices shard by shard.

`RingGather_Y(A[B, D_Y]) ·_D W[D, F]` is a product and an AllGather at once, `RingScatter_{Y,D}(H[B, F_Y]
·_F W[F_Y, D])` one and a ReduceScatter. They are steps, so that they stand in explicit programs alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardlang.frontend import expression_errors, settle
from shardlang.frontend.heads import RING_GATHER, RING_SCATTER
from shardlang.frontend.products import contracted
from shardlang.frontend.syntax import Call, Product, TensorRef
from shardlang.frontend.terms import Arriving, Pending, Value, Want
from shardlang.frontend.values import union
from shardlang.ir.ops import AllGather, Einsum, ReduceScatter, Ring
from shardlang.ir.program import Use
from shardlang.ir.types import Array, Layout, Tensor

if TYPE_CHECKING:
    from shardlang.frontend.expressions import Expressions

FORMS = {
    RING_GATHER: "RingGather_Y(A[B, D_Y]) ·_D W[D, F]",
    RING_SCATTER: "RingScatter_{Y,D}(H[B, F_Y] ·_F W[F_Y, D]) -> A[B, D_Y]",
}
"""A full spelling of each."""


class Rings:
    """Evaluates the two calls, for an evaluator of expressions."""

    def __init__(self, expressions: Expressions) -> None:
        """Work for an evaluator, which evaluates what is inside."""
        self.expressions = expressions
        self.values = expressions.values
        self.relayouts = expressions.relayouts

    def is_one(self, call: Call) -> bool:
        """Say whether a call is a ring's."""
        return call.head.text in FORMS

    def apply(self, call: Call, want: Want | None) -> Arriving | Pending | None:
        """Evaluate a call: an operand that arrives shard by shard, or a whole product."""
        if not self.values.explicit:
            return self._wrong(call, "stands in explicit programs alone, below `forward:`")
        if len(call.arguments) != 1:
            mistake = expression_errors.WrongArguments(call.head.text, 1, len(call.arguments))
            self.values.reporter.report(call.span, mistake)
            return None
        if call.head.text == RING_GATHER:
            return self._gathered(call)
        return self._scattered(call, want)

    def _wrong(self, call: Call | Arriving, why: str) -> None:
        head = call.head.text if isinstance(call, Call) else RING_GATHER
        mistake = expression_errors.RingMisplaced(head, why, FORMS[head])
        self.values.reporter.report(call.span, mistake)

    def alone(self, arriving: Arriving) -> None:
        """Report an operand that arrives and is multiplied by nothing."""
        self._wrong(arriving, "is an operand of a product: no device ever has all of it")

    def _gathered(self, call: Call) -> Arriving | None:
        argument = call.arguments[0]
        if not isinstance(argument, TensorRef):
            return self._wrong(call, "takes a tensor")
        use = self.values.mention(argument)
        if use is None:
            return None
        before = self.values.layout_of(use)
        subscript = self.relayouts.subscript(call, use.tensor)
        if subscript is None:
            return None
        after: Layout | None = None
        if call.result is not None:
            brackets = self.values.brackets[id(call.result)]
            name = None if call.result.name is None else call.result.name.text
            same = brackets is not None and set(brackets.dims) == set(use.tensor.dims)
            if brackets is None or not same or name != use.tensor.name:
                return self._wrong(call, f"keeps {use.tensor.name} itself, in another layout")
            after = brackets.layout(use.tensor.dims)
        axes, dim = subscript
        at = settle.Situation(use.tensor.dims, before, after, axes, dim, self.relayouts.mesh)
        moves = self.relayouts.settled(call, "AllGather", FORMS[RING_GATHER], at, use)
        if moves is None:
            return None
        if len(moves) != 1 or not isinstance(moves[0], AllGather) or not moves[0].axes:
            return self._wrong(call, "takes the axes of one dim")
        move = moves[0]
        made = settle.result(move, use.tensor.dims, before)
        if after is not None and made is not None and made != after:
            return self._wrong(call, f"keeps {Array(use.tensor, made)}")
        return Arriving(Use(use.tensor, before, use.span), move, after is not None, call.span)

    def _scattered(self, call: Call, want: Want | None) -> Pending | None:
        if call.result is not None:
            return self._wrong(call, "has no arrow in its brackets")
        inner = self.expressions.value(call.arguments[0], want)
        if inner is None:
            return None
        if not isinstance(inner, Pending) or not isinstance(inner.op, Einsum):
            return self._wrong(call, "takes a product, which `·_D` sums")
        tensor = Tensor("the product", inner.dims, inner.operands[0].tensor.dtype)
        subscript = self.relayouts.subscript(call, tensor)
        if subscript is None:
            return None
        axes, dim = subscript
        if not axes or dim is None:
            return self._wrong(call, "names its axes and the dim that they are to split")
        op = Ring(inner.op, ReduceScatter(axes, dim))
        return Pending(op, inner.operands, inner.dims, call.span, operator=inner.operator)

    def product(
        self, node: Product, left: Value, right: Value, want: Want | None
    ) -> Pending | None:
        """Multiply by an operand that arrives shard by shard."""
        if isinstance(left, Arriving) and isinstance(right, Arriving):
            return self._wrong(right, "stands once in a product: gather the other operand first")
        place = 0 if isinstance(left, Arriving) else 1
        arriving, other = (left, right) if place == 0 else (right, left)
        assert isinstance(arriving, Arriving)
        inside = None if want is None else want.inside()
        use = self.expressions.operand(other, inside)
        if use is None:
            return None
        first, second = (arriving.use, use) if place == 0 else (use, arriving.use)
        reporter = self.values.reporter
        dims = contracted(node, first.tensor.dims, second.tensor.dims, want, reporter)
        if dims is None:
            return None
        if not dims:
            return self._wrong(arriving, "stands in a product that sums over a dim")
        kept = tuple(dim for dim in union((first, second)) if dim not in dims)
        op = Ring(Einsum(dims), arriving.move, place, arriving.keep)
        return Pending(op, (first, second), kept, node.span, operator=node.operator)
