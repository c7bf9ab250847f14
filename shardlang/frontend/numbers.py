"""Numbers in expressions: literals, sizes such as `|B|`, and the coefficients that they become."""

from __future__ import annotations

from fractions import Fraction

from shardlang.diagnostics import Reporter
from shardlang.frontend import expression_errors
from shardlang.frontend.syntax import NumberRef
from shardlang.frontend.terms import Number
from shardlang.ir.ops import Coefficient
from shardlang.ir.size import Monomial
from shardlang.ir.types import Dim
from shardlang.source import Span

MOST_DIGITS = 400
"""The longest number, and the largest power of ten, that an expression may have."""


def literal(node: NumberRef, reporter: Reporter) -> Number | None:
    """Read a number exactly; refuse one that no element type could hold."""
    text = node.word.text.replace("_", "").lower()
    _, _, exponent = text.partition("e")
    digits = exponent.lstrip("+-").lstrip("0")
    small = len(text) <= MOST_DIGITS and len(digits) <= 3 and int(digits or "0") <= MOST_DIGITS
    try:
        value = Fraction(text) if small else None
    except ValueError:
        value = None
    if value is None:
        reporter.report(
            node.span, expression_errors.Misplaced("this number is too large or too small")
        )
        return None
    return Number(Monomial(value), node.span)


def inverse(number: Number, reporter: Reporter) -> Monomial | None:
    """Give 1 over a number; report a division by zero."""
    if number.scalar.coefficient == 0:
        reporter.report(number.span, expression_errors.Misplaced("this divides by zero"))
        return None
    return Monomial() / number.scalar


def coefficient(scalar: Monomial, span: Span, reporter: Reporter) -> Coefficient | None:
    """Give the coefficient of a term; report a size that multiplies."""
    if any(power > 0 for _, power in scalar.powers):
        text = "a size such as |B| may divide a tensor, not multiply it"
        reporter.report(span, expression_errors.Misplaced(text))
        return None
    per = tuple(Dim(name) for name, power in scalar.powers for _ in range(-power))
    return Coefficient(scalar.coefficient, per)


def constant(number: Number, reporter: Reporter) -> Fraction | None:
    """Give a number that is added; report one that holds a size."""
    if number.scalar.powers:
        text = "a size such as |B| may divide a tensor, not be added to one"
        reporter.report(number.span, expression_errors.Misplaced(text))
        return None
    return number.scalar.coefficient
