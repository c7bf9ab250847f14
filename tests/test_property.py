"""Programs at random: what is printed is the same program, and the emitted code agrees.

Half of the seeds give one einsum chain, half a program of several statements. All run in one
process, with JAX started once. SHARDLANG_SEEDS sets how many (200), SHARDLANG_FIRST_SEED where to
start (0). A test that fails prints its seed and its program.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from strategies import chains, programs, random_chain, random_program, texts

import shardlang as sl
from shardlang.ir.plan import Plan
from shardlang.ir.printer import print_plan
from shardlang.passes import check

FIRST = int(os.environ.get("SHARDLANG_FIRST_SEED", "0"))
SEEDS = range(FIRST, FIRST + int(os.environ.get("SHARDLANG_SEEDS", "200")))
BATCH = 20
BATCHES = [SEEDS[i : i + BATCH] for i in range(0, len(SEEDS), BATCH)]


def program_of(seed: int) -> str:
    """Write the program of a seed."""
    rng = random.Random(seed)
    return random_chain(rng) if seed % 2 else random_program(rng)


@contextmanager
def shown(seed: int, text: str) -> Iterator[None]:
    """Print seed and program where something inside fails."""
    try:
        yield
    except BaseException:
        print(f"seed {seed}\n{text}")
        raise


def in_batches(test):
    """Run a test for batches of seeds, so that a report has lines but not hundreds."""
    names = [f"{batch[0]}-{batch[-1]}" for batch in BATCHES]
    return pytest.mark.parametrize("seeds", BATCHES, ids=names)(test)


def steps(plan: Plan) -> list[tuple[object, ...]]:
    """Give what the steps of a plan are, without where they come from."""
    return [
        (which, step.op, step.inputs, step.output, step.critical) for which, step in plan.steps()
    ]


def check_printing(text: str) -> None:
    """Hold that a lowered program reads back as the same plan, at the same cost."""
    plan = sl.lower(sl.parse(text))
    printed = print_plan(plan)
    again = sl.lower(sl.parse(printed))

    assert printed == print_plan(again)
    assert steps(plan) == steps(again)
    assert set(plan.gradients) == set(again.gradients)

    costs = [sl.cost(x).to_dict() for x in (plan, again)]

    assert costs[0]["totals"] == costs[1]["totals"]
    assert costs[0]["memory"] == costs[1]["memory"]


@in_batches
def test_lowered_programs_read_back(seeds):
    """Lowering, printing, parsing and lowering again changes nothing."""
    for seed in seeds:
        text = program_of(seed)
        with shown(seed, text):
            check_printing(text)


@in_batches
def test_lowered_programs_are_legal_as_they_stand(seeds):
    """What `lower` prints passes `check --explicit` without an error."""
    for seed in seeds:
        text = program_of(seed)
        with shown(seed, text):
            printed = print_plan(sl.lower(sl.parse(text)))
            found = check(sl.parse(printed), explicit=True)

            assert [x for x in found if x.severity == "error"] == []


@pytest.mark.jax
@pytest.mark.slow
@in_batches
def test_emitted_modules_agree_with_the_reference(seeds):
    """Values, gradients and collectives of the emitted module are right."""
    from shardlang.verify.runner import run_check

    for seed in seeds:
        text = program_of(seed)
        with shown(seed, text):
            result = run_check(sl.lower(sl.parse(text)))

            assert result.ok, result.to_text()


@given(programs())
@settings(max_examples=60)
def test_drawn_programs_read_back(text):
    """As above, with programs that hypothesis can make smaller."""
    check_printing(text)


@given(chains())
@settings(max_examples=40)
def test_formatting_is_stable(text):
    """The canonical layout is its own canonical layout and means the same."""
    from shardlang.frontend.format import format_source
    from shardlang.source import Source

    once = format_source(Source("once", text))

    assert once == format_source(Source("twice", once))
    assert steps(sl.lower(sl.parse(text))) == steps(sl.lower(sl.parse(once)))


@given(texts())
@settings(max_examples=200)
def test_no_text_breaks_the_compiler(text):
    """Whatever is typed gives a plan or a list of errors, and nothing else."""
    try:
        sl.lower(sl.parse(text))
    except sl.ShardlangError as error:
        found = error.diagnostics
    else:
        return

    assert found
