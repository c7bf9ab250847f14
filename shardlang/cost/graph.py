"""Expression graphs: many formulas at once over arrays, each node once, at its own shape.

A graph is evaluated in three steps: the shape of each node follows from those of its operands; small
nodes are computed whole; the others run in blocks that fit a core's cache, on all cores, into buffers
that are used again. Nothing but numbers and names is in a graph: no code is generated, so that it can
be stored, and read as JSON. `shardlang.cost.builder` makes graphs of formulas.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from math import inf, prod
from typing import Any

import numpy as np

BLOCK = 16_384
"""Elements of a block: a buffer of 128 KiB, so that those alive together stay in a core's cache."""

HOISTED = 16
"""A node of at most this part of all candidates is computed whole, before the blocks."""

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]

ALL = slice(None)

MANY: Mapping[str, Callable[..., Any]] = {
    "+": np.add,
    "*": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
}
"""Operations of any number of operands, in any order."""

FEW: Mapping[str, tuple[int, Callable[..., Any]]] = {
    "floor": (1, np.floor),
    "inverse": (1, partial(np.divide, 1.0)),  # twice as fast as np.reciprocal
    "/": (2, np.divide),
    "**": (2, np.power),
    ">": (2, np.greater),
}
"""Operations of so many operands."""

OPERANDS: Mapping[str, int] = {"number": 0, "input": 0, "check": 1, "many": 1, "one": 1, "where": 2}
"""The operands of the other operations."""

SOURCES: Mapping[str, int] = {"number": 1, "input": 2, "check": 2}
"""Nodes that hold numbers: a number itself, or the least and the most that a value may be."""


class OutOfRangeError(ValueError):
    """A value that is not between the bounds of its name, or is no number at all."""

    def __init__(self, name: str, value: float, low: float, high: float) -> None:
        """Keep what is wrong."""
        super().__init__(f"{name} is {value!r}, not between {low!r} and {high!r}")
        self.name = name
        self.value = value
        self.low = low
        self.high = high


@dataclass(frozen=True, slots=True)
class Node:
    """One operation: `args` are the places of its operands, all before its own.

    `many` and `one` say where an axis is larger than 1, and where it is not; `where` gives its second
    operand where the first, one of these, says so, and zero elsewhere. `check` gives its operand, which
    has to lie between its numbers.
    """

    op: str
    args: tuple[int, ...] = ()
    name: str = ""
    numbers: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Graph:
    """Nodes, operands first, and the places of the outputs among them."""

    nodes: tuple[Node, ...]
    outputs: tuple[int, ...]

    def __call__(self, values: Mapping[str, Any]) -> list[Array]:
        """Evaluate over arrays that broadcast, in float64; each output has the shape of all of them.

        Raises OutOfRangeError for a value beyond what an input or a check allows, FloatingPointError where
        numbers are too large for floats. The arrays are read-only: equal outputs are one array, and
        one that is the same along some dimension is stored once along it. Calls share nothing, so that threads may call at once.
        """
        arrays = {name: np.asarray(value) for name, value in values.items()}
        shape = np.broadcast_shapes(*(array.shape for array in arrays.values()))
        padded = {name: _padded(array, len(shape)) for name, array in arrays.items()}
        return _Sweep(self, padded, shape).run()

    def to_dict(self) -> dict[str, Any]:
        """Give the graph as JSON has it: `[op, args, name, numbers]` a node."""
        return {
            "nodes": [
                [node.op, list(node.args), node.name, [_plain(x) for x in node.numbers]]
                for node in self.nodes
            ],
            "outputs": list(self.outputs),
        }

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Graph:
        """Read a graph; raises ValueError for what is none."""
        try:
            nodes = tuple(
                Node(str(op), tuple(args), str(name), tuple(float(x) for x in numbers))
                for op, args, name, numbers in data["nodes"]
            )
            outputs = tuple(data["outputs"])
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"this is no expression graph: {error}") from error
        for place, node in enumerate(nodes):
            if not _sound(node) or not all(_is_place(arg, place) for arg in node.args):
                raise ValueError(f"this is no expression graph: node {place} is {node}")
        if not all(_is_place(output, len(nodes)) for output in outputs):
            raise ValueError("this is no expression graph: an output is no node")
        return Graph(nodes, outputs)


def _plain(value: float) -> float | str:
    """Write a number for JSON, which has no infinity."""
    return value if np.isfinite(value) else str(value)


def _is_place(value: object, end: int) -> bool:
    return isinstance(value, int) and 0 <= value < end


def _sound(node: Node) -> bool:
    """Say whether a node has the operands and numbers that its operation takes."""
    operands = len(node.args)
    if len(node.numbers) != SOURCES.get(node.op, 0):
        return False
    if node.op in MANY:
        return operands > 1
    if node.op in FEW:
        return operands == FEW[node.op][0]
    return operands == OPERANDS.get(node.op)


def _padded(array: Array, rank: int) -> Array:
    """Give an array all dimensions; those along which it repeats itself have size 1."""
    array = array.reshape((1,) * (rank - array.ndim) + array.shape)
    still = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in array.strides)
    return array[still] if array.size else array


def cores() -> int:
    """Count the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class _Sweep:
    """One call of a graph: what is computed whole, what in blocks, and into which buffers."""

    def __init__(self, graph: Graph, arrays: Mapping[str, Array], shape: Shape) -> None:
        """Find the shape of each node, and which are small."""
        self.nodes = graph.nodes
        self.outputs = graph.outputs
        self.arrays = arrays
        self.shape = shape
        self.shapes: list[Shape] = []
        self.args: list[tuple[int, ...]] = []
        sizes: list[int] = []
        for node in graph.nodes:
            own = [self.shapes[arg] for arg in node.args]
            alone = arrays[node.name].shape if node.op == "input" else (1,) * len(shape)
            if any(shape != own[0] for shape in own):
                self.shapes.append(np.broadcast_shapes(*own))
            else:
                self.shapes.append(own[0] if own else alone)
            sizes.append(prod(self.shapes[-1]))
            args = sorted(node.args, key=sizes.__getitem__) if node.op in MANY else node.args
            self.args.append(tuple(args))
        size = prod(shape)
        limit = BLOCK if size <= BLOCK else max(BLOCK, size // HOISTED)
        self.early = [i for i, own in enumerate(sizes) if own <= limit]
        self.late = [i for i, own in enumerate(sizes) if own > limit]
        late = set(self.late)
        self.kept = {arg for place in self.late for arg in self.args[place]} - late
        self.whole: dict[int, Any] = {}
        self.results: dict[int, Array] = {}
        self.slot: dict[int, int] = {}

    def run(self) -> list[Array]:
        """Compute all, and give the outputs."""
        with np.errstate(all="ignore", invalid="raise"):
            self._compute_early()
        if self.late:
            slots = self._assign()
            self._compute_late(slots)
        found = [self.results[o] if o in self.results else self.whole[o] for o in self.outputs]
        return [np.broadcast_to(each, self.shape) for each in found]

    def _last(self, places: Iterable[int]) -> dict[int, int]:
        """Say of each node after which one it is needed no more."""
        return {arg: place for place in places for arg in self.args[place]}

    def _compute_early(self) -> None:
        """Compute the small nodes."""
        kept = {*self.outputs, *self.kept}
        last = self._last(self.early)
        for place in self.early:
            node = self.nodes[place]
            operands = [self.whole[arg] for arg in self.args[place]]
            self.whole[place] = _apply(node, operands, None, self.arrays.get(node.name))
            for arg in self.args[place]:
                if last[arg] == place and arg not in kept:
                    self.whole.pop(arg, None)

    def _assign(self) -> int:
        """Give each late node a buffer until its last use, outputs arrays; and count the buffers."""
        last = self._last(self.late)
        free: list[int] = []
        count = 0
        for place in self.late:
            if place in self.outputs:
                kind = np.bool_ if self.nodes[place].op == ">" else np.float64
                self.results[place] = np.empty(self.shapes[place], kind)
            else:
                self.slot[place] = free.pop() if free else count
                count = max(count, self.slot[place] + 1)
            done = (arg for arg in dict.fromkeys(self.args[place]) if last[arg] == place)
            free.extend(self.slot[arg] for arg in done if arg in self.slot)
        return count

    def _compute_late(self, slots: int) -> None:
        """Compute the late nodes, block by block, on all cores."""
        listed = list(_cut(self.shape))
        workers = min(cores(), len(listed))
        blocks = iter(listed)

        def work(_: int) -> None:
            buffers = [np.empty(BLOCK) for _ in range(slots)]
            try:
                with np.errstate(all="ignore", invalid="raise"):
                    for block in blocks:
                        self._block(block, buffers)
            finally:
                deque(blocks, maxlen=0)  # after a mistake the other threads stop

        if workers == 1:
            work(0)
            return
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(work, range(workers)))

    def _block(self, block: tuple[slice, ...], buffers: Sequence[Array]) -> None:
        """Compute one block."""
        extents = [s.stop - s.start for s in block]
        cuts: dict[Shape, tuple[tuple[slice, ...], Shape, int]] = {}
        values: dict[int, Any] = {}

        def cut(shape: Shape) -> tuple[tuple[slice, ...], Shape, int]:
            """Give the slices of an array of some shape, and the shape and size of what they give."""
            if shape not in cuts:
                own = tuple(e if n > 1 else 1 for e, n in zip(extents, shape, strict=True))
                slices = tuple(s if n > 1 else ALL for s, n in zip(block, shape, strict=True))
                cuts[shape] = slices, own, prod(own)
            return cuts[shape]

        for place in self.kept:
            whole = self.whole[place]
            array = isinstance(whole, np.ndarray)
            values[place] = whole[cut(whole.shape)[0]] if array else whole
        for place in self.late:
            node = self.nodes[place]
            slices, shape, size = cut(self.shapes[place])
            if place in self.slot:
                out = buffers[self.slot[place]][:size].reshape(shape)
            else:
                out = self.results[place][slices]
            source = self.arrays[node.name][slices] if node.op == "input" else None
            values[place] = _apply(node, [values[arg] for arg in self.args[place]], out, source)


def _apply(node: Node, operands: Sequence[Any], out: Array | None, source: Array | None) -> Any:
    """Compute a node, into `out` where there is one, from operands of which the smaller come first.

    `source` is an input's array.
    """
    op = node.op
    if op in MANY:
        return _join(MANY[op], operands, out)
    if op in FEW:
        return FEW[op][1](*operands, out=out)
    match op:
        case "number":
            return node.numbers[0]
        case "input":
            assert source is not None
            if out is None:
                out = source.astype(np.float64)
            else:
                np.copyto(out, source, casting="unsafe")
            _check(node, out)
            return out
        case "check":
            _check(node, operands[0])
            return np.positive(operands[0], out=out)
        case "where":
            # as bits: fast, and exact also where the value is infinite
            bits = [np.asarray(operand).view(np.int64) for operand in operands]
            into = None if out is None else out.view(np.int64)
            return np.bitwise_and(*bits, out=into).view(np.float64)
        case _:
            larger = np.greater(operands[0], 1)
            into = None if out is None else out.view(np.int64)
            all_bits = np.subtract(larger ^ (op == "many"), 1, out=into, dtype=np.int64)
            return all_bits.view(np.float64)


def _join(function: Callable[..., Any], operands: Sequence[Any], out: Array | None) -> Any:
    """Combine operands from the smallest on; what does not fill the buffer yet has its own memory."""
    value = operands[0]
    for operand in operands[1:-1]:
        fills = out is not None and getattr(operand, "size", 1) == out.size
        value = function(value, operand, out=out if fills else None)
    return function(value, operands[-1], out=out)


def _check(node: Node, value: Any) -> None:
    """Hold a value between the numbers of a node."""
    low, high = node.numbers
    least, most = np.min(value, initial=inf), np.max(value, initial=-inf)
    if not (least >= low and most <= high):
        value = float(most if least >= low else least)
        raise OutOfRangeError(node.name, value, low, high)


def _cut(shape: Shape) -> Iterator[tuple[slice, ...]]:
    """Cut a shape into blocks of at most BLOCK elements, the last dimensions whole as far as it goes."""
    inner, axis = 1, len(shape)
    while axis and inner * shape[axis - 1] <= BLOCK:
        axis -= 1
        inner *= shape[axis]
    whole = tuple(slice(0, n) for n in shape[axis:])
    if not axis:
        yield whole
        return
    rows = max(BLOCK // inner, 1)
    for index in np.ndindex(*shape[: axis - 1]):
        outer = tuple(slice(i, i + 1) for i in index)
        for start in range(0, shape[axis - 1], rows):
            yield (*outer, slice(start, min(start + rows, shape[axis - 1])), *whole)
