"""Optimal plans of programs that fix some of it: stated collectives, `·_LOCAL`, and what is saved."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, replace

import exhaustive
import pytest
from simulator import check_numbers
from strategies import random_chain, random_program
from test_optimal import brute, FORMS, Line, moved, Small

import shardlang as sl
from shardlang.ir.plan import Plan
from shardlang.ir.printer import print_plan

# Brute force ---------------------------------------------------------------------------------


@dataclass
class Saving(Small):
    """A small program that keeps some values for its backward pass."""

    saved: frozenset[str] = frozenset()

    def text(self) -> str:
        """Write it with its `save` line."""
        return f"save {', '.join(sorted(self.saved))}\n{super().text()}"

    def both_passes(self) -> Small:
        """Add the backward pass, with values made again in it or passed to it in one layout."""
        both = super().both_passes()
        made = {line.result: line for line in self.lines}
        again: list[Line] = []
        done: set[str] = set()

        def other(name: str) -> str:
            return f"{name}_again" if name in made else name

        def need(name: str) -> None:
            if name not in made or name in done:
                return
            done.add(name)
            both.dims[other(name)] = both.dims[name]
            if name in self.saved:
                again.append(Line("keep", (name,), other(name)))
                return
            for operand in made[name].operands:
                need(operand)
            operands = tuple(other(operand) for operand in made[name].operands)
            again.append(Line(made[name].kind, operands, other(name), "backward"))

        behind = both.lines[len(self.lines) :]
        for line in behind:
            for operand in line.operands:
                need(operand)
        behind = [replace(x, operands=tuple(other(name) for name in x.operands)) for x in behind]
        again.sort(key=lambda line: line.kind != "keep")
        return replace(both, lines=[*self.lines, *again, *behind], split=frozenset(self.homes))


def saving(seed: int) -> Saving:
    """Draw a program on one axis that saves its output, and some values before it."""
    rng = random.Random(seed)
    axes: exhaustive.Axes = (("X", rng.choice((2, 4))),)
    dims, lines = FORMS[rng.choice(["chain", "same weight", "function", "three"])]
    made = {line.result for line in lines}
    read = {name for line in lines for name in line.operands}
    sizes = {dim: rng.choice((2, 4, 6, 8, 16)) for dim in "IJKLM"}
    sizes = {dim: n for dim, n in sizes.items() if any(dim in own for own in dims.values())}

    def layout(name: str) -> exhaustive.State:
        pool = exhaustive.all_states(tuple(sizes[dim] for dim in dims[name]), axes)
        return rng.choice([state for state in pool if not state[1]])

    homes = {name: layout(name) for name in dims if name not in made}
    ends = {name: layout(name) for name in made - read}
    inner = [name for name in sorted(made & read) if rng.random() < 0.4]
    saved = frozenset([*ends, *inner])
    return Saving(dims, lines, homes, ends, sizes, axes, rng.choice(("link", "book")), saved=saved)


def check(problem: Small, text: str, extra: int = 0) -> Plan:
    """Hold a plan of both passes against brute force, with a price that every plan pays.

    Neither keeps a parameter's gathered copies for the backward pass.
    """
    plan = sl.lower(
        sl.parse(text), "optimal", prices=problem.network, keep_gathered=False, sub_axes=False
    )
    assert plan.proof is not None, text
    assert plan.proof.optimal, text
    assert plan.proof.cost == moved(plan, problem.network)
    scaled = plan.proof.cost / 2 * exhaustive.SCALE
    found = brute(problem.both_passes(), int(scaled))
    assert found is not None, f"{text}\n{print_plan(plan)}"
    assert found + extra == scaled, f"{text}\n{print_plan(plan)}"
    return plan


@pytest.mark.parametrize("batch", range(4))
def test_values_made_again_against_brute_force(batch):
    """With a `save` line, no choice of layouts for both makings of a value moves less."""
    twice = 0
    for seed in range(batch * 10, batch * 10 + 10):
        problem = saving(seed)
        plan = check(problem, problem.text())
        names = [
            {s.output.name for s in steps if s.is_compute}
            for steps in (plan.forward, plan.backward)
        ]
        inner = {line.result for line in problem.lines} - set(problem.ends)
        assert not names[0] & names[1] & problem.saved
        assert names[0] & names[1] <= inner
        twice += bool(names[0] & names[1])
        check_numbers(plan, seed)

    assert twice


@pytest.mark.parametrize("batch", range(3))
def test_stated_collectives_against_brute_force(batch):
    """A collective of a leaf that the text states is paid once, and its result is there for all."""
    seen = 0
    for seed in range(batch * 25, batch * 25 + 25):
        rng = random.Random(seed)
        problem = saving(seed)
        axis, n = problem.axes[0]
        dims = problem.dims["a"]
        if any(problem.sizes[dim] % n for dim in dims):
            continue
        at = rng.randrange(len(dims))
        before = tuple((axis,) if i == at else () for i in range(len(dims)))
        gather = len(dims) == 1 or rng.random() < 0.5
        to = next((i for i in range(len(dims)) if i != at), at)
        after = tuple((axis,) if i == to and not gather else () for i in range(len(dims)))
        problem.homes["a"] = (before, frozenset())
        stated = replace(
            Small(
                problem.dims,
                problem.lines,
                problem.homes,
                problem.ends,
                problem.sizes,
                problem.axes,
                problem.network,
            ),
            stated={"a": ((before, frozenset()), (after, frozenset()))},
        )

        def written(splits: exhaustive.Splits, dims: str = dims) -> str:
            return (
                "a["
                + ", ".join(
                    d + "".join(f"_{x}" for x in s) for d, s in zip(dims, splits, strict=True)
                )
                + "]"
            )

        call = f"AllGather_{axis}" if gather else f"AllToAll_{{{axis},{dims[to]}}}"
        head, *lines = stated.text().split("\n", 2)
        text = f"{head}\n{lines[0]}\n{written(after)} = {call}({written(before)})\n{lines[1]}"
        text = text.replace(f" = {written(before)} ", f" = {written(after)} ")
        local = exhaustive.SCALE
        for dim in dims:
            local *= problem.sizes[dim]
        local //= n
        link = problem.network == "link"
        price = local * (n - 1) if link else local * n
        if not gather:
            price = local * (n - 1) // n if link else local * n // 4
        dead = not any(step.rule == "stated" for step in sl.lower(sl.parse(text)).forward)
        if dead:  # `book` leaves it out, with a warning
            continue
        seen += 1
        plan = check(stated, text, price)
        made = [str(step.output) for step in plan.forward if step.is_collective]
        assert made.count(written(after)) == 1
        check_numbers(plan, seed)

    assert seen


# Random programs -----------------------------------------------------------------------------


def right(plan: Plan, seed: int) -> None:
    """Demand the right numbers, legal lines, the cost that is claimed, and none above `book`."""
    assert plan.proof is not None
    assert plan.proof.bound <= plan.proof.cost == moved(plan)
    check_numbers(plan, seed)
    printed = print_plan(plan)
    assert [x for x in sl.check(printed, explicit=True) if x.severity == "error"] == []
    assert moved(sl.lower(sl.parse(printed))) == plan.proof.cost


@pytest.mark.parametrize("batch", range(3))
def test_random_programs_that_save_some_values(batch):
    """Values that are not saved are computed again, with right numbers and never dearer than `book`."""
    for seed in range(batch * 12, batch * 12 + 12):
        rng = random.Random(seed)
        text = random_program(rng) if seed % 2 else random_chain(rng)
        names = sorted({s.result.name for s in sl.parse(text).statements if s.result.name in text})
        saved = rng.sample(names, rng.randint(1, max(1, len(names) // 2)))
        program = sl.parse(f"save {', '.join(saved)}\n{text}")
        plan = sl.lower(program, "optimal", sub_axes=False, budget=10)
        if plan.proof is None:
            assert "a maximum is compared" in plan.warnings[0]
            continue
        assert plan.proof.cost <= moved(sl.lower(program))
        right(plan, seed)


@pytest.mark.parametrize("batch", range(3))
def test_random_programs_with_all_collectives_stated(batch):
    """The forward pass of a `book` plan, taken as a program: each of its collectives is in the plan."""
    for seed in range(batch * 12, batch * 12 + 12):
        rng = random.Random(seed)
        text = random_program(rng, statements=rng.randint(1, 3)) if seed % 2 else random_chain(rng)
        lines = print_plan(sl.lower(sl.parse(text), forward_only=True)).splitlines()
        lines = [line.split("//")[0].strip() for line in lines if line != "forward:"]
        lines = [
            re.sub(r"·_(\w+|\{[^}]*\}) ", "·_LOCAL ", x)
            if x.count("·") == 1 and rng.random() < 0.5
            else x
            for x in lines
        ]
        try:
            program = sl.parse("\n".join(lines) + "\n")
            book = sl.lower(program)
        except sl.ShardlangError:  # a broadcast that only an explicit program may have
            continue
        plan = sl.lower(program, "optimal", sub_axes=False, budget=10)
        if plan.proof is None:
            assert re.search("states how .* is reduced|more than 9 places", plan.warnings[0])
            continue
        assert plan.proof.cost <= moved(book)
        right(plan, seed)
        have = {(step.op, step.inputs, step.output) for step in plan.forward}
        for step in book.forward:
            if step.rule == "stated" and step.is_collective:
                assert (step.op, step.inputs, step.output) in have


def test_a_local_product_stays_as_it_is():
    """`·_LOCAL` multiplies the shards that are written, and what it leaves unreduced goes on from there."""
    text = (
        "mesh X=2, Y=2\ndims B=16, D=16, F=32\n"
        "h[B_X, F]{U_Y} = In[B_X, D_Y] ·_LOCAL W1[D_Y, F]\n"
        "t[B_X, F] = gelu(h)\n"
    )
    plan = sl.lower(sl.parse(text), "optimal", sub_axes=False)
    right(plan, 1)

    assert str(plan.forward[0].output) == "h[B_X, F]{U_Y}"
    assert ["In[B_X, D_Y]", "W1[D_Y, F]"] == [str(array) for array in plan.forward[0].inputs]


def test_a_saved_value_is_kept_where_it_is_declared():
    """What is saved goes to the backward pass in its declared layout, all else is made again."""
    text = (
        "mesh X=2, Y=2\ndims B=16, D=16, F=32\nsave h\n"
        "h[B_X, F_Y] = In[B_X, D] ·_D W1[D_X, F_Y]\nt[B_X, F_Y] = gelu(h)\n"
        "o[B_X, D_Y] = t ·_F W2[F_Y, D_X]\n"
    )
    plan = sl.lower(sl.parse(text), "optimal", keep_gathered=False, sub_axes=False)
    right(plan, 2)
    made = {step.output for step in plan.backward}
    leaves = {leaf.array for leaf in plan.program.leaves} | set(plan.cotangents)
    passed = {a for step in plan.backward for a in step.inputs if a not in made and a not in leaves}

    assert ["h[B_X, F_Y]"] == [str(array) for array in passed]
    assert "t" in {step.output.name for step in plan.backward}
