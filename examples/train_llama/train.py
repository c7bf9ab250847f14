"""Trains a small Llama on Shakespeare's sonnets, byte by byte, with FSDP and tensor parallelism.

    python examples/train_llama/train.py                 # 8 simulated devices: 4 by FSDP, 2 by TP
    python examples/train_llama/train.py --devices 1     # the same run on one
    python examples/train_llama/train.py --processes 2   # in 2 processes with 4 devices each

It needs shardlang with its extras `jax` and `train`. A run that is killed goes on from its last
checkpoint when it is started again, and the losses are those of a run that was not. In its folder
(`--out`) are the checkpoints, losses.jsonl, and the curve, loss.png.
"""

from __future__ import annotations

import argparse
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
"""Devices along X (FSDP) and Y (tensor parallel), for each number of devices."""

WARMUP = 20
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
    parser.add_argument("--steps", type=int, default=200, help="of training (200)")
    parser.add_argument("--rate", type=float, default=3e-3, help="the highest learning rate (3e-3)")
    parser.add_argument("--seed", type=int, default=0, help="of weights and batches (0)")
    parser.add_argument("--out", type=Path, default=HERE / "run", help="the run's folder")
    parser.add_argument("--save-every", type=int, default=20, help="steps between checkpoints (20)")
    parser.add_argument("--every", type=int, default=10, help="steps between held-out losses (10)")
    parser.add_argument("--wait", action="store_true", help="write checkpoints before going on")
    parser.add_argument(
        "--process", type=int, help="which process this is, where they are started by hand"
    )
    parser.add_argument(
        "--coordinator", help="host:port of process 0, where they are started by hand"
    )
    found = parser.parse_args()
    for name in ("processes", "steps", "save_every", "every"):
        if getattr(found, name) < 1:
            parser.error(f"--{name.replace('_', '-')} has to be 1 or more")
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


def _connect(arguments: argparse.Namespace) -> None:
    """Join the processes of the run."""
    import jax

    if arguments.processes == 1:
        return
    # Gloo writes about its connections to the standard output, from below Python.
    sys.stdout = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(arguments.coordinator, arguments.processes, arguments.process)


def _train(arguments: argparse.Namespace) -> int:
    """Train from the start, or from the last checkpoint."""
    _connect(arguments)
    import checkpoints
    import jax
    import model
    import optax
    import report

    x, y = MESHES[arguments.devices]
    module = model.emitted(HERE / "model.shd", {"X": x, "Y": y})
    mesh = module.make_mesh()
    batch = _batches(module, mesh)
    end = max(arguments.steps, WARMUP + 1)
    rate = optax.warmup_cosine_decay_schedule(0.0, arguments.rate, WARMUP, end)
    optimizer = optax.adamw(rate, b2=0.95, weight_decay=0.1)
    training_step = module.make_train_step(mesh, optimizer)
    weights = model.first_weights(module, mesh, arguments.seed)
    state = module.init_state(mesh, optimizer, weights)
    folder: Path = arguments.out
    folder.mkdir(parents=True, exist_ok=True)
    saved = checkpoints.Checkpoints(
        folder / "checkpoints", arguments.save_every, wait=arguments.wait
    )
    start, state = saved.latest(state)

    shown = None
    if jax.process_index() == 0:
        count = sum(each.size for each in weights.values())
        title = f"{count:,} parameters on {arguments.devices} devices (FSDP {x} x TP {y})"
        title += f" in {arguments.processes} processes" if arguments.processes > 1 else ""
        shown = report.Report(folder, title, start, arguments.steps, arguments.every)
    for step in range(start, arguments.steps):
        began = time.perf_counter()
        tokens = batch("train", arguments.seed * 10**6 + step + 1)
        state, loss = training_step(state, tokens)
        row = {"step": step, "loss": float(loss)}
        speed = tokens["tokens"].size / (time.perf_counter() - began)
        last = step + 1 == arguments.steps
        if step % arguments.every == 0 or last:
            several = [batch("held out", seed) for seed in range(HELD_OUT_BATCHES)]
            losses = [model.loss(module, mesh, state["parameters"], each) for each in several]
            row["held_out"] = sum(losses) / len(losses)
        if shown is not None:
            shown.step(row, speed)
        saved.save(step + 1, state, last=last)
    saved.close()
    if shown is not None:
        shown.close()
    return 0


def _batches(module: Any, mesh: Any) -> Callable[[str, int], dict[str, Any]]:
    """Give a function from a part of the text and a seed to a batch on the mesh."""
    import data
    import model

    text = data.Text(HERE / "sonnets.txt", module.INPUTS["tokens"][0][1])

    def batch(part: str, seed: int) -> dict[str, Any]:
        def made(name: str, ahead: int) -> Any:
            return module.place(mesh, name, lambda index: text.rows(part, seed, index, ahead=ahead))

        return {name: made(name, ahead) for ahead, name in enumerate(model.BATCH)}

    return batch


if __name__ == "__main__":
    sys.exit(main())
