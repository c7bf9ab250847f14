"""Axes of size 1 split nothing: their places in layouts go before anything is inferred."""

from __future__ import annotations

from dataclasses import replace

from shardlang.ir.ops import Coefficient, Linear, Relayout
from shardlang.ir.program import Program, Statement, Use
from shardlang.ir.types import Array, Axis, Layout


def drop_unit_axes(program: Program) -> Program:
    """Give the same program with no layout naming an axis of size 1, so that none communicates."""
    unit = frozenset(info.axis for info in program.mesh.axes if info.size == 1)
    if not unit:
        return program

    def layout(old: Layout) -> Layout:
        sharding = tuple(tuple(a for a in axes if a not in unit) for axes in old.sharding)
        left = old.unreduced - unit
        return Layout(sharding, left, old.reduction if left else "sum")

    def use(old: Use) -> Use:
        return old if old.layout is None else replace(old, layout=layout(old.layout))

    leaves = tuple(
        replace(leaf, array=Array(leaf.array.tensor, layout(leaf.array.layout)))
        for leaf in program.leaves
    )
    statements: list[Statement] = []
    for statement in program.statements:
        new = replace(
            statement,
            operands=tuple(use(operand) for operand in statement.operands),
            target=None if statement.target is None else layout(statement.target),
            hint=None if statement.hint is None else layout(statement.hint),
        )
        shrunk = _shrink(new, unit)
        if shrunk is not None:
            statements.append(shrunk)
    return replace(program, leaves=leaves, statements=tuple(statements))


def _shrink(statement: Statement, unit: frozenset[Axis]) -> Statement | None:
    """Take axes of size 1 off a stated collective; one over nothing else is left out."""
    if not isinstance(statement.op, Relayout):
        return statement
    axes = tuple(axis for axis in statement.op.axes if axis not in unit)
    if axes:
        return replace(statement, op=replace(statement.op, axes=axes))
    if statement.result == statement.operands[0].tensor:
        return None
    return replace(statement, op=Linear((Coefficient(),)))
