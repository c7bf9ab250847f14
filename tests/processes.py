"""Runs emitted modules in several processes under jax.distributed, and as one of them.

`run` starts the processes on loopback, with simulated CPU devices and gloo's collectives, and gives
what each device of the mesh ends with. Inputs are made from their global positions, shard by shard.
Modules with a training step take two of them besides.
"""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent

IDS = 8
"""Integers are ids from 0 up to this, which tables that they look into have to have rows for."""


@dataclass(frozen=True)
class Held:
    """What one process ended with."""

    process: int
    devices: tuple[int, ...]
    """Positions in the mesh of its own devices."""
    shards: Mapping[tuple[str, str, str, int], np.ndarray[Any, Any]]
    """By module, kind (output, gradient, forward, vjp, state, loss), name, and position of the device."""
    asked: Mapping[tuple[str, str], int]
    """How many elements `place` asked this process for, by module and input."""
    whole: Mapping[tuple[str, str], int]
    """How many elements the input has."""


def free_port() -> int:
    """Give a port of loopback that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def environment(devices: int) -> dict[str, str]:
    """Give the environment of a process with so many simulated devices."""
    flags = f"--xla_force_host_platform_device_count={devices} --xla_backend_optimization_level=0"
    return {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": flags,
        "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "tests"))),
    }


def run(modules: Mapping[str, str], folder: Path, processes: int, devices: int) -> list[Held]:
    """Run modules in `processes` processes of `devices` devices each."""
    folder.mkdir()
    (folder / "modules").write_bytes(pickle.dumps(dict(modules)))
    port = free_port()
    started = [
        subprocess.Popen(
            [sys.executable, __file__, str(folder), str(index), str(processes), str(port)],
            env=environment(devices),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for index in range(processes)
    ]
    try:
        said = [each.communicate(timeout=240)[0] for each in started]
    finally:
        for each in started:
            each.kill()
    assert [0] * processes == [each.returncode for each in started], "\n".join(said)
    return [pickle.loads((folder / str(index)).read_bytes()) for index in range(processes)]


def values(name: str, index: tuple[slice, ...], shape: tuple[int, ...], dtype: str) -> Any:
    """Give numbers of both signs that hang on global positions alone."""
    flat = np.zeros((), np.int64)
    for part, size in zip(index, shape, strict=True):
        flat = np.add.outer(flat * size, np.arange(part.start, part.stop))
    if dtype.startswith(("int", "uint", "bool")):
        return (flat * 5 + len(name)) % (2 if dtype == "bool" else IDS)
    return np.sin(0.7 + flat * 1.37 + len(name)) / np.sqrt(shape[-1] if shape else 1)


class _Worker:
    """What one process runs."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.own: set[int] = set()
        self.shards: dict[tuple[str, str, str, int], Any] = {}
        self.asked: dict[tuple[str, str], int] = {}
        self.whole: dict[tuple[str, str], int] = {}

    def run(self, title: str, text: str) -> None:
        """Run one module: both of its ways to outputs, and both to gradients."""
        import jax

        module: dict[str, Any] = {"__name__": "emitted"}
        exec(compile(text, title, "exec"), module)
        mesh = module["make_mesh"]()
        position = {device: at for at, device in enumerate(mesh.devices.flat)}
        self.own |= {at for x, at in position.items() if x.process_index == self.index}

        def placed(name: str, shape: tuple[int, ...], dtype: str) -> Any:
            def make(part: tuple[slice, ...]) -> Any:
                found = values(name, part, shape, dtype)
                self.asked[title, name] = self.asked.get((title, name), 0) + found.size
                return found

            self.whole[title, name] = int(np.prod(shape, dtype=np.int64))
            return module["place"](mesh, name, make)

        def keep(kind: str, names: Any, arrays: Any) -> None:
            for name, array in zip(names, arrays, strict=True):
                for shard in array.addressable_shards:
                    at = position[shard.device]
                    self.shards[title, kind, name, at] = np.asarray(shard.data, np.float64)

        if "BATCH" in module:
            given = {name: placed(name, *row[:2]) for name, row in module["BATCH"].items()}
            weights = {name: placed(name, *module["INPUTS"][name][:2]) for name in module["STATES"]}
            inputs = self._train(module, mesh, weights, given, keep)
        else:
            inputs = tuple(placed(name, *row[:2]) for name, row in module["INPUTS"].items())
        specs = iter(module["COTANGENTS"])
        seeds: list[Any] = []
        whole = True
        for name, (shape, dtype, _) in module["OUTPUTS"].items():
            if dtype.startswith("int"):
                seeds.append(np.zeros(shape, jax.dtypes.float0))
                continue
            # The cotangent of stacked partial sums lacks the leading dim of the stack.
            front = len(shape) - len(next(specs))
            whole &= front == 0
            seeds.append(placed(name, shape[front:], dtype) if shape else 1.5)
        differ = [
            (i, name)
            for i, (name, row) in enumerate(module["INPUTS"].items())
            if name in module.get("STATES", module["INPUTS"]) and not row[1].startswith("int")
        ]
        names = [name for _, name in differ]
        keep("forward", module["OUTPUTS"], module["forward"](mesh, *inputs))
        plain = tuple(0 if getattr(x, "dtype", None) == jax.dtypes.float0 else x for x in seeds)
        found, gradients = module["forward_backward"](mesh, inputs, plain)
        keep("output", module["OUTPUTS"], found)
        keep("gradient", names, [gradients[i] for i, _ in differ])
        if whole:
            _, pullback = jax.vjp(module["differentiable"](mesh), *inputs)
            gradients = pullback(tuple(seeds))
            keep("vjp", names, [gradients[i] for i, _ in differ])

    @staticmethod
    def _train(
        module: dict[str, Any], mesh: Any, weights: Any, batch: Any, keep: Callable[..., None]
    ) -> tuple[Any, ...]:
        """Take two steps of adamw; give the inputs of the first microbatch, with the weights of the start."""
        import jax
        import optax

        optimizer = optax.adamw(1e-2, eps=1e-3)
        state = module["init_state"](mesh, optimizer, weights)
        step = module["make_train_step"](mesh, optimizer)
        for number in ("first", "second"):
            state, loss = step(state, batch)
            keep("loss", [number], [loss])
        leaves = jax.tree_util.tree_leaves_with_path(state)
        keep("state", [jax.tree_util.keystr(path) for path, _ in leaves], [x for _, x in leaves])
        first = {name: x[0] for name, x in batch.items()}
        return tuple((weights | first)[name] for name in module["INPUTS"])


def _main(folder: Path, index: int, processes: int, port: int) -> None:
    import jax

    if processes > 1:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(f"127.0.0.1:{port}", processes, index)
    assert jax.process_count() == processes
    worker = _Worker(index)
    for title, text in pickle.loads((folder / "modules").read_bytes()).items():
        worker.run(title, text)
    own = tuple(sorted(worker.own))
    held = Held(index, own, worker.shards, worker.asked, worker.whole)
    (folder / str(index)).write_bytes(pickle.dumps(held))


if __name__ == "__main__":
    sys.modules["processes"] = sys.modules["__main__"]
    Held.__module__ = "processes"
    _main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
