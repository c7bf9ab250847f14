"""Options that were given and do nothing: which ones do not, without which others, a row each.

An option counts as given where its value is not its default. A row says when it does something: from the other
options alone, before any program is read.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import PurePath


@dataclass(frozen=True)
class Row:
    """Options (by their names on the command line) that do something where `works` holds.

    `needs` says what would let them. Without `commands` the row is of all that have the options.
    """

    options: tuple[str, ...]
    works: Callable[[Namespace], bool]
    needs: str
    commands: frozenset[str] = frozenset()


NAMES = {"--pass": "passes", "--set": "settings", "--when": "asked"}
"""Where a value is that has not its option's name."""

SEARCH = ("--objective", "--prices", "--budget", "--sub-axes")
LOWERING = ("--strategy", *SEARCH, "--pass", "--keep-gathered", "--memory-limit")
SOURCE = ("--set", "--mesh", "--hardware")
MODEL = ("--model", "--overlap", "--hbm")

LOWER = frozenset(
    ("compare", "cost", "emit-jax", "explore", "lower", "plot", "schedule", "solve", "verify")
)
"""The commands that make a plan by `--strategy`."""


def _never(_: Namespace) -> bool:
    return False


def _program(arguments: Namespace) -> bool:
    return arguments.file is not None or arguments.text is not None


def _both(arguments: Namespace) -> bool:
    return arguments.passes == "both"


def _drawn(arguments: Namespace) -> bool:
    return PurePath(arguments.output or "").suffix.lower() in (".svg", ".png")


def _planned(arguments: Namespace) -> bool:
    return not _program(arguments) or not arguments.times


def _picture(arguments: Namespace) -> bool:
    return "json" not in (arguments.format, PurePath(arguments.output or "").suffix.lower()[1:])


ROWS = (
    Row(SEARCH, lambda a: a.strategy == "optimal", "without --strategy optimal", LOWER),
    Row(("--keep-gathered",), _both, "with --pass forward"),
    Row(("--convention",), lambda a: a.mfu is not None, "without --mfu", frozenset(("cost",))),
    Row(("--price",), lambda a: a.tokens is not None, "without --tokens", frozenset(("cost",))),
    Row((*SOURCE, *LOWERING, *MODEL), _program, "without a program", frozenset(("schedule",))),
    Row(("--model", "--hbm"), _planned, "with --times", frozenset(("schedule",))),
    Row(("--dark",), _drawn, "without -o FILE.svg or FILE.png", frozenset(("schedule",))),
    Row(("--dark", "--width", "--height"), _picture, "for JSON", frozenset(("plot",))),
    Row(("--when",), lambda a: a.symbol is not None, "without --for", frozenset(("solve",))),
    Row(("--parts",), lambda a: a.fits is not None, "without --fits", frozenset(("solve",))),
    Row(("--sub-axes",), _never, "in `plan`, which searches all meshes", frozenset(("plan",))),
    Row(
        (
            "--strategy",
            "--objective",
            "--budget",
            "--sub-axes",
            "--keep-gathered",
            "--memory-limit",
        ),
        _never,
        "in a command that makes no plan",
        frozenset(("check", "fmt")),
    ),
    Row((*SOURCE, "--prices", "--pass"), _never, "in `fmt`", frozenset(("fmt",))),
)
"""When options do something."""


def idle(arguments: Namespace, default: Callable[[str], object]) -> Iterator[str]:
    """Say of each option that was given and does nothing why; `default` gives the one of a value's name."""
    said: set[str] = set()
    for row in ROWS:
        if row.commands and arguments.command not in row.commands:
            continue
        names = {option: NAMES.get(option, option[2:].replace("-", "_")) for option in row.options}
        own = {option: name for option, name in names.items() if name in arguments}
        given = [
            option
            for option, name in own.items()
            if getattr(arguments, name) != default(name) and option not in said
        ]
        if given and not row.works(arguments):
            said.update(given)
            verb = "does" if len(given) == 1 else "do"
            yield f"{' and '.join(given)} {verb} nothing {row.needs}"
