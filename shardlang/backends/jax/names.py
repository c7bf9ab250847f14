"""Chooses Python names for the program's names, so that none can clash or become code.

Decides: a name of the program is kept where Python allows it and nothing else has it; everything
else gets a derived name. Deterministic: the same plan gives the same names.
"""

from __future__ import annotations

import builtins
import keyword
import unicodedata
from collections.abc import Iterable
from textwrap import wrap

MODULE_NAMES = frozenset(
    {
        "AxisType", "INPUTS", "MESH_AXES", "Mesh", "NamedSharding", "OUTPUTS", "P", "differentiable", "forward",
        "forward_backward", "functools", "jax", "jnp", "lax", "main", "make_mesh", "math", "mesh", "np", "os",
        "reference", "sys", "inputs", "outputs", "saved", "leaves", "cotangents", "gradients",
        "place", "sizes", "size", "ml_dtypes", "shape", "carry", "layer", "layers", "outside", "product", "ahead", "number",
        "stacks", "sent", "handed", "entered", "values", "first", "last",
    }
)  # fmt: skip
"""What the emitted module itself uses inside its step functions, or defines; helpers have a `_`."""

RESERVED = MODULE_NAMES | frozenset(keyword.kwlist) | frozenset(dir(builtins))
"""Names that no variable of the emitted module may have."""


def identifier(name: str) -> str:
    """Give a legal Python identifier that is as close to a name of the program as can be.

    >>> [identifier(name) for name in ("W_in", "D'", "lambda", "__debug__", "_step", "2x")]
    ['W_in', 'D_prime', 'lambda_', 'v__debug__', 'v_step', 'v_2x']
    """
    text = unicodedata.normalize("NFKC", name.replace("'", "_prime").replace("′", "_prime"))
    text = "".join(char if f"a{char}".isidentifier() else "_" for char in text)
    if text.startswith("_"):
        text = f"v{text}"
    elif not text.isidentifier():
        text = f"v_{text}"
    if text in RESERVED:
        text = f"{text}_"
    if not text.isidentifier() or text in RESERVED:
        raise ValueError(f"no identifier for {name!r}")
    return text


class Names:
    """Hands out identifiers, each once."""

    def __init__(self) -> None:
        """Start with nothing taken but the reserved names."""
        self._taken: set[str] = set(RESERVED)

    def fresh(self, wanted: str) -> str:
        """Give the wanted name, or with a number after it where that is taken.

        >>> names = Names()
        >>> [names.fresh("In"), names.fresh("In"), names.fresh("class")]
        ['In', 'In_2', 'class_']
        """
        base = identifier(wanted)
        name, count = base, 1
        while name in self._taken:
            count += 1
            name = f"{base}_{count}"
        self._taken.add(name)
        return name


def quoted(text: str) -> str:
    """Write a string literal as ruff formats it: double quotes where they need no escape.

    >>> print(quoted("W'"), quoted('a"b'))
    "W'" 'a"b'
    """
    literal = repr(text)
    if literal.startswith("'") and '"' not in text:
        literal = '"' + literal[1:-1].replace("\\'", "'") + '"'
    return literal


def comment(text: str) -> str:
    """Make a text safe as a comment: one line, nothing that ends it or reorders how it reads."""
    shown = "".join(char if char.isprintable() else " " for char in text)
    return f"# {shown.strip()}"


def comments(text: str, depth: int, width: int = 100) -> list[str]:
    """Write a text as comment lines at a depth, wrapped at spaces where it is too long.

    A tensor's brackets stay together where they fit.
    """
    indent = "    " * depth
    whole = comment(text)
    if len(indent) + len(whole) <= width:
        return [indent + whole]
    body, mark, note = whole[2:].partition("// ")
    glued = body.replace(", ", ",\0") + (mark + note).replace(" ", "\0")
    lines = _broken(glued, width - len(indent) - 2)
    if any(len(line) > width - len(indent) - 2 for line in lines):
        lines = _broken(whole[2:], width - len(indent) - 2)
    return [f"{indent}# {line.replace(chr(0), ' ')}" for line in lines]


def _broken(text: str, width: int) -> list[str]:
    return wrap(
        text, width, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
    )


def docstring_text(text: str) -> str:
    """Make a text safe inside a triple-quoted string."""
    shown = "".join(char if char.isprintable() else " " for char in text)
    return shown.replace("\\", "/").replace('"', "'").strip()


def filled(start: str, words: Iterable[str], width: int = 100) -> list[str]:
    """Write a list of words as lines, between words alone."""
    lines, line = list[str](), start
    listed = list(words)
    for index, word in enumerate(listed):
        piece = word + ("." if index == len(listed) - 1 else ",")
        if len(line) + len(piece) + 1 > width:
            lines.append(line.rstrip())
            line = ""
        line += piece if line.endswith(" ") or not line else f" {piece}"
    return [*lines, line]
