"""Named blocks: a call means the block's lines, written out with the arguments in their place."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulator import check_numbers
from test_layers import priced

import shardlang as sl
from shardlang.diagnostics import Diagnostic, ShardlangError, to_dict
from shardlang.frontend.format import format_source
from shardlang.frontend.parser import parse
from shardlang.ir.printer import print_plan
from shardlang.passes.unroll import unroll_plan
from shardlang.source import Source

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
HEAD = "mesh X=2, Y=2\ndims B=8, T=4, D=16, F=32, E=8, G=8, S=4\n"
MLP = """
block mlp(x, W_in, W_out):
  h[B_X, F_Y] = gelu(x ·_D W_in)
  y = h ·_F W_out
"""


def lowered(text: str) -> str:
    """Give the plan of a program as text."""
    return print_plan(sl.lower(sl.parse(HEAD + text)))


def errors(text: str) -> list[Diagnostic]:
    """List the errors of a program."""
    return [each for each in sl.check(text) if each.severity == "error"]


def places(text: str) -> list[tuple[str, str]]:
    """List the errors of a program: the codes, and the text at their places."""
    return [(each.code, text[each.span.start : each.span.end]) for each in errors(text)]


# --- What a call means

SAME = {
    "a whole line": (
        MLP + "Out[B_X, D] = mlp(In[B_X, D_Y], W1[D, F_Y], W2[F_Y, D])",
        "mlp_h[B_X, F_Y] = gelu(In[B_X, D_Y] ·_D W1[D, F_Y])\nOut[B_X, D] = mlp_h ·_F W2[F_Y, D]",
    ),
    "an arrow": (
        MLP + "mlp(In[B_X, D_Y], W1[D, F_Y], W2[F_Y, D]) -> Out[B_X, D]",
        "mlp_h[B_X, F_Y] = gelu(In[B_X, D_Y] ·_D W1[D, F_Y])\nOut[B_X, D] = mlp_h ·_F W2[F_Y, D]",
    ),
    "a part of an expression, with other weights the second time": (
        MLP
        + "input x: [B_X, D_Y]\ny = x + mlp(x, W1[D_X, F], W2[F, D_X])\n"
        + "z = 2 * mlp(y, W3[D, F_Y], W4[F_Y, D]) - y",
        (
            "input x: [B_X, D_Y]\nmlp_h[B_X, F_Y] = gelu(x ·_D W1[D_X, F])\n"
            "y = x + mlp_h ·_F W2[F, D_X]\nmlp2_h[B_X, F_Y] = gelu(y ·_D W3[D, F_Y])\n"
            "z = 2 * (mlp2_h ·_F W4[F_Y, D]) - y"
        ),
    ),
    "an expression as an argument": (
        MLP + "input x: [B_X, D_Y]\ny = mlp(rmsnorm_D(x), W1[D_X, F], W2[F, D_X])",
        (
            "input x: [B_X, D_Y]\nmlp_x = rmsnorm_D(x)\nmlp_h[B_X, F_Y] = gelu(mlp_x ·_D W1[D_X, F])\n"
            "y = mlp_h ·_F W2[F, D_X]"
        ),
    ),
    "a block that calls blocks, and stands above them": (
        "block both(x, a, b):\n  u = mlp(x, a, b)\n  u + mlp(u, a, b)\n"
        + MLP
        + "input x: [B_X, D_Y]\ny = both(x, W1[D_X, F], W2[F, D_X])",
        (
            "input x: [B_X, D_Y]\nmlp_h[B_X, F_Y] = gelu(x ·_D W1[D_X, F])\n"
            "both_u = mlp_h ·_F W2[F, D_X]\nmlp2_h[B_X, F_Y] = gelu(both_u ·_D W1[D_X, F])\n"
            "y = both_u + mlp2_h ·_F W2[F, D_X]"
        ),
    ),
    "calls in arguments": (
        MLP + "input x: [B_X, D_Y]\ny = mlp(mlp(x, W1[D_X, F], W2[F, D]), W1, W2)",
        (
            "input x: [B_X, D_Y]\nmlp_h[B_X, F_Y] = gelu(x ·_D W1[D_X, F])\nmlp2_x = mlp_h ·_F W2[F, D]\n"
            "mlp2_h[B_X, F_Y] = gelu(mlp2_x ·_D W1)\ny = mlp2_h ·_F W2"
        ),
    ),
    "within layers": (
        MLP + "input x: [B_X, D_Y]\nlayers L=3:\n"
        "  x = x + mlp(x, W1[D_X, F_Y], W2[F_Y, D])\n  x = mlp(x, W3[D, F], W4[F, D])\n",
        (
            "input x: [B_X, D_Y]\nlayers L=3:\n  mlp_h[B_X, F_Y] = gelu(x ·_D W1[D_X, F_Y])\n"
            "  x = x + mlp_h ·_F W2[F_Y, D]\n  mlp2_h[B_X, F_Y] = gelu(x ·_D W3[D, F])\n"
            "  x = mlp2_h ·_F W4[F, D]\n"
        ),
    ),
    "a chain": (
        MLP + "Out[B_X, E] = mlp(In[B_X, D_Y], W1[D, F_Y], W2[F_Y, D]) · W3[D, E]",
        (
            "mlp_h[B_X, F_Y] = gelu(In[B_X, D_Y] ·_D W1[D, F_Y])\n"
            "Out[B_X, E] = mlp_h ·_F W2[F_Y, D] · W3[D, E]"
        ),
    ),
    "a result with a layout takes the name of the line": (
        "block f(x):\n  y[B_Y, D] = gelu(x)\nz = f(A[B_X, D])",
        "z[B_Y, D] = gelu(A[B_X, D])",
    ),
    "a result with a layout is asked for in another one": (
        "block f(x):\n  y[B_Y, D] = gelu(x)\nz[B_X, D] = f(A[B_X, D])",
        "f_y[B_Y, D] = gelu(A[B_X, D])\nz[B_X, D] = f_y",
    ),
    "a result with a layout in an expression": (
        "block f(x):\n  y[B_Y, D] = gelu(x)\nz[B_X, D] = 2 * f(A[B_X, D])",
        "f_y[B_Y, D] = gelu(A[B_X, D])\nz[B_X, D] = 2 * f_y",
    ),
    "a result that the head names": (
        "block f(x) -> y:\n  y = gelu(x)\n  y[B_X, D] -> y[B, D_X]\nz[B, D_X] = f(A[B_X, D])",
        "f_y = gelu(A[B_X, D])\nf_y[B_X, D] -> f_y[B, D_X]\nz[B, D_X] = f_y",
    ),
    "a nameless result with a layout": (
        "block f(x):\n  [B_Y, D] = gelu(x)\nz[B_X, D] = 2 * f(A[B_X, D])",
        "f_out[B_Y, D] = gelu(A[B_X, D])\nz[B_X, D] = 2 * f_out",
    ),
    "numbers and sizes": (
        "block f(x, c):\n  c * x + x\nz = f(A[B_X, D], 3)\ny = f(z, 1/|D|) + f(z, -2)",
        "z = 3 * A[B_X, D] + A[B_X, D]\ny = ((1/|D|) * z + z) + (-2 * z + z)",
    ),
    "an argument in another layout": (
        "block f(x):\n  x[B, D_X] + x\ninput x: [B_X, D]\nz[B, D_X] = f(x[B_Y, D])",
        "input x: [B_X, D]\nf_x = x[B_Y, D]\nz[B, D_X] = f_x[B, D_X] + f_x",
    ),
    "a parameter that is laid out anew": (
        "block f(x):\n  x[B_X, D] -> x[B, D_X]\n  gelu(x)\ninput u: [B_X, D]\nz = f(u)",
        "input u: [B_X, D]\nu[B_X, D] -> u[B, D_X]\nz = gelu(u)",
    ),
    "names of the file": (
        "block f(x):\n  x ⊙ g\ninput x: [B_X, D]\nparam g: [D]\ng2 = f(x)\nz = f(g2)",
        "input x: [B_X, D]\nparam g: [D]\ng2 = x ⊙ g\nz = g2 ⊙ g",
    ),
    "names that are there already": (
        MLP + "mlp_h[B, E] = A[B_X, E]\nmlp3_y = gelu(mlp_h)\n"
        "y = mlp(In[B_X, D_Y], W1[D, F_Y], W2[F_Y, D])\nz = mlp(y, W1, W2)",
        (
            "mlp_h[B, E] = A[B_X, E]\nmlp3_y = gelu(mlp_h)\n"
            "mlp2_h[B_X, F_Y] = gelu(In[B_X, D_Y] ·_D W1[D, F_Y])\ny = mlp2_h ·_F W2[F_Y, D]\n"
            "mlp4_h[B_X, F_Y] = gelu(y ·_D W1)\nz = mlp4_h ·_F W2"
        ),
    ),
    "other dims": (
        "block f(x, w):\n  h[B_X, F_Y] = softmax_D(x / |D|) ·_D w\n  h\n".replace(
            "  h\n", "  2 * h\n"
        )
        + "z = f_{D,F->E,G}(A[B_X, E], W1[E, G_Y])\ny = f_{B->S}(C[S, D], W2[D, F])",
        (
            "f_h[B_X, G_Y] = softmax_E(A[B_X, E] / |E|) ·_E W1[E, G_Y]\nz = 2 * f_h\n"
            "f2_h[S_X, F_Y] = softmax_D(C[S, D] / |D|) ·_D W2[D, F]\ny = 2 * f2_h"
        ),
    ),
    "other dims in a block that is called": (
        (
            "block f(x):\n  sum_D(x)\nblock g(x):\n  f(x) + f_{D->B}(x) + f_{D->F}(U[F])\n"
            "z = g_{B,F->E,G}(A[E_X, D])"
        ),
        "z = sum_D(A[E_X, D]) + sum_E(A[E_X, D]) + sum_G(U[G])",
    ),
    "other dims in comparisons and positions": (
        (
            "block causal(s):\n  softmax_S(where(index_S <= index_T + sum_S(g[S] ⊙ s), s, -inf))\n"
            "z = causal_{T,S->B,E}(A[B_X, E])"
        ),
        "z = softmax_E(where(index_E <= index_B + sum_E(g[E] ⊙ A[B_X, E]), A[B_X, E], -inf))",
    ),
    "other dims of calls that need them whole": (
        (
            "block heads(q):\n  rank_K(top_{G,K}(sum_N(Reshape_{D->N,G}(q))))\n"
            "z = heads_{D,K->F,S}(A[B_X, F])"
        ),
        "z = rank_S(top_{G,S}(sum_N(Reshape_{F->N,G}(A[B_X, F]))))",
    ),
    "Greek and LaTeX": (
        (
            "block \\text{schicht}(x, λ_{in}):\n  h_{μ} = x ⊙ λ_\\text{in}\n  h_μ + x\n"
            "$z = \\text{schicht}(A[B_X, D], V[D])$"
        ),
        "schicht_h_μ = A[B_X, D] ⊙ V[D]\nz = schicht_h_μ + A[B_X, D]",
    ),
    "a subscript that belongs to the name": (
        "block f_{in}(x):\n  gelu(x)\nz = f_{in}(A[B_X, D])\ny = f_in(z)",
        "z = gelu(A[B_X, D])\ny = gelu(z)",
    ),
    "the gradient of an argument": (
        (
            "block back(x, y):\n  [B, D] = dx[B, D] ⊙ y[B, D]\n"
            "forward:\n  Out[B, D] = square(A[B, D])\nbackward:\n"
            "  t[B, D] = 2 * A[B, D]\n  dA[B, D] = back(Out[B, D], t[B, D])\n"
        ),
        (
            "forward:\n  Out[B, D] = square(A[B, D])\nbackward:\n"
            "  t[B, D] = 2 * A[B, D]\n  dA[B, D] = dOut[B, D] ⊙ t[B, D]\n"
        ),
    ),
    "explicit lines, with a gradient": (
        (
            "block f(x):\n  x[B, D] = AllGather_X(x[B_X, D])\n  y[B, D] = gelu(x[B, D])\n"
            "block g(x):\n  s[B, D] = gelu_grad(x[B, D])\n  r[B, D] = dOut[B, D] ⊙ s[B, D]\n"
            "  [B_X, D] = Slice_{X,B}(r[B, D])\n"
            "forward:\n  Out[B, D] = f(A[B_X, D])\nbackward:\n  dA[B_X, D] = g(A[B, D])\n"
        ),
        (
            "forward:\n  A[B, D] = AllGather_X(A[B_X, D])\n  Out[B, D] = gelu(A[B, D])\nbackward:\n"
            "  g_s[B, D] = gelu_grad(A[B, D])\n  g_r[B, D] = dOut[B, D] ⊙ g_s[B, D]\n"
            "  dA[B_X, D] = Slice_{X,B}(g_r[B, D])\n"
        ),
    ),
}


@pytest.mark.parametrize(("text", "written"), SAME.values(), ids=SAME.keys())
def test_a_program_with_blocks_is_the_one_written_out(text, written):
    """Plans, costs and what reads back are those of the lines that a person writes out."""
    plan = sl.lower(sl.parse(HEAD + text))
    plain = sl.lower(sl.parse(HEAD + written))

    assert print_plan(plain) == print_plan(plan)
    assert priced(plain) == priced(plan)
    assert print_plan(plan) == print_plan(sl.lower(sl.parse(print_plan(plan))))


@pytest.mark.parametrize("text", [text for text, _ in SAME.values()], ids=SAME.keys())
def test_blocks_are_formatted(text):
    """`fmt` keeps the blocks and what they mean, and changes nothing the second time."""
    tidy = format_source(Source("t", HEAD + text))

    assert tidy == format_source(Source("t", tidy))
    assert text.count("block ") == tidy.count("block ")
    assert lowered(text) == print_plan(sl.lower(sl.parse(tidy)))


def test_the_transformer_is_the_model_written_out():
    """Its figures are those of the example without blocks."""
    blocks, plain = (
        sl.lower(sl.load(EXAMPLES / name)) for name in ("transformer.shd", "llama.shd")
    )

    assert priced(plain) == priced(blocks)
    assert len(plain.forward) == len(blocks.forward)


def test_the_layout_of_a_block():
    """Lines are indented by two, comments stay, and so do empty lines between blocks."""
    text = (
        "block  mlp( x,W_\\text{in} )->y :# a head\n      # above\n      h=x ·_D W_{in}   // behind\n"
        '      y = gelu( h )\n\ninclude   "a.shd"  # why\nz = f_{ D , F → E , G }( x )\n'
    )
    tidy = (
        "block mlp(x, W_in) -> y:  # a head\n  # above\n  h = x ·_D W_in  // behind\n"
        '  y = gelu(h)\n\ninclude "a.shd"      # why\nz = f_{D,F->E,G}(x)\n'
    )

    assert tidy == format_source(Source("t", text))


def test_values_of_calls_have_gradients_that_agree():
    """The numbers of two layers with two calls each are those of finite differences."""
    text = SAME["within layers"][0].replace("L=3", "L")
    plan = sl.lower(sl.parse(HEAD.replace("B=8", "B=4") + text))

    check_numbers(unroll_plan(plan, 2).plan, 1, {"X": 2, "Y": 2, "B": 4, "D": 16, "F": 32})


# --- Layers: names that come again, and parameters of several places


def test_a_second_block_of_layers_may_use_the_same_names():
    """The second `h` is another value; the plan is the one with another name."""
    text = (
        "input x: [B_X, D]\nsave h\nlayers L=2:\n  h = x ·_D W1[D, F_Y]\n  x = x + h ·_F W2[F_Y, D]\n"
        "layers M=3:\n  h = gelu(x) ·_D W3[D, F_Y]\n  x = x + h ·_F W4[F_Y, D]\nh = gelu(x)\n"
    )
    first, second = text.split("layers M")
    other = (
        first
        + "layers M"
        + second.replace("h = gelu(x) ·", "h2 = gelu(x) ·")
        .replace("h ·_F W4", "h2 ·_F W4")
        .replace("\nh = gelu(x)\n", "\nh3 = gelu(x)\n")
    )

    assert lowered(text) == lowered(other.replace("save h", "save h, h2"))


def test_a_parameter_of_layers_and_of_other_lines_is_one():
    """Tied weights: one leaf, whose gradients of both uses are added before they are reduced."""
    text = (
        "input x: [B_X, D]\nlayers L=2:\n  x = x ·_D W[D_Y, F] ·_F W2[F, D]\n"
        "Out[B_X, F] = x ·_D W[D_Y, F]\n"
    )
    plan = sl.lower(sl.parse(HEAD + text))
    found = print_plan(plan)

    assert "param W: [D_Y, F]\n" in found
    assert "param W2: [L, F, D]\n" in found
    assert 1 == found.count("dW[D_Y, F] = ")  # reduced once, behind both
    check_numbers(unroll_plan(plan, 2).plan, 3, {"X": 2, "Y": 2, "B": 8, "D": 16, "F": 32})


# --- What can be wrong


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("block f(x):\n  gelu(x)\nblock f(y):\n  gelu(y)\nz = f(A[B])", ("SH151", "f")),
        ("block gelu(x):\n  exp(x)\nz = A[B]", ("SH152", "gelu")),
        ("block sum_up(x):\n  exp(x)\nz = A[B]", ("SH152", "sum_up")),
        ("block f(x, x):\n  gelu(x)\nz = f(A[B], A)", ("SH153", "x")),
        ("block f(x, W_out):\n  x ⊙ W_ou\nz = f(A[B], C[B])", ("SH154", "W_out")),
        ("block f(x):\n  x = gelu(x)\nz = f(A[B])", ("SH155", "x")),
        ("block f(x) -> y:\n  z = gelu(x)\nz = f(A[B])", ("SH156", "y")),
        ("block f(x):\n  gelu(x)\n  y = x + x\nz = f(A[B])", ("SH156", "gelu(x)")),
        ("block f(x) -> y:\n  y = x + x\n  gelu(y)\nz = f(A[B])", ("SH156", "gelu(y)")),
        ("block f(x):\n  y = x + x\n  x[B] -> x[B_X]\nz = f(A[B])", ("SH156", "x[B] -> x[B_X]")),
        (MLP + "z = mlp(A[B, D])", ("SH157", "mlp(A[B, D])")),
        (MLP + "z = mlp(A[B, D], C[D, F], E[F, D], A)", ("SH157", "mlp(A[B, D], C[D, F], E[F, D], A)")),
        (MLP + "z = mlp()", ("SH157", "mlp()")),
        ("block f():\n  gelu(q[B])\nz = f(q)", ("SH157", "f(q)")),
        (MLP + "z = mlp_D(A[B], A, A)", ("SH206", "mlp_D")),
        (MLP + "z = mlp_{D}(A[B], A, A)", ("SH158", "mlp")),
        (MLP + "z = mlp_{D->E,F}(A[B], A, A)", ("SH158", "mlp")),
        (MLP + "z = mlp_{D,D->E,F}(A[B], A, A)", ("SH158", "mlp")),
        (MLP + "z = mlp_{Q->E}(A[B], A, A)", ("SH158", "mlp")),
        (MLP + "z = mlp_{D->E,F->G}(A[B], A, A)", ("SH101", "->")),
        ("block f(x):\n  gelu(x)\nz = f(A[B] -> A[B_X])", ("SH158", "A[B_X]")),
        ("block f(x):\n  gelu(x[B])\nz = f(2)", ("SH158", "2")),
        ("block f(x):\n  y = f(x)\nz = f(A[B])", ("SH159", "f(x)")),
        ("block f(x):\n  g(x)\nblock g(x):\n  h(f(x))\nblock h(x):\n  gelu(x)\nz = h(A[B])",
         ("SH159", "f(x)")),
        ("block f(x):\nz = A[B]", ("SH119", "block f(x):")),
        ("block f(x):\n  y = gelu(x)\n   z = exp(y)\nz = A[B]", ("SH120", "z = exp(y)")),
        ("block f(x):\n  layers L:\n    y = gelu(x)\nz = A[B]", ("SH121", "layers L:")),
        ("layers L:\n  block f(x):\n    y = gelu(x)\nz = A[B]", ("SH121", "block f(x):")),
        ("block f(x):\n  dims B=3\nz = A[B]", ("SH122", "dims B=3")),
        ("block f(x):\n  gelu(x)\n", ("SH215", "")),
        ("block f:\n  gelu(x)\n", ("SH101", ":")),
        ("block f(x[B]):\n  gelu(x)\n", ("SH103", "[")),
        ("block mlp(x):\n  gelu(x)\nz = mpl(A[B])", ("SH206", "mpl")),
        ("block f(x):\n  h = gelu(x)\n  h + h\nz = f(A[B])\ny = h", ("SH221", "h")),
    ],
)  # fmt: skip
def test_mistakes_have_a_code_and_a_place(text, expected):
    """The first mistake is the one, at its place, and it says what to do."""
    found = errors(text)

    assert expected == places(text)[0]
    assert found[0].hint or found[0].code in ("SH153", "SH101", "SH158")
    assert all(to_dict(each) and str(each.message) for each in found)


def test_an_unknown_call_names_the_blocks_of_the_program():
    """What is like a block is taken for it; else all blocks are listed."""
    text = MLP + "block attend(x):\n  gelu(x)\nz = {}(A[B])"

    assert "did you mean attend?" == errors(text.format("atend"))[0].hint
    far = errors(text.format("frobnicate"))[0]
    assert "or a block" in far.message
    assert "the blocks of the program are mlp and attend" in str(far.hint)


def test_no_mistake_follows_from_a_call_in_error():
    """What a wrong call would have defined is not said to be unknown."""
    text = MLP + "z = mlp(A[B, D])\ny = z + z\nlayers L:\n  q = mlp(z)\n  y = y + q\n"

    assert ["SH157", "SH157"] == [code for code, _ in places(text)]


def test_no_mistake_follows_from_a_broken_line_of_a_block():
    """Its line may be what reads the parameter, or the result."""
    text = "block f(x):\n  h = = x\n  2 * h\nblock g(x) -> y:\n  y = x ? 2\nz = f(A[B])\n"

    assert ["SH101", "SH102"] == [code for code, _ in places(text)]


def test_sizes_read_a_program_again():
    """The calls of the second reading lead to the same places."""
    text = MLP + "z = mlp(A[B, D], W1[D, F], W2[F, D])\n"
    plan = sl.lower(sl.parse("mesh X=2, Y=2\n" + text), sizes={"B": 6, "D": 2, "F": 2})

    assert 1 == len(plan.program.source.passages)
    assert (6, 2) == tuple(plan.program.sizes.known[name] for name in "BD")


def test_a_mistake_in_a_block_shows_the_calls():
    """It stands at the block's line, once, with the calls that lead there, innermost first."""
    text = (
        "block f(x):\n  gelu(x) ·_Q x\nblock g(x):\n  2 * f(x)\ninput A: [B]\ny = g(A)\nz = g(A)\n"
    )
    (found,) = errors(text)

    assert ("SH217", 2, 13) == (found.code, found.line, found.column)
    assert [("in f, called here", "f(x)"), ("in g, called here", "g(A)")] == [
        (label.text, text[label.span.start : label.span.end]) for label in found.labels
    ]
    assert "  |       ---- 4:7: in f, called here\n" in str(ShardlangError([found]))


def test_mistakes_behind_the_names_show_the_calls_too():
    """What lowering finds in a block's line stands there as well."""
    text = "block f(x):\n  AllGather_X(x[B_X, D])\nforward:\n  y[B, D_X] = f(A[B_X, D])\n"
    found = errors("mesh X=2\n" + text)

    assert (3, ["in f, called here"]) == (found[0].line, [x.text for x in found[0].labels])


def test_hints_count_arguments():
    """They show the head, and what is missing or too much."""
    few, many = errors(MLP + "z = mlp(A[B, D])\ny = mlp(A, A, A, 2 * gelu(A), A)\n")

    assert "mlp takes 3 arguments, and 1 stands here" == few.message
    assert "the block is mlp(x, W_in, W_out); W_in and W_out are missing" == few.hint
    assert "the block is mlp(x, W_in, W_out); 2 * gelu(A) and A have no parameter" == many.hint


def test_a_circle_of_blocks_is_shown():
    """The message goes around once."""
    text = "block f(x):\n  g(x)\nblock g(x):\n  f(x)\nz = f(A[B])\n"
    (found,) = errors(text)

    assert "blocks call one another in a circle: f → g → f" == found.message


def test_blocks_that_grow_without_end_are_refused():
    """Doubling forty times is answered in words, and so is a long way down."""
    doubled = "".join(f"block f{i + 1}(x):\n  y = f{i}(x)\n  f{i}(y)\n" for i in range(40))
    deep = "".join(f"block g{i + 1}(x):\n  2 * g{i}(x)\n" for i in range(300))
    start = "block f0(x):\n  y = gelu(x)\n  y + y\nblock g0(x):\n  gelu(x)\n"

    assert ["SH160"] == [code for code, _ in places(start + doubled + "z = f40(A[B])")]
    assert ["SH160"] == [code for code, _ in places(start + deep + "z = g300(A[B])")]
    assert [] == places(start + doubled + deep + "z = f5(A[B])\ny = g30(z)")


def test_deep_expressions_in_blocks_end_in_words():
    """A result that is too deep for another expression becomes a line; one deep by itself is refused."""
    nested = "".join(
        f"block f{i}(x):\n  {'gelu(' * 30}{f'f{i - 1}(x)' if i else 'x'}{')' * 30}\n"
        for i in range(9)
    )
    deep = f"block f(x):\n  {'gelu(' * 190}x{')' * 190}\nz = f(A[B])\n"

    assert [] == places(nested + "z = 2 * f8(A[B])")
    assert 9 * 30 + 1 == len(sl.parse(nested + "z = 2 * f8(A[B])").statements)
    assert ["SH237"] == [code for code, _ in places(deep)]
    assert format_source(Source("t", deep)).count("gelu") == 190


def test_a_tensor_may_be_called_block():
    """The words start a line only before a name and before a path."""
    program = sl.parse("block[B, D] ·_D include[D, F] -> Out[B, F]")

    assert ["block", "include"] == [leaf.array.name for leaf in program.leaves]


def test_a_block_and_a_tensor_may_have_one_name():
    """Brackets tell them apart."""
    assert lowered("block f(x):\n  gelu(x)\nf = f(A[B_X])\ny = f(f)") == lowered(
        "f = gelu(A[B_X])\ny = gelu(f)"
    )


# --- Random nests of calls


@st.composite
def nests(draw):
    """Draw blocks that call earlier ones, and the value of the last, computed by hand."""
    count = draw(st.integers(1, 5))
    text, meanings = "", []
    for number in range(count):
        terms, values = [], []
        for _ in range(draw(st.integers(1, 3))):
            factor = draw(st.integers(1, 3))
            if number and draw(st.booleans()):
                callee = draw(st.integers(0, number - 1))
                terms.append(f"{factor} * f{callee}({draw(st.sampled_from(['x', 'x + x']))})")
                inner = 2 if "+" in terms[-1].split("(")[1] else 1
                values.append(factor * inner * meanings[callee])
            else:
                terms.append(f"{factor} * x")
                values.append(factor)
        named = draw(st.booleans())
        lines = [f"h = {' + '.join(terms)}", "h + h"] if named else [" + ".join(terms)]
        meanings.append(sum(values) * (2 if named else 1))
        text += f"block f{number}(x):\n" + "".join(f"  {line}\n" for line in lines)
    return text + f"z[B_X] = f{count - 1}(A[B_X])\n", meanings[-1]


@settings(max_examples=40, deadline=None)
@given(nests())
def test_nests_of_calls_compute_what_they_say(case):
    """Blocks of sums are multiples of their argument, and the plan's coefficients say which."""
    text, expected = case
    plan = sl.lower(sl.parse("mesh X=2\n" + text), forward_only=True)
    values = {"A": 1}
    for step in plan.forward:
        coefficients = getattr(step.op, "coefficients", ())
        numbers = [int(each.value) for each in coefficients]
        parts = zip(numbers, step.inputs, strict=True)
        values[step.output.name] = sum(n * values[each.name] for n, each in parts)

    assert expected == values["z"]
    tidy = format_source(Source("t", text))
    assert tidy == format_source(Source("t", tidy))
    assert parse(Source("t", tidy)).items
