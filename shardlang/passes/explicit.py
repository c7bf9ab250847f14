"""Explicit programs: every line is a step, legal as it stands, and nothing is inferred.

Precondition: a resolved program with `forward:`. Effect: a plan with one step a line, or a
diagnostic at each line that is not legal; the rest is checked as if that line were what it says.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches

from shardlang.diagnostics import Label, Reporter
from shardlang.ir.ops import Compare, Compute, Linear, Op, Permute, Relayout, Rename, Ring, Update
from shardlang.ir.plan import Gradient, Plan, Step
from shardlang.ir.printer import statement as print_step
from shardlang.ir.program import Block, Carry, Leaf, Program, Statement, Use
from shardlang.ir.types import Array, Layout, Tensor
from shardlang.passes.adjoint import differentiable, gradient_of, relays
from shardlang.passes.infer import stated_layout
from shardlang.passes.layers import bodies, members
from shardlang.passes.live import alive, mark_critical
from shardlang.passes.reshard import reachable, route
from shardlang.rules.collectives import Illegal
from shardlang.rules.errors import (
    DefinedTwice,
    FirstInBackward,
    FrozenGradient,
    IllegalStep,
    LeafElsewhere,
    LocalResult,
    NoGradient,
    NotAvailable,
    NotHandedOn,
    NotSent,
    Repeated,
    UnknownGradient,
    Unused,
    UnusedCotangent,
    WrongCotangent,
    WrongGradient,
)
from shardlang.rules.local import local
from shardlang.rules.update_errors import NotUpdated, WrongUpdate
from shardlang.source import Span


@dataclass
class _Checker:
    """Goes through the lines with what is at hand, in each layout, and where it was made."""

    program: Program
    reporter: Reporter
    at_hand: dict[str, dict[Layout, Span | None]] = field(
        default_factory=dict[str, dict[Layout, "Span | None"]]
    )
    dropped: set[Array] = field(default_factory=set[Array])
    computed: set[str] = field(default_factory=set[str])
    steps: list[Step] = field(default_factory=list[Step])
    read: set[Array] = field(default_factory=set[Array])
    cotangents: dict[str, Array] = field(default_factory=dict[str, Array])
    outputs: dict[str, Array] = field(default_factory=dict[str, Array])
    spans: dict[Array, Span] = field(default_factory=dict[Array, Span])
    moved: frozenset[Array] = frozenset()
    made: dict[str, tuple[Op, tuple[Tensor, ...]]] = field(
        default_factory=dict[str, "tuple[Op, tuple[Tensor, ...]]"]
    )

    inner: dict[int, dict[str, dict[Layout, Span | None]]] = field(
        default_factory=dict[int, "dict[str, dict[Layout, Span | None]]"]
    )
    block: Block | None = None

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes that are known."""
        return dict(self.program.sizes.known)

    def known(self, name: str) -> dict[Layout, Span | None]:
        """Give the layouts in which a value is at hand, or was in the block that it is of."""
        inner = (hand[name] for hand in self.inner.values() if name in hand)
        return self.at_hand.get(name) or next(inner, {})

    def lines(self, statements: Iterable[Statement]) -> None:
        """Check lines, block by block."""
        for block, run in bodies(statements):
            if block is None:
                for statement in run:
                    self.line(statement)
            else:
                self.repeated(block, run)

    def repeated(self, block: Block, run: Sequence[Statement]) -> None:
        """Check the lines of a block, which see what each layer has and what it is handed."""
        carries = tuple(
            replace(carry, layout=self.begins(carry.entry, run))
            for carry in block.carries
            if self.at_hand.get(carry.entry.name)
        )
        outer = {name: dict(known) for name, known in self.at_hand.items()}
        for name, known in self.inner.get(block.number, {}).items():
            self.at_hand[name] = dict(known)
        for carry in carries:
            if carry.layout is not None:
                self.at_hand[carry.entry.name] = {carry.layout: None}
        self.block = replace(block, carries=carries)
        first = len(self.steps)
        for statement in run:
            self.line(statement)
        own = members(self.program, block) | {s.result.name for s in run}
        own |= {carry.entry.name for carry in carries}
        own |= {array.name for step in self.steps[first:] for array in step.outputs[1:]}
        own |= frozenset(self.inner.get(block.number, ()))
        inner = {name: known for name, known in self.at_hand.items() if name in own}
        self.inner[block.number] = {**self.inner.get(block.number, {}), **inner}
        sums = {step.output.name for step in self.steps[first:] if step.accumulates}
        self.not_sent(carries, self.steps[first:], run[-1].span)
        self.block = None
        for name in inner:
            del self.at_hand[name]
        self.at_hand.update((n, k) for n, k in outer.items() if n in own)
        self.at_hand.update((name, inner[name]) for name in sums)
        for carry in carries:
            self.handed_on(carry, inner.get(carry.exit.name, {}), run[-1].span)

    def begins(self, entry: Tensor, run: Sequence[Statement]) -> Layout:
        """Give the layout in which a block is handed a value.

        It is the one in which its lines read the value first; if there is none such, the last one.
        """
        known = self.at_hand[entry.name]
        uses = (use for statement in run for use in statement.operands if use.tensor == entry)
        first = next(uses, None)
        if first is not None and first.layout is not None and first.layout in known:
            return first.layout
        return next(reversed(known))

    def handed_on(self, carry: Carry, known: dict[Layout, Span | None], span: Span) -> None:
        """Put at hand what a block hands on, which has to be where the next layer finds it."""
        assert carry.layout is not None
        needed = Array(carry.exit, carry.layout)
        if carry.layout not in known:
            there = tuple(str(needed.with_layout(layout)) for layout in known)
            place = self.spans.get(needed.with_layout(next(reversed(known)))) if known else None
            self.reporter.report(place or span, NotHandedOn(str(needed), there))
        self.at_hand[carry.exit.name] = {carry.layout: known.get(carry.layout, span)}

    def line(self, statement: Statement) -> None:
        """Check one line and append its step."""
        moved = isinstance(statement.op, Relayout)
        arrays = tuple(self.operand(use, moved=moved) for use in statement.operands)
        made = self.result(statement, arrays)
        if isinstance(made, Illegal):
            self.reporter.report(statement.span, IllegalStep(made.why, made.hint))
            layout = statement.target or Layout.replicated(len(statement.result.dims))
        else:
            layout = made
        output = Array(statement.result, layout)
        if statement.target is not None and statement.target != layout:
            wanted = output.with_layout(statement.target)
            self.reporter.report(
                statement.span, LocalResult(str(output), str(wanted), self.missing(output, wanted))
            )
            output = wanted
        self.define(statement, output, arrays)

    def result(self, statement: Statement, arrays: tuple[Array, ...]) -> Layout | Illegal:
        """Give the layout that a line makes."""
        if isinstance(statement.op, Relayout):
            if self.sends(statement, arrays):
                return arrays[0].layout
            return stated_layout(statement.op, arrays[0], statement.target, self.sizes)
        if relays(statement) and isinstance(statement.op, Linear):
            if statement.target == arrays[0].layout:
                return arrays[0].layout
            wanted = arrays[0].with_layout(statement.target or arrays[0].layout)
            steps = self.missing(arrays[0], wanted)
            return Illegal(f"{arrays[0]} does not become {wanted} by itself", steps)
        if isinstance(statement.op, Update):
            weights = {x.array.tensor: x for x in self.program.leaves if x.kind == "param"}
            if arrays[0].tensor not in weights:
                return Illegal(f"{arrays[0].name} is no parameter, and only those are updated")
            if weights[arrays[0].tensor].frozen:
                return Illegal(f"{arrays[0].name} is frozen: what `param` lines declare is updated")
            if arrays[0].tensor.dims != arrays[1].tensor.dims:
                return Illegal(f"{arrays[1]} has other dims than {arrays[0]}, which it updates")
        return local(statement.op, arrays, statement.result, statement.target, self.sizes)

    def not_sent(self, carries: Iterable[Carry], steps: Sequence[Step], span: Span) -> None:
        """Report what a stage hands on and no line sends to the next one."""
        pipeline = None if self.block is None else self.block.pipeline
        if pipeline is None:
            return
        sent = {step.output for step in steps if step.sends}
        for carry in carries:
            needed = Array(carry.exit, carry.layout) if carry.layout is not None else None
            if needed is not None and needed not in sent:
                step = Step(Permute(pipeline.axes), (needed,), needed, loop=self.block)
                self.reporter.report(span, NotSent(str(needed), print_step(step)))

    def sends(self, statement: Statement, arrays: Sequence[Array]) -> bool:
        """Say whether a line sends what a stage hands on to the next stage."""
        if self.block is None or self.block.pipeline is None or statement.target is not None:
            return False
        return statement.op == Permute(self.block.pipeline.axes) and any(
            arrays == (Array(carry.exit, carry.layout),)
            for carry in self.block.carries
            if carry.layout is not None
        )

    def strangers(self, statements: Iterable[Statement]) -> None:
        """Report leaves that the backward pass is the first to read."""
        before = {use.tensor.name for s in statements for use in s.operands}
        before |= {s.result.name for s in statements}
        known = sorted(before | set(self.cotangents))
        for leaf in self.program.leaves:
            given = leaf.declared or leaf.kind == "index"
            if not given and leaf.array.name not in before:
                near = tuple(get_close_matches(leaf.array.name, known, n=2))
                self.reporter.report(leaf.span, FirstInBackward(leaf.array.name, near))

    def left_out(self, gradients: Iterable[Gradient]) -> None:
        """Warn of parameters that get no gradient, of frozen ones that do, and of outputs left out.

        Not of those from which no gradient comes to a leaf: integers, and what is made of comparisons.
        """
        found = {gradient.leaf.tensor for gradient in gradients}
        weights = [leaf for leaf in self.program.leaves if leaf.kind == "param"]
        for leaf in weights:
            made = bool(self.known(gradient_of(leaf.array.tensor).name))
            if leaf.differentiable and leaf.array.tensor not in found and not made:
                self.reporter.report(leaf.span, NoGradient(leaf.array.name))
        frozen = {gradient_of(leaf.array.tensor): leaf for leaf in weights if leaf.frozen}
        for statement in self.program.statements:
            leaf = frozen.get(statement.result)
            if leaf is not None and statement.section == "backward" and not relays(statement):
                self.reporter.report(statement.span, FrozenGradient(leaf.array.name))
        read = {array.name for array in self.read}
        smooth = (s for s in self.program.statements if not isinstance(s.op, Compare))
        wanted = differentiable(replace(self.program, statements=tuple(smooth)))
        for name, output in self.outputs.items():
            unread = name not in read and name not in self.computed
            if unread and output.tensor.name in wanted:
                self.reporter.report(
                    self.spans.get(output, Span(0, 0)), UnusedCotangent(output.name)
                )

    def operand(self, use: Use, *, moved: bool) -> Array:
        """Give an operand, which has to be at hand in the layout that the line names."""
        known = self.at_hand.get(use.tensor.name, {})
        if use.layout is None:
            layout = next(reversed(known), Layout.replicated(len(use.tensor.dims)))
        else:
            layout = use.layout
        array = Array(use.tensor, layout)
        self.read.add(array)
        if layout not in known:
            self.unavailable(use, array, tuple(known), moved=moved)
            self.at_hand.setdefault(use.tensor.name, {})[layout] = None
        return array

    def unavailable(
        self, use: Use, array: Array, known: tuple[Layout, ...], *, moved: bool
    ) -> None:
        """Report an operand that no earlier line made.

        A cotangent that a collective takes in another layout than the output's says that the output
        was meant to end otherwise; one that a product takes was not gathered.
        """
        cotangent = self.cotangents.get(array.name)
        if cotangent is not None and known == (cotangent.layout,) and moved:
            self.wrong_cotangent(use.span, array, cotangent, self.outputs[array.name])
            return
        if not known and array.name not in self.outputs and array.name.startswith("d"):
            given = tuple(str(a) for a in self.cotangents.values())
            self.reporter.report(use.span, UnknownGradient(str(array), given))
            return
        sources = [array.with_layout(layout) for layout in known]
        steps = [self.missing(source, array) for source in sources]
        best = min(
            (s for s in steps if s), key=lambda s: s.count("\n") * 100 + len(s), default=None
        )
        self.reporter.report(
            use.span,
            NotAvailable(str(array), tuple(map(str, sources)), best, self.saving(array)),
        )

    def saving(self, array: Array) -> str | None:
        """Give the `save` line that would have kept a copy that was dropped."""
        if array not in self.dropped:
            return None
        save = self.program.save
        return f"save {', '.join(replace(save, names=save.names | {array.name}).words)}"

    def wrong_cotangent(self, span: Span, taken: Array, given: Array, output: Array) -> None:
        """Report an output that ends in a layout whose cotangent the backward pass does not take."""
        wanted = output.with_layout(taken.layout)
        self.reporter.report(
            self.spans.get(output, span),
            WrongCotangent(str(output), str(taken), str(given), self.missing(output, wanted)),
            [Label(span, f"takes {taken}")],
        )

    def missing(self, source: Array, wanted: Array) -> str | None:
        """Give the lines that lead from one layout to another."""
        if source.layout == wanted.layout or not reachable(source.layout, wanted.layout):
            return None
        lines: list[str] = []
        array = source
        permutes = self.program.pipeline is None
        for move in route(source, wanted.layout, self.sizes, permutes=permutes):
            lines.append(print_step(Step(move.op, (array,), move.output)))
            array = move.output
        return "; ".join(lines)

    def define(self, statement: Statement, output: Array, arrays: tuple[Array, ...]) -> None:
        """Put a line's result at hand, and append the step."""
        known = self.at_hand.setdefault(output.name, {})
        again = output.layout in known and known[output.layout] is not None
        is_relayout = isinstance(statement.op, Relayout) or relays(statement)
        if isinstance(statement.op, Compute) and not relays(statement):
            source = (statement.op, tuple(use.tensor for use in statement.operands))
            view = isinstance(statement.op, Rename) and self.made.get(output.name) == source
            if output.name in self.computed and not view:  # a view has a line for each layout
                self.reporter.report(statement.span, DefinedTwice(output.name))
            self.computed.add(output.name)
            self.made[output.name] = source
        sends = self.sends(statement, arrays)
        if is_relayout and (again or output in arrays) and not sends:
            self.reporter.report(statement.span, Repeated(str(output)))
        known.pop(output.layout, None)
        known[output.layout] = statement.span
        self.spans[output] = statement.span
        step = Step(
            statement.op,
            arrays,
            output,
            "stated",
            "the line states it",
            span=statement.span,
            loop=self.block,
        )
        for kept in step.outputs[1:]:
            self.at_hand.setdefault(kept.name, {})[kept.layout] = statement.span
        if not (is_relayout and output in arrays) or sends:
            self.steps.append(step)

    def end_forward(self, outputs: list[Array]) -> None:
        """Drop the copies of parameters that are not kept, and give the cotangents of the outputs."""
        kept = self.program.kept
        for leaf in self.program.leaves:
            if leaf.kind == "param" and leaf.array.name not in kept:
                self.drop(leaf, self.at_hand[leaf.array.name])
                for hand in self.inner.values():
                    self.drop(leaf, hand.get(leaf.array.name, {}))
        for hand in (self.at_hand, *self.inner.values()):
            for known in hand.values():
                known.update(dict.fromkeys(known))
        for output in outputs:
            cotangent = Array(gradient_of(output.tensor), output.layout.reduced())
            self.cotangents[cotangent.name] = cotangent
            self.outputs[cotangent.name] = output
            self.at_hand[cotangent.name] = {cotangent.layout: None}
        inside = {f"d{name}": number for number, hand in self.inner.items() for name in hand}
        for name, cotangent in self.cotangents.items():
            if name in inside and self.outputs[name].name not in self.at_hand:
                self.inner[inside[name]][name] = {cotangent.layout: None}
                del self.at_hand[name]
        self.computed.clear()

    def end_backward(self) -> None:
        """Begin the update: of parameters there is what lives, and all that there is may be moved again."""
        self.steps = []
        for leaf in self.program.leaves:
            if leaf.kind == "param":
                for hand in (self.at_hand, *self.inner.values()):
                    self.drop(leaf, hand.get(leaf.array.name, {}))
        for hand in (self.at_hand, *self.inner.values()):
            for known in hand.values():
                known.update(dict.fromkeys(known))
        self.computed.clear()

    def updated(self, gradients: Iterable[Gradient]) -> None:
        """Say where a new parameter does not end as it lives, and which parameters have no new one."""
        updates = [step for step in self.steps if isinstance(step.op, Update)]
        made = {step.inputs[0].tensor: step.output.tensor for step in updates}
        for leaf in (x for x in self.program.leaves if x.array in {g.leaf for g in gradients}):
            tensor = made.get(leaf.array.tensor)
            if tensor is None:
                if updates:
                    self.reporter.report(leaf.span, NotUpdated(leaf.array.name))
                continue
            known = self.known(tensor.name)
            last = Array(tensor, next(reversed(known)))
            if leaf.array.layout not in known:
                steps = self.missing(last, last.with_layout(leaf.array.layout))
                span = self.spans.get(last, leaf.span)
                self.reporter.report(span, WrongUpdate(str(last), str(leaf.array), steps))

    def drop(self, leaf: Leaf, known: dict[Layout, Span | None]) -> None:
        """Drop the copies of a parameter."""
        for layout in [layout for layout in known if layout != leaf.array.layout]:
            del known[layout]
            self.dropped.add(leaf.array.with_layout(layout))

    def gradients(self) -> tuple[Gradient, ...]:
        """Give the leaves' gradients, each of which has to end as its leaf lives."""
        found: list[Gradient] = []
        for leaf in self.program.leaves:
            gradient = gradient_of(leaf.array.tensor)
            known = self.known(gradient.name)
            if not known or not leaf.differentiable:
                continue
            wanted = Array(gradient, leaf.array.layout.reduced())
            last = Array(gradient, next(reversed(known)))
            if self.program.has_update:  # which says what becomes of it
                if leaf.kind == "param":
                    found.append(Gradient(leaf.array, last))
                continue
            if wanted.layout in known:
                found.append(Gradient(leaf.array, wanted))
                continue
            if not last.layout.unreduced and not leaf.declared and leaf.array not in self.moved:
                own = leaf.array.with_layout(last.layout)
                self.reporter.report(
                    leaf.span,
                    LeafElsewhere(
                        str(leaf.array), str(last), str(own), self.missing(own, leaf.array)
                    ),
                    [Label(self.spans.get(last, leaf.span), f"ends as {last}")],
                )
                continue
            self.reporter.report(
                self.spans.get(last, leaf.span),
                WrongGradient(str(last), str(leaf.array), self.missing(last, wanted)),
            )
        return tuple(found)

    def unused(self, forward: list[Step], outputs: list[Array], gradients: list[Array]) -> None:
        """Warn of collectives that no result is made from, but for those that are made again."""
        steps = [*forward, *self.steps]
        last = {step.output: index for index, step in enumerate(steps)}
        lives = alive(forward, self.steps, outputs, gradients)
        for index, (step, living) in enumerate(zip(steps, lives, strict=True)):
            dead = step.is_collective and not living and last[step.output] == index
            if dead and step.span is not None:
                self.reporter.report(step.span, Unused(str(step.output)))


def outputs_of(statements: tuple[Statement, ...]) -> list[Tensor]:
    """Give the values that no statement reads but to change their layout, in order of definition."""
    read: set[str] = set()
    for statement in statements:
        if not relays(statement):
            read.update(use.tensor.name for use in statement.operands)
    found = {s.result.name: s.result for s in statements if s.result.name not in read}
    return list(found.values())


def check_explicit(program: Program, reporter: Reporter, *, forward_only: bool) -> Plan:
    """Check an explicit program line by line, and give the plan that it is."""
    moved = _taken_unmade(program)
    program = _settle_leaves(program, moved)
    checker = _Checker(program, reporter, moved=moved)
    for leaf in program.leaves:
        checker.at_hand[leaf.array.name] = {leaf.array.layout: None}
    statements = tuple(s for s in program.statements if s.section == "forward")
    checker.lines(statements)
    outputs = [
        Array(tensor, next(reversed(known)))
        for tensor in outputs_of(statements)
        if (known := checker.known(tensor.name))
    ]
    forward = tuple(checker.steps)
    checker.steps = []
    gradients: tuple[Gradient, ...] = ()
    has_backward = program.has_backward and not forward_only
    if has_backward:
        checker.end_forward(outputs)
        checker.lines(s for s in program.statements if s.section == "backward")
        checker.strangers(statements)
        gradients = checker.gradients()
        checker.left_out(gradients)
    backward = tuple(checker.steps)
    if not reporter.errors and not program.has_update:  # what is wrong leaves much unused
        checker.unused(list(forward), outputs, [g.gradient for g in gradients])
    update = ()
    if has_backward and program.has_update:
        checker.end_backward()
        checker.lines(s for s in program.statements if s.section == "update")
        checker.updated(gradients)
        update = tuple(checker.steps)
    forward, backward = mark_critical(program, forward, backward, tuple(outputs), gradients)
    return Plan(
        program,
        "explicit",
        forward,
        backward,
        tuple(outputs),
        tuple(checker.cotangents.values()),
        gradients,
        update=update,
    )


def _taken_unmade(program: Program) -> frozenset[Array]:
    """Give what collectives take and no line makes.

    That is where a leaf lives, wherever else it is mentioned first.
    """
    made = {Array(s.result, s.target) for s in program.statements if s.target is not None}
    moved = [_moved(s) for s in program.statements]
    taken = {Array(u.tensor, u.layout) for u in moved if u is not None and u.layout is not None}
    return frozenset(taken - made)


def _moved(statement: Statement) -> Use | None:
    """Give what a line moves as it stands: the operand of a relayout, or the one that goes round a ring."""
    op = statement.op
    if isinstance(op, Ring) and op.gathers:
        return statement.operands[op.operand]
    return statement.operands[0] if isinstance(op, Relayout) else None


def _settle_leaves(program: Program, moved: frozenset[Array]) -> Program:
    """Let each leaf live where collectives take it from, if its first mention says otherwise."""
    leaves: list[Leaf] = []
    for leaf in program.leaves:
        homes = [array for array in moved if array.tensor == leaf.array.tensor]
        if leaf.declared or len(homes) != 1:
            leaves.append(leaf)
        else:
            leaves.append(replace(leaf, array=homes[0]))
    return replace(program, leaves=tuple(leaves))
