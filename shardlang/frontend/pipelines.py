"""Pipelines in a text: which axes are stages, the one-line form, marks of microbatches, the schedule.

Works on the tree, before any line is read. `layers L_Z:` says that the devices of Z hold consecutive layers.
A line whose tensors begin with such a dim and are marked, `In[L_Z, B, D][i] · W[L_Z, D, D][i] -> Out[L_Z, B, D][i]`,
is the block `layers L_Z:` in which Out is handed to the next layer as In. `[i]` names what counts
microbatches, as `accumulate i` does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod

from shardlang.diagnostics import Label, Reporter
from shardlang.frontend import blocks, declarations
from shardlang.frontend.names import AxisNames, BracketReader, Brackets
from shardlang.frontend.pipeline_errors import (
    BadChunks,
    NoMicrobatch,
    NoStages,
    OtherMicrobatch,
    StageAxis,
    TwoPipelines,
    UnevenStages,
)
from shardlang.frontend.syntax import (
    AccumulateDecl,
    CarryDecl,
    Definition,
    DimRef,
    Expr,
    Item,
    Layers,
    LeafDecl,
    ScheduleDecl,
    Section,
    TensorRef,
    Word,
)
from shardlang.frontend.walk import rebuilt, references
from shardlang.ir.program import Pipeline
from shardlang.ir.types import Axis
from shardlang.pipelines.schedules import Schedule, schedule_of

DEFAULT = "1f1b"
"""The schedule of a pipeline where nothing is said."""


# ---- The tree -------------------------------------------------------------------------------------


def read(items: Sequence[Item], axes: AxisNames, reporter: Reporter) -> tuple[Item, ...]:
    """Give the items with stages in their places, one-line forms as blocks, and microbatches counted."""
    return marked(placed(items, axes, reporter), reporter)


def placed(items: Sequence[Item], axes: AxisNames, reporter: Reporter) -> tuple[Item, ...]:
    """Give the items with the stages of each block apart from its dim, and one-line forms as blocks."""
    found: list[Item] = []
    for item in items:
        if not isinstance(item, Layers) or item.stack is None:
            found.append(item)
            continue
        base = item.stack.name.text.rpartition("_")[0]
        meant = replace(axes, dims=axes.dims | {base}) if base else axes
        brackets = _read(item.stack, BracketReader(meant, reporter))
        if not brackets.axes[0]:
            found.append(item)
            continue
        dim = Word(brackets.dims[0].name, item.dim.span)
        size = None if item.size is None else replace(item.size, name=dim)
        found.append(replace(item, dim=dim, size=size, stages=brackets.axes[0]))
    if any(isinstance(item, Section) for item in items):
        return tuple(found)
    return tuple(_unfolded(found, BracketReader(axes, Reporter(reporter.source))))


def _read(dim: DimRef, reader: BracketReader) -> Brackets:
    found = reader.read(TensorRef(Word("layers", dim.span), None, (dim,), None, dim.span))
    assert found is not None
    return found


def _unfolded(items: Sequence[Item], reader: BracketReader) -> Iterator[Item]:
    """Write each run of lines of the one-line form as a block."""
    run: list[Definition] = []
    known: set[str] = set()
    stack: DimRef | None = None
    for block, item in blocks.inside(items):
        own = _stack(item, reader) if block is None and isinstance(item, Definition) else None
        if run and (own is None or stack is None or _key(own, reader) != _key(stack, reader)):
            yield from _block(run, stack, known, reader)
            run = []
        if own is not None and isinstance(item, Definition):
            run.append(item)
            stack = own
            continue
        known |= {ref.name.text for ref in references([item]) if ref.name is not None}
        yield item
    if run:
        yield from _block(run, stack, known, reader)


def _key(dim: DimRef, reader: BracketReader) -> tuple[str, tuple[Axis, ...]]:
    found = _read(dim, reader)
    return found.dims[0].name, found.axes[0]


def _stack(item: Definition, reader: BracketReader) -> DimRef | None:
    """Give the dim of layers with its stages, where a line's result is marked and begins with one."""
    target = item.target
    if target is None or target.index is None or not target.dims or target.name is None:
        return None
    return target.dims[0] if _key(target.dims[0], reader)[1] else None


def _block(
    run: Sequence[Definition], stack: DimRef | None, known: set[str], reader: BracketReader
) -> Iterator[Item]:
    """Write lines as a block: the first operand is what the last result is handed on as."""
    assert stack is not None
    dim, stages = _key(stack, reader)

    def inner(ref: TensorRef) -> TensorRef:
        if not ref.dims or _key(ref.dims[0], reader) != (dim, stages):
            return ref
        return replace(ref, dims=ref.dims[1:])

    def changed(node: Expr) -> Expr | None:
        return inner(node) if isinstance(node, TensorRef) else None

    made = {item.target.name.text for item in run if item.target and item.target.name}
    first = next(
        (
            ref
            for ref in references([replace(run[0], target=None)])
            if ref.name is not None and ref.name.text not in made and inner(ref) is not ref
        ),
        None,
    )
    last = run[-1].target
    assert last is not None
    assert last.name is not None
    word = Word(dim, stack.name.span)
    carries: tuple[CarryDecl, ...] = ()
    if first is not None and first.name is not None:
        carries = (CarryDecl(last.name, first.name, first.span),)
        if first.name.text not in known:
            yield LeafDecl("input", (replace(inner(first), index=None),), first.span)
    yield Layers(word, None, carries, stack.span, len(run), stack, stages)
    for item in run:
        target = None if item.target is None else inner(item.target)
        yield replace(item, target=target, expr=rebuilt(item.expr, changed))
    known |= made


def marked(items: Sequence[Item], reporter: Reporter) -> tuple[Item, ...]:
    """Check the marks of microbatches; where no line says what counts them, the first mark does."""
    counted = next((item.dim for item in items if isinstance(item, AccumulateDecl)), None)
    first: Word | None = None
    for ref in references(items):
        if ref.index is None:
            continue
        if not ref.index.text.isidentifier():
            reporter.report(ref.index.span, NoMicrobatch(ref.index.text))
            continue
        first = first or ref.index
        known = counted or first
        if ref.index.text != known.text:
            label = Label(known.span, "they are counted here")
            reporter.report(ref.index.span, OtherMicrobatch(ref.index.text, known.text), [label])
    if counted is not None or first is None:
        return tuple(items)
    return (AccumulateDecl(first, None, first.span), *items)


# ---- What is declared -----------------------------------------------------------------------------


def pipeline(items: Sequence[Item], reporter: Reporter) -> Pipeline | None:
    """Read which block is a pipeline, and its schedule."""
    line = declarations.only(items, ScheduleDecl, "schedule", reporter)
    section = ""
    heads: list[Layers] = []
    for item in items:
        section = item.name if isinstance(item, Section) else section
        if isinstance(item, Layers) and item.stages and section in ("", "forward"):
            heads.append(item)
    for head in heads[1:]:
        label = Label(heads[0].span, "the first one")
        reporter.report(head.span, TwoPipelines(), [label])
    row = None
    if line is not None:
        found = schedule_of(line.name.text)
        if isinstance(found, Schedule):
            row = found
        else:
            reporter.report(line.name.span, found)
        if not heads:
            reporter.report(line.span, NoStages(line.name.text))
    if not heads:
        return None
    chunks = _chunks(line)
    if line is not None and line.chunks is not None and line.keyword is not None and chunks is None:
        written = f"{line.keyword.text} {line.chunks.text}"
        reporter.report(line.keyword.span.join(line.chunks.span), BadChunks(written))
    if row is not None and line is not None and chunks is not None:
        mistake = row.chunks_mistake(chunks)
        if mistake is not None:
            reporter.report(line.span, mistake)
    return Pipeline(heads[0].stages, row.name if row else DEFAULT, chunks or 1)


def _chunks(line: ScheduleDecl | None) -> int | None:
    """Read `chunks 2` off a schedule's line, one where nothing is said; None where it is no number."""
    if line is None or line.chunks is None or line.keyword is None:
        return 1
    text = line.chunks.text
    right = line.keyword.text == "chunks" and text.isdecimal() and len(text) < 6
    return int(text) or None if right else None


def check(
    items: Sequence[Item],
    found: Pipeline | None,
    brackets: Mapping[int, Brackets | None],
    sizes: Mapping[str, int],
    reporter: Reporter,
) -> None:
    """Report stages that split anything else, layers that don't divide, and numbers that the schedule refuses."""
    head = next((i for i in items if isinstance(i, Layers) and i.stages), None)
    if found is None or head is None:
        return
    for each in brackets.values():
        for dim, axes, span in zip(each.dims, each.axes, each.spans, strict=True) if each else ():
            for axis in axes:
                if axis in found.axes and dim.name != head.dim.text:
                    reporter.report(span, StageAxis(axis.name, head.dim.text))
    line = next((item for item in items if isinstance(item, ScheduleDecl)), None)
    span = head.span if line is None else line.span
    if any(axis.name not in sizes for axis in found.axes) or _chunks(line) is None:
        return
    stages = prod(sizes[axis.name] for axis in found.axes)
    layers = sizes.get(head.dim.text)
    if layers is not None and layers % (stages * found.chunks):
        mistake = UnevenStages(head.dim.text, layers, stages, found.chunks)
        reporter.report(head.dim.span, mistake)
    counting = next((i.dim.text for i in items if isinstance(i, AccumulateDecl)), None)
    microbatches = 1 if counting is None else sizes.get(counting)
    row = schedule_of(found.schedule)
    if microbatches is None or not isinstance(row, Schedule) or stages == 1:
        return
    refused = row.mistake(stages, microbatches, found.chunks)
    if refused is not None:
        reporter.report(span, refused)
