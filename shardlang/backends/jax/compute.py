"""Writes one compute step as JAX code: the same code for a device's shards and for whole arrays.

Dims are matched by name: operands are transposed and given broadcast dims where their order
differs from the result's. bf16, f16 and f8 are accumulated in f32 and rounded once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from shardlang.backends.jax.functions import CODE, EXACT
from shardlang.backends.jax.pretty import call, chain, Entry, flat, Item, layout, parens, WIDTH
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
from shardlang.ir.size import Monomial
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


COMPARISONS: Mapping[str, str] = {
    "==": "jnp.equal",
    "!=": "jnp.not_equal",
    "<": "jnp.less",
    "<=": "jnp.less_equal",
    ">": "jnp.greater",
    ">=": "jnp.greater_equal",
}
"""JAX's names of relations."""


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

    def powers(self, coefficient: Coefficient) -> tuple[list[str], list[str]]:
        """Write the powers of sizes that a factor multiplies by, and those that it divides by."""
        sides: tuple[list[str], list[str]] = ([], [])
        for dim, power in coefficient.powers:
            size = abs(power)
            exponent = "" if size == 1 else f" ** {size if size.denominator == 1 else float(size)}"
            sides[power < 0].append(self.size(dim) + exponent)
        return sides


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
        case Compare(relation, bound):
            writer.compare(relation, bound, operands)
        case Select(fill):
            writer.select(fill, *operands)
        case Take():
            writer.take(op, inputs, operands)
        case Put():
            writer.put(op, operands)
        case Reduce():
            writer.reduce(op, operands[0])
        case Update():
            raise TypeError("an update is the optimizer's, not a step of its own")
        case RingAttention():
            raise TypeError("attention makes several arrays, and is written by itself")
        case Rename(dims):
            writer.rename(operands[0], dims)
        case Rotary():
            writer.rotary(op, operands)
        case Reshape():
            writer.reshape(op, operands[0])
        case Top():
            writer.top(op, operands[0])
        case Rank(dims):
            writer.rank(dims, operands[0])
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
            shape.append(self._local(dim))
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
        floats = not all(c.whole for c in op.coefficients)
        floats = floats or op.constant.denominator != 1
        terms: list[tuple[str, Operand, str]] = []
        for index, (c, operand) in enumerate(zip(op.coefficients, operands, strict=True)):
            sign = ("-" if c.value < 0 else "+") if index else ("-" if c.value < 0 else "")
            terms.append((sign, operand, self._term(c)))
        steps = sum((abs(c.value) != 1) + len(c.powers) for c in op.coefficients)
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
        above, below = self._scope.powers(coefficient)
        return "".join((*(f"{part} * " for part in above), text, *(f" / {x}" for x in below)))

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

    def compare(self, relation: str, bound: Monomial | None, operands: list[Operand]) -> None:
        """Give 1 where a relation holds between two operands, or between one and a number."""
        present = tuple(d for d in self._dims if any(d in x.dims for x in operands))
        same = common({operand.dtype for operand in operands})
        if bound is not None:
            same = wide({same})
        sides = [cast(aligned(x.code, x.dims, present), x.dtype, same) for x in operands]
        if bound is not None:
            sides.append(self._number(bound))
        left, right = sides
        code = f"({left} {relation} {right}).astype({dtype_code(self._dtype)})"
        if self._fits(code):
            self._assign(code)
            self._finish(present, self._dtype)
            return
        self._assign(call(COMPARISONS[relation], left, right))
        self._finish(present, "bool")

    def _number(self, number: Monomial) -> str:
        """Write a number with sizes: exact where it is a whole one."""
        over, under = number.coefficient.numerator, number.coefficient.denominator
        factors = [str(over)] if abs(over) != 1 or not number.powers else []
        factors += [self._scope.size(Dim(n)) for n, power in number.powers for _ in range(power)]
        parts = [str(under)] if under != 1 else []
        parts += [self._scope.size(Dim(n)) for n, power in number.powers for _ in range(-power)]
        text = " / ".join((" * ".join(factors) or "1", *parts))
        return f"-{text}" if over == -1 and number.powers else text

    def select(self, fill: Fraction | None, mask: Operand, operand: Operand) -> None:
        """Keep a value where a mask is not 0, and fill in the rest."""
        present = tuple(d for d in self._dims if d in mask.dims or d in operand.dims)
        here = aligned(mask.code, mask.dims, present)
        value = cast(aligned(operand.code, operand.dims, present), operand.dtype, self._dtype)
        condition = here if mask.dtype == "bool" else f"{here} != 0"
        self._assign(call("jnp.where", condition, value, self._filling(fill)))
        self._finish(present, self._dtype)

    def _filling(self, fill: Fraction | None) -> str:
        if fill is None:
            if self._dtype == "bool":
                return "False"
            info = "finfo" if "float" in self._dtype else "iinfo"
            return f"jnp.{info}({dtype_code(self._dtype)}).min"
        return ("-" if fill < 0 else "") + _literal(abs(fill))

    def take(self, op: Take, inputs: tuple[Array, ...], operands: list[Operand]) -> None:
        """Look rows up: ids count from where the own shard of the table begins, others give 0."""
        table, *ids = operands
        points = tuple(dict.fromkeys(dim for x in ids for dim in x.dims))
        by_dim = dict(zip(op.dims, ids, strict=True))
        sizes = {dim: f"{table.code}.shape[{i}]" for i, dim in enumerate(table.dims)}
        places: list[Item] = []
        for dim in table.dims:
            if dim in by_dim:
                axes = inputs[0].axes(dim)
                places.append(self._places(by_dim[dim], points, sizes[dim], axes))
            else:
                places.append(_counted(dim, sizes[dim], points))
        self._assign(call("_take_rows", table.code, *places))
        self._finish(_indexed(table.dims, (*op.dims, *points), points), table.dtype)

    def put(self, op: Put, operands: list[Operand]) -> None:
        """Add values up where their ids say, each device what falls into its own shard.

        Where nothing is summed over, no place gets two values, so that each is compared with its id.
        """
        values, *ids = operands
        if not op.contracted:
            self._spread(op, values, ids)
            return
        points = tuple(dict.fromkeys(dim for x in ids for dim in x.dims))
        by_dim = dict(zip(op.dims, ids, strict=True))
        sizes = {d: f"{x.code}.shape[{i}]" for x in operands for i, d in enumerate(x.dims)}
        sizes.update((dim, self._rows(dim)) for dim in op.dims)
        places: list[Item] = []
        for dim in self._dims:
            if dim in by_dim:
                axes = self._output.axes(dim)
                places.append(self._places(by_dim[dim], points, sizes[dim], axes))
            else:
                places.append(_counted(dim, sizes[dim], points))
        wanted = _indexed(self._dims, (*op.dims, *points), points)
        gone = [str(i) for i, dim in enumerate(values.dims) if dim not in wanted]
        same = wide({values.dtype, self._dtype})
        code = cast(values.code, values.dtype, same)
        if gone:
            code = flat(call("jnp.sum", code, Entry("axis=", parens(*gone))))
        laid = aligned(code, tuple(dim for dim in values.dims if dim in wanted), wanted)
        shape = parens(*(sizes[dim] for dim in self._dims))
        self._assign(call("_add_rows", shape, laid, *places))
        self._finish(self._dims, same)

    def _rows(self, dim: Dim) -> str:
        """Write how many places along a dim of the result a device has."""
        axes = self._output.axes(dim)
        parts = f" // {flat(call('lax.axis_size', self._scope.axes(axes)))}" if axes else ""
        return f"{self._scope.size(dim)}{parts}"

    def _spread(self, op: Put, values: Operand, ids: list[Operand]) -> None:
        """Write a value at the place that its ids say and 0 elsewhere, element by element."""
        hits: list[Item] = []
        for one, dim in zip(ids, op.dims, strict=True):
            left = self._places(one, self._dims, self._rows(dim), self._output.axes(dim))
            right = _counted(dim, self._rows(dim), self._dims)
            hits.append(call("jnp.equal", left, right))
        condition = hits[0]
        for hit in hits[1:]:
            condition = call("jnp.logical_and", condition, hit)
        value = cast(aligned(values.code, values.dims, self._dims), values.dtype, self._dtype)
        self._assign(call("jnp.where", condition, value, "0"))

    def _places(
        self, ids: Operand, wanted: tuple[Dim, ...], size: str, axes: tuple[Axis, ...]
    ) -> Item:
        """Write ids as places in a device's shard of so many rows."""
        code = cast(ids.code, ids.dtype, "int64" if ids.dtype == "int64" else "int32")
        start = [self._scope.axes(axes)] if axes else []
        return call("_places", aligned(code, ids.dims, wanted), size, *start)

    def rename(self, operand: Operand, dims: tuple[Dim, ...]) -> None:
        """Read an operand's dims under other names, place by place."""
        self._assign(operand.code)
        self._finish(dims, operand.dtype)

    def rotary(self, op: Rotary, operands: list[Operand]) -> None:
        """Turn pairs by angles, in 32 bits."""
        turned, angle = operands
        same = wide({turned.dtype, self._dtype, "float32"})
        own = tuple(op.dim if dim == op.half else dim for dim in angle.dims)
        present = tuple(d for d in self._dims if d in turned.dims or d in own)
        x = cast(aligned(turned.code, turned.dims, present), turned.dtype, same)
        by = cast(aligned(angle.code, own, present), angle.dtype, same)
        sign = "-" if op.back else ""
        self._assign(call("_rotary", x, sign + by, f"axis={present.index(op.dim) - len(present)}"))
        self._finish(present, same)

    def reshape(self, op: Reshape, operand: Operand) -> None:
        """Write one dim as several, or several as one; the sizes are those of a shard."""
        first = next(dim for dim in operand.dims if dim in op.source)
        beside = [dim for dim in operand.dims if dim not in op.source or dim == first]
        at = beside.index(first)
        before, after = tuple(beside[:at]), tuple(beside[at + 1 :])
        code = aligned(operand.code, operand.dims, (*before, *op.source, *after))
        shape = {dim: f"{operand.code}.shape[{operand.dims.index(dim)}]" for dim in beside}
        inner = ("-1", *(self._local(dim) for dim in op.into[1:]))
        sizes = (*(shape[dim] for dim in before), *inner, *(shape[dim] for dim in after))
        self._assign(call(f"{code}.reshape", *sizes))
        self._finish((*before, *op.into, *after), operand.dtype)

    def _local(self, dim: Dim) -> str:
        """Write the size of a device's part of a dim of the result."""
        axes = self._output.axes(dim)
        parts = f" // {flat(call('lax.axis_size', self._scope.axes(axes)))}" if axes else ""
        return f"{self._scope.size(dim)}{parts}"

    def top(self, op: Top, operand: Operand) -> None:
        """Find the places of the largest along a dim, the lower index first."""
        rest = tuple(dim for dim in operand.dims if dim != op.dim)
        code = aligned(operand.code, operand.dims, (*rest, op.dim))
        self._assign(call("lax.top_k", code, self._scope.size(op.into), tail="[1]"))
        self._finish((*rest, op.into), "int32")

    def rank(self, dims: tuple[Dim, ...], operand: Operand) -> None:
        """Count the earlier places with the same value: the dims are laid out behind each other."""
        rest = tuple(dim for dim in operand.dims if dim not in dims)
        code = aligned(operand.code, operand.dims, (*rest, *dims))
        named = (*rest, *dims)
        shape = [f"{operand.code}.shape[{operand.dims.index(dim)}]" for dim in named]
        if len(dims) > 1:
            code = flat(call(f"{code}.reshape", *shape[: len(rest)], "-1"))
        self._assign(call("_rank", code))
        if len(dims) > 1:
            self._assign(call(f"{self._target}.reshape", *shape))
        self._finish(named, "int32")

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


def _counted(dim: Dim, size: str, wanted: tuple[Dim, ...]) -> str:
    """Write an index that takes each place along a dim: an array where ids have the dim, too."""
    if dim not in wanted:
        return "slice(None)"
    return aligned(f"jnp.arange({size})", (dim,), wanted)


def _indexed(
    dims: tuple[Dim, ...], arrays: tuple[Dim, ...], points: tuple[Dim, ...]
) -> tuple[Dim, ...]:
    """Give the dims of an array whose dims in `arrays` are indexed by arrays with dims `points`.

    These stand where the indexed ones stood, or in front where others stand between (as in numpy).
    """
    places = [i for i, dim in enumerate(dims) if dim in arrays]
    rest = tuple(dim for dim in dims if dim not in arrays)
    joined = places[-1] - places[0] == len(places) - 1
    before = places[0] if joined else 0
    return (*rest[:before], *points, *rest[before:])


def _literal(value: Fraction) -> str:
    """Write a positive number as a literal."""
    if value.denominator == 1:
        return str(value.numerator)
    return repr(float(value))
