"""Collective models: the bytes that a collective costs one device, a method a collective.

`book` is the book's first-order convention. With V the local bytes of the array gathered over the
axes in question:

| collective    | V                               | book | link                  |
| ------------- | ------------------------------- | ---- | --------------------- |
| AllGather     | the result                      | V    | V(n-1)/n              |
| ReduceScatter | the operand                     | V    | V(n-1)/n              |
| AllReduce     | the operand                     | 2V   | 2V(n-1)/n             |
| AllToAll      | the operand times the axis size | V/4  | (V/n)(n-1)/n          |
| Permute       | the operand                     | V    | V                     |

`link` counts what one device sends of its own, exactly; n is the product of the axis sizes. An axis
of size 1 takes no part: over such axes alone nothing moves. Time is bytes over the bandwidth of the
axes, but for AllToAll in `link`: on a ring a block is forwarded by the devices on its way, so its
links carry V/4, not what one device sends. Hops, latency, wraparound and switches are not modelled
yet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from shardlang.cost.formula import Formula
from shardlang.ir.ops import AllGather, AllReduce, AllToAll, Permute, ReduceScatter
from shardlang.ir.plan import Step
from shardlang.ir.size import Monomial


@dataclass(frozen=True, slots=True)
class Moved:
    """What a model is given: local bytes before and after, and the product n of the axis sizes."""

    operand: Monomial
    result: Monomial
    n: Monomial


class Model(Protocol):
    """A collective model: a name, and a method a collective that gives bytes a device.

    Where a device's links carry more than the device sends of its own, the model has another method
    with the suffix `_load` (as in `all_to_all_load`): those bytes then give the time.
    """

    name: str

    def all_gather(self, moved: Moved) -> Formula:
        """Join shards."""
        ...

    def reduce_scatter(self, moved: Moved) -> Formula:
        """Add up and leave split."""
        ...

    def all_reduce(self, moved: Moved) -> Formula:
        """Add up and leave whole."""
        ...

    def all_to_all(self, moved: Moved) -> Formula:
        """Move a split from dim to dim."""
        ...

    def permute(self, moved: Moved) -> Formula:
        """Exchange whole shards."""
        ...


class Book:
    """The book's convention: the size of the gathered array, whatever the axis size."""

    name = "book"

    def all_gather(self, moved: Moved) -> Formula:
        """Give V, the result."""
        return Formula.of(moved.result)

    def reduce_scatter(self, moved: Moved) -> Formula:
        """Give V, the operand: the dual of AllGather."""
        return Formula.of(moved.operand)

    def all_reduce(self, moved: Moved) -> Formula:
        """Give 2V: a ReduceScatter and an AllGather."""
        return Formula.of(moved.operand * 2)

    def all_to_all(self, moved: Moved) -> Formula:
        """Give V/4 with V the operand over all of the axis: a quarter of the AllGather."""
        return Formula.of(moved.operand * moved.n / 4)

    def permute(self, moved: Moved) -> Formula:
        """Give the operand: each device sends its shard once."""
        return Formula.of(moved.operand)


class Link:
    """What one device sends, exactly, with the (n-1)/n factors."""

    name = "link"

    def all_gather(self, moved: Moved) -> Formula:
        """Give v(n-1) of the shard v, which is V(n-1)/n."""
        return _all_but_own(moved.result, moved.n)

    def reduce_scatter(self, moved: Moved) -> Formula:
        """Give V(n-1)/n."""
        return _all_but_own(moved.operand, moved.n)

    def all_reduce(self, moved: Moved) -> Formula:
        """Give 2V(n-1)/n."""
        return _all_but_own(moved.operand * 2, moved.n)

    def all_to_all(self, moved: Moved) -> Formula:
        """Give v(n-1)/n of the operand v: what a device keeps does not move."""
        return _all_but_own(moved.operand, moved.n)

    def all_to_all_load(self, moved: Moved) -> Formula:
        """Give V/4, what the links at one device of a ring carry: blocks are forwarded."""
        return Formula.of(moved.operand * moved.n / 4)

    def permute(self, moved: Moved) -> Formula:
        """Give the operand."""
        return Formula.of(moved.operand)


def _all_but_own(size: Monomial, n: Monomial) -> Formula:
    return Formula.of(size, size / n * -1)


MODELS: Mapping[str, Model] = {"book": Book(), "link": Link()}
"""The models by name; a model of one's own is any object with the same methods."""

COST: Mapping[type, str] = {
    AllGather: "all_gather",
    ReduceScatter: "reduce_scatter",
    AllReduce: "all_reduce",
    AllToAll: "all_to_all",
    Permute: "permute",
}
"""The method of a model that prices a collective."""


def bytes_moved(model: Model, step: Step, moved: Moved, axes: Sequence[object]) -> Formula:
    """Give the bytes a device of a collective; over no axes that count, zero."""
    method = _method(step)
    if not axes:
        return Formula()
    result: Formula = getattr(model, method)(moved)
    return result


def bytes_carried(model: Model, step: Step, moved: Moved, axes: Sequence[object]) -> Formula:
    """Give the bytes that a collective's time counts: those moved, unless blocks are forwarded."""
    load: Callable[[Moved], Formula] | None = getattr(model, f"{_method(step)}_load", None)
    if load is None or not axes:
        return bytes_moved(model, step, moved, axes)
    return load(moved)


def _method(step: Step) -> str:
    method = COST.get(type(step.op))
    if method is None:
        raise LookupError(f"internal error: {type(step.op).__name__} has no row in the table COST")
    return method
