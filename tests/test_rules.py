"""The rule table: complete, unambiguous, as its examples say, and right in numbers."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from layouts import all_layouts, one_operation, samples
from simulator import check_numbers, Simulator

import shardlang as sl
from shardlang.cost.report import cost
from shardlang.frontend.resolve import load_text
from shardlang.ir.ops import (
    AllGather,
    AllReduce,
    AllToAll,
    Coefficient,
    Collective,
    Divide,
    Einsum,
    Linear,
    Map,
    Mask,
    Op,
    Reduce,
    ReduceScatter,
    Ring,
    RingAttention,
    Slice,
)
from shardlang.ir.plan import Plan, Step
from shardlang.ir.printer import statement
from shardlang.ir.types import Array, Axis, Dim, DTYPES, Layout, Tensor
from shardlang.passes import lower
from shardlang.passes.reshard import route
from shardlang.planner.prices import price
from shardlang.rules.collectives import Illegal, relayout
from shardlang.rules.price import book_bytes
from shardlang.rules.table import lookup, Partial, RULES, Split, Wish
from shardlang.rules.transpose import TRANSPOSE

I, J, K = map(Dim, "IJK")
ONE = Coefficient()


@pytest.mark.parametrize(
    ("split", "partial", "wish"), list(itertools.product(Split, Partial, Wish))
)
def test_every_situation_has_exactly_one_row(split: Split, partial: Partial, wish: Wish) -> None:
    """No situation of an axis is left out, and none is claimed by two rows."""
    rows = [rule for rule in RULES if rule.holds(split, partial, wish)]

    assert [lookup(split, partial, wish)] == rows


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_examples_are_what_the_rules_do(rule) -> None:
    """Each row's example lowers to the lines that the row shows."""
    plan = lower(load_text(f"mesh X, Y\n{rule.before}\n"), forward_only=True)

    assert rule.after == tuple(statement(step) for step in plan.forward)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_examples_are_settled_by_their_row(rule) -> None:
    """The example of a row fires that row, so that the table's text and its use agree."""
    plan = lower(load_text(f"mesh X, Y\n{rule.before}\n"), forward_only=True)

    assert rule.name == "idle" or any(rule.name in step.rule.split(", ") for step in plan.forward)


OPERATIONS = {
    "einsum": (Einsum((J,)), ("IJ", "JK"), "IK"),
    "batched": (Einsum((J,)), ("IJ", "IJ"), "I"),
    "hadamard": (Einsum(()), ("IJ", "JI"), "IJ"),
    "sum": (Linear((ONE, ONE)), ("IJ", "JI"), "JI"),
    "bias": (Linear((ONE, Coefficient(ONE.value * -2))), ("IJ", "J"), "IJ"),
}


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("axes", ["XY", "XYZ"])
def test_inference_is_right_in_numbers(name: str, axes: str) -> None:
    """Whatever the layouts, the plan computes the global result and its gradients."""
    op, (left, right), result = OPERATIONS[name]
    pools = [all_layouts(len(left), axes), all_layouts(len(right), axes)]
    targets = [*all_layouts(len(result), axes), None]
    count = 400 if axes == "XY" else 150
    for a, b, c in samples(*pools, targets, count=count, seed=7):
        assert a is not None
        assert b is not None
        plan = lower(one_operation(op, [(left, a), (right, b)], result, c, axes))
        check_numbers(plan, seed=3)


@pytest.mark.parametrize(
    ("op", "result"),
    [
        (Map("gelu"), "IJ"),
        (Map("exp"), "IJ"),
        (Reduce("sum", (J,)), "I"),
        (Reduce("mean", (I, J)), ""),
        (Reduce("max", (J,)), "I"),
        (Linear((Coefficient(ONE.value * 3),), ONE.value), "JI"),
    ],
)
def test_unary_operations_are_right_in_numbers(op: Op, result: str) -> None:
    """Every layout of one operand and of the result, partial sums included."""
    pools = [all_layouts(2, "XY"), [*all_layouts(len(result), "XY"), None]]
    for a, c in samples(*pools, count=500, seed=1):
        assert a is not None
        check_numbers(lower(one_operation(op, [("IJ", a)], result, c, "XY")))


def test_quotients_are_right_in_numbers() -> None:
    """A partial sum may be divided, never divide."""
    pools = [all_layouts(2, "XY"), all_layouts(1, "XY", partial=False)]
    for a, b in samples(*pools, count=200, seed=2):
        assert a is not None
        assert b is not None
        program = one_operation(Divide(), [("IJ", a), ("J", b)], "IJ", None, "XY")
        plan = lower(program, forward_only=True)
        check_numbers(plan, seed=5)


def test_every_reshard_arrives_with_the_right_data() -> None:
    """Between any two layouts of three axes, the route's moves carry each shard to its place."""
    layouts = all_layouts(2, "XYZ")
    tensor = Tensor("A", (I, J), DTYPES["f32"])
    sizes = {"X": 2, "Y": 2, "Z": 2, "I": 8, "J": 8}
    plan = lower(one_operation(Map("exp"), [("IJ", layouts[0])], "IJ", None, "XYZ"))
    rng = np.random.default_rng(0)
    value = rng.normal(size=(8, 8))
    for before, after in samples(layouts, layouts, count=1500, seed=4):
        assert before is not None
        assert after is not None
        run = Simulator(plan, sizes)
        start = Array(tensor, before)
        run.values[start] = run.scatter(start, value, rng)
        array = start
        for move in route(start, after, {}):
            run.run(Step(move.op, (array,), move.output))
            array = move.output

        assert array.layout == after
        np.testing.assert_allclose(run.collect(array), value, rtol=1e-9, atol=1e-9)


REDISTRIBUTIONS = [
    ("A[I_X, J]", "A[I, J_X]", ["AllToAll_{X,J}"]),
    ("A[I_Y, J, K_X]", "A[I, J_XY, K]", ["AllToAll_{X,J}", "AllToAll_{Y,J}"]),
    ("A[I, J]{U_XY}", "A[I_X, J]", ["ReduceScatter_{X,I}", "AllReduce_Y"]),
    ("A[I_X, J]{U_Y}", "A[I_X, J_Y]", ["ReduceScatter_{Y,J}"]),
    ("A[I, J_XY, K]", "A[I_XY, J, K]", ["AllToAll_{XY,I}"]),
    ("A[I_X, J]", "A[I, J_YZ]", ["Slice_{YZ,J}", "AllGather_X"]),
    ("A[I_XY, J]", "A[I_YX, J]", ["Permute"]),
    ("A[I, J]{U_X}", "A[I, J_Y]{U_X}", ["Slice_{Y,J}"]),
]


@pytest.mark.parametrize(("before", "after", "expected"), REDISTRIBUTIONS)
def test_known_redistributions(before: str, after: str, expected: list[str]) -> None:
    """Layout changes that other systems did by gathering, or got wrong, in as few bytes as known."""
    plan = lower(load_text(f"mesh X, Y, Z\n{before} -> {after}\n"), forward_only=True)
    lines = [statement(step).split(" = ")[1] for step in plan.forward]

    assert expected == [line.split("(")[0] for line in lines]


def test_relayouts_have_a_transpose() -> None:
    """Every operation has its row in the table of cotangents, but what only lowered plans have."""
    missing = {op for op in Op.__args__ if op not in TRANSPOSE}

    assert missing == {RingAttention}


A = Tensor("A", (I, J), DTYPES["f32"])
X, Y = Axis("X"), Axis("Y")


@pytest.mark.parametrize(
    ("op", "layout", "words"),
    [
        (AllGather((X,), I), Layout(((X, Y), ())), "innermost"),
        (AllGather((Y,), I), Layout(((X,), ())), "does not split"),
        (ReduceScatter((Y,), I), Layout(((X,), ())), "no partial sums"),
        (AllReduce((X,)), Layout(((X,), ())), "no partial sums"),
        (AllToAll((X,), I, J), Layout(((X, Y), ())), "innermost"),
        (Slice((X,), J), Layout(((), ()), frozenset({X})), "unreduced"),
        (Slice((X,), J), Layout(((X,), ())), "already"),
        (Mask((X,)), Layout(((X,), ())), "already"),
        (ReduceScatter((X,), I), Layout(((), ()), frozenset({X}), "max"), "maxima"),
    ],
)
def test_illegal_relayouts_say_why(op, layout: Layout, words: str) -> None:
    """What would give wrong data is refused with its reason."""
    found = relayout(op, Array(A, layout))

    assert isinstance(found, Illegal)
    assert words in found.why


def test_a_dropped_reduction_gives_other_numbers() -> None:
    """The simulator notices a plan without its AllReduce, so that the tests above can fail."""
    plan = lower(load_text("mesh X\nA[I, J_X] · B[J_X, K] -> C[I, K]\n"), forward_only=True)
    product, reduction = plan.forward
    assert isinstance(reduction.op, Collective)
    whole = product.output.with_layout(product.output.layout.reduced())
    dropped = Plan(
        plan.program, plan.strategy, (Step(product.op, product.inputs, whole),), (), (whole,)
    )

    with pytest.raises(AssertionError):
        check_numbers(dropped)


def test_the_bytes_that_rules_compare_are_those_of_reports_and_planner() -> None:
    """Inference, `cost` and the optimal planner price a collective alike, whatever the layouts."""
    sizes = {"X": 2, "Y": 4, "Z": 2, "I": 64, "J": 32}
    mesh = ", ".join(f"{axis}={sizes[axis]}" for axis in "XYZ")
    layouts = all_layouts(2, "XYZ")
    tensor = Tensor("A", (I, J), DTYPES["bf16"])
    seen: set[type] = set()
    for before, after in samples(layouts, layouts, count=300, seed=11):
        assert before is not None
        assert after is not None
        start, goal = Array(tensor, before), Array(tensor, after)
        text = f"mesh {mesh}\ndims I=64, J=32\n{start} -> {goal}\n"
        if before == after:
            continue
        plan = lower(load_text(text), forward_only=True)
        rows = [row["bytes"]["value"] for row in cost(plan).to_dict()["collectives"]]
        moves = [step for step in plan.forward if step.is_collective]
        seen |= {type(step.op) for step in moves}
        ruled = [book_bytes(s.op, s.inputs[0], s.output).evaluate(sizes).number for s in moves]
        planned = [
            price(s.op, s.inputs[0], s.output, plan.program.mesh, sizes, "book") for s in moves
        ]

        assert ruled == rows, text
        assert ruled == planned, text
    # What is several steps in one is compared step by step.
    assert seen == set(Collective.__args__) - {Ring, RingAttention}


def test_a_contracted_dim_is_not_sliced_into_more_parts_than_it_has():
    """J=2 is split over X already: what is to be partial over Y too is kept on one device of Y."""
    text = "mesh X=2, Y=2, Z=2\ndims I=4, J=2\nC[I]{U_XY} = A[I, J_X] * B[I_Z, J]\n"
    for strategy in ("book", "optimal"):
        plan = sl.lower(sl.parse(text), strategy, forward_only=True)
        printed = str(plan)
        assert "J_XY" not in printed
        assert sl.check(printed, explicit=True) == []
