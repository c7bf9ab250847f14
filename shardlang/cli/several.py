"""Several programs on one command line: each with the arguments that are its own, and a name."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from shardlang.cli.program import read_program
from shardlang.cli.streams import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardlang.cli.arguments import Setting
    from shardlang.ir.program import Program


def read_programs(arguments: Namespace) -> dict[str, tuple[Namespace, Program]]:
    """Read the program of each FILE (or of stdin, or `-e`), by the name that it is shown under.

    With it come its own arguments. Raises `UsageError` and `ShardlangError` as `read_program` does.
    """
    each = _one_by_one(arguments)
    programs = [read_program(one) for one in each]
    return dict(zip(_labels(programs), zip(each, programs, strict=True), strict=True))


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
