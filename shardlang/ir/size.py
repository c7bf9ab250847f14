"""Sizes: what a dim is declared as, and products of sizes that can be compared without sympy.

The local size of an array is a product of dims over a product of axes, so comparing two such
sizes is a number, or else a ratio that *is* the condition to report.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal


@dataclass(frozen=True, slots=True)
class Number:
    """An exact literal, as in `48_000`, `3e6`, `32Ki`."""

    value: Fraction


@dataclass(frozen=True, slots=True)
class Name:
    """The size of a dim or an axis, by its name."""

    name: str


@dataclass(frozen=True, slots=True)
class BinOp:
    """An arithmetic expression over sizes, as in `F = 4*D`."""

    op: Literal["+", "-", "*", "/", "**"]
    left: SizeExpr
    right: SizeExpr


SizeExpr = Number | Name | BinOp


@dataclass(frozen=True, slots=True)
class Monomial:
    """A coefficient times integer powers of named sizes: `2*D*F/Y`.

    `powers` is sorted by name and holds no zero exponent, so equal monomials are equal objects.
    """

    coefficient: Fraction = Fraction(1)
    powers: tuple[tuple[str, int], ...] = ()

    @staticmethod
    def of(*names: str) -> Monomial:
        """Give the product of the named sizes."""
        result = Monomial()
        for name in names:
            result = result * Monomial(Fraction(1), ((name, 1),))
        return result

    def __mul__(self, other: Monomial | int | Fraction) -> Monomial:
        """Multiply by a monomial or a number."""
        if not isinstance(other, Monomial):
            return Monomial(self.coefficient * other, self.powers)
        merged = dict(self.powers)
        for name, power in other.powers:
            merged[name] = merged.get(name, 0) + power
        powers = tuple(sorted((n, p) for n, p in merged.items() if p))
        return Monomial(self.coefficient * other.coefficient, powers)

    def __truediv__(self, other: Monomial | int | Fraction) -> Monomial:
        """Divide by a monomial or a number."""
        if not isinstance(other, Monomial):
            return Monomial(self.coefficient / other, self.powers)
        return self * Monomial(1 / other.coefficient, tuple((n, -p) for n, p in other.powers))

    def evaluate(self, sizes: Mapping[str, int]) -> Monomial:
        """Substitute the sizes that are known; the rest stay symbols."""
        coefficient = self.coefficient
        left: list[tuple[str, int]] = []
        for name, power in self.powers:
            if name in sizes:
                coefficient *= Fraction(sizes[name]) ** power
            else:
                left.append((name, power))
        return Monomial(coefficient, tuple(left))

    @property
    def number(self) -> Fraction | None:
        """The value where no symbol is left, else None."""
        return None if self.powers else self.coefficient

    def __str__(self) -> str:
        """Print as sympy would read it: `2*D*F/Y`."""

        def factor(name: str, power: int) -> str:
            return name if power == 1 else f"{name}**{power}"

        top = [factor(n, p) for n, p in self.powers if p > 0]
        bottom = [factor(n, -p) for n, p in self.powers if p < 0]
        if self.coefficient.numerator != 1 or not top:
            top.insert(0, str(self.coefficient.numerator))
        if self.coefficient.denominator != 1:
            bottom.insert(0, str(self.coefficient.denominator))
        if not bottom:
            return "*".join(top)
        below = bottom[0] if len(bottom) == 1 else f"({'*'.join(bottom)})"
        return f"{'*'.join(top)}/{below}"


def names_in(expr: SizeExpr) -> Iterator[str]:
    """Give the names in a declared size."""
    match expr:
        case Name(name):
            yield name
        case BinOp(_, left, right):
            yield from names_in(left)
            yield from names_in(right)
        case Number():
            return
