"""Numbers in expressions: powers of sizes, functions, and places along a dim in narrow floats."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
from simulator import check_numbers

import shardlang as sl
from shardlang.ir.printer import print_plan
from shardlang.passes.positions import EXACT

SIZES = {"I": 16, "J": 32, "K": 2}

FACTORS = {
    "A / sqrt(|J|)": 32**-0.5,
    "A * sqrt(|J|)": 32**0.5,
    "sqrt(|J| * |J|) * A / |I|": 2.0,
    "A * |I| / 3 / |J|": 1 / 6,
    "A / sqrt(2 * |K|)": 0.5,
    "A / sqrt(sqrt(8 * |K|))": 0.5,
    "A * rsqrt(|I|) * square(|K|)": 1.0,
    "reciprocal(|I|) * A - A * |K|": 1 / 16 - 2,
    "-(A / sqrt(|I|)) / sqrt(9)": -1 / 12,
    "A * exp(2) / log(10000)": math.e**2 / math.log(10000),
    "abs(2 - 5) * A + sin(1) * A": 3 + math.sin(1),
    "A * tanh(0.5) * cos(2)": math.tanh(0.5) * math.cos(2),
    "A * sqrt(3) * log(10) / exp(0.5)": math.sqrt(3) * math.log(10) / math.exp(0.5),
    "A / exp(2) / exp(3) / log(7)": math.exp(-5) / math.log(7),
    "A * exp(-10) / 3 / |I|": math.exp(-10) / 48,
    "sqrt(|J| * sqrt(|I|)) * A": math.sqrt(32 * 4),
}


@pytest.mark.parametrize("text", FACTORS)
def test_a_factor_is_the_number_that_it_says(text):
    """On shards, forward and backward, and in the lowered text read again."""
    dims = ", ".join(f"{name}={size}" for name, size in SIZES.items())
    source = f"mesh X=4, Y=2\ndims {dims}\ninput A: [I_X, J_Y]\nB[I_X, J_Y] = {text}\n"
    plan = sl.lower(sl.parse(source))
    printed = print_plan(plan)
    made = check_numbers(plan, sizes={**SIZES, "X": 4, "Y": 2})
    a, da = (
        made.collect(array) for array in (plan.program.leaves[0].array, plan.gradients[0].gradient)
    )
    b, db = (made.collect(array) for array in (plan.outputs[0], plan.cotangents[0]))

    assert np.allclose(b, a * FACTORS[text], rtol=1e-12)
    assert np.allclose(da, db * FACTORS[text], rtol=1e-12)
    assert print_plan(sl.lower(sl.parse(printed))) == printed


@pytest.mark.parametrize("name", EXACT)
def test_a_float_has_all_whole_numbers_up_to_there(name):
    """And not the next one."""
    dtype = {
        "f8e4m3": ml_dtypes.float8_e4m3fn, "f8e5m2": ml_dtypes.float8_e5m2,
        "bf16": ml_dtypes.bfloat16, "f16": np.float16,
    }[name]  # fmt: skip
    numbers = np.arange(EXACT[name] + 1)

    assert (numbers.astype(dtype).astype(int) == numbers).all()
    assert int(np.array(EXACT[name] + 1).astype(dtype)) != EXACT[name] + 1


@pytest.mark.parametrize(
    ("size", "line", "warned"),
    [
        (257, "y = index_T ⊙ f", True),
        (256, "y = index_T ⊙ f", False),
        (257, "y: f32[T] = index_T ⊙ f", False),
        (257, "y = index_T + f", True),
        (257, "y = where(index_T < 3, f, 0)", False),
        (257, "y = sin(index_T / 10) + f", True),
        (2049, "y: f16[T] = index_T ⊙ f", True),
        (2048, "y: f16[T] = index_T ⊙ f", False),
    ],
)
def test_places_that_are_rounded_are_warned_of(size, line, warned):
    """With a dim that is longer than the dtype can count."""
    found = sl.check(f"dims T={size}\ninput f: [T]\n{line}\n")

    assert [d.code for d in found] == ["SH246"] * warned
