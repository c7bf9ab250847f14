"""What can be wrong with the names of a block (codes SH26x)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from shardlang.diagnostics import Mistake, Told


@dataclass(frozen=True)
class NotVisible(Mistake):
    """A line behind a block reads `h`, which the block defines."""

    code: ClassVar[str] = "SH261"
    title: ClassVar[str] = "a value of a block"
    name: str
    block: str

    def message(self) -> str:
        """Name the value and the block."""
        return f"{self.name} is a value of `layers {self.block}:`, and each layer has its own"

    def hint(self) -> str | None:
        """Say how a value leaves a block."""
        return (
            f"define {self.name} before the block too: it is then handed from layer to layer, and "
            "behind the block it is the last layer's"
        )


@dataclass(frozen=True)
class NotRead(Mistake):
    """`x = h` in a block with an `x` before it, and no line of the block reads `x`."""

    code: ClassVar[str] = "SH262"
    title: ClassVar[str] = "not handed on"
    name: str
    block: str

    def message(self) -> str:
        """Name the value."""
        return (
            f"`layers {self.block}:` defines {self.name} again and never reads it: no layer would "
            "depend on the one before"
        )

    def hint(self) -> str | None:
        """Say what to do."""
        return f"read {self.name} in the block, or give this value another name"


@dataclass(frozen=True)
class CarriedDims(Mistake):
    """`x[B, F] = ...` in a block with an `x[B, D]` before it."""

    code: ClassVar[str] = "SH263"
    title: ClassVar[str] = "the next layer needs the same dims"
    name: str
    here: tuple[str, ...]
    there: tuple[str, ...]

    def message(self) -> str:
        """Give both."""
        return (
            f"{self.name}[{', '.join(self.here)}] is handed to the next layer, which reads "
            f"{self.name}[{', '.join(self.there)}]"
        )

    def hint(self) -> str | None:
        """Say what to do."""
        return "a value that layers hand on keeps its dims; give this one another name"


@dataclass(frozen=True)
class TwoPlaces(Mistake):
    """`W[D, F]` in two blocks, or one a layer (`param W: [L, D, F]`) and in lines outside."""

    code: ClassVar[str] = "SH264"
    title: ClassVar[str] = "a parameter of layers in two places"
    name: str
    block: str
    other: str | None
    brackets: str
    declared: bool

    def message(self) -> str:
        """Name the parameter, and the other place: another block, or none of them."""
        where = "outside of it"
        if self.other is not None:
            another = "another " if self.other == self.block else ""
            where = f"in {another}`layers {self.other}:`"
        return f"each layer of `layers {self.block}:` has {self.name} of its own, and it stands {where} as well"

    def hint(self) -> str | None:
        """Give the declarations for a parameter of each place, and what makes one for both."""
        name = self.name
        if self.other is None:
            own = f"param {name}: {self._stack(self.block)}, {name}2: {self.brackets}"
            one = f"`param {name}: {self.brackets}` is one for all layers and the lines outside"
            return f"{one}; for two, write `{own}`, and {name}2 here"
        own = f"param {name}: {self._stack(self.block)}, {name}2: {self._stack(self.other)}"
        two = f"write `{own}`" if self.declared else f"call this one {name}2"
        both = f"`{name}_all = {name}{self.brackets}`"
        return (
            f"{two}, and {name}2 here; to share one, write {both} on a line before the blocks, and "
            f"{name}_all in both"
        )

    def _stack(self, block: str) -> str:
        """Write the brackets of a parameter of each layer."""
        return f"[{block}{'' if self.brackets == '[]' else ', '}{self.brackets[1:]}"


@dataclass(frozen=True)
class LayerDim(Mistake):
    """`h[L, B] = ...` within `layers L:`."""

    code: ClassVar[str] = "SH266"
    title: ClassVar[str] = "the layers as a dim"
    name: str
    block: str

    def message(self) -> str:
        """Name the value."""
        return f"{self.name} has the dim {self.block} within `layers {self.block}:`"

    def hint(self) -> str | None:
        """Say what to do."""
        return f"within the block every value is one layer's: write it without {self.block}"


@dataclass(frozen=True)
class LayersFirst(Mistake):
    """`param W: [D, L]` of `layers L:`."""

    code: ClassVar[str] = "SH277"
    title: ClassVar[str] = "the layers behind another dim"
    name: str
    block: str
    others: tuple[str, ...]

    def message(self) -> str:
        """Name the leaf and the dim."""
        return f"{self.block} counts the layers of `layers {self.block}:`, and {self.name} does not begin with it"

    def hint(self) -> str | None:
        """Write it the right way round."""
        return f"write {self.name}: [{', '.join((self.block, *self.others))}], one for each layer"


@dataclass(frozen=True)
class WrongCarry(Told):
    """`layers L, x2 -> x:` where nothing is called `x`, or no line of the block defines `x2`."""

    code: ClassVar[str] = "SH267"
    title: ClassVar[str] = "nothing to hand on"


@dataclass(frozen=True)
class SumOfLayers(Mistake):
    """`sum_L(loss)` within `layers L:` of an ordinary program."""

    code: ClassVar[str] = "SH268"
    title: ClassVar[str] = "a sum over layers"
    block: str

    def message(self) -> str:
        """Say that it is not there."""
        return f"sums over the layers {self.block} are not supported yet"

    def hint(self) -> str | None:
        """Say what does the same."""
        return "hand the sum from layer to layer: `total = total + part`"


@dataclass(frozen=True)
class NotInHead(Mistake):
    """`x = ...` in a block of an explicit program, where each name is one value."""

    code: ClassVar[str] = "SH269"
    title: ClassVar[str] = "handed on without a word in the head"
    name: str
    block: str

    def message(self) -> str:
        """Name the value."""
        return (
            f"{self.name} exists before `layers {self.block}:`, and in an explicit program a name is "
            "one value"
        )

    def hint(self) -> str | None:
        """Show the head."""
        name = self.name
        return f"call it {name}2, and say that layers hand it on: layers {self.block}, {name}2 -> {name}:"


@dataclass(frozen=True)
class HandedOn(Mistake):
    """`x` in a line behind `layers L, x2 -> x:` of an explicit program."""

    code: ClassVar[str] = "SH270"
    title: ClassVar[str] = "a value that layers have handed on"
    name: str
    last: str
    block: str

    def message(self) -> str:
        """Say what the name would mean."""
        return (
            f"{self.name} is what a layer of `layers {self.block}:` begins with, and the first one "
            "begins with the value before the block"
        )

    def hint(self) -> str | None:
        """Say what to read."""
        return (
            f"read {self.last}, which is the last layer's; to keep the value before the block, copy "
            f"it there under another name"
        )
