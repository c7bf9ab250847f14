"""What the backward pass makes again: kept apart from what the forward pass made of the same values.

XLA sees both passes at once, and would find that the two are the same: it would keep the first in place
of making the second, whatever the plan says. An optimization barrier on what the second is made of hides
that. It also takes in a cotangent, where JAX's types allow it: what is made again from it can then not be made before its
turn in the backward pass, when all else still has its memory. A gather of a parameter waits for nothing, so that it can be prefetched.

A block needs none: its two passes are two loops.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from shardlang.backends.jax.context import Context
from shardlang.backends.jax.flow import Value
from shardlang.backends.jax.names import comment
from shardlang.backends.jax.pretty import call, layout
from shardlang.ir.plan import Step
from shardlang.ir.types import Array


class Again:
    """Goes through the steps of a backward pass, outside of blocks, and writes the barriers before each."""

    def __init__(self, context: Context) -> None:
        """Start with the cotangents; `given` is what comes from the forward pass, with the leaves."""
        self.context = context
        self.made = {step.output for step in context.plan.forward if step.loop is None}
        saved = (value.array for value in context.flow.saved if value.loop is None)
        self.given = {*saved, *context.flow.read}
        self.later = [value.array for value in context.flow.cotangents if value.loop is None]
        self.hidden: set[Array] = set()
        self.inside = False

    def lines(self, step: Step, rest: Iterable[Step]) -> list[str]:
        """Write the barriers before a step; `rest` are those from it on."""
        if step.output not in self.made:
            self.inside = False
            self.later.append(step.output)
            return []
        if self.inside:
            return []
        self.inside = True
        lines: list[str] = []
        for array, computed in _read(self._run(rest)).items():
            after = self._before(array) if computed else None
            if array in self.given and (after is not None or array not in self.hidden):
                self.hidden.add(array)
                lines += self._barrier(array, after)
        why = f"    {comment('made again, and not kept from the forward pass')}"
        return [why, *lines] if lines else []

    def _run(self, rest: Iterable[Step]) -> Iterator[Step]:
        for step in rest:
            if step.output not in self.made:
                return
            yield step

    def _barrier(self, array: Array, after: Array | None) -> list[str]:
        name = self.context.names[array]
        if after is None:
            return layout(f"{name} = ", call("lax.optimization_barrier", name), 1)
        return layout(f"{name} = ", call("_after", name, self.context.names[after]), 1)

    def _before(self, array: Array) -> Array | None:
        """Give the last cotangent that may be joined with an array: it varies along no other axes.

        One that varies along none may be a constant, and then stands for no time.
        """
        own = self._type(array)
        types = ((each, self._type(each)) for each in reversed(self.later))
        return next((each for each, axes in types if axes and axes <= own), None)

    def _type(self, array: Array) -> frozenset[object]:
        return frozenset(self.context.varying.type(Value(array)))


def _read(steps: Iterable[Step]) -> dict[Array, bool]:
    """Give what steps read that they don't make, and whether anything but a change of layout reads it."""
    made: set[Array] = set()
    found: dict[Array, bool] = {}
    for step in steps:
        for array in step.inputs:
            if array not in made:
                found[array] = found.get(array, False) or step.is_compute
        made.add(step.output)
    return found
