"""What can be wrong with the declaring lines of a text, and with its sections (codes SH2xx)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from shardlang.diagnostics import Mistake, Severity
from shardlang.frontend.hints import listed, SHOWN, suggest
from shardlang.ir.program import LeafWord


@dataclass(frozen=True)
class UnknownDType(Mistake):
    """`W: bf61[D]`."""

    code: ClassVar[str] = "SH205"
    title: ClassVar[str] = "unknown dtype"
    name: str
    known: tuple[str, ...]

    def message(self) -> str:
        """Name it."""
        return f"{self.name} is not a dtype"

    def hint(self) -> str | None:
        """Give the nearest dtype."""
        return (
            suggest(self.name, self.known, "dtypes are") or "dtypes are bf16, f32, int8 and so on"
        )


@dataclass(frozen=True)
class NotDivisible(Mistake):
    """`x[I_X]` where 4 does not divide I=5."""

    code: ClassVar[str] = "SH211"
    title: ClassVar[str] = "size not divisible"
    dim: str
    size: int
    axes: tuple[tuple[str, int], ...]

    def message(self) -> str:
        """Name the dim and the axes with their sizes."""
        axes = listed([f"{name}={size}" for name, size in self.axes])
        return f"dim {self.dim}={self.size} cannot be split evenly over {axes}"

    def hint(self) -> str | None:
        """Give the nearest sizes that do."""
        shards = 1
        for _, size in self.axes:
            shards *= size
        below, above = self.size // shards * shards, -(-self.size // shards) * shards
        fits = [str(n) for n in (below, above) if n > 0]
        return f"the nearest sizes of {self.dim} that {shards} divides: {listed(fits)}"


@dataclass(frozen=True)
class SizesDiffer(Mistake):
    """`dims T=8, S=4` where `x[B, S]` is `x[B, T]` under another name."""

    code: ClassVar[str] = "SH240"
    title: ClassVar[str] = "two sizes of one dim"
    tensor: str
    old: str
    old_size: str
    new: str
    new_size: str

    def message(self) -> str:
        """Name both dims with their sizes."""
        sizes = [
            f"{name}={size}"
            for name, size in ((self.old, self.old_size), (self.new, self.new_size))
            if size != name
        ]
        return (
            f"{self.new} is another name for dim {self.old} of {self.tensor}, but {listed(sizes)}"
        )

    def hint(self) -> str | None:
        """Say what to do."""
        return (
            f"give both one size, as in dims {self.new}={self.old}, or another tensor another name"
        )


@dataclass(frozen=True)
class BadSize(Mistake):
    """`dims B=0`, `D=2.5`."""

    code: ClassVar[str] = "SH212"
    title: ClassVar[str] = "not a size"
    name: str
    reason: str

    def message(self) -> str:
        """Name it and say why."""
        return f"the size of {self.name} {self.reason}"

    def hint(self) -> str | None:
        """Say what a size is."""
        return "a size is a whole number from 1 on"


@dataclass(frozen=True)
class CircularSize(Mistake):
    """`D=F, F=D`."""

    code: ClassVar[str] = "SH213"
    title: ClassVar[str] = "circular size"
    names: tuple[str, ...]

    def message(self) -> str:
        """Show the circle."""
        return f"the size of {self.names[0]} depends on itself: {' -> '.join(self.names)}"

    def hint(self) -> str | None:
        """Say what to do."""
        return "give one of them a number"


@dataclass(frozen=True)
class DeclaredTwice(Mistake):
    """`dims B=1, B=2`, two `mesh` lines, two `input A` lines."""

    code: ClassVar[str] = "SH214"
    title: ClassVar[str] = "declared twice"
    what: str
    name: str = ""

    def message(self) -> str:
        """Name it."""
        return f"{self.what} {self.name}".rstrip() + " is already declared"

    def hint(self) -> str | None:
        """Say what to do."""
        return "keep one of the two"


@dataclass(frozen=True)
class UnknownOptimizer(Mistake):
    """`optimizer admm`."""

    code: ClassVar[str] = "SH230"
    title: ClassVar[str] = "unknown optimizer"
    name: str
    known: tuple[str, ...]

    def message(self) -> str:
        """Name it."""
        return f"{self.name} is not an optimizer"

    def hint(self) -> str | None:
        """Give the nearest one."""
        return suggest(self.name, self.known, "optimizers are")


@dataclass(frozen=True)
class UnknownSetting(Mistake):
    """`--set Q=4`."""

    code: ClassVar[str] = "SH231"
    title: ClassVar[str] = "unknown size"
    name: str
    known: tuple[str, ...]

    def message(self) -> str:
        """Name it."""
        return f"{self.name} is neither a dim nor an axis of this program, nor a hardware quantity"

    def hint(self) -> str | None:
        """Give the nearest name."""
        return suggest(self.name, self.known, "its dims and axes are")


@dataclass(frozen=True)
class AmbiguousAxis(Mistake):
    """`mesh X, Y, XY`."""

    code: ClassVar[str] = "SH232"
    title: ClassVar[str] = "ambiguous axis name"
    name: str

    def message(self) -> str:
        """Show both readings."""
        return f"axis {self.name} also reads as {listed(list(self.name))} one after the other"

    def hint(self) -> str | None:
        """Say what to do."""
        return "rename it"


@dataclass(frozen=True)
class BadNetwork(Mistake):
    """`X=2 @dnc`, `X=2 @ici(0)`."""

    code: ClassVar[str] = "SH233"
    title: ClassVar[str] = "unknown network"
    text: str

    def message(self) -> str:
        """Name it."""
        return f"@{self.text} is not a network that an axis runs over"

    def hint(self) -> str | None:
        """Show the forms."""
        return "write @ici, @ici(2) for an axis over two torus axes, @dcn, or @part(X)"


@dataclass(frozen=True)
class BadSlice(Mistake):
    """`hardware tpu_v5p 4x`, `hardware tpu_v5p 0x4`."""

    code: ClassVar[str] = "SH249"
    title: ClassVar[str] = "bad shape of a slice"
    text: str

    def message(self) -> str:
        """Name it."""
        return f"{self.text} is not the shape of a slice"

    def hint(self) -> str | None:
        """Show the form."""
        return "write the chips along each axis of the torus, as in 4x8 or 16x16x16"


@dataclass(frozen=True)
class UnknownSizeName(Mistake):
    """`dims F=4*Q`."""

    code: ClassVar[str] = "SH236"
    title: ClassVar[str] = "unknown name in a size"
    name: str
    known: tuple[str, ...]

    def message(self) -> str:
        """Name it."""
        return f"{self.name} is neither a dim nor an axis of this program"

    def hint(self) -> str | None:
        """Give the nearest name."""
        return suggest(self.name, self.known, "its dims and axes are")


@dataclass(frozen=True)
class UnknownSaved(Mistake):
    """`save Tmpp`."""

    code: ClassVar[str] = "SH228"
    title: ClassVar[str] = "unknown value"
    name: str
    known: tuple[str, ...]

    def message(self) -> str:
        """Name it."""
        return f"{self.name} is not a value of this program"

    def hint(self) -> str | None:
        """Give the nearest value."""
        return suggest(self.name, self.known, "its values are")


@dataclass(frozen=True)
class NotAhead(Mistake):
    """`prefetch x`."""

    code: ClassVar[str] = "SH252"
    title: ClassVar[str] = "nothing to prefetch"
    name: str
    known: tuple[str, ...]

    def message(self) -> str:
        """Say what it is not."""
        return f"{self.name} is no parameter of which each layer of a block has its own"

    def hint(self) -> str | None:
        """Give the nearest parameter."""
        if not self.known:
            return "leave the line out: no `layers` block has a parameter of its own here"
        return suggest(self.name, self.known, "those are")


@dataclass(frozen=True)
class AllAndNone(Mistake):
    """`save all, none`."""

    code: ClassVar[str] = "SH285"
    title: ClassVar[str] = "everything and nothing saved"

    def message(self) -> str:
        """Say what contradicts."""
        return "all and none can't both be saved"

    def hint(self) -> str | None:
        """Say what to do."""
        return "`save none` computes every value again; `save none, W` keeps W's gathered copies"


@dataclass(frozen=True)
class SavedAnyway(Mistake):
    """`save all, Tmp`, or `save In`: a name that says nothing."""

    code: ClassVar[str] = "SH244"
    title: ClassVar[str] = "saved in any case"
    name: str
    weights: tuple[str, ...]
    leaf: bool

    def message(self) -> str:
        """Say why the name says nothing."""
        if self.leaf:
            return f"{self.name} is given, and is there in both passes in any case"
        return f"{self.name} is among all: beside it only parameters are named"

    def hint(self) -> str | None:
        """Say what a name beside `all` is for."""
        shown = listed(self.weights[:SHOWN]) if self.weights else "there are none here"
        return f"leave it out; of parameters ({shown}) the gathered copies can be kept"


@dataclass(frozen=True)
class SectionOrder(Mistake):
    """A statement before `forward:`, or `backward:` without it."""

    code: ClassVar[str] = "SH227"
    title: ClassVar[str] = "section out of place"
    text: str

    def message(self) -> str:
        """Say what is out of place."""
        return self.text

    def hint(self) -> str | None:
        """Say how an explicit program goes."""
        return (
            "an explicit program has its statements under forward:, then backward:, then update:; "
            "where they are to be derived, leave the headings out"
        )


@dataclass(frozen=True)
class EmptyProgram(Mistake):
    """A text in which nothing is computed."""

    code: ClassVar[str] = "SH215"
    title: ClassVar[str] = "empty program"
    blocks: tuple[str, ...] = ()

    def message(self) -> str:
        """Say so."""
        return "the program has no statement"

    def hint(self) -> str | None:
        """Show one."""
        if self.blocks:
            return f"call one of its blocks, {listed(self.blocks[:SHOWN], 'or')}, or include the file in a program"
        return "write one: A[I, J] · B[J, K] -> C[I, K]"


@dataclass(frozen=True)
class NotUsed(Mistake):
    """`param W: [D, F]`, and no line reads W."""

    code: ClassVar[str] = "SH248"
    title: ClassVar[str] = "a declaration that nothing uses"
    severity: ClassVar[Severity] = "warning"
    names: tuple[str, ...]
    word: LeafWord

    def message(self) -> str:
        """Say which, and what they count as all the same."""
        said = f"nothing uses {', '.join(self.names)}"
        match self.word:
            case "param" | "frozen":
                return f"{said}: declared with `{self.word}`, it counts as a weight all the same"
            case "cache":
                return f"{said}: declared with `cache`, it counts as one all the same"
            case _:
                return f"{said}, declared with `{self.word}`"


@dataclass(frozen=True)
class NotAWeight(Mistake):
    """`W_x[D, F]` beside `param W: [D, F]`: an input, and in `layers L:` one for all layers."""

    code: ClassVar[str] = "SH245"
    title: ClassVar[str] = "an input with a weight's name"
    severity: ClassVar[Severity] = "warning"
    names: tuple[str, ...]
    block: str | None
    lines: tuple[str, str]

    def message(self) -> str:
        """Say what they count as, and why."""
        one = len(self.names) == 1
        counts = f"{listed(self.names)} {'counts as an input' if one else 'count as inputs'}"
        layers = "" if self.block is None else f", shared by all layers of `layers {self.block}:`"
        return (
            f"{counts}, not as weights{layers}: other leaves are declared with `param`, so that "
            "names starting with W mean nothing"
        )

    def hint(self) -> str | None:
        """Show the two declarations that settle it."""
        weight, given = self.lines
        each = "a weight" if self.block is None else "a weight of each layer"
        return f"`{weight}` makes it {each}, `{given}` says that an input is meant"
