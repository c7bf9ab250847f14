"""Which collectives the rest of the program has to wait for.

A collective is critical unless its operand depends on parameters alone (it can be prefetched) or
its result reaches nothing but gradients of parameters (it can run behind the rest).
"""

from __future__ import annotations

from dataclasses import replace

from shardlang.ir.plan import Gradient, Step
from shardlang.ir.program import Program
from shardlang.ir.types import Array


def mark_critical(
    program: Program,
    forward: tuple[Step, ...],
    backward: tuple[Step, ...],
    outputs: tuple[Array, ...],
    gradients: tuple[Gradient, ...],
) -> tuple[tuple[Step, ...], tuple[Step, ...]]:
    """Give both passes with `critical` set on their collectives."""
    steps = (*forward, *backward)
    alone = {leaf.array for leaf in program.leaves if leaf.kind == "param"}
    prefetched: list[bool] = []
    for step in steps:
        from_parameters = all(array in alone for array in step.inputs)
        prefetched.append(from_parameters)
        if from_parameters:
            alone.add(step.output)
        else:
            alone.discard(step.output)
    weights = {leaf.array.tensor for leaf in program.leaves if leaf.kind == "param"}
    needed = {g.gradient for g in gradients if g.leaf.tensor not in weights}
    awaited = [False] * len(steps)
    for index in range(len(steps) - 1, -1, -1):
        if index == len(forward) - 1:
            needed.update(outputs)
        step = steps[index]
        if step.output in needed:
            awaited[index] = True
            needed.update(step.inputs)
    marked = tuple(
        replace(step, critical=step.is_collective and awaited[i] and not prefetched[i])
        for i, step in enumerate(steps)
    )
    return marked[: len(forward)], marked[len(forward) :]
