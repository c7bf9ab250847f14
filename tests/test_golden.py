"""Cases in files: what a command prints for a program stands beside the program.

`tests/cases/<command>/<name>.shd`; a first line `# flags: ...` gives options. `make golden` writes
what is missing; read it before it is committed.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

CASES = Path(__file__).parent / "cases"
COMMANDS = ("lower", "cost", "check", "explain")
PROGRAMS = sorted(path for command in COMMANDS for path in (CASES / command).glob("*.shd"))


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_commands_print_what_stands_beside(
    path: Path, shardlang: Callable, golden: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The output of a command on a case, run in the case's folder, is that of its file."""
    monkeypatch.chdir(path.parent)
    first = path.read_text(encoding="utf-8").splitlines()[0]
    flags = shlex.split(first.removeprefix("# flags:")) if first.startswith("# flags:") else []
    outcome = shardlang(path.parent.name, path.name, *flags)

    golden(path.with_suffix(".out")).check(outcome.out + outcome.err)


def test_no_output_is_left_without_its_program() -> None:
    """A case that goes away takes its output along."""
    left = [
        p.name
        for c in COMMANDS
        for p in (CASES / c).glob("*.out")
        if p.with_suffix(".shd") not in PROGRAMS
    ]

    assert [] == left
