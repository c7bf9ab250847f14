"""`shardlang explore`: a page that computes the costs of programs in the browser."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from shardlang.cli import arguments as options
from shardlang.cli.program import hardware_settings, lower_program, warned
from shardlang.cli.several import read_programs
from shardlang.cli.streams import write_result

NAME = "explore"
HELP = "a web page with sliders for sizes, mesh and hardware, which works without a network"


def configure(parser: ArgumentParser) -> None:
    """Declare the options."""
    options.add_source(parser, several=True)
    options.add_lowering(parser)
    options.add_model(parser)
    group = parser.add_argument_group("output")
    group.add_argument("-o", dest="output", metavar="FILE", help="write the page to a file")
    group.add_argument("--no-color", action="store_true", help="no colors (nor with NO_COLOR set)")


def run(arguments: Namespace) -> int:
    """Write the page of one program, or of several side by side."""
    from shardlang.backends.explore.data import Subject
    from shardlang.backends.explore.page import page

    subjects = [
        Subject(label, warned(lower_program(program, own)), hardware_settings(own, program))
        for label, (own, program) in read_programs(arguments).items()
    ]
    text = page(subjects, arguments.hardware, arguments.model, arguments.overlap)
    write_result(text, arguments.output)
    return 0
