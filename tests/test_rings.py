"""Rings: a gather or a scatter in pieces, beside the product that reads or makes what moves.

Values and gradients are held against the unsharded program by the simulator, which sends shards one way round
where the emitted code sends them both ways, and by JAX.
"""

from __future__ import annotations

import random
from collections import Counter
from fractions import Fraction

import pytest
from simulator import check_numbers
from strategies import random_program

import shardlang as sl
from shardlang.diagnostics import ShardlangError
from shardlang.ir.ops import AllGather, Ring
from shardlang.ir.plan import Plan, Step
from shardlang.passes.overlap import apart, pairs, with_rings
from shardlang.passes.unroll import unroll_plan

PROGRAMS = {
    "fsdp and tp": "mesh X, Y\nIn[B_X, D_Y] ·_D W_in[D_X, F_Y] ·_F W_out[F_Y, D_X] -> Out[B_X, D_Y]",
    "one axis": "mesh Y\nIn[B, D_Y] ·_D W_in[D, F_Y] ·_F W_out[F_Y, D] -> Out[B, D_Y]",
    "weights alone": "mesh X\nIn[B_X, D] ·_D W_in[D_X, F] ·_F W_out[F, D_X] -> Out[B_X, D]",
    "sequence": "mesh Y\nx[B, T_Y, D] ·_D W_in[D, F_Y] ·_F W_out[F_Y, D] -> Out[B, T_Y, D]",
    "two axes": "mesh X, Y\nIn[B, D_XY] ·_D W_in[D, F_XY] ·_F W_out[F_XY, D] -> Out[B, D_XY]",
    "other way": "mesh X, Y\nIn[B, D_YX] ·_D W_in[D, F_XY] ·_F W_out[F_XY, D] -> Out[B_YX, D]",
    "dims in another order": "mesh X\nIn[D_X, B] ·_D W[D, F_X] -> Out[F_X, B]",
    "a dim of both": "mesh X\nq[B, K, D_X] ·_D k[B, K, D, F_X] -> s[B, K, F_X]",
    "a block of an outer split": "mesh X, Y\nIn[B, D_XY] ·_D W_in[D_X, F_Y] -> Out[B, F_Y]{U_X}",
    "several readers": (
        "mesh X, Y\nparam V: [D, F_Y]\nparam U: [D, F_Y]\nparam W: [F_Y, D]\n"
        "gate[B_X, F_Y] = x[B_X, D_Y] ·_D V\nup[B_X, F_Y] = x ·_D U\n"
        "y[B_X, D_Y] = (silu(gate) ⊙ up) ·_F W"
    ),
}  # fmt: skip


def disjoint(plan: Plan, *, last: bool = False) -> Plan:
    """Do all pairs as rings that can be at once, the first of those that share a step, or the last."""
    used: set[tuple[str, int]] = set()
    chosen = []
    for pair in reversed(pairs(plan)) if last else pairs(plan):
        if used.isdisjoint(pair.places):
            used |= pair.places
            chosen.append(pair)
    return with_rings(plan, chosen)


def rings(plan: Plan) -> list[Step]:
    """List a plan's rings."""
    return [step for _, step in plan.steps() if isinstance(step.op, Ring)]


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_values_and_gradients(name: str, last: bool, size: int) -> None:
    """Any pair of steps as a ring, for any number of devices: the same values and gradients."""
    plan = sl.lower(sl.parse(PROGRAMS[name]))
    made = disjoint(plan, last=last)
    assert rings(made)
    sizes = dict.fromkeys((info.axis.name for info in plan.program.mesh.axes), size)
    devices = size ** len(sizes)
    dims = {info.dim.name: devices * (1 + i % 2) for i, info in enumerate(plan.program.dims)}
    check_numbers(made, sizes={**sizes, **dims})


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_notation_says_all_of_it(name: str) -> None:
    """A plan with rings parses back to itself, and apart it is the plan that it came from."""
    plan = sl.lower(sl.parse(PROGRAMS[name]))
    made = disjoint(plan)
    again = sl.lower(sl.parse(str(made)))
    assert str(again) == str(made)
    assert [(s.op, s.inputs, s.output) for _, s in again.steps()] == [
        (s.op, s.inputs, s.output) for _, s in made.steps()
    ]
    steps = Counter((s.op, s.inputs, s.output, s.critical) for _, s in apart(made).steps())
    assert steps == Counter((s.op, s.inputs, s.output, s.critical) for _, s in plan.steps())


def test_layers() -> None:
    """A model in layers has rings in its blocks, forward and backward."""
    program = sl.load("examples/llama.shd")
    plan = sl.lower(program)
    made = disjoint(plan)
    assert any(step.loop is not None for step in rings(made))
    assert str(sl.lower(sl.parse(str(made)))) == str(made)


def test_layers_have_the_same_values() -> None:
    """A ring of a block is one a layer, and computes what the layers mean."""
    text = (
        "mesh Y=2\ninput x: [B, D_Y]\nlayers L:\n"
        "  x = x + gelu(x ·_D W_in[D, F_Y]) ·_F W_out[F_Y, D]\n"
    )
    made = disjoint(sl.lower(sl.parse(text)))
    inside = [step for step in rings(made) if step.loop is not None]
    assert len(inside) >= 3
    unrolled = unroll_plan(made, 3).plan
    assert len(rings(unrolled)) == 3 * len(inside)
    check_numbers(unrolled, sizes={"Y": 2, "B": 2, "D": 4, "F": 6})


def test_a_gathered_copy_that_others_read_is_kept() -> None:
    """The first reader does the gather, and the others read what it keeps."""
    made = disjoint(sl.lower(sl.parse(PROGRAMS["several readers"])))
    text = str(made)
    assert "gate[B_X, F_Y] = RingGather_Y(x[B_X, D_Y] -> x[B_X, D]) ·_D V[D, F_Y]" in text
    assert "up[B_X, F_Y] = x[B_X, D] ·_D U[D, F_Y]" in text


def test_a_sum_that_every_device_makes_in_its_own_order_is_no_ring() -> None:
    """Out is whole everywhere: copies added up from another shard on would differ in their last bits."""
    plan = sl.lower(sl.parse("mesh Y\nIn[B, D_Y] ·_D W[D, F] -> Out[B, F]"), forward_only=True)
    explicit = sl.parse(
        "mesh Y\nforward:\n  In[B, D] = AllGather_Y(In[B, D_Y])\n  Out[B, F] = In[B, D] ·_D W[D, F]"
    )
    assert not [p for p in pairs(plan) if isinstance(p.ring.moving.op, AllGather)]
    assert not pairs(sl.lower(explicit))


WRONG = {
    "RingGather_Y(In[B, D_Y]) ·_D W[D, F] -> Out[B, F]": ("SH251", None),
    "forward:\n  Out[B, D] = RingGather_Y(In[B, D_Y])": ("SH251", "an operand of a product"),
    "forward:\n  Out[B, D] = RingGather_Y(In[B, D_Y]) + W[B, D]": ("SH251", "an operand"),
    "forward:\n  Out[B, F] = RingGather_Y(In[B, D_Y] -> In[B_Y, D]) ·_D W[D, F]": ("SH251", "keeps"),
    "forward:\n  Out[B, F] = RingGather_Y(In[B, D]) ·_D W[D, F]": ("SH226", "no dim of In"),
    "forward:\n  Out[B, F_Y] = RingScatter_{Y,F}(In[B, D] + W[B, D])": ("SH251", "takes a product"),
    "forward:\n  Out[B, F_Y] = RingScatter_{Y,F}(In[B, D] ·_D W[D, F])": ("SH", "partial sums"),
    "forward:\n  Out[B, F] = RingGather_Y(In[B, D_Y]) ·_D W[D_Y, F]": ("SH", "D is split as D"),
    "forward:\n  Out[B, F] = RingGather_Y(In[B, D_Y]) ⊙ W[D, F]": ("SH251", "operand"),
}  # fmt: skip


@pytest.mark.parametrize("text", WRONG)
def test_mistakes(text: str) -> None:
    """What is no ring says why."""
    code, words = WRONG[text]
    with pytest.raises(ShardlangError) as caught:
        sl.lower(sl.parse(f"mesh Y=2\n{text}"))
    found = caught.value.diagnostics
    assert any(d.code.startswith(code) and (words or "explicit") in d.message for d in found), found


SIZES = {"B": 65536, "D": 8192, "F": 32768, "X": 16, "Y": 4}


def test_rings_where_they_pay() -> None:
    """On v5p the gather of In takes 2BD/X bytes over 180 GB/s, 373 us, its product 1.2 ms."""
    program = sl.load("examples/fsdp_tp.shd")
    made = sl.overlap(sl.lower(program), "tpu_v5p", sets=SIZES)
    assert [s.moving.output.name for s in rings(made)] == ["In", "Out", "dOut", "dIn"]
    # with F a tenth of it a product takes less than the gather
    few = sl.overlap(sl.lower(program), "tpu_v5p", sets={**SIZES, "F": 4096})
    assert rings(few) == []


def test_what_is_not_known_is_a_condition() -> None:
    """With no sizes and no chip nothing is done, and the plan says when it would pay."""
    plan = sl.overlap(sl.lower(sl.load("examples/fsdp_tp.shd")))
    assert rings(plan) == []
    found = {a.cheaper_when for a in plan.alternatives if "Ring" in a.instead}
    assert found == {"2*B*D*F/(C*X*Y) > 2*B*D/(M_Y*W_ici*X)"}


def hand(math: Fraction, comms: Fraction, n: int) -> Fraction:
    """Step through a gather's ring hop by hop: two shards a hop, the last one of an even n brings one."""
    hops, part = n // 2, math / n
    now = part
    for hop in range(1, hops + 1):
        now = max(now, comms / hops * hop)
        now += part * (1 if hop == hops and n % 2 == 0 else 2)
    return now - math


@pytest.mark.parametrize("n", [2, 3, 4, 5, 8, 16])
@pytest.mark.parametrize("f", [1024, 10240, 20480, 65536])
def test_what_stays_exposed(n: int, f: int) -> None:
    """The formula is what going through the hops one by one gives, and so is the schedule."""
    text = (
        f"mesh Y={n}\nhardware tpu_v5p\ndims B=4800, D=4800, F={f * 15}\nforward:\n"
        "  Out[B, F_Y] = RingGather_Y(In[B, D_Y]) ·_D W[D, F_Y]"
    )
    report = sl.cost(sl.lower(sl.parse(text)))
    math = Fraction(2 * 4800 * 4800 * f * 15, n) / 459 / 10**12
    comms = Fraction(2 * 4800 * 4800, 180 * 10**9)
    wanted = hand(math, comms, n)
    exposed = report.total.quantity("t_exposed").value
    assert exposed is not None
    assert float(exposed) == pytest.approx(float(wanted), rel=1e-9, abs=1e-15)
    overlapped = report.total.quantity("t_overlapped").value
    assert overlapped is not None
    assert float(overlapped) == pytest.approx(float(max(math + wanted, comms)))
    # and a schedule of the hops comes to the same
    assert report.schedule().seconds == pytest.approx(float(math + wanted))


def test_the_schedule_of_a_scatter_is_that_of_a_gather() -> None:
    """Played backwards it is the same."""
    head = "mesh Y=6\nhardware tpu_v5p\ndims B=6000, D=6000, F=12000\nforward:\n"
    one = sl.lower(sl.parse(head + "  Out[B, F_Y] = RingGather_Y(In[B, D_Y]) ·_D W[D, F_Y]"))
    two = sl.lower(sl.parse(head + "  Out[B, D_Y] = RingScatter_{Y,D}(In[B, F_Y] ·_F W[F_Y, D])"))
    first, second = (sl.cost(plan) for plan in (one, two))
    assert first.schedule().exposed > 0
    assert first.schedule().seconds == pytest.approx(second.schedule().seconds)
    assert second.schedule().exposed == pytest.approx(
        float(second.total.quantity("t_exposed").value or 0)
    )


def test_plain_collectives_are_exposed_if_something_waits() -> None:
    """Every collective has a figure, and rings change no total of FLOPs and bytes."""
    made = sl.overlap(sl.lower(sl.load("examples/fsdp_tp.shd")), "tpu_v5p", sets=SIZES)
    report = sl.cost(made, "tpu_v5p", sets=SIZES)
    assert {c.move for c in report.collectives if not c.step.critical} == {
        "AllGather_X",
        "ReduceScatter_X",
    }
    assert all(c.exposed is not None for c in report.collectives)
    plain = sl.cost(sl.lower(sl.load("examples/fsdp_tp.shd")), "tpu_v5p", sets=SIZES)
    for key in ("bytes", "t_comms", "t_math", "flops"):
        assert report.total.quantity(key) == plain.total.quantity(key)


def test_memory_has_two_shards_in_place_of_the_gathered_copy() -> None:
    """W[D, F] in bf16, gathered whole: 2DF; in a ring its shard from either side: 4DF/X."""
    head = "mesh X=8\ndims B=64, D=1024, F=512\nforward:\n"
    plain = head + "  W[D, F] = AllGather_X(W[D_X, F])\n  Out[B_X, F] = In[B_X, D] ·_D W[D, F]"
    ring = head + "  Out[B_X, F] = In[B_X, D] ·_D RingGather_X(W[D_X, F])"
    gathered = [
        sl.cost(sl.lower(sl.parse(text))).memory.quantity("gathered_peak").value
        for text in (plain, ring)
    ]
    assert gathered == [2 * 1024 * 512, 4 * 1024 * 512 / 8]


def test_latency_of_the_hops() -> None:
    """With T_hop of 1 ms and products of no size, two hops over 4 devices stay exposed."""
    text = (
        "mesh Y=4\nhardware tpu_v5p\ndims B=8, D=8, F=8\nforward:\n"
        "  Out[B, F_Y] = RingGather_Y(In[B, D_Y]) ·_D W[D, F_Y]"
    )
    report = sl.cost(sl.lower(sl.parse(text)), model="link", sets={"T_hop": 1e-3})
    exposed = report.total.quantity("t_exposed").number
    assert exposed == pytest.approx(2e-3, rel=1e-6)


LAYERS = (
    "mesh X=2, Y=2\ninput x: [B_X, D_Y]\nlayers L:\n"
    "  x = x + gelu(x ·_D W_in[D_X, F_Y]) ·_F W_out[F_Y, D_X]\n"
)  # fmt: skip


def test_prefetch_is_a_line_of_the_program() -> None:
    """The plan with its line parses back, and each layer's gathers stand one layer ahead."""
    made = sl.overlap(sl.lower(sl.parse(LAYERS)))
    assert "prefetch W_in, W_out\n" in str(made)
    again = sl.lower(sl.parse(str(made)))
    assert str(again) == str(made)
    steps = [str(step.output) for step in unroll_plan(again, 3).plan.forward]
    assert steps.index("W_in_1[D, F_Y]") < steps.index("Tmp_0[B_X, F_Y]")
    assert steps.index("W_in_2[D, F_Y]") > steps.index("x2_0[B_X, D_Y]")
    back = [str(step.output) for step in unroll_plan(again, 3).plan.backward]
    assert back.index("W_in_1[D, F_Y]") < back.index("dTmp_2[B_X, F_Y]")
    assert sorted(steps) == sorted(
        str(step.output) for step in unroll_plan(sl.lower(sl.parse(LAYERS)), 3).plan.forward
    )


def test_prefetch_takes_a_second_buffer_and_one_gather_more() -> None:
    """Gathered each weight takes 2DF/Y bytes: both are there for two layers. The first's gathers are exposed.

    The backward pass holds the cotangent gathered beside them, 2BD/X.
    """
    sizes = {"X": 8, "Y": 4, "B": 4096, "D": 1024, "F": 4096, "L": 10}
    plan = sl.lower(sl.parse(LAYERS.replace("X=2, Y=2", "X, Y")))
    ahead = sl.lower(sl.parse(LAYERS.replace("X=2, Y=2", "X, Y\nprefetch W_in, W_out")))
    plain, second = (sl.cost(p, "tpu_v5p", sets=sizes) for p in (plan, ahead))
    whole = 2 * 1024 * 4096 // 4
    held = [r.memory.quantity("gathered_peak").value for r in (plain, second)]
    assert held == [whole + 2 * 4096 * 1024 // 8, 4 * whole + 2 * 4096 * 1024 // 8]
    moved = [r.forward.quantity("bytes").value for r in (plain, second)]
    assert moved[0] is not None
    assert moved[1] == moved[0] + 2 * whole
    gathers = [c for c in second.collectives if c.tensor.startswith("W_") and c.op == "AllGather"]
    assert len(gathers) == 4
    for cost in gathers:
        assert cost.exposed is not None
        assert cost.time.value is not None
        assert cost.exposed.value == cost.time.value / 11


def test_only_parameters_of_layers_are_prefetched() -> None:
    """Another name is a mistake that says which there are."""
    with pytest.raises(ShardlangError) as caught:
        sl.parse(LAYERS.replace("input x", "prefetch W_inn\ninput x"))
    assert [d.code for d in caught.value.diagnostics] == ["SH252"]
    assert "W_in" in str(caught.value)


@pytest.mark.parametrize("batch", range(6))
def test_random_programs(batch: int) -> None:
    """Rings change no value, no gradient, no FLOPs and no bytes, and the notation says all of them."""
    found = 0
    for seed in range(batch * 20, batch * 20 + 20):
        plan = sl.lower(sl.parse(random_program(random.Random(seed))))
        made = disjoint(plan, last=seed % 2 == 1)
        if not rings(made):
            continue
        found += 1
        assert str(sl.lower(sl.parse(str(made)))) == str(made), seed
        costs = [sl.cost(each) for each in (plan, made)]
        for key in ("flops", "bytes", "hbm_bytes", "fused_bytes"):
            assert costs[0].total.quantity(key) == costs[1].total.quantity(key), seed
        assert costs[0].conventions() == costs[1].conventions(), seed
        if seed % 5 == 0:
            check_numbers(made)
    assert found > 3


def test_compiled_reports_have_rings() -> None:
    """A compiled report gives what a report of each size says, also where the ring is of one device."""
    plan = sl.overlap(sl.lower(sl.load("examples/fsdp_tp.shd")), always=True)
    open_size = {name: size for name, size in SIZES.items() if name != "Y"}
    function = sl.cost(plan, "tpu_v5p", sets=open_size).compile(["Y"], ["t_overlapped", "memory"])
    for size in (1, 2, 3, 8):
        report = sl.cost(plan, "tpu_v5p", sets={**SIZES, "Y": size})
        found = function(size)
        assert found["t_overlapped"] == pytest.approx(report.total.quantity("t_overlapped").number)
        assert found["memory"] == pytest.approx(report.memory.quantity("total").number)
