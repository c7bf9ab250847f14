"""Cheapest reshards: known answers, brute force, the laws of distances, and the numbers moved."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass
from fractions import Fraction

import exhaustive
import numpy as np
import pytest
from simulator import Simulator

import shardlang as sl
from shardlang.diagnostics import ShardlangError
from shardlang.ir.ops import AllGather, AllReduce, AllToAll, Permute, ReduceScatter, Slice
from shardlang.ir.plan import Plan
from shardlang.ir.printer import statement
from shardlang.ir.program import Program
from shardlang.ir.types import Array, Axis, AxisInfo, Dim, DTYPES, Layout, Mesh, Tensor
from shardlang.planner.prices import Link, mesh_of, Moved, price, PRICES, seconds, Wide
from shardlang.planner.reshard import layouts, read, refined, refinements, reshard, reshard_cost
from shardlang.planner.states import COLLECTIVE, MOVE, scaled, UNIT
from shardlang.rules.collectives import relayout
from shardlang.source import Source

MESHES = ("X=2,Y=2", "X=4,Y=2", "X=2,Y=3", "X=2,Y=2,Z=2", "X=4,Y=2,Z=2", "X=2,Y=1,Z=2", "X=8")


def array(text: str) -> Array:
    """Read `A[I_XY, J]{U_Z}` as an array of bytes, so that bytes are elements."""
    name, dims, state = exhaustive.read(text)
    return Array(Tensor(name, tuple(map(Dim, dims)), DTYPES["int8"]), as_layout(state))


def as_layout(state: exhaustive.State) -> Layout:
    """Give a layout from the brute force's own form."""
    splits, partial = state
    sharding = tuple(tuple(Axis(a) for a in axes) for axes in splits)
    return Layout(sharding, frozenset(map(Axis, partial)))


def plain_mesh(text: str) -> exhaustive.Axes:
    """Give a mesh as the brute force has it."""
    return tuple(sorted((a, size) for a, size in mesh_of(text).sizes.items()))


def simulator(mesh: Mesh, sizes: dict[str, int]) -> Simulator:
    """Make a numpy mesh with no program on it."""
    program = Program(Source("test", ""), mesh, (), (), ())
    return Simulator(Plan(program, "test", (), (), ()), {**mesh.sizes, **sizes})


def moved_right(route, sizes: dict[str, int], seed: int = 0) -> None:
    """Run a route on random shards, partial sums of mixed signs included."""
    run = simulator(route.mesh, sizes)
    rng = np.random.default_rng(seed)
    value = rng.normal(size=[sizes[d.name] for d in route.source.tensor.dims])
    run.values[route.source] = run.scatter(route.source, value, rng)
    for step in route.steps:
        run.run(step)
    np.testing.assert_allclose(run.collect(route.target), value, rtol=1e-9, atol=1e-9)


@dataclass(frozen=True)
class Case:
    """A reshard, its cost in elements, and the operations of the route where they are settled."""

    source: str
    target: str
    mesh: str
    sizes: str
    cost: int
    steps: tuple[str, ...] | None = None


CASES = {
    "19 swap": Case("A[I_X, J_Y]", "A[I_Y, J_X]", "X=4,Y=4", "I=64,J=64", 256,
        ("A[I_Y, J_X] = Permute(A[I_X, J_Y])",)),
    "19 unequal swap": Case("A[I_X, J_Y]", "A[I_Y, J_X]", "X=4,Y=2", "I=64,J=64", 960),
    "6 small": Case("A[I, D_XY]", "A[I, D_YX]", "X=2,Y=2", "I=4,D=4", 4),
    "6 large": Case("A[D_YX, J]", "A[D_XY, J]", "X=2,Y=2", "D=64,J=4", 64),
    "21": Case("A[I_X, J]", "A[I, J_WYZ]", "W=2,X=2,Y=2,Z=2", "I=16,J=16", 16,
        ("A[I_X, J_WYZ] = Slice_{WYZ,J}(A[I_X, J])", "A[I, J_WYZ] = AllGather_X(A[I_X, J_WYZ])")),
    "22": Case("A[I_X, J]", "A[I, J_X]", "X=4", "I=64,J=64", 768,
        ("A[I, J_X] = AllToAll_{X,J}(A[I_X, J])",)),
    "24": Case("g[D]{U_XY}", "g[D_XY]", "X=4,Y=2", "D=16", 14,
        ("g[D_XY] = ReduceScatter_{XY,D}(g[D]{U_XY})",)),
    "26": Case("A[I_Y, J, K_X]", "A[I, J_XY, K]", "X=4,Y=2", "I=16,J=16,K=16", 640,
        ("A[I_Y, J_X, K] = AllToAll_{X,J}(A[I_Y, J, K_X])",
         "A[I, J_XY, K] = AllToAll_{Y,J}(A[I_Y, J_X, K])")),
    "27": Case("A[I, J]{U_XY}", "A[I_X, J]", "X=4,Y=2", "I=64,J=64", 4096,
        ("A[I_X, J]{U_Y} = ReduceScatter_{X,I}(A[I, J]{U_XY})",
         "A[I_X, J] = AllReduce_Y(A[I_X, J]{U_Y})")),
    "29": Case("C[I_X, J]{U_Y}", "C[I_X, J_Y]", "X=4,Y=2", "I=64,J=64", 512,
        ("C[I_X, J_Y] = ReduceScatter_{Y,J}(C[I_X, J]{U_Y})",)),
    "31": Case("A[I, J_XY, K]", "A[I_XY, J, K]", "X=4,Y=4", "I=64,J=64,K=8", 1920,
        ("A[I_XY, J, K] = AllToAll_{XY,I}(A[I, J_XY, K])",)),
    "34": Case("D[D, F_Y]{U_X}", "D[D, F_Y]", "X=4,Y=2", "D=64,F=64", 2 * 64 * 64 // 2 * 3 // 4,
        ("D[D, F_Y] = AllReduce_X(D[D, F_Y]{U_X})",)),
    "39 slice": Case("W[D, F]{U_C}", "W[D, F_X]{U_C}", "C=2,X=4", "D=64,F=64", 0,
        ("W[D, F_X]{U_C} = Slice_{X,F}(W[D, F]{U_C})",)),
    "39 then": Case("W[D, F_X]{U_C}", "W[D, F_X]", "C=2,X=4", "D=64,F=64", 1024,
        ("W[D, F_X] = AllReduce_C(W[D, F_X]{U_C})",)),
    "39 at once": Case("W[D, F]{U_C}", "W[D, F_X]", "C=2,X=4", "D=64,F=64", 1024),
    "idle axis": Case("A[I, J]{U_X}", "A[I, J]", "X=4,Y=2", "I=64,J=64", 5120,
        ("A[I_Y, J]{U_X} = Slice_{Y,I}(A[I, J]{U_X})",
         "A[I_YX, J] = ReduceScatter_{X,I}(A[I_Y, J]{U_X})",
         "A[I, J] = AllGather_YX(A[I_YX, J])")),
    "idle axis busy": Case("A[I, J_Y]{U_X}", "A[I, J_Y]", "X=4,Y=2", "I=64,J=64", 3072,
        ("A[I, J_Y] = AllReduce_X(A[I, J_Y]{U_X})",)),
    "idle permute": Case("A[I_X, J]", "A[I_Y, J]", "X=4,Y=4", "I=64,J=64", 1024,
        ("A[I_Y, J] = Permute(A[I_X, J])",)),
    "mask": Case("A[I, J]", "A[I, J]{U_XY}", "X=4,Y=2", "I=4,J=4", 0,
        ("A[I, J]{U_XY} = Mask_XY(A[I, J])",)),
    "11": Case("Y[A, C]{U_N}", "Y[A, C]", "N=8", "A=4,C=8", 56,
        ("Y[A, C] = AllReduce_N(Y[A, C]{U_N})",)),
    "51": Case("g[K]{U_Y}", "g[K]", "Y=4", "K=16", 24),
    "scalar": Case("s[]{U_X}", "s[]", "X=4", "", 3 * 2 // 4),
}  # fmt: skip


def given(case: Case) -> dict[str, int]:
    """Give a case's sizes."""
    return {
        name: int(size)
        for name, _, size in (p.partition("=") for p in case.sizes.split(","))
        if name
    }


@pytest.mark.parametrize("name", [name for name in CASES if name != "scalar"])
def test_known_answers(name: str) -> None:
    """Reports of other systems' users come out at their numbers, and the data is right."""
    case = CASES[name]
    route = reshard(array(case.source), array(case.target), case.mesh, given(case))

    assert case.cost == route.cost
    if case.steps is not None:
        assert case.steps == tuple(map(statement, route.steps))
    moved_right(route, given(case))


def test_scalars_have_layouts_too() -> None:
    """An array of no dims is reduced like any other, at a cost of 2(n-1)/n of its element."""
    route = reshard(array("s[]{U_X}"), array("s[]"), "X=4")

    assert Fraction(3, 2) == route.cost
    moved_right(route, {})


def test_dropping_a_reduction_fails_in_numbers() -> None:
    """The numeric check sees a missing AllReduce (report 27), so that its passing means something."""
    sizes = {"I": 8, "J": 8}
    route = reshard(array("A[I, J]{U_XY}"), array("A[I_X, J]"), "X=4,Y=2", sizes)
    run = simulator(route.mesh, sizes)
    rng = np.random.default_rng(1)
    value = rng.normal(size=(8, 8))
    run.values[route.source] = run.scatter(route.source, value, rng)
    run.run(route.steps[0])
    run.values[route.target] = run.values[route.steps[0].output]

    with pytest.raises(AssertionError):
        np.testing.assert_allclose(run.collect(route.target), value)


def test_sub_axes_make_an_unequal_swap_cheaper() -> None:
    """Splitting X=4 into 2 and 2 swaps I_X, J_Y for 768 instead of 960, with steps that run."""
    sizes = {"I": 64, "J": 64}
    ends = array("A[I_X, J_Y]"), array("A[I_Y, J_X]")
    route = reshard(*ends, "X=4,Y=2", sizes, sub_axes=True)

    assert (768, 960) == (route.cost, reshard_cost(*ends, "X=4,Y=2", sizes))
    assert (2, 2, 2) == tuple(info.size for info in route.mesh.axes)
    moved_right(route, sizes)
    same = reshard(array("A[I_X, J]"), array("A[I, J_X]"), "X=4,Y=2", sizes, sub_axes=True)
    assert ("X", "Y") == same.mesh.names


def test_sub_axes_lie_on_the_same_devices() -> None:
    """An array on a refined mesh has the same shard on each device, in the same order."""
    mesh, sizes = mesh_of("X=4,Y=6"), {"I": 24, "J": 24}
    for text in ("A[I_X, J_Y]", "A[I_YX, J]", "A[J_XY, I]"):
        coarse = array(text)
        value = np.arange(24.0 * 24).reshape(24, 24)
        run = simulator(mesh, sizes)
        whole = [run.region(coarse, device, value.shape) for device in run.devices()]
        for finer, parts in refinements(mesh, set(coarse.tensor.dims)):
            other = simulator(finer, sizes)
            fine = [other.region(refined(coarse, parts), d, value.shape) for d in other.devices()]

            assert whole == fine


def pairs(mesh: str, shape: tuple[int, ...], count: int, seed: int):
    """Draw pairs of layouts that a shape allows."""
    rng = random.Random(seed)
    states = exhaustive.all_states(shape, plain_mesh(mesh))
    return [(rng.choice(states), rng.choice(states)) for _ in range(count)]


SHAPES = ((16,), (8, 8), (4, 6), (16, 16, 8))


@pytest.mark.parametrize("prices", ["link", "book", "switch"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("mesh", MESHES)
def test_brute_force_finds_nothing_cheaper(mesh: str, shape: tuple[int, ...], prices: str) -> None:
    """Cost and number of collectives equal those of an independent search, and routes are right."""
    if len(shape) == 3 and mesh.count("=") == 3:
        shape = (8, 4, 4)
    axes = plain_mesh(mesh)
    sizes = dict(zip("IJK", shape, strict=False))
    tensor = Tensor("A", tuple(map(Dim, sizes)), DTYPES["int8"])
    for number, (before, after) in enumerate(pairs(mesh, shape, 8, len(mesh) + sum(shape))):
        source, target = (Array(tensor, as_layout(state)) for state in (before, after))
        route = reshard(source, target, mesh, sizes, prices)
        table = exhaustive.distances(before, shape, axes, prices)
        cost, collectives = divmod(table[after], exhaustive.MANY)
        assert (Fraction(cost, exhaustive.SCALE), collectives) == (route.cost, route.collectives)
        priced = sum(
            price(step.op, step.inputs[0], step.output, route.mesh, sizes, prices)
            for step in route.steps
        )
        assert route.cost == priced
        moved_right(route, sizes, seed=number)


@pytest.mark.parametrize("prices", ["link", "book"])
@pytest.mark.parametrize(
    ("mesh", "rank"), [("X=4,Y=2", 2), ("X=2,Y=2", 3), ("X=2,Y=2,Z=2", 2), ("X=3,Y=2,Z=2", 1)]
)
def test_distances_are_a_metric(mesh: str, rank: int, prices: str) -> None:
    """Over all states: zero from a state to itself alone or freely, and the triangle inequality."""
    text = f"A[{', '.join('IJK'[:rank])}]"
    graph = layouts(array(text), mesh_of(mesh), dict.fromkeys("IJK", 24), prices)
    states = graph.space.states()
    table = np.array([
        [graph.space.distances_from(a).get(b, -1) for b in states] for a in states
    ])  # fmt: skip

    assert (table >= 0).all()
    assert (np.diag(table) == 0).all()
    for middle in range(len(states)):
        through = table[:, middle, None] + table[None, middle, :]
        assert (table <= through).all()


def test_states_count_as_in_the_survey() -> None:
    """The graph has the 18, 28, 176 and 1240 states that the closed form gives."""
    found = []
    for axes, rank in (("XY", 2), ("XY", 3), ("XYZ", 3), ("WXYZ", 3)):
        mesh = mesh_of(dict.fromkeys(axes, 2))
        text = f"A[{', '.join('IJK'[:rank])}]"
        found.append(len(layouts(array(text), mesh, dict.fromkeys("IJK", 16)).space.states()))

    assert [18, 28, 176, 1240] == found


@pytest.mark.parametrize(
    ("mesh", "shape"), [("X=4,Y=2", (8, 8)), ("X=2,Y=2,Z=1", (4, 4)), ("X=2,Y=2,Z=2", (8, 4))]
)
@pytest.mark.parametrize("prices", ["link", "axes"])
def test_edges_read_backwards_are_the_same(mesh, shape, prices) -> None:
    """What leads to a state is exactly what leaves the others for it, at the same weight."""
    sizes = dict(zip("IJ", shape, strict=True))
    table = seconds({"X": 1, "Y": 2, "Z": 5}) if prices == "axes" else prices
    graph = layouts(array("A[I, J]"), mesh_of(mesh), sizes, table)
    space = graph.space
    nodes = set(space.states())
    for state in list(nodes):
        nodes.update(node for node, _ in space.successors(state))
    forward = {(a, b, w) for a in nodes for b, w in space.successors(a)}
    backward = {(a, b, w) for b in nodes for a, w in space.predecessors(b)}

    assert forward == backward


@pytest.mark.parametrize("mesh", ["X=4,Y=2", "X=2,Y=2,Z=2", "X=2,Y=1,Z=2"])
def test_renaming_changes_no_price(mesh: str) -> None:
    """Exchanging two dims, or two axes of equal size, leaves every distance as it was."""
    sizes = {"I": 16, "J": 16}
    graph = layouts(array("A[I, J]"), mesh_of(mesh), sizes)
    known = mesh_of(mesh).sizes

    def dims_exchanged(layout: Layout) -> Layout:
        return Layout(layout.sharding[::-1], layout.unreduced)

    names = next(
        ((a, b) for a, b in itertools.combinations(known, 2) if known[a] == known[b]), ("X", "X")
    )
    swap = {Axis(names[0]): Axis(names[1]), Axis(names[1]): Axis(names[0])}

    def axes_exchanged(layout: Layout) -> Layout:
        sharding = tuple(tuple(swap.get(a, a) for a in axes) for axes in layout.sharding)
        return Layout(sharding, frozenset(swap.get(a, a) for a in layout.unreduced))

    rng = random.Random(5)
    states = [graph.space.decode(code) for code in graph.space.states()]
    for _ in range(200):
        a, b = rng.choice(states), rng.choice(states)
        weight = graph.distance(a, b)

        assert weight == graph.distance(dims_exchanged(a), dims_exchanged(b))
        assert weight == graph.distance(axes_exchanged(a), axes_exchanged(b))


def test_answers_do_not_depend_on_what_was_asked_before() -> None:
    """A route is the same in a fresh graph and in one that has answered other questions."""
    sizes, mesh = {"I": 48, "J": 48}, "X=2,Y=2,Z=2"
    ends = array("A[I_XY, J]{U_Z}"), array("A[I_Z, J_X]")
    first = reshard(*ends, mesh, sizes)
    graph = layouts(array("A[I, J]"), mesh_of(mesh), sizes)
    for code in graph.space.states()[::7]:
        graph.space.distances_from(code)
    other = {"I": 96, "J": 48}

    assert first.steps == reshard(*ends, mesh, sizes).steps
    assert [s.op for s in first.steps] == [s.op for s in reshard(*ends, mesh, other).steps]
    assert 2 * first.cost == reshard_cost(*ends, mesh, other)


def test_every_step_is_legal_by_the_rules() -> None:
    """The rules of collectives give each step the layout that the route claims."""
    mesh, sizes = "X=2,Y=2,Z=2", {"I": 8, "J": 8}
    for before, after in pairs(mesh, (8, 8), 150, 3):
        tensor = Tensor("A", (Dim("I"), Dim("J")), DTYPES["bf16"])
        route = reshard(
            Array(tensor, as_layout(before)), Array(tensor, as_layout(after)), mesh, sizes
        )
        at = route.source
        for step in route.steps:
            assert step.inputs == (at,)
            if not isinstance(step.op, Permute):
                assert relayout(step.op, at) == step.output.layout
            at = step.output

        assert at == route.target


def test_a_permute_is_a_bijection_of_devices_on_its_axes() -> None:
    """Each device sends one shard and gets one, along the named axes alone, idle ones included."""
    mesh, sizes = mesh_of("X=2,Y=2,Z=4"), {"I": 16, "J": 16}
    graph = layouts(array("A[I, J]"), mesh, sizes)
    run = simulator(mesh, sizes)
    rng = random.Random(2)
    seen = 0
    for code in rng.sample(graph.space.states(), 90):
        source = array("A[I, J]").with_layout(graph.space.decode(code))
        for hub, _ in graph.space.successors(code):
            if not hub & graph.space.hub:
                continue
            for other, _ in graph.space.successors(hub):
                if other == code:
                    continue
                target = source.with_layout(graph.space.decode(other))
                ((op, _),) = graph.space.relayouts([code, hub, other], graph.dims)
                assert isinstance(op, Permute)
                fixed = [i for i, axis in enumerate(run.axes) if axis not in op.axes]

                def places(layout, fixed=fixed):
                    found: dict[object, int] = {}
                    for device in run.devices():
                        block = str(run.region(layout, device, (16, 16)))
                        key = (block, *(device[i] for i in fixed))
                        found[key] = found.get(key, 0) + 1
                    return found

                assert places(source) == places(target)
                seen += 1

    assert seen > 100


def test_axes_of_size_one_never_move_anything() -> None:
    """Over an axis of size 1 every change of layout is free, under every price list."""
    for prices in PRICES:
        for before, after in (
            ("A[I_YX, J]", "A[I_X, J]"),
            ("A[I_X, J_Y]", "A[I_X, J]"),
            ("A[I_X, J]{U_Y}", "A[I_XY, J]"),
            ("A[I_X, J]", "A[I_YX, J]"),
        ):
            route = reshard(array(before), array(after), "X=4,Y=1", {"I": 8, "J": 8}, prices)

            assert route.cost == 0
            moved_right(route, {"I": 8, "J": 8})


def test_partial_maxima_are_finished_first() -> None:
    """Maxima are combined by AllReduce alone, masked or added to only after that."""
    layout = Layout(((), ()), frozenset({Axis("X")}), "max")
    sizes = {"I": 8, "J": 8}
    source = array("A[I, J]").with_layout(layout)
    route = reshard(source, array("A[I_X, J]"), "X=4", sizes)

    assert [AllReduce, Slice] == [type(step.op) for step in route.steps]
    assert reshard(source, array("A[I, J]{U_X}"), "X=4", sizes).collectives == 1
    with pytest.raises(ShardlangError) as caught:
        reshard(array("A[I, J]"), source, "X=4", sizes)
    assert ["SH353"] == [d.code for d in caught.value.diagnostics]


@pytest.mark.parametrize(
    ("source", "target", "mesh", "sizes", "code", "words"),
    [
        ("x[I_X, J]", "x[I, J]", "X=4", {"I": 5, "J": 8}, "SH352", ["I", "5", "4"]),
        ("x[I_X, J]", "x[I, J]", "X=4", {"I": 8}, "SH351", ["J"]),
        ("x[I_X, J_X]", "x[I, J]", "X=4", {"I": 8, "J": 8}, "SH355", ["X twice"]),
        ("x[I_Z, J]", "x[I, J]", "X=4", {"I": 8, "J": 8}, "SH355", ["Z"]),
        ("x[I_X, J]", "x[I, K]", "X=4", {"I": 8, "J": 8, "K": 8}, "SH354", ["x[I_X, J]"]),
    ],
)
def test_what_can_be_wrong_is_said(source, target, mesh, sizes, code, words) -> None:
    """An uneven split, a missing size and another tensor each have an error that names them."""
    with pytest.raises(ShardlangError) as caught:
        reshard_cost(array(source), array(target), mesh, sizes)

    (diagnostic,) = caught.value.diagnostics
    assert code == diagnostic.code
    assert all(word in diagnostic.message for word in words)


def test_sizes_may_stay_symbols() -> None:
    """Without sizes of dims the route is that of sizes that divide, and the price a product."""
    ends = array("A[I_Y, J, K_X]"), array("A[I, J_XY, K]")
    route = reshard(*ends, "X=4,Y=2")
    small = reshard(*ends, "X=4,Y=2", {"I": 16, "J": 16, "K": 16})

    assert "5*I*J*K/32" == str(route.price)
    assert route.price.evaluate({"I": 16, "J": 16, "K": 16}).number == small.cost
    assert route.steps == small.steps
    assert reshard_cost(ends[0], ends[0], "X=4,Y=2") == 0


def test_uneven_intermediate_splits_are_avoided() -> None:
    """A route takes no layout that a dim doesn't divide into, though it would be cheaper."""
    ends = array("A[I]{U_X}"), array("A[I]")
    found = {n: reshard(*ends, "X=4,Y=2", {"I": n}) for n in (3, 4, 8)}

    assert {3: Fraction(9, 2), 4: 5, 8: 10} == {n: route.cost for n, route in found.items()}
    assert [AllReduce] == [type(step.op) for step in found[3].steps]
    assert [Slice, AllReduce, AllGather] == [type(step.op) for step in found[4].steps]
    assert [Slice, ReduceScatter, AllGather] == [type(step.op) for step in found[8].steps]


def test_prices_decide() -> None:
    """The optimum is the optimum for the prices given: other prices, another route."""
    mesh, sizes = "X=4,Y=2", {"I": 64, "J": 64}
    ends = array("A[I, J]{U_X}"), array("A[I, J]")
    found = {prices: reshard(*ends, mesh, sizes, prices) for prices in PRICES}

    assert {"book": 6144, "link": 5120, "switch": 2048} == {p: r.cost for p, r in found.items()}
    for fast in "XY":
        prices = seconds({axis: 1000 if axis == fast else 1 for axis in "XY"})
        route = reshard(array("A[I, J]{U_XY}"), array("A[I_X, J]{U_Y}"), mesh, sizes, prices)
        assert route.cost <= Fraction(3072, 1000 if fast == "X" else 1)


class Flat(Link):
    """Every collective costs 5, whatever it moves: a list of a user's own."""

    linear = False

    def all_gather(self, moved: Moved) -> Fraction:
        """Cost 5."""
        return Fraction(5)

    reduce_scatter = all_reduce = all_to_all = permute = all_gather


def test_a_list_of_ones_own() -> None:
    """An object with the methods of `Prices` is taken as it is, proportional to bytes or not."""
    route = reshard(array("A[I, J]{U_X}"), array("A[I, J]"), "X=4,Y=2", {"I": 64, "J": 64}, Flat())

    assert (5, [AllReduce]) == (route.cost, [type(step.op) for step in route.steps])


def test_latency_favors_fewer_collectives() -> None:
    """With a latency a collective, the idle axis no longer pays on a small array."""
    prices = seconds({"X": 1, "Y": 1}, latency=10_000)
    ends = array("A[I, J]{U_X}"), array("A[I, J]")
    found = [reshard(*ends, "X=4,Y=2", {"I": n, "J": n}, prices).collectives for n in (8, 1024)]

    assert [1, 2] == found


@pytest.mark.parametrize(
    ("op", "before", "after", "book", "link"),
    [
        (AllGather((Axis("X"),), Dim("I")), "A[I_X, J]", "A[I, J]", 64, 48),
        (ReduceScatter((Axis("X"),), Dim("I")), "A[I, J]{U_X}", "A[I_X, J]", 64, 48),
        (AllReduce((Axis("X"),)), "A[I, J]{U_X}", "A[I, J]", 128, 96),
        (AllToAll((Axis("X"),), Dim("I"), Dim("J")), "A[I_X, J]", "A[I, J_X]", 16, 12),
        (Permute((Axis("X"),)), "A[I_X, J]", "A[I, J_X]", 16, 16),
        (Slice((Axis("X"),), Dim("I")), "A[I, J]", "A[I_X, J]", 0, 0),
    ],
)
def test_prices_of_single_moves(op, before, after, book, link) -> None:
    """Both models charge what the interface says."""
    mesh, sizes = mesh_of("X=4"), {"I": 8, "J": 8}

    found = [price(op, array(before), array(after), mesh, sizes, p) for p in ("book", "link")]
    assert [book, link] == found


def test_reductions_may_be_wider() -> None:
    """Adding bf16 up in f32 doubles ReduceScatter and AllReduce, each in its place (report 36)."""
    sizes = {"D": 64, "F": 64}
    ends = array("W[D, F]{U_XY}"), array("W[D_X, F]")
    narrow, wide = reshard(*ends, "X=4,Y=2", sizes), reshard(*ends, "X=4,Y=2", sizes, Wide(Link()))
    mesh = mesh_of("X=4,Y=2")
    for step in narrow.steps:
        arrays = step.inputs[0], step.output
        once = price(step.op, *arrays, mesh, sizes)
        assert 2 * once == price(step.op, *arrays, mesh, sizes, Wide(Link()))

    # A gather after the addition stays narrow, so that it now beats the AllReduce.
    assert [ReduceScatter, AllReduce] == [type(step.op) for step in narrow.steps]
    assert [ReduceScatter, AllGather] == [type(step.op) for step in wide.steps]
    assert 2 * 4096 * 7 // 8 + 512 == wide.cost


def test_bandwidths_follow_the_network() -> None:
    """Several axes add their bandwidths up, but with a `@dcn` axis its own alone counts."""
    fast = Mesh((AxisInfo(Axis("X"), 4), AxisInfo(Axis("Y"), 2)))
    slow = Mesh((AxisInfo(Axis("X"), 4, "dcn"), AxisInfo(Axis("Y"), 2)))
    op, ends = AllReduce((Axis("X"), Axis("Y"))), (array("A[I]{U_XY}"), array("A[I]"))
    table = seconds({"X": 2, "Y": 5})

    assert Fraction(14, 7) == price(op, *ends, fast, {"I": 8}, table)
    assert Fraction(14, 2) == price(op, *ends, slow, {"I": 8}, table)
    whole = reshard(array("A[I_X, J]"), array("A[I, J]"), fast, {"I": 8, "J": 8}, table)
    parts = reshard(
        array("A[I_X, J]"), array("A[I, J]"), fast, {"I": 8, "J": 8}, table, sub_axes=True
    )
    assert whole == parts


def test_weights_spread_from_several_states() -> None:
    """Spreading from several states takes the least sum, in either direction and in scaled units."""
    graph = layouts(array("A[I, J]"), mesh_of("X=2,Y=2"), {"I": 4, "J": 4})
    states = graph.space.states()
    table = {code: graph.space.distances_from(code) for code in states}
    start = {states[2]: 5 * UNIT, states[7]: UNIT, states[11]: 0}
    for backwards in (False, True):
        found, _ = graph.space.spread(start, backwards=backwards, scale=3)
        for code in states:
            best = min(
                weight + scaled(table[code][at] if backwards else table[at][code], 3)
                for at, weight in start.items()
            )
            assert best == found[code]


def test_several_states_share_their_beginning() -> None:
    """What makes two states of one array pays a common gather once, as brute force finds it."""
    mesh, shape = "X=2,Y=2", (4, 4)
    axes = plain_mesh(mesh)
    graph = layouts(array("A[I, J]"), mesh_of(mesh), {"I": 4, "J": 4})
    encode = {s: graph.space.encode(as_layout(s)) for s in exhaustive.all_states(shape, axes)}
    rng = random.Random(9)
    states = list(encode)
    for _ in range(60):
        source, one, two = rng.choice(states), rng.choice(states), rng.choice(states)
        tree = graph.space.tree(encode[source], [encode[one], encode[two]])
        best = min(
            exhaustive.distances(source, shape, axes, "link")[via]
            + exhaustive.distances(via, shape, axes, "link")[one]
            + exhaustive.distances(via, shape, axes, "link")[two]
            for via in states
        )
        assert tree is not None
        cost, collectives = divmod(best, exhaustive.MANY)
        weight = tree.weight % UNIT // COLLECTIVE

        assert (Fraction(cost, exhaustive.SCALE), collectives) == (graph.cost(tree.weight), weight)
        reached = {encode[source]}
        for leg in tree.legs:
            assert leg[0] in reached
            reached.add(leg[-1])
        assert {encode[one], encode[two]} <= reached


def test_three_states_branch_twice() -> None:
    """With three states wanted the tree may branch at two places, as brute force does."""
    axes, shape = (("X", 2), ("Y", 2)), (4,)
    graph = layouts(array("A[I]"), mesh_of("X=2,Y=2"), {"I": 4})
    states = exhaustive.all_states(shape, axes)
    far = {s: exhaustive.distances(s, shape, axes, "link") for s in states}
    rng = random.Random(4)
    for _ in range(40):
        source, *wanted = (rng.choice(states) for _ in range(4))
        best = min(
            far[source][u] + far[u][a] + far[u][v] + far[v][b] + far[v][c]
            for a, b, c in itertools.permutations(wanted)
            for u, v in itertools.product(states, repeat=2)
        )
        codes = [graph.space.encode(as_layout(s)) for s in (source, *wanted)]
        tree = graph.space.tree(codes[0], codes[1:])

        assert tree is not None
        assert Fraction(best // exhaustive.MANY, exhaustive.SCALE) == graph.cost(tree.weight)


def test_weights_are_ordered_by_price_then_collectives_then_moves() -> None:
    """The fields of a weight do not run over into each other."""
    assert MOVE < COLLECTIVE < UNIT
    assert COLLECTIVE // MOVE > 1000


def test_notation_is_read_by_the_front_end() -> None:
    """Arrays given as text are read as programs are, dtype and braces included."""
    mesh = mesh_of("X=4,Y=2")

    assert str(read("A[I_XY, J]", mesh)) == "A[I_XY, J]"
    assert str(read("A[I_X, J]{U_Y}", mesh)) == "A[I_X, J]{U_Y}"
    route = reshard("A[I_X, J]", "A[I, J_X]", "X=4", {"I": 64, "J": 64})
    assert [AllToAll] == [type(step.op) for step in route.steps]
    assert 2 * 768 == route.cost


def test_two_axes_across_data_centres_share_one_way_out() -> None:
    """As in `cost`: 2*4096*4096 bytes at 6.25 GB/s take 5.37 ms, however many `@dcn` axes are crossed."""
    text = "mesh P=2 @dcn, Q=4 @dcn\nhardware tpu_v5p\ndims I=4096, J=4096\nA[I_PQ, J] -> B[I, J]\n"
    plan = sl.lower(sl.parse(text), "optimal", objective="serial", prices="book", forward_only=True)

    assert plan.proof is not None
    assert plan.proof.cost == Fraction(2 * 4096 * 4096) / Fraction(6_250_000_000)
    (time,) = (cost.time.value for cost in sl.cost(plan).collectives)
    assert time == plan.proof.cost


def test_behind_a_switch_axes_share_the_way_out() -> None:
    """Gathering over X and Y on one node: 7/8 of 2*64*64 bytes at 450 GB/s, not at twice that."""
    text = "mesh X=4, Y=2\nhardware h100\ndims I=64, J=64\nA[I_XY, J] -> B[I, J]\n"
    plan = sl.lower(sl.parse(text), "optimal", objective="serial", forward_only=True)

    assert plan.proof is not None
    assert plan.proof.cost == Fraction(2 * 64 * 64 * 7, 8) / 450_000_000_000
