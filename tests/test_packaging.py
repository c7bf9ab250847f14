"""What the wheel holds: a wrong path is left out without a word, so look inside."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> list[str]:
    """Build the wheel and list its files."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT,
        check=True,
        capture_output=True,
        timeout=300,
    )
    (built,) = folder.glob("*.whl")
    with zipfile.ZipFile(built) as archive:
        return archive.namelist()


def test_wheel_has_the_grammar(wheel):
    """The grammar is installed inside the package."""
    expected = {f"shardlang/grammar/{path.name}" for path in (ROOT / "grammar").glob("*.lark")}

    assert expected
    assert expected <= set(wheel)


def test_wheel_has_the_data_files(wheel):
    """The hardware catalogue and the marker for type checkers are there."""
    toml = {
        str(path.relative_to(ROOT)) for path in (ROOT / "shardlang" / "hardware").rglob("*.toml")
    }

    assert toml
    assert toml <= set(wheel)
    assert "shardlang/py.typed" in wheel


def test_wheel_has_the_files_of_the_page(wheel):
    """What `explore` puts into a page is installed with it."""
    folder = ROOT / "shardlang" / "backends" / "explore"
    files = {str(path.relative_to(ROOT)) for path in folder.glob("page.*")}

    assert {path.rpartition(".")[2] for path in files} == {"html", "css", "js", "py"}
    assert files <= set(wheel)


def test_wheel_has_every_module(wheel):
    """No subpackage is missing, and no test or example came along."""
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / "shardlang").rglob("*.py")}

    assert modules <= set(wheel)
    assert {name.split("/")[0].split("-")[0] for name in wheel} == {"shardlang"}


def test_version_is_written_once():
    """The package's version is the one that the command prints."""
    import shardlang

    done = subprocess.run(
        [sys.executable, "-m", "shardlang", "--version"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert done.stdout == f"shardlang {shardlang.__version__}\n"
