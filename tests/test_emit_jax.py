"""The emitted module: its text, its contract, and every operation on simulated devices."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from jaxcases import array, mlp, plan
from jaxops import COMPUTE, DTYPE_CASES, MAPS, MOVES

import shardlang as sl
from shardlang.backends.jax import emit_jax
from shardlang.backends.jax.compute import JAX_DTYPES
from shardlang.backends.jax.functions import CODE
from shardlang.backends.jax.names import identifier, Names, RESERVED
from shardlang.backends.jax.sizes import choose, shrink
from shardlang.diagnostics import ShardlangError
from shardlang.ir.functions import FUNCTIONS
from shardlang.ir.ops import Coefficient, Linear
from shardlang.ir.plan import Plan
from shardlang.ir.printer import statement
from shardlang.ir.program import Statement
from shardlang.ir.types import Array, DTYPES, Tensor
from shardlang.source import Source

SCHEMES = ("dp", "fsdp", "tp", "fsdp_tp")

PLANS: dict[str, Callable[[], Plan]] = {
    **{scheme: (lambda scheme=scheme: mlp(scheme, "bf16")) for scheme in SCHEMES},
    **MOVES,
    **COMPUTE,
    **DTYPE_CASES,
    **MAPS,
}


def load(text: str) -> dict[str, Any]:
    """Execute an emitted module."""
    names: dict[str, Any] = {"__name__": "emitted"}
    exec(compile(text, "<emitted>", "exec"), names)
    return names


def codes(error: pytest.ExceptionInfo[ShardlangError]) -> list[str]:
    """List the codes of an error."""
    return [diagnostic.code for diagnostic in error.value.diagnostics]


# Text


def test_small_meshes_keep_permutes():
    """Where a mesh is made small, axes that a Permute puts in each other's place keep fitting."""
    made = plan(
        ["A[I_YZ] = Permute(A[I_X])"],
        mesh={"X": 64, "Y": 16, "Z": 4},
        leaves=["A[I_X]"],
        outputs=["A[I_YZ]"],
    )
    small = shrink(made, choose(made), devices=16)

    assert {"X": 4, "Y": 2, "Z": 2} == {axis.name: n for axis, n in small.axes.items()}


def test_other_sizes_with_which_a_permute_is_none():
    """A Permute that the sizes given make impossible is an error, at its line."""
    made = plan(["A[I_Y] = Permute(A[I_X])"], mesh={"X": 2, "Y": 2}, leaves=["A[I_X]"], outputs=[])
    with pytest.raises(ShardlangError) as error:
        emit_jax(made, {"X": 4})

    assert codes(error) == ["SH609"]
    assert "I has 4 shards before it and 2 after it" in str(error.value)


@pytest.mark.parametrize("name", PLANS)
def test_module_compiles_and_imports_only_jax_and_numpy(name):
    """Besides JAX and numpy only the standard library is imported."""
    tree = ast.parse(emit_jax(PLANS[name]()))

    roots: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            roots |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            roots.add((node.module or "").split(".")[0])

    assert roots <= {"jax", "numpy", "functools", "math", "os", "sys"}


def ruff(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run ruff with no configuration but the width."""
    command = shutil.which("ruff", path=f"{Path(sys.executable).parent}{os.pathsep}{os.defpath}")
    if command is None:
        pytest.skip("ruff is not installed")
    line = [command, *arguments, "--isolated", "--line-length", "100"]
    return subprocess.run(line, cwd=cwd, capture_output=True, text=True, check=False)


def test_modules_are_formatted_and_clean(tmp_path):
    """Ruff would change nothing in any module, and finds no unused name or import."""
    for index, make in enumerate(PLANS.values()):
        (tmp_path / f"m{index}.py").write_text(emit_jax(make()), encoding="utf-8")

    formatted = ruff("format", "--diff", ".", cwd=tmp_path)
    checked = ruff("check", "--select", "E,F,I,UP,B", "--ignore", "E501", ".", cwd=tmp_path)

    assert formatted.returncode == 0, formatted.stdout
    assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize("length", [4, 12, 17, 25, 33, 41])
def test_long_names_are_wrapped_as_ruff_does(length, tmp_path):
    """Lines that grow past the width break where the formatter would break them."""
    texts: list[str] = []
    for scheme in SCHEMES:
        made = mlp(scheme, "bf16")
        texts.append(emit_jax(rename(made, lambda name: name.ljust(length, "q"))))
    texts += [
        emit_jax(rename(COMPUTE[name](), lambda name: name.ljust(length, "q")))
        for name in ("a partial leaf", "a mean, a map and broadcasts", "a linear combination")
    ]
    for index, text in enumerate(texts):
        (tmp_path / f"m{index}.py").write_text(text, encoding="utf-8")

    formatted = ruff("format", "--diff", ".", cwd=tmp_path)

    assert formatted.returncode == 0, formatted.stdout


def rename(made: Plan, new: Callable[[str], str]) -> Plan:
    """Give every tensor of a plan another name."""

    def one(value: Array) -> Array:
        tensor = value.tensor
        return Array(Tensor(new(tensor.name), tensor.dims, tensor.dtype), value.layout)

    def item(value: Statement) -> Statement:
        uses = tuple(
            replace(u, tensor=replace(u.tensor, name=new(u.tensor.name))) for u in value.operands
        )
        result = replace(value.result, name=new(value.result.name))
        return replace(value, operands=uses, result=result)

    def steps(values: Any) -> Any:
        return tuple(
            replace(s, inputs=tuple(one(x) for x in s.inputs), output=one(s.output)) for s in values
        )

    program = replace(
        made.program,
        leaves=tuple(replace(leaf, array=one(leaf.array)) for leaf in made.program.leaves),
        statements=tuple(item(s) for s in made.program.statements),
    )
    return replace(
        made,
        program=program,
        forward=steps(made.forward),
        backward=steps(made.backward),
        outputs=tuple(one(x) for x in made.outputs),
        cotangents=tuple(one(x) for x in made.cotangents),
        gradients=tuple(
            replace(g, leaf=one(g.leaf), gradient=one(g.gradient)) for g in made.gradients
        ),
    )


def test_each_step_stands_under_its_notation():
    """The comments of the module are the lines of the plan, in order."""
    text = emit_jax(mlp("fsdp_tp"))

    comments = re.findall(r"^    # (.* = .*)$", text, re.MULTILINE)
    assert comments[:2] == [
        "In[B_X, D] = AllGather_Y(In[B_X, D_Y])  // on the critical path",
        "W_in[D, F_Y] = AllGather_X(W_in[D_X, F_Y])  // on the critical path",
    ]
    assert len(comments) == len(mlp("fsdp_tp").forward) + len(mlp("fsdp_tp").backward)


def test_collectives_are_written_out():
    """Every collective of the plan is one call; the backward pass is not left to jax.grad."""
    text = emit_jax(mlp("fsdp_tp"))

    assert text.count("lax.all_gather(") == 6
    assert text.count("lax.psum_scatter(") == 4
    assert "jax.grad(" not in text
    assert "check_vma" not in text


HOSTILE = (
    "lambda", "class", "None", "jax", "P", "forward", "INPUTS", "main", "Mesh", "__debug__",
    "__name__", "_forward_steps", "inputs", "sizes", "W'", "W''", "print", "exec", "λ", "ﬁ", "lax",
    "match", "_", "saved", "W_prime",
)  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_names_of_the_program_never_become_code(name):
    """Keywords, builtins and the module's own names are renamed; INPUTS keeps the user's name."""
    names = {"In": name, "W_in": "INPUTS", "W_out": "forward", "Out": "jnp", "Tmp": "main"}
    if name in names.values():
        names = {"In": name}
    text = emit_jax(rename(mlp("fsdp_tp"), lambda old: names.get(old, old)))

    tables = ast.parse(text)
    stored = {n.id for n in ast.walk(tables) if isinstance(n, ast.Name)}
    keys = next(
        [ast.literal_eval(k) for k in node.value.keys if k is not None]
        for node in tables.body
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Dict)
        and isinstance(node.targets[0], ast.Name)
        and node.targets[0].id == "INPUTS"
    )
    assert keys[0] == name
    assert identifier(name) in stored


def test_identifiers_are_legal_and_distinct():
    """Names that Python would fold together stay apart."""
    names = Names()

    given = [names.fresh(name) for name in (*HOSTILE, "fi", "W′", "W_prime", "a b", "2x", "")]
    assert len(set(given)) == len(given)
    assert all(name.isidentifier() and name not in RESERVED for name in given)


def test_texts_of_the_program_stay_in_comments_and_docstrings():
    """Neither a file's name nor a tensor's can end a comment or a docstring."""
    made = mlp("dp")
    nasty = "x\"\"\"\nimport os; os.abort()\n'''\\"
    made = replace(made, program=replace(made.program, source=Source(nasty, "")))
    made = rename(made, lambda name: "T\nraise SystemExit" if name == "Tmp" else name)

    tree = ast.parse(emit_jax(made))

    assert "import os; os.abort()" in (ast.get_docstring(tree) or "")
    assert not [
        n
        for n in ast.walk(tree)
        if isinstance(n, ast.Raise | ast.Attribute) and "abort" in ast.dump(n)
    ]


def test_tables_of_functions_and_dtypes_are_complete():
    """Every function and element type of the language has its JAX code."""
    assert set(CODE) == set(FUNCTIONS)
    assert set(JAX_DTYPES) == set(DTYPES)


def test_emission_is_deterministic():
    """The same plan gives the same text."""
    assert emit_jax(mlp("tp")) == emit_jax(mlp("tp"))


# Sizes and errors


def test_sizes_that_are_given_are_used():
    """Sizes of the caller win over everything and stand in the tables."""
    names = load_tables(emit_jax(mlp("fsdp_tp"), {"X": 4, "Y": 2, "B": 8, "D": 16, "F": 32}))

    assert names["MESH_AXES"] == {"X": 4, "Y": 2}
    assert names["INPUTS"]["W_in"][0] == (16, 32)


def load_tables(text: str) -> dict[str, Any]:
    """Read MESH_AXES and the shapes of INPUTS without running the module."""
    tree = ast.parse(text)
    found: dict[str, Any] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if name == "MESH_AXES":
                found[name] = ast.literal_eval(node.value)
            elif name == "INPUTS" and isinstance(node.value, ast.Dict):
                found[name] = {
                    ast.literal_eval(key): (ast.literal_eval(value.elts[0]),)
                    for key, value in zip(node.value.keys, node.value.values, strict=True)
                    if key is not None and isinstance(value, ast.Tuple)
                }
    return found


def test_chosen_sizes_divide_and_are_said():
    """Sizes that nobody gave divide every layout, and the docstring names them."""
    text = emit_jax(mlp("fsdp_tp"), {"X": 3})

    assert "Sizes that nobody gave were chosen: Y=2, B=" in text
    shape = load_tables(text)["INPUTS"]["In"][0]
    assert shape[0] % 3 == 0
    assert shape[1] % 6 == 0


def test_size_that_does_not_divide():
    """The error names the dim, its size, the axis and its size, and what would divide."""
    with pytest.raises(ShardlangError) as error:
        emit_jax(mlp("dp"), {"X": 4, "B": 6})

    assert codes(error) == ["SH601"]
    assert "B is 6, which X of size 4 does not divide" in str(error.value)
    assert error.value.diagnostics[0].hint == "use a multiple of 4, for instance --set B=8"


@pytest.mark.parametrize("size", [0, -3, 10**400])
def test_size_that_is_none(size):
    """Sizes outside what an array can have are refused."""
    with pytest.raises(ShardlangError) as error:
        emit_jax(mlp("dp"), {"B": size})

    assert codes(error) == ["SH602"]


def test_more_dims_than_letters():
    """An einsum over more dims than JAX has letters for is refused; many dims in all are not."""
    left = ", ".join(f"A{i}" for i in range(30))
    right = ", ".join(f"B{i}" for i in range(30))
    made = plan(
        [f"C[{left}, {right}] = A[{left}, K] ·_K B[K, {right}]"],
        mesh={},
        leaves=[f"A[{left}, K]", f"B[K, {right}]"],
        outputs=[f"C[{left}, {right}]"],
    )

    with pytest.raises(ShardlangError) as error:
        emit_jax(made)
    assert codes(error) == ["SH603"]


def test_plan_that_reads_what_nothing_makes():
    """A plan with a step left out is refused with the array that is missing."""
    made = mlp("fsdp")
    made = replace(made, backward=made.backward[:1] + made.backward[2:])

    with pytest.raises(ShardlangError) as error:
        emit_jax(made)
    assert codes(error) == ["SH604"]


def test_gradient_in_another_layout():
    """A gradient must be laid out as its leaf."""
    made = mlp("fsdp")
    wrong = replace(made.gradients[1], gradient=array("dW_in[D, F]{U_X}"))

    with pytest.raises(ShardlangError) as error:
        emit_jax(replace(made, gradients=(made.gradients[0], wrong, made.gradients[2])))
    assert codes(error) == ["SH604"]


def test_emission_does_not_load_jax():
    """Emitting needs no JAX."""
    code = (
        "import sys; sys.path.insert(0, 'tests'); from jaxcases import mlp; "
        "from shardlang.backends.jax import emit_jax; emit_jax(mlp('dp')); "
        "sys.exit('jax' in sys.modules or 'numpy' in sys.modules)"
    )
    root = Path(__file__).parents[1]

    done = subprocess.run([sys.executable, "-c", code], cwd=root, check=False)
    assert done.returncode == 0


# Running


@pytest.mark.jax
def test_two_orders_of_axes_place_blocks_as_the_notation_says():
    """On a 2x4 mesh I_XY puts block 4x+y on device (x, y), and I_YX block 2y+x."""
    import jax
    import numpy as np

    whole = np.arange(8.0, dtype=np.float32)
    held: dict[str, list[float]] = {}
    for order in ("XY", "YX"):
        made = plan(
            [f"A[I_{order}] = Slice_{{{order},I}}(A[I])"],
            mesh={"X": 2, "Y": 4},
            leaves=["A[I]"],
            outputs=[f"A[I_{order}]"],
            sizes={"I": 8},
        )
        module = load(emit_jax(made))
        mesh = module["make_mesh"](jax.devices())
        (got,) = module["forward"](mesh, whole)
        by_device = {shard.device: float(shard.data[0]) for shard in got.addressable_shards}
        held[order] = [by_device[device] for device in mesh.devices.flat]

    assert held["XY"] == [0, 1, 2, 3, 4, 5, 6, 7]
    assert held["YX"] == [0, 2, 4, 6, 1, 3, 5, 7]


@pytest.mark.jax
@pytest.mark.parametrize("scheme", SCHEMES)
def test_contract(scheme):
    """Tuples in and out, gradients in their inputs' specs, and jax.grad through differentiable."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    module = load(emit_jax(mlp(scheme)))
    mesh = module["make_mesh"](jax.devices())
    rng = np.random.default_rng(1)
    inputs = tuple(
        rng.standard_normal(shape).astype(dtype) for shape, dtype, _ in module["INPUTS"].values()
    )
    target = rng.standard_normal(module["OUTPUTS"]["Out"][0]).astype(np.float32)

    def loss(function, *arrays):
        (out,) = function(*arrays)
        return jnp.sum((out - target) ** 2)

    def unsharded(x, w_in, w_out):
        return (x @ w_in @ w_out,)

    outputs, gradients = module["forward_backward"](mesh, inputs, (target,))
    wanted = jax.vjp(unsharded, *inputs)[1]((jnp.asarray(target),))
    function = module["differentiable"](mesh)
    through = jax.jit(jax.grad(lambda *x: loss(function, *x), argnums=(0, 1, 2)))(*inputs)
    plain = jax.grad(lambda *x: loss(unsharded, *x), argnums=(0, 1, 2))(*inputs)

    assert isinstance(outputs, tuple)
    assert isinstance(gradients, tuple)
    for (_, _, spec), gradient in zip(module["INPUTS"].values(), gradients, strict=True):
        expected = jax.sharding.NamedSharding(mesh, spec)
        assert gradient.sharding.is_equivalent_to(expected, gradient.ndim)
    np.testing.assert_allclose(outputs[0], unsharded(*inputs)[0], rtol=1e-4, atol=1e-4)
    for got, want in zip(gradients, wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    for got, want in zip(through, plain, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-2)


@pytest.mark.jax
def test_arrays_in_other_shardings_and_explicit_meshes():
    """The caller's arrays may lie anywhere on the mesh, whose axes may be Explicit."""
    import jax
    import numpy as np

    module = load(emit_jax(mlp("fsdp_tp")))
    mesh = jax.make_mesh((2, 2), ("X", "Y"), devices=jax.devices()[:4])
    rng = np.random.default_rng(2)
    arrays = [
        rng.standard_normal(shape).astype(dtype) for shape, dtype, _ in module["INPUTS"].values()
    ]
    elsewhere = jax.sharding.NamedSharding(mesh, jax.P("Y", "X"))
    moved = [jax.device_put(x, elsewhere) for x in arrays]

    (plain,) = module["forward"](module["make_mesh"](jax.devices()), *arrays)
    (other,) = module["forward"](mesh, *moved)

    np.testing.assert_allclose(plain, other, rtol=1e-6)
    np.testing.assert_allclose(plain, arrays[0] @ arrays[1] @ arrays[2], rtol=1e-4, atol=1e-4)


@pytest.mark.jax
def test_other_sizes_than_the_declared_ones():
    """The same module runs at any sizes that its mesh divides, with its means still right."""
    import jax
    import numpy as np

    module = load(emit_jax(COMPUTE["a mean, a map and broadcasts"]()))
    mesh = module["make_mesh"](jax.devices(), {"X": 2, "Y": 4})
    rng = np.random.default_rng(3)
    a, g = rng.standard_normal((6, 20), np.float32), rng.standard_normal(20, np.float32)

    (got,) = module["forward"](mesh, a, g)

    want = (a * jax.nn.gelu(a.mean(axis=1))[:, None] * g).T
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.jax
def test_too_few_devices():
    """make_mesh says how many devices are missing and what to do."""
    import jax

    module = load(emit_jax(mlp("fsdp_tp"), {"X": 4, "Y": 4}))

    with pytest.raises(ValueError, match="needs 16 devices and there are 8; run this file"):
        module["make_mesh"](jax.devices())


@pytest.mark.jax
def test_partial_results_are_stacked():
    """An output left {U_X} has a leading dim of partial sums; a loss on their sum differentiates."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    module = load(emit_jax(COMPUTE["an output left partial"]()))
    mesh = module["make_mesh"](jax.devices())
    rng = np.random.default_rng(4)
    a, b = (
        rng.standard_normal(shape).astype(np.float32) for shape, _, _ in module["INPUTS"].values()
    )

    (stacked,) = module["forward"](mesh, a, b)
    function = module["differentiable"](mesh)
    got = jax.grad(lambda x, y: jnp.sum(function(x, y)[0].sum(0) ** 2))(a, b)
    want = jax.grad(lambda x, y: jnp.sum((x @ y) ** 2))(a, b)

    assert stacked.shape == (2, a.shape[0], b.shape[1])
    half = a.shape[1] // 2
    np.testing.assert_allclose(stacked[0], a[:, :half] @ b[:half], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.jax
@pytest.mark.parametrize("name", ["fsdp_tp", "a partial leaf", "int4 weights", "large"])
def test_running_the_module(name, tmp_path):
    """`python module.py` simulates the devices it lacks, and ends with 0 where all agrees."""
    large = {"X": 16, "Y": 16, "B": 3_000_000, "D": 8192, "F": 32768}
    made = mlp("fsdp_tp", "bf16") if name == "large" else PLANS[name]()
    path = tmp_path / "module.py"
    path.write_text(emit_jax(made, large if name == "large" else None), encoding="utf-8")
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}

    done = subprocess.run(
        [sys.executable, str(path)], env=environment, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert " ok\n" in done.stdout
    assert "WRONG" not in done.stdout


@pytest.mark.jax
def test_running_a_module_with_products_that_the_cpu_lacks(tmp_path):
    """Batched products of bf16 that XLA's CPU backend can't run are made in f32, and main says so."""
    path = tmp_path / "module.py"
    root = Path(__file__).parent.parent
    path.write_text(emit_jax(sl.lower(sl.load(root / "examples" / "moe.shd"))), encoding="utf-8")

    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("on CPU factors of bfloat16 are multiplied in float32")
    assert "out with its backward pass: largest error" in done.stdout


@pytest.mark.jax
@pytest.mark.parametrize(("wrong", "status"), [(False, 0), (True, 1)])
def test_running_a_module_whose_gradients_jump(wrong, status, tmp_path):
    """In bf16 relu's gradients run and are said not to be compared; outputs of both passes are."""
    text = sl.emit_jax(sl.lower(sl.parse("relu(A[I_X, J] · W[J, K]) -> C[I_X, K]")), {"X": 2})
    if wrong:
        text = text.replace("jax.nn.relu(", "-jax.nn.relu(", 1)
    path = tmp_path / "module.py"
    path.write_text(text, encoding="utf-8")

    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=False)

    assert done.returncode == status, done.stdout + done.stderr
    assert "C with its backward pass: largest error" in done.stdout
    assert "gradient of A: NOT compared" in done.stdout
    assert "gradient of W: NOT compared" in done.stdout
    assert "dtype f32" in done.stdout


def test_no_line_of_the_module_is_too_long():
    """Notation that is longer than a line is wrapped, and loses nothing."""
    text = """\
mesh data=2, model=2
activations[batch/data, sequence_length, hidden_dimension] · \
projection_weights[hidden_dimension, feed_forward_dimension/model] \
-> activations_after[batch/data, sequence_length, feed_forward_dimension/model]
""".replace("\\\n", "")
    made = sl.lower(sl.parse(text, "/home/somebody/projects/long.shd"))
    module = sl.emit_jax(made)

    assert max(map(len, module.splitlines())) <= 100
    assert module.startswith('"""long.shd in JAX: ')
    joined = re.sub(r"\s*\n    #     ", " ", module)
    for _, step in made.steps():
        assert f"    # {statement(step)}" in joined.replace(" // on", "  // on")


@pytest.mark.jax
def test_running_a_wrong_module(tmp_path):
    """`python module.py` ends with 1 where a step is wrong."""
    text = emit_jax(mlp("dp")).replace(
        'lax.psum(dW_in_partial, "X")', "2 * lax.psum(dW_in_partial, 'X')"
    )
    path = tmp_path / "module.py"
    path.write_text(text, encoding="utf-8")

    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=False)

    assert done.returncode == 1
    assert "gradient of W_in: largest error" in done.stdout


def test_copy_is_a_plain_assignment():
    """A copy under another name costs no operation."""
    made = plan(
        [("B[I_X] = A[I_X]", Linear((Coefficient(),)))],
        mesh={"X": 2},
        leaves=["A[I_X]"],
        outputs=["B[I_X]"],
    )

    assert "    B = A\n" in emit_jax(made)


def test_axes_need_ascii_names():
    """XLA can't read other names of axes: the error says so, and names the axis."""
    plan = sl.lower(sl.parse("mesh α=2\nA[I, J_α] · B[J_α, K] -> C[I, K]\n"))
    with pytest.raises(sl.ShardlangError) as error:
        sl.emit_jax(plan)

    assert [("SH610", True)] == [(d.code, "α" in d.message) for d in error.value.diagnostics]
