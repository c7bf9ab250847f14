"""The nouns of the language: dims, axes, the mesh, dtypes, tensors, layouts, arrays.

A *tensor* is a value with named dims; a *layout* says how its shards lie on the mesh; an *array*
is a tensor in one layout. Everything here is immutable and compares by value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from shardlang.ir.size import Monomial

Reduction = Literal["sum", "max", "min"]


@dataclass(frozen=True, slots=True, order=True)
class Dim:
    """A logical dimension, by name (`B`, `d_model`). Sizes are kept apart, in the program."""

    name: str

    def __str__(self) -> str:
        """Print the bare name."""
        return self.name


@dataclass(frozen=True, slots=True, order=True)
class Axis:
    """A mesh axis, by name (`X`, `data`). Size and network are kept in the mesh."""

    name: str

    def __str__(self) -> str:
        """Print the bare name."""
        return self.name


@dataclass(frozen=True, slots=True)
class AxisInfo:
    """What the mesh declares of one axis.

    `size` None is a symbol. `network` is the wire that the axis runs over; `links` is the number of
    hardware axes it spans (the book's M_X). `whole` is the axis that this is a part of.
    """

    axis: Axis
    size: int | None = None
    network: Literal["ici", "dcn"] = "ici"
    links: int = 1
    whole: Axis | None = None

    @property
    def wire(self) -> Axis:
        """The axis whose links it uses: parts of one axis share them."""
        return self.whole or self.axis


@dataclass(frozen=True, slots=True)
class Mesh:
    """The named axes of the device mesh, outermost first; no two share a name."""

    axes: tuple[AxisInfo, ...] = ()

    def __getitem__(self, axis: Axis) -> AxisInfo:
        """Give what is declared of an axis."""
        for info in self.axes:
            if info.axis == axis:
                return info
        raise KeyError(axis.name)

    def __contains__(self, axis: Axis) -> bool:
        """Say whether the axis is declared."""
        return any(info.axis == axis for info in self.axes)

    @property
    def names(self) -> tuple[str, ...]:
        """The axis names, in mesh order."""
        return tuple(info.axis.name for info in self.axes)

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes that are known, by axis name."""
        return {info.axis.name: info.size for info in self.axes if info.size is not None}

    def order(self, axes: Iterable[Axis]) -> tuple[Axis, ...]:
        """Put axes into mesh order."""
        wanted = set(axes)
        return tuple(info.axis for info in self.axes if info.axis in wanted)


@dataclass(frozen=True, slots=True)
class DType:
    """An element type: its name in the notation and its width in bits."""

    name: str
    bits: int
    kind: Literal["float", "int", "bool"]

    def __str__(self) -> str:
        """Print the notation's name."""
        return self.name


DTYPES: Mapping[str, DType] = {
    dtype.name: dtype
    for dtype in (
        DType("f64", 64, "float"),
        DType("f32", 32, "float"),
        DType("bf16", 16, "float"),
        DType("f16", 16, "float"),
        DType("f8e4m3", 8, "float"),
        DType("f8e5m2", 8, "float"),
        DType("int64", 64, "int"),
        DType("int32", 32, "int"),
        DType("int16", 16, "int"),
        DType("int8", 8, "int"),
        DType("int4", 4, "int"),
        DType("uint32", 32, "int"),
        DType("uint16", 16, "int"),
        DType("uint8", 8, "int"),
        DType("uint4", 4, "int"),
        DType("bool", 8, "bool"),
    )
}
"""Element types by their canonical name."""

DTYPE_ALIASES: Mapping[str, str] = {
    "bfloat16": "bf16",
    "float64": "f64",
    "fp64": "f64",
    "float32": "f32",
    "fp32": "f32",
    "float16": "f16",
    "fp16": "f16",
    "fp8": "f8e4m3",
    "f8": "f8e4m3",
    "float8_e4m3": "f8e4m3",
    "float8_e5m2": "f8e5m2",
    "i64": "int64",
    "i32": "int32",
    "i16": "int16",
    "i8": "int8",
    "i4": "int4",
    "u32": "uint32",
    "u16": "uint16",
    "u8": "uint8",
    "u4": "uint4",
}
"""Other spellings that the book and its readers use."""


def promote(dtypes: Iterable[DType]) -> DType:
    """Give the dtype of a result that declares none.

    Equal dtypes stay; of two floats or two integers the wider wins (f16 with bf16 gives f32); a
    float wins over an integer, and anything over bool.
    """
    rank = {"bool": 0, "int": 1, "float": 2}
    result: DType | None = None
    for dtype in dtypes:
        if result is None or (rank[dtype.kind], dtype.bits) > (rank[result.kind], result.bits):
            result = dtype
        elif dtype != result and (dtype.kind, dtype.bits) == (result.kind, result.bits):
            result = DTYPES["f32"] if dtype.kind == "float" else result
    if result is None:
        raise ValueError("no dtypes to promote")
    return result


@dataclass(frozen=True, slots=True)
class Tensor:
    """A value: its name, its dims in the order they were first written, and its dtype."""

    name: str
    dims: tuple[Dim, ...]
    dtype: DType

    @property
    def elements(self) -> Monomial:
        """The global number of elements."""
        return Monomial.of(*(dim.name for dim in self.dims))


def prefix(left: tuple[Axis, ...], right: tuple[Axis, ...]) -> tuple[Axis, ...]:
    """Give the axes that both begin with."""
    length = 0
    while length < min(len(left), len(right)) and left[length] == right[length]:
        length += 1
    return left[:length]


@dataclass(frozen=True, slots=True)
class Layout:
    """How a tensor's shards lie on the mesh.

    `sharding` gives, for each dim of the tensor in order, the axes that split it, outermost first.
    `unreduced` are the axes over which every device still holds a partial result, to be combined by
    `reduction`. An axis stands at most once in all of it; every other axis is replicated over.
    """

    sharding: tuple[tuple[Axis, ...], ...] = ()
    unreduced: frozenset[Axis] = frozenset()
    reduction: Reduction = "sum"

    @staticmethod
    def replicated(rank: int) -> Layout:
        """Give the layout in which every device holds everything."""
        return Layout(((),) * rank)

    @property
    def split_axes(self) -> tuple[Axis, ...]:
        """The axes that split some dim, in dim order."""
        return tuple(axis for axes in self.sharding for axis in axes)

    @property
    def used(self) -> frozenset[Axis]:
        """Every axis that the layout names."""
        return self.unreduced.union(self.split_axes)

    def duplicates(self) -> tuple[Axis, ...]:
        """The axes that stand more than once: a legal layout has none."""
        seen: set[Axis] = set()
        twice: list[Axis] = []
        for axis in (*self.split_axes, *sorted(self.unreduced)):
            if axis in seen and axis not in twice:
                twice.append(axis)
            seen.add(axis)
        return tuple(twice)

    def moved(self, other: Layout) -> tuple[Axis, ...]:
        """Give the axes, by name, that split other places in another layout: those a Permute uses.

        Axes that a dim begins or ends with in both stay, as its blocks' numbers have mixed radixes.
        """
        found: set[Axis] = set()
        for old, new in zip(self.sharding, other.sharding, strict=True):
            same = len(prefix(old, new))
            left, right = old[same:], new[same:]
            same = len(prefix(left[::-1], right[::-1]))
            found.update(left[: len(left) - same])
            found.update(right[: len(right) - same])
        return tuple(sorted(found))

    def reduced(self) -> Layout:
        """Give the same sharding with nothing left to reduce: also the cotangent's layout."""
        return Layout(self.sharding)


@dataclass(frozen=True, slots=True)
class Array:
    """A tensor in one layout: what a step reads or makes."""

    tensor: Tensor
    layout: Layout

    def __post_init__(self) -> None:
        """Refuse a layout of another rank."""
        if len(self.layout.sharding) != len(self.tensor.dims):
            raise ValueError(f"{self.tensor.name}: layout and tensor differ in rank")

    @property
    def name(self) -> str:
        """The tensor's name."""
        return self.tensor.name

    def axes(self, dim: Dim) -> tuple[Axis, ...]:
        """Give the axes that split a dim, outermost first; a dim that is missing has none."""
        for own, axes in zip(self.tensor.dims, self.layout.sharding, strict=True):
            if own == dim:
                return axes
        return ()

    def with_layout(self, layout: Layout) -> Array:
        """Give the same tensor in another layout."""
        return Array(self.tensor, layout)

    @property
    def local_elements(self) -> Monomial:
        """The number of elements that one device holds: dims over the axes that split them."""
        over = Monomial.of(*(axis.name for axis in self.layout.split_axes))
        return self.tensor.elements / over

    @property
    def local_bytes(self) -> Monomial:
        """The number of bytes that one device holds."""
        return self.local_elements * self.tensor.dtype.bits / 8

    def __str__(self) -> str:
        """Print in the notation, as in `Out[B_X, D]{U_Y}`."""
        dims = ", ".join(
            f"{dim}{subscript(axes)}"
            for dim, axes in zip(self.tensor.dims, self.layout.sharding, strict=True)
        )
        return f"{self.tensor.name}[{dims}]{partial_marker(self.layout)}"


def subscript(axes: Iterable[Axis]) -> str:
    """Print axes as a subscript: `_X`, `_XY`, `_data`, `_{data,fsdp}`, or nothing."""
    names = [axis.name for axis in axes]
    if not names:
        return ""
    if len(names) == 1 and "_" not in names[0]:
        return f"_{names[0]}"
    if all(len(name) == 1 for name in names):
        return "_" + "".join(names)
    return "_{" + ",".join(names) + "}"


def partial_marker(layout: Layout) -> str:
    """Print what is still to be reduced: `{U_X}` for sums, `{max_X}` for maxima, or nothing."""
    if not layout.unreduced:
        return ""
    word = "U" if layout.reduction == "sum" else layout.reduction
    return f"{{{word}{subscript(sorted(layout.unreduced))}}}"


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of dims and axes that are known, by name; whatever is missing stays a symbol."""

    known: Mapping[str, int] = field(default_factory=dict[str, int])

    def __getitem__(self, symbol: Dim | Axis) -> int | None:
        """Give a size, or None where it is a symbol."""
        return self.known.get(symbol.name)
