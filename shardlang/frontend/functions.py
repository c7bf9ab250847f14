"""Calls that compute: elementwise functions, reductions, `equal`, `Rename`, softmax and its like.

Softmax, rmsnorm, logsumexp, log_softmax and cross_entropy are written out here as primitive
statements, so that nothing after this knows of them. Calls that need a dim whole are in `shapes`,
those that look things up in `selection`. The tables of names are `FUNCTIONS` of the ir, and
`REDUCTIONS` below.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING

from shardlang.frontend import (
    block_errors,
    errors,
    expression_errors,
    hints,
    numbers,
    training_errors,
)
from shardlang.frontend.heads import (
    HEADS,
    NORMALISATIONS,
    REDUCTIONS,
    RENAME,
    SELECTIONS,
    SHAPES,
    UPDATE,
)
from shardlang.frontend.names import AxisNames, USUAL_AXES
from shardlang.frontend.products import dims_named, names
from shardlang.frontend.shapes import Shapes
from shardlang.frontend.syntax import Call, NumberRef, TensorRef, Word
from shardlang.frontend.terms import Number, Pending, Want
from shardlang.ir.functions import FUNCTION_ALIASES, FUNCTIONS, RMSNORM_EPSILON
from shardlang.ir.ops import (
    Coefficient,
    Compare,
    Compute,
    Divide,
    Einsum,
    Linear,
    Map,
    Reduce,
    Rename,
    Take,
    Update,
)
from shardlang.ir.program import Use
from shardlang.ir.types import Dim
from shardlang.source import Span

if TYPE_CHECKING:
    from shardlang.frontend.expressions import Expressions

MINUS = Linear((Coefficient(), Coefficient(Fraction(-1))))
"""A difference."""


@dataclass(frozen=True, slots=True)
class Part:
    """What the statements of a macro have alike: what they are named after, their place, the result."""

    base: str
    span: Span
    want: Want | None


class Functions:
    """Evaluates calls that compute, in an expression."""

    def __init__(self, expressions: Expressions) -> None:
        """Work for an evaluator of expressions, which evaluates the arguments."""
        self.expressions = expressions
        self.reporter = expressions.reporter
        self.shapes = Shapes(self)

    def call(self, call: Call, want: Want | None, base: str | None) -> Pending | Number | None:
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
        if head in SELECTIONS:
            return self.expressions.selection.call(call, want)
        if head == RENAME:
            return self._rename(call, want)
        if head in SHAPES:
            return self.shapes.call(call, want)
        if head == UPDATE:
            return self._update(call, want)
        mistake = expression_errors.UnknownFunction(
            head, HEADS, self._as_tensor(call), self.expressions.blocks
        )
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

    def _counted(self, call: Call, wanted: int) -> bool:
        """Report another number of arguments, and an arrow."""
        if len(call.arguments) != wanted:
            mistake = expression_errors.WrongArguments(call.head.text, wanted, len(call.arguments))
            self.reporter.report(call.span, mistake)
            return False
        if call.result is not None:
            text = f"{call.head.text} is no collective, so its brackets hold no arrow"
            self.reporter.report(call.result.span, expression_errors.Misplaced(text))
            return False
        return True

    def arguments(self, call: Call, wanted: int, want: Want | None) -> tuple[Use, ...] | None:
        """Evaluate the arguments; report another number of them."""
        if not self._counted(call, wanted):
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
    ) -> Pending | Number | None:
        if subscript is not None:
            self.reporter.report(call.head.span, expression_errors.WrongSubscript(call.head.text))
            return None
        if not self._counted(call, 1):
            return None
        value = self.expressions.value(call.arguments[0], want)
        if isinstance(value, Number):
            return numbers.applied(function, value, call.span, self.reporter)
        use = None if value is None else self.expressions.operand(value, want)
        return None if use is None else self._pending(Map(function), (use,), call.span)

    def _equal(self, call: Call, want: Want | None) -> Pending | None:
        if call.subscript is not None:
            self.reporter.report(call.head.span, expression_errors.WrongSubscript(call.head.text))
            return None
        uses = self.arguments(call, 2, want)
        return None if uses is None else self._pending(Compare("=="), uses, call.span)

    def _rename(self, call: Call, want: Want | None) -> Pending | None:
        """Read `Rename_{B,S}(A)`: the subscript gives every dim's new name, place by place."""
        uses = self.arguments(call, 1, None if want is None else want.inside())
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
        uses = self.arguments(call, 1, None if want is None else want.inside())
        if uses is None:
            return None
        (use,) = uses
        layers = self._layers(call)
        if layers is not None:
            return Pending(Reduce("sum", (layers,)), uses, use.tensor.dims, call.span)
        microbatches = self._microbatches(call)
        if microbatches is not None:
            return Pending(Reduce("mean", (microbatches,)), uses, use.tensor.dims, call.span)
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

    def _microbatches(self, call: Call) -> Dim | None:
        """Give the dim of the microbatches, where a line of an update takes the mean over them."""
        values, words = self.expressions.values, call.subscript or ()
        dim = values.microbatches
        if dim is None or values.section != "update" or call.head.text != "mean":
            return None
        return dim if [word.text for word in words] == [dim.name] else None

    def _update(self, call: Call, want: Want | None) -> Pending | None:
        """Read `Update(W, dW)` of an update section."""
        if call.subscript is not None:
            self.reporter.report(call.head.span, expression_errors.WrongSubscript(call.head.text))
            return None
        if self.expressions.values.section != "update":
            self.reporter.report(call.head.span, training_errors.UpdateElsewhere())
            return None
        uses = self.arguments(call, 2, want)
        op = Update(self.expressions.values.optimizer)
        return None if uses is None else self._pending(op, uses, call.span)

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
        epsilon = None
        if head == "rmsnorm":
            epsilon = self._epsilon(call)
            if epsilon is None:
                return None
            if len(call.arguments) == 2:
                call = replace(call, arguments=call.arguments[:1])
        keeps = head in ("softmax", "log_softmax", "rmsnorm")
        inside = want if keeps or want is None else want.inside()
        uses = self.arguments(call, 2 if head == "cross_entropy" else 1, inside)
        if uses is None:
            return None
        along = self._along(call, uses[0], want if keeps else inside)
        if along is None:
            return None
        if head == "cross_entropy" and not self._labels(call, along, uses):
            return None
        name = base or self.expressions.values.fresh("Tmp")
        result = self._macro(head, uses, along, Part(name, call.span, want), epsilon)
        if base is not None:
            return result
        return Pending(result.op, result.operands, result.dims, result.span, name=name)

    def _epsilon(self, call: Call) -> Fraction | None:
        """Read the second argument of rmsnorm, a number; report anything else there."""
        if len(call.arguments) < 2:
            return Fraction(RMSNORM_EPSILON)
        written = call.arguments[1]
        if not isinstance(written, NumberRef):
            text = (
                "the second argument of rmsnorm is its epsilon, a number as in rmsnorm_D(x, 1e-5)"
            )
            self.reporter.report(written.span, expression_errors.Misplaced(text))
            return None
        number = numbers.literal(written, self.reporter)
        return None if number is None else number.scalar.value

    def _labels(self, call: Call, along: tuple[Dim, ...], uses: tuple[Use, ...]) -> bool:
        """Say whether labels can be ids along the one dim of the classes; report it where not."""
        if len(along) != 1:
            dims = hints.listed(names(along))
            text = f"the classes of {call.head.text} are along one dim, and not along {dims}"
            self.reporter.report(call.head.span, expression_errors.Misplaced(text))
            return False
        return self.expressions.selection.are_ids(call, along, uses[1:], new=False)

    def _macro(
        self,
        head: str,
        uses: tuple[Use, ...],
        along: tuple[Dim, ...],
        at: Part,
        epsilon: Fraction | None,
    ) -> Pending:
        """Write a macro out; rmsnorm has an epsilon."""
        match head:
            case "softmax":
                return self._softmax(uses[0], along, at)
            case "rmsnorm":
                assert epsilon is not None
                return self._rmsnorm(uses[0], along, at, epsilon)
            case _:
                return self._entropy(head, uses, along, at)

    def _powers(self, operand: Use, along: tuple[Dim, ...], at: Part) -> tuple[Use, Use, Use, Use]:
        """Write out the maximum, what is left without it, its powers of e, and their sum.

        The maximum is subtracted first, and no gradient flows through it.
        """
        dims = operand.tensor.dims
        kept = tuple(dim for dim in dims if dim not in along)
        largest = self._part(at, "max", Reduce("max", along), (operand,), kept, constant=True)
        shifted = self._part(at, "shift", MINUS, (operand, largest), dims)
        powers = self._part(at, "exp", Map("exp"), (shifted,), dims)
        total = self._part(at, "sum", Reduce("sum", along), (powers,), kept)
        return largest, shifted, powers, total

    def _part(
        self,
        at: Part,
        word: str,
        op: Compute,
        operands: tuple[Use, ...],
        dims: tuple[Dim, ...],
        *,
        constant: bool = False,
    ) -> Use:
        """Write one statement of a macro, named after its result.

        What the result says of layouts counts for those parts that have no other dims.
        """
        want = at.want
        if want is not None and not set(dims) <= set(want.axes):
            want = None
        name = self.expressions.values.fresh(f"{at.base}_{word}")
        return self.expressions.part(op, operands, dims, name, at.span, want, constant=constant)

    def _softmax(self, operand: Use, along: tuple[Dim, ...], at: Part) -> Pending:
        """Write out softmax."""
        _, _, powers, total = self._powers(operand, along, at)
        return Pending(Divide(), (powers, total), operand.tensor.dims, at.span)

    def _entropy(
        self, head: str, uses: tuple[Use, ...], along: tuple[Dim, ...], at: Part
    ) -> Pending:
        """Write out what is made of the logarithm of a softmax's sum.

        logsumexp is the maximum and that logarithm, log_softmax what is left without both, and
        cross_entropy the first less what the labels pick. Only log_softmax is as large as the operand.
        """
        operand = uses[0]
        dims = operand.tensor.dims
        kept = tuple(dim for dim in dims if dim not in along)
        largest, shifted, _, total = self._powers(operand, along, at)
        log = self._part(at, "log", Map("log"), (total,), kept)
        if head == "log_softmax":
            return Pending(MINUS, (shifted, log), dims, at.span)
        if head == "logsumexp":
            return Pending(Linear((Coefficient(), Coefficient())), (log, largest), kept, at.span)
        labels = uses[1].tensor.dims
        both = (*kept, *(dim for dim in labels if dim not in kept))
        picked = self._part(at, "label", Take(along), uses, both)
        op = Linear((Coefficient(), Coefficient(), Coefficient(Fraction(-1))))
        return Pending(op, (log, largest, picked), both, at.span)

    def _rmsnorm(
        self, operand: Use, along: tuple[Dim, ...], at: Part, epsilon: Fraction
    ) -> Pending:
        """Write out rmsnorm: over the root of the mean square, with an epsilon under the root."""
        dims = operand.tensor.dims
        kept = tuple(dim for dim in dims if dim not in along)
        squares = self._part(at, "square", Map("square"), (operand,), dims)
        mean = self._part(at, "mean", Reduce("mean", along), (squares,), kept)
        more = Linear((Coefficient(),), epsilon)
        above = self._part(at, "eps", more, (mean,), kept)
        root = self._part(at, "rsqrt", Map("rsqrt"), (above,), kept)
        return Pending(Einsum(()), (operand, root), dims, at.span)
