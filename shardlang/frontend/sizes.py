"""Sizes as numbers: evaluates declared expressions, with their names, exactly.

Decides which sizes are numbers, which stay symbols, and which are in error. Sizes are counts of
elements or of devices. Nothing here recurses: expressions and chains of names may be long.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import reduce
from math import log10

from shardlang.ir.size import BinOp, Name, Number, SizeExpr
from shardlang.ir.types import Dim
from shardlang.source import Span

LARGEST_BITS = 13_000
"""Sizes have at most so many binary digits: some 3,900 decimal ones."""


@dataclass(frozen=True, slots=True)
class Multiple:
    """A size that is `times` the product of others, as `call` at `span` says: |N| = |K||G|, |H| = 2|R|."""

    whole: Dim
    times: int
    factors: tuple[Dim, ...]
    call: str
    span: Span

    def solved(self, name: str) -> SizeExpr:
        """Give the size of one of them in terms of the others."""
        others: list[SizeExpr] = [] if self.times == 1 else [Number(Fraction(self.times))]
        others += [Name(factor.name) for factor in self.factors if factor.name != name]
        product = reduce(lambda left, right: BinOp("*", left, right), others)
        return product if name == self.whole.name else BinOp("/", Name(self.whole.name), product)


@dataclass(frozen=True, slots=True)
class AtMost:
    """A dim that has no more places than another: `into` of the `top` of `dim`."""

    into: Dim
    dim: Dim
    span: Span


class SizeError(Exception):
    """An expression has no value; the text says why, as in `divides by zero`."""


def names_in(expr: SizeExpr) -> Iterator[str]:
    """Go through the names in an expression, in reading order."""
    waiting = [expr]
    while waiting:
        match waiting.pop():
            case Name(name):
                yield name
            case BinOp(_, left, right):
                waiting.extend((right, left))
            case Number():
                pass


def bounded(value: Fraction) -> Fraction:
    """Give the value back unless it is too large to handle."""
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > LARGEST_BITS:
        raise SizeError("is too large")
    return value


def power(base: Fraction, exponent: Fraction) -> Fraction:
    """Raise to a whole power, refusing results that are too large before they are computed."""
    if exponent.denominator != 1:
        raise SizeError("has a power that is not a whole number")
    if base == 0:
        if exponent < 0:
            raise SizeError("divides by zero")
        return Fraction(0 if exponent else 1)
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    if bits > 1 and (bits - 1) * abs(exponent) > LARGEST_BITS:
        raise SizeError("is too large")
    return Fraction(base ** int(exponent))


def combine(op: str, left: Fraction, right: Fraction) -> Fraction:
    """Do one step of arithmetic."""
    match op:
        case "+":
            return bounded(left + right)
        case "-":
            return bounded(left - right)
        case "*":
            return bounded(left * right)
        case "/":
            if right == 0:
                raise SizeError("divides by zero")
            return bounded(left / right)
        case _:
            return power(left, right)


def evaluate(expr: SizeExpr, known: Mapping[str, Fraction]) -> Fraction | None:
    """Give an expression's value, or None where it depends on a symbol; raises SizeError."""
    waiting: list[SizeExpr | str] = [expr]
    values: list[Fraction | None] = []
    while waiting:
        match waiting.pop():
            case Number(value):
                values.append(bounded(value))
            case Name(name):
                values.append(known.get(name))
            case BinOp(op, left, right):
                waiting.extend((op, right, left))
            case str() as op:
                second, first = values.pop(), values.pop()
                if first is None or second is None:
                    values.append(None)
                else:
                    values.append(combine(op, first, second))
    return values[0]


@dataclass
class SizeTable:
    """Every size that has an expression, evaluated.

    `values` holds those that are numbers, `circles` the names that depend on themselves, `wrong`
    the reason why a name has no valid size. A valid size is a whole number from 1 on.
    """

    exprs: Mapping[str, SizeExpr]
    values: dict[str, int] = field(default_factory=dict[str, int])
    circles: list[tuple[str, ...]] = field(default_factory=list[tuple[str, ...]])
    wrong: dict[str, str] = field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        """Evaluate all of them, each after the names that it needs."""
        done: set[str] = set()
        for name in self.exprs:
            self._visit(name, done)

    def _visit(self, start: str, done: set[str]) -> None:
        """Go through what a name needs, depth first, and evaluate on the way back."""
        if start in done:
            return
        path: dict[str, Iterator[str]] = {start: names_in(self.exprs[start])}
        while path:
            name, needs = next(reversed(path.items()))
            needed = next((n for n in needs if n in self.exprs and n not in done), None)
            if needed is None:
                del path[name]
                done.add(name)
                self._evaluate(name)
            elif needed in path:
                names = list(path)
                self.circles.append((*names[names.index(needed) :], needed))
            else:
                path[needed] = names_in(self.exprs[needed])

    def _evaluate(self, name: str) -> None:
        known = {key: Fraction(value) for key, value in self._needed(name)}
        try:
            value = evaluate(self.exprs[name], known)
        except SizeError as error:
            self.wrong[name] = str(error)
            return
        if value is None:
            return
        if value.denominator != 1:
            self.wrong[name] = f"is {shown(value)}, not a whole number"
        elif value < 1:
            self.wrong[name] = f"is {shown(value)}, and not positive"
        else:
            self.values[name] = value.numerator

    def _needed(self, name: str) -> Iterator[tuple[str, int]]:
        for needed in names_in(self.exprs[name]):
            if needed in self.values:
                yield needed, self.values[needed]


def shown(value: Fraction) -> str:
    """Print a number of a message: as a decimal where that is short."""
    if value.denominator == 1:
        return str(value.numerator)
    decimal = value.numerator / value.denominator if abs(value) < 10**15 else 0.0
    return f"{decimal:g}" if Fraction(f"{decimal:g}") == value else f"{value}"


def shortest(value: int) -> str:
    """Print a whole number of a message: `1e400` where it ends in many zeros."""
    if value >= 10**4000:
        return f"1e{int(value.bit_length() * log10(2))}"
    text = str(value)
    digits = text.rstrip("0")
    zeros = len(text) - len(digits)
    short = f"{digits}e{zeros}" if zeros > 3 else text
    return short if len(short) <= 40 else f"{short[:39]}…"
