"""What the stages of a pipeline add up at the end: results that are in no parts on them.

An output is the last stage's alone, and a parameter of lines outside of the layers has its gradient in parts on
several stages, while every stage has the parameter. So at the end of a step there is one AllReduce over the
stages for each of them, which no microbatch waits for. The plan's steps are those of one microbatch and list none of
these; who prices, emits or checks a pipeline reads them here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from shardlang.ir.ops import Permute
from shardlang.ir.plan import Plan, Step
from shardlang.ir.program import Block
from shardlang.ir.types import Array, Dim, DTYPES
from shardlang.passes.layers import left_inside


def sends(block: Block) -> Iterator[Step]:
    """Go through what ends a stage: what its last layer hands on is sent to the next one."""
    for carry in block.carries if block.pipeline is not None else ():
        assert carry.layout is not None
        assert block.pipeline is not None
        array = Array(carry.exit, carry.layout)
        text = f"the next stage goes on from {carry.exit.name}"
        yield Step(Permute(block.pipeline.axes), (array,), array, "stage", text, loop=block)


@dataclass(frozen=True, slots=True)
class StageSum:
    """A sum over the stages: of `array`, in the dtype in which it is added up.

    `whose` is the output, or the leaf whose gradient it is. `loop` counts the layers of a block on no stages, each of
    which has one; `many` says that it is one for each microbatch.
    """

    array: Array
    whose: Array
    loop: Dim | None
    many: bool


def stage_sums(plan: Plan, *, backward: bool = True) -> list[StageSum]:
    """List the sums over the stages at the end of a step, or of a forward pass; none without stages.

    Gradients are sums in f32 at the least, those of inputs of all microbatches; outputs are of all microbatches.
    """
    program = plan.program
    if program.pipeline is None:
        return []
    staged = {block.dim for block in program.blocks if block.pipeline is not None}
    own = {leaf.array.name: leaf.loop for leaf in program.leaves}
    for block in program.blocks:
        left = left_inside(program, (output.tensor for output in plan.outputs), block)
        own.update((tensor.name, block.dim) for tensor in left)
    ends = [(x, _wide(x, sums=False), True) for x in plan.outputs]
    for each in plan.gradients if backward else ():
        many = each.leaf.tensor not in plan.parameters
        ends.append((each.leaf, _wide(each.gradient, sums=True), many))
    return [
        StageSum(array, whose, own.get(whose.name), many)
        for whose, array, many in ends
        if own.get(whose.name) not in staged
    ]


def _wide(array: Array, *, sums: bool) -> Array:
    """Give an array in the dtype in which stages add it up."""
    dtype = array.tensor.dtype
    if sums and dtype.bits < DTYPES["f32"].bits:
        dtype = DTYPES["f32"]
    elif dtype.name == "bool":
        dtype = DTYPES["int32"]
    return Array(replace(array.tensor, dtype=dtype), array.layout)
