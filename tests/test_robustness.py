"""No text, however broken or large, ends in anything but a tree or errors with places."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardlang.diagnostics import Reporter, ShardlangError, to_dict
from shardlang.frontend import files, parser
from shardlang.source import Source


def outcome(text: str) -> list[str]:
    """Parse a text and give the codes of its mistakes; draw each of them."""
    try:
        parser.parse(Source("t", text))
    except ShardlangError as caught:
        error = caught
    else:
        return []

    assert str(error)
    for diagnostic in error.diagnostics:
        assert to_dict(diagnostic)
        assert 1 <= diagnostic.line <= diagnostic.source.lines
    return [d.code for d in error.diagnostics]


BIG = {
    "brackets": ("[" * 10_000, {"SH113"}),
    "closed brackets": ("A = " + "(" * 10_000 + "B" + ")" * 10_000, {"SH113"}),
    "braces": ("A" + "_{a" * 10_000, {"SH113"}),
    "closing brackets": (")" * 10_000, {"SH104"}),
    "a long line": ("A[I]" + " + A[I]" * 200_000, {"SH114"}),
    "a long word": ("x" * 1_000_000, {"SH114"}),
    "a long comment": ("# " + "x" * 1_000_000, {"SH118"}),
    "a long line of operators": ("+" * 1_000_000, {"SH114"}),
    "a chain": ("C[I] = " + " · ".join(["A[I]"] * 5_000), {"SH114"}),
    "minus signs": ("-" * 5_000 + "A[I]", {"SH114"}),
    "calls": ("gelu(" * 190 + "A" + ")" * 190, set[str]()),
    "a chain within the limit": ("C[I] = " + " · ".join(["A[I]"] * 199), set[str]()),
    "many lines of words": ("foo bar baz\n" * 50_000, {"SH106", "SH115"}),
    "many lines of brackets": ("( foo [ } bar\n" * 50_000, {"SH104", "SH115"}),
    "many lines of names": ("foo\n" * 50_000, {"SH109", "SH115"}),
    "many lines of commas": ("foo, bar,\n" * 50_000, {"SH114"}),
    "many bullets": ("* foo\n" * 50_000, {"SH114"}),
    "many statements": ("A[I]\n" * 100_001, {"SH114"}),
    "many empty lines": ("\n" * 100_000, {"SH118"}),
    "a size": ("dims B=" + "9" * 5_000, {"SH116"}),
    "a small size": ("dims B=1e-9999999999", {"SH116"}),
    "a power": ("dims B=9**9**9\ndims C=10**400\ndims D=N**N", {"SH116"}),
    "a product of sizes": ("dims B=" + "*".join(["D"] * 5_000), {"SH114"}),
    "powers of powers": ("dims B=" + "(" * 9 + "9" + "**99)" * 9, {"SH116"}),
    "all characters": ("".join(map(chr, range(32, 3_000))), {"SH102"}),
}


@pytest.mark.parametrize(("text", "expected"), BIG.values(), ids=BIG.keys())
def test_big_and_broken_texts(text: str, expected: set[str]):
    """A text beyond any limit is answered in words."""
    assert expected == set(outcome(text))


def test_work_grows_with_the_text_alone():
    """Ten thousand lines, each with an open bracket, are each read once."""
    source = Source("t", "A[I = B[I]\n" * 10_000)
    reporter = Reporter(source)
    tree = parser.read(source, reporter)

    assert () == tree.items
    assert parser.MAX_MISTAKES + 1 == len(reporter.errors)


PIECES = st.sampled_from(
    ["A", "B_X", "W_{in}", "[", "]", "(", ")", "{", "}", "{U_X}", ",", "·", "·_D", "*", "=", "->",
     "\\to", "\n", " ", "mesh ", "dims ", "input ", "forward:", "3M", "2", "|", "^T", "#", "//",
     "\\text{", "sum_B(", "AllGather_X", ":", "$", "\\", "'", "_", "\t", "é", "\u0301", "-", "+", "/",
     "@", "save ", "hardware ", '"', "\r\n", "**"]
)  # fmt: skip


@given(st.lists(PIECES, max_size=30).map("".join))
def test_any_pieces_of_the_notation(text: str):
    """Any sequence of pieces parses or has errors that can be drawn."""
    outcome(text)


@given(st.text(max_size=60))
def test_any_text(text: str):
    """Any text at all parses or has errors that can be drawn."""
    outcome(text)


def refused(path: str) -> tuple[int, int, str]:
    """Read a file that can't be read; give line, column and code."""
    with pytest.raises(ShardlangError) as caught:
        files.read_source(path)
    (found,) = caught.value.diagnostics

    assert str(caught.value).startswith(path.replace("\0", "\ufffd"))
    return found.line, found.column, found.code


@pytest.mark.parametrize(
    ("data", "place"),
    [
        (b"A[I]\nB[\xc3\xa9] \xff = c", (2, 6, "SH904")),
        (b"\xef\xbb\xbfA[\xff", (1, 3, "SH904")),
        ("A[I]".encode("utf-16"), (1, 1, "SH904")),
        (b"A[I]\nB\0", (2, 2, "SH905")),
        (b"", (1, 1, "SH906")),
        (b"\xef\xbb\xbf \r\n", (1, 1, "SH906")),
    ],
)
def test_bytes_that_are_no_program(tmp_path: Path, data: bytes, place: tuple[int, int, str]):
    """A file that is no text is refused at the first byte that shows it."""
    path = tmp_path / "t.shd"
    path.write_bytes(data)

    assert place == refused(str(path))


def test_paths_that_are_no_file(tmp_path: Path):
    """A missing file, a directory and an impossible path are errors with codes."""
    assert (1, 1, "SH901") == refused(str(tmp_path / "missing.shd"))
    assert (1, 1, "SH902") == refused(str(tmp_path))
    assert (1, 1, "SH903") == refused("a\0b")


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="needs a device that never ends")
def test_a_file_without_an_end_is_refused(monkeypatch: pytest.MonkeyPatch):
    """No more is read than any program has."""
    monkeypatch.setattr(files, "MAX_BYTES", 1 << 20)

    assert (1, 1, "SH907") == refused("/dev/zero")


def test_standard_input_is_read_as_utf8(monkeypatch: pytest.MonkeyPatch):
    """`-` is standard input, in UTF-8 whatever the locale says."""
    data = io.TextIOWrapper(io.BytesIO("\ufeffA[I] · B[I]".encode()), encoding="ascii")
    monkeypatch.setattr(sys, "stdin", data)
    source = files.read_source("-")

    assert ("<stdin>", "A[I] · B[I]") == (source.name, source.text)
