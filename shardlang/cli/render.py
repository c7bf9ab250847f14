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
            return f"\\begin{{verbatim}}\n{body}\\end{{verbatim}}\n"
        case _:
            return body
