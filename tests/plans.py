"""Plans built by hand for the tests of costs, from a few words of the notation's own form."""

from __future__ import annotations

import re
from collections.abc import Mapping

from shardlang.ir.ops import AllGather, AllReduce, AllToAll, Einsum, Op, Permute, ReduceScatter
from shardlang.ir.plan import Gradient, Plan, Step
from shardlang.ir.program import DimInfo, Leaf, Program
from shardlang.ir.size import SizeExpr
from shardlang.ir.types import (
    Array,
    Axis,
    AxisInfo,
    Dim,
    DTYPES,
    Layout,
    Mesh,
    Tensor,
)
from shardlang.source import Source, Span

NOWHERE = Span(0, 0)


def array(text: str, dtype: str = "bf16") -> Array:
    """Read `A[B_X, D/Y/Z]{U_X}`: axes of one letter after `_`, or any after slashes."""
    found = re.fullmatch(r"(\w+)\[(.*?)\](?:\{U_(\w+)\})?", text)
    assert found is not None
    name, inner, partial = found.groups()
    dims: list[Dim] = []
    sharding: list[tuple[Axis, ...]] = []
    for piece in filter(None, (part.strip() for part in inner.split(","))):
        if "/" in piece:
            dim, *axes = piece.split("/")
        else:
            dim, _, letters = piece.rpartition("_")
            dim, letters = (dim, letters) if letters.isupper() and dim else (piece, "")
            axes = list(letters)
        dims.append(Dim(dim))
        sharding.append(tuple(Axis(axis) for axis in axes))
    tensor = Tensor(name, tuple(dims), DTYPES[dtype])
    return Array(tensor, Layout(tuple(sharding), frozenset(Axis(a) for a in partial or "")))


def axes(letters: str) -> tuple[Axis, ...]:
    """Give axes of one letter each."""
    return tuple(Axis(letter) for letter in letters)


def product(result: str, left: str, dim: str, right: str, dtype: str = "bf16") -> Step:
    """Contract two arrays."""
    op = Einsum((Dim(dim),) if dim else ())
    return Step(op, (array(left, dtype), array(right, dtype)), array(result, dtype))


def gather(before: str, letters: str, dim: str, after: str, *, critical: bool = False) -> Step:
    """AllGather."""
    return _move(AllGather(axes(letters), Dim(dim)), before, after, critical=critical)


def scatter(before: str, letters: str, dim: str, after: str, *, critical: bool = False) -> Step:
    """ReduceScatter."""
    return _move(ReduceScatter(axes(letters), Dim(dim)), before, after, critical=critical)


def reduce(before: str, letters: str, after: str, *, critical: bool = False) -> Step:
    """AllReduce."""
    return _move(AllReduce(axes(letters)), before, after, critical=critical)


def all_to_all(before: str, letters: str, source: str, dim: str, after: str) -> Step:
    """AllToAll."""
    return _move(AllToAll(axes(letters), Dim(source), Dim(dim)), before, after)


def permute(before: str, letters: str, after: str) -> Step:
    """Permute."""
    return _move(Permute(axes(letters)), before, after)


def _move(op: Op, before: str, after: str, *, critical: bool = False) -> Step:
    return Step(op, (array(before),), array(after), reason="as the test wants", critical=critical)


def make_plan(
    forward: list[Step],
    backward: list[Step] | None = None,
    *,
    leaves: list[str],
    outputs: list[str] | None = None,
    gradients: Mapping[str, str] | None = None,
    mesh: Mapping[str, int | None] | None = None,
    network: Mapping[str, tuple[str, int]] | None = None,
    sizes: Mapping[str, int] | None = None,
    declared: Mapping[str, SizeExpr] | None = None,
    hardware: str | None = None,
    optimizer: str | None = None,
    dtype: str = "bf16",
) -> Plan:
    """Make a plan; leaves whose names start with W are parameters."""
    infos = tuple(
        AxisInfo(Axis(name), size, *(network or {}).get(name, ("ici", 1)))
        for name, size in (mesh or {}).items()
    )
    sizes, declared = sizes or {}, declared or {}
    dims = tuple(
        DimInfo(Dim(n), sizes.get(n), declared.get(n)) for n in dict.fromkeys((*sizes, *declared))
    )
    own = [array(text, dtype) for text in leaves]
    kinds = ["param" if leaf.name.startswith("W") else "input" for leaf in own]
    program = Program(
        source=Source("test.shd", f"hardware {hardware}\n" if hardware else ""),
        mesh=Mesh(infos),
        dims=dims,
        leaves=tuple(Leaf(a, k, NOWHERE) for a, k in zip(own, kinds, strict=True)),
        statements=(),
        hardware=hardware,
        optimizer=optimizer,
    )
    ends = tuple(array(text, dtype) for text in outputs or [])
    pairs = {name: array(text, dtype) for name, text in (gradients or {}).items()}
    return Plan(
        program=program,
        strategy="book",
        forward=tuple(forward),
        backward=tuple(backward or []),
        outputs=ends,
        cotangents=tuple(
            Array(Tensor(f"d{a.name}", a.tensor.dims, a.tensor.dtype), a.layout) for a in ends
        )
        if backward
        else (),
        gradients=tuple(Gradient(a, pairs[a.name]) for a in own if a.name in pairs),
    )


def mlp(scheme: str, **options) -> Plan:
    """Build the plan of one of the four schemes of the book."""
    return {"dp": _dp, "fsdp": _fsdp, "tp": _tp, "fsdp_tp": _fsdp_tp}[scheme](options)


def _ends(options, w_in: str, w_out: str, data: str, out: str, mesh: str):
    options.setdefault("mesh", dict.fromkeys(mesh))
    return {
        "leaves": [f"In{data}", f"W_in{w_in}", f"W_out{w_out}"],
        "outputs": [f"Out{out}"],
        "gradients": {"In": f"dIn{data}", "W_in": f"dW_in{w_in}", "W_out": f"dW_out{w_out}"},
        **options,
    }


def _dp(options) -> Plan:
    return make_plan(
        [
            product("Tmp[B_X, F]", "In[B_X, D]", "D", "W_in[D, F]"),
            product("Out[B_X, D]", "Tmp[B_X, F]", "F", "W_out[F, D]"),
        ],
        [
            product("dW_out[F, D]{U_X}", "Tmp[B_X, F]", "B", "dOut[B_X, D]"),
            reduce("dW_out[F, D]{U_X}", "X", "dW_out[F, D]"),
            product("dTmp[B_X, F]", "dOut[B_X, D]", "D", "W_out[F, D]"),
            product("dW_in[D, F]{U_X}", "In[B_X, D]", "B", "dTmp[B_X, F]"),
            reduce("dW_in[D, F]{U_X}", "X", "dW_in[D, F]"),
            product("dIn[B_X, D]", "dTmp[B_X, F]", "F", "W_in[D, F]"),
        ],
        **_ends(options, "[D, F]", "[F, D]", "[B_X, D]", "[B_X, D]", "X"),
    )


def _fsdp(options) -> Plan:
    return make_plan(
        [
            gather("W_in[D_X, F]", "X", "D", "W_in[D, F]"),
            product("Tmp[B_X, F]", "In[B_X, D]", "D", "W_in[D, F]"),
            gather("W_out[F, D_X]", "X", "D", "W_out[F, D]"),
            product("Out[B_X, D]", "Tmp[B_X, F]", "F", "W_out[F, D]"),
        ],
        [
            product("dW_out[F, D]{U_X}", "Tmp[B_X, F]", "B", "dOut[B_X, D]"),
            scatter("dW_out[F, D]{U_X}", "X", "D", "dW_out[F, D_X]"),
            gather("W_out[F, D_X]", "X", "D", "W_out[F, D]"),
            product("dTmp[B_X, F]", "dOut[B_X, D]", "D", "W_out[F, D]"),
            product("dW_in[D, F]{U_X}", "In[B_X, D]", "B", "dTmp[B_X, F]"),
            scatter("dW_in[D, F]{U_X}", "X", "D", "dW_in[D_X, F]"),
            gather("W_in[D_X, F]", "X", "D", "W_in[D, F]"),
            product("dIn[B_X, D]", "dTmp[B_X, F]", "F", "W_in[D, F]"),
        ],
        **_ends(options, "[D_X, F]", "[F, D_X]", "[B_X, D]", "[B_X, D]", "X"),
    )


def _tp(options) -> Plan:
    return make_plan(
        [
            gather("In[B, D_Y]", "Y", "D", "In[B, D]", critical=True),
            product("Tmp[B, F_Y]", "In[B, D]", "D", "W_in[D, F_Y]"),
            product("Out[B, D]{U_Y}", "Tmp[B, F_Y]", "F", "W_out[F_Y, D]"),
            scatter("Out[B, D]{U_Y}", "Y", "D", "Out[B, D_Y]", critical=True),
        ],
        [
            gather("dOut[B, D_Y]", "Y", "D", "dOut[B, D]", critical=True),
            product("dW_out[F_Y, D]", "Tmp[B, F_Y]", "B", "dOut[B, D]"),
            product("dTmp[B, F_Y]", "dOut[B, D]", "D", "W_out[F_Y, D]"),
            product("dW_in[D, F_Y]", "In[B, D]", "B", "dTmp[B, F_Y]"),
            product("dIn[B, D]{U_Y}", "dTmp[B, F_Y]", "F", "W_in[D, F_Y]"),
            scatter("dIn[B, D]{U_Y}", "Y", "D", "dIn[B, D_Y]", critical=True),
        ],
        **_ends(options, "[D, F_Y]", "[F_Y, D]", "[B, D_Y]", "[B, D_Y]", "Y"),
    )


def _fsdp_tp(options) -> Plan:
    return make_plan(
        [
            gather("In[B_X, D_Y]", "Y", "D", "In[B_X, D]", critical=True),
            gather("W_in[D_X, F_Y]", "X", "D", "W_in[D, F_Y]"),
            product("Tmp[B_X, F_Y]", "In[B_X, D]", "D", "W_in[D, F_Y]"),
            gather("W_out[F_Y, D_X]", "X", "D", "W_out[F_Y, D]"),
            product("Out[B_X, D]{U_Y}", "Tmp[B_X, F_Y]", "F", "W_out[F_Y, D]"),
            scatter("Out[B_X, D]{U_Y}", "Y", "D", "Out[B_X, D_Y]", critical=True),
        ],
        [
            gather("dOut[B_X, D_Y]", "Y", "D", "dOut[B_X, D]", critical=True),
            product("dW_out[F_Y, D]{U_X}", "Tmp[B_X, F_Y]", "B", "dOut[B_X, D]"),
            scatter("dW_out[F_Y, D]{U_X}", "X", "D", "dW_out[F_Y, D_X]"),
            gather("W_out[F_Y, D_X]", "X", "D", "W_out[F_Y, D]"),
            product("dTmp[B_X, F_Y]", "dOut[B_X, D]", "D", "W_out[F_Y, D]"),
            product("dW_in[D, F_Y]{U_X}", "In[B_X, D]", "B", "dTmp[B_X, F_Y]"),
            scatter("dW_in[D, F_Y]{U_X}", "X", "D", "dW_in[D_X, F_Y]"),
            gather("W_in[D_X, F_Y]", "X", "D", "W_in[D, F_Y]"),
            product("dIn[B_X, D]{U_Y}", "dTmp[B_X, F_Y]", "F", "W_in[D, F_Y]"),
            scatter("dIn[B_X, D]{U_Y}", "Y", "D", "dIn[B_X, D_Y]", critical=True),
        ],
        **_ends(options, "[D_X, F_Y]", "[F_Y, D_X]", "[B_X, D_Y]", "[B_X, D_Y]", "XY"),
    )
