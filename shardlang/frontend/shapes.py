"""Calls that need a dim whole, or write one as others: `rotary`, `top`, `rank` and `Reshape`.

Decides which dims a call works along, which are new, and what it says of their sizes. Mistakes are
reported; the call is then None.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from shardlang.frontend import errors, expression_errors, shape_errors
from shardlang.frontend.heads import RESHAPE, ROTARY
from shardlang.frontend.products import dims_named, names
from shardlang.frontend.sizes import AtMost, Multiple
from shardlang.frontend.syntax import Call, Word
from shardlang.frontend.terms import Pending, Want
from shardlang.frontend.values import union
from shardlang.ir.ops import Rank, Reshape, Rotary, Top
from shardlang.ir.program import Use
from shardlang.ir.types import Dim

if TYPE_CHECKING:
    from shardlang.frontend.functions import Functions


class Shapes:
    """Evaluates calls along whole dims, for the evaluator of all calls."""

    def __init__(self, functions: Functions) -> None:
        """Work for the evaluator of calls."""
        self.functions = functions
        self.expressions = functions.expressions
        self.reporter = functions.reporter

    def call(self, call: Call, want: Want | None) -> Pending | None:
        """Evaluate a call of one of `SHAPES`."""
        head = call.head.text
        uses = self.functions.arguments(call, 2 if head in ROTARY else 1, want)
        if uses is None:
            return None
        if head in ROTARY:
            return self._rotary(call, uses, back=head != "rotary")
        if head == RESHAPE:
            return self._reshape(call, uses[0])
        return self._top(call, uses[0]) if head == "top" else self._rank(call, uses[0])

    def _named(self, call: Call, use: Use) -> tuple[Dim, ...] | None:
        """Read the dims that a call works along."""
        if not call.subscript:
            mistake = expression_errors.WrongSubscript(call.head.text, names(use.tensor.dims))
            self.reporter.report(call.head.span, mistake)
            return None
        return dims_named(call.subscript, use.tensor.dims, use.tensor.name, self.reporter)

    def _rotary(self, call: Call, uses: tuple[Use, ...], *, back: bool) -> Pending | None:
        turned, angle = uses
        found = self._named(call, turned)
        if found is None:
            return None
        if len(found) != 1:
            mistake = expression_errors.WrongSubscript(call.head.text, names(turned.tensor.dims))
            self.reporter.report(call.head.span, mistake)
            return None
        own = [dim for dim in angle.tensor.dims if dim not in turned.tensor.dims]
        if not own:
            mistake = shape_errors.NoHalf(
                angle.tensor.name, names(angle.tensor.dims), found[0].name
            )
            self.reporter.report(angle.span, mistake)
            return None
        dim, half = found[0], own[-1]
        self._relate(call, dim, (half,), times=2)
        dims = tuple(each for each in union(uses) if each != half)
        return Pending(Rotary(dim, half, back), uses, dims, call.span)

    def _relate(self, call: Call, whole: Dim, factors: tuple[Dim, ...], times: int = 1) -> None:
        """Remember what a call says of sizes."""
        text = f"{call.head.text}_{whole}"
        if call.head.text == RESHAPE:
            text = RESHAPE
        self.expressions.values.multiples.append(
            Multiple(whole, times, factors, text, call.head.span)
        )

    def _reshape(self, call: Call, use: Use) -> Pending | None:
        words, arrow, dims = call.subscript or (), call.arrow or 0, use.tensor.dims
        source, into = words[:arrow], words[arrow:]
        text = None
        if not arrow:
            text = "the subscript of Reshape has to say what becomes what"
        elif min(len(source), len(into)) > 1:
            text = "Reshape makes one dim of several, or several of one"
        elif len(words) == 2:
            text = "Reshape with one dim on both sides only gives it a new name, as Rename does"
        if text is not None:
            mistake = shape_errors.WrongReshape(text, names(dims))
            self.reporter.report(call.head.span, mistake)
            return None
        before = self._each(source, dims, use)
        after = self._new(
            into, [d for d in dims if d.name not in {w.text for w in source}], RESHAPE
        )
        if before is None or after is None:
            return None
        op = Reshape(before, after)
        self._relate(call, op.whole, op.factors)
        result: list[Dim] = []
        for dim in dims:
            if dim not in before:
                result.append(dim)
            elif dim == next(d for d in dims if d in before):
                result += after
        return Pending(op, (use,), tuple(result), call.span)

    def _each(
        self, words: Iterable[Word], dims: tuple[Dim, ...], use: Use
    ) -> tuple[Dim, ...] | None:
        """Read words as different dims of an operand, in their own order."""
        found: list[Dim] = []
        for word in words:
            if Dim(word.text) not in dims:
                where = use.tensor.name
                mistake = expression_errors.UnknownDim(word.text, names(dims), where)
                self.reporter.report(word.span, mistake)
                return None
            if Dim(word.text) in found:
                self.reporter.report(word.span, errors.DimTwice(word.text, "the subscript"))
                return None
            found.append(Dim(word.text))
        return tuple(found)

    def _new(
        self, words: Iterable[Word], others: Iterable[Dim], head: str
    ) -> tuple[Dim, ...] | None:
        """Read words as new dims, beside those that the result has already."""
        found = list(others)
        kept = len(found)
        for word in words:
            if self.expressions.relayouts.axes.ends_in_axes(word.text):
                mistake = expression_errors.RenameToAxes(word.text, head)
                self.reporter.report(word.span, mistake)
                return None
            if Dim(word.text) in found:
                self.reporter.report(word.span, errors.DimTwice(word.text, f"the result of {head}"))
                return None
            found.append(Dim(word.text))
        return tuple(found[kept:])

    def _top(self, call: Call, use: Use) -> Pending | None:
        words, dims = call.subscript or (), use.tensor.dims
        if len(words) != 2:
            text = "top needs the dim that it looks along, and a name for how many it finds"
            self.reporter.report(call.head.span, shape_errors.WrongTop(text))
            return None
        along = self._each(words[:1], dims, use)
        into = self._new(words[1:], dims, "top")
        if along is None or into is None:
            return None
        result = tuple(into[0] if dim == along[0] else dim for dim in dims)
        self.expressions.values.at_most.append(AtMost(into[0], along[0], call.head.span))
        return Pending(Top(along[0], into[0]), (use,), result, call.span)

    def _rank(self, call: Call, use: Use) -> Pending | None:
        along = self._named(call, use)
        if along is None:
            return None
        if use.tensor.dtype.kind == "float":
            mistake = shape_errors.RankOfFloats(use.tensor.name, use.tensor.dtype.name)
            self.reporter.report(call.arguments[0].span, mistake)
            return None
        return Pending(Rank(along), (use,), use.tensor.dims, call.span)
