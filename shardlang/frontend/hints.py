"""Words for hints: the nearest known name, lists of names, and subscripts as they are written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

SHOWN = 8
"""The most names that a hint lists."""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Give the known name that is closest to a mistyped one, if any is close."""
    options = sorted(set(known))
    lowered = {option.lower(): option for option in options}
    if name.lower() in lowered:
        return lowered[name.lower()]
    found = get_close_matches(name, options, 1)
    return found[0] if found else None


def few(name: str, known: Iterable[str]) -> list[str]:
    """Give the three known names that are closest to a word, however far they are."""
    return get_close_matches(name.lower(), sorted(set(known)), 3, 0.0)


def suggest(name: str, known: Sequence[str], what: str) -> str | None:
    """Say which name was meant, or else which names of that kind there are."""
    match = nearest(name, known)
    if match is not None:
        return f"did you mean {match}?"
    if not known:
        return None
    more = f" and {len(known) - SHOWN} more" if len(known) > SHOWN else ""
    return f"{what}: {', '.join(known[:SHOWN])}{more}"


def listed(words: Sequence[str], last: str = "and") -> str:
    """Join words as prose: `A, B and C`."""
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} {last} {words[-1]}"


def contraction(dims: Sequence[str]) -> str:
    """Write the subscript of a product: `·_D` or `·_{D,H}`."""
    return f"·_{dims[0]}" if len(dims) == 1 else f"·_{{{','.join(dims)}}}"
