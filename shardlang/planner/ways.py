"""Every way to do an operation locally: the layouts of its operands and what it makes of them.

Each mesh axis has one role. It may be *of a dim*: the dim is split by it wherever it occurs, and a dim
that is combined along leaves the result partial over it. It may run *through operands*: what the
operation is linear in is unreduced over it, and so is the result. Or it has none, and the work is
repeated. `rules.local` is the type checker that says the same of one step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shardlang.ir.ops import Compute, Divide, Einsum, Linear, Put, Reduce, Select, Take
from shardlang.ir.types import Dim
from shardlang.planner.states import KINDS, Space
from shardlang.rules.local import summed

End = tuple[Space, tuple[Dim, ...]]
"""A tensor's graph of layouts and its dims."""


@dataclass(frozen=True, slots=True)
class Local:
    """A way to compute locally: a state for each operand and for the result.

    `split` are the axes that divide the work.
    """

    operands: tuple[int, ...]
    result: int
    split: int


def linear_in(op: Compute, operands: int) -> list[tuple[int, ...]]:
    """Give the sets of operands that may be unreduced together: the operation is linear in them."""
    match op:
        case Einsum():
            return [(index,) for index in range(operands)]
        case Linear(_, constant) if not constant:
            return [tuple(range(operands))]
        case Divide() | Reduce("sum" | "mean", _) | Take() | Put():
            return [(0,)]
        case Select(fill) if fill == 0:
            return [(1,)]
        case _:
            return []


def ways(op: Compute, operands: Sequence[End], result: End) -> Iterator[Local]:
    """List every local way of an operation, as states of the operands' and the result's graphs.

    Operands are whole or sums; a result of `max` and `min` may be a partial maximum.
    """
    ends = (*operands, result)
    last = len(operands)
    spaces = [space for space, _ in ends]
    space = spaces[0]
    dims = list(dict.fromkeys(dim for _, own in ends for dim in own))
    gone = set(summed(op))
    kind = KINDS.index(op.combines) if isinstance(op, Reduce) else 0
    places = [
        [(i, own.index(dim)) for i, (_, own) in enumerate(ends) if dim in own] for dim in dims
    ]
    fits = [
        [all(spaces[i].fits[d][mask] for i, d in where) for mask in range(space.full + 1)]
        for where in places
    ]
    highs = [each.high for each in spaces]
    through = linear_in(op, last)

    def roles(at: int, free: int, split: int, codes: tuple[int, ...]) -> Iterator[Local]:
        if at == len(dims):
            yield from partials(0, free, codes, split)
            return
        for index, mask in enumerate(space.masks):
            if mask & ~free or not fits[at][mask]:
                continue
            made = list(codes)
            for i, d in places[at]:
                made[i] |= index << spaces[i].shifts[d]
            if dims[at] in gone:
                made[last] |= mask << highs[last]
            yield from roles(at + 1, free & ~mask, split | mask, tuple(made))

    def partials(group: int, free: int, codes: tuple[int, ...], split: int) -> Iterator[Local]:
        if group == len(through) or not free:
            made = codes[last]
            if kind and made >> highs[last] & space.full:
                made |= kind << spaces[last].kind
            yield Local(codes[:last], made, split)
            return
        sub = free
        while True:
            made = list(codes)
            if sub:
                for operand in (*through[group], last):
                    made[operand] |= sub << highs[operand]
            yield from partials(group + 1, free & ~sub, tuple(made), split)
            if not sub:
                return
            sub = (sub - 1) & free

    yield from roles(0, space.full, 0, (0,) * len(ends))
