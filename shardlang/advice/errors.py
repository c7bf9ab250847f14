"""What an explicit program may do at more cost than it has to: the warnings of the lint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from shardlang.diagnostics import Mistake, Severity


@dataclass(frozen=True)
class Costly(Mistake):
    """Lines that move more than others that make the same.

    `made` is the array at the line in question, `saved` what a device would move less, and `instead`
    the lines to write.
    """

    severity: ClassVar[Severity] = "warning"

    made: str
    saved: str
    instead: tuple[str, ...] = ()

    def what(self) -> str:
        """Say what is done that need not be."""
        raise NotImplementedError

    def message(self) -> str:
        """Say what is done that need not be, and what a device would move less without it."""
        return f"{self.what()}; a device would move {self.saved} less"

    def hint(self) -> str | None:
        """Give the lines to write."""
        if not self.instead:
            return "leave this line out"
        return "write: " + "\n".join(self.instead)


@dataclass(frozen=True)
class CheaperWay(Costly):
    """An operation that can be done on other shards, with fewer bytes and no more FLOPs."""

    code: ClassVar[str] = "SH450"
    title: ClassVar[str] = "cheaper on other shards"

    def what(self) -> str:
        """Name the operation's result."""
        return f"{self.made} can be made from other shards"


@dataclass(frozen=True)
class TooWide(Costly):
    """`A[I, J] = AllGather_XY(A[I_XY, J])` where everything would do with `A[I_X, J]`."""

    code: ClassVar[str] = "SH455"
    title: ClassVar[str] = "gathered wider than what is used"

    def what(self) -> str:
        """Name what is gathered."""
        return f"{self.made} is gathered wider than what is used of it"


@dataclass(frozen=True)
class ReducedThenSliced(Costly):
    """`C[I, K] = AllReduce_X(C[I, K]{U_X})`, and then `C[I_X, K]` alone is used."""

    code: ClassVar[str] = "SH456"
    title: ClassVar[str] = "an AllReduce where a ReduceScatter does"

    def what(self) -> str:
        """Name what is reduced."""
        return f"{self.made} is reduced to the whole, and slices of it are enough"


@dataclass(frozen=True)
class ReduceAfter(Costly):
    """A gather before a contraction, where adding up its result costs less."""

    code: ClassVar[str] = "SH457"
    title: ClassVar[str] = "a gather that a reduction after the product beats"

    def what(self) -> str:
        """Name what is gathered."""
        return f"{self.made} is gathered before a product whose result is cheaper to add up"


@dataclass(frozen=True)
class Detour(Costly):
    """Relayouts from one layout to another that cost more than the cheapest ones."""

    code: ClassVar[str] = "SH458"
    title: ClassVar[str] = "a detour between layouts"

    def what(self) -> str:
        """Name where it leads."""
        return f"the lines here make {self.made} by a detour"


@dataclass(frozen=True)
class TooMany(Costly):
    """`AllGather_Y(W[D_XY, F])` and then `AllGather_X`: one of both moves as much, and waits once."""

    code: ClassVar[str] = "SH449"
    title: ClassVar[str] = "more collectives than needed"

    fewer: int = 1

    def what(self) -> str:
        """Name what the lines make."""
        return f"fewer collectives make {self.made}"

    def message(self) -> str:
        """Say that the bytes are the same."""
        many = "one collective" if self.fewer == 1 else f"{self.fewer} collectives"
        return f"{many} fewer would make {self.made}, and move as much"


@dataclass(frozen=True)
class AddFirst(Costly):
    """Partial sums that are reduced one by one and then added."""

    code: ClassVar[str] = "SH459"
    title: ClassVar[str] = "reduced before they are added"

    def what(self) -> str:
        """Name the sum."""
        return f"what {self.made} adds up is reduced first, term by term"
