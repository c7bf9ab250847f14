"""`shardlang compare`: programs side by side, a row each."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import PurePath
from typing import Any, TYPE_CHECKING

from shardlang.cli import arguments as options
from shardlang.cli.program import hardware_settings, lower_program, names_of, read_program, warned
from shardlang.cli.render import to_json
from shardlang.cli.streams import UsageError, width, write_result

if TYPE_CHECKING:
    from shardlang.ir.plan import Plan

NAME = "compare"
HELP = "programs side by side: FLOPs, bytes, compute-bound conditions, memory, times"


def configure(parser: ArgumentParser) -> None:
    """Declare the options: those of `cost`, for several files."""
    parser.add_argument("files", metavar="FILE", nargs="+", help="a .shd file, two or more of them")
    options.add_sizes(parser)
    options.add_lowering(parser)
    options.add_model(parser)
    options.add_output(parser)


def run(arguments: Namespace) -> int:
    """Print the comparison. A `--set` counts where a program has the name."""
    from shardlang.backends.comparison import Comparison
    from shardlang.cost.report import cost

    reports = {
        name: cost(
            plan,
            hardware=alone.hardware,
            model=alone.model,
            overlap=alone.overlap,
            sets=hardware_settings(alone, plan.program),
        )
        for name, (alone, plan) in _plans(arguments).items()
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


def _plans(arguments: Namespace) -> dict[str, tuple[Namespace, Plan]]:
    """Lower each file, by the name that it is shown under: its stem, or its path where two are alike.

    With it come its own arguments, without what is set of the dims and axes of other programs.
    """
    files: list[str] = arguments.files
    if len(set(files)) < len(files):
        raise UsageError("a file is given twice")
    stems = [PurePath(file).stem for file in files]
    asked = [_alone(arguments, file, settings=[]) for file in files]
    owned = [names_of(read_program(each)) for each in asked]
    every = frozenset[str]().union(*owned)
    found: dict[str, tuple[Namespace, Plan]] = {}
    for file, stem, own in zip(files, stems, owned, strict=True):
        settings = [x for x in arguments.settings if x.name in own or x.name not in every]
        alone = _alone(arguments, file, settings=settings)
        name = stem if stems.count(stem) == 1 else file
        found[name] = alone, warned(lower_program(read_program(alone), alone))
    return found


def _alone(arguments: Namespace, file: str, **changed: Any) -> Namespace:
    return Namespace(**{**vars(arguments), "file": file, "text": None, **changed})
