"""Where statements start and end: lines, brackets, comments and operators that ask for more.

A statement is a line. It goes on over line ends inside brackets, after an operator, an arrow, `=` or
a comma (over empty lines and comments too), and where the next line starts with an operator. A bracket that is never closed does not
hold the rest of the file: it ends with its line. Time and memory grow linearly with the text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from shardlang.frontend.syntax import Comment
from shardlang.source import Span

MAX_BRACKETS = 200
"""How deep brackets may be nested."""

_PIECE = re.compile(r'(?:#|//)[^\n]*|"[^"\n]*"|[=<>!]=|[\n(){}\[\]=]')
_PARTNER = {")": "(", "]": "[", "}": "{"}
_COMMANDS = r"cdot|times|bullet|odot|circ|ast|to|rightarrow|longrightarrow|in|leq?|geq?|neq?|lt|gt"
_WANTS_MORE = re.compile(
    r"(?:[=,+\-−/*∗@·⋅•∙×⊙∘→⟶∈<>≤≥≠]|->|\\(?:" + _COMMANDS + r")"
    r"|(?:[·⋅•∙×@*∗]|\\(?:cdot|times|bullet|ast))\s*(?:_[^\W_][\w'′]*|_\s?(?:\\\w+)?\{[^{}]*\}))\Z"
)
_GOES_ON = re.compile(
    r"[ \t\r]*(?:->|[=,+\-−*∗@·⋅•∙×⊙∘→⟶∈<>≤≥≠]|!=|/(?!/)|\\(?:" + _COMMANDS + r")(?![a-zA-Z]))"
)
_BLANK = re.compile(r"[^\S\n]*(?:\n|\Z)")
_TAIL = 200  # how far back an operator with its subscript may reach


@dataclass(frozen=True, slots=True)
class Joint:
    """A line end that an operator carried over: where the text before it ends, and where it goes on."""

    end: int
    start: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """The text of one statement, as offsets; `deep` is the first bracket beyond `MAX_BRACKETS`."""

    start: int
    end: int
    joints: tuple[Joint, ...] = ()
    deep: int | None = None


def _matched(text: str) -> dict[int, int]:
    """Pair the brackets of the text: the offset of each opening one with that of its partner.

    A closing bracket looks past others that were left open on its own line. No bracket holds a `=`
    of a later line: one that would is left without a partner.
    """
    pairs: dict[int, int] = {}
    stack: list[tuple[int, int]] = []
    line = 0
    for match in _PIECE.finditer(text):
        char = text[match.start()]
        if char == "\n":
            line += 1
        elif char in "([{":
            stack.append((match.start(), line))
        elif char in ")]}":
            for back in range(1, min(len(stack), 8) + 1):
                at, opened = stack[-back]
                if back > 1 and opened != line:
                    break
                if text[at] == _PARTNER[char]:
                    pairs[at] = match.start()
                    del stack[-back:]
                    break
        elif match.group() == "=" and stack and stack[0][1] < line:
            stack = [entry for entry in stack if entry[1] == line]
    return pairs


class _Splitter:
    """Walks over the text once, with the statement that is being collected."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.chunks: list[Chunk] = []
        self.comments: list[Comment] = []
        self._line = 0  # where the line starts
        self._rest = 0  # where its unread content starts
        self._content = False  # whether the line has any
        self._reset()

    def _reset(self) -> None:
        self._start: int | None = None
        self._end = 0
        self._joints: list[Joint] = []
        self._joined: int | None = None
        self._depth = 0
        self._deep: int | None = None

    def run(self) -> None:
        """Collect the chunks and comments."""
        text, pairs = self.text, _matched(self.text)
        closing = set(pairs.values())
        held = 0
        for match in _PIECE.finditer(text):
            at = match.start()
            char = text[at]
            if char == "\n":
                self._take(at)
                self._end_line(at + 1, held > 0)
            elif char in "([{":
                held += at in pairs
                self._depth += 1
                if self._depth > MAX_BRACKETS and self._deep is None:
                    self._deep = at
            elif char in ")]}":
                held -= at in closing
                self._depth = max(0, self._depth - 1)
            elif char in "#/":
                self._take(at)
                self._comment(at, match.end())
        self._take(len(text))
        self._end_line(len(text), held=False)

    def _take(self, end: int) -> None:
        """Read content up to an offset."""
        piece = self.text[self._rest : end]
        stripped = piece.strip()
        if stripped:
            begin = self._rest + len(piece) - len(piece.lstrip())
            if self._start is None:
                self._start = begin
            if self._joined is not None:
                self._joints.append(Joint(self._joined, begin))
                self._joined = None
            self._end = begin + len(stripped)
            self._content = True
        self._rest = end

    def _comment(self, start: int, end: int) -> None:
        body = self.text[start:end].lstrip(self.text[start]).strip()
        span = Span(start, start + len(self.text[start:end].rstrip()))
        self.comments.append(Comment(body, span, alone=not self._content))
        self._rest = end

    def _end_line(self, following: int, held: bool) -> None:
        """End the statement with its line, unless it goes on."""
        if self._start is not None and not held and not self._carries_over(following):
            chunk = Chunk(self._start, self._end, tuple(self._joints), self._deep)
            self.chunks.append(chunk)
            self._reset()
        self._line = self._rest = following
        self._content = False

    def _carries_over(self, following: int) -> bool:
        text = self.text
        if following >= len(text):
            return False
        if not self._content:  # an empty line or a comment's between
            return self._joined is not None
        tail = text[max(self._line, self._end - _TAIL) : self._end]
        blank = _BLANK.match(text, following)
        if _WANTS_MORE.search(tail) or (not blank and _GOES_ON.match(text, following)):
            self._joined = self._end
            return True
        return False


def goes_on(text: str) -> bool:
    """Say whether a line that ends so goes on in the next one, whatever that begins with."""
    return _WANTS_MORE.search(text[-_TAIL:]) is not None


def split(text: str) -> tuple[list[Chunk], tuple[Comment, ...]]:
    """Give the statements of a text, as ranges, and its comments."""
    splitter = _Splitter(text)
    splitter.run()
    return splitter.chunks, tuple(splitter.comments)
