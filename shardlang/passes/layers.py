"""Which values of a program are one a layer: a block's own, its entries, and the leaves of a stack."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import groupby

from shardlang.ir.program import Block, Leaf, Program, Statement
from shardlang.ir.types import Layout, Tensor


def bodies(statements: Iterable[Statement]) -> Iterator[tuple[Block | None, list[Statement]]]:
    """Go through the statements block by block: the lines outside, and the bodies of blocks."""
    for block, run in groupby(statements, key=lambda statement: statement.block):
        yield block, list(run)


def stack(program: Program, block: Block) -> tuple[Leaf, ...]:
    """Give the leaves of which each layer of a block has its own."""
    body = [s for s in program.statements if s.block is not None and s.block.number == block.number]
    read = {use.tensor.name for statement in body for use in statement.operands}
    return tuple(x for x in program.leaves if x.loop is not None and x.array.name in read)


def members(program: Program, block: Block) -> frozenset[str]:
    """Name the values that are one a layer within a block."""
    made = {s.result.name for s in program.statements if s.block == block}
    made |= {carry.entry.name for carry in block.carries}
    return frozenset(made.union(leaf.array.name for leaf in stack(program, block)))


def left_inside(program: Program, outputs: Iterable[Tensor], block: Block) -> tuple[Tensor, ...]:
    """Give the outputs that each layer of a block has."""
    own = members(program, block) - {carry.exit.name for carry in block.carries}
    return tuple(output for output in outputs if output.name in own)


def settled(block: Block, home: dict[str, Layout]) -> Block:
    """Give a block with the layouts of what it hands on."""
    carries = (replace(carry, layout=home[carry.entry.name]) for carry in block.carries)
    return replace(block, carries=tuple(carries))
