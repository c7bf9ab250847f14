"""Executes a table: checks that it is whole and can be done, and says what it takes.

Nothing here knows how a table was made. Precondition of the times: each stage does its work in the
table's order, one piece at a time, each as soon as what it needs is there. F needs F of the place before on
the microbatch's route; B needs F of its own place, and B of the place behind; W needs B of its own; BW is
B and W in one. What comes from another stage is there `send` later.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from shardlang.diagnostics import Diagnostic, Mistake, ShardlangError
from shardlang.pipelines.errors import Deadlock, Doubled, Foreign, Missing
from shardlang.pipelines.schedules import Durations
from shardlang.pipelines.table import Kind, Place, Table, Work
from shardlang.source import Source, Span

PARTS: tuple[Kind, ...] = ("F", "B", "W")
"""What each stage has to do for each microbatch in each of its chunks."""

Key = tuple[str, int, Place]
"""What is done: F, B or W, of a microbatch, at a place."""


@dataclass(frozen=True, slots=True)
class Event:
    """A piece of work with its time."""

    stage: int
    work: Work
    start: Fraction
    end: Fraction


@dataclass(frozen=True)
class Run:
    """A table that was executed: `events` by stage, in order."""

    table: Table
    durations: Durations
    events: tuple[tuple[Event, ...], ...]

    @property
    def seconds(self) -> Fraction:
        """From the first work to the last, in the unit of the durations."""
        return max((e.end for row in self.events for e in row), default=Fraction(0))

    @property
    def busy(self) -> tuple[Fraction, ...]:
        """How long each stage works."""
        return tuple(sum((e.end - e.start for e in row), Fraction(0)) for row in self.events)

    @property
    def bubble(self) -> Fraction:
        """The share of all stages' time in which they wait."""
        return _idle(self.busy, self.seconds)

    @property
    def turn(self) -> Fraction:
        """The longest time from a stage's first work to its last: a step's, where nothing waits between steps."""
        return max((row[-1].end - row[0].start for row in self.events if row), default=Fraction(0))

    @property
    def flowing_bubble(self) -> Fraction:
        """The share of waiting where a stage begins the next step as soon as it is done itself."""
        return _idle(self.busy, self.turn)

    @property
    def held(self) -> tuple[Fraction, ...]:
        """The most microbatches whose activations each stage holds at once, from F until dW is done.

        A microbatch in one of several chunks counts as that chunk's share of a stage.
        """
        return tuple(self._peak(row) * self.table.share for row in self.events)

    @staticmethod
    def _peak(row: tuple[Event, ...]) -> int:
        now = peak = 0
        for event in row:
            if event.work.kind == "F":
                now += 1
                peak = max(peak, now)
            elif event.work.kind != "B":
                now -= 1
        return peak


def _idle(busy: tuple[Fraction, ...], seconds: Fraction) -> Fraction:
    if not seconds:
        return Fraction(0)
    return 1 - sum(busy, Fraction(0)) / (seconds * len(busy))


def simulate(table: Table, durations: Durations | None = None) -> Run:
    """Execute a table; raises `ShardlangError` where it is not whole or comes to a standstill."""
    return _Machine(table, durations or Durations()).run()


class _Machine:
    """The stages at work; `done` says when each thing was finished."""

    def __init__(self, table: Table, durations: Durations) -> None:
        self.table = table
        self.durations = durations
        self.before = {
            (i, place): (earlier, later)
            for i, route in enumerate(table.routes)
            for earlier, place, later in zip(
                (None, *route[:-1]), route, (*route[1:], None), strict=True
            )
        }
        self.done: dict[Key, Fraction] = {}
        self.next = [0] * table.stages
        self.clock = [Fraction(0)] * table.stages

    def run(self) -> Run:
        """Check the table, and do what can be done until nothing is left."""
        self.check()
        rows: list[list[Event]] = [[] for _ in self.table.orders]
        moved = True
        while moved:
            moved = False
            for stage, order in enumerate(self.table.orders):
                while self.next[stage] < len(order):
                    events = self.begin(stage)
                    if not events:
                        break
                    rows[stage] += events
                    self.next[stage] += len(events)
                    moved = True
        stuck = [s for s, order in enumerate(self.table.orders) if self.next[s] < len(order)]
        if stuck:
            self.stop(stuck[0])
        return Run(self.table, self.durations, tuple(tuple(row) for row in rows))

    def at_hand(self, stage: int) -> tuple[Work, ...]:
        """Give what a stage is to do next: a piece of work, or several that are joined."""
        order, start = self.table.orders[stage], self.next[stage]
        end = start
        while order[end].joined and end + 1 < len(order):
            end += 1
        return order[start : end + 1]

    def begin(self, stage: int) -> list[Event]:
        """Do what a stage is to do next, unless something that it needs is missing."""
        works = self.at_hand(stage)
        start = self.clock[stage]
        for key in (key for work in works for key in self.needs(stage, work)):
            if key not in self.done:
                return []
            away = key[2].stage != stage
            start = max(start, self.done[key] + (self.durations.send if away else 0))
        events: list[Event] = []
        for work in works:
            end = start + self.durations.of(work.kind) * self.table.share
            events.append(Event(stage, work, start, end))
            start = end
        self.clock[stage] = start
        for work in works:
            for kind in work.kind:
                self.done[kind, work.microbatch, Place(stage, work.chunk)] = start
        return events

    def needs(self, stage: int, work: Work) -> Iterator[Key]:
        """Give what has to be done before a piece of work."""
        i, place = work.microbatch, Place(stage, work.chunk)
        earlier, later = self.before[i, place]
        match work.kind:
            case "F":
                if earlier is not None:
                    yield "F", i, earlier
            case "B" | "BW":
                yield "F", i, place
                if later is not None:
                    yield "B", i, later
            case "W":
                yield "B", i, place

    # --- mistakes

    def check(self) -> None:
        """Hold each microbatch's work against the table: each piece exactly once, and nothing else."""
        seen: set[Key] = set()
        found: list[Diagnostic] = []
        for stage, order in enumerate(self.table.orders):
            for number, work in enumerate(order):
                place = Place(stage, work.chunk)
                mistake: Mistake | None = None
                if (work.microbatch, place) not in self.before:
                    mistake = Foreign(stage, self.text(work), self.why(work))
                elif any((kind, work.microbatch, place) in seen for kind in work.kind):
                    mistake = Doubled(stage, self.text(work))
                seen.update((kind, work.microbatch, place) for kind in work.kind)
                if mistake is not None:
                    found.append(self.at(stage, number, mistake))
        for i, route in enumerate(self.table.routes):
            for place in route:
                for kind in PARTS:
                    if not {(kind, i, place)} <= seen:
                        work = self.text(Work(kind, i, place.chunk))
                        end = len(self.table.orders[place.stage])
                        found.append(self.at(place.stage, end, Missing(place.stage, work)))
        if found:
            raise ShardlangError(found)

    def why(self, work: Work) -> str:
        """Say why a stage can't do a piece of work."""
        if not 0 <= work.microbatch < self.table.microbatches:
            return f"there are {self.table.microbatches} microbatches, counted from 0"
        if not 0 <= work.chunk < self.table.chunks:
            return f"it has {self.table.chunks} chunks, counted from a"
        return (
            f"microbatch {work.microbatch} does not come through chunk {work.chunk} of this stage"
        )

    def stop(self, stage: int) -> None:
        """Report a standstill: the circle of stages that wait for each other."""
        chain: list[int] = []
        while stage not in chain:
            chain.append(stage)
            stage = self.lacking(stage)[1][2].stage
        waits: list[str] = []
        for each in chain[chain.index(stage) :]:
            work, (kind, microbatch, place) = self.lacking(each)
            needed = self.text(Work("F" if kind == "F" else "B", microbatch, place.chunk))
            waits.append(
                f"stage {each} is to do {self.text(work)} before the {needed} that it needs"
                if place.stage == each
                else f"stage {each} waits with {self.text(work)} for {needed} of stage {place.stage}"
            )
        raise ShardlangError([self.at(stage, self.next[stage], Deadlock(tuple(waits)))])

    def lacking(self, stage: int) -> tuple[Work, Key]:
        """Give what a stage waits with, and what for."""
        return next(
            (work, key)
            for work in self.at_hand(stage)
            for key in self.needs(stage, work)
            if key not in self.done
        )

    def text(self, work: Work) -> str:
        """Write a piece of work as the table does."""
        return work.text(chunks=self.table.lettered)

    def at(self, stage: int, number: int, mistake: Mistake) -> Diagnostic:
        """Place a mistake at an entry of the table, or behind the last one."""
        text = self.table.text()
        rows = text.split("\n")
        words = [self.text(work) for work in self.table.orders[stage]]
        start = sum(len(row) + 1 for row in rows[:stage]) + len(f"stage {stage}:")
        start += sum(len(word) + 1 for word in words[:number])
        where = Span(start, start)
        if number < len(words):
            where = Span(start + 1, start + 1 + len(words[number]))
        return Diagnostic(Source(f"<{self.table.schedule}>", text), where, mistake)
