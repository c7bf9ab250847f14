"""A simulated schedule of a plan's steps: what runs when, and which communication stays exposed.

T_overlapped lets all collectives run beside all FLOPs, T_serial none. A list scheduler gives a time in
between: each step starts when what it reads is there and its lane is free, and of those that could start,
the one goes first from which the longest way is left (Hu, *Parallel sequencing and assembly line problems*,
1961). Lanes are the matrix unit, and the network: one for all collectives, or one an axis where axes
overlap. A cotangent is there when all outputs are.

Since some lane is busy at every moment, no schedule takes longer than all steps one after the other; since
every lane has its work to do, none is shorter than T_overlapped. Gathers of parameters wait for nothing but the network, so
that they are prefetched as early as it allows, whatever memory that takes. Elementwise steps take no
time: they are fused into others. With `hbm`, a contraction takes at least as long as reading its operands
and writing its result (the HBM roofline).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from heapq import heapify, heappop, heappush
from typing import Any, TYPE_CHECKING

from shardlang.cost.errors import NotScheduled
from shardlang.cost.formula import Formula
from shardlang.cost.local import local_bytes
from shardlang.diagnostics import Diagnostic, ShardlangError
from shardlang.ir.ops import Collective
from shardlang.ir.plan import Pass, Step
from shardlang.ir.printer import statement
from shardlang.ir.size import Monomial
from shardlang.ir.types import Array
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


def schedule(report: Report, *, hbm: bool = False) -> Timeline:
    """Simulate a report's plan; every size and hardware figure has to be known.

    Raises `ShardlangError` (SH525) where one is missing.
    """
    steps = list(report.plan.steps())
    seconds = _durations(report, hbm=hbm)
    lanes = _lanes(report)
    needs = _needs(report, [step for _, step in steps])
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


def _durations(report: Report, *, hbm: bool) -> list[float]:
    """Give the seconds of each step."""
    collectives = {id(cost.step): cost.time.value for cost in report.collectives}
    compute = {id(cost.step): cost for cost in report.compute}
    peak = Formula.of(Monomial.of(report.symbols.figures["C"])).value(report.known)
    memory = Formula.of(Monomial.of(report.symbols.figures["W_hbm"])).value(report.known)
    missing: list[str] = []
    found: list[float] = []
    for _, step in report.plan.steps():
        value: Fraction | None = Fraction(0)
        if isinstance(step.op, Collective):
            value = collectives[id(step)]
        elif step.is_compute and compute[id(step)].counted:
            work = compute[id(step)].flops.value
            value = None if work is None or peak is None else work / peak
            if value is not None and hbm:
                moved = _moved(report, step)
                if moved is None or memory is None:
                    missing.append("W_hbm")
                else:
                    value = max(value, moved / memory)
        if value is None:
            missing += [n for n in report.symbols.kinds if n not in report.known]
        found.append(float(value or 0))
    if missing:
        program = report.plan.program
        span = program.statements[0].span if program.statements else Span(0, 0)
        mistake = NotScheduled(tuple(dict.fromkeys(missing)))
        raise ShardlangError([Diagnostic(program.source, span or Span(0, 0), mistake)])
    return found


def _moved(report: Report, step: Step) -> Fraction | None:
    """Give the bytes that a step reads and writes in a device's memory."""
    sizes = (
        Formula.of(report.symbols.monomial(local_bytes(a))).value(report.known)
        for a in (*dict.fromkeys(step.inputs), step.output)
    )
    total = Fraction(0)
    for size in sizes:
        if size is None:
            return None
        total += size
    return total


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


def _needs(report: Report, steps: Sequence[Step]) -> list[set[int]]:
    """Give, for each step, the steps that make what it reads."""
    maker: dict[Array, int] = {}
    given = set(report.plan.cotangents)
    ends: set[int] = set()
    found: list[set[int]] = []
    forward = len(report.plan.forward)
    for index, step in enumerate(steps):
        if index == forward:
            ends = {maker[a] for a in report.plan.outputs if a in maker}
        own = {maker[array] for array in step.inputs if array in maker}
        if given.intersection(step.inputs):
            own |= ends
        found.append(own)
        maker[step.output] = index
    return found
