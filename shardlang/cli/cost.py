"""`shardlang cost`: what forward and backward cost, in formulas and, with sizes, in numbers."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from typing import Any, TYPE_CHECKING

from shardlang.cli import arguments as options
from shardlang.cli.program import (
    lower_program,
    open_plans,
    priced,
    read_program,
    warned,
)
from shardlang.cli.render import dress, SCHEMA, to_json
from shardlang.cli.streams import wants_color, width, write_result

if TYPE_CHECKING:
    from shardlang.cost.report import Report
    from shardlang.cost.run import Run

NAME = "cost"
HELP = "the cost of each collective, FLOPs, times, the compute-bound condition, memory"


def configure(parser: ArgumentParser) -> None:
    """Declare the options."""
    options.add_source(parser)
    options.add_lowering(parser)
    options.add_model(parser, rings=True)
    parser.add_argument(
        "--timeline",
        action="store_true",
        help="simulate a schedule: what runs when, and what communication stays exposed",
    )
    group = parser.add_argument_group("training run")
    group.add_argument(
        "--tokens",
        metavar="15T",
        type=options.positive,
        help="tokens to train on: steps, days, device-hours and dollars, with MFU and tokens/s",
    )
    group.add_argument(
        "--mfu",
        metavar="0.4",
        type=options.share,
        help="an MFU to expect: the step time that follows from it",
    )
    group.add_argument(
        "--convention",
        metavar="NAME",
        default="model",
        help="the FLOP convention of --mfu (model; --conventions lists them)",
    )
    group.add_argument(
        "--price",
        metavar="4.2",
        type=options.positive,
        help="USD for a device and an hour (by default what the catalogue has)",
    )
    group.add_argument(
        "--measured",
        metavar="12.2s",
        type=options.duration,
        help="the time of a measured step: its MFU, HFU and tokens/s, and its ratio to the bound",
    )
    group.add_argument(
        "--conventions",
        action="store_true",
        help="the FLOPs of a step under each convention that is in use",
    )
    options.add_output(parser)


def run(arguments: Namespace) -> int:
    """Print the report; where sizes are left open for `optimal`, one for each plan with its condition."""
    program = read_program(arguments)
    by_size = open_plans(program, arguments)
    if by_size is None:
        plan = warned(lower_program(program, arguments))
        write_result(_rendered(priced(arguments, plan), arguments), arguments.output)
        return 0
    reports = [priced(arguments, piece.plan) for piece in by_size.pieces]
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
                "pieces": [
                    {**c, **_data(r, arguments)} for c, r in zip(conditions, reports, strict=True)
                ],
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


def _training(report: Report, arguments: Namespace) -> Run | None:
    """Give the training run that is asked for, None where none of its options is there."""
    figures = (arguments.tokens, arguments.mfu, arguments.price)
    if all(figure is None for figure in (*figures, arguments.measured)):
        return None
    return report.run(*figures, convention=arguments.convention, measured=arguments.measured)


def _data(report: Report, arguments: Namespace) -> dict[str, Any]:
    """Give a report as data, with what was asked for beside it."""
    data = report.to_dict()
    if arguments.timeline:
        data["schedule"] = report.schedule().to_dict()
    if arguments.conventions:
        data["conventions"] = report.conventions().to_dict()
    training = _training(report, arguments)
    if training is not None:
        data["run"] = training.to_dict()
    return data


def _rendered(report: Report, arguments: Namespace) -> str:
    if arguments.format == "json":
        return to_json(_data(report, arguments))
    timeline = report.schedule() if arguments.timeline else None
    counts = report.conventions() if arguments.conventions else None
    training = _training(report, arguments)
    match arguments.format:
        case "latex":
            text, form = report.to_latex(), "latex"
        case "markdown":
            text, form = report.to_markdown(), "markdown"
        case _:
            to_file = arguments.output is not None
            color = not to_file and wants_color(sys.stdout, forbidden=arguments.no_color)
            text, form = report.to_text(width=width(), color=color), "text"
    if counts is not None or training is not None:
        from shardlang.backends import report_run

        if counts is not None:
            text += "\n" + report_run.counts(counts, form, width())
        if training is not None:
            text += "\n" + report_run.run(report, training, form, width())
    if timeline is not None:
        from shardlang.backends.report_text import timeline as drawn

        text += "\n" + dress(drawn(timeline, min(width(), 100)), form)
    return text
