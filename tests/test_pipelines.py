"""Schedules of pipelines: their tables, what executing them takes, and what is refused."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, strategies

import shardlang as sl
from shardlang.diagnostics import ShardlangError
from shardlang.pipelines.errors import (
    Deadlock,
    Doubled,
    Foreign,
    Missing,
    NoChunks,
    NothingToSchedule,
    OddStages,
    TooFewMicrobatches,
    TooMuchWork,
    UnevenMicrobatches,
)
from shardlang.pipelines.schedules import Durations, SCHEDULES
from shardlang.pipelines.simulate import Run, simulate
from shardlang.pipelines.table import Place, Table, Work

SVG = "{http://www.w3.org/2000/svg}"

ONE = Durations()
"""F = B = W = 1, as the papers take them."""

UNEVEN = Durations(Fraction(7, 3), Fraction(5, 2), Fraction(1, 6))
DUAL = Durations(Fraction(9, 4), Fraction(9, 4), Fraction(2, 3))


def many(
    stages: range, microbatches: range, fits: Callable[[int, int], bool] = lambda p, m: True
) -> list[tuple[int, int]]:
    """List combinations of stages and microbatches."""
    return [(p, m) for p in stages for m in microbatches if fits(p, m)]


def bubble_share(idle: Fraction, microbatches: int, t: Durations) -> Fraction:
    """Give idle time as a share of a step: work and idle time."""
    return idle / (microbatches * (t.forward + t.input + t.weights) + idle)


# ---- Against the literature ------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
@pytest.mark.parametrize("durations", [ONE, UNEVEN])
def test_straight_schedules_wait_for_p_minus_1_of_m_plus_p_minus_1(
    name: str, durations: Durations
) -> None:
    """The simulated bubble is (p - 1) / (m + p - 1) exactly, whatever the durations."""
    cases = many(range(1, 9), range(1, 14))
    assert len(cases) >= 50
    for p, m in cases:
        run = simulate(SCHEDULES[name].make(p, m, 1), durations)

        assert Fraction(p - 1, m + p - 1) == run.bubble, (p, m)
        assert SCHEDULES[name].share(p, m, 1, durations) == run.bubble


@pytest.mark.parametrize("chunks", [2, 3, 5])
@pytest.mark.parametrize("durations", [ONE, UNEVEN])
def test_interleaving_divides_the_bubble_by_the_chunks(chunks: int, durations: Durations) -> None:
    """The simulated bubble is (p - 1) / (v m + p - 1) exactly."""
    cases = many(range(1, 8), range(1, 29), lambda p, m: m % p == 0)
    assert len(cases) >= 50
    for p, m in cases:
        run = simulate(SCHEDULES["interleaved"].make(p, m, chunks), durations)

        assert Fraction(p - 1, chunks * m + p - 1) == run.bubble, (p, m)
        assert SCHEDULES["interleaved"].share(p, m, chunks, durations) == run.bubble


@pytest.mark.parametrize("t", [ONE, UNEVEN])
def test_zb_h1_waits_for_p_minus_1_times_f_plus_b_minus_w(t: Durations) -> None:
    """Table 1 of Qi et al.: (p - 1)(F + B - W), where W takes no longer than F and B."""
    cases = many(range(1, 9), range(1, 16), lambda p, m: m >= p)
    assert len(cases) >= 50
    for p, m in cases:
        run = simulate(SCHEDULES["zb-h1"].make(p, m, 1), t)

        idle = (p - 1) * (t.forward + t.input - t.weights)
        assert bubble_share(idle, m, t) == run.bubble, (p, m)


@pytest.mark.parametrize("t", [ONE, UNEVEN])
def test_zb_h2_waits_for_p_minus_1_times_f_plus_b_minus_2w(t: Durations) -> None:
    """Nothing waits between a stage's first and last work where F = B = W: (p - 1)(F + B - 2W)."""
    cases = many(range(1, 7), range(1, 20), lambda p, m: m >= 2 * p - 1)
    assert len(cases) >= 50
    for p, m in cases:
        run = simulate(SCHEDULES["zb-h2"].make(p, m, 1), t)

        idle = (p - 1) * (t.forward + t.input - 2 * t.weights)
        assert bubble_share(idle, m, t) == run.flowing_bubble, (p, m)
        if t == ONE:
            assert run.flowing_bubble == 0


@pytest.mark.parametrize("t", [ONE, DUAL])
def test_dualpipe_waits_as_the_report_says(t: Durations) -> None:
    """Table 2 of the DeepSeek-V3 report: (p/2 - 1)(F&B + B - 3W), whole backwards B, F&B without gain."""
    cases = many(range(2, 11, 2), range(4, 44, 2), lambda p, m: m >= 2 * p)
    assert len(cases) >= 50
    for p, m in cases:
        run = simulate(SCHEDULES["dualpipe"].make(p, m, 1), t)

        whole = t.input + t.weights
        idle = (p // 2 - 1) * ((t.forward + whole) + whole - 3 * t.weights)
        assert bubble_share(idle, m, t) == run.bubble, (p, m)


def test_where_a_formula_is_no_longer_exact_the_row_says_so() -> None:
    """With a dW longer than F the zero-bubble formula claims too little, with sending too."""
    for name, t in (
        ("zb-h1", Durations(weights=Fraction(2))),
        ("dualpipe", Durations(forward=Fraction(3))),
        ("1f1b", Durations(send=Fraction(1, 2))),
    ):
        row = SCHEDULES[name]
        run = simulate(row.make(4, 8, 1), t)

        assert not row.exact(t)
        assert row.share(4, 8, 1, t) != run.bubble


def test_sending_is_waited_for_once_each_way_in_gpipe() -> None:
    """(m + p - 1)(F + B + W) and 2 (p - 1) times the sending."""
    t = replace(UNEVEN, send=Fraction(3, 7))
    for p, m in many(range(1, 6), range(1, 6)):
        run = simulate(SCHEDULES["gpipe"].make(p, m, 1), t)

        assert (m + p - 1) * Fraction(5) + 2 * (p - 1) * t.send == run.seconds


def test_what_a_stage_holds() -> None:
    """Microbatches in flight at the most, as the papers claim, stage by stage."""
    claims: dict[str, Callable[[int, int, int], int | Fraction]] = {
        "gpipe": lambda s, p, m: m,
        "1f1b": lambda s, p, m: min(p - s, m),
        "zb-h1": lambda s, p, m: p,
        "zb-h2": lambda s, p, m: 2 * p - 1,
        "dualpipe": lambda s, p, m: p + 1,
        "interleaved": lambda s, p, m: Fraction(min(2 * (p - s - 1) + p + 1, 2 * m), 2),
    }
    tried: Counter[str] = Counter()
    for name, claim in claims.items():
        chunks = 2 if name == "interleaved" else 1
        for p, m in many(range(1, 9), range(1, 20)):
            if SCHEDULES[name].mistake(p, m, chunks):
                continue
            tried[name] += 1
            run = simulate(SCHEDULES[name].make(p, m, chunks), ONE)

            assert tuple(claim(s, p, m) for s in range(p)) == run.held, (name, p, m)
            assert tuple(SCHEDULES[name].held(s, p, m, chunks) for s in range(p)) == run.held
    assert min(tried.values()) >= 20


def test_weights_are_held_once_and_by_dualpipe_twice() -> None:
    """Each stage of DualPipe has the layers of two."""
    found = {
        name: row.make(4, 8, 3 if row.chunked else 1).weights for name, row in SCHEDULES.items()
    }

    assert {name: 2 if name == "dualpipe" else 1 for name in SCHEDULES} == found


# ---- Tables ---------------------------------------------------------------------------------------


def test_the_tables_of_the_papers() -> None:
    """1F1B on 4 stages, as drawn by Narayanan et al. (figure 4, top); Megatron's interleaving; ZB-H1."""
    assert SCHEDULES["1f1b"].make(4, 5, 1).text() == (
        "stage 0: F0 F1 F2 F3 BW0 F4 BW1 BW2 BW3 BW4\n"
        "stage 1: F0 F1 F2 BW0 F3 BW1 F4 BW2 BW3 BW4\n"
        "stage 2: F0 F1 BW0 F2 BW1 F3 BW2 F4 BW3 BW4\n"
        "stage 3: F0 BW0 F1 BW1 F2 BW2 F3 BW3 F4 BW4"
    )
    assert SCHEDULES["interleaved"].make(2, 4, 2).text() == (
        "stage 0: F0a F1a F0b F1b F2a BW0b F3a BW1b F2b BW0a F3b BW1a BW2b BW3b BW2a BW3a\n"
        "stage 1: F0a F1a F0b BW0b F1b BW1b F2a BW0a F3a BW1a F2b BW2b F3b BW3b BW2a BW3a"
    )
    assert SCHEDULES["zb-h1"].make(3, 4, 1).text() == (
        "stage 0: F0 F1 F2 B0 W0 F3 B1 W1 B2 W2 B3 W3\n"
        "stage 1: F0 F1 B0 F2 B1 W0 F3 B2 W1 B3 W2 W3\n"
        "stage 2: F0 B0 F1 B1 F2 B2 W0 F3 B3 W1 W2 W3"
    )


def ends(run: Run) -> dict[tuple[str, int, int], tuple[Fraction, Fraction]]:
    """Give when each of F, B and W of a microbatch begins and ends, by its place on the route."""
    found: dict[tuple[str, int, int], tuple[Fraction, Fraction]] = {}
    for stage, row in enumerate(run.events):
        for event in row:
            work = event.work
            number = run.table.routes[work.microbatch].index(Place(stage, work.chunk))
            for kind in work.kind:
                assert (kind, work.microbatch, number) not in found
                found[kind, work.microbatch, number] = (event.start, event.end)
    return found


def assert_possible(run: Run) -> None:
    """Hold the times against what each piece of work needs, and each stage against its one machine."""
    for row in run.events:
        for before, after in pairwise(row):
            assert before.end <= after.start
    times = ends(run)
    length = len(run.table.routes[0])

    def sent(microbatch: int, one: int, other: int) -> Fraction:
        route = run.table.routes[microbatch]
        return run.durations.send * (route[one].stage != route[other].stage)

    assert len(times) == 3 * run.table.microbatches * length
    for (kind, i, n), (start, _) in times.items():
        if kind == "F" and n:
            assert times["F", i, n - 1][1] + sent(i, n - 1, n) <= start
        if kind == "B":
            assert times["F", i, n][1] <= start
            if n + 1 < length:
                assert times["B", i, n + 1][1] + sent(i, n + 1, n) <= start
        if kind == "W":
            assert times["B", i, n][0] <= start


@pytest.mark.parametrize("name", SCHEDULES)
def test_times_keep_to_the_dependencies(name: str) -> None:
    """Nothing begins before what it needs is there."""
    row = SCHEDULES[name]
    for p, m in many(range(1, 7), range(1, 15)):
        chunks = 2 if row.chunked else 1
        if row.mistake(p, m, chunks) is None:
            run = simulate(row.make(p, m, chunks), replace(UNEVEN, send=Fraction(1, 5)))
            assert_possible(run)


# ---- What is refused ------------------------------------------------------------------------------


def changed(table: Table, stage: int, order: list[Work]) -> Table:
    """Give a table with another order of one stage."""
    orders = list(table.orders)
    orders[stage] = tuple(order)
    return replace(table, orders=tuple(orders))


def refusal(table: Table) -> Any:
    """Give the one diagnostic of a table."""
    with pytest.raises(ShardlangError) as caught:
        simulate(table)
    (found,) = caught.value.diagnostics
    return found


def test_a_missing_entry_is_named() -> None:
    """A stage that never does a backward."""
    table = SCHEDULES["zb-h1"].make(3, 4, 1)
    order = [work for work in table.orders[1] if work != Work("W", 2)]
    found = refusal(changed(table, 1, order))

    assert Missing(1, "W2") == found.mistake
    assert "stage 1 never does W2" == found.message
    assert found.line == 2


def test_a_doubled_entry_is_named_at_its_place() -> None:
    """A stage that does a forward twice."""
    table = SCHEDULES["1f1b"].make(3, 4, 1)
    order = [*table.orders[2], Work("F", 1)]
    found = refusal(changed(table, 2, order))

    assert Doubled(2, "F1") == found.mistake
    start, end = found.span.start, found.span.end
    assert "F1" == found.source.text[start:end]
    assert end == len(found.source.text)


@pytest.mark.parametrize(
    ("work", "why"),
    [
        (Work("F", 9), "there are 4 microbatches, counted from 0"),
        (Work("F", 1, 3), "it has 2 chunks, counted from a"),
        (Work("F", 3, 0), "microbatch 3 does not come through chunk 0 of this stage"),
    ],
)
def test_work_of_nobody_is_refused(work: Work, why: str) -> None:
    """A microbatch, a chunk or a direction that a stage does not have."""
    table = SCHEDULES["dualpipe"].make(2, 4, 1)
    found = refusal(changed(table, 0, [*table.orders[0], work]))

    assert Foreign(0, work.text(chunks=False), why) == found.mistake


def test_a_stage_that_goes_back_before_it_went_forward() -> None:
    """One dependency broken: the backward of a microbatch before its own forward."""
    table = SCHEDULES["1f1b"].make(2, 3, 1)
    order = list(table.orders[1])
    a, b = order.index(Work("F", 1)), order.index(Work("BW", 1))
    order[a], order[b] = order[b], order[a]
    found = refusal(changed(table, 1, order))

    assert "no stage can go on: stage 1 is to do BW1 before the F1 that it needs" == found.message
    assert "BW1" == found.source.text[found.span.start : found.span.end]


def test_stages_that_wait_for_each_other() -> None:
    """The last stage wants microbatch 1 first, which the first sends only after 0 came back."""
    table = Table(
        "mine",
        ((Place(0), Place(1)),) * 2,
        (
            (Work("F", 0), Work("BW", 0), Work("F", 1), Work("BW", 1)),
            (Work("F", 1), Work("BW", 1), Work("F", 0), Work("BW", 0)),
        ),
    )
    found = refusal(table)

    assert isinstance(found.mistake, Deadlock)
    assert {
        "stage 0 waits with BW0 for B0 of stage 1",
        "stage 1 waits with F1 for F1 of stage 0",
    } == set(found.mistake.waits)


@given(strategies.data())
def test_a_shuffled_table_is_refused_or_right(data: strategies.DataObject) -> None:
    """Two entries exchanged: either refused, or every dependency holds in the times found."""
    name = data.draw(strategies.sampled_from(sorted(SCHEDULES)))
    table = SCHEDULES[name].make(2, 4, 2 if SCHEDULES[name].chunked else 1)
    table = replace(
        table, orders=tuple(tuple(replace(w, joined=False) for w in o) for o in table.orders)
    )
    stage = data.draw(strategies.integers(0, 1))
    order = list(table.orders[stage])
    a, b = (data.draw(strategies.integers(0, len(order) - 1)) for _ in range(2))
    order[a], order[b] = order[b], order[a]
    try:
        run = simulate(changed(table, stage, order))
    except ShardlangError as error:
        assert all(isinstance(d.mistake, Deadlock) for d in error.diagnostics)  # noqa: PT017
        places = {w: n for n, w in enumerate(order)}
        assert places != {w: n for n, w in enumerate(table.orders[stage])}
    else:
        assert_possible(run)


@pytest.mark.parametrize(
    ("name", "numbers", "expected"),
    [
        ("gpipe", (0, 4, 1), NothingToSchedule("stages")),
        ("gpipe", (4, 4, 2), NoChunks("gpipe", 2)),
        ("interleaved", (4, 4, 1), NoChunks("interleaved", 1)),
        ("zb-h1", (4, 3, 1), TooFewMicrobatches("zb-h1", 4, 3, 4)),
        ("zb-h2", (4, 6, 1), TooFewMicrobatches("zb-h2", 4, 6, 7)),
        ("dualpipe", (3, 8, 1), OddStages("dualpipe", 3)),
        ("dualpipe", (4, 6, 1), TooFewMicrobatches("dualpipe", 4, 6, 8)),
        ("1f1b", (10**6, 10**6, 1), TooMuchWork(10**6, 10**6, 1, 20_000)),
    ],
)
def test_numbers_that_a_schedule_does_not_take(
    name: str, numbers: tuple[int, int, int], expected: object
) -> None:
    """Each is refused with its reason."""
    found = SCHEDULES[name].mistake(*numbers)

    assert expected == found


@pytest.mark.parametrize(
    ("name", "numbers", "hint"),
    [("interleaved", (4, 6, 2), "take 4 or 8"), ("dualpipe", (4, 9, 1), "take 8 or 10")],
)
def test_groups_of_microbatches(name: str, numbers: tuple[int, int, int], hint: str) -> None:
    """Interleaving takes groups of one a stage, DualPipe pairs."""
    found = SCHEDULES[name].mistake(*numbers)

    assert isinstance(found, UnevenMicrobatches)
    assert hint == found.hint()


def test_the_hint_of_chunks_is_a_schedule_that_is_read() -> None:
    """`schedule interleaved` alone has one chunk on each stage: the line that the hint gives has two."""
    text = (
        "mesh Z=2\naccumulate i=4\nschedule interleaved\ninput x: [B]\nlayers L_Z=4:\n  x = x + x"
    )
    (found,) = sl.check(text)
    line = (found.hint or "").split("`")[1]

    assert "SH715" == found.code
    assert [] == sl.check(text.replace("schedule interleaved", line))


# ---- The command ----------------------------------------------------------------------------------


PIPELINE = ("schedule", "--stages", 4, "--microbatches", 8)


def test_the_picture_fits_80_columns(shardlang) -> None:
    """1F1B as everybody draws it: a character is half a unit, rows are stages."""
    found = shardlang(*PIPELINE, "--schedule", "1f1b")

    assert (found.status, found.err) == (0, "")
    lines = found.out.splitlines()
    assert max(map(len, lines)) <= 80
    assert "1f1b: 4 stages, 8 microbatches. Bubble 27.3% (3/11); a stage holds up to 4" == lines[0]
    assert [
        "stage 0 F0F1F2F3············B0==F4B1==F5B2==F6B3==F7B4==··B5==··B6==··B7==",
        "stage 1 ··F0F1F2········B0==F3B1==F4B2==F5B3==F6B4==F7B5==··B6==··B7==····",
        "stage 2 ····F0F1····B0==F2B1==F3B2==F4B3==F5B4==F6B5==F7B6==··B7==········",
        "stage 3 ······F0B0==F1B1==F2B2==F3B3==F4B4==F5B5==F6B6==F7B7==············",
    ] == lines[3:7]


@pytest.mark.parametrize("columns", [40, 80, 200])
@pytest.mark.parametrize(
    "more",
    [
        ("--schedule", "interleaved", "--chunks", 3),
        ("--schedule", "dualpipe"),
        ("--schedule", "zb-h1", "--microbatches", 500),
        ("--schedule", "gpipe", "--stages", 1, "--microbatches", 1),
        ("--schedule", "1f1b", "--times", "1.2345,2.3456,1.17,0.013"),
        ("--schedule", "1f1b", "--times", "1,0,0"),
    ],
)
def test_pictures_keep_to_the_width(shardlang, monkeypatch, columns: int, more: Any) -> None:
    """Whatever the durations and the width, no line is longer, and all stages have equally long rows."""
    monkeypatch.setenv("COLUMNS", str(columns))
    found = shardlang(*PIPELINE, *more)
    lines = found.out.splitlines()
    rows = [line for line in lines if line.startswith("stage ")]

    assert (found.status, found.err) == (0, "")
    assert rows
    assert max(map(len, rows)) <= columns
    assert columns < 80 or max(map(len, lines)) <= columns


def test_the_table_of_all_schedules_says_who_can_not(shardlang) -> None:
    """Three stages are not for DualPipe, seven microbatches not for interleaving."""
    out = shardlang("schedule", "--stages", 3, "--microbatches", 7).out

    assert re.search(r"^1f1b +22\.2% +22\.2% +\(p - 1\)\(F \+ B \+ W\) +3 +1x$", out, re.MULTILINE)
    assert "not dualpipe: dualpipe runs the model from both ends" in out
    assert "not interleaved: interleaved sends microbatches through its chunks in groups" in out


def test_json_has_the_table_and_the_numbers(shardlang) -> None:
    """Exact fractions beside numbers, and every piece of work."""
    found = json.loads(shardlang(*PIPELINE, "--schedule", "dualpipe", "--format", "json").out)
    rows = {row["schedule"]: row for row in found["schedules"]}

    assert "dualpipe" == found["chosen"]
    assert {"value": 1 / 13, "exact": "1/13"} == rows["dualpipe"]["bubble"]
    assert ["2", "1"] == [rows[name]["weights"]["exact"] for name in ("dualpipe", "gpipe")]
    assert len(SCHEDULES) == len(rows)
    parts = Counter(kind for event in found["events"] for kind in event["kind"])
    assert {"F": 32, "B": 32, "W": 32} == parts


@pytest.mark.parametrize("ending", ["svg", "png"])
def test_a_schedule_as_a_picture(shardlang, tmp_path, ending: str) -> None:
    """A file by its ending: what the SVG shows is written in it."""
    path = tmp_path / f"x.{ending}"
    found = shardlang(*PIPELINE, "--schedule", "zb-h1", "-o", path)
    content = path.read_bytes()

    assert (found.status, found.out, found.err) == (0, "", "")
    if ending == "png":
        assert content.startswith(b"\x89PNG")
        return
    root = ET.fromstring(content)
    texts = ["".join(node.itertext()) for node in root.iter(f"{SVG}text")]
    assert 12 == texts.count("7")  # F, B and W of microbatch 7 on four stages
    assert "zb-h1, 4 stages, 8 microbatches" in texts
    assert "bubble 11.1% (1/9)" in content.decode()


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (("schedule",), 2, "how long is the pipeline? --stages 4 --microbatches 8"),
        ((*PIPELINE, "--schedule", "1f2b"), 2, "there is no schedule '1f2b'"),
        ((*PIPELINE, "--schedule", "zb-h2", "--stages", 5), 2, "needs at least 9 microbatches"),
        ((*PIPELINE, "--schedule", "1f1b", "--chunks", 2), 2, "1f1b has one chunk on each stage"),
        ((*PIPELINE, "--stages", "1.5"), 2, "'1.5' is not a whole number"),
        ((*PIPELINE, "--times", "1,2"), 2, "'1,2' is not F,B,W or F,B,W,SEND"),
        ((*PIPELINE, "-o", "x.svg"), 2, "which schedule is drawn? --schedule 1f1b"),
    ],
)
def test_wrong_numbers_on_the_command_line(
    shardlang, arguments: Any, status: int, said: str
) -> None:
    """Each is told precisely, and nothing is printed."""
    found = shardlang(*arguments)

    assert (status, "") == (found.status, found.out)
    assert said in found.err
