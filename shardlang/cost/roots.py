"""Products of sizes under a root, as closed forms have them: `sqrt(B*M_X*N/(F*M_Y))`.

A `Root` is `inside**(1/degree)` for a positive monomial, and is kept with the least degree, so that
equal values are equal objects. Names in the monomial may be placeholders for sums (`Sums`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from math import gcd

from shardlang.cost.formula import Formula, monomial_text, monomial_value, power
from shardlang.ir.size import Monomial


@dataclass(frozen=True, slots=True)
class Root:
    """A positive monomial to the power of 1/degree."""

    inside: Monomial = field(default_factory=Monomial)
    degree: int = 1

    @staticmethod
    def of(inside: Monomial, degree: int = 1) -> Root:
        """Give the root with the least degree."""
        for divisor in range(degree, 1, -1):
            if degree % divisor:
                continue
            if any(power % divisor for _, power in inside.powers):
                continue
            value = _exact_root(inside.coefficient, divisor)
            if value is not None:
                powers = tuple((name, power // divisor) for name, power in inside.powers)
                return Root.of(Monomial(value, powers), degree // divisor)
        return Root(inside, degree)

    def __mul__(self, other: Root) -> Root:
        """Multiply two roots."""
        degree = self.degree * other.degree // gcd(self.degree, other.degree)
        left = power(self.inside, degree // self.degree)
        return Root.of(left * power(other.inside, degree // other.degree), degree)

    def __pow__(self, exponent: Fraction) -> Root:
        """Raise to a rational power."""
        return Root.of(power(self.inside, exponent.numerator), self.degree * exponent.denominator)

    def __truediv__(self, other: Root) -> Root:
        """Divide by a root."""
        return self * other ** Fraction(-1)

    def exponent(self, name: str) -> Fraction:
        """Give the exponent of a name."""
        return Fraction(dict(self.inside.powers).get(name, 0), self.degree)

    def value(self, known: Mapping[str, Fraction]) -> float | None:
        """Give the number that it comes to, or None where a size is not known."""
        number = monomial_value(self.inside, known)
        return None if number is None else float(number) ** (1 / self.degree)


@dataclass
class Sums:
    """Sums that closed forms hold as if they were one symbol, by the placeholders that stand for them."""

    of: dict[str, Formula] = field(default_factory=dict[str, Formula])

    def name(self, formula: Formula) -> Monomial:
        """Give a sum as a monomial: itself where it is one product, else a placeholder for it."""
        if len(formula.terms) == 1 and not formula.maxima:
            return formula.terms[0]
        for known, other in self.of.items():
            if other == formula:
                return Monomial.of(known)
        made = f"\0{len(self.of)}"
        self.of[made] = formula
        return Monomial.of(made)

    def values(self, known: Mapping[str, Fraction]) -> dict[str, Fraction]:
        """Give what is known, and the placeholders' values as far as they follow from it."""
        found = dict(known)
        for name, formula in self.of.items():
            value = formula.value(known)
            if value is not None:
                found[name] = value
        return found

    def text(self, root: Root) -> str:
        """Print a root as Python and sympy read it."""
        outside, inside = _drawn(root)
        written = monomial_text(outside)
        if inside.powers or inside.coefficient != 1:
            under = monomial_text(inside)
            under = f"sqrt({under})" if root.degree == 2 else f"({under})**(1/{root.degree})"
            top, slash, bottom = written.partition("/")
            top = under if top == "1" else f"{top}*{under}"
            written = f"{top}{slash}{bottom}"
        for name, formula in self.of.items():
            written = written.replace(name, f"({formula})")
        return written


def _drawn(root: Root) -> tuple[Monomial, Monomial]:
    """Draw what can be drawn out of a root: `sqrt(64*D**2*F)` is `8*D` and `F`."""
    degree = root.degree
    if degree == 1:
        return root.inside, Monomial()
    outside = Monomial(
        Fraction(1),
        tuple((name, int(p / degree)) for name, p in root.inside.powers if abs(p) >= degree),
    )
    inside = root.inside / power(outside, degree)
    for part, sign in ((inside.coefficient.numerator, 1), (inside.coefficient.denominator, -1)):
        for base in range(min(part, 1000), 1, -1):
            if part % base**degree == 0:
                factor = Fraction(base) ** sign
                outside, inside = outside * factor, inside / factor**degree
                break
    return outside, inside


def _exact_root(number: Fraction, degree: int) -> Fraction | None:
    """Give the root of a positive fraction where it is a fraction."""

    def whole(value: int) -> int | None:
        low, high = 0, 1 << (value.bit_length() // degree + 1)
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if middle**degree <= value else (low, middle - 1)
        return low if low**degree == value else None

    top, bottom = whole(number.numerator), whole(number.denominator)
    return None if top is None or bottom is None else Fraction(top, bottom)
