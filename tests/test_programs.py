"""Random whole programs on the numpy mesh: right numbers, and a printed program that is the same."""

from __future__ import annotations

import random
import re

import pytest
from simulator import check_numbers
from strategies import random_program

from shardlang.frontend.resolve import load_text
from shardlang.ir.plan import Plan
from shardlang.ir.printer import print_plan, statement
from shardlang.passes import check, lower

BATCH = 25


def shown(plan: Plan) -> list[tuple[str, bool]]:
    """Give each line, and whether it is marked as critical."""
    return [(statement(step), step.critical) for step in (*plan.forward, *plan.backward)]


def with_save(text: str, seed: int) -> str:
    """Add a line that saves some of a program's values, so that the others are computed again."""
    rng = random.Random(seed)
    values = sorted(set(re.findall(r"\bv[0-9]+", text)))
    return f"{text}save {', '.join(v for v in values if rng.random() < 0.4) or values[0]}\n"


def examine(text: str) -> None:
    """Run a program's plan, print it, read it back, and compare."""
    plan = lower(load_text(text))
    check_numbers(plan)
    printed = print_plan(plan)
    again = load_text(printed)
    found = {diagnostic.code for diagnostic in check(again)}

    assert found <= {"SH451", "SH452"}, text  # what a line asked for in vain, or asked for again
    reread = lower(again)
    assert shown(plan) == shown(reread), text
    assert printed == print_plan(reread), text
    assert set(plan.outputs) == set(reread.outputs), text
    assert set(plan.gradients) == set(reread.gradients), text


@pytest.mark.parametrize("batch", range(16))
def test_programs_compute_what_they_mean(batch: int) -> None:
    """Values, gradients and the printed program, for programs of every kind of statement."""
    for seed in range(batch * BATCH, (batch + 1) * BATCH):
        examine(random_program(random.Random(seed)))


@pytest.mark.parametrize("batch", range(8))
def test_what_is_not_saved_is_computed_again(batch: int) -> None:
    """With a `save` line the backward pass recomputes, and the gradients are the same."""
    for seed in range(batch * BATCH, (batch + 1) * BATCH):
        examine(with_save(random_program(random.Random(seed)), seed))
