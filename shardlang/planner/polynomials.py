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
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from itertools import count, product
from math import lcm, prod

import numpy as np

from shardlang.cost.formula import Formula
from shardlang.ir.size import Monomial

Powers = tuple[tuple[str, int], ...]
"""Names with their exponents, sorted, none of them zero."""

Rows = list[list[int]]
"""The coefficients of several sums in the same products."""

SPLITS = 3
"""How many of its least sizes an axis is taken at one by one in a proof."""

DEGREE = 2
"""Up to which power of each axis the weights of a proof go."""

LARGEST = 12_000
"""The largest table that a proof tries: columns times rows."""

EFFORT = 600_000
"""The sum of the tables that all proofs for one answer try."""

PATIENCE = 60
"""Pivots that take what gains most before those that can't go in circles."""


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
            total += coefficient * prod(Fraction(sizes[name]) ** n for name, n in powers)
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
    effort: list[int] = field(default_factory=lambda: [EFFORT], compare=False)
    """What is left to spend on proofs."""

    def never_negative(self, value: Polynomial) -> bool:
        """Say whether a sum is proven to be at least zero; False only means that it isn't shown."""
        return self._cases([value], lambda rows, _: min(rows[0], default=0) >= 0)

    def positive(self, value: Polynomial) -> bool:
        """Say whether a sum is proven to be above zero; False only means that it isn't shown."""
        return self._cases([value], lambda rows, _: min(rows[0]) >= 0 and rows[0][0] > 0)

    def some_positive(self, sums: Sequence[Polynomial], others: Sequence[Polynomial] = ()) -> bool:
        """Say whether it is proven that none of some sums can be below zero unless another is above.

        That is, not all `sums` are negative where all `others` are positive, or zero. The proof are
        weights, themselves sums of products of axes, with which `others` and the negated `sums` add up
        to no more than zero; False only means that none were found.
        """
        every = [*(-each for each in sums), *others]
        for degree in range(DEGREE + 1 if self.axes else 1):
            if self._cases(every, lambda rows, n: self._weighted(rows, n, len(sums)), degree):
                return True
        return False

    def _cases(
        self, sums: Sequence[Polynomial], test: Callable[[Rows, int], bool], degree: int = 0
    ) -> bool:
        """Say whether a test holds, in as many cases as it takes for all sizes.

        The constant coefficients come first.
        The test gets the coefficients of the sums, each times every product of the axes' excess up to
        a degree, and how many those are; all times one positive factor, in quantities that are never
        negative.
        """
        factor = cleared(sums)
        factored = [each * factor for each in sums]

        def holds(low: Mapping[str, int], fixed: Mapping[str, int]) -> bool:
            if test(*self._rows(factored, low, fixed, degree)):
                return True
            axis = min((a for a in low if low[a] < 2 + SPLITS), key=lambda a: low[a], default=None)
            if axis is None:
                return False
            rest = {a: n for a, n in low.items() if a != axis}
            if not holds(rest, {**fixed, axis: low[axis]}):
                return False
            return holds({**low, axis: low[axis] + 1}, fixed)

        return holds(dict.fromkeys(self.axes, 2), {})

    def _rows(
        self,
        sums: Sequence[Polynomial],
        low: Mapping[str, int],
        fixed: Mapping[str, int],
        degree: int,
    ) -> tuple[Rows, int]:
        axes = {a: Polynomial({(): Fraction(n), ((a, 1),): Fraction(1)}) for a, n in low.items()}
        axes |= {a: Polynomial.of(n) for a, n in fixed.items()}
        one = self.devices.replaced(axes)
        dims = {d: one * Polynomial({(): Fraction(1), ((d, 1),): Fraction(1)}) for d in self.dims}
        powers = product(*([(a, n) for n in range(degree + 1)] for a in sorted(low)))
        times = [Polynomial({tuple((a, n) for a, n in each if n): Fraction(1)}) for each in powers]
        shifted = [own * t for each in sums for own in [each.replaced(axes | dims)] for t in times]
        places = sorted({powers for each in shifted for powers in each.terms} | {()})
        over = lcm(*(v.denominator for each in shifted for v in each.terms.values()))
        rows = [[int(each.terms.get(p, 0) * over) for p in places] for each in shifted]
        return rows, len(times)

    def _weighted(self, rows: Rows, steps: int, required: int) -> bool:
        """Find weights with which sums add up to at most zero; some constants have to be above."""
        size = len(rows) * len(rows[0])
        self.effort[0] -= size
        if size > LARGEST or self.effort[0] < 0:
            return False
        columns = [
            [*row, -1 if not i % steps and i < required * steps else 0]
            for i, row in enumerate(rows)
        ]
        return combination(columns, [0] * len(rows[0]) + [-1])


def combination(columns: Sequence[Sequence[int]], bound: Sequence[int]) -> bool:
    """Say whether some weights, none negative, add columns up to at most a bound, exactly.

    That is the first phase of the simplex method on whole numbers, pivots dividing out as in Edmonds'
    and Bareiss's eliminations: minimise by how much the bound is exceeded.
    """
    many = len(columns)
    rows = {
        (*(column[r] for column in columns), -1, bound[r])
        for r in range(len(bound))
        if bound[r] < 0 or any(column[r] > 0 for column in columns)
    }
    if all(row[-1] >= 0 for row in rows):
        return True
    # the excess stands behind the columns, the goal below the rows
    goal = [0] * many + [1, 0]
    table = np.array([*sorted(rows), goal], dtype=object)
    basic = [many + 1 + r for r in range(len(rows))]
    free = list(range(many + 1))
    scale = 1

    def pivot(row: int, column: int) -> None:
        nonlocal table, scale
        own = table[row, column]
        line, sides = table[row].copy(), -table[:, column]
        table = (table * own + np.outer(sides, line)) // scale
        table[row], table[:, column] = line, sides
        table[row, column], scale = scale, own
        if scale < 0:
            table, scale = -table, -scale
        basic[row], free[column] = free[column], basic[row]

    pivot(int(np.argmin(table[:-1, -1])), many)
    for step in count():
        if table[-1, -1] >= 0:
            return True
        gains = [c for c in range(many + 1) if table[-1, c] < 0]
        if not gains:
            return False
        if step < PATIENCE:
            entering = min(gains, key=lambda c: table[-1, c])
        else:
            entering = min(gains, key=lambda c: free[c])
        ratios = [
            (Fraction(table[r, -1], table[r, entering]), basic[r], r)
            for r in range(len(basic))
            if table[r, entering] > 0
        ]
        if not ratios:
            return False
        pivot(min(ratios)[2], entering)
    raise AssertionError
