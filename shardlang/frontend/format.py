"""The canonical layout of a source (`shardlang fmt`): one spelling for each thing, comments kept.

Precondition: the text parses. Effect: the formatted text means the same; formatting it again
changes nothing. Numbers stay as they were written, since `3M` says more than its zeros. A subscript
is written `B_X` only where it is sure to be read as axes; else its braces or slashes stay.
Statements longer than a line go on behind a comma or an operator, as far out of brackets as they can.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from shardlang.diagnostics import Reporter
from shardlang.frontend import blocks
from shardlang.frontend.heads import RENAME, RESHAPE, SUBSCRIPTED
from shardlang.frontend.lines import goes_on
from shardlang.frontend.names import AxisNames, implied_axes, USUAL_AXES
from shardlang.frontend.parser import read
from shardlang.frontend.syntax import (
    AccumulateDecl,
    AxisDecl,
    Binary,
    BlockDecl,
    Call,
    CarryDecl,
    Comment,
    Comparison,
    Definition,
    DimRef,
    DimsDecl,
    DTypeDecl,
    Expr,
    File,
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
from shardlang.source import Source, Span

_COMMENT_COLUMN = 60
_LINE = 100  # how long a line may be, without the comment behind it
_GOING_ON = 4  # how far lines that go on are indented
_SIGNS = {"dot": "·", "star": "*", "hadamard": "⊙"}
_PLAIN_PATH = re.compile(r'(?:[\w.~]|/(?!/))(?:[^\s",#/]|/(?!/))*(?<=\w)')
_PLAIN_WORD = re.compile(r"[^\W_][^\W_']*'*")
_COMPARISON, _SUM, _PRODUCT, _UNARY, _ATOM = 0, 1, 2, 3, 4


def format_source(source: Source) -> str:
    """Lay a source out anew; raise `ShardlangError` if it does not parse."""
    reporter = Reporter(source)
    tree = read(source, reporter)
    reporter.raise_if_errors()
    return _Layout(source, tree).text()


# ---- Lines ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Row:
    """A statement or a comment: its lines without their indent, and a comment behind the last one."""

    lines: tuple[str, ...]
    indent: int
    comment: str | None
    first: int  # the line of the source where it starts
    last: int
    item: Item | None

    @property
    def width(self) -> int:
        """How far the last line goes, indented."""
        return self.margin(len(self.lines) - 1) + len(self.lines[-1])

    def margin(self, line: int) -> int:
        """Give the indent of a line by its number."""
        return self.indent + (_GOING_ON if line else 0)


class _Layout:
    """Puts items and comments in the order of the text."""

    def __init__(self, source: Source, tree: File) -> None:
        self._source = source
        self._tree = tree
        self._words = _Spelling(tree)

    def text(self) -> str:
        """Give the whole text, with one line end behind it; nothing for nothing."""
        lines: list[str] = []
        last: int | None = None
        rows = self._rows()
        for row, width in zip(rows, _widths(rows), strict=True):
            if last is not None and row.first > last + 1:
                lines.append("")
            found = [" " * row.margin(n) + line for n, line in enumerate(row.lines)]
            if row.comment is not None:
                found[-1] = f"{found[-1].ljust(width)}  {row.comment}"
            lines += [line.rstrip() for line in found]
            last = row.last
        return "".join(line + "\n" for line in lines)

    def _rows(self) -> list[_Row]:
        rows: list[_Row] = []
        comments = list(reversed(self._tree.comments))
        inside = False
        for block, item in blocks.inside(self._tree.items):
            header = isinstance(item, Section)
            margin = 2 if inside else 0
            indent = 0 if header else margin + (2 if block is not None else 0)
            above: list[Comment] = []
            while comments and comments[-1].span.start < item.span.end:
                above.append(comments.pop())
            behind = self._behind(item, comments)
            rows += self._comments(above, margin if header else indent, item)
            first, last = self._lines(item.span)
            if behind is not None:
                last = self._lines(behind.span)[1]
            text = _wrapped(self._words.item(item), indent, item)
            comment = None if behind is None else self._comment(behind)
            rows.append(_Row(text, indent, comment, first, last, item))
            inside = inside or header
        rows += self._comments(list(reversed(comments)), 2 if inside else 0, None)
        return rows

    def _behind(self, item: Item, comments: list[Comment]) -> Comment | None:
        """Take the comment that stands behind an item on its last line."""
        if not comments or comments[-1].alone:
            return None
        if self._lines(comments[-1].span)[0] != self._lines(item.span)[1]:
            return None
        return comments.pop()

    def _comments(self, comments: Sequence[Comment], indent: int, item: Item | None) -> list[_Row]:
        """Lay out comments on lines of their own; those from within an item stand above it.

        Before a header and at the end, one that was written at the margin stays there.
        """
        rows: list[_Row] = []
        for comment in comments:
            first, last = self._lines(comment.span)
            if item is not None and comment.span.start > item.span.start:
                first = last = self._lines(item.span)[0]
            column = self._source.position(comment.span.start)[1]
            margin = column == 1 and (item is None or isinstance(item, Section))
            text = (self._comment(comment),)
            rows.append(_Row(text, 0 if margin else indent, None, first, last, None))
        return rows

    def _comment(self, comment: Comment) -> str:
        written = self._source.text[comment.span.start : comment.span.end]
        mark = written[: len(written) - len(written.lstrip(written[0]))]
        return f"{mark} {comment.text}".rstrip()

    def _lines(self, span: Span) -> tuple[int, int]:
        return self._source.position(span.start)[0], self._source.position(span.end)[0]


def _widths(rows: Sequence[_Row]) -> list[int]:
    """Give for each row the column behind which its comment stands: one for each run of items."""
    widths = [0] * len(rows)
    run: list[int] = []
    for number, row in enumerate(rows):
        breaks = row.item is None or isinstance(row.item, Section)
        gap = run and row.first > rows[run[-1]].last + 1
        if breaks or gap:
            _settle(rows, run, widths)
            run = []
        if not breaks:
            run.append(number)
    _settle(rows, run, widths)
    return widths


def _settle(rows: Sequence[_Row], run: Sequence[int], widths: list[int]) -> None:
    width = min(max((rows[number].width for number in run), default=0), _COMMENT_COLUMN)
    for number in run:
        widths[number] = width


def _wrapped(text: str, indent: int, item: Item) -> tuple[str, ...]:
    """Break a statement into lines, each as long as it may be.

    Of the places in a line's second half the last one in the fewest brackets is taken; where there
    is none the line is as long as it has to be.
    """
    lines: list[str] = []
    room = _LINE - indent
    if isinstance(item, HardwareDecl | IncludeDecl):  # a path may hold anything
        return (text,)
    while len(text) > room:
        places = _places(text)
        fits = [place for place in places if place[1] <= room]
        late = [place for place in fits if place[1] > room // 2]
        if not places:
            break
        _, at = min(late or fits[-1:] or places[:1], key=lambda place: (place[0], -place[1]))
        lines.append(text[:at])
        text = text[at + 1 :]
        room = _LINE - indent - _GOING_ON
    return (*lines, text)


def _places(text: str) -> list[tuple[int, int]]:
    """Give the spaces at which a statement may go on in a next line: how many brackets are open, and where."""
    found: list[tuple[int, int]] = []
    depth = 0
    for at, char in enumerate(text):
        if char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
        elif char == " " and goes_on(text[:at]):
            found.append((depth, at))
    return found


# ---- Words ---------------------------------------------------------------------------------------


class _Spelling:
    """Writes items and expressions in the canonical notation."""

    def __init__(self, tree: File) -> None:
        declared = [i for i in tree.items if isinstance(i, MeshDecl)]
        names = {axis.name.text for mesh in declared for axis in mesh.axes}
        self._axes = frozenset(names if declared else USUAL_AXES)
        implied = () if declared else implied_axes(tree.items)
        self._possible = AxisNames(tuple(sorted(self._axes.union(implied))))

    def item(self, item: Item) -> str:
        """Write a statement."""
        match item:
            case Definition(None, expr):
                return self._first(expr)
            case Definition(target, expr, arrow=True):
                assert target is not None
                return f"{self._first(expr)} -> {self._tensor(target)}"
            case Definition(target, expr):
                assert target is not None
                return f"{self._tensor(target)} = {self._expr(expr)}"
            case MeshDecl(axes):
                return "mesh " + ", ".join(self._axis(axis) for axis in axes)
            case HardwareDecl(name, shape):
                plain = _PLAIN_PATH.fullmatch(name.text)
                behind = "" if shape is None else f" {shape.text.replace('×', 'x')}"
                written = name.text if plain else f'"{name.text}"'
                return f"hardware {written}{behind}"
            case DimsDecl(dims):
                return "dims " + ", ".join(f"{dim.name.text}={dim.written}" for dim in dims)
            case DTypeDecl(name):
                return f"dtype {name.text}"
            case LeafDecl(word, tensors):
                return f"{word} " + ", ".join(self._tensor(t, leaf=True) for t in tensors)
            case OptimizerDecl(name, _, zero):
                behind = "" if zero is None else f", {_zero(zero)}"
                return f"optimizer {name.text}{behind}"
            case AccumulateDecl(dim, size):
                return f"accumulate {dim.text}{'' if size is None else f'={size.written}'}"
            case ScheduleDecl(name, keyword, chunks):
                behind = keyword and chunks and f", {keyword.text} {chunks.text}"
                return f"schedule {name.text}{behind or ''}"
            case SaveDecl(names):
                return "save " + ", ".join(name.text for name in names)
            case PrefetchDecl(names):
                return "prefetch " + ", ".join(name.text for name in names)
            case Section(name):
                return f"{name}:"
            case Layers(dim, size, carries):
                head = dim.text if item.stack is None else self._dim(item.stack)
                head += "" if size is None else f"={size.written}"
                return ", ".join((f"layers {head}", *map(_carry, carries))) + ":"
            case BlockDecl(name, parameters, result):
                inside = ", ".join(word.text for word in parameters)
                behind = "" if result is None else f" -> {result.text}"
                return f"block {name.text}({inside}){behind}:"
            case IncludeDecl(path):
                return f'include "{path.text}"'

    def _axis(self, axis: AxisDecl) -> str:
        text = axis.name.text if axis.size is None else f"{axis.name.text}={axis.written}"
        return text + "".join(f" @{note.text}" for note in axis.notes)

    def _tensor(self, ref: TensorRef, *, leaf: bool = False) -> str:
        text = "" if ref.name is None else ref.name.text
        if ref.transposed and ref.name is not None:
            text += "^T"
        dims = None if ref.dims is None else ", ".join(self._dim(dim) for dim in ref.dims)
        if ref.dtype is not None:
            text += (": " if text else "") + ref.dtype.text
        elif leaf and text and dims is not None:
            text += ": "
        if dims is not None:
            text += f"[{dims}]"
        if ref.transposed and ref.name is None:
            text += "^T"
        if ref.marker is not None:
            text += self._marker(ref.marker)
        if ref.index is not None:
            text += f"[{ref.index.text}]"
        return text

    def _dim(self, dim: DimRef) -> str:
        name = dim.name.text
        words = [w.text for w in (*dim.braced, *dim.slashed)]
        if not words:
            return name
        base, _, suffix = name.rpartition("_")
        meant = self._possible.read(suffix) is not None or self._possible.meant(suffix)
        if base and not dim.literal and meant:
            if not self._is_axes(suffix):
                return self._as_written(dim)
            name, words = base, [suffix, *words]
        if all(self._is_axes(word) for word in words):
            return f"{name}_{self._axes_text(words)}"
        return self._as_written(dim)

    @staticmethod
    def _as_written(dim: DimRef) -> str:
        """Keep the braces and slashes of a dim."""
        name = dim.name.text
        if dim.braced:
            name += "_{" + ",".join(w.text for w in dim.braced) + "}"
        return "/".join([name, *(w.text for w in dim.slashed)])

    def _is_axes(self, word: str) -> bool:
        """Say whether a subscript is sure to be read as axes."""
        return _reads(word, self._axes)

    def _axes_text(self, words: Sequence[str]) -> str:
        """Write axes as one subscript: `X`, `XY`, `{data,fsdp}`, `{dp_axis}`."""
        joined = "".join(words)
        single = len(words) == 1 or all(
            word not in self._axes or len(word) == 1 for word in (joined, *words)
        )
        if single and "_" not in joined:
            return joined
        return "{" + ",".join(words) + "}"

    def _marker(self, marker: Marker) -> str:
        words = [w.text for w in marker.words]
        if all(self._is_axes(word) for word in words):
            return f"{{{marker.kind.text}_{self._axes_text(words)}}}"
        return f"{{{marker.kind.text}{_subscript(marker.words)}}}"

    def _first(self, expr: Expr) -> str:
        """Write an expression at the start of a line, where a sign would go on with the line before."""
        text = self._expr(expr)
        return f"({text})" if text.startswith("-") else text

    def _expr(self, expr: Expr, above: int = 0) -> str:
        """Write an expression, in brackets if it binds less than what stands around it."""
        text, level = self._level(expr)
        return f"({text})" if level < above else text

    def _level(self, expr: Expr) -> tuple[str, int]:
        match expr:
            case TensorRef():
                return self._tensor(expr), _ATOM
            case NumberRef(word):
                return word.text, _ATOM
            case SizeOf(dim):
                return f"|{dim.text}|", _ATOM
            case Negate(operand):
                return "-" + self._expr(operand, _UNARY), _UNARY
            case Call():
                return self._call(expr), _ATOM
            case Comparison(relation, left, right):
                sides = (self._expr(left, _SUM), self._expr(right, _SUM))
                return f" {relation} ".join(sides), _COMPARISON
            case Binary("/", left, right):
                return f"{self._expr(left, _PRODUCT)} / {self._expr(right, _UNARY)}", _PRODUCT
            case Binary(op, left, right):
                return f"{self._expr(left, _SUM)} {op} {self._expr(right, _PRODUCT)}", _SUM
            case Product(op, left, right, subscript, local):
                sign = _SIGNS[op]
                if local:
                    sign += "_LOCAL"
                elif subscript is not None:
                    sign += _subscript(subscript)
                return f"{self._expr(left, _PRODUCT)} {sign} {self._expr(right, _UNARY)}", _PRODUCT

    def _call(self, call: Call) -> str:
        head = call.head.text
        if call.subscript is not None:
            braces = head == RENAME or head not in SUBSCRIPTED
            arrow = call.arrow if head == RESHAPE or head not in SUBSCRIPTED else None
            head += _subscript(call.subscript, braces=braces, arrow=arrow)
        inside = ", ".join(map(self._expr, call.arguments))  # fewer frames than a generator
        if call.result is not None:
            inside += f" -> {', '.join(map(self._tensor, call.results))}"
        return f"{head}({inside})"


def _zero(zero: ZeroDecl) -> str:
    """Print where the optimizer's state lies."""
    return f"zero {zero.level.text} over {', '.join(axes.text for axes in zero.axes)}"


def _carry(carry: CarryDecl) -> str:
    return f"{carry.exit.text} -> {carry.entry.text}"


def _reads(word: str, axes: AbstractSet[str]) -> bool:
    """Say whether a word is an axis, or single letters that are."""
    return bool(word) and (word in axes or all(char in axes for char in word))


def _subscript(words: Iterable[Word], *, braces: bool = False, arrow: int | None = None) -> str:
    """Write `_D`, `_2048`, `_{X,J}`, `_{d_model}`, `_{N->K,G}`."""
    texts = [word.text for word in words]
    if arrow is not None:
        return f"_{{{','.join(texts[:arrow])}->{','.join(texts[arrow:])}}}"
    if len(texts) == 1 and _PLAIN_WORD.fullmatch(texts[0]) and not braces:
        return f"_{texts[0]}"
    return "_{" + ",".join(texts) + "}"
