"""Our side: plan, emit, compile, count, compare with the plain program, and time both."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import jax
import numpy as np

import shardlang as sl
from peers_lib import hlo, xla
from shardlang.ir.plan import Plan
from shardlang.ir.printer import print_plan
from shardlang.planner.prices import price_all

RUNS = 9
"""Timed runs of each program, by turns."""


FAINT = 1e-2
"""An array whose values are all smaller than this part of the largest is compared at that scale."""


def moved(plan: Plan) -> Fraction:
    """Add up the bytes that the plan says a device sends."""
    program = plan.program
    return price_all((*plan.forward, *plan.backward), program.mesh, program.sizes.known)


def measure(text: str, *, budget: float, wall: bool) -> dict[str, Any]:
    """Plan a program and run it: bytes planned and counted, gap, seconds, errors and wall times."""
    program = sl.parse(text)
    start = time.perf_counter()
    plan = sl.lower(program, "optimal", prices="link", objective="bytes", budget=budget)
    seconds = time.perf_counter() - start
    module: dict[str, Any] = {"__name__": "emitted"}
    exec(compile(sl.emit_jax(plan), "<emitted module>", "exec"), module)  # noqa: S102 - our text
    given = xla.sharded(text)
    mesh = module["make_mesh"](given.mesh.devices.ravel().tolist(), module["MESH_AXES"])
    inputs, cotangents = _data(given)
    # the module's own specs: its mesh may have parts of the program's axes
    placed = tuple(
        jax.device_put(x, jax.sharding.NamedSharding(mesh, module["INPUTS"][a.name][2]))
        for x, a in zip(inputs, given.leaves, strict=True)
    )
    seeds = tuple(
        jax.device_put(x, jax.sharding.NamedSharding(mesh, module["OUTPUTS"][a.name][2]))
        for x, a in zip(cotangents, given.ends, strict=True)
    )
    ours = module["forward_backward"].lower(mesh, placed, seeds).compile()
    counted = hlo.count(ours.as_text())
    proof = plan.proof
    answer: dict[str, Any] = {
        "bytes": float(counted.raw),
        "planned": float(moved(plan)),
        "gap": None if proof is None else float(proof.gap),
        "seconds": seconds,
        "warnings": list(plan.warnings),
        "collectives": list(counted.collectives),
        "plan": print_plan(plan),
    }
    outputs, gradients = ours(placed, seeds)
    wanted, slopes = jax.jit(given.plain(xla.Numpy()))(inputs, cotangents)
    names = {module_name: i for i, module_name in enumerate(module["OUTPUTS"])}
    order = [names[a.name] for a in given.ends]
    answer["error"] = _error([*(outputs[i] for i in order), *gradients], [*wanted, *slopes])
    if wall:
        answer["wall"] = _times(
            ours, (placed, seeds), xla.compiled(text), given, inputs, cotangents
        )
    return answer


def _data(given: xla.Sharded) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Make numbers of both signs; small ones, so that sums of products stay moderate."""
    rng = np.random.default_rng(0)
    ins, seeds = given.arguments()

    def draw(shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        return (0.35 * rng.standard_normal(shape)).astype(np.float32)

    return tuple(draw(x.shape) for x in ins), tuple(draw(x.shape) for x in seeds)


def _error(found: Sequence[Any], wanted: Sequence[Any]) -> float:
    """Give the largest difference of any array, relative to that array's largest value.

    A gradient that is zero but for rounding (of what a softmax takes away again) has no largest value
    of its own: arrays count as at least `FAINT` of the largest of all.
    """
    wide = [np.asarray(x, np.float64) for x in wanted]
    largest = max(float(np.max(np.abs(x), initial=0.0)) for x in wide)
    worst = 0.0
    for got, want in zip(found, wide, strict=True):
        if got.shape != want.shape:
            return float("inf")
        scale = max(float(np.max(np.abs(want), initial=0.0)), FAINT * largest, 1e-30)
        error = float(np.max(np.abs(np.asarray(got, np.float64) - want), initial=0.0)) / scale
        if not np.isfinite(error):
            return float("inf")
        worst = max(worst, error)
    return worst


def _times(
    ours: Any, mine: tuple[Any, Any], theirs: Any, given: xla.Sharded, inputs: Any, cotangents: Any
) -> dict[str, float]:
    """Time both programs by turns, in seconds, and give their medians."""
    other = tuple(
        tuple(jax.device_put(x, given.sharding(a)) for x, a in zip(values, arrays, strict=True))
        for values, arrays in ((inputs, given.leaves), (cotangents, given.ends))
    )
    taken: tuple[list[float], list[float]] = ([], [])
    for _ in range(RUNS):
        for place, (run, arguments) in enumerate(((ours, mine), (theirs, other))):
            start = time.perf_counter()
            jax.block_until_ready(run(*arguments))
            taken[place].append(time.perf_counter() - start)
    return {"ours": statistics.median(taken[0]), "jit": statistics.median(taken[1])}
