"""Memory of one device in bytes, read from the plan's steps.

- parameters: the weights, as they lie;
- gradients: of the weights, in the layout that the backward pass ends with; with microbatches, what they
  are added in;
- optimizer: its state for each weight (table `OPTIMIZERS`), split as the weight is, or as the update has it;
- caches: state of serving, as it lies (`cache` lines);
- activations: what the backward pass reads of the forward pass, each value and layout once, weights
  where they lie left out: inputs, intermediates, and gathered copies that are kept. With no
  backward pass: the most that is alive at once, gathered copies left out;
- gathered_peak: the most that gathered copies take at once, those counted as activations left out,
  each alive from its AllGather to its last use;
- a ring holds, besides its operands and its result, one shard on its way from each side, which count as
  gathered copies (of a ReduceScatter, as activations);
- ring attention holds what goes round twice, as it is read and as it arrives, which counts as gathered
  copies; and beside them a block of scores in f32;
- total: the sum, which holds each byte once. No allocator keeps all of them at their largest at the
  same moment, so that it is a bound from above on what these need.

What is alive at once over the whole plan, temporaries included, is `shardlang.cost.liveness`.

Of a pipeline's layers a device holds those of one stage, and the activations of the microbatches in flight: as
many as the first stage has in the layers and before them, and as the last one has behind them.

What each layer of a block has counts once a layer; gathered copies are alive in one layer at a time.

A value under another name (a copy in the same layout, or new names for dims) takes no memory of its
own: it is the value that it stands for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

from shardlang.cost.formula import Formula, Powers
from shardlang.cost.in_flight import InFlight
from shardlang.cost.local import local_bytes, local_elements
from shardlang.ir.ops import (
    AllGather,
    Coefficient,
    Einsum,
    Linear,
    Relayout,
    Rename,
    Reshape,
    Ring,
    RingAttention,
)
from shardlang.ir.plan import Plan, Step
from shardlang.ir.size import Monomial
from shardlang.ir.types import Array, Layout
from shardlang.passes.live import runs
from shardlang.passes.overlap import ahead
from shardlang.passes.unroll import unroll_plan, Unrolled


@dataclass(frozen=True, slots=True)
class MemoryFormulas:
    """Bytes a device, by what they hold."""

    parameters: Formula
    gradients: Formula
    optimizer: Formula
    caches: Formula
    activations: Formula
    gathered_peak: Formula

    @property
    def parts(self) -> dict[str, Formula]:
        """Each part by its name, and the total."""
        own = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {**own, "total": self.total}

    @property
    def total(self) -> Formula:
        """The sum of all."""
        lasting = (self.parameters, self.gradients, self.optimizer, self.caches)
        return Formula.sum((*lasting, self.activations, self.gathered_peak))


def _per_element(width: int) -> Callable[[Array], Formula]:
    def state(weight: Array) -> Formula:
        return Formula.of(local_elements(weight) * width) if width else Formula()

    return state


def _with_master(weight: Array) -> Formula:
    """Give two moments in f32, and a copy in f32 of what is narrower itself."""
    width = 8 if weight.tensor.dtype.bits >= 32 else 12
    return Formula.of(local_elements(weight) * width)


def _factored(weight: Array) -> Formula:
    """Give adafactor's rows and columns in f32: the second moment without one of two last dims."""
    whole = local_elements(weight) * 4
    if len(weight.tensor.dims) < 2:
        return Formula.of(whole)
    without: list[Monomial] = []
    for dim in weight.tensor.dims[-2:]:
        local = Monomial.of(dim.name)
        for axis in weight.axes(dim):
            local = local / Monomial.of(axis.name)
        without.append(whole / local)
    return Formula.of(*without)


OPTIMIZERS: Mapping[str, Callable[[Array], Formula]] = {
    "adam": _per_element(8),
    "adamw": _with_master,
    "sgd": _per_element(0),
    "momentum": _per_element(4),
    "lion": _per_element(4),
    "muon": _per_element(4),
    "adafactor": _factored,
    "none": _per_element(0),
}
"""State beside the weight: adam two f32 moments (8 bytes an element), adamw those and an f32 master
copy of a narrower weight (12), momentum, lion and muon one f32 moment (4), adafactor f32 rows and columns, sgd nothing."""


class Storage:
    """Which array a value is stored as: itself, or the one that it is another name of."""

    def __init__(self, plan: Plan) -> None:
        self.same: dict[Array, Array] = {}
        for _, step in plan.steps():
            if _is_another_name(step):
                self.same[step.output] = self.root(step.inputs[0])

    def root(self, array: Array) -> Array:
        """Give the array that holds a value."""
        return self.same.get(array, array)


def _is_another_name(step: Step) -> bool:
    match step.op:
        case Rename() | Reshape():
            return True
        case op if isinstance(op, Relayout):
            return not op.axes
        case Linear((Coefficient(value, ()),), constant):
            source = step.inputs[0]
            alike = (
                source.layout == step.output.layout
                and source.tensor.dims == step.output.tensor.dims
            )
            same_type = source.tensor.dtype == step.output.tensor.dtype
            return value == 1 and not constant and alike and same_type
        case _:
            return False


@dataclass(frozen=True)
class Layers:
    """A plan with no blocks that takes the memory of one with blocks: with its first and last layers.

    A block is written out as `SHOWN` layers and one that stands for all the others between them, whatever their
    number; `counts` says of the values of that one how many there are. Blocks of few layers can be written out
    as they are. Of a pipeline the layers are those of one stage; `flight` says how many microbatches
    are in flight, and `behind` names the values of lines behind the layers. `blocks` has the number of the
    block of each value that is one a layer, by its name.
    """

    plan: Plan
    counts: Mapping[str, Formula]
    flight: InFlight | None = None
    behind: frozenset[str] = frozenset()
    blocks: Mapping[str, int] = field(default_factory=dict[str, int])

    @staticmethod
    def of(plan: Plan, few: Mapping[int, int] | None = None) -> Layers:
        """Write the blocks of a plan out: those in `few` (`few_layers`, if it is None) with so many layers."""
        blocks = {block.number: block for block in plan.program.blocks}
        if not blocks:
            return Layers(_buffered(plan), {})
        few = few_layers(plan, plan.program.sizes.known) if few is None else few
        sizes = {number: few.get(number, SHOWN + 1) for number in blocks}
        long = set(blocks).difference(few)
        found = unroll_plan(plan, sizes)
        counts = {
            name: Formula.of(blocks[number].layers, Monomial(Fraction(-SHOWN)))
            for name, (number, layer) in found.layers.items()
            if number in long and layer == SHOWN // 2
        }
        owners = {name: number for name, (number, _) in found.layers.items()}
        flight = InFlight.of(plan)
        return Layers(_buffered(found.plan), counts, flight, _behind(plan, found), owners)

    def bytes(self, array: Array) -> Formula:
        """Give the bytes of all that an array stands for."""
        size = local_bytes(array)
        count = self.counts.get(array.name)
        return Formula.of(size) if count is None else count * size

    def add(self, arrays: Iterable[Array]) -> Formula:
        """Add up the bytes of all that arrays stand for."""
        return Formula.sum(self.bytes(array) for array in arrays)

    def waiting(self, arrays: Iterable[Array]) -> Formula:
        """Add up the bytes of values of the microbatches in flight but one."""
        mine = list(arrays)
        one = (term * Fraction(-1) for term in self.add(mine).terms)
        return self.in_flight(mine) + Formula.of(*one)

    def in_flight(self, arrays: Iterable[Array]) -> Formula:
        """Add up the bytes of values of one microbatch, as many times as a device holds them."""
        if self.flight is None:
            return self.add(arrays)
        mine = list(arrays)
        behind = self.add(array for array in mine if array.name in self.behind)
        others = self.add(array for array in mine if array.name not in self.behind)
        return _product(others, self.flight.inside) + _product(behind, self.flight.behind)


def _buffered(plan: Plan) -> Plan:
    """Write rings out with what they hold beside their operands: one shard on its way from each side."""
    if not plan.has_rings:
        return plan
    forward, backward = (
        tuple(part for step in steps for part in _held(step))
        for steps in (plan.forward, plan.backward)
    )
    return replace(plan, forward=forward, backward=backward)


def _held(step: Step) -> Iterator[Step]:
    if isinstance(step.op, RingAttention):
        yield from _rounds(step, step.op)
        return
    if not isinstance(step.op, Ring):
        yield step
        return
    move = step.moving
    shard = move.inputs[0] if step.op.gathers else move.output
    sides = tuple(
        Array(replace(shard.tensor, name=f"{shard.name} from {side}"), shard.layout)
        for side in ("before", "behind")
    )
    for side in sides:
        yield replace(move, op=step.op.move, inputs=step.inputs, output=side)
    if step.op.keep:
        yield move
    yield replace(step, op=step.op.product, inputs=(*step.inputs, *sides))


def _rounds(step: Step, op: RingAttention) -> Iterator[Step]:
    """Write ring attention out: what goes round twice, as it is read and as it arrives; and a block of scores.

    Scores and their exponentials (backward their gradients too) are in f32, and so is what is added up.
    """
    k, v = step.inputs[op.query + 1 : op.query + 3]
    wide = (step.inputs[5] if op.back else op.kept[0]).tensor

    def temporary(name: str, array: Array) -> Array:
        return Array(replace(array.tensor, name=f"{step.output.name} {name}"), array.layout)

    moved = [k, v, *(op.kept if op.back else ())]
    around = tuple(temporary(f"{x.name} {i}", x) for x in moved for i in ("here", "next"))
    rows = (step.inputs[5] if op.back else op.kept[0]).layout
    block = Array(
        replace(wide, dims=(*wide.dims, op.dim)),
        Layout((*rows.sharding, k.axes(op.dim))),
    )
    sums = Array(replace(step.output.tensor, dtype=wide.dtype), step.output.layout)
    parts = ("scores", "p", *(("dp", "ds") if op.back else ()))
    local = (*(temporary(part, block) for part in parts), temporary("sum", sums))
    gather = AllGather(op.axes, op.dim)
    for array in around:
        yield replace(step, op=gather, inputs=step.inputs, output=array)
    for array in (*local, *op.kept):
        yield replace(step, op=Einsum(op.summed), output=array)
    yield replace(step, op=Einsum(op.summed), inputs=(*step.inputs, *around, *local))


def few_layers(
    plan: Plan, known: Mapping[str, Fraction | int] | None, given: Mapping[int, int] | None = None
) -> dict[int, int]:
    """Count the layers that a device goes through in each block that has fewer than `SHOWN`, by its number.

    They are all of a block's or those of a stage, at the sizes that are `known`, or as many as `given`. A block
    whose layers gather ahead is never one of few: its last layer gathers once more, for nobody.
    """
    bodies = (run for steps in (plan.forward, plan.backward) for run in runs(steps))
    early = {
        block.number for block, run in bodies if block is not None and ahead(plan.program, run)
    }
    sizes = {name: Fraction(size) for name, size in (known or {}).items()}
    found: dict[int, int] = {}
    for block in plan.program.blocks:
        count = (given or {}).get(block.number) or Formula.of(block.layers).value(sizes)
        if count is not None and count in range(1, SHOWN) and block.number not in early:
            found[block.number] = int(count)
    return found


def _behind(plan: Plan, found: Unrolled) -> frozenset[str]:
    """Name the values of a pipeline's program that only lines behind the layers have to do with."""
    staged = {b.number for b in plan.program.blocks if b.pipeline is not None}
    last = max(
        (
            place
            for place, step in enumerate(found.plan.forward)
            if found.layers.get(step.output.name, (-1, 0))[0] in staged
        ),
        default=-1,
    )
    before, after = found.plan.forward[: last + 1], found.plan.forward[last + 1 :]
    known = {array.name for step in before for array in (*step.inputs, step.output)}
    return frozenset(
        array.name for step in after for array in (*step.inputs, step.output)
    ).difference(known)


def _product(left: Formula, right: Formula) -> Formula:
    """Multiply two sums without maxima."""
    return Formula.of(*(one * other for one in left.terms for other in right.terms))


SHOWN = 4
"""How many layers of a block are looked at one by one: the first two and the last two.

What is held while a layer runs changes evenly from one to the next, so that it is largest in one of
these: inputs of layers to come become fewer, outputs of layers that have run more.
"""


def kept_for_backward(plan: Plan, storage: Storage) -> list[Array]:
    """List what the backward pass reads of the forward pass, in the order of first reading.

    Weights and caches, where they lie, are left out: they are there in any case.
    """
    homes = {leaf.array for leaf in plan.program.leaves}
    before = homes.union(step.output for step in plan.forward)
    made = set(plan.cotangents)
    kept: dict[Array, None] = {}
    for step in plan.backward:
        for array in step.inputs:
            if array not in made and array in before:
                kept[storage.root(array)] = None
        made.add(step.output)
    lasting = {leaf.array for leaf in plan.program.leaves if leaf.kind != "input"}
    return [array for array in kept if array not in lasting]


def _last_uses(steps: Sequence[Step], ends: Iterable[Array], storage: Storage) -> list[list[Array]]:
    """Give what is read for the last time at each step; `ends` outlive the pass."""
    last: list[list[Array]] = [[] for _ in steps]
    seen = {storage.root(array) for array in ends}
    for index in range(len(steps) - 1, -1, -1):
        step = steps[index]
        if step.output not in storage.same:
            if step.output not in seen:  # nobody reads it
                last[index].append(step.output)
            seen.discard(step.output)
        for array in map(storage.root, step.inputs):
            if array not in seen:
                seen.add(array)
                last[index].append(array)
    return last


def peak(
    steps: Sequence[Step],
    ends: Iterable[Array],
    start: Iterable[Array],
    counts: Callable[[Step], bool],
    storage: Storage,
    layers: Layers | None = None,
) -> Formula:
    """Give the most that counted results and `start` take at once in one pass over the steps.

    What stands for many layers' values counts for one, but for what is there from the start or to the
    end.
    """
    alive: set[Array] = set()
    held: dict[Powers, Fraction] = {}  # the bytes alive, kept up to date
    start, ends = tuple(start), tuple(ends)
    many = {array.name for array in (*start, *ends)} if layers is not None else set[str]()

    def change(array: Array, sign: int) -> None:
        several = layers is not None and array.name in many
        for size in layers.bytes(array).terms if layers and several else (local_bytes(array),):
            total = held.get(size.powers, Fraction(0)) + sign * size.coefficient
            if total:
                held[size.powers] = total
            else:
                held.pop(size.powers, None)

    def snapshot() -> Formula:
        return Formula.of(*(Monomial(number, powers) for powers, number in held.items()))

    for array in start:
        alive.add(array)
        change(array, 1)
    most = [snapshot()]
    for step, done in zip(steps, _last_uses(steps, ends, storage), strict=True):
        if counts(step) and step.output not in alive and step.output not in storage.same:
            alive.add(step.output)
            change(step.output, 1)
            if layers is None or step.output.name not in layers.counts:
                most.append(snapshot())
        for array in done:
            if array in alive:
                alive.remove(array)
                change(array, -1)
    return Formula.largest(most)


def memory(plan: Plan, layers: Layers | None = None) -> MemoryFormulas:
    """Add up the memory of one device, in the plan's own names.

    `layers` are the plan's, where they are at hand: `shardlang.cost.few_layers` says for how many layers the
    formulas hold.
    """
    weights = [leaf for leaf in plan.program.leaves if leaf.kind == "param"]
    times = {leaf.array.tensor: leaf.held for leaf in weights}
    added, states = plan.accumulators, plan.states
    # A parameter that the lines read without a gradient stays as it is; one that no line reads stands for
    # the rest of a model (`param Rest: [N_X]`), which is trained unless it is frozen.
    still = {array.tensor for step in plan.forward for array in step.inputs}
    still -= {g.leaf.tensor for g in plan.gradients}
    still |= {leaf.array.tensor for leaf in weights if leaf.frozen}
    own = [g.gradient for g in plan.gradients if g.leaf.tensor in times]
    gradients = [added.get(gradient, gradient) for gradient in own]
    copies = [times[g.leaf.tensor] for g in plan.gradients if g.leaf.tensor in times]
    state = OPTIMIZERS.get(plan.program.optimizer or "none") if plan.backward else None
    activations, gathered = _working(layers or Layers.of(plan))
    return MemoryFormulas(
        parameters=Formula.of(*(local_bytes(leaf.array) * leaf.held for leaf in weights)),
        gradients=Formula.of(*(local_bytes(a) * n for a, n in zip(gradients, copies, strict=True))),
        optimizer=Formula.sum(
            state(states.get(leaf.array.tensor, leaf.array)) * leaf.held
            for leaf in weights
            if leaf.array.tensor not in still
        )
        if state
        else Formula(),
        caches=Formula.of(
            *(local_bytes(x.array) * x.held for x in plan.program.leaves if x.kind == "cache")
        ),
        activations=activations,
        gathered_peak=gathered,
    )


def _working(layers: Layers) -> tuple[Formula, Formula]:
    """Give the bytes of activations, and the peak of gathered copies."""
    plan, storage = layers.plan, Storage(layers.plan)
    kept = kept_for_backward(plan, storage)
    held = set(kept)

    def gathered(step: Step) -> bool:
        return isinstance(step.op, AllGather) and step.output not in held

    ends = [g.gradient for g in plan.gradients]
    peaks = [
        peak(plan.forward, plan.outputs, (), gathered, storage, layers),
        peak(plan.backward, ends, (), gathered, storage, layers),
    ]
    if plan.backward:
        return layers.in_flight(kept), Formula.largest(peaks)
    parameters = plan.parameters
    inputs = [leaf.array for leaf in plan.program.leaves if leaf.kind == "input"]

    def value(step: Step) -> bool:
        made = isinstance(step.op, AllGather)
        return not made and step.output.tensor not in parameters

    activations = peak(plan.forward, plan.outputs, inputs, value, storage, layers)
    return activations, Formula.largest(peaks)
