"""Which values JAX takes to differ along a mesh axis though they are the same.

Under `check_vma`, JAX types every value in a `jax.shard_map` with the axes along which it may vary.
What a `ppermute` makes varies, by its type, along all axes that it ran over; after `A[I_X] -> A[I_Y]`
the value is the same along X, and no cast says so (`lax.pcast` goes the other way only). That is no
matter until such a value leaves the devices: its PartitionSpec would have to name X. So it is with what has
gone round a ring.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from shardlang.ir.ops import (
    AllGather,
    AllReduce,
    AllToAll,
    Mask,
    Permute,
    ReduceScatter,
    Ring,
    Slice,
)
from shardlang.ir.plan import Plan, Step
from shardlang.ir.types import Array, Axis

Varying = Mapping[Array, frozenset[Axis]]


def unproven(plan: Plan, ends: Iterable[Array]) -> list[tuple[Array, tuple[Axis, ...]]]:
    """Give those of the `ends` that JAX can't tell to be the same along some axes, with these axes."""
    given = (*(leaf.array for leaf in plan.program.leaves), *plan.cotangents)
    types = {array: array.layout.used for array in given}
    for _, step in plan.steps():
        types.update(dict.fromkeys(step.outputs, _varies(step, types)))
    found: list[tuple[Array, tuple[Axis, ...]]] = []
    for array in dict.fromkeys(ends):
        more = types.get(array, array.layout.used) - array.layout.used
        if more:
            found.append((array, tuple(sorted(more))))
    return found


def _varies(step: Step, types: Varying) -> frozenset[Axis]:
    """Give the axes along which JAX lets a step's result vary."""
    before = frozenset[Axis]().union(*(types.get(x, x.layout.used) for x in step.inputs))
    match step.op:
        case AllGather(axes) | AllReduce(axes):
            return before.difference(axes)
        case Ring():
            return before.union(step.op.axes)
        case ReduceScatter(axes) | AllToAll(axes) | Slice(axes) | Mask(axes):
            return before.union(axes)
        case Permute():
            return before.union(step.output.layout.split_axes)
        case _:
            return before
