"""`shardlang hardware`: the catalogue, one chip with its sources, or chips side by side."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from shardlang.cli import arguments as options
from shardlang.cli.render import SCHEMA, to_json
from shardlang.cli.streams import width, write_result

NAME = "hardware"
HELP = "the catalogue of hardware, with a source for each figure"


def configure(parser: ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "names",
        metavar="NAME",
        nargs="*",
        help="one chip (or a TOML file) with its sources; several are compared. "
        "NAME:VARIANT has other figures, as in tpu_v5p:spec",
    )
    options.add_output(parser)


def run(arguments: Namespace) -> int:
    """Print the catalogue, one chip of it, or a comparison."""
    from shardlang.backends.hardware_tables import described, render
    from shardlang.hardware.catalogue import known_hardware, load_hardware

    names: list[str] = arguments.names
    chips = [load_hardware(name) for name in names or known_hardware()]
    if arguments.format == "json":
        text = to_json({"schema": SCHEMA, "hardware": [described(chip) for chip in chips]})
    else:
        view = "list" if not names else "one" if len(names) == 1 else "compared"
        text = render(chips, view, arguments.format, width())
    write_result(text, arguments.output)
    return 0
