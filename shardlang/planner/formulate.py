"""Writes a program as a problem of choice: which operations and values it has, and where they end.

Where values end: outputs in their declared layouts (undeclared, as the book plan ends them),
gradients as their leaves live (in a training step where `update` lets them), and values in every layout
that the text declares. A parameter whose copies may be kept from the forward to the backward pass is
one value in both, as everything else is; others are one value in each. With a `save` line that does not say `all` every value is one in each pass:
those that are named are passed on, and the others made again (`_Again`). A value that is compared with
its own maximum is reduced once, before it is copied, so that both have the same bits. A copy is the value
that it is a copy of, and equal operations of equal values make one value (`_same_values`): it is
computed once, and moved once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

from shardlang.ir.ops import (
    Compare,
    Compute,
    Einsum,
    Linear,
    Op,
    Relayout,
    Rename,
)
from shardlang.ir.plan import Pass, Plan, Step
from shardlang.ir.program import Block, Program, Statement
from shardlang.ir.types import Array, Mesh, Tensor
from shardlang.passes.adjoint import adjoint, Line, relays
from shardlang.passes.update import postpones
from shardlang.planner.measure import measure
from shardlang.planner.prices import price_plan, Prices
from shardlang.planner.problem import Free, Operation, Problem, UnplannableError
from shardlang.planner.regions import COPY, Region, Regions
from shardlang.planner.reshard import check_layout
from shardlang.planner.update import add_update

WIDEST = 9
"""The most places that one value is had in: the time grows as 3 to this power."""


Flow = tuple[tuple[Tensor, ...], Tensor, Op, Region]
"""An operation on whole tensors: operands, result, what is done, and the block that its line is in."""


def build(
    book: Plan,
    prices: Prices,
    *,
    rate: Fraction | None = None,
    kept: Collection[str] = (),
    lean: Fraction = Fraction(0),
    forward_only: bool = False,
    late: Callable[[], bool] = lambda: False,
    free: Free | None = None,
    in_place: bool = False,
) -> Problem:
    """Write a program as a problem; `book` is its plan by the rules, which says where it ends.

    `kept` are the parameters whose copies may be kept for the backward pass, and `free` the arrays that
    may lie anywhere; those of `free` are the first operations, in its order. With `in_place` layers hand
    values on where the book plan does. Raises `UnplannableError`,
    `OutOfTimeError` when it is `late`, and `ShardlangError` where a size is missing or a split uneven.
    """
    program = book.program
    _refuse(program)
    stages = () if program.pipeline is None else program.pipeline.axes
    axes = (info for info in program.mesh.axes if info.size != 1 and info.axis not in stages)
    mesh = Mesh(tuple(axes))
    problem = Problem(program, mesh, dict(program.sizes.known), prices, rate, lean=lean, late=late)
    again = not program.save.everything and not forward_only
    if not forward_only:
        weights = [leaf.array for leaf in program.leaves if leaf.kind == "param"]
        alone = {w.name for w in weights if not w.layout.unreduced}
        if again:
            alone |= {leaf.array.name for leaf in program.leaves}
            alone |= {s.result.name for s in program.statements}
        problem.split = frozenset(alone.difference(kept))
    outputs = {array.name: array for array in book.outputs}
    lines = () if forward_only else adjoint(program, [array.tensor for array in book.outputs])
    problem.regions = Regions.read(book, lines, in_place=in_place)
    problem.sent = _sent(problem, book)
    _give(problem, book)
    anywhere = _place(problem, book, free)
    computed = [s for s in program.statements if not relays(s)]
    flow: list[Flow] = [
        (tuple(u.tensor for u in s.operands), s.result, s.op, _number(s.block)) for s in computed
    ]
    flow += [(line.operands, line.result, line.op, _number(line.block)) for line in lines]
    flow = _same_values(problem, flow, set(outputs))
    had = _had(problem, book)
    needed = _needed(problem, flow, [array for array, _, _ in had])
    stated = _stated(problem, book)
    for s in program.statements:
        if s.result.name in outputs and s.result.name in problem.alias:
            if s.block is not None:
                raise UnplannableError(f"each layer has the output {s.result.name}, a view")
            before = problem.shown.setdefault(len(problem.operations), [])
            before.append(outputs[s.result.name])
        moves = relays(s) or isinstance(s.op, Relayout)
        dead = s.result.name not in needed or (moves and id(s) not in stated)
        if not dead and s.result.name not in problem.alias:
            problem.add(_operation(s, "forward"), only=stated.get(id(s)))
    lines = tuple(line for line in lines if line.result.name in needed)
    _backward(problem, lines, book, _Again(problem, stated) if again else None)
    add_update(problem, book)
    for section, number, carry in problem.regions.handing():
        for tensor, region in ((carry.entry, None), (carry.exit, number)):
            problem.at(tensor, section, region)
    gradients = {g.gradient.name: g.leaf.name for g in book.gradients}
    chosen = set(gradients) if postpones(program) else set[str]()
    chosen |= {
        array.name for array, _, _ in had if gradients.get(array.name, array.name) in anywhere
    }
    _end(problem, [each for each in had if each[0].name not in chosen])
    for value in problem.values:
        if len(value.targets) + len(value.terminals) > WIDEST or len(value.sources) > WIDEST:
            raise UnplannableError(f"{value.tensor.name} is read in more than {WIDEST} places")
        if value.once and any(value.layout(t).unreduced for t in value.terminals):
            raise UnplannableError(f"{value.tensor.name} is compared, and declared unreduced")
    measure(problem, book)
    return problem


def _give(problem: Problem, book: Plan) -> None:
    """Note where what is given lies: leaves, cotangents, and what blocks hand to layers and out of them."""
    regions = problem.regions
    for leaf in problem.program.leaves:
        check_layout(leaf.array, problem.mesh, problem.sizes)
        problem.homes[regions.of(leaf.array.name, None), leaf.array.name] = leaf.array
    for array in book.cotangents:
        problem.homes[regions.of(array.name, None), array.name] = array
    for section, number, carry in regions.handing():
        assert carry.layout is not None
        if carry.entry.name not in regions.stated:
            problem.hand_on(section, number, carry)
        for region, tensor in ((number, carry.entry), (None, carry.exit)):
            problem.homes[region, tensor.name] = Array(tensor, carry.layout)


def _sent(problem: Problem, book: Plan) -> Fraction:
    """Add up what stages send one another in layouts that the text gives."""
    stated = problem.regions.stated
    forward, backward = (
        tuple(step for step in steps if step.sends and step.output.name in stated)
        for steps in (book.forward, book.backward)
    )
    return price_plan(replace(book, forward=forward, backward=backward, update=()), problem.prices)


def _end(problem: Problem, had: Iterable[tuple[Array, Pass, Region]]) -> None:
    """Let values be had where they have to be."""
    for array, section, region in had:
        value = problem.values[problem.at(array.tensor, section, region)]
        terminal = value.state(array.layout)
        if terminal != value.root and terminal not in value.terminals:
            value.terminals.append(terminal)


def _number(block: Block | None) -> Region:
    return None if block is None else block.number


def _needed(problem: Problem, flow: Sequence[Flow], had: Iterable[Array]) -> set[str]:
    """Name the values that something had is made from: what a layer reads, the one before has to make."""
    needed = {problem.original(array.tensor).name for array in had}
    while True:
        for operands, result, _, _ in reversed(flow):
            if result.name in needed:
                needed.update(operand.name for operand in operands)
        again = {c.exit.name for _, _, c in problem.regions.handing() if c.entry.name in needed}
        if again <= needed:
            return needed
        needed |= again


def _same_values(problem: Problem, flow: Iterable[Flow], outputs: Collection[str]) -> list[Flow]:
    """Find the names that are other values' names too; give the flow with what they come from.

    These are views, copies, and what equal operations make of equal operands. Where the text says how
    a value is moved, made or saved, it is a value of its own; so is a copy of a parameter, since of
    those not all passes have the same copies. An output stays what nothing reads. What a block hands on is not
    what it is before it, and lines of a block are equal to others of that block alone.
    """
    program = problem.program
    apart = {leaf.array.name for leaf in program.leaves if leaf.kind == "param"}
    apart |= set() if program.save.everything else program.save.names
    for s in program.statements:
        if isinstance(s.op, Relayout) or s.keep_unreduced:
            apart.add(s.result.name)
    handed = problem.regions.names
    known: dict[object, Tensor] = {}
    found: list[Flow] = []
    for operands, result, op, region in flow:
        if result.name in handed:
            if isinstance(op, Rename):
                raise UnplannableError(f"layers hand on {result.name}, a view")
        elif isinstance(op, Rename):
            problem.alias[result.name] = (op, operands[0])
        elif result.name not in apart and not isinstance(op, Relayout):
            first = operands[0]
            copied = op == COPY and (first.dims, first.dtype) == (result.dims, result.dtype)
            if copied and problem.original(first).name not in apart:
                same = first
            else:
                read = [problem.key(o, "forward", region) for o in operands]
                meaning = (region, _meaning(read, operands, result, op))
                same = known.get(meaning, result)
                if result.name not in outputs:
                    known.setdefault(meaning, result)
            if same.name != result.name:
                problem.alias[result.name] = (COPY, same)
                found.append(((same,), result, COPY, region))
                continue
        found.append((operands, result, op, region))
    return found


def _meaning(
    values: Sequence[object], operands: Sequence[Tensor], result: Tensor, op: Compute
) -> tuple[object, ...]:
    """Give what two operations have alike that make the same numbers, in whatever order they read.

    `values` say which ones the operands are.
    """
    read: list[object] = [(v, o.dims) for v, o in zip(values, operands, strict=True)]
    what: object = op
    if isinstance(op, Einsum):
        read, what = sorted(read, key=repr), (Einsum, frozenset(op.contracted))
    elif isinstance(op, Linear):
        read = sorted(zip(read, op.coefficients, strict=True), key=repr)
        what = (Linear, op.constant)
    return (what, tuple(read), result.dims, result.dtype)


def _refuse(program: Program) -> None:
    """Raise `UnplannableError` for what only the rules lower."""
    if program.explicit:
        raise UnplannableError("the program's lines are its steps")
    stages = () if program.pipeline is None else program.pipeline.axes
    if program.zero is not None and not set(stages).isdisjoint(program.zero.axes):
        raise UnplannableError("the optimizer's state is split over the stages")


def _place(problem: Problem, book: Plan, free: Free | None) -> frozenset[str]:
    """Add the choices of where arrays lie, and give the names of those that may lie anywhere.

    Raises `UnplannableError` where such an output is another value's view.
    """
    if free is None:
        return frozenset()
    shown = {output.name: output.tensor for output in book.outputs if output.name in free.names}
    for s in problem.program.statements:
        if isinstance(s.op, Rename) and s.result.name in shown:
            raise UnplannableError(f"the output {s.result.name} is another value's view")
    for group, held in zip(free.groups, free.held, strict=True):
        problem.place(book, group, held)
    return free.names


def _operation(s: Statement, section: Pass) -> Operation:
    """Write a statement as an operation."""
    assert not isinstance(s.op, Rename)
    region = _number(s.block)
    operands = tuple(use.tensor for use in s.operands)
    return Operation(s.op, operands, s.result, section, s.span, region=region, during=region)


def _stated(problem: Problem, book: Plan) -> dict[int, Step]:
    """Give the steps of the book plan that the text fixes, by the `id` of their statements.

    Those are stated collectives and local products (`·_LOCAL`); dead ones are not in the book plan.
    What a collective makes of a value under the same name is noted with the value.
    """
    found: dict[int, Step] = {}
    steps = [step for step in book.forward if step.rule == "stated" or step.is_compute]
    for s in problem.program.statements:
        if not isinstance(s.op, Relayout) and not s.keep_unreduced:
            continue
        step = next((x for x in steps if (x.op, x.output.tensor) == (s.op, s.result)), None)
        if step is None:
            continue
        steps.remove(step)
        found[id(s)] = step
        if isinstance(s.op, Relayout) and relays(s):
            name = problem.original(s.result).name
            if name != s.result.name:
                raise UnplannableError(
                    f"the program states a collective of {s.result.name}, a view"
                )
            region = _number(s.block)
            if name in problem.regions.names or problem.regions.of(name, region) != region:
                raise UnplannableError(
                    f"the program states a collective of {s.result.name}, which is not a layer's alone"
                )
            if step.inputs[0].layout.reduction != "sum":
                raise UnplannableError(f"the program states how {step.inputs[0]} is reduced")
            ends = (step.inputs[0].layout, step.output.layout)
            problem.made[name] = (*problem.made.get(name, ()), ends)
    return found


class _Again:
    """What the backward pass reads of the forward pass where only some values are saved.

    A saved value is passed on in one layout, the declared one where there is one, and so is what layers
    hand on; others are computed again from those, once.
    """

    def __init__(self, problem: Problem, stated: Mapping[int, Step]) -> None:
        self.problem, self.stated = problem, stated
        self.makers = {s.result.name: s for s in problem.program.statements if not relays(s)}
        self.done: set[tuple[str, Region]] = set()

    def need(self, tensor: Tensor, among: Region, during: Region) -> None:
        """Have a value in the backward pass, as the lines of a region mean it, among a block's lines."""
        problem = self.problem
        tensor = problem.original(tensor)
        region = problem.regions.of(tensor.name, among)
        maker = self.makers.get(tensor.name)
        if maker is None or (tensor.name, region) in self.done:
            return
        self.done.add((tensor.name, region))
        if (region, tensor.name) in problem.homes or (region, tensor.name) in problem.open:
            return
        handed = problem.regions.layout(tensor.name)
        if handed is not None or tensor.name in problem.program.save.names:
            problem.keep(tensor, handed or problem.regions.declared(maker), region)
            return
        for use in maker.operands:
            self.need(use.tensor, _number(maker.block), during)
        made = replace(_operation(maker, "backward"), during=during)
        problem.add(made, only=self.stated.get(id(maker)))


def _had(problem: Problem, book: Plan) -> list[tuple[Array, Pass, Region]]:
    """Give what the plan has to have: outputs, gradients, and what the text declares.

    What is declared and dead in the book plan, and so not in it, is left out here as well. Of an
    output's layouts the last one counts: nothing reads it in the others. What a block hands on where the text
    says is had there, at both ends.
    """
    steps = (*book.forward, *book.backward)
    regions = problem.regions
    present = {array for step in steps for array in (*step.inputs, step.output)}
    last: Pass = "backward"
    ends: list[tuple[Array, Pass]] = [(output, "forward") for output in book.outputs]
    ends.extend((gradient.gradient, last) for gradient in book.gradients)
    found: list[tuple[Array, Pass, Region]] = [
        (array, section, regions.of(array.name, None)) for array, section in ends
    ]
    outputs = {output.name for output in book.outputs}
    for s in problem.program.statements:
        target = regions.declared(s)
        if target is None or s.result.name in outputs:
            continue
        if Array(s.result, target) in present:
            found.append((Array(s.result, target), "forward", _number(s.block)))
    for section, number, carry in regions.handing():
        assert carry.layout is not None
        if carry.entry.name not in regions.stated:
            continue
        found.append((Array(carry.entry, carry.layout), section, None))
        found.append((Array(carry.exit, carry.layout), section, number))
    return found


def _backward(
    problem: Problem, lines: Sequence[Line], book: Plan, again: _Again | None = None
) -> None:
    """Add the lines of the backward pass; contributions go straight into the sums that they are for.

    `again` brings what they read of the forward pass, where that is not all at hand.
    """
    lines = [line for line in lines if line.result.name not in problem.alias]
    readers = Counter(problem.original(o).name for line in lines for o in line.operands)
    taken = {problem.original(g.gradient.tensor).name for g in book.gradients}
    taken |= {name for _, name in problem.homes}
    sums = {
        line.result.name: line
        for line in lines
        if line.adds and all(operand.dims == line.result.dims for operand in line.operands)
    }
    into = {
        operand.name: line.result
        for line in sums.values()
        for operand in line.operands
        if readers[operand.name] == 1
        and operand.name not in taken
        and operand.name not in problem.alias
        and operand.name not in sums
    }
    for line in lines:
        if again is not None:
            if isinstance(line.op, Compare):
                raise UnplannableError("a maximum is compared, and not all values are saved")
            for operand in line.operands:
                again.need(operand, _number(line.block), _number(line.block))
        region = _number(line.block)
        if line.result.name not in sums:
            problem.add(_backwards(line, line.op, line.operands), into.get(line.result.name))
            if isinstance(line.op, Compare):
                first = problem.at(line.operands[0], "backward", region)
                problem.values[first].once = True
            continue
        for operand in line.operands:
            if operand.name not in into:
                problem.add(_backwards(line, None, (operand,)))


def _backwards(line: Line, op: Compute | None, operands: tuple[Tensor, ...]) -> Operation:
    """Write a line of the backward pass as an operation, or what it passes on as one."""
    region = _number(line.block)
    return Operation(op, operands, line.result, "backward", line.span, region=region, during=region)
