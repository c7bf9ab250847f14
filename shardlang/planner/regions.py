"""Regions of a program: the lines of each block, and those outside of blocks.

A value is one of each layer of a block, or one for all of the program. What a block hands on has one name
for two values: within the block that of a layer, outside of it the one before the block, or behind it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from shardlang.ir.ops import Coefficient, Linear, Reduce
from shardlang.ir.plan import Pass, Plan
from shardlang.ir.program import Block, Carry, Program, Statement
from shardlang.ir.types import Layout, Tensor
from shardlang.passes.adjoint import Line, relays
from shardlang.passes.layers import left_inside, stack
from shardlang.planner.reshard import extent

COPY = Linear((Coefficient(),))
"""What gives a value another name."""

Region = int | None
"""Where a value is one of each layer: a block's number; None for the lines outside of blocks."""


@dataclass
class Regions:
    """Which values are one a layer, and of which block.

    `owner` has the values of one block alone by name; names in `handed` are another value in the
    block, by its number, that hands them on than outside of it. `loops` are the blocks of each pass as
    the book plan has them, and `layers` how many layers each has on a device. Of what blocks hand on, `stated` are
    the names of which the text says where they lie, as they enter the block or as its lines end.
    """

    owner: dict[str, int] = field(default_factory=dict[str, int])
    handed: dict[int, frozenset[str]] = field(default_factory=dict[int, frozenset[str]])
    loops: dict[tuple[Pass, int], Block] = field(default_factory=dict[tuple[Pass, int], Block])
    layers: dict[int, int] = field(default_factory=dict[int, int])
    stated: frozenset[str] = frozenset()

    def of(self, name: str, among: Region) -> Region:
        """Say what a name means among the lines of a block, or among those outside."""
        if among is not None and name in self.handed[among]:
            return among
        return self.owner.get(name)

    def times(self, region: Region) -> int:
        """Give how often the lines of a region are done."""
        return 1 if region is None else self.layers[region]

    @property
    def names(self) -> frozenset[str]:
        """All that blocks hand on."""
        return frozenset[str]().union(*self.handed.values())

    def handing(self) -> Iterator[tuple[Pass, int, Carry]]:
        """Go through what the blocks of each pass hand on, with their numbers."""
        for (section, number), block in self.loops.items():
            for carry in block.carries:
                yield section, number, carry

    def layout(self, name: str) -> Layout | None:
        """Give where a value of the forward pass is handed on; None where it is not."""
        carries = (carry for section, _, carry in self.handing() if section == "forward")
        return next((c.layout for c in carries if name in (c.entry.name, c.exit.name)), None)

    def declared(self, statement: Statement) -> Layout | None:
        """Give the layout that the text declares for a result.

        What goes on as a value that layers hand on lies as that does: anywhere, unless the text says where.
        """
        follows = statement.follows
        free = follows is not None and follows.name not in self.stated
        return None if free else statement.target

    @staticmethod
    def read(book: Plan, lines: Sequence[Line], *, in_place: bool = False) -> Regions:
        """Read them off a plan by the rules, and the lines of the backward pass.

        With `in_place` all that is handed on is taken to be stated, where the plan has it.
        """
        program, found = book.program, Regions()
        for section, step in book.steps():
            if step.loop is not None:
                found.loops[section, step.loop.number] = step.loop
        for block in program.blocks:
            number = block.number
            handed = {t.name for c in block.carries for t in (c.entry, c.exit)}
            found.handed[number] = frozenset(handed | {f"d{name}" for name in handed})
            found.layers[number] = extent(block.dim, program.sizes.known)
            if block.pipeline is not None:
                stages = block.pipeline.stages.evaluate(program.sizes.known)
                found.layers[number] //= int(stages.coefficient)
            found.stated |= _stated(program, block)
            own = {leaf.array.name for leaf in stack(program, block)}
            own |= {s.result.name for s in program.statements if s.block == block and not relays(s)}
            own |= {
                f"d{t.name}" for t in left_inside(program, [o.tensor for o in book.outputs], block)
            }
            made = [
                line for line in lines if line.block is not None and line.block.number == number
            ]
            own |= {x.result.name for x in made if x.op != Reduce("sum", (block.dim,))}
            found.owner.update(dict.fromkeys(own - found.handed[number], number))
        if in_place:
            found.stated = found.names
        return found


def _stated(program: Program, block: Block) -> frozenset[str]:
    """Name what a block hands on in a layout that the text gives: what enters it, or its last line."""
    inside = [s for s in program.statements if s.block == block]
    outside = [s for s in program.statements if s.block != block]
    ends = (
        (carry, _laid_out(carry.entry, outside) or _laid_out(carry.exit, inside))
        for carry in block.carries
    )
    return frozenset(t.name for carry, said in ends if said for t in (carry.entry, carry.exit))


def _laid_out(tensor: Tensor, statements: Sequence[Statement]) -> bool:
    """Say whether lines give a value's layout, or that of what it is a copy of."""
    mine = [s for s in statements if s.result == tensor and s.follows is None]
    copied = (s.operands[0].tensor for s in mine if s.op == COPY and not relays(s))
    return any(s.target is not None for s in mine) or any(
        _laid_out(each, statements) for each in copied
    )
