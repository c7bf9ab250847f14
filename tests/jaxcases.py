"""Hand-built plans for the tests of emission and of verify: no pass of the compiler is needed."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from shardlang.ir.ops import (
    AllGather,
    AllReduce,
    AllToAll,
    Compute,
    Einsum,
    Mask,
    Op,
    Permute,
    ReduceScatter,
    Slice,
)
from shardlang.ir.plan import Gradient, Plan, Step
from shardlang.ir.program import DimInfo, Leaf, Program, Statement, Use
from shardlang.ir.types import Array, Axis, AxisInfo, Dim, DTYPES, Layout, Mesh, Tensor
from shardlang.source import Source, Span

NOWHERE = Span(0, 0)

# Read when JAX first looks for devices, which no module does while it is imported.
if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = (
        f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
    ).strip()


def axes(text: str) -> tuple[Axis, ...]:
    """Read axes of one letter each."""
    return tuple(Axis(letter) for letter in text)


def array(text: str, dtype: str = "f32") -> Array:
    """Read `A[I_X, J]{U_Y}` (axes of one letter, dims with no underscore)."""
    match = re.fullmatch(r"([^\[]+)\[([^\]]*)\](?:\{(U|max|min)_(\w+)\})?", text.strip())
    assert match is not None, text
    name, inside, word, partial = match.groups()
    dims: list[Dim] = []
    sharding: list[tuple[Axis, ...]] = []
    for part in filter(None, (p.strip() for p in inside.split(","))):
        dim, _, over = part.partition("_")
        dims.append(Dim(dim))
        sharding.append(axes(over))
    reduction = {"U": "sum", "max": "max", "min": "min", None: "sum"}[word]
    layout = Layout(tuple(sharding), frozenset(axes(partial or "")), reduction)  # type: ignore[arg-type]
    return Array(Tensor(name, tuple(dims), DTYPES[dtype]), layout)


def relayout(text: str, source: Array, target: Array) -> Op:
    """Make the collective that a line of an explicit program names."""
    match = re.fullmatch(r"(\w+?)(?:_\{?(\w+)(?:,(\w+'?))?\}?)?", text)
    assert match is not None, text
    name, over, dim = match.groups()
    over, dim = axes(over or ""), Dim(dim or "")
    match name:
        case "AllGather":
            gathered = next(d for d in source.tensor.dims if set(over) & set(source.axes(d)))
            return AllGather(over, gathered)
        case "ReduceScatter":
            return ReduceScatter(over, dim)
        case "AllReduce":
            return AllReduce(over)
        case "AllToAll":
            source_dim = next(d for d in source.tensor.dims if set(over) & set(source.axes(d)))
            return AllToAll(over, source_dim, dim)
        case "Slice":
            return Slice(over, dim)
        case "Mask":
            return Mask(over)
        case "Permute":
            return Permute(tuple(sorted(source.layout.used | target.layout.used)))
        case _:
            raise AssertionError(text)


def step(line: str, dtypes: Mapping[str, str], default: str, op: Op | None = None) -> Step:
    """Read a line `C[..] = A[..] ·_J B[..]`, or `C[..] = AllGather_X(A[..])`; `op` overrides."""
    left, right = line.split(" = ", 1)

    def read(text: str) -> Array:
        return array(text, dtypes.get(text.strip().split("[")[0], default))

    output = read(left)
    called = re.fullmatch(r"(\w+(?:_\{?[\w,']+\}?)?)\((.*)\)", right)
    if op is not None:
        inputs = tuple(read(x) for x in re.findall(r"[^\s\[(]+\[[^\]]*\](?:\{\w+\})?", right))
        return Step(op, inputs, output)
    if called is not None:
        source = read(called[2])
        return Step(relayout(called[1], source, output), (source,), output, critical=True)
    product = re.fullmatch(r"(.*) ·_\{?([\w,']+)\}? (.*)", right)
    if product is not None:
        contracted = tuple(Dim(name) for name in product[2].split(","))
        return Step(Einsum(contracted), (read(product[1]), read(product[3])), output)
    return Step(Einsum(()), tuple(read(x) for x in right.split(" ⊙ ")), output)


def plan(
    forward: Sequence[str | tuple[str, Op]],
    backward: Sequence[str | tuple[str, Op]] = (),
    *,
    mesh: Mapping[str, int | None],
    leaves: Sequence[str],
    outputs: Sequence[str],
    sizes: Mapping[str, int] | None = None,
    dtypes: Mapping[str, str] | None = None,
    dtype: str = "f32",
    name: str = "a hand-built plan",
) -> Plan:
    """Build a plan from its lines; gradients are taken by name: `dA` is that of the leaf `A`."""
    kinds = dtypes or {}

    def make(lines: Sequence[str | tuple[str, Op]]) -> tuple[Step, ...]:
        return tuple(
            step(x, kinds, dtype) if isinstance(x, str) else step(x[0], kinds, dtype, x[1])
            for x in lines
        )

    def read(text: str) -> Array:
        return array(text, kinds.get(text.split("[", maxsplit=1)[0], dtype))

    steps, back = make(forward), make(backward)
    given = tuple(read(x) for x in leaves)
    ends = tuple(read(x) for x in outputs)
    made = {s.output.name: s.output for s in back}
    gradients = tuple(
        Gradient(leaf, made[f"d{leaf.name}"]) for leaf in given if f"d{leaf.name}" in made
    )
    cotangents = tuple(
        Array(Tensor(f"d{x.name}", x.tensor.dims, x.tensor.dtype), x.layout.reduced()) for x in ends
    )
    statements = tuple(
        Statement(
            s.op,
            tuple(Use(x.tensor, x.layout, NOWHERE) for x in s.inputs),
            s.output.tensor,
            s.output.layout,
            NOWHERE,
        )
        for s in steps
    )
    known = sizes or {}
    names = dict.fromkeys(
        d for s in (*steps, *back) for x in (*s.inputs, s.output) for d in x.tensor.dims
    )
    program = Program(
        Source(name, ""),
        Mesh(tuple(AxisInfo(Axis(axis), size) for axis, size in mesh.items())),
        tuple(DimInfo(dim, known.get(dim.name)) for dim in names),
        tuple(Leaf(x, "input", NOWHERE) for x in given),
        statements,
        explicit=True,
        has_backward=bool(back),
        dtype=DTYPES[dtype],
    )
    return Plan(program, "book", steps, back, ends, cotangents if back else (), gradients)


def _lines(text: str) -> list[str]:
    return [line.split("//")[0].strip() for line in text.strip().splitlines()]


def mlp(scheme: str, dtype: str = "f32", mesh: Mapping[str, int | None] | None = None) -> Plan:
    """Give one of the four schemes of a two-layer MLP, forward and backward."""
    axes_, leaves, output, forward, backward = _MLP[scheme]
    return plan(
        _lines(forward),
        _lines(backward),
        mesh=mesh or dict.fromkeys(axes_),
        leaves=leaves,
        outputs=[output],
        dtype=dtype,
        name=f"{scheme}.shd",
    )


_MLP = {
    "dp": (
        "X",
        ["In[B_X, D]", "W_in[D, F]", "W_out[F, D]"],
        "Out[B_X, D]",
        """
        Tmp[B_X, F] = In[B_X, D] ·_D W_in[D, F]
        Out[B_X, D] = Tmp[B_X, F] ·_F W_out[F, D]
        """,
        """
        dW_out[F, D]{U_X} = Tmp[B_X, F] ·_B dOut[B_X, D]
        dW_out[F, D] = AllReduce_X(dW_out[F, D]{U_X})
        dTmp[B_X, F] = dOut[B_X, D] ·_D W_out[F, D]
        dW_in[D, F]{U_X} = In[B_X, D] ·_B dTmp[B_X, F]
        dW_in[D, F] = AllReduce_X(dW_in[D, F]{U_X})
        dIn[B_X, D] = dTmp[B_X, F] ·_F W_in[D, F]
        """,
    ),
    "fsdp": (
        "X",
        ["In[B_X, D]", "W_in[D_X, F]", "W_out[F, D_X]"],
        "Out[B_X, D]",
        """
        W_in[D, F] = AllGather_X(W_in[D_X, F])
        Tmp[B_X, F] = In[B_X, D] ·_D W_in[D, F]
        W_out[F, D] = AllGather_X(W_out[F, D_X])
        Out[B_X, D] = Tmp[B_X, F] ·_F W_out[F, D]
        """,
        """
        dW_out[F, D]{U_X} = Tmp[B_X, F] ·_B dOut[B_X, D]
        dW_out[F, D_X] = ReduceScatter_{X,D}(dW_out[F, D]{U_X})
        W_out[F, D] = AllGather_X(W_out[F, D_X])
        dTmp[B_X, F] = dOut[B_X, D] ·_D W_out[F, D]
        dW_in[D, F]{U_X} = In[B_X, D] ·_B dTmp[B_X, F]
        dW_in[D_X, F] = ReduceScatter_{X,D}(dW_in[D, F]{U_X})
        W_in[D, F] = AllGather_X(W_in[D_X, F])
        dIn[B_X, D] = dTmp[B_X, F] ·_F W_in[D, F]
        """,
    ),
    "tp": (
        "Y",
        ["In[B, D_Y]", "W_in[D, F_Y]", "W_out[F_Y, D]"],
        "Out[B, D_Y]",
        """
        In[B, D] = AllGather_Y(In[B, D_Y])
        Tmp[B, F_Y] = In[B, D] ·_D W_in[D, F_Y]
        Out[B, D]{U_Y} = Tmp[B, F_Y] ·_F W_out[F_Y, D]
        Out[B, D_Y] = ReduceScatter_{Y,D}(Out[B, D]{U_Y})
        """,
        """
        dOut[B, D] = AllGather_Y(dOut[B, D_Y])
        dW_out[F_Y, D] = Tmp[B, F_Y] ·_B dOut[B, D]
        dTmp[B, F_Y] = dOut[B, D] ·_D W_out[F_Y, D]
        dW_in[D, F_Y] = In[B, D] ·_B dTmp[B, F_Y]
        dIn[B, D]{U_Y} = dTmp[B, F_Y] ·_F W_in[D, F_Y]
        dIn[B, D_Y] = ReduceScatter_{Y,D}(dIn[B, D]{U_Y})
        """,
    ),
    "fsdp_tp": (
        "XY",
        ["In[B_X, D_Y]", "W_in[D_X, F_Y]", "W_out[F_Y, D_X]"],
        "Out[B_X, D_Y]",
        """
        In[B_X, D] = AllGather_Y(In[B_X, D_Y])
        W_in[D, F_Y] = AllGather_X(W_in[D_X, F_Y])
        Tmp[B_X, F_Y] = In[B_X, D] ·_D W_in[D, F_Y]
        W_out[F_Y, D] = AllGather_X(W_out[F_Y, D_X])
        Out[B_X, D]{U_Y} = Tmp[B_X, F_Y] ·_F W_out[F_Y, D]
        Out[B_X, D_Y] = ReduceScatter_{Y,D}(Out[B_X, D]{U_Y})
        """,
        """
        dOut[B_X, D] = AllGather_Y(dOut[B_X, D_Y])
        dW_out[F_Y, D]{U_X} = Tmp[B_X, F_Y] ·_B dOut[B_X, D]
        dW_out[F_Y, D_X] = ReduceScatter_{X,D}(dW_out[F_Y, D]{U_X})
        W_out[F_Y, D] = AllGather_X(W_out[F_Y, D_X])
        dTmp[B_X, F_Y] = dOut[B_X, D] ·_D W_out[F_Y, D]
        dW_in[D, F_Y]{U_X} = In[B_X, D] ·_B dTmp[B_X, F_Y]
        dW_in[D_X, F_Y] = ReduceScatter_{X,D}(dW_in[D, F_Y]{U_X})
        W_in[D, F_Y] = AllGather_X(W_in[D_X, F_Y])
        dIn[B_X, D]{U_Y} = dTmp[B_X, F_Y] ·_F W_in[D, F_Y]
        dIn[B_X, D_Y] = ReduceScatter_{Y,D}(dIn[B_X, D]{U_Y})
        """,
    ),
}

__all__ = ["Compute", "array", "axes", "mlp", "plan", "step"]
