"""What each line of a text means, and where it is wrong."""

from __future__ import annotations

from fractions import Fraction

import pytest

from shardlang.diagnostics import Diagnostic, ShardlangError
from shardlang.frontend.resolve import load_text, Overrides
from shardlang.ir.ops import Coefficient, Einsum, Linear
from shardlang.ir.printer import expression
from shardlang.ir.program import Program, Use
from shardlang.ir.size import Number
from shardlang.ir.types import Array, Layout, Tensor


def shown(tensor: Tensor, layout: Layout | None) -> str:
    """A tensor with its layout, or `name?` where none is said."""
    return f"{tensor.name}?" if layout is None else str(Array(tensor, layout))


def used(use: Use) -> str:
    """An operand as it was asked for."""
    return shown(use.tensor, use.layout)


def lines(program: Program) -> list[str]:
    """The statements in the notation; `?` marks a layout that the text leaves open."""
    return [
        f"{shown(s.result, s.target)} = {expression(s.op, [used(u) for u in s.operands])}"
        for s in program.statements
    ]


def meaning(text: str, **options: object) -> list[str]:
    """The statements that a text means."""
    return lines(load_text(text, overrides=Overrides(**options)))  # pyright: ignore[reportArgumentType]


def wrong(text: str, **options: object) -> tuple[Diagnostic, ...]:
    """What is wrong with a text."""
    with pytest.raises(ShardlangError) as caught:
        load_text(text, overrides=Overrides(**options))  # pyright: ignore[reportArgumentType]
    return caught.value.diagnostics


def hints(program: Program) -> list[str]:
    """What the surrounding expression would like the unnamed parts to look like."""
    return [shown(s.result, s.hint) for s in program.statements if s.target is None]


MEANINGS = {
    "chain": (
        "In[B_X, D] ·_D W_in[D, F] ·_F W_out[F, D] -> Out[B_X, D]",
        ["Tmp? = In[B_X, D] ·_D W_in[D, F]", "Out[B_X, D] = Tmp? ·_F W_out[F, D]"],
    ),
    "seed's slashes": (
        "In[B/X, D] · W_in[D, F] · W_out[F, D] -> Out[B / X, D]",
        ["Tmp? = In[B_X, D] ·_D W_in[D, F]", "Out[B_X, D] = Tmp? ·_F W_out[F, D]"],
    ),
    "lacking": (
        "A[B, S, D] · W[B, D, F] -> C[B, S, F]",
        ["C[B, S, F] = A[B, S, D] ·_D W[B, D, F]"],
    ),
    "lacking, inside gelu": (
        "gelu(A[B, S, D] · W[B, D, F]) -> C[B, S, F]",
        ["Tmp? = A[B, S, D] ·_D W[B, D, F]", "C[B, S, F] = gelu(Tmp?)"],
    ),
    "no result": ("A[I, J] · B[J, K]", ["Out? = A[I, J] ·_J B[J, K]"]),
    "two dims": (
        "A[B, D, H] ·_{D,H} W[D, H, F] -> C[B, F]",
        ["C[B, F] = A[B, D, H] ·_{D,H} W[D, H, F]"],
    ),
    "outer product in a chain": (
        "A[I] · B[J] · C[K] -> D[I, J, K]",
        ["Tmp? = A[I] ⊙ B[J]", "D[I, J, K] = Tmp? ⊙ C[K]"],
    ),
    "star sums": ("A[I, J] * B[J, K] -> C[I, K]", ["C[I, K] = A[I, J] ·_J B[J, K]"]),
    "star keeps": ("A[I] * B[I]", ["Out? = A[I] ⊙ B[I]"]),
    "chain of stars": (
        "2 * A[B, D] * W[D, F] * V[F] -> C[B]",
        ["Tmp? = A[B, D] * W[D, F] * V[F]", "C[B] = 2 * Tmp?"],
    ),
    "chain of hadamards": ("A[I] ⊙ B[I] ⊙ C[I] -> D[I]", ["D[I] = A[I] ⊙ B[I] ⊙ C[I]"]),
    "gated": (
        "h[B_X, F_Y] = gelu(A[B_X, D] ·_D W[D, F_Y]) ⊙ (A ·_D V[D, F_Y])",
        [
            "Tmp? = A[B_X, D] ·_D W[D, F_Y]",
            "Tmp2? = gelu(Tmp?)",
            "Tmp3? = A? ·_D V[D, F_Y]",
            "h[B_X, F_Y] = Tmp2? ⊙ Tmp3?",
        ],
    ),
    "sum": (
        "A[I] + B[I] - 2*C[I] / |I| + 1 -> D[I]",
        ["D[I] = A[I] + B[I] - 2 * C[I] / |I| + 1"],
    ),
    "brackets": ("(A[I] - B[I]) / 4 -> D[I]", ["D[I] = 0.25 * A[I] - 0.25 * B[I]"]),
    "minus": ("y[I] = -A[I]", ["y[I] = -A[I]"]),
    "quotient": ("A[B, S] / Z[B] -> P[B, S]", ["P[B, S] = A[B, S] / Z[B]"]),
    "one over": ("1 / A[B] -> r[B]", ["r[B] = reciprocal(A[B])"]),
    "scalar": (
        "L[] = sum_B((square(w[]) + 1) ⊙ d[B_X])",
        [
            "Tmp? = square(w[])",
            "Tmp2? = Tmp? + 1",
            "Tmp3? = Tmp2? ⊙ d[B_X]",
            "L[] = sum_B(Tmp3?)",
        ],
    ),
    "number of dots": ("2 · A[I]{U_X} -> C[I]{U_X}", ["C[I]{U_X} = 2 * A[I]{U_X}"]),
    "sums what lacks": ("A[A_X, B] -> y[B]{U_X}", ["y[B]{U_X} = sum_A(A[A_X, B])"]),
    "broadcast": ("exp(A[I]) -> B[I, J_X]", ["Tmp? = exp(A[I])", "B[I, J_X] = Tmp?"]),
    "copy": ("A[I_X, J] -> C[J_X, I]", ["C[J_X, I] = A[I_X, J]"]),
    "relayout": ("A[I_X, J] -> A[I, J_X]", ["A[I, J_X] = A[I_X, J]"]),
    "relayout, left": ("A[I] = A[I_X]", ["A[I] = A[I_X]"]),
    "transposed": ("dO[B, D] · W^T[D, F] -> y[B, F]", ["y[B, F] = dO[B, D] ·_D W[D, F]"]),
    "local": ("A[I_X] ·_LOCAL B[I_X] -> s[]{U_X}", ["s[]{U_X} = A[I_X] ·_I B[I_X]"]),
    "quotient of sums": (
        "L[] = sum_T(l[T]) / sum_T(m[T])",
        ["Tmp? = sum_T(l[T])", "Tmp2? = sum_T(m[T])", "L[] = Tmp? / Tmp2?"],
    ),
    "gather a dim": ("AllGather_J(A[I, J_X])", ["A[I, J] = AllGather_X(A[I, J_X])"]),
    "equal": ("equal(A[I, J], M[I]) -> E[I, J]", ["E[I, J] = equal(A[I, J], M[I])"]),
    "reductions": (
        "mean_{B,S}(A[B, S, D]) + max_F(C[D, F]) -> y[D]",
        [
            "Tmp? = mean_{B,S}(A[B, S, D])",
            "Tmp2? = max_F(C[D, F])",
            "y[D] = Tmp? + Tmp2?",
        ],
    ),
    "alias": ("swish(A[I]) -> B[I]", ["B[I] = silu(A[I])"]),
    "gradient function": ("silu_grad(A[I]) -> B[I]", ["B[I] = silu_grad(A[I])"]),
    "anonymous": ("bf16[B, D] · bf16[D, F]", ["Out? = Arg[B, D] ·_D Arg2[D, F]"]),
    "softmax": (
        "P[B_X, S] = softmax_S(A[B_X, S])",
        [
            "P_max? = max_S(A[B_X, S])",
            "P_shift? = A[B_X, S] - P_max?",
            "P_exp? = exp(P_shift?)",
            "P_sum? = sum_S(P_exp?)",
            "P[B_X, S] = P_exp? / P_sum?",
        ],
    ),
    "rmsnorm": (
        "y[B, D] = rmsnorm_D(x[B, D])",
        [
            "y_square? = square(x[B, D])",
            "y_mean? = mean_D(y_square?)",
            "y_eps? = y_mean? + 0.000001",
            "y_rsqrt? = rsqrt(y_eps?)",
            "y[B, D] = x[B, D] ⊙ y_rsqrt?",
        ],
    ),
    "rmsnorm with an epsilon": (
        "y[B, D] = rmsnorm_D(x[B, D], 1e-5)",
        [
            "y_square? = square(x[B, D])",
            "y_mean? = mean_D(y_square?)",
            "y_eps? = y_mean? + 0.00001",
            "y_rsqrt? = rsqrt(y_eps?)",
            "y[B, D] = x[B, D] ⊙ y_rsqrt?",
        ],
    ),
    "names are skipped": (
        "A[I,J] ·_J Tmp[J,K] ·_K C[K,L] -> D[I,L]",
        ["Tmp2? = A[I, J] ·_J Tmp[J, K]", "D[I, L] = Tmp2? ·_K C[K, L]"],
    ),
    "gather": ("AllGather_X(A[I_X, J]) -> A[I, J]", ["A[I, J] = AllGather_X(A[I_X, J])"]),
    "gather, settled": ("A[I, J] = AllGather(A[I_X, J])", ["A[I, J] = AllGather_X(A[I_X, J])"]),
    "gather two dims": (
        "AllGather_{XY}(A[I_X, J_Y]) -> A[I, J]",
        ["A[I, J_Y] = AllGather_X(A[I_X, J_Y])", "A[I, J] = AllGather_Y(A[I, J_Y])"],
    ),
    "gather to a copy": ("C[J, I] = AllGather_X(A[I_X, J])", ["C[I, J] = AllGather_X(A[I_X, J])"]),
    "gather inside": (
        "AllGather_Y(A[I_XY, J]) ·_J B[J, K] -> C[I_X, K]",
        ["A[I_X, J] = AllGather_Y(A[I_XY, J])", "C[I_X, K] = A[I_X, J] ·_J B[J, K]"],
    ),
    "bare reduce": ("AllReduce_Y A[I_X]{U_Y} -> A[I_X]", ["A[I_X] = AllReduce_Y(A[I_X]{U_Y})"]),
    "reduce alone": ("AllReduce_Y A[I_X]{U_Y}", ["A[I_X] = AllReduce_Y(A[I_X]{U_Y})"]),
    "reduce a product": (
        "C[I, K] = AllReduce_X(A[I, J_X] · B[J_X, K])",
        ["C[I, K]{U_X} = A[I, J_X] ·_J B[J_X, K]", "C[I, K] = AllReduce_X(C[I, K]{U_X})"],
    ),
    "scatter, settled": (
        "ReduceScatter(A[I, J]{U_X}) -> A[I, J_X]",
        ["A[I, J_X] = ReduceScatter_{X,J}(A[I, J]{U_X})"],
    ),
    "all to all": (
        "AllToAll_{X,J}(A[I_X, J])",
        ["A[I, J_X] = AllToAll_{X,J}(A[I_X, J])"],
    ),
    "all to all, settled": (
        "AllToAll(A[I_X, J]) -> A[I, J_X]",
        ["A[I, J_X] = AllToAll_{X,J}(A[I_X, J])"],
    ),
    "slice": ("Slice_{X,J}(A[I, J])", ["A[I, J_X] = Slice_{X,J}(A[I, J])"]),
    "slice, settled": ("Slice(A[I]) -> A[I_X]", ["A[I_X] = Slice_{X,I}(A[I])"]),
    "mask": ("Mask_X(b[D]) -> b[D]{U_X}", ["b[D]{U_X} = Mask_X(b[D])"]),
    "permute": ("Permute(A[I_XY] -> A[I_YX])", ["A[I_YX] = Permute(A[I_XY])"]),
}


@pytest.mark.parametrize(("text", "expected"), MEANINGS.values(), ids=list(MEANINGS))
def test_a_line_becomes_primitive_statements(text: str, expected: list[str]) -> None:
    """Every form of the language is one statement or a few, in the order of evaluation."""
    assert expected == meaning(text)


ERRORS = {
    "axis twice": ("A[I_X, J_X] -> B[I, J]", [("SH202", 1, 10)]),
    "axis twice, partial": ("A[I_X]{U_X} -> B[I]", [("SH202", 1, 10)]),
    "axis twice, joined": ("A[I_XX] -> B[I]", [("SH202", 1, 6)]),
    "dim twice": ("W[D_X, D] · x[D] -> y[D]", [("SH203", 1, 8)]),
    "unknown axis": ("mesh data=4\nA[I_{dta}] -> B[I]", [("SH201", 2, 6)]),
    "unknown axis, unbraced": ("mesh X\nA[I_Z] + B[I] -> C[I]", [("SH201", 2, 5)]),
    "unknown axis, slashed": ("mesh X\nA[I/Q] -> B[I]", [("SH201", 2, 5)]),
    "unknown axis of a collective": ("mesh X\nAllGather_Q(A[I_X])", [("SH201", 2, 11)]),
    "dim is axis": ("A[X, B_X] -> B[B]", [("SH204", 1, 3)]),
    "declared dim is axis": ("mesh X\ndims X=3\nexp(A[I_X]) -> B[I]", [("SH204", 2, 6)]),
    "dtype": ("W: bf61[D] -> x[D]", [("SH205", 1, 4)]),
    "function": ("gleu(A[B]) -> c[B]", [("SH206", 1, 1)]),
    "other dims": ("A[I, J] -> B[I, J]\nexp(A[I]) -> C[I]", [("SH207", 2, 5)]),
    "other rank of a relayout": ("A[I, J] -> A[I]", [("SH207", 1, 12)]),
    "defined twice": ("exp(A[I]) -> B[I]\nexp(A[I]) -> B[I]", [("SH208", 2, 14)]),
    "given and defined": ("input B: [I]\nexp(A[I]) -> B[I]", [("SH208", 2, 14)]),
    "defined late": ("exp(A[I]) -> B[I]\nexp(C[I]) -> A[I]", [("SH209", 2, 14)]),
    "defined by itself": ("A[I] = A[I] + B[I]", [("SH209", 1, 1)]),
    "gradient read": ("exp(A[I]) -> B[I]\nexp(dB[I]) -> C[I]", [("SH210", 2, 5)]),
    "gradient defined": ("exp(A[I]) -> dA[I]", [("SH210", 1, 14)]),
    "gradient in forward": ("forward:\nB[I] = exp(A[I])\nC[I] = exp(dB[I])", [("SH210", 3, 12)]),
    "not divisible": ("mesh X=4\ndims I=5\nx[I_X] -> y[I]", [("SH211", 3, 3)]),
    "not divisible by both": ("mesh X=4, Y=2\ndims I=12\nx[I_XY] -> y[I]", [("SH211", 3, 3)]),
    "not positive": ("dims B=2-2\nexp(A[B]) -> C[B]", [("SH212", 1, 6)]),
    "no elements": ("A[I, 0] -> B[I, 0]", [("SH212", 1, 6), ("SH212", 1, 17)]),
    "not whole": ("dims B=5/2\nexp(A[B]) -> C[B]", [("SH212", 1, 6)]),
    "circular": ("dims D=F, F=D\nexp(A[D, F]) -> C[D, F]", [("SH213", 1, 6)]),
    "dim declared twice": ("dims B=1, B=2\nexp(A[B]) -> C[B]", [("SH214", 1, 11)]),
    "axis declared twice": ("mesh X, X\nexp(A[B]) -> C[B]", [("SH214", 1, 9)]),
    "leaf declared twice": ("input A: [B]\ninput A: [B]\nexp(A) -> C[B]", [("SH214", 2, 7)]),
    "mesh twice": ("mesh X\nmesh Y\nexp(A[B]) -> C[B]", [("SH214", 2, 1)]),
    "empty": ("mesh X", [("SH215", 1, 7)]),
    "no effect": ("A[I_X, J]", [("SH216", 1, 1)]),
    "unknown dim": ("A[I, J] ·_Q B[J, K] -> C[I, K]", [("SH217", 1, 11)]),
    "unknown dim of a sum": ("sum_Q(A[I, J]) -> C[I]", [("SH217", 1, 5)]),
    "lacks": ("A[I, J, D] ·_J B[J, K] -> C[I, K]", [("SH218", 1, 27)]),
    "lacks, hadamard": ("A[I, J] ⊙ B[J] -> C[I]", [("SH218", 1, 19)]),
    "ambiguous": ("A[B, D, H] · W[D, H, F]", [("SH219", 1, 12)]),
    "ambiguous in a chain": ("A[B,D,H] · W[D,H,F] · V[F,G] -> C[B,G]", [("SH219", 1, 10)]),
    "nothing shared": ("A[I] · B[J]", [("SH220", 1, 6)]),
    "bare": ("A · B[J, K] -> C[K]", [("SH221", 1, 1)]),
    "bare leaf": ("input A\nexp(A) -> C[K]", None),
    "two dtypes": ("exp(W: bf16[D]) + W: f32[D] -> c[D]", [("SH222", 1, 22)]),
    "arguments": ("gelu(A[I], B[I]) -> C[I]", [("SH223", 1, 1)]),
    "subscript too much": ("gelu_{I}(A[I]) -> C[I]", None),
    "subscript missing": ("softmax(A[I, J]) -> C[I, J]", [("SH224", 1, 1)]),
    "unsettled": ("AllGather(A[I_XY, J]) ·_J B[J, K] -> C[I, K]", [("SH225", 1, 1)]),
    "splits nothing": ("mesh X, Y\nAllGather_Y(A[I_X])", [("SH226", 2, 1)]),
    "backward alone": ("backward:\nB[I] = exp(A[I])", [("SH227", 1, 1)]),
    "before forward": ("B[I] = exp(A[I])\nforward:\nC[I] = exp(B[I])", [("SH227", 1, 1)]),
    "saved": ("save Tmpp\nA[I,J]·B[J,K]·C[K,L] -> D[I,L]", [("SH228", 1, 6)]),
    "saved input": ("save Tmp, A\nA[I,J]·W[J,K]·B[K,L] -> D[I,L]", [("SH244", 1, 11)]),
    "saved twice": ("save all, W, Tmp\nA[I,J]·W[J,K]·B[K,L] -> D[I,L]", [("SH244", 1, 14)]),
    "unknown beside all": ("save all, V\nA[I,J]·W[J,K] -> D[I,K]", [("SH228", 1, 11)]),
    "one microbatch": ("A[L_Z, B][3] -> C[B]", [("SH331", 1, 11)]),
    "optimizer": ("optimizer admm\nexp(A[I]) -> B[I]", [("SH230", 1, 11)]),
    "joined axes": ("mesh X, Y, XY\nexp(A[I]) -> B[I]", [("SH232", 1, 12)]),
    "number alone": ("x[I] = 2", [("SH234", 1, 8)]),
    "number in a function": ("x[I] = gelu(2)", [("SH234", 1, 13)]),
    "size added": ("A[I] + |I| -> B[I]", [("SH235", 1, 8)]),
    "sizes added": ("A[I, J] / (|I| + |J|) -> B[I, J]", [("SH235", 1, 12), ("SH235", 1, 18)]),
    "log of a size": ("log(|I|) * A[I] -> B[I]", [("SH235", 1, 5)]),
    "log of nothing": ("A[I] / log(2 - 3) -> B[I]", [("SH235", 1, 8)]),
    "compared with a root": ("A[I] < sqrt(|I|) -> B[I]", [("SH235", 1, 8)]),
    "too large": ("A[I] * exp(60) * exp(60) -> B[I]", [("SH235", 1, 1)]),
    "function of a number": ("A[I] * gelu(2) -> B[I]", [("SH234", 1, 13)]),
    "by zero": ("A[I] / 0 -> B[I]", [("SH235", 1, 8)]),
    "size name": ("dims F=4*Q\nexp(A[F]) -> B[F]", [("SH236", 1, 10)]),
    "contracted and kept": ("A[I,J] ·_J B[J,K] -> C[I,J,K]", [("SH238", 1, 26)]),
    "dims changed": ("AllGather_X(A[I_X, J]) -> B[I]", [("SH239", 1, 1)]),
}


@pytest.mark.parametrize(("text", "expected"), ERRORS.values(), ids=list(ERRORS))
def test_a_mistake_is_reported_once_at_its_place(
    text: str, expected: list[tuple[str, int, int]] | None
) -> None:
    """Each mistake has its own code, at the line and the column where it is made."""
    found = [(d.code, d.line, d.column) for d in wrong(text)]

    assert found if expected is None else expected == found


def test_independent_mistakes_are_all_reported() -> None:
    """One run lists them in the order of the text."""
    text = "mesh X=4\ndims B=6\nA[B_X, D] ·_Q W[D, F] -> C[B, F]\ngleu(C) -> E[B, F]\nexp(E) -> G[B, F]\n"

    assert ["SH211", "SH217", "SH206"] == [d.code for d in wrong(text)]


def test_both_places_of_a_double_axis_are_named() -> None:
    """The second place carries the mark, the first one a label; the hint has both ways out."""
    (mistake,) = wrong("A[I_X, J] · B[J, K_X] -> C[I_X, K_X]")

    assert [30] == [mistake.source.position(label.span.start)[1] for label in mistake.labels]
    assert mistake.hint == "write C[I, K_X] or C[I_X, K]"


def test_a_size_that_does_not_divide_names_everything() -> None:
    """Report 37: the dim, its size, the axis and its size."""
    (mistake,) = wrong("mesh X=4\ndims I=5\nx[I_X, J] -> x[I, J]")

    assert mistake.message == "dim I=5 cannot be split evenly over X=4"


def test_an_ambiguous_product_lists_its_readings() -> None:
    """The hint of a choice is the choice."""
    (mistake,) = wrong("A[B, D, H] · W[D, H, F]")

    assert mistake.message.endswith("could be ·_D, ·_H or ·_{D,H}")


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("W[D_X, D] -> y[D]", "D'"),
        ("gleu(A[B]) -> c[B]", "gelu"),
        ("mesh data, fsdp\nA[B_{dat}] -> c[B]", "data"),
        ("A[I,J,D] ·_J B[J,K] -> C[I,K]", "·_D"),
        ("W: bf61[D] -> x[D]", "bf16"),
    ],
)
def test_hints_say_what_to_write(text: str, hint: str) -> None:
    """The nearest name, or the missing piece."""
    (mistake, *_) = wrong(text)

    assert hint in (mistake.hint or "")


def test_subscripts_are_axes_where_they_name_axes() -> None:
    """What follows the last underscore is axes if it can be read as such, else part of the name."""
    program = load_text(
        "mesh data=2, fsdp=2, X\nA[B_{data,fsdp}, d_model_X, d_in, h_{model}] -> C[B]"
    )
    (leaf,) = program.leaves

    assert str(leaf.array) == "A[B_{data,fsdp}, d_model_X, d_in, h_model]"


@pytest.mark.parametrize(
    ("text", "axes"),
    [
        ("A[I_XY] -> B[I_YX]", ("X", "Y")),
        ("A[I/data] -> A[I]", ("data",)),
        ("A[I]{U_N} -> A[I]", ("N",)),
        ("AllGather_fsdp(A[I_fsdp]) -> A[I]", ("fsdp",)),
        ("ReduceScatter_{X,J}(A[I, J]{U_X})", ("X",)),
        ("A[d_model] -> B[d_model]", ()),
    ],
)
def test_a_text_with_no_mesh_line_implies_its_axes(text: str, axes: tuple[str, ...]) -> None:
    """Markers, slashes, collectives, and the letters W to Z in subscripts."""
    assert axes == load_text(text).mesh.names


def test_leaves_live_where_they_are_first_read() -> None:
    """The right side of a line is read before its left; a declaration wins over both."""
    program = load_text(
        "C[I_X, K] = B[J, K] · A[I_X, J]\nD[I, K] = A[I, J] · B[J_X, K]\ninput B: f32[J_Y, K]\n"
    )

    assert ["B[J_Y, K]", "A[I_X, J]"] == [str(leaf.array) for leaf in program.leaves]
    assert ["f32", "bf16"] == [leaf.array.tensor.dtype.name for leaf in program.leaves]
    assert [True, False] == [leaf.declared for leaf in program.leaves]


def test_parameters_are_declared_or_start_with_w() -> None:
    """With no param line the letter decides, with one it does not."""
    text = "x[B, D] · W[D, F] · V[F, D] -> y[B, D]\n"
    kinds = [
        [leaf.kind for leaf in load_text(t).leaves] for t in (text, f"param V: [F, D]\n{text}")
    ]

    assert [["input", "param", "input"], ["param", "input", "input"]] == kinds


def test_dtypes_are_written_or_promoted() -> None:
    """A leaf has its own or the default one; a result that of its operands."""
    program = load_text("dtype f32\nA: bf16[I] + B[I] -> C[I]\nD: f16[I] = exp(C)\nexp(D) -> E[I]")
    results = [s.result.dtype.name for s in program.statements]

    assert ["f32", "f16", "f16"] == results


def test_sizes_come_from_expressions_and_overrides() -> None:
    """An override replaces a size, and what is declared in terms of it follows."""
    text = "mesh X=4, Y\ndims F=4*D, D=8, N=2*Q, Q=Y\nA[F_X, D, 128, D', N] -> y[]"
    program = load_text(text, overrides=Overrides(sizes={"D": 16, "Y": 2}))
    sizes = {info.dim.name: info.size for info in program.dims}

    assert sizes == {"F": 64, "D": 16, "N": 4, "Q": 2, "128": 128, "D'": 16}
    assert program.mesh.sizes == {"X": 4, "Y": 2}
    assert program.dims[1].declared == Number(Fraction(16))
    assert load_text(text).sizes.known.get("N") is None


def test_a_mesh_override_replaces_the_line() -> None:
    """It is read by the same grammar; sizes given by name win over it."""
    overrides = Overrides(mesh="X=16, Y=4 @dcn", sizes={"X": 2})
    mesh = load_text("mesh X=3\nA[I_XY] -> A[I]", overrides=overrides).mesh

    assert [("X", 2, "ici"), ("Y", 4, "dcn")] == [
        (a.axis.name, a.size, a.network) for a in mesh.axes
    ]


def test_an_override_of_nobodys_size_is_an_error() -> None:
    """A dim, an axis or a hardware quantity; the nearest name is the hint."""
    load_text("exp(A[I_X]) -> B[I]", overrides=Overrides(sizes={"W_ici": 9, "M_X": 2, "C": 5}))
    (mistake,) = wrong("exp(A[data]) -> B[data]", sizes={"dta": 9})

    assert (mistake.code, mistake.hint) == ("SH231", "did you mean data?")


def test_huge_sizes_are_numbers() -> None:
    """Sizes are exact, however large."""
    text = "dims B=10**29, D=B*B\nexp(A[B, D]) -> C[B, D]"
    program = load_text(text, overrides=Overrides(sizes={"B": 10**30}))

    assert [10**30, 10**60] == [info.size for info in program.dims]


def test_hints_follow_elementwise_operations() -> None:
    """The declared layout reaches through gelu and ⊙, not through a product."""
    program = load_text("h[B_X, F_Y] = gelu(A[B_X, D] ·_D (2 * W[D, F_Y]))")

    assert ["Tmp?", "Tmp2[B_X, F_Y]"] == hints(program)


def test_local_products_and_maxima_are_marked() -> None:
    """`·_LOCAL` stays unreduced; no gradient flows through the maximum of a softmax."""
    program = load_text("A[I_X] ·_LOCAL B[I_X] -> s[]{U_X}\nP[I] = softmax_I(A)")

    assert [True] + [False] * 5 == [s.keep_unreduced for s in program.statements]
    assert [False, True] + [False] * 4 == [s.constant for s in program.statements]


def test_a_relayout_keeps_the_tensor() -> None:
    """`A[I_X] -> A[I]` is a request about the same value."""
    (statement,) = load_text("A[I_X] -> A[I]").statements

    assert statement.op == Linear((Coefficient(),))
    assert statement.result is statement.operands[0].tensor


def test_later_mentions_may_list_dims_in_another_order() -> None:
    """Dims are named: the first mention's order is the tensor's."""
    program = load_text("A[I, J_X] ·_J B[J_X, K] -> C[I, K]\nexp(A[J_X, I]) -> D[J_X, I]")

    assert "D[J_X, I] = exp(A[I, J_X])" == lines(program)[1]


def test_attention() -> None:
    """An attention block with batch dims, a softmax and two contracted dims."""
    program = load_text(
        "mesh X, Y\n"
        "q[B_X, T, N_Y, K] = x[B_X, T, D] ·_D W_q[D, N_Y, K]\n"
        "P[B_X, N_Y, T, S] = softmax_S(q ·_K k[B_X, S, N_Y, K])\n"
        "o[B_X, T, N_Y, K] = P ·_S v[B_X, S, N_Y, K]\n"
        "y[B_X, T, D] = o ·_{N,K} W_o[N_Y, K, D]\n"
    )

    assert ["q", "Tmp", "P_max", "P_shift", "P_exp", "P_sum", "P", "o", "y"] == [
        s.result.name for s in program.statements
    ]
    assert [len(s.op.contracted) for s in program.statements if isinstance(s.op, Einsum)] == [
        1,
        1,
        1,
        2,
    ]


EXPLICIT = """mesh X
forward:
  W[D, F] = AllGather_X(W[D_X, F])
  Out[B_X, F] = In[B_X, D] ·_D W[D, F]
backward:
  dW[D, F]{U_X} = In[B_X, D] ·_B dOut[B_X, F]
  dW[D_X, F] = ReduceScatter_{X,D}(dW[D, F]{U_X})
  W[D, F] = AllGather_X(W[D_X, F])
  dIn[B_X, D] = dOut[B_X, F] ·_F W[D, F]
"""


def test_an_explicit_program_keeps_its_lines() -> None:
    """One statement a line, in its section; cotangents are no leaves."""
    program = load_text(EXPLICIT)

    assert [line.strip() for line in EXPLICIT.splitlines() if "=" in line] == lines(program)
    assert ["forward"] * 2 + ["backward"] * 4 == [s.section for s in program.statements]
    assert ["W", "In"] == [leaf.array.name for leaf in program.leaves]
    assert (program.explicit, program.has_backward) == (True, True)


def test_forward_only_leaves_out_the_backward_section() -> None:
    """`--pass forward` of an explicit program."""
    program = load_text(EXPLICIT, overrides=Overrides(forward_only=True))

    assert (2, False) == (len(program.statements), program.has_backward)


def test_declaring_lines_are_kept() -> None:
    """Hardware, optimizer and what is saved."""
    program = load_text(
        "hardware tpu_v5p\noptimizer Adam\nsave Tmp\nA[I,J]·B[J,K]·C[K,L] -> D[I,L]"
    )

    assert ("tpu_v5p", "adam") == (program.hardware, program.optimizer)
    assert (False, {"Tmp"}) == (program.save.everything, program.save.names)


def test_literal_sizes_are_dims() -> None:
    """Two of the same size in one tensor are told apart by a prime."""
    (leaf,) = load_text("int8[128, 128] -> y[]").leaves

    assert (str(leaf.array), leaf.array.tensor.dtype.name) == ("Arg[128, 128']", "int8")


def test_the_global_size_is_the_declared_one() -> None:
    """Report 16: `A[I_X]` has the size I everywhere."""
    program = load_text("mesh X=4\ndims I=8\nexp(A[I_X]) -> B[I_X]")

    assert str(program.leaves[0].array.tensor.elements) == "I"


def test_a_thousand_statements() -> None:
    """Names of intermediates are found without trying all of them again."""
    text = "".join(f"A{i}[I,J] · B{i}[J,K] · C{i}[K,L] -> D{i}[I,L]\n" for i in range(1000))
    program = load_text(text)

    assert (2000, "Tmp1000") == (len(program.statements), program.statements[-2].result.name)


# ---- Copies that lose one dim and gain another ----------------------------------------------------


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        (
            "xs[B, S, D] = x[B, T, D]",
            "the same value under other dim names is xs[B, S, D] = Rename_{B,S,D}(x[B, T, D])",
        ),
        (
            "xs[D, S, B] = x[B, T, D]",
            "the same value under other dim names is xs[B, S, D] = Rename_{B,S,D}(x[B, T, D])",
        ),
        ("A[I_x] -> B[I]", "did you mean I_X?"),
        ("mesh data\nA[I_{dtaa}] + C[I_{data}]\nA[I_Data, J] -> B[I, J]", None),
        ("C[I_Q, J_X] -> D[I, J]", "I_Q is one dim here, since Q is not an axis"),
        (
            "A[I, T, U] -> B[I, S]",
            "to sum and then broadcast, write sum_{T,U}(..) in a line of its own",
        ),
        ("A[I_x, J] * B[J, K] -> C[I, K]", "did you mean I_X?"),
    ],
)
def test_a_result_that_loses_and_gains_dims_is_an_error(text: str, hint: str | None) -> None:
    """A sum and a broadcast in one line that asks for neither is a mistake, with what was meant."""
    mistake = wrong(text)[-1]

    assert mistake.code == ("SH243" if hint else "SH201")
    assert hint is None or mistake.hint == hint


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A[A_X, B] -> y[B]", ["y[B] = sum_A(A[A_X, B])"]),
        ("A[I] -> B[I, J]", ["B[I, J] = A[I]"]),
        ("A[I, J] * B[J, K] -> C[I, K, L]", ["C[I, K, L] = A[I, J] ·_J B[J, K]"]),
    ],
)
def test_pure_sums_and_broadcasts_stay(text: str, expected: list[str]) -> None:
    """What only loses dims is a sum, what only gains them a broadcast."""
    found = [
        f"{s.result.name}{[d.name for d in s.result.dims]}" for s in load_text(text).statements
    ]
    dims = [line.partition("]")[0].partition("[")[2].split(", ") for line in expected]

    assert [f"{line[0]}{names}" for line, names in zip(expected, dims, strict=True)] == found


def test_a_product_with_a_mistyped_axis_says_so() -> None:
    """The dim that the result lacks differs from an axis of one of its dims by case."""
    (mistake,) = wrong("A[I_x, J] · B[J, K] -> C[I, K]")

    assert mistake.code == "SH218"
    assert mistake.hint == "contract it with ·_I_x, or keep it; or did you mean I_X?"


# ---- Several mistakes in one run ------------------------------------------------------------------


def test_lines_that_parse_are_checked_beside_broken_ones() -> None:
    """A mistake of form does not hide the mistakes of meaning in other lines."""
    text = "A[I, J] · B[J, K -> C[I, K]\nD[I] ·_Q E[I] -> F[I]\ngleu(G[I]) -> H[I]\n"

    assert [("SH103", 1), ("SH217", 2), ("SH206", 3)] == [(d.code, d.line) for d in wrong(text)]


@pytest.mark.parametrize(
    "text",
    [
        "A[I, J] · B[J, K -> C[I, K]\nC · D[K, L] -> E[I, L]\n",
        "A[I, J] · B[J, K -> W_\\text{in}[I, K]\nW_{in} · D[K, L] -> E[I, L]\n",
        "save C\nA[I, J] · B[J, K -> C[I, K]\nD[I] -> E[I]\n",
        "dims D=-4, F=3\ndims H=2*D\nA[H] -> B[H]\n",
        "mesh X=4 data=2\nA[I_{data}] · B[I_X, J] -> C[J]\n",
        "forward; \n  C[I] = A[I]\nbackward:\n  B[I] = dC[I]\n",
        "input A: [B, D\nA · W[D, F] -> C[B, F]\n",
        "A[I = B[I]\n",
        "x[B, T = y[B, T]\nz[B, S = y[B, S]\nx[B, S] + u[B, S] -> v[B, S]\n",
    ],
)
def test_what_a_broken_line_may_define_is_no_mistake(text: str) -> None:
    """Every report is of form: what follows from a line that can't be read is left out."""
    assert {"SH1"} == {d.code[:3] for d in wrong(text)}


def test_each_size_of_a_line_is_read() -> None:
    """Every wrong size of one `dims` line is reported, those of form and those of meaning."""
    text = "dims D=1e400, G=10^3, H=-3, K=0\nA[D, G] -> B[D, G]\n"

    assert [("SH116", 8), ("SH101", 25), ("SH212", 29)] == [(d.code, d.column) for d in wrong(text)]


# ---- Sizes of the command line --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "shown"), [(10**400, "1e400"), (10**100, "1e100"), (10**30 + 1, f"{10**30 + 1}")]
)
def test_sizes_given_by_set_have_the_limit_of_dims_lines(size: int, shown: str) -> None:
    """A size beyond the limit gets the error that the text would get."""
    (given,) = wrong("A[B] -> C[B]", sizes={"B": size})
    (written,) = wrong(f"dims B={shown}\nA[B] -> C[B]")

    assert (given.code, given.message, given.hint) == (written.code, written.message, written.hint)


# ---- Words of messages ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("A[I_X]{U_XX} -> B[I]", "write A[I]{U_X} or A[I_X]"),
        ("A[I_XX]{U_X} -> B[I]", "write A[I]{U_X} or A[I_X]"),
        ("A(I_X) -> B[I]", "a tensor has square brackets: A[I_X]"),
        ("C[I, J] -> A[I, J]\nAb(I, J) -> B[I, J]", "a tensor has square brackets: Ab[I, J]"),
        ("foo(A) -> B[I]", "the nearest are top, log and cos"),
        ("mesh X, Y\nAllGather_Y(A[I_X])", "it is split over X"),
        (
            "AllGather_Y(A[I]{U_Y})",
            "partial sums over Y are added up with AllReduce_Y or ReduceScatter_{Y,..}",
        ),
        ("AllGather_Y(A[I])", "write A[I] without AllGather, or split a dim of it"),
    ],
)
def test_hints_offer_what_is_right(text: str, hint: str) -> None:
    """One mistake, and a hint that can be followed."""
    (mistake,) = wrong(text)

    assert hint == mistake.hint


def test_two_axes_twice_are_two_mistakes_with_hints_that_are_right() -> None:
    """No hint offers a form in which the other axis still stands twice."""
    hints = [mistake.hint for mistake in wrong("A[I_X, J_X, K_Y, L_Y] -> B[I]")]

    assert hints == [
        "write A[I, J_X, K_Y, L] or A[I_X, J, K_Y, L]",
        "write A[I_X, J, K, L_Y] or A[I_X, J, K_Y, L]",
    ]


def test_an_unknown_setting_is_neither_this_nor_that() -> None:
    """The message lists what a name could have been."""
    (mistake,) = wrong("A[B] -> C[B]", sizes={"Q": 4})

    assert mistake.message == (
        "Q is neither a dim nor an axis of this program, nor a hardware quantity"
    )


@pytest.mark.parametrize(
    ("text", "mesh", "axis"),
    [
        ("mesh X=2, Y=2\nA[I_X, J_Y] ·_J B[J_Y, K_XY] -> C[I_X, K_Y]", "X=8", "Y"),
        ("mesh data=2, tp=2\nA[I_data, J_tp] ·_J B[J_tp, K] -> C[I_data, K]", "data=8", "tp"),
    ],
)
def test_an_axis_that_another_mesh_lacks_is_one_mistake(text: str, mesh: str, axis: str) -> None:
    """An axis of the text that `--mesh` leaves out is reported where it stands first, once."""
    (mistake,) = wrong(text, mesh=mesh)

    assert ("SH201", f"{axis} is not an axis of the mesh") == (mistake.code, mistake.message)


@pytest.mark.parametrize(
    "text",
    ["A[I] = A[I]", "A[I_X] -> A[I_X]", "A[I_X] -> A", "forward:\n  A[I] = A[I]\n"],
)
def test_a_line_that_leaves_a_value_as_it_is_does_nothing(text: str) -> None:
    """A layout that the value has already makes no step, so a program needs another line."""
    assert ["SH216"] == [d.code for d in wrong(text)]
    assert load_text("A[I_X] -> A[I_X]\nA[I_X] -> A[I]")


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("A[I, J] / (|I| + |J|) -> y[I, J]", "dims Sum = I + J"),
        ("A[I, J] / (|J| - 1) -> y[I, J]", "dims Sum = J - 1"),
        ("A[I, J] + |I| -> y[I, J]", None),
        ("A[I, J] / (|I| + 0.5) -> y[I, J]", None),
    ],
)
def test_the_hint_of_a_sum_of_sizes_can_be_written(line: str, hint: str | None) -> None:
    """It has the names of the text; where no dim has the sum as its size, there is none."""
    first, *_ = wrong(f"dims I=4, J=8\n{line}")

    assert first.code == "SH235"
    assert (first.hint is None) if hint is None else str(first.hint).endswith(f"as in: {hint}")
    if hint is not None:
        assert load_text(f"dims I=4, J=8\n{hint}\nA[I, J] / |Sum| -> y[I, J]")


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        (
            "mesh data=2, model=2\ndims B=4, d_model=8\nx[B_data, d_model] -> y[B, d_model]",
            ["SH247"],
        ),
        ("mesh data=2, model=2\ndims B=4, d=8\nx[B_data, d_model] -> y[B, d]", []),
        ("mesh data=2, tp=2\ndims B=4, d_model=8\nx[B_data, d_model] -> y[B, d_model_tp]", []),
        ("mesh X=2, Y=2\ndims D_XY=8\nx[D_XY] -> y[D]", ["SH247"]),
        ("mesh X=2\ndims D_X=4, D=2*D_X\nx[D_X] -> y[D]", []),
        ("mesh X=2\ndims D_X=4, E=8\nx[E_X] -> y[E]", []),
    ],
)
def test_a_size_of_what_reads_as_a_split_dim_is_refused(text: str, codes: list[str]) -> None:
    """`d_model` is d over the axis model, so that a size of `d_model` would mean nothing."""
    if not codes:
        assert load_text(text)
        return
    (mistake,) = wrong(text)

    assert [mistake.code] == codes
    assert mistake.line == 2
