"""Numbers for people: SI prefixes and four digits at most."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardlang.cost.quantities import Quantity

if TYPE_CHECKING:
    from shardlang.cost.report import Report

_LARGE = ("", "k", "M", "G", "T", "P", "E", "Z", "Y")
_SMALL = ("", "m", "µ", "n", "p", "f")
UNITS = {"flops": "FLOP", "elementwise": "FLOP", "bytes": "B", "hbm_bytes": "B", "fused_bytes": "B"}


def si(value: float, unit: str) -> str:
    """Print a number with its unit: `33.55 MB`, `1.2 ms`, `0 B`."""
    if not value:
        return f"0 {unit}"
    prefixes, step = (_LARGE, 1000.0) if unit != "s" or abs(value) >= 1 else (_SMALL, 0.001)
    if unit == "s" and abs(value) >= 1:
        prefixes = ("",)
    index = 0
    while index + 1 < len(prefixes) and (
        abs(value) >= 999.95 if step > 1 else abs(value) < 0.99995
    ):
        value /= step
        index += 1
    return f"{value:.4g} {prefixes[index]}{unit}"


def amount(quantity: Quantity, unit: str) -> str:
    """Print a quantity's value with its unit, nothing where it is unknown or plainly zero."""
    number = quantity.number if quantity.formula else None
    return "" if number is None else si(float(number), unit)


def fit(report: Report) -> str:
    """Say whether the memory fits: `total 14.12 GB of 16 GB: 88.2%, 1.88 GB left`; nothing where unknown."""
    name, needed = report.needed
    total, share = needed.number, report.share
    if total is None or share is None or report.capacity is None:
        return ""
    size = float(report.capacity)
    what = "at once" if name == "peak" else name
    taken = f"{what} {si(float(total), 'B')} of {si(size, 'B')}"
    if share > 1:
        return f"{taken}: {share:.4g} times as much"
    return f"{taken}: {100 * share:.3g}%, {si(size - float(total), 'B')} left"


def count(value: float) -> str:
    """Print a size of a dim: `48_000`."""
    return f"{value:_}"


def scaled(value: float, unit: str = "") -> str:
    """Print a number in four digits with a prefix, as options take it: `3.482M`, `11.75`, `0.5`."""
    for prefix, size in _PREFIXES:
        if size * 0.99995 <= abs(value) < _PREFIXES[0][1] * 1000:
            return f"{value / size:.4g}{unit and ' '}{prefix}{unit}"
    return f"{value:.4g}{unit and ' '}{unit}"


_PREFIXES = (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3))
