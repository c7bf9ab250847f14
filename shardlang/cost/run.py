"""A training run: what a step time comes to in tokens/s, MFU, days and dollars.

A step time can be the report's (T_overlapped, T_serial, or that of the simulated schedule), one that
follows from an MFU, or a measured one. From each follow

- tokens/s: the tokens of a step over its time, of all devices and of one;
- utilization: FLOPs over time, devices and C, under each convention. MFU is that of `model`, HFU that
  of `hardware` (`shardlang.cost.conventions`). C is the hardware's peak, whatever E_math is set to;
- with a number of tokens, days and device-hours, and with a price, dollars. Nothing is counted for
  restarts, evaluation and checkpoints.

The tokens of a step are the product of the batch's dims; a step is one pass through the program,
so that a batch of several is `tokens` in all. Everything is a formula where sizes are left open.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TYPE_CHECKING

from shardlang.cost.conventions import CONVENTIONS, Count, Counts, entry
from shardlang.cost.errors import BadRun, NoTokens, UnknownConvention
from shardlang.cost.formula import Formula
from shardlang.cost.quantities import LARGEST, Quantity
from shardlang.diagnostics import Diagnostic, Mistake, ShardlangError
from shardlang.ir.size import Monomial
from shardlang.source import Source, Span

if TYPE_CHECKING:
    from shardlang.cost.report import Report

HOUR, DAY = 3600, 86400
MFU, HFU = "model", "hardware"
"""The conventions of the two utilizations that have a name."""

TIMES: Mapping[str, str] = {
    "overlapped": "T_overlapped",
    "serial": "T_serial",
    "scheduled": "T_scheduled",
    "mfu": "given MFU",
    "measured": "measured",
}
"""The step times that a run may be told for, and what people call them."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """One formula over another, with its value where everything in both is known."""

    top: Formula
    bottom: Formula
    value: Fraction | None

    @property
    def expr(self) -> Any:
        """Give it as a sympy expression."""
        return self.top.sympy() / self.bottom.sympy()

    @property
    def number(self) -> int | float | None:
        """Give the value, None where unknown or beyond 1e300."""
        return Quantity(self.top, self.value).number

    def __str__(self) -> str:
        """Print it as sympy reads it: one formula where the lower one is a product."""
        if len(self.bottom.terms) == 1 and not self.bottom.maxima:
            return str(self.top / self.bottom.terms[0])
        one = len(self.top.terms) == 1 and not self.top.maxima
        return f"{self.top if one else f'({self.top})'}/({self.bottom})"


@dataclass(frozen=True)
class Pace:
    """A step time and what it comes to.

    `utilization` is a share of the peak by convention (those that ask for tokens and have none are
    left out); `achieved` is FLOP/s of a device by convention. `days`, `device_hours` and `usd` are None
    where no number of tokens (or no price) is given. `over_overlapped` and `over_serial` say how many
    times T_overlapped and T_serial the step takes.
    """

    name: str
    seconds: Quantity
    tokens_per_second: Ratio | None
    tokens_per_second_device: Ratio | None
    achieved: Mapping[str, Ratio]
    utilization: Mapping[str, Ratio]
    over_overlapped: Ratio
    over_serial: Ratio
    days: Quantity | None = None
    device_hours: Quantity | None = None
    usd: Quantity | None = None

    @property
    def mfu(self) -> float | None:
        """Model FLOPs utilization: attention in full, nothing counted twice."""
        return self.utilization[MFU].number

    @property
    def hfu(self) -> float | None:
        """Hardware FLOPs utilization: whatever the devices run."""
        return self.utilization[HFU].number

    def to_dict(self) -> dict[str, Any]:
        """Give it as data."""
        return {
            "step": _entry(self.seconds, "seconds"),
            "tokens_per_second": _entry(self.tokens_per_second),
            "tokens_per_second_device": _entry(self.tokens_per_second_device),
            "achieved": {name: _entry(each) for name, each in self.achieved.items()},
            "utilization": {name: _entry(each) for name, each in self.utilization.items()},
            "over_overlapped": _entry(self.over_overlapped),
            "over_serial": _entry(self.over_serial),
            "days": _entry(self.days),
            "device_hours": _entry(self.device_hours),
            "usd": _entry(self.usd),
        }


def _entry(quantity: Quantity | Ratio | None, key: str = "value") -> dict[str, Any] | None:
    if quantity is None:
        return None
    text = str(quantity.formula) if isinstance(quantity, Quantity) else str(quantity)
    return {"formula": text, key: quantity.number}


@dataclass(frozen=True)
class Run:
    """A training run of a report's program.

    `paces` are by the names in `TIMES`. `steps` is None where no number of tokens is given. `price` is
    in USD for a device and an hour, `priced` says where it comes from. `convention` is what the given
    MFU counts, `bubble` says that the step times have the bubble of a pipeline.
    """

    counts: Counts
    devices: Quantity
    tokens: Fraction | None
    step_tokens: Quantity | None
    steps: Quantity | None
    price: Fraction | None
    priced: str
    convention: str
    mfu: Fraction | None
    paces: Mapping[str, Pace]
    bubble: bool = False

    def __getitem__(self, name: str) -> Pace:
        """Give what a step time comes to, by its name in `TIMES`."""
        return self.paces[name]

    def to_dict(self) -> dict[str, Any]:
        """Give it as data."""
        return {
            "devices": entry(self.devices),
            "tokens": _number(self.tokens),
            "tokens_per_step": entry(self.step_tokens),
            "steps": entry(self.steps),
            "price": _number(self.price),
            "priced": self.priced,
            "convention": self.convention,
            "mfu": _number(self.mfu),
            "paces": {name: pace.to_dict() for name, pace in self.paces.items()},
        }


def _number(value: Fraction | None) -> float | None:
    return None if value is None else Quantity(Formula(), value).number


def run(
    report: Report,
    tokens: float | Fraction | None = None,
    mfu: float | Fraction | None = None,
    price: float | Fraction | None = None,
    *,
    convention: str = MFU,
    measured: float | Fraction | None = None,
) -> Run:
    """Tell what a training run of a report's program comes to.

    `tokens` are those of the whole run, `price` in USD for a device and an hour (else the hardware's,
    if it has one), `measured` the seconds of a measured step. With `mfu`, a share of the peak under
    `convention`, there is a step time that follows from it. Raises `ShardlangError` for values that
    make no sense (SH532, SH533), and where tokens are asked for and nothing says what the batch is
    (SH531).
    """
    total = _checked("--tokens", tokens)
    share = _checked("--mfu", mfu, share=True)
    asked = _checked("--price", price)
    seconds = _checked("--measured", measured)
    if convention not in CONVENTIONS:
        _refuse("--convention", convention, UnknownConvention(convention, tuple(CONVENTIONS)))
    counts = report.conventions()
    count = counts[convention]
    if counts.tokens is None and (total is not None or (share is not None and not count.total)):
        program = report.plan.program
        span = program.statements[0].span if program.statements else Span(0, 0)
        raise ShardlangError([Diagnostic(program.source, span, NoTokens())])
    paid, priced = _price(report, asked)
    maker = _Maker(report, counts, total, paid)
    return Run(
        counts=counts,
        devices=counts.devices,
        tokens=total,
        step_tokens=counts.tokens,
        steps=None if maker.steps is None else report.quantity(Formula.of(maker.steps)),
        price=paid,
        priced=priced,
        convention=convention,
        mfu=share,
        paces=maker.paces(share, count, seconds),
        bubble=report.pipeline is not None,
    )


def measured(report: Report, seconds: float | Fraction) -> Pace:
    """Tell what a measured step time comes to. Raises `ShardlangError` (SH532)."""
    return run(report, measured=seconds)["measured"]


def _checked(name: str, given: float | Fraction | None, *, share: bool = False) -> Fraction | None:
    """Give a number, a float as it is written; refuse what is none, or not positive."""
    if given is None:
        return None
    try:
        value = written(given)
    except (ValueError, OverflowError, TypeError):
        value = Fraction(0)
    if value <= 0 or value > (1 if share else LARGEST):
        _refuse(name, str(given), BadRun(name.strip("-"), str(given), share))
    return value


def written(number: float | Fraction) -> Fraction:
    """Give a float as the decimal number that it is written as: 0.4 is 2/5."""
    return Fraction(str(number)) if isinstance(number, float) else Fraction(number)


def _refuse(name: str, text: str, mistake: Mistake) -> None:
    where = Source(name, text)
    raise ShardlangError([Diagnostic(where, Span(0, len(text)), mistake)])


def _price(report: Report, asked: Fraction | None) -> tuple[Fraction | None, str]:
    """Give the price of a device and an hour, and where it comes from."""
    if asked is not None:
        return asked, "given"
    figure = None if report.hardware is None else report.hardware.figures.get("price")
    if figure is None or report.hardware is None:
        return None, ""
    date = f" of {figure.date}" if figure.date else ""
    return written(figure.value), f"{report.hardware.name}, {figure.source}{date}"


class _Maker:
    """Makes paces from step times."""

    def __init__(
        self, report: Report, counts: Counts, tokens: Fraction | None, price: Fraction | None
    ) -> None:
        self.report = report
        self.counts = counts
        self.price = price
        self.peak = Monomial.of(report.symbols.figures["C"])
        (self.devices,) = counts.devices.formula.terms
        self.step_tokens = None if counts.tokens is None else counts.tokens.formula.terms[0]
        self.steps: Monomial | None = None
        if tokens is not None and self.step_tokens is not None:
            self.steps = Monomial(tokens) / self.step_tokens

    def paces(
        self, mfu: Fraction | None, count: Count, seconds: Fraction | None
    ) -> dict[str, Pace]:
        """Give a pace for each time that there is."""
        found = {name: self.step(name) for name in ("overlapped", "serial")}
        serial = self.report.total.quantity("t_serial").value
        if serial is not None:
            pipeline = self.report.pipeline
            share = Fraction(0) if pipeline is None else pipeline.share.value or Fraction(0)
            scheduled = self.report.schedule().seconds
            found["scheduled"] = Formula.of(Monomial(written(scheduled) / (1 - share)))
        if mfu is not None and count.total is not None:
            rate = self.devices * self.peak * mfu
            found["mfu"] = count.total.formula / rate
        if seconds is not None:
            found["measured"] = Formula.of(Monomial(seconds))
        return {name: self.pace(name, time) for name, time in found.items() if time}

    def step(self, name: str) -> Formula:
        """Give a time of the report, with the bubble of a pipeline."""
        pipeline = self.report.pipeline
        times = self.report.total.quantities if pipeline is None else pipeline.times
        return times[f"t_{name}"].formula

    def pace(self, name: str, time: Formula) -> Pace:
        """Give what a step time comes to."""
        tokens = None if self.step_tokens is None else Formula.of(self.step_tokens)
        each = None if tokens is None else tokens / self.devices
        done = {
            name: count.device.formula
            for name, count in self.counts.by_name.items()
            if count.device is not None
        }
        run = None if self.steps is None else time * self.steps
        hours = None if run is None else run * (self.devices / HOUR)
        usd = None if hours is None or self.price is None else hours * Monomial(self.price)
        return Pace(
            name=name,
            seconds=self.report.quantity(time),
            tokens_per_second=None if tokens is None else self.ratio(tokens, time),
            tokens_per_second_device=None if each is None else self.ratio(each, time),
            achieved={key: self.ratio(work, time) for key, work in done.items()},
            utilization={key: self.ratio(w / self.peak, time) for key, w in done.items()},
            over_overlapped=self.ratio(time, self.step("overlapped")),
            over_serial=self.ratio(time, self.step("serial")),
            days=None if run is None else self.report.quantity(run / Monomial(Fraction(DAY))),
            device_hours=None if hours is None else self.report.quantity(hours),
            usd=None if usd is None else self.report.quantity(usd),
        )

    def ratio(self, top: Formula, bottom: Formula) -> Ratio:
        """Divide, where that can be done."""
        above, below = top.value(self.report.known), bottom.value(self.report.known)
        return Ratio(top, bottom, None if above is None or not below else above / below)
