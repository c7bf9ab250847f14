"""Numbers in expressions: literals, sizes such as `|B|`, and functions of these, `sqrt(2 * |D|)`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from fractions import Fraction

from shardlang.diagnostics import Reporter
from shardlang.frontend import expression_errors
from shardlang.frontend.amounts import LARGEST_SIZE
from shardlang.frontend.syntax import NumberRef
from shardlang.frontend.terms import Number
from shardlang.ir.ops import Coefficient
from shardlang.ir.printer import number as number_text
from shardlang.ir.size import Monomial
from shardlang.source import Span

LONGEST = 10**17
"""From here on a numerator or denominator is longer than a double's digits."""

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
    return Number(Coefficient(value), node.span)


def inverse(number: Number, reporter: Reporter) -> Coefficient | None:
    """Give 1 over a number; report a division by zero."""
    if number.scalar.value == 0:
        reporter.report(number.span, expression_errors.Misplaced("this divides by zero"))
        return None
    return Coefficient() / number.scalar


def bound(number: Number, reporter: Reporter) -> Monomial | None:
    """Give a number that values are compared with; report a root of a size, which no monomial has."""
    powers = number.scalar.powers
    if any(power.denominator != 1 for _, power in powers):
        text = "values are compared with numbers and whole powers of sizes, as in 2 * |C|"
        reporter.report(number.span, expression_errors.Misplaced(text))
        return None
    value = settled(number.scalar.value, number.span, reporter)
    if value is None:
        return None
    return Monomial(value, tuple((dim.name, int(power)) for dim, power in powers))


def constant(number: Number, reporter: Reporter, total: str | None = None) -> Fraction | None:
    """Give a number that is added; report one that holds a size.

    `total` is the sum of sizes that it is in, as a `dims` line has it, where it is one.
    """
    if number.scalar.powers:
        sizes = ", ".join(f"|{dim.name}|" for dim, _ in number.scalar.powers)
        text = f"{sizes}: a size may multiply or divide a tensor, not be added to anything"
        advice = f"declare a dim that has the sum as its size, as in: dims Sum = {total}"
        reporter.report(
            number.span, expression_errors.Misplaced(text, None if total is None else advice)
        )
        return None
    return settled(number.scalar.value, number.span, reporter)


def settled(value: Fraction, span: Span, reporter: Reporter) -> Fraction | None:
    """Give a number as a line can have it: exact where that is short, else as the nearest double.

    Reports one that is beyond what the notation has.
    """
    exact = max(abs(value.numerator), value.denominator) < LONGEST or "/" not in number_text(value)
    found = value if exact else Fraction(repr(float(value)))
    if found and not Fraction(1, LARGEST_SIZE) ** 2 <= abs(found) <= LARGEST_SIZE:
        reporter.report(span, expression_errors.Misplaced("this number is too large or too small"))
        return None
    return found


def sum_of_sizes(left: Number, op: str, right: Number) -> str | None:
    """Write a sum of dims and whole numbers as a `dims` line has it, None where it is none."""
    names = [_plain(number.scalar) for number in (left, right)]
    return None if None in names else f"{names[0]} {op} {names[1]}"


def _plain(scalar: Coefficient) -> str | None:
    """Write a dim's size, or a whole number."""
    if not scalar.powers and scalar.value.denominator == 1:
        return str(scalar.value)
    if scalar.value == 1 and len(scalar.powers) == 1 and scalar.powers[0][1] == 1:
        return scalar.powers[0][0].name
    return None


ROOTS: Mapping[str, Fraction] = {
    "sqrt": Fraction(1, 2),
    "rsqrt": Fraction(-1, 2),
    "square": Fraction(2),
    "reciprocal": Fraction(-1),
}
"""Functions that are powers, which a size may have as well."""

ROUNDED: Mapping[str, Callable[[float], float]] = {
    "exp": math.exp,
    "log": math.log,
    "sin": math.sin,
    "cos": math.cos,
    "tanh": math.tanh,
    "abs": abs,
}
"""Functions of numbers without sizes."""


def applied(function: str, number: Number, span: Span, reporter: Reporter) -> Number | None:
    """Apply a function to a number, to the nearest double where it is not exact; report where it can't be."""
    value, powers = number.scalar.value, number.scalar.powers
    if function not in ROOTS and function not in ROUNDED:
        reporter.report(number.span, expression_errors.NoTensor())
        return None
    if powers and function not in ROOTS:
        text = f"{function} of a size is not known before the size is"
        advice = f"{', '.join(ROOTS)} may be taken of sizes; of numbers also {', '.join(ROUNDED)}"
        reporter.report(number.span, expression_errors.Misplaced(text, advice))
        return None
    try:
        made = (
            _powered(value, ROOTS[function])
            if function in ROOTS
            else ROUNDED[function](float(value))
        )
        found = made if isinstance(made, Fraction) else Fraction(repr(made))
    except (ValueError, ArithmeticError):
        reporter.report(span, expression_errors.Misplaced(f"this {function} is no number"))
        return None
    power = ROOTS.get(function, Fraction(1))
    scalar = Coefficient(found, tuple((dim, each * power) for dim, each in powers))
    return Number(scalar, span)


def _powered(value: Fraction, power: Fraction) -> Fraction | float:
    """Give a power of a number, exact where it is a fraction."""
    if power.denominator == 1:
        return value ** int(power)
    root = Fraction(math.isqrt(value.numerator), math.isqrt(value.denominator))
    if root**2 != value:
        return float(value) ** float(power)
    return root if power > 0 else 1 / root
