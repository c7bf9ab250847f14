"""Costs: bytes, FLOPs, times, memory and conditions, against answers worked out by hand."""

from __future__ import annotations

import json
import pickle
import re
import subprocess
import sys
from dataclasses import replace
from fractions import Fraction
from math import floor
from pathlib import Path
from typing import get_args

import numpy as np
import plans
import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st

import shardlang as sl
from shardlang.cost.flops import FLOPS, flops
from shardlang.cost.formula import common_factor, Floor, Formula, Min, Sum
from shardlang.cost.memory import OPTIMIZERS
from shardlang.cost.models import COST, MODELS, Moved, price
from shardlang.cost.report import cost, MEMORY, TOTALS
from shardlang.cost.symbols import readable
from shardlang.diagnostics import ShardlangError
from shardlang.ir.ops import (
    Coefficient,
    Collective,
    Compute,
    Divide,
    Einsum,
    Linear,
    Map,
    Mask,
    Reduce,
    Rename,
    Ring,
    RingAttention,
)
from shardlang.ir.plan import Plan, Step
from shardlang.ir.size import BinOp, Monomial, Name, Number
from shardlang.ir.types import Array, Dim

EXAMPLES = Path(__file__).parent.parent / "examples"
SCHEMES = ("dp", "fsdp", "tp", "fsdp_tp")


def read(formula: str, symbols: dict[str, str]) -> sympy.Expr:
    """Read a formula as the interface says that it can be read."""
    return sympy.sympify(formula, locals={n: sympy.Symbol(n, positive=True) for n in symbols})


def same(formula: str, expected: str, symbols: dict[str, str]) -> bool:
    """Say whether two formulas are equal."""
    return sympy.simplify(read(formula, symbols) - read(expected, symbols)) == 0


def entries(data) -> list[dict]:
    """List every quantity of a report's dictionary."""
    if isinstance(data, dict):
        own = [data] if "formula" in data else []
        return own + [e for value in data.values() for e in entries(value)]
    return [e for value in data for e in entries(value)] if isinstance(data, list) else []


# --- the book's schemes ---


@pytest.mark.parametrize(
    ("scheme", "forward", "backward"),
    [
        ("dp", "0", "8*D*F"),
        ("fsdp", "4*D*F", "8*D*F"),
        ("tp", "4*B*D", "4*B*D"),
        ("fsdp_tp", "4*B*D/X + 4*D*F/Y", "4*B*D/X + 8*D*F/Y"),
    ],
)
def test_schemes_move_the_bytes_of_the_book(scheme, forward, backward):
    """Each scheme's bytes are those of the table in the book, its errata put right."""
    data = cost(plans.mlp(scheme)).to_dict()

    assert same(data["totals"]["forward"]["bytes"]["formula"], forward, data["symbols"])
    assert same(data["totals"]["backward"]["bytes"]["formula"], backward, data["symbols"])
    assert same(
        data["totals"]["total"]["bytes"]["formula"], f"{forward} + {backward}", data["symbols"]
    )


@pytest.mark.parametrize(
    ("scheme", "devices"), [("dp", "X"), ("fsdp", "X"), ("tp", "Y"), ("fsdp_tp", "(X*Y)")]
)
def test_schemes_compute_4bdf_and_8bdf(scheme, devices):
    """Forward takes 4BDF and backward 8BDF FLOPs over the devices."""
    data = cost(plans.mlp(scheme)).to_dict()

    for name, factor in (("forward", 4), ("backward", 8), ("total", 12)):
        expected = f"{factor}*B*D*F/{devices}"
        assert same(data["totals"][name]["flops"]["formula"], expected, data["symbols"])
        time = data["totals"][name]["t_math"]["formula"]
        assert same(time, f"{expected}/C", data["symbols"])


@pytest.mark.parametrize(
    ("scheme", "forward", "backward"),
    [
        ("dp", "always", "B/X > C/W_ici"),
        ("fsdp", "B/X > C/W_ici", "B/X > C/W_ici"),
        ("tp", "Y < F*W_ici/C", "Y < 2*F*W_ici/C"),
        ("fsdp_tp", "B*F/(B*Y + F*X) > C/W_ici", "2*B*F/(B*Y + 2*F*X) > C/W_ici"),
    ],
)
def test_conditions_are_solved(scheme, forward, backward):
    """The compute-bound condition is solved for the batch on one device, or for the axis."""
    bound = cost(plans.mlp(scheme)).to_dict()["compute_bound"]

    assert bound["forward"] == forward
    assert bound["backward"] == backward


def test_the_mixed_condition_is_solved_for_the_batch_beside():
    """FSDP with TP: from b*F/(Y*C) > b/W + F/(Y*W) follows b > C*F/(F*W - C*Y)."""
    condition = cost(plans.mlp("fsdp_tp")).forward.condition

    assert condition.solved == "B/X > C*F/(F*W_ici - C*Y) where F*W_ici > C*Y"


def test_the_batch_per_chip_of_a_v5p_is_2550():
    """SD-02: 2,550 tokens a chip on one axis, 850 on three."""

    def holds(batch: int, links: int) -> bool | None:
        plan = plans.mlp(
            "fsdp",
            mesh={"X": 16},
            network={"X": ("ici", links)},
            sizes={"B": batch * 16, "D": 8192, "F": 32768},
        )
        return cost(plan, hardware="tpu_v5p").forward.condition.holds

    assert (holds(2550, 1), holds(2551, 1)) == (False, True)
    assert (holds(850, 3), holds(851, 3)) == (False, True)


def test_links_that_somebody_sets_stay_in_the_condition():
    """SD-07: Y < M_Y*F/2550, with M_Y where the mesh says that Y spans several axes."""
    named = plans.mlp("tp", network={"Y": ("ici", 2)})

    assert str(cost(named).forward.condition) == "Y < F*M_Y*W_ici/C"
    assert str(cost(plans.mlp("tp"), sets={"M_Y": 2}).forward.condition) == "Y < F*M_Y*W_ici/C"


def test_tensor_parallel_times_on_v5p():
    """SD-07: T_math = 4BDF/(Y*C), T_comms = 4BD/(M_Y*W); here Y = 8 of F = 20,400 balances."""
    plan = plans.mlp("tp", mesh={"Y": 8}, sizes={"B": 1024, "D": 8192, "F": 20_400})
    forward = cost(plan, hardware="tpu_v5p").forward

    assert same(
        str(forward.t_comms), "4*B*D/(M_Y*W_ici)", dict.fromkeys(("B", "D", "M_Y", "W_ici"))
    )
    assert forward.quantity("t_math").value == forward.quantity("t_comms").value
    assert forward.quantity("t_overlapped").value == Fraction(4 * 1024 * 8192, 180_000_000_000)


def test_max_model_takes_the_busiest_axis():
    """SD-12: with axes overlapping, T_comms is the larger of the axes' sums."""
    plan = plans.mlp("fsdp_tp")
    report = cost(plan, overlap="axes")
    names = dict.fromkeys(("B", "D", "F", "X", "Y", "M_X", "M_Y", "W_ici"))
    expected = "Max(4*D*F/(M_X*W_ici*Y), 4*B*D/(M_Y*W_ici*X))"

    assert read(expected, names) == report.forward.t_comms
    assert str(report.forward.condition) == "Y < F*W_ici/C and B/X > C/W_ici"
    assert report.forward.t_serial == report.forward.t_math + report.forward.t_comms


def test_max_model_reaches_the_batch_of_the_seed():
    """SD-12, SD-14: on a v5p 3-axis torus B/N = 99 (max) and 397 (sum) balance at the best split."""
    alpha, width = 2550, 32768
    for overlap, factor in (("axes", 1), (None, 4)):
        batch_per_chip = factor * alpha**2 / (2 * width)
        chips = 64
        # the split that balances both axes: X = sqrt(B/F * M_X/M_Y * N), with M_X = 2 and M_Y = 1
        x = (batch_per_chip * chips / width * 2 * chips) ** 0.5
        f = cost(
            plans.mlp("fsdp_tp", network={"X": ("ici", 2)}), hardware="tpu_v5p", overlap=overlap
        ).compile(["B", "D", "F", "X", "Y"], ["forward.t_math", "forward.t_comms"])
        math, comms = f(batch_per_chip * chips, 8192, width, x, chips / x)

        assert math == pytest.approx(comms)


def test_doubling_the_data_axis_halves_activations_alone():
    """U31: activation collectives scale with 1/X, weight collectives don't."""
    sizes = {"B": 4096, "D": 512, "F": 2048}
    small, large = (
        cost(plans.mlp("fsdp_tp", mesh={"X": x, "Y": 4}, sizes=sizes)).collectives for x in (8, 16)
    )

    for one, other in zip(small, large, strict=True):
        halves = one.tensor in {"In", "Out", "dOut", "dIn"}
        assert one.bytes.value == other.bytes.value * (2 if halves else 1)


# --- whole programs, from text ---


def priced(text: str, **options):
    """Price a program given as text."""
    return sl.cost(sl.lower(sl.parse(text)), **options)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("form", ["", ".explicit"])
def test_programs_cost_what_their_plans_by_hand_do(scheme, form):
    """The examples, as chains and as explicit algorithms, agree with the plans of these tests."""
    data = sl.cost(sl.lower(sl.load(EXAMPLES / f"{scheme}{form}.shd"))).to_dict()
    expected = cost(plans.mlp(scheme)).to_dict()

    for key in ("totals", "memory", "compute_bound"):
        assert data[key] == expected[key]


def test_attention_takes_the_flops_of_the_book():
    """TF-13, U7: QKVO 12BTD(N+K)H, QK and AV 12BT^2NH; softmax counts as elementwise work."""
    report = priced(
        """
        q[B, T, K, G, H] = x[B, T, D] · W_q[D, K, G, H]
        k[B, S, K, H] = xs[B, S, D] · W_k[D, K, H]
        v[B, S, K, H] = xs[B, S, D] · W_v[D, K, H]
        s[B, K, G, T, S] = q[B, T, K, G, H] · k[B, S, K, H]
        p[B, K, G, T, S] = softmax_S(s[B, K, G, T, S])
        o[B, T, K, G, H] = p[B, K, G, T, S] · v[B, S, K, H]
        y[B, T, D] = o[B, T, K, G, H] · W_o[K, G, H, D]
        """
    )
    symbols = report.to_dict()["symbols"]
    counted = str(report.total.quantity("flops")).replace("S", "T")

    assert same(counted, "12*B*T*D*(K*G + K)*H + 12*B*T**2*K*G*H", symbols)


def test_a_gated_mlp_takes_18bdf():
    """TF-13: three matrices, 18BTDF for training."""
    report = sl.cost(sl.lower(sl.load(EXAMPLES / "gated_mlp.shd")))

    assert str(report.total.quantity("flops")) == "18*B*D*F/(X*Y)"


def test_weights_on_two_data_axes_of_a_gradient():
    """SH-16: v5e 4x4, an AllReduce over Y: compute-bound if J > 2*Y*alpha = 17,511."""
    report = priced("mesh X=4, Y=4\nA[I_X, J_Y] · B[J_Y, K] -> C[I_X, K]", hardware="tpu_v5e")

    assert str(report.forward.condition) == "Y < J*W_ici/(2*C)"
    sizes = {"I": 64, "K": 64, "J": 17_512}
    assert cost(report.plan, "tpu_v5e", sets=sizes).forward.condition.holds
    assert not cost(report.plan, "tpu_v5e", sets={**sizes, "J": 17_508}).forward.condition.holds


# --- collectives ---


def one(step: Step, **options) -> Plan:
    """Make a plan of one step."""
    leaves = [str(array) for array in step.inputs]
    return plans.make_plan([step], leaves=leaves, outputs=[str(step.output)], **options)


def test_gather_on_v4p_takes_23_us():
    """SH-03: AG_X of [B_X, D_Y], B=1024, D=4096 on 4x4x4: 2BD/(Y*W) = 23.3 us."""
    step = plans.gather("A[B_X, D_Y]", "X", "B", "A[B, D_Y]")
    plan = one(step, mesh={"X": 4, "Y": 4, "Z": 4}, sizes={"B": 1024, "D": 4096})

    (priced,) = cost(plan, hardware="tpu_v4p").collectives

    assert float(priced.time.value) == pytest.approx(23.3e-6, rel=2e-3)


@pytest.mark.parametrize(
    ("step", "book", "link"),
    [
        (plans.gather("A[I_XY, J]", "Y", "I", "A[I_X, J]"), "2*I*J/X", "2*I*J/X*(Y-1)/Y"),
        (plans.gather("A[I_XY, J]", "XY", "I", "A[I, J]"), "2*I*J", "2*I*J*(X*Y-1)/(X*Y)"),
        (plans.scatter("A[I, J_Y]{U_X}", "X", "I", "A[I_X, J_Y]"), "2*I*J/Y", "2*I*J/Y*(X-1)/X"),
        (plans.reduce("W[D, F_Y]{U_X}", "X", "W[D, F_Y]"), "4*D*F/Y", "4*D*F/Y*(X-1)/X"),
        (
            plans.all_to_all("A[I_X, J]", "X", "I", "J", "A[I, J_X]"),
            "2*I*J/4",
            "2*I*J/X*(X-1)/X",
        ),
        (plans.permute("A[I_XY, J]", "XY", "A[I_YX, J]"), "2*I*J/(X*Y)", "2*I*J/(X*Y)"),
    ],
)
def test_bytes_of_each_collective(step, book, link):
    """Each collective moves what the interface says, under either model (#22, #34)."""
    plan = one(step, mesh={"X": None, "Y": None})
    for model, expected in (("book", book), ("link", link)):
        data = cost(plan, model=model).to_dict()
        (entry,) = data["collectives"]

        assert same(entry["bytes"]["formula"], expected, data["symbols"])
        assert entry["op"] == type(step.op).__name__


def test_the_time_of_an_all_to_all_follows_the_links():
    """On a ring blocks are forwarded: the busiest axis takes V/(4 M W) of its size, as in the book."""
    step = plans.all_to_all("A[I_XY, J]", "XY", "I", "J", "A[I, J_XY]")
    for mesh in ({"X": None, "Y": None}, {"X": 64, "Y": 2}):
        data = cost(one(step, mesh=mesh), model="link").to_dict()
        (entry,) = data["collectives"]

        busiest = "Max({0}*floor(X**2/4)/(X*M_X), {0}*floor(Y**2/4)/(Y*M_Y))".format(
            "2*I*J/(X*Y*W_ici)"
        )
        hops = "T_hop*(floor(X/2) + floor(Y/2))"
        assert same(entry["time"]["formula"], f"Max({hops}, {busiest})", data["symbols"])
        assert same(entry["bytes"]["formula"], "2*I*J/(X*Y)*(1 - 1/(X*Y))", data["symbols"])


def test_the_bytes_of_all_other_collectives_give_their_time():
    """What one device sends is what its links carry, but for AllToAll; or the hops take the time."""
    step = plans.gather("A[I_X, J]", "X", "I", "A[I, J]")
    (entry,) = cost(one(step, mesh={"X": None}), model="link").to_dict()["collectives"]

    expected = f"Max(T_hop*floor(X/2), ({entry['bytes']['formula']})/(M_X*W_ici))"
    names = dict.fromkeys(("I", "J", "X", "M_X", "W_ici", "T_hop"))
    assert same(entry["time"]["formula"], expected, names)


@pytest.mark.parametrize("form", ["text", "markdown", "latex"])
def test_reports_say_what_link_takes_as_given(form):
    """A report by `link` says under its header what the axes are taken as; one by `book` does not."""
    said = "X is taken as a ring"

    for model in ("link", "book"):
        text = getattr(cost(plans.mlp("dp"), model=model), f"to_{form}")()

        assert (said in " ".join(text.split())) == (model == "link")
        assert ("for latency, " in " ".join(text.split())) == (model == "book")


def test_several_axes_add_their_bandwidth():
    """A collective over X and Y has the bandwidth of both."""
    step = plans.gather("A[I_XY, J]", "XY", "I", "A[I, J]")
    data = cost(one(step, mesh={"X": 2, "Y": 2}, network={"X": ("ici", 2)})).to_dict()

    expected = "2*I*J/((M_X + M_Y)*W_ici)"
    assert same(data["collectives"][0]["time"]["formula"], expected, data["symbols"])


def test_the_order_of_equal_axes_does_not_matter():
    """U21: axes of sizes (2, 8) and (8, 2) cost the same."""
    step = plans.gather("A[I_XY, J]", "XY", "I", "A[I, J]")
    times = [
        cost(one(step, mesh={"X": x, "Y": y}, sizes={"I": 64, "J": 64}), "tpu_v5e", "link")
        .collectives[0]
        .time.value
        for x, y in ((2, 8), (8, 2))
    ]

    assert times[0] == times[1] is not None


def test_gradients_over_the_data_centre_network():
    """SD-16, SD-17: 8DF/(M*W_dcn), and compute-bound above 73,440 tokens a slice."""
    plan = plans.make_plan(
        [
            plans.product("T[B_PX, F]", "In[B_PX, D]", "D", "W[D, F]"),
        ],
        [
            plans.product("dW[D, F_X]{U_P}", "In[B_P, D]", "B", "dT[B_P, F_X]"),
            plans.reduce("dW[D, F_X]{U_P}", "P", "dW[D, F_X]"),
        ],
        leaves=["In[B_P, D]", "W[D, F_X]"],
        outputs=["T[B_P, F_X]"],
        mesh={"P": 2, "X": 16},
        network={"P": ("dcn", 1)},
        sizes={"B": 2 * 36_720, "D": 4096, "F": 16384},
    )
    report = cost(plan, hardware="tpu_v5p")
    data = report.to_dict()

    assert same(data["collectives"][0]["time"]["formula"], "4*D*F/(X*W_dcn)", data["symbols"])
    assert str(report.backward.condition) == "B/P > 2*C/W_dcn"
    assert 4.59e14 / 6.25e9 == 73_440
    assert report.backward.condition.holds is False


def test_the_slower_network_governs():
    """A collective over ICI and DCN axes is priced by the DCN."""
    step = plans.gather("A[I_PX, J]", "PX", "I", "A[I, J]")
    data = cost(one(step, mesh={"P": 2, "X": 4}, network={"P": ("dcn", 1)})).to_dict()

    assert data["collectives"][0]["time"]["formula"] == "2*I*J/W_dcn"


def test_conditions_over_two_networks_are_plain_inequalities():
    """Where parts run over different networks, both sides stand without fractions."""
    plan = plans.mlp("fsdp_tp", network={"X": ("dcn", 1)})
    left, _, right = str(cost(plan).forward.condition).partition(" > ")
    names = dict.fromkeys(("B", "D", "F", "X", "Y", "W_ici", "W_dcn", "C"))

    quotient = read(left, names) / read(right, names)
    math = read("4*B*D*F/(C*X*Y)", names)
    comms = read("4*B*D/(W_ici*X) + 4*D*F/(W_dcn*Y)", names)
    assert sympy.simplify(quotient - math / comms) == 0


@pytest.mark.parametrize("model", ["book", "link"])
def test_an_axis_of_size_one_costs_nothing(model):
    """U24: over an axis of size 1 nothing moves, in no time, and nothing is NaN."""
    sizes = {"B": 64, "D": 32, "F": 128}
    plan = plans.mlp("fsdp_tp", mesh={"X": 1, "Y": 4}, sizes=sizes)
    data = cost(plan, hardware="h100", model=model).to_dict()

    for entry in data["collectives"]:
        if entry["axes"] == ["X"]:
            assert entry["bytes"] == {"formula": "0", "value": 0}
            assert entry["time"] == {"formula": "0", "seconds": 0.0}
    alone = cost(plans.mlp("fsdp", mesh={"X": 1}, sizes=sizes), "h100", model)
    assert alone.total.quantity("t_comms").value == 0
    assert str(alone.total.condition) == "always"
    json.dumps(data, allow_nan=False)


def test_an_axis_of_size_one_adds_no_bandwidth():
    """Of a collective over X and Y with Y = 1, X alone counts."""
    step = plans.all_to_all("A[I_XY, J]", "XY", "I", "J", "A[I, J_XY]")
    data = cost(one(step, mesh={"X": 4, "Y": 1})).to_dict()
    (entry,) = data["collectives"]

    assert same(entry["bytes"]["formula"], "I*J/(2*Y)", data["symbols"])
    assert same(entry["time"]["formula"], "I*J/(2*Y*M_X*W_ici)", data["symbols"])


def test_tables_have_a_row_for_each_operation():
    """COST has every collective and FLOPS every compute operation, but what is counted by its parts."""
    assert set(get_args(Collective)) - {Ring, RingAttention} == set(COST)
    assert set(get_args(Compute)) - {Ring} == set(FLOPS)


def test_a_missing_row_names_operation_and_table():
    """A table without a row is an internal error that says which."""
    array = plans.array("A[I]")
    step = Step(Mask(plans.axes("X")), (array,), array)

    with pytest.raises(LookupError, match=r"Mask.*COST"):
        price(MODELS["book"], step, Moved(Monomial(), Monomial(), Monomial.of("X")))
    with pytest.raises(LookupError, match=r"Mask.*FLOPS"):
        flops(step)


def test_a_model_of_ones_own():
    """A model is any object with a method a collective."""

    class Sharp(type(MODELS["book"])):
        """AllReduce in the network: V once."""

        name = "sharp"

        def all_reduce(self, moved: Moved) -> Formula:
            return Formula.of(moved.operand)

    report = cost(plans.mlp("dp"), model=Sharp())

    assert str(report.backward.quantity("bytes")) == "4*D*F"
    assert report.model == "sharp"


# --- FLOPs ---


def test_flops_of_a_contraction_on_each_device():
    """TF-03: A[B_X, D_Y] times W[D_Y, F] on {4, 8, 4} is 2BDF/32 a chip."""
    step = plans.product("C[B_X, F]{U_Y}", "A[B_X, D_Y]", "D", "W[D_Y, F]")
    data = cost(
        one(step, mesh={"X": 4, "Y": 8, "Z": 4}, sizes={"B": 32, "D": 64, "F": 8})
    ).to_dict()

    assert same(data["compute"][0]["flops"]["formula"], "2*B*D*F/(X*Y)", data["symbols"])
    assert data["compute"][0]["flops"]["value"] == 2 * 32 * 64 * 8 // 32
    assert data["compute"][0]["einsum"] == "C[B_X, F]{U_Y} = A[B_X, D_Y] ·_D W[D_Y, F]"


@pytest.mark.parametrize("n", [1, 2, 512])
def test_flops_are_proportional_to_the_batch(n):
    """U2: x[n, 73] times W[73, 256] is 2*n*73*256 for every n, literal sizes being numbers."""
    step = plans.product("y[n, 256]", "x[n, 73]", "73", "W[73, 256]")
    report = cost(one(step, sizes={"n": n}))

    assert report.forward.quantity("flops").value == 2 * n * 73 * 256
    assert str(report.forward.quantity("flops")) == "37376*n"
    assert set(report.to_dict()["symbols"]) == {"n", "C", "W_ici", "W_dcn", "W_hbm"}


def test_batch_dims_count_once():
    """TF-01: C[GHIJKL], D[GHMNKL] is 2*GHIJMNKL."""
    dims = "G, H, I, J, K, L", "G, H, M, N, K, L"
    left, right = (plans.array(f"{name}[{text}]") for name, text in zip("CD", dims, strict=True))
    step = Step(Einsum((Dim("K"), Dim("L"))), (left, right), plans.array("A[G, H, I, J, M, N]"))

    assert flops(step) == Monomial.of(*"GHIJMNKL") * 2


@pytest.mark.parametrize(
    ("op", "operands", "factor"),
    [
        (Einsum(), 2, 1),
        (Einsum(), 3, 2),
        (Linear((Coefficient(), Coefficient())), 2, 1),
        (Linear((Coefficient(Fraction(2)), Coefficient(Fraction(-1))), Fraction(1)), 2, 3),
        (Linear((Coefficient(),)), 1, 0),
        (Map("gelu"), 1, 1),
        (Divide(), 2, 1),
    ],
)
def test_elementwise_flops_are_counted_apart(op, operands, factor):
    """Elementwise work is listed, and kept out of the totals."""
    array = plans.array("A[I_X, J]")
    step = Step(op, (array,) * operands, plans.array("C[I_X, J]"))
    plan = one(step)
    report = cost(replace(plan, program=replace(plan.program, leaves=plan.program.leaves[:1])))

    assert flops(step) == Monomial.of("I", "J") / Monomial.of("X") * factor
    assert report.forward.flops == 0
    assert str(report.forward.quantity("elementwise")) == str(Formula.of(flops(step)))


def test_gradients_of_broadcast_products_are_elementwise():
    """A norm's scale: dg = sum of dy*x over B is no matmul, while a forward dot product counts."""
    step = plans.product("dg[D]", "dy[B, D]", "B", "x[B, D]")
    backward = plans.make_plan(
        [Step(Einsum(), (plans.array("x[B, D]"), plans.array("Wg[D]")), plans.array("y[B, D]"))],
        [step],
        leaves=["x[B, D]", "Wg[D]"],
        outputs=["y[B, D]"],
    )

    assert cost(backward).total.flops == 0
    assert str(cost(backward).backward.quantity("elementwise")) == "2*B*D"
    dot = plans.product("s[]", "a[N]", "N", "b[N]")
    assert str(cost(one(dot)).forward.quantity("flops")) == "2*N"


def test_reductions_count_their_operand():
    """A sum over J of A[I_X, J] is I*J/X additions."""
    step = Step(Reduce("sum", (Dim("J"),)), (plans.array("A[I_X, J]"),), plans.array("s[I_X]"))

    assert flops(step) == Monomial.of("I", "J") / Monomial.of("X")


# --- memory ---


def test_adam_needs_ten_bytes_a_parameter():
    """SD-03: weights in bf16 and two f32 moments: 9.6e9 parameters fill 96 GB."""
    memory = cost(plans.mlp("dp", optimizer="adam")).memory

    held = memory.parameters + memory.optimizer
    assert held == read("10*2*D*F", dict.fromkeys("DF"))


def test_adamw_with_a_master_copy_needs_sixteen():
    """U14: 7e9 parameters with gradients, f32 master and moments are 112e9 bytes."""
    sizes = {"B": 8, "D": 50_000, "F": 70_000}
    memory = cost(plans.mlp("dp", optimizer="adamw", sizes=sizes)).memory

    parts = ("parameters", "gradients", "optimizer")
    assert sum(memory.quantity(part).value for part in parts) == 112_000_000_000


def test_the_page_has_every_optimizer_with_its_bytes():
    """docs/costs.md lists the optimizers that are known, and the bytes a parameter of each."""
    page = (EXAMPLES.parent / "docs" / "costs.md").read_text(encoding="utf-8")
    table = page.partition("| `optimizer` line |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| ([^|]*`\w+`[^|]*) \| (\d+)[^|]*\|", table, re.MULTILINE)
    listed = {name: int(width) for names, width in rows for name in re.findall(r"`(\w+)`", names)}
    weight = plans.array("W[I, J]")
    size = {name: str(state(weight)) for name, state in OPTIMIZERS.items()}

    assert set(listed) == set(OPTIMIZERS)
    assert size.pop("adafactor") == "4*I + 4*J"
    assert size == {n: f"{listed[n]}*I*J" if listed[n] else "0" for n in size}


def test_an_unknown_optimizer_is_said():
    """An optimizer that nobody knows counts nothing, with a warning."""
    report = cost(plans.mlp("dp", optimizer="shampoo"))

    assert any("shampoo" in warning for warning in report.warnings)
    assert report.memory.optimizer == 0


def test_state_is_split_as_the_weights_are():
    """ZeRO by layout: under FSDP weights, gradients and state are split over X."""
    data = cost(plans.mlp("fsdp", optimizer="adam")).to_dict()

    for part, expected in (
        ("parameters", "4*D*F/X"),
        ("gradients", "4*D*F/X"),
        ("optimizer", "16*D*F/X"),
        ("activations", "2*B*D/X + 2*B*F/X"),
        ("gathered_peak", "2*D*F"),
    ):
        assert same(data["memory"][part]["formula"], expected, data["symbols"])


def test_kept_gathered_copies_are_activations():
    """TP keeps In gathered for the backward pass; dOut's copy is temporary."""
    data = cost(plans.mlp("tp")).to_dict()

    assert same(data["memory"]["activations"]["formula"], "2*B*D + 2*B*F/Y", data["symbols"])
    assert data["memory"]["gathered_peak"]["formula"] == "2*B*D"


def test_copies_that_are_alive_together_add_up():
    """Two weights gathered before either is used are held at once; used in turn they are not."""
    first = plans.gather("W1[D_X, F]", "X", "D", "W1[D, F]")
    second = plans.gather("W2[F_X, D]", "X", "F", "W2[F, D]")
    use_first = plans.product("T[B, F]", "A[B, D]", "D", "W1[D, F]")
    use_second = plans.product("U[B, D]", "T[B, F]", "F", "W2[F, D]")
    leaves = ["A[B, D]", "W1[D_X, F]", "W2[F_X, D]"]
    together = plans.make_plan(
        [first, second, use_first, use_second], leaves=leaves, outputs=["U[B, D]"]
    )
    in_turn = plans.make_plan(
        [first, use_first, second, use_second], leaves=leaves, outputs=["U[B, D]"]
    )

    assert str(cost(together).memory.quantity("gathered_peak")) == "4*D*F"
    assert str(cost(in_turn).memory.quantity("gathered_peak")) == "2*D*F"


def test_peaks_that_cannot_be_compared_are_a_maximum():
    """Of two copies at different times, of sizes that say nothing of each other, the larger counts."""
    plan = plans.make_plan(
        [
            plans.gather("W1[D_X, F]", "X", "D", "W1[D, F]"),
            plans.product("T[B, F]", "A[B, D]", "D", "W1[D, F]"),
            plans.gather("W2[F_X, G]", "X", "F", "W2[F, G]"),
            plans.product("U[B, G]", "T[B, F]", "F", "W2[F, G]"),
        ],
        leaves=["A[B, D]", "W1[D_X, F]", "W2[F_X, G]"],
        outputs=["U[B, G]"],
        sizes={"D": 8, "F": 16, "G": 4, "B": 2},
        mesh={"X": 2},
    )
    peak = cost(plan).memory.quantity("gathered_peak")

    assert str(peak) == "Max(2*D*F, 2*F*G)"
    assert peak.value == 2 * 8 * 16


def test_inference_holds_what_is_alive():
    """With no backward pass there are no gradients, and T alone is alive beside In or Out."""
    plan = replace(plans.mlp("dp"), backward=(), gradients=(), cotangents=())
    data = cost(plan).to_dict()

    assert data["memory"]["gradients"]["formula"] == "0"
    assert same(data["memory"]["activations"]["formula"], "2*B*D/X + 2*B*F/X", data["symbols"])
    assert data["totals"]["backward"]["flops"] == {"formula": "0", "value": 0}


def test_other_names_take_no_memory():
    """A copy and a value whose dims are renamed are stored once, as what they stand for."""
    text = "xs[B, S, D]"
    renamed = Step(
        Rename((Dim("B"), Dim("S"), Dim("D"))), (plans.array("x[B, T, D]"),), plans.array(text)
    )
    copied = Step(Linear((Coefficient(),)), (plans.array(text),), plans.array("c[B, S, D]"))
    plan = plans.make_plan(
        [renamed, copied, plans.product("k[B, S, K]", "c[B, S, D]", "D", "W[D, K]")],
        [
            plans.product("dW[D, K]", text, "S", "dk[B, S, K]"),
            plans.product("dV[D, K]", "x[B, T, D]", "T", "dk[B, T, K]"),
            plans.product("dU[D, K]", "c[B, S, D]", "S", "dk[B, S, K]"),
        ],
        leaves=["x[B, T, D]", "W[D, K]"],
        outputs=["k[B, S, K]"],
    )
    forward = replace(plan, backward=())

    assert str(cost(plan).memory.quantity("activations")) == "2*B*D*T"
    assert cost(plan).forward.elementwise == 0
    assert str(cost(forward).memory.quantity("activations")) == "2*B*D*T + 2*B*K*S"


def test_local_bytes_of_the_pop_quiz():
    """ST-30: int8[128, 2048] over {X:2, Y:8} of {2, 8, 2}: 16,384 B on each device."""
    leaf = Array(plans.array("W[128, 2048]", "int8").tensor, plans.array("W[128_XY, 2048]").layout)
    plan = one(plans.product("o[B, 2048]", "A[B, 128]", "128", "W[128, 2048]"))
    program = replace(plan.program, leaves=(replace(plan.program.leaves[1], array=leaf),))
    mesh = plans.make_plan([], leaves=[], mesh={"X": 2, "Y": 8, "Z": 2}).program.mesh
    report = cost(replace(plan, program=replace(program, mesh=mesh)))

    assert report.memory.quantity("parameters").value == 16_384


def test_too_little_memory_is_said():
    """What does not fit into the hardware's memory has a line that says so."""
    sizes = {"B": 1024, "D": 100_000, "F": 400_000}
    report = cost(plans.mlp("dp", mesh={"X": 4}, sizes=sizes), hardware="tpu_v5e")

    line = next(line for line in report.to_text().splitlines() if "does not fit" in line)
    # weights and gradients, one of them before and after its AllReduce; In, dTmp and the like are far less
    taken = 10 * 100_000 * 400_000

    assert line.split() == ["does", "not", "fit", "at", "once", "400.2", "GB", "of", "16", "GB:", "25.01", "times", "as", "much"]  # fmt: skip
    assert pytest.approx(taken / 16e9, rel=1e-3) == report.share
    assert {"hbm": 16 * 10**9, "share": report.share, "holds": False} == report.to_dict()["fits"]


# --- names and values ---


NAMES = ("C", "W_ici", "M_X", "lambda", "N", "S", "E", "I", "Q", "O", "pi", "beta", "gamma")
NAMES += ("zeta", "Max", "Integer", "Symbol", "is", "None", "é", "δ", "d_model", "D'", "print")


@pytest.mark.parametrize("name", NAMES)
def test_formulas_read_back_whatever_a_dim_is_called(name):
    """Every formula reads back as the report's own expression and gives its value."""
    sizes = {name: 48, "D": 64, "F": 256}
    base = plans.mlp("fsdp_tp", mesh={"X": 4, "Y": 2}, sizes={"B": 48, "D": 64, "F": 256})
    plan = _renamed(base, "B", name, sizes)
    report = cost(plan, hardware="tpu_v5p")
    data = report.to_dict()
    locals_ = {n: sympy.Symbol(n, positive=True) for n in data["symbols"]}
    values = {locals_[n]: value for n, value in report.known.items()}

    assert data["dims"][name] == 48
    for entry in entries(data):
        expression = sympy.sympify(entry["formula"], locals=locals_)
        value = entry["value"] if "value" in entry else entry["seconds"]
        assert {s.name for s in expression.free_symbols} <= set(data["symbols"])
        assert float(expression.subs(values)) == pytest.approx(value, rel=1e-12)
    for key in TOTALS:
        read_back = sympy.sympify(data["totals"]["total"][key]["formula"], locals=locals_)
        assert read_back == getattr(report.total, key)
    for key in MEMORY:
        read_back = sympy.sympify(data["memory"][key]["formula"], locals=locals_)
        assert read_back == getattr(report.memory, key)


def _renamed(plan: Plan, old: str, new: str, sizes: dict[str, int]) -> Plan:
    """Rename a dim throughout a plan."""

    def dim(value: Dim) -> Dim:
        return Dim(new) if value.name == old else value

    def array(value: Array) -> Array:
        tensor = replace(value.tensor, dims=tuple(map(dim, value.tensor.dims)))
        return Array(tensor, value.layout)

    def op(value):
        if isinstance(value, Einsum):
            return Einsum(tuple(map(dim, value.contracted)))
        return replace(value, dim=dim(value.dim)) if hasattr(value, "dim") else value

    def step(value: Step) -> Step:
        inputs = tuple(map(array, value.inputs))
        return replace(value, op=op(value.op), inputs=inputs, output=array(value.output))

    program = replace(
        plan.program,
        dims=plans.make_plan([], leaves=[], sizes=sizes).program.dims,
        leaves=tuple(replace(x, array=array(x.array)) for x in plan.program.leaves),
    )
    return replace(
        plan,
        program=program,
        forward=tuple(map(step, plan.forward)),
        backward=tuple(map(step, plan.backward)),
        outputs=tuple(map(array, plan.outputs)),
        cotangents=tuple(map(array, plan.cotangents)),
        gradients=tuple(
            replace(g, leaf=array(g.leaf), gradient=array(g.gradient)) for g in plan.gradients
        ),
    )


def test_hardware_gives_way_to_dims():
    """A dim called C keeps its name; the hardware's is C_hw."""
    plan = _renamed(plans.mlp("fsdp"), "B", "C", {})

    assert str(cost(plan).forward.condition) == "C/X > C_hw/W_ici"
    assert cost(plan).to_dict()["symbols"]["C_hw"] == "hardware"
    report = cost(plan, sets={"C": 7, "C_hw": 5.0})
    assert (report.known["C"], report.known["C_hw"]) == (7, 5)


@given(st.text(min_size=1, max_size=8))
def test_readable_names_are_identifiers(name):
    """Whatever a dim is called, its symbol is an identifier and no keyword."""
    symbol = readable(name)

    assert symbol.isidentifier()
    assert sympy.sympify(f"2*{symbol}", locals={symbol: sympy.Symbol("s")}) == 2 * sympy.Symbol("s")


def test_sets_win_over_file_and_hardware():
    """--set overrides a size, a dim that follows it, and a hardware figure."""
    plan = plans.mlp(
        "dp",
        mesh={"X": 4},
        sizes={"B": 64, "D": 8, "F": 32},
        declared={"F": BinOp("*", Number(Fraction(4)), Name("D"))},
    )
    report = cost(plan, "tpu_v5p", sets={"D": 16, "W_ici": 1e10, "X": 2})

    assert report.to_dict()["dims"] == {"B": 64, "D": 16, "F": 64}
    assert report.to_dict()["mesh"] == {"X": 2}
    assert report.backward.quantity("t_comms").value == Fraction(8 * 16 * 64, 10**10)


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [("W_icy", 1e9, "SH507"), ("B", 0, "SH508"), ("C", float("nan"), "SH508"), ("D", -1, "SH508")],
)
def test_sets_that_make_no_sense_are_refused(name, value, code):
    """An unknown name or a value that is not positive is a diagnostic."""
    with pytest.raises(ShardlangError) as caught:
        cost(plans.mlp("dp"), sets={name: value})

    assert [d.code for d in caught.value.diagnostics] == [code]


def test_hardware_of_the_program_is_placed_where_it_is_named():
    """A program that names no known hardware is reported at that name."""
    with pytest.raises(ShardlangError) as caught:
        cost(plans.mlp("dp", hardware="tpu_v5q"))
    (found,) = caught.value.diagnostics

    assert (found.code, found.line, found.column) == ("SH501", 1, 10)
    assert cost(plans.mlp("dp", hardware="tpu_v5p")).to_dict()["hardware"] == "tpu_v5p"


def test_hardware_in_a_comment_is_not_where_it_is_named():
    """A mistake is placed at the line that names the hardware, not at a comment about it."""
    text = "# hardware h1OO is slow\nmesh X\n  hardware h1OO\nA[I_X, J] · W[J, K] -> C[I_X, K]\n"
    with pytest.raises(ShardlangError) as caught:
        sl.cost(sl.lower(sl.parse(text)))
    (found,) = caught.value.diagnostics

    assert (found.code, found.line, found.column) == ("SH501", 3, 12)


@pytest.mark.parametrize(
    ("mesh", "chip", "said"),
    [
        ("X=8, Y=8, Z=8", "h100", "X, Y, Z take 3 axes of the interconnect, and h100 has 1"),
        (
            "X=8 @ici(3), Y=4 @ici(2), Z=1",
            "tpu_v5e",
            "X (3), Y (2) take 5 axes of the interconnect",
        ),
        ("X=8, Y=8, Z=8", "tpu_v5p", None),
        ("X=8, Y=1, Z=1", "h100", None),
        ("X=8, Y=2 @dcn, Z=4 @dcn", "h100", None),
        ("X, Y, Z", "h100", None),
    ],
)
def test_more_axes_than_the_chip_has_are_said(mesh, chip, said):
    """A mesh whose axes take more axes of the interconnect than the chip has gets a warning."""
    text = f"mesh {mesh}\nhardware {chip}\nA[I_X, J_Y] · W[J_Y, K_Z] -> C[I_X, K_Z]"
    report = sl.cost(sl.lower(sl.parse(text)))

    found = [x for x in report.warnings if "axes of the interconnect" in x]
    assert [said] == [x[x.index("axes ") + 5 :][: len(said)] for x in found] if said else not found


def test_leaves_that_may_count_otherwise_than_meant_are_named():
    """With a `param` line W2 is an input; Wu counts though nothing uses it; `input W3` is meant."""
    text = """\
mesh X
param V: [J, K], Vu: [J, K]
input W3: [L, M], E: [J]
A[I_X, J] · V[J, K] · W2[K, L] · W3[L, M] -> C[I_X, M]
"""
    warnings = sl.cost(sl.lower(sl.parse(text))).to_dict()["warnings"]

    assert len(warnings) == 3
    assert warnings[0].startswith("W2 counts as an input, not as weights")
    assert warnings[1].startswith("nothing uses Vu")
    assert warnings[2] == "nothing uses E, declared with `input`"


def test_the_peak_is_that_of_the_dtype():
    """Contractions in int8 alone run at the int8 peak; mixed ones at that of bf16."""
    whole = plans.product("C[B, F]", "A[B, D]", "D", "W[D, F]", "int8")
    mixed = replace(whole, inputs=(plans.array("A[B, D]"), whole.inputs[1]))

    assert cost(one(whole), hardware="tpu_v5e").known["C"] == Fraction(3.94e14)
    assert cost(one(mixed), hardware="tpu_v5e").known["C"] == Fraction(1.97e14)


def test_huge_sizes_stay_finite():
    """Sizes of 10^400 give formulas, and no number that JSON or a float can't hold."""
    sizes = {"B": 10**400, "D": 10**400, "F": 10**400}
    report = cost(plans.mlp("fsdp", mesh={"X": 4}, sizes=sizes), hardware="tpu_v5p")

    data = json.loads(report.to_json())
    assert data["totals"]["total"]["t_math"] == {"formula": "12*B*D*F/(C*X)", "seconds": None}
    assert any("1e300" in warning for warning in report.warnings)
    assert report.to_text()
    literal = "9" * 4000
    long = plans.product(
        f"C[B, {literal}]", f"A[B, {literal}0]", f"{literal}0", f"W[{literal}0, {literal}]"
    )
    assert cost(one(long)).to_json()


# --- compiled reports ---


def test_compiled_equals_symbolic_and_numeric():
    """The compiled function, the expressions and the report's numbers agree."""
    f = cost(
        plans.mlp("fsdp_tp", sizes={"D": 512, "F": 2048}, optimizer="adam"), "tpu_v5e"
    ).compile(["B", "X", "Y"], [*TOTALS, "memory"])
    batch, x, y = np.array([[4096], [65536]]), np.array([2, 4, 16]), 8
    out = f(batch, x, y)

    assert out["memory"].shape == (2, 3)
    for i, j in np.ndindex(2, 3):
        sizes = {"B": int(batch[i, 0]), "D": 512, "F": 2048}
        plan = plans.mlp("fsdp_tp", mesh={"X": int(x[j]), "Y": y}, sizes=sizes, optimizer="adam")
        report = cost(plan, "tpu_v5e")
        for name in TOTALS:
            expected = float(report.total.quantity(name).value)
            assert float(out[name][i, j]) == pytest.approx(expected, rel=1e-12)
        assert out["memory"][i, j] == float(report.memory.quantity("total").value)


def test_compiled_axes_of_size_one_cost_nothing():
    """In a sweep that includes X = 1 nothing moves there."""
    f = cost(plans.mlp("fsdp", sizes={"B": 64, "D": 8, "F": 32}), "tpu_v5e").compile(
        ["X"], ["t_comms", "bytes", "t_serial", "t_math"]
    )
    t_comms, sent, t_serial, t_math = f(np.array([1, 2]))

    assert list(sent) == [0, 12 * 8 * 32]
    assert t_comms[0] == 0
    assert t_serial[0] == t_math[0]


def test_compiled_dims_follow_others():
    """F = 4*D follows D, and keyword arguments do."""
    plan = plans.mlp(
        "fsdp",
        mesh={"X": 4},
        sizes={"B": 64, "D": 8, "F": 32},
        declared={"F": BinOp("*", Number(Fraction(4)), Name("D"))},
    )
    (sent,) = cost(plan).compile(["D"], "bytes")(D=np.array([8.0, 16.0]))

    assert list(sent) == [12 * 8 * 32, 12 * 16 * 64]


def test_compiled_functions_say_what_is_missing():
    """Unknown names and outputs, and values that nobody gave, are named."""
    report = cost(plans.mlp("fsdp"))

    with pytest.raises(ValueError, match="no value is known for B, C, D, F"):
        report.compile(["X"], ["t_math"])
    with pytest.raises(ValueError, match="'Z'"):
        report.compile(["Z"])
    with pytest.raises(ValueError, match="'t_math2'"):
        report.compile(["X"], ["t_math2"])
    with pytest.raises(TypeError, match="expected B, D, F"):
        report.compile(["B", "D", "F"], ["bytes"])(1)


def test_compiled_functions_name_axes_that_are_not_there():
    """An axis that the program lacks, or that has size 1 in it, is named with what to do."""
    text = "mesh X=1, Y=2\nA[I_X, J] · W[J, K_Y] -> C[I_X, K]"
    report = sl.cost(sl.lower(sl.parse(text)))

    with pytest.raises(ValueError, match=r"figure 'Z'; it has dims I, J, K; axes X, Y; hardware"):
        report.compile(["Z"], "bytes")
    f = report.compile(["I", "J", "K", "X"], "bytes")
    assert f(8, 8, 8, 1)[0] > 0
    with pytest.raises(ValueError, match="axis X has size 1 in this report"):
        f(8, 8, 8, np.array([1, 2]))


def test_reports_print_as_text():
    """`print(report)` shows the table; its repr is one line."""
    report = cost(plans.mlp("dp"), "h100")

    assert str(report) == report.to_text().rstrip("\n")
    assert "\n" not in repr(report)
    assert "h100" in repr(report)


def test_compiled_functions_can_be_pickled():
    """A compiled report survives pickling."""
    f = cost(plans.mlp("tp"), "tpu_v5e", overlap="axes").compile(["B", "D", "F", "Y"])

    again = pickle.loads(pickle.dumps(f))

    assert [float(x) for x in again(64, 8, 32, 4)] == [float(x) for x in f(64, 8, 32, 4)]


# --- formulas ---


monomials = st.builds(
    lambda c, powers: Monomial(c, tuple(sorted(powers.items()))),
    st.fractions(min_value=Fraction(1, 8), max_value=8, max_denominator=8).filter(bool),
    st.dictionaries(st.sampled_from("ABXY"), st.sampled_from([-2, -1, 1, 2]), max_size=3),
)
sums = st.lists(monomials, max_size=3).map(lambda terms: Formula.of(*terms))
values = st.fixed_dictionaries(
    {n: st.fractions(min_value=Fraction(1, 4), max_value=9, max_denominator=4) for n in "ABXY"}
)


@settings(max_examples=60)
@given(sums, sums, monomials, values)
def test_formulas_calculate(a, b, m, known):
    """Sums, products, maxima and substitution agree with numbers, and print what they are."""
    x, y = a.value(known), b.value(known)
    z = m.evaluate({}).coefficient
    z = Formula.of(m).value(known)
    assert None not in (x, y, z)

    assert (a + b).value(known) == x + y
    assert (a * m).value(known) == x * z
    assert (a / m).value(known) == x / z
    most = Formula.largest((a, b, a + b))
    assert most.value(known) == max(x, y, x + y)
    assert (most + a).substitute(known).value({}) == most.value(known) + x
    symbols = dict.fromkeys("ABXY")
    numbers = {sympy.Symbol(n, positive=True): sympy.Rational(v) for n, v in known.items()}
    for formula in (a, a + b, most + a):
        number = formula.value(known)
        assert read(str(formula), symbols).subs(numbers) == sympy.Rational(number)
        assert formula.sympy().subs(numbers) == sympy.Rational(number)


@given(monomials, monomials, sums, values)
def test_atoms_calculate(m, n, a, known):
    """Sums, products rounded down and the smaller of two are numbers, and read as what they are."""
    x, y = (Formula.of(each).value(known) for each in (m, n))
    z = a.value(known)
    assert None not in (x, y, z)
    expected = {Sum.of((m, n)): x + y, Floor.of(m): floor(x), Min.of(m, n): min(x, y)}
    nested = Floor.of(Min.of(m, Sum.of((m, n))))
    numbers = {sympy.Symbol(k, positive=True): sympy.Rational(v) for k, v in known.items()}

    for atom, number in {**expected, nested: floor(min(x, x + y))}.items():
        formula = a + Formula.of(atom)
        assert formula.value(known) == z + number == formula.substitute(known).value({})
        assert pickle.loads(pickle.dumps(formula)) == formula
        assert formula.sympy().subs(numbers) == sympy.Rational(z + number)
        assert read(str(formula), dict.fromkeys("ABXY")).subs(numbers) == sympy.Rational(z + number)
        assert formula.names <= set("ABXY")


@given(st.lists(monomials, min_size=1, max_size=4))
def test_common_factors_leave_whole_products(terms):
    """After dividing by the common factor no name and no number stands in a denominator."""
    factor = common_factor(terms)

    for term in terms:
        left = term / factor
        assert left.coefficient.denominator == 1
        assert all(power > 0 for _, power in left.powers)


def test_reports_in_text_and_json_need_no_sympy():
    """Text, JSON, Markdown, HTML and LaTeX come without sympy, numpy and JAX."""
    script = (
        "import sys, plans; from shardlang.cost.report import cost;"
        "r = cost(plans.mlp('fsdp_tp'), hardware='tpu_v5p');"
        "r.to_text(); r.to_json(); r.to_markdown(); r.to_latex(); r._repr_html_();"
        "print([m for m in ('sympy', 'numpy', 'jax', 'lark') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": ":".join(sys.path)},
    )

    assert done.stdout == "[]\n"


def test_parameters_that_get_no_gradient_have_no_state():
    """Of adamw in f32 two moments of 4 bytes an element: of W, and of Rest, which stands for other lines; not of W_h.

    A comparison alone reads W_h.
    """
    text = (
        "mesh X=2\ndims B=4, D=8, N=100\ndtype f32\noptimizer adamw\ninput x: [B_X, D]\n"
        "param W: [D], W_h: [D], Rest: [N]\n"
        "loss = mean_{B,D}(where(x > W_h, square(x ⊙ W), 0))\n"
    )
    memory = sl.cost(sl.lower(sl.parse(text))).memory

    size, rest = (sympy.Symbol(name, positive=True) for name in "DN")
    assert memory.optimizer == 2 * 4 * (size + rest)
    assert memory.parameters == 4 * (2 * size + rest)
    assert memory.gradients == 4 * size
