"""What flows through a plan: which values a block is handed, and what the passes hand over.

Each block of a pass becomes a scan over a function of one layer. Here is found what that function
reads: what layers hand on, values of which each layer has its own (these are stacked along a leading
dim), and values from outside; and what it gives. Raises SH604 where a plan reads what nothing makes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from shardlang.backends.jax.errors import failure, PlanDefect
from shardlang.ir.plan import Pass, Plan, Step
from shardlang.ir.program import Block
from shardlang.ir.types import Array, Dim, Layout, Tensor
from shardlang.passes.layers import left_inside, stack
from shardlang.passes.live import runs
from shardlang.passes.overlap import ahead


@dataclass(frozen=True, slots=True)
class Value:
    """An array of the lines outside of blocks, or one a layer: then outside there is a stack of all.

    `loop` is the dim of the stack, `block` the number of the block that the array is of; a leaf that
    is read by no block has a loop alone.
    """

    array: Array
    loop: Dim | None = None
    block: int | None = None


@dataclass(frozen=True, slots=True)
class Straight:
    """Steps outside of blocks; `originals` are the same steps as the plan has them."""

    steps: tuple[Step, ...]
    originals: tuple[Step, ...]

    @property
    def reads(self) -> frozenset[Array]:
        """What the steps read."""
        return frozenset(array for step in self.steps for array in step.inputs)


@dataclass(frozen=True, slots=True)
class Scan:
    """The layers of a block in one pass: they are gone through from the last one where `back`.

    A layer reads arrays from `outside`, its part of the `stacked` ones, and what the layer before
    hands on. It gives its part of the `given` stacks, and adds to the `sums`. Its `ahead` steps
    it does for the next layer, from that one's part of the `sources`.
    """

    block: Block
    back: bool
    steps: tuple[Step, ...]
    originals: tuple[Step, ...]
    outside: tuple[Array, ...]
    stacked: tuple[Value, ...]
    sums: tuple[Array, ...]
    given: tuple[Value, ...] = ()
    ahead: tuple[Step, ...] = ()
    sources: tuple[Value, ...] = ()

    @property
    def body(self) -> tuple[tuple[Step, Step], ...]:
        """The steps that a layer does for itself, each with the same step as it is printed."""
        pairs = zip(self.steps, self.originals, strict=True)
        return tuple(pair for pair in pairs if pair[0] not in self.ahead)

    @property
    def early(self) -> tuple[tuple[Step, Step], ...]:
        """The steps that a layer does for the next one, each with the same step as it is printed."""
        pairs = zip(self.steps, self.originals, strict=True)
        return tuple(pair for pair in pairs if pair[0] in self.ahead)

    @property
    def ready(self) -> tuple[Array, ...]:
        """What the steps ahead make that the layer's own steps read, or that it gives."""
        read = {array for step, _ in self.body for array in step.inputs}
        read.update(value.array for value in self.given)
        return tuple(step.output for step in self.ahead if step.output in read)

    @property
    def entries(self) -> tuple[Array, ...]:
        """What a layer is handed."""
        return tuple(_laid(c.entry, c.layout) for c in self.block.carries)

    @property
    def exits(self) -> tuple[Array, ...]:
        """What it hands on."""
        return tuple(_laid(c.exit, c.layout) for c in self.block.carries)

    @property
    def reads(self) -> frozenset[Array]:
        """What is read outside of the layers: for all of them, or to be handed to the first."""
        return frozenset((*self.outside, *self.entries))

    @property
    def function(self) -> str:
        """The name of the function of one layer."""
        return f"_layer_{self._number}"

    @property
    def gathering(self) -> str:
        """The name of the function that does the steps ahead."""
        return f"_ahead_{self._number}"

    @property
    def _number(self) -> str:
        return f"{self.block.number + 1}{'_backward' if self.back else ''}"


Run = Straight | Scan


@dataclass(frozen=True, slots=True)
class Flow:
    """Both passes as runs of steps, with what they are given, give, and hand over.

    `leaves` are those that the program is given, in the plan's order, `indices` the built-in ones.
    `read` are the leaves that the backward pass reads, `saved` values of the forward pass that it reads.
    `gradients` are by the names of their leaves.
    """

    forward: tuple[Run, ...]
    backward: tuple[Run, ...]
    leaves: tuple[Value, ...]
    indices: tuple[Array, ...]
    outputs: tuple[Value, ...]
    cotangents: tuple[Value, ...]
    saved: tuple[Value, ...]
    read: frozenset[Array]
    gradients: dict[str, Value]

    @property
    def scans(self) -> tuple[Scan, ...]:
        """The blocks of both passes."""
        return tuple(run for run in (*self.forward, *self.backward) if isinstance(run, Scan))


def trace(plan: Plan, original: Plan) -> Flow:
    """Follow the values of a plan; `original` is the same plan as it is printed."""
    work = _Tracer(plan)
    forward = work.passed("forward", plan.forward, original.forward)
    outputs = tuple(work.ended(array) for array in plan.outputs)
    cotangents = tuple(
        replace(work.inside.get(array.name[1:], Value(array)), array=array)
        for array in plan.cotangents
    )
    work.turn(cotangents)
    backward = work.passed("backward", plan.backward, original.backward)
    gradients = {
        gradient.leaf.name: work.gradient(gradient.leaf, gradient.gradient)
        for gradient in plan.gradients
    }
    leaves = tuple(Value(leaf.array, leaf.loop) for leaf in plan.program.given)
    indices = tuple(leaf.array for leaf in plan.program.leaves if leaf.kind == "index")
    saved = tuple(value for value in work.read if value not in work.leaves)
    kept = (*(value for value in outputs if value.block is not None), *saved)
    return Flow(
        tuple(_giving(run, kept) for run in forward),
        tuple(_giving(run, gradients.values()) for run in backward),
        leaves,
        indices,
        outputs,
        cotangents,
        saved,
        frozenset(value.array for value in work.read if value in work.leaves),
        gradients,
    )


def _laid(tensor: Tensor, layout: Layout | None) -> Array:
    assert layout is not None
    return Array(tensor, layout)


def _giving(run: Run, values: Iterable[Value]) -> Run:
    """Let a scan give the stacks of its values."""
    if isinstance(run, Straight):
        return run
    given = dict.fromkeys(value for value in values if value.block == run.block.number)
    return replace(run, given=tuple(given))


@dataclass
class _Tracer:
    """Goes through the steps in order.

    `now` are the values at hand, `before` those that the backward pass finds from the forward pass,
    `read` those of them that it reads. `own` names the values that each block has one a layer of,
    `inside` gives the outputs of which each layer has one.
    """

    plan: Plan
    leaves: set[Value] = field(default_factory=set[Value])
    now: set[Value] = field(default_factory=set[Value])
    before: set[Value] = field(default_factory=set[Value])
    read: dict[Value, None] = field(default_factory=dict[Value, None])
    own: dict[int, set[str]] = field(default_factory=dict[int, set[str]])
    inside: dict[str, Value] = field(default_factory=dict[str, Value])

    def __post_init__(self) -> None:
        """Put the leaves at hand."""
        program = self.plan.program
        self.leaves.update(Value(leaf.array) for leaf in program.leaves if leaf.loop is None)
        for block in program.blocks:
            stacked = [leaf.array for leaf in stack(program, block)]
            self.leaves.update(Value(array, block.dim, block.number) for array in stacked)
            self.own[block.number] = {array.name for array in stacked}
            for tensor in left_inside(program, (x.tensor for x in self.plan.outputs), block):
                found = next(x for x in self.plan.outputs if x.tensor == tensor)
                self.inside[tensor.name] = Value(found, block.dim, block.number)
                self.own[block.number].add(f"d{tensor.name}")
        self.now = set(self.leaves)

    def turn(self, cotangents: Iterable[Value]) -> None:
        """Begin the backward pass."""
        self.before, self.now = self.now, set(cotangents)

    def find(self, value: Value, where: str, step: Step | None = None) -> None:
        """Note that a value is read, which has to be at hand."""
        if value in self.now:
            return
        if value not in self.before:
            text = f"{where}: {value.array} is read and no earlier step makes it"
            raise failure(self.plan, PlanDefect(text), step.span if step else None)
        self.read[value] = None

    def ended(self, output: Array) -> Value:
        """Give an output where it is."""
        value = self.inside.get(output.name, Value(output))
        self.find(value, "output")
        return value

    def gradient(self, leaf: Array, gradient: Array) -> Value:
        """Give a leaf's gradient: that of a stacked leaf is made in its block."""
        made = (value for value in self.now if value.array == gradient and value.block is not None)
        owner = next((x for x in self.plan.program.leaves if x.array == leaf), None)
        stacked = owner is not None and owner.loop is not None
        value = next(made, Value(gradient)) if stacked else Value(gradient)
        self.find(value, "gradient")
        return value

    def passed(
        self, name: Pass, steps: tuple[Step, ...], originals: tuple[Step, ...]
    ) -> tuple[Run, ...]:
        """Follow one pass, run by run."""
        found: list[Run] = []
        first = 0
        for block, run in runs(steps):
            mine = originals[first : first + len(run)]
            first += len(run)
            if block is not None:
                found.append(self.scan(block, name, run, mine))
                continue
            for step in run:
                for array in step.inputs:
                    self.find(Value(array), name, step)
                self.now.update(map(Value, step.outputs))
            found.append(Straight(tuple(run), mine))
        return tuple(found)

    def scan(self, block: Block, name: Pass, run: list[Step], originals: tuple[Step, ...]) -> Scan:
        """Follow a layer, and put at hand what there is behind the block."""
        early = ahead(self.plan.program, run)
        scan = Scan(block, name == "backward", tuple(run), originals, (), (), (), ahead=early)
        sums = tuple(step.output for step in run if step.accumulates)
        own = self.own[block.number]
        own.update(
            x.name for x in (*scan.entries, *(a for s in run for a in s.outputs if a not in sums))
        )
        for entry in scan.entries:
            self.find(Value(entry), name)
        outside, stacked = dict[Array, None](), dict[Value, None]()
        sources = dict[Value, None]()
        local = set(scan.entries)
        for step in run:
            for array in step.inputs:
                if array in local:
                    continue
                mine = array.name in own
                value = Value(array, block.dim, block.number) if mine else Value(array)
                if mine and value not in self.now | self.before and Value(array) in self.now:
                    # laid out anew inside, under its own name
                    value, mine = Value(array), False
                self.find(value, name, step)
                if step in early:
                    sources[value] = None
                elif mine:
                    stacked[value] = None
                else:
                    outside[array] = None
            if not step.accumulates:
                local.update(step.outputs)
        self.now.update(Value(array, block.dim, block.number) for array in local)
        self.now.update(Value(array) for array in (*scan.exits, *sums))
        return replace(
            scan, outside=tuple(outside), stacked=tuple(stacked), sums=sums, sources=tuple(sources)
        )
