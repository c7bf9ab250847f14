"""The least costs between all layouts of a tensor at once: distances from weights on many states.

A *network* is the graph of `states` written as arrays. Weights on all states are spread along its moves
until nothing changes: what is left on a state is the least of any state's weight and the way from
there. Moves are relaxed in stages (those into a Permute's hub, those out of it, those that keep the
number of axes in use, those that lessen it, those that raise it), and a stage runs again only when
what it reads has changed. A stage's moves lie in blocks, a row of sources each, so that adding and
taking the least go over whole rows; states that few moves lead to share a block, padded with moves
that they have.

Where a tensor has few states, the distances between all of them are worked out once and kept: a table
of them is then faster to read than the moves are to follow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from shardlang.planner.states import Space

Vector = NDArray[np.float64]
Places = NDArray[np.intp]

FEW = 320
"""Up to so many states, all distances are kept as a table."""

NEVER = float(1 << 52)
"""A weight that forbids a state."""

_CALL = 4000
"""How many padded moves cost as much time as another block."""

_CHUNK = 1 << 16
"""How many numbers are added up at a time: they stay in the cache."""

_ROWS = 1 << 21
"""How many numbers a large network keeps of distances from and to single states."""


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
        rows: list[tuple[int, int, int, int]] = []
        used: list[int] = []
        nodes = list(codes)
        for here, node in enumerate(nodes):
            used.append(-1 if node & space.hub else space.used(node).bit_count())
            for other, weight in space.successors(node):
                there = place.get(other)
                if there is None:
                    there = place[other] = len(nodes)
                    nodes.append(other)
                rows.append((here, there, numbers.setdefault(weight, len(numbers)), weight))
        self.nodes = len(nodes)
        self.weights = list(numbers)
        edges = np.array([row[:3] for row in rows], dtype=np.intp).reshape(-1, 3).T
        levels = np.array(used)
        self.forward = _stages(edges[0], edges[1], edges[2], levels)
        self.backward = _stages(edges[1], edges[0], edges[2], levels)


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
    old = known.take(stage.targets, axis=0)
    found = np.empty_like(old)
    begin = 0
    for block, cost in zip(stage.blocks, costs, strict=True):
        end = begin + block.sources.shape[1]
        reached = known.take(block.sources, axis=0)
        reached += cost if known.ndim == 1 else cost[..., None]
        reached.min(axis=0, out=found[begin:end])
        begin = end
    if not (found < old).any():
        return False
    known[stage.targets] = np.minimum(found, old, out=found)
    return True


class Distances:
    """The least costs between the states of a network, for costs of its moves.

    `price` gives the cost of a move's weight: whole numbers in floats. No way costs more than `most`.
    """

    def __init__(self, network: Network, price: Callable[[int], float], most: float) -> None:
        """Price every move; of small networks, work out all distances."""
        prices = np.array([min(price(weight), most) for weight in network.weights])
        self.network, self.most = network, most
        self.many = len(network.codes)
        self._stages = {
            stages_of: [
                (stage, [prices[block.weights] for block in stage.blocks]) for stage in stages
            ]
            for stages_of, stages in (("out", network.forward), ("into", network.backward))
        }
        self._rows: dict[tuple[str, int], Vector] = {}
        self._table: dict[str, Vector] | None = None
        if self.many <= FEW:
            start = np.full((self.many, self.many), NEVER)
            np.fill_diagonal(start, 0.0)
            into = self._run("out", start)
            self._table = {"out": np.ascontiguousarray(into.T), "into": into}

    def out(self, state: int) -> Vector:
        """Give the least cost from a state to each."""
        return self._row("out", state)

    def into(self, state: int) -> Vector:
        """Give the least cost to a state from each."""
        return self._row("into", state)

    def after(self, weights: Vector) -> Vector:
        """Give, for each state, the least of a weight and the way from there to it."""
        if self._table is not None:
            return _least(self._table["into"], self._table["out"], weights)
        return self._run("out", weights)

    def before(self, weights: Vector) -> Vector:
        """Give, for each state, the least of the way from it to a state and the weight there."""
        if self._table is not None:
            return _least(self._table["out"], self._table["into"], weights)
        return self._run("into", weights)

    def _row(self, side: str, state: int) -> Vector:
        if self._table is not None:
            return self._table[side][state]
        row = self._rows.get((side, state))
        if row is None:
            start = np.full(self.many, NEVER)
            start[state] = 0.0
            while len(self._rows) * self.many > _ROWS:
                del self._rows[next(iter(self._rows))]
            row = self._rows[side, state] = self._run(side, start)
        return row

    def _run(self, side: str, weights: Vector) -> Vector:
        """Spread weights, a column each, until nothing changes."""
        known = np.full((self.network.nodes, *weights.shape[1:]), NEVER)
        known[: self.many] = weights
        changes = {False: 1, True: 0}
        stages = self._stages[side]
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
        return np.minimum(known[: self.many], weights.min(axis=0) + self.most)


def _least(rows: Vector, columns: Vector, weights: Vector) -> Vector:
    """Give the least of each row's entries with weights added; `columns` is the same table turned."""
    many = len(weights)
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
