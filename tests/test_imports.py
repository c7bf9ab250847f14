"""What importing and running loads: no JAX, and nothing heavy before it is needed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
HEAVY = ("jax", "jaxlib", "lark", "matplotlib", "numpy", "sympy")


def loaded(code: str) -> set[str]:
    """Run Python code in a new process and give the heavy packages that it loaded."""
    report = f"; import sys; print('LOADED', *[m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code + report],
        cwd=ROOT,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=120,
        check=True,
    )
    return set(done.stdout.rpartition("LOADED")[2].split())


def command(*arguments: str) -> str:
    """Give code that runs a command."""
    return f"from shardlang.cli.main import main; assert main({list(arguments)!r}) == 0"


def without(package: str) -> str:
    """Give code that makes a package look as if it were not installed."""
    return f"import sys; sys.modules[{package!r}] = None; "


@pytest.mark.parametrize(
    "code",
    ["import shardlang", "import shardlang.cli.main", command("--version"), command()],
    ids=["package", "cli", "version", "bare"],
)
def test_import_is_light(code):
    """Importing the package or the command line loads nothing heavy."""
    assert loaded(code) == set()


def test_the_check_itself_sees_what_is_loaded():
    """A process that does load sympy is reported, or the tests here would prove nothing."""
    assert "sympy" in loaded("import shardlang; import sympy")


@pytest.mark.parametrize("name", ["lower", "check", "fmt"])
def test_no_sympy_where_no_formula_is_printed(name):
    """`lower`, `check` and `fmt` load neither JAX nor sympy nor numpy."""
    assert loaded(command(name, "examples/fsdp.shd")) <= {"lark"}


def test_cost_and_emit_load_no_jax():
    """`cost` and `emit-jax` load neither JAX nor matplotlib."""
    codes = [
        command("cost", "examples/mlp.shd"),
        command("emit-jax", "examples/fsdp.shd", "--set", "X=2"),
    ]

    for code in codes:
        assert not loaded(code) & {"jax", "jaxlib", "matplotlib"}


@pytest.mark.parametrize("name", ["cost", "lower", "check", "fmt", "emit-jax"])
def test_commands_work_without_jax(name):
    """Everything but `verify` works where JAX is not installed."""
    code = without("jax") + without("jaxlib") + command(name, "examples/fsdp.shd", "--set", "X=2")

    loaded(code)


def test_verify_says_what_to_install():
    """`verify` without JAX says in one line what to install, and exits with 1."""
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            without("jax")
            + without("jaxlib")
            + "from shardlang.cli.main import main; "
            + "sys.exit(main(['verify', 'examples/fsdp.shd', '--set', 'X=2']))",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=120,
        check=False,
    )

    assert done.returncode == 1
    assert "pip install" in done.stderr
    assert "Traceback" not in done.stderr


def test_library_functions_survive_their_subpackages():
    """Importing `shardlang.cost` and `shardlang.verify` takes no function away."""
    code = (
        "import shardlang as sl\n"
        "import shardlang.cost.report as report\n"
        "import shardlang.verify\n"
        "plan = sl.lower(sl.parse('A[I, J_X] · B[J_X, K] -> C[I, K]'))\n"
        "first, second = sl.cost(plan), sl.cost(plan)\n"
        "assert isinstance(second, report.Report)\n"
        "assert callable(sl.verify)"
    )

    assert "jax" not in loaded(code.replace("\n", "; "))
