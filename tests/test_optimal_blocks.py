"""Optimal plans of programs with blocks: brute force, the rules, and the layers written out."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from pathlib import Path

import exhaustive
import pytest
from layered import KINDS, program, SIZES
from simulator import check_numbers
from test_optimal import brute, Line, Small

import shardlang as sl
from shardlang.ir.plan import Plan
from shardlang.ir.printer import print_plan
from shardlang.ir.types import Array
from shardlang.passes import lower
from shardlang.passes.unroll import unroll, unroll_plan
from shardlang.planner.memory import peak
from shardlang.planner.prices import price_all, prices_of
from shardlang.planner.program import aim_of, best_plan

EXAMPLES = Path(__file__).parent.parent / "examples"
NAMES = ("two weights", "a weight and what all layers read", "what all layers read twice")


def moved(plan: Plan):
    """Add up what the steps of a plan move, those of a block once a layer."""
    steps = (*plan.forward, *plan.backward)
    return price_all(steps, plan.program.mesh, plan.program.sizes.known)


def lines_of(text: str) -> list[str]:
    """Give the lines of a printed plan without what is said of it."""
    return [line for line in text.splitlines() if not line.startswith("//")]


# --- Brute force


def body(name: str, seed: int) -> Small:
    """Draw a body `t = a · W`, `o = t · b` whose result lies as a does, with 1, 3 or 50 layers."""
    rng = random.Random(f"{name}{seed}")
    axes: exhaustive.Axes = (("X", rng.choice((2, 4))),)
    sizes = {dim: rng.choice((2, 4, 8, 16)) for dim in "IJK"}
    first = "c" if name == NAMES[2] else "W"
    dims = {"a": "IJ", first: "JK", "t": "IK", "b": "KJ", "o": "IJ"}
    lines = [Line("einsum", ("a", first), "t"), Line("einsum", ("t", "b"), "o")]
    once = frozenset({NAMES[0]: "", NAMES[1]: "b", NAMES[2]: "bc"}[name])

    def layout(value: str) -> exhaustive.State:
        shape = tuple(sizes[dim] for dim in dims[value])
        return rng.choice([s for s in exhaustive.all_states(shape, axes) if not s[1]])

    homes = {value: layout(value) for value in dims if value not in ("t", "o")}
    ends = {"o": homes["a"]}
    split = frozenset("b") - once
    layers = rng.choice((1, 3, 50))
    return Small(
        dims, lines, homes, ends, sizes, axes, "link", split=split, layers=layers, once=once
    )


def block(small: Small) -> str:
    """Write a body as a block: what is not read by all layers is a parameter of each."""
    mesh, dims, first, second = small.text().splitlines()
    given = {
        each.partition("[")[0]: each for each in re.findall(r"\b[abcW]\[.*?\]", first + second)
    }
    own = [name for name in small.homes if name != "a" and name not in small.once]
    leaves = [f"param {given[name].replace('[', ': [L, ')}" for name in own]
    leaves.append(f"input {given['a'].replace('[', ': [')}")
    lines = [f"layers L={small.layers}:", f"  {first}", f"  a = {second.partition(' = ')[2]}"]
    return "\n".join([mesh, dims, *leaves, *lines]) + "\n"


def handed_anywhere(small: Small, limit: int, *, both: bool) -> int | None:
    """The least cost up to a limit over all layouts in which layers hand `a` on, and its gradient.

    Both come from where `a` is given before the block, and are brought there behind it.
    """
    home, shape = small.homes["a"], small.shape("a")
    states = [s for s in exhaustive.all_states(shape, small.axes) if not s[1]]
    moved = {s: small.distance("a", home, s) + small.distance("a", s, home) for s in states}
    best: int | None = None
    for one in states:
        inner = replace(small, homes={**small.homes, "a": one}, ends={"o": one})
        for back in states if both else [home]:
            around = moved[one] + moved[back]
            left = (limit if best is None else best - 1) - around
            if left < 0:
                continue
            each = inner
            if both:
                each = inner.both_passes()
                homes, ends = {**each.homes, "do": back}, {**each.ends, "da": back}
                each = replace(each, homes=homes, ends=ends)
            found = brute(each, left)
            best = best if found is None else found + around
    return best


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("batch", range(4))
def test_bodies_against_brute_force(name, batch):
    """Every joint choice of layouts is tried, also of those in which layers hand a value on.

    L times what a layer moves counts, and once what all read and what is moved around the block.
    """
    for seed in range(batch * 4, batch * 4 + 4):
        small, both = body(name, seed), seed % 2 == 0
        text = block(small)
        plan = best_plan(
            sl.parse(text),
            forward_only=not both,
            keep_gathered=False,
            sub_axes=False,
            budget=30,
        )
        proof = plan.proof
        assert proof is not None, text
        assert proof.optimal, text
        assert proof.cost == moved(plan)
        scaled = proof.cost / 2 * exhaustive.SCALE
        found = handed_anywhere(small, int(scaled), both=both)

        assert found == scaled, f"seed {seed}\n{text}\n{print_plan(plan)}"


# --- Random programs


@pytest.mark.parametrize("forward_only", [False, True])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "twice"])
@pytest.mark.parametrize("seed", [0])
def test_random_blocks(kind, seed, forward_only):
    """Proven, not dearer than the rules, explicit, right in numbers; layers written out can only be cheaper."""
    source = sl.parse(program(kind, seed, "L=2"))
    plan = best_plan(source, forward_only=forward_only, sub_axes=False, budget=30)
    text = print_plan(plan)
    again = lower(sl.parse(text), forward_only=forward_only)
    free = best_plan(unroll(source, 2), forward_only=forward_only, sub_axes=False, budget=30)

    assert plan.proof is not None
    assert plan.proof.optimal
    assert plan.proof.cost == moved(plan) <= moved(lower(source, forward_only=forward_only))
    assert not [d for d in sl.check(text, explicit=True) if d.severity == "error"]
    assert lines_of(text) == lines_of(print_plan(again))
    assert moved(again) == moved(plan) == moved(unroll_plan(plan, 2).plan)
    assert free.proof is None or free.proof.bound <= plan.proof.cost
    check_numbers(unroll_plan(plan, 2).plan, seed, {**SIZES, "X": 2, "Y": 2})


@pytest.mark.parametrize("kind", ["mlp", "shared", "attention"])
def test_blocks_under_a_memory_limit(kind):
    """Copies that are made again are made in the block that reads them, or before it."""
    source = sl.parse(program(kind, 1, "L=3"))
    plan = best_plan(source, sub_axes=False, budget=20)
    least = peak(lower(source, keep_gathered=False))
    tight = best_plan(source, sub_axes=False, budget=20, memory_limit=max(least, peak(plan) - 1))
    text = print_plan(tight)

    assert peak(tight) <= max(least, peak(plan) - 1)
    assert not [d for d in sl.check(text, explicit=True) if d.severity == "error"]
    assert lines_of(text) == lines_of(print_plan(lower(sl.parse(text))))
    check_numbers(unroll_plan(tight, 3).plan, 1, {**SIZES, "X": 2, "Y": 2})


@pytest.mark.parametrize("layers", [1, 50])
@pytest.mark.parametrize("each", [False, True])
def test_what_all_layers_read_is_moved_once(layers, each):
    """Gathering a vector of 16 bf16 over 2 devices moves 16 bytes: once, or of each layer's own.

    That x is handed on in the layout that the line gives it, which is gathered in no layer, has to stay.
    """
    leaf = "param c: [L, D_X]" if each else "input c: [D_X]"
    block = f"layers L={layers}:\n  x[B, D] = x ⊙ c\n"
    text = f"mesh X=2\ndims B=8, D=16\ninput x: [B, D]\n{leaf}\n{block}"
    plan = best_plan(sl.parse(text), forward_only=True)
    (gathered,) = [step for step in plan.forward if step.is_collective]

    assert plan.proof is not None
    assert plan.proof.cost == plan.proof.bound == 16 * (layers if each else 1)
    assert (gathered.loop is not None) is each


def handed(plan: Plan) -> dict[str, str]:
    """Give what blocks hand on, by its name, in the layout in which they do."""
    loops = [step.loop for _, step in plan.steps() if step.loop is not None]
    carries = [carry for loop in loops for carry in loop.carries]
    return {c.entry.name: str(Array(c.entry, c.layout)) for c in carries if c.layout is not None}


BOTH = "  h = gelu(x ·_D W)\n  x = x + h ·_F V\n"


@pytest.mark.parametrize(
    ("before", "lines", "layout", "bytes_"),
    [
        ("", BOTH, "x[B_X, D]", 2 * 384),
        ("", BOTH.replace("x =", "x[B, D_X] ="), "x[B, D_X]", 50 * 2 * 384),
        ("x[B, D_X] = tanh(y)\n", BOTH, "x[B, D_X]", 50 * 2 * 384),
        ("x = tanh(y)\n", BOTH, "x[B_X, D]", 2 * 384),
    ],
)
def test_what_layers_hand_on_is_moved_once_unless_the_text_says_where_it_lies(
    before, lines, layout, bytes_
):
    """Of 64 × 16 bf16 on 4 devices an AllToAll moves 3/4 of the 512 bytes of each: twice, or 50 times as often.

    Rows are independent, and whole weights are read by them; out is declared split by D, as what is given is.
    """
    first = "y" if before else "x"
    text = (
        f"mesh X=4\ndims B=64, D=16, F=32\ninput {first}: [B, D_X]\nparam W: [L, D, F], V: [L, F, D]\n"
        f"{before}layers L=50:\n{lines}out[B, D_X] = gelu(x)\n"
    )
    plan = best_plan(sl.parse(text), forward_only=True, sub_axes=False)
    again = lower(sl.parse(print_plan(plan)), forward_only=True)

    assert plan.proof is not None
    assert plan.proof.cost == plan.proof.bound == moved(plan) == bytes_
    assert handed(plan) == handed(again) == {"x": layout}


def test_a_gradient_is_handed_on_where_it_costs_least():
    """Each layer gathers x, 3/4 of 2048 bytes, as the line says; its gradient is gathered once for all of them."""
    text = (
        "mesh X=4\ndims B=64, D=16, F=32\ninput x: [B, D_X]\nparam W: [L, D, F], V: [L, F, D]\n"
        "layers L=50:\n  x[B, D_X] = x + gelu(x ·_D W) ·_F V\nout[B, D_X] = gelu(x)\n"
    )
    plan = best_plan(sl.parse(text), sub_axes=False)
    again = lower(sl.parse(print_plan(plan)))

    assert plan.proof is not None
    assert plan.proof.cost == plan.proof.bound == moved(plan) == 51 * 1536
    assert handed(plan) == handed(again) == {"x": "x[B, D_X]", "dx2": "dx2[B, D]"}
    assert lines_of(print_plan(plan)) == lines_of(print_plan(again))


@pytest.mark.jax
@pytest.mark.parametrize(
    "lines",
    [
        "save none\nparam W: [L, D, F_Y], V: [L, F_Y, D]\nlayers L=6:\n  x = exp(-0.3 * x ·_D W ·_F V)\n",
        "param W: [L, D, F], V: [L, F, D]\nlayers L=6:\n  x = x + gelu(x ·_D W) ·_F V\n",
    ],
)
def test_modules_of_layers_that_hand_on_elsewhere(lines):
    """Values, gradients and collectives are right where x is moved before the block and behind it."""
    from shardlang.verify.runner import run_check

    text = f"mesh X=2, Y=2\ndims B=8, D=16, F=32\ninput x: [B, D_X]\n{lines}out[B, D_X] = gelu(x)\n"
    plan = best_plan(sl.parse(text), sub_axes=False)

    assert handed(plan)["x"] == "x[B, D]"
    result = run_check(plan)
    assert result.ok, result.to_text()


# --- Whole models


@pytest.mark.parametrize("name", ["llama", "transformer"])
def test_whole_models(name):
    """80 layers of Llama: not dearer than the rules by any objective, and nearly proven."""
    source = sl.parse((EXAMPLES / f"{name}.shd").read_text())
    for objective in ("bytes", "serial"):
        plan = best_plan(
            source, objective=objective, keep_gathered=False, sub_axes=False, budget=100
        )
        aim = aim_of(source, objective, None, prices_of("link"))
        book = lower(source, keep_gathered=False)

        assert plan.proof is not None
        assert plan.proof.cost == aim.of(plan)[0] < aim.of(book)[0]
        assert plan.proof.gap < 1e-6
        text = print_plan(plan)
        assert lines_of(text) == lines_of(print_plan(lower(sl.parse(text))))


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("layers L=2", "layers L", "L have no size"),
        (
            "mesh X=4",
            "optimizer adamw, zero 1 over Z\naccumulate i=2\nschedule gpipe\nmesh X=4",
            "the optimizer's state is split over the stages",
        ),
        ("mesh X=4", "accumulate M\nmesh X=4", "M have no size"),
    ],
)
def test_what_is_left_to_the_rules_does_not_claim_to_be_optimal(old, new, why):
    """The plan is the book's and says so, with the reason."""
    text = (
        "mesh X=4, Y=2, Z=2\ndims B=8, D=16, F=32\ninput x: [B_X, D_Y]\nlayers L=2:\n"
        "  h[B_X, F_Y] = gelu(x ·_D W_in[D_X, F_Y])\n  x = x + h ·_F W_out[F_Y, D_X]\n"
    )
    text = text.replace(old, new)
    plan = best_plan(
        sl.parse(text.replace("layers L=", "layers L_Z=") if "gpipe" in text else text)
    )

    assert plan.strategy == "book"
    assert plan.proof is None
    assert why in plan.warnings[-1]
