"""What a block of layers costs is what its layers cost when they are written one below the other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from layered import KINDS, program

import shardlang as sl
from shardlang.cost.report import MEMORY, Report

EXAMPLES = Path(__file__).parents[1] / "examples"

HEAD = """
mesh X=4, Y=2
hardware tpu_v5p
optimizer adam
dims B=64, D=32, F=128, S=16
input x0: [B_X, D]
"""
WEIGHTS = "param W_in{n}: [D_X, F_Y]\nparam W_out{n}: [F_Y, D_X]\n"
CACHE = "cache kv{n}: int8[B_X, S, D]\n"
BODY = """
a{n}[B_X, S] = x{n}[B_X, D] ·_D kv{n}[B_X, S, D]
c{n}[B_X, D] = a{n}[B_X, S] ·_S kv{n}[B_X, S, D]
h{n}[B_X, F_Y] = gelu(c{n}[B_X, D] ·_D W_in{n}[D, F_Y])
x{m}[B_X, D] = x{n}[B_X, D] + h{n}[B_X, F_Y] ·_F W_out{n}[F_Y, D]
"""
TAIL = "y[B_X] = sum_D(x{n}[B_X, D])\n"


def block(layers: int, saved: str | None) -> str:
    """Write the program with a block; `saved` is what each layer keeps for the backward pass."""
    lines = BODY.format(n="", m="2").replace("x[", "x0[").strip().splitlines()
    body = "".join(f"  {line}\n" for line in lines)
    leaves = WEIGHTS.format(n="") + CACHE.format(n="")
    save = "" if saved is None else f"save {saved}\n"
    return f"{HEAD}{save}{leaves}layers {layers}, x2 -> x0:\n{body}{TAIL.format(n=2)}"


def written(layers: int, saved: str | None) -> str:
    """Write every layer. What goes from one to the next is kept in any case."""
    leaves = "".join((WEIGHTS + CACHE).format(n=n) for n in range(layers))
    body = "".join(BODY.format(n=n, m=n + 1) for n in range(layers))
    kept = [f"{saved}{n}" for n in range(layers)] + [f"x{n}" for n in range(1, layers)]
    save = "" if saved is None else f"save {', '.join(kept)}\n"
    return f"{HEAD}{save}{leaves}{body}{TAIL.format(n=layers)}"


def priced(text: str, *, forward: bool) -> Report:
    """Price a program, its contractions no faster than the memory allows."""
    return sl.cost(sl.lower(sl.parse(text), forward_only=forward), hbm=True)


@pytest.mark.parametrize(("forward", "saved"), [(True, None), (False, None), (False, "c")])
@pytest.mark.parametrize("layers", [1, 2, 3, 4, 5, 6, 9])
def test_a_block_costs_what_its_layers_do(layers: int, forward: bool, saved: str | None) -> None:
    """Times, FLOPs, bytes on the network and of memory, and every part of the memory agree."""
    one, other = (priced(make(layers, saved), forward=forward) for make in (block, written))

    for name, totals in other.totals.items():
        for key, quantity in totals.quantities.items():
            assert one.totals[name].quantity(key).value == quantity.value, (name, key)
    for key, quantity in other.memory.quantities.items():
        found = one.memory.quantity(key).value
        assert found is not None
        assert quantity.value is not None
        if key == "peak":  # the block's stacks are whole while its loops run
            assert found >= quantity.value
        else:
            assert found == quantity.value, key
    conventions = [report.conventions() for report in (one, other)]
    for name, count in conventions[1].by_name.items():
        total = conventions[0][name].total
        assert (total and total.value) == (count.total and count.total.value), name


def test_stacks_are_there_as_a_whole_while_a_loop_runs() -> None:
    """By hand, for 4 of 8 rows in f32: 64 bytes of x, 256 of h, of W and of U a layer, and six layers.

    At its worst the backward loop holds, besides both weights, both stacks of gradients and what it reads (h and
    x of each layer): of its own layer what came in (64), dh (256), and the part of dW that is still to be reduced (256).
    """
    text = (
        "mesh X=2\ndims B=8, D=4, F=16, L=6\ndtype f32\n"
        "input x: [B_X, D]\nparam W: [L, D, F], U: [L, F, D]\n"
        "layers L:\n  h[B_X, F] = x ·_D W\n  x = x + h ·_F U\n"
    )
    weights = gradients = 6 * (256 + 256)
    kept, layer = 6 * (64 + 256), 64 + 256 + 256

    found = priced(text, forward=False).memory.quantity("peak").value

    assert found == weights + gradients + kept + layer


# --- Formulas for any number of layers


def formulas(text: str, *, forward: bool = False) -> dict[int, Report]:
    """Price a program whose layers `{L}` counts, with 1 to 6 of them."""
    return {
        count: priced(text.replace("{L}", str(count)), forward=forward) for count in range(1, 7)
    }


def check_formulas(reports: dict[int, Report]) -> None:
    """Each report's formulas give what the others say, but where the report says from how many layers on."""
    limits = reports[6].exact_from
    for count, other in reports.items():
        assert other.alone == {key for key, least in limits.items() if count < least}
        for key in MEMORY:
            true = other.memory.quantity(key).value
            assert true is not None
            for own, report in reports.items():
                found = report.memory.quantity(key).formula.value(other.known)
                assert found is not None
                if count >= limits.get(key, 1) and own >= limits.get(key, 1):
                    assert found == true, (key, own, count)
                elif own >= limits.get(key, 1) and key not in reports[6].exactness.low:
                    assert found >= true, (key, own, count)


@pytest.mark.parametrize("forward", [False, True])
@pytest.mark.parametrize("name", ["transformer", "pipeline"])
def test_formulas_of_examples_hold_for_any_number_of_layers(name: str, forward: bool) -> None:
    """What is printed for L layers is what a program with another L takes, or the report says where not."""
    text = (EXAMPLES / f"{name}.shd").read_text("utf-8")
    stages = 4 if name == "pipeline" else 1
    reports = {
        count: priced(re.sub(r"\bL=\d+", f"L={count * stages}", text), forward=forward)
        for count in range(1, 7)
    }

    check_formulas(reports)
    if name == "transformer":
        assert reports[1].exact_from == {}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_formulas_hold_for_any_number_of_layers(kind: str, seed: int) -> None:
    """Random programs: activations of a training step always, peaks where the report says so."""
    reports = formulas(program(kind, seed, "L={L}"))

    check_formulas(reports)
    assert "activations" not in reports[6].exact_from


FIRST_AND_LAST = """
mesh X=2
dims B=4, T=8, D=8, F=4, L={L}
dtype f32
save none
input x: [B, T, D]
param W1: [L, B, T, D]
input a2: [B, T]
param W3: [L, B_X, T, D]
param W4: [L, D]
param W5: [L, T, D, F]
param W6: [L, B, F]
param W7: [L, B, F]
param W8: [L, B_X]
input a9: [B, T, D]
input a10: [B]
layers L:
  h00[B, T, D] = (a2 ⊙ W1) + (W4 ⊙ W3)
  h01[B, T_X, D] = (|D| * x) + rmsnorm_B(x)
  x = x + (W5 ·_F W6) / 4
layers L:
  h10 = W7 - W8
  x = x + ((a10 ⊙ W8) ⊙ (x + a9)) / 4
"""


def test_a_formula_that_is_too_low_for_few_layers_is_no_bound() -> None:
    """A single layer takes more at once than the formula of many says, and the report does not call it a bound."""
    one, six = (sl.cost(sl.lower(sl.parse(FIRST_AND_LAST.replace("{L}", n)))) for n in "16")
    true = one.memory.quantity("gathered_peak").value
    found = six.memory.quantity("gathered_peak").formula.value(one.known)
    lines = six.to_text(200).splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("  layers "))
    said = " ".join(" ".join(lines[start:]).split())
    assert true is not None
    assert found is not None

    assert found < true
    assert {"gathered_peak", "total"} == six.exactness.low
    assert "gathered and total: exact from 2 layers on, no bound for fewer" in said


def test_activations_of_few_layers_are_in_proportion_to_them() -> None:
    """By hand: a layer keeps x, what relu is of and h, 2BD + 4BF bytes; the line behind reads the last x."""
    body = "  h[B, F] = relu(x ·_D W_in[D, F])\n  x = x + h ·_F W_out[F, D]\n"
    text = "input x: [B, D]\nlayers L={L}:\n" + body + "Out[B, E] = x ·_D W_end[D, E]\n"
    for count, report in formulas(text).items():
        assert str(report.memory.quantity("activations")) == "2*B*D + 2*B*D*L + 4*B*F*L", count


def test_a_formula_that_needs_two_layers_says_so() -> None:
    """In text and JSON; what holds for one layer alone does not pass for more."""
    reports = formulas(program("norm", 0, "L={L}"))

    assert {"gathered_peak", "total"} <= set(reports[6].exact_from)
    for count, report in reports.items():
        limits = report.to_dict()["layers"]
        said = next(x for x in report.to_text(200).splitlines() if x.startswith("  layers "))
        assert limits == {
            "exact_from": dict(report.exact_from),
            "low": [],
            "alone": sorted(report.exact_from) if count == 1 else [],
        }
        assert ("of this number of layers alone" in said) == (count == 1)
        assert ("exact from 2 layers on, for fewer an upper bound" in said) == (count > 1)


@pytest.mark.parametrize(("layers", "elements"), [(3, 288), (6, 480)])
def test_outputs_of_layers_that_no_gradient_needs(layers: int, elements: int) -> None:
    """Each layer's h and its cotangent meet at the loss: BD + 2LBF + 2BN, and V and what its gradient is added in."""
    text = (
        f"dims B=8, D=2, F=4, N=4, L={layers}\ndtype f32\naccumulate M=2\ninput x: [B, D], a: [B, F]\n"
        "param V: [D, N]\nlayers L:\n  h = 2 * a\n  x = 2 * x\ny = x ·_D V\n"
    )
    found = sl.cost(sl.lower(sl.parse(text))).to_dict()["memory"]["peak"]["value"]

    assert found == 4 * elements


@pytest.mark.parametrize(("layers", "elements"), [(3, 6944), (5, 11360)])
def test_cotangents_of_layers_begin_at_the_loss(layers: int, elements: int) -> None:
    """The loss has (L+1)BD of x, h and dh of LBF each, y and dy, beside weights; no forward moment holds a dh.

    The forward pass then needs (L+1)BD + LBF + BN + B, which is less.
    """
    text = (
        f"dims B=64, D=2, F=16, N=32, L={layers}\ndtype f32\ninput x: [B, D]\n"
        "param W: [L, D, F], V: [D, N]\nlayers L:\n  h = x ·_D W\n  x = 2 * x\ny = sum_N(x ·_D V)\n"
    )
    found = sl.cost(sl.lower(sl.parse(text))).to_dict()["memory"]["peak"]["value"]

    assert found == 4 * elements
