"""Training runs: MFU, tokens/s, days and dollars, against the book's rows and counts by hand."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import pytest
import sympy

import shardlang as sl
from shardlang.cost.conventions import CONVENTIONS
from shardlang.cost.solve import when
from shardlang.diagnostics import ShardlangError

EXAMPLES = Path(__file__).parent.parent / "examples"
YEAR = 365.25 * 86400


def model(devices, batch, parameters=(64_000, 1_093_750), hardware="tpu_v5p"):
    """Give the report of one matrix on a mesh; by default of 70e9 parameters, 6*70e9 FLOPs a token."""
    d, f = parameters
    text = f"""
mesh X={devices}
hardware {hardware}
dims B={batch}, D={d}, F={f}
param W: [D, F]
Out[B_X, F] = In[B_X, D] · W[D, F]
"""
    return sl.cost(sl.lower(sl.parse(text)))


def mlp(scheme="fsdp_tp", **options):
    """Give the report of an MLP of the examples with its sizes open."""
    return sl.cost(sl.lower(sl.load(EXAMPLES / f"{scheme}.shd")), **options)


# --- the book's rows ---


def test_at_02_a_single_chip_takes_435_years():
    """4.2e11 FLOPs a token, 6.3e24 in all; 435 years at the peak of one v5p."""
    report = model(1, 1000)
    counts = report.conventions()
    pace = report.run(tokens=15e12, mfu=1)["mfu"]

    assert counts["parameters-all"].token.number == 420_000_000_000
    assert counts["model"].token.number * 15e12 == 6.3e24
    assert pace.days.number * 86400 / YEAR == pytest.approx(435, abs=0.5)


@pytest.mark.parametrize(
    ("row", "devices", "per_device", "mfu", "days"),
    [
        ("AT-03", 8960, 4096, 0.4, 44.3),
        ("SD-06", 18_823, 850, 0.5, 16.9),
        ("SD-28", 89_600, 446, 0.5, 3.5),
        ("SD-28 at the peak", 89_600, 446, 1, 1.8),
    ],
)
def test_days_to_train_70b_on_15_trillion_tokens(row, devices, per_device, mfu, days):
    """The batch of a step is in none of them: what counts are tokens, devices and MFU."""
    run = model(devices, devices * per_device).run(tokens=15e12, mfu=mfu)

    assert run["mfu"].days.number == pytest.approx(days, abs=0.055), row
    assert run.step_tokens.number == devices * per_device
    assert run.steps.number == pytest.approx(15e12 / (devices * per_device))
    assert run["mfu"].device_hours.number == pytest.approx(
        run["mfu"].days.number * 24 * devices, rel=1e-12
    )


def test_at_10_days_to_train_405b():
    """405.85e9 parameters on 8 pods at 40 %: 3.65e25 FLOPs, 32.1 days."""
    # 2**4 * 3**2 * 23 * 2**? is no matter: what counts is the product, to five digits
    report = model(8 * 8960, 8 * 8960 * 64, parameters=(405_850, 1_000_000))
    run = report.run(tokens=15e12, mfu=0.4)

    total = run.counts["parameters-all"].token.number * 15e12
    assert total == pytest.approx(3.65e25, rel=1e-3)
    assert run["mfu"].days.number == pytest.approx(32.1, abs=0.05)


@pytest.mark.parametrize(
    ("chip", "price", "flops"),
    [("h100", 10.8, 3.3e17), ("tpu_v5p", 4.2, 3.9e17), ("tpu_v5e", 1.2, 5.9e17)],
)
def test_ai_14_flops_for_a_dollar(chip, price, flops):
    """At the peak, for the book's prices (the text leaves out the 3600 seconds of an hour)."""
    run = model(8, 8000, hardware=chip).run(tokens=1e9, mfu=1, price=price)

    spent = run.counts["model"].token.number * 1e9
    assert spent / run["mfu"].usd.number == pytest.approx(flops, rel=0.02)


def test_sd_02_at_the_critical_batch_the_serial_time_is_half_the_peak():
    """FSDP over 3 axes of v5p: 850 tokens a chip, 7.6e6 a pod; T_math is T_comms there."""
    text = """
mesh X=8960
hardware tpu_v5p
dims B=7_616_000, D=8960, F=17_920
In[B_X, D] · W_in[D_X, F] · W_out[F, D_X] -> Out[B_X, D]
"""
    report = sl.cost(sl.lower(sl.parse(text)), sets={"M_X": 3})
    run = report.run()

    assert when(report, "B").low == pytest.approx(7_616_000)
    assert run["overlapped"].mfu == pytest.approx(1)
    assert run["serial"].mfu == pytest.approx(0.5)
    assert 0.5 < run["scheduled"].mfu < 1


# --- what users of other tools ran into ---


def test_u4_mfu_is_of_the_dense_peak():
    """420 TFLOP/s on an H200 are 42.5 %, not the 21.2 % of the sparse peak."""
    report = model(1, 1000, parameters=(1000, 1000), hardware="h200")
    pace = report.measured(6 * 1000**3 / 420e12)

    assert pace.achieved["model"].number == pytest.approx(420e12)
    assert pace.mfu == pytest.approx(0.425, abs=5e-4)


def test_u27_global_tokens_are_over_all_devices():
    """6 * 70e9 * 1.638e7 FLOPs in 13.5 hours on 16 A100 are 2.84 %."""
    pace = model(16, 16_380_000, hardware="a100").measured(13.5 * 3600)

    assert pace.utilization["parameters-all"].number == pytest.approx(0.0284, abs=5e-5)
    assert pace.tokens_per_second.number == pytest.approx(1.638e7 / 48_600)
    assert pace.tokens_per_second_device.number == pytest.approx(1.638e7 / 48_600 / 16)


# --- how the figures hang together ---


def test_recomputation_lifts_hfu_alone():
    """With T made again the devices run 14 products for the model's 12."""
    text = """
mesh X=4
hardware tpu_v5e
dims B=65536, D=4096, F=16384
save S
T[B_X, F] = In[B_X, D] · W_in[D, F]
S[B_X, F] = gelu(T)
Out[B_X, D] = S · W_out[F, D]
"""
    run = sl.cost(sl.lower(sl.parse(text))).run()

    assert run["overlapped"].hfu == pytest.approx(1)
    assert run["overlapped"].mfu == pytest.approx(12 / 14)


def test_replicated_work_lifts_hfu_alone():
    """Over an axis that splits nothing the devices do the same work."""
    text = """
mesh X=4, Y=2
hardware tpu_v5e
dims B=1048576, D=4096, F=16384
In[B_X, D] · W_in[D, F] -> Out[B_X, F]
"""
    run = sl.cost(sl.lower(sl.parse(text), forward_only=True)).run()

    assert run["overlapped"].hfu == pytest.approx(1)
    assert run["overlapped"].mfu == pytest.approx(0.5)


def test_the_step_time_of_an_mfu_has_that_mfu():
    """Under each convention the utilization of the pace is what was asked for."""
    report = sl.cost(sl.lower(sl.load(EXAMPLES / "attention.shd")))
    for name in CONVENTIONS:
        run = report.run(mfu=0.4, convention=name)
        assert run["mfu"].utilization[name].value == Fraction(2, 5)
    with_causal = report.run(mfu=0.4, convention="model-causal")["mfu"].seconds.value
    assert with_causal < report.run(mfu=0.4)["mfu"].seconds.value


def test_a_step_below_the_bound_is_told(shardlang):
    """What is measured in less than the bound is not this program on this chip: the report says so."""
    flags = ("cost", "examples/mlp.shd", "--measured")
    slow, fast = (shardlang(*flags, time).out for time in ("20ms", "1ms"))

    assert "measured in less than T_overlapped" in fast
    assert "measured in less" not in slow


def test_a_measured_step_is_held_against_the_bound():
    """Its ratios are those to T_overlapped and T_serial."""
    report = model(8960, 8960 * 4096)
    pace = report.measured(1.5)

    assert pace.over_overlapped.number == pytest.approx(
        1.5 / float(report.total.quantity("t_overlapped").value)
    )
    assert pace.over_serial.number == pytest.approx(
        1.5 / float(report.total.quantity("t_serial").value)
    )


def test_a_run_of_open_sizes_is_made_of_formulas():
    """What each says is, with numbers for its names, the number that a report of them has."""
    symbolic = mlp(sets={"M_X": 2}).run(tokens=15e12, mfu=0.4, price=4.2).to_dict()
    sizes = {"X": 16, "Y": 4, "B": 131_072, "D": 8192, "F": 32_768}
    plan = sl.lower(sl.load(EXAMPLES / "fsdp_tp.shd"), sizes=sizes)
    report = sl.cost(plan, hardware="tpu_v5p", sets={"M_X": 2})
    numeric = report.run(tokens=15e12, mfu=0.4, price=4.2).to_dict()
    known = {**sizes, "C": 4.59e14, "W_ici": 1.8e11, "M_X": 2, "M_Y": 1}

    def entries(data):
        if isinstance(data, dict) and "formula" in data:
            return {"": data}
        pairs = data.items() if isinstance(data, dict) else ()
        return {f"{k}.{n}": e for k, v in pairs for n, e in entries(v).items()}

    assert symbolic["paces"].keys() == {"overlapped", "serial", "mfu"}
    found, expected = entries(symbolic), entries(numeric)
    assert len(found) > 50
    for name, entry in found.items():
        names = {n: sympy.Symbol(n, positive=True) for n in known}
        value = sympy.sympify(entry["formula"], locals=names)
        value = value.subs({names[n]: v for n, v in known.items()})
        number = expected[name].get("value", expected[name].get("seconds"))
        assert float(value) == pytest.approx(float(number), rel=1e-9), name


def test_usd_needs_a_price_and_days_need_tokens():
    """A chip without a price has no dollars, a run without tokens no days."""
    priced, unpriced = model(8, 800), model(8, 800, hardware="b200")

    assert priced.run(tokens=1e9).price == Fraction("4.2")
    assert "tpu_v5p" in priced.run(tokens=1e9).priced
    assert unpriced.run(tokens=1e9)["serial"].usd is None
    assert unpriced.run(tokens=1e9, price=2)["serial"].usd.number > 0
    assert priced.run()["serial"].days is None


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"tokens": 0}, "SH532"),
        ({"tokens": float("inf")}, "SH532"),
        ({"mfu": 1.2}, "SH532"),
        ({"mfu": float("nan")}, "SH532"),
        ({"price": -1}, "SH532"),
        ({"measured": 0}, "SH532"),
        ({"mfu": 0.4, "convention": "mfu"}, "SH533"),
    ],
)
def test_figures_that_make_no_sense_are_refused(given, code):
    """With a code, and the name of the figure."""
    with pytest.raises(ShardlangError) as caught:
        model(8, 800).run(**given)

    assert [each.code for each in caught.value.diagnostics] == [code]


def test_tokens_need_a_batch():
    """Two inputs and no weight: nothing says what a token is."""
    report = sl.cost(sl.lower(sl.parse("A[I, J] · B[J, K] -> C[I, K]"), forward_only=True))

    with pytest.raises(ShardlangError) as caught:
        report.run(tokens=1e9)
    assert [each.code for each in caught.value.diagnostics] == ["SH531"]
    assert report.run()["serial"].tokens_per_second is None


# --- the command ---


@pytest.fixture
def program(tmp_path):
    """A model of 70e9 parameters on 8960 chips."""
    file = tmp_path / "model.shd"
    file.write_text("""mesh X=256, Y=35
hardware tpu_v5p
dims B=4Mi, D=64_000, F=1_093_750
param W: [D_X, F_Y]
Out[B_X, F_Y] = In[B_X, D] · W[D_X, F_Y]
""")
    return file


def test_the_command_shows_a_run(shardlang, program):
    """With 44.3 days at 40 %, in text of 80 columns, JSON, Markdown and LaTeX."""
    flags = ("--tokens", "15T", "--mfu", "40%", "--price", "2", "--measured", "1500ms")
    text = shardlang("cost", program, *flags).out
    section = text[text.index("Training run") :]
    data = json.loads(shardlang("cost", program, *flags, "--format", "json").out)["run"]

    assert max(map(len, section.splitlines())) <= 80
    (days,) = [line for line in section.splitlines() if line.startswith("  days")]
    assert "44.3" in days
    assert data["paces"]["mfu"]["days"]["value"] == pytest.approx(44.32, abs=0.01)
    assert data["paces"]["measured"]["step"]["seconds"] == 1.5
    assert data["tokens"] == 15e12
    for form in ("markdown", "latex"):
        assert "44.3" in shardlang("cost", program, *flags, "--format", form).out


def test_the_command_shows_formulas_of_a_run(shardlang):
    """Where sizes are open, in terms of the time of a step."""
    text = shardlang("cost", EXAMPLES / "fsdp.shd", "--tokens", "1T", "--mfu", "0.5").out

    assert "T_step   24*B*D*F/(C*X) at MFU 0.5" in text
    assert "MFU                 12*B*D*F/(C*T_step*X)" in text


@pytest.mark.parametrize(
    "flags", [("--mfu", "2"), ("--mfu", "x"), ("--tokens", "0"), ("--price", "-1")]
)
def test_the_command_refuses_what_makes_no_sense(shardlang, program, flags):
    """As wrong usage."""
    outcome = shardlang("cost", program, *flags)

    assert outcome.status == 2
    assert "Traceback" not in outcome.err
