"""Emitted modules in several processes: each makes and holds its own shards, as one process does."""

from __future__ import annotations

import numpy as np
import pytest
from processes import run

import shardlang as sl

MLP = """
mesh X=4, Y=2
dims B=16, D=8, F=32
dtype f32
h[B_X, F_Y] = gelu(In[B_X, D_Y] ·_D W_in[D_X, F_Y])
h[B_X, F_Y] ·_F W_out[F_Y, D_X] -> Out[B_X, D_Y]
"""

ATTENTION = """
mesh X=2, Y=4
dims B=4, T=16, D=8, N=2, G=2, H=4
dtype f32
a[B_X, T_Y, D] = rmsnorm_D(x[B_X, T_Y, D])
q[B_X, T_Y, N, G, H] = a ·_D W_q[D_X, N, G, H]
k[B_X, S, N, H] = a[B_X, S, D] ·_D W_k[D_X, N, H]
v[B_X, S_Y, N, H] = a[B_X, S_Y, D] ·_D W_v[D_X, N, H]
p[B_X, N, G, T, S_Y] = softmax_S(q ·_H k)
o[B_X, T_Y, N, G, H] = p ·_S v
y[B_X, T_Y, D] = x + o ·_{N,G,H} W_o[N, G, H, D_X]
"""

LAYERS = """
mesh X=4, Y=2
dims B=8, D=8, F=16, V=8
dtype f32
input x: [B_X, D_Y]
layers L=3:
  h[B_X, F_Y] = gelu(rmsnorm_D(x) ·_D W_in[D_X, F_Y])
  x = x + h ·_F W_out[F_Y, D_X]
logits[B_X, V_Y] = x ·_D W_vocab[D_X, V_Y]
"""

MOVES = """
mesh X=2, Y=4
dims I=16, J=8, K=8
dtype f32
A[I_X, J_Y] -> B[I_Y, J_X]
B[I_Y, J_X] ·_J C[J_X, K] -> E[I_Y, K]{U_X}
"""


IDS = """
mesh X=4, Y=2
dims B=16, V=8, D=8
dtype f32
input ids: int32[B_X]
e[B_X, D_Y] = take_V(E[V, D_Y], ids)
y[B_X, D_Y] = tanh(e ⊙ g[D_Y])
many = sum_B(ids)
"""

TRAINING = """
mesh X=4, Y=2
dims B=8, V=8, D=8, F=16
dtype f32
optimizer adamw, zero 1 over X
accumulate M=2
input tokens: int32[B_X], labels: int32[B_X]
param E: [V_Y, D], W_in: [L, D, F_Y], W_out: [L, F_Y, D]
x[B_X, D] = take_V(E, tokens)
layers L=3:
  h[B_X, F_Y] = gelu(x ·_D W_in)
  x = x + h ·_F W_out
logits[B_X, V_Y] = x ·_D E
loss = mean_B(cross_entropy_V(logits, labels))
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Run the modules as one process of 8 devices, and as two of 4."""
    texts = {
        "mlp": MLP, "attention": ATTENTION, "layers": LAYERS, "moves": MOVES, "ids": IDS, "training": TRAINING,
    }  # fmt: skip
    modules = {title: sl.emit_jax(sl.lower(sl.parse(text))) for title, text in texts.items()}
    folder = tmp_path_factory.mktemp("processes")
    return run(modules, folder / "one", 1, 8)[0], run(modules, folder / "two", 2, 4)


@pytest.mark.jax
@pytest.mark.slow
def test_every_shard_is_that_of_one_process(runs):
    """Outputs and all gradients agree device by device, and every device is compared."""
    one, two = runs
    together = {key: value for held in two for key, value in held.shards.items()}

    assert [(0, 1, 2, 3), (4, 5, 6, 7)] == [held.devices for held in two]
    assert one.shards.keys() == together.keys()
    for held in two:
        assert {key[3] for key in held.shards} == set(held.devices)
    for key, value in one.shards.items():
        scale = np.abs(value).max()
        assert np.isfinite(scale), key
        np.testing.assert_allclose(together[key], value, atol=1e-6 * scale, err_msg=str(key))
        assert scale > 0, key


@pytest.mark.jax
@pytest.mark.slow
def test_a_process_makes_what_its_devices_hold(runs):
    """Over X in two processes, a process makes half of what X splits, once where it is replicated."""
    _, two = runs
    # X is the outer axis of both meshes, so a process has half of its indices, and all of Y's.
    halves = {
        ("mlp", "In"), ("mlp", "W_in"), ("mlp", "W_out"), ("mlp", "Out"),
        ("attention", "x"), ("attention", "W_q"), ("attention", "W_k"), ("attention", "W_v"),
        ("attention", "W_o"), ("attention", "y"), ("layers", "x"), ("layers", "W_in"),
        ("layers", "W_out"), ("layers", "W_vocab"), ("layers", "logits"), ("moves", "A"), ("moves", "C"),
        ("ids", "ids"), ("ids", "y"), ("training", "tokens"), ("training", "labels"),
    }  # fmt: skip
    # No axis that parts the processes splits these.
    wholes = {
        ("moves", "E"), ("ids", "E"), ("ids", "g"), ("training", "E"), ("training", "W_in"), ("training", "W_out"),
    }  # fmt: skip

    for held in two:
        assert halves | wholes == held.asked.keys()
        for key in halves:
            assert held.whole[key] == 2 * held.asked[key], key
        for key in wholes:
            assert held.whole[key] == held.asked[key], key


@pytest.mark.jax
@pytest.mark.slow
def test_steps_of_two_processes(runs):
    """Both take the same two steps: losses fall, and each device has its part of the optimizer's state alone."""
    one, two = runs
    losses = [one.shards["training", "loss", number, 0] for number in ("first", "second")]
    assert losses[1] < losses[0]
    for held in two:
        for device in held.devices:
            shape = held.shards["training", "state", "['optimizer'][0].mu['W_in']", device].shape
            assert shape == (3, 2, 8)  # of [L, D_X, F_Y]
            kept = held.shards["training", "state", "['parameters']['W_in']", device].shape
            assert kept == (3, 8, 8)
