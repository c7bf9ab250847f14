"""Lays out the few forms of statements that are emitted, as `ruff format` would at 100 columns.

Decides only line breaks. A `Node` is a bracket with items or plain text that has no break in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

WIDTH = 100
INDENT = "    "


@dataclass(frozen=True, slots=True)
class Node:
    """A bracketed list: `head(items)`.

    `literal` is set for tuples, lists and dicts, which break one item a line at once; a call first
    tries its arguments on one line of their own. `tail` follows the closing bracket.
    """

    head: str
    items: tuple[Item, ...]
    close: str
    literal: bool = False
    tail: str = ""

    def flat(self) -> str:
        """Print on one line."""
        inner = ", ".join(flat(item) for item in self.items)
        single = self.literal and self.close == ")" and len(self.items) == 1
        return f"{self.head}{inner}{',' if single else ''}{self.close}{self.tail}"


@dataclass(frozen=True, slots=True)
class Entry:
    """A key and its value in a dict, or a keyword and its argument."""

    key: str
    value: Item


Item = str | Node | Entry


def flat(item: Item) -> str:
    """Print an item on one line."""
    match item:
        case str():
            return item
        case Entry(key, value):
            return f"{key}{flat(value)}"
        case Node():
            return item.flat()


def call(function: str, *arguments: Item, tail: str = "") -> Node:
    """Make a call."""
    return Node(f"{function}(", arguments, ")", tail=tail)


def parens(*items: Item) -> Node:
    """Make a tuple."""
    return Node("(", items, ")", literal=True)


def dictionary(*entries: Entry | str) -> Node:
    """Make a dict literal; a string is an item such as `**other`."""
    return Node("{", entries, "}", literal=True)


def layout(
    prefix: str, item: Item, indent: int, suffix: str = "", *, force: bool = False
) -> list[str]:
    """Lay out `prefix item suffix` at an indentation, over as many lines as ruff would use.

    `force` breaks a bracket even where it would fit, as a trailing comma in the source does.
    """
    margin = INDENT * indent
    line = f"{margin}{prefix}{flat(item)}{suffix}"
    if len(line) <= WIDTH and not force:
        return [line]
    match item:
        case str():
            inner = f"{margin}{INDENT}{item}"
            if not (prefix.endswith(" = ") and item.isidentifier() and len(inner) <= WIDTH):
                return [line]
            return [f"{margin}{prefix}(", inner, f"{margin}){suffix}"]
        case Entry(key, value):
            return layout(f"{prefix}{key}", value, indent, suffix, force=force)
        case Node(head, items, close, literal, tail):
            if not items:
                return [line]
            first, last = f"{margin}{prefix}{head}", f"{margin}{close}{tail}{suffix}"
            if not literal and len(first) > WIDTH and prefix.endswith(" = "):
                return [f"{margin}{prefix}(", f"{INDENT}{margin}{item.flat()}", f"{margin})"]
            inner = INDENT * (indent + 1) + ", ".join(flat(x) for x in items)
            if not literal and not force and len(inner) <= WIDTH:
                return [first, inner, last]
            body = [text for x in items for text in layout("", x, indent + 1, ",")]
            if not literal and len(items) == 1 and isinstance(items[0], str):
                body = [INDENT * (indent + 1) + items[0]]
            return [first, *body, last]


def unpack(names: Sequence[str], value: str, indent: int) -> list[str]:
    """Lay out `a, b = value`; with no names there is nothing to unpack."""
    if not names:
        return []
    if len(names) == 1:
        return [f"{INDENT * indent}({names[0]},) = {value}"]
    line = f"{INDENT * indent}{', '.join(names)} = {value}"
    if len(line) <= WIDTH:
        return [line]
    return layout("", parens(*names), indent, f" = {value}", force=True)


def chain(prefix: str, terms: list[tuple[str, str]], indent: int) -> list[str]:
    """Lay out `prefix a + b - c`: terms with the operator before each (a bare sign for the first)."""
    margin, inner = INDENT * indent, INDENT * (indent + 1)
    pieces = [f"{op}{text}" if not i else f"{op} {text}" for i, (op, text) in enumerate(terms)]
    text = " ".join(pieces)
    if len(margin + prefix + text) <= WIDTH:
        return [f"{margin}{prefix}{text}"]
    if len(inner + text) <= WIDTH:
        return [f"{margin}{prefix}(", f"{inner}{text}", f"{margin})"]
    if len(pieces) == 1:
        return [f"{margin}{prefix}{text}"]
    return [f"{margin}{prefix}(", *(f"{inner}{piece}" for piece in pieces), f"{margin})"]
