"""Trains a small Llama on Shakespeare's sonnets, byte by byte, with FSDP and tensor parallelism.

    python examples/train_llama/train.py                 # 8 simulated devices: 4 by FSDP, 2 by TP
    python examples/train_llama/train.py --devices 1     # the same run on one
    python examples/train_llama/train.py --processes 2   # in 2 processes with 4 devices each

It needs the extras `jax` and `train`. A run that is killed goes on from its last checkpoint when it is
started again, and the losses are those of a run that was not. `--out` is where it all stands: the
checkpoints, losses.jsonl, and loss.png.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent

MESHES = {1: (1, 1), 2: (2, 1), 4: (2, 2), 8: (4, 2)}
"""Devices of X (FSDP) and Y (tensor parallel) for each number of devices."""

HELD_OUT_BATCHES = 4


def main() -> int:
    """Run, in this process or in several that are started for it."""
    arguments = _arguments()
    if arguments.processes > 1 and arguments.process is None:
        return _launch(arguments)
    _simulate(arguments)
    return _train(arguments)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--devices", type=int, choices=sorted(MESHES), default=8, help="in all (8)")
    parser.add_argument("--processes", type=int, default=1, help="that share the devices (1)")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rate", type=float, default=1e-3, help="the highest learning rate (1e-3)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=HERE / "run", help="the run's folder")
    parser.add_argument("--save-every", type=int, default=20, help="steps between checkpoints (20)")
    parser.add_argument("--every", type=int, default=10, help="steps between held-out losses (10)")
    parser.add_argument("--wait", action="store_true", help="write checkpoints before going on")
    parser.add_argument("--program", type=Path, default=HERE / "model.shd")
    parser.add_argument("--process", type=int, help="which of the processes this one is")
    parser.add_argument("--coordinator", help="host:port of process 0")
    found = parser.parse_args()
    if found.devices % found.processes:
        parser.error(f"{found.devices} devices can't be shared by {found.processes} processes")
    if found.process is not None and found.coordinator is None:
        parser.error("--process needs --coordinator host:port")
    return found


def _launch(arguments: argparse.Namespace) -> int:
    """Start every process on this machine; end them all where one fails."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, *sys.argv, "--coordinator", f"127.0.0.1:{port}"]
    started = [
        subprocess.Popen([*command, "--process", str(index)])  # noqa: S603 - this very script
        for index in range(arguments.processes)
    ]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        while any(each.poll() is None for each in started):
            if any(each.poll() for each in started):
                return 1
            time.sleep(0.1)
    finally:
        for each in started:
            each.kill()
    return max(each.returncode for each in started)


def _simulate(arguments: argparse.Namespace) -> None:
    """Let the host's CPU be as many devices as this process has; JAX reads it when it starts."""
    count = arguments.devices // arguments.processes
    flag = f"--xla_force_host_platform_device_count={count}"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}".strip()
    os.environ["JAX_PLATFORMS"] = "cpu"


def _train(arguments: argparse.Namespace) -> int:
    import jax

    if arguments.processes > 1:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(
            arguments.coordinator, arguments.processes, arguments.process or 0
        )
    import data
    import model
    import optax
    import report

    x, y = MESHES[arguments.devices]
    module: Any = model.emitted(arguments.program, {"X": x, "Y": y})
    mesh = module.make_mesh()
    batch_shape = module.INPUTS["tokens"][0]
    text = data.Text(HERE / "sonnets.txt", batch_shape[1])
    layers = json.loads((HERE / "config.json").read_text(encoding="utf-8"))["num_hidden_layers"]

    def batch(part: str, seed: int) -> dict[str, Any]:
        def rows(ahead: int) -> Callable[[data.Index], Any]:
            return lambda index: text.rows(part, seed, index, ahead=ahead)

        return {
            name: module.place(mesh, name, rows(ahead)) for ahead, name in enumerate(model.BATCH)
        }

    rate = optax.warmup_cosine_decay_schedule(0.0, arguments.rate, 20, max(arguments.steps, 21))
    optimizer = optax.adamw(rate, b2=0.95, weight_decay=0.1)
    weights = model.first_weights(module, mesh, arguments.seed, layers)
    state = model.first_state(optimizer, weights, mesh)
    checkpoints = _Checkpoints(arguments)
    start, weights, state = checkpoints.latest(weights, state)
    step_function = model.train_step(module, mesh, optimizer)
    first = jax.process_index() == 0
    losses = report.Losses(arguments.out / "losses.jsonl", start) if first else None
    count = sum(each.size for each in weights.values())
    where = f"{arguments.devices} device{'s' if arguments.devices > 1 else ''} ({x} FSDP x {y} TP)"
    if arguments.processes > 1:
        where += f" in {arguments.processes} processes"
    bar = report.Bar("training", start, arguments.steps, arguments.every)
    if first:
        bar.say(f"{count:,} parameters on {where}")
        if start:
            bar.say(f"going on from the checkpoint of step {start}")
        bar.__enter__()
    for step in range(start, arguments.steps):
        began = time.perf_counter()
        seed = arguments.seed * 10**6 + step + 1
        loss, weights, state = step_function(weights, state, batch("train", seed))
        row = {"step": step, "loss": float(loss)}
        if step % arguments.every == 0 or step + 1 == arguments.steps:
            held = [
                float(model.loss(module, mesh, weights, batch("held out", seed)))
                for seed in range(HELD_OUT_BATCHES)
            ]
            row["held_out"] = sum(held) / len(held)
        if losses is not None:
            losses.add(**row)
            tokens = batch_shape[0] * batch_shape[1] / (time.perf_counter() - began)
            bar.step(step, row["loss"], tokens)
        checkpoints.save(step + 1, weights, state, last=step + 1 == arguments.steps)
    checkpoints.close()
    if losses is not None:
        bar.__exit__()
        title = f"{arguments.program.stem}: {count:,} parameters, {where}"
        report.draw(losses.rows, arguments.out / "loss.png", title)
        bar.say(f"{arguments.out / 'loss.png'}: the curve")
    return 0


class _Checkpoints:
    """The run's checkpoints: weights and the optimizer's state, each process its own shards."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        import orbax.checkpoint as ocp

        self._ocp = ocp
        self._every = arguments.save_every
        arguments.out.mkdir(parents=True, exist_ok=True)
        options = ocp.CheckpointManagerOptions(
            max_to_keep=2, enable_async_checkpointing=not arguments.wait
        )
        folder = (arguments.out / "checkpoints").resolve()
        self._manager = ocp.CheckpointManager(folder, options=options)

    def latest(self, weights: Any, state: Any) -> tuple[int, Any, Any]:
        """Give the last checkpoint, on the devices of this run; step 0 with none."""
        import jax

        step = self._manager.latest_step()
        if step is None:
            return 0, weights, state
        like = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding),
            {"weights": weights, "state": state},
        )
        found: Any = self._manager.restore(step, args=self._ocp.args.StandardRestore(like))
        return step, found["weights"], found["state"]

    def save(self, step: int, weights: Any, state: Any, *, last: bool) -> None:
        """Save where it is time to."""
        if step % self._every == 0 or last:
            tree = {"weights": weights, "state": state}
            self._manager.save(step, args=self._ocp.args.StandardSave(tree))

    def close(self) -> None:
        """Wait for what is being written."""
        self._manager.wait_until_finished()
        self._manager.close()


if __name__ == "__main__":
    sys.exit(main())
