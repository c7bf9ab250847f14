"""What a diagnostic looks like, drawn and as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest

from shardlang.diagnostics import (
    Diagnostic,
    Label,
    Mistake,
    render,
    Reporter,
    ShardlangError,
    to_dict,
)
from shardlang.source import Source, Span


@dataclass(frozen=True)
class Wrong(Mistake):
    """A mistake with given words."""

    code: ClassVar[str] = "SH999"

    text: str = "this is wrong"
    advice: str | None = None

    def message(self) -> str:
        """Say the given words."""
        return self.text

    def hint(self) -> str | None:
        """Give the given advice."""
        return self.advice


@dataclass(frozen=True)
class Doubtful(Wrong):
    """A mistake that is a warning."""

    severity = "warning"


def drawn(text: str, span: tuple[int, int], mistake: Mistake | None = None, *labels: Label) -> str:
    """Draw a mistake at a place of a text."""
    return render(Diagnostic(Source("t.shd", text), Span(*span), mistake or Wrong(), labels))


def under(text: str, span: tuple[int, int]) -> tuple[str, str]:
    """Give the source line as drawn and the row of carets under it."""
    return (drawn(text, span) + "\n").split("\n")[2][4:], drawn(text, span).split("\n")[3][4:]


def test_a_mistake_with_a_hint():
    """Place and message, the line with carets, the hint."""
    expected = """\
t.shd:2:3: error[SH999]: this is wrong
  |
2 | C[IJ] = A[I]
  |   ^^
hint: do this"""

    assert expected == drawn("mesh X\nC[IJ] = A[I]\n", (9, 11), Wrong(advice="do this"))


def test_labels_have_their_places():
    """A label on the same line stands under it; another brings its own line."""
    expected = """\
t.shd:12:8: error[SH999]: this is wrong
   |
12 | A[I_X, J_X]
   |        ^^^
   |   --- 12:3: here already
 1 | mesh X
   |      - 1:6: declared here"""
    text = "mesh X\n" + "\n" * 10 + "A[I_X, J_X]"
    labels = Label(Span(19, 22), "here already"), Label(Span(5, 6), "declared here")

    assert expected == drawn(text, (24, 27), None, *labels)


def test_a_span_over_several_lines():
    """The first and the last line are drawn, and dots between."""
    expected = """\
t.shd:1:5: error[SH999]: this is wrong
  |
1 | A = B +
  |     ^^^
. |
3 |   D
  |   ^"""

    assert expected == drawn("A = B +\n  C +\n  D\n", (4, 17))


def test_the_end_of_the_text_has_a_caret():
    """An empty span is drawn as one caret behind the text."""
    assert ("C =", "   ^") == under("C =", (3, 3))


@pytest.mark.parametrize(
    ("text", "span", "line", "carets"),
    [
        ("\tA B", (3, 4), "    A B", "      ^"),
        ("A\tB", (2, 3), "A   B", "    ^"),
        ("A\t\tB", (1, 2), "A       B", " ^^^"),
        ("[批次] B", (1, 3), "[批次] B", " ^^^^"),
        ("[批次] B", (5, 6), "[批次] B", "       ^"),
        ("e\u0301 B", (3, 4), "e\u0301 B", "  ^"),
        ("A \u200b B", (2, 3), "A \ufffd B", "  ^"),
        ("A \x1b[31m", (2, 3), "A \ufffd[31m", "  ^"),
        ("A · B ⊙ C", (6, 7), "A · B ⊙ C", "      ^"),
    ],
)
def test_carets_stand_under_what_is_seen(text: str, span: tuple[int, int], line: str, carets: str):
    """Tabs, wide characters, marks and unseen characters keep the carets in place."""
    assert (line, carets) == under(text, span)


def test_a_long_line_is_cropped_around_the_span():
    """Of a very long line, the part around the span is drawn, with dots for the rest."""
    text = "x" * 500 + "HERE" + "y" * 1_000_000
    line, carets = under(text, (500, 504))
    column = carets.index("^")

    assert line.startswith("…x")
    assert line.endswith("y…")
    assert len(line) <= 80 - len("1 | ")
    assert "HERE" == line[column : column + len(carets.strip())]


@pytest.mark.parametrize("length", [60, 74, 76, 77, 78, 90, 103, 150, 240])
def test_source_lines_fit_eighty_columns(length: int):
    """Wherever the span is, its words stand over the carets in a row of at most 80 columns."""
    text = "".join(f"w{n:03}" for n in range(70))[:length]
    for start in range(0, length - 4, 3):
        line, carets = under(text, (start, start + 4))
        at = carets.index("^")

        assert 80 >= len("1 | " + line)
        assert text[start : start + 4] == line[at : at + 4]
        assert line.strip("…") in text
        assert line.startswith("…") or text.startswith(line.strip("…"))
        assert line.endswith("…") or text.endswith(line.strip("…"))


def test_wide_characters_of_a_long_line_fit():
    """A character of two columns counts as two."""
    line, carets = under("批" * 100 + "X" + "批" * 100, (100, 101))

    assert 80 >= len("1 | ") + sum(2 if char == "批" else 1 for char in line)
    before = line[: line.index("X")]
    assert carets.index("^") == sum(2 if char == "批" else 1 for char in before)


def test_the_end_of_a_long_line():
    """At the end of a long line, its last part is drawn."""
    line, carets = under("x" * 500 + "END", (500, 503))

    assert "END" == line[-3:]
    assert len(line) == len(carets)


def test_a_long_span_is_cut():
    """A span longer than the line as drawn is underlined to its end."""
    line, carets = under("x" * 500, (10, 500))

    assert len(line) == len(carets)
    assert carets.strip() == "^" * len(carets.strip())


def test_long_messages_are_wrapped():
    """Messages and hints stay within 80 columns, place and code in one piece."""
    text = drawn("A", (0, 1), Wrong("many words " * 20, "much advice " * 20))

    assert all(len(row) <= 80 for row in text.split("\n"))
    assert text.startswith("t.shd:1:1: error[SH999]: many words many words")
    assert "\n    many words" in text
    assert "\nhint: much advice" in text
    assert "\n      much advice" in text


def test_a_message_of_several_lines_keeps_them():
    """A line end in a message or a hint is kept, indented."""
    text = drawn("A", (0, 1), Wrong("two readings:\nA ·_D B\nA ·_F B", "one:\ntwo"))

    assert "two readings:\n    A ·_D B\n    A ·_F B\n" in text
    assert text.endswith("hint: one:\n      two")


def test_a_long_name_stays_in_one_piece():
    """The place can be copied, however long the path is."""
    name = "a b/" * 40 + "t.shd"
    text = render(Diagnostic(Source(name, "A"), Span(0, 1), Wrong()))

    assert f"{name}:1:1: error[SH999]:" in text


def test_color_adds_nothing_but_color():
    """Without its escapes, a colored drawing is the plain one."""
    import re

    label = Label(Span(0, 1), "there")
    diagnostic = Diagnostic(Source("t", "A B"), Span(2, 3), Wrong(advice="do"), (label,))
    colored = render(diagnostic, color=True)

    assert "\033[1;31m" in colored
    assert render(diagnostic) == re.sub("\033\\[[0-9;]*m", "", colored)


def test_a_warning_says_so():
    """The severity stands before the code."""
    assert drawn("A", (0, 1), Doubtful()).startswith("t.shd:1:1: warning[SH999]:")


def test_data_has_every_place():
    """The JSON form gives both ends of the span and of every label."""
    source = Source("t", "A\nBC")
    diagnostic = Diagnostic(source, Span(2, 4), Wrong(advice="do"), (Label(Span(0, 1), "there"),))
    expected = {
        "file": "t", "line": 2, "column": 1, "end_line": 2, "end_column": 3,
        "severity": "error", "code": "SH999", "message": "this is wrong", "hint": "do",
        "labels": [{"line": 1, "column": 1, "end_line": 1, "end_column": 2, "text": "there"}],
    }  # fmt: skip

    assert expected == to_dict(diagnostic)


def test_one_error_a_place():
    """A second error at a place is dropped, a warning there is not."""
    reporter = Reporter(Source("t", "A"))
    reporter.report(Span(0, 1), Wrong("first"))
    reporter.report(Span(0, 1), Wrong("second"))
    reporter.report(Span(0, 1), Doubtful("doubt"))

    assert ["first", "doubt"] == [d.message for d in reporter.diagnostics]


def test_errors_are_raised_in_the_order_of_the_text():
    """What is raised is sorted by place, and reads as all its drawings."""
    reporter = Reporter(Source("t", "A B"))
    reporter.report(Span(2, 3), Wrong("second"))
    reporter.report(Span(0, 1), Wrong("first"))
    with pytest.raises(ShardlangError) as caught:
        reporter.raise_if_errors()

    assert ["first", "second"] == [d.message for d in caught.value.diagnostics]
    assert 2 == str(caught.value).count("error[SH999]")


def test_warnings_alone_raise_nothing():
    """A warning stops nothing."""
    reporter = Reporter(Source("t", "A"))
    reporter.report(Span(0, 1), Doubtful())
    reporter.raise_if_errors()

    assert [] == reporter.errors


def test_lines_and_columns():
    """Lines end at line feeds, columns count code points, a byte-order mark counts nothing."""
    source = Source("t", "\ufeffä\r\nbc\n")

    assert "ä\r\nbc\n" == source.text
    assert [(1, 1), (2, 2), (3, 1)] == [source.position(i) for i in (0, 4, 6)]
    assert ["ä", "bc", ""] == [source.line(i) for i in (1, 2, 3)]
