"""Schedules of pipelines as text: who does what when, and what each schedule comes to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import gcd, lcm

from shardlang.backends.report_text import wrap
from shardlang.backends.units import si
from shardlang.pipelines.compare import Found, Refused
from shardlang.pipelines.simulate import Event, Run

WAITS = "·"
FILL = {"F": "-", "B": "-", "W": "-", "BW": "="}
BANDS = 3
"""Into how many bands a picture is cut at the most."""


def render(
    chosen: Found | None, compared: Mapping[str, Found | Refused], width: int = 80, unit: str = ""
) -> str:
    """Draw a schedule, and list all of them; `unit` is that of the durations, where they have one."""
    lines: list[str] = []
    if chosen is not None:
        scale = Scale.of(chosen.run, width)
        lines += [*wrap(_title(chosen), width), "", *drawing(chosen.run, scale), ""]
        if unit:
            lines += [*wrap(times(chosen, unit), width), ""]
        lines += [*wrap(_legend(chosen.run, numbered=scale.numbered), width), ""]
    lines += _table(compared, chosen, width)
    return "\n".join(lines) + "\n"


def _title(found: Found) -> str:
    table, run = found.run.table, found.run
    chunks = f", {table.chunks} chunks each" if found.schedule.chunked else ""
    ways = ", from both ends" if table.weights > 1 else ""
    held = max(run.held)
    where = ", from a stage's first work to its last" if found.schedule.flowing else ""
    return (
        f"{found.schedule.name}: {table.stages} stages{chunks}{ways}, {table.microbatches} microbatches. "
        f"Bubble {percent(found.bubble)}{exactly(found.bubble)}{where}; a stage holds up to {_plain(held)} "
        f"microbatches."
    )


def _legend(run: Run, *, numbered: bool) -> str:
    """Say what the picture's signs mean."""
    kinds = {event.work.kind for row in run.events for event in row}
    words = ["F forward"]
    if "BW" in kinds:
        words.append("B== backward" if numbered else "B backward")
    if "B" in kinds:
        words += ["B-- dX alone" if "BW" in kinds and numbered else "B dX", "W dW"]
    words.append(f"{WAITS} waits")
    said = ", ".join(words)
    if numbered:
        said += "; with the number of the microbatch"
        said += " and the letter of the chunk" if run.table.lettered else ""
    return said


def exactly(share: Fraction) -> str:
    """Print a share as a fraction in brackets, where it is a short one; else nothing."""
    return f" ({share})" if share.denominator < 10_000 else ""


def percent(share: Fraction) -> str:
    """Print a share."""
    return f"{float(100 * share):.1f}%"


def _plain(value: Fraction) -> str:
    return str(value) if value.denominator == 1 else f"{float(value):.4g}"


# ---- The picture ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scale:
    """How a picture is laid out: `left` columns of names, and `room` for the work, `columns` a unit of time.

    Each piece of work is a whole number of columns where there is room for that: wide enough for its
    number if the picture is then cut into few bands, else one column a unit of time. Where times have no common
    unit, the shortest work takes a column, if that is not too wide either; else all is squeezed into one band.
    """

    left: int
    room: int
    columns: Fraction
    numbered: bool

    @staticmethod
    def of(run: Run, width: int) -> Scale:
        """Choose for a width in columns."""
        left = len(str(run.table.stages - 1)) + len("stage ") + 1
        room = max(width - left, 20)
        unit = _unit(run)
        units = int(run.seconds / unit)
        events = [event for row in run.events for event in row if event.end > event.start]
        needed = max(
            -(-len(_label(event, run)) // int((event.end - event.start) / unit)) for event in events
        )
        if units * needed <= BANDS * room:
            return Scale(left, room - room % needed, needed / unit, numbered=True)
        shortest = min(event.end - event.start for event in events)
        for column in (unit, shortest):
            if run.seconds <= BANDS * room * column:
                return Scale(left, room, 1 / column, numbered=False)
        return Scale(left, room, room / run.seconds, numbered=False)


def drawing(run: Run, scale: Scale) -> list[str]:
    """Draw who does what when, a line a stage; what is too wide is cut into bands below each other."""
    columns = round(run.seconds * scale.columns)
    rows = [_row(row, run, scale, columns) for row in run.events]
    lines: list[str] = []
    for start in range(0, columns, scale.room):
        if start:
            lines.append("")
        for stage, row in enumerate(rows):
            name = f"stage {stage}".ljust(scale.left)
            lines.append(f"{name}{row[start : start + scale.room]}")
    return lines


def _unit(run: Run) -> Fraction:
    """Give the longest time of which all times in the picture are multiples."""
    times = {time for row in run.events for e in row for time in (e.start, e.end)}
    below = lcm(*(time.denominator for time in times))
    return Fraction(gcd(*(int(time * below) for time in times)), below)


def _label(event: Event, run: Run) -> str:
    return event.work.text(chunks=run.table.lettered).replace("BW", "B")


def _row(events: Iterable[Event], run: Run, scale: Scale, columns: int) -> str:
    cells = [WAITS] * columns
    for event in events:
        start, end = (round(time * scale.columns) for time in (event.start, event.end))
        kind = event.work.kind
        room = end - start
        text = _label(event, run).ljust(room, FILL[kind]) if scale.numbered else kind[0] * room
        cells[start:end] = text
    return "".join(cells)


# ---- The table ------------------------------------------------------------------------------------


def _table(
    compared: Mapping[str, Found | Refused], chosen: Found | None, width: int
) -> Iterator[str]:
    """List what each schedule comes to; what does not take these numbers says why below."""
    found = [each for each in compared.values() if isinstance(each, Found)]
    refused = [each for each in compared.values() if isinstance(each, Refused)]
    rows = [("", "schedule", "bubble", "by formula", "idle of a stage", "held", "weights")]
    for each in found:
        mark = ">" if chosen is not None and each.schedule == chosen.schedule else ""
        about = "" if each.exact else "~"
        rows.append(
            (
                mark,
                each.schedule.name + ("*" if each.schedule.flowing else ""),
                percent(each.bubble),
                about + percent(each.claimed),
                each.schedule.formula,
                _plain(max(each.run.held)),
                f"{_plain(each.run.table.weights)}x",
            )
        )
    if found:
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        for row in rows:
            cells = [
                cell.ljust(wide) if i in (0, 1, 4) else cell.rjust(wide)
                for i, (cell, wide) in enumerate(zip(row, widths, strict=True))
            ]
            yield (f"{cells[0]} " if widths[0] else "") + "  ".join(cells[1:]).rstrip()
    for each in refused:
        yield from wrap(f"not {each.schedule.name}: {each.mistake.message()}", width)
    yield ""
    yield from wrap(_notes(found), width)


def _notes(found: Iterable[Found]) -> str:
    """Say what the columns mean."""
    listed = list(found)
    words = ["held: the most microbatches whose activations a stage holds"]
    words.append("p stages, v chunks; F, B (dX) and W (dW) of one microbatch")
    rough = [e for e in listed if not e.exact]
    if any(each.run.durations.send for each in rough):
        words.append("~ formulas leave sending out")
    words += [
        f"~ {e.schedule.name}'s formula is exact where {e.schedule.needs}"
        for e in rough
        if not e.schedule.holds(e.run.durations)
    ]
    if any(each.schedule.flowing for each in listed):
        words.append("* from a stage's first work to its last: stages don't wait between steps")
    return "; ".join(words) + "."


def times(found: Found, unit: str) -> str:
    """Say what a step takes, where durations are seconds."""
    durations = found.run.durations
    parts = (("F", durations.forward), ("B", durations.input), ("W", durations.weights))
    said = ", ".join(f"{name} {si(float(value), unit)}" for name, value in parts)
    sent = f", sending {si(float(durations.send), unit)}" if durations.send else ""
    return f"a step takes {si(float(found.step), unit)}; a microbatch on a stage: {said}{sent}"
