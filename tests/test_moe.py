"""Mixture of experts, from `top`, `rank`, `put` and `take`: against a loop over tokens, and what moves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from simulator import check_numbers, Simulator

import shardlang as sl
from shardlang.frontend.resolve import load_text, Overrides
from shardlang.ir.ops import AllToAll
from shardlang.ir.plan import Plan
from shardlang.ir.printer import statement
from shardlang.passes import lower

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "moe.shd"
SMALL = {
    "X": 2, "Y": 2, "Z": 2, "G": 8, "S": 6, "D": 4, "F": 4, "E": 4, "J": 2, "C": 2,
}  # fmt: skip
ROOMY = {**SMALL, "C": 12}
"""Places for every choice of a group, were they all of one expert."""


def example(sizes: dict[str, int], *, forward_only: bool = False) -> Plan:
    """Lower the example at other sizes."""
    text = EXAMPLE.read_text(encoding="utf-8")
    return lower(load_text(text, overrides=Overrides(sizes=sizes)), forward_only=forward_only)


def silu(x: np.ndarray) -> np.ndarray:
    """The function by its formula."""
    return x / (1 + np.exp(-x))


def by_tokens(given: dict[str, np.ndarray], sizes: dict[str, int]) -> tuple[np.ndarray, int]:
    """Send one token after the other to its experts; give the results, and how many found no place."""
    x, out, dropped = given["x"], np.zeros_like(given["x"]), 0
    for g in range(sizes["G"]):
        taken = [0] * sizes["E"]
        for s in range(sizes["S"]):
            token = x[g, s]
            scores = np.exp(token @ given["W_router"])
            gates = scores / scores.sum()
            best = sorted(range(sizes["E"]), key=lambda e: (-gates[e], e))[: sizes["J"]]
            for e in best:
                if taken[e] < sizes["C"]:
                    hidden = silu(token @ given["W_gate"][e]) * (token @ given["W_up"][e])
                    weight = gates[e] / sum(gates[b] for b in best)
                    out[g, s] += weight * (hidden @ given["W_down"][e])
                else:
                    dropped += 1
                taken[e] += 1
    return out, dropped


def run(plan: Plan, given: dict[str, np.ndarray], sizes: dict[str, int]) -> tuple[np.ndarray, int]:
    """Run the forward pass on the numpy mesh."""
    mesh, rng = Simulator(plan, sizes), np.random.default_rng(9)
    for leaf in plan.program.leaves:
        mesh.values[leaf.array] = mesh.scatter(leaf.array, given[leaf.array.name], rng)
    for step in plan.forward:
        mesh.run(step)
    found = {array.name: mesh.collect(array) for array in plan.outputs}
    return found["out"], int(found["dropped"])


def random_leaves(plan: Plan, sizes: dict[str, int]) -> dict[str, np.ndarray]:
    """Give every leaf mixed-sign data."""
    rng = np.random.default_rng(4)
    return {
        leaf.array.name: rng.normal(size=[sizes[d.name] for d in leaf.array.tensor.dims])
        for leaf in plan.program.leaves
    }


@pytest.mark.parametrize(("sizes", "drops"), [(SMALL, True), (ROOMY, False)])
def test_the_example_computes_what_a_loop_over_tokens_does(sizes, drops: bool) -> None:
    """With too few places tokens are dropped and counted, with enough none is."""
    plan = example(sizes, forward_only=True)
    given = random_leaves(plan, sizes)
    expected, dropped = by_tokens(given, sizes)
    out, counted = run(plan, given, sizes)

    np.testing.assert_allclose(out, expected, rtol=1e-9, atol=1e-9)
    assert (drops, dropped) == (counted > 0, counted)


def test_equal_gates_go_to_the_lower_experts() -> None:
    """With a router of zeros every token chooses experts 0 and 1, and the first ones find places."""
    plan = example(SMALL, forward_only=True)
    given = random_leaves(plan, SMALL)
    given["W_router"] = np.zeros_like(given["W_router"])
    expected, dropped = by_tokens(given, SMALL)
    out, counted = run(plan, given, SMALL)

    np.testing.assert_allclose(out, expected, rtol=1e-9, atol=1e-9)
    assert 8 * 2 * (6 - 2) == dropped == counted
    assert not out[:, 2:].any()


@pytest.mark.parametrize("sizes", [SMALL, ROOMY])
def test_gradients_of_the_example_are_right(sizes) -> None:
    """Against central differences, through the weights and through what was put and taken."""
    check_numbers(example(sizes), seed=2, sizes=sizes)


DISPATCH = [
    ("forward", "slots[G_X, E_Z, C, D_Y] = AllToAll_{Z,E}(slots[G_XZ, E, C, D_Y])"),
    ("forward", "y[G_XZ, E, C, D_Y] = AllToAll_{Z,G}(y[G_X, E_Z, C, D_Y])"),
    ("backward", "dy[G_X, E_Z, C, D_Y] = AllToAll_{Z,E}(dy[G_XZ, E, C, D_Y])"),
    ("backward", "dslots[G_XZ, E, C, D_Y] = AllToAll_{Z,G}(dslots[G_X, E_Z, C, D_Y])"),
]


def moved_over_z(plan: Plan) -> list[tuple[str, str]]:
    """List what a plan moves over Z of the tokens and of the experts."""
    return [
        (section, statement(step))
        for section, step in plan.steps()
        if step.is_collective
        and "Z" in {axis.name for axis in step.op.axes}
        and step.output.name not in ("dropped", "dW_router")
    ]


def test_two_exchanges_each_way_and_no_gather() -> None:
    """Dispatch and combine are AllToAlls, and so are their mirror images."""
    assert DISPATCH == moved_over_z(example({}))


def test_each_exchange_costs_a_quarter_of_the_slots() -> None:
    """By the book an AllToAll moves V/4, where V is the array on all devices of the axis together."""
    plan = example({})
    sizes = {"G": 1024, "E": 8, "C": 1280, "D": 4096}
    on_a_ring = 2 * sizes["G"] * sizes["E"] * sizes["C"] * sizes["D"] // (16 * 4)
    rows = sl.cost(plan).to_dict()["collectives"]
    exchanges = [row["bytes"]["value"] for row in rows if row["op"] == "AllToAll"]

    assert 4 == sum(isinstance(step.op, AllToAll) for _, step in plan.steps())
    assert [on_a_ring / 4] * 4 == exchanges


OPEN = """
mesh X, Y, Z
input x: [G_XZ, S, D_Y]
param W_in: [E_Z, D_X, F_Y], W_out: [E_Z, F_Y, D_X]
input choice: int32[G_XZ, S, J], place: int32[G_XZ, S, J]
slots[G_XZ, E, C, D_Y] = put_{E,C}(x, choice, place)
y = gelu(slots ·_D W_in) ·_F W_out
out[G_XZ, S, D_Y] = sum_J(take_{E,C}(y, choice, place))
"""


def test_open_sizes_and_no_declared_layout_give_the_same() -> None:
    """Case 4 keeps Z on the experts: one operand is moved by an AllToAll, the other would be gathered."""
    plan = sl.lower(sl.parse(OPEN))

    assert ["AllToAll"] * 4 == [line.split("= ")[1].split("_")[0] for _, line in moved_over_z(plan)]
    assert "gather W_in[E_Z, D_X, F_Y] over Z instead" in {a.instead for a in plan.alternatives}


def test_a_lowered_example_is_explicit_and_lowers_to_itself() -> None:
    """Every step is legal as it stands."""
    printed = str(example({}))

    assert sl.check(printed, explicit=True) == []
    assert printed == str(sl.lower(sl.parse(printed)))
