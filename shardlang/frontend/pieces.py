"""What the builder passes up within a statement, beside the nodes of the tree; and mistakes of form.

Spans count from the start of the text: the statement that is read may start anywhere in it.
"""

from __future__ import annotations

import re
import threading
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from lark import Token

from shardlang.diagnostics import Label, Mistake
from shardlang.frontend.heads import SUBSCRIPTED
from shardlang.frontend.parse_errors import NotAName
from shardlang.frontend.syntax import DimRef, Expr, TensorRef, Word
from shardlang.ir.functions import FUNCTIONS
from shardlang.ir.size import SizeExpr
from shardlang.source import Span


class FormError(Exception):
    """A mistake at a place, on its way to the reporter."""

    def __init__(self, span: Span, mistake: Mistake, labels: Sequence[Label] = ()) -> None:
        """Keep the three."""
        super().__init__(mistake)
        self.span = span
        self.mistake = mistake
        self.labels = tuple(labels)


@dataclass(slots=True, eq=False, repr=False)
class Sub:
    r"""A subscript behind a name or an operator: `_D`, `_{X,J}`, `_\text{in}`."""

    words: tuple[Word, ...]
    braced: bool
    span: Span
    arrow: int | None = None
    """How many words stand before an arrow, where there is one."""


@dataclass(slots=True, eq=False, repr=False)
class Named:
    """A name with the subscripts that were written apart from it."""

    base: Word
    subs: tuple[Sub, ...]
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
class Dims:
    """The dims in the brackets of a tensor."""

    dims: tuple[DimRef, ...]
    span: Span


@dataclass(slots=True, eq=False, repr=False)
class Labelled:
    """A name with what stands between it and its brackets: whether it is transposed."""

    name: Named
    transposed: bool
    span: Span


@dataclass(slots=True, eq=False, repr=False)
class Transpose:
    """A `^T` behind brackets."""

    span: Span


@dataclass(slots=True, eq=False, repr=False)
class Index:
    """The `[i]` of a microbatch."""

    word: Word
    span: Span


@dataclass(slots=True, eq=False, repr=False)
class Operator:
    """The sign of a product, with its subscript."""

    op: Literal["dot", "star", "hadamard"]
    sub: Sub | None
    span: Span


@dataclass(slots=True, eq=False, repr=False)
class Arguments:
    """What stands in the brackets of a call: its operands, and results behind an arrow."""

    exprs: tuple[Expr, ...]
    results: tuple[TensorRef, ...] = ()


@dataclass(slots=True, eq=False, repr=False)
class Size:
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


def span_at(token: Token) -> Span:
    """Give the place of a token in the text."""
    assert token.start_pos is not None
    assert token.end_pos is not None
    offset = _PLACE.offset
    return Span(offset + token.start_pos, offset + token.end_pos)


def word_of(token: Token, text: str | None = None) -> Word:
    """Read a token as a name: one spelling for each, and only what Unicode calls an identifier."""
    raw = (str(token) if text is None else text).replace("\\_", "_").replace("′", "'")
    span = span_at(token)
    plain = raw.replace("'", "")
    if plain.isascii() and plain[-1] != "_":  # letters, digits and underscores, by the grammar
        return Word(raw, span)
    if not plain.isidentifier() or plain[-1] == "_":
        raise FormError(span, NotAName(raw))
    return Word(unicodedata.normalize("NFKC", raw), span)


def as_token(part: object) -> Token:
    """Take a part for the token that it is by the grammar."""
    assert isinstance(part, Token)
    return part


def span_of(part: object) -> Span:
    """Give the place of a token or a node."""
    if isinstance(part, Token):
        return span_at(part)
    span = getattr(part, "span", None)
    assert isinstance(span, Span)
    return span


def as_written(name: Named) -> str:
    """Give a name as written without LaTeX, for a message."""
    return name.base.text + "".join(
        "_{" + ",".join(w.text for w in sub.words) + "}" if sub.braced else "_" + sub.words[0].text
        for sub in name.subs
    )


_HEAD = re.compile(rf"(?:{'|'.join(sorted(SUBSCRIPTED, key=len, reverse=True))})(?=_|\\Z)|[^_]*")


def root(name: Named) -> str:
    """Give the head that a name begins with, else the name up to its first underscore."""
    found = _HEAD.match(name.base.text)
    assert found is not None
    return found.group()


def cut(name: Named) -> tuple[Word, tuple[Word, ...]]:
    """Cut a name behind its head: `AllGather_X`, `AllGather_{X,Y}`, `sum_d_{model}`."""
    head = root(name)
    rest = name.base.text[len(head) + 1 :]
    if not rest:
        if not name.subs:
            return name.base, ()
        if len(name.subs) == 1:
            return name.base, name.subs[0].words
        first = name.subs[0]
        if len(first.words) != 1:
            raise FormError(name.span, NotAName(as_written(name)))
        inner = Named(first.words[0], name.subs[1:], Span(first.span.start, name.span.end))
        return name.base, (inner.joined(),)
    start = name.base.span.start
    raw = name.base.span.end - start == len(name.base.text)  # else the word was wrapped
    head_span = Span(start, start + len(head)) if raw else name.base.span
    rest_span = Span(start + len(head) + 1, name.base.span.end) if raw else name.base.span
    if not name.subs:
        return Word(head, head_span), (Word(rest, rest_span),)
    inner = Named(Word(rest, rest_span), name.subs, Span(rest_span.start, name.span.end))
    return Word(head, head_span), (inner.joined(),)


def head_of(name: Named) -> tuple[Word, tuple[Word, ...] | None]:
    """Tell a call's head from its subscript."""
    if root(name) in SUBSCRIPTED:
        head, words = cut(name)
        return head, words or None
    if not name.subs or not name.subs[-1].braced:
        return name.joined(), None
    if all(len(sub.words) == 1 for sub in name.subs) and name.joined().text in FUNCTIONS:
        return name.joined(), None
    return name.joined(len(name.subs) - 1), name.subs[-1].words
