"""Exact sums of products of sizes, and proofs that one is never less than another.

A price list answers in numbers made of what it is given by `+ - * /`; given `Polynomial`s it answers
in formulas. Powers may be negative, as in `1 - 1/X`.

What is assumed of the sizes (`Assumed`): an axis of symbolic size has a size of at least 2, and a dim
of symbolic size is a multiple of the number of devices. Written in what an axis has above its least
size, and a dim above one per device, a sum with no negative coefficient is never negative: that is how
every claim about all sizes is proven here. An axis may be taken at its least sizes one by one where
that does not show it at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from math import gcd, lcm

from shardlang.cost.formula import Formula
from shardlang.ir.size import Monomial

Powers = tuple[tuple[str, int], ...]
"""Names with their exponents, sorted, none of them zero."""

SPLITS = 3
"""How many of its least sizes an axis is taken at one by one in a proof."""


class Polynomial:
    """A sum of products of names with exact coefficients; immutable, equal if equal term by term."""

    __slots__ = ("terms",)

    def __init__(self, terms: Mapping[Powers, Fraction]) -> None:
        """Take coefficients by powers; zeros are left out."""
        self.terms = {powers: value for powers, value in terms.items() if value}

    @staticmethod
    def of(value: Polynomial | Monomial | int | Fraction) -> Polynomial:
        """Give a number or a product of sizes as a sum."""
        match value:
            case Polynomial():
                return value
            case Monomial(coefficient, powers):
                return Polynomial({powers: coefficient})
            case _:
                return Polynomial({(): Fraction(value)})

    def __eq__(self, other: object) -> bool:
        """Compare term by term."""
        if isinstance(other, int | Fraction):
            other = Polynomial.of(other)
        return isinstance(other, Polynomial) and self.terms == other.terms

    def __hash__(self) -> int:
        """Agree with equality."""
        return hash(frozenset(self.terms.items()))

    def __add__(self, other: Polynomial | int | Fraction) -> Polynomial:
        """Add term by term."""
        found = dict(self.terms)
        for powers, value in Polynomial.of(other).terms.items():
            found[powers] = found.get(powers, Fraction(0)) + value
        return Polynomial(found)

    __radd__ = __add__

    def __neg__(self) -> Polynomial:
        """Turn every sign."""
        return Polynomial({powers: -value for powers, value in self.terms.items()})

    def __sub__(self, other: Polynomial | int | Fraction) -> Polynomial:
        """Subtract term by term."""
        return self + -Polynomial.of(other)

    def __rsub__(self, other: int | Fraction) -> Polynomial:
        """Subtract from a number."""
        return -self + other

    def __mul__(self, other: Polynomial | int | Fraction) -> Polynomial:
        """Multiply out."""
        found: dict[Powers, Fraction] = {}
        for theirs, factor in Polynomial.of(other).terms.items():
            for mine, value in self.terms.items():
                powers = _joined(mine, theirs)
                found[powers] = found.get(powers, Fraction(0)) + value * factor
        return Polynomial(found)

    __rmul__ = __mul__

    def __truediv__(self, other: Polynomial | int | Fraction) -> Polynomial:
        """Divide by a number or a single product; raises TypeError for a sum."""
        other = Polynomial.of(other)
        if len(other.terms) != 1:
            raise TypeError("a sum of sizes can't be divided by")
        [(powers, value)] = other.terms.items()
        return self * Polynomial({tuple((name, -power) for name, power in powers): 1 / value})

    def __rtruediv__(self, other: int | Fraction) -> Polynomial:
        """Divide a number by a single product."""
        return Polynomial.of(other) / self

    def __bool__(self) -> bool:
        """Say whether there is anything but zero."""
        return bool(self.terms)

    @property
    def names(self) -> frozenset[str]:
        """Every name that occurs."""
        return frozenset(name for powers in self.terms for name, _ in powers)

    def replaced(self, values: Mapping[str, Polynomial]) -> Polynomial:
        """Put sums in place of names; those with negative powers take single products alone."""

        @cache
        def power(name: str, exponent: int) -> Polynomial:
            if exponent < 0:
                return 1 / power(name, -exponent)
            return Polynomial.of(1) if not exponent else power(name, exponent - 1) * values[name]

        total = Polynomial({})
        for powers, value in self.terms.items():
            left = tuple((name, n) for name, n in powers if name not in values)
            product = Polynomial({left: value})
            for name, exponent in powers:
                if name in values:
                    product *= power(name, exponent)
            total += product
        return total

    def value(self, sizes: Mapping[str, int]) -> Fraction:
        """Give the number at sizes for all names."""
        total = Fraction(0)
        for powers, coefficient in self.terms.items():
            for name, exponent in powers:
                coefficient *= Fraction(sizes[name]) ** exponent
            total += coefficient
        return total

    @property
    def formula(self) -> Formula:
        """Give it as a formula that prints."""
        return Formula.of(*(Monomial(value, powers) for powers, value in self.terms.items()))


@cache
def _joined(left: Powers, right: Powers) -> Powers:
    found = dict(left)
    for name, power in right:
        found[name] = found.get(name, 0) + power
    return tuple(sorted((name, power) for name, power in found.items() if power))


def cleared(sums: Iterable[Polynomial]) -> Polynomial:
    """Give the product of names that takes all negative powers out of some sums."""
    least: dict[str, int] = {}
    for each in sums:
        for powers in each.terms:
            for name, power in powers:
                least[name] = min(least.get(name, 0), power)
    return Polynomial({tuple(sorted((n, -p) for n, p in least.items() if p)): Fraction(1)})


@dataclass(frozen=True)
class Assumed:
    """What is assumed of sizes left open: `devices` divides each of the dims, axes are at least 2."""

    axes: tuple[str, ...]
    dims: tuple[str, ...]
    devices: Polynomial

    def never_negative(self, value: Polynomial) -> bool:
        """Say whether a sum is proven to be at least zero; False only means that it isn't shown."""
        return self.proven([value], lambda rows: all(x >= 0 for x in rows[0]))

    def proven(self, sums: Sequence[Polynomial], test: Callable[[list[list[int]]], bool]) -> bool:
        """Say whether a test of coefficients holds, in as many cases as it takes for all sizes.

        The test gets the coefficients of all sums, times one positive factor, in quantities that are
        never negative.
        """
        sums = [each * cleared(sums) for each in sums]
        return self._cases(sums, test, dict.fromkeys(self.axes, 2), {})

    def _cases(
        self,
        sums: Sequence[Polynomial],
        test: Callable[[list[list[int]]], bool],
        low: Mapping[str, int],
        fixed: Mapping[str, int],
    ) -> bool:
        if test(self._rows(sums, low, fixed)):
            return True
        axis = min((a for a in low if low[a] < 2 + SPLITS), key=lambda a: low[a], default=None)
        if axis is None:
            return False
        rest = {a: n for a, n in low.items() if a != axis}
        if not self._cases(sums, test, rest, {**fixed, axis: low[axis]}):
            return False
        return self._cases(sums, test, {**low, axis: low[axis] + 1}, fixed)

    def _rows(
        self, sums: Sequence[Polynomial], low: Mapping[str, int], fixed: Mapping[str, int]
    ) -> list[list[int]]:
        axes = {a: Polynomial({(): Fraction(n), ((a, 1),): Fraction(1)}) for a, n in low.items()}
        axes |= {a: Polynomial.of(n) for a, n in fixed.items()}
        one = self.devices.replaced(axes)
        dims = {d: one * Polynomial({(): Fraction(1), ((d, 1),): Fraction(1)}) for d in self.dims}
        shifted = [each.replaced(axes | dims) for each in sums]
        places = sorted({powers for each in shifted for powers in each.terms})
        over = lcm(*(v.denominator for each in shifted for v in each.terms.values()))
        return [[int(each.terms.get(p, 0) * over) for p in places] for each in shifted]


def combination(columns: Sequence[Sequence[int]], bound: Sequence[int]) -> bool:
    """Say whether some weights, none negative, add columns up to at most a bound, exactly.

    That is the first phase of the simplex method, with Bland's rule, on whole numbers: minimise by
    how much the bound is exceeded.
    """
    many = len(columns)
    rows = {
        (*(column[r] for column in columns), bound[r])
        for r in range(len(bound))
        if bound[r] < 0 or any(column[r] > 0 for column in columns)
    }
    if all(row[-1] >= 0 for row in rows):
        return True
    # the excess stands behind the columns, slacks are numbered after it
    tableau = [[*map(Fraction, row[:-1]), Fraction(-1), Fraction(row[-1])] for row in sorted(rows)]
    basic = [many + 1 + r for r in range(len(tableau))]
    free = list(range(many + 1))
    goal = [*(Fraction(0) for _ in range(many)), Fraction(1), Fraction(0)]

    def pivot(row: int, column: int) -> None:
        line = tableau[row]
        factor = line[column]
        line[column] = Fraction(1)
        tableau[row] = line = [x / factor for x in line]
        for other in (*(t for r, t in enumerate(tableau) if r != row), goal):
            times = other[column]
            if times:
                other[column] = Fraction(0)
                other[:] = [a - times * b for a, b in zip(other, line, strict=True)]
        basic[row], free[column] = free[column], basic[row]

    pivot(min(range(len(tableau)), key=lambda r: tableau[r][-1]), many)
    while True:
        if goal[-1] >= 0:
            return True
        entering = min((c for c in range(many + 1) if goal[c] < 0), key=lambda c: free[c], default=None)
        if entering is None:
            return False
        ratios = [
            (tableau[r][-1] / tableau[r][entering], basic[r], r)
            for r in range(len(tableau))
            if tableau[r][entering] > 0
        ]
        if not ratios:
            return False
        pivot(min(ratios)[2], entering)


def whole(values: Iterable[Fraction]) -> list[int]:
    """Multiply numbers by one factor so that they are whole and share no divisor."""
    listed = list(values)
    over = lcm(*(value.denominator for value in listed))
    numbers = [int(value * over) for value in listed]
    common = gcd(*numbers) or 1
    return [number // common for number in numbers]
