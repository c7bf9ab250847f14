"""The command line: exit statuses, streams, options, and no traceback for any input."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MLP = ROOT / "examples" / "mlp.shd"
FSDP = ROOT / "examples" / "fsdp.shd"
COMMANDS = ("cost", "lower", "emit-jax", "check", "verify", "fmt")
LINE = "A[I, J_X] · B[J_X, K] -> C[I, K]"


# Which command


def test_bare_command_prints_three_commands_to_try(shardlang):
    """Typing `shardlang` alone shows what to try, and succeeds."""
    result = shardlang()

    assert result.status == 0
    assert sum(line.startswith("  shardlang ") for line in result.out.splitlines()) == 3
    assert result.err == ""


def test_every_command_of_the_greeting_works(shardlang):
    """What the greeting says to try runs."""
    import shlex

    lines = [line for line in shardlang().out.splitlines() if line.startswith("  shardlang ")]

    assert [shardlang(*shlex.split(line)[1:]).status for line in lines] == [0, 0, 0]


def test_version(shardlang):
    """`--version` prints name and version."""
    import shardlang as package

    assert shardlang("--version").out == f"shardlang {package.__version__}\n"


@pytest.mark.parametrize("arguments", [("--help",), ("cost", "--help"), ("fmt", "-h")])
def test_help_goes_to_stdout(shardlang, arguments):
    """Help is a result: stdout, status 0."""
    result = shardlang(*arguments)

    assert (result.status, result.err) == (0, "")
    assert result.out.startswith("usage: shardlang")


def test_unknown_command_gets_a_suggestion(shardlang):
    """A mistyped command names the nearest one."""
    result = shardlang("lowr", MLP)

    assert result.status == 2
    assert "did you mean `lower`?" in result.err


def test_a_file_as_command_gets_a_suggestion(shardlang):
    """`shardlang x.shd` says which command it may have meant."""
    result = shardlang("x.shd")

    assert result.status == 2
    assert "shardlang cost x.shd" in result.err


def test_strategy_optimal_needs_sizes(shardlang):
    """`--strategy optimal` compares times as numbers: without sizes it says which are missing."""
    arguments = ("--objective", "time", "--hardware", "tpu_v5p")
    result = shardlang("lower", FSDP, "--strategy", "optimal", *arguments)

    assert (result.status, result.out) == (1, "")
    assert "SH351" in result.err


def test_strategy_optimal_says_what_it_has_proven(shardlang):
    """The first line is a comment with the cost and, where it is proven, the word optimal."""
    result = shardlang("lower", MLP, "--strategy", "optimal", "--objective", "bytes")

    assert result.status == 0
    assert result.out.startswith("// optimal: 906 MB moved a device (link prices), no plan moves")

    result = shardlang("lower", MLP, "--strategy", "optimal", "--objective", "time")

    assert result.status == 0
    assert result.out.startswith("// optimal: T_overlapped = ")


@pytest.mark.parametrize(
    "arguments",
    [
        ("cost",),
        ("cost", MLP, "--format", "yaml"),
        ("cost", MLP, "--pass", "backward"),
        ("cost", MLP, "--model", "exact"),
        ("cost", MLP, "--no-such-option"),
        ("cost", MLP, "--strategy", "best"),
        ("cost", MLP, MLP),
        ("cost", MLP, "-e", LINE),
        ("cost", MLP, "-o"),
        ("--format", "json"),
    ],
    ids=lambda arguments: " ".join(Path(str(x)).name for x in arguments),
)
def test_wrong_usage_exits_with_two(shardlang, arguments):
    """Wrong usage: status 2, words on stderr, nothing on stdout."""
    result = shardlang(*arguments)

    assert (result.status, result.out) == (2, "")
    assert result.err


# Where the program comes from


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("path", ["no/such/file.shd", ".", "a\x00b"])
def test_a_file_that_cannot_be_read(shardlang, name, path):
    """A missing file, a directory and an impossible name: status 2 and one line."""
    result = shardlang(name, path)

    assert (result.status, result.out) == (2, "")
    assert len(result.err.splitlines()) == 1


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize(
    "content",
    [
        b"\xff\xfe\x00broken",
        b"A[I" + b"(" * 10_000,
        b"x = " + b"(" * 10_000 + b"a[I]" + b")" * 10_000,
        b"[" * 10_000,
        b"A" * 1_000_000,
        b"# " + b"c" * 1_000_000,
        b"dims B=" + b"9" * 10_000 + b"\nA[B] -> C[B]",
        b"dims B=1e999999999\nA[B] -> C[B]",
        b"\x00\x01\x02",
        "\u202eA[\U0001f600]".encode(),
    ],
    ids=[
        "not-utf8", "open", "nested", "brackets", "long-line", "long-comment", "digits", "power",
        "nul", "emoji",
    ],
)  # fmt: skip
@pytest.mark.slow
def test_broken_programs_end_in_a_message(shardlang, tmp_path, name, content):
    """Whatever a file holds, the command ends in words and status 0 or 1."""
    file = tmp_path / "broken.shd"
    file.write_bytes(content)

    result = shardlang(name, file)

    assert result.status in (0, 1)
    assert "Traceback" not in result.out + result.err
    assert "internal error" not in result.err
    if result.status:
        assert result.out + result.err


@pytest.mark.parametrize("name", ["cost", "lower", "check", "fmt", "emit-jax"])
def test_an_empty_file(shardlang, tmp_path, name):
    """An empty file ends in words or in nothing, with no internal error."""
    file = tmp_path / "empty.shd"
    file.touch()

    result = shardlang(name, file)

    assert result.status in (0, 1)
    assert "internal error" not in result.err


def test_program_from_standard_input(process):
    """`-` reads standard input, and errors call it that."""
    done = process("lower", "-", stdin=LINE.encode())

    assert done.returncode == 0
    assert "AllReduce_X" in done.stdout.decode()

    wrong = process("lower", "-", stdin=b"A[I -> ")

    assert wrong.returncode == 1
    assert wrong.stderr.decode().startswith("<stdin>:1:")


def test_program_from_the_command_line(shardlang):
    """`-e` takes a line of notation, and several make several lines."""
    one = shardlang("lower", "-e", LINE)
    two = shardlang("lower", "-e", "mesh X=4", "-e", LINE)

    assert (one.status, two.status) == (0, 0)
    assert "AllReduce_X" in one.out
    assert "mesh X=4" in two.out


def test_text_that_is_not_utf8(process):
    """An argument that is not UTF-8 is refused in words."""
    done = process("lower", "-e", os.fsdecode(b"A[\xff]"))

    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1


# Results and messages


@pytest.mark.parametrize("name", ["cost", "lower", "emit-jax"])
def test_errors_go_to_stderr(shardlang, name):
    """What is wrong with a program goes to stderr; stdout stays empty."""
    result = shardlang(name, "-e", "A[I_X, J_X] -> C[I, J]")

    assert (result.status, result.out) == (1, "")
    assert result.err.startswith("<-e>:1:")


def test_check_prints_its_diagnostics_to_stdout(shardlang):
    """Diagnostics are the result of `check`: stdout, status 1."""
    result = shardlang("check", "-e", "A[I_X, J_X] -> C[I, J]")

    assert (result.status, result.err) == (1, "")
    assert result.out.startswith("<-e>:1:")


def test_check_reports_unknown_hardware(shardlang, tmp_path):
    """Hardware that does not exist is reported at its line, beside what else is wrong."""
    file = tmp_path / "p.shd"
    file.write_text("mesh X\nhardware h1OO\nA[I_X, J_X] -> C[I, J]\n", encoding="utf-8")
    both = shardlang("check", file)
    file.write_text("mesh X\nhardware h1OO\nA[I_X, J] -> C[I, J]\n", encoding="utf-8")
    alone = shardlang("check", file, "--format", "json")

    assert both.status == 1
    assert both.out.index("p.shd:2:10: error[SH501]") < both.out.index("p.shd:3:10: error[SH202]")
    (found,) = json.loads(alone.out)
    assert (found["code"], found["line"], found["column"], alone.status) == ("SH501", 2, 10, 1)
    assert shardlang("check", file, "--hardware", "h100").status == 0
    assert shardlang("check", file, "--hardware", "h1OO").status == 2
    assert shardlang("lower", file).status == 0


@pytest.mark.parametrize("command", ["cost", "fmt", "check"])
def test_unrecognized_arguments_show_the_commands_own_usage(shardlang, command):
    """What is left over is named, with the command whose help lists the options, and status 2."""
    result = shardlang(command, MLP, "b.shd")

    assert result.status == 2
    assert result.err.endswith(f"\ntry: shardlang {command} --help\n")
    assert result.err.count("\n") == 2
    assert "unrecognized arguments: 'b.shd'" in result.err


def test_help_promises_no_more_than_there_is(shardlang):
    """`cost --help` says what the model `link` counts."""
    text = " ".join(shardlang("cost", "--help").out.split())

    assert "the time of the busiest link or of the hops" in text


def test_check_says_nothing_about_a_right_program(shardlang):
    """A right program: nothing, status 0."""
    assert shardlang("check", FSDP) == type(shardlang("check", FSDP))(0, "", "")


def test_check_as_json(shardlang):
    """`check --format json` is a list of diagnostics."""
    right = shardlang("check", FSDP, "--format", "json")
    wrong = shardlang("check", "-e", "A[I_X, J_X] -> C[I, J]", "--format", "json")
    found = json.loads(wrong.out)

    assert json.loads(right.out) == []
    assert (found[0]["line"], found[0]["severity"]) == (1, "error")


def test_check_explicit(shardlang, tmp_path):
    """`--explicit` accepts a written-out program, and refuses one with a collective removed."""
    text = (ROOT / "examples" / "dp.explicit.shd").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if "dW_in[D, F] = AllReduce" not in line]
    file = tmp_path / "broken.shd"
    file.write_text("\n".join(lines), encoding="utf-8")

    assert shardlang("check", "--explicit", ROOT / "examples" / "dp.explicit.shd").status == 0
    assert shardlang("check", "--explicit", file).status == 1


def test_lower_is_idempotent(shardlang, tmp_path):
    """What `lower` prints is a program that lowers to itself, at the same cost."""
    once = shardlang("lower", MLP)
    file = tmp_path / "lowered.shd"
    file.write_text(once.out, encoding="utf-8")
    costs = [json.loads(shardlang("cost", x, "--format", "json").out) for x in (MLP, file)]

    assert shardlang("lower", file).out == once.out
    assert costs[0]["totals"] == costs[1]["totals"]


@pytest.mark.parametrize("name", ["cost", "lower", "emit-jax", "check", "fmt"])
@pytest.mark.parametrize("form", ["text", "json", "latex", "markdown"])
def test_every_command_takes_every_format(shardlang, name, form):
    """The common options are taken everywhere; JSON is JSON."""
    result = shardlang(name, MLP, "--format", form, "--no-color", "--mesh", "X=2,Y=2")

    assert result.status == 0
    if form == "json":
        json.loads(result.out)


def test_options_stand_before_or_behind_the_file(shardlang):
    """The order of options and file does not matter."""
    before = shardlang("lower", "--mesh", "X=2", FSDP)
    behind = shardlang("lower", FSDP, "--mesh", "X=2")

    assert before == behind


@pytest.mark.parametrize("name", ["cost", "lower", "emit-jax", "fmt"])
def test_output_file(shardlang, tmp_path, name):
    """`-o FILE` writes what stdout would have got, in UTF-8."""
    file = tmp_path / "result"
    printed = shardlang(name, MLP)
    written = shardlang(name, MLP, "-o", file)

    assert (written.status, written.out) == (0, "")
    assert file.read_bytes().decode() == printed.out


@pytest.mark.parametrize("where", [".", "no/such/folder/file"])
def test_output_file_that_cannot_be_written(shardlang, where):
    """An impossible `-o` is wrong usage, said in one line."""
    result = shardlang("lower", FSDP, "-o", where)

    assert result.status == 2
    assert len(result.err.splitlines()) == 1


def test_no_color_where_nobody_looks(shardlang):
    """Output that is not a terminal has no escape sequences."""
    assert "\x1b" not in shardlang("cost", MLP).out


# Sizes


@pytest.mark.parametrize(
    "text", ["B", "=3", "B=", "B=x", "B=3x", "3=3", "B=1e99999", "B=" + "9" * 5000, "B==2", ""]
)
def test_set_that_is_no_setting(shardlang, text):
    """A malformed `--set` is wrong usage."""
    result = shardlang("cost", MLP, "--set", text)

    assert (result.status, result.out) == (2, "")


@pytest.mark.parametrize("text", ["B=0", "B=-8", "B=2.5", "X=0"])
def test_set_of_an_impossible_size(shardlang, text):
    """A size is a positive whole number."""
    assert shardlang("cost", MLP, "--set", text).status == 2


def test_set_of_an_unknown_name(shardlang):
    """A name that the program does not have is refused, with the names that it has."""
    result = shardlang("cost", MLP, "--set", "Q=4")

    assert (result.status, result.out) == (2, "")
    assert "Q" in result.err
    assert "B" in result.err


def test_set_wins_over_the_file(shardlang):
    """`--set` overrides dims and axes, in the notation of sizes; the last one counts."""
    result = shardlang(
        "cost", MLP, "--format", "json", "--set", "B=1", "--set", "B=32Ki", "--set", "X=8",
        "--set", "D=4e3",
    )  # fmt: skip
    report = json.loads(result.out)

    assert (report["dims"]["B"], report["mesh"]["X"]) == (32 * 1024, 8)
    assert (report["dims"]["D"], report["dims"]["F"]) == (4000, 16000)


def test_set_of_a_hardware_quantity(shardlang):
    """`--set W_ici=..` changes the times and nothing else."""
    plain = json.loads(shardlang("cost", MLP, "--format", "json").out)
    half = json.loads(shardlang("cost", MLP, "--format", "json", "--set", "W_ici=90G").out)
    before, after = (x["totals"]["total"] for x in (plain, half))

    assert before["bytes"] == after["bytes"]
    assert after["t_comms"]["seconds"] == pytest.approx(2 * before["t_comms"]["seconds"])


def test_set_prefers_the_program_over_the_hardware(shardlang):
    """Where a dim is called C, `--set C=..` is its size."""
    result = shardlang(
        "cost", "-e", "A[C_X, D] · B[D, E] -> R[C_X, E]", "--set", "C=64", "--format", "json"
    )

    assert json.loads(result.out)["dims"]["C"] == 64


@pytest.mark.parametrize("text", ["X", "X=2,", "X=2,X=4", "=2", "X=2 @wifi", "X=0", "X=1.5", ""])
def test_mesh_that_is_no_mesh(shardlang, text):
    """A malformed `--mesh` is wrong usage, but for an axis with no size."""
    expected = 0 if text == "X" else 2

    assert shardlang("cost", FSDP, "--mesh", text).status == expected


def test_mesh_wins_over_the_file(shardlang):
    """`--mesh` overrides the sizes of the file."""
    result = shardlang("cost", MLP, "--mesh", "X = 2, Y=8", "--format", "json")

    assert json.loads(result.out)["mesh"] == {"X": 2, "Y": 8}


def test_forward_alone(shardlang):
    """`--pass forward` lowers the forward pass only."""
    result = shardlang("lower", MLP, "--pass", "forward")

    assert result.status == 0
    assert "dOut" not in result.out


def test_keep_gathered(shardlang):
    """`--keep-gathered weights` gathers each weight once."""
    twice = shardlang("lower", FSDP).out.count("AllGather_X(W")
    once = shardlang("lower", FSDP, "--keep-gathered", "weights").out.count("AllGather_X(W")

    assert (twice, once) == (4, 2)


def test_memory_limit(shardlang):
    """`--memory-limit` takes the units of sizes; what does not fit is an error, also by the rules."""
    for strategy in ("book", "optimal"):
        options = ("--strategy", strategy, "--memory-limit")
        assert shardlang("lower", MLP, *options, "1.5 GiB").status == 0
        refused = shardlang("lower", MLP, *options, "500MB")
        assert (refused.status, refused.out) == (1, "")
        assert "SH357" in refused.err
    for wrong in ("95GX", "0", "", "much"):
        assert shardlang("lower", MLP, "--memory-limit", wrong).status == 2


# fmt


def test_fmt_check(shardlang, tmp_path):
    """`fmt --check` prints nothing on stdout and says by its status whether it would change."""
    messy, tidy = tmp_path / "messy.shd", tmp_path / "tidy.shd"
    messy.write_text("mesh   X\nA[ I_X,J ]   ->A[I,J]\n", encoding="utf-8")

    assert shardlang("fmt", messy, "-o", tidy).status == 0
    assert shardlang("fmt", "--check", tidy) == type(shardlang())(0, "", "")

    result = shardlang("fmt", "--check", messy)

    assert (result.status, result.out) == (1, "")
    assert "would change" in result.err


# Whole processes


def run_shell(script: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """Run a shell line in the repository with `$SHARDLANG` as the command."""
    return subprocess.run(
        ["bash", "-c", script],
        cwd=ROOT,
        capture_output=True,
        check=False,
        timeout=120,
        env={**os.environ, "SHARDLANG": f"{sys.executable} -m shardlang", **environment},
    )


@pytest.mark.parametrize("name", ["cost", "lower", "emit-jax", "--help", ""])
def test_a_reader_that_goes_away(name):
    """`| head` is no error: nothing on stderr."""
    done = run_shell(f"$SHARDLANG {name} {'examples/mlp.shd' if name[:1].isalpha() else ''} | true")

    assert (done.returncode, done.stderr) == (0, b"")


def test_closed_standard_output():
    """With stdout closed the result can't be written, which is said in one line."""
    done = run_shell("$SHARDLANG lower examples/mlp.shd >&-")

    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1


def test_everything_closed():
    """With all streams closed it still ends with its status."""
    assert run_shell("$SHARDLANG lower examples/mlp.shd >&- 2>&- <&-").returncode == 1
    assert run_shell("$SHARDLANG lower - <&- >&- 2>&-").returncode == 2


def test_check_of_a_right_program_needs_no_output():
    """Nothing to print is printed even to a closed stdout."""
    assert run_shell("$SHARDLANG check examples/mlp.shd >&- 2>&-").returncode == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_full_disk():
    """A full disk is said in one line."""
    done = run_shell("$SHARDLANG lower examples/mlp.shd > /dev/full")

    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "environment",
    [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}],
    ids=["ascii", "C"],
)
def test_locales_without_the_notations_characters(environment):
    """Results are UTF-8 whatever the locale says."""
    done = run_shell("$SHARDLANG lower examples/mlp.shd", **environment)

    assert done.returncode == 0
    assert "·_D" in done.stdout.decode()


def test_columns_are_respected():
    """`COLUMNS` sets the width of the tables."""
    done = run_shell("$SHARDLANG cost examples/mlp.shd", COLUMNS="200")

    assert done.returncode == 0


# The crash guard


@pytest.mark.parametrize(
    ("raised", "words", "status"),
    [
        (ValueError("boom\nsecond line"), "internal error: ValueError: boom (a bug", 1),
        (RecursionError(), "nested too deeply", 1),
        (MemoryError(), "not enough memory", 1),
        (KeyboardInterrupt(), "", 130),
    ],
    ids=["bug", "recursion", "memory", "interrupt"],
)
def test_crashes_end_in_a_line(shardlang, monkeypatch, raised, words, status):
    """An internal error is one line that says how to report it."""

    def crash(*_: object) -> int:
        raise raised

    monkeypatch.setattr("shardlang.cli.lower.run", crash)
    monkeypatch.delenv("SHARDLANG_DEBUG", raising=False)
    result = shardlang("lower", FSDP)

    assert (result.status, result.out) == (status, "")
    assert words in result.err
    assert len(result.err.splitlines()) == (1 if words else 0)


def test_debug_lets_the_traceback_through(shardlang, monkeypatch):
    """`SHARDLANG_DEBUG=1` shows where an internal error comes from."""

    def crash(*_: object) -> int:
        raise ValueError("boom")

    monkeypatch.setattr("shardlang.cli.lower.run", crash)
    monkeypatch.setenv("SHARDLANG_DEBUG", "1")

    with pytest.raises(ValueError, match="boom"):
        shardlang("lower", FSDP)


# hardware


def test_hardware_lists_the_catalogue(shardlang):
    """`hardware` lists the chips; one chip shows its figures with their sources."""
    every = shardlang("hardware")
    one = shardlang("hardware", "tpu_v5p")

    assert (every.status, one.status) == (0, 0)
    assert all(name in every.out for name in ("tpu_v4p", "tpu_v5e", "tpu_v5p", "tpu_v6e", "h100"))
    assert "W_ici" in one.out


def test_hardware_as_json(shardlang):
    """`hardware --format json` is JSON."""
    result = shardlang("hardware", "tpu_v5p", "--format", "json")

    (chip,) = json.loads(result.out)["hardware"]
    assert chip["name"] == "tpu_v5p"
    assert chip["figures"]["W_ici"]["value"] == 1.8e11
    assert chip["figures"]["pod"]["shape"] == [16, 20, 28]
    assert chip["derived"]["C/W_ici"] == {"value": 2550, "unit": "FLOP/B"}


def test_hardware_compares(shardlang):
    """`hardware A B` sets chips side by side, in every format."""
    text = shardlang("hardware", "tpu_v5p", "tpu_v5p:spec")

    assert text.out.split()[:2] == ["tpu_v5p", "tpu_v5p:spec"]
    assert re.search(r"^C/W_ici +2550 +2295$", text.out, re.MULTILINE)
    for form in ("json", "markdown", "latex"):
        result = shardlang("hardware", "tpu_v5p", "h100", "--format", form)
        assert (result.status, "2550" in result.out) == (0, True)


def test_unknown_hardware(shardlang):
    """An unknown chip is refused, wherever it is named."""
    assert shardlang("hardware", "tpu_v5q").status in (1, 2)
    assert shardlang("cost", MLP, "--hardware", "tpu_v5q").status in (1, 2)
    assert "tpu_v5q" in shardlang("hardware", "tpu_v5q").err
