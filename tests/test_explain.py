"""Explanations: reasons, close plans and the other strategy, with numbers worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import shardlang as sl
from shardlang.ir.plan import Plan
from shardlang.ir.printer import statement

CASES = Path(__file__).parent / "cases"
MLP = (CASES / "explain" / "fsdp_tp.shd").read_text(encoding="utf-8")
MB = 1_000_000

# B=131072, D=8192, F=32768 over X=16, Y=4, in bf16. In gathered over Y is 2*B*D/X = 134.2 MB, of
# which a device sends 3/4; a weight gathered over X is 2*D*F/Y = 134.2 MB, of which it sends 15/16.
DATA, WEIGHT = 134_217_728 * 3 // 4, 134_217_728 * 15 // 16


def test_every_collective_has_its_bytes_and_a_reason() -> None:
    """FSDP with tensor parallelism: four collectives of activations, six of weights."""
    found = sl.explain(sl.parse(MLP), keep_gathered=False)

    assert ("optimal", None, True) == (found.strategy, found.note, found.optimal)
    assert 4 * DATA + 6 * WEIGHT == found.total == found.bound
    by_text = {(c.section, c.text): c for c in found.collectives}
    assert len(by_text) == 10
    gather = by_text["forward", "In[B_X, D] = AllGather_Y(In[B_X, D_Y])"]
    assert (DATA, True, ("Y",)) == (gather.bytes, gather.critical, gather.axes)
    assert gather.reason == "Tmp and dW_in read it with D whole: Y splits F there"
    scatter = by_text["backward", "dW_in[D_X, F_Y] = ReduceScatter_{X,D}(dW_in[D, F_Y]{U_X})"]
    assert (WEIGHT, False) == (scatter.bytes, scatter.critical)
    assert scatter.reason == "B is contracted and split over X; dW_in lives as W_in"


def test_close_plans_do_without_a_collective_and_cost_what_they_say() -> None:
    """Gathering Tmp over Y instead of adding Out up: W_out gives up its Y and is gathered by halves."""
    found = sl.explain(sl.parse(MLP), keep_gathered=False)
    totals = [other.total for other in found.close]

    assert totals == sorted(totals)
    assert all(other.total >= found.bound for other in found.close)
    assert all(other.instead_of in other.gone for other in found.close)
    assert all(other.total - other.more == found.total for other in found.close)
    texts = ["Tmp[B_X, F] = AllGather_Y(Tmp[B_X, F_Y])"]
    (other,) = [o for o in found.close if texts[0] in [n.text for n in o.new] and len(o.gone) == 2]
    # Gone: W_out over X, Out. New: Tmp over Y, 3/4 of 2*B*F/X; W_out[F_Y, D_X] moves by AllToAll (3/4
    # of 2*D*F/(X*Y)), by Permute (all of it), and is gathered over X to 2*D*F/Y.
    shard = 2 * 8192 * 32768 // 64
    new = 2 * 131072 * 32768 // 16 * 3 // 4 + shard * 3 // 4 + shard + WEIGHT
    assert new - WEIGHT - DATA == other.more


def test_the_book_is_set_against_the_optimal_plan_and_the_other_way_round() -> None:
    """Adding up a 4096 x 16 result beats gathering a 4096 x 4096 operand."""
    program = sl.parse("mesh X=4\ndims I=4096, J=4096, K=16\nA[I, J_X] · B[J, K] -> C[I, K]\n")
    gather, reduce = 4096 * 4096 * 2 * 3 // 4, 4096 * 16 * 2 * 2 * 3 // 4
    best = sl.explain(program, forward_only=True)
    book = sl.explain(program, "book", forward_only=True)

    assert reduce == best.total
    assert best.compared is not None
    assert book.compared is not None
    assert (gather, gather - reduce) == (best.compared.total, best.compared.more)
    assert (reduce, reduce - gather) == (book.compared.total, book.compared.more)
    assert ["A[I, J] = AllGather_X(A[I, J_X])"] == [line.text for line in book.compared.gone]
    assert ["2*K < J, as it is at these sizes"] == [c.cheaper_when for c in book.choices]


def test_without_sizes_it_is_the_books_plan_and_says_so() -> None:
    """Formulas stand for the bytes."""
    found = sl.explain(sl.parse("A[I, J_X] · B[J_X, K] -> C[I, K]"), forward_only=True)

    assert found.strategy == "book"
    assert "have no size" in (found.note or "")
    assert (None, None, None) == (found.total, found.bound, found.compared)
    assert ["4*I*K - 4*I*K/X"] == [c.formula for c in found.collectives]


def test_what_can_not_be_searched_says_why() -> None:
    """How partial maxima are reduced is left to the rules where the text states it."""
    text = (
        "mesh X=4\ndims I=8\nm[]{max_X} = max_I(A[I_X])\n"
        "m[] = AllReduce_X(m[]{max_X})\nB[] = gelu(m[])\n"
    )
    found = sl.explain(sl.parse(text))

    assert "is reduced" in (found.note or "")
    assert ((), None) == (found.close, found.compared)


def test_an_explicit_program_is_explained_as_it_stands() -> None:
    """Nothing is chosen in it."""
    text = (CASES / "mlp" / "tp.explicit.shd").read_text(encoding="utf-8")
    found = sl.explain(sl.parse(text))

    assert found.strategy == "explicit"
    assert "check" in (found.note or "")


@pytest.mark.parametrize("objective", ["serial", "time"])
def test_times_are_compared_in_seconds(objective: str) -> None:
    """At 180 GB/s an axis and 459 TFLOP/s: the FLOPs take longer than the collectives."""
    program = sl.parse(MLP.replace("\n", "\nhardware tpu_v5p\n", 1))
    found = sl.explain(program, objective=objective, keep_gathered=False)
    math = 3 * 4 * 131072 * 8192 * 32768 / 64 / 4.59e14
    comms = (4 * DATA + 6 * WEIGHT) / 1.8e11

    expected = math if objective == "time" else math + comms
    assert pytest.approx(expected) == float(found.total or 0)
    assert all(other.total >= (found.total or 0) for other in found.close)


def test_lower_cost_and_explain_give_one_reason(shardlang, tmp_path: Path) -> None:
    """The reason is the plan's."""
    path = tmp_path / "mlp.shd"
    path.write_text(MLP, encoding="utf-8")
    options = (str(path), "--strategy", "optimal", "--format", "json")
    lowered = json.loads(shardlang("lower", *options).out)
    explained = json.loads(shardlang("explain", *options).out)
    costed = json.loads(shardlang("cost", *options).out)

    reasons = [c["reason"] for c in explained["collectives"]]
    assert all(reasons)
    assert reasons == [s["reason"] for s in lowered["steps"] if s["critical"] is not None]
    assert sorted(reasons) == sorted(c["reason"] for c in costed["collectives"])


def test_text_fits_the_columns_and_has_no_escapes(shardlang) -> None:
    """80 columns, plain where nobody looks."""
    result = shardlang("explain", str(CASES / "explain" / "fsdp_tp.shd"))

    assert max(map(len, result.out.splitlines())) <= 80
    assert "\033" not in result.out


def served(plan: Plan) -> None:
    """Every name that a reason says reads a result does so, itself or after further moves."""
    steps = [step for _, step in plan.steps()]
    for number, step in enumerate(steps):
        if "read it" not in step.reason and "reads it" not in step.reason:
            continue
        names = [s.output.name for s in steps[number:] if step.output in s.inputs and s.is_compute]
        said = step.reason.split("; ")[-1].partition(" read")[0]
        assert said.split(" and ")[0].split(",")[0] in names, (statement(step), step.reason)


@pytest.mark.parametrize("case", ["fsdp_tp", "two_readers"])
def test_reasons_are_true(case: str) -> None:
    """Who is said to read a result reads it."""
    text = (CASES / "explain" / f"{case}.shd").read_text(encoding="utf-8")

    served(sl.lower(sl.parse(text), "optimal"))
