"""Overlap: rings, and what layers gather for the next one.

A ring is a collective and the product beside it as one step that sends shards while it multiplies.

Precondition: a legal plan. `pairs` finds what could be done so, `with_rings` does it to those that somebody
chose (`shardlang.cost.rings` does by their times), and `apart` writes rings out again as the two steps that
each stands for. Values and layouts stay; a gathered array that nothing else reads is gone.

A ring takes a product of two operands. An AllGather may join any dim of either: one that is summed, of which
every shard gives a partial sum, or one that is kept, of which every shard gives a block of the result. A
ReduceScatter may leave any dim split, of whose blocks the partial sums go round. Where a gathered dim is summed,
the result has to be split, or unreduced, over the ring's axes: else each device would add up in an order of its own, and the
copies would differ in their last bits.

In a program with stages there are none: a ring needs every device of the mesh at once, and stages do different work.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from shardlang.ir.ops import AllGather, Einsum, ReduceScatter, Relayout, Ring
from shardlang.ir.plan import Pass, Plan, Step
from shardlang.ir.program import Program
from shardlang.ir.types import Array
from shardlang.passes.live import mark_critical, runs


@dataclass(frozen=True)
class Pair:
    """A collective and the product that it can be done with: their places in a pass, and the ring."""

    section: Pass
    move: int
    product: int
    ring: Step

    @property
    def places(self) -> frozenset[tuple[Pass, int]]:
        """The two steps that the ring replaces."""
        return frozenset(((self.section, self.move), (self.section, self.product)))


def pairs(plan: Plan) -> list[Pair]:
    """List the pairs of steps that can be a ring, in the order of the plan; a step may be in several."""
    if plan.program.pipeline is not None:
        return []
    found: list[Pair] = []
    passes: tuple[tuple[Pass, Sequence[Step]], ...] = (
        ("forward", plan.forward),
        ("backward", plan.backward),
    )
    for section, steps in passes:
        for place, step in enumerate(steps):
            match step.op:
                case AllGather():
                    found += _gather(plan, section, steps, place)
                case ReduceScatter():
                    found += _scatter(plan, section, steps, place)
                case _:
                    pass
    return found


def _gather(plan: Plan, section: Pass, steps: Sequence[Step], place: int) -> Iterator[Pair]:
    """Give the ring of a gather and of the first step that reads what it makes."""
    move = steps[place]
    assert isinstance(move.op, AllGather)
    whole = move.output
    readers = [i for i in _readers(steps, place, whole) if i > place]
    if not readers or not move.op.axes or move.inputs[0].tensor != whole.tensor:
        return
    first = readers[0]
    product = steps[first]
    if not _is_product(product) or product.loop != move.loop:
        return
    assert isinstance(product.op, Einsum)
    if product.inputs.count(whole) != 1:
        return
    summed = move.op.dim in product.op.contracted
    if summed and not product.output.layout.used.issuperset(move.op.axes):
        return
    operand = product.inputs.index(whole)
    inputs = tuple(move.inputs[0] if i == operand else a for i, a in enumerate(product.inputs))
    keep = len(readers) > 1 or _outlives(plan, section, steps, place, whole)
    op = Ring(product.op, move.op, operand, keep)
    yield Pair(section, place, first, _ring(op, move, product, inputs, product.output))


def _scatter(plan: Plan, section: Pass, steps: Sequence[Step], place: int) -> Iterator[Pair]:
    """Give the ring of a scatter and of the product whose partial sums it adds, if nothing else reads them."""
    move = steps[place]
    assert isinstance(move.op, ReduceScatter)
    partial = move.inputs[0]
    makers = [i for i in range(place) if partial in steps[i].outputs]
    if not makers or not move.op.axes or move.output.tensor != partial.tensor:
        return
    last = makers[-1]
    product = steps[last]
    if not _is_product(product) or product.loop != move.loop:
        return
    assert isinstance(product.op, Einsum)
    alone = list(_readers(steps, last, partial)) == [place]
    if alone and not _outlives(plan, section, steps, last, partial):
        op = Ring(product.op, move.op)
        yield Pair(section, place, last, _ring(op, move, product, product.inputs, move.output))


def _ring(op: Ring, move: Step, product: Step, inputs: tuple[Array, ...], output: Array) -> Step:
    return replace(
        product,
        op=op,
        inputs=inputs,
        output=output,
        rule=move.rule,
        reason=move.reason,
        critical=move.critical,
    )


def _is_product(step: Step) -> bool:
    """Say whether a step multiplies two operands, sums, and repeats nothing along a dim of the result."""
    if not isinstance(step.op, Einsum) or not step.op.contracted or len(step.inputs) != 2:
        return False
    dims = {dim for array in step.inputs for dim in array.tensor.dims}
    return dims.issuperset(step.output.tensor.dims)


def _readers(steps: Sequence[Step], maker: int, array: Array) -> Iterator[int]:
    """Give the later steps of a pass that read an array, up to where it is made again."""
    for place in range(maker + 1, len(steps)):
        if array in steps[place].inputs:
            yield place
        if array in steps[place].outputs:
            return


def _outlives(plan: Plan, section: Pass, steps: Sequence[Step], maker: int, array: Array) -> bool:
    """Say whether an array is read beyond the pass that makes it, or at the pass's end."""
    if any(array in step.outputs for step in steps[maker + 1 :]):
        return False
    block = steps[maker].loop
    if block is not None and any(array.tensor == carry.exit for carry in block.carries):
        return True
    if section == "backward":
        return array in [gradient.gradient for gradient in plan.gradients]
    return array in plan.outputs or any(True for _ in _readers(plan.backward, -1, array))


def ahead(program: Program, body: Iterable[Step]) -> tuple[Step, ...]:
    """Give the steps of a block's body that each layer does for the next one, by the `prefetch` line.

    They are those that lay out a parameter anew that it names; what they make is handed on.
    """
    made = {leaf.array for leaf in program.leaves if leaf.array.name in program.prefetch}
    found: list[Step] = []
    for step in body:
        if isinstance(step.op, Relayout) and step.inputs[0] in made:
            made.add(step.output)
            found.append(step)
    return tuple(found) if any(step.is_collective for step in found) else ()


def gathered_ahead(plan: Plan) -> tuple[Step, ...]:
    """Give all such steps of a plan: the last layer does them once more, for nobody."""
    if not plan.program.prefetch:
        return ()
    passes = (plan.forward, plan.backward)
    bodies = (run for steps in passes for block, run in runs(steps) if block is not None)
    return tuple(step for run in bodies for step in ahead(plan.program, run))


def prefetchable(plan: Plan) -> frozenset[str]:
    """Name the parameters of which each layer has its own and of which it gathers copies."""
    stacked = {leaf.array.name for leaf in plan.program.leaves if leaf.loop is not None}
    stacked &= {leaf.array.name for leaf in plan.program.leaves if leaf.kind == "param"}
    gathers = (step for _, step in plan.steps() if step.loop and isinstance(step.op, AllGather))
    return frozenset(step.output.name for step in gathers) & stacked


def with_rings(plan: Plan, chosen: Iterable[Pair]) -> Plan:
    """Give the plan with some pairs as rings; no step may be in two of them."""
    found = tuple(chosen)
    rings = {(pair.section, pair.product): pair.ring for pair in found}
    gone = {(pair.section, pair.move) for pair in found}
    if len(rings) + len(gone) < 2 * len(found):
        raise ValueError("a step is in two of the pairs")

    def written(section: Pass, steps: Sequence[Step]) -> tuple[Step, ...]:
        kept = (i for i in range(len(steps)) if (section, i) not in gone)
        return tuple(rings.get((section, i), steps[i]) for i in kept)

    return _marked(plan, written("forward", plan.forward), written("backward", plan.backward))


def apart(plan: Plan) -> Plan:
    """Give the plan with every ring as the two steps that it stands for."""
    if not any(isinstance(step.op, Ring) for _, step in plan.steps()):
        return plan

    def written(steps: Collection[Step]) -> tuple[Step, ...]:
        return tuple(part for step in steps for part in _parts(step))

    return _marked(plan, written(plan.forward), written(plan.backward))


def _parts(step: Step) -> tuple[Step, ...]:
    if not isinstance(step.op, Ring):
        return (step,)
    parts = (step.moving, step.computing)
    return parts if step.op.gathers else parts[::-1]


def _marked(plan: Plan, forward: tuple[Step, ...], backward: tuple[Step, ...]) -> Plan:
    gradients = plan.gradients
    forward, backward = mark_critical(plan.program, forward, backward, plan.outputs, gradients)
    return replace(plan, forward=forward, backward=backward)
