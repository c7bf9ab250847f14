"""What can be wrong with a question to a report: an unknown symbol, a constraint (SH52x)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from shardlang.diagnostics import Mistake


@dataclass(frozen=True)
class UnknownSymbol(Mistake):
    """`--for Q` where no formula has a Q."""

    code: ClassVar[str] = "SH521"
    title: ClassVar[str] = "unknown symbol"

    name: str
    nearest: str | None
    known: tuple[str, ...]

    def message(self) -> str:
        """Say which name it is."""
        return f"no formula of this program has a '{self.name}'"

    def hint(self) -> str:
        """Offer the nearest name, or all of them."""
        if self.nearest is not None:
            return f"did you mean '{self.nearest}'?"
        return f"there are {', '.join(self.known)}"


@dataclass(frozen=True)
class BadConstraint(Mistake):
    """`--with` that is no product of the chosen axes and what it equals."""

    code: ClassVar[str] = "SH522"
    title: ClassVar[str] = "no constraint"

    text: str
    why: str

    def message(self) -> str:
        """Say what is wrong with it."""
        return f"'{self.text}' fixes no product of axes: {self.why}"

    def hint(self) -> str:
        """Show how one is written."""
        return "write --over X,Y --with 'X*Y=N', or with a number in place of N"


@dataclass(frozen=True)
class NotAnAxis(Mistake):
    """`--over B` where B is no mesh axis."""

    code: ClassVar[str] = "SH523"
    title: ClassVar[str] = "not an axis"

    name: str
    axes: tuple[str, ...]

    def message(self) -> str:
        """Say which name it is."""
        return f"'{self.name}' is no axis of this program's mesh"

    def hint(self) -> str:
        """List the axes."""
        return f"its axes are {', '.join(self.axes)}" if self.axes else "it has no mesh axes"


@dataclass(frozen=True)
class LaidAxis(Mistake):
    """`--for X` or `--over X,Y` where X is laid on a slice: its size is the slice's."""

    code: ClassVar[str] = "SH524"
    title: ClassVar[str] = "axis of a slice"

    name: str
    slice: str

    def message(self) -> str:
        """Say which axis it is, and what holds it."""
        return f"the size of '{self.name}' follows from the slice {self.slice}"

    def hint(self) -> str:
        """Say how it is freed."""
        return "leave out the slice's shape to solve for it"


@dataclass(frozen=True)
class NotScheduled(Mistake):
    """A schedule of a plan with sizes or figures left open."""

    code: ClassVar[str] = "SH525"
    title: ClassVar[str] = "a schedule needs numbers"

    names: tuple[str, ...]

    def message(self) -> str:
        """Say what is missing."""
        return f"a schedule needs every size and figure, and {', '.join(self.names)} have none"

    def hint(self) -> str:
        """Say how to give them."""
        return "give sizes with --set, and figures with --hardware or --set"


@dataclass(frozen=True)
class NoPart(Mistake):
    """`--parts weights` where memory has no such part."""

    code: ClassVar[str] = "SH526"
    title: ClassVar[str] = "no part of memory"

    name: str
    parts: tuple[str, ...]

    def message(self) -> str:
        """Say which name it is."""
        return f"memory has no part '{self.name}'"

    def hint(self) -> str:
        """List the parts."""
        return f"its parts are {', '.join(self.parts)}"


@dataclass(frozen=True)
class NoTime(Mistake):
    """`--when flops>t_comms`, which compares no two times."""

    code: ClassVar[str] = "SH527"
    title: ClassVar[str] = "no comparison of times"

    text: str
    times: tuple[str, ...]

    def message(self) -> str:
        """Say what was typed."""
        return f"'{self.text}' is no comparison of two times of the report"

    def hint(self) -> str:
        """Show one, and list the times."""
        return f"write t_load>t_comms; the times are {', '.join(self.times)}"
