"""`shardlang hardware`: the catalogue, with a source for each figure."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any, TYPE_CHECKING

from shardlang.cli import arguments as options
from shardlang.cli.render import dress, SCHEMA, to_json
from shardlang.cli.streams import write_result

if TYPE_CHECKING:
    from shardlang.hardware.catalogue import Hardware

NAME = "hardware"
HELP = "the catalogue of hardware, with a source for each figure"


def configure(parser: ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "name", metavar="NAME", nargs="?", help="one chip (or a TOML file) with its sources"
    )
    options.add_output(parser)


def run(arguments: Namespace) -> int:
    """Print the catalogue, or one chip of it."""
    from shardlang.hardware.catalogue import hardware_text, known_hardware, load_hardware

    name: str | None = arguments.name
    names = known_hardware() if name is None else (name,)
    match arguments.format:
        case "json":
            chips = [_described(load_hardware(chip)) for chip in names]
            text = to_json({"schema": SCHEMA, "hardware": chips})
        case "markdown":
            text = _table([load_hardware(chip) for chip in names])
        case form:
            text = dress(hardware_text(name), form)
    write_result(text, arguments.output)
    return 0


def _figures(chip: Hardware) -> dict[str, Any]:
    peaks = {f"flops.{dtype}": figure for dtype, figure in chip.flops.items()}
    return {**peaks, **chip.figures}


def _described(chip: Hardware) -> dict[str, Any]:
    figures = {
        key: {"value": figure.value, "unit": figure.unit, "source": figure.source}
        for key, figure in _figures(chip).items()
    }
    return {"name": chip.name, "title": chip.title, "figures": figures}


def _table(chips: list[Hardware]) -> str:
    rows = ["| chip | figure | value | unit | source |", "| --- | --- | ---: | --- | --- |"]
    rows += [
        f"| {chip.name} | {key} | {figure.value:.4g} | {figure.unit} | {figure.source} |"
        for chip in chips
        for key, figure in _figures(chip).items()
    ]
    return "\n".join(rows) + "\n"
