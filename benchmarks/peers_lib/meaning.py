"""What a program computes, as plain array operations of some library.

Reads the program's statements alone; nothing of a plan. A library gives the few operations below, so
that JAX and DTensor are asked for the same mathematics, each as its users would write it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import shardlang as sl
from shardlang.ir.ops import Compute, Divide, Einsum, Linear, Map, Reduce
from shardlang.ir.program import Program
from shardlang.ir.types import Array, Dim

Value = Any
"""An array of the library."""


class Library(Protocol):
    """The operations that a library is asked for."""

    def einsum(self, subscripts: str, values: Sequence[Value]) -> Value:
        """Multiply and sum."""
        ...

    def binary(self, name: str, left: Value, right: Value) -> Value:
        """Add, subtract, multiply or divide, with broadcasting over dims of size 1."""
        ...

    def scaled(self, value: Value, factor: float, constant: float) -> Value:
        """Multiply by a number and add one."""
        ...

    def function(self, name: str, value: Value) -> Value:
        """Apply a function of the language."""
        ...

    def reduce(self, kind: str, value: Value, axes: tuple[int, ...]) -> Value:
        """Sum, average, or take the largest or smallest along dims."""
        ...

    def arrange(self, value: Value, order: Sequence[int], new: Sequence[int]) -> Value:
        """Transpose, then insert dims of size 1 at these places."""
        ...

    def constant(self, value: Value) -> Value:
        """Stop the gradient."""
        ...


def whole(case_text: str) -> tuple[Program, list[Array], list[Array]]:
    """Read a program: its leaves and its outputs, which are what nothing reads."""
    program = sl.parse(case_text)
    used = {use.tensor.name for s in program.statements for use in s.operands}
    ends = [
        Array(s.result, s.target)
        for s in program.statements
        if s.result.name not in used and s.target is not None
    ]
    return program, [leaf.array for leaf in program.leaves], ends


def shape(array: Array, program: Program) -> tuple[int, ...]:
    """Give the global shape of an array."""
    sizes = program.sizes.known
    return tuple(sizes[dim.name] for dim in array.tensor.dims)


def evaluate(
    program: Program, library: Library, inputs: Sequence[Value], wanted: Sequence[Array]
) -> tuple[Value, ...]:
    """Compute the wanted values from those of the leaves, in the leaves' order."""
    leaves = [leaf.array for leaf in program.leaves]
    values = {leaf.name: value for leaf, value in zip(leaves, inputs, strict=True)}
    dims = {leaf.name: leaf.tensor.dims for leaf in leaves}
    for statement in program.statements:
        operands = [(values[u.tensor.name], dims[u.tensor.name]) for u in statement.operands]
        assert isinstance(statement.op, Compute)
        result = statement.result.dims
        value = _compute(statement.op, operands, result, library, program)
        values[statement.result.name] = library.constant(value) if statement.constant else value
        dims[statement.result.name] = result
    return tuple(values[array.name] for array in wanted)


Operand = tuple[Value, tuple[Dim, ...]]


def _compute(
    op: Compute,
    operands: Sequence[Operand],
    result: tuple[Dim, ...],
    lib: Library,
    program: Program,
) -> Value:
    """Compute one statement."""
    match op:
        case Einsum(()) if any(set(dims) == set(result) for _, dims in operands):
            total, *others = (_aligned(x, result, lib) for x in operands)
            for other in others:
                total = lib.binary("multiply", total, other)
            return total
        case Einsum():
            every = dict.fromkeys(dim for _, dims in operands for dim in dims)
            letters = {dim: chr(ord("a") + i) for i, dim in enumerate(every)}
            left = ",".join("".join(letters[d] for d in dims) for _, dims in operands)
            right = "".join(letters[dim] for dim in result)
            return lib.einsum(f"{left}->{right}", [value for value, _ in operands])
        case Linear(coefficients, constant):
            sizes = program.sizes.known
            total = None
            for operand, c in zip(operands, coefficients, strict=True):
                factor = float(c.value) / math.prod(sizes[dim.name] for dim in c.per)
                value = _aligned(operand, result, lib)
                if total is None:
                    total = value if factor == 1 else lib.scaled(value, factor, 0.0)
                elif abs(factor) == 1:
                    total = lib.binary("add" if factor == 1 else "subtract", total, value)
                else:
                    total = lib.binary("add", total, lib.scaled(value, factor, 0.0))
            return lib.scaled(total, 1.0, float(constant)) if constant else total
        case Map(name):
            return _aligned((lib.function(name, operands[0][0]), operands[0][1]), result, lib)
        case Divide():
            left, right = (_aligned(x, result, lib) for x in operands)
            return lib.binary("divide", left, right)
        case Reduce(kind, over):
            value, dims = operands[0]
            rest = tuple(dim for dim in dims if dim not in over)
            reduced = lib.reduce(kind, value, tuple(dims.index(dim) for dim in over))
            return _aligned((reduced, rest), result, lib)
        case _:
            raise NotImplementedError(op)


def _aligned(operand: Operand, wanted: tuple[Dim, ...], lib: Library) -> Value:
    """Order an operand's dims as wanted, with dims of size 1 for those that it lacks."""
    value, dims = operand
    if dims == wanted:
        return value
    order = [dims.index(dim) for dim in wanted if dim in dims]
    return lib.arrange(value, order, [i for i, dim in enumerate(wanted) if dim not in dims])
