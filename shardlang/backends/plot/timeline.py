"""Simulated schedules as bars on lanes: what runs when, and where the matrix unit waits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import MaxNLocator

from shardlang.backends.plot.style import (
    DARK,
    drawing,
    heading,
    labelled,
    LIGHT,
    Picture,
    sheet,
    SMALL,
    text_width,
    Theme,
)
from shardlang.backends.plot.words import summary
from shardlang.backends.units import si
from shardlang.cost.schedule import COMPUTE, Event, Timeline

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.backends.backend_agg import FigureCanvasAgg

WIDTH = 9.0
"""Width in inches where nobody asks for another; the height follows from the lanes."""

WIDE = 7.0
"""Inches from which on the legend is one row."""

LANE, GAP, HEADING = 0.5, 0.07, 0.5
"""Inches of a lane, between lanes, and of a program's heading."""

NARROW = 0.06
"""Inches that a bar has to be wider than the name in it."""


def timeline(
    schedules: Mapping[str, Timeline],
    facts: Sequence[str] = (),
    *,
    dark: bool = False,
    width: float = WIDTH,
    height: float | None = None,
) -> Picture:
    """Draw the schedules of programs under each other on one axis of time; sizes in inches."""
    theme = DARK if dark else LIGHT
    tall = [len(each.lanes) * (LANE + GAP) + GAP for each in schedules.values()]
    with drawing(theme):
        needed = sum(tall) + HEADING * len(tall) + 0.5 + 1.1
        figure, canvas = sheet(width, max(height or needed, 0.6 * needed))
        title = "What runs when"
        top = heading(figure, canvas, theme, title, [" · ".join(facts)] if facts else [])
        columns = 4 if width >= WIDE else 2
        figure.legend(
            handles=_legend(theme),
            loc="upper left",
            bbox_to_anchor=(0.16 / width, 1 - (top + 0.06) / figure.get_figheight()),
            ncols=columns,
            frameon=False,
            fontsize=SMALL + 0.5,
            borderpad=0,
            borderaxespad=0,
            handlelength=1.4,
            columnspacing=1.6,
        )
        top += 0.18 * 4 / columns
        room = figure.get_figheight() - top - 0.5
        scale = (room - HEADING * len(tall)) / sum(tall)
        names = [lane for each in schedules.values() for lane in each.lanes]
        left = max(text_width(canvas, name, SMALL + 1) for name in names) + 0.3
        end = max(each.seconds for each in schedules.values()) or 1.0
        for (name, each), own in zip(schedules.items(), tall, strict=True):
            top += HEADING
            box = (
                left / width,
                1 - (top + own * scale) / figure.get_figheight(),
                (width - left - 0.2) / width,
                own * scale / figure.get_figheight(),
            )
            axes = figure.add_axes(box)
            _panel(axes, canvas, each, end, theme, (width - left - 0.2) / end, (LANE + GAP) * scale)
            said = f"{name}: {summary(each)}"
            if text_width(canvas, said, SMALL + 1) > width - left - 0.2:
                said = f"{name}: {si(each.seconds, 's')}"
            axes.set_title(said, loc="left", size=SMALL + 1, color=theme.ink, pad=15)
            top += own * scale
            axes.tick_params(labelbottom=each is list(schedules.values())[-1])
    return Picture(figure, title, described(schedules), schedules, theme)


def described(schedules: Mapping[str, Timeline]) -> str:
    """Say in words what the schedules come to."""
    return "; ".join(f"{name}: {summary(each)}" for name, each in schedules.items())


def _legend(theme: Theme) -> list[Patch]:
    return [
        Patch(facecolor=_fill(theme, COMPUTE), label="math"),
        Patch(facecolor=_fill(theme, "critical"), label="collective on the critical path"),
        Patch(facecolor=_fill(theme, "hidden"), label="collective off the critical path"),
        Patch(
            facecolor=theme.ground,
            edgecolor=theme.series[1],
            hatch="////",
            label="matrix unit waits",
        ),
    ]


def _fill(theme: Theme, what: str) -> str:
    return {COMPUTE: theme.series[0], "critical": theme.series[1], "hidden": theme.series[2]}[what]


def _panel(
    axes: Axes,
    canvas: FigureCanvasAgg,
    found: Timeline,
    end: float,
    theme: Theme,
    inches: float,
    tall: float,
) -> None:
    """Draw one program's lanes, the matrix unit on top: `inches` a second, `tall` inches a lane."""
    lanes = {lane: len(found.lanes) - 1 - i for i, lane in enumerate(found.lanes)}
    for start, stop in waits(found):
        axes.add_patch(
            Rectangle(
                (start, lanes[COMPUTE] + 0.1),
                stop - start,
                0.8,
                facecolor="none",
                edgecolor=theme.series[1],
                hatch="////",
                linewidth=0,
                zorder=2,
            )
        )
    for event in found.events:
        kind = COMPUTE if COMPUTE in event.lanes else "critical" if event.critical else "hidden"
        for lane in event.lanes:
            axes.add_patch(
                Rectangle(
                    (event.start, lanes[lane] + 0.1),
                    event.end - event.start,
                    0.8,
                    facecolor=_fill(theme, kind),
                    edgecolor=theme.ground,
                    linewidth=0.8,
                    zorder=3,
                )
            )
            box = ((event.end - event.start) * inches - NARROW, tall * 0.8 - NARROW)
            text, turned = _fitting(canvas, event, *box)
            if text:
                axes.text(
                    (event.start + event.end) / 2,
                    lanes[lane] + 0.5,
                    text,
                    size=SMALL,
                    color=theme.ground,
                    rotation=90 if turned else 0,
                    ha="center",
                    va="center" if turned or "\n" in text else "center_baseline",
                    linespacing=1.15,
                    zorder=4,
                )
    axes.set_xlim(0, end)
    axes.set_ylim(-0.02, len(lanes) + 0.02)
    axes.set_yticks([place + 0.5 for place in lanes.values()], list(lanes))
    axes.tick_params(axis="y", length=0, labelsize=SMALL + 1)
    axes.tick_params(axis="x", length=3)
    axes.grid(visible=False, axis="y")
    axes.xaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(labelled(lambda value: si(value, "s") if value else "0"))
    axes.spines["left"].set_visible(False)
    _passes(axes, found, len(lanes), theme)


def _passes(axes: Axes, found: Timeline, top: int, theme: Theme) -> None:
    """Mark where the math of the backward pass begins."""
    starts = [e.start for e in found.events if e.section == "backward" and COMPUTE in e.lanes]
    if not starts:
        return
    axes.axvline(min(starts), color=theme.muted, linewidth=1, linestyle=(0, (3, 2)), zorder=5)
    axes.annotate(
        "backward",
        (min(starts), top),
        xytext=(0, 3),
        textcoords="offset points",
        size=SMALL,
        color=theme.muted,
        ha="left",
        annotation_clip=False,
    )


def waits(found: Timeline) -> Iterator[tuple[float, float]]:
    """Give the stretches in which the matrix unit stands still."""
    now = 0.0
    for event in sorted((e for e in found.events if COMPUTE in e.lanes), key=lambda e: e.start):
        if event.start > now:
            yield now, event.start
        now = max(now, event.end)
    if found.seconds > now:
        yield now, found.seconds


def _fitting(
    canvas: FigureCanvasAgg, event: Event, width: float, height: float
) -> tuple[str, bool]:
    """Give what fits of a step's name: all, its short form in a row or two, that upright, or nothing."""
    short = _short(event.name)
    stacked = short.replace(" ", "\n")
    for text, across, along in (
        (event.name, width, height),
        (short, width, height),
        (stacked, width, height),
        (short, height, width),
        (stacked, height, width),
    ):
        rows = text.split("\n")
        high = len(rows) * SMALL * 1.2 / 72
        if high <= along and max(text_width(canvas, row, SMALL) for row in rows) <= across:
            return text, across == height
    return "", False


_SHORT = {
    "AllGather": "AG",
    "ReduceScatter": "RS",
    "AllReduce": "AR",
    "AllToAll": "A2A",
    "Permute": "P",
}


def _short(name: str) -> str:
    """Shorten a collective's name: `AG_X W_in`."""
    operation, mark, rest = name.partition("_")
    return f"{_SHORT[operation]}{mark}{rest}" if operation in _SHORT else name
