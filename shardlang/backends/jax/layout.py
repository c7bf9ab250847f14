"""Rewrites layouts for emission and writes them as JAX's PartitionSpec."""

from __future__ import annotations

from collections.abc import Iterable

from shardlang.backends.jax.names import quoted
from shardlang.backends.jax.pretty import call, Item, parens
from shardlang.ir.types import Axis, Layout


def names_of_axes(axes: Iterable[Axis]) -> Item:
    """Write axes as JAX takes them: `"X"`, or a tuple of several."""
    listed = [quoted(axis.name) for axis in axes]
    return listed[0] if len(listed) == 1 else parens(*listed)


def stacked_axes(layout: Layout) -> tuple[Axis, ...]:
    """Give the axes over which partial results are stacked when they leave the devices."""
    return tuple(sorted(layout.unreduced))


def partition_spec(layout: Layout, front: Iterable[Item] = ()) -> Item:
    """Write a layout as a PartitionSpec; partial results get a leading dim over their axes.

    `front` are the entries of dims before that, such as a stack's of all layers, whose first dim no axis splits.
    """
    entries: list[Item] = [names_of_axes(a) if a else "None" for a in layout.sharding]
    if layout.unreduced:
        entries.insert(0, names_of_axes(stacked_axes(layout)))
    return call("P", *front, *entries)
