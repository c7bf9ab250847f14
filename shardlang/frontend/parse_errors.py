"""What can be wrong before any name has a meaning: mistakes of form (SH1xx) and of files (SH90x).

Each class is one mistake; its docstring shows a text that has it. Imports `diagnostics` alone.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from typing import ClassVar

from shardlang.diagnostics import Mistake

# ---- SH1xx: the form of a statement --------------------------------------------------------------


@dataclass(frozen=True)
class Expected(Mistake):
    """Something else belongs here: `C[I] = · B[I]`, or `C[I] =` with nothing behind it."""

    code: ClassVar[str] = "SH101"
    title: ClassVar[str] = "something else belongs here"

    what: str
    found: str | None
    tip: str | None = None
    missing: bool = False

    def message(self) -> str:
        """Name what belongs here and what stands here; `found` None is the end of the line.

        `missing` says that what was found is right, and something is missing before it.
        """
        if self.missing and self.found is not None:
            return f"{self.what} is missing before {self.found}"
        if self.found is None:
            return f"the line ends where {self.what} should follow"
        return f"expected {self.what}, not {self.found}"

    def hint(self) -> str | None:
        """Give the form of the statement, where it is known."""
        return self.tip


@dataclass(frozen=True)
class UnknownCharacter(Mistake):
    """A character that the notation has no use for: `A[I] ? B[I]`."""

    code: ClassVar[str] = "SH102"
    title: ClassVar[str] = "a character that the notation does not have"

    char: str

    def message(self) -> str:
        """Show the character, or name it where it can't be seen."""
        if self.char[0] == "\\":
            return f"{shown(self.char)} is no command that is read here"
        return f"{shown(self.char)} has no meaning here"

    def hint(self) -> str | None:
        """Suggest what is written instead."""
        return {
            ";": "one statement a line: start a new line instead",
            "%": "a comment starts with # or //",
            "?": "leave the result away to have it inferred",
            "\\": "the LaTeX commands that are read are \\cdot, \\times, \\odot, \\to, \\rightarrow, "
            "\\in, \\top, \\{, \\}, and wrappers such as \\text{…}",
            '"': "names are written without quotes",
            "<": "a definition is `lhs = expr` or `expr -> lhs`",
            ">": "a definition is `lhs = expr` or `expr -> lhs`",
            "_": "a name starts with a letter",
            "^": "a transpose is `^T`; a power stands only in `dims`",
            "~": "a dtype is written `W: bf16[D, F]`",
        }.get(self.char[0])


@dataclass(frozen=True)
class UnclosedBracket(Mistake):
    """A bracket with no partner: `A[I, J · B[J, K]`."""

    code: ClassVar[str] = "SH103"
    title: ClassVar[str] = "a bracket is not closed"

    opening: str
    closing: str
    found: str | None
    tip: str | None = None

    def message(self) -> str:
        """Name the bracket and what stands where it should have been closed."""
        where = "the line ends" if self.found is None else f"{self.found} comes"
        return f"{where} before `{self.opening}` is closed"

    def hint(self) -> str | None:
        """Name the missing bracket, or say what may stand in it."""
        return self.tip or f"write `{self.closing}` here, or before"


@dataclass(frozen=True)
class WrongBracket(Mistake):
    """A closing bracket that fits no opening one: `A[I)`, `A] = B`."""

    code: ClassVar[str] = "SH104"
    title: ClassVar[str] = "a bracket closes nothing"

    closing: str
    opening: str | None
    wanted: str | None

    def message(self) -> str:
        """Say what the bracket fails to close."""
        if self.opening is None:
            return f"`{self.closing}` closes nothing"
        return f"`{self.closing}` does not close `{self.opening}`"

    def hint(self) -> str | None:
        """Name the bracket that would."""
        return None if self.wanted is None else f"write `{self.wanted}`"


@dataclass(frozen=True)
class MissingComma(Mistake):
    """Two things of a list side by side: `A[I_X J]`, `mesh X=16 Y=4`."""

    code: ClassVar[str] = "SH105"
    title: ClassVar[str] = "a comma is missing"

    before: str
    after: str
    tip: str | None = None

    def message(self) -> str:
        """Name the two neighbors."""
        return f"a comma is missing between {self.before} and {self.after}"

    def hint(self) -> str | None:
        """Write it out, or show the whole declaration."""
        return self.tip or f"write `{self.before.strip('`')}, {self.after.strip('`')}`"


@dataclass(frozen=True)
class MissingOperator(Mistake):
    """Two operands side by side: `A[I, J] B[J, K]`, `2A`."""

    code: ClassVar[str] = "SH106"
    title: ClassVar[str] = "an operator is missing"

    before: str
    after: str
    sizes: bool = False
    tip: str | None = None

    def message(self) -> str:
        """Name the second operand."""
        return f"an operator is missing between {self.before} and {self.after}"

    def hint(self) -> str | None:
        """List the operators, or give the declaration that was probably meant."""
        if self.tip is not None:
            return self.tip
        if self.sizes:
            return f"a product of sizes is `{self.before.strip('`')}*{self.after.strip('`')}`"
        return "a product is `A ·_D B` or `A * B`; others are ⊙ + - /"


@dataclass(frozen=True)
class WrongArrow(Mistake):
    """A sign of another language: `A => B`, `C := A`."""

    code: ClassVar[str] = "SH107"
    title: ClassVar[str] = "a definition is `=` or `->`"

    written: str

    def message(self) -> str:
        """Name what was written."""
        return f"`{self.written}` is no sign of the notation"

    def hint(self) -> str | None:
        """Show both forms of a definition."""
        return "a definition is `lhs = expr` or `expr -> lhs`"


@dataclass(frozen=True)
class NotATensor(Mistake):
    """A definition of something that is no tensor: `A + B = C`."""

    code: ClassVar[str] = "SH108"
    title: ClassVar[str] = "only a tensor can be defined"

    where: str

    def message(self) -> str:
        """Say where the tensor belongs."""
        return f"{self.where} must be one tensor, such as `C[I_X, K]`"

    def hint(self) -> str | None:
        """Show both forms of a definition."""
        return "a definition is `lhs = expr` or `expr -> lhs`"


@dataclass(frozen=True)
class LonelyName(Mistake):
    """A line that is a name and no more: `Tmp`."""

    code: ClassVar[str] = "SH109"
    title: ClassVar[str] = "a name alone says nothing"

    name: str
    block: str | None = None
    """The named block whose line it is."""

    def message(self) -> str:
        """Name it."""
        return f"`{self.name}` alone on a line says nothing"

    def hint(self) -> str | None:
        """Show the declaration, if it is the first word of one, or the form of a tensor or of a result."""
        if self.block is not None and self.name not in DECLARATIONS:
            return (
                f"the result of a block is its last line, or what its head names: "
                f"`block {self.block}(..) -> {self.name}:`"
            )
        return DECLARATIONS.get(self.name, f"a tensor has brackets: `{self.name}[B, D]`")


ZERO = "where the optimizer's state lies is said as `optimizer adamw, zero 1 over X`"
"""The form of what may stand behind the optimizer's name."""

DECLARATIONS = {
    "mesh": "a mesh is declared as `mesh X=16, Y=4`",
    "dims": "dims are declared as `dims B=3M, D=5120, F=4*D`",
    "hardware": "hardware is named as `hardware tpu_v5p`, with a slice as `hardware tpu_v5p 4x4x8`",
    "dtype": "the default dtype is declared as `dtype bf16`",
    "input": "an input is declared as `input In: [B_X, D_Y]`",
    "param": "a parameter is declared as `param W_in: bf16[D_X, F_Y]`",
    "frozen": "a parameter that is not trained is declared as `frozen W_in: bf16[D_X, F_Y]`",
    "cache": "a cache is declared as `cache K: int8[B_X, S, H]`",
    "optimizer": "the optimizer is declared as `optimizer adam`, or `optimizer adamw, zero 1 over X`",
    "save": "what is kept is declared as `save Tmp` or `save all`",
    "prefetch": "what is gathered a layer ahead is declared as `prefetch W_in, W_out`",
    "accumulate": "microbatches are declared as `accumulate M=8`",
    "schedule": "a schedule is named as `schedule 1f1b` or `schedule interleaved, chunks 2`",
    "forward": "a section starts with `forward:` alone on a line",
    "backward": "a section starts with `backward:` alone on a line",
    "update": "a section starts with `update:` alone on a line",
    "layers": "a block starts with `layers L:` alone on a line, and its lines are indented",
    "block": "a named block starts with `block mlp(x, W_in, W_out):`, and its lines are indented",
    "include": 'a file is included as `include "attention.shd"`',
}
"""The form of each declaration, by its first word."""

FOREIGN = {
    "for": "lines that are repeated stand under `layers L:`, indented",
    "while": "lines that are repeated stand under `layers L:`, indented",
    "if": "there are no conditions: where(mask, A, B) chooses number by number",
    "def": DECLARATIONS["block"],
    "return": "the result of a block is its last line, without a word before it",
    "import": DECLARATIONS["include"],
    "let": "a definition is `lhs = expr` or `expr -> lhs`",
}
"""What the first words of other languages' lines are here."""


@dataclass(frozen=True)
class NotAName(Mistake):
    """A word that can't be a name: `A€[I]`, `W_{in,out}`."""

    code: ClassVar[str] = "SH110"
    title: ClassVar[str] = "this can't be a name"

    name: str

    def message(self) -> str:
        """Show the word."""
        return f"`{self.name}` can't be a name"

    def hint(self) -> str | None:
        """Say what a name is."""
        return (
            "a name is a letter, then letters, digits, underscores and primes, as in `W_in` or `D'`"
        )


@dataclass(frozen=True)
class WrongMarker(Mistake):
    """Braces that hold something else than an unreduced mark: `A[I]{X}`, `A[I]{U_X, max_Y}`."""

    code: ClassVar[str] = "SH111"
    title: ClassVar[str] = "braces mark a partial sum"

    text: str
    mixed: bool = False

    def message(self) -> str:
        """Show what stands in the braces."""
        if self.mixed:
            return f"`{self.text}` is of another kind than the mark before it"
        return f"`{self.text}` is no mark of a partial sum"

    def hint(self) -> str | None:
        """Show the form."""
        return "write `{U_X}` for partial sums over X, `{U_XY}` over X and Y, `{max_X}` for partial maxima"


@dataclass(frozen=True)
class Repeated(Mistake):
    """Twice what can stand once behind the brackets: `A[I]{U_X}{U_Y}`, `A[I][i][j]`."""

    code: ClassVar[str] = "SH112"
    title: ClassVar[str] = "this stands here twice"

    what: str

    def message(self) -> str:
        """Name what is repeated."""
        return f"a tensor has {self.what} once"

    def hint(self) -> str | None:
        """Say how partial sums over two axes are written."""
        return "partial sums over two axes are `{U_XY}`" if "{" in self.what else None


@dataclass(frozen=True)
class TooDeep(Mistake):
    """Brackets in brackets in brackets, or a chain of very many operators."""

    code: ClassVar[str] = "SH113"
    title: ClassVar[str] = "nested too deeply"

    what: str
    limit: int

    def message(self) -> str:
        """Name the limit."""
        return f"{self.what} more than {self.limit} deep"

    def hint(self) -> str | None:
        """Suggest to take it apart."""
        return "give a part of it a name, in a line of its own"


@dataclass(frozen=True)
class TooLong(Mistake):
    """A statement, a file or a list of mistakes beyond what is read."""

    code: ClassVar[str] = "SH114"
    title: ClassVar[str] = "too long to be read"

    what: str
    limit: int
    unit: str

    def message(self) -> str:
        """Name the limit."""
        return f"{self.what} more than {self.limit:,} {self.unit}"


@dataclass(frozen=True)
class TooManyMistakes(Mistake):
    """A file so full of mistakes that it is probably something else."""

    code: ClassVar[str] = "SH115"
    title: ClassVar[str] = "too many mistakes"

    limit: int

    def message(self) -> str:
        """Say that reading stopped."""
        return f"there are {self.limit} mistakes above; the rest is not read"

    def hint(self) -> str | None:
        """Ask whether it is the right file."""
        return "is this a file of shardlang?"


@dataclass(frozen=True)
class WrongSize(Mistake):
    """A size that no computation can use: `dims B=1e400`, `9**9**9`, `B/0`."""

    code: ClassVar[str] = "SH116"
    title: ClassVar[str] = "not a usable size"

    problem: str
    tip: str | None = None

    def message(self) -> str:
        """Say what is wrong with it."""
        return self.problem

    def hint(self) -> str | None:
        """Say what is possible, where that helps."""
        return self.tip


@dataclass(frozen=True)
class HeaderNotAlone(Mistake):
    """A section's header with a statement behind it: `forward: C[I] = A[I]`."""

    code: ClassVar[str] = "SH117"
    title: ClassVar[str] = "a header stands alone on its line"

    name: str

    def message(self) -> str:
        """Name the header."""
        return f"`{self.name}:` must stand alone on its line"

    def hint(self) -> str | None:
        """Say where the statement goes."""
        return "put the statement on the next line"


@dataclass(frozen=True)
class EmptyBlock(Mistake):
    """`layers L:` with no indented line below it; `head` is `layers L` or `block mlp`."""

    code: ClassVar[str] = "SH119"
    title: ClassVar[str] = "a block without lines"

    head: str

    def message(self) -> str:
        """Name the block."""
        return f"`{self.head}:` has no lines: its lines are indented below it"

    def hint(self) -> str | None:
        """Say what to do."""
        return "indent the lines of the block, all alike"


@dataclass(frozen=True)
class WrongIndent(Mistake):
    """A line of a block that is indented otherwise than the block's first line."""

    code: ClassVar[str] = "SH120"
    title: ClassVar[str] = "another indentation"

    head: str

    def message(self) -> str:
        """Say which lines differ."""
        return f"this line is indented otherwise than the first line of `{self.head}:`"

    def hint(self) -> str | None:
        """Say what ends a block."""
        return "indent all lines of a block alike; a line as far left as its head ends it"


@dataclass(frozen=True)
class NestedBlock(Mistake):
    """`layers M:` among the lines of `layers L:`; `named` says that the inner one is a named block."""

    code: ClassVar[str] = "SH121"
    title: ClassVar[str] = "a block within a block"

    inner: str
    outer: str
    named: bool = False

    def message(self) -> str:
        """Name both."""
        return f"`{self.inner}:` stands within `{self.outer}:`; blocks don't nest"

    def hint(self) -> str | None:
        """Say what can be done."""
        if self.named:
            return f"write `{self.inner}:` outside, not indented, and call it here"
        return (
            "repeated layers stand outside of any block; give what they repeat a name, "
            "`block part(x):`, and call it as often as a layer has it"
        )


@dataclass(frozen=True)
class NotInBlock(Mistake):
    """`param W: [D, F]` or `backward:` among the lines of a block."""

    code: ClassVar[str] = "SH122"
    title: ClassVar[str] = "not a line of a block"

    head: str

    def message(self) -> str:
        """Say what may stand there."""
        return f"only definitions may stand within `{self.head}:`"

    def hint(self) -> str | None:
        """Say where it goes."""
        return "write this line before the block, not indented"


@dataclass(frozen=True)
class NothingToDo(Mistake):
    """A program with no statement: only comments, or nothing at all."""

    code: ClassVar[str] = "SH118"
    title: ClassVar[str] = "nothing to do"

    def message(self) -> str:
        """Say so."""
        return "the program is empty: there is nothing to do"

    def hint(self) -> str | None:
        """Show a program."""
        return "a program has at least one line such as `A[I_X, J] · B[J, K] -> C[I_X, K]`"


# ---- SH9xx: files --------------------------------------------------------------------------------


@dataclass(frozen=True)
class NoSuchFile(Mistake):
    """The path leads nowhere."""

    code: ClassVar[str] = "SH901"
    title: ClassVar[str] = "no such file"

    path: str

    def message(self) -> str:
        """Name the path."""
        return f"there is no file {self.path}"

    def hint(self) -> str | None:
        """Say how a program is given without a file."""
        return "a line of notation is given with -e, standard input with -"


@dataclass(frozen=True)
class IsADirectory(Mistake):
    """The path is a directory."""

    code: ClassVar[str] = "SH902"
    title: ClassVar[str] = "a directory"

    path: str

    def message(self) -> str:
        """Name the path."""
        return f"{self.path} is a directory, not a file"

    def hint(self) -> str | None:
        """Ask for a file in it."""
        return "name one file in it"


@dataclass(frozen=True)
class CannotRead(Mistake):
    """The system refuses the file."""

    code: ClassVar[str] = "SH903"
    title: ClassVar[str] = "the file can't be read"

    path: str
    why: str

    def message(self) -> str:
        """Repeat the system's reason."""
        return f"{self.path} can't be read: {self.why}"


@dataclass(frozen=True)
class NotUtf8(Mistake):
    """A byte that is no part of UTF-8."""

    code: ClassVar[str] = "SH904"
    title: ClassVar[str] = "not UTF-8"

    byte: int
    utf16: bool = False

    def message(self) -> str:
        """Show the byte."""
        return f"the byte 0x{self.byte:02x} is no part of UTF-8 text"

    def hint(self) -> str | None:
        """Say how the file should be saved."""
        was = "it looks like UTF-16; " if self.utf16 else ""
        return f"{was}save the file as UTF-8"


@dataclass(frozen=True)
class HasNul(Mistake):
    """A NUL byte: the file is no text."""

    code: ClassVar[str] = "SH905"
    title: ClassVar[str] = "not a text"

    def message(self) -> str:
        """Say what that means."""
        return "there is a NUL byte here: this is no text file"


@dataclass(frozen=True)
class EmptyFile(Mistake):
    """A file with nothing in it but space."""

    code: ClassVar[str] = "SH906"
    title: ClassVar[str] = "an empty file"

    def message(self) -> str:
        """Say so."""
        return "the file is empty: there is nothing to do"

    def hint(self) -> str | None:
        """Show a program."""
        return NothingToDo().hint()


@dataclass(frozen=True)
class FileTooLarge(Mistake):
    """More bytes than any program has."""

    code: ClassVar[str] = "SH907"
    title: ClassVar[str] = "the file is too large"

    path: str
    limit: int

    def message(self) -> str:
        """Name the limit."""
        return f"{self.path} has more than {self.limit >> 20} MiB"


def shown(text: str) -> str:
    r"""Give a piece of the source as a message shows it: in backquotes, unseen characters by name.

    >>> shown("A[I]"), shown("\u200b")
    ('`A[I]`', 'U+200B (zero width space)')
    """
    if len(text) == 1 and (not text.isprintable() or text.isspace()):
        name = unicodedata.name(text, "a control character").lower()
        return f"U+{ord(text):04X} ({name})"
    if text == "`":
        return "a backquote"
    if len(text) > 40:
        text = text[:39] + "…"
    return "`" + "".join(c if c.isprintable() else " " for c in text) + "`"
