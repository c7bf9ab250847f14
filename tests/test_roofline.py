"""Emitted modules under JAX's own roofline analysis: the same bytes on each axis, the same FLOPs.

`jax.experimental.roofline` walks a function's jaxpr and adds up what each primitive moves and computes. It
has no rule for gathers to a replicated value (`to="invarying"`), counts a maximum over devices as one
number, and a loop's body once: there ours differs, and is right.
"""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import jaxcases  # noqa: F401  (8 simulated devices, before JAX looks for them)
import pytest

import shardlang as sl

jax = pytest.importorskip("jax")
pytest.importorskip("absl")

pytestmark = [pytest.mark.jax, pytest.mark.slow]

LAYERS = {
    "dp": "In[B_X, D] · W_in[D, F] · W_out[F, D] -> Out[B_X, D]",
    "fsdp": "In[B_X, D] · W_in[D_X, F] · W_out[F, D_X] -> Out[B_X, D]",
    "tp": "In[B, D_Y] · W_in[D, F_Y] · W_out[F_Y, D] -> Out[B, D_Y]",
    "fsdp_tp": "In[B_X, D_Y] · W_in[D_X, F_Y] · W_out[F_Y, D_X] -> Out[B_X, D_Y]",
    "both axes": "In[B_XY, D] · W_in[D_XY, F] · W_out[F, D_XY] -> Out[B_XY, D]",
    "weights stay": "In[B, D_XY] · W_in[D_X, F_Y] · W_out[F_Y, D_X] -> Out[B, D_XY]",
    "reduced at once": "A[I, J_XY] · B[J_XY, K] -> C[I, K]",
    "gated": "G[B_X, F_Y] = silu(x[B_X, D] ·_D W_g[D, F_Y]) ⊙ (x[B_X, D] ·_D W_u[D, F_Y])\n"
    "y[B_X, D] = G ·_F W_d[F_Y, D]",
    "attention": "q[B_X, T, N_Y, H] = x[B_X, T, D] ·_D W_q[D_X, N_Y, H]\n"
    "k[B_X, S, N_Y, H] = z[B_X, S, D] ·_D W_k[D_X, N_Y, H]\n"
    "v[B_X, S, N_Y, H] = z ·_D W_v[D_X, N_Y, H]\n"
    "p[B_X, T, N_Y, S] = softmax_S(q ·_H k)\n"
    "o[B_X, T, N_Y, H] = p ·_S v\n"
    "y[B_X, T, D] = o ·_{N,H} W_o[N_Y, H, D_X]",
}
SIZES = {"B": 8, "D": 32, "F": 64, "I": 16, "J": 32, "K": 8, "T": 8, "S": 16, "N": 4, "H": 8}


def module(program, mesh):
    """Emit a program in f32 on a mesh, and load the module; with it comes its plan."""
    text = f"mesh {', '.join(f'{a}={n}' for a, n in mesh.items())}\ndtype f32\n{program}"
    names = {dim: size for dim, size in SIZES.items() if f"{dim}" in program}
    known = {info.dim.name for info in sl.parse(text).dims}
    plan = sl.lower(sl.parse(text), sizes={k: v for k, v in names.items() if k in known})
    space: dict[str, object] = {"__name__": "emitted"}
    exec(compile(sl.emit_jax(plan), "emitted.py", "exec"), space)
    return plan, space


def analysed(space, mesh):
    """Analyse a module's forward and backward pass by JAX's roofline."""
    import jax.numpy as jnp
    from jax.experimental.roofline import roofline

    def arrays(table):
        return tuple(jnp.zeros(shape, dtype) for shape, dtype, _ in table.values())

    def run(inputs, cotangents):
        return space["forward_backward"](mesh, inputs, cotangents)

    _, found = roofline(run, mesh=mesh)(arrays(space["INPUTS"]), arrays(space["OUTPUTS"]))
    return found


def ours(plan, *, without=()):
    """Give the bytes that a device sends on each axis, and the FLOPs of contractions, by `link`."""
    report = sl.cost(plan, model="link")
    sent: Counter[str] = Counter()
    for cost in report.collectives:
        if cost.op not in without:
            for axis in cost.axes:
                sent[axis] += Fraction(cost.bytes.value, len(cost.axes))
    work = sum(cost.flops.value for cost in report.compute if "·" in cost.einsum)
    return dict(sent), work


@pytest.fixture
def counted(monkeypatch):
    """Let JAX count a gather to a replicated value as the gather that it is."""
    from jax._src.lax import parallel
    from jax.experimental.roofline.roofline import _rooflines

    rule = _rooflines[parallel.all_gather_p]
    monkeypatch.setitem(_rooflines, parallel.all_gather_invariant_p, rule)


@pytest.mark.parametrize("mesh", [{"X": 4, "Y": 2}, {"X": 2, "Y": 4}], ids=str)
@pytest.mark.parametrize("name", LAYERS)
def test_bytes_of_each_axis_and_flops(counted, name, mesh):
    """With gathers counted, every axis carries the same bytes, and contractions take the same FLOPs."""
    plan, space = module(LAYERS[name], mesh)
    found = analysed(space, space["make_mesh"]())
    sent, work = ours(plan)

    assert {axis: n for axis, n in found.ici_bytes.items() if n} == sent
    assert found.flops == work


@pytest.mark.parametrize("name", ["fsdp", "fsdp_tp", "attention"])
def test_gathers_to_a_replicated_value_are_not_counted_there(name):
    """As it is, JAX's analysis leaves out exactly our AllGathers."""
    plan, space = module(LAYERS[name], {"X": 4, "Y": 2})
    found = analysed(space, space["make_mesh"]())
    sent, _ = ours(plan, without=("AllGather",))

    assert {axis: n for axis, n in found.ici_bytes.items() if n} == sent


def test_a_maximum_over_devices_moves_the_whole_array(counted):
    """JAX's analysis takes the AllReduce of a maximum for that of one number; ours is of the array."""
    plan, space = module("y[B] = max_S(x[B, S_X])", {"X": 4})
    report = sl.cost(sl.lower(plan.program, forward_only=True), model="link")
    (maximum,) = report.collectives

    from jax.experimental.roofline import roofline

    mesh = space["make_mesh"]()
    inputs = tuple(jax.numpy.zeros(shape, dtype) for shape, dtype, _ in space["INPUTS"].values())
    _, found = roofline(lambda *x: space["forward"](mesh, *x), mesh=mesh)(*inputs)

    assert maximum.bytes.value == 2 * (8 * 4) * 3 / 4
    assert found.ici_bytes == {"X": 3 * 4}


def test_a_loop_counts_each_time():
    """JAX's analysis walks a scan's body once; a block of ten layers counts ten times here."""
    from jax import lax
    from jax import numpy as jnp
    from jax.experimental.roofline import roofline
    from jax.sharding import Mesh
    from jax.sharding import PartitionSpec as P

    text = (
        "mesh X=4\ndtype f32\ndims B=8, D=32, F=64\ninput x: [B, D]\nlayers 10:\n"
        "    y[B, F_X] = x ·_D W_in[D, F_X]\n    x = y ·_F W_out[F_X, D]"
    )
    total = sl.cost(sl.lower(sl.parse(text), forward_only=True), model="link").total

    def layers(x, first, second):
        def layer(x, weights):
            return lax.psum((x @ weights[0]) @ weights[1], "X"), None

        return lax.scan(layer, x, (first, second))[0]

    mesh = Mesh(jax.devices()[:4], ("X",))
    specs = (P(), P(None, None, "X"), P(None, "X", None))
    shapes = ((8, 32), (10, 32, 64), (10, 64, 32))
    _, found = roofline(layers, mesh=mesh, in_specs=specs, out_specs=P())(
        *(jnp.zeros(shape) for shape in shapes)
    )

    assert found.flops == 2 * 2 * 8 * 32 * 64 / 4
    assert total.quantity("flops").value == 10 * found.flops
    assert found.ici_bytes == {"X": 2 * 8 * 32 * 4 * 3 // 4}
    assert total.quantity("bytes").value == 10 * found.ici_bytes["X"]
