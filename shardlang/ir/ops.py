"""The verbs of the language: operations of the global program, and the collectives of a plan.

An operation says what is computed and nothing about layouts; a collective changes a layout and
computes nothing (but for finishing a reduction). Steps of a plan use both.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from shardlang.ir.types import Axis, Dim, Reduction


@dataclass(frozen=True, slots=True)
class Einsum:
    """Multiply two or more operands by dim name and sum over `contracted` (which may be empty).

    `A[B, D] ·_D W[D, F]`; with nothing contracted it is the elementwise product `A ⊙ B`.
    """

    contracted: tuple[Dim, ...] = ()


@dataclass(frozen=True, slots=True)
class Coefficient:
    """A factor in a linear combination: `value / (|d1| * |d2| ...)`; sizes are global."""

    value: Fraction = Fraction(1)
    per: tuple[Dim, ...] = ()

    def __post_init__(self) -> None:
        """Sort the dims, so that equal factors are equal objects."""
        object.__setattr__(self, "per", tuple(sorted(self.per)))


@dataclass(frozen=True, slots=True)
class Linear:
    """A linear combination of operands with broadcasting: `2*A + B - C + 1`.

    One coefficient an operand; `constant` is added once. With one operand, coefficient 1 and a
    result of more dims it is a broadcast; of the same dims, a copy.
    """

    coefficients: tuple[Coefficient, ...]
    constant: Fraction = Fraction(0)


@dataclass(frozen=True, slots=True)
class Map:
    """A unary function applied to each element, by its name in `shardlang.ir.functions`."""

    function: str


@dataclass(frozen=True, slots=True)
class Divide:
    """Elementwise quotient of two operands, with broadcasting: linear in the first alone."""


@dataclass(frozen=True, slots=True)
class Equal:
    """1 where two operands are equal, else 0, with broadcasting; it has no gradient."""


@dataclass(frozen=True, slots=True)
class Reduce:
    """Reduce one operand along dims: `sum_B(A)`, `mean_B(A)`, `max_B(A)`.

    `mean` divides by the global size, so that a partial mean is still to be summed.
    """

    kind: Literal["sum", "mean", "max", "min"]
    dims: tuple[Dim, ...]

    @property
    def combines(self) -> Reduction:
        """How partial results of different devices are combined."""
        return "sum" if self.kind in ("sum", "mean") else self.kind


@dataclass(frozen=True, slots=True)
class Rename:
    """The same numbers under other dim names, place by place: `x[B, S, D]` of an `x[B, T, D]`.

    `dims` are the result's, in the operand's order. Nothing moves and nothing is computed.
    """

    dims: tuple[Dim, ...]


@dataclass(frozen=True, slots=True)
class AllGather:
    """Join the shards of `dim` over `axes`, which must be its innermost axes, in that order."""

    axes: tuple[Axis, ...]
    dim: Dim


@dataclass(frozen=True, slots=True)
class ReduceScatter:
    """Add partial sums over `axes` and leave `dim` split by them, inside its present axes."""

    axes: tuple[Axis, ...]
    dim: Dim


@dataclass(frozen=True, slots=True)
class AllReduce:
    """Combine partial results over `axes`; every device of them then holds the whole."""

    axes: tuple[Axis, ...]


@dataclass(frozen=True, slots=True)
class AllToAll:
    """Move `axes`, the innermost ones of `source`, to the inside of `dim`."""

    axes: tuple[Axis, ...]
    source: Dim
    dim: Dim


@dataclass(frozen=True, slots=True)
class Permute:
    """Send whole shards between devices: any two layouts with the same local shape."""

    axes: tuple[Axis, ...]


@dataclass(frozen=True, slots=True)
class Slice:
    """Keep the own shard of a `dim` that is replicated over `axes`: nothing moves."""

    axes: tuple[Axis, ...]
    dim: Dim


@dataclass(frozen=True, slots=True)
class Mask:
    """Keep a replicated value on index 0 of `axes` and zero elsewhere, so that it is `{U_axes}`."""

    axes: tuple[Axis, ...]


@dataclass(frozen=True, slots=True)
class Ring:
    """A product and a collective at once: shards go round the devices, a product at each of them.

    With an AllGather, `operand` is the place of the operand whose shards go round: each is multiplied as
    it comes by, and the gathered array exists nowhere, unless `keep` says that other steps read it. With a
    ReduceScatter it is the result's partial sums that go round, each device adding its own.
    `RingGather_Y(A[B, D_Y]) ·_D W[D, F]`, `RingScatter_{Y,D}(H[B, F_Y] ·_F W[F_Y, D])`.
    """

    product: Einsum
    move: AllGather | ReduceScatter
    operand: int = 0
    keep: bool = False

    @property
    def axes(self) -> tuple[Axis, ...]:
        """The axes that the ring goes over, the first one outermost."""
        return self.move.axes

    @property
    def dim(self) -> Dim:
        """The dim that is joined or split."""
        return self.move.dim

    @property
    def gathers(self) -> bool:
        """Whether it is an operand that goes round."""
        return isinstance(self.move, AllGather)


Collective = AllGather | ReduceScatter | AllReduce | AllToAll | Permute | Ring
"""What moves data between devices."""

LocalMove = Slice | Mask
"""What changes a layout and moves nothing."""

Relayout = AllGather | ReduceScatter | AllReduce | AllToAll | Permute | Slice | Mask
"""What changes a layout and not the value."""

Compute = Einsum | Linear | Map | Divide | Equal | Reduce | Rename | Ring
"""What computes a new value."""

Op = Compute | Relayout
