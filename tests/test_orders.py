"""Products in every order, own dims summed first, and equal values as one: in strategy `optimal`."""

from __future__ import annotations

import random
from fractions import Fraction
from pathlib import Path

import exhaustive
import pytest
from simulator import check_numbers
from test_optimal import brute, Line, moved, Small

import shardlang as sl
from shardlang.ir.ops import Einsum
from shardlang.ir.plan import Plan
from shardlang.passes import check
from shardlang.planner.program import plan_program

AGAINST_PEERS = {
    "two own dims": (
        (
            "mesh X=8\ndims M=64, B=32, D=64\nparam W1: [M, B]\nparam W2: [M_X, D]\ninput x3: [M_X]\n"
            "v1[M_X] = W1 * W2 * x3\n"
        ),
        (448, 224),
    ),
    "two axes": (
        (
            "mesh X=2, Y=2\ndims D=64, I=16, M=16\nparam W1: [D, I_Y]\nparam W2: [D_Y, M_X]\n"
            "input x3: [M_XY]\nv1[I_XY] = W1 * W2 * x3\n"
        ),
        (736, 464),
    ),
    "a vector": (
        (
            "mesh X=2, Y=4\ndims D=32, J=32, M=64\nparam W1: [D, J_Y]\nparam W2: [M_Y, D_X]\n"
            "param W3: [D_Y]\nv1[D_Y] = W1 * W2 * W3\n"
        ),
        (352, 304),
    ),
    "own dim of an input": (
        (
            "mesh X=8\ndims M=64, J=32, L=16\ninput x1: [M, J_X]\nparam W2: [M_X, L]\n"
            "param W3: [L_X]\nv1[M_X, L] = x1 * W2 * W3\n"
        ),
        (560, 560),
    ),
    "three axes": (
        (
            "mesh X=2, Y=2, Z=2\ndims D=32, M=16, J=32\nparam W1: [D_X, M_Y]\ninput x2: [D, J]\n"
            "param W3: [J_XYZ]\nv1[D, M_YZ] = W1 * x2 * W3\n"
        ),
        (2800, 752),
    ),
    "outer product": (
        (
            "mesh X=8\ndims L=16, B=16, M=16\ninput x1: [L, B]\ninput x2: [M, B_X]\n"
            "param W3: [B_X]\nv1[L_X, M] = x1 * x2 * W3\n"
        ),
        (1792, 1792),
    ),
    "one value under three names": (
        (
            "mesh X=2, Y=4\ndims B=32, M=16\nparam W1: [B_Y, M_X]\nparam W2: [B_X]\n"
            "param W3: [M_X, B_Y]\nparam W4: [B_X]\n"
            "v1 = tanh(W1)\nv2 = v1 + W2\nv3 = v2 + W3\nv4[B_Y, M_X] = v3 - W4\n"
        ),
        (144, 144),
    ),
}
"""Programs with the bytes of the best of XLA and DTensor, and of the same rewritten by hand."""


def reads_back(plan: Plan) -> None:
    """Hold the printed plan against the plan: legal, at the same cost, with the same ends."""
    printed = sl.parse(str(plan))
    assert [] == [x for x in check(printed, explicit=True) if x.severity == "error"], str(plan)
    again = sl.lower(printed)
    assert moved(plan) == moved(again), str(plan)
    assert (plan.outputs, set(plan.gradients)) == (again.outputs, set(again.gradients))


@pytest.mark.parametrize("name", AGAINST_PEERS)
def test_no_peer_moves_less(name: str) -> None:
    """The plan moves what the program does that is rewritten by hand, at most what peers move."""
    text, (peer, by_hand) = AGAINST_PEERS[name]
    plan = sl.lower(sl.parse(f"dtype f32\n{text}"), "optimal", objective="bytes", sub_axes=False)

    assert plan.proof is not None
    assert plan.proof.optimal
    assert plan.proof.cost == moved(plan)
    assert by_hand == plan.proof.cost <= peer
    check_numbers(plan)
    reads_back(plan)


# Brute force ---------------------------------------------------------------------------------

PRODUCTS = (
    ("IJ", "JK", "KL", "IL"), ("IJ", "J", "JK", "IK"), ("IJ", "JK", "L", "I"), ("IJ", "IK", "I"),
    ("I", "IJ", "J", ""), ("IJ", "JK", "IK"),
)  # fmt: skip


def spelled(name: str, dims: str, state: exhaustive.State) -> str:
    """Write an array in the notation."""
    splits, partial = state
    parts = (d + (f"_{''.join(s)}" if s else "") for d, s in zip(dims, splits, strict=True))
    under = f"{{U_{''.join(sorted(partial))}}}" if partial else ""
    return f"{name}[{', '.join(parts)}]{under}"


def text_of(dims: tuple[str, ...], states: list[exhaustive.State], sizes, axes) -> str:
    """Write a product of operands A, B, .. with the last dims and layout as its result's."""
    arrays = [spelled(n, d, s) for n, d, s in zip("ABCDE", dims, states, strict=False)]
    return (
        f"mesh {', '.join(f'{a}={n}' for a, n in axes)}\n"
        f"dims {', '.join(f'{d}={n}' for d, n in sizes.items())}\n"
        f"{' * '.join(arrays[:-1])} -> {arrays[-1]}\n"
    )


@pytest.mark.parametrize("dims", PRODUCTS, ids=",".join)
@pytest.mark.parametrize(("mesh", "network"), [((4, 2), "link"), ((2, 2), "book")])
def test_no_order_moves_less(mesh: tuple[int, int], dims: tuple[str, ...], network: str) -> None:
    """Forward alone, a search over all parts in all layouts finds nothing that moves less."""
    rng = random.Random(8)
    axes = tuple(zip("XY", mesh, strict=True))
    for _ in range(6):
        sizes = {d: rng.choice((8, 16)) for d in dict.fromkeys("".join(dims))}
        shapes = (tuple(sizes[d] for d in own) for own in dims)
        states = [rng.choice(exhaustive.all_states(shape, axes)) for shape in shapes]
        text = text_of(dims, states, sizes, axes)
        best = exhaustive.best_product(
            dims[:-1], states[:-1], dims[-1], states[-1], sizes, axes, network
        )
        plan = sl.lower(
            sl.parse(text), "optimal", prices=network, forward_only=True, sub_axes=False
        )

        assert plan.proof is not None
        assert plan.proof.optimal, text
        assert 2 * Fraction(best[0], exhaustive.SCALE) == plan.proof.cost, text


TREES = {
    "chain": (("IJ", "JK", "K", "I"), (("AB", "IK"), ("BC", "J"), ("AC", "IJK"))),
    "elementwise": (("IJ", "I", "J", "IJ"), (("AB", "IJ"), ("BC", "IJ"), ("AC", "IJ"))),
    "star": (("IJ", "J", "J", "I"), (("AB", "IJ"), ("BC", "J"), ("AC", "IJ"))),
}
"""Operands and result of three-operand products, and each tree: its first pair and what that has."""


@pytest.mark.parametrize("form", TREES)
@pytest.mark.parametrize("seed", range(4))
def test_both_passes_against_every_tree(form: str, seed: int) -> None:
    """Of both passes, no tree with any joint choice of layouts moves less."""
    dims, trees = TREES[form]
    rng = random.Random(seed)
    axes: exhaustive.Axes = (("X", rng.choice((2, 4))),)
    sizes = {d: rng.choice((4, 8, 16)) for d in dict.fromkeys("".join(dims))}
    shapes = (tuple(sizes[d] for d in own) for own in dims)
    states = [
        rng.choice([s for s in exhaustive.all_states(shape, axes) if not s[1]]) for shape in shapes
    ]
    text = text_of(dims, states, sizes, axes)
    plan = sl.lower(sl.parse(text), "optimal", objective="bytes", sub_axes=False)
    at_once = plan_program(sl.parse(text))
    assert plan.proof is not None
    assert at_once.proof is not None
    assert plan.proof.optimal
    least = at_once.proof.cost
    for pair, between in trees:
        (last,) = set("ABC") - set(pair)
        lines = [Line("einsum", tuple(pair), "t"), Line("einsum", ("t", last), "o")]
        own = {**dict(zip("ABCo", dims, strict=True)), "t": between}
        tree = Small(
            own,
            lines,
            dict(zip("ABC", states, strict=False)),
            {"o": states[-1]},
            sizes,
            axes,
            "link",
        )
        found = brute(tree.both_passes(), int(least / 2 * exhaustive.SCALE))
        if found is not None:
            least = min(least, 2 * Fraction(found, exhaustive.SCALE))

    assert least == plan.proof.cost, f"{text}\n{plan}"


# Programs at random --------------------------------------------------------------------------


def layout(rng: random.Random, dims: list[str], axes: str) -> str:
    """Write dims with axes at random."""
    split = dict.fromkeys(dims, "")
    for axis in axes:
        if rng.random() < 0.6:
            split[rng.choice(dims)] += axis
    return f"[{', '.join(d + ('_' + s if s else '') for d, s in split.items())}]"


def products(seed: int) -> str:
    """Write one or two products of two to four operands, some outputs with no layout declared."""
    rng = random.Random(seed)
    axes = "XYZ"[: rng.choice((1, 2, 2, 3))]
    rows = [
        f"mesh {', '.join(f'{axis}=2' for axis in axes)}",
        f"dims {', '.join(f'{dim}={rng.choice((8, 16))}' for dim in 'IJKL')}",
    ]
    before: tuple[str, list[str]] | None = None
    for number in range(rng.choice((1, 1, 2))):
        own = [rng.sample("IJKL", rng.choice((1, 2, 2))) for _ in range(rng.choice((2, 3, 3)))]
        terms = [f"{rng.choice('Wx')}{number}{i}{layout(rng, d, axes)}" for i, d in enumerate(own)]
        if before is not None:
            terms.append(before[0])
            own.append(before[1])
        there = sorted({dim for dims in own for dim in dims})
        out = rng.sample(there, min(len(there), 2))
        if rng.random() < 0.2:
            out = list(dict.fromkeys([*out, rng.choice("IJKL")]))
        rng.shuffle(terms)
        declared = layout(rng, out, axes) if rng.random() < 0.7 else f"[{', '.join(out)}]"
        rows.append(f"{' * '.join(terms)} -> v{number}{declared}")
        before = (f"v{number}", out)
    return "dtype f32\n" + "\n".join(rows) + "\n"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(24))
def test_orders_compute_the_same(seed: int) -> None:
    """Values and gradients are right, the text reads back, the ends stay, and nothing moves more."""
    program = sl.parse(products(seed))
    plan = sl.lower(program, "optimal", objective="bytes", sub_axes=False, budget=20)
    at_once = plan_program(program)

    assert plan.proof is not None
    assert at_once.proof is not None
    assert plan.proof.cost == moved(plan) <= at_once.proof.cost
    assert at_once.outputs == plan.outputs
    assert {g.leaf: g.gradient for g in at_once.gradients} == {
        g.leaf: g.gradient for g in plan.gradients
    }
    check_numbers(plan, seed)
    reads_back(plan)


# Known answers -------------------------------------------------------------------------------


def test_a_chain_is_multiplied_in_the_order_of_least_work() -> None:
    """With nothing to move, `A * B * v` multiplies by the vector first."""
    text = "mesh X=1\ndims I=8, J=8, K=8\nA[I, J] * B[J, K] * v[K] -> C[I]\n"
    plan = sl.lower(sl.parse(text), "optimal", forward_only=True)

    assert ["Tmp", "C"] == [step.output.name for step in plan.forward]
    assert ["B", "v"] == sorted(array.name for array in plan.forward[0].inputs)


def test_what_one_operand_sums_alone_is_summed_before_it_moves() -> None:
    """`A[I_X, J] * B[I] -> C[I]` gathers the sums of A's rows, not A: 48 elements of bf16."""
    text = "mesh X=4\ndims I=64, J=64\nA[I_X, J] * B[I] -> C[I]\n"
    plan = sl.lower(sl.parse(text), "optimal", forward_only=True)

    assert 96 == moved(plan)
    assert "Tmp[I_X] = sum_J(A[I_X, J])" in str(plan)


def test_names_in_between_are_free() -> None:
    """`Tmp` and the name whose gradient would be taken are skipped."""
    text = (
        "mesh X=2\ndims I=8, J=8, K=8\nTmp[I_X] = tanh(a[I_X])\ndTmp2[I] = sin(b[I])\n"
        "v[I] = Tmp * dTmp2 * W[I, J_X] * U[J, K]\n"
    )
    plan = sl.lower(sl.parse(text), "optimal", objective="bytes", sub_axes=False)

    defined = {s.result.name for s in plan.program.statements}
    assert {"Tmp", "dTmp2", "v", "Tmp3"} <= defined
    assert "Tmp2" not in defined
    check_numbers(plan)
    reads_back(plan)


def test_a_local_product_stays_as_it_is_written() -> None:
    """`·_LOCAL` says what is multiplied: no dim is summed before."""
    text = "mesh X=2\ndims I=8, J=8\nA[I, J_X] ·_LOCAL B[J_X] -> C[I]{U_X}\n"
    plan = sl.lower(sl.parse(text), "optimal", objective="bytes")

    assert [Einsum] == [type(step.op) for step in plan.forward]


def test_an_untried_order_leaves_nothing_proven() -> None:
    """Of five operands only a beam of trees is planned: the printed plan claims no bound."""
    text = (
        "mesh X=2\ndims I=8, J=8, K=8, L=8, M=8\n"
        "v[I, M_X] = A[I_X, J] * B[J, K] * C[K, L] * D[L, M_X] * E[I]\n"
    )
    plan = sl.lower(sl.parse(text), "optimal", objective="bytes", sub_axes=False)

    assert plan.proof is not None
    assert plan.proof.cost <= plan_program(sl.parse(text)).proof.cost
    assert not plan.proof.optimal
    assert plan.proof.bound == 0
    assert "nothing is proven" in str(plan).splitlines()[0]


def test_a_limit_on_memory_may_take_another_order() -> None:
    """Where the best order holds too much, the best one that fits is taken, or the error is honest."""
    text = AGAINST_PEERS["three axes"][0]
    program = sl.parse(f"dtype f32\n{text}")
    free = sl.lower(program, "optimal", objective="bytes", sub_axes=False)
    need = sl.cost(free).to_dict()["memory"]["total"]["value"]
    tight = sl.lower(
        program, "optimal", objective="bytes", sub_axes=False, memory_limit=need - 1, budget=10
    )

    assert free.proof is not None
    assert tight.proof is not None
    assert sl.cost(tight).to_dict()["memory"]["total"]["value"] < need
    assert free.proof.cost == tight.proof.bound <= tight.proof.cost
    with pytest.raises(sl.ShardlangError, match="SH357"):
        sl.lower(program, "optimal", objective="bytes", memory_limit=10, budget=4)


def test_objective_time_profits_as_well(tmp_path: Path) -> None:
    """Summing first takes fewer FLOPs: T_overlapped of the product falls, and never rises."""
    text = "mesh X=2\nhardware tpu_v5e\ndims I=512, J=512, K=512\nA[I, J] * B[J, K] * v[K_X] -> C[I_X]\n"
    program = sl.parse(text)
    plan = sl.lower(program, "optimal", objective="time", forward_only=True)
    book = sl.lower(program, forward_only=True)

    assert plan.proof is not None
    assert plan.proof.optimal
    work = [sl.cost(each).to_dict()["totals"] for each in (plan, book)]
    assert work[0]["forward"]["flops"]["value"] < work[1]["forward"]["flops"]["value"]


# Equal values --------------------------------------------------------------------------------


def test_a_repeated_operation_is_done_once() -> None:
    """`sum_J(A)` in two statements is made and reduced once: 2*(1/2)*16*4 bytes, not twice that."""
    text = (
        "mesh X=2\ndims I=16, J=16\ndtype f32\ninput A: [I, J_X]\nparam w: [I]\nparam u: [I]\n"
        "s = sum_J(A)\nt = sum_J(A)\nv[I] = s ⊙ w\nz[I] = t ⊙ u\n"
    )
    plan = sl.lower(sl.parse(text), "optimal", objective="bytes", forward_only=True)

    assert 64 == moved(plan)
    assert "t" not in {step.output.name for step in plan.forward}
    check_numbers(plan)
    reads_back(plan)


def test_equal_gradients_are_reduced_once() -> None:
    """Two biases of one sum have one gradient, and a subtracted one has its negative."""
    one = (
        "mesh X=4\ndims B=16, D=8\ndtype f32\ninput x: [B_X, D]\nparam b: [D]\nv[B_X, D] = x + b\n"
    )
    two = (
        "mesh X=4\ndims B=16, D=8\ndtype f32\ninput x: [B_X, D]\nparam b: [D]\nparam c: [D]\n"
        "param e: [D]\nu = x + b\nw = u - c\nv[B_X, D] = w + e\n"
    )
    plans = [sl.lower(sl.parse(text), "optimal", objective="bytes") for text in (one, two)]

    assert 2 * 3 * 8 == moved(plans[0]) == moved(plans[1])
    check_numbers(plans[1])
    reads_back(plans[1])


def test_equal_outputs_stay_two() -> None:
    """Outputs that are equal are both made, in the order of the text."""
    text = (
        "mesh X=2\ndims I=16, J=16\ndtype f32\ninput A: [I_X, J]\n"
        "v[I] = sum_J(A)\nw[I_X] = sum_J(A)\nz[I] = tanh(w)\n"
    )
    plan = sl.lower(sl.parse(text), "optimal", objective="bytes")

    assert ["v", "z"] == [array.name for array in plan.outputs]
    check_numbers(plan)
    reads_back(plan)
