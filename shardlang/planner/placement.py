"""Where leaves and outputs should lie: their layouts as part of the problem, memory having a price.

On a mesh with sizes every leaf and output may lie in any layout; a weight's gradient lies as the weight does,
and an output as the input of the same dims, so that blocks can be stacked. The search makes T_math + T_comms
least, plus a price for each byte that a device holds: weights with their gradients and the optimizer's state,
inputs, and what operations read and make. Without that price nothing keeps weights from lying on every device.
The layouts found are written into the program, which is then planned as any other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction

from shardlang.cost.formula import Formula
from shardlang.cost.memory import OPTIMIZERS
from shardlang.ir.ops import Relayout
from shardlang.ir.plan import Plan
from shardlang.ir.program import Program
from shardlang.ir.types import Array, Layout
from shardlang.passes import lower
from shardlang.passes.normal import without
from shardlang.planner.bound import Folded
from shardlang.planner.formulate import build
from shardlang.planner.prices import Prices
from shardlang.planner.problem import Free, UnplannableError
from shardlang.planner.search import search, Start


def anywhere(program: Program) -> Program:
    """Give the program with no layout written in it: every leaf on every device."""
    leaves = tuple(
        replace(leaf, array=leaf.array.with_layout(Layout.replicated(len(leaf.array.tensor.dims))))
        for leaf in program.leaves
    )
    statements = tuple(
        replace(
            statement,
            operands=tuple(replace(use, layout=None) for use in statement.operands),
            target=None,
            hint=None,
        )
        for statement in program.statements
    )
    return replace(program, leaves=leaves, statements=statements)


def placed_in(program: Program, layouts: Mapping[str, Layout]) -> Program:
    """Write the layouts of leaves and outputs, by name, into a program."""
    leaves = tuple(
        replace(leaf, array=leaf.array.with_layout(layouts[leaf.array.name]))
        if leaf.array.name in layouts
        else leaf
        for leaf in program.leaves
    )
    statements = tuple(
        replace(statement, target=layouts[statement.result.name])
        if statement.result.name in layouts
        else statement
        for statement in program.statements
    )
    return replace(program, leaves=leaves, statements=statements)


def arrays_of(program: Program, book: Plan) -> tuple[Array, ...]:
    """List leaves and outputs as they lie in a program and its plan, without axes of size 1."""
    used = {array.name for _, step in book.steps() for array in step.inputs}
    ones = frozenset(info.axis for info in program.mesh.axes if info.size == 1)
    leaves = [leaf.array for leaf in program.given if leaf.array.name in used]
    every = (*leaves, *(output for output in book.outputs if output not in leaves))
    return tuple(array.with_layout(without(array.layout, ones)) for array in every)


def place(
    program: Program,
    prices: Prices,
    rate: Fraction,
    *,
    lean: Fraction,
    forward_only: bool,
    late: Callable[[], bool],
) -> Program:
    """Find layouts of leaves and outputs, and give the program with them.

    `program` has none written (`anywhere`); `prices` are in seconds, `rate` are the FLOPs/s of a device,
    and `lean` is the price of a byte held, in seconds. Raises `UnplannableError` where the program states
    collectives, and `OutOfTimeError` when it is `late` before the search begins.
    """
    if any(isinstance(statement.op, Relayout) for statement in program.statements):
        raise UnplannableError("the program states collectives")
    if program.blocks:
        raise UnplannableError(f"layers {program.blocks[0].dim} are a block")
    batch = replace(program, zero=None, microbatches=None)  # what a step does once is the same
    book = lower(batch, "book", forward_only=forward_only)
    free = _free(program, book, forward_only=forward_only)
    weights = {leaf.array.name for leaf in program.leaves if leaf.kind == "param"}
    problem = build(
        book,
        prices,
        rate=rate,
        kept=() if lean else weights,
        lean=lean,
        forward_only=forward_only,
        late=late,
        free=free,
    )
    folded = Folded(problem)
    ways = search(problem, folded, Start(book), late).ways
    layouts: dict[str, Layout] = {}
    for index, group in enumerate(free.groups):
        operation = problem.operations[index]
        value = problem.values[problem.slots[operation.slots[0]].value]
        layout = value.layout(int(operation.states[0][ways[index]]))
        layouts.update(dict.fromkeys(group, layout))
    return placed_in(program, layouts)


def _free(program: Program, book: Plan, *, forward_only: bool) -> Free:
    """Group what lies alike, and say what is held with it."""
    inputs = {
        leaf.array.tensor.dims: leaf.array.name
        for leaf in reversed(program.leaves)
        if leaf.kind == "input"
    }
    groups: dict[str, list[str]] = {leaf.array.name: [leaf.array.name] for leaf in program.given}
    for output in book.outputs:
        like = inputs.get(output.tensor.dims, output.name)
        group = groups.setdefault(like, [])
        if output.name not in group:
            group.append(output.name)
    trained = {
        leaf.array.name: leaf.array
        for leaf in program.leaves
        if leaf.kind == "param" and leaf.differentiable
    }
    held = tuple(
        _held(program, trained[first]) if first in trained and not forward_only else Fraction(1)
        for first in groups
    )
    return Free(tuple(tuple(group) for group in groups.values()), held)


def _held(program: Program, weight: Array) -> Fraction:
    """Give the bytes of a weight, its gradient and the optimizer's state for each of its own."""
    known = {info.dim.name: Fraction(info.size) for info in program.dims if info.size}
    state = OPTIMIZERS.get(program.optimizer or "none")
    own = Formula.of(weight.local_bytes).value(known)
    more = Formula() if state is None else state(weight)
    total = more.value(known)
    return Fraction(2) + (total / own if own and total else 0)
