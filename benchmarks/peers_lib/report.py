"""What the benchmark prints: a line a program, means, losses, and times."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from peers_lib.programs import Case

PEERS: Mapping[str, str] = {
    "xla": "jax.jit under Shardy",
    "explicit": "JAX explicit mode",
    "dtensor": "DTensor",
}

FIGURES: Mapping[str, str] = {
    "raw": ", raw",
    "bytes": "",
    "shared": ", once",
}
"""What is counted of an HLO module (see `hlo`); of DTensor there is one figure."""

TOLERANCE = 1e-4
"""The largest error of values and gradients, relative to the largest value."""


@dataclass
class Row:
    """One program with its answers."""

    case: Case
    ours: Mapping[str, Any] = field(default_factory=dict)
    peers: dict[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def bytes(self) -> float | None:
        """What our module sends."""
        return self.ours.get("bytes")

    def peer(self, name: str, figure: str = "bytes") -> float | None:
        """What a peer sends, where it has an answer."""
        answer = self.peers.get(name, {})
        return answer.get(figure, answer.get("bytes"))

    def best(self, figure: str = "bytes") -> float | None:
        """What the best of the peers sends."""
        found = [x for name in self.peers if (x := self.peer(name, figure)) is not None]
        return min(found, default=None)

    def lost(self, figure: str = "bytes") -> bool:
        """Whether a peer moves less."""
        mine, other = self.bytes, self.best(figure)
        return mine is not None and other is not None and other < mine

    def problems(self) -> Iterator[str]:
        """Say what is wrong with our side."""
        if "failed" in self.ours:
            yield str(self.ours["failed"])
            return
        if not self.ours["error"] <= TOLERANCE:
            yield f"values or gradients are wrong by {self.ours['error']:.1e}"
        if self.ours["bytes"] > self.ours["planned"]:
            yield f"planned {self.ours['planned']:g} bytes, compiled {self.ours['bytes']:g}"

    def notes(self) -> Iterator[str]:
        """Say what is worth a look on our side."""
        if self.ours.get("bytes", 0) < self.ours.get("planned", 0):
            told = f"planned {self.ours['planned']:g} bytes, compiled {self.ours['bytes']:g}"
            yield f"{told}: XLA has merged equal steps of the plan"
        if self.ours.get("gap", 0) != 0:
            gap = self.ours["gap"]
            yield "no proof" if gap is None else f"at most {gap:.1%} above the least"
        yield from map(str, self.ours.get("warnings", ()))


HEADER = (
    f"{'program':<26}{'mesh':<6}{'ours':>8}{'xla raw':>8}{'xla':>8}{'explicit':>9}"
    f"{'dtensor':>8}{'ratio':>7}"
)


def line(row: Row) -> str:
    """Write a program's line: bytes of a device, and ours over the best peer's."""
    mesh = "x".join(map(str, row.case.mesh.values()))
    cells = [
        _amount(row.ours),
        _amount(row.peers.get("xla", {}), "raw"),
        _amount(row.peers.get("xla", {})),
        _amount(row.peers.get("explicit", {})),
        _amount(row.peers.get("dtensor", {})),
    ]
    best, mine = row.best(), row.bytes
    ratio = "" if best is None or mine is None else _ratio_text(mine, best)
    widths = (8, 8, 8, 9, 8)
    parts = "".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
    told = f"{row.case.name[:25]:<26}{mesh:<6}{parts}{ratio:>7}"
    notes = [f"  note: {note}" for note in row.notes()]
    return "\n".join([told, *(f"  WRONG: {problem}" for problem in row.problems()), *notes])


def _amount(answer: Mapping[str, Any], figure: str = "bytes") -> str:
    """Write bytes in at most seven characters, or why there are none."""
    value = answer.get(figure, answer.get("bytes"))
    if value is not None:
        return f"{value:.0f}" if value < 1e6 else f"{value / 1e6:.3f}M"
    why = answer.get("refused", "")
    if not why:
        return "failed" if answer else "-"
    return {"not": "no word", "tim": "slow"}.get(why[:3], "refused")


def _ratio_text(mine: float, other: float) -> str:
    """Write a ratio."""
    if mine == other:
        return "1.000"
    return f"{mine / other:.3f}" if other else "inf"


# Means


def _mean(pairs: Sequence[tuple[float, float]]) -> str:
    """Write the geometric mean of ours over theirs, and what has no ratio."""
    logs = [0.0 if a == b else math.log(a / b) for a, b in pairs if a == b or (a and b)]
    mean = f"{math.exp(statistics.fmean(logs)):.3f}" if logs else "-"
    free = sum(1 for a, b in pairs if not a and b)
    lost = sum(1 for a, b in pairs if a and not b)
    wins = sum(1 for a, b in pairs if a < b)
    losses = sum(1 for a, b in pairs if a > b)
    return f"{mean:>7}{len(pairs):>5}{wins:>6}{losses:>6}{free:>11}{lost:>9}"


def summary(rows: Sequence[Row]) -> Iterator[str]:
    """Write the means against each peer and against the better one, and times."""
    yield "Ours over theirs, wire bytes of a device, forward and backward:"
    yield f"{'':<33}{'mean':>7}{'of':>5}{'less':>6}{'more':>6}{'only they':>11}{'only we':>9}"
    for title, of in _comparisons():
        pairs = [
            (row.bytes, value)
            for row in rows
            if row.bytes is not None and (value := of(row)) is not None
        ]
        if pairs:
            yield f"{title:<33}{_mean(pairs)}"
    yield (
        "`raw` is as compiled; without a word, an AllReduce that is only sliced afterwards\n"
        "counts as a ReduceScatter; `once`: and equal collectives count once. `mean` is\n"
        "geometric. Where neither side moves anything the ratio is 1; where only one does\n"
        "(`only they`, `only we`) there is none, and the mean leaves the program out."
    )
    yield from _answers(rows)
    yield from _times(rows)


Of = Callable[[Row], float | None]


def _comparisons() -> Iterator[tuple[str, Of]]:
    """List what is compared with: each peer and the best of them, by each figure."""
    for name, title in PEERS.items():
        for figure, word in FIGURES.items():
            if name != "dtensor" or figure == "bytes":
                yield title + word, partial(Row.peer, name=name, figure=figure)
    for figure, word in FIGURES.items():
        yield "best of them" + word, partial(Row.best, figure=figure)


def _answers(rows: Sequence[Row]) -> Iterator[str]:
    """Say how many programs each peer took, and why not the others."""
    for name, title in PEERS.items():
        told: dict[str, int] = {}
        for row in rows:
            answer = row.peers.get(name)
            if answer is not None:
                why = "answered" if "bytes" in answer else str(answer.get("refused", "failed"))
                why = why if why.startswith(("answered", "not", "timed")) else "refused or failed"
                told[why] = told.get(why, 0) + 1
        if told:
            yield f"{title}: " + ", ".join(f"{count} {why}" for why, count in told.items())


def _times(rows: Sequence[Row]) -> Iterator[str]:
    """Write planning times, proofs and wall times."""
    good = [row.ours for row in rows if "seconds" in row.ours]
    if not good:
        return
    seconds = [x["seconds"] for x in good]
    proven = sum(1 for x in good if x["gap"] == 0)
    yield (
        f"Planning: median {statistics.median(seconds):.3f} s, longest {max(seconds):.1f} s; "
        f"{proven} of {len(good)} proven optimal"
    )
    right = sum(1 for x in good if x["error"] <= TOLERANCE)
    yield (
        f"Values and gradients right in {right} of {len(rows)}; largest error "
        f"{max(x['error'] for x in good):.1e}"
    )
    walls = [x["wall"] for x in good if "wall" in x]
    if walls:
        ratios = [x["ours"] / x["jit"] for x in walls]
        yield (
            f"Wall time on host devices, ours over jax.jit: median {statistics.median(ratios):.2f}"
            f" ({min(ratios):.2f} to {max(ratios):.2f}); medians "
            f"{1e3 * statistics.median(x['ours'] for x in walls):.2f} and "
            f"{1e3 * statistics.median(x['jit'] for x in walls):.2f} ms"
        )


def losses(rows: Sequence[Row]) -> Iterator[str]:
    """Write every program in which a peer moves less, with what both move."""
    found = [row for row in rows if row.lost()]
    yield f"Programs in which a peer moves less: {len(found)}"
    for row in found:
        yield from _loss(row)
    more = [row for row in rows if row.lost("shared") and not row.lost()]
    yield f"Others, were equal collectives of a peer's counted once: {len(more)}"
    for row in more:
        yield f"  {row.case.name}: {row.bytes:.0f} and {row.best('shared'):.0f}"


def _loss(row: Row) -> Iterator[str]:
    """Write one of them."""
    yield f"--- {row.case.name}: ours {row.bytes:.0f}"
    yield row.case.text.rstrip()
    yield "  ours: " + "; ".join(row.ours["collectives"])
    for name in row.peers:
        value = row.peer(name)
        if value is not None and row.bytes is not None and value < row.bytes:
            yield f"  {PEERS[name]}: {value:.0f}: " + "; ".join(row.peers[name]["collectives"])
