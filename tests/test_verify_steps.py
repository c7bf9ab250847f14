"""verify of training steps: right ones pass, and steps that are wrong in any way do not."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

import shardlang as sl
from shardlang.ir.plan import Plan
from shardlang.verify.result import VerifyResult
from shardlang.verify.runner import run_check

pytestmark = pytest.mark.jax

STEP = """
mesh X=2, Y=2
dims B=4, D=8, F=16, V=10, L=2
dtype {dtype}
optimizer adamw, zero 1 over X
accumulate M=3
input tokens: int32[B_X]
input labels: int32[B_X]
param E: [V_Y, D]
param W_in: [L, D, F_Y]
param W_out: [L, F_Y, D]
x[B_X, D] = take_V(E, tokens)
layers L:
  x = x + gelu(x ·_D W_in) ·_F W_out
logits[B_X, V_Y] = x ·_D E
loss = mean_B(cross_entropy_V(logits, labels))
"""

STAGED = """
mesh X=2, Z=2
dims B=4, D=8, F=16, L=2
dtype f32
accumulate i=3
optimizer adamw, zero 1 over X
param W_in: [L_Z, D, F]
param W_out: [L_Z, F, D]
input x: [B_X, D]
layers L_Z:
  x = x + gelu(x ·_D W_in) ·_F W_out
y[B_X, D] = tanh(x)
"""


def plan(text: str, dtype: str = "f32") -> Plan:
    """Lower a program."""
    return sl.lower(sl.parse(text.format(dtype=dtype)))


def kinds(result: VerifyResult) -> list[str]:
    """List what was compared beside both passes of one batch."""
    return [f"{x.kind} {x.name}" for x in result.arrays if "step" in x.kind or "mean" in x.kind]


def test_steps_of_both_optimizers_are_compared() -> None:
    """The loss of each step, every parameter in the end, and the collectives; the text says so."""
    result = run_check(plan(STEP))

    assert result.ok, result.to_text()
    for name in ("sgd", "adamw"):
        compared = [x for x in kinds(result) if name in x]
        assert compared == [
            f"step 1 of {name}: loss",
            f"step 2 of {name}: loss",
            f"after 2 steps of {name}: E",
            f"after 2 steps of {name}: W_in",
            f"after 2 steps of {name}: W_out",
        ]
    said = result.to_text().replace("\n  ", " ")
    assert "2 steps of sgd and of adamw were compared with jax.grad over all 3 microbatches" in said
    functions = {x.function for x in result.collectives}
    assert functions == {"forward", "forward_backward", "a step of sgd", "a step of adamw"}


def test_narrow_steps_compare_collectives() -> None:
    """In bf16 the collectives of a step are compared, and its values left to f32."""
    result = run_check(plan(STEP, "bf16"), exact=False)

    assert result.ok, result.to_text()
    assert kinds(result) == []
    assert {x.function for x in result.collectives} > {"a step of sgd", "a step of adamw"}


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        pytest.param("x / len(losses)", "x", id="a sum in place of the mean"),
        pytest.param("return jnp.mean(losses)", "return losses[0]", id="the first loss alone"),
        pytest.param('state["optimizer"], old)', "optimizer.init(old), old)", id="a state that is not kept"),
        pytest.param("x + updates[name]", "x - updates[name]", id="uphill"),
        pytest.param("_whole_of(mesh, new)", "_whole_of(mesh, old)", id="no step"),
    ],
)  # fmt: skip
def test_wrong_steps(right: str, wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module whose step is wrong fails, though both passes of one batch are right."""
    monkeypatch.setattr("shardlang.verify.runner.ATTEMPTS", 1)  # other data would not help
    made = plan(STEP)
    text = sl.emit_jax(made)
    assert text.count(right) == 1
    result = run_check(made, text=text.replace(right, wrong))

    assert not result.ok, result.to_text()
    bad = [f"{x.kind} {x.name}" for x in result.arrays if not x.ok]
    assert set(bad) <= set(kinds(result))
    assert bad or not all(x.ok for x in result.collectives)


def test_without_optax_sgd_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where optax is not installed the report says what was left out."""
    real = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: None if name == "optax" else real(name)
    )
    result = run_check(plan(STEP))

    assert result.ok, result.to_text()
    assert not any("adamw" in x for x in kinds(result))
    assert any("adamw was left out, since optax is not installed" in note for note in result.notes)


def test_outputs_of_stages_get_given_cotangents() -> None:
    """Where there is no loss, the means of gradients are compared where the state lies: split over stages and X."""
    made = plan(STAGED)
    result = run_check(made)

    assert result.ok, result.to_text()
    assert kinds(result) == ["mean gradient of W_in", "mean gradient of W_out"]
    assert {x.devices for x in result.arrays if "mean" in x.kind} == {4}
    text = sl.emit_jax(made)
    right = "gradients = tuple(x / count for x in wanted)"
    bad = run_check(made, text=text.replace(right, "gradients = wanted"))
    assert [x.name for x in bad.arrays if not x.ok] == ["W_in", "W_out"]


CHUNKED = """
mesh X=2, Y=2, Z=2
dims B=4, D=8, F=16, L=4
dtype f32
accumulate i=2
schedule interleaved, chunks 2
input x: [B_X, D]
param W_in: [L_Z, D_X, F_Y], W_out: [L_Z, F_Y, D_X], b: [L_Z, D]
layers L_Z:
  x = x + gelu(x ·_D W_in) ·_F W_out + b
y[B_X, D] = tanh(x)
"""
"""Interleaved stages with FSDP over X and tensor parallelism over Y; all devices of X have b."""


def test_chunks_of_layers_with_data_parallelism() -> None:
    """What the update does with a stack of chunks is compared: 2 dims of layers, of which Z splits the second."""
    made = sl.lower(sl.parse(CHUNKED))
    result = run_check(made)

    assert result.ok, result.to_text()
    text = sl.emit_jax(made)
    right = 'lax.psum(b, "X")'
    assert text.count(right) == 1
    flat = 'lax.psum(b.reshape(2, 8), "X").reshape(b.shape)'
    bad = run_check(made, text=text.replace(right, flat)).collectives[-1]
    assert bad.function == "outputs_and_gradients"
    assert bad.missing == ("all_reduce(2x1x8xf32) sum groups [0, 4] [1, 5] [2, 6] [3, 7]",)
    assert bad.extra == ("all_reduce(2x8xf32) sum groups [0, 4] [1, 5] [2, 6] [3, 7]",)


STAGED_SCALE = """
mesh X=2, Z=2
dims B=4, D=8, L=4
dtype f32
accumulate i=4
schedule {schedule}
{declared}input x: [B_X, D]
param W: [L_Z, D], g: [D]
layers L_Z:
  x = gelu(x ⊙ W)
loss[] = mean_{{B,D}}(x ⊙ g)
"""


@pytest.mark.parametrize(
    ("schedule", "declared"), [("gpipe", ""), ("1f1b", "optimizer adamw, zero 1 over X\n")]
)
def test_a_parameter_outside_of_stages_with_data_parallelism(schedule: str, declared: str) -> None:
    """The gradient of g, which every device has whole, is a sum over the stages and over X."""
    result = run_check(
        sl.lower(sl.parse(STAGED_SCALE.format(schedule=schedule, declared=declared)))
    )

    assert result.ok, result.to_text()
    assert any(x.name == "g" for x in result.arrays)


COUNTED = """
mesh X=2
dims B=4, D=4
dtype f32
optimizer adamw
{many}input x: [B_X, D], n: int32[B_X]
param W: [D]
loss = mean_{{B,D}}(square(x ⊙ W))
count[] = sum_B(n)
"""


@pytest.mark.parametrize("many", ["", "accumulate M=2\n"])
def test_a_step_has_no_part_in_outputs_without_gradients(many: str) -> None:
    """A step gives the loss alone: the AllReduce of a count is in both passes of one batch and not in it."""
    result = run_check(sl.lower(sl.parse(COUNTED.format(many=many))))

    assert result.ok, result.to_text()
    totals = {x.function: x.planned for x in result.collectives}
    # The loss, the count, and the gradient; the loss of each of 2 microbatches.
    assert totals["forward_backward"] == 3
    assert totals["a step of sgd"] == (3 if many else 2)


def test_whose_fault_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """What goes wrong in the module is said of it, and what goes wrong in the check is not."""
    made = plan(STEP)
    text = sl.emit_jax(made)
    broken = text.replace("def device(parameters, batch):", "def device(parameters):")
    (problem,) = run_check(made, text=broken).problems
    assert problem.startswith("the emitted module did not run: TypeError: ")

    def fails(*_: object) -> None:
        raise KeyError("a size")

    monkeypatch.setattr("shardlang.verify.runner.planned_step", fails)
    (problem,) = run_check(made).problems
    assert problem.startswith("the check itself broke")


FROZEN = """
mesh X=2
dims B=4, D=8, E=6
dtype f32
optimizer adamw, zero 1 over X
{many}input x: [B_X, D], ids: int32[B_X]
param W: [D], W_h: [D], table: int32[E, D]
loss = mean_{{B,D}}(square(x ⊙ W + take_E(table, ids)))
"""
"""Nothing reads W_h, and no gradient flows to whole numbers."""


@pytest.mark.parametrize("many", ["", "accumulate M=2\n"])
def test_parameters_without_gradients_stay(many: str) -> None:
    """They are given once, with the others, and are after each step what they were: no decay."""
    made = sl.lower(sl.parse(FROZEN.format(many=many)))
    text = sl.emit_jax(made)
    result = run_check(made, text=text)

    assert result.ok, result.to_text()
    module: dict[str, Any] = {}
    exec(text, module)
    assert (list(module["STATES"]), module["FROZEN"]) == (["W"], ("W_h", "table"))
    assert list(module["BATCH"]) == ["x", "ids"]
    compared = {x.name for x in result.arrays if x.kind == "after 2 steps of adamw:"}
    assert compared == {"W", "W_h", "table"}
    right = ', "frozen": state["frozen"]}'
    assert text.count(right) == 1
    wrong = ', "frozen": {name: x + 1 for name, x in state["frozen"].items()}}'
    bad = run_check(made, text=text.replace(right, wrong))
    assert {x.name for x in bad.arrays if not x.ok and "after" in x.kind} >= {"W_h", "table"}


def test_microbatches_of_nothing() -> None:
    """A program that is given parameters alone has as many microbatches as it says."""
    text = "mesh X=2\ndims B=4, D=4\ndtype f32\noptimizer adamw\naccumulate M=3\n"
    text += "param W: [B_X, D]\nloss = mean_{B,D}(square(W))"
    made = sl.lower(sl.parse(text))

    assert "lax.scan(add, start, given, length=3)" in sl.emit_jax(made)
    result = run_check(made)
    assert result.ok, result.to_text()


def test_gradients_that_end_as_all_parameters_live() -> None:
    """Nothing of a batch's gradients is moved where each device has them whole, though the state is split."""
    text = (
        "mesh X=2\ndims B=4, D=16, M=2\ndtype f32\noptimizer adamw, zero 1 over X\naccumulate M\n"
        "input x: [B, D]\nparam g: [D]\nloss = mean_{B,D}(square(x ⊙ g))\n"
    )
    result = run_check(sl.lower(sl.parse(text)))

    assert result.ok, result.to_text()
    counts = {each.function: each.planned for each in result.collectives}
    assert counts == {
        "forward": 0,
        "forward_backward": 0,
        "a step of sgd": 1,
        "a step of adamw": 1,
    }


@pytest.mark.parametrize("stack", ["", "layers L=3:\n  x = x + tanh(x)\n"])
def test_a_step_leaves_gradients_of_inputs_out(stack: str) -> None:
    """Both passes reduce dx over Y, and a step, which has nothing to do with it, does not."""
    text = (
        "mesh X=2, Y=2\ndims B=8, D=8, F=16\ndtype f32\noptimizer adam\ninput x: [B_X, D], t: [B_X, D]\n"
        f"param W1: [D, F_Y], W2: [F_Y, D]\n{stack}"
        "loss = mean_{B,D}(square(relu(x ·_D W1) ·_F W2 - t))\n"
    )
    result = run_check(sl.lower(sl.parse(text)))

    assert result.ok, result.to_text()
    counts = {each.function: each.planned for each in result.collectives}
    assert counts["forward_backward"] - 1 == counts["a step of sgd"] == counts["a step of adamw"]
