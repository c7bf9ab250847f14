"""Differentiation: what each operation's cotangent gives to each of its operands.

From `Y = A · B`: `dA = dY · B` and `dB = A · dY`, summed over the dims that the operand lacks
(the seed, appendix A). The rules know nothing of layouts: the products that they give are lowered
by the same table as any other, and so a partial sum's cotangent is whole on every device, a
gather's is scattered, a slice's gathered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from shardlang.ir.functions import FUNCTIONS
from shardlang.ir.ops import (
    AllGather,
    AllReduce,
    AllToAll,
    Coefficient,
    Compare,
    Compute,
    Divide,
    Einsum,
    Linear,
    Map,
    Mask,
    Op,
    Permute,
    Put,
    Rank,
    Reduce,
    ReduceScatter,
    Rename,
    Reshape,
    Ring,
    Rotary,
    Select,
    Slice,
    Take,
    Top,
    Update,
)
from shardlang.ir.types import Dim, Tensor


@dataclass(frozen=True, slots=True)
class Term:
    """An operation over tensors and other terms, with the dims of its result."""

    op: Compute
    inputs: tuple[Tensor | Term, ...]
    dims: tuple[Dim, ...]


Contribution = Tensor | Term | None
"""What an operand gets: the cotangent itself, something computed from it, or nothing."""


@dataclass(frozen=True, slots=True)
class Site:
    """One operand of one operation: its operands, its result, the cotangent, and which operand."""

    operands: tuple[Tensor, ...]
    result: Tensor
    cotangent: Tensor
    index: int

    @property
    def operand(self) -> Tensor:
        """The operand in question."""
        return self.operands[self.index]

    def lacking(self, *tensors: Tensor) -> tuple[Dim, ...]:
        """Give the dims of some tensors that the operand lacks: those to sum over."""
        dims = dict.fromkeys(dim for tensor in tensors for dim in tensor.dims)
        return tuple(dim for dim in dims if dim not in self.operand.dims)


def _times(site: Site, *factors: Tensor | Term) -> Term:
    """Multiply and sum over the dims that the operand lacks."""
    dims = dict.fromkeys(dim for factor in factors for dim in factor.dims)
    gone = tuple(dim for dim in dims if dim not in site.operand.dims)
    return Term(Einsum(gone), factors, site.operand.dims)


def _summed(site: Site, value: Tensor | Term) -> Tensor | Term:
    """Sum over the dims that the operand lacks, if there are any."""
    gone = tuple(dim for dim in value.dims if dim not in site.operand.dims)
    if not gone:
        return value
    left = tuple(dim for dim in value.dims if dim in site.operand.dims)
    return Term(Reduce("sum", gone), (value,), left)


def _scaled(site: Site, coefficient: Coefficient, value: Tensor | Term) -> Tensor | Term:
    """Multiply by a coefficient and broadcast to the operand's dims, if either does anything."""
    if coefficient == Coefficient() and set(value.dims) == set(site.operand.dims):
        return value
    return Term(Linear((coefficient,)), (value,), site.operand.dims)


def _einsum(_: Einsum, site: Site) -> Contribution:
    factors = list(site.operands)
    factors[site.index] = site.cotangent
    return _times(site, *factors)


def _linear(op: Linear, site: Site) -> Contribution:
    return _scaled(site, op.coefficients[site.index], _summed(site, site.cotangent))


def _map(op: Map, site: Site) -> Contribution:
    derivative = FUNCTIONS[op.function].derivative
    if derivative is None:
        return None
    if derivative == "output":
        return _times(site, site.cotangent, site.result)
    return _times(site, site.cotangent, Term(Map(derivative), (site.operand,), site.operand.dims))


def _divide(op: Divide, site: Site) -> Contribution:
    bottom = site.operands[1]
    if site.index == 0:
        quotient = Term(op, (site.cotangent, bottom), site.cotangent.dims)
        return _scaled(site, Coefficient(), _summed(site, quotient))
    product = _times(site, site.cotangent, site.result)
    quotient = Term(op, (product, bottom), bottom.dims)
    return Term(Linear((Coefficient(Fraction(-1)),)), (quotient,), bottom.dims)


def _reduce(op: Reduce, site: Site) -> Contribution:
    match op.kind:
        case "sum":
            return Term(Linear((Coefficient(),)), (site.cotangent,), site.operand.dims)
        case "mean":
            factor = Coefficient() / Coefficient.size(*op.dims)
            return Term(Linear((factor,)), (site.cotangent,), site.operand.dims)
        case "max" | "min":
            hit = Term(Compare("=="), (site.operand, site.result), site.operand.dims)
            count = Term(Reduce("sum", op.dims), (hit,), site.result.dims)
            share = Term(Divide(), (site.cotangent, count), site.result.dims)
            return _times(site, hit, share)


def _select(_: Select, site: Site) -> Contribution:
    if site.index == 0:
        return None
    kept = Term(Select(), (site.operands[0], site.cotangent), site.cotangent.dims)
    return _scaled(site, Coefficient(), _summed(site, kept))


def _take(op: Take, site: Site) -> Contribution:
    if site.index:
        return None
    ids = site.operands[1:]
    gone = site.lacking(site.cotangent, *ids)
    return Term(Put(op.dims, gone), (site.cotangent, *ids), site.operand.dims)


def _put(op: Put, site: Site) -> Contribution:
    if site.index:
        return None
    ids = site.operands[1:]
    dims = dict.fromkeys(dim for tensor in (site.cotangent, *ids) for dim in tensor.dims)
    read = tuple(dim for dim in dims if dim not in op.dims)
    taken = Term(Take(op.dims), (site.cotangent, *ids), read)
    return _scaled(site, Coefficient(), _summed(site, taken))


def _rename(_: Rename, site: Site) -> Contribution:
    return Term(Rename(site.operand.dims), (site.cotangent,), site.operand.dims)


def _rotary(op: Rotary, site: Site) -> Contribution:
    if site.index:
        return None
    back = replace(op, back=not op.back)
    turned = Term(back, (site.cotangent, site.operands[1]), site.cotangent.dims)
    return _summed(site, turned)


def _reshape(op: Reshape, site: Site) -> Contribution:
    return Term(Reshape(op.into, op.source), (site.cotangent,), site.operand.dims)


def _ring(op: Ring, site: Site) -> Contribution:
    """Give what the product gives: how its operands travel changes no value."""
    return transpose(op.product, site)


def _nothing(_: Op, __: Site) -> Contribution:
    return None


def _same(_: Op, site: Site) -> Contribution:
    return site.cotangent


TRANSPOSE: Mapping[type[Op], Callable[[Any, Site], Contribution]] = {
    Einsum: _einsum,
    Linear: _linear,
    Map: _map,
    Divide: _divide,
    Reduce: _reduce,
    Compare: _nothing,
    Update: _nothing,
    Ring: _ring,
    Select: _select,
    Take: _take,
    Put: _put,
    Rename: _rename,
    Rotary: _rotary,
    Reshape: _reshape,
    Top: _nothing,
    Rank: _nothing,
    AllGather: _same,
    ReduceScatter: _same,
    AllReduce: _same,
    AllToAll: _same,
    Permute: _same,
    Slice: _same,
    Mask: _same,
}
"""One row an operation. A relayout changes no value, so its cotangent is the same value."""


def transpose(op: Op, site: Site) -> Contribution:
    """Give what an operand of an operation gets from the result's cotangent."""
    rule = TRANSPOSE.get(type(op))
    if rule is None:
        raise LookupError(f"TRANSPOSE has no row for {type(op).__name__}")
    return rule(op, site)
