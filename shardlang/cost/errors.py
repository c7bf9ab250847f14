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
class LoneAxis(Mistake):
    """`--over X=1:16` where the program has X=1, and so no collectives over X."""

    code: ClassVar[str] = "SH541"
    title: ClassVar[str] = "axis of size 1"

    name: str

    def message(self) -> str:
        """Say what is missing."""
        return (
            f"the axis '{self.name}' has size 1 in this program, which has no collectives over it"
        )

    def hint(self) -> str:
        """Say how they come back."""
        return f"lower it with another size: --set {self.name}=2"


@dataclass(frozen=True)
class BadRange(Mistake):
    """`--over B=0.5:4`: a range that a size or an axis can't take."""

    code: ClassVar[str] = "SH542"
    title: ClassVar[str] = "no range"

    text: str
    why: str

    def message(self) -> str:
        """Say what is wrong with it."""
        return f"'{self.text}' is no range to draw: {self.why}"

    def hint(self) -> str:
        """Show how one is written."""
        return "write --over B=10k:10M for a dim, --over X=1:256 for an axis"


@dataclass(frozen=True)
class NotDrawn(Mistake):
    """A curve of a plan with other sizes or figures left open."""

    code: ClassVar[str] = "SH543"
    title: ClassVar[str] = "a curve needs numbers"

    name: str
    why: str

    def message(self) -> str:
        """Say what is missing."""
        return f"a curve over {self.name} needs every other size and figure, and {self.why}"

    def hint(self) -> str:
        """Say how to give them."""
        return "give sizes with --set, and figures with --hardware or --set"


@dataclass(frozen=True)
class BadSplit(Mistake):
    """`--split` that no program can follow."""

    code: ClassVar[str] = "SH544"
    title: ClassVar[str] = "no split"

    text: str
    why: str

    def message(self) -> str:
        """Say what is wrong with it."""
        return f"'{self.text}' is no split to choose from: {self.why}"

    def hint(self) -> str:
        """Show how one is written."""
        return "write --split 'X*Y=64': axes of the mesh, and how many devices they have together"
