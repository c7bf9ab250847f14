"""Which steps matter: those that a result is made from, and which of them the rest waits for."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from shardlang.ir.plan import Gradient, Step
from shardlang.ir.program import Program
from shardlang.ir.types import Array


def alive(
    forward: Sequence[Step],
    backward: Sequence[Step],
    outputs: Collection[Array],
    gradients: Collection[Array],
) -> list[bool]:
    """Say of each step of both passes whether some result is made from what it makes.

    Outputs are read at the end of the forward pass. An array that is made twice is read from the
    later of the steps before its reader.
    """
    needed = set(gradients)
    found: list[bool] = []
    for steps, results in ((backward, ()), (forward, outputs)):
        needed.update(results)
        for step in reversed(steps):
            lives = step.output in needed
            found.append(lives)
            if lives:
                needed.discard(step.output)
                needed.update(step.inputs)
    return found[::-1]


def prune(
    forward: tuple[Step, ...],
    backward: tuple[Step, ...],
    outputs: Collection[Array],
    gradients: Collection[Gradient],
) -> tuple[tuple[Step, ...], tuple[Step, ...]]:
    """Give both passes without the steps that no result is made from."""
    lives = alive(forward, backward, outputs, [g.gradient for g in gradients])
    kept = [s for s, living in zip((*forward, *backward), lives, strict=True) if living]
    split = sum(lives[: len(forward)])
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
    inputs = [g.gradient for g in gradients if g.leaf.tensor not in weights]
    awaited = alive(forward, backward, outputs, inputs)
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
