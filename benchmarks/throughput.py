"""Print how many candidates a second a compiled report takes, and how many others take on this machine.

A candidate is a batch and a mesh, `(X, Y, B)` or `(X, Y, Z, B)`; asked for are T_math, T_comms, T_overlapped
and the memory of the forward and backward pass of a layer. `dense` has arrays of equal shape, every
candidate drawn at random; `grid` has an array an argument, which broadcast. Each rate is the best of
some runs. The others are: a report priced anew for each candidate, its exact formulas in Python,
sympy's lambdify of the same formulas (dense), and llm-analysis (extra `bench`) for a layer of the same
sizes, its logging off. Sympy's and the formulas' rates are for what they compute: sizes larger than 1.
"""

from __future__ import annotations

import argparse
import importlib.util
import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import sympy
from planning import ATTENTION, GATED, program

import shardlang as sl
from shardlang.cost.graph import cores
from shardlang.cost.report import Report

OUTPUTS = ("t_math", "t_comms", "t_overlapped", "memory")
SECONDS = 0.2
STRETCHES = 4
"""Time given to a slow way, and how often: other work on the machine slows some stretches."""

MLP = """mesh X=16, Y=4
optimizer adam
dims B=128Ki, D=8192, F=4*D
h[B_X, F_Y] = x[B_X, D_Y] ·_D W_in[D_X, F_Y]
y[B_X, D_Y] = h ·_F W_out[F_Y, D_X]
"""
LAYER = "optimizer adam\n" + program(3, ATTENTION + GATED.replace("{x}", "y"), 64).replace(
    "F=28672", "F=32768"
)
CASES = [
    (name, text, hardware, model)
    for name, text in (("mlp", MLP), ("attention + gated mlp", LAYER))
    for hardware, model in (("tpu_v5p", "book"), ("tpu_v5p", "link"), ("h100", "link"))
]


def dense(axes: int, count: int) -> list[Any]:
    """Draw sizes of axes, and batches, a candidate an element."""
    drawn = np.random.default_rng(0)
    sizes: list[Any] = [2.0 ** drawn.integers(0, 7, count) for _ in range(axes)]
    return [*sizes, drawn.integers(1, 2**20, count).astype(np.float64)]


def grid(axes: int, count: int) -> list[Any]:
    """Give sizes of axes and batches whose combinations are as many candidates, or a few less."""
    sizes = [np.arange(1.0, 17.0) for _ in range(axes)]
    batches = np.arange(1.0, 1.0 + count // 16**axes)
    return list(np.meshgrid(*sizes, batches, indexing="ij", sparse=True))


def best(
    run: Callable[[], object], times: int = 7, clock: Callable[[], float] = time.perf_counter
) -> float:
    """Give the seconds of the fastest run."""
    found: list[float] = []
    for _ in range(times):
        start = clock()
        run()
        found.append(clock() - start)
    return min(found)


def rate(one: Callable[[Sequence[float]], object], candidates: Iterator[Sequence[float]]) -> float:
    """Give how many candidates a second a slow way takes, in the fastest of some stretches."""
    found: list[float] = []
    for _ in range(STRETCHES):
        start = time.perf_counter()
        count = 0
        while time.perf_counter() - start < SECONDS:
            one(next(candidates))
            count += 1
        found.append(count / (time.perf_counter() - start))
    return max(found)


def drawn(axes: int) -> Iterator[Sequence[float]]:
    """Give candidates one by one, again and again."""
    arrays = dense(axes, 1000)
    while True:
        yield from zip(*(map(float, array) for array in arrays), strict=True)


def priced(report: Report, names: Sequence[str]) -> float:
    """Price the plan anew for each candidate."""

    def one(values: Sequence[float]) -> object:
        sets = {name: int(value) for name, value in zip(names, values, strict=True)}
        name = None if report.hardware is None else report.hardware.name
        found = sl.cost(report.plan, name, model=report.model, sets=sets)
        return found.total.quantity("t_overlapped").value, found.memory.quantity("total").value

    return rate(one, drawn(len(names) - 1))


def exact(report: Report, names: Sequence[str]) -> float:
    """Evaluate the exact formulas for each candidate."""
    formulas = [quantity.formula for quantity in quantities(report.freed(names))]

    def one(values: Sequence[float]) -> object:
        sizes = {name: Fraction(int(value)) for name, value in zip(names, values, strict=True)}
        return [formula.value({**report.known, **sizes}) for formula in formulas]

    return rate(one, drawn(len(names) - 1))


def quantities(report: Report) -> list[Any]:
    """Give the quantities asked for."""
    totals = [report.total.quantity(key) for key in OUTPUTS if key != "memory"]
    return [*totals, report.memory.quantity("total")]


def lambdified(report: Report, names: Sequence[str], count: int) -> float:
    """Evaluate sympy's numpy function of the same formulas over dense arrays."""
    known = {name: value for name, value in report.known.items() if name not in names}
    expressions = [q.formula.substitute(known).sympy() for q in quantities(report.freed(names))]
    symbols = [sympy.Symbol(name, positive=True) for name in names]
    function = sympy.lambdify(symbols, expressions, "numpy", cse=True)
    arrays = dense(len(names) - 1, count)
    return count / best(lambda: function(*arrays), 3)


def llm_analysis() -> float | None:
    """Sweep a layer with llm-analysis: None where it is not installed."""
    if importlib.util.find_spec("llm_analysis") is None:
        return None
    from llm_analysis import analysis, config, logger  # noqa: PLC0415  (optional)

    logger.logger.setLevel(logging.CRITICAL)
    model = config.ModelConfig(
        name="layer", num_layers=1, n_head=64, hidden_dim=8192, vocab_size=32000,
        max_seq_len=4096, num_key_value_heads=8, ffn_embed_dim=32768,
    )  # fmt: skip
    gpu = config.get_gpu_config_by_name("h100-sxm-80gb")
    dtype = config.get_dtype_config_by_name("w16a16e16")

    def one(values: Sequence[float]) -> object:
        data, parts, batch = int(values[0]), min(int(values[1]), 8), int(values[2]) % 8 + 1
        mesh = config.ParallelismConfig(tp_size=parts, pp_size=1, dp_size=data, sp_size=parts)
        found = analysis.LLMAnalysis(model, gpu, dtype, mesh, flops_efficiency=1.0)
        return found.training(
            batch_size_per_gpu=batch, gradient_accumulation_steps=1, seq_len=4096,
            ds_zero=analysis.DSZeRO(3), mlp_gated_linear_units=True,
        )  # fmt: skip

    return rate(one, drawn(2))


def main() -> int:
    """Print a line a case, then the others' rates beside the slowest of ours."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1_000_000, help="candidates (1000000)")
    count: int = parser.parse_args().count
    print(f"{count} candidates on {cores()} cores, T_math, T_comms, T_overlapped and memory;")
    print("M/s: millions of candidates a second; `all`: dense, with FLOPs, bytes and T_serial too;")
    print("`a core`: dense, a second of CPU time, whatever else runs; x: times slower than `dense`")
    print(
        f"{'layer':<22}{'chip':<9}{'model':<6}{'compile':>8}{'dense':>9}{'grid':>10}"
        f"{'all':>10}{'a core':>10}{'lambdify':>9}{'formulas':>9}{'pricing':>10}"
    )
    slowest = float("inf")
    for name, text, hardware, model in CASES:
        report = sl.cost(sl.lower(sl.parse(text)), hardware, model=model)
        names = [*report.mesh, "B"]
        axes = len(names) - 1
        start = time.perf_counter()
        function = report.compile(names, OUTPUTS)
        compiled = time.perf_counter() - start
        every = report.compile(names)
        scattered, broad = dense(axes, count), grid(axes, count)
        fast = count / best(lambda f=function, a=scattered: f(*a))
        slowest = min(slowest, fast)
        crossed = function(*broad)[0].size / best(lambda f=function, a=broad: f(*a))
        full = count / best(lambda f=every, a=scattered: f(*a))
        core = count / best(lambda f=function, a=scattered: f(*a), 7, time.process_time)
        others = (
            fast / lambdified(report, names, count),
            fast / exact(report, names),
            fast / priced(report, names),
        )
        print(
            f"{name:<22}{hardware:<9}{model:<6}{compiled * 1000:>5.0f} ms{fast / 1e6:>5.1f} M/s"
            f"{crossed / 1e6:>6.1f} M/s{full / 1e6:>6.1f} M/s{core / 1e6:>6.1f} M/s{others[0]:>7.1f}x"
            f"{others[1]:>9,.0f}x{others[2]:>9,.0f}x",
            flush=True,
        )
    found = llm_analysis()
    if found is None:
        print("llm-analysis is not installed (pip install 'shardlang[bench]')")
        return 0
    print(
        f"llm-analysis: {found:,.0f} candidates/s; the slowest `dense`: {slowest / found:,.0f} times that"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
