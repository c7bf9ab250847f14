"""Explicit programs: the seed's four algorithms, and each of them with one collective spoilt."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from simulator import check_numbers

from shardlang.diagnostics import ShardlangError
from shardlang.frontend.resolve import load_text
from shardlang.ir.plan import Plan, Step
from shardlang.ir.printer import print_plan, statement
from shardlang.passes import check, lower

CASES = Path(__file__).parent / "cases" / "mlp"
SCHEMES = ("dp", "fsdp", "tp", "fsdp_tp")


def explicit_text(scheme: str) -> str:
    """Read an explicit file."""
    return (CASES / f"{scheme}.explicit.shd").read_text(encoding="utf-8")


def shown(plan: Plan) -> list[tuple[str, bool]]:
    """Give each line of a plan, and whether it is marked as critical."""
    return [(statement(step), step.critical) for step in (*plan.forward, *plan.backward)]


def written(text: str) -> list[tuple[str, bool]]:
    """Read the lines of an explicit file and the marks in its comments, as text alone."""
    found = []
    for line in text.splitlines():
        code, _, comment = line.partition("//")
        if "=" in code:
            critical = "on the critical path" in comment and "not on" not in comment
            found.append((code.strip(), critical))
    return found


def normal(line: str) -> str:
    """Put the two operands of a product in one order: which comes first is the writer's choice."""
    left, _, right = line.partition(" = ")
    match = re.fullmatch(r"(\S+\[.*?\]\S*) (·_\S+) (\S+\[.*?\]\S*)", right)
    if match is None:
        return line
    operands = sorted([match[1], match[3]])
    return f"{left} = {operands[0]} {match[2]} {operands[1]}"


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_seeds_algorithms_are_inferred(scheme: str) -> None:
    """A chain lowers to the algorithm of its explicit file, with the same lines critical."""
    plan = lower(load_text((CASES / f"{scheme}.shd").read_text(encoding="utf-8")))

    expected = sorted((normal(line), critical) for line, critical in written(explicit_text(scheme)))
    assert expected == sorted((normal(line), critical) for line, critical in shown(plan))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_seeds_algorithms_pass_and_compute(scheme: str) -> None:
    """Each explicit file passes with nothing to say, and computes values and gradients."""
    program = load_text(explicit_text(scheme))

    assert [] == check(program)
    check_numbers(lower(program))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_lowering_is_idempotent(scheme: str) -> None:
    """What `lower` prints lowers to itself."""
    plan = lower(load_text((CASES / f"{scheme}.shd").read_text(encoding="utf-8")))
    again = lower(load_text(print_plan(plan)))

    assert shown(plan) == shown(again)
    assert print_plan(plan) == print_plan(again)


def spoilt() -> list[tuple[str, int, str]]:
    """List each collective's line of each scheme, with each way of spoiling it."""
    return [
        (scheme, number, how)
        for scheme in SCHEMES
        for number, line in enumerate(explicit_text(scheme).splitlines())
        if re.search(r"(AllGather|ReduceScatter|AllReduce)_", line)
        for how in ("removed", "other axis", "other dim")
        if how != "other dim" or "ReduceScatter" in line
    ]


@pytest.mark.parametrize(("scheme", "number", "how"), spoilt())
def test_a_spoilt_collective_is_found(scheme: str, number: int, how: str) -> None:
    """A collective removed, over another axis or onto another dim is an error where it matters."""
    lines = explicit_text(scheme).splitlines()
    line = lines[number]
    name = line.split("[")[0].strip()
    if how == "removed":
        lines[number] = ""
    elif how == "other axis":
        lines = [re.sub(r"^mesh .*", "mesh X, Y", text) for text in lines]
        swap = {"X": "Y", "Y": "X"}
        lines[number] = re.sub(
            r"(AllGather_|AllReduce_|ReduceScatter_\{)([XY])",
            lambda m: m[1] + swap[m[2]],
            line,
        )
    else:
        lines[number] = re.sub(
            r"(ReduceScatter_\{[XY],)(\w)", lambda m: m[1] + ("B" if "[B" in line else "F"), line
        )
    with pytest.raises(ShardlangError) as caught:
        lower(load_text("\n".join(lines) + "\n"))
    errors = [d for d in caught.value.diagnostics if d.severity == "error"]
    places = {d.line - 1 for d in errors} | {
        d.source.position(label.span.start)[0] - 1 for d in errors for label in d.labels
    }
    if how == "removed":
        touched = {
            i for i, text in enumerate(lines) if re.search(rf"(?<!\w){re.escape(name)}\[", text)
        }
        assert len(errors) == 1
        assert places & touched
        assert {d.line - 1 for d in errors} <= touched
    else:
        assert {number} == {d.line - 1 for d in errors}


@pytest.mark.parametrize(("scheme", "number"), sorted({row[:2] for row in spoilt()}))
def test_a_doubled_collective_gets_a_warning(scheme: str, number: int) -> None:
    """The same collective twice in a pass is legal and useless: a warning at the second."""
    lines = explicit_text(scheme).splitlines()
    lines.insert(number, lines[number])
    found = check(load_text("\n".join(lines) + "\n"))

    assert [("warning", number + 2)] == [(d.severity, d.line) for d in found]


def test_a_weight_gathered_in_the_forward_pass_is_dropped() -> None:
    """FSDP frees its gathered weights, so the backward pass has to gather them again."""
    text = explicit_text("fsdp").replace("  W_in[D, F] = AllGather_X(W_in[D_X, F])\n  dIn", "  dIn")
    with pytest.raises(ShardlangError) as caught:
        lower(load_text(text))
    (diagnostic,) = caught.value.diagnostics

    assert "dropped" in diagnostic.message
    assert "W_in[D, F] = AllGather_X(W_in[D_X, F])" in (diagnostic.hint or "")
    assert "save all, W_in" in (diagnostic.hint or "")
    kept = lower(load_text(text), keep_gathered=True)
    assert {"W_in"} == kept.program.save.names
    assert str(kept) == str(lower(load_text(f"save all, W_in\n{text}")))
    with pytest.raises(ShardlangError):
        lower(load_text(f"save all, W_in\n{text}"), keep_gathered=False)


def test_a_product_of_unlike_shards_names_both() -> None:
    """A local product needs the contracted dim split alike."""
    with pytest.raises(ShardlangError) as caught:
        lower(load_text("mesh X\nforward:\n  C[I, K] = A[I, J_X] ·_J B[J, K]\n"))
    (diagnostic,) = caught.value.diagnostics

    assert "J_X" in diagnostic.message
    assert diagnostic.line == 3


def test_a_result_in_another_layout_says_what_is_missing() -> None:
    """The hint is the line to add."""
    with pytest.raises(ShardlangError) as caught:
        lower(load_text("mesh X\nforward:\n  C[I, K] = A[I, J_X] ·_J B[J_X, K]\n"))
    (diagnostic,) = caught.value.diagnostics

    assert "C[I, K]{U_X}" in diagnostic.message
    assert "AllReduce_X(C[I, K]{U_X})" in (diagnostic.hint or "")


def test_an_unused_collective_gets_a_warning() -> None:
    """A gather that nothing reads is dead."""
    text = "mesh X\nforward:\n  A[I, J] = AllGather_X(A[I, J_X])\n  C[I, J_X] = exp(A[I, J_X])\n"
    found = check(load_text(text))

    assert [("warning", 3)] == [(d.severity, d.line) for d in found]


def test_steps_are_the_lines() -> None:
    """An explicit program gives one step a line, in order."""
    plan = lower(load_text(explicit_text("tp")))

    assert [line for line, _ in written(explicit_text("tp"))] == [
        statement(step) for step in (*plan.forward, *plan.backward)
    ]
    assert all(isinstance(step, Step) for step in plan.forward)


SMALL = """mesh X=4
forward:
  C[I, K]{U_X} = A[I, J_X] ·_J B[J_X, K]
  C[I, K] = AllReduce_X(C[I, K]{U_X})
backward:
  dB[J_X, K] = A[I, J_X] ·_I dC[I, K]
  dA[I, J_X] = dC[I, K] ·_K B[J_X, K]
"""


@pytest.mark.parametrize(
    ("old", "new", "near"), [("·_K B", "·_K Bzz", None), ("dC[I, K] ·_K", "dCz[I, K] ·_K", "dC")]
)
def test_a_name_that_the_forward_pass_lacks_is_an_error(
    old: str, new: str, near: str | None
) -> None:
    """What `backward:` is the first to read is no leaf but a misspelt name."""
    (found,) = check(load_text(SMALL.replace(old, new)))

    assert (found.severity, found.line) == ("error", 7)
    assert near is None or near in (found.hint or "")


def test_a_parameter_without_a_gradient_gets_a_warning() -> None:
    """A backward pass may leave out the gradient of an input, hardly that of a weight."""
    lines = [line for line in explicit_text("fsdp").splitlines() if "dW_in" not in line]
    found = check(load_text("\n".join(lines) + "\n"))

    assert [("warning", "SH453")] == [(d.severity, d.code) for d in found]


def test_a_misspelt_result_gets_a_warning() -> None:
    """Its name is an output then, and the backward pass knows nothing of it."""
    text = explicit_text("tp").replace("  Tmp[B, F_Y] =", "  Tmpzz[B, F_Y] =")
    found = check(load_text(text))

    assert ["SH454"] == [d.code for d in found]


def test_a_metric_without_a_gradient_gets_no_warning() -> None:
    """What is made of a comparison has no cotangent: a share of correct answers is no misspelt name."""
    text = """mesh X=2
input x: [B_X, D]
param W: [D, F]
y[B_X, F] = x ·_D W
loss = mean_{B,F}(square(y))
share = mean_{B,F}(y > 0)
"""
    printed = print_plan(lower(load_text(text)))

    assert "share[]" in printed
    assert [] == check(load_text(printed))


def test_a_view_has_a_line_for_each_layout() -> None:
    """One value under other dim names may be read in several layouts; the printed lines are legal."""
    text = """mesh X=2, Y=2
q[B_X, T, N_Y] = x[B_X, T, D_Y] ·_D W_q[D, N_Y]
k[B_X, S, N_Y] = x[B_X, S, D_Y] ·_D W_k[D, N_Y]
r[B_X, S, D_Y] = exp(x[B_X, S, D_Y])
p[B_X, T, S, N_Y] = q ⊙ k
"""
    plan = lower(load_text(text))
    check_numbers(plan)
    again = load_text(print_plan(plan))

    assert [] == check(again)
    assert shown(plan) == shown(lower(again))
