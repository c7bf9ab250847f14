"""The lint of explicit programs: each kind with bytes counted by hand, faults put into plans, no false alarms."""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from simulator import check_numbers
from strategies import random_chain

import shardlang as sl
from shardlang.advice.lint import fix, lint
from shardlang.frontend.resolve import load_text
from shardlang.ir.ops import AllGather, AllReduce, AllToAll, Collective, Permute, ReduceScatter
from shardlang.ir.plan import Plan
from shardlang.ir.printer import print_plan
from shardlang.passes import check, lower

CASES = Path(__file__).parent / "cases"
EXAMPLES = Path(__file__).parent.parent / "examples"


def sent(plan: Plan) -> Fraction:
    """Count the bytes that one device sends, from what each collective means."""
    sizes = plan.program.sizes.known
    total = Fraction(0)
    for _, step in plan.steps():
        if not isinstance(step.op, Collective):
            continue
        held = Fraction(step.inputs[0].tensor.dtype.bits, 8)
        for dim, axes in zip(
            step.inputs[0].tensor.dims, step.inputs[0].layout.sharding, strict=True
        ):
            held *= sizes[dim.name]
            for axis in axes:
                held /= sizes[axis.name]
        n = 1
        for axis in step.op.axes:
            n *= sizes[axis.name]
        match step.op:
            case AllGather():
                total += held * (n - 1)
            case AllReduce():
                total += 2 * held * (n - 1) / n
            case ReduceScatter() | AllToAll():
                total += held * (n - 1) / n
            case Permute():
                total += held
    return total


HEAD = "mesh X=4\ndims I=64, J=64, K=64\nforward:\n"
WIDE = "mesh X=4, Y=2\ndims I=64, J=64, K=64\nforward:\n"

# An I x K of bf16 is 8192 bytes; over X=4 an AllReduce sends 2 * 3/4, the others 3/4 of it.
KINDS = {
    "dead": (
        HEAD + "  A[I, J] = AllGather_X(A[I_X, J])\n  C[I_X, J] = gelu(A[I_X, J])\n",
        "SH452", 4, 6144,
    ),
    "repeated": (
        HEAD + "  A[I, J] = AllGather_X(A[I_X, J])\n  A[I, J] = AllGather_X(A[I_X, J])\n"
        "  C[I, J] = gelu(A[I, J])\n",
        "SH451", 5, 6144,
    ),
    # AllGather_XY sends 7/8 of 8192, AllGather_Y half of the 2048 that I_X holds.
    "wide, and sliced": (
        WIDE + "  A[I, J] = AllGather_XY(A[I_XY, J])\n  A[I_X, J] = Slice_{X,I}(A[I, J])\n"
        "  C[I_X, J] = gelu(A[I_X, J])\n",
        "SH455", 4, 7168 - 1024,
    ),
    "wide, and the results sliced": (
        WIDE + "  A[I, J] = AllGather_XY(A[I_XY, J])\n  C[I, J] = gelu(A[I, J])\n"
        "  D[I, J] = exp(A[I, J])\n  C[I_X, J] = Slice_{X,I}(C[I, J])\n"
        "  D[I_X, J] = Slice_{X,I}(D[I, J])\n",
        "SH455", 4, 7168 - 1024,
    ),
    "wide through two functions": (
        HEAD + "  A[I, J] = AllGather_X(A[I_X, J])\n  C[I, J] = gelu(A[I, J])\n"
        "  D[I, J] = exp(C[I, J])\n  D[I_X, J] = Slice_{X,I}(D[I, J])\n",
        "SH455", 4, 6144,
    ),
    "reduced, then sliced": (
        HEAD + "  C[I, K]{U_X} = A[I, J_X] ·_J B[J_X, K]\n  C[I, K] = AllReduce_X(C[I, K]{U_X})\n"
        "  C[I_X, K] = Slice_{X,I}(C[I, K])\n  D[I_X, K] = gelu(C[I_X, K])\n",
        "SH456", 5, 6144,
    ),
    "reduced, then sliced under other names": (
        HEAD + "  C[I, K]{U_X} = A[I, J_X] ·_J B[J_X, K]\n  R[I, K] = AllReduce_X(C[I, K]{U_X})\n"
        "  S[I_X, K] = Slice_{X,I}(R[I, K])\n  D[I_X, K] = gelu(S[I_X, K])\n",
        "SH456", 5, 6144,
    ),
    # Gathering A sends 3/4 of 4096 * 4096 * 2; the sum of a 4096 x 16 is 2 * 3/4 of 131072.
    "gathered before a product": (
        HEAD.replace("I=64, J=64, K=64", "I=4096, J=4096, K=16") + "  A[I, J] = AllGather_X(A[I, J_X])\n  C[I, K] = A[I, J] ·_J B[J, K]\n",
        "SH457", 4, 25165824 - 196608,
    ),
    # An AllToAll sends 3/4 of the 2048 bytes that a device holds.
    "gathered, then sliced along another dim": (
        HEAD + "  A[I, J] = AllGather_X(A[I_X, J])\n  A[I, J_X] = Slice_{X,J}(A[I, J])\n"
        "  D[I, J_X] = gelu(A[I, J_X])\n",
        "SH458", 4, 6144 - 1536,
    ),
    "a chain of AllToAlls": (
        HEAD + "  A[I, J_X, K] = AllToAll_{X,J}(A[I_X, J, K])\n"
        "  A[I, J, K_X] = AllToAll_{X,K}(A[I, J_X, K])\n  D[I, J, K_X] = gelu(A[I, J, K_X])\n",
        "SH458", 4, 64 * 64 * 64 * 2 // 4 * 3 // 4,
    ),
    "reduced before they are added": (
        HEAD + "  P[I, K]{U_X} = A[I, J_X] ·_J B[J_X, K]\n  Q[I, K]{U_X} = E[I, J_X] ·_J F[J_X, K]\n"
        "  P[I, K] = AllReduce_X(P[I, K]{U_X})\n  Q[I, K] = AllReduce_X(Q[I, K]{U_X})\n"
        "  S[I, K] = P[I, K] + Q[I, K]\n",
        "SH459", 6, 12288,
    ),
    "two gathers that one would do": (
        WIDE + "  B[J_X, K] = AllGather_Y(B[J_XY, K])\n  B[J, K] = AllGather_X(B[J_X, K])\n"
        "  E[J, K] = gelu(B[J, K])\n",
        "SH449", 5, 0,
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_is_found_with_its_bytes_and_fixed(kind: str) -> None:
    """One warning at the line in question; its fix saves what was counted, and computes the same."""
    text, code, line, saved = KINDS[kind]
    program = load_text(text)
    (advice,) = lint(program, check(program))

    assert (code, line) == (advice.diagnostic.code, advice.diagnostic.line)
    assert saved == advice.saved.value({})
    before, fixed = lower(program), fix(program)
    after = lower(load_text(fixed.text))
    assert saved == sent(before) - sent(after) == fixed.saved.value({})
    assert [] == sl.check(fixed.text)
    assert before.outputs == after.outputs
    check_numbers(after)


@pytest.mark.parametrize("kind", [k for k in KINDS if k != "gathered before a product"])
def test_without_sizes_the_bytes_are_a_formula(kind: str) -> None:
    """The claim holds for all sizes: with the sizes put in, the formula gives the same number."""
    text, code, line, saved = KINDS[kind]
    found = text.replace("X=4", "X").replace("Y=2", "Y")
    found = re.sub(r"^dims.*\n", "", found, flags=re.MULTILINE)
    program = load_text(found)
    (advice,) = lint(program, check(program))

    assert (code, line - 1) == (advice.diagnostic.code, advice.diagnostic.line)
    sizes = {"X": 4, "Y": 2, "I": 64, "J": 64, "K": 64}
    assert saved == advice.saved.value({name: Fraction(size) for name, size in sizes.items()})


def test_without_sizes_nothing_is_said_that_sizes_decide() -> None:
    """Whether to gather before a product or to add up after it hangs on the sizes."""
    text = "mesh X\nforward:\n  A[I, J] = AllGather_X(A[I, J_X])\n  C[I, K] = A[I, J] ·_J B[J, K]\n"

    assert [] == sl.check(text)


@pytest.mark.parametrize(
    "path",
    [*sorted((CASES / "mlp").glob("*.explicit.shd")), *sorted(EXAMPLES.glob("*.explicit.shd"))],
    ids=lambda path: f"{path.parent.name}/{path.name}",
)
def test_the_books_algorithms_get_no_warning(path: Path) -> None:
    """They are as cheap as any for some sizes."""
    assert [] == sl.check(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("seed", range(12))
def test_optimal_plans_get_no_warning(seed: int) -> None:
    """What no plan moves less than has no cheaper lines."""
    plan = sl.lower(sl.parse(random_chain(random.Random(seed))), "optimal")
    assert plan.proof is not None
    assert plan.proof.optimal

    assert [] == sl.check(print_plan(plan))


def faulty(text: str, rng: random.Random) -> str | None:
    """Put one fault into a plan's lines: a collective twice, or an AllReduce for a ReduceScatter."""
    lines = text.splitlines()
    places = [n for n, line in enumerate(lines) if re.search(r"= (All|Reduce)", line)]
    if not places:
        return None
    at = rng.choice(places)
    line = lines[at].partition("//")[0].rstrip()
    match = re.fullmatch(r"  (\w+)\[(.*)\](\S*) = ReduceScatter_\{(\w+),(\w+)\}\((.*)\)", line)
    if match is None or match[3]:
        lines.insert(at, lines[at])
    else:
        name, inside, _, axes, dim, operand = match.groups()
        wide = re.sub(
            rf"\b{dim}_(\w*?){axes}(?=,|$)", lambda m: f"{dim}_{m[1]}".rstrip("_"), inside
        )
        lines[at : at + 1] = [
            f"  {name}[{wide}] = AllReduce_{axes}({operand})",
            f"  {name}[{inside}] = Slice_{{{axes},{dim}}}({name}[{wide}])",
        ]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("strategy", ["book", "optimal"])
@pytest.mark.parametrize("seed", range(10))
def test_a_fault_is_found_and_fixed(seed: int, strategy: str) -> None:
    """The lint sees it; what --fix writes is legal, no dearer than before the fault, and right."""
    rng = random.Random(seed)
    plan = sl.lower(sl.parse(random_chain(rng)), strategy)
    text = faulty(print_plan(plan), rng)
    if text is None:
        pytest.skip("no collectives")
    program = load_text(text)
    found = lint(program, check(program))

    assert found
    fixed = fix(program)
    after = lower(load_text(fixed.text))
    assert sent(lower(program)) - sent(after) == fixed.saved.value({})
    assert sent(after) <= sent(plan)
    assert [] == sl.check(fixed.text)
    check_numbers(after)


def test_other_lines_stay_as_they_are() -> None:
    """Comments, blanks and spelling of other lines are kept, and the comment of a line that goes."""
    text = """# a program
mesh X=4
dims I=64, J=64, K=64

forward:
    C[I,K]{U_X}  =  A[I,J_X] ·_J B[J_X,K]   // the product

    // all of it is reduced
    C[I,K] = AllReduce_X(C[I,K]{U_X})  # here
    C[I_X,K] = Slice_{X,I}(C[I,K])     # and sliced
    D[I_X,K]=gelu(C[I_X,K])
"""
    expected = text.replace(
        "    C[I,K] = AllReduce_X(C[I,K]{U_X})  # here\n", "    # here\n"
    ).replace(
        "C[I_X,K] = Slice_{X,I}(C[I,K])     # and",
        "C[I_X, K] = ReduceScatter_{X,I}(C[I, K]{U_X})     # and",
    )

    assert expected == fix(load_text(text)).text


def test_lines_without_headings_are_fixed_too() -> None:
    """With `explicit` the lines of a plain program are steps."""
    text = KINDS["reduced, then sliced"][0].replace("forward:\n", "")
    program = replace(load_text(text), explicit=True)

    assert ["SH456"] == [d.code for d in sl.check(program, explicit=True)]
    assert "ReduceScatter_{X,I}" in fix(program).text
    assert [] == sl.check(load_text(text))


def test_what_is_compared_is_not_reduced_twice() -> None:
    """A value that is compared with its own maximum has one reduction, whatever a second would save."""
    text = """mesh X
forward:
  C[I, K]{U_X} = A[I, J_X] ·_J B[J_X, K]
  C[I, K] = AllReduce_X(C[I, K]{U_X})
  C[I_X, K] = Slice_{X,I}(C[I, K])
  M[I_X] = max_K(C[I_X, K])
  E[I_X, K] = equal(C[I_X, K], M[I_X])
"""
    assert [] == sl.check(text)


def test_fix_rewrites_the_file(shardlang, tmp_path: Path) -> None:
    """Like other linters: the file is written, what is left is shown, and the sum goes to stderr."""
    path = tmp_path / "p.shd"
    path.write_text(KINDS["reduced, then sliced"][0], encoding="utf-8")
    result = shardlang("check", str(path), "--fix")

    assert (0, "", "fixed 1 warning: a device moves 6.144 kB less\n") == (
        result.status, result.out, result.err,
    )  # fmt: skip
    assert "ReduceScatter_{X,I}" in path.read_text(encoding="utf-8")
    again = shardlang("check", str(path), "--fix")
    assert (0, "", "") == (again.status, again.out, again.err)


def test_fix_of_typed_lines_goes_to_stdout(shardlang) -> None:
    """There is no file to write; as JSON the text comes with what was fixed."""
    lines = KINDS["reduced, then sliced"][0].splitlines()
    typed = [word for line in lines for word in ("-e", line)]
    result = shardlang("check", "--fix", *typed)

    assert result.out.splitlines()[-2].strip() == "C[I_X, K] = ReduceScatter_{X,I}(C[I, K]{U_X})"
    data = json.loads(shardlang("check", "--fix", "--format", "json", *typed).out)
    assert ["SH456"] == [each["code"] for each in data["fixed"]]
    assert [] == data["left"]


def test_fix_leaves_a_file_with_errors_alone(shardlang, tmp_path: Path) -> None:
    """Errors are shown, and nothing is written."""
    path = tmp_path / "p.shd"
    text = HEAD + "  C[I, K] = A[I, J_X] ·_J B[J_X, K]\n"
    path.write_text(text, encoding="utf-8")
    result = shardlang("check", str(path), "--fix")

    assert result.status == 1
    assert "SH302" in result.out
    assert text == path.read_text(encoding="utf-8")


def test_fix_of_an_ordinary_program_is_a_wrong_use(shardlang) -> None:
    """Its lines are no steps."""
    result = shardlang("check", "--fix", "-e", "A[I_X, J] · B[J, K] -> C[I_X, K]")

    assert result.status == 2
    assert "--explicit" in result.err


def test_a_fix_asks_for_no_divisibility_that_the_program_does_not() -> None:
    """With sizes left open, K need not be a multiple of 8 after a fix where 2 was enough before."""
    text = (
        "mesh X=4, Y=2\ninput S: [J, K_Y]{U_X}\nforward:\n"
        "  S[J_Y, K]{U_X} = AllToAll_{Y,J}(S[J, K_Y]{U_X})\n"
        "  S[J_YX, K] = ReduceScatter_{X,J}(S[J_Y, K]{U_X})\n"
    )
    fixed = fix(sl.parse(text)).text
    for sizes in ("J=16, K=12", "J=8, K=2"):
        sl.lower(sl.parse(f"dims {sizes}\n{text}"))
        sl.lower(sl.parse(f"dims {sizes}\n{fixed}"))


def test_a_fix_moves_no_more_across_data_centres() -> None:
    """Gathering over X first and over P last moves fewer bytes in all, and more of them over P."""
    text = (
        "mesh P=2 @dcn, X=4\ndims B=64, D=64\n"
        "h[B_PX, D] = In[B_PX, D] ⊙ s[D]\ny[B, D] = gelu(h[B, D])\n"
    )
    for objective in ("bytes", "serial"):
        program = sl.parse(text)
        plan = sl.lower(program, "optimal", objective=objective, hardware="tpu_v5p")
        fixed = fix(sl.parse(str(plan)))
        before, after = (
            sum(
                cost.bytes.value or 0
                for cost in sl.cost(sl.lower(sl.parse(each)), model="link").collectives
                if "P" in cost.axes
            )
            for each in (str(plan), fixed.text)
        )
        assert after <= before


def test_what_a_search_had_proven_is_not_said_of_other_lines() -> None:
    """A fix takes the header of `lower` away, and keeps the comments of lines that go."""
    text = (
        "// optimal: 1 B moved a device (link prices), no plan moves less\n"
        "mesh X=4\ndims I=16, J=16\nforward:\n"
        "  A[I, J] = AllReduce_X(A[I, J]{U_X})  # why it is whole\n"
        "  A[I_X, J] = Slice_{X,I}(A[I, J])\n"
        "  C[I_X, J] = gelu(A[I_X, J])\n"
    )
    fixed = fix(sl.parse(text))
    assert fixed.applied
    assert "optimal" not in fixed.text
    assert "# why it is whole" in fixed.text


# What the save line asks for ------------------------------------------------------------------

SAVING = {
    "one block": "h[B_X, F_Y] = gelu(x ·_D W_in[D_X, F_Y])\nOut[B_X, D_Y] = h ·_F W_out[F_Y, D_X]",
    "two blocks": "h[B_X, F_Y] = gelu(x ·_D W_in[D_X, F_Y])\ng[B_X, D_Y] = h ·_F W_out[F_Y, D_X]\n"
    "k[B_X, F_Y] = exp(g ·_D W_up[D_X, F_Y])\nOut[B_X, D_Y] = k ·_F W_down[F_Y, D_X] + g",
    "layers": "layers L:\n  h[B_X, F_Y] = gelu(x ·_D W_in[D_X, F_Y])\n  x = x + h ·_F W_out[F_Y, D_X]",
    "layers and a head": "layers L:\n  h[B_X, F_Y] = gelu(x ·_D W_in[D_X, F_Y])\n"
    "  x = x + h ·_F W_out[F_Y, D_X]\nOut[B_X, E] = x ·_D W_end[D_X, E]",
    "a norm": "n[B_X, D] = rmsnorm_D(x)\nh[B_X, F_Y] = gelu(n ·_D W_in[D_X, F_Y])\n"
    "Out[B_X, D_Y] = x + h ·_F W_out[F_Y, D_X]",
}  # fmt: skip
SAVES = ["none", "h", "W_in", "h, W_in"]


def saving(name: str, save: str) -> str:
    """Lower a program of large batches with a `save` line to its text."""
    head = "mesh X=4, Y=2\ndims B=4096, D=256, F=512, E=128, L=4\ninput x: [B_X, D_Y]\n"
    return print_plan(lower(load_text(f"{head}save {save}\n{SAVING[name]}\n")))


def kept(text: str) -> set[str]:
    """Read off a lowered text what its backward pass has from the forward pass.

    That is every array on the right of a line of `backward:` that stands left of one of `forward:`
    and left of no earlier one of `backward:`.
    """
    forward, backward = text.split("forward:\n")[1].split("backward:\n")
    array = re.compile(r"\w+\[[^\]]*\](?:\{[^}]*\})?")
    lines = [line.split("//")[0].split(" = ") for line in forward.split("\n") if " = " in line]
    given = {line[0].strip() for line in lines}
    made: set[str] = set()
    found: set[str] = set()
    for line in backward.split("\n"):
        if " = " in line:
            left, right = line.split("//")[0].split(" = ", maxsplit=1)
            found |= {a for a in array.findall(right) if a in given and a not in made}
            made.add(left.strip())
    return found


@pytest.mark.parametrize("name", SAVING)
def test_what_the_save_line_has_made_again_is_no_fault(name: str) -> None:
    """Values made twice, and their moves, get no warning that the program that keeps all does not get.

    But a reduction that is a scatter and a gather (SH449) is that wherever it is made again.
    """

    def warned(save: str) -> set[tuple[str, str]]:
        found = sl.check(load_text(saving(name, save)), explicit=True)
        return {(d.code, d.mistake.message()) for d in found if d.code != "SH449"}

    least = warned("all")
    for save in SAVES:
        assert warned(save) <= least


@pytest.mark.parametrize("save", SAVES)
@pytest.mark.parametrize("name", SAVING)
def test_a_fix_changes_nothing_of_what_is_held(name: str, save: str) -> None:
    """Whatever is fixed, the backward pass has the same arrays from the forward pass, or fewer."""
    text = saving(name, save)
    costly = re.sub(  # gathered over both axes, and cut again: a fault in each pass that gathers x
        r"( +)x\[B_X, D\] = AllGather_Y\(x\[B_X, D_Y\]\).*",
        r"\1x[B, D_Y] = AllGather_X(x[B_X, D_Y])\n\1x[B, D] = AllGather_Y(x[B, D_Y])\n"
        r"\1x[B_X, D] = Slice_{X,B}(x[B, D])",
        text,
    )
    assert costly != text
    for given in (text, costly):
        fixed = fix(load_text(given))
        assert kept(fixed.text) <= kept(given)
        assert text.split("\nforward:")[0] == fixed.text.split("\nforward:")[0]
        assert bool(fixed.applied) or given == text
