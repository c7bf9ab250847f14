"""Numbers as they are written, exactly, and sums of them: nothing is computed that takes long."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Literal, TYPE_CHECKING

from shardlang.frontend.parse_errors import shown, WrongSize
from shardlang.frontend.pieces import FormError, Size, span_at
from shardlang.source import Span

if TYPE_CHECKING:
    from lark import Token

SIZE_DIGITS = 30
"""A size has at most this many digits, so that no later sum can take long."""

LARGEST_SIZE = 10**SIZE_DIGITS
"""No size is larger than this."""

_NAMED_POWER = 16
_SUFFIXES = {
    "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12,
    "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40,
}  # fmt: skip
_NUMBER = re.compile(r"([\d_]+)(?:\.(\d+))?(?:[eE]([+-]?\d+))?(\D*)")


def exact(token: Token) -> Fraction:
    """Read a number exactly; refuse one too large or too small before it is computed."""
    match = _NUMBER.fullmatch(str(token))
    assert match is not None
    whole, decimals, exponent, suffix = match.groups()
    whole = whole.replace("_", "").lstrip("0")
    digits = whole + (decimals or "")
    power_text = (exponent or "0").lstrip("+")
    sign, power_digits = ("-", power_text[1:]) if power_text[0] == "-" else ("", power_text)
    power_digits = power_digits.lstrip("0") or "0"
    small = len(digits) <= 4 * SIZE_DIGITS and len(power_digits) <= 4
    power = int(sign + power_digits) if small else 0
    if not small or abs(power) > 2 * SIZE_DIGITS or len(whole) + power > SIZE_DIGITS + 1:
        raise FormError(span_at(token), too_large(shown(str(token))))
    value = Fraction(int(digits or "0"), 10 ** len(decimals or "")) * Fraction(10) ** power
    value *= _SUFFIXES.get(suffix, 1)
    if value > LARGEST_SIZE:
        raise FormError(span_at(token), too_large(shown(str(token))))
    return value


def too_large(what: str) -> WrongSize:
    """Say that a number, as it is shown, is beyond what is read."""
    return WrongSize(
        f"{what} is out of range", f"numbers go up to 1e{SIZE_DIGITS}, with as many decimals"
    )


def computed(
    op: Literal["+", "-", "*", "/", "**"], left: Size, right: Size, span: Span
) -> Fraction | None:
    """Compute an operation on numbers; refuse what is no size or takes too long to compute."""
    if op == "**":
        exponent = right.value
        if exponent is None or exponent.denominator != 1 or exponent < 0:
            raise FormError(
                right.span,
                WrongSize("the exponent of a size must be a whole number", "as in 2**10"),
            )
        limit = _NAMED_POWER if left.value is None else 4 * SIZE_DIGITS
        if exponent > limit:
            raise FormError(right.span, too_large(f"an exponent above {limit}"))
    if op == "/" and right.value == 0:
        raise FormError(right.span, WrongSize("a size can't be divided by zero"))
    if left.value is None or right.value is None:
        return None
    a, b = left.value, right.value
    match op:
        case "+":
            value = a + b
        case "-":
            value = a - b
        case "*":
            value = a * b
        case "/":
            value = a / b
        case "**":
            value = a ** int(b)
    if abs(value) > LARGEST_SIZE or value.denominator > LARGEST_SIZE:
        raise FormError(span, too_large("this size"))
    return value
