"""The verbs of the language: operations of the global program, and the collectives of a plan.

An operation says what is computed and nothing about layouts; a collective changes a layout and
computes nothing (but for finishing a reduction). Steps of a plan use both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import prod
from typing import Literal

from shardlang.ir.size import Monomial
from shardlang.ir.types import Array, Axis, Dim, DType, DTYPES, promote, Reduction


@dataclass(frozen=True, slots=True)
class Einsum:
    """Multiply two or more operands by dim name and sum over `contracted` (which may be empty).

    `A[B, D] ·_D W[D, F]`; with nothing contracted it is the elementwise product `A ⊙ B`.
    """

    contracted: tuple[Dim, ...] = ()


@dataclass(frozen=True, slots=True)
class Coefficient:
    """A factor in a linear combination: a number times powers of global sizes, `2 * |B| / sqrt(|D|)`.

    `powers` is sorted and holds no zero, so that equal factors are equal objects; roots of roots are the
    finest.
    """

    value: Fraction = Fraction(1)
    powers: tuple[tuple[Dim, Fraction], ...] = ()

    @staticmethod
    def size(*dims: Dim) -> Coefficient:
        """Give the product of the sizes of some dims."""
        made = Coefficient()
        for dim in dims:
            made *= Coefficient(powers=((dim, Fraction(1)),))
        return made

    def __mul__(self, other: Coefficient) -> Coefficient:
        """Multiply two factors."""
        merged = dict(self.powers)
        for dim, power in other.powers:
            merged[dim] = merged.get(dim, Fraction(0)) + power
        powers = tuple(sorted((dim, power) for dim, power in merged.items() if power))
        return Coefficient(self.value * other.value, powers)

    def __truediv__(self, other: Coefficient) -> Coefficient:
        """Divide by a factor that is not 0."""
        return self * Coefficient(1 / other.value, tuple((d, -p) for d, p in other.powers))

    def evaluate(self, sizes: Mapping[Dim, int]) -> float:
        """Give the number that it is for some sizes, rounded."""
        return float(self.value) * prod(float(sizes[dim]) ** float(p) for dim, p in self.powers)

    @property
    def whole(self) -> bool:
        """Whether it is a whole number for all sizes."""
        return self.value.denominator == 1 and all(
            power > 0 and power.denominator == 1 for _, power in self.powers
        )


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


Relation = Literal["==", "!=", "<", "<=", ">", ">="]
"""How two values may compare."""


@dataclass(frozen=True, slots=True)
class Compare:
    """1 where a relation holds, else 0: `index_S <= index_T`, with broadcasting; no gradient.

    With a `bound` (a number, perhaps times sizes) there is one operand, compared with it: `place < |C|`.
    """

    relation: Relation
    bound: Monomial | None = None


@dataclass(frozen=True, slots=True)
class Select:
    """`where(mask, A, 0)`: the second operand where the first is not 0, else `fill`; with broadcasting.

    `fill` None is the lowest finite number of the result's dtype (`-inf`). Linear in A if `fill` is 0.
    """

    fill: Fraction | None = Fraction(0)


@dataclass(frozen=True, slots=True)
class Take:
    """Look up: `take_V(W[V, D], tokens[B, T])` is `[B, T, D]`; operands are a table and ids, one a dim.

    It is the sum over `dims` of the table times one-hot ids: `dims` are contracted, the other dims align
    by name, and an id out of range gives 0. Linear in the table.
    """

    dims: tuple[Dim, ...]


@dataclass(frozen=True, slots=True)
class Put:
    """Add values up by ids: `put_{E,C}(x, choice, place)` has the new dims E and C; transpose of Take.

    Operands are values and ids, one a new dim. Their dims align by name, and those `contracted` are
    summed over. A value whose id is out of range is dropped. Linear in the values.
    """

    dims: tuple[Dim, ...]
    contracted: tuple[Dim, ...] = ()


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
class Rotary:
    """Turn pairs along `dim` by angles: `rotary_H(x, angle)`, rotary position embedding.

    Operands are x with `dim` (H) and the angles with `half` (R), where |H| = 2|R|; all other dims align by
    name. Of x, h and h+R are a pair (x1, x2), which becomes (x1 cos - x2 sin, x2 cos + x1 sin), as in the
    models of Hugging Face. `back` turns the other way, which is the transpose. Linear in x; the angles
    have no gradient.
    """

    dim: Dim
    half: Dim
    back: bool = False


@dataclass(frozen=True, slots=True)
class Reshape:
    """Write one dim as several, or several as one: `Reshape_{N->K,G}(q)`, `Reshape_{K,G->N}(o)`.

    One side has one dim, whose size is the product of the other side's: row-major, so that k, g is place
    k|G| + g of N. Nothing is computed.
    """

    source: tuple[Dim, ...]
    into: tuple[Dim, ...]

    @property
    def whole(self) -> Dim:
        """The one dim of the one side."""
        return self.source[0] if len(self.source) == 1 else self.into[0]

    @property
    def factors(self) -> tuple[Dim, ...]:
        """The dims of the other side, the outermost first."""
        return self.into if len(self.source) == 1 else self.source

    @property
    def splits(self) -> bool:
        """Whether it writes one dim as several."""
        return len(self.source) == 1


@dataclass(frozen=True, slots=True)
class Top:
    """The places of the |into| largest along `dim`, as int32, in order: `top_{E,J}(gates)`.

    The result has `into` in the place of `dim`; of equal numbers the one with the lower index comes
    first. It has no gradient: `take_E(gates, choice)` has it.
    """

    dim: Dim
    into: Dim


@dataclass(frozen=True, slots=True)
class Rank:
    """For each place, how many earlier ones have the same value, as int32: `rank_{S,J}(choice)`.

    Earlier is meant row by row, in the order of `dims`. It has no gradient.
    """

    dims: tuple[Dim, ...]


@dataclass(frozen=True, slots=True)
class Update:
    """The optimizer's step: the new parameter from the parameter and its gradient, elementwise.

    Its state lies as the operands do. Only the update pass of a plan has it.
    """

    optimizer: str | None = None


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


@dataclass(frozen=True, slots=True)
class RingAttention:
    """Attention whose keys and values go round the devices, with a running softmax.

    Operands are q, k and v, where `dim` (S) of k and v is split over `axes`, and perhaps a `mask`: two
    whole arrays, of S and of a dim of q, that `relation` compares. It makes the sum over S of
    softmax_S(scale * q · k) times v; `q · k` sums over `summed`, which v has in its place. `kept` is the
    logarithm of the sum of exponentials, for the backward pass.

    With `back` it is the gradient: operands are the result's gradient, q, k, v, the result and that
    logarithm (and the mask), it makes dq, and `kept` are dk and dv, which lie as k and v do.
    """

    axes: tuple[Axis, ...]
    dim: Dim
    summed: tuple[Dim, ...]
    scale: Coefficient = Coefficient()
    relation: Relation | None = None
    kept: tuple[Array, ...] = ()
    back: bool = False

    @property
    def query(self) -> int:
        """The place of q among the operands; k and v are behind it."""
        return 1 if self.back else 0

    @property
    def moves(self) -> int:
        """How many arrays go round: k and v, and behind them dk and dv."""
        return 4 if self.back else 2


Collective = AllGather | ReduceScatter | AllReduce | AllToAll | Permute | Ring | RingAttention
"""What moves data between devices."""

LocalMove = Slice | Mask
"""What changes a layout and moves nothing."""

Relayout = AllGather | ReduceScatter | AllReduce | AllToAll | Permute | Slice | Mask
"""What changes a layout and not the value."""

Compute = (
    Einsum
    | Linear
    | Map
    | Divide
    | Compare
    | Select
    | Take
    | Put
    | Reduce
    | Rename
    | Rotary
    | Reshape
    | Top
    | Rank
    | Update
    | Ring
    | RingAttention
)
"""What computes a new value."""


Op = Compute | Relayout
"""What a step does."""


def implied(op: Op, dtypes: Sequence[DType], default: DType | None = None) -> DType | None:
    """Give the dtype of a result that declares none: of what is selected, taken or put, else of all.

    What need not be a whole number of whole numbers, such as their mean, is of the program's dtype, `default`.
    """
    match op:
        case Select():
            return dtypes[1]
        case Top() | Rank():
            return DTYPES["int32"]
        case Take() | Put() | Rotary() | Update() | RingAttention():
            return dtypes[0]
        case _:
            found = promote(dtypes)
            return default if found.kind != "float" and _fractional(op) else found


def sizes_in(op: Op) -> tuple[Dim, ...]:
    """List the dims whose sizes an operation reads as numbers."""
    match op:
        case Linear(coefficients):
            return tuple(dim for factor in coefficients for dim, _ in factor.powers)
        case RingAttention(scale=factor):
            return tuple(dim for dim, _ in factor.powers)
        case Compare(bound=Monomial(powers=powers)):
            return tuple(Dim(name) for name, _ in powers)
        case _:
            return ()


def _fractional(op: Op) -> bool:
    """Say whether an operation of whole numbers can give others."""
    match op:
        case Map(function):
            return function not in ("abs", "relu", "square")
        case Divide() | Reduce(kind="mean"):
            return True
        case Linear(coefficients, constant):
            return constant.denominator != 1 or not all(c.whole for c in coefficients)
        case _:
            return False
