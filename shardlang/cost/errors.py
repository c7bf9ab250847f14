"""What can be wrong with a question to a report: an unknown symbol, a constraint, a run (SH52x, SH53x)."""

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


@dataclass(frozen=True)
class FollowsBySum(Mistake):
    """`F = 2*D + 48` where a condition is solved for D."""

    code: ClassVar[str] = "SH528"
    title: ClassVar[str] = "a dim that follows by a sum"

    name: str
    symbol: str

    def message(self) -> str:
        """Say which dim."""
        return f"'{self.name}' follows {self.symbol} by a sum, which no condition is solved for"

    def hint(self) -> str:
        """Say what can be asked."""
        return f"give {self.name} a size of its own, --set {self.name}=...; `plot` and `cost` follow any size"


@dataclass(frozen=True)
class BadEfficiency(Mistake):
    """`--set E_math=80`: a share of a figure that is more than all of it."""

    code: ClassVar[str] = "SH530"
    title: ClassVar[str] = "bad efficiency"

    name: str
    value: str

    def message(self) -> str:
        """Say what it should be."""
        return f"'{self.name}' is a share, above 0 and at most 1, not {self.value}"

    def hint(self) -> str:
        """Show how one is written."""
        return f"80 % is {self.name}=0.8; a faster chip has other figures: --set C=..."


@dataclass(frozen=True)
class NoTokens(Mistake):
    """A training run of a program whose batch nothing names."""

    code: ClassVar[str] = "SH531"
    title: ClassVar[str] = "no batch"

    def message(self) -> str:
        """Say what is missing."""
        return "the tokens of a step are not known: no input has a dim that no weight has"

    def hint(self) -> str:
        """Say what tells weights from inputs."""
        return "declare the weights, as in `param W: [D, F]`, so that the other dims are the batch"


@dataclass(frozen=True)
class BadRun(Mistake):
    """`--tokens 0`, `--mfu 1.2`: a figure of a run that no run has."""

    code: ClassVar[str] = "SH532"
    title: ClassVar[str] = "bad figure of a run"

    name: str
    value: str
    share: bool = False

    def message(self) -> str:
        """Say what it should be."""
        wanted = "a share, above 0 and at most 1" if self.share else "a positive number"
        return f"{self.name} has to be {wanted}, not {self.value}"


@dataclass(frozen=True)
class UnknownConvention(Mistake):
    """`--convention mfu`, which none is called."""

    code: ClassVar[str] = "SH533"
    title: ClassVar[str] = "unknown convention"

    name: str
    known: tuple[str, ...]

    def message(self) -> str:
        """Say which name it is."""
        return f"no FLOP convention is called '{self.name}'"

    def hint(self) -> str:
        """List the names."""
        return f"there are {', '.join(self.known)}"


@dataclass(frozen=True)
class BadTable(Mistake):
    """A table of measured runs that is no TOML or CSV, or has no runs."""

    code: ClassVar[str] = "SH534"
    title: ClassVar[str] = "bad table of runs"

    why: str

    def message(self) -> str:
        """Say what is wrong with it."""
        return f"this is no table of runs: {self.why}"

    def hint(self) -> str:
        """Show the two forms."""
        return (
            'a TOML file has [[run]] with program = "x.shd", seconds = 1.5, set = {B = 1024};'
            " a CSV file has columns program, seconds, B"
        )


@dataclass(frozen=True)
class BadEntry(Mistake):
    """A run of a table with a key that is missing, unknown or of no sense."""

    code: ClassVar[str] = "SH535"
    title: ClassVar[str] = "bad run"

    run: str
    why: str
    advice: str | None = None

    def message(self) -> str:
        """Say which run, and what is wrong."""
        return f"{self.run}: {self.why}"

    def hint(self) -> str | None:
        """Say what to do about it."""
        return self.advice


@dataclass(frozen=True)
class TooFewRuns(Mistake):
    """Fewer runs than there is to fit."""

    code: ClassVar[str] = "SH536"
    title: ClassVar[str] = "too few runs"

    runs: int
    names: tuple[str, ...]

    def message(self) -> str:
        """Say how many there are of each."""
        many = "1 run" if self.runs == 1 else f"{self.runs} runs"
        return f"{many} can't tell {len(self.names)} figures: {', '.join(self.names)}"

    def hint(self) -> str:
        """Say what would do."""
        return "add runs, or fit fewer: --fit E_math"


@dataclass(frozen=True)
class NotFitted(Mistake):
    """`--fit Q` where Q is nothing that can be fitted, or that some run has no formula with."""

    code: ClassVar[str] = "SH537"
    title: ClassVar[str] = "not to be fitted"

    name: str
    why: str
    advice: str

    def message(self) -> str:
        """Say which name, and why."""
        return f"'{self.name}' can't be fitted: {self.why}"

    def hint(self) -> str:
        """Say what can be."""
        return self.advice


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
