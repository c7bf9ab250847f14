"""A run's checkpoints: weights and the optimizer's state, each process its own shards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp


class Checkpoints:
    """Saves every so many steps, in the background unless it is to `wait`, and keeps the last two."""

    def __init__(self, folder: Path, every: int, *, wait: bool) -> None:
        """Look into a folder, or make it."""
        self._every = every
        options = ocp.CheckpointManagerOptions(max_to_keep=2, enable_async_checkpointing=not wait)
        self._manager = ocp.CheckpointManager(folder.resolve(), options=options)

    def latest(self, state: Any) -> tuple[int, Any]:
        """Give the last checkpoint on the devices of this run, which may be others; 0 with none."""
        step = self._manager.latest_step()
        if step is None:
            return 0, state
        like = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state
        )
        return step, self._manager.restore(step, args=ocp.args.StandardRestore(like))

    def save(self, step: int, state: Any, *, last: bool) -> None:
        """Save where it is time to."""
        if step % self._every == 0 or last:
            self._manager.save(step, args=ocp.args.StandardSave(state))

    def close(self) -> None:
        """Wait for what is being written."""
        self._manager.wait_until_finished()
        self._manager.close()
