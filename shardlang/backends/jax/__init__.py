"""Emits a plan as a readable JAX module; imports no JAX itself."""

from __future__ import annotations

from shardlang.backends.jax.emit import emit_jax

__all__ = ["emit_jax"]
