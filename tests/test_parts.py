"""Plans on parts of axes: against brute force on the finer mesh, in numbers, and in other programs."""

from __future__ import annotations

import random
from dataclasses import replace
from fractions import Fraction

import exhaustive
import layered
import pytest
from simulator import check_numbers
from strategies import random_chain, random_program
from test_optimal import brute, FORMS, moved, Small

import shardlang as sl
from shardlang.backends.jax.sizes import choose
from shardlang.ir.printer import print_plan
from shardlang.ir.types import Axis, AxisInfo
from shardlang.planner.bound import Folded
from shardlang.planner.build import build_plan
from shardlang.planner.formulate import build
from shardlang.planner.measure import total_of
from shardlang.planner.parts import finest, refine
from shardlang.planner.prices import prices_of
from shardlang.planner.program import best_plan
from shardlang.planner.search import search, Start
from shardlang.planner.solve import Task
from shardlang.verify.collectives import blocks

SWAP = "mesh X=4, Y=2\ndims I=64, J=64\ndtype int8\nA[I_X, J_Y] -> B[I_Y, J_X]\n"


def fine(problem: Small) -> Small:
    """Write a small program's axes of 4 as two of 2, the outer one first."""
    axes = {
        name: ((name, n),) if n == 2 else ((name + "1", 2), (name + "2", 2))
        for name, n in problem.axes
    }

    def state(old: exhaustive.State) -> exhaustive.State:
        splits, partial = old

        def parts(names: object) -> tuple[str, ...]:
            return tuple(part for name in names for part, _ in axes[name])

        return tuple(parts(split) for split in splits), frozenset(parts(sorted(partial)))

    return replace(
        problem,
        homes={name: state(home) for name, home in problem.homes.items()},
        ends={name: state(end) for name, end in problem.ends.items()},
        axes=tuple(axis for own in axes.values() for axis in own),
    )


def tiny(seed: int) -> tuple[Small, bool]:
    """Draw a program with an axis of 4; say whether its backward pass counts."""
    rng = random.Random(seed)
    both = rng.random() < 0.3
    axes: exhaustive.Axes = (("X", 4),) if both or rng.random() < 0.8 else (("X", 4), ("Y", 2))
    names = ["one"] if both or len(axes) > 1 else ["chain", "same weight", "function", "one"]
    dims, lines = FORMS[rng.choice(names)]
    made = {line.result for line in lines}
    read = {name for line in lines for name in line.operands}
    dims = {name: own for name, own in dims.items() if name in made | read}
    sizes = {dim: rng.choice((2, 4, 6, 8, 16)) for dim in "IJKL"}
    sizes = {dim: n for dim, n in sizes.items() if any(dim in own for own in dims.values())}

    def layout(name: str, *, partial: bool) -> exhaustive.State:
        pool = exhaustive.all_states(tuple(sizes[dim] for dim in dims[name]), axes)
        return rng.choice([state for state in pool if partial or not state[1]])

    homes = {name: layout(name, partial=False) for name in dims if name not in made}
    ends = {name: layout(name, partial=True) for name in made - read}
    return Small(dims, lines, homes, ends, sizes, axes, rng.choice(("link", "book"))), both


@pytest.mark.parametrize("batch", range(5))
def test_tiny_programs_against_brute_force_on_the_finer_mesh(batch):
    """Every joint choice of layouts on the finer mesh is tried: none moves less."""
    finer = 0
    for seed in range(batch * 30, batch * 30 + 30):
        problem, both = tiny(seed)
        plan = sl.lower(
            sl.parse(problem.text()),
            "optimal",
            prices=problem.network,
            keep_gathered=False,
            forward_only=not both,
            sub_axes=True,
        )
        assert plan.proof is not None
        assert plan.proof.optimal, problem.text()
        assert plan.proof.cost == moved(plan, problem.network)
        scaled = plan.proof.cost / 2 * exhaustive.SCALE
        other = fine(problem)
        found = brute(other.both_passes() if both else other, int(scaled))
        finer += len(plan.program.mesh.axes) > len(problem.axes)

        assert found == scaled, f"seed {seed}\n{problem.text()}\n{print_plan(plan)}"
    assert finer


def test_an_unequal_swap():
    """The swap of X=4 and Y=2 moves 768 bytes on parts of X, and 960 without (L = 512)."""
    program = sl.parse(SWAP)
    whole = sl.lower(program, "optimal", sub_axes=False)
    parts = sl.lower(program, "optimal")

    assert (960, 768) == (moved(whole), moved(parts))
    assert parts.proof is not None
    assert parts.proof.cost == 768
    assert "mesh X1=2 @part(X), X2=2 @part(X), Y=2" in print_plan(parts)
    check_numbers(parts)
    again = sl.lower(sl.parse(print_plan(parts)))
    assert again.forward == tuple(
        replace(step, rule=own.rule, reason=own.reason, span=own.span)
        for step, own in zip(parts.forward, again.forward, strict=True)
    )
    assert (
        sl.cost(parts, model="link").to_dict()["totals"]
        == sl.cost(again, model="link").to_dict()["totals"]
    )


@pytest.mark.jax
def test_an_unequal_swap_in_jax():
    """The module runs on the finer mesh, and its arrays lie as those of the whole axes do."""
    from shardlang.verify.runner import run_check

    parts = sl.lower(sl.parse(SWAP.replace("int8", "f32")), "optimal")
    result = run_check(parts)

    assert result.ok, result.to_text()
    assert "# X1, X2 are the parts of an axis X" in sl.emit_jax(parts)


@pytest.mark.parametrize("seed", range(40))
def test_refined_programs_mean_the_same(seed):
    """A program on a finer mesh has its leaves on the same devices, and its plan computes the same."""
    rng = random.Random(seed)
    program = sl.parse(random_chain(rng) if seed % 2 else random_program(rng))
    for mesh, parts in finest(program, most=None):
        other = refine(program, mesh, parts)
        plan = sl.lower(other)
        whole, numbers = choose(sl.lower(program)), choose(plan)
        for leaf, own in zip(program.leaves, other.leaves, strict=True):
            shape = tuple(whole.dims[dim] for dim in leaf.array.tensor.dims)
            assert blocks(leaf.array, shape, whole) == blocks(own.array, shape, numbers)
        check_numbers(plan, seed)


@pytest.mark.parametrize("seed", [4, 6, 11, 19, 25, 31])
def test_random_programs_on_parts(seed):
    """Plans on parts compute the right numbers, read back the same, and are never dearer."""
    rng = random.Random(seed)
    program = sl.parse(random_chain(rng) if seed % 2 else random_program(rng, statements=2))
    whole = sl.lower(program, "optimal", sub_axes=False, budget=10)
    plan = sl.lower(program, "optimal", sub_axes=True, budget=20)

    assert plan.proof is not None
    assert plan.proof.cost == moved(plan) <= moved(whole)
    check_numbers(plan, seed)
    printed = print_plan(plan)
    assert [x for x in sl.check(printed, explicit=True) if x.severity == "error"] == []
    assert moved(sl.lower(sl.parse(printed))) == plan.proof.cost


@pytest.mark.parametrize("kind", ["mlp", "two", "attention"])
def test_searches_on_finer_meshes_begin_at_the_whole_plan(kind):
    """With no time to search anything, the plan on a finer mesh is the one that it began at, or cheaper."""
    text = layered.program(kind, 0, "L=2")
    source = sl.parse(text.replace("X=2, Y=2", "X=4, Y=2").replace("E=4", "E=8"))
    whole = best_plan(source, sub_axes=False, budget=20)
    assert whole.proof is not None
    rules = []
    for mesh, parts in finest(source, most=3):
        fine_program = refine(source, mesh, parts)
        task = Task.of(fine_program)
        problem = build(task.books[0], prices_of("link"), kept=task.may)
        folded = Folded(problem)
        found = search(problem, folded, Start(whole, parts), lambda: True)
        plan = build_plan(problem, folded.trees, found.ways, task.books[0])
        assert total_of(plan, problem) <= whole.proof.cost
        rules.append(total_of(task.books[0], problem))

    assert rules
    assert min(rules) > whole.proof.cost


def test_reshard_from_the_library_on_parts():
    """`sl.reshard` takes parts of axes where it is asked to."""
    ends = ("A[I_X, J_Y]", "A[I_Y, J_X]", "X=4,Y=2", {"I": 64, "J": 64})

    assert (1920, 1536) == (sl.reshard(*ends).cost, sl.reshard(*ends, sub_axes=True).cost)
    assert 1536 == sl.reshard_cost(*ends, sub_axes=True)


def test_meshes_that_are_tried():
    """Only the finest count, of few axes unless asked for; sizes without factors have none."""

    def shapes(text: str, most: int | None) -> list[tuple[int, ...]]:
        program = sl.parse(f"mesh {text}\ndims I=4096\nA[I] -> B[I]\n")
        return [tuple(info.size for info in mesh.axes) for mesh, _ in finest(program, most=most)]

    assert [(2, 2)] == shapes("X=4", 3)
    assert [(2, 2, 2)] == shapes("X=8", 3)
    assert [(2, 4, 2), (4, 2, 2)] == shapes("X=8, Y=2", 3)
    assert [(2, 2, 2, 2)] == shapes("X=8, Y=2", None)
    assert [(2, 2, 3), (2, 3, 2), (3, 2, 2)] == shapes("X=12", 3)
    assert [] == shapes("X=7, Y=3", None)
    assert [] == shapes("X=4, Y=4, Z=2", 3)


def test_sizes_by_axes_and_networks_are_kept():
    """A dim sized by an axis keeps its size, and a part its axis' network and links."""
    text = "mesh X=4 @ici(2), Y=4 @dcn\ndims I=16*X, J=16*Y\nA[I_X, J_Y] -> B[I_Y, J]\n"
    program = sl.parse(text)
    mesh, parts = finest(program, most=None)[0]
    other = refine(program, mesh, parts)

    wholes = [(i.axis.name, i.size, i.network, i.links, str(i.whole)) for i in mesh.axes]
    assert [
        ("X1", 2, "ici", 2, "X"),
        ("X2", 2, "ici", 2, "X"),
        ("Y1", 2, "dcn", 1, "Y"),
        ("Y2", 2, "dcn", 1, "Y"),
    ] == wholes
    plan = sl.lower(other)
    again = sl.parse(print_plan(plan))
    assert again.mesh == mesh
    assert again.sizes.known == other.sizes.known
    assert "dims I=16*X1*X2, J=16*Y1*Y2" in print_plan(plan)


def test_parts_share_the_links_of_their_axis():
    """A collective over both parts takes the time of the whole axis; over one, others share its links.

    By hand, for 1024 bytes a device: two Permutes over X1 and Y, two AllToAlls over X2, W = 180 GB/s.
    """
    whole = "mesh X=4\nhardware tpu_v5p\ndims I=4096, J=4096\nforward:\n"
    parts = whole.replace("X=4", "X1=2 @part(X), X2=2 @part(X)")
    times = [
        sl.cost(sl.lower(sl.parse(text)), model="link").to_dict()["totals"]["total"]["t_serial"][
            "seconds"
        ]
        for text in (
            whole + "B[I, J] = AllGather_X(A[I_X, J])\n",
            parts + "B[I, J] = AllGather_{X1,X2}(A[I_{X1,X2}, J])\n",
        )
    ]
    assert times[0] == pytest.approx(times[1])

    program = sl.parse(SWAP.replace("dtype int8", "hardware tpu_v5p"))
    plan = sl.lower(program, "optimal", objective="serial", sub_axes=True)
    assert plan.proof is not None
    # seconds of plans: 1024 bytes over both axes, and V/4 = 512 bytes over X, as if nobody shared it
    assert float(plan.proof.cost) == pytest.approx(2 * 1024 / 360e9 + 2 * 512 / 180e9)
    # `link`: links of 90 GB/s one way, two of Y and half of X's two; and half a shard over one link
    report = sl.cost(plan, model="link", sets={"T_hop": 0}).to_dict()
    expected = 2 * 1024 / (3 * 90e9) + 2 * 512 / 90e9
    assert report["totals"]["total"]["t_serial"]["seconds"] == pytest.approx(expected)


def test_a_mesh_line_says_what_an_axis_is_part_of():
    """`@part(X)` is read and printed, beside a network; said twice or of nothing it is an error."""
    mesh = sl.parse("mesh X1=2 @part(X) @dcn(2), X2=2 @part(X)\nA[I_{X1,X2}] -> B[I]\n").mesh

    assert AxisInfo(Axis("X1"), 2, "dcn", 2, Axis("X")) == mesh.axes[0]
    assert [Axis("X"), Axis("X")] == [info.wire for info in mesh.axes]
    for text, code in (("@part", "SH233"), ("@part(3)", "SH233"), ("@part(X) @part(Y)", "SH214")):
        found = sl.check(f"mesh Z=2 {text}\nA[I_Z] -> B[I]\n")
        assert [code] == [d.code for d in found]


def test_fractions_of_prices_stay_exact():
    """What the plan claims on parts is what its steps cost, to the fraction."""
    plan = sl.lower(sl.parse(SWAP.replace("64", "60")), "optimal", sub_axes=True)
    assert plan.proof is not None

    assert isinstance(plan.proof.cost, Fraction)
    assert plan.proof.cost == moved(plan)
