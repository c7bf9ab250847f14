"""Diagnostics as data: a mistake is a class with a code, a place and a hint; and their renderer.

Each layer's `errors.py` lists its mistakes as frozen dataclasses that derive `Mistake`. A
`Diagnostic` is what a mistake becomes at a place in a source. Imports only `source`.
"""

from __future__ import annotations

import textwrap
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from shardlang.source import Source, Span

Severity = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class Label:
    """A second place that belongs to a mistake, with a few words; `source` where it is another file's."""

    span: Span
    text: str
    source: Source | None = None


@dataclass(frozen=True)
class Mistake:
    """What can be wrong: the class gives code and title, the fields what the texts need.

    A subclass sets `code` and `title` and overrides `message` (one sentence, in the notation's
    words) and, where there is something to suggest, `hint`.
    """

    code: ClassVar[str] = "SH000"
    title: ClassVar[str] = "mistake"
    severity: ClassVar[Severity] = "error"

    def message(self) -> str:
        """Say what is wrong in one sentence."""
        raise NotImplementedError

    def hint(self) -> str | None:
        """Say what to write instead, if that is known."""
        return None


@dataclass(frozen=True)
class Told(Mistake):
    """A mistake whose words are those of whoever finds it: why, and what may stand there instead."""

    why: str
    instead: str | None = None

    def message(self) -> str:
        """Say why."""
        return self.why

    def hint(self) -> str | None:
        """Say what would do."""
        return self.instead


@dataclass(frozen=True)
class Diagnostic:
    """A mistake at a place; `line` and `column` are 1-based, columns in code points.

    A place in an included file, or in the lines that a call repeats, becomes one in the text of that
    file, and the calls that lead there become labels.
    """

    source: Source
    span: Span
    mistake: Mistake
    labels: tuple[Label, ...] = ()

    def __post_init__(self) -> None:
        """Find the files of the places."""
        if not self.source.passages:
            return
        whole, place = self.source, self.source.place(self.span)
        calls = [Label(span, f"in {name}, called here") for span, name in place.calls[:MAX_CALLS]]
        labels = (_placed(label, whole, place.source) for label in (*self.labels, *calls))
        object.__setattr__(self, "labels", tuple(labels))
        object.__setattr__(self, "span", place.span)
        object.__setattr__(self, "source", place.source)

    @property
    def code(self) -> str:
        """The mistake's code, as in `SH203`."""
        return self.mistake.code

    @property
    def severity(self) -> Severity:
        """`error` or `warning`."""
        return self.mistake.severity

    @property
    def message(self) -> str:
        """What is wrong."""
        return self.mistake.message()

    @property
    def hint(self) -> str | None:
        """What to do about it."""
        return self.mistake.hint()

    @property
    def line(self) -> int:
        """The 1-based line."""
        return self.source.position(self.span.start)[0]

    @property
    def column(self) -> int:
        """The 1-based column."""
        return self.source.position(self.span.start)[1]


MAX_CALLS = 4
"""How many calls a diagnostic shows, from the innermost on."""


def _placed(label: Label, whole: Source, home: Source) -> Label:
    """Find the file of a label of a diagnostic whose file is `home`."""
    if label.source is not None:
        return label
    place = whole.place(label.span)
    other = place.source.name != home.name
    return Label(place.span, label.text, place.source if other else None)


@dataclass
class Reporter:
    """Collects diagnostics of one source, at most one error a span."""

    source: Source
    diagnostics: list[Diagnostic] = field(default_factory=list[Diagnostic])
    _taken: set[tuple[str, Span, Severity]] = field(
        init=False, repr=False, default_factory=set[tuple[str, Span, Severity]]
    )

    def __post_init__(self) -> None:
        """Remember the places that have a diagnostic already."""
        self._taken.update((d.source.name, d.span, d.severity) for d in self.diagnostics)

    def report(self, span: Span, mistake: Mistake, labels: Iterable[Label] = ()) -> None:
        """Add a mistake, unless that place has one already."""
        found = Diagnostic(self.source, span, mistake, tuple(labels))
        key = (found.source.name, found.span, found.severity)
        if key not in self._taken:
            self._taken.add(key)
            self.diagnostics.append(found)

    @property
    def errors(self) -> list[Diagnostic]:
        """The errors alone."""
        return [d for d in self.diagnostics if d.severity == "error"]

    def raise_if_errors(self) -> None:
        """Raise everything collected if any of it is an error."""
        if any(d.severity == "error" for d in self.diagnostics):
            raise ShardlangError(self.diagnostics)


class ShardlangError(Exception):
    """A program is wrong; `.diagnostics` lists how, in the order of the text."""

    diagnostics: tuple[Diagnostic, ...]

    def __init__(self, diagnostics: Iterable[Diagnostic]) -> None:
        """Keep the diagnostics, sorted by place; files stay in the order in which they come."""
        listed = list(diagnostics)
        files = list(dict.fromkeys(each.source.name for each in listed))
        self.diagnostics = tuple(
            sorted(listed, key=lambda d: (files.index(d.source.name), d.span.start, d.span.end))
        )
        super().__init__(self.diagnostics)

    def __str__(self) -> str:
        """Draw them all, without color."""
        return "\n\n".join(render(d) for d in self.diagnostics)


def to_dict(diagnostic: Diagnostic) -> dict[str, object]:
    """Give a diagnostic as JSON data: 1-based places in code points, the end exclusive."""
    source = diagnostic.source
    return {
        "file": source.name,
        **_place(source, diagnostic.span),
        "severity": diagnostic.severity,
        "code": diagnostic.code,
        "message": diagnostic.message,
        "hint": diagnostic.hint,
        "labels": [
            {
                **({} if label.source is None else {"file": label.source.name}),
                **_place(label.source or source, label.span),
                "text": label.text,
            }
            for label in diagnostic.labels
        ],
    }


def _place(source: Source, span: Span) -> dict[str, object]:
    line, column = source.position(span.start)
    end_line, end_column = source.position(span.end)
    return {"line": line, "column": column, "end_line": end_line, "end_column": end_column}


# ---- The renderer --------------------------------------------------------------------------------

_WIDTH = 80  # of messages and hints, in columns
_LEFT = 24  # how many code points of a long source line are shown before the span
_TAB = 4

_COLORS = {
    "error": "\033[1;31m",
    "warning": "\033[1;33m",
    "bold": "\033[1m",
    "gutter": "\033[34m",
    "label": "\033[1;34m",
    "hint": "\033[36m",
}


def render(diagnostic: Diagnostic, *, color: bool = False) -> str:
    """Draw a diagnostic: place and message, the line, carets under the span, labels and the hint.

    A label on the line of the span stands under it with dashes; one elsewhere brings its own line.

        mlp.shd:4:8: error[SH103]: `=` comes before `[` is closed
          |
        4 | C[I, J = A[I]
          |        ^
          |  - 4:2: opened here
        hint: write `]` here, or before
    """
    source = diagnostic.source
    places = [(source, diagnostic.span)]
    places += [(label.source or source, label.span) for label in diagnostic.labels]
    last = max(file.position(max(span.start, span.end))[0] for file, span in places)
    drawing = _Drawing(source, len(str(last)), color)
    line, column = source.position(diagnostic.span.start)
    drawing.header(f"{_name(source)}:{line}:{column}: ", diagnostic)
    if not source.text:  # the mistake is about the file as a whole
        if diagnostic.hint is not None:
            drawing.hint(diagnostic.hint)
        return "\n".join(drawing.rows)
    drawing.blank()
    on_line = drawing.span(diagnostic.span, "^", diagnostic.severity)
    for label in diagnostic.labels:
        file = label.source or source
        row, col = file.position(label.span.start)
        name = "" if label.source is None else f"{_name(file)}:"
        text = f"{name}{row}:{col}: {_printable(label.text)}"
        on_line = drawing.of(file).span(
            label.span, "-", "label", text, showing=None if label.source is not None else on_line
        )
        on_line = None if label.source is not None else on_line
    if diagnostic.hint is not None:
        drawing.hint(diagnostic.hint)
    return "\n".join(drawing.rows)


def _name(source: Source) -> str:
    return _printable(source.name.replace("\n", " "))


class _Drawing:
    """The rows of one diagnostic, as they are drawn."""

    def __init__(self, source: Source, gutter: int, color: bool) -> None:
        self.rows: list[str] = []
        self._source = source
        self._gutter = gutter
        self._color = color

    def of(self, source: Source) -> _Drawing:
        """Draw lines of another file from here on."""
        self._source = source
        return self

    def _paint(self, style: str, text: str) -> str:
        return f"{_COLORS[style]}{text}\033[0m" if self._color else text

    def header(self, place: str, diagnostic: Diagnostic) -> None:
        """Draw place, severity, code and message."""
        kind = f"{diagnostic.severity}[{diagnostic.code}]:"
        first, *rest = _wrap(
            f"{place}{kind} {_printable(diagnostic.message)}", "    ", len(place + kind)
        )
        message = first[len(place) + len(kind) :]
        painted = self._paint(diagnostic.severity, kind)
        self.rows.append(self._paint("bold", place) + painted + self._paint("bold", message))
        self.rows.extend(self._paint("bold", row) for row in rest)

    def hint(self, text: str) -> None:
        """Draw the hint."""
        first, *rest = _wrap(f"hint: {_printable(text)}", "      ", 6)
        self.rows.append(self._paint("hint", "hint:") + first[5:])
        self.rows.extend(rest)

    def blank(self) -> None:
        """Draw an empty gutter."""
        self._row("", "")

    def _row(self, number: str, text: str) -> None:
        bar = self._paint("gutter", f"{number:>{self._gutter}} |")
        self.rows.append(f"{bar} {text}".rstrip())

    def span(
        self, span: Span, mark: str, style: str, text: str = "", showing: int | None = None
    ) -> int | None:
        """Underline a span and give the number of the line that is shown above, if just one is.

        Of a span over several lines the first and the last are drawn.
        """
        source = self._source
        first, column = source.position(span.start)
        last, end = source.position(max(span.start, span.end))
        if first == last:
            self._underline(first, column - 1, end - 1, mark, style, text, showing == first)
            return first
        head = source.line(first)
        self._underline(first, column - 1, len(head), mark, style, "", showing == first)
        if last > first + 1:
            self.rows.append(self._paint("gutter", "." * self._gutter + " |"))
        tail = source.line(last)
        indent = len(tail) - len(tail.lstrip())
        self._underline(last, min(indent, end - 1), end - 1, mark, style, text, known=False)
        return None

    def _underline(
        self, number: int, start: int, end: int, mark: str, style: str, text: str, known: bool
    ) -> None:
        line = self._source.line(number)
        start, end = min(start, len(line)), min(end, len(line))
        low, high = _window(line, start, _WIDTH - self._gutter - 3)
        shown, offsets = _cells(line[low:high])
        left = "…" if low else ""
        right = "…" if high < len(line) else ""
        if not known:
            self._row(str(number), left + shown + right)
        before = len(left) + offsets[start - low]
        width = max(1, offsets[min(end, high) - low] - offsets[start - low])
        if end > high:
            width += 1  # under the dots that stand for the rest
        marks = self._paint(style, mark * width + (f" {text}" if text else ""))
        self._row("", " " * before + marks)


def _window(line: str, start: int, room: int) -> tuple[int, int]:
    """Give the part of a line, as code points, that fits so many columns with dots for what is left out.

    It begins some code points before `start`, or earlier where the line ends before its room does.
    """

    def end(low: int) -> int:
        left = room - (low > 0)
        offsets = _cells(line[low : low + room + 1])[1]
        fitting = low + sum(offset <= left for offset in offsets[1:])
        if fitting == len(line):
            return fitting
        return low + sum(offset <= left - 1 for offset in offsets[1:])

    if end(0) == len(line):
        return 0, len(line)
    low = max(0, start - _LEFT)
    while low and end(low - 1) == len(line):
        low -= 1
    return low, end(low)


def _cells(text: str) -> tuple[str, list[int]]:
    """Give a text as it is drawn, and the column at which each of its code points starts, and its end.

    Tabs become spaces, what can't be seen becomes a replacement sign, wide characters take two
    columns, combining marks none.
    """
    drawn: list[str] = []
    offsets: list[int] = []
    column = 0
    for char in text:
        offsets.append(column)
        if char == "\t":
            width = _TAB - column % _TAB
            drawn.append(" " * width)
        else:
            width = _char_width(char)
            drawn.append(char if width == 0 or char.isprintable() or char == " " else "\ufffd")
        column += width
    offsets.append(column)
    return "".join(drawn), offsets


def _char_width(char: str) -> int:
    if " " <= char <= "~":
        return 1
    if unicodedata.category(char) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in ("W", "F") else 1


def _printable(text: str) -> str:
    """Keep a text harmless to a terminal."""
    return "".join(char if char.isprintable() or char == "\n" else "\ufffd" for char in text)


def _wrap(text: str, indent: str, atom: int) -> list[str]:
    """Break a text at spaces; its first `atom` characters stay together."""
    rows: list[str] = []
    for number, paragraph in enumerate(_paragraphs(text, atom)):
        head = text[:atom] if number == 0 else ""
        filled = textwrap.wrap(
            "x" * len(head) + paragraph,
            _WIDTH,
            initial_indent="" if number == 0 else indent,
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
        ) or [indent]
        if number == 0:
            filled[0] = head + filled[0][atom:]
        rows += filled
    return rows


def _paragraphs(text: str, atom: int) -> Iterator[str]:
    yield from text[atom:].split("\n")


def of_kind(value: object, kind: type, said: str) -> None:
    """Refuse a value of another type in a library call; raises TypeError with what is taken."""
    if not isinstance(value, kind):
        raise TypeError(f"{said}, not {type(value).__name__}")
