"""Ring attention: keys and values that go round, held against the plan that gathers them.

Values and gradients are checked by the simulator, which puts all keys together on each device, and by JAX.
"""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from simulator import check_numbers, Simulator

import shardlang as sl
from shardlang.cli.main import main
from shardlang.diagnostics import ShardlangError
from shardlang.ir.ops import AllGather, ReduceScatter, RingAttention
from shardlang.ir.plan import Plan, Step
from shardlang.passes.ring_attention import with_ring_attention
from shardlang.passes.unroll import unroll_plan

HEAD = "mesh X, Y\ninput q: [B, T_X, K_Y, G, H], k: [B, T_X, K_Y, H], v: [B, T_X, K_Y, H]\n"
PROGRAMS = {
    "full": HEAD + "p = softmax_S(q ·_H k[B, S, K, H])\no[B, T_X, K_Y, G, H] = p ·_S v[B, S, K, H]",
    "causal": (
        HEAD + "s = q ·_H k[B, S, K, H] / 2\np = softmax_S(where(index_S <= index_T, s, -inf))\n"
        "o[B, T_X, K_Y, G, H] = p ·_S v[B, S, K, H]"
    ),
    "scaled behind the mask": (
        HEAD + "s = where(index_T >= index_S, q ·_H k[B, S, K, H], -inf)\np = softmax_S(s / |K|)\n"
        "o[B, T_X, K_Y, G, H] = p ·_S v[B, S, K, H]"
    ),
    "a dim of its own": (
        "mesh X\ninput q: [T_X, H], k: [H, S_X], v: [S_X, H]\n"
        "p = softmax_S(0.5 * q ·_H k)\no[H, T_X] = v ·_S p"
    ),
    "two axes": (
        "mesh X, Y\ninput q: [T_XY, N, H], k: [T_XY, N, H], v: [T_XY, N, H]\n"
        "s = where(index_S <= index_T, q ·_H k[S, N, H], -inf)\n"
        "o[T_XY, N, H] = softmax_S(s) ·_S v[S, N, H]"
    ),
    "made from weights": (
        "mesh X\nparam W_q: [D, N, H], W_k: [D, N, H], W_v: [D, N, H], W_o: [N, H, D]\n"
        "input x: [T_X, D]\nq = x ·_D W_q\nk = x ·_D W_k\nv = x ·_D W_v\n"
        "s = where(index_S <= index_T, q ·_H k[S, N, H] / 3, -inf)\n"
        "o = softmax_S(s) ·_S v[S, N, H]\ny[T_X, D] = x + o ·_{N,H} W_o"
    ),
}  # fmt: skip


def attentions(plan: Plan) -> list[Step]:
    """List a plan's steps of ring attention."""
    return [step for _, step in plan.steps() if isinstance(step.op, RingAttention)]


def sizes_of(plan: Plan, size: int) -> dict[str, int]:
    """Give every axis a size, and every dim one that they divide; S and T are as long."""
    sizes = dict.fromkeys((info.axis.name for info in plan.program.mesh.axes), size)
    devices = size ** len(sizes)
    dims = {info.dim.name: 2 + i % 2 for i, info in enumerate(plan.program.dims)}
    return {**sizes, **dims, "K": 2 * size, "S": 2 * devices, "T": 2 * devices}


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("save", ["", "save none\n", "save o\n"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_values_and_gradients(name: str, save: str, size: int) -> None:
    """The same values and gradients as the unsharded program, with what is saved and what is made again."""
    if size == 4 and name == "two axes":
        size = 2
    head, rest = PROGRAMS[name].split("\n", 1)
    plan = sl.lower(sl.parse(f"{head}\n{save}{rest}"))
    made = with_ring_attention(plan)
    assert [step.op.back for step in attentions(made)].count(True) == 1
    assert not any(isinstance(s.op, AllGather | ReduceScatter) for _, s in made.steps())
    check_numbers(made, sizes=sizes_of(plan, size))


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_notation_says_all_of_it(name: str) -> None:
    """A plan with ring attention parses back to itself, formatted or not."""
    made = sl.ring_attention(sl.lower(sl.parse(PROGRAMS[name])))
    again = sl.lower(sl.parse(str(made)))
    assert str(again) == str(made)
    steps = [[(s.op, s.inputs, s.output, s.critical) for _, s in p.steps()] for p in (again, made)]
    assert steps[0] == steps[1]
    check_numbers_of_forward(again)


def check_numbers_of_forward(plan: Plan) -> None:
    """Run an explicit plan's steps: the program's lines are these, so that there is no other reference."""
    sizes = sizes_of(plan, 2)
    run = Simulator(plan, sizes)
    rng = np.random.default_rng(1)
    for leaf in plan.program.leaves:
        shape = [sizes[dim.name] for dim in leaf.array.tensor.dims]
        index = leaf.kind == "index"
        value = np.arange(*shape) if index else rng.normal(size=shape)
        run.values[leaf.array] = run.scatter(leaf.array, value, rng)
    for step in plan.forward:
        run.run(step)
    assert all(np.isfinite(run.collect(output)).all() for output in plan.outputs)


LAYERS = (
    "mesh X=2, Y=2\ndtype f32\ninput x: [B, T_X, D]\nlayers L:\n"
    "  q[B, T_X, K_Y, G, H] = x ·_D W_q[D, K_Y, G, H]\n"
    "  k[B, T_X, K_Y, H] = x ·_D W_k[D, K_Y, H]\n"
    "  v[B, T_X, K_Y, H] = x ·_D W_v[D, K_Y, H]\n"
    "  s = q ·_H k[B, S, K, H] / 2\n"
    "  p = softmax_S(where(index_S <= index_T, s, -inf))\n"
    "  o[B, T_X, K_Y, G, H] = p ·_S v[B, S, K, H]\n"
    "  x = x + o ·_{K,G,H} W_o[K_Y, G, H, D]\n"
)


@pytest.mark.parametrize("save", ["", "save none\n", "save o, q, k, v\n"])
def test_layers(save: str) -> None:
    """In layers it is one step a layer, and the logarithm of each is kept for the backward pass."""
    plan = sl.lower(sl.parse(LAYERS.replace("input", f"{save}input")))
    made = sl.ring_attention(plan)
    forward = [s for s in made.forward if isinstance(s.op, RingAttention)]
    again = [s for s in attentions(made) if not s.op.back and s not in forward]
    assert len(forward) == 1
    assert len(again) == (save == "save none\n")
    assert str(sl.lower(sl.parse(str(made)))) == str(made)
    sizes = {"X": 2, "Y": 2, "B": 2, "D": 3, "T": 4, "S": 4, "K": 2, "G": 2, "H": 2}
    check_numbers(unroll_plan(made, 3).plan, sizes=sizes)


def test_several_in_one_program() -> None:
    """Each attention with keys and values of its own is a ring; keys that two read are gathered."""
    first = PROGRAMS["causal"]
    second = "p2 = softmax_S(o ·_H k2[B, S, K, H])\no2[B, T_X, K_Y, G, H] = p2 ·_S v2[B, S, K, H]"
    inputs = "\ninput k2: [B, T_X, K_Y, H], v2: [B, T_X, K_Y, H]\n"
    made = sl.ring_attention(sl.lower(sl.parse(first + inputs + second)))
    assert [step.op.back for step in attentions(made)] == [False, False, True, True]
    check_numbers(made, sizes=sizes_of(made, 2))
    shared = second.replace("k2", "k").replace("v2", "v")
    plan = sl.lower(sl.parse(first + "\n" + shared))
    assert sl.ring_attention(plan) is plan


NONE = {
    "p is an output": PROGRAMS["full"] + "\nr[B, T_X, K_Y, G] = max_S(p)",
    "no gather": "mesh X\nq[B_X, T, H] ·_H k[B_X, S, H] -> s\nsoftmax_S(s) ·_S v[B_X, S, H] -> o[B_X, T, H]",
    "keys whole": HEAD.replace("k: [B, T_X", "k: [B, T") + PROGRAMS["full"][len(HEAD) :],
    "a window": (
        HEAD + "s = where(index_T - index_S < |B|, q ·_H k[B, S, K, H], -inf)\n"
        "o[B, T_X, K_Y, G, H] = softmax_S(s) ·_S v[B, S, K, H]"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NONE)
def test_what_stays_as_it_is(name: str) -> None:
    """Where something else reads the scores, or keys are not gathered, the plan is given back."""
    plan = sl.lower(sl.parse(NONE[name]))
    assert sl.ring_attention(plan) is plan


WRONG = {
    "RingAttention_{X,S,H}(q[T_X,H], k[S_X,H], v[S_X,H] -> l[T_X]) -> o[T_X, H]": "explicit programs",
    "forward:\n o[T_X,H] = RingAttention_{X,S,H}(q[T_X,H], k[S_X,H] -> l[T_X])": "takes 3 tensors",
    "forward:\n o[T_X,H] = RingAttention_{X,S,H}(q[T_X,H], k[S_X,H], v[S_X,H])": "keeps one tensor",
    "forward:\n o[T_X,H] = RingAttention_{X}(q[T_X,H], k[S_X,H], v[S_X,H] -> l[T_X])": "names its axes",
    "forward:\n o[T_X,H] = RingAttention_{X,S,H}(q[T_X,H], k[S_X,H], v[S_X,H] -> l[T])": "is kept as",
    "forward:\n o[T,H] = RingAttention_{X,S,H}(q[T,H], k[S,H], v[S_X,H] -> l[T])": "X",
    "forward:\n o[T_X,H] = RingAttention_{X,S,H}(q[T_X,H], k[S_X,H], v[S_X,H], q -> l[T_X])": (
        "comparison"
    ),
    "forward:\n o[T,H] = RingAttention_{X,S,H}(q[T,H_Y], k[S_X,H_Y], v[S_X,H_Y] -> l[T])": "whole",
    "forward:\n o[T_X,H] = AllGather_X(q[T_X,H] -> q[T,H], k[T,H])": "must be one tensor",
}  # fmt: skip


@pytest.mark.parametrize("text", WRONG)
def test_mistakes(text: str) -> None:
    """What is no ring attention says why."""
    with pytest.raises(ShardlangError) as caught:
        sl.lower(sl.parse(f"mesh X=2, Y=2\n{text}"))
    assert any(WRONG[text] in d.message for d in caught.value.diagnostics), caught.value.diagnostics


BIG = {"X": 8, "Y": 4, "B": 1, "T": 131072, "S": 131072, "K": 8, "G": 8, "H": 128}


def test_costs() -> None:
    """Bytes are those of the gathers, and backward those of k and v again; one product more backward.

    A shard of k: 2 * 16384 * 2 * 128 bytes = 8.4 MB; its gather 67.1 MB by the book. A product of scores:
    2 * 131072^2/8 * 2 * 8 * 128 = 8.8e12.
    """
    plan = sl.lower(sl.parse(PROGRAMS["full"]))
    plain, ring = (sl.cost(each, "tpu_v5p", sets=BIG) for each in (plan, sl.ring_attention(plan)))
    k, product = 2 * 131072 * 2 * 128, 2 * 131072**2 // 8 * 2 * 8 * 128
    got = [
        [report.quantity(key).number for report in (each.forward, each.backward)]
        for each in (plain, ring)
        for key in ("bytes", "flops")
    ]
    assert got[0] == [2 * k, 2 * k]
    assert got[1] == [2 * product, 4 * product]
    assert got[2] == [2 * k, 4 * k]
    assert got[3] == [2 * product, 5 * product]


def test_memory() -> None:
    """q, k, v, o and the logarithm are kept, and neither gathered arrays nor scores."""
    plan = sl.lower(sl.parse(PROGRAMS["full"]))
    memory = sl.cost(sl.ring_attention(plan), sets=BIG).memory
    k = 2 * 131072 * 2 * 128 // 8
    q = 8 * k
    assert memory.quantity("activations").number == 2 * q + 2 * k + 4 * 16384 * 2 * 8
    # k, v, dk and dv, each as it is read and as it arrives
    assert memory.quantity("gathered_peak").number == 8 * k


@pytest.mark.parametrize("n", [2, 3, 4, 8])
@pytest.mark.parametrize("t", [256, 2048, 65536])
def test_what_stays_exposed(n: int, t: int) -> None:
    """Going through the hops one by one comes to the formula, and so does the schedule, forward."""
    length = t * n
    text = (
        f"mesh X={n}\nhardware tpu_v5p\ndims T={length}, S={length}, N=16, H=128\n"
        "input q: [T_X, N, H], k: [T_X, N, H], v: [T_X, N, H]\n"
        "o[T_X, N, H] = softmax_S(q ·_H k[S, N, H]) ·_S v[S, N, H]"
    )
    plan = sl.ring_attention(sl.lower(sl.parse(text), forward_only=True))
    report = sl.cost(plan)
    math = Fraction(4 * t * length * 16 * 128, 459 * 10**12)
    comms = Fraction(2 * 2 * length * 16 * 128, 180 * 10**9)
    now = math / n
    for hop in range(1, n):
        now = max(now, comms / (n - 1) * hop) + math / n
    assert report.total.quantity("t_exposed").number == pytest.approx(float(now - math))
    assert report.schedule().seconds == pytest.approx(float(now))


def test_backward_waits_for_its_last_sums() -> None:
    """Products that take longer than hops hide all but the last hop of dk and dv."""
    plan = sl.ring_attention(sl.lower(sl.parse("hardware tpu_v5p\n" + PROGRAMS["full"])))
    report = sl.cost(plan, sets=BIG)
    last = 2 * (2 * 131072 * 2 * 128) / 180e9 / 7
    assert report.backward.quantity("t_exposed").number == pytest.approx(last)
    assert report.forward.quantity("t_exposed").number == pytest.approx(0, abs=1e-12)


def test_the_option(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--attention ring` prints and prices the plan, and says where there is nothing to do."""
    path = tmp_path / "a.shd"
    path.write_text(PROGRAMS["causal"], encoding="utf-8")
    assert main(["lower", "--attention", "ring", str(path)]) == 0
    assert "RingAttention_{X,S,H}(0.5 * q[B, T_X, K_Y, G, H]" in capsys.readouterr().out
    assert main(["cost", "--attention", "ring", str(path)]) == 0
    assert "RingAttention_X" in capsys.readouterr().out
    path.write_text("mesh X\nIn[B_X, D] ·_D W[D, F] -> Out[B_X, F]", encoding="utf-8")
    assert main(["lower", "--attention", "ring", str(path)]) == 0
    assert "no ring attention: no softmax has its keys" in capsys.readouterr().err


def test_what_stands_between_scores_and_softmax_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A soft cap keeps the ring away, also under a mask: the warning names it."""
    path = tmp_path / "a.shd"
    path.write_text(
        "mesh X\ninput q: [T_X, N, H], k: [T_X, N, H], v: [T_X, N, H]\n"
        "s = 50 * tanh((q ·_H k[S, N, H]) / 50)\n"
        "o[T_X, N, H] = softmax_S(where(index_S <= index_T, s, -inf)) ·_S v[S, N, H]",
        encoding="utf-8",
    )

    assert main(["lower", "--attention", "ring", str(path)]) == 0
    warned = capsys.readouterr().err
    assert "no ring attention: tanh stands between the scores and their softmax\n" in warned
