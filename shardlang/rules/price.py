"""What a collective moves, in bytes a device, by the book's convention (interface: what `bytes` means).

With V the local size of the array gathered over the axes in question: AllGather V (its result),
ReduceScatter V (its operand), AllReduce 2V, AllToAll V/4 with V the operand times the axes' size,
Permute the local operand. Slices and masks move nothing.
"""

from __future__ import annotations

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


def condition(cheaper: Monomial, than: Monomial) -> str:
    """Print when one product of sizes is less than another, cancelled: `2*K < J`."""
    ratio = cheaper / than
    top = Monomial(
        Fraction(ratio.coefficient.numerator), tuple((n, p) for n, p in ratio.powers if p > 0)
    )
    bottom = Monomial(
        Fraction(ratio.coefficient.denominator), tuple((n, -p) for n, p in ratio.powers if p < 0)
    )
    return f"{top} < {bottom}"
