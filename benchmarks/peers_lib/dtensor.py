"""PyTorch's DTensor: the collectives that it dispatches for a program, on a fake process group.

One process plays rank 0 of the mesh; nothing is sent, and the numbers are meaningless. Layouts with the
axes of a dim out of the mesh's order have no placement and count as not expressible.
"""

from __future__ import annotations

import math
import re
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fractions import Fraction
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import _collective_utils, DTensor, Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

from peers_lib.meaning import evaluate, shape, Value, whole
from shardlang.ir.program import Program
from shardlang.ir.types import Array

VERSION = 1
"""Raised when something else is measured: answers of other versions in a cache are not used."""

FUNCTIONS: Mapping[str, Callable[[Value], Value]] = {
    "gelu": lambda x: F.gelu(x, approximate="tanh"), "silu": F.silu, "relu": F.relu,
    "square": torch.square, "sqrt": torch.sqrt, "rsqrt": torch.rsqrt, "tanh": torch.tanh,
    "sigmoid": torch.sigmoid, "exp": torch.exp, "sin": torch.sin, "cos": torch.cos,
    "log": torch.log, "abs": torch.abs, "softplus": F.softplus, "reciprocal": torch.reciprocal,
}  # fmt: skip


COLLECTIVE = re.compile(
    r"_c10d_functional(?:_autograd)?\.(wait_tensor|_wrap_tensor_autograd|all_gather_into_tensor"
    r"|reduce_scatter_tensor|all_reduce|all_to_all_single)(?:\.default)?$"
)
MOVING: Mapping[str, str] = {
    "all_gather_into_tensor": "all_gather", "reduce_scatter_tensor": "reduce_scatter",
    "all_reduce": "all_reduce", "all_to_all_single": "all_to_all",
}  # fmt: skip
"""The dispatched operations that move bytes; any other name that is not known is an error."""


class Torch:
    """The operations of PyTorch."""

    def einsum(self, subscripts: str, values: Sequence[Value]) -> Value:
        """Multiply and sum."""
        return torch.einsum(subscripts, *values)

    def binary(self, name: str, left: Value, right: Value) -> Value:
        """Combine two tensors."""
        return getattr(
            torch, {"subtract": "sub", "multiply": "mul", "divide": "div"}.get(name, name)
        )(left, right)

    def scaled(self, value: Value, factor: float, constant: float) -> Value:
        """Multiply by a number and add one."""
        value = value if factor == 1 else value * factor
        return value + constant if constant else value

    def function(self, name: str, value: Value) -> Value:
        """Apply a function."""
        return FUNCTIONS[name](value)

    def reduce(self, kind: str, value: Value, axes: tuple[int, ...]) -> Value:
        """Reduce along dims."""
        return getattr(torch, {"max": "amax", "min": "amin"}.get(kind, kind))(value, dim=axes)

    def arrange(self, value: Value, order: Sequence[int], new: Sequence[int]) -> Value:
        """Transpose and insert dims."""
        if list(order) != list(range(len(order))):
            value = value.permute(tuple(order))
        for place in new:
            value = value.unsqueeze(place)
        return value

    def constant(self, value: Value) -> Value:
        """Stop the gradient."""
        return value.detach()


class Counter(TorchDispatchMode):
    """Adds up the bytes of the collectives that go by."""

    def __init__(self) -> None:
        super().__init__()
        self.total = Fraction(0)
        self.lines: list[str] = []

    def add(self, kind: str, value: Any, n: int) -> None:
        """Count one collective over n devices."""
        held = value.numel() * value.element_size()
        factor = {
            "all_gather": Fraction(n - 1),
            "all_reduce": Fraction(2 * (n - 1), n),
        }.get(kind, Fraction(n - 1, n))
        self.total += held * factor
        self.lines.append(f"{kind} {list(value.shape)} over {n}: {float(held * factor):g}")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Look at one operation; those of DTensors are looked at when they come apart."""
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented
        name = str(func)
        if "c10d" in name or "_dtensor" in name:
            self._collective(name, args)
        if name in ("aten.view.default", "aten._unsafe_view.default"):
            # DTensor now and then views a local tensor that it has transposed; it means a reshape.
            return args[0].reshape(args[1])
        return func(*args, **(kwargs or {}))

    def _collective(self, name: str, args: Any) -> None:
        """Count a collective by its name."""
        found = COLLECTIVE.match(name)
        if found is None:
            raise NotImplementedError(name)
        if found[1] in MOVING:
            group = next(a for a in reversed(args) if isinstance(a, str | dist.ProcessGroup))
            self.add(MOVING[found[1]], args[0], _members(group))


def _members(group: Any) -> int:
    """Give the size of a process group, by its name or as it is."""
    if isinstance(group, str):
        group = torch.distributed.distributed_c10d._resolve_process_group(group)  # noqa: SLF001
    return dist.get_world_size(group)


@contextmanager
def _true_all_to_all(counter: Counter) -> Iterator[None]:
    """Count a move of a split from dim to dim as the one all-to-all that it is on accelerators.

    On CPU meshes DTensor gathers and cuts instead, because one CPU backend has no all-to-all.
    """
    before = _collective_utils.shard_dim_alltoall
    import torch.distributed.tensor.placement_types as placements  # noqa: PLC0415

    def moved(value: Any, gather_dim: int, shard_dim: int, mesh: Any, mesh_dim: int) -> Any:
        n = mesh.size(mesh_dim)
        counter.add("all_to_all", value, n)
        sizes = list(value.shape)
        sizes[gather_dim] *= n
        sizes[shard_dim] //= n
        return value.new_zeros(sizes)

    holders = [
        m
        for m in (_collective_utils, placements)
        if getattr(m, "shard_dim_alltoall", None) is before
    ]
    for holder in holders:
        holder.shard_dim_alltoall = moved
    try:
        yield
    finally:
        for holder in holders:
            holder.shard_dim_alltoall = before


class OverTimeError(Exception):
    """A program that took longer than allowed."""


class Limit:
    """Raises `OverTimeError` after so many seconds of this process's work: others may be busy too.

    `over` says so afterwards, since an error raised inside C++ comes out as another one.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.over = False

    def __enter__(self) -> None:
        """Start."""
        signal.signal(signal.SIGPROF, self._stop)
        # Again every second: what runs may swallow an error.
        signal.setitimer(signal.ITIMER_PROF, self._seconds, 1.0)

    def __exit__(self, *_error: object) -> None:
        """Stop."""
        signal.setitimer(signal.ITIMER_PROF, 0)

    def _stop(self, _signal: int, _frame: Any) -> None:
        self.over = True
        raise OverTimeError


def _mesh(sizes: tuple[int, ...], names: tuple[str, ...]) -> Any:
    """Make a mesh of a fake process group; all meshes of one process have as many devices."""
    if not dist.is_initialized():
        torch.set_num_threads(1)
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=math.prod(sizes))
    return init_device_mesh("cpu", sizes, mesh_dim_names=names)


def expressible(array: Array, program: Program) -> bool:
    """Say whether placements can say a layout: each dim's axes in the order of the mesh."""
    order = [info.axis for info in program.mesh.axes]
    return all(
        [order.index(a) for a in axes] == sorted(order.index(a) for a in axes)
        for axes in array.layout.sharding
    )


def placements(array: Array, program: Program) -> list[Any]:
    """Write a layout as one placement for each axis of the mesh."""
    where = {axis: i for i, axes in enumerate(array.layout.sharding) for axis in axes}
    return [
        Shard(where[info.axis]) if info.axis in where else Replicate() for info in program.mesh.axes
    ]


def measure(text: str, *, limit: int) -> dict[str, Any]:
    """Count the bytes of a program, or say why there is no count; `limit` is seconds of work."""
    program, leaves, ends = whole(text)
    if not all(expressible(x, program) for x in (*leaves, *ends)):
        return {"refused": "not expressible"}
    axes = program.mesh.axes
    mesh = _mesh(tuple(a.size or 1 for a in axes), tuple(a.axis.name for a in axes))
    counter, time_limit = Counter(), Limit(limit)
    try:
        with time_limit, _true_all_to_all(counter):
            _run(program, leaves, ends, mesh, counter)
    except Exception as error:  # noqa: BLE001 - whatever DTensor raises is its refusal
        if time_limit.over:
            return {"refused": f"timed out after {limit} s"}
        first = (str(error).splitlines() or [""])[0]
        return {"refused": f"{type(error).__name__}: {first}"}
    return {"bytes": float(counter.total), "collectives": counter.lines}


def _run(
    program: Program, leaves: Sequence[Array], ends: Sequence[Array], mesh: Any, counter: Counter
) -> None:
    """Run forward and backward, with all that comes out in its layout."""

    def make(array: Array) -> Any:
        sizes = program.sizes
        local = [
            n // math.prod(sizes.known[axis.name] for axis in axes)
            for n, axes in zip(shape(array, program), array.layout.sharding, strict=True)
        ]
        value = torch.rand(local) + 0.5
        return DTensor.from_local(value, mesh, placements(array, program), run_check=False)

    inputs = [make(x).requires_grad_() for x in leaves]
    cotangents = [make(x) for x in ends]
    with counter:
        outputs = [
            value.redistribute(mesh, placements(array, program))
            for value, array in zip(evaluate(program, Torch(), inputs, ends), ends, strict=True)
        ]
        gradients = torch.autograd.grad(outputs, inputs, cotangents)
        for gradient, array in zip(gradients, leaves, strict=True):
            gradient.redistribute(mesh, placements(array, program))
