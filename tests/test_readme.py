"""README.md and some pages of docs/ tell the truth: their commands print what they show, their Python runs.

In a `console` block a line that starts with `$ ` is a command and the lines below it are what it
prints; a line `...` stands for any lines. `make docs` puts today's output there: in a block with
`...` as many lines at either end as were shown before.
"""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
PAGES = (README, ROOT / "docs" / "planning.md", ROOT / "docs" / "training.md")
"""The pages whose blocks are run."""
BLOCK = re.compile(r"^```(?P<language>\w*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
SETS_UP = "python3 -m venv"
"""Commands that make an environment are run by CI, not here."""


@dataclass(frozen=True)
class Shown:
    """A command of a page and the lines that it shows as its output."""

    command: str
    lines: tuple[str, ...]


def blocks(language: str, page: Path = README) -> list[str]:
    """List the bodies of a page's blocks of a language."""
    found = BLOCK.finditer(page.read_text(encoding="utf-8"))
    return [match["body"] for match in found if match["language"] == language]


def commands(body: str) -> list[Shown]:
    """Split a console block into commands with their output."""
    result: list[Shown] = []
    for line in body.splitlines():
        if line.startswith("$ "):
            result.append(Shown(line[2:], ()))
        else:
            assert result, f"a console block must start with a command, not {line!r}"
            result[-1] = Shown(result[-1].command, (*result[-1].lines, line))
    return result


@pytest.mark.parametrize("page", ["README.md", *(f"docs/{p.name}" for p in ROOT.glob("docs/*.md"))])
def test_links_lead_somewhere(page):
    """Each relative link of a page names a file that exists."""
    text = (ROOT / page).read_text(encoding="utf-8")
    targets = re.findall(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)", text)

    assert [t for t in targets if not ((ROOT / page).parent / t).exists()] == []


def output(command: str) -> tuple[str, ...]:
    """Run a command in the repository, `shardlang` being this one, and give what it prints."""
    script = 'shardlang() { "$PYTHON" -m shardlang "$@"; }\n' + command
    environment = {
        **os.environ,
        "PYTHON": sys.executable,
        "COLUMNS": "100",
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        check=False,
        timeout=300,
    )
    text = done.stdout.decode()

    assert "Traceback" not in text, text
    return tuple(line.rstrip() for line in text.splitlines())


def matches(shown: tuple[str, ...], actual: tuple[str, ...]) -> bool:
    """Compare, letting `...` stand for any lines."""
    pattern = "".join(
        r"(?:.*\n)*?" if line.strip() == "..." else re.escape(line) + r"\n" for line in shown
    )
    return re.fullmatch(pattern, "".join(line + "\n" for line in actual)) is not None


def refreshed(shown: tuple[str, ...], actual: tuple[str, ...]) -> tuple[str, ...]:
    """Give what to show instead, shortened as before."""
    gaps = [i for i, line in enumerate(shown) if line.strip() == "..."]
    if not gaps or matches(shown, actual):
        return shown if gaps else actual
    before, after = gaps[0], len(shown) - gaps[-1] - 1
    if before + after >= len(actual):
        return actual
    return (*actual[:before], shown[gaps[0]], *actual[len(actual) - after :])


def refresh() -> None:
    """Write today's outputs into the pages."""

    def renew(match: re.Match[str]) -> str:
        if match["language"] != "console":
            return match[0]
        lines: list[str] = []
        for shown in commands(match["body"]):
            lines.append(f"$ {shown.command}")
            if SETS_UP in shown.command:
                lines.extend(shown.lines)
            else:
                lines.extend(refreshed(shown.lines, output(shown.command)))
        return "\n".join(["```console", *lines, "```"])

    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        page.write_text(BLOCK.sub(renew, text), encoding="utf-8")


SHOWN = [
    pytest.param(
        shown, id=shown.command, marks=pytest.mark.jax if " verify " in shown.command else ()
    )
    for page in PAGES
    for body in blocks("console", page)
    for shown in commands(body)
    if SETS_UP not in shown.command
]


@pytest.fixture(scope="module", autouse=True)
def _refresh_first(request):
    """Rewrite the outputs first under `--update-golden`."""
    if request.config.getoption("--update-golden"):
        refresh()


@pytest.mark.parametrize("shown", SHOWN)
def test_command_prints_what_is_shown(shown, request):
    """A command's output is what its page shows."""
    if request.config.getoption("--update-golden"):
        pytest.skip("the outputs were rewritten")
    actual = output(shown.command)

    assert matches(shown.lines, actual), "\n".join(
        ["shown:", *shown.lines, "actual:", *actual, "if that is right, run `make docs`"]
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_blocks_run(page):
    """The library examples run and show what they give."""
    bodies = blocks("python", page)
    parser, runner = doctest.DocTestParser(), doctest.DocTestRunner(verbose=False)
    for number, body in enumerate(bodies):
        if ">>>" in body:
            test = parser.get_doctest(body, {}, f"block {number}", str(page), None)
            runner.run(test)
        else:
            exec(compile(body, str(page), "exec"), {})

    assert bodies
    assert runner.summarize(verbose=False).failed == 0


def test_the_two_commands_for_a_fresh_machine():
    """One line sets up and prices the first example, one sets up and tests."""
    lines = [shown.command for body in blocks("console") for shown in commands(body)]
    fresh = [line for line in lines if SETS_UP in line]

    assert len(fresh) == 2
    assert fresh[0].endswith("shardlang cost examples/mlp.shd")
    assert fresh[1].endswith("pytest -n auto")


def test_the_first_program_is_the_first_example():
    """What the README starts with is examples/mlp.shd without its comment."""
    text = (ROOT / "examples" / "mlp.shd").read_text(encoding="utf-8")
    program = "".join(line for line in text.splitlines(keepends=True) if line[:1] != "#")

    assert blocks("")[0] == program


def test_every_command_is_in_the_table():
    """The table of commands lists those that exist, in their order."""
    from shardlang.cli.main import COMMANDS

    listed = re.findall(
        r"^\| `shardlang ([\w-]+)", README.read_text(encoding="utf-8"), re.MULTILINE
    )

    assert [command.NAME for command in COMMANDS] == listed


def test_elisions():
    """`...` stands for any lines, and refreshing keeps both ends."""
    assert matches(("a", "...", "d"), ("a", "b", "c", "d"))
    assert matches(("...",), ())
    assert not matches(("a", "...", "e"), ("a", "b", "c", "d"))
    assert refreshed(("a", "...", "e"), ("x", "b", "c", "d")) == ("x", "...", "d")
    assert refreshed(("a",), ("x", "y")) == ("x", "y")
