"""A value under other dim names: which mentions of it mean that, and which are mistakes.

`x[B, S, D]` of an `x[B, T, D]` is the value with its dims renamed, place by place, if every new
name is no dim of the value, and stands in another tensor's brackets or in a `dims` line: else a
typing mistake would be read as a new dim.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from shardlang.frontend.names import Brackets
from shardlang.frontend.syntax import DimsDecl, Item
from shardlang.frontend.walk import references
from shardlang.ir.ops import Rename
from shardlang.ir.printer import expression
from shardlang.ir.types import Array, Dim, Layout, Tensor
from shardlang.source import Span


@dataclass(frozen=True, slots=True)
class Tie:
    """Two names of one dim of a tensor, which so have one size; `span` is where `new` stands."""

    tensor: str
    old: Dim
    new: Dim
    span: Span


@dataclass
class Renames:
    """The renamed values of one program.

    `places` are the tensors in whose brackets a dim stands, `declared` the dims of `dims` lines;
    `written` gives a renamed value's name in the text.
    """

    places: Mapping[Dim, frozenset[str]]
    declared: frozenset[str]
    made: dict[str, list[Tensor]] = field(default_factory=dict[str, list[Tensor]])
    written: dict[str, str] = field(default_factory=dict[str, str])

    @staticmethod
    def of(items: Sequence[Item], brackets: Mapping[int, Brackets | None]) -> Renames:
        """Look through a whole text."""
        places: dict[Dim, set[str]] = {}
        for ref in references(items):
            found = brackets[id(ref)]
            name = "" if ref.name is None else ref.name.text
            for dim in () if found is None else found.dims:
                places.setdefault(dim, set()).add(name)
        lines = (item for item in items if isinstance(item, DimsDecl))
        declared = frozenset(decl.name.text for line in lines for decl in line.dims)
        return Renames({dim: frozenset(names) for dim, names in places.items()}, declared)

    def known(self, tensor: Tensor, dims: Sequence[Dim]) -> Tensor | None:
        """Give a value under these dims, where it was made before."""
        made = self.made.get(tensor.name, ())
        return next((renamed for renamed in made if set(renamed.dims) == set(dims)), None)

    def add(self, tensor: Tensor, renamed: Tensor) -> None:
        """Remember a value under other dims."""
        self.made.setdefault(tensor.name, []).append(renamed)
        self.written[renamed.name] = tensor.name

    def changed(self, tensor: Tensor, dims: Sequence[Dim]) -> tuple[Dim, ...]:
        """List the names that dims would give a value anew; none where they are no renaming."""
        if len(dims) != len(tensor.dims):
            return ()
        new = tuple(here for here, own in zip(dims, tensor.dims, strict=True) if here != own)
        return () if any(dim in tensor.dims for dim in new) else new

    def strange(self, tensor: Tensor, changed: Iterable[Dim]) -> tuple[Dim, ...]:
        """List those of the new names that stand nowhere else."""
        return tuple(
            dim
            for dim in changed
            if dim.name not in self.declared
            and not self.places.get(dim, frozenset[str]()) - {tensor.name}
        )


def rename_line(tensor: Tensor, name: str, home: Layout | None, brackets: Brackets) -> str:
    """Write the line that renames a value as a mention has it, under a name of its own."""
    layout = brackets.layout(brackets.dims)
    result = Array(Tensor(name, brackets.dims, tensor.dtype), home or layout)
    operand = Array(tensor, home or layout)
    return f"{result} = {expression(Rename(brackets.dims), [str(operand)])}"
