"""Pictures: their data against hand-derived times, `sl.cost` and `solve`; their files, labels and mistakes."""

from __future__ import annotations

import itertools
import json
import math
import re
import shlex
import subprocess
import sys
import xml.etree.ElementTree as ET
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardlang as sl
from shardlang.backends.plot.labels import spread
from shardlang.cost.curves import Chart, chart, splits, Sweep, Version
from shardlang.cost.solve import when

ROOT = Path(__file__).resolve().parent.parent
FSDP, TP, BOTH, DP = (
    str(ROOT / "examples" / f"{name}.shd") for name in ("fsdp", "tp", "fsdp_tp", "dp")
)
D, F = 8192, 32_768
C, W = 4.59e14, 1.8e11
ALPHA = C / W  # 2550, the book's arithmetic intensity of a v5p
SIZES = ("--hardware", "tpu_v5p", "--set", f"D={D}", "--set", f"F={F}")
POD = (FSDP, TP, BOTH, "--over", "B=1e5:1e7", "--split", "X*Y=4096", *SIZES, "--set", "M_X=2")
KINDS = ("times", "ratio")
SVG = "{http://www.w3.org/2000/svg}"


def report(path: str, sizes: dict[str, int], *, forward: bool = False, **options: object):
    """Price an example on a v5p."""
    plan = sl.lower(sl.load(path), sizes=sizes, forward_only=forward)
    return sl.cost(plan, "tpu_v5p", **options)  # type: ignore[arg-type]


def curve(path: str, sizes: dict[str, int], over: tuple[str, float, float], **options):
    """Give the one curve of an example."""
    found = chart({"it": [Version(report(path, sizes, **options))]}, Sweep(*over))
    return found.curves[0]


@pytest.fixture
def data(shardlang):
    """Run `plot --format json` and give its curves by name."""

    def run(*arguments: object):
        result = shardlang("plot", *arguments, "--format", "json")
        assert (result.status, result.err) == (0, "")
        return {each["name"]: each for each in json.loads(result.out)["curves"]}

    return run


# The numbers


def test_times_of_the_schemes_by_hand():
    """FSDP moves 12DF bytes whatever the batch, tensor parallelism 8BD; both compute 12BDF/N FLOPs."""
    fsdp = curve(FSDP, {"X": 64, "D": D, "F": F}, ("B", 1e4, 1e6))
    tp = curve(TP, {"Y": 64, "D": D, "F": F}, ("B", 1e4, 1e6))
    flops = [12 * b * D * F / (64 * C) for b in fsdp.at]

    assert (fsdp.at[0], fsdp.at[-1]) == pytest.approx((1e4, 1e6))
    assert list(fsdp.t_math) == pytest.approx(flops)
    assert list(tp.t_math) == pytest.approx(flops)
    assert list(fsdp.t_comms) == pytest.approx([12 * D * F / W] * len(fsdp.at))
    assert list(tp.t_comms) == pytest.approx([8 * b * D / W for b in tp.at])
    assert list(tp.ratio) == pytest.approx([1.5 * F / (64 * ALPHA)] * len(tp.at))


@pytest.mark.parametrize("model", ["book", "link"])
@pytest.mark.parametrize("overlap", [None, "axes"])
def test_points_are_those_of_cost(model, overlap):
    """A point of a curve is what `cost` gives at that size."""
    sizes = {"X": 16, "Y": 4, "D": D, "F": F}
    found = curve(BOTH, sizes, ("B", 2**10, 2**20), model=model, overlap=overlap)
    places = [0, len(found.at) // 2, len(found.at) - 1]  # 2**10, 2**15, 2**20

    for place, batch in zip(places, (2**10, 2**15, 2**20), strict=True):
        total = report(BOTH, {**sizes, "B": batch}, model=model, overlap=overlap).total
        values = [float(total.quantity(key).value) for key in ("t_math", "t_comms")]
        assert found.at[place] == pytest.approx(batch)
        assert [found.t_math[place], found.t_comms[place]] == pytest.approx(values)


@pytest.mark.parametrize("model", ["book", "link"])
@pytest.mark.parametrize("forward", [True, False])
def test_crossovers_are_those_of_solve(model, forward):
    """The marked point is the threshold that `solve` gives, in closed form or numerically."""
    sizes = {"X": 64, "Y": 4, "D": D, "F": F}
    found = curve(BOTH, sizes, ("B", 1e3, 1e8), model=model, forward=forward)
    solved = when(report(BOTH, sizes, model=model, forward=forward), "B")

    (crossing,) = found.crossovers
    assert crossing.above
    assert crossing.at == pytest.approx(solved.low, rel=1e-9)
    assert found.bound == ((crossing.at, None),)


def test_fsdp_is_compute_bound_beyond_850_tokens_a_chip_on_three_axes():
    """B/N > C/(3W) = 850 on a v5p, exactly."""
    found = curve(FSDP, {"X": 4096, "D": D, "F": F}, ("B", 1e5, 1e8), sets={"M_X": 3})

    assert [each.at for each in found.crossovers] == pytest.approx([4096 * 850], rel=1e-12)


@pytest.mark.parametrize(("hidden", "limit"), [(30_000, 11.76), (50_000, 19.61)])
def test_the_limit_of_tensor_parallelism(hidden, limit):
    """Y < F*W/C: 11.8 for LLaMA 3-70B, 19.6 for Gemma 7B; an axis has whole sizes, its limit has not."""
    sizes = {"B": 2**20, "D": D, "F": hidden}
    found = curve(TP, sizes, ("Y", 1, 256), forward=True)

    assert list(found.at) == [2**n for n in range(9)]
    assert found.t_comms[0] == 0
    assert [each.at for each in found.crossovers] == pytest.approx([hidden / ALPHA], rel=1e-12)
    assert found.crossovers[0].at == pytest.approx(limit, abs=0.01)
    assert found.starts
    assert not found.crossovers[0].above


def mixed(batch: float, x: int, y: int, hidden: int, m_x: int) -> float:
    """Give the seconds that the mixed scheme's forward pass communicates, its axes overlapping."""
    weights = 4 * D * hidden / y / (m_x * W) if x > 1 else 0.0
    activations = 4 * batch * D / x / W if y > 1 else 0.0
    return max(weights, activations)


def test_the_best_split_is_the_best_of_all():
    """At each batch the mix is that power of two with the least communication, found by trying all."""
    ways = splits(("X", "Y"), 64)
    sizes = {"D": D, "F": F}
    versions = [
        Version(report(BOTH, {**sizes, **way}, forward=True, overlap="axes", sets={"M_X": 2}), way)
        for way in ways
    ]
    found = chart({"mix": versions}, Sweep("B", 1e3, 1e6)).curves[0]

    assert [(1, 64), (2, 32), (4, 16), (8, 8), (16, 4), (32, 2), (64, 1)] == [
        (way["X"], way["Y"]) for way in ways
    ]
    for batch, comms, way in zip(found.at, found.t_comms, found.splits, strict=True):
        least = min(mixed(batch, w["X"], w["Y"], F, 2) for w in ways)
        assert comms == pytest.approx(least)
        assert mixed(batch, way["X"], way["Y"], F, 2) == pytest.approx(least)
    assert len({tuple(way.values()) for way in found.splits}) > 3


def test_the_seed_s_pod(data):
    """On a v5p pod every scheme is communication-bound below alpha**2*N/(2F) = 4.06e5 tokens.

    That is the bound for splits in real numbers; the best in whole ones, X=512 and Y=8, needs
    512*alpha/2 = 652,800, where the book's figure has its crossing (6e5).
    """
    found = data(*POD, "--pass", "forward", "--overlap", "axes")
    bound = ALPHA**2 * 4096 / (2 * F)

    assert bound == pytest.approx(4.06e5, abs=500)
    for each in found.values():
        places = range(len(each["at"]))
        assert all(each["t_comms"][i] > each["t_math"][i] for i in places if each["at"][i] < bound)
    assert [each["at"] for each in found["fsdp_tp"]["crossovers"]] == pytest.approx([652_800])
    assert [each["at"] for each in found["fsdp"]["crossovers"]] == pytest.approx([4096 * ALPHA / 2])
    assert found["tp"]["compute_bound"] == []
    place = next(i for i, at in enumerate(found["fsdp_tp"]["at"]) if at > 652_800)
    assert found["fsdp_tp"]["splits"][place] == {"X": 512, "Y": 8}


def test_whole_splits_need_no_less_than_real_ones(data):
    """B/N > alpha**2/(2F) = 99.2 for F=32,768; with F=20,480 the whole split X=8, Y=8 all but meets it."""
    options = (BOTH, "--over", "B=1e3:1e6", "--split", "X*Y=64", "--hardware", "tpu_v5p")
    more = ("--set", "M_X=2", "--set", f"D={D}", "--pass", "forward", "--overlap", "axes")
    at = {}
    for hidden in (32_768, 20_480):
        found = data(*options, *more, "--set", f"F={hidden}")["fsdp_tp"]
        at[hidden] = found["crossovers"][0]["at"] / 64

    assert ALPHA**2 / (2 * 32_768) == pytest.approx(99.2, abs=0.05)
    assert at[32_768] >= 99.2
    assert 1 <= at[20_480] / (ALPHA**2 / (2 * 20_480)) < 1.01


def test_splits_that_do_not_fit_are_left_out(data):
    """On 16x16x16 an axis takes whole axes of the slice: X is 1, 16, 256 or 4096, and M_X follows."""
    arguments = [*POD[:-2], "--hardware", "tpu_v5p 16x16x16"]
    found = data(*arguments)

    assert {each["X"] for each in found["fsdp_tp"]["splits"]} <= {1, 16, 256, 4096}
    assert {256} <= {each["X"] for each in found["fsdp_tp"]["splits"]}
    assert found["fsdp"]["crossovers"][0]["at"] == pytest.approx(4096 * 850)
    assert "M_X=3" in found["fsdp"]["facts"]


def test_splits_that_do_not_divide_are_left_out(data):
    """F=30,000 divides by 16 and not by 32, so that Y is at most 16."""
    arguments = (BOTH, "--over", "B=1e3:1e6", "--split", "X*Y=64", "--set", f"D={D}")
    found = data(*arguments, "--set", "F=30000", "--hardware", "tpu_v5p")

    assert max(each["Y"] for each in found["fsdp_tp"]["splits"]) <= 16


def test_every_way_to_split():
    """All ordered products, each once."""
    found = splits(("X", "Y", "Z"), 12)
    brute = [w for w in itertools.product(range(1, 13), repeat=3) if w[0] * w[1] * w[2] == 12]

    assert [tuple(way.values()) for way in found] == brute


def test_a_program_without_the_symbol_is_flat(data):
    """FSDP has no Y: over Y its times stay what they are."""
    found = data(FSDP, TP, "--over", "Y=2:64", *SIZES, "--set", "B=1Mi", "--set", "X=64")

    assert len(set(found["fsdp"]["t_comms"])) == 1
    assert len(set(found["tp"]["t_math"])) == 6


def test_a_hardware_figure_is_varied(data):
    """Over the bandwidth the crossover is where C/W falls to B/X."""
    found = data(FSDP, "--over", "W_ici=1e9:1e13", *SIZES, "--set", "B=1Mi", "--set", "X=64")

    assert found["fsdp"]["crossovers"][0]["at"] == pytest.approx(C * 64 / 2**20)


def test_dims_that_follow_the_varied_one(data, tmp_path):
    """With F=4*D, FSDP's times grow with D squared."""
    file = tmp_path / "mlp.shd"
    file.write_text("mesh X=64\ndims B=1Mi, F=4*D\n" + Path(FSDP).read_text().split("mesh X\n")[1])
    found = data(file, "--over", "D=1k:10k", "--hardware", "tpu_v5p")["mlp"]

    assert found["t_comms"][-1] / found["t_comms"][0] == pytest.approx(100)
    assert found["t_comms"][0] == pytest.approx(12 * 1000 * 4000 / W)


def test_no_communication_is_compute_bound_all_along(shardlang, tmp_path):
    """Data parallelism's forward pass moves nothing: no line, and the words say why."""
    file = tmp_path / "out.svg"
    options = ("--over", "B=1e4:1e6", *SIZES, "--set", "X=64", "--pass", "forward", "-o", file)
    result = shardlang("plot", DP, FSDP, *options)

    assert result.out.splitlines()[0] == "dp    compute-bound all along"
    assert "dp: no communication" in file.read_text(encoding="utf-8")


# Pictures


def draw(data: Chart, what: str = "times", **options):
    """Draw a chart."""
    from shardlang.backends.plot.curves import figure

    return figure(data, what, **options)


def charts():
    """Give charts with one and with four strategies, crossovers close together, and lines in one place."""
    sizes = {"D": D, "F": F}
    one = {"fsdp": [Version(report(FSDP, {**sizes, "X": 64}))]}
    ways = splits(("X", "Y"), 4096)
    four = {
        "dp": [Version(report(DP, {**sizes, "X": 4096}))],
        "fsdp": [Version(report(FSDP, {**sizes, "X": 4096}))],
        "a copy of fsdp": [Version(report(FSDP, {**sizes, "X": 4096}))],
        "fsdp_tp": [Version(report(BOTH, {**sizes, **way}), way) for way in ways],
    }
    return {
        "one": chart(one, Sweep("B", 1e4, 1e7)),
        "four": chart(four, Sweep("B", 1e5, 1e8)),
        "narrow": chart(four, Sweep("B", 5e6, 2e7)),
        "axis": chart(
            {"tp": [Version(report(TP, {**sizes, "B": 2**20}))]},
            Sweep("Y", 1, 1024),
        ),
    }


@pytest.fixture(scope="module")
def drawn():
    """Draw all charts in both themes and both kinds, and small."""
    found = charts()
    small = {("small", what, False): draw(found["four"], what, size=(4, 4)) for what in KINDS}
    return small | {
        (name, what, dark): draw(each, what, dark=dark)
        for name, each in found.items()
        for what in KINDS
        for dark in (False, True)
    }


def test_labels_touch_neither_each_other_nor_the_edge(drawn):
    """All text is inside the picture, at least 8 points large, and no two texts overlap."""
    for picture in drawn.values():
        figure = picture.figure
        figure.canvas.draw()
        texts = [t for axes in figure.axes for t in axes.texts] + list(figure.texts)
        for axes in figure.axes:
            texts += [*axes.get_xticklabels(), *axes.get_yticklabels(), axes.xaxis.label]
        texts = [text for text in texts if text.get_text()]
        boxes = [text.get_window_extent() for text in texts]
        inside = figure.bbox.padded(1)

        assert min(text.get_fontsize() for text in texts) >= 8
        for text, box in zip(texts, boxes, strict=True):
            assert inside.x0 <= box.x0 < box.x1 <= inside.x1, text
            assert inside.y0 <= box.y0 < box.y1 <= inside.y1, text
        for (one, a), (other, b) in itertools.combinations(zip(texts, boxes, strict=True), 2):
            assert not a.padded(-2).overlaps(b.padded(-2)), (one, other)


def contrast(one: str, other: str) -> float:
    """Give the contrast of two colors by WCAG 2."""

    def light(color: str) -> float:
        parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        r, g, b = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    high, low = sorted((light(one), light(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_text_is_legible_in_both_themes():
    """Every color that text has stands out from the ground by 4.5 to 1."""
    from shardlang.backends.plot.style import DARK, LIGHT

    for theme in (LIGHT, DARK):
        for color in (theme.ink, theme.muted, *theme.series):
            assert contrast(color, theme.ground) >= 4.5


SEEN = {
    "all": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "tritanopia": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}
"""How colors are seen, in linear RGB: Machado, Oliveira and Fernandes (2009), severity 1."""


def lab(color: str, seen) -> tuple[float, float, float]:
    """Give a color in CIELAB (D65) as somebody sees it."""
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    r, g, b = (min(max(sum(a * c for a, c in zip(row, linear, strict=True)), 0), 1) for row in seen)
    x = (0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.9505
    y = 0.2126 * r + 0.7152 * g + 0.0722 * b
    z = (0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.089
    fx, fy, fz = (v ** (1 / 3) if v > 0.008856 else 7.787 * v + 16 / 116 for v in (x, y, z))
    return 116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)


@pytest.mark.parametrize("seen", SEEN.values(), ids=SEEN)
def test_colors_are_told_apart(seen):
    """No two colors of lines are closer than 20, whoever looks."""
    from shardlang.backends.plot.style import DARK, LIGHT

    for theme in (LIGHT, DARK):
        for one, other in itertools.combinations(theme.series, 2):
            assert math.dist(lab(one, seen), lab(other, seen)) >= 20


def test_lines_hold_the_data(drawn):
    """What is drawn is the chart: each line's points, and a ring at each crossover."""
    picture = drawn["four", "times", False]
    (axes,) = picture.figure.axes
    lines = {tuple(line.get_ydata()) for line in axes.lines}
    rings = {(float(x.get_xdata()[0]), float(x.get_ydata()[0])) for x in axes.lines}
    curves = picture.data.curves

    assert all(each.t_comms in lines for each in curves)
    assert curves[0].t_math in lines
    assert {(c.at, c.seconds) for each in curves for c in each.crossovers} <= rings


def test_an_svg_has_text_a_title_and_a_description(shardlang, tmp_path):
    """Names and crossovers are text that can be found; the description says what is to be seen."""
    file = tmp_path / "out.svg"
    result = shardlang("plot", *POD, "--pass", "forward", "--overlap", "axes", "-o", file)
    root = ET.fromstring(file.read_text(encoding="utf-8"))
    texts = {"".join(each.itertext()) for each in root.iter(f"{SVG}text")}

    assert result.out.splitlines() == [
        "fsdp     compute-bound where B > 5.222M",
        "tp       communication-bound all along",
        "fsdp_tp  compute-bound where B > 652.8k",
    ]
    assert {"fsdp", "tp", "fsdp_tp", "math", "B = 652.8k", "512×8", "B"} <= texts
    assert root.findtext(f"{SVG}title") == "Communication and math over B"
    assert "fsdp_tp is compute-bound where B > 652.8k" in (root.findtext(f"{SVG}desc") or "")


def test_a_png_has_two_pixels_a_point(shardlang, tmp_path):
    """A PNG of 6 by 4 inches has 1152 by 768 pixels."""
    file = tmp_path / "out.png"
    shardlang("plot", *POD, "-o", file, "--width", "6", "--height", "4", "--dark")
    content = file.read_bytes()

    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    assert (1152, 768) == tuple(int.from_bytes(content[i : i + 4], "big") for i in (16, 20))


@pytest.mark.parametrize("form", ["svg", "png"])
@pytest.mark.parametrize(
    "what", [("--over", "B=1e4:1e7"), ("--what", "timeline", "--set", "B=1Mi")]
)
def test_equal_data_give_equal_files(shardlang, tmp_path, form, what):
    """No date and no random name is in a file, and settings of matplotlib don't reach it."""
    import matplotlib as mpl

    arguments = ("plot", FSDP, *what, *SIZES, "--set", "X=64")
    files = [tmp_path / f"{i}.{form}" for i in (0, 1)]
    shardlang(*arguments, "-o", files[0])
    with mpl.rc_context({"font.size": 30, "axes.grid": False, "svg.fonttype": "path"}):
        shardlang(*arguments, "-o", files[1])

    assert files[0].read_bytes() == files[1].read_bytes()


def test_an_svg_goes_to_stdout(shardlang):
    """`--format svg` prints the picture, and nothing else."""
    result = shardlang("plot", *POD, "--format", "svg")

    assert ET.fromstring(result.out).tag == f"{SVG}svg"


# Timelines


def test_a_timeline_shows_steps_and_waits(shardlang, tmp_path):
    """Bars have their steps' names; the waits are what the schedule counts as exposed."""
    from shardlang.backends.plot.timeline import timeline, waits

    sizes = {"X": 16, "Y": 4, "B": 2**17, "D": D, "F": F}
    found = report(BOTH, sizes, overlap="axes").schedule()
    (axes,) = timeline({"both": found}).figure.axes
    names = {text.get_text().replace("\n", " ") for text in axes.texts}

    assert sum(b - a for a, b in waits(found)) == pytest.approx(found.exposed)
    assert {"Tmp", "Out", "AG_Y In", "AG_X W_in", "RS_X dW_out", "backward"} <= names
    file = tmp_path / "out.svg"
    settings = [x for name, size in sizes.items() for x in ("--set", f"{name}={size}")]
    result = shardlang(
        *("plot", BOTH, "--what", "timeline", "--hardware", "tpu_v5p", *settings),
        *("--overlap", "axes", "-o", file),
    )
    assert result.out.startswith(f"fsdp_tp  {found.seconds * 1e3:.4g} ms, of which the matrix unit")
    assert "AG_X" in file.read_text(encoding="utf-8")


def test_timelines_as_data(shardlang):
    """JSON has the events of each program."""
    arguments = ("--what", "timeline", *SIZES, "--set", "X=16", "--set", "B=1Mi")
    found = json.loads(shardlang("plot", FSDP, *arguments, "--format", "json").out)
    events = found["schedules"]["fsdp"]["events"]

    assert "AllGather_X W_in" in {each["name"] for each in events}


# The page


def shown() -> list[tuple[list[str], list[str]]]:
    """Give each command of docs/plots.md with the lines that the page shows below it."""
    text = (ROOT / "docs" / "plots.md").read_text(encoding="utf-8").replace("\\\n", "")
    blocks = re.findall(r"^```console\n\$ shardlang (.*)\n((?:.*\n)*?)```$", text, re.MULTILINE)
    return [(shlex.split(command), lines.splitlines()) for command, lines in blocks]


def words(path: Path) -> tuple[set[str], list[str | None]]:
    """Give the text of an SVG, its title and its description."""
    root = ET.fromstring(path.read_text(encoding="utf-8"))
    texts = {"".join(each.itertext()) for each in root.iter(f"{SVG}text")}
    return texts, [root.findtext(f"{SVG}{tag}") for tag in ("title", "desc")]


@pytest.mark.parametrize(("command", "lines"), shown(), ids=lambda x: x[-1])
def test_the_page_shows_what_its_commands_draw(shardlang, tmp_path, monkeypatch, command, lines):
    """A command of the page prints what stands below it, and its picture says what the one in docs/ says."""
    monkeypatch.chdir(ROOT)
    *arguments, option, name = command
    file = tmp_path / "out.svg"
    result = shardlang(*arguments, option, file)

    assert option == "-o"
    assert (result.out.splitlines(), result.err) == (lines, "")
    assert words(ROOT / name) == words(file), "if that is right, run `make docs`"


def test_the_page_has_a_picture_of_each_kind():
    """Times, the ratio and a timeline."""
    assert [command[-1] for command, _ in shown()] == [
        f"docs/plot-{kind}.svg" for kind in ("times", "ratio", "timeline")
    ]


def test_the_python_of_the_page_runs(monkeypatch):
    """The library example gives the crossover that it states."""
    monkeypatch.chdir(ROOT)
    text = (ROOT / "docs" / "plots.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)

    exec(code, {})


# Mistakes


@pytest.mark.parametrize(
    ("over", "status", "words"),
    [
        ("B", 2, "is not NAME=LOW:HIGH"),
        ("B=", 2, "is not NAME=LOW:HIGH"),
        ("B=1e4", 2, "is not NAME=LOW:HIGH"),
        ("B=1:2:3", 2, "is not NAME=LOW:HIGH"),
        ("B=1e4:x", 2, "is not a number"),
        ("B=-1:10", 2, "is not a number"),
        ("B=1e6:1e4", 2, "write B=1e4:1e6"),
        ("B=1e4:10k", 2, "is one point"),
        ("B=0:1e4", 2, "begins at 0"),
        ("B=1:1e31", 2, "from 1e-30 to 1e30"),
        ("B=1:1e999", 2, "from 1e-30 to 1e30"),
        ("B=0.5:1e4", 2, "a size is at least 1"),
        ("Q=1:10", 2, "no formula of this program has a 'Q'"),
        ("X=5.2:7.9", 2, "no two powers of two"),
    ],
)
def test_ranges_that_are_none(shardlang, over, status, words):
    """What is wrong with a range is said in one line, and ends with the status of wrong usage."""
    result = shardlang(
        *("plot", FSDP, "--over", over, *SIZES, "--set", "B=1Mi", "--set", "X=64"),
        *("--format", "json"),
    )

    assert (result.status, result.out) == (status, "")
    assert words in " ".join(result.err.split())


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        ((), 2, "what is the picture over?"),
        (("--over", "B=1:9", "--format", "jpg"), 2, "invalid choice"),
        (("--over", "B=1:9"), 1, "no value is known for C, D, F, W_ici, X"),
        (("--over", "B=1:9", "--what", "timeline"), 2, "a timeline is of given sizes"),
        (("--what", "timeline"), 1, "a schedule needs every size and figure"),
        (("--over", "X=1:8", "--set", "X=1", "--set", "B=9", *SIZES), 2, "has size 1"),
        (("--over", "X=1:8", "--split", "X=8"), 2, "both vary X"),
        (("--over", "B=1:9", "--split", "X=8", "--set", "X=8"), 2, "both give the size of X"),
        (("--over", "B=1:9", "--split", "X*Q=8"), 2, "'Q' is no axis"),
        (("--over", "B=1:9", "--split", "X*X=8"), 2, "names an axis twice"),
        (("--over", "B=1:9", "--split", "X*Y"), 2, "is not a split such as"),
        (("--over", "B=1:9", "--split", "X*Y=0.5"), 2, "a whole number"),
        (("--over", "B=1:9", "--split", "X=48", *SIZES), 1, "cannot be split evenly"),
        (("--over", "B=1:9", "--set", "Q=1"), 2, "Q is neither a dim nor an axis"),
        (("--over", "B=1:9", "--width", "0.1"), 2, "is not a size in inches"),
        (("--over", "B=1:9", "--height", "1e999"), 2, "is not a size in inches"),
        (("--over", "X=1:8", "--set", "X=64", "--hardware", "tpu_v5p 4x4x4"), 2, "from the slice"),
    ],
)
def test_questions_that_have_no_picture(shardlang, arguments, status, words):
    """Options that don't go together, and what is not known."""
    more = () if "jpg" in arguments else ("--format", "json")
    result = shardlang("plot", FSDP, *arguments, *more)

    assert (result.status, result.out) == (status, "")
    assert words in " ".join(result.err.split())


@pytest.mark.parametrize(
    ("output", "status", "words"),
    [
        ((), 2, "where does the picture go?"),
        (("-o", "picture"), 2, "ends in .svg or .png"),
        (("-o", "picture.jpg"), 2, "ends in .svg or .png"),
        (("-o", "picture.svg", "--format", "png"), 2, "is no name for --format png"),
        (("-o", "no/such/folder/out.svg"), 2, "can't write no/such/folder/out.svg"),
        (("-o", "."), 2, "ends in .svg or .png"),
    ],
)
def test_outputs_that_are_none(shardlang, output, status, words):
    """Where a picture can't go, nothing is printed."""
    result = shardlang("plot", *POD, *output)

    assert (result.status, result.out) == (status, "")
    assert words in result.err


def test_a_png_does_not_go_to_a_terminal(shardlang, monkeypatch):
    """Bytes on a terminal help nobody."""
    monkeypatch.setattr("shardlang.cli.plot.is_terminal", lambda _: True)
    result = shardlang("plot", *POD, "--format", "png")

    assert (result.status, result.out) == (2, "")
    assert "a PNG is not for the terminal" in result.err


def test_without_matplotlib_the_data_are_there_and_the_error_says_what_to_install():
    """Only a picture needs matplotlib."""

    def run(*more: str):
        code = (
            "import sys; sys.modules['matplotlib'] = None; from shardlang.cli.main import main;"
            f" sys.exit(main({['plot', *POD, *more]!r}))"
        )
        return subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=120,
            check=False,
        )

    picture, numbers = run("--format", "svg"), run("--format", "json")

    assert (picture.returncode, picture.stdout) == (1, "")
    assert "SH545" in picture.stderr
    assert "pip install 'shardlang[plot]'" in picture.stderr
    assert numbers.returncode == 0
    assert len(json.loads(numbers.stdout)["curves"]) == 3


def test_too_many_ways_to_split():
    """More ways than can be priced are refused."""
    with pytest.raises(sl.ShardlangError, match="SH544"):
        splits(("X", "Y", "Z", "V"), 2**20)


@given(
    st.lists(st.floats(0, 300), min_size=1, max_size=8),
    st.floats(1, 30),
)
def test_labels_are_moved_apart(wanted, gap):
    """Neighbors end up a gap apart, in their order, within the ends, and stay where they may."""
    found = spread(wanted, gap, 0.0, 300.0)
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    moved = [found[i] for i in order]

    assert all(b - a >= gap - 1e-6 for a, b in itertools.pairwise(moved))
    assert moved[0] >= -1e-6
    assert moved[-1] <= 300 + 1e-6
    if all(b - a >= gap for a, b in itertools.pairwise(sorted(wanted))):
        assert found == pytest.approx(wanted)


def test_a_fraction_of_a_setting_is_taken(data):
    """`--set W_ici=1.8e11` stands for the chip's own."""
    chip = data(FSDP, "--over", "B=1e4:1e7", *SIZES, "--set", "X=64")
    given_ = ("--set", "W_ici=1.8e11", "--set", "C=4.59e14", "--set", f"D={D}", "--set", f"F={F}")
    own = data(FSDP, "--over", "B=1e4:1e7", *given_, "--set", "X=64")

    assert Fraction(own["fsdp"]["crossovers"][0]["at"]) == Fraction(
        chip["fsdp"]["crossovers"][0]["at"]
    )
