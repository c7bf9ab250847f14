"""From a syntax tree to a typed program: what each line of a text means.

Precondition: the text parses. Effect: a `Program`, or one `ShardlangError` with every independent
mistake. Order: the mesh gives the axes, the axes cut subscripts off dims, the sizes are settled,
then the lines are read one by one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from shardlang.diagnostics import Diagnostic, Label, Reporter, ShardlangError
from shardlang.frontend import (
    blocks,
    declaration_errors,
    declarations,
    errors,
    expression_errors,
    pipelines,
    scopes,
)
from shardlang.frontend.calls import written_out
from shardlang.frontend.declarations import Overrides, SizeReader
from shardlang.frontend.expressions import Expressions
from shardlang.frontend.gaps import Gaps, NOTHING_BROKEN
from shardlang.frontend.heads import PUT, RENAME, RESHAPE
from shardlang.frontend.includes import included
from shardlang.frontend.names import AxisNames, BracketReader, Brackets, implied_axes, plain_dims
from shardlang.frontend.parser import parse
from shardlang.frontend.products import names
from shardlang.frontend.relayout import Relayouts
from shardlang.frontend.renames import rename_line
from shardlang.frontend.syntax import (
    BlockDecl,
    Call,
    Definition,
    DimsDecl,
    DTypeDecl,
    File,
    HardwareDecl,
    Item,
    Layers,
    LeafDecl,
    PrefetchDecl,
    SaveDecl,
    Section,
    TensorRef,
)
from shardlang.frontend.terms import Pending, Want
from shardlang.frontend.values import Goal, Values
from shardlang.frontend.walk import calls, references
from shardlang.hardware.slices import read_shape, split_shape
from shardlang.ir.ops import Coefficient, Einsum, Linear, Put, Reduce, Rename, Take
from shardlang.ir.program import Program, Save, Statement, Use
from shardlang.ir.types import Dim, DType, DTYPES, Tensor
from shardlang.source import Source, Span

__all__ = ["Overrides", "load_text", "resolve"]

NO_OVERRIDES = Overrides()

BEFORE: Mapping[str, str] = {"backward": "forward", "update": "backward"}
"""The section that each section needs before it."""


def load_text(text: str, name: str = "<text>", overrides: Overrides = NO_OVERRIDES) -> Program:
    """Parse and resolve a text; raises `ShardlangError`."""
    source = Source(name, text)
    return resolve(parse(source), source, overrides)


def resolve(file: File, source: Source, overrides: Overrides = NO_OVERRIDES) -> Program:
    """Give the program that a tree means; raises `ShardlangError` with every mistake."""
    return _resolve(file, source, overrides, NOTHING_BROKEN)


def other_mistakes(file: File, source: Source, broken: Sequence[Span]) -> list[Diagnostic]:
    """List the mistakes of meaning in a text of which some lines, the broken ones, can't be read.

    Left out is what may follow from such a line: it may define any name that stands in it.
    """
    gaps = Gaps.of(source.text, broken)
    named = any(isinstance(item, BlockDecl) for item in file.items)
    within = named and any(source.position(span.start)[1] > 1 for span in broken)
    if gaps.sections or within or not file.items:  # what a block lacks may be anything
        return []
    try:
        _resolve(file, source, NO_OVERRIDES, gaps)
    except ShardlangError as error:
        return [each for each in error.diagnostics if gaps.independent(each)]
    return []


def _resolve(file: File, source: Source, overrides: Overrides, gaps: Gaps) -> Program:
    """Give the program that a tree means, with gaps in the text that it was read from."""
    found, source = included(file.items, source)
    reporter = Reporter(source)
    written = written_out(found, source, _axes(found, overrides, reporter), reporter)
    reporter.source = source = written.source
    items = written.items
    line = declarations.mesh_line(items, overrides, reporter)
    axis_names = declarations.axis_names(line) if line is not None else implied_axes(items)
    axis_names = tuple(dict.fromkeys((*axis_names, *gaps.axes)))
    former = () if overrides.mesh is None else declarations.own_axes(items)
    axes = AxisNames(axis_names, plain_dims(items), frozenset(former), line is None)
    items = blocks.with_sizes(pipelines.read(items, axes, reporter))
    declared = frozenset(
        decl.name.text for item in items if isinstance(item, DimsDecl) for decl in item.dims
    )
    axes = replace(axes, dims=axes.dims | declared)
    brackets = _read_brackets(items, axes, reporter)
    mentions = [found for found in brackets.values() if found is not None]
    dims = (dim for found in mentions for dim in found.dims)
    sizes = SizeReader(
        items,
        () if line is None else line.axes,
        axis_names,
        dict.fromkeys((*dims, *_renamed_to(items), *scopes.loop_dims(items))),
        overrides,
        (reporter, reporter if line is None else line.reporter),
    )
    mesh = sizes.mesh
    _name_layers(items, axis_names, reporter)
    dtype = _default(items, reporter)
    hardware = declarations.only(items, HardwareDecl, "hardware", reporter)
    chip, shape = _chip(hardware, overrides, reporter)
    optimizer, zero = declarations.optimizer(items, axes, reporter)
    in_tensors = frozenset(dim for found in mentions for dim in found.dims)
    microbatches = declarations.microbatches(items, axis_names, in_tensors, reporter)
    explicit = any(isinstance(item, Section) for item in items)
    dims = frozenset(info.dim for info in sizes.infos())
    values = Values(items, reporter, brackets, dtype, explicit, dims)
    values.microbatches, values.optimizer = microbatches, optimizer
    values.pipeline = pipelines.pipeline(items, reporter)
    values.poisoned.update(gaps.names, written.lost)
    relayouts = Relayouts(values, axes, mesh, dims)
    lines = _Lines(values, Expressions(values, dims, relayouts, written.blocks))
    lines.read(items)
    mesh = sizes.tie(values.ties, values.multiples, values.at_most, mesh)
    sizes.check(mentions)
    pipelines.check(items, values.pipeline, brackets, sizes.table.values, reporter)
    if not any(isinstance(item, Definition) for item in items) and not reporter.errors:
        end = len(source.text.rstrip())
        reporter.report(Span(end, end), declaration_errors.EmptyProgram(written.blocks))
    save = _save(items, values)
    ahead = _prefetch(items, values)
    reporters = {id(each): each for each in sizes.reporters}
    diagnostics = _once([d for each in reporters.values() for d in each.diagnostics])
    if any(d.severity == "error" for d in diagnostics):
        raise ShardlangError(diagnostics)
    statements = tuple(values.statements)
    if overrides.forward_only:
        statements = tuple(s for s in statements if s.section == "forward")
    return Program(
        source,
        mesh,
        sizes.infos(),
        tuple(values.leaves.values()),
        statements,
        explicit,
        has_backward="backward" in lines.sections and not overrides.forward_only,
        hardware=chip,
        slice=shape,
        dtype=values.default,
        optimizer=optimizer,
        zero=zero,
        microbatches=microbatches,
        save=save,
        prefetch=ahead,
    )


def _name_layers(items: Sequence[Item], axis_names: Collection[str], reporter: Reporter) -> None:
    """Report layers whose dim has the name of an axis."""
    for item in items:
        if isinstance(item, Layers) and item.dim.text in axis_names:
            reporter.report(item.dim.span, errors.DimIsAxis(item.dim.text))


def _default(items: Sequence[Item], reporter: Reporter) -> DType:
    """Give the dtype of tensors that name none."""
    line = declarations.only(items, DTypeDecl, "dtype", reporter)
    named = None if line is None else declarations.dtype(line.name, reporter)
    return named or DTYPES["bf16"]


def _axes(items: Sequence[Item], overrides: Overrides, reporter: Reporter) -> AxisNames:
    """Give the axes of a text whose calls are not written out yet."""
    line = declarations.mesh_line(items, overrides, reporter)
    return AxisNames(implied_axes(items) if line is None else tuple(a.name.text for a in line.axes))


def _chip(
    line: HardwareDecl | None, overrides: Overrides, reporter: Reporter
) -> tuple[str | None, tuple[int, ...]]:
    """Give the hardware's name and the shape of its slice: the override's, else the text's."""
    if overrides.hardware:
        return split_shape(overrides.hardware)
    if line is None:
        return None, ()
    if line.shape is None:
        return line.name.text, ()
    shape = read_shape(line.shape.text)
    if not shape:
        reporter.report(line.shape.span, declaration_errors.BadSlice(line.shape.text))
    return line.name.text, shape


def _once(diagnostics: Sequence[Diagnostic]) -> list[Diagnostic]:
    """Keep the first report of each unknown axis."""
    seen: set[str] = set()
    kept: list[Diagnostic] = []
    for each in sorted(diagnostics, key=lambda d: d.span.start):
        if isinstance(each.mistake, errors.UnknownAxis):
            if each.mistake.name in seen:
                continue
            seen.add(each.mistake.name)
        kept.append(each)
    return kept


def _read_brackets(
    items: Sequence[Item], axes: AxisNames, reporter: Reporter
) -> dict[int, Brackets | None]:
    """Read the brackets of every mention, by the identity of the mention."""
    reader = BracketReader(axes, reporter)
    return {id(ref): reader.read(ref) for ref in references(items)}


def _renamed_to(items: Sequence[Item]) -> Iterator[Dim]:
    """Go through the dims that the subscripts of `Rename_{B,S}(..)`, `Reshape`, `top` and `put_E(..)` name."""
    for call in calls(items):
        if call.head.text in (RENAME, RESHAPE, "top", PUT):
            yield from (Dim(word.text) for word in call.subscript or ())


def _save(items: Sequence[Item], values: Values) -> Save:
    """Read the save lines: they name values, and parameters whose gathered copies are kept."""
    words = [word for item in items if isinstance(item, SaveDecl) for word in item.names]
    general = {word.text: word for word in words if word.text in ("all", "none")}
    named = [word for word in words if word.text not in general]
    everything = "all" in general or not words
    if len(general) == 2:
        values.reporter.report(general["none"].span, declaration_errors.AllAndNone())
    weights = tuple(name for name, leaf in values.leaves.items() if leaf.kind == "param")
    inner = list(values.scopes.inner.values())
    for word in named:
        if word.text in weights or word.text in values.poisoned:
            continue
        mistake = None
        if any(word.text in entries for entries in inner):
            continue
        if word.text not in values.entries:
            mistake = declaration_errors.UnknownSaved(word.text, values.known())
        elif word.text in values.leaves or everything:
            leaf = word.text in values.leaves
            mistake = declaration_errors.SavedAnyway(word.text, weights, leaf=leaf)
        if mistake is not None:
            values.reporter.report(word.span, mistake)
    names = {word.text for word in named}
    same = {each[name].tensor.name for each in inner for name in names.intersection(each)}
    return Save(everything, frozenset(names | same))


def _prefetch(items: Sequence[Item], values: Values) -> frozenset[str]:
    """Read the prefetch lines: they name parameters of which each layer has its own."""
    words = [word for item in items if isinstance(item, PrefetchDecl) for word in item.names]
    stacked = tuple(
        name
        for name, leaf in values.leaves.items()
        if leaf.kind == "param" and leaf.loop is not None
    )
    for word in words:
        if word.text not in stacked and word.text not in values.poisoned:
            mistake = declaration_errors.NotAhead(word.text, stacked)
            values.reporter.report(word.span, mistake)
    return frozenset(word.text for word in words)


@dataclass
class _Lines:
    """Reads the lines of a program in order."""

    values: Values
    expressions: Expressions

    def __post_init__(self) -> None:
        """Start before the first section."""
        self.sections: dict[str, Span] = {}
        self.reporter = self.values.reporter
        self.warned = False
        self.idle: list[Span] = []

    def read(self, items: Sequence[Item]) -> None:
        """Read every line that adds a section, a leaf or a statement.

        A line that leaves a value in the layout that it has is an error where no line does more.
        """
        for place, (block, item) in enumerate(blocks.inside(items)):
            if self.values.scope is not None and block is None:
                scopes.leave(self.values)
            match item:
                case Section():
                    self._section(item)
                case Layers():
                    scopes.enter(self.values, item, items[place + 1 : place + 1 + item.length])
                case LeafDecl():
                    for ref in item.tensors:
                        self.values.declare_leaf(item, ref)
                case Definition():
                    self._statement(item)
                case _:
                    pass
        if self.values.scope is not None:
            scopes.leave(self.values)
        if len(self.idle) == len(self.values.statements):
            for span in self.idle:
                self.reporter.report(span, expression_errors.NoEffect())

    def _section(self, item: Section) -> None:
        if item.name in self.sections:
            label = Label(self.sections[item.name], "it stands here first")
            mistake = declaration_errors.SectionOrder(f"there are two sections {item.name}:")
            self.reporter.report(item.span, mistake, [label])
        elif (before := BEFORE.get(item.name, item.name)) not in (item.name, *self.sections):
            text = f"{item.name}: stands here without a {before}: before it"
            self.reporter.report(item.span, declaration_errors.SectionOrder(text))
        self.sections.setdefault(item.name, item.span)
        self.values.section = item.name

    def _statement(self, item: Definition) -> None:
        if self.values.explicit and not self.sections and not self.warned:
            self.warned = True
            mistake = declaration_errors.SectionOrder(
                "this statement stands before the first section"
            )
            self.reporter.report(item.span, mistake)
        goal = None
        if item.target is not None:
            goal = Goal(item.target, self.values.goal_brackets(item.target))
        if self._define(item, goal) is None:
            self.values.give_up(item.expr, goal)

    def _define(self, item: Definition, goal: Goal | None) -> Use | None:
        """Make the statements of a line; None where something is wrong."""
        expr = item.expr
        if isinstance(expr, Call) and self.expressions.relayouts.is_one(expr):
            return self.expressions.relayouts.apply(expr, goal, self.expressions, item.span)
        if isinstance(expr, TensorRef):
            return self._alias(expr, goal, item.span)
        want = Want.of(None if goal is None else goal.brackets)
        value = self.expressions.value(expr, want, None if goal is None else goal.name)
        closed = None if value is None else self.expressions.closed(value, want)
        pending = None if closed is None else self.expressions.pending(closed)
        return None if pending is None else self._finish(pending, goal, want, item.span)

    def _alias(self, expr: TensorRef, goal: Goal | None, span: Span) -> Use | None:
        """Read a line with no operation: a change of layout, a copy, a sum or a broadcast."""
        use = self.values.mention(expr)
        if use is None:
            return None
        brackets = None if goal is None else goal.brackets
        written = self.values.original(use.tensor)
        same = goal is not None and goal.name in (use.tensor.name, written)
        if goal is None or (same and (brackets is None or goal.ref.dims is None)):
            self.reporter.report(span, expression_errors.NoEffect())
            return None
        copy = Linear((Coefficient(),))
        if same:
            again = self.values.mention(goal.ref)
            if again is None:
                return None
            if again.tensor != use.tensor:
                here, there = names(again.tensor.dims), names(use.tensor.dims)
                mistake = errors.DimsMismatch(written, here, there)
                label = Label(expr.span, "this is what is laid out anew")
                self.reporter.report(goal.ref.span, mistake, [label])
                return None
            if again.layout == self.values.layout_of(use) == self.values.whereabouts(use.tensor):
                self.idle.append(span)
            section = self.values.section
            self.values.add(
                Statement(copy, (use,), use.tensor, again.layout, span, section=section)
            )
            return again
        dims = use.tensor.dims
        lacking = tuple(dim for dim in dims if brackets is not None and dim not in brackets.dims)
        if not lacking:
            return self._finish(Pending(copy, (use,), dims, span), goal, Want.of(brackets), span)
        gained = () if brackets is None else tuple(dim for dim in brackets.dims if dim not in dims)
        if gained:
            self._exchanged(goal, use.tensor, lacking, gained)
            return None
        kept = tuple(dim for dim in dims if dim not in lacking)
        total = Pending(Reduce("sum", lacking), (use,), kept, span)
        return self._finish(total, goal, Want.of(brackets), span)

    def _exchanged(
        self, goal: Goal, operand: Tensor | None, lost: Sequence[Dim], gained: Sequence[Dim]
    ) -> None:
        """Report a result that lacks dims of its expression and has others in their place."""
        assert goal.brackets is not None
        reading = self._reading(names((*lost, *gained)))
        line, brackets = None, goal.brackets
        if operand is not None and len(lost) == len(gained):
            names_left = iter(gained)
            order = [next(names_left) if dim in lost else dim for dim in operand.dims]
            brackets = brackets.ordered(order)
            result = Tensor(goal.name or "Out", brackets.dims, operand.dtype)
            entry = self.values.entries.get(operand.name)
            home = None if entry is None else entry.latest or entry.home
            line = rename_line(operand, result.name, home, brackets)
        mistake = expression_errors.DimsExchanged(
            goal.name or "the result", names(lost), names(gained), line, reading
        )
        self.reporter.report(goal.ref.span, mistake)

    def _reading(self, dims: Sequence[str]) -> str | None:
        """Say how one of these dims was probably meant."""
        known = {dim.name for dim in self.expressions.dims}
        readings = (self.expressions.relayouts.axes.reading(dim, known) for dim in dims)
        return next((reading for reading in readings if reading is not None), None)

    def _finish(
        self, pending: Pending, goal: Goal | None, want: Want | None, span: Span
    ) -> Use | None:
        """Check an operation against its declared result, and make the statement."""
        if goal is not None and goal.brackets is not None and goal.brackets.wrong:
            if goal.name is not None:
                self.values.poisoned.add(goal.name)
            return None
        if goal is None or goal.brackets is None:
            return self.expressions.finish(pending, goal, span)
        result, dims = goal.name or "the result", goal.brackets.dims
        lacking = tuple(dim.name for dim in pending.dims if dim not in dims)
        if lacking:
            product = isinstance(pending.op, Einsum)
            reading = self._reading(lacking)
            mistake = expression_errors.ResultLacks(result, lacking, product, reading)
            self.reporter.report(goal.ref.span, mistake)
            return None
        summed: tuple[Dim, ...] = ()
        match pending.op:
            case Einsum(contracted):
                summed = contracted
            case Put(_, contracted):
                summed = contracted
            case Take(along):
                summed = along
            case Reduce(_, along):
                summed = along
            case _:
                pass
        gained = tuple(dim for dim in dims if dim not in pending.dims and dim not in summed)
        alone = tuple(dim for dim in pending.implied if _holders(dim, pending.operands) == 1)
        reading = self._reading(names(alone)) if gained else None
        if reading is not None and reading.startswith("did"):
            self._exchanged(goal, None, alone, gained)
            return None
        for dim, place in zip(dims, goal.brackets.spans, strict=True):
            if dim in summed:
                self.reporter.report(place, expression_errors.ContractedKept(result, dim.name))
                return None
        if isinstance(pending.op, Rename) and set(dims) == set(pending.dims):
            goal = Goal(goal.ref, goal.brackets.ordered(pending.dims))
        broadcast = len(dims) > len(pending.dims)
        if broadcast and not isinstance(pending.op, (Einsum, Linear)):
            use = self.expressions.name(pending, want)
            if use is None:
                return None
            pending = Pending(Linear((Coefficient(),)), (use,), pending.dims, pending.span)
        return self.expressions.finish(pending, goal, span)


def _holders(dim: Dim, operands: Sequence[Use]) -> int:
    """Count the operands that have a dim."""
    return sum(dim in use.tensor.dims for use in operands)
