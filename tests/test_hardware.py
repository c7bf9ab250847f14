"""The hardware catalogue: its figures, and what is wrong in files of one's own."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

import shardlang as sl
from shardlang.backends.hardware_tables import render
from shardlang.diagnostics import ShardlangError
from shardlang.frontend.format import format_source
from shardlang.hardware.catalogue import CATALOGUE, known_hardware, load_hardware
from shardlang.hardware.chip import ratios
from shardlang.hardware.figures import FIGURES
from shardlang.source import Source, Span

ROOT = Path(__file__).resolve().parent.parent
GOOD = """\
[mine]
flops.bf16 = { value = 1e14, unit = "FLOP/s", source = "data sheet" }
W_ici = 5e10
"""


@pytest.fixture
def write(tmp_path):
    """Give a function that writes a TOML file and returns its path."""

    def writer(text: str | bytes, name: str = "mine.toml") -> str:
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(path)

    return writer


@pytest.mark.parametrize(
    ("name", "flops", "hbm", "hbm_speed", "ici", "axes", "dcn"),
    [
        ("tpu_v4p", 2.75e14, 32e9, 1.2e12, 9e10, 3, 6.25e9),
        ("tpu_v5e", 1.97e14, 16e9, 8.1e11, 9e10, 2, 3.125e9),
        ("tpu_v5p", 4.59e14, 96e9, 2.8e12, 1.8e11, 3, 6.25e9),
        ("tpu_v6e", 9.2e14, 32e9, 1.6e12, 1.8e11, 2, 1.25e10),
        ("h100", 9.89e14, 80e9, 3.35e12, 4.5e11, 1, 5e10),
    ],
)
def test_catalogue_has_the_figures_of_the_book(name, flops, hbm, hbm_speed, ici, axes, dcn):
    """Each chip has the book's figures."""
    chip = load_hardware(name)
    keys = ("C", "hbm", "W_hbm", "W_ici", "ici_axes", "W_dcn")

    assert [chip.get(key) for key in keys] == [flops, hbm, hbm_speed, ici, axes, dcn]


def test_ratios_of_the_book():
    """SD-02, SD-16, RF-09, GP-04: tokens at which compute and communication balance."""
    v5p, h100 = load_hardware("tpu_v5p"), load_hardware("h100")

    assert v5p.get("C") / v5p.get("W_ici") == 2550
    assert v5p.get("C") / v5p.get("W_dcn") == 73_440
    assert round(h100.get("C") / h100.get("W_hbm")) == 295
    assert round(h100.get("C") / h100.get("W_ici"), -2) == 2200


GIB = 1_073_741_824
PUBLISHED = {
    # the makers' documents, and tables made from them
    "tpu_v4p:spec": {
        "flops.bf16": 275e12, "flops.int8": 275e12, "hbm": 32 * GIB, "W_hbm": 1.2e12,
        "w_ici": 45e9, "links": 6, "pod": 4096, "W_dcn": 6.25e9,
    },
    "tpu_v5e:spec": {
        "flops.bf16": 197e12, "flops.int8": 393e12, "hbm": 16e9, "W_hbm": 0.819e12,
        "w_ici": 50e9, "links": 4, "pod": 256, "W_dcn": 3.125e9,
    },
    "tpu_v5p:spec": {
        "flops.bf16": 459e12, "flops.fp8": 459e12, "flops.int8": 918e12, "hbm": 102_005_473_280,
        "W_hbm": 2.765e12, "w_ici": 100e9, "links": 6, "pod": 8960, "W_dcn": 6.25e9,
    },
    "tpu_v6e:spec": {
        "flops.bf16": 918e12, "flops.fp8": 918e12, "flops.int8": 1836e12, "hbm": 32e9,
        "W_hbm": 1.638e12, "w_ici": 100e9, "links": 4, "pod": 256, "W_dcn": 12.5e9,
    },
    "tpu_7x:spec": {
        "flops.bf16": 2307e12, "flops.fp8": 4614e12, "hbm": 192 * GIB, "W_hbm": 7.38e12,
        "w_ici": 100e9, "links": 6, "pod": 9216, "W_dcn": 12.5e9, "devices": 2,
    },
    "a100": {
        "flops.bf16": 312e12, "flops.int8": 624e12, "hbm": 80e9, "W_hbm": 2.039e12,
        "W_ici": 300e9, "links": 12, "node": 8, "W_dcn": 25e9,
    },
    "h100": {
        "flops.bf16": 989e12, "flops.fp8": 1979e12, "flops.int8": 1979e12, "hbm": 80e9,
        "W_hbm": 3.35e12, "W_ici": 450e9, "links": 18, "node": 8, "W_dcn": 50e9,
    },
    "h200": {
        "flops.bf16": 989e12, "flops.fp8": 1979e12, "flops.int8": 1979e12, "hbm": 141e9,
        "W_hbm": 4.8e12, "W_ici": 450e9, "node": 8, "W_dcn": 50e9,
    },
    "b200": {
        "flops.bf16": 2250e12, "flops.fp8": 4500e12, "flops.int8": 4500e12, "flops.fp4": 9000e12,
        "hbm": 180e9, "W_hbm": 8.0e12, "W_ici": 900e9, "node": 8, "W_dcn": 50e9,
    },
    "b200:aiconfigurator": {"hbm": 180 * GIB, "W_hbm": 7.7e12, "W_dcn": 100e9},
    "b200:book": {"flops.bf16": 2300e12, "hbm": 192e9, "W_hbm": 8.0e12},
    "gb200_nvl72": {
        "flops.bf16": 2500e12, "flops.fp8": 5000e12, "flops.int8": 5000e12, "hbm": 186e9,
        "W_hbm": 8.0e12, "W_ici": 900e9, "node": 72, "host": 4, "W_dcn": 100e9,
        "dcn_latency": 5e-6,
    },
    "gb200_nvl72:aiconfigurator": {"hbm": 189_471 * 1_048_576},
    "mi300x": {
        "flops.bf16": 1307e12, "flops.fp8": 2615e12, "flops.int8": 2600e12, "hbm": 192e9,
        "W_hbm": 5.3e12, "w_ici": 64e9, "links": 7, "W_ici": 448e9, "node": 8, "W_dcn": 50e9,
    },
    # the book
    "tpu_v4p": {
        "pod": 4096, "host": 4, "hbm": 32e9, "W_hbm": 1.2e12, "flops.bf16": 2.75e14,
        "flops.int8": 2.75e14, "w_ici": 4.5e10, "W_ici": 9e10, "ici_axes": 3, "W_dcn": 6.25e9,
        "W_pcie": 1.6e10, "cores": 2, "hop_latency": 1e-6,
    },
    "tpu_v5p": {
        "pod": 8960, "host": 4, "hbm": 96e9, "W_hbm": 2.8e12, "flops.bf16": 4.59e14,
        "flops.int8": 9.18e14, "w_ici": 9e10, "W_ici": 1.8e11, "ici_axes": 3, "W_dcn": 6.25e9,
        "W_pcie": 1.5e10, "cores": 2, "hop_latency": 1e-6, "price": 4.2,
    },
    "tpu_v5e": {
        "pod": 256, "host": 8, "hbm": 16e9, "W_hbm": 8.1e11, "flops.bf16": 1.97e14,
        "flops.int8": 3.94e14, "w_ici": 4.5e10, "W_ici": 9e10, "ici_axes": 2, "W_dcn": 3.125e9,
        "W_pcie": 1.5e10, "cores": 1, "hop_latency": 1e-6, "price": 1.2,
        "scratchpad": 134_217_728,
    },
    "tpu_v6e": {
        "pod": 256, "host": 8, "hbm": 32e9, "W_hbm": 1.6e12, "flops.bf16": 9.2e14,
        "flops.int8": 1.84e15, "w_ici": 9e10, "W_ici": 1.8e11, "ici_axes": 2, "W_dcn": 12.5e9,
        "W_pcie": 3.2e10, "cores": 1, "hop_latency": 1e-6,
    },
    "tpu_7x": {
        "pod": 9216, "host": 4, "hbm": 192e9, "W_hbm": 7.4e12, "w_ici": 9e10, "W_ici": 1.8e11,
        "ici_axes": 3, "W_dcn": 12.5e9, "cores": 2,
    },
    "a100:book": {"flops.bf16": 3.1e14, "hbm": 80e9, "W_hbm": 2.0e12, "node": 8},
    "h100:book": {"flops.bf16": 9.9e14, "flops.fp8": 2.0e15, "hbm": 80e9, "node": 8},
    "h200:book": {"flops.bf16": 9.9e14, "flops.fp8": 2.0e15, "hbm": 141e9, "W_hbm": 4.8e12},
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_figures(name):
    """The catalogue has each chip's figures as they are published, to the byte."""
    chip = load_hardware(name)
    found = {key: figure.value for key, _, figure in chip.all() if key in PUBLISHED[name]}

    assert found == PUBLISHED[name]


@pytest.mark.parametrize(
    ("ratio", "expected"),
    [
        (
            "C/W_ici",
            {
                "tpu_v4p": 3056, "tpu_v5e": 2189, "tpu_v5p": 2550, "tpu_v6e": 5111,
                "tpu_7x": 12_817, "tpu_v5e:spec": 1970, "tpu_v5p:spec": 2295,
                "tpu_v6e:spec": 4590, "tpu_7x:spec": 11_535, "h100:book": 2200,
            },
        ),
        (
            "C/W_dcn",
            {
                "tpu_v5p": 73_440, "tpu_v6e:spec": 73_440, "tpu_v5e": 63_040, "tpu_7x": 184_560,
                "h100:book": 8 * 2475, "b200": 8 * 5625,
            },
        ),
        (
            "C/W_hbm",
            {
                "tpu_v4p": 229, "tpu_v5e": 243, "tpu_v5p": 164, "tpu_v6e": 575,
                "tpu_v5e:spec": 241, "tpu_v5p:spec": 166, "tpu_v6e:spec": 560, "tpu_7x:spec": 313,
                "a100": 153, "h100": 295, "h200": 206, "b200": 281, "b200:aiconfigurator": 292,
                "mi300x": 247,
            },
        ),
        ("w_ici*hop", {"tpu_v5e": 45_000}),
        ("C/USD", {"h100:book": 330_000_000_000_000_000, "tpu_v5e": 591_000_000_000_000_000}),
        ("fp8/W_hbm", {"h100": 591, "b200": 562}),
        ("int8/W_hbm", {"tpu_v5e": 486}),
        ("C/(node*W_dcn)", {"h100:book": 2475, "b200": 5625}),
        ("pod/host", {"tpu_v5e": 32, "tpu_v5p": 2240}),
        ("pod*cores", {"tpu_v5e": 256, "tpu_v5p": 17_920}),
        ("pod*hbm", {"tpu_v5e": 4_096_000_000_000, "tpu_v5p": 860_160_000_000_000}),
        ("node*W_dcn", {"h100": 400_000_000_000, "gb200_nvl72:book": 3_600_000_000_000}),
    ],
)  # fmt: skip
def test_derived_numbers(ratio, expected):
    """What follows from the figures is what is printed elsewhere: ratios to the last digit."""
    for name, value in expected.items():
        assert value == round(ratios(load_hardware(name))[ratio]), name


def everyone() -> list[str]:
    """List the chips and their variants."""
    return sorted({v for name in known_hardware() for v in (name, *load_hardware(name).variants)})


@pytest.mark.parametrize("name", everyone())
def test_every_figure_has_unit_source_and_date(name):
    """The catalogue gives each figure with its unit, where it comes from and when."""
    chip = load_hardware(name)
    shown = " ".join(render([chip], "one", "text").split())

    for key, _, figure in chip.all():
        assert figure.unit == ("FLOP/s" if key.startswith("flops") else FIGURES[key].unit)
        assert figure.source not in ("", CATALOGUE.name)
        assert re.fullmatch(r"20\d\d(-\d\d)?", figure.date)
        assert f"source: {figure.source} ({figure.date})" in shown


def test_variants_hold_nothing_that_they_inherit():
    """A variant repeats no figure of its chip."""
    data = tomllib.loads(CATALOGUE.read_text(encoding="utf-8"))
    repeated = [
        (name, variant, key)
        for name, table in data.items()
        for variant, own in table.get("variant", {}).items()
        for key, value in {**own, **own.get("flops", {})}.items()
        if key != "flops"
        and (table.get(key) or table["flops"].get(key, {})).get("value") == value["value"]
        and (table.get(key) or table["flops"].get(key, {})).get("unit") == value["unit"]
    ]

    assert repeated == []


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("tpu_v5p", "tpu_v5p:book"),
        ("h100", "h100:spec"),
        ("tpu_7x:spec", "TPU7x:spec"),
        ("gb200", "gb200_nvl72"),
        ("tpu-v4", "tpu_v4p"),
    ],
)
def test_names_of_one_chip(one, other):
    """The figures that a chip has by itself have a name, too, and some chips have several."""
    assert load_hardware(one) is load_hardware(other)


@pytest.mark.parametrize(
    ("chip", "shape", "wraps"),
    [
        ("tpu_v5e", (8, 16), (False, True)),
        ("tpu_v5e", (16, 16), (True, True)),
        ("tpu_v5e", (4, 4), (False, False)),
        ("tpu_v5e", (16,), (True,)),
        ("tpu_v6e", (8, 8), (False, False)),
        ("tpu_v6e", (4, 8), (False, False)),
        ("tpu_v6e:spec", (16, 8), (True, False)),
        ("tpu_v5p", (2, 2, 4), (False, False, False)),
        ("tpu_v5p", (2, 2, 1), (False, False, False)),
        ("tpu_v5p", (16, 4, 2), (False, False, False)),
        ("tpu_v5p", (4, 4, 8), (True, True, True)),
        ("tpu_v5p", (16, 20, 28), (True, True, True)),
        ("tpu_v5p", (4, 4), (False, False)),
        ("tpu_v4p", (2, 2, 2), (False, False, False)),
        ("tpu_v4p", (16, 16, 16), (True, True, True)),
        ("tpu_7x", (4, 4, 4), (True, True, True)),
        ("tpu_7x", (4, 4, 6), (False, False, False)),
        ("h100", (8,), (False,)),
        ("mi300x", (4, 2), (False, False)),
    ],
)
def test_wraparound(chip, shape, wraps):
    """A slice closes to rings by its chip's rule, and never where there is no torus."""
    topology = load_hardware(chip).topology

    assert topology is not None
    assert wraps == topology.wraps(shape)


def test_shapes_that_no_slice_has():
    """A size below one, or more axes than the torus has, is refused."""
    topology = load_hardware("tpu_v5e").topology
    assert topology is not None

    for shape in ((4, 0), (4, 4, 4)):
        with pytest.raises(ValueError, match="shape"):
            topology.wraps(shape)


@pytest.mark.parametrize(
    ("chip", "kind", "axes", "link", "egress", "node", "in_network", "hop"),
    [
        ("tpu_v5e", "torus", 2, 45e9, 180e9, 256, False, 1e-6),
        ("tpu_v5p:spec", "torus", 3, 100e9, 600e9, 8960, False, 1e-6),
        ("tpu_7x:spec", "torus", 3, 100e9, 600e9, 9216, False, 1e-6),
        ("a100", "switch", 1, 300e9, 300e9, 8, False, None),
        ("h100", "switch", 1, 450e9, 450e9, 8, True, None),
        ("gb200_nvl72", "switch", 1, 900e9, 900e9, 72, True, None),
        ("mi300x", "full", 1, 64e9, 448e9, 8, False, None),
    ],
)
def test_topology(chip, kind, axes, link, egress, node, in_network, hop):
    """What collectives need: how chips are joined, and what a link and a chip carry one way."""
    found = load_hardware(chip).topology

    assert found is not None
    assert (kind, axes, link, egress, node, in_network, hop) == (
        found.kind,
        found.axes,
        found.link,
        found.egress,
        found.node,
        found.in_network,
        found.hop_latency,
    )


def test_shape_of_a_pod():
    """A torus knows the shape of its largest slice."""
    topology = load_hardware("tpu_v5p").topology

    assert topology is not None
    assert (16, 20, 28) == topology.pod


def test_tpu_links_are_half_of_an_axis():
    """W of a TPU counts both directions of a link."""
    for name in everyone():
        chip = load_hardware(name)
        if name.startswith("tpu"):
            assert chip.get("W_ici") == 2 * chip.get("w_ici")


def test_names_are_read_kindly():
    """Case, spaces and hyphens make no difference."""
    assert load_hardware("TPU v5p") is load_hardware("tpu-v5p") is load_hardware("tpu_v5p")


def test_a_file_of_ones_own(write):
    """A user's file has the same form, with plain numbers where that will do."""
    chip = load_hardware(write(GOOD))

    assert (chip.name, chip.get("C"), chip.get("W_ici")) == ("mine", 1e14, 5e10)
    assert chip.get("W_dcn") is None
    assert chip.peak("int8") is None
    flat = load_hardware(write("flops.bf16 = 1e14\nW_ici = 5e10\n", "flat_chip.toml"))
    assert flat.name == "flat_chip"


def test_a_file_beside_the_program(write, tmp_path):
    """A relative path is looked for beside the program that names it."""
    write(GOOD, "beside.toml")
    source = Source(str(tmp_path / "p.shd"), "hardware beside.toml")

    assert load_hardware("beside.toml", source, Span(9, 20)).name == "mine"


def test_one_of_several_chips(write):
    """FILE#CHIP chooses; without a choice it is an error that shows how."""
    path = write(GOOD + GOOD.replace("[mine]", "[other]").replace("5e10", "6e10"))

    assert load_hardware(f"{path}#other").get("W_ici") == 6e10
    with pytest.raises(ShardlangError) as caught:
        load_hardware(path)
    (found,) = caught.value.diagnostics
    assert found.code == "SH506"
    assert f"{path}#mine" in found.hint


def diagnose(name: str) -> list[tuple[str, int, int, str]]:
    """Load what can't be loaded and list the diagnostics."""
    with pytest.raises(ShardlangError) as caught:
        load_hardware(name)
    return [(d.code, d.line, d.column, d.message) for d in caught.value.diagnostics]


def test_unknown_names_get_the_nearest():
    """A mistyped name is offered the one it is nearest to."""
    with pytest.raises(ShardlangError) as caught:
        load_hardware("tpu_v5q")
    (found,) = caught.value.diagnostics

    assert found.code == "SH501"
    assert found.hint is not None
    assert found.hint.startswith("did you mean 'tpu_v5")


@pytest.mark.parametrize("name", ["", "abacus", "a" * 5000, "a\0b", "#", "é", "no/such/file.toml"])
def test_strange_names_are_diagnosed(name):
    """Whatever the name is, it ends in a diagnostic."""
    assert [code for code, *_ in diagnose(name)] == ["SH501"]


def test_what_can_not_be_read(write, tmp_path):
    """A directory and broken UTF-8 are diagnostics."""
    assert diagnose(str(tmp_path))[0][0] == "SH502"
    assert "UTF-8" in diagnose(write(b"\xff\xfe\xfa"))[0][3]


@pytest.mark.parametrize(
    ("text", "line", "column"),
    [
        ("[mine]\nW_ici = = 3\n", 2, 9),
        ("[mine\n", 1, 6),
        ("[mine]\nW_ici = ", 2, 9),
        ("x = " + "[" * 5000, 1, 5005),
    ],
)
def test_broken_toml_is_placed(write, text, line, column):
    """What is no TOML is reported at its place."""
    (found,) = diagnose(write(text))

    assert found[:3] == ("SH503", line, column)


@pytest.mark.parametrize(
    ("old", "new", "code", "line", "words"),
    [
        ("W_ici = 5e10\n", "", "SH504", 1, "'W_ici' of 'mine' is missing"),
        ("flops.bf16", "flops.int8", "SH504", 1, "'flops.bf16' of 'mine' is missing"),
        ("5e10", "-5e10", "SH505", 3, "'W_ici' of 'mine' must be positive"),
        ("5e10", "0", "SH505", 3, "must be positive"),
        ("5e10", "nan", "SH505", 3, "must be positive"),
        ("5e10", "inf", "SH505", 3, "must be positive"),
        ("5e10", "1" + "0" * 400, "SH505", 3, "must be positive"),
        ("5e10", "'fast'", "SH505", 3, "must be a number"),
        ("5e10", "true", "SH505", 3, "must be a number"),
        ("5e10", "{ unit = 'B/s' }", "SH505", 3, "has no value"),
        ("1e14, unit", "'1e14', unit", "SH505", 2, "'flops.bf16' of 'mine' must be a number"),
        ("FLOP/s", "TB/s", "SH505", 2, "must be in FLOP/s, not TB/s"),
        ("5e10", "{ value = 5, unit = 'gb/s' }", "SH505", 3, "must be in B/s, not gb/s"),
        ("5e10", "{ value = 5, unit = 3 }", "SH505", 3, "must be in B/s, not 3"),
        ("5e10", "{ value = 5, units = 'B/s' }", "SH505", 3, "has a 'units', which is none of"),
        ("5e10", "{ value = 5, source = 3 }", "SH505", 3, "must have a text as its source"),
        ("5e10", "{ value = 5, date = 'May' }", "SH505", 3, "must have a date such as"),
        ("W_ici = 5e10", "W_ici = 5e10\nici_axes = 2.5", "SH505", 4, "must be a whole number"),
        ("W_ici = 5e10", "W_ici = 5e10\npod = '4x0'", "SH505", 4, "must be a number of chips or"),
        ("W_ici = 5e10", "W_ici = 5e10\npod = [4, 4]", "SH505", 4, "must be a number"),
        ("W_ici = 5e10", "W_ici = 5e10\nin_network = 1", "SH505", 4, "must be true or false"),
        ("W_ici = 5e10", "W_ici = 5e10\ntopology = 'ring'", "SH505", 4, "must be one of torus"),
        ("W_ici = 5e10", "W_ici = 5e10\nalso = 'other'", "SH505", 4, "must be a list of names"),
        ("W_ici = 5e10", "W_ici = 5e10\ntitle = 3", "SH505", 4, "must be a text"),
        ("W_ici = 5e10", "W_ici = 5e10\nbasis = 3", "SH505", 4, "must be a name"),
        ("W_ici = 5e10", "W_ici = 5e10\nvariant = 3", "SH505", 4, "must be tables of figures"),
        ("flops.bf16", "flops.bf61", "SH505", 2, "'flops.bf61' of 'mine' is none that is known"),
        ("W_ici", "[sources]\nbook = 3\n[mine.x]\nW_ici", "SH505", 3, "must be texts"),
        ("W_ici", "W_icy", "SH505", 3, "'W_icy' of 'mine' is none that is known"),
        ("flops.bf16 = {", "flops = 3 #", "SH505", 2, "must be a table"),
        (GOOD, "", "SH506", 1, "describes no chip"),
    ],
)
def test_bad_figures_are_named(write, old, new, code, line, words):
    """A figure that is missing, negative or no number is named, at its place."""
    found = diagnose(write(GOOD.replace(old, new)))

    assert found[0][:2] == (code, line)
    assert words in found[0][3]


@pytest.mark.parametrize(
    ("written", "hint"),
    [
        ("C = 1e14", "use flops.bf16, which is C in formulas"),
        ("w_hbm = 1e12", "did you mean W_hbm?"),
        ("speed = 1e12", None),
    ],
)
def test_unknown_figures_get_a_hint(write, written, hint):
    """A figure by its name in formulas, or misspelt, gets the one that was meant."""
    with pytest.raises(ShardlangError) as caught:
        load_hardware(write(f"{GOOD}{written}\n"))
    (found,) = caught.value.diagnostics

    assert (found.code, found.hint) == ("SH505", hint)


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("hbm = { value = 95, unit = 'GiB' }", 102_005_473_280),
        ("hbm = { value = 96, unit = 'GB' }", 96_000_000_000),
        ("hbm = { value = 0.5, unit = 'TiB' }", 549_755_813_888),
        ("W_hbm = { value = 2.765, unit = 'TB/s' }", 2_765_000_000_000),
        ("W_hbm = { value = 800, unit = 'GiB/s' }", 858_993_459_200),
        ("W_dcn = { value = 50, unit = 'Gb/s' }", 6_250_000_000),
        ("flops.int8 = { value = 1836, unit = 'TOP/s' }", 1_836_000_000_000_000),
        ("flops.fp8 = { value = 4.614, unit = 'PFLOP/s' }", 4_614_000_000_000_000),
        ("hop_latency = { value = 1, unit = 'us' }", 1e-6),
        ("price = { value = 4.2, unit = 'USD/h' }", 4.2),
        ("pod = '16x20x28'", 8960),
        ("in_network = true", 1),
        ("in_network = { value = false }", 0),
    ],
)
def test_units_convert_exactly(write, written, value):
    """A figure may be written in a larger unit, decimal or binary, bytes or bits."""
    chip = load_hardware(write(f"{GOOD}{written}\n"))
    key = written.partition(" ")[0]

    assert value == {key: figure.value for key, _, figure in chip.all()}[key]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("source =", "sparse = true, source ="),
        ("data sheet", "data sheet, with sparsity"),
        ("data sheet", "data sheet, with 2:4 sparsity"),
        ("W_ici", "flops.bf16_sparse = 2e14\nW_ici"),
        ("W_ici", "sparse_flops = 2e14\nW_ici"),
        ("W_ici", "flops.sparse = { bf16 = 2e14 }\nW_ici"),
    ],
)
def test_sparse_peaks_are_refused(write, old, new):
    """U4: a peak for sparse matrices is twice the dense one, and never taken for it."""
    with pytest.raises(ShardlangError) as caught:
        load_hardware(write(GOOD.replace(old, new)))
    (found,) = caught.value.diagnostics

    assert found.code == "SH509"
    assert "dense" in (found.hint or "")


def test_utilisation_is_of_the_dense_peak():
    """U4: 420 TFLOP/s on an H200 are 42.5 % of its peak, not 21.2 %."""
    assert round(420e12 / load_hardware("h200").get("C"), 3) == 0.425


@pytest.mark.parametrize("source", ["data sheet, without sparsity", "dense, no sparsity"])
def test_dense_peaks_may_say_so(write, source):
    """A source that says that nothing is sparse is fine, and so is `sparse = false`."""
    text = GOOD.replace("data sheet", source).replace("source =", "sparse = false, source =")

    assert load_hardware(write(text)).get("C") == 1e14


VARIANTS = """\
[mine]
topology = "torus"
basis = "measured"
flops.bf16 = { value = 100, unit = "TFLOP/s", source = "data sheet" }
flops.int8 = 2e14
W_ici = 5e10

[mine.variant.fast]
title = "Mine, overclocked"
W_ici = { value = 60, unit = "GB/s" }
flops.int8 = 3e14
"""


def test_variants_of_ones_own(write):
    """A variant has its own figures and the rest from its chip, which has a name for its own."""
    path = write(VARIANTS)
    plain, fast = load_hardware(path), load_hardware(f"{path}#mine:fast")

    assert (plain.name, fast.name, fast.title) == ("mine", "mine:fast", "Mine, overclocked")
    assert (plain.get("W_ici"), fast.get("W_ici")) == (5e10, 6e10)
    assert (fast.get("C"), fast.peak("int8"), plain.peak("int8")) == (1e14, 3e14, 2e14)
    assert plain.variants == fast.variants == ("mine:measured", "mine:fast")
    assert load_hardware(f"{path}#:fast") == fast
    assert load_hardware(f"{path}#mine:measured") == plain
    assert fast.topology is not None


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ("60, unit", "-60, unit", 10, "'W_ici' of 'mine:fast' must be positive"),
        ("3e14", "'x'", 11, "'flops.int8' of 'mine:fast' must be a number"),
        ("title =", "basis =", 9, "'basis' of 'mine:fast' belongs to the chip"),
        ("[mine.variant.fast]", "[mine.variant.measured]", 3, "has the name of a variant"),
    ],
)
def test_mistakes_in_variants_are_placed(write, old, new, line, words):
    """What is wrong in a variant is reported there, not at the chip's figure of that name."""
    (found,) = diagnose(write(VARIANTS.replace(old, new)))

    assert found[:2] == ("SH505", line)
    assert words in found[3]


def test_variants_that_do_not_exist(write):
    """A variant that is not there gets the nearest name, or the chips of the file."""
    with pytest.raises(ShardlangError) as caught:
        load_hardware("tpu_v5p:spek")
    assert caught.value.diagnostics[0].hint == "did you mean 'tpu_v5p:spec'?"

    path = write(VARIANTS)
    assert diagnose(f"{path}#:slow")[0][::3] == (
        "SH506",
        f"'{path}' describes no chip 'mine:slow', but mine",
    )


def test_variants_in_programs():
    """A program names a variant as `hardware` and `--hardware` do, and fmt leaves it as it is."""
    text = "mesh X=4\nhardware tpu_v5p:spec\nA[I_X, J] · W[J, K] -> C[I_X, K]\n"
    plan = sl.lower(sl.parse(text))

    assert sl.cost(plan).hardware is load_hardware("tpu_v5p:spec")
    assert sl.cost(plan, hardware="tpu_v5p").hardware is load_hardware("tpu_v5p")
    assert "hardware tpu_v5p:spec\n" in format_source(Source("t", text))


def test_the_example_of_the_page_loads(write):
    """The whole file that docs/hardware.md shows is read, and is named in a program as it says."""
    page = (ROOT / "docs" / "hardware.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"^```toml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    path = write(text, "my_chip.toml")
    line = f'hardware "{path}#my_chip"\nA[I_X, J] · W[J, K] -> C[I_X, K]'
    chip = sl.cost(sl.lower(sl.parse(line))).hardware

    assert chip == load_hardware(path)
    assert (chip.get("C"), chip.peak("f8e4m3"), chip.get("W_dcn")) == (4e14, 8e14, 6.25e9)
    assert load_hardware(f"{path}#my_chip:measured").get("W_ici") == 1.38e11
    for figure in ("flops.bf16", *FIGURES):
        assert re.search(rf"^\|.*`{figure}`.*\|", page, re.MULTILINE), figure


def test_several_bad_figures_come_together(write):
    """Independent mistakes are reported in one run."""
    text = GOOD.replace("5e10", "-1") + "W_hbm = 'x'\n"

    assert [line for _, line, *_ in diagnose(write(text))] == [3, 4]


@pytest.mark.parametrize("name", everyone())
def test_one_chip_fits_80_columns(name):
    """A chip's page fits 80 columns."""
    assert max(map(len, render([load_hardware(name)], "one", "text").splitlines())) <= 80


def test_long_values_in_a_narrow_window(write):
    """A chip with a value as long as the window is shown all the same, word by word."""
    pod = "x".join(["99999999"] * 5)
    chip = load_hardware(write(f"{GOOD}pod = '{pod}'\n"))

    for width in (1, 40, 80):
        assert pod in render([chip], "one", "text", width)
        assert "sheet" in render([chip], "one", "text", width)
        assert "bf16" in render([chip, chip], "compared", "text", width)


def test_the_catalogue_as_a_table():
    """The table has a row a chip, names every variant, and fits 80 columns."""
    text = render([load_hardware(name) for name in known_hardware()], "list", "text")

    assert all(name in " ".join(text.split()) for name in everyone() if name not in BASES)
    assert max(map(len, text.splitlines())) <= 80
    (row,) = re.findall(r"^h100 .*", text, re.MULTILINE)
    assert row.split()[:6] == ["h100", "989", "80", "3350", "450", "50"]


BASES = {f"{name}:{'book' if name.startswith('tpu') else 'spec'}" for name in known_hardware()}


def test_chips_side_by_side():
    """As many chips stand side by side as fit 80 columns, the others below them."""
    names = ["tpu_v5p", "tpu_v5p:spec", "h100", "gb200", "mi300x"]
    text = render([load_hardware(name) for name in names], "compared", "text")
    first, *_, last = text.split("\n\n")

    assert max(map(len, text.splitlines())) <= 80
    assert first.split()[:3] == names[:3]
    assert re.search(r"^W_ici +180 GB/s +200 GB/s +450 GB/s", text, re.MULTILINE)
    assert re.search(r"^C/W_ici +2550 +2295 +2198", text, re.MULTILINE)
    assert re.search(r"^C/W_dcn +25000 +26140$", last, re.MULTILINE)
    assert re.search(r"^price +4.2 USD/h +4.2 USD/h +10.8 USD/h$", text, re.MULTILINE)
    assert "price" not in text[text.index("mi300x") :]


@pytest.mark.parametrize("form", ["markdown", "latex"])
@pytest.mark.parametrize("view", ["list", "one", "compared"])
def test_other_formats(form, view):
    """Markdown and LaTeX have the same figures, as tables of equal rows."""
    names = ["h100"] if view == "one" else ["h100", "tpu_v5p"]
    text = render([load_hardware(name) for name in names], view, form)
    between = r"(?<!\\)\|" if form == "markdown" else "(?<!\\\\)&"
    rows = [
        line
        for line in text.splitlines()
        if line.startswith("|") or line.endswith(r" \tabularnewline")
    ]

    assert "450" in text
    assert len(rows) > 2
    widths = [len(re.split(between, row)) for row in rows]
    assert min(widths) >= 3
    assert widths == sorted(widths, reverse=True)
