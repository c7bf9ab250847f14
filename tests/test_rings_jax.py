"""Rings in JAX: values, gradients and collectives of emitted modules, and what the modules look like."""

from __future__ import annotations

import ast
from math import prod

import pytest
from test_rings import disjoint, LAYERS, PROGRAMS

import shardlang as sl
from shardlang.ir.ops import Ring

SIZES = {
    "fsdp and tp": {"X": 2, "Y": 4},
    "two axes": {"X": 2, "Y": 4},
    "sequence": {"Y": 3},
    "dims in another order": {"X": 4},
    "several readers": {"X": 2, "Y": 4},
}


@pytest.mark.parametrize("name", SIZES)
def test_verified(name: str) -> None:
    """Checks values and gradients against JAX's own, and that each ring is n-1 permutes of a shard."""
    plan = disjoint(sl.lower(sl.parse(PROGRAMS[name])), last=name == "two axes")
    result = sl.verify(plan, sizes=SIZES[name])
    assert result.ok, result.to_text()
    permutes = sum(
        prod(SIZES[name][axis.name] for axis in step.op.axes) - 1
        for _, step in plan.steps()
        if isinstance(step.op, Ring)
    )
    whole = next(c for c in result.collectives if c.function == "forward_backward")
    plain = sum(step.is_collective and not isinstance(step.op, Ring) for _, step in plan.steps())
    assert whole.lowered == permutes + plain


def test_mixed_dtypes() -> None:
    """A weight in int8 goes round as int8: its bytes are what is sent."""
    text = "mesh X=4\nparam W: int8[D_X, F]\nIn[B_X, D] ·_D W -> Out[B_X, F]"
    plan = disjoint(sl.lower(sl.parse(text), forward_only=True))
    result = sl.verify(plan)
    assert result.ok, result.to_text()


def test_the_text_has_no_gathers_left() -> None:
    """The module is readable: the notation of each ring above one call."""
    plan = disjoint(sl.lower(sl.parse(PROGRAMS["one axis"]), forward_only=True))
    text = sl.emit_jax(plan, {"Y": 4, "B": 8, "D": 8, "F": 8})
    ast.parse(text)
    assert "all_gather" not in text
    assert "psum_scatter" not in text
    assert "# Tmp[B, F_Y] = RingGather_Y(In[B, D_Y]) ·_D W_in[D, F_Y]" in text


@pytest.mark.parametrize("everything", [False, True])
def test_layers_that_prefetch(everything: bool) -> None:
    """Scans that gather one layer ahead, with rings in them or not, give the same values and gradients."""
    plan = sl.overlap(sl.lower(sl.parse(LAYERS)), always=everything)
    result = sl.verify(plan, sizes={"L": 3})
    assert result.ok, result.to_text()
    text = sl.emit_jax(plan, {"L": 3, "B": 4, "D": 4, "F": 4})
    assert text.count("lax.scan(") >= 2
    assert "_next(_ahead_1, " in text
    assert ("_ring_gather" in text) == everything


def test_a_kept_copy_that_was_made_ahead() -> None:
    """W_in's gathered copy is what the forward pass leaves to the backward pass."""
    text = "save all, W_in\nprefetch W_in, W_out\n" + LAYERS
    result = sl.verify(sl.lower(sl.parse(text)), sizes={"L": 3})
    assert result.ok, result.to_text()


@pytest.mark.parametrize("axes", ["YZ", "ZY"])
@pytest.mark.parametrize(
    "line",
    [
        "r[B, F] = RingGather_{axes}(a[B, D_{axes}]) ·_D b[D, F]",
        "r[D_{axes}, F] = RingScatter_{{{axes},D}}(a[B_{axes}, D] ·_B b[B_{axes}, F])",
    ],
)
def test_axes_in_another_order_than_the_mesh(axes: str, line: str) -> None:
    """A ring goes through devices as its axes are written, whichever way the mesh numbers them."""
    text = "mesh Y=2, Z=3\ndims B=6, D=6, F=2\ndtype f32\nforward:\n  " + line.format(axes=axes)
    result = sl.verify(sl.lower(sl.parse(text)))

    assert result.ok, result.to_text()
