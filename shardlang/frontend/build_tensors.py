"""Tensors and names, from what the grammar reads: one method a rule.

Decides which part of a name is a subscript, and which brackets are a tensor with only a dtype. Raises
`FormError` with the exact place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NoReturn

from lark import Token

from shardlang.diagnostics import Label
from shardlang.frontend.amounts import exact
from shardlang.frontend.heads import COLLECTIVES
from shardlang.frontend.parse_errors import (
    DECLARATIONS,
    Expected,
    HeaderNotAlone,
    Repeated,
    shown,
    WrongMarker,
    WrongSize,
)
from shardlang.frontend.pieces import (
    as_token,
    as_written,
    cut,
    Dims,
    FormError,
    Index,
    Labelled,
    Named,
    root,
    span_at,
    span_of,
    Sub,
    Transpose,
    word_of,
)
from shardlang.frontend.syntax import Call, DimRef, Expr, Marker, TensorRef, Word
from shardlang.ir.types import DTYPE_ALIASES, DTYPES
from shardlang.source import Span


class TensorBuilder:
    """The methods of tensors, dims and names, each with the parts of its rule in order."""

    # ---- Tensors

    def label(self, parts: list[Named | Token]) -> Labelled:
        """Read a tensor's name, perhaps with `^T`."""
        name, *rest = parts
        assert isinstance(name, Named)
        span = name.span
        for token in rest:
            assert isinstance(token, Token)
            span = span.join(span_at(token))
        return Labelled(name, bool(rest), span)

    def bare(self, parts: list[Labelled]) -> TensorRef:
        """Read a tensor with no brackets."""
        (label,) = parts
        word = label.name.joined()
        return TensorRef(word, None, None, None, label.span, label.transposed)

    def marked(self, parts: tuple[Labelled, Marker]) -> TensorRef:
        """Read `A{U_X}`."""
        label, marker = parts
        word = label.name.joined()
        return TensorRef(word, None, None, marker, label.span.join(marker.span), label.transposed)

    def tensor(self, parts: list[Labelled | Dims | Marker | Transpose | Index]) -> Expr:
        """Read `A[I_X, J]{U_Y}`, `bf16[D, F]`, or a collective of a tensor without a name."""
        label, dims, *posts = parts
        assert isinstance(label, Labelled)
        if root(label.name) in COLLECTIVES:
            return bare_call(label.name, tensor_ref(None, None, dims, posts, dims.span))
        word = label.name.joined()
        if _is_dtype(word):
            return tensor_ref(None, word, dims, posts, label.span, transposed=label.transposed)
        return tensor_ref(word, None, dims, posts, label.span, transposed=label.transposed)

    def typed(
        self, parts: list[Labelled | Token | Named | Dims | Marker | Transpose | Index]
    ) -> Expr:
        """Read `W: bf16[D, F]` and `W ∈ bf16[D, F]`."""
        label, sign, dtype, *rest = parts
        assert isinstance(label, Labelled)
        assert isinstance(dtype, Named)
        dims, posts = (rest[0], rest[1:]) if rest else (None, [])
        if root(label.name) in COLLECTIVES:
            operand = tensor_ref(dtype.joined(), None, dims, posts, dtype.span)
            return bare_call(label.name, operand)
        word = label.name.joined()
        if word.text in ("forward", "backward", "update") and sign == ":":
            raise FormError(label.span.join(span_of(sign)), HeaderNotAlone(word.text))
        if word.text in DECLARATIONS and sign == ":" and not _is_dtype(dtype.joined()):
            raise FormError(span_of(sign), Expected("a name", "`:`", DECLARATIONS[word.text]))
        span = label.span.join(dtype.span)
        return tensor_ref(word, dtype.joined(), dims, posts, span, transposed=label.transposed)

    def untyped(self, parts: list[Labelled | Token | Dims | Marker | Transpose | Index]) -> Expr:
        """Read `In: [B_X, D_Y]`."""
        label, _, dims, *posts = parts
        assert isinstance(label, Labelled)
        assert isinstance(dims, Dims)
        if root(label.name) in COLLECTIVES:
            return bare_call(label.name, tensor_ref(None, None, dims, posts, dims.span))
        return tensor_ref(
            label.name.joined(), None, dims, posts, label.span, transposed=label.transposed
        )

    def anonymous(self, parts: list[Dims | Marker | Transpose | Index]) -> TensorRef:
        """Read `[A_X, B]`."""
        dims, *posts = parts
        return tensor_ref(None, None, dims, posts, dims.span)

    def wrapped(self, parts: list[Token | Named | Dims | Marker | Transpose | Index]) -> Expr:
        r"""Read `\text{bf16[B, D]}`."""
        opening, name, dims, closing, *posts = parts
        assert isinstance(name, Named)
        assert isinstance(dims, Dims)
        inner = self.tensor(
            [Labelled(name, transposed=False, span=name.span), dims, *_posts(posts)]
        )
        return replace(inner, span=span_of(opening).join(inner.span).join(span_of(closing)))

    def belongs(self, parts: list[Token]) -> Token:
        """Give `:` or `∈`."""
        return parts[0]

    def dtype_name(self, parts: list[Named]) -> Named:
        """Give a dtype's name, as written."""
        return parts[0]

    def transpose(self, parts: list[Token]) -> Transpose:
        """Read `^T`."""
        return Transpose(span_at(parts[0]))

    def index(self, parts: list[Token]) -> Index:
        """Read the `[i]` of a micro-batch."""
        opening, word, closing = parts
        return Index(Word(str(word), span_at(word)), span_at(opening).join(span_at(closing)))

    def dimensions(self, parts: list[DimRef | Token]) -> Dims:
        """Read the brackets of a tensor."""
        opening, closing = parts[0], parts[-1]
        dims = tuple(p for p in parts if isinstance(p, DimRef))
        return Dims(dims, span_of(opening).join(span_of(closing)))

    def named_dim(self, parts: list[Named | Token]) -> DimRef:
        """Read `B`, `B_X`, `B_{X,Y}`, `B/X/Y`."""
        names = [p for p in parts if isinstance(p, Named)]
        first, *axes = names
        span = first.span.join(names[-1].span)
        slashed = tuple(axis.joined() for axis in axes)
        if first.subs and first.subs[-1].braced:
            name = first.joined(len(first.subs) - 1)
            return DimRef(name, first.subs[-1].words, slashed, span)
        return DimRef(first.joined(), (), slashed, span)

    def literal_dim(self, parts: list[Named | Token | Sub]) -> DimRef:
        """Read a dim that is its size: `128`, `128'`, `128_X`."""
        number, *rest = parts
        assert isinstance(number, Token)
        if not str(number).replace("_", "").isdigit():
            problem = f"a dim is a name or a whole number, not {shown(str(number))}"
            raise FormError(span_at(number), WrongSize(problem))
        exact(number)
        text, span, braced = str(number), span_at(number), ()
        word_span = span
        slashed: list[Word] = []
        for part in rest:
            match part:
                case Token(type="PRIME"):
                    text += str(part).replace("′", "'")
                    word_span = span = span.join(span_at(part))
                case Sub():
                    braced, span = part.words, span.join(part.span)
                case Named():
                    slashed.append(part.joined())
                    span = span.join(part.span)
                case _:
                    pass
        return DimRef(Word(text, word_span), braced, tuple(slashed), span, literal=True)

    def marker(self, parts: list[tuple[Word, tuple[Word, ...]] | Token]) -> Marker:
        """Read `{U_X}` and its kin."""
        span = span_of(parts[0]).join(span_of(parts[-1]))
        marks = [p for p in parts if not isinstance(p, Token)]
        kind = marks[0][0]
        for other, words in marks[1:]:
            if other.text != kind.text:
                raise FormError(
                    other.span.join(words[-1].span), WrongMarker(other.text, mixed=True)
                )
        return Marker(kind, tuple(word for _, words in marks for word in words), span)

    def part(self, parts: list[Named | Token]) -> tuple[Word, tuple[Word, ...]]:
        """Read one `U_X`, `U_{XY}`, `U.X`, `max_X`."""
        name = parts[0]
        assert isinstance(name, Named)
        words: tuple[Word, ...]
        if len(parts) == 3:
            last = parts[2]
            assert isinstance(last, Named)
            kind, words = name.joined(), (last.joined(),)
        else:
            kind, words = cut(name)
        if kind.text not in ("U", "max", "min") or not words:
            raise FormError(name.span, WrongMarker(as_written(name)))
        return kind, words

    # ---- Names

    def name(self, parts: list[Token | Named | Sub]) -> Named:
        """Read a name with its subscripts, without LaTeX wrappers."""
        if len(parts) == 1:
            word = word_of(as_token(parts[0]))
            return Named(word, (), word.span)
        subs = tuple(p for p in parts if isinstance(p, Sub))
        first = parts[0]
        inner = next((p for p in parts if isinstance(p, Named)), None)
        if inner is not None:  # \text{…}, perhaps with letters before it
            closing = parts[parts.index(inner) + 1]
            span = span_of(first).join(span_of(closing))
            base, subs = inner.base, inner.subs + subs
            glued = as_token(first).type == "GLUED"
            before = word_of(as_token(first)).text if glued else ""
            base = base if inner.subs and not glued else Word(before + base.text, span)
        else:
            base = word_of(as_token(first))
            span = base.span
        if subs:
            span = span.join(subs[-1].span)
        return Named(base, subs, span)

    def subscript(self, parts: list[Token | Word]) -> Sub:
        r"""Read `_D`, `_{X,J}`, `_{Z->B}`, `_\text{in}`."""
        first = parts[0]
        assert isinstance(first, Token)
        if len(parts) == 1:
            word = word_of(first, str(first)[1:])
            word = Word(word.text, Span(word.span.start + 1, word.span.end))
            return Sub((word,), braced=False, span=span_at(first))
        words = tuple(p for p in parts if isinstance(p, Word))
        at = [i for i, p in enumerate(parts) if isinstance(p, Token) and p.type == "ARROW"]
        arrow = sum(isinstance(p, Word) for p in parts[: at[0]]) if at else None
        if len(at) > 1:
            tip = "one arrow stands between both lists, as in `f_{D,F->E,G}(x)`"
            raise FormError(span_of(parts[at[1]]), Expected("`}`", "`->`", tip))
        span = span_at(first).join(span_of(parts[-1]))
        return Sub(words, braced=True, span=span, arrow=arrow)

    def word(self, parts: list[Named | Token]) -> Word:
        """Read a word of a subscript."""
        first = parts[0]
        return Word(str(first), span_at(first)) if isinstance(first, Token) else first.joined()


# ---- Helpers -------------------------------------------------------------------------------------


def _posts(parts: Sequence[object]) -> list[Marker | Transpose | Index]:
    """Give the parts that may stand behind a tensor's brackets."""
    return [p for p in parts if isinstance(p, Marker | Transpose | Index)]


def _is_dtype(word: Word) -> bool:
    return word.text in DTYPES or word.text in DTYPE_ALIASES


def bare_call(name: Named, operand: Expr) -> Call:
    """Make the call that has no brackets."""
    head, words = cut(name)
    return Call(head, words or None, (operand,), name.span.join(operand.span), bare=True)


def tensor_ref(
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
    if isinstance(dims, Dims):
        span = span.join(dims.span)
    for post in _posts(posts):
        match post:
            case Marker():
                if marker is not None:
                    _twice(marker.span, post.span, "one mark `{U_…}`")
                marker = post
            case Transpose():
                transposed = not transposed
            case Index():
                if index is not None:
                    _twice(index.span, post.span, "one micro-batch `[i]`")
                index = post.word
        span = span.join(post.span)
    refs = dims.dims if isinstance(dims, Dims) else None
    return TensorRef(name, dtype, refs, marker, span, transposed, index)


def _twice(first: Span, second: Span, what: str) -> NoReturn:
    raise FormError(second, Repeated(what), [Label(first, "the first one")])
