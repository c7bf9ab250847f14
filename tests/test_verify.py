"""verify: plans that are right pass it, and plans that are wrong in any way do not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from jaxcases import array, mlp, plan
from jaxops import COMPUTE, DTYPE_CASES, MAPS, MOVES

import shardlang as sl
from shardlang.backends.jax import emit_jax
from shardlang.diagnostics import ShardlangError
from shardlang.ir.ops import AllGather, AllReduce, ReduceScatter
from shardlang.ir.plan import Plan, Step
from shardlang.ir.types import Axis
from shardlang.verify import ArrayCheck, CollectivesCheck, verify, VerifyResult
from shardlang.verify.collectives import groups, planned
from shardlang.verify.sizes import small_sizes

SCHEMES = ("dp", "fsdp", "tp", "fsdp_tp")


# Right plans


@pytest.mark.jax
@pytest.mark.parametrize("name", [*MOVES, *COMPUTE, *DTYPE_CASES, *MAPS])
def test_each_operation(name):
    """Every operation gives the reference's values on every device, and the plan's collectives."""
    from shardlang.verify.runner import run_check

    made = {**MOVES, **COMPUTE, **DTYPE_CASES, **MAPS}[name]()

    result = run_check(made, exact=False, thorough=True)
    assert result.ok, result.to_text()


@pytest.mark.jax
@pytest.mark.parametrize("scheme", SCHEMES)
def test_each_scheme(scheme):
    """The seed's four schemes verify at several meshes."""
    from shardlang.verify.runner import run_check

    for sizes in ({}, {"X": 4, "Y": 2}, {"X": 1, "Y": 2}, {"X": 2, "Y": 1}, {"X": 3, "Y": 2}):
        axes = [info.axis.name for info in mlp(scheme).program.mesh.axes]
        given = {name: size for name, size in sizes.items() if name in axes}
        result = run_check(mlp(scheme, "bf16"), sizes=given)
        assert result.ok, result.to_text()


@pytest.mark.jax
def test_result_says_what_was_compared():
    """The text names each array, its error and the counts of collectives."""
    from shardlang.verify.runner import run_check

    result = run_check(mlp("fsdp_tp"))
    text = result.to_text()

    assert [(c.kind, c.name) for c in result.arrays] == [
        ("output", "Out"),
        ("gradient of", "In"),
        ("gradient of", "W_in"),
        ("gradient of", "W_out"),
    ]
    assert {c.devices for c in result.arrays} == {4}
    assert [(c.function, c.planned, c.lowered) for c in result.collectives] == [
        ("forward", 4, 4),
        ("forward_backward", 10, 10),
    ]
    assert "collectives of forward_backward: 10 in the plan, 10 lowered by JAX: equal" in text
    assert text.endswith(f"verified: largest error {result.largest_error:.1e}\n")


@pytest.mark.jax
def test_regathered_weights_stay_in_the_program():
    """JAX keeps the backward pass's second gather of the same weights when it lowers."""
    from shardlang.verify.runner import run_check

    result = run_check(mlp("fsdp"))
    gathers = sum(isinstance(s.op, AllGather) for _, s in mlp("fsdp").steps())

    assert gathers == 4
    assert result.ok, result.to_text()


# Wrong plans


def without(made: Plan, index: int) -> Plan:
    """Leave a backward reduction out, and read its operand where its result was read."""
    dropped = made.backward[index]
    before, after = dropped.inputs[0], dropped.output

    def relabel(step: Step) -> Step:
        return replace(step, output=after) if step.output == before else step

    kept = made.backward[:index] + made.backward[index + 1 :]
    return replace(made, backward=tuple(relabel(step) for step in kept))


REDUCTIONS = [
    (scheme, index)
    for scheme in SCHEMES
    for index, step in enumerate(mlp(scheme).backward)
    if isinstance(step.op, AllReduce | ReduceScatter)
]


def fails(made: Plan) -> VerifyResult:
    """Run a plan that must fail."""
    from shardlang.verify.runner import run_check

    result = run_check(made)
    assert not result.ok, result.to_text()
    assert "verification FAILED" in result.to_text()
    return result


@pytest.mark.jax
@pytest.mark.parametrize(("scheme", "index"), REDUCTIONS)
def test_dropped_reduction(scheme, index):
    """A plan without one of its reductions fails, whether or not its layouts are made to agree."""
    made = mlp(scheme)
    fails(without(made, index))
    fails(replace(made, backward=made.backward[:index] + made.backward[index + 1 :]))


@pytest.mark.jax
@pytest.mark.parametrize(("scheme", "index"), REDUCTIONS)
def test_doubled_reduction(scheme, index):
    """A plan that does a reduction twice fails: of the partial sums, or of the sum."""
    made = mlp(scheme)
    step = made.backward[index]
    head, tail = made.backward[: index + 1], made.backward[index + 1 :]
    fails(replace(made, backward=(*head, step, *tail)))

    again = Step(AllReduce(step.op.axes), (step.output,), step.output)
    if isinstance(step.op, AllReduce):
        fails(replace(made, backward=(*head, again, *tail)))


@pytest.mark.jax
@pytest.mark.parametrize("index", [i for scheme, i in REDUCTIONS if scheme == "fsdp_tp"])
def test_reduction_over_the_wrong_axis(index):
    """A plan that reduces over the other axis of the mesh fails."""
    made = mlp("fsdp_tp")
    step = made.backward[index]
    other = Axis("Y") if step.op.axes == (Axis("X"),) else Axis("X")
    wrong = replace(step, op=replace(step.op, axes=(other,)))

    fails(replace(made, backward=(*made.backward[:index], wrong, *made.backward[index + 1 :])))


@pytest.mark.jax
def test_maximum_taken_as_a_sum():
    """A partial maximum that is summed fails."""
    made = COMPUTE["softmax"]()
    wrong = tuple(
        replace(step, inputs=(array("M[B_X]{U_Y}"),))
        if step.output.name == "M" and isinstance(step.op, AllReduce)
        else replace(step, output=array("M[B_X]{U_Y}"))
        if step.output.name == "M"
        else step
        for step in made.forward
    )
    made = replace(made, forward=wrong, outputs=(*made.outputs, array("M[B_X]")))

    fails(made)


@pytest.mark.jax
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ('lax.psum(dW_in_partial, "X")', "dW_in_partial"),
        ('lax.psum(dW_in_partial, "X")', '2 * lax.psum(dW_in_partial, "X")'),
        ('lax.psum(dW_in_partial, "X")', 'lax.pmax(dW_in_partial, "X")'),
        ('lax.psum(dW_in_partial, "X")', 'lax.psum(lax.psum(dW_in_partial, "X"), "X")'),
        ('jnp.einsum("bd,df->bf", In, W_in)', 'jnp.einsum("bd,df->bf", In, -W_in)'),
    ],
)
def test_wrong_module(right, wrong):
    """A module that does not follow its plan fails: in its values, or in its collectives."""
    from shardlang.verify.runner import run_check

    sizes = small_sizes(mlp("dp"))
    known = {x.name: n for x, n in (*sizes.axes.items(), *sizes.dims.items())}
    text = emit_jax(mlp("dp"), known)
    assert text.count(right) >= 1

    good = run_check(mlp("dp"), text=text)
    bad = run_check(mlp("dp"), text=text.replace(right, wrong))
    assert good.ok, good.to_text()
    assert not bad.ok, bad.to_text()


@pytest.mark.jax
def test_doubled_collective_whose_value_is_right():
    """A collective that changes no value and is not in the plan is still found."""
    from shardlang.verify.runner import run_check

    sizes = small_sizes(mlp("fsdp"))
    known = {x.name: n for x, n in (*sizes.axes.items(), *sizes.dims.items())}
    call = 'lax.all_gather(W_in, "X", axis=0, tiled=True, to="invarying")'
    text = emit_jax(mlp("fsdp"), known)

    result = run_check(mlp("fsdp"), text=text.replace(call, f"{call} + 0 * {call}", 1))
    assert all(check.ok for check in result.arrays)
    assert [len(check.extra) for check in result.collectives] == [1, 1]
    assert not result.ok


@pytest.mark.jax
def test_permutes_onto_idle_axes_both_passes():
    """What a Permute leaves replicated is an output, kept, and a gradient; JAX can't check its types."""
    from shardlang.verify.runner import run_check

    made = plan(
        [
            "A[I_Y, J] = Permute(A[I_X, J])",
            "C[I_Y, K] = A[I_Y, J] ·_J W[J, K]",
        ],
        [
            "dA[I_Y, J] = dC[I_Y, K] ·_K W[J, K]",
            "dA[I_X, J] = Permute(dA[I_Y, J])",
            "dW[J, K]{U_Y} = A[I_Y, J] ·_I dC[I_Y, K]",
            "dW[J, K] = AllReduce_Y(dW[J, K]{U_Y})",
        ],
        mesh={"X": 2, "Y": 2, "Z": 2},
        leaves=["A[I_X, J]", "W[J, K]"],
        outputs=["C[I_Y, K]"],
    )

    text = emit_jax(made)
    assert text.count("check_vma=False") == 1
    assert "C along X; A_moved along X; dA along Y; dW along X." in text.replace("\n    # ", " ")

    result = run_check(made)
    assert result.ok, result.to_text()
    assert [1, 3] == [check.lowered for check in result.collectives]


@pytest.mark.jax
def test_permutes_whose_results_are_gathered_stay_checked():
    """Where no axis is lost, or a gather runs over it, JAX's own check of types stays on."""
    from shardlang.verify.runner import run_check

    made = plan(
        [
            "A[I_Y, J_X] = Permute(A[I_X, J_Y])",
            "A[I_Y, J] = AllGather_X(A[I_Y, J_X])",
            "B[I_Z, J] = Permute(B[I_X, J])",
            "B[I_Z, J_X] = Slice_{X,J}(B[I_Z, J])",
            "B[I_Z, J] = AllGather_X(B[I_Z, J_X])",
        ],
        mesh={"X": 2, "Y": 2, "Z": 2},
        leaves=["A[I_X, J_Y]", "B[I_X, J]"],
        outputs=["A[I_Y, J]", "B[I_Z, J]"],
    )

    assert "check_vma" not in emit_jax(made)
    result = run_check(made)
    assert result.ok, result.to_text()


@pytest.mark.jax
def test_collective_that_nothing_reads():
    """A gather that reaches nothing is left out by JAX; the result says so and does not fail."""
    from shardlang.verify.runner import run_check

    made = mlp("dp")
    idle = plan(
        ["In[B, D] = AllGather_X(In[B_X, D])"],
        mesh={"X": None},
        leaves=["In[B_X, D]"],
        outputs=["In[B, D]"],
    ).forward

    result = run_check(replace(made, forward=(*idle, *made.forward)))
    assert result.ok, result.to_text()
    assert result.notes == (
        (
            "`In[B, D] = AllGather_X(In[B_X, D])` reaches no output and no gradient, "
            "so JAX leaves it out"
        ),
    )


@pytest.mark.jax
@pytest.mark.parametrize("scheme", ["tp", "fsdp_tp"])
def test_forward_reduction_dropped_or_doubled(scheme):
    """The forward pass is held to the same."""
    made = mlp(scheme)
    *steps, last = made.forward
    product = replace(steps[-1], output=last.output)
    fails(replace(made, forward=tuple(steps)))
    fails(replace(made, forward=(*steps[:-1], product)))
    fails(replace(made, forward=(*made.forward, last)))


# Parts


def test_groups_follow_the_order_of_the_axes():
    """On a 2x2x2 mesh the groups over Y then X list the devices Y-major."""
    made = plan(
        ["A[I] = AllGather_YX(A[I_YX])"],
        mesh={"X": 2, "Y": 2, "Z": 2},
        leaves=["A[I_YX]"],
        outputs=["A[I]"],
    )
    numbers = small_sizes(made)

    x, y = Axis("X"), Axis("Y")
    assert groups((y, x), numbers) == ((0, 4, 2, 6), (1, 5, 3, 7))
    assert groups((x, y), numbers) == ((0, 2, 4, 6), (1, 3, 5, 7))
    assert groups((y,), numbers) == ((0, 2), (1, 3), (4, 6), (5, 7))


def test_planned_collectives_are_local_operands():
    """The plan's list has the local operand shapes, in the plan's dtypes."""
    made = mlp("fsdp_tp", "bf16")
    numbers = small_sizes(made, {"X": 2, "Y": 2, "B": 8, "D": 16, "F": 32})

    found = planned(made, numbers, ["forward"])
    assert Counter(seen.kind for seen in found.elements()) == {
        "all_gather": 3,
        "reduce_scatter": 1,
    }
    assert {seen.operand for seen in found} == {"4x8xbf16", "8x16xbf16", "16x8xbf16", "4x16xbf16"}


def test_large_programs_are_run_small():
    """Meshes and dims that no machine holds shrink, also where the caller gave them; others stay."""
    sizes = {"X": 16, "Y": 16, "B": 3_000_000, "D": 8192, "F": 32768}
    numbers = small_sizes(mlp("fsdp_tp"), sizes)

    assert set(numbers.axes.values()) == {2}
    assert {dim.name: size for dim, size in numbers.dims.items() if size > 16} == {"D": 8192}


def test_collectives_of_two_modules_are_told_apart():
    """Where a plan ran in two precisions, each line says of which; all lines fit 80 columns."""
    array = ArrayCheck("Out", "output with backward", "bf16", 0.001, 0.1, 16)
    checks = tuple(
        CollectivesCheck(function, 10, 10, floats=floats)
        for floats in ("bf16", "f32")
        for function in ("forward", "forward_backward")
    )
    sizes = {f"dim_{number}": 4 for number in range(20)}
    notes = ("made small for this run: " + ", ".join(f"{n}=4 of 4096" for n in sizes),)
    result = VerifyResult((array,), checks, notes=notes, mesh={"X": 16}, dims=sizes)
    lines = result.to_text().splitlines()

    assert len(lines) == len(set(lines))
    assert (
        "collectives of forward_backward (f32): 10 in the plan, 10 lowered by JAX: equal" in lines
    )
    assert max(map(len, lines)) <= 80
    once = VerifyResult((array,), checks[:2]).to_text()
    assert "collectives of forward: 10 in the plan, 10 lowered by JAX: equal one to one" in once


def test_result_survives_json():
    """A result read back from its JSON is the same."""
    result = VerifyResult(
        (ArrayCheck("A", "output", "f32", 0.5, 1e-4, 4),),
        (CollectivesCheck("forward", 1, 2, ("x",), ("y", "z")),),
        ("p",),
        ("n",),
        {"X": 2},
        {"B": 4},
    )

    assert VerifyResult.from_dict(json.loads(json.dumps(result.to_dict()))) == result
    assert not result.ok
    assert not VerifyResult().ok


# The process


@pytest.mark.jax
@pytest.mark.parametrize("scheme", ["fsdp_tp", "dp"])
def test_verify_runs_in_a_process_of_its_own(scheme):
    """The caller gets the result and never loads JAX."""
    root = Path(__file__).parents[1]
    code = (
        f"import sys; sys.path.insert(0, 'tests'); from jaxcases import mlp; "
        f"from shardlang.verify import verify; result = verify(mlp({scheme!r}, 'bf16')); "
        "print(result.to_text()); sys.exit(2 * ('jax' in sys.modules) + (not result.ok))"
    )

    environment = {k: v for k, v in os.environ.items() if k not in {"XLA_FLAGS", "JAX_PLATFORMS"}}

    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=root,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "output Out (bf16)" in done.stdout
    assert "output Out (f32)" in done.stdout


def test_verify_without_jax(monkeypatch):
    """Where JAX is not installed the error says what to install."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)

    with pytest.raises(ShardlangError) as error:
        verify(mlp("dp"))
    assert [d.code for d in error.value.diagnostics] == ["SH605"]
    assert error.value.diagnostics[0].hint == "pip install 'shardlang[jax]'"


def test_verify_refuses_sizes_that_do_not_divide():
    """Sizes that the program can't have are an error before anything runs."""
    with pytest.raises(ShardlangError) as error:
        verify(mlp("dp"), sizes={"X": 4, "B": 6})
    assert [d.code for d in error.value.diagnostics] == ["SH601"]


def test_process_that_gives_no_answer(monkeypatch):
    """A process that dies is an error with its last words, not a traceback of ours."""
    monkeypatch.setattr(sys, "executable", "/bin/false")

    with pytest.raises(ShardlangError) as error:
        verify(mlp("dp"))
    assert [d.code for d in error.value.diagnostics] == ["SH606"]


@pytest.mark.jax
def test_zero_rows_that_each_layer_enlarges():
    """Where ids out of range give gradients beyond f32, whatever is emitted, ids are in range, and that is said."""
    from shardlang.verify.runner import run_check

    text = (
        "mesh X=2\ndtype f32\ndims B=32, D=4, V=6, L=16\n"
        "input ids: int32[B_X]\nparam W: [V, D], g: [L, D]\nx[B_X, D] = take_V(W, ids)\n"
        "layers L:\n  x = x + 300 * rmsnorm_D(x) ⊙ g\n"
    )
    found = run_check(sl.lower(sl.parse(text)), sizes={"L": 16, "B": 32})

    assert found.ok, str(found)
    assert any("all ids are in range" in note for note in found.notes)
