"""Ring attention: keys and values that go round, held against the plan that gathers them.

Values and gradients are checked by the simulator, which puts all keys together on each device, and by JAX.
"""

from __future__ import annotations

import pytest
from simulator import check_numbers

import shardlang as sl
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
    plan = sl.lower(sl.parse(save.join(PROGRAMS[name].split("\n", 1)[0:1]) + "\n" + save
                             + PROGRAMS[name].split("\n", 1)[1]))  # fmt: skip
    made = with_ring_attention(plan)
    assert [step.op.back for step in attentions(made)].count(True) == 1
    assert not any(isinstance(s.op, AllGather | ReduceScatter) for _, s in made.steps())
    check_numbers(made, sizes=sizes_of(plan, size))
