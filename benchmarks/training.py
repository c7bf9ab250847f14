"""Trains examples/train_llama on 8 devices, on one, in two processes, and killed on the way: do they agree?

    python benchmarks/training.py [--steps 200]

Prints the largest relative difference of the losses from those on 8 devices, step by step; its exit status
is 1 where one is above 1e-3. The run that is killed (all its processes, at a random step) is started
again, and compared with the one that was not.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "examples" / "train_llama" / "train.py"

ALLOWED = 1e-3
"""The largest difference of a loss, relative to it."""

RUNS = {
    "8 devices": ("--devices", "8"),
    "1 device": ("--devices", "1"),
    "2 processes of 4 devices": ("--devices", "8", "--processes", "2"),
}


def losses(folder: Path) -> list[float]:
    """Give the losses that a run has left so far; the last line of a killed one may be cut off."""
    path = folder / "losses.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [json.loads(line)["loss"] for line in lines if line.endswith("}")]


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """Start a run, as the head of a group of processes."""
    paths = [str(ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), "--out", str(folder), *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def finish(folder: Path, *arguments: str) -> list[float]:
    """Run to the end; give the losses."""
    process = start(folder, *arguments)
    said, _ = process.communicate()
    if process.returncode:
        raise SystemExit(f"{' '.join(arguments)} failed:\n{said[-2000:]}")
    return losses(folder)


def kill(folder: Path, step: int, *arguments: str) -> int:
    """Kill a run, and all its processes, once it has done a step; give how many it had done."""
    process = start(folder, *arguments)
    while process.poll() is None and len(losses(folder)) < step:
        time.sleep(0.05)
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    return len(losses(folder))


def difference(one: list[float], other: list[float]) -> float:
    """Give the largest difference of two curves, relative to the first."""
    if len(one) != len(other):
        return float("inf")
    return max(abs(a - b) / abs(a) for a, b in zip(one, other, strict=True))


def main() -> int:
    """Run everything, and print a line each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--save-every", type=int, default=20)
    arguments = parser.parse_args()
    options = ("--steps", str(arguments.steps), "--save-every", str(arguments.save_every))
    worst = 0.0
    with tempfile.TemporaryDirectory() as name:
        folder, first = Path(name), list[float]()
        for title, own in RUNS.items():
            found = finish(folder / title, *own, *options)
            first = first or found
            apart = difference(first, found)
            worst = max(worst, apart)
            print(f"{title}: loss {found[0]:.4f} to {found[-1]:.4f}, {apart:.1e} apart", flush=True)
        step = random.randint(arguments.save_every + 1, arguments.steps - 1)  # noqa: S311
        done = kill(folder / "killed", step, *RUNS["8 devices"], *options)
        apart = difference(first, finish(folder / "killed", *RUNS["8 devices"], *options))
        worst = max(worst, apart)
        print(f"killed after {done} steps and started again: {apart:.1e} apart")
    print(f"allowed: {ALLOWED:.0e}: {'ok' if worst <= ALLOWED else 'WRONG'}")
    return int(worst > ALLOWED)


if __name__ == "__main__":
    sys.exit(main())
