"""The report against measured runs: what docs/measured.md says is what its command prints."""

import math
from dataclasses import replace
from pathlib import Path

import measured
import pytest
from measured_lib import collectives, memory, programs, runs, tables, toy

import shardlang as sl

PAGE = Path(__file__).parents[1] / "docs" / "measured.md"
RECIPES = ("maxtext_tpu7x", "maxtext_v6e", "maxtext_v5p_recipes")
FEW = (
    "maxtext_v5p_recipes",
    "palm",
    pytest.param("megatron_recompute", marks=pytest.mark.slow),
)


def lines_of(name: str) -> list[str]:
    """Give the lines of a table on the page."""
    text = PAGE.read_text("utf-8")
    return text.partition(f"<!-- {name} -->\n")[2].partition("<!-- end -->")[0].splitlines()


def run_called(name: str) -> runs.Run:
    """Give a run by its name."""
    return next(run for family in runs.families() for run in family.runs if run.name == name)


@pytest.mark.slow
@pytest.mark.parametrize("key", RECIPES)
def test_flops_of_recipes_agree(key):
    """The FLOPs of every TPU recipe are within 0.2 % of those that its publisher counted."""
    known = runs.models()
    family = runs.family(key)
    for run in family.runs:
        seconds = run.seconds
        if run.tokens is not None:  # to more digits than the step's time
            seconds = run.batch * run.seq / run.chips / run.tokens
        assert programs.model_flops(run, known[run.model]) == pytest.approx(
            run.tflops * 1e12 * seconds, rel=0.002
        ), run.name


@pytest.mark.parametrize("key", FEW)
def test_times_on_the_page(key):
    """The page has what the command prints, and nothing was measured below the bound."""
    assert lines_of(key) == list(tables.times_table(runs.family(key)))
    assert list(measured.below(runs.family(key))) == []


def test_every_family_is_on_the_page():
    """Each table of the command has its place on the page, with a line a run."""
    for family in runs.families():
        names = [line.split("|")[1].strip() for line in lines_of(family.key)[2:]]
        assert names == [run.name for run in family.runs]
    for name in measured.sections():
        assert lines_of(name)


def test_page_keeps_other_tables():
    """Tables that are not given, and the text around them, stay as they are."""
    text = "a\n<!-- x -->\nold\n<!-- end -->\nb\n<!-- y -->\nkept\n<!-- end -->\n"
    assert measured.page(text, {"x": iter(["1", "2"])}) == text.replace("old", "1\n2")


def test_nccl_on_the_page():
    """No measured collective beats the bound; one would without the switch's help."""
    assert lines_of("nccl") == list(tables.nccl_table())
    assert lines_of("rings") == list(tables.rings_table())
    assert min(point.ratio for point in tables.points()) >= 1
    assert len(lines_of("rings")) == 3


def test_single_operations_on_the_page():
    """Bounds of single operations are those of the page; the book's line takes 559 µs."""
    assert lines_of("single") == list(tables.single_table())
    first = next(collectives.single())
    assert first.bound == pytest.approx(559e-6, rel=1e-3)


def test_one_program_is_its_layers():
    """A model as one program has the FLOPs of one layer times their number, and of its head."""
    run = replace(run_called("llama3.1-8B on 8"), convention="full")
    tokens = run.batch * run.seq
    layer = 2 * 4096 * 128 * (32 + 8) + 3 * 4096 * 14336
    by_hand = 6 * tokens * (32 * layer + 4096 * 128256) + 32 * 12 * tokens * run.seq * 32 * 128
    assert programs.model_flops(run, runs.models()[run.model]) * run.chips == by_hand


@pytest.mark.parametrize("name", ["gemma4-2b on 64", "GPT 39.1B", "mixtral-8x22B on 256"])
def test_programs_are_whole(name):
    """What --program prints can be costed as it stands."""
    for text in measured.programs(name):
        report = sl.cost(sl.lower(sl.parse(text)), model="link")
        assert report.total.quantity("t_overlapped").value > 0


def test_bubble():
    """8 stages, 3 pieces of the model on each device, 64 micro-batches: 7/192 of the work is idle."""
    assert run_called("GPT 175B, all recomputed").bubble == pytest.approx(7 / 192)
    assert run_called("GPT 22B, all recomputed").bubble == 0


def test_elementwise_kernels():
    """Connected steps read and write their ends once: 3 arrays of 16 bytes in the forward pass."""
    text = "hardware h100\ndims N=8\ndtype bf16\ny[N] = silu(a[N]) ⊙ b[N] + b[N]\n"
    plan = sl.lower(sl.parse(text), forward_only=True)
    seconds = memory.elementwise(sl.cost(plan), fused=True)
    assert seconds == pytest.approx(3 * 16 / 3.35e12)


def test_elementwise_kernels_between_contractions():
    """A kernel writes what a contraction reads; scores of a fused attention stay on the chip."""
    text = (
        "hardware h100\ndims T=8, S=8, K=4\ndtype bf16\n"
        "score[T, S] = q[T, K] ·_K k[S, K]\np[T, S] = exp(score)\no[T, K] = p ·_S v[S, K]\n"
    )
    report = sl.cost(sl.lower(sl.parse(text), forward_only=True))
    assert memory.elementwise(report, fused=True) == 0
    assert memory.elementwise(report, fused=False) == pytest.approx(2 * 128 / 3.35e12)


def test_elementwise_kernels_of_layers():
    """A block's kernels run once a layer: each reads x and writes the next."""
    text = "hardware h100\ndims N=8, L=5\ndtype bf16\ninput x: [N]\nlayers L:\n  x[N] = silu(x[N])\ny[N] = 2 * x\n"
    report = sl.cost(sl.lower(sl.parse(text), forward_only=True))
    assert memory.elementwise(report, fused=True) == pytest.approx(6 * 32 / 3.35e12)


def test_six_terms_by_hand():
    """One device, one layer of 12 parameters and no head worth mentioning: compute, memory, constant."""
    layer = runs.Layer(("gqa", "plain"), 1, {"D": 2, "N": 1, "G": 1, "K": 1, "F": 1})
    head = runs.Layer(("head",), 1, {"D": 2, "V": 0})
    run = runs.Run("", "", "h100", {}, 3, 5, "all", "full", "full")
    parameters = 2 * 4 + 2 * 2
    compute = (6 * parameters + 12 * 1 * 5) * 15 / 989e12
    expected = compute + 16 * parameters / 3.35e12 + 0.01
    assert toy.seconds(run, (layer, head)) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ([1, 2, 3, 4], [10, 20, 30, 40], 1),
        ([1, 2, 3, 4], [4, 3, 2, 1], -1),
        (
            [106, 86, 100, 101, 99, 103, 97, 113, 112, 110],
            [7, 0, 27, 50, 28, 29, 20, 12, 6, 17],
            -29 / 165,
        ),
        ([1, 2, 2, 3], [1, 3, 2, 4], 9 / math.sqrt(90)),
    ],
)
def test_spearman(one, other, expected):
    """Textbook values, one with equal ranks."""
    assert tables.spearman(one, other) == pytest.approx(expected)
