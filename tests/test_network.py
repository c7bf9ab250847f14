"""Distances of all layouts at once, and trees in a few of them: against searches and brute force."""

from __future__ import annotations

import itertools
import random
from types import SimpleNamespace

import numpy as np
import pytest

from shardlang.planner import network
from shardlang.planner.network import distances, Moves, NEVER, Table
from shardlang.planner.prices import mesh_of
from shardlang.planner.reshard import layouts, read
from shardlang.planner.states import COLLECTIVE, KINDS, Space
from shardlang.planner.trees import Trees

SPACES = [
    ("X=2,Y=2,Z=4", {"I": 8, "J": 8, "K": 2}, "link"),
    ("X=2,Y=2,Z=4", {"I": 16, "J": 16}, "book"),
    ("X=2,Y=3,Z=4", {"I": 12, "J": 6}, "link"),
    ("X=4,Y=4", {"I": 16, "J": 4, "K": 16}, "link"),
    ("X=2,Y=1,Z=2", {"I": 4, "J": 2}, "link"),
    ("X=4", {"I": 3}, "link"),
]


def space_of(mesh: str, sizes: dict[str, int], prices: str) -> Space:
    """Give the space of a tensor with these dims."""
    array = read(f"A[{', '.join(sizes)}]", mesh_of(mesh))
    return layouts(array, mesh_of(mesh), sizes, prices).space


def everything(space: Space, codes: list[int], most: float) -> np.ndarray:
    """Give all distances by one search from every state."""
    found = np.full((len(codes), len(codes)), most)
    for i, code in enumerate(codes):
        known = space.distances_from(code)
        for j, other in enumerate(codes):
            if other in known:
                found[i, j] = min(known[other], most)
    return found


def maxima(space: Space) -> list[int]:
    """Give two states of partial maxima: all axes, and one with a split."""
    kind = KINDS.index("max") << space.kind
    found = {space.full << space.high | kind}
    if len(space.axes) > 1 and space.fits[0][1]:
        found.add(space.number[0,] << space.shifts[0] | 2 << space.high | kind)
    return sorted(found)


@pytest.mark.parametrize("space", [space_of(*each) for each in SPACES])
@pytest.mark.parametrize("extra", [False, True])
def test_rows_are_those_of_the_searches(space, extra):
    """From every state and to every state, also by symmetry, as Dijkstra's search finds it."""
    more = maxima(space) if extra else []
    codes = [*space.states(), *more]
    most = float(1 << 50)
    right = everything(space, codes, most)
    moves = Moves(space.network(more), float, most)

    for i in range(len(codes)):
        assert right[i].tolist() == moves.out(i).tolist()
        assert right[:, i].tolist() == moves.into(i).tolist()


def test_only_what_changes_no_move_counts_as_a_symmetry():
    """I and J fit the same axes and K does not; X and Y are of one size and Z is not."""
    like = space_of("X=2,Y=2,Z=4", {"I": 8, "J": 8, "K": 2}, "link").network()
    unlike = space_of("X=2,Y=3,Z=4", {"I": 12, "J": 6}, "link").network()

    assert len(like.turns) == 2
    assert sum(each is None for each in like.like) < len(like.codes) / 2
    assert not unlike.turns
    assert all(each is None for each in unlike.like)


@pytest.mark.parametrize("seed", range(12))
def test_weights_spread_as_a_table_says(seed):
    """With weights on some states, moves followed and tables read give the least sums."""
    rng = random.Random(seed)
    space = space_of(*SPACES[seed % len(SPACES)])
    codes = space.states()
    most = float(1 << 50)
    right = everything(space, codes, most)
    weights = np.full(len(codes), NEVER)
    for i in rng.sample(range(len(codes)), rng.randint(1, len(codes))):
        weights[i] = float(rng.randint(-(1 << 34), 1 << 34))
    moves = Moves(space.network(), float, most)
    after = (right + weights[:, None]).min(axis=0)
    before = (right + weights).min(axis=1)

    for each in (moves, moves.table(np.arange(len(codes)))):
        assert after.tolist() == each.after(weights).tolist()
        assert before.tolist() == each.before(weights).tolist()
        both = np.array([weights, weights[::-1]])
        turned = (right + weights[::-1, None]).min(axis=0), (right + weights[::-1]).min(axis=1)
        assert [after.tolist(), turned[0].tolist()] == each.after(both).tolist()
        assert [before.tolist(), turned[1].tolist()] == each.before(both).tolist()


def test_small_networks_are_tables():
    """Few states are read from a table, many are not; some of either are a table again."""
    small = distances(space_of(*SPACES[1]).network(), float, 1e15)
    large = distances(
        space_of("X=2,Y=2,Z=2,V=2", {"I": 16, "J": 16, "K": 16}, "link").network(),
        float,
        1e15,
    )
    some = np.array([3, 1, 200])

    assert isinstance(small, Table)
    assert isinstance(large, Moves)
    assert large.many > network.FEW
    for i, j in itertools.product(range(3), repeat=2):
        assert large.table(some).out(i)[j] == large.out(int(some[i]))[some[j]]


@pytest.mark.parametrize("once", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_trees_in_few_states_against_brute_force(seed, once):
    """A root and three readers: every shape of tree is tried, also with a reduction coming first.

    States where nothing that costs at most a little more branches may be left out.
    """
    rng = random.Random(seed)
    space = space_of("X=2,Y=2", {"I": 4, "J": rng.choice((2, 4))}, "link")
    codes = space.states()
    n = len(codes)
    table = everything(space, codes, 1e15) // COLLECTIVE
    whole = np.array([not code >> space.high & space.full for code in codes])
    value = SimpleNamespace(
        cost=Table(table), adding=np.zeros(0), codes=codes, once=once, whole=whole
    )
    root = rng.randrange(n)
    given = []
    for _ in range(3):
        weights = np.full(n, NEVER)
        for i in rng.sample(range(n), 3):
            weights[i] = float(rng.randint(-50_000, 50_000))
        given.append(weights)
    reach = [(table + weights).min(axis=1) for weights in given]
    entry = [(table[root, s], s) for s in range(n) if whole[s]] if once else [(0.0, root)]
    inner = np.full(n, np.inf)
    for (paid, start), first, second in itertools.product(entry, range(n), range(n)):
        for alone in range(3):
            pair = [reach[i][second] for i in range(3) if i != alone]
            total = paid + table[start, first] + reach[alone][first] + table[first, second]
            total += sum(pair)
            for state in {first, second, *([start] if once else [])}:
                inner[state] = min(inner[state], total)
    trees = Trees(value)
    found = trees.marginals([root], given, inner=True)

    assert inner.min() == found.least
    assert inner.tolist() == found.inner.tolist()
    limit = found.least + 2_000
    keep = (inner < limit) | np.any([weights < NEVER for weights in given], axis=0)
    keep[root] = True
    few = trees.only(np.flatnonzero(keep)).marginals([root], given)
    assert keep.sum() < n
    assert few.least == found.least
    for one, two in zip(found.targets, few.targets, strict=True):
        assert one[one < limit].tolist() == two[one < limit].tolist()
