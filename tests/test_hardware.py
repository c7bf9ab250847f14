"""The hardware catalogue: its figures, and what is wrong in files of one's own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import shardlang as sl
from shardlang.diagnostics import ShardlangError
from shardlang.hardware.catalogue import hardware_text, known_hardware, load_hardware, UNITS
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


@pytest.mark.parametrize("name", known_hardware())
def test_every_figure_has_unit_and_source(name):
    """The catalogue gives each figure with its unit and where it comes from."""
    chip = load_hardware(name)

    assert set(chip.figures) == set(UNITS)
    for key, figure in {**chip.figures, **chip.flops}.items():
        assert figure.unit == UNITS.get(key, "FLOP/s")
        assert figure.source not in ("", "catalogue.toml")
        assert figure.source in " ".join(hardware_text(name).split())


def test_tpu_links_are_half_of_an_axis():
    """W of a TPU counts both directions of a link."""
    for name in known_hardware():
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
        ("FLOP/s", "TFLOP/s", "SH505", 2, "must be in FLOP/s, not TFLOP/s"),
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


def test_the_example_of_the_page_loads(write):
    """The whole file that docs/hardware.md shows is read, and is named in a program as it says."""
    page = (ROOT / "docs" / "hardware.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"^```toml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    path = write(text, "my_chip.toml")
    line = f'hardware "{path}#my_chip"\nA[I_X, J] · W[J, K] -> C[I_X, K]'
    chip = sl.cost(sl.lower(sl.parse(line))).hardware

    assert chip == load_hardware(path)
    assert (chip.get("C"), chip.peak("f8e4m3"), chip.get("W_dcn")) == (4e14, 8e14, 6.25e9)
    assert set(chip.figures) == set(UNITS) - {"w_ici"}
    for figure in ("flops.bf16", *UNITS):
        assert f"| `{figure}` |" in page


def test_several_bad_figures_come_together(write):
    """Independent mistakes are reported in one run."""
    text = GOOD.replace("5e10", "-1") + "W_hbm = 'x'\n"

    assert [line for _, line, *_ in diagnose(write(text))] == [3, 4]


def test_the_catalogue_as_a_table():
    """The table has a row a chip and fits 80 columns."""
    text = hardware_text()

    assert all(name in text for name in known_hardware())
    assert max(map(len, (text + hardware_text("h100")).splitlines())) <= 80
    assert "450" in hardware_text("h100") or "4.5e+11" in hardware_text("h100")
