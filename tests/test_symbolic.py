"""Plans with sizes left open: known boundaries, the planner by numbers at many points, proofs."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections import Counter
from fractions import Fraction

import pytest
import sympy

import shardlang as sl
from shardlang.cli.main import main
from shardlang.planner.polynomials import Assumed, combination, Polynomial
from shardlang.planner.prices import Link, price
from shardlang.planner.program import plan_program

BOOK = """mesh {mesh}
input A: [I, J_X]
input B: [J, K]
{result} = A ·_J B
"""


def collectives(plan):
    """Name the collectives of a plan in order."""
    return [type(step.op).__name__ for _, step in plan.steps() if step.is_collective]


def holds(piece, sizes):
    """Say whether a piece's condition is true at sizes."""
    values = {sympy.Symbol(name, positive=True): size for name, size in sizes.items()}
    return bool(piece.condition.subs(values))


def bytes_at(piece, sizes):
    """Give what a piece says that it moves at sizes."""
    values = {sympy.Symbol(name, positive=True): size for name, size in sizes.items()}
    value = sympy.Rational(piece.cost.subs(values))
    return Fraction(int(value.p), int(value.q))


def moved(plan, prices="link"):
    """Add up what the collectives of a plan move at its program's sizes."""
    program = plan.program
    return sum(
        (
            price(s.op, s.inputs[0], s.output, program.mesh, program.sizes.known, prices)
            for _, s in plan.steps()
            if not s.is_compute
        ),
        Fraction(0),
    )


# Known answers -------------------------------------------------------------------------------

SLICE_AR = ["AllReduce"]
A2A_AG = ["AllToAll", "AllGather"]
AG = ["AllGather"]
RS = ["ReduceScatter"]
A2A = ["AllToAll"]
A2A_A2A = ["AllToAll", "AllToAll"]

KNOWN = [
    (
        "C[I, K]",
        [("K < J/X", SLICE_AR), ("J/X < K < J*(1 - 1/X)", A2A_AG), ("K > J*(1 - 1/X)", AG)],
        lambda j, k, n: SLICE_AR if k < j / n else A2A_AG if k < j * (1 - 1 / n) else AG,
    ),
    (
        "C[I_X, K]",
        [("K < J/X", RS), ("K > J/X", A2A)],
        lambda j, k, n: RS if k < j / n else A2A,
    ),
    (
        "C[I, K_X]",
        [("K < J/(X - 1)", RS), ("J/(X - 1) < K < J*(X - 1)", A2A_A2A), ("K > J*(X - 1)", AG)],
        # AllGather(A) moves (n-1)/n IJ, two AllToAlls (n-1)/n (IJ + IK)/n: the former is less from
        # K = J(n-1) on; K is sliced by X for free
        lambda j, k, n: RS if k < j / (n - 1) else A2A_A2A if k < j * (n - 1) else AG,
    ),
    ("C[I, K]{U_X}", [("always", [])], lambda j, k, n: []),
]


@pytest.mark.parametrize(("result", "pieces", "right"), KNOWN, ids=[row[0] for row in KNOWN])
def test_boundaries_of_the_contraction_split_by_one_axis(result, pieces, right):
    """For each layout of the result, the plans and where they change are those derived by hand."""
    found = sl.plans(sl.parse(BOOK.format(mesh="X", result=result)), forward_only=True)

    assert found.complete
    assert pieces == [(piece.text, collectives(piece.plan)) for piece in found.pieces]
    for n, j, k in itertools.product((3, 4, 8), (24, 48, 240), (24, 72, 96, 240, 24000)):
        sizes = {"X": n, "I": 24, "J": j, "K": k}
        true = [piece for piece in found.pieces if holds(piece, sizes)]
        if true:
            assert [right(j, k, n)] == [collectives(piece.plan) for piece in true]


@pytest.mark.parametrize(
    ("result", "texts"),
    [
        ("C[I, K]", ["K < J/4", "J/4 < K < 3*J/4", "K > 3*J/4"]),
        ("C[I_X, K]", ["K < J/4", "K > J/4"]),
        ("C[I, K_X]", ["K < J/3", "J/3 < K < 3*J", "K > 3*J"]),
    ],
)
def test_boundaries_with_four_devices(result, texts):
    """With X=4 the conditions have numbers; for I=J=64 the plan changes at K=16 and 48."""
    found = sl.plans(sl.parse(BOOK.format(mesh="X=4", result=result)), forward_only=True)

    assert texts == [piece.text for piece in found.pieces]
    if result == "C[I, K]":
        at = {k: collectives(found.at(I=64, J=64, K=k)) for k in (12, 16, 20, 44, 48, 52)}
        # on a boundary, K=16 and K=48, both plans move the same
        assert [2 * 2 * 64 * 16 * 3 // 4, 2 * 64 * 64 * 3 // 4] == [
            moved(found.at(I=64, J=64, K=k)) for k in (16, 48)
        ]
        assert [SLICE_AR, A2A_AG, A2A_AG, AG] == [at[k] for k in (12, 20, 44, 52)]


@pytest.mark.parametrize(("result", "elements"), [("C[I, K]", 98_304), ("C[I, K_X]", 49_152)])
def test_four_case_rule_is_beaten_where_it_was_seen_to_lose(result, elements):
    """At I=J=4096, K=16 on 4 devices the plan moves 98,304 elements, with a split result half."""
    text = BOOK.format(mesh="X=4", result=result).replace("input A", "dims I=4096, J=4096\ninput A")
    found = sl.plans(sl.parse(text), forward_only=True)

    assert 2 * elements == moved(found.at(K=16))
    assert [2 * elements] == [bytes_at(p, {"K": 16}) for p in found.pieces if holds(p, {"K": 16})]


def test_a_layout_change_has_one_plan():
    """Finishing partial sums takes one AllReduce, 2(n-1)/n of the bytes, whatever the sizes."""
    program = sl.parse("mesh X\ninput A: [I]{U_X}\nB[I] = A\n")
    [piece] = sl.plans(program, forward_only=True).pieces

    assert ["AllReduce"] == collectives(piece.plan)
    assert Fraction(2 * 2 * 12 * 2, 3) == bytes_at(piece, {"X": 3, "I": 12})


# Against the planner by numbers --------------------------------------------------------------

PROGRAMS = {
    "replicated": BOOK.format(mesh="X", result="C[I, K]"),
    "rows": BOOK.format(mesh="X", result="C[I_X, K]"),
    "columns": BOOK.format(mesh="X", result="C[I, K_X]"),
    "two axes": "mesh X=4, Y=2\ninput A: [I_X, J_Y]\ninput B: [J, K]\nC[I, K_X] = A ·_J B\n",
    "two open axes": "mesh X, Y\ninput A: [I_X, J_Y]\ninput B: [J, K]\nC[I, K_X] = A ·_J B\n",
    "one of two axes open": "mesh X, Y=2\ninput A: [I_X, J_Y]\ninput B: [J, K]\nC[I, K] = A ·_J B\n",
    "three operands": (
        "mesh X\ninput A: [I_X, J]\ninput B: [J, K_X]\ninput D: [K, L]\nC[I, L_X] = A * B * D\n"
    ),
    "one operand twice": "mesh X\ninput A: [N_X, M]\nC[M, M'] = A ·_N A[N_X, M']\n",
    "reshard": "mesh X, Y\ninput A: [I_X, J]{U_Y}\nB[I, J_X] = A\n",
    "swap": "mesh X, Y\ninput A: [I_X, J_Y]\nB[I_Y, J_X] = A\n",
    "weights": "mesh X\nparam W: [D_X, F]\ninput A: [B_X, D]\nC[B_X, F] = A ·_D W\n",
    "defined dim": "mesh X\ndims F = 4*D\ninput A: [B, D_X]\ninput W: [D, F]\nC[B, F] = A ·_D W\n",
    "maxima": "mesh X\ninput A: [I, J_X]\nm[I] = max_J(A)\n",
    "softmax": "mesh X\ninput A: [I, J_X]\nP[I, J_X] = softmax_J(A)\n",
    "given dims": "mesh X\ndims I=64, J=64\ninput A: [I, J_X]\ninput B: [J, K]\nC[I, K] = A ·_J B\n",
}

SLOW = ("two open axes", "one of two axes open", "three operands")

CASES = [
    *(
        pytest.param(name, True, "link", marks=pytest.mark.slow if name in SLOW else ())
        for name in PROGRAMS
    ),
    *(
        pytest.param(name, False, "link", marks=pytest.mark.slow)
        for name in ("replicated", "rows", "weights", "given dims")
    ),
    ("replicated", True, "book"),
    ("columns", True, "book"),
    ("replicated", True, "switch"),
]


def points(found, draw, many):
    """Draw admissible sizes, and keep those of each piece where it wins, and where it wins barely."""
    program = found.program
    free_axes = [i.axis.name for i in program.mesh.axes if i.size is None]
    fixed = math.prod(i.size or 1 for i in program.mesh.axes)
    dims = [i.dim.name for i in program.dims if i.size is None and i.declared is None]
    given = any(i.size is not None for i in program.dims)
    choices = (2, 4, 8) if given else (3, 5, 7) if fixed > 1 else (2, 3, 5, 7, 8)
    drawn = []
    for number in range(3000):
        seen = Counter(piece for piece, _, _ in drawn)
        if number >= 300 and all(seen[piece] >= many for piece in range(len(found.pieces))):
            break
        chosen = draw.sample(choices, len(free_axes))
        axes = dict(zip(free_axes, chosen, strict=True))
        devices = fixed * math.prod(axes.values())
        sizes = {**axes, **{d: devices * int(2 ** draw.uniform(0, 8)) for d in dims}}
        ratios = sorted((bytes_at_fast(c, found, sizes), i) for i, c in enumerate(found._costs))
        gap = ratios[1][0] / ratios[0][0] if len(ratios) > 1 and ratios[0][0] else Fraction(2)
        drawn.append((ratios[0][1], gap, sizes))
    kept = []
    for piece in range(len(found.pieces)):
        own = [row for row in drawn if row[0] == piece]
        assert own, f"{found.pieces[piece].text} was never the best of all draws"
        kept += sorted(own, key=lambda row: row[1])[:many] + own[:many]
    return [sizes for _, _, sizes in kept]


def bytes_at_fast(cost, found, sizes):
    """Evaluate a cost with the sizes that others define."""
    return cost.value(found._sizes.complete(sizes))


@pytest.mark.parametrize(("name", "forward_only", "prices"), CASES)
def test_the_piece_that_holds_is_the_optimum(name, forward_only, prices):
    """At sizes within each piece and close to its boundaries, its bytes are what a search finds."""
    program = sl.parse(PROGRAMS[name])
    found = sl.plans(program, forward_only=forward_only, prices=prices)
    draw = random.Random(name)

    assert found.complete
    for sizes in points(found, draw, 4 if forward_only else 3):
        plan = found.at(sizes)
        best = plan_program(plan.program, prices, forward_only=forward_only)
        assert best.proof is not None
        assert best.proof.bound == best.proof.cost == moved(plan, prices), sizes
        every = plan.program.sizes.known
        true = [piece for piece in found.pieces if holds(piece, every)]
        costs = [bytes_at(piece, every) for piece in found.pieces]
        tied = costs.count(min(costs)) > 1
        assert len(true) == 1 or (tied and not true), (sizes, [piece.text for piece in true])
        assert all(bytes_at(piece, every) == best.proof.cost for piece in true)


# Refusals ------------------------------------------------------------------------------------


def codes(call):
    """Give the codes and messages of the mistakes that a call raises."""
    with pytest.raises(sl.ShardlangError) as found:
        call()
    return [(d.code, d.message) for d in found.value.diagnostics]


def test_sizes_outside_of_what_is_assumed():
    """`at` refuses axes of one device, uneven dims, equal axes, and missing sizes."""
    found = sl.plans(sl.parse(PROGRAMS["two open axes"]), forward_only=True)
    good = {"X": 2, "Y": 3, "I": 12, "J": 12, "K": 12}

    assert found.at(good)
    for bad, word in [({"X": 1}, "at least 2"), ({"J": 8}, "multiple of 6"), ({"Y": 2}, "equal")]:
        [(code, message)] = codes(lambda bad=bad: found.at({**good, **bad}))
        assert "SH358" == code
        assert word in message
    [(code, message)] = codes(lambda: found.at(X=2, Y=3, I=6))
    assert "SH351" == code
    assert "J, K have none" in message


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("mesh X\nIn[B_X, D] · W[D_X, F] · V[F, D_X] · Z[D, F] -> Out[B, F]\n", "too many"),
        ("mesh X\ndims F = D + 1\nA[B_X, D] · W[D, F] -> C[B, F]\n", "product"),
        ("mesh X\nA[I_X, J] = AllToAll_{X,I}(A0[I, J_X])\n", "states a collective"),
    ],
)
def test_what_is_beyond_it_is_refused_with_the_reason(text, why):
    """SH351 says why there is no answer with sizes left open."""
    [(code, message)] = codes(lambda: sl.plans(sl.parse(text)))

    assert "SH351" == code
    assert why in message


class Stepped(Link):
    """Prices that depend on sizes by cases."""

    name = "stepped"

    def all_gather(self, moved):
        """Charge more on many devices."""
        return moved.operand if moved.n < 4 else moved.operand * moved.n


def test_prices_that_are_no_formulas_are_refused():
    """A price list that compares sizes has no formulas."""
    program = sl.parse(PROGRAMS["replicated"])
    [(code, message)] = codes(lambda: sl.plans(program, prices=Stepped()))

    assert "SH351" == code
    assert "'stepped'" in message


def test_one_plan_where_all_sizes_are_known():
    """With every size given there is one piece, which always holds."""
    program = sl.parse(PROGRAMS["replicated"])
    found = sl.plans(program, {"X": 4, "I": 64, "J": 64, "K": 16}, forward_only=True)
    [piece] = found.pieces

    assert "always" == piece.text
    assert found.complete
    assert SLICE_AR == collectives(found.at())


# Command line --------------------------------------------------------------------------------


@pytest.fixture
def book(tmp_path):
    """Give the path of the program whose conditions are known."""
    path = tmp_path / "case.shd"
    path.write_text(PROGRAMS["replicated"], encoding="utf-8")
    return str(path)


def test_lower_prints_every_piece(book, capsys):
    """`lower` prints the conditions as comments, and each program parses and passes as explicit."""
    assert main(["lower", book, "--strategy", "optimal", "--pass", "forward"]) == 0
    text = capsys.readouterr().out
    heading, *pieces = text.split("\n\n")

    assert "// optimal: no plan on whole axes moves less" in heading.splitlines()
    assert [f"// when {condition}" for condition, _ in KNOWN[0][1]] == [
        piece.splitlines()[0] for piece in pieces
    ]
    assert [[]] * 3 == [sl.check(piece, explicit=True) for piece in pieces]


def test_json_of_open_sizes(book, capsys):
    """`lower` and `cost` give a list of pieces as JSON."""
    for command in ("lower", "cost"):
        arguments = [
            command,
            book,
            "--strategy",
            "optimal",
            "--pass",
            "forward",
            "--format",
            "json",
        ]
        assert main(arguments) == 0
        data = json.loads(capsys.readouterr().out)
        assert data["complete"] is True
        assert [condition for condition, _ in KNOWN[0][1]] == [
            piece["condition"] for piece in data["pieces"]
        ]
        assert "4*I*K*(1 - 1/X)" == data["pieces"][0]["bytes"]


@pytest.mark.parametrize("form", ["text", "markdown", "latex"])
def test_cost_reports_every_piece(book, capsys, form):
    """`cost` prints a report for each condition, in every format."""
    assert main(["cost", book, "--strategy", "optimal", "--format", form, "--model", "link"]) == 0
    text = capsys.readouterr().out

    assert 3 == text.count("// when ") + text.count("% when ")


def test_emitting_needs_the_sizes(book, capsys):
    """A module is of one plan: without sizes there is none to write."""
    assert main(["emit-jax", book, "--strategy", "optimal"]) == 1
    assert "SH351" in capsys.readouterr().err


# Proofs --------------------------------------------------------------------------------------


def test_combinations_with_known_answers():
    """Systems made from weights are solvable; those with a certificate against them are not."""
    draw = random.Random(7)
    for _ in range(200):
        rows, many = draw.randint(1, 8), draw.randint(1, 6)
        columns = [[draw.randint(-5, 5) for _ in range(rows)] for _ in range(many)]
        weights = [draw.randint(0, 3) for _ in range(many)]
        bound = [
            sum(w * c[r] for w, c in zip(weights, columns, strict=True)) + draw.randint(0, 2)
            for r in range(rows)
        ]
        assert combination(columns, bound)
        # with multipliers y >= 0, y·column >= 0 for all columns and y·bound < 0 rule all weights out
        multipliers = [draw.randint(0, 3) for _ in range(rows)]
        if not any(multipliers):
            continue
        at = next(r for r in range(rows) if multipliers[r])
        for column in columns:
            total = sum(m * c for m, c in zip(multipliers, column, strict=True))
            column[at] += max(0, -total)
        total = sum(m * b for m, b in zip(multipliers, bound, strict=True))
        bound[at] -= max(0, total) + 1
        assert not combination(columns, bound)


def test_nothing_false_is_proven():
    """What is proven of random sums holds at all of many sizes, and simple truths are proven."""
    draw = random.Random(3)
    n, i = Polynomial({(("X", 1),): Fraction(1)}), Polynomial({(("I", 1),): Fraction(1)})
    assumed = Assumed(("X",), ("I",), n)
    proven = 0
    for _ in range(300):
        value = sum(
            (draw.randint(-3, 3) * a * b for a in (1, n, 1 / n) for b in (1, i)), Polynomial({})
        )
        claims = assumed.never_negative(value)
        proven += claims
        if claims:
            sizes = [{"X": x, "I": x * k} for x in range(2, 12) for k in (1, 2, 5, 100)]
            assert all(value.value(s) >= 0 for s in sizes)

    assert proven > 30
    assert assumed.never_negative(1 - 2 / n)
    assert assumed.never_negative((n - 2) * (n - 3))
    assert assumed.positive(i - n + 1)
    assert not assumed.positive(n - 2)
    assert not assumed.never_negative(i - n - 1)
