"""Programs on other axes: with those of size 1 left out, or with each axis written as its parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from shardlang.ir.ops import (
    AllGather,
    AllReduce,
    AllToAll,
    Coefficient,
    Linear,
    Mask,
    Op,
    Permute,
    ReduceScatter,
    Relayout,
    Ring,
    RingAttention,
    Slice,
)
from shardlang.ir.plan import Gradient, Plan, Step
from shardlang.ir.program import Block, Pipeline, Program, Statement, Use
from shardlang.ir.types import Array, Axis, Layout


def without(layout: Layout, unit: frozenset[Axis]) -> Layout:
    """Give a layout without some axes of size 1."""
    sharding = tuple(tuple(a for a in axes if a not in unit) for axes in layout.sharding)
    left = layout.unreduced - unit
    return Layout(sharding, left, layout.reduction if left else "sum")


def drop_unit_axes(program: Program) -> Program:
    """Give the same program with no layout naming an axis of size 1, so that none communicates."""
    unit = frozenset(info.axis for info in program.mesh.axes if info.size == 1)
    if not unit:
        return program

    made = _zero_without(with_layouts(program, lambda layout: without(layout, unit)), unit)
    made = _on_stages(made, unit)
    shrunk = (_shrink(statement, unit) for statement in made.statements)
    return replace(made, statements=tuple(s for s in shrunk if s is not None))


def _zero_without(program: Program, unit: frozenset[Axis]) -> Program:
    """Take axes off those that split the optimizer's state; none left, nothing is split."""
    if program.zero is None:
        return program
    axes = tuple(axis for axis in program.zero.axes if axis not in unit)
    return replace(program, zero=replace(program.zero, axes=axes) if axes else None)


def _staged(pipeline: Pipeline | None, unit: frozenset[Axis]) -> Pipeline | None:
    """Take axes off those of the stages; none left, all layers are on one."""
    axes = () if pipeline is None else tuple(axis for axis in pipeline.axes if axis not in unit)
    return replace(pipeline, axes=axes) if pipeline is not None and axes else None


def _on_stages(program: Program, unit: frozenset[Axis]) -> Program:
    """Take axes off the stages of a program's layers."""
    if program.pipeline is None:
        return program
    leaves = (replace(leaf, pipeline=_staged(leaf.pipeline, unit)) for leaf in program.leaves)
    statements = (
        s
        if s.block is None
        else replace(s, block=replace(s.block, pipeline=_staged(s.block.pipeline, unit)))
        for s in program.statements
    )
    return replace(program, leaves=tuple(leaves), statements=tuple(statements))


def without_axes(plan: Plan, ones: frozenset[Axis]) -> Plan:
    """Drop axes of size 1 from every layout and every step: they split and reduce nothing."""
    if not ones:
        return plan

    def keep(axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
        return tuple(axis for axis in axes if axis not in ones)

    def array(value: Array) -> Array:
        return value.with_layout(without(value.layout, ones))

    def op(value: Op) -> Op:
        match value:
            case Ring(product, move):
                axes = keep(move.axes)
                return replace(value, move=replace(move, axes=axes)) if axes else product
            case RingAttention(axes, kept=kept):
                return replace(value, axes=keep(axes), kept=tuple(array(each) for each in kept))
            case (
                AllGather(axes)
                | ReduceScatter(axes)
                | AllReduce(axes)
                | AllToAll(axes)
                | Permute(axes)
                | Slice(axes)
                | Mask(axes)
            ):
                return replace(value, axes=keep(axes))
            case _:
                return value

    def step(value: Step) -> Step:
        inputs = tuple(array(x) for x in value.inputs)
        loop = None if value.loop is None else block(value.loop)
        return replace(value, op=op(value.op), inputs=inputs, output=array(value.output), loop=loop)

    def block(value: Block) -> Block:
        carries = (
            carry if carry.layout is None else replace(carry, layout=without(carry.layout, ones))
            for carry in value.carries
        )
        return replace(value, carries=tuple(carries), pipeline=_staged(value.pipeline, ones))

    leaves = tuple(replace(leaf, array=array(leaf.array)) for leaf in plan.program.leaves)
    gradients = (Gradient(array(g.leaf), array(g.gradient)) for g in plan.gradients)
    return replace(
        plan,
        program=_on_stages(_zero_without(replace(plan.program, leaves=leaves), ones), ones),
        forward=tuple(step(s) for s in plan.forward),
        backward=tuple(step(s) for s in plan.backward),
        outputs=tuple(array(x) for x in plan.outputs),
        cotangents=tuple(array(x) for x in plan.cotangents),
        gradients=tuple(gradients),
        update=tuple(step(s) for s in plan.update),
    )


def on_one_stage(plan: Plan) -> Plan:
    """Give a plan with all layers on each device: nothing is sent between stages."""
    pipeline = plan.program.pipeline
    if pipeline is None:
        return plan
    return without_axes(within_stages(plan), frozenset(pipeline.axes))


def within_stages(plan: Plan) -> Plan:
    """Give a plan without what is sent between stages."""
    return replace(
        plan,
        forward=tuple(step for step in plan.forward if not step.sends),
        backward=tuple(step for step in plan.backward if not step.sends),
    )


def with_layouts(program: Program, layout: Callable[[Layout], Layout]) -> Program:
    """Give a program with every layout in it changed; what it states of collectives stays."""

    def use(old: Use) -> Use:
        return old if old.layout is None else replace(old, layout=layout(old.layout))

    leaves = tuple(
        replace(leaf, array=leaf.array.with_layout(layout(leaf.array.layout)))
        for leaf in program.leaves
    )
    statements = tuple(
        replace(
            statement,
            operands=tuple(use(operand) for operand in statement.operands),
            target=None if statement.target is None else layout(statement.target),
            hint=None if statement.hint is None else layout(statement.hint),
        )
        for statement in program.statements
    )
    return replace(program, leaves=leaves, statements=statements)


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
