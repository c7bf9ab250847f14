"""Programs whose layers lie on stages: what they mean, what they send, what they cost."""

from __future__ import annotations

import json
from fractions import Fraction

import pytest

import shardlang as sl
from shardlang.cost.pipeline import durations
from shardlang.diagnostics import ShardlangError
from shardlang.frontend.format import format_source
from shardlang.frontend.resolve import load_text
from shardlang.ir.printer import print_plan
from shardlang.passes import lower
from shardlang.passes.normal import on_one_stage
from shardlang.source import Source

SEED = "In[L_Z, B, D][i] ·_D W_in[L_Z, D, F][i] ·_F W_out[L_Z, F, D][i] -> Out[L_Z, B, D][i]"
"""The seed's line."""

SIZES = {"B": 32, "D": 64, "F": 256, "L": 24, "Z": 4, "i": 12}

STAGES = """
mesh X=2, Y=2, Z=4
dims B=32, D=64, F=256, L=24
accumulate i=12
input x: [B_X, D_Y]
layers L_Z:
  x = x + gelu(x ·_D W_in[D_X, F_Y]) ·_F W_out[F_Y, D_X]
"""

C, W = 4.59e14, 1.8e11


def plan_of(text: str, **sizes: int) -> sl.ir.plan.Plan:
    """Lower a text."""
    return sl.lower(sl.parse(text), sizes=sizes)


def report_of(text: str, **sizes: int) -> sl.cost.Report:
    """Price a text on a v5p."""
    return sl.cost(plan_of(text, **sizes), "tpu_v5p")


def value(report: sl.cost.Report, key: str, name: str = "total") -> Fraction:
    """Give a total."""
    found = report.totals[name].quantity(key).value
    assert found is not None
    return found


# ---- Meaning --------------------------------------------------------------------------------------


def test_the_seeds_line_is_a_block_of_layers_on_stages() -> None:
    """Out of a layer is In of the next; both passes send it once; the gradients are those of the seed."""
    expected = """\
mesh Z
input In: [B, D]
param W_in: [L_Z, D, F]
param W_out: [L_Z, F, D]
accumulate i
schedule 1f1b
forward:
  layers L_Z, Out -> In:
    Tmp[B, F] = In[B, D] ·_D W_in[D, F]
    Out[B, D] = Tmp[B, F] ·_F W_out[F, D]
    Permute_Z(Out[B, D])                   // on the critical path
backward:
  layers L_Z, dIn -> dOut:
    dW_out[F, D] = Tmp[B, F] ·_B dOut[B, D]
    dTmp[B, F] = dOut[B, D] ·_D W_out[F, D]
    dW_in[D, F] = In[B, D] ·_B dTmp[B, F]
    dIn[B, D] = dTmp[B, F] ·_F W_in[D, F]
    Permute_Z(dIn[B, D])                     // on the critical path
update:
  layers L_Z:
    dW_in_mean: f32[D, F] = mean_i(dW_in[D, F])
    dW_out_mean: f32[F, D] = mean_i(dW_out[F, D])
"""
    assert expected == print_plan(plan_of(SEED))


@pytest.mark.parametrize(
    "line",
    [
        r"In[L/Z, B, D] [i] \cdot W_{in} [L/Z, D, F] [i] \cdot W_{out} [L/Z, F, D] [i] \to Out [L/Z, B, D] [i]",
        "Out[L_Z, B, D][i] = In[L_Z, B, D][i] ·_D W_in[L_Z, D, F][i] ·_F W_out[L_Z, F, D][i]",
        (
            "In[L_{Z}, B, D][i] · W_in[L_Z, D, F][i] -> Tmp[L_Z, B, F][i]\n"
            "Tmp[L_Z, B, F][i] · W_out[L_Z, F, D][i] -> Out[L_Z, B, D][i]"
        ),
        (
            "input In: [B, D]\naccumulate i\nlayers L_Z, Out -> In:\n"
            "  Out[B, D] = In ·_D W_in[D, F] ·_F W_out[F, D]"
        ),
    ],
)
def test_other_spellings_mean_the_same(line: str) -> None:
    """LaTeX, slashes, two lines, and the block written out."""
    assert print_plan(plan_of(SEED)) == print_plan(plan_of(line))


@pytest.mark.parametrize("more", ["", "optimizer adam\n", "schedule interleaved, chunks 3\n"])
def test_a_lowered_pipeline_is_a_program(more: str) -> None:
    """It prints, parses, checks and costs the same."""
    plan = plan_of(more + STAGES)
    again = lower(load_text(print_plan(plan)))

    assert print_plan(plan) == print_plan(again)
    old, new = (sl.cost(each, "tpu_v5p").to_dict() for each in (plan, again))
    for key in ("totals", "memory", "pipeline"):
        assert old[key] == new[key]


def test_the_format_of_heads() -> None:
    """A stack keeps its axes, in the shortest spelling."""
    text = "schedule   interleaved , chunks 2\nlayers L/Z=8, y->x :\n  y[B] = x[B]⊙x\n"

    assert (
        "schedule interleaved, chunks 2\nlayers L_Z=8, y -> x:\n  y[B] = x[B] ⊙ x\n"
        == format_source(Source("t", text))
    )


def test_what_is_sent_lies_as_it_is_handed_on() -> None:
    """With the batch and the features split, a device sends its shard, whatever the layers do inside."""
    steps = [step for _, step in plan_of(STAGES).steps() if step.sends]

    assert ["x2[B_X, D_Y]", "dx[B_X, D_Y]"] == [str(step.output) for step in steps]
    assert all(step.inputs == (step.output,) for step in steps)


# ---- Costs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb-h1", "zb-h2"])
def test_costs_of_the_seeds_line_by_hand(schedule: str) -> None:
    """A device does the FLOPs of L/Z layers, and sends 2BD bytes a microbatch and direction."""
    report = report_of(f"schedule {schedule}\n{SEED}", **SIZES)
    b, d, f, layers, z, i = (SIZES[name] for name in "BDFLZi")

    assert 4 * b * d * f * (layers // z) * i == value(report, "flops", "forward")
    assert 8 * b * d * f * (layers // z) * i == value(report, "flops", "backward")
    assert 2 * b * d * i == value(report, "bytes", "forward")
    assert 2 * b * d * i == value(report, "bytes", "backward")
    assert 2 * 2 * d * f * (layers // z) == report.memory.quantity("parameters").value
    held = {"gpipe": i, "1f1b": z, "zb-h1": z, "zb-h2": 2 * z - 1}[schedule]
    kept = (2 * b * d + 2 * b * f) * (layers // z)
    assert held * kept == report.memory.quantity("activations").value


def test_dualpipe_holds_the_layers_of_two_stages() -> None:
    """Weights and gradients twice, p + 1 microbatches in flight, the same work."""
    plain = report_of(SEED, **SIZES)
    both = report_of(f"schedule dualpipe\n{SEED}", **SIZES)

    for key in ("parameters", "gradients"):
        assert 2 * plain.memory.quantity(key).value == both.memory.quantity(key).value
    kept = plain.memory.quantity("activations").value
    assert kept / 4 * 5 == both.memory.quantity("activations").value
    assert value(plain, "flops") == value(both, "flops")


def test_interleaving_sends_once_a_chunk() -> None:
    """Three chunks a stage: three times the bytes."""
    one, three = (
        report_of(f"{line}{SEED}", **SIZES) for line in ("", "schedule interleaved, chunks 3\n")
    )

    assert 3 * value(one, "bytes") == value(three, "bytes")


def test_a_stage_is_the_block_of_its_layers() -> None:
    """FSDP and TP inside of a stage cost what they cost in L/Z layers, and Permute comes on top."""
    staged = report_of(STAGES)
    whole = report_of(STAGES.replace("L_Z", "L").replace("L=24", "L=6"))
    sent = [c for c in staged.collectives if c.step.sends]

    assert value(staged, "flops") == value(whole, "flops")
    assert ["Permute", "Permute"] == [c.op for c in sent]
    assert [2 * 32 * 64 * 12 // 4] * 2 == [c.bytes.value for c in sent]
    assert value(staged, "bytes") == value(whole, "bytes") + sum(c.bytes.value for c in sent)
    for key in ("parameters", "gradients", "gathered_peak"):
        assert whole.memory.quantity(key).value == staged.memory.quantity(key).value
    kept = whole.memory.quantity("activations").value
    assert 4 * kept == staged.memory.quantity("activations").value
    waiting = staged.memory.quantity("peak").value - whole.memory.quantity("peak").value
    assert 3 * kept == waiting


def test_lines_behind_the_layers_have_the_last_stages_microbatches_in_flight() -> None:
    """1F1B goes back with a microbatch as soon as it is through: one array of logits, not four."""
    text = (
        "mesh Z=4\ndims B=32, D=64, L=24, V=128\naccumulate i=12\ninput x: [B, D]\n"
        "layers L_Z:\n  x = tanh(x) ⊙ W_a[D]\ny[B, V] = x ·_D W[D, V]\nloss[] = sum_{B,V}(y ⊙ y)\n"
    )
    logits, value_of_a_layer = 2 * 32 * 128, 2 * 32 * 64
    inside = 6 * 2 * value_of_a_layer  # x and its tanh, in 6 layers
    for schedule, held, behind in (("1f1b", 4, 1), ("gpipe", 12, 12)):
        memory = report_of(f"schedule {schedule}\n{text}").memory
        last = held * value_of_a_layer  # what the last layer hands on, which the product reads

        expected = held * inside + last + behind * logits
        assert expected == memory.quantity("activations").value


def test_the_times_hold_the_bubble() -> None:
    """T over (1 - bubble), the bubble (Z - 1)/(i + Z - 1), as formula and as number."""
    report = report_of(SEED, **SIZES)
    found = report.pipeline
    assert found is not None

    assert Fraction(3, 15) == found.share.value
    assert "(Z - 1)/(i + Z - 1)" == str(found.share)
    for key in ("t_math", "t_overlapped", "t_serial"):
        assert value(report, key) / (1 - Fraction(3, 15)) == found.times[key].value


ROUND = """
mesh Z=3, X=2
dims B=4, D=8, F=12, L=6
dtype f32
hardware tpu_v5p
optimizer momentum, zero 2 over X
accumulate i=6
schedule interleaved, chunks 2
input x: [B_X, D]
param W: [L_Z, D, F], W_out: [L_Z, F, D]
layers L_Z:
  x = tanh(x ·_D W) ·_F W_out
loss = mean_{B,D}(square(x))
"""


@pytest.mark.parametrize(
    ("stages", "chunks", "many", "ticks"), [(3, 2, 6, 28), (2, 3, 2, 14), (2, 3, 4, 26)]
)
def test_interleaved_stages_send_in_every_tick(
    stages: int, chunks: int, many: int, ticks: int
) -> None:
    """Each of the ticks, counted by hand, sends 2 x 8 f32 both ways; the plan has those of the work."""
    text = ROUND.replace("Z=3", f"Z={stages}").replace("chunks 2", f"chunks {chunks}")
    report = report_of(text.replace("i=6", f"i={many}"))
    planned = sum(c.bytes.value or 0 for c in report.collectives if c.step.sends)
    found = report.pipeline
    assert found is not None
    assert found.idle is not None

    assert 2 * 64 * many * chunks == planned
    assert ticks * 2 * 64 - planned == found.idle.value
    assert ticks * 2 * 64 - planned == found.to_dict()["idle_bytes"]["value"]


def test_the_update_is_once_behind_the_bubble() -> None:
    """With 3 stages, 2 chunks and 6 microbatches both passes take 14/12 of their time, the update its own."""
    report = report_of(ROUND)
    found = report.pipeline
    assert found is not None
    comms = {name: report.totals[name].quantity("t_comms").value for name in report.totals}
    math = {name: report.totals[name].quantity("t_math").value for name in report.totals}
    both, update = (comms["forward"] or 0) + (comms["backward"] or 0), comms["update"] or 0

    assert update > 0
    assert both * Fraction(14, 12) + update == found.times["t_comms"].value
    assert (math["total"] or 0) * Fraction(14, 12) == found.times["t_math"].value
    assert found.times["t_overlapped"].value == found.times["t_comms"].value


def test_the_heading_of_a_pipeline_fits() -> None:
    """A long heading goes on in a line of its own."""
    lines = report_of(ROUND).to_text(width=80).split("\n")
    at = next(n for n, line in enumerate(lines) if line.startswith("Pipeline"))

    assert max(map(len, lines[at : at + 2])) <= 80
    assert "          F = B = W)" == lines[at + 1]


@pytest.mark.parametrize(
    ("line", "share"),
    [
        ("schedule interleaved, chunks 2", Fraction(3, 2 * 12 + 3)),
        ("schedule zb-h1", Fraction(3, 3 * 12 + 3)),
        ("schedule zb-h2", Fraction(0)),
        ("schedule dualpipe", Fraction(2, 3 * 12 + 2)),
    ],
)
def test_bubbles_of_other_schedules(line: str, share: Fraction) -> None:
    """By their papers, where forward, dX and dW take the same time."""
    found = report_of(f"{line}\n{SEED}", **SIZES).pipeline

    assert found is not None
    assert share == found.share.value


def test_a_pipeline_of_one_stage_is_none() -> None:
    """Z=1: nothing is sent, and everything is as without stages."""
    one = report_of(SEED, **{**SIZES, "Z": 1})
    plain = report_of(
        "accumulate i\ninput In: [B, D]\nlayers L, Out -> In:\n"
        "  Out[B, D] = In ·_D W_in[D, F] ·_F W_out[F, D]",
        **{name: size for name, size in SIZES.items() if name != "Z"},
    )

    assert one.pipeline is None
    for key in ("flops", "bytes", "t_math"):
        assert value(plain, key) == value(one, key)
    assert plain.memory.quantity("total").value == one.memory.quantity("total").value


def test_durations_are_the_plans() -> None:
    """Two products forward, two for dX and two for dW; sending is the time of one Permute."""
    report = report_of(SEED, **SIZES)
    found = durations(report)
    assert found is not None
    each = 4 * 32 * 64 * 256 * 6 / C

    for part in (found.forward, found.input, found.weights):
        assert float(part) == pytest.approx(each)
    assert float(found.send) == pytest.approx(2 * 32 * 64 / W)


# ---- The command, and mistakes --------------------------------------------------------------------


def test_schedule_of_a_file(shardlang, tmp_path) -> None:
    """The file says stages, microbatches, schedule and durations; options go first."""
    path = tmp_path / "p.shd"
    path.write_text(STAGES)
    plain = json.loads(shardlang("schedule", path, "--format", "json").out)
    timed = json.loads(
        shardlang(
            "schedule", path, "--hardware", "tpu_v5p", "--schedule", "gpipe", "--format", "json"
        ).out
    )
    rows = {row["schedule"]: row for row in plain["schedules"]}

    assert ("1f1b", None) == (plain["chosen"], plain["unit"])
    assert "1/5" == rows["1f1b"]["bubble"]["exact"]
    assert (4, 12) == (rows["1f1b"]["stages"], rows["1f1b"]["microbatches"])
    assert ("gpipe", "s") == (timed["chosen"], timed["unit"])
    assert 0 < timed["times"]["send"] < timed["times"]["F"] < 1e-3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x[B, D] ·_D W[D, F] -> y[B, F]", "this program has no pipeline"),
        (SEED, "the number of stages, Z, is not known"),
    ],
)
def test_schedule_of_a_program_that_does_not_say_enough(shardlang, text: str, said: str) -> None:
    """No stages, or no number of them."""
    found = shardlang("schedule", "-e", text)

    assert (2, "") == (found.status, found.out)
    assert said in found.err


BLOCK = "input x: [B, D]\nlayers L_Z:\n  x = x ⊙ W[D]\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x[B, D][3] -> y[B, D]", ("SH331", "3")),
        ("x[B, D][i] -> y[B, D][j]", ("SH332", "j")),
        ("accumulate M\nx[B, D][i] -> y[B, D]", ("SH332", "i")),
        ("schedule 1f1b\nx[B, D] ·_D W[D, F] -> y[B, F]", ("SH333", "schedule 1f1b")),
        (f"schedule 1f2b\n{BLOCK}", ("SH711", "1f2b")),
        (f"schedule 1f1b\nschedule gpipe\n{BLOCK}", ("SH214", "schedule gpipe")),
        (f"{BLOCK}layers M_Z:\n  x = x ⊙ V[D]\n", ("SH334", "layers M_Z:")),
        (BLOCK.replace("[B, D]", "[B_Z, D]"), ("SH335", "B_Z")),
        (f"param W: [L, D]\n{BLOCK}", ("SH265", "L")),
        (f"mesh Y, Z\nparam W: [L_Y, D]\n{BLOCK}", ("SH265", "L_Y")),
        (f"schedule interleaved, parts 2\n{BLOCK}", ("SH336", "parts 2")),
        (f"schedule interleaved\n{BLOCK}", ("SH715", "schedule interleaved")),
        (f"mesh Z=4\ndims L=18\n{BLOCK}", ("SH337", "L_Z")),
        (
            f"mesh Z=4\ndims L=12\naccumulate i=8\nschedule interleaved, chunks 2\n{BLOCK}",
            ("SH337", "L_Z"),
        ),
        (
            f"mesh Z=4\ndims L=8\naccumulate i=6\nschedule dualpipe\n{BLOCK}",
            ("SH712", "schedule dualpipe"),
        ),
        (
            f"mesh Z=3\ndims L=9\naccumulate i=6\nschedule dualpipe\n{BLOCK}",
            ("SH714", "schedule dualpipe"),
        ),
        (
            f"mesh Z=4\ndims L=8\naccumulate i=6\nschedule interleaved, chunks 2\n{BLOCK}",
            ("SH713", "schedule interleaved, chunks 2"),
        ),
        (f"mesh X\n{BLOCK}", ("SH201", "Z")),
        (
            "In[L_Z, B, D][i] ·_D W[L_Z, D, F][i] -> Out[L_Z, B, F][i]",
            ("SH263", "In[L_Z, B, D][i]"),
        ),
    ],
)
def test_mistakes(text: str, expected: tuple[str, str]) -> None:
    """Each has a code, its place and a hint."""
    with pytest.raises(ShardlangError) as caught:
        load_text(text)
    found = [(d.code, d.source.text[d.span.start : d.span.end]) for d in caught.value.diagnostics]

    assert [expected] == found
    assert all(d.hint for d in caught.value.diagnostics)


def test_an_explicit_pipeline_has_to_send() -> None:
    """Without its Permute the next stage would wait for ever."""
    text = print_plan(plan_of(SEED))
    lines = [line for line in text.splitlines() if "Permute_Z(dIn" not in line]
    with pytest.raises(ShardlangError) as caught:
        lower(load_text("\n".join(lines)))
    (found,) = caught.value.diagnostics

    assert "SH408" == found.code
    assert "end the block with Permute_Z(dIn[B, D])" == found.hint


def test_layers_on_one_stage_are_the_plan_without_stages() -> None:
    """What `verify` runs: the steps of the same program with `layers L:`, and nothing sent."""
    staged = on_one_stage(plan_of(STAGES))
    whole = plan_of(STAGES.replace("L_Z", "L"))

    assert [str(s.output) for _, s in whole.steps()] == [str(s.output) for _, s in staged.steps()]
    assert print_plan(whole) == print_plan(staged)


@pytest.mark.jax
def test_the_layers_of_other_schedules_verify(shardlang) -> None:
    """FSDP and TP inside of a stage give the reference's values and gradients; no stage is run."""
    text = "schedule zb-h1\n" + STAGES.replace("L=24", "L=4").replace("B=32", "B=8")
    found = shardlang("verify", "-e", text)

    assert 0 == found.status, found.out + found.err
    assert "all layers of the pipeline are run on every stage" in " ".join(found.out.split())


def test_a_run_of_a_pipeline_counts_the_bubble_and_every_stage() -> None:
    """By hand: 12BDFLi FLOPs of 32 devices at C, bound by them, and 3 stages' wait for 32 microbatches."""
    report = sl.cost(sl.lower(sl.load("examples/pipeline.shd")))
    run = report.run(tokens=1e12)
    counts = report.conventions()
    work = 12 * 16_000 * 8192 * 32_768 * 32 * 32

    for name in ("model", "hardware"):
        total = counts[name].total
        assert total is not None
        assert total.value == work, name
    assert run["overlapped"].seconds.value == Fraction(work, 32) / 459_000_000_000_000 * 35 / 32
    assert run["overlapped"].mfu == pytest.approx(32 / 35)


def test_lines_behind_the_layers_are_run_by_the_last_stage_alone() -> None:
    """By hand: of 4 devices, 2 stages of 2, all have layers and two have the line behind them."""
    text = (
        "mesh X=2, Z=2\ndims B=4, D=8, E=8, V=16, L=2, i=3\naccumulate i\ninput x: [B_X, D]\n"
        "layers L_Z:\n  x[B_X, D] = gelu(x ·_D W[D, E]) ·_E U[E, D]\n"
        "y[B_X, V] = x ·_D H[D, V]\n"
    )
    counts = sl.cost(sl.lower(sl.parse(text), forward_only=True)).conventions()
    layers, behind = 2 * (2 * 4 * 8 * 8) * 2, 2 * 4 * 8 * 16

    for name in ("model", "hardware"):
        total = counts[name].total
        assert total is not None
        assert total.value == 3 * (layers + behind), name
