"""What can be wrong with calls that work along whole dims or reshape: their form and their sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from shardlang.diagnostics import Mistake
from shardlang.frontend.hints import listed


@dataclass(frozen=True)
class WrongReshape(Mistake):
    """`Reshape_{N,K,G}(q[B, N])`, `Reshape_{N,M->K,G}(..)`."""

    code: ClassVar[str] = "SH291"
    title: ClassVar[str] = "wrong subscript of Reshape"
    text: str
    dims: tuple[str, ...]

    def message(self) -> str:
        """Say what is wrong with it."""
        return self.text

    def hint(self) -> str | None:
        """Show both forms."""
        last = self.dims[-1] if self.dims else "N"
        return (
            f"one dim becomes several or several one, as in Reshape_{{{last}->K,G}}(..) "
            f"or Reshape_{{K,G->{last}}}(..)"
        )


@dataclass(frozen=True)
class SizesDontMultiply(Mistake):
    """`dims N=10, K=4` with `Reshape_{N->K,G}(..)`, `dims H=7` with `rotary_H(..)`."""

    code: ClassVar[str] = "SH292"
    title: ClassVar[str] = "sizes that don't multiply"
    whole: str
    factors: tuple[str, ...]
    times: int
    sizes: tuple[tuple[str, int], ...]
    call: str

    def message(self) -> str:
        """Give the relation and the sizes that break it."""
        bars = "".join(f"|{name}|" for name in self.factors)
        relation = f"|{self.whole}| = {self.times if self.times != 1 else ''}{bars}"
        known = listed([f"{name}={size}" for name, size in self.sizes])
        return f"{self.call} needs {relation}, but {known}"

    def hint(self) -> str | None:
        """Say what to do."""
        known = dict(self.sizes)
        if self.whole in known and self.times != 1 and known[self.whole] % self.times:
            return f"{self.whole} has to be even: its two halves are turned together"
        missing = [name for name in self.factors if name not in known]
        if missing:
            return f"{missing[0]} is what is left of {self.whole}, so the others have to divide it"
        return "leave one of the sizes out: it follows from the others"


@dataclass(frozen=True)
class NoHalf(Mistake):
    """`rotary_H(x[B, H], angle[B])`."""

    code: ClassVar[str] = "SH293"
    title: ClassVar[str] = "no dim of angles"
    angle: str
    dims: tuple[str, ...]
    dim: str

    def message(self) -> str:
        """Say what is missing."""
        return (
            f"{self.angle}[{', '.join(self.dims)}] has no dim of its own for the angles of "
            f"{self.dim}'s pairs"
        )

    def hint(self) -> str | None:
        """Show the form."""
        return f"as in rotary_{self.dim}(x[T, {self.dim}], angle[T, R]), where |{self.dim}| = 2|R|"


@dataclass(frozen=True)
class WrongTop(Mistake):
    """`top_E(gates)`, `top_{E,S}(gates[S, E])`."""

    code: ClassVar[str] = "SH294"
    title: ClassVar[str] = "wrong subscript of top"
    text: str

    def message(self) -> str:
        """Say what is wrong with it."""
        return self.text

    def hint(self) -> str | None:
        """Show the form."""
        return "as in top_{E,J}(gates): the |J| largest along E, with J a new dim"


@dataclass(frozen=True)
class TooMany(Mistake):
    """`top_{E,J}(gates)` with `dims E=4, J=5`."""

    code: ClassVar[str] = "SH295"
    title: ClassVar[str] = "more than there are"
    dim: str
    size: int
    into: str
    count: int

    def message(self) -> str:
        """Give both sizes."""
        return (
            f"top_{{{self.dim},{self.into}}} takes the {self.into}={self.count} largest of "
            f"{self.dim}={self.size}"
        )

    def hint(self) -> str | None:
        """Say how many there can be."""
        return f"{self.into} is a new dim of at most {self.size}"


@dataclass(frozen=True)
class RankOfFloats(Mistake):
    """`rank_S(x[B, S])` of a bf16 x."""

    code: ClassVar[str] = "SH296"
    title: ClassVar[str] = "rank of numbers that are not whole"
    name: str
    dtype: str

    def message(self) -> str:
        """Say what it is given."""
        return f"rank counts equal whole numbers, and {self.name} is {self.dtype}"

    def hint(self) -> str | None:
        """Say where such numbers come from."""
        return "as in rank_{S,J}(choice) of choice[S, J] = top_{E,J}(gates)"
