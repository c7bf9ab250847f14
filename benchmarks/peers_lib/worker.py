"""Processes that measure programs one after another, and are started again when they die.

A worker reads a job a line, as JSON, and writes an answer a line. JAX's workers have eight host devices;
DTensor's stand for one process group, so that there is one a number of devices.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

Job = dict[str, Any]
Answer = dict[str, Any]

DEVICES = 8
"""Host devices of JAX's workers."""

WARM = "mesh X=2, Y={rest}\ndims B=8, D=8, F=8\ndtype f32\nx[B_X, D] ·_D W[D, F_Y] -> y[B_X, F_Y]\n"
"""What a worker measures first, so that no program pays for what is loaded late."""


class Worker:
    """One process for a kind of job: `jax` or `dtensor`, with so many devices."""

    def __init__(self, kind: str, devices: int = DEVICES) -> None:
        self._kind = kind
        self._devices = devices
        self._process: subprocess.Popen[str] | None = None
        self._log = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 - kept open

    def ask(self, job: Job, limit: float) -> Answer:
        """Give a job's answer; `{"failed": why}` where the process dies or takes too long."""
        if self._process is None or self._process.poll() is not None:
            self._start()
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(job) + "\n")
            process.stdin.flush()
            with selectors.DefaultSelector() as wait:
                wait.register(process.stdout, selectors.EVENT_READ)
                if not wait.select(limit):
                    self.close()
                    return {"failed": f"no answer within {limit:.0f} s"}
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            self.close()
            return {"failed": f"the process died: {self._last()}"}
        return json.loads(line)

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _last(self) -> str:
        """Give the last line that the process wrote."""
        self._log.seek(0)
        lines = self._log.read().strip().splitlines() or ["no output"]
        return lines[-1][:300]

    def _start(self) -> None:
        here = Path(__file__).resolve()
        environment = dict(os.environ)
        paths = [str(here.parents[1]), str(here.parents[2]), environment.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        environment["JAX_PLATFORMS"] = "cpu"
        environment["TF_CPP_MIN_LOG_LEVEL"] = "3"
        environment["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={DEVICES}"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "peers_lib.worker", self._kind, str(self._devices)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=environment,
            text=True,
            encoding="utf-8",
        )


def jobs(kind: str) -> dict[str, Callable[[Job], Answer]]:
    """Give what a kind of worker can do; its libraries are loaded here."""
    if kind == "dtensor":
        from peers_lib import dtensor  # noqa: PLC0415 - an optional extra

        return {"dtensor": lambda job: dtensor.measure(job["text"], limit=job["limit"])}
    from peers_lib import ours, xla  # noqa: PLC0415 - they load JAX

    return {
        "ours": lambda job: ours.measure(job["text"], budget=job["budget"], wall=job["wall"]),
        "xla": lambda job: xla.shardy(job["text"]),
        "explicit": lambda job: xla.explicit(job["text"]),
    }


def main() -> None:
    """Answer jobs until there are no more."""
    # Libraries print where they like; answers go to where standard output was.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    kind, devices = sys.argv[1], int(sys.argv[2])
    table = jobs(kind)
    warm = {
        "text": WARM.replace("{rest}", str(devices // 2)),
        "limit": 100,
        "budget": 1,
        "wall": False,
    }
    for run in table.values():
        run(warm)
    for line in sys.stdin:
        job = json.loads(line)
        try:
            answer = table[job["what"]](job)
        except Exception as error:  # noqa: BLE001 - the next program must still run
            answer = {"failed": f"{type(error).__name__}: {str(error)[:500]}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
