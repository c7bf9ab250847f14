"""`shardlang check`: nothing, or every error and warning with its place and a hint."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from shardlang.cli import arguments as options
from shardlang.cli.program import read_text, resolve_text
from shardlang.cli.render import dress, SCHEMA, to_json
from shardlang.cli.streams import complain, UsageError, wants_color, write_result
from shardlang.source import Source

if TYPE_CHECKING:
    from shardlang.advice.lint import Fixed
    from shardlang.diagnostics import Diagnostic
    from shardlang.ir.program import Program

NAME = "check"
HELP = "nothing, or every error and warning with file:line:column, a caret and a hint"


def configure(parser: ArgumentParser) -> None:
    """Declare the options."""
    options.add_source(parser)
    parser.add_argument(
        "--explicit",
        action="store_true",
        help="every line must be legal as it stands, with no inferred communication",
    )
    parser.add_argument(
        "--fix",
        action="store_true",
        help="write the cheaper lines into the file (-o FILE: there; -e, -: to stdout), and show "
        "what is left",
    )
    options.add_lowering(parser, shown=False)
    options.add_output(parser)


def run(arguments: Namespace) -> int:
    """Print the diagnostics; they are the result, so they go to stdout.

    Errors are shown and not fixed: `--fix` then writes nothing.
    """
    if arguments.fix:
        arguments.passes = "both"  # a fix has to suit what the backward pass reads
    source = read_text(arguments)
    found = _diagnostics(source, arguments)
    if arguments.fix and not _status(found):
        return _fix(source, arguments)
    write_result(_shown(found, arguments, arguments.output), arguments.output)
    return _status(found)


def _status(found: list[Diagnostic]) -> int:
    return int(any(diagnostic.severity == "error" for diagnostic in found))


def _shown(found: list[Diagnostic], arguments: Namespace, path: str | None) -> str:
    """Draw diagnostics in the format that was asked for."""
    from shardlang.diagnostics import render, to_dict

    if arguments.format == "json":
        return to_json([to_dict(diagnostic) for diagnostic in found])
    plain = path is not None or arguments.format != "text"
    color = not plain and wants_color(sys.stdout, forbidden=arguments.no_color)
    text = "\n\n".join(render(diagnostic, color=color).rstrip("\n") for diagnostic in found)
    return dress(text, arguments.format) if text else text


def _fix(source: Source, arguments: Namespace) -> int:
    """Write the cheaper program, say what it saves, and show what is left.

    A text that came from no file goes to stdout, and what is left to stderr.
    """
    from dataclasses import replace

    from shardlang import check
    from shardlang.advice.lint import amount, fix

    program = resolve_text(source, arguments)
    if not program.explicit and not arguments.explicit:
        raise UsageError("--fix works on lines that are steps: add --explicit, or write forward:")

    def read(text: str) -> Program:
        return resolve_text(Source(source.name, text), arguments)

    fixed = fix(replace(program, explicit=True), read, arguments.prices)
    left = check(replace(read(fixed.text), explicit=True), prices=arguments.prices)
    target = arguments.output
    if target is None and arguments.text is None and arguments.file != "-":
        target = arguments.file
    if arguments.format == "json":
        write_result(to_json(_described(fixed, left)))
        if target not in (None, "-"):
            write_result(fixed.text, target)
        return 0
    if target is None or fixed.text != source.text or target != arguments.file:
        write_result(fixed.text, target)
    shown = _shown(left, arguments, None if target is not None else "-")
    if target is None:
        if shown:
            complain(shown)
    else:
        write_result(shown)
    if fixed.applied:
        many = "1 warning" if len(fixed.applied) == 1 else f"{len(fixed.applied)} warnings"
        complain(f"fixed {many}: a device moves {amount(fixed.saved)} less")
    return 0


def _described(fixed: Fixed, left: list[Diagnostic]) -> dict[str, object]:
    from shardlang.diagnostics import to_dict

    return {
        "schema": SCHEMA,
        "text": fixed.text,
        "fixed": [to_dict(diagnostic) for diagnostic in fixed.applied],
        "saved_bytes": str(fixed.saved),
        "left": [to_dict(diagnostic) for diagnostic in left],
    }


def _diagnostics(source: Source, arguments: Namespace) -> list[Diagnostic]:
    from shardlang import check
    from shardlang.cost.hardware import hardware_mistakes
    from shardlang.diagnostics import ShardlangError
    from shardlang.hardware.catalogue import load_hardware

    if arguments.hardware is not None:
        load_hardware(arguments.hardware)
    try:
        program = resolve_text(source, arguments)
    except ShardlangError as error:
        wrong = [] if arguments.hardware is not None else hardware_mistakes(source)
        return list(ShardlangError([*error.diagnostics, *wrong]).diagnostics)
    return check(program, explicit=arguments.explicit, prices=arguments.prices)
