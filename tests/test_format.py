"""The canonical layout: what it looks like, that it keeps the meaning, and that it is stable."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import sketches
from hypothesis import given
from hypothesis import strategies as st
from test_parser import ALL

from shardlang.diagnostics import Reporter, ShardlangError
from shardlang.frontend import parser
from shardlang.frontend.format import format_source
from shardlang.frontend.resolve import resolve
from shardlang.frontend.syntax import File, MeshDecl
from shardlang.ir.types import Layout, Tensor
from shardlang.source import Source

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = sorted([*ROOT.glob("examples/**/*.shd"), *ROOT.glob("tests/cases/**/*.shd")])


def formatted(text: str) -> str:
    """Format a text."""
    return format_source(Source("t", text))


def _words(listed: str, axes: set[str]) -> list[str]:
    """Flatten subscripts into axes, as far as they are some."""
    found: list[str] = []
    for word in re.split("[,/]", listed):
        single = word not in axes and all(char in axes for char in word)
        found += list(word) if single else [word]
    return found


def _dim(text: str, axes: set[str]) -> str:
    """Read a sketched dim: its name and its axes, however they were written."""
    name, _, rest = text.replace("<", "/", 1).replace(">", "").partition("/")
    listed = _words(rest, axes) if rest else []
    base, underscore, last = name.rpartition("_")
    if underscore and (last in axes or all(char in axes for char in last)):
        name, listed = base, _words(last, axes) + listed
    return f"{name}({' '.join(listed)})"


def meaning(tree: File) -> list[str]:
    """Sketch a tree with one spelling of every subscript, and calls with brackets."""
    mesh = [item for item in tree.items if isinstance(item, MeshDecl)]
    axes = {a.name.text for m in mesh for a in m.axes} if mesh else set("WXYZ")
    found: list[str] = []
    for item in tree.items:
        text = sketches.item(item).replace("!", "")
        text = re.sub(
            r"\[([^]]*)\]",
            lambda m: "[" + " ".join(_dim(d, axes) for d in m[1].split()) + "]",
            text,
        )
        text = re.sub(
            r"\{(\w+) ([^}]*)\}", lambda m: f"{{{m[1]} {' '.join(_words(m[2], axes))}}}", text
        )
        found.append(text)
    return found


def layouts(text: str) -> list[str] | tuple[str, ...]:
    """What a text means: its leaves and statements with their layouts, or the codes of its errors."""
    source = Source("t", text)
    try:
        program = resolve(parser.parse(source), source)
    except ShardlangError as error:
        return tuple(sorted(d.code for d in error.diagnostics))
    found = [
        f"{leaf.kind} {_spelled(leaf.array.tensor, leaf.array.layout)}" for leaf in program.leaves
    ]
    found += [f"{info.dim}={info.size}" for info in program.dims]
    for each in program.statements:
        operands = [_spelled(use.tensor, use.layout) for use in each.operands]
        found.append(f"{_spelled(each.result, each.target)} = {each.op!r} {operands}")
    return found


def _spelled(tensor: Tensor, layout: Layout | None) -> str:
    """A tensor with nothing left to read two ways."""
    dims = [dim.name for dim in tensor.dims]
    split = None if layout is None else [[a.name for a in axes] for axes in layout.sharding]
    left = None if layout is None else (layout.reduction, sorted(a.name for a in layout.unreduced))
    return f"{tensor.name} {tensor.dtype} {dims} {split} {left}"


def check(text: str) -> str:
    """Format a text, and assert that this is stable and keeps meaning and comments."""
    before = parser.parse(Source("t", text))
    result = formatted(text)
    after = parser.parse(Source("t", result))

    assert meaning(before) == meaning(after)
    assert sorted(c.text for c in before.comments) == sorted(c.text for c in after.comments)
    assert result == formatted(result)
    assert result == "\n".join(line.rstrip() for line in result.split("\n"))
    return result


@pytest.mark.parametrize("text", ALL)
def test_each_form_keeps_its_meaning(text: str):
    """Every form of the specification is laid out stably and reads the same."""
    check(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A [ I/X , J_{Y} ]{ U_Z }", "A[I_X, J_Y]{U_Z}"),
        ("A[I/X/Y, J_{Z,W}]", "A[I_XY, J_ZW]"),
        ("A[I/P, J_{P,Q}]", "A[I/P, J_{P,Q}]"),
        ("A[I_X/Y, J]", "A[I_XY, J]"),
        ("A[I_X/Y/Z, J_X_{W}]", "A[I_XYZ, J_XW]"),
        ("A[I_P/X]{U_P}", "A[I_P/X]{U_P}"),
        ("A[I_{P}/X]{U_P}", "A[I_{P}/X]{U_P}"),
        ("A[d_{model}/X, d_model/Y]", "A[d_{model}/X, d_model_Y]"),
        ("A[2048/X] ·_{2048} B[2048_{X}]", "A[2048_X] ·_2048 B[2048_X]"),
        ("sum_{2048}(A[2048, D])", "sum_2048(A[2048, D])"),
        ("A ·_{1.5} B", "A ·_{1.5} B"),
        (r"d\text{Tmp}[B_X, F] = d\mathbf{Out}[B_X, F]", "dTmp[B_X, F] = dOut[B_X, F]"),
        ("A[d_{model}, d_\\text{ff}]", "A[d_{model}, d_{ff}]"),
        ("A[I]{U.X}", "A[I]{U_X}"),
        ("A[I]{U_X, U_Y}", "A[I]{U_XY}"),
        ("A[I]{U_{data}, U_Y}", "A[I]{U_{data,Y}}"),
        (r"W_\text{in}^\top[F, D]", "W_in^T[F, D]"),
        (r"W_{in} \in bf16 [D , F]", "W_in: bf16[D, F]"),
        (r"A[I] \cdot_{D} B[D] \to C[I]", "A[I] ·_D B[D] -> C[I]"),
        (r"A \times_\text{LOCAL} B", "A ·_LOCAL B"),
        ("A@B*C", "A · B * C"),
        ("A ·_{d_{model}} B", "A ·_{d_model} B"),
        ("A*_{N , H}B", "A *_{N,H} B"),
        ("((A+B))-(C-D)", "A + B - (C - D)"),
        ("(A*B)*(C*D)", "A * B * (C * D)"),
        ("-(A+B)*-C", "(-(A + B) * -C)"),
        ("C[I]=-A[I]", "C[I] = -A[I]"),
        ("AllReduce_{Y} A[I]{U_Y} → A[I]", "AllReduce_Y(A[I]{U_Y}) -> A[I]"),
        ("AllToAll_{Z->B}( A )", "AllToAll_{Z,B}(A)"),
        ("Permute(A[I_XY]->A[I_YX])", "Permute(A[I_XY] -> A[I_YX])"),
        ("sum_{B , D}(A)/|B|", "sum_{B,D}(A) / |B|"),
        ("In[L_Z,D] [i]", "In[L_Z, D][i]"),
        ("mesh X = 16 ,Y @ ici ( 2 ),P=2@dcn", "mesh X=16, Y @ici(2), P=2 @dcn"),
        ("dims B = 3M,F=4 * D,G=( T+1 )/ 2, H=2^10", "dims B=3M, F=4*D, G=(T + 1)/2, H=2**10"),
        ("dims B=48_000, C=3e6, T=32Ki", "dims B=48_000, C=3e6, T=32Ki"),
        ("input In[B_X], W:f32[D]", "input In: [B_X], W: f32[D]"),
        ("hardware  tpu_v5p", "hardware tpu_v5p"),
        ('hardware "a b"', 'hardware "a b"'),
        ('hardware "chips/my.toml"', "hardware chips/my.toml"),
        ('hardware "chips/"', 'hardware "chips/"'),
        ("save  P,Q", "save P, Q"),
        ("forward :", "forward:"),
    ],
)
def test_one_spelling(text: str, expected: str):
    """Each form has one canonical spelling."""
    assert expected + "\n" == check(text)


def test_declared_axes_decide_about_subscripts():
    """With a mesh, its names are written as subscripts, and others keep their signs."""
    text = "mesh data, fsdp, P, Q\nA[B_{data}, D/fsdp/data, E/P/Q, F/X]\n"

    assert "mesh data, fsdp, P, Q\nA[B_data, D_{fsdp,data}, E_PQ, F/X]\n" == check(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A[B_{dp_axis}, D/dp/dp_axis]", "A[B_{dp_axis}, D_{dp,dp_axis}]"),
        ("A[B/dp_axis]{U_{dp}}", "A[B_{dp_axis}]{U_dp}"),
        ("A[D_{W_ici}]{U_{dp_axis}}", "A[D_{W_ici}]{U_{dp_axis}}"),
        ("A[B_dp/dp_axis]", "A[B_{dp,dp_axis}]"),
        ("A[B_X/dp]", "A[B_{X,dp}]"),
        ("AllGather_{dp_axis}(A[B/dp_axis])", "AllGather_{dp_axis}(A[B_{dp_axis}])"),
    ],
)
def test_axis_names_with_underscores_keep_their_braces(text: str, expected: str):
    """`B_dp_axis` would be a dim `B_dp` over `axis`, or a dim `B_dp_axis`."""
    mesh = "mesh dp=2, dp_axis=2, W_ici=2, X=2\n"

    assert mesh + expected + "\n" == formatted(mesh + text)
    assert layouts(mesh + text) == layouts(formatted(mesh + text))


def test_a_whole_program():
    """Sections are indented, blank lines kept one at a time, comments aligned behind their lines."""
    text = """\


#head


mesh   X = 16 ,Y=4
dims  B = 3M   # tokens
input In : [B/X,D_{Y}]//the input



A[I]  @_D  B[I] # one
C[I] = A[I]
forward:# f

  Z[int] = A - (B - C) + # two
     # three
     E ⊙ -F  // four
  // five
backward :
AllGather_X(A[I_X]) -> A[I]
C[I]=
   A[I]
// end"""
    expected = """\
# head

mesh X=16, Y=4
dims B=3M             # tokens
input In: [B_X, D_Y]  // the input

A[I] ·_D B[I]  # one
C[I] = A[I]
forward:  # f

  # two
  # three
  Z[int] = A - (B - C) + E ⊙ -F  // four
  // five
backward:
  AllGather_X(A[I_X]) -> A[I]
  C[I] = A[I]
// end
"""

    assert expected == check(text)


@pytest.mark.parametrize("path", PROGRAMS, ids=[str(p.relative_to(ROOT)) for p in PROGRAMS])
def test_programs_of_the_repository(path: Path):
    """Every program that parses is laid out stably and keeps its meaning."""
    text = path.read_text(encoding="utf-8")
    try:
        parser.parse(Source("t", text))
    except ShardlangError:
        pytest.skip("this program is meant to be wrong")
    check(text)


def test_only_comments_are_kept():
    """A text without a statement keeps its comments, and nothing stays nothing."""
    assert "# a\n\n// b\n" == formatted("\n#a\n\n\n//b")
    assert "" == formatted("\n\n")


def test_the_marks_of_comments_are_kept():
    """A comment keeps its mark, however long, and has one space behind it."""
    assert "## a\n/// b\n//\n#\n# c # d\n" == formatted("##a\n///  b\n//\n#\n#c # d")


def test_a_wrong_text_is_not_formatted():
    """A text that does not parse raises its errors."""
    with pytest.raises(ShardlangError):
        formatted("A[I = B[I]")


# ---- Random programs in random spellings ---------------------------------------------------------

NAMES = st.sampled_from(
    [
        "A",
        "In",
        "W_in",
        "W_{in}",
        r"W_\text{in}",
        r"\text{Out}",
        r"\mathbf{A}",
        "dOut",
        "A'",
        "ß",
        "input",
    ]
)
DIM_NAMES = st.sampled_from(["B", "D", "d_model", "d_{ff}", "D'", "H"])
AXES = st.sampled_from(["X", "Y", "XY", "ZX", "P", "data"])
GAPS = st.sampled_from(["", "", " ", "  "])


@st.composite
def dims(draw) -> str:
    """A dim in one of its spellings."""
    name = draw(DIM_NAMES)
    match draw(st.integers(0, 5)):
        case 0 | 1:
            return name
        case 2:
            return f"{name}{{}}".replace("{}", "_" + draw(AXES))
        case 3:
            return f"{name}_{{{draw(AXES)}}}"
        case 4:
            return f"{name}_{{X,{draw(st.sampled_from('YZ'))}}}"
        case _:
            return f"{name}{draw(GAPS)}/{draw(GAPS)}{draw(AXES)}"


@st.composite
def tensors(draw) -> str:
    """A tensor in one of its spellings."""
    listed = draw(st.lists(dims(), max_size=3))
    gap = draw(GAPS)
    text = draw(NAMES) + draw(st.sampled_from(["", "", "", "^T", ": bf16", r" \in f32"]))
    text += f"{gap}[{gap}{f'{gap},{gap}'.join(listed)}{gap}]"
    return text + draw(
        st.sampled_from(
            ["", "", "", "{U_X}", r" \{ U_{XY} \}", "{U_X, U_Y}", "{U.Z}", "^{T}", "[i]"]
        )
    )


OPERATORS = st.sampled_from(
    [
        "·",
        "·_D",
        r"\cdot_{D,H}",
        "×_D",
        "@",
        "*",
        "*_B",
        "⊙",
        "+",
        "-",
        "−",
        "/",
        r"\cdot_\text{LOCAL}",
    ]
)
HEADS = st.sampled_from(
    ["gelu", "sum_B", "sum_{B,D}", "AllGather_X", "AllGather_{XY}", "ReduceScatter_{X,D}", "Permute",
     "softmax_S", "AllToAll_{Z->B}", "mean_d_model", "silu_grad", "foo_{X}"]
)  # fmt: skip


def _extend(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.tuples(inner, GAPS, OPERATORS, inner).map(lambda t: f"{t[0]}{t[1]} {t[2]} {t[3]}"),
        inner.map(lambda e: f"({e})"),
        inner.map(lambda e: f"-{e}"),
        st.tuples(HEADS, inner).map(lambda t: f"{t[0]}({t[1]})"),
        st.tuples(HEADS, inner, inner).map(lambda t: f"{t[0]}({t[1]}, {t[2]})"),
        st.tuples(inner, inner).map(lambda t: f"{t[0]} + # between\n {t[1]}"),
    )


EXPRESSIONS = st.recursive(
    st.one_of(tensors(), st.sampled_from(["2", "0.5", "1e-6", "|B|", "|d_{model}|", "A", "W_in"])),
    _extend,
    max_leaves=8,
)
SIZES = st.recursive(
    st.sampled_from(["3M", "48_000", "D", "d_{ff}", "2", "32Ki", "1.5e3"]),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*", "/", r"\cdot "]), inner).map(" ".join),
        inner.map(lambda e: f"({e})"),
        inner.map(lambda e: f"({e})**2"),
    ),
    max_leaves=4,
)


@st.composite
def statements(draw) -> str:
    """A statement of any kind."""
    match draw(st.integers(0, 8)):
        case 0:
            return f"{draw(tensors())} ={draw(GAPS)}{draw(EXPRESSIONS)}"
        case 1 | 2:
            arrow = draw(st.sampled_from(["->", "→", r"\to", r"\rightarrow"]))
            return f"{draw(EXPRESSIONS)} {arrow} {draw(tensors())}"
        case 3:
            return f"C[I] = {draw(EXPRESSIONS)}"
        case 4:
            return draw(tensors())
        case 5:
            return f"dims B={draw(SIZES)},  F {draw(GAPS)}= {draw(SIZES)}"
        case 6:
            return f"input {draw(tensors())}, {draw(tensors())}"
        case 7:
            return draw(
                st.sampled_from(["forward:", "backward :", "save all", "save Tmp,P", "dtype f32"])
            )
        case _:
            return draw(
                st.sampled_from(["optimizer  adam", "hardware ./a.toml", "hardware tpu_v5p"])
            )


@st.composite
def programs(draw) -> str:
    """A program with comments and blank lines."""
    mesh = draw(st.sampled_from(["", "mesh X = 4,Y\n", "mesh X, Y, Z, P=2@dcn, data @ ici(2)\n"]))
    lines: list[str] = []
    for statement in draw(st.lists(statements(), min_size=1, max_size=5)):
        behind = draw(st.sampled_from(["", "", "#one", " // two", "  # three  "]))
        after = draw(st.sampled_from(["", "", "\n", "\n\n\n", "\n# alone", "\n  //alone\n"]))
        lines.append(statement + behind + after)
    return mesh + "\n".join(lines)


@given(programs())
def test_random_programs_keep_their_meaning(text: str):
    """Any program in any spelling is laid out stably and keeps meaning and comments."""
    source = Source("t", text)
    reporter = Reporter(source)
    parser.read(source, reporter)
    if not reporter.errors:
        check(text)

    # An expression may be no target, and sizes may grow too large; nothing else can be wrong.
    assert {d.code for d in reporter.errors} <= {"SH101", "SH102", "SH108", "SH116"}


# ---- Names that could be read two ways ------------------------------------------------------------

MESHES = st.sampled_from(
    ["", "X=2, Y=2", "dp=2, dp_axis=2", "W_ici=2, ici=2", "a=2, ab=2, b_a=2", "X=2, dp=2, dp_X=2"]
)
TWO_WAY_DIMS = st.sampled_from(
    ["B", "B_dp", "dX", "d_X", "d_model", "B_X", "dXY", "W_ici", "b", "I"]
)
TWO_WAY_AXES = st.sampled_from(
    ["X", "Y", "XY", "dp", "dp_axis", "ici", "W_ici", "a", "ab", "b_a", "dp_X"]
)
JOINS = st.sampled_from(["_{%s}", "/%s", "_%s", "_{%s,X}", "/%s/X", "_X/%s", "_{X}/%s", "_{%s}/Y"])


@st.composite
def two_way_tensors(draw) -> str:
    """A tensor whose dims and axes are prefixes of one another and hold underscores."""
    listed: list[str] = []
    for dim in draw(st.lists(TWO_WAY_DIMS, min_size=1, max_size=3)):
        join = draw(st.sampled_from(["", "join"])) and draw(JOINS)
        listed.append(dim + (join % draw(TWO_WAY_AXES) if join else ""))
    mark = draw(st.sampled_from(["", "", "{U_%s}", "{U_{%s}}"]))
    return f"[{', '.join(listed)}]" + (mark % draw(TWO_WAY_AXES) if mark else "")


@given(MESHES, st.lists(two_way_tensors(), min_size=1, max_size=3))
def test_formatting_never_changes_the_meaning(mesh: str, tensors: list[str]):
    """Whatever the names look like, the laid out text resolves to the same, or fails the same way."""
    head = f"mesh {mesh}\n" if mesh else ""
    text = head + "".join(f"exp(A{i}{t}) -> B{i}\n" for i, t in enumerate(tensors))

    result = formatted(text)

    assert layouts(text) == layouts(result)
    assert result == formatted(result)


# ---- Long lines -----------------------------------------------------------------------------------


def test_long_statements_go_on_behind_commas_and_operators():
    """A line has 100 columns; it is broken in the fewest brackets, and its comment stands at its end."""
    name = "W_with_a_name_of_thirty_letters"
    listed = [f"{name}{n}: [D, F]" for n in range(4)]
    text = (
        f"param {', '.join(listed)}  # all\n"
        f"layers L:\n  x = x + f(x ⊙ x) ·_D {name}1 ·_F g({name}2, {name}3)\n"
    )

    assert [
        f"param {', '.join(listed[:2])},",
        f"    {', '.join(listed[2:])}  # all",
        "layers L:",
        f"  x = x + f(x ⊙ x) ·_D {name}1 ·_F",
        f"      g({name}2, {name}3)",
    ] == [re.sub(" +#", "  #", line) for line in check(text).rstrip("\n").split("\n")]


@given(st.sampled_from(PROGRAMS), st.integers(12, 100))
def test_lines_of_any_length_keep_their_meaning(path: Path, columns: int):
    """However narrow the page, a source reads the same and is laid out stably on it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("shardlang.frontend.format._LINE", columns)
        check(path.read_text(encoding="utf-8"))


@given(programs(), st.integers(5, 60))
def test_random_programs_of_any_width_keep_their_meaning(text: str, columns: int):
    """The same of programs in any spelling, with comments behind their lines."""
    source = Source("t", text)
    reporter = Reporter(source)
    parser.read(source, reporter)
    if not reporter.errors:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("shardlang.frontend.format._LINE", columns)
            check(text)


def test_no_line_is_longer_than_it_has_to_be():
    """Of a statement that can be broken no line has more than 100 columns."""
    for terms in range(1, 40):
        text = "z[B, D] = " + " + ".join(f"gelu(x{n}[B, D] ⊙ y[B, D])" for n in range(terms))
        assert max(map(len, check(text).split("\n"))) <= 100
        assert (len(text) <= 100) == (check(text).count("\n") == 1)
