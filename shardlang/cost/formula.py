"""Formulas: sums of monomials and of maxima, printed as sympy reads them.

Everything that a report says is of the form `2*D*F/Y + Max(…, …)`, so no computer algebra is needed
to add, compare and print it: sympy is imported when an expression is asked for, and not before.

A name in a monomial may be a *composite*, the sum of other names in brackets (`(M_X + M_Y)`): the
bandwidth of a collective over several axes divides by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import gcd, lcm
from typing import Any

from shardlang.ir.size import Monomial

Powers = tuple[tuple[str, int], ...]
PRUNED = 50


def composite(names: Iterable[str]) -> str:
    """Give the name that stands for the sum of the names; one name stands for itself."""
    listed = list(names)
    return listed[0] if len(listed) == 1 else f"({' + '.join(listed)})"


def parts(name: str) -> tuple[str, ...]:
    """Give the names that a composite adds up; a plain name is its own only part."""
    return tuple(name[1:-1].split(" + ")) if name.startswith("(") else (name,)


def digits(value: int) -> str:
    """Print an integer of any length (`str` refuses more than 4,300 digits)."""
    if value.bit_length() < 14_000:
        return str(value)
    sign, value = ("-", -value) if value < 0 else ("", value)
    pieces: list[str] = []
    while value:
        value, rest = divmod(value, 10**4000)
        pieces.append(str(rest).rjust(4000, "0") if value else str(rest))
    return sign + "".join(reversed(pieces))


def monomial_text(monomial: Monomial) -> str:
    """Print a monomial as Python and sympy read it: `2*D*F/(M_X*W_ici*Y)`."""

    def factor(name: str, power: int) -> str:
        return name if power == 1 else f"{name}**{power}"

    top = [factor(n, p) for n, p in monomial.powers if p > 0]
    bottom = [factor(n, -p) for n, p in monomial.powers if p < 0]
    number = monomial.coefficient
    if abs(number.numerator) != 1 or not top:
        top.insert(0, digits(number.numerator))
    elif number < 0:
        top[0] = f"-{top[0]}"
    if number.denominator != 1:
        bottom.insert(0, digits(number.denominator))
    if not bottom:
        return "*".join(top)
    below = bottom[0] if len(bottom) == 1 else f"({'*'.join(bottom)})"
    return f"{'*'.join(top)}/{below}"


def monomial_value(monomial: Monomial, known: Mapping[str, Fraction]) -> Fraction | None:
    """Give the number that a monomial comes to, or None where a size is not known."""
    value = monomial.coefficient
    for name, power in monomial.powers:
        factor = known.get(name)
        if factor is None:
            values = [known.get(part) for part in parts(name)]
            if len(values) == 1 or any(v is None for v in values):
                return None
            factor = sum((v for v in values if v is not None), Fraction(0))
        value = value * factor**power
    return value


def _combine(monomials: Iterable[Monomial]) -> tuple[Monomial, ...]:
    listed = list(monomials)
    if len(listed) == 1:
        return tuple(term for term in listed if term.coefficient)
    total: dict[Powers, Fraction] = {}
    for monomial in listed:
        total[monomial.powers] = total.get(monomial.powers, Fraction(0)) + monomial.coefficient
    return tuple(Monomial(c, powers) for powers, c in sorted(total.items()) if c)


@dataclass(frozen=True, slots=True)
class Formula:
    """A sum of monomials plus a sum of maxima; nothing at all is zero.

    `terms` hold each product of names once, sorted, so that equal sums are equal objects.
    """

    terms: tuple[Monomial, ...] = ()
    maxima: tuple[tuple[Formula, ...], ...] = ()

    @staticmethod
    def of(*monomials: Monomial) -> Formula:
        """Add monomials up."""
        return Formula(_combine(monomials))

    @staticmethod
    def sum(formulas: Iterable[Formula]) -> Formula:
        """Add formulas up, in time linear in their terms."""
        listed = list(formulas)
        return Formula(
            _combine(term for formula in listed for term in formula.terms),
            tuple(options for formula in listed for options in formula.maxima),
        )

    @staticmethod
    def largest(formulas: Iterable[Formula]) -> Formula:
        """Give the maximum; what another one exceeds term by term is left out.

        Beyond `PRUNED` distinct ones nothing is left out, so that the time stays linear.
        """
        kept: list[Formula] = []
        distinct = dict.fromkeys(formula for formula in _flat(formulas) if formula)
        if len(distinct) > PRUNED:
            return Formula(maxima=(tuple(distinct),))
        for formula in distinct:
            if any(other.exceeds(formula) for other in kept):
                continue
            kept = [other for other in kept if not formula.exceeds(other)]
            kept.append(formula)
        if not kept:
            return Formula()
        return kept[0] if len(kept) == 1 else Formula(maxima=(tuple(kept),))

    def __add__(self, other: Formula) -> Formula:
        """Add two formulas."""
        return Formula.sum((self, other))

    def __mul__(self, factor: Monomial) -> Formula:
        """Multiply by a positive monomial."""
        return Formula(
            _combine(term * factor for term in self.terms),
            tuple(tuple(option * factor for option in options) for options in self.maxima),
        )

    def __truediv__(self, divisor: Monomial) -> Formula:
        """Divide by a positive monomial."""
        return self * (Monomial() / divisor)

    def __bool__(self) -> bool:
        """Say whether there is anything but zero."""
        return bool(self.terms or self.maxima)

    def exceeds(self, other: Formula) -> bool:
        """Say whether this is at least as large whatever the (positive) sizes are.

        Judged term by term, so that False only means that it could not be shown.
        """
        if self == other:
            return True
        if other.maxima and other.maxima != self.maxima:
            return False
        mine = {term.powers: term.coefficient for term in self.terms}
        if not all(t.coefficient <= mine.get(t.powers, 0) for t in other.terms):
            return False
        theirs = {term.powers for term in other.terms}
        return all(t.coefficient >= 0 or t.powers in theirs for t in self.terms)

    def substitute(self, values: Mapping[str, Fraction]) -> Formula:
        """Put numbers in place of names; a composite changes only as a whole."""

        def replaced(term: Monomial) -> Monomial:
            coefficient = term.coefficient
            left: list[tuple[str, int]] = []
            for name, power in term.powers:
                value = monomial_value(Monomial.of(name), values)
                if value is None:
                    left.append((name, power))
                else:
                    coefficient *= value**power
            return Monomial(coefficient, tuple(left))

        return Formula(
            _combine(replaced(term) for term in self.terms),
            tuple(tuple(o.substitute(values) for o in options) for options in self.maxima),
        )

    def value(self, known: Mapping[str, Fraction]) -> Fraction | None:
        """Give the number that it comes to, or None where a size is not known."""
        total = Fraction(0)
        for term in self.terms:
            number = monomial_value(term, known)
            if number is None:
                return None
            total += number
        for options in self.maxima:
            numbers = [option.value(known) for option in options]
            if any(number is None for number in numbers):
                return None
            total += max(number for number in numbers if number is not None)
        return total

    @property
    def names(self) -> frozenset[str]:
        """Every plain name that it uses."""
        own = {part for term in self.terms for name, _ in term.powers for part in parts(name)}
        return frozenset(own).union(*(o.names for options in self.maxima for o in options))

    def __str__(self) -> str:
        """Print as sympy reads it: `4*B*D/X + Max(2*D*F, 2*B*F)`; zero is `0`."""
        # a term of positive sign first, so that a difference does not begin with its minus
        ordered = sorted(self.terms, key=lambda term: term.coefficient < 0)
        pieces = [monomial_text(term) for term in ordered]
        pieces.extend(f"Max({', '.join(map(str, options))})" for options in self.maxima)
        if not pieces:
            return "0"
        text = pieces[0]
        for piece in pieces[1:]:
            text += f" - {piece[1:]}" if piece.startswith("-") else f" + {piece}"
        return text

    def sympy(self) -> Any:
        """Give it as a sympy expression over positive symbols."""
        import sympy  # noqa: PLC0415  (costs as much as everything else together)

        def name(text: str) -> Any:
            return sympy.Add(*(sympy.Symbol(part, positive=True) for part in parts(text)))

        def term(monomial: Monomial) -> Any:
            number = monomial.coefficient
            return sympy.Mul(
                sympy.Rational(number.numerator, number.denominator),
                *(name(n) ** power for n, power in monomial.powers),
            )

        return sympy.Add(
            *(term(monomial) for monomial in self.terms),
            *(sympy.Max(*(option.sympy() for option in options)) for options in self.maxima),
        )


def _flat(formulas: Iterable[Formula]) -> Iterable[Formula]:
    """Open the maxima that stand alone: the maximum of a maximum is one maximum."""
    for formula in formulas:
        if not formula.terms and len(formula.maxima) == 1:
            yield from formula.maxima[0]
        else:
            yield formula


def common_factor(terms: Iterable[Monomial]) -> Monomial:
    """Give the largest monomial that divides all terms into integers times names.

    After the division every power is at least zero and the coefficients share no factor.
    """
    listed = list(terms)
    found: dict[str, list[int]] = {}
    for term in listed:
        for name, power in term.powers:
            found.setdefault(name, []).append(power)
    powers = {
        name: min(own) if len(own) == len(listed) else min(0, *own) for name, own in found.items()
    }
    top = gcd(*(abs(term.coefficient.numerator) for term in listed))
    bottom = lcm(*(term.coefficient.denominator for term in listed))
    return Monomial(
        Fraction(top or 1, bottom), tuple(sorted((n, p) for n, p in powers.items() if p))
    )
