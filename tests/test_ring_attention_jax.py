"""Ring attention in JAX: values, gradients and permutes of emitted modules."""

from __future__ import annotations

import ast

import pytest
from test_ring_attention import LAYERS, PROGRAMS

import shardlang as sl
from shardlang.ir.ops import RingAttention

CASES = {
    "two ways round": ("causal", {"X": 2, "Y": 2, "T": 8, "S": 8}),
    "one position a device": ("causal", {"X": 3, "Y": 1, "T": 3, "S": 3}),
    "four": ("made from weights", {"X": 4, "T": 8, "S": 8}),
    "two axes": ("two axes", {"X": 2, "Y": 2, "T": 8, "S": 8}),
    "other orders": ("a dim of its own", {"X": 4, "T": 4, "S": 8}),
    "alone": ("causal", {"X": 1, "Y": 2, "T": 4, "S": 4}),
}


@pytest.mark.parametrize("name", CASES)
def test_verified(name: str) -> None:
    """Values and gradients are those of JAX's own, and the permutes are those of the plan."""
    program, sizes = CASES[name]
    head, rest = PROGRAMS[program].split("\n", 1)
    plan = sl.ring_attention(sl.lower(sl.parse(f"{head}\ndtype f32\n{rest}")))
    result = sl.verify(plan, sizes=sizes)
    assert result.ok, result.to_text()


@pytest.mark.parametrize("save", ["", "save none\n"])
def test_layers(save: str) -> None:
    """In a scan, with what is saved and what is made again; and as the explicit program that it prints."""
    plan = sl.ring_attention(sl.lower(sl.parse(LAYERS.replace("input", f"{save}input"))))
    again = sl.lower(sl.parse(str(plan)))
    result = sl.verify(again if save else plan, sizes={"L": 3, "T": 8, "S": 8})
    assert result.ok, result.to_text()


def test_bf16() -> None:
    """In bf16 with the logarithm in f32, and the same plan again in f32."""
    head = "mesh X\ninput q: [T_X, N, H], k: [T_X, N, H], v: [T_X, N, H]\n"
    text = head + "o[T_X, N, H] = softmax_S(q ·_H k[S, N, H]) ·_S v[S, N, H]"
    result = sl.verify(sl.ring_attention(sl.lower(sl.parse(text))), sizes={"X": 2, "T": 4, "S": 4})
    assert result.ok, result.to_text()


def test_a_position_that_sees_nothing() -> None:
    """The first position has no key before it: no NaN, and all keys alike as in the gathered plan."""
    text = PROGRAMS["two axes"].replace("<=", "<")
    plan = sl.ring_attention(sl.lower(sl.parse(f"dtype f32\n{text}"), forward_only=True))
    result = sl.verify(plan, sizes={"X": 2, "Y": 2, "T": 8, "S": 8})
    assert result.ok, result.to_text()


def test_the_text_has_no_gathers() -> None:
    """The module is readable: the notation above one call."""
    plan = sl.ring_attention(sl.lower(sl.parse(PROGRAMS["causal"])))
    sizes = {"X": 4, "Y": 2, "B": 2, "T": 8, "S": 8, "K": 2, "G": 2, "H": 4}
    text = sl.emit_jax(plan, sizes)
    ast.parse(text)
    assert "all_gather" not in text
    assert "psum_scatter" not in text
    assert "# o[B, T_X, K_Y, G, H] = RingAttention_{X,S,H}(0.5 *" in text
    assert "o, o_lse = _ring_attention(" in text
    assert "dq, dk_S, dv_S = _ring_attention_back(" in text


def test_axes_in_another_order_than_the_mesh() -> None:
    """Keys and values go through devices as T_YX says, though the mesh numbers them the other way."""
    text = PROGRAMS["two axes"].replace("mesh X, Y", "mesh X, Y\ndtype f32").replace("_XY", "_YX")
    plan = sl.ring_attention(sl.lower(sl.parse(text)))
    result = sl.verify(plan, sizes={"X": 2, "Y": 3, "T": 12, "S": 12})

    assert any(isinstance(step.op, RingAttention) for step in plan.forward)
    assert result.ok, result.to_text()
