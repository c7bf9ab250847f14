"""JAX's two partitioners: `jax.jit` under Shardy, and the explicit-sharding mode.

Both get the plain program with `jax.vjp`, and the layouts of inputs, cotangents, outputs and gradients.
Bytes are read from the compiled module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax._src.core import ShardingTypeError  # JAX has no public name for it
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from peers_lib import hlo
from peers_lib.meaning import evaluate, shape, Value, whole
from shardlang.ir.program import Program
from shardlang.ir.types import Array

VERSION = 1
"""Raised when something else is measured: answers of other versions in a cache are not used."""

FUNCTIONS: Mapping[str, Callable[[Value], Value]] = {
    "gelu": jax.nn.gelu, "silu": jax.nn.silu, "relu": jax.nn.relu, "square": jnp.square,
    "sqrt": jnp.sqrt, "rsqrt": jax.lax.rsqrt, "tanh": jnp.tanh, "sigmoid": jax.nn.sigmoid,
    "exp": jnp.exp, "sin": jnp.sin, "cos": jnp.cos, "log": jnp.log, "abs": jnp.abs,
    "softplus": jax.nn.softplus, "reciprocal": jnp.reciprocal,
}  # fmt: skip


class Numpy:
    """The operations of `jax.numpy`."""

    def einsum(self, subscripts: str, values: Sequence[Value]) -> Value:
        """Multiply and sum."""
        return jnp.einsum(subscripts, *values, precision="highest")

    def binary(self, name: str, left: Value, right: Value) -> Value:
        """Combine two arrays."""
        return getattr(jnp, name)(left, right)

    def scaled(self, value: Value, factor: float, constant: float) -> Value:
        """Multiply by a number and add one."""
        value = value if factor == 1 else value * factor
        return value + constant if constant else value

    def function(self, name: str, value: Value) -> Value:
        """Apply a function."""
        return FUNCTIONS[name](value)

    def reduce(self, kind: str, value: Value, axes: tuple[int, ...]) -> Value:
        """Reduce along dims."""
        return getattr(jnp, kind)(value, axis=axes)

    def arrange(self, value: Value, order: Sequence[int], new: Sequence[int]) -> Value:
        """Transpose and insert dims."""
        return jnp.expand_dims(jnp.transpose(value, order), tuple(new))

    def constant(self, value: Value) -> Value:
        """Stop the gradient."""
        return jax.lax.stop_gradient(value)


class Typed(Numpy):
    """The same with shardings in types.

    Where JAX asks for the sharding of a result, it is what its operands have, the first one first;
    where two operands of a sum differ, the second is brought to the first.
    """

    def einsum(self, subscripts: str, values: Sequence[Value]) -> Value:
        """Multiply and sum; of several answers the one in which nothing moves is asked for."""
        try:
            return super().einsum(subscripts, values)
        except ShardingTypeError:
            pass
        left, _, right = subscripts.partition("->")
        split: dict[str, Any] = {}
        for letters, value in zip(left.split(","), values, strict=True):
            for letter, part in zip(letters, jax.typeof(value).sharding.spec, strict=True):
                if split.get(letter) is None:
                    split[letter] = part
        taken: set[str] = set()
        result = PartitionSpec(*(_free(split[letter], taken) for letter in right))
        return jnp.einsum(subscripts, *values, precision="highest", out_sharding=result)

    def binary(self, name: str, left: Value, right: Value) -> Value:
        """Combine two arrays; one that is broadcast is brought to the other."""
        try:
            return super().binary(name, left, right)
        except ShardingTypeError:
            pass
        if left.size < right.size:
            return super().binary(name, _brought(left, right), right)
        return super().binary(name, left, _brought(right, left))


def _brought(value: Value, to: Value) -> Value:
    """Give an array the sharding of another one, but for dims of size 1."""
    parts = jax.typeof(to).sharding.spec
    wanted = (part if n > 1 else None for part, n in zip(parts, value.shape, strict=True))
    return jax.sharding.reshard(value, PartitionSpec(*wanted))


def _free(part: Any, taken: set[str]) -> Any:
    """Give the axes of a dim, unless another dim has one of them."""
    axes = (part,) if isinstance(part, str) else tuple(part or ())
    if not axes or taken & set(axes):
        return None
    taken |= set(axes)
    return part


# Programs


@dataclass(frozen=True)
class Sharded:
    """A program with its shardings, ready for `jax.jit`."""

    program: Program
    leaves: list[Array]
    ends: list[Array]
    mesh: Mesh

    def sharding(self, array: Array) -> NamedSharding:
        """Place a layout on the mesh."""
        return NamedSharding(self.mesh, spec(array))

    def arguments(self) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Give the shapes and shardings of inputs and cotangents."""
        ins, cotangents = (
            tuple(
                jax.ShapeDtypeStruct(shape(x, self.program), jnp.float32, sharding=self.sharding(x))
                for x in arrays
            )
            for arrays in (self.leaves, self.ends)
        )
        return ins, cotangents

    def ended(self, outputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Bring outputs to their layouts, as types have to say it."""
        pairs = zip(outputs, self.ends, strict=True)
        return tuple(jax.sharding.reshard(value, spec(array)) for value, array in pairs)

    def plain(
        self, library: Numpy, ended: Callable[[tuple[Any, ...]], tuple[Any, ...]] = tuple
    ) -> Callable[[Any, Any], tuple[Any, Any]]:
        """Give the function of inputs and cotangents that returns outputs and gradients."""

        def run(inputs: Any, cotangents: Any) -> tuple[Any, Any]:
            def forward(*values: Any) -> tuple[Any, ...]:
                return ended(evaluate(self.program, library, values, self.ends))

            outputs, pullback = jax.vjp(forward, *inputs)
            return outputs, pullback(tuple(cotangents))

        return run


def spec(array: Array) -> PartitionSpec:
    """Write a layout as JAX does."""
    parts = [tuple(axis.name for axis in axes) or None for axes in array.layout.sharding]
    return PartitionSpec(*parts)


def sharded(text: str, kind: AxisType = AxisType.Auto) -> Sharded:
    """Read a program and make its mesh."""
    program, leaves, ends = whole(text)
    sizes = {info.axis.name: info.size or 1 for info in program.mesh.axes}
    count = int(np.prod(list(sizes.values())))
    devices = np.asarray(jax.devices("cpu")[:count], dtype=object).reshape(tuple(sizes.values()))
    mesh = Mesh(devices, tuple(sizes), axis_types=(kind,) * len(sizes))
    return Sharded(program, leaves, ends, mesh)


def compiled(text: str) -> Any:
    """Compile a program with `jax.jit`, with nothing but its shardings at the ends."""
    given = sharded(text)
    ins, cotangents = given.arguments()
    outs = tuple(given.sharding(x) for x in given.ends), tuple(map(given.sharding, given.leaves))
    run = jax.jit(given.plain(Numpy()), out_shardings=outs)
    return run.lower(ins, cotangents).compile()


def shardy(text: str) -> dict[str, Any]:
    """Count the bytes of `jax.jit`."""
    return told(hlo.count(compiled(text).as_text()))


def explicit(text: str) -> dict[str, Any]:
    """Count the bytes of the explicit-sharding mode, or say why it refuses."""
    given = sharded(text, AxisType.Explicit)
    outs = tuple(map(given.sharding, given.ends)), tuple(map(given.sharding, given.leaves))
    with jax.sharding.set_mesh(given.mesh):
        ins, cotangents = given.arguments()
        run = jax.jit(given.plain(Typed(), given.ended), out_shardings=outs)
        try:
            lowered = run.lower(ins, cotangents)
        except Exception as error:  # noqa: BLE001 - whatever JAX raises is its refusal
            return {"refused": f"{type(error).__name__}: {str(error).splitlines()[0]}"}
        return told(hlo.count(lowered.compile().as_text()))


def told(found: hlo.Bytes) -> dict[str, Any]:
    """Give a count as JSON."""
    return {
        "raw": float(found.raw),
        "bytes": float(found.corrected),
        "shared": float(found.shared),
        "collectives": list(found.collectives),
    }
