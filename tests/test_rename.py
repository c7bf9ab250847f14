"""A value under other dim names: what is read as one, what it does to sizes, and that it runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from simulator import check_numbers

from shardlang.backends.jax.emit import emit_jax
from shardlang.backends.jax.sizes import choose
from shardlang.diagnostics import Diagnostic, ShardlangError
from shardlang.frontend.format import format_source
from shardlang.frontend.resolve import load_text, Overrides
from shardlang.ir.ops import Rename
from shardlang.ir.plan import Plan
from shardlang.ir.printer import print_plan, statement
from shardlang.ir.program import Program
from shardlang.passes import lower
from shardlang.source import Source
from shardlang.verify.sizes import size_notes, small_sizes

GRAM = "A[N_X, M] ·_N A[N_X, K] -> C[M, K]"

ATTENTION = """mesh X=2, Y=2
q[B_X, T, H_Y, K] = x[B_X, T, D_Y] ·_D W_q[D, H_Y, K]
k[B_X, S, H_Y, K] = x[B_X, S, D_Y] ·_D W_k[D, H_Y, K]
v[B_X, S, H_Y, K] = x[B_X, S, D_Y] ·_D W_v[D, H_Y, K]
p[B_X, H_Y, T, S] = softmax_S(q[B_X, T, H_Y, K] ·_K k[B_X, S, H_Y, K])
o[B_X, T, H_Y, K] = p[B_X, H_Y, T, S] ·_S v[B_X, S, H_Y, K]
y[B_X, T, D_Y] = o[B_X, T, H_Y, K] ·_{H,K} W_o[H_Y, K, D]
"""

EXAMPLE = Path(__file__).parents[1] / "examples" / "attention.shd"


def program(text: str, **sizes: int) -> Program:
    """Resolve a program with sizes over it."""
    return load_text(text, overrides=Overrides(sizes=sizes))


def plan_of(text: str, **sizes: int) -> Plan:
    """Lower a program with sizes over it."""
    return lower(program(text, **sizes))


def formatted(text: str) -> str:
    """Format a text."""
    return format_source(Source("<text>", text))


def wrong(text: str, **sizes: int) -> Diagnostic:
    """Give the one mistake of a text."""
    with pytest.raises(ShardlangError) as caught:
        program(text, **sizes)
    (diagnostic,) = caught.value.diagnostics
    return diagnostic


def place(text: str, diagnostic: Diagnostic) -> str:
    """Give the part of the text that a mistake points at."""
    return text[diagnostic.span.start : diagnostic.span.end]


def renames(found: Program) -> list[tuple[str, str]]:
    """List the renamed values, each with the value that it is."""
    return [
        (f"{s.result.name}[{', '.join(d.name for d in s.op.dims)}]", s.operands[0].tensor.name)
        for s in found.statements
        if isinstance(s.op, Rename)
    ]


def sizes(found: Program) -> dict[str, int | None]:
    """Give each dim's size."""
    return {info.dim.name: info.size for info in found.dims}


def dims_run(plan: Plan, given: dict[str, int] | None = None) -> dict[str, int]:
    """Give the dims that a plan is verified at."""
    return {dim.name: size for dim, size in small_sizes(plan, given).dims.items()}


# What a mention means


def test_a_gram_matrix() -> None:
    """`A ·_N A` with two names for the kept dim contracts N alone."""
    plan = plan_of(f"mesh X=2\n{GRAM}")
    check_numbers(plan)

    assert [
        "A_K[N_X, K] = Rename_{N,K}(A[N_X, M])",
        "C[M, K]{U_X} = A[N_X, M] ·_N A_K[N_X, K]",
        "C[M, K] = AllReduce_X(C[M, K]{U_X})",
    ] == [statement(step) for step in plan.forward]


def test_self_attention_renames_once() -> None:
    """Keys and values read one renamed value, which is right in numbers, gradients included."""
    plan = plan_of(ATTENTION)
    check_numbers(plan)

    assert [("x_S[B, S, D]", "x")] == renames(plan.program)


def test_the_use_has_the_layout_of_the_brackets() -> None:
    """The new name stands at its place, with the axes that the mention asks for."""
    found = program("y[T_X] = exp(x[T_X])\nz[S, R_X] = x[S] ⊙ v[R_X] ⊙ x[R_X]\n")
    uses = [str(use.layout) for s in found.statements for use in s.operands]

    assert [("x_S[S]", "x"), ("x_R[R]", "x")] == renames(found)
    assert 6 == len(uses)


def test_dims_of_the_dims_line_may_be_new_names() -> None:
    """A name that only a dims line has is meant."""
    found = program("dims T=4, S=T\ny[T] = exp(x[T])\nz = gelu(x[S])")

    assert [("x_S[S]", "x")] == renames(found)


def test_a_primed_name() -> None:
    """`M'` is a second dim of M's size."""
    found = program("dims M=6\nA[N, M] ·_N A[N, M'] -> C[M, M']")

    assert [("A_M'[N, M']", "A")] == renames(found)
    assert {"M": 6, "N": None, "M'": 6} == sizes(found)


def test_a_bare_name_is_the_original() -> None:
    """`x` after `x[B, S]` still has T."""
    found = program("y[B, T] = exp(x[B, T])\nz[B, S] = exp(x[B, S])\nw = gelu(x)")

    assert ("B", "T") == tuple(dim.name for dim in found.statements[-1].result.dims)


def test_a_taken_name_is_skipped() -> None:
    """The renamed value's name is one that the text does not use."""
    found = program("y[T] = exp(x[T])\nz[S] = x[S] + x_S[S]")

    assert [("x_S2[S]", "x")] == renames(found)


def test_a_stated_gather_of_a_renamed_value() -> None:
    """`AllGather_X(x[S_X]) -> x[S]` is about the renamed value, and so is `x[S_X] -> x[S]`."""
    for line in ("AllGather_X(x[S_X]) -> x[S]", "x[S_X] -> x[S]"):
        plan = plan_of(f"mesh X=2\ny[T_X] = exp(x[T_X])\n{line}\nz[S] = x[S] ⊙ v[S]")
        check_numbers(plan)

        assert "x_S[S] = AllGather_X(x_S[S_X])" in [statement(step) for step in plan.forward]


@pytest.mark.parametrize(
    ("mention", "hint"),
    [
        ("x[B, R]", "R stands in neither"),
        ("x[B, T, S]", "a name is one value"),
        ("x[T, S]", "a name is one value"),
        ("x[S]", "a name is one value"),
    ],
)
def test_other_mentions_are_still_mistakes(mention: str, hint: str) -> None:
    """A typing mistake, another number of dims, and a name that is a dim of the value."""
    text = f"y[B, T] = exp(x[B, T])\nw[B, S] = v[B, S] + {mention}\n"
    found = wrong(text)

    assert ("SH207", mention) == (found.code, place(text, found))
    assert hint in (found.hint or "")


@pytest.mark.parametrize("line", ["x[T_X] -> x[S]", "x[S_X] -> x[T]"])
def test_a_value_is_not_laid_out_under_another_name(line: str) -> None:
    """A line from `x[T]` to `x[S]` would be a renaming in place."""
    text = f"mesh X\ny[T_X] = exp(x[T_X])\n{line}\nz[S] = v[S] ⊙ x[S]\n"
    found = wrong(text)

    assert ("SH207", line.split(" -> ")[1]) == (found.code, place(text, found))


# Sizes


def test_one_known_size_is_the_others() -> None:
    """A declared size, or one of --set, is both."""
    assert 8 == sizes(program(f"dims M=8\n{GRAM}"))["K"]
    assert 6 == sizes(program(GRAM, K=6))["M"]
    assert 6 == sizes(program(GRAM, M=6))["K"]
    assert 128 == sizes(program("A[N, 128] ·_N A[N, K] -> C[128, K]"))["K"]


def test_no_known_size_is_tied() -> None:
    """The printed program says `K=M`, and no circle comes of it."""
    assert "dims K=M\n" in print_plan(plan_of(f"mesh X\n{GRAM}"))
    circle = program("dims K=M\nA[N, M] ·_N A[N, K] -> C[M, K]\nB[K] + B[M] -> D[K, M]")
    assert {None} == set(sizes(circle).values())


def test_sizes_follow_along_a_chain() -> None:
    """K is M, M is L, and F is four times L."""
    found = program(f"dims F=4*L\n{GRAM}\nB[L] ⊙ B[K] ⊙ v[F] -> D[L, K, F]", M=3)

    assert {"F": 12, "N": None, "M": 3, "K": 3, "L": 3} == sizes(found)


def test_equal_sizes_are_fine_and_unequal_ones_are_not() -> None:
    """The mistake stands at the new name, and has both sizes."""
    assert 4 == sizes(program(f"dims M=4, K=4\n{GRAM}"))["K"]
    text = f"dims M=4, K=8\n{GRAM}"
    found = wrong(text)

    assert ("SH240", "K", 2, 22) == (found.code, place(text, found), found.line, found.column)
    assert "K is another name for dim M of A, but M=4 and K=8" == found.message
    assert "M=4 and K=6" in wrong(f"dims M=4\n{GRAM}", K=6).message


def test_a_size_in_terms_of_its_other_name() -> None:
    """`M=2*K` can't hold where M and K are one."""
    assert "but M=2*K" in wrong(f"dims M=2*K\n{GRAM}").message


def test_a_tied_size_has_to_divide() -> None:
    """The size that a dim gets from its other name is held against its axes."""
    found = wrong("mesh X=4\ndims M=6\nA[N, M] ·_N A[N, K_X] -> C[M, K_X]")

    assert ("SH211", "K=6" in found.message) == (found.code, True)


# Rename in the text


def test_a_rename_is_a_line_of_an_explicit_program() -> None:
    """What is printed reads back as the same plan, and formatting leaves it alone."""
    for text in (f"mesh X=2\n{GRAM}", ATTENTION):
        printed = print_plan(plan_of(text))

        assert printed == print_plan(plan_of(printed))
        assert "Rename_{" in printed
        lines = [line.strip() for line in printed.splitlines() if "Rename" in line]
        assert lines == [
            line.strip() for line in formatted(printed).splitlines() if "Rename" in line
        ]


def test_a_rename_of_one_dim() -> None:
    """A single name keeps its braces, and may stand without them."""
    text = "mesh X\nforward:\n  y[S_X] = Rename_{S}(x[T_X])\n"

    assert text == formatted(text.replace("_{S}", "_S"))
    assert "y[S_X] = Rename_{S}(x[T_X])" == statement(plan_of(text).forward[0])


def test_a_rename_in_an_ordinary_program() -> None:
    """It may stand inside an expression, and its result may list its dims in any order."""
    plan = plan_of("mesh X=2\ny[S, B] = Rename_{B,S}(x[B_X, T])\nz = exp(Rename_{C,B}(x[T, B_X]))")
    check_numbers(plan)

    assert [("y[B, S]", "x"), ("Tmp[B, C]", "x")] == renames(plan.program)


@pytest.mark.parametrize(
    ("call", "code", "at", "message"),
    [
        ("Rename_{B,S,R}(x[B, T])", "SH241", "Rename", "3 names: it needs one for each of its 2"),
        ("Rename_S(x[B, T])", "SH241", "Rename", "1 name: "),
        ("Rename(x[B, T])", "SH241", "Rename", "0 names: "),
        ("Rename_{S,S}(x[B, T])", "SH203", "S", "dim S stands twice in the subscript of Rename"),
        ("Rename_{B_X,S}(x[B, T])", "SH242", "B_X", "B_X ends in an axis"),
        ("Rename_{X,S}(x[B, T])", "SH242", "X", "X ends in an axis"),
        ("Rename_{B,S}(x[B, T], x)", "SH223", "Rename_{B,S}(x[B, T], x)", "1 argument, not 2"),
    ],
)
@pytest.mark.parametrize("heading", ["", "forward:\n"])
def test_a_wrong_rename(heading: str, call: str, code: str, at: str, message: str) -> None:
    """Another number of names, a name twice, axes in the subscript; in both kinds of program."""
    text = f"mesh X\n{heading}y = {call}\n"
    found = wrong(text)

    assert (code, at) == (found.code, place(text, found))
    assert message in found.message


def test_an_explicit_mention_with_other_dims_shows_the_line() -> None:
    """The hint is the line that is missing."""
    text = f"mesh X=2\nforward:\n  {GRAM}{{U_X}}\n"
    found = wrong(text)

    assert ("SH207", "A[N_X, K]") == (found.code, place(text, found))
    assert "A_K[N_X, K] = Rename_{N,K}(A[N_X, M])" in (found.hint or "")


# Sizes to run at


def test_a_run_keeps_what_belongs_together() -> None:
    """Sizes that are chosen or shrunk keep declared expressions and renamings."""
    chosen = choose(plan_of(f"mesh X\ndims F=4*M\n{GRAM}\nD[M, F_X] = v[M] ⊙ w[F_X]"))
    by_name = {dim.name: size for dim, size in chosen.dims.items()}
    assert by_name["M"] == by_name["K"]
    assert by_name["F"] == 4 * by_name["M"]

    small = dims_run(plan_of("mesh X\ndims D=4Ki, N=8, K=D/N, S=K - 2\ny[D, N] = A[D, N, K, S_X]"))
    assert small["D"] < 100
    assert (small["K"] * small["N"], small["K"] - 2) == (small["D"], small["S"])


def test_a_given_size_that_leaves_another_undivided() -> None:
    """The size that follows from given ones is held against its axes, as a given one is."""
    with pytest.raises(ShardlangError) as caught:
        choose(plan_of("dims S=2*T + 1\ny[T] = x[T, S_X]"), {"X": 2, "T": 8})

    assert ["SH601"] == [d.code for d in caught.value.diagnostics]
    assert "S is 17" in caught.value.diagnostics[0].message


def test_sizes_that_can_not_be_found() -> None:
    """No count is both: the mistake names the expression, and two given sizes of one dim differ."""
    with pytest.raises(ShardlangError) as caught:
        choose(plan_of("mesh X=2\ndims S=2*T + 1\ny[T] = x[T, S_X]"))
    assert ["SH608"] == [d.code for d in caught.value.diagnostics]

    with pytest.raises(ShardlangError) as caught:
        choose(plan_of(f"mesh X\n{GRAM}"), {"M": 4, "K": 6})
    assert ["SH607"] == [d.code for d in caught.value.diagnostics]


def test_attention_is_run_with_one_length() -> None:
    """The example's S and T shrink together, and --set of one sets both."""
    text = EXAMPLE.read_text()
    small = dims_run(plan_of(text))
    assert (small["S"], small["T"] < 4096) == (small["T"], True)

    given = dims_run(plan_of(text, T=16), {"T": 16})
    assert (16, 16) == (given["T"], given["S"])


def test_given_sizes_are_used_where_they_fit() -> None:
    """What is given stays; what is too large shrinks, and the text says so."""
    text = "mesh X\ndims I=4M, J=1Ki, K=2M\nC[I_X, K] = A[I_X, J] ·_J B[J, K]"
    plan = lower(load_text(text, overrides=Overrides(sizes={"J": 512}, mesh="X=32")))
    numbers = small_sizes(plan, {"J": 512, "X": 32})

    assert [32] == list(numbers.axes.values())
    assert [512] == [size for dim, size in numbers.dims.items() if dim.name == "J"]
    (note,) = size_notes(plan, numbers, {"J": 512, "X": 32})
    assert note.startswith("made small for this run: I=4000000 to ")
    assert "J=" not in note


def test_declared_sizes_that_are_small_are_used() -> None:
    """A program whose own sizes are small is run as it stands."""
    plan = plan_of("mesh X=4\ndims I=8, J=12, K=4\nC[I_X, K] = A[I_X, J] ·_J B[J, K]")

    assert {"I": 8, "J": 12, "K": 4} == dims_run(plan)
    assert () == size_notes(plan, small_sizes(plan))


def test_emitted_code_is_an_alias() -> None:
    """A Rename moves nothing and computes nothing; the module's own check keeps given sizes."""
    plan = plan_of(f"mesh X=32\ndims N=64, M=8\n{GRAM}")
    text = emit_jax(plan, {"X": 32})

    assert "    # A_K[N_X, K] = Rename_{N,K}(A[N_X, M])\n    A_K = A\n" in text
    assert "    axes = MESH_AXES" in text
    assert "X=32 to 2" in emit_jax(plan)


@pytest.mark.jax
@pytest.mark.parametrize("text", [f"mesh X=2\n{GRAM}", ATTENTION], ids=["gram", "attention"])
def test_verifies(text: str) -> None:
    """The emitted modules agree with the unsharded reference."""
    from shardlang.verify.runner import run_check

    result = run_check(plan_of(text), thorough=True)
    assert result.ok, result.to_text()


@pytest.mark.jax
def test_the_example_verifies_with_given_sizes() -> None:
    """Attention at sizes at which unscaled data would make its softmax all 0 and 1."""
    from shardlang.verify.runner import run_check

    given = {"X": 2, "Y": 2, "T": 16, "D": 256}
    found = load_text(EXAMPLE.read_text(), overrides=Overrides(sizes=given))
    result = run_check(lower(found), sizes=given, exact=False)

    assert result.ok, result.to_text()
    assert (16, 16, 256) == tuple(result.dims[name] for name in ("T", "S", "D"))
