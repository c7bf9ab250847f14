"""Which layouts a computation can be done in with no communication, and what comes out.

This is the type checker of plans: a step of an explicit program is legal exactly if `local` gives
its result's layout.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from shardlang.ir.ops import (
    AllGather,
    Compare,
    Compute,
    Divide,
    Einsum,
    Linear,
    Map,
    Op,
    Put,
    Reduce,
    ReduceScatter,
    Relayout,
    Rename,
    Reshape,
    Ring,
    RingAttention,
    Rotary,
    Select,
    Take,
    Update,
)
from shardlang.ir.printer import expression
from shardlang.ir.types import Array, Axis, Dim, Layout, Reduction, subscript, Tensor
from shardlang.rules.collectives import Illegal, relayout
from shardlang.rules.whole import by_factors, given_as, needed_whole, seen_as, verb

NO_SIZES: Mapping[str, int] = {}
"""No size is known."""


def dims_of(arrays: tuple[Array, ...]) -> tuple[Dim, ...]:
    """Give every dim of some operand, in order of appearance."""
    return tuple(dict.fromkeys(dim for array in arrays for dim in array.tensor.dims))


def summed(op: Compute) -> tuple[Dim, ...]:
    """Give the dims that an operation combines along."""
    match op:
        case Einsum(contracted) | Put(_, contracted):
            return contracted
        case Reduce(_, dims) | Take(dims):
            return dims
        case _:
            return ()


def partial_rule(op: Compute, arrays: tuple[Array, ...], axis: Axis) -> Illegal | Reduction | None:
    """Say what partial results over one axis make of an operation's result.

    None: no operand is partial over it. A reduction: the result is partial in that way, because the
    operation is linear in it. Illegal: the operation would mix sums up.
    """
    partial = [a for a in arrays if axis in a.layout.unreduced]
    if not partial:
        return None
    kinds = {a.layout.reduction for a in partial}
    if isinstance(op, Reduce) and kinds == {op.combines}:
        return op.combines
    if kinds != {"sum"}:
        return Illegal(f"{partial[0]} holds partial maxima, which have to be combined first")
    if isinstance(op, Einsum):
        if len(partial) > 1:
            return Illegal(
                f"{partial[0]} and {partial[1]} are both partial sums over {axis}: the product of "
                "two sums is not the sum of the products"
            )
        return "sum"
    if isinstance(op, Linear):
        if len(partial) < len(arrays):
            other = next(a for a in arrays if a not in partial)
            return Illegal(
                f"{other} is whole on every device of {axis}, and {partial[0]} is a partial sum: "
                f"{other.name} would be added once for every device",
                f"reduce {partial[0].name} first, or Mask{subscript((axis,))}({other})",
            )
        if op.constant:
            return Illegal(
                f"{partial[0]} is a partial sum over {axis}: the constant would be added once for "
                "every device"
            )
        return "sum"
    if isinstance(op, Rename | Reshape):
        return "sum"
    if isinstance(op, Rotary):
        if axis in arrays[1].layout.unreduced:
            return Illegal(f"{arrays[1]} is a partial sum over {axis}: turn by whole angles")
        return "sum"
    if isinstance(op, Divide):
        if axis in arrays[1].layout.unreduced:
            return Illegal(f"{arrays[1]} is a partial sum over {axis}: divide by the whole sum")
        return "sum"
    if isinstance(op, Take | Put):
        if partial != [arrays[0]]:
            ids = next(a for a in partial if a != arrays[0])
            return Illegal(f"{ids} is a partial sum over {axis}: ids have to be whole")
        return "sum"
    if isinstance(op, Select) and op.fill == 0:
        if axis in arrays[0].layout.unreduced:
            return Illegal(f"{arrays[0]} is a partial sum over {axis}: a mask has to be whole")
        return "sum"
    return Illegal(
        f"{partial[0]} is a partial sum over {axis}, and {_name(op)} of a sum is not the sum of "
        f"{_name(op)}",
        "reduce it first",
    )


def partial_axes(op: Op, arrays: tuple[Array, ...]) -> Layout:
    """Give, as a scalar's layout, what an operation can leave partial at the most.

    Maxima come from a maximum over a split dim, or from an operand that holds them already.
    """
    if isinstance(op, Reduce) and op.combines != "sum":
        split = {a for array in arrays for dim in op.dims for a in array.axes(dim)}
        held = {a for x in arrays if x.layout.reduction == op.combines for a in x.layout.unreduced}
        return Layout((), frozenset(split | held), op.combines)
    if isinstance(op, Relayout):
        own = arrays[0].layout
        return Layout((), own.unreduced, own.reduction)
    return Layout(())


def _name(op: Compute) -> str:
    match op:
        case Map(function):
            return function
        case Reduce(kind, _):
            return kind
        case Compare(relation):
            return "equal" if relation == "==" else relation
        case Select():
            return "where with another value than 0"
        case Update():
            return "an update"
        case _:
            return verb(op)


def local(
    op: Compute,
    arrays: tuple[Array, ...],
    result: Tensor,
    declared: Layout | None = None,
    sizes: Mapping[str, int] = NO_SIZES,
) -> Layout | Illegal:
    """Give the layout of a result computed with no communication, or say why that can't be.

    `declared` settles what the operands leave open: how a broadcast dim, which no operand has, is
    split. `sizes` are those known, which say how a reshaped dim may be split.
    """
    if isinstance(op, Ring):
        return _ring(op, arrays, result)
    if isinstance(op, RingAttention):
        return _attention(op, arrays, result)
    seen: list[Array] = []
    for given in arrays:
        array, strays = seen_as(op, given, sizes)
        if strays:
            stray = strays[0]
            gather = expression(AllGather(stray.axes, stray.dim), [str(given)])
            return Illegal(
                f"{subscript(stray.axes)[1:]} splits {stray.dim} of {given}, {stray.why}", gather
            )
        seen.append(array)
    arrays = tuple(seen)
    sharding: dict[Dim, tuple[Axis, ...]] = {}
    owner: dict[Dim, Array] = {}
    for array in arrays:
        for dim, axes in zip(array.tensor.dims, array.layout.sharding, strict=True):
            if dim not in owner:
                owner[dim], sharding[dim] = array, axes
            elif sharding[dim] != axes:
                return Illegal(
                    f"{dim} is split as {dim}{subscript(sharding[dim])} in {owner[dim]} and as "
                    f"{dim}{subscript(axes)} in {array}"
                )
    gone = summed(op)
    place: dict[Axis, Dim] = {}
    for dim, axes in sharding.items():
        for axis in axes:
            if axis in place:
                return Illegal(
                    f"{axis} splits {place[axis]} of {owner[place[axis]]} and {dim} of "
                    f"{owner[dim]}: only the diagonal blocks of the product would exist",
                    f"gather one of them over {axis}",
                )
            place[axis] = dim
    unreduced: set[Axis] = set()
    reduction: Reduction = "sum"
    for axis in sorted({a for array in arrays for a in array.layout.unreduced}):
        found = partial_rule(op, arrays, axis)
        if isinstance(found, Illegal):
            return found
        assert found is not None
        if axis in place:
            dim = place[axis]
            return Illegal(
                f"{owner[dim]} is split over {axis}, over which another operand is a partial sum"
            )
        unreduced.add(axis)
        reduction = found
    made = [axis for dim in gone for axis in sharding.get(dim, ())]
    if made:
        combines = op.combines if isinstance(op, Reduce) else "sum"
        if unreduced and reduction != combines:
            return Illegal("partial sums and partial maxima can't stand in one array")
        unreduced.update(made)
        reduction = combines
    whole, open_ = needed_whole(op), declared or Layout.replicated(len(result.dims))
    out: list[tuple[Axis, ...]] = []
    for dim in by_factors(op, result).dims:
        if dim in sharding and dim not in gone:
            out.append(sharding[dim])
        else:
            out.append(() if dim in whole else open_.sharding[result.dims.index(dim)])
    layout = given_as(op, result, Layout(tuple(out), frozenset(unreduced), reduction))
    twice = layout.duplicates()
    if twice:
        return Illegal(f"{twice[0]} would stand twice in {Array(result, layout)}")
    return layout


def _ring(op: Ring, arrays: tuple[Array, ...], result: Tensor) -> Layout | Illegal:
    """Give what a ring makes: the collective and the product, one after the other."""
    if op.gathers:
        gathered = relayout(op.move, arrays[op.operand])
        if isinstance(gathered, Illegal):
            return gathered
        whole = arrays[op.operand].with_layout(gathered)
        return local(op.product, (*arrays[: op.operand], whole, *arrays[op.operand + 1 :]), result)
    partial = local(op.product, arrays, result)
    return partial if isinstance(partial, Illegal) else relayout(op.move, Array(result, partial))


def _attention(op: RingAttention, arrays: tuple[Array, ...], result: Tensor) -> Layout | Illegal:
    """Give what attention makes: that of its products, between k and v gathered; and check what it keeps."""
    q, k, v = arrays[op.query : op.query + 3]
    gather = AllGather(op.axes, op.dim)
    whole: list[Array] = []
    for array in (k, v):
        if op.dim not in array.tensor.dims:
            return Illegal(f"{array} has no {op.dim}, along which its shards go round")
        gathered = relayout(gather, array)
        if isinstance(gathered, Illegal):
            return gathered
        whole.append(array.with_layout(gathered))
    if _as(k, v.tensor) != v.layout or k.tensor.dtype != v.tensor.dtype:
        return Illegal(f"{k} and {v} go round together, so that they have the same dims and layout")
    if any(dim not in q.tensor.dims or dim not in k.tensor.dims for dim in op.summed):
        return Illegal(f"{q} and {k} do not both have the dims summed over")
    for side in arrays[len(arrays) - 2 :] if op.relation is not None else ():
        if len(side.tensor.dims) != 1 or side.layout.used:
            return Illegal(f"{side} is not one dim, whole: a mask compares two such")
    rest = tuple(dim for dim in q.tensor.dims if dim not in op.summed)
    others = tuple(d for d in k.tensor.dims if d not in (*q.tensor.dims, op.dim))
    scores = Tensor("the scores", (*rest, *others, op.dim), q.tensor.dtype)
    made = local(Einsum(op.summed), (q, whole[0]), scores)
    if isinstance(made, Illegal):
        return made
    if made.unreduced or made.sharding[-1]:
        return Illegal(
            f"{Array(scores, made)} is not whole along {op.dim}, where the softmax needs it"
        )
    s = Array(scores, made)
    o = Tensor("the result", (*scores.dims[:-1], *op.summed), q.tensor.dtype)
    value = local(Einsum((op.dim,)), (s, whole[1]), o)
    if isinstance(value, Illegal):
        return value
    if not op.back:
        lse = Tensor("the logarithm", scores.dims[:-1], scores.dtype)
        kept = (Array(lse, Layout(made.sharding[:-1])),)
        return _keeps(op, kept) or _as(Array(o, value), result)
    for given, wanted in ((arrays[0], value), (arrays[4], value), (arrays[5], None)):
        dims = o.dims if wanted is not None else scores.dims[:-1]
        layout = Layout(made.sharding[:-1]) if wanted is None else wanted
        if _as(Array(replace(o, dims=dims), layout), given.tensor) != given.layout:
            return Illegal(f"{given} is not {Array(replace(given.tensor, dims=dims), layout)}")
    sums: list[Array] = []
    for one, other, like in ((s, q, k), (s, Array(o, value), v)):
        dims = tuple(
            d
            for d in dict.fromkeys((*one.tensor.dims, *other.tensor.dims))
            if d not in like.tensor.dims
        )
        part = local(Einsum(dims), (one, other), like.tensor)
        if isinstance(part, Illegal):
            return part
        scattered = relayout(ReduceScatter(op.axes, op.dim), Array(like.tensor, part))
        if isinstance(scattered, Illegal):
            return scattered
        sums.append(Array(like.tensor, scattered))
    query = local(Einsum((op.dim, *others)), (s, whole[0]), q.tensor)
    if isinstance(query, Illegal):
        return query
    return _keeps(op, tuple(sums)) or _as(Array(q.tensor, query), result)


def _as(array: Array, result: Tensor) -> Layout | Illegal:
    """Give an array's layout in the order of another tensor's dims."""
    if set(array.tensor.dims) != set(result.dims):
        return Illegal(f"{result.name} has other dims than {array}")
    return Layout(tuple(array.axes(dim) for dim in result.dims), array.layout.unreduced)


def _keeps(op: RingAttention, wanted: tuple[Array, ...]) -> Illegal | None:
    """Say what is wrong with what attention keeps."""
    for given, made in zip(op.kept, wanted, strict=True):
        if _as(made, given.tensor) != given.layout:
            return Illegal(f"{given} is kept as {made.with_layout(made.layout)}")
    return None
