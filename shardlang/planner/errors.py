"""What can be wrong with what a planner is asked: sizes, splits, and layouts out of reach (SH35x)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import ClassVar

from shardlang.diagnostics import Diagnostic, Mistake, ShardlangError
from shardlang.ir.printer import amount
from shardlang.ir.program import Program
from shardlang.source import Source, Span


@dataclass(frozen=True)
class SizesNeeded(Mistake):
    """A search by numbers where a size is a symbol."""

    code: ClassVar[str] = "SH351"
    title: ClassVar[str] = "a size is missing"

    names: tuple[str, ...]
    what: str = "the cheapest way"
    why: str = ""
    """Why there is no answer for sizes left open."""

    def message(self) -> str:
        """Say which sizes are missing."""
        listed = ", ".join(self.names)
        verb = "has" if len(self.names) == 1 else "have"
        text = f"{self.what} depends on the sizes, and {listed} {verb} none"
        return f"{text}; with sizes left open there is no answer: {self.why}" if self.why else text

    def hint(self) -> str:
        """Say how to give one."""
        if len(self.names) == 1:
            return f"give it: --set {self.names[0]}=..., or sizes={{'{self.names[0]}': ...}}"
        few = self.names[:3]
        more = " and so on" if len(self.names) > len(few) else ""
        options = " ".join(f"--set {name}=..." for name in few)
        entries = ", ".join(f"'{name}': ..." for name in few)
        return f"give them: {options}{more}, or sizes={{{entries}{', ...' if more else ''}}}"


@dataclass(frozen=True)
class UnevenSplit(Mistake):
    """A dim that its axes don't divide."""

    code: ClassVar[str] = "SH352"
    title: ClassVar[str] = "uneven split"

    array: str
    dim: str
    size: int
    shards: int

    def message(self) -> str:
        """Say which dim, of what size, in how many shards."""
        return (
            f"{self.dim} has size {self.size}, which {self.array} splits into {self.shards} shards"
        )

    def hint(self) -> str:
        """Say what would divide."""
        return f"pad {self.dim} to {-(-self.size // self.shards) * self.shards}"


@dataclass(frozen=True)
class NoRoute(Mistake):
    """A layout that can't be made from another without new data."""

    code: ClassVar[str] = "SH353"
    title: ClassVar[str] = "no way to this layout"

    source: str
    target: str

    def message(self) -> str:
        """Say from where to where."""
        return f"no relayouts lead from {self.source} to {self.target}"

    def hint(self) -> str:
        """Say what is never possible."""
        return "partial maxima can only be finished, never made, by a relayout"


@dataclass(frozen=True)
class DifferentDims(Mistake):
    """Two arrays that are not layouts of one tensor."""

    code: ClassVar[str] = "SH354"
    title: ClassVar[str] = "not the same tensor"

    source: str
    target: str

    def message(self) -> str:
        """Say which two."""
        return f"{self.source} and {self.target} have different dims, so neither is a layout of the other"


@dataclass(frozen=True)
class BadAxis(Mistake):
    """A layout with an axis twice, or with one that the mesh lacks."""

    code: ClassVar[str] = "SH355"
    title: ClassVar[str] = "not a layout on this mesh"

    array: str
    axis: str
    twice: bool

    def message(self) -> str:
        """Say which axis."""
        if self.twice:
            return f"{self.array} uses {self.axis} twice"
        return f"{self.array} uses {self.axis}, and the mesh has no such axis"


@dataclass(frozen=True)
class NoHardware(Mistake):
    """Times are asked for, and a figure of the hardware is missing, or all of them."""

    code: ClassVar[str] = "SH356"
    title: ClassVar[str] = "no hardware to take times on"

    figure: str | None = None

    def message(self) -> str:
        """Say what is missing."""
        if self.figure is not None:
            return f"the hardware has no {self.figure}, which times need"
        return "times need hardware, and the program names none"

    def hint(self) -> str:
        """Say how to name one."""
        return "name it: hardware tpu_v5p, or --hardware tpu_v5p"


@dataclass(frozen=True)
class TooMuchMemory(Mistake):
    """No plan was found that keeps to a limit on memory."""

    code: ClassVar[str] = "SH357"
    title: ClassVar[str] = "not enough memory"

    limit: Fraction
    peak: Fraction
    parts: tuple[tuple[str, Fraction], ...]
    largest: tuple[tuple[str, Fraction], ...]
    late: bool = False

    def message(self) -> str:
        """Say how much the leanest plan takes, and for what; and where time was over before all was tried."""
        parts = ", ".join(f"{_PARTS.get(n, n)} {amount(size, 'B')}" for n, size in self.parts)
        arrays = ", ".join(f"{name} {amount(size, 'B')}" for name, size in self.largest)
        more = f"; the largest that the backward pass reads: {arrays}" if arrays else ""
        limit, peak = amount(self.limit, "B"), amount(self.peak, "B")
        if limit == peak:
            limit, peak = (f"{float(size):,.0f} B" for size in (self.limit, self.peak))
        found = "found in time (--budget)" if self.late else "found"
        return (
            f"no plan was {found} that takes {limit} a device or less: the leanest takes {peak} "
            f"({parts}{more})"
        )

    def hint(self) -> str:
        """Say what takes less."""
        return "split what is largest over more axes where it is declared, or raise --memory-limit"


def short_by(error: ShardlangError) -> Fraction:
    """Give the least memory that an error says is needed; 0 for an error of another kind."""
    found = [d.mistake.peak for d in error.diagnostics if isinstance(d.mistake, TooMuchMemory)]
    return min(found, default=Fraction(0))


def late(error: ShardlangError) -> ShardlangError:
    """Say in an error that nothing fits that time was over before all was tried."""
    return ShardlangError(
        replace(d, mistake=replace(d.mistake, late=True))
        if isinstance(d.mistake, TooMuchMemory)
        else d
        for d in error.diagnostics
    )


_PARTS = {"gathered_peak": "gathered copies", "optimizer": "optimizer state"}
"""Parts of the memory that have other names in prose."""


def placed(error: ShardlangError, program: Program) -> ShardlangError:
    """Give mistakes that have no place the program's text and its first statement."""
    at = program.statements[0].span if program.statements else Span(0, 0)
    return ShardlangError(
        d if d.source.text else replace(d, source=program.source, span=at)
        for d in error.diagnostics
    )


@dataclass(frozen=True)
class OutsideAssumed(Mistake):
    """Sizes for which an answer with sizes left open does not hold."""

    code: ClassVar[str] = "SH358"
    title: ClassVar[str] = "sizes outside of those assumed"

    what: str

    def message(self) -> str:
        """Say which."""
        return f"the plans were compared for other sizes: {self.what}"

    def hint(self) -> str:
        """Say what to do instead."""
        return "plan for these sizes: lower(program, 'optimal', sizes)"


@dataclass(frozen=True)
class NoMesh(Mistake):
    """A number of chips that no mesh of the program has."""

    code: ClassVar[str] = "SH359"
    title: ClassVar[str] = "no such mesh"

    chips: int
    fixed: tuple[str, ...]

    def message(self) -> str:
        """Say which number."""
        if self.fixed:
            return f"{self.chips} chips are no multiple of the axes {', '.join(self.fixed)}"
        return f"no mesh of {self.chips} chips divides the dims"

    def hint(self) -> str:
        """Say what to change."""
        return "ask for a number of chips that is a product of small factors, or pad the dims"


@dataclass(frozen=True)
class NoStages(Mistake):
    """A number of chips on none of whose meshes a pipeline has a schedule."""

    code: ClassVar[str] = "SH360"
    title: ClassVar[str] = "no stages"

    chips: int
    why: str

    def message(self) -> str:
        """Say why."""
        return f"on no mesh of {self.chips} chips the pipeline has a schedule: {self.why}"

    def hint(self) -> str:
        """Say what to change."""
        return "change the layers, the microbatches or the schedule, or ask for other axes"


def wrong(mistake: Mistake) -> ShardlangError:
    """Give the error for a mistake that has no place in a text."""
    return ShardlangError([Diagnostic(Source("planner", ""), Span(0, 0), mistake)])
