"""Indices, comparisons, `where`, `take`, `put` and cross entropy: what they mean and how they lie."""

from __future__ import annotations

import pytest
from layouts import all_layouts, samples
from simulator import check_numbers

from shardlang.frontend.resolve import load_text
from shardlang.ir.plan import Plan
from shardlang.ir.printer import print_plan, statement
from shardlang.ir.types import Array, Dim, DTYPES, Layout, Tensor
from shardlang.passes import check, lower

MESH = "mesh X=2, Y=2\n"


def plan_of(text: str, **options: bool) -> Plan:
    """Lower a text."""
    return lower(load_text(MESH + text), **options)


def collectives(plan: Plan) -> list[str]:
    """List the collectives of both passes as lines."""
    return [statement(step) for _, step in plan.steps() if step.is_collective]


def same_again(plan: Plan) -> None:
    """A printed plan is legal, and lowering it again changes nothing."""
    printed = print_plan(plan)
    again = load_text(printed)

    assert [] == [d for d in check(again, explicit=True) if d.code not in ("SH451", "SH452")]
    assert printed == print_plan(lower(again))


def written(name: str, dims: str, layout: Layout | None) -> str:
    """Write a mention of a tensor with one-letter dims."""
    if layout is None:
        return name
    return str(Array(Tensor(name, tuple(map(Dim, dims)), DTYPES["bf16"]), layout))


# Every layout -------------------------------------------------------------------------------------

OPERATIONS = {
    "take": ("take_V({A}, {P})", {"A": "VD", "P": "BT"}, "BTD"),
    "take along a last dim": ("take_V({A}, {P})", {"A": "DV", "P": "B"}, "BD"),
    "take labels": ("take_V({A}, {P})", {"A": "BVT", "P": "TB"}, "BT"),
    "take between": ("take_{{E,C}}({A}, {P}, {Q})", {"A": "EDC", "P": "BS", "Q": "SB"}, "SDB"),
    "take in groups": ("take_E({A}, {P})", {"A": "BED", "P": "BS"}, "SBD"),
    "put": ("put_{{E,C}}({A}, {P}, {Q})", {"A": "SD", "P": "SJ", "Q": "JS"}, "DEC"),
    "put in groups": ("put_E({A}, {P})", {"A": "BSD", "P": "BS"}, "BDE"),
    "put with nothing summed": ("put_V({A}, {P})", {"A": "BT", "P": "TB"}, "TVB"),
    "put what has other dims": ("put_E({A}, {P})", {"A": "SD", "P": "S"}, "E"),
    "put one value often": ("put_E({A}, {P})", {"A": "D", "P": "S"}, "ED"),
    "where 0": ("where({P}, {A}, 0)", {"A": "ST", "P": "T"}, "TS"),
    "where -inf": ("exp(where({P}, {A}, -inf))", {"A": "T", "P": "ST"}, "ST"),
    "where two": ("where({P}, {A}, {B})", {"A": "ST", "B": "TS", "P": "S"}, "ST"),
    "where a number": ("where({P}, 1.5, {A})", {"A": "ST", "P": "TS"}, "ST"),
    "compare": ("{P} <= {Q}", {"P": "ST", "Q": "T"}, "TS"),
    "compare with a number": ("{P} > 1", {"P": "ST"}, "ST"),
    "compare with an index": ("index_T >= {P}", {"P": "ST"}, "ST"),
    "cross entropy": ("cross_entropy_V({A}, {P})", {"A": "BTV", "P": "BT"}, "TB"),
    "logsumexp": ("logsumexp_V({A})", {"A": "BV"}, "B"),
    "log_softmax": ("log_softmax_V({A})", {"A": "BV"}, "VB"),
}
"""Expressions; operands P and Q are integers. The last are the result's dims."""


@pytest.mark.parametrize("name", OPERATIONS)
def test_numbers_in_every_layout(name: str) -> None:
    """Values and gradients agree with the whole program in layouts of all kinds."""
    form, dims, result = OPERATIONS[name]
    pools = [all_layouts(len(own), "XY", partial=operand in "AB") for operand, own in dims.items()]
    targets = [*all_layouts(len(result), "XY", partial="compare" not in name), None]

    for drawn in samples(*pools, targets, count=30, seed=len(name)):
        *layouts, target = drawn
        inputs = {
            o: written(o, own, lay) for (o, own), lay in zip(dims.items(), layouts, strict=True)
        }
        if target is None and "put" in form:
            target = Layout.replicated(len(result))
        kinds = "".join(
            f"input {i.replace('[', ': int32[', 1)}\n" for o, i in inputs.items() if o in "PQ"
        )
        text = f"{kinds}{written('C', result, target)} = {form.format(**inputs)}\n"
        plan = plan_of(f"dims V=4, D=4, B=4, T=4, E=4, C=4, S=4, J=4\n{text}")
        try:
            check_numbers(plan, seed=7)
            same_again(plan)
        except Exception as error:
            raise AssertionError(f"{text}\n{plan}") from error
