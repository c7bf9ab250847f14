"""A simulated schedule of a plan's steps: what runs when, and which communication stays exposed.

T_overlapped lets all collectives run beside all FLOPs, T_serial none. A list scheduler gives a time in
between: each step starts when what it reads is there and its lane is free, and of those that could start,
the one goes first from which the longest way is left (Hu, *Parallel sequencing and assembly line problems*,
1961). Lanes are the matrix unit, and the network: one for all collectives, or one an axis where axes
overlap. A cotangent is there when all outputs are.

Since some lane is busy at every moment, no schedule takes longer than all steps one after the other; since
every lane has its work to do, none is shorter than T_overlapped. Gathers of parameters wait for nothing but the network, so
that they are prefetched as early as it allows, whatever memory that takes. Elementwise steps take no
time: they are fused into others. In a report with `hbm`, a contraction takes at least as long as reading
its operands and writing its result (the HBM roofline), as T_math has it. The layers of a block come one after
the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Any, TYPE_CHECKING

from shardlang.cost.errors import NotScheduled
from shardlang.cost.symbols import literal_size
from shardlang.diagnostics import Diagnostic, ShardlangError
from shardlang.ir.ops import Collective
from shardlang.ir.plan import Pass, Plan, Step
from shardlang.ir.printer import statement
from shardlang.ir.types import Array
from shardlang.passes.unroll import unroll_plan
from shardlang.source import Span

if TYPE_CHECKING:
    from shardlang.cost.report import Report

COMPUTE = "compute"
NETWORK = "network"


@dataclass(frozen=True, slots=True)
class Event:
    """A step on its lanes, from `start` to `end` in seconds; `name` is short: `AllGather_X W_in`, `Tmp`."""

    lanes: tuple[str, ...]
    start: float
    end: float
    section: Pass
    text: str
    critical: bool
    name: str = ""


@dataclass(frozen=True)
class Timeline:
    """A schedule: its events in order of their starts, and its lanes, the matrix unit first.

    `seconds` is the whole time, `exposed` the part of it in which the matrix unit stands still.
    """

    lanes: tuple[str, ...]
    events: tuple[Event, ...]
    seconds: float

    @property
    def exposed(self) -> float:
        """The time in which the matrix unit waits for collectives, in seconds."""
        return self.seconds - self.busy(COMPUTE)

    def busy(self, lane: str) -> float:
        """Give the time in which a lane works, in seconds."""
        return sum(event.end - event.start for event in self.events if lane in event.lanes)

    def to_dict(self) -> dict[str, Any]:
        """Give it as data."""
        return {
            "seconds": self.seconds,
            "exposed": self.exposed,
            "lanes": list(self.lanes),
            "events": [
                {
                    "lanes": list(event.lanes),
                    "start": event.start,
                    "end": event.end,
                    "pass": event.section,
                    "text": event.text,
                    "name": event.name,
                    "critical": event.critical,
                }
                for event in self.events
            ],
        }

    def to_text(self, width: int = 80) -> str:
        """Draw the lanes as bars: a full block where a lane works, a light one for part of the time."""
        room = max(width - max(map(len, self.lanes)) - 4, 20)
        name = max(map(len, self.lanes))
        rows = [f"{lane:<{name}}  {''.join(self._bar(lane, room))}" for lane in self.lanes]
        return "\n".join(rows)

    def _bar(self, lane: str, room: int) -> Iterator[str]:
        own = [event for event in self.events if lane in event.lanes]
        for cell in range(room):
            low, high = (self.seconds * at / room for at in (cell, cell + 1))
            filled = sum(max(0.0, min(e.end, high) - max(e.start, low)) for e in own)
            share = filled / (high - low) if high > low else 0.0
            yield " ░▒▓█"[min(4, int(share * 4 + 0.5))]


def schedule(report: Report) -> Timeline:
    """Simulate a report's plan; every size and hardware figure has to be known.

    Raises `ShardlangError` (SH525) where one is missing.
    """
    plan, seconds = _written_out(report, _durations(report))
    steps = list(plan.steps())
    lanes = _lanes(report)
    needs = _needs(plan, [step for _, step in steps])
    readers: list[list[int]] = [[] for _ in steps]
    for index, own in enumerate(needs):
        for source in own:
            readers[source].append(index)
    left = [0.0] * len(steps)
    for index in range(len(steps) - 1, -1, -1):
        left[index] = seconds[index] + max((left[r] for r in readers[index]), default=0.0)
    places = [_place(report, step, lanes) for _, step in steps]
    starts = _run(needs, readers, seconds, left, places)
    moves = {id(cost.step): f"{cost.move} {cost.tensor}" for cost in report.collectives}
    events = [
        Event(
            places[i],
            starts[i],
            starts[i] + seconds[i],
            section,
            statement(step),
            step.critical,
            moves.get(id(step), step.output.name),
        )
        for i, (section, step) in enumerate(steps)
        if seconds[i]
    ]
    events.sort(key=lambda event: (event.start, event.end))
    return Timeline(lanes, tuple(events), max((event.end for event in events), default=0.0))


MOST_STEPS = 1500
"""Up to so many steps, each layer of a block is scheduled by itself; beyond, several together."""


def _written_out(report: Report, seconds: list[float]) -> tuple[Plan, list[float]]:
    """Write the blocks of a plan out, with the time of each step.

    Where there are too many layers, several are taken as one whose steps take as long as theirs.
    """
    plan = report.plan
    blocks = plan.program.blocks
    if not blocks:
        return plan, seconds
    body = sum(step.loop is not None for _, step in plan.steps())
    most = max(1, MOST_STEPS // max(body, 1))
    counts: dict[int, int] = {}
    for block in blocks:
        name = block.dim.name
        size = literal_size(name) or int(report.known[report.symbols.of[name]])
        counts[block.number] = min(size, most)
    found = unroll_plan(plan, counts)
    each = {
        id(step): time / (1 if step.loop is None else counts[step.loop.number])
        for (_, step), time in zip(plan.steps(), seconds, strict=True)
    }
    return found.plan, [0.0 if step is None else each[id(step)] for step in found.origins]


def _run(
    needs: Sequence[set[int]],
    readers: Sequence[Sequence[int]],
    seconds: Sequence[float],
    left: Sequence[float],
    places: Sequence[tuple[str, ...]],
) -> list[float]:
    """Give the start of each step: greedy, the one with the longest way left first."""
    waiting = [len(own) for own in needs]
    ready = [(-left[i], i) for i, count in enumerate(waiting) if not count]
    heapify(ready)
    starts = [0.0] * len(needs)
    taken: set[str] = set()
    running: list[tuple[float, int]] = []
    now = 0.0
    while ready or running:
        held: list[tuple[float, int]] = []
        while ready:
            priority, index = heappop(ready)
            if taken.intersection(places[index]) and seconds[index]:
                held.append((priority, index))
                continue
            starts[index] = now
            if not seconds[index]:
                for reader in readers[index]:
                    waiting[reader] -= 1
                    if not waiting[reader]:
                        heappush(ready, (-left[reader], reader))
                continue
            taken.update(places[index])
            heappush(running, (now + seconds[index], index))
        ready = held
        heapify(ready)
        if running:
            now = running[0][0]
        while running and running[0][0] <= now:
            _, index = heappop(running)
            taken.difference_update(places[index])
            for reader in readers[index]:
                waiting[reader] -= 1
                if not waiting[reader]:
                    heappush(ready, (-left[reader], reader))
    return starts


def _durations(report: Report) -> list[float]:
    """Give the seconds of each step."""
    priced = {id(cost.step): cost.time for cost in (*report.collectives, *report.compute)}
    missing: dict[str, None] = {}
    found: list[float] = []
    for _, step in report.plan.steps():
        time = priced.get(id(step))
        if time is not None and time.value is None:
            names = time.formula.names - set(report.known)
            missing |= dict.fromkeys(n for n in report.symbols.kinds if n in names)
        found.append(float(0 if time is None else time.value or 0))
    if missing:
        program = report.plan.program
        span = program.statements[0].span if program.statements else Span(0, 0)
        mistake = NotScheduled(tuple(missing))
        raise ShardlangError([Diagnostic(program.source, span or Span(0, 0), mistake)])
    return found


def _lanes(report: Report) -> tuple[str, ...]:
    if report.overlap is None:
        return (COMPUTE, NETWORK)
    axes = [info.axis.name for info in report.axes]
    used = {axis for cost in report.collectives for axis in cost.axes}
    return (COMPUTE, *(axis for axis in axes if axis in used))


def _place(report: Report, step: Step, lanes: Sequence[str]) -> tuple[str, ...]:
    if not isinstance(step.op, Collective):
        return (COMPUTE,)
    if report.overlap is None:
        return (NETWORK,)
    return tuple(axis.name for axis in step.op.axes if axis.name in lanes)


def _needs(plan: Plan, steps: Sequence[Step]) -> list[set[int]]:
    """Give, for each step, the steps that make what it reads."""
    maker: dict[Array, int] = {}
    given = set(plan.cotangents)
    ends: set[int] = set()
    found: list[set[int]] = []
    forward = len(plan.forward)
    for index, step in enumerate(steps):
        if index == forward:
            ends = {maker[a] for a in plan.outputs if a in maker}
        own = {maker[array] for array in step.inputs if array in maker}
        if given.intersection(step.inputs):
            own |= ends
        found.append(own)
        maker[step.output] = index
    return found
