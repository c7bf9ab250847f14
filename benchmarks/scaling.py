"""Print how the time to lower and to cost grows with the number of einsums in one program.

Linear growth shows as a time per einsum that stays the same.
"""

from __future__ import annotations

import sys
import time

import shardlang as sl

SIZES = (100, 300, 1_000)


def program(einsums: int) -> str:
    """Write a stack of two-layer MLPs with as many einsums, under FSDP and tensor parallelism."""
    lines = ["mesh X=16, Y=4", "hardware tpu_v5p", "dims B=128Ki, D=8192, F=4*D"]
    for layer in range(einsums // 2):
        here, there = f"x{layer}[B_X, D_Y]", f"x{layer + 1}[B_X, D_Y]"
        lines.append(f"h{layer}[B_X, F_Y] = {here} ·_D W_in{layer}[D_X, F_Y]")
        lines.append(f"{there} = h{layer}[B_X, F_Y] ·_F W_out{layer}[F_Y, D_X]")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Print a line a size."""
    sl.cost(sl.lower(sl.parse(program(2)))).to_dict()  # modules load once
    print(f"{'einsums':>8}{'parse':>10}{'lower':>10}{'cost':>10}{'sum':>10}{'per einsum':>12}")
    first = 0.0
    for einsums in SIZES:
        text = program(einsums)
        start = time.perf_counter()
        resolved = sl.parse(text)
        parsed = time.perf_counter()
        plan = sl.lower(resolved)
        lowered = time.perf_counter()
        sl.cost(plan).to_dict()
        costed = time.perf_counter()
        parts = (parsed - start, lowered - parsed, costed - lowered, costed - start)
        each = (costed - start) / einsums
        first = first or each
        cells = "".join(f"{part:>9.2f}s" for part in parts)
        print(f"{einsums:>8}{cells}{each * 1000:>10.2f}ms  ({each / first:.2f} x the first)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
