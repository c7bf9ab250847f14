"""`shardlang check`: nothing, or every error and warning with its place and a hint."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from shardlang.cli import arguments as options
from shardlang.cli.program import read_text, resolve_text
from shardlang.cli.render import dress, to_json
from shardlang.cli.streams import wants_color, write_result

if TYPE_CHECKING:
    from shardlang.diagnostics import Diagnostic

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
    options.add_lowering(parser, shown=False)
    options.add_output(parser)


def run(arguments: Namespace) -> int:
    """Print the diagnostics; they are the result, so they go to stdout."""
    from shardlang.diagnostics import render, to_dict

    found = _diagnostics(arguments)
    if arguments.format == "json":
        text = to_json([to_dict(diagnostic) for diagnostic in found])
    else:
        plain = arguments.output is not None or arguments.format != "text"
        color = not plain and wants_color(sys.stdout, forbidden=arguments.no_color)
        text = "\n\n".join(render(diagnostic, color=color).rstrip("\n") for diagnostic in found)
        if text:
            text = dress(text, arguments.format)
    write_result(text, arguments.output)
    return int(any(diagnostic.severity == "error" for diagnostic in found))


def _diagnostics(arguments: Namespace) -> list[Diagnostic]:
    from shardlang import check
    from shardlang.cost.hardware import hardware_mistakes
    from shardlang.diagnostics import ShardlangError
    from shardlang.hardware.catalogue import load_hardware

    source = read_text(arguments)
    if arguments.hardware is not None:
        load_hardware(arguments.hardware)
    try:
        program = resolve_text(source, arguments)
    except ShardlangError as error:
        wrong = [] if arguments.hardware is not None else hardware_mistakes(source)
        return list(ShardlangError([*error.diagnostics, *wrong]).diagnostics)
    return check(program, explicit=arguments.explicit)
