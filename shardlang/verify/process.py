"""Runs a verification in a process of its own, with as many simulated devices as it needs."""

from __future__ import annotations

import importlib.util
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from shardlang.backends.jax.emit import emittable
from shardlang.backends.jax.errors import failure, JaxMissing, VerifyFailedToRun
from shardlang.ir.plan import Plan
from shardlang.passes.normal import on_one_stage
from shardlang.pipelines.orders import ORDERS
from shardlang.verify.result import VerifyResult
from shardlang.verify.sizes import small_sizes

MOST_DEVICES = 512
"""The most devices that a process simulates."""

NOT_ON_STAGES = (
    "all layers of the pipeline are run on every stage, and nothing is sent between stages: "
    "code is not written for its schedule"
)
"""What is said of a pipeline that is not run as one."""


def verify(
    plan: Plan,
    *,
    sizes: Mapping[str, int] | None = None,
    timeout: float = 900.0,
) -> VerifyResult:
    """Emit a plan, run it on simulated host devices, and compare it with an unsharded reference.

    Of a program with an update both passes of one batch are run, and the training step, twice by each optimizer,
    with all of its microbatches. A pipeline is run with all of its microbatches, where its schedule is one that is emitted; else all of
    its layers are run on every stage.
    Compares outputs and gradients in the plan's own dtypes and again with f32 in place of narrow
    floats, and the collectives of the plan with those that JAX lowered, those of blocks as often as there
    are layers. Dims (and meshes of more than 16 devices, and blocks of more than 4 layers) are made
    small, but for what `sizes` gives. `timeout` is in seconds.
    """
    if plan.program.pipeline is not None and plan.program.pipeline.schedule not in ORDERS:
        plan = on_one_stage(plan)
        notes = (NOT_ON_STAGES,)
    else:
        notes = ()
    emittable(plan, sizes)
    if importlib.util.find_spec("jax") is None:
        raise failure(plan, JaxMissing())
    given = {**(sizes or {})}
    environment = dict(os.environ)
    count = f"--xla_force_host_platform_device_count={_devices(plan, given)}"
    environment["XLA_FLAGS"] = f"{environment.get('XLA_FLAGS', '')} {count}".strip()
    environment["JAX_PLATFORMS"] = "cpu"
    found = _run(plan, given, environment, timeout)
    return replace(found, notes=(*notes, *found.notes))


def _run(
    plan: Plan, given: Mapping[str, int], environment: dict[str, str], timeout: float
) -> VerifyResult:
    """Run the check in a process of its own."""
    environment = dict(environment)
    root = str(Path(__file__).resolve().parents[2])
    paths = [root, *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
    environment["PYTHONPATH"] = os.pathsep.join(paths)
    command = [sys.executable, "-m", "shardlang.verify"]
    try:
        done = subprocess.run(  # noqa: S603 - our own interpreter and module
            command,
            input=pickle.dumps((plan, given)),
            capture_output=True,
            env=environment,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        text = f"it did not end within {timeout:.0f} s"
        raise failure(plan, VerifyFailedToRun(text)) from None
    answer = done.stdout.decode("utf-8", "replace").strip().rsplit("\n", 1)[-1]
    try:
        plain = json.loads(answer)
    except json.JSONDecodeError:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines() or ["no output"]
        raise failure(plan, VerifyFailedToRun(lines[-1][:500])) from None
    return VerifyResult.from_dict(plain)


def _devices(plan: Plan, sizes: Mapping[str, int]) -> int:
    """Say how many devices the run will need, without loading JAX."""
    devices = small_sizes(plan, sizes).devices
    if devices > MOST_DEVICES:
        text = f"the mesh has {devices} devices, and at most {MOST_DEVICES} can be simulated"
        raise failure(plan, VerifyFailedToRun(text))
    return devices
