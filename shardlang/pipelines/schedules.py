"""The schedules: a plain function makes each table, and a row says what the literature claims of it.

Sources: GPipe: Huang et al. 2018 (arXiv:1811.06965). 1F1B: Narayanan et al. 2019 (PipeDream) and 2020
(PipeDream-Flush, arXiv:2006.09503). Interleaved: Narayanan et al. 2021 (arXiv:2104.04473), whose order
is that of Megatron-LM. ZB-H1 and ZB-H2: Qi et al. 2023 (arXiv:2401.10241), section 2.2 and table 1.
DualPipe: DeepSeek-V3 report (arXiv:2412.19437), section 3.2.1, figure 5 and table 2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from shardlang.diagnostics import Mistake
from shardlang.pipelines import orders
from shardlang.pipelines.errors import (
    NoChunks,
    NothingToSchedule,
    OddStages,
    TooFewMicrobatches,
    TooMuchWork,
    UnevenMicrobatches,
    UnknownSchedule,
)
from shardlang.pipelines.orders import Piece
from shardlang.pipelines.table import Kind, Place, Table, Work

MOST = 20_000
"""How many pieces of work a schedule may have: stages times microbatches times chunks."""


@dataclass(frozen=True, slots=True)
class Durations:
    """What a stage needs for one microbatch through all of its layers, in any unit of time.

    `forward`, `input` (dX) and `weights` (dW); `send` is the time from a stage to its neighbour, in which
    both may work on.
    """

    forward: Fraction = Fraction(1)
    input: Fraction = Fraction(1)
    weights: Fraction = Fraction(1)
    send: Fraction = Fraction(0)

    @property
    def all(self) -> Fraction:
        """All work of one microbatch on one stage."""
        return self.forward + self.input + self.weights

    def of(self, kind: Kind) -> Fraction:
        """Give what a kind of work takes."""
        match kind:
            case "F":
                return self.forward
            case "B":
                return self.input
            case "W":
                return self.weights
            case "BW":
                return self.input + self.weights


@dataclass(frozen=True)
class Schedule:
    """A schedule: how its table is made, and what is claimed of it.

    `bubble` is the literature's idle time of a stage within a step, from stages, chunks and durations
    without `send`, with p stages, v chunks, and F, B (dX) and W (dW) of one microbatch in the `formula`; it
    is exact where `holds`, which `needs` says in words. `held` gives the most microbatches whose activations
    a stage holds, from (stage, stages, microbatches, chunks), where each counts until its dW is done.
    `allows` says of stages and microbatches what is wrong with them. A `chunked` schedule has several
    chunks a stage; microbatches of a `grouped` one come in groups of as many as there are stages. With `flowing` the next step begins on a stage when that stage is done, without
    waiting for the others, and `bubble` counts from a stage's own begin to its own end.
    """

    name: str
    says: str
    make: Callable[[int, int, int], Table]
    bubble: Callable[[int, int, Durations], Fraction]
    formula: str
    held: Callable[[int, int, int, int], Fraction]
    needs: str = ""
    holds: Callable[[Durations], bool] = lambda _: True
    allows: Callable[[int, int], Mistake | None] = lambda _p, _m: None
    chunked: bool = False
    grouped: bool = False
    flowing: bool = False

    def mistake(self, stages: int, microbatches: int, chunks: int) -> Mistake | None:
        """Say what is wrong with the numbers that a table is asked for, if anything is."""
        for what, count in (("stages", stages), ("microbatches", microbatches), ("chunks", chunks)):
            if count < 1:
                return NothingToSchedule(what)
        mistake = self.chunks_mistake(chunks)
        if mistake is not None:
            return mistake
        work = stages * microbatches * chunks
        if work > MOST:
            return TooMuchWork(stages, microbatches, chunks, MOST)
        return self.allows(stages, microbatches)

    def chunks_mistake(self, chunks: int) -> Mistake | None:
        """Say whether the number of chunks is not for this schedule."""
        return NoChunks(self.name, chunks) if (chunks > 1) != self.chunked else None

    def exact(self, durations: Durations) -> bool:
        """Say whether the literature's bubble is that of the table, not an estimate."""
        return not durations.send and self.holds(durations)

    def share(self, stages: int, microbatches: int, chunks: int, durations: Durations) -> Fraction:
        """Give the bubble as a share of a step, by the literature's formula; 0 where that is negative."""
        idle = max(self.bubble(stages, chunks, durations), Fraction(0))
        whole = microbatches * durations.all + idle
        return idle / whole if whole else Fraction(0)


def schedule_of(name: str) -> Schedule | UnknownSchedule:
    """Find a schedule, or say which there are."""
    return SCHEDULES.get(name) or UnknownSchedule(name, tuple(SCHEDULES))


# ---- Tables ---------------------------------------------------------------------------------------


def gpipe(stages: int, microbatches: int, _: int = 1) -> Table:
    """All forwards, then all backwards."""
    works = _works(orders.gpipe(stages, microbatches))
    return Table("gpipe", _straight(stages, microbatches), works)


def one_f_one_b(stages: int, microbatches: int, _: int = 1) -> Table:
    """As many forwards as there are stages left, then a backward after each forward."""
    works = _works(orders.one_f_one_b(stages, microbatches))
    return Table("1f1b", _straight(stages, microbatches), works)


def _works(rows: Sequence[Sequence[Piece]]) -> tuple[tuple[Work, ...], ...]:
    return tuple(tuple(Work(*piece) for piece in row) for row in rows)


def zb_h1(stages: int, microbatches: int, _: int = 1) -> Table:
    """1F1B with dW apart from dX, put off on later stages as far as the memory of 1F1B's first allows."""
    orders = (tuple(_alternating(microbatches, stages - stage, stage)) for stage in range(stages))
    return Table("zb-h1", _straight(stages, microbatches), tuple(orders))


def zb_h2(stages: int, microbatches: int, _: int = 1) -> Table:
    """Almost twice as many microbatches in flight, so that no stage waits between its first and last work."""
    orders = (
        tuple(_alternating(microbatches, 2 * (stages - stage) - 1, 2 * stage))
        for stage in range(stages)
    )
    return Table("zb-h2", _straight(stages, microbatches), tuple(orders))


def _straight(stages: int, microbatches: int) -> tuple[tuple[Place, ...], ...]:
    return (tuple(Place(stage) for stage in range(stages)),) * microbatches


def _alternating(microbatches: int, first: int, behind: int) -> Iterator[Work]:
    """Give `first` forwards, then a dX and a forward in turn; dW follows `behind` backwards later."""
    first = min(first, microbatches)
    yield from (Work("F", i) for i in range(first))
    for i in range(microbatches):
        yield Work("B", i)
        if i >= behind:
            yield Work("W", i - behind)
        if first + i < microbatches:
            yield Work("F", first + i)
    yield from (Work("W", i) for i in range(max(microbatches - behind, 0), microbatches))


def interleaved(stages: int, microbatches: int, chunks: int) -> Table:
    """1F1B on chunks: microbatches go in groups of as many as there are stages, chunk by chunk."""
    routes = (tuple(Place(s, c) for c in range(chunks) for s in range(stages)),) * microbatches
    works = _works(orders.interleaved(stages, microbatches, chunks))
    return Table("interleaved", routes, works, chunks, Fraction(1, chunks))


def dualpipe(stages: int, microbatches: int, _: int = 1) -> Table:
    """Half of the microbatches from either end; each stage holds two parts of the model.

    Microbatches of the first half enter at stage 0 (chunk 0), the others at the last stage (chunk 1).
    A stage and the one as far from the other end do the same with the directions exchanged.
    """
    half = microbatches // 2
    down = tuple(Place(stage, 0) for stage in range(stages))
    up = tuple(Place(stage, 1) for stage in reversed(range(stages)))
    orders = tuple(
        tuple(_dual(stages // 2, half, min(stage, stages - 1 - stage), 2 * stage >= stages))
        for stage in range(stages)
    )
    return Table("dualpipe", (down,) * half + (up,) * half, orders, chunks=2)


def _dual(pairs: int, half: int, rank: int, swapped: bool) -> Iterator[Work]:
    """Give the order of the stage `rank` places from its end, in the eight phases of the report.

    Direction 0 is that of the microbatches that enter at the near end. Backwards that are followed by
    a phase with gaps are split, and their dW fill the gaps in the order in which they were put off.
    """
    counts = {(kind, way): 0 for kind in "FB" for way in (0, 1)}
    waiting: list[Work] = []
    ahead = pairs - rank - 1

    def do(kind: Kind, way: int, *, joined: bool = False) -> Work:
        key = (kind[0], way)
        number = counts[key]
        counts[key] += 1
        chunk = way ^ swapped
        work = Work(kind, number + half * chunk, chunk, joined)
        if kind == "B":
            waiting.append(Work("W", work.microbatch, chunk))
        return work

    for _ in range(2 * ahead):
        yield do("F", 0)
    for _ in range(rank + 1):
        yield do("F", 0)
        yield do("F", 1)
    for _ in range(ahead):
        yield do("B", 1)
        yield waiting.pop(0)
        yield do("F", 1)
    for turn in range(half - 2 * pairs + rank + 1):
        yield do("F", 0, joined=ahead > 0 or turn > 0)
        yield do("BW", 1)
        yield do("F", 1, joined=True)
        yield do("BW", 0)
    for _ in range(ahead):
        yield do("BW", 1)
        yield do("F", 1, joined=True)
        yield do("BW", 0)
    split: Kind = "BW"
    for turn in range(rank + 1):
        if turn == (rank + 1) // 2 and rank % 2 == 1:
            split = "B"
        yield do(split, 1)
        if turn == (rank + 1) // 2 and rank % 2 == 0:
            split = "B"
        yield do(split, 0)
    for _ in range(ahead):
        yield waiting.pop(0)
        yield do("B", 0)
    yield from waiting


# ---- What is allowed ------------------------------------------------------------------------------


def _at_least(name: str, least: Callable[[int], int]) -> Callable[[int, int], Mistake | None]:
    def allows(stages: int, microbatches: int) -> Mistake | None:
        if microbatches < least(stages):
            return TooFewMicrobatches(name, stages, microbatches, least(stages))
        return None

    return allows


def _in_groups(stages: int, microbatches: int) -> Mistake | None:
    if microbatches % stages:
        why = "sends microbatches through its chunks in groups of one a stage"
        return UnevenMicrobatches("interleaved", microbatches, stages, why)
    return None


def _from_both_ends(stages: int, microbatches: int) -> Mistake | None:
    if stages % 2:
        return OddStages("dualpipe", stages)
    if microbatches % 2:
        return UnevenMicrobatches("dualpipe", microbatches, 2, "sends half of them from either end")
    return _at_least("dualpipe", lambda p: 2 * p)(stages, microbatches)


# ---- What is claimed ------------------------------------------------------------------------------


SCHEDULES: Mapping[str, Schedule] = {
    row.name: row
    for row in (
        Schedule(
            "gpipe",
            "all forwards, then all backwards",
            gpipe,
            lambda p, _, t: (p - 1) * t.all,
            "(p - 1)(F + B + W)",
            lambda _s, _p, m, _v: Fraction(m),
        ),
        Schedule(
            "1f1b",
            "a backward after each forward",
            one_f_one_b,
            lambda p, _, t: (p - 1) * t.all,
            "(p - 1)(F + B + W)",
            lambda s, p, m, _v: Fraction(min(p - s, m)),
        ),
        Schedule(
            "interleaved",
            "1f1b on several chunks a stage",
            interleaved,
            lambda p, v, t: (p - 1) * t.all / v,
            "(p - 1)(F + B + W) / v",
            lambda s, p, m, v: Fraction(min(2 * (p - s - 1) + (v - 1) * p + 1, m * v), v),
            allows=_in_groups,
            chunked=True,
            grouped=True,
        ),
        Schedule(
            "zb-h1",
            "dW apart from dX, in the memory of 1f1b",
            zb_h1,
            lambda p, _, t: (p - 1) * (t.forward + t.input - t.weights),
            "(p - 1)(F + B - W)",
            lambda _s, p, m, _v: Fraction(min(p, m)),
            "W <= F and W <= B",
            lambda t: t.weights <= min(t.forward, t.input),
            _at_least("zb-h1", lambda p: p),
        ),
        Schedule(
            "zb-h2",
            "dW apart from dX, no stage waits in between",
            zb_h2,
            lambda p, _, t: (p - 1) * (t.forward + t.input - 2 * t.weights),
            "(p - 1)(F + B - 2W)",
            lambda _s, p, m, _v: Fraction(min(2 * p - 1, m)),
            "W <= F and W <= B",
            lambda t: t.weights <= min(t.forward, t.input),
            _at_least("zb-h2", lambda p: 2 * p - 1),
            flowing=True,
        ),
        Schedule(
            "dualpipe",
            "from both ends at once",
            dualpipe,
            lambda p, _, t: (Fraction(p, 2) - 1) * (t.forward + 2 * t.input - t.weights),
            "(p/2 - 1)(F + 2B - W)",
            lambda _s, p, _m, _v: Fraction(p + 1),
            "W <= F and F = B",
            lambda t: t.weights <= t.forward == t.input,
            _from_both_ends,
        ),
    )
}
