"""Pipelines in emitted modules: values, gradients, collectives, the order of work, and what is compiled."""

from __future__ import annotations

import re
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shardlang as sl
from shardlang.passes.normal import on_one_stage
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


SHAPES: dict[str, tuple[int, ...]] = {
    "E": (10, 8),
    "W_in": (8, 16),
    "W_out": (16, 8),
    "scale": (8,),
}
"""Those of its parameters, of one layer."""


def emitted(text: str, **sizes: int) -> tuple[str, ModuleType]:
    """Emit a program and load the module."""
    code = sl.emit_jax(sl.lower(sl.parse(text), sizes=sizes), sizes)
    module = ModuleType("emitted")
    exec(code, module.__dict__)
    return code, module


def model(schedule: str, **sizes: int) -> str:
    """Write the model with another schedule and other sizes."""
    text = MODEL.replace("1f1b", schedule)
    for name, size in sizes.items():
        text = re.sub(rf"\b{name}=\d+", f"{name}={size}", text)
    return text


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
        ("interleaved, chunks 2", {"Z": 2, "i": 4, "L": 8}),
        ("interleaved, chunks 2", {"Z": 3, "X": 1, "i": 6, "L": 6}),
        ("interleaved, chunks 3", {"Z": 4, "Y": 1, "i": 4, "L": 12}),
    ],
)
def test_a_step_is_that_of_the_model_by_hand(schedule: str, sizes: dict[str, int]) -> None:
    """The loss is the mean over microbatches; gradients of shared parameters have all stages' parts."""
    _, module = emitted(model(schedule, **sizes))
    rng = np.random.default_rng(1)
    shapes = {**SHAPES, **{name: (sizes["L"], *SHAPES[name]) for name in ("W_in", "W_out")}}
    weights = {name: rng.normal(0, 0.5, shape) for name, shape in shapes.items()}
    batch = {name: rng.integers(0, 10, module.BATCH[name][0]) for name in module.BATCH}
    step = jax.jit(module.loss_and_gradients, static_argnums=0)
    given = {name: x.reshape(module.INPUTS[name][0]) for name, x in weights.items()}
    loss, gradients = step(module.make_mesh(), given, batch)

    def mean(weights: dict[str, Any]) -> Any:
        pairs = zip(batch["tokens"], batch["labels"], strict=True)
        return sum(by_hand(weights, *pair) for pair in pairs) / sizes["i"]

    wanted = {name: jnp.asarray(x, jnp.float32) for name, x in weights.items()}
    expected, wanted = jax.value_and_grad(mean)(wanted)

    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    assert set(wanted) == set(gradients)
    for name, x in wanted.items():
        got = np.reshape(gradients[name], x.shape)
        np.testing.assert_allclose(got, x, atol=1e-5 * float(jnp.max(jnp.abs(x))))


def test_a_stage_holds_its_chunks() -> None:
    """With Z=2 and 2 chunks of 2 layers, stage 0 has layers 0, 1, 4, 5 in one reshape of all layers."""
    _, module = emitted(model("interleaved, chunks 2", i=4, L=8, X=1, Y=1))
    mesh = module.make_mesh()
    number = jax.device_put(
        np.arange(8).reshape(module.INPUTS["W_in"][0][:2]),
        jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*module.INPUTS["W_in"][2][:2])),
    )
    held = [np.ravel(shard.data).tolist() for shard in number.addressable_shards]

    assert [[0, 1, 4, 5], [2, 3, 6, 7]] == held


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
        pytest.param(NO_SAVE, "interleaved, chunks 2", True, id="again, chunks"),
        pytest.param(TWO_AXES, "interleaved, chunks 2", False, id="two axes, chunks, bf16"),
        pytest.param(PREFETCH, "interleaved, chunks 2", True, id="prefetch, chunks"),
    ],
)
def test_values_gradients_and_collectives(text: str, schedule: str, exact: bool) -> None:
    """Against the reference of each microbatch, in f32 and bf16, and against the plan in each tick."""
    if "chunks" in schedule:  # more layers, and microbatches in groups
        text = re.sub(r"\bL=\d+", lambda x: f"L={2 * int(x[0][2:])}", text).replace("i=3", "i=4")
    plan = sl.lower(sl.parse(f"schedule {schedule}\n{text}"))
    found = run_check(plan, exact=exact, thorough=not exact)

    assert found.ok, str(found)


# ---- The order of work ----------------------------------------------------------------------------


@pytest.mark.parametrize(("schedule", "chunks"), [("gpipe", 1), ("1f1b", 1), ("interleaved", 2)])
def test_ticks_are_the_schedules_table(schedule: str, chunks: int) -> None:
    """A stage's order in the module is the table's; there are 2(mv + p - 1) ticks, and rooms for the most held."""
    name = schedule if chunks == 1 else f"{schedule}, chunks {chunks}"
    _, module = emitted(model(name, i=4, L=8))
    for stages, many in ((2, 2), (2, 6), (3, 9), (4, 4), (4, 8), *([] if chunks > 1 else [(3, 7)])):
        orders = module._orders(*(stages, many, chunks)[: 2 if chunks == 1 else 3])
        work, room = module._table(module._ticks(orders))
        table = SCHEDULES[schedule].make(stages, many, chunks)
        for stage, order in enumerate(table.orders):
            columns = (work[name][:, stage].tolist() for name in ("what", "i", "c"))
            done = [(module.KINDS[what], i, c) for what, i, c in zip(*columns, strict=True) if what]
            assert [(x.kind, x.microbatch, x.chunk) for x in order] == done
        assert 2 * (many * chunks + stages - 1) == len(work["what"])
        assert chunks * max(simulate(table).held) == room["kept"]
        assert {"gpipe": many}.get(schedule, 1) == room["ends"]


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved, chunks 2"])
def test_nothing_is_overwritten_before_it_is_read(schedule: str) -> None:
    """Tick by tick: what a stage reads of a slot is what was made for that piece of work."""
    _, module = emitted(model(schedule, i=4, L=8))
    chunks = 2 if "chunks" in schedule else 1
    for stages, many in ((2, 4), (3, 6), (4, 8)):
        orders = module._orders(*(stages, many, chunks)[: 2 if chunks == 1 else 3])
        work, room = module._table(module._ticks(orders))
        slots: dict[tuple[str, int, int], tuple[int, int]] = {}
        for tick in range(len(work["what"])):
            doing = [
                (module.KINDS[work["what"][tick, s]], *(int(work[x][tick, s]) for x in "ic"))
                for s in range(stages)
            ]
            at = {
                way: {n: x[tick].tolist() for n, x in work[way].items()} for way in ("put", "read")
            }
            for stage, (kind, i, c) in enumerate(doing):
                part = c * stages + stage
                last = part == chunks * stages - 1
                reads = {
                    "F": ["got"] * (part > 0),
                    "BW": ["kept", *(["ends"] if last else ["got_back"])],
                }
                for name in reads.get(kind, []):
                    assert (i, part) == slots[name, stage, at["read"][name][stage]]
                for name in ["kept", *(["ends"] if last else [])] if kind == "F" else []:
                    slots[name, stage, at["put"][name][stage]] = i, part
            for stage, (kind, i, c) in enumerate(doing):
                for name, way, kinds in (("got", 1, "F"), ("got_back", -1, "BW")):
                    part = c * stages + stage + way
                    if kind == kinds and 0 <= part < chunks * stages:
                        slot = at["put"][name][part % stages]
                        assert 0 <= slot < room[name]
                        slots[name, part % stages, slot] = i, part


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved, chunks 2"])
def test_what_is_compiled_does_not_grow(schedule: str) -> None:
    """With more layers and microbatches the lowered module has as many operations as before."""

    def operations(**sizes: int) -> int:
        _, module = emitted(model(schedule, **sizes))
        shapes = {
            name: jax.ShapeDtypeStruct(shape, dtype)
            for name, (shape, dtype, _) in module.INPUTS.items()
        }
        step = jax.jit(module.loss_and_gradients, static_argnums=0)
        weights = {name: shapes[name] for name in module.STATES}
        batch = {name: shapes[name] for name in module.BATCH}
        return step.lower(module.make_mesh(), weights, batch).as_text().count("\n")

    assert operations(L=8, i=4) == operations(L=32, i=24)


def test_forward_keeps_nothing_for_a_backward_pass() -> None:
    """Its loop hands on no value of a layer's inside: none of [.., F/2] but the weights and products in it."""
    _, module = emitted(MODEL, F=26)
    shapes = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype, _ in module.INPUTS.values()]
    text = module.forward.lower(module.make_mesh(), *shapes).as_text()
    outer = next(line for line in text.splitlines() if "stablehlo.while" in line)

    assert "x13x" not in outer.replace("2x4x13xf32", "").replace("2x13x4xf32", "")


@pytest.mark.parametrize("schedule", ["zb-h1", "zb-h2", "dualpipe"])
def test_other_schedules_are_refused(schedule: str) -> None:
    """The message names the schedule, and the hint those that are emitted."""
    with pytest.raises(sl.ShardlangError) as caught:
        emitted(model(schedule, i=8, L=8))
    (found,) = caught.value.diagnostics

    assert "SH612" == found.code
    assert f"the schedule {schedule} can't be emitted" in found.message
    assert "these can: gpipe, 1f1b, interleaved" == found.hint


# ---- What stages can't do -------------------------------------------------------------------------

CROSSED = """
mesh X=2, Y=2, Z=2
dims B=4, D=4, L=4, V=8
accumulate i=4
dtype f32
"""

OF_LAYERS = f"""{CROSSED}
input x: [B_X, D_Y]
param W: [L_Z, D_X]
layers L_Z:
  x = x ⊙ W
loss = mean_{{B,D}}(x ⊙ x)
"""
"""Each layer takes D of W from X to Y, which have one size: elsewhere that is a Permute."""

BEFORE_LAYERS = f"""{CROSSED}
input ids: int32[B_X]
param E: [V, D_X], W: [L_Z, D]
x[B_X, D_Y] = take_V(E, ids)
layers L_Z:
  x = x ⊙ W
loss = mean_{{B,D}}(x ⊙ x)
"""
"""The same of E, in lines that every stage does with a microbatch."""


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved, chunks 2"])
@pytest.mark.parametrize("text", [OF_LAYERS, BEFORE_LAYERS], ids=["layers", "before"])
def test_layouts_that_elsewhere_a_permute_makes(text: str, schedule: str) -> None:
    """Loss and gradients are those of the product by hand, and bit by bit the same when run again."""
    _, module = emitted(f"schedule {schedule}\n{text}")
    rng = np.random.default_rng(3)
    ids, x = rng.integers(0, 8, (4, 4)), rng.normal(0, 1, (4, 4, 4))
    weights = {"E": rng.normal(0, 1, (8, 4)), "W": rng.normal(0, 1, (4, 4))}
    weights = {name: w for name, w in weights.items() if name in module.INPUTS}
    given = {name: w.reshape(module.INPUTS[name][0]) for name, w in weights.items()}
    batch = {"x": x, "ids": ids}
    batch = {name: data for name, data in batch.items() if name in module.INPUTS}
    step = jax.jit(module.loss_and_gradients, static_argnums=0)
    loss, gradients = step(module.make_mesh(), given, batch)
    again, twice = step(module.make_mesh(), given, batch)

    def mean(weights: dict[str, Any]) -> Any:
        begin = weights["E"][ids] if "E" in weights else x
        return jnp.mean((begin * jnp.prod(weights["W"], 0)) ** 2)

    expected, wanted = jax.value_and_grad(mean)({n: jnp.asarray(w) for n, w in weights.items()})

    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    assert loss == again
    for name, want in wanted.items():
        np.testing.assert_allclose(np.reshape(gradients[name], want.shape), want, atol=1e-5)
        np.testing.assert_array_equal(gradients[name], twice[name])


@pytest.mark.parametrize("text", [OF_LAYERS, BEFORE_LAYERS], ids=["layers", "before"])
def test_only_what_is_handed_on_is_permuted(text: str) -> None:
    """W goes from X to Y by an AllGather and a slice; in the same program without stages it is permuted."""
    staged = sl.lower(sl.parse(text))
    plain = sl.lower(sl.parse(text.replace("L_Z", "L")))

    def permutes(plan: sl.ir.plan.Plan) -> list[bool]:
        return [s.sends for _, s in plan.steps() if isinstance(s.op, sl.ir.ops.Permute)]

    assert [True, True] == permutes(staged)
    assert False in permutes(plain)
    assert not [x for x in sl.check(sl.parse(str(staged))) if "Permute" in (x.hint or "")]


RINGED = """
mesh X=2, Y=2, Z=2
dims B=4, T=4, S=4, D=4, F=4, L=4
accumulate i=2
dtype f32
"""

RINGS = f"""{RINGED}
input x: [B_X, D]
param W: [L_Z, D, F_X], V: [L_Z, F_X, D]
layers L_Z:
  x = x + gelu(x ·_D W) ·_F V
"""

ATTENTION = f"""{RINGED}
input x: [B, T_X, D]
param g: [L_Z, D]
layers L_Z:
  q[B, T_X, D] = x ⊙ g
  k[B, T_X, D] = x
  v[B, T_X, D] = g ⊙ x
  p = softmax_S(q ·_D k[B, S, D])
  x = x + p ·_S v[B, S, D]
"""


def test_stages_get_no_rings() -> None:
    """Both programs have them without stages; on stages nothing is chosen, so that all of it is emitted."""
    for text, ways in ((RINGS, {"Ring"}), (ATTENTION, {"RingAttention"})):
        for stages in ("Z", ""):
            plan = sl.lower(sl.parse(text if stages else text.replace("L_Z", "L")))
            made = sl.overlap(sl.ring_attention(plan), always=True)
            kinds = {type(step.op).__name__ for _, step in made.steps()}

            assert (ways & kinds == set()) == bool(stages)


@pytest.mark.parametrize(
    ("options", "text", "says"),
    [
        (["--overlap-all"], RINGS, "no rings: stages of a pipeline can't send in rings"),
        (["--attention", "ring"], ATTENTION, "no ring attention: stages of a pipeline can't"),
    ],
)
def test_rings_that_are_asked_for(
    shardlang, tmp_path, options: list[str], text: str, says: str
) -> None:
    """But for what layers prefetch the plan is the same without, and standard error says why."""
    file = tmp_path / "a.shd"
    file.write_text(text)
    found, plain = (shardlang("lower", *more, file) for more in (options, []))

    assert says in found.err
    assert "" == plain.err
    assert [x for x in found.out.splitlines() if "prefetch" not in x] == plain.out.splitlines()


@pytest.mark.parametrize(
    ("lines", "place", "hint"),
    [
        pytest.param(
            """input x: [B_X, D_Y]
               param W: [L_Z, D_X]
               layers L_Z:
                 w[D_Y] = Permute(W[D_X])
                 x = x ⊙ w""",
            "w[D_Y] = Permute(W[D_X])",
            "lay it out by AllToAll, or by AllGather and Slice",
            id="permute",
        ),
        pytest.param(
            """input x: [B, D_X]
               param W: [L_Z, D, F_X], V: [L_Z, F_X, D]
               forward:
                 layers L_Z, x2 -> x:
                   y[B, F_X] = RingGather_X(x[B, D_X]) ·_D W[D, F_X]
                   z[B, D]{U_X} = y[B, F_X] ·_F V[F_X, D]
                   x2[B, D_X] = ReduceScatter_{X,D}(z[B, D]{U_X})
                   Permute_Z(x2[B, D_X])""",
            "y[B, F_X] = RingGather_X(x[B, D_X]) ·_D W[D, F_X]",
            "write AllGather and the product as two steps",
            id="ring",
        ),
        pytest.param(
            """input x: [B, T_X, D]
               param W: [L_Z, D]
               forward:
                 layers L_Z, x2 -> x:
                   q[B, T_X, D] = x[B, T_X, D] ⊙ W[D]
                   k[B, S_X, D] = Rename_{B,S,D}(x[B, T_X, D])
                   x2[B, T_X, D] = RingAttention_{X,S,D}(q[B, T_X, D], k[B, S_X, D], k[B, S_X, D] -> l[B, T_X])
                   Permute_Z(x2[B, T_X, D])""",
            "x2[B, T_X, D] = RingAttention_{X,S,D}(q[B, T_X, D], k[B, S_X, D], k[B, S_X, D] -> l[B, T_X])",
            "gather keys and values, as `--attention gather` does",
            id="attention",
        ),
    ],
)
def test_what_sends_from_device_to_device_is_refused(lines: str, place: str, hint: str) -> None:
    """By emission, and by verify before it starts anything, at the line; on one stage it is emitted."""
    head = RINGED + "\n".join(line[15:] if line[0] == " " else line for line in lines.split("\n"))
    plan = sl.lower(sl.parse(head))
    for use in (sl.emit_jax, sl.verify):
        with pytest.raises(sl.ShardlangError) as caught:
            use(plan)
        (found,) = caught.value.diagnostics

        assert "SH615" == found.code
        assert place == head[found.span.start : found.span.end]
        assert hint == found.hint
    assert "lax.ppermute" in sl.emit_jax(on_one_stage(plan))


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved, chunks 2"])
@pytest.mark.parametrize("behind", ["", "loss = mean_D(x ·_B (x ⊙ c))\nparam c: [D]\n"])
def test_layers_with_nothing_to_do_backward(schedule: str, behind: str) -> None:
    """A layer of no parameter has no gradient, and no stage sends one back."""
    text = f"mesh Z=2\ndims B=4, D=4, L=4\naccumulate i=4\nschedule {schedule}\ndtype f32\n{behind}"
    head, _, last = behind.partition("\n")
    text = text.replace(behind, last) + "input x: [B, D]\nlayers L_Z:\n  x = x + gelu(x)\n" + head
    plan = sl.lower(sl.parse(text))
    found = run_check(plan)

    assert found.ok, str(found)
    assert not any(step.sends for step in plan.backward)


@pytest.mark.parametrize(
    ("schedule", "sizes", "code"),
    [
        ("1f1b", {"L": 5}, "SH601"),
        ("interleaved, chunks 2", {"L": 6}, "SH601"),
        ("interleaved, chunks 2", {"L": 8, "i": 5}, "SH713"),
    ],
)
def test_layers_and_microbatches_that_stages_do_not_divide(
    schedule: str, sizes: dict[str, int], code: str
) -> None:
    """Sizes given at emission are held against the stages."""
    plan = sl.lower(sl.parse(model(schedule, i=4, L=8)))
    with pytest.raises(sl.ShardlangError) as caught:
        sl.emit_jax(plan, sizes)

    assert code == caught.value.diagnostics[0].code


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
