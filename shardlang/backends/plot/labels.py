"""Where labels go: beside their points, clear of lines and of each other.

A small greedy search: each label is tried in the places around its point, and takes the first that
covers no line and no other label; one that has to be shown takes the place that covers least.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from matplotlib.transforms import Bbox

PLACES = (
    (1.0, -1.0),
    (-1.0, 1.0),
    (1.0, 1.0),
    (-1.0, -1.0),
    (0.0, 1.0),
    (0.0, -1.0),
    (1.0, 0.0),
    (-1.0, 0.0),
)
"""Directions from a point: right and up are positive."""

DISTANCES = (1.0, 1.8, 3.0, 5.0, 8.0)
"""How far from its point a label may go, in gaps; one that need not be shown takes the first two alone."""

CLEAR = 6
"""Pixels between a box and the middle of a line, which may be wide."""

APART = 20
"""Pixels between two boxes in a row."""


@dataclass
class Room:
    """The inside of an axes in pixels, the lines in it as points, and the boxes of labels so far."""

    inside: Bbox
    lines: Any
    boxes: list[Bbox] = field(default_factory=list[Bbox])

    def place(
        self,
        points: Sequence[tuple[float, float]],
        size: tuple[float, float],
        gap: float,
        *,
        must: bool,
    ) -> tuple[float, float] | None:
        """Give the center of a box near one of some points; None where none is free and none must be.

        Everything is in pixels.
        """
        centers = [
            (x + right * (size[0] / 2 + gap * far), y + up * (size[1] / 2 + gap * far))
            for x, y in points
            for far in (DISTANCES if must else DISTANCES[:2])
            for right, up in PLACES
        ]
        return self.first(centers, size, must=must)

    def first(
        self, centers: Sequence[tuple[float, float]], size: tuple[float, float], *, must: bool
    ) -> tuple[float, float] | None:
        """Give the first center at which a box covers nothing, or the one where it covers least."""
        boxes = [
            Bbox.from_bounds(x - size[0] / 2, y - size[1] / 2, size[0], size[1]) for x, y in centers
        ]
        covered = [self._covers(box) for box in boxes]
        if not covered:
            return None
        best = covered.index(min(covered))
        if covered[best] and not must:
            return None
        self.boxes.append(boxes[best])
        return centers[best]

    def _covers(self, box: Bbox) -> float:
        """Say how much a box covers: points of lines, and other boxes, which weigh more."""
        outside = (
            box.x0 < self.inside.x0
            or box.x1 > self.inside.x1
            or box.y0 < self.inside.y0
            or box.y1 > self.inside.y1
        )
        wide = box.padded(CLEAR)
        x, y = self.lines
        hit = (x > wide.x0) & (x < wide.x1) & (y > wide.y0) & (y < wide.y1)
        apart = box.padded(APART, CLEAR)
        others = sum(apart.overlaps(other) for other in self.boxes)
        return 1e6 * outside + 1e3 * others + float(np.count_nonzero(hit))


def dense(x: Any, y: Any, step: float = 2.0) -> tuple[Any, Any]:
    """Give points along a line of pixels, at most `step` apart; gaps stay gaps."""
    found_x: list[Any] = []
    found_y: list[Any] = []
    for i in range(len(x) - 1):
        ends = (x[i], y[i], x[i + 1], y[i + 1])
        if not np.all(np.isfinite(ends)):
            continue
        many = int(max(abs(ends[2] - ends[0]), abs(ends[3] - ends[1])) / step) + 2
        found_x.append(np.linspace(ends[0], ends[2], many))
        found_y.append(np.linspace(ends[1], ends[3], many))
    if not found_x:
        return np.empty(0), np.empty(0)
    return np.concatenate(found_x), np.concatenate(found_y)


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Move positions apart until neighbors are `gap` apart, each as little as its group allows.

    Groups of labels that touch are centered on the mean of what they wanted, and stay within the ends
    where there is room.
    """
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    groups: list[tuple[list[int], float]] = []
    for index in order:
        members, center = [index], wanted[index]
        while True:
            half = gap * (len(members) - 1) / 2
            center = min(max(center, low + half), max(high - half, low + half))
            if not groups:
                break
            before, other = groups[-1]
            if other + gap * (len(before) - 1) / 2 + gap <= center - half:
                break
            groups.pop()
            members = before + members
            center = sum(wanted[i] for i in members) / len(members)
        groups.append((members, center))
    found = [0.0] * len(wanted)
    for members, center in groups:
        for place, index in enumerate(members):
            found[index] = center + gap * (place - (len(members) - 1) / 2)
    return found
