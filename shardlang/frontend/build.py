"""From what the grammar reads to the tree of `syntax`: one method a rule, called by the parser.

Here are statements and expressions, with those of tensors and of declarations from their own modules.
Raises `FormError` with the exact place of what no reading can make sense of.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from lark import Token

from shardlang.frontend.amounts import exact
from shardlang.frontend.build_declarations import DeclarationBuilder
from shardlang.frontend.build_tensors import bare_call, TensorBuilder
from shardlang.frontend.heads import ATTENTION, RELATIONS, SUBSCRIPTED
from shardlang.frontend.parse_errors import LonelyName, MissingOperator, NotATensor, shown
from shardlang.frontend.pieces import (
    Arguments,
    FormError,
    head_of,
    Named,
    Operator,
    root,
    span_at,
    Sub,
)
from shardlang.frontend.syntax import (
    Binary,
    Call,
    Comparison,
    Definition,
    Expr,
    Item,
    Negate,
    NumberRef,
    Product,
    SizeOf,
    TensorRef,
    Word,
)
from shardlang.source import Span


class Builder(TensorBuilder, DeclarationBuilder):
    """The methods that the parser calls, each with the parts of its rule in order."""

    # ---- Statements

    def start(self, parts: list[Item]) -> Item:
        """Give the one statement."""
        return parts[0]

    def nameless(self, parts: list[Expr]) -> Definition:
        """Read an expression that has no name for its result."""
        (expr,) = parts
        match expr:
            case TensorRef(Word(text), None, None, None):
                raise FormError(expr.span, LonelyName(text))
            case _:
                return Definition(None, expr, expr.span)

    def assigned(self, parts: list[Expr]) -> Definition:
        """Read `lhs = expr`."""
        target, _, expr = parts
        if not isinstance(target, TensorRef):
            raise FormError(target.span, NotATensor("what stands left of `=`"))
        return Definition(target, expr, target.span.join(expr.span))

    def arrowed(self, parts: list[Expr]) -> Definition:
        """Read `expr -> lhs`."""
        expr, _, target = parts
        if not isinstance(target, TensorRef):
            raise FormError(target.span, NotATensor("what stands right of `->`"))
        return Definition(target, expr, expr.span.join(target.span), arrow=True)

    # ---- Expressions

    def plus(self, parts: list[Expr | Token]) -> Binary:
        """Read a sum."""
        return self._binary("+", parts)

    def minus(self, parts: list[Expr | Token]) -> Binary:
        """Read a difference."""
        return self._binary("-", parts)

    def divide(self, parts: list[Expr | Token]) -> Binary:
        """Read a quotient."""
        return self._binary("/", parts)

    def compare(self, parts: tuple[Expr, Token, Expr]) -> Comparison:
        """Read a comparison in any spelling."""
        left, sign, right = parts
        relation = RELATIONS[str(sign).lstrip("\\")]
        return Comparison(relation, left, right, span_at(sign), left.span.join(right.span))

    def _binary(self, op: Literal["+", "-", "/"], parts: list[Expr | Token]) -> Binary:
        left, sign, right = parts
        assert isinstance(sign, Token)
        assert not isinstance(left, Token)
        assert not isinstance(right, Token)
        return Binary(op, left, right, span_at(sign), left.span.join(right.span))

    def times(self, parts: tuple[Expr, Operator, Expr]) -> Product:
        """Read a product with its contraction subscript."""
        left, operator, right = parts
        sub = operator.sub
        local = sub is not None and [w.text for w in sub.words] == ["LOCAL"]
        words = None if sub is None or local else sub.words
        span = left.span.join(right.span)
        return Product(operator.op, left, right, words, local, operator.span, span)

    def dot(self, parts: list[Token | Sub]) -> Operator:
        """Read any spelling of `·`, `×` and `@`."""
        return self._operator("dot", parts)

    def star(self, parts: list[Token | Sub]) -> Operator:
        """Read `*`."""
        return self._operator("star", parts)

    def hadamard(self, parts: list[Token | Sub]) -> Operator:
        """Read `⊙`."""
        return self._operator("hadamard", parts)

    def _operator(
        self, op: Literal["dot", "star", "hadamard"], parts: list[Token | Sub]
    ) -> Operator:
        sign, *rest = parts
        assert isinstance(sign, Token)
        sub = rest[0] if rest else None
        assert not isinstance(sub, Token)
        span = span_at(sign) if sub is None else span_at(sign).join(sub.span)
        return Operator(op, sub, span)

    def negate(self, parts: tuple[Token, Expr]) -> Negate:
        """Read a unary minus."""
        sign, operand = parts
        return Negate(operand, span_at(sign).join(operand.span))

    def number(self, parts: list[Token]) -> NumberRef:
        """Read a number literal."""
        span = span_at(parts[0])
        exact(parts[0])
        return NumberRef(Word(str(parts[0]), span), span)

    def size_of(self, parts: tuple[Token, Named, Token]) -> SizeOf:
        """Read `|B|`."""
        return SizeOf(parts[1].joined(), span_at(parts[0]).join(span_at(parts[2])))

    def group(self, parts: tuple[Token, Expr, Token]) -> Expr:
        """Read an expression in brackets: the same node over a wider place."""
        return replace(parts[1], span=span_at(parts[0]).join(span_at(parts[2])))

    def call(self, parts: tuple[Named, Token, Arguments, Token]) -> Call:
        """Read `gelu(A)`, `sum_B(A)`, `AllGather_X(A)`, `Permute(A -> A)`."""
        name, _, arguments, closing = parts
        head, subscript = head_of(name)
        span = name.span.join(span_at(closing))
        arrow = name.subs[-1].arrow if name.subs else None
        first, *more = arguments.results or (None,)
        if more and head.text not in ATTENTION:
            raise FormError(arguments.results[1].span, NotATensor("what stands right of `->`"))
        made = Call(head, subscript, arguments.exprs, span, result=first, arrow=arrow)
        return replace(made, more=arguments.results[1:])

    def bare_call(self, parts: tuple[Named, Expr]) -> Call:
        """Read `AllReduce_Y A[I]{U_Y}`: only a collective or a reduction stands so."""
        name, operand = parts
        if root(name) not in SUBSCRIPTED:
            before, after = shown(name.joined().text), shown(_first(operand))
            raise FormError(
                Span(operand.span.start, operand.span.start + len(after) - 2),
                MissingOperator(before, after),
            )
        return bare_call(name, operand)

    def arguments(self, parts: list[Expr | Token]) -> Arguments:
        """Read what stands in a call's brackets."""
        return Arguments(tuple(p for p in parts if not isinstance(p, Token)))

    def relayout(self, parts: list[Expr | Token]) -> Arguments:
        """Read `A[I_XY] -> A[I_YX]` in a call's brackets."""
        arrow = next(i for i, p in enumerate(parts) if isinstance(p, Token) and p.type == "ARROW")
        results: list[TensorRef] = []
        for result in parts[arrow + 1 :]:
            if isinstance(result, TensorRef):
                results.append(result)
            elif not isinstance(result, Token):
                raise FormError(result.span, NotATensor("what stands right of `->`"))
        given = (p for p in parts[:arrow] if not isinstance(p, Token))
        return Arguments(tuple(given), tuple(results))


def _first(operand: Expr) -> str:
    """Give the first word of an operand, for a message."""
    match operand:
        case TensorRef(Word(text)):
            return text
        case TensorRef(None, Word(text)):
            return text
        case Call(Word(text)):
            return text
        case _:
            return "it"
