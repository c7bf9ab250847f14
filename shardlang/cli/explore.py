"""`shardlang explore`: a page that computes the costs of programs in the browser."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from shardlang.cli import arguments as options
from shardlang.cli.program import hardware_settings, lower_program, read_program, warned
from shardlang.cli.streams import UsageError, write_result

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardlang.cli.arguments import Setting
    from shardlang.ir.program import Program

NAME = "explore"
HELP = "a web page with sliders for sizes, mesh and hardware, which works without a network"


def configure(parser: ArgumentParser) -> None:
    """Declare the options."""
    options.add_source(parser, several=True)
    options.add_lowering(parser)
    options.add_model(parser)
    group = parser.add_argument_group("output")
    group.add_argument("-o", dest="output", metavar="FILE", help="write the page to a file")
    group.add_argument("--no-color", action="store_true", help="no colors (nor with NO_COLOR set)")


def run(arguments: Namespace) -> int:
    """Write the page of one program, or of several side by side."""
    from shardlang.backends.explore.data import Subject
    from shardlang.backends.explore.page import page

    each = _one_by_one(arguments)
    programs = [read_program(one) for one in each]
    subjects = [
        Subject(label, warned(lower_program(program, one)), hardware_settings(one, program))
        for one, program, label in zip(each, programs, _labels(programs), strict=True)
    ]
    text = page(subjects, arguments.hardware, arguments.model, arguments.overlap)
    write_result(text, arguments.output)
    return 0


def _one_by_one(arguments: Namespace) -> list[Namespace]:
    """Give the arguments as they are for each program alone.

    Of several programs each is set what it has a use for: `--set Y=4` leaves one without a Y as it is.
    """
    files: list[str] = arguments.files
    if files.count("-") > 1:
        raise UsageError("standard input can be read once: name - once")
    if len(files) < 2:
        return [Namespace(**vars(arguments), file=files[0] if files else None)]
    if "-" in files:
        raise UsageError("several programs are read from files: save what - stands for")
    each = [Namespace(**vars(arguments), file=file) for file in files]
    settings: list[Setting] = arguments.settings
    names = [_names(read_program(Namespace(**{**vars(one), "settings": []}))) for one in each]
    every = frozenset[str]().union(*names)
    for one, own in zip(each, names, strict=True):
        one.settings = [x for x in settings if x.name in own or x.name not in every]
    return each


def _names(program: Program) -> frozenset[str]:
    """Give the names that `--set` can have in a program alone: its dims, its axes, M_X of an axis X."""
    axes = program.mesh.names
    dims = (info.dim.name for info in program.dims)
    return frozenset((*dims, *axes, *(f"M_{axis}" for axis in axes)))


def _labels(programs: Sequence[Program]) -> list[str]:
    """Name programs by their files: without folder and ending, where they still differ then."""
    names = [program.source.name for program in programs]
    stems = ["program" if name in ("<-e>", "<stdin>") else Path(name).stem for name in names]
    labels = stems if len(set(stems)) == len(stems) else names
    return [
        label if labels.count(label) == 1 else f"{label} ({labels[: i + 1].count(label)})"
        for i, label in enumerate(labels)
    ]
