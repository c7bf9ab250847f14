"""The values of a program: which names exist, what they are, and the statements that make them.

Decides what a mention refers to: a leaf, an earlier result, or (in an explicit program's backward
section) a gradient. Reports mentions that contradict each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from shardlang.diagnostics import Label, Reporter
from shardlang.frontend import block_errors, declaration_errors, errors, expression_errors, scopes
from shardlang.frontend.declarations import dtype
from shardlang.frontend.names import Brackets
from shardlang.frontend.pipeline_errors import OtherStages
from shardlang.frontend.renames import rename_line, Renames, Tie
from shardlang.frontend.scopes import Scope, Scopes
from shardlang.frontend.sizes import AtMost, Multiple
from shardlang.frontend.syntax import Definition, Expr, Item, Layers, LeafDecl, TensorRef, Word
from shardlang.frontend.walk import references, walk
from shardlang.ir.ops import implied, Op, Rename, Ring, Update
from shardlang.ir.program import Leaf, LeafKind, LeafWord, Pass, Pipeline, Statement, Use
from shardlang.ir.types import Array, Dim, DType, DTYPES, Layout, subscript, Tensor
from shardlang.source import Span

INDEX = "index_"
"""What the name of a built-in leaf begins with: `index_T`."""


@dataclass
class Entry:
    """A value that is known: `home` is where it lives, `latest` the layout it was last put in.

    `made` is how an explicit program's forward section computes it, so that backward may repeat it.
    """

    tensor: Tensor
    home: Layout | None
    span: Span
    origin: Literal["leaf", "value", "gradient"]
    latest: Layout | None = None
    section: Pass = "forward"
    made: tuple[Op, tuple[Tensor, ...]] | None = None


@dataclass(frozen=True, slots=True)
class Goal:
    """What a definition's result is to be: its mention, and what its brackets say."""

    ref: TensorRef
    brackets: Brackets | None

    @property
    def name(self) -> str | None:
        """The name, where it has one."""
        return None if self.ref.name is None else self.ref.name.text


@dataclass
class Values:
    """The values so far and the statements so far, of one program.

    `brackets` has what each mention's brackets say, by the identity of the mention.
    """

    items: Sequence[Item]
    reporter: Reporter
    brackets: Mapping[int, Brackets | None]
    default: DType
    explicit: bool
    dims: frozenset[Dim] = frozenset()
    section: Pass = "forward"
    microbatches: Dim | None = None
    pipeline: Pipeline | None = None
    optimizer: str | None = None
    entries: dict[str, Entry] = field(default_factory=dict[str, Entry])
    poisoned: set[str] = field(default_factory=set[str])
    leaves: dict[str, Leaf] = field(default_factory=dict[str, Leaf])
    statements: list[Statement] = field(default_factory=list[Statement])

    def __post_init__(self) -> None:
        """Look ahead: which names are written, with which dtypes, and which leaves are declared."""
        self.written: dict[str, tuple[DType, Span]] = {}
        self.first: dict[str, Span] = {}
        self.declared: dict[str, tuple[LeafDecl, TensorRef]] = {}
        for ref in references(self.items):
            self._look_at(ref)
        for item in self.items:
            if isinstance(item, LeafDecl):
                for ref in item.tensors:
                    self._declare(item, ref)
        self.has_params = any(isinstance(i, LeafDecl) and i.word == "param" for i in self.items)
        self.taken: set[str] = set(self.first)
        self.reported: set[str] = set()
        self.numbers: dict[str, int] = {}
        self.renames = Renames.of(self.items, self.brackets)
        self.ties: list[Tie] = []
        self.multiples: list[Multiple] = []
        self.at_most: list[AtMost] = []
        self.scopes = Scopes.of(self.items)
        lines = [x for x in self.items if isinstance(x, Definition) and not scopes.relays(x)]
        targets = [line.target.name for line in lines if line.target is not None]
        self.defined = {name.text for name in targets if name is not None}.union(self.declared)
        self.scope: Scope | None = None

    def _look_at(self, ref: TensorRef) -> None:
        found = None if ref.dtype is None else dtype(ref.dtype, self.reporter)
        if ref.name is None:
            return
        name = ref.name.text
        self.first.setdefault(name, ref.span)
        if found is None or ref.dtype is None:
            return
        known, span = self.written.setdefault(name, (found, ref.dtype.span))
        if known != found:
            mistake = errors.DTypeConflict(name, found.name, known.name)
            label = Label(span, f"{known.name} is written here")
            self.reporter.report(ref.dtype.span, mistake, [label])

    def _declare(self, item: LeafDecl, ref: TensorRef) -> None:
        if ref.name is None:
            return
        name = ref.name.text
        if name in self.declared:
            label = Label(self.declared[name][1].span, "declared here first")
            mistake = declaration_errors.DeclaredTwice("tensor", name)
            self.reporter.report(ref.name.span, mistake, [label])
            return
        self.declared[name] = (item, ref)

    # --- names

    def fresh(self, base: str) -> str:
        """Give a name that nothing has, whose gradient's name nothing has either."""
        while True:
            number = self.numbers[base] = self.numbers.get(base, 0) + 1
            name = base if number == 1 else f"{base}{number}"
            clash = name in self.taken or f"d{name}" in self.taken
            if not clash and not (name.startswith("d") and name[1:] in self.taken):
                self.taken.add(name)
                return name

    def known(self) -> tuple[str, ...]:
        """List the names of all values so far."""
        return tuple(self.entries)

    def gradient_of(self, name: str) -> str | None:
        """Give the name whose gradient this is, where such a value is written."""
        base = name[1:]
        return base if name.startswith("d") and base in self.first else None

    def reserved(self, name: str, span: Span) -> bool:
        """Report a gradient's name where it may not stand."""
        if self.gradient_of(name) is None or (self.explicit and self.section != "forward"):
            return False
        if name not in self.reported:
            self.reported.add(name)
            self.poisoned.add(name)
            self.reporter.report(span, errors.ReservedGradient(name, self.explicit))
        return True

    def passed(self, word: Word) -> bool:
        """Report a value that a block has handed on, where a line behind the block reads it."""
        if self.section != "forward" or word.text not in self.scopes.ended:
            return False
        carry, block = self.scopes.ended[word.text]
        mistake = block_errors.HandedOn(word.text, carry.exit.text, block)
        self.reporter.report(word.span, mistake, [Label(carry.span, "handed on here")])
        return True

    # --- mentions

    def mention(self, ref: TensorRef) -> Use | None:
        """Read a mention; None where it is in error, which is then reported."""
        if ref.name is None:
            return self._anonymous(ref)
        name = ref.name.text
        if self.reserved(name, ref.name.span) or name in self.poisoned or self.passed(ref.name):
            return None
        brackets = self.brackets[id(ref)]
        if brackets is not None and brackets.wrong:
            self.poisoned.add(name)
            return None
        entry = self.entries.get(name) or self._meet(ref, ref.name)
        if entry is None:
            return None
        if brackets is None:
            return Use(entry.tensor, None, ref.span)
        tensor = self._renamed(entry, brackets, ref.span) or entry.tensor
        layout = self._layout(ref, brackets, tensor, entry.span)
        return None if layout is None else Use(tensor, layout, ref.span)

    def _layout(
        self, ref: TensorRef, brackets: Brackets, tensor: Tensor, first: Span
    ) -> Layout | None:
        """Read a later mention's layout; report other dims than the first mention has."""
        if set(brackets.dims) == set(tensor.dims):
            return brackets.layout(tensor.dims)
        leaf = self.leaves.get(tensor.name)
        if leaf is not None and leaf.loop in brackets.dims and leaf.loop not in tensor.dims:
            mistake = block_errors.LayerDim(tensor.name, leaf.loop.name)
            self.reporter.report(ref.span, mistake, [Label(first, "first written here")])
            return None
        here = tuple(dim.name for dim in brackets.dims)
        there = tuple(dim.name for dim in tensor.dims)
        line, strange = None, tuple[str, ...]()
        changed = self.renames.changed(tensor, brackets.dims)
        if changed and self.explicit:
            entry = self.entries.get(tensor.name)
            home = None if entry is None else entry.latest or entry.home
            name = "_".join((tensor.name, *(dim.name for dim in changed)))
            line = rename_line(tensor, name, home, brackets)
        elif changed:
            strange = tuple(dim.name for dim in self.renames.strange(tensor, changed))
        label = Label(first, "first written here")
        mistake = errors.DimsMismatch(tensor.name, here, there, line, strange)
        self.reporter.report(ref.span, mistake, [label])
        return None

    # --- other dim names

    def tie(self, tensor: Tensor, dims: Sequence[Dim], spans: Sequence[Span]) -> None:
        """Remember that a value's dims have these names too, so that their sizes are equal."""
        for old, new, span in zip(tensor.dims, dims, spans, strict=True):
            if old != new:
                self.ties.append(Tie(tensor.name, old, new, span))

    def original(self, tensor: Tensor) -> str:
        """Give the name under which a value is written, also where it stands renamed."""
        return self.renames.written.get(tensor.name, tensor.name)

    def _renamed(self, entry: Entry, brackets: Brackets, span: Span) -> Tensor | None:
        """Give the value under the dims that a mention has, made once; None where it has its own."""
        tensor, dims = entry.tensor, brackets.dims
        if self.explicit or set(dims) == set(tensor.dims):
            return None
        known = self.renames.known(tensor, dims)
        if known is not None:
            return known
        changed = self.renames.changed(tensor, dims)
        if not changed or self.renames.strange(tensor, changed):
            return None
        name = self.fresh("_".join((tensor.name, *(dim.name for dim in changed))))
        renamed = Tensor(name, dims, tensor.dtype)
        self.entries[name] = Entry(renamed, entry.home, span, "value", entry.latest, self.section)
        self.renames.add(tensor, renamed)
        self.tie(tensor, dims, brackets.spans)
        operands = (Use(tensor, None, span),)
        section = self.section
        self.add(Statement(Rename(dims), operands, renamed, None, span, section=section))
        return renamed

    def _meet(self, ref: TensorRef, name: Word) -> Entry | None:
        """Make a value of a name that is read for the first time: a leaf, or a gradient."""
        if name.text in self.scopes.hidden and name.text not in self.declared:
            span, block = self.scopes.hidden[name.text]
            label = Label(span, "it is defined here")
            self.reporter.report(ref.span, block_errors.NotVisible(name.text, block), [label])
            self.poisoned.add(name.text)
            return None
        base = self.gradient_of(name.text)
        if base is not None and base in self.entries:
            like = self.entries[base].tensor
            tensor = Tensor(name.text, like.dims, self._dtype(name.text, like.dtype))
            brackets = self.brackets[id(ref)]
            fits = brackets is not None and set(brackets.dims) == set(like.dims)
            home = brackets.layout(like.dims) if brackets is not None and fits else None
            span = ref.span if fits else self.entries[base].span
            self.entries[name.text] = Entry(tensor, home, span, "gradient", home, self.section)
            return self.entries[name.text]
        if name.text in self.declared:
            item, declared = self.declared[name.text]
            return self.add_leaf(declared, name, item.word, declared=True)
        if name.text.startswith(INDEX) and name.text not in self.defined:
            return self._index(ref, name)
        if self.brackets[id(ref)] is None:
            self.poisoned.add(name.text)
            self.reporter.report(ref.span, errors.BareName(name.text, self.known()))
            return None
        by_letter: LeafWord = (
            "param" if name.text.startswith("W") and not self.has_params else "input"
        )
        return self.add_leaf(ref, name, by_letter, declared=False)

    def _index(self, ref: TensorRef, name: Word) -> Entry | None:
        """Make the leaf that counts the places along a dim: `index_T`."""
        dim = Dim(name.text.removeprefix(INDEX))
        if dim not in self.dims:
            self.poisoned.add(name.text)
            known = tuple(dim.name for dim in sorted(self.dims))
            mistake = expression_errors.UnknownIndex(name.text, dim.name, known)
            self.reporter.report(ref.span, mistake)
            return None
        tensor = Tensor(name.text, (dim,), DTYPES["int32"])
        layout = Layout.replicated(1)
        entry = Entry(tensor, layout, ref.span, "leaf", layout)
        self.entries[name.text] = entry
        self.leaves[name.text] = Leaf(Array(tensor, layout), "index", ref.span)
        return entry

    def add_leaf(
        self, ref: TensorRef, name: Word, word: LeafWord, *, declared: bool
    ) -> Entry | None:
        """Add a leaf that lives as a mention says."""
        brackets = self.brackets[id(ref)]
        if brackets is None or brackets.wrong:
            self.poisoned.add(name.text)
            if brackets is None:
                self.reporter.report(ref.span, errors.BareName(name.text, ()))
            return None
        kind = "param" if word == "frozen" else word
        block, dims = self._loop(name, kind, brackets, declared=declared)
        tensor = Tensor(name.text, dims, self._dtype(name.text, self.default))
        layout = brackets.layout(dims)
        entry = Entry(tensor, layout, ref.span, "leaf", layout)
        self.entries[name.text] = entry
        loop = None if block is None else Dim(block.dim.text)
        stages = self.pipeline if block is not None and block.stages else None
        self.leaves[name.text] = Leaf(
            Array(tensor, layout), kind, ref.span, declared, loop, stages, word == "frozen"
        )
        return entry

    def _loop(
        self,
        name: Word,
        kind: LeafKind,
        brackets: Brackets,
        *,
        declared: bool,
    ) -> tuple[Layers | None, tuple[Dim, ...]]:
        """Give the block of which a leaf is one of each layer's, and the dims of one layer's."""
        heads = {head.dim.text for head in self.scopes.heads.values()}
        places = self.scopes.places.get(name.text, {})
        read = {self.scopes.heads[place].dim.text for place in places if place is not None}
        late = [dim for dim in brackets.dims[1:] if dim.name in read] if declared else []
        if late:
            others = tuple(dim.name for dim in brackets.dims if dim != late[0])
            mistake = block_errors.LayersFirst(name.text, late[0].name, others)
            self.reporter.report(brackets.spans[brackets.dims.index(late[0])], mistake)
        stacked = declared and bool(brackets.dims) and brackets.dims[0].name in heads
        first = brackets.dims[0] if stacked else None
        block = self.scopes.stacked(name.text, first, own=kind != "input")
        if block is None:
            return None, brackets.dims
        mine = self.scopes.numbers[id(block)]
        for place, span in places.items():
            if place != mine:
                other = None if place is None else _stack_dim(self.scopes.heads[place])
                own = brackets.dims[1:] if stacked else brackets.dims
                one = str(Array(Tensor("", own, self.default), brackets.layout(own)))
                mistake = block_errors.TwoPlaces(
                    name.text, _stack_dim(block), other, one, declared=declared
                )
                self.reporter.report(span, mistake, [Label(block.span, "the block starts here")])
                break
        if stacked and brackets.axes[0] != block.stages:
            dim = block.dim.text
            written = (f"{dim}{subscript(axes)}" for axes in (block.stages, brackets.axes[0]))
            mistake = OtherStages(name.text, *written)
            self.reporter.report(brackets.spans[0], mistake)
        return block, brackets.dims[1:] if stacked else brackets.dims

    def goal_brackets(self, ref: TensorRef) -> Brackets | None:
        """Give what a result's brackets say.

        With none, a value that layers hand on lives as it did before the block.
        """
        brackets, tensor = self.brackets[id(ref)], self.followed(ref)
        if tensor is None:
            return brackets
        home = self.entries[tensor.name].home if tensor.name in self.entries else None
        if home is None:
            return None
        spans = (ref.span,) * len(tensor.dims)
        return Brackets(tensor.dims, home.sharding, spans, home.unreduced, home.reduction)

    def followed(self, ref: TensorRef) -> Tensor | None:
        """Give the value that layers hand on and a result without brackets goes on as."""
        name = "" if ref.name is None else ref.name.text
        if self.brackets[id(ref)] is not None or self.scope is None:
            return None
        return self.scope.entries.get(name)

    def renewed(self, name: str, span: Span) -> Tensor:
        """Make the next value of a name that a block hands on, under a name that nothing has."""
        old = self.entries[name].tensor
        tensor = Tensor(self.fresh(name), old.dims, old.dtype)
        entry = Entry(tensor, None, span, "value", None, self.section)
        self.entries[name] = self.entries[tensor.name] = entry
        self.renames.written[tensor.name] = name
        return tensor

    def meet_gradient(self, name: str, span: Span) -> None:
        """Make the gradient of a known value, where the head of a block is the first to read it."""
        like = self.entries[name[1:]].tensor
        tensor = Tensor(name, like.dims, self._dtype(name, like.dtype))
        self.entries[name] = Entry(tensor, None, span, "gradient", None, self.section)

    def _anonymous(self, ref: TensorRef) -> Use | None:
        """Make a leaf of `bf16[D, F]`, with a name of its own."""
        brackets = self.brackets[id(ref)]
        if brackets is None:
            return None
        name = self.fresh("Arg")
        found = None if ref.dtype is None else dtype(ref.dtype, self.reporter)
        tensor = Tensor(name, brackets.dims, found or self.default)
        layout = brackets.layout(brackets.dims)
        self.entries[name] = Entry(tensor, layout, ref.span, "leaf", layout)
        self.leaves[name] = Leaf(Array(tensor, layout), "input", ref.span)
        return Use(tensor, layout, ref.span)

    def declare_leaf(self, item: LeafDecl, ref: TensorRef) -> None:
        """Add a declared leaf at its line, unless an earlier line has used it."""
        if ref.name is None or ref.name.text in self.poisoned:
            return
        if self.reserved(ref.name.text, ref.name.span):
            return
        if ref.name.text not in self.entries:
            self.add_leaf(ref, ref.name, item.word, declared=True)

    def _dtype(self, name: str, otherwise: DType) -> DType:
        return self.written[name][0] if name in self.written else otherwise

    def layout_of(self, use: Use) -> Layout | None:
        """Give the layout that an operand is read in: as written, or where the value is."""
        if use.layout is not None:
            return use.layout
        entry = self.entries[use.tensor.name]
        return entry.latest if self.explicit else entry.home

    def whereabouts(self, tensor: Tensor) -> Layout | None:
        """Give the layout in which a value is at this line."""
        entry = self.entries[tensor.name]
        return entry.latest or entry.home

    # --- results

    def define(
        self, goal: Goal | None, dims: Sequence[Dim], op: Op, operands: Sequence[Use], name: str
    ) -> Tensor | None:
        """Make the value that a statement defines, or report why it cannot.

        `dims` are those of the operation, `name` the result's name where the goal has none.
        """
        tensors = tuple(use.tensor for use in operands)
        dtype_made = implied(op, [tensor.dtype for tensor in tensors], self.default)
        assert dtype_made is not None
        if goal is None or goal.ref.name is None:
            found = goal.ref.dtype if goal is not None else None
            given = None if found is None else dtype(found, self.reporter)
            brackets = None if goal is None else goal.brackets
            tensor = Tensor(name, brackets.dims if brackets else tuple(dims), given or dtype_made)
            span = operands[0].span if goal is None else goal.ref.span
            layout = brackets.layout(tensor.dims) if brackets else None
            self.entries[name] = Entry(tensor, layout, span, "value", layout, self.section)
            return tensor
        word, brackets = goal.ref.name, goal.brackets
        made = (op.product if isinstance(op, Ring) else op, tensors)
        if self.scope is not None and not self.explicit and word.text in self.scope.entries:
            return self._next(word, goal, dims)
        if self._forbidden(word, goal, made):
            return None
        if word.text in self.entries:
            tensor = self.entries[word.text].tensor
        else:
            tensor = self._shape(word.text, brackets, dims, dtype_made)
            if word.text in self.scopes.hidden:  # a block before this line has its own
                tensor = replace(tensor, name=self.fresh(word.text))
                self.renames.written[tensor.name] = word.text
        layout = None
        if brackets is not None:
            first = self.entries.get(self.gradient_of(word.text) or word.text)
            span = goal.ref.span if first is None else first.span
            layout = self._layout(goal.ref, brackets, tensor, span)
        entry = Entry(tensor, layout, goal.ref.span, "value", layout, self.section, made)
        self.entries.setdefault(word.text, entry)
        self.entries.setdefault(tensor.name, entry)
        return tensor if brackets is None or layout is not None else None

    def _next(self, word: Word, goal: Goal, dims: Sequence[Dim]) -> Tensor | None:
        """Make what a line of a block makes of a value that layers hand on."""
        name, entry = word.text, self.entries[word.text]
        if name in self.poisoned:
            return None
        found = tuple(dims) if goal.brackets is None else goal.brackets.dims
        if set(found) != set(entry.tensor.dims):
            here, there = (tuple(dim.name for dim in each) for each in (found, entry.tensor.dims))
            label = Label(entry.span, "first written here")
            mistake = block_errors.CarriedDims(name, here, there)
            self.reporter.report(goal.ref.span, mistake, [label])
            return None
        tensor = self.renewed(name, goal.ref.span)
        if goal.brackets is not None:
            layout = goal.brackets.layout(tensor.dims)
            self.entries[name].home = self.entries[name].latest = layout
        return tensor

    def _shape(
        self, name: str, brackets: Brackets | None, dims: Sequence[Dim], implied: DType
    ) -> Tensor:
        base = self.gradient_of(name)
        if base is not None and base in self.entries:
            like = self.entries[base].tensor
            return Tensor(name, like.dims, self._dtype(name, like.dtype))
        return Tensor(name, brackets.dims if brackets else tuple(dims), self._dtype(name, implied))

    def _forbidden(self, word: Word, goal: Goal, made: tuple[Op, tuple[Tensor, ...]]) -> bool:
        """Report a definition of a name that may not be defined here."""
        name = word.text
        if self.reserved(name, word.span) or name in self.poisoned:
            return True
        entry = self.entries.get(name)
        repeated = entry is not None and entry.made == made
        if self.explicit and self.scope is not None and name in self.scope.outer and not repeated:
            label = Label(self.scope.outer[name].span, "its value before")
            mistake = block_errors.NotInHead(name, self.scope.head.dim.text)
            self.reporter.report(goal.ref.span, mistake, [label])
            return True
        if name in self.declared:
            label = Label(self.declared[name][1].span, "declared here")
            self.reporter.report(goal.ref.span, errors.DefinedTwice(name, leaf=True), [label])
            return True
        if entry is None and self.explicit and name in self.scopes.hidden:
            label = Label(self.scopes.hidden[name][0], "defined here first")
            self.reporter.report(goal.ref.span, errors.DefinedTwice(name), [label])
            return True
        if entry is None:
            return False
        if entry.origin != "value":
            label = Label(entry.span, "first used here")
            mistake = errors.DefinedAfterUse(name, updated=isinstance(made[0], Update))
            self.reporter.report(goal.ref.span, mistake, [label])
            return True
        repeated = self.explicit and self.section == "backward" and entry.section == "forward"
        repeated = repeated or (self.explicit and isinstance(made[0], Rename))
        if repeated and entry.made == made:
            return False
        label = Label(entry.span, "defined here first")
        self.reporter.report(goal.ref.span, errors.DefinedTwice(name), [label])
        return True

    def give_up(self, expr: Expr, goal: Goal | None) -> None:
        """Remember what a line in error says of its tensors and its result, so that later lines are read."""
        for ref in walk(expr):
            if isinstance(ref, TensorRef) and ref.name is not None and ref.dims is not None:
                self.mention(ref)
        if goal is None or goal.ref.name is None:
            return
        name, brackets = goal.ref.name.text, goal.brackets
        if name in self.entries or name in self.poisoned or name in self.declared:
            return
        if brackets is None or self.reserved(name, goal.ref.name.span):
            self.poisoned.add(name)
            return
        tensor = self._shape(name, brackets, brackets.dims, self.default)
        fits = set(tensor.dims) == set(brackets.dims)
        layout = brackets.layout(tensor.dims) if fits else None
        self.entries[name] = Entry(tensor, layout, goal.ref.span, "value", layout, self.section)

    def add(self, statement: Statement) -> None:
        """Add a statement, and remember the layout that it leaves its result in."""
        self.statements.append(statement)
        entry = self.entries.get(statement.result.name)
        if entry is not None and statement.target is not None:
            entry.latest = statement.target


def union(operands: Iterable[Use]) -> tuple[Dim, ...]:
    """Give the dims that some operand has, in the order in which they come."""
    return tuple(dict.fromkeys(dim for use in operands for dim in use.tensor.dims))


def _stack_dim(head: Layers) -> str:
    """Give what counts the layers of a block, as its head has it: `L`, `L_Z`."""
    return f"{head.dim.text}{subscript(head.stages)}"
