"""`solve`: conditions on a symbol and best splits, against the book's own and brute force."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from fractions import Fraction

import pytest
import sympy

import shardlang as sl
from shardlang.cost.report import Report
from shardlang.cost.solve import constraint_of, Solution, when
from shardlang.cost.split import best_split, Pass, Split

FSDP = "In[B_X, D] · W_in[D_X, F] · W_out[F, D_X] -> Out[B_X, D]"
TP = "In[B, D_Y] · W_in[D, F_Y] · W_out[F_Y, D] -> Out[B, D_Y]"
BOTH = "In[B_X, D_Y] · W_in[D_X, F_Y] · W_out[F_Y, D_X] -> Out[B_X, D_Y]"
DP = "In[B_X, D] · W_in[D, F] · W_out[F, D] -> Out[B_X, D]"


def report_of(text: str, **options: object) -> Report:
    """Price a program."""
    return sl.cost(sl.lower(sl.parse(text)), **options)  # type: ignore[arg-type]


def split_of(report: Report, with_: str, over: tuple[str, ...], which: Pass = "forward") -> Split:
    """Split a mesh so that T_comms is least."""
    return best_split(report, over, constraint_of(report, with_, over, {}), which)


def same(expected: str, text: str | None) -> bool:
    """Compare two formulas over positive symbols."""
    assert text is not None
    names = {n: sympy.Symbol(n, positive=True) for n in ("B", "D", "F", "N", "C", "X", "Y")}
    names |= {n: sympy.Symbol(n, positive=True) for n in ("W_ici", "M_X", "M_Y")}
    left, right = (sympy.sympify(t, locals=names) for t in (expected, text))
    return bool(sympy.simplify(left - right) == 0)


@pytest.mark.parametrize(
    ("text", "symbol", "which", "expected"),
    [
        (DP, "B", "backward", "B/X > C/W_ici"),
        (FSDP, "B", "forward", "B/X > C/W_ici"),
        (FSDP, "B", "total", "B/X > C/W_ici"),
        (TP, "Y", "forward", "Y < F*W_ici/C"),
        (TP, "F", "forward", "F/Y > C/W_ici"),
        (FSDP, "X", "forward", "X < B*W_ici/C"),
    ],
)
def test_the_books_conditions(text: str, symbol: str, which: Pass, expected: str) -> None:
    """The conditions that the book gives for its schemes come out as it writes them."""
    assert expected == when(report_of(text), symbol, which).text


def test_hardware_axes_stand_in_the_general_form() -> None:
    """Where nobody says how many hardware axes a mesh axis spans, the general condition has them."""
    found = when(report_of(TP), "Y", "forward")
    assert found.general == "Y < F*M_Y*W_ici/C"


def test_the_optimal_split_of_both_models() -> None:
    """X_opt is sqrt(B M_X N/(F M_Y)), whether axes overlap or not (the seed and the book)."""
    for overlap in (None, "axes"):
        split = split_of(report_of(BOTH, overlap=overlap), "X*Y=N", ("X", "Y"))
        assert split.how == "closed form"
        assert same("sqrt(B*M_X*N/(F*M_Y))", split.sums.text(split.values["X"]))
        assert same("sqrt(N*F*M_Y/(B*M_X))", split.sums.text(split.values["Y"]))


@pytest.mark.parametrize(("overlap", "factor"), [("axes", 1), (None, 4)])
def test_the_batch_at_the_optimal_split(overlap: str | None, factor: int) -> None:
    """B/N has to be above C**2/(F M_X M_Y W**2) where axes overlap, and 4 times that where not."""
    report = report_of(BOTH, overlap=overlap)
    constraint = constraint_of(report, "X*Y=N", ("X", "Y"), {})
    found = when(report, "B", "forward", over=("X", "Y"), constraint=constraint)
    assert found.general is not None
    left, right = found.general.split(" > ")
    assert left == "B/N"
    assert same(f"{factor}*C**2/(F*M_X*M_Y*W_ici**2)", right)


def test_the_books_numbers_of_a_mixed_scheme() -> None:
    """With N=64, F=32768, M_X/M_Y=2 and B=48 Ki, X_opt is 13.86, and X=16, Y=4 in whole numbers."""
    text = f"mesh X=16 @ici(2), Y=4\ndims B=49152, D=8192, F=32768\n{BOTH}"
    report = report_of(text, hardware="tpu_v5p", overlap="axes")
    split = split_of(report, "X*Y=64", ("X", "Y"))
    assert abs(split.numbers["X"] - 13.856) < 0.001
    assert dict(split.whole) == {"X": 16, "Y": 4}


def test_three_axes_have_a_closed_form_too() -> None:
    """Three terms over three axes whose product is fixed: each axis balances the terms (by hand)."""
    text = (
        "A[I_X, J] · B[J, K] -> C[I_X, K]\nmesh X, Y, Z\n"
        "P[M, N_X] -> P2[M, N]\nQ[M, N_Y] -> Q2[M, N]\nR[M, N_Z] -> R2[M, N]\n"
    )
    # each gather costs 2*M*N whatever the axis: nothing depends on the split
    report = sl.cost(sl.lower(sl.parse(text), forward_only=True))
    split = split_of(report, "X*Y*Z=N2", ("X", "Y", "Z"))
    assert split.how == "flat"


def _random_program(rng: random.Random) -> str:
    layouts = {"B": rng.choice(["B", "B_X", "B_XY"]), "D": rng.choice(["D", "D_Y"])}
    if layouts["B"] == "B_XY":
        layouts["D"] = "D"
    w_in = rng.choice(["W_in[D_X, F_Y]", "W_in[D, F_Y]", "W_in[D_X, F]", "W_in[D, F]"])
    f = "F_Y" if "F_Y" in w_in else "F"
    w_out = rng.choice([f"W_out[{f}, D_X]", f"W_out[{f}, D]"])
    b, d = layouts["B"], layouts["D"]
    if f == "F_Y" and "Y" in b:
        b = "B_X"
    return f"mesh X, Y\nIn[{b}, {d}] · {w_in} · {w_out} -> Out[{b}, {d}]"


def test_conditions_agree_with_the_times_at_random_sizes() -> None:
    """Where everything else is known, T_math exceeds T_comms exactly where the answer says."""
    rng = random.Random(5)
    compared = 0
    for _ in range(60):
        text = _random_program(rng)
        model = rng.choice(["book", "link"])
        sizes = {"B": 2 ** rng.randint(10, 20), "D": 8192, "F": 2 ** rng.randint(13, 16)}
        sizes |= {"X": 2 ** rng.randint(1, 6), "Y": 2 ** rng.randint(1, 4)}
        symbol = rng.choice(sorted(sizes))
        plan = sl.lower(sl.parse(text))
        sets = {n: Fraction(v) for n, v in sizes.items()}
        report = sl.cost(plan, hardware="tpu_v5p", model=model, sets=sets)
        found = when(report, symbol, "total")
        function = report.compile([symbol], outputs=["t_math", "t_comms"])
        for _ in range(8):
            at = float(2 ** rng.uniform(1, 22))
            values = function(at)
            bound = float(values["t_math"]) > float(values["t_comms"])
            assert bound == _says(found, at), (text, model, symbol, at, found)
            compared += 1
    assert compared == 480


def _says(found: Solution, at: float) -> bool:
    match found.how:
        case "always":
            return True
        case "never":
            return False
        case _:
            above = found.low is None or at > found.low
            return above and (found.high is None or at < found.high)


@pytest.mark.parametrize("hardware", ["tpu_v5p", "h100"])
def test_conditions_of_networks_agree_with_the_times(hardware: str) -> None:
    """So they do where latency counts, sizes are rounded, and axes reach over nodes."""
    rng = random.Random(11)
    hows: set[str] = set()
    for _ in range(40):
        text = _random_program(rng)
        sizes = {"B": 2 ** rng.randint(6, 16), "D": 1024, "F": 2 ** rng.randint(8, 13)}
        sizes |= {"X": 2 ** rng.randint(1, 4), "Y": 2 ** rng.randint(1, 4)}
        symbol = rng.choice([*sorted(sizes), "T_hop", "W_ici"])
        sets = {n: Fraction(v) for n, v in sizes.items()}
        sets |= {"T_hop": Fraction(1, 10 ** rng.randint(4, 6)), "T_dcn": Fraction(1, 10**5)}
        plan = sl.lower(sl.parse(text))
        report = sl.cost(plan, hardware=hardware, model="link", sets=sets)
        found = when(report, symbol, "total")
        function = report.compile([symbol], outputs=["t_math", "t_comms"])
        scale = {"T_hop": 1e-9, "W_ici": 1e7}.get(symbol, 1.0)
        hows.add(found.how)
        for at in (scale * 2 ** rng.uniform(1, 22) for _ in range(8)):
            values = function(at)
            bound = float(values["t_math"]) > float(values["t_comms"])
            assert bound == _says(found, at), (text, symbol, at, sizes, found)
    assert {"closed form", "numerically"} <= hows


def test_a_latency_and_a_load_are_two_conditions() -> None:
    """2IJK/(XC) > 2 floor(X/2) T_hop, and > 4IK(1 - 1/X)/W: an AllReduce of 2IK bytes, by hand."""
    plan = sl.lower(sl.parse("mesh X=4\nA[I, J_X] · W[J_X, K] -> C[I, K]\n"), forward_only=True)
    report = sl.cost(plan, model="link")
    found = when(report, "J", "forward")
    assert found.how == "closed form"
    assert found.solved == ("J > C*T_hop*X*floor(X/2)/(I*K) and J > (2*C*X - 2*C)/W_ici")


def test_an_axis_of_a_slice_is_no_symbol() -> None:
    """Its size follows from the shape: SH524 says so, and other symbols are still solved for."""
    plan = sl.lower(sl.parse("mesh X=4\nA[I, J_X] · W[J_X, K] -> C[I, K]\n"), forward_only=True)
    report = sl.cost(plan, "tpu_v5e 4x1", model="link", sets={"I": 2**14, "K": 2**14})
    with pytest.raises(sl.ShardlangError, match="SH524"):
        when(report, "X", "forward")
    # 2 (n-1) C/W on a line of 4: the book's 17,511 of a ring times 3/2
    assert when(report, "J", "forward").low == pytest.approx(2 * 3 * 2 * 1.97e14 / 9e10)


def test_a_split_of_nodes() -> None:
    """Where formulas rest on sizes of nodes, a split is found among all sizes: by brute force."""
    text = "mesh X=4, Y=4\nIn[B_X, D_Y] · W_in[D_X, F_Y] · W_out[F_Y, D_X] -> Out[B_X, D_Y]\n"
    sizes = {"B": 2**16, "D": 2**13, "F": 2**15}
    plan = sl.lower(sl.parse(text), forward_only=True)
    report = sl.cost(plan, "h100", model="link", sets=sizes)
    split = split_of(report, "X*Y=64", ("X", "Y"))
    times = {
        x: sl.cost(plan, "h100", model="link", sets={**sizes, "X": x, "Y": 64 // x})
        for x in (2, 4, 8, 16, 32)
    }
    seconds = {x: float(r.forward.quantity("t_comms").value or 0) for x, r in times.items()}
    best = min(seconds, key=lambda x: seconds[x])
    assert dict(split.whole) == {"X": best, "Y": 64 // best}
    assert split.whole_seconds == pytest.approx(seconds[best])


def test_splits_agree_with_brute_force() -> None:
    """No split that a fine grid has is better than the one found, in closed form or not."""
    rng = random.Random(7)
    for _ in range(25):
        text = _random_program(rng)
        overlap = rng.choice([None, "axes"])
        sizes = {"B": 2 ** rng.randint(10, 20), "D": 4096, "F": 2 ** rng.randint(12, 16)}
        plan = sl.lower(sl.parse(text))
        sets = {n: Fraction(v) for n, v in sizes.items()}
        report = sl.cost(plan, hardware="tpu_v5p", overlap=overlap, sets=sets)
        split = split_of(report, "X*Y=256", ("X", "Y"), "total")
        function = report.compile(["X", "Y"], outputs=["t_comms"])
        grid = [2 ** (i / 16) for i in range(1, 128)]
        least = min(float(function(x, 256 / x)["t_comms"]) for x in grid)
        if split.how == "flat":
            continue
        assert split.seconds is not None
        at = float(function(split.numbers["X"], split.numbers["Y"])["t_comms"])
        assert abs(at - split.seconds) <= 1e-9 * at
        # at the ends nothing moves over the axis of size 1: those are looked at in whole numbers
        assert split.seconds <= least * (1 + 1e-9)
        whole = min(float(function(2.0**i, 2.0 ** (8 - i))["t_comms"]) for i in range(9))
        assert split.whole_seconds is not None
        assert abs(whole - split.whole_seconds) <= 1e-9 * whole


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command."""
    return subprocess.run(
        [sys.executable, "-m", "shardlang", "solve", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_command_prints_condition_and_split() -> None:
    """One call gives the split, the condition at it, and numbers."""
    done = run("-e", BOTH, "--for", "B", "--over", "X,Y", "--with", "X*Y=N", "--pass", "forward")
    assert done.returncode == 0
    assert "X = sqrt(B*M_X*N/(F*M_Y))" in done.stdout
    assert "B/N > 4*C**2/(F*M_X*M_Y*W_ici**2)" in done.stdout


def test_the_command_in_json() -> None:
    """The JSON has the condition of each pass."""
    done = run("-e", FSDP, "--for", "B", "--format", "json")
    data = json.loads(done.stdout)
    assert {"forward", "backward", "total"} == set(data["compute_bound"])
    assert data["compute_bound"]["forward"]["condition"] == "B/X > C/W_ici"


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("--for", "Q"), "SH521"),
        (("--over", "X,Y"), "go together"),
        (("--minimize", "t_comms"), "needs --over"),
        ((), "nothing to solve"),
        (("--over", "X,B", "--with", "X*B=4"), "SH523"),
        (("--over", "X,Y", "--with", "X+Y=4"), "SH522"),
        (("--over", "X,Y", "--with", "X*Y=0"), "SH522"),
        (("--over", "X,Y", "--with", "X*Y"), "SH522"),
    ],
)
def test_wrong_questions(arguments: tuple[str, ...], part: str) -> None:
    """A question that can't be asked is wrong usage, and says why."""
    done = run("-e", BOTH, *arguments)
    assert done.returncode == 2
    assert part in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("text", "symbol"),
    [
        ("mesh X\ninput A: [I, J_X]\ninput B: [J, K]\nT = A ·_J B\nD[I_X, J] = T ·_K B\n", "X"),
        (BOTH, "B"),
    ],
)
def test_conditions_read_as_they_stand(text: str, symbol: str) -> None:
    """The printed condition, with `and` and `or` as in Python, is true exactly where T_math is larger."""
    report = report_of(text, hardware="tpu_v5p")
    found = when(report, symbol, "forward")
    figures = {n: float(v) for n, v in report.known.items()}
    names = [n for n, kind in report.symbols.kinds.items() if kind != "hardware"]
    function = report.compile(names, outputs=["forward.t_math", "forward.t_comms"])
    rng = random.Random(11)
    seen = set()
    for _ in range(300):
        sizes = {n: 2.0 ** rng.uniform(1, 4 if n in "XY" else 20) for n in names}
        math, comms = (float(x) for x in function(**sizes))
        told = eval(found.text, {"__builtins__": {}}, {**figures, **sizes})
        assert told == (math > comms), (found.text, sizes)
        seen.add(told)
    assert seen == {True, False}


def test_never_has_no_range() -> None:
    """Where another condition is false whatever the symbol is, no range of it is given."""
    text = (
        "mesh X=4\nhardware tpu_v5p\ndims I=256, K=1024\n"
        "input A: [I, J_X]\ninput B: [J, K]\nC[I, K] = A ·_J B\n"
    )
    plan = sl.lower(sl.parse(text), forward_only=True)
    found = when(sl.cost(plan, model="link"), "J", "forward")

    assert (found.how, found.low, found.high) == ("never", None, None)


def test_a_number_of_devices_stands_in_one_piece() -> None:
    """A number that is no root is printed as it is, however large."""
    report = report_of(BOTH, hardware="tpu_v5p", overlap="axes")
    constraint = constraint_of(report, "X*Y=4096", ["X", "Y"], {})
    found = when(report, "B", "forward", over=["X", "Y"], constraint=constraint)

    assert found.text == "B > 4096*C**2/(F*W_ici**2)"
