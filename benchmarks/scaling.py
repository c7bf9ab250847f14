"""Print how the time to lower, to cost and to compile grows with the number of einsums in one program.

`cost` and `link` are the cost under the two models, `compile` makes a function of X, Y and B of the
latter. Linear growth shows as a time per einsum that stays the same; the last column is that of parse,
lower, cost and compile together.
"""

from __future__ import annotations

import sys
import time
from itertools import pairwise

import shardlang as sl

SIZES = (100, 300, 1_000)
STAGES = ("parse", "lower", "cost", "link", "compile")


def program(einsums: int) -> str:
    """Write a stack of two-layer MLPs with as many einsums, under FSDP and tensor parallelism."""
    lines = ["mesh X=16, Y=4", "hardware tpu_v5p", "dims B=128Ki, D=8192, F=4*D"]
    for layer in range(einsums // 2):
        here, there = f"x{layer}[B_X, D_Y]", f"x{layer + 1}[B_X, D_Y]"
        lines.append(f"h{layer}[B_X, F_Y] = {here} ·_D W_in{layer}[D_X, F_Y]")
        lines.append(f"{there} = h{layer}[B_X, F_Y] ·_F W_out{layer}[F_Y, D_X]")
    return "\n".join(lines) + "\n"


def measure(einsums: int) -> list[float]:
    """Give the seconds of each stage."""
    times = [time.perf_counter()]
    resolved = sl.parse(program(einsums))
    times.append(time.perf_counter())
    plan = sl.lower(resolved)
    times.append(time.perf_counter())
    sl.cost(plan).to_dict()
    times.append(time.perf_counter())
    report = sl.cost(plan, model="link")
    report.to_dict()
    times.append(time.perf_counter())
    report.compile(["X", "Y", "B"])
    times.append(time.perf_counter())
    return [end - start for start, end in pairwise(times)]


def main() -> int:
    """Print a line a size."""
    measure(2)  # modules load once
    heads = "".join(f"{name:>10}" for name in (*STAGES, "sum"))
    print(f"{'einsums':>8}{heads}{'per einsum':>13}")
    first = 0.0
    for einsums in SIZES:
        parts = measure(einsums)
        each = sum(parts) / einsums
        first = first or each
        cells = "".join(f"{part:>9.2f}s" for part in (*parts, sum(parts)))
        print(f"{einsums:>8}{cells}{each * 1000:>11.2f}ms  ({each / first:.2f} x the first)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
