"""The least costs between all layouts of a tensor at once: distances from weights on many states.

A *network* is the graph of `states` written as arrays. Weights on all states are spread along its moves
until nothing changes: what is left on a state is the least of any state's weight and the way from
there. Moves are relaxed in stages (those into a Permute's hub, those out of it, those that keep the
number of axes in use, those that lessen it, those that raise it), and a stage runs again only when
what it reads has changed. A stage's moves lie in blocks, a row of sources each, so that adding and
taking the least go over whole rows; states that few moves lead to share a block, padded with moves
that they have.

Where a tensor has few states, or few of them are left, the distances between all of them are worked
out once and kept: a table of them is then faster to read than the moves are to follow. States that
dims or axes of equal standing make alike have the same distances in another order, so that most rows
are those of another state, sorted anew.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from shardlang.planner.states import Space

Vector = NDArray[np.float64]
Places = NDArray[np.intp]
Flags = NDArray[np.bool_]

FEW = 320
"""Up to so many states, all distances are kept as a table."""

SMALL = 64
"""Up to so many states, several vectors of weights are spread at the same time."""

NEVER = float(1 << 52)
"""A weight that forbids a state."""

_CALL = 4000
"""How many padded moves cost as much time as another block."""

_CHUNK = 1 << 16
"""How many numbers are added up at a time: they stay in the cache."""


@dataclass(frozen=True, slots=True)
class Block:
    """Moves to some nodes: `[i, j]` is the i-th that leads to the j-th of them."""

    sources: Places
    weights: Places
    """The number of each move's weight."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Moves that are relaxed together: the nodes that they lead to, in the order of the blocks."""

    targets: Places
    blocks: tuple[Block, ...]
    reads: bool
    """Whether they start from hubs."""
    writes: bool
    """Whether they lead to hubs."""


class Network:
    """The moves between some states and all that lies on the ways between them.

    `weights` lists the distinct weights of moves; `codes` are the states, in the order of vectors.
    """

    def __init__(self, space: Space, codes: Sequence[int]) -> None:
        """Follow the moves of every state; nodes that are not in `codes` come after those."""
        self.codes = list(codes)
        place = {code: i for i, code in enumerate(codes)}
        numbers: dict[int, int] = {}
        rows: list[tuple[int, int, int]] = []
        used: list[int] = []
        nodes = list(codes)
        for here, node in enumerate(nodes):
            used.append(-1 if node & space.hub else space.used(node).bit_count())
            for other, weight in space.successors(node):
                there = place.get(other)
                if there is None:
                    there = place[other] = len(nodes)
                    nodes.append(other)
                rows.append((here, there, numbers.setdefault(weight, len(numbers))))
        self.nodes = len(nodes)
        self.weights = list(numbers)
        edges = np.array(rows, dtype=np.intp).reshape(-1, 3).T
        levels = np.array(used)
        self.forward = _stages(edges[0], edges[1], edges[2], levels)
        self.backward = _stages(edges[1], edges[0], edges[2], levels)
        self.turns = _symmetries(space, nodes, edges, len(self.codes))
        self.like = _orbits(self.turns, len(self.codes))


def _symmetries(space: Space, nodes: Sequence[int], edges: Places, many: int) -> list[Places]:
    """Give exchanges of two dims, or of two axes, that change no move: where each state goes.

    An exchange is taken at its word only if every move, with its weight, is one afterwards too.
    """
    place = {node: i for i, node in enumerate(nodes)}
    moves = _keys(edges, len(nodes))
    first = {int(hub): int(state) for state, hub, _ in edges.T[::-1] if nodes[hub] & space.hub}
    hub_of = {state: hub for state, hub, _ in edges.T.tolist() if nodes[hub] & space.hub}
    found: list[Places] = []
    for exchange in space.exchanges():
        image = [-1 if node & space.hub else place.get(exchange(node), -1) for node in nodes]
        for hub, state in first.items():
            image[hub] = hub_of.get(image[state], -1)
        turn = np.array(image, dtype=np.intp)
        if (turn < 0).any() or (turn[:many] >= many).any():
            continue
        if np.array_equal(
            _keys(np.stack([turn[edges[0]], turn[edges[1]], edges[2]]), len(nodes)), moves
        ):
            found.append(turn[:many])
    return found


def _keys(edges: Places, nodes: int) -> Places:
    """Write moves as numbers, in order."""
    return np.sort((edges[0] * nodes + edges[1]) * (edges[2].max(initial=0) + 1) + edges[2])


def _orbits(turns: Sequence[Places], many: int) -> list[tuple[int, int] | None]:
    """Give for each state another and the exchange that makes it of that; None for the first of each kind."""
    found: list[tuple[int, int] | None] = [None] * many
    seen = [False] * many
    for begin in range(many):
        todo = [] if seen[begin] else [begin]
        seen[begin] = True
        while todo:
            here = todo.pop(0)
            for number, turn in enumerate(turns):
                there = int(turn[here])
                if not seen[there]:
                    seen[there] = True
                    found[there] = (here, number)
                    todo.append(there)
    return found


def _stages(sources: Places, targets: Places, weights: Places, levels: Places) -> list[Stage]:
    """Sort moves into stages, in the order in which they are best relaxed."""
    before, after = levels[sources], levels[targets]
    into, out_of = after < 0, before < 0
    plain = ~(into | out_of)
    kinds = (
        into,
        out_of,
        plain & (before == after),
        plain & (before > after),
        plain & (before < after),
    )
    return [
        _stage(sources[kind], targets[kind], weights[kind], reads=i == 1, writes=i == 0)
        for i, kind in enumerate(kinds)
        if kind.any()
    ]


def _stage(
    sources: Places, targets: Places, weights: Places, *, reads: bool, writes: bool
) -> Stage:
    """Lay moves out in blocks, the nodes that most moves lead to first."""
    order = np.argsort(targets, kind="stable")
    nodes, starts, counts = np.unique(targets[order], return_index=True, return_counts=True)
    most = np.argsort(-counts, kind="stable")
    nodes, starts, counts = nodes[most], starts[most], counts[most]
    blocks: list[Block] = []
    begin = waste = 0
    for end in range(1, len(nodes) + 1):
        if end < len(nodes):
            waste += int(counts[begin] - counts[end])
            if waste <= _CALL:
                continue
        depth = np.arange(counts[begin])[:, None]
        picked = order[starts[begin:end] + np.minimum(depth, counts[begin:end] - 1)]
        blocks.append(Block(sources[picked], weights[picked]))
        begin, waste = end, 0
    return Stage(nodes, tuple(blocks), reads, writes)


def _relax(known: Vector, stage: Stage, costs: Sequence[Vector]) -> bool:
    """Make a stage's moves once, in place; say whether something got less."""
    old = known.take(stage.targets)
    found = np.empty_like(old)
    begin = 0
    for block, cost in zip(stage.blocks, costs, strict=True):
        end = begin + block.sources.shape[1]
        reached = known.take(block.sources)
        reached += cost
        np.minimum.reduce(reached, axis=0, out=found[begin:end])
        begin = end
    if not (found < old).any():
        return False
    known[stage.targets] = np.minimum(found, old, out=found)
    return True


class Distances(Protocol):
    """The least costs between some states, by their places.

    Weights are a vector, or several of them as the rows of a table; so is the answer.
    """

    def out(self, state: int) -> Vector:
        """Give the least cost from a state to each."""
        ...

    def into(self, state: int) -> Vector:
        """Give the least cost to a state from each."""
        ...

    def after(self, weights: Vector) -> Vector:
        """Give, for each state, the least of a weight and the way from there to it."""
        ...

    def before(self, weights: Vector) -> Vector:
        """Give, for each state, the least of the way from it to a state and the weight there."""
        ...

    def table(self, states: Places) -> Table:
        """Give the distances between some states alone."""
        ...


class Table:
    """Distances as a table `[from, to]`."""

    def __init__(self, rows: Vector) -> None:
        """Keep it in both orders."""
        self._out = rows
        self._into = np.ascontiguousarray(rows.T)

    def out(self, state: int) -> Vector:
        """Give the least cost from a state to each."""
        return self._out[state]

    def into(self, state: int) -> Vector:
        """Give the least cost to a state from each."""
        return self._into[state]

    def after(self, weights: Vector) -> Vector:
        """Give, for each state, the least of a weight and the way from there to it."""
        return _least(self._into, self._out, weights)

    def before(self, weights: Vector) -> Vector:
        """Give, for each state, the least of the way from it to a state and the weight there."""
        return _least(self._out, self._into, weights)

    def table(self, states: Places) -> Table:
        """Give the distances between some states alone."""
        return Table(self._out[np.ix_(states, states)])


Priced = list[tuple[Stage, list[Vector]]]
"""Stages with the costs of their moves, a table a block."""


class Moves:
    """Distances that are found by following the moves of a network.

    `price` gives the cost of a move's weight: whole numbers in floats. No way costs more than `most`.
    """

    def __init__(self, network: Network, price: Callable[[int], float], most: float) -> None:
        """Price every move."""
        prices = np.array([min(price(weight), most) for weight in network.weights])
        self.network, self.most = network, most
        self.many = len(network.codes)
        self._forward = [(s, [prices[b.weights] for b in s.blocks]) for s in network.forward]
        self._backward = [(s, [prices[b.weights] for b in s.blocks]) for s in network.backward]
        self._rows: dict[tuple[bool, int], Vector] = {}
        self._inverse = [np.argsort(turn) for turn in network.turns]

    def out(self, state: int) -> Vector:
        """Give the least cost from a state to each."""
        return self._row(state, backwards=False)

    def into(self, state: int) -> Vector:
        """Give the least cost to a state from each."""
        return self._row(state, backwards=True)

    def after(self, weights: Vector) -> Vector:
        """Give, for each state, the least of a weight and the way from there to it."""
        return self._each(self._forward, weights)

    def before(self, weights: Vector) -> Vector:
        """Give, for each state, the least of the way from it to a state and the weight there."""
        return self._each(self._backward, weights)

    def table(self, states: Places) -> Table:
        """Give the distances between some states alone."""
        return Table(np.stack([self.out(int(state))[states] for state in states]))

    def _row(self, state: int, *, backwards: bool) -> Vector:
        like = self.network.like[state]
        if like is not None:
            other, turn = like
            return self._row(other, backwards=backwards)[self._inverse[turn]]
        row = self._rows.get((backwards, state))
        if row is None:
            start = np.full(self.many, NEVER)
            start[state] = 0.0
            row = self._spread(self._backward if backwards else self._forward, start)
            self._rows[backwards, state] = row
        return row

    def _each(self, stages: Priced, weights: Vector) -> Vector:
        """Spread a vector of weights, or several."""
        if weights.ndim == 1:
            return self._spread(stages, weights)
        return np.array([self._spread(stages, row) for row in weights])

    def _spread(self, stages: Priced, weights: Vector) -> Vector:
        """Spread weights until nothing changes."""
        known = np.full(self.network.nodes, NEVER)
        known[: self.many] = weights
        changes = {False: 1, True: 0}
        seen = [0] * len(stages)
        moved = True
        while moved:
            moved = False
            for i, (stage, costs) in enumerate(stages):
                if seen[i] == changes[stage.reads]:
                    continue
                seen[i] = changes[stage.reads]
                if _relax(known, stage, costs):
                    changes[stage.writes] += 1
                    moved = True
        return np.minimum(known[: self.many], weights.min() + self.most)


def distances(network: Network, price: Callable[[int], float], most: float) -> Moves | Table:
    """Give the distances of a network, in the form that is the fastest for its size."""
    moves = Moves(network, price, most)
    return moves.table(np.arange(moves.many)) if moves.many <= FEW else moves


def _least(rows: Vector, columns: Vector, weights: Vector) -> Vector:
    """Give the least of each row's entries with weights added; `columns` is the same table turned."""
    many = len(rows)
    if weights.ndim > 1:
        if many > SMALL:
            return np.array([_least(rows, columns, each) for each in weights])
        return (columns + weights[:, :, None]).min(axis=1)
    few = np.flatnonzero(weights < NEVER / 2)
    if 3 * len(few) < many:
        if not len(few):
            return np.full(many, NEVER)
        return (columns[few] + weights[few, None]).min(axis=0)
    found = np.empty(many)
    step = max(_CHUNK // many, 1)
    space = np.empty((min(step, many), many))
    for begin in range(0, many, step):
        part = rows[begin : begin + step]
        sums = np.add(part, weights, out=space[: len(part)])
        sums.min(axis=1, out=found[begin : begin + step])
    return found
