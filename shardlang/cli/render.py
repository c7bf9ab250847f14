"""Results in the formats of `--format`, where a command has no richer rendering of its own."""

from __future__ import annotations

from typing import Any, Literal

SCHEMA = 1
"""The version of every JSON object that the commands print."""


def to_json(data: Any) -> str:
    """Print JSON for people and tools alike: indented, in the notation's own characters."""
    import json

    return json.dumps(data, indent=2, ensure_ascii=False) + "\n"


def dress(text: str, form: str, language: Literal["", "python", "console"] = "") -> str:
    """Put a text into a block of Markdown or LaTeX; `text` leaves it as it is."""
    body = text if not text or text.endswith("\n") else text + "\n"
    match form:
        case "markdown":
            fence = "```"
            while fence in body:
                fence += "`"
            return f"{fence}{language}\n{body}{fence}\n"
        case "latex":
            return _verbatim(body)
        case _:
            return body


SIZES = (("", 65), (r"\small", 72), (r"\footnotesize", 81), (r"\scriptsize", 92), (r"\tiny", 0))
"""Sizes of type, with the columns that a line of LaTeX's article holds in them."""

SIGNS = {
    "⊙": r"\ensuremath{\odot}",
    "→": r"\ensuremath{\rightarrow}",
    "≤": r"\ensuremath{\le}",
    "≥": r"\ensuremath{\ge}",
    "█": r"\rule{.525em}{1.6ex}",
    "▓": r"\rule{.525em}{1.2ex}",
    "▒": r"\rule{.525em}{.8ex}",
    "░": r"\rule{.525em}{.4ex}",
}
"""Characters that pdfTeX knows nothing of, as it may set them; XeTeX and LuaTeX have them in fonts."""


def _verbatim(body: str) -> str:
    """Set a text as it is, in the largest type in which its lines fit."""
    longest = max(map(len, body.splitlines()), default=0)
    size = next((name for name, room in SIZES if longest <= room), SIZES[-1][0])
    known = [
        rf"\@namedef{{u8:\detokenize{{{c}}}}}{{{tex}}}%" for c, tex in SIGNS.items() if c in body
    ]
    lines = [rf"{{{size}\makeatletter%", *known, r"\makeatother", r"\begin{verbatim}"]
    return "\n".join(lines) + f"\n{body}\\end{{verbatim}}\n}}\n"
