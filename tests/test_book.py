"""The worked problems of *How to Scale Your Model*, each computed through the public interface.

A row has an id: its chapter (`ST` structure, `RF` rooflines, `TP` TPUs, `SH` sharding, `TF`
transformers, `SD` and `AT` training, `IN` and `AI` inference, `GP` GPUs) and a number. The test of a row
bears its id in its name. Expected numbers are the book's, recomputed, with as many digits as it gives;
where its print is wrong the right number stands here, and a comment says what is printed. Programs
longer than a few lines are in `cases/book`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sympy
from simulator import check_numbers

import shardlang as sl
from shardlang.cost.report import Report
from shardlang.ir.plan import Plan
from shardlang.ir.printer import print_plan

HERE = Path(__file__).parent / "cases" / "book"

CHAPTERS = {
    "ST": "01 02 03 04 06 09 10 11 12 13 14 16 20 21 22 25 26 27 30",
    "RF": "01 02 03 04 06 09 10",
    "TP": "01 02 03 05 07",
    "SH": "01 03 07 08 10 11 13 16 19 20",
    "TF": "01 02 03 04 05 06 07 11 13",
    "SD": "01 02 03 04 06 07 09 10 11 12 14 15 16 17 21 22 23 24 28",
    "AT": "01 02 03 06 07 10",
    "IN": "01 02 04 06 07 12",
    "AI": "01 02 03 08 09 10 14",
    "GP": "01 02 04 07 08",
}
ROWS = [f"{chapter}-{row}" for chapter, rows in CHAPTERS.items() for row in rows.split()]
"""Every row."""

LEFT_OUT = {
    "AI-10": "arithmetic of a request queue: how many sequences end a step, and how much they free",
    "TP-07": "a copy from one chip to one that is 6 hops away: collectives are of all chips alike",
}
"""The rows that are not tested, each with the reason."""


def test_every_row_is_here_once() -> None:
    """Each of the 93 rows has one test that bears its id (91 do), or a reason why it has none."""
    tests = [name for name in globals() if re.fullmatch(r"test_[a-z]{2}_\d\d_\w+", name)]
    tested = sorted(name[5:10].upper().replace("_", "-") for name in tests)

    assert (len(ROWS), len(tests)) == (93, 91)
    assert sorted([*tested, *LEFT_OUT]) == sorted(ROWS)


# How the rows are asked -------------------------------------------------------------------------


def plan_of(text: str, *, forward: bool = False, **sizes: int) -> Plan:
    """Lower a program, or one in `cases/book` by its file's name."""
    program = sl.load(HERE / text) if text.endswith(".shd") else sl.parse(text)
    return sl.lower(program, sizes=sizes, forward_only=forward)


def report_of(
    text: str,
    hardware: str | None = None,
    *,
    forward: bool = False,
    model: Any = "book",
    overlap: Any = None,
    hbm: bool = False,
    sets: dict[str, float] | None = None,
    **sizes: int,
) -> Report:
    """Price a program; what is given by name are sizes.

    `sets` are figures of the hardware, and sizes of which nobody asks that they divide.
    """
    plan = plan_of(text, forward=forward, **sizes)
    return sl.cost(plan, hardware=hardware, model=model, overlap=overlap, hbm=hbm, sets=sets)


def moves(text: str, which: str = "forward", *, forward: bool = False) -> list[str]:
    """List the collectives of a pass, as the report has them, in the notation."""
    made: list[str] = []
    for each in report_of(text, forward=forward).to_dict()["collectives"]:
        axes = "".join(each["axes"])
        if each["op"] in {"ReduceScatter", "AllToAll"}:
            axes = f"{{{axes},{each['dim']}}}"
        if each["pass"] == which:
            made.append(f"{each['to']} = {each['op']}_{axes}({each['from']})")
    return made


def seconds(report: Report, which: str = "forward", key: str = "t_comms") -> float:
    """Give a time of a pass, in seconds."""
    return report.to_dict()["totals"][which][key]["seconds"]


def value(report: Report, which: str, key: str) -> float:
    """Give the FLOPs or bytes of a pass."""
    return report.to_dict()["totals"][which][key]["value"]


def same(report: Report, which: str, key: str, expected: str) -> bool:
    """Compare a formula of a pass, or of the memory, with the book's."""
    data = report.to_dict()
    found = data["memory"] if which == "memory" else data["totals"][which]
    return equal(found[key]["formula"], expected, data["symbols"])


def symbol(name: str) -> sympy.Symbol:
    """Give a size, which is positive, as reports have it."""
    return sympy.Symbol(name, positive=True)


def read(formula: str, names: Any) -> Any:
    """Read a formula in which these names are sizes."""
    return sympy.sympify(formula, locals={name: symbol(name) for name in names})


def equal(found: str, expected: str, names: Any) -> bool:
    """Compare two formulas of sizes."""
    return sympy.simplify(read(found, names) - read(expected, names)) == 0


@pytest.fixture
def solve(shardlang: Callable[..., Any]) -> Callable[..., Any]:
    """Run `shardlang solve` on a text, and give what it says as data; `forward` alone by default."""

    def run(text: str, *arguments: str, passes: str = "forward") -> Any:
        lines = [part for line in text.splitlines() for part in ("-e", line)]
        source = [HERE / text] if text.endswith(".shd") else lines
        done = shardlang("solve", *source, *arguments, "--pass", passes, "--format", "json")
        assert done.status == 0, done.err
        return SimpleNamespace(**json.loads(done.out))

    return run


@pytest.fixture
def chip(shardlang: Callable[..., Any]) -> Callable[[str], dict[str, float]]:
    """Give the figures of a chip that `shardlang hardware` shows, and those derived from them."""

    def run(name: str) -> dict[str, float]:
        (data,) = json.loads(shardlang("hardware", name, "--format", "json").out)["hardware"]
        return {
            key: entry["value"] for key, entry in {**data["figures"], **data["derived"]}.items()
        }

    return run


LLAMA = (HERE / "llama.shd").read_text(encoding="utf-8")
SIZES = ("L", "D", "F", "K", "G", "H", "V")
MODELS = {
    "LLaMA-2-13B": (40, 5120, 13824, 40, 1, 128, 32_000),
    "LLaMA-3-70B": (80, 8192, 28672, 8, 8, 128, 128_256),
    "LLaMA-3-405B": (126, 16384, 53248, 8, 16, 128, 128_256),
    "TF toy": (64, 4096, 16384, 32, 1, 128, 32_000),
    "IN toy": (64, 4096, 16384, 8, 4, 256, 32_128),
}


def sizes_of(model: str) -> dict[str, int]:
    """Give the sizes of a model: layers, widths, key heads, query heads of each, and so on."""
    return dict(zip(SIZES, MODELS[model], strict=True))


def without(text: str, name: str) -> str:
    """Give a program without the lines that have a name."""
    return "\n".join(line for line in text.splitlines() if name not in line)


def weights_of(model: str, text: str = LLAMA, *lacking: str) -> float:
    """Count the parameters of a model in bf16, without the matrices that have any of these dims."""
    held = report_of(text, forward=True, sets={"X": 1}).memory.parameters
    held = held.subs(dict.fromkeys(map(symbol, lacking), 0))
    return float(held.subs({symbol(k): v for k, v in {**sizes_of(model), "X": 1}.items()})) / 2


MESH = "mesh X, Y\n"
DP = "In[B_X, D] · W_in[D, F] · W_out[F, D] -> Out[B_X, D]"
FSDP = "In[B_X, D] · W_in[D_X, F] · W_out[F, D_X] -> Out[B_X, D]"
TP = "In[B, D_Y] · W_in[D, F_Y] · W_out[F_Y, D] -> Out[B, D_Y]"
MIXED = "In[B_X, D_Y] · W_in[D_X, F_Y] · W_out[F_Y, D_X] -> Out[B_X, D_Y]"


# A. Structure: notation in, collectives or a verdict out -----------------------------------------


def test_st_01_dims_on_different_axes_move_nothing() -> None:
    """Case 1: the contraction is whole, the others lie on different axes."""
    text = MESH + "A[I_X, J] · B[J, K_Y] -> C[I_X, K_Y]"
    check_numbers(plan_of(text))

    assert moves(text) == []


def test_st_02_a_result_gets_its_layout() -> None:
    """Case 1 with the result's layout left out."""
    plan = plan_of(MESH + "A[I, J] · B[J, K_Y] -> C")

    assert [str(array) for array in plan.outputs] == ["C[I, K_Y]"]
    assert moves(MESH + "A[I, J] · B[J, K_Y] -> C") == []


def test_st_03_a_contraction_split_in_one_operand_is_gathered() -> None:
    """Case 2; the report names the other way: slice B, and reduce."""
    text = MESH + "A[I, J_X] · B[J, K] -> C[I, K]"
    check_numbers(plan_of(text))
    (other,) = report_of(text, forward=True).to_dict()["alternatives"]

    assert moves(text) == ["A[I, J] = AllGather_X(A[I, J_X])"]
    assert other["instead"] == "slice B[J, K] to J_X, multiply, AllReduce_X(C)"
    assert other["cheaper_when"] == "2*K < J"


def test_st_04_a_contraction_split_in_both_is_reduced() -> None:
    """Case 3: the shards are multiplied as they are."""
    text = MESH + "A[I, J_X] · B[J_X, K] -> C[I, K]"
    check_numbers(plan_of(text))

    assert "C[I, K]{U_X} = A[I, J_X] ·_J B[J_X, K]" in print_plan(plan_of(text))
    assert moves(text) == ["C[I, K] = AllReduce_X(C[I, K]{U_X})"]


def test_st_06_an_axis_twice_in_the_result_is_refused() -> None:
    """Case 4: both legal results are offered, and each needs a gather."""
    (found,) = sl.check(MESH + "A[I_X, J] · B[J, K_X] -> C[I_X, K_X]")
    product = MESH + "A[I_X, J] · B[J, K_X] -> "

    assert (found.severity, found.line) == ("error", 2)
    assert found.message == "axis X stands twice in C: an axis may split a tensor only once"
    assert found.hint == "write C[I, K_X] or C[I_X, K]"
    assert moves(product + "C[I, K_X]") == ["A[I, J] = AllGather_X(A[I_X, J])"]
    assert moves(product + "C[I_X, K]") == ["B[J, K] = AllGather_X(B[J, K_X])"]


def test_st_09_an_axis_that_moves_is_an_all_to_all() -> None:
    """The same value with its axis on another dim."""
    text = MESH + "A[I_X, J] -> A[I, J_X]"

    assert moves(text) == ["A[I, J_X] = AllToAll_{X,J}(A[I_X, J])"]


def test_st_10_an_all_reduce_is_a_scatter_and_a_gather() -> None:
    """Both ways give the same value, for the same bytes."""
    whole = MESH + "A[I_X, J]{U_Y} -> A[I_X, J]"
    parts = MESH + "A[I_X, J]{U_Y} -> A[I_X, J_Y]\nA[I_X, J_Y] -> A[I_X, J]"

    assert moves(whole) == ["A[I_X, J] = AllReduce_Y(A[I_X, J]{U_Y})"]
    assert moves(parts) == [
        "A[I_X, J_Y] = ReduceScatter_{Y,J}(A[I_X, J]{U_Y})",
        "A[I_X, J] = AllGather_Y(A[I_X, J_Y])",
    ]
    assert all(same(report_of(t), "forward", "bytes", "4*I*J/X") for t in (whole, parts))


def test_st_11_the_gradient_of_a_gather_is_a_scatter() -> None:
    """And the converse: what is scattered forward is gathered backward."""
    gather = "mesh X\nAllGather_X A[I_X] -> A[I]\nA[I] · W[I, K_X] -> C[K_X]"
    scatter = "mesh X\nA[I_X] · W[I_X, K] -> C[K_X]"
    check_numbers(plan_of(gather))
    check_numbers(plan_of(scatter))

    assert moves(gather) == ["A[I] = AllGather_X(A[I_X])"]
    assert moves(gather, "backward") == ["dA[I_X] = ReduceScatter_{X,I}(dA[I]{U_X})"]
    assert moves(scatter) == ["C[K_X] = ReduceScatter_{X,K}(C[K]{U_X})"]
    assert moves(scatter, "backward") == ["dC[K] = AllGather_X(dC[K_X])"]


def test_st_12_data_parallelism() -> None:
    """Forward moves nothing; backward reduces the gradients of the weights, and nothing else."""
    check_numbers(plan_of(MESH + DP))

    assert moves(DP) == []
    assert moves(DP, "backward") == [
        "dW_out[F, D] = AllReduce_X(dW_out[F, D]{U_X})",
        "dW_in[D, F] = AllReduce_X(dW_in[D, F]{U_X})",
    ]


def test_st_13_fully_sharded_data_parallelism() -> None:
    """Weights are gathered forward and again backward, their gradients scattered."""
    check_numbers(plan_of(MESH + FSDP))

    assert moves(FSDP) == [
        "W_in[D, F] = AllGather_X(W_in[D_X, F])",
        "W_out[F, D] = AllGather_X(W_out[F, D_X])",
    ]
    assert moves(FSDP, "backward") == [
        "dW_out[F, D_X] = ReduceScatter_{X,D}(dW_out[F, D]{U_X})",
        "W_out[F, D] = AllGather_X(W_out[F, D_X])",
        "dW_in[D_X, F] = ReduceScatter_{X,D}(dW_in[D, F]{U_X})",
        "W_in[D, F] = AllGather_X(W_in[D_X, F])",
    ]


def test_st_14_tensor_parallelism() -> None:
    """Activations are gathered and scattered; if In's copy is not kept, it is gathered once more."""
    check_numbers(plan_of(MESH + TP))
    anew = MESH + "save Tmp\n" + TP

    assert moves(TP) == [
        "In[B, D] = AllGather_Y(In[B, D_Y])",
        "Out[B, D_Y] = ReduceScatter_{Y,D}(Out[B, D]{U_Y})",
    ]
    assert moves(TP, "backward") == [
        "dOut[B, D] = AllGather_Y(dOut[B, D_Y])",
        "dIn[B, D_Y] = ReduceScatter_{Y,D}(dIn[B, D]{U_Y})",
    ]
    assert "In[B, D] = AllGather_Y(In[B, D_Y])" in moves(anew, "backward")


@pytest.mark.parametrize("scheme", [DP, FSDP, TP, MIXED])
def test_st_16_slashes_mean_subscripts(scheme: str) -> None:
    """The seed's `B / X` is the book's `B_X`, in all four schemes."""
    slashes = re.sub(r"_([XY])\b", r" / \1", scheme)
    subscripts, found = (print_plan(plan_of(MESH + text)) for text in (scheme, slashes))

    assert slashes.count("/") >= 2
    assert found == subscripts


def test_st_20_a_collective_matmul() -> None:
    """Y is contracted in A and splits F in W: A is gathered.

    In its overlapped form that gather is a ring of 4 sends between the products, an order of sends
    that the notation leaves to the compiler.
    """
    text = MESH + "A[B_X, D_Y] *_D W[D, F_Y] -> Out[B_X, F_Y]"
    check_numbers(plan_of(text))

    assert moves(text) == ["A[B_X, D] = AllGather_Y(A[B_X, D_Y])"]


def test_st_21_a_contraction_split_in_both_over_y() -> None:
    """Unreduced over Y, then reduced."""
    text = MESH + "In[B_X, D_Y] *_D W[D_Y, F] -> Out[B_X, F]"
    check_numbers(plan_of(text))

    assert moves(text) == ["Out[B_X, F] = AllReduce_Y(Out[B_X, F]{U_Y})"]


def test_st_22_a_reduction_into_shards() -> None:
    """Unreduced over Y, then scattered over D."""
    text = MESH + "Tmp[B_X, F_Y] *_F W2[F_Y, D] -> Out[B_X, D_Y]"
    check_numbers(plan_of(text))

    assert moves(text) == ["Out[B_X, D_Y] = ReduceScatter_{Y,D}(Out[B_X, D]{U_Y})"]


def test_st_25_what_a_caption_lost() -> None:
    """As printed every chip does all the work, 2BDF; tensor parallelism splits F over Y."""
    printed = report_of(MESH + "A[B, D_Y] · B[D, F] -> C[B, F]")
    meant = report_of(MESH + "A[B, D_Y] · B[D, F_Y] -> C[B, F_Y]")

    assert same(printed, "forward", "flops", "2*B*D*F")
    assert same(meant, "forward", "flops", "2*B*D*F/Y")
    assert moves(MESH + "A[B, D_Y] · B[D, F_Y] -> C[B, F_Y]") == [
        "A[B, D] = AllGather_Y(A[B, D_Y])"
    ]


def test_st_26_a_transpose_is_the_same_value() -> None:
    """`W_out[F, D]^T` or `*_D W_out[F, D]`: dims have names."""
    transposed = plan_of("dOut[B, D] · W_out[F, D]^T -> dTmp[B, F]")
    plain = plan_of("dOut[B, D] *_D W_out[F, D] -> dTmp[B, F]")

    assert print_plan(transposed).replace("^T", "") == print_plan(plain)


def test_st_27_experts_take_an_all_to_all_each_way() -> None:
    """Tokens split over Z go to the experts that lie on Z, and come back."""
    text = "moe.shd"
    check_numbers(plan_of(text))
    found = [move for move in moves(text) if "AllToAll" in move]

    assert found == [
        "Sent[G_X, H, E_Z, P, D] = AllToAll_{Z,E}(Sent[G_X, H_Z, E, P, D])",
        "Back[G_X, H_Z, E, P, D] = AllToAll_{Z,H}(Back[G_X, H, E_Z, P, D])",
    ]


def test_st_30_local_bytes() -> None:
    """int8[128, 2048] with the first dim on X and Y of {X:2, Y:8, Z:2}: 16,384 B a device."""
    mesh = "mesh X=2, Y=8, Z=2\n"
    report = report_of(mesh + "param A: int8[I_XY, J]\nA[I_XY, J] · x[J] -> C[I_XY]", I=128, J=2048)
    devices = report.mesh["X"] * report.mesh["Y"] * report.mesh["Z"]

    assert report.to_dict()["memory"]["parameters"]["value"] == 16_384
    assert devices * 16_384 == 512 * 1024


# B1. Rooflines and chips -------------------------------------------------------------------------

MATMUL = "A[M, K] · B[K, N] -> C[M, N]"


def test_rf_01_a_teraflop() -> None:
    """1e12 FLOPs take 1.01 ms on an H100 and 1.10 ms on a chip of 9.1e14, the book's v6e."""
    sizes = {"M": 5_000, "K": 10_000, "N": 10_000}
    h100 = report_of(MATMUL, "h100", forward=True, **sizes)
    v6e = report_of(MATMUL, "tpu_v6e", forward=True, sets={"C": 9.1e14}, **sizes)

    assert value(h100, "forward", "flops") == 1e12
    assert seconds(h100, key="t_math") == pytest.approx(1.01e-3, rel=2e-3)
    assert seconds(v6e, key="t_math") == pytest.approx(1.10e-3, rel=2e-3)


@pytest.mark.parametrize(
    ("arguments", "balance"),
    [(("--hardware", "tpu_v5e", "--set", "W_hbm=8.2e11"), "240.2")],
)
def test_rf_02_the_critical_intensity_of_v5e(
    shardlang: Callable[..., Any], arguments: tuple[str, ...], balance: str
) -> None:
    """1.97e14 FLOP/s over 8.2e11 B/s."""
    told = shardlang("cost", "-e", MATMUL, "--pass", "forward", "--hbm", *arguments).out

    assert f"bound by memory below C/W_hbm = {balance} FLOP/B" in told


def intensity(report: Report, which: str = "forward") -> Any:
    """Give FLOPs over bytes of memory, of contractions that are kernels of their own."""
    totals = report.totals[which]
    return sympy.simplify(totals.flops / totals.hbm_bytes)


def test_rf_03_a_dot_product() -> None:
    """bf16[N] times bf16[N]: N/(2N + 1), as a contraction counts 2N FLOPs (2N - 1 in print): 1/2."""
    report = report_of("a[N] · b[N] -> c[]", forward=True)
    n = symbol("N")

    assert report.forward.hbm_bytes == 4 * n + 2
    assert sympy.limit(intensity(report), n, sympy.oo) == sympy.Rational(1, 2)


def wide(expression: Any, *names: str) -> Any:
    """Give the limit where sizes are large."""
    for name in names:
        expression = sympy.limit(expression, symbol(name), sympy.oo)
    return expression


def test_rf_04_a_matmul(solve: Callable[..., Any]) -> None:
    """bf16[B, D] times bf16[D, F]: BDF/(BD + DF + BF), B for large D and F; on v5e B > 240."""
    text = "x[B, D] · W[D, F] -> y[B, F]"
    found = intensity(report_of(text, forward=True))
    b, d, f = map(symbol, "BDF")
    v5e = ("--hardware", "tpu_v5e", "--set", "W_hbm=8.2e11")
    weights = solve(text, "--for", "B", "--when", "t_math>t_load", *v5e).compute_bound["forward"]

    assert sympy.simplify(found - b * d * f / (b * d + d * f + b * f)) == 0
    assert wide(found, "D", "F") == b
    assert (weights["condition"], int(weights["low"])) == ("B > C/W_hbm", 240)


def test_rf_06_a_matmul_in_int8(solve: Callable[..., Any]) -> None:
    """BD + DF + BF bytes for 2BDF: intensity 2B, and 3.94e14/8.1e11/2 = 243 tokens."""
    text = "dtype int8\nx[B, D] · W[D, F] -> y[B, F]"
    report = report_of(text, forward=True)
    asked = ("--for", "B", "--when", "t_math>t_load", "--hardware", "tpu_v5e")
    weights = solve(text, *asked).compute_bound["forward"]

    assert same(report, "forward", "hbm_bytes", "B*D + D*F + B*F")
    assert same(report, "forward", "flops", "2*B*D*F")
    assert wide(intensity(report), "D", "F") == 2 * symbol("B")
    assert int(weights["low"]) == 243


@pytest.mark.parametrize(("peak", "balance"), [("9.89e14", "295.2"), ("1e15", "298.5")])
def test_rf_09_the_critical_batch_of_h100(
    shardlang: Callable[..., Any], peak: str, balance: str
) -> None:
    """9.89e14 over 3.35e12 is 295, and the rounded 1e15 gives 298."""
    asked = ("--hbm", "--hardware", "h100", "--set", f"C={peak}")
    told = shardlang("cost", "-e", MATMUL, "--pass", "forward", *asked).out

    assert f"bound by memory below C/W_hbm = {balance} FLOP/B" in told


@pytest.mark.parametrize("batch", [2**10, 2**14, 163_200, 2**18, 2**22])
def test_rf_10_overlap_saves_half_at_most(batch: int) -> None:
    """max(a, b) <= a + b <= 2 max(a, b), with equality where both are equal."""
    report = report_of("mesh X=64\n" + FSDP, "tpu_v5p", forward=True, B=batch, D=8192, F=32768)
    lower, upper = (seconds(report, key=key) for key in ("t_overlapped", "t_serial"))

    assert lower < upper <= 2 * lower
    assert (upper == pytest.approx(2 * lower)) is (batch == 163_200)


def test_tp_01_weights_from_memory() -> None:
    """200e9 weights in bf16 on 32 v4p, at 1.23e12 B/s each: 10.16 ms (10.4 ms at the table's 1.2e12)."""
    text = "mesh X=32\nx[B, D] · W[D, F_X] -> y[B, F_X]"
    report = report_of(text, "tpu_v4p", forward=True, sets={"W_hbm": 1.23e12}, D=400_000, F=500_000)

    assert seconds(report, key="t_load") == pytest.approx(10.16e-3, rel=1e-3)


def test_tp_02_a_pod_of_v5e(chip: Callable[[str], dict[str, float]]) -> None:
    """16x16 chips: 32 hosts, 256 cores, 5.04e16 FLOP/s (5.12e16 from 2e14), 4.1 TB."""
    v5e = chip("tpu_v5e")

    assert (v5e["pod/host"], v5e["pod*cores"]) == (32, 256)
    assert v5e["pod*C"] == pytest.approx(5.04e16, rel=1e-3)
    assert v5e["pod*hbm"] == pytest.approx(4.1e12, rel=2e-3)


def test_tp_03_a_pod_of_v5p(chip: Callable[[str], dict[str, float]]) -> None:
    """16x20x28 chips: 2,240 hosts, 17,920 cores, 4.11e18 FLOP/s (4e18 in print), 860 TB."""
    v5p = chip("tpu_v5p")

    assert (v5p["pod/host"], v5p["pod*cores"]) == (2240, 17_920)
    assert v5p["pod*C"] == pytest.approx(4.11e18, rel=1e-3)
    assert v5p["pod*hbm"] == pytest.approx(860e12, rel=1e-3)


@pytest.mark.parametrize(("speed", "batch"), [("8.1e11", 262.7), ("8.2e11", 259.3)])
def test_tp_05_an_int8_matmul_of_v5e(solve: Callable[..., Any], speed: str, batch: float) -> None:
    """int8[16384, 4096] times int8[B, 4096]: 262.7 (271 and 267 in print, from rounded constants)."""
    text = "dims D=4096, F=16384\ndtype int8\nx[B, D] · W[D, F] -> y[B, F]"
    chip = ("--hardware", "tpu_v5e", "--set", f"W_hbm={speed}")
    found = solve(text, "--for", "B", "--when", "t_math>t_hbm", *chip).compute_bound["forward"]

    assert found["low"] == pytest.approx(batch, abs=0.05)


# B2. Collectives ---------------------------------------------------------------------------------


def test_sh_01_a_gather_along_a_line_of_four() -> None:
    """372.8 us over ideal rings (377 in print, from 34e6 bytes), 559 us where 4 chips make no ring."""
    text, sizes = "mesh X=8, Y=4\nA[E_Y, F] -> A[E, F]", {"E": 2048, "F": 8192}
    ideal = report_of(text, "tpu_v5e", **sizes)
    line = report_of(text, "tpu_v5e 8x4", model="link", **sizes)

    assert seconds(ideal) == pytest.approx(372.8e-6, rel=1e-3)
    assert seconds(line) == pytest.approx(559e-6, rel=1e-3)


def test_sh_03_an_idle_axis_makes_a_gather_cheaper() -> None:
    """2BD/(Y W) = 23.3 us; exactly, (n-1)/n of it."""
    text = "mesh X=4, Y=4, Z=4\nA[B_X, D_Y] -> A[B, D_Y]"
    ideal = report_of(text, "tpu_v4p", B=1024, D=4096)
    exact = report_of(text, "tpu_v4p 4x4x4", model="link", B=1024, D=4096)

    assert seconds(ideal) == pytest.approx(23.3e-6, rel=1e-3)
    assert seconds(exact) == pytest.approx(23.3e-6 * 3 / 4, rel=1e-3)


def test_sh_07_a_small_gather_takes_its_hops() -> None:
    """128 numbers around a ring of 4: 2 hops, 2 us; along a line of 2: one."""
    ring = "mesh X=4, Y=4, Z=4\nA[B_X] -> A[B]"
    line = ring.replace("4", "2")

    assert seconds(report_of(ring, "tpu_v4p 4x4x4", model="link", B=128)) == pytest.approx(2e-6)
    assert seconds(report_of(line, "tpu_v4p 2x2x2", model="link", B=128)) == pytest.approx(1e-6)


def test_sh_08_gather_first_or_reduce_after() -> None:
    """max(2BDF/C, 2DF/W) if B is gathered; max(2BDF/(XC), 4BF/W) if A is sliced and C reduced."""
    gather = report_of("mesh X\nA[B, D] · B[D_X, F] -> C[B, F]", "tpu_v5p", forward=True)
    reduce = report_of(
        "mesh X\nA[B, D] -> A2[B, D_X]\nA2[B, D_X] · B[D_X, F] -> C[B, F]", "tpu_v5p", forward=True
    )

    assert same(gather, "forward", "t_overlapped", "Max(2*B*D*F/C, 2*D*F/(M_X*W_ici))")
    assert same(reduce, "forward", "t_overlapped", "Max(2*B*D*F/(X*C), 4*B*F/(M_X*W_ici))")


def test_sh_10_scatter_the_result_instead() -> None:
    """Gathering A moves NM numbers, scattering the result NK: M/K times as many."""
    gather = report_of("mesh X\nA[N, M_X] · B[M, K] -> O[N, K]", forward=True)
    scatter = report_of(
        "mesh X\nB[M, K] -> B2[M_X, K]\nA[N, M_X] · B2[M_X, K] -> O[N, K_X]", forward=True
    )

    assert gather.forward.bytes / scatter.forward.bytes == symbol("M") / symbol("K")


ONE_BYTE_A_SECOND = {"W_ici": 2, "T_hop": 0}
"""Links that carry a byte a second each way, so that seconds are bytes on the busiest link."""


@pytest.mark.parametrize("devices", [2, 4, 8, 16])
def test_sh_11_a_gather_one_way_round(devices: int) -> None:
    """N**2 (1 - 1/D) of N x N numbers cross each link."""
    text = f"mesh X={devices}\ninput A: int8[I_X, J]\nA[I_X, J] -> A[I, J]"
    found = report_of(text, model="link-one-way", sets=ONE_BYTE_A_SECOND, I=64, J=64)

    assert seconds(found) == 64**2 * (1 - 1 / devices)


@pytest.mark.parametrize("devices", [4, 8, 16])
def test_sh_13_both_ways_round(devices: int) -> None:
    """A gather takes half of that, an AllToAll N**2/8: a quarter of the book's gather."""
    mesh = f"mesh X={devices}\ninput A: int8[I_X, J]\n"
    gather, exchange = (
        report_of(mesh + text, model="link", sets=ONE_BYTE_A_SECOND, I=64, J=64)
        for text in ("A[I_X, J] -> A[I, J]", "A[I_X, J] -> A[I, J_X]")
    )
    ideal = [
        report_of(mesh + text, I=64, J=64).forward.bytes
        for text in ("A[I_X, J] -> A[I, J]", "A[I_X, J] -> A[I, J_X]")
    ]

    assert seconds(gather) == 64**2 * (1 - 1 / devices) / 2
    assert seconds(exchange) == 64**2 / 8
    assert ideal[0] / ideal[1] == 4


def test_sh_16_when_a_reduction_hides(solve: Callable[..., Any]) -> None:
    """4IK/(X W) against 2IJK/(XY C): J > 2 Y C/W = 17,511 on rings, 26,267 on the lines of a 4x4."""
    text = "mesh X=4, Y=4\nA[I_X, J_Y] · B[J_Y, K] -> C[I_X, K]"
    rings = solve(text, "--for", "J", "--hardware", "tpu_v5e")
    lines = solve(text, "--for", "J", "--hardware", "tpu_v5e 4x4", "--model", "link",
                  "--set", "I=64Ki", "--set", "K=64Ki")  # fmt: skip

    assert moves(text) == ["C[I_X, K] = AllReduce_Y(C[I_X, K]{U_Y})"]
    assert same(report_of(text), "forward", "t_comms", "4*I*K/(X*M_Y*W_ici)")
    assert rings.compute_bound["forward"]["low"] == pytest.approx(17_511, abs=1)
    assert lines.compute_bound["forward"]["low"] == pytest.approx(26_267, abs=1)


def test_sh_19_serving_a_layer_on_four_chips() -> None:
    """Split over F, D=8192, F=32768, B=128 on v5e: 268 MB of weights, whose reading takes longest.

    331 us, against 174 us of math and 46.6 us on the network (35.0 us exactly, over both axes of a
    2x2); splitting weights over the batch would take 11.9 ms to gather them.
    """
    sizes = {"B": 128, "D": 8192, "F": 32768}
    report = report_of("mesh Y=4\n" + TP, "tpu_v5e", forward=True, hbm=True, **sizes)
    square = "mesh X=2, Y=2\n" + TP.replace("_Y", "_XY")
    exact = report_of(square, "tpu_v5e 2x2", forward=True, model="link", **sizes)
    gathered = report_of("mesh X=4\n" + FSDP, "tpu_v5e", forward=True, **sizes)
    math = report_of("mesh Y=4\n" + TP, "tpu_v5e", forward=True, **sizes)

    assert report.to_dict()["memory"]["parameters"]["value"] == pytest.approx(268.4e6, rel=1e-3)
    assert seconds(report) == pytest.approx(46.6e-6, rel=1e-3)
    assert seconds(exact) == pytest.approx(35.0e-6, rel=2e-3)
    assert seconds(math, key="t_math") == pytest.approx(174e-6, rel=3e-3)
    assert seconds(report, key="t_load") == pytest.approx(331e-6, rel=2e-3)
    assert {each["bound"] for each in report.to_dict()["compute"]} == {"memory"}
    assert seconds(gathered) == pytest.approx(11.9e-3, rel=3e-3)


def test_sh_20_shards_that_latency_bounds(chip: Callable[[str], dict[str, float]]) -> None:
    """45 kB a hop on a v5e: with 8 chips 360 kB, and int8[16, 8192] over more than 2 chips.

    The ring's hops take 4 us however small the array is, and its bytes, ideally, as long at 360 kB.
    """
    text = "mesh X=8\ninput A: int8[B_X, D]\nA[B_X, D] -> A[B, D]"
    least = report_of(text, "tpu_v5e", model="link", B=8, D=1)
    most = report_of(text, "tpu_v5e", B=360, D=1000)
    batch = "mesh Y={}\ninput In: int8[B, D_Y]\nIn[B, D_Y] -> In[B, D]"
    lines = [
        report_of(batch.format(y), f"tpu_v5e {y}x1", model="link", B=16, D=8192) for y in (2, 4, 8)
    ]

    assert chip("tpu_v5e")["w_ici*hop"] == 45_000
    assert seconds(least) == seconds(most) == pytest.approx(4e-6)
    assert value(lines[0], "forward", "bytes") * 2 == 131_072
    # 131,072 / 45,000 = 2.9: two chips send longer than a hop takes, four and eight don't
    assert [seconds(line) > hops * 1e-6 for line, hops in zip(lines, (1, 3, 7), strict=True)] == [
        True, False, False,
    ]  # fmt: skip


# B3. Transformers --------------------------------------------------------------------------------


def test_tf_01_batch_dims_count_once() -> None:
    """C[GHIJKL] and D[GHMNKL], contracted over K and L: 2 GHIJMNKL."""
    text = "C[G, H, I, J, K, L] *_{K,L} D[G, H, M, N, K, L] -> E[G, H, I, J, M, N]"
    report = report_of(text, forward=True)

    assert same(report, "forward", "flops", "2*G*H*I*J*M*N*K*L")


def test_tf_02_a_toy_transformer() -> None:
    """17.44e9 parameters (16e9 in print), a quarter of those of layers attention's; 512 KiB a token."""
    layers = weights_of("TF toy", LLAMA, "V")
    cache = "cache kv: int8[2, L, S, K, H]\nq[L, K, H] · kv[2, L, S, K, H] -> s[2, L, S, K]"
    sizes = {"L": 64, "S": 1, "K": 32, "H": 128}
    held = report_of(cache, forward=True, **sizes).to_dict()["memory"]["caches"]["value"]

    assert weights_of("TF toy") == pytest.approx(17.44e9, rel=3e-4)
    assert weights_of("TF toy", LLAMA, "V", "F") / layers == 1 / 4
    assert held == 512 * 1024


def test_tf_03_flops_of_a_chip_and_of_all() -> None:
    """2BDF/32 on each of {X:4, Y:8, Z:4}; all together 8BDF, as Z does the same four times."""
    text = "mesh X=4, Y=8, Z=4\nA[B_X, D_Y] *_D W[D_Y, F] -> C[B_X, F]{U_Y}"
    report = report_of(text, forward=True, B=64, D=64, F=64)
    devices = report.mesh["X"] * report.mesh["Y"] * report.mesh["Z"]

    assert value(report, "forward", "flops") == 2 * 64**3 / 32
    assert devices * value(report, "forward", "flops") == 8 * 64**3


def test_tf_04_a_product_of_all_dims() -> None:
    """2 IJKLMNO: the text says that they are summed."""
    text = "A[I, J, K, L] * B[I, J, M, N, O] -> C[K, L, M, N, O]"

    assert same(report_of(text, forward=True), "forward", "flops", "2*I*J*K*L*M*N*O")


def flops_of(report: Report, *names: str) -> Any:
    """Add up the FLOPs of the forward contractions with these results, as a sympy expression.

    Positions of keys are called T like those of queries, and all query heads of a key head N/K.
    """
    data = report.to_dict()
    parts = [
        read(each["flops"]["formula"], data["symbols"])
        for each in data["compute"]
        if each["pass"] == "forward" and each["einsum"].partition("[")[0] in names
    ]
    assert len(parts) == len(names)
    return sympy.simplify(sum(parts).subs({symbol("S"): T, symbol("G"): N / K}))


B, T, D, N, H, K, F = map(symbol, "BTDNHKF")
PROJECTIONS, SCORES, MLP = ("q", "k", "v", "y"), ("s", "o"), ("Gate", "Up", "Out")


ATTENTION = """
q[B, T, K, G, H] ·_H k[B, S, K, H] -> s[B, K, G, T, S]
softmax_S(s[B, K, G, T, S]) ·_S v[B, S, K, H] -> o[B, T, K, G, H]
"""


def fused_intensity() -> Any:
    """Give FLOPs over bytes of attention as one kernel: queries, keys and values in, its result out."""
    report = report_of(ATTENTION, forward=True)
    return sympy.simplify(report.forward.flops / report.forward.fused_bytes)


def test_tf_05_attention_that_shares_keys() -> None:
    """TSG/(TG + S): TG/(G + 1) for T = S, and G in decoding."""
    t, s, g = map(symbol, "TSG")
    found = fused_intensity()

    assert sympy.simplify(found - t * s * g / (t * g + s)) == 0
    assert sympy.simplify(found.subs(s, t) - t * g / (g + 1)) == 0
    assert sympy.simplify(found.subs(t, 1) - s * g / (s + g)) == 0
    assert wide(found.subs(t, 1), "S") == g
    # bound by compute above 240 only for many queries a key: with one, from 480 on (240 in print)
    assert sympy.solve(found.subs(s, t).subs(g, 1) - 240, t) == [480]


def test_tf_06_attention_against_its_projections() -> None:
    """QK and AV take as much as the four projections at T = 2D, 8,192 for D = 4,096."""
    report = report_of("transformer.shd", forward=True)
    ratio = (flops_of(report, *SCORES) / flops_of(report, *PROJECTIONS)).subs(K, N).subs(N, D / H)

    assert sympy.solve(ratio - 1, T) == [2 * D]
    assert sympy.solve(ratio.subs(D, 4096) - 1, T) == [8192]


def test_tf_07_attention_against_all_matmuls() -> None:
    """T/(8D) for F = 4D and NH = D: equal at 65,536 for 8k, at 36,864 for Gemma-27B (32k in print)."""
    report = report_of("transformer.shd", forward=True)
    ratio = flops_of(report, *SCORES) / flops_of(report, *PROJECTIONS, *MLP)
    ratio = sympy.simplify(ratio.subs(K, N).subs(N, D / H).subs(F, 4 * D))

    assert ratio == T / (8 * D)
    assert sympy.solve(ratio.subs(D, 8192) - 1, T) == [65_536]
    assert sympy.solve(ratio.subs(D, 4608) - 1, T) == [36_864]


def stack(values: int) -> Report:
    """Price L layers that each keep so many values of BT x D for the backward pass."""
    dims = ["D", "E"] * values
    steps = [
        f"  x{n + 1}[BT, {dims[n + 1]}] = x{n}[BT, {dims[n]}] ·_{dims[n]} W{n}[D, E]"
        for n in range(values)
    ]
    if values % 2:
        steps[-1] = f"  x{values}[BT, D] = gelu(x{values - 1}[BT, D])"
    text = "\n".join(["input x0: [BT, D]", f"layers L, x{values} -> x0:", *steps])
    return report_of(text)


@pytest.mark.parametrize(("values", "expected"), [(20, 83.9e12), (1, 4.2e12)])
def test_tf_11_checkpoints(values: int, expected: float) -> None:
    """4e6 tokens, D = 8,192 and 64 layers: 83.9 TB with 20 values a layer, 4.2 TB with one."""
    sizes = {"BT": 4e6, "D": 8192, "E": 8192, "L": 64}
    held = stack(values).memory.activations.subs({symbol(k): v for k, v in sizes.items()})

    assert float(held) == pytest.approx(expected, rel=2e-3)


PARTS = {
    "MLP": """
        silu(x[B, T, D] ·_D W_gate[D, F]) ⊙ (x[B, T, D] ·_D W_up[D, F]) -> h[B, T, F]
        h[B, T, F] ·_F W_down[F, D] -> y[B, T, D]
    """,
    "QKVO": """
        x[B, T, D] ·_D W_q[D, N, H] -> q[B, T, N, H]
        x[B, T, D] ·_D W_k[D, K, H] -> k[B, T, K, H]
        x[B, T, D] ·_D W_v[D, K, H] -> v[B, T, K, H]
        o[B, T, N, H] ·_{N,H} W_o[N, H, D] -> y[B, T, D]
    """,
    "attention": """
        dims S=T
        q[B, T, N, H] ·_H k[B, S, N, H] -> s[B, N, T, S]
        softmax_S(s[B, N, T, S]) ·_S v[B, S, N, H] -> o[B, T, N, H]
    """,
    "unembedding": "x[B, T, D] ·_D W_u[D, V] -> logits[B, T, V]",
}


@pytest.mark.parametrize(
    ("part", "flops", "parameters"),
    [
        ("MLP", "18*B*T*D*F", "3*D*F"),
        ("QKVO", "12*B*T*D*(N + K)*H", "2*D*(N + K)*H"),
        ("attention", "12*B*T**2*N*H", "0"),
        ("unembedding", "6*B*T*D*V", "D*V"),  # one table has 12BTDV
    ],
)
def test_tf_13_what_training_takes(part: str, flops: str, parameters: str) -> None:
    """FLOPs of forward and backward, and parameters, of the parts of a transformer."""
    report = report_of(PARTS[part])

    assert equal(str(report.total.flops.subs(symbol("S"), T)), flops, "BTDFNKHV")
    assert same(report, "memory", "parameters", f"2*({parameters})")


# B4. Training ------------------------------------------------------------------------------------


def test_sd_01_data_parallelism_on_one_axis(solve: Callable[..., Any]) -> None:
    """Backward: 8DF/W against 8BDF/(XC), so that B/X > C/W (another text's T_math has a stray L)."""
    report = report_of(DP)

    assert same(report, "backward", "t_comms", "8*D*F/(M_X*W_ici)")
    assert same(report, "backward", "t_math", "8*B*D*F/(X*C)")
    assert str(report.backward.condition) == "B/X > C/W_ici"
    assert solve(DP, "--for", "B", passes="both").compute_bound["backward"]["general"] == (
        "B/X > C/(M_X*W_ici)"
    )


@pytest.mark.parametrize(("axes", "batch"), [(1, 2550), (3, 850)])
def test_sd_02_batches_of_a_v5p(solve: Callable[..., Any], axes: int, batch: int) -> None:
    """2,550 tokens a chip on one axis, 850 on three: 7.6 M on a pod of 8,960."""
    mesh = f"mesh X=8960 @ici({axes})\n"
    (found,) = solve(mesh + FSDP, "--for", "B", "--hardware", "tpu_v5p").compute_bound.values()

    assert found["low"] / 8960 == batch
    assert axes == 1 or found["low"] == pytest.approx(7.6e6, rel=3e-3)


def test_sd_03_parameters_that_fit_a_chip(solve: Callable[..., Any]) -> None:
    """Ten bytes a parameter, weights in bf16 and two moments in f32: 9.6e9 fill 96 GB (9e9 in print)."""
    text = "mesh X\noptimizer adam\nx[B_X, P] · W[P] -> y[B_X]"
    parts = ("--parts", "parameters,optimizer")
    found = solve(text, "--fits", "P", *parts, "--hardware", "tpu_v5p", passes="both").fits

    assert found["condition"] == "P <= hbm/10"
    assert found["most"] == 9_600_000_000


def test_sd_04_fully_sharded_forward() -> None:
    """4BDF/(XC) against 4DF/W."""
    report = report_of(FSDP)

    assert same(report, "forward", "t_math", "4*B*D*F/(X*C)")
    assert same(report, "forward", "t_comms", "4*D*F/(M_X*W_ici)")
    assert str(report.forward.condition) == "B/X > C/W_ici"


WEIGHTS = "dims D=100_000, F=700_000\nIn[B_X, D] · W[D, F] -> Out[B_X, F]"
"""A matmul with as many weights as LLaMA-3-70B, called 70e9, has: what counts for whole runs."""


def days(chips: int, mfu: float, tokens: float = 15e12) -> float:
    """Give the days in which so many chips v5p train 70e9 parameters."""
    report = report_of(f"mesh X={chips}\n{WEIGHTS}", "tpu_v5p", B=850 * chips)
    return report.run(tokens, mfu=mfu)["mfu"].days.number


def test_sd_06_chips_for_a_batch(solve: Callable[..., Any]) -> None:
    """16e6 tokens a step keep 18,823 chips busy on three axes; 6.3e24 FLOPs at 50% take 16.9 days."""
    text = "mesh X @ici(3)\n" + FSDP
    found = solve(text, "--for", "X", "--hardware", "tpu_v5p", "--set", "B=16_000_000")

    assert int(found.compute_bound["forward"]["high"]) == 18_823
    assert days(18_823, 0.5) == pytest.approx(16.9, abs=0.05)


def test_sd_07_tensor_parallel_forward(solve: Callable[..., Any]) -> None:
    """4BDF/(YC) against 4BD/W: Y < M_Y F/2550 on a v5p."""
    report = report_of(TP)
    found = solve(TP, "--for", "Y").compute_bound["forward"]

    assert same(report, "forward", "t_math", "4*B*D*F/(Y*C)")
    assert same(report, "forward", "t_comms", "4*B*D/(M_Y*W_ici)")
    assert (found["condition"], found["general"]) == ("Y < F*W_ici/C", "Y < F*M_Y*W_ici/C")
    for axes in (1, 2, 3):
        v5p = solve(
            f"mesh Y @ici({axes})\ndims F=25_500\n" + TP, "--for", "Y", "--hardware", "tpu_v5p"
        )
        assert v5p.compute_bound["forward"]["high"] == axes * 10


def test_sd_09_tensor_parallelism_of_llama_70b(solve: Callable[..., Any]) -> None:
    """F = 30,000 on a v5p: Y up to 11.8, so 8 and not 16; Y = 8 needs F above 20,400."""
    v5p = ("--hardware", "tpu_v5p")
    limit = solve("mesh Y\n" + TP, "--for", "Y", "--set", "F=30000", *v5p).compute_bound["forward"]
    width = solve("mesh Y=8\n" + TP, "--for", "F", *v5p).compute_bound["forward"]
    holds = [
        report_of(f"mesh Y={y}\ndims F=30_000\n" + TP, "tpu_v5p").forward.condition.holds
        for y in (8, 16)
    ]

    assert limit["high"] == pytest.approx(11.8, abs=0.05)
    assert width["low"] == 20_400
    assert holds == [True, False]


def test_sd_10_tensor_parallelism_of_gemma_7b(solve: Callable[..., Any]) -> None:
    """F = 50,000 on a v5p: Y up to 19.6."""
    found = solve("mesh Y\n" + TP, "--for", "Y", "--set", "F=50000", "--hardware", "tpu_v5p")

    assert found.compute_bound["forward"]["high"] == pytest.approx(19.6, abs=0.05)


TORUS = "mesh X @ici(2), Y\n"
SPLIT = ("--over", "X,Y", "--with", "X*Y=N")


@pytest.mark.parametrize(("batch", "best"), [(48_000, 13.69), (48 * 1024, 13.86)])
@pytest.mark.parametrize("overlap", [(), ("--overlap", "axes")])
def test_sd_11_the_best_split(
    solve: Callable[..., Any], batch: int, best: float, overlap: tuple[str, ...]
) -> None:
    """X = sqrt(B M_X N/(F M_Y)) in either model; of 64 chips X=16, Y=4 (13.9 needs B = 48 Ki)."""
    sizes = ("--set", f"B={batch}", "--set", "D=8Ki", "--set", "F=32Ki", "--set", "N=64")
    symbols = solve(MIXED, "--minimize", "t_comms", *SPLIT, *overlap)
    found = solve(TORUS + MIXED, *SPLIT, *sizes, *overlap, "--hardware", "tpu_v5p")
    names = ("B", "N", "F", "M_X", "M_Y")

    assert equal(symbols.split["split"]["X"], "sqrt(B*M_X*N/(F*M_Y))", names)
    assert found.split["numbers"]["X"] == pytest.approx(best, abs=0.005)
    assert found.split["whole"]["split"] == {"X": 16, "Y": 4}


def test_sd_12_the_batch_that_hides_a_mixed_scheme(solve: Callable[..., Any]) -> None:
    """With axes overlapping, T_math/T_comms = sqrt(B F M_X M_Y)/(a sqrt(N)), a = C/W, and B/N > 99.2.

    The seed lost the roots.
    """
    asked = ("--for", "B", *SPLIT, "--overlap", "axes")
    found = solve(MIXED, *asked)
    v5p = solve(TORUS + MIXED, *asked, "--set", "F=32Ki", "--set", "N=1", "--hardware", "tpu_v5p")
    names = [*found.symbols, "N"]
    report = report_of(MIXED, forward=True)
    math = read(str(report.forward.t_math), names).subs(symbol("Y"), symbol("N") / symbol("X"))
    ratio = math / read(found.split["least"]["formula"], names)

    assert equal(str(ratio), "sqrt(B*F*M_X*M_Y)/(C/W_ici*sqrt(N))", names)
    assert found.compute_bound["forward"]["general"] == "B/N > C**2/(F*M_X*M_Y*W_ici**2)"
    assert v5p.compute_bound["forward"]["low"] == pytest.approx(99.2, abs=0.05)


def test_sd_14_what_mixing_gains(solve: Callable[..., Any]) -> None:
    """Batches 850/99.2 = 8.6 times as small as FSDP's (8 in print); 850/397 = 2.1 where axes don't overlap."""
    v5p = ("--for", "B", "--hardware", "tpu_v5p")
    fsdp = solve("mesh X=1 @ici(3)\n" + FSDP, *v5p, "--set", "X=64").compute_bound["forward"]["low"]
    mixed = [
        solve(TORUS + MIXED, *v5p, *SPLIT, "--set", "F=32Ki", "--set", "N=64", *overlap)
        for overlap in (("--overlap", "axes"), ())
    ]
    gains = [fsdp / each.compute_bound["forward"]["low"] for each in mixed]

    assert fsdp / 64 == 850
    assert gains == pytest.approx([8.6, 2.1], abs=0.05)


def test_sd_15_where_every_scheme_is_bound_by_communication(solve: Callable[..., Any]) -> None:
    """On 16x16x16 chips below 4.06e5 tokens; 1.63e6 where axes don't overlap (1.6e10 in print)."""
    sizes = ("--set", "F=32Ki", "--hardware", "tpu_v5p")
    split = ("--over", "X,Y", "--with", "X*Y=4096")
    found = [
        solve(TORUS + MIXED, "--for", "B", *split, *sizes, *overlap).compute_bound["forward"]
        for overlap in (("--overlap", "axes"), ())
    ]

    assert [each["low"] for each in found] == pytest.approx([4.06e5, 1.63e6], rel=3e-3)
    assert found[0]["general"] == "B > 4096*C**2/(F*M_X*M_Y*W_ici**2)"


SLICES = "mesh P @dcn, X\nIn[B_PX, D] · W_in[D_X, F] · W_out[F, D_X] -> Out[B_PX, D]"


def test_sd_16_tokens_of_a_slice_of_v5p(
    solve: Callable[..., Any], chip: Callable[[str], dict[str, float]]
) -> None:
    """C/W_dcn is 73,440 (71,360 and 76,000 in print): the batch of a slice whose peers are far away."""
    text = SLICES.replace("mesh P @dcn, X", "mesh P=2 @dcn, X=16")
    found = solve(text, "--for", "B", "--overlap", "axes", "--hardware", "tpu_v5p", passes="both")

    assert chip("tpu_v5p")["C/W_dcn"] == 73_440
    assert found.compute_bound["backward"]["low"] == 2 * 73_440


def test_sd_17_data_parallelism_over_slices() -> None:
    """Over P slices of X chips 8DF/(X W_dcn) cross, so that a slice's B/P has to be above C/W_dcn."""
    report = report_of(SLICES)
    times = [
        read(each["time"]["formula"], ["D", "F", "X", "W_dcn"])
        for each in report.to_dict()["collectives"]
        if each["axes"] == ["P"]
    ]
    bound = report_of(SLICES, overlap="axes").backward.condition

    assert equal(str(sum(times)), "8*D*F/(X*W_dcn)", ["D", "F", "X", "W_dcn"])
    assert str(bound) == "B/(P*X) > C/W_ici and B/P > C/W_dcn"


@pytest.mark.parametrize(
    ("scheme", "devices", "forward", "backward"),
    [
        (DP, "X", "0", "8*D*F"),
        (FSDP, "X", "4*D*F", "8*D*F"),
        (TP, "Y", "4*B*D", "4*B*D"),  # the seed prints FLOPs over X
        (MIXED, "X*Y", "4*B*D/X + 4*D*F/Y", "4*B*D/X + 8*D*F/Y"),  # it prints 8BD/X + ..
        ("save Tmp\n" + MIXED, "X*Y", "4*B*D/X + 4*D*F/Y", "6*B*D/X + 8*D*F/Y"),
    ],
    ids=["DP", "FSDP", "TP", "mixed", "mixed, In gathered again"],
)
def test_sd_21_the_table_of_schemes(scheme: str, devices: str, forward: str, backward: str) -> None:
    """FLOPs and bytes of a layer, forward and backward, in each scheme."""
    report = report_of(MESH + scheme)

    assert same(report, "forward", "flops", f"4*B*D*F/({devices})")
    assert same(report, "backward", "flops", f"8*B*D*F/({devices})")
    assert same(report, "forward", "bytes", forward)
    assert same(report, "backward", "bytes", backward)


def test_sd_22_parameters_of_llama_13b() -> None:
    """8.493e9 + 4.194e9 + 0.328e9 = 13.0154e9 (0.39e9 and 13.1e9 in another text)."""
    total, layers = weights_of("LLaMA-2-13B"), weights_of("LLaMA-2-13B", LLAMA, "V")
    attention = weights_of("LLaMA-2-13B", LLAMA, "V", "F")

    assert total == 13_015_449_600
    assert layers - attention == pytest.approx(8.493e9, rel=1e-4)
    assert attention == pytest.approx(4.194e9, rel=1e-4)
    assert total - layers == pytest.approx(0.328e9, rel=2e-3)


TRAINED = LLAMA.replace("layers L", "optimizer adam\nsave Gate, Up\n\nlayers L")
"""With three values a layer kept: both inputs of the gate, and what the layer before gave."""


def test_sd_23_memory_of_llama_13b() -> None:
    """130 GB of weights and moments; 41.94 TB of activations of the layers for 16e6 tokens."""
    sets = {**sizes_of("LLaMA-2-13B"), "X": 1, "B": 4000, "T": 4000}
    memory = report_of(TRAINED, sets=sets).to_dict()["memory"]
    layers = report_of(without(TRAINED, "W_vocab"), sets=sets).to_dict()["memory"]

    assert memory["parameters"]["value"] + memory["optimizer"]["value"] == pytest.approx(
        130e9, rel=2e-3
    )
    assert layers["activations"]["value"] == pytest.approx(41.94e12, rel=1e-3)


def test_sd_24_llama_13b_does_not_fit_a_chip(solve: Callable[..., Any]) -> None:
    """130 GB are more than a v5p has: no number of chips helps pure data parallelism."""
    whole = TRAINED.replace("D_X", "D")
    sizes = [f"--set={name}={size}" for name, size in sizes_of("LLaMA-2-13B").items()]
    parts = ("--parts", "parameters,optimizer", "--hardware", "tpu_v5p")
    found = solve(whole, "--fits", "X", *parts, *sizes, passes="both").fits

    assert found["how"] == "never"
    assert found["rest"]["value"] == pytest.approx(130e9, rel=2e-3)
    assert found["hbm"] == 96e9


@pytest.mark.parametrize(("mfu", "expected"), [(0.5, 3.5), (1, 1.8)])
def test_sd_28_ten_pods(mfu: float, expected: float) -> None:
    """LLaMA-3-70B on 89,600 chips: 3.5 days at 50%, 1.8 at 100% ("about 2", at no MFU that it names)."""
    assert days(10 * 8960, mfu) == pytest.approx(expected, abs=0.05)


# B5. Training LLaMA ------------------------------------------------------------------------------


def test_at_01_parameters_of_llama_70b() -> None:
    """56.37e9 + 2.10e9 + 12.08e9 = 70.55e9 (70.4e9 in print)."""
    total, layers = weights_of("LLaMA-3-70B"), weights_of("LLaMA-3-70B", LLAMA, "V")
    attention = weights_of("LLaMA-3-70B", LLAMA, "V", "F")

    assert layers - attention == pytest.approx(56.37e9, rel=2e-4)
    assert total - layers == pytest.approx(2.10e9, rel=2e-3)
    assert attention == pytest.approx(12.08e9, rel=5e-4)
    assert total == pytest.approx(70.55e9, rel=2e-4)


def test_at_02_flops_of_llama_70b() -> None:
    """4.2e11 a token, 6.3e24 for 15e12: 435 years of one v5p."""
    report = report_of(f"mesh X=1\n{WEIGHTS}", "tpu_v5p", B=2**20)
    model = report.conventions()["model"]
    year = days(1, 1) / 365

    assert model.token.number == 4.2e11
    assert model.token.number * 15e12 == 6.3e24
    assert year == pytest.approx(435, rel=1e-3)


def test_at_03_a_pod_for_llama_70b() -> None:
    """8,960 v5p at 40%: 44.3 days."""
    assert days(8960, 0.4) == pytest.approx(44.3, abs=0.05)


@pytest.mark.parametrize(("values", "gigabytes"), [(4, 2.41), (12, 7.1)])
def test_at_06_memory_of_a_chip_of_a_pod(values: int, gigabytes: float) -> None:
    """LLaMA-3-70B with 4e6 tokens on 8,960 chips: 2.41 GB with 4 values a layer, 7.1 (8 in print) with 12."""
    sets = {**sizes_of("LLaMA-3-70B"), "X": 8960, "B": 1000, "T": 4000}
    memory = report_of(TRAINED, sets=sets).to_dict()["memory"]
    weights = memory["parameters"]["value"] + memory["optimizer"]["value"]
    sizes = {"BT": 4e6 / 8960, "D": 8192, "E": 8192, "L": 80}
    kept = stack(values).memory.activations.subs({symbol(k): v for k, v in sizes.items()})

    assert (weights + float(kept)) / 1e9 == pytest.approx(gigabytes, abs=0.01 * values / 4)


def test_at_07_a_batch_of_four_million_tokens(solve: Callable[..., Any]) -> None:
    """468 tokens on each of 8,960 chips are below the 850 of FSDP on three axes."""
    text = "mesh X=8960 @ici(3)\n" + FSDP
    report = report_of(text, "tpu_v5p", sets={"B": 4 * 2**20})
    found = solve(text, "--for", "B", "--hardware", "tpu_v5p").compute_bound["forward"]

    assert report.dims["B"] // report.mesh["X"] == 468
    assert found["low"] / 8960 == 850
    assert report.forward.condition.holds is False


def test_at_10_llama_405b(solve: Callable[..., Any]) -> None:
    """405.85e9 parameters, 2.435e12 FLOPs a token, 3.65e25 for 15e12, 32.1 days of 8 pods at 40%.

    With 16e6 tokens a step a chip has 223; a mixed scheme needs 61.
    """
    total = weights_of("LLaMA-3-405B")
    chips = 8 * 8960
    sets = {**sizes_of("LLaMA-3-405B"), "X": chips, "B": chips, "T": 223}
    report = report_of(TRAINED, "tpu_v5p", sets=sets)
    run = report.run(15e12, mfu=0.4, convention="parameters-all")
    count = report.conventions()["parameters-all"]
    split = (
        "--overlap",
        "axes",
        *SPLIT,
        "--set",
        "F=53248",
        "--set",
        "N=1",
        "--hardware",
        "tpu_v5p",
    )
    bound = solve(TORUS + MIXED, "--for", "B", *split).compute_bound["forward"]["low"]

    assert total == pytest.approx(405.85e9, rel=2e-5)
    assert count.token.number == pytest.approx(2.435e12, rel=2e-4)
    assert count.token.number * 15e12 == pytest.approx(3.65e25, rel=1e-3)
    assert run["mfu"].days.number == pytest.approx(32.1, abs=0.05)
    assert bound == pytest.approx(61, abs=0.1)
    assert 16e6 / chips == pytest.approx(223, abs=0.3)


# B6. Inference -----------------------------------------------------------------------------------


def test_in_02_attention_with_a_key_a_query() -> None:
    """ST/(S + T): T/2 for T = S, about 1 in decoding."""
    t, s = map(symbol, "TS")
    found = fused_intensity().subs(symbol("G"), 1)

    assert sympy.simplify(found - s * t / (s + t)) == 0
    assert sympy.simplify(found.subs(s, t) - t / 2) == 0
    assert wide(found.subs(t, 1), "S") == 1


DECODE = """
mesh X
dims D=100_000
param W: {dtype}[D, F_X]
cache kv: int8[BS, Sequence, KV_X]
x[BS, D] · W[D, F_X] -> y[BS, F_X]
q[BS, KV_X] · kv[BS, Sequence, KV_X] -> s[BS, Sequence]{{U_X}}
"""
"""A step of decoding that reads D*F weights and KV bytes of cache a token, both on all chips."""


@pytest.mark.parametrize(("batch", "expected"), [(4, 2.57e-3), (256, 21.05e-3)])
def test_in_01_steps_of_a_30b_model(batch: int, expected: float) -> None:
    """30e9 weights in int8 and 100 kB a token on v5e 4x4: at 256 16.18 ms of caches, 4.87 of math."""
    report = report_of(
        DECODE.format(dtype="int8"), "tpu_v5e", forward=True, hbm=True,
        X=16, F=300_000, BS=batch, Sequence=8192, KV=100_000,
    )  # fmt: skip
    parts = [each["time"]["seconds"] for each in report.to_dict()["compute"]]

    assert seconds(report, key="t_math") == pytest.approx(expected, rel=1e-3)
    assert batch == 4 or parts == pytest.approx([4.87e-3, 16.18e-3], rel=1e-3)


@pytest.mark.parametrize(
    ("batch", "milliseconds", "rate"),
    [
        (1, 4.98, 200.6),
        (8, 12.13, 659.3),
        (16, 20.30, 788.0),
        (32, 36.65, 873.2),
        (64, 69.33, 923.1),
        (240, 249.09, 963.5),
    ],
)
def test_in_04_steps_of_llama_13b(batch: int, milliseconds: float, rate: float) -> None:
    """26 GB of weights and 6.7 GB a sequence on 8 chips of 0.82e12 B/s: the step, and tokens a second."""
    report = report_of(
        DECODE.format(dtype="bf16"), "tpu_v5e", forward=True, sets={"W_hbm": 8.2e11},
        X=8, F=130_000, BS=batch, Sequence=8375, KV=800_000,
    )  # fmt: skip
    step = seconds(report, key="t_load")

    assert step == pytest.approx(milliseconds / 1e3, rel=1e-3)
    assert batch / step == pytest.approx(rate, rel=1e-3)


@pytest.mark.parametrize(("speed", "limit"), [("7.2e11", 64), ("8.1e11", 56.9)])
def test_in_06_the_limit_of_tensor_parallelism(
    solve: Callable[..., Any], speed: str, limit: float
) -> None:
    """Reading weights takes longer than gathering activations for Y < F/(B beta), beta = W_hbm/W_ici.

    A beta of 8 gives 64, the 9 of a v5e 56.9.
    """
    text = "mesh Y\nIn[B, D_Y] · W_in[D, F_Y] -> Tmp[B, F_Y]"
    chip = ("--hardware", "tpu_v5e", "--set", f"W_hbm={speed}", "--set", "B=32", "--set", "F=16Ki")
    found = solve(text, "--for", "Y", "--when", "t_load>t_comms", *chip).compute_bound["forward"]

    assert found["condition"] == "Y < F*W_ici/(B*W_hbm)"
    assert found["high"] == pytest.approx(limit, abs=0.05)


def test_in_07_a_toy_model_to_serve() -> None:
    """18.385e9 parameters with tied tables, and 262,144 B of int8 a token."""
    cache = "cache kv: int8[2, L, S, K, H]\nq[L, K, H] · kv[2, L, S, K, H] -> s[2, L, S, K]"
    sizes = {"L": 64, "S": 1, "K": 8, "H": 256}

    assert weights_of("IN toy", without(LLAMA, "W_embed")) == pytest.approx(18.385e9, rel=3e-5)
    assert report_of(cache, forward=True, **sizes).to_dict()["memory"]["caches"]["value"] == 262_144


def test_in_12_weights_that_stay(solve: Callable[..., Any]) -> None:
    """Over N chips with F = 4D: X = sqrt(N/8), YZ = sqrt(8N), in 11.31 BD/(sqrt(N) W).

    That is less than tensor parallelism over all three axes takes from N = 72 on (81 in print), and
    from 18F/D in general.
    """
    text = (
        "mesh X @ici(1), Y @ici(2)\nIn[B, D_XY] · W_in[D_X, F_Y] · W_out[F_Y, D_X] -> Out[B, D_XY]"
    )
    split = solve(text, "--minimize", "t_comms", *SPLIT).split
    names = ("B", "D", "F", "N", "W_ici", "M_X", "M_Y")
    sizes = {symbol("M_X"): 1, symbol("M_Y"): 2}
    best = {axis: read(root, names).subs(sizes) for axis, root in split["split"].items()}
    least = read(split["least"]["formula"], names).subs(sizes)
    plain = report_of("mesh Y @ici(3)\n" + TP, forward=True).forward.t_comms.subs(symbol("M_Y"), 3)
    wide = {F: 4 * D}

    assert equal(str(best["X"].subs(wide)), "sqrt(N/8)", names)
    assert equal(str(best["Y"].subs(wide)), "sqrt(8*N)", names)
    unit = least.subs(wide).subs({N: 1, D: 1, B: 1, symbol("W_ici"): 1})
    assert float(unit) == pytest.approx(11.31, abs=0.005)
    assert sympy.solve(plain - least, N) == [18 * F / D]
    assert sympy.solve((plain - least).subs(wide), N) == [72]


LLAMA_70B = """
mesh X
dims D=100_000, L=80, K=8, H=128
param W: {dtype}[D, F_X]
cache kv: {dtype}[2, L, BS, S, K_X, H]
x[BS, D] · W[D, F_X] -> y[BS, F_X]
q[L, BS, K_X, H] · kv[2, L, BS, S, K_X, H] -> s[2, L, BS, S, K_X]
"""


SERVED = ("--parts", "parameters,caches", "--hardware", "tpu_v5e", "--set", "F=700_000")


def test_ai_01_caches_of_llama_70b(solve: Callable[..., Any]) -> None:
    """In int8 160 KiB a token, 5.37 GB for 32 Ki of them, 1.29 TB for 240 such sequences.

    With 70 GB of weights they need 85 chips of 16 GB (86 in print, which rounds to 1.3 TB).
    """
    text = LLAMA_70B.format(dtype="int8")
    sizes = ({"BS": 1, "S": 1}, {"BS": 1, "S": 2**15}, {"BS": 240, "S": 2**15})
    held = [report_of(text, forward=True, X=1, **each).to_dict()["memory"] for each in sizes]
    found = solve(text, "--fits", "X", *SERVED, "--set", "BS=240", "--set", "S=32Ki").fits
    tokens = [each["caches"]["value"] for each in held]

    assert tokens[0] == 163_840
    assert tokens[1:] == pytest.approx([5.37e9, 1.29e12], rel=2e-3)
    assert found["least"] == 85


def test_ai_02_the_least_slice_for_llama_70b(solve: Callable[..., Any]) -> None:
    """32 sequences of 8,192 in int8: 112.9 GB (112 in print, from 160e3 B a token), 7.1 chips, so 4x2."""
    text = LLAMA_70B.format(dtype="int8")
    memory = report_of(text, forward=True, X=1, BS=32, S=8192, F=700_000).to_dict()["memory"]
    found = solve(text, "--fits", "X", *SERVED, "--set", "BS=32", "--set", "S=8Ki").fits

    assert memory["parameters"]["value"] + memory["caches"]["value"] == pytest.approx(
        112.9e9, rel=1e-3
    )
    assert found["low"] == pytest.approx(7.1, abs=0.05)
    assert found["least"] == 8


@pytest.mark.parametrize(("chips", "milliseconds"), [(8, 17.3), (16, 8.6)])
def test_ai_03_steps_of_llama_70b(chips: int, milliseconds: float) -> None:
    """With 160e3 B a token 17.3 ms on 4x2 and 8.6 ms on 4x4: some 1,852 tokens a second, 231 a chip."""
    text = DECODE.format(dtype="int8")
    report = report_of(
        text, "tpu_v5e", forward=True, X=chips, F=700_000, BS=32, Sequence=8192, KV=160_000
    )
    step = seconds(report, key="t_load")

    assert step == pytest.approx(milliseconds / 1e3, rel=5e-3)
    assert chips == 16 or 32 / step == pytest.approx(1852, rel=1e-3)
    assert 32 / step / chips == pytest.approx(231, rel=3e-3)


def test_ai_08_a_matmul_of_llama_70b_on_32_chips() -> None:
    """v5e, 64 tokens: 11.65 us on the network, 18.12 us of memory, 4.77 us of math (11, 18, 4 in print)."""
    text = "mesh Y=32\nIn[B, D_Y] · W_in[D, F_Y] -> Tmp[B, F_Y]"
    report = report_of(text, "tpu_v5e", forward=True, B=64, D=8192, F=28672)
    times = [seconds(report, key=key) * 1e6 for key in ("t_comms", "t_load", "t_math")]

    assert times == pytest.approx([11.65, 18.12, 4.77], abs=0.005)


def test_ai_09_a_prefill() -> None:
    """8,192 tokens through 70e9 parameters on 16 v5e at 40%: 0.910 s."""
    text = "mesh X=16\n" + WEIGHTS.replace("B_X", "B").replace("D, F]", "D, F_X]").replace(
        "B, F]", "B, F_X]"
    )
    report = report_of(text, "tpu_v5e", forward=True, B=8192)

    assert report.run(mfu=0.4)["mfu"].seconds.number == pytest.approx(0.910, abs=0.0005)


@pytest.mark.parametrize(
    ("name", "flops"), [("h100", 3.3e17), ("tpu_v5p", 3.9e17), ("tpu_v5e", 5.9e17)]
)
def test_ai_14_flops_for_a_dollar(
    chip: Callable[[str], dict[str, float]], name: str, flops: float
) -> None:
    """At 10.8, 4.2 and 1.2 USD an hour (a table in print forgets the 3,600 seconds of one)."""
    assert chip(name)["C/USD"] == pytest.approx(flops, abs=0.05e17)


# B7. GPUs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "bf16", "fp8"), [("h100", 295, 590), ("b200", 281, 562)])
def test_gp_01_intensities(
    chip: Callable[[str], dict[str, float]], name: str, bf16: float, fp8: float
) -> None:
    """FLOPs in the time of a byte from memory, in bf16 and in fp8."""
    found = chip(name)

    assert found["C/W_hbm"] == pytest.approx(bf16, abs=0.5)
    assert found["fp8/W_hbm"] == pytest.approx(fp8, abs=1)


def test_gp_02_a_gather_in_a_node() -> None:
    """bf16[1024, 16384] among 8 H100: 74.6 us, exactly 7/8 of it, 65.2 us."""
    text, sizes = "mesh X=8\nA[B_X, D] -> A[B, D]", {"B": 1024, "D": 16384}

    assert seconds(report_of(text, "h100", **sizes)) == pytest.approx(74.6e-6, rel=1e-3)
    assert seconds(report_of(text, "h100", model="link", **sizes)) == pytest.approx(
        65.2e-6, rel=1e-3
    )


def test_gp_04_data_parallelism_of_gpus(solve: Callable[..., Any]) -> None:
    """2,200 tokens a GPU within a node, 2,475 across nodes, 79,200 with 4 of 128 experts."""

    def batch(text: str) -> float:
        bound = solve(
            text, "--for", "B", "--hardware", "h100:book", "--overlap", "axes", passes="both"
        )
        assert bound.compute_bound["backward"]["general"] is None  # a switch is no torus
        return bound.compute_bound["backward"]["low"]

    node = batch("mesh X=8\nIn[B_X, D] · W[D, F] -> Out[B_X, F]")
    nodes = batch("mesh P=16 @dcn, X=8\nIn[B_PX, D] · W[D_X, F] -> Out[B_PX, F]")
    experts = batch(
        "mesh P=16 @dcn, X=8\ndims B=1Mi, E=128, Q=4*B/E\n"
        "In[E, Q_PX, D] ·_D W[E, D_X, F] -> Out[E, Q_PX, F]"
    )

    assert node / 8 == 2200
    assert nodes / 128 == 2475
    assert experts / 128 == 79_200


def test_gp_07_a_gather_over_two_nodes() -> None:
    """A level takes B/514e9 in the nodes and B/800e9 between the two; the slower counts."""
    text, sizes = "mesh X=16\nA[B_X, D] -> A[B, D]", {"B": 2048, "D": 16384}
    total = 2 * 2048 * 16384
    inside = report_of(text, "h100", model="link", **sizes)
    across = report_of(text, "h100", model="link", sets={"W_ici": 1e15}, **sizes)

    assert inside.slice == "nodes of 8: X 8 inside, 2 across"
    assert seconds(inside) == pytest.approx(total / 514e9, rel=1e-3)
    assert seconds(across) == pytest.approx(total / 800e9, rel=1e-3)


def test_gp_08_an_exchange_in_a_node() -> None:
    """B(N-1)/(W N**2) for B bytes in all."""
    text, sizes = "mesh X=8\nA[B_X, D] -> A[B, D_X]", {"B": 1024, "D": 16384}
    report = report_of(text, "h100", model="link", **sizes)

    assert seconds(report) == pytest.approx(2 * 1024 * 16384 * 7 / (450e9 * 64))
