"""What data a program is tried on: random, of both signs, and of magnitudes that keep its sums near 1."""

from __future__ import annotations

import math
from collections.abc import Mapping

from shardlang.ir.ops import Einsum
from shardlang.ir.program import Program
from shardlang.ir.types import Dim

LONG_SUM = 32
"""Up to so many terms a sum of values near 1 is near enough to 1, unless layers repeat it."""


def scales(program: Program, sizes: Mapping[Dim, int]) -> dict[str, float]:
    """Give leaves that are multiplied in long sums a magnitude that keeps the sums near 1.

    It is a power of 2 near 1/sqrt(n) for the longest sum of n terms; else a softmax of such sums
    would be all 0 and 1, and rounding would decide which. In a block every sum is long: each layer would
    make its values larger by the same factor.
    """
    floats = {x.array.name for x in program.leaves if x.array.tensor.dtype.kind == "float"}
    found: dict[str, float] = {}
    for statement in program.statements:
        if statement.section != "forward" or not isinstance(statement.op, Einsum):
            continue
        terms = math.prod(sizes[dim] for dim in statement.op.contracted)
        names = [use.tensor.name for use in statement.operands if use.tensor.name in floats]
        if names and terms > (LONG_SUM if statement.block is None else 1):
            scale = 2.0 ** -round(math.log2(terms) / 2)
            found[names[-1]] = min(found.get(names[-1], 1.0), scale)
    return found
