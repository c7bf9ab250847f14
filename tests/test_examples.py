"""Every example says what to look at, is formatted, checks, lowers and has a cost."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

import shardlang as sl

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.shd"))
SCHEMES = ("dp", "fsdp", "tp", "fsdp_tp")


def by_name(paths: list[Path]) -> pytest.MarkDecorator:
    """Run a test for each of the files."""
    return pytest.mark.parametrize("path", paths, ids=[path.name for path in paths])


def test_the_examples_are_there():
    """Each scheme as a chain and written out, and the larger blocks."""
    expected = {f"{scheme}{kind}.shd" for scheme in SCHEMES for kind in ("", ".explicit")}

    blocks = {"mlp.shd", "gated_mlp.shd", "attention.shd", "decode.shd", "moe.shd"}
    models = {"llama.shd", "pipeline.shd", "transformer.shd", "train_mlp.shd"}

    assert expected | blocks | models == {x.name for x in EXAMPLES}


@by_name(EXAMPLES)
def test_starts_with_what_to_look_at(path):
    """The first lines are a comment with a command that runs and a pointer."""
    text = path.read_text(encoding="utf-8")
    comment = text[: re.search(r"^[^#]", text, re.MULTILINE).start()]

    assert "Look at" in comment
    assert f"examples/{path.name}" in comment


@by_name(EXAMPLES)
def test_its_own_command_runs(path, shardlang, monkeypatch):
    """The command in the comment does what it should."""
    monkeypatch.chdir(ROOT)
    text = path.read_text(encoding="utf-8")
    (command,) = re.findall(r"^# \$ shardlang (.+)$", text, re.MULTILINE)

    assert shardlang(*shlex.split(command)).status == 0


UNREAD = {"llama.shd": "W_embed", "transformer.shd": "W_embed"}
"""Tables that count as weights, while the program begins with what is looked up in them: a warning says so."""


@by_name(EXAMPLES)
def test_checks(path, shardlang):
    """There is nothing to complain about, but for the tables that are declared for their memory alone."""
    result = shardlang("check", path)

    assert result.status == 0
    assert re.findall(r"(?:warning|error)\[(\w+)\]", result.out) == ["SH248"] * (
        path.name in UNREAD
    )
    assert UNREAD.get(path.name, "") in result.out


@by_name(EXAMPLES)
def test_is_formatted(path, shardlang):
    """The examples have the canonical layout."""
    assert shardlang("fmt", "--check", path).status == 0


@by_name(EXAMPLES)
@pytest.mark.parametrize("command", ["lower", "cost"])
def test_lowers_and_costs(path, command, shardlang):
    """Each example lowers and has a cost, with no warning."""
    result = shardlang(command, path)

    assert (result.status, result.err) == (0, "")


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_chain_costs_what_is_written_out(scheme, shardlang):
    """A scheme's chain and its written-out algorithm cost the same."""
    import json

    pair = [f"{scheme}.shd", f"{scheme}.explicit.shd"]
    reports = [
        json.loads(shardlang("cost", ROOT / "examples" / name, "--format", "json").out)
        for name in pair
    ]

    assert reports[0]["totals"] == reports[1]["totals"]


# Two layers of attention with data near 1 and no scale amplify bf16's rounding: see test_layers.
@by_name(
    [x for x in EXAMPLES if ".explicit" not in x.name and x.stem not in ("llama", "transformer")]
)
@pytest.mark.jax
@pytest.mark.slow
def test_verifies(path, shardlang):
    """The emitted module of each example agrees with an unsharded reference."""
    result = shardlang("verify", path, *small_sizes(path))

    assert result.status == 0, result.out + result.err


def small_sizes(path: Path) -> list[str]:
    """Give options that make an example's mesh and dims small enough to run."""
    text = path.read_text(encoding="utf-8")
    axes = re.findall(r"[A-Z]\b", re.search(r"^mesh (.+)$", text, re.MULTILINE)[1])
    declared = re.search(r"^dims (.+)$", text, re.MULTILINE)
    dims = re.findall(r"(\w+)=", declared[1]) if declared else []
    sizes = [word for name in dims for word in ("--set", f"{name}=8")]
    return ["--mesh", ",".join(f"{axis}=2" for axis in axes), *sizes]


def test_llama_has_its_published_size_and_work():
    """70.55e9 parameters; 6 FLOPs a parameter and token in products, 12·B·T·S·N·H a layer in attention."""
    text = (ROOT / "examples" / "llama.shd").read_text(encoding="utf-8")
    text = text.replace("save q, k, v, o, gate, up", "save all").replace("X=64, Y=8", "X=1, Y=1")
    report = sl.cost(sl.lower(sl.parse(text)))
    d, f, heads, kv, h, v, layers = 8192, 28672, 64, 8, 128, 128_256, 80
    tokens = 256 * 4096
    layer = 3 * d * f + 2 * d * heads * h + 2 * d * kv * h
    attention = 12 * tokens * 4096 * heads * h * layers

    assert 70_553_706_496 == layers * (layer + 2 * d) + 2 * v * d + d
    assert 2 * 70_553_706_496 == report.memory.quantity("parameters").value
    assert 2 * (70_553_706_496 - v * d) == report.memory.quantity("gradients").value
    assert 6 * tokens * (layers * layer + v * d) + attention == report.total.quantity("flops").value
