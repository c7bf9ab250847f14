"""Plans of one or a few steps: every operation and every change of layout, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import partial

from jaxcases import plan

from shardlang.ir.functions import FUNCTIONS
from shardlang.ir.ops import (
    Coefficient,
    Compare,
    Divide,
    Einsum,
    Linear,
    Map,
    Rank,
    Reduce,
    Rename,
    Reshape,
    Rotary,
    Top,
)
from shardlang.ir.plan import Plan
from shardlang.ir.types import Dim

ONE = Coefficient()
MINUS = Coefficient(Fraction(-1))
XY = {"X": 2, "Y": 2}
WIDE = {"X": 2, "Y": 4}
XYZ = {"X": 2, "Y": 2, "Z": 2}


def _move(source: str, call: str, target: str, mesh: Mapping[str, int]) -> Callable[[], Plan]:
    """Make a plan of one change of layout, forward alone."""
    line = f"{target} = {call}({source})"
    return partial(plan, [line], mesh=mesh, leaves=[source], outputs=[target])


def _dims(names: str) -> tuple[Dim, ...]:
    return tuple(Dim(name) for name in names)


MOVES: dict[str, Callable[[], Plan]] = {
    "gather both axes": _move("A[I_XY, J]", "AllGather_XY", "A[I, J]", WIDE),
    "gather both axes in the other order": _move("A[I_YX, J]", "AllGather_YX", "A[I, J]", WIDE),
    "gather the inner axis": _move("A[I_XY, J]", "AllGather_Y", "A[I_X, J]", WIDE),
    "gather a last dim": _move("A[I_X, J_Y]", "AllGather_Y", "A[I_X, J]", XY),
    "gather beside partial sums": _move("A[I_X]{U_Y}", "AllGather_X", "A[I]{U_Y}", XY),
    "scatter over both axes": _move("A[I, J]{U_XY}", "ReduceScatter_{XY,I}", "A[I_XY, J]", WIDE),
    "scatter in the other order": _move(
        "A[I, J]{U_XY}", "ReduceScatter_{YX,I}", "A[I_YX, J]", WIDE
    ),
    "scatter inside another axis": _move(
        "A[I_X, J]{U_Y}", "ReduceScatter_{Y,I}", "A[I_XY, J]", WIDE
    ),
    "scatter one of two": _move("A[I, J]{U_XY}", "ReduceScatter_{X,J}", "A[I, J_X]{U_Y}", XY),
    "reduce": _move("A[I_X, J]{U_Y}", "AllReduce_Y", "A[I_X, J]", XY),
    "reduce two axes": _move("A[I, J]{U_XY}", "AllReduce_XY", "A[I, J]", XY),
    "reduce maxima": _move("A[I_X, J]{max_Y}", "AllReduce_Y", "A[I_X, J]", XY),
    "reduce minima": _move("A[I_X, J]{min_Y}", "AllReduce_Y", "A[I_X, J]", XY),
    "exchange the inner axis": _move("A[I_XY, J_Z]", "AllToAll_{Y,J}", "A[I_X, J_ZY]", XYZ),
    "exchange two axes": _move("A[I_YX, J]", "AllToAll_{YX,J}", "A[I, J_YX]", WIDE),
    "exchange back": _move("A[I, J_XY]", "AllToAll_{XY,I}", "A[I_XY, J]", WIDE),
    "permute the order of axes": _move("A[I_XY, J]", "Permute", "A[I_YX, J]", WIDE),
    "permute axes of two dims": _move("A[I_X, J_Y]", "Permute", "A[I_Y, J_X]", XYZ),
    "permute onto an idle axis": _move("A[I_X, J]", "Permute", "A[I_Y, J]", XYZ),
    "permute onto an idle axis and a used one": _move("A[I_X, J_Y]", "Permute", "A[I_Y, J_Z]", XYZ),
    "permute beside partial sums": _move("A[I_X]{U_Z}", "Permute", "A[I_Y]{U_Z}", XYZ),
    "slice inside": _move("A[I_Z, J]", "Slice_{XY,I}", "A[I_ZXY, J]", XYZ),
    "slice in the other order": _move("A[I, J]", "Slice_{YX,J}", "A[I, J_YX]", WIDE),
    "mask": _move("A[I_X, J]", "Mask_Y", "A[I_X, J]{U_Y}", XY),
    "mask two axes": _move("A[I, J]", "Mask_XY", "A[I, J]{U_XY}", XY),
    "an axis of size 1": _move("A[I_X, J_Y]", "AllGather_X", "A[I, J_Y]", {"X": 1, "Y": 2}),
}
"""Changes of layout."""

COMPUTE: dict[str, Callable[[], Plan]] = {
    "a batched einsum with transposes": partial(
        plan,
        ["C[K, H_Y, I_X] = A[I_X, J, H_Y] ·_J B[H_Y, K, J]"],
        [
            "dA[I_X, J, H_Y] = dC[K, H_Y, I_X] ·_K B[H_Y, K, J]",
            "dB[H_Y, K, J]{U_X} = dC[K, H_Y, I_X] ·_I A[I_X, J, H_Y]",
            "dB[H_Y, K, J] = AllReduce_X(dB[H_Y, K, J]{U_X})",
        ],
        mesh=XY,
        leaves=["A[I_X, J, H_Y]", "B[H_Y, K, J]"],
        outputs=["C[K, H_Y, I_X]"],
    ),
    "an output left partial": partial(
        plan,
        ["C[I, K]{U_X} = A[I, J_X] ·_J B[J_X, K]"],
        ["dA[I, J_X] = dC[I, K] ·_K B[J_X, K]", "dB[J_X, K] = A[I, J_X] ·_I dC[I, K]"],
        mesh=XY,
        leaves=["A[I, J_X]", "B[J_X, K]"],
        outputs=["C[I, K]{U_X}"],
    ),
    "a partial leaf": partial(
        plan,
        [
            "C[I, K_Y]{U_X} = A[I, J]{U_X} ·_J B[J, K_Y]",
            "C[I, K_Y] = AllReduce_X(C[I, K_Y]{U_X})",
        ],
        [
            "dA[I, J]{U_Y} = dC[I, K_Y] ·_K B[J, K_Y]",
            "dA[I, J] = AllReduce_Y(dA[I, J]{U_Y})",
            "dB[J, K_Y]{U_X} = A[I, J]{U_X} ·_I dC[I, K_Y]",
            "dB[J, K_Y] = AllReduce_X(dB[J, K_Y]{U_X})",
        ],
        mesh=XY,
        leaves=["A[I, J]{U_X}", "B[J, K_Y]"],
        outputs=["C[I, K_Y]"],
    ),
    "a partial value kept for backward": partial(
        plan,
        [
            "T[I, K]{U_X} = A[I, J_X] ·_J B[J_X, K]",
            "C[I, K]{U_X} = T[I, K]{U_X} ⊙ S[K]",
            "C[I, K] = AllReduce_X(C[I, K]{U_X})",
        ],
        [
            "dT[I, K] = dC[I, K] ⊙ S[K]",
            "dS[K]{U_X} = dC[I, K] ·_I T[I, K]{U_X}",
            "dS[K] = AllReduce_X(dS[K]{U_X})",
            "dA[I, J_X] = dT[I, K] ·_K B[J_X, K]",
            "dB[J_X, K] = dT[I, K] ·_I A[I, J_X]",
        ],
        mesh={"X": 2},
        leaves=["A[I, J_X]", "B[J_X, K]", "S[K]"],
        outputs=["C[I, K]"],
    ),
    "a mean, a map and broadcasts": partial(
        plan,
        [
            ("S[B_X]{U_Y} = A[B_X, D_Y]", Reduce("mean", _dims("D"))),
            "S[B_X] = AllReduce_Y(S[B_X]{U_Y})",
            ("R[B_X] = S[B_X]", Map("gelu")),
            "C[D_Y, B_X] = A[B_X, D_Y] ⊙ R[B_X] ⊙ G[D_Y]",
        ],
        [
            ("dR[B_X]{U_Y} = dC[D_Y, B_X] A[B_X, D_Y] G[D_Y]", Einsum(_dims("D"))),
            "dR[B_X] = AllReduce_Y(dR[B_X]{U_Y})",
            ("Q[B_X] = S[B_X]", Map("gelu_grad")),
            "dS[B_X] = dR[B_X] ⊙ Q[B_X]",
            ("dA1[B_X, D_Y] = dS[B_X]", Linear((Coefficient() / Coefficient.size(*_dims("D")),))),
            "dA2[B_X, D_Y] = dC[D_Y, B_X] ⊙ R[B_X] ⊙ G[D_Y]",
            ("dA[B_X, D_Y] = dA1[B_X, D_Y] + dA2[B_X, D_Y]", Linear((ONE, ONE))),
            ("dG[D_Y]{U_X} = dC[D_Y, B_X] A[B_X, D_Y] R[B_X]", Einsum(_dims("B"))),
            "dG[D_Y] = AllReduce_X(dG[D_Y]{U_X})",
        ],
        mesh=XY,
        leaves=["A[B_X, D_Y]", "G[D_Y]"],
        outputs=["C[D_Y, B_X]"],
    ),
    "softmax": partial(
        plan,
        [
            ("M[B_X]{max_Y} = A[B_X, S_Y]", Reduce("max", _dims("S"))),
            "M[B_X] = AllReduce_Y(M[B_X]{max_Y})",
            ("T[B_X, S_Y] = A[B_X, S_Y] - M[B_X]", Linear((ONE, MINUS))),
            ("E[B_X, S_Y] = T[B_X, S_Y]", Map("exp")),
            ("Z[B_X]{U_Y} = E[B_X, S_Y]", Reduce("sum", _dims("S"))),
            "Z[B_X] = AllReduce_Y(Z[B_X]{U_Y})",
            ("P[B_X, S_Y] = E[B_X, S_Y] Z[B_X]", Divide()),
        ],
        mesh=XY,
        leaves=["A[B_X, S_Y]"],
        outputs=["P[B_X, S_Y]"],
    ),
    "a linear combination": partial(
        plan,
        [
            (
                "C[I_X, J] = A[J] B[I_X, J] E[I_X]",
                Linear(
                    (
                        Coefficient(Fraction(-3, 2)),
                        Coefficient() / Coefficient.size(*_dims("IJ")),
                        Coefficient(Fraction(-1, 3)),
                    ),
                    Fraction(5, 2),
                ),
            )
        ],
        mesh={"X": 2},
        leaves=["A[J]", "B[I_X, J]", "E[I_X]"],
        outputs=["C[I_X, J]"],
    ),
    "a broadcast to split dims, and a transpose": partial(
        plan,
        [
            ("C[I_X, J, K_Y] = A[J]", Linear((ONE,))),
            ("F[K_Y, J, I_X] = C[I_X, J, K_Y]", Linear((ONE,))),
        ],
        mesh=XY,
        leaves=["A[J]"],
        outputs=["F[K_Y, J, I_X]"],
        sizes={"K": 6, "I": 4},
    ),
    "the places of the maxima": partial(
        plan,
        [
            ("M[I] = A[I, J]", Reduce("max", _dims("J"))),
            ("C[I, J] = A[I, J] M[I]", Compare("==")),
        ],
        mesh={"X": 2},
        leaves=["A[I, J]"],
        outputs=["C[I, J]"],
    ),
    "a sum of everything": partial(
        plan,
        [
            ("s[]{U_X} = A[I, J_X]", Reduce("sum", _dims("IJ"))),
            "s[] = AllReduce_X(s[]{U_X})",
        ],
        [("dA[I, J_X] = ds[]", Linear((ONE,)))],
        mesh={"X": 2},
        leaves=["A[I, J_X]"],
        outputs=["s[]"],
    ),
    "no mesh at all": partial(
        plan,
        ["C[I, K] = A[I, J] ·_J B[J, K]"],
        mesh={},
        leaves=["A[I, J]", "B[J, K]"],
        outputs=["C[I, K]"],
    ),
    "an axis of size 1 with no step for it": partial(
        plan,
        ["C[I, K_Y] = A[I, J] ·_J B[J, K_Y]"],
        mesh={"X": 1, "Y": 2},
        leaves=["A[I_X, J]", "B[J, K_Y]"],
        outputs=["C[I, K_Y]"],
    ),
    "dims under other names": partial(
        plan,
        [
            ("B[D, S_Y] = A[T_Y, D]", Rename(_dims("SD"))),
            "C[T_X, S_Y] = Q[T_X, D] ·_D B[D, S_Y]",
        ],
        [
            "dQ[T_X, D]{U_Y} = dC[T_X, S_Y] ·_S B[D, S_Y]",
            "dQ[T_X, D] = AllReduce_Y(dQ[T_X, D]{U_Y})",
            "dB[D, S_Y]{U_X} = dC[T_X, S_Y] ·_T Q[T_X, D]",
            "dB[D, S_Y] = AllReduce_X(dB[D, S_Y]{U_X})",
            ("dA[T_Y, D] = dB[D, S_Y]", Rename(_dims("DT"))),
        ],
        mesh={"X": 2, "Y": 3},
        leaves=["A[T_Y, D]", "Q[T_X, D]"],
        outputs=["C[T_X, S_Y]"],
    ),
    "pairs turned by angles that have other dims": partial(
        plan,
        [("C[T_X, H, B_Y] = A[B_Y, H] F[R, T_X]", Rotary(Dim("H"), Dim("R")))],
        [
            ("D[T_X, H, B_Y] = dC[T_X, H, B_Y] F[R, T_X]", Rotary(Dim("H"), Dim("R"), back=True)),
            ("dA[B_Y, H]{U_X} = D[T_X, H, B_Y]", Reduce("sum", _dims("T"))),
            "dA[B_Y, H] = AllReduce_X(dA[B_Y, H]{U_X})",
            ("dF[R, T_X] = F[R, T_X]", Linear((Coefficient(Fraction(0)),))),
        ],
        mesh=XY,
        leaves=["A[B_Y, H]", "F[R, T_X]"],
        outputs=["C[T_X, H, B_Y]"],
        sizes={"H": 8, "R": 4},
    ),
    "a dim written as two, used up, and turned round": partial(
        plan,
        [
            ("C[G_Y, B, K_X] = A[N_XY, B]", Reshape(_dims("N"), _dims("KG"))),
            ("D[B, M_XY] = C[G_Y, B, K_X]", Reshape(_dims("KG"), _dims("M"))),
        ],
        [
            ("dC[G_Y, B, K_X] = dD[B, M_XY]", Reshape(_dims("M"), _dims("KG"))),
            ("dA[N_XY, B] = dC[G_Y, B, K_X]", Reshape(_dims("KG"), _dims("N"))),
        ],
        mesh={"X": 2, "Y": 2},
        leaves=["A[N_XY, B]"],
        outputs=["D[B, M_XY]"],
        sizes={"K": 2, "G": 6, "N": 12, "M": 12},
    ),
    "the largest, and how many had the same before": partial(
        plan,
        [
            ("C[J, B_X] = A[B_X, E]", Top(Dim("E"), Dim("J"))),
            ("D[B_X, J] = C[J, B_X]", Rank(_dims("J"))),
        ],
        mesh={"X": 2},
        leaves=["A[B_X, E]"],
        outputs=["D[B_X, J]"],
        sizes={"E": 6, "J": 3},
        dtypes={"C": "int32", "D": "int32"},
    ),
    "ranks over two dims in either order": partial(
        plan,
        [
            ("C[J, B_X, S] = A[B_X, S, J]", Rank(_dims("SJ"))),
            ("D[B_X, S, J] = A[B_X, S, J]", Rank(_dims("JS"))),
        ],
        mesh={"X": 2},
        leaves=["A[B_X, S, J]"],
        outputs=["C[J, B_X, S]", "D[B_X, S, J]"],
        dtypes={"A": "int32", "C": "int32", "D": "int32"},
    ),
    "a leaf with no gradient": partial(
        plan,
        ["C[I] = A[I] ⊙ A[I]"],
        [
            "T[I] = A[I] ⊙ dC[I]",
            ("dA[I] = T[I]", Linear((Coefficient(Fraction(2)),))),
        ],
        mesh=XY,
        leaves=["A[I]", "B[J_X]{U_Y}"],
        outputs=["C[I]"],
    ),
    "the log of data that must be positive": partial(
        plan,
        [("L[I_X] = A[I_X]", Map("log"))],
        mesh={"X": 2},
        leaves=["A[I_X]"],
        outputs=["L[I_X]"],
    ),
}
"""Compute steps, some with their backward pass."""


def _product(kinds: Mapping[str, str], *, backward: bool = False, gelu: bool = False) -> Plan:
    forward: list[str | tuple[str, Map]] = [
        "C[I, K]{U_X} = A[I, J_X] ·_J B[J_X, K]",
        "C[I, K] = AllReduce_X(C[I, K]{U_X})",
    ]
    if gelu:
        forward.append(("G[I, K] = C[I, K]", Map("gelu")))
    back = ["dA[I, J_X] = dC[I, K] ·_K B[J_X, K]"] if backward else []
    return plan(
        forward,
        back,
        mesh={"X": 2},
        leaves=["A[I, J_X]", "B[J_X, K]"],
        outputs=["G[I, K]" if gelu else "C[I, K]"],
        dtypes=kinds,
        dtype=kinds["C"],
    )


DTYPE_CASES: dict[str, Callable[[], Plan]] = {
    "int8 into int32": partial(_product, {"A": "int8", "B": "int8", "C": "int32"}),
    "int4 weights": partial(
        _product,
        {"A": "bf16", "B": "int4", "C": "bf16", "dA": "bf16", "dC": "bf16"},
        backward=True,
    ),
    "f8 into f16": partial(
        _product, {"A": "f8e4m3", "B": "f8e5m2", "C": "f16", "G": "f8e4m3"}, gelu=True
    ),
    "f64": partial(_product, {"C": "f64"}, gelu=True),
    "bool and uint8": partial(_product, {"A": "bool", "B": "uint8", "C": "uint32"}),
    "f16": partial(_product, {"C": "f16"}, gelu=True),
}
"""Element types."""

MAPS: dict[str, Callable[[], Plan]] = {
    f"{name} in {dtype}": partial(
        plan,
        [("L[I_X] = A[I_X]", Map(name))],
        mesh={"X": 2},
        leaves=["A[I_X]"],
        outputs=["L[I_X]"],
        dtype=dtype,
    )
    for name in FUNCTIONS
    for dtype in ("f32", "bf16")
}
"""Every function."""
