"""`shardlang plan`: the best meshes of so many chips, and where everything should lie on them."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from typing import Any, TYPE_CHECKING

from shardlang.cli import arguments as options
from shardlang.cli.program import read_program, unpriced
from shardlang.cli.render import dress, SCHEMA, to_json
from shardlang.cli.streams import UsageError, width, write_result

if TYPE_CHECKING:
    from shardlang.planner.meshes import Candidate, Ranking

NAME = "plan"
HELP = "the best meshes of so many chips, and the layouts of weights, inputs and outputs on them"


def configure(parser: ArgumentParser) -> None:
    """Declare the options."""
    options.add_source(parser)
    group = parser.add_argument_group("search")
    group.add_argument(
        "--chips", metavar="N", type=_count, required=True, help="how many chips there are"
    )
    group.add_argument(
        "--top", metavar="5", type=_count, default=5, help="how many answers to print (5)"
    )
    group.add_argument(
        "--axes",
        metavar="2",
        type=_count,
        help="the most mesh axes (those of the program; 2 where it has none)",
    )
    group.add_argument(
        "--layouts",
        choices=("search", "written"),
        default="search",
        help="search where leaves and outputs lie, or take the layouts as they are written",
    )
    group.add_argument(
        "--hbm",
        action="store_true",
        help="rank by times in which no contraction takes less than its reads and writes at W_hbm",
    )
    options.add_lowering(parser)
    parser.set_defaults(strategy="optimal")
    options.add_output(parser)


def _count(text: str) -> int:
    value = options.value(text)
    if value.denominator != 1 or not 1 <= value <= 2**20:
        raise ArgumentTypeError(f"{options.shorten(text)} is not a count such as 64 or 4Ki")
    return int(value)


def run(arguments: Namespace) -> int:
    """Print the best candidates."""
    from shardlang.planner.meshes import best_meshes

    if arguments.objective == "bytes":
        raise UsageError("--objective bytes: meshes are ranked by time, or serial")
    program = read_program(arguments)
    unpriced(arguments, program, "in `plan`, which takes the hardware's own figures")
    found = best_meshes(
        program,
        arguments.chips,
        hardware=arguments.hardware,
        axes=arguments.axes,
        strategy=arguments.strategy,
        objective=arguments.objective or "time",
        prices=arguments.prices,
        memory_limit=arguments.memory_limit,
        keep_gathered=options.KEEPING.get(arguments.keep_gathered),
        layouts=arguments.layouts == "search",
        hbm=arguments.hbm,
        forward_only=arguments.passes == "forward",
        budget=arguments.budget,
    )
    if arguments.format == "json":
        text = to_json({"schema": SCHEMA, **_data(found, arguments.top)})
    else:
        text = dress(_text(found, arguments.top, min(width(), 120)), arguments.format)
    write_result(text, arguments.output)
    return 0


def _data(found: Ranking, top: int) -> dict[str, Any]:
    return {
        "chips": found.chips,
        "hardware": found.hardware,
        "memory_limit": None if found.limit is None else float(found.limit),
        "meshes": found.meshes,
        "finished": found.finished,
        "notes": list(found.notes),
        "candidates": [_candidate(each) for each in found.candidates[:top]],
    }


def _candidate(each: Candidate) -> dict[str, Any]:
    return {
        "mesh": each.mesh,
        "across": [i.axis.name for i in each.plan.program.mesh.axes if i.network == "dcn"],
        "layouts": {array.name: str(array) for array in each.arrays},
        "written": each.written,
        "t_math": float(each.t_math),
        "t_comms": float(each.t_comms),
        "t_overlapped": float(each.t_overlapped),
        "t_serial": float(each.t_serial),
        "memory": float(each.memory),
        "program": str(each.plan),
    }


def _text(found: Ranking, top: int, columns: int) -> str:
    from shardlang.backends.report_text import table, wrap
    from shardlang.backends.units import si

    room = "" if found.limit is None else f" with {si(float(found.limit), 'B')} each"
    chips = "chip" if found.chips == 1 else "chips"
    meshes = "mesh" if found.meshes == 1 else "meshes"
    heading = (
        f"{found.chips} {chips} of {found.hardware}{room}: {found.meshes} {meshes}; times at peak"
        " rates, by the link model; T_overlapped is a lower bound"
    )
    lines = [*wrap(heading, columns), ""]
    shown = found.candidates[:top]
    rows = [["", "mesh", "T_overlapped", "T_math", "T_comms", "T_serial", "memory"]]
    for number, each in enumerate(shown, 1):
        infos = each.plan.program.mesh.axes
        mesh = ", ".join(
            f"{i.axis.name}={i.size}{' @dcn' if i.network == 'dcn' else ''}" for i in infos
        )
        times = (each.t_overlapped, each.t_math, each.t_comms, each.t_serial)
        cells = [si(float(time), "s") for time in times]
        rows.append([f"{number}.", mesh, *cells, si(float(each.memory), "B")])
    aligned = table(rows, columns, (2, 3, 4, 5, 6))
    lines.append(aligned[0])
    for line, each in zip(aligned[1:], shown, strict=False):
        lines.append(line)
        text = "  ".join(str(array).replace(" ", "\u00a0") for array in each.arrays)
        text += "  (as\u00a0written)" if each.written else ""
        lines += [f"    {part}".replace("\u00a0", " ").rstrip() for part in wrap(text, columns - 4)]
    if len(found.candidates) > top:
        lines += ["", f"the best {top} of {len(found.candidates)} answers: --top shows more"]
    lines += [part for note in found.notes for part in ("", *wrap(f"note: {note}", columns))]
    if not found.finished:
        lines += ["", "note: time was over before every mesh was looked at (--budget)"]
    return "\n".join(lines) + "\n"
