"""Collective models against collectives carried out link by link, and against the book's numbers."""

from __future__ import annotations

import random
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import sympy
from links import Nodes, Torus
from strategies import random_chain, random_program

import shardlang as sl
from shardlang.cost.formula import Formula
from shardlang.cost.models import Link, Model, Moved, Price
from shardlang.cost.network import Level, Line
from shardlang.frontend.format import format_source
from shardlang.ir.size import Monomial
from shardlang.source import Source

ONE = Monomial()
RINGS = [((n,), (ring,)) for n in range(2, 17) for ring in (True, False)]
TORI = [
    *(((x, y), rings) for x, y in ((2, 2), (2, 3), (4, 4), (2, 8), (3, 5), (4, 6)) for rings in (
        (True, True), (False, False)
    )),
    ((4, 3), (True, False)),
    ((4, 2), (True, False)),
    ((5, 4), (False, True)),
    ((2, 2, 2), (False, False, False)),
    ((2, 3, 4), (True, True, True)),
    ((4, 4, 4), (True, True, True)),
    ((3, 2, 4), (False, False, True)),
]  # fmt: skip


def number(value: int | Fraction) -> Monomial:
    """A number as a product."""
    return Monomial(Fraction(value))


def torus_level(torus: Torus, *, names: bool = False) -> Level:
    """The level of a torus, with sizes as numbers or as the names A, B, C."""
    own = [Monomial.of("ABC"[i]) if names else number(n) for i, n in enumerate(torus.sizes)]
    size = ONE
    for one in own:
        size *= one
    lines = tuple(Line(n, ring) for n, ring in zip(own, torus.rings, strict=True))
    return Level(size, ONE, ONE, lines)


def moved(levels: tuple[Level, ...], operand: Monomial, result: Monomial) -> Moved:
    """What moves over the levels."""
    n = ONE
    for level in levels:
        n *= level.size
    return Moved(operand, result, n, levels)


def busiest(price: Price, known: dict[str, Fraction] | None = None) -> Fraction | None:
    """The largest of the loads."""
    return Formula.largest(load.bytes for load in price.loads).value(known or {})


@pytest.mark.parametrize(("sizes", "rings"), [*RINGS, *TORI])
def test_loads_of_rings_lines_and_tori(sizes, rings):
    """What the model says the busiest link carries is what it carries, link by link."""
    torus, model = Torus(sizes, rings), Link()
    level = torus_level(torus)
    n = level.size
    gather = model.all_gather(moved((level,), ONE, n))
    scatter = model.reduce_scatter(moved((level,), n, ONE))
    both = model.all_reduce(moved((level,), n, n))
    exchange = model.all_to_all(moved((level,), n, n))

    expected = torus.gathered()
    count = len(torus.devices)
    assert expected >= Fraction(count - 1, torus.ports)  # no device can be given less
    assert [busiest(p) for p in (gather, scatter, both)] == [expected, expected, 2 * expected]
    assert busiest(exchange) == torus.exchanged()
    names = torus_level(torus, names=True)
    known = dict(zip("ABC", map(Fraction, sizes), strict=False))
    symbolic = [
        model.all_gather(moved((names,), ONE, names.size)),
        model.all_to_all(moved((names,), names.size, names.size)),
    ]
    assert [busiest(p, known) for p in symbolic] == [expected, torus.exchanged()]
    for price, plain in zip(symbolic, (gather, exchange), strict=True):
        assert price.time.value(known) == plain.time.value({})
        assert price.sent.value(known) == plain.sent.value({}) == count - 1


PARTS = [
    # outer, sizes, inner, rings
    *(((1,), (a,), (b,), (r,)) for a in (2, 3, 4, 5, 8) for b in (2, 3, 4) for r in (True, False)),
    *(((o,), (a,), (1,), (r,)) for o in (2, 3) for a in (2, 3, 4, 8) for r in (True, False)),
    *(((o,), (a,), (b,), (r,)) for o, a, b, r in ((2, 2, 2, True), (2, 4, 3, True), (3, 3, 2, False))),
    ((1, 1), (4, 4), (2, 1), (True, True)),
    ((1, 1), (2, 4), (8, 1), (True, True)),
    ((1, 1), (2, 2), (2, 4), (True, False)),
    ((1, 2), (4, 2), (2, 1), (True, True)),
    ((1, 1), (4, 3), (4, 1), (True, False)),
    ((2, 1), (2, 2), (2, 3), (True, True)),
]  # fmt: skip


@pytest.mark.parametrize(("outer", "sizes", "inner", "rings"), PARTS)
def test_loads_of_parts_of_axes(outer, sizes, inner, rings):
    """All groups at once: those of an outer part share the links, an inner part is a line."""
    torus, model = Torus(sizes, rings, outer=outer, inner=inner), Link()
    names = [Monomial.of("ABC"[i]) for i in range(len(sizes))]
    size = ONE
    for name in names:
        size *= name
    lines = tuple(
        Line(name, torus.closed(i), stride=number(inner[i])) for i, name in enumerate(names)
    )
    level = Level(size, ONE, ONE, lines)
    known = dict(zip("ABC", map(Fraction, sizes), strict=False))
    gather = model.all_gather(moved((level,), ONE, size))
    exchange = model.all_to_all(moved((level,), size, size))

    assert busiest(gather, known) == torus.gathered()
    assert busiest(exchange, known) == torus.exchanged()


@pytest.mark.parametrize("inner", [1, 2, 3, 5])
@pytest.mark.parametrize(("outer", "ring"), [(1, True), (1, False), (2, True), (3, False)])
def test_pairs_that_swap(outer, inner, ring):
    """A Permute takes at least what pairs of neighbours of a part of size 2 take."""
    torus = Torus((2,), (ring,), outer=(outer,), inner=(inner,))
    line = Line(number(2), torus.closed(0), stride=number(inner))
    level = Level(number(2), ONE, ONE, (line,))
    assert busiest(Link().permute(moved((level,), ONE, ONE))) == torus.swapped()


def lines_of(mesh: str, hardware: str, axes: str) -> list[tuple[object, ...]]:
    """The lines that a collective over some axes has: size, stride, whether it is a ring."""
    found = sl.parse(f"mesh {mesh}\nA[B_{{{axes}}}] -> A[B]\n")
    seen: list[tuple[object, ...]] = []

    class Spy(Link):
        def all_gather(self, moved: Moved) -> Price:
            known = {name: Fraction(n) for name, n in found.mesh.sizes.items()}
            for line in moved.levels[0].lines:
                size, stride = (Formula.of(x).value(known) for x in (line.size, line.stride))
                seen.append((size, stride, line.ring))
            return super().all_gather(moved)

    sl.cost(sl.lower(found, forward_only=True), hardware, model=Spy(), sets={"B": 4096})
    return seen


@pytest.mark.parametrize(
    ("hardware", "axes", "expected"),
    [
        ("tpu_v5p", "X1", [(2, 8, True)]),
        ("tpu_v5p", "X2", [(4, 2, False)]),
        ("tpu_v5p", "X3", [(2, 1, False)]),
        ("tpu_v5p", "X1,X2", [(8, 2, True)]),
        ("tpu_v5p", "X2,X3", [(8, 1, False)]),
        ("tpu_v5p", "X1,X2,X3", [(16, 1, True)]),
        ("tpu_v5p", "X3,Y", [(2, 1, False), (4, 1, True)]),
        ("tpu_v5p 16x4x1", "X1", [(2, 8, False)]),
        ("tpu_v5p 4x4x4", "X1", [(2, 2, True)]),
        ("tpu_v5p 4x4x4", "X2", [(2, 1, False), (2, 2, True)]),
        ("tpu_v5p 4x4x4", "X3", [(2, 1, False)]),
        ("tpu_v5p 4x4x4", "X1,X2", [(4, 1, True), (2, 2, True)]),
        ("tpu_v5p 4x4x4", "X1,X2,X3", [(4, 1, True), (4, 1, True)]),
    ],
)
def test_parts_lie_on_the_axes_of_the_whole(hardware, axes, expected):
    """X of 2, 4 and 2 from the outside in, on one axis of 16 or on two of 4."""
    mesh = "X1=2 @part(X), X2=4 @part(X), X3=2 @part(X), Y=4"
    assert lines_of(mesh, hardware, axes) == expected


def test_parts_in_a_report():
    """On a ring of 4, gathers over its outer half take as long as over its inner half: by hand.

    Outer: pairs two links apart, half of a block each way round, on links shared by two. Inner: a
    block over the one link between neighbours.
    """
    sizes = {"B": 2**12, "D": 2**12}
    mesh = "mesh X1=2 @part(X), X2=2 @part(X)"
    outer = seconds(f"{mesh}; A[B_X1, D] -> A[B, D]", "tpu_v5p", **sizes)
    inner = seconds(f"{mesh}; A[B_X2, D] -> A[B, D]", "tpu_v5p", **sizes)
    found = report(f"{mesh}; A[B_X2, D] -> A[B, D]", "tpu_v5p", **sizes)

    assert inner == pytest.approx(2 * 2**24 / 2 / 90e9)
    assert outer == pytest.approx(inner)
    assert any("inner part of an axis is a line" in note for note in found.notes)


@pytest.mark.parametrize("n", range(2, 17))
def test_loads_of_rings_one_way_round(n):
    """SH-11: a ring that sends one way carries n-1 shards, and half of that in an AllToAll."""
    torus, model = Torus((n,), (True,), one_way=True), Link(one_way=True)
    level = torus_level(torus)
    gather = model.all_gather(moved((level,), ONE, level.size))
    exchange = model.all_to_all(moved((level,), level.size, level.size))

    assert busiest(gather) == torus.gathered() == n - 1
    assert busiest(exchange) == torus.exchanged() == Fraction(n * (n - 1), 2)


@pytest.mark.parametrize("n", [4, 6, 8, 16])
def test_a_ring_both_ways_gathers_in_half_and_exchanges_in_an_eighth(n):
    """SH-13: of V on a link one way AllGather carries (n-1)/(2n), AllToAll 1/8: a quarter of V/2."""
    torus = Torus((n,), (True,))
    assert torus.gathered() / n == Fraction(n - 1, 2 * n)
    assert torus.exchanged() / n**2 == Fraction(1, 8)


@pytest.mark.parametrize(("inside", "across"), [*product((1, 2, 4, 8), (1, 2, 3, 4))])
def test_loads_of_nodes(inside, across):
    """Inside a node and across, a device sends what the schedule sends."""
    nodes, model = Nodes(across, inside), Link()
    count = inside * across
    levels = tuple(Level(number(n), ONE, ONE) for n in (inside, across))
    whole = number(count)

    def loads(price: Price) -> tuple[Fraction | None, ...]:
        return tuple(load.bytes.value({}) for load in price.loads)

    assert loads(model.all_gather(moved(levels, ONE, whole))) == nodes.gather()
    assert loads(model.reduce_scatter(moved(levels, whole, ONE))) == nodes.scatter()
    summed = tuple(a + b for a, b in zip(nodes.scatter(), nodes.gather(), strict=True))
    assert loads(model.all_reduce(moved(levels, whole, whole))) == summed
    exchange = model.all_to_all(moved(levels, whole, whole))
    assert sorted(loads(exchange)) == sorted(nodes.exchange())
    for price in (model.all_gather(moved(levels, ONE, whole)), exchange):
        assert price.sent.value({}) == sum(loads(price)) == count - 1


# --- through the public interface ---


def report(text: str, hardware: str | None = None, model: str | Model = "link", **values: object):
    """The report of a program's forward pass; `values` are sizes and hardware figures."""
    program = sl.parse(text.replace("; ", "\n"))
    names = {info.dim.name for info in program.dims} | set(program.mesh.names)
    sizes = {name: value for name, value in values.items() if name in names}
    sets = {name: value for name, value in values.items() if name not in names}
    plan = sl.lower(program, sizes=sizes, forward_only=True)
    return sl.cost(plan, hardware=hardware, model=model, sets=sets)


def seconds(*arguments: object, **values: object) -> float:
    """The time of a program's collectives."""
    return float(report(*arguments, **values).forward.quantity("t_comms").value)


GATHER = "mesh X=8, Y=4; A[E_Y, F] -> A[E, F]"


def test_a_gather_along_a_line_of_four_takes_three_hops():
    """SH-01: 372.8 us by the book, 559 us where the axis of 4 does not wrap around (it does on 16)."""
    sizes = {"E": 2048, "F": 8192}

    assert seconds(GATHER, "tpu_v5e", "book", **sizes) == pytest.approx(372.8e-6, rel=1e-3)
    assert seconds(GATHER, "tpu_v5e 8x4", **sizes) == pytest.approx(559e-6, rel=1e-3)
    ring = "mesh X=16, Y=4; A[E_X, F] -> A[E, F]"
    assert seconds(ring, "tpu_v5e 4x16", **sizes) == pytest.approx(372.8e-6 * 15 / 16, rel=1e-3)


def test_shards_of_45_kb_are_bound_by_latency():
    """SH-20: a v5e sends 45 kB in the 1 us of a hop; on 9 in a ring both take 4 us."""
    text = "mesh X=9; A: int8[B_X] -> A[B]"
    assert seconds(text, "tpu_v5e", B=9 * 44_000) == pytest.approx(4e-6)
    assert seconds(text, "tpu_v5e", B=9 * 45_000) == pytest.approx(4e-6)
    assert seconds(text, "tpu_v5e", B=9 * 46_000) == pytest.approx(4e-6 * 46 / 45)


@pytest.mark.parametrize(("j", "bound"), [(26_264, False), (26_272, True)])
def test_a_reduction_on_lines_needs_j_above_26267(j, bound):
    """SH-16: compute-bound iff J > 2 (n-1) C/W on lines of n=4, 26,267, and not 17,511 as on rings."""
    text = "mesh X=4, Y=4; A[I_X, J_Y] ·_J B[J_Y, K] -> C[I_X, K]"
    found = report(text, "tpu_v5e 4x4", I=2**14, K=2**14, J=j)

    assert found.forward.condition.holds is bound


def test_a_gather_over_two_nodes_takes_the_slower_level():
    """GP-07: B/514e9 inside and B/(16 W_dcn) = B/800e9 across: X = 16 is 8 inside, 2 across."""
    text = "mesh X=16; A[B_X, D] -> A[B, D]"
    size = 2 * 2048 * 16384
    found = report(text, "h100", B=2048, D=16384)

    assert found.slice == "nodes of 8: X 8 inside, 2 across"
    assert float(found.forward.quantity("t_comms").value) == pytest.approx(size / 514e9, rel=1e-3)
    slow = seconds(text, "h100", B=2048, D=16384, W_dcn=10e9)
    assert slow == pytest.approx(size / (16 * 10e9))


def test_axes_across_nodes_take_the_network_between_them():
    """U11: X across nodes moves 44.0 MB at 50 GB/s, 0.881 ms, not 0.098 ms at NVLink's speed."""
    text = "mesh X=4, Y=8; W[D_X, F_Y] -> W[D, F_Y]"
    found = report(text, "h100", D=8192, F=28672)

    assert float(found.forward.quantity("bytes").value) == pytest.approx(44.04e6, rel=1e-3)
    assert float(found.forward.quantity("t_comms").value) == pytest.approx(0.881e-3, rel=1e-3)


def test_gather_and_scatter_of_a_small_batch_cost_something():
    """U16: AG and RS of 7/8 of 1.049 MB at 450 GB/s: 4.08 us."""
    text = "mesh Y=8; A[B, D_Y] -> A[B, D]"
    assert 2 * seconds(text, "h100", B=64, D=8192) == pytest.approx(4.08e-6, rel=2e-3)


REDUCE = "mesh X=8; A[J_X] ·_J W[J_X, N] -> C[N]"


def test_small_reductions_take_their_latency():
    """U17: 186 of them at 1 us up and 1 us down: 372 us."""
    assert 186 * seconds(REDUCE, "h100", J=8, N=8, T_hop="1e-6") == pytest.approx(372e-6)


def test_the_schedule_on_a_switch_changes_the_latency_alone():
    """U19: 100 MB among 8 at 50 GB/s take 3.50 ms directly and in rings; 2 steps against 14."""
    sizes = {"J": 8, "N": 50_000_000, "W_ici": 50e9, "in_network": 0}
    both = [seconds(REDUCE, "h100", model, **sizes) for model in ("link", "link-ring")]
    steps = [seconds(REDUCE, "h100", model, J=8, N=8, T_hop=1) for model in ("link", "link-ring")]

    assert both == [pytest.approx(3.5e-3)] * 2
    assert steps == [2, 14]


def test_a_switch_that_adds_up_beats_the_rings():
    """U22: 512 MiB on 8 H100: 2,088 us in rings, 1,342 us with NVLink SHARP; the bytes stay."""
    sizes = {"J": 8, "N": 2**28}
    plain, sharp = (report(REDUCE, "h100", in_network=x, **sizes) for x in (0, 1))
    usual = report(REDUCE, "h100", **sizes)
    ring = report(REDUCE, "h100", "link-ring", **sizes)

    assert usual.total.quantity("t_comms") == sharp.total.quantity("t_comms")
    assert ring.total.quantity("t_comms").value == plain.total.quantity("t_comms").value
    assert any("adds up AllReduces" in note for note in usual.notes)
    assert any("add up in the chips" in note for note in plain.notes)
    times = [float(r.forward.quantity("t_comms").value) for r in (plain, sharp)]
    assert times == [pytest.approx(2088e-6, rel=1e-3), pytest.approx(1342e-6, rel=1e-3)]
    assert plain.forward.quantity("bytes").value == sharp.forward.quantity("bytes").value


def test_a_pair_sums_no_slower_through_the_switch():
    """Of two devices each sends V in rings and would send 3/2 V through the switch: V counts."""
    text = REDUCE.replace("X=8", "X=2")
    ring, sharp = (seconds(text, "h100", J=8, N=2**20, in_network=x) for x in (0, 1))
    open_ = report(text.replace("X=2", "X"), "h100", in_network=1).compile(
        ["X", "J", "N"], "t_comms"
    )

    assert ring == sharp == pytest.approx(2**21 / 450e9)
    for x, factor in ((2, 1), (4, 5 / 4), (8, 9 / 8)):
        assert open_(x, 8, 2**20)[0] == pytest.approx(factor * 2**21 / 450e9)


def test_the_order_of_axes_does_not_matter():
    """U21: over {2, 8} as over {8, 2}, of bandwidth and of latency."""
    for size in (64, 2**12):
        times = [
            seconds(f"mesh X={x}, Y={y}; A[I_XY, J] -> A[I, J]", "tpu_v4p", I=size, J=size)
            for x, y in ((2, 8), (8, 2))
        ]
        assert times[0] == times[1] > 0


def test_slices_joined_by_the_data_centre_network():
    """An AllReduce over 2 slices of 16: inside 2V 15/16 over a ring, across V/16 each way."""
    text = "mesh P=2 @dcn, X=16; A[J_PX] ·_J W[J_PX, N] -> C[N]"
    n = 2**24
    found = report(text, "tpu_v5e 16x1", J=32, N=n)
    inside, across = 2 * 2 * n * 15 / 16 / 90e9, 2 * (2 * n / 16) / 2 / 3.125e9

    assert float(found.forward.quantity("t_comms").value) == pytest.approx(max(inside, across))
    assert found.forward.quantity("bytes").value == 2 * 2 * n * Fraction(31, 32)
    fast = seconds(text, "tpu_v5e 16x1", J=32, N=n, W_dcn=1e12)
    assert fast == pytest.approx(inside)


@pytest.mark.parametrize(
    ("egress", "gather", "scatter", "reduce", "exchange"),
    [
        (300e9, 2288.0, 2207.1, 4225.9, 2313.5),  # A100
        (450e9, 1401.5, 1399.4, 2111.1, 1490.4),  # H100
        (450e9, None, None, 2040.3, None),  # H200: below what rings could do
        (900e9, 761.4, 766.5, 1334.6, 834.2),  # B200
    ],
)
def test_no_measured_time_is_below_the_bound(egress, gather, scatter, reduce, exchange):
    """512 MiB on 8 GPUs, microseconds, measured with nccl-tests (NVIDIA AIConfigurator's tables)."""
    count = 2**28
    texts = {
        "A[N_X] -> A[N]": (gather, {"N": count}),
        "A[J_X] ·_J W[J_X, N] -> C[N_X]": (scatter, {"N": count, "J": 8}),
        "A[J_X] ·_J W[J_X, N] -> C[N]": (reduce, {"N": count, "J": 8}),
        "A[N_X, J] -> A[N, J_X]": (exchange, {"N": count, "J": 8}),
    }
    in_network = egress >= 450e9
    for text, (measured, sizes) in texts.items():
        bound = seconds(f"mesh X=8; {text}", "h100", W_ici=egress, in_network=in_network, **sizes)
        if measured is not None:
            assert bound < measured * 1e-6 < 2 * bound


class Alpha:
    """A model of one's own: a latency a step plus the bytes; small AllReduces in one shot."""

    name = "alpha"
    figures = ("alpha",)

    def __init__(self, one_shot: bool) -> None:
        """Choose how AllReduces go."""
        self.one_shot = one_shot

    def all_reduce(self, moved: Moved) -> Price:
        """Send V to all others at once, or go round a ring twice."""
        (level,) = moved.levels
        whole = Formula.of(moved.operand * moved.n, moved.operand * -1)
        steps = Formula.of(Monomial())
        if not self.one_shot:
            whole = whole * Monomial(Fraction(2)) / moved.n
            steps = Formula.of(moved.n * 2, Monomial(Fraction(-2)))
        time = steps * Monomial.of("alpha") + whole / level.bandwidth
        return Price(whole, latencies=(time,))


def test_a_model_of_ones_own_with_a_latency():
    """U36: one shot and ring cross at V = alpha W (2(n-1) - 1)/((n-1)(1 - 2/n))."""
    n, alpha, speed = 8, 2e-6, 450e9
    size = alpha * speed * (2 * (n - 1) - 1) / ((n - 1) * (1 - 2 / n))

    def difference(scale: float) -> float:
        count = 2 * round(scale * size / 4)
        one, ring = (
            seconds(REDUCE, "h100", Alpha(shot), J=8, N=count, alpha=alpha)
            for shot in (True, False)
        )
        return one - ring

    assert difference(0.99) < 0 < difference(1.01)
    assert difference(1) == pytest.approx(0, abs=1e-9)


def test_the_models_of_the_page_on_costs():
    """The models that docs/costs.md shows do what it says: (n-1)V at once, and latency plus bytes."""
    page = (Path(__file__).parent.parent / "docs" / "costs.md").read_text(encoding="utf-8")
    code = page.partition("```python\n")[2].partition("report = ")[0]
    names: dict[str, Any] = {}
    exec(code, names)

    one_shot = report(REDUCE, "h100", names["OneShot"](), J=8, N=100)
    assert one_shot.forward.quantity("bytes").value == 7 * 200
    text = "mesh X=8; A[B_X] -> A[B]"
    both = seconds(text, "h100", names["AlphaBeta"]("alpha-beta"), B=2**20, T_hop=1e-6)
    assert both == pytest.approx(1e-6 + 2**21 * 7 / 8 / 450e9)


@pytest.mark.parametrize("hardware", ["tpu_v5e", "h100", None])
def test_formulas_values_and_compiled_functions_agree(hardware):
    """Formula, value and numpy function of a program over two axes are the same number.

    On nodes of 8 that holds for meshes that fit into a node, fill it, or reach beyond.
    """
    text = "mesh X, Y; In[B_X, D_Y] ·_D W1[D_X, F_Y] ·_F W2[F_Y, D_X] -> Out[B_X, D_Y]"
    figures = {"C": 1e14, "W_ici": 1e11, "T_hop": 2e-6, "T_dcn": 0} if hardware is None else {}
    plan = sl.lower(sl.parse(text.replace("; ", "\n")))
    whole = sl.cost(plan, hardware, model="link", sets=figures)
    function = whole.compile(["B", "D", "F", "X", "Y"], ["t_comms", "bytes"])
    formula = str(whole.total.quantity("t_comms"))
    names = {name: sympy.Symbol(name, positive=True) for name in whole.symbols.kinds}
    expression = sympy.sympify(formula, locals=names)
    known = {names[s]: sympy.Rational(v.numerator, v.denominator) for s, v in whole.known.items()}

    for b, d, f, x, y in ((64, 32, 96, 4, 2), (8, 16, 32, 2, 8), (2**16, 2**12, 2**14, 8, 16)):
        sizes = {"B": b, "D": d, "F": f, "X": x, "Y": y}
        fresh = sl.cost(plan, hardware, model="link", sets={**sizes, **figures})
        expected = float(fresh.total.quantity("t_comms").value)
        times, _ = function(b, d, f, x, y)
        value = expression.subs({**known, **{names[n]: v for n, v in sizes.items()}})
        assert float(times) == pytest.approx(expected)
        assert float(value) == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(12))
def test_formulas_agree_on_random_programs(seed):
    """Whatever the program, its formula, its value and the compiled function are the same number."""
    rng = random.Random(seed)
    text = random_chain(rng) if seed % 2 else random_program(rng)
    plan = sl.lower(sl.parse(text))
    hardware = ("tpu_v5e", "h100")[seed // 2 % 2]
    sets = {"T_hop": Fraction(1, 10**6), "T_dcn": Fraction(1, 10**5), "W_dcn": 10**10}
    whole = sl.cost(plan, hardware, model="link", sets=sets)
    axes = [name for name, size in whole.mesh.items() if size and size > 1]
    quantity = whole.total.quantity("t_comms")
    names = {name: sympy.Symbol(name, positive=True) for name in whole.symbols.kinds}
    known = {names[s]: sympy.Rational(v.numerator, v.denominator) for s, v in whole.known.items()}

    value = sympy.sympify(str(quantity), locals=names).subs(known)
    assert value == sympy.Rational(quantity.value.numerator, quantity.value.denominator)
    function = whole.compile(axes, ["t_comms", "bytes"])
    for factor in (1, 2, 4):
        sizes = {name: whole.mesh[name] * factor for name in axes}
        other = sl.cost(plan, hardware, model="link", sets={**sets, **sizes})
        found = function(*sizes.values())
        for key, number in zip(("t_comms", "bytes"), found, strict=True):
            assert float(number) == pytest.approx(float(other.total.quantity(key).value))


# --- meshes on slices ---


@pytest.mark.parametrize(
    ("mesh", "shape", "expected"),
    [
        ("X=16, Y=4", "4x4x4", "4x4x4: X on 4x4 (rings), Y on 4 (ring)"),
        ("X=16, Y=4 @ici(2)", "2x2x16", "2x2x16: X on 16 (line), Y on 2x2 (lines)"),
        ("X=4, Y=16", "16x4x1", "16x4x1: X on 4 (line), Y on 16 (line)"),
        ("X=1, Y=8", "8x1", "8x1: Y on 8 (line)"),
    ],
)
def test_meshes_are_laid_on_slices(mesh, shape, expected):
    """Each mesh axis takes whole axes of the slice; all rings where all are multiples of 4."""
    found = report(f"mesh {mesh}; hardware tpu_v5p {shape}; A[B_Y] -> A[B]", B=64)
    assert found.slice == expected


def test_slices_of_variants_and_files(tmp_path):
    """A shape stands behind any name: the variant's figures, and the file's rule of wrapping around."""
    text = "mesh X=8, Y=4; A[E_Y, F] -> A[E, F]"
    sizes = {"E": 2048, "F": 8192}
    book = seconds(text, "tpu_v5e 8x4", **sizes)
    spec = seconds(text.replace("; A", "; hardware tpu_v5e:spec 8x4; A"), **sizes)
    chip = sl.cost(sl.lower(sl.parse(text.replace("; ", "\n"))), "tpu_v5e:spec").hardware
    path = tmp_path / "own.toml"
    path.write_text(
        '[a]\ntopology = "torus"\nflops.bf16 = 1e14\nW_ici = 9e10\nici_axes = 2\nwrap_cube = 1\n'
        '[b]\ntopology = "torus"\nflops.bf16 = 1e14\nW_ici = 9e10\nici_axes = 2\n',
        encoding="utf-8",
    )

    assert book / spec == pytest.approx(chip.get("W_ici") / 90e9)
    assert report(text, f"{path}#a 8x4", **sizes).slice == "8x4: X on 8 (ring), Y on 4 (ring)"
    assert report(text, f"{path}#b 8x4x1", **sizes).slice == "8x4x1: X on 8 (line), Y on 4 (line)"
    assert 2 * seconds(text, f"{path}#a 8x4", **sizes) == pytest.approx(book)


def test_links_follow_the_slice():
    """M_X is the number of axes that X takes, in the book's formulas too."""
    text = "mesh X=256, Y=16; A[B_X, D] -> A[B, D]"
    found = report(text, "tpu_v5p 16x16x16", "book", B=2**16, D=2**12)
    assert float(found.forward.quantity("t_comms").value) == pytest.approx(2**29 / (2 * 1.8e11))


def test_a_ring_and_a_line_of_one_axis():
    """v5e 8x16: X takes both; ports 1 + 2 of the corner, the exchange goes by the busier."""
    sizes = {"B": 2**14, "D": 2**12}
    shard = 2 * sizes["B"] * sizes["D"] / 128
    gather = seconds("mesh X=128; A[B_X, D] -> A[B, D]", "tpu_v5e 8x16", **sizes)
    swap = seconds("mesh X=128; A[B_X, D] -> A[B, D_X]", "tpu_v5e 8x16", **sizes)

    assert gather == pytest.approx(127 * shard / (3 * 45e9))
    assert swap == pytest.approx(max(8 / 4, 16 / 8) * shard / 45e9)


@pytest.mark.parametrize(
    ("mesh", "hardware", "code"),
    [
        ("X=4, Y=4", "tpu_v5e 4x8", "SH510"),
        ("X=2, Y=32", "tpu_v5e 8x8", "SH511"),
        ("X=16 @ici(2), Y=4", "tpu_v5e 16x4", "SH511"),
        ("X=4, Y=4", "h100 4x4", "SH512"),
        ("X=8, Y=8", "tpu_v5e 4x4x4", "SH512"),
        ("X=32, Y=16", "tpu_v5e 32x16", "SH512"),
        ("X=8, Y=8", "tpu_v5e 8x", "SH249"),
    ],
)
def test_what_does_not_fit_is_an_error_at_the_shape(mesh, hardware, code):
    """`check` and `cost` name the mistake at the place of the slice's shape."""
    text = f"mesh {mesh}\nhardware {hardware}\nA[B_Y] -> A[B]\n"
    (found,) = sl.check(text)

    assert found.mistake.code == code
    assert text[found.span.start : found.span.end] == hardware.split()[1]
    if code != "SH249":
        with pytest.raises(sl.ShardlangError, match=code):
            sl.cost(sl.lower(sl.parse(text)))


def test_a_shape_that_is_given_beside_the_program():
    """A mistake in it is placed there, not in the program."""
    plan = sl.lower(sl.parse("mesh X=4, Y=8\nhardware tpu_v5e 4x8\nA[B_Y] -> A[B]\n"))
    with pytest.raises(sl.ShardlangError) as caught:
        sl.cost(plan, hardware="tpu_v5e 8x8")
    (found,) = caught.value.diagnostics

    assert found.source.name == "--hardware"
    assert found.source.text[found.span.start : found.span.end] == "8x8"


def test_sizes_that_a_slice_rests_on_stay():
    """A compiled report of a mesh on a slice refuses other sizes of its axes."""
    found = report("mesh X=4, Y=16; A[B_Y, D] -> A[B, D]", "tpu_v5p 4x4x4", B=64, D=64)
    function = found.compile(["B", "Y"], "t_comms")

    assert function(64, 16)[0] == float(found.total.quantity("t_comms").value)
    with pytest.raises(ValueError, match="the axis Y has size 16"):
        function(64, 8)


def test_sizes_on_nodes_vary():
    """A compiled report on nodes gives for other sizes what a report of these sizes gives."""
    text = "mesh X=4, Y=4; A[B_XY, D] -> A[B, D]"
    function = report(text, "h100", B=2**12, D=2**10).compile(["X", "Y"], "t_comms")

    for x, y in ((2, 2), (4, 4), (2, 16), (16, 2), (8, 8)):
        other = text.replace("X=4, Y=4", f"X={x}, Y={y}")
        expected = seconds(other, "h100", B=2**12, D=2**10)
        assert function(x, y)[0] == pytest.approx(expected)


def test_a_slice_is_written_back():
    """Canonical text and lowered programs keep the shape; `x` and `×` are the same."""
    text = "mesh X=16, Y=4\nhardware tpu_v5p 4×4x4\nA[B_Y] -> C[B]\n"
    assert "hardware tpu_v5p 4x4x4\n" in format_source(Source("test", text))
    lowered = str(sl.lower(sl.parse(text)))
    assert "hardware tpu_v5p 4x4x4\n" in lowered
    assert sl.parse(lowered).slice == (4, 4, 4)


def test_a_chip_without_latency_says_so():
    """What is taken as 0 stands in the report, and not where it is given or not needed."""
    text = "mesh X=8; A[B_X] -> A[B]"
    assert "h100 has no T_hop: taken as 0 s" in report(text, "h100", B=64).notes
    assert not any("taken as 0" in note for note in report(text, "h100", B=64, T_hop=1).notes)
    assert not any("taken as 0" in note for note in report(text, "tpu_v5e", B=64).notes)


@pytest.mark.parametrize(
    ("figure", "hint"),
    [("hop_latency", "T_hop"), ("dcn_latency", "T_dcn"), ("wrap_axis", "TOML file")],
)
def test_figures_that_are_set_by_other_names(figure, hint):
    """The catalogue's name of a latency leads to its name in formulas."""
    with pytest.raises(sl.ShardlangError, match="SH513") as caught:
        report("mesh X=8; A[B_X] -> A[B]", "tpu_v5e", B=64, **{figure: 1})
    assert hint in (caught.value.diagnostics[0].mistake.hint() or "")


def test_figures_that_no_formula_has():
    """They may be set, and a warning says that nothing changes."""
    found = report("mesh X=8; A[B_X] -> A[B]", "tpu_v5e", B=64, cache=1, in_network=1)
    assert "no formula uses cache" in found.warnings
    assert any("no switch joins these chips" in warning for warning in found.warnings)


def test_nodes_of_another_size():
    """`--set node=4`: X = 8 spans two nodes; of 3 x 4 devices on nodes of 8, Y = 4 lies inside."""
    text = "mesh X=8; A[B_X] -> A[B]"
    assert report(text, "h100", B=64, node=4).slice == "nodes of 4: X 4 inside, 2 across"
    found = report("mesh X=3, Y=4; A[B_Y] -> A[B]", "h100", B=64)
    assert found.slice == "nodes of 8: X 1 inside, 3 across; Y 4 inside, 1 across"


def test_fully_linked_nodes():
    """Where every two of 8 have a link of their own, a gather of n takes V/n over one of them."""
    model = Link()
    level = Level(number(4), ONE, ONE, pairs=True)
    gather = model.all_gather(moved((level,), ONE, number(4)))
    exchange = model.all_to_all(moved((level,), number(4), number(4)))

    assert busiest(gather) == busiest(exchange) == 1
    assert gather.sent.value({}) == 3
