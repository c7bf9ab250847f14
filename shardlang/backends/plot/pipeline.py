"""A schedule of a pipeline as bars, a lane a stage: who does what when."""

from __future__ import annotations

from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import MaxNLocator

from shardlang.backends.pipeline_text import exactly, percent
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
from shardlang.backends.units import si
from shardlang.pipelines.compare import Found

WIDTH = 9.0
"""Inches."""

LANE, GAP = 0.32, 0.06
"""Inches of a lane, and between lanes."""

WORDS: dict[str, str] = {"F": "forward", "BW": "backward: dX and dW", "W": "dW", "B": "dX"}
"""What the colors mean, in the order of the theme's."""


def pipeline(found: Found, *, unit: str = "", dark: bool = False, width: float = WIDTH) -> Picture:
    """Draw a schedule; `unit` is that of its durations, where they have one."""
    theme = DARK if dark else LIGHT
    run, table = found.run, found.run.table
    lanes = table.stages * (LANE + GAP) + GAP
    title = f"{found.schedule.name}, {table.stages} stages, {table.microbatches} microbatches"
    facts = [
        f"bubble {percent(found.bubble)}{exactly(found.bubble)}"
        + (", from a stage's first work to its last" if found.schedule.flowing else ""),
        f"by formula, {found.schedule.formula} idle: {percent(found.claimed)}"
        + ("" if found.exact else " (not exact here)"),
        f"a stage holds up to {float(max(run.held)):g} microbatches"
        + (", and two parts of the model" if table.weights > 1 else ""),
    ]
    with drawing(theme):
        figure, canvas = sheet(width, lanes + 1.6)
        tall = float(figure.get_figheight())
        top = heading(figure, canvas, theme, title, [" · ".join(facts)])
        used = {event.work.kind for row in run.events for event in row}
        shown = [kind for kind in WORDS if kind in used]
        figure.legend(
            handles=[Patch(facecolor=_fill(theme, kind), label=WORDS[kind]) for kind in shown],
            loc="upper left",
            bbox_to_anchor=(0.16 / width, 1 - (top + 0.06) / tall),
            ncols=4,
            frameon=False,
            fontsize=SMALL + 0.5,
            borderpad=0,
            borderaxespad=0,
            handlelength=1.4,
            columnspacing=1.6,
        )
        left = text_width(canvas, f"stage {table.stages - 1}", SMALL + 1) + 0.3
        room = width - left - 0.2
        axes = figure.add_axes((left / width, 0.45 / tall, room / width, lanes / tall))
        end = float(run.seconds)
        high = LANE / (LANE + GAP)
        for stage, row in enumerate(run.events):
            y = table.stages - 1 - stage + (1 - high) / 2
            for event in row:
                start, stop = float(event.start), float(event.end)
                axes.add_patch(
                    Rectangle(
                        (start, y),
                        stop - start,
                        high,
                        facecolor=_fill(theme, event.work.kind),
                        edgecolor=theme.ground,
                        linewidth=0.6,
                        zorder=3,
                    )
                )
                text = event.work.text(chunks=table.lettered).removeprefix(event.work.kind)
                if text_width(canvas, text, SMALL - 1) <= (stop - start) / end * room - 0.02:
                    axes.text(
                        (start + stop) / 2,
                        y + high / 2,
                        text,
                        size=SMALL - 1,
                        color=theme.ground,
                        ha="center",
                        va="center_baseline",
                        zorder=4,
                    )
        axes.set_xlim(0, end)
        axes.set_ylim(0, table.stages)
        names = [f"stage {stage}" for stage in reversed(range(table.stages))]
        axes.set_yticks([place + 0.5 for place in range(table.stages)], names)
        axes.tick_params(axis="y", length=0, labelsize=SMALL + 1)
        axes.grid(visible=False, axis="y")
        axes.xaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 5, 10]))
        axes.xaxis.set_major_formatter(
            labelled(lambda value: si(value, unit) if value and unit else f"{value:g}")
        )
        axes.spines["left"].set_visible(False)
    return Picture(figure, title, f"{title}: {'; '.join(facts)}", found, theme)


def _fill(theme: Theme, kind: str) -> str:
    """Give a kind's color."""
    return theme.series[list(WORDS).index(kind)]
