"""Simulated schedules: by hand, and between the two bounds on random programs."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from strategies import random_program

import shardlang as sl
from shardlang.cost.schedule import COMPUTE, NETWORK, Timeline
from shardlang.ir.plan import Plan
from shardlang.ir.printer import statement
from shardlang.ir.types import Array

FSDP = (
    "mesh X=4\ndims B=4096, D=1024, F=4096\nhardware tpu_v5p\n"
    "In[B_X, D] · W_in[D_X, F] · W_out[F, D_X] -> Out[B_X, D]\n"
)


def timeline(text: str, **options: object) -> Timeline:
    """Schedule the book's plan."""
    return sl.cost(sl.lower(sl.parse(text)), **options).schedule()  # type: ignore[arg-type]


def test_a_forward_pass_by_hand() -> None:
    """Two gathers of 2*D*F bytes; each product waits for its own, the second gather is hidden.

    A gather takes 2*1024*4096/1.8e11 s = 46.6 us, a product 2*4096*1024*4096/4/4.59e14 = 18.7 us.
    """
    plan = sl.lower(sl.parse(FSDP), forward_only=True)
    found = sl.cost(plan).schedule()
    gather, product = 2 * 1024 * 4096 / 1.8e11, 2 * 4096 * 1024 * 4096 / 4 / 4.59e14

    assert [(e.lanes, e.text.split(" = ")[1].split()[0]) for e in found.events] == [
        ((NETWORK,), "AllGather_X(W_in[D_X,"),
        ((COMPUTE,), "In[B_X,"),
        ((NETWORK,), "AllGather_X(W_out[F,"),
        ((COMPUTE,), "Tmp[B_X,"),
    ]
    starts = [0.0, gather, gather, 2 * gather]
    assert pytest.approx(starts) == [event.start for event in found.events]
    assert pytest.approx(2 * gather + product) == found.seconds
    assert pytest.approx(2 * gather - product) == found.exposed


def test_the_backward_pass_waits_for_the_outputs() -> None:
    """What reads a cotangent starts after the last output; a gather of a weight need not."""
    plan = sl.lower(sl.parse(FSDP))
    found = sl.cost(plan).schedule()
    last = max(event.end for event in found.events if event.section == "forward")
    reads = [
        event for event in found.events if "dOut" in event.text and event.section == "backward"
    ]

    assert reads
    assert all(event.start >= last for event in reads)


@pytest.mark.parametrize("overlap", [None, "axes"])
def test_between_the_bounds_with_every_lane_alone_and_in_order(overlap: str | None) -> None:
    """No schedule is below T_overlapped or above the sum of its steps; a lane does one at a time.

    Where axes overlap, T_serial counts the busiest axis alone, and is no upper bound.
    """
    rng = random.Random(3)
    done = 0
    while done < 25:
        program = sl.parse(random_program(rng))
        plan = sl.lower(program)
        report = sl.cost(plan, hardware="tpu_v5p", overlap=overlap)  # type: ignore[arg-type]
        found = report.schedule()
        totals = report.total
        low, math = (float(totals.quantity(k).value or 0) for k in ("t_overlapped", "t_math"))
        high = math + sum(float(cost.time.value or 0) for cost in report.collectives)
        done += 1

        assert low * (1 - 1e-9) <= found.seconds <= high * (1 + 1e-9)
        for lane in found.lanes:
            own = [event for event in found.events if lane in event.lanes]
            assert all(b.start >= a.end * (1 - 1e-12) for a, b in pairwise(own))
        _in_order(found, plan)


def _in_order(found: Timeline, plan: Plan) -> None:
    """A step starts after the steps that make what it reads."""
    events = {(event.section, event.text): event for event in found.events}
    ends: dict[Array, float] = {}
    for section, step in plan.steps():
        before = max((ends.get(array, 0.0) for array in step.inputs), default=0.0)
        event = events.get((section, statement(step)))
        if event is not None:
            assert event.start >= before * (1 - 1e-9), step
        ends[step.output] = before if event is None else event.end


def test_small_batches_are_bound_by_reading_weights() -> None:
    """With the HBM roofline a product of few rows takes the time of reading the weight."""
    text = (
        "mesh X=2\ndims B=2, D=8192, F=8192\nhardware tpu_v5e\nA[B, D] · W[D, F_X] -> C[B, F_X]\n"
    )
    plan = sl.lower(sl.parse(text), forward_only=True)
    report, roofline = sl.cost(plan), sl.cost(plan, hbm=True)
    read = 2 * (2 * 8192 + 8192 * 4096 + 2 * 4096) / 8.1e11

    assert pytest.approx(read) == roofline.schedule().seconds
    assert pytest.approx(2 * 2 * 8192 * 4096 / 1.97e14) == report.schedule().seconds


def test_open_sizes_have_no_schedule() -> None:
    """The error names what is missing."""
    with pytest.raises(sl.ShardlangError) as error:
        timeline("A[I, J_X] · B[J_X, K] -> C[I, K]")

    (diagnostic,) = error.value.diagnostics
    assert diagnostic.code == "SH525"
    assert "I" in diagnostic.message


def test_the_drawing_fits() -> None:
    """A lane is a row, full where it works, and no row is wider than asked."""
    found = timeline(FSDP)
    rows = found.to_text(60).splitlines()

    assert len(rows) == len(found.lanes)
    assert all(len(row) <= 60 for row in rows)
    assert "█" in rows[0]
