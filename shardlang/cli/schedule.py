"""`shardlang schedule`: schedules of a pipeline, drawn and compared."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from dataclasses import dataclass
from fractions import Fraction
from pathlib import PurePath
from typing import TYPE_CHECKING

from shardlang.cli import arguments as options
from shardlang.cli.render import dress, SCHEMA, to_json
from shardlang.cli.streams import UsageError, width, write_file, write_result
from shardlang.diagnostics import Diagnostic, Mistake, ShardlangError
from shardlang.source import Source, Span

if TYPE_CHECKING:
    from shardlang.backends.plot.style import Form
    from shardlang.cost.quantities import Quantity
    from shardlang.pipelines.compare import Found
    from shardlang.pipelines.schedules import Durations

NAME = "schedule"
HELP = "schedules of a pipeline: who does what when, the bubble, and what each stage holds"
PICTURES = ("svg", "png")
CHUNKS = 2
"""How many chunks a stage has in a schedule with several, where nobody says it."""


def configure(parser: ArgumentParser) -> None:
    """Declare the options."""
    options.add_source(parser)
    group = parser.add_argument_group("pipeline")
    group.add_argument("--stages", metavar="4", type=count, help="how many stages")
    group.add_argument("--microbatches", metavar="8", type=count, help="how many microbatches")
    group.add_argument("--schedule", metavar="1f1b", help="which one is drawn")
    group.add_argument("--chunks", metavar="2", type=count, help="chunks a stage (interleaved)")
    group.add_argument(
        "--times",
        metavar="F,B,W[,SEND]",
        type=durations,
        help="what forward, dX and dW of a microbatch take on a stage, and sending to the next (1,1,1,0; "
        "of a file its plan's)",
    )
    options.add_lowering(parser)
    options.add_model(parser)
    options.add_output(parser)
    group = parser.add_argument_group("picture")
    group.add_argument("--dark", action="store_true", help="light on a dark ground (-o x.svg)")


def count(text: str) -> int:
    """Read a whole number."""
    found = options.value(text)
    if found.denominator != 1 or not 1 <= found <= 10**6:
        raise ArgumentTypeError(f"{options.shorten(text)} is not a whole number from 1 to 1M")
    return int(found)


def durations(text: str) -> tuple[Fraction, ...]:
    """Read three or four times by commas."""
    found = tuple(options.value(each) for each in text.split(","))
    if len(found) not in (3, 4) or not sum(found[:3]):
        raise ArgumentTypeError(
            f"{options.shorten(text)} is not F,B,W or F,B,W,SEND, such as 1,1,1 or 2,2,1,0.1"
        )
    return found


def run(arguments: Namespace) -> int:
    """Print the schedules, or draw one."""
    from shardlang.backends.pipeline_text import render
    from shardlang.pipelines.compare import compare, find, Found
    from shardlang.pipelines.schedules import Schedule, schedule_of

    asked = _of_file(arguments) if _has_program(arguments) else _of_options(arguments)
    chunks, taken = asked.chunks or CHUNKS, asked.durations
    chosen: Found | None = None
    if asked.schedule is not None:
        row = schedule_of(asked.schedule)
        if not isinstance(row, Schedule):
            raise _wrong("--schedule", asked.schedule, row)
        own = asked.chunks or (CHUNKS if row.chunked else 1)
        found = find(row, asked.stages, asked.microbatches, own, taken)
        if not isinstance(found, Found):
            raise _wrong("--schedule", asked.schedule, found.mistake)
        chosen = found
    picture = _picture(arguments)
    if picture is not None:
        if chosen is None:
            raise UsageError("which schedule is drawn? --schedule 1f1b")
        _draw(chosen, picture, asked.unit, arguments)
        return 0
    compared = compare(asked.stages, asked.microbatches, chunks, taken)
    if arguments.format == "json":
        text = to_json(
            {
                "schema": SCHEMA,
                "times": _times(taken),
                "unit": asked.unit or None,
                "chosen": None if chosen is None else chosen.schedule.name,
                "schedules": [each.to_dict() for each in compared.values()],
                "events": [] if chosen is None else list(chosen.events()),
            }
        )
    else:
        text = dress(render(chosen, compared, width(), asked.unit), arguments.format)
    write_result(text, arguments.output)
    return 0


def _times(taken: Durations) -> dict[str, float]:
    return {
        "F": float(taken.forward),
        "B": float(taken.input),
        "W": float(taken.weights),
        "send": float(taken.send),
    }


@dataclass(frozen=True)
class Asked:
    """What is to be scheduled; `unit` is that of the durations, where they have one."""

    stages: int
    microbatches: int
    schedule: str | None
    chunks: int | None
    durations: Durations
    unit: str = ""


def _has_program(arguments: Namespace) -> bool:
    return arguments.file is not None or arguments.text is not None


def _of_options(arguments: Namespace) -> Asked:
    """Take the numbers of the command line."""
    from shardlang.pipelines.schedules import Durations

    if arguments.stages is None or arguments.microbatches is None:
        raise UsageError("how long is the pipeline? --stages 4 --microbatches 8, or name a file")
    taken = Durations(*arguments.times) if arguments.times else Durations()
    schedule, chunks = arguments.schedule, arguments.chunks
    return Asked(arguments.stages, arguments.microbatches, schedule, chunks, taken)


def _of_file(arguments: Namespace) -> Asked:
    """Take the numbers of a program's pipeline; what stands on the command line goes first."""
    from shardlang.cli.program import make_plan, priced
    from shardlang.cost.pipeline import durations as planned
    from shardlang.pipelines.schedules import Durations

    report = priced(arguments, make_plan(arguments))
    found = report.pipeline
    if found is None:
        raise UsageError(
            "this program has no pipeline: its layers are on stages with `layers L_Z:`"
        )
    stages = arguments.stages or _whole(found.stages, "stages", "--set Z=4 or --stages 4")
    microbatches = arguments.microbatches or _whole(
        found.microbatches, "microbatches", "--set i=8 or --microbatches 8"
    )
    schedule = arguments.schedule or found.schedule.name
    own = found.pipeline.chunks if schedule == found.schedule.name else 1
    chunks = arguments.chunks or (own if own > 1 else None)
    if arguments.times:
        return Asked(stages, microbatches, schedule, chunks, Durations(*arguments.times))
    taken = planned(report)
    if taken is None or not taken.all:
        return Asked(stages, microbatches, schedule, chunks, Durations())
    return Asked(stages, microbatches, schedule, chunks, taken, "s")


def _whole(quantity: Quantity, what: str, how: str) -> int:
    if quantity.value is None:
        raise UsageError(f"the number of {what}, {quantity}, is not known: {how}")
    return int(quantity.value)


def _picture(arguments: Namespace) -> Form | None:
    """Say which picture is asked for by the name of the output."""
    output: str | None = arguments.output
    ending = PurePath(output or "").suffix.lower()[1:]
    return ending if ending in PICTURES else None


def _draw(found: Found, form: Form, unit: str, arguments: Namespace) -> None:
    from shardlang.backends.plot.pipeline import pipeline
    from shardlang.cli.plot import need_matplotlib

    need_matplotlib()
    write_file(pipeline(found, unit=unit, dark=arguments.dark).to_bytes(form), arguments.output)


def _wrong(option: str, text: str, mistake: Mistake) -> ShardlangError:
    return ShardlangError([Diagnostic(Source(option, text), Span(0, len(text)), mistake)])
