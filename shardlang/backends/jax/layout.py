"""Rewrites layouts for emission and writes them as JAX's PartitionSpec."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from shardlang.backends.jax.names import quoted
from shardlang.backends.jax.pretty import call, Item, parens
from shardlang.ir.ops import (
    AllGather,
    AllReduce,
    AllToAll,
    Mask,
    Op,
    Permute,
    ReduceScatter,
    Slice,
)
from shardlang.ir.plan import Gradient, Plan, Step
from shardlang.ir.types import Array, Axis, Layout
from shardlang.passes.normal import without


def names_of_axes(axes: Iterable[Axis]) -> Item:
    """Write axes as JAX takes them: `"X"`, or a tuple of several."""
    listed = [quoted(axis.name) for axis in axes]
    return listed[0] if len(listed) == 1 else parens(*listed)


def stacked_axes(layout: Layout) -> tuple[Axis, ...]:
    """Give the axes over which partial results are stacked when they leave the devices."""
    return tuple(sorted(layout.unreduced))


def partition_spec(layout: Layout) -> Item:
    """Write a layout as a PartitionSpec; partial results get a leading dim over their axes."""
    entries: list[Item] = [names_of_axes(a) if a else "None" for a in layout.sharding]
    if layout.unreduced:
        entries.insert(0, names_of_axes(stacked_axes(layout)))
    return call("P", *entries)


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
        return replace(value, op=op(value.op), inputs=inputs, output=array(value.output))

    leaves = tuple(replace(leaf, array=array(leaf.array)) for leaf in plan.program.leaves)
    gradients = (Gradient(array(g.leaf), array(g.gradient)) for g in plan.gradients)
    return replace(
        plan,
        program=replace(plan.program, leaves=leaves),
        forward=tuple(step(s) for s in plan.forward),
        backward=tuple(step(s) for s in plan.backward),
        outputs=tuple(array(x) for x in plan.outputs),
        cotangents=tuple(array(x) for x in plan.cotangents),
        gradients=tuple(gradients),
    )
