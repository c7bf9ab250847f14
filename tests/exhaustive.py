"""Brute force over layouts, moves and local products, for the planner's answers to be held against.

It shares no code with the compiler: a layout is a tuple of tuples of axis names and a set of names,
the moves are written out from the language's definition, distances come from Bellman and Ford's
method, and an einsum tries every layout of every operand. Costs count in elements, times `SCALE`, so
that they are integers, with the number of collectives below: `cost * MANY + collectives`.
"""

from __future__ import annotations

import itertools
import re
from collections import deque
from dataclasses import dataclass
from functools import cache
from math import prod

Splits = tuple[tuple[str, ...], ...]
State = tuple[Splits, frozenset[str]]
Axes = tuple[tuple[str, int], ...]
"""A mesh: names and sizes."""

SCALE = 4 * (64 * 27) ** 2
"""Divided by 4 times the square of every number of devices that the tests have."""

MANY = 10_000
"""More than the collectives of any route."""


def subsets(names):
    """Every subset."""
    names = tuple(names)
    return [c for n in range(len(names) + 1) for c in itertools.combinations(names, n)]


def ordered(names):
    """Every ordered subset."""
    return [p for c in subsets(names) for p in itertools.permutations(c)]


@dataclass(frozen=True)
class Network:
    """What collectives cost: functions of the local elements before, after, and of n."""

    gather: object
    scatter: object
    reduce: object
    exchange: object
    permute: object


NETWORKS = {
    "link": Network(
        gather=lambda b, a, n: a * (n - 1) // n,
        scatter=lambda b, a, n: b * (n - 1) // n,
        reduce=lambda b, a, n: 2 * b * (n - 1) // n,
        exchange=lambda b, a, n: b * (n - 1) // n,
        permute=lambda b, a, n: b,
    ),
    "book": Network(
        gather=lambda b, a, n: a,
        scatter=lambda b, a, n: b,
        reduce=lambda b, a, n: 2 * b,
        exchange=lambda b, a, n: b * n // 4,
        permute=lambda b, a, n: b,
    ),
    "switch": Network(
        gather=lambda b, a, n: b,
        scatter=lambda b, a, n: b * (n - 1) // n,
        reduce=lambda b, a, n: b,
        exchange=lambda b, a, n: b * (n - 1) // n,
        permute=lambda b, a, n: b,
    ),
}


def local_shape(splits: Splits, shape, mesh) -> tuple[int, ...] | None:
    """The shape of a shard, None where a dim isn't divided."""
    found = []
    for size, axes in zip(shape, splits, strict=True):
        over = prod(mesh[a] for a in axes)
        if size % over:
            return None
        found.append(size // over)
    return tuple(found)


@cache
def all_states(shape: tuple[int, ...], axes: Axes) -> tuple[State, ...]:
    """Every layout of an array of a shape on a mesh."""
    mesh = dict(axes)
    found = []
    for splits in itertools.product(ordered(mesh), repeat=len(shape)):
        used = [a for s in splits for a in s]
        if len(used) == len(set(used)) and local_shape(splits, shape, mesh) is not None:
            rest = set(mesh) - set(used)
            found += [(splits, frozenset(u)) for u in subsets(sorted(rest))]
    return tuple(found)


@cache
def graph(shape: tuple[int, ...], axes: Axes, network: str):
    """Every move from every layout: `{state: {state: cost}}`."""
    mesh, prices = dict(axes), NETWORKS[network]
    states = all_states(shape, axes)
    legal = set(states)
    moves: dict[State, dict[State, int]] = {state: {} for state in states}

    def size(state):
        return SCALE * prod(local_shape(state[0], shape, mesh))

    def add(before, after, price, names):
        if after not in legal or after == before:
            return
        n = prod(mesh[a] for a in names)
        cost = 0
        if price is not None and n > 1:
            cost = price(size(before), size(after), n) * MANY + 1
        moves[before][after] = min(cost, moves[before].get(after, cost))

    def put(splits, dim, axes_of_dim):
        return (*splits[:dim], axes_of_dim, *splits[dim + 1 :])

    shapes: dict[object, list[State]] = {}
    for state in states:
        shapes.setdefault((local_shape(state[0], shape, mesh), state[1]), []).append(state)
    for state in states:
        splits, sums = state
        idle = set(mesh) - sums - {a for s in splits for a in s}
        for dim, own in enumerate(splits):
            for at in range(len(own)):
                keep, group = own[:at], own[at:]
                add(state, (put(splits, dim, keep), sums), prices.gather, group)
                for other in range(len(splits)):
                    if other != dim:
                        moved = put(put(splits, dim, keep), other, splits[other] + group)
                        add(state, (moved, sums), prices.exchange, group)
            for group in ordered(sorted(sums)):
                add(
                    state, (put(splits, dim, own + group), sums - set(group)), prices.scatter, group
                )
            for group in ordered(sorted(idle)):
                add(state, (put(splits, dim, own + group), sums), None, group)
        for group in subsets(sorted(sums)):
            add(state, (splits, sums - set(group)), prices.reduce, group)
        for group in subsets(sorted(idle)):
            add(state, (splits, sums | set(group)), None, group)
        for other in shapes[local_shape(splits, shape, mesh), sums]:
            bare = [
                [[a for a in own if mesh[a] > 1] for own in each] for each in (splits, other[0])
            ]
            free = bare[0] == bare[1]
            add(state, other, None if free else prices.permute, mesh)
    return moves


def relax(moves, start):
    """Distances from a state by Bellman and Ford's method, with a queue."""
    best = {start: 0}
    queue = deque([start])
    while queue:
        state = queue.popleft()
        for other, cost in moves[state].items():
            if best[state] + cost < best.get(other, 1 << 300):
                best[other] = best[state] + cost
                queue.append(other)
    return best


@cache
def distances(state: State, shape: tuple[int, ...], axes: Axes, network: str):
    """Least costs from a state to every other."""
    return relax(graph(shape, axes, network), state)


@cache
def _reversed(shape: tuple[int, ...], axes: Axes, network: str):
    moves = graph(shape, axes, network)
    back: dict[State, dict[State, int]] = {state: {} for state in moves}
    for state, others in moves.items():
        for other, cost in others.items():
            back[other][state] = cost
    return back


@cache
def distances_to(state: State, shape: tuple[int, ...], axes: Axes, network: str):
    """Least costs to a state from every other."""
    return relax(_reversed(shape, axes, network), state)


def product_layout(dims: list[str], states: list[State], out: str) -> State | None:
    """The layout of a product made with no communication, None where there is none.

    Every dim is split alike in all operands that have it; no axis splits two dims; at most one
    operand is a partial sum over an axis, and no other operand has that axis anywhere.
    """
    split: dict[str, tuple[str, ...]] = {}
    for own, (splits, _) in zip(dims, states, strict=True):
        for dim, axes in zip(own, splits, strict=True):
            if split.setdefault(dim, axes) != axes:
                return None
    used = [a for axes in split.values() for a in axes]
    sums = [a for _, partial in states for a in partial]
    if len(set(used)) != len(used) or len(set(sums)) != len(sums) or set(used) & set(sums):
        return None
    gone = [a for dim, axes in split.items() if dim not in out for a in axes]
    return tuple(split.get(dim, ()) for dim in out), frozenset(sums + gone)


def best_einsum(dims, states, out, target, sizes, axes: Axes, network="link"):
    """The least (cost, FLOPs, collectives) of an einsum, over every layout of every operand.

    `dims` are strings of one-letter dims; every dim of `out` is in some operand.
    """
    mesh = dict(axes)
    shapes = [tuple(sizes[d] for d in own) for own in dims]
    after = distances_to(target, tuple(sizes[d] for d in out), axes, network)
    tables = [
        distances(state, shape, axes, network) for state, shape in zip(states, shapes, strict=True)
    ]
    letters = dict.fromkeys("".join(dims))
    best = None
    for chosen in _choices(dims, tables, ()):
        made = product_layout(dims, list(chosen), out)
        if made is None or made not in after:
            continue
        total = after[made] + sum(t[s] for t, s in zip(tables, chosen, strict=True))
        dividing = {a for splits, _ in chosen for s in splits for a in s}
        points = prod(sizes[d] for d in letters) * (2 if set(letters) - set(out) else len(dims) - 1)
        key = (total // MANY, points // prod(mesh[a] for a in dividing), total % MANY)
        if best is None or key < best:
            best = key
    return best


def _choices(dims, tables, chosen):
    """Combinations of layouts, cut off where two operands already split a dim unlike."""
    if len(chosen) == len(tables):
        yield chosen
        return
    for state in tables[len(chosen)]:
        more = (*chosen, state)
        split: dict[str, object] = {}
        alike = all(
            split.setdefault(dim, axes) == axes
            for own, (splits, _) in zip(dims, more, strict=False)
            for dim, axes in zip(own, splits, strict=True)
        )
        if alike:
            yield from _choices(dims, tables, more)


WORK = 10**12
"""More than the FLOPs of any plan here."""


def best_product(dims, states, out, target, sizes, axes: Axes, network="link"):
    """The least (cost, FLOPs, collectives) of a product made in any order, in parts or at once.

    A part is a set of operands; its dims are those that the result or an operand outside of it has,
    and it may be had in any layout. An operand's own dims may be summed before anything else.
    """
    mesh = dict(axes)
    every = frozenset(range(len(dims)))

    def needed(part):
        rest = out + "".join(dims[i] for i in every - part)
        return "".join(
            d for d in dict.fromkeys("".join(dims[i] for i in sorted(part))) if d in rest
        )

    def spread(start, own):
        """From weights at some layouts to weights at all."""
        moves = graph(tuple(sizes[d] for d in own), axes, network)
        best, queue = dict(start), deque(start)
        while queue:
            state = queue.popleft()
            for other, price in moves[state].items():
                cost, collectives = divmod(price, MANY)
                total = best[state] + cost * WORK * MANY + collectives
                if total < best.get(other, 1 << 400):
                    best[other] = total
                    queue.append(other)
        return best

    def work(names, chosen, times):
        dividing = {a for splits, _ in chosen for s in splits for a in s}
        return times * prod(sizes[d] for d in names) // prod(mesh[a] for a in dividing)

    def combine(forms, own):
        start: dict[State, int] = {}
        names = set("".join(form for form, _ in forms))
        times = (2 if names - set(own) else len(forms) - 1) if len(forms) > 1 else 1
        for chosen in _choices([form for form, _ in forms], [t for _, t in forms], ()):
            made = product_layout([form for form, _ in forms], list(chosen), own)
            if made is not None and local_shape(made[0], [sizes[d] for d in own], mesh) is not None:
                total = sum(t[s] for (_, t), s in zip(forms, chosen, strict=True))
                total += work(names, chosen, times) * MANY
                start[made] = min(total, start.get(made, total))
        return start

    @cache
    def forms(part):
        own = needed(part)
        if len(part) == 1:
            (index,) = part
            whole = dims[index], spread({states[index]: 0}, dims[index])
            return (
                [whole]
                if own == dims[index]
                else [whole, (own, spread(combine([whole], own), own))]
            )
        if part == every:
            own = out
        start: dict[State, int] = {}
        for parts in partitions(sorted(part)):
            if len(parts) > 1:
                for chosen in itertools.product(*(forms(frozenset(p)) for p in parts)):
                    for state, total in combine(list(chosen), own).items():
                        start[state] = min(total, start.get(state, total))
        return [(own, spread(start, own))]

    total = forms(every)[0][1][target]
    return total // MANY // WORK, total // MANY % WORK, total % MANY


def partitions(items):
    """Every way to put items into groups."""
    if not items:
        yield []
        return
    first, *rest = items
    for others in partitions(rest):
        yield [[first], *others]
        for i, group in enumerate(others):
            yield [*others[:i], [first, *group], *others[i + 1 :]]


def read(text: str) -> tuple[str, list[str], State]:
    """Read `A[I_XY, J]{U_Z}` with one-letter axes: the name, the dims and the layout."""
    found = re.fullmatch(r"(\w+)\[(.*?)\](?:\{U_(\w+)\})?", text.replace(" ", ""))
    assert found is not None, text
    parts = [part.partition("_") for part in found[2].split(",") if part]
    splits = tuple(tuple(axes) for _, _, axes in parts)
    return found[1], [dim for dim, _, _ in parts], (splits, frozenset(found[3] or ""))
