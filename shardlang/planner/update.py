"""The update of a training step, as part of the problem: where gradients end, and what is moved once.

In which layout a parameter's gradient ends the backward pass is an operation between two values: the gradient of
a microbatch, which is moved in each of them, and behind it their mean, which is moved once, to where the
optimizer's state lies. Its ways are the layouts that `passes/update` lets a gradient end in. The new parameter
is one value more, given where the state lies and had where the parameter lives: nothing is left to choose of that.

Steps come from `passes/update`; here is said how arrays are brought from one layout to another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from shardlang.diagnostics import Reporter
from shardlang.ir.ops import Op
from shardlang.ir.plan import Gradient, Plan, Step
from shardlang.ir.program import Leaf
from shardlang.ir.types import Array, Layout, Tensor
from shardlang.passes.update import may_end, postpones, update
from shardlang.planner.problem import Operation, Problem
from shardlang.planner.reshard import layouts, steps_along
from shardlang.planner.ways import Local


@dataclass(frozen=True, slots=True)
class _Trained:
    """A parameter that is updated: its gradient in one microbatch, the mean, and where that is brought.

    `new` is the new parameter as it is made and as it lives; None where there is no optimizer.
    """

    leaf: Leaf
    gradient: Array
    mean: Tensor
    end: Layout
    new: tuple[Array, Layout] | None


def _trained(book: Plan) -> Iterator[_Trained]:
    """Read off a plan by the rules what its update does."""
    leaves = {leaf.array: leaf for leaf in book.program.leaves}
    renewed = {leaf: new for new, leaf in book.renewed.items()}
    states, sums = book.states, book.accumulators
    ends = {step.output.tensor: step.output.layout for step in book.update}
    for each in book.gradients:
        mean, new = sums.get(each.gradient, each.gradient), renewed.get(each.leaf)
        made = None
        if new is not None:
            made = (Array(new.tensor, states[each.leaf.tensor].layout), new.layout)
        end = ends.get(mean.tensor, mean.layout)
        yield _Trained(leaves[each.leaf], each.gradient, mean.tensor, end, made)


def add_update(problem: Problem, book: Plan) -> None:
    """Add where the gradients of a training step end, and what its update moves."""
    if not postpones(problem.program):
        return
    for each in _trained(book):
        region = problem.regions.of(each.gradient.name, None)
        index = len(problem.operations)
        wider = Fraction(each.mean.dtype.bits, each.gradient.tensor.dtype.bits)
        ended = Operation(
            None,
            (each.gradient.tensor,),
            each.mean,
            "update",
            each.leaf.span,
            held=wider,
            region=region,
            during=region,
        )
        problem.operations.append(ended)
        one = problem.at(each.gradient.tensor, "backward", region)
        mean = problem.once(each.mean, region)
        before, after = problem.values[one], problem.values[mean]
        after.terminals.append(after.state(each.end))
        places = [
            place
            for place in range(after.sums)
            if may_end(problem.program, each.leaf, after.layout(place))
        ]
        codes = [after.codes[place] for place in places]
        ended.ways = [Local((code,), code, 0) for code in codes]
        ended.states = [
            np.array([before.state(after.layout(place)) for place in places]),
            np.array(places),
        ]
        ended.work = {0: Fraction(0)}
        problem.connect(index, 0, one, source=False)
        problem.connect(index, 1, mean, source=True)
        if each.new is not None:
            made, home = each.new
            value = problem.values[problem.once(made.tensor, region)]
            value.root = value.state(made.layout)
            value.terminals.append(value.state(home))


def ended(problem: Problem, ways: Mapping[int, int], book: Plan) -> tuple[Gradient, ...]:
    """Give the gradients as they end the backward pass in an assignment."""
    found: dict[str, Layout] = {}
    for index, each in enumerate(problem.operations):
        if each.section == "update":
            value = problem.values[problem.slots[each.slots[0]].value]
            found[each.operands[0].name] = value.layout(int(each.states[0][ways[index]]))
    return tuple(
        replace(each, gradient=each.gradient.with_layout(found[each.gradient.name]))
        if each.gradient.name in found
        else each
        for each in book.gradients
    )


def updated(problem: Problem, plan: Plan, passes: Sequence[Step]) -> tuple[Step, ...]:
    """Give the steps of a plan's update, each array brought where it has to be at the least cost."""

    def moves(array: Array, layout: Layout) -> Iterator[tuple[Op, Array]]:
        graph = layouts(array, problem.mesh, problem.sizes, problem.prices)
        trail = graph.space.trail(graph.space.encode(array.layout), graph.space.encode(layout))
        return ((step.op, step.output) for step in steps_along(graph, array, trail))

    taken = {a.name for s in passes for a in (*s.inputs, s.output)}
    taken |= {leaf.array.name for leaf in plan.program.leaves}
    return update(plan.program, plan.gradients, taken, Reporter(plan.program.source), moves)
