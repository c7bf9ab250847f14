"""The elementwise functions of the language: one row each.

`derivative` names the function of the *input* whose value multiplies the cotangent; `"output"`
means that the derivative is the output itself (`exp`); None means that no gradient flows.
The backends keep their code in tables with the same keys; a test holds them together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Function:
    """A unary elementwise function: its name, its derivative, and FLOPs counted an element."""

    name: str
    derivative: str | None
    flops: int = 1


def _rows() -> Mapping[str, Function]:
    """List the functions with their derivatives' functions."""
    table: dict[str, Function] = {}
    for name in (
        "gelu", "silu", "relu", "square", "sqrt", "rsqrt", "reciprocal", "log", "tanh", "sigmoid",
        "softplus", "abs", "sin", "cos",
    ):  # fmt: skip
        table[name] = Function(name, f"{name}_grad")
        table[f"{name}_grad"] = Function(f"{name}_grad", None)
    table["exp"] = Function("exp", "output")
    return table


FUNCTIONS: Mapping[str, Function] = _rows()
"""Every function by name; `gelu` is the tanh approximation, as in JAX's default."""

FUNCTION_ALIASES: Mapping[str, str] = {"swish": "silu", "sqr": "square"}
"""Other names that mean the same function."""

RMSNORM_EPSILON = "0.000001"
"""What rmsnorm adds to the mean square before the root, where the program says nothing else."""
