"""From arguments to a source, a program and a plan."""

from __future__ import annotations

import sys
from argparse import Namespace
from fractions import Fraction
from pathlib import PurePath
from typing import Any, TYPE_CHECKING

from shardlang.cli.arguments import KEEPING, Setting, SUB_AXES
from shardlang.cli.streams import complain, UsageError
from shardlang.diagnostics import ShardlangError
from shardlang.source import Source

if TYPE_CHECKING:
    from shardlang.cost.report import Report
    from shardlang.ir.plan import Plan
    from shardlang.ir.program import Program
    from shardlang.planner.symbolic import Piecewise


def read_text(arguments: Namespace) -> Source:
    """Give the text that the command line names: a file, stdin, or `-e`.

    Raises `UsageError` where there is none, two, or one that can't be opened, and
    `ShardlangError` where it is no text.
    """
    file: str | None = arguments.file
    lines: list[str] | None = arguments.text
    if lines is not None:
        if file is not None:
            raise UsageError("a file and -e are both given: use one of them")
        return _typed("\n".join(lines))
    if file is None:
        raise UsageError("no program given: name a .shd file, - for stdin, or -e 'one line'")
    # The standard streams are None where the caller closed them; the type stubs don't say so.
    if file == "-" and getattr(sys, "stdin", None) is None:
        raise UsageError("there is no standard input to read")
    return _opened(file)


def _typed(text: str) -> Source:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UsageError("the text of -e is not UTF-8") from None
    return Source("<-e>", text)


def _opened(path: str) -> Source:
    from shardlang.frontend.files import read_source
    from shardlang.frontend.parse_errors import CannotRead, IsADirectory, NoSuchFile

    try:
        return read_source(path)
    except ShardlangError as error:
        mistake = error.diagnostics[0].mistake
        if isinstance(mistake, NoSuchFile | IsADirectory | CannotRead):
            raise UsageError(mistake.message()) from None
        raise


def read_program(arguments: Namespace) -> Program:
    """Read and resolve the program with `--set`, `--mesh` and `--hardware` over it."""
    return resolve_text(read_text(arguments), arguments)


def resolve_text(source: Source, arguments: Namespace) -> Program:
    """Resolve a text with the overrides of the command line.

    Raises `ShardlangError` for what the text has wrong, `UsageError` for a `--set` of a name that
    the program does not have.
    """
    from shardlang.frontend.parser import parse
    from shardlang.frontend.resolve import Overrides, resolve

    settings: list[Setting] = arguments.settings
    overrides = Overrides(
        sizes={x.name: x.value.numerator for x in settings if x.value.denominator == 1},
        mesh=arguments.mesh,
        hardware=arguments.hardware,
        forward_only=arguments.passes == "forward",
    )
    program = resolve(parse(source), source, overrides)
    sizes = names_of(program)
    for item in settings:
        if item.value.denominator != 1 and item.name in sizes:
            raise UsageError(f"--set {item.name}: a size is a whole number")
    return program


def names_of(program: Program) -> frozenset[str]:
    """List the dims and axes of a program by name."""
    return frozenset(info.dim.name for info in program.dims).union(program.mesh.names)


def several(arguments: Namespace) -> dict[str, tuple[Source, Namespace]]:
    """Read the files of a command that takes several, by the names that they are shown under.

    That is a file's stem, or its path where two are alike. With each text come its own arguments, without
    what is set of the dims and axes of other programs.
    """
    files: list[str] = arguments.files
    if len(set(files)) < len(files):
        raise UsageError("a file is given twice")
    stems = ["stdin" if file == "-" else PurePath(file).stem for file in files]
    bare = [_alone(arguments, file, settings=[]) for file in files]
    sources = [read_text(each) for each in bare]
    programs = [resolve_text(source, each) for source, each in zip(sources, bare, strict=True)]
    owned = [names_of(each).union(f"M_{axis}" for axis in each.mesh.names) for each in programs]
    every = frozenset[str]().union(*owned)
    found: dict[str, tuple[Source, Namespace]] = {}
    for file, stem, source, own in zip(files, stems, sources, owned, strict=True):
        settings = [x for x in arguments.settings if x.name in own or x.name not in every]
        name = stem if stems.count(stem) == 1 else file
        found[name] = source, _alone(arguments, file, settings=settings)
    return found


def _alone(arguments: Namespace, file: str, **changed: Any) -> Namespace:
    return Namespace(**{**vars(arguments), "file": file, "text": None, **changed})


def priced(arguments: Namespace, plan: Plan) -> Report:
    """Price a plan with the hardware and the model of the command line."""
    from shardlang.cost.report import cost

    return cost(
        plan,
        hardware=arguments.hardware,
        model=arguments.model,
        overlap=arguments.overlap,
        sets=hardware_settings(arguments, plan.program),
    )


def hardware_settings(arguments: Namespace, program: Program) -> dict[str, Fraction]:
    """Give the `--set`s that mean the hardware: those that are no dim and no axis."""
    names = names_of(program)
    settings: list[Setting] = arguments.settings
    return {x.name: x.value for x in settings if x.name not in names}


def given_sizes(arguments: Namespace, program: Program) -> dict[str, int]:
    """Give the sizes of dims and axes that stand on the command line, by `--set` or `--mesh`."""
    settings: list[Setting] = arguments.settings
    names = {x.name for x in settings}
    if arguments.mesh is not None:
        names.update(program.mesh.names)
    return {name: size for name, size in program.sizes.known.items() if name in names}


def make_plan(arguments: Namespace) -> Plan:
    """Lower the program that the command line names; the plan's warnings go to stderr."""
    return warned(lower_program(read_program(arguments), arguments))


def warned(plan: Plan) -> Plan:
    """Give a plan, its warnings on stderr."""
    for warning in plan.warnings:
        complain(f"warning: {warning}")
    return plan


def lower_program(program: Program, arguments: Namespace) -> Plan:
    """Lower a program with the strategy and the passes that were asked for."""
    from shardlang import lower

    return lower(
        program,
        arguments.strategy,
        keep_gathered=KEEPING.get(arguments.keep_gathered),
        forward_only=arguments.passes == "forward",
        prices=arguments.prices,
        objective=arguments.objective,
        budget=arguments.budget,
        memory_limit=arguments.memory_limit,
        sub_axes=SUB_AXES.get(arguments.sub_axes),
    )


def open_plans(program: Program, arguments: Namespace) -> Piecewise | None:
    """Give the plans by size that `optimal` has where sizes are left open; None where it has one plan.

    Raises `ShardlangError` where a program is beyond what can be answered for.
    """
    open_sizes = [info.size for info in (*program.mesh.axes, *program.dims) if info.size is None]
    if arguments.strategy != "optimal" or not open_sizes:
        return None
    if arguments.objective not in (None, "bytes") or arguments.memory_limit is not None:
        return None
    from shardlang.planner.symbolic import plans

    return plans(
        program,
        arguments.prices,
        keep_gathered=KEEPING.get(arguments.keep_gathered),
        forward_only=arguments.passes == "forward",
    )
