"""`shardlang verify`: run the emitted module and compare it with an unsharded reference."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from shardlang.cli import arguments as options
from shardlang.cli.program import given_sizes, make_plan, overlapped
from shardlang.cli.render import dress, to_json
from shardlang.cli.streams import write_result

NAME = "verify"
HELP = "run the emitted module on simulated devices and compare values and collectives"


def configure(parser: ArgumentParser) -> None:
    """Declare the options."""
    options.add_source(parser)
    options.add_lowering(parser)
    options.add_overlap(parser)
    options.add_output(parser)


def run(arguments: Namespace) -> int:
    """Print what was compared and the largest error; 1 where something differs.

    JAX runs in a process of its own; where it is not installed the error says what to install.
    """
    from shardlang.verify import verify

    plan = overlapped(make_plan(arguments), arguments)
    result = verify(plan, sizes=given_sizes(arguments, plan.program))
    if arguments.format == "json":
        text = to_json(result.to_dict())
    else:
        text = dress(result.to_text(), arguments.format)
    write_result(text, arguments.output)
    return 0 if result.ok else 1
