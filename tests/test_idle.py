"""What was given and has no effect is said: declarations that no line reads, and options."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import shardlang as sl

UNUSED = """
param W: [D, F], V: [F]
frozen Rest: [K]
input x: [B, D], Q: [D]
cache Keys: [B, D]
x ·_D W -> y[B, F]
"""

STEP = """
mesh X=2, Z=2
dims B=8, D=16, F=32, L=4
dtype f32
optimizer sgd
accumulate M=3
input x: [B_X, D]
param W_in: [{0}, D_X, F], W_out: [{0}, F, D_X]
layers {0}:
  x = x + (x ·_D W_in) ·_F W_out
loss[] = mean_{{B,D}}(square(x))
"""


def test_check_and_cost_warn_of_the_same_declarations() -> None:
    """Each word has its own warning, at the first leaf that nothing reads; `cost` says the same sentences."""
    program = sl.parse(UNUSED)
    found = sl.check(program)
    wanted = [
        ("SH248", 2, "nothing uses V: declared with `param`, it counts as a weight all the same"),
        ("SH248", 3, "nothing uses Rest: declared with `frozen`, it counts as a weight all the same"),
        ("SH248", 4, "nothing uses Q, declared with `input`"),
        ("SH248", 5, "nothing uses Keys: declared with `cache`, it counts as one all the same"),
    ]  # fmt: skip

    lines = [UNUSED[: each.span.start].count("\n") + 1 for each in found]
    assert [
        (each.code, line, each.mistake.message()) for each, line in zip(found, lines, strict=True)
    ] == wanted
    assert {each.severity for each in found} == {"warning"}
    said = sl.cost(sl.lower(program)).warnings
    assert [line for line in said if line.startswith("nothing uses")] == [x[2] for x in wanted]


def test_outputs_have_items() -> None:
    """The arrays of a compiled report come with their names, as from a mapping."""
    report = sl.cost(sl.lower(sl.parse("mesh X=4\nA[I, J_X] · W[J_X, K] -> C[I, K]")), "tpu_v5p")
    compiled = report.compile(("I", "J", "K"), outputs=("t_math", "t_comms"))
    out = compiled(np.array([8.0, 16.0]), 32.0, 64.0)

    found = dict(out.items())
    assert list(found) == ["t_math", "t_comms"]
    assert found["t_comms"] is out["t_comms"]
    assert found["t_math"] is out[0]


def test_sizes_may_be_given_to_explain_and_to_the_search_for_meshes() -> None:
    """They win over the program's own, as in `lower`."""
    text = "mesh X=4\ndims I={}, J=32, K=64\nA[I, J_X] · W[J_X, K] -> C[I, K]\n"
    program, larger = (sl.parse(text.format(size)) for size in (8, 4096))

    assert sl.explain(program, sizes={"I": 4096}) == sl.explain(larger)
    assert sl.explain(program).total != sl.explain(larger).total
    got, wanted = (
        sl.best_meshes(p, 4, sizes, hardware="tpu_v5p").candidates[0].t_serial
        for p, sizes in ((program, {"I": 4096}), (larger, None))
    )
    assert got == wanted
    with pytest.raises(TypeError, match="explain takes sizes by names"):
        sl.explain(program, sizes=[4096])  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("stack", "objective", "said"),
    [
        ("L", "bytes", "all M=3 microbatches and the update"),
        ("L_Z", "bytes", "all M=3 microbatches and the update, on a stage;"),
        ("L_Z", "time", "all M=3 microbatches and the update, on a stage, without the bubble;"),
    ],
)
def test_explain_says_what_its_total_counts(
    shardlang: Any, stack: str, objective: str, said: str
) -> None:
    """The total is that of a step, as `cost` says it."""
    text = STEP.format(stack)
    asked = ("--hardware", "tpu_v5p", "--objective", objective, "--strategy", "book")
    out = shardlang("explain", "-e", text, *asked, "--prices", "book").out
    data = json.loads(
        shardlang("explain", "-e", text, *asked, "--prices", "book", "--format", "json").out
    )
    totals = sl.cost(sl.lower(sl.parse(text)), "tpu_v5p").to_dict()["totals"]

    assert said in " ".join(out.split())
    assert said in data["counts"]
    if objective == "bytes":
        assert data["total"] == totals["total"]["bytes"]["value"]
    assert f"in {len(data['collectives'])} collectives" in out


def test_explain_of_one_batch_counts_all() -> None:
    """Nothing is said where there is one batch and no update."""
    assert sl.explain(sl.parse("mesh X=4\nA[I, J_X] · W[J_X, K] -> C[I, K]")).counts is None


PROGRAM = ("-e", "mesh X=4\ndims I=8, J=32, K=64\nA[I, J_X] · W[J_X, K] -> C[I, K]")


@pytest.mark.parametrize(
    ("command", "given", "works"),
    [
        ("cost", "--convention hardware", "--mfu 0.4"),
        ("cost", "--price 3", "--tokens 1G"),
        ("lower", "--budget 2s", "--strategy optimal"),
        ("lower", "--objective bytes", "--strategy optimal"),
        ("lower", "--sub-axes yes", "--strategy optimal"),
        ("emit-jax", "--prices book", "--strategy optimal"),
        ("lower", "--keep-gathered weights", "--pass both"),
        ("solve", "--parts parameters --for I", "--fits I"),
        ("solve", "--when t_comms>t_math --fits I", "--for I"),
    ],
)
def test_options_without_effect_are_named(
    shardlang: Any, command: str, given: str, works: str
) -> None:
    """A warning says which option does nothing and what is missing; with that it is gone."""
    option = given.split(maxsplit=1)[0]
    off = "--pass forward" if works == "--pass both" else ""
    alone = shardlang(command, *PROGRAM, *given.split(), *off.split())
    both = shardlang(command, *PROGRAM, *given.split(), *works.split())

    needs = "with --pass forward" if off else f"without {works.split(maxsplit=1)[0]}"
    assert f"warning: {option} does nothing {needs}" in " ".join(alone.err.split())
    assert alone.status == both.status == 0
    assert "does nothing" not in both.err


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("schedule --stages 2 --microbatches 4 --set B=3 --model link", "--set and --model do nothing without a program"),
        ("schedule --stages 2 --microbatches 4 --dark", "--dark does nothing without -o FILE.svg"),
        ("fmt -e A[I]->B[I] --mesh X=2", "--mesh does nothing in `fmt`"),
        ("check -e A[I]->B[I] --strategy optimal", "--strategy does nothing in a command that makes no plan"),
        ("lower -e A[I]->B[I] --set W_ici=1e9", "--set W_ici does nothing without --overlap"),
        ("explain -e A[I]->B[I] --set W_ici=1e9", "--set W_ici does nothing in `explain`"),
    ],
)  # fmt: skip
def test_options_of_other_commands_are_named(shardlang: Any, line: str, said: str) -> None:
    """Commands that price nothing, make no plan or read no program say what they have no use for."""
    found = shardlang(*line.split())

    assert f"warning: {said}" in " ".join(found.err.split())
    assert found.status == 0


def test_no_option_is_idle_by_default(shardlang: Any) -> None:
    """A command with no options but its program warns of none."""
    for command in ("cost", "lower", "explain", "check", "fmt", "emit-jax", "compare"):
        assert "does nothing" not in shardlang(command, *PROGRAM).err
