"""Gathered copies of parameters: kept from the forward to the backward pass, or made again.

The program's `save` line names the parameters whose copies are kept, and a plan names those alone of
which its backward pass reads one. Here is found which they are, and what keeping them comes to.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from shardlang.ir.ops import Mask, Relayout, Slice
from shardlang.ir.plan import Alternative, Plan, Step
from shardlang.ir.program import Program, Save
from shardlang.ir.size import Monomial
from shardlang.ir.types import Array
from shardlang.passes.live import mark_critical
from shardlang.rules.price import book_bytes


@dataclass(frozen=True, slots=True)
class Kept:
    """A parameter with its copies that are held, and the steps that would make them again."""

    leaf: Array
    copies: tuple[Array, ...]
    steps: tuple[Step, ...]

    @property
    def times(self) -> Monomial:
        """How many such parameters there are: one, or one a layer."""
        return self.steps[0].times if self.steps else Monomial()


def kept_copies(
    program: Program, forward: Sequence[Step], backward: Sequence[Step]
) -> tuple[Kept, ...]:
    """Give the parameters of which the backward pass reads copies that the forward pass made."""
    weights = {leaf.array.name: leaf.array for leaf in program.leaves if leaf.kind == "param"}
    maker = {s.output: (i, s) for i, s in enumerate(forward) if isinstance(s.op, Relayout)}
    copies: dict[str, dict[Array, None]] = {}
    made: set[Array] = set()
    for step in backward:
        for array in step.inputs:
            leaf = weights.get(array.name)
            if leaf is None or leaf.layout.unreduced or array == leaf or array in made:
                continue
            copies.setdefault(array.name, {})[array] = None
        made.update(step.outputs)
    found: list[Kept] = []
    for name, leaf in weights.items():
        held = tuple(copies.get(name, ()))
        steps: dict[int, Step] = {}
        needed = list(held)
        while needed:
            place, step = maker.get(needed.pop(), (-1, None))
            if step is not None and place not in steps:
                steps[place] = step
                needed.extend(step.inputs)
        if held:
            found.append(Kept(leaf, held, tuple(steps[place] for place in sorted(steps))))
    return tuple(found)


def keep(program: Program, keep_gathered: bool | None) -> Program:
    """Name all parameters on the `save` line, or none, or leave it as it is."""
    if keep_gathered is None:
        return program
    weights = [leaf.array.name for leaf in program.leaves if leaf.kind == "param"]
    return program.keeping(weights if keep_gathered else ())


def named(plan: Plan) -> Plan:
    """Give a plan whose program names the parameters whose copies are kept."""
    found = kept_copies(plan.program, plan.forward, plan.backward)
    return replace(plan, program=plan.program.keeping([kept.leaf.name for kept in found]))


def alternatives(plan: Plan) -> tuple[Alternative, ...]:
    """Say of each parameter whose copies both passes need what the other choice holds and moves."""
    save, found = plan.program.save, list[Alternative]()
    for again in _made_twice(plan):
        held, moved = _held(again), _moved(again)
        line = _line(save.names | {again.leaf.name}, save)
        found.append(
            Alternative(
                f"{_listed(again)} in the backward pass",
                f"keep it from the forward pass ({line})",
                f"{held} more bytes fit: it saves moving {moved}",
            )
        )
    for kept in kept_copies(plan.program, plan.forward, plan.backward):
        line = _line(save.names - {kept.leaf.name}, save)
        found.append(
            Alternative(
                f"{_listed(kept)} kept for the backward pass",
                f"make it again there ({line})",
                f"{_held(kept)} bytes are short: it costs moving {_moved(kept)}",
            )
        )
    return tuple(found)


def _made_twice(plan: Plan) -> Iterator[Kept]:
    """Go through the parameters with copies that both passes communicate for, as if they were kept."""
    made = {step.output for step in plan.forward if isinstance(step.op, Relayout)}
    again: dict[str, list[Step]] = {}
    for step in plan.backward:
        if isinstance(step.op, Relayout) and step.output in made:
            again.setdefault(step.output.name, []).append(step)
    reads = Counter(array for step in plan.backward for array in set(step.inputs))
    for leaf in plan.program.leaves:
        if leaf.kind == "param":
            steps = again.get(leaf.array.name, [])
            inner = Counter(array for step in steps for array in set(step.inputs))
            copies = [
                s.output for s in steps if reads[s.output] > inner[s.output] or not inner[s.output]
            ]
            if any(step.is_collective for step in steps):
                yield Kept(leaf.array, tuple(copies), tuple(steps))


def _line(names: Collection[str], save: Save) -> str:
    """Write the `save` line with other names."""
    words = replace(save, names=frozenset(names)).words
    return f"save {', '.join(words)}" if words else "save all"


def _listed(kept: Kept) -> str:
    return ", ".join(map(str, kept.copies))


def _held(kept: Kept) -> str:
    return _summed(copy.local_bytes * kept.times for copy in kept.copies)


def _moved(kept: Kept) -> str:
    return _summed(
        book_bytes(s.op, s.inputs[0], s.output) * s.times
        for s in kept.steps
        if isinstance(s.op, Relayout)
    )


def _summed(sizes: Iterable[Monomial]) -> str:
    """Print a sum of sizes, equal ones as one."""
    total: dict[tuple[tuple[str, int], ...], Fraction] = {}
    for size in sizes:
        total[size.powers] = total.get(size.powers, Fraction(0)) + size.coefficient
    shown = [str(Monomial(number, powers)) for powers, number in total.items() if number]
    return " + ".join(shown) or "nothing"


def regathered(plan: Plan, names: Collection[str]) -> Plan:
    """Give a plan that makes some parameters' copies again in the backward pass, on the same ways."""
    backward = list(plan.backward)
    for kept in kept_copies(plan.program, plan.forward, backward):
        if kept.leaf.name in names:
            _insert(backward, kept.steps)
    return _changed(plan, backward)


def made_again_for_nothing(plan: Plan) -> Plan:
    """Let the backward pass cut again what was cut for nothing from what it has: less is held.

    Copies of parameters that a Slice or a Mask made of the parameter itself, or of another copy that
    is kept, are no longer kept.
    """
    backward = list(plan.backward)
    while True:
        found = kept_copies(plan.program, plan.forward, backward)
        there = {copy for kept in found for copy in kept.copies} | {kept.leaf for kept in found}
        cuts = [
            step
            for kept in found
            for step in kept.steps
            if step.output in kept.copies
            and isinstance(step.op, Slice | Mask)
            and step.inputs[0] in there
        ]
        if not cuts:
            return _changed(plan, backward)
        _insert(backward, cuts[:1])


def _insert(steps: list[Step], again: Sequence[Step]) -> None:
    """Have each of some relayouts before the first step that reads what it makes, the last one first.

    Copies of what is one for all layers are made before the block that reads them.
    """
    for step in reversed(again):
        steps[:] = [each for each in steps if each.output != step.output]
        place = next(i for i, each in enumerate(steps) if step.output in each.inputs)
        loop = steps[place].loop
        while step.loop is None and loop is not None and place and steps[place - 1].loop == loop:
            place -= 1
        steps.insert(place, step if step.loop is None else replace(step, loop=loop))


def _changed(plan: Plan, backward: list[Step]) -> Plan:
    if len(backward) == len(plan.backward):
        return plan
    forward, behind = mark_critical(
        plan.program, plan.forward, tuple(backward), plan.outputs, plan.gradients
    )
    return named(replace(plan, forward=forward, backward=behind))
