r"""The faithful tree of a source text: what was written, before any name has a meaning.

The parser makes it, `resolve` reads it, `format` prints it. Every node carries its span. LaTeX
wrappers are gone from names (`W_\text{in}` is `W_in`); whether a subscript means axes or belongs to
a name is not decided here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from shardlang.ir.ops import Relation
from shardlang.ir.program import LeafWord, Pass
from shardlang.ir.size import SizeExpr
from shardlang.ir.types import Axis
from shardlang.source import Span


@dataclass(frozen=True, slots=True)
class Word:
    """A piece of text with its place: a name, an axis, a dim, a number."""

    text: str
    span: Span


@dataclass(frozen=True, slots=True)
class DimRef:
    """A dim inside brackets, as written.

    `name` is the whole identifier, so `B_X` and `d_model` are not split here. `braced` are the
    comma-separated words of `B_{X}`, `B_{XY}`, `B_{data,fsdp}`; `slashed` those of `B/X/Y`. A literal
    size (`128`, `128'`) has its digits as the name and `literal` set.
    """

    name: Word
    braced: tuple[Word, ...]
    slashed: tuple[Word, ...]
    span: Span
    literal: bool = False


@dataclass(frozen=True, slots=True)
class Marker:
    """What follows the brackets in braces: `{U_X}`, `{U_{XY}}`, `{U_X, U_Y}`, `{U.X}`, `{max_X}`.

    `kind` is `U`, `max` or `min`; `words` are the subscripts as written (`XY` is one word).
    """

    kind: Word
    words: tuple[Word, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class TensorRef:
    """A mention of a tensor: `A[I_X, J]{U_Y}`, `W: bf16[D]`, `bf16[D, F]`, `W^T[F, D]`, or bare `A`.

    `dims` is None for a bare name. `name` is None for an anonymous tensor. `index` is the
    micro-batch subscript `[i]` of a pipelined program. `dtype` is the word as written.
    """

    name: Word | None
    dtype: Word | None
    dims: tuple[DimRef, ...] | None
    marker: Marker | None
    span: Span
    transposed: bool = False
    index: Word | None = None


@dataclass(frozen=True, slots=True)
class NumberRef:
    """A number in an expression, as written: `2`, `0.5`, `1e-6`."""

    word: Word
    span: Span


@dataclass(frozen=True, slots=True)
class SizeOf:
    """The global size of a dim as a number: `|B|`."""

    dim: Word
    span: Span


@dataclass(frozen=True, slots=True)
class Product:
    """`left op right`, with the contraction subscript as written.

    `dot` is every spelling of `·`, `×` and `@`; `star` is `*`; `hadamard` is `⊙`. `subscript` None
    means that none was written; `local` is `·_LOCAL`. `operator` is the span of the operator with
    its subscript.
    """

    op: Literal["dot", "star", "hadamard"]
    left: Expr
    right: Expr
    subscript: tuple[Word, ...] | None
    local: bool
    operator: Span
    span: Span


@dataclass(frozen=True, slots=True)
class Binary:
    """A sum, a difference or a quotient."""

    op: Literal["+", "-", "/"]
    left: Expr
    right: Expr
    operator: Span
    span: Span


@dataclass(frozen=True, slots=True)
class Comparison:
    """`left <= right`; `relation` is in its plain spelling."""

    relation: Relation
    left: Expr
    right: Expr
    operator: Span
    span: Span


@dataclass(frozen=True, slots=True)
class Negate:
    """Unary minus."""

    operand: Expr
    span: Span


@dataclass(frozen=True, slots=True)
class Call:
    """A function, reduction, normalisation or collective: `gelu(A)`, `sum_B(A)`, `AllGather_X(A)`.

    `head` is the name with no subscript; `subscript` the comma-separated words (`{XY,J}` is two:
    `XY` and `J`), None where none was written. `bare` is the form without brackets
    (`AllReduce_Y A[I]{U_Y}`). `result` is what stands behind an arrow inside the brackets, as in
    `Permute(A[I_XY] -> A[I_YX])`. `arrow` is the number of words of the subscript before an arrow in it
    (`Reshape_{N->K,G}`: 1), None where it has none. `more` are the results behind the first one, of the
    operations that have several.
    """

    head: Word
    subscript: tuple[Word, ...] | None
    arguments: tuple[Expr, ...]
    span: Span
    bare: bool = False
    result: TensorRef | None = None
    arrow: int | None = None
    more: tuple[TensorRef, ...] = ()

    @property
    def results(self) -> tuple[TensorRef, ...]:
        """What stands behind an arrow inside the brackets."""
        return () if self.result is None else (self.result, *self.more)


Expr = TensorRef | NumberRef | SizeOf | Product | Binary | Comparison | Negate | Call


@dataclass(frozen=True, slots=True)
class Definition:
    """`lhs = expr` or `expr -> lhs`; `target` None is an expression with no name for its result."""

    target: TensorRef | None
    expr: Expr
    span: Span
    arrow: bool = False


@dataclass(frozen=True, slots=True)
class AxisNote:
    """`@dcn`, `@ici(2)`, `@part(X)`."""

    name: Word
    argument: Word | None
    span: Span

    @property
    def text(self) -> str:
        """What stands behind the `@`."""
        return self.name.text + ("" if self.argument is None else f"({self.argument.text})")


@dataclass(frozen=True, slots=True)
class AxisDecl:
    """`X`, `X=16`, `P=2 @dcn`, `X=16 @ici(2)`; `written` is the size with its numbers as written."""

    name: Word
    size: SizeExpr | None
    notes: tuple[AxisNote, ...]
    span: Span
    written: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class MeshDecl:
    """`mesh X=16, Y=4`."""

    axes: tuple[AxisDecl, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class HardwareDecl:
    """`hardware tpu_v5p`, or a path; `hardware tpu_v5p 16x16x16` with the shape of a slice."""

    name: Word
    shape: Word | None
    span: Span


@dataclass(frozen=True, slots=True)
class DimDecl:
    """`F=4*D`; names inside the expression are looked up by `resolve`. `names` are their places.

    `written` is the size in canonical spelling, with its numbers as they were written (`3M`).
    """

    name: Word
    size: SizeExpr
    names: tuple[Word, ...]
    span: Span
    written: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class DimsDecl:
    """`dims B=3M, D=5120`."""

    dims: tuple[DimDecl, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class DTypeDecl:
    """`dtype bf16`."""

    name: Word
    span: Span


@dataclass(frozen=True, slots=True)
class LeafDecl:
    """`input In: [B_X, D_Y]`, `param`, `frozen W: [D_X, F_Y]`, `cache K: int8[B_X, S]`; several by commas."""

    word: LeafWord
    tensors: tuple[TensorRef, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class ZeroDecl:
    """`zero 1 over X` behind the optimizer: `level` is the number, `axes` the words behind `over`.

    A line without them is read too, for the mistake that it is.
    """

    level: Word
    axes: tuple[Word, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class OptimizerDecl:
    """`optimizer adam`, `optimizer adamw, zero 1 over X`."""

    name: Word
    span: Span
    zero: ZeroDecl | None = None


@dataclass(frozen=True, slots=True)
class AccumulateDecl:
    """`accumulate M`, `accumulate M=8`, `accumulate 8`: gradients are added over M microbatches.

    `size` is what a `dims` line would say of the dim that counts them.
    """

    dim: Word
    size: DimDecl | None
    span: Span


@dataclass(frozen=True, slots=True)
class ScheduleDecl:
    """`schedule 1f1b`, `schedule interleaved, chunks 2`; `keyword` is the word before the number."""

    name: Word
    keyword: Word | None
    chunks: Word | None
    span: Span


@dataclass(frozen=True, slots=True)
class SaveDecl:
    """`save Tmp, P` or `save all`."""

    names: tuple[Word, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class PrefetchDecl:
    """`prefetch W_in, W_out`."""

    names: tuple[Word, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class Section:
    """`forward:`, `backward:` or `update:`."""

    name: Pass
    span: Span


@dataclass(frozen=True, slots=True)
class CarryDecl:
    """`x2 -> x` in the head of a block: the `x2` of a layer is the `x` of the next one."""

    exit: Word
    entry: Word
    span: Span


@dataclass(frozen=True, slots=True)
class Layers:
    """The head of a block: `layers L:`, `layers L=80:`, `layers 80:`, `layers L_Z:`, `layers L, x2 -> x:`.

    `dim` counts the layers, `size` is what a `dims` line would say of it. The next `length` items of
    the text are the block's body. `stack` is what stands behind `layers`, None for a number; `stages` are
    the axes in it, which are known once `pipelines.placed` has read it: `dim` is then without them.
    """

    dim: Word
    size: DimDecl | None
    carries: tuple[CarryDecl, ...]
    span: Span
    length: int = 0
    stack: DimRef | None = None
    stages: tuple[Axis, ...] = ()


@dataclass(frozen=True, slots=True)
class BlockDecl:
    """The head of a named block: `block mlp(x, W_in, W_out):`, `block mlp(x) -> y:`.

    `result` is the value that a call stands for, None for that of the last line. The next `length` items
    of the text are the block's body.
    """

    name: Word
    parameters: tuple[Word, ...]
    result: Word | None
    span: Span
    length: int = 0


@dataclass(frozen=True, slots=True)
class IncludeDecl:
    """`include "attention.shd"`."""

    path: Word
    span: Span


Item = (
    Definition
    | MeshDecl
    | HardwareDecl
    | DimsDecl
    | DTypeDecl
    | LeafDecl
    | OptimizerDecl
    | AccumulateDecl
    | ScheduleDecl
    | SaveDecl
    | PrefetchDecl
    | Section
    | Layers
    | BlockDecl
    | IncludeDecl
)


@dataclass(frozen=True, slots=True)
class Comment:
    """A comment without its mark, and where it stands: alone on its line, or behind an item."""

    text: str
    span: Span
    alone: bool


@dataclass(frozen=True, slots=True)
class File:
    """A whole text: its items in order, and its comments."""

    items: tuple[Item, ...]
    comments: tuple[Comment, ...]
