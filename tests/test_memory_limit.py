"""Kept copies of parameters and limits on memory: the plan, its printed form, and what `cost` reports."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from simulator import check_numbers
from strategies import random_chain, random_program

import shardlang as sl
from shardlang.ir.ops import AllGather
from shardlang.ir.plan import Plan
from shardlang.ir.printer import print_plan
from shardlang.ir.program import Program

EXAMPLES = Path(__file__).parent.parent / "examples"

FSDP = """
mesh X=4
hardware tpu_v5p
dims B=4096, D=512, F=2048
In[B_X, D] · W_in[D_X, F] · W_out[F, D_X] -> Out[B_X, D]
"""
WEIGHT = 2 * 512 * 2048
"""Bytes of either weight, gathered; W is a quarter of that on a device, and so is its gradient."""

ACTIVATIONS = 2 * 1024 * 512 + 2 * 1024 * 2048
"""In and Tmp, as the backward pass reads them on a device."""

AT_HOME = 4 * WEIGHT // 4
KEEPING = ACTIVATIONS + AT_HOME + 2 * WEIGHT
GATHERING = ACTIVATIONS + AT_HOME + WEIGHT
"""The peak with both copies held, and with one of them at a time."""


def peak(plan: Plan) -> int:
    """Give the peak of memory that the report shows."""
    return sl.cost(plan).to_dict()["memory"]["total"]["value"]


def moved(plan: Plan) -> int:
    """Give the bytes that a device sends, as the report shows them."""
    return sl.cost(plan, model="link").to_dict()["totals"]["total"]["bytes"]["value"]


def within(program: Program, limit: int | None) -> Plan | None:
    """Plan under a limit; None where the error is that nothing fits."""
    try:
        return sl.lower(program, "optimal", budget=4, memory_limit=limit)
    except sl.ShardlangError as error:
        if {"SH357"} == {x.code for x in error.diagnostics}:
            return None
        raise


def gathers(plan: Plan) -> list[str]:
    """List the names that are gathered, in order."""
    return [step.output.name for _, step in plan.steps() if isinstance(step.op, AllGather)]


def test_keeping_moves_one_gather_less_a_weight():
    """With no limit both weights are kept: each moves 3/4 of itself once less, and is held whole."""
    kept = sl.lower(sl.parse(FSDP), "optimal", objective="bytes", sub_axes=False)
    again = sl.lower(
        sl.parse(FSDP), "optimal", objective="bytes", keep_gathered=False, sub_axes=False
    )

    assert kept.proof is not None
    assert again.proof is not None
    assert (2, 4) == (len(gathers(kept)), len(gathers(again)))
    assert 2 * WEIGHT * 3 // 4 == again.proof.cost - kept.proof.cost
    assert [("W_in", WEIGHT, WEIGHT * 3 // 4), ("W_out", WEIGHT, WEIGHT * 3 // 4)] == [
        (each.parameter, each.held, each.moved) for each in kept.proof.holdings
    ]
    assert () == again.proof.holdings
    assert (KEEPING, GATHERING) == (peak(kept), peak(again))
    assert {"W_in", "W_out"} == kept.program.save.names
    assert frozenset() == again.program.save.names


def test_the_printed_program_says_what_is_kept():
    """`save all, W_in, W_out` stands in it, and it reads back with the same cost and no options."""
    plan = sl.lower(sl.parse(FSDP), "optimal")
    printed = print_plan(plan)
    again = sl.lower(sl.parse(printed))

    assert "\nsave all, W_in, W_out\n" in printed
    assert "// W_in is kept gathered: 2.1 MB held, making it again moves 1.57 MB\n" in printed
    assert [] == sl.check(printed, explicit=True)
    assert sl.cost(plan).to_dict()["totals"] == sl.cost(again).to_dict()["totals"]
    assert peak(plan) == peak(again)
    assert print_plan(again) == "".join(
        line for line in printed.splitlines(keepends=True) if not line.startswith("//")
    )
    without = printed.replace("save all, W_in, W_out\n", "")
    assert {"SH401"} == {x.code for x in sl.check(without, explicit=True)}


def test_the_book_keeps_what_the_save_line_names():
    """In an ordinary program one weight is kept and the other gathered again, by the rules too."""
    plan = sl.lower(sl.parse(f"save all, W_out\n{FSDP}"))

    assert ["W_in", "W_out", "W_in"] == gathers(plan)
    assert {"W_out"} == plan.program.save.names
    assert GATHERING + WEIGHT == peak(plan)
    check_numbers(plan, sizes={"B": 16, "D": 16, "F": 16, "X": 4})
    searched = sl.lower(sl.parse(f"save all, W_out\n{FSDP}"), "optimal", keep_gathered=False)
    assert 4 == len(gathers(searched))


def test_what_the_other_choice_holds_and_moves():
    """`cost` says it of a weight that is kept and of one that is not, in the book's bytes."""
    for strategy in ("book", "optimal"):
        kept = strategy == "book" and "save all, W_out\n"
        plan = sl.lower(sl.parse(f"{kept or ''}{FSDP}"), strategy, memory_limit=KEEPING)
        again = sl.lower(sl.parse(print_plan(plan)))
        found = [(a.at, a.instead, a.cheaper_when) for a in again.alternatives]

        assert found == [(a.at, a.instead, a.cheaper_when) for a in plan.alternatives]
        assert (
            "W_out[F, D] kept for the backward pass",
            f"make it again there (save all{'' if kept else ', W_in'})",
            "2*D*F bytes are short: it costs moving 2*D*F",
        ) in found
    (first, _) = sl.lower(sl.parse(f"save all, W_out\n{FSDP}")).alternatives
    assert "W_in[D, F] in the backward pass" == first.at
    assert "keep it from the forward pass (save all, W_in, W_out)" == first.instead
    assert "2*D*F more bytes fit: it saves moving 2*D*F" == first.cheaper_when


def test_some_values_and_a_weight_are_saved():
    """`save Tmp, W_out` keeps Tmp and W_out's copies: nothing else is there in the backward pass."""
    plan = sl.lower(sl.parse(f"save Tmp, W_out\n{FSDP}"))
    printed = print_plan(plan)

    assert ["W_in", "W_out", "W_in"] == gathers(plan)
    assert "\nsave Tmp, W_out\n" in printed
    assert [] == sl.check(printed, explicit=True)


def test_slices_of_a_replicated_weight_are_cut_again():
    """What a slice makes for nothing is not held from one pass to the other."""
    text = "mesh X=4\ndims B=4096, D=64, F=4096\nIn[B, D] · W[D, F] -> Out[B, F_X]\n"
    plan = sl.lower(sl.parse(text), "optimal")
    cut = [str(step.output) for step in plan.backward if step.output.name == "W"]

    assert plan.proof is not None
    assert () == plan.proof.holdings
    assert "W[D, F_X]" in {str(array) for step in plan.forward for array in step.inputs}
    assert ["W[D, F_X]"] == cut


@pytest.mark.parametrize("objective", ["bytes", "time", "serial"])
def test_a_limit_just_below_what_keeping_takes(objective):
    """The weights are gathered again; the bound is that of plans without a limit."""
    free = sl.lower(sl.parse(FSDP), "optimal", objective=objective)
    plan = sl.lower(sl.parse(FSDP), "optimal", objective=objective, memory_limit=peak(free) - 1)

    assert KEEPING == peak(free)
    assert free.proof is not None
    assert plan.proof is not None
    assert plan.proof.fit is not None
    assert GATHERING == peak(plan) == plan.proof.fit.peak
    assert plan.proof.bound <= free.proof.cost <= plan.proof.cost
    assert plan.proof.optimal == (plan.proof.cost == free.proof.cost)
    assert 4 == len(gathers(plan))
    assert "// memory: 9.44 MB at the peak, 11.5 MB allowed" in print_plan(plan)


def test_the_plan_without_a_limit_is_taken_where_it_fits():
    """At its own peak the best plan is the answer, and proven."""
    free = sl.lower(sl.parse(FSDP), "optimal", objective="bytes")
    plan = sl.lower(sl.parse(FSDP), "optimal", objective="bytes", memory_limit=peak(free))

    assert plan.proof is not None
    assert plan.proof.optimal
    assert (free.forward, free.backward) == (plan.forward, plan.backward)


@pytest.mark.parametrize("strategy", ["book", "optimal"])
def test_below_the_least(strategy):
    """An error says what the leanest plan takes, the limit, and what is largest."""
    with pytest.raises(sl.ShardlangError) as caught:
        sl.lower(sl.parse(FSDP), strategy, memory_limit=1_000_000)
    (diagnostic,) = caught.value.diagnostics

    assert "SH357" == diagnostic.code
    for words in ("1 MB a device", "9.44 MB", "activations 5.24 MB", "Tmp[B_X, F] 4.19 MB"):
        assert words in diagnostic.message
    assert diagnostic.hint is not None
    assert 5 == diagnostic.line


def test_a_limit_that_only_other_layouts_keep():
    """Activations that moving nothing leaves whole are split, as there is no room for them."""
    text = """
        mesh X=4
        dims B=4096, D=64, F=2048
        h = x[B, D] ·_D W[D, F]
        g = gelu(h)
        y[B, D] = g ·_F V[F, D]
    """
    hidden = 2 * 4096 * 2048
    free = sl.lower(sl.parse(text), "optimal")
    lean = sl.lower(sl.parse(text), "optimal", memory_limit=hidden)

    assert (0, True) == (moved(free), peak(free) > 2 * hidden)
    assert hidden // 2 < peak(lean) < hidden
    assert moved(lean) > 0
    assert {"h[B_X, F]", "g[B_X, F]"} <= {str(step.output) for step in lean.forward}
    check_numbers(lean, sizes={"B": 16, "D": 8, "F": 8, "X": 4})


def test_room_for_one_weight_of_two():
    """With tensor parallelism either weight can be kept, both, or none: as many as there is room for."""
    text = """
        mesh Y=4
        dims B=4096, D=2048, F=512
        In[B, D_Y] · W_in[D, F_Y] · W_out[F_Y, D] -> Out[B, D_Y]
    """
    weight = 2 * 2048 * 512
    free = sl.lower(sl.parse(text), "optimal")
    one = sl.lower(sl.parse(text), "optimal", memory_limit=peak(free) - 1)
    none = sl.lower(sl.parse(text), "optimal", memory_limit=peak(one) - 1)

    assert [2, 1, 0] == [len(plan.program.save.names) for plan in (free, one, none)]
    assert [weight * 3 // 16] * 2 == [moved(one) - moved(free), moved(none) - moved(one)]
    assert peak(free) > peak(one) > peak(none)


@pytest.mark.parametrize("seed", range(10))
def test_random_programs_fit_and_read_back(seed):
    """Plans under a limit compute the right numbers, and cost the same when they are read back."""
    rng = random.Random(seed)
    program = sl.parse(random_chain(rng) if seed % 2 else random_program(rng))
    limit: int | None = None
    for _ in range(3):
        plan = within(program, limit)
        if plan is None:
            assert limit is not None
            return
        assert limit is None or peak(plan) <= limit
        check_numbers(plan, seed)
        printed = print_plan(plan)
        assert [] == [x for x in sl.check(printed, explicit=True) if x.severity == "error"]
        again = sl.lower(sl.parse(printed))
        assert plan.program.save == again.program.save
        old, new = (sl.cost(each, model="link").to_dict() for each in (plan, again))
        assert old["memory"] == new["memory"], printed
        assert old["totals"]["total"]["bytes"]["value"] == new["totals"]["total"]["bytes"]["value"]
        assert plan.proof is None or plan.proof.cost == old["totals"]["total"]["bytes"]["value"]
        limit = peak(plan) - 1


def test_a_module_with_kept_copies_runs():
    """JAX runs the printed program with its kept weights: values, gradients and collectives agree."""
    plan = sl.lower(sl.parse(FSDP), "optimal")
    result = sl.verify(sl.lower(sl.parse(print_plan(plan))))

    assert result.ok, result.to_text()


def test_time_is_the_default_where_the_hardware_is_known():
    """With hardware T_overlapped is least, without it bytes, and the first line says which."""
    timed = sl.lower(sl.parse(FSDP), "optimal")
    counted = sl.lower(sl.parse(FSDP.replace("hardware tpu_v5p\n", "")), "optimal")

    assert print_plan(timed).startswith("// optimal: T_overlapped = ")
    assert print_plan(counted).startswith("// optimal: 6.29 MB moved a device")
    named = sl.lower(counted.program, "optimal", objective="time", hardware="tpu_v5p")
    assert named.proof is not None
    assert timed.proof is not None
    assert named.proof.cost == timed.proof.cost


def test_time_ties_by_serial_time_then_by_collectives():
    """Where the FLOPs take longest anyway, no plan of equal T_overlapped that is known is slower."""
    program = sl.parse(FSDP.replace("B=4096", "B=65536"))
    plan = sl.lower(program, "optimal", objective="time")
    serial = sl.lower(program, "optimal", objective="serial")
    found, other = (sl.cost(each, model="link").to_dict() for each in (plan, serial))
    found, other = found["totals"]["total"], other["totals"]["total"]

    assert found["t_math"]["seconds"] == found["t_overlapped"]["seconds"]
    assert found["t_serial"]["seconds"] == other["t_serial"]["seconds"]
