"""`shardlang plot`: communication and math over a symbol, their ratio, or a schedule, as a picture."""

from __future__ import annotations

import re
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from dataclasses import dataclass
from fractions import Fraction
from importlib import import_module
from pathlib import PurePath
from typing import Any, cast, TYPE_CHECKING

from shardlang.cli import arguments as options
from shardlang.cli.program import lower_program, priced, resolve_text
from shardlang.cli.render import SCHEMA, to_json
from shardlang.cli.several import read_programs
from shardlang.cli.streams import (
    complain,
    is_terminal,
    UsageError,
    write_bytes,
    write_file,
    write_result,
)
from shardlang.diagnostics import Diagnostic, ShardlangError
from shardlang.source import Source, Span

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardlang.backends.plot.style import Form, Picture
    from shardlang.cost.curves import Version
    from shardlang.cost.report import Report

NAME = "plot"
HELP = "a picture: communication and math over a size, their ratio, or a schedule, as PNG or SVG"
WHAT = ("times", "ratio", "timeline")
FORMS = ("svg", "png", "json")
LEAST, MOST = Fraction(1, 10**30), Fraction(10**30)
"""The numbers that a range may hold."""


@dataclass(frozen=True)
class Range:
    """`--over NAME=LOW:HIGH`."""

    name: str
    low: float
    high: float


@dataclass(frozen=True)
class Split:
    """`--split X*Y=64`: the axes that are chosen, and how many devices they have together."""

    axes: tuple[str, ...]
    devices: int


def configure(parser: ArgumentParser) -> None:
    """Declare the options: those of `cost`, for several files, and what is drawn."""
    options.add_source(parser, several=True)
    group = parser.add_argument_group("picture")
    group.add_argument(
        "--what",
        choices=WHAT,
        default="times",
        help="T_comms and T_math (times, the default), T_math / T_comms (ratio), or what runs when at "
        "given sizes (timeline)",
    )
    group.add_argument(
        "--over",
        metavar="B=10k:10M",
        type=span,
        help="what is varied: a dim, an axis (powers of two) or a hardware figure",
    )
    group.add_argument(
        "--split",
        metavar="X*Y=64",
        type=split,
        help="choose the sizes of these axes at each point, so that the program is fastest",
    )
    group.add_argument("--dark", action="store_true", help="light lines on a dark ground")
    group.add_argument("--width", metavar="INCHES", type=inches, help="of the picture (7.5)")
    group.add_argument("--height", metavar="INCHES", type=inches, help="of the picture (4.8)")
    options.add_lowering(parser)
    options.add_model(parser)
    group = parser.add_argument_group("output")
    group.add_argument(
        "-o", dest="output", metavar="FILE", help="where it is written: a name in .svg or .png"
    )
    group.add_argument(
        "--format", choices=FORMS, help="what is written (by the name's ending); json: the data"
    )
    group.add_argument("--no-color", action="store_true", help="no colors in messages")


def span(text: str) -> Range:
    """Read `NAME=LOW:HIGH`, numbers as elsewhere."""
    found = re.fullmatch(r"\s*([^\W\d]\w*'*)\s*=([^:]+):([^:]+)", text)
    if found is None:
        raise ArgumentTypeError(
            f"{options.shorten(text)} is not NAME=LOW:HIGH, as in B=10k:10M or X=1:256"
        )
    low, high = (options.value(found[i]) for i in (2, 3))
    if low <= 0:
        raise ArgumentTypeError(f"{options.shorten(text)} begins at 0: the axis is logarithmic")
    if not (LEAST <= low <= MOST and LEAST <= high <= MOST):
        raise ArgumentTypeError(f"{options.shorten(text)} leaves the range from 1e-30 to 1e30")
    if low == high:
        raise ArgumentTypeError(f"{options.shorten(text)} is one point; cost has its numbers")
    if low > high:
        turned = f"{found[1]}={found[3].strip()}:{found[2].strip()}"
        raise ArgumentTypeError(f"{options.shorten(text)} runs backwards; write {turned}")
    return Range(found[1], float(low), float(high))


def split(text: str) -> Split:
    """Read `X*Y=64`."""
    left, equals, right = text.partition("=")
    axes = tuple(part.strip() for part in left.split("*"))
    if not equals or not all(re.fullmatch(r"[^\W\d]\w*'*", axis) for axis in axes):
        raise ArgumentTypeError(f"{options.shorten(text)} is not a split such as X*Y=64")
    if len(set(axes)) < len(axes):
        raise ArgumentTypeError(f"{options.shorten(text)} names an axis twice")
    devices = options.value(right)
    if devices.denominator != 1 or not 1 <= devices <= 1 << 24:
        raise ArgumentTypeError(
            f"{options.shorten(text)}: the devices are a whole number from 1 to 16Mi"
        )
    return Split(axes, int(devices))


def inches(text: str) -> float:
    """Read a width or a height."""
    found = options.value(text)
    if not 4 <= found <= 100:
        raise ArgumentTypeError(f"{options.shorten(text)} is not a size in inches from 4 to 100")
    return float(found)


def run(arguments: Namespace) -> int:
    """Write the picture; where it goes to a file, what it shows is printed as text."""
    form = _form(arguments)
    _check(arguments)
    if arguments.what == "timeline":
        data, words, picture = _timeline(arguments, drawn=form != "json")
    else:
        data, words, picture = _curves(arguments, drawn=form != "json")
    if picture is None:
        write_result(to_json({"schema": SCHEMA, "what": arguments.what, **data}), arguments.output)
        return 0
    content = picture.to_bytes(cast("Form", form))
    if arguments.output in (None, "-"):
        write_bytes(content)
        return 0
    write_file(content, arguments.output)
    wide = max(map(len, words))
    write_result("\n".join(f"{name:<{wide}}  {text}" for name, text in words.items()))
    return 0


def _form(arguments: Namespace) -> str:
    """Say what is written; refuse what would fill a terminal with the bytes of a picture."""
    output: str | None = arguments.output
    asked: str | None = arguments.format
    named = output is not None and output != "-"
    ending = PurePath(output or "").suffix.lower()[1:] if named else ""
    if named and asked is None and ending not in FORMS[:2]:
        raise UsageError(f"-o {output}: a picture's name ends in .svg or .png")
    if named and asked is not None and ending != asked and ending in FORMS[:2]:
        raise UsageError(f"-o {output} is no name for --format {asked}")
    form = asked or ending
    if not form:
        raise UsageError("where does the picture go? -o plot.svg, -o plot.png, or --format svg")
    if form == "png" and not named and is_terminal(sys.stdout):
        raise UsageError("a PNG is not for the terminal: -o plot.png")
    return form


def _check(arguments: Namespace) -> None:
    """Refuse options that don't go together."""
    over: Range | None = arguments.over
    chosen: Split | None = arguments.split
    if arguments.what == "timeline":
        if over is not None or chosen is not None:
            raise UsageError("a timeline is of given sizes: --over and --split go with curves")
        return
    if over is None:
        raise UsageError("what is the picture over? --over B=10k:10M")
    if chosen is None:
        return
    if over.name in chosen.axes:
        raise UsageError(f"--over and --split both vary {over.name}")
    settings: list[options.Setting] = arguments.settings
    twice = [item.name for item in settings if item.name in chosen.axes]
    if twice:
        raise UsageError(f"--set and --split both give the size of {twice[0]}")


# Data and pictures ---------------------------------------------------------------------------------


def _curves(
    arguments: Namespace, *, drawn: bool
) -> tuple[dict[str, Any], dict[str, str], Picture | None]:
    from shardlang.backends.plot.words import regime
    from shardlang.cost.curves import chart, Sweep

    over: Range = arguments.over
    found = chart(_versions(arguments), Sweep(over.name, over.low, over.high))
    words = {curve.name: regime(curve, over.name) for curve in found.curves}
    if not drawn:
        return found.to_dict(), words, None
    need_matplotlib()
    from shardlang.backends.plot.curves import figure, SIZE

    size = (arguments.width or SIZE[0], arguments.height or SIZE[1])
    return found.to_dict(), words, figure(found, arguments.what, dark=arguments.dark, size=size)


def _timeline(
    arguments: Namespace, *, drawn: bool
) -> tuple[dict[str, Any], dict[str, str], Picture | None]:
    from shardlang.backends.plot.words import summary
    from shardlang.cost.curves import facts

    said: dict[str, None] = {}
    reports = {
        name: _report(source, alone, said) for name, (source, alone) in _several(arguments).items()
    }
    _complain(said)
    found = {name: report.schedule() for name, report in reports.items()}
    words = {name: summary(each) for name, each in found.items()}
    data = {"schedules": {name: each.to_dict() for name, each in found.items()}}
    if not drawn:
        return data, words, None
    need_matplotlib()
    from shardlang.backends.plot.timeline import timeline, WIDTH

    width: float = arguments.width or WIDTH
    shared = facts(reports.values())
    picture = timeline(found, shared, dark=arguments.dark, width=width, height=arguments.height)
    return data, words, picture


def _several(arguments: Namespace) -> dict[str, tuple[Source, Namespace]]:
    """Give each program's text with its own arguments: a split is resolved anew."""
    return {
        name: (program.source, own) for name, (own, program) in read_programs(arguments).items()
    }


def need_matplotlib() -> None:
    """Refuse to draw where matplotlib is not installed, and say how it comes (SH545)."""
    try:
        import_module("matplotlib")
    except ImportError:
        from shardlang.backends.plot.errors import MatplotlibMissing

        where = Diagnostic(Source("plot", ""), Span(0, 0), MatplotlibMissing())
        raise ShardlangError([where]) from None


def _report(source: Source, alone: Namespace, said: dict[str, None]) -> Report:
    """Price a program as its arguments have it; what is to be said of it is collected."""
    plan = lower_program(resolve_text(source, alone), alone)
    report = priced(alone, plan)
    said.update(dict.fromkeys((*plan.warnings, *report.warnings)))
    return report


def _complain(said: dict[str, None]) -> None:
    for warning in said:
        complain(f"warning: {warning}")


def _versions(arguments: Namespace) -> dict[str, Sequence[Version]]:
    """Price each program, where axes are split in every way that its mesh allows."""
    from shardlang.cost.curves import Version

    said: dict[str, None] = {}
    found: dict[str, Sequence[Version]] = {}
    programs = _several(arguments)
    chosen: Split | None = arguments.split
    own = {
        name: _own(source, alone, chosen) if chosen else ()
        for name, (source, alone) in programs.items()
    }
    if chosen is not None:
        _refuse_unknown(chosen, own)
    for name, (source, alone) in programs.items():
        axes = own[name]
        if chosen is None or not axes:
            found[name] = [Version(_report(source, alone, said))]
        else:
            found[name] = _split_versions(source, alone, axes, chosen.devices, said)
    _complain(said)
    return found


def _own(source: Source, alone: Namespace, chosen: Split) -> tuple[str, ...]:
    """List the axes of a split that a program has."""
    names = resolve_text(source, alone).mesh.names
    return tuple(axis for axis in chosen.axes if axis in names)


def _refuse_unknown(chosen: Split, own: dict[str, tuple[str, ...]]) -> None:
    from shardlang.cost.errors import NotAnAxis

    known = {axis for axes in own.values() for axis in axes}
    for axis in chosen.axes:
        if axis not in known:
            where = Source("--split", axis)
            mistake = NotAnAxis(axis, ())
            raise ShardlangError([Diagnostic(where, Span(0, len(axis)), mistake)])


def _split_versions(
    source: Source, alone: Namespace, axes: tuple[str, ...], devices: int, said: dict[str, None]
) -> list[Version]:
    """Price a program under each split, but for those that don't fit its dims or the hardware's slice."""
    from shardlang.cost.curves import splits, Version
    from shardlang.frontend.declaration_errors import NotDivisible
    from shardlang.hardware.errors import NotLaid

    found: list[Version] = []
    refused: ShardlangError | None = None
    for sizes in splits(axes, devices):
        settings = [options.Setting(axis, Fraction(size)) for axis, size in sizes.items()]
        one = Namespace(**{**vars(alone), "settings": [*alone.settings, *settings]})
        try:
            found.append(Version(_report(source, one, said), sizes))
        except ShardlangError as error:
            if not all(
                isinstance(each.mistake, NotLaid | NotDivisible) for each in error.diagnostics
            ):
                raise
            refused = error
    if not found and refused is not None:
        raise refused
    return found
