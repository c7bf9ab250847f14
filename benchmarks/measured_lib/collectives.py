"""Measured single operations against the library's `link` model: NCCL's collectives, products on TPUs."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass

import shardlang as sl
from measured_lib.runs import FOLDER

PROGRAMS = {
    "AllGather": "dims I={elements}\nA[I_X] -> A[I]",
    "ReduceScatter": "dims I={elements}\nA[I]{{U_X}} -> A[I_X]",
    "AllReduce": "dims I={elements}\nA[I]{{U_X}} -> A[I]",
    "AllToAll": "dims I={devices}, J={elements}\nA[I_X, J] -> A[I, J_X]",
}
"""A program of one collective; an AllToAll's size is what one device sends."""

DEVICES = 8
UNITS = {"KiB": 2**10, "MiB": 2**20}


@dataclass(frozen=True)
class Point:
    """A measured time, in seconds, with the bound; `ring` is that of rings, without a switch's help."""

    what: str
    operation: str
    size: str
    bound: float
    ring: float
    measured: float

    @property
    def ratio(self) -> float:
        """How many times the bound was measured."""
        return self.measured / self.bound


def nccl() -> Iterator[Point]:
    """Give all points of NCCL's tables."""
    table = tomllib.loads((FOLDER / "nccl.toml").read_text("utf-8"))
    for operation in PROGRAMS:
        for chip, row in table[operation].items():
            for size, microseconds in zip(table["bytes"], row, strict=True):
                bound, ring = (
                    _time(operation, chip, size, model) for model in ("link", "link-ring")
                )
                yield Point(chip, operation, size, bound, ring, microseconds * 1e-6)


def _time(operation: str, chip: str, size: str, model: str) -> float:
    number, unit = size.split()
    elements = int(number) * UNITS[unit] // 2
    program = PROGRAMS[operation].format(elements=elements, devices=DEVICES)
    text = f"mesh X={DEVICES}\nhardware {chip}\ndtype bf16\n{program}\n"
    plan = sl.lower(sl.parse(text), forward_only=True)
    found = sl.cost(plan, model=model)  # pyright: ignore[reportArgumentType]
    return float(found.total.quantity("t_comms").value or 0)


def single() -> Iterator[Point]:
    """Give the single operations on TPUs."""
    table = tomllib.loads((FOLDER / "single.toml").read_text("utf-8"))
    for row in table["collective"]:
        plan = sl.lower(sl.parse(row["program"]), forward_only=True)
        found = sl.cost(plan, hardware=row["hardware"], model="link")
        bound = float(found.total.quantity("t_comms").value or 0)
        measured = row["microseconds"] * 1e-6
        yield Point(row["hardware"].split()[0], row["name"], "", bound, bound, measured)
    for row in table["product"]:
        for size, rate in zip(row["sizes"], row["tflops"], strict=True):
            bound = _product(row["hardware"], row["devices"], size)
            yield Point(
                row["name"], "product", str(size), bound, bound, 2 * size**3 / (rate * 1e12)
            )


def _product(hardware: str, devices: int, size: int) -> float:
    """Give the time of a product on one of a chip's devices, by peak or by HBM."""
    text = f"dims N={size}, K={size}, M={size}\ndtype bf16\nC[N, M] = A[N, K] ·_K B[K, M]\n"
    plan = sl.lower(sl.parse(text), forward_only=True)
    chip = sl.cost(plan, hardware=hardware).hardware
    assert chip is not None
    figures = {name: (chip.get(name) or 0) / devices for name in ("C", "W_hbm")}
    return sl.cost(plan, hardware=hardware, sets=figures, hbm=True).schedule().seconds
