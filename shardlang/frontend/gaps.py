"""Lines that can't be read: which mistakes in the other lines may follow from them.

A broken line may define, declare or shape every name that stands in it, so nothing is said about
those. The other lines are read as if it was not there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from shardlang.diagnostics import Diagnostic
from shardlang.frontend import declaration_errors, errors, expression_errors
from shardlang.source import Span

_WRAPPER = re.compile(r"\\[a-zA-Z]+\s?\{|[{}$\\]")
_STRAY = re.compile(r"[^\w\s'′\\{}\[\](),./|@·*+\-−=→]")
_INSIDE = re.compile(r"(?<=\w)[\[\](){}=,·](?=\w)")
_NAME = re.compile(r"[^\W\d_][\w'′]*")
_SIGNS = re.compile(r"\W")
_HEADER = re.compile(r"\b(?:forward|backward|update)\s*:")
_BLOCK = re.compile(r"(?:layers|block)\b|[\s\S]*:\Z")
_HEADERS = ("forward", "backward", "update")
_MESH = re.compile(r"mesh\b")
_NETWORKS = frozenset({"mesh", "ici", "dcn"})
_FOLLOWING = (
    declaration_errors.UnknownSaved,
    declaration_errors.UnknownSizeName,
    errors.BareName,
    errors.DefinedAfterUse,
    errors.DimsMismatch,
    expression_errors.UnknownDim,
)
_OF_THE_MESH = (errors.UnknownAxis, errors.DimIsAxis)


@dataclass(frozen=True, slots=True)
class Gaps:
    """What stands in the broken lines: `names` of any kind, and `axes` of a broken mesh line.

    `sections` says that a broken line is the header of a section or of a block, so that nothing more can be said.
    """

    names: frozenset[str] = frozenset()
    axes: tuple[str, ...] = ()
    sections: bool = False

    @staticmethod
    def of(text: str, broken: Sequence[Span]) -> Gaps:
        """Look through the broken lines."""
        found: set[str] = set()
        axes: dict[str, None] = {}
        sections = False
        for span in broken:
            piece = text[span.start : span.end]
            words = list(_names(piece))
            for sign in (_STRAY, _INSIDE):  # one may have been typed within a name
                words += _names(sign.sub("", piece))
            found.update(words)
            sections = sections or _like_header(piece) or _BLOCK.match(piece) is not None
            if _MESH.match(piece):
                axes.update((word, None) for word in _names(piece) if word not in _NETWORKS)
        return Gaps(frozenset(found), tuple(axes), sections)

    def independent(self, diagnostic: Diagnostic) -> bool:
        """Say whether a mistake would be one whatever the broken lines say."""
        mistake, span = diagnostic.mistake, diagnostic.span
        if isinstance(mistake, declaration_errors.EmptyProgram):
            return False
        if isinstance(mistake, _OF_THE_MESH) and self.axes:
            return False
        if not isinstance(mistake, _FOLLOWING):
            return True
        return self.names.isdisjoint(_names(diagnostic.source.text[span.start : span.end]))


def _like_header(piece: str) -> bool:
    """Say whether a line was probably meant as the header of a section."""
    if _HEADER.search(piece):
        return True
    word = _SIGNS.sub("", piece)
    return word.startswith(_HEADERS) or bool(get_close_matches(word, _HEADERS, 1, 0.75))


def _names(text: str) -> Iterator[str]:
    """Go through the names in a text; of `B_X` both it and what stands before its last underscore."""
    for match in _NAME.finditer(_WRAPPER.sub("", text)):
        name = match[0].replace("′", "'")
        yield name
        base, _, _ = name.rpartition("_")
        if base:
            yield base


NOTHING_BROKEN = Gaps()
"""A text of which every line was read."""
