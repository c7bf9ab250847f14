"""`shardlang calibrate`: efficiencies from a table of measured runs, and how well they explain them."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from shardlang.cli import arguments as options
from shardlang.cli.render import SCHEMA, to_json
from shardlang.cli.streams import width, write_result

NAME = "calibrate"
HELP = "efficiencies (E_math, E_ici, ...) fitted to a table of measured runs"


def configure(parser: ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "table",
        metavar="TABLE",
        help="a TOML file with [[run]]s (program, seconds, hardware, set) or a CSV file with such columns",
    )
    parser.add_argument(
        "--fit",
        metavar="E_math,E_ici",
        default="E_math,E_ici",
        help="what is fitted: of E_math, E_ici, E_dcn, E_hbm, T_hop, T_dcn",
    )
    parser.add_argument(
        "--time",
        choices=("overlapped", "serial"),
        default="overlapped",
        help="the time that is to be the measured one: T_overlapped (default) or T_serial",
    )
    options.add_output(parser, ("text", "json", "latex", "markdown"))


def run(arguments: Namespace) -> int:
    """Print the fit."""
    from shardlang.backends.calibration import render
    from shardlang.cost.calibrate import calibrate
    from shardlang.cost.samples import read_samples

    names = [name.strip() for name in arguments.fit.split(",") if name.strip()]
    found = calibrate(read_samples(arguments.table), names, arguments.time)
    if arguments.format == "json":
        text = to_json({"schema": SCHEMA, **found.to_dict()})
    else:
        text = render(found, arguments.format, width())
    write_result(text, arguments.output)
    return 0
