"""Efficiencies: shares of the hardware's figures in formulas, numbers, compiled reports and answers."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import sympy

import shardlang as sl
from shardlang.cost.models import MODELS
from shardlang.cost.solve import when
from shardlang.diagnostics import ShardlangError

EXAMPLES = Path(__file__).parent.parent / "examples"
SIZES = {"X": 16, "Y": 4, "B": 131_072, "D": 8192, "F": 32_768}
EFFICIENCIES = ("E_math", "E_ici", "E_dcn", "E_hbm")


def report(scheme="fsdp_tp", sizes=None, **options):
    """Give the report of an MLP of the examples."""
    plan = sl.lower(sl.load(EXAMPLES / f"{scheme}.shd"), sizes=sizes)
    return sl.cost(plan, **options)


def number(found, name, pass_="total"):
    """Give a total's number."""
    return float(found.totals[pass_].quantity(name).value)


def test_nothing_has_efficiencies_that_nobody_set():
    """They are in no formula and among no symbols."""
    text = report().to_json()

    assert not any(name in text for name in EFFICIENCIES)


def test_each_multiplies_its_figure():
    """C by E_math, W_ici by E_ici; what has the other figure stays as it was."""
    plain = report()
    found = report(sets={"E_math": 0.8, "E_ici": 0.5, "E_dcn": 0.3})
    shares = dict(zip(("C", "W_ici"), sympy.symbols("E_math E_ici", positive=True), strict=True))

    for name, figure in (("t_math", "C"), ("t_comms", "W_ici")):
        before, after = getattr(plain.total, name), getattr(found.total, name)
        symbol = sympy.Symbol(figure, positive=True)
        assert sympy.simplify(after - before.subs(symbol, symbol * shares[figure])) == 0
    assert found.total.flops == plain.total.flops
    assert found.total.bytes == plain.total.bytes
    assert found.symbols.kinds["E_math"] == "hardware"


def test_numbers_are_those_of_slower_hardware():
    """A chip at 80 % is one with 0.8 of its peak, under every model of collectives."""
    for name in MODELS:
        shares = report(
            sizes=SIZES,
            hardware="tpu_v5p",
            model=name,
            sets={"E_math": 0.8, "E_ici": 0.5, "T_hop": 1e-6}
            if name != "book"
            else {"E_math": 0.8, "E_ici": 0.5},
        )
        slower = report(
            sizes=SIZES,
            hardware="tpu_v5p",
            model=name,
            sets={
                "C": 0.8 * 4.59e14,
                "W_ici": 0.9e11,
                **({"T_hop": 1e-6} if name != "book" else {}),
            },
        )
        for key in ("t_math", "t_comms", "t_overlapped", "t_serial"):
            assert number(shares, key) == pytest.approx(number(slower, key), rel=1e-12)
        assert shares.schedule().seconds == pytest.approx(slower.schedule().seconds, rel=1e-12)


@pytest.mark.parametrize("model", ["book", "link"])
def test_the_data_centre_has_its_own(model):
    """E_dcn slows collectives over @dcn axes alone."""
    text = """
mesh X=4 @dcn, Y=8
dims B=65536, D=4096, F=16384
In[B_XY, D] · W_in[D_Y, F] · W_out[F, D_Y] -> Out[B_XY, D]
"""
    plan = sl.lower(sl.parse(text))
    plain, dcn, ici = (
        sl.cost(plan, hardware="tpu_v5p", model=model, sets=sets)
        for sets in ({}, {"E_dcn": 0.25}, {"E_ici": 0.5})
    )

    for a, b, c in zip(plain.collectives, dcn.collectives, ici.collectives, strict=True):
        far = "X" in a.axes
        assert float(b.time.value / a.time.value) == pytest.approx(4 if far else 1)
        if not far:
            assert float(c.time.value / a.time.value) == pytest.approx(2)


def test_memory_has_its_own_in_the_schedule():
    """A small batch is bound by reading weights: at half the bandwidth it takes twice as long."""
    sizes = {"X": 1, "B": 8, "D": 8192, "F": 32_768}
    full, half = (
        report("dp", sizes, hardware="tpu_v5p", sets=sets, hbm=True).schedule().seconds
        for sets in ({}, {"E_hbm": 0.5})
    )

    assert half == pytest.approx(2 * full)


@pytest.mark.parametrize("value", [0, -0.5, 1.01, 80, float("nan"), float("inf")])
def test_a_share_is_above_0_and_at_most_1(value):
    """Anything else is refused, by name."""
    with pytest.raises(ShardlangError) as caught:
        report(sets={"E_math": value})

    (found,) = caught.value.diagnostics
    assert found.code == "SH530"
    assert "E_math" in found.message


def test_compiled_reports_take_them_as_arguments():
    """The function, the numbers and the formula agree, whether they were set or not."""
    compiled = report(sizes=SIZES, hardware="tpu_v5p").compile(
        ["B", "E_math", "E_ici"], ["t_math", "t_comms", "t_overlapped", "t_serial"]
    )
    compiled = pickle.loads(pickle.dumps(compiled))
    batch = np.array([2048.0, 131_072.0])[:, None]
    shares = np.array([0.3, 0.7, 1.0])

    arrays = compiled(batch, shares, shares / 2)

    for i, b in enumerate((2048, 131_072)):
        for j, share in enumerate(shares):
            sets = {"E_math": float(share), "E_ici": float(share) / 2}
            one = report(sizes={**SIZES, "B": b}, hardware="tpu_v5p", sets=sets)
            for key in compiled.outputs:
                assert arrays[key][i, j] == pytest.approx(number(one, key), rel=1e-12)


def test_compiled_reports_on_nodes_take_them_beside_axes():
    """An axis across nodes is freed and an efficiency named at once."""
    plan = sl.lower(sl.load(EXAMPLES / "tp.shd"), sizes={"Y": 16, "B": 4096, "D": 8192, "F": 32768})
    found = sl.cost(plan, hardware="h100", model="link").compile(["Y", "E_dcn"], "t_comms")

    for size, share in ((8, 0.5), (16, 0.5), (32, 0.9)):
        sizes = {"Y": size, "B": 4096, "D": 8192, "F": 32768}
        other = sl.lower(sl.load(EXAMPLES / "tp.shd"), sizes=sizes)
        one = sl.cost(other, hardware="h100", model="link", sets={"E_dcn": share})
        assert float(found(size, share)[0]) == pytest.approx(number(one, "t_comms"), rel=1e-12)


def test_they_can_be_solved_for():
    """FSDP is compute-bound up to E_math = B*W_ici/(C*X): beyond, the matrix unit is too fast."""
    found = when(report("fsdp"), "E_math")
    numeric = when(report("fsdp", {k: SIZES[k] for k in "XBDF"}, hardware="tpu_v5p"), "E_math")

    assert found.text == "E_math < B*W_ici/(C*X)"
    assert numeric.high == pytest.approx(131_072 * 1.8e11 / (4.59e14 * 16))
    assert when(report("fsdp", sets={"E_ici": 0.5}), "B").text == "B/X > C/(E_ici*W_ici)"


def test_a_dim_may_have_the_name_of_one():
    """Then the dim is what is set, and the efficiency has a suffix."""
    text = "dims E_math=64, D=8, F=16\nIn[E_math, D] · W_in[D, F] -> Out[E_math, F]"
    plan = sl.lower(sl.parse(text), forward_only=True)

    assert "E_math_hw" not in sl.cost(plan, sets={"E_math": 32}).symbols.kinds
    found = sl.cost(plan, sets={"E_math_hw": 0.5}).total.quantity("t_math")
    assert str(found) == "2*D*E_math*F/(C*E_math_hw)"


def test_utilization_is_of_the_peak():
    """A program bound by compute at 80 % of the peak has an MFU of 80 %."""
    found = report("dp", {"X": 4, "B": 2**20, "D": 8192, "F": 32_768}, hardware="tpu_v5p",
                   sets={"E_math": 0.8})  # fmt: skip

    assert found.run()["overlapped"].mfu == pytest.approx(0.8)


def test_the_words_say_what_a_time_is(shardlang):
    """A lower bound at peak rates, an estimate at less, and what is taken to be zero in both."""
    file = EXAMPLES / "fsdp.shd"
    for form in ("text", "markdown", "latex"):
        plain = shardlang("cost", file, "--format", form).out
        less = shardlang("cost", file, "--format", form, "--set", "E_math=0.8").out
        assert "a lower bound" in plain
        assert "lower bound" not in less
        assert "an estimate" in less
        assert "latency" in plain
        assert "elementwise steps" in plain
    data = json.loads(shardlang("cost", file, "--format", "json", "--set", "E_math=0.8").out)
    assert data["bound"]["lower"] is False
    assert "E_math=0.8" in data["bound"]["rates"]
    link = json.loads(shardlang("cost", file, "--format", "json", "--model", "link").out)
    assert link["bound"]["lower"] is True
    assert "latency" not in link["bound"]["zero"]
    whole = report(sets={"E_math": 1})
    assert whole.is_bound


def test_the_command_refuses_a_share_that_is_none(shardlang):
    """As wrong usage, with the code."""
    outcome = shardlang("cost", EXAMPLES / "fsdp.shd", "--set", "E_math=80")

    assert outcome.status == 2
    assert "SH530" in outcome.err
