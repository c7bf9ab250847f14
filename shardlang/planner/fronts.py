"""All plans of a problem that may be the best for some sizes, as formulas of what they cost.

Of each value's moves, and then of all ways together, those are kept that no other costs at most as
much as, coefficient by coefficient, in quantities that are never negative: the volume of each tensor
times powers of what an axis has above 2. So none that is dropped is ever the only best one, whatever
the sizes. Routes are label-setting searches with a set of labels a state, values are trees over sets
of places as in `trees`, and operations are joined one after the other.

A space of states is searched with prices that are numbers of entries in a table (`Listed`): what the
table has for them are the formulas.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from heapq import heappop, heappush
from itertools import count
from math import lcm, prod
from typing import Any

from shardlang.ir.size import Monomial
from shardlang.ir.types import Array, AxisInfo, Layout
from shardlang.planner.polynomials import cleared, Polynomial, Powers
from shardlang.planner.prices import Moved, Prices
from shardlang.planner.problem import Operation, Problem, UnplannableError, Value
from shardlang.planner.reshard import layouts
from shardlang.planner.states import Edge, Space, UNIT

Vector = tuple[int, ...]
"""Coefficients of a cost, none of them negative."""

Label = tuple[Vector, int]
"""A cost, and what settles a tie: collectives and moves."""

Front = list[Label]
"""Costs of which none is at most another in every coefficient."""

Entry = tuple[Vector, tuple[Fraction, int, tuple[int, ...]]]
"""A cost with what settles ties (FLOPs, then collectives and moves) and the ways so far."""

COMBINED = 100_000
"""In how many ways all operations together may be done."""

MOST = 20_000
"""How many combinations may be kept at a time."""

WIDEST = 60
"""The most layouts of a value that is had in several places."""


class Listed:
    """A price list whose prices are places in a table of formulas; 0 is nothing.

    It is asked about one byte on axes of the given sizes; the axes `open` are symbols in the formulas.
    """

    linear: bool = True

    def __init__(self, axes: Sequence[AxisInfo], opened: Iterable[str], prices: Prices) -> None:
        """Name the numbers of shards that there can be."""
        self.name = prices.name
        self.prices = prices
        self.found: dict[Polynomial, int] = {Polynomial({}): 0}
        names = set(opened)
        self._axes = {
            info.axis: AxisInfo(info.axis, None, info.network, info.links)
            if info.axis.name in names
            else info
            for info in axes
        }
        self._shards = {1: Polynomial.of(1)}
        for info in axes:
            size = info.size or 1
            own = Monomial.of(info.axis.name) if info.axis.name in names else size
            more = {n * size: p * Polynomial.of(own) for n, p in self._shards.items()}
            self._shards = {**more, **self._shards}

    def _ask(self, method: str, moved: Moved) -> Fraction:
        operand: Any = 1 / self._shards[int(1 / moved.operand)]
        result: Any = 1 / self._shards[int(1 / moved.result)]
        n: Any = self._shards[moved.n]
        axes = tuple(self._axes[info.axis] for info in moved.axes)
        try:
            price: Any = getattr(self.prices, method)(Moved(operand, result, axes, n))
            formula = Polynomial.of(price)
        except (TypeError, AttributeError, ValueError):
            raise UnplannableError(
                f"the prices '{self.name}' are no sums of products of sizes"
            ) from None
        return Fraction(self.found.setdefault(formula, len(self.found)))

    def all_gather(self, moved: Moved) -> Fraction:
        """Give the place of the price of joining shards."""
        return self._ask("all_gather", moved)

    def reduce_scatter(self, moved: Moved) -> Fraction:
        """Give the place of the price of adding up and leaving split."""
        return self._ask("reduce_scatter", moved)

    def all_reduce(self, moved: Moved) -> Fraction:
        """Give the place of the price of adding up and leaving whole."""
        return self._ask("all_reduce", moved)

    def all_to_all(self, moved: Moved) -> Fraction:
        """Give the place of the price of moving a split from dim to dim."""
        return self._ask("all_to_all", moved)

    def permute(self, moved: Moved) -> Fraction:
        """Give the place of the price of exchanging whole shards."""
        return self._ask("permute", moved)


@dataclass(frozen=True)
class Candidate:
    """The number of the way of each operation, and what the plan moves in bytes."""

    ways: dict[int, int]
    cost: Polynomial


def least(labels: Iterable[Label]) -> Front:
    """Keep those that none is at most in every coefficient; of equal ones, the first by tie."""
    kept: Front = []
    for label in sorted(labels, key=lambda label: (sum(label[0]), label[0], label[1])):
        if not _beaten(label[0], kept):
            kept.append(label)
    return kept


def _beaten(vector: Vector, by: Iterable[tuple[Vector, Any]]) -> bool:
    return any(all(map(int.__le__, other, vector)) for other, _ in by)


def _plus(left: Vector, right: Vector) -> Vector:
    return tuple(map(int.__add__, left, right))


def _both(left: Front, right: Front) -> Iterator[Label]:
    return ((_plus(a, b), m + n) for a, m in left for b, n in right)


class Routes:
    """The least costs between the states of one value's tensor."""

    def __init__(self, space: Space, table: Sequence[Vector]) -> None:
        """Take a space whose weights are places in a table."""
        self.space = space
        self.table = table
        self.nothing: Front = [((0,) * len(table[0]), 0)]
        self._toward: dict[frozenset[int], Mapping[int, Front]] = {}
        self._along: dict[tuple[int, ...], Mapping[int, Front]] = {}

    def spread(self, start: Mapping[int, Front], *, backwards: bool) -> dict[int, Front]:
        """Extend costs at some states to all that they lead to, or that lead to them."""
        expand = self.space.predecessors if backwards else self.space.successors
        known = {state: list(front) for state, front in start.items()}
        number = count()
        heap: list[tuple[int, int, int, int, Vector]] = [
            (sum(vector), tie, next(number), state, vector)
            for state, front in start.items()
            for vector, tie in front
        ]
        heap.sort()
        while heap:
            _, tie, _, state, vector = heappop(heap)
            if (vector, tie) not in known[state]:
                continue
            edges: Sequence[Edge] = expand(state)
            for other, weight in edges:
                place, more = divmod(weight, UNIT)
                made = _plus(vector, self.table[place]) if place else vector
                front = known.setdefault(other, [])
                if any(
                    all(map(int.__le__, v, made)) and (v != made or t <= tie + more)
                    for v, t in front
                ):
                    continue
                front[:] = [(v, t) for v, t in front if not all(map(int.__le__, made, v))]
                front.append((made, tie + more))
                heappush(heap, (sum(made), tie + more, next(number), other, made))
        return known

    def toward(self, wanted: Iterable[int]) -> Mapping[int, Front]:
        """Give what it costs from each state to have all targets."""
        targets = frozenset(wanted)
        if targets not in self._toward:
            if len(targets) == 1:
                start: dict[int, Front] = {next(iter(targets)): self.nothing}
            else:
                self._check_width()
                start = self._joined(sorted(targets), self.toward)
            self._toward[targets] = self.spread(start, backwards=True)
        return self._toward[targets]

    def along(self, given: Iterable[int]) -> Mapping[int, Front]:
        """Give what it costs to have the sum of all sources in each state."""
        sources = tuple(sorted(given))
        if sources not in self._along:
            if len(sources) == 1:
                start: dict[int, Front] = {sources[0]: self.nothing}
            else:
                self._check_width()
                start = self._joined(sources, self.along)
            self._along[sources] = self.spread(start, backwards=False)
        return self._along[sources]

    def _check_width(self) -> None:
        if len(self.space.states()) > WIDEST:
            raise UnplannableError("a value of many layouts is had in several places")

    def _joined(
        self, places: Sequence[int], known: Callable[[Iterable[int]], Mapping[int, Front]]
    ) -> dict[int, Front]:
        """Put the costs of two parts together where they meet."""
        found: dict[int, list[Label]] = {}
        for mask in range(1, 1 << len(places) - 1):
            one = known([p for i, p in enumerate(places) if mask >> i & 1])
            two = known([p for i, p in enumerate(places) if not mask >> i & 1])
            for state in one:
                if state in two and not state & self.space.hub:
                    found.setdefault(state, []).extend(_both(one[state], two[state]))
        return {state: least(labels) for state, labels in found.items()}

    def cost(self, sources: Sequence[int], targets: Iterable[int]) -> Front:
        """Give what a value costs that is made in some states and had in others."""
        wanted = frozenset(targets)
        if not wanted:
            return self.nothing
        there = self.toward(wanted)
        if len(sources) == 1 and sources[0] in there:
            return there[sources[0]]
        # a search backwards never meets partial maxima (see `Space.backward`): go forwards from them
        made = self.along(sources)
        return least(
            label for s in made if s in there and not s & self.space.hub
            for label in _both(made[s], there[s])
        )  # fmt: skip


@dataclass
class Fronts:
    """The candidates of a problem; `volume` gives a tensor's bytes as a product of sizes."""

    problem: Problem
    prices: Prices
    opened: Sequence[str]
    volumes: Sequence[Polynomial]
    _routes: list[Routes] = field(default_factory=list[Routes])
    _known: dict[object, Front] = field(default_factory=dict[object, Front])

    def __post_init__(self) -> None:
        """Price every move as a vector of coefficients."""
        problem = self.problem
        if prod(len(operation.ways) for operation in problem.operations) > COMBINED:
            raise UnplannableError("there are too many operations or axes to go through all plans")
        listed = Listed(problem.mesh.axes, self.opened, self.prices)
        spaces: list[Space] = []
        for value in problem.values:
            if value.once:
                raise UnplannableError("a maximum is compared")
            whole = Array(value.tensor, Layout.replicated(len(value.tensor.dims)))
            made = layouts(whole, problem.mesh, problem.sizes, listed)
            spaces.append(made.space)
        self._tabulate(listed, spaces)

    def _tabulate(self, listed: Listed, spaces: Sequence[Space]) -> None:
        formulas = list(listed.found)
        self._factor = cleared(formulas)
        above: dict[str, Polynomial] = {
            name: Polynomial({(): Fraction(2), ((name, 1),): Fraction(1)}) for name in self.opened
        }
        shifted = [(formula * self._factor).replaced(above) for formula in formulas]
        self._places = sorted({powers for each in shifted for powers in each.terms}) or [()]
        volumes: list[tuple[Powers, Fraction]] = []
        for volume in self.volumes:
            if len(volume.terms) > 1:
                raise UnplannableError("a size is a sum of others")
            volumes += volume.terms.items()
        self._groups = list(dict.fromkeys(powers for powers, _ in volumes))
        self._scale = lcm(*(v.denominator for each in shifted for v in each.terms.values()))
        self._scale *= lcm(*(value.denominator for _, value in volumes))
        table: list[list[Fraction]] = [
            [each.terms.get(p, Fraction(0)) * self._scale for p in self._places] for each in shifted
        ]
        if any(entry < 0 for row in table for entry in row):
            raise UnplannableError(f"the prices '{listed.name}' may be negative")
        shared: dict[tuple[int, Powers, Fraction], Routes] = {}
        for (powers, value), space in zip(volumes, spaces, strict=True):
            key = (id(space), powers, value)
            if key not in shared:
                at = self._groups.index(powers) * len(self._places)
                after = len(self._groups) * len(self._places) - at - len(self._places)
                shared[key] = Routes(
                    space,
                    [(*[0] * at, *(int(x * value) for x in row), *[0] * after) for row in table],
                )
            self._routes.append(shared[key])

    def _formula(self, vector: Vector) -> Polynomial:
        """Read a vector as bytes again."""
        below = {
            name: Polynomial({(): Fraction(-2), ((name, 1),): Fraction(1)}) for name in self.opened
        }
        total = Polynomial({})
        width = len(self._places)
        for i, powers in enumerate(self._groups):
            own = {
                place: Fraction(vector[i * width + j], self._scale)
                for j, place in enumerate(self._places)
            }
            total += Polynomial(own).replaced(below) * Polynomial({powers: Fraction(1)})
        return total / self._factor

    def _value(self, index: int, states: Mapping[int, int]) -> Front:
        """Give the costs of a value whose slots are settled."""
        value: Value = self.problem.values[index]
        sources = [value.codes[states[s]] for s in value.sources]
        if not sources:
            sources = [value.codes[value.root or 0]]
        targets = [value.codes[states[s]] for s in value.targets]
        targets += [value.codes[t] for t in value.terminals]
        key = (index, *sorted(sources), None, *sorted(set(targets)))
        if key not in self._known:
            self._known[key] = self._routes[index].cost(sources, targets)
        return self._known[key]

    def candidates(self) -> list[Candidate]:
        """Join the operations one after the other; settle each value when its last slot is."""
        problem = self.problem
        slots_of = [[*value.sources, *value.targets] for value in problem.values]
        last = [max((problem.slots[s].op for s in own), default=-1) for own in slots_of]
        nothing: Vector = (0,) * (len(self._groups) * len(self._places))
        # what is open (the states of slots of values to be settled) with costs, ties and ways
        table: dict[tuple[tuple[int, int], ...], list[Entry]] = {}
        begin: list[Entry] = [(nothing, (Fraction(0), 0, ()))]
        table[()] = self._settle(begin, [v for v, op in enumerate(last) if op < 0], {})
        for op, operation in enumerate(problem.operations):
            done = [v for v, end in enumerate(last) if end == op]
            closed = {s for v in done for s in slots_of[v]}
            made: dict[tuple[tuple[int, int], ...], list[Entry]] = {}
            total = 0
            for states, way, work in _distinct(operation):
                own = dict(zip(operation.slots, states, strict=True))
                for key, entries in table.items():
                    every = {**dict(key), **own}
                    more: list[Entry] = [
                        (vector, (flops + work, tie, (*ways, way)))
                        for vector, (flops, tie, ways) in entries
                    ]
                    left = tuple(sorted((s, p) for s, p in every.items() if s not in closed))
                    found = self._settle(more, done, every)
                    made.setdefault(left, []).extend(found)
                    total += len(found)
                    if total > MOST * 8:
                        raise UnplannableError("there are too many ways to go through")
            table = {key: _undominated(entries) for key, entries in made.items()}
            if sum(map(len, table.values())) > MOST:
                raise UnplannableError("there are too many ways to go through")
        [ends] = table.values()
        return [
            Candidate(dict(enumerate(ways)), self._formula(vector))
            for vector, (_, _, ways) in sorted(ends, key=lambda end: end[1][:2])
        ]

    def _settle(
        self,
        entries: list[Entry],
        done: Iterable[int],
        states: Mapping[int, int],
    ) -> list[Entry]:
        """Add the costs of values whose slots are all chosen."""
        for value in done:
            front = self._value(value, states)
            entries = [
                (_plus(vector, more), (flops, tie + ties, ways))
                for vector, (flops, tie, ways) in entries
                for more, ties in front
            ]
        return entries


def _distinct(operation: Operation) -> Iterator[tuple[tuple[int, ...], int, Fraction]]:
    """Give the ways of an operation by the states of its slots, the one of the fewest FLOPs for each."""
    found: dict[tuple[int, ...], tuple[Fraction, int]] = {}
    for way, local in enumerate(operation.ways):
        states = tuple(int(own[way]) for own in operation.states)
        work = operation.work[local.split]
        if states not in found or work < found[states][0]:
            found[states] = work, way
    for states, (work, way) in found.items():
        yield states, way, work


def _undominated(
    entries: list[Entry],
) -> list[Entry]:
    kept: list[Entry] = []
    for entry in sorted(entries, key=lambda entry: (sum(entry[0]), entry[0], entry[1])):
        if not _beaten(entry[0], kept):
            kept.append(entry)
    return kept
