"""`shardlang compare`: programs side by side, a row each."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from shardlang.cli import arguments as options
from shardlang.cli.program import lower_program, priced, warned
from shardlang.cli.render import to_json
from shardlang.cli.several import read_programs
from shardlang.cli.streams import width, write_result

NAME = "compare"
HELP = "programs side by side: FLOPs, bytes, compute-bound conditions, memory, times"


def configure(parser: ArgumentParser) -> None:
    """Declare the options: those of `cost`, for several files."""
    options.add_source(parser, several=True)
    options.add_lowering(parser)
    options.add_model(parser, rings=True)
    options.add_output(parser)


def run(arguments: Namespace) -> int:
    """Print the comparison. A `--set` counts where a program has the name."""
    from shardlang.backends.comparison import Comparison

    reports = {
        name: priced(own, warned(lower_program(program, own)))
        for name, (own, program) in read_programs(arguments).items()
    }
    found = Comparison(reports)
    match arguments.format:
        case "json":
            text = to_json(found.to_dict())
        case "latex":
            text = found.to_latex()
        case "markdown":
            text = found.to_markdown()
        case _:
            text = found.to_text(width())
    write_result(text, arguments.output)
    return 0
