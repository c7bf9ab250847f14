"""The memory that `cost` claims against XLA's, for the smallest case of benchmarks/memory_xla.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]

# By hand, for one of 4 x 2 devices and in elements: D=128, F=512, K=2, G=2, H=32, V=512, 8 layers; 4 x 64 tokens.
MATRICES = 2 * 512 * 128 // 8 + 8 * (2 * 128 * 128 + 2 * 128 * 64 + 3 * 128 * 512) // 8
GAINS = 128 + 8 * 2 * 128
KEPT = 8 * 4 * 64 * (2 * 64 + 2 * 32 + 2 * 256) + (8 + 1) * 4 * 32 * 128  # q o, k v, gate up; x
TOKENS = 2 * 4 * 64


def measured(*cases: str) -> dict[str, dict[str, tuple[int, int]]]:
    """Run the benchmark in a process of its own; give (claimed, compiled) of each part of each case."""
    command = [sys.executable, str(ROOT / "benchmarks/memory_xla.py"), *cases, "--json"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    run = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    found: dict[str, dict[str, tuple[int, int]]] = {}
    for line in run.stdout.splitlines():
        each: Any = json.loads(line)
        found[each["case"]] = {x["part"]: (x["claimed"], x["compiled"]) for x in each["rows"]}
    return found


@pytest.mark.jax
def test_the_peak_is_that_of_the_compiled_step():
    """Within 15 % at once, and what has a counterpart in the step agrees with it, and with figures by hand."""
    cases = measured("small", "small-none")

    for parts in cases.values():
        claimed, compiled = parts["at once"]
        assert 0.85 < claimed / compiled < 1.15
        assert parts["parameters"] == ((MATRICES + GAINS) * 4,) * 2
        assert parts["optimizer"][0] == (MATRICES + GAINS) * 8
        assert parts["gradients"] == ((MATRICES + GAINS) * 4,) * 2
    claimed, compiled = cases["small"]["activations"]
    assert claimed == (KEPT + TOKENS) * 4
    assert abs(claimed - compiled) <= 0.001 * compiled
