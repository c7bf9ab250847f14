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
the other. A ring is scheduled hop by hop, with the part of its product that each hop brings or takes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from math import prod
from typing import Any, TYPE_CHECKING

from shardlang.cost.errors import NotScheduled
from shardlang.cost.symbols import literal_size
from shardlang.diagnostics import Diagnostic, ShardlangError
from shardlang.ir.ops import Collective, Ring, RingAttention
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


@dataclass(frozen=True, slots=True)
class Task:
    """What is scheduled as one: a step, or a piece of a ring. `needs` are the tasks that it waits for."""

    section: Pass
    step: Step
    lanes: tuple[str, ...]
    seconds: float
    needs: frozenset[int]


def schedule(report: Report) -> Timeline:
    """Simulate a report's plan; every size and hardware figure has to be known.

    Raises `ShardlangError` (SH525) where one is missing.
    """
    plan, times = _written_out(report, _durations(report))
    lanes = _lanes(report)
    tasks = _tasks(report, plan, times, lanes)
    seconds = [task.seconds for task in tasks]
    needs = [task.needs for task in tasks]
    readers: list[list[int]] = [[] for _ in tasks]
    for index, own in enumerate(needs):
        for source in own:
            readers[source].append(index)
    left = [0.0] * len(tasks)
    for index in range(len(tasks) - 1, -1, -1):
        left[index] = seconds[index] + max((left[r] for r in readers[index]), default=0.0)
    starts = _run(needs, readers, seconds, left, [task.lanes for task in tasks])
    moves = {id(cost.step): f"{cost.move} {cost.tensor}" for cost in report.collectives}
    events = [
        Event(
            task.lanes,
            start,
            start + task.seconds,
            task.section,
            statement(task.step),
            task.step.critical,
            task.step.output.name
            if task.lanes == (COMPUTE,)
            else moves.get(id(task.step), task.step.output.name),
        )
        for task, start in zip(tasks, starts, strict=True)
        if task.seconds
    ]
    events.sort(key=lambda event: (event.start, event.end))
    return Timeline(lanes, tuple(events), max((event.end for event in events), default=0.0))


MOST_STEPS = 1500
"""Up to so many steps, each layer of a block is scheduled by itself; beyond, several together."""


Times = tuple[float, float]
"""The seconds of a step: of its computation, and of its collective. A ring has both."""


def _written_out(report: Report, times: list[Times]) -> tuple[Plan, list[Times]]:
    """Write the blocks of a plan out, with the times of each step.

    Where there are too many layers, several are taken as one whose steps take as long as theirs.
    """
    plan = report.plan
    blocks = plan.program.blocks
    if not blocks:
        return plan, times
    body = sum(step.loop is not None for _, step in plan.steps())
    most = max(1, MOST_STEPS // max(body, 1))
    counts: dict[int, int] = {}
    for block in blocks:
        name = block.dim.name
        size = literal_size(name) or int(report.known[report.symbols.of[name]])
        counts[block.number] = min(size, most)
    found = unroll_plan(plan, counts)
    each: dict[int, Times] = {}
    for (_, step), (math, comms) in zip(plan.steps(), times, strict=True):
        count = 1 if step.loop is None else counts[step.loop.number]
        each[id(step)] = (math / count, comms / count)
    return found.plan, [(0.0, 0.0) if step is None else each[id(step)] for step in found.origins]


def _run(
    needs: Sequence[frozenset[int]],
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


def _durations(report: Report) -> list[Times]:
    """Give the seconds of each step."""
    math = {id(cost.step): cost.time for cost in report.compute}
    comms = {id(cost.step): cost.time for cost in report.collectives}
    missing: dict[str, None] = {}
    found: list[Times] = []
    for _, step in report.plan.steps():
        own = (math.get(id(step)), comms.get(id(step)))
        for time in own:
            if time is not None and time.value is None:
                names = time.formula.names - set(report.known)
                missing |= dict.fromkeys(n for n in report.symbols.kinds if n in names)
        seconds, sent = (0.0 if time is None else float(time.value or 0) for time in own)
        found.append((seconds, sent))
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


def _tasks(report: Report, plan: Plan, times: Sequence[Times], lanes: Sequence[str]) -> list[Task]:
    """Give what is scheduled, each with the tasks that make what it reads."""
    maker: dict[Array, int] = {}
    given = set(plan.cotangents)
    ends: set[int] = set()
    found: list[Task] = []
    forward = len(plan.forward)
    for index, ((section, step), (math, comms)) in enumerate(zip(plan.steps(), times, strict=True)):
        if index == forward:
            ends = {maker[a] for a in plan.outputs if a in maker}
        own = {maker[array] for array in step.inputs if array in maker}
        if given.intersection(step.inputs):
            own |= ends
        needs, place = frozenset(own), _place(report, step, lanes)
        if isinstance(step.op, RingAttention) and comms:
            whole = Task(section, step, place, comms, needs)
            _round(found, whole, math, _devices(report, step), back=step.op.back)
        elif isinstance(step.op, Ring) and comms:
            _ring(found, Task(section, step, place, comms, needs), math, _devices(report, step))
        else:
            found.append(Task(section, step, place if comms else (COMPUTE,), math + comms, needs))
        maker.update(dict.fromkeys(step.outputs, len(found) - 1))
    return found


def _devices(report: Report, step: Step) -> int:
    """Count the devices of a ring, whose times are known and so are its axes' sizes."""
    assert isinstance(step.op, Ring | RingAttention)
    return prod(int(report.known[report.symbols.of[axis.name]]) for axis in step.op.axes)


def _ring(tasks: list[Task], whole: Task, math: float, count: int) -> None:
    """Append the pieces of a ring, the one that ends it last; `whole` has what all of them share.

    Each hop brings two shards, or takes two blocks of partial sums, the last one brings or the first one
    takes one where the count of devices is even. The device's own is multiplied first, or last.
    """
    assert isinstance(whole.step.op, Ring)
    hops = count // 2
    parts = [2] * (hops - 1) + [1 if count % 2 == 0 else 2]
    before: frozenset[int] = frozenset()

    def add(lanes: tuple[str, ...], seconds: float, needs: frozenset[int]) -> frozenset[int]:
        tasks.append(replace(whole, lanes=lanes, seconds=seconds, needs=whole.needs | needs))
        return frozenset((len(tasks) - 1,))

    one, hop = math / count, whole.seconds / hops
    if whole.step.op.gathers:
        done = add((COMPUTE,), one, before)
        for number in parts:
            before = add(whole.lanes, hop, before)
            done = add((COMPUTE,), one * number, before | done)
        return
    done = before
    for number in reversed(parts):
        done = add((COMPUTE,), one * number, done)
        before = add(whole.lanes, hop, before | done)
    done = add((COMPUTE,), one, done)
    add((COMPUTE,), 0.0, before | done)


def _round(tasks: list[Task], whole: Task, math: float, count: int, *, back: bool) -> None:
    """Append the pieces of ring attention: a product for each device's block, and what brings the next one.

    Backward, half of what a hop sends are sums, which go on when the product is done.
    """
    hop = whole.seconds / (count - 1)
    brought = hop / 2 if back else hop

    def add(lanes: tuple[str, ...], seconds: float, needs: frozenset[int]) -> frozenset[int]:
        tasks.append(replace(whole, lanes=lanes, seconds=seconds, needs=whole.needs | needs))
        return frozenset((len(tasks) - 1,))

    arrived = sums = frozenset[int]()
    done = add((COMPUTE,), math / count, arrived)
    for _ in range(count - 1):
        arrived = add(whole.lanes, brought, arrived)
        done = add((COMPUTE,), math / count, arrived | done)
        if back:
            sums = add(whole.lanes, hop - brought, done | sums)
    add((COMPUTE,), 0.0, done | sums)
