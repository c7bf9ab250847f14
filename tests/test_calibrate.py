"""Calibration: fits to runs whose times follow from known shares, and tables that are wrong."""

from __future__ import annotations

import json
from math import exp, log

import numpy as np
import pytest
from scipy.optimize import least_squares

import shardlang as sl
from shardlang.cost.calibrate import calibrate, Sample
from shardlang.cost.samples import read_samples
from shardlang.diagnostics import ShardlangError

D, F, C, W = 8192, 32_768, 4.59e14, 1.8e11
PROGRAM = f"""mesh X
dims D={D}, F={F}
In[B_X, D] · W_in[D_X, F] · W_out[F, D_X] -> Out[B_X, D]
"""
PLAN = sl.lower(sl.parse(PROGRAM))


def math_and_comms(batch, devices):
    """Give FSDP's two times at peak rates, by the book: 12BDF/(XC), and 6 times 2DF/W."""
    return 12 * batch * D * F / (devices * C), 12 * D * F / W


def samples(cases, seconds):
    """Give runs of FSDP on v5p, with times by a function of T_math and T_comms."""
    found = []
    for batch, devices in cases:
        plan = sl.lower(sl.parse(PROGRAM), sizes={"B": batch, "X": devices})
        time = seconds(*math_and_comms(batch, devices))
        found.append(Sample(f"{batch} on {devices}", sl.cost(plan, hardware="tpu_v5p"), time))
    return found


CASES = [(2**17, 16), (2**16, 16), (2**14, 16), (2**13, 16), (2**18, 32), (2**14, 32)]


def values(found):
    """Give the fitted figures."""
    return {each.name: each.value for each in found.figures}


@pytest.mark.parametrize(("math", "ici"), [(0.62, 0.45), (0.9, 0.2), (0.15, 0.95)])
def test_shares_are_found_again_from_serial_times(math, ici):
    """Times that are T_math/E_math + T_comms/E_ici give back both."""
    found = calibrate(samples(CASES, lambda a, b: a / math + b / ici), time="serial")

    assert values(found) == pytest.approx({"E_math": math, "E_ici": ici}, rel=1e-6)
    assert found.worst < 1e-6
    assert not found.notes


def test_shares_are_found_again_from_overlapped_times():
    """So they are where the larger of the two counts, with runs of both kinds."""
    found = calibrate(samples(CASES, lambda a, b: max(a / 0.62, b / 0.45)))

    assert values(found) == pytest.approx({"E_math": 0.62, "E_ici": 0.45}, rel=1e-6)


def test_the_fit_and_its_bands_are_those_of_another_library():
    """Noisy times: scipy finds the same least squares, and the linear model the same errors."""
    rng = np.random.default_rng(7)
    noise = iter(np.exp(rng.normal(0, 0.08, len(CASES))))
    runs = samples(CASES, lambda a, b: (a / 0.5 + b / 0.6) * next(noise))
    times = np.array([math_and_comms(*case) for case in CASES])
    measured = np.log([run.seconds for run in runs])
    other = least_squares(
        lambda p: np.log(times @ np.exp(-p)) - measured, [log(0.9), log(0.9)], xtol=1e-14
    )

    found = calibrate(runs, time="serial")

    assert np.log(list(values(found).values())) == pytest.approx(other.x, abs=1e-5)
    spread = np.sqrt((other.fun**2).sum() / (len(CASES) - 2))
    errors = 2 * np.sqrt(np.diag(np.linalg.inv(other.jac.T @ other.jac))) * spread
    for each, at, error in zip(found.figures, other.x, errors, strict=True):
        assert each.low == pytest.approx(exp(at - error), rel=1e-3)
        assert each.high == pytest.approx(min(exp(at + error), 1), rel=1e-3)
    for run in found.runs:
        assert run.low < run.predicted < run.high
        assert run.peak < run.predicted


def test_what_no_run_depends_on_is_not_told():
    """Runs that are all bound by compute say nothing of the interconnect."""
    found = calibrate(samples([(2**20, 16), (2**19, 16), (2**21, 32)], lambda a, _: a / 0.5))

    assert values(found) == {"E_math": pytest.approx(0.5, rel=1e-6), "E_ici": None}
    assert found.sets.keys() == {"E_math"}
    assert any("E_ici" in note for note in found.notes)


def test_runs_that_are_all_alike_tell_no_two_shares_apart():
    """One kind of run, three times: many pairs do as well, and that is said."""
    found = calibrate(samples([(2**16, 16)] * 3, lambda a, b: a / 0.5 + b / 0.5), time="serial")

    assert found.worst < 1e-6
    assert any("apart" in note for note in found.notes)


def test_a_run_below_the_bound_is_named():
    """No share above 1 is fitted; the run that would need one is told of."""
    runs = samples(CASES, lambda a, b: max(a, b) / 0.5)
    runs[0] = Sample("too fast", runs[0].report, runs[0].seconds / 10)

    found = calibrate(runs)

    assert all(value <= 1 for value in values(found).values())
    assert [note for note in found.notes if note.startswith("too fast took 0.2 ")]


def test_latency_can_be_fitted_too():
    """Small arrays on a ring of 16: (n-1)/n of the bytes, or 8 hops of 3 µs where those take longer."""
    hop, share = 3e-6, 0.7
    plan = "mesh X=16\nA[I_X, J] -> A[I, J]"
    runs = []
    for size in (16, 64, 256, 2**16, 2**18, 2**20):
        lowered = sl.lower(sl.parse(f"{plan}\ndims I={size}, J=1024"), forward_only=True)
        time = max(size * 1024 * 2 * 15 / 16 / (share * W), 8 * hop)
        runs.append(Sample(str(size), sl.cost(lowered, hardware="tpu_v5p", model="link"), time))

    found = calibrate(runs, ("E_ici", "T_hop"), "serial")

    assert values(found) == pytest.approx({"E_ici": share, "T_hop": hop}, rel=1e-6)


def test_a_fit_holds_for_a_run_that_it_has_not_seen():
    """The shares go into `cost` as they are, and the hardware's figures stay."""
    found = calibrate(samples(CASES, lambda a, b: max(a / 0.62, b / 0.45)))
    plan = sl.lower(sl.parse(PROGRAM), sizes={"B": 2**15, "X": 64})
    report = sl.cost(plan, hardware="tpu_v5p", sets=found.sets)

    math, comms = math_and_comms(2**15, 64)
    expected = max(math / 0.62, comms / 0.45)
    assert float(report.total.quantity("t_overlapped").value) == pytest.approx(expected, rel=1e-5)
    assert float(report.known["C"]) == C


@pytest.mark.parametrize(
    ("fit", "runs", "code"),
    [
        (("E_x",), 4, "SH537"),
        (("T_hop",), 4, "SH537"),
        (("E_math", "E_ici"), 1, "SH536"),
        ((), 3, "SH536"),
    ],
)
def test_what_cannot_be_fitted_is_refused(fit, runs, code):
    """With a code: unknown figures, latency in a model without any, fewer runs than figures."""
    with pytest.raises(ShardlangError) as caught:
        calibrate(samples(CASES[:runs], max), fit)

    assert [each.code for each in caught.value.diagnostics] == [code]


# --- tables ---

TOML = """program = "mlp.shd"
hardware = "tpu_v5p"
[[run]]
name = "large"
seconds = {0}
set = {{ B = 131072, X = 16 }}
[[run]]
seconds = {1}
set = {{ B = 8192, X = 16 }}
[[run]]
seconds = {2}
set = {{ B = 16_384, X = 32 }}
"""
CSV = """name, program, hardware, seconds, B, X
large, mlp.shd, tpu_v5p, {0}, 131072, 16
, mlp.shd, tpu_v5p, {1}, 8192, 16
, mlp.shd, tpu_v5p, {2}, 16384, 32
"""
TIMES = [
    max(a / 0.62, b / 0.45) for a, b in map(math_and_comms, (2**17, 2**13, 2**14), (16, 16, 32))
]


@pytest.fixture
def table(tmp_path):
    """Write a table beside a program, and give its path."""
    (tmp_path / "mlp.shd").write_text(PROGRAM, encoding="utf-8")
    (tmp_path / "bad.shd").write_text("A[I_X] · -> C", encoding="utf-8")

    def write(text, name="runs.toml"):
        (tmp_path / name).write_text(text, encoding="utf-8")
        return tmp_path / name

    return write


@pytest.mark.parametrize(("text", "name"), [(TOML, "runs.toml"), (CSV, "runs.csv")])
def test_a_table_is_read_and_fitted(shardlang, table, text, name):
    """As TOML and as CSV, by the library and by the command."""
    path = table(text.format(*TIMES), name)

    runs = read_samples(str(path))
    assert [run.name for run in runs] == ["large", "run 2", "run 3"]
    assert [run.seconds for run in runs] == TIMES
    data = json.loads(shardlang("calibrate", path, "--format", "json").out)
    assert data["figures"]["E_math"]["value"] == pytest.approx(0.62, rel=1e-6)
    assert data["figures"]["E_ici"]["value"] == pytest.approx(0.45, rel=1e-6)
    shown = shardlang("calibrate", path).out
    assert "E_math  0.620" in shown
    assert "--set E_math=0.62 --set E_ici=0.45" in " ".join(shown.split())
    assert max(map(len, shown.splitlines())) <= 80
    for form in ("markdown", "latex"):
        assert "0.620" in shardlang("calibrate", path, "--format", form).out


@pytest.mark.parametrize(
    ("text", "name", "code", "line", "word"),
    [
        ("[[run]]\nprogram = \n", "t.toml", "SH534", 2, "Invalid value"),
        ("a = 1\n", "t.toml", "SH534", 1, "no runs"),
        ("run = 1\n", "t.toml", "SH534", 1, "list"),
        ("\n[[run]]\nseconds = 1\n", "t.toml", "SH535", 2, "no program"),
        ('[[run]]\nprogram = "mlp.shd"\nseconds = 0\n', "t.toml", "SH535", 1, "seconds"),
        ('[[run]]\nprogram = "mlp.shd"\nseconds = "x"\n', "t.toml", "SH535", 1, "no number"),
        ('[[run]]\nprogram = "mlp.shd"\nseconds = true\n', "t.toml", "SH535", 1, "no number"),
        ('[[run]]\nprogram = "mlp.shd"\n', "t.toml", "SH535", 1, "seconds is missing"),
        ('[[run]]\nprogram = "mlp.shd"\nseconds = 1\ntime = 2\n', "t.toml", "SH535", 1, "'time'"),
        ('[[run]]\nprogram = "no.shd"\nseconds = 1\n', "t.toml", "SH535", 1, "no file"),
        ('[[run]]\nprogram = "mlp.shd"\nseconds = 1\nmodel = "x"\n', "t.toml", "SH535", 1, "model"),
        ('[[run]]\nprogram = "mlp.shd"\nseconds = 1\n', "t.toml", "SH535", 1, "gives a value"),
        (
            '[[run]]\nprogram = "mlp.shd"\nseconds = 1\nhardware = "v9"\n',
            "t.toml",
            "SH535",
            1,
            "v9",
        ),
        ('[[run]]\nprogram = "mlp.shd"\nseconds = 1\nset = {Q = 1}\n', "t.toml", "SH535", 1, "Q"),
        (
            '[[run]]\nprogram = "mlp.shd"\nseconds = 1\nset = {E_math = 2}\n',
            "t.toml",
            "SH535",
            1,
            "share",
        ),
        ('[[run]]\nprogram = "bad.shd"\nseconds = 1\n', "t.toml", "SH1", 1, ""),
        ("program,B\n", "t.csv", "SH534", 1, "no column seconds"),
        ("program,seconds,B\nmlp.shd,1\n", "t.csv", "SH534", 2, "3 values"),
        ("program,seconds,B\nmlp.shd,1,2,3\n", "t.csv", "SH534", 2, "3 values"),
        ("program,seconds,B\nmlp.shd,1,two\n", "t.csv", "SH535", 2, "B is no number"),
        ("program,seconds,B\nmlp.shd,1,1.5\n", "t.csv", "SH535", 2, ""),
        ("program,seconds\n", "t.csv", "SH534", 1, "no runs"),
        (" \n", "t.csv", "SH534", 1, "empty"),
    ],
)
def test_bad_tables_have_precise_errors(shardlang, table, text, name, code, line, word):
    """A code, the line of the run, and the word that is wrong; never a traceback."""
    path = table(text, name)

    with pytest.raises(ShardlangError) as caught:
        read_samples(str(path))

    first = caught.value.diagnostics[0]
    assert first.code.startswith(code)
    assert first.line == line
    assert word in first.message
    outcome = shardlang("calibrate", path)
    assert outcome.status == 1
    assert first.code in outcome.err


def test_a_table_that_is_not_there_is_an_error(shardlang, tmp_path):
    """No traceback, and the path."""
    outcome = shardlang("calibrate", tmp_path / "no.toml")

    assert outcome.status == 1
    assert "no.toml" in outcome.err
    assert "Traceback" not in outcome.err
