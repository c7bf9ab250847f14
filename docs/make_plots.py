"""Draws the pictures of docs/plots.md with the commands that it shows: `python docs/make_plots.py`."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

from shardlang.cli.main import main

PAGE = Path(__file__).with_name("plots.md")


def commands() -> list[list[str]]:
    """List the arguments of the commands that the page shows."""
    text = PAGE.read_text(encoding="utf-8").replace("\\\n", "")
    return [
        shlex.split(line)[1:] for line in re.findall(r"^\$ (shardlang .*)$", text, re.MULTILINE)
    ]


if __name__ == "__main__":
    os.chdir(PAGE.parent.parent)
    for arguments in commands():
        if main(arguments):
            raise SystemExit(f"failed: {shlex.join(arguments)}")
