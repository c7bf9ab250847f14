"""What needs a dim whole, and what is reshaped: rotary, top, rank, Reshape; in layouts and in numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from layouts import all_layouts, one_operation, samples
from simulator import check_numbers, compute

import shardlang as sl
from shardlang.diagnostics import ShardlangError
from shardlang.frontend.resolve import load_text
from shardlang.ir.ops import Compute, Rank, Reshape, Rotary, Top
from shardlang.ir.plan import Plan
from shardlang.ir.printer import statement
from shardlang.ir.types import Dim, Layout
from shardlang.passes import check, lower

B, H, R, N, K, G, E, J, S = map(Dim, "BHRNKGEJS")
SIZES = {"X": 2, "Y": 2, "B": 4, "H": 8, "R": 4, "E": 4, "J": 2, "S": 4}


def divided(dims: str, layout: Layout | None, sizes: dict[str, int]) -> bool:
    """Say whether the axes of a layout divide its dims."""
    return layout is None or all(
        sizes[dim] % math.prod(sizes[axis.name] for axis in axes) == 0
        for dim, axes in zip(dims, layout.sharding, strict=True)
    )


def pool(dims: str, sizes: dict[str, int]) -> list[Layout | None]:
    """List the layouts of a tensor over X and Y that its sizes allow."""
    return [x for x in all_layouts(len(dims), "XY") if divided(dims, x, sizes)]


def lowered(text: str) -> list[str]:
    """Lower a text, and give the forward pass as lines."""
    return [statement(step) for step in lower(load_text(text), forward_only=True).forward]


def moves(plan: Plan) -> list[str]:
    """List the collectives of both passes."""
    return [statement(step) for _, step in plan.steps() if step.is_collective]


@pytest.mark.parametrize("back", [False, True])
def test_rotary_is_right_in_numbers(back: bool) -> None:
    """Whatever the layouts of x, of the angles and of the result, and with gradients."""
    op = Rotary(H, R, back)
    pools = [pool("BH", SIZES), pool("RB", SIZES), [*pool("BH", SIZES), None]]
    for x, angle, target in samples(*pools, count=250, seed=1):
        assert x is not None
        assert angle is not None
        program = one_operation(op, [("BH", x), ("RB", angle)], "BH", target, "XY", SIZES)
        plan = lower(program, forward_only=True)
        check_numbers(plan, sizes=SIZES)
        if not angle.unreduced:
            backward_of_first(program, SIZES)


def backward_of_first(program, sizes: dict[str, int]) -> None:
    """Check the gradients of all leaves but the last, which is taken as a cache."""
    from dataclasses import replace

    *rest, last = program.leaves
    check_numbers(lower(replace(program, leaves=(*rest, replace(last, kind="cache")))), sizes=sizes)


RESHAPES = {
    "K is large": {"N": 32, "K": 8, "G": 4},
    "K is one axis": {"N": 8, "K": 2, "G": 4},
    "K is both axes": {"N": 16, "K": 4, "G": 4},
    "K is odd": {"N": 12, "K": 3, "G": 4},
    "K is 1": {"N": 4, "K": 1, "G": 4},
    "G is 1": {"N": 4, "K": 4, "G": 1},
}


@pytest.mark.parametrize("name", RESHAPES)
@pytest.mark.parametrize("split", [True, False])
def test_reshape_is_right_in_numbers(name: str, split: bool) -> None:
    """Every layout of the operand and many of the result, both directions, with gradients."""
    sizes = {**SIZES, **RESHAPES[name]}
    op = Reshape((N,), (K, G)) if split else Reshape((K, G), (N,))
    before, after = ("BN", "GBK") if split else ("GBK", "BN")
    pools = [pool(before, sizes), [*pool(after, sizes), None]]
    for x, target in samples(*pools, count=220, seed=2):
        assert x is not None
        program = one_operation(op, [(before, x)], after, target, "XY", sizes)
        check_numbers(lower(program), sizes=sizes)


@pytest.mark.parametrize("op", [Top(E, J), Rank((E, B)), Rank((B, E)), Rank((B,))])
def test_top_and_rank_are_right_in_numbers(op: Compute) -> None:
    """Every layout of the operand and of the result."""
    result = "JB" if isinstance(op, Top) else "EB"
    pools = [pool("BE", SIZES), [*pool(result, SIZES), None]]
    for x, target in samples(*pools, count=200, seed=3):
        assert x is not None
        program = one_operation(op, [("BE", x)], result, target, "XY", SIZES)
        check_numbers(lower(program, forward_only=True), sizes=SIZES)


def test_top_takes_the_lower_index_of_equal_numbers() -> None:
    """The places come in the order of the numbers, the largest first."""
    value = np.array([[3.0, -1.0, 3.0, 7.0], [0.0, 0.0, -2.0, 0.0]])
    found = compute(Top(E, J), [value], [(B, E)], (B, J), {"J": 3})

    assert [[3, 0, 2], [0, 1, 3]] == found.tolist()


def test_rank_counts_row_by_row_in_the_order_named() -> None:
    """`rank_{S,J}` and `rank_{J,S}` of one table, counted by hand."""
    value = np.array([[5, 7], [7, 5], [5, 5]])
    by_s = compute(Rank((S, J)), [value], [(S, J)], (S, J), {})
    by_j = compute(Rank((J, S)), [value], [(S, J)], (S, J), {})

    assert [[0, 0], [1, 1], [2, 3]] == by_s.tolist()
    assert [[0, 1], [0, 2], [1, 3]] == by_j.tolist()


INFERRED = [
    ("X=2", "k[B, H_X] = rotary_H(q[B, H_X], f[R])",
     ["q[B, H] = AllGather_X(q[B, H_X])", "k[B, H] = rotary_H(q[B, H], f[R])",
      "k[B, H_X] = Slice_{X,H}(k[B, H])"]),
    ("X=2", "k[B_X, H] = rotary_H(q[B, H_X], f[R])",
     ["q[B_X, H] = AllToAll_{X,B}(q[B, H_X])", "k[B_X, H] = rotary_H(q[B_X, H], f[R])"]),
    ("X=2", "k[B, H] = rotary_H(q[B, H]{U_X}, f[R])",
     ["k[B, H]{U_X} = rotary_H(q[B, H]{U_X}, f[R])", "k[B, H] = AllReduce_X(k[B, H]{U_X})"]),
    ("X=2", "k[B, H] = rotary_H(q[B, H], f[R_X])",
     ["f[R] = AllGather_X(f[R_X])", "k[B, H] = rotary_H(q[B, H], f[R])"]),
    ("X=4, N=16, K=8", "k[K_X, G] = Reshape_{N->K,G}(q[N_X])",
     ["k[K_X, G] = Reshape_{N->K,G}(q[N_X])"]),
    ("X=4, Y=2, N=16, K=4", "k[K_X, G_Y] = Reshape_{N->K,G}(q[N_XY])",
     ["k[K_X, G_Y] = Reshape_{N->K,G}(q[N_XY])"]),
    ("X=4, Y=2, N=32, K=8", "k[K_X, G_Y] = Reshape_{N->K,G}(q[N_XY])",
     ["k[K_XY, G] = Reshape_{N->K,G}(q[N_XY])", "k[K_X, G_Y] = AllToAll_{Y,G}(k[K_XY, G])"]),
    ("X=4, N=24, K=6", "k[K, G] = Reshape_{N->K,G}(q[N_X])",
     ["q[N] = AllGather_X(q[N_X])", "k[K, G] = Reshape_{N->K,G}(q[N])"]),
    ("X=2, Y=4, N=24, K=6", "k[K_X, G] = Reshape_{N->K,G}(q[N_XY])",
     ["q[N_X] = AllGather_Y(q[N_XY])", "k[K_X, G] = Reshape_{N->K,G}(q[N_X])"]),
    ("X=2, N=16, K=4", "o[N_X] = Reshape_{K,G->N}(k[K, G_X])",
     ["k[K_X, G] = AllToAll_{X,K}(k[K, G_X])", "o[N_X] = Reshape_{K,G->N}(k[K_X, G])"]),
    ("X=2, N=16, K=4", "o[N] = Reshape_{K,G->N}(k[K, G_X])",
     ["k[K, G] = AllGather_X(k[K, G_X])", "o[N] = Reshape_{K,G->N}(k[K, G])"]),
    ("X=4, Y=2, N=16, K=4", "o[N_XY] = Reshape_{K,G->N}(k[K_X, G_Y])",
     ["o[N_XY] = Reshape_{K,G->N}(k[K_X, G_Y])"]),
    ("X=2", "c[B, J] = top_{E,J}(g[B, E_X])",
     ["g[B, E] = AllGather_X(g[B, E_X])", "c: int32[B, J] = top_{E,J}(g[B, E])"]),
    ("X=2, Y=2", "c[B_Y, J] = top_{E,J}(g[B_Y, E])", ["c[B_Y, J] = top_{E,J}(g[B_Y, E])"]),
]  # fmt: skip


@pytest.mark.parametrize(("sizes", "line", "expected"), INFERRED)
def test_what_is_inferred(sizes: str, line: str, expected: list[str]) -> None:
    """Collectives derived by hand: a gather where the dim is needed whole, none where it fits."""
    given = dict(pair.split("=") for pair in sizes.split(", "))
    mesh = ", ".join(f"{name}={given[name]}" for name in given if name in "XY")
    dims = ", ".join(f"{name}={given[name]}" for name in given if name not in "XY")
    text = f"mesh {mesh}\n" + (f"dims {dims}\n" if dims else "") + line + "\n"

    assert [x.replace(": int32", "") for x in expected] == lowered(text)


REASONS = [
    ("k[B, H] = rotary_H(q[B, H_X], f[R])", "X splits H of q, which rotary needs whole"),
    ("c[B, J] = top_{E,J}(q[B, E_X])", "X splits E of q, which top needs whole"),
    (
        "k[K, G] = Reshape_{N->K,G}(q[N_X])",
        "X splits N of q, and its factor K=6 does not divide into 4 parts",
    ),
    (
        "k[M] = Reshape_{L,G->M}(q[L, G_X])",
        "X splits G of q, and lies inside L in M: its shards are no blocks of M",
    ),
]


@pytest.mark.parametrize(("line", "reason"), REASONS)
def test_a_gather_says_why(line: str, reason: str) -> None:
    """The reason names the axis, the dim, and why it can't stay split."""
    plan = lower(load_text(f"mesh X=4\ndims N=24, K=6, L=8, G=4\n{line}\n"), forward_only=True)

    assert ("needed-whole", reason) == (plan.forward[0].rule, plan.forward[0].reason)


def test_attention_by_heads_moves_nothing() -> None:
    """A projection to N heads, split as K and G, turned, and joined again: none of it moves."""
    text = """
    mesh X=2, Y=4
    dims N=32, K=8, H=16
    input angle: f32[T, R]
    q[B_X, T, N_Y, H] = x[B_X, T, D] ·_D W[D, N_Y, H]
    split[B_X, T, K_Y, G, H] = Reshape_{N->K,G}(q)
    turned = rotary_H(split, angle)
    o[B_X, T, N_Y, H] = Reshape_{K,G->N}(turned)
    """
    plan = lower(load_text(text))

    assert [
        "dx[B_X, T, D] = AllReduce_Y(dx[B_X, T, D]{U_Y})",
        "dW[D, N_Y, H] = AllReduce_X(dW[D, N_Y, H]{U_X})",
    ] == sorted(moves(plan), reverse=True)
    assert {"G": 4, "R": 8} == {name: plan.program.sizes.known[name] for name in "GR"}


def test_unknown_sizes_are_taken_to_divide_and_it_is_said() -> None:
    """With K open the axes go to it, with a warning that names both."""
    plan = lower(load_text("mesh X\nk[K, G] = Reshape_{N->K,G}(q[N_X])\n"), forward_only=True)

    assert "k[K_X, G] = Reshape_{N->K,G}(q[N_X])" == statement(plan.forward[0])
    assert [
        "Reshape_{N->K,G}(q[N_X]) -> k[K_X, G]: X is taken to divide K, whose size is not known"
    ] == list(plan.warnings)


def test_sizes_follow_from_each_other() -> None:
    """Of |N| = |K||G| and |H| = 2|R| any one size may be left out."""
    line = "r = rotary_H(Reshape_{N->K,G}(q[N, H]), f[R])\n"
    for given, name, expected in [
        ("N=12, K=3, R=4", "G", 4),
        ("N=12, G=3, R=4", "K", 4),
        ("K=5, G=3, H=8", "N", 15),
        ("K=5, G=3, H=8", "R", 4),
        ("K=5, G=3, R=8", "H", 16),
    ]:
        program = load_text(f"dims {given}\n{line}")

        assert expected == program.sizes.known[name]


MISTAKES = [
    ("dims H=7\nk = rotary_H(q[B, H], f[R])", "SH282", "rotary_H needs |H| = 2|R|, but H=7"),
    ("dims H=8, R=3\nk = rotary_H(q[B, H], f[R])", "SH282", "but H=8 and R=3"),
    ("dims N=12, K=5\nk = Reshape_{N->K,G}(q[N])", "SH282", "but N=12 and K=5"),
    ("dims N=12, K=3, G=5\nk = Reshape_{N->K,G}(q[N])", "SH282", "|N| = |K||G|"),
    ("k = rotary_H(q[B, H], f[B])", "SH283", "f[B] has no dim of its own"),
    ("k = rotary_D(q[B, H], f[R])", "SH217", "D is not a dim of q"),
    ("k = rotary(q[B, H], f[R])", "SH224", "needs the dim"),
    ("k = rotary_H(q[B, H])", "SH223", "takes 2 arguments, not 1"),
    ("dims E=4, J=5\nc = top_{E,J}(g[B, E])", "SH285", "the J=5 largest of E=4"),
    ("c = top_E(g[B, E])", "SH284", "a name for how many"),
    ("c = top_{E,B}(g[B, E])", "SH203", "B"),
    ("c = top_{Q,J}(g[B, E])", "SH217", "Q is not a dim of g"),
    ("c = rank_B(g[B, E])", "SH286", "g is bf16"),
    ("c = rank_Q(top_{E,J}(g[B, E]))", "SH217", "Q is not a dim of"),
    ("k = Reshape_{N,K,G}(q[N])", "SH281", "what becomes what"),
    ("k = Reshape_{N->K}(q[N])", "SH281", "as Rename does"),
    ("k = Reshape_{N,M->K,G}(q[N, M])", "SH281", "one dim of several"),
    ("k = Reshape_{M->K,G}(q[N])", "SH217", "M is not a dim of q"),
    ("k = Reshape_{N->K,B}(q[B, N])", "SH203", "B stands twice"),
    ("k = Reshape_{N->K_X,G}(q[N])", "SH242", "K_X ends in an axis"),
]


@pytest.mark.parametrize(("text", "code", "words"), MISTAKES)
def test_mistakes_are_precise(text: str, code: str, words: str) -> None:
    """A wrong call or a wrong size is one error, at the call, that names what is wrong."""
    with pytest.raises(ShardlangError) as caught:
        load_text(f"mesh X=2\n{text}\n")

    assert [code] == [d.code for d in caught.value.diagnostics]
    assert words in caught.value.diagnostics[0].message


EXPLICIT = [
    ("k[B, H_X] = rotary_H(q[B, H_X], f[R])", "SH301", "which rotary needs whole"),
    ("c[B, J_X] = top_{E,J}(q[B, E])", "SH302", "this gives c[B, J]"),
    ("k[K, G_X] = Reshape_{N->K,G}(q[N_X])", "SH302", "this gives k[K_X, G]"),
    ("k[N_X] = Reshape_{K,G->N}(q[K, G_X])", "SH301", "its shards are no blocks of N"),
]


@pytest.mark.parametrize(("line", "code", "words"), EXPLICIT)
def test_steps_that_are_not_legal_are_refused(line: str, code: str, words: str) -> None:
    """A stated step is checked against what the shards can give."""
    found = check(load_text(f"mesh X=2\ndims N=16, K=4, E=4, J=2\nforward:\n{line}\n"))

    assert code in [d.code for d in found]
    assert any(words in d.message for d in found)


PROGRAM = """
mesh X=2, Y=2
dims B=8, D=8, N=8, K=4, H=4
input angle: f32[B_X, R]
q[B_X, N_Y, H] = x[B_X, D_Y] ·_D W[D_X, N_Y, H]
k[B_X, K_Y, G, H] = Reshape_{N->K,G}(q)
r = rotary_H(k, angle)
o[B_X, N_Y, H] = Reshape_{K,G->N}(r)
y[B_X, D_Y] = o * Wo[D_Y, N, H]
"""


@pytest.mark.parametrize("strategy", ["book", "optimal"])
def test_a_lowered_program_lowers_to_itself(strategy: str) -> None:
    """Each strategy's plan is right in numbers, prints, formats and checks as it is."""
    plan = sl.lower(sl.parse(PROGRAM), strategy)
    check_numbers(plan)
    printed = "".join(x for x in str(plan).splitlines(keepends=True) if not x.startswith("//"))

    assert sl.check(printed, explicit=True) == []
    assert printed == str(sl.lower(sl.parse(printed)))
