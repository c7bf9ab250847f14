"""The page itself: a template with a style and a script, and the data of the programs beside them.

Data stand in a script element that browsers never run, with every character escaped that could end
it. The page's own policy lets the one script run that it was made with, and lets nothing be loaded.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from shardlang import __version__
from shardlang.backends.explore.data import page_data, Subject
from shardlang.cost.models import Model
from shardlang.cost.report import Overlap
from shardlang.hardware.catalogue import Hardware

FILES = Path(__file__).parent


def page(
    subjects: Sequence[Subject],
    hardware: str | Hardware | None = None,
    model: str | Model = "book",
    overlap: Overlap = None,
) -> str:
    """Make the page of one or several programs, side by side.

    `hardware` is what the page starts with (else the program's own, else a TPU v5p). Raises
    `ShardlangError` as `cost` does.
    """
    style, script = (_text(name) for name in ("page.css", "page.js"))
    parts = {
        "TITLE": escape(", ".join(subject.label for subject in subjects)),
        "VERSION": escape(__version__),
        "STYLE": style,
        "STYLE_HASH": _hash(style),
        "SCRIPT": script,
        "SCRIPT_HASH": _hash(script),
        "DATA": script_json(page_data(subjects, hardware, model, overlap)),
    }
    # one pass, so that nothing that is put in is read as a mark
    return re.sub(r"\{\{([A-Z_]+)\}\}", lambda mark: parts[mark[1]], _text("page.html"))


def script_json(data: Any) -> str:
    """Print JSON that may stand in a script element whatever is in it."""
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _text(name: str) -> str:
    return (FILES / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"
