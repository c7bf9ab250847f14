"""The library: what `import shardlang as sl` offers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import shardlang as sl

ROOT = Path(__file__).resolve().parent.parent
CHAIN = "mesh X\nIn[B_X, D] · W_in[D_X, F] · W_out[F, D_X] -> Out[B_X, D]"


def test_the_public_names():
    """Every public name is there, and has a docstring."""
    for name in sl.__all__:
        assert getattr(sl, name) is not None
        if not name.startswith("_"):
            assert getattr(sl, name).__doc__


def test_load_reads_a_file():
    """`load` gives the program of a file, as `parse` of its text does."""
    path = ROOT / "examples" / "fsdp.shd"
    loaded, parsed = sl.load(path), sl.parse(path.read_text(encoding="utf-8"))

    assert loaded.statements == parsed.statements
    assert sl.load(str(path)).mesh == loaded.mesh


def test_sizes_on_lower():
    """`sizes` win over the program's own, and what is declared by them follows."""
    program = sl.load(ROOT / "examples" / "mlp.shd")
    plan = sl.lower(program, sizes={"X": 8, "D": 4096})
    known = plan.program.sizes.known

    assert (known["X"], known["D"], known["F"]) == (8, 4096, 4 * 4096)
    assert program.sizes.known["X"] == 16


def test_forward_alone_and_kept_weights():
    """`forward_only` and `keep_gathered` reach the passes."""
    program = sl.parse(CHAIN)

    assert sl.lower(program, forward_only=True).backward == ()
    assert sl.lower(program).program.save.names == set()
    assert sl.lower(program, keep_gathered=True).program.save.names == {"W_in", "W_out"}


def test_cost_of_a_plan():
    """A report has sympy totals and renders itself."""
    report = sl.cost(sl.lower(sl.parse(CHAIN)), hardware="tpu_v5p")

    assert {str(symbol) for symbol in report.total.t_comms.free_symbols} >= {"D", "F"}
    assert report.to_dict()["schema"] == 1
    assert report.to_latex()


def test_emitted_module_is_python():
    """`emit_jax` gives a module that compiles."""
    source = sl.emit_jax(sl.lower(sl.parse(CHAIN)), sizes={"X": 4})

    compile(source, "emitted", "exec")


def test_errors_have_their_places():
    """A wrong program raises with line, column and a hint to read."""
    with pytest.raises(sl.ShardlangError) as caught:
        sl.parse("mesh X, Y\nA[I_X, J_X] -> C[I, J]", name="here")
    (first, *_) = caught.value.diagnostics

    assert (first.line, first.source.name) == (2, "here")
    assert "here:2:" in str(caught.value)


def test_check_lists_instead_of_raising():
    """`check` takes a text or a program and never raises for what is wrong in it."""
    wrong = sl.check("A[I_X, J_X] -> C[I, J]")

    assert [x.severity for x in wrong] == ["error"]
    assert sl.check(CHAIN) == []
    assert sl.check(sl.parse(CHAIN)) == []


def test_an_explicit_program_is_checked_as_it_stands():
    """`explicit` refuses what would need communication that no line has."""
    assert sl.check(CHAIN, explicit=True)


@pytest.mark.jax
def test_verify():
    """`verify` compares the emitted module with a reference."""
    plan = sl.lower(sl.parse("A[I, J_X] · B[J_X, K] -> C[I, K]"), sizes={"X": 2})

    assert sl.verify(plan).ok


def test_check_reports_unknown_hardware():
    """`check` of a text and of a program reports hardware that does not exist, at its line."""
    wrong = "mesh X\nhardware h1OO\nA[I_X, J_X] -> C[I, J]"
    right = "mesh X\nhardware h1OO\nA[I_X, J] -> C[I, J]"

    assert [(d.code, d.line) for d in sl.check(wrong)] == [("SH501", 2), ("SH202", 3)]
    assert [(d.code, d.line) for d in sl.check(right)] == [("SH501", 2)]
    assert [(d.code, d.line) for d in sl.check(sl.parse(right))] == [("SH501", 2)]
    assert sl.check(right.replace("h1OO", "h100")) == []


def test_plans_print_as_programs():
    """`print(plan)` shows what `shardlang lower` prints; its repr is one line."""
    from shardlang.ir.printer import print_plan

    plan = sl.lower(sl.parse(CHAIN))

    assert str(plan) == print_plan(plan)
    assert "\n" not in repr(plan)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda program, _: sl.emit_jax(program), "emit_jax takes a Plan: lower(program)"),
        (lambda program, _: sl.verify(program), "verify takes a Plan: lower(program)"),
        (lambda program, _: sl.cost(program), "cost takes a Plan: lower(program)"),
        (lambda program, _: sl.ring_attention(program), "given a value of type Program"),
        (lambda _, plan: sl.lower(plan), "lower takes a Program: parse(text) or load(path)"),
        (lambda *_: sl.lower("A -> B"), "given a value of type str"),
        (lambda _, plan: sl.best_meshes(plan, 4), "best_meshes takes a Program"),
        (lambda _, plan: sl.explain(plan), "explain takes a Program"),
        (lambda *_: sl.check(3), "or its text; it was given a value of type int"),
        (lambda *_: sl.parse(5), "parse takes the text of a program, a str"),
        (lambda *_: sl.parse(b"mesh X"), "given a value of type bytes"),
        (lambda program, _: sl.lower(program, sizes=["X"]), "lower takes sizes by names, as {'D': 64}"),
        (lambda _, plan: sl.emit_jax(plan, {"X": "4"}), "it was given {'X': '4'}"),
        (lambda _, plan: sl.cost(plan, 5), "cost takes hardware by its name or the path"),
        (lambda *_: sl.reshard(5, "A[I]", "X=2"), "reshard takes a layout, as in 'A[I_X, J]'"),
        (lambda *_: sl.reshard_cost("A[I_X]", "A[I]", 2), "reshard_cost takes a mesh"),
    ],
)  # fmt: skip
def test_a_function_says_what_it_takes(call, says):
    """Given something else, a public function raises TypeError that says what to pass."""
    program = sl.parse(CHAIN)
    with pytest.raises(TypeError, match=re.escape(says)):
        call(program, sl.lower(program))
