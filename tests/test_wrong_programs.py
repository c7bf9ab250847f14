"""Wrong programs as one writes them: each mistake has its code, and a hint that says what to write."""

from __future__ import annotations

import pytest

import shardlang as sl

MESH = "mesh X=2, Y=2\n"
PIPELINE = (
    "mesh Z=2\naccumulate i=8\ndims L=4\nschedule {}\ninput x: [B, D]\nlayers L_Z:\n  x = gelu(x)\n"
)

WRONG = {
    "a block's result as a name": (
        "block f(x):\n  y = x + x\n  y\nz = f(A[B])", "SH109", "block f(..) -> y:",
    ),
    "a name alone outside of blocks": ("y = A[B] + A\ny", "SH109", "`y[B, D]`"),
    "return": ("block f(x):\n  return x + x\nz = f(A[B])", "SH106", "its last line"),
    "for": ("for i in L:\n  x = gelu(A[B])", "SH106", "under `layers L:`"),
    "a parameter with dims": ("block f(x: bf16[B]):\n  x + x\nz = f(A[B])", "SH103", "names alone"),
    "a parameter with a default": ("block f(x, n=2):\n  n * x\nz = f(A[B])", "SH103", "names alone"),
    "an argument by name": ("block f(x, n):\n  n * x\nz = f(A[B], n=2)", "SH103", "in order"),
    "two results": ("y, z = gelu(A[B])", "SH101", "a line for each"),
    "layers without a colon": (
        "input x: [B]\nlayers L\n  x = gelu(x)", "SH106", "starts with `layers L:`",
    ),
    "layers behind a dim": (
        "input x: [B, D]\nparam g: [D, L]\nlayers L:\n  x = x ⊙ g", "SH277", "g: [L, D]",
    ),
    "layers within": (
        "input x: [B, D]\nparam g: [L, D]\nlayers L:\n  x = x ⊙ g[L, D]", "SH266", "without L",
    ),
    "a mark with no dims": ("y{U_X} = A[B_X, D] ·_B C[B_X]", "SH253", "y[..]{U_X}"),
    "half a microbatch": ("accumulate 2.5\ny = gelu(A[B])", "SH116", "accumulate M=8"),
    "an optimizer without a comma": (
        "optimizer adamw zero 1 over X\ny = A[B, D] ·_D W[D]", "SH105", "`optimizer adamw, zero 1 over X`",
    ),
    "update alone": ("update:\n  W' = Update(W[D], dW[D])", "SH227", "leave the headings out"),
    "an update of the same name": (
        (
            "optimizer adam\nforward:\n  y[B] = x[B, D] ·_D W[D]\nbackward:\n"
            "  dW[D] = x[B, D] ·_B dy[B]\nupdate:\n  W[D] = Update(W[D], dW[D])"
        ),
        "SH209", "W' = Update(W, ..)",
    ),
    "ids for one dim of two": (
        "input i: int32[B]\ny = put_{E,C}(x[B, D], i)", "SH223", "put_{E,C}(A, i, j)",
    ),
    "rotary without angles": ("y = rotary_H(x[B, H])", "SH223", "rotary_H(x, angle)"),
    "cross entropy without labels": (
        "y = cross_entropy_V(x[B, V])", "SH223", "cross_entropy_V(logits, labels)",
    ),
    "where without the other": ("y = where(x[B] < 0, x)", "SH223", "where(mask, A, B)"),
    "two comparisons in a row": ("y = x[B] < x < x", "SH101", "(A < B) ⊙ (B < C)"),
    "an index of no dim": ("y = index_Q + x[B, T]", "SH275", "B, T"),
    "more than there are": ("dims N=4, J=5\ny = top_{N,J}(x[B, N])", "SH295", "at most 4"),
    "nothing to prefetch": ("prefetch W\ny = gelu(A[B])", "SH252", "leave the line out"),
    "a handed on value that is not there": (
        "forward:\n  layers L, x2 -> x:\n    x2[B] = gelu(x[B])", "SH267", "input x: [..]",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("text", "code", "hint"), WRONG.values(), ids=WRONG)
def test_the_first_mistake_says_what_to_write(text: str, code: str, hint: str) -> None:
    """The code of the first mistake, and the words of its hint."""
    found = sl.check(MESH + text)

    assert found[0].code == code
    assert hint in str(found[0].hint)


@pytest.mark.parametrize(
    ("schedule", "codes"),
    [
        ("interleaved, chunks 0", ["SH336"]),
        ("interleaved chunks=2", ["SH105"]),
        ("gpipe, chunks 2", ["SH715"]),
        ("1f2b", ["SH711"]),
    ],
)
def test_a_wrong_schedule_is_one_mistake(schedule: str, codes: list[str]) -> None:
    """What follows from a schedule that can't be read is not reported as well."""
    assert codes == [each.code for each in sl.check(PIPELINE.format(schedule))]


def test_a_line_in_error_still_says_what_its_tensors_are() -> None:
    """The dims in a call that is refused are known to the lines behind it."""
    found = sl.check(f"{MESH}y = rotary_H(x[B, T, H])\nz = gelu(x)\nw = x ⊙ y")

    assert ["SH223"] == [each.code for each in found]


def test_marks_of_microbatches_are_taken_off_both_sides_of_a_comparison() -> None:
    """A line of the book's pipeline may compare: its operands are one layer's as all others are."""
    text = (
        "mesh Z=2\ndims L=2, B=4, D=4\n"
        "h[L_Z, B, D][i] = where(In[L_Z, B, D][i] <= 0, In[L_Z, B, D][i], 1)\n"
        "h[L_Z, B, D][i] ·_D W[L_Z, D, F][i] ·_F V[L_Z, F, D][i] -> Out[L_Z, B, D][i]\n"
    )
    program = sl.parse(text)

    assert {("In", ("B", "D")), ("W", ("D", "F")), ("V", ("F", "D"))} == {
        (leaf.array.name, tuple(dim.name for dim in leaf.array.tensor.dims))
        for leaf in program.leaves
    }
