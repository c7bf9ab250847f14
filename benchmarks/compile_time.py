"""Time the emitted module of a transformer: how long it compiles, and how long a step takes.

A block is one scan, so compiling must not take longer with its layers: two and 32 of them, side by
side. A whole step (outputs and all gradients) is held against `jax.jit` of the same model written by hand,
with the same shardings of inputs and gradients. All on 8 simulated devices; runs alternate. Needs JAX.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

os.environ["XLA_FLAGS"] = (
    f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
)
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import shardlang as sl

PROGRAM = """\
mesh X=4, Y=2
dtype f32
input x: [B_X, T_Y, D]
param W_vocab: [D_X, V_Y], g_final: [D]
param W_q: [L, D_X, K_Y, G, H], W_k: [L, D_X, K_Y, H], W_v: [L, D_X, K_Y, H]
param W_o: [L, K_Y, G, H, D_X], g_attend: [L, D]
param W_gate: [L, D_X, F_Y], W_up: [L, D_X, F_Y], W_down: [L, F_Y, D_X], g_mlp: [L, D]

layers L:
  a = rmsnorm_D(x) ⊙ g_attend
  q[B_X, T, K_Y, G, H] = a ·_D W_q
  k[B_X, T, K_Y, H] = a ·_D W_k
  v[B_X, T, K_Y, H] = a ·_D W_v
  p[B_X, K_Y, G, T, S] = softmax_S(q ·_H k[B_X, S, K_Y, H])
  o[B_X, T, K_Y, G, H] = p ·_S v[B_X, S, K_Y, H]
  x = x + o ·_{K,G,H} W_o

  m = rmsnorm_D(x) ⊙ g_mlp
  h[B_X, T, F_Y] = silu(m ·_D W_gate[D_X, F_Y]) ⊙ (m ·_D W_up[D_X, F_Y])
  x = x + h ·_F W_down

n = rmsnorm_D(x) ⊙ g_final
logits[B_X, T, V_Y] = n ·_D W_vocab
"""
"""A model like LLaMA 3: FSDP over X, tensor and sequence parallelism over Y."""

SMALL = {"B": 8, "T": 32, "D": 64, "F": 128, "K": 2, "G": 2, "H": 16, "V": 128}
"""Sizes at which a step takes no time beside compiling it."""

STEP = {"B": 16, "T": 128, "D": 256, "F": 512, "K": 4, "G": 2, "H": 32, "V": 512}
"""Sizes at which a step computes."""

Module = dict[str, Any]


def module(layers: int, sizes: dict[str, int]) -> Module:
    """Emit the program with so many layers, and load the module."""
    plan = sl.lower(sl.parse(PROGRAM))
    names: Module = {"__name__": "emitted"}
    exec(compile(sl.emit_jax(plan, {**sizes, "L": layers}), "<emitted>", "exec"), names)  # noqa: S102 - our own text
    return names


def arguments_of(emitted: Module, mesh: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Make inputs and cotangents where the module wants them."""
    rng = np.random.default_rng(0)

    def made(table: Module) -> tuple[Any, ...]:
        return tuple(
            jax.device_put(
                rng.standard_normal(shape).astype(dtype) / np.sqrt(shape[-1]),
                jax.sharding.NamedSharding(mesh, spec),
            )
            for shape, dtype, spec in table.values()
        )

    return made(emitted["INPUTS"]), made(emitted["OUTPUTS"])


def compile_seconds(layers: int) -> tuple[float, float, float]:
    """Give the seconds to trace and lower a whole step, to compile it, and of the processor for both."""
    jax.clear_caches()
    emitted = module(layers, SMALL)
    mesh = emitted["make_mesh"]()
    arguments = arguments_of(emitted, mesh)
    start, used = time.perf_counter(), time.process_time()
    lowered = emitted["forward_backward"].lower(mesh, *arguments)
    middle = time.perf_counter()
    lowered.compile()
    return middle - start, time.perf_counter() - middle, time.process_time() - used


def rmsnorm(x: Any) -> Any:
    """Divide by the root of the mean square along the last dim."""
    return x * lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + 1e-6)


def model(x: Any, head: Any, g_final: Any, *stacks: Any) -> Any:
    """Compute the model as somebody would write it by hand, in the order of the module's inputs."""

    def layer(x: Any, weights: tuple[Any, ...]) -> tuple[Any, None]:
        W_q, W_k, W_v, W_o, g_attend, W_gate, W_up, W_down, g_mlp = weights  # noqa: N806 - the names of the notation
        a = rmsnorm(x) * g_attend
        q = jnp.einsum("btd,dkgh->btkgh", a, W_q)
        k, v = jnp.einsum("btd,dkh->btkh", a, W_k), jnp.einsum("btd,dkh->btkh", a, W_v)
        p = jax.nn.softmax(jnp.einsum("btkgh,bskh->bkgts", q, k), axis=-1)
        o = jnp.einsum("bkgts,bskh->btkgh", p, v)
        x = x + jnp.einsum("btkgh,kghd->btd", o, W_o)
        m = rmsnorm(x) * g_mlp
        return x + (jax.nn.silu(m @ W_gate) * (m @ W_up)) @ W_down, None

    x, _ = lax.scan(layer, x, stacks)
    return (rmsnorm(x) * g_final) @ head


def plain(emitted: Module, mesh: Any) -> Callable[..., Any]:
    """Give the step of the model by hand under `jax.jit`, with the module's shardings."""

    def shardings(table: Module) -> tuple[Any, ...]:
        return tuple(jax.sharding.NamedSharding(mesh, spec) for _, _, spec in table.values())

    def step(inputs: tuple[Any, ...], cotangents: tuple[Any, ...]) -> Any:
        outputs, pullback = jax.vjp(model, *inputs)
        return (outputs,), pullback(cotangents[0])

    inputs, outputs = shardings(emitted["INPUTS"]), shardings(emitted["OUTPUTS"])
    return jax.jit(step, in_shardings=(inputs, outputs), out_shardings=(outputs, inputs))


def seconds(step: Callable[[], Any]) -> float:
    """Time one call, until all that it gives is there."""
    start = time.perf_counter()
    jax.block_until_ready(step())
    return time.perf_counter() - start


def compare_compile(few: int, many: int, rounds: int) -> None:
    """Print the compile times of two numbers of layers, and their ratio."""
    found: dict[int, list[tuple[float, float, float]]] = {few: [], many: []}
    for _ in range(rounds):
        for layers, times in found.items():
            times.append(compile_seconds(layers))
    print(f"{'layers':>8}{'trace, lower':>15}{'compile':>11}{'processor':>12}   ({rounds} runs)")
    middle: dict[int, list[float]] = {}
    for layers, times in found.items():
        middle[layers] = [statistics.median(column) for column in zip(*times, strict=True)]
        lower, compiling, used = middle[layers]
        print(f"{layers:>8}{lower:>13.2f} s{compiling:>9.2f} s{used:>10.2f} s")
    elapsed = sum(middle[many][:2]) / sum(middle[few][:2])
    used = middle[many][2] / middle[few][2]
    print(f"ratio of {many} layers to {few}: {elapsed:.2f} elapsed, {used:.2f} of the processor")


def compare_step(layers: int, runs: int) -> None:
    """Print the times of a step, emitted and by hand, and their ratio; both give the same."""
    jax.clear_caches()
    emitted = module(layers, STEP)
    mesh = emitted["make_mesh"]()
    inputs, cotangents = arguments_of(emitted, mesh)
    hand = plain(emitted, mesh)
    steps = {
        "emitted": lambda: emitted["forward_backward"](mesh, inputs, cotangents),
        "jax.jit": lambda: hand(inputs, cotangents),
    }
    ours, theirs = (jax.tree.leaves(step()) for step in steps.values())
    for one, other in zip(ours, theirs, strict=True):
        error = float(jnp.max(jnp.abs(one - other)) / jnp.max(jnp.abs(other)))
        assert error < 1e-3, error
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(runs):
        for name, step in steps.items():
            times[name].append(seconds(step))
    print(f"\na step of {layers} layers, {runs} runs{'median':>16}{'fastest':>12}")
    for name, found in times.items():
        print(f"{name:<26}{statistics.median(found):>12.3f} s{min(found):>10.3f} s")
    ratios = [one / other for one, other in zip(*times.values(), strict=True)]
    fastest = min(times["emitted"]) / min(times["jax.jit"])
    print(
        f"emitted to jax.jit: {statistics.median(ratios):.2f} (median of pairs), {fastest:.2f} (fastest)"
    )


def main() -> None:
    """Print both comparisons."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, nargs=2, default=(2, 32), help="compared (2 32)")
    parser.add_argument("--rounds", type=int, default=3, help="compilations of each (3)")
    parser.add_argument("--step-layers", type=int, default=4, help="layers of the step (4)")
    parser.add_argument("--runs", type=int, default=20, help="steps of each (20)")
    options = parser.parse_args()
    few, many = options.layers
    compare_compile(few, many, options.rounds)
    compare_step(options.step_layers, options.runs)


if __name__ == "__main__":
    main()
