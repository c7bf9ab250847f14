"""The most memory that is alive at once over a whole plan: forward pass, then backward pass.

Weights, the optimizer's state and caches are there all the time. Every other array is alive from the
step that makes it (an input from the start) to the last step that reads it; a step's operands and its
result are alive together, also where an elementwise step could work in place. Between the passes the
outputs and their cotangents are alive together. Gradients, also those of inputs, stay to the end, and
outputs do where there is no backward pass. With microbatches the arrays that gradients are added in are there
all the time, and one of a microbatch until it is added, as soon as it is made; in an update what is new of a weight
takes its place. Of a pipeline the activations of the other microbatches in flight are there all the time. An array that is made again is not alive in between, and
another name of a value is that value.

What each layer of a block has and another pass reads (values kept for the backward pass, gradients) is one array of
all layers, as in a loop over them: it is there from the start of the loop that makes it to the end of the one that
reads it last.

This is what a step-by-step allocator would need at its worst moment, nothing fragmented: the maximum over
the moments, each a sum of products of sizes. Moments that others exceed, whatever the sizes are, are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal

from shardlang.cost.formula import Formula, Powers
from shardlang.cost.local import local_bytes
from shardlang.cost.memory import kept_for_backward, Layers, MemoryFormulas, Storage
from shardlang.ir.plan import Step
from shardlang.ir.size import Monomial
from shardlang.ir.types import Array

Bits = Mapping[Powers, int | Fraction]
"""What is alive, in bits or in bytes, by the product of sizes that they are times."""

FULL = 24
"""So many moments are kept before those between others are looked for."""

Turn = Literal["forward", "loss", "backward", "update"]

REACH = 12
"""How far apart, in moments that are kept, steps of one kind in neighbouring layers are looked for."""


@dataclass(frozen=True, slots=True)
class Moment:
    """What is read and what is made at once: a step, or the loss between the passes.

    `turn` is the pass that it is of, `layers` are those that it reads as a value that each layer has.
    """

    turn: Turn
    reads: frozenset[Array]
    makes: frozenset[Array]
    layers: frozenset[Array] = frozenset()


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
    moments, ends = _moments(layers, storage, added)
    home = {leaf.array for leaf in plan.program.leaves if leaf.kind != "input"}
    home = home.union(plan.renewed, added)
    stacks = {each for each in _stacks(moments, layers.blocks) if each[0] not in home}
    moments = _stacked(moments, stacks, layers.blocks)
    alive, dying = _last_uses(moments, ends)
    alive -= home
    # of what stands for many layers' values, what outlives its layer is there for each of them
    given = frozenset(array for each in moments if each.turn == "loss" for array in each.makes)
    many = ends | alive | given | {array for array, _ in stacks}
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
        if new and (new <= many or not any(array.name in layers.counts for array in new)):
            front.keep(total)
        change(alive & done, -1)
        alive -= done
    front.thin()
    sums = [
        Formula.of(*(Monomial(Fraction(c, 8), p) for p, c in each.items())) for each in front.kept
    ]
    return lasting + Formula.largest(sums)


def _moments(
    layers: Layers, storage: Storage, added: AbstractSet[Array]
) -> tuple[list[Moment], frozenset[Array]]:
    """List the moments in order, and what is still wanted after the last one.

    `added` are the arrays that gradients of microbatches are added in.
    """
    plan = layers.plan

    def roots(arrays: Iterable[Array]) -> frozenset[Array]:
        return frozenset(map(storage.root, arrays))

    def moment(turn: Turn, reads: Sequence[Array], makes: Sequence[Array]) -> Moment:
        each = roots(array for array in reads if array.name in layers.blocks)
        return Moment(turn, roots(reads), frozenset(makes), each)

    def of(step: Step, turn: Turn) -> Moment:
        if step.output in storage.same:  # another name: nothing happens
            return moment(turn, (), ())
        return moment(turn, step.inputs, (step.output,))

    forward = [of(step, "forward") for step in plan.forward]
    if not plan.cotangents and not plan.backward:
        return [*forward, moment("loss", plan.outputs, ())], roots(plan.outputs)
    loss = moment("loss", plan.outputs, plan.cotangents)
    gradients = [gradient.gradient for gradient in plan.gradients]
    adding = {storage.root(s.inputs[0]): s for s in plan.update if s.output in added}
    last = {storage.root(step.output): i for i, step in enumerate(plan.backward)}
    backward: list[Moment] = []
    for place, step in enumerate(plan.backward):
        backward.append(of(step, "backward"))
        made = storage.root(step.output)
        if made in adding and last[made] == place:
            backward.append(of(adding[made], "update"))
    update = [of(step, "update") for step in plan.update if step.output not in added]
    if not update:
        return [*forward, loss, *backward, moment("update", gradients, ())], roots(gradients)
    return [*forward, loss, *backward, *update], frozenset()


Stack = tuple[Array, Turn]
"""A layer's part of a stack, and the pass that makes it."""


def _stacks(moments: Iterable[Moment], blocks: Mapping[str, int]) -> set[Stack]:
    """Give the values of layers that outlive the loop of their pass: those that another pass reads."""
    made: dict[Array, Turn] = {}
    found: set[Stack] = set()
    for moment in moments:
        found.update(
            (array, made[array])
            for array in moment.layers
            if array.name in blocks and made.get(array, moment.turn) != moment.turn
        )
        made.update(dict.fromkeys(moment.makes, moment.turn))
    return found


def _stacked(
    moments: list[Moment], stacks: AbstractSet[Stack], blocks: Mapping[str, int]
) -> list[Moment]:
    """Let each stack be whole from the start of the loop that makes it to the end of the one that reads it last."""
    runs: dict[tuple[int, Turn], list[int]] = {}
    for place, moment in enumerate(moments):
        for number in {blocks[array.name] for array in moment.makes if array.name in blocks}:
            if moment.turn in ("forward", "backward"):
                runs.setdefault((number, moment.turn), []).append(place)
    parts = {array for array, _ in stacks}
    before: dict[int, Moment] = {}
    behind: dict[int, Moment] = {}
    for (number, turn), places in runs.items():
        inside = moments[places[0] : places[-1] + 1]
        makes = {
            (array, turn) for moment in inside if moment.turn == turn for array in moment.makes
        }
        reads = {array for moment in inside for array in moment.reads} & parts
        mine = frozenset(array for array, _ in makes & stacks if blocks[array.name] == number)
        before[places[0]] = Moment(turn, frozenset(), mine)
        behind[places[-1]] = Moment(turn, frozenset(reads), frozenset())
    found: list[Moment] = []
    for place, moment in enumerate(moments):
        found += [before[place]] if place in before else []
        made = {(array, moment.turn) for array in moment.makes} & stacks
        parts = frozenset(array for array, turn in made if turn != "loss")
        found.append(replace(moment, makes=moment.makes - parts))
        found += [behind[place]] if place in behind else []
    return found


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
        if any(exceeds(other, total) for other in reversed(self.kept)):
            return
        self.kept = [other for other in self.kept if not exceeds(total, other)]
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
                    between(self.kept[at - step], middle, self.kept[at + step])
                    for step in range(1, reach + 1)
                ):
                    del self.kept[at]
                else:
                    at += 1


def exceeds(one: Bits, other: Bits) -> bool:
    """Say whether one moment takes at least as much of everything as another."""
    return all(other.get(powers, 0) <= one.get(powers, 0) for powers in {**one, **other})


def between(one: Bits, middle: Bits, other: Bits) -> bool:
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
