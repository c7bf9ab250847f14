"""Pipelines in emitted modules: values, gradients, collectives, the order of work, and what is compiled."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shardlang as sl
from shardlang.pipelines.schedules import SCHEDULES
from shardlang.pipelines.simulate import simulate
from shardlang.verify.collectives import lowered
from shardlang.verify.runner import run_check

MODEL = """
mesh X=2, Y=2, Z=2
dtype f32
dims B=4, T=3, D=8, F=16, L=4, V=10
accumulate i=5
schedule 1f1b
optimizer adamw
input tokens: int32[B_X, T]
input labels: int32[B_X, T]
param E: [V_Y, D_X]
param W_in: [L_Z, D_X, F_Y]
param W_out: [L_Z, F_Y, D_X]
param scale: [D]
x[B_X, T, D_Y] = take_V(E, tokens)
layers L_Z:
  h[B_X, T, D] = rmsnorm_D(x) ⊙ scale
  x = x + gelu(h ·_D W_in) ·_F W_out
y[B_X, T, D] = rmsnorm_D(x) ⊙ scale
logits[B_X, T, V_Y] = y ·_D E
loss = mean_{B,T}(cross_entropy_V(logits, labels))
"""
"""FSDP over X and tensor parallelism over Y in stages; E and scale are parameters of several stages."""


def emitted(text: str, **sizes: int) -> tuple[str, ModuleType]:
    """Emit a program and load the module."""
    code = sl.emit_jax(sl.lower(sl.parse(text), sizes=sizes), sizes)
    module = ModuleType("emitted")
    exec(code, module.__dict__)
    return code, module


def by_hand(weights: dict[str, Any], tokens: Any, labels: Any) -> Any:
    """Compute the model's loss of one microbatch, as one writes it in JAX."""

    def norm(x: Any) -> Any:
        return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * weights["scale"]

    x = weights["E"][tokens]
    for w_in, w_out in zip(weights["W_in"], weights["W_out"], strict=True):
        x += jax.nn.gelu(norm(x) @ w_in) @ w_out
    logits = jax.nn.log_softmax(norm(x) @ weights["E"].T)
    return -jnp.mean(jnp.take_along_axis(logits, labels[..., None], -1))


@pytest.mark.parametrize(
    ("schedule", "sizes"),
    [
        ("1f1b", {"Z": 2, "i": 5, "L": 4}),
        ("gpipe", {"Z": 4, "Y": 1, "i": 3, "L": 4}),
        ("1f1b", {"Z": 4, "X": 1, "i": 6, "L": 8}),
        ("1f1b", {"Z": 4, "X": 1, "i": 2, "L": 4}),
    ],
)
def test_a_step_is_that_of_the_model_by_hand(schedule: str, sizes: dict[str, int]) -> None:
    """The loss is the mean over microbatches; gradients of shared parameters have all stages' parts."""
    _, module = emitted(MODEL.replace("1f1b", schedule), **sizes)
    rng = np.random.default_rng(1)
    weights = {name: rng.normal(0, 0.5, module.INPUTS[name][0]) for name in module.STATES}
    batch = {name: rng.integers(0, 10, module.BATCH[name][0]) for name in module.BATCH}
    step = jax.jit(module.loss_and_gradients, static_argnums=0)
    loss, gradients = step(module.make_mesh(), weights, batch)

    def mean(weights: dict[str, Any]) -> Any:
        pairs = zip(batch["tokens"], batch["labels"], strict=True)
        return sum(by_hand(weights, *pair) for pair in pairs) / sizes["i"]

    wanted = {name: jnp.asarray(x, jnp.float32) for name, x in weights.items()}
    expected, wanted = jax.value_and_grad(mean)(wanted)

    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    assert set(wanted) == set(gradients)
    for name, x in wanted.items():
        np.testing.assert_allclose(gradients[name], x, atol=1e-5 * float(jnp.max(jnp.abs(x))))


def test_training_goes_down() -> None:
    """A step of optax on a mesh with stages: the state lies on them, and the loss falls."""
    optax = pytest.importorskip("optax")
    _, module = emitted(MODEL)
    mesh, rng = module.make_mesh(), np.random.default_rng(2)
    weights = {name: rng.normal(0, 0.3, module.INPUTS[name][0]) for name in module.STATES}
    batch = {name: rng.integers(0, 10, module.BATCH[name][0]) for name in module.BATCH}
    optimizer = optax.adam(3e-2)
    state, step = (
        module.init_state(mesh, optimizer, weights),
        module.make_train_step(mesh, optimizer),
    )
    losses: list[float] = []
    for _ in range(6):
        state, loss = step(state, batch)
        losses.append(float(loss))

    assert losses[-1] < 0.95 * losses[0]
    assert "Z" == state["parameters"]["W_in"].sharding.spec[0]


NO_SAVE = """
mesh X=2, Z=2
dims B=4, T=4, D=8, F=16, L=2, V=10, H=8, R=4
accumulate i=3
save none
input tokens: int32[B_X, T]
param W_in: [L_Z, D_X, F]
param W_q: [L_Z, D_X, H]
param W_out: [L_Z, F, D_X]
param c: [D_X]
param E: [V, D_X]
e[D] = exp(c)
x[B_X, T, D] = take_V(E, tokens) ⊙ e
angle[T, R] = index_T ⊙ exp(-0.5 * index_R)
layers L_Z:
  h[B_X, T, D] = rmsnorm_D(x) ⊙ e
  q[B_X, T, H] = rotary_H(h ·_D W_q, angle)
  x = x + gelu(h ·_D W_in) ·_F W_out + sum_H(q)
logits[B_X, T, V] = (x ⊙ e) ·_D E
"""
"""Values from before the layers, made again for the layers' backward pass and for lines on either side."""

TWO_AXES = """
mesh X=2, Y=2, Z=2
dims B=4, D=8, F=16, L=8
accumulate i=3
input x: [B_X, D]
input p: [L_ZY, B_X, D]
param W: [L_ZY, D_X, F]
layers L_ZY:
  a[B_X, F] = (x + p) ·_D W
  x = x + 0.1 * p ⊙ sum_F(a)
  b[B_X] = sum_D(x)
"""
"""Stages over two axes, data and outputs of each layer."""

PREFETCH = """
mesh X=2, Y=2, Z=2
dims B=4, D=8, F=16, L=4
accumulate i=3
prefetch W_in
param W_in: [L_Z, D_X, F_Y]
input x: [B_X, D_Y]
layers L_Z:
  x = x + gelu(x ·_D W_in[D_X, F_Y]) ·_F W_out[F_Y, D_X]
"""


@pytest.mark.parametrize(
    ("text", "schedule", "exact"),
    [
        pytest.param(NO_SAVE, "gpipe", True, id="again"),
        pytest.param(NO_SAVE, "1f1b", False, id="again, bf16"),
        pytest.param(TWO_AXES, "gpipe", False, id="two axes, bf16"),
        pytest.param(TWO_AXES, "1f1b", True, id="two axes"),
        pytest.param(PREFETCH, "1f1b", True, id="prefetch"),
    ],
)
def test_values_gradients_and_collectives(text: str, schedule: str, exact: bool) -> None:
    """Against the reference of each microbatch, in f32 and bf16, and against the plan in each tick."""
    plan = sl.lower(sl.parse(f"schedule {schedule}\n{text}"))
    found = run_check(plan, exact=exact, thorough=not exact)

    assert found.ok, str(found)


# ---- The order of work ----------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_ticks_are_the_schedules_table(schedule: str) -> None:
    """The module's own order is the library's; there are 2(m + p - 1) ticks and the table's places."""
    _, module = emitted(MODEL.replace("1f1b", schedule))
    words = {1: "F", 2: "BW"}
    for stages, many in ((1, 3), (2, 1), (2, 5), (3, 7), (4, 2), (4, 8)):
        ticks = np.concatenate(module._phases(stages, many))
        table = SCHEDULES[schedule].make(stages, many, 1)
        for stage, order in enumerate(table.orders):
            done = [(words[what], i) for what, i in ticks[:, stage].tolist() if what]
            assert [(work.kind, work.microbatch) for work in order] == done
        assert 2 * (many + stages - 1) == len(ticks)
        assert max(simulate(table).held) == module._slots(ticks)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_what_is_compiled_does_not_grow(schedule: str) -> None:
    """With more layers and microbatches the lowered module has as many operations as before."""

    def operations(**sizes: int) -> int:
        _, module = emitted(MODEL.replace("1f1b", schedule), **sizes)
        shapes = {
            name: jax.ShapeDtypeStruct(shape, dtype)
            for name, (shape, dtype, _) in module.INPUTS.items()
        }
        step = jax.jit(module.loss_and_gradients, static_argnums=0)
        weights = {name: shapes[name] for name in module.STATES}
        batch = {name: shapes[name] for name in module.BATCH}
        return step.lower(module.make_mesh(), weights, batch).as_text().count("\n")

    assert operations(L=4, i=3) == operations(L=32, i=24)


def test_forward_keeps_nothing_for_a_backward_pass() -> None:
    """Its loop hands on no value of a layer's inside: none of [.., F/2] but the weights and products in it."""
    _, module = emitted(MODEL, F=26)
    shapes = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype, _ in module.INPUTS.values()]
    text = module.forward.lower(module.make_mesh(), *shapes).as_text()
    outer = next(line for line in text.splitlines() if "stablehlo.while" in line)

    assert "x13x" not in outer.replace("2x4x13xf32", "").replace("2x13x4xf32", "")


@pytest.mark.parametrize("schedule", ["zb-h1", "interleaved, chunks 2", "dualpipe"])
def test_other_schedules_are_refused(schedule: str) -> None:
    """The message names the schedule, and the hint those that are emitted."""
    with pytest.raises(sl.ShardlangError) as caught:
        emitted(MODEL.replace("1f1b", schedule).replace("i=5", "i=8"), L=8)
    (found,) = caught.value.diagnostics

    assert "SH612" == found.code
    assert f"the schedule {schedule.partition(',')[0]} can't be emitted" in found.message
    assert "these can: gpipe, 1f1b" == found.hint


def test_layers_that_stages_do_not_divide() -> None:
    """Sizes given at emission are held against the stages."""
    plan = sl.lower(sl.parse(MODEL))
    with pytest.raises(sl.ShardlangError) as caught:
        sl.emit_jax(plan, {"L": 5})

    assert "SH601" == caught.value.diagnostics[0].code


# ---- What the cost report says of the emitted code ------------------------------------------------

WIDTHS = {"f32": 4, "bf16": 2}


@pytest.mark.parametrize(
    ("schedule", "dtype"), [("gpipe", "f32"), ("1f1b", "f32"), ("1f1b", "bf16")]
)
def test_the_report_prices_what_is_sent_besides(schedule: str, dtype: str) -> None:
    """In the StableHLO of a step: sums over the stages alone, and Permutes between them in all ticks."""
    text = MODEL.replace("1f1b", schedule).replace("dtype f32", f"dtype {dtype}")
    report = sl.cost(sl.lower(sl.parse(text)))
    _, module = emitted(text)
    weights = {n: jnp.zeros(shape, kind) for n, (shape, kind, _) in module.INPUTS.items()}
    weights = {name: weights[name] for name in module.STATES}
    batch = {name: np.zeros(shape, "int32") for name, (shape, *_) in module.BATCH.items()}
    step = jax.jit(module.loss_and_gradients, static_argnums=0)
    found = lowered(step.lower(module.make_mesh(), weights, batch).compiler_ir("stablehlo"))

    def size(operand: str) -> int:
        *dims, kind = operand.split("x")
        return int(np.prod([int(n) for n in dims], dtype=int)) * WIDTHS[kind]

    # X=2, Y=2, Z=2: the devices along Z are neighbours
    along = tuple((i, i + 1) for i in range(0, 8, 2))
    reduced = {seen: n for seen, n in found.items() if seen.kind == "all_reduce"}
    sums = {seen.operand: n for seen, n in reduced.items() if seen.groups == along}
    sent = sum(
        size(seen.operand) * n for seen, n in found.items() if seen.kind == "collective_permute"
    )
    pipeline = report.pipeline
    assert pipeline is not None
    assert pipeline.idle is not None
    needed = sum(c.bytes.value or 0 for c in report.collectives if c.step.sends)

    assert {"5xf32" if dtype == "f32" else "5xbf16": 1, "5x4xf32": 1, "4xf32": 1} == sums
    assert ["loss", "dE", "dscale"] == [cost.tensor for cost in pipeline.sums]
    # the model `book`: an AllReduce moves its operand twice
    priced = sum(cost.bytes.value or 0 for cost in pipeline.sums)
    assert 2 * sum(size(operand) * n for operand, n in sums.items()) == priced
    assert sent == needed + (pipeline.idle.value or 0)
