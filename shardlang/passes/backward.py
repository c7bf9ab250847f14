"""The backward pass: the cotangents of every value, in reverse, down to the leaves' gradients.

Precondition: a lowered forward pass. Effect: a gradient for each leaf that has one, in the leaf's
own layout. Gradients of a value that is used several times are added while they are still
unreduced, and reduced once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from shardlang.diagnostics import Reporter
from shardlang.ir.ops import Coefficient, Linear, Reduce
from shardlang.ir.plan import Alternative, Gradient, Step
from shardlang.ir.program import Block, Carry, Leaf, Program
from shardlang.ir.types import Array, Layout, Tensor
from shardlang.passes.adjoint import adjoint, differentiable, gradient_of, Line, relays
from shardlang.passes.infer import infer_statement
from shardlang.passes.layers import left_inside, stack
from shardlang.passes.lowering import Lowering, Reason
from shardlang.passes.update import ends, gets_gradient


@dataclass(frozen=True)
class BackwardResult:
    """What the backward pass gives to the plan."""

    steps: tuple[Step, ...]
    cotangents: tuple[Array, ...]
    gradients: tuple[Gradient, ...]
    alternatives: tuple[Alternative, ...]
    warnings: tuple[str, ...]


def backward(
    program: Program,
    forward: Lowering,
    hands: Mapping[int, dict[str, list[Array]]],
    outputs: tuple[Array, ...],
    reporter: Reporter,
) -> BackwardResult:
    """Lower the backward program of an ordinary program; `hands` has what blocks had at hand."""
    state = Lowering(
        forward.sizes,
        forward.permutes,
        home=dict(forward.home),
        views=dict(forward.views),
        partial_over=forward.partial_over,
        terms=forward.terms,
    )
    producers = {s.result.name: s for s in program.statements if not relays(s)}
    keep = _Kept.of(program, forward)
    state.at_hand = keep.of_hand(forward.at_hand)

    def recompute(tensor: Tensor) -> None:
        producer, scope = producers[tensor.name], state.scope
        outside = scope is not None and producer.block is None
        if scope is not None:
            scope.outer, before = scope.outer or outside, scope.outer
            infer_statement(state, producer, reporter)
            if outside:
                scope.around.add(tensor.name)
            scope.outer = before
        else:
            infer_statement(state, producer, reporter)

    state.recompute = recompute
    wanted = differentiable(program)
    cotangents = {
        output.name: Array(gradient_of(output.tensor), output.layout.reduced())
        for output in outputs
        if output.name in wanted
    }
    ends = [output.tensor for output in outputs]
    own = {b: [t.name for t in left_inside(program, ends, b)] for b in program.blocks}
    inside = {name for names in own.values() for name in names}
    for name, cotangent in cotangents.items():
        if name in inside:
            state.home.setdefault(cotangent.name, cotangent.layout)
        else:
            state.give(cotangent)
    lines = adjoint(program, ends)
    state.reserved = {line.result.name for line in lines} | {f"d{name}" for name in state.home}
    state.open_parts = _summed(lines)
    gradients: dict[Array, Array] = {}
    for block, run in groupby(lines, key=lambda line: line.block):
        if block is None:
            for line in run:
                _line(program, state, line)
            continue
        given = keep.of_hand(hands[block.number])
        for name in own[block]:
            if name in cotangents:
                given[cotangents[name].name] = [cotangents[name]]
        back = _back(block, state)
        given.update((c.entry.name, [Array(c.entry, c.layout)]) for c in back.carries if c.layout)
        state.enter(back, given)
        for line in run:
            _line(program, state, line)
        leaves = stack(program, block)
        gradients.update(_gradients(program, state, leaves))
        state.send()
        state.leave()
    rest = [leaf for leaf in program.leaves if leaf.array not in gradients]
    gradients.update(_gradients(program, state, rest))
    return BackwardResult(
        tuple(state.steps),
        tuple(cotangents.values()),
        tuple(
            Gradient(x.array, gradients[x.array]) for x in program.leaves if x.array in gradients
        ),
        tuple(state.alternatives),
        tuple(state.warnings),
    )


def _summed(lines: Sequence[Line]) -> frozenset[str]:
    """Name the parts that one line alone reads, and adds up: they are smaller when they are reduced."""
    readers: dict[str, list[Line]] = {}
    for line in lines:
        for operand in line.operands:
            readers.setdefault(operand.name, []).append(line)
    return frozenset(
        line.result.name
        for line in lines
        if line.kind == "part"
        and all(
            isinstance(reader.op, Reduce) and reader.op.combines == "sum"
            for reader in readers[line.result.name]
        )
        and len(readers[line.result.name]) == 1
    )


def _gradients(
    program: Program, state: Lowering, leaves: Iterable[Leaf]
) -> Iterator[tuple[Array, Array]]:
    """Bring the gradients of leaves to where the leaves live, or as far as the backward pass does."""
    for leaf in leaves:
        gradient = gradient_of(leaf.array.tensor)
        if gets_gradient(program, leaf) and gradient.name in state.at_hand:
            own = ends(program, leaf, Array(gradient, state.home[gradient.name]))
            reason = Reason("gradient", f"the gradient of {leaf.array.name} lives as it does")
            yield leaf.array, state.obtain(gradient, own, reason, leaf.span)


def _back(block: Block, state: Lowering) -> Block:
    """Give the block of the backward pass: it hands on the gradients of what the forward one does."""
    carries = (
        Carry(gradient_of(c.exit), gradient_of(c.entry), state.home[c.exit.name].reduced())
        for c in block.carries
    )
    return replace(block, carries=tuple(c for c in carries if c.entry.name in state.home))


def _line(program: Program, state: Lowering, line: Line) -> None:
    """Lower a line: a gradient ends where its value lives, a contribution as it comes.

    The gradient of a view is left as it comes too: it goes on to the value itself, and is reduced
    there.
    """
    arrays = [state.array(tensor) for tensor in line.operands]
    wish = None if line.of is None else state.home[line.of.name].reduced()
    view = line.of is not None and line.of.name in state.views
    leaf = next((x for x in program.leaves if line.of == x.array.tensor), None)

    def end(made: Array) -> Layout:
        """Give the layout that the result is left in."""
        if line.kind == "contribution" or view or line.result.name in state.open_parts:
            return made.layout
        if leaf is not None:
            return ends(program, leaf, made)
        return made.layout.reduced() if wish is None else wish

    if line.block is not None and line.op == Reduce("sum", (line.block.dim,)):
        found = state.local(line.op, tuple(arrays), line.result, line.span)
        assert isinstance(found, Array)
        made, because = found, Reason("local", "")
    elif line.adds:
        assert wish is not None
        assert line.of is not None
        made = _add(state, line, arrays, wish)
        because = Reason("gradient", f"the gradient of {line.of.name} lives as its value does")
    else:
        made, decision = state.compute(
            line.op, tuple(arrays), line.result, wish, line.span, end=end
        )
        because = decision.reasons(None)
    made = state.follow(made, state.route(made, end(made)), because, line.span)
    state.home[line.result.name] = made.layout


def _add(state: Lowering, line: Line, parts: list[Array], target: Layout) -> Array:
    """Add contributions while they are unreduced: the most unreduced first, into those that are less.

    What is unreduced over the same axes is added as it is, and the sum reduced to where the others
    are, so that each axis is reduced over once.
    """
    assert line.of is not None
    groups: dict[frozenset[object], list[Array]] = {}
    for part in parts:
        groups.setdefault(frozenset(part.layout.unreduced), []).append(part)
    while len(groups) > 1:
        deepest = max(groups, key=lambda axes: (len(axes), sorted(map(str, axes))))
        inside = [axes for axes in groups if axes < deepest]
        if not inside:
            break
        into = max(inside, key=lambda axes: (len(axes), sorted(map(str, axes))))
        total = _total(state, groups.pop(deepest), line, None, target)
        onto = groups[into][0]
        reason = Reason("add-reduced", f"it is added to {onto}")
        moves = state.route(total, onto.layout)
        groups[into].append(state.follow(total, moves, reason, line.span))
    left = list(groups.values())
    sums = left[0] if len(left) == 1 else [_total(state, g, line, None, target) for g in left]
    return _total(state, sums, line, line.result, target)


def _total(
    state: Lowering, parts: list[Array], line: Line, result: Tensor | None, target: Layout
) -> Array:
    """Add arrays into a tensor; one alone needs no sum unless it has to get the name."""
    if result is None:
        if len(parts) == 1:
            return parts[0]
        result = Tensor(state.fresh(f"{line.result.name}_sum"), line.result.dims, line.result.dtype)
    wish = target
    if all(part.layout.unreduced == parts[0].layout.unreduced for part in parts):
        wish = Layout(target.sharding, parts[0].layout.unreduced)
        if wish.duplicates():
            wish = parts[0].layout
    op = Linear((Coefficient(),) * len(parts))
    made, _ = state.compute(op, tuple(parts), result, wish, line.span)
    state.home.setdefault(result.name, made.layout)
    return made


@dataclass(frozen=True)
class _Kept:
    """What the forward pass keeps: leaves, what layers hand on, and values as `save` says.

    Copies of activations in other layouts are kept, copies of parameters are made again, unless the
    `save` line names the parameter or it lives unreduced. Partial sums that are only on the way to a
    value are not kept.
    """

    program: Program
    forward: Lowering
    read: frozenset[Array]
    always: frozenset[str]
    weights: frozenset[str]

    @staticmethod
    def of(program: Program, forward: Lowering) -> _Kept:
        """Look through the forward pass."""
        read = {a for step in forward.steps if step.is_compute for a in step.inputs}
        always = {leaf.array.name for leaf in program.leaves}
        always |= {t.name for b in program.blocks for c in b.carries for t in (c.entry, c.exit)}
        weights = {leaf.array.name for leaf in program.leaves if leaf.kind == "param"}
        return _Kept(program, forward, frozenset(read), frozenset(always), frozenset(weights))

    def of_hand(self, hand: Mapping[str, list[Array]]) -> dict[str, list[Array]]:
        """Give what is kept of what was at hand, each value first where it lives."""
        save, kept, found = self.program.save, self.program.kept, dict[str, list[Array]]()
        for name, arrays in hand.items():
            if name in self.forward.views:
                found[name] = []
                continue
            if not (save.everything or name in save.names or name in self.always):
                continue
            home = self.forward.home[name]
            for array in arrays:
                copy = (array in self.read or not array.layout.unreduced) and (
                    name in kept if name in self.weights else save.everything
                )
                if array.layout == home or copy:
                    found.setdefault(name, []).append(array)
        for arrays in found.values():
            arrays.sort(key=lambda array: array.layout != self.forward.home[array.name])
        return found
