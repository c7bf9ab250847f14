"""FLOP conventions: which contractions and parameters count, against counts worked out by hand."""

from __future__ import annotations

import json
import random
from math import prod

import pytest
import sympy
from strategies import random_program

import shardlang as sl
from shardlang.cost.conventions import CONVENTIONS

LLAMA = """
dims L={L}, D={D}, F={F}, N={N}, G={G}, K={K}, V={V}, B={B}, T={T}
param E: [V, D], W_q: [L, D, N, G, K], W_k: [L, D, N, K], W_v: [L, D, N, K], W_o: [L, N, G, K, D]
param W_gate: [L, D, F], W_up: [L, D, F], W_down: [L, F, D], W_u: [D, V]
q[L, B, T, N, G, K] = x[B, T, D] · W_q[L, D, N, G, K]
k[L, B, S, N, K] = x[B, S, D] · W_k[L, D, N, K]
v[L, B, S, N, K] = x[B, S, D] · W_v[L, D, N, K]
score[L, B, N, G, T, S] = q[L, B, T, N, G, K] ·_K k[L, B, S, N, K]
p[L, B, N, G, T, S] = softmax_S(score[L, B, N, G, T, S])
o[L, B, T, N, G, K] = p[L, B, N, G, T, S] ·_S v[L, B, S, N, K]
a[L, B, T, D] = o[L, B, T, N, G, K] ·_{{N,G,K}} W_o[L, N, G, K, D]
gate[L, B, T, F] = a[L, B, T, D] ·_D W_gate[L, D, F]
up[L, B, T, F] = a[L, B, T, D] ·_D W_up[L, D, F]
h[L, B, T, F] = silu(gate[L, B, T, F]) ⊙ up[L, B, T, F]
y[L, B, T, D] = h[L, B, T, F] ·_F W_down[L, F, D]
out[B, T, V] = sum_L(y[L, B, T, D]) ·_D W_u[D, V]
"""
"""All layers side by side, along a dim L: the FLOPs are those of one after the other."""


def llama(**sizes):
    """Give the FLOPs of a transformer of a size."""
    return conventions(LLAMA.format(**{"B": 2, "T": 16, **sizes}))


LLAMA3_8B = {"L": 32, "D": 4096, "F": 14336, "N": 8, "G": 4, "K": 128, "V": 128256}
LLAMA3_405B = {"L": 126, "D": 16384, "F": 53248, "N": 8, "G": 16, "K": 128, "V": 128256}


def value(counts, name, which="total"):
    """Give a number under a convention."""
    return getattr(counts[name], which).number


def conventions(text, **options):
    """Count the FLOPs of a text."""
    return sl.cost(sl.lower(sl.parse(text), **options)).conventions()


# --- what users of other tools ran into (the ids of cost-reports.md) ---


def test_u1_ten_layers_count_ten_times():
    """Ten layers, one after the other, have ten times the FLOPs of one."""

    def layers(count):
        lines = ["mesh X=2, Y=2", "dims B=64, D=32", "input h0: [B_X, D_Y]"]
        lines.append("param " + ", ".join(f"W{i}: [D_Y, E{i}]" for i in range(count)))
        lines += [f"dims E{i}=32" for i in range(count)]
        for i in range(count):
            lines.append(f"t{i}[B_X, E{i}] = h{i}[B_X, D_Y] ·_D W{i}[D_Y, E{i}]")
            lines.append(f"h{i + 1}[B_X, D_Y] = t{i}[B_X, E{i}] ·_E{i} V{i}[E{i}, D_Y]")
        lines[3] += "".join(f", V{i}: [E{i}, D_Y]" for i in range(count))
        return conventions("\n".join(lines))

    one, ten = layers(1), layers(10)
    for name in CONVENTIONS:
        assert value(ten, name) == 10 * value(one, name)
    assert value(one, "model") == 2 * 6 * 64 * 32 * 32


@pytest.mark.parametrize(("n", "flops"), [(1, 37_376), (2, 74_752), (7, 261_632)])
def test_u2_flops_are_linear_in_the_batch(n, flops):
    """2*n*73*256 for every n, the additions of a bias apart."""
    text = f"dims n={n}\nparam W: [73, 256], b: [256]\ny[n, 256] = x[n, 73] · W[73, 256] + b[256]"

    assert value(conventions(text, forward_only=True), "model") == flops


def test_u6_a_table_that_is_looked_up_is_no_matmul():
    """6 times 7.505e9 parameters and attention, not 6 times 8.030e9."""
    counts = llama(**LLAMA3_8B)

    assert counts.read.number == 7_504_658_432
    assert counts.parameters.number == 8_029_995_008
    assert value(counts, "parameters", "token") == 6 * 7_504_658_432
    assert value(counts, "parameters-all", "token") == 6 * 8_029_995_008
    # 12 L N G K a token and position
    assert value(counts, "model", "token") == 6 * 7_504_658_432 + 12 * 32 * 4096 * 16


def test_u7_both_products_of_attention_count():
    """4*B*T*S*N*H forward, 12 with the backward pass; half of it under a causal mask."""
    text = """
dims B=2, T=16, S=16, N=4, H=8
score[B, N, T, S] = q[B, T, N, H] ·_H k[B, S, N, H]
o[B, T, N, H] = softmax_S(score[B, N, T, S]) ·_S v[B, S, N, H]
"""
    base = 2 * 16 * 16 * 4 * 8
    forward, both = conventions(text, forward_only=True), conventions(text)

    assert value(forward, "model") == 4 * base
    assert value(both, "model") == 12 * base
    assert value(forward, "model-causal") == 2 * base
    assert value(both, "model-causal") == 6 * base


def test_u9_every_matrix_of_a_gated_mlp_is_a_parameter():
    """Qwen1.5-72B: 72.28e9, and 56.18e9 were its MLP not gated."""
    sizes = {"L": 80, "D": 8192, "F": 24576, "N": 64, "G": 1, "K": 128, "V": 152_064}
    text = LLAMA.format(**sizes, B=1, T=2)
    plain = "\n".join(line for line in text.splitlines() if not line.startswith("up["))
    plain = plain.replace(" ⊙ up[L, B, T, F]", "").replace(" W_up: [L, D, F],", "")

    assert llama(**sizes).parameters.number == 72_284_635_136
    assert conventions(plain).parameters.number == 56_178_507_776


def test_u26_a_layer_of_llama3_70b():
    """6 (3DF + 2DNH + 2DKH) a token, with a gate and 8 key heads."""
    sizes = {"L": 1, "D": 8192, "F": 28672, "N": 8, "G": 8, "K": 128, "V": 2}
    counts = llama(**sizes)
    d, head = 8192, 128
    layer = 3 * d * 28672 + 2 * d * 64 * head + 2 * d * 8 * head

    assert value(counts, "parameters", "token") == 6 * (layer + 2 * d)
    assert value(counts, "model", "token") == 6 * (layer + 2 * d) + 12 * 64 * head * 16


# --- the book's rows ---


def test_tf_03_work_that_devices_do_alike_counts_for_hardware_alone():
    """Over an axis that splits nothing all devices do the same: 8BDF in all, 2BDF of them model FLOPs."""
    text = """
mesh X=4, Y=8, Z=4
dims B=64, D=32, F=16
param W: [D_Y, F]
C[B_X, F] = A[B_X, D_Y] ·_D W[D_Y, F]
"""
    counts = conventions(text, forward_only=True)
    base = 2 * 64 * 32 * 16

    assert value(counts, "hardware") == 4 * base
    assert value(counts, "hardware", "device") == base / 32
    assert value(counts, "model") == base
    assert value(counts, "model", "device") == base / 128


def attention_share(d, t):
    """Give attention's FLOPs, those of its projections, and those of the gated MLP, for MHA with F=4D."""
    sizes = {"L": 1, "D": d, "F": 4 * d, "N": d // 64, "G": 1, "K": 64, "V": 1, "T": t}
    counts = llama(**sizes)
    whole, causal = value(counts, "model", "token"), value(counts, "model-causal", "token")
    attention = 2 * (whole - causal)
    return attention, 6 * 4 * d * d, whole - attention - 6 * d


def test_tf_06_attention_and_its_projections_cross_at_two_d():
    """QK and AV take as long as Q, K, V and O where T = 2D."""
    attention, projections, _ = attention_share(512, 1024)

    assert attention == projections


def test_tf_07_attention_over_matmuls_is_t_over_8d():
    """For F = 4D and D = NH."""
    attention, _, matmuls = attention_share(512, 512 * 8)

    assert attention == matmuls


def test_at_10_llama3_405b():
    """405.85e9 parameters, 2.435e12 FLOPs a token."""
    counts = llama(**LLAMA3_405B)

    assert counts.parameters.number == 405_849_243_648
    assert value(counts, "parameters-all", "token") == pytest.approx(2.435e12, rel=1e-3)


# --- published runs ---


@pytest.mark.parametrize(
    ("chips", "hardware", "sizes", "seconds", "convention", "flops", "mfu"),
    [
        # MaxText's recipe for TPU7x, llama3.1-70B, which counts attention half
        (64, "tpu_7x", {"L": 80, "D": 8192, "F": 28672, "N": 8, "G": 8, "K": 128, "V": 128_256,
                        "B": 256, "T": 8192}, 12.20, "model-causal", 1207.05e12, 0.523),
        # MaxText's log for v6e, llama3.1-8B, which counts it in full
        (8, "tpu_v6e", {**LLAMA3_8B, "B": 24, "T": 8192}, 3.443, "model", 413e12, 0.45),
        # PaLM 540B on two pods of v4, 238.3 k tokens/s: its MFU is the one that the name comes from
        (6144, "tpu_v4p", {"L": 118, "D": 18432, "F": 73728, "N": 1, "G": 48, "K": 256, "V": 256_000,
                           "B": 2048, "T": 2048}, 2048 * 2048 / 238.3e3, "model", None, 0.462),
    ],
    ids=["recipe", "log", "palm"],
)  # fmt: skip
def test_published_runs_have_their_flops_under_their_convention(
    chips, hardware, sizes, seconds, convention, flops, mfu
):
    """FLOP/s of a chip within 0.2 %, and MFU to the digits that are printed."""
    text = f"mesh X={chips}\n{LLAMA.format(**sizes)}"
    pace = sl.cost(sl.lower(sl.parse(text)), hardware=hardware).measured(seconds)

    if flops is not None:
        assert pace.achieved[convention].number == pytest.approx(flops, rel=2e-3)
    assert pace.utilization[convention].number == pytest.approx(mfu, abs=1e-3)


# --- what counts as what ---


@pytest.mark.parametrize("seed", range(60))
def test_model_flops_are_those_of_one_device(seed):
    """Whatever the layouts of a program are, its model FLOPs are what one device alone would run."""
    text = random_program(random.Random(seed))
    program = sl.parse(text)
    one = sl.cost(sl.lower(program, sizes=dict.fromkeys(program.mesh.names, 1)))
    many = sl.cost(sl.lower(program))
    counts, devices = many.conventions(), prod(program.mesh.sizes.values())

    assert value(counts, "model") == one.total.quantity("flops").number, text
    assert value(counts, "hardware") == many.total.quantity("flops").number * devices
    assert value(counts, "model") <= value(counts, "hardware")
    assert value(counts, "model-causal") <= value(counts, "model")


def test_work_done_again_is_hardware_alone():
    """With `save S` the backward pass makes T again: a seventh product on top of six."""
    text = """
save S
T[B_X, F] = In[B_X, D] · W_in[D, F]
S[B_X, F] = gelu(T)
Out[B_X, D] = S · W_out[F, D]
"""
    counts = conventions(text)

    assert str(counts["model"].total) == "12*B*D*F"
    assert str(counts["hardware"].total) == "14*B*D*F"
    assert str(counts["hardware"].device) == "14*B*D*F/X"


def test_work_done_again_under_another_name_is_seen():
    """An explicit backward pass may give what it makes again a name of its own."""
    text = """
forward:
  T[B, F] = In[B, D] ·_D W_in[D, F]
  Out[B, D] = T[B, F] ·_F W_out[F, D]
backward:
  dT[B, F] = dOut[B, D] ·_D W_out[F, D]
  again[B, F] = W_in[D, F] ·_D In[B, D]
  dW_out[F, D] = again[B, F] ·_B dOut[B, D]
  dW_in[D, F] = In[B, D] ·_B dT[B, F]
  dIn[B, D] = dT[B, F] ·_F W_in[D, F]
"""
    counts = conventions(text)

    assert str(counts["model"].total) == "12*B*D*F"
    assert str(counts["hardware"].total) == "14*B*D*F"


def test_attention_made_again_counts_half_under_a_causal_mask_too():
    """Where scores are made again in the backward pass, they are attention there as well."""
    text = """
save q, k, v
param W_q: [D, N, K], W_k: [D, N, K], W_v: [D, N, K]
q[B, T, N, K] = x[B, T, D] · W_q[D, N, K]
k[B, S, N, K] = x[B, S, D] · W_k[D, N, K]
v[B, S, N, K] = x[B, S, D] · W_v[D, N, K]
score[B, N, T, S] = q[B, T, N, K] ·_K k[B, S, N, K]
o[B, T, N, K] = softmax_S(score[B, N, T, S]) ·_S v[B, S, N, K]
"""
    counts = conventions(text)
    full, half = (sympy.sympify(str(counts[n].total), locals={n: sympy.Symbol(n) for n in "BDKNST"})
                  for n in ("hardware", "hardware-causal"))  # fmt: skip

    symbols = sympy.symbols("B N T S K")
    assert sympy.expand(full - half - 7 * sympy.prod(symbols)) == 0


@pytest.mark.parametrize(
    "text",
    [
        # an MLP whose weights nobody declared
        "A[I, J] · B[J, K] -> C[I, K]\nE[I, L] = gelu(C[I, K]) ·_K D[K, L]",
        # dispatch and combine of a mixture of experts: the experts' weights lie between
        """
param W_1: [E, D, F], W_2: [E, F, D]
g[P, E, C, D] = x[P, T, D] ·_T to[P, T, E, C]
h[P, E, C, F] = gelu(g[P, E, C, D] ·_D W_1[E, D, F])
r[P, E, C, D] = h[P, E, C, F] ·_F W_2[E, F, D]
y[P, T, D] = r[P, E, C, D] ·_{E,C} to[P, T, E, C]
""",
        # attention without a function of each element: its masked form does other work
        """
kv[B, N, K, H] = k[B, S, N, K] ·_S v[B, S, N, H]
o[B, T, N, H] = q[B, T, N, K] ·_K kv[B, N, K, H]
""",
        # one query against many keys has no square to halve
        """
dims B=4, T=1, S=64, N=2, H=8
score[B, N, T, S] = q[B, T, N, H] ·_H k[B, S, N, H]
o[B, T, N, H] = softmax_S(score[B, N, T, S]) ·_S v[B, S, N, H]
""",
    ],
    ids=["mlp", "experts", "linear", "decode"],
)
def test_what_is_no_attention_counts_in_full(text):
    """Under a causal mask nothing of these is halved."""
    counts = conventions(text)

    assert counts.halved == ()
    assert str(counts["model"].total) == str(counts["model-causal"].total)


def test_tokens_are_the_batch_of_what_meets_a_weight():
    """A mask's positions are none, and keys under another name are no further ones."""
    text = """
param W_q: [D, K], W_k: [D, K]
input x: [B, T, D], mask: [T, S]
k[B, S, K] = x[B, S, D] · W_k[D, K]
q[B, T, K] = x[B, T, D] · W_q[D, K]
score[B, T, S] = q[B, T, K] ·_K k[B, S, K] + mask[T, S]
"""
    assert str(conventions(text).tokens) == "B*T"


def test_without_a_batch_only_what_asks_for_tokens_is_left_out():
    """Contractions can be counted all the same."""
    counts = conventions("A[I, J] · B[J, K] -> C[I, K]", forward_only=True)

    assert counts.tokens is None
    assert counts["parameters"].total is None
    assert str(counts["model"].total) == "2*I*J*K"
    assert counts["model"].token is None


def test_conventions_are_shown_where_asked_for(shardlang, tmp_path):
    """As text, JSON, Markdown and LaTeX."""
    program = tmp_path / "mlp.shd"
    program.write_text("dims B=64, D=8, F=32\nIn[B, D] · W_in[D, F] · W_out[F, D] -> Out[B, D]")

    data = json.loads(shardlang("cost", program, "--conventions", "--format", "json").out)
    assert list(data["conventions"]["flops"]) == list(CONVENTIONS)
    assert data["conventions"]["flops"]["model"]["total"]["value"] == 12 * 64 * 8 * 32
    for form in ("text", "markdown", "latex"):
        text = shardlang("cost", program, "--conventions", "--format", form).out
        assert all(name in text for name in CONVENTIONS)
        assert "conventions" not in shardlang("cost", program, "--format", form).out
