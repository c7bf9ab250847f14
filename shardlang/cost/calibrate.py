"""Calibration: the efficiencies that explain measured step times, and how well they do.

The hardware's figures stay as they are; what is fitted are the shares of them that were had (E_math,
E_ici, E_dcn, E_hbm, each above 0 and at most 1) and, where asked for, the latencies T_hop and T_dcn. The
fit is the one of least squares of log(predicted/measured), so that a run that takes twice as long as
predicted weighs as one that takes half, and long runs weigh as short ones do. The predicted time is
T_overlapped or T_serial.

Both times have kinks (a maximum, a bound at 1), so the search uses no gradients: from the best point of
a coarse grid it goes to the best of all neighbours, and halves the distance where none is better. A
figure that no run's time depends on at the best point is not told: with T_overlapped, E_ici is not where
every run is bound by compute. The errors of figures and predictions are those of a linear model around the best point
(Seber and Wild, *Nonlinear Regression*, 1989, sections 2.1 and 5.1), two standard errors each way.

numpy alone is needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import exp, inf, log, sqrt
from typing import Any, Literal, NoReturn

import numpy as np

from shardlang.cost.errors import NotFitted, TooFewRuns
from shardlang.cost.models import LATENCIES
from shardlang.cost.report import Report
from shardlang.diagnostics import Diagnostic, Mistake, ShardlangError
from shardlang.hardware.figures import EFFICIENCIES
from shardlang.source import Source, Span

Time = Literal["overlapped", "serial"]

RANGES: Mapping[str, tuple[float, float]] = {
    **dict.fromkeys(EFFICIENCIES.values(), (log(1e-3), 0.0)),
    **dict.fromkeys(LATENCIES, (log(1e-9), log(1e-1))),
}
"""What can be fitted, with the logarithms between which it is looked for."""

POINTS = 20_000
"""The most points of the coarse grid."""

NEAR = 1e-10
"""The distance, in logarithms, at which the search ends."""

STEP = 1e-5
"""The distance over which slopes are taken."""

FLAT = 1e-6
"""A slope that counts as none."""


@dataclass(frozen=True)
class Sample:
    """A measured run: its name, the report of its program, and the seconds of a step."""

    name: str
    report: Report
    seconds: float


@dataclass(frozen=True)
class Fitted:
    """A figure that was fitted, and two standard errors each way where there are enough runs.

    `value` is None where no run's time depends on it. `at_bound` says that the best value is the largest
    or the smallest there is.
    """

    name: str
    value: float | None
    low: float | None = None
    high: float | None = None
    at_bound: bool = False


@dataclass(frozen=True)
class Prediction:
    """A run and its times: measured, at peak rates, and with the fitted figures.

    `low` and `high` are where a run like this would be measured, 19 times of 20; None where there are
    no more runs than figures.
    """

    name: str
    measured: float
    peak: float
    predicted: float
    low: float | None = None
    high: float | None = None

    @property
    def error(self) -> float:
        """How far the prediction is off, as a share of what was measured: 0.1 is 10 % too long."""
        return self.predicted / self.measured - 1


@dataclass(frozen=True)
class Calibration:
    """What a fit found: figures, predictions, and what has to be said about them.

    `spread` is the standard deviation of log(predicted/measured), with the figures taken off the number
    of runs; None where there are no more runs than figures.
    """

    time: Time
    figures: tuple[Fitted, ...]
    runs: tuple[Prediction, ...]
    spread: float | None
    notes: tuple[str, ...] = ()

    @property
    def sets(self) -> dict[str, float]:
        """The figures by name, as `cost(plan, sets=...)` takes them."""
        return {each.name: each.value for each in self.figures if each.value is not None}

    @property
    def worst(self) -> float:
        """The largest error of a run, as a share of what was measured."""
        return max(abs(run.error) for run in self.runs)

    @property
    def typical(self) -> float:
        """The root of the mean square of the errors."""
        return sqrt(sum(run.error**2 for run in self.runs) / len(self.runs))

    def to_dict(self) -> dict[str, Any]:
        """Give it as data."""
        return {
            "time": self.time,
            "figures": {
                each.name: {
                    "value": each.value,
                    "low": each.low,
                    "high": each.high,
                    "at_bound": each.at_bound,
                }
                for each in self.figures
            },
            "runs": [
                {
                    "name": run.name,
                    "measured": run.measured,
                    "peak": run.peak,
                    "predicted": run.predicted,
                    "error": run.error,
                    "low": run.low,
                    "high": run.high,
                }
                for run in self.runs
            ],
            "spread": self.spread,
            "typical": self.typical,
            "worst": self.worst,
            "notes": list(self.notes),
        }


def calibrate(
    samples: Sequence[Sample],
    fit: Sequence[str] = ("E_math", "E_ici"),
    time: Time = "overlapped",
) -> Calibration:
    """Fit figures to measured runs.

    Raises `ShardlangError` for what can't be fitted (SH537), and where there are fewer runs than
    figures (SH536).
    """
    names = tuple(dict.fromkeys(fit))
    for name in names:
        if name not in RANGES:
            known = ", ".join(RANGES)
            _refuse("--fit", name, NotFitted(name, "it is no such figure", f"there are {known}"))
    if not names or len(samples) < len(names):
        _refuse("--fit", ",".join(names), TooFewRuns(len(samples), names))
    model = _Times(samples, names, time)
    best = _search(model)
    slopes = model.slopes(best)
    told = [i for i in range(len(names)) if np.abs(slopes[:, i]).max() > FLAT]
    covariance, spread = _errors(model, best, slopes, told)
    figures = tuple(
        _fitted(name, float(best[i]), covariance, told.index(i) if i in told else None)
        for i, name in enumerate(names)
    )
    return Calibration(
        time=time,
        figures=figures,
        runs=tuple(_predictions(model, best, slopes[:, told], covariance, spread)),
        spread=spread,
        notes=tuple(_notes(model, figures, slopes[:, told], [names[i] for i in told])),
    )


def _refuse(where: str, text: str, mistake: Mistake) -> NoReturn:
    raise ShardlangError([Diagnostic(Source(where, text), Span(0, len(text)), mistake)])


class _Times:
    """The times of all runs as functions of the logarithms of the figures."""

    def __init__(self, samples: Sequence[Sample], names: tuple[str, ...], time: Time) -> None:
        self.samples = samples
        self.names = names
        self.measured = np.log(np.array([sample.seconds for sample in samples]))
        self.low = np.array([RANGES[name][0] for name in names])
        self.high = np.array([RANGES[name][1] for name in names])
        self.compiled = [self._compiled(sample, time) for sample in samples]

    def _compiled(self, sample: Sample, time: Time) -> Any:
        kinds = sample.report.freed(self.names).symbols.kinds
        for name in self.names:
            if name not in kinds:
                why = f"no formula of {sample.name} has it"
                advice = "latency is in --model link and those like it"
                _refuse("--fit", name, NotFitted(name, why, advice))
        return sample.report.compile(self.names, f"t_{time}")

    def logs(self, points: Any) -> Any:
        """Give the logarithms of the runs' times, of shape (points, runs), at points (points, figures)."""
        values = np.exp(points).T
        with np.errstate(divide="ignore"):
            return np.log(np.stack([each(*values)[0] for each in self.compiled], axis=-1))

    def squares(self, points: Any) -> Any:
        """Give the sum of squares at each of many points."""
        return ((self.logs(points) - self.measured) ** 2).sum(axis=-1)

    def slopes(self, point: Any) -> Any:
        """Give how the logarithms change with each figure, of shape (runs, figures); inwards at a bound."""
        found: list[Any] = []
        for i in range(len(self.names)):
            up, down = point.copy(), point.copy()
            up[i] = min(up[i] + STEP, self.high[i])
            down[i] = max(down[i] - STEP, self.low[i])
            above, below = self.logs(np.stack([up, down]))
            found.append((above - below) / (up[i] - down[i]))
        return np.stack(found, axis=-1)


def _search(model: _Times) -> Any:
    """Find the point of least squares; of equal ones on the grid, that of the largest figures."""
    count = max(3, int(POINTS ** (1 / len(model.names))))
    axes = [np.linspace(high, low, count) for low, high in zip(model.low, model.high, strict=True)]
    grid = np.stack([axis.ravel() for axis in np.meshgrid(*axes, indexing="ij")], axis=-1)
    best = grid[int(model.squares(grid).argmin())]
    least = float(model.squares(best[None])[0])
    ways = np.array([way for way in product((-1, 0, 1), repeat=len(model.names)) if any(way)])
    step = float(max((model.high - model.low) / (count - 1)))
    while step > NEAR:
        around = np.clip(best + step * ways, model.low, model.high)
        squares = model.squares(around)
        at = int(squares.argmin())
        if squares[at] < least * (1 - 1e-12):
            best, least = around[at], float(squares[at])
        else:
            step /= 2
    return best


def _errors(
    model: _Times, best: Any, slopes: Any, told: Sequence[int]
) -> tuple[Any | None, float | None]:
    """Give the covariance of the figures that are told, and the spread of the runs."""
    free = len(model.samples) - len(told)
    if free <= 0:
        return None, None
    spread = sqrt(float(model.squares(best[None])[0]) / free)
    own = slopes[:, told]
    if not told or np.linalg.cond(own) > 1 / FLAT:
        return None, spread
    return spread**2 * np.linalg.inv(own.T @ own), spread


def _fitted(name: str, at: float, covariance: Any | None, place: int | None) -> Fitted:
    if place is None:
        return Fitted(name, None)
    lowest, highest = RANGES[name]
    bound = min(at - lowest, highest - at) < 1e-6
    if covariance is None:
        return Fitted(name, exp(at), at_bound=bound)
    error = 2 * sqrt(float(covariance[place, place]))
    return Fitted(name, exp(at), exp(max(at - error, lowest)), exp(min(at + error, highest)), bound)


def _predictions(
    model: _Times, best: Any, slopes: Any, covariance: Any | None, spread: float | None
) -> list[Prediction]:
    """Give each run's times, and where a run like it would be measured."""
    peak = np.array([0.0 if name in EFFICIENCIES.values() else -inf for name in model.names])
    fitted, fastest = model.logs(np.stack([best, peak]))
    found: list[Prediction] = []
    for i, sample in enumerate(model.samples):
        band: tuple[float, float] | tuple[None, None] = (None, None)
        if covariance is not None and spread is not None:
            wide = 2 * sqrt(spread**2 + float(slopes[i] @ covariance @ slopes[i]))
            band = exp(fitted[i] - wide), exp(fitted[i] + wide)
        found.append(
            Prediction(sample.name, sample.seconds, exp(fastest[i]), exp(fitted[i]), *band)
        )
    return found


def _notes(model: _Times, figures: Sequence[Fitted], slopes: Any, told: Sequence[str]) -> list[str]:
    """Say what the runs do not tell, and which of them no efficiency explains."""
    found = [
        f"no run's time depends on {each.name}: it is not fitted, and stays as it was"
        for each in figures
        if each.value is None
    ]
    found += [f"{each.name} is at the end of what it can be" for each in figures if each.at_bound]
    if len(told) > 1 and np.linalg.cond(slopes) > 1 / FLAT:
        found.append(f"the runs do not tell {' and '.join(told)} apart: other values do as well")
    peak = np.array([[0.0 if n in EFFICIENCIES.values() else -inf for n in model.names]])
    for sample, bound in zip(model.samples, np.exp(model.logs(peak)[0]), strict=True):
        if sample.seconds < bound * (1 - 1e-9):
            found.append(
                f"{sample.name} took {sample.seconds / float(bound):.3g} of its time at peak rates:"
                " no efficiency explains that; look at its program, sizes, dtype and hardware"
            )
    return found
