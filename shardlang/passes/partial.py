"""Which parts of an expression are left as partial sums: the line wants them so, or adds them up.

`back[B, D]{U_Y} = take_E(t, c) ·_J s` wants a partial sum over Y. Where each operation from a part to
the result is linear in the part, the result of the part's partial sums is one of its own, so that
nothing has to be reduced within the line. What is linear is what `rules.local` lets pass.

The terms of a sum that are all partial over an axis are added first, and the sum is reduced, once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shardlang.ir.ops import Compute, Linear
from shardlang.ir.program import Statement
from shardlang.ir.types import Array, Axis, Layout, Tensor
from shardlang.rules.collectives import Illegal
from shardlang.rules.local import partial_rule


def left_partial(statements: Sequence[Statement]) -> dict[str, frozenset[Axis]]:
    """Give the axes over which each part of an expression may be left partial; parts with none are out.

    They are those over which every line that reads the part wants a partial sum that the part's
    partial sums make.
    """
    over: dict[str, frozenset[Axis]] = {}
    for statement in reversed(statements):
        wanted = _wanted(statement, over)
        for tensor in {use.tensor for use in statement.operands}:
            axes = frozenset(axis for axis in wanted if _passes(statement, tensor, axis))
            over[tensor.name] = over.get(tensor.name, axes) & axes
    parts = {statement.result.name for statement in statements if statement.inner}
    return {name: axes for name, axes in over.items() if axes and name in parts}


def terms(statements: Sequence[Statement]) -> frozenset[str]:
    """Name the parts that one line alone reads, and adds to something: what is left of them to the sum."""
    readers: dict[str, list[Statement]] = {}
    for statement in statements:
        for name in {use.tensor.name for use in statement.operands}:
            readers.setdefault(name, []).append(statement)
    parts = (statement.result.name for statement in statements if statement.inner)
    return frozenset(name for name in parts if _added(readers.get(name, ())))


def _added(readers: Sequence[Statement]) -> bool:
    return len(readers) == 1 and isinstance(readers[0].op, Linear) and len(readers[0].operands) > 1


def added_partial(op: Compute, arrays: Sequence[Array], result: Tensor) -> frozenset[Axis]:
    """Give the axes over which all terms of a sum are partial sums, so that the sum is reduced for them.

    The sum has to be no larger than the largest of them: terms with other dims each are smaller.
    """
    if not any(set(array.tensor.dims) == set(result.dims) for array in arrays):
        return frozenset()
    if any(array.layout.reduction != "sum" for array in arrays):
        return frozenset()
    shared = frozenset.intersection(*(frozenset(array.layout.unreduced) for array in arrays))
    return frozenset(
        axis for axis in shared if not isinstance(partial_rule(op, tuple(arrays), axis), Illegal)
    )


def _wanted(statement: Statement, over: Mapping[str, frozenset[Axis]]) -> frozenset[Axis]:
    """Give the axes over which a statement's result is wanted as a partial sum."""
    if statement.inner:
        return over.get(statement.result.name, frozenset())
    target = statement.target
    return frozenset() if target is None or target.reduction != "sum" else target.unreduced


def _passes(statement: Statement, tensor: Tensor, axis: Axis) -> bool:
    """Say whether partial sums of an operand make partial sums of the result.

    The other terms of a sum are made partial sums for free, so it is asked of all of them.
    """
    op = statement.op
    if not isinstance(op, Compute):
        return False
    arrays = tuple(
        Array(
            use.tensor,
            Layout(
                ((),) * len(use.tensor.dims),
                frozenset({axis} if use.tensor == tensor or isinstance(op, Linear) else ()),
            ),
        )
        for use in statement.operands
    )
    return not isinstance(partial_rule(op, arrays, axis), Illegal)
