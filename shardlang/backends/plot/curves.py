"""Curves of a chart: times of communication and math, or their ratio, with the crossovers marked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import floor, hypot, isfinite, log10
from typing import Any, Literal, TYPE_CHECKING

import numpy as np
from matplotlib.ticker import FixedLocator, NullFormatter, NullLocator

from shardlang.backends.plot.labels import dense, Room, spread
from shardlang.backends.plot.style import (
    DARK,
    DASHES,
    DPI,
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
from shardlang.backends.plot.words import regime
from shardlang.backends.units import scaled, si
from shardlang.cost.curves import Chart, Curve

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.backends.backend_agg import FigureCanvasAgg

What = Literal["times", "ratio"]

SIZE = (7.5, 4.8)
"""Width and height in inches where nobody asks for others."""

WIDE, PLAIN_WIDTH = 3.6, 1.8
"""Points of a line: that of best splits lies wide below those of the schemes that it takes up."""

RING = 500
"""How many points of lines the middle of a ring weighs, for labels that look for a place."""

LEADER = 16
"""Pixels from a label to its point beyond which a line joins them."""

LONGEST = 24
"""Characters of a name at the end of a line; of a longer one its end is shown."""

MATH = "math"
"""The name of the dashed line."""

SAME = 1e-9
"""Curves within this relative distance are one."""

TITLES = {
    "times": "Communication and math over {}",
    "ratio": "Math over communication, as {} grows",
}
NOTES = {
    "times": "solid: T_comms of each program · dashed: T_math · communication-bound where the solid line is"
    " the higher one",
    "ratio": "T_math / T_comms · compute-bound above 1",
}
UNITS = {"C": "FLOP/s", "T_hop": "s", "T_dcn": "s"}
"""Units of hardware figures; bandwidths are in B/s, the others are numbers."""


@dataclass(frozen=True)
class _Line:
    """A line to draw, with the name at its end; `curve` is there where it is a program's own."""

    name: str
    y: Any
    color: str
    dash: Any
    width: float
    curve: Curve | None = None


def figure(
    chart: Chart,
    what: What = "times",
    *,
    dark: bool = False,
    size: tuple[float, float] = SIZE,
) -> Picture:
    """Draw a chart: seconds of T_comms and T_math, or T_math over T_comms; `size` in inches."""
    theme = DARK if dark else LIGHT
    with drawing(theme):
        sheet_, canvas = sheet(*size)
        lines = [line for line in _lines(chart, what, theme) if np.any(np.isfinite(line.y))]
        own = [f"{c.name}: {', '.join(c.facts)}" for c in chart.curves if c.facts]
        silent = [curve.name for curve in chart.curves if not any(curve.t_comms)]
        if silent:
            own.append(f"{', '.join(silent)}: no communication, always compute-bound")
        title = TITLES[what].format(chart.sweep.name)
        notes = [NOTES[what], " · ".join(chart.facts), " · ".join(own)]
        top = heading(sheet_, canvas, theme, title, [note for note in notes if note])
        names = max((text_width(canvas, x.name, SMALL + 1, "bold") for x in lines), default=0.3)
        left, right, bottom = 0.72, names + 0.42, 0.52
        width, height = size
        axes = sheet_.add_axes(
            (
                left / width,
                bottom / height,
                max(width - left - right, 1.0) / width,
                max(height - top - bottom - 0.14, 1.0) / height,
            )
        )
        _scales(axes, chart, what, lines)
        _draw(axes, chart, what, lines, theme)
        _annotate(axes, canvas, chart, what, lines, theme)
    return Picture(sheet_, title, described(chart), chart, theme)


def described(chart: Chart) -> str:
    """Say in words what a chart shows: where each program is compute-bound."""
    return "; ".join(f"{curve.name} is {regime(curve, chart.sweep.name)}" for curve in chart.curves)


# Lines -------------------------------------------------------------------------------------------


def _lines(chart: Chart, what: What, theme: Theme) -> Iterator[_Line]:
    """Give the lines, those that lie on top of others with gaps through which these show.

    Each T_math has one dashed line, in the color of its program where it has but one.
    """
    seen: list[Any] = []
    many = len(theme.series)
    maths: list[tuple[Any, list[str], str]] = []
    for index, curve in enumerate(chart.curves):
        color, dash = theme.series[index % many], DASHES[index // many % len(DASHES)]
        y = _positive(curve.t_comms if what == "times" else curve.ratio)
        if any(_same(y, other) for other in seen):
            dash = (0, (5, 5))
        seen.append(y)
        yield _Line(
            _short(curve.name), y, color, dash, WIDE if curve.splits else PLAIN_WIDTH, curve
        )
        for own, names, _ in maths:
            if _same(own, curve.t_math):
                names.append(curve.name)
                break
        else:
            maths.append((curve.t_math, [curve.name], color))
    for own, names, color in maths if what == "times" else ():
        name = MATH if len(maths) == 1 else f"{MATH} of {_short(', '.join(names))}"
        shared = len(maths) == 1 or len(names) > 1
        yield _Line(name, _positive(own), theme.ink if shared else color, (0, (4, 2)), 1.4)


def _short(name: str) -> str:
    """Give the end of a long name."""
    return name if len(name) <= LONGEST else f"…{name[1 - LONGEST :]}"


def _positive(values: Sequence[float]) -> Any:
    """Give what a logarithmic axis can show, the rest as gaps."""
    found = np.array(values)
    return np.where((found > 0) & np.isfinite(found), found, np.nan)


def _same(one: Any, other: Any) -> bool:
    return bool(np.allclose(one, other, rtol=SAME, atol=0, equal_nan=True))


def _scales(axes: Axes, chart: Chart, what: What, lines: Sequence[_Line]) -> None:
    """Set the logarithmic scales and their ticks."""
    low, high = chart.curves[0].at[0], chart.curves[0].at[-1]
    name = chart.sweep.name
    inches = [axes.get_window_extent().width / DPI, axes.get_window_extent().height / DPI]
    base = 2 if chart.kind == "axis" else 10
    axes.set_xscale("log", base=base)
    axes.set_yscale("log")
    axes.set_xlim(low, high)
    values = np.concatenate([line.y for line in lines]) if lines else np.array([1.0])
    values = values[np.isfinite(values)]
    if what == "ratio":
        values = np.append(values, [0.5, 2.0])
    bottom, top = float(values.min()), float(values.max())
    pad = max((top / bottom) ** 0.05, (10 / (top / bottom)) ** 0.5, 1.15)
    bottom, top = bottom / pad, top * pad
    axes.set_ylim(bottom, top)
    unit = _unit(chart)
    if base == 2:
        major, minor = [2.0**p for p in range(64) if low <= 2.0**p <= high], []
        while len(major) > 9:
            major = major[::2]
    else:
        major, minor = _ticks(low, high, int(inches[0] / 0.62))
    axes.xaxis.set_major_locator(FixedLocator(major))
    axes.xaxis.set_minor_locator(FixedLocator(minor) if minor else NullLocator())
    axes.xaxis.set_major_formatter(labelled(lambda value: scaled(value, unit)))
    axes.xaxis.set_minor_formatter(NullFormatter())
    words = {"dim": name, "axis": f"{name}  (devices)", "hardware": name}
    axes.set_xlabel(words[chart.kind] + (f"  ({unit})" if unit else ""))
    major, minor = _ticks(bottom, top, int(inches[1] / 0.45))
    axes.yaxis.set_major_locator(FixedLocator(major))
    axes.yaxis.set_minor_locator(FixedLocator(minor))
    axes.yaxis.set_major_formatter(labelled(lambda v: si(v, "s") if what == "times" else scaled(v)))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.tick_params(which="major", length=3.5, width=0.8)
    axes.tick_params(which="minor", length=2, width=0.6)


def _unit(chart: Chart) -> str:
    name = chart.sweep.name
    if chart.kind != "hardware":
        return ""
    return UNITS.get(name, "B/s" if name.startswith("W_") else "")


def _ticks(low: float, high: float, most: int) -> tuple[list[float], list[float]]:
    """Give the ticks of a decade axis with numbers, `most` of them at most, and those without."""
    first, last = floor(log10(low)) - 1, floor(log10(high)) + 1
    steps = {n: [m * 10.0**e for e in range(first, last + 1) for m in n] for n in _STEPS}
    inside = {n: [t for t in ts if low * 0.9999 <= t <= high * 1.0001] for n, ts in steps.items()}
    most = max(most, 3)
    major = next((ts for ts in inside.values() if 3 <= len(ts) <= most), None)
    if major is None:
        major = inside[_STEPS[-1]] if len(inside[_STEPS[-1]]) > 1 else inside[_STEPS[0]]
        major = major[:: max(-(-len(major) // most), 1)]
    every = inside[_STEPS[0]] if len(inside[_STEPS[-1]]) <= 5 else inside[_STEPS[-1]]
    return major, [tick for tick in every if tick not in major]


_STEPS = ((1, 2, 3, 4, 5, 6, 7, 8, 9), (1, 2, 5), (1, 3), (1,))


def _draw(axes: Axes, chart: Chart, what: What, lines: Sequence[_Line], theme: Theme) -> None:
    at = chart.curves[0].at
    if what == "ratio":
        axes.axhline(1, color=theme.ink, linewidth=1.4, linestyle=(0, (4, 2)), zorder=2)
    for line in lines:
        axes.plot(
            at,
            line.y,
            color=line.color,
            linestyle=line.dash,
            linewidth=line.width,
            marker="o" if chart.kind == "axis" and line.curve is not None else None,
            markersize=3.5,
            zorder=3.2 if line.curve is None else 2.7 if line.curve.splits else 3,
            clip_on=False,
            solid_capstyle="round",
            solid_joinstyle="round",
        )
        for crossover in () if line.curve is None else line.curve.crossovers:
            axes.plot(
                [crossover.at],
                [crossover.seconds if what == "times" else 1.0],
                "o",
                markersize=6.5,
                markerfacecolor=theme.ground,
                markeredgecolor=line.color,
                markeredgewidth=1.8,
                zorder=5,
            )
        for _, start, _end in () if line.curve is None else _runs(line.curve):
            if start:
                axes.plot(
                    [at[start]], [line.y[start]], "o", markersize=5.5, color=line.color, zorder=2.8
                )


def _runs(curve: Curve) -> Iterator[tuple[str, int, int]]:
    """Give the stretches on which one split is the best, each with its sizes and first and last place."""
    places = groupby(range(len(curve.splits)), key=lambda i: tuple(curve.splits[i].values()))
    for sizes, own in places:
        listed = list(own)
        yield "×".join(map(str, sizes)), listed[0], listed[-1]


# Labels ------------------------------------------------------------------------------------------


def _annotate(
    axes: Axes,
    canvas: FigureCanvasAgg,
    chart: Chart,
    what: What,
    lines: Sequence[_Line],
    theme: Theme,
) -> None:
    at = np.array(chart.curves[0].at)
    pixels = {id(line): axes.transData.transform(np.column_stack([at, line.y])).T for line in lines}
    _ends(axes, lines, pixels)
    drawn = [dense(*own) for own in pixels.values()]
    if what == "ratio":
        one = axes.transData.transform([(at[0], 1.0), (at[-1], 1.0)]).T
        drawn.append(dense(*one))
    rings = [
        (line, crossover, axes.transData.transform((crossover.at, level)))
        for line in lines
        for crossover in (() if line.curve is None else line.curve.crossovers)
        for level in [crossover.seconds if what == "times" else 1.0]
    ]
    # a ring must not be covered at all, so that its middle counts many times
    drawn += [(np.full(RING, x), np.full(RING, y)) for _, _, (x, y) in rings]
    empty = (np.empty(0), np.empty(0))
    x, y = (np.concatenate(each) for each in zip(*(drawn or [empty]), strict=True))
    room = Room(axes.get_window_extent(), (x, y))
    height = (SMALL + 1) / 72 * DPI
    said: set[tuple[str, int]] = set()
    for line, crossover, point in rings:
        text = f"{chart.sweep.name} = {scaled(crossover.at, _unit(chart))}"
        if (text, round(point[1])) not in said:
            _write(axes, canvas, room, [point], text, line.color, height, weight="bold", must=True)
        said.add((text, round(point[1])))
    for line in lines:
        for text, first, last in () if line.curve is None else _runs(line.curve):
            own = pixels[id(line)][:, first : last + 1]
            if own.shape[1] > 1:
                points = [own[:, int(own.shape[1] * share)] for share in (0.5, 0.25, 0.75)]
                _write(axes, canvas, room, points, text, line.color, height, must=False)
    if what == "ratio":
        _sides(axes, canvas, room, theme, height)


def _sides(axes: Axes, canvas: FigureCanvasAgg, room: Room, theme: Theme, height: float) -> None:
    """Say which side of 1 is which, where there is room at an end of the line."""
    box = room.inside
    level = axes.transData.transform((axes.get_xlim()[0], 1.0))[1]
    for text, up in (("compute-bound", 1), ("communication-bound", -1)):
        size = (text_width(canvas, text, SMALL) * DPI, height)
        y = level + up * (height / 2 + 4 / 72 * DPI)
        ends = (size[0] / 2 + 8, box.width - size[0] / 2 - 8, box.width / 2)
        placed = room.first([(box.x0 + x, y) for x in ends], size, must=False)
        if placed is not None:
            _text(axes, placed, text, theme.muted, SMALL, "normal")


def _write(
    axes: Axes,
    canvas: FigureCanvasAgg,
    room: Room,
    points: Sequence[Any],
    text: str,
    color: str,
    height: float,
    *,
    must: bool,
    weight: str = "normal",
) -> None:
    """Write a label near one of some points, the first with room for it."""
    size = SMALL + 0.5 if weight == "bold" else SMALL
    box = (text_width(canvas, text, size, weight) * DPI, height)
    near = [(float(x), float(y)) for x, y in points if isfinite(x) and isfinite(y)]
    placed = room.place(near, box, 4 / 72 * DPI, must=must)
    if placed is not None:
        _text(axes, placed, text, color, size, weight)
        if must:
            _lead(axes, near[0], placed, box, color)


def _lead(
    axes: Axes,
    point: tuple[float, float],
    center: tuple[float, float],
    box: tuple[float, float],
    color: str,
) -> None:
    """Join a label to its point where it had to go far."""
    x, y = (min(max(p, c - b / 2), c + b / 2) for p, c, b in zip(point, center, box, strict=True))
    if hypot(x - point[0], y - point[1]) <= LEADER:
        return
    ends = axes.transAxes.inverted().transform([point, (x, y)])
    axes.plot(*ends.T, transform=axes.transAxes, color=color, linewidth=0.8, zorder=4)


def _text(
    axes: Axes, pixels: tuple[float, float], text: str, color: str, size: float, weight: str
) -> None:
    x, y = axes.transAxes.inverted().transform(pixels)
    axes.text(
        x,
        y,
        text,
        transform=axes.transAxes,
        size=size,
        color=color,
        weight=weight,
        ha="center",
        va="center",
        zorder=6,
    )


def _ends(axes: Axes, lines: Sequence[_Line], pixels: dict[int, Any]) -> None:
    """Write the name of each line at its right end, moved apart where they would touch."""
    box = axes.get_window_extent()
    shown = [line for line in lines if np.any(np.isfinite(pixels[id(line)][1]))]
    wanted: list[float] = []
    for line in shown:
        own = pixels[id(line)][1]
        wanted.append(float(own[np.isfinite(own)][-1]))
    found = spread(wanted, 13 / 72 * DPI, box.y0, box.y1)
    for line, level, place in zip(shown, wanted, found, strict=True):
        end = (level - box.y0) / box.height
        at = (place - box.y0) / box.height
        start = 1 + 3 / 72 * DPI / box.width
        stop = 1 + 14 / 72 * DPI / box.width
        if not isfinite(end):
            continue
        axes.plot(
            [start, stop],
            [end, at],
            transform=axes.transAxes,
            color=line.color,
            linewidth=0.8,
            clip_on=False,
        )
        axes.text(
            stop + 3 / 72 * DPI / box.width,
            at,
            line.name,
            transform=axes.transAxes,
            color=line.color,
            size=SMALL + 1,
            weight="bold",
            va="center",
        )
