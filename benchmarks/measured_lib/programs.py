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
from typing import cast

import shardlang as sl
from measured_lib.runs import FOLDER, Layer, Run
from shardlang.cost.report import Report

AXES = ("P", "Z", "X", "Y")
"""Data parallelism between slices and within one, FSDP or the data parallelism of nodes, and what splits a layer."""


@dataclass(frozen=True)
class Times:
    """Seconds of a step: of all FLOPs and of all collectives alone, and of the schedule."""

    math: float
    comms: float
    scheduled: float

    @property
    def overlapped(self) -> float:
        """The lower bound."""
        return max(self.math, self.comms)

    @property
    def serial(self) -> float:
        """With nothing overlapped."""
        return self.math + self.comms


def program(run: Run, layer: Layer, *, blocks: int, save: str) -> str:
    """Write a layer's program.

    Attention reaches over the positions of one of `blocks` blocks of a sequence; with a window,
    over blocks of that size.
    """
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
    lines = [
        f"mesh {', '.join(_axis(run, name) for name in _axes(run, text))}",
        "dims " + ", ".join(f"{name}={size}" for name, size in sizes.items()),
        "dtype bf16",
        f"save {save}",
    ]
    return "\n".join(lines) + "\n" + text


def _axes(run: Run, text: str) -> list[str]:
    used = "".join(re.findall(r"_([PZXY]+)(?=[,\]])", text))
    return [name for name in AXES if name in run.mesh or name in used]


def _axis(run: Run, name: str) -> str:
    size = run.mesh.get(name, 1)
    if name == "P":
        return f"P={size} @dcn"
    return f"{name}={size}" + (f" @part({run.parts_of})" if run.parts_of and size > 1 else "")


@cache
def report(text: str, hardware: str, peak: float | None = None) -> Report:
    """Cost a program by the `link` model, with another peak where one is given."""
    plan = sl.lower(sl.parse(text))
    sets = None if peak is None else {"C": peak}
    return sl.cost(plan, hardware=hardware, model="link", sets=sets)


def saved(run: Run, layer: Layer) -> str:
    """Say what a layer's forward pass keeps, as the `save` line does."""
    if layer.head:
        return "all"
    return LAST.get(layer.parts[-1], "z") if run.save == "full" else run.save


LAST: Mapping[str, str] = {"per_layer": "zz"}
"""The output of a layer's last part, z elsewhere: to save that alone is to save nothing."""


def model_flops(run: Run, layers: tuple[Layer, ...]) -> float:
    """Give the FLOPs of a step on one chip, counted as the run's publisher does."""
    total = 0.0
    for layer in layers:
        text = program(replace(run, capacity=1.0), layer, blocks=1, save="all")
        total += layer.count * _counted(run, layer, report(text, run.hardware))
    return total / run.stages


def _counted(run: Run, layer: Layer, found: Report) -> float:
    flops = 0.0
    for step in found.compute:
        if not step.counted:
            continue
        own = float(step.flops.value or 0)
        dims = {dim.name for array in (*step.step.inputs, step.step.output) for dim in array.tensor.dims}
        attends = {"T", "S"} <= dims
        if attends and run.convention == "causal":
            window = layer.window
            own *= 0.5 if window is None or window >= run.seq else 1 - window / (2 * run.seq)
        elif attends and run.convention == "halves":
            own *= 0.5
        if run.convention == "hardware" and step.pass_ == "forward" and not layer.head:
            own *= 2
        flops += own
    return flops


def times(run: Run, layers: tuple[Layer, ...]) -> Times:
    """Give the times of a step, with the idle time of a pipeline in the schedule alone."""
    math = comms = scheduled = 0.0
    for layer in layers:
        blocks = 2 if run.attention == "causal" else 1
        text = program(run, layer, blocks=blocks, save=saved(run, layer))
        found = report(text, run.hardware, _peak(run, text))
        share = layer.count / run.stages
        math += share * cast("float", found.total.quantity("t_math").number)
        comms += share * cast("float", found.total.quantity("t_comms").number)
        scheduled += share * found.schedule().seconds
    return Times(float(math), float(comms), scheduled * (1 + run.bubble))


def _peak(run: Run, text: str) -> float | None:
    """Give the peak that attention in bf16 and all else in the run's dtype have together, in FLOP/s."""
    if run.peak == "bf16":
        return None
    found = report(text, run.hardware)
    chip = found.hardware
    assert chip is not None
    slow, fast = (float(chip.flops[name].value) for name in ("bf16", run.peak))
    attention = rest = 0.0
    for step in found.compute:
        dims = {dim.name for array in (*step.step.inputs, step.step.output) for dim in array.tensor.dims}
        own = float(step.flops.value or 0) if step.counted else 0.0
        if {"T", "S"} <= dims:
            attention += own
        else:
            rest += own
    return (attention + rest) / (attention / slow + rest / fast)
