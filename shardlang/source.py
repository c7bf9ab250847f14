"""Source text and places in it: offsets first, lines and columns only when somebody asks.

Imports nothing of the project.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Span:
    """A half-open range of code-point offsets into one source text."""

    start: int
    end: int

    def __post_init__(self) -> None:
        """Refuse a range that runs backwards."""
        if not 0 <= self.start <= self.end:
            raise ValueError(f"not a span: {self.start}..{self.end}")

    def join(self, other: Span) -> Span:
        """Give the smallest span that covers both."""
        return Span(min(self.start, other.start), max(self.end, other.end))


@dataclass(frozen=True, slots=True)
class Passage:
    """Offsets behind a text that stand for another one: an included file, or the lines of a block in a call.

    From `start` on they stand for `length` characters of `source`, from `offset` on. `call` is the
    place of the call that repeats them, and `name` the block's; None for a file.
    """

    start: int
    source: Source
    offset: int
    length: int
    call: Span | None = None
    name: str = ""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a span stands in the text of a file, and the calls that lead there, innermost first."""

    source: Source
    span: Span
    calls: tuple[tuple[Span, str], ...] = ()


@dataclass(frozen=True)
class Source:
    """One text with the name it is reported under; lines and columns are 1-based code points.

    A byte-order mark at the start is dropped, so that column 1 is the first character one sees.
    `passages` are the other texts that belong to the program, in the order of their offsets.
    """

    name: str
    text: str
    passages: tuple[Passage, ...] = field(default=(), repr=False, compare=False)
    _starts: list[int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Drop a byte-order mark and remember where each line starts."""
        text = self.text.removeprefix("\ufeff")
        object.__setattr__(self, "text", text)
        starts = [0]
        at = text.find("\n")
        while at >= 0:
            starts.append(at + 1)
            at = text.find("\n", at + 1)
        object.__setattr__(self, "_starts", starts)

    @property
    def lines(self) -> int:
        """The number of lines, counting an empty one after a last line end."""
        return len(self._starts)

    def place(self, span: Span) -> Place:
        """Find the text that a span stands in; the calls are spans of this source."""
        passage = self._passage(span)
        if passage is None:
            return Place(self, span)
        start, end = (at - passage.start + passage.offset for at in (span.start, span.end))
        limit = passage.offset + passage.length
        found = Span(min(start, limit), max(min(start, limit), min(end, limit)))
        calls: list[tuple[Span, str]] = []
        outer: Passage | None = passage
        while outer is not None and outer.call is not None:
            calls.append((outer.call, outer.name))
            outer = self._passage(outer.call)
        return Place(passage.source, found, tuple(calls))

    def texts(self) -> Iterator[tuple[int, str]]:
        """Go through the texts of the files, this one's first, each with the offset at which it begins."""
        yield 0, self.text
        for passage in self.passages:
            if passage.call is None:
                yield passage.start, passage.source.text

    def _passage(self, span: Span) -> Passage | None:
        at = bisect_right(self.passages, span.start, key=lambda passage: passage.start) - 1
        return self.passages[at] if at >= 0 else None

    def position(self, offset: int) -> tuple[int, int]:
        """Give the 1-based line and column of an offset."""
        line = bisect_right(self._starts, offset)
        return line, offset - self._starts[line - 1] + 1

    def start(self, number: int) -> int:
        """Give the offset at which a line starts, by its 1-based number."""
        return self._starts[number - 1]

    def line(self, number: int) -> str:
        """Give a line's text, without its end, by its 1-based number."""
        start = self._starts[number - 1]
        end = self._starts[number] - 1 if number < len(self._starts) else len(self.text)
        return self.text[start:end].rstrip("\r")
