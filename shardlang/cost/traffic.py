"""What a device reads and writes of its memory (HBM), in bytes, read from the plan's steps.

- `contraction`: each operand once and the result once, each by the dtype it is stored in, as a
  contraction takes it that is a kernel of its own;
- `fused`: the least of a whole pass: what its local steps take from elsewhere (leaves, results of
  collectives, values of the other pass) read once, and what leaves them (outputs, gradients, operands
  of collectives, what the backward pass reads) written once. All else stays on the chip, as the scores do in
  flash attention.

What collectives read and write counts in neither: it passes at the network's rate.
"""

from __future__ import annotations

from shardlang.cost.formula import Formula
from shardlang.cost.local import local_bytes
from shardlang.cost.memory import kept_for_backward, Layers, Storage
from shardlang.ir.plan import Pass, Step
from shardlang.ir.types import Array


def contraction(step: Step) -> Formula:
    """Give the bytes that a step reads and writes in one layer: each operand once, and its result."""
    step = step.computing
    return Formula.of(*map(local_bytes, (*dict.fromkeys(step.inputs), step.output)))


def fused(layers: Layers, section: Pass) -> Formula:
    """Give the bytes that a pass reads and writes where nothing but its ends leaves the chip."""
    plan = layers.plan
    storage = Storage(plan)
    steps = plan.forward if section == "forward" else plan.backward
    given: dict[Array, None] = {}
    made: dict[Array, None] = {}
    counted = {leaf.array for leaf in plan.program.leaves if leaf.kind == "index"}
    leaving = {g.gradient for g in plan.gradients} if section == "backward" else set(plan.outputs)
    if section == "forward":
        leaving.update(kept_for_backward(plan, storage))
    for step in steps:
        if step.output in storage.same:
            continue
        for array in map(storage.root, step.inputs):
            if step.is_collective:
                leaving.add(array)
            elif array not in made and array not in counted:  # of what is sliced, the slice alone
                given[array if step.is_compute else step.output] = None
        if not step.is_collective and step.output not in given:
            made[step.output] = None
    ends = set(map(storage.root, leaving))
    return layers.add((*given, *(array for array in made if array in ends)))
