"""From the grammar to a parser: by way of stored tables, since computing them takes longer than all else.

`tables.json` holds what Lark computes from `grammar/shardlang.lark`, with a fingerprint of the
grammar and Lark's version. If both fit, the tables are loaded; else the parser is
built from the grammar, more slowly and with the same result. After a change of the grammar,
`python -m shardlang.frontend.grammar` writes the tables anew; a test says when that is due.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, cast

import lark
from lark.grammar import Rule
from lark.lexer import TerminalDef

_HERE = Path(__file__).resolve().parent
_GRAMMAR = "shardlang.lark"
_TABLES = "tables.json"


def grammar_text() -> str:
    """Give the grammar: from the installed package, else from the repository beside it."""
    package = _HERE.parent
    installed = package / "grammar" / _GRAMMAR
    beside = package.parent / "grammar" / _GRAMMAR
    return (installed if installed.is_file() else beside).read_text(encoding="utf-8")


def build_parser(transformer: object | None = None, *, strict: bool = False) -> lark.Lark:
    """Build the parser of one statement from the grammar.

    `transformer` has a method for each rule. `strict` refuses any ambiguity of the grammar, and
    needs the package `interegular`; a test does so.
    """
    return lark.Lark(
        grammar_text(),
        parser="lalr",
        lexer="contextual",
        propagate_positions=False,  # every sign is a named terminal and has its place
        maybe_placeholders=False,
        strict=strict,
        transformer=cast("Any", transformer),
    )


def load_parser(transformer: object | None = None) -> lark.Lark:
    """Load the parser of one statement from the stored tables, or build it if they don't fit."""
    stored = _HERE / _TABLES
    if stored.is_file():
        tables = json.loads(stored.read_bytes(), object_pairs_hook=_numbered)
        if tables["lark"] == lark.__version__ and tables["grammar"] == fingerprint():
            return _Stored.load_tables(tables, transformer)
    return build_parser(transformer)


def fingerprint() -> str:
    """Give the grammar's text as one number."""
    return hashlib.sha256(grammar_text().encode()).hexdigest()


def tables_text() -> str:
    """Compute the tables, as the text of their file."""
    data, memo = build_parser().memo_serialize([TerminalDef, Rule])
    tables = {"lark": lark.__version__, "grammar": fingerprint(), "data": data, "memo": memo}
    return json.dumps(tables, ensure_ascii=False, separators=(",", ":"), default=sorted) + "\n"


class _Stored(lark.Lark):
    """A parser that is made from tables."""

    @classmethod
    def load_tables(cls, tables: dict[str, Any], transformer: object | None) -> lark.Lark:
        """Make the parser, with the methods of a transformer."""
        return cls._load_from_dict(tables["data"], tables["memo"], transformer=transformer)


def _numbered(pairs: list[tuple[str, Any]]) -> dict[Any, Any]:
    """Give a table the numbers as keys that JSON wrote as texts."""
    return {int(key) if key.isdecimal() else key: value for key, value in pairs}


if __name__ == "__main__":
    (_HERE / _TABLES).write_text(tables_text(), encoding="utf-8")
