"""Runs emitted modules in several processes under jax.distributed, and as one of them.

`run` starts the processes on loopback, with simulated CPU devices and gloo's collectives, and gives
what each device of the mesh ends with. Inputs are made from their global positions, shard by shard.
"""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Held:
    """What one process ended with."""

    process: int
    devices: tuple[int, ...]
    """Positions in the mesh of its own devices."""
    shards: Mapping[tuple[str, str, str, int], np.ndarray[Any, Any]]
    """By module, kind (output, gradient, forward, vjp), name, and position of the device."""
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
    flags = f"--xla_force_host_platform_device_count={devices}"
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
        return flat % 2
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

        outputs = tuple(zip(module["OUTPUTS"].items(), module["COTANGENTS"], strict=True))
        inputs = tuple(placed(name, *row[:2]) for name, row in module["INPUTS"].items())
        # The cotangent of stacked partial sums lacks the leading dim of the stack.
        seeds = tuple(placed(name, row[0][-len(spec) :], row[1]) for (name, row), spec in outputs)
        keep("forward", module["OUTPUTS"], module["forward"](mesh, *inputs))
        found, gradients = module["forward_backward"](mesh, inputs, seeds)
        keep("output", module["OUTPUTS"], found)
        keep("gradient", module["INPUTS"], gradients)
        if all(len(row[0]) == len(spec) for (_, row), spec in outputs):
            _, pullback = jax.vjp(module["differentiable"](mesh), *inputs)
            keep("vjp", module["INPUTS"], pullback(seeds))


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
