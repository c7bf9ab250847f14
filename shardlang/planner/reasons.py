"""Why the collectives of a searched plan are there: what reads their results, and what sums need them.

A search gives no reasons but cost. What is true of each move can be read off the plan: which
operations, outputs and gradients it serves, and for a reduction which operation left partial sums.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from shardlang.ir.ops import AllGather, AllReduce, Einsum, Reduce, ReduceScatter, Relayout
from shardlang.ir.plan import Pass, Plan, Step
from shardlang.ir.types import Array, Axis, subscript

NAMED = 3
"""How many readers a reason names."""


@dataclass(frozen=True, slots=True)
class Served:
    """What a move's result is for: operations that read it, others beyond further moves, and ends."""

    direct: tuple[int, ...]
    beyond: tuple[int, ...]
    ends: tuple[Array, ...]
    """Outputs and gradients that are had in the layout that the move makes."""


class Uses:
    """Who reads what in a plan; steps are numbered through both passes."""

    def __init__(self, plan: Plan) -> None:
        """Number the steps."""
        self.plan = plan
        self.steps: list[tuple[Pass, Step]] = list(plan.steps())

    def readers(self, number: int) -> list[int]:
        """Give the steps that read what a step makes: later ones, until it is made again."""
        made = self.steps[number][1].output
        found: list[int] = []
        for later in range(number + 1, len(self.steps)):
            step = self.steps[later][1]
            if made in step.inputs:
                found.append(later)
            if step.output == made:
                break
        return found

    def served(self, number: int) -> Served:
        """Say what a move's result is for."""
        readers = self.readers(number)
        direct = [r for r in readers if self.steps[r][1].is_compute]
        beyond: dict[int, None] = {}
        waiting = [r for r in readers if not self.steps[r][1].is_compute]
        last = [self.steps[number][1].output]
        while waiting:
            move = waiting.pop(0)
            last.append(self.steps[move][1].output)
            for reader in self.readers(move):
                if self.steps[reader][1].is_compute:
                    beyond[reader] = None
                else:
                    waiting.append(reader)
        ends = {*self.plan.outputs, *(g.gradient for g in self.plan.gradients)}
        left = tuple(reader for reader in beyond if reader not in direct)
        return Served(tuple(direct), left, tuple(a for a in last if a in ends))

    def maker(self, number: int) -> int | None:
        """Give the operation that made the value that a step moves; None where it is given."""
        array = self.steps[number][1].inputs[0]
        for earlier in range(number - 1, -1, -1):
            step = self.steps[earlier][1]
            if step.output == array:
                if step.is_compute:
                    return earlier
                array = step.inputs[0]
        return None


def with_reasons(plan: Plan) -> Plan:
    """Give a plan with a reason on each relayout that the search put into it."""
    uses = Uses(plan)
    steps = [
        replace(step, reason=_reason(uses, number))
        if isinstance(step.op, Relayout) and step.rule == "optimal"
        else step
        for number, (_, step) in enumerate(uses.steps)
    ]
    many, both = len(plan.forward), len(plan.forward) + len(plan.backward)
    return replace(
        plan,
        forward=tuple(steps[:many]),
        backward=tuple(steps[many:both]),
        update=tuple(steps[both:]),
    )


def _reason(uses: Uses, number: int) -> str:
    """Say what a relayout is for, and where what it adds up comes from."""
    step = uses.steps[number][1]
    parts: list[str] = []
    if isinstance(step.op, AllReduce | ReduceScatter):
        parts.append(_sums(uses, number, step.op.axes))
    served = uses.served(number)
    parts += [_end(uses.plan, array) for array in served.ends]
    if served.direct:
        parts.append(_read(uses, served.direct, step))
    if served.beyond:
        parts.append(f"{_names(uses, served.beyond)} {_verb(served.beyond)} further copies of it")
    return "; ".join(parts) or "nothing reads it"


def _sums(uses: Uses, number: int, axes: Sequence[Axis]) -> str:
    """Say which operation left partial results over some axes."""
    over = subscript(axes).lstrip("_").strip("{}")
    maker = uses.maker(number)
    if maker is None:
        return f"it is given as partial sums over {over}"
    step = uses.steps[maker][1]
    gone = step.op.contracted if isinstance(step.op, Einsum) else ()
    gone = step.op.dims if isinstance(step.op, Reduce) else gone
    split = [d for d in gone if any(a in x.axes(d) for a in axes for x in step.inputs)]
    if split:
        verb = "is" if len(split) == 1 else "are"
        dims = " and ".join(d.name for d in split)
        what = "contracted" if isinstance(step.op, Einsum) else "reduced"
        return f"{dims} {verb} {what} and split over {over}"
    held = [x.name for x in step.inputs if x.layout.unreduced.intersection(axes)]
    return f"{' and '.join(dict.fromkeys(held))} {_are(held)} partial over {over}"


def _are(names: Sequence[str]) -> str:
    return "is" if len(set(names)) == 1 else "are"


def _verb(readers: Sequence[int]) -> str:
    return "reads" if len(readers) == 1 else "read"


def _end(plan: Plan, array: Array) -> str:
    leaf = next((g.leaf for g in plan.gradients if g.gradient == array), None)
    if leaf is None or array.layout != leaf.layout.reduced():
        return f"{array.name} ends as {array}"
    return f"{array.name} lives as {leaf.name}"


def _names(uses: Uses, readers: Iterable[int]) -> str:
    names = list(dict.fromkeys(uses.steps[r][1].output.name for r in readers))
    if len(names) > NAMED:
        return f"{', '.join(names[:NAMED])} and {len(names) - NAMED} more"
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _read(uses: Uses, readers: Sequence[int], step: Step) -> str:
    """Say who reads a result, and for a gather what the first reader does with the axis instead."""
    text = f"{_names(uses, readers)} {_verb(readers)} it"
    if not isinstance(step.op, AllGather):
        return text
    reader, axis, dim = uses.steps[readers[0]][1], step.op.axes[0], step.op.dim
    if axis in reader.output.layout.unreduced:
        return f"{text} with {dim} whole: {axis} is summed over there"
    for array in (*reader.inputs, reader.output):
        other = next((d for d in array.tensor.dims if axis in array.axes(d)), None)
        if other is not None:
            return f"{text} with {dim} whole: {axis} splits {other} there"
    return f"{text} with {dim} whole"
