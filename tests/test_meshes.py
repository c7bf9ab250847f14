"""`shardlang plan`: the best mesh and layouts, against a search through all of them."""

from __future__ import annotations

import json
from fractions import Fraction
from itertools import product
from math import prod

import pytest

import shardlang as sl
from shardlang.planner.meshes import factorisations
from shardlang.planner.placement import anywhere, place
from shardlang.planner.prices import prices_of
from shardlang.planner.program import aim_of
from shardlang.planner.solve import times_of

CHIP = "tpu_v5p"


def layouts(dims, axes):
    """List every layout of a tensor as text: each axis splits a dim or none, in every order on one dim."""
    found = set()
    for places in product(range(-1, len(dims)), repeat=len(axes)):
        orders = [""]
        for at in range(len(dims)):
            own = [axis for axis, place_ in zip(axes, places, strict=True) if place_ == at]
            names = {"".join(own), "".join(reversed(own))}
            orders = [f"{head}{'_' + name if name else ''}|" for head in orders for name in names]
        found.update(orders)
    return sorted(
        ", ".join(f"{dim}{part}" for dim, part in zip(dims, each.split("|"), strict=False))
        for each in found
    )


def serial(text, sizes, *, forward_only):
    """Give T_serial of the best plan of a program with all layouts given."""
    program = sl.parse(text)
    aim = aim_of(program, "serial", CHIP, prices_of("link"))
    plan = sl.lower(
        program, "optimal", objective="serial", hardware=CHIP, forward_only=forward_only
    )
    math, comms, _ = times_of(plan, aim.prices, aim.rate)
    return math + comms


@pytest.mark.parametrize("sizes", [(64, 32, 16), (8, 64, 128), (32, 128, 8)], ids=str)
@pytest.mark.parametrize("forward_only", [True, False])
def test_layouts_are_the_best_of_all(sizes, forward_only):
    """For a product on a mesh of two axes, no other layouts of operands and result take less time."""
    b, d, f = sizes
    head = f"mesh X=2, Y=2\ndims B={b}, D={d}, F={f}\n"
    line = "In[{}] · W[{}] -> Out[{}]"
    program = sl.parse(head + line.format("B, D", "D, F", "B, F"))
    aim = aim_of(program, "serial", CHIP, prices_of("link"))
    found = place(
        anywhere(program),
        aim.prices,
        aim.rate,
        lean=Fraction(0),
        forward_only=forward_only,
        late=lambda: False,
    )
    plan = sl.lower(found, "optimal", objective="serial", hardware=CHIP, forward_only=forward_only)
    math, comms, _ = times_of(plan, aim.prices, aim.rate)
    halves = [each for each in layouts("DF", "XY") if "YX" not in each]
    every = [
        serial(head + line.format(a, w, o), sizes, forward_only=forward_only)
        for a, w, o in product(["B_X, D", "B_XY, D", "B, D_X", "B_X, D_Y", "B, D"], halves,
                               ["B_X, F", "B_XY, F", "B, F_X", "B_X, F_Y", "B, F"])
    ]  # fmt: skip

    assert math + comms <= min(every)
    assert math + comms >= min(every) * Fraction(99, 100) or comms == 0


def test_an_output_lies_as_the_input_of_its_dims():
    """Blocks can be stacked: In and Out have one layout, and it is the best of those with a price."""
    head = "mesh X=4\ndims B=16, D=64, F=256\n"
    line = "In[{0}] · W_in[{1}] · W_out[{2}] -> Out[{0}]"
    program = sl.parse(head + line.format("B, D", "D, F", "F, D"))
    aim = aim_of(program, "serial", CHIP, prices_of("link"))
    found = place(
        anywhere(program), aim.prices, aim.rate, lean=Fraction(0), forward_only=False,
        late=lambda: False,
    )  # fmt: skip
    plan = sl.lower(found, "optimal", objective="serial", hardware=CHIP)
    math, comms, _ = times_of(plan, aim.prices, aim.rate)
    every = [
        serial(head + line.format(a, w, o), None, forward_only=False)
        for a, w, o in product(layouts("BD", "X"), layouts("DF", "X"), layouts("FD", "X"))
    ]

    assert plan.program.leaves[0].array.layout == plan.outputs[0].layout
    assert math + comms == min(every)


@pytest.mark.parametrize(("count", "parts"), [(1, 3), (12, 1), (12, 2), (64, 3), (30, 3)])
def test_factorisations(count, parts):
    """Every way to write a number as a product in order, once."""
    sides = [n for n in range(1, count + 1) if count % n == 0]
    expected = {each for each in product(sides, repeat=parts) if prod(each) == count}
    found = list(factorisations(count, parts))

    assert len(found) == len(expected)
    assert set(found) == expected


BLOCK = "In[B, D] · W_in[D, F] · W_out[F, D] -> Out[B, D]"


def test_a_small_model_is_trained_data_parallel():
    """With much batch and little memory taken, weights lie on every device."""
    program = sl.parse(f"dims B=1Mi, D=1024, F=4096\n{BLOCK}")
    best = sl.best_meshes(program, 16, hardware=CHIP).candidates[0]

    assert prod(best.mesh.values()) == 16
    assert [str(a) for a in best.arrays[1:3]] == ["W_in[D, F]", "W_out[F, D]"]
    assert best.t_math == Fraction(12 * 2**20 * 1024 * 4096, 16) / Fraction(459 * 10**12)


def test_memory_makes_weights_split():
    """A model whose weights and adam's state fit no device is split, and what is found fits."""
    program = sl.parse(f"optimizer adam\ndims B=64Ki, D=32Ki, F=256Ki\n{BLOCK}")
    found = sl.best_meshes(program, 64, hardware=CHIP)

    assert found.limit == 96 * 10**9
    assert found.candidates
    for each in found.candidates:
        assert each.memory <= found.limit
        assert all(array.layout.used for array in each.arrays[1:3])


def test_weights_that_the_backward_pass_does_not_read_are_split_too():
    """Of an input without a gradient the weight is read forward alone; what does not fit is split all the same."""
    text = "optimizer adam\ndims B=1024, D=64Ki, F=64Ki\ninput In: int8[B, D]\nOut[B, F] = In ·_D W[D, F]"
    found = sl.best_meshes(sl.parse(text), 16, hardware="tpu_v5e")

    assert found.candidates
    assert all(c.memory <= 16 * 10**9 for c in found.candidates)


def test_blocks_keep_their_layouts():
    """A whole model is planned on each mesh with the layouts that it has, and a note says so."""
    found = sl.best_meshes(sl.load("examples/llama.shd"), 1024, strategy="book")

    assert found.notes[0] == (
        "layouts are not searched: layers L are a block; those of the text are taken"
    )
    assert all(note.startswith("not listed: ") for note in found.notes[1:])
    assert found.candidates
    assert all(c.written for c in found.candidates)


def test_a_mesh_that_splits_a_dim_unevenly_is_not_said_to_be_like_another():
    """K=2 is in no 4 or 8 parts: X=2, Y=4 has the shape of X=4, Y=2, and no answer of its own."""
    text = """
    hardware tpu_v5e
    mesh X=2, Y=2
    dims B=8, D=16, K=2, L=2
    input x: [B_X, D]
    param W: [L, D_X, K_Y], V: [L, K_Y, D_X]
    layers L:
      x = x + tanh(x ·_D W) ·_K V
    """
    found = sl.best_meshes(sl.parse(text), 8, budget=20)
    uneven = "a dim is not split evenly there by the layouts of the text"

    assert f"not listed: X=2, Y=4; X=1, Y=8: {uneven}" in found.notes
    assert {(8, 1), (4, 2)} == {tuple(each.mesh.values()) for each in found.candidates}


STAGES = """
hardware tpu_v5p
mesh X=2, Z=2
dims B=64, D=64, E=64, L=12, i=6
accumulate i
schedule {schedule}
input x: [B_X, D]
layers L_Z:
  x[B_X, D] = x + gelu(x ·_D W[D, E]) ·_E V[E, D]
Out = mean_{B,D}(x)
"""


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        # 12 chips: Z is 1, 2, 3, 4, 6 or 12, all of which divide 12 layers
        ("1f1b", {1, 2, 3, 4, 6, 12}),
        # two chunks a stage: Z = 12 has no layers for them, and 4 and 12 divide no 6 microbatches
        ("interleaved, chunks 2", {1, 2, 3, 6}),
    ],
)
def test_stages_that_a_schedule_refuses_are_no_answer(schedule, expected):
    """By hand; what is left out is named with its reason, and every mesh is an answer or named."""
    text = STAGES.replace("{schedule}", schedule)
    found = sl.best_meshes(sl.parse(text), 12, strategy="book")
    said = " ".join(note for note in found.notes if note.startswith("not listed: "))
    every = {(x, z) for x, z in product(range(1, 13), repeat=2) if x * z == 12}
    # B = 64 is not divided by 3, 6 or 12
    even = {(x, z) for x, z in every if 64 % x == 0}

    assert found.meshes == len(every)
    assert {c.mesh["Z"] for c in found.candidates} == {z for _, z in even if z in expected}
    listed = {(c.mesh["X"], c.mesh["Z"]) for c in found.candidates}
    assert all((x, z) in listed or f"X={x}, Z={z}" in said for x, z in every)
    assert ("can't be divided into 12 stages of 2 chunks each" in said) == (schedule != "1f1b")


def test_no_mesh_has_a_schedule():
    """Five chips on one axis of stages: 12 layers have no five stages."""
    text = STAGES.replace("{schedule}", "1f1b")
    with pytest.raises(sl.ShardlangError, match=r"12 layers can't be divided into 5 stages"):
        sl.best_meshes(sl.parse(text.replace("mesh X=2, Z=2", "mesh X=1 @dcn, Z=2")), 5)


def test_answers_are_ranked_and_differ():
    """Times rise from one answer to the next, and no two are the same in everything."""
    program = sl.load("examples/mlp.shd")
    found = sl.best_meshes(program, 64).candidates
    keys = [(c.t_overlapped, c.t_serial, c.memory) for c in found]

    assert keys == sorted(keys)
    assert len(set(keys)) == len(keys)
    assert any(c.written for c in found)


@pytest.mark.parametrize(("hardware", "chips"), [(CHIP, 16), ("h100", 32), ("tpu_v5p 4x4x4", 64)])
def test_times_are_those_of_cost(hardware, chips):
    """What is ranked is what `cost` reports of the same plan, on nodes and slices too."""
    program = sl.load("examples/mlp.shd")
    for each in sl.best_meshes(program, chips, hardware=hardware).candidates[:3]:
        total = sl.cost(each.plan, hardware=hardware, model="link").total

        assert each.t_comms == total.quantity("t_comms").value
        assert each.t_math == total.quantity("t_math").value


def test_an_axis_across_nodes_has_the_ways_out_of_a_whole_node():
    """On 2 nodes of 8, W split over X=16 moves less than its gradient's AllReduce: 167.8 us, by brute force."""
    text = "mesh X\noptimizer adam\ndims B=4096, D=8192, F=8192\nx[B, D] · W[D, F] -> y[B, F]"
    best = sl.best_meshes(sl.parse(text), 16, hardware="h100").candidates[0]

    assert best.mesh == {"X": 16}
    assert float(best.t_overlapped) == pytest.approx(167.8e-6, rel=1e-3)


def test_axes_beyond_a_pod_cross_the_network():
    """512 chips of v5e are two pods of 256: the first axis is @dcn, the others lie inside."""
    program = sl.parse(f"mesh X, Y, Z\ndims B=256Ki, D=8192, F=32Ki\n{BLOCK}")
    best = sl.best_meshes(program, 512, hardware="tpu_v5e").candidates[0]
    networks = [(i.size, i.network) for i in best.plan.program.mesh.axes]

    assert networks[0] == (2, "dcn")
    assert {network for _, network in networks[1:]} == {"ici"}


def test_no_mesh_takes_more_axes_than_the_chips_have():
    """A v5e has two axes: of three in the program one at least is 1."""
    program = sl.parse(f"mesh X, Y, Z\ndims B=256Ki, D=8192, F=32Ki\n{BLOCK}")
    found = sl.best_meshes(program, 16, hardware="tpu_v5e")

    assert all(1 in c.mesh.values() for c in found.candidates)
    assert found.notes[0] == "tpu_v5e has 2 axes of the interconnect: no mesh takes more"
    assert all(note.startswith("not listed: ") for note in found.notes[1:])


def test_axes_that_the_program_puts_across_keep_their_sizes():
    """`P=2 @dcn` stays; the chips are divided over the other axes."""
    program = sl.parse(f"mesh P=2 @dcn, X, Y\ndims B=256Ki, D=8192, F=32Ki\n{BLOCK}")
    found = sl.best_meshes(program, 32, hardware=CHIP)

    assert {c.mesh["P"] for c in found.candidates} == {2}
    assert {prod(c.mesh.values()) for c in found.candidates} == {32}


MLP = ("plan", "examples/mlp.shd")


def test_the_command_prints_the_best_few(shardlang):
    """A heading, then a line of figures and a line of layouts each, in 80 columns."""
    lines = shardlang(*MLP, "--chips", "64", "--top", "2").out.splitlines()

    assert lines[0].startswith("64 chips of tpu_v5p with 96 GB each: 7 meshes")
    assert [line.split()[0] for line in lines if line[:1].isdigit() and line[1] == "."] == [
        "1.",
        "2.",
    ]
    assert max(map(len, lines)) <= 80


def test_the_command_as_data(shardlang):
    """JSON has the mesh, the layouts and the program of each answer, which reads back and costs the same."""
    data = json.loads(shardlang(*MLP, "--chips", "16", "--format", "json").out)
    best = data["candidates"][0]
    report = sl.cost(sl.lower(sl.parse(best["program"])), hardware=CHIP, model="link")

    assert (data["chips"], data["hardware"], data["finished"]) == (16, CHIP, True)
    assert float(report.total.quantity("t_comms").value) == best["t_comms"]
    assert set(best["layouts"]) == {"In", "W_in", "W_out", "Out"}


def test_written_layouts_alone(shardlang):
    """`--layouts written` changes the sizes of the axes and nothing else."""
    data = json.loads(
        shardlang(*MLP, "--chips", "16", "--layouts", "written", "--format", "json").out
    )

    assert {c["layouts"]["In"] for c in data["candidates"] if len(set(c["mesh"].values())) > 1} == {
        "In[B_X, D_Y]",
        "In[B_X, D]",
        "In[B, D_Y]",
    }
    assert all(c["written"] for c in data["candidates"])


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (("examples/mlp.shd",), 2, "--chips"),
        (("examples/mlp.shd", "--chips", "0"), 2, "not a count"),
        (("examples/mlp.shd", "--chips", "8", "--objective", "bytes"), 2, "ranked by time"),
        (("examples/dp.shd", "--chips", "8"), 1, "SH356"),
        (("examples/dp.shd", "--chips", "8", "--hardware", "h100"), 1, "SH351"),
        (("examples/mlp.shd", "--chips", "8", "--memory-limit", "1MB"), 1, "SH357"),
        (("examples/mlp.shd", "--chips", "7", "--layouts", "written"), 1, "SH359"),
        (
            ("examples/mlp.shd", "--chips", "9", "--mesh", "X=2 @dcn, Y"),
            1,
            "no multiple of the axes X",
        ),
    ],
)
def test_mistakes(shardlang, arguments, status, words):
    """What is missing or fits nowhere is said, with its code."""
    result = shardlang("plan", *arguments)

    assert (result.status, words in result.err) == (status, True)


def test_stated_collectives_keep_their_layouts(shardlang):
    """A program that states collectives is planned on each mesh as it is written, and a note says so."""
    text = "mesh X\ndims I=64, J=64\nhardware tpu_v5p\nAllGather_X(A[I_X, J]) -> A[I, J]\nB[I, J] = relu(A)"
    result = shardlang(
        "plan", *[x for line in text.splitlines() for x in ("-e", line)], "--chips", "4"
    )

    assert result.status == 0
    assert "layouts are not searched: the program states collectives" in result.out
