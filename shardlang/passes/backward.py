"""The backward pass: the cotangents of every value, in reverse, down to the leaves' gradients.

Precondition: a lowered forward pass. Effect: a gradient for each leaf that has one, in the leaf's
own layout. Gradients of a value that is used several times are added while they are still
unreduced, and reduced once.
"""

from __future__ import annotations

from dataclasses import dataclass

from shardlang.diagnostics import Reporter
from shardlang.ir.ops import Coefficient, Linear
from shardlang.ir.plan import Alternative, Gradient, Step
from shardlang.ir.program import Program
from shardlang.ir.types import Array, Layout, Tensor
from shardlang.passes.adjoint import adjoint, differentiable, gradient_of, Line, relays
from shardlang.passes.infer import infer_statement
from shardlang.passes.lowering import Lowering, Reason
from shardlang.passes.reshard import route


@dataclass(frozen=True)
class BackwardResult:
    """What the backward pass gives to the plan."""

    steps: tuple[Step, ...]
    cotangents: tuple[Array, ...]
    gradients: tuple[Gradient, ...]
    alternatives: tuple[Alternative, ...]


def backward(
    program: Program,
    forward: Lowering,
    outputs: tuple[Array, ...],
    reporter: Reporter,
) -> BackwardResult:
    """Lower the backward program of an ordinary program."""
    state = Lowering(forward.sizes, home=dict(forward.home), views=dict(forward.views))
    producers = {s.result.name: s for s in program.statements if not relays(s)}
    _kept(program, forward, state)

    def recompute(tensor: Tensor) -> None:
        infer_statement(state, producers[tensor.name], reporter)

    state.recompute = recompute
    wanted = differentiable(program)
    cotangents: list[Array] = []
    for output in outputs:
        if output.name in wanted:
            cotangent = Array(gradient_of(output.tensor), output.layout.reduced())
            cotangents.append(cotangent)
            state.give(cotangent)
    lines = adjoint(program, [output.tensor for output in outputs])
    state.reserved = {line.result.name for line in lines} | {f"d{name}" for name in state.home}
    for line in lines:
        _line(state, line)
    gradients: list[Gradient] = []
    for leaf in program.leaves:
        gradient = gradient_of(leaf.array.tensor)
        if leaf.differentiable and gradient.name in state.home:
            own = leaf.array.layout.reduced()
            reason = Reason("gradient", f"the gradient of {leaf.array.name} lives as it does")
            made = state.obtain(gradient, own, reason, leaf.span)
            gradients.append(Gradient(leaf.array, made))
    return BackwardResult(
        tuple(state.steps), tuple(cotangents), tuple(gradients), tuple(state.alternatives)
    )


def _line(state: Lowering, line: Line) -> None:
    """Lower a line: a gradient ends where its value lives, a contribution as it comes.

    The gradient of a view is left as it comes too: it goes on to the value itself, and is reduced
    there.
    """
    arrays = [state.array(tensor) for tensor in line.operands]
    wish = None if line.of is None else state.home[line.of.name].reduced()
    view = line.of is not None and line.of.name in state.views

    def end(made: Array) -> Layout:
        """Give the layout that the result is left in."""
        if line.kind == "contribution" or view:
            return made.layout
        return made.layout.reduced() if wish is None else wish

    if line.adds:
        assert wish is not None
        made = _add(state, line, arrays, wish)
        because = Reason("gradient", f"the gradient of {line.of} lives as its value does")
    else:
        made, decision = state.compute(
            line.op, tuple(arrays), line.result, wish, line.span, end=end
        )
        because = decision.reasons(None)
    made = state.follow(made, route(made, end(made), state.sizes), because, line.span)
    state.home.setdefault(line.result.name, made.layout)


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
        moves = route(total, onto.layout, state.sizes)
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


def _kept(program: Program, forward: Lowering, state: Lowering) -> None:
    """Put at hand what the forward pass keeps: leaves, and values as `save` says.

    Copies of activations in other layouts are kept, copies of parameters are made again, unless the
    `save` line names the parameter or it lives unreduced. Partial sums that are only on the way to a
    value are not kept.
    """
    leaves = {leaf.array.name for leaf in program.leaves}
    weights = {leaf.array.name for leaf in program.leaves if leaf.kind == "param"}
    kept = program.kept
    read = {array for step in forward.steps if step.is_compute for array in step.inputs}
    for name, arrays in forward.at_hand.items():
        saved = program.save.everything or name in program.save.names
        if name in forward.views:
            state.at_hand[name] = []
            continue
        if not saved and name not in leaves:
            continue
        for array in arrays:
            at_home = array.layout == forward.home[name]
            copy = (array in read or not array.layout.unreduced) and (
                name in kept if name in weights else program.save.everything
            )
            if at_home or copy:
                state.at_hand.setdefault(name, []).append(array)
    for arrays in state.at_hand.values():
        arrays.sort(key=lambda array: array.layout != forward.home[array.name])
