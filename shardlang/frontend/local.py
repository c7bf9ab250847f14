"""The layout in which an operation leaves its result where every device does its own part.

For an operation inside a stated collective alone: `AllReduce_X(A[I, J_X] ·_J B[J_X, K])` says that
the product lies as its operands do, `{U_X}`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from shardlang.frontend.terms import Pending
from shardlang.ir.ops import Einsum, Reduce
from shardlang.ir.program import Use
from shardlang.ir.types import Axis, Dim, Layout


def local_layout(
    pending: Pending, dims: Sequence[Dim], layout_of: Callable[[Use], Layout | None]
) -> Layout | None:
    """Give the result's layout, or None where the operands do not lie alike or it is not known."""
    axes: dict[Dim, tuple[Axis, ...]] = {}
    left: set[Axis] = set()
    for use in pending.operands:
        layout = layout_of(use)
        if layout is None or layout.reduction != "sum":
            return None
        left |= layout.unreduced
        for dim, own in zip(use.tensor.dims, layout.sharding, strict=True):
            if axes.setdefault(dim, own) != own:
                return None
    summed: tuple[Dim, ...] = ()
    match pending.op:
        case Einsum(contracted):
            summed = contracted
        case Reduce(kind, along):
            if kind in ("max", "min") and any(axes.get(dim) for dim in along):
                return None
            summed = along
        case _:
            pass
    for dim in summed:
        left.update(axes.get(dim, ()))
    result = Layout(tuple(axes.get(dim, ()) for dim in dims), frozenset(left))
    return None if result.duplicates() else result
