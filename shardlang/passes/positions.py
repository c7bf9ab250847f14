"""Places along a dim that a narrow float can't tell apart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from shardlang.frontend.expression_errors import RoundedPlaces
from shardlang.ir.ops import Divide, Einsum, Linear, Map
from shardlang.ir.program import Program, Statement

EXACT: Mapping[str, int] = {"f8e4m3": 2**4, "f8e5m2": 2**3, "bf16": 2**8, "f16": 2**11}
"""Up to where each float has all whole numbers: one bit more than its fraction."""


def rounded_places(program: Program) -> Iterator[tuple[Statement, RoundedPlaces]]:
    """Give the lines that compute with the places along a longer dim than their result's dtype can count."""
    places = {leaf.array.tensor for leaf in program.leaves if leaf.kind == "index"}
    for statement in program.statements:
        exact = EXACT.get(statement.result.dtype.name)
        if exact is None or not isinstance(statement.op, Einsum | Linear | Divide | Map):
            continue
        for tensor in (use.tensor for use in statement.operands):
            size = program.sizes.known.get(tensor.dims[0].name) if tensor in places else None
            if size is not None and size > exact:
                result = statement.result
                dims = ", ".join(dim.name for dim in result.dims)
                mistake = RoundedPlaces(
                    tensor.name, size, result.name, result.dtype.name, exact, dims
                )
                yield statement, mistake
                break
