"""What can be wrong with named blocks, their calls, and included files (codes SH15x and SH16x)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from shardlang.diagnostics import Mistake, Told
from shardlang.frontend.hints import listed, suggest


@dataclass(frozen=True)
class BlockTwice(Mistake):
    """Two blocks `mlp`."""

    code: ClassVar[str] = "SH151"
    title: ClassVar[str] = "two blocks of one name"
    name: str

    def message(self) -> str:
        """Name it."""
        return f"there is a block {self.name} already"

    def hint(self) -> str | None:
        """Say what to do."""
        return "give one of the two another name"


@dataclass(frozen=True)
class ReservedBlock(Mistake):
    """`block gelu(x):`."""

    code: ClassVar[str] = "SH152"
    title: ClassVar[str] = "a name that calls have already"
    name: str
    head: str

    def message(self) -> str:
        """Name it."""
        return f"a call of {self.name} would be read as {self.head}"

    def hint(self) -> str | None:
        """Say what to do."""
        return "give the block another name"


@dataclass(frozen=True)
class ParameterTwice(Mistake):
    """`block mlp(x, x):`."""

    code: ClassVar[str] = "SH153"
    title: ClassVar[str] = "two parameters of one name"
    name: str
    block: str

    def message(self) -> str:
        """Name it."""
        return f"{self.name} stands twice in the head of block {self.block}"


@dataclass(frozen=True)
class ParameterUnused(Mistake):
    """`block mlp(x, W_out):` and no line of it reads `W_out`."""

    code: ClassVar[str] = "SH154"
    title: ClassVar[str] = "a parameter that nothing reads"
    name: str
    block: str
    read: tuple[str, ...]

    def message(self) -> str:
        """Name it."""
        return f"no line of block {self.block} reads {self.name}"

    def hint(self) -> str | None:
        """Give the name that was probably meant, or say what to do."""
        return suggest(self.name, self.read, "the lines read") or "leave it out, in the calls too"


@dataclass(frozen=True)
class ParameterDefined(Mistake):
    """`x = gelu(x)` in `block mlp(x):`."""

    code: ClassVar[str] = "SH155"
    title: ClassVar[str] = "a parameter is given"
    name: str
    block: str

    def message(self) -> str:
        """Name it."""
        return f"{self.name} is a parameter of block {self.block}, so no line of it may define it"

    def hint(self) -> str | None:
        """Say what to do."""
        return "a name is one value: give this one another name"


@dataclass(frozen=True)
class NoResult(Told):
    """`block mlp(x) -> y:` and no line of it defines `y`, or one whose other lines have no name."""

    code: ClassVar[str] = "SH156"
    title: ClassVar[str] = "the result of a block"


@dataclass(frozen=True)
class WrongCall(Mistake):
    """`mlp(x, W_in)` of a block with three parameters."""

    code: ClassVar[str] = "SH157"
    title: ClassVar[str] = "other arguments than the block has parameters"
    name: str
    parameters: tuple[str, ...]
    given: tuple[str, ...]

    def message(self) -> str:
        """Count both."""
        wanted = "1 argument" if len(self.parameters) == 1 else f"{len(self.parameters)} arguments"
        count = len(self.given)
        here = "none stands" if not count else "1 stands" if count == 1 else f"{count} stand"
        return f"{self.name} takes {wanted}, and {here} here"

    def hint(self) -> str | None:
        """Show the head, and say which are missing or too many."""
        head = f"{self.name}({', '.join(self.parameters)})"
        missing = self.parameters[len(self.given) :]
        if missing:
            verb = "is" if len(missing) == 1 else "are"
            return f"the block is {head}; {listed(missing)} {verb} missing"
        spare = self.given[len(self.parameters) :]
        have = "has" if len(spare) == 1 else "have"
        return f"the block is {head}; {listed(spare)} {have} no parameter"


@dataclass(frozen=True)
class WrongArgument(Told):
    """`mlp(2)` where the block writes its parameter with brackets, or `mlp_D(x)`, `mlp(x -> y)`."""

    code: ClassVar[str] = "SH158"
    title: ClassVar[str] = "not an argument"


@dataclass(frozen=True)
class Recursion(Mistake):
    """`block f(x):` with a call of `f` in its lines, or in those of a block that it calls."""

    code: ClassVar[str] = "SH159"
    title: ClassVar[str] = "a block that calls itself"
    path: tuple[str, ...]

    def message(self) -> str:
        """Show the way around."""
        if len(self.path) == 2:
            return f"block {self.path[0]} calls itself, so its lines would never end"
        return f"blocks call one another in a circle: {' → '.join(self.path)}"

    def hint(self) -> str | None:
        """Say what repeats."""
        return "what is repeated stands in `layers L:`, which calls the block"


@dataclass(frozen=True)
class TooManyLines(Mistake):
    """Blocks that call one another until the program is too long, or too deep, to be written out."""

    code: ClassVar[str] = "SH160"
    title: ClassVar[str] = "too long written out"
    what: str

    def message(self) -> str:
        """Name the limit."""
        return self.what


# ---- Included files ------------------------------------------------------------------------------


@dataclass(frozen=True)
class IncludeCycle(Mistake):
    """`a.shd` includes `b.shd`, which includes `a.shd`."""

    code: ClassVar[str] = "SH161"
    title: ClassVar[str] = "files that include one another"
    path: tuple[str, ...]

    def message(self) -> str:
        """Show the way around."""
        if len(self.path) == 2:
            return f"{self.path[0]} includes itself"
        return f"files include one another in a circle: {' → '.join(self.path)}"

    def hint(self) -> str | None:
        """Say what to do."""
        if len(self.path) == 2:
            return "leave this line out"
        return "put what both need into a file of its own, and include that in both"


@dataclass(frozen=True)
class CannotInclude(Mistake):
    """`include "missing.shd"`."""

    code: ClassVar[str] = "SH162"
    title: ClassVar[str] = "a file that can't be included"
    why: str
    folder: str = ""
    near: tuple[str, ...] = ()

    def message(self) -> str:
        """Give the reason."""
        return self.why

    def hint(self) -> str | None:
        """Say where files are looked for, or which one was meant."""
        if self.near:
            quoted = [f'"{name}"' for name in self.near]
            return f"did you mean {listed(quoted, 'or')}?"
        if not self.folder:
            return None
        return f"files are looked for beside the one that includes them, here in {self.folder}"
