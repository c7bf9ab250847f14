"""`shardlang emit-jax`: the plan as a standalone Python module."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from shardlang.cli import arguments as options
from shardlang.cli.program import given_sizes, make_plan, overlapped
from shardlang.cli.render import dress, SCHEMA, to_json
from shardlang.cli.streams import write_result

NAME = "emit-jax"
HELP = "a Python module with explicit collectives under jax.shard_map"


def configure(parser: ArgumentParser) -> None:
    """Declare the options."""
    options.add_source(parser)
    options.add_lowering(parser)
    options.add_overlap(parser)
    options.add_output(parser)


def run(arguments: Namespace) -> int:
    """Print the module."""
    from shardlang.backends.jax.emit import emit_jax

    plan = overlapped(make_plan(arguments), arguments)
    module = emit_jax(plan, given_sizes(arguments, plan.program))
    if arguments.format == "json":
        text = to_json({"schema": SCHEMA, "module": module})
    else:
        text = dress(module, arguments.format, "python")
    write_result(text, arguments.output)
    return 0
