"""What a device reads and writes of its memory (HBM), in bytes, read from the plan's steps.

- `contraction`: each operand once and the result once, each by the dtype it is stored in, as a
  contraction takes it that is a kernel of its own;
- `fused`: the least of a whole pass: what its local steps take from elsewhere (leaves, results of
  collectives, values of the other pass) read once, and what leaves them (outputs, gradients, operands
  of collectives, what the backward pass reads) written once. All else stays on the chip, as the scores do in
  flash attention. Of a table that is looked up in alone (`take`) the rows are read, or all of it where it
  is known to be less; indices (`index_T`) are made where they are used.

What collectives read and write counts in neither: it passes at the network's rate.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from shardlang.cost.flops import flops
from shardlang.cost.formula import Formula
from shardlang.cost.local import local_bytes
from shardlang.cost.memory import kept_for_backward, Layers, Storage
from shardlang.ir.ops import Take
from shardlang.ir.plan import Pass, Step
from shardlang.ir.types import Array


def contraction(step: Step) -> Formula:
    """Give the bytes that a step reads and writes in one layer: each operand once, and its result."""
    return Formula.of(*map(local_bytes, (*dict.fromkeys(step.inputs), step.output)))


def fused(layers: Layers, section: Pass) -> Formula:
    """Give the bytes that a pass reads and writes where nothing but its ends leaves the chip."""
    plan = layers.plan
    storage = Storage(plan)
    steps = {"forward": plan.forward, "backward": plan.backward, "update": plan.update}[section]
    given: dict[Array, None] = {}
    made: dict[Array, None] = {}
    leaving: set[Array] = set(plan.renewed)
    if section == "backward":
        leaving = {gradient.gradient for gradient in plan.gradients}
    elif section == "forward":
        leaving = {*plan.outputs, *kept_for_backward(plan, storage)}
    counted = {leaf.array for leaf in plan.program.leaves if leaf.kind == "index"}
    tables: dict[Array, list[Formula]] = {}
    for step in steps:
        if step.output in storage.same:
            continue
        for place, array in enumerate(map(storage.root, step.inputs)):
            if isinstance(step.op, Take) and not place and array not in made:
                rows = flops(step) * array.tensor.dtype.bits / 8
                count = layers.counts.get(step.output.name)
                read = Formula.of(rows) if count is None else count * rows
                tables.setdefault(array, []).append(read)
            elif step.is_collective:
                leaving.add(array)
            elif array not in made and array not in counted:  # of what is sliced, the slice alone
                given[array if step.is_compute else step.output] = None
        if not step.is_collective and step.output not in given:
            made[step.output] = None
    ends = set(map(storage.root, leaving))
    rest = (*given, *(array for array in made if array in ends))
    looked_up = (_looked_up(layers, t, parts) for t, parts in tables.items() if t not in given)
    return Formula.sum((layers.add(rest), *looked_up))


def _looked_up(layers: Layers, table: Array, parts: Sequence[Formula]) -> Formula:
    """Give the bytes of rows that are read of a table, or all of it where that is known to be less."""
    known = {name: Fraction(size) for name, size in layers.plan.program.sizes.known.items()}
    rows, whole = Formula.sum(parts), layers.bytes(table)
    least, most = whole.value(known), rows.value(known)
    return whole if least is not None and most is not None and least <= most else rows
