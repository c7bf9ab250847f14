"""The `shardlang` command: which command runs, exit statuses, and no traceback for any input.

Exit status 0: done; 1: the program is wrong or a check failed; 2: wrong usage; 130: interrupted.
"""

from __future__ import annotations

import gc
import os
import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Sequence
from typing import NoReturn, Protocol

from shardlang import __version__
from shardlang.cli import arguments as options
from shardlang.cli import (
    calibrate,
    check,
    compare,
    cost,
    emit_jax,
    explain,
    explore,
    fmt,
    hardware,
    lower,
    new,
    plan,
    plot,
    schedule,
    solve,
    verify,
)
from shardlang.cli.idle import idle
from shardlang.cli.streams import (
    complain,
    finish,
    OutputError,
    UsageError,
    use_utf8,
    wants_color,
    write_result,
)
from shardlang.diagnostics import render, ShardlangError

FAILED, WRONG_USAGE, INTERRUPTED = 1, 2, 130
DEBUG = "SHARDLANG_DEBUG"
"""The environment variable that lets the traceback of an internal error through."""


class Command(Protocol):
    """What a command's module has."""

    @property
    def NAME(self) -> str:  # noqa: N802 (a constant of the module)
        """What is typed."""
        ...

    @property
    def HELP(self) -> str:  # noqa: N802 (a constant of the module)
        """What it does, in a line."""
        ...

    def configure(self, parser: ArgumentParser) -> None:
        """Declare the command's options."""

    def run(self, arguments: Namespace) -> int:
        """Do it, and give the exit status."""
        ...


COMMANDS: tuple[Command, ...] = (
    cost,
    compare,
    lower,
    explain,
    emit_jax,
    check,
    verify,
    solve,
    plan,
    explore,
    calibrate,
    plot,
    schedule,
    fmt,
    new,
    hardware,
)
"""In the order of the help."""

GREETING = """\
shardlang: sharded einsums with their collectives, costs and JAX code. Three commands to try:

  shardlang cost -e 'In[B_X, D] · W_in[D_X, F] · W_out[F, D_X] -> Out[B_X, D]'
  shardlang lower -e 'A[I, J_X] · B[J_X, K] -> C[I_X, K]'
  shardlang emit-jax -e 'A[I, J_X] · B[J_X, K] -> C[I, K]' --set X=4

`shardlang --help` lists the commands.
"""


class Parser(ArgumentParser):
    """A parser that says what is wrong in a line, and in another where the options are listed."""

    def error(self, message: str) -> NoReturn:
        """Print a mistake in the arguments, and stop with the status of wrong usage."""
        complain(f"{self.prog}: error: {message}\ntry: {self.prog} --help")
        self.exit(WRONG_USAGE)


def build_parser() -> ArgumentParser:
    """Build the parser of the whole command line."""
    parser = Parser(
        prog="shardlang",
        description="A compiler for sharded einsums.",
        epilog="Exit status: 0 done, 1 the program is wrong or a check failed, 2 wrong usage.",
        formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"shardlang {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command in COMMANDS:
        own = commands.add_parser(
            command.NAME, help=command.HELP, description=command.HELP, allow_abbrev=False
        )
        command.configure(own)
        own.set_defaults(run=command.run, parser=own)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and give its exit status.

    Without `argv` this is the whole process: its arguments are read and its streams set up.
    """
    if argv is None:
        # A short process: looking for cycles while modules load costs a tenth of the start.
        gc.set_threshold(100_000, 20, 100)
        argv = sys.argv[1:]
    use_utf8()
    try:
        return _guarded(argv)
    finally:
        finish()


def _guarded(argv: Sequence[str]) -> int:
    """Run, and turn everything that can go wrong into a message and a status."""
    try:
        return _dispatch(argv)
    except UsageError as error:
        complain(f"shardlang: {error}")
        return WRONG_USAGE
    except ShardlangError as error:
        color = wants_color(sys.stderr, forbidden="--no-color" in argv)
        found = [render(x, color=color).rstrip("\n") for x in error.diagnostics]
        complain("\n\n".join(found))
        # What is wrong in an option's value has the option's name for its source.
        typed = all(x.source.name.startswith("--") for x in error.diagnostics)
        return WRONG_USAGE if typed else FAILED
    except OutputError as error:
        complain(f"shardlang: {error}")
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    except RecursionError as error:
        return _crashed(error, "the program is nested too deeply")
    except MemoryError as error:
        return _crashed(error, "not enough memory for this program")
    except Exception as error:  # noqa: BLE001 (this is the guard)
        what = f"{type(error).__name__}: {error}".partition("\n")[0]
        return _crashed(
            error,
            f"internal error: {what[:200]} (a bug in shardlang: please report it with the program"
            f" and the output under {DEBUG}=1)",
        )


def _crashed(error: BaseException, message: str) -> int:
    if os.environ.get(DEBUG) == "1":
        raise error
    complain(f"shardlang: {message}")
    return FAILED


def _dispatch(argv: Sequence[str]) -> int:
    if not argv:
        write_result(GREETING)
        return 0
    _refuse_unknown(argv[0])
    try:
        arguments, extra = build_parser().parse_known_args(argv)
        if extra:
            # argparse itself would name `shardlang`, whose help lists commands alone
            listed = " ".join(options.shorten(word) for word in extra)
            arguments.parser.error(f"unrecognized arguments: {listed}")
    except SystemExit as stop:
        # argparse has printed its message; `--help` and `--version` stop with 0.
        return stop.code if isinstance(stop.code, int) else WRONG_USAGE
    for text in idle(arguments, arguments.parser.get_default):
        complain(f"warning: {text}")
    status: int = arguments.run(arguments)
    return status


def _refuse_unknown(word: str) -> None:
    """Say what a first word that is no command may have meant."""
    names = [command.NAME for command in COMMANDS]
    if word.startswith("-") or word in names:
        return
    if word.endswith(".shd"):
        raise UsageError(f"{word} is no command; did you mean `shardlang cost {word}`?")
    from difflib import get_close_matches

    near = get_close_matches(word, names, n=1)
    hint = f"did you mean `{near[0]}`?" if near else f"there are {', '.join(names)}"
    raise UsageError(f"`{word[:60]}` is no command; {hint}")
