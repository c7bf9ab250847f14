"""The program as a module, its first weights on a mesh, and the training step."""

from __future__ import annotations

import math
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

Tree = dict[str, Any]


def emitted(program: Path, sizes: dict[str, int]) -> Any:
    """Write the program's module for a mesh, and load it."""
    module = types.ModuleType("emitted")
    text = sl.emit_jax(sl.lower(sl.load(program), sizes=sizes), sizes)
    exec(compile(text, str(program), "exec"), module.__dict__)  # noqa: S102 - written just now
    return module


def first_weights(module: Any, mesh: Any, seed: int) -> Tree:
    """Make the weights of step 0, each process its own shards."""

    def made(name: str, shape: tuple[int, ...]) -> Any:
        terms = _terms(name, shape)
        return module.place(mesh, name, lambda index: data.weight(name, seed, index, shape, terms))

    return {
        name: made(name, shape)
        for name, (shape, _, _) in module.INPUTS.items()
        if name not in BATCH
    }


def _terms(name: str, shape: tuple[int, ...]) -> int:
    """Give the number of products that a weight's results are sums of.

    The residual stream adds up what two weights of each layer give, so they count for it too.
    """
    if name.startswith("g_"):
        return 1  # gains multiply one number each
    if name in ("W_embed", "W_vocab"):
        return shape[-1] if name == "W_embed" else shape[0]
    layers, *own = shape
    return math.prod(own[:-1]) * 2 * layers if name in ("W_o", "W_down") else own[0]


def first_state(optimizer: optax.GradientTransformation, weights: Tree, mesh: Any) -> Any:
    """Make the optimizer's first state: moments lie as their weights do, counts on every device."""
    whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    places = optax.tree.map_params(
        optimizer,
        lambda _, weight: weight.sharding,
        jax.eval_shape(optimizer.init, weights),
        weights,
        transform_non_params=lambda _: whole,
    )
    return jax.jit(optimizer.init, out_shardings=places)(weights)


def train_step(
    module: Any, mesh: Any, optimizer: optax.GradientTransformation
) -> Callable[[Tree, Any, Tree], tuple[Any, Tree, Any]]:
    """Give a function of (weights, state, batch) to (loss, weights, state)."""
    one = module.place(mesh, "loss", lambda _: 1.0)

    @jax.jit
    def step(weights: Tree, state: Any, batch: Tree, one: Any) -> Any:
        inputs = tuple((weights | batch)[name] for name in module.INPUTS)
        (loss,), gradients = module.forward_backward(mesh, inputs, (one,))
        table = dict(zip(module.INPUTS, gradients, strict=True))
        updates, state = optimizer.update({name: table[name] for name in weights}, state, weights)
        return loss, optax.apply_updates(weights, updates), state

    return lambda weights, state, batch: step(weights, state, batch, one)


def loss(module: Any, mesh: Any, weights: Tree, batch: Tree) -> float:
    """Give the loss of a batch, with no step."""
    (found,) = module.forward(mesh, *((weights | batch)[name] for name in module.INPUTS))
    return float(found)
