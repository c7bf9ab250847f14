"""`shardlang explain`: why a plan has its collectives, and what plans close to it would cost."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from shardlang.cli import arguments as options
from shardlang.cli.program import read_program, unpriced
from shardlang.cli.render import dress, to_json
from shardlang.cli.streams import DEFAULT_WIDTH, width, write_result

NAME = "explain"
HELP = "each collective with its reason, the plans that are close, what `book` would do"


def configure(parser: ArgumentParser) -> None:
    """Declare the options; without --strategy it is optimal where every size is known."""
    options.add_source(parser)
    options.add_lowering(parser)
    parser.set_defaults(strategy=None)
    options.add_output(parser)


def run(arguments: Namespace) -> int:
    """Print the explanation."""
    from shardlang.advice.explain import explain

    program = read_program(arguments)
    unpriced(arguments, program, "in `explain`, which takes the hardware's own figures")
    found = explain(
        program,
        arguments.strategy,
        prices=arguments.prices,
        objective=arguments.objective,
        budget=arguments.budget,
        memory_limit=arguments.memory_limit,
        keep_gathered=options.KEEPING.get(arguments.keep_gathered),
        forward_only=arguments.passes == "forward",
        sub_axes=options.SUB_AXES.get(arguments.sub_axes),
    )
    if arguments.format == "json":
        write_result(to_json(found.to_dict()), arguments.output)
        return 0
    columns = DEFAULT_WIDTH
    if arguments.output is None and arguments.format == "text":
        columns = min(width(), DEFAULT_WIDTH)
    write_result(dress(found.to_text(columns), arguments.format), arguments.output)
    return 0
