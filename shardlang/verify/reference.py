"""The program's meaning with no sharding, evaluated in f64: independent of the emitted code.

Reads `plan.program.statements` alone. Changes of layout mean nothing here. Needs JAX, for `vjp`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from shardlang.backends.jax.compute import jax_dtype
from shardlang.ir.ops import (
    Coefficient,
    Compare,
    Compute,
    Divide,
    Einsum,
    Linear,
    Map,
    Put,
    Rank,
    Reduce,
    Rename,
    Reshape,
    Ring,
    RingAttention,
    Rotary,
    Select,
    Take,
    Top,
    Update,
)
from shardlang.ir.program import Block, Program, Statement
from shardlang.ir.types import Dim, Tensor
from shardlang.passes.layers import bodies, stack

Value = Any
"""A JAX array."""

INTEGERS: Mapping[str, str] = {"bool": "bool", "int4": "int8", "uint4": "uint8"}


RELATIONS: Mapping[str, Callable[[Value, Value], Value]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def _softplus(x: Value) -> Value:
    return jnp.logaddexp(x, 0.0)


def _gelu(x: Value) -> Value:
    return 0.5 * x * (1 + jnp.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


FUNCTIONS: Mapping[str, Callable[[Value], Value]] = {
    "gelu": _gelu,
    "silu": lambda x: x / (1 + jnp.exp(-x)),
    "relu": lambda x: jnp.where(x > 0, x, 0.0),
    "square": lambda x: x * x,
    "sqrt": jnp.sqrt,
    "rsqrt": lambda x: 1 / jnp.sqrt(x),
    "reciprocal": lambda x: 1 / x,
    "log": jnp.log,
    "tanh": jnp.tanh,
    "sigmoid": lambda x: 1 / (1 + jnp.exp(-x)),
    "softplus": _softplus,
    "abs": jnp.abs,
    "sin": jnp.sin,
    "cos": jnp.cos,
    "exp": jnp.exp,
}
"""The functions by their formulas; a `_grad` is taken by differentiating."""


def function(name: str) -> Callable[[Value], Value]:
    """Give a function or the derivative of one."""
    if name in FUNCTIONS:
        return FUNCTIONS[name]
    base = FUNCTIONS[name.removesuffix("_grad")]

    def derivative(x: Value) -> Value:
        return jax.vjp(base, x)[1](jnp.ones_like(x))[0]

    return derivative


def evaluate(
    program: Program, inputs: Mapping[str, Value], sizes: Mapping[Dim, int], wanted: Sequence[str]
) -> tuple[Value, ...]:
    """Compute the values of the wanted names from the leaves' whole values.

    Leaves of which each layer of a block has its own are stacked along a first dim, and so are wanted
    values that each layer has.
    """
    values = dict(inputs)
    for leaf in program.leaves:
        if leaf.kind == "index":
            (along,) = leaf.array.tensor.dims
            values[leaf.array.name] = jnp.arange(sizes[along])
        if not leaf.differentiable:
            values[leaf.array.name] = jax.lax.stop_gradient(values[leaf.array.name])
    dims = {leaf.array.name: leaf.array.tensor.dims for leaf in program.leaves}
    forward = (statement for statement in program.statements if statement.section == "forward")
    for block, run in bodies(forward):
        if block is None:
            _lines(run, values, dims, sizes)
        else:
            _layers(program, block, run, values, dims, sizes)
    return tuple(values[name] for name in wanted)


Dims = dict[str, tuple[Dim, ...]]
"""The dims of the values by name."""


def _lines(
    run: Iterable[Statement], values: dict[str, Value], dims: Dims, sizes: Mapping[Dim, int]
) -> None:
    """Compute lines outside of blocks, or those of one layer; what they define is put into `values`."""
    for statement in run:
        names = [use.tensor.name for use in statement.operands]
        result = statement.result
        if not isinstance(statement.op, Compute):
            if result.name == names[0]:
                continue
            statement_op: Compute = Linear((Coefficient(),))
        else:
            statement_op = statement.op
        if _adds_layers(statement):  # the sum of the layers is taken behind them
            values[result.name], dims[result.name] = values[names[0]], dims[names[0]]
            continue
        operands = [(values[name], dims[name]) for name in names]
        value = _typed(_compute(statement_op, operands, result, sizes), result)
        values[result.name] = jax.lax.stop_gradient(value) if statement.constant else value
        dims[result.name] = result.dims


def _layers(
    program: Program,
    block: Block,
    run: Sequence[Statement],
    values: dict[str, Value],
    dims: Dims,
    sizes: Mapping[Dim, int],
) -> None:
    """Compute the layers of a block one after the other, and keep what each of them has."""
    stacks = {leaf.array.name for leaf in stack(program, block)}
    handed = [(carry.entry.name, carry.exit.name) for carry in block.carries]
    made = [statement.result.name for statement in run]
    outside = dict(values)

    def layer(carry: tuple[Value, ...], own: dict[str, Value]) -> tuple[Any, dict[str, Value]]:
        local = {**outside, **own}
        local.update((entry, value) for (entry, _), value in zip(handed, carry, strict=True))
        _lines(run, local, dims, sizes)
        return tuple(local[last] for _, last in handed), {name: local[name] for name in made}

    start = tuple(values[entry] for entry, _ in handed)
    own = {name: values[name] for name in stacks}
    last, kept = jax.lax.scan(layer, start, own, length=sizes[block.dim])
    values.update(kept)
    values.update((name, value) for (_, name), value in zip(handed, last, strict=True))
    for statement in run:
        if _adds_layers(statement):
            name, source = statement.result.name, dims[statement.result.name]
            values[name] = _spread(kept[name].sum(axis=0), source, statement.result.dims, sizes)


def _adds_layers(statement: Statement) -> bool:
    """Say whether a line of a block adds something up over the layers."""
    block = statement.block
    return block is not None and statement.op == Reduce("sum", (block.dim,))


def _typed(value: Value, tensor: Tensor) -> Value:
    """Bring a value to f64, or to its own integer type."""
    if tensor.dtype.kind == "float":
        return value.astype(float)
    return value.astype(INTEGERS.get(tensor.dtype.name, tensor.dtype.name))


Operand = tuple[Value, tuple[Dim, ...]]


def _attention(
    op: RingAttention, operands: Sequence[Operand], result: Tensor, sizes: Mapping[Dim, int]
) -> Value:
    """Evaluate attention with its scores whole."""
    q, keys, values = operands[:3]
    (lse,) = op.kept
    scores = replace(lse.tensor, dims=(*lse.tensor.dims, op.dim))
    product = (_einsum((q, keys), scores, sizes), scores.dims)
    s = _compute(Linear((op.scale,)), [product], scores, sizes)
    if op.relation is not None:
        mask = _compute(Compare(op.relation), operands[3:], scores, sizes)
        s = _compute(Select(None), [(mask, scores.dims), (s, scores.dims)], scores, sizes)
    return _einsum(((jax.nn.softmax(s, axis=-1), scores.dims), values), result, sizes)


def _compute(
    op: Compute, operands: Sequence[Operand], result: Tensor, sizes: Mapping[Dim, int]
) -> Value:
    """Evaluate one operation on whole values."""
    match op:
        case Einsum():
            return _einsum(operands, result, sizes)
        case Ring(product):
            return _compute(product, operands, result, sizes)
        case RingAttention():
            return _attention(op, operands, result, sizes)
        case Linear(coefficients, constant):
            total: Value = float(constant)
            for (value, dims), c in zip(operands, coefficients, strict=True):
                total = total + c.evaluate(sizes) * _spread(value, dims, result.dims, sizes)
            return total
        case Map(name):
            value, dims = operands[0]
            return _spread(function(name)(value.astype(float)), dims, result.dims, sizes)
        case Divide():
            left, right = (_spread(v, d, result.dims, sizes) for v, d in operands)
            return left / right
        case Compare(relation, bound):
            sides = [_spread(v, d, result.dims, sizes) for v, d in operands]
            if bound is not None:
                known = {dim.name: size for dim, size in sizes.items()}
                number = bound.evaluate(known).number
                assert number is not None
                sides.append(jnp.asarray(float(number)))
            left, right = sides
            return jnp.where(RELATIONS[relation](left, right), 1.0, 0.0)
        case Select(fill):
            mask, value = (_spread(v, d, result.dims, sizes) for v, d in operands)
            return jnp.where(mask == 0, _lowest(result) if fill is None else float(fill), value)
        case Take(gone):
            table, *ids = operands
            hot = [_one_hot(one, dim, sizes) for one, dim in zip(ids, gone, strict=True)]
            return _einsum((table, *hot), result, sizes)
        case Put(new):
            values, *ids = operands
            hot = [_one_hot(one, dim, sizes) for one, dim in zip(ids, new, strict=True)]
            return _einsum((values, *hot), result, sizes)
        case Update():
            raise TypeError("an update is no part of what a program means")
        case Rename(renamed):
            return _spread(operands[0][0], renamed, result.dims, sizes)
        case Rotary():
            return _rotary(op, operands, result, sizes)
        case Reshape(source, into):
            value, dims = _behind(operands[0], source)
            named = (*dims[: -len(source)], *into)
            return _spread(value.reshape([sizes[d] for d in named]), named, result.dims, sizes)
        case Top(dim, into):
            value, dims = _behind(operands[0], (dim,))
            order = jnp.argsort(-value, axis=-1, stable=True)[..., : sizes[into]]
            return _spread(order, (*dims[:-1], into), result.dims, sizes)
        case Rank(over):
            value, dims = _behind(operands[0], over)
            return _spread(_rank(value, len(over)), dims, result.dims, sizes)
        case Reduce(kind, over):
            value, dims = operands[0]
            axes = tuple(dims.index(dim) for dim in over)
            rest = tuple(dim for dim in dims if dim not in over)
            reduce = {"sum": jnp.sum, "mean": jnp.mean, "max": jnp.max, "min": jnp.min}[kind]
            return _spread(reduce(value, axis=axes), rest, result.dims, sizes)


def _behind(operand: Operand, dims: tuple[Dim, ...]) -> Operand:
    """Bring dims, in their order, behind the others."""
    value, own = operand
    named = (*(dim for dim in own if dim not in dims), *dims)
    return jnp.transpose(value, [own.index(dim) for dim in named]), named


def _rank(value: Value, many: int) -> Value:
    """Count the earlier equal numbers along the last dims, by comparing each pair."""
    flat = value.reshape([*value.shape[: value.ndim - many], -1])
    same = flat[..., :, None] == flat[..., None, :]
    return jnp.sum(jnp.tril(same, -1), axis=-1).reshape(value.shape)


def _rotary(
    op: Rotary, operands: Sequence[Operand], result: Tensor, sizes: Mapping[Dim, int]
) -> Value:
    """Multiply pairs, as complex numbers, by the unit numbers of the angles."""
    (value, dims), (angle, others) = operands
    out = tuple(op.half if dim == op.dim else dim for dim in result.dims)
    halves = jnp.split(value, 2, axis=dims.index(op.dim))
    own = tuple(op.half if dim == op.dim else dim for dim in dims)
    real, imaginary = (_spread(half, own, out, sizes) for half in halves)
    by = jax.lax.stop_gradient(_spread(angle, others, out, sizes).astype(float))
    turned = (real + 1j * imaginary) * jnp.exp((-1j if op.back else 1j) * by)
    return jnp.concatenate([turned.real, turned.imag], axis=result.dims.index(op.dim))


def _one_hot(ids: Operand, dim: Dim, sizes: Mapping[Dim, int]) -> Operand:
    """Give 1 where an id is a place along a dim; the runs of this reference are small."""
    value, dims = ids
    hot = value[..., None] == jnp.arange(sizes[dim])
    return hot.astype(float), (*dims, dim)


def _lowest(tensor: Tensor) -> float:
    """Give the lowest finite number of a tensor's own dtype."""
    if tensor.dtype.kind == "float":
        return float(jnp.finfo(jax_dtype(tensor.dtype)).min)
    return float(jnp.iinfo(jax_dtype(tensor.dtype)).min)


def _einsum(operands: Sequence[Operand], result: Tensor, sizes: Mapping[Dim, int]) -> Value:
    """Multiply out, and sum over what the result lacks."""
    every = tuple(dict.fromkeys(dim for _, dims in operands for dim in dims))
    number = {dim: index for index, dim in enumerate(every)}
    kept = tuple(dim for dim in result.dims if dim in number)
    flat: list[Any] = []
    for value, dims in operands:
        wide = value if jnp.issubdtype(value.dtype, jnp.floating) else value.astype(jnp.int64)
        flat += [wide, [number[dim] for dim in dims]]
    value = jnp.einsum(*flat, [number[dim] for dim in kept], precision="highest")
    return _spread(value, kept, result.dims, sizes)


def _spread(
    value: Value, dims: tuple[Dim, ...], wanted: tuple[Dim, ...], sizes: Mapping[Dim, int]
) -> Value:
    """Order dims by name and repeat along those that are missing."""
    order = [dim for dim in wanted if dim in dims]
    value = jnp.transpose(value, [dims.index(dim) for dim in order])
    value = value.reshape([sizes[dim] if dim in dims else 1 for dim in wanted])
    return jnp.broadcast_to(value, [sizes[dim] for dim in wanted])
