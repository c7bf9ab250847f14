"""The most memory that is alive at once over a whole plan: forward pass, then backward pass.

Weights, the optimizer's state and caches are there all the time. Every other array is alive from the
step that makes it (an input from the start) to the last step that reads it; a step's operands and its
result are alive together, also where an elementwise step could work in place. Between the passes the
outputs and their cotangents are alive together. Gradients, also those of inputs, stay to the end, and
outputs do where there is no backward pass. An array that is made again is not alive in between, and
another name of a value is that value.

This is what a step-by-step allocator would need at its worst moment, nothing fragmented: the maximum over
the moments, each a sum of products of sizes. Moments that another one exceeds term by term are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from shardlang.cost.formula import Formula, Powers
from shardlang.cost.local import local_bytes
from shardlang.cost.memory import MemoryFormulas, Storage
from shardlang.ir.plan import Plan, Step
from shardlang.ir.size import Monomial
from shardlang.ir.types import Array

Bytes = Mapping[Powers, Fraction]


@dataclass(frozen=True, slots=True)
class Moment:
    """What is read and what is made at once: a step, or the loss between the passes."""

    reads: frozenset[Array]
    makes: frozenset[Array]


def peak(plan: Plan, held: MemoryFormulas) -> Formula:
    """Give the most bytes of one device that are alive at once, in the plan's own names."""
    lasting = Formula.sum((held.parameters, held.optimizer, held.caches))
    storage = Storage(plan)
    moments, ends = _moments(plan, storage)
    home = {leaf.array for leaf in plan.program.leaves if leaf.kind != "input"}
    alive, dying = _last_uses(moments, ends)
    alive -= home
    total: dict[Powers, Fraction] = {}
    front: list[Bytes] = []
    _change(total, alive, 1)
    _keep(front, total)
    for moment, done in zip(moments, dying, strict=True):
        new = moment.makes - alive - home
        _change(total, new, 1)
        alive |= new
        if new:
            _keep(front, total)
        _change(total, alive & done, -1)
        alive -= done
    sums = [Formula.of(*(Monomial(c, powers) for powers, c in each.items())) for each in front]
    return lasting + Formula.largest(sums)


def _moments(plan: Plan, storage: Storage) -> tuple[list[Moment], frozenset[Array]]:
    """List the moments in order, and what is still wanted after the last one."""

    def roots(arrays: Iterable[Array]) -> frozenset[Array]:
        return frozenset(map(storage.root, arrays))

    def of(step: Step) -> Moment:
        if step.output in storage.same:  # another name: nothing happens
            return Moment(frozenset(), frozenset())
        return Moment(roots(step.inputs), frozenset((step.output,)))

    forward = [of(step) for step in plan.forward]
    if not plan.cotangents and not plan.backward:
        return forward, roots(plan.outputs)
    loss = Moment(roots(plan.outputs), frozenset(plan.cotangents))
    backward = [of(step) for step in plan.backward]
    return [*forward, loss, *backward], roots(g.gradient for g in plan.gradients)


def _last_uses(
    moments: list[Moment], ends: frozenset[Array]
) -> tuple[set[Array], list[frozenset[Array]]]:
    """Give what is wanted before the first moment, and what nobody wants after each."""
    wanted = set(ends)
    dying: list[frozenset[Array]] = []
    for moment in reversed(moments):
        dying.append((moment.reads | moment.makes) - wanted)
        wanted -= moment.makes
        wanted |= moment.reads
    return wanted, dying[::-1]


def _change(total: dict[Powers, Fraction], arrays: Iterable[Array], sign: int) -> None:
    for array in arrays:
        size = local_bytes(array)
        left = total.get(size.powers, Fraction(0)) + sign * size.coefficient
        if left:
            total[size.powers] = left
        else:
            total.pop(size.powers, None)


def _keep(front: list[Bytes], total: Bytes) -> None:
    """Take note of a moment, unless one that is known takes at least as much of everything."""
    if any(_exceeds(other, total) for other in reversed(front)):
        return
    front[:] = [other for other in front if not _exceeds(total, other)]
    front.append(dict(total))


def _exceeds(one: Bytes, other: Bytes) -> bool:
    return all(number <= one.get(powers, 0) for powers, number in other.items())
