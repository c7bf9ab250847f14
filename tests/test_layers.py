"""Blocks: `layers L:` means its lines L times over, in plans, costs and numbers."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from layered import KINDS, program, SIZES
from simulator import check_numbers

import shardlang as sl
from shardlang.cost.report import MEMORY
from shardlang.diagnostics import ShardlangError
from shardlang.frontend.format import format_source
from shardlang.ir.printer import print_plan
from shardlang.passes import lower
from shardlang.passes.unroll import unroll, unroll_plan
from shardlang.source import Source

TOTALS = ("flops", "bytes", "t_math", "t_comms", "t_overlapped", "t_serial")
MESH = {"X": 2, "Y": 2}

MLP = """
mesh X=4, Y=2
dims B=8, D=16, F=32
input x: [B_X, D_Y]
layers L:
  h[B_X, F_Y] = gelu(x ·_D W_in[D_X, F_Y])
  x = x + h ·_F W_out[F_Y, D_X]
Out[B_X, E] = x ·_D W_end[D_X, E]
"""

WRITTEN = """
mesh X=4, Y=2
dims B=8, D=16, F=32
input x: [B_X, D_Y]
h1[B_X, F_Y] = gelu(x ·_D W_in1[D_X, F_Y])
y[B_X, D_Y] = x + h1 ·_F W_out1[F_Y, D_X]
h2[B_X, F_Y] = gelu(y ·_D W_in2[D_X, F_Y])
z[B_X, D_Y] = y + h2 ·_F W_out2[F_Y, D_X]
Out[B_X, E] = z ·_D W_end[D_X, E]
"""


def figures(report: sl.cost.Report) -> dict[tuple[str, str], object]:
    """Give every total and every part of the memory as a number."""
    found = {
        (name, key): totals.quantity(key).value
        for name, totals in report.totals.items()
        for key in TOTALS
    }
    return found | {("memory", key): report.memory.quantity(key).value for key in MEMORY}


def priced(plan, model: str = "book", **sets: int):
    """Give the figures of a plan on a chip."""
    return figures(sl.cost(plan, "tpu_v5p", model=model, sets={"T_hop": 1e-6, **sets}))


PEAK = ("memory", "peak")
"""The one figure that is not that of the layers written out: a stack is there as a whole."""


def mistakes(text: str) -> list[tuple[str, str]]:
    """List what is wrong: the codes, and the text at their places."""
    return [
        (each.mistake.code, text[each.span.start : each.span.end])
        for each in sl.check(text)
        if each.severity == "error"
    ]


# --- What a block means


@pytest.mark.parametrize("forward_only", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(4))
def test_costs_what_its_layers_cost_written_out(kind, seed, forward_only):
    """Known or symbolic, L layers cost what L copies do; of what all read, sums may be cheaper."""
    symbolic = lower(sl.parse(program(kind, seed)), forward_only=forward_only)
    for count in (1, 2, 3, 6):
        given = sl.parse(program(kind, seed, f"L={count}"))
        known = priced(lower(given, forward_only=forward_only), "link")
        plain = priced(lower(unroll(given, count), forward_only=forward_only), "link")
        same = priced(unroll_plan(lower(given, forward_only=forward_only), count).plan, "link")

        # stacks are whole while their loop runs, where single arrays come and go
        assert same[PEAK] <= known[PEAK]
        assert {**same, PEAK: known[PEAK]} == known
        if kind == "shared":
            assert all(known[key] <= plain[key] for key in plain if key[0] != "memory")
            assert plain["total", "flops"] == known["total", "flops"]
        else:
            assert {**plain, PEAK: known[PEAK]} == known
        if count >= 4:
            assert known == priced(symbolic, "link", L=count)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_symbolic_layers_take_at_least_what_few_take(kind, seed):
    """For fewer than four layers the symbolic formulas may only be too large, in the peaks alone."""
    symbolic = lower(sl.parse(program(kind, seed)))
    for count in (1, 2, 3):
        known = priced(lower(sl.parse(program(kind, seed, f"L={count}"))))
        found = priced(symbolic, L=count)
        peaks = {("memory", key) for key in ("gathered_peak", "total", "peak")}

        assert {k: v for k, v in known.items() if k not in peaks} == {
            k: v for k, v in found.items() if k not in peaks
        }
        assert all(found[key] >= known[key] for key in peaks)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_values_and_gradients_are_those_of_the_program_written_out(kind, seed):
    """Lowered blocks, run in numpy layer by layer, agree with the program and central differences."""
    plan = lower(sl.parse(program(kind, seed)))

    check_numbers(unroll_plan(plan, 2).plan, seed, {**SIZES, **MESH})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(4))
def test_lowered_blocks_read_back_as_they_are(kind, seed):
    """Lowering is idempotent with blocks, costs the same, and what `fmt` writes means the same."""
    text = program(kind, seed)
    printed = print_plan(lower(sl.parse(text)))
    again = lower(sl.parse(printed))
    tidy = format_source(Source("a.shd", text))

    assert printed == print_plan(again)
    assert priced(lower(sl.parse(text)), L=5) == priced(again, L=5)
    assert tidy == format_source(Source("a.shd", tidy))
    assert printed == print_plan(lower(sl.parse(tidy)))
    assert not [d for d in sl.check(printed, explicit=True) if d.severity == "error"]


def test_costs_what_a_person_writes_out():
    """Two layers cost what the same lines cost that somebody wrote one after the other."""
    block = priced(sl.lower(sl.parse(MLP.replace("L:", "L=2:"))), E=4)
    written = priced(sl.lower(sl.parse(WRITTEN)), E=4)

    assert block[PEAK] > written[PEAK]
    assert block == {**written, PEAK: block[PEAK]}


def test_ten_layers_are_ten_times_one():
    """FLOPs, bytes, seconds and weights of 10 layers of a block alone: jax-ml/jax#18672 had one."""
    text = (
        "mesh X=4\ndims B=64, D=32, F=32\ninput h: [B_X, D]\n"
        "layers L:\n  h = h ·_D W_a[D_X, F] ·_F W_b[F_X, D]\n"
    )
    plan = sl.lower(sl.parse(text))
    one, ten = (priced(plan, L=count) for count in (1, 10))
    keys = [("total", key) for key in TOTALS] + [("memory", "parameters"), ("memory", "gradients")]

    # Forward 2 products of 2·B·D·D/4, backward twice that: 12·64·32·32/4 a layer.
    assert 10 * 196_608 == ten["total", "flops"]
    assert [10 * one[key] for key in keys] == [ten[key] for key in keys]


def test_two_blocks_of_literal_sizes():
    """Dense layers and then others: each block counts its own layers."""
    text = (
        "mesh X=2\ndims B=4, D=8, E=8, F=16\ninput x: [B_X, D]\n"
        "layers 3:\n  x = x + x ·_D W_a[D, E] ·_E W_b[E, D]\n"
        "layers 58:\n  x = x + gelu(x ·_D W_c[D, F]) ·_F W_d[F, D]\n"
    )
    found = priced(sl.lower(sl.parse(text)))

    # 6 FLOPs a parameter and row: 2 rows a device.
    assert 6 * 2 * (3 * 2 * 64 + 58 * 2 * 128) == found["total", "flops"]
    assert 2 * (3 * 2 * 64 + 58 * 2 * 128) == found["memory", "parameters"]


def test_gradients_of_what_all_layers_read_are_reduced_once():
    """The gradient of a shared input is added up partial, and its one AllReduce is not in the block."""
    text = (
        "mesh X=2\ninput c: [D, E], x: [B_X, D]\nlayers L:\n  x = x + tanh(x ·_D c) ·_E W[E, D]\n"
    )
    plan = sl.lower(sl.parse(text))
    (reduced,) = [s for s in plan.backward if s.is_collective and s.output.name == "dc"]
    (added,) = [s for s in plan.backward if s.accumulates]

    assert reduced.loop is None
    assert "dc_L[D, E]{U_X}" == str(added.output)


def test_steps_say_which_loop_they_are_in():
    """A step of the body knows its dim and how often it is done; others are done once."""
    plan = sl.lower(sl.parse(MLP))

    assert {"L", None} == {s.loop and s.loop.dim.name for s in plan.forward}
    assert "L" == str(next(s.times for s in plan.forward if s.loop))
    assert "1" == str(plan.forward[-1].times)


def test_a_compiled_report_takes_the_layers():
    """The number of layers may be an array, also where the program says a small one."""
    text = MLP.replace("L:", "L=2:")
    report = sl.cost(sl.lower(sl.parse(text)), "tpu_v5p", sets={"E": 4})
    found = report.compile(["L"], outputs=["flops", "memory"])(np.array([4.0, 80.0]))
    plan = sl.lower(sl.parse(MLP))
    want = [priced(plan, L=count, E=4) for count in (4, 80)]

    assert [w["total", "flops"] for w in want] == list(found["flops"])
    assert [w["memory", "total"] for w in want] == list(found["memory"])


@pytest.mark.parametrize("count", [1, 3, 40, 3000])
def test_schedules_stay_between_their_bounds(count):
    """However many layers there are: not below T_overlapped, not above T_serial."""
    sets = {"L": count, "E": 4}
    report = sl.cost(sl.lower(sl.parse(MLP)), "tpu_v5p", sets=sets)
    seconds = report.schedule().seconds
    total = report.total

    assert float(total.quantity("t_overlapped").value) * (1 - 1e-9) <= seconds
    assert seconds <= float(total.quantity("t_serial").value) * (1 + 1e-9)


# --- What is said of it


def test_rows_of_the_report_are_of_all_layers():
    """Rows add up to totals, and say which loop they are in."""
    report = sl.cost(sl.lower(sl.parse(MLP)), sets={"L": 7, "E": 4})
    data = json.loads(json.dumps(report.to_dict()))

    rows = sum(row["bytes"]["value"] for row in data["collectives"])
    assert data["totals"]["total"]["bytes"]["value"] == rows
    assert {"L", None} == {row.get("loop") for row in data["collectives"]}
    assert "AllGather_X W_in × L" in report.to_text()


def test_lowered_text_has_blocks_in_both_passes(shardlang):
    """The heads say what each layer hands to the next one, forward and back."""
    out = shardlang("lower", "-e", MLP).out

    assert "  layers L, x2 -> x:\n    " in out
    assert "  layers L, dx -> dx2:\n    " in out


def test_optimal_falls_back_to_the_rules(shardlang):
    """Blocks of an open number of layers aren't searched: the plan is the book's, with a warning."""
    result = shardlang("lower", "--strategy", "optimal", "-e", MLP)

    assert result.status == 0
    assert "planned by the rules of `book`, without a search: E, L have no size" in result.err
    assert shardlang("lower", "-e", MLP).out == result.out


def test_a_block_is_emitted_as_a_scan(shardlang):
    """The module has a function of one layer for each pass, and one scan of it, from the end in backward."""
    result = shardlang("emit-jax", "-e", MLP, "--set", "L=80")

    assert result.status == 0
    assert ["_layer_1", "_layer_1_backward"] == re.findall(
        r"^def (_layer\w+)", result.out, re.MULTILINE
    )
    assert 2 == len(re.findall(r"lax\.scan\(\s*_layer_1", result.out))
    assert 1 == result.out.count("reverse=True")
    assert '"W_in": ((80, 16, 32), "bfloat16", P(None, "X", "Y"))' in result.out


@pytest.mark.jax
@pytest.mark.slow
def test_verify_runs_the_layers_as_they_are(shardlang):
    """Values and gradients agree with a scan of the reference, and collectives are counted per layer."""
    one, five = (shardlang("verify", "-e", MLP, "--set", f"L={n}") for n in (1, 5))

    assert (0, 0) == (one.status, five.status), five.out + five.err
    counted = [
        [int(n) for n in re.findall(r"forward_backward \(f32\): (\d+) in the plan", result.out)]
        for result in (one, five)
    ]
    plan = sl.lower(sl.parse(MLP))
    inside = sum(s.is_collective and s.loop is not None for _, s in plan.steps())
    outside = sum(s.is_collective and s.loop is None for _, s in plan.steps())
    assert [[inside + outside], [5 * inside + outside]] == counted


# --- What can be wrong

HEAD = "input x: [B_X, D]\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("layers L:\n  h = gelu(x)\n  x = x + h\ny = h", ("SH261", "h")),
        ("layers L:\n  x = gelu(A[B_X, D])\n", ("SH262", "x")),
        ("layers L:\n  x[B_X, F] = x ·_D W[D, F]\n", ("SH263", "x[B_X, F]")),
        ("layers L:\n  x = x ⊙ W[D]\nlayers M:\n  x = x ⊙ W[D]\n", ("SH264", "W[D]")),
        ("param W: [L, D]\nlayers L:\n  x = x ⊙ W\ny = x ⊙ W\n", ("SH264", "W")),
        ("param W: [L_Y, D]\nlayers L:\n  x = x ⊙ W\n", ("SH265", "L_Y")),
        ("layers L:\n  x = x ⊙ A[B_X, D]\n  h[L, B_X] = sum_D(x)\n", ("SH266", "h[L, B_X] = sum_D(x)")),
        ("layers L:\n  x = x ⊙ x\n  s = sum_L(x)\n", ("SH268", "sum_L(x)")),
        ("layers L:\n  x[B, D_X] = x ⊙ x\n", ("SH311", "x[B, D_X] = x ⊙ x")),
        ("layers L:\n  h = gelu(x)\n  h = gelu(h)\n  x = x + h\n", ("SH208", "h")),
        ("layers L:\ny = x ⊙ x\n", ("SH119", "layers L:")),
        ("layers L:\n  h = gelu(x)\n    x = x + h\n", ("SH120", "x = x + h")),
        ("layers L:\n  layers M:\n    x = x ⊙ x\n", ("SH121", "layers M:")),
        ("layers L:\n  param W: [D]\n  x = x ⊙ W\n", ("SH122", "param W: [D]")),
        ("layers 0:\n  x = x ⊙ x\n", ("SH116", "0")),
        ("layers L=0:\n  x = x ⊙ x\n", ("SH212", "L=0")),
        ("layers L: x = x ⊙ x\n", ("SH101", "x")),
        ("layers X:\n  x = x ⊙ x\n", ("SH204", "X")),
    ],
)  # fmt: skip
def test_mistakes_have_a_code_and_a_place(text, expected):
    """The first mistake is the one, at its place, and its hint says what to do."""
    assert expected == mistakes(HEAD + text)[0]
    errors = [each.mistake for each in sl.check(HEAD + text) if each.severity == "error"]
    assert all(mistake.hint() for mistake in errors if mistake.code > "SH117")


@pytest.mark.parametrize(
    ("text", "written"),
    [
        (
            "param g: [D]\nlayers L:\n  x = x ⊙ g\nlayers M:\n  x = x ⊙ g\n",
            "param g: [L, D], g2: [M, D]\nlayers L:\n  x = x ⊙ g\nlayers M:\n  x = x ⊙ g2\n",
        ),
        (
            "param g: [D]\nlayers L:\n  x = x ⊙ g\nlayers M:\n  x = x ⊙ g\n",
            "param g: [D]\ng_all = g[D]\nlayers L:\n  x = x ⊙ g_all\nlayers M:\n  x = x ⊙ g_all\n",
        ),
        (
            "param g: [L, D_X]\nlayers L:\n  x = x ⊙ g\ny = x ⊙ g\n",
            "param g: [D_X]\nlayers L:\n  x = x ⊙ g\ny = x ⊙ g\n",
        ),
        (
            "param g: [L, D_X]\nlayers L:\n  x = x ⊙ g\ny = x ⊙ g\n",
            "param g: [L, D_X], g2: [D_X]\nlayers L:\n  x = x ⊙ g\ny = x ⊙ g2\n",
        ),
    ],
)
def test_what_the_hint_of_a_parameter_in_two_places_says_can_be_written(text, written):
    """Each declaration and line that the hint shows stands in the program that has no mistake."""
    head = "mesh X=2\ninput x: [B, D]\n"
    (mistake,) = sl.check(head + text)
    assert mistake.code == "SH264"
    shown = re.findall("`([^`]*)`", mistake.mistake.hint())
    assert any(line in written.split("\n") for line in shown)
    assert sl.check(head + written) == []


@pytest.mark.parametrize(
    ("text", "settled"),
    [
        (
            "layers L:\n  x = x + x ·_D W ·_F V + x ·_D W ·_F W_x[F, D_X]\n",
            "param W_x: [L, F, D_X]",
        ),
        (
            "layers L:\n  x = x + x ·_D W ·_F V + x ·_D W ·_F W_x[F, D_X]\n",
            "input W_x: [F, D_X]",
        ),
        (
            "layers L:\n  x = x + x ·_D W ·_F V\ny[B_X, E] = x ·_D W_x[D_X, E]\n",
            "param W_x: [D_X, E]",
        ),
    ],
)
def test_an_input_with_the_name_of_a_weight_is_warned_of(text, settled):
    """The warning says in a block that all layers share it; the declarations that it shows settle it."""
    head = "mesh X=2\ninput x: [B_X, D]\nparam W: [D, F], V: [F, D]\n"
    (warning,) = sl.check(head + text)
    assert ("SH245", "warning", "W_x") == (warning.code, warning.severity, warning.mistake.names[0])
    assert ("all layers of `layers L:`" in warning.message) == ("W_x[F, D_X]" in text)
    assert f"`{settled}`" in warning.mistake.hint()
    assert sl.check(f"{head}{settled}\n{text}") == []
    report = sl.cost(sl.lower(sl.parse(head + text)))
    assert any(each.startswith(warning.message) for each in report.warnings)


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ("x2 -> x:", "x3 -> x:", "SH267"),
        ("x2 -> x:", "x2 -> y:", "SH267"),
        ("x2[B_X] = x[B_X] ⊙", "g[B] = AllGather_X(x[B_X])\n    x2[B] = g[B] ⊙ g[B]  //", "SH313"),
        ("y[B_X] = x2[B_X]", "y[B_X] = h[B_X] ⊙ x2[B_X]", "SH261"),
        ("y[B_X] = x2[B_X]", "y[B_X] = x[B_X] ⊙ x2[B_X]", "SH270"),
        ("  y[B_X]", "  layers M, x3 -> x:\n    x3[B_X] = tanh(x[B_X])\n  y[B_X]", "SH270"),
        ("    x2[B_X] = x[B_X]", "    x[B_X] = gelu(x[B_X])\n    x2[B_X] = x[B_X]", "SH269"),
    ],
)
def test_explicit_blocks_are_checked(old, new, code):
    """What the head names has to be there, in the layout in which the next layer finds it."""
    text = (
        "mesh X=2\nforward:\n  x[B_X] = tanh(A[B_X])\n  layers L, x2 -> x:\n"
        "    h[B_X] = gelu(x[B_X])\n    x2[B_X] = x[B_X] ⊙ h[B_X]\n  y[B_X] = x2[B_X] + x2[B_X]\n"
    )
    good, bad = text, text.replace(old, new)

    assert [] == mistakes(good)
    assert code in [found for found, _ in mistakes(bad)]


def test_integers_are_handed_on_without_gradients():
    """A counter goes through the layers beside the values; nothing is handed back for it."""
    text = "input n: int32[B], x: [B, D]\nlayers L:\n  n = n + n\n  x = x ⊙ x\n"
    plan = sl.lower(sl.parse(text))

    assert [["n2", "x2"], ["dx"]] == [
        [carry.exit.name for carry in steps[0].loop.carries]
        for steps in (plan.forward, plan.backward)
    ]


def test_names_such_as_layers_stay_names():
    """A tensor may be called layers."""
    program_ = sl.parse("layers[B, D] ·_D W[D, F] -> Out[B, F]")

    assert ["layers", "W"] == [leaf.array.name for leaf in program_.leaves]


def test_unrolling_a_program_without_blocks_changes_nothing():
    """There is nothing to write out."""
    program_ = sl.parse("A[B, D] ·_D W[D, F] -> Out[B, F]")

    assert unroll(program_, 3) is program_


def test_plans_by_size_need_a_program_without_blocks():
    """The error says that a block is why."""
    with pytest.raises(ShardlangError) as caught:
        sl.plans(sl.parse(MLP))

    assert "SH351" == caught.value.diagnostics[0].mistake.code


def test_the_lint_counts_every_layer(shardlang, tmp_path):
    """A line of a block that moves too much does so in each layer, and `--fix` writes the better one."""
    path = tmp_path / "a.shd"
    path.write_text(
        "mesh X=4, Y=2\ndims B=8, D=16, F=32, L=5\nforward:\n  layers L:\n"
        "    h[B_X, F_Y] = x[B_X, D] ·_D W[D, F_Y]\n"
        "    y[B_X, D]{U_Y} = h[B_X, F_Y] ·_F V[F_Y, D]\n"
        "    y[B_X, D] = AllReduce_Y(y[B_X, D]{U_Y})\n"
        "    y[B_X, D_Y] = Slice_{Y,D}(y[B_X, D])\n"
        "    x2[B_X, D] = AllGather_Y(y[B_X, D_Y])\n",
        encoding="utf-8",
    )
    found = shardlang("check", "--explicit", path)
    shardlang("check", "--explicit", "--fix", path)

    # y is 2 rows of 16 bf16: 64 bytes sent for an AllReduce and 32 for the gather; 64 is enough.
    assert "a device would move 160 B less" in found.out
    assert "AllGather" not in path.read_text(encoding="utf-8")
    assert "  layers L:\n    h[" in path.read_text(encoding="utf-8")


# --- What was before a block, in the backward pass behind it

BEFORE_BLOCKS = {
    "cut for the layers": (
        (
            "mesh X=2\ndims B=8, T=4, L=3\ninput a: [B, T]\nparam W: [L, B_X, T]\n"
            "c[B, T] = exp(a)\nc[B_X, T] = c\nlayers L:\n  c = c + W\n"
        ),
        "da[B, T]",
    ),
    "moved for the layers": (
        (
            "mesh X=2\ndims B=8, T=4, D=4, L=3\ninput a: [B, T_X, D]\nparam W: [L, B_X, T]\n"
            "c[B_X, T] = max_D(a)\nlayers L:\n  c = c + W\n"
        ),
        "da[B, T_X, D]",
    ),
    "made again": (
        (
            "mesh X=2\ndims B=8, D=4, L=2\nsave none\ninput x: [B_X, D], a: [B_X, D]\n"
            "q = exp(a)\nlayers L:\n  x = x + q ⊙ x\n"
        ),
        "da[B_X, D]",
    ),
    "made again with what it is made from": (
        (
            "mesh X=2\ndims B=8, D=4, L=2\nsave h\ninput x: [B, D], a: [B_X, D]\nparam W: [L, D]\n"
            "q[B_X, D] = softmax_B(a)\nlayers L:\n  h = x ⊙ W\n  x = x + q ⊙ gelu(h)\n"
        ),
        "da[B_X, D]",
    ),
    "made again for two blocks": (
        (
            "mesh X=2\ndims B=8, D=4, L=2\nsave none\ninput x: [B_X, D], a: [B, D_X]\n"
            "q = a ⊙ a\nlayers L:\n  x = x + q ⊙ x\nlayers L:\n  x = x - q ⊙ x\ny = x + q\n"
        ),
        "da[B, D_X]",
    ),
}


@pytest.mark.parametrize(("text", "last"), BEFORE_BLOCKS.values(), ids=BEFORE_BLOCKS)
@pytest.mark.parametrize("strategy", ["book", "optimal"])
def test_the_value_before_a_block_is_there_behind_it(text, last, strategy):
    """The backward pass reads it in the layouts that it had; it is made again once; all reads back."""
    plan = sl.lower(sl.parse(text), strategy)
    printed = re.sub("//.*\n", "\n", print_plan(plan)).lstrip()
    made = [str(step.output) for step in plan.backward if step.is_compute]

    assert printed == re.sub("//.*\n", "\n", print_plan(sl.lower(sl.parse(printed))))
    assert not [d for d in sl.check(printed, explicit=True) if d.severity == "error"]
    assert last in made
    assert len(set(made)) == len(made)
    check_numbers(unroll_plan(plan, {0: 2, 1: 2}).plan, 3)


HANDED_ON_ELSEWHERE = """
mesh X=2
dims B=8, T=4, L=3
input a: [B, T]
param W: [L, B_X, T]
forward:
  c[B, T] = exp(a[B, T])
  c[B_X, T] = Slice_{X,B}(c[B, T])
  layers L, c2 -> c:
    c2[B_X, T] = c[B_X, T] + W[B_X, T]
  c2[B, T] = AllGather_X(c2[B_X, T])
backward:
  layers L, dc -> dc2:
    dc2[B_X, T] = Slice_{X,B}(dc2[B, T])
    dc[B, T] = dc2[B, T]
    dW[B_X, T] = dc2[B_X, T]
  da[B, T] = dc[B, T] ⊙ c[B, T]
"""


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("", "", []),
        ("dW[B_X", "g[B, T] = exp(c[B, T])\n    dW[B_X", ["SH401"]),
        ("da[B, T] =", "g[B, T_X] = exp(c[B, T_X])\n  da[B, T] =", ["SH401"]),
    ],
)
def test_only_behind_a_block_is_its_entry_the_value_before(old, new, expected):
    """A layer has what it is handed, in the layout that it is handed; the lines outside have theirs."""
    text = HANDED_ON_ELSEWHERE.replace(old, new)

    assert expected == [code for code, _ in mistakes(text)]


def test_a_carry_in_another_layout_is_named_as_it_is_written():
    """Of two blocks that hand one value on, the second one's mistake names it as the text does."""
    text = (
        "mesh X=2\ninput x: [B_X, D]\nlayers L:\n  x = x + gelu(x)\n"
        "layers K:\n  x[B, D] = x + gelu(x)\n"
    )
    (found,) = sl.check(text)

    assert found.mistake.code == "SH311"
    assert found.message == "a layer begins with x[B_X, D] and hands x[B, D] to the next one"
    assert found.mistake.hint().startswith("write x[B_X, D] for the result")
