"""Which steps matter: those that a result is made from, and which of them the rest waits for."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby

from shardlang.ir.ops import AllGather, Slice, Take
from shardlang.ir.plan import Gradient, Step
from shardlang.ir.program import Block, Program
from shardlang.ir.types import Array


def alive(
    forward: Sequence[Step],
    backward: Sequence[Step],
    outputs: Collection[Array],
    gradients: Collection[Array],
) -> list[bool]:
    """Say of each step of both passes whether some result is made from what it makes.

    Outputs are read at the end of the forward pass. An array that is made twice is read from the
    later of the steps before its reader.
    """
    needed = set(gradients)
    found: list[bool] = []
    for steps, results in ((backward, ()), (forward, outputs)):
        needed.update(results)
        for block, run in reversed(list(runs(steps))):
            found += _alive(block, run, needed)[::-1]
    return found[::-1]


def runs(steps: Iterable[Step]) -> Iterator[tuple[Block | None, list[Step]]]:
    """Go through the steps block by block: the lines outside of blocks, and the bodies of blocks."""
    for block, run in groupby(steps, key=lambda step: step.loop):
        yield block, list(run)


def _alive(block: Block | None, run: Sequence[Step], needed: set[Array]) -> list[bool]:
    """Say of the steps of one run whether they are needed; change `needed` to what is before them.

    What a block hands on is needed at its end if the next layer needs it.
    """
    while True:
        before, found = set(needed), list[bool]()
        for step in reversed(run):
            lives = not before.isdisjoint(step.outputs)
            found.append(lives)
            if lives:
                before.difference_update(step.outputs)
                before.update(step.inputs)
        ends = {last for first, last in _carried(block) if first in before} - needed
        if not ends:
            needed.clear()
            needed.update(before)
            return found[::-1]
        needed.update(ends)


def _carried(block: Block | None) -> Iterator[tuple[Array, Array]]:
    for carry in block.carries if block is not None else ():
        assert carry.layout is not None
        yield Array(carry.entry, carry.layout), Array(carry.exit, carry.layout)


def prune(
    forward: tuple[Step, ...],
    backward: tuple[Step, ...],
    outputs: Collection[Array],
    gradients: Collection[Gradient],
) -> tuple[tuple[Step, ...], tuple[Step, ...]]:
    """Give both passes without the steps that no result is made from."""
    lives = alive(forward, backward, outputs, [g.gradient for g in gradients])
    kept = [s for s, living in zip((*forward, *backward), lives, strict=True) if living]
    split = sum(lives[: len(forward)])
    return tuple(_handed_on(kept[:split])), tuple(_handed_on(kept[split:]))


def _handed_on(steps: Sequence[Step]) -> Iterator[Step]:
    """Let blocks hand on only what some step makes."""
    for block, run in runs(steps):
        made = {array.name for step in run for array in step.outputs}
        own = block
        if block is not None:
            left = tuple(carry for carry in block.carries if carry.exit.name in made)
            own = replace(block, carries=left)
        for step in run:
            yield step if own == block else replace(step, loop=own)


def mark_critical(
    program: Program,
    forward: tuple[Step, ...],
    backward: tuple[Step, ...],
    outputs: tuple[Array, ...],
    gradients: tuple[Gradient, ...],
) -> tuple[tuple[Step, ...], tuple[Step, ...]]:
    """Give both passes with `critical` set on the collectives that the rest has to wait for.

    A collective is critical unless its operand depends on parameters alone (it can be prefetched)
    or its result reaches nothing but gradients of parameters (it can run behind the rest). What is
    looked up in a parameter (`take`) counts as an input here, as no gradient flows to ids. Where there is no
    gradient of either, the rest is what the last gradients of computed values are made from.
    """
    steps = (*forward, *backward)
    weights = {leaf.array.tensor for leaf in program.leaves if leaf.kind == "param"}
    inputs = [g.gradient for g in gradients if g.leaf.tensor not in weights]
    alone = {leaf.array for leaf in program.leaves if leaf.kind in ("param", "index")}
    looked_up = {
        f"d{step.output.name}"
        for step in forward
        if isinstance(step.op, Take) and step.inputs[0].tensor in weights
    }
    inputs += [
        step.output
        for step in backward
        if step.output.name in looked_up and not isinstance(step.op, AllGather | Slice)
    ]
    if not inputs:
        values = {s.output.name for s in forward if s.is_compute} - {w.name for w in weights}
        inputs = _last(backward, {f"d{name}" for name in values})
    awaited = alive(forward, backward, outputs, inputs)
    marked: list[Step] = []
    for step, waits in zip(steps, awaited, strict=True):
        alone.difference_update(first for first, _ in _carried(step.loop))
        prefetched = all(array in alone for array in step.inputs)
        if prefetched:
            alone.update(step.outputs)
        else:
            alone.difference_update(step.outputs)
        marked.append(replace(step, critical=step.is_collective and waits and not prefetched))
    return tuple(marked[: len(forward)]), tuple(marked[len(forward) :])


def _last(backward: Sequence[Step], gradients: Collection[str]) -> list[Array]:
    """Give those of some gradients that no other of them is made from: where chains of them end."""
    found: list[Array] = []
    leading: set[str] = set()
    for step in reversed(backward):
        name = step.output.name
        if name in gradients and name not in leading and step.is_compute:
            found.append(step.output)
        if name in gradients or name in leading:
            leading.update(array.name for array in step.inputs if array.name != name)
    return found
