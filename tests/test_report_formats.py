"""A report in each of its formats: it fits, it parses back, and it says the same."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import plans
import pytest

import shardlang as sl
from shardlang.backends.report_latex import condition, escape, symbol
from shardlang.backends.report_text import wrap
from shardlang.backends.units import si
from shardlang.cost.report import cost, HBM, MEMORY, Report, TOTALS
from shardlang.ir.plan import Alternative

EXAMPLES = Path(__file__).parents[1] / "examples"
SIZES = {"B": 48_000, "D": 8192, "F": 32768}


def reports() -> list[Report]:
    """Give reports that differ in what they know and what they have to say."""
    full = plans.mlp("fsdp_tp", mesh={"X": 16, "Y": 4}, sizes=SIZES, optimizer="adam")
    other = plans.mlp("fsdp_tp", mesh={"data_outer": 1, "X": 16, "Y": None}, sizes={"B": 48_000})
    object.__setattr__(
        other, "alternatives", (Alternative("In_1", "gather <W> & more", "B < 3*F|G"),)
    )
    object.__setattr__(other, "warnings", ("50% of $5 is #2 in {x}^~\\",))
    return [
        cost(full, hardware="tpu_v5p"),
        cost(full, hardware="h100", model="link", overlap="axes"),
        cost(other),
        cost(plans.mlp("dp")),
        cost(plans.make_plan([], leaves=[])),
    ]


@pytest.mark.parametrize("report", reports())
@pytest.mark.parametrize("width", [60, 80, 160])
def test_text_fits_its_width(report, width):
    """No line is longer than the width."""
    text = report.to_text(width=width)

    assert [line for line in text.splitlines() if len(line) > width] == []
    assert not re.search(r"[ \t]$", text, re.MULTILINE)
    assert text.endswith("\n")


def test_text_shows_formulas_and_numbers():
    """At 80 columns the numbers stand beside the formulas."""
    text = reports()[0].to_text()

    assert re.search(r"\* +forward +AllGather_Y In +2\*B\*D/X +49\.15 MB +273\.1 µs", text)
    assert re.search(r"T_math +4\*B\*D\*F/\(C\*X\*Y\) +1\.754 ms", text)
    assert re.search(r"T_overlapped +max\(T_math, T_comms\), a lower bound +2\.037 ms", text)
    assert "B*F/(B*Y + F*X) > C/W_ici (it is not)" in text
    assert "tpu_v5p: C 459 TFLOP/s, W_ici 180 GB/s" in text
    assert "T_overlapped is a lower bound" in text
    assert "no time    for latency, " in text


def test_text_in_color_is_the_same_text():
    """Colors add escape sequences and nothing else."""
    report = reports()[0]
    plain = re.sub(r"\033\[\d+m", "", report.to_text(color=True))

    assert report.to_text() == plain
    assert "\033" not in report.to_text()


def test_text_keeps_brackets_together():
    """Where a contraction takes several lines, no tensor is broken in its brackets."""
    left = "attention_probabilities[B_X, heads, T, S]"
    step = plans.product("mixed_values[B_X, heads, T, width]", left, "S", "values[B_X, S, width]")
    plan = plans.make_plan([step], leaves=[str(array) for array in step.inputs])
    text = cost(plan).to_text()

    assert left in text
    assert "values[B_X, S, width]" in text


def test_text_says_when_nothing_moves():
    """A plan with no collectives says so."""
    assert "No collectives" in reports()[4].to_text()


@pytest.mark.parametrize("report", reports())
def test_json_has_the_schema(report):
    """The JSON object has the keys of schema 1 and strict numbers."""
    data = json.loads(report.to_json(), parse_constant=pytest.fail)

    network = ["network"] if report.model == "link" else []
    assert list(data) == [
        "schema", "strategy", "mesh", "dims", "hardware", "collectives", "compute", "totals",
        "compute_bound", "memory", "fits", "alternatives", "warnings", "bound", "symbols", *network,
    ]  # fmt: skip
    assert data["schema"] == 1
    for name in ("forward", "backward", "total"):
        totals = data["totals"][name]
        assert list(totals) == [*TOTALS, *HBM]
        assert all(set(totals[key]) == {"formula", "seconds"} for key in TOTALS if key[:2] == "t_")
        assert all(set(totals[key]) == {"formula", "value"} for key in ("flops", "bytes"))
        assert isinstance(data["compute_bound"][name], str)
    assert list(data["memory"]) == list(MEMORY)
    for entry in data["collectives"]:
        assert list(entry) == [
            "pass", "op", "tensor", "axes", "dim", "from", "to", "bytes", "time", "critical",
            "reason",
        ]  # fmt: skip
    assert set(data["symbols"].values()) <= {"dim", "axis", "hardware"}


def test_json_of_a_collective():
    """An entry names tensor, axes, dim and both layouts."""
    entry = reports()[0].to_dict()["collectives"][1]

    assert entry == {
        "pass": "forward",
        "op": "AllGather",
        "tensor": "W_in",
        "axes": ["X"],
        "dim": "D",
        "from": "W_in[D_X, F_Y]",
        "to": "W_in[D, F_Y]",
        "bytes": {"formula": "2*D*F/Y", "value": 134_217_728},
        "time": {"formula": "2*D*F/(M_X*W_ici*Y)", "seconds": 134_217_728 / 1.8e11},
        "critical": False,
        "reason": "as the test wants",
    }


@pytest.mark.parametrize("report", reports())
def test_markdown_tables_are_regular(report):
    """Each row of a table has as many cells as its head."""
    text = report.to_markdown()
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        counts = {len(re.split(r"(?<!\\)\|", line)) for line in table.splitlines()}
        assert len(counts) == 1


class Balanced(HTMLParser):
    """Checks that each element is closed where it should be."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.cells: list[str] = []

    def handle_starttag(self, tag, attrs):
        """Open an element."""
        self.open.append(tag)

    def handle_endtag(self, tag):
        """Close the innermost element."""
        assert self.open.pop() == tag

    def handle_data(self, data):
        """Keep the text."""
        self.cells.append(data)


@pytest.mark.parametrize("report", reports())
def test_html_is_balanced_and_escaped(report):
    """The notebook's HTML nests well and shows the texts as they are."""
    reader = Balanced()
    reader.feed(report._repr_html_())
    reader.close()

    assert reader.open == []
    for warning in report.warnings:
        assert warning in reader.cells
    for other in report.plan.alternatives:
        assert other.instead in reader.cells


@pytest.mark.parametrize("report", reports())
def test_latex_is_balanced(report):
    """Braces, environments and dollars come in pairs, and rows have their table's columns."""
    for text in (report.to_latex(), report._repr_latex_()):
        bare = re.sub(r"\\[\\{}$%#&_]", lambda m: "@@" if m[0] != r"\\" else r"\\", text)
        bare = re.sub(r"^%.*$", "", bare, flags=re.MULTILINE)
        depth = 0
        for char in bare:
            depth += (char == "{") - (char == "}")
            assert depth >= 0
        assert depth == 0
        assert bare.count("$") % 2 == 0
        ends = re.findall(r"\\(begin|end)\{(\w+)\}", text)
        assert ends[::2] == [("begin", name) for _, name in ends[1::2]]
        for form, body in re.findall(r"\\begin\{tabular\}\{(.*?)\}\n(.*?)\\end", bare, re.DOTALL):
            for row in body.split(r"\tabularnewline")[:-1]:
                assert row.count("&") == len(re.sub(r"\{.*?\}", "", form)) - 1


COMMANDS = (
    ("cost", "mlp.shd"),
    ("cost", "attention.shd"),
    ("cost", "mlp.shd", "--model", "link", "--set", "C=1e15"),
    ("cost", "dp.shd", "--timeline", "--hardware", "h100", "--mesh", "X=8", "--set", "B=4Mi"),
    ("compare", "dp.shd", "fsdp.shd", "tp.shd", "fsdp_tp.shd"),
    ("hardware", "tpu_v5p", "h100"),
    ("hardware",),
    ("lower", "gated_mlp.shd"),
    ("explain", "attention.shd"),
    ("solve", "mlp.shd", "--for", "B"),
)
"""Commands whose LaTeX is set: the words that end in .shd are examples."""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_latex_compiles(shardlang, tmp_path, words):
    """PdfTeX sets every command's LaTeX in a bare article, and no line runs off the page."""
    examples = Path(__file__).resolve().parent.parent / "examples"
    words = [str(examples / word) if word.endswith(".shd") else word for word in words]
    if "--timeline" in words:
        words += ["--set", "D=8192", "--set", "F=32768"]
    text = shardlang(*words, "--format", "latex").out
    page = f"\\documentclass{{article}}\n\\begin{{document}}\n{text}\\end{{document}}\n"
    (tmp_path / "page.tex").write_text(page, encoding="utf-8")
    done = subprocess.run(
        ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "page.tex"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=60,
        check=False,
    )
    wide = re.findall(r"Overfull .hbox .(\d+\.\d+)pt", done.stdout)

    assert done.returncode == 0, done.stdout[-2000:]
    assert [points for points in wide if float(points) > 36] == []


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("W_in", r"W_{\mathrm{in}}"),
        ("W_ici", r"W_{\mathrm{ici}}"),
        ("M_X", "M_{X}"),
        ("lambda_", r"\lambda"),
        ("d_model_2", r"d_{\mathrm{model\_2}}"),
        ("Tmp", r"\mathit{Tmp}"),
        ("ΔF", r"\mathit{\ensuremath{\Delta}F}"),
        ("λ", r"\ensuremath{\lambda}"),
        ("__", r"\_\_"),
    ],
)
def test_latex_names(name, expected):
    """Names are set as one would by hand."""
    assert symbol(name) == expected


def test_latex_conditions():
    """A condition is set as mathematics."""
    text = "B*F/(2*Y**2 - F) > C/W_ici and X < d_model"

    assert condition(text) == (
        r"B \, F / (2 \, Y^{2} - F) > C / W_{\mathrm{ici}} \;\mathrm{and}\; X < d_{\mathrm{model}}"
    )


def test_latex_escapes_what_it_must():
    """Every character that LaTeX reads is escaped."""
    assert escape("50% of $5_x") == r"50\% of \$5\_x"


@pytest.mark.parametrize(
    ("value", "unit", "expected"),
    [
        (0, "B", "0 B"),
        (999, "B", "999 B"),
        (33_554_432, "B", "33.55 MB"),
        (999_960, "B", "1 MB"),
        (23.3e-6, "s", "23.3 µs"),
        (0.99999, "s", "1 s"),
        (4321, "s", "4321 s"),
        (1e30, "FLOP", "1e+06 YFLOP"),
        (3e-20, "s", "3e-05 fs"),
    ],
)
def test_units(value, unit, expected):
    """Numbers come with SI prefixes and four digits."""
    assert si(value, unit) == expected


def test_wrapping_loses_nothing():
    """Whatever is wrapped holds its words, in lines that fit."""
    text = "4*B*D/(M_Y*W_ici*X) + " + "x" * 50 + " + 1"
    lines = wrap(text, 20)

    assert all(len(line) <= 20 for line in lines)
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")


@pytest.mark.parametrize("width", [80, 140])
@pytest.mark.parametrize("bare", [False, True])
@pytest.mark.parametrize("name", ["transformer", "moe", "pipeline", "train_mlp"])
def test_a_report_of_a_model_breaks_no_word(name: str, bare: bool, width: int) -> None:
    """No line is too long or ends in an operator, and no label, product or sum in brackets is broken."""
    text = (EXAMPLES / f"{name}.shd").read_text("utf-8")
    if bare:
        text = "\n".join(x for x in text.splitlines() if not x.startswith("hardware"))
    report = cost(sl.lower(sl.parse(text)))
    lines = report.to_text(width).splitlines()
    words = {word.strip(",()") for line in lines for word in line.split()}

    assert max(map(len, lines)) <= width
    assert not [line for line in lines if line.endswith((" +", " -", " >", "*", "/", "_", "(M_X"))]
    for each in report.collectives:
        assert {each.move, each.tensor} <= words
        products = re.split(r" [-+] |Max\(|, ", str(each.bytes))
        assert {product.strip("()") for product in products} <= words
