"""What schedules come to for the same stages, microbatches and durations, side by side."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from shardlang.diagnostics import Mistake
from shardlang.pipelines.schedules import Durations, Schedule, SCHEDULES
from shardlang.pipelines.simulate import Run, simulate


@dataclass(frozen=True)
class Found:
    """A schedule that was executed."""

    schedule: Schedule
    run: Run

    @property
    def bubble(self) -> Fraction:
        """The share of waiting as the schedule counts it: within a step, or from step to step where it flows."""
        return self.run.flowing_bubble if self.schedule.flowing else self.run.bubble

    @property
    def step(self) -> Fraction:
        """The time of a step, counted alike."""
        return self.run.turn if self.schedule.flowing else self.run.seconds

    @property
    def claimed(self) -> Fraction:
        """The bubble's share by the literature's formula."""
        table = self.run.table
        chunks = table.chunks if self.schedule.chunked else 1
        return self.schedule.share(table.stages, table.microbatches, chunks, self.run.durations)

    @property
    def exact(self) -> bool:
        """Whether the formula is exact for these durations."""
        return self.schedule.exact(self.run.durations)

    def to_dict(self) -> dict[str, Any]:
        """Give it as JSON: shares as numbers and as exact fractions."""
        table = self.run.table
        return {
            "schedule": self.schedule.name,
            "stages": table.stages,
            "microbatches": table.microbatches,
            "chunks": table.chunks,
            "step": _number(self.step),
            "bubble": _number(self.bubble),
            "formula": {
                "idle": self.schedule.formula,
                "bubble": _number(self.claimed),
                "exact": self.exact,
                "exact_where": self.schedule.needs or None,
            },
            "held": [_number(each) for each in self.run.held],
            "weights": _number(table.weights),
            "stage_to_stage": self.schedule.flowing,
        }

    def events(self) -> Iterator[dict[str, Any]]:
        """Give each piece of work as JSON, stage by stage."""
        for row in self.run.events:
            for event in row:
                yield {
                    "stage": event.stage,
                    "kind": event.work.kind,
                    "microbatch": event.work.microbatch,
                    "chunk": event.work.chunk,
                    "start": _number(event.start),
                    "end": _number(event.end),
                }


@dataclass(frozen=True)
class Refused:
    """A schedule that does not take these numbers."""

    schedule: Schedule
    mistake: Mistake

    def to_dict(self) -> dict[str, Any]:
        """Give it as JSON."""
        return {
            "schedule": self.schedule.name,
            "refused": self.mistake.message(),
            "code": self.mistake.code,
        }


def find(
    schedule: Schedule, stages: int, microbatches: int, chunks: int, durations: Durations
) -> Found | Refused:
    """Execute a schedule, or say why these numbers are not for it."""
    mistake = schedule.mistake(stages, microbatches, chunks)
    if mistake is not None:
        return Refused(schedule, mistake)
    return Found(schedule, simulate(schedule.make(stages, microbatches, chunks), durations))


def compare(
    stages: int,
    microbatches: int,
    chunks: int,
    durations: Durations,
    names: Iterable[str] = SCHEDULES,
) -> Mapping[str, Found | Refused]:
    """Execute schedules for the same numbers; `chunks` is for those that have several."""
    rows = (SCHEDULES[name] for name in names)
    return {
        row.name: find(row, stages, microbatches, chunks if row.chunked else 1, durations)
        for row in rows
    }


def _number(value: Fraction) -> dict[str, float | str]:
    return {"value": float(value), "exact": str(value)}
