"""Blocks in emitted modules: a scan over a function of one layer, forward and backward."""

from __future__ import annotations

import ast
import re
from typing import Any

import pytest
from layered import KINDS, program
from test_emit_jax import codes, load, ruff

import shardlang as sl
from shardlang.backends.jax import emit_jax
from shardlang.diagnostics import ShardlangError
from shardlang.ir.plan import Plan
from shardlang.ir.printer import print_plan
from shardlang.passes.unroll import unroll_plan

MESH = "mesh X=2, Y=2\ndims B=8, D=16, F=32, E=4\n"

CASES = {
    "two blocks": "input x: [B_X, D]\nlayers 3:\n  x = x + x ·_D W_a[D, F] ·_F W_b[F, D]\n"
    "layers 2:\n  x = x + gelu(x ·_D W_c[D_Y, F]) ·_F W_d[F, D]\n",
    "one layer": "input x: [B_X, D_Y]\nlayers L=1:\n  x = x + x ·_D W_a[D, F] ·_F W_b[F, D]\n"
    "Out[B, E] = x ·_D W[D, E]\n",
    "nothing stacked": "input x: [B_X, D_Y]\nlayers L:\n  x = tanh(x)\n",
    "what is handed on is read": "input x: [B_X, D_Y]\nlayers L:\n  x = exp(-0.5 * x) ⊙ g[D]\n"
    "  x = exp(-0.1 * x)\n",
    "what is handed on and what was handed are read": "input x: [B_X, D_Y], z: [B, D]\nlayers L:\n"
    "  z = tanh(z ⊙ x)\n  x = exp(-0.1 * x ·_D W_a[D, F_Y] ·_F W_b[F_Y, D])\n",
    "integers": "input n: int32[B_X], x: [B, D]\nlayers L:\n  n = n + n\n  x = x ⊙ x ⊙ w[D]\n",
    "partial parameters": "input x: [B_X, D]\nparam W: [L, D, F]{U_Y}\nlayers L:\n"
    "  x = x + tanh(x ·_D W) ·_F V[F, D]\n",
    "a partial output of each layer": "input x: [B_X, D_Y]\nlayers L:\n  x = tanh(x ⊙ w[D_Y])\n"
    "  s[B_X]{U_Y} = sum_D(x)\n",
    "inputs and outputs of each layer": "input p: [L, B, D_X], x: [B_X, D]\nlayers L:\n"
    "  x = x + p ⊙ x\n  seen = tanh(x)\n",
    "shards that move": "input x: [B_X, D]\nlayers L:\n  y[B_Y, D] = tanh(x)\n  x = y ⊙ w[D]\n",
    "two values in turn": "input x: [B_X, D], z: [B, D_Y]\nlayers L:\n  t = x + z\n"
    "  z = x ⊙ w[D]\n  x = t\n",
    "blocks that share": "input x: [B_X, D]\nlayers L:\n"
    "  x = x + tanh(x ·_D W_a[D, F_Y]) ·_F W_b[F, D]\ny = x ·_D W_y[D_Y, E]\n"
    "layers M=2:\n  y = tanh(y) + x ·_D V[D_X, E]\nOut = y ⊙ y\n",
    "a parameter without gradient": "input x: [B_X, D]\nparam W: [L, D, F], k: [L, D]\nlayers L:\n"
    "  u = max_D(k)\n  x = x ⊙ x\n",
    "places in causal attention": "input x: [B_X, T, D]\nlayers L:\n"
    "  q[B_X, T, E_Y] = x ·_D W_q[D, E_Y]\n  k[B_X, S, E_Y] = x[B, S, D] ·_D W_k[D, E_Y]\n"
    "  p = softmax_S(where(index_S <= index_T, q ·_E k, -inf))\n"
    "  x = x + p ·_S k ·_E W_o[E_Y, D]\n",
    "double precision": "dtype f64\ninput x: [B_X, D]\nlayers L:\n"
    "  x = x + tanh(x ·_D W[D, F_X]) ·_F V[F_X, D]\n",
    "names of the module": "input carry: [B_X, D]\nlayers L:\n  outside = tanh(carry ⊙ layer[D])\n"
    "  carry = carry ⊙ outside ⊙ sizes[D]\nlayers = carry ·_D saved[D, E]\n",
    "explicit, values swapped": "forward:\n  a[B_X] = tanh(A[B_X])\n  b[B_X] = exp(A[B_X])\n"
    "  layers L, b2 -> a, a2 -> b:\n    b2[B_X] = tanh(b[B_X])\n    a2[B_X] = a[B_X] ⊙ a[B_X]\n"
    "  y[B_X] = a2[B_X] + b2[B_X]\n",
    "explicit, a sum over layers": "forward:\n  x[B_X, D] = tanh(A[B_X, D])\n"
    "  layers L, x2 -> x:\n    h[B_X, D] = gelu(x[B_X, D])\n    x2[B_X, D] = x[B_X, D] ⊙ h[B_X, D]\n"
    "    c_L[B_X, D] = sum_L(h[B_X, D])\n  y[B_X, D] = c_L[B_X, D] + x2[B_X, D]\n",
}
"""Blocks of all kinds, at the sizes of `MESH`."""

ATTENTION = """
mesh X=2, Y=2
dims B=4, T=4, D=8, H=4, E=4
{save}
input x: [B_X, T, D]
layers L=3:
  q[B_X, T, H_Y] = x ·_D W_q[D_X, H_Y]
  k[B_X, T, H_Y] = x ·_D W_k[D_X, H_Y]
  p[B_X, T, S] = softmax_S(q ·_H k[B_X, S, H_Y])
  o[B_X, T, H_Y] = p ·_S k[B_X, S, H_Y]
  x = x + o ·_H W_o[H_Y, D_X]
"""


def case(name: str, *, forward_only: bool = False) -> Plan:
    """Lower a case."""
    return sl.lower(sl.parse(MESH + CASES[name]), forward_only=forward_only)


def function(text: str, name: str) -> ast.FunctionDef:
    """Find a function of a module."""
    found = [n for n in ast.parse(text).body if isinstance(n, ast.FunctionDef) and n.name == name]
    return found[0]


def names(node: ast.AST) -> list[str]:
    """List the names in a node, in order."""
    return [n.id for n in ast.walk(node) if isinstance(n, ast.Name)]


def results(text: str, name: str) -> tuple[list[str], list[str]]:
    """Give what the function of a layer hands on, and what it gives to stacks."""
    value = next(n for n in ast.walk(function(text, name)) if isinstance(n, ast.Return)).value
    assert isinstance(value, ast.Tuple)
    return names(value.elts[0]), names(value.elts[1])


# Text


@pytest.mark.parametrize("name", CASES)
def test_each_pass_of_a_block_is_one_scan(name):
    """There is one scan a block and pass, and each has a function of one layer."""
    text = emit_jax(case(name)).split("\ndef reference(")[0]
    blocks = len(case(name).program.blocks)
    passes = 1 if name.startswith("explicit") else 2

    assert blocks * passes == text.count("lax.scan(")
    assert blocks * (passes - 1) == text.count("reverse=True")
    assert 0 == text.count("for layer in")


def test_modules_with_blocks_are_formatted_and_clean(tmp_path):
    """Ruff would change nothing, and finds no unused name."""
    plans = [case(name) for name in CASES]
    plans += [sl.lower(sl.parse(program(kind, seed))) for kind in KINDS for seed in range(3)]
    long = MESH.replace("B=8", "B=8, H=4") + ATTENTION.format(save="").split("E=4\n")[1].replace(
        "W_", "a_parameter_with_a_name_that_is_much_longer_than_most_W_"
    )
    plans.append(sl.lower(sl.parse(long)))
    for index, plan in enumerate(plans):
        (tmp_path / f"m{index}.py").write_text(emit_jax(plan), encoding="utf-8")

    formatted = ruff("format", "--diff", ".", cwd=tmp_path)
    checked = ruff("check", "--select", "E,F,I,UP,B", "--ignore", "E501", ".", cwd=tmp_path)

    assert formatted.returncode == 0, formatted.stdout
    assert checked.returncode == 0, checked.stdout


def test_stacks_have_the_layers_in_front():
    """Parameters, inputs and outputs of each layer begin with a dim that no axis splits."""
    text = emit_jax(case("inputs and outputs of each layer"), {"L": 5})

    assert '"p": ((5, 8, 16), "bfloat16", P(None, None, "X"))' in text
    assert '"seen": ((5, 8, 16), "bfloat16", P(None, "X", None))' in text
    assert '"x": ((8, 16), "bfloat16", P("X", None))' in text


def test_layers_that_nobody_gave_are_few():
    """An open number of layers is 3, and the docstring says so; a literal one stays."""
    assert "Sizes that nobody gave were chosen: L=3." in emit_jax(case("nothing stacked"))
    text = emit_jax(case("two blocks"))
    assert '"W_b": ((3, 32, 16)' in text
    assert '"W_d": ((2, 32, 16)' in text


def test_no_layers():
    """A block has at least one layer."""
    with pytest.raises(ShardlangError) as error:
        emit_jax(case("nothing stacked"), {"L": 0})

    assert codes(error) == ["SH602"]


@pytest.mark.parametrize(
    ("save", "kept"),
    [
        ("save q, k", {"x", "q", "k"}),
        ("save o", {"x", "o"}),
        ("save all, W_o", {"x", "q", "k", "o", "p", "p_exp", "p_sum", "W_o_gathered"}),
    ],
)
def test_the_forward_scan_gives_what_is_saved_and_nothing_else(save, kept):
    """Of each layer what the `save` line names is kept, and what it was handed."""
    text = emit_jax(sl.lower(sl.parse(ATTENTION.format(save=save))))
    handed, given = results(text, "_layer_1")

    assert ["x2"] == handed
    assert kept == set(given)
    assert len(given) == len(set(given))


def test_what_layers_hand_on_is_kept_once():
    """Where a layer's gradients read its entry and its exit, the exit comes back from the layer behind it."""
    text = emit_jax(case("what is handed on and what was handed are read"))
    handed, given = results(text, "_layer_1")
    back, _ = results(text, "_layer_1_backward")

    assert ["z2", "x2"] == handed
    assert "x" in given
    assert "x2" not in given
    assert ["dz", "dx", "x"] == back


def test_what_is_not_named_is_computed_again():
    """Going back, a layer makes the softmax again that it does not find; a named one it does not make."""
    again, kept = (
        ast.unparse(function(emit_jax(sl.lower(sl.parse(ATTENTION.format(save=save)))), name))
        for save in ("save q, k", "save q, k, o, p, p_exp, p_sum")
        for name in ("_layer_1_backward",)
    )

    assert 2 == len(re.findall(r"jnp\.exp\(|jnp\.max\(", again))
    assert 0 == len(re.findall(r"jnp\.exp\(|jnp\.max\(", kept))


@pytest.mark.parametrize("kind", KINDS)
def test_a_lowered_program_gives_the_same_module(kind):
    """Blocks of explicit programs, forward and backward, are emitted as those that they come from."""
    plan = sl.lower(sl.parse(program(kind, 1)))
    explicit = sl.lower(sl.parse(print_plan(plan)))

    def steps(made: Plan) -> str:
        return re.sub(r"  // .*", "", emit_jax(made).split("\ndef _reference")[0])

    assert steps(plan) == steps(explicit)


def test_sums_over_layers_are_wide():
    """The gradient of a value from outside is added up in f32, and rounded once behind the layers."""
    text = emit_jax(sl.lower(sl.parse(program("shared", 0))))

    body = ast.unparse(function(text, "_layer_1_backward"))
    assert re.search(r"dW_e_L = dW_e_L \+ dW_e_k\w*\.astype\(jnp\.float32\)", body) or re.search(
        r"de_L = de_L \+ de_\w+\.astype\(jnp\.float32\)", body
    )


# Running


@pytest.mark.jax
@pytest.mark.parametrize("name", CASES)
def test_blocks_of_all_kinds(name):
    """Values, gradients and collectives are right on every device."""
    from shardlang.verify.runner import run_check

    result = run_check(case(name), thorough=True)

    assert result.ok, result.to_text()


@pytest.mark.jax
@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_random_blocks(kind, seed):
    """Random layouts of whole models are right too, in their own dtype and in f32."""
    from shardlang.verify.runner import run_check

    plan = sl.lower(sl.parse(program(kind, seed)))

    for exact in (True, False):
        result = run_check(plan, exact=exact, sizes={"L": 3})
        assert result.ok, result.to_text()


@pytest.mark.jax
@pytest.mark.parametrize("name", ["two blocks", "inputs and outputs of each layer"])
def test_the_forward_pass_alone(name):
    """Without a backward pass nothing is saved, and outputs are the same."""
    from shardlang.verify.runner import run_check

    plan = case(name, forward_only=True)
    result = run_check(plan, thorough=True)

    assert result.ok, result.to_text()
    handed, given = results(emit_jax(plan), "_layer_1")
    assert 1 == len(handed)
    assert given == (["seen"] if "outputs" in name else [])


@pytest.mark.jax
@pytest.mark.parametrize("kind", ["own", "shared", "two"])
def test_scans_give_what_the_layers_written_out_give(kind):
    """Outputs and gradients are those of the straight program with three copies of the lines."""
    import jax
    import numpy as np

    plan = sl.lower(sl.parse("dtype f32\n" + program(kind, 2, "L=3")))
    written = unroll_plan(plan, 3)
    scan, straight = load(emit_jax(plan)), load(emit_jax(written.plan))
    mesh = scan["make_mesh"](jax.devices())
    rng = np.random.default_rng(5)

    def parts(values: dict[str, Any], table: dict[str, Any]) -> tuple[Any, ...]:
        """Give each name its value, and the name of a layer its part of the stack."""
        found: list[Any] = []
        for name in table:
            _, layer = written.layers.get(name, (0, None))
            own = name if name in values else name.removesuffix(f"_{layer}")
            found.append(values[own] if layer is None or name in values else values[own][layer])
        return tuple(found)

    def made(table: dict[str, Any]) -> dict[str, Any]:
        return {
            name: rng.standard_normal(shape).astype(dtype) / 4
            for name, (shape, dtype, _) in table.items()
        }

    inputs, cotangents = made(scan["INPUTS"]), made(scan["OUTPUTS"])
    outputs, gradients = scan["forward_backward"](
        mesh, tuple(inputs.values()), tuple(cotangents.values())
    )
    wanted = straight["forward_backward"](
        mesh, parts(inputs, straight["INPUTS"]), parts(cotangents, straight["OUTPUTS"])
    )

    for got, want, table, side in (
        (outputs, wanted[0], "OUTPUTS", scan),
        (gradients, wanted[1], "INPUTS", scan),
    ):
        mine = parts(dict(zip(side[table], got, strict=True)), straight[table])
        assert len(want) > len(got) or table == "OUTPUTS"
        for one, other in zip(mine, want, strict=True):
            np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-5)


@pytest.mark.jax
def test_gradients_are_the_slopes_of_a_loop_in_numpy():
    """Against a loop that a person writes, and its central differences, in double precision."""
    import jax
    import numpy as np

    text = (
        "mesh X=2, Y=2\ndtype f64\ndims B=4, D=4, F=4\ninput x: [B_X, D_Y], c: [D]\nlayers L=3:\n"
        "  h[B_X, F_Y] = tanh(x ·_D W_a[D_X, F_Y])\n  x = x ⊙ c + h ·_F W_b[F_Y, D_X]\n"
    )
    x64 = bool(jax.config.read("jax_enable_x64"))
    try:
        module = load(emit_jax(sl.lower(sl.parse(text))))
        mesh = module["make_mesh"](jax.devices())
        rng = np.random.default_rng(6)
        inputs = [rng.standard_normal(shape) for shape, _, _ in module["INPUTS"].values()]
        seed = rng.standard_normal((4, 4))

        def loss(x, c, w, v):
            for layer in range(3):
                x = x * c + np.tanh(x @ w[layer]) @ v[layer]
            return float((x * seed).sum())

        (got,), gradients = module["forward_backward"](mesh, tuple(inputs), (seed,))
        assert ["x", "c", "W_a", "W_b"] == list(module["INPUTS"])
        np.testing.assert_allclose(float((np.asarray(got) * seed).sum()), loss(*inputs), rtol=1e-12)
        for which, gradient in enumerate(gradients):
            slopes = np.zeros(inputs[which].shape)
            for at in np.ndindex(*slopes.shape):
                ends = []
                for sign in (1, -1):
                    moved = [x.copy() for x in inputs]
                    moved[which][at] += sign * 1e-6
                    ends.append(loss(*moved))
                slopes[at] = (ends[0] - ends[1]) / 2e-6
            np.testing.assert_allclose(gradient, slopes, rtol=1e-6, atol=1e-6)
    finally:
        jax.config.update("jax_enable_x64", x64)


@pytest.mark.jax
def test_a_thousand_layers_add_up_in_bf16():
    """1000 ones are 1000: in bf16 itself a sum of ones ends at 256."""
    import jax
    import numpy as np

    text = "mesh X=2\ndims B=2, D=4\ninput x: [B_X, D], c: [D]\nlayers L=1000:\n  x = x + c\n"
    module = load(emit_jax(sl.lower(sl.parse(text))))
    ones = np.ones((2, 4), np.float32)
    _, (_, gradient) = module["forward_backward"](
        module["make_mesh"](jax.devices()), (ones, ones[0]), (ones,)
    )

    np.testing.assert_array_equal(np.asarray(gradient, np.float32), 2000 * ones[0])


@pytest.mark.jax
def test_what_is_compiled_does_not_grow_with_the_layers():
    """The lowered program of 50 layers has as many operations as that of two."""
    import numpy as np

    lines: list[int] = []
    for layers in (2, 50):
        module = load(emit_jax(sl.lower(sl.parse(ATTENTION.format(save=""))), {"L": layers}))
        arguments = [
            tuple(np.zeros(shape, dtype) for shape, dtype, _ in module[table].values())
            for table in ("INPUTS", "OUTPUTS")
        ]
        lowered = module["forward_backward"].lower(module["make_mesh"](), *arguments)
        lines.append(lowered.as_text().count("\n"))

    assert lines[0] == lines[1]


@pytest.mark.jax
@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("reverse=True", "", "WRONG"),
        ("h = jax.nn.gelu(", "h = 1.01 * jax.nn.gelu(", "WRONG"),
        ("x2 = x + Tmp2", 'x2 = lax.psum(x + Tmp2, "X") / 2', "only in JAX: 3 × all_reduce"),
    ],
)
def test_a_wrong_scan_is_found(old, new, said):
    """Layers gone back through in the wrong order, wrong values, and one collective too many a layer."""
    from shardlang.verify.runner import run_check

    text = (
        "mesh X=2, Y=2\ndims B=4, D=8, F=4, L=3\ninput x: [B, D_Y]\nlayers L:\n"
        "  h[B, F_X] = gelu(x ·_D W_a[D_Y, F_X])\n  x = x + h ·_F W_b[F_X, D_Y]\n"
    )
    plan = sl.lower(sl.parse(f"dtype f32\n{text}"))
    module = emit_jax(plan)
    assert old in module

    result = run_check(plan, text=module.replace(old, new, 1))

    assert not result.ok
    assert said in result.to_text()
