"""What can be wrong with hardware: an unknown name, a file that is no TOML, a bad figure (SH5xx)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from shardlang.diagnostics import Mistake


@dataclass(frozen=True)
class UnknownHardware(Mistake):
    """A name that is neither in the catalogue nor a file."""

    code: ClassVar[str] = "SH501"
    title: ClassVar[str] = "unknown hardware"

    name: str
    nearest: str | None
    known: tuple[str, ...]

    def message(self) -> str:
        """Say which name it is."""
        return f"no hardware is called '{self.name}', and no such file exists"

    def hint(self) -> str:
        """Offer the nearest name, or all of them."""
        if self.nearest is not None:
            return f"did you mean '{self.nearest}'?"
        return f"known are {', '.join(self.known)}, or the path of a TOML file"


@dataclass(frozen=True)
class UnreadableHardware(Mistake):
    """A file that can't be read as text."""

    code: ClassVar[str] = "SH502"
    title: ClassVar[str] = "unreadable hardware file"

    path: str
    why: str

    def message(self) -> str:
        """Say which file, and what the system says."""
        return f"the hardware file '{self.path}' can't be read: {self.why}"


@dataclass(frozen=True)
class NotToml(Mistake):
    """A file that breaks the rules of TOML."""

    code: ClassVar[str] = "SH503"
    title: ClassVar[str] = "not TOML"

    why: str

    def message(self) -> str:
        """Say what the reader stumbled over."""
        return f"this is not TOML: {self.why}"


@dataclass(frozen=True)
class MissingFigure(Mistake):
    """A chip without a figure that every report needs."""

    code: ClassVar[str] = "SH504"
    title: ClassVar[str] = "missing figure"

    chip: str
    figure: str

    def message(self) -> str:
        """Name the figure and the chip."""
        return f"the figure '{self.figure}' of '{self.chip}' is missing"

    def hint(self) -> str:
        """Show how it is written."""
        return f'write {self.figure} = {{ value = 1e11, unit = "…", source = "…" }}'


@dataclass(frozen=True)
class BadFigure(Mistake):
    """A figure that is not a positive number."""

    code: ClassVar[str] = "SH505"
    title: ClassVar[str] = "bad figure"

    chip: str
    figure: str
    why: str
    meant: str | None = None

    def message(self) -> str:
        """Name the figure and say what it should be."""
        return f"the figure '{self.figure}' of '{self.chip}' {self.why}"

    def hint(self) -> str | None:
        """Say which figure may have been meant."""
        if self.figure == "C":
            return "use flops.bf16, which is C in formulas"
        return None if self.meant is None else f"did you mean {self.meant}?"


@dataclass(frozen=True)
class SparsePeak(Mistake):
    """A peak that counts the zeros of sparse matrices as work: twice the dense one."""

    code: ClassVar[str] = "SH509"
    title: ClassVar[str] = "sparse peak"

    chip: str
    figure: str

    def message(self) -> str:
        """Name the figure and the chip."""
        return f"the figure '{self.figure}' of '{self.chip}' is a peak for sparse matrices"

    def hint(self) -> str:
        """Say what belongs there."""
        return "give the dense peak; with 2:4 sparsity, data sheets print twice of it"


@dataclass(frozen=True)
class NotOneChip(Mistake):
    """A file with no chip, with several and no choice, or without the one that is chosen."""

    code: ClassVar[str] = "SH506"
    title: ClassVar[str] = "which chip"

    path: str
    chips: tuple[str, ...]
    chosen: str = ""

    def message(self) -> str:
        """Say how many there are, or what is not among them."""
        if not self.chips:
            return f"'{self.path}' describes no chip"
        if self.chosen:
            return f"'{self.path}' describes no chip '{self.chosen}', but {', '.join(self.chips)}"
        return f"'{self.path}' describes several chips: {', '.join(self.chips)}"

    def hint(self) -> str:
        """Show how one is chosen, or written."""
        if not self.chips:
            return "write a table such as [my_chip] with flops.bf16 and W_ici"
        return f"choose one, as in '{self.path}#{self.chips[0]}'"


@dataclass(frozen=True)
class UnknownQuantity(Mistake):
    """A name in `--set` that nothing has."""

    code: ClassVar[str] = "SH507"
    title: ClassVar[str] = "unknown quantity"

    name: str
    nearest: str | None

    def message(self) -> str:
        """Say which name it is."""
        return f"no dim, axis or hardware figure is called '{self.name}'"

    def hint(self) -> str | None:
        """Offer the nearest name."""
        return None if self.nearest is None else f"did you mean '{self.nearest}'?"


@dataclass(frozen=True)
class BadQuantity(Mistake):
    """A value in `--set` that is no size and no bandwidth."""

    code: ClassVar[str] = "SH508"
    title: ClassVar[str] = "bad quantity"

    name: str
    value: str

    def message(self) -> str:
        """Say what it should be."""
        return f"'{self.name}' must be a positive number, not {self.value}"


@dataclass(frozen=True)
class NotSet(Mistake):
    """A figure of the catalogue in `--set` that formulas have by another name, or not at all."""

    code: ClassVar[str] = "SH513"
    title: ClassVar[str] = "figure of a file"

    name: str
    symbol: str | None

    def message(self) -> str:
        """Say which figure it is."""
        return f"the figure '{self.name}' can't be set under this name"

    def hint(self) -> str:
        """Give its name in formulas, or say where it can be changed."""
        if self.symbol is not None:
            return f"it is {self.symbol} in formulas: --set {self.symbol}=..."
        return "describe the chip in a TOML file of your own"


@dataclass(frozen=True)
class SliceSize(Mistake):
    """A mesh with other devices than the slice has."""

    code: ClassVar[str] = "SH510"
    title: ClassVar[str] = "mesh and slice differ"

    shape: str
    chips: int
    axes: str
    devices: int

    def message(self) -> str:
        """Say how many there are of each."""
        return (
            f"the slice {self.shape} has {self.chips} chips, and the mesh {self.devices} devices"
            f" ({self.axes or 'no axis'})"
        )

    def hint(self) -> str:
        """Say what has to be equal."""
        return "the sizes of the mesh axes that are not @dcn multiply to the chips of the slice"


@dataclass(frozen=True)
class NotLaid(Mistake):
    """A mesh whose axes are no products of a slice's axes."""

    code: ClassVar[str] = "SH511"
    title: ClassVar[str] = "mesh does not fit the slice"

    shape: str
    mesh: str

    def message(self) -> str:
        """Say which mesh and which slice."""
        return f"the mesh {self.mesh} can't be laid on the slice {self.shape}"

    def hint(self) -> str:
        """Say how axes are laid."""
        return "each mesh axis takes whole axes of the slice, and its size is their product"


@dataclass(frozen=True)
class NoSlice(Mistake):
    """A slice's shape behind a chip that has none such."""

    code: ClassVar[str] = "SH512"
    title: ClassVar[str] = "no such slice"

    shape: str
    why: str

    def message(self) -> str:
        """Say why there is none."""
        return f"this hardware has no slice {self.shape}: {self.why}"
