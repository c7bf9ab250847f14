"""What can be wrong with a model's configuration, or with how it is to be split (codes SH7xx)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from shardlang.diagnostics import Mistake


@dataclass(frozen=True)
class NotJson(Mistake):
    """A file that breaks the rules of JSON."""

    code: ClassVar[str] = "SH721"
    title: ClassVar[str] = "not JSON"
    why: str

    def message(self) -> str:
        """Say what the reader stumbled over."""
        return f"this is not JSON: {self.why}"


@dataclass(frozen=True)
class NoConfiguration(Mistake):
    """JSON that is a list, a number or a word."""

    code: ClassVar[str] = "SH722"
    title: ClassVar[str] = "no configuration"
    found: str

    def message(self) -> str:
        """Say what it is."""
        return f'a model\'s configuration is an object, as in {{"hidden_size": 4096}}; this is {self.found}'


@dataclass(frozen=True)
class MissingField(Mistake):
    """A configuration without `hidden_size`."""

    code: ClassVar[str] = "SH723"
    title: ClassVar[str] = "missing field"
    field: str
    nearest: str | None

    def message(self) -> str:
        """Name it."""
        return f"the configuration has no {self.field}"

    def hint(self) -> str | None:
        """Give the nearest field that is there."""
        return None if self.nearest is None else f"it has {self.nearest}, which is not read"


@dataclass(frozen=True)
class BadField(Mistake):
    """`"hidden_size": "large"`."""

    code: ClassVar[str] = "SH724"
    title: ClassVar[str] = "bad field"
    field: str
    wanted: str
    found: str

    def message(self) -> str:
        """Say what it is and what it has to be."""
        return f"{self.field} has to be {self.wanted}, and is {self.found}"


@dataclass(frozen=True)
class OtherModel(Mistake):
    """`shardlang new llama` with the configuration of a BERT."""

    code: ClassVar[str] = "SH725"
    title: ClassVar[str] = "another model"
    family: str
    found: str
    other: str | None
    known: tuple[str, ...]

    def message(self) -> str:
        """Name what it is."""
        return f"this is the configuration of a {self.found}, not of a {self.family}"

    def hint(self) -> str | None:
        """Name the command that writes it, or what can be written."""
        if self.other is not None:
            return f"shardlang new {self.other} writes it"
        return f"a {self.family} has the model_type {' or '.join(self.known)}"


@dataclass(frozen=True)
class Unsupported(Mistake):
    """A kind of scaling, a window, an activation that no page is written for."""

    code: ClassVar[str] = "SH726"
    title: ClassVar[str] = "not supported"
    what: str
    supported: str

    def message(self) -> str:
        """Name it."""
        return f"{self.what} is not supported"

    def hint(self) -> str:
        """Say what is."""
        return self.supported


@dataclass(frozen=True)
class Inconsistent(Mistake):
    """32 heads over 5 key heads."""

    code: ClassVar[str] = "SH727"
    title: ClassVar[str] = "inconsistent sizes"
    why: str

    def message(self) -> str:
        """Say which two don't fit."""
        return self.why


@dataclass(frozen=True)
class DoesNotDivide(Mistake):
    """8 key heads over 16 devices."""

    code: ClassVar[str] = "SH728"
    title: ClassVar[str] = "does not divide"
    field: str
    size: int
    axes: str
    parts: int

    def message(self) -> str:
        """Name the field and the axes."""
        return (
            f"{self.field} is {self.size}, which can't be split into {self.parts} over {self.axes}"
        )

    def hint(self) -> str:
        """Say what to change."""
        return f"give {self.axes} a size that divides {self.size}"
