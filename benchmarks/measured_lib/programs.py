"""From a run to figures: its model as programs, costed by the library, and added up.

A model is one program, a block of layers and the head behind it, where all its layers are alike and on
all devices. Each further kind of layer is a program of its own, since attention within a window and over
all positions need different dims, and so is the head of a pipeline, which one stage has alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache

import shardlang as sl
from measured_lib import memory
from measured_lib.runs import FOLDER, Layer, Model, Run
from shardlang.cost.report import Report
from shardlang.ir.plan import Plan

AXES = ("P", "Z", "X", "Y")
"""Data parallelism between slices and within one, FSDP or the data parallelism of nodes, and what
splits a layer."""

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


@dataclass(frozen=True)
class Piece:
    """A program of a model, and the share of its work that a device has: `kind` and `head` are in it."""

    kind: Layer | None
    head: Layer | None
    share: Fraction = Fraction(1)


def pieces(run: Run, model: Model, *, joined: bool) -> tuple[Piece, ...]:
    """Cut a model into programs: the head with the last kind of layer if `joined`, else by itself."""
    *kinds, head = model
    share = Fraction(1, run.stages)
    if joined and run.stages == 1:
        *others, last = kinds
        return (*(Piece(kind, None) for kind in others), Piece(last, head))
    return (*(Piece(kind, None) for kind in kinds), Piece(None, head, share))


def program(run: Run, piece: Piece, *, causal: bool, save: str) -> str:
    """Write a piece of a model as a program.

    With `causal`, attention has the FLOPs that a causal mask leaves: a sequence is two blocks that
    attend to themselves alone. With a window it is blocks of that size. To save "full" is to keep
    what layers hand on, and compute all else again.
    """
    layers = [layer for layer in (piece.kind, piece.head) if layer is not None]
    blocks = 2 if causal else 1
    window = layers[0].window
    if window is not None and window < run.seq:
        blocks = run.seq // window
    sizes = {"B": run.batch, "A": blocks, "T": run.seq // blocks, "S": run.seq // blocks}
    declared: dict[str, str] = {}
    lines: list[str] = []
    for layer in layers:
        sizes |= layer.dims | _experts(run, layer)
        own, body = _split(_text(run, layer))
        for line in own:
            declared.setdefault(line.partition(":")[0], line)
        lines += body if layer is piece.head else ["layers L:", *(f"  {line}" for line in body)]
    if piece.kind is not None:
        sizes["L"] = piece.kind.count // run.stages
    if piece.head is None:
        home = declared["input x"].removeprefix("input x: ")
        lines.append(f"end{home} = x{home}")
    kept = {"full": "end" if piece.head is None else "logits"}.get(save, save)
    used = "".join(re.findall(r"_([PZXY]+)(?=[,\]])", "\n".join((*declared.values(), *lines))))
    axes = [name for name in AXES if name in run.mesh or name in used]
    head = (
        f"mesh {', '.join(_axis(run, name) for name in axes)}",
        f"hardware {run.hardware}",
        "dims " + ", ".join(f"{name}={size}" for name, size in sizes.items()),
        "dtype bf16",
        f"save {'all' if piece.kind is None else kept}",
    )
    return "\n".join((*head, *declared.values(), *lines)) + "\n"


def _experts(run: Run, layer: Layer) -> dict[str, int]:
    """Give the sizes of routing: its scores, and how many positions of a sequence an expert gets."""
    if not layer.experts:
        return {}
    experts = layer.dims["E"]
    places = Fraction(run.seq * layer.experts, experts) * Fraction(run.capacity)
    return {"O": experts, "J": int(places)}


def _text(run: Run, layer: Layer) -> str:
    """Put a layer's parts together, in the run's layout."""
    text = "".join((FOLDER / "parts" / f"{part}.shd").read_text("utf-8") for part in layer.parts)
    for old, new in (*layer.layout.items(), *run.layout.items()):
        text = text.replace(old, new)
    return text


def _split(text: str) -> tuple[list[str], list[str]]:
    """Part declarations from statements, without comments."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    declared = [line for line in lines if line.startswith(("input ", "param "))]
    return declared, [line for line in lines if line not in declared]


def _axis(run: Run, name: str) -> str:
    size = run.mesh.get(name, 1)
    if name == "P":
        return f"P={size} @dcn"
    return f"{name}={size}" + (f" @part({run.parts_of})" if run.parts_of and size > 1 else "")


def step_programs(run: Run, model: Model) -> tuple[tuple[str, Fraction], ...]:
    """Write the programs of a run as it executes them, each with its share."""
    causal = run.attention == "causal"
    found = pieces(run, model, joined=True)
    return tuple(
        (program(run, piece, causal=causal, save=run.save), piece.share) for piece in found
    )


@cache
def report(
    text: str, peak: Fraction | None = None, *, forward_only: bool = False, hbm: bool = False
) -> Report:
    """Cost a program by the `link` model, at another peak in FLOP/s where one is given."""
    sets = None if peak is None else {"C": float(peak)}
    return sl.cost(_plan(text, forward_only), model="link", sets=sets, hbm=hbm)


@cache
def _plan(text: str, forward_only: bool) -> Plan:
    return sl.lower(sl.parse(text), forward_only=forward_only)


def model_flops(run: Run, model: Model) -> float:
    """Give the FLOPs of a step on one chip, counted as the run's publisher does."""
    one = replace(run, capacity=1.0, stages=1)
    found = pieces(one, model, joined=False)
    return float(sum((_counted(one, piece) for piece in found), Fraction(0)) / run.chips)


def _counted(run: Run, piece: Piece) -> Fraction:
    text = program(run, piece, causal=False, save="all")
    whole, halved = (_count(text, name) for name in ("model", "model-causal"))
    window = None if piece.kind is None else piece.kind.window
    match run.convention:
        case "full":
            return whole
        case "halves":
            return halved
        case "causal" if window is None or window >= run.seq:
            return halved
        case "causal":  # the first window of a sequence is a triangle
            return whole - (whole - halved) * Fraction(window, run.seq)
        case "hardware":
            again = 0 if piece.kind is None else _count(text, "model", forward_only=True)
            return whole + again


def _count(text: str, convention: str, *, forward_only: bool = False) -> Fraction:
    total = report(text, forward_only=forward_only).conventions()[convention].total
    assert total is not None
    assert total.value is not None
    return total.value


def times(run: Run, model: Model) -> Times:
    """Give the times of a step."""
    found = [
        tuple(float(share) * seconds for seconds in _times(run, text))
        for text, share in step_programs(run, model)
    ]
    math, comms, scheduled, estimate = (sum(column) for column in zip(*found, strict=True))
    return Times(math, comms, scheduled * (1 + run.bubble), estimate * (1 + run.bubble))


def _times(run: Run, text: str) -> tuple[float, float, float, float]:
    """Give T_math, T_comms, the schedule and the estimate of one program, in seconds.

    Attention that is one fused kernel reads and writes no scores, so that the roofline of HBM
    holds only for one that is not.
    """
    fused = run.attention == "causal"
    peak, slower = _peak(run, text), _peak(run, text, ATTENTION_RATE)
    own = report(text, peak)
    math, comms = (float(own.total.quantity(name).value or 0) for name in ("t_math", "t_comms"))
    scheduled = _scheduled(text, slower, roofline=not fused)
    serial = float(report(text, slower).total.quantity("t_serial").value or 0)
    exposed = EXPOSED * max(0.0, serial - scheduled)
    estimate = scheduled + exposed + memory.elementwise(own, fused=fused)
    return math, comms, _scheduled(text, peak, roofline=not fused), estimate


def _scheduled(text: str, peak: Fraction | None, *, roofline: bool) -> float:
    """Give the seconds of a program's schedule."""
    return report(text, peak, hbm=roofline).schedule().seconds


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
