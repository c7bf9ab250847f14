"""What a run reads: the text in batches, and first weights, all by place and seed alone.

Everything here is a function of global positions, so that a process makes just the part that its
devices hold, and the same run starts alike on any number of devices and processes.
"""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import numpy as np

Index = tuple[slice, ...]
Array = np.ndarray[Any, Any]


def bits(seed: int, counter: Array) -> Array:
    """Give 64 random bits for each counter: splitmix64 (Steele, Lea and Flood, 2014)."""
    with np.errstate(over="ignore"):
        z = (counter.astype(np.uint64) + np.uint64(seed << 32)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def normal(seed: int, counter: Array) -> Array:
    """Give a normal number for each counter (Box and Muller, 1958)."""
    one, two = (bits(seed, 2 * counter + k) >> np.uint64(11) for k in (0, 1))
    radius = np.sqrt(-2 * np.log((one + 1.0) / 2.0**53))
    return radius * np.cos(2 * np.pi * two / 2.0**53)


def positions(index: Index, shape: tuple[int, ...]) -> Array:
    """Give the flat global positions of a part of an array."""
    flat = np.zeros((), np.int64)
    for part, size in zip(index, shape, strict=True):
        flat = np.add.outer(flat * size, np.arange(part.start, part.stop))
    return flat


class Text:
    """Sequences of a text, byte by byte; the end of it is held out."""

    def __init__(self, path: Path, length: int, *, held_out: float = 0.1) -> None:
        """Read a text for sequences of so many bytes."""
        text = np.frombuffer(path.read_bytes(), np.uint8)
        cut = int(len(text) * (1 - held_out))
        self._length = length
        self._parts = {"train": text[:cut], "held out": text[cut:]}

    def rows(self, part: str, seed: int, index: Index, *, ahead: int) -> Array:
        """Give the sequences of a part of a batch, or (`ahead=1`) the bytes that follow each byte."""
        rows, columns = index
        text = self._parts[part]
        starts = bits(seed, np.arange(rows.start, rows.stop)) % np.uint64(len(text) - self._length)
        return text[
            np.add.outer(starts.astype(np.int64), np.arange(columns.start, columns.stop)) + ahead
        ]


def weight(name: str, seed: int, index: Index, shape: tuple[int, ...], terms: int) -> Array:
    """Give a part of a first weight: ones for gains, else normal numbers by the sum they enter."""
    if name.startswith("g_"):
        return np.ones([part.stop - part.start for part in index])
    own = (seed * 1_000_003 + zlib.crc32(name.encode())) % 2**31
    return normal(own, positions(index, shape)) / np.sqrt(terms)
