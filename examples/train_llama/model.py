"""The program as a module, its first weights on a mesh, and its loss."""

from __future__ import annotations

import math
import types
from pathlib import Path
from typing import Any

import data

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


def loss(module: Any, mesh: Any, weights: Tree, batch: Tree) -> float:
    """Give the loss of a batch, with no step."""
    (found,) = module.forward(mesh, *((weights | batch)[name] for name in module.INPUTS))
    return float(found)
