"""The most memory that is alive at once over a whole plan: forward pass, then backward pass.

Weights, the optimizer's state and caches are there all the time. Every other array is alive from the
step that makes it (an input from the start) to the last step that reads it; a step's operands and its
result are alive together, also where an elementwise step could work in place. Between the passes the
outputs and their cotangents are alive together. Gradients, also those of inputs, stay to the end, and
outputs do where there is no backward pass. With microbatches the arrays that gradients are added in are there
all the time, and one of a microbatch until it is added, as soon as it is made; in an update what is new of a weight
takes its place. Of a pipeline the activations of the other microbatches in flight are there all the time. An array that is made again is not alive in between, and
another name of a value is that value.

This is what a step-by-step allocator would need at its worst moment, nothing fragmented: the maximum over
the moments, each a sum of products of sizes. Moments that others exceed, whatever the sizes are, are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from fractions import Fraction

from shardlang.cost.formula import Formula, Powers
from shardlang.cost.local import local_bytes
from shardlang.cost.memory import kept_for_backward, Layers, MemoryFormulas, Storage
from shardlang.ir.plan import Plan, Step
from shardlang.ir.size import Monomial
from shardlang.ir.types import Array

Bits = Mapping[Powers, int]
"""What is alive: bits, which are whole, by the product of sizes that they are times."""

FULL = 24
"""So many moments are kept before those between others are looked for."""

REACH = 12
"""How far apart, in moments that are kept, steps of one kind in neighbouring layers are looked for."""


@dataclass(frozen=True, slots=True)
class Moment:
    """What is read and what is made at once: a step, or the loss between the passes."""

    reads: frozenset[Array]
    makes: frozenset[Array]


def peak(layers: Layers, held: MemoryFormulas) -> Formula:
    """Give the most bytes of one device that are alive at once, in the plan's own names.

    Of a block with many layers the first and the last are looked at one by one, as
    `layers` have them.
    """
    plan = layers.plan
    added = set(plan.accumulators.values())
    lasting = Formula.sum((held.parameters, held.optimizer, held.caches))
    if added:
        lasting += held.gradients
    storage = Storage(plan)
    if layers.flight is not None and plan.backward:
        lasting += layers.waiting(kept_for_backward(plan, storage))
    moments, ends = _moments(plan, storage, added)
    home = {leaf.array for leaf in plan.program.leaves if leaf.kind != "input"}
    home = home.union(plan.renewed, added)
    alive, dying = _last_uses(moments, ends)
    alive -= home
    # of what stands for many layers' values, what outlives its layer is there for each of them
    many = ends | alive | _last_uses(moments[len(plan.forward) :], ends)[0]
    total: dict[Powers, int] = {}
    front = _Front()

    def change(arrays: Iterable[Array], sign: int) -> None:
        for array in arrays:
            bits = sign * array.tensor.dtype.bits
            for powers, number in _each(layers, array, alone=array not in many):
                left = total.get(powers, 0) + bits * number
                if left:
                    total[powers] = left
                else:
                    total.pop(powers, None)

    change(alive, 1)
    front.keep(total)
    for moment, done in zip(moments, dying, strict=True):
        new = moment.makes - alive - home
        change(new, 1)
        alive |= new
        if new and not any(array.name in layers.counts for array in new):
            front.keep(total)
        change(alive & done, -1)
        alive -= done
    front.thin()
    sums = [
        Formula.of(*(Monomial(Fraction(c, 8), p) for p, c in each.items())) for each in front.kept
    ]
    return lasting + Formula.largest(sums)


def _moments(
    plan: Plan, storage: Storage, added: AbstractSet[Array]
) -> tuple[list[Moment], frozenset[Array]]:
    """List the moments in order, and what is still wanted after the last one.

    `added` are the arrays that gradients of microbatches are added in.
    """

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
    ends = roots(gradient.gradient for gradient in plan.gradients)
    adding = {storage.root(s.inputs[0]): s for s in plan.update if s.output in added}
    last = {storage.root(step.output): i for i, step in enumerate(plan.backward)}
    backward: list[Moment] = []
    for place, step in enumerate(plan.backward):
        backward.append(of(step))
        made = storage.root(step.output)
        if made in adding and last[made] == place:
            backward.append(of(adding[made]))
    update = [of(step) for step in plan.update if step.output not in added]
    return [*forward, loss, *backward, *update], frozenset() if update else ends


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


def _each(layers: Layers, array: Array, *, alone: bool) -> Iterator[tuple[Powers, int]]:
    """Give the products of sizes that an array's elements come to, each with a whole number of them.

    `alone` says that it counts once, though it stands for many layers' values.
    """
    size = Monomial(Fraction(1), local_bytes(array).powers)
    count = None if alone else layers.counts.get(array.name)
    for term in (size,) if count is None else (count * size).terms:
        yield term.powers, int(term.coefficient)


class _Front:
    """The moments that may be the worst for some sizes, in order."""

    def __init__(self) -> None:
        self.kept: list[Bits] = []
        self.full = FULL

    def keep(self, total: Bits) -> None:
        """Take note of a moment, unless one that is known takes at least as much of everything."""
        if any(_exceeds(other, total) for other in reversed(self.kept)):
            return
        self.kept = [other for other in self.kept if not _exceeds(total, other)]
        self.kept.append(dict(total))
        if len(self.kept) > self.full:
            self.thin()
            self.full = max(FULL, 2 * len(self.kept))

    def thin(self) -> None:
        """Drop moments that lie between two others: what is linear is largest at one of its ends.

        Layer by layer the backward pass has less of activations and more of gradients; the first and
        the last of such a row are enough.
        """
        before = -1
        while before != len(self.kept):
            before = len(self.kept)
            at = 1
            while at < len(self.kept) - 1:
                reach = min(at, len(self.kept) - 1 - at, REACH)
                middle = self.kept[at]
                if any(
                    _between(self.kept[at - step], middle, self.kept[at + step])
                    for step in range(1, reach + 1)
                ):
                    del self.kept[at]
                else:
                    at += 1


def _exceeds(one: Bits, other: Bits) -> bool:
    return all(other.get(powers, 0) <= one.get(powers, 0) for powers in {**one, **other})


def _between(one: Bits, middle: Bits, other: Bits) -> bool:
    """Say whether some mixture of two takes at least as much of everything as a third."""
    low, high = Fraction(0), Fraction(1)  # the share of the first
    for powers in {**one, **middle, **other}:
        a, b, c = (each.get(powers, 0) for each in (one, middle, other))
        if a == c:
            if b > a:
                return False
        elif a > c:
            low = max(low, Fraction(b - c, a - c))
        else:
            high = min(high, Fraction(c - b, c - a))
        if low > high:
            return False
    return True
