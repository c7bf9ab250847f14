"""The update pass: what a training step does once, behind all of its microbatches.

Where the program says `accumulate M` or `zero 1 over X`, the gradients of its parameters are not reduced to
where these live as soon as they are made. They end the backward pass in the layout of `ends`, the mean over
the microbatches is reduced once into the layout of the optimizer's state, each device makes the new values of its part
of a parameter, and the parts are gathered to where the parameter lives.

The state of a parameter lies as the parameter does, and over the axes of `zero` besides: each of them in turn
splits the first dim, in the order in which the parameter is written, whose shard it divides evenly (sizes
that are not known are taken to be divided); one that divides none leaves the state whole.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from shardlang.diagnostics import Reporter
from shardlang.ir.ops import Op, Reduce, Update
from shardlang.ir.plan import Gradient, Step
from shardlang.ir.program import Block, Leaf, Program
from shardlang.ir.types import Array, Axis, Dim, DTYPES, Layout, promote, Tensor
from shardlang.passes.layers import stack
from shardlang.passes.reshard import route
from shardlang.rules.update_errors import PartialParameter, StateWhole

WIDE = DTYPES["f32"]
"""What gradients are added in over microbatches, at the least."""


def postpones(program: Program) -> bool:
    """Say whether a program declares anything that gives its plan an update pass."""
    return program.zero is not None or program.microbatches is not None


def state_layout(program: Program, leaf: Leaf) -> tuple[Layout, tuple[Axis, ...]]:
    """Give where the state of a parameter lies, and the axes of `zero` that divide none of its dims."""
    layout = leaf.array.layout.reduced()
    sizes = program.sizes.known
    left: list[Axis] = []
    for axis in () if program.zero is None else program.zero.axes:
        if axis in layout.split_axes:
            continue
        for place, dim in enumerate(leaf.array.tensor.dims):
            if _divides(axis, dim, layout.sharding[place], sizes):
                sharding = list(layout.sharding)
                sharding[place] = (*sharding[place], axis)
                layout = Layout(tuple(sharding))
                break
        else:
            left.append(axis)
    return layout, tuple(left)


def _divides(axis: Axis, dim: Dim, split: tuple[Axis, ...], sizes: Mapping[str, int]) -> bool:
    size, parts = sizes.get(dim.name), sizes.get(axis.name)
    if size is None or parts is None:
        return True
    for other in split:
        parts *= sizes.get(other.name, 1)
    return size % parts == 0


def gets_gradient(program: Program, leaf: Leaf) -> bool:
    """Say whether the backward pass makes a leaf's gradient: of a training step, only of parameters."""
    return leaf.differentiable and (leaf.kind == "param" or not postpones(program))


def ends(program: Program, leaf: Leaf, made: Array) -> Layout:
    """Give the layout in which a gradient ends the backward pass, which makes it as `made`.

    With no update pass that is where its leaf lives. Else it is reduced over the axes that split the parameter, and
    the rest waits; or all is reduced into the state's layout, at level 2.
    """
    own = leaf.array.layout.reduced()
    if leaf.kind != "param" or not postpones(program):
        return own
    if program.zero is not None and program.zero.level == 2:
        return state_layout(program, leaf)[0]
    inside = all(
        axes[: len(outer)] == outer
        for axes, outer in zip(made.layout.sharding, own.sharding, strict=True)
    )
    sharding = made.layout.sharding if inside else own.sharding
    left = made.layout.unreduced.difference(axis for axes in sharding for axis in axes)
    return Layout(sharding, left.difference(own.split_axes))


def may_end(program: Program, leaf: Leaf, layout: Layout) -> bool:
    """Say whether a parameter's gradient may end the backward pass of a training step in a layout.

    It may be unreduced over axes that don't split the parameter; those that do split it too, in whatever
    dims, so that no more is held of it than of the parameter. At level 2 it is where the state lies.
    """
    if program.zero is not None and program.zero.level == 2:
        return layout == state_layout(program, leaf)[0]
    return set(leaf.array.layout.split_axes) <= set(layout.split_axes)


Moves = Callable[[Array, Layout], Iterable[tuple[Op, Array]]]
"""Brings an array to a layout: what is done one after the other, and the array that it makes."""


@dataclass
class _Names:
    """Gives names that no value of the plan has."""

    taken: set[str]

    def fresh(self, name: str) -> str:
        found, number = name, 2
        while found in self.taken:
            found, number = f"{name}{number}", number + 1
        self.taken.add(found)
        return found


def update(
    program: Program,
    gradients: Iterable[Gradient],
    taken: Collection[str],
    reporter: Reporter,
    moves: Moves | None = None,
) -> tuple[Step, ...]:
    """Give the steps of the update pass; `taken` are the names that the other passes use.

    With no optimizer the gradients are brought to where their parameters live, and nothing is updated.
    Layouts are changed by `moves`, or as the rules do.
    """
    if not postpones(program):
        return ()
    moves = moves or _routes(program)
    names = _Names(set(taken))
    by_leaf = {gradient.leaf: gradient.gradient for gradient in gradients}
    found: dict[int, list[Step]] = {}
    blocks = {leaf.array: block for block in program.blocks for leaf in stack(program, block)}
    for leaf in program.leaves:
        if leaf.kind != "param" or leaf.array not in by_leaf:
            continue
        if leaf.array.layout.unreduced:
            reporter.report(leaf.span, PartialParameter(str(leaf.array)))
            continue
        block = blocks.get(leaf.array)
        loop = None if block is None else Block(block.dim, block.number, pipeline=block.pipeline)
        steps = _steps(program, leaf, by_leaf[leaf.array], names, reporter, moves)
        own = found.setdefault(-1 if loop is None else loop.number, [])
        own.extend(replace(step, loop=loop, span=leaf.span) for step in steps)
    return tuple(step for number in sorted(found) for step in found[number])


def _steps(
    program: Program,
    leaf: Leaf,
    gradient: Array,
    names: _Names,
    reporter: Reporter,
    moves: Moves,
) -> Iterator[Step]:
    """Give the steps that update one parameter."""
    weight = leaf.array
    layout, left = state_layout(program, leaf)
    if program.microbatches is not None:
        dtype = promote((gradient.tensor.dtype, WIDE))
        mean = Tensor(names.fresh(f"{gradient.name}_mean"), gradient.tensor.dims, dtype)
        op, output = Reduce("mean", (program.microbatches,)), Array(mean, gradient.layout)
        yield Step(op, (gradient,), output, "accumulate", "gradients are added over microbatches")
        gradient = output
    text = f"the gradient of {weight.name} is reduced once a step"
    if program.optimizer is None:
        yield from _moved(gradient, weight.layout, moves, text)
        return
    for axis in left:
        reporter.report(leaf.span, StateWhole(str(weight), axis.name))
    yield from _moved(gradient, layout, moves, text)
    text = f"the state of {weight.name} is split"
    yield from _moved(weight, layout, moves, text)
    made = Array(replace(weight.tensor, name=names.fresh(f"{weight.name}'")), layout)
    inputs = (weight.with_layout(layout), gradient.with_layout(layout))
    yield Step(
        Update(program.optimizer),
        inputs,
        made,
        "update",
        f"{program.optimizer} makes the new {weight.name}",
    )
    text = f"the new {weight.name} lives as {weight}"
    yield from _moved(made, weight.layout, moves, text)


def _routes(program: Program) -> Moves:
    """Bring arrays to layouts as the rules do."""
    sizes = dict(program.sizes.known)

    def moves(array: Array, layout: Layout) -> Iterator[tuple[Op, Array]]:
        return ((move.op, move.output) for move in route(array, layout, sizes))

    return moves


def _moved(array: Array, layout: Layout, moves: Moves, text: str) -> Iterator[Step]:
    for op, output in moves(array, layout):
        yield Step(op, (array,), output, "update", text)
        array = output


def of_all_layers(step: Step) -> Step:
    """Give a step of a block's update as it is done for all of its layers at once: on stacks of them.

    In a pipeline a stage has its own layers; where it holds chunks of them, a stack has a dim of these in front.
    """
    if step.loop is None:
        return step
    dim, pipeline = step.loop.dim, step.loop.pipeline
    chunked = pipeline is not None and pipeline.chunks > 1
    front = (Dim(f"chunks of {dim}"), dim) if chunked else (dim,)
    stages = () if pipeline is None else pipeline.axes
    splits = ((), stages) if chunked else (stages,)

    def whole(array: Array) -> Array:
        tensor = replace(array.tensor, dims=(*front, *array.tensor.dims))
        return Array(tensor, replace(array.layout, sharding=(*splits, *array.layout.sharding)))

    inputs = tuple(map(whole, step.inputs))
    return replace(step, inputs=inputs, output=whole(step.output), loop=None)
