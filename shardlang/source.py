"""Source text and places in it: offsets first, lines and columns only when somebody asks.

Imports nothing of the project.
"""

from __future__ import annotations

from bisect import bisect_right
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


@dataclass(frozen=True)
class Source:
    """One text with the name it is reported under; lines and columns are 1-based code points.

    A byte-order mark at the start is dropped, so that column 1 is the first character one sees.
    """

    name: str
    text: str
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
