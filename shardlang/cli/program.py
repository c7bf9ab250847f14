"""From arguments to a source, a program and a plan."""

from __future__ import annotations

import sys
from argparse import Namespace
from fractions import Fraction
from typing import TYPE_CHECKING

from shardlang.cli.arguments import KEEPING, Setting, SUB_AXES
from shardlang.cli.streams import complain, UsageError
from shardlang.diagnostics import ShardlangError
from shardlang.source import Source

if TYPE_CHECKING:
    from shardlang.cost.report import Report
    from shardlang.ir.plan import Plan
    from shardlang.ir.program import Program
    from shardlang.planner.symbolic import Piecewise

NOT_IN_STAGES = "stages of a pipeline can't send in rings, since they do different work at one time"
"""Why a program with stages has none."""


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
    return open_source(file)


def _typed(text: str) -> Source:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UsageError("the text of -e is not UTF-8") from None
    return Source("<-e>", text)


def open_source(path: str) -> Source:
    """Give a file's text; raise `UsageError` where it can't be opened, `ShardlangError` where it is none."""
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
    sizes = _names(program)
    for item in settings:
        if item.value.denominator != 1 and item.name in sizes:
            raise UsageError(f"--set {item.name}: a size is a whole number")
    return program


def _names(program: Program) -> frozenset[str]:
    return frozenset(info.dim.name for info in program.dims).union(program.mesh.names)


def priced(arguments: Namespace, plan: Plan) -> Report:
    """Price a plan with the hardware and the model of the command line, with rings if asked."""
    from shardlang.cost.report import cost
    from shardlang.cost.rings import overlap

    plan = attending(plan, arguments)
    sets = hardware_settings(arguments, plan.program)
    words = (arguments.overlap or "").split(",")
    if "rings" in words:
        plan = overlap(plan, arguments.hardware, arguments.model, sets)
    return cost(
        plan,
        hardware=arguments.hardware,
        model=arguments.model,
        overlap="axes" if "axes" in words else None,
        sets=sets,
        hbm=getattr(arguments, "hbm", False),
    )


def overlapped(plan: Plan, arguments: Namespace) -> Plan:
    """Do collectives of a plan in rings if `--overlap` says so; where nothing is known, stderr says when it pays."""
    plan = attending(plan, arguments)
    if arguments.rings is None:
        unpriced(arguments, plan.program, "without --overlap")
        return plan
    from shardlang.cost.rings import overlap

    if arguments.rings == "all" and plan.program.pipeline is not None:
        complain(f"warning: no rings: {NOT_IN_STAGES}")
    sets = hardware_settings(arguments, plan.program)
    made = overlap(plan, arguments.hardware, sets=sets, always=arguments.rings == "all")
    for other in made.alternatives[len(plan.alternatives) :]:
        complain(f"warning: not overlapped: {other.instead} pays when {other.cheaper_when}")
    return made


def attending(plan: Plan, arguments: Namespace) -> Plan:
    """Let keys and values go round if `--attention ring` says so; stderr says where there are none."""
    if getattr(arguments, "attention", "gather") == "gather":
        return plan
    from shardlang.passes.ring_attention import with_ring_attention

    made = with_ring_attention(plan)
    if made is plan:
        complain(f"warning: no ring attention: {_no_ring(plan)}")
    return made


def _no_ring(plan: Plan) -> str:
    """Say why no keys and values of a plan go round."""
    from shardlang.ir.ops import Map
    from shardlang.passes.ring_attention import in_between

    if plan.program.pipeline is not None:
        return NOT_IN_STAGES
    step = in_between(plan)
    if step is not None and isinstance(step.op, Map):
        return f"{step.op.function} stands between the scores and their softmax"
    return "no softmax has its keys and values gathered along its dim"


def hardware_settings(arguments: Namespace, program: Program) -> dict[str, Fraction]:
    """Give the `--set`s that mean the hardware: those that are no dim and no axis."""
    names = _names(program)
    settings: list[Setting] = arguments.settings
    return {x.name: x.value for x in settings if x.name not in names}


def unpriced(arguments: Namespace, program: Program, why: str) -> None:
    """Say on stderr which `--set`s mean the hardware, in a command that prices nothing with them."""
    for name in hardware_settings(arguments, program):
        complain(f"warning: --set {name} does nothing {why}")


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
    forward_only = arguments.passes == "forward"
    if arguments.strategy != "optimal" or not open_sizes or program.blocks:
        return None
    from shardlang.passes.update import postpones

    if postpones(program) and not forward_only:
        return None
    if arguments.objective not in (None, "bytes") or arguments.memory_limit is not None:
        return None
    from shardlang.planner.symbolic import plans

    for option in ("budget", "sub_axes"):
        if getattr(arguments, option) is not None:
            name = option.replace("_", "-")
            complain(f"warning: --{name} does nothing where sizes are left open")
    return plans(
        program,
        arguments.prices,
        keep_gathered=KEEPING.get(arguments.keep_gathered),
        forward_only=forward_only,
    )
