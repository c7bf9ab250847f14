"""What can be wrong when a plan becomes JAX code or is verified: SH6xx."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from shardlang.diagnostics import Diagnostic, Mistake, ShardlangError
from shardlang.ir.plan import Plan
from shardlang.source import Span


@dataclass(frozen=True)
class SizeDoesNotDivide(Mistake):
    """A dim that the axes over it do not divide."""

    code: ClassVar[str] = "SH601"
    title: ClassVar[str] = "size does not divide"

    array: str
    dim: str
    size: int
    axes: str
    parts: int

    def message(self) -> str:
        """Name the dim, its size, the axes and their size."""
        return (
            f"{self.dim} is {self.size}, which {self.axes} of size {self.parts} does not divide "
            f"(in {self.array})"
        )

    def hint(self) -> str | None:
        """Suggest the next size that divides."""
        up = -(-self.size // self.parts) * self.parts
        return f"use a multiple of {self.parts}, for instance --set {self.dim}={up}"


@dataclass(frozen=True)
class BadSize(Mistake):
    """A size that no array can have."""

    code: ClassVar[str] = "SH602"
    title: ClassVar[str] = "not a size"

    name: str
    size: int

    def message(self) -> str:
        """Say what the size is."""
        return f"{self.name} is {self.size}, and a size must be between 1 and 2**62"


@dataclass(frozen=True)
class SizesApart(Mistake):
    """Two sizes for the two names of one dim."""

    code: ClassVar[str] = "SH607"
    title: ClassVar[str] = "two sizes of one dim"

    old: str
    old_size: int
    new: str
    new_size: int

    def message(self) -> str:
        """Name both with their sizes."""
        return (
            f"{self.old} and {self.new} are one size under two names, "
            f"but {self.old} is {self.old_size} and {self.new} is {self.new_size}"
        )


@dataclass(frozen=True)
class NoSizes(Mistake):
    """Sizes that nobody gave, and an expression that none of those tried makes whole."""

    code: ClassVar[str] = "SH608"
    title: ClassVar[str] = "no sizes found"

    name: str
    size: str

    def message(self) -> str:
        """Name the dim and its expression."""
        return f"no sizes were found with which {self.name}={self.size} is whole and divides"

    def hint(self) -> str | None:
        """Say what to do."""
        return "give the sizes in it, as in --set D=64"


@dataclass(frozen=True)
class ShardsApart(Mistake):
    """A Permute between layouts that split a dim into different numbers of shards at these sizes."""

    code: ClassVar[str] = "SH609"
    title: ClassVar[str] = "no permutation of shards"

    step: str
    dim: str
    before: int
    after: int

    def message(self) -> str:
        """Name the step, the dim and both numbers."""
        return (
            f"`{self.step}` sends whole shards, and at these sizes {self.dim} has {self.before} "
            f"shards before it and {self.after} after it"
        )

    def hint(self) -> str | None:
        """Say what to do."""
        return "lower the program at the sizes that it is to run at"


@dataclass(frozen=True)
class AxisNotAscii(Mistake):
    """A mesh axis whose name XLA can't read."""

    code: ClassVar[str] = "SH610"
    title: ClassVar[str] = "axis name not in ASCII"

    name: str

    def message(self) -> str:
        """Name the axis."""
        return f"the axis '{self.name}' can't be emitted: XLA reads names of axes in ASCII alone"

    def hint(self) -> str | None:
        """Say what to do."""
        return "give the axis a name of plain letters; dims and tensors may keep theirs"


@dataclass(frozen=True)
class TooManyDims(Mistake):
    """A step with more dims than an einsum has letters."""

    code: ClassVar[str] = "SH603"
    title: ClassVar[str] = "too many dims"

    step: str
    count: int

    def message(self) -> str:
        """Say how many dims there are."""
        return f"`{self.step}` has {self.count} dims; an einsum in JAX has letters for 52"


@dataclass(frozen=True)
class PlanDefect(Mistake):
    """A plan whose steps do not hold together, so that no code can follow it."""

    code: ClassVar[str] = "SH604"
    title: ClassVar[str] = "plan can't be emitted"

    text: str

    def message(self) -> str:
        """Give the defect."""
        return self.text


@dataclass(frozen=True)
class ScheduleNotEmitted(Mistake):
    """A pipeline whose schedule has dX apart from dW."""

    code: ClassVar[str] = "SH612"
    title: ClassVar[str] = "schedule not emitted"
    schedule: str
    emitted: tuple[str, ...]

    def message(self) -> str:
        """Say what can't be emitted."""
        return (
            f"the schedule {self.schedule} can't be emitted: code is written for pipelines whose dX and "
            "dW are one piece of work"
        )

    def hint(self) -> str | None:
        """Say what can be emitted."""
        return f"these can: {', '.join(self.emitted)}"


@dataclass(frozen=True)
class NotInStages(Mistake):
    """A step in the work of a stage that sends from device to device: a Permute, or a ring."""

    code: ClassVar[str] = "SH615"
    title: ClassVar[str] = "not done in stages"
    step: str
    what: str
    instead: str

    def message(self) -> str:
        """Name the step, and say why stages can't do it."""
        return (
            f"`{self.step}` can't be emitted in a pipeline: {self.what} needs every device of the mesh at once, "
            "and stages do different work at one time"
        )

    def hint(self) -> str | None:
        """Say what does the same."""
        return self.instead


@dataclass(frozen=True)
class JaxMissing(Mistake):
    """JAX is not installed, so nothing can be run."""

    code: ClassVar[str] = "SH605"
    title: ClassVar[str] = "JAX is missing"

    def message(self) -> str:
        """Say what needs it."""
        return "verify runs the emitted module, and JAX is not installed"

    def hint(self) -> str | None:
        """Say how to install it."""
        return "pip install 'shardlang[jax]'"


@dataclass(frozen=True)
class VerifyFailedToRun(Mistake):
    """The process that verifies ended without an answer."""

    code: ClassVar[str] = "SH606"
    title: ClassVar[str] = "verify could not run"

    text: str

    def message(self) -> str:
        """Give what the process said last."""
        return f"the process that runs the emitted module gave no answer: {self.text}"


def failure(plan: Plan, mistake: Mistake, span: Span | None = None) -> ShardlangError:
    """Make the error that reports a mistake at a place of the plan's program."""
    return ShardlangError([Diagnostic(plan.program.source, span or Span(0, 0), mistake)])
