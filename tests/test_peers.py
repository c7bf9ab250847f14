"""The benchmark against other partitioners: what it counts, and the programs that it writes."""

from __future__ import annotations

import pytest
from peers_lib.hlo import count, groups, pairs, UncountedError
from peers_lib.meaning import whole
from peers_lib.programs import Case, generate, kind, MESHES
from peers_lib.report import losses, Row, summary

import shardlang as sl
from shardlang.passes import lower

HEAD = "HloModule m, is_scheduled=true, num_partitions=8\n\n"


def module(*lines: str, before: str = "") -> str:
    """Write a module whose entry has these lines."""
    inside = "".join(f"  {line}\n" for line in lines)
    return f"{HEAD}{before}ENTRY %main (a: f32[8,16]) -> f32[8,16] {{\n{inside}}}\n"


A = "%a = f32[8,16]{1,0} parameter(0)"
"""512 bytes on a device."""


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        # 512 bytes to each of the 3 others.
        ("f32[32,16]{1,0} all-gather(%a), replica_groups=[2,4]<=[8], dimensions={0}", 1536),
        # Of 512 bytes, 3/4 go away.
        ("f32[2,16]{1,0} reduce-scatter(%a), replica_groups=[2,4]<=[8], dimensions={0}", 384),
        ("f32[8,16]{1,0} all-reduce(%a), replica_groups=[2,4]<=[8], to_apply=%add", 768),
        ("f32[8,16]{1,0} all-to-all(%a), replica_groups=[2,4]<=[8], dimensions={0}", 384),
        ("f32[8,16]{1,0} collective-permute(%a), source_target_pairs={{0,1},{1,0}}", 512),
        # Who keeps what it has sends nothing.
        ("f32[8,16]{1,0} collective-permute(%a), source_target_pairs={{0,0},{1,1}}", 0),
        # No groups: all eight devices. Operands may have their shapes before them.
        ("f32[8,16]{1,0} all-reduce(f32[8,16]{1,0} %a), replica_groups={}, to_apply=%add", 896),
        ("f32[16,16]{1,0} all-gather(%a), replica_groups={{0,4},{1,5},{2,6},{3,7}}", 512),
        ("f32[16,16]{1,0} all-gather(%a), replica_groups=mesh['x'=4,'y'=2] {'y'}", 512),
    ],
)
def test_each_collective_sends_what_a_ring_does(line: str, expected: int) -> None:
    """One collective alone, with bytes worked out by hand from its operand and group."""
    found = count(module(A, f"ROOT %c = {line}"))

    assert expected == found.raw == found.corrected == found.shared


def test_a_tuple_counts_all_its_operands() -> None:
    """An all-reduce of 512 and of 64 bytes over two devices sends 576 bytes."""
    found = count(
        module(
            A,
            "%b = bf16[32]{0} parameter(1)",
            "ROOT %c = (f32[8,16]{1,0}, /*index=1*/bf16[32]{0}) all-reduce(%a, %b), "
            "replica_groups=[4,2]<=[8], to_apply=%add",
        )
    )

    assert 576 == found.raw


def test_an_asynchronous_collective_counts_once() -> None:
    """The start has the operand, and the end moves nothing."""
    found = count(
        module(
            A,
            "%s = (f32[8,16]{1,0}, f32[16,16]{1,0}) all-gather-start(%a), "
            "replica_groups=[4,2]<=[8], dimensions={0}",
            "ROOT %d = f32[16,16]{1,0} all-gather-done(%s)",
        )
    )

    assert 512 == found.raw


def test_the_busiest_device_counts() -> None:
    """Two permutes with different senders: device 1 sends in both, the others in one."""
    found = count(
        module(
            A,
            "%p = f32[8,16]{1,0} collective-permute(%a), source_target_pairs={{0,1},{1,0}}",
            "ROOT %q = f32[8,16]{1,0} collective-permute(%p), source_target_pairs={{1,2},{2,1}}",
        )
    )

    assert 1024 == found.raw


SLICED = """%f (p0: f32[8,16], p1: s32[]) -> f32[4,16] {
  %p0 = f32[8,16]{1,0} parameter(0)
  %p1 = s32[] parameter(1)
  %z = s32[] constant(0)
  %t = f32[8,16]{1,0} bitcast(%p0)
  ROOT %s = f32[4,16]{1,0} dynamic-slice(%t, %p1, %z), dynamic_slice_sizes={4,16}
}

"""
REDUCE = "%r = f32[8,16]{1,0} all-reduce(%a), replica_groups=[4,2]<=[8], to_apply=%add"
INDEX = "%i = s32[] parameter(1)"
ZERO = "%z = s32[] constant(0)"


@pytest.mark.parametrize(
    ("lines", "corrected"),
    [
        # Cut by a fusion, behind a bitcast: half of 512.
        (("ROOT %s = f32[4,16]{1,0} fusion(%r, %i), kind=kLoop, calls=%f",), 256),
        # Cut directly, after a copy.
        (
            (
                "%k = f32[8,16]{0,1} copy(%r)",
                "ROOT %s = f32[4,16]{1,0} dynamic-slice(%k, %i, %z), dynamic_slice_sizes={4,16}",
            ),
            256,
        ),
        # Also read whole.
        (
            (
                "%s = f32[4,16]{1,0} fusion(%r, %i), kind=kLoop, calls=%f",
                "%n = f32[8,16]{1,0} negate(%r)",
                "ROOT %o = (f32[4,16]{1,0}, f32[8,16]{1,0}) tuple(%s, %n)",
            ),
            512,
        ),
        # A result of the program.
        (
            (
                "%s = f32[4,16]{1,0} fusion(%r, %i), kind=kLoop, calls=%f",
                "ROOT %o = (f32[4,16]{1,0}, f32[8,16]{1,0}) tuple(%s, %r)",
            ),
            512,
        ),
    ],
)
def test_an_all_reduce_that_is_only_cut_is_a_reduce_scatter(
    lines: tuple[str, ...], corrected: int
) -> None:
    """Both figures are given: 512 bytes as compiled, 256 where every reader takes a half."""
    found = count(module(A, INDEX, ZERO, REDUCE, *lines, before=SLICED))

    assert (512, corrected) == (found.raw, found.corrected)


def test_parts_of_a_tuple_are_corrected_apart() -> None:
    """Of two reduced arrays of 512 bytes one is cut in half and the other is read whole."""
    found = count(
        module(
            A,
            INDEX,
            "%b = f32[8,16]{1,0} parameter(2)",
            "%r = (f32[8,16]{1,0}, f32[8,16]{1,0}) all-reduce(%a, %b), replica_groups=[4,2]<=[8]",
            "%g = f32[8,16]{1,0} get-tuple-element(%r), index=0",
            "%h = f32[8,16]{1,0} get-tuple-element(%r), index=1",
            "%s = f32[4,16]{1,0} fusion(%g, %i), kind=kLoop, calls=%f",
            "ROOT %n = f32[8,16]{1,0} negate(%h)",
            before=SLICED,
        )
    )

    assert (1024, 768) == (found.raw, found.corrected)


def test_a_slice_coarser_than_the_group_leaves_the_rest_to_reduce() -> None:
    """Over four devices, cut in two: scatter 256 of 512 bytes, and reduce 256 over two."""
    reduce = REDUCE.replace("[4,2]<=[8]", "[2,4]<=[8]")
    cut = "ROOT %s = f32[4,16]{1,0} fusion(%r, %i), kind=kLoop, calls=%f"
    found = count(module(A, INDEX, reduce, cut, before=SLICED))

    assert (768, 256 + 256) == (found.raw, found.corrected)


def test_equal_collectives_are_told_apart_from_others() -> None:
    """The same gather twice, its groups written in two ways, and one over other groups."""
    found = count(
        module(
            A,
            "%b = f32[16,16]{1,0} all-gather(%a), replica_groups=[4,2]<=[8], dimensions={0}",
            "%c = f32[16,16]{1,0} all-gather(%a), replica_groups=mesh['x'=4,'y'=2] {'y'}, "
            "dimensions={0}",
            "ROOT %d = f32[16,16]{1,0} all-gather(%a), replica_groups=[4,2]<=[2,4]T(1,0), "
            "dimensions={0}",
        )
    )

    assert (3 * 512, 2 * 512) == (found.raw, found.shared)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("replica_groups={{0,2},{1,3}}", ((0, 2), (1, 3))),
        ("replica_groups=[2,2]<=[4]", ((0, 1), (2, 3))),
        ("replica_groups=[2,2]<=[2,2]T(1,0)", ((0, 2), (1, 3))),
        # [2,3] counted down the columns.
        ("replica_groups=[3,2]<=[2,3]T(1,0)", ((0, 3), (1, 4), (2, 5))),
        ("replica_groups=mesh['x'=2,'y'=2] {'x'}", ((0, 2), (1, 3))),
        ("replica_groups=mesh['x'=2,'y'=2] {'y','x'}", ((0, 2, 1, 3),)),
        # The outer half of an axis of four.
        ("replica_groups=mesh['x'=4] {'x':(1)2}", ((0, 2), (1, 3))),
        ("replica_groups=mesh['x'=4] {'x':(2)2}", ((0, 1), (2, 3))),
        (
            "replica_groups=mesh['x'=2,'y'=2], device_ids=([2,2]T(1,0)) {'x'}",
            ((0, 1), (2, 3)),
        ),
    ],
)
def test_groups_in_every_notation(text: str, expected: tuple[tuple[int, ...], ...]) -> None:
    """Lists, iota with a transposition, and axes of a mesh, worked out by hand."""
    assert expected == tuple(sorted(groups(text, 4)))


def test_pairs_of_a_permute() -> None:
    """Sources and targets, in order."""
    assert [(0, 1), (1, 0), (2, 2)] == pairs("source_target_pairs={{0,1},{1,0},{2,2}}, x=1")


@pytest.mark.parametrize(
    "line",
    [
        "f32[8,16]{1,0} collective-broadcast(%a), replica_groups={{0,1}}",
        "f32[8,16]{1,0} all-reduce(%a), replica_groups=<somehow>",
        "f32[8,16]{1,0} all-reduce(%gone), replica_groups={{0,1}}",
    ],
)
def test_what_is_not_understood_is_an_error(line: str) -> None:
    """Nothing is left out of a count in silence."""
    with pytest.raises(UncountedError):
        count(module(A, f"ROOT %c = {line}"))


# Programs


CASES = generate(120, 3)


def test_the_same_seed_writes_the_same_programs() -> None:
    """A shorter list is the beginning of a longer one, and another seed gives others."""
    assert CASES[:40] == generate(40, 3)
    assert [case.text for case in CASES[:40]] != [case.text for case in generate(40, 4)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_program_lowers(case: Case) -> None:
    """Every program parses, has a plan, leaves nothing partial, and says where its ends are."""
    plan = lower(sl.parse(case.text))
    _, leaves, ends = whole(case.text)

    assert {x.name for x in plan.outputs} == {x.name for x in ends}
    assert {g.leaf.name for g in plan.gradients} == {x.name for x in leaves}
    for array in (*leaves, *ends):
        assert not array.layout.unreduced


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_only_ends_have_layouts(case: Case) -> None:
    """What is between is free, so that no plan is bound by what the peers can't be told."""
    program, _, ends = whole(case.text)
    names = {x.name for x in ends}

    for statement in program.statements:
        assert (statement.target is not None) == (statement.result.name in names)
        assert all(use.layout is None for use in statement.operands)


def test_every_kind_of_layout_and_every_mesh_occurs() -> None:
    """All kinds stand in a hundred programs, and one axis on several operands of a program."""
    kinds = {kind(layout, case.mesh) for case in CASES for layout in case.layouts}
    meshes = {tuple(case.mesh.values()) for case in CASES}
    shared = [case for case in CASES if sum("X" in "".join(layout) for layout in case.layouts) > 1]

    assert {
        "replicated", "one axis", "axes in order", "axes out of order", "two dims",
    } == kinds  # fmt: skip
    assert {tuple(mesh.values()) for mesh in MESHES} == meshes
    assert shared


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        (("", ""), "replicated"),
        (("X", ""), "one axis"),
        (("", "XY"), "axes in order"),
        (("YX", ""), "axes out of order"),
        (("X", "Y"), "two dims"),
    ],
)
def test_kinds_of_layouts(layout: tuple[str, ...], expected: str) -> None:
    """The kinds by example."""
    assert expected == kind(layout, {"X": 4, "Y": 2})


# What is printed


def row(name: str, mine: float, xla: float, dtensor: float | None) -> Row:
    """Make a program's answers."""
    case = Case(name, {"X": 8}, f"the text of {name}\n", ())
    ours = {
        "bytes": mine, "planned": mine, "gap": 0.0, "seconds": 0.5, "warnings": [],
        "collectives": ["ours"], "error": 1e-7,
    }  # fmt: skip
    peers = {"xla": {"raw": 2 * xla, "bytes": xla, "shared": xla, "collectives": ["theirs"]}}
    if dtensor is None:
        return Row(case, ours, {**peers, "dtensor": {"refused": "timed out after 20 s"}})
    return Row(case, ours, {**peers, "dtensor": {"bytes": dtensor, "collectives": []}})


def test_means_and_losses() -> None:
    """Ratios 1/4, 1 (both nothing) and 4, and one program each in which only one side moves."""
    rows = [
        row("better", 10, 40, 80),
        row("nothing", 0, 0, None),
        row("worse", 40, 20, 10),
        row("free", 0, 8, None),
        row("lost", 8, 0, 8),
    ]

    printed = list(summary(rows))
    lost = "\n".join(losses(rows))

    # Against DTensor: 1/8, 4 and 1; against the better one: 1/4, 1, 4.
    against = {text[:33].strip(): text[33:].split() for text in printed}
    half = f"{0.5 ** (1 / 3):.3f}"
    assert [half, "3", "1", "1", "0", "0"] == against["DTensor"]
    assert ["1.000", "5", "2", "2", "1", "1"] == against["best of them"]
    # Twice the bytes of Shardy's, which is the better one in `better` alone, with DTensor's 80.
    assert f"{(1 / 8 * 4) ** (1 / 3):.3f}" == against["best of them, raw"][0]
    assert "DTensor: 3 answered, 2 timed out after 20 s" in printed
    assert "the text of worse" in lost
    assert "the text of lost" in lost
    assert "the text of better" not in lost
    assert "a peer moves less: 2" in lost


def test_a_difference_between_plan_and_module_is_told() -> None:
    """Bytes that the plan does not have, and wrong values, are problems; fewer bytes are a note."""
    good, bad, merged = row("good", 8, 8, 8), row("bad", 8, 8, 8), row("merged", 8, 8, 8)
    bad.ours = {**bad.ours, "planned": 4.0, "error": 0.5}
    merged.ours = {**merged.ours, "planned": 16.0}

    assert not [*good.problems(), *good.notes(), *merged.problems()]
    assert ["values or gradients are wrong by 5.0e-01", "planned 4 bytes, compiled 8"] == list(
        bad.problems()
    )
    assert ["planned 16 bytes, compiled 8: XLA has merged equal steps of the plan"] == list(
        merged.notes()
    )
