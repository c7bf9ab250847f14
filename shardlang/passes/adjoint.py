"""The backward program: the cotangent of every value as operations on whole tensors.

Precondition: a resolved ordinary program. Effect: lines in an order in which they can run, from the
outputs' cotangents down to the leaves' gradients. Nothing here knows of layouts; `backward` lowers
the lines as any others.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Literal

from shardlang.ir.ops import Coefficient, Compute, Linear, Map, Reduce
from shardlang.ir.program import Block, Program, Statement
from shardlang.ir.types import Tensor
from shardlang.passes.layers import bodies, members
from shardlang.rules.transpose import Contribution, Site, Term, transpose
from shardlang.source import Span

Part = Literal["part", "contribution", "gradient"]


@dataclass(frozen=True, slots=True)
class Line:
    """One operation of the backward program.

    `kind` says what the result is: a `part` of something, a `contribution` to the gradient of the
    value `of` (one of several, to be added), or the whole `gradient` of it. `block` repeats it.
    """

    op: Compute
    operands: tuple[Tensor, ...]
    result: Tensor
    kind: Part
    of: Tensor | None
    span: Span
    block: Block | None = None

    @property
    def adds(self) -> bool:
        """Whether it adds the contributions to a gradient."""
        return self.kind == "gradient" and isinstance(self.op, Linear) and len(self.operands) > 1


def gradient_of(tensor: Tensor) -> Tensor:
    """Give the tensor of a value's gradient: the same dims and dtype under the name `dName`."""
    return Tensor(f"d{tensor.name}", tensor.dims, tensor.dtype)


def relays(statement: Statement) -> bool:
    """Say whether a statement changes a value's layout and defines nothing."""
    return statement.result == statement.operands[0].tensor and len(statement.operands) == 1


def differentiable(program: Program) -> frozenset[str]:
    """Give the names of the values that a gradient flows to: floats that depend on a float leaf."""
    names = {leaf.array.name for leaf in program.leaves if leaf.differentiable}
    carries = [carry for block in program.blocks for carry in block.carries]
    while True:
        for statement in program.statements:
            if statement.constant or statement.result.dtype.kind != "float":
                continue
            if any(use.tensor.name in names for use in statement.operands):
                names.add(statement.result.name)
        again = {carry.entry.name for carry in carries if carry.exit.name in names} - names
        if not again:
            return frozenset(names)
        names |= again


def reaching(program: Program, outputs: Iterable[Tensor]) -> frozenset[str]:
    """Give the names of the values that outputs are made from, the outputs included."""
    live = {output.name for output in outputs}
    carries = [carry for block in program.blocks for carry in block.carries]
    while True:
        for statement in reversed(program.statements):
            if statement.result.name in live:
                live.update(use.tensor.name for use in statement.operands)
        again = {carry.exit.name for carry in carries if carry.entry.name in live} - live
        if not again:
            return frozenset(live)
        live |= again


def adjoint(program: Program, outputs: Iterable[Tensor]) -> tuple[Line, ...]:
    """Give the backward program of an ordinary program, for cotangents of its outputs."""
    given = tuple(outputs)
    wanted, live = differentiable(program), reaching(program, given)
    counted = [
        statement
        for statement in program.statements
        if not relays(statement)
        and not statement.constant
        and statement.result.name in live
        and statement.result.name in wanted
    ]
    work = _Adjoint(wanted, {output.name for output in given})
    work.taken = {leaf.array.name for leaf in program.leaves}
    work.taken |= {statement.result.name for statement in program.statements}
    work.taken |= {f"d{name}" for name in work.taken}
    for statement in counted:
        for use in statement.operands:
            if use.tensor.name in wanted:
                work.waiting[use.tensor.name] = work.waiting.get(use.tensor.name, 0) + 1
    for block, statements in bodies(reversed(counted)):
        if block is not None:
            work.enter(block, members(program, block), statements[0].span)
        for statement in statements:
            work.statement(statement)
        if block is not None:
            work.leave(statements[-1].span)
    return tuple(work.lines)


def _zero(like: Tensor, result: Tensor, of: Tensor, span: Span, block: Block | None) -> Line:
    """Make a gradient that is nothing, of a value that reaches no output by any other way."""
    return Line(Linear((Coefficient(Fraction(0)),)), (like,), result, "gradient", of, span, block)


@dataclass
class _Adjoint:
    """The pass at work: contributions wait until a value's last one is there."""

    wanted: frozenset[str]
    known: set[str]
    taken: set[str] = field(default_factory=set[str])
    waiting: dict[str, int] = field(default_factory=dict[str, int])
    contributions: dict[str, list[Tensor]] = field(default_factory=dict[str, list[Tensor]])
    parts: dict[Term, Tensor] = field(default_factory=dict[Term, Tensor])
    lines: list[Line] = field(default_factory=list[Line])
    block: Block | None = None
    inside: frozenset[str] = frozenset()
    after: list[Line] = field(default_factory=list[Line])
    outer: dict[Term, Tensor] = field(default_factory=dict[Term, Tensor])

    def enter(self, block: Block, inside: frozenset[str], span: Span) -> None:
        """Begin with the last line of a block, in which the values `inside` are one a layer."""
        self.block, self.inside = block, inside
        self.outer = dict(self.parts)
        for carry in block.carries:
            if carry.exit.name in self.wanted and carry.exit.name not in self.known:
                gradient = gradient_of(carry.exit)
                self.lines.append(_zero(carry.exit, gradient, carry.exit, span, None))
                self.known.add(carry.exit.name)

    def leave(self, span: Span) -> None:
        """End with the first line of the block; then come the gradients of values outside of it."""
        assert self.block is not None
        for carry in self.block.carries:
            if carry.exit.name not in self.known & self.wanted:
                continue
            if carry.entry.name not in self.known:
                like, gradient = gradient_of(carry.exit), gradient_of(carry.entry)
                self.lines.append(_zero(like, gradient, carry.entry, span, self.block))
                self.known.add(carry.entry.name)
        self.block, self.inside = None, frozenset()
        self.parts = self.outer
        for line in self.after:
            self.lines.append(line)
            assert line.of is not None
            self.known.add(line.of.name)
        self.after = []

    def fresh(self, name: str) -> str:
        """Give a name that nothing has."""
        found, number = name, 2
        while found in self.taken:
            found, number = f"{name}{number}", number + 1
        self.taken.add(found)
        return found

    def statement(self, statement: Statement) -> None:
        """Give each operand its contribution, the last operand first."""
        operands = tuple(use.tensor for use in statement.operands)
        for index in reversed(range(len(operands))):
            if operands[index].name not in self.wanted:
                continue
            found: Contribution = None
            if statement.result.name in self.known:
                site = Site(operands, statement.result, gradient_of(statement.result), index)
                found = transpose(statement.op, site)
            self.contribute(operands[index], found, statement)

    def contribute(self, operand: Tensor, found: Contribution, statement: Statement) -> None:
        """Note a contribution: straight as the gradient where it is the only one."""
        self.waiting[operand.name] -= 1
        earlier = self.contributions.setdefault(operand.name, [])
        last = self.waiting[operand.name] == 0
        span = statement.span
        summed = self.block is not None and operand.name not in self.inside
        if isinstance(found, Term) and last and not earlier and not summed:
            self.write(found, gradient_of(operand), "gradient", operand, span)
            self.known.add(operand.name)
            return
        if isinstance(found, Term):
            name = self.fresh(f"d{operand.name}_{statement.result.name}")
            part = Tensor(name, operand.dims, operand.dtype)
            self.write(found, part, "contribution", operand, span)
            found = part
        if found is not None:
            earlier.append(self.over_layers(found, operand, span) if summed else found)
        if last and earlier:
            op = Linear((Coefficient(),) * len(earlier))
            gradient = gradient_of(operand)
            line = Line(op, tuple(earlier), gradient, "gradient", operand, span)
            if summed:
                self.after.append(line)
                return
            self.lines.append(replace(line, block=self.block))
            self.known.add(operand.name)

    def over_layers(self, part: Tensor, operand: Tensor, span: Span) -> Tensor:
        """Add what each layer gives to the gradient of a value outside of the block."""
        assert self.block is not None
        total = Tensor(self.fresh(f"d{operand.name}_{self.block.dim}"), part.dims, part.dtype)
        op = Reduce("sum", (self.block.dim,))
        self.lines.append(Line(op, (part,), total, "contribution", operand, span, self.block))
        return total

    def write(self, term: Term, result: Tensor, kind: Part, of: Tensor | None, span: Span) -> None:
        """Append a term's line, after those of the terms inside it."""
        operands = tuple(self.part(inner, result, span) for inner in term.inputs)
        self.lines.append(Line(term.op, operands, result, kind, of, span, self.block))

    def part(self, inner: Tensor | Term, outer: Tensor, span: Span) -> Tensor:
        """Give an operand of a term, written first if it is a term itself."""
        if isinstance(inner, Tensor):
            return inner
        known = self.parts.get(inner)
        if known is None:
            known = Tensor(self.fresh(_part_name(inner, outer)), inner.dims, outer.dtype)
            self.write(inner, known, "part", None, span)
            self.parts[inner] = known
        return known


def _part_name(inner: Term, outer: Tensor) -> str:
    """Name a part: a function's value after its operand, else after the gradient it is part of."""
    operand = inner.inputs[0]
    if isinstance(inner.op, Map) and isinstance(operand, Tensor):
        return f"{operand.name}_{inner.op.function}"
    base = outer.name if outer.name.endswith("_part") else f"{outer.name}_part"
    return base.rstrip("0123456789")
