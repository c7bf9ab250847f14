"""Plans on parts of axes: X=4 as X1=2 and X2=2, where that moves less.

A program on a mesh is the same program on a finer one, in which each split axis is written as its
parts: `I_X` is `I_{X1,X2}`, on the same devices in the same order. So every plan of the first is a plan
of the second, at the same price, and the second has more. Prices of a part are those of the links of the
whole axis.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from time import monotonic

from shardlang.ir.ops import Relayout
from shardlang.ir.plan import Plan
from shardlang.ir.program import DimInfo, Program, Statement
from shardlang.ir.size import BinOp, Name, SizeExpr
from shardlang.ir.types import Axis, Mesh
from shardlang.passes.normal import with_layouts
from shardlang.passes.update import state_layout
from shardlang.planner.reshard import refined_layout, refinements
from shardlang.planner.search import Start

Parts = Mapping[Axis, tuple[Axis, ...]]

FEW = 3
"""The most axes of a finer mesh that is planned on without being asked for."""

EXTRA = 10.0
"""Seconds that plans on finer meshes may take without being asked for."""


def best_of_parts(
    program: Program,
    find: Callable[[Program, float, Start | None], Plan],
    *,
    sub_axes: bool | None,
    budget: float,
) -> Plan:
    """Find the best plan on a program's mesh, then on finer ones; a finer one has to cost less.

    `find` plans a program in some seconds, beginning at a plan: on finer meshes at that on the
    program's own, so that nothing dearer is looked at. What is left of the budget after that one
    is for the finer meshes; with `sub_axes` None, at most `EXTRA` for those of at most `FEW` axes.
    """
    end = monotonic() + budget
    whole = best = find(program, budget, None)
    if sub_axes is False:
        return best
    if sub_axes is None:
        end = min(end, monotonic() + EXTRA)
    stages = set[Axis]() if program.pipeline is None else set(program.pipeline.axes)
    meshes = [
        each
        for each in finest(program, most=None if sub_axes else FEW)
        if stages.isdisjoint(each[1]) and _same_states(program, refine(program, *each), each[1])
    ]
    for index, (mesh, parts) in enumerate(meshes):
        left = (end - monotonic()) / (len(meshes) - index)
        if best.proof is None or not best.proof.cost or left <= 0:
            break
        other = find(refine(program, mesh, parts), left, Start(whole, parts))
        if other.proof is not None and other.proof.cost < best.proof.cost:
            best = other
    return best


def finest(
    program: Program, *, most: int | None
) -> list[tuple[Mesh, dict[Axis, tuple[Axis, ...]]]]:
    """List the finer meshes of at most so many axes, without those that another is finer than."""
    if any(info.size is None for info in program.mesh.axes):
        return []
    arrays = [leaf.array.tensor for leaf in program.leaves]
    arrays += [statement.result for statement in program.statements]
    taken = {dim for tensor in arrays for dim in tensor.dims} | {info.dim for info in program.dims}
    found = [
        (mesh, parts)
        for mesh, parts in refinements(program.mesh, taken)
        if most is None or sum(info.size != 1 for info in mesh.axes) <= most
    ]
    return [each for each in found if not any(_finer(program.mesh, other, each) for other in found)]


def _finer(whole: Mesh, other: tuple[Mesh, Parts], one: tuple[Mesh, Parts]) -> bool:
    """Say whether a mesh has all cuts of another, and more."""

    def cuts(mesh: Mesh, parts: Parts) -> set[tuple[str, int]]:
        found: set[tuple[str, int]] = set()
        for info in whole.axes:
            at = 1
            for part in parts.get(info.axis, ()):
                at *= mesh[part].size or 1
                found.add((info.axis.name, at))
        return found

    return cuts(*one) < cuts(*other)


def refine(program: Program, mesh: Mesh, parts: Parts) -> Program:
    """Write a program on a finer mesh, each axis in `parts` as its parts."""
    made = with_layouts(program, lambda layout: refined_layout(layout, parts))
    statements = tuple(_statement(statement, parts) for statement in made.statements)
    dims = tuple(_dim(info, parts) for info in program.dims)
    zero = program.zero
    if zero is not None:
        zero = replace(zero, axes=tuple(p for a in zero.axes for p in parts.get(a, (a,))))
    return replace(made, mesh=mesh, statements=statements, dims=dims, zero=zero)


def _same_states(program: Program, finer: Program, parts: Parts) -> bool:
    """Say whether the state of every parameter lies on a finer mesh as on the whole axes.

    It does not where parts of an axis of `zero` divide a dim that the axis does not divide.
    """
    if program.zero is None:
        return True
    pairs = zip(program.leaves, finer.leaves, strict=True)
    return all(
        refined_layout(state_layout(program, leaf)[0], parts) == state_layout(finer, other)[0]
        for leaf, other in pairs
        if leaf.kind == "param"
    )


def _statement(statement: Statement, parts: Parts) -> Statement:
    """Let a stated collective run over the parts."""
    op = statement.op
    if not isinstance(op, Relayout):
        return statement
    axes = tuple(part for axis in op.axes for part in parts.get(axis, (axis,)))
    return replace(statement, op=replace(op, axes=axes))


def _dim(info: DimInfo, parts: Parts) -> DimInfo:
    """Write a size that is declared by an axis as one by the product of its parts."""

    def rewritten(expr: SizeExpr) -> SizeExpr:
        match expr:
            case Name(name) if Axis(name) in parts:
                first, *rest = parts[Axis(name)]
                product: SizeExpr = Name(first.name)
                for part in rest:
                    product = BinOp("*", product, Name(part.name))
                return product
            case BinOp(op, left, right):
                return BinOp(op, rewritten(left), rewritten(right))
            case _:
                return expr

    declared = None if info.declared is None else rewritten(info.declared)
    return replace(info, declared=declared)
