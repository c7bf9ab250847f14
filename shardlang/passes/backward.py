"""The backward pass: the cotangents of every value, in reverse, down to the leaves' gradients.

Precondition: a lowered forward pass. Effect: a gradient for each leaf that has one, in the leaf's
own layout. Gradients of a value that is used several times are added while they are still
unreduced, and reduced once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from shardlang.diagnostics import Reporter
from shardlang.ir.ops import Coefficient, Linear, Map, Relayout
from shardlang.ir.plan import Alternative, Gradient, Step
from shardlang.ir.program import Program, Statement
from shardlang.ir.types import Array, Layout, Tensor
from shardlang.passes.infer import infer_statement
from shardlang.passes.lowering import Lowering, Reason
from shardlang.passes.reshard import route
from shardlang.rules.price import book_bytes
from shardlang.rules.transpose import Contribution, Site, Term, transpose
from shardlang.source import Span


@dataclass(frozen=True)
class BackwardResult:
    """What the backward pass gives to the plan."""

    steps: tuple[Step, ...]
    cotangents: tuple[Array, ...]
    gradients: tuple[Gradient, ...]
    alternatives: tuple[Alternative, ...]


def gradient_of(tensor: Tensor) -> Tensor:
    """Give the tensor of a value's gradient: the same dims and dtype under the name `dName`."""
    return Tensor(f"d{tensor.name}", tensor.dims, tensor.dtype)


def relays(statement: Statement) -> bool:
    """Say whether a statement changes a value's layout and defines nothing."""
    return statement.result == statement.operands[0].tensor and len(statement.operands) == 1


def differentiable(program: Program) -> frozenset[str]:
    """Give the names of the values that a gradient flows to: floats that depend on a float leaf."""
    names = {leaf.array.name for leaf in program.leaves if leaf.differentiable}
    for statement in program.statements:
        if statement.constant or statement.result.dtype.kind != "float":
            continue
        if any(use.tensor.name in names for use in statement.operands):
            names.add(statement.result.name)
    return frozenset(names)


@dataclass
class _Backward:
    """The pass at work: contributions wait until a value's last one is there."""

    state: Lowering
    program: Program
    taken: set[str]
    wanted: frozenset[str]
    waiting: dict[str, int] = field(default_factory=dict[str, int])
    parts: dict[str, list[Array]] = field(default_factory=dict[str, list[Array]])

    def fresh(self, name: str) -> str:
        """Give a name that nothing has."""
        found, number = name, 2
        while found in self.taken:
            found, number = f"{name}{number}", number + 1
        self.taken.add(found)
        return found

    def target(self, tensor: Tensor) -> Layout:
        """Give the layout that a value's gradient is wanted in: its own, with nothing unreduced."""
        return self.state.home[tensor.name].reduced()

    def count(self, statements: Sequence[Statement], live: frozenset[str]) -> None:
        """Count the contributions that each value will get."""
        for statement in statements:
            if relays(statement) or statement.constant or statement.result.name not in live:
                continue
            for use in statement.operands:
                if use.tensor.name in self.wanted:
                    self.waiting[use.tensor.name] = self.waiting.get(use.tensor.name, 0) + 1

    def statement(self, statement: Statement) -> None:
        """Give each operand its contribution, the last operand first."""
        operands = tuple(use.tensor for use in statement.operands)
        cotangent = gradient_of(statement.result)
        if cotangent.name not in self.state.home:
            for operand in operands:
                self.arrived(operand, None, statement.span)
            return
        for index in reversed(range(len(operands))):
            if operands[index].name not in self.wanted:
                continue
            found = transpose(statement.op, Site(operands, statement.result, cotangent, index))
            self.contribute(operands[index], found, statement)

    def contribute(self, operand: Tensor, found: Contribution, statement: Statement) -> None:
        """Lower a contribution: straight into the gradient where it is the only one."""
        single = self.waiting[operand.name] == 1 and operand.name not in self.parts
        span, target = statement.span, self.target(operand)
        match found:
            case None:
                self.arrived(operand, None, span)
            case Tensor():
                self.arrived(operand, self.state.array(found), span)
            case Term() if single:
                reduce = operand.name not in self.state.views
                self.lower(found, gradient_of(operand), target, span, reduce=reduce)
                self.waiting[operand.name] = 0
            case Term():
                name = self.fresh(f"d{operand.name}_{statement.result.name}")
                part = Tensor(name, operand.dims, operand.dtype)
                self.arrived(operand, self.lower(found, part, target, span, reduce=False), span)

    def lower(
        self, term: Term, result: Tensor, wish: Layout | None, span: Span | None, *, reduce: bool
    ) -> Array:
        """Lower a term and the terms inside it; with `reduce` its result ends in `wish`."""
        arrays = tuple(self.value(inner, result, span) for inner in term.inputs)
        made, decision = self.state.compute(term.op, arrays, result, wish, span)
        if not reduce:
            self.state.home.setdefault(result.name, made.layout)
            return made
        final = wish if wish is not None else made.layout.reduced()
        made = self.state.follow(made, route(made, final, self.state.sizes), decision.because, span)
        self.state.home.setdefault(result.name, made.layout)
        return made

    def value(self, inner: Tensor | Term, outer: Tensor, span: Span | None) -> Array:
        """Give an operand of a term where it lives, lowering it first if it is a term itself."""
        if isinstance(inner, Tensor):
            return self.state.array(inner)
        known = self.terms.get(inner)
        if known is None:
            name = self.fresh(_part_name(inner, outer))
            tensor = Tensor(name, inner.dims, outer.dtype)
            known = self.lower(inner, tensor, None, span, reduce=True)
            self.terms[inner] = known
        return known

    terms: dict[Term, Array] = field(default_factory=dict[Term, Array])

    def arrived(self, operand: Tensor, part: Array | None, span: Span | None) -> None:
        """Note a contribution; the last one makes the gradient."""
        if operand.name not in self.wanted:
            return
        if part is not None:
            self.parts.setdefault(operand.name, []).append(part)
        self.waiting[operand.name] -= 1
        if self.waiting[operand.name] == 0 and self.parts.get(operand.name):
            self.add(operand, self.parts[operand.name], span)

    def add(self, operand: Tensor, parts: list[Array], span: Span | None) -> None:
        """Add a value's contributions, unreduced ones first, and reduce the sum once."""
        target, result = self.target(operand), gradient_of(operand)
        groups: dict[frozenset[object], list[Array]] = {}
        for part in parts:
            groups.setdefault(frozenset(part.layout.unreduced), []).append(part)
        while len(groups) > 1:
            deepest = max(groups, key=lambda axes: (len(axes), sorted(map(str, axes))))
            inside = [axes for axes in groups if axes < deepest]
            if not inside:
                break
            into = max(inside, key=lambda axes: (len(axes), sorted(map(str, axes))))
            total = self.total(groups.pop(deepest), operand, None, span)
            layout = groups[into][0].layout
            reason = Reason("add-reduced", f"it is added to {groups[into][0]}")
            moved = self.state.follow(total, route(total, layout, self.state.sizes), reason, span)
            groups[into].append(moved)
        sums = (
            [self.total(group, operand, None, span) for group in groups.values()]
            if len(groups) > 1
            else next(iter(groups.values()))
        )
        made = self.total(sums, operand, result, span)
        if operand.name in self.state.views:  # it goes on to the value itself, and is reduced there
            self.state.home.setdefault(result.name, made.layout)
            return
        reason = Reason("gradient", f"the gradient of {operand.name} lives as {operand.name} does")
        made = self.state.follow(made, route(made, target, self.state.sizes), reason, span)
        self.state.home.setdefault(result.name, made.layout)

    def total(
        self, parts: list[Array], operand: Tensor, result: Tensor | None, span: Span | None
    ) -> Array:
        """Add arrays into a tensor; one alone needs no sum unless it has to get the name."""
        if result is None:
            if len(parts) == 1:
                return parts[0]
            result = Tensor(self.fresh(f"d{operand.name}_sum"), operand.dims, operand.dtype)
        op = Linear((Coefficient(),) * len(parts))
        wish = self.target(operand)
        if all(part.layout.unreduced == parts[0].layout.unreduced for part in parts):
            wish = Layout(wish.sharding, parts[0].layout.unreduced)
            if wish.duplicates():
                wish = parts[0].layout
        made, _ = self.state.compute(op, tuple(parts), result, wish, span)
        self.state.home.setdefault(result.name, made.layout)
        return made


def _part_name(inner: Term, outer: Tensor) -> str:
    """Name a part of a contribution: a function's value after its operand, else after the gradient."""
    operand = inner.inputs[0]
    if isinstance(inner.op, Map) and isinstance(operand, Tensor):
        return f"{operand.name}_{inner.op.function}"
    base = outer.name if outer.name.endswith("_part") else f"{outer.name}_part"
    return base.rstrip("0123456789")


def backward(
    program: Program,
    forward: Lowering,
    outputs: tuple[Array, ...],
    reporter: Reporter,
    *,
    keep_gathered: bool,
) -> BackwardResult:
    """Lower the backward pass of an ordinary program."""
    state = Lowering(forward.sizes, home=dict(forward.home), views=dict(forward.views))
    producers = {s.result.name: s for s in program.statements if not relays(s)}
    _kept(program, forward, state, keep_gathered=keep_gathered)

    def recompute(tensor: Tensor) -> None:
        infer_statement(state, producers[tensor.name], reporter)

    state.recompute = recompute
    wanted = differentiable(program)
    live = _live(program, outputs)
    taken = {leaf.array.name for leaf in program.leaves} | set(producers)
    taken |= {f"d{name}" for name in taken}
    work = _Backward(state, program, taken, wanted)
    work.count(program.statements, live)
    cotangents: list[Array] = []
    for output in outputs:
        if output.name not in wanted:
            continue
        cotangent = Array(gradient_of(output.tensor), output.layout.reduced())
        cotangents.append(cotangent)
        state.give(cotangent)
    for statement in reversed(program.statements):
        if relays(statement) or statement.constant or statement.result.name not in live:
            continue
        if statement.result.name in wanted:
            work.statement(statement)
    gradients: list[Gradient] = []
    for leaf in program.leaves:
        gradient = gradient_of(leaf.array.tensor)
        if leaf.differentiable and gradient.name in state.home:
            own = leaf.array.layout.reduced()
            reason = Reason("gradient", f"the gradient of {leaf.array.name} lives as it does")
            made = state.obtain(gradient, own, reason, leaf.span)
            gradients.append(Gradient(leaf.array, made))
    alternatives = (*state.alternatives, *_regathered(forward, state))
    return BackwardResult(tuple(state.steps), tuple(cotangents), tuple(gradients), alternatives)


def _live(program: Program, outputs: Iterable[Array]) -> frozenset[str]:
    """Give the names of the values that reach an output."""
    live = {output.name for output in outputs}
    for statement in reversed(program.statements):
        if statement.result.name in live:
            live.update(use.tensor.name for use in statement.operands)
    return frozenset(live)


def _kept(program: Program, forward: Lowering, state: Lowering, *, keep_gathered: bool) -> None:
    """Put at hand what the forward pass keeps: leaves, and values as `save` says.

    Copies of activations in other layouts are kept, copies of parameters are made again, unless the
    parameter lives unreduced: a sum taken twice need not have the same bits. Partial sums that are
    only on the way to a value are not kept.
    """
    leaves = {leaf.array.name for leaf in program.leaves}
    weights = {leaf.array.name for leaf in program.leaves if leaf.kind == "param"}
    read = {array for step in forward.steps if step.is_compute for array in step.inputs}
    for name, arrays in forward.at_hand.items():
        saved = program.save.everything or name in program.save.names
        if name in forward.views:
            state.at_hand[name] = []
            continue
        if not saved and name not in leaves:
            continue
        for array in arrays:
            at_home = array.layout == forward.home[name]
            copy = (
                program.save.everything
                and (array in read or not array.layout.unreduced)
                and (name not in weights or keep_gathered or forward.home[name].unreduced)
            )
            if at_home or copy:
                state.at_hand.setdefault(name, []).append(array)
    for arrays in state.at_hand.values():
        arrays.sort(key=lambda array: array.layout != forward.home[array.name])


def _regathered(forward: Lowering, state: Lowering) -> list[Alternative]:
    """List the copies that both passes make, with what keeping them would save and hold."""
    made = {step.output: step for step in forward.steps if isinstance(step.op, Relayout)}
    found: list[Alternative] = []
    for step in state.steps:
        if isinstance(step.op, Relayout) and step.is_collective and step.output in made:
            moved = book_bytes(step.op, step.inputs[0], step.output)
            found.append(
                Alternative(
                    f"{step.output} in the backward pass",
                    "keep it from the forward pass (--keep-gathered weights)",
                    f"{step.output.local_bytes} more bytes fit: it saves moving {moved}",
                )
            )
    return found
