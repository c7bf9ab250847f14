"""From a syntax tree to a typed program: what each line of a text means.

Precondition: the text parses. Effect: a `Program`, or one `ShardlangError` with every independent
mistake. Order: the mesh gives the axes, the axes cut subscripts off dims, the sizes are settled,
then the lines are read one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shardlang.diagnostics import Label, Reporter, ShardlangError
from shardlang.frontend import declaration_errors, declarations, errors, expression_errors
from shardlang.frontend.declarations import Overrides, SizeReader
from shardlang.frontend.expressions import Expressions
from shardlang.frontend.names import (
    AxisNames,
    BracketReader,
    Brackets,
    implied_axes,
    plain_dims,
    RENAME,
)
from shardlang.frontend.parser import parse
from shardlang.frontend.products import names
from shardlang.frontend.relayout import Relayouts
from shardlang.frontend.syntax import (
    Call,
    Definition,
    DimsDecl,
    DTypeDecl,
    File,
    HardwareDecl,
    Item,
    LeafDecl,
    SaveDecl,
    Section,
    TensorRef,
)
from shardlang.frontend.terms import Pending, Want
from shardlang.frontend.values import Goal, Values
from shardlang.frontend.walk import calls, references
from shardlang.ir.ops import Coefficient, Einsum, Linear, Reduce, Rename
from shardlang.ir.program import Program, Save, Statement, Use
from shardlang.ir.types import Dim, DTYPES
from shardlang.source import Source, Span

__all__ = ["Overrides", "load_text", "resolve"]

NO_OVERRIDES = Overrides()


def load_text(text: str, name: str = "<text>", overrides: Overrides = NO_OVERRIDES) -> Program:
    """Parse and resolve a text; raises `ShardlangError`."""
    source = Source(name, text)
    return resolve(parse(source), source, overrides)


def resolve(file: File, source: Source, overrides: Overrides = NO_OVERRIDES) -> Program:
    """Give the program that a tree means; raises `ShardlangError` with every mistake."""
    reporter = Reporter(source)
    _refuse_pipelines(file.items, reporter)
    items = file.items
    line = declarations.mesh_line(items, overrides, reporter)
    axis_names = implied_axes(items) if line is None else declarations.axis_names(line)
    declared = frozenset(
        decl.name.text for item in items if isinstance(item, DimsDecl) for decl in item.dims
    )
    axes = AxisNames(axis_names, plain_dims(items) | declared)
    brackets = _read_brackets(items, axes, reporter)
    mentions = [found for found in brackets.values() if found is not None]
    sizes = SizeReader(
        items,
        () if line is None else line.axes,
        axis_names,
        dict.fromkeys((*(dim for found in mentions for dim in found.dims), *_renamed_to(items))),
        overrides,
        (reporter, reporter if line is None else line.reporter),
    )
    mesh = sizes.mesh
    dtype_line = declarations.only(items, DTypeDecl, "dtype", reporter)
    dtype = None if dtype_line is None else declarations.dtype(dtype_line.name, reporter)
    hardware = declarations.only(items, HardwareDecl, "hardware", reporter)
    optimizer = declarations.optimizer(items, reporter)
    explicit = any(isinstance(item, Section) for item in items)
    values = Values(items, reporter, brackets, dtype or DTYPES["bf16"], explicit)
    dims = frozenset(info.dim for info in sizes.infos())
    lines = _Lines(values, Expressions(values, dims, Relayouts(values, axes, mesh, dims)))
    lines.read(items)
    mesh = sizes.tie(values.ties, mesh)
    sizes.check(mentions)
    if not any(isinstance(item, Definition) for item in items):
        end = len(source.text.rstrip())
        reporter.report(Span(end, end), declaration_errors.EmptyProgram())
    save = _save(items, values)
    found = {id(each): each for each in sizes.reporters}
    diagnostics = [d for each in found.values() for d in each.diagnostics]
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
        hardware=overrides.hardware or (None if hardware is None else hardware.name.text),
        dtype=values.default,
        optimizer=optimizer,
        save=save,
    )


def _refuse_pipelines(items: Sequence[Item], reporter: Reporter) -> None:
    """Stop at a micro-batch subscript: nothing else can be said about such a program yet."""
    for ref in references(items):
        if ref.index is not None:
            reporter.report(ref.index.span, declaration_errors.Pipelined())
            reporter.raise_if_errors()


def _read_brackets(
    items: Sequence[Item], axes: AxisNames, reporter: Reporter
) -> dict[int, Brackets | None]:
    """Read the brackets of every mention, by the identity of the mention."""
    reader = BracketReader(axes, reporter)
    return {id(ref): reader.read(ref) for ref in references(items)}


def _renamed_to(items: Sequence[Item]) -> Iterator[Dim]:
    """Go through the dims that the subscripts of `Rename_{B,S}(..)` name."""
    for call in calls(items):
        if call.head.text == RENAME:
            yield from (Dim(word.text) for word in call.subscript or ())


def _save(items: Sequence[Item], values: Values) -> Save:
    """Read the save lines; the values that they name have to exist."""
    words = [word for item in items if isinstance(item, SaveDecl) for word in item.names]
    if not words or any(word.text == "all" for word in words):
        return Save()
    for word in words:
        if word.text not in values.entries and word.text not in values.poisoned:
            mistake = declaration_errors.UnknownSaved(word.text, values.known())
            values.reporter.report(word.span, mistake)
    return Save(everything=False, names=frozenset(word.text for word in words))


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

    def read(self, items: Sequence[Item]) -> None:
        """Read every line that adds a section, a leaf or a statement."""
        for item in items:
            match item:
                case Section():
                    self._section(item)
                case LeafDecl():
                    for ref in item.tensors:
                        self.values.declare_leaf(item, ref)
                case Definition():
                    self._statement(item)
                case _:
                    pass

    def _section(self, item: Section) -> None:
        if item.name in self.sections:
            label = Label(self.sections[item.name], "it stands here first")
            mistake = declaration_errors.SectionOrder(f"there are two sections {item.name}:")
            self.reporter.report(item.span, mistake, [label])
        elif item.name == "backward" and "forward" not in self.sections:
            mistake = declaration_errors.SectionOrder(
                "backward: stands here without a forward: before it"
            )
            self.reporter.report(item.span, mistake)
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
            goal = Goal(item.target, self.values.brackets[id(item.target)])
        if self._define(item, goal) is None:
            self.values.give_up(goal)

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
        if goal is None or (same and brackets is None):
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
            section = self.values.section
            self.values.add(
                Statement(copy, (use,), use.tensor, again.layout, span, section=section)
            )
            return again
        dims = use.tensor.dims
        lacking = tuple(dim for dim in dims if brackets is not None and dim not in brackets.dims)
        if not lacking:
            return self._finish(Pending(copy, (use,), dims, span), goal, Want.of(brackets), span)
        kept = tuple(dim for dim in dims if dim not in lacking)
        total = Pending(Reduce("sum", lacking), (use,), kept, span)
        return self._finish(total, goal, Want.of(brackets), span)

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
            self.reporter.report(
                goal.ref.span, expression_errors.ResultLacks(result, lacking, product)
            )
            return None
        summed: tuple[Dim, ...] = ()
        match pending.op:
            case Einsum(contracted):
                summed = contracted
            case Reduce(_, along):
                summed = along
            case _:
                pass
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
