"""Print how long the best plans of layers take to find, how sure they are, and what they save.

Forward and backward together, at the `link` prices; seconds are CPU time. `gap` is how far above the
least the plan can be at most; `of book` is its bytes over those of the book plan. The second table is of
training steps of 8 microbatches; `--steps` prints that alone. With `--growth`, it prints instead how time and
peak memory grow with axes, dims and layers, a process each.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from fractions import Fraction
from math import prod

import shardlang as sl
from shardlang.ir.plan import Plan
from shardlang.planner.prices import price_plan
from shardlang.planner.program import plan_program

AXES = {
    2: ("X=16, Y=4", "X", "Y", ""),
    3: ("X=4, Y=4, Z=4", "X", "Y", "_Z"),
    4: ("X=4, Y=4, Z=2, V=2", "XZ", "YV", ""),
}
"""By number of axes: the mesh, the axes of data and of hidden units, and the split of positions."""

MLP = """
h = x[B_d, T_s, D_m] ·_D W_in[D_d, F_m]
y[B_d, T_s, D_m] = h ·_F W_out[F_m, D_d]
"""
GATED = """
gate[B_d, T_s, F_m] = {x}[B_d, T_s, D_m] ·_D W_gate[D_d, F_m]
up[B_d, T_s, F_m] = {x}[B_d, T_s, D_m] ·_D W_up[D_d, F_m]
hidden[B_d, T_s, F_m] = silu(gate[B_d, T_s, F_m]) ⊙ up[B_d, T_s, F_m]
down[B_d, T_s, D_m] = hidden[B_d, T_s, F_m] ·_F W_down[F_m, D_d]
z[B_d, T_s, D_m] = {x}[B_d, T_s, D_m] + down[B_d, T_s, D_m]
"""
ATTENTION = """
q[B_d, T_s, N_m, G, K] = x[B_d, T_s, D_m] ·_D W_q[D_d, N_m, G, K]
k[B_d, S, N_m, K] = x[B_d, S, D_m] ·_D W_k[D_d, N_m, K]
v[B_d, S, N_m, K] = x[B_d, S, D_m] ·_D W_v[D_d, N_m, K]
score[B_d, N_m, G, T_s, S] = q[B_d, T_s, N_m, G, K] ·_K k[B_d, S, N_m, K]
p[B_d, N_m, G, T_s, S] = softmax_S(score[B_d, N_m, G, T_s, S])
o[B_d, T_s, N_m, G, K] = p[B_d, N_m, G, T_s, S] ·_S v[B_d, S, N_m, K]
attended[B_d, T_s, D_m] = o[B_d, T_s, N_m, G, K] ·_{N,G,K} W_o[N_m, G, K, D_d]
y[B_d, T_s, D_m] = x[B_d, T_s, D_m] + attended[B_d, T_s, D_m]
"""
PROGRAMS = (
    ("mlp", 2, MLP),
    ("mlp", 3, MLP),
    ("mlp", 4, MLP),
    ("gated mlp", 2, GATED.replace("{x}", "x")),
    ("gated mlp", 3, GATED.replace("{x}", "x")),
    ("gated mlp", 4, GATED.replace("{x}", "x")),
    ("attention", 2, ATTENTION),
    ("attention", 3, ATTENTION),
    ("attention + mlp", 2, ATTENTION + GATED.replace("{x}", "y")),
    ("attention + mlp", 3, ATTENTION + GATED.replace("{x}", "y")),
    ("attention", 4, ATTENTION),
    ("attention + mlp", 4, ATTENTION + GATED.replace("{x}", "y")),
)
FSDP, ZERO = (
    "optimizer adamw\naccumulate M=8\n",
    "optimizer adamw, zero {} over {}\naccumulate M=8\n",
)
STEPS = (
    ("mlp, fsdp", 2, MLP, FSDP),
    ("mlp, zero 1", 2, MLP.replace("D_d", "D"), ZERO.format(1, "X")),
    ("mlp, zero 2", 2, MLP.replace("D_d", "D"), ZERO.format(2, "X")),
    ("mlp, fsdp", 3, MLP, FSDP),
    ("gated mlp, fsdp", 3, GATED.replace("{x}", "x"), FSDP),
    ("gated mlp, zero 1", 3, GATED.replace("{x}", "x").replace("D_d", "D"), ZERO.format(1, "X")),
    ("attention, fsdp", 2, ATTENTION, FSDP),
    ("attention, zero 1", 2, ATTENTION.replace("D_d", "D"), ZERO.format(1, "X")),
    ("both, fsdp", 2, ATTENTION + GATED.replace("{x}", "y"), FSDP),
    (
        "both, zero 1",
        3,
        (ATTENTION + GATED.replace("{x}", "y")).replace("D_d", "D"),
        ZERO.format(1, "XZ"),
    ),
)
"""Training steps: name, axes, a layer, and what is declared of a step."""
GROWTH = {
    "axes": [(axes, 3, 1) for axes in (1, 2, 3, 4)],
    "dims": [(3, rank, 1) for rank in (2, 3, 4, 5)],
    "layers": [(2, 3, layers) for layers in (1, 2, 4, 8, 16, 32)],
}
"""By what grows: the numbers of axes, of dims of an activation, and of layers of two products."""


def program(axes: int, body: str, batch: int, step: str = "") -> str:
    """Write a layer for a mesh of so many axes, with what is declared of a training step."""
    mesh, data, model, positions = AXES[axes]
    body = body.replace("_s", positions)
    for mark, names in (("_d", data), ("_m", model)):
        body = body.replace(f"{mark}]", f"_{names}]").replace(f"{mark},", f"_{names},")
    used = {"B": batch, "T": 4096, "D": 8192, "F": 28672, "N": 8, "G": 8, "K": 128}
    dims = ", ".join(f"{d}={n}" for d, n in used.items() if d in body)
    return f"mesh {mesh}\ndims {dims}\n{step}input x: [B_{data}, T{positions}, D_{model}]\n{body}"


def stack(axes: int, rank: int, layers: int) -> str:
    """Write a stack of mlp layers."""
    mesh = ("X=4", "Y=4", "Z=2", "V=2")[:axes]
    dims = ("B", "T", "S", "R")[: rank - 1]
    model = "_Y" if axes > 1 else ""
    lead = ", ".join(("B_X", *dims[1:]))
    sizes = {**dict.fromkeys(dims, 64), "D": 8192, "F": 32768}
    lines = [
        "mesh " + ", ".join(mesh),
        "dims " + ", ".join(f"{d}={n}" for d, n in sizes.items()),
    ]
    for i in range(layers):
        lines.append(f"h{i} = x{i}[{lead}, D] ·_D W{i}[D_X, F{model}]")
        lines.append(f"x{i + 1}[{lead}, D] = h{i} ·_F V{i}[F{model}, D_X]")
    return "\n".join(lines) + "\n"


def grow(budget: float) -> None:
    """Print the time and the memory of planning, by what grows."""
    print(f"{'axes':>4}{'dims':>6}{'layers':>8}{'steps':>7}{'seconds':>10}{'MB':>7}{'gap':>8}")
    for rows in GROWTH.values():
        for row in rows:
            command = [sys.executable, __file__, "--budget", str(budget), "--one"]
            done = subprocess.run(
                [*command, *map(str, row)], check=True, capture_output=True, text=True
            )
            print("{:>4}{:>6}{:>8}".format(*row) + done.stdout.rstrip("\n"), flush=True)
        print()


def one(axes: int, rank: int, layers: int, budget: float) -> None:
    """Plan one stack and print what it took: for a process of its own."""
    resolved = sl.parse(stack(axes, rank, layers))
    start = time.process_time()
    plan = plan_program(resolved, budget=budget)
    seconds = time.process_time() - start
    steps = len(plan.forward) + len(plan.backward)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    gap = "none" if plan.proof is None else f"{float(plan.proof.gap):.2%}"
    print(f"{steps:>7}{seconds:>10.3f}{peak:>7}{gap:>8}")


def moved(plan: Plan) -> Fraction:
    """Add up the bytes that a device moves, in a step of training those of all microbatches."""
    return price_plan(plan)


def table(rows: Sequence[tuple[str, int, str]], budget: float) -> None:
    """Print a line a program: its name, its axes, and its text."""
    print(
        f"{'program':<18}{'axes':>4}{'steps':>7}{'seconds':>10}{'gap':>10}{'bytes':>14}{'of book':>9}"
    )
    ratios: list[float] = []
    for name, axes, text in rows:
        resolved = sl.parse(text)
        book = moved(sl.lower(resolved))
        start = time.process_time()
        plan = plan_program(resolved, budget=budget)
        seconds = time.process_time() - start
        proof = plan.proof
        gap = "none" if proof is None else f"{float(proof.gap):.2%}"
        ratio = float(moved(plan) / book)
        ratios.append(ratio)
        steps = sum(1 for _ in plan.steps())
        print(
            f"{name:<18}{axes:>4}{steps:>7}{seconds:>10.3f}{gap:>10}"
            f"{float(moved(plan)):>14.4g}{ratio:>9.3f}",
            flush=True,
        )
    print(f"bytes of book, geometric mean: {prod(ratios) ** (1 / len(ratios)):.3f}")


def main() -> int:
    """Print a line a program."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budget", type=float, default=60.0, help="seconds a program (60)")
    parser.add_argument("--batch", type=int, default=32, help="sequences of 4096 positions (32)")
    parser.add_argument("--steps", action="store_true", help="print the training steps alone")
    parser.add_argument("--growth", action="store_true", help="print how time and memory grow")
    parser.add_argument("--one", type=int, nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        one(*given.one, given.budget)
        return 0
    if given.growth:
        grow(given.budget)
        return 0
    plan_program(sl.parse("mesh X=2\ndims B=2, D=2, F=2\nx[B_X, D] ·_D W[D, F] -> y[B_X, F]\n"))
    if not given.steps:
        table(
            [(n, axes, program(axes, body, given.batch)) for n, axes, body in PROGRAMS],
            given.budget,
        )
    steps = [(n, axes, program(axes, body, given.batch, step)) for n, axes, body, step in STEPS]
    table(steps, given.budget)
    return 0


if __name__ == "__main__":
    sys.exit(main())
