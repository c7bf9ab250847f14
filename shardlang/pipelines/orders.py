"""The order in which each stage does its work, by the schedules that emitted modules can have.

Each function stands alone: its text is written into a module as it is here, so that a module has the order of the
table that was simulated. Given stages, microbatches and chunks a stage, it lists for each stage the
pieces of work (kind, microbatch, chunk), with kinds "F" and "BW" (dX and dW in one).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping

from shardlang.pipelines.table import Kind

Piece = tuple[Kind, int, int]
"""A kind of work, a microbatch, and a chunk of the stage."""


def gpipe(stages: int, count: int) -> list[list[Piece]]:
    """Order each stage's work: all forwards, then all backwards."""
    return [[(kind, i, 0) for kind in ("F", "BW") for i in range(count)]] * stages


def one_f_one_b(stages: int, count: int) -> list[list[Piece]]:
    """Order each stage's work: a forward for each stage left, then backwards and forwards in turn."""
    orders = []
    for stage in range(stages):
        first = min(stages - stage, count)
        order = [("F", i, 0) for i in range(first)]
        for i in range(count):
            order += [("BW", i, 0), ("F", first + i, 0)]
        orders.append([piece for piece in order if piece[1] < count])
    return orders


def interleaved(stages: int, count: int, chunks: int) -> list[list[Piece]]:
    """Order each stage's work: 1f1b on chunks, in groups of one microbatch a stage."""
    if count % stages:
        raise ValueError(f"{count} microbatches are no multiple of {stages} stages")
    groups = [range(start, start + stages) for start in range(0, count, stages)]
    forwards = [("F", i, c) for group in groups for c in range(chunks) for i in group]
    backwards = [("BW", i, c) for group in groups for c in reversed(range(chunks)) for i in group]
    orders = []
    for stage in range(stages):
        first = 2 * (stages - stage - 1) + (chunks - 1) * stages + 1
        order = forwards[:first]
        for k, piece in enumerate(backwards):
            order += [piece, *forwards[first + k : first + k + 1]]
        orders.append(order)
    return orders


ORDERS: Mapping[str, Callable[..., list[list[Piece]]]] = {
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "interleaved": interleaved,
}
"""The functions by the names of their schedules."""


def text(schedule: str) -> str:
    """Give the text of a schedule's function, under the name `_orders` and without its types."""
    function = ORDERS[schedule]
    _, body = inspect.getsource(function).split(":\n", 1)
    return f"def _orders({', '.join(inspect.signature(function).parameters)}):\n{body}"
