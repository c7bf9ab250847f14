"""`shardlang cost`: what forward and backward cost, in formulas and, with sizes, in numbers."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from shardlang.cli import arguments as options
from shardlang.cli.program import (
    hardware_settings,
    lower_program,
    open_plans,
    read_program,
    warned,
)
from shardlang.cli.render import dress, SCHEMA, to_json
from shardlang.cli.streams import wants_color, width, write_result

if TYPE_CHECKING:
    from shardlang.cost.report import Report
    from shardlang.ir.plan import Plan

NAME = "cost"
HELP = "the cost of each collective, FLOPs, times, the compute-bound condition, memory"


def configure(parser: ArgumentParser) -> None:
    """Declare the options."""
    options.add_source(parser)
    options.add_lowering(parser)
    options.add_model(parser)
    parser.add_argument(
        "--timeline",
        action="store_true",
        help="simulate a schedule: what runs when, and what communication stays exposed",
    )
    parser.add_argument(
        "--hbm",
        action="store_true",
        help="no contraction takes less than its reads and writes do at W_hbm; shows what bounds each",
    )
    options.add_output(parser)


def run(arguments: Namespace) -> int:
    """Print the report; where sizes are left open for `optimal`, one for each plan with its condition."""
    program = read_program(arguments)
    by_size = open_plans(program, arguments)
    if by_size is None:
        plan = warned(lower_program(program, arguments))
        write_result(_rendered(_report(plan, arguments), arguments), arguments.output)
        return 0
    reports = [_report(piece.plan, arguments) for piece in by_size.pieces]
    if arguments.format == "json":
        conditions = [
            {"condition": piece.text, "bytes": str(piece.cost)} for piece in by_size.pieces
        ]
        text = to_json(
            {
                "schema": SCHEMA,
                "strategy": "optimal",
                "prices": by_size.prices,
                "assumed": list(by_size.assumed),
                "complete": by_size.complete,
                "pieces": [{**c, **r.to_dict()} for c, r in zip(conditions, reports, strict=True)],
            }
        )
    else:
        mark = {"latex": "% ", "markdown": "    // "}.get(arguments.format, "// ")
        headings = [by_size.heading(), *(piece.heading(by_size.prices) for piece in by_size.pieces)]
        first, *rest = ["".join(mark + x[3:] + "\n" for x in h.splitlines()) for h in headings]
        parts = [f"{h}\n{_rendered(r, arguments)}" for h, r in zip(rest, reports, strict=True)]
        text = "\n".join([first, *parts])
    write_result(text, arguments.output)
    return 0


def _report(plan: Plan, arguments: Namespace) -> Report:
    from shardlang.cost.report import cost

    return cost(
        plan,
        hardware=arguments.hardware,
        model=arguments.model,
        overlap=arguments.overlap,
        sets=hardware_settings(arguments, plan.program),
        hbm=arguments.hbm,
    )


def _rendered(report: Report, arguments: Namespace) -> str:
    timeline = report.schedule() if arguments.timeline else None
    match arguments.format:
        case "json":
            data = report.to_dict()
            if timeline is not None:
                data["schedule"] = timeline.to_dict()
            return to_json(data)
        case "latex":
            text, form = report.to_latex(), "latex"
        case "markdown":
            text, form = report.to_markdown(), "markdown"
        case _:
            to_file = arguments.output is not None
            color = not to_file and wants_color(sys.stdout, forbidden=arguments.no_color)
            text, form = report.to_text(width=width(), color=color), "text"
    if timeline is not None:
        from shardlang.backends.report_text import timeline as drawn

        text += "\n" + dress(drawn(timeline, min(width(), 100)), form)
    return text
