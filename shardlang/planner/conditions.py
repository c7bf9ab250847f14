"""When one formula is less than another, solved for a size and printed: `J/X < K < J*(1 - 1/X)`.

A difference of two costs is factored, what is positive for all sizes assumed goes, and what is left is
solved for a dim that it is linear in. Conditions are strict: on a boundary both sides cost the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import sympy

from shardlang.planner.polynomials import Assumed, Polynomial


@dataclass(frozen=True)
class Bound:
    """A size is less than a side, or more (`above`); or, with no size, `low` is less than `high`."""

    size: str | None
    above: bool
    low: Any
    high: Any

    @property
    def relation(self) -> Any:
        """Give it as a sympy relation."""
        return sympy.StrictGreaterThan(self.high, self.low) if self.above else self.low < self.high


class Boundary:
    """A sum that is asked to be positive, without its factors that always are."""

    def __init__(self, difference: Polynomial, assumed: Assumed) -> None:
        """Factor it and settle the signs that can be."""
        self.assumed = assumed
        top, _ = sympy.fraction(sympy.together(difference.formula.sympy()))
        number, factors = sympy.Poly(top).factor_list() if top.free_symbols else (top, [])
        sign = 1 if number > 0 else -1
        left = sympy.Integer(1)
        for found, power in factors:
            factor = found.as_expr()
            own = plain(factor)
            if assumed.never_negative(own):
                continue
            if assumed.never_negative(-own):
                sign *= (-1) ** power
            else:
                left *= factor**power
        self.left = sympy.expand(sign * left)

    def bound(self, name: str) -> Bound | None:
        """Solve for a size, or give None where it is not linear in it, or of unknown sign."""
        symbol = sympy.Symbol(name, positive=True)
        if not self.left.has(symbol):
            return None
        poly = sympy.Poly(self.left, symbol)
        if poly.degree() != 1:
            return None
        slope, rest = poly.all_coeffs()
        side = tidy(-rest / slope, self.assumed.axes)
        if self.assumed.positive(plain(slope)):
            return Bound(name, above=True, low=side, high=symbol)
        if self.assumed.positive(plain(-slope)):
            return Bound(name, above=False, low=symbol, high=side)
        return None

    @property
    def plain(self) -> Bound:
        """Leave it unsolved: the negative terms are less than the positive ones."""
        terms = sympy.Add.make_args(self.left)
        negative = [-term for term in terms if term.could_extract_minus_sign()]
        positive = [term for term in terms if not term.could_extract_minus_sign()]
        return Bound(None, above=False, low=sympy.Add(*negative), high=sympy.Add(*positive))


def plain(expression: Any) -> Polynomial:
    """Read a sympy polynomial."""
    symbols = sorted(expression.free_symbols, key=str)
    if not symbols:
        return Polynomial.of(Fraction(int(expression.p), int(expression.q)))
    return Polynomial(
        {
            tuple((str(s), int(n)) for s, n in zip(symbols, powers, strict=True) if n): Fraction(
                int(value.p), int(value.q)
            )
            for powers, value in sympy.Poly(expression, *symbols).terms()
        }
    )


def tidy(expression: Any, axes: Sequence[str]) -> Any:
    """Write products in front, and in brackets each term over its own part of the axes below."""
    top, bottom = sympy.fraction(sympy.factor(sympy.together(expression)))
    below: dict[Any, int] = {}
    over = sympy.Integer(1)
    for factor in sympy.Mul.make_args(bottom):
        base, power = factor.as_base_exp()
        if str(base) in axes:
            below[base] = int(power)
        else:
            over *= factor
    made: list[Any] = []
    factors = list(sympy.Mul.make_args(top))
    sums = [i for i, factor in enumerate(factors) if factor.is_Add]
    if sums and factors[0].is_Number and factors[0] < 0:
        factors[0], factors[sums[0]] = -factors[0], sympy.expand(-factors[sums[0]])
    for factor in factors:
        base, power = factor.as_base_exp()
        if not base.is_Add:
            made.append(factor)
            continue
        for symbol in list(below):
            degree = sympy.degree(base, symbol) if base.has(symbol) else 0
            if degree and below[symbol] >= degree * power:
                below[symbol] -= int(degree * power)
                base = sympy.expand(base / symbol**degree)
        made.append(base**power)
    rest = sympy.Mul(*(symbol**-power for symbol, power in below.items()))
    return sympy.Mul(*made, rest, sympy.Pow(over, -1))


def common_size(boundaries: Sequence[Boundary], names: Sequence[str]) -> str | None:
    """Give the first size that all boundaries can be solved for."""
    return next((n for n in names if all(b.bound(n) is not None for b in boundaries)), None)


def condition(boundaries: Sequence[Boundary], names: Sequence[str]) -> tuple[Any, tuple[str, ...]]:
    """Give when all boundaries hold, as a sympy expression and as texts to be joined by `and`.

    As many as can be are solved for one size: of the names that most can be solved for, the one that
    gives the shortest conditions.
    """
    solved = {name: [boundary.bound(name) for boundary in boundaries] for name in names}

    def worth(name: str) -> tuple[int, int]:
        found = [bound for bound in solved[name] if bound is not None]
        return len(found), -sum(sympy.count_ops(bound.relation) for bound in found)

    most = max(names, key=worth, default=None)
    order = list(names) if most is None else [most, *names]
    bounds = [
        next((solved[name][i] for name in order if solved[name][i] is not None), None)
        or boundary.plain
        for i, boundary in enumerate(boundaries)
    ]
    return sympy.And(*(bound.relation for bound in bounds)), tuple(_chained(bounds))


def _chained(bounds: Sequence[Bound]) -> list[str]:
    """Print bounds, those of one size from both sides as one."""
    texts: list[str] = []
    left = list(bounds)
    while left:
        bound = left.pop(0)
        if bound.size is None:
            texts.append(f"{bound.low} < {bound.high}")
            continue
        other = next((b for b in left if b.size == bound.size and b.above != bound.above), None)
        if other is not None:
            left.remove(other)
            lower, upper = (bound, other) if bound.above else (other, bound)
            texts.append(f"{lower.low} < {bound.size} < {upper.high}")
        elif bound.above:
            texts.append(f"{bound.size} > {bound.low}")
        else:
            texts.append(f"{bound.size} < {bound.high}")
    return texts
