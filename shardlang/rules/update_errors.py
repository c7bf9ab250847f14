"""What can be wrong with the update of a training step, beside a line that is not legal (SH32x)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from shardlang.diagnostics import Mistake, Severity


@dataclass(frozen=True)
class PartialParameter(Mistake):
    """`zero 1 over X`, and a parameter that lives as `W[D, F]{U_Y}`."""

    code: ClassVar[str] = "SH321"
    title: ClassVar[str] = "a parameter of partial sums can't be updated"

    leaf: str

    def message(self) -> str:
        """Name it."""
        return f"{self.leaf} holds partial sums, and no optimizer makes the new ones of them"

    def hint(self) -> str | None:
        """Say what to do."""
        return "let it live whole or split"


@dataclass(frozen=True)
class StateWhole(Mistake):
    """`zero 1 over X` with X=8, and a parameter `b[D]` with D=12."""

    code: ClassVar[str] = "SH322"
    title: ClassVar[str] = "an optimizer's state that is not split"
    severity: ClassVar[Severity] = "warning"

    leaf: str
    axis: str

    def message(self) -> str:
        """Name the parameter and the axis."""
        return f"{self.axis} divides no dim of {self.leaf}: its state is whole over {self.axis}"

    def hint(self) -> str | None:
        """Give the rule."""
        return "each axis splits the first dim whose shard it divides evenly"


@dataclass(frozen=True)
class WrongUpdate(Mistake):
    """The update ends as `W'[D_X, F]`, and W lives as `W[D, F]`."""

    code: ClassVar[str] = "SH323"
    title: ClassVar[str] = "a new parameter in another layout"

    made: str
    leaf: str
    steps: str | None = None

    def message(self) -> str:
        """Give both layouts."""
        return f"the new parameter ends as {self.made}, and it lives as {self.leaf}"

    def hint(self) -> str | None:
        """Give the missing lines."""
        return None if self.steps is None else f"add {self.steps}"


@dataclass(frozen=True)
class NotUpdated(Mistake):
    """An update section that leaves a parameter out."""

    code: ClassVar[str] = "SH324"
    title: ClassVar[str] = "a parameter that is not updated"
    severity: ClassVar[Severity] = "warning"

    leaf: str

    def message(self) -> str:
        """Name it."""
        return f"no line of the update makes a new {self.leaf}, which has a gradient"
