"""Leaves that may count otherwise than was meant: by what their names promise, or since nothing reads them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from shardlang.frontend.declaration_errors import NotAWeight, NotUsed
from shardlang.ir.printer import leaf_line
from shardlang.ir.program import Block, Leaf, LeafWord, Program


def not_weights(program: Program) -> Iterator[tuple[tuple[Leaf, ...], NotAWeight]]:
    """Give the inputs that are named as weights and not declared, where others are: block by block."""
    if not any(leaf.kind == "param" and leaf.declared for leaf in program.leaves):
        return
    groups: dict[Block | None, list[Leaf]] = {}
    for leaf in program.leaves:
        if leaf.kind == "input" and not leaf.declared and leaf.array.name.startswith("W"):
            groups.setdefault(_block(program, leaf), []).append(leaf)
    for block, leaves in groups.items():
        first = leaves[0]
        weight = replace(first, kind="param")
        if block is not None:
            weight = replace(weight, loop=block.dim, pipeline=block.pipeline)
        yield (
            tuple(leaves),
            NotAWeight(
                tuple(leaf.array.name for leaf in leaves),
                None if block is None else block.dim.name,
                (leaf_line(weight, program), leaf_line(first, program)),
            ),
        )


def not_used(program: Program) -> Iterator[tuple[tuple[Leaf, ...], NotUsed]]:
    """Give the declared leaves that no line reads, those of one word together."""
    used = {use.tensor.name for statement in program.statements for use in statement.operands}
    groups: dict[LeafWord, list[Leaf]] = {}
    for leaf in program.leaves:
        if leaf.declared and leaf.array.name not in used:
            groups.setdefault(leaf.word, []).append(leaf)
    for word, leaves in groups.items():
        yield tuple(leaves), NotUsed(tuple(leaf.array.name for leaf in leaves), word)


def _block(program: Program, leaf: Leaf) -> Block | None:
    """Give the block whose lines alone read a leaf."""
    found = {
        statement.block
        for statement in program.statements
        if any(use.tensor == leaf.array.tensor for use in statement.operands)
    }
    return found.pop() if len(found) == 1 else None
