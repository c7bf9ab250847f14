"""Formulas: sums of monomials and of maxima, printed as sympy reads them.

Everything that a report says is of the form `2*D*F/Y + Max(…, …)`, so no computer algebra is needed
to add, compare and print it: sympy is imported when an expression is asked for, and not before.

A factor in a monomial may be an *atom* instead of a name: a sum in brackets (`(M_X + M_Y)`), which the
bandwidth of a collective over several axes divides by, or a product rounded down (`floor(X/2)`),
which counts hops, or the smaller of two (`Min(X, 8)`), which is what of an axis lies in a node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import floor, gcd, lcm
from typing import Any, Self

from shardlang.ir.size import Monomial

Powers = tuple[tuple[str, int], ...]
PRUNED = 50


class Atom(str):
    """A factor that is no plain name; as text it is what sympy reads, and equal texts are equal."""

    __slots__ = ("inside",)
    inside: tuple[Monomial, ...]

    def __new__(cls, text: str, inside: tuple[Monomial, ...]) -> Self:
        """Make it of its text and the products in it."""
        atom = super().__new__(cls, text)
        atom.inside = inside
        return atom

    def __getnewargs__(self) -> tuple[str, tuple[Monomial, ...]]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Say how it is made again, for pickle."""
        return str(self), self.inside

    @property
    def names(self) -> tuple[str, ...]:
        """The plain names in it."""
        return tuple(
            part for term in self.inside for name, _ in term.powers for part in parts(name)
        )

    def value(self, known: Mapping[str, Fraction]) -> Fraction | None:
        """Give the number that it comes to, or None where a name is not known."""
        values = [monomial_value(term, known) for term in self.inside]
        if any(value is None for value in values):
            return None
        return self.number(value for value in values if value is not None)

    def number(self, values: Iterable[Fraction]) -> Fraction:
        """Give the number for the numbers of what is inside."""
        raise NotImplementedError

    def made(self, inside: Sequence[Monomial]) -> Monomial:
        """Give the same of other products."""
        raise NotImplementedError


class Sum(Atom):
    """The sum of some products: `(M_X + M_Y)`."""

    __slots__ = ()

    @staticmethod
    def of(terms: Iterable[Monomial]) -> Monomial:
        """Give the sum as one product: the number common to all, times the sum; or its only term."""
        found: dict[Powers, Fraction] = {}
        for term in terms:
            found[term.powers] = found.get(term.powers, Fraction(0)) + term.coefficient
        whole = common_number(found.values())
        inside = tuple(Monomial(c / whole, powers) for powers, c in found.items())
        if len(inside) == 1:
            return inside[0] * whole
        text = f"({' + '.join(map(monomial_text, inside)).replace('+ -', '- ')})"
        return Monomial(whole, ((Sum(text, inside), 1),))

    def number(self, values: Iterable[Fraction]) -> Fraction:
        """Add up."""
        return sum(values, Fraction(0))

    def made(self, inside: Sequence[Monomial]) -> Monomial:
        """Give the sum of other products."""
        return Sum.of(inside)


class Floor(Atom):
    """The largest integer that is no larger than a product: `floor(X/2)`."""

    __slots__ = ()

    @staticmethod
    def of(term: Monomial) -> Monomial:
        """Round a product down; a number is rounded at once."""
        if term.number is not None:
            return Monomial(Fraction(floor(term.number)))
        return Monomial(Fraction(1), ((Floor(f"floor({monomial_text(term)})", (term,)), 1),))

    def number(self, values: Iterable[Fraction]) -> Fraction:
        """Round down."""
        (value,) = values
        return Fraction(floor(value))

    def made(self, inside: Sequence[Monomial]) -> Monomial:
        """Round another product down."""
        return Floor.of(inside[0])


class Min(Atom):
    """The smaller of two products: `Min(X, 8)`."""

    __slots__ = ()

    @staticmethod
    def of(left: Monomial, right: Monomial) -> Monomial:
        """Give the smaller; of two numbers at once."""
        if left.number is not None and right.number is not None:
            return min(left, right, key=lambda term: term.coefficient)
        text = f"Min({monomial_text(left)}, {monomial_text(right)})"
        return Monomial(Fraction(1), ((Min(text, (left, right)), 1),))

    def number(self, values: Iterable[Fraction]) -> Fraction:
        """Give the smaller."""
        return min(values)

    def made(self, inside: Sequence[Monomial]) -> Monomial:
        """Give the smaller of other products."""
        return Min.of(inside[0], inside[1])


def parts(name: str) -> tuple[str, ...]:
    """Give the plain names in a factor; a plain name is its own only part."""
    return name.names if isinstance(name, Atom) else (name,)


def common_number(numbers: Iterable[Fraction]) -> Fraction:
    """Give the largest number that divides all of the numbers into integers without a common factor."""
    listed = list(numbers)
    top = gcd(*(abs(number.numerator) for number in listed))
    return Fraction(top or 1, lcm(*(number.denominator for number in listed)))


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
        if factor is None and isinstance(name, Atom):
            factor = name.value(known)
        if factor is None:
            return None
        value = value * factor**power
    return value


def power(monomial: Monomial, exponent: int) -> Monomial:
    """Raise a monomial to a whole power."""
    powers = tuple((name, p * exponent) for name, p in monomial.powers if exponent)
    return Monomial(monomial.coefficient**exponent, powers)


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
        maxima = Counter(options for formula in listed for options in formula.maxima)
        return Formula(
            _combine(term for formula in listed for term in formula.terms),
            tuple(_times(options, Monomial(Fraction(n))) for options, n in maxima.items()),
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
            tuple(_times(options, factor) for options in self.maxima),
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
        """Put numbers in place of names; an atom changes only as a whole."""

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

    def rewrite(self, products: Mapping[str, Monomial]) -> Formula:
        """Put products in place of names, also inside of atoms."""

        def written(term: Monomial) -> Monomial:
            made = Monomial(term.coefficient)
            for name, exponent in term.powers:
                if isinstance(name, Atom):
                    factor = name.made([written(inside) for inside in name.inside])
                else:
                    factor = products.get(name, Monomial.of(name))
                made *= power(factor, exponent)
            return made

        return Formula(
            _combine(written(term) for term in self.terms),
            tuple(tuple(o.rewrite(products) for o in options) for options in self.maxima),
        )

    @property
    def hidden(self) -> frozenset[str]:
        """The plain names inside of atoms: no product of powers says how it depends on them."""
        own = {
            part
            for term in self.terms
            for name, _ in term.powers
            if isinstance(name, Atom)
            for part in name.names
        }
        return frozenset(own).union(*(o.hidden for options in self.maxima for o in options))

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
            match text:
                case Sum():
                    return sympy.Add(*map(term, text.inside))
                case Floor():
                    return sympy.floor(term(text.inside[0]))
                case Min():
                    return sympy.Min(*map(term, text.inside))
                case _:
                    return sympy.Symbol(text, positive=True)

        def term(monomial: Monomial) -> Any:
            number = monomial.coefficient
            return sympy.Mul(
                sympy.Rational(number.numerator, number.denominator),
                *(name(n) ** power for n, power in monomial.powers),
            )

        return sympy.Add(
            *(term(monomial) for monomial in self.terms),
            *(
                sympy.Max(*(option.sympy() for option in options), evaluate=False)
                for options in self.maxima
            ),
        )


def _times(options: tuple[Formula, ...], factor: Monomial) -> tuple[Formula, ...]:
    return options if factor == Monomial() else tuple(option * factor for option in options)


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
    number = common_number(term.coefficient for term in listed)
    return Monomial(number, tuple(sorted((n, p) for n, p in powers.items() if p)))
