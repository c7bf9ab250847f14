"""Declarations, heads of blocks and sizes, from what the grammar reads: one method a rule.

Raises `FormError` with the exact place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from lark import Token

from shardlang.frontend.amounts import computed, exact
from shardlang.frontend.parse_errors import (
    DECLARATIONS,
    Expected,
    NotATensor,
    shown,
    TooLong,
    WrongSize,
    ZERO,
)
from shardlang.frontend.pieces import as_token, FormError, Named, Size, span_at, span_of
from shardlang.frontend.syntax import (
    AccumulateDecl,
    AxisDecl,
    AxisNote,
    BlockDecl,
    CarryDecl,
    DimDecl,
    DimRef,
    DimsDecl,
    DTypeDecl,
    Expr,
    HardwareDecl,
    IncludeDecl,
    Layers,
    LeafDecl,
    MeshDecl,
    OptimizerDecl,
    PrefetchDecl,
    SaveDecl,
    ScheduleDecl,
    Section,
    TensorRef,
    Word,
    ZeroDecl,
)
from shardlang.ir.program import LeafWord, Pass
from shardlang.ir.size import BinOp, Name, Number, SizeExpr

_SIZE_DEPTH = 100
"""How many operators of a size may stand on one another."""


class DeclarationBuilder:
    """The methods of declarations and sizes, each with the parts of its rule in order."""

    # ---- Declarations

    def section(self, parts: list[Token]) -> Section:
        """Read `forward:`, `backward:` or `update:`."""
        names: dict[str, Pass] = {"FORWARD": "forward", "BACKWARD": "backward", "UPDATE": "update"}
        return Section(names[parts[0].type], span_at(parts[0]).join(span_at(parts[1])))

    def layers(self, parts: list[Token | DimRef | Size | CarryDecl]) -> Layers:
        """Read `layers L:`, `layers L=80:`, `layers 80:`, `layers L_Z:`, `layers L, x2 -> x:`."""
        dim, size = _counted(parts, "a block has a whole number of layers")
        carries = tuple(part for part in parts if isinstance(part, CarryDecl))
        span = span_of(parts[0]).join(span_of(parts[-1]))
        stack = parts[1] if isinstance(parts[1], DimRef) else None
        return Layers(dim, size, carries, span, stack=stack)

    def carry(self, parts: tuple[Named, Token, Named]) -> CarryDecl:
        """Read `x2 -> x`."""
        made, _, read = parts
        return CarryDecl(made.joined(), read.joined(), made.span.join(read.span))

    def block(self, parts: list[Token | Named]) -> BlockDecl:
        """Read `block mlp(x, W_in, W_out):`, `block mlp(x) -> y:`."""
        name, *words = (part.joined() for part in parts if isinstance(part, Named))
        returns = any(isinstance(part, Token) and part.type == "ARROW" for part in parts)
        result = words.pop() if returns else None
        span = span_of(parts[0]).join(span_of(parts[-1]))
        return BlockDecl(name, tuple(words), result, span)

    def include(self, parts: list[Token]) -> IncludeDecl:
        """Read `include "attention.shd"`."""
        keyword, path = parts
        word = Word(str(path)[1:-1], span_at(path))
        return IncludeDecl(word, span_at(keyword).join(word.span))

    def mesh(self, parts: list[Token | AxisDecl]) -> MeshDecl:
        """Read `mesh X=16, Y=4`."""
        axes = tuple(p for p in parts if isinstance(p, AxisDecl))
        return MeshDecl(axes, span_of(parts[0]).join(axes[-1].span))

    def axis(self, parts: list[Named | Token | Size | AxisNote]) -> AxisDecl:
        """Read `X`, `X=16`, `X=16 @ici(2)`."""
        name = parts[0]
        assert isinstance(name, Named)
        size: SizeExpr | None = None
        written = ""
        notes: list[AxisNote] = []
        span = name.span
        for part in parts[1:]:
            match part:
                case Size():
                    size, written = part.expr, part.written
                case AxisNote():
                    notes.append(part)
                case _:
                    pass
            span = span.join(span_of(part))
        return AxisDecl(name.joined(), size, tuple(notes), span, written)

    def note(self, parts: list[Token | Named]) -> AxisNote:
        """Read `@dcn`, `@ici(2)`, `@part(X)`."""
        name = parts[1]
        assert isinstance(name, Named)
        argument = None
        if len(parts) > 2 and isinstance(parts[3], Named):
            argument = parts[3].joined()
        elif len(parts) > 2:
            number = as_token(parts[3])
            exact(number)
            argument = Word(str(number), span_at(number))
        return AxisNote(name.joined(), argument, span_of(parts[0]).join(span_of(parts[-1])))

    def hardware(self, parts: list[Token]) -> HardwareDecl:
        """Read `hardware tpu_v5p`, or a path, perhaps in quotes, and the shape of a slice."""
        keyword, name, *rest = parts
        text = str(name)[1:-1] if name.type == "QUOTED" else str(name)
        shape = Word(str(rest[0]), span_at(rest[0])) if rest else None
        span = span_at(keyword).join(span_at(parts[-1]))
        return HardwareDecl(Word(text, span_at(name)), shape, span)

    def dims(self, parts: list[Token | DimDecl]) -> DimsDecl:
        """Read `dims B=3M, D=5120`."""
        dims = tuple(p for p in parts if isinstance(p, DimDecl))
        return DimsDecl(dims, span_of(parts[0]).join(dims[-1].span))

    def dim_size(self, parts: tuple[Named, Token, Size]) -> DimDecl:
        """Read `F=4*D`."""
        name, _, size = parts
        span = name.span.join(size.span)
        return DimDecl(name.joined(), size.expr, size.names, span, size.written)

    def dtype(self, parts: tuple[Token, Named]) -> DTypeDecl:
        """Read `dtype bf16`."""
        return DTypeDecl(parts[1].joined(), span_at(parts[0]).join(parts[1].span))

    def leaf(self, parts: list[Token | Expr]) -> LeafDecl:
        """Read `input In: [B_X, D_Y]`, `param W: bf16[D, F], V[D]`, `frozen U: [D]`, `cache K: [B, S]`."""
        keyword = as_token(parts[0])
        tensors: list[TensorRef] = []
        for part in parts[1:]:
            if isinstance(part, Token):
                continue
            if not isinstance(part, TensorRef):
                raise FormError(part.span, NotATensor("what is declared"))
            tensors.append(part)
        words: dict[str, LeafWord] = {
            "INPUT": "input",
            "PARAM": "param",
            "FROZEN": "frozen",
            "CACHE": "cache",
        }
        return LeafDecl(
            words[keyword.type], tuple(tensors), span_at(keyword).join(tensors[-1].span)
        )

    def optimizer(self, parts: list[Token | Named | ZeroDecl]) -> OptimizerDecl:
        """Read `optimizer adam`, `optimizer adamw, zero 1 over X`."""
        name, last = parts[1], parts[-1]
        assert isinstance(name, Named)
        zero = last if isinstance(last, ZeroDecl) else None
        return OptimizerDecl(name.joined(), span_of(parts[0]).join(span_of(last)), zero)

    def zero(self, parts: list[Token | Named]) -> ZeroDecl:
        """Read `zero 1 over X`, `zero 2 over data, fsdp`."""
        words = [part.joined() for part in parts if isinstance(part, Named)]
        for word, meant in zip(words, ("zero", "over"), strict=False):
            if word.text.lower() != meant:
                raise FormError(word.span, Expected(f"`{meant}`", f"`{word.text}`", ZERO))
        number = as_token(parts[1])
        span = span_of(parts[0]).join(span_of(parts[-1]))
        return ZeroDecl(Word(str(number), span_at(number)), tuple(words[2:]), span)

    def accumulate(self, parts: list[Token | Named | Size]) -> AccumulateDecl:
        """Read `accumulate M`, `accumulate M=8`, `accumulate 8`."""
        dim, size = _counted(parts, "a step has a whole number of microbatches")
        return AccumulateDecl(dim, size, span_of(parts[0]).join(span_of(parts[-1])))

    def schedule(self, parts: list[Token | Named]) -> ScheduleDecl:
        """Read `schedule 1f1b`, `schedule interleaved, chunks 2`."""
        name, last = as_token(parts[1]), as_token(parts[-1]) if len(parts) > 2 else None
        keyword = next((part.joined() for part in parts if isinstance(part, Named)), None)
        chunks = None if last is None else Word(str(last), span_at(last))
        span = span_of(parts[0]).join(span_of(parts[-1]))
        return ScheduleDecl(Word(str(name), span_at(name)), keyword, chunks, span)

    def save(self, parts: list[Token | Named]) -> SaveDecl:
        """Read `save Tmp, P`."""
        names = tuple(p.joined() for p in parts if isinstance(p, Named))
        return SaveDecl(names, span_of(parts[0]).join(names[-1].span))

    def prefetch(self, parts: list[Token | Named]) -> PrefetchDecl:
        """Read `prefetch W_in, W_out`."""
        names = tuple(p.joined() for p in parts if isinstance(p, Named))
        return PrefetchDecl(names, span_of(parts[0]).join(names[-1].span))

    # ---- Sizes

    def size_number(self, parts: list[Token]) -> Size:
        """Read `3M`, `48_000`, `3e6`."""
        value = exact(parts[0])
        return Size(Number(value), (), value, 1, str(parts[0]), span_at(parts[0]))

    def size_name(self, parts: list[Named | Token]) -> Size:
        """Read the size of another dim, `D` or `|D|`."""
        (name,) = [p for p in parts if isinstance(p, Named)]
        word = name.joined()
        span = span_of(parts[0]).join(span_of(parts[-1]))
        return Size(Name(word.text), (word,), None, 1, word.text, span)

    def size_group(self, parts: tuple[Token, Size, Token]) -> Size:
        """Read a size in brackets."""
        span = span_at(parts[0]).join(span_at(parts[2]))
        return replace(parts[1], written=f"({parts[1].written})", span=span)

    def size_op(self, parts: tuple[Size, Token, Size]) -> Size:
        """Read an operation on sizes."""
        left, sign, right = parts
        span = left.span.join(right.span)
        signs: dict[str, Literal["+", "-", "*", "/", "**"]] = {
            "PLUS": "+", "MINUS": "-", "STAR": "*", "DOT": "*", "SLASH": "/", "POWER": "**",
        }  # fmt: skip
        op = signs[sign.type]
        depth = 1 + max(left.depth, right.depth)
        if depth > _SIZE_DEPTH:
            raise FormError(span_at(sign), TooLong("a size has", _SIZE_DEPTH, "operators in a row"))
        value = computed(op, left, right, span)
        expr = BinOp(op, left.expr, right.expr)
        gap = " " if op in "+-" else ""
        written = f"{left.written}{gap}{op}{gap}{right.written}"
        return Size(expr, left.names + right.names, value, depth, written, span)


def _counted(parts: Sequence[object], whole: str) -> tuple[Word, DimDecl | None]:
    """Read what counts repetitions behind a keyword, `L`, `L=80` or `80`, with its size.

    `whole` says what it has to be, for the mistake.
    """
    head = parts[1]
    if isinstance(head, Named):
        dim = head.joined()
    elif isinstance(head, DimRef):
        dim = head.name
    else:
        number = as_token(head)
        count = exact(number)
        if count.denominator != 1 or count < 1:
            mistake = WrongSize(
                f"{whole}, not {shown(str(number))}", DECLARATIONS[str(parts[0]).lower()]
            )
            raise FormError(span_at(number), mistake)
        dim = Word(str(count.numerator), span_at(number))
    size: DimDecl | None = None
    for part in parts:
        if isinstance(part, Size):
            size = DimDecl(dim, part.expr, part.names, dim.span.join(part.span), part.written)
    return dim, size
