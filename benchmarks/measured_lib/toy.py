"""A planner's formula on a napkin, to compare with: six terms, from the sizes of a model alone.

compute, the FLOPs of 6 a parameter and token and of attention over the peak; tensor parallelism, four
AllReduces of the residual stream a layer; data parallelism or FSDP, two passes over the parameters; the
pipeline's bubble, over all of these; memory, weights and optimizer read once; a constant.
"""

from __future__ import annotations

import math

from measured_lib.runs import Layer, Model, Run
from shardlang.hardware.catalogue import load_hardware

CONSTANT = 0.01
"""Seconds of a step that nothing explains."""

OPTIMIZER_BYTES = 16
"""Bytes of a parameter that a step reads and writes."""


def seconds(run: Run, model: Model) -> float:
    """Give the six-term time of a step."""
    chip = load_hardware(run.hardware)
    peak, ici, dcn, hbm = (chip.get(name) or 0 for name in ("C", "W_ici", "W_dcn", "W_hbm"))
    peak = chip.peak(run.peak) or peak
    split = run.mesh.get("Y", 1)
    tokens = run.batch * run.seq
    parameters = sum(layer.count * _parameters(layer) for layer in model)
    active = sum(layer.count * _parameters(layer, active=True) for layer in model)
    attention = sum(
        12 * layer.count * _width(layer) * min(layer.window or run.seq, run.seq)
        for layer in model
        if not layer.head
    )
    held = parameters / (split * run.stages)
    wide = max(layer.dims["D"] for layer in model)
    deep = sum(layer.count for layer in model) - 1
    replicas = math.prod(run.mesh.get(axis, 1) for axis in "PZX")
    near = replicas // run.mesh.get("P", 1)
    near = min(near, max(1, int(chip.get("node") or near * split) // split))
    compute = (6 * active + attention) * tokens / (run.chips * peak)
    tensor = 0 if split == 1 else 16 * deep / run.stages * tokens / replicas * wide / ici
    data = (4 * held / ici if near > 1 else 0) + (4 * held / near / dcn if replicas > near else 0)
    bubble = run.bubble * (compute + tensor)
    memory = OPTIMIZER_BYTES * parameters / run.chips / hbm
    return compute + tensor + data + bubble + memory + CONSTANT


def _width(layer: Layer) -> int:
    """Give the width of all heads together."""
    dims = layer.dims
    return dims.get("N", 1) * dims.get("G", 1) * dims.get("K", 1)


def _parameters(layer: Layer, *, active: bool = False) -> int:
    """Count a layer's parameters, or those that a position uses."""
    dims = layer.dims
    if layer.head:
        return dims["D"] * dims["V"]
    keys = dims.get("N", 1) * dims.get("K", 1)
    own = 2 * dims["D"] * (_width(layer) + keys)
    matrices = 2 if layer.parts[-1] in {"plain", "megatron", "megatron_sp"} else 3
    experts = layer.experts if active else dims.get("E", 1)
    return own + matrices * dims["D"] * (dims["F"] * (experts or 1) + dims.get("H", 0))
