"""Calls that compute: elementwise functions, reductions, `equal`, `Rename`, softmax and rmsnorm.

softmax and rmsnorm are written out here as primitive statements, so that nothing after this knows
of them. The tables of names are `FUNCTIONS` of the ir, and `REDUCTIONS` below.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Literal, TYPE_CHECKING

from shardlang.frontend import block_errors, errors, expression_errors
from shardlang.frontend.names import AxisNames, COLLECTIVES, RENAME, RINGS, USUAL_AXES
from shardlang.frontend.products import dims_named, names
from shardlang.frontend.syntax import Call, TensorRef, Word
from shardlang.frontend.terms import Pending, Want
from shardlang.ir.functions import FUNCTION_ALIASES, FUNCTIONS, RMSNORM_EPSILON
from shardlang.ir.ops import (
    Coefficient,
    Compute,
    Divide,
    Einsum,
    Equal,
    Linear,
    Map,
    Reduce,
    Rename,
)
from shardlang.ir.program import Use
from shardlang.ir.types import Dim
from shardlang.source import Span

if TYPE_CHECKING:
    from shardlang.frontend.expressions import Expressions

REDUCTIONS: Mapping[str, Literal["sum", "mean", "max", "min"]] = {
    "sum": "sum",
    "mean": "mean",
    "max": "max",
    "min": "min",
}
"""Reductions along dims."""

NORMALISATIONS = ("softmax", "rmsnorm")
"""What is written out as several statements."""

HEADS = (
    *FUNCTIONS,
    *FUNCTION_ALIASES,
    *REDUCTIONS,
    *NORMALISATIONS,
    "equal",
    RENAME,
    *COLLECTIVES,
    *RINGS,
)
"""Everything that may be called."""


class Functions:
    """Evaluates calls that compute, in an expression."""

    def __init__(self, expressions: Expressions) -> None:
        """Work for an evaluator of expressions, which evaluates the arguments."""
        self.expressions = expressions
        self.reporter = expressions.reporter

    def call(self, call: Call, want: Want | None, base: str | None) -> Pending | None:
        """Evaluate a call; `base` is the name of its result where it is a whole line."""
        head, subscript = call.head.text, call.subscript
        if subscript is not None and len(subscript) == 1:
            whole = f"{head}_{subscript[0].text}"
            if whole in FUNCTIONS:
                head, subscript = whole, None
        head = FUNCTION_ALIASES.get(head, head)
        if head in FUNCTIONS:
            return self._map(call, head, subscript, want)
        if head in REDUCTIONS:
            return self._reduce(call, head, want)
        if head in NORMALISATIONS:
            return self._normalise(call, head, want, base)
        if head == "equal":
            return self._equal(call, want)
        if head == RENAME:
            return self._rename(call, want)
        mistake = expression_errors.UnknownFunction(head, HEADS, self._as_tensor(call))
        self.reporter.report(call.head.span, mistake)
        return None

    def _as_tensor(self, call: Call) -> str | None:
        """Write `A(I_X, J)` with the brackets of a tensor, where its arguments are dims."""
        words: list[str] = []
        for argument in call.arguments:
            if not isinstance(argument, TensorRef) or argument.name is None:
                return None
            if argument.dims is not None or argument.marker is not None or argument.transposed:
                return None
            words.append(argument.name.text)
        values, axes = self.expressions.values, self.expressions.relayouts.axes
        dims = self.expressions.dims
        if not words or any(word in values.entries for word in words):
            return None
        usual = AxisNames((*axes.names, *USUAL_AXES)) if axes.implied else axes
        name = call.head.text
        tensor = (
            name in values.entries
            or (len(name) == 1 and name.isupper())
            or any(usual.ends_in_axes(word) or Dim(word) in dims for word in words)
        )
        return f"{call.head.text}[{', '.join(words)}]" if tensor else None

    def _arguments(self, call: Call, wanted: int, want: Want | None) -> tuple[Use, ...] | None:
        """Evaluate the arguments; report another number of them."""
        if len(call.arguments) != wanted:
            mistake = expression_errors.WrongArguments(call.head.text, wanted, len(call.arguments))
            self.reporter.report(call.span, mistake)
            return None
        if call.result is not None:
            text = f"{call.head.text} is no collective, so its brackets hold no arrow"
            self.reporter.report(call.result.span, expression_errors.Misplaced(text))
            return None
        uses: list[Use] = []
        for argument in call.arguments:
            value = self.expressions.value(argument, want)
            use = None if value is None else self.expressions.operand(value, want)
            if use is not None:
                uses.append(use)
        return tuple(uses) if len(uses) == wanted else None

    def _map(
        self, call: Call, function: str, subscript: tuple[Word, ...] | None, want: Want | None
    ) -> Pending | None:
        if subscript is not None:
            self.reporter.report(call.head.span, expression_errors.WrongSubscript(call.head.text))
            return None
        uses = self._arguments(call, 1, want)
        return None if uses is None else self._pending(Map(function), uses, call.span)

    def _equal(self, call: Call, want: Want | None) -> Pending | None:
        if call.subscript is not None:
            self.reporter.report(call.head.span, expression_errors.WrongSubscript(call.head.text))
            return None
        uses = self._arguments(call, 2, want)
        return None if uses is None else self._pending(Equal(), uses, call.span)

    def _rename(self, call: Call, want: Want | None) -> Pending | None:
        """Read `Rename_{B,S}(A)`: the subscript gives every dim's new name, place by place."""
        uses = self._arguments(call, 1, None if want is None else want.inside())
        if uses is None:
            return None
        (use,) = uses
        words = self._in_order(call, use)
        if len(words) != len(use.tensor.dims):
            mistake = expression_errors.WrongRename(
                use.tensor.name, names(use.tensor.dims), len(words)
            )
            self.reporter.report(call.head.span, mistake)
            return None
        dims: list[Dim] = []
        for word in words:
            if self.expressions.relayouts.axes.ends_in_axes(word.text):
                self.reporter.report(word.span, expression_errors.RenameToAxes(word.text))
                return None
            if Dim(word.text) in dims:
                mistake = errors.DimTwice(word.text, f"the subscript of {RENAME}")
                self.reporter.report(word.span, mistake)
                return None
            dims.append(Dim(word.text))
        self.expressions.values.tie(use.tensor, dims, [word.span for word in words])
        return Pending(Rename(tuple(dims)), uses, tuple(dims), call.span)

    def _in_order(self, call: Call, use: Use) -> tuple[Word, ...]:
        """Bring the new names from the order in which the operand is written into its own."""
        words, argument = call.subscript or (), call.arguments[0]
        written = None
        if isinstance(argument, TensorRef):
            written = self.expressions.values.brackets[id(argument)]
        if (
            written is None
            or {*written.dims} != {*use.tensor.dims}
            or len(words) != len(written.dims)
        ):
            return words
        by_dim = dict(zip(written.dims, words, strict=True))
        return tuple(by_dim[dim] for dim in use.tensor.dims)

    def _pending(self, op: Compute, uses: tuple[Use, ...], span: Span) -> Pending:
        dims = dict.fromkeys(dim for use in uses for dim in use.tensor.dims)
        return Pending(op, uses, tuple(dims), span)

    def _reduce(self, call: Call, head: str, want: Want | None) -> Pending | None:
        uses = self._arguments(call, 1, None if want is None else want.inside())
        if uses is None:
            return None
        (use,) = uses
        layers = self._layers(call)
        if layers is not None:
            return Pending(Reduce("sum", (layers,)), uses, use.tensor.dims, call.span)
        dims = self._along(call, use, want)
        if dims is None:
            return None
        kept = tuple(dim for dim in use.tensor.dims if dim not in dims)
        return Pending(Reduce(REDUCTIONS[head], dims), uses, kept, call.span)

    def _layers(self, call: Call) -> Dim | None:
        """Give the dim of a block, where a line of it adds something up over its layers."""
        scope, words = self.expressions.values.scope, call.subscript or ()
        if scope is None or call.head.text != "sum" or [w.text for w in words] != [scope.dim.name]:
            return None
        if not self.expressions.values.explicit:
            self.reporter.report(call.span, block_errors.SumOfLayers(scope.dim.name))
        return scope.dim

    def total(self, words: Sequence[Word], use: Use, span: Span) -> Pending | None:
        """Sum an operand over the dims of a subscript."""
        dims = dims_named(words, use.tensor.dims, use.tensor.name, self.reporter)
        if dims is None:
            return None
        kept = tuple(dim for dim in use.tensor.dims if dim not in dims)
        return Pending(Reduce("sum", dims), (use,), kept, span)

    def _along(self, call: Call, use: Use, want: Want | None) -> tuple[Dim, ...] | None:
        """Give the dims that a call works along: its subscript's, or the only ones there can be."""
        dims = use.tensor.dims
        if call.subscript:
            return dims_named(call.subscript, dims, use.tensor.name, self.reporter)
        lacking: tuple[Dim, ...] = ()
        if want is not None and not want.chain:
            lacking = tuple(dim for dim in dims if dim not in want.axes)
        if call.head.text in REDUCTIONS and lacking:
            return lacking
        if len(dims) == 1:
            return dims
        self.reporter.report(
            call.head.span, expression_errors.WrongSubscript(call.head.text, names(dims))
        )
        return None

    def _normalise(
        self, call: Call, head: str, want: Want | None, base: str | None
    ) -> Pending | None:
        uses = self._arguments(call, 1, want)
        if uses is None:
            return None
        along = self._along(call, uses[0], want)
        if along is None:
            return None
        name = base or self.expressions.values.fresh("Tmp")
        write = self._softmax if head == "softmax" else self._rmsnorm
        result = write(uses[0], along, name, call.span, want)
        if base is not None:
            return result
        return Pending(result.op, result.operands, result.dims, result.span, name=name)

    def _softmax(
        self, operand: Use, along: tuple[Dim, ...], base: str, span: Span, want: Want | None
    ) -> Pending:
        """Write out softmax: the maximum is subtracted first, and no gradient flows through it."""
        dims = operand.tensor.dims
        kept = tuple(dim for dim in dims if dim not in along)
        part, fresh = self.expressions.part, self.expressions.values.fresh
        largest = part(
            Reduce("max", along), (operand,), kept, fresh(f"{base}_max"), span, want, constant=True
        )
        minus = Linear((Coefficient(), Coefficient(Fraction(-1))))
        shifted = part(minus, (operand, largest), dims, fresh(f"{base}_shift"), span, want)
        powers = part(Map("exp"), (shifted,), dims, fresh(f"{base}_exp"), span, want)
        total = part(Reduce("sum", along), (powers,), kept, fresh(f"{base}_sum"), span, want)
        return Pending(Divide(), (powers, total), dims, span)

    def _rmsnorm(
        self, operand: Use, along: tuple[Dim, ...], base: str, span: Span, want: Want | None
    ) -> Pending:
        """Write out rmsnorm: over the root of the mean square, with an epsilon under the root."""
        dims = operand.tensor.dims
        kept = tuple(dim for dim in dims if dim not in along)
        part, fresh = self.expressions.part, self.expressions.values.fresh
        squares = part(Map("square"), (operand,), dims, fresh(f"{base}_square"), span, want)
        mean = part(Reduce("mean", along), (squares,), kept, fresh(f"{base}_mean"), span, want)
        more = Linear((Coefficient(),), Fraction(RMSNORM_EPSILON))
        above = part(more, (mean,), kept, fresh(f"{base}_eps"), span, want)
        root = part(Map("rsqrt"), (above,), kept, fresh(f"{base}_rsqrt"), span, want)
        return Pending(Einsum(()), (operand, root), dims, span)
