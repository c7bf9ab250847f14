"""The plan: the straight list of steps that everything else reads.

The printed program, the costs, the memory figures and the emitted code come from these steps, so
they can't disagree.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal

from shardlang.ir.ops import (
    AllGather,
    Collective,
    Compute,
    Op,
    Permute,
    Reduce,
    Ring,
    RingAttention,
    Update,
)
from shardlang.ir.program import Block, Pass, Program
from shardlang.ir.size import Monomial
from shardlang.ir.types import Array, Dim, Layout, Tensor
from shardlang.source import Span


@dataclass(frozen=True, slots=True)
class Step:
    """One step: local compute, a collective, or a local change of layout.

    For a relayout `output` is the same tensor as the input, or a copy under another name. `rule`
    is the name of the row that asked for it and `reason` a sentence in the notation's words.
    `critical` is set on collectives alone. `span` is the place in the text that it serves. A step with
    a `loop` is one of a block's body: it is done once in each layer.
    """

    op: Op
    inputs: tuple[Array, ...]
    output: Array
    rule: str = ""
    reason: str = ""
    critical: bool = False
    span: Span | None = None
    loop: Block | None = None

    @property
    def times(self) -> Monomial:
        """How often a device does it: once, or once in each layer of its block that it has."""
        if self.loop is None:
            return Monomial()
        if self.sends and self.loop.pipeline is not None:
            return Monomial() * self.loop.pipeline.chunks
        return self.loop.layers

    @property
    def sends(self) -> bool:
        """Whether it sends what a stage hands on to the next one: once in each chunk of a stage."""
        return (
            self.loop is not None
            and self.loop.pipeline is not None
            and isinstance(self.op, Permute)
            and self.output in self.inputs
        )

    @property
    def accumulates(self) -> bool:
        """Whether it adds its operand up over the layers of its block; the sum is there after it."""
        return (
            self.loop is not None
            and isinstance(self.op, Reduce)
            and self.op.dims == (self.loop.dim,)
        )

    @property
    def outputs(self) -> tuple[Array, ...]:
        """All that it makes: its output, and what a ring keeps."""
        if isinstance(self.op, Ring) and self.op.keep:
            return self.output, self.moving.output
        if isinstance(self.op, RingAttention):
            return self.output, *self.op.kept
        return (self.output,)

    @property
    def moving(self) -> Step:
        """The collective that it is; of a ring the one that it does in pieces, of attention that of k."""
        if isinstance(self.op, RingAttention):
            k = self.inputs[self.op.query + 1]
            whole = k.with_layout(_without(k, self.op))
            op = AllGather(self.op.axes, self.op.dim)
            return replace(self, op=op, inputs=(k,), output=whole)
        if not isinstance(self.op, Ring):
            return self
        move = self.op.move
        if self.op.gathers:
            source = self.inputs[self.op.operand]
            made = source.with_layout(_without(source, self.op))
            return replace(self, op=move, inputs=(source,), output=made)
        return replace(self, op=move, inputs=(self.computing.output,))

    @property
    def computing(self) -> Step:
        """The computation that it is; of a ring the product that it does in pieces."""
        if not isinstance(self.op, Ring):
            return self
        op, inputs, output = self.op, list(self.inputs), self.output
        if op.gathers:
            inputs[op.operand] = self.moving.output
        else:
            left = _without(output, op)
            output = output.with_layout(Layout(left.sharding, left.unreduced.union(op.axes)))
        return replace(self, op=op.product, inputs=tuple(inputs), output=output, critical=False)

    @property
    def is_collective(self) -> bool:
        """Whether it moves data between devices."""
        return isinstance(self.op, Collective)

    @property
    def is_compute(self) -> bool:
        """Whether it computes a new value."""
        return isinstance(self.op, Compute)


def _without(array: Array, ring: Ring | RingAttention) -> Layout:
    """Give an array's layout with the innermost axes of a dim, which a ring goes over, taken off."""
    sharding = list(array.layout.sharding)
    place = array.tensor.dims.index(ring.dim)
    own = sharding[place]
    sharding[place] = own[: len(own) - len(ring.axes)]
    return replace(array.layout, sharding=tuple(sharding))


@dataclass(frozen=True, slots=True)
class Alternative:
    """A choice that was open: where, what else could be done, and when that is cheaper."""

    at: str
    instead: str
    cheaper_when: str


@dataclass(frozen=True, slots=True)
class Gradient:
    """A leaf's gradient: the leaf, and the array that the backward pass ends with for it."""

    leaf: Array
    gradient: Array


Objective = Literal["bytes", "time", "serial"]
"""Bytes that a device moves, or the time of its FLOPs and collectives: T_overlapped, or T_serial."""


@dataclass(frozen=True, slots=True)
class Holding:
    """A parameter whose gathered copies are kept for the backward pass, in bytes of a device.

    `held` is what the copies take, `moved` what making them again would move.
    """

    parameter: str
    held: Fraction
    moved: Fraction


@dataclass(frozen=True, slots=True)
class Fit:
    """A limit on memory and the peak of the plan, in bytes of a device."""

    limit: Fraction
    peak: Fraction


@dataclass(frozen=True, slots=True)
class Proof:
    """What a search for the best plan knows: the plan's cost, and the least that any plan costs.

    Both are in bytes moved by a device, or in seconds, by the price list named. Plans count that start
    and end as this one does, whatever memory they take. `holdings` are the parameters whose copies are
    kept; with a limit on memory `fit` says how the plan keeps it.
    """

    objective: Objective
    prices: str
    cost: Fraction
    bound: Fraction
    holdings: tuple[Holding, ...] = ()
    fit: Fit | None = None

    @property
    def optimal(self) -> bool:
        """Whether it is proven that no plan costs less."""
        return self.cost == self.bound

    @property
    def gap(self) -> Fraction:
        """How far above the least the plan may be, as a share of the bound; 0 where it is optimal."""
        if self.optimal:
            return Fraction(0)
        return (self.cost - self.bound) / self.bound if self.bound else Fraction(1)


@dataclass(frozen=True)
class Plan:
    """A lowered program.

    `outputs` are the values that nothing else reads, each in the layout it ends in. `cotangents`
    are what the backward pass is given, one an output. `gradients` are in the order of the leaves.
    `update` is what comes once behind all microbatches: the gradients are reduced, and the parameters
    made anew; it is empty where no declaration asks for it, and gradients then end as their leaves live.
    The program's `save` line names the parameters of which the backward pass reads copies that the
    forward pass made. A plan that was searched for has a `proof`.
    """

    program: Program
    strategy: str
    forward: tuple[Step, ...]
    backward: tuple[Step, ...]
    outputs: tuple[Array, ...]
    cotangents: tuple[Array, ...] = ()
    gradients: tuple[Gradient, ...] = ()
    alternatives: tuple[Alternative, ...] = ()
    warnings: tuple[str, ...] = ()
    proof: Proof | None = None
    update: tuple[Step, ...] = ()

    def steps(self) -> Iterator[tuple[Pass, Step]]:
        """Go through all passes in order."""
        for step in self.forward:
            yield "forward", step
        for step in self.backward:
            yield "backward", step
        for step in self.update:
            yield "update", step

    def repeats(self, section: Pass, step: Step) -> tuple[Dim, ...]:
        """Give the dims that count how often a step is done: the microbatches, and its block's layers.

        What is sent between stages is sent once in all of a stage's layers.
        """
        outer = None if section == "update" else self.program.microbatches
        inner = None if step.loop is None or step.sends else step.loop.dim
        return tuple(dim for dim in (outer, inner) if dim is not None)

    def times(self, section: Pass, step: Step) -> Monomial:
        """Give how often a device does a step: with its layers of each microbatch."""
        if section == "update" or self.program.microbatches is None:
            return step.times
        return step.times * Monomial.of(self.program.microbatches.name)

    @property
    def accumulators(self) -> Mapping[Array, Array]:
        """The arrays in which gradients are added over microbatches, by the gradients of one of them."""
        dims = (self.program.microbatches,)
        steps = (s for s in self.update if isinstance(s.op, Reduce) and s.op.dims == dims)
        return {step.inputs[0]: step.output for step in steps}

    @property
    def renewed(self) -> Mapping[Array, Array]:
        """The parameters as they live, by the arrays that hold their new values in the end."""
        made = {
            s.output.tensor: s.inputs[0].tensor for s in self.update if isinstance(s.op, Update)
        }
        leaves = {leaf.array.tensor: leaf.array for leaf in self.program.leaves}
        found = {new: leaves[old] for new, old in made.items() if old in leaves}
        return {Array(new, leaf.layout): leaf for new, leaf in found.items()}

    @property
    def states(self) -> Mapping[Tensor, Array]:
        """The parts of the parameters that devices update: the optimizer's state lies as they do.

        A parameter that is not listed is updated as it lies.
        """
        steps = (step for step in self.update if isinstance(step.op, Update))
        return {step.inputs[0].tensor: step.inputs[0] for step in steps}

    def __str__(self) -> str:
        """Print the plan as a program in the notation, as `shardlang lower` does."""
        from shardlang.ir.printer import print_plan  # noqa: PLC0415  (it reads plans)

        return print_plan(self)

    def __repr__(self) -> str:
        """Say what it is, in a line: the steps themselves would fill pages."""
        count = f"{len(self.forward)} forward, {len(self.backward)} backward steps"
        if self.update:
            count = count.replace(" steps", f", {len(self.update)} update steps")
        return f"<Plan by {self.strategy}: {count}>"

    @property
    def has_rings(self) -> bool:
        """Whether some collective is done in pieces, beside a product."""
        return any(isinstance(step.op, Ring | RingAttention) for _, step in self.steps())

    @property
    def overlaps(self) -> bool:
        """Whether it says what runs beside what: by rings, or by what is prefetched."""
        return self.has_rings or bool(self.program.prefetch)

    @property
    def parameters(self) -> frozenset[Tensor]:
        """The leaves that count as weights."""
        return frozenset(x.array.tensor for x in self.program.leaves if x.kind == "param")
