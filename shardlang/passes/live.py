"""Which steps matter: those that a result is made from, and which of them the rest waits for."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from shardlang.ir.plan import Gradient, Plan, Step
from shardlang.ir.program import Program
from shardlang.ir.types import Array


def reaching(steps: Sequence[Step], results: Collection[Array]) -> list[bool]:
    """Say of each step whether some result is made from what it makes.

    An array that is made twice is read from the later of the steps before its reader.
    """
    needed = set(results)
    found = [False] * len(steps)
    for index in range(len(steps) - 1, -1, -1):
        step = steps[index]
        if step.output in needed:
            found[index] = True
            needed.discard(step.output)
            needed.update(step.inputs)
    return found


def results_of(outputs: Collection[Array], gradients: Collection[Gradient]) -> set[Array]:
    """Give what a plan is for: its outputs and its gradients."""
    return {*outputs, *(gradient.gradient for gradient in gradients)}


def dead_steps(plan: Plan) -> list[Step]:
    """List the steps of a plan that no result is made from: code for them would be dropped."""
    steps = (*plan.forward, *plan.backward)
    alive = reaching(steps, results_of(plan.outputs, plan.gradients))
    return [step for step, lives in zip(steps, alive, strict=True) if not lives]


def prune(
    forward: tuple[Step, ...], backward: tuple[Step, ...], results: Collection[Array]
) -> tuple[tuple[Step, ...], tuple[Step, ...]]:
    """Give both passes without the steps that no result is made from."""
    alive = reaching((*forward, *backward), results)
    kept = [s for s, lives in zip((*forward, *backward), alive, strict=True) if lives]
    split = sum(alive[: len(forward)])
    return tuple(kept[:split]), tuple(kept[split:])


def mark_critical(
    program: Program,
    forward: tuple[Step, ...],
    backward: tuple[Step, ...],
    outputs: tuple[Array, ...],
    gradients: tuple[Gradient, ...],
) -> tuple[tuple[Step, ...], tuple[Step, ...]]:
    """Give both passes with `critical` set on the collectives that the rest has to wait for.

    A collective is critical unless its operand depends on parameters alone (it can be prefetched)
    or its result reaches nothing but gradients of parameters (it can run behind the rest).
    """
    steps = (*forward, *backward)
    weights = {leaf.array.tensor for leaf in program.leaves if leaf.kind == "param"}
    awaited = reaching(
        steps, results_of(outputs, [g for g in gradients if g.leaf.tensor not in weights])
    )
    alone = {leaf.array for leaf in program.leaves if leaf.kind == "param"}
    marked: list[Step] = []
    for step, waits in zip(steps, awaited, strict=True):
        prefetched = all(array in alone for array in step.inputs)
        if prefetched:
            alone.add(step.output)
        else:
            alone.discard(step.output)
        marked.append(replace(step, critical=step.is_collective and waits and not prefetched))
    return tuple(marked[: len(forward)]), tuple(marked[len(forward) :])
