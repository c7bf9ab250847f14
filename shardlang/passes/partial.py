"""Which parts of an expression are left as partial sums, because the line wants its result so.

`back[B, D]{U_Y} = take_E(t, c) ·_J s` wants a partial sum over Y. Where each operation from a part to
the result is linear in the part, the result of the part's partial sums is one of its own, so that
nothing has to be reduced within the line. What is linear is what `rules.local` lets pass.
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
