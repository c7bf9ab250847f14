"""How the values of a plan flow: what makes each, what moves it, and in which layouts it is read.

A *value* is a tensor together with its copies under other names that relayouts define. In each pass
it has *roots*, the layouts that need no move (given, or made by an operation), *moves*, and *wants*,
the layouts that operations of the pass, its results or the backward pass read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import prod

from shardlang.cost.formula import Formula
from shardlang.cost.models import bytes_moved, Model, MODELS, Moved
from shardlang.cost.symbols import literal_size
from shardlang.ir.ops import (
    Coefficient,
    Collective,
    Compare,
    Linear,
    Permute,
    Relayout,
    RingAttention,
)
from shardlang.ir.plan import Pass, Plan, Step
from shardlang.ir.program import Block
from shardlang.ir.size import Monomial
from shardlang.ir.types import Array, Axis, Mesh
from shardlang.passes.overlap import gathered_ahead
from shardlang.planner.prices import sized
from shardlang.planner.reshard import Layouts, layouts, steps_along

PASSES: tuple[Pass, ...] = ("forward", "backward")

NOMINAL_AXIS = 4
"""What an axis without a size counts as where candidates are looked for; claims hold for all sizes."""

NOMINAL_DIM = 1 << 16
"""The same for a dim."""

MANY = 7
"""More goals than this are reached one after the other, and not by a least tree."""


LARGEST = 2600
"""The most layouts of a tensor that a graph is made for."""


class UnknownRouteError(Exception):
    """A layout that the graph does not lead to, or by a Permute where stages do none, or too many layouts."""


@dataclass(frozen=True, slots=True)
class Place:
    """A value in one pass: its roots, the numbers of the steps that move it, and its wants.

    `reads` gives, for each operation that reads it, the arrays; `last` are the wants that the end of
    the pass asks for.
    """

    value: str
    section: Pass
    given: frozenset[Array]
    made: Mapping[int, Array]
    moves: tuple[int, ...]
    reads: Mapping[int, tuple[Array, ...]]
    last: tuple[Array, ...]

    def roots(self, changed: Mapping[int, Step]) -> frozenset[Array]:
        """Give the arrays that need no move, with some operations done otherwise."""
        made = (changed[i].output if i in changed else a for i, a in self.made.items())
        return self.given.union(made)

    def wants(self, changed: Mapping[int, Step], member: Mapping[str, str]) -> list[Array]:
        """Give what has to be had, with some operations done otherwise, in order of need."""
        found: dict[Array, None] = {}
        for index, own in self.reads.items():
            arrays = changed[index].inputs if index in changed else own
            found.update(dict.fromkeys(a for a in arrays if member[a.name] == self.value))
        found.update(dict.fromkeys(self.last))
        return list(found)


@dataclass
class Flow:
    """The values of a plan, and the prices of moving them.

    Where all sizes are known prices are numbers; else formulas, and the graphs in which cheaper
    moves are looked for have nominal sizes.
    """

    plan: Plan
    steps: dict[Pass, tuple[Step, ...]]
    prices: str = "link"
    member: dict[str, str] = field(default_factory=dict[str, str])
    places: dict[tuple[str, Pass], Place] = field(default_factory=dict[tuple[str, Pass], Place])
    compared: frozenset[str] = frozenset()
    mesh: Mesh = field(default_factory=Mesh)
    sizes: dict[str, int] = field(default_factory=dict[str, int])
    known: dict[str, Fraction] = field(default_factory=dict[str, Fraction])
    complete: bool = True
    scope: frozenset[Axis] = frozenset()
    """The axes that moves may use."""
    _prices: dict[Step, Formula] = field(default_factory=dict[Step, Formula])
    _paid: dict[object, Formula] = field(default_factory=dict[object, Formula])
    _graphs: dict[object, Layouts | None] = field(default_factory=dict[object, "Layouts | None"])
    _forests: dict[object, Forest | None] = field(default_factory=dict[object, "Forest | None"])

    def __post_init__(self) -> None:
        """Find the values and where they are."""
        self._sizes()
        self._members()
        self._places()
        every = [s for p in PASSES for s in self.steps[p]]
        self.compared = frozenset(
            self.member[a.name] for s in every if isinstance(s.op, Compare) for a in s.inputs
        )

    def _sizes(self) -> None:
        program = self.plan.program
        known = dict(program.sizes.known)
        axes = sized(program.mesh, known)
        self.known = {name: Fraction(size) for name, size in known.items()}
        dims = {d.name for a in self.arrays() for d in a.tensor.dims}
        dims |= {block.dim.name for block in program.blocks}
        for name in dims:
            size = literal_size(name)
            if size is not None:
                self.known[name] = Fraction(size)
        open_axes = [info for info in axes if info.size is None]
        self.complete = not open_axes and dims <= self.known.keys()
        filled = {i.axis.name: NOMINAL_AXIS for i in open_axes}
        self.mesh = Mesh(tuple(i for i in sized(program.mesh, {**known, **filled}) if i.size != 1))
        if self.complete:
            self.sizes = {name: int(size) for name, size in self.known.items()}
            return
        # Open sizes: every dim counts as the same, which every axis divides.
        shards = prod(info.size or 1 for info in self.mesh.axes)
        self.sizes = {**dict.fromkeys(dims, NOMINAL_DIM * shards), **self.mesh.sizes}

    def arrays(self) -> Iterable[Array]:
        """Go through every array of the plan."""
        yield from (leaf.array for leaf in self.plan.program.leaves)
        for section in PASSES:
            for step in self.steps[section]:
                yield from step.inputs
                yield step.output
        yield from self.plan.cotangents

    def _members(self) -> None:
        for array in self.arrays():
            self.member.setdefault(array.name, array.name)
        for section in PASSES:
            for step in self.steps[section]:
                if not isinstance(step.op, Relayout):
                    continue
                source, made = step.inputs[0].tensor, step.output.tensor
                if (source.dims, source.dtype) == (made.dims, made.dtype):
                    old, new = self.member[made.name], self.member[source.name]
                    for name, own in self.member.items():
                        if own == old:
                            self.member[name] = new

    def moves(self, step: Step) -> bool:
        """Say whether a step moves a value and makes none; what is sent to another stage is read there."""
        if not isinstance(step.op, Relayout) or step.sends:
            return False
        return self.member[step.inputs[0].name] == self.member[step.output.name]

    def _places(self) -> None:
        given = {leaf.array for leaf in self.plan.program.leaves}
        later = self._later()
        for section in PASSES:
            steps = self.steps[section]
            ends = list(self.plan.outputs)
            if section == "backward":
                given = self._kept(given)
                ends = [g.gradient for g in self.plan.gradients]
            names = dict.fromkeys(a.name for s in steps for a in (*s.inputs, s.output))
            names.update(dict.fromkeys(a.name for a in ends))
            for value in dict.fromkeys(self.member[name] for name in names):
                self.places[value, section] = self._place(
                    value, section, given, [*(later if section == "forward" else ()), *ends]
                )

    def _place(self, value: str, section: Pass, given: set[Array], last: Sequence[Array]) -> Place:
        made: dict[int, Array] = {}
        moves: list[int] = []
        reads: dict[int, tuple[Array, ...]] = {}
        for index, step in enumerate(self.steps[section]):
            if self.moves(step):
                if self.member[step.output.name] == value:
                    moves.append(index)
                continue
            own = tuple(a for a in step.inputs if self.member[a.name] == value)
            if own:
                reads[index] = own
            if self.member[step.output.name] == value:
                made[index] = step.output
        return Place(
            value,
            section,
            frozenset(a for a in given if self.member[a.name] == value),
            made,
            tuple(moves),
            reads,
            tuple(a for a in last if self.member[a.name] == value),
        )

    def _kept(self, given: set[Array]) -> set[Array]:
        """Give what the backward pass begins with: copies of parameters only where they are kept.

        Where the `save` line does not say `all` it is no more than what the plan holds: what is made
        again is made again because the line asks for it.
        """
        named = self.plan.program.save.names
        made = [array for step in self.steps["forward"] for array in step.outputs]
        if not self.plan.program.save.everything:
            own = held(self.steps["forward"], self.steps["backward"])
            made = [array for array in made if array in own or array.name in named]
        kept = given.union(made)
        for leaf in self.plan.program.leaves:
            again = leaf.kind == "param" and leaf.array.name not in named
            if again and not leaf.array.layout.unreduced:
                kept = {a for a in kept if a.name != leaf.array.name or a == leaf.array}
        return kept | set(self.plan.cotangents)

    def _later(self) -> list[Array]:
        """Give what the backward pass reads of what the forward pass made."""
        kept = self._kept(set())
        return [a for a in held(self.steps["forward"], self.steps["backward"]) if a in kept]

    # Prices ---------------------------------------------------------------------------------

    def price(self, step: Step) -> Formula:
        """Give the bytes of a step, as `cost --model` has them."""
        if step not in self._prices:
            made = priced(step, MODELS[self.prices], self.mesh) * step.times
            made = made.substitute(self.known)
            self._prices[step] = made
        return self._prices[step]

    def total(self, steps: Iterable[Step]) -> Formula:
        """Add up the bytes of steps."""
        return Formula.sum(self.price(step) for step in steps)

    def nominal(self, formula: Formula) -> Fraction:
        """Give a formula's value at the nominal sizes."""
        value = formula.value({name: Fraction(size) for name, size in self.sizes.items()})
        assert value is not None
        return value

    def saves(self, formula: Formula) -> bool:
        """Say whether a difference is positive, whatever the sizes that are left open.

        Every axis is written as 1 + m with m at least 0; then no term may be negative.
        """
        if not formula.terms:
            return False
        lowest: dict[str, int] = {}
        for term in formula.terms:
            for name, power in term.powers:
                lowest[name] = min(lowest.get(name, 0), power)
        clear = Monomial(Fraction(1), tuple(sorted((n, -p) for n, p in lowest.items() if p)))
        total: dict[tuple[tuple[str, int], ...], Fraction] = {}
        axes = {info.axis.name for info in self.mesh.axes}
        for term in formula.terms:
            for part in _expanded(term * clear, axes):
                total[part.powers] = total.get(part.powers, Fraction(0)) + part.coefficient
        return all(c >= 0 for c in total.values()) and any(total.values())

    # Graphs ---------------------------------------------------------------------------------

    def graph(self, array: Array) -> Layouts:
        """Give the graph of an array's layouts over the axes in scope.

        Raises `UnknownRouteError` where there are too many.
        """
        key = (array.tensor, self.scope)
        if key not in self._graphs:
            mesh = Mesh(tuple(info for info in self.mesh.axes if info.axis in self.scope))
            made = layouts(array, mesh, self.sizes, self.prices)
            self._graphs[key] = made if len(made.space.states()) <= LARGEST else None
        graph = self._graphs[key]
        if graph is None:
            raise UnknownRouteError
        return graph

    def scopes(self, places: Iterable[Place]) -> Iterator[None]:
        """Narrow the scope to the axes that some values use, then widen it to the whole mesh.

        So what is wrong with the axes that are in play is found before what idle ones could do.
        """
        every = frozenset(info.axis for info in self.mesh.axes)
        for scope in dict.fromkeys((every & self.used(places), every)):
            self.scope = scope
            yield

    def used(self, places: Iterable[Place]) -> frozenset[Axis]:
        """Give the axes that some values use."""
        found: set[Axis] = set()
        for place in places:
            steps = self.old(place)
            arrays = [*place.roots({}), *place.wants({}, self.member)]
            arrays += [a for s in steps for a in (*s.inputs, s.output)]
            found.update(x for a in arrays for x in a.layout.used)
            found.update(x for s in steps for x in axes_of(s))
        return frozenset(found)

    def old(self, place: Place) -> list[Step]:
        """Give the steps that move a value in a pass."""
        return [self.steps[place.section][i] for i in place.moves]

    def paid(self, place: Place) -> Formula:
        """Give the bytes of the steps that move a value in a pass."""
        key = (place.value, place.section)
        if key not in self._paid:
            self._paid[key] = self.total(self.old(place))
        return self._paid[key]

    def forest(self, place: Place, changed: Mapping[int, Step]) -> Forest | None:
        """Find cheap moves from a value's roots to its wants; None where they can't be found.

        From one root they are the cheapest.
        """
        roots = place.roots(changed)
        wants = place.wants(changed, self.member)
        key = (place.value, place.section, roots, tuple(wants), self.scope)
        if key not in self._forests:
            partial = any(a.layout.unreduced for a in roots)
            if partial and place.value in self.compared:
                self._forests[key] = None
            else:
                try:
                    loop = self.loop(place)
                    self._forests[key] = self._plant(sorted(roots, key=str), wants, loop)
                except (KeyError, UnknownRouteError):
                    self._forests[key] = None
        return self._forests[key]

    def loop(self, place: Place) -> Block | None:
        """Give the block in which all is done with a value.

        Raises `UnknownRouteError` where some is done in a block and some is not.
        """
        steps = self.steps[place.section]
        found = {steps[index].loop for index in (*place.made, *place.moves, *place.reads)}
        if len(found) > 1:
            raise UnknownRouteError
        return next(iter(found), None)

    def _plant(self, roots: Sequence[Array], wants: Sequence[Array], loop: Block | None) -> Forest:
        if not roots:
            raise UnknownRouteError
        graph = self.graph(roots[0])
        space = graph.space
        names: dict[int, Array] = {}
        for array in (*wants, *roots):  # a root's name wins
            names[space.encode(array.layout)] = array
        begin = list(dict.fromkeys(space.encode(a.layout) for a in roots))
        goals = [c for c in dict.fromkeys(space.encode(a.layout) for a in wants) if c not in begin]
        best: list[tuple[int, ...]] | None = None
        least = 0
        for legs in self._candidates(graph, begin, goals):
            weight = sum(space.distance(leg[0], leg[-1]) or 0 for leg in legs)
            if best is None or weight < least:
                best, least = legs, weight
        if best is None:
            raise UnknownRouteError
        before: dict[Array, Step] = {}
        own = names[begin[0]].tensor

        def named(array: Array) -> Array:
            known = names.get(space.encode(array.layout))
            return array if known is None else known

        for leg in best:
            source = named(Array(own, space.decode(leg[0])))
            for step in steps_along(graph, Array(own, source.layout), leg):
                made = named(step.output)
                if made not in roots and made not in before:
                    before[made] = Step(step.op, (named(step.inputs[0]),), made, loop=loop)
        for want in wants:
            if want not in roots and want not in before:
                copy = Linear((Coefficient(),))
                source = names[space.encode(want.layout)]
                before[want] = Step(copy, (source,), want, loop=loop)
        staged = self.plan.program.pipeline is not None
        if staged and any(isinstance(step.op, Permute) for step in before.values()):
            raise UnknownRouteError
        return Forest(before, self.total(before.values()))

    def _candidates(
        self, graph: Layouts, begin: Sequence[int], goals: Sequence[int]
    ) -> Iterable[list[tuple[int, ...]]]:
        space = graph.space
        if not goals:
            yield []
            return
        if len(goals) <= MANY:
            for root in begin:
                if len(goals) == 1:
                    if space.distance(root, goals[0]) is not None:
                        yield [tuple(space.trail(root, goals[0]))]
                    continue
                tree = space.tree(root, list(goals))
                if tree is not None:
                    yield list(tree.legs)
        if len(begin) > 1 or len(goals) > MANY:
            yield self._grown(graph, begin, goals)

    def _grown(
        self, graph: Layouts, begin: Sequence[int], goals: Sequence[int]
    ) -> list[tuple[int, ...]]:
        """Reach the goals one after the other, the nearest first, from all that is reached."""
        space = graph.space
        reached, left = list(begin), list(goals)
        legs: list[tuple[int, ...]] = []
        while left:
            found = [
                (weight, goal, node)
                for goal in left
                for node in reached
                if (weight := space.distances_to(goal).get(node)) is not None
            ]
            if not found:
                raise UnknownRouteError
            _, goal, node = min(found)
            leg = tuple(space.trail(node, goal, backwards=True))
            legs.append(leg)
            reached += [code for code in leg if not code & space.hub]
            left = [code for code in left if code not in reached]
        return legs


@dataclass(frozen=True, slots=True)
class Forest:
    """The moves of a value: for each array that needs one, the step that makes it; and their bytes."""

    before: Mapping[Array, Step]
    bytes: Formula

    @property
    def collectives(self) -> int:
        """How many of the moves are collectives."""
        return sum(step.is_collective for step in self.before.values())


def held(forward: Iterable[Step], backward: Iterable[Step]) -> tuple[Array, ...]:
    """Give what the backward pass reads of what the forward pass has made, in the order of need."""
    given = {array for step in forward for array in step.outputs}
    made: set[Array] = set()
    found: dict[Array, None] = {}
    for step in backward:
        found.update((a, None) for a in step.inputs if a in given and a not in made)
        made.update(step.outputs)
    return tuple(found)


def _expanded(term: Monomial, axes: set[str]) -> Iterable[Monomial]:
    """Multiply a monomial out in which every axis stands for 1 + m."""
    parts = [Monomial(term.coefficient)]
    for name, power in term.powers:
        if name not in axes:
            parts = [part * Monomial(Fraction(1), ((name, power),)) for part in parts]
            continue
        for _ in range(power):
            parts = [p for part in parts for p in (part, part * Monomial.of(name))]
    return parts


def priced(step: Step, model: Model, mesh: Mesh) -> Formula:
    """Give the bytes of a step in a model, as `cost` has them; axes that the mesh lacks don't count."""
    arrays = step.op.moves if isinstance(step.op, RingAttention) else 1
    step = step.moving
    if not isinstance(step.op, Collective):
        return Formula()
    axes = tuple(axis for axis in step.op.axes if axis in mesh)
    moved = Moved(
        step.inputs[0].local_bytes * arrays,
        step.output.local_bytes * arrays,
        Monomial.of(*(axis.name for axis in axes)),
    )
    return bytes_moved(model, step, moved)


def bytes_of(
    plan: Plan, steps: Iterable[tuple[Pass, Step]], model: str, *, numbers: bool = True
) -> Formula:
    """Add up the bytes of steps in a model's name, with a plan's sizes put in if `numbers`.

    Each counts as often as it is done in a step of training; what is prefetched is gathered once more.
    """
    mesh = Mesh(tuple(info for info in plan.program.mesh.axes if info.size != 1))
    early = {id(step) for step in gathered_ahead(plan)}
    parts: list[Formula] = []
    for section, step in steps:
        one, times = priced(step, MODELS[model], mesh), plan.times(section, step)
        parts.append(one * times)
        if id(step) in early:
            parts.append(one * (times / step.times))
    total = Formula.sum(parts)
    if not numbers:
        return total
    sizes = {name: Fraction(size) for name, size in plan.program.sizes.known.items()}
    for name in total.names:
        size = literal_size(name)
        if size is not None:
            sizes[name] = Fraction(size)
    return total.substitute(sizes)


def difference(one: Formula, other: Formula) -> Formula:
    """Subtract a formula without maxima."""
    return Formula.of(*one.terms, *(term * -1 for term in other.terms))


def axes_of(step: Step) -> tuple[Axis, ...]:
    """Give the axes that a relayout names."""
    return step.op.axes if isinstance(step.op, Relayout) else ()
