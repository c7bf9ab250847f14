"""The values of a block: what its lines see, what they hand to the next layer, and what is left behind it.

A value that exists before a block and is defined again in it is handed from layer to layer. In the
program each such definition is a value of its own under a new name (`x`, then `x2`), and the block says
that the last one is what the next layer reads as the first. So a name is still one value.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from shardlang.diagnostics import Label
from shardlang.frontend import block_errors, blocks
from shardlang.frontend.heads import COLLECTIVES
from shardlang.frontend.syntax import (
    AccumulateDecl,
    Call,
    CarryDecl,
    Definition,
    Item,
    Layers,
    TensorRef,
)
from shardlang.frontend.walk import references, walk
from shardlang.ir.ops import Coefficient, Linear, Relayout
from shardlang.ir.program import Block, Carry, Statement, Use
from shardlang.ir.types import Dim, Tensor
from shardlang.source import Span

if TYPE_CHECKING:
    from shardlang.frontend.values import Entry, Values


@dataclass
class Scope:
    """A block that is being read.

    `outer` are the values before it, `entries` those that it hands on, as its first line sees them,
    by their names in the text; `start` is its first statement's place.
    """

    head: Layers
    number: int
    outer: Mapping[str, Entry]
    start: int = 0
    entries: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    renamed: dict[str, list[Tensor]] = field(default_factory=dict[str, list[Tensor]])

    @property
    def dim(self) -> Dim:
        """The dim that counts the layers."""
        return Dim(self.head.dim.text)


@dataclass
class Scopes:
    """The blocks of one program: where names stand, and what blocks that have ended left.

    `places` says for each name in which blocks it stands, None for the lines outside; `inner` has the
    values of each block, by its number; `hidden` tells of a name that is a block's own. `ended` are the
    values of an explicit program that blocks have handed on, with the names of the last layer's.
    """

    places: dict[str, dict[int | None, Span]]
    heads: dict[int, Layers]
    numbers: dict[int, int]
    inner: dict[int, dict[str, Entry]] = field(default_factory=dict[int, "dict[str, Entry]"])
    hidden: dict[str, tuple[Span, str]] = field(default_factory=dict[str, "tuple[Span, str]"])
    ended: dict[str, tuple[CarryDecl, str]] = field(
        default_factory=dict[str, "tuple[CarryDecl, str]"]
    )

    @staticmethod
    def of(items: Sequence[Item]) -> Scopes:
        """Look through a whole text."""
        numbers = blocks.numbers(items)
        places: dict[str, dict[int | None, Span]] = {}
        heads: dict[int, Layers] = {}
        for head, item in blocks.inside(items):
            number = None
            if isinstance(head, Layers):
                number = numbers[id(head)]
                heads.setdefault(number, head)
            for ref in references([item]) if isinstance(item, Definition) else ():
                if ref.name is not None:
                    places.setdefault(ref.name.text, {}).setdefault(number, ref.span)
        return Scopes(places, heads, numbers)

    def stacked(self, name: str, first: Dim | None, *, own: bool) -> Layers | None:
        """Give the block of which each layer has a leaf of its own; None where there is one leaf.

        `first` is the first dim that the leaf is declared with; with `own` (weights and caches) what
        blocks alone read is each layer's own in any case.
        """
        places = self.places.get(name, {})
        found = [self.heads[number] for number in places if number is not None]
        if first is not None:
            found = [head for head in found if head.dim.text == first.name]
            return found[0] if found else None
        return found[0] if found and own and None not in places else None


def relays(item: Definition) -> bool:
    """Say whether a line only lays a value out anew: `x[B_X, D] -> x[B, D_X]`."""
    name = None if item.target is None or item.target.name is None else item.target.name.text
    expr = item.expr
    if isinstance(expr, Call) and expr.head.text in COLLECTIVES and len(expr.arguments) == 1:
        expr = expr.arguments[0]
    return isinstance(expr, TensorRef) and expr.name is not None and expr.name.text == name


def enter(values: Values, head: Layers, body: Sequence[Item]) -> None:
    """Begin a block: find what it hands on, and let its lines see it."""
    number = values.scopes.numbers[id(head)]
    scope = Scope(head, number, {})
    if head.carries:
        _stated(values, scope)
    elif not values.explicit:
        _found(values, scope, [item for item in body if isinstance(item, Definition)])
    scope.outer = dict(values.entries)
    scope.start = len(values.statements)
    scope.renamed = {name: list(made) for name, made in values.renames.made.items()}
    if values.section != "forward":
        values.entries.update(values.scopes.inner.get(number, {}))
    values.scope = scope


def _stated(values: Values, scope: Scope) -> None:
    """Read what the head of a block says of the values that it hands on."""
    for carry in scope.head.carries:
        name = carry.entry.text
        if values.passed(carry.entry):
            continue
        base = values.gradient_of(name)
        if name not in values.entries and base is not None and base in values.entries:
            values.meet_gradient(name, carry.entry.span)
        if name in values.entries:
            scope.entries[name] = values.entries[name].tensor
        else:
            mistake = block_errors.WrongCarry(
                f"{name} is handed from layer to layer, and no line before the block defines it",
                f"declare it if it is given, input {name}: [..], or define it before the block",
            )
            values.reporter.report(carry.entry.span, mistake)
            values.poisoned.add(name)


def _found(values: Values, scope: Scope, body: Sequence[Definition]) -> None:
    """Find the values that the body of a block of an ordinary program defines again."""
    read: dict[str, TensorRef] = {}
    made: set[str] = set()
    for item in body:
        for node in walk(item.expr):
            if isinstance(node, TensorRef) and node.name is not None:
                read.setdefault(node.name.text, node)
        target = item.target
        if target is None or target.name is None or relays(item):
            continue
        name = target.name.text
        if name in made:
            continue
        known = name in values.entries or name in values.declared
        first = read.get(name)
        fresh = name not in values.scopes.hidden and first is not None and first.dims is not None
        if known or fresh:
            _carried(values, scope, target, first)
        made.add(name)


def _carried(values: Values, scope: Scope, target: TensorRef, first: TensorRef | None) -> None:
    """Let a block hand a value on, unless it can't be."""
    assert target.name is not None
    name = target.name.text
    if name not in values.entries and name not in values.poisoned:
        if name in values.declared:
            item, declared = values.declared[name]
            values.add_leaf(declared, target.name, item.word, declared=True)
        elif first is not None and not values.reserved(name, target.name.span):
            values.add_leaf(first, target.name, "input", declared=False)
    entry = values.entries.get(name)
    leaf = values.leaves.get(name)
    if entry is None or (leaf is not None and (leaf.kind == "param" or leaf.loop is not None)):
        return  # a definition of it is an error, which is reported there
    if first is None:
        mistake = block_errors.NotRead(name, scope.head.dim.text)
        values.reporter.report(target.span, mistake, [Label(entry.span, "its value before")])
        values.poisoned.add(name)
        return
    tensor = entry.tensor
    others = (s for s in values.statements if not _lays_out(s))
    if any(use.tensor == tensor for s in others for use in s.operands):
        tensor = values.renewed(name, entry.span)
        use = Use(entry.tensor, None, entry.span)
        copy = Linear((Coefficient(),))
        values.add(Statement(copy, (use,), tensor, None, entry.span, section=values.section))
    scope.entries[name] = tensor


def leave(values: Values) -> None:
    """End a block: its own values are seen no more, and those that it hands on are the last layer's."""
    scope = values.scope
    assert scope is not None
    carries = tuple(_carries(values, scope))
    values.scope = None
    stages = values.pipeline if scope.head.stages else None
    if values.section == "forward":
        ended = {carry.entry.text: (carry, scope.dim.name) for carry in scope.head.carries}
        values.scopes.ended.update(ended)
    block = Block(scope.dim, scope.number, carries, stages)
    for statement in values.statements[scope.start :]:
        if scope.dim in statement.result.dims:
            mistake = block_errors.LayerDim(statement.result.name, scope.dim.name)
            values.reporter.report(statement.span, mistake)
    body = [replace(s, block=block) for s in values.statements[scope.start :]]
    values.statements[scope.start :] = body
    values.renames.made = scope.renamed
    stay = {carry.exit.name for carry in carries}.union(scope.outer, scope.entries, values.leaves)
    stay |= {s.result.name for s in body if _adds_up(s)}
    inner = values.scopes.inner.setdefault(scope.number, {})
    for name in [name for name in values.entries if name not in stay]:
        inner[name] = values.entries.pop(name)
        values.scopes.hidden[name] = (inner[name].span, scope.dim.name)


def _carries(values: Values, scope: Scope) -> Iterator[Carry]:
    if scope.head.carries:
        yield from _stated_carries(values, scope)
        return
    for name, first in scope.entries.items():
        last = values.entries[name].tensor
        if last == first:
            continue  # its definition is in error
        read = (s for s in values.statements[scope.start :] if not _lays_out(s))
        if any(use.tensor == last for s in read for use in s.operands):
            span = values.entries[name].span
            made = values.renewed(name, span)
            use = Use(last, None, span)
            copy = Linear((Coefficient(),))
            values.add(Statement(copy, (use,), made, None, span, section=values.section))
            last = made
        yield Carry(first, last, word=name)


def _stated_carries(values: Values, scope: Scope) -> Iterator[Carry]:
    made = {s.result.name: s.result for s in values.statements[scope.start :]}
    for carry in scope.head.carries:
        first = scope.entries.get(carry.entry.text)
        last = made.get(carry.exit.text)
        wrong = carry.exit.text in values.poisoned or bool(values.reporter.errors)
        if last is None and not wrong:
            mistake = block_errors.WrongCarry(
                f"no line of the block defines {carry.exit.text}, which it hands on",
                f"`{carry.exit.text} -> {carry.entry.text}` says that the {carry.exit.text} of a layer is "
                f"the {carry.entry.text} of the next one",
            )
            values.reporter.report(carry.exit.span, mistake)
        if first is None or last is None:
            continue
        if last.dims != first.dims:
            here, there = (tuple(d.name for d in t.dims) for t in (last, first))
            mistake = block_errors.CarriedDims(carry.exit.text, here, there)
            values.reporter.report(carry.span, mistake)
            continue
        yield Carry(first, last)


def _lays_out(statement: Statement) -> bool:
    """Say whether a statement only changes where a value is."""
    same = statement.result == statement.operands[0].tensor
    return same and (isinstance(statement.op, Relayout | Linear))


def _adds_up(statement: Statement) -> bool:
    block = statement.block
    return block is not None and getattr(statement.op, "dims", ()) == (block.dim,)


def loop_dims(items: Iterable[Item]) -> tuple[Dim, ...]:
    """List the dims that count layers or microbatches."""
    counting = (item for item in items if isinstance(item, Layers | AccumulateDecl))
    return tuple(dict.fromkeys(Dim(item.dim.text) for item in counting))
