"""Included files: `include "attention.shd"` stands for the lines of that file.

A path is looked for beside the file that includes it (of a text that is no file: in the working
directory). A file that is included twice is read the first time alone. The spans of an included file
begin behind those of the texts before it; `Source.passages` says which file they stand in.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path

from shardlang.diagnostics import Diagnostic, Label, Mistake, Reporter, ShardlangError
from shardlang.frontend.call_errors import CannotInclude, IncludeCycle
from shardlang.frontend.files import read_file
from shardlang.frontend.parse_errors import NoSuchFile
from shardlang.frontend.parser import read
from shardlang.frontend.syntax import IncludeDecl, Item
from shardlang.frontend.walk import moved
from shardlang.source import Passage, Source

MAX_DEPTH = 50
"""How many files may stand between one and the program that includes it."""


def included(items: Sequence[Item], source: Source) -> tuple[tuple[Item, ...], Source]:
    """Put the items of included files in the place of their lines.

    The source that comes back knows of those files. Raises `ShardlangError` with every mistake of
    form in them, and where one can't be read.
    """
    if source.passages:  # of an earlier reading
        source = Source(source.name, source.text)
    if not any(isinstance(item, IncludeDecl) for item in items):
        return tuple(items), source
    reader = _Reader(source)
    found = tuple(reader.items(items, reader.whole, 0, (_identity(source.name),)))
    if reader.diagnostics:
        raise ShardlangError(reader.diagnostics)
    return found, replace(reader.whole, passages=tuple(reader.passages))


@dataclass
class _Reader:
    """Reads the files of one program: `names` are those that are read, by what the system calls them."""

    whole: Source
    names: dict[str, str] = field(default_factory=dict[str, str])
    passages: list[Passage] = field(default_factory=list[Passage])
    diagnostics: list[Diagnostic] = field(default_factory=list[Diagnostic])

    def __post_init__(self) -> None:
        """Begin with the program itself."""
        self.names[_identity(self.whole.name)] = self.whole.name
        self.end = len(self.whole.text) + 1

    def items(
        self, items: Sequence[Item], source: Source, base: int, above: tuple[str, ...]
    ) -> Iterator[Item]:
        """Give the items of a file whose offsets begin at `base`; `above` are the files around it."""
        for item in items:
            if isinstance(item, IncludeDecl):
                yield from self.file(item, source, above)
            else:
                yield moved(item, base)

    def file(self, item: IncludeDecl, source: Source, above: tuple[str, ...]) -> Iterator[Item]:
        """Give the items of the file that a line names."""
        path = os.path.join(os.path.dirname(source.name) or ".", item.path.text)  # noqa: PTH118, PTH120
        name = os.path.normpath(path)
        identity = _identity(path)
        if identity in above:
            circle = above[above.index(identity) :]
            ways = tuple(self.names[each] for each in (*circle, identity))
            self.refuse(item, source, IncludeCycle(ways))
            return
        if identity in self.names:
            return
        self.names[identity] = name
        if len(above) > MAX_DEPTH:
            why = f"files include one another more than {MAX_DEPTH} deep"
            self.refuse(item, source, CannotInclude(why))
            return
        found = self.read(item, source, path, name)
        if found is None:
            return
        reporter = Reporter(found)
        tree = read(found, reporter)
        self.diagnostics += reporter.diagnostics
        base = self.end
        self.end += len(found.text) + 1
        self.passages.append(Passage(base, found, 0, len(found.text)))
        yield from self.items(tree.items, found, base, (*above, identity))

    def read(self, item: IncludeDecl, source: Source, path: str, name: str) -> Source | None:
        """Read a file; None where that fails."""
        try:
            return replace(read_file(path), name=name)
        except ShardlangError as error:
            (found,) = error.diagnostics
            if found.source.text:  # it is no text, and this is where one sees that
                label = Label(item.span, "included here", source)
                self.diagnostics.append(
                    replace(found, source=replace(found.source, name=name), labels=(label,))
                )
                return None
            mistake, folder = found.mistake, Path(path).parent
            if isinstance(mistake, NoSuchFile):
                near = tuple(
                    os.path.join(os.path.dirname(item.path.text), each)  # noqa: PTH118, PTH120
                    for each in _near(Path(path))
                )
                mistake = CannotInclude(f"there is no file {name}", str(folder), near)
            else:
                mistake = CannotInclude(found.message.replace(path, name))
            self.refuse(item, source, mistake)
            return None

    def refuse(self, item: IncludeDecl, source: Source, mistake: Mistake) -> None:
        """Report a mistake at the path of a line."""
        self.diagnostics.append(Diagnostic(source, item.path.span, mistake))


def _identity(path: str) -> str:
    """Give what tells files apart, whatever they are called."""
    try:
        return os.path.realpath(path)
    except (OSError, ValueError):
        return path


def _near(path: Path) -> tuple[str, ...]:
    """List the programs beside a missing file whose names are close to its name."""
    try:
        names = sorted(each.name for each in path.parent.iterdir() if each.suffix == path.suffix)
    except (OSError, ValueError):
        return ()
    return tuple(get_close_matches(path.name, names, 2, 0.7))
