"""What pictures show, in words: for the terminal, and for who can't see them."""

from __future__ import annotations

from shardlang.backends.units import scaled, si
from shardlang.cost.curves import Curve
from shardlang.cost.schedule import Timeline


def regime(curve: Curve, name: str) -> str:
    """Say where a program is compute-bound: `compute-bound where B > 652.8k`."""
    stretches = curve.bound
    if not stretches:
        return "communication-bound all along"
    if stretches == ((None, None),):
        return "compute-bound all along"
    texts: list[str] = []
    for low, high in stretches:
        left = "" if low is None else f"{scaled(low)} < "
        right = "" if high is None else f" < {scaled(high)}"
        texts.append(f"{left}{name}{right}" if high is not None else f"{name} > {scaled(low or 0)}")
    return f"compute-bound where {' or '.join(texts)}"


def summary(found: Timeline) -> str:
    """Say how long a schedule takes, and how much of that the matrix unit waits."""
    share = found.exposed / found.seconds if found.seconds else 0.0
    total, waits = si(found.seconds, "s"), si(found.exposed, "s")
    return f"{total}, of which the matrix unit waits {waits} ({share:.0%})"
