"""`shardlang cost`: what forward and backward cost, in formulas and, with sizes, in numbers."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace

from shardlang.cli import arguments as options
from shardlang.cli.program import hardware_settings, make_plan
from shardlang.cli.render import to_json
from shardlang.cli.streams import wants_color, width, write_result

NAME = "cost"
HELP = "the cost of each collective, FLOPs, times, the compute-bound condition, memory"


def configure(parser: ArgumentParser) -> None:
    """Declare the options."""
    options.add_source(parser)
    options.add_lowering(parser)
    group = parser.add_argument_group("cost model")
    group.add_argument(
        "--model",
        choices=("book", "link", "link-one-way", "link-ring"),
        default="book",
        help="the book's bytes (default); or link: what one device sends, with (n-1)/n, and the time of "
        "the busiest link or of the hops, on rings, lines, tori, switched nodes and across nodes "
        "(link-one-way: rings one way round; link-ring: rings through switches)",
    )
    group.add_argument(
        "--overlap",
        choices=("axes",),
        help="axes: collectives over different axes overlap each other",
    )
    options.add_output(parser)


def run(arguments: Namespace) -> int:
    """Print the report."""
    from shardlang.cost.report import cost

    plan = make_plan(arguments)
    report = cost(
        plan,
        hardware=arguments.hardware,
        model=arguments.model,
        overlap=arguments.overlap,
        sets=hardware_settings(arguments, plan.program),
    )
    match arguments.format:
        case "json":
            text = to_json(report.to_dict())
        case "latex":
            text = report.to_latex()
        case "markdown":
            text = report.to_markdown()
        case _:
            to_file = arguments.output is not None
            color = not to_file and wants_color(sys.stdout, forbidden=arguments.no_color)
            text = report.to_text(width=width(), color=color)
    write_result(text, arguments.output)
    return 0
