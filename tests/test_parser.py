"""Every form of the notation, and what the parser makes of it; places of nodes and of mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import lark
import pytest
import sketches

from shardlang.diagnostics import Diagnostic, ShardlangError
from shardlang.frontend import grammar, parser
from shardlang.frontend.syntax import Call, Definition, LeafDecl, Product, TensorRef
from shardlang.source import Source, Span


def items(text: str) -> list[str]:
    """Parse a text and sketch its statements."""
    return [sketches.item(item) for item in parser.parse(Source("t", text)).items]


def one(text: str) -> str:
    """Parse a text of one statement and sketch it."""
    (item,) = items(text)
    return item


def mistakes(text: str) -> list[Diagnostic]:
    """Parse a text that is wrong."""
    with pytest.raises(ShardlangError) as caught:
        parser.parse(Source("t", text))
    return list(caught.value.diagnostics)


def check_mistake(text: str, line: int, column: int, code: str, fragment: str) -> Diagnostic:
    """Parse a text with one mistake and compare its place, code and words."""
    (found,) = mistakes(text)

    assert (line, column, code) == (found.line, found.column, found.code)
    assert fragment in found.message
    return found


SECTION_1 = {
    "A[I, J]": "A[I J]",
    "A[I_X, J_Y]": "A[I_X J_Y]",
    "A[I_{X}, J_{Y}]": "A[I<X> J<Y>]",
    "A[I/X, J/Y]": "A[I/X J/Y]",
    "A [I / X, J / Y]": "A[I/X J/Y]",
    "A[I_XY, J]": "A[I_XY J]",
    "A[I_{XY}, J]": "A[I<XY> J]",
    "A[I_{X,Y}, J]": "A[I<X,Y> J]",
    "A[I/X/Y, J]": "A[I/X/Y J]",
    "A[I, J]{U_X}": "A[I J]{U X}",
    "A[I, J] { U_X }": "A[I J]{U X}",
    r"A[I, J]\{U_X\}": "A[I J]{U X}",
    r"A[I, J] \{ U_X \}": "A[I J]{U X}",
    r"A[I, J]\\{U_X\\}": "A[I J]{U X}",
    r"A[I, J]\{\ U_X \}": "A[I J]{U X}",
    "A[I]{U.X}": "A[I]{U X}",
    "A[I]{U.XY}": "A[I]{U XY}",
    "A[I]{U_{XY}}": "A[I]{U XY}",
    "A[I]{U_{X,Y}}": "A[I]{U X,Y}",
    "A[I]{U_X, U_Y}": "A[I]{U X,Y}",
    "A[I]{U_data}": "A[I]{U data}",
    r"A[I]{U_\text{data}}": "A[I]{U data}",
    "A[I]{max_X}": "A[I]{max X}",
    "A[I]{min_{X}}": "A[I]{min X}",
    "A{U_X}": "A{U X}",
    "W^T[F, D]": "W[F D]^T",
    "W[D, F]^T": "W[D F]^T",
    "W[D, F]^{T}": "W[D F]^T",
    r"W[D, F]^\top": "W[D F]^T",
    r"W[D, F]^{\top}": "W[D F]^T",
    "W^{T}[F, D]": "W[F D]^T",
    "W[D]^T{U_X}": "W[D]{U X}^T",
    "W[D]{U_X}^T": "W[D]{U X}^T",
    "bf16[D_X, F_Y]": ":bf16[D_X F_Y]",
    "W: bf16[D_X, F_Y]": "W:bf16[D_X F_Y]",
    "W ∈ bf16[D, F]": "W:bf16[D F]",
    r"W \in bf16 [D, F]": "W:bf16[D F]",
    r"W_{in} \in \text{bf16}[D, F]": "W_in:bf16[D F]",
    r"\text{bf16[B, D]}": ":bf16[B D]",
    r"\text{In[B, D]}^T": "In[B D]^T",
    "f8e4m3[D]": ":f8e4m3[D]",
    "s[]": "s[]",
    "int8[128, 2048]": ":int8[#128 #2048]",
    "int8[128, 128']": ":int8[#128 #128']",
    "int8[48_000, 128_X]": ":int8[#48_000 #128<X>]",
    "int8[128_{X,Y}]": ":int8[#128<X,Y>]",
    "[A_X, B]": "[A_X B]",
    "[F]{U_Y}": "[F]{U Y}",
    "W[D_X, D']": "W[D_X D']",
    "W[D'_X, D′]": "W[D'_X D']",
    "A'[I_X]": "A'[I_X]",
    "A[d_model, d_model_X]": "A[d_model d_model_X]",
    "A[d_{model}]": "A[d<model>]",
    "A[d_{model}_X]": "A[d_model_X]",
    "A[d_{model}_{X}]": "A[d_model<X>]",
    r"A[d_\text{model}, d\_model]": "A[d<model> d_model]",
    "A[B_data]": "A[B_data]",
    "A[B_{data,fsdp}]": "A[B<data,fsdp>]",
    "W_in[D]": "W_in[D]",
    "W_{in}[D]": "W_in[D]",
    "W_{in1}[D]": "W_in1[D]",
    "W_{1}[D]": "W_1[D]",
    r"W_\text{in}[D]": "W_in[D]",
    r"W_{\text{in}} [D]": "W_in[D]",
    r"\text{In}[B_X, D]": "In[B_X D]",
    r"\mathbf{A}[I_X]": "A[I_X]",
    r"\textbf{A}[I]": "A[I]",
    r"\text{W}_\text{in}[D]": "W_in[D]",
    r"\text{W_in}[D]": "W_in[D]",
    r"\mathbf{W}_{in}^T[F, D]": "W_in[F D]^T",
    "$A[I]$": "A[I]",
    "$$A[I] $$": "A[I]",
    "Ωβ[Größe, 批]": "Ωβ[Größe 批]",
    "e\u0301[I]": "\u00e9[I]",
    "ﬁ[I]": "fi[I]",
    "input[B, D]": "input[B D]",
    "mesh[I]": "mesh[I]",
    "save[I] + dims[I]": "(+ save[I] dims[I])",
}

SECTION_2 = {
    "A[I, J] · B[J]": "(dot A[I J] B[J])",
    "A[I] ·_D B[D]": "(dot_D A[I] B[D])",
    "A[I] ·_{D,H} B[D]": "(dot_D,H A[I] B[D])",
    "A[I] ·_{D} B[D]": "(dot_D A[I] B[D])",
    "A[I] ·_d_model B[D]": "(dot_d_model A[I] B[D])",
    "A[I] ·_D' B[D]": "(dot_D' A[I] B[D])",
    "A[I] ⋅ B[D]": "(dot A[I] B[D])",
    "A[I] • B[D]": "(dot A[I] B[D])",
    r"A[I] \cdot B[D]": "(dot A[I] B[D])",
    r"A[I] \cdot_D B[D]": "(dot_D A[I] B[D])",
    r"A[I] \cdot_{D} B[D]": "(dot_D A[I] B[D])",
    r"A[I] \cdot_{d_{model}} B[D]": "(dot_d_model A[I] B[D])",
    "A[I] × B[D]": "(dot A[I] B[D])",
    "A[I] ×_D B[D]": "(dot_D A[I] B[D])",
    r"A[I] \times_D B[D]": "(dot_D A[I] B[D])",
    r"A[I] \times_{D} B[D]": "(dot_D A[I] B[D])",
    "A[I] *_D B[D]": "(star_D A[I] B[D])",
    "A[I] *_{N,H} B[D]": "(star_N,H A[I] B[D])",
    "A[I] @ B[D]": "(dot A[I] B[D])",
    "A[I] @_D B[D]": "(dot_D A[I] B[D])",
    "A[I] ·_LOCAL B[D]": "(dot_LOCAL A[I] B[D])",
    r"A[I] \cdot_\text{LOCAL} B[D]": "(dot_LOCAL A[I] B[D])",
    r"A[I] \cdot_{LOCAL} B[D]": "(dot_LOCAL A[I] B[D])",
    "A[I] ⊙ B[I]": "(hadamard A[I] B[I])",
    r"A[I] \odot B[I]": "(hadamard A[I] B[I])",
    "A[I] ∘ B[I]": "(hadamard A[I] B[I])",
    "A * B": "(star A B)",
    "A + B": "(+ A B)",
    "A - B − C": "(- (- A B) C)",
    "A / B": "(/ A B)",
    "A + B * C - D": "(- (+ A (star B C)) D)",
    "A · B / C ⊙ D * E": "(star (hadamard (/ (dot A B) C) D) E)",
    "(A + B) * C": "(star (+ A B) C)",
    "A - (B - C)": "(- A (- B C))",
    "-A[I]": "(neg A[I])",
    "-A · -B": "(dot (neg A) (neg B))",
    "A - -B": "(- A (neg B))",
    "2 * A[I]": "(star 2 A[I])",
    "0.5 * A[I] / 1e-6": "(/ (star 0.5 A[I]) 1e-6)",
    "A[I] / |B|": "(/ A[I] |B|)",
    r"A[I] / \lvert d_{model} \rvert": "(/ A[I] |d_model|)",
    "gelu(A[I])": "(gelu A[I])",
    r"\text{gelu}(A[I])": "(gelu A[I])",
    "gelu_grad(A[I])": "(gelu_grad A[I])",
    "gelu_{grad}(A[I])": "(gelu_grad A[I])",
    "equal(A, B)": "(equal A B)",
    "f()": "(f)",
    "sum_B(A[B])": "(sum<B> A[B])",
    "sum_{B,D}(A[B, D])": "(sum<B,D> A[B D])",
    "sum_d_model(A)": "(sum<d_model> A)",
    "sum_{d_{model}}(A)": "(sum<d_model> A)",
    "mean_B(A)": "(mean<B> A)",
    "max_B(A)": "(max<B> A)",
    "softmax_S(A[S])": "(softmax<S> A[S])",
    r"\text{softmax}_S(A[S])": "(softmax<S> A[S])",
    "rmsnorm_D(A)": "(rmsnorm<D> A)",
    "foo_{X}(A)": "(foo<X> A)",
    "foo_bar(A)": "(foo_bar A)",
    "AllGather_X(A[I_X, J])": "(AllGather<X> A[I_X J])",
    "AllGather_{XY}(A[I_XY])": "(AllGather<XY> A[I_XY])",
    "AllGather_{X,Y}(A)": "(AllGather<X,Y> A)",
    "AllGather(A[I_X])": "(AllGather A[I_X])",
    "AllGather_data_par(A)": "(AllGather<data_par> A)",
    r"\textbf{AllGather}_{XY}(A[I])": "(AllGather<XY> A[I])",
    r"\text{AllGather}_X([B_X])": "(AllGather<X> [B_X])",
    "ReduceScatter_{X,J}(A[I,J]{U_X})": "(ReduceScatter<X,J> A[I J]{U X})",
    "ReduceScatter_{X, J}(A)": "(ReduceScatter<X,J> A)",
    "AllReduce_X(A[I]{U_X})": "(AllReduce<X> A[I]{U X})",
    "AllToAll_{X,J}(A[I_X, J])": "(AllToAll<X,J> A[I_X J])",
    "AllToAll_{Z->B}(A)": "(AllToAll<Z,B> A)",
    r"AllToAll_{Z \to B}(A)": "(AllToAll<Z,B> A)",
    "Slice_{X,J}(A[I,J])": "(Slice<X,J> A[I J])",
    "Mask_X(b[D])": "(Mask<X> b[D])",
    "Permute(A[I_XY] -> A[I_YX])": "(Permute A[I_XY] -> A[I_YX])",
    "AllReduce_Y A[I_X,J]{U_Y} -> A[I_X,J]": "A[I_X J] -> (AllReduce<Y>! A[I_X J]{U Y})",
    r"\textbf{AllReduce}_Y A[I] \{U_Y\} \rightarrow A[I]": "A[I] -> (AllReduce<Y>! A[I]{U Y})",
    "AllGather_X A": "(AllGather<X>! A)",
    "AllGather_X[I, J_X] -> A[I, J]": "A[I J] -> (AllGather<X>! [I J_X])",
    r"\textbf{ReduceScatter}_{Y,J} : A[I,J] \{U_Y\} \to A[I, J_Y]": (
        "A[I J_Y] -> (ReduceScatter<Y,J>! A[I J]{U Y})"
    ),
    "AllReduce_Y AllGather_X(A)": "(AllReduce<Y>! (AllGather<X> A))",
    "AllGather_X A · B": "(dot (AllGather<X>! A) B)",
    "C[I] = A[I]": "C[I] = A[I]",
    "C = A[I]": "C = A[I]",
    "A[I] -> C[I]": "C[I] -> A[I]",
    "A[I] → C[I]": "C[I] -> A[I]",
    r"A[I] \to C[I]": "C[I] -> A[I]",
    r"A[I] \rightarrow C[I]": "C[I] -> A[I]",
    r"A[I] \rightarrow &\ C[I] \\": "C[I] -> A[I]",
    "Out: f32[B, D] = A[B, D]": "Out:f32[B D] = A[B D]",
    "A[I_X, J] -> A[I, J_X]": "A[I J_X] -> A[I_X J]",
    r"In [B / X, D] \cdot W_{in} [D / X, F] \to Out [B / X, D]": (
        "Out[B/X D] -> (dot In[B/X D] W_in[D/X F])"
    ),
    r"$Tmp [B_{X}, F] = In [B_{X}, D] \times_{D} W_{in} [D, F]^{T}$ # comment": (
        "Tmp[B<X> F] = (dot_D In[B<X> D] W_in[D F]^T)"
    ),
    "In[B/X, D] · W_in[D, F] · W_out[F, D] -> Out[B/X, D]": (
        "Out[B/X D] -> (dot (dot In[B/X D] W_in[D F]) W_out[F D])"
    ),
    "A[I] // comment": "A[I]",
    "A[I] # comment": "A[I]",
    "A[B/X // comment\n, D]": "A[B/X D]",
}

SECTION_3 = {
    "mesh X, Y": "mesh X Y",
    "mesh X=16, Y=4": "mesh X=16 Y=4",
    "mesh P=2 @dcn, X=16 @ici(2), Y=4": "mesh P=2@dcn X=16@ici*2 Y=4",
    "mesh P @dcn, data": "mesh P@dcn data",
    "hardware tpu_v5p": "hardware tpu_v5p",
    "hardware ./my/chip.toml # mine": "hardware ./my/chip.toml",
    "hardware /etc/a-b.toml": "hardware /etc/a-b.toml",
    'hardware "my #1 chip.toml"': "hardware my #1 chip.toml",
    "dims B=3M": "dims B=3000000",
    "dims B=32Ki, T=1Mi, S=1Gi, G=2G, k=2k, H=1T": (
        "dims B=32768 T=1048576 S=1073741824 G=2000000000 k=2000 H=1000000000000"
    ),
    "dims B=48_000, C=3e6, D=1.5k, E=5e-1": "dims B=48000 C=3000000 D=1500 E=1/2",
    "dims F=4*D": "dims F=(4*D)<D>",
    "dims F=(D + E)/2 - 1": "dims F=(((D+E)/2)-1)<D,E>",
    "dims F=2**3, G=2^10": "dims F=(2**3) G=(2**10)",
    "dims F=2*3**2*4": "dims F=((2*(3**2))*4)",
    r"dims d_{ff} = 4 \cdot |d_{model}|": "dims d_ff=(4*d_model)<d_model>",
    "dtype bf16": "dtype bf16",
    "input In: [B_X, D_Y]": "input In[B_X D_Y]",
    "input In[B_X, D_Y], V: f32[D]": "input In[B_X D_Y] V:f32[D]",
    "input A[I]{U_X}": "input A[I]{U X}",
    "param W_in: bf16[D_X, F_Y]": "param W_in:bf16[D_X F_Y]",
    "param W ∈ bf16[D]": "param W:bf16[D]",
    "optimizer adam": "optimizer adam",
    "save Tmp": "save Tmp",
    "save Tmp, P": "save Tmp,P",
    "save all": "save all",
    'include "attention.shd"': "include attention.shd",
    'include "../a b/c.shd"  # why': "include ../a b/c.shd",
    r"f_{D,F->E,G}(A)": "(f<D,F,E,G> A)",
}

SECTION_6 = {
    "forward:": "section forward",
    "backward :  # comment": "section backward",
    "forward[I] = A[I]": "forward[I] = A[I]",
    "In[L_Z, B, D][i]": "In[L_Z B D]@i",
    "In [L / Z, B, D] [i]": "In[L/Z B D]@i",
    "x[B][0]": "x[B]@0",
    "In[L_Z, D][i] · W[L_Z, D, F][i] -> Out[L_Z, F][i]": (
        "Out[L_Z F]@i -> (dot In[L_Z D]@i W[L_Z D F]@i)"
    ),
}

ALL = SECTION_1 | SECTION_2 | SECTION_3 | SECTION_6


@pytest.mark.parametrize(("text", "expected"), ALL.items())
def test_each_form_has_its_tree(text: str, expected: str):
    """Every form of the specification is read as the specification says."""
    assert expected == one(text)


def test_the_grammar_is_strict():
    """No two rules and no two terminals of the grammar compete."""
    grammar.build_parser(strict=True)


def test_a_line_goes_on_in_brackets_and_after_operators():
    """A line end inside brackets, after an operator, or before one, ends nothing."""
    text = """\
mesh X=16,
     Y=4
A[I,
  J_X] ·_J # the product
  B[J_X,
    K]
  -> C[I, K]
D[I] =
  A[I]
  + B[I]
E[I] = A[I] \\cdot_\\text{LOCAL}
B[I]
forward:
"""

    assert [
        "mesh X=16 Y=4",
        "C[I K] -> (dot_J A[I J_X] B[J_X K])",
        "D[I] = (+ A[I] B[I])",
        "E[I] = (dot_LOCAL A[I] B[I])",
        "section forward",
    ] == items(text)


def test_byte_order_mark_and_crlf_are_accepted():
    """A byte-order mark and line ends of two characters leave no trace in the tree."""
    assert ["mesh X", "A[I_X]"] == items("\ufeffmesh X\r\n\r\nA[I_X]\r\n")


def test_spans_are_exact():
    """Every node's place is the text that it was read from."""
    text = (
        r"mesh X"
        "\n"
        r"C[I_X, K]{U_Y} = (A[I] + W_\text{in}[I/X]) ·_{D,H} AllGather_X(B: f32[J])"
    )
    tree = parser.parse(Source("t", text))
    definition = tree.items[1]
    assert isinstance(definition, Definition)
    product = definition.expr
    assert isinstance(product, Product)
    call = product.right
    assert isinstance(call, Call)
    argument = call.arguments[0]
    assert isinstance(argument, TensorRef)

    def at(span: Span) -> str:
        return text[span.start : span.end]

    assert definition.target is not None
    assert definition.target.dims is not None
    assert definition.target.marker is not None
    assert product.subscript is not None
    assert call.subscript is not None
    assert argument.name is not None
    assert argument.dtype is not None
    assert [
        "C[I_X, K]{U_Y}", "C", "I_X", "{U_Y}", "Y",
        r"(A[I] + W_\text{in}[I/X])", "·_{D,H}", "H",
        "AllGather_X(B: f32[J])", "AllGather", "X", "B: f32[J]", "f32",
    ] == [
        at(span)
        for span in (
            definition.target.span, definition.target.name.span, definition.target.dims[0].span,
            definition.target.marker.span, definition.target.marker.words[0].span,
            product.left.span, product.operator, product.subscript[1].span,
            call.span, call.head.span, call.subscript[0].span, argument.span, argument.dtype.span,
        )
    ]  # fmt: skip


def test_comments_are_kept_with_their_places():
    """A comment knows its text and whether it stands alone."""
    text = "# one\nA[I, # two\n  J] // three\n  // four\n"
    comments = parser.parse(Source("t", text)).comments

    assert [("one", True), ("two", False), ("three", False), ("four", True)] == [
        (c.text, c.alone) for c in comments
    ]
    assert "// three" == text[comments[2].span.start : comments[2].span.end]


def test_keywords_declare_only_before_a_name():
    """`input` is a declaration in front of a name and a tensor elsewhere."""
    tree = parser.parse(Source("t", "input input: [B]\nparam = input[B]"))

    assert isinstance(tree.items[0], LeafDecl)
    assert isinstance(tree.items[1], Definition)


MISTAKES = [
    ("C[I] = A[I] +", 1, 14, "SH101", "the line ends where a tensor"),
    ("C[I] =", 1, 7, "SH101", "the line ends"),
    ("A[I] ->   # nothing", 1, 8, "SH101", "the line ends"),
    ("C = A[I] · · B[I]", 1, 12, "SH101", "expected a tensor, a number or `(`, not `·`"),
    ("A[,] = B[I]", 1, 3, "SH101", "expected a dim"),
    ("A[B/2] = C[]", 1, 5, "SH101", "expected a mesh axis, not `2`"),
    ("C[I]{} = A[I]", 1, 6, "SH101", "`U_X`"),
    ("A[I] = B[I] = C[I]", 1, 13, "SH101", "expected the end of the line"),
    ("mesh 3", 1, 6, "SH101", "not `3`"),
    ("dims B=", 1, 8, "SH101", "a size"),
    ("dims B", 1, 7, "SH101", "`=`"),
    ("A[I] ? B[I]", 1, 6, "SH102", "`?`"),
    ("A[I] ·_D B[I];", 1, 14, "SH102", "`;`"),
    ("A[I] + \u200bB[I]", 1, 8, "SH102", "U+200B (zero width space)"),
    (r"C = \foo(A)", 1, 5, "SH102", r"`\foo`"),
    ("A[I, J · B[J, K]", 1, 8, "SH103", "`·` comes before `[` is closed"),
    ("C[I] = (A[I] + B[I]", 1, 20, "SH103", "the line ends before `(` is closed"),
    ("A[I]{U_X = B[I]", 1, 10, "SH103", "before `{` is closed"),
    ("Z = sum_{B(A)", 1, 11, "SH103", "before `{` is closed"),
    ("A[I) = B[I]", 1, 4, "SH104", "`)` does not close `[`"),
    ("A[I]] = B[I]", 1, 5, "SH104", "`]` closes nothing"),
    ("A[I_X J] = B[I]", 1, 7, "SH105", "between `I_X` and `J`"),
    ("mesh X=16 Y=4", 1, 11, "SH105", "between `16` and `Y`"),
    ("C = equal(A B)", 1, 13, "SH106", "between `A` and `B`"),
    ("A[I, J] B[J, K]", 1, 9, "SH106", "between `A[I, J]` and `B`"),
    ("A B", 1, 3, "SH106", "between `A` and `B`"),
    ("C[I] = 2A[I]", 1, 9, "SH106", "between `2` and `A`"),
    ("dims F=4D", 1, 9, "SH106", "between `4` and `D`"),
    ("C := A[I]", 1, 3, "SH107", "`:=`"),
    ("A[I] => B[I]", 1, 6, "SH107", "`=>`"),
    ("B[I] <- A[I]", 1, 6, "SH107", "`<-`"),
    ("A + B = C[I]", 1, 1, "SH108", "left of `=`"),
    ("C[I] -> A + B", 1, 9, "SH108", "right of `->`"),
    ("param f(A)", 1, 8, "SH101", "not `(`"),
    ("Tmp", 1, 1, "SH109", "`Tmp` alone"),
    ("mesh", 1, 1, "SH109", "`mesh` alone"),
    ("A€[I] = B[I]", 1, 1, "SH110", "`A€`"),
    ("W_{in,out}[I] = B[I]", 1, 1, "SH110", "`W_{in,out}`"),
    ("A_[I] = B[I]", 1, 1, "SH110", "`A_`"),
    ("A[I]{X} = B[I]", 1, 6, "SH111", "`X`"),
    ("A[I]{U} = B[I]", 1, 6, "SH111", "`U`"),
    ("A[I]{U_X, max_Y} = B[I]", 1, 11, "SH111", "another kind"),
    ("A[I]{U_X}{U_Y} = B[I]", 1, 10, "SH112", "once"),
    ("A[I][i][j] = B[I]", 1, 8, "SH112", "once"),
    ("dims B=1e400", 1, 8, "SH116", "`1e400`"),
    ("dims B=10^400", 1, 11, "SH116", "exponent"),
    ("dims B=9**9**9", 1, 11, "SH116", "out of range"),
    ("dims B=2**N", 1, 11, "SH116", "whole number"),
    ("dims B=4/0", 1, 10, "SH116", "zero"),
    ("A[I, 3M] = B[I]", 1, 6, "SH116", "whole number"),
    ("forward: A = B[I]", 1, 1, "SH117", "`forward:`"),
    ("mesh: X=4", 1, 5, "SH101", "expected a name, not `:`"),
    ("foward:", 1, 8, "SH101", "the line ends"),
    ("A[I] ` B[I]", 1, 6, "SH102", "a backquote"),
    ("C[I] = A[I]^2", 1, 12, "SH101", "not `^`"),
    ("# nothing here\n\n", 1, 15, "SH118", "empty"),
    ("", 1, 1, "SH118", "empty"),
]


@pytest.mark.parametrize(("text", "line", "column", "code", "fragment"), MISTAKES)
def test_each_mistake_has_its_place_and_words(
    text: str, line: int, column: int, code: str, fragment: str
):
    """A mistake is reported once, where it is, in the words of the notation."""
    found = check_mistake(text, line, column, code, fragment)

    assert "token" not in (found.message + (found.hint or "")).lower()


def test_an_open_bracket_is_shown_where_it_was_opened():
    """An unclosed bracket brings its opening as a second place."""
    (found,) = mistakes("C[I] = sum_B(A[I, J = B[I]")

    assert ["["] == [found.source.text[label.span.start] for label in found.labels]


@pytest.mark.parametrize(
    ("text", "fragment"),
    [
        ("foward:", "`forward:` or `backward:`"),
        ("C[I] = A[I] ** 2", "`square(A)`"),
        ("dims B 3", "`dims B=3M, D=5120, F=4*D`"),
        ("A[I_X J] = B[I]", "`I_X, J`"),
        ("Tmp", "`Tmp[B, D]`"),
    ],
)
def test_hints_show_what_to_write(text: str, fragment: str):
    """A hint has the right form in it."""
    (found,) = mistakes(text)

    assert fragment in (found.hint or "")


def test_one_bad_line_gives_one_error_and_the_rest_is_read():
    """Reading starts anew at the next line, whatever is wrong with this one."""
    text = """\
mesh X=16 Y=4
A[I, J = B[I]
C[I] = A[I]
C[I] = A[I] ·
D[I] = A[I] B[I]
E[I] = (A[I] + B[I]
F[I = A[I]
G[I] := A[I]
"""

    assert [(1, "SH105"), (2, "SH103"), (4, "SH101"), (5, "SH106"), (6, "SH103"), (7, "SH103"),
            (8, "SH107")] == [(d.line, d.code) for d in mistakes(text)]  # fmt: skip


def test_a_dangling_operator_does_not_swallow_the_next_statement():
    """The line after a dangling operator is read by itself if it is a statement."""
    (found,) = mistakes("C[I] = A[I] +\nD[I] = A[I]\n")

    assert (1, 14) == (found.line, found.column)


def test_a_sign_at_the_start_of_a_line_can_start_a_statement():
    """A line that starts with a minus goes on with the line before it only where that can be."""
    assert ["mesh X", "(neg A[I])"] == items("mesh X\n-A[I]")
    assert ["(- B[I] A[I])"] == items("B[I]\n-A[I]")


def test_the_grammar_is_found_in_both_homes(tmp_path, monkeypatch):
    """The grammar is read from the package where it is installed, else from beside the package."""
    assert "start: statement" in grammar.grammar_text()

    package = tmp_path / "shardlang"
    monkeypatch.setattr(grammar, "_HERE", package / "frontend")
    for home, text in ((tmp_path, "beside"), (package, "installed")):
        (home / "grammar").mkdir(parents=True)
        (home / "grammar" / "shardlang.lark").write_text(text, encoding="utf-8")

        assert text == grammar.grammar_text()


def stored_tables() -> str:
    """Read the stored tables, if they are for the Lark that is installed."""
    text = Path(grammar.__file__).with_name("tables.json").read_text(encoding="utf-8")
    if json.loads(text)["lark"] != lark.__version__:
        pytest.skip("the tables are for another version of Lark, so that they are not used")
    return text


def test_the_tables_fit_the_grammar():
    """The stored tables are those of the grammar (`python -m shardlang.frontend.grammar`)."""
    assert grammar.fingerprint() == json.loads(stored_tables())["grammar"]
    assert grammar.fingerprint() == json.loads(grammar.tables_text())["grammar"]


def test_tables_that_do_not_fit_are_not_used(tmp_path, monkeypatch):
    """With other tables, or none, the parser is built from the grammar."""
    (tmp_path / "shardlang" / "frontend").mkdir(parents=True)
    (tmp_path / "grammar").mkdir()
    changed = 'start: "A"'
    (tmp_path / "grammar" / "shardlang.lark").write_text(changed, encoding="utf-8")
    monkeypatch.setattr(grammar, "_HERE", tmp_path / "shardlang" / "frontend")

    assert grammar.load_parser().parse("A")

    (tmp_path / "shardlang" / "frontend" / "tables.json").write_text(stored_tables(), "utf-8")

    assert grammar.load_parser().parse("A")


def test_both_parsers_read_the_same():
    """The parser from the tables and the parser from the grammar make the same trees."""
    stored_tables()
    loaded, built = grammar.load_parser(), grammar.build_parser()

    assert all(built.parse(text) == loaded.parse(text) for text in ALL)


@pytest.mark.parametrize(
    ("text", "column", "hint"),
    [
        ("optimiser adam", 11, "did you mean `optimizer`?"),
        ("dim B=3", 5, "did you mean `dims`?"),
        ("mseh X=4", 6, "did you mean `mesh`?"),
        ("inputs In: [B]", 10, "did you mean `input`?"),
        ("A B", 3, "a product is"),
    ],
)
def test_a_mistyped_declaration_is_recognised(text: str, column: int, hint: str):
    """A first word that is close to that of a declaration gets its form as a hint."""
    (mistake,) = mistakes(text)

    assert column == mistake.column
    assert (mistake.hint or "").startswith(hint)


@pytest.mark.parametrize(
    ("text", "column", "arrow"),
    [
        ("-> B[I]", 1, "->"),
        ("A[I] + -> B[I]", 8, "->"),
        (r"A[I] \cdot \to B[I]", 12, r"\to"),
        ("C[I] = A[I] · → B[I]", 15, "→"),
    ],
)
def test_a_missing_tensor_is_named(text: str, column: int, arrow: str):
    """An arrow where a tensor should stand says that one is missing."""
    (mistake,) = mistakes(text)

    assert (column, f"a tensor is missing before `{arrow}`") == (mistake.column, mistake.message)


@pytest.mark.parametrize("gap", ["\n\n", "\n\n\n  \n", "\n# one\n\n# two\n\n"])
def test_an_operator_goes_on_over_empty_lines(gap: str):
    """Empty lines behind an operator are as good as comments."""
    assert items("C[I] = A[I] + B[I]") == items(f"C[I] = A[I] +{gap}B[I]")
    assert 2 == len(items(f"C[I] = A[I]{gap}D[I] = B[I]"))


def test_an_operator_at_the_end_asks_for_more():
    """Where nothing follows, or a statement of its own, the operator's line is the wrong one."""
    (mistake,) = mistakes("C[I] = A[I] +\n\n\n")
    (other,) = mistakes("C[I] = A[I] +\n\nD[I] = B[I]\n")

    assert [(1, 14), (1, 14)] == [(d.line, d.column) for d in (mistake, other)]


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        (r"d\text{Tmp}[B_X, F] -> d\text{Out}[B_X, F]", "dTmp[B_X, F] -> dOut[B_X, F]"),
        (r"d\mathbf{W}_\text{in}[D] -> dA_\mathrm{x}[D]", "dW_in[D] -> dA_x[D]"),
        (r"d\text{W_{in}}[D] -> My\textbf{Out}[D]", "dW_in[D] -> MyOut[D]"),
        (r"AllReduce_Y\text{A}[I]{U_Y} -> B[I]", "AllReduce_Y A[I]{U_Y} -> B[I]"),
        (r"AllReduce_Y \text{A}[I]{U_Y} -> B[I]", "AllReduce_Y A[I]{U_Y} -> B[I]"),
    ],
)
def test_letters_before_a_wrapper_belong_to_the_name(text: str, plain: str):
    """`d` with a wrapper right behind it is one name; a collective's head is not part of one."""
    assert items(plain) == items(text)
