"""What can be wrong with a schedule (codes SH70x), and with what is asked of one (SH71x)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from shardlang.diagnostics import Mistake


@dataclass(frozen=True)
class Foreign(Mistake):
    """A stage is to do what it has no part of."""

    code: ClassVar[str] = "SH701"
    title: ClassVar[str] = "work of another stage"
    stage: int
    work: str
    why: str

    def message(self) -> str:
        """Say which work it is, and why it can't be done there."""
        return f"stage {self.stage} is to do {self.work}: {self.why}"


@dataclass(frozen=True)
class Doubled(Mistake):
    """A piece of work stands twice."""

    code: ClassVar[str] = "SH702"
    title: ClassVar[str] = "done twice"
    stage: int
    work: str

    def message(self) -> str:
        """Name the work."""
        return f"stage {self.stage} does {self.work} twice"


@dataclass(frozen=True)
class Missing(Mistake):
    """A piece of work stands nowhere."""

    code: ClassVar[str] = "SH703"
    title: ClassVar[str] = "never done"
    stage: int
    work: str

    def message(self) -> str:
        """Name the work."""
        return f"stage {self.stage} never does {self.work}"


@dataclass(frozen=True)
class Deadlock(Mistake):
    """Stages wait for each other, or one for itself; `waits` is the circle."""

    code: ClassVar[str] = "SH704"
    title: ClassVar[str] = "deadlock"
    waits: tuple[str, ...]

    def message(self) -> str:
        """Give the circle."""
        return "no stage can go on: " + "; ".join(self.waits)


@dataclass(frozen=True)
class UnknownSchedule(Mistake):
    """`schedule 1f2b`."""

    code: ClassVar[str] = "SH711"
    title: ClassVar[str] = "unknown schedule"
    name: str
    known: tuple[str, ...]

    def message(self) -> str:
        """Name it."""
        return f"there is no schedule {self.name!r}"

    def hint(self) -> str | None:
        """Say which there are."""
        return f"there are {', '.join(self.known)}"


@dataclass(frozen=True)
class TooFewMicrobatches(Mistake):
    """A schedule needs more microbatches for its stages."""

    code: ClassVar[str] = "SH712"
    title: ClassVar[str] = "too few microbatches"
    schedule: str
    stages: int
    microbatches: int
    least: int

    def message(self) -> str:
        """Say how many there are and have to be."""
        return (
            f"{self.schedule} with {self.stages} stages needs at least {self.least} microbatches, "
            f"and there are {self.microbatches}"
        )

    def hint(self) -> str | None:
        """Say what takes fewer."""
        return "gpipe and 1f1b take any number of microbatches"


@dataclass(frozen=True)
class UnevenMicrobatches(Mistake):
    """A schedule goes through microbatches in groups that its microbatches don't fill."""

    code: ClassVar[str] = "SH713"
    title: ClassVar[str] = "microbatches in groups"
    schedule: str
    microbatches: int
    group: int
    why: str

    def message(self) -> str:
        """Say what divides what."""
        return f"{self.schedule} {self.why}: {self.microbatches} microbatches are no multiple of {self.group}"

    def hint(self) -> str | None:
        """Give the next numbers that fit."""
        below = self.microbatches // self.group * self.group
        near = [str(n) for n in (below, below + self.group) if n > 0]
        return f"take {' or '.join(near)}"


@dataclass(frozen=True)
class OddStages(Mistake):
    """DualPipe on an odd number of stages."""

    code: ClassVar[str] = "SH714"
    title: ClassVar[str] = "stages in pairs"
    schedule: str
    stages: int

    def message(self) -> str:
        """Say why they have to be even."""
        return (
            f"{self.schedule} runs the model from both ends, so that stages come in pairs: "
            f"{self.stages} is odd"
        )

    def hint(self) -> str | None:
        """Give the next numbers that fit."""
        return f"take {self.stages - 1} or {self.stages + 1} stages"


@dataclass(frozen=True)
class NoChunks(Mistake):
    """A number of chunks for a schedule that has none."""

    code: ClassVar[str] = "SH715"
    title: ClassVar[str] = "chunks of a stage"
    schedule: str
    chunks: int

    def message(self) -> str:
        """Say what the number is for."""
        if self.schedule == "interleaved":
            return f"interleaved needs at least 2 chunks on each stage, and there are {self.chunks}"
        return f"{self.schedule} has one chunk on each stage, not {self.chunks}"

    def hint(self) -> str | None:
        """Say how several are written, or name the schedule that has them."""
        if self.schedule == "interleaved":
            return "write `schedule interleaved, chunks 2`, or --chunks 2 on a command line"
        return "interleaved has several"


@dataclass(frozen=True)
class TooMuchWork(Mistake):
    """More stages, microbatches or chunks than are simulated."""

    code: ClassVar[str] = "SH716"
    title: ClassVar[str] = "too large a schedule"
    stages: int
    microbatches: int
    chunks: int
    most: int

    def message(self) -> str:
        """Give the limit."""
        return (
            f"{self.stages} stages with {self.microbatches} microbatches and chunks {self.chunks}: at most "
            f"{self.most} passes through a stage are simulated"
        )


@dataclass(frozen=True)
class NothingToSchedule(Mistake):
    """No stage, or no microbatch."""

    code: ClassVar[str] = "SH717"
    title: ClassVar[str] = "nothing to schedule"
    what: str

    def message(self) -> str:
        """Say what is missing."""
        return f"a schedule needs at least one of its {self.what}"
