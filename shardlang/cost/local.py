"""Sizes of what one device holds, built directly: reports ask for thousands of them."""

from __future__ import annotations

from fractions import Fraction

from shardlang.ir.size import Monomial
from shardlang.ir.types import Array


def local_elements(array: Array, width: int = 8) -> Monomial:
    """Give the elements that one device holds, each counted `width`/8 times."""
    powers = [(dim.name, 1) for dim in array.tensor.dims]
    powers += [(axis.name, -1) for axes in array.layout.sharding for axis in axes]
    return Monomial(Fraction(width, 8), tuple(sorted(powers)))


def local_bytes(array: Array) -> Monomial:
    """Give the bytes that one device holds."""
    return local_elements(array, array.tensor.dtype.bits)
