"""Cheapest plans of single einsums: known answers, boundaries, brute force, and the numbers."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass
from fractions import Fraction

import exhaustive
import numpy as np
import pytest
from test_reshard import array, as_layout, plain_mesh, simulator

import shardlang as sl
from shardlang.cost.flops import flops
from shardlang.ir.ops import (
    AllGather,
    AllReduce,
    AllToAll,
    Einsum,
    Rank,
    ReduceScatter,
    Reshape,
    Rotary,
    Slice,
    Top,
)
from shardlang.ir.plan import Step
from shardlang.ir.printer import axis_declaration
from shardlang.ir.types import Array, Axis, AxisInfo, Dim, DTYPES, Layout, Mesh, Tensor
from shardlang.planner.prices import mesh_of, price, Prices, seconds
from shardlang.planner.program import plan_program
from shardlang.planner.reshard import layouts, refined, refinements
from shardlang.planner.ways import ways
from shardlang.rules.collectives import permutable, relayout
from shardlang.rules.local import local

LETTERS = "IJKLM"


@dataclass(frozen=True)
class EinsumPlan:
    """The plan of a program of one einsum, and what it comes to."""

    steps: tuple[Step, ...]
    mesh: Mesh
    cost: Fraction
    flops: Fraction
    collectives: int


def plan_einsum(
    op: Einsum,
    operands: tuple[Array, ...],
    result: Array,
    mesh: Mesh,
    sizes: dict[str, int],
    prices: str | Prices = "link",
    *,
    rate: int | None = None,
    sub_axes: bool = False,
) -> EinsumPlan:
    """Write an einsum as a program, and plan that."""
    dims = {dim.name: sizes[dim.name] for each in (*operands, result) for dim in each.tensor.dims}
    lines = [f"mesh {', '.join(axis_declaration(info) for info in mesh.axes)}"] if mesh.axes else []
    lines += [f"dims {', '.join(f'{d}={n}' for d, n in dims.items())}"] if dims else []
    lines.append(f"dtype {result.tensor.dtype.name}")
    lines.append(f"{result} = {' * '.join(map(str, operands))}")
    program = sl.parse("\n".join(lines) + "\n")
    if rate is None:
        found = sl.lower(
            program,
            "optimal",
            prices=prices,
            objective="bytes",
            forward_only=True,
            sub_axes=sub_axes,
        )
    else:
        found = plan_program(program, prices, rate=rate, forward_only=True)
    assert found.proof is not None
    assert found.proof.optimal
    known = {**found.program.mesh.sizes, **sizes}
    work = sum(
        (flops(s).evaluate(known).number or Fraction(0) for s in found.forward if s.is_compute),
        Fraction(0),
    )
    paid = sum(
        (
            price(s.op, s.inputs[0], s.output, found.program.mesh, sizes, prices)
            for s in found.forward
            if not s.is_compute
        ),
        Fraction(0),
    )
    del op
    return EinsumPlan(
        found.forward,
        found.program.mesh,
        paid,
        work,
        sum(step.is_collective for step in found.forward),
    )


def plan(text: str, mesh: str, sizes: str, prices: str = "link") -> EinsumPlan:
    """Plan `A[I, J_X] * B[J, K] -> C[I, K]`; bytes are elements."""
    left, _, right = text.partition("->")
    operands = tuple(array(part.strip()) for part in left.split("*"))
    result = array(right.strip())
    known = {name: int(n) for name, _, n in (p.partition("=") for p in sizes.split(","))}
    return plan_einsum(
        contraction(operands, result), operands, result, mesh_of(mesh), known, prices
    )


def contraction(operands: tuple[Array, ...], result: Array) -> Einsum:
    """Give the einsum that sums the dims which the result lacks."""
    dims = dict.fromkeys(dim for each in operands for dim in each.tensor.dims)
    return Einsum(tuple(dim for dim in dims if dim not in result.tensor.dims))


def verify(
    found: EinsumPlan, operands: tuple[Array, ...], result: Array, mesh: str, sizes: dict[str, int]
) -> None:
    """Run a plan on random shards, and hold its price and FLOPs against those of its steps."""
    run = simulator(mesh_of(mesh), sizes)
    rng = np.random.default_rng(7)
    values = {}
    for each in operands:
        if each.name not in values:
            values[each.name] = rng.normal(size=[sizes[d.name] for d in each.tensor.dims])
            run.values[each] = run.scatter(each, values[each.name], rng)
    for step in found.steps:
        run.run(step)
    letters = {dim: "abcdefgh"[i] for i, dim in enumerate(map(Dim, LETTERS))}
    spelled = ",".join("".join(letters[d] for d in each.tensor.dims) for each in operands)
    out = "".join(letters[d] for d in result.tensor.dims)
    expected = np.einsum(f"{spelled}->{out}", *(values[each.name] for each in operands))
    np.testing.assert_allclose(run.collect(result), expected, rtol=1e-8, atol=1e-8)
    work = [step for step in found.steps if step.is_compute]
    known = {**mesh_of(mesh).sizes, **sizes}
    assert found.flops == sum(flops(step).evaluate(known).number or 0 for step in work)


CASES = {
    "1": ("A[N_S, M] * B[N_S, K] -> C[M, K]", "S=2", "N=8,M=8,K=8", 64),
    "1 unreduced": ("A[N_S, M] * B[N_S, K] -> C[M, K]{U_S}", "S=2", "N=8,M=8,K=8", 0),
    "2": ("A[F, H] * B[F_X, D_Y] -> C[H, D_Y]{U_X}", "X=2,Y=2", "F=6,H=10,D=14", 0),
    "2 three": ("A[F, H] * B[F_X, D_Y] * v[F] -> C[H, D_Y]{U_X}", "X=2,Y=2", "F=6,H=10,D=14", 0),
    "6": ("A[I, D_XY] * B[D_YX, J] -> C[I, J]{U_XY}", "X=2,Y=2", "I=64,D=64,J=4", 64),
    "6 small": ("A[I, D_XY] * B[D_YX, J] -> C[I, J]{U_XY}", "X=2,Y=2", "I=4,D=4,J=4", 4),
    "7": ("A[I_X, K] * B[K, J_Y] -> C[I_X, J_Y]", "X=4,Y=1", "I=8,K=8,J=8", 0),
    "9": ("A[I_X, J] * B[J, K_Y] * C[K_Y, L] -> D[I_X, L]{U_Y}", "X=2,Y=2", "I=4,J=4,K=4,L=4", 0),
    "11": ("H[A, B_N] * W[B_N, C] -> Y[A, C]", "N=8", "A=4,B=32,C=8", 56),
    "47": ("g[B_X] * x[B_X, K] -> G[B_X, K]", "X=2", "B=4,K=4", 0),
    "C3": ("A[I_X, K_Y] * B[K_Y, J] -> C[I, J_X]", "X=4,Y=2", "I=8,K=32,J=16", 46),
    "C7": ("A[I, J_X] * B[J, K] -> C[I, K]", "X=4", "I=4096,J=4096,K=16", 98304),
    "C7 scattered": ("A[I, J_X] * B[J, K] -> C[I, K_X]", "X=4", "I=4096,J=4096,K=16", 49152),
    "C9": ("A[B_X, D_Y] * W[D_X, F_Y] -> T[B_X, F_Y]", "X=4,Y=2", "B=64,D=512,F=2048", 58880),
}


@pytest.mark.parametrize("name", CASES)
def test_known_answers(name: str) -> None:
    """Reports and the table of beatable plans come out at their numbers, in elements."""
    text, mesh, sizes, cost = CASES[name]
    found = plan(text, mesh, sizes)

    assert cost == found.cost


def test_no_collective_runs_over_an_axis_of_size_one() -> None:
    """With Y=1 the plan of report 7 is the multiplication alone."""
    found = plan("A[I_X, K] * B[K, J_Y] -> C[I_X, J_Y]", "X=4,Y=1", "I=8,K=8,J=8")

    assert [Einsum] == [type(step.op) for step in found.steps]


def test_no_mesh_no_dims_and_partial_maxima() -> None:
    """Scalars, a mesh with no axes, and an operand of partial maxima are planned like the rest."""
    none = Mesh(())
    ends = array("A[I]"), array("s[]"), array("C[I]")
    assert [Einsum] == [
        type(s.op) for s in plan_einsum(Einsum(()), ends[:2], ends[2], none, {"I": 3}).steps
    ]
    most = Layout(((),), frozenset({Axis("X")}), "max")
    largest = ends[0].with_layout(most)
    found = plan_einsum(Einsum(()), (largest, ends[1]), ends[2], mesh_of("X=4"), {"I": 8})
    assert [AllReduce, Einsum] == [type(step.op) for step in found.steps]


def test_a_result_may_have_dims_of_its_own() -> None:
    """A dim that no operand has is a broadcast, whose split is free."""
    found = plan("A[I_X] * B[I_X] -> C[I_X, J_Y]", "X=2,Y=2", "I=4,J=4")

    assert [Einsum] == [type(step.op) for step in found.steps]
    assert found.cost == 0


def kinds(found: EinsumPlan) -> list[type]:
    """Give the operations that aren't free."""
    return [type(step.op) for step in found.steps if step.is_collective]


@pytest.mark.parametrize("k", [4, 8, 12, 20, 32, 44, 52, 64, 96])
def test_case_two_is_a_three_way_choice(k: int) -> None:
    """`A[I, J_X] * B[J, K] -> C[I, K]` at I=J=64, n=4 switches at K=16 and K=48."""
    found = plan("A[I, J_X] * B[J, K] -> C[I, K]", "X=4", f"I=64,J=64,K={k}")
    gather, both, reduce = 64 * 64, 64 * 64 // 4 + 64 * k, 2 * 64 * k

    assert Fraction(3, 4) * min(gather, both, reduce) == found.cost
    if k < 16:
        assert [AllReduce] == kinds(found)
    elif k < 48:
        assert [AllToAll, AllGather] == kinds(found)
    else:
        assert [AllGather] == kinds(found)


@pytest.mark.parametrize("k", [4, 12, 20, 28, 32])
def test_case_two_with_a_split_result(k: int) -> None:
    """Into `C[I_X, K]`: ReduceScatter iff K < J/n, else AllToAll; into `C[I, K_X]` iff K < J/(n-1)."""
    rows = plan("A[I, J_X] * B[J, K] -> C[I_X, K]", "X=4", f"I=64,J=64,K={k}")
    columns = plan("A[I, J_X] * B[J, K] -> C[I, K_X]", "X=4", f"I=64,J=64,K={k}")

    assert Fraction(3, 4) * min(64 * k, 64 * 64 // 4) == rows.cost
    assert [ReduceScatter if k < 16 else AllToAll] == kinds(rows)
    assert Fraction(3, 4) * min(64 * k, (64 * 64 + 64 * k) // 4) == columns.cost
    assert ([ReduceScatter] if 3 * k < 64 else [AllToAll, AllToAll]) == kinds(columns)


def test_case_two_unreduced_is_free() -> None:
    """Into `C[I, K]{U_X}` nothing moves: B is sliced."""
    found = plan("A[I, J_X] * B[J, K] -> C[I, K]{U_X}", "X=4", "I=64,J=64,K=64")

    assert [Slice, Einsum] == [type(step.op) for step in found.steps]


def test_ties_go_to_less_work() -> None:
    """Of plans that move equally much, the one that divides the work over idle axes is given."""
    found = plan("A[I, J] * B[J, K] -> C[I, K]{U_X}", "X=4,Y=2", "I=8,J=8,K=8")

    assert (0, 2 * 8**3 // 4) == (found.cost, found.flops)


def test_time_prefers_the_fast_axis_and_a_gather() -> None:
    """Replicated operands are split over the fast axis, by I or J and never by K (report 32)."""
    mesh = Mesh((AxisInfo(Axis("X"), 8, "dcn"), AxisInfo(Axis("Y"), 8)))
    ends = array("A[I, K]"), array("B[K, J]"), array("C[I, J]")
    sizes = dict.fromkeys("IJK", 512)
    found = plan_einsum(
        Einsum((Dim("K"),)), ends[:2], ends[2], mesh, sizes,
        seconds({"X": 10**6, "Y": 10**9}), rate=10**12,
    )  # fmt: skip

    assert [Slice, Einsum, AllGather] == [type(step.op) for step in found.steps]
    assert (Axis("Y"),) == found.steps[-1].op.axes
    assert (Fraction(512 * 512 * 7, 8 * 10**9), 2 * 512**3 // 8) == (found.cost, found.flops)


def test_sub_axes_divide_what_axes_cannot() -> None:
    """On sub-axes a plan is never dearer, and where it is cheaper it runs on the refined mesh."""
    ends = array("A[I_X, J_Y]"), array("B[I_Y, J_X]"), array("C[I_X, J_Y]")
    sizes = {"I": 64, "J": 64}
    mesh = mesh_of("X=4,Y=2")
    whole = plan_einsum(Einsum(()), ends[:2], ends[2], mesh, sizes)
    parts = plan_einsum(Einsum(()), ends[:2], ends[2], mesh, sizes, sub_axes=True)

    assert (960, 768) == (whole.cost, parts.cost)
    split = next(p for m, p in refinements(mesh, {Dim("I"), Dim("J")}) if m == parts.mesh)
    a, b, c = (refined(each, split) for each in ends)
    run = simulator(parts.mesh, sizes)
    rng = np.random.default_rng(1)
    left, right = rng.normal(size=(2, 64, 64))
    run.values = {a: run.scatter(a, left, rng), b: run.scatter(b, right, rng)}
    for step in parts.steps:
        run.run(step)
    np.testing.assert_allclose(run.collect(c), left * right)


DIMS = {
    2: (("IJ", "JK", "IK"), ("IJ", "IJ", "I"), ("IJ", "JI", "IJ"), ("IJ", "J", "I"),
        ("I", "J", "IJ"), ("IJ", "JK", "KI"), ("IJ", "I", "")),
    3: (("IJ", "JK", "K", "I"), ("I", "IJ", "J", ""), ("IJ", "J", "JK", "IK")),
    4: (("I", "IJ", "J", "J", "I"),),
}  # fmt: skip


def rank_three():
    """Give contractions with a batch dim or three dims in an operand."""
    return (("IJK", "KL", "IJL"), ("IJK", "IKL", "IJL"), ("IJK", "JK", "I"))


def compare(
    mesh: str, dims: tuple[str, ...], shape: dict[str, int], seed: int, prices: str
) -> None:
    """Hold one random case against the brute force, and run its plan."""
    rng = random.Random(seed)
    axes = plain_mesh(mesh)
    *operands, out = dims
    pools = [exhaustive.all_states(tuple(shape[d] for d in own), axes) for own in dims]
    states = [rng.choice(pool) for pool in pools]
    best = exhaustive.best_einsum(operands, states[:-1], out, states[-1], shape, axes, prices)
    arrays = [
        Array(Tensor(name, tuple(map(Dim, own)), DTYPES["int8"]), as_layout(state))
        for name, own, state in zip(("A", "B", "C", "D", "E"), dims, states, strict=False)
    ]
    inputs, result = tuple(arrays[:-1]), arrays[-1]
    found = plan_einsum(contraction(inputs, result), inputs, result, mesh_of(mesh), shape, prices)
    priced = sum(
        price(step.op, step.inputs[0], step.output, mesh_of(mesh), shape, prices)
        for step in found.steps
        if not step.is_compute
    )

    assert best is not None
    cost, work, collectives = best
    expected = (Fraction(cost, exhaustive.SCALE), work, collectives)
    summed = [dim for dim in {*"".join(operands)} if dim not in out]
    if len(operands) == 2 and all(dim in own for dim in summed for own in operands):
        assert expected == (found.cost, found.flops, found.collectives)
    else:  # sums taken first, or products of two, may move less than the whole at once
        assert found.cost <= expected[0]
    assert found.cost == priced
    # a plan's program has no axes of size 1
    apart = [each.with_layout(without_ones(each.layout, mesh)) for each in arrays]
    verify(found, tuple(apart[:-1]), apart[-1], mesh, shape)


def without_ones(layout: Layout, mesh: str) -> Layout:
    """Give a layout without the axes of size 1."""
    large = {info.axis for info in mesh_of(mesh).axes if info.size != 1}
    dims = tuple(tuple(axis for axis in axes if axis in large) for axes in layout.sharding)
    return Layout(dims, layout.unreduced & large, layout.reduction)


def sizes_for(rng: random.Random, largest: int) -> dict[str, int]:
    """Draw sizes that don't always divide, so that legality matters, and that differ."""
    return {d: rng.choice([n for n in (2, 4, 8, 12, 16, 6) if n <= largest]) for d in LETTERS}


@pytest.mark.parametrize("prices", ["link", "book", "switch"])
@pytest.mark.parametrize("dims", [*DIMS[2], *DIMS[3], *DIMS[4]], ids=",".join)
@pytest.mark.parametrize("mesh", ["X=4,Y=2", "X=2,Y=2", "X=3,Y=2", "X=4,Y=1"])
def test_brute_force_finds_nothing_cheaper(mesh: str, dims: tuple[str, ...], prices: str) -> None:
    """On two axes, price, FLOPs and number of collectives equal those of an independent search."""
    rng = random.Random(len(dims) * 7 + len(mesh))
    for seed in range(6):
        compare(mesh, dims, sizes_for(rng, 16), seed, prices)


@pytest.mark.parametrize("dims", [*DIMS[2][:4], *rank_three()], ids=",".join)
def test_brute_force_on_more_dims(dims: tuple[str, ...]) -> None:
    """The same with up to three dims an operand."""
    rng = random.Random(3)
    for seed in range(6):
        compare("X=2,Y=2", dims, sizes_for(rng, 8), seed, "link")


@pytest.mark.parametrize("dims", DIMS[2], ids=",".join)
def test_brute_force_on_three_axes(dims: tuple[str, ...]) -> None:
    """The same on three axes, where order and idle axes matter more."""
    rng = random.Random(4)
    for seed in range(4):
        compare("X=2,Y=2,Z=2", dims, sizes_for(rng, 8), seed, "link")


@pytest.mark.parametrize("prices", ["link", "book"])
def test_every_step_is_legal_by_the_rules(prices: str) -> None:
    """Collectives and the multiplication are typed by the rules as the plan says."""
    mesh = mesh_of("X=2,Y=2,Z=2")
    shape = dict.fromkeys("IJK", 8)
    rng = random.Random(1)
    pool = exhaustive.all_states((8, 8), plain_mesh("X=2,Y=2,Z=2"))
    for _ in range(60):
        left, right, result = (
            Array(Tensor(n, tuple(map(Dim, d)), DTYPES["bf16"]), as_layout(rng.choice(pool)))
            for n, d in (("A", "IJ"), ("B", "JK"), ("C", "IK"))
        )
        op = Einsum((Dim("J"),))
        found = plan_einsum(op, (left, right), result, mesh, shape, prices)
        for step in found.steps:
            if step.is_compute:
                assert local(step.op, step.inputs, step.output.tensor) == step.output.layout
            elif step.is_collective and step.rule == "reshard" and not step.op.axes:
                pytest.fail("a collective over no axes")
            elif hasattr(step.op, "dim") or isinstance(step.op, AllReduce):
                assert relayout(step.op, step.inputs[0]) == step.output.layout
            else:
                known = mesh.sizes
                ends = step.inputs[0].layout, step.output.layout
                assert permutable(*ends, known) or relayout(step.op, step.inputs[0]) == ends[1]


def test_an_operand_that_stands_twice_is_gathered_once() -> None:
    """`A[I_X, J]` times itself over J pays one gather where both places want it whole."""
    left = array("A[I_X, J]")
    twice = plan_einsum(
        Einsum((Dim("I"),)), (left, left), array("C[J]"), mesh_of("X=4"), {"I": 8, "J": 8}
    )

    assert [AllReduce] == kinds(twice)
    square = array("A[I, J_X]")
    sizes = {"I": 64, "J": 64}
    found = plan_einsum(Einsum(()), (square, square), array("C[I_X, J]"), mesh_of("X=4"), sizes)
    assert [AllToAll] == kinds(found)
    assert found.cost == 768
    verify(found, (square, square), array("C[I_X, J]"), "X=4", sizes)


@pytest.mark.parametrize("seed", range(20))
def test_a_shared_operand_never_costs_more(seed: int) -> None:
    """Sharing an operand's moves costs no more than planning two copies, and is right in numbers."""
    rng = random.Random(seed)
    mesh, sizes = "X=2,Y=2", {"I": 4, "J": 4}
    pool = exhaustive.all_states((4, 4), plain_mesh(mesh))
    one = array("A[I, J]").with_layout(as_layout(rng.choice(pool)))
    other = Array(Tensor("B", one.tensor.dims, one.tensor.dtype), one.layout)
    result = array("C[I, J]").with_layout(as_layout(rng.choice(pool)))
    shared = plan_einsum(Einsum(()), (one, one), result, mesh_of(mesh), sizes)
    apart = plan_einsum(Einsum(()), (one, other), result, mesh_of(mesh), sizes)

    assert shared.cost <= apart.cost
    verify(shared, (one, one), result, mesh, sizes)


IN_THE_TABLE = {
    "product": (Einsum((Dim("J"),)), ["A[I, J]", "B[J, K]", "C[I, K]"], {}),
    "rotary": (Rotary(Dim("J"), Dim("K")), ["A[I, J]", "B[K, I]", "C[J, I]"], {"K": 2}),
    "split": (Reshape((Dim("N"),), (Dim("J"), Dim("K"))), ["A[I, N]", "C[K, I, J]"], {"N": 16}),
    "split, used up": (
        Reshape((Dim("N"),), (Dim("J"), Dim("K"))), ["A[I, N]", "C[J, I, K]"], {"N": 8, "J": 2},
    ),
    "join": (Reshape((Dim("J"), Dim("K")), (Dim("N"),)), ["A[K, J]", "C[N]"], {"N": 16}),
    "join, used up": (
        Reshape((Dim("J"), Dim("K")), (Dim("N"),)), ["A[J, I, K]", "C[N, I]"], {"N": 8, "J": 2},
    ),
    "top": (Top(Dim("J"), Dim("K")), ["A[I, J]", "C[I, K]"], {"K": 2}),
    "rank": (Rank((Dim("J"), Dim("K"))), ["A[J, I, K]", "C[J, I, K]"], {}),
}  # fmt: skip
"""Operations of named arrays, with sizes other than 4."""


@pytest.mark.parametrize("name", IN_THE_TABLE)
def test_local_ways_are_those_that_the_rules_allow(name: str) -> None:
    """The roles give exactly the layouts that `rules.local` accepts, each once."""
    op, texts, more = IN_THE_TABLE[name]
    mesh, sizes = mesh_of("X=2,Y=2"), {**dict.fromkeys("IJK", 4), **more}
    ends = [array(text) for text in texts]
    graphs = [layouts(each, mesh, sizes) for each in ends]
    described = [(g.space, e.tensor.dims) for g, e in zip(graphs, ends, strict=True)]
    known = {**sizes, "X": 2, "Y": 2}
    listed = list(ways(op, described[:-1], described[-1], known))
    found = {(way.operands, way.result) for way in listed}
    allowed = set()
    for codes in itertools.product(*(graph.space.states() for graph in graphs[:-1])):
        inputs = tuple(
            each.with_layout(graph.space.decode(code))
            for each, graph, code in zip(ends, graphs, codes, strict=False)
        )
        made = local(op, inputs, ends[-1].tensor, sizes=known)
        if hasattr(made, "sharding"):
            allowed.add((codes, graphs[-1].space.encode(made)))

    assert len(listed) == len(found)
    assert allowed == found
