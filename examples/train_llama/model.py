"""The program as a module, its first weights on a mesh, and the training step."""

from __future__ import annotations

import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import data
import jax
import optax

import shardlang as sl

BATCH = ("tokens", "labels")
"""The inputs that are no weights."""


def emitted(program: Path, sizes: dict[str, int]) -> types.ModuleType:
    """Write the program's module for a mesh, and load it."""
    module = types.ModuleType("emitted")
    text = sl.emit_jax(sl.lower(sl.load(program), sizes=sizes), sizes)
    exec(compile(text, str(program), "exec"), module.__dict__)  # noqa: S102 - written just now
    return module


def first_weights(module: Any, mesh: Any, seed: int, layers: int) -> dict[str, Any]:
    """Make the weights of step 0, each process its own shards."""
    found: dict[str, Any] = {}
    for name, (shape, _, _) in module.INPUTS.items():
        if name in BATCH:
            continue
        # W_embed is looked up, W_o and W_down sum what stands before their last dim, others D.
        own = shape if name in ("W_embed", "W_vocab") else shape[1:]
        size = 1
        for each in own:
            size *= each
        terms = size // own[-1] * 2 * layers if name in ("W_o", "W_down") else own[0]

        def make(
            index: data.Index, name: str = name, shape: Any = shape, terms: int = terms
        ) -> Any:
            return data.weight(name, seed, index, shape, terms)

        found[name] = module.place(mesh, name, make)
    return found


def train_step(
    module: Any, mesh: Any, optimizer: optax.GradientTransformation
) -> Callable[..., Any]:
    """Give a function of (weights, state, batch) to (loss, weights, state)."""
    seeds = tuple(module.place(mesh, name, lambda _: 1.0) for name in module.OUTPUTS)

    @jax.jit
    def step(weights: dict[str, Any], state: Any, batch: dict[str, Any], seeds: Any) -> Any:
        inputs = tuple(({**weights, **batch})[name] for name in module.INPUTS)
        (loss,), gradients = module.forward_backward(mesh, inputs, seeds)
        table = dict(zip(module.INPUTS, gradients, strict=True))
        updates, state = optimizer.update({name: table[name] for name in weights}, state, weights)
        return loss, optax.apply_updates(weights, updates), state

    return lambda weights, state, batch: step(weights, state, batch, seeds)


def first_state(optimizer: optax.GradientTransformation, weights: dict[str, Any], mesh: Any) -> Any:
    """Make the optimizer's first state: moments lie as their weights do, counts on every device."""
    whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    shapes = jax.eval_shape(optimizer.init, weights)
    places = optax.tree.map_params(
        optimizer,
        lambda _, weight: weight.sharding,
        shapes,
        weights,
        transform_non_params=lambda _: whole,
    )
    return jax.jit(optimizer.init, out_shardings=places)(weights)


def loss(module: Any, mesh: Any, weights: dict[str, Any], batch: dict[str, Any]) -> Any:
    """Give the loss of a batch alone."""
    (found,) = module.forward(mesh, *({**weights, **batch}[name] for name in module.INPUTS))
    return found
