"""The page of `explore`: its numbers against the library's, in a browser, and whom it serves."""

from __future__ import annotations

import json
import random
import re
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

import shardlang as sl
from shardlang.backends.explore.data import page_data, Subject
from shardlang.backends.explore.page import page, script_json
from shardlang.backends.units import si
from shardlang.cost.report import Report

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")

POD = """
mesh pod=2 @dcn, X=8, Y=4 @ici(2)
dims B=64Ki, D=4096, F=3*D
optimizer adamw
param W_in: f32[D_X, F_Y], W_out: f32[F_Y, D_X]
In[B_{pod,X}, D_Y] · W_in[D_X, F_Y] · W_out[F_Y, D_X] -> Out[B_{pod,X}, D_Y]
"""
"""Data parallel over two slices, with other dtypes, an optimizer, and a dim that follows another."""

ODD = """
mesh X=12, Y=3
dims B=3600, D=720, F=1440
In[B_X, D_Y] · W_in[D_X, F_Y] · W_out[F_Y, D_X] -> Out[B_X, D_Y]
"""
"""Axes that are no powers of two."""

PARTS = """
mesh X1=2 @part(X), X2=4 @part(X), Y=2
dims B=64Ki, D=4096, F=16384
In[B_{X1,X2}, D_Y] · W_in[D_X2, F_Y] · W_out[F_Y, D_X2] -> Out[B_{X1,X2}, D_Y]
"""
"""Parts of an axis, which share its links."""

ALL_TO_ALL = """
mesh X=8
dims E=64, T=4096, D=512
x[T_X, E, D] -> x2[T, E_X, D]
"""
"""A program with no weights, so that nothing is its batch."""

CHIP = """
topology = "torus"
flops.bf16 = 4e14
hbm = { value = 64, unit = "GiB", source = "data sheet" }
W_hbm = 2e12
W_ici = 1.5e11
w_ici = 7.5e10
ici_axes = 2
wrap_cube = 1
"""

NAMES = """
# </script><script>document.title = "run"</script> <!-- <script> ]]>
mesh constructor=4, valueOf=2
dims toString=8192, D'=1024, β=64Ki, hasOwnProperty=2048
In[β_constructor, toString_valueOf] · W[toString_constructor, hasOwnProperty_valueOf] -> h[β_constructor, hasOwnProperty_valueOf]
h[β_constructor, hasOwnProperty_valueOf] · V[hasOwnProperty_valueOf, D'_constructor] -> y[β_constructor, D'_valueOf]
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Start a headless browser, where there is one."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if path is None:
        pytest.skip(f"none of {', '.join(BROWSERS)} is installed")
    with playwright.sync_playwright() as running:
        started = running.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield started
        started.close()


@dataclass
class Opened:
    """A page in the browser, and what went wrong in it."""

    tab: Any
    url: str
    troubles: list[str]

    def go(self, fragment: str) -> None:
        """Change the address' fragment, and let the page follow."""
        self.tab.evaluate("to => { location.hash = to; }", fragment)
        self.tab.evaluate("() => new Promise(done => setTimeout(done, 0))")

    def numbers(self) -> dict[str, str]:
        """Give what is shown, by what it is, in full digits."""
        return dict(self._shown("element.dataset.v"))

    def texts(self) -> dict[str, str]:
        """Give the same as it is read."""
        return {key: text.replace("\xa0", " ") for key, text in self._shown("element.textContent")}

    def _shown(self, what: str) -> list[list[str]]:
        script = f"all => all.map(element => [element.dataset.q, {what}])"
        return self.tab.eval_on_selector_all("[data-q]", script)


@pytest.fixture
def show(browser, tmp_path) -> Iterator[Callable[..., Opened]]:
    """Open the text of a page; at the end nothing may have gone wrong in it."""
    opened: list[Opened] = []

    def run(text: str, *, width: int = 1280, scheme: str = "light", fragment: str = "") -> Opened:
        path = tmp_path / "page.html"
        path.write_bytes(text.encode("utf-8", "backslashreplace"))
        tab = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
        tab.set_default_timeout(20_000)
        found = Opened(tab, path.as_uri(), [])
        tab.on("console", lambda message: found.troubles.append(message.text))
        tab.on("pageerror", lambda error: found.troubles.append(str(error)))
        tab.on("dialog", lambda dialog: found.troubles.append(dialog.message))

        def asked(request: Any) -> None:
            if request.url.partition("#")[0] != found.url:
                found.troubles.append(request.url)

        tab.on("request", asked)
        tab.goto(found.url + fragment)
        opened.append(found)
        return found

    yield run
    for each in opened:
        each.tab.close()

        assert [] == each.troubles


def subject(source: str | Path, label: str = "", **options: Any) -> Subject:
    """Make the subject of a page from a text or a file."""
    program = sl.load(source) if isinstance(source, Path) else sl.parse(source)
    return Subject(label or "program", sl.lower(program, **options), {})


def data_of(text: str) -> dict[str, Any]:
    """Read the data of a page."""
    found = re.search(r'id="data">(.*?)</script>', text)
    assert found is not None
    return json.loads(found[1])


# The numbers


def expected(report: Report, label: str = "") -> dict[str, Any]:
    """Say what the page has to show of a report; sums over axes are added up here."""
    found: dict[str, Any] = {}
    for name in ("forward", "backward", "total") if report.plan.backward else ("forward",):
        totals = report.totals[name]
        shown = [key for key in totals.quantities if key != "elementwise"]
        elementwise = any(t.quantity("elementwise").formula for t in report.totals.values())
        shown += ["elementwise"] if elementwise else []
        for key in shown:
            found[f"{label}{name}.{key}"] = totals.quantity(key).value
        found[f"{label}{name}.bound"] = totals.condition.holds
        groups: dict[str, list[Any]] = defaultdict(list)
        for cost in report.collectives:
            axes = ", ".join(a for a in report.mesh if a in cost.axes and report.mesh[a] != 1)
            if axes and name in (cost.pass_, "total"):
                groups[axes].append(cost)
        for axes, costs in groups.items():
            for key, of in (("t_comms", "time"), ("bytes", "bytes")):
                values = [getattr(cost, of).value for cost in costs]
                known = None not in values
                found[f"{label}{name}.{key}.{axes}"] = sum(values) if known else None
    for i, cost in enumerate(report.collectives):
        found[f"collective.{i}.bytes"] = cost.bytes.value
        found[f"collective.{i}.time"] = cost.time.value
    for key, quantity in report.memory.quantities.items():
        found[f"memory.{key}"] = quantity.value
    return found


def unit(key: str) -> str | None:
    """Give the unit in which a number of the page is shown."""
    if key.endswith(".bound"):
        return None
    if ".t_" in key or key.endswith(".time"):
        return "s"
    return "FLOP" if key.endswith(("flops", "elementwise")) else "B"


def compare(opened: Opened, report: Report) -> None:
    """Compare all that the page shows with a report."""
    numbers, texts = opened.numbers(), opened.texts()
    wanted = expected(report)
    axes = {key for key in wanted if re.search(r"\.(t_comms|bytes)\..", key)}
    shown = {k for k in numbers if not k.startswith("picture.") and not k.endswith(".crossing")}
    if len({key.partition(".")[2] for key in axes}) <= 2:  # one sum alone is the total
        wanted = {key: value for key, value in wanted.items() if key not in axes}
    empty = {key for key in shown if numbers[key] == ""}

    assert set(wanted) == shown - empty
    assert all(re.search(r"\.(t_comms|bytes)\..", key) for key in empty)
    for key, value in wanted.items():
        if unit(key) is None:
            word = {True: "yes", False: "no", None: "—"}[value]
            assert word == texts[key], key
        elif value is None:
            assert texts[key] == "—", key
        else:
            assert float(numbers[key]) == pytest.approx(float(value), rel=1e-12), key
            near = (float(value) * (1 + each) for each in (0, -1e-12, 1e-12))  # ties are rounded
            assert texts[key] in {si(each, unit(key) or "") for each in near}, key


def fragment(dims: dict[str, int], mesh: list[int], machine: str, over: str | None) -> str:
    """Write a position of the page's sliders as an address."""
    from urllib.parse import quote

    parts = [f"{quote(name)}={size}" for name, size in dims.items()]
    parts += [f".mesh={','.join(map(str, mesh))}"] if mesh else []
    parts += [f".hardware={quote(machine)}", ".chips=free"]
    return "#" + "&".join(parts + ([f".over={quote(over)}"] if over else []))


def positions(data: dict[str, Any], count: int, seed: int) -> Iterator[tuple[Any, ...]]:
    """Draw sizes, meshes and machines at random, among them axes of size 1."""
    rng = random.Random(seed)
    for _ in range(count):
        dims = {dim["name"]: rng.randint(1, 2 ** rng.randint(4, 22)) for dim in data["dims"]}
        stops = data["meshes"][0]["stops"]
        mesh = [1 if rng.random() < 0.15 else rng.choice(own[:11]) for own in stops]
        over = rng.choice([*dims, None]) if dims else None
        yield dims, mesh, rng.choice(data["machines"])["name"], over


PROGRAMS = {
    "mlp": EXAMPLES / "mlp.shd",
    "attention": EXAMPLES / "attention.shd",
    "parts": PARTS,
    "tp": EXAMPLES / "tp.shd",
    "pod": POD,
    "odd": ODD,
    "all-to-all": ALL_TO_ALL,
    "names": NAMES,
}


@pytest.mark.parametrize(
    ("name", "model"),
    [
        *((n, m) for n in PROGRAMS for m in ("book", "link")),
        ("mlp", "link-ring"),
        ("pod", "link-ring"),
    ],
)
def test_numbers_are_those_of_the_library(show, name, model):
    """At random sizes, meshes and chips, each number shown is what `sl.cost` gives there."""
    own = subject(PROGRAMS[name])
    overlap = "axes" if model == "link" else None
    text = page([own], model=model, overlap=overlap)
    data = data_of(text)
    opened = show(text)
    axes = [axis["name"] for axis in data["meshes"][0]["axes"]]

    for dims, mesh, machine, over in positions(data, 7, seed=len(name)):
        opened.go(fragment(dims, mesh, machine, over))
        sets = {**dims, **dict(zip(axes, mesh, strict=True))}
        report = sl.cost(own.plan, machine, model=model, overlap=overlap, sets=sets)
        compare(opened, report)


@pytest.mark.parametrize("chip", ["h100", "gb200_nvl72", "mi300x", "tpu_v5e"])
def test_nodes_are_filled_as_in_the_library(show, chip):
    """Meshes inside of a node, across nodes, and with an axis that spans both."""
    own = subject(PROGRAMS["mlp"])
    opened = show(page([own], model="link"))
    for mesh in ([2, 4], [16, 8], [128, 64], [64, 1], [1, 512], [1, 1]):
        opened.go(fragment({"B": 65_536, "D": 8192}, mesh, chip, None))
        sets = {"B": 65_536, "D": 8192, "X": mesh[0], "Y": mesh[1]}
        compare(opened, sl.cost(own.plan, chip, model="link", sets=sets))


def test_the_start_is_what_cost_says(show):
    """With nothing moved, the page shows the program's own sizes and hardware."""
    own = subject(PROGRAMS["mlp"])

    compare(show(page([own])), sl.cost(own.plan))


def test_settings_hold_for_every_chip(show):
    """What is set of the hardware is set whatever chip is chosen."""
    own = subject(PROGRAMS["mlp"])
    sets = {"W_ici": Fraction(10**11), "hbm": 10**9}
    own = Subject("mlp", own.plan, sets)
    opened = show(page([own]))
    opened.go(".hardware=h100")

    compare(opened, sl.cost(own.plan, "h100", sets=sets))


def test_hops_are_counted_whole(show):
    """Where a hop takes a second, odd rings have (n-1)/2: four times those of Y, six those of X."""
    own = subject(PROGRAMS["odd"])
    own = Subject("odd", own.plan, {"T_hop": Fraction(1)})
    opened = show(page([own], model="link"))
    for mesh, hops in (([3, 9], 4 * 4 + 6 * 1), ([12, 3], 4 * 1 + 6 * 6)):
        opened.go(fragment({}, mesh, "tpu_v5p", None))
        sets = {"T_hop": Fraction(1), "X": mesh[0], "Y": mesh[1]}
        compare(opened, sl.cost(own.plan, "tpu_v5p", model="link", sets=sets))

        assert float(opened.numbers()["total.t_comms"]) == hops


def test_slice(show):
    """On a slice the splits that fit are priced as they lie, and the others say why they don't."""
    own = subject(PROGRAMS["mlp"])
    machine = "tpu_v5p 4x4x4"
    opened = show(page([own], machine, model="link"))
    for mesh in ([16, 4], [4, 16], [64, 1]):
        opened.go(fragment({}, mesh, machine, None))
        sets = dict(zip("XY", mesh, strict=True))
        compare(opened, sl.cost(own.plan, machine, model="link", sets=sets))
    for mesh, why in (([16, 8], "has 64 chips"), ([32, 2], "takes none")):
        with pytest.raises(sl.ShardlangError) as error:
            sl.cost(own.plan, machine, model="link", sets={"X": mesh[0], "Y": mesh[1]})
        opened.go(fragment({}, mesh, machine, None))
        notice = opened.tab.inner_text("#notices")

        assert error.value.diagnostics[0].mistake.message() in notice, why
        assert "total.t_math" not in opened.numbers()


@pytest.mark.parametrize(
    ("model", "name"), [("book", "mlp"), ("link", "attention"), ("book", "tp")]
)
def test_crossover_is_where_the_times_are_equal(show, model, name):
    """Just below the crossover a pass is bound by communication, just above it is not."""
    own = subject(PROGRAMS[name])
    text = page([own], model=model)
    data = data_of(text)
    opened = show(text)
    axes = [axis["name"] for axis in data["meshes"][0]["axes"]]
    kinds = set()
    for dims, mesh, machine, _ in positions(data, 8, seed=3):
        opened.go(fragment(dims, mesh, machine, "B"))
        sets = {**dims, **dict(zip(axes, mesh, strict=True))}

        def bound(size: float, name: str, sets=sets, machine=machine) -> bool | None:
            report = sl.cost(own.plan, machine, model=model, sets={**sets, "B": size})
            return report.totals[name].condition.holds

        for each in ("forward", "backward", "total"):
            low, high, word = opened.numbers()[f"{each}.crossing"].split(";")
            kinds.add(word or "crosses")
            if word:
                assert {bound(2.0**k, each) for k in range(0, 51, 10)} == {word == "always"}
            for border, above in ((low, True), (high, False)):
                if border:
                    assert bound(float(border) * (1 + 1e-9), each) is above
                    assert bound(float(border) * (1 - 1e-9), each) is not above

    assert kinds >= ({"always"} if name == "tp" else {"crosses"})


def test_crossover_is_what_solve_says(show):
    """The number of `shardlang solve --for B` stands in the page."""
    from shardlang.cost.solve import when

    own = subject(PROGRAMS["mlp"])
    low = show(page([own])).numbers()["total.crossing"].split(";")[0]

    assert float(low) == pytest.approx(when(sl.cost(own.plan), "B").low, rel=1e-9)


def test_picture_table_has_the_library_numbers(show):
    """The picture's text alternative has T_comms and T_math at each decade."""
    own = subject(PROGRAMS["mlp"])
    opened = show(page([own]))
    rows = [row.split(".") for row in opened.numbers() if row.startswith("picture.0.")]
    sizes = sorted(float(row[2]) for row in rows)

    assert 131_072 in sizes
    assert len(sizes) > 5
    for size in sizes:
        totals = sl.cost(own.plan, sets={"B": size}).total
        for column, key in enumerate(("t_comms", "t_math")):
            shown = opened.numbers()[f"picture.{column}.{size:.0f}"]
            assert float(shown) == pytest.approx(float(totals.quantity(key).value), rel=1e-12)


def test_side_by_side(show):
    """Each program of a page has its own numbers, at the same number of chips."""
    names = ("dp", "fsdp", "tp", "fsdp_tp")
    own = [subject(EXAMPLES / f"{name}.shd", name) for name in names]
    opened = show(page(own, model="link"))
    opened.go(".chips=fixed&.hardware=h100&B=100000&D=4096&F=16384&.program=3")
    sizes = {"B": 100_000, "D": 4096, "F": 16_384}
    meshes = ({"X": 64}, {"X": 64}, {"Y": 64}, {"X": 16, "Y": 4})
    for i, (each, mesh) in enumerate(zip(own, meshes, strict=True)):
        report = sl.cost(each.plan, "h100", model="link", sets={**sizes, **mesh})
        for key in ("t_math", "t_comms", "t_overlapped"):
            shown = opened.numbers()[f"{i}.total.{key}"]
            assert float(shown) == pytest.approx(float(report.total.quantity(key).value), rel=1e-12)
        shown = float(opened.numbers()[f"{i}.memory.total"])
        assert shown == pytest.approx(float(report.memory.quantity("total").value), rel=1e-12)
    numbers = opened.numbers()
    opened.tab.focus("#chips")
    opened.tab.keyboard.press("ArrowRight")
    after = opened.numbers()

    for i in range(4):
        key = f"{i}.total.t_math"
        assert float(after[key]) == pytest.approx(float(numbers[key]) / 2, rel=1e-12)


# The controls


def test_sliders_move_by_keyboard(show):
    """Arrow keys move sizes and the split; with a fixed number of chips the other axis gives way."""
    own = subject(PROGRAMS["mlp"])
    opened = show(page([own]))
    tab = opened.tab
    tab.focus("#axis-0-0")
    tab.keyboard.press("ArrowRight")
    compare(opened, sl.cost(own.plan, sets={"X": 32, "Y": 2}))
    tab.focus("#dim-0-slider")
    tab.keyboard.press("ArrowRight")
    compare(opened, sl.cost(own.plan, sets={"X": 32, "Y": 2, "B": 3 * 2**16}))
    tab.uncheck("#lock")
    tab.focus("#axis-0-1")
    tab.keyboard.press("Home")
    compare(opened, sl.cost(own.plan, sets={"X": 32, "Y": 1, "B": 3 * 2**16}))
    tab.fill("#dim-1", "12Ki")
    compare(opened, sl.cost(own.plan, sets={"X": 32, "Y": 1, "B": 3 * 2**16, "D": 12 * 1024}))
    tab.select_option("#hardware", label="tpu_v6e")
    tab.check("#pass-0")
    sets = {"X": 32, "Y": 1, "B": 3 * 2**16, "D": 12 * 1024}
    compare(opened, sl.cost(own.plan, "tpu_v6e", sets=sets))

    assert tab.get_attribute("#axis-0-0", "aria-valuetext") == "32"


def test_the_address_keeps_the_state(show):
    """A copied address shows the same numbers; what makes no sense in one is left out."""
    text = page([subject(PROGRAMS["names"])], model="link")
    opened = show(text)
    opened.tab.fill("#dim-0", "5000")
    opened.tab.select_option("#hardware", label="h200")
    opened.tab.focus("#axis-0-0")
    opened.tab.keyboard.press("ArrowLeft")
    kept = opened.tab.evaluate("location.hash")
    again = show(text, fragment=kept)

    assert opened.numbers() == again.numbers()
    assert again.tab.evaluate("location.hash") == kept
    start = show(text).numbers()
    for bad in ("#β=-1&toString=1.5", "#.mesh=5,7", "#.hardware=no&%E0%A4%A=1&.over=x", "#=&&=="):
        assert start == show(text, fragment=bad).numbers()


def test_bad_size_is_refused(show):
    """A field with no size in it says so, and the numbers stay."""
    own = subject(PROGRAMS["mlp"])
    opened = show(page([own]))
    before = opened.numbers()
    for typed in ("", "x", "1.5", "-3", "0", "1e99"):
        opened.tab.fill("#dim-0", typed)

        assert opened.tab.get_attribute("#dim-0", "aria-invalid") == "true"
        assert "whole number" in opened.tab.inner_text("#dim-0-hint")
        assert opened.numbers() == before
    opened.tab.focus("#dim-1")

    assert opened.tab.input_value("#dim-0") == "131_072"


def test_every_control_is_reached_by_tab(show):
    """Tab alone goes to each control; of a group of radio buttons to the chosen one."""
    own = [subject(EXAMPLES / f"{name}.shd", name) for name in ("dp", "fsdp_tp")]
    tab = show(page(own)).tab
    name = "element => element.name || element.id || element.textContent"
    wanted = set(
        tab.eval_on_selector_all(
            "input, select, button, summary, [tabindex='0']",
            f"all => all.filter(e => e.checkVisibility() && !e.disabled).map({name})",
        )
    )
    reached = set()
    for _ in range(60):
        tab.keyboard.press("Tab")
        reached.add(tab.evaluate(f"({name})(document.activeElement)"))
        outline = "getComputedStyle(document.activeElement).outlineStyle"
        if tab.evaluate("document.activeElement !== document.body"):
            assert tab.evaluate(outline) != "none"

    assert len(wanted) > 12
    assert wanted <= reached


def test_every_control_has_a_name(show):
    """A label or an `aria-label` says what each control is."""
    own = [subject(EXAMPLES / f"{name}.shd", name) for name in ("dp", "fsdp_tp")]
    tab = show(page(own)).tab
    unnamed = tab.eval_on_selector_all(
        "input, select, button",
        "all => all.filter(e => !e.ariaLabel && !e.labels?.length && !e.textContent).map(e => e.id)",
    )

    assert [] == unnamed


# Notices


def test_notices(show):
    """Uneven shards, a crowded torus, missing figures and full memories are said, and only then."""
    own = subject(PROGRAMS["pod"])
    opened = show(page([own]))

    def said(dims: dict[str, int], mesh: list[int], chip: str) -> str:
        opened.go(fragment(dims, mesh, chip, None))
        return opened.tab.inner_text("#notices")

    roomy = said({"B": 65_536, "D": 4096}, [2, 8, 4], "tpu_v5p")
    assert "divide" not in roomy
    assert "axes of the interconnect" not in roomy
    assert "fit" not in roomy
    uneven = said({"B": 65_536, "D": 4100}, [2, 8, 4], "tpu_v5p")
    assert "X = 8 does not divide D = 4_100" in uneven
    report = sl.cost(own.plan, "tpu_v5e", sets={"B": 65_536, "D": 4096})
    (crowded,) = [w for w in report.warnings if "axes of the interconnect" in w]
    assert crowded[1:] in said({"B": 65_536, "D": 4096}, [2, 8, 4], "tpu_v5e")
    assert "does not fit" in said({"B": 2**30, "D": 4096}, [2, 8, 4], "tpu_v5p")


def test_figures_that_a_chip_lacks(show, tmp_path):
    """Times that need them are left out, all else is there, and a notice names them."""
    (tmp_path / "chip.toml").write_text(CHIP, encoding="utf-8")
    own = subject(PROGRAMS["pod"])
    chip = str(tmp_path / "chip.toml")
    opened = show(page([own], chip))
    report = sl.cost(own.plan, chip)

    compare(opened, report)
    assert report.total.quantity("t_comms").value is None
    assert "chip has no figure W_dcn" in opened.tab.inner_text("#notices")
    opened.go(".hardware=tpu_v5p")
    assert "no figure" not in opened.tab.inner_text("#notices")
    compare(opened, sl.cost(own.plan, "tpu_v5p"))


def test_uneven_shards_are_those_that_check_refuses(show):
    """The page and `check` agree on which sizes can't be split evenly."""
    text = PROGRAMS["odd"]
    opened = show(page([subject(text)]))
    for dims in ({"B": 3600, "D": 720, "F": 1440}, {"B": 3601, "D": 720}, {"D": 724}, {"F": 1441}):
        sizes = {"B": 3600, "D": 720, "F": 1440, **dims}
        line = ", ".join(f"{name}={size}" for name, size in sizes.items())
        wrong = sl.check(text.replace("B=3600, D=720, F=1440", line))
        opened.go(fragment(sizes, [12, 3], "tpu_v5p", None))

        assert bool(wrong) == ("does not divide" in opened.tab.inner_text("#notices")), dims


# Whom it serves


def states() -> dict[str, tuple[list[Subject], str]]:
    """Give pages that show much: notices, long formulas, several programs."""
    four = [subject(EXAMPLES / f"{n}.shd", n) for n in ("dp", "fsdp", "tp", "fsdp_tp")]
    return {
        "one": ([subject(PROGRAMS["attention"], "attention")], "#B=1000000&.mesh=16,3"),
        "four": (four, "#B=1000000000"),
        "pod": ([subject(PROGRAMS["pod"], "pod")], "#D=4100&.hardware=tpu_v5e"),
        "names": ([subject(PROGRAMS["names"], "names")], ""),
    }


@pytest.mark.parametrize("name", ["one", "four", "pod", "names"])
def test_nothing_scrolls_sideways(show, name):
    """The page is as wide as the screen, with everything open."""
    subjects, where = states()[name]
    tab = show(page(subjects, model="link"), fragment=where).tab
    tab.eval_on_selector_all("details", "all => all.forEach(each => { each.open = true; })")
    for width in (360, 414, 600, 768, 1024, 1280):
        tab.set_viewport_size({"width": width, "height": 740})

        assert tab.evaluate("document.documentElement.scrollWidth") <= width
        beyond = tab.eval_on_selector_all(
            "body *",
            f"""all => all.filter(e => !e.closest('.wide, pre, .unseen') && e.checkVisibility()
            && e.getBoundingClientRect().right > {width} + 1).map(e => e.outerHTML.slice(0, 80))""",
        )
        assert [] == beyond


CONTRAST = """() => {
  const linear = c => { c /= 255; return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; };
  const parsed = text => {
    const numbers = text.match(/[\\d.]+/g).map(Number);
    return { rgb: numbers.slice(0, 3), alpha: numbers.length > 3 ? numbers[3] : 1 };
  };
  const luminance = rgb => 0.2126 * linear(rgb[0]) + 0.7152 * linear(rgb[1]) + 0.0722 * linear(rgb[2]);
  const behind = element => {
    for (let e = element; e; e = e.parentElement) {
      const color = parsed(getComputedStyle(e).backgroundColor);
      if (color.alpha === 1) return color.rgb;
      if (color.alpha !== 0) throw new Error("a background that shines through");
    }
    return [255, 255, 255];
  };
  const found = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const element = walk.currentNode.parentElement;
    if (!walk.currentNode.data.trim() || !element.checkVisibility()) continue;
    if (element.closest("script, style, noscript, option")) continue;
    const style = getComputedStyle(element);
    const color = parsed(element.closest("svg") ? style.fill : style.color).rgb;
    const [a, b] = [luminance(color), luminance(behind(element))].sort((x, y) => y - x);
    found.push([(a + 0.05) / (b + 0.05), walk.currentNode.data.slice(0, 40)]);
  }
  return found;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["one", "four", "pod"])
def test_text_has_contrast(show, name, scheme):
    """All text stands out 4.5 to 1 from what is behind it, in light and dark."""
    subjects, where = states()[name]
    tab = show(page(subjects), scheme=scheme, fragment=where).tab
    tab.eval_on_selector_all("details", "all => all.forEach(each => { each.open = true; })")
    found = tab.evaluate(CONTRAST)
    dark = tab.evaluate("getComputedStyle(document.body).backgroundColor")

    assert len(found) > 100
    assert [] == [pair for pair in found if pair[0] < 4.5]
    assert (sum(map(int, re.findall(r"\d+", dark))) < 300) == (scheme == "dark")


def test_the_picture_has_words(show):
    """The picture is an image with a name and a description, and a live line says the result."""
    opened = show(page([subject(PROGRAMS["mlp"])]))
    tab = opened.tab
    name = tab.get_attribute("svg", "aria-labelledby")
    described = tab.get_attribute("svg", "aria-describedby")

    assert tab.get_attribute("svg", "role") == "img"
    assert "against B" in tab.inner_text(f"#{name}")
    assert "where B > 51_484" in tab.inner_text(f"#{described}")
    tab.focus("#dim-0-slider")
    tab.keyboard.press("Home")
    tab.wait_for_selector("#spoken:not(:empty)", state="attached")
    assert "compute-bound: no" in tab.text_content("#spoken")


def test_printing_hides_what_paper_can_not_move(show):
    """On paper there are numbers and no sliders, on white."""
    tab = show(page([subject(PROGRAMS["mlp"])]), scheme="dark").tab
    tab.emulate_media(media="print")

    assert not tab.is_visible("#dim-0-slider")
    assert tab.is_visible("#times")
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"


# What is put into it


def test_input_never_becomes_code(show, tmp_path, shardlang):
    """Scripts in names, comments and the file's name stay text."""
    folder = tmp_path / "<"
    folder.mkdir()
    name = "script><img src=x onerror=alert(1)><script>alert(2)<!--&amp;{{DATA}}.shd"
    file = folder / name
    file.write_text(NAMES, encoding="utf-8")
    result = shardlang("explore", file, "-o", tmp_path / "made.html")
    text = (tmp_path / "made.html").read_text(encoding="utf-8")
    opened = show(text)

    assert (result.status, result.out) == (0, "")
    assert opened.tab.title() == name.removesuffix(".shd")
    assert opened.tab.inner_text("h1") == name.removesuffix(".shd")
    assert opened.tab.text_content("#source") == NAMES
    assert opened.tab.evaluate("document.scripts.length") == 2
    assert opened.tab.query_selector("img") is None
    compare(opened, sl.cost(sl.lower(sl.load(file)), "tpu_v5p"))


def test_other_scripts_are_not_run(show):
    """The page's policy refuses a script that it was not made with."""
    opened = show(page([subject(PROGRAMS["mlp"])]))
    opened.tab.evaluate(
        """() => { const s = document.createElement("script"); s.textContent = "window.bad = 1";
        document.body.append(s); }"""
    )

    assert opened.tab.evaluate("window.bad === undefined")
    assert "Content Security Policy" in " ".join(opened.troubles)
    opened.troubles.clear()


def test_script_json_ends_no_script():
    """Data in a script element have none of the characters that could end it, and read back."""
    data = {"</script>": ["<!--", "&", "\u2028", "\ud800", 1e300, "é"]}
    text = script_json(data)

    assert re.search(r"[<>&\u2028\ud800]", text) is None
    assert json.loads(text) == data


# Other programs


@pytest.mark.parametrize(
    "text",
    [
        "mesh X=4\nA[64, 128_X] · B[128_X, 32] -> C[64, 32]",
        "A[I, J] · B[J, K] -> C[I, K]",
        "mesh X=1\nA[I_X, J] · W[J, K] -> C[I_X, K]",
    ],
)
def test_programs_with_nothing_to_move(show, text):
    """No dims, no mesh, or no communication: the page works all the same."""
    own = subject(text)
    data = page_data([own])
    opened = show(page([own]))
    sets = {dim["name"]: dim["size"] for dim in data["dims"]}

    compare(opened, sl.cost(own.plan, "tpu_v5p", sets=sets))


@pytest.mark.parametrize("line", ["chip.toml", "chip.toml 8x8", '"chip.toml#mine" 8x8'])
def test_a_chip_of_ones_own(show, tmp_path, line):
    """A chip described beside the program is the first choice, with its slice."""
    head = "[mine]\n" if "#" in line else ""
    (tmp_path / "chip.toml").write_text(head + CHIP, encoding="utf-8")
    program = tmp_path / "own.shd"
    text = (EXAMPLES / "mlp.shd").read_text(encoding="utf-8")
    program.write_text(text.replace("X=16, Y=4", "X=8, Y=8").replace("tpu_v5p", line), "utf-8")
    own = subject(program)
    opened = show(page([own], model="link"))

    compare(opened, sl.cost(own.plan, model="link"))
    shape = line.partition(" ")[2]
    chosen = opened.tab.eval_on_selector("#hardware", "e => e.selectedOptions[0].textContent")
    assert chosen == ("mine" if head else "chip") + (f" {shape}" if shape else "")
    opened.go("B=5000")
    compare(opened, sl.cost(own.plan, model="link", sets={"B": 5000}))


def test_forward_alone(show):
    """Without a backward pass there is one column."""
    own = subject(PROGRAMS["mlp"], forward_only=True)
    opened = show(page([own]))

    compare(opened, sl.cost(own.plan))
    assert opened.tab.query_selector("#pass-0") is None


def test_a_dim_that_was_set_follows_no_more(show, tmp_path, shardlang):
    """`--set F=…` wins over `F=4*D` when D moves."""
    path = tmp_path / "out.html"
    result = shardlang("explore", PROGRAMS["mlp"], "--set", "F=1000", "-o", path)
    opened = show(path.read_text(encoding="utf-8"))
    opened.go("D=4096")
    plan = sl.lower(sl.load(PROGRAMS["mlp"]))

    assert result.status == 0
    compare(opened, sl.cost(plan, sets={"F": 1000, "D": 4096}))


# The command


def test_without_o_the_page_goes_to_stdout(shardlang):
    """As with the other commands."""
    result = shardlang("explore", PROGRAMS["mlp"])

    assert (result.status, result.err) == (0, "")
    assert result.out.startswith("<!DOCTYPE html>")
    assert result.out.endswith("</html>\n")
    assert not re.search(
        r"(src|href)=\"(?!data:)|url\(|@import|https?://(?!www\.w3\.org)", result.out
    )


def test_several_files_take_what_is_theirs(shardlang, tmp_path):
    """`--set Y=8` is for the programs that have a Y; a name that none has is refused."""
    files = [EXAMPLES / f"{name}.shd" for name in ("dp", "tp")]
    path = tmp_path / "out.html"
    result = shardlang("explore", *files, "--set", "Y=8", "--set", "M_Y=2", "-o", path)
    data = data_of(path.read_text(encoding="utf-8"))

    assert (result.status, result.err) == (0, "")
    assert [program["label"] for program in data["programs"]] == ["dp", "tp"]
    assert [mesh["first"] for mesh in data["meshes"]] == [[64], [8]]
    wrong = shardlang("explore", *files, "--set", "Q=8")
    assert wrong.status == 2
    assert "error[SH231]" in wrong.err


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        ((), 2, "no program given"),
        (("nowhere.shd",), 2, "there is no file nowhere.shd"),
        ((EXAMPLES / "mlp.shd", "--hardware", "tpu_v9"), 2, "SH501"),
        ((EXAMPLES / "mlp.shd", "--hardware", "tpu_v5p 4x4x2"), 2, "SH510"),
        ((EXAMPLES / "mlp.shd", "-o", "/nowhere/x.html"), 2, "can't write /nowhere/x.html"),
        ((EXAMPLES / "mlp.shd", "-e", "A[I] + B[I] -> C[I]"), 2, "both given"),
        (("-", "-"), 2, "once"),
        ((EXAMPLES / "mlp.shd", "-"), 2, "files"),
        (("-e", "A[I"), 1, "error[SH1"),
        ((EXAMPLES / "fsdp_tp.shd", "--strategy", "optimal"), 1, "SH351"),
    ],
)
def test_mistakes(shardlang, arguments, status, message):
    """What is wrong is said in the house's words, and no page is written."""
    result = shardlang("explore", *arguments)

    assert (status, "") == (result.status, result.out)
    assert message in result.err


def test_same_names_are_told_apart(shardlang, tmp_path):
    """Files with one name are shown with their folders, and one file twice is counted."""
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        shutil.copy(EXAMPLES / "dp.shd", tmp_path / folder / "dp.shd")
    both = shardlang("explore", tmp_path / "a" / "dp.shd", tmp_path / "b" / "dp.shd").out
    twice = shardlang("explore", EXAMPLES / "dp.shd", EXAMPLES / "dp.shd").out

    assert f"<title>{tmp_path}/a/dp.shd, {tmp_path}/b/dp.shd</title>" in both
    assert f"<title>{EXAMPLES}/dp.shd (1), {EXAMPLES}/dp.shd (2)</title>" in twice
