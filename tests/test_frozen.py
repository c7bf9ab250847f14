"""Parameters that are not trained: LoRA, frozen towers and embeddings, from the declaration to emitted steps."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import shardlang as sl
from shardlang.cost.pipeline import durations
from shardlang.diagnostics import ShardlangError
from shardlang.frontend.format import format_source
from shardlang.ir.plan import Plan
from shardlang.planner.placement import anywhere, place
from shardlang.planner.prices import prices_of
from shardlang.planner.program import aim_of
from shardlang.source import Source

LINEAR = """
mesh X=2, Y=2
dims B=8, D=16, F=32, R=4
dtype f32
optimizer adamw
accumulate M=3
input x: [B_X, D], target: [B_X, F_Y]
frozen W: bf16[D_X, F_Y]
param A: [D_X, R], U: [R, F_Y]
y[B_X, F_Y] = x ·_D W + (x ·_D A) ·_R U
loss[] = mean_{B,F}(square(y - target))
"""

BLOCK = """
mesh X=2, Y=2
dims B=4, T=6, D=8, N=2, H=4, F=16, R=2, V=10
dtype f32
optimizer adamw
accumulate M=2
save x
input ids: int32[B_X, T], labels: int32[B_X, T]
frozen E: [V_Y, D], g: [L, D]
frozen W_q: [L, D_X, N_Y, H], W_k: [L, D_X, N_Y, H], W_v: [L, D_X, N_Y, H], W_o: [L, N_Y, H, D_X]
frozen W_in: [L, D_X, F_Y], W_out: [L, F_Y, D_X]
param A_q: [L, D_X, R], U_q: [L, R, N_Y, H], A_v: [L, D_X, R], U_v: [L, R, N_Y, H]
x[B_X, T, D] = take_V(E, ids)
layers L=3:
  h[B_X, T, D] = rmsnorm_D(x) ⊙ g
  q[B_X, T, N_Y, H] = h ·_D W_q + (h ·_D A_q) ·_R U_q
  k[B_X, S, N_Y, H] = h[B_X, S, D] ·_D W_k
  v[B_X, S, N_Y, H] = h[B_X, S, D] ·_D W_v + (h[B_X, S, D] ·_D A_v) ·_R U_v
  s[B_X, N_Y, T, S] = q ·_H k
  p[B_X, N_Y, T, S] = softmax_S(where(index_S <= index_T, s, -inf))
  o[B_X, T, N_Y, H] = p ·_S v
  x = x + o ·_{N,H} W_o
  m[B_X, T, D] = rmsnorm_D(x)
  x = x + gelu(m ·_D W_in) ·_F W_out
each[B_X, T] = cross_entropy_V(x ·_D E, labels)
loss[] = mean_{B,T}(each)
"""

STAGES = """
mesh X=2, Z=2
dims B=8, D=16, F=32, R=4, L=4
dtype f32
optimizer adamw
accumulate M=4
schedule 1f1b
input x: [B_X, D], target: [B_X, D]
frozen W_in: [L_Z, D_X, F], W_out: [L_Z, F, D_X]
param A: [L_Z, D, R], U: [L_Z, R, F]
layers L_Z:
  x = x + gelu(x ·_D W_in + (x ·_D A) ·_R U) ·_F W_out
loss[] = mean_{B,D}(square(x - target))
"""

TOWER = """
mesh X=2, Y=2
dims B=8, T=4, D=16, F=32, V=24, C=8
dtype f32
optimizer adamw
accumulate M=2
input ids: int32[B_X, T], target: [B_X, C]
frozen E: [V_Y, D], W_in: [L, D, F_Y], W_out: [L, F_Y, D]
param Head: [D, C]
x[B_X, T, D] = take_V(E, ids)
layers L=3:
  x = x + gelu(x ·_D W_in) ·_F W_out
loss[] = mean_{B,C}(square(mean_T(x) ·_D Head - target))
"""

Tree = dict[str, Any]


def plan(text: str, **options: Any) -> Plan:
    """Lower a program."""
    return sl.lower(sl.parse(text), **options)


def linear(weights: Tree, batch: Tree) -> Any:
    """Give the loss of a linear map with adapters, as one writes it."""
    w = weights["W"].astype(jnp.float32) + weights["A"] @ weights["U"]
    return jnp.mean((batch["x"] @ w - batch["target"]) ** 2)


def normed(x: Any) -> Any:
    """Divide by the root of the mean square."""
    return x / jnp.sqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)


def transformer(w: Tree, batch: Tree) -> Any:
    """Give the loss of a transformer whose queries and values have adapters."""
    x = w["E"][batch["ids"]]
    seen = jnp.tril(jnp.ones((x.shape[1], x.shape[1]), bool))
    for n in range(3):
        h = normed(x) * w["g"][n]
        q, k, v = (jnp.einsum("btd,dnh->btnh", h, w[f"W_{c}"][n]) for c in "qkv")
        q += jnp.einsum("btd,dr,rnh->btnh", h, w["A_q"][n], w["U_q"][n])
        v += jnp.einsum("btd,dr,rnh->btnh", h, w["A_v"][n], w["U_v"][n])
        scores = jnp.where(seen, jnp.einsum("btnh,bsnh->bnts", q, k), -jnp.inf)
        o = jnp.einsum("bnts,bsnh->btnh", jax.nn.softmax(scores, -1), v)
        x += jnp.einsum("btnh,nhd->btd", o, w["W_o"][n])
        x += jax.nn.gelu(normed(x) @ w["W_in"][n]) @ w["W_out"][n]
    logits = jax.nn.log_softmax(x @ w["E"].T)
    return -jnp.mean(jnp.take_along_axis(logits, batch["labels"][..., None], -1))


def stages(w: Tree, batch: Tree) -> Any:
    """Give the loss of four layers with adapters."""
    x = batch["x"]
    for n in range(4):
        x += jax.nn.gelu(x @ w["W_in"][n] + x @ w["A"][n] @ w["U"][n]) @ w["W_out"][n]
    return jnp.mean((x - batch["target"]) ** 2)


def tower(w: Tree, batch: Tree) -> Any:
    """Give the loss of a head on what a tower makes."""
    x = w["E"][batch["ids"]]
    for n in range(3):
        x += jax.nn.gelu(x @ w["W_in"][n]) @ w["W_out"][n]
    return jnp.mean((x.mean(1) @ w["Head"] - batch["target"]) ** 2)


@pytest.mark.parametrize(
    ("text", "function", "trained"),
    [
        (LINEAR, linear, {"A", "U"}),
        (BLOCK, transformer, {"A_q", "U_q", "A_v", "U_v"}),
        (STAGES, stages, {"A", "U"}),
        (TOWER, tower, {"Head"}),
    ],
)
def test_steps_are_those_of_the_plain_program(
    text: str, function: Callable[[Tree, Tree], Any], trained: set[str]
) -> None:
    """Loss, gradients and two steps of adamw equal those of jax.grad and optax on whole arrays."""
    module = ModuleType("emitted")
    exec(sl.emit_jax(plan(text)), module.__dict__)
    rng = np.random.default_rng(3)
    weights, batch = dict[str, Any](), dict[str, Any]()
    for name, (shape, dtype, _) in module.INPUTS.items():
        if name in module.PARAMETERS:
            weights[name] = jnp.asarray(rng.normal(0, 0.2, shape), dtype)
    for name, (shape, dtype, _) in module.BATCH.items():
        whole = rng.integers(0, 10, shape) if "int" in dtype else rng.normal(size=shape)
        batch[name] = np.asarray(whole, dtype)
    many = len(next(iter(batch.values())))

    def mean(own: Tree) -> Any:
        each = [{name: x[i] for name, x in batch.items()} for i in range(many)]
        return sum(function({**weights, **own}, one) for one in each) / many

    own = {name: weights[name] for name in trained}
    mesh, optimizer = module.make_mesh(), optax.adamw(1e-2, eps=1e-4, weight_decay=0.1)
    loss, gradients = jax.jit(module.loss_and_gradients, static_argnums=0)(mesh, weights, batch)
    state = module.init_state(mesh, optimizer, weights)
    step, moments = module.make_train_step(mesh, optimizer), optimizer.init(own)

    assert set(gradients) == set(module.STATES) == trained
    assert set(state["frozen"]) == set(module.FROZEN) == set(weights) - trained
    with jax.default_matmul_precision("highest"):
        expected, wanted = jax.value_and_grad(mean)(own)
        np.testing.assert_allclose(loss, expected, rtol=1e-5)
        for name, x in wanted.items():
            np.testing.assert_allclose(gradients[name], x, atol=2e-5 * float(jnp.abs(x).max()))
        for _ in range(2):
            state, loss = step(state, batch)
            expected, wanted = jax.value_and_grad(mean)(own)
            updates, moments = optimizer.update(wanted, moments, own)
            own = optax.apply_updates(own, updates)
            np.testing.assert_allclose(loss, expected, rtol=1e-5)
    for name, x in own.items():
        np.testing.assert_allclose(state["parameters"][name], x, atol=2e-5, rtol=0)
    for name in module.FROZEN:
        np.testing.assert_array_equal(state["frozen"][name], weights[name])


def test_memory_of_adapters_by_hand() -> None:
    """Of frozen weights there are the weights alone; of the adapters f32 gradients and two moments too."""
    held = sl.cost(plan(LINEAR)).to_dict()["memory"]
    w, a, u = 16 * 32 // 4, 16 * 4 // 2, 4 * 32 // 2  # elements of a device

    assert held["parameters"]["value"] == 2 * w + 4 * (a + u)
    assert held["gradients"]["value"] == 4 * (a + u)
    assert held["optimizer"]["value"] == 8 * (a + u)
    # kept for the backward pass: x, x·A, y - target
    assert held["activations"]["value"] == 4 * (4 * 16 + 4 * 4 + 4 * 16)


def test_memory_of_a_frozen_model_by_hand() -> None:
    """A frozen parameter that no line reads stands for the rest of a model, with no optimizer's state."""
    text = LINEAR.replace("param A", "frozen Rest: [K_X]\nparam A").replace("R=4", "R=4, K=64")
    more, less = (sl.cost(plan(t)).to_dict()["memory"] for t in (text, LINEAR))

    grown = {
        key: more[key]["value"] - less[key]["value"]
        for key in ("parameters", "gradients", "optimizer", "activations")
    }
    assert grown == {"parameters": 128, "gradients": 0, "optimizer": 0, "activations": 0}


def test_memory_on_stages_is_that_of_their_layers() -> None:
    """A stage holds two of four layers, and of the adapters their gradients and moments."""
    held = sl.cost(plan(STAGES)).to_dict()["memory"]
    w, adapters = 2 * (16 * 32), 2 * (16 * 4 + 4 * 32)

    assert held["parameters"]["value"] == 4 * (w + adapters)
    assert held["gradients"]["value"] == 4 * adapters
    assert held["optimizer"]["value"] == 8 * adapters


def test_flops_of_adapters_by_hand() -> None:
    """The backward pass has three products of the adapters, and none of the frozen weight."""
    totals = sl.cost(plan(LINEAR)).to_dict()["totals"]
    b, d, f, r = 4, 16, 16, 4  # of a device

    assert totals["forward"]["flops"]["value"] == 3 * 2 * (b * d * f + b * d * r + b * r * f)
    # dU = (x·A)ᵀ dy, d(x·A) = dy Uᵀ, dA = xᵀ d(x·A)
    assert totals["backward"]["flops"]["value"] == 3 * 2 * (2 * b * r * f + b * d * r)


def test_conventions_count_frozen_parameters_with_two_thirds() -> None:
    """Of 6 a token and parameter, the 2 of its own gradient are not done."""
    counts = sl.cost(plan(LINEAR)).conventions()
    tokens, w, adapters = 3 * 8, 16 * 32, 16 * 4 + 4 * 32

    for name in ("parameters", "parameters-all"):
        total = counts[name].total
        assert total is not None
        assert total.value == tokens * (4 * w + 6 * adapters)
    assert counts.parameters.value == w + adapters


def names(steps: Any) -> set[str]:
    """Give the names of what steps make."""
    return {step.output.name for step in steps}


@pytest.mark.parametrize("strategy", ["book", "optimal"])
def test_a_frozen_tower_is_not_gone_through_backward(strategy: str) -> None:
    """The backward pass of a head alone has no block, no look-up and no collective of the tower."""
    text = TOWER.replace("accumulate M=2\n", "").replace("optimizer adamw\n", "")
    text = text.replace("target: [B_X, C]", "target: int32[B_X, C]")
    found = plan(text, strategy=strategy)

    assert [g.leaf.name for g in found.gradients] == ["Head"]
    assert all(step.loop is None for step in found.backward)
    assert not names(found.backward) & {"E", "dE", "dx", "dx2", "W_in", "W_out"}


def test_inputs_keep_their_gradients_through_frozen_weights() -> None:
    """With no training step an input has a gradient, which passes through what is frozen."""
    found = plan("mesh X=2\nfrozen W: [D, F_X]\ninput x: [B_X, D]\ny[B, F_X] = x ·_D W\n")

    assert [g.leaf.name for g in found.gradients] == ["x"]
    assert "dW" not in names(found.backward)


def test_copies_are_made_again_unless_the_save_line_names_them() -> None:
    """FSDP gathers a frozen weight in both passes, as it does others."""

    def gathered(text: str) -> list[bool]:
        found = plan(text)
        return ["W_in" in names(steps) for steps in (found.forward, found.backward)]

    assert gathered(STAGES) == [True, True]
    assert gathered(STAGES.replace("schedule", "save all, W_in\nschedule")) == [True, False]


def test_the_optimal_plan_makes_no_gradient_of_it() -> None:
    """A search finds the FSDP plan: what moves is W twice, and nothing of dW."""
    text = """
    mesh X=4
    dims B=64, D=16, F=32, R=2
    dtype f32
    frozen W: [D_X, F]
    param A: [D, R], U: [R, F]
    input x: int8[B_X, D]
    y[B_X, F] = x ·_D W + (x ·_D A) ·_R U
    """
    found = plan(text.replace("\n    ", "\n"), strategy="optimal")
    moved = sl.cost(found).to_dict()["totals"]

    assert "dW" not in names(found.backward)
    assert found.proof is not None
    assert found.proof.optimal
    # W forward; of the backward pass the sums of dA and dU alone
    assert moved["forward"]["bytes"]["value"] == 4 * 16 * 32
    assert moved["backward"]["bytes"]["value"] == 2 * 4 * (16 * 2 + 2 * 32)


def test_the_search_for_a_mesh_prices_what_is_held() -> None:
    """A byte of a frozen weight holds itself alone: it is split at the price at which one is in serving."""
    text = """
mesh X=4
dims B=4096, D=256, F=256
dtype f32
optimizer adam
input x: int8[B, D]
frozen W: [D, F]
y[B, F] = x ·_D W
"""
    program = sl.parse(text)
    aim = aim_of(program, "serial", "tpu_v5p", prices_of("link"))

    def split(price: Fraction, *, forward_only: bool) -> bool:
        found = place(
            anywhere(program),
            aim.prices,
            aim.rate,
            lean=price,
            forward_only=forward_only,
            late=lambda: False,
        )
        return any(leaf.array.layout.split_axes for leaf in found.leaves if leaf.frozen)

    prices = [Fraction(2) ** n for n in range(-60, -20)]
    training, serving = ([split(p, forward_only=only) for p in prices] for only in (False, True))
    assert training == serving
    assert set(training) == {True, False}


def test_stages_have_no_work_for_the_gradients_of_what_is_frozen() -> None:
    """W takes the time of the adapters' FLOPs at the peak, and nothing for W_in and W_out."""
    text = STAGES.replace("1f1b", "zb-h1")
    taken = durations(sl.cost(plan(text), "tpu_v5p"))
    layer = 2 * (4 * 16 * 4 + 4 * 4 * 32)

    assert taken is not None
    assert float(taken.weights) == pytest.approx(2 * layer / 4.59e14, rel=1e-6)


# --- The notation


def test_declarations_are_printed_as_they_are_read() -> None:
    """`lower`, `fmt` and a second lowering keep the word, in stacks and on stages too."""
    for text in (LINEAR, BLOCK, STAGES, TOWER):
        found = plan(text)
        again = sl.lower(sl.parse(str(found)))
        assert str(again) == str(found)
        assert [leaf.frozen for leaf in again.program.leaves if leaf.kind == "param"] == [
            leaf.frozen for leaf in found.program.leaves if leaf.kind == "param"
        ]
    assert "frozen W_in: [L_Z, D_X, F]\n" in str(plan(STAGES))
    line = "frozen W: bf16[D, F], V: [F]\n"
    assert format_source(Source("text", "frozen   W :bf16[D,F],V:[F]\n")) == line


def test_a_frozen_line_leaves_other_weights_their_names() -> None:
    """With no `param` line, names that begin with W are parameters, also beside a `frozen` line."""
    found = plan("frozen W: [D, F]\nx[B, D] ·_D W -> h[B, F]\nh ·_F W_out[F, D] -> y[B, D]\n")

    assert {leaf.array.name: leaf.word for leaf in found.program.leaves} == {
        "x": "input",
        "W": "frozen",
        "W_out": "param",
    }


def test_a_tensor_may_be_called_frozen() -> None:
    """The word declares only where a name follows."""
    found = plan("frozen[B, D] · W[D, F] -> C[B, F]\n")

    assert {leaf.array.name for leaf in found.program.leaves} == {"frozen", "W"}
    with pytest.raises(ShardlangError) as error:
        sl.parse("frozen\n")
    assert "frozen W_in" in str(error.value.diagnostics[0].hint)


EXPLICIT = """
mesh X=2
dims B=8, D=16, F=32, M=2
input x: [B_X, D]
frozen W: [D, F]
param V: [F, D]
optimizer sgd
accumulate M
forward:
  h[B_X, F] = x[B_X, D] ·_D W[D, F]
  y[B_X, D] = h[B_X, F] ·_F V[F, D]
  loss[]{U_X} = sum_{B,D}(y[B_X, D])
  loss[] = AllReduce_X(loss[]{U_X})
backward:
  dy[B_X, D] = dloss[]
  dV[F, D]{U_X} = h[B_X, F] ·_B dy[B_X, D]
GRADIENT
update:
  dV_mean: f32[F, D]{U_X} = mean_M(dV[F, D]{U_X})
  dV_mean[F, D] = AllReduce_X(dV_mean[F, D]{U_X})
  V'[F, D] = Update(V[F, D], dV_mean[F, D])
UPDATE
"""

GRADIENT = """  dh[B_X, F] = dy[B_X, D] ·_D V[F, D]
  dW[D, F]{U_X} = x[B_X, D] ·_B dh[B_X, F]"""

UPDATE = """  dW_mean: f32[D, F]{U_X} = mean_M(dW[D, F]{U_X})
  dW_mean[D, F] = AllReduce_X(dW_mean[D, F]{U_X})
  W'[D, F] = Update(W[D, F], dW_mean[D, F])"""


@pytest.mark.parametrize(
    ("gradient", "update", "codes"),
    [("", "", []), (GRADIENT, "", ["SH460"]), (GRADIENT, UPDATE, ["SH301", "SH460"])],
)
def test_explicit_programs_neither_need_nor_use_its_gradient(
    shardlang: Any, tmp_path: Any, gradient: str, update: str, codes: list[str]
) -> None:
    """A missing gradient is no warning, one that is made is, and an update of it is an error."""
    file = tmp_path / "step.shd"
    file.write_text(EXPLICIT.replace("GRADIENT", gradient).replace("UPDATE", update))
    found = shardlang("check", "--explicit", str(file))

    said = found.out + found.err
    assert [code for code in ("SH301", "SH453", "SH460") if code in said] == codes
    assert found.status == (1 if "SH301" in codes else 0)
