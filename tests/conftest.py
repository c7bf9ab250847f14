"""What the tests share: golden files, the command line in process, and small programs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import hypothesis
import pytest

ROOT = Path(__file__).resolve().parent.parent
"""The repository."""

# Tests that run JAX in this process need the devices before it starts. Most of their time goes into compiling
# what runs once, so machine code is made without optimization.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
FLAGS = "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {FLAGS}".strip()

hypothesis.settings.register_profile(
    "default",
    deadline=None,
    derandomize=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("default")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the switch that rewrites golden files."""
    parser.addoption("--update-golden", action="store_true", help="rewrite the golden files")


@dataclass(frozen=True)
class Golden:
    """A file with the expected text."""

    path: Path
    update: bool

    def check(self, actual: str) -> None:
        """Compare with the file, or rewrite it under `--update-golden`."""
        if self.update:
            self.path.write_text(actual, encoding="utf-8")
            return
        if not self.path.exists():
            pytest.fail(f"{self.path} is missing: run `make golden` and read what it wrote")
        expected = self.path.read_text(encoding="utf-8")

        assert expected == actual, f"{self.path} differs: if that is right, run `make golden`"


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[Path], Golden]:
    """Give the golden file at a path."""
    update = bool(request.config.getoption("--update-golden"))
    return lambda path: Golden(path, update)


@dataclass(frozen=True)
class Outcome:
    """What a command did: its exit status, and what it wrote where."""

    status: int
    out: str
    err: str


@pytest.fixture
def shardlang(capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Run the command line in this process."""
    from shardlang.cli.main import main

    def run(*arguments: object) -> Outcome:
        capsys.readouterr()
        status = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Outcome(status, captured.out, captured.err)

    return run


@pytest.fixture
def process() -> Callable[..., subprocess.CompletedProcess[bytes]]:
    """Run the command line as its own process, with changes to the environment."""

    def run(
        *arguments: object, stdin: bytes | None = b"", **environment: str | None
    ) -> subprocess.CompletedProcess[bytes]:
        changed = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
        return subprocess.run(
            [sys.executable, "-m", "shardlang", *map(str, arguments)],
            input=stdin,
            capture_output=True,
            check=False,
            timeout=120,
            env={name: value for name, value in changed.items() if value is not None},
        )

    return run
