"""Programs side by side: the seed's table of what a layer costs under the four schemes, and the command."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import sympy

import shardlang as sl
from shardlang.backends.comparison import Comparison

ROOT = Path(__file__).resolve().parent.parent
SCHEMES = ("dp", "fsdp", "tp", "fsdp_tp")
FILES = [str(ROOT / "examples" / f"{name}.shd") for name in SCHEMES]
LAYER = {
    "dp": ("4*B*D*F/X", "8*B*D*F/X", "0", "8*D*F"),
    "fsdp": ("4*B*D*F/X", "8*B*D*F/X", "4*D*F", "8*D*F"),
    "tp": ("4*B*D*F/Y", "8*B*D*F/Y", "4*B*D", "4*B*D"),
    "fsdp_tp": ("4*B*D*F/(X*Y)", "8*B*D*F/(X*Y)", "4*B*D/X + 4*D*F/Y", "4*B*D/X + 8*D*F/Y"),
}
"""The book's table, its errata right: FLOPs forward and backward, bytes forward and backward."""


def test_the_table_of_the_four_schemes(shardlang):
    """One command prints FLOPs and bytes of a layer under DP, FSDP, TP and both."""
    result = shardlang("compare", *FILES)
    first = result.out.split("\n\n")[0].splitlines()
    rows = [re.split(r"  +", line.strip()) for line in first[2:]]

    assert result.status == 0
    assert {name: tuple(cells) for name, *cells in rows} == LAYER
    assert max(map(len, result.out.splitlines())) <= 80


def test_the_same_as_data(shardlang):
    """JSON has each program's cost by its name, equal to the book's formulas."""
    data = json.loads(shardlang("compare", *FILES, "--format", "json").out)["programs"]

    for name, expected in LAYER.items():
        totals = data[name]["totals"]
        found = [
            totals[p][key]["formula"] for key in ("flops", "bytes") for p in ("forward", "backward")
        ]
        differences = [
            sympy.simplify(sympy.sympify(a) - sympy.sympify(b))
            for a, b in zip(found, expected, strict=True)
        ]
        assert differences == [0, 0, 0, 0]


def test_keeping_the_gathered_input_is_the_smaller_of_the_two_counts(shardlang, tmp_path):
    """The seed's 8BD/X for the mixed scheme's backward pass is 6BD/X where In is gathered again."""
    text = Path(FILES[-1]).read_text(encoding="utf-8") + "save Tmp\n"
    (tmp_path / "again.shd").write_text(text, encoding="utf-8")
    out = shardlang("compare", FILES[-1], str(tmp_path / "again.shd")).out

    assert "4*B*D/X + 8*D*F/Y" in out
    assert "6*B*D/X + 8*D*F/Y" in out


NUMBERS = ("--set", "B=4Mi", "--set", "D=8192", "--set", "F=32768", "--hardware", "tpu_v5p")


def test_numbers_of_equal_meshes_name_the_fastest(shardlang):
    """With sizes there are times and memory, the fastest program, and what does not fit."""
    out = shardlang("compare", *FILES[1:], *NUMBERS, "--mesh", "X=64,Y=4").out
    notes = [line.strip() for line in out.splitlines()[-2:]]

    assert notes == ["least T_overlapped: fsdp_tp", "tp needs more than a device's 96 GB"]


def test_a_size_of_one_program_alone_is_set_there(shardlang):
    """`--set Y=4` counts where there is a Y; meshes of different sizes are not ranked."""
    result = shardlang("compare", *FILES, *NUMBERS, "--set", "X=64", "--set", "Y=4")
    rows = {line.split()[0]: line.split()[1] for line in result.out.splitlines()[-5:-1]}

    assert (result.status, rows) == (0, {"dp": "64", "fsdp": "64", "tp": "4", "fsdp_tp": "256"})
    assert "least" not in result.out


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        ((FILES[0], "-"), 2, "several programs are read from files"),
        ((FILES[0], "nothing.shd"), 2, "there is no file nothing.shd"),
        ((FILES[0], FILES[2], "--set", "Q=3"), 2, "Q is neither a dim nor an axis"),
        ((), 2, "no program given"),
    ],
)
def test_what_cannot_be_compared(shardlang, arguments, status, words):
    """Mistakes are named, and end with the status of wrong usage."""
    result = shardlang("compare", *arguments)

    assert (result.status, result.out) == (status, "")
    assert words in result.err


def test_files_of_the_same_name_are_told_apart(shardlang, tmp_path):
    """Two files with one stem are shown by their paths."""
    other = tmp_path / "dp.shd"
    other.write_text("A[I_X, J] · B[J, K] -> C[I_X, K]\n", encoding="utf-8")
    out = shardlang("compare", FILES[0], str(other), "--format", "markdown").out

    assert str(other).replace("_", "\\_") in out
    assert "| dp |" not in out


def test_a_file_twice_is_two_rows(shardlang):
    """The same file can stand beside itself: its rows are numbered."""
    out = shardlang("compare", FILES[0], FILES[0]).out

    assert ["(1)", "(2)"] == re.findall(r"dp\.shd (\(\d\))", out.split("\n\n")[0])


@pytest.mark.parametrize("width", [80, 140])
def test_models_side_by_side_break_no_word(width: int) -> None:
    """A pipeline's bubble is said, and formulas that do not fit beside each other stand below each other."""
    reports = {
        f"examples/{name}.shd ({n})": sl.cost(sl.lower(sl.load(f"examples/{name}.shd")))
        for n, name in enumerate(("pipeline", "moe", "transformer"))
    }
    text = Comparison(reports).to_text(width)
    words = text.split()

    assert max(map(len, text.splitlines())) <= width
    assert all(f"examples/{name}.shd" in words for name in ("pipeline", "moe", "transformer"))
    # 3.593 s of work, (i + Z - 1)/i = 35/32 times as long
    said = "examples/pipeline.shd (0) is a pipeline: T_overlapped with its bubble is 3.93 s"
    assert said in " ".join(words)
    for report in reports.values():
        for term in str(report.total.quantity("flops")).split(" + "):
            assert term.split("/")[-1] in text
