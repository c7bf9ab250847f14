"""Indices, comparisons, `where`, `take`, `put` and cross entropy: what they mean and how they lie."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from layouts import all_layouts, samples
from simulator import check_numbers, reference, small_sizes

import shardlang as sl
from shardlang.backends.jax import emit_jax
from shardlang.cost.flops import flops
from shardlang.cost.memory import Layers
from shardlang.cost.traffic import fused
from shardlang.diagnostics import ShardlangError
from shardlang.frontend.resolve import load_text
from shardlang.ir.plan import Plan
from shardlang.ir.printer import print_plan, statement
from shardlang.ir.types import Array, Dim, DTYPES, Layout, Tensor
from shardlang.passes import check, lower
from shardlang.passes.unroll import unroll_plan
from shardlang.planner.prices import price

MESH = "mesh X=2, Y=2\n"


def plan_of(text: str, **options: bool) -> Plan:
    """Lower a text."""
    return lower(load_text(MESH + text), **options)


def collectives(plan: Plan) -> list[str]:
    """List the collectives of both passes as lines."""
    return [statement(step) for _, step in plan.steps() if step.is_collective]


def same_again(plan: Plan) -> None:
    """A printed plan is legal, and lowering it again changes nothing."""
    printed = print_plan(replace(plan, proof=None))
    again = load_text(printed)

    assert [] == [
        d for d in check(again, explicit=True) if d.code not in ("SH248", "SH451", "SH452")
    ]
    assert printed == print_plan(lower(again))


def written(name: str, dims: str, layout: Layout | None) -> str:
    """Write a mention of a tensor with one-letter dims."""
    if layout is None:
        return name
    return str(Array(Tensor(name, tuple(map(Dim, dims)), DTYPES["bf16"]), layout))


# Every layout -------------------------------------------------------------------------------------

OPERATIONS = {
    "take": ("take_V({A}, {P})", {"A": "VD", "P": "BT"}, "BTD"),
    "take along a last dim": ("take_V({A}, {P})", {"A": "DV", "P": "B"}, "BD"),
    "take labels": ("take_V({A}, {P})", {"A": "BVT", "P": "TB"}, "BT"),
    "take between": ("take_{{E,C}}({A}, {P}, {Q})", {"A": "EDC", "P": "BS", "Q": "SB"}, "SDB"),
    "take in groups": ("take_E({A}, {P})", {"A": "BED", "P": "BS"}, "SBD"),
    "put": ("put_{{E,C}}({A}, {P}, {Q})", {"A": "SD", "P": "SJ", "Q": "JS"}, "DEC"),
    "put in groups": ("put_E({A}, {P})", {"A": "BSD", "P": "BS"}, "BDE"),
    "put with nothing summed": ("put_V({A}, {P})", {"A": "BT", "P": "TB"}, "TVB"),
    "put what has other dims": ("put_E({A}, {P})", {"A": "SD", "P": "S"}, "E"),
    "put one value often": ("put_E({A}, {P})", {"A": "D", "P": "S"}, "ED"),
    "where 0": ("where({P}, {A}, 0)", {"A": "ST", "P": "T"}, "TS"),
    "where -inf": ("exp(where({P}, {A}, -inf))", {"A": "T", "P": "ST"}, "ST"),
    "where two": ("where({P}, {A}, {B})", {"A": "ST", "B": "TS", "P": "S"}, "ST"),
    "where a number": ("where({P}, 1.5, {A})", {"A": "ST", "P": "TS"}, "ST"),
    "compare": ("{P} <= {Q}", {"P": "ST", "Q": "T"}, "TS"),
    "compare with a number": ("{P} > 1", {"P": "ST"}, "ST"),
    "compare with an index": ("index_T >= {P}", {"P": "ST"}, "ST"),
    "cross entropy": ("cross_entropy_V({A}, {P})", {"A": "BTV", "P": "BT"}, "TB"),
    "logsumexp": ("logsumexp_V({A})", {"A": "BV"}, "B"),
    "log_softmax": ("log_softmax_V({A})", {"A": "BV"}, "VB"),
}
"""Expressions; operands P and Q are integers. The last are the result's dims."""


@pytest.mark.parametrize("name", OPERATIONS)
def test_numbers_in_every_layout(name: str) -> None:
    """Values and gradients agree with the whole program in layouts of all kinds."""
    form, dims, result = OPERATIONS[name]
    pools = [all_layouts(len(own), "XY", partial=operand in "AB") for operand, own in dims.items()]
    targets = [*all_layouts(len(result), "XY", partial="compare" not in name), None]

    for drawn in samples(*pools, targets, count=30, seed=len(name)):
        *layouts, target = drawn
        inputs = {
            o: written(o, own, lay) for (o, own), lay in zip(dims.items(), layouts, strict=True)
        }
        if target is None and "put" in form:
            target = Layout.replicated(len(result))
        kinds = "".join(
            f"input {i.replace('[', ': int32[', 1)}\n" for o, i in inputs.items() if o in "PQ"
        )
        text = f"{kinds}{written('C', result, target)} = {form.format(**inputs)}\n"
        plan = plan_of(f"dims V=4, D=4, B=4, T=4, E=4, C=4, S=4, J=4\n{text}")
        try:
            check_numbers(plan, seed=7)
            same_again(plan)
        except Exception as error:
            raise AssertionError(f"{text}\n{plan}") from error


# What moves ---------------------------------------------------------------------------------------

IDS = "input tokens: int32[B_X, T], labels: int32[B_X, T]\n"

MOVES = {
    "a table split by rows adds up what each device has of the rows": (
        IDS + "x[B_X, T, D] = take_V(W[V_Y, D], tokens)",
        [
            "x[B_X, T, D] = AllReduce_Y(x[B_X, T, D]{U_Y})",
            "dW[V_Y, D] = AllReduce_X(dW[V_Y, D]{U_X})",
        ],
    ),
    "and scatters it where the result is split": (
        IDS + "x[B_X, T_Y, D] = take_V(W[V_Y, D], tokens)",
        [
            "x[B_X, T_Y, D] = ReduceScatter_{Y,T}(x[B_X, T, D]{U_Y})",
            "dx[B_X, T, D] = AllGather_Y(dx[B_X, T_Y, D])",
            "dW[V_Y, D] = AllReduce_X(dW[V_Y, D]{U_X})",
        ],
    ),
    "a table split by columns stays as it is": (
        IDS + "x[B_X, T, D_Y] = take_V(W[V, D_Y], tokens)",
        ["dW[V, D_Y] = AllReduce_X(dW[V, D_Y]{U_X})"],
    ),
    "FSDP gathers the table where its axis splits the tokens": (
        IDS + "x[B_X, T, D] = take_V(W[V_Y, D_X], tokens)",
        [
            "W[V_Y, D] = AllGather_X(W[V_Y, D_X])",
            "x[B_X, T, D] = AllReduce_Y(x[B_X, T, D]{U_Y})",
            "dW[V_Y, D_X] = ReduceScatter_{X,D}(dW[V_Y, D]{U_X})",
        ],
    ),
    "an embedding that is the unembedding too is reduced once": (
        IDS + "x[B_X, T, D] = take_V(W[V_Y, D], tokens)\n" + "logits[B_X, T, V_Y] = gelu(x) ·_D W",
        [
            "x[B_X, T, D] = AllReduce_Y(x[B_X, T, D]{U_Y})",
            "dTmp[B_X, T, D] = AllReduce_Y(dTmp[B_X, T, D]{U_Y})",
            "dW[V_Y, D] = AllReduce_X(dW[V_Y, D]{U_X})",
        ],
    ),
    "cross entropy reduces one number a token": (
        IDS + "loss[B_X, T] = cross_entropy_V(logits[B_X, T, V_Y], labels)",
        [
            "loss_max[B_X, T] = AllReduce_Y(loss_max[B_X, T]{max_Y})",
            "loss_sum[B_X, T] = AllReduce_Y(loss_sum[B_X, T]{U_Y})",
            "loss_label[B_X, T] = AllReduce_Y(loss_label[B_X, T]{U_Y})",
        ],
    ),
    "a mask is made where it is used": (
        "p[B, T_X, S] = softmax_S(where(index_S <= index_T, q[B, T_X, H] ·_H k[B, S_X, H], -inf))",
        [
            "k[B, S, H] = AllGather_X(k[B, S_X, H])",
            "dk[B, S_X, H] = ReduceScatter_{X,S}(dk[B, S, H]{U_X})",
        ],
    ),
    "a put makes each device's own rows": (
        "input e: int32[B_X, J], c: int32[B_X, J]\ny[E_Y, C, D] = put_{E,C}(x[B_X, D], e, c)",
        [
            "y[E_Y, C, D] = AllReduce_X(y[E_Y, C, D]{U_X})",
            "dx[B_X, D] = AllReduce_Y(dx[B_X, D]{U_Y})",
        ],
    ),
}


@pytest.mark.parametrize("name", MOVES)
def test_what_moves(name: str) -> None:
    """The collectives of both passes, derived by hand from what each device has."""
    text, expected = MOVES[name]
    plan = plan_of(text)

    assert expected == collectives(plan)
    same_again(plan)


def test_a_mask_is_sliced_from_indices() -> None:
    """Each device makes the mask of its own rows: the positions are sliced, and nothing is sent."""
    plan = plan_of("a[T_X, S] = where(index_S <= index_T, s[T_X, S], 0)", forward_only=True)

    assert [
        "index_T[T_X] = Slice_{X,T}(index_T[T])",
        "Tmp[S, T_X] = index_S[S] <= index_T[T_X]",
        "a[T_X, S] = where(Tmp[S, T_X], s[T_X, S], 0)",
    ] == [statement(step) for step in plan.forward]


def test_what_is_looked_up_is_on_the_critical_path() -> None:
    """The gradient of an embedded token is waited for, as that of an input is; the table's is not."""
    text = IDS + "x[B_X, T, D] = take_V(W[V, D], tokens)\ny[B_X, T, F_Y] = x ·_D W_in[D, F_Y]"
    marks = {
        statement(s).split("[")[0]: s.critical for s in plan_of(text).backward if s.is_collective
    }

    assert {"dx": True, "dW": False, "dW_in": False} == marks


def test_indices_take_no_memory() -> None:
    """They are no input, count no bytes and have no gradient."""
    bare = plan_of("y[T] = 2 * x[T]")
    plan = plan_of("y[T] = x[T] ⊙ index_T")
    program = plan.program

    assert ["x"] == [leaf.array.name for leaf in program.given]
    assert ["index", "input"] == sorted(leaf.kind for leaf in program.leaves)
    assert ["dx"] == [g.gradient.name for g in plan.gradients]
    assert "index" not in print_plan(plan).split("forward:")[0]
    assert ["peak", "activations"] == [
        key
        for key in ("peak", "activations")
        if len({str(sl.cost(p).memory.quantities[key].formula) for p in (plan, bare)}) == 1
    ]


# What they mean -----------------------------------------------------------------------------------


def whole(text: str, **leaves: object) -> np.ndarray:
    """Evaluate a text's output on whole arrays."""
    plan = lower(load_text(text), forward_only=True)
    values = {name: np.asarray(value, dtype=float) for name, value in leaves.items()}
    sizes = small_sizes(plan)
    for leaf in plan.program.leaves:
        if leaf.kind == "index":
            values[leaf.array.name] = np.arange(sizes[leaf.array.tensor.dims[0].name])
    return reference(plan, values, sizes)[plan.outputs[0].name]


def test_cross_entropy_is_the_textbook_formula() -> None:
    """It is minus the log of the softmax at the label, for large logits too."""
    logits = np.array([[1.0, -2.0, 0.5], [1000.0, 0.0, -1000.0]])
    text = "dims B=2, V=3\ninput y: int32[B]\nC[B] = cross_entropy_V(z[B, V], y)"
    first = -np.log(np.exp(0.5) / np.exp(logits[0]).sum())

    np.testing.assert_allclose(whole(text, z=logits, y=[2, 1]), [first, 1000.0])
    # A label out of range picks nothing: what is left is the logsumexp.
    np.testing.assert_allclose(whole(text, z=logits, y=[3, -1])[1], 1000.0)


def test_where_chooses() -> None:
    """Each form, element by element."""
    data = {"m": [1, 0, -2], "a": [1.0, 2.0, 3.0], "b": [7.0, 8.0, 9.0]}
    head = "dims T=3\ninput m: int32[T]\nC[T] = "

    assert [1, 0, 3] == whole(head + "where(m, a[T], 0)", **data).tolist()
    assert [1, -0.5, 3] == whole(head + "where(m, a[T], -1/2)", **data).tolist()
    assert [5, 2, 5] == whole(head + "where(m, 5, a[T])", **data).tolist()
    assert [1, 8, 3] == whole(head + "where(m, a[T], b[T])", **data).tolist()


@pytest.mark.parametrize(
    ("relation", "expected"),
    [("==", [0, 1, 0]), ("!=", [1, 0, 1]), ("<", [1, 0, 0]), ("<=", [1, 1, 0]), (">", [0, 0, 1]),
     (">=", [0, 1, 1]), ("≤", [1, 1, 0]), (r"\geq", [0, 1, 1]), ("≠", [1, 0, 1])],
)  # fmt: skip
def test_comparisons(relation: str, expected: list[int]) -> None:
    """Every relation, between tensors, with a number on either side, and with sizes."""
    head = "dims T=3, N=4\n"
    turned = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "≤": "≥", r"\geq": r"\leq"}

    assert (
        expected == whole(f"{head}C[T] = a[T] {relation} b[T]", a=[1, 2, 3], b=[2, 2, 2]).tolist()
    )
    assert expected == whole(f"{head}C[T] = a[T] {relation} 2", a=[1, 2, 3]).tolist()
    back = turned.get(relation, relation)
    sized = whole(f"{head}C[T, N] = |N| / 2 {back} a[T] ⊙ n[N]", a=[1, 2, 3], n=[1] * 4)
    assert expected == sized[:, 0].tolist()


def test_a_comparison_binds_least() -> None:
    """`A + B <= 2 * C` compares the sums; in a product it stands in brackets."""
    program = load_text("D[I] = A[I] + B[I] <= 2 * C[I]\nE[I] = A[I] ⊙ (D[I] > 0)\n")

    assert [
        "Tmp[I] = A[I] + B[I]",
        "Tmp2[I] = 2 * C[I]",
        "D[I] = Tmp[I] <= Tmp2[I]",
        "Tmp3[I] = D[I] > 0",
        "E[I] = A[I] ⊙ Tmp3[I]",
    ] == [statement(step) for step in lower(program, forward_only=True).forward]


def test_a_name_that_a_program_gives_is_its_own() -> None:
    """`index_T` is a leaf of the program where it is declared, and a value where it is defined."""
    declared = load_text("input index_T: [T]\nC[T] = A[T] ⊙ index_T")
    defined = load_text("index_T[T] = 2 * A[T]\nC[T] = A[T] ⊙ index_T")

    assert ["input", "input"] == [leaf.kind for leaf in declared.leaves]
    assert ["A"] == [leaf.array.name for leaf in defined.leaves]


def test_dtypes() -> None:
    """A looked up row has the table's dtype, a selected value its own, a comparison that of its sides."""
    text = (
        "input t: int32[B], m: f32[B]\n"
        "x[B, D] = take_V(W[V, D], t)\ny[B, D] = where(m, x, 0)\nc[B] = t < 3\n"
        "z[E, D] = put_E(y, t)"
    )
    made = {s.result.name: s.result.dtype.name for s in load_text(text).statements}

    assert {"x": "bf16", "y": "bf16", "c": "int32", "z": "bf16"} == made


# Blocks, searches, explicit programs --------------------------------------------------------------

BLOCK = """
dims B=8, T=4, D=4, K=2, H=2, V=8, L=2
input tokens: int32[B_X, T], labels: int32[B_X, T]
param W_e: [V_Y, D], W_q: [L, D, K_Y, H], W_o: [L, K_Y, H, D]
x[B_X, T, D] = take_V(W_e, tokens)
layers L:
  q[B_X, T, K_Y, H] = x ·_D W_q
  s[B_X, K_Y, T, S] = q ·_H q[B_X, S, K_Y, H]
  p[B_X, K_Y, T, S] = softmax_S(where(index_S <= index_T, s, -inf))
  x = x + (p ·_S q[B_X, S, K_Y, H]) ·_{K,H} W_o
loss[] = mean_{B,T}(cross_entropy_V(x ·_D W_e, labels))
"""


def test_indices_in_a_block() -> None:
    """A block reads indices as values from outside; written out it gives the right numbers."""
    plan = plan_of(BLOCK)
    same_again(plan)
    check_numbers(unroll_plan(plan, 2).plan, sizes={**small_sizes(plan), **SMALL})
    assert "index_S[S] <= index_T[T]" in print_plan(plan)


SMALL = {"B": 4, "T": 4, "S": 4, "D": 4, "K": 2, "H": 2, "V": 4}

SEARCHED = [
    "input t: int32[B_X, T]\nx[B_X, T, D] = take_V(W[V_Y, D], t)\ny[B_X, T, F_Y] = x ·_D W_in[D, F_Y]",
    "input t: int32[B_X, T]\nc[B_X, T] = cross_entropy_V(x[B_X, T, D] ·_D W[D, V_Y], t)",
    """input e: int32[B_X], c: int32[B_X]
    y[E_Y, C, D] = put_{E,C}(x[B_X, D], e, c)
    z[B_X, D] = take_{E,C}(gelu(y), e, c)""",
    "a[T_X, S] = where(index_S <= index_T, q[T_X, H] ·_H k[S_Y, H], 0)",
]


def total(plan: Plan) -> Fraction:
    """Add up what the collectives of a plan move."""
    known, mesh = plan.program.sizes.known, plan.program.mesh
    moves = [s for _, s in plan.steps() if s.is_collective]
    return sum(
        (price(s.op, s.inputs[0], s.output, mesh, known, "link") for s in moves), Fraction(0)
    )


@pytest.mark.parametrize("text", SEARCHED)
def test_a_search_plans_them(text: str) -> None:
    """An optimal plan computes the same, is legal, and moves no more than the rules' plan."""
    head = f"{MESH}dims B=8, T=4, D=4, F=8, V=16, E=4, C=4, S=4, H=4\n"
    found = sl.lower(load_text(head + text), strategy="optimal")
    book = sl.lower(load_text(head + text))

    check_numbers(found)
    same_again(found)
    assert found.proof is not None
    assert found.proof.optimal
    assert found.proof.cost <= total(book)


def test_flops_are_those_of_the_rows() -> None:
    """A look-up is no product: it counts the elements that are read, shared by the table's devices."""
    plan = plan_of(IDS + "x[B_X, T, D] = take_V(W[V_Y, D], tokens)")
    work = {type(s.op).__name__: str(flops(s)) for _, s in plan.steps() if s.is_compute}

    assert {"Take": "B*D*T/(X*Y)", "Put": "B*D*T/(X*Y)"} == work


# Mistakes -----------------------------------------------------------------------------------------

MISTAKES = [
    ("C[B, D] = take_V(W[V, D], x[B])", "SH271", "x is bf16"),
    ("input t: int32[B]\nC[B, D] = take_Q(W[V, D], t)", "SH217", "Q is not a dim of W"),
    (
        "input t: int32[B]\nC[B, D] = take_V(W[V, D], t, t)",
        "SH223",
        "take_V takes 2 arguments, not 3",
    ),
    ("C[B, D] = take_{V,D}(W[V, D])", "SH223", "take_{V,D} takes 3 arguments, not 1"),
    ("input t: int32[B]\nC[B, D] = take(W[V, D], t)", "SH224", "subscript"),
    ("input t: int32[V]\nC[V, D] = take_V(W[V, D], t)", "SH272", "t has that dim too"),
    ("input t: int32[B]\nC[E, D] = put_E(A[E, D], t)", "SH272", "A has it"),
    ("input t: int32[B]\nC = put_E(A[B, D], t)", "SH273", "B and D"),
    ("input t: int32[B]\nC[E, F] = put_E(A[B, D], t) ·_D W[D, F]", "SH273", "nothing says"),
    ("input t: int32[B]\nC[D] = put_E(A[B, D], t)", "SH218", "C lacks E"),
    (
        "mesh X=2\ninput t: int32[B]\nC[E_X, D] = put_{E_X}(A[B, D], t)",
        "SH242",
        "E_X ends in an axis",
    ),
    ("C[S] = where(m[S], 2, 3)", "SH274", "two numbers"),
    ("C[S] = where(1, 2, 3) ⊙ A[S]", "SH234", "a number stands here"),
    ("C[S] = where(m[S], A[S])", "SH223", "where takes 3 arguments, not 2"),
    ("C[S] = where(m[S], A[S], inf)", "SH276", "inf"),
    ("C[S] = where(m[S], A[S], |S|)", "SH235", "size"),
    ("input i: int32[S]\nC[S] = where(m[S], i, 0.5)", "SH276", "0.5 is no whole number"),
    ("C[S] = 2 <= 3", "SH234", "a number stands here"),
    ("C[S] = A[S] <= B[S] <= D[S]", "SH101", "not `<=`"),
    ("C[S, T] = index_Q <= A[S, T]", "SH275", "no tensor has a dim Q"),
    ("C[S, T] = index_T[T, S] + A[S, T]", "SH207", "index_T has the dims [T]"),
    ("C[B] = cross_entropy_V(A[B, V], l[B])", "SH271", "l is bf16"),
    ("input l: int32[B]\nC[B] = cross_entropy_{B,V}(A[B, V], l)", "SH235", "along one dim"),
    ("input l: int32[B]\nC[B] = cross_entropy(A[B, V], l)", "SH224", "subscript"),
]


@pytest.mark.parametrize(("text", "code", "fragment"), MISTAKES)
def test_mistakes(text: str, code: str, fragment: str) -> None:
    """Each mistake is reported once, with its code and words."""
    with pytest.raises(ShardlangError) as caught:
        load_text(text + "\n")
    (found,) = caught.value.diagnostics

    assert (code, True) == (found.code, fragment in found.message), found.message


def test_ids_and_masks_have_to_be_whole() -> None:
    """In an explicit program partial ids and masks are no operands of a step."""
    lines = {
        "x[B, D] = take_V(W[V, D], t[B]{U_X})": "ids have to be whole",
        "y[B] = where(t[B]{U_X}, a[B], 0)": "a mask has to be whole",
        "z[B]{U_X} = where(t[B], a[B]{U_X}, -inf)": "not the sum of where",
    }
    for line, words in lines.items():
        text = f"mesh X=2\ninput t: int32[B]{'{U_X}' * ('t[B]{' in line)}, a: [B]{'{U_X}' * ('a[B]{' in line)}\nforward:\n  {line}\n"
        (found,) = (d for d in check(load_text(text)) if d.code != "SH248")  # not all lines read a
        assert words in found.message, found


# In JAX -------------------------------------------------------------------------------------------

RUNS = {
    "a small model": MESH + BLOCK,
    "rows split over two axes, narrow ids": (
        "mesh X=2, Y=2\ndims B=4, T=8, D=4, V=16\ndtype f32\ninput t: int8[B, T_X]\n"
        "x[B, T_X, D] = take_V(W[V_YX, D], t)\ny[B, T_X] = x ·_D g[D]"
    ),
    "experts": (
        "mesh X=2, Y=2\ndims B=4, S=4, J=2, E=4, C=4, D=6, F=4\n"
        "input e: int32[B_X, S, J], c: uint8[B_X, S, J]\n"
        "x_e[E_Y, C, D] = put_{E,C}(x[B_X, S, D], e, c)\n"
        "y[E_Y, C, D] = gelu(x_e ·_D W_in[E_Y, D, F]) ·_F W_out[E_Y, F, D]\n"
        "out[B_X, S, D] = sum_J(g[B_X, S, J] ⊙ take_{E,C}(y, e, c))"
    ),
    "comparisons": (
        "mesh X=2, Y=2\ndims S=4, T=8\ndtype f32\ninput m: int32[T_X]\n"
        "a[S_Y, T_X] = where(index_S < index_T, x[S_Y, T_X], y[T])\n"
        "b[S_Y] = sum_T(where(m > |S| / 4, a, -1.5) + (index_T >= 3))\n"
        "c[S_Y, T_X] = where(x > 0.25, 2, a)"
    ),
    "labels between other dims": (
        "mesh X=2, Y=2\ndims B=4, V=8, T=4\ninput t: int32[T, B_X]\n"
        "c[B_X, T] = cross_entropy_V(z[B_X, V_Y, T], t)\nd[V_Y, B_X] = log_softmax_V(u[B_X, V_Y])"
    ),
}


@pytest.mark.jax
@pytest.mark.parametrize("name", RUNS)
def test_emitted_modules(name: str) -> None:
    """Emitted code gives the reference's values and gradients and the plan's collectives."""
    from shardlang.verify.runner import run_check

    plan = lower(load_text(RUNS[name] + "\n"))
    for exact in (True, False):
        result = run_check(plan, exact=exact, thorough=not exact)
        assert result.ok, result.to_text()


def test_no_one_hot_is_made() -> None:
    """A look-up gathers rows: no line makes an array of the tokens' dims and V."""
    plan = plan_of("dims B=4, T=8, D=4, V=64\n" + IDS + "x[B_X, T, D] = take_V(W[V_Y, D], tokens)")
    code = emit_jax(plan)
    steps = code[code.index("def _forward_steps") : code.index("def make_mesh")]

    assert "_take_rows(W, _places(tokens" in steps
    assert "one_hot" not in code
    assert "einsum" not in steps


def test_sizes_are_read_off_the_inputs() -> None:
    """The size of an index is that of its dim in the inputs, or of the dim that has the same size."""
    plan = plan_of("dims T=4\na[T, S] = where(index_S <= index_T, q[T] ⊙ q[S], 0)")

    assert '{"S": inputs[0].shape[0], "T": inputs[0].shape[0]}' in emit_jax(plan)


def test_rows_are_read_of_a_table() -> None:
    """Of a table that is looked up in alone the rows count as read, at most all of it."""
    tail = IDS + "x[B_X, T, D] = take_V(W[V_Y, D], tokens)"

    def read(dims: str) -> str:
        return str(fused(Layers.of(plan_of(dims + tail)), "forward"))

    ids, made = "4*B*T/X", "2*B*D*T/X"
    assert f"{made} + 2*B*D*T/(X*Y) + {ids}" == read("")
    assert f"{made} + 2*B*D*T/(X*Y) + {ids}" == read("dims B=4, T=8, D=4, V=64\n")
    assert f"{made} + {ids} + 2*D*V/Y" == read("dims B=4, T=8, D=4, V=8\n")
