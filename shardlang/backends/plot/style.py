"""How pictures look: colors, type, what a picture is, and how it becomes a file.

The colors of lines are far from each other also for people with color blindness (20 in CIELAB, as simulated
by Machado, Oliveira and Fernandes, 2009), and text in them is legible (contrast 4.5 to 1); a test holds both.
A file holds no date and no random names, so that equal data gives an equal file; text in an SVG stays text.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal
from xml.sax.saxutils import escape

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

Form = Literal["png", "svg"]

DPI = 192
"""Pixels an inch of a PNG: two for each point of an ordinary screen."""

SMALL, PLAIN, LARGE = 8.0, 9.0, 12.0
"""Sizes of type in points."""

FONTS = ("DejaVu Sans", "Verdana", "Helvetica", "Arial")
"""The first is measured, and comes with matplotlib; a reader of an SVG may have another."""

# A line of the log that is no business of somebody who wants a picture.
logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)


@dataclass(frozen=True)
class Theme:
    """Colors: the ground, text, text that stands back, lines of the grid, and one a series."""

    ground: str
    ink: str
    muted: str
    grid: str
    series: tuple[str, ...]


LIGHT = Theme(
    ground="#ffffff",
    ink="#1f2328",
    muted="#5b6570",
    grid="#e4e7ea",
    series=("#0060c0", "#c24a00", "#004d3d", "#a03a85", "#4a3b00"),
)
DARK = Theme(
    ground="#15181c",
    ink="#e8eaed",
    muted="#a4adb7",
    grid="#2c3238",
    series=("#5aa9ff", "#f08a35", "#a6e8b0", "#f0a8d8", "#f5e27a"),
)

DASHES = ("solid", (0, (7, 2)), (0, (2, 2)))
"""What tells lines of one color apart where there are more of them than colors."""


@dataclass(frozen=True)
class Picture:
    """A figure with what it shows in words; `data` is the chart or the schedules it was drawn from."""

    figure: Figure
    title: str
    description: str
    data: Any
    theme: Theme

    def to_bytes(self, form: Form) -> bytes:
        """Give the file's content."""
        out = io.BytesIO()
        with drawing(self.theme):
            if form == "png":
                self.figure.savefig(
                    out, format="png", dpi=DPI, metadata={"Software": None, "Title": self.title}
                )
                return out.getvalue()
            self.figure.savefig(
                out, format="svg", metadata={"Date": None, "Creator": None, "Title": self.title}
            )
        text = out.getvalue().decode("utf-8")
        described = f"</title>\n <desc>{escape(self.description)}</desc>"
        return text.replace("</title>", described, 1).encode("utf-8")


@contextmanager
def drawing(theme: Theme) -> Generator[None]:
    """Draw in a theme, whatever the settings of matplotlib are outside."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(
            {
                "figure.facecolor": theme.ground,
                "savefig.facecolor": theme.ground,
                "axes.facecolor": theme.ground,
                "axes.edgecolor": theme.muted,
                "axes.labelcolor": theme.muted,
                "axes.linewidth": 0.8,
                "axes.grid": True,
                "axes.axisbelow": True,
                "axes.spines.top": False,
                "axes.spines.right": False,
                "axes.labelsize": PLAIN,
                "grid.color": theme.grid,
                "grid.linewidth": 0.7,
                "text.color": theme.ink,
                "xtick.color": theme.muted,
                "ytick.color": theme.muted,
                "xtick.labelsize": SMALL + 0.5,
                "ytick.labelsize": SMALL + 0.5,
                "font.family": list(FONTS[:1]),
                "font.size": PLAIN,
                "hatch.linewidth": 0.6,
                "svg.fonttype": "none",
                "svg.hashsalt": "shardlang",
                "text.parse_math": False,
            }
        )
        yield


def sheet(width: float, height: float) -> tuple[Figure, FigureCanvasAgg]:
    """Give an empty figure, in inches, and what measures text on it."""
    figure = Figure(figsize=(width, height), dpi=DPI)
    return figure, FigureCanvasAgg(figure)


def heading(
    figure: Figure, canvas: FigureCanvasAgg, theme: Theme, title: str, lines: list[str]
) -> float:
    """Write a title and the lines under it from the top left; give the height it takes in inches."""
    width, height = figure.get_size_inches()
    edge = 0.16
    size = LARGE * min(1, (width - 2 * edge) / text_width(canvas, title, LARGE, "bold"))
    figure.text(
        edge / width, 1 - edge / height, title, size=size, weight="bold", color=theme.ink, va="top"
    )
    at = edge + 0.27
    for line in lines:
        for row in wrapped(canvas, line, width - 2 * edge):
            figure.text(
                edge / width, 1 - at / height, row, size=SMALL + 0.5, color=theme.muted, va="top"
            )
            at += 0.165
    return at


def wrapped(canvas: FigureCanvasAgg, line: str, room: float) -> list[str]:
    """Break a line at its points where it is wider than `room`, in inches; at spaces where that is too wide."""
    rows: list[str] = []
    for part in line.split(" · "):
        between = " · "
        fits = text_width(canvas, part, SMALL + 0.5) <= room
        for piece in [part] if fits else part.split(" "):
            joined = f"{rows[-1]}{between}{piece}" if rows else piece
            if rows and text_width(canvas, joined, SMALL + 0.5) <= room:
                rows[-1] = joined
            else:
                rows.append(piece)
            between = " "
    return rows


def labelled(label: Callable[[float], str]) -> FuncFormatter:
    """Make what writes the ticks of an axis."""

    def write(value: float, _: object) -> str:
        return label(value)

    return FuncFormatter(write)


def text_width(canvas: FigureCanvasAgg, text: str, size: float, weight: str = "normal") -> float:
    """Give the width of a text in inches."""
    from matplotlib.font_manager import FontProperties  # noqa: PLC0415 (loaded by the figure)

    font = FontProperties(family=list(FONTS[:1]), size=size, weight=weight)
    width, _, _ = canvas.get_renderer().get_text_width_height_descent(text, font, ismath=False)
    return width / DPI
