"""Parts of an expression whose line wants a partial sum: what is linear in them is not reduced first."""

from __future__ import annotations

import pytest
from simulator import check_numbers

import shardlang as sl
from shardlang.ir.plan import Plan

MESH = "mesh X=2, Y=2\ndims B=4, D=4, F=4, J=4, E=4, K=4\n"


def lowered(text: str) -> Plan:
    """Lower a program by the rules."""
    return sl.lower(sl.parse(MESH + text))


def moved(plan: Plan) -> list[tuple[str, str]]:
    """List the collectives of the forward pass: which, and what each makes."""
    return [
        (type(step.op).__name__, str(step.output)) for step in plan.forward if step.is_collective
    ]


GIVEN = """
input h: [B, E, F_Y], s: [B, J], c: int32[B, J], m: [B, D]
param W: [F_Y, D], V: [D, K], W2: [F_Y, D]
"""

LINEAR = {
    "product": "o[B, E, D]{U_Y} = (h ·_F W) ⊙ m",
    "product of products": "o[B, E, K]{U_Y} = (h ·_F W) ·_D V",
    "chain in one product": "o[B, E, K]{U_Y} = h · W · V",
    "sum": "o[B, E, D]{U_Y} = h ·_F W + h ·_F W2",
    "sum with a whole term": "o[B, E, D]{U_Y} = h ·_F W + 2 * m",
    "scaled": "o[B, E, D]{U_Y} = -3 * (h ·_F W) / |E|",
    "quotient": "o[B, E, D]{U_Y} = (h ·_F W) / exp(m)",
    "take": "o[B, J, D]{U_Y} = take_E(h ·_F W, c)",
    "take in a product": "o[B, D]{U_Y} = take_E(h ·_F W, c) ·_J s",
    "put": "o[B, K, D]{U_Y} = put_K(take_E(h ·_F W, c), c)",
    "sum over a dim": "o[B, D]{U_Y} = 2 * sum_E(h ·_F W)",
    "mean over a dim": "o[B, D]{U_Y} = m - mean_E(h ·_F W)",
    "sum of what is split": "o[B]{U_Y} = sum_E(sum_F(h) ⊙ sum_D(m))",
    "where": "o[B, E, D]{U_Y} = where(m <= 0, h ·_F W, 0)",
    "nested": "o[B, K]{U_Y} = sum_E(((h ·_F W) ⊙ m + m) ·_D V) / |E|",
    "named before": "t[B, E, D]{U_Y} = h ·_F W\no[B, D]{U_Y} = take_E(t, c) ·_J s",
}


@pytest.mark.parametrize("lines", LINEAR.values(), ids=LINEAR)
def test_a_linear_part_stays_a_partial_sum(lines: str) -> None:
    """The line communicates nothing; the numbers and the gradients are those of the program."""
    plan = lowered(GIVEN + lines)
    assert moved(plan) == []
    check_numbers(plan)


@pytest.mark.parametrize("lines", LINEAR.values(), ids=LINEAR)
def test_the_reduction_is_the_one_of_the_line_that_asks(lines: str) -> None:
    """What a later line asks for whole is reduced there, once."""
    dims = lines.rsplit("o[", maxsplit=1)[-1].split("]", maxsplit=1)[0]
    plan = lowered(f"{GIVEN}{lines}\nout[{dims}] = o")
    assert [("AllReduce", f"out[{dims}]")] == moved(plan)
    check_numbers(plan, seed=1)


NOT_LINEAR = {
    "function": ("o[B, E, D]{U_Y} = gelu(h ·_F W) ⊙ m", ["[B, E, D]"]),
    "function far down": ("o[B, D]{U_Y} = sum_E(m ⊙ gelu((h ·_F W) ⊙ m))", ["[B, E, D]"]),
    "denominator": ("o[B, E, D]{U_Y} = m / (h ·_F W)", ["[B, E, D]"]),
    "maximum": ("o[B, D]{U_Y} = 2 * max_E(h ·_F W)", ["[B, E, D]"]),
    "constant": ("o[B, E, D]{U_Y} = h ·_F W + 1", ["[B, E, D]"]),
    "where the other is not 0": ("o[B, E, D]{U_Y} = where(m <= 0, h ·_F W, 1)", ["[B, E, D]"]),
    "mask": ("o[B, E, D]{U_Y} = where((h ·_F W) <= 0, m, 0)", ["[B, E, D]"]),
    "one of two factors": ("o[B, E, D]{U_Y} = (h ·_F W) ⊙ (h ·_F W2)", ["[B, E, D]"]),
    "the smaller of two factors": (
        "o[B, E, D]{U_Y} = (h ·_F W) ⊙ sum_E(h ·_F W2)", ["[B, D]"],
    ),
    "softmax": ("o[B, E, D]{U_Y} = m ⊙ softmax_D(h ·_F W)", ["[B, E, D]"]),
}  # fmt: skip


@pytest.mark.parametrize(("lines", "whole"), NOT_LINEAR.values(), ids=NOT_LINEAR)
def test_what_is_not_linear_is_reduced_first(lines: str, whole: list[str]) -> None:
    """Each such part is reduced once, over its own dims; what is left unreduced is a linear part."""
    plan = lowered(GIVEN + lines)
    found = moved(plan)
    assert ["AllReduce"] * len(whole) == [kind for kind, _ in found]
    assert whole == [made[made.index("[") :] for _, made in found]
    check_numbers(plan)


def test_only_the_axes_that_are_wanted_stay() -> None:
    """Of partial sums over X and Y, of which the line wants Y, X is reduced within the line."""
    text = """
    input h: [B, F_XY], m: [B, D]
    param W: [F_XY, D]
    o[B, D]{U_Y} = gelu(m) ⊙ (h ·_F W)
    """
    plan = lowered(text)
    assert len(moved(plan)) == 1
    assert [("AllReduce", "Y")] == [
        (kind, made.split("{U_")[1].rstrip("}")) for kind, made in moved(plan)
    ]
    check_numbers(plan)


def test_a_line_that_wants_nothing_partial_reduces_its_parts() -> None:
    """A declared whole result, and a name without brackets, are as the rules of each operation say."""
    for target in ("o[B, E, D]", "o"):
        plan = lowered(f"{GIVEN}{target} = (h ·_F W) ⊙ m")
        assert len(moved(plan)) == 1
        check_numbers(plan)


def test_in_a_block_the_parts_of_a_layer_stay_too() -> None:
    """A block's lines are lines: one reduction a layer, of what the layers hand on."""
    text = """
    input x: [B, D]
    layers L=2:
      t[B, D]{U_Y} = (x ·_D V1[D, F_Y] ·_F V2[F_Y, D]) ⊙ x + x
      x = gelu(t)
    """
    plan = lowered(text)
    assert [kind for kind, _ in moved(plan)] == ["AllReduce"]


# --- Sums of partial parts: added, and reduced once

TERMS = """
input a: [B, D_Y], c: [B, J_Y], e: [B, E_X], m: [B, F], v: [J_Y]
param W1: [D_Y, F], W2: [J_Y, F], W3: [E_X, F]
"""

ONCE = {
    "two": ("o[B, F] = a ·_D W1 + c ·_J W2", "AllReduce", "o[B, F]"),
    "scattered": ("o[B, F_Y] = a ·_D W1 + c ·_J W2", "ReduceScatter", "o[B, F_Y]"),
    "the other dim": ("o[B_Y, F] = a ·_D W1 + c ·_J W2", "ReduceScatter", "o[B_Y, F]"),
    "nothing said": ("o = a ·_D W1 + c ·_J W2", "AllReduce", "o[B, F]"),
    "differences and factors": (
        "o[B, F] = 3 * (a ·_D W1) - (c ·_J W2) / |J|",
        "AllReduce",
        "o[B, F]",
    ),
    "three": ("o[B, F] = a ·_D W1 + c ·_J W2 - a ·_D W1", "AllReduce", "o[B, F]"),
    "a smaller one": ("o[B, F] = a ·_D W1 + c ·_J v", "AllReduce", "o[B, F]"),
    "in a function": ("o[B, F] = gelu(a ·_D W1 + c ·_J W2)", "AllReduce", "Tmp3[B, F]"),
    "in a function, scattered": (
        "o[B, F_Y] = gelu(a ·_D W1 + c ·_J W2)",
        "ReduceScatter",
        "Tmp3[B, F_Y]",
    ),
    "in a product": ("o[B, F] = m ⊙ (a ·_D W1 + c ·_J W2)", "AllReduce", "Tmp3[B, F]"),
    "sum of sums": (
        "o[B, F] = -2 * (a ·_D W1 + c ·_J W2) + a ·_D W1",
        "AllReduce",
        "o[B, F]",
    ),
}


@pytest.mark.parametrize("save", ["", "save none\n"], ids=["kept", "made again"])
@pytest.mark.parametrize(("line", "which", "made"), ONCE.values(), ids=ONCE)
def test_terms_that_are_all_partial_are_reduced_as_one(
    line: str, which: str, made: str, save: str
) -> None:
    """There is one collective, of the sum; the numbers and the gradients are those of the program."""
    plan = lowered(save + TERMS + line)

    assert moved(plan) == [(which, made)]
    check_numbers(plan, seed=2)


APART = {
    "a whole term": (
        "o[B, F] = a ·_D W1 + m",
        ["Tmp[B, F]"],
    ),
    "over other axes": (
        "o[B, F] = a ·_D W1 + e ·_E W3",
        ["Tmp[B, F]", "Tmp2[B, F]"],
    ),
    "a constant": (
        "o[B, F] = a ·_D W1 + c ·_J W2 + 1",
        ["Tmp[B, F]", "Tmp2[B, F]"],
    ),
    "each smaller than the sum": (
        "o[B, F] = c ·_J v + sum_D(W1)",
        ["Tmp[B]", "Tmp2[F]"],
    ),
    "in functions of their own": (
        "o[B, F] = gelu(a ·_D W1) + gelu(c ·_J W2)",
        ["Tmp[B, F]", "Tmp3[B, F]"],
    ),
    "maxima": (
        "o[B] = max_D(a) + max_J(c)",
        ["Tmp[B]", "Tmp2[B]"],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("line", "made"), APART.values(), ids=APART)
def test_other_terms_are_reduced_each(line: str, made: list[str]) -> None:
    """A term alone, one over other axes, and what is smaller than the sum are reduced before it."""
    plan = lowered(TERMS + line)

    assert [output for _, output in moved(plan)] == made
    check_numbers(plan, seed=2)


def test_what_is_made_again_moves_as_it_did() -> None:
    """A term that the forward pass scatters is scattered again, not reduced and cut."""
    plan = lowered(
        "save none\ninput x: [B, K_Y], b: [B, D_Y]\nparam W: [K_Y, D]\n"
        "y[B, D]{U_Y} = 2 * (x ·_K W) + b\nz[B, D_Y] = square(y)\n"
    )
    again = [
        (type(step.op).__name__, str(step.output))
        for step in plan.backward
        if step.is_collective and not step.output.name.startswith("d")
    ]

    assert again == moved(plan) == [("ReduceScatter", "Tmp[B, D_Y]")]
    check_numbers(plan, seed=2)
