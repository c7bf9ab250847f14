"""Training steps: what the declarations mean in plans, costs and memory, and that emitted steps train rightly."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import numpy as np
import pytest

import shardlang as sl
from shardlang.backends.jax import emit_jax
from shardlang.backends.jax.sizes import choose
from shardlang.diagnostics import ShardlangError
from shardlang.frontend.resolve import load_text
from shardlang.ir.plan import Plan
from shardlang.verify.collectives import lowered, planned

BODY = """
h[B_X, F{y}] = gelu((In[B_X, D] ⊙ g[D]) ·_D W_in)
out[B_X, D] = h ·_F W_out
loss = mean_{{B,D}}(square(out - Target[B_X, D]))
"""

SCHEMES = {
    "dp": ("X=8", "[D, F]", "[F, D]", "", "", "4"),
    "dp zero 1": ("X=8", "[D, F]", "[F, D]", "", ", zero 1 over X", "4"),
    "dp zero 2": ("X=8", "[D, F]", "[F, D]", "", ", zero 2 over X", "4"),
    "fsdp": ("X=8", "[D_X, F]", "[F, D_X]", "", "", "4"),
    "fsdp tp zero 1": ("X=4, Y=2", "[D_X, F_Y]", "[F_Y, D_X]", "_Y", ", zero 1 over XY", "4"),
    "tp zero 2": ("X=4, Y=2", "[D, F_Y]", "[F_Y, D]", "_Y", ", zero 2 over X", "2"),
    "fsdp, one batch": ("X=8", "[D_X, F]", "[F, D_X]", "", "", ""),
    "dp zero 1, one batch": ("X=8", "[D, F]", "[F, D]", "", ", zero 1 over X", ""),
}
"""By name: mesh, layouts of both weights, the split of F, what stands behind the optimizer, and M."""


def program(scheme: str, dtype: str = "f32", optimizer: str = "adamw") -> str:
    """Write a small program with a loss; F and the batch are divided by every mesh."""
    mesh, w_in, w_out, y, zero, many = SCHEMES[scheme]
    accumulate = f"accumulate M={many}" if many else ""
    return (
        f"mesh {mesh}\ndims B=16, D=16, F=32\ndtype {dtype}\noptimizer {optimizer}{zero}\n{accumulate}\n"
        f"param W_in: {w_in}, W_out: {w_out}, g: [D]\n{BODY.format(y=y)}"
    )


def plan(scheme: str, dtype: str = "f32", optimizer: str = "adamw") -> Plan:
    """Lower one."""
    return sl.lower(load_text(program(scheme, dtype, optimizer)))


def load(text: str) -> dict[str, Any]:
    """Execute an emitted module."""
    names: dict[str, Any] = {"__name__": "emitted"}
    exec(compile(text, "<emitted>", "exec"), names)
    return names


def data(many: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Make parameters, and a batch of microbatches."""
    rng = np.random.default_rng(1)
    shapes = {"W_in": (16, 32), "W_out": (32, 16), "g": (16,)}
    parameters = {name: 0.3 * rng.normal(size=shape) for name, shape in shapes.items()}
    batch = {name: rng.normal(size=(many, 16, 16)) for name in ("In", "Target")}
    return parameters, batch


def whole(parameters: dict[str, Any], batch: dict[str, Any]) -> Any:
    """Compute the loss of the whole batch in one go, as anybody would write it."""
    import jax
    import jax.numpy as jnp

    x, target = (batch[name].reshape(-1, 16) for name in ("In", "Target"))
    hidden = jax.nn.gelu((x * parameters["g"]) @ parameters["W_in"], approximate=True)
    return jnp.mean((hidden @ parameters["W_out"] - target) ** 2)


def optimizers() -> dict[str, Any]:
    """Give an optimizer of each kind: by element, and with a norm over all parameters."""
    import optax

    return {
        "adamw": optax.adamw(1e-2, weight_decay=0.1),
        "clipped": optax.chain(optax.clip_by_global_norm(0.05), optax.adam(1e-2)),
    }


@pytest.mark.parametrize("kind", ["adamw", "clipped"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_steps_are_those_of_the_plain_program(scheme: str, kind: str) -> None:
    """Five steps equal those of optax on whole arrays and on the whole batch at once."""
    import jax
    import jax.numpy as jnp

    if kind == "clipped" and scheme not in ("dp zero 1", "fsdp tp zero 1", "fsdp"):
        pytest.skip("one scheme of each kind is enough")
    many = int(SCHEMES[scheme][5] or 1)
    module = load(emit_jax(plan(scheme)))
    parameters, batch = data(many)
    optimizer = optimizers()[kind]
    mesh = module["make_mesh"]()
    state = module["init_state"](mesh, optimizer, parameters)
    step = module["make_train_step"](mesh, optimizer)
    expected = {name: jnp.asarray(x, jnp.float32) for name, x in parameters.items()}
    moments = optimizer.init(expected)
    given = batch if SCHEMES[scheme][5] else {name: x[0] for name, x in batch.items()}
    with jax.default_matmul_precision("highest"):
        for _ in range(5):
            state, loss = step(state, given)
            wanted, gradients = jax.value_and_grad(whole)(expected, batch)
            updates, moments = optimizer.update(gradients, moments, expected)
            expected = {name: x + updates[name] for name, x in expected.items()}
            np.testing.assert_allclose(loss, wanted, rtol=1e-5)

    for name, x in expected.items():
        np.testing.assert_allclose(state["parameters"][name], x, atol=1e-5, rtol=0)
        own = jax.sharding.NamedSharding(mesh, module["INPUTS"][name][2])
        assert state["parameters"][name].sharding.is_equivalent_to(own, x.ndim)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_step_communicates_what_the_plan_says(scheme: str) -> None:
    """JAX lowers the plan's collectives, one to one, and XLA adds none for the optimizer."""
    import jax

    made = plan(scheme)
    module = load(emit_jax(made))
    many = int(SCHEMES[scheme][5] or 1)
    parameters, batch = data(many)
    optimizer = optimizers()["adamw"]
    mesh = module["make_mesh"]()
    state = module["init_state"](mesh, optimizer, parameters)
    given = batch if SCHEMES[scheme][5] else {name: x[0] for name, x in batch.items()}
    low = jax.jit(module["make_train_step"](mesh, optimizer)).lower(state, given)
    wanted = planned(made, choose(made), ["forward", "backward", "update"])

    assert lowered(low.compiler_ir("stablehlo")) == wanted

    text = low.compile().as_text()
    kinds = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")
    compiled = sum(len(re.findall(rf" {kind}(?:-start)?\(", text)) for kind in kinds)
    assert compiled <= wanted.total()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_both_passes_of_one_microbatch(scheme: str) -> None:
    """`forward_backward` and `differentiable` give gradients as the leaves live, whatever the update postpones."""
    import jax
    import jax.numpy as jnp

    made = plan(scheme)
    module = load(emit_jax(made))
    parameters, batch = data(1)
    values = {name: jnp.asarray(x, jnp.float32) for name, x in parameters.items()}
    values |= {name: jnp.asarray(x[0], jnp.float32) for name, x in batch.items()}
    inputs = tuple(values[name] for name in module["INPUTS"])
    mesh = module["make_mesh"]()
    weights = {name: values[name] for name in parameters}
    with jax.default_matmul_precision("highest"):
        loss, wanted = jax.value_and_grad(whole)(weights, batch)
        (got,), gradients = module["forward_backward"](mesh, inputs, (jnp.asarray(-3.0),))
        (again,), pullback = jax.vjp(module["differentiable"](mesh), *inputs)
        others = pullback((jnp.asarray(-3.0),))

    np.testing.assert_allclose([got, again], [loss, loss], rtol=1e-5)
    for name, one, other in zip(module["INPUTS"], gradients, others, strict=True):
        own = jax.sharding.NamedSharding(mesh, module["INPUTS"][name][2])
        assert one.sharding.is_equivalent_to(own, one.ndim)
        expected = -3 * wanted[name] if name in weights else None
        if expected is None and not made.update:
            continue  # with no update data have their gradients too
        expected = np.zeros_like(one) if expected is None else expected
        np.testing.assert_allclose(one, expected, atol=1e-5)
        np.testing.assert_allclose(other, expected, atol=1e-5)


SEEDED = """
mesh X=4, Y=2
dims B=8, D=16, F=32
dtype {dtype}
optimizer adamw{zero}
{many}
param W_in: [D{x}, F_Y], W_out: [F_Y, D]
input n: int32[B_X]
h[B_X, F_Y] = gelu(In[B_X, D] ·_D W_in)
y[B_X, D] = h ·_F W_out
z[B_X, F_Y] = tanh(In[B_X, D] ·_D W_in)
many = sum_B(n)
"""


@pytest.mark.parametrize(
    ("x", "zero", "many"),
    [
        ("", "", 3),
        ("_X", "", 3),
        ("", ", zero 1 over X", 3),
        ("_X", ", zero 1 over XY", 2),
        ("", ", zero 2 over X", 2),
        ("", ", zero 1 over X", None),
    ],
)
def test_gradients_of_outputs_that_are_no_loss(x: str, zero: str, many: int | None) -> None:
    """Cotangents of all microbatches give the mean of the microbatches' gradients, where STATES says."""
    import jax
    import jax.numpy as jnp

    text = SEEDED.format(dtype="f32", x=x, zero=zero, many=f"accumulate M={many}" if many else "")
    made = sl.lower(load_text(text))
    module = load(emit_jax(made))
    rng = np.random.default_rng(5)
    front = (many,) if many else ()
    weights = {"W_in": 0.3 * rng.normal(size=(16, 32)), "W_out": 0.3 * rng.normal(size=(32, 16))}
    batch = {"In": rng.normal(size=(*front, 8, 16)), "n": rng.integers(0, 5, (*front, 8))}
    seeds = {"y": rng.normal(size=(*front, 8, 16)), "z": rng.normal(size=(*front, 8, 32))}

    def outputs(p: dict[str, Any]) -> tuple[Any, Any]:
        product = batch["In"] @ p["W_in"]
        return jax.nn.gelu(product, approximate=True) @ p["W_out"], jnp.tanh(product)

    narrow = {name: jnp.asarray(x, jnp.float32) for name, x in weights.items()}
    mesh = module["make_mesh"]()
    function = jax.jit(module["outputs_and_gradients"], static_argnums=0)
    with jax.default_matmul_precision("highest"):
        expected, pullback = jax.vjp(outputs, narrow)
        (wanted,) = pullback((jnp.asarray(seeds["y"]), jnp.asarray(seeds["z"])))
        found, gradients = function(mesh, weights, batch, seeds)

    named = dict(zip(module["OUTPUTS"], found, strict=True))
    for name, value in zip(("y", "z"), expected, strict=True):
        np.testing.assert_allclose(named[name], value, atol=1e-5)
    np.testing.assert_array_equal(named["many"], batch["n"].sum(-1))
    for name, value in wanted.items():
        np.testing.assert_allclose(gradients[name], value / (many or 1), atol=1e-5)
        own = jax.sharding.NamedSharding(mesh, module["STATES"][name])
        assert gradients[name].sharding.is_equivalent_to(own, 2)
    assert set(module["SEEDS"]) == {"y", "z"}


LAYERS = """
mesh X=4, Y=2
dims B=16, D=16, F=32, L=3
dtype f32
optimizer adamw, zero {level} over X
accumulate M=2
param W_in: [L, D, F_Y], W_out: [L, F_Y, D], g: [L, D], W_end: [D, E_Y]
input x: [B_X, D]
layers L:
  h = gelu((x ⊙ g) ·_D W_in)
  x = x + h ·_F W_out
loss = mean_{{B,E}}(square(x ·_D W_end))
"""


@pytest.mark.parametrize("level", [1, 2])
def test_layers_are_trained(level: int) -> None:
    """Parameters of a block are updated for all layers at once, as optax does with whole stacks."""
    import jax
    import jax.numpy as jnp
    import optax

    made = sl.lower(load_text(LAYERS.format(level=level)))
    module = load(emit_jax(made, {"E": 8}))
    rng = np.random.default_rng(2)
    shapes = {"W_in": (3, 16, 32), "W_out": (3, 32, 16), "g": (3, 16), "W_end": (16, 8)}
    parameters = {name: 0.2 * rng.normal(size=shape) for name, shape in shapes.items()}
    batch = {"x": rng.normal(size=(2, 16, 16))}

    def whole_loss(p: dict[str, Any]) -> Any:
        x = batch["x"].reshape(-1, 16)
        for w_in, w_out, g in zip(p["W_in"], p["W_out"], p["g"], strict=True):
            x = x + jax.nn.gelu((x * g) @ w_in, approximate=True) @ w_out
        return jnp.mean((x @ p["W_end"]) ** 2)

    optimizer, mesh = optax.adamw(1e-2), module["make_mesh"]()
    placed = {
        name: module["place"](mesh, name, lambda index, x=x: x[index])
        for name, x in {**parameters, **batch}.items()
    }
    batch_placed = {"x": placed.pop("x")}
    state = module["init_state"](mesh, optimizer, placed)
    step = module["make_train_step"](mesh, optimizer)
    wanted = planned(made, choose(made, {"E": 8}), ["forward", "backward", "update"])
    assert lowered(step.lower(state, batch).compiler_ir("stablehlo")) == wanted
    expected = {name: jnp.asarray(x, jnp.float32) for name, x in parameters.items()}
    moments = optimizer.init(expected)
    with jax.default_matmul_precision("highest"):
        for _ in range(3):
            state, _ = step(state, batch_placed)
            updates, moments = optimizer.update(jax.grad(whole_loss)(expected), moments, expected)
            expected = {name: x + updates[name] for name, x in expected.items()}

    for name, x in expected.items():
        np.testing.assert_allclose(state["parameters"][name], x, atol=2e-5, rtol=0)
        np.testing.assert_allclose(placed[name], parameters[name], atol=1e-6)  # still there


def test_state_lies_as_the_plan_says() -> None:
    """A device holds its part of the moments and of the masters, and narrow weights."""
    module = load(emit_jax(plan("dp zero 1", "bf16")))
    mesh = module["make_mesh"]()
    state = module["init_state"](mesh, optimizers()["adamw"], data(4)[0])
    moments = state["optimizer"][0]
    held = [state["masters"], moments.mu, moments.nu]

    for tree in held:
        assert tree["W_in"].dtype == "float32"
        assert tree["W_in"].addressable_shards[0].data.shape == (2, 32)
        assert tree["W_out"].addressable_shards[0].data.shape == (4, 16)
    assert state["parameters"]["W_in"].dtype == "bfloat16"
    assert state["parameters"]["W_in"].addressable_shards[0].data.shape == (16, 32)


def test_narrow_weights_are_trained_by_their_masters() -> None:
    """Steps too small for bf16 add up in the masters, from which the weights are rounded."""
    import optax

    module = load(emit_jax(plan("dp zero 1", "bf16")))
    mesh = module["make_mesh"]()
    parameters, batch = data(4)
    optimizer = optax.sgd(1e-4)
    state = module["init_state"](mesh, optimizer, parameters)
    step = module["make_train_step"](mesh, optimizer)
    for _ in range(3):
        before = state
        state, _ = step(state, batch)
        assert before["masters"]["W_in"].is_deleted()  # a step is given its memory
    masters, weights = state["masters"]["W_in"], state["parameters"]["W_in"]

    assert np.abs(np.asarray(masters) - parameters["W_in"]).max() > 1e-6
    np.testing.assert_array_equal(np.asarray(weights), np.asarray(masters.astype("bfloat16")))


# --- Plans


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_printed_step_is_the_same_step(scheme: str) -> None:
    """The printed program, read and lowered again, is the same plan."""
    made = plan(scheme, "bf16")
    again = sl.lower(load_text(str(made)))

    assert str(again) == str(made)
    assert len(again.update) == len(made.update)


def test_the_update_of_each_level() -> None:
    """Level 1 reduces once a step, level 2 each microbatch; both gather the new parameters."""

    def moves(scheme: str) -> dict[str, Counter[str]]:
        found: dict[str, Counter[str]] = {}
        for section, step in plan(scheme).steps():
            if step.is_collective and step.output.name.lstrip("d").startswith(("W_", "g")):
                found.setdefault(section, Counter())[type(step.op).__name__] += 1
        return found

    assert moves("dp") == {"update": Counter(AllReduce=3)}
    assert moves("dp zero 1") == {"update": Counter(ReduceScatter=3, AllGather=3)}
    assert moves("dp zero 2") == {
        "backward": Counter(ReduceScatter=3),
        "update": Counter(AllGather=3),
    }


def test_axes_go_to_the_first_dim_that_they_divide() -> None:
    """A size that an axis does not divide falls to the next dim; where there is none the state is whole."""
    text = (
        "mesh X=4, Y=2\ndims B=8, D=6, F=12, E=3\noptimizer adamw, zero 1 over XY\n"
        "param W: [D, F], b: [E]\nloss = mean_{B,F,E}(((In[B_X, D] ·_D W) ⊙ b))"
    )
    states = {array.name: str(array) for array in sl.lower(load_text(text)).states.values()}

    assert states == {"W": "W[D_Y, F_X]", "b": "b[E]"}
    warned = [d.code for d in sl.check(load_text(text))]
    assert warned == ["SH322"]


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("optimizer adamw, zero 3 over X", "SH281"),
        ("optimizer adamw, zero 1 over X, X", "SH282"),
        ("optimizer adamw, zero 1 over Q", "SH201"),
        ("optimizer adamw, zero one over X", "SH101"),
        ("optimizer adamw, null 1 over X", "SH101"),
        ("optimizer adamw, zero", "SH101"),
        ("optimizer adamw, zero 3", "SH281"),
        ("accumulate B", "SH283"),
        ("accumulate X", "SH204"),
        ("accumulate 0", "SH116"),
        ("accumulate M=2\naccumulate N=2", "SH214"),
    ],
)
def test_wrong_declarations(line: str, code: str) -> None:
    """Each mistake has its code."""
    with pytest.raises(ShardlangError) as error:
        load_text(f"mesh X=2\n{line}\nIn[B_X, D] ·_D W[D, F] -> Out[B_X, F]")

    assert code in [diagnostic.code for diagnostic in error.value.diagnostics]


@pytest.mark.parametrize("tail", ["", " over"])
def test_zero_over_nothing_gets_the_line_to_write(tail: str) -> None:
    """The hint's line, with an axis that the program has, is what the program lacks."""
    text = (
        "mesh data=2, fsdp=2\noptimizer adam, zero 2{}\nIn[B/data, D] ·_D W[D, F] -> Out[B/data, F]"
    )
    (found,) = sl.check(text.format(tail))
    line = str(found.hint).split("`")[1]

    assert (found.code, line) == ("SH286", "optimizer adam, zero 2 over data")
    assert "data and fsdp" in str(found.hint)
    assert sl.check(text.replace("optimizer adam, zero 2{}", line)) == []


EXPLICIT = """mesh X=2
optimizer adamw, zero 1 over X
forward:
  l[B_X] = In[B_X, D] ·_D W[D]
  loss[]{{U_X}} = sum_B(l[B_X])
  loss[] = AllReduce_X(loss[]{{U_X}})
backward:
  dl[B_X] = dloss[]
  dW[D]{{U_X}} = In[B_X, D] ·_B dl[B_X]
update:
{update}"""


SCATTERED = """
  dW[D_X] = ReduceScatter_{X,D}(dW[D]{U_X})
  W[D_X] = Slice_{X,D}(W[D])
  V[D_X] = Update(W[D_X], dW[D_X])"""


@pytest.mark.parametrize(
    ("update", "code"),
    [
        (SCATTERED, "SH323"),
        ("  V[D] = Update(W[D], dW[D]{U_X})", "SH301"),
        ("  dW[D] = AllReduce_X(dW[D]{U_X})\n  V[D] = Update(dW[D], dW[D])", "SH301"),
    ],
)
def test_wrong_updates(update: str, code: str) -> None:
    """An update is checked line by line, and has to end where the parameter lives."""
    found = [d.code for d in sl.check(load_text(EXPLICIT.format(update=update)))]

    assert code in found


# --- Costs


def test_zero_takes_the_memory_of_its_paper() -> None:
    """7.5e9 parameters on 64 devices, bf16 with Adam: 120, 31.4, 16.6 and 1.9 GB (Rajbhandari et al., 2020)."""

    def held(optimizer: str, w_in: str = "[D, F]", w_out: str = "[F, D]") -> float:
        text = (
            f"mesh X=64\ndims B=64, D=48k, F=78125\noptimizer {optimizer}\n"
            f"In[B_X, D] · W_in{w_in} · W_out{w_out} -> Out[B_X, D]"
        )
        memory = sl.cost(sl.lower(load_text(text))).to_dict()["memory"]
        return sum(memory[key]["value"] for key in ("parameters", "gradients", "optimizer")) / 1e9

    assert held("adamw") == pytest.approx(120)
    assert held("adamw, zero 1 over X") == pytest.approx(31.4, abs=0.05)
    assert held("adamw, zero 2 over X") == pytest.approx(16.6, abs=0.05)
    assert held("adamw", "[D_X, F]", "[F, D_X]") == pytest.approx(1.9, abs=0.05)


def test_microbatches_multiply_the_passes_and_not_the_update() -> None:
    """With M microbatches both passes cost M times one; gradients are held in f32."""
    one = sl.cost(plan("dp zero 1, one batch", "bf16"), "tpu_v5p").to_dict()
    many = sl.cost(plan("dp zero 1", "bf16"), "tpu_v5p").to_dict()

    for name in ("forward", "backward"):
        for key in ("flops", "bytes", "t_math", "t_comms"):
            before, after = (report["totals"][name][key] for report in (one, many))
            value = "seconds" if key[:2] == "t_" else "value"
            assert after[value] == pytest.approx(4 * before[value])
    # reduced in f32 where one batch is reduced in bf16, gathered in bf16
    weights = 2 * 16 * 32 + 16
    assert one["totals"]["update"]["bytes"]["value"] == 2 * weights + 2 * weights
    assert many["totals"]["update"]["bytes"]["value"] == 4 * weights + 2 * weights
    assert many["memory"]["gradients"]["value"] == 4 * weights
    assert one["memory"]["gradients"]["value"] == 2 * weights
    rows = [row for row in many["collectives"] if row["pass"] == "forward"]
    assert {row["microbatches"] for row in rows} == {"M"}


# --- What is made again


DEEP = """
mesh X=8
dims B=4096, D=64, F=256
dtype f32
save {save}
param {weights}
input x: [B_X, D]
{lines}
loss = mean_{{B,D}}(square(x4))
"""


def deep(save: str) -> Plan:
    """Lower four layers, written out, that keep what is named."""
    layers = range(1, 5)
    lines = [
        f"h{i}[B_X, F] = tanh({f'x{i - 1}' if i > 1 else 'x'} ·_D W{i})\n"
        f"k{i}[B_X, F] = gelu(h{i}) ⊙ sigmoid(h{i})\n"
        f"x{i}[B_X, D] = {f'x{i - 1}' if i > 1 else 'x'} + k{i} ·_F V{i}"
        for i in layers
    ]
    weights = ", ".join(f"W{i}: [D, F], V{i}: [F, D]" for i in layers)
    return sl.lower(load_text(DEEP.format(save=save, weights=weights, lines="\n".join(lines))))


def test_what_is_not_saved_is_made_again_by_xla_too() -> None:
    """The compiled module computes as many products as the plan, and holds less in between."""
    import jax.numpy as jnp

    found: dict[str, tuple[int, int, float]] = {}
    for save in ("all", "x1, x2, x3"):
        made = deep(save)
        module = load(emit_jax(made))
        inputs = tuple(jnp.zeros(shape, dtype) for shape, dtype, _ in module["INPUTS"].values())
        whole = module["forward_backward"].lower(module["make_mesh"](), inputs, (jnp.ones(()),))
        compiled = whole.compile()
        products = sum(type(step.op).__name__ == "Einsum" and bool(step.op.contracted)
                       for _, step in made.steps())  # fmt: skip
        assert len(re.findall(r" dot\(", compiled.as_text())) == products
        held = sl.cost(made).to_dict()["memory"]["peak"]["value"]
        found[save] = (products, compiled.memory_analysis().temp_size_in_bytes, held)

    everything, some = found["all"], found["x1, x2, x3"]
    assert some[0] > everything[0]
    assert some[1] < everything[1] / 2
    assert some[2] < everything[2] / 2


def test_save_none() -> None:
    """`save none` keeps no value: what the backward pass reads are leaves alone, and it prints so."""
    made = deep("none")
    before = {step.output for step in made.forward}
    again = {step.output for step in made.backward}

    assert not [a for step in made.backward for a in step.inputs if a in before - again]
    assert "save none" in str(made)
    with pytest.raises(ShardlangError) as error:
        deep("all, none")
    assert [d.code for d in error.value.diagnostics] == ["SH285"]


def test_the_update_of_the_second_of_two_blocks() -> None:
    """Where the first block has no parameter, the update's block is the second one's: printed plans read back."""
    text = (
        "mesh X=2\ndims B=4, D=8, L=2\noptimizer adamw, zero 1 over X\ninput x: [B_X, D]\n"
        "param W: [L, D]\nlayers L:\n  x = x + gelu(x)\nlayers L:\n  x = x ⊙ W\n"
        "loss = mean_{B,D}(x ⊙ x)\n"
    )
    printed = str(sl.lower(sl.parse(text)))

    assert printed.count("layers L") == 4  # none goes back through the first
    assert str(sl.lower(sl.parse(printed))) == printed
