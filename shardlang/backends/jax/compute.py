"""Writes one compute step as JAX code: the same code for a device's shards and for whole arrays.

Dims are matched by name: operands are transposed and given broadcast dims where their order
differs from the result's. bf16, f16 and f8 are accumulated in f32 and rounded once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from shardlang.backends.jax.functions import CODE, EXACT
from shardlang.backends.jax.pretty import call, chain, flat, Item, layout, parens, WIDTH
from shardlang.ir.ops import (
    Coefficient,
    Compute,
    Divide,
    Einsum,
    Equal,
    Linear,
    Map,
    Reduce,
    Rename,
    Ring,
)
from shardlang.ir.types import Array, Axis, Dim, DType, DTYPES, promote

JAX_DTYPES: Mapping[str, str] = {
    "f64": "float64",
    "f32": "float32",
    "bf16": "bfloat16",
    "f16": "float16",
    "f8e4m3": "float8_e4m3fn",
    "f8e5m2": "float8_e5m2",
    "int64": "int64",
    "int32": "int32",
    "int16": "int16",
    "int8": "int8",
    "int4": "int4",
    "uint32": "uint32",
    "uint16": "uint16",
    "uint8": "uint8",
    "uint4": "uint4",
    "bool": "bool",
}
"""JAX's names of the element types."""


def dtype_code(dtype: str) -> str:
    """Write a dtype (by JAX's name) as code."""
    return "jnp.bool_" if dtype == "bool" else f"jnp.{dtype}"


def jax_dtype(dtype: DType) -> str:
    """Give JAX's name of a dtype."""
    return JAX_DTYPES[dtype.name]


@dataclass(frozen=True)
class Operand:
    """An operand as code: an expression, the dims that it has in order, and its dtype in JAX."""

    code: str
    dims: tuple[Dim, ...]
    dtype: str

    @property
    def is_name(self) -> bool:
        """Whether it is a bare name, which binds tighter than anything."""
        return self.code.isidentifier()


@dataclass(frozen=True)
class Scope:
    """What the code of a step may refer to besides its operands.

    `letter` gives a dim's einsum letter, `size` the code of its global size, and `axes` writes
    mesh axes as code. `size` records that a module needs the size.
    """

    letter: Callable[[Dim], str]
    size: Callable[[Dim], str]
    axes: Callable[[tuple[Axis, ...]], Item]
    letters: Callable[[tuple[Dim, ...]], Mapping[Dim, str]]


def wide(dtypes: Iterable[str]) -> str:
    """Give the dtype to compute in: f32 for everything narrow, f64 where there is any."""
    listed = set(dtypes)
    if any("float" in dtype for dtype in listed):
        return "float64" if "float64" in listed else "float32"
    if listed & {"int64"}:
        return "int64"
    if "uint32" in listed:
        return "int64" if any(d.startswith("int") for d in listed) else "uint32"
    return "int32"


def cast(code: str, has: str, wants: str) -> str:
    """Write a conversion, where one is needed."""
    return code if has == wants else f"{code}.astype({dtype_code(wants)})"


def compute(
    op: Compute,
    inputs: tuple[Array, ...],
    names: list[str],
    output: Array,
    target: str,
    scope: Scope,
) -> list[str]:
    """Write a compute step as lines that assign `target`, at one level of indentation."""
    operands = [
        Operand(name, array.tensor.dims, jax_dtype(array.tensor.dtype))
        for name, array in zip(names, inputs, strict=True)
    ]
    result = jax_dtype(output.tensor.dtype)
    writer = _Writer(target, output, result, scope)
    op = op.product if isinstance(op, Ring) else op  # on whole arrays
    match op:
        case Einsum(contracted) if contracted or len(operands) == 1:
            writer.einsum(operands)
        case Einsum():
            writer.product(operands)
        case Linear():
            writer.linear(op, operands)
        case Map(function):
            writer.map(function, operands[0])
        case Divide():
            writer.binary("/", operands)
        case Equal():
            writer.equal(operands)
        case Reduce():
            writer.reduce(op, operands[0])
        case Rename(dims):
            writer.rename(operands[0], dims)
    return writer.lines


class _Writer:
    """Collects the lines of one step."""

    def __init__(self, target: str, output: Array, dtype: str, scope: Scope) -> None:
        self.lines: list[str] = []
        self._target = target
        self._output = output
        self._dims = output.tensor.dims
        self._dtype = dtype
        self._scope = scope

    def _assign(self, item: Item) -> None:
        self.lines += layout(f"{self._target} = ", item, 1)

    def _fits(self, code: str) -> bool:
        return len(f"    {self._target} = {code}") <= WIDTH

    def _finish(self, present: tuple[Dim, ...], has: str) -> None:
        """Convert what `target` holds to the result's dtype, dims order and broadcast dims."""
        wanted = tuple(dim for dim in self._dims if dim in present)
        if present != wanted:
            order = parens(*(str(present.index(dim)) for dim in wanted))
            self._assign(call("jnp.transpose", self._target, order))
        if has != self._dtype:
            self._assign(call(f"{self._target}.astype", dtype_code(self._dtype)))
        if wanted != self._dims:
            self._broadcast(wanted)

    def _broadcast(self, present: tuple[Dim, ...]) -> None:
        """Repeat along the dims of the result that no operand has, each device its own part."""
        value = aligned(self._target, present, self._dims)
        shape: list[Item] = []
        for dim in self._dims:
            if dim in present:
                shape.append(f"{self._target}.shape[{present.index(dim)}]")
                continue
            axes = self._output.axes(dim)
            parts = f" // {flat(call('lax.axis_size', self._scope.axes(axes)))}" if axes else ""
            shape.append(f"{self._scope.size(dim)}{parts}")
        self._assign(call("jnp.broadcast_to", value, parens(*shape)))

    def einsum(self, operands: list[Operand]) -> None:
        """Multiply and sum over what the result lacks, accumulating in 32 bits."""
        dims = tuple(dict.fromkeys(d for x in operands for d in x.dims))
        letters = self._scope.letters(dims)
        has = {operand.dtype for operand in operands}
        same = common(has)
        codes: list[Item] = [cast(operand.code, operand.dtype, same) for operand in operands]
        terms = ",".join("".join(letters[d] for d in x.dims) for x in operands)
        present = tuple(dim for dim in self._dims if dim in dims)
        spec = f'"{terms}->{"".join(letters[d] for d in present)}"'
        into = wide({same, self._dtype} if "float" in same else {same})
        extra = [f"preferred_element_type={dtype_code(into)}"] if into != same else []
        self._assign(call("jnp.einsum", spec, *codes, *extra))
        self._finish(present, into)

    def product(self, operands: list[Operand]) -> None:
        """Multiply elementwise, with broadcasting over dims that an operand lacks."""
        self.binary("*", operands, exact=len(operands) == 2)

    def binary(self, symbol: str, operands: list[Operand], *, exact: bool = True) -> None:
        """Chain operands with one operator."""
        floats = symbol == "/"
        signed = [(symbol if index else "", x, "{}") for index, x in enumerate(operands)]
        self._chain(signed, operands, exact=exact, floats=floats)

    def linear(self, op: Linear, operands: list[Operand]) -> None:
        """Add operands with their coefficients, and the constant."""
        floats = any(c.value.denominator != 1 or c.per for c in op.coefficients)
        floats = floats or op.constant.denominator != 1
        terms: list[tuple[str, Operand, str]] = []
        for index, (c, operand) in enumerate(zip(op.coefficients, operands, strict=True)):
            sign = ("-" if c.value < 0 else "+") if index else ("-" if c.value < 0 else "")
            terms.append((sign, operand, self._term(c)))
        steps = sum((abs(c.value) != 1) + len(c.per) for c in op.coefficients)
        steps += len(operands) - 1 + (op.constant != 0)
        constant = None
        if op.constant:
            constant = ("-" if op.constant < 0 else "+", _literal(abs(op.constant)))
        self._chain(terms, operands, exact=steps <= 1, floats=floats, constant=constant)

    def _term(self, coefficient: Coefficient) -> str:
        """Write a coefficient around `{}`, without its sign."""
        value = abs(coefficient.value)
        text = "{}"
        if value.numerator == 1 and value.denominator != 1:
            text = f"{{}} / {value.denominator}"
        elif value != 1:
            text = f"{_literal(value)} * {{}}"
        return text + "".join(f" / {self._scope.size(dim)}" for dim in coefficient.per)

    def _chain(
        self,
        terms: list[tuple[str, Operand, str]],
        operands: list[Operand],
        *,
        exact: bool,
        floats: bool,
        constant: tuple[str, str] | None = None,
    ) -> None:
        """Write `term op term op ...`; a term is a sign, an operand, and its code or a pattern."""
        has = {operand.dtype for operand in operands}
        native = exact and has == {self._dtype} and not (floats and "float" not in self._dtype)
        same = self._dtype if native else wide({*has, self._dtype, *(["float32"] * floats)})
        present = tuple(d for d in self._dims if any(d in x.dims for x in operands))
        pieces: list[tuple[str, str]] = []
        for sign, operand, pattern in terms:
            code = cast(aligned(operand.code, operand.dims, present), operand.dtype, same)
            pieces.append((sign, pattern.replace("{}", code, 1)))
        if constant:
            pieces.append(constant)
        text = " ".join(
            f"{sign} {code}" if i else sign + code for i, (sign, code) in enumerate(pieces)
        )
        atom = len(pieces) == 1 and text == aligned(operands[0].code, operands[0].dims, present)
        done = cast(text if atom or same == self._dtype else f"({text})", same, self._dtype)
        if self._fits(done):
            self._assign(done)
            self._finish(present, self._dtype)
            return
        self.lines += chain(f"{self._target} = ", pieces, 1)
        self._finish(present, same)

    def map(self, function: str, operand: Operand) -> None:
        """Apply a function to each element."""
        native = operand.dtype == self._dtype and "float" in self._dtype
        native = native and (function in EXACT or self._dtype in ("float32", "float64"))
        native = native and not self._dtype.startswith("float8")
        same = self._dtype if native else wide({operand.dtype, self._dtype, "float32"})
        code = CODE[function].replace("{x}", cast(operand.code, operand.dtype, same))
        atom = CODE[function].startswith(("jax.", "jnp.", "lax.", "_"))
        full = cast(code if atom or same == self._dtype else f"({code})", same, self._dtype)
        if self._fits(full):
            self._assign(full)
            self._finish(operand.dims, self._dtype)
            return
        if same == operand.dtype:
            self._assign(operand.code)
        else:
            self._assign(call(f"{operand.code}.astype", dtype_code(same)))
        head, _, rest = CODE[function].partition("({x}")
        self._assign(
            call(head, self._target)
            if atom and rest == ")"
            else CODE[function].replace("{x}", self._target)
        )
        self._finish(operand.dims, same)

    def equal(self, operands: list[Operand]) -> None:
        """Give 1 where operands are equal."""
        present = tuple(d for d in self._dims if any(d in x.dims for x in operands))
        same = common({operand.dtype for operand in operands})
        left, right = (cast(aligned(x.code, x.dims, present), x.dtype, same) for x in operands)
        code = f"({left} == {right}).astype({dtype_code(self._dtype)})"
        if self._fits(code):
            self._assign(code)
            self._finish(present, self._dtype)
            return
        self._assign(call("jnp.equal", left, right))
        self._finish(present, "bool")

    def rename(self, operand: Operand, dims: tuple[Dim, ...]) -> None:
        """Read an operand's dims under other names, place by place."""
        self._assign(operand.code)
        self._finish(dims, operand.dtype)

    def reduce(self, op: Reduce, operand: Operand) -> None:
        """Reduce along dims; a mean divides by the global size, so that partial means add up."""
        axes = sorted(operand.dims.index(dim) for dim in op.dims)
        axis = f"axis={axes[0]}" if len(axes) == 1 else f"axis=({', '.join(map(str, axes))})"
        rest = tuple(dim for dim in operand.dims if dim not in op.dims)
        function = {"sum": "sum", "mean": "sum", "max": "max", "min": "min"}[op.kind]
        same = operand.dtype
        code: list[Item] = [operand.code, axis]
        if op.combines == "sum":
            mean = ["float32"] * (op.kind == "mean")
            same = wide({operand.dtype, self._dtype, *mean})
            if same != operand.dtype:
                code.append(f"dtype={dtype_code(same)}")
        sizes = [self._scope.size(dim) for dim in op.dims] if op.kind == "mean" else []
        over = "".join(f" / {size}" for size in sizes)
        reduced = call(f"jnp.{function}", *code)
        if self._fits(flat(reduced) + over):
            self._assign(flat(reduced) + over)
        else:
            self._assign(reduced)
            terms = [("", self._target), *(("/", size) for size in sizes)]
            self.lines += chain(f"{self._target} = ", terms, 1) if sizes else []
        self._finish(rest, same)


def common(dtypes: set[str]) -> str:
    """Give the dtype that operands of one product are brought to; f8 and int4 go up when mixed."""
    if len(dtypes) == 1:
        (only,) = dtypes
        return {"int4": "int8", "uint4": "uint8", "bool": "int8"}.get(only, only)
    by_jax = {name: key for key, name in JAX_DTYPES.items()}
    best = jax_dtype(promote(DTYPES[by_jax[name]] for name in sorted(dtypes)))
    return "float32" if best.startswith("float8") else best


def aligned(code: str, dims: tuple[Dim, ...], wanted: tuple[Dim, ...]) -> str:
    """Bring an operand's dims into the order of `wanted`, with broadcast dims where it lacks one."""
    order = tuple(dim for dim in wanted if dim in dims)
    if order != dims:
        positions = tuple(dims.index(dim) for dim in order)
        code = f"{code}.T" if positions == (1, 0) else f"jnp.transpose({code}, {positions})"
    first = next((i for i, dim in enumerate(wanted) if dim in dims), len(wanted))
    index = [":" if dim in dims else "None" for dim in wanted[first:]]
    return f"{code}[{', '.join(index)}]" if "None" in index else code


def _literal(value: Fraction) -> str:
    """Write a positive number as a literal."""
    if value.denominator == 1:
        return str(value.numerator)
    return repr(float(value))
