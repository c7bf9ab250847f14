"""Programs of `shardlang new` against the `transformers` library, under every way to split them.

They need torch and transformers (extra `models`), and are skipped without them:
`pytest tests/test_models.py -m models`. Random weights are carried over; logits and all gradients
have to agree within 1e-4 of the largest value of each array, in f32.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import shardlang as sl
from shardlang.models import Page, read_config, scheme, write
from shardlang.source import Source

pytestmark = [pytest.mark.jax, pytest.mark.slow, pytest.mark.models]

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", minversion="4.57")

SMALL: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 8,
    "num_key_value_heads": 4, "head_dim": 8, "vocab_size": 64, "rms_norm_eps": 1e-5,
    "max_position_embeddings": 64, "dtype": "float32",
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 32,
}  # fmt: skip
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
B, T, MICROBATCHES = 8, 16, 4

CASES: dict[str, tuple[str, dict[str, Any], str, dict[str, int | None]]] = {
    "dp": ("llama", {}, "dp", {"X": 8}),
    "fsdp": ("llama", {}, "fsdp", {"X": 8}),
    "tp": ("llama", {}, "tp", {"Y": 4}),
    "fsdp+tp": ("llama", {}, "fsdp+tp", {"X": 4, "Y": 2}),
    "context": ("llama", {}, "context", {"W": 8}),
    "fsdp+tp+context": ("llama", {}, "fsdp+tp+context", {"W": 2, "X": 2, "Y": 2}),
    "llama3": ("llama", {"rope_parameters": LLAMA3}, "fsdp+tp", {"X": 2, "Y": 2}),
    "linear": ("llama", {"rope_parameters": LINEAR}, "tp", {"Y": 2}),
    "biases": ("llama", {"attention_bias": True, "mlp_bias": True}, "fsdp+tp", {"X": 2, "Y": 2}),
    "tied": ("llama", {"tie_word_embeddings": True}, "fsdp+tp", {"X": 2, "Y": 2}),
    "mixtral dp": ("mixtral", EXPERTS, "dp", {"X": 8}),
    "mixtral fsdp": ("mixtral", EXPERTS, "fsdp", {"X": 8}),
    "mixtral tp": ("mixtral", EXPERTS, "tp", {"Y": 4}),
    "mixtral ep": ("mixtral", EXPERTS, "ep", {"X": 4}),
    "mixtral fsdp+tp": ("mixtral", EXPERTS, "fsdp+tp", {"X": 4, "Y": 2}),
    "mixtral fsdp+ep+tp": ("mixtral", EXPERTS, "fsdp+ep+tp", {"X": 4, "Y": 2}),
    "mixtral context": ("mixtral", EXPERTS, "context", {"W": 4}),
}  # fmt: skip


def model(family: str, data: dict[str, Any]) -> Any:
    """Make the library's model with weights and gains of both signs."""
    kinds = {
        "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
        "mixtral": (transformers.MixtralConfig, transformers.MixtralForCausalLM),
    }
    kind, made = kinds[family]
    torch.manual_seed(0)
    found = made(
        kind(**{k: v for k, v in data.items() if k != "dtype"}, attn_implementation="eager")
    )
    with torch.no_grad():
        for each in found.parameters():
            scale = 1.0 if each.ndim == 1 else each.shape[-1] ** -0.5
            each.copy_(torch.randn_like(each) * scale)
    return found.eval()


def carried(found: dict[str, Any], config: Any) -> dict[str, np.ndarray[Any, Any]]:
    """Give the library's arrays (weights, or their gradients) by the program's names."""
    key, head, hidden = config.key_heads, config.head, config.hidden
    group = config.heads // key

    def at(name: str) -> np.ndarray[Any, Any]:
        layers = [found[f"model.layers.{i}.{name}"] for i in range(config.layers)]
        return np.stack([each.detach().numpy() for each in layers])

    def turned(name: str) -> np.ndarray[Any, Any]:
        return at(name).swapaxes(-1, -2)

    attention = "self_attn.{}_proj.{}".format
    arrays = {
        "W_embed": found["model.embed_tokens.weight"].detach().numpy(),
        "g_final": found["model.norm.weight"].detach().numpy(),
        "g_attend": at("input_layernorm.weight"),
        "g_mlp": at("post_attention_layernorm.weight"),
        "W_q": turned(attention("q", "weight")).reshape(-1, hidden, key, group, head),
        "W_k": turned(attention("k", "weight")).reshape(-1, hidden, key, head),
        "W_v": turned(attention("v", "weight")).reshape(-1, hidden, key, head),
        "W_o": turned(attention("o", "weight")).reshape(-1, key, group, head, hidden),
    }
    if not config.tied:
        arrays["W_vocab"] = found["lm_head.weight"].detach().numpy().T
    if config.experts:
        both = turned("mlp.experts.gate_up_proj")
        arrays["W_gate"], arrays["W_up"] = np.split(both, 2, axis=-1)
        arrays["W_down"] = turned("mlp.experts.down_proj")
        arrays["W_route"] = turned("mlp.gate.weight")
        return arrays
    for name in ("gate", "up", "down"):
        arrays[f"W_{name}"] = turned(f"mlp.{name}_proj.weight")
        if config.mlp_bias:
            arrays[f"b_{name}"] = at(f"mlp.{name}_proj.bias")
    if config.attention_bias:
        arrays["b_q"] = at(attention("q", "bias")).reshape(-1, key, group, head)
        arrays["b_k"] = at(attention("k", "bias")).reshape(-1, key, head)
        arrays["b_v"] = at(attention("v", "bias")).reshape(-1, key, head)
        arrays["b_o"] = at(attention("o", "bias"))
    return arrays


def close(name: str, got: Any, want: np.ndarray[Any, Any]) -> None:
    """Hold an array against what it should be, relative to its largest value."""
    got = np.asarray(got, np.float64)
    assert got.shape == want.shape, name
    assert np.abs(want).max() > 0, name
    assert np.abs(got - want).max() <= 1e-4 * np.abs(want).max(), name


@pytest.mark.parametrize("name", CASES)
def test_logits_and_gradients(name):
    """Logits, and the gradients of a random sum of them, are those of the library."""
    family, more, split, mesh = CASES[name]
    data = {"model_type": family, **SMALL, **more}
    config = read_config(Source("config.json", json.dumps(data)), family)
    parts = scheme(split)
    assert not isinstance(parts, str)
    given = {"B": B, "T": T, **({"C": T} if config.experts else {})}
    text = write(Page(config, parts, "shardlang new", mesh, given, "logits"))
    module: dict[str, Any] = {"__name__": "emitted"}
    exec(compile(sl.emit_jax(sl.lower(sl.parse(text))), name, "exec"), module)

    rng = np.random.default_rng(1)
    tokens = rng.integers(0, config.vocab, (B, T))
    seed = rng.normal(size=(B, T, config.vocab)).astype(np.float32)
    theirs = model(family, data)
    logits = theirs(torch.tensor(tokens)).logits
    logits.backward(torch.tensor(seed))
    weights = carried(dict(theirs.named_parameters()), config)
    wanted = carried({k: x.grad for k, x in theirs.named_parameters()}, config)

    device_mesh = module["make_mesh"]()
    whole = {**weights, "tokens": tokens, "logits": seed, "dropped": np.zeros((), np.int32)}
    place = module["place"]
    inputs = tuple(place(device_mesh, x, lambda i, x=x: whole[x][i]) for x in module["INPUTS"])
    seeds = tuple(place(device_mesh, x, lambda i, x=x: whole[x][i]) for x in module["OUTPUTS"])
    found, gradients = module["forward_backward"](device_mesh, inputs, seeds)
    outputs = dict(zip(module["OUTPUTS"], found, strict=True))

    assert set(module["INPUTS"]) == {"tokens", *weights}
    assert int(outputs.get("dropped", 0)) == 0
    close("logits", outputs["logits"], logits.detach().numpy())
    for leaf, gradient in zip(module["INPUTS"], gradients, strict=True):
        if leaf != "tokens":
            close(leaf, gradient, wanted[leaf])


PIPELINES: dict[str, tuple[str, dict[str, Any], str, dict[str, int | None], str]] = {
    "llama": ("llama", {}, "pipeline", {"Z": 3}, "1f1b"),
    "llama fsdp+tp": ("llama", {"num_hidden_layers": 4}, "fsdp+tp+pipeline",
                      {"Z": 2, "X": 2, "Y": 2}, "1f1b"),
    "llama fsdp+tp chunks": ("llama", {"num_hidden_layers": 8}, "fsdp+tp+pipeline",
                             {"Z": 2, "X": 2, "Y": 2}, "interleaved, chunks 2"),
    "mixtral fsdp": ("mixtral", EXPERTS, "fsdp+pipeline", {"Z": 3, "X": 2}, "1f1b"),
}  # fmt: skip


@pytest.mark.parametrize("name", PIPELINES)
def test_pipelines(name):
    """Logits of all microbatches, the mean loss, and its gradients are those of the library."""
    family, more, split, mesh, schedule = PIPELINES[name]
    data = {"model_type": family, **SMALL, **more}
    config = read_config(Source("config.json", json.dumps(data)), family)
    parts = scheme(split)
    assert not isinstance(parts, str)
    given = {"B": B // MICROBATCHES, "T": T, "i": MICROBATCHES}
    given |= {"C": T} if config.experts else {}
    modules: dict[str, dict[str, Any]] = {}
    for until in ("logits", "loss"):
        text = write(Page(config, parts, "shardlang new", mesh, given, until))
        text = text.replace("schedule 1f1b", f"schedule {schedule}")
        modules[until] = {"__name__": "emitted"}
        exec(compile(sl.emit_jax(sl.lower(sl.parse(text))), name, "exec"), modules[until])

    rng = np.random.default_rng(1)
    tokens, labels = (rng.integers(0, config.vocab, (B, T)) for _ in range(2))
    theirs = model(family, data)
    logits = theirs(torch.tensor(tokens)).logits
    wanted_loss = torch.nn.functional.cross_entropy(
        logits.reshape(-1, config.vocab), torch.tensor(labels).reshape(-1)
    )
    wanted_loss.backward()
    weights = carried(dict(theirs.named_parameters()), config)
    wanted = carried({k: x.grad for k, x in theirs.named_parameters()}, config)

    front = (MICROBATCHES, B // MICROBATCHES, T)
    batch = {"tokens": tokens.reshape(front), "labels": labels.reshape(front)}
    forward, train = modules["logits"], modules["loss"]
    device_mesh = forward["make_mesh"]()
    placed = {x: np.reshape(y, train["INPUTS"][x][0]) for x, y in weights.items()}
    whole = {**placed, **batch}
    outputs = dict(
        zip(
            forward["OUTPUTS"],
            forward["forward"](device_mesh, *(whole[x] for x in forward["INPUTS"])),
            strict=True,
        )
    )
    loss, gradients = train["loss_and_gradients"](device_mesh, placed, batch)

    assert not np.any(outputs.get("dropped", 0))
    close("logits", np.reshape(outputs["logits"], logits.shape), logits.detach().numpy())
    close("loss", loss, wanted_loss.detach().numpy())
    assert set(gradients) == set(weights)
    for leaf, gradient in gradients.items():
        close(leaf, np.reshape(gradient, wanted[leaf].shape), wanted[leaf])
