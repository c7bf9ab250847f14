"""Blocks in a text: which lines belong to a `layers L:` or a `block mlp(x):`, and which blocks belong together.

A block's lines are those below its head that begin with the head's indentation and more, all with the
same. The first line that does not ends it. Blocks don't nest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from shardlang.diagnostics import Label, Mistake, Reporter
from shardlang.frontend.parse_errors import EmptyBlock, NestedBlock, NotInBlock, WrongIndent
from shardlang.frontend.syntax import (
    AccumulateDecl,
    BlockDecl,
    Definition,
    DimsDecl,
    Item,
    Layers,
    Section,
)
from shardlang.frontend.walk import references
from shardlang.source import Source, Span


def nested(
    source: Source,
    items: Sequence[Item],
    starts: Sequence[int],
    unread: Sequence[Span],
    reporter: Reporter,
) -> tuple[Item, ...]:
    """Settle how many items each block has; `starts` are the offsets at which the items begin.

    A line that may not stand in a block is reported, and counts as one of its lines. `unread` are the
    places of statements that can't be read: a block with nothing else is not reported as empty.
    """
    found = list(items)
    head: int | None = None
    own = body = ""
    inner: str | None = None  # of a block within a block, whose lines say nothing more
    for place, (item, start) in enumerate(zip(items, starts, strict=True)):
        margin = indent(source.text, start)
        if head is not None and len(margin) > len(own) and margin.startswith(own):
            block = found[head]
            assert isinstance(block, Layers | BlockDecl)
            body = body if block.length else margin
            found[head] = replace(block, length=block.length + 1)
            nested_line = inner is not None and len(margin) > len(inner)
            if not nested_line:
                inner = margin if isinstance(item, Layers | BlockDecl) else None
            mistake = _mistake(item, block, alike=margin == body or nested_line)
            if mistake is not None:
                label = Label(block.span, "the block starts here")
                reporter.report(item.span, mistake, [label])
        else:
            head = place if isinstance(item, Layers | BlockDecl) else None
            own, inner = margin, None
    within = {id(item) for block, item in inside(found) if block is not None}
    ends = (*starts, len(source.text))[1:]
    for item, start, end in zip(found, starts, ends, strict=True):
        if isinstance(item, Layers | BlockDecl) and not item.length and id(item) not in within:
            margin = len(indent(source.text, start))
            lines = (s.start for s in unread if start < s.start < end)
            if all(len(indent(source.text, line)) <= margin for line in lines):
                reporter.report(item.span, EmptyBlock(_head(item)))
    return tuple(found)


def indent(text: str, start: int) -> str:
    """Give what stands before a place on its line."""
    return text[text.rfind("\n", 0, start) + 1 : start]


def _head(block: Layers | BlockDecl) -> str:
    """Give a block's head as messages show it."""
    return (
        f"layers {block.dim.text}" if isinstance(block, Layers) else f"block {block.name.text}(..)"
    )


def _mistake(item: Item, block: Layers | BlockDecl, *, alike: bool) -> Mistake | None:
    """Say what is wrong with a line of a block."""
    if isinstance(item, Layers | BlockDecl):
        return NestedBlock(_head(item), _head(block), named=isinstance(item, BlockDecl))
    if not isinstance(item, Definition):
        return NotInBlock(_head(block))
    return None if alike else WrongIndent(_head(block))


def with_sizes(items: Sequence[Item]) -> tuple[Item, ...]:
    """Give the items with a `dims` line before each that says how many layers or microbatches there are."""
    found: list[Item] = []
    for item in items:
        if isinstance(item, Layers | AccumulateDecl) and item.size is not None:
            found.append(DimsDecl((item.size,), item.size.span))
        found.append(item)
    return tuple(found)


def numbers(items: Sequence[Item]) -> dict[int, int]:
    """Number the blocks, by the identity of their heads.

    Those of the forward pass count from 0. A block of the backward pass has the number of the one that
    it goes back through: the one whose carried values have the gradients that it carries, else the last one
    over the same dim that is not yet taken. A block of an update has the number of the first one that is not yet taken
    and reads a parameter of it, else of the first one. One that has no partner gets a number of its own.
    """
    read = _mentioned(items)
    section = "forward"
    forward: list[Layers] = []
    found: dict[int, int] = {}
    free: list[int] = []
    for item in items:
        if isinstance(item, Section):
            section = item.name
            if section == "update":  # it goes through the layers once more
                free = list(range(len(forward)))[::-1]
        elif isinstance(item, Layers) and section == "forward":
            found[id(item)] = len(forward)
            free.append(len(forward))
            forward.append(item)
        elif isinstance(item, Layers):
            alike = [n for n in free if forward[n].dim.text == item.dim.text]
            own = [n for n in alike if _goes_back(item, forward[n])]
            if section == "update":
                own = [n for n in alike if read[id(item)] & read[id(forward[n])]]
            number = (own or alike or [len(found)])[-1]
            found[id(item)] = number
            free = [n for n in free if n != number]
    return found


def _mentioned(items: Sequence[Item]) -> dict[int, set[str]]:
    """Give the names that the lines of each block mention, by the identity of its head."""
    found: dict[int, set[str]] = {id(item): set() for item in items if isinstance(item, Layers)}
    for head, item in inside(items):
        if isinstance(head, Layers) and isinstance(item, Definition):
            names = (ref.name for ref in references([item]))
            found[id(head)].update(name.text for name in names if name is not None)
    return found


def _goes_back(block: Layers, through: Layers) -> bool:
    """Say whether a block carries the gradient of a value that another one carries."""
    mine = {(carry.exit.text, carry.entry.text) for carry in block.carries}
    return any((f"d{c.entry.text}", f"d{c.exit.text}") in mine for c in through.carries)


def inside(items: Sequence[Item]) -> Iterator[tuple[Layers | BlockDecl | None, Item]]:
    """Go through the items, each with the head of the block that it stands in."""
    block: Layers | BlockDecl | None = None
    left = 0
    for item in items:
        yield (block if left else None), item
        if isinstance(item, Layers | BlockDecl):
            block, left = item, item.length
        elif left:
            left -= 1
