"""A program as a problem of choice: operations with their local ways, joined by values.

An *operation* is done in one of its ways (`ways`). A *value* joins those that make it to those that
read it: it costs the least tree of moves from the layouts in which it is made to all in which it is
had, so that a copy made once serves everybody (a Steiner arborescence). A gradient with several
contributions is a value with several sources: they are brought together, added wherever they meet
(unreduced, if that is best), and moved on. Between every end of an operation and its value stands a
*slot*: a layout that both agree on.

`formulate` writes a program as one, and `measure` says what its parts cost.

Of a *block* there is one problem for all of its layers: what its lines make and read is a value of one
layer, and costs as often as there are layers (`Region`). What it hands on is two values, one of a
layer and one of the lines outside. Where the text says how it is handed on (`Regions.stated`), both begin or
end there; else that is a *choice*: an operation with a way a layout, which is read from what
is before the block and from what a layer makes, and which makes what a layer begins with and what is behind
the block. A value of the lines outside is one value, whoever reads it: its copies are
made once, before the block, and what is added up over the layers is moved once, behind it.

With `Free` arrays the layouts of leaves and outputs are choices as well: where an array lies is an
operation between what is given, what it is read as, and its gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import prod

import numpy as np

from shardlang.cost.flops import counts, flops
from shardlang.ir.ops import (
    Compute,
    Relayout,
)
from shardlang.ir.plan import Pass, Plan, Step
from shardlang.ir.program import Block, Carry, Program
from shardlang.ir.types import Array, Dim, Layout, Mesh, Tensor
from shardlang.passes.adjoint import gradient_of
from shardlang.passes.stages import sends
from shardlang.planner.network import Distances, Flags, Network, Places, Vector
from shardlang.planner.prices import price, price_step, Prices
from shardlang.planner.regions import Region, Regions
from shardlang.planner.reshard import Layouts, layouts
from shardlang.planner.states import Space
from shardlang.planner.ways import Local, ways
from shardlang.source import Span

LARGEST = 12_000
"""The most layouts of a tensor whose moves are written out."""


class UnplannableError(Exception):
    """A program that has something that this search has no model of; the text says what."""


class OutOfTimeError(Exception):
    """Time was over before the problem was written."""


@dataclass(slots=True)
class Slot:
    """A place where an operation's end and a value meet: they agree on a state.

    `end` is the operand's number; the result's is the number of operands. `place` is the number among
    the value's sources, or among its targets.
    """

    op: int
    end: int
    value: int
    source: bool
    place: int


@dataclass(slots=True)
class Operation:
    """One line, or (`op` None) the passing of a value as it is: into a sum, or to the backward pass.

    A collective that the text states has one way. If its result is its operand in another layout, it
    only reads it: that it makes the result is known to the value's graph.

    `states[end]` gives, for each way, the place of that end's state in its value's list.
    """

    op: Compute | Relayout | None
    operands: tuple[Tensor, ...]
    result: Tensor
    section: Pass
    span: Span | None
    ways: list[Local] = field(default_factory=list[Local])
    states: list[Places] = field(default_factory=list[Places])
    cost: Vector = field(default_factory=lambda: np.zeros(0))
    slots: list[int] = field(default_factory=list[int])
    work: dict[int, Fraction] = field(default_factory=dict[int, Fraction])
    """The FLOPs of a device, by the axes that divide the work."""
    price: Fraction | None = None
    """What a stated collective costs."""
    sent: list[Fraction] = field(default_factory=list[Fraction])
    """Of what stages of a pipeline send one another: what that costs, by way."""
    held: Fraction = Fraction(0)
    """Of a choice, and of where a gradient ends: the bytes held for each byte of the first value."""
    region: Region = None
    """The block that repeats it."""
    during: Region = None
    """The block among whose lines it is asked for: it is that block's, or made before it."""
    chooses: bool = False
    """Whether it is a choice of where values lie, each end being one of them."""


@dataclass(frozen=True, slots=True)
class Free:
    """Arrays that may lie anywhere, by name: leaves and outputs, those of a group all alike.

    `held` says what is held for each byte of a group's first array: a weight with its gradient and the
    optimizer's state is more than itself.
    """

    groups: tuple[tuple[str, ...], ...]
    held: tuple[Fraction, ...]

    @property
    def names(self) -> frozenset[str]:
        """All of them."""
        return frozenset(name for group in self.groups for name in group)


@dataclass(frozen=True, slots=True)
class Open:
    """What a choice is to a value: its source or a target, in one pass or in both."""

    choice: int
    source: bool
    section: Pass | None = None


@dataclass(slots=True)
class Value:
    """A tensor between its makers and readers.

    `root` is where it is given, for leaves and cotangents; `terminals` where it has to be had
    whatever reads it. `codes` are its states, `cost` the least cost between any two, and `adding` what
    adding two of them costs in each state.
    """

    tensor: Tensor
    section: Pass
    graph: Layouts
    codes: list[int]
    place: dict[int, int]
    root: int | None = None
    region: Region = None
    times: int = 1
    """How many there are: one a layer, in each microbatch."""
    sources: list[int] = field(default_factory=list[int])
    targets: list[int] = field(default_factory=list[int])
    terminals: list[int] = field(default_factory=list[int])
    once: bool = False
    whole: Flags = field(default_factory=lambda: np.zeros(0, np.bool_))
    adding: Vector = field(default_factory=lambda: np.zeros(0))
    sums: int = field(init=False)
    """How many of its states are no partial maxima."""
    cost: Distances = field(init=False)

    def __post_init__(self) -> None:
        """All states are of sums to begin with."""
        self.sums = len(self.codes)

    def state(self, layout: Layout) -> int:
        """Give the place of a layout."""
        code = self.graph.space.encode(layout)
        self.extend({code})
        return self.place[code]

    def extend(self, codes: Iterable[int]) -> None:
        """Take in states of partial maxima: only where something makes them do they occur."""
        new = sorted(code for code in codes if code not in self.place)
        if not new:
            return
        self.codes = [*self.codes, *new]
        self.place = {code: i for i, code in enumerate(self.codes)}

    @property
    def network(self) -> Network:
        """The moves between its states."""
        space = self.graph.space
        return space.network(self.codes[self.sums :])

    def layout(self, place: int) -> Layout:
        """Give the layout at a place."""
        return self.graph.space.decode(self.codes[place])


@dataclass(frozen=True, slots=True)
class Scale:
    """How costs are written: `digit` costs are one `unit` of the price (bytes or seconds)."""

    unit: Fraction
    digit: int
    exact: bool
    work: Fraction
    count: int


@dataclass
class Problem:
    """The operations, values and slots of a program.

    `alias` gives, for a name, the value that has another name as well, and what turns that into this: a
    Rename, or `COPY`.
    """

    program: Program
    mesh: Mesh
    sizes: dict[str, int]
    prices: Prices
    rate: Fraction | None
    operations: list[Operation] = field(default_factory=list[Operation])
    values: list[Value] = field(default_factory=list[Value])
    slots: list[Slot] = field(default_factory=list[Slot])
    alias: dict[str, tuple[Compute, Tensor]] = field(
        default_factory=dict[str, "tuple[Compute, Tensor]"]
    )
    shown: dict[int, list[Array]] = field(default_factory=dict[int, "list[Array]"])
    """Outputs that are other values' names, by the number of operations that the text has before them."""
    found: dict[tuple[str, str, Region], int] = field(
        default_factory=dict[tuple[str, str, Region], int]
    )
    split: frozenset[str] = frozenset()
    """What is one value in each pass: parameters of which no copy is kept, and what is not saved."""
    sent: Fraction = Fraction(0)
    """What stages of a pipeline send one another in layouts that the text gives: the same in every plan."""
    lean: Fraction = Fraction(0)
    """What a byte costs that an operation reads or makes on a device, in the unit of the prices."""
    homes: dict[tuple[Region, str], Array] = field(default_factory=dict[tuple[Region, str], Array])
    """What is given, and what a block hands to a layer or to the lines behind it."""
    regions: Regions = field(default_factory=Regions)
    open: dict[tuple[Region, str], list[Open]] = field(
        default_factory=dict[tuple[Region, str], "list[Open]"]
    )
    """The values that are ends of choices."""
    made: dict[str, tuple[tuple[Layout, Layout], ...]] = field(
        default_factory=dict[str, "tuple[tuple[Layout, Layout], ...]"]
    )
    """By the value's name, from which layout to which the text states that it is brought."""
    known_ways: dict[object, list[Local]] = field(default_factory=dict[object, list[Local]])
    most: float = 0.0
    """More than any plan costs that is worth having: what is dearer counts as this."""
    scale: Scale = Scale(Fraction(1), 1, exact=True, work=Fraction(1), count=1)
    late: Callable[[], bool] = field(default=lambda: False)
    """Whether time is over."""

    def on_time(self) -> None:
        """Raise `OutOfTimeError` if time is over."""
        if self.late():
            raise OutOfTimeError

    def times(self, section: Pass, region: Region) -> int:
        """Give how often a region's lines of a pass are done in a step: in each layer of each microbatch."""
        many = None if section == "update" else self.program.microbatches
        return self.regions.times(region) * (1 if many is None else self.sizes.get(many.name, 1))

    def original(self, tensor: Tensor) -> Tensor:
        """Give the value that a tensor is, through all its names."""
        while tensor.name in self.alias:
            tensor = self.alias[tensor.name][1]
        return tensor

    def region(self, tensor: Tensor, among: Region) -> Region:
        """Say of which region a value is that the lines of a block read, or those outside."""
        return self.regions.of(self.original(tensor).name, among)

    def key(self, tensor: Tensor, section: Pass, among: Region) -> tuple[str, str, Region]:
        """Give what a value is found by: parameters are one in each pass."""
        name = self.original(tensor).name
        return name, section if name in self.split else "", self.regions.of(name, among)

    def at(self, tensor: Tensor, section: Pass, among: Region) -> int:
        """Give the number of a value in a pass, as the lines of a region mean it.

        It is made when it is first asked for.
        """
        key = self.key(tensor, section, among)
        if key not in self.found:
            self.on_time()
            self.found[key] = len(self.values)
            self.values.append(self._value(self.original(tensor), section, key[2]))
            self._join(self.found[key])
        return self.found[key]

    def once(self, tensor: Tensor, region: Region) -> int:
        """Add a value of the update: it is behind all microbatches, and has no place in a pass."""
        self.on_time()
        graph = layouts(
            Array(tensor, Layout.replicated(len(tensor.dims))), self.mesh, self.sizes, self.prices
        )
        codes = graph.space.states()
        times = self.times("update", region)
        place = {code: i for i, code in enumerate(codes)}
        self.values.append(Value(tensor, "update", graph, codes, place, region=region, times=times))
        return len(self.values) - 1

    def _value(self, tensor: Tensor, section: Pass, region: Region) -> Value:
        again = section == "backward" and tensor.name in self.split
        graph = self._graph(tensor, () if again else self.made.get(tensor.name, ()))
        codes = graph.space.states()
        place = {code: i for i, code in enumerate(codes)}
        times = self.times(section, region)
        if tensor.name in self.program.prefetch:  # the last layer gathers once more, for nobody
            times += self.times(section, None)
        value = Value(tensor, section, graph, codes, place, region=region, times=times)
        home = self.homes.get((region, tensor.name))
        ends = self.open.get((region, tensor.name), ())
        if home is not None and not any(end.source and end.section is None for end in ends):
            value.root = value.state(home.layout)
        return value

    def _graph(self, tensor: Tensor, made: tuple[tuple[Layout, Layout], ...] = ()) -> Layouts:
        array = Array(tensor, Layout.replicated(len(tensor.dims)))
        graph = layouts(
            array,
            self.mesh,
            self.sizes,
            self.prices,
            made=made,
            permutes=self.program.pipeline is None,
        )
        if len(graph.space.states()) > LARGEST:
            raise UnplannableError(f"{tensor.name} has more than {LARGEST} layouts on this mesh")
        return graph

    def choose(self, tensor: Tensor, section: Pass, *, held: Fraction, region: Region) -> int:
        """Add a choice among the layouts of a tensor with nothing unreduced, so far between no values."""
        made = Operation(
            None, (tensor,), tensor, section, None, held=held, region=region, chooses=True
        )
        space = self._graph(tensor).space
        whole = [code for code in space.states() if not code & space.full << space.high]
        made.ways = [Local((code,), code, 0) for code in whole]
        made.work = {0: Fraction(0)}
        self.operations.append(made)
        return len(self.operations) - 1

    def _join(self, index: int) -> None:
        """Make a value an end of the choices that it is open to."""
        value = self.values[index]
        for end in self.open.get((value.region, value.tensor.name), ()):
            if end.section not in (None, value.section):
                continue
            if end.source and (value.root is not None or value.sources):
                continue
            choice, space = self.operations[end.choice], value.graph.space
            places = [value.state(space.decode(way.result)) for way in choice.ways]
            choice.states.append(np.array(places))
            self.connect(end.choice, len(choice.states) - 1, index, source=end.source)

    def hand_on(self, section: Pass, number: int, carry: Carry) -> None:
        """Add the choice of where layers hand a value on.

        A layer gets it and the lines behind the block have it, each as a layout chosen; there it has to be
        had where the block begins, and where a layer ends. Where each pass has values of
        its own, the backward pass gets it there.
        """
        choice = self.choose(carry.entry, section, held=Fraction(1), region=number)
        self._sent(choice, self.regions.loops[section, number], carry)
        for region, given, asked in (
            (number, carry.entry, carry.exit),
            (None, carry.exit, carry.entry),
        ):
            ends = self.open.setdefault((region, given.name), [])
            ends.append(Open(choice, source=True))
            ends = self.open.setdefault((region, asked.name), [])
            ends.append(Open(choice, source=False, section=section))
            if section == "forward":
                ends.append(Open(choice, source=True, section="backward"))

    def _sent(self, choice: int, block: Block, carry: Carry) -> None:
        """Price what a stage sends in each layout."""
        if block.pipeline is None:
            return
        made = self.operations[choice]
        space = self._graph(carry.exit).space
        for way in made.ways:
            own = replace(carry, layout=space.decode(way.result))
            (step,) = sends(replace(block, carries=(own,)))
            paid = price_step(step, self.program, self.prices)
            made.sent.append(paid * self.times(made.section, None))

    def connect(self, op: int, end: int, value: int, *, source: bool) -> None:
        """Make a slot between an end of an operation and a value."""
        places = self.values[value].sources if source else self.values[value].targets
        self.operations[op].slots.append(len(self.slots))
        self.slots.append(Slot(op, end, value, source, len(places)))
        places.append(len(self.slots) - 1)

    def ways(self, op: Compute, ends: tuple[tuple[Space, tuple[Dim, ...]], ...]) -> list[Local]:
        """List the ways of an operation; equal questions share one list."""
        key = (op, tuple((id(space), dims) for space, dims in ends))
        if key not in self.known_ways:
            self.on_time()
            self.known_ways[key] = list(ways(op, ends[:-1], ends[-1], self.sizes))
        return self.known_ways[key]

    def add(self, made: Operation, total: Tensor | None = None, only: Step | None = None) -> None:
        """Add an operation with its ways; `total` is the sum that its result goes into at once.

        `only` is a step that does it in the one way that counts.
        """
        among = made.region
        reads = [self.at(operand, made.section, among) for operand in made.operands]
        result = self.at(made.result if total is None else total, made.section, among)
        index = len(self.operations)
        self.operations.append(made)
        values = [self.values[i] for i in (*reads, result)]
        if isinstance(made.op, Relayout):
            assert only is not None
            self._stated(made, only, values)
            del values[len(made.states) :]
        elif made.op is None:
            every = np.arange(len(values[-1].codes))
            made.states = [every, every]
            made.ways = [Local((code,), code, 0) for code in values[-1].codes]
            made.work = {0: Fraction(0)}
        else:
            dims = (*(operand.dims for operand in made.operands), made.result.dims)
            ends = tuple((v.graph.space, d) for v, d in zip(values, dims, strict=True))
            made.ways = self.ways(made.op, ends)
            if only is not None:
                arrays = (*only.inputs, only.output)
                codes = [
                    v.graph.space.encode(a.layout) for v, a in zip(values, arrays, strict=True)
                ]
                made.ways = [w for w in made.ways if [*w.operands, w.result] == codes]
                assert made.ways, f"{only} is done in no way"
            for end, value in enumerate(values[:-1]):
                made.states.append(np.array([value.place[w.operands[end]] for w in made.ways]))
            values[-1].extend({way.result for way in made.ways})
            made.states.append(np.array([values[-1].place[way.result] for way in made.ways]))
            made.work = self._work(made)
        for end, value in enumerate(reads):
            self.connect(index, end, value, source=False)
        if len(made.states) > len(reads):
            self.connect(index, len(reads), result, source=True)

    def keep(self, tensor: Tensor, layout: Layout | None, region: Region) -> None:
        """Pass a value from the forward to the backward pass, in a layout or in any one."""
        index = len(self.operations)
        before, after = (self.at(tensor, section, region) for section in ("forward", "backward"))
        made = Operation(None, (tensor,), tensor, "forward", None, region=region, during=region)
        value = self.values[after]
        places = range(len(value.codes)) if layout is None else [value.state(layout)]
        made.states = [np.array(places), np.array(places)]
        made.ways = [Local((value.codes[i],), value.codes[i], 0) for i in places]
        made.work = {0: Fraction(0)}
        self.operations.append(made)
        self.connect(index, 0, before, source=False)
        self.connect(index, 1, after, source=True)

    def settled(self, ways: Mapping[int, int]) -> Problem:
        """Give the problem with what blocks hand on where ways say: each value is given, or has to be had."""
        values, homes = list(self.values), dict(self.homes)
        handed: dict[tuple[Pass, Region, Tensor], Layout] = {}
        for index, operation in enumerate(self.operations):
            if not operation.chooses:
                continue
            for each in operation.slots:
                slot = self.slots[each]
                value = values[slot.value] = copy(values[slot.value])
                state = int(operation.states[slot.end][ways[index]])
                if slot.source:
                    value.root = state
                else:
                    value.terminals = [*value.terminals, state]
                layout = value.layout(state)
                handed[operation.section, operation.region, operation.result] = layout
                key = (value.region, value.tensor.name)
                if slot.source and key in homes:
                    homes[key] = homes[key].with_layout(layout)
        loops = {
            (section, number): replace(
                block,
                carries=tuple(
                    replace(c, layout=handed.get((section, number, c.entry), c.layout))
                    for c in block.carries
                ),
            )
            for (section, number), block in self.regions.loops.items()
        }
        regions = replace(self.regions, loops=loops)
        return replace(self, values=values, homes=homes, regions=regions)

    def passed(self, ways: Mapping[int, int]) -> Iterator[tuple[Region, Array]]:
        """Go through what choices make: what they give to the backward pass is among it."""
        for index, operation in enumerate(self.operations):
            for each in operation.slots if operation.chooses else ():
                slot = self.slots[each]
                value = self.values[slot.value]
                if slot.source:
                    state = int(operation.states[slot.end][ways[index]])
                    yield value.region, Array(value.tensor, value.layout(state))

    def place(self, book: Plan, group: Sequence[str], held: Fraction) -> None:
        """Add the choice of where a group of arrays lies, and with them their cotangents."""
        given = {leaf.array.name: leaf.array.tensor for leaf in self.program.leaves}
        shown = {array.name: array.tensor for array in book.outputs}
        gradients = {g.leaf.name: g.gradient.tensor for g in book.gradients}
        received = {array.tensor.name: array.tensor for array in book.cotangents}
        first = given.get(group[0]) or shown[group[0]]
        choice = self.choose(first, "forward", held=held, region=None)
        ends: list[tuple[Tensor, Pass, bool]] = []
        for name in group:
            if name in given:
                ends.append((given[name], "forward", True))
                ends.append((given[name], "backward", True))
            else:
                ends.append((shown[name], "forward", False))
            if name in gradients:
                ends.append((gradients[name], "backward", False))
            if name in shown and (cotangent := gradient_of(shown[name])).name in received:
                ends.append((cotangent, "backward", True))
        for tensor, section, source in ends:
            self.open[None, tensor.name] = [Open(choice, source, None if source else section)]
        for tensor, section, _ in ends:
            self.at(tensor, section, None)

    def _stated(self, made: Operation, only: Step, values: Sequence[Value]) -> None:
        """Give a stated collective its way and its price."""
        assert isinstance(only.op, Relayout)
        before, after = only.inputs[0], only.output
        codes = [v.state(a.layout) for v, a in zip(values, (before, after), strict=True)]
        first, last = (v.codes[place] for v, place in zip(values, codes, strict=True))
        made.ways = [Local((first,), last, 0)]
        ends = codes[:1] if before.tensor == after.tensor else codes
        made.states = [np.array([code]) for code in ends]
        made.work = {0: Fraction(0)}
        paid = price(only.op, before, after, self.mesh, self.sizes, self.prices)
        made.price = paid * self.times(made.section, made.region)

    def _work(self, made: Operation) -> dict[int, Fraction]:
        """Give the FLOPs by split; for times, those alone that count for T_math."""
        assert made.op is not None
        arrays = [Array(t, Layout.replicated(len(t.dims))) for t in (*made.operands, made.result)]
        step = Step(made.op, tuple(arrays[:-1]), arrays[-1])
        whole = flops(step).evaluate(self.sizes).number
        assert whole is not None
        if self.rate is not None and not counts(step, made.section):
            whole = Fraction(0)
        whole *= self.times(made.section, made.region)
        axes = self.mesh.axes
        return {
            split: whole / prod(info.size or 1 for a, info in enumerate(axes) if split >> a & 1)
            for split in {way.split for way in made.ways}
        }
