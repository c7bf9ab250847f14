"""What a collective moves, in bytes a device, by the book's convention (interface: what `bytes` means).

With V the local size of the array gathered over the axes in question: AllGather V (its result),
ReduceScatter V (its operand), AllReduce 2V, AllToAll V/4 with V the operand times the axes' size,
Permute the local operand. Slices and masks move nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from shardlang.ir.ops import (
    AllGather,
    AllReduce,
    AllToAll,
    Mask,
    Permute,
    ReduceScatter,
    Relayout,
    Slice,
)
from shardlang.ir.size import Monomial
from shardlang.ir.types import Array


def book_bytes(op: Relayout, operand: Array, result: Array) -> Monomial:
    """Give the bytes of one relayout as a product of sizes."""
    match op:
        case AllGather():
            return result.local_bytes
        case ReduceScatter():
            return operand.local_bytes
        case AllReduce():
            return operand.local_bytes * 2
        case AllToAll(axes):
            return operand.local_bytes * Monomial.of(*(axis.name for axis in axes)) / 4
        case Permute():
            return operand.local_bytes
        case Slice() | Mask():
            return Monomial(Fraction(0))


@dataclass(frozen=True, slots=True)
class Posynomial:
    """A sum of products of sizes, all of them positive: what several collectives move together."""

    terms: tuple[Monomial, ...] = ()

    @staticmethod
    def of(terms: Iterable[Monomial]) -> Posynomial:
        """Add up terms; those in the same sizes become one."""
        found: dict[tuple[tuple[str, int], ...], Fraction] = {}
        for term in terms:
            found[term.powers] = found.get(term.powers, Fraction(0)) + term.coefficient
        return Posynomial(
            tuple(Monomial(value, powers) for powers, value in sorted(found.items()) if value)
        )

    def evaluate(self, sizes: Mapping[str, int]) -> Posynomial:
        """Substitute the sizes that are known."""
        return Posynomial.of(term.evaluate(sizes) for term in self.terms)

    def without(self, other: Posynomial) -> Posynomial:
        """Take away what another sum has too."""
        theirs = {term.powers: term.coefficient for term in other.terms}
        left = [
            Monomial(term.coefficient - theirs.get(term.powers, Fraction(0)), term.powers)
            for term in self.terms
        ]
        return Posynomial(tuple(term for term in left if term.coefficient > 0))

    def less(self, other: Posynomial, sizes: Mapping[str, int]) -> bool:
        """Say whether a sum is known to be less than another: for all sizes that are left open."""
        left, right = self.evaluate(sizes), other.evaluate(sizes)
        mine, theirs = left.without(right), right.without(left)
        if not mine.terms:
            return bool(theirs.terms)
        if len(mine.terms) == len(theirs.terms) == 1:
            ratio = (mine.terms[0] / theirs.terms[0]).number
            return ratio is not None and ratio < 1
        return False

    def condition(
        self, other: Posynomial, sizes: Mapping[str, int], *, offered: bool
    ) -> str | None:
        """Print when a sum is less than another, with what they share cancelled: `2*K < J`.

        None where it never is. What is offered although the sizes are known says that it is so.
        """
        mine, theirs = self.without(other), other.without(self)
        if not theirs.terms:
            return None
        if not mine.terms:
            return "always"
        common = _common((*mine.terms, *theirs.terms))
        text = " < ".join(
            " + ".join(str(term / common) for term in side.terms) for side in (mine, theirs)
        )
        if self.less(other, sizes):
            return f"{text}, as it is at these sizes" if offered else text
        return None if other.less(self, sizes) else text


def _common(terms: tuple[Monomial, ...]) -> Monomial:
    """Give the largest product of sizes that divides every term, with no size left below the bar."""
    names = sorted({name for term in terms for name, _ in term.powers})
    powers = [min(dict(term.powers).get(name, 0) for term in terms) for name in names]
    top = math.gcd(*(term.coefficient.numerator for term in terms))
    bottom = math.lcm(*(term.coefficient.denominator for term in terms))
    kept = tuple((name, power) for name, power in zip(names, powers, strict=True) if power)
    return Monomial(Fraction(top, bottom), kept)
