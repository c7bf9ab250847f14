"""What can be wrong with the names of a text: axes, dims and values (codes SH2xx).

The other mistakes of meaning are in `declaration_errors` and `expression_errors`. Each message is
one sentence in the notation's words.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from shardlang.diagnostics import Mistake
from shardlang.frontend.hints import listed, nearest, suggest


@dataclass(frozen=True)
class UnknownAxis(Mistake):
    """`A[I_{Q}]` where no axis is called Q."""

    code: ClassVar[str] = "SH201"
    title: ClassVar[str] = "unknown axis"
    name: str
    known: tuple[str, ...]

    def message(self) -> str:
        """Name it."""
        return f"{self.name} is not an axis of the mesh"

    def hint(self) -> str | None:
        """Give the nearest axis."""
        return suggest(self.name, self.known, "the axes of the mesh are") or "declare it: mesh X, Y"


@dataclass(frozen=True)
class AxisTwice(Mistake):
    """`A[I_X, J_X]` or `A[I_X]{U_X}`."""

    code: ClassVar[str] = "SH202"
    title: ClassVar[str] = "axis used twice"
    axis: str
    tensor: str
    options: tuple[str, ...] = ()

    def message(self) -> str:
        """Name the axis and the tensor."""
        return (
            f"axis {self.axis} stands twice in {self.tensor}: an axis may split a tensor only once"
        )

    def hint(self) -> str | None:
        """Show what is left without one of the two places."""
        if not self.options:
            return f"drop {self.axis} in one of the two places"
        return f"write {listed(self.options, 'or')}"


@dataclass(frozen=True)
class DimTwice(Mistake):
    """`W[D_X, D]`."""

    code: ClassVar[str] = "SH203"
    title: ClassVar[str] = "dim used twice"
    dim: str
    tensor: str

    def message(self) -> str:
        """Name the dim and the tensor."""
        return f"dim {self.dim} stands twice in {self.tensor}"

    def hint(self) -> str | None:
        """Offer the primed name."""
        return f"give the second one a name of its own: {self.dim}'"


@dataclass(frozen=True)
class DimIsAxis(Mistake):
    """`A[X, J]` where X is an axis."""

    code: ClassVar[str] = "SH204"
    title: ClassVar[str] = "dim named as an axis"
    name: str

    def message(self) -> str:
        """Name it."""
        return f"{self.name} is an axis of the mesh, so no dim may have that name"

    def hint(self) -> str | None:
        """Say what to do."""
        return "rename the dim or the axis"


@dataclass(frozen=True)
class DimIsSplit(Mistake):
    """`dims d_model=8` beside `mesh model=2`, and `x[B, d_model]`."""

    code: ClassVar[str] = "SH247"
    title: ClassVar[str] = "dim named as a dim with axes"
    name: str
    base: str
    axes: str

    def message(self) -> str:
        """Say how the name is read."""
        return f"in brackets {self.name} is the dim {self.base} split over {self.axes}"

    def hint(self) -> str | None:
        """Say what to do."""
        return f"rename the dim or the axis; for the split dim declare the size of {self.base}"


@dataclass(frozen=True)
class DimsMismatch(Mistake):
    """`A[I, J]` here and `A[I, K]` there."""

    code: ClassVar[str] = "SH207"
    title: ClassVar[str] = "other dims"
    tensor: str
    here: tuple[str, ...]
    first: tuple[str, ...]
    rename: str | None = None
    strange: tuple[str, ...] = ()

    def message(self) -> str:
        """Show both."""
        return (
            f"{self.tensor} has the dims [{', '.join(self.first)}], "
            f"but is written [{', '.join(self.here)}] here"
        )

    def hint(self) -> str | None:
        """Say how the value gets other dim names: `rename` is a line, `strange` what is unknown."""
        if self.rename is not None:
            return f"a value under other dim names is a line of its own: {self.rename}"
        if self.strange:
            stand = "stands" if len(self.strange) == 1 else "stand"
            return (
                f"a dim may be read under another name that stands in another tensor's brackets or "
                f"in a dims line, and {listed(self.strange)} {stand} in neither"
            )
        return "a name is one value with one set of dims; give another value another name"


@dataclass(frozen=True)
class DefinedTwice(Mistake):
    """Two lines define `A`."""

    code: ClassVar[str] = "SH208"
    title: ClassVar[str] = "defined twice"
    name: str
    leaf: bool = False

    def message(self) -> str:
        """Name it."""
        if self.leaf:
            return f"{self.name} is declared as given, so no line may define it"
        return f"{self.name} is already defined"

    def hint(self) -> str | None:
        """Say what to do."""
        return "a name is one value: give the second one another name"


@dataclass(frozen=True)
class DefinedAfterUse(Mistake):
    """A line reads `A`, a later one defines it."""

    code: ClassVar[str] = "SH209"
    title: ClassVar[str] = "defined after its first use"
    name: str
    updated: bool = False

    def message(self) -> str:
        """Name it."""
        return f"{self.name} is defined after its first use"

    def hint(self) -> str | None:
        """Say what to do."""
        if self.updated:
            return f"what an update makes has a name of its own: {self.name}' = Update({self.name}, ..)"
        return "move this line up, or give one of the two another name"


@dataclass(frozen=True)
class MarkAlone(Mistake):
    """`y{U_X} = A ·_J B`: a mark with no brackets before it."""

    code: ClassVar[str] = "SH253"
    title: ClassVar[str] = "a mark without dims"
    name: str
    mark: str

    def message(self) -> str:
        """Show both."""
        return f"{self.mark} says how {self.name} is left, and stands behind a name without dims"

    def hint(self) -> str | None:
        """Show the form."""
        return f"write the dims: {self.name}[..]{self.mark}"


@dataclass(frozen=True)
class ReservedGradient(Mistake):
    """`dOut` in an ordinary program that has an `Out`."""

    code: ClassVar[str] = "SH210"
    title: ClassVar[str] = "reserved for a gradient"
    name: str
    explicit: bool

    def message(self) -> str:
        """Say of what it is the gradient."""
        where = " and may stand in backward: only" if self.explicit else ""
        return f"{self.name} is the gradient of {self.name[1:]}{where}"

    def hint(self) -> str | None:
        """Say what to do."""
        return None if self.explicit else "use another name; the backward pass is derived"


@dataclass(frozen=True)
class BareName(Mistake):
    """`A · B[J, K]` where nothing says which dims A has."""

    code: ClassVar[str] = "SH221"
    title: ClassVar[str] = "dims unknown"
    name: str
    known: tuple[str, ...]

    def message(self) -> str:
        """Name it."""
        return f"{self.name} stands here without its dims, and nothing before says what they are"

    def hint(self) -> str | None:
        """Give the nearest name, or say what to write."""
        match = nearest(self.name, self.known)
        return f"write {self.name}[..] with its dims" + (
            f", or did you mean {match}?" if match else ""
        )


@dataclass(frozen=True)
class DTypeConflict(Mistake):
    """`W: bf16[D]` here and `W: f32[D]` there."""

    code: ClassVar[str] = "SH222"
    title: ClassVar[str] = "other dtype"
    tensor: str
    here: str
    first: str

    def message(self) -> str:
        """Show both."""
        return f"{self.tensor} is {self.first}, but is written {self.here} here"
