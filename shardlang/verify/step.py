"""Training steps with nothing sharded: what those of an emitted module are held against."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

STEPS = 2
"""How many steps are compared: the second one has the state that the first one left."""

NO_OPTAX = (
    "adamw was left out, since optax is not installed: of the optimizers sgd alone was compared"
)

Tree = dict[str, Any]


class Sgd:
    """Gradient descent, as optax has it: an optimizer that needs no optax."""

    def __init__(self, rate: float) -> None:
        """Take the learning rate."""
        self._rate = rate

    def init(self, parameters: Tree) -> tuple[()]:
        """Give the state, which is none."""
        del parameters
        return ()

    def update(self, gradients: Tree, state: tuple[()], parameters: Tree) -> tuple[Tree, tuple[()]]:
        """Give what is added to the parameters."""
        del parameters
        return {name: -self._rate * x for name, x in gradients.items()}, state


def optimizers() -> Mapping[str, Any]:
    """Give the optimizers that steps are compared with: adamw where optax is installed."""
    found: dict[str, Any] = {"sgd": Sgd(0.1)}
    if importlib.util.find_spec("optax") is not None:
        import optax  # noqa: PLC0415 - it need not be there

        # Gradients that are 0 but for rounding move nothing by this eps.
        found["adamw"] = optax.adamw(0.02, eps=1e-2, weight_decay=0.1)
    return found


def trained(
    loss: Callable[[Tree], Any], parameters: Tree, optimizer: Any
) -> tuple[tuple[float, ...], Tree]:
    """Take steps on whole arrays, down the gradient of a loss: give the losses before each, and the parameters."""

    @jax.jit
    def step(parameters: Tree, state: Any) -> tuple[Any, Tree, Any]:
        value, gradients = jax.value_and_grad(loss)(parameters)
        updates, state = optimizer.update(gradients, state, parameters)
        return value, {name: x + updates[name] for name, x in parameters.items()}, state

    state, losses = optimizer.init(parameters), list[float]()
    for _ in range(STEPS):
        value, parameters, state = step(parameters, state)
        losses.append(float(value))
    return tuple(losses), parameters


def weighted(
    outputs: Callable[[Tree], Mapping[str, Any]], parameters: Tree, seeds: Tree
) -> tuple[Mapping[str, Any], Tree]:
    """Give outputs of whole arrays, and the gradients of the parameters for cotangents of some of them."""

    def total(parameters: Tree) -> tuple[Any, Mapping[str, Any]]:
        found = outputs(parameters)
        return sum(jnp.sum(found[name] * seed) for name, seed in seeds.items()), found

    (_, found), gradients = jax.jit(jax.value_and_grad(total, has_aux=True))(parameters)
    return found, gradients
