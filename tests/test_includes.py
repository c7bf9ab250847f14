"""Included files: their lines stand in place of the line that names them, their mistakes in their own text."""

from __future__ import annotations

import io
import json
import sys

import pytest

import shardlang as sl
from shardlang.diagnostics import ShardlangError
from shardlang.ir.printer import print_plan

PARTS = "block mlp(x, W_in, W_out):\n  h[B_X, F] = gelu(x ·_D W_in)\n  h ·_F W_out\n"
MAIN = 'include "parts.shd"\nmesh X=2\nz[B_X, D] = mlp(x[B_X, D], W1[D, F], W2[F, D])\n'
WRITTEN = "mesh X=2\nmlp_h[B_X, F] = gelu(x[B_X, D] ·_D W1[D, F])\nz[B_X, D] = mlp_h ·_F W2[F, D]\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Give a function that writes files, beside which it makes the working directory."""
    monkeypatch.chdir(tmp_path)

    def write(**files: str | bytes):
        for name, text in files.items():
            path = tmp_path / name.replace("__", "/").replace("_shd", ".shd")
            path.parent.mkdir(exist_ok=True, parents=True)
            path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return tmp_path

    return write


def codes(path: object) -> list[tuple[str, str, int, int, str]]:
    """Load a program that is wrong; list files, places and codes."""
    with pytest.raises(ShardlangError) as caught:
        sl.lower(sl.load(str(path)))
    assert str(caught.value)
    return [
        (d.source.name, d.source.line(d.line), d.line, d.column, d.code)
        for d in caught.value.diagnostics
    ]


def test_a_program_in_two_files_is_the_one_written_out(folder):
    """From a folder, from its parent and by its whole path."""
    path = folder(a__main_shd=MAIN, a__parts_shd=PARTS) / "a/main.shd"
    plain = print_plan(sl.lower(sl.parse(WRITTEN)))

    assert plain == print_plan(sl.lower(sl.load("a/main.shd")))
    assert plain == print_plan(sl.lower(sl.load(path)))


def test_texts_include_from_the_working_directory(folder, shardlang, monkeypatch):
    """Those of `-e`, of standard input and of the library."""
    folder(parts_shd=PARTS)
    plain = shardlang("lower", "-e", WRITTEN).out

    assert plain == shardlang("lower", "-e", MAIN).out
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(MAIN.encode())))
    assert plain == shardlang("lower", "-").out
    assert plain == print_plan(sl.lower(sl.parse(MAIN)))


@pytest.mark.parametrize("text", [PARTS.replace("\n", "\r\n"), "\ufeff" + PARTS, "# α\n" + PARTS])
def test_any_text_file_is_included(folder, text):
    """Windows' line ends, a byte-order mark and letters of several bytes."""
    path = folder(main_shd=MAIN.replace("\n", "\r\n"), parts_shd=text) / "main.shd"

    assert print_plan(sl.lower(sl.parse(WRITTEN))) == print_plan(sl.lower(sl.load(path)))
    folder(parts_shd=text.replace("·_D", "·_Q"))
    ((name, line, _, column, code),) = codes("main.shd")
    assert ("parts.shd", "  h[B_X, F] = gelu(x ·_Q W_in)", 24, "SH217") == (
        name,
        line,
        column,
        code,
    )


def test_a_file_is_read_once(folder):
    """Two files may include a third; lines that declare stand there once."""
    folder(
        main_shd='include "a.shd"\ninclude "x/b.shd"\ninclude "x/../a.shd"\nz = f(g(A[B, D]))\n',
        a_shd='include "x/c.shd"\nblock f(x):\n  gelu(x)\n',
        x__b_shd='include "c.shd"\nblock g(x):\n  sum_D(x)\n',
        x__c_shd="dims B=4, D=8\n",
    )
    program = sl.load("main.shd")

    assert [("B", 4), ("D", 8)] == [(info.dim.name, info.size) for info in program.dims]
    with_sizes = sl.lower(program, sizes={"B": 16})
    assert 16 == with_sizes.program.sizes.known["B"]


def test_circles_are_refused(folder):
    """At the line that closes them, whether it is one file or three."""
    folder(a_shd='include "b.shd"\nz = A[B]\n', b_shd='# b\ninclude "c.shd"\n')
    folder(c_shd='include "./a.shd"\n', self_shd='include "../' + folder().name + '/self.shd"\n')

    assert [("c.shd", 'include "./a.shd"', 1, 9, "SH161")] == codes("a.shd")
    assert [("self.shd", 1, "SH161")] == [(x[0], x[2], x[4]) for x in codes("self.shd")]
    with pytest.raises(ShardlangError, match=r"a\.shd → b\.shd →\s+c\.shd → a\.shd"):
        sl.load("a.shd")


def test_files_that_cannot_be_read_are_shown_at_their_line(folder):
    """Missing, a folder, empty, no text, and `-`, which is no file."""
    folder(x__main_shd='include "parts.sdh"\ninclude "p.shd"\ninclude ""\n  include "-"\n')
    folder(x__main2_shd='include "empty.shd"\ninclude "bad.shd"\n', x__empty_shd=" \n")
    folder(x__bad_shd=b"A[I]\nB\xff", x__part_shd="A[I]\n")

    assert [("x/main.shd", n, 9 + 2 * (n == 4), "SH162") for n in (1, 2, 3, 4)] == [
        (x[0], x[2], x[3], x[4]) for x in codes("x/main.shd")
    ]
    assert [("x/main2.shd", 1, "SH162"), ("x/bad.shd", 2, "SH904")] == [
        (x[0], x[2], x[4]) for x in codes("x/main2.shd")
    ]


def test_a_missing_file_has_a_hint(folder):
    """The name that was meant, else the folder that was looked in."""
    folder(main_shd='include "lib/part.shd"\ninclude "q.shd"\n', lib__parts_shd=PARTS)
    with pytest.raises(ShardlangError) as caught:
        sl.load("main.shd")
    first, second = caught.value.diagnostics

    assert ("there is no file lib/part.shd", 'did you mean "lib/parts.shd"?') == (
        first.message, first.hint,
    )  # fmt: skip
    assert "files are looked for beside the one that includes them, here in ." == second.hint


def test_mistakes_of_form_have_the_name_of_their_file(folder):
    """Those of all files are shown, each in its own text."""
    folder(main_shd='include "a.shd"\nz = A[B\n', a_shd='B[I] = = C\ninclude "b.shd"\n')
    folder(b_shd="x = 3 $ 4 £\n", main2_shd='include "a.shd"\nz = A[B]\n')

    assert [("main.shd", 2), ("a.shd", 1), ("b.shd", 1)] == [
        (x[0], x[2]) for x in codes("main.shd")
    ]
    assert [("a.shd", 1), ("b.shd", 1)] == [(x[0], x[2]) for x in codes("main2.shd")]


def test_a_mistake_in_an_included_block_shows_the_call_in_its_file(folder, shardlang):
    """In text and in JSON."""
    folder(main_shd=MAIN, parts_shd=PARTS.replace("·_F", "·_G"))
    text = shardlang("check", "main.shd").out
    (found,) = json.loads(shardlang("check", "--format", "json", "main.shd").out)

    assert "parts.shd:3:7: error[SH217]: G is not a dim of either operand" in text
    assert "main.shd:3:13: in mlp, called here" in text
    assert ("parts.shd", 3, 7) == (found["file"], found["line"], found["column"])
    assert [("main.shd", 3, 13)] == [(x["file"], x["line"], x["column"]) for x in found["labels"]]


def test_declarations_clash_across_files(folder):
    """The label names the other file."""
    folder(main_shd='mesh X=2\ninclude "a.shd"\nz = A[B_X]\n', a_shd="# a\nmesh Y=2\n")
    with pytest.raises(ShardlangError, match=r"-+ main\.shd:1:1: "):
        sl.load("main.shd")

    assert [("a.shd", 2)] == [(x[0], x[2]) for x in codes("main.shd")]


def test_fmt_leaves_includes(folder, shardlang):
    """The file alone is laid out, whether what it includes is there or not."""
    folder(main_shd='include    "nowhere.shd"\n# kept\nz=A[B]\n')

    assert 'include "nowhere.shd"\n# kept\nz = A[B]\n' == shardlang("fmt", "main.shd").out


def test_an_include_stands_alone(folder):
    """Not in a block."""
    folder(main_shd='layers L:\n  include "a.shd"\n  x = x[B] + x\n')

    assert [("main.shd", 2, "SH122")] == [(x[0], x[2], x[4]) for x in codes("main.shd")]


def test_hardware_in_an_included_file_is_found_there(folder, shardlang):
    """What is wrong with it is shown at its line, whatever command finds it."""
    folder(main_shd='include "a.shd"\nz[B] = A[B_X]\n', a_shd="mesh X=2\nhardware tpu_v99\n")

    assert "a.shd:2:10: error[SH501]" in shardlang("check", "main.shd").out
    assert "a.shd:2:10: error[SH501]" in shardlang("cost", "main.shd").err
    folder(a_shd="mesh X=2\nhardware tpu_v5p 3x5\n")
    assert "a.shd:2:18: error[SH510]" in shardlang("check", "main.shd").out
