"""From a run to figures: its layers as programs, costed by the library, and added up.

A layer's program is the header that the run gives (mesh, dims, what is saved) and the parts of its
kind. Layers of a kind are alike, so that one is costed and counted as often as there are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache

import shardlang as sl
from measured_lib import memory
from measured_lib.runs import FOLDER, Layer, Run
from shardlang.cost.report import Report
from shardlang.ir.plan import Plan

AXES = ("P", "Z", "X", "Y")
"""Data parallelism between slices and within one, FSDP or the data parallelism of nodes, and what
splits a layer."""

LAST: Mapping[str, str] = {"per_layer": "zz"}
"""The output of a layer's last part, z elsewhere: to save that alone is to save nothing."""

ATTENTION_RATE = Fraction(1, 2)
"""The estimate's: what share of a contraction's rate the two of attention have, on any chip."""

EXPOSED = 0.5
"""The estimate's: what share of the communication that the schedule hides does take time."""


@dataclass(frozen=True)
class Times:
    """Seconds of a step.

    `math` and `comms` are those of all FLOPs and of all collectives alone, `scheduled` has the
    pipeline's idle time, and so has the `estimate`.
    """

    math: float
    comms: float
    scheduled: float
    estimate: float

    @property
    def overlapped(self) -> float:
        """The lower bound."""
        return max(self.math, self.comms)

    @property
    def serial(self) -> float:
        """With nothing overlapped."""
        return self.math + self.comms


def program(run: Run, layer: Layer, *, causal: bool, save: str) -> str:
    """Write a layer's program.

    With `causal`, attention has the FLOPs that a causal mask leaves: a sequence is two blocks that
    attend to themselves alone. With a window it is blocks of that size.
    """
    blocks = 2 if causal else 1
    if layer.window is not None and layer.window < run.seq:
        blocks = run.seq // layer.window
    sizes = {"B": run.batch, "A": blocks, "T": run.seq // blocks, "S": run.seq // blocks}
    if layer.experts:
        experts = layer.dims["E"]
        places = Fraction(run.seq * layer.experts, experts) * Fraction(run.capacity)
        sizes |= {"O": experts, "J": int(places)}
    sizes |= layer.dims
    text = "".join((FOLDER / "parts" / f"{part}.shd").read_text("utf-8") for part in layer.parts)
    for old, new in (*layer.layout.items(), *run.layout.items()):
        text = text.replace(old, new)
    used = "".join(re.findall(r"_([PZXY]+)(?=[,\]])", text))
    axes = [name for name in AXES if name in run.mesh or name in used]
    lines = (
        f"mesh {', '.join(_axis(run, name) for name in axes)}",
        f"hardware {run.hardware}",
        "dims " + ", ".join(f"{name}={size}" for name, size in sizes.items()),
        "dtype bf16",
        f"save {save}",
    )
    return "\n".join(lines) + "\n" + text


def _axis(run: Run, name: str) -> str:
    size = run.mesh.get(name, 1)
    if name == "P":
        return f"P={size} @dcn"
    return f"{name}={size}" + (f" @part({run.parts_of})" if run.parts_of and size > 1 else "")


def step_program(run: Run, layer: Layer) -> str:
    """Write the program of a layer as the run executes it."""
    save = LAST.get(layer.parts[-1], "z") if run.save == "full" else run.save
    return program(run, layer, causal=run.attention == "causal", save="all" if layer.head else save)


@cache
def report(text: str, peak: Fraction | None = None, *, forward_only: bool = False) -> Report:
    """Cost a program by the `link` model, at another peak in FLOP/s where one is given."""
    sets = None if peak is None else {"C": float(peak)}
    return sl.cost(_plan(text, forward_only), model="link", sets=sets)


@cache
def _plan(text: str, forward_only: bool) -> Plan:  # noqa: FBT001 - a key of the cache
    return sl.lower(sl.parse(text), forward_only=forward_only)


def model_flops(run: Run, layers: tuple[Layer, ...]) -> float:
    """Give the FLOPs of a step on one chip, counted as the run's publisher does."""
    one = replace(run, capacity=1.0)
    total = sum((layer.count * _counted(one, layer) for layer in layers), Fraction(0))
    return float(total / run.chips)


def _counted(run: Run, layer: Layer) -> Fraction:
    text = program(run, layer, causal=False, save="all")
    whole, halved = (_count(text, name) for name in ("model", "model-causal"))
    match run.convention:
        case "full":
            return whole
        case "halves":
            return halved
        case "causal" if layer.window is None or layer.window >= run.seq:
            return halved
        case "causal":  # the first window of a sequence is a triangle
            return whole - (whole - halved) * Fraction(layer.window, run.seq)
        case "hardware":
            return whole + (0 if layer.head else _count(text, "model", forward_only=True))


def _count(text: str, convention: str, *, forward_only: bool = False) -> Fraction:
    total = report(text, forward_only=forward_only).conventions()[convention].total
    assert total is not None
    assert total.value is not None
    return total.value


def times(run: Run, layers: tuple[Layer, ...]) -> Times:
    """Give the times of a step."""
    found = [_layer_times(run, layer) for layer in layers]
    shares = [layer.count / run.stages for layer in layers]
    math, comms, scheduled, estimate = (
        sum(share * own[i] for share, own in zip(shares, found, strict=True)) for i in range(4)
    )
    return Times(math, comms, scheduled * (1 + run.bubble), estimate * (1 + run.bubble))


def _layer_times(run: Run, layer: Layer) -> tuple[float, float, float, float]:
    """Give T_math, T_comms, the schedule and the estimate for one layer, in seconds.

    Attention that is one fused kernel reads and writes no scores, so that the roofline of HBM
    holds only for one that is not.
    """
    text = step_program(run, layer)
    fused = run.attention == "causal"
    own = report(text, _peak(run, text))
    slower = report(text, _peak(run, text, ATTENTION_RATE))
    math, comms = (float(own.total.quantity(name).value or 0) for name in ("t_math", "t_comms"))
    scheduled = slower.schedule(hbm=not fused).seconds
    serial = float(slower.total.quantity("t_serial").value or 0)
    exposed = EXPOSED * max(0.0, serial - scheduled)
    estimate = scheduled + exposed + memory.elementwise(own, fused=fused)
    return math, comms, own.schedule(hbm=not fused).seconds, estimate


def _peak(run: Run, text: str, attention_rate: Fraction = Fraction(1)) -> Fraction | None:
    """Give the peak of a program whose attention is in bf16 and the rest in the run's dtype.

    It is what both have together, in FLOP/s; None for the chip's own.
    """
    if run.peak == "bf16" and attention_rate == 1:
        return None
    found = report(text)
    chip = found.hardware
    assert chip is not None
    counts = found.conventions()
    whole, halved = (counts[name].total for name in ("hardware", "hardware-causal"))
    assert whole is not None
    assert halved is not None
    assert whole.value is not None
    assert halved.value is not None
    attention = 2 * (whole.value - halved.value)
    slow = Fraction(chip.peak("bf16") or 0) * attention_rate
    fast = Fraction(chip.peak(run.peak) or 0)
    return whole.value / (attention / slow + (whole.value - attention) / fast)
