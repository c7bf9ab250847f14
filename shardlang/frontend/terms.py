"""What a part of an expression stands for while its line is read: before it gets a name.

A sum stays open, so that `A + B - 2*C + 1` becomes one statement; a product of `*` stays open, so
that a chain of them does; an operation stays open until it is known what its result is called.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Literal

from shardlang.frontend.names import Brackets
from shardlang.frontend.values import union
from shardlang.ir.ops import AllGather, Coefficient, Compute
from shardlang.ir.program import Use
from shardlang.ir.types import Axis, Dim, Layout
from shardlang.source import Span

ONE = Coefficient()


@dataclass(frozen=True, slots=True)
class Want:
    """What the declared result says about a part: which dims it keeps, and how they lie.

    `chain` marks an operand of a `·`: its dims are not the result's, so that it gets no hint.
    `hints` is off where a stated collective stands between a part and the result.
    """

    axes: Mapping[Dim, tuple[Axis, ...]]
    chain: bool = False
    hints: bool = True

    @staticmethod
    def of(brackets: Brackets | None) -> Want | None:
        """Read it off a result's brackets."""
        if brackets is None:
            return None
        return Want(dict(zip(brackets.dims, brackets.axes, strict=True)))

    def inside(self) -> Want:
        """Give what is wanted of an operand of a `·`."""
        return replace(self, chain=True)

    def hint(self, dims: tuple[Dim, ...]) -> Layout | None:
        """Give the layout that the result would like a part with these dims to have."""
        return (
            None
            if self.chain or not self.hints
            else Layout(tuple(self.axes.get(dim, ()) for dim in dims))
        )


@dataclass(frozen=True, slots=True)
class Number:
    """A number with sizes: `2`, `1/|B|`, `sqrt(|D|)`."""

    scalar: Coefficient
    span: Span


@dataclass(frozen=True, slots=True)
class Sum:
    """Scaled operands added up, and a constant."""

    terms: tuple[tuple[Coefficient, Use], ...]
    constant: Fraction
    span: Span

    @property
    def atom(self) -> Use | None:
        """The operand, where it stands alone."""
        match self.terms:
            case ((scalar, use),) if scalar == ONE and not self.constant:
                return use
            case _:
                return None

    @property
    def dims(self) -> tuple[Dim, ...]:
        """The dims of the whole."""
        return union(use for _, use in self.terms)


@dataclass(frozen=True, slots=True)
class Pending:
    """An operation whose result has no name yet.

    `implied` are the dims that it sums over for no other reason than that the result lacks them.
    """

    op: Compute
    operands: tuple[Use, ...]
    dims: tuple[Dim, ...]
    span: Span
    keep_unreduced: bool = False
    name: str | None = None
    operator: Span | None = None
    implied: tuple[Dim, ...] = ()


@dataclass(frozen=True, slots=True)
class Factors:
    """An open product of `*` or of `⊙`, times a number."""

    kind: Literal["star", "hadamard"]
    factors: tuple[Use, ...]
    span: Span
    scale: Coefficient = field(default=ONE)


@dataclass(frozen=True, slots=True)
class Arriving:
    """An operand of a product whose shards go round; `keep` says that it is whole in the end."""

    use: Use
    move: AllGather
    keep: bool
    span: Span


Value = Number | Sum | Pending | Factors | Arriving
"""What a part of an expression may be."""


def just(use: Use) -> Sum:
    """Give an operand that stands alone."""
    return Sum(((ONE, use),), Fraction(0), use.span)
