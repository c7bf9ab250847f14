"""Compare the whole `shardlang cost examples/mlp.shd` process with `import sympy`.

The two alternate, so that a busy machine slows both; the medians are compared. The aim is a ratio
of at most 1.3.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COMMANDS = {
    "import sympy": ["-c", "import sympy"],
    "cost": ["-m", "shardlang", "cost", "examples/mlp.shd"],
    "lower": ["-m", "shardlang", "lower", "examples/mlp.shd"],
    "check": ["-m", "shardlang", "check", "examples/mlp.shd"],
    "--version": ["-m", "shardlang", "--version"],
}


def seconds(arguments: list[str]) -> float:
    """Run Python once and give the wall time of the whole process."""
    start = time.perf_counter()
    subprocess.run([sys.executable, *arguments], cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - start


def main() -> int:
    """Print medians and ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=15, help="runs of each command")
    runs: int = parser.parse_args().runs
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for name, arguments in COMMANDS.items():
        seconds(arguments)  # bytecode and file caches
        times[name].clear()
    for _ in range(runs):
        for name, arguments in COMMANDS.items():
            times[name].append(seconds(arguments))
    base = statistics.median(times["import sympy"])
    for name, measured in times.items():
        median = statistics.median(measured)
        print(f"{name:<14}{median * 1000:7.0f} ms   {median / base:5.2f} x import sympy")
    return 0


if __name__ == "__main__":
    sys.exit(main())
