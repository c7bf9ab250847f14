"""Attention whose keys and values go round the devices.

`RingAttention_{X,S,H}(0.5 * q[T_X, H], k[S_X, H], v[S_X, H], index_S[S] <= index_T[T] -> lse[T_X])` and
`RingAttentionBack`, its gradient. They are steps, so that they stand in explicit programs alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardlang.frontend import expression_errors
from shardlang.frontend.heads import RING_ATTENTION, RING_ATTENTION_BACK
from shardlang.frontend.syntax import Call, Comparison, Expr, TensorRef
from shardlang.frontend.terms import Pending
from shardlang.frontend.values import Entry
from shardlang.ir.ops import Coefficient, Compare, RingAttention
from shardlang.ir.program import Use
from shardlang.ir.types import Array, Axis, Dim, DType, DTYPES, Tensor

if TYPE_CHECKING:
    from shardlang.frontend.expressions import Expressions

FORMS = {
    RING_ATTENTION: "RingAttention_{X,S,H}(q[T_X, H], k[S_X, H], v[S_X, H] -> lse[T_X])",
    RING_ATTENTION_BACK: (
        "RingAttentionBack_{X,S,H}(do[T_X, H], q[T_X, H], k[S_X, H], v[S_X, H], o[T_X, H], lse[T_X]"
        " -> dk[S_X, H], dv[S_X, H])"
    ),
}
"""A full spelling of each."""


def sums_in(dtype: DType) -> DType:
    """Give the dtype of what the running softmax adds up in: f32, or f64 for operands in it."""
    return dtype if dtype.bits > DTYPES["f32"].bits else DTYPES["f32"]


class Attention:
    """Evaluates the two calls, for an evaluator of expressions."""

    def __init__(self, expressions: Expressions) -> None:
        """Work for an evaluator, which evaluates what is inside."""
        self.expressions = expressions
        self.values = expressions.values

    def is_one(self, call: Call) -> bool:
        """Say whether a call is one of the two."""
        return call.head.text in FORMS

    def apply(self, call: Call) -> Pending | None:
        """Evaluate a call, and put at hand what it keeps."""
        back = call.head.text == RING_ATTENTION_BACK
        operands = 6 if back else 3
        if not self.values.explicit:
            return self._wrong(call, "stands in explicit programs alone, below `forward:`")
        if len(call.arguments) not in (operands, operands + 1):
            return self._wrong(call, f"takes {operands} tensors, and perhaps a comparison")
        if len(call.results) != (2 if back else 1):
            return self._wrong(
                call, f"keeps {'dk and dv' if back else 'one tensor'}, after an arrow"
            )
        given = [self._operand(argument) for argument in call.arguments[:operands]]
        uses = [use for _, use in (pair for pair in given if pair is not None)]
        if len(uses) < operands:
            return None
        query = int(back)
        scales = [pair[0] for pair in given if pair is not None]
        if any(scale != Coefficient() for i, scale in enumerate(scales) if i != query):
            return self._wrong(call, "multiplies q alone by a number")
        relation = None
        if len(call.arguments) > operands:
            mask = call.arguments[operands]
            found = (
                self.expressions.selection.compare(mask, None)
                if isinstance(mask, Comparison)
                else None
            )
            if found is None or not isinstance(found.op, Compare) or len(found.operands) != 2:
                return self._wrong(call, "takes a comparison of two tensors as its mask")
            relation = found.op.relation
            uses += found.operands
        axes, dims = self._subscript(call)
        if not axes or len(dims) < 2:
            return self._wrong(
                call, "names its axes, the dim that goes round, and the dims summed over"
            )
        q, k, v = (use.tensor for use in uses[query : query + 3])
        sums = sums_in(q.dtype)
        wanted = (k.dtype, v.dtype) if back else (sums,)
        kept = [self._kept(ref, dtype) for ref, dtype in zip(call.results, wanted, strict=True)]
        arrays = tuple(array for array in kept if array is not None)
        if len(arrays) < len(kept):
            return self._wrong(
                call, "keeps tensors with their brackets, which no other line defines"
            )
        op = RingAttention(axes, dims[0], dims[1:], scales[query], relation, arrays, back)
        made = q.dims if back else (*(d for d in q.dims if d not in dims), *dims[1:])
        return Pending(op, tuple(uses), made, call.span)

    def _wrong(self, call: Call, why: str) -> None:
        head = call.head.text
        self.values.reporter.report(
            call.span, expression_errors.RingMisplaced(head, why, FORMS[head])
        )

    def _operand(self, argument: Expr) -> tuple[Coefficient, Use] | None:
        """Evaluate a tensor, perhaps times a number."""
        value = self.expressions.value(argument, None)
        whole = None if value is None else self.expressions.sum(value, None)
        if whole is None or len(whole.terms) != 1 or whole.constant:
            return None
        ((scalar, use),) = whole.terms
        return scalar, use

    def _subscript(self, call: Call) -> tuple[tuple[Axis, ...], tuple[Dim, ...]]:
        axes: list[Axis] = []
        dims: list[Dim] = []
        for word in call.subscript or ():
            places = None if dims else self.expressions.relayouts.axes.places(word)
            if places is None:
                dims.append(Dim(word.text))
            else:
                axes += [place.axis for place in places]
        return tuple(axes), tuple(dims)

    def _kept(self, ref: TensorRef, dtype: DType) -> Array | None:
        """Read what a call keeps, and put it at hand."""
        values = self.values
        brackets = values.brackets[id(ref)]
        if ref.name is None or brackets is None or brackets.wrong:
            return None
        name = ref.name.text
        entry, base = values.entries.get(name), values.gradient_of(name)
        if entry is not None:
            tensor = entry.tensor
        elif base is not None and base in values.entries:
            tensor = Tensor(name, values.entries[base].tensor.dims, dtype)
        else:
            tensor = Tensor(name, brackets.dims, dtype)
        if set(tensor.dims) != set(brackets.dims) or tensor.dtype != dtype:
            return None
        layout = brackets.layout(tensor.dims)
        if entry is None:
            values.entries[name] = Entry(tensor, layout, ref.span, "value", layout, values.section)
        else:
            entry.latest = layout
        return Array(tensor, layout)
