"""What can be wrong with the declarations of a training step, and with its update (codes SH28x)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from shardlang.diagnostics import Mistake
from shardlang.frontend.hints import listed


@dataclass(frozen=True)
class ZeroLevel(Mistake):
    """`zero 3 over X`, `zero 4 over X`."""

    code: ClassVar[str] = "SH281"
    title: ClassVar[str] = "no such level of ZeRO"

    level: str
    axis: str

    def message(self) -> str:
        """Name it."""
        return f"behind the optimizer stands zero 1 or zero 2, not zero {self.level}"

    def hint(self) -> str | None:
        """Say what the two mean, and how level 3 is said."""
        if self.level == "3":
            return f"ZeRO-3 is where parameters live: param W: [D_{self.axis}, F]"
        return "zero 1 splits the optimizer's state, zero 2 the gradients that are kept as well"


@dataclass(frozen=True)
class ZeroOverNothing(Mistake):
    """`optimizer adamw, zero 1`: over which axes?"""

    code: ClassVar[str] = "SH286"
    title: ClassVar[str] = "ZeRO over no axis"

    optimizer: str
    level: str
    axes: tuple[str, ...]

    def message(self) -> str:
        """Say what is missing."""
        return f"zero {self.level} does not say over which mesh axes the state is split"

    def hint(self) -> str | None:
        """Give the line, with an axis that the program has."""
        axis = self.axes[0] if self.axes else "X"
        more = "" if len(self.axes) < 2 else f"; the axes are {listed(self.axes)}"
        return f"write `optimizer {self.optimizer}, zero {self.level} over {axis}`{more}"


@dataclass(frozen=True)
class AxisTwiceInZero(Mistake):
    """`zero 1 over X, X`."""

    code: ClassVar[str] = "SH282"
    title: ClassVar[str] = "an axis stands twice"

    axis: str

    def message(self) -> str:
        """Name it."""
        return f"{self.axis} stands twice behind `over`"

    def hint(self) -> str | None:
        """Say what to do."""
        return "name each axis once"


@dataclass(frozen=True)
class MicrobatchDim(Mistake):
    """`accumulate B`, where tensors have B."""

    code: ClassVar[str] = "SH283"
    title: ClassVar[str] = "a dim of tensors counts microbatches"

    dim: str

    def message(self) -> str:
        """Name it."""
        return f"{self.dim} counts microbatches, and is a dim of tensors as well"

    def hint(self) -> str | None:
        """Say what the program's batch is."""
        return "the batch in the program is that of one microbatch: count them by another name"


@dataclass(frozen=True)
class UpdateElsewhere(Mistake):
    """`Update(W, dW)` in an ordinary program, or in another section."""

    code: ClassVar[str] = "SH284"
    title: ClassVar[str] = "an update in another place"

    def message(self) -> str:
        """Say where it belongs."""
        return "Update stands in the section update: of an explicit program alone"

    def hint(self) -> str | None:
        """Say what to write in an ordinary program."""
        return "an ordinary program says `optimizer adamw, zero 1 over X`, and the update follows"
