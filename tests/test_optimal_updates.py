"""Optimal plans of training steps: brute force, the rules, and emitted steps against those of the book plan."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from math import prod
from typing import Any

import exhaustive
import numpy as np
import pytest
from simulator import check_numbers
from test_optimal import brute, FORMS, Small
from test_optimal_blocks import block, body
from test_train import load, optimizers, SCHEMES
from test_train import program as scheme_program

import shardlang as sl
from shardlang.backends.jax import emit_jax
from shardlang.backends.jax.sizes import choose
from shardlang.diagnostics import ShardlangError
from shardlang.ir.ops import Permute
from shardlang.ir.plan import Plan
from shardlang.ir.printer import print_plan
from shardlang.ir.types import Axis
from shardlang.passes import lower
from shardlang.planner.memory import peak
from shardlang.planner.program import best_plan
from shardlang.verify.collectives import lowered, planned


def moved(plan: Plan) -> float:
    """Give the bytes that a device sends in a step, as the cost report adds them up."""
    return sl.cost(plan, model="link").to_dict()["totals"]["total"]["bytes"]["value"]


def lines_of(text: str) -> list[str]:
    """Give the lines of a printed plan without what is said of it."""
    return [line for line in text.splitlines() if not line.startswith("//")]


LAYERS = """
mesh X=4, Y=2
dims B=16, D=16, F=32, L=3
dtype f32
{lines}
param W_in: [L, {w_in}], W_out: [L, {w_out}], g: [L, D]
input In: [B_X, D], Target: [B_X, D]
x = In * 1
layers L:
  x = x + gelu((x ⊙ g) ·_D W_in) ·_F W_out
loss = mean_{{B,D}}(square(x - Target))
"""

LAYERED = {
    "layers, fsdp": ("D_X, F", "F, D_X", "optimizer adamw\naccumulate M=4"),
    "layers, tp zero 1": ("D, F_Y", "F_Y, D", "optimizer adamw, zero 1 over X\naccumulate M=4"),
    "layers, fsdp tp zero 1": (
        "D_X, F_Y",
        "F_Y, D_X",
        "optimizer adamw, zero 1 over XY\naccumulate M=4",
    ),
    "layers, dp zero 2": ("D, F", "F, D", "optimizer adamw, zero 2 over XY\naccumulate M=4"),
    "layers, one batch": ("D, F_Y", "F_Y, D", "optimizer adamw, zero 1 over X"),
    "layers, no optimizer": ("D_X, F_Y", "F_Y, D_X", "accumulate M=4"),
    "layers, prefetched": (
        "D_X, F",
        "F, D_X",
        "optimizer adamw\naccumulate M=4\nprefetch W_in, W_out",
    ),
}
"""Blocks by name: layouts of a layer's two weights, and what is declared of the step."""


def text_of(name: str) -> str:
    """Write a program by its name."""
    if name in SCHEMES:
        return scheme_program(name)
    if name in PIPELINES:
        mesh, leaves = PIPELINES[name]
        return STAGES.format(mesh=mesh, leaves=leaves)
    w_in, w_out, lines = LAYERED[name]
    return LAYERS.format(w_in=w_in, w_out=w_out, lines=lines)


# --- Brute force


class Step:
    """A small program with a declaration of a training step: W is a parameter, all else is data."""

    def __init__(self, seed: int) -> None:
        """Draw one: a product, or two that read the parameter or each other, on one axis or two."""
        rng = random.Random(f"step {seed}")
        name = rng.choice(("one", "one", "same weight", "two readers of a leaf", "function"))
        axes: exhaustive.Axes = (("X", rng.choice((2, 4))),)
        if name == "one":
            axes = (*axes, ("Y", 2))
        dims, lines = FORMS[name]
        made = {line.result for line in lines}
        read = {each for line in lines for each in line.operands}
        dims = {each: own for each, own in dims.items() if each in made | read}
        sizes = {dim: rng.choice((2, 4, 6, 8, 16, 32)) for dim in "IJKL"}
        sizes = {dim: n for dim, n in sizes.items() if any(dim in own for own in dims.values())}

        def layout(value: str) -> exhaustive.State:
            shape = tuple(sizes[dim] for dim in dims[value])
            return rng.choice([s for s in exhaustive.all_states(shape, axes) if not s[1]])

        homes = {each: layout(each) for each in dims if each not in made}
        ends = {each: layout(each) for each in made - read}
        self.small = Small(dims, lines, homes, ends, sizes, axes, "link")
        self.many = rng.choice((0, 1, 2, 3, 8))
        self.level = rng.choice((0, 1, 1, 2))
        self.over = rng.choice([axis for axis, _ in axes])
        self.optimizer = self.level > 0 or rng.random() < 0.5
        if not self.many and not self.level:
            self.level, self.optimizer = 1, True

    def text(self) -> str:
        """Write it in the notation."""
        said = [f"optimizer adamw{f', zero {self.level} over {self.over}' if self.level else ''}"]
        said = said if self.optimizer else []
        said += [f"accumulate M={self.many}"] if self.many else []
        mesh, dims, *lines = self.small.text().splitlines()
        return "\n".join([mesh, dims, *said, *lines]) + "\n"

    def state(self) -> exhaustive.State:
        """Give where the optimizer's state of W lies: the first dim is split that the axis divides."""
        splits = list(self.small.homes["W"][0])
        mesh, shape = dict(self.small.axes), self.small.shape("W")
        if self.level and not any(self.over in own for own in splits):
            for place, own in enumerate(splits):
                if exhaustive.local_shape(((*own, self.over),), shape[place : place + 1], mesh):
                    splits[place] = (*own, self.over)
                    break
        return tuple(splits), frozenset()

    def passes(self) -> Small:
        """Give both passes of a batch, without what is made for data's gradients alone."""
        both = self.small.both_passes()
        ends = {name: end for name, end in both.ends.items() if name in {*self.small.ends, "dW"}}
        needed, lines = {*ends}, []
        for line in reversed(both.lines):
            sums = {part for name in needed for part in both.sums.get(name, ())}
            if line.result in needed | sums:
                needed.update(line.operands)
                lines.insert(0, line)
        sums = {name: parts for name, parts in both.sums.items() if name in needed}
        return replace(both, lines=lines, ends=ends, sums=sums, layers=self.many or 1)

    def least(self, limit: int) -> int | None:
        """The least cost up to a limit over all layouts in which the gradient of W ends a batch.

        Behind all batches its mean (in 4 bytes each; a gradient has 2) is brought to the state, and the
        new W from there to where it lives.
        """
        home = (self.small.homes["W"][0], frozenset[str]())
        goal = self.state() if self.optimizer else home
        own = {axis for axes in home[0] for axis in axes}
        width = 2 if self.many else 1
        both = self.passes()
        last = self.small.distance("W", goal, home) if self.optimizer else 0
        best: int | None = None
        for end in exhaustive.all_states(self.small.shape("W"), self.small.axes):
            split = {axis for axes in end[0] for axis in axes}
            if end != goal if self.level == 2 else not own <= split:
                continue
            behind = width * self.small.distance("W", end, goal) + last
            left = (limit if best is None else best - 1) - behind
            if left >= 0:
                found = brute(replace(both, ends={**both.ends, "dW": end}), left)
                best = best if found is None else found + behind
        return best


@pytest.mark.parametrize("batch", range(10))
def test_small_steps_against_brute_force(batch):
    """Every joint choice of layouts in both passes is tried, with every layout a gradient may end in.

    What a batch moves counts once for each microbatch, what the update moves once.
    """
    for seed in range(batch * 5, batch * 5 + 5):
        step = Step(seed)
        text = step.text()
        plan = best_plan(sl.parse(text), keep_gathered=False, sub_axes=False, budget=30)
        proof = plan.proof
        assert proof is not None, text
        assert proof.optimal, text
        assert proof.cost == moved(plan), text
        scaled = proof.cost / 2 * exhaustive.SCALE
        found = step.least(int(scaled))

        assert found == scaled, f"seed {seed}\n{text}\n{print_plan(plan)}"


# --- Stages


def stage(seed: int) -> tuple[Small, str, int]:
    """Draw a block on two stages with a parameter of its own for each product, its text, and its microbatches.

    Of the small program's `layers` each stage has so many.
    """
    small, many = body("two weights", seed), random.Random(f"stage {seed}").choice((1, 3))
    mesh, *lines = block(replace(small, layers=2 * small.layers)).splitlines()
    text = "\n".join([f"{mesh}, Z=2", f"accumulate i={many}", "schedule 1f1b", *lines]) + "\n"
    return small, text.replace("layers L=", "layers L_Z=").replace(": [L, ", ": [L_Z, "), many


def least_of_stage(small: Small, many: int, limit: int) -> int | None:
    """The least cost up to a limit of what a stage moves in a step, and of what it sends both ways.

    `a` and its gradient are handed on, and sent, in any layouts, brought there before the block, in each
    microbatch, and `a` home behind it: as data it has no gradient. Within a stage nothing is permuted. Gradients end in every layout that their
    parameter's axis splits, and their means, of 4 bytes, are brought home once a layer.
    """
    mesh, still = dict(small.axes), replace(small, network="still")
    home = small.homes["a"]
    handed: list[tuple[exhaustive.State, int]] = []
    handed_back: list[tuple[exhaustive.State, int]] = []
    for state in exhaustive.all_states(small.shape("a"), small.axes):
        shards = exhaustive.local_shape(state[0], small.shape("a"), mesh)
        if not state[1] and shards is not None:
            sent = still.distance("a", home, state) + prod(shards) * exhaustive.SCALE
            handed.append((state, many * (sent + still.distance("a", state, home))))
            handed_back.append((state, many * sent))
    choices = [handed, handed_back]
    for name in ("W", "b"):
        own = {axis for axes in small.homes[name][0] for axis in axes}
        pool = exhaustive.all_states(small.shape(name), small.axes)
        ends = [s for s in pool if own <= {axis for axes in s[0] for axis in axes}]
        paid = [2 * small.layers * small.distance(name, s, small.homes[name]) for s in ends]
        choices.append(list(zip(ends, paid, strict=True)))
    best: int | None = None
    for chosen in sorted(itertools.product(*choices), key=lambda each: sum(c for _, c in each)):
        behind = sum(paid for _, paid in chosen)
        left = (limit if best is None else best - 1) - behind
        if left < 0:
            break
        one, back, first, second = (state for state, _ in chosen)
        inner = replace(still, homes={**still.homes, "a": one}, ends={"o": one}).both_passes()
        ends = {"o": one, "da": back, "dW": first, "db": second}
        homes = {**inner.homes, "do": back}
        each = replace(inner, homes=homes, ends=ends, layers=small.layers * many)
        found = brute(each, left)
        best = best if found is None else found + behind
    return best


@pytest.mark.parametrize("batch", range(4))
def test_stages_against_brute_force(batch, monkeypatch):
    """Every joint choice of layouts within a stage is tried, and of what is sent and of gradients' ends."""
    still = replace(exhaustive.NETWORKS["link"], permute=lambda b, a, n: 10**6 * exhaustive.SCALE)
    monkeypatch.setitem(exhaustive.NETWORKS, "still", still)
    for seed in range(batch * 4, batch * 4 + 4):
        small, text, many = stage(seed)
        plan = best_plan(sl.parse(text), keep_gathered=False, budget=30, sub_axes=False)
        proof = plan.proof
        assert proof is not None, text
        assert proof.optimal, text
        assert proof.cost == moved(plan), text
        scaled = proof.cost / 2 * exhaustive.SCALE
        found = least_of_stage(small, many, int(scaled))

        assert found == scaled, f"seed {seed}\n{text}\n{print_plan(plan)}"


# --- Against the rules


@pytest.mark.parametrize("name", [*SCHEMES, *LAYERED])
def test_steps_are_proven_explicit_and_right(name):
    """Not dearer than the rules, its cost that of the report, the same when read again, right in numbers."""
    source = sl.parse(text_of(name))
    plan = best_plan(source, objective="bytes", sub_axes=False, budget=60)
    text = print_plan(plan)

    assert plan.proof is not None
    assert plan.proof.cost == moved(plan) <= moved(lower(source))
    assert plan.proof.bound > 0.9 * plan.proof.cost
    assert not [d for d in sl.check(text, explicit=True) if d.severity == "error"]
    assert lines_of(text) == lines_of(print_plan(lower(sl.parse(text))))
    check_numbers(plan)


def ends(text: str) -> dict[str, str]:
    """Give the gradients as they end the backward pass in the plan of least bytes, by name."""
    plan = best_plan(sl.parse(text), objective="bytes", sub_axes=False)
    return {each.gradient.name: str(each.gradient) for each in plan.gradients}


def test_a_gradient_is_reduced_once_or_in_each_microbatch():
    """In f32 once is least of many; of one microbatch a reduction in bf16 moves half of that in f32.

    x is so large that only W and its gradient are moved.
    """
    text = (
        "mesh X=4\ndims B=4096, D=16, F=32\noptimizer adamw, zero 1 over X\naccumulate M={many}\n"
        "input x: [B_X, D]\nh[B_X, F] = x ·_D W[D, F]\n"
    )

    assert ends(text.format(many=8)) == {"dW": "dW[D, F]{U_X}"}
    assert ends(text.format(many=1)) == {"dW": "dW[D_X, F]"}
    assert ends(text.format(many=8).replace("zero 1", "zero 2")) == {"dW": "dW[D_X, F]"}


def test_axes_that_split_a_parameter_split_what_is_kept_of_its_gradient():
    """With FSDP each microbatch reduces it, though once would move less: no device holds all of it."""
    text = (
        "mesh X=4\ndims B=4096, D=16, F=32\noptimizer adamw\naccumulate M=8\n"
        "input x: [B_X, D]\nh[B_X, F] = x ·_D W[D_X, F]\n"
    )

    assert ends(text) == {"dW": "dW[D_X, F]"}


def test_a_gradient_changes_its_split_once_a_step():
    """It ends as the product makes it, split over X where W is not, and is exchanged behind all batches."""
    text = (
        "mesh X=4\ndims B=1024, D=64, F=32\noptimizer adamw\naccumulate M=8\n"
        "input x: [B, D]\nh[B, F_X] = x ·_D W[D_X, F]\n"
    )
    plan = best_plan(sl.parse(text), objective="bytes", sub_axes=False)

    assert ends(text) == {"dW": "dW[D, F_X]"}
    assert [str(step.op).split("(")[0] for step in plan.update if step.is_collective] == [
        "AllToAll"
    ]


@pytest.mark.parametrize("name", ["fsdp", "layers, fsdp tp zero 1"])
def test_steps_under_a_memory_limit(name):
    """At the best plan's own peak it is the answer; where nothing fits the error says so."""
    source = sl.parse(text_of(name))
    free = best_plan(source, objective="bytes", sub_axes=False)
    tight = best_plan(source, objective="bytes", sub_axes=False, memory_limit=peak(free))

    assert tight.proof is not None
    assert tight.proof.fit is not None
    assert tight.proof.cost == moved(tight) == moved(free)
    with pytest.raises(ShardlangError, match="SH357"):
        best_plan(source, objective="bytes", sub_axes=False, memory_limit=1000, budget=5)


PARTS = """
mesh X=4, Y=2
dims B=16, D={d}, F=32
optimizer adamw, zero 1 over X
accumulate M=2
param W_in: [D, F_Y], W_out: [F_X, D]
input x: [B_X, D], t: [B_Y, D]
y[B_X, D] = gelu(x ·_D W_in) ·_F W_out
loss = mean_{{B,D}}(square(y - t))
"""


def test_parts_of_axes_leave_states_where_they_lie():
    """X is split where that moves less; not where half of X divides a dim that X does not."""
    plan, whole = (
        best_plan(sl.parse(PARTS.format(d=16)), sub_axes=sub_axes, budget=30)
        for sub_axes in (True, False)
    )
    other = best_plan(sl.parse(PARTS.format(d=2)), sub_axes=True, budget=30)
    assert plan.proof is not None
    assert whole.proof is not None

    assert plan.proof.cost < whole.proof.cost
    assert {str(a) for a in plan.states.values()} == {"W_in[D_{X1,X2}, F_Y]", "W_out[F_{X1,X2}, D]"}
    assert [info.axis.name for info in other.program.mesh.axes] == ["X", "Y"]


# --- Emitted steps


PIPELINES = {
    "stages, fsdp tp": (
        "mesh X=2, Y=2, Z=2\nschedule 1f1b\noptimizer adamw",
        "param W_in: [L_Z, D_X, F_Y], W_out: [L_Z, F_Y, D_X], g: [D_X]\nsave none",
    ),
    "stages, zero 1": (
        "mesh X=2, Y=2, Z=2\nschedule gpipe\noptimizer adamw, zero 1 over X",
        "param W_in: [L_Z, D, F_Y], W_out: [L_Z, F_Y, D], g: [D]",
    ),
    "stages, exchanged": (
        "mesh X=2, Y=2, Z=2\nschedule 1f1b\noptimizer adamw",
        "param W_in: [L_Z, D_Y, F_X], W_out: [L_Z, F, D_XY], g: [D_Y]\nprefetch W_in",
    ),
    "stages, interleaved": (
        "mesh X=4, Z=2\nschedule interleaved, chunks 2\noptimizer adamw, zero 2 over X",
        "param W_in: [L_Z, D, F], W_out: [L_Z, F, D], g: [D]",
    ),
}
STAGES = """
{mesh}
dims B=16, D=16, F=32, L=4
dtype f32
accumulate i=4
{leaves}
input In: [B_X, D], Target: [B_X, D]
x[B_X, D] = In * g
layers L_Z:
  x = x + gelu((x ⊙ g) ·_D W_in) ·_F W_out
loss = mean_{{B,D}}(square(x - Target))
"""


@pytest.mark.parametrize("name", PIPELINES)
def test_stages_are_proven_explicit_and_send_once(name):
    """A stage permutes nothing but what it sends, though X and Y are of one size; costs are those of the report."""
    source = sl.parse(text_of(name))
    plan = best_plan(source, objective="bytes", budget=60, sub_axes=False)
    text = print_plan(plan)
    moving = [s for section, s in plan.steps() if section != "update" and isinstance(s.op, Permute)]

    assert plan.proof is not None
    assert plan.proof.optimal
    assert plan.proof.cost == moved(plan) <= moved(lower(source))
    assert [step.op for step in moving] == [Permute((Axis("Z"),))] * 2
    assert not [d for d in sl.check(text, explicit=True) if d.severity == "error"]
    assert lines_of(text) == lines_of(print_plan(lower(sl.parse(text))))


EMITTED = (
    *PIPELINES,
    "dp zero 1",
    "fsdp",
    "fsdp tp zero 1",
    "tp zero 2",
    "dp zero 1, one batch",
    "layers, fsdp tp zero 1",
    "layers, dp zero 2",
    "layers, prefetched",
)


@pytest.mark.parametrize("name", EMITTED)
def test_emitted_steps_are_those_of_the_book_plan(name):
    """Two steps from the same state give the same losses and parameters; JAX lowers the plan's collectives."""
    source = sl.parse(text_of(name))
    rng = np.random.default_rng(3)
    found: list[tuple[list[Any], dict[str, Any]]] = []
    data: dict[str, Any] = {}
    for plan in (
        best_plan(source, objective="bytes", sub_axes=False, budget=60),
        lower(source),
    ):
        module = load(emit_jax(plan))
        tables = {**module["INPUTS"], **module["BATCH"]}
        data = data or {each: 0.3 * rng.normal(size=row[0]) for each, row in tables.items()}
        optimizer, mesh = optimizers()["adamw"], module["make_mesh"]()
        weights = {each: data[each] for each in module["STATES"]}
        batch = {each: data[each] for each in module["BATCH"]}
        state = module["init_state"](mesh, optimizer, weights)
        step = module["make_train_step"](mesh, optimizer)
        wanted = planned(plan, choose(plan), ["forward", "backward", "update"])
        assert lowered(step.lower(state, batch).compiler_ir("stablehlo")) == wanted
        losses: list[Any] = []
        for _ in range(2):
            state, loss = step(state, batch)
            losses.append(loss)
        found.append((losses, state["parameters"]))

    (losses, parameters), (book, expected) = found
    np.testing.assert_allclose(losses, book, rtol=1e-5)
    assert losses[1] < losses[0]
    for each, x in expected.items():
        np.testing.assert_allclose(parameters[each], x, atol=2e-5, rtol=0)


@pytest.mark.parametrize("strategy", ["book", "optimal"])
@pytest.mark.parametrize("name", ["fsdp tp zero 1", "layers, prefetched"])
def test_explanations_count_what_a_step_moves(name, strategy):
    """The bytes of each collective are those of all microbatches and layers: together they are the total."""
    source = sl.parse(text_of(name))
    found = sl.explain(source, strategy=strategy, objective="bytes", prices="link", sub_axes=False)
    plan = lower(source)
    if strategy == "optimal":
        plan = best_plan(source, objective="bytes", sub_axes=False)

    assert found.total == sum(each.bytes or 0 for each in found.collectives) == moved(plan)
    assert any(each.section == "update" for each in found.collectives) == any(
        step.is_collective for step in plan.update
    )
