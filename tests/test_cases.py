"""What users of other sharding systems ran into, as programs."""

from __future__ import annotations

import pytest
from simulator import check_numbers

from shardlang.diagnostics import ShardlangError
from shardlang.frontend.resolve import load_text, Overrides
from shardlang.ir.plan import Plan
from shardlang.ir.printer import statement
from shardlang.passes import lower
from shardlang.rules.price import book_bytes


def plan_of(text: str, mesh: str = "X, Y", **sizes: int) -> Plan:
    """Lower a program over a mesh given in its own line."""
    return lower(load_text(f"mesh {mesh}\n{text}\n", overrides=Overrides(sizes=sizes)))


def collectives(plan: Plan, part: str = "both") -> list[str]:
    """List the collectives of a plan as the text before their brackets, with what they take."""
    steps = {
        "forward": plan.forward,
        "backward": plan.backward,
        "both": (*plan.forward, *plan.backward),
    }
    return [statement(step).split(" = ", 1)[1] for step in steps[part] if step.is_collective]


REPORTS = [
    ("A1 gram", "X", "A[N_X, M] ·_N A[N_X, K] -> C[M, K]", None),
    ("A1", "X", "A[N_X, M] ·_N B[N_X, K] -> C[M, K]{U_X}", []),
    ("A1 whole", "X", "A[N_X, M] ·_N B[N_X, K] -> C[M, K]", ["AllReduce_X(C[M, K]{U_X})"]),
    ("A2", "X, Y", "A[F, H] ·_F B[F_X, D_Y] -> C[H, D_Y]{U_X}", []),
    ("A2 three", "X, Y", "A[F, H] * B[F_X, D_Y] * v[F] -> C[H, D_Y]{U_X}", []),
    ("A4", "X", "A[A_X, B] -> y[B]{U_X}", []),
    ("A6", "X, Y", "A[I, D_XY] ·_D B[D_YX, J] -> C[I, J]{U_XY}", None),
    ("A7", "X=4, Y=1", "A[I_X, K] ·_K B[K, J_Y] -> C[I_X, J_Y]", []),
    ("A9", "X, Y", "A[I_X, J] · B[J, K_Y] · C[K_Y, L] -> D[I_X, L]{U_Y}", []),
    ("A11", "N=8", "H[A, B_N] ·_B W2[B_N, C] -> Y[A, C]", ["AllReduce_N(Y[A, C]{U_N})"]),
    ("A12", "X", "a[A] -> s[]", []),
    ("C41", "Y", "z[B, D]{U_Y} + b[D] -> o[B, D]{U_Y}", []),
    ("C44", "X", "gelu(C[I, K]{U_X}) -> H[I, K]", ["AllReduce_X(C[I, K]{U_X})"]),
    ("C46", "X", "L[] = sum_B((w[] * w[] + 1) * d[B_X])", ["AllReduce_X(L[]{U_X})"]),
    ("C47", "X", "G[B_X, K] = gy[B_X] ⊙ x[B_X, K]", []),
    ("C52", "X", "L[] = sum_T(l[T_X]) / sum_T(m[T_X])", None),
    ("B29", "X, Y", "A[I_X, J] ·_J B[J, K] -> C[I_X, K]\nC[I_X, K] -> E[I_X, K_Y]", []),
]  # fmt: skip


@pytest.mark.parametrize(
    ("mesh", "text", "expected"), [row[1:] for row in REPORTS], ids=[row[0] for row in REPORTS]
)
def test_reports_of_inference(mesh: str, text: str, expected: list[str] | None) -> None:
    """What other systems refused, communicated for nothing, or got wrong."""
    plan = plan_of(text, mesh)
    check_numbers(plan)

    assert expected is None or expected == collectives(plan, "forward")


def test_a_plan_may_not_divide_partial_sums() -> None:
    """Report C52: both sums are reduced, then divided."""
    plan = plan_of("L[] = sum_T(l[T_X]) / sum_T(m[T_X])", "X=4")
    forward = collectives(plan, "forward")

    assert len(forward) == 2
    assert all(text.startswith("AllReduce_X") for text in forward)


def test_the_cotangent_of_a_partial_sum_is_whole() -> None:
    """Report C41 and C56: no collective and no factor for z; the bias' gradient stays local."""
    plan = plan_of("z[B, D]{U_Y} + b[D] -> o[B, D]{U_Y}", "Y=4")
    check_numbers(plan)

    assert [] == collectives(plan, "backward")


def test_per_example_gradients_are_not_added_across_devices() -> None:
    """Report C47: B is kept, so nothing is reduced."""
    plan = plan_of("G[B_X, K] = gy[B_X] ⊙ x[B_X, K]", "X=2")

    assert not any("AllReduce" in text for text in collectives(plan))


def test_a_norm_weights_gradient_is_reduced_over_the_heads() -> None:
    """Report C51: `y[B, H_Y, K] = x ⊙ g[K]` adds dg over Y."""
    plan = plan_of("y[B, H_Y, K] = x[B, H_Y, K] ⊙ g[K]", "Y=4")
    check_numbers(plan)

    assert ["AllReduce_Y(dg[K]{U_Y})"] == collectives(plan, "backward")


def test_duplicated_tokens_are_not_added_and_sharded_experts_are() -> None:
    """Report C54: dg of replicated tokens needs no reduction, dx of `r[T, E_Y]` does."""
    norm = plan_of("y[T, D] = x[T, D] ⊙ g[D]", "Y=4")
    router = plan_of("r[T, E_Y] = x[T, D] ·_D W[D, E_Y]", "Y=4")

    assert [] == collectives(norm, "backward")
    assert ["AllReduce_Y(dx[T, D]{U_Y})"] == collectives(router, "backward")


@pytest.mark.parametrize(
    ("consumer", "expected"),
    [
        ("Z[B, R_X] = Y[B] ⊙ v[R_X]", ["ReduceScatter_{X,B}(dY[B]{U_X})"]),
        ("Z[B, R] = Y[B] ⊙ v[R]", []),
    ],
)
def test_a_gathered_values_gradient_depends_on_its_consumers(
    consumer: str, expected: list[str]
) -> None:
    """Report C49: consumers that differ by device give a scatter, equal ones a slice."""
    plan = plan_of(f"Y[B] = AllGather_X(x[B_X])\n{consumer}", "X=4")
    check_numbers(plan)
    found = [text for text in collectives(plan, "backward") if "dY" in text or "dx" in text]

    assert expected == [text.replace("AllReduce_X(dY", "ReduceScatter_{X,B}(dY") for text in found]


def test_coefficients_are_part_of_a_plan() -> None:
    """Report C42: `2 * A` and `-5 * A` are different programs."""
    two = plan_of("B[I]{U_X} = 2 * A[I]{U_X}", "X=4")
    five = plan_of("B[I]{U_X} = -5 * A[I]{U_X}", "X=4")
    check_numbers(two)
    check_numbers(five)

    assert [s.op for s in two.forward] != [s.op for s in five.forward]
    assert [] == collectives(two) == collectives(five)


def test_a_residual_streams_gradient_is_reduced_once() -> None:
    """Q, K and V read the same gathered value: one gather, and their gradients are added first."""
    text = """
x[B_X, S, D_Y] ·_D W_q[D, N_Y] -> Q[B_X, S, N_Y]
x[B_X, S, D_Y] ·_D W_k[D, N_Y] -> K[B_X, S, N_Y]
x[B_X, S, D_Y] ·_D W_v[D, N_Y] -> V[B_X, S, N_Y]
O[B_X, S, N_Y] = Q ⊙ K ⊙ V
y[B_X, S, D_Y] = O ·_N W_o[N_Y, D] + x
"""
    plan = plan_of(text)
    check_numbers(plan)
    forward, backward = collectives(plan, "forward"), collectives(plan, "backward")

    assert 1 == sum(text.startswith("AllGather_Y(x") for text in forward)
    assert 1 == sum("dx" in text for text in backward)


PRICED = [
    # Sizes decide, and whole routes are compared: the gather of one axis changes what others move.
    ("C[I, K_X] = A[I_Y, J_X] ·_J B[J_X, K]", {"X": 8, "Y": 4, "I": 224, "J": 128, "K": 64}, 10752),
    ("C[I, K] = A[I_Y, J_X] ·_J B[J, K]", {"X": 4, "Y": 2, "I": 64, "J": 64, "K": 32}, 8192),
    ("C = A[I_Y, J_X] ·_J B[J, K_Y]", {"X": 4, "Y": 2, "I": 104, "J": 64, "K": 52}, 13312),
    ("A[I_X, J_Y] -> A[I, J_X]", {"X": 4, "Y": 2, "I": 64, "J": 64}, 4096),
    ("A[I, J_XY] -> A[I_X, J]", {"X": 4, "Y": 2, "I": 64, "J": 64}, 4096),
    ("C[I, K] = A[I, J]{U_X} ·_J B[J, K]{U_X}", {"X": 4, "I": 8, "J": 64, "K": 64}, 4096),
]


@pytest.mark.parametrize(("text", "sizes", "expected"), PRICED)
def test_sizes_choose_the_cheaper_whole(text: str, sizes: dict[str, int], expected: int) -> None:
    """Where the rules leave a choice to sizes, the bytes of the whole operation decide."""
    mesh = ", ".join(axis for axis in "XY" if axis in sizes)
    plan = plan_of(text, mesh, **sizes)
    moved = [book_bytes(s.op, s.inputs[0], s.output) for s in plan.forward if s.is_collective]

    assert expected == sum(size.evaluate(sizes).number or 0 for size in moved)


CONDITIONS = [
    ("C[I, K] = A[I_Y, J_X] ·_J B[J, K]", "gather A", "J*X*Y + J*Y < J*X + K*X*Y"),
    ("C[I, K] = A[I, J_X] ·_J B[J, K]", "slice B", "2*K < J"),
    ("C[I_X, K] = A[I, J_X] ·_J B[J, K]", "slice B", "K < J"),
    ("C[I_X, K] = A[I, J_X] ·_J B[J, K]", "AllToAll", "always"),
    ("C[I, K] = A[I, J]{U_X} ·_J B[J, K]{U_X}", "leave B", "I < K"),
    ("C = A[I_X, J] ·_J B[J, K_X]", "gather A", "I < K"),
    ("C[I, K] = A[I_X, J] ·_J B[J, K]", "gather A", "J < K"),
]


@pytest.mark.parametrize(("text", "instead", "condition"), CONDITIONS)
def test_open_choices_carry_their_condition(text: str, instead: str, condition: str) -> None:
    """Without sizes the answer says when the other choice is cheaper (worked out by hand)."""
    found = {
        a.instead: a.cheaper_when
        for a in lower(load_text(f"mesh X, Y\n{text}\n"), forward_only=True).alternatives
    }

    assert [condition] == [when for words, when in found.items() if words.startswith(instead)]


@pytest.mark.parametrize(
    "text",
    [
        "A[I_X] -> B[I]{max_X}",
        "gelu(A[I]{max_X}) -> B[I]{max_X}",
        "C[I] = exp(A[I])\nD[I] = exp(C[I]{max_X})",
        "A[I]{max_X} -> B[I]{max_X}",
    ],
)
def test_partial_maxima_come_from_maxima_alone(text: str) -> None:
    """Asking for them elsewhere is an error with a place, not a plan."""
    with pytest.raises(ShardlangError) as caught:
        plan_of(text)

    assert ["SH304"] == [d.code for d in caught.value.diagnostics]


def test_names_of_sums_do_not_meet_gradients() -> None:
    """`x_sum` is a value with a gradient of its own, whatever the sums of dx are called."""
    text = """
x_sum[B, D_Y] = exp(x[B, D_Y])
a[B, F] = x_sum[B, D_Y] ·_D W_a[D, F]
b[B, F_Y] = x[B, D_Y] ·_D W_b[D, F_Y]
c[B, F_Y] = x[B, D_Y] ·_D W_c[D, F_Y]
y[B, F] = a + b + c
z[B, D_Y] = x[B, D_Y] + x_sum[B, D_Y]
"""
    plan = plan_of(text)
    check_numbers(plan)

    assert len({step.output for step in plan.backward}) == len(plan.backward)


def test_softmax_along_a_split_dim_moves_reduced_sizes_only() -> None:
    """The maximum and the sum are reduced; the scores stay where they are."""
    plan = plan_of("P[B_X, S_Y] = softmax_S(L[B_X, S_Y])")
    check_numbers(plan)
    found = collectives(plan)

    assert len(found) == 3
    assert all("S_Y" not in text for text in found)


def test_an_axis_of_size_one_never_communicates() -> None:
    """Report A7, also forward and backward of FSDP+TP with Y=1."""
    plan = plan_of("In[B_X, D_Y] · W_in[D_X, F_Y] · W_out[F_Y, D_X] -> Out[B_X, D_Y]", "X=4, Y=1")
    check_numbers(plan)

    assert not any("_Y" in text for text in collectives(plan))


def test_the_same_dim_twice_is_an_error() -> None:
    """Report A14: `W[D_X, D]` is never a diagonal."""
    with pytest.raises(ShardlangError) as caught:
        plan_of("W[D_X, D] · x[D] -> y[D]", "X=4")

    assert "D'" in (caught.value.diagnostics[0].hint or "")


def test_uneven_shards_are_a_typed_error() -> None:
    """Report B37: the dim, its size, the axis and its size are named."""
    with pytest.raises(ShardlangError) as caught:
        plan_of("x[I_X, J] -> x[I, J]", "X=4", I=5)
    message = caught.value.diagnostics[0].message

    assert all(word in message for word in ("I", "5", "X", "4"))
