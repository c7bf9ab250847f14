"""A program as a problem of choice: operations with their local ways, joined by values.

An *operation* is done in one of its ways (`ways`). A *value* joins those that make it to those that
read it: it costs the least tree of moves from the layouts in which it is made to all in which it is
had, so that a copy made once serves everybody (a Steiner arborescence). A gradient with several
contributions is a value with several sources: they are brought together, added wherever they meet
(unreduced, if that is best), and moved on. Between every end of an operation and its value stands a
*slot*: a layout that both agree on.

Where values end: outputs in their declared layouts (undeclared, as the book plan ends them),
gradients as their leaves live, and values in every layout that the text declares. A parameter whose
copies may be kept from the forward to the backward pass is one value in both, as everything else is;
others are one value in each. With a `save` line that does not say `all` every value is one in each pass:
those that are named are passed on, and the others made again (`_Again`). A value that is compared with
its own maximum is reduced once, before it is copied, so that both have the same bits. A copy is the value
that it is a copy of, and equal operations of equal values make one value (`_same_values`): it is
computed once, and moved once.

Of a *block* there is one problem for all of its layers: what its lines make and read is a value of one
layer, and costs as often as there are layers (`Region`). What it hands on is two values, one of a
layer and one of the lines outside. Where the text says how it is handed on (`Regions.stated`), both begin or
end there; else that is a *choice*: an operation with a way a layout, which is read from what
is before the block and from what a layer makes, and which makes what a layer begins with and what is behind
the block. A value of the lines outside is one value, whoever reads it: its copies are
made once, before the block, and what is added up over the layers is moved once, behind it.

With `Free` arrays the layouts of leaves and outputs are choices as well: where an array lies is an
operation between what is given, what it is read as, and its gradient.

Costs are whole numbers held in floats below 2**53, in which sums and least sums are exact: the price
in its unit, then the FLOPs of a device, then the number of collectives, one digit above the other.
To look for plans that hold less, each byte that an operation reads or makes can be given a price.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import gcd, lcm, prod

import numpy as np

from shardlang.cost.flops import counts, flops
from shardlang.ir.ops import (
    Collective,
    Compare,
    Compute,
    Einsum,
    Linear,
    Op,
    Relayout,
    Rename,
)
from shardlang.ir.plan import Pass, Plan, Step
from shardlang.ir.program import Block, Carry, Program, Statement
from shardlang.ir.types import Array, Dim, Layout, Mesh, Tensor
from shardlang.passes.adjoint import adjoint, gradient_of, Line, relays
from shardlang.planner.network import Distances, distances, Flags, Network, Places, Vector
from shardlang.planner.prices import price, price_all, Prices
from shardlang.planner.regions import COPY, Region, Regions
from shardlang.planner.reshard import check_layout, extent, Layouts, layouts
from shardlang.planner.states import COLLECTIVE, Space, UNIT
from shardlang.planner.ways import Local, ways
from shardlang.source import Span

WIDEST = 9
"""The most places that one value is had in: the time grows as 3 to this power."""


LARGEST = 12_000
"""The most layouts of a tensor whose moves are written out."""

Flow = tuple[tuple[Tensor, ...], Tensor, Op, Region]
"""An operation on whole tensors: operands, result, what is done, and the block that its line is in."""


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
    held: Fraction = Fraction(0)
    """Of a choice: the bytes held for each byte of the first value."""
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
    """How many there are: one a layer."""
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

    def _value(self, tensor: Tensor, section: Pass, region: Region) -> Value:
        again = section == "backward" and tensor.name in self.split
        graph = self._graph(tensor, () if again else self.made.get(tensor.name, ()))
        codes = graph.space.states()
        place = {code: i for i, code in enumerate(codes)}
        times = self.regions.times(region)
        value = Value(tensor, section, graph, codes, place, region=region, times=times)
        home = self.homes.get((region, tensor.name))
        ends = self.open.get((region, tensor.name), ())
        if home is not None and not any(end.source and end.section is None for end in ends):
            value.root = value.state(home.layout)
        return value

    def _graph(self, tensor: Tensor, made: tuple[tuple[Layout, Layout], ...] = ()) -> Layouts:
        array = Array(tensor, Layout.replicated(len(tensor.dims)))
        graph = layouts(array, self.mesh, self.sizes, self.prices, made=made)
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
        made.price = paid * self.regions.times(made.region)

    def _work(self, made: Operation) -> dict[int, Fraction]:
        """Give the FLOPs by split; for times, those alone that count for T_math."""
        assert made.op is not None
        arrays = [Array(t, Layout.replicated(len(t.dims))) for t in (*made.operands, made.result)]
        step = Step(made.op, tuple(arrays[:-1]), arrays[-1])
        whole = flops(step).evaluate(self.sizes).number
        assert whole is not None
        if self.rate is not None and not counts(step, made.section):
            whole = Fraction(0)
        whole *= self.regions.times(made.region)
        axes = self.mesh.axes
        return {
            split: whole / prod(info.size or 1 for a, info in enumerate(axes) if split >> a & 1)
            for split in {way.split for way in made.ways}
        }


def build(
    book: Plan,
    prices: Prices,
    *,
    rate: Fraction | None = None,
    kept: Collection[str] = (),
    lean: Fraction = Fraction(0),
    forward_only: bool = False,
    late: Callable[[], bool] = lambda: False,
    free: Free | None = None,
    in_place: bool = False,
) -> Problem:
    """Write a program as a problem; `book` is its plan by the rules, which says where it ends.

    `kept` are the parameters whose copies may be kept for the backward pass, and `free` the arrays that
    may lie anywhere; those of `free` are the first operations, in its order. With `in_place` layers hand
    values on where the book plan does. Raises `UnplannableError`,
    `OutOfTimeError` when it is `late`, and `ShardlangError` where a size is missing or a split uneven.
    """
    program = book.program
    _refuse(program)
    mesh = Mesh(tuple(info for info in program.mesh.axes if info.size != 1))
    problem = Problem(program, mesh, dict(program.sizes.known), prices, rate, lean=lean, late=late)
    again = not program.save.everything and not forward_only
    if not forward_only:
        weights = [leaf.array for leaf in program.leaves if leaf.kind == "param"]
        alone = {w.name for w in weights if not w.layout.unreduced}
        if again:
            alone |= {leaf.array.name for leaf in program.leaves}
            alone |= {s.result.name for s in program.statements}
        problem.split = frozenset(alone.difference(kept))
    outputs = {array.name: array for array in book.outputs}
    lines = () if forward_only else adjoint(program, [array.tensor for array in book.outputs])
    problem.regions = Regions.read(book, lines, in_place=in_place)
    _give(problem, book)
    anywhere = _place(problem, book, free)
    computed = [s for s in program.statements if not relays(s)]
    flow: list[Flow] = [
        (tuple(u.tensor for u in s.operands), s.result, s.op, _number(s.block)) for s in computed
    ]
    flow += [(line.operands, line.result, line.op, _number(line.block)) for line in lines]
    flow = _same_values(problem, flow, set(outputs))
    had = _had(problem, book)
    needed = _needed(problem, flow, [array for array, _, _ in had])
    stated = _stated(problem, book)
    for s in program.statements:
        if s.result.name in outputs and s.result.name in problem.alias:
            if s.block is not None:
                raise UnplannableError(f"each layer has the output {s.result.name}, a view")
            before = problem.shown.setdefault(len(problem.operations), [])
            before.append(outputs[s.result.name])
        moves = relays(s) or isinstance(s.op, Relayout)
        dead = s.result.name not in needed or (moves and id(s) not in stated)
        if not dead and s.result.name not in problem.alias:
            problem.add(_operation(s, "forward"), only=stated.get(id(s)))
    lines = tuple(line for line in lines if line.result.name in needed)
    _backward(problem, lines, book, _Again(problem, stated) if again else None)
    for section, number, carry in problem.regions.handing():
        for tensor, region in ((carry.entry, None), (carry.exit, number)):
            problem.at(tensor, section, region)
    gradients = {g.gradient.name: g.leaf.name for g in book.gradients}
    for array, section, region in had:
        if gradients.get(array.name, array.name) in anywhere:
            continue
        value = problem.values[problem.at(array.tensor, section, region)]
        terminal = value.state(array.layout)
        if terminal != value.root and terminal not in value.terminals:
            value.terminals.append(terminal)
    for value in problem.values:
        if len(value.targets) + len(value.terminals) > WIDEST or len(value.sources) > WIDEST:
            raise UnplannableError(f"{value.tensor.name} is read in more than {WIDEST} places")
        if value.once and any(value.layout(t).unreduced for t in value.terminals):
            raise UnplannableError(f"{value.tensor.name} is compared, and declared unreduced")
    _measure(problem, book)
    return problem


def _give(problem: Problem, book: Plan) -> None:
    """Note where what is given lies: leaves, cotangents, and what blocks hand to layers and out of them."""
    regions = problem.regions
    for leaf in problem.program.leaves:
        check_layout(leaf.array, problem.mesh, problem.sizes)
        problem.homes[regions.of(leaf.array.name, None), leaf.array.name] = leaf.array
    for array in book.cotangents:
        problem.homes[regions.of(array.name, None), array.name] = array
    for section, number, carry in regions.handing():
        assert carry.layout is not None
        if carry.entry.name not in regions.stated:
            problem.hand_on(section, number, carry)
        for region, tensor in ((number, carry.entry), (None, carry.exit)):
            problem.homes[region, tensor.name] = Array(tensor, carry.layout)


def _number(block: Block | None) -> Region:
    return None if block is None else block.number


def _needed(problem: Problem, flow: Sequence[Flow], had: Iterable[Array]) -> set[str]:
    """Name the values that something had is made from: what a layer reads, the one before has to make."""
    needed = {problem.original(array.tensor).name for array in had}
    while True:
        for operands, result, _, _ in reversed(flow):
            if result.name in needed:
                needed.update(operand.name for operand in operands)
        again = {c.exit.name for _, _, c in problem.regions.handing() if c.entry.name in needed}
        if again <= needed:
            return needed
        needed |= again


def _same_values(problem: Problem, flow: Iterable[Flow], outputs: Collection[str]) -> list[Flow]:
    """Find the names that are other values' names too; give the flow with what they come from.

    These are views, copies, and what equal operations make of equal operands. Where the text says how
    a value is moved, made or saved, it is a value of its own; so is a copy of a parameter, since of
    those not all passes have the same copies. An output stays what nothing reads. What a block hands on is not
    what it is before it, and lines of a block are equal to others of that block alone.
    """
    program = problem.program
    apart = {leaf.array.name for leaf in program.leaves if leaf.kind == "param"}
    apart |= set() if program.save.everything else program.save.names
    for s in program.statements:
        if isinstance(s.op, Relayout) or s.keep_unreduced:
            apart.add(s.result.name)
    handed = problem.regions.names
    known: dict[object, Tensor] = {}
    found: list[Flow] = []
    for operands, result, op, region in flow:
        if result.name in handed:
            if isinstance(op, Rename):
                raise UnplannableError(f"layers hand on {result.name}, a view")
        elif isinstance(op, Rename):
            problem.alias[result.name] = (op, operands[0])
        elif result.name not in apart and not isinstance(op, Relayout):
            first = operands[0]
            copied = op == COPY and (first.dims, first.dtype) == (result.dims, result.dtype)
            if copied and problem.original(first).name not in apart:
                same = first
            else:
                read = [problem.key(o, "forward", region) for o in operands]
                meaning = (region, _meaning(read, operands, result, op))
                same = known.get(meaning, result)
                if result.name not in outputs:
                    known.setdefault(meaning, result)
            if same.name != result.name:
                problem.alias[result.name] = (COPY, same)
                found.append(((same,), result, COPY, region))
                continue
        found.append((operands, result, op, region))
    return found


def _meaning(
    values: Sequence[object], operands: Sequence[Tensor], result: Tensor, op: Compute
) -> tuple[object, ...]:
    """Give what two operations have alike that make the same numbers, in whatever order they read.

    `values` say which ones the operands are.
    """
    read: list[object] = [(v, o.dims) for v, o in zip(values, operands, strict=True)]
    what: object = op
    if isinstance(op, Einsum):
        read, what = sorted(read, key=repr), (Einsum, frozenset(op.contracted))
    elif isinstance(op, Linear):
        read = sorted(zip(read, op.coefficients, strict=True), key=repr)
        what = (Linear, op.constant)
    return (what, tuple(read), result.dims, result.dtype)


def _refuse(program: Program) -> None:
    """Raise `UnplannableError` for what only the rules lower."""
    if program.explicit:
        raise UnplannableError("the program's lines are its steps")
    for block in program.blocks:
        if block.pipeline is not None:
            raise UnplannableError(f"layers {block.dim} lie on stages")
    if program.prefetch:
        raise UnplannableError(f"{', '.join(sorted(program.prefetch))} are prefetched")


def _place(problem: Problem, book: Plan, free: Free | None) -> frozenset[str]:
    """Add the choices of where arrays lie, and give the names of those that may lie anywhere.

    Raises `UnplannableError` where such an output is another value's view.
    """
    if free is None:
        return frozenset()
    shown = {output.name: output.tensor for output in book.outputs if output.name in free.names}
    for s in problem.program.statements:
        if isinstance(s.op, Rename) and s.result.name in shown:
            raise UnplannableError(f"the output {s.result.name} is another value's view")
    for group, held in zip(free.groups, free.held, strict=True):
        problem.place(book, group, held)
    return free.names


def _operation(s: Statement, section: Pass) -> Operation:
    """Write a statement as an operation."""
    assert not isinstance(s.op, Rename)
    region = _number(s.block)
    operands = tuple(use.tensor for use in s.operands)
    return Operation(s.op, operands, s.result, section, s.span, region=region, during=region)


def _stated(problem: Problem, book: Plan) -> dict[int, Step]:
    """Give the steps of the book plan that the text fixes, by the `id` of their statements.

    Those are stated collectives and local products (`·_LOCAL`); dead ones are not in the book plan.
    What a collective makes of a value under the same name is noted with the value.
    """
    found: dict[int, Step] = {}
    steps = [step for step in book.forward if step.rule == "stated" or step.is_compute]
    for s in problem.program.statements:
        if not isinstance(s.op, Relayout) and not s.keep_unreduced:
            continue
        step = next((x for x in steps if (x.op, x.output.tensor) == (s.op, s.result)), None)
        if step is None:
            continue
        steps.remove(step)
        found[id(s)] = step
        if isinstance(s.op, Relayout) and relays(s):
            name = problem.original(s.result).name
            if name != s.result.name:
                raise UnplannableError(
                    f"the program states a collective of {s.result.name}, a view"
                )
            region = _number(s.block)
            if name in problem.regions.names or problem.regions.of(name, region) != region:
                raise UnplannableError(
                    f"the program states a collective of {s.result.name}, which is not a layer's alone"
                )
            if step.inputs[0].layout.reduction != "sum":
                raise UnplannableError(f"the program states how {step.inputs[0]} is reduced")
            ends = (step.inputs[0].layout, step.output.layout)
            problem.made[name] = (*problem.made.get(name, ()), ends)
    return found


class _Again:
    """What the backward pass reads of the forward pass where only some values are saved.

    A saved value is passed on in one layout, the declared one where there is one, and so is what layers
    hand on; others are computed again from those, once.
    """

    def __init__(self, problem: Problem, stated: Mapping[int, Step]) -> None:
        self.problem, self.stated = problem, stated
        self.makers = {s.result.name: s for s in problem.program.statements if not relays(s)}
        self.done: set[tuple[str, Region]] = set()

    def need(self, tensor: Tensor, among: Region, during: Region) -> None:
        """Have a value in the backward pass, as the lines of a region mean it, among a block's lines."""
        problem = self.problem
        tensor = problem.original(tensor)
        region = problem.regions.of(tensor.name, among)
        maker = self.makers.get(tensor.name)
        if maker is None or (tensor.name, region) in self.done:
            return
        self.done.add((tensor.name, region))
        if (region, tensor.name) in problem.homes or (region, tensor.name) in problem.open:
            return
        handed = problem.regions.layout(tensor.name)
        if handed is not None or tensor.name in problem.program.save.names:
            problem.keep(tensor, handed or problem.regions.declared(maker), region)
            return
        for use in maker.operands:
            self.need(use.tensor, _number(maker.block), during)
        made = replace(_operation(maker, "backward"), during=during)
        problem.add(made, only=self.stated.get(id(maker)))


def _had(problem: Problem, book: Plan) -> list[tuple[Array, Pass, Region]]:
    """Give what the plan has to have: outputs, gradients, and what the text declares.

    What is declared and dead in the book plan, and so not in it, is left out here as well. Of an
    output's layouts the last one counts: nothing reads it in the others. What a block hands on where the text
    says is had there, at both ends.
    """
    steps = (*book.forward, *book.backward)
    regions = problem.regions
    present = {array for step in steps for array in (*step.inputs, step.output)}
    last: Pass = "backward"
    ends: list[tuple[Array, Pass]] = [(output, "forward") for output in book.outputs]
    ends.extend((gradient.gradient, last) for gradient in book.gradients)
    found: list[tuple[Array, Pass, Region]] = [
        (array, section, regions.of(array.name, None)) for array, section in ends
    ]
    outputs = {output.name for output in book.outputs}
    for s in problem.program.statements:
        target = regions.declared(s)
        if target is None or s.result.name in outputs:
            continue
        if Array(s.result, target) in present:
            found.append((Array(s.result, target), "forward", _number(s.block)))
    for section, number, carry in regions.handing():
        assert carry.layout is not None
        if carry.entry.name not in regions.stated:
            continue
        found.append((Array(carry.entry, carry.layout), section, None))
        found.append((Array(carry.exit, carry.layout), section, number))
    return found


def _backward(
    problem: Problem, lines: Sequence[Line], book: Plan, again: _Again | None = None
) -> None:
    """Add the lines of the backward pass; contributions go straight into the sums that they are for.

    `again` brings what they read of the forward pass, where that is not all at hand.
    """
    lines = [line for line in lines if line.result.name not in problem.alias]
    readers = Counter(problem.original(o).name for line in lines for o in line.operands)
    taken = {problem.original(g.gradient.tensor).name for g in book.gradients}
    taken |= {name for _, name in problem.homes}
    sums = {
        line.result.name: line
        for line in lines
        if line.adds and all(operand.dims == line.result.dims for operand in line.operands)
    }
    into = {
        operand.name: line.result
        for line in sums.values()
        for operand in line.operands
        if readers[operand.name] == 1
        and operand.name not in taken
        and operand.name not in problem.alias
        and operand.name not in sums
    }
    for line in lines:
        if again is not None:
            if isinstance(line.op, Compare):
                raise UnplannableError("a maximum is compared, and not all values are saved")
            for operand in line.operands:
                again.need(operand, _number(line.block), _number(line.block))
        region = _number(line.block)
        if line.result.name not in sums:
            problem.add(_backwards(line, line.op, line.operands), into.get(line.result.name))
            if isinstance(line.op, Compare):
                first = problem.at(line.operands[0], "backward", region)
                problem.values[first].once = True
            continue
        for operand in line.operands:
            if operand.name not in into:
                problem.add(_backwards(line, None, (operand,)))


def _backwards(line: Line, op: Compute | None, operands: tuple[Tensor, ...]) -> Operation:
    """Write a line of the backward pass as an operation, or what it passes on as one."""
    region = _number(line.block)
    return Operation(op, operands, line.result, "backward", line.span, region=region, during=region)


def work_of(plan: Plan, sizes: Mapping[str, int]) -> Fraction:
    """Add up the FLOPs of a device that count for T_math."""
    found = Fraction(0)
    for section, step in plan.steps():
        if step.is_compute and counts(step, section):
            found += (flops(step) * step.times).evaluate(sizes).number or 0
    return found


def total_of(plan: Plan, problem: Problem) -> Fraction:
    """Give a plan's cost as the problem counts it: its price, and with a rate the time of its FLOPs."""
    steps = (*plan.forward, *plan.backward)
    found = price_all(steps, problem.mesh, problem.sizes, problem.prices)
    if problem.rate is not None:
        found += work_of(plan, problem.sizes) / problem.rate
    return found


BITS = 49
"""How large costs may get: sums of a few stay below 2**53."""

FINEST = 64
"""What one collective counts, and what all costs are multiples of: below is room for rounding."""


def _units(problem: Problem, added: Sequence[Sequence[Fraction]]) -> tuple[Fraction, Fraction]:
    """Give the largest amounts that every price, and all FLOPs, are multiples of."""
    rate = problem.rate
    unit, work = Fraction(0), Fraction(0)
    for value in problem.values:
        problem.on_time()
        factor = value.graph.factor * value.times
        unit = _gcd(unit, factor * gcd(*(w // UNIT for w in value.network.weights)))
    for operation in problem.operations:
        for amount in operation.work.values():
            work = _gcd(work, amount)
            unit = unit if rate is None else _gcd(unit, amount / rate)
        if operation.price is not None:
            unit = _gcd(unit, operation.price)
    for amount in {amount for row in added for amount in row}:
        work = _gcd(work, amount)
    return unit or Fraction(1), work or Fraction(1)


def _measure(problem: Problem, book: Plan) -> None:
    """Choose the digits of costs, and write every table in them."""
    rate = problem.rate
    added = [_additions(problem, value) for value in problem.values]
    unit, work = _units(problem, added)
    most = total_of(book, problem) + problem.lean * _touched(book, problem)
    places = len(problem.slots) + sum(len(v.terminals) for v in problem.values) + 1
    count_bits = (FINEST * 8 * places).bit_length()
    whole = sum((max(operation.work.values()) for operation in problem.operations), Fraction(0))
    whole += sum(
        (max(row) * len(v.sources) for v, row in zip(problem.values, added, strict=True) if row),
        Fraction(0),
    )
    work_bits = int(whole / work).bit_length() if rate is None else 0
    price_bits = int(most / unit + 2).bit_length()
    room = BITS - count_bits
    exact = price_bits <= room
    if not exact:
        unit, price_bits = max(unit, most / (1 << room)), room
    if work_bits > room - price_bits:
        work_bits = max(room - price_bits, 0)
        work = whole / (1 << (work_bits - 1)) if work_bits else Fraction(0)
    digit = 1 << work_bits + count_bits
    problem.scale = Scale(unit, digit, exact, work, 1 << count_bits)
    problem.most = float(int(most / unit + 2) * digit)
    priced: dict[tuple[int, Fraction], Distances] = {}
    for value, row in zip(problem.values, added, strict=True):
        key = (id(value.network), value.graph.factor * value.times)
        if key not in priced:
            problem.on_time()
            factor = value.graph.factor * value.times / unit

            def price_of_move(weight: int, factor: Fraction = factor) -> float:
                count = weight % UNIT // COLLECTIVE
                return float(int(weight // UNIT * factor) * digit + count * FINEST)

            priced[key] = distances(value.network, price_of_move, problem.most)
        value.cost = priced[key]
        space = value.graph.space
        partial = space.full << space.high
        value.whole = np.array([not code & partial for code in value.codes])
        value.adding = np.array([_digits(problem, amount) for amount in row])
    for operation in problem.operations:
        table = {split: _digits(problem, amount) for split, amount in operation.work.items()}
        operation.cost = np.array([table[way.split] for way in operation.ways])
        if problem.lean and (operation.op is not None or operation.held):
            units = _held(problem, operation) * float(problem.lean / problem.scale.unit)
            operation.cost += np.minimum(np.floor(units) * digit, problem.most)
        if operation.price is not None:
            count = FINEST if isinstance(operation.op, Collective) else 0
            operation.cost += float(operation.price // unit * digit + count)


def _held(problem: Problem, operation: Operation) -> Vector:
    """Give the bytes on a device of what an operation reads and makes, by way, in all layers."""
    total = np.zeros(len(operation.ways))
    tensors = (*operation.operands, operation.result)
    if operation.held:
        tensors = tensors[:1]
    for slot, tensor, states in zip(operation.slots, tensors, operation.states, strict=False):
        value = problem.values[problem.slots[slot].value]
        space = value.graph.space
        size = float(_whole(problem, tensor) * (operation.held or 1))
        shards = [prod(space.counts[i] for i in space.parts(code)[0]) for code in value.codes]
        total += (size / np.array(shards))[states]
    return total * problem.regions.times(operation.region)


def _whole(problem: Problem, tensor: Tensor) -> Fraction:
    """Give the bytes of a whole tensor."""
    count = prod(extent(dim, problem.sizes) for dim in tensor.dims)
    return Fraction(count * tensor.dtype.bits, 8)


def _touched(plan: Plan, problem: Problem) -> Fraction:
    """Add up the bytes on a device of what a plan's operations read and make, and what lies there."""
    arrays = [
        array.local_bytes * step.times
        for _, step in plan.steps()
        if step.is_compute and not isinstance(step.op, Rename)
        for array in (*step.inputs, step.output)
    ]
    sizes = (size.evaluate(problem.sizes).number for size in arrays)
    times = problem.regions.times
    lying = sum(o.held * _whole(problem, o.result) * times(o.region) for o in problem.operations)
    return sum((size or Fraction(0) for size in sizes), Fraction(lying))


def _additions(problem: Problem, value: Value) -> list[Fraction]:
    """Give the FLOPs of adding two contributions in each state; elementwise work takes no time."""
    if len(value.sources) < 2 or problem.rate is not None:
        return []
    whole = prod(extent(dim, problem.sizes) for dim in value.tensor.dims) * value.times
    space = value.graph.space
    return [
        Fraction(whole, prod(space.counts[index] for index in space.parts(code)[0]))
        for code in value.codes
    ]


def _digits(problem: Problem, amount: Fraction) -> float:
    """Write an amount of FLOPs as a cost."""
    scale = problem.scale
    if problem.rate is not None:
        return float(amount / problem.rate // scale.unit * scale.digit)
    return float(amount // scale.work * scale.count) if scale.work else 0.0


def _gcd(left: Fraction, right: Fraction) -> Fraction:
    """Give the largest amount that both are multiples of."""
    over = lcm(left.denominator, right.denominator)
    return Fraction(gcd(int(left * over), int(right * over)), over)
