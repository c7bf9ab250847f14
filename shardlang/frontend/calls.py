"""Calls of named blocks: each means the lines of the block, written out before the line that it stands in.

So everything behind this knows of plain lines alone. Within a call the parameters are the arguments,
and what the block defines has a name of its own: `h` of `mlp` is `mlp_h`, in the second call `mlp2_h`.
An argument that is more than a name becomes a line, `mlp_x = rmsnorm_D(x)`. A subscript gives dims
other names, `mlp_{D,F->E,G}(..)`, in the lines of the blocks that it calls as well. What the block is for,
its last line, takes the place of the call, as an expression where that line says nothing of a layout,
else by its name. The lines of a call have offsets of their own; `Source.passages` leads back from
them to the block and to the call.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from shardlang.diagnostics import Label, Mistake, Reporter
from shardlang.frontend import call_errors
from shardlang.frontend.blocks import inside
from shardlang.frontend.heads import HEADS, SUBSCRIPTED
from shardlang.frontend.names import AxisNames
from shardlang.frontend.scopes import relays
from shardlang.frontend.syntax import (
    BlockDecl,
    Call,
    Definition,
    DimRef,
    Expr,
    Item,
    Layers,
    Product,
    SizeOf,
    TensorRef,
    Word,
)
from shardlang.frontend.values import INDEX
from shardlang.frontend.walk import moved, parts, rebuilt, references, walk
from shardlang.source import Passage, Source, Span

MAX_DEPTH = 40
"""How many calls may stand in one another."""

MAX_INSIDE = 40
"""How deep the result of a call may be that stands within an expression; a deeper one becomes a line."""

MAX_LINES = 10_000
"""How many lines the calls of a program may be written out to."""

SHOWN = 30
"""How many characters of an argument a hint shows."""


@dataclass(frozen=True)
class Written:
    """A program without calls: its items, its source, and which blocks there are to call.

    `lost` are the names that lines define whose calls are in error.
    """

    items: tuple[Item, ...]
    source: Source
    blocks: tuple[str, ...] = ()
    lost: frozenset[str] = frozenset()


def written_out(
    items: Sequence[Item], source: Source, axes: AxisNames, reporter: Reporter
) -> Written:
    """Write every call out; mistakes are reported, and the lines that have one are left out.

    `axes` tell the dim of `B_X` from its axes.
    """
    if not any(isinstance(item, BlockDecl) for item in items):
        return Written(tuple(items), source)
    writer = _Writer(source, reporter, axes, _taken(items))
    writer.declare(items)
    found: list[Item] = []
    head: int | None = None
    for block, item in inside(items):
        if isinstance(block, BlockDecl) or isinstance(item, BlockDecl):
            continue
        if isinstance(item, Layers):
            head = len(found)
            found.append(replace(item, length=0))
        elif isinstance(item, Definition):
            lines = writer.line(item)
            found += lines
            if block is not None and head is not None:
                layers = found[head]
                assert isinstance(layers, Layers)
                found[head] = replace(layers, length=layers.length + len(lines))
        else:
            found.append(item)
    return Written(tuple(found), writer.whole(), tuple(writer.blocks), frozenset(writer.lost))


def _taken(items: Iterable[Item]) -> set[str]:
    return {ref.name.text for ref in references(items) if ref.name is not None}


@dataclass(frozen=True)
class _Block:
    """A named block: `own` are the names that its lines define, `result` the place of its last line.

    `mentions` counts how often each name stands in it, `first` is where it does first; `bare` are the
    parameters that always stand there without brackets.
    """

    head: BlockDecl
    body: tuple[Definition, ...]
    own: tuple[str, ...]
    mentions: Mapping[str, int]
    first: Mapping[str, TensorRef]
    bare: frozenset[str]

    @staticmethod
    def of(head: BlockDecl, body: Sequence[Definition]) -> _Block:
        """Look through the lines of a block."""
        targets = {id(item.target) for item in body}
        given = {word.text for word in head.parameters}
        defined = [item.target for item in body if item.target is not None and not relays(item)]
        own = dict.fromkeys(ref.name.text for ref in defined if ref.name is not None)
        refs = [ref for ref in references(body) if ref.name is not None]
        mentions = Counter(ref.name.text for ref in refs if ref.name is not None)
        marked = {
            ref.name.text
            for ref in refs
            if ref.name is not None and (not _is_bare(ref) or id(ref) in targets)
        }
        first = {ref.name.text: ref for ref in reversed(refs) if ref.name is not None}
        return _Block(head, tuple(body), tuple(own), mentions, first, frozenset(given - marked))

    @property
    def name(self) -> str:
        """The name that calls have."""
        return self.head.name.text

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of the parameters."""
        return tuple(word.text for word in self.head.parameters)

    @property
    def result(self) -> str | None:
        """The name of the value that a call stands for, where it has one."""
        if self.head.result is not None:
            return self.head.result.text
        target = self.body[-1].target
        return None if target is None or target.name is None else target.name.text

    @property
    def ends(self) -> bool:
        """Say whether the last line defines the result, and no line reads it."""
        target = self.body[-1].target
        name = None if target is None or target.name is None else target.name.text
        return name == self.result and (name is None or self.mentions[name] == 1)


def _brackets(ref: TensorRef) -> tuple[object, ...]:
    """Give what stands behind the name of a mention, without places."""
    dims = [
        (dim.name.text, *(f"_{w.text}" for w in dim.braced), *(f"/{w.text}" for w in dim.slashed))
        for dim in ref.dims or ()
    ]
    marker = ref.marker
    mark = None if marker is None else (marker.kind.text, *(word.text for word in marker.words))
    words = (None if word is None else word.text for word in (ref.dtype, ref.index))
    return (ref.dims is None, dims, mark, *words)


def _is_bare(ref: TensorRef) -> bool:
    return ref.dims is None and ref.dtype is None and ref.marker is None


class _Made(NamedTuple):
    """What a call stands for: a line and the name of its result.

    `plain` says that the line is still to be written, so that its expression may do.
    """

    line: Definition
    name: str
    plain: bool


@dataclass
class _Writer:
    """Writes calls out: `uses` counts them by block; `dims` gives the dims of the lines other names."""

    source: Source
    reporter: Reporter
    axes: AxisNames
    taken: set[str]
    blocks: dict[str, _Block] = field(default_factory=dict[str, _Block])
    broken: set[str] = field(default_factory=set[str])
    lost: set[str] = field(default_factory=set[str])
    uses: Counter[str] = field(default_factory=Counter[str])
    dims: dict[str, str] = field(default_factory=dict[str, str])
    depth: int = 0
    lines: int = 0

    def __post_init__(self) -> None:
        """Begin behind the last text."""
        self.passages = list(self.source.passages)
        self.main = Source(self.source.name, self.source.text)
        last = self.passages[-1] if self.passages else None
        self.end = len(self.source.text) + 1 if last is None else last.start + last.length + 1

    def whole(self) -> Source:
        """Give the source with the lines of calls that are written so far."""
        if len(self.source.passages) < len(self.passages):
            self.source = replace(self.source, passages=tuple(self.passages))
        return self.source

    def report(self, span: Span, mistake: Mistake, labels: Iterable[Label] = ()) -> None:
        """Report a mistake, with the calls that lead to it."""
        self.reporter.source = self.whole()
        self.reporter.report(span, mistake, labels)

    # --- blocks

    def declare(self, items: Sequence[Item]) -> None:
        """Remember the blocks, and report what is wrong with them whether they are called or not."""
        bodies: dict[int, list[Definition]] = {}
        for block, item in inside(items):
            if isinstance(item, BlockDecl):
                bodies[id(item)] = []
            elif isinstance(block, BlockDecl) and isinstance(item, Definition):
                bodies[id(block)].append(item)
        for head in (item for item in items if isinstance(item, BlockDecl)):
            name = head.name.text
            if name in self.blocks:
                label = Label(self.blocks[name].head.name.span, "it stands here")
                self.report(head.name.span, call_errors.BlockTwice(name), [label])
            elif bodies[id(head)]:
                self.blocks[name] = _Block.of(head, bodies[id(head)])
            else:  # its lines are in error
                self.broken.add(name)
        before = len(self.reporter.diagnostics)
        for block in self.blocks.values():
            self._check(block)
            if len(self.reporter.diagnostics) > before:
                self.broken.add(block.name)
                before = len(self.reporter.diagnostics)
        self._circles()

    def _check(self, block: _Block) -> None:
        """Report what is wrong with a block by itself."""
        head, name = block.head, block.name
        root = name.partition("_")[0]
        if name in HEADS or root in SUBSCRIPTED:
            taken = name if name in HEADS else root
            self.report(head.name.span, call_errors.ReservedBlock(name, taken))
        seen: set[str] = set()
        for word in head.parameters:
            if word.text in seen:
                self.report(word.span, call_errors.ParameterTwice(word.text, name))
            elif not block.mentions.get(word.text) and not block.mentions.get(f"d{word.text}"):
                read = tuple(x for x in block.mentions if x not in (*block.own, *block.parameters))
                self.report(word.span, call_errors.ParameterUnused(word.text, name, read))
            seen.add(word.text)
        for item in block.body:
            target = item.target
            if target is None or target.name is None:
                if item is not block.body[-1] or head.result is not None:
                    why = f"this line of block {name} has no name, so nothing can read it"
                    tip = "give it one; only the last line of a block may have none"
                    if item is block.body[-1]:
                        tip = "leave it out, or the name behind the arrow"
                    self.report(item.span, call_errors.NoResult(why, tip))
            elif target.name.text in seen and not relays(item):
                mistake = call_errors.ParameterDefined(target.name.text, name)
                self.report(target.name.span, mistake, [Label(head.span, "the head of the block")])
        result = head.result
        if result is not None and result.text not in block.own:
            why = f"no line of block {name} defines {result.text}, its result"
            self.report(result.span, call_errors.NoResult(why, f"the lines define {_few(block)}"))
        elif block.result is not None and block.result not in block.own:
            why = f"the last line of block {name} defines nothing new, so the block has no result"
            tip = f"say in the head which value it is for: block {name}(..) -> y:"
            self.report(block.body[-1].span, call_errors.NoResult(why, tip))

    def _circles(self) -> None:
        """Report blocks that call themselves, also by way of others."""
        calls: dict[str, dict[str, Span]] = {}
        for name, block in self.blocks.items():
            calls[name] = {}
            for item in block.body:
                for node in walk(item.expr):
                    found = self._callee(node)
                    if found is not None:
                        calls[name].setdefault(found, node.span)
        state: dict[str, bool] = {}
        for root in self.blocks:
            path: list[str] = []
            waiting: list[tuple[str, bool]] = [(root, False)]
            while waiting:
                name, done = waiting.pop()
                if done:
                    state[name] = True
                    path.pop()
                    continue
                if name in state:
                    continue
                state[name] = False
                path.append(name)
                waiting.append((name, True))
                for callee, span in reversed(calls[name].items()):
                    if state.get(callee) is False:
                        circle = path[path.index(callee) :]
                        self.report(span, call_errors.Recursion((*circle, callee)))
                        self.broken.update(circle)
                    elif callee in calls:
                        waiting.append((callee, False))

    def _callee(self, node: Expr) -> str | None:
        """Give the name of the block that a node calls, if it calls one."""
        if not isinstance(node, Call):
            return None
        name = node.head.text
        words = node.subscript or ()
        longer = f"{name}_{words[0].text}" if len(words) == 1 else name
        known = self.blocks.keys() | self.broken
        return longer if longer in known else name if name in known else None

    # --- lines

    def line(self, item: Definition) -> list[Definition]:
        """Give the lines that a line means; none where one of its calls is in error."""
        lines: list[Definition] = []
        done: dict[int, Expr] = {}
        for call in self._calls(item.expr):
            arguments = tuple(_replaced(each, done) for each in call.arguments)
            made = self._call(call, arguments, lines)
            if made is None:
                if item.target is not None and item.target.name is not None:
                    self.lost.add(item.target.name.text)
                return []
            result, name, plain = made
            if (
                plain
                and _says_nothing(result.target)
                and (call is item.expr or _depth(result.expr) <= MAX_INSIDE)
            ):
                done[id(call)] = result.expr
                if call is item.expr:
                    return [*lines, Definition(item.target, result.expr, result.span)]
            elif plain and call is item.expr and _may_take(item.target, result.target):
                return [
                    *lines,
                    Definition(_named(result.target, item.target), result.expr, result.span),
                ]
            else:
                if plain:
                    lines.append(_with_name(result, name))
                done[id(call)] = TensorRef(Word(name, call.span), None, None, None, call.span)
        return [*lines, replace(item, expr=_replaced(item.expr, done))]

    def _calls(self, expr: Expr) -> list[Call]:
        """List the calls of blocks in an expression, those in arguments before those around them."""
        found: list[Call] = []
        waiting: list[tuple[Expr, bool]] = [(expr, False)]
        while waiting:
            node, done = waiting.pop()
            if done:
                assert isinstance(node, Call)
                found.append(node)
                continue
            if isinstance(node, Call) and self._callee(node) is not None:
                waiting.append((node, True))
            waiting += [(part, False) for part in reversed(parts(node))]
        return found

    def _call(self, call: Call, arguments: Sequence[Expr], lines: list[Definition]) -> _Made | None:
        """Write a call out before its line; None where it is in error."""
        name = self._callee(call)
        assert name is not None
        if name in self.broken or not self._fits(self.blocks[name], call):
            return None
        block = self.blocks[name]
        self.depth += 1
        before = self.dims
        try:
            if self.depth > MAX_DEPTH or self.lines + len(block.body) > MAX_LINES:
                deep = self.depth > MAX_DEPTH
                limit = f"{MAX_DEPTH} deep" if deep else f"{MAX_LINES:,} lines"
                what = "blocks call one another" if deep else "written out, the calls have"
                self.report(call.span, call_errors.TooManyLines(f"{what} more than {limit}"))
                self.broken.update(self.blocks)  # nothing more is to be gained
                return None
            self.lines += len(block.body)
            self.dims = before | dict(_pairs(call))
            return self._body(block, call, arguments, lines)
        finally:
            self.depth -= 1
            self.dims = before

    def _fits(self, block: _Block, call: Call) -> bool:
        """Report a call that has not the form of the block's head."""
        label = [Label(block.head.span, "the block")]
        mistake: Mistake | None = None
        span = call.span
        if call.result is not None:
            why = f"{block.name} is a block, so its brackets hold no arrow"
            mistake, span = call_errors.WrongArgument(why), call.result.span
        elif call.head.text == block.name and self._subscript(block, call) is not None:
            mistake, span = self._subscript(block, call), call.head.span
        elif len(call.arguments) != len(block.parameters):
            texts = tuple(self._text(each.span) for each in call.arguments)
            mistake = call_errors.WrongCall(block.name, block.parameters, texts)
        else:
            for word, argument in zip(block.parameters, call.arguments, strict=True):
                if word not in block.bare and _is_number(argument):
                    why = f"{word} is a number here, and block {block.name} writes it with brackets"
                    mistake, span = call_errors.WrongArgument(why, "give a tensor"), argument.span
        if mistake is not None:
            self.report(span, mistake, label)
        return mistake is None

    def _subscript(self, block: _Block, call: Call) -> Mistake | None:
        """Say what is wrong with the subscript of a call."""
        words = [word.text for word in call.subscript or ()]
        old, new = words[: call.arrow or 0], words[call.arrow or 0 :]
        known = self._dims_of(block)
        if not words:
            return None
        if not old:
            why = f"the subscript of a block gives dims other names, and {new[0]} is no such pair"
            dim = known[0] if known else "D"
            return call_errors.WrongArgument(why, f"as in {block.name}_{{{dim}->{new[0]}}}(..)")
        if len(old) != len(new):
            why = f"{len(old)} and {len(new)} dims stand beside the arrow of {block.name}"
            return call_errors.WrongArgument(why, "give each dim one other name")
        if len(set(old)) < len(old):
            return call_errors.WrongArgument(f"a dim of {block.name} gets two other names")
        strange = [word for word in old if word not in known]
        if strange:
            why = f"{strange[0]} is not a dim of block {block.name}"
            return call_errors.WrongArgument(why, f"its dims are {', '.join(known[:8])}")
        return None

    def _dims_of(self, block: _Block) -> tuple[str, ...]:
        """List the dims in the lines of a block and of those that it calls."""
        found: dict[str, None] = {}
        waiting, seen = [block], {block.name}
        while waiting:
            body = waiting.pop().body
            for ref in references(body):
                found.update((_dim(dim, self.axes)[0], None) for dim in ref.dims or ())
                if ref.name is not None and ref.name.text.startswith(INDEX):
                    found[ref.name.text.removeprefix(INDEX)] = None
            for node in (node for item in body for node in walk(item.expr)):
                callee = self._callee(node)
                if isinstance(node, SizeOf):
                    found[node.dim.text] = None
                elif callee is None and isinstance(node, Product | Call):
                    found.update((word.text, None) for word in node.subscript or ())
                elif isinstance(node, Call) and callee is not None:
                    found.update((new, None) for _, new in _pairs(node))
                    if callee in self.blocks and callee not in seen:
                        seen.add(callee)
                        waiting.append(self.blocks[callee])
        return tuple(word for word in found if self.axes.read(word) is None)

    def _text(self, span: Span) -> str:
        """Give what stands in a place as a hint shows it."""
        place = self.whole().place(span)
        text = " ".join(place.source.text[place.span.start : place.span.end].split())
        return text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"

    def _body(
        self, block: _Block, call: Call, arguments: Sequence[Expr], lines: list[Definition]
    ) -> _Made | None:
        """Write the lines of a call."""
        names, values = self._bind(block, arguments, lines)
        body = self._copied(block, call)
        result = names[block.result or ""]
        for place, item in enumerate(body):
            given = self._renamed(item, names, values)
            found = self.line(given)
            if not found:
                return None
            if place == len(body) - 1 and block.ends:
                lines += found[:-1]
                return _Made(found[-1], result, plain=True)
            lines += found
        return _Made(body[-1], result, plain=False)

    def _bind(
        self, block: _Block, arguments: Sequence[Expr], lines: list[Definition]
    ) -> tuple[dict[str, str], dict[str, Expr]]:
        """Say what the names of a block are in a call: other names, or expressions.

        The name of a result that has none is that of the empty text.
        """
        values: dict[str, Expr] = {}
        names: dict[str, str] = {}
        apart: dict[str, Expr] = {}
        for word, argument in zip(block.parameters, arguments, strict=True):
            if isinstance(argument, TensorRef) and argument.name is not None:
                if not _is_bare(argument):
                    values[word] = argument
                if _is_bare(argument) or self._agree(block.first.get(word), argument):
                    names[word] = argument.name.text
                elif word not in block.bare:
                    del values[word]
                    apart[word] = argument
            elif word in block.bare and _is_number(argument):
                values[word] = argument
            else:
                apart[word] = argument
        prefix = self._prefix(block, (*block.own, *apart))
        names |= {name: f"{prefix}_{name}" for name in (*block.own, *apart)}
        names[""] = f"{prefix}_out"
        self.taken.update(names[name] for name in ("", *block.own, *apart))
        for word, argument in apart.items():
            target = TensorRef(Word(names[word], argument.span), None, None, None, argument.span)
            lines.append(Definition(target, argument, argument.span))
        return names, values

    def _renamed(
        self, item: Definition, names: Mapping[str, str], values: Mapping[str, Expr]
    ) -> Definition:
        """Give a line of a block the names of values and dims that it has in a call."""

        def reference(ref: TensorRef) -> TensorRef:
            dims = None if ref.dims is None else tuple([self._dim(dim) for dim in ref.dims])
            name = ref.name
            if name is not None and name.text in names:
                name = Word(names[name.text], name.span)
            elif name is not None and name.text[:1] == "d" and name.text[1:] in names:
                name = Word(f"d{names[name.text[1:]]}", name.span)  # a gradient
            elif name is not None and name.text.startswith(INDEX):
                dim = name.text.removeprefix(INDEX)
                name = Word(INDEX + self.dims.get(dim, dim), name.span)
            return replace(ref, name=name, dims=dims)

        def change(node: Expr) -> Expr | None:
            match node:
                case TensorRef(Word(text)) if text in values and _is_bare(node):
                    return values[text]
                case TensorRef():
                    return reference(node)
                case SizeOf(dim):
                    return replace(node, dim=self._words((dim,))[0])
                case _:
                    return None

        target = None if item.target is None else reference(item.target)
        return replace(item, target=target, expr=rebuilt(item.expr, change, self._subscripts))

    def _subscripts(self, node: Expr) -> Expr:
        """Rename the dims in the subscript of a product or a call."""
        if isinstance(node, Product) and node.subscript is not None:
            return replace(node, subscript=self._words(node.subscript))
        if not isinstance(node, Call) or node.subscript is None:
            return node
        words = node.subscript
        if self._callee(node) is None:
            return replace(node, subscript=self._words(words))
        if node.arrow is None:
            return node
        return replace(node, subscript=(*words[: node.arrow], *self._words(words[node.arrow :])))

    def _words(self, words: Sequence[Word]) -> tuple[Word, ...]:
        return tuple(Word(self.dims.get(word.text, word.text), word.span) for word in words)

    def _dim(self, ref: DimRef) -> DimRef:
        """Give a dim in brackets the name that it has in a call."""
        base, axes, braced = _dim(ref, self.axes)
        new = self.dims.get(base)
        if new is None:
            return ref
        name, literal = Word(new + axes, ref.name.span), new.isdigit()
        if literal and axes:
            braced = (Word(axes[1:], ref.name.span), *braced)
            name = Word(new, ref.name.span)
        return replace(ref, name=name, braced=braced, literal=literal)

    def _agree(self, first: TensorRef | None, argument: TensorRef) -> bool:
        """Say whether a block's first mention of a parameter says of it what an argument does.

        There is none where the block reads its gradient alone.
        """
        if first is None or _is_bare(first):
            return True
        dims = None if first.dims is None else tuple([self._dim(dim) for dim in first.dims])
        return _brackets(replace(first, dims=dims)) == _brackets(argument)

    def _prefix(self, block: _Block, own: Sequence[str]) -> str:
        """Find what stands before the names of a call so that nothing else is called so."""
        while True:
            self.uses[block.name] += 1
            number = self.uses[block.name]
            gap = "_" if block.name[-1].isdigit() else ""
            prefix = block.name if number == 1 else f"{block.name}{gap}{number}"
            names = [f"{prefix}_{name}" for name in (*own, "out")]
            clash = any(
                name in self.taken
                or f"d{name}" in self.taken
                or (name.startswith("d") and name[1:] in self.taken)
                for name in names
            )
            if not clash:
                return prefix

    def _copied(self, block: _Block, call: Call) -> list[Definition]:
        """Give the lines of a block with offsets of their own."""
        start = min(item.span.start for item in block.body)
        length = max(item.span.end for item in block.body) - start
        place = self.source.place(Span(start, start))
        base, self.end = self.end, self.end + length + 1
        text = self.main if place.source is self.source else place.source
        passage = Passage(base, text, place.span.start, length, call.span, block.name)
        self.passages.append(passage)
        return [moved(item, base - start) for item in block.body]


def _few(block: _Block) -> str:
    return ", ".join(block.own[:8]) or "nothing"


def _says_nothing(target: TensorRef | None) -> bool:
    """Say whether a result is a name alone, or not even that."""
    return target is None or (target.name is not None and _is_bare(target))


def _may_take(target: TensorRef | None, result: TensorRef | None) -> bool:
    """Say whether a line may define its result as the last line of a block does."""
    assert result is not None
    return target is None or _says_nothing(target) or _brackets(target) == _brackets(result)


def _with_name(item: Definition, name: str) -> Definition:
    """Give a line's result a name where it has none."""
    target = item.target
    if target is None:
        target = TensorRef(None, None, None, None, item.span)
    if target.name is not None:
        return item
    return replace(item, target=replace(target, name=Word(name, target.span)))


def _depth(expr: Expr) -> int:
    """Say how many operators and calls of an expression stand on one another."""
    deepest = 0
    waiting = [(expr, 1)]
    while waiting:
        node, depth = waiting.pop()
        deepest = max(deepest, depth)
        waiting += [(part, depth + 1) for part in parts(node)]
    return deepest


def _named(said: TensorRef | None, named: TensorRef | None) -> TensorRef | None:
    """Give a result what a block's line says of it, under the name that the call's line has."""
    assert said is not None
    if named is None:
        return replace(said, name=None)
    return replace(said, name=named.name, span=named.span)


def _is_number(expr: Expr) -> bool:
    """Say whether an expression is one of numbers and sizes alone."""
    return not any(isinstance(node, TensorRef | Call) for node in walk(expr))


def _pairs(call: Call) -> Iterator[tuple[str, str]]:
    """Go through the dims that the subscript of a call gives other names, with those names."""
    words = [word.text for word in call.subscript or ()]
    if call.arrow is not None:
        yield from zip(words[: call.arrow], words[call.arrow :], strict=True)


def _dim(ref: DimRef, axes: AxisNames) -> tuple[str, str, tuple[Word, ...]]:
    """Cut the name of a dim off the axes behind it."""
    text = ref.name.text
    if len(ref.braced) == 1 and axes.read(ref.braced[0].text) is None:
        return f"{text}_{ref.braced[0].text}", "", ()
    base, _, suffix = text.rpartition("_")
    if base and not ref.literal and axes.read(suffix) is not None:
        return base, f"_{suffix}", ref.braced
    return text, "", ref.braced


def _replaced(expr: Expr, done: Mapping[int, Expr]) -> Expr:
    """Put what calls stand for in their place."""
    return rebuilt(expr, lambda node: done.get(id(node))) if done else expr
