"""examples/train_llama for a few steps: on any devices and in any processes the losses are the same."""

from __future__ import annotations

import importlib
import math
import sys
from pathlib import Path

import numpy as np
import pytest
import training

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "examples" / "train_llama"
STEPS = ("--steps", "12", "--save-every", "4", "--every", "6")


@pytest.fixture(scope="module")
def data():
    """Load the example's module of batches and weights."""
    sys.path.insert(0, str(FOLDER))
    try:
        yield importlib.import_module("data")
    finally:
        sys.path.remove(str(FOLDER))


def test_the_program_is_what_the_command_writes(shardlang, monkeypatch):
    """model.shd is the page of config.json, as README.md says."""
    monkeypatch.chdir(FOLDER)
    line = next(
        x for x in Path("README.md").read_text(encoding="utf-8").splitlines() if "shard fsdp" in x
    )
    command = line.split("`")[3].split()

    assert command[:2] == ["shardlang", "new"]
    page = Path("model.shd").read_text(encoding="utf-8")
    assert page == shardlang(*command[1:]).out
    assert max(map(len, page.splitlines())) <= 100


def test_parts_of_weights_are_those_of_the_whole(data):
    """A shard is made alone, and is the slice of what one process would make."""
    shape = (6, 8, 10)
    whole = data.weight("W_q", 3, tuple(slice(0, n) for n in shape), shape, 4)
    part = data.weight("W_q", 3, (slice(2, 4), slice(0, 8), slice(5, 10)), shape, 4)

    np.testing.assert_array_equal(whole[2:4, :, 5:], part)
    assert abs(whole.mean()) < 0.1
    assert abs(whole.std() - 0.5) < 0.05
    assert len(np.unique(whole)) == math.prod(shape)


def test_labels_are_the_next_bytes(data):
    """Rows of a batch are stretches of the text, and labels run one byte ahead."""
    text = data.Text(FOLDER / "sonnets.txt", 16)
    index = (slice(2, 5), slice(0, 16))
    tokens, labels = (text.rows("train", 1, index, ahead=ahead) for ahead in (0, 1))
    raw = (FOLDER / "sonnets.txt").read_bytes()

    assert tokens.shape == (3, 16)
    for row, after in zip(tokens, labels, strict=True):
        assert row.tobytes() + after[-1:].tobytes() in raw
        assert (row[1:] == after[:-1]).all()


@pytest.mark.jax
@pytest.mark.slow
def test_devices_processes_and_a_kill(tmp_path):
    """One device, two processes, and a run that is killed all have the losses of 8 devices."""
    pytest.importorskip("orbax.checkpoint")
    first = training.finish(tmp_path / "8", *training.RUNS["8 devices"], *STEPS)
    others = {
        title: training.finish(tmp_path / title, *own, *STEPS)
        for title, own in list(training.RUNS.items())[1:]
    }
    done = training.kill(tmp_path / "killed", 6, *training.RUNS["8 devices"], *STEPS)
    again = training.finish(tmp_path / "killed", *training.RUNS["8 devices"], *STEPS)

    assert len(first) == 12
    assert first[-1] < first[0] - 1
    assert 6 <= done < 12
    for title, found in others.items():
        assert training.difference(first, found) <= 1e-3, title
    assert training.difference(first, again) <= 1e-6
    assert (tmp_path / "8" / "loss.png").stat().st_size > 10_000
