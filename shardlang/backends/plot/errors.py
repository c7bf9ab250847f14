"""What can be wrong with a picture beside its data: nothing to draw it with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from shardlang.diagnostics import Mistake


@dataclass(frozen=True)
class MatplotlibMissing(Mistake):
    """matplotlib is not installed, so nothing can be drawn."""

    code: ClassVar[str] = "SH545"
    title: ClassVar[str] = "matplotlib is missing"

    def message(self) -> str:
        """Say what needs it."""
        return "plot draws with matplotlib, which is not installed"

    def hint(self) -> str:
        """Say how to install it."""
        return "pip install 'shardlang[plot]'"
