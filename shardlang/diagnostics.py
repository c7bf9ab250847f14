"""Diagnostics as data: a mistake is a class with a code, a place and a hint; and their renderer.

Each layer's `errors.py` lists its mistakes as frozen dataclasses that derive `Mistake`. A
`Diagnostic` is what a mistake becomes at a place in a source. Imports only `source`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from shardlang.source import Source, Span

Severity = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class Label:
    """A second place that belongs to a mistake, with a few words."""

    span: Span
    text: str


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
class Diagnostic:
    """A mistake at a place; `line` and `column` are 1-based, columns in code points."""

    source: Source
    span: Span
    mistake: Mistake
    labels: tuple[Label, ...] = ()

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


@dataclass
class Reporter:
    """Collects diagnostics of one source, at most one error a span."""

    source: Source
    diagnostics: list[Diagnostic] = field(default_factory=list[Diagnostic])

    def report(self, span: Span, mistake: Mistake, labels: Iterable[Label] = ()) -> None:
        """Add a mistake, unless that place has one already."""
        if any(d.span == span and d.severity == mistake.severity for d in self.diagnostics):
            return
        self.diagnostics.append(Diagnostic(self.source, span, mistake, tuple(labels)))

    @property
    def errors(self) -> list[Diagnostic]:
        """The errors alone."""
        return [d for d in self.diagnostics if d.severity == "error"]

    def raise_if_errors(self) -> None:
        """Raise everything collected if any of it is an error."""
        if self.errors:
            raise ShardlangError(self.diagnostics)


class ShardlangError(Exception):
    """A program is wrong; `.diagnostics` lists how, in the order of the text."""

    diagnostics: tuple[Diagnostic, ...]

    def __init__(self, diagnostics: Iterable[Diagnostic]) -> None:
        """Keep the diagnostics, sorted by place."""
        self.diagnostics = tuple(sorted(diagnostics, key=lambda d: (d.span.start, d.span.end)))
        super().__init__("\n\n".join(render(d) for d in self.diagnostics))


def render(diagnostic: Diagnostic, *, color: bool = False) -> str:
    """Draw a diagnostic: place and message, the line, carets under the span, and the hint."""
    source = diagnostic.source
    line, column = source.position(diagnostic.span.start)
    return f"{source.name}:{line}:{column}: {diagnostic.severity}[{diagnostic.code}]: {diagnostic.message}"
