"""From what the grammar reads to the tree of `syntax`: one method a rule, called by the parser.

Decides what form alone can decide: which part of a name is a subscript of a collective or a
reduction, which brackets are a tensor with only a dtype, and what no reading can make sense of.
Raises `FormError` with the exact place.
"""

from __future__ import annotations

import re
import threading
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal, NoReturn

from lark import Token

from shardlang.diagnostics import Label, Mistake
from shardlang.frontend.parse_errors import (
    DECLARATIONS,
    Expected,
    HeaderNotAlone,
    LonelyName,
    MissingOperator,
    NotAName,
    NotATensor,
    Repeated,
    shown,
    TooLong,
    WrongMarker,
    WrongSize,
    ZERO,
)
from shardlang.frontend.syntax import (
    AccumulateDecl,
    AxisDecl,
    AxisNote,
    Binary,
    BlockDecl,
    Call,
    CarryDecl,
    Comparison,
    Definition,
    DimDecl,
    DimRef,
    DimsDecl,
    DTypeDecl,
    Expr,
    HardwareDecl,
    IncludeDecl,
    Item,
    Layers,
    LeafDecl,
    Marker,
    MeshDecl,
    Negate,
    NumberRef,
    OptimizerDecl,
    PrefetchDecl,
    Product,
    SaveDecl,
    ScheduleDecl,
    Section,
    SizeOf,
    TensorRef,
    Word,
    ZeroDecl,
)
from shardlang.ir.functions import FUNCTIONS
from shardlang.ir.ops import Relation
from shardlang.ir.program import LeafKind, Pass
from shardlang.ir.size import BinOp, Name, Number, SizeExpr
from shardlang.ir.types import DTYPE_ALIASES, DTYPES
from shardlang.source import Span

COLLECTIVES = frozenset(
    {"AllGather", "ReduceScatter", "AllReduce", "AllToAll", "Slice", "Permute", "Mask"}
)
"""Heads that name a layout change; they may stand without brackets."""

REDUCTIONS = frozenset(
    {"sum", "mean", "max", "min", "softmax", "rmsnorm", "logsumexp", "log_softmax", "cross_entropy"}
)
"""Heads that take a dim as their subscript."""

LOOKUPS = frozenset({"take", "put"})
"""Heads that take the dims that ids are of as their subscript."""

RELATIONS: Mapping[str, Relation] = {
    "==": "==", "!=": "!=", "≠": "!=", "ne": "!=", "neq": "!=",
    "<=": "<=", "≤": "<=", "le": "<=", "leq": "<=", "<": "<", "lt": "<",
    ">=": ">=", "≥": ">=", "ge": ">=", "geq": ">=", ">": ">", "gt": ">",
}  # fmt: skip
"""The spellings of comparisons, without the backslash of LaTeX."""

RENAME = "Rename"
"""The head that takes the result's dims as its subscript."""

RINGS = frozenset({"RingGather", "RingScatter"})
"""Heads of collectives that are done together with a product."""

ATTENTION = frozenset({"RingAttention", "RingAttentionBack"})
"""Heads of attention whose keys and values go round; they have several results."""

SHAPES = frozenset({"Reshape", "rotary", "unrotary", "top", "rank"})
"""Heads that take the dims that they need whole, or make, as their subscript."""

HEADS = COLLECTIVES | REDUCTIONS | LOOKUPS | RINGS | ATTENTION | {RENAME} | SHAPES

SIZE_DIGITS = 30
"""A size has at most this many digits, so that no later sum can take long."""

LARGEST_SIZE = 10**SIZE_DIGITS
"""No size is larger than this."""

_SIZE_DEPTH = 100
_NAMED_POWER = 16
_SUFFIXES = {
    "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12,
    "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40,
}  # fmt: skip
_NUMBER = re.compile(r"([\d_]+)(?:\.(\d+))?(?:[eE]([+-]?\d+))?(\D*)")


class FormError(Exception):
    """A mistake at a place, on its way to the reporter."""

    def __init__(self, span: Span, mistake: Mistake, labels: Sequence[Label] = ()) -> None:
        """Keep the three."""
        super().__init__(mistake)
        self.span = span
        self.mistake = mistake
        self.labels = tuple(labels)


# ---- What the builder passes up within a statement, beside the nodes of the tree -----------------


@dataclass(slots=True, eq=False, repr=False)
class _Sub:
    r"""A subscript behind a name or an operator: `_D`, `_{X,J}`, `_\text{in}`."""

    words: tuple[Word, ...]
    braced: bool
    span: Span
    arrow: int | None = None
    """How many words stand before an arrow, where there is one."""


@dataclass(slots=True, eq=False, repr=False)
class _Name:
    """A name with the subscripts that were written apart from it."""

    base: Word
    subs: tuple[_Sub, ...]
    span: Span

    def joined(self, upto: int | None = None) -> Word:
        """Read the subscripts, or the first of them, as parts of the name: `W_{in}` is `W_in`."""
        subs = self.subs[:upto]
        text, span = self.base.text, self.base.span
        if subs or upto is None:
            span = Span(self.span.start, (subs[-1].span if upto is not None else self.span).end)
        for sub in subs:
            if len(sub.words) != 1:
                wrong = text + "_{" + ",".join(w.text for w in sub.words) + "}"
                raise FormError(self.span, NotAName(wrong))
            text += "_" + sub.words[0].text
        return Word(text, span)


@dataclass(slots=True, eq=False, repr=False)
class _Dims:
    dims: tuple[DimRef, ...]
    span: Span


@dataclass(slots=True, eq=False, repr=False)
class _Label:
    name: _Name
    transposed: bool
    span: Span


@dataclass(slots=True, eq=False, repr=False)
class _Transpose:
    span: Span


@dataclass(slots=True, eq=False, repr=False)
class _Index:
    word: Word
    span: Span


@dataclass(slots=True, eq=False, repr=False)
class _Operator:
    op: Literal["dot", "star", "hadamard"]
    sub: _Sub | None
    span: Span


@dataclass(slots=True, eq=False, repr=False)
class _Arguments:
    exprs: tuple[Expr, ...]
    results: tuple[TensorRef, ...] = ()


@dataclass(slots=True, eq=False, repr=False)
class _Size:
    """A size, its value where it holds no name, how deep it is, and how it was written."""

    expr: SizeExpr
    names: tuple[Word, ...]
    value: Fraction | None
    depth: int
    written: str
    span: Span


class _Place(threading.local):
    """Where the statement that this thread reads starts in its text."""

    offset: int = 0


_PLACE = _Place()


def reading_at(offset: int) -> None:
    """Say where the next statement of this thread starts, for the spans of its nodes."""
    _PLACE.offset = offset


def _span(token: Token) -> Span:
    assert token.start_pos is not None
    assert token.end_pos is not None
    offset = _PLACE.offset
    return Span(offset + token.start_pos, offset + token.end_pos)


def _word(token: Token, text: str | None = None) -> Word:
    """Read a token as a name: one spelling for each, and only what Unicode calls an identifier."""
    raw = (str(token) if text is None else text).replace("\\_", "_").replace("′", "'")
    span = _span(token)
    plain = raw.replace("'", "")
    if plain.isascii() and plain[-1] != "_":  # letters, digits and underscores, by the grammar
        return Word(raw, span)
    if not plain.isidentifier() or plain[-1] == "_":
        raise FormError(span, NotAName(raw))
    return Word(unicodedata.normalize("NFKC", raw), span)


class Builder:
    """The methods that the parser calls, each with the parts of its rule in order."""

    # ---- Statements

    def start(self, parts: list[Item]) -> Item:
        """Give the one statement."""
        return parts[0]

    def nameless(self, parts: list[Expr]) -> Definition:
        """Read an expression that has no name for its result."""
        (expr,) = parts
        match expr:
            case TensorRef(Word(text), None, None, None):
                raise FormError(expr.span, LonelyName(text))
            case _:
                return Definition(None, expr, expr.span)

    def assigned(self, parts: list[Expr]) -> Definition:
        """Read `lhs = expr`."""
        target, _, expr = parts
        if not isinstance(target, TensorRef):
            raise FormError(target.span, NotATensor("what stands left of `=`"))
        return Definition(target, expr, target.span.join(expr.span))

    def arrowed(self, parts: list[Expr]) -> Definition:
        """Read `expr -> lhs`."""
        expr, _, target = parts
        if not isinstance(target, TensorRef):
            raise FormError(target.span, NotATensor("what stands right of `->`"))
        return Definition(target, expr, expr.span.join(target.span), arrow=True)

    # ---- Expressions

    def plus(self, parts: list[Expr | Token]) -> Binary:
        """Read a sum."""
        return self._binary("+", parts)

    def minus(self, parts: list[Expr | Token]) -> Binary:
        """Read a difference."""
        return self._binary("-", parts)

    def divide(self, parts: list[Expr | Token]) -> Binary:
        """Read a quotient."""
        return self._binary("/", parts)

    def compare(self, parts: tuple[Expr, Token, Expr]) -> Comparison:
        """Read a comparison in any spelling."""
        left, sign, right = parts
        relation = RELATIONS[str(sign).lstrip("\\")]
        return Comparison(relation, left, right, _span(sign), left.span.join(right.span))

    def _binary(self, op: Literal["+", "-", "/"], parts: list[Expr | Token]) -> Binary:
        left, sign, right = parts
        assert isinstance(sign, Token)
        assert not isinstance(left, Token)
        assert not isinstance(right, Token)
        return Binary(op, left, right, _span(sign), left.span.join(right.span))

    def times(self, parts: tuple[Expr, _Operator, Expr]) -> Product:
        """Read a product with its contraction subscript."""
        left, operator, right = parts
        sub = operator.sub
        local = sub is not None and [w.text for w in sub.words] == ["LOCAL"]
        words = None if sub is None or local else sub.words
        span = left.span.join(right.span)
        return Product(operator.op, left, right, words, local, operator.span, span)

    def dot(self, parts: list[Token | _Sub]) -> _Operator:
        """Read any spelling of `·`, `×` and `@`."""
        return self._operator("dot", parts)

    def star(self, parts: list[Token | _Sub]) -> _Operator:
        """Read `*`."""
        return self._operator("star", parts)

    def hadamard(self, parts: list[Token | _Sub]) -> _Operator:
        """Read `⊙`."""
        return self._operator("hadamard", parts)

    def _operator(
        self, op: Literal["dot", "star", "hadamard"], parts: list[Token | _Sub]
    ) -> _Operator:
        sign, *rest = parts
        assert isinstance(sign, Token)
        sub = rest[0] if rest else None
        assert not isinstance(sub, Token)
        span = _span(sign) if sub is None else _span(sign).join(sub.span)
        return _Operator(op, sub, span)

    def negate(self, parts: tuple[Token, Expr]) -> Negate:
        """Read a unary minus."""
        sign, operand = parts
        return Negate(operand, _span(sign).join(operand.span))

    def number(self, parts: list[Token]) -> NumberRef:
        """Read a number literal."""
        span = _span(parts[0])
        _exact(parts[0])
        return NumberRef(Word(str(parts[0]), span), span)

    def size_of(self, parts: tuple[Token, _Name, Token]) -> SizeOf:
        """Read `|B|`."""
        return SizeOf(parts[1].joined(), _span(parts[0]).join(_span(parts[2])))

    def group(self, parts: tuple[Token, Expr, Token]) -> Expr:
        """Read an expression in brackets: the same node over a wider place."""
        return replace(parts[1], span=_span(parts[0]).join(_span(parts[2])))

    def call(self, parts: tuple[_Name, Token, _Arguments, Token]) -> Call:
        """Read `gelu(A)`, `sum_B(A)`, `AllGather_X(A)`, `Permute(A -> A)`."""
        name, _, arguments, closing = parts
        head, subscript = _head(name)
        span = name.span.join(_span(closing))
        arrow = name.subs[-1].arrow if name.subs else None
        first, *more = arguments.results or (None,)
        if more and head.text not in ATTENTION:
            raise FormError(arguments.results[1].span, NotATensor("what stands right of `->`"))
        made = Call(head, subscript, arguments.exprs, span, result=first, arrow=arrow)
        return replace(made, more=arguments.results[1:])

    def bare_call(self, parts: tuple[_Name, Expr]) -> Call:
        """Read `AllReduce_Y A[I]{U_Y}`: only a collective or a reduction stands so."""
        name, operand = parts
        if _root(name) not in HEADS:
            before, after = shown(name.joined().text), shown(_first(operand))
            raise FormError(
                Span(operand.span.start, operand.span.start + len(after) - 2),
                MissingOperator(before, after),
            )
        return _bare(name, operand)

    def arguments(self, parts: list[Expr | Token]) -> _Arguments:
        """Read what stands in a call's brackets."""
        return _Arguments(tuple(p for p in parts if not isinstance(p, Token)))

    def relayout(self, parts: list[Expr | Token]) -> _Arguments:
        """Read `A[I_XY] -> A[I_YX]` in a call's brackets."""
        arrow = next(i for i, p in enumerate(parts) if isinstance(p, Token) and p.type == "ARROW")
        results: list[TensorRef] = []
        for result in parts[arrow + 1 :]:
            if isinstance(result, TensorRef):
                results.append(result)
            elif not isinstance(result, Token):
                raise FormError(result.span, NotATensor("what stands right of `->`"))
        given = (p for p in parts[:arrow] if not isinstance(p, Token))
        return _Arguments(tuple(given), tuple(results))

    # ---- Tensors

    def label(self, parts: list[_Name | Token]) -> _Label:
        """Read a tensor's name, perhaps with `^T`."""
        name, *rest = parts
        assert isinstance(name, _Name)
        span = name.span
        for token in rest:
            assert isinstance(token, Token)
            span = span.join(_span(token))
        return _Label(name, bool(rest), span)

    def bare(self, parts: list[_Label]) -> TensorRef:
        """Read a tensor with no brackets."""
        (label,) = parts
        word = label.name.joined()
        return TensorRef(word, None, None, None, label.span, label.transposed)

    def marked(self, parts: tuple[_Label, Marker]) -> TensorRef:
        """Read `A{U_X}`."""
        label, marker = parts
        word = label.name.joined()
        return TensorRef(word, None, None, marker, label.span.join(marker.span), label.transposed)

    def tensor(self, parts: list[_Label | _Dims | Marker | _Transpose | _Index]) -> Expr:
        """Read `A[I_X, J]{U_Y}`, `bf16[D, F]`, or a collective of a tensor without a name."""
        label, dims, *posts = parts
        assert isinstance(label, _Label)
        if _root(label.name) in COLLECTIVES:
            return _bare(label.name, _tensor(None, None, dims, posts, dims.span))
        word = label.name.joined()
        if _is_dtype(word):
            return _tensor(None, word, dims, posts, label.span, transposed=label.transposed)
        return _tensor(word, None, dims, posts, label.span, transposed=label.transposed)

    def typed(
        self, parts: list[_Label | Token | _Name | _Dims | Marker | _Transpose | _Index]
    ) -> Expr:
        """Read `W: bf16[D, F]` and `W ∈ bf16[D, F]`."""
        label, sign, dtype, *rest = parts
        assert isinstance(label, _Label)
        assert isinstance(dtype, _Name)
        dims, posts = (rest[0], rest[1:]) if rest else (None, [])
        if _root(label.name) in COLLECTIVES:
            operand = _tensor(dtype.joined(), None, dims, posts, dtype.span)
            return _bare(label.name, operand)
        word = label.name.joined()
        if word.text in ("forward", "backward", "update") and sign == ":":
            raise FormError(label.span.join(_span_of(sign)), HeaderNotAlone(word.text))
        if word.text in DECLARATIONS and sign == ":" and not _is_dtype(dtype.joined()):
            raise FormError(_span_of(sign), Expected("a name", "`:`", DECLARATIONS[word.text]))
        span = label.span.join(dtype.span)
        return _tensor(word, dtype.joined(), dims, posts, span, transposed=label.transposed)

    def untyped(self, parts: list[_Label | Token | _Dims | Marker | _Transpose | _Index]) -> Expr:
        """Read `In: [B_X, D_Y]`."""
        label, _, dims, *posts = parts
        assert isinstance(label, _Label)
        assert isinstance(dims, _Dims)
        if _root(label.name) in COLLECTIVES:
            return _bare(label.name, _tensor(None, None, dims, posts, dims.span))
        return _tensor(
            label.name.joined(), None, dims, posts, label.span, transposed=label.transposed
        )

    def anonymous(self, parts: list[_Dims | Marker | _Transpose | _Index]) -> TensorRef:
        """Read `[A_X, B]`."""
        dims, *posts = parts
        return _tensor(None, None, dims, posts, dims.span)

    def wrapped(self, parts: list[Token | _Name | _Dims | Marker | _Transpose | _Index]) -> Expr:
        r"""Read `\text{bf16[B, D]}`."""
        opening, name, dims, closing, *posts = parts
        assert isinstance(name, _Name)
        assert isinstance(dims, _Dims)
        inner = self.tensor([_Label(name, transposed=False, span=name.span), dims, *_posts(posts)])
        return replace(inner, span=_span_of(opening).join(inner.span).join(_span_of(closing)))

    def belongs(self, parts: list[Token]) -> Token:
        """Give `:` or `∈`."""
        return parts[0]

    def dtype_name(self, parts: list[_Name]) -> _Name:
        """Give a dtype's name, as written."""
        return parts[0]

    def transpose(self, parts: list[Token]) -> _Transpose:
        """Read `^T`."""
        return _Transpose(_span(parts[0]))

    def index(self, parts: list[Token]) -> _Index:
        """Read the `[i]` of a micro-batch."""
        opening, word, closing = parts
        return _Index(Word(str(word), _span(word)), _span(opening).join(_span(closing)))

    def dimensions(self, parts: list[DimRef | Token]) -> _Dims:
        """Read the brackets of a tensor."""
        opening, closing = parts[0], parts[-1]
        dims = tuple(p for p in parts if isinstance(p, DimRef))
        return _Dims(dims, _span_of(opening).join(_span_of(closing)))

    def named_dim(self, parts: list[_Name | Token]) -> DimRef:
        """Read `B`, `B_X`, `B_{X,Y}`, `B/X/Y`."""
        names = [p for p in parts if isinstance(p, _Name)]
        first, *axes = names
        span = first.span.join(names[-1].span)
        slashed = tuple(axis.joined() for axis in axes)
        if first.subs and first.subs[-1].braced:
            name = first.joined(len(first.subs) - 1)
            return DimRef(name, first.subs[-1].words, slashed, span)
        return DimRef(first.joined(), (), slashed, span)

    def literal_dim(self, parts: list[_Name | Token | _Sub]) -> DimRef:
        """Read a dim that is its size: `128`, `128'`, `128_X`."""
        number, *rest = parts
        assert isinstance(number, Token)
        if not str(number).replace("_", "").isdigit():
            problem = f"a dim is a name or a whole number, not {shown(str(number))}"
            raise FormError(_span(number), WrongSize(problem))
        _exact(number)
        text, span, braced = str(number), _span(number), ()
        word_span = span
        slashed: list[Word] = []
        for part in rest:
            match part:
                case Token(type="PRIME"):
                    text += str(part).replace("′", "'")
                    word_span = span = span.join(_span(part))
                case _Sub():
                    braced, span = part.words, span.join(part.span)
                case _Name():
                    slashed.append(part.joined())
                    span = span.join(part.span)
                case _:
                    pass
        return DimRef(Word(text, word_span), braced, tuple(slashed), span, literal=True)

    def marker(self, parts: list[tuple[Word, tuple[Word, ...]] | Token]) -> Marker:
        """Read `{U_X}` and its kin."""
        span = _span_of(parts[0]).join(_span_of(parts[-1]))
        marks = [p for p in parts if not isinstance(p, Token)]
        kind = marks[0][0]
        for other, words in marks[1:]:
            if other.text != kind.text:
                raise FormError(
                    other.span.join(words[-1].span), WrongMarker(other.text, mixed=True)
                )
        return Marker(kind, tuple(word for _, words in marks for word in words), span)

    def part(self, parts: list[_Name | Token]) -> tuple[Word, tuple[Word, ...]]:
        """Read one `U_X`, `U_{XY}`, `U.X`, `max_X`."""
        name = parts[0]
        assert isinstance(name, _Name)
        words: tuple[Word, ...]
        if len(parts) == 3:
            last = parts[2]
            assert isinstance(last, _Name)
            kind, words = name.joined(), (last.joined(),)
        else:
            kind, words = _cut(name)
        if kind.text not in ("U", "max", "min") or not words:
            raise FormError(name.span, WrongMarker(_text(name)))
        return kind, words

    # ---- Names

    def name(self, parts: list[Token | _Name | _Sub]) -> _Name:
        """Read a name with its subscripts, without LaTeX wrappers."""
        if len(parts) == 1:
            word = _word(_token(parts[0]))
            return _Name(word, (), word.span)
        subs = tuple(p for p in parts if isinstance(p, _Sub))
        first = parts[0]
        inner = next((p for p in parts if isinstance(p, _Name)), None)
        if inner is not None:  # \text{…}, perhaps with letters before it
            closing = parts[parts.index(inner) + 1]
            span = _span_of(first).join(_span_of(closing))
            base, subs = inner.base, inner.subs + subs
            glued = _token(first).type == "GLUED"
            before = _word(_token(first)).text if glued else ""
            base = base if inner.subs and not glued else Word(before + base.text, span)
        else:
            base = _word(_token(first))
            span = base.span
        if subs:
            span = span.join(subs[-1].span)
        return _Name(base, subs, span)

    def subscript(self, parts: list[Token | Word]) -> _Sub:
        r"""Read `_D`, `_{X,J}`, `_{Z->B}`, `_\text{in}`."""
        first = parts[0]
        assert isinstance(first, Token)
        if len(parts) == 1:
            word = _word(first, str(first)[1:])
            word = Word(word.text, Span(word.span.start + 1, word.span.end))
            return _Sub((word,), braced=False, span=_span(first))
        words = tuple(p for p in parts if isinstance(p, Word))
        at = [i for i, p in enumerate(parts) if isinstance(p, Token) and p.type == "ARROW"]
        arrow = sum(isinstance(p, Word) for p in parts[: at[0]]) if at else None
        if len(at) > 1:
            tip = "one arrow stands between both lists, as in `f_{D,F->E,G}(x)`"
            raise FormError(_span_of(parts[at[1]]), Expected("`}`", "`->`", tip))
        span = _span(first).join(_span_of(parts[-1]))
        return _Sub(words, braced=True, span=span, arrow=arrow)

    def word(self, parts: list[_Name | Token]) -> Word:
        """Read a word of a subscript."""
        first = parts[0]
        return Word(str(first), _span(first)) if isinstance(first, Token) else first.joined()

    # ---- Declarations

    def section(self, parts: list[Token]) -> Section:
        """Read `forward:`, `backward:` or `update:`."""
        names: dict[str, Pass] = {"FORWARD": "forward", "BACKWARD": "backward", "UPDATE": "update"}
        return Section(names[parts[0].type], _span(parts[0]).join(_span(parts[1])))

    def layers(self, parts: list[Token | DimRef | _Size | CarryDecl]) -> Layers:
        """Read `layers L:`, `layers L=80:`, `layers 80:`, `layers L_Z:`, `layers L, x2 -> x:`."""
        dim, size = _counted(parts, "a block has a whole number of layers")
        carries = tuple(part for part in parts if isinstance(part, CarryDecl))
        span = _span_of(parts[0]).join(_span_of(parts[-1]))
        stack = parts[1] if isinstance(parts[1], DimRef) else None
        return Layers(dim, size, carries, span, stack=stack)

    def carry(self, parts: tuple[_Name, Token, _Name]) -> CarryDecl:
        """Read `x2 -> x`."""
        made, _, read = parts
        return CarryDecl(made.joined(), read.joined(), made.span.join(read.span))

    def block(self, parts: list[Token | _Name]) -> BlockDecl:
        """Read `block mlp(x, W_in, W_out):`, `block mlp(x) -> y:`."""
        name, *words = (part.joined() for part in parts if isinstance(part, _Name))
        returns = any(isinstance(part, Token) and part.type == "ARROW" for part in parts)
        result = words.pop() if returns else None
        span = _span_of(parts[0]).join(_span_of(parts[-1]))
        return BlockDecl(name, tuple(words), result, span)

    def include(self, parts: list[Token]) -> IncludeDecl:
        """Read `include "attention.shd"`."""
        keyword, path = parts
        word = Word(str(path)[1:-1], _span(path))
        return IncludeDecl(word, _span(keyword).join(word.span))

    def mesh(self, parts: list[Token | AxisDecl]) -> MeshDecl:
        """Read `mesh X=16, Y=4`."""
        axes = tuple(p for p in parts if isinstance(p, AxisDecl))
        return MeshDecl(axes, _span_of(parts[0]).join(axes[-1].span))

    def axis(self, parts: list[_Name | Token | _Size | AxisNote]) -> AxisDecl:
        """Read `X`, `X=16`, `X=16 @ici(2)`."""
        name = parts[0]
        assert isinstance(name, _Name)
        size: SizeExpr | None = None
        written = ""
        notes: list[AxisNote] = []
        span = name.span
        for part in parts[1:]:
            match part:
                case _Size():
                    size, written = part.expr, part.written
                case AxisNote():
                    notes.append(part)
                case _:
                    pass
            span = span.join(_span_of(part))
        return AxisDecl(name.joined(), size, tuple(notes), span, written)

    def note(self, parts: list[Token | _Name]) -> AxisNote:
        """Read `@dcn`, `@ici(2)`, `@part(X)`."""
        name = parts[1]
        assert isinstance(name, _Name)
        argument = None
        if len(parts) > 2 and isinstance(parts[3], _Name):
            argument = parts[3].joined()
        elif len(parts) > 2:
            number = _token(parts[3])
            _exact(number)
            argument = Word(str(number), _span(number))
        return AxisNote(name.joined(), argument, _span_of(parts[0]).join(_span_of(parts[-1])))

    def hardware(self, parts: list[Token]) -> HardwareDecl:
        """Read `hardware tpu_v5p`, or a path, perhaps in quotes, and the shape of a slice."""
        keyword, name, *rest = parts
        text = str(name)[1:-1] if name.type == "QUOTED" else str(name)
        shape = Word(str(rest[0]), _span(rest[0])) if rest else None
        span = _span(keyword).join(_span(parts[-1]))
        return HardwareDecl(Word(text, _span(name)), shape, span)

    def dims(self, parts: list[Token | DimDecl]) -> DimsDecl:
        """Read `dims B=3M, D=5120`."""
        dims = tuple(p for p in parts if isinstance(p, DimDecl))
        return DimsDecl(dims, _span_of(parts[0]).join(dims[-1].span))

    def dim_size(self, parts: tuple[_Name, Token, _Size]) -> DimDecl:
        """Read `F=4*D`."""
        name, _, size = parts
        span = name.span.join(size.span)
        return DimDecl(name.joined(), size.expr, size.names, span, size.written)

    def dtype(self, parts: tuple[Token, _Name]) -> DTypeDecl:
        """Read `dtype bf16`."""
        return DTypeDecl(parts[1].joined(), _span(parts[0]).join(parts[1].span))

    def leaf(self, parts: list[Token | Expr]) -> LeafDecl:
        """Read `input In: [B_X, D_Y]`, `param W: bf16[D, F], V[D]`, `cache K: [B, S]`."""
        keyword = _token(parts[0])
        tensors: list[TensorRef] = []
        for part in parts[1:]:
            if isinstance(part, Token):
                continue
            if not isinstance(part, TensorRef):
                raise FormError(part.span, NotATensor("what is declared"))
            tensors.append(part)
        kinds: dict[str, LeafKind] = {"INPUT": "input", "PARAM": "param", "CACHE": "cache"}
        return LeafDecl(kinds[keyword.type], tuple(tensors), _span(keyword).join(tensors[-1].span))

    def optimizer(self, parts: list[Token | _Name | ZeroDecl]) -> OptimizerDecl:
        """Read `optimizer adam`, `optimizer adamw, zero 1 over X`."""
        name, last = parts[1], parts[-1]
        assert isinstance(name, _Name)
        zero = last if isinstance(last, ZeroDecl) else None
        return OptimizerDecl(name.joined(), _span_of(parts[0]).join(_span_of(last)), zero)

    def zero(self, parts: list[Token | _Name]) -> ZeroDecl:
        """Read `zero 1 over X`, `zero 2 over data, fsdp`."""
        words = [part.joined() for part in parts if isinstance(part, _Name)]
        for word, meant in zip(words, ("zero", "over"), strict=False):
            if word.text.lower() != meant:
                raise FormError(word.span, Expected(f"`{meant}`", f"`{word.text}`", ZERO))
        number = _token(parts[1])
        span = _span_of(parts[0]).join(_span_of(parts[-1]))
        return ZeroDecl(Word(str(number), _span(number)), tuple(words[2:]), span)

    def accumulate(self, parts: list[Token | _Name | _Size]) -> AccumulateDecl:
        """Read `accumulate M`, `accumulate M=8`, `accumulate 8`."""
        dim, size = _counted(parts, "a step has a whole number of microbatches")
        return AccumulateDecl(dim, size, _span_of(parts[0]).join(_span_of(parts[-1])))

    def schedule(self, parts: list[Token | _Name]) -> ScheduleDecl:
        """Read `schedule 1f1b`, `schedule interleaved, chunks 2`."""
        name, last = _token(parts[1]), _token(parts[-1]) if len(parts) > 2 else None
        keyword = next((part.joined() for part in parts if isinstance(part, _Name)), None)
        chunks = None if last is None else Word(str(last), _span(last))
        span = _span_of(parts[0]).join(_span_of(parts[-1]))
        return ScheduleDecl(Word(str(name), _span(name)), keyword, chunks, span)

    def save(self, parts: list[Token | _Name]) -> SaveDecl:
        """Read `save Tmp, P`."""
        names = tuple(p.joined() for p in parts if isinstance(p, _Name))
        return SaveDecl(names, _span_of(parts[0]).join(names[-1].span))

    def prefetch(self, parts: list[Token | _Name]) -> PrefetchDecl:
        """Read `prefetch W_in, W_out`."""
        names = tuple(p.joined() for p in parts if isinstance(p, _Name))
        return PrefetchDecl(names, _span_of(parts[0]).join(names[-1].span))

    # ---- Sizes

    def size_number(self, parts: list[Token]) -> _Size:
        """Read `3M`, `48_000`, `3e6`."""
        value = _exact(parts[0])
        return _Size(Number(value), (), value, 1, str(parts[0]), _span(parts[0]))

    def size_name(self, parts: list[_Name | Token]) -> _Size:
        """Read the size of another dim, `D` or `|D|`."""
        (name,) = [p for p in parts if isinstance(p, _Name)]
        word = name.joined()
        span = _span_of(parts[0]).join(_span_of(parts[-1]))
        return _Size(Name(word.text), (word,), None, 1, word.text, span)

    def size_group(self, parts: tuple[Token, _Size, Token]) -> _Size:
        """Read a size in brackets."""
        span = _span(parts[0]).join(_span(parts[2]))
        return replace(parts[1], written=f"({parts[1].written})", span=span)

    def size_op(self, parts: tuple[_Size, Token, _Size]) -> _Size:
        """Read an operation on sizes."""
        left, sign, right = parts
        span = left.span.join(right.span)
        signs: dict[str, Literal["+", "-", "*", "/", "**"]] = {
            "PLUS": "+", "MINUS": "-", "STAR": "*", "DOT": "*", "SLASH": "/", "POWER": "**",
        }  # fmt: skip
        op = signs[sign.type]
        depth = 1 + max(left.depth, right.depth)
        if depth > _SIZE_DEPTH:
            raise FormError(_span(sign), TooLong("a size has", _SIZE_DEPTH, "operators in a row"))
        value = _compute(op, left, right, span)
        expr = BinOp(op, left.expr, right.expr)
        gap = " " if op in "+-" else ""
        written = f"{left.written}{gap}{op}{gap}{right.written}"
        return _Size(expr, left.names + right.names, value, depth, written, span)


# ---- Helpers -------------------------------------------------------------------------------------


def _posts(parts: Sequence[object]) -> list[Marker | _Transpose | _Index]:
    """Give the parts that may stand behind a tensor's brackets."""
    return [p for p in parts if isinstance(p, Marker | _Transpose | _Index)]


def _token(part: object) -> Token:
    assert isinstance(part, Token)
    return part


def _span_of(part: object) -> Span:
    """Give the place of a token or a node."""
    if isinstance(part, Token):
        return _span(part)
    span = getattr(part, "span", None)
    assert isinstance(span, Span)
    return span


def _counted(parts: Sequence[object], whole: str) -> tuple[Word, DimDecl | None]:
    """Read what counts repetitions behind a keyword, `L`, `L=80` or `80`, with its size.

    `whole` says what it has to be, for the mistake.
    """
    head = parts[1]
    if isinstance(head, _Name):
        dim = head.joined()
    elif isinstance(head, DimRef):
        dim = head.name
    else:
        number = _token(head)
        count = _exact(number)
        if count.denominator != 1 or count < 1:
            mistake = WrongSize(
                f"{whole}, not {shown(str(number))}", DECLARATIONS[str(parts[0]).lower()]
            )
            raise FormError(_span(number), mistake)
        dim = Word(str(count.numerator), _span(number))
    size: DimDecl | None = None
    for part in parts:
        if isinstance(part, _Size):
            size = DimDecl(dim, part.expr, part.names, dim.span.join(part.span), part.written)
    return dim, size


def _is_dtype(word: Word) -> bool:
    return word.text in DTYPES or word.text in DTYPE_ALIASES


def _text(name: _Name) -> str:
    """Give a name as written without LaTeX, for a message."""
    return name.base.text + "".join(
        "_{" + ",".join(w.text for w in sub.words) + "}" if sub.braced else "_" + sub.words[0].text
        for sub in name.subs
    )


_HEAD = re.compile(rf"(?:{'|'.join(sorted(HEADS, key=len, reverse=True))})(?=_|\\Z)|[^_]*")


def _root(name: _Name) -> str:
    """Give the head that a name begins with, else the name up to its first underscore."""
    found = _HEAD.match(name.base.text)
    assert found is not None
    return found.group()


def _cut(name: _Name) -> tuple[Word, tuple[Word, ...]]:
    """Cut a name behind its head: `AllGather_X`, `AllGather_{X,Y}`, `sum_d_{model}`."""
    root = _root(name)
    rest = name.base.text[len(root) + 1 :]
    if not rest:
        if not name.subs:
            return name.base, ()
        if len(name.subs) == 1:
            return name.base, name.subs[0].words
        first = name.subs[0]
        if len(first.words) != 1:
            raise FormError(name.span, NotAName(_text(name)))
        inner = _Name(first.words[0], name.subs[1:], Span(first.span.start, name.span.end))
        return name.base, (inner.joined(),)
    start = name.base.span.start
    raw = name.base.span.end - start == len(name.base.text)  # else the word was wrapped
    head_span = Span(start, start + len(root)) if raw else name.base.span
    rest_span = Span(start + len(root) + 1, name.base.span.end) if raw else name.base.span
    if not name.subs:
        return Word(root, head_span), (Word(rest, rest_span),)
    inner = _Name(Word(rest, rest_span), name.subs, Span(rest_span.start, name.span.end))
    return Word(root, head_span), (inner.joined(),)


def _head(name: _Name) -> tuple[Word, tuple[Word, ...] | None]:
    """Tell a call's head from its subscript."""
    if _root(name) in HEADS:
        head, words = _cut(name)
        return head, words or None
    if not name.subs or not name.subs[-1].braced:
        return name.joined(), None
    if all(len(sub.words) == 1 for sub in name.subs) and name.joined().text in FUNCTIONS:
        return name.joined(), None
    return name.joined(len(name.subs) - 1), name.subs[-1].words


def _bare(name: _Name, operand: Expr) -> Call:
    """Make the call that has no brackets."""
    head, words = _cut(name)
    return Call(head, words or None, (operand,), name.span.join(operand.span), bare=True)


def _first(operand: Expr) -> str:
    """Give the first word of an operand, for a message."""
    match operand:
        case TensorRef(Word(text)):
            return text
        case TensorRef(None, Word(text)):
            return text
        case Call(Word(text)):
            return text
        case _:
            return "it"


def _tensor(
    name: Word | None,
    dtype: Word | None,
    dims: object,
    posts: Sequence[object],
    span: Span,
    *,
    transposed: bool = False,
) -> TensorRef:
    """Put a tensor together from its parts."""
    marker: Marker | None = None
    index: Word | None = None
    if isinstance(dims, _Dims):
        span = span.join(dims.span)
    for post in _posts(posts):
        match post:
            case Marker():
                if marker is not None:
                    _twice(marker.span, post.span, "one mark `{U_…}`")
                marker = post
            case _Transpose():
                transposed = not transposed
            case _Index():
                if index is not None:
                    _twice(index.span, post.span, "one micro-batch `[i]`")
                index = post.word
        span = span.join(post.span)
    refs = dims.dims if isinstance(dims, _Dims) else None
    return TensorRef(name, dtype, refs, marker, span, transposed, index)


def _twice(first: Span, second: Span, what: str) -> NoReturn:
    raise FormError(second, Repeated(what), [Label(first, "the first one")])


def _exact(token: Token) -> Fraction:
    """Read a number exactly; refuse one too large or too small before it is computed."""
    match = _NUMBER.fullmatch(str(token))
    assert match is not None
    whole, decimals, exponent, suffix = match.groups()
    whole = whole.replace("_", "").lstrip("0")
    digits = whole + (decimals or "")
    power_text = (exponent or "0").lstrip("+")
    sign, power_digits = ("-", power_text[1:]) if power_text[0] == "-" else ("", power_text)
    power_digits = power_digits.lstrip("0") or "0"
    small = len(digits) <= 4 * SIZE_DIGITS and len(power_digits) <= 4
    power = int(sign + power_digits) if small else 0
    if not small or abs(power) > 2 * SIZE_DIGITS or len(whole) + power > SIZE_DIGITS + 1:
        raise FormError(_span(token), too_large(shown(str(token))))
    value = Fraction(int(digits or "0"), 10 ** len(decimals or "")) * Fraction(10) ** power
    value *= _SUFFIXES.get(suffix, 1)
    if value > LARGEST_SIZE:
        raise FormError(_span(token), too_large(shown(str(token))))
    return value


def too_large(what: str) -> WrongSize:
    """Say that a number, as it is shown, is beyond what is read."""
    return WrongSize(
        f"{what} is out of range", f"numbers go up to 1e{SIZE_DIGITS}, with as many decimals"
    )


def _compute(
    op: Literal["+", "-", "*", "/", "**"], left: _Size, right: _Size, span: Span
) -> Fraction | None:
    """Compute an operation on numbers; refuse what is no size or takes too long to compute."""
    if op == "**":
        exponent = right.value
        if exponent is None or exponent.denominator != 1 or exponent < 0:
            raise FormError(
                right.span,
                WrongSize("the exponent of a size must be a whole number", "as in 2**10"),
            )
        limit = _NAMED_POWER if left.value is None else 4 * SIZE_DIGITS
        if exponent > limit:
            raise FormError(right.span, too_large(f"an exponent above {limit}"))
    if op == "/" and right.value == 0:
        raise FormError(right.span, WrongSize("a size can't be divided by zero"))
    if left.value is None or right.value is None:
        return None
    a, b = left.value, right.value
    match op:
        case "+":
            value = a + b
        case "-":
            value = a - b
        case "*":
            value = a * b
        case "/":
            value = a / b
        case "**":
            value = a ** int(b)
    if abs(value) > LARGEST_SIZE or value.denominator > LARGEST_SIZE:
        raise FormError(span, too_large("this size"))
    return value
