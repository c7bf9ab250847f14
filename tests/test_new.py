"""`shardlang new`: pages of known models, their sizes, and configurations that are none."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

import shardlang as sl
from shardlang.diagnostics import ShardlangError
from shardlang.models import count, read_config, scheme
from shardlang.source import Source

LLAMA_2_13B: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 5120, "intermediate_size": 13824,
    "num_attention_heads": 40, "num_hidden_layers": 40, "num_key_value_heads": 40,
    "rms_norm_eps": 1e-05, "rope_scaling": None, "tie_word_embeddings": False, "hidden_act": "silu",
    "torch_dtype": "float16", "vocab_size": 32000,
}  # fmt: skip
LLAMA_3_8B: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
    "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05, "rope_theta": 500000.0, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16", "vocab_size": 128256,
}  # fmt: skip
LLAMA_3_70B: dict[str, Any] = {
    **LLAMA_3_8B, "hidden_size": 8192, "intermediate_size": 28672, "num_attention_heads": 64,
    "num_hidden_layers": 80,
}  # fmt: skip
LLAMA_32_1B: dict[str, Any] = {
    **LLAMA_3_8B, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
    "head_dim": 64, "tie_word_embeddings": True,
    "rope_scaling": {
        "factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192, "rope_type": "llama3",
    },
}  # fmt: skip
MIXTRAL: dict[str, Any] = {
    **LLAMA_3_8B, "model_type": "mixtral", "vocab_size": 32000, "num_local_experts": 8,
    "num_experts_per_tok": 2, "sliding_window": None, "rope_theta": 1000000.0,
}  # fmt: skip

PUBLISHED = {
    "Llama 2 13B": ("llama", LLAMA_2_13B, 13_015_864_320),
    "Llama 3 8B": ("llama", LLAMA_3_8B, 8_030_261_248),
    "Llama 3 70B": ("llama", LLAMA_3_70B, 70_553_706_496),
    "Llama 3.2 1B": ("llama", LLAMA_32_1B, 1_235_814_400),
    "Mixtral 8x7B": ("mixtral", MIXTRAL, 46_702_792_704),
}
"""Parameter counts of the models' own cards."""


def file(folder, data):
    """Write a configuration."""
    path = folder / "config.json"
    path.write_text(data if isinstance(data, str) else json.dumps(data, indent=2), encoding="utf-8")
    return path


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_of_published_models(name):
    """The page counts as many parameters as the model's card."""
    family, data, expected = PUBLISHED[name]
    split = scheme("fsdp+tp")
    assert not isinstance(split, str)

    assert expected == count(read_config(Source("c", json.dumps(data)), family), split)


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.parametrize(
    "split",
    [
        "dp",
        "fsdp",
        "tp",
        "fsdp+tp",
        "context",
        "fsdp+tp+context",
        "ep",
        "pipeline",
        "fsdp+tp+pipeline",
    ],
)
def test_pages_are_programs(shardlang, tmp_path, name, split):
    """What is written passes `check`, is laid out as `fmt` does, and declares all parameters."""
    family, data, expected = PUBLISHED[name]
    if split == "ep" and family != "mixtral":
        pytest.skip("no experts")
    path = tmp_path / "model.shd"
    written = shardlang(
        "new", family, "--config", file(tmp_path, data), "--shard", split, "-o", path
    )
    program = sl.load(path)
    sizes = {info.dim: info.size for info in program.dims}
    weights = [leaf for leaf in program.leaves if leaf.kind == "param"]
    each = [
        math.prod(sizes[dim] for dim in (*x.array.tensor.dims, *([x.loop] if x.loop else [])))
        for x in weights
    ]

    assert (written.status, written.err) == (0, "")
    assert shardlang("check", path) == type(written)(0, "", "")
    assert shardlang("fmt", "--check", path).status == 0
    assert expected == sum(each)
    assert max(map(len, path.read_text(encoding="utf-8").splitlines())) <= 200


SMALL: dict[str, dict[str, Any]] = {
    "llama": {
        "model_type": "llama", "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 16, "torch_dtype": "float32",
        "attention_bias": True, "tie_word_embeddings": True, "rope_scaling": LLAMA_32_1B["rope_scaling"],
    },
    "mixtral": {
        "model_type": "mixtral", "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 16, "torch_dtype": "float32",
        "num_local_experts": 4, "num_experts_per_tok": 2,
    },
}  # fmt: skip


@pytest.mark.jax
@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "split", "mesh"),
    [
        ("llama", "fsdp+tp+context", "W=2,X=2,Y=2"),
        ("llama", "fsdp+tp+pipeline", "X=2,Y=2,Z=2"),
        ("mixtral", "fsdp+ep+tp", "X=2,Y=2"),
    ],
)
def test_pages_run(shardlang, tmp_path, family, split, mesh):
    """What is written is emitted, and its values, gradients and collectives are the plan's."""
    path, config = tmp_path / "model.shd", file(tmp_path, SMALL[family])
    sizes = ["--set", "B=4", "--set", "T=8", *(["--set", "C=3"] if family == "mixtral" else [])]
    options = ["--config", config, "--shard", split, "--mesh", mesh]
    assert shardlang("new", family, *options, *sizes, "-o", path).status == 0
    result = shardlang("verify", path)

    assert result.status == 0, result.out + result.err
    assert ("output dropped" in result.out) == (family == "mixtral")


WRONG: dict[str, tuple[Any, str, str, int]] = {
    "no JSON": ('{"model_type": "llama",\n "hidden_size": 12,,}', "SH721", "not JSON", 2),
    "cut off": ('{"model_type": "llama"', "SH721", "not JSON", 1),
    "nested without end": ("[" * 100_000, "SH721", "no end", 1),
    "digits without end": ('{"hidden_size": ' + "9" * 10_000 + "}", "SH721", "no end", 1),
    "a list": ("[1, 2]", "SH722", "this is a list", 1),
    "a word": ('"llama"', "SH722", "this is 'llama'", 1),
    "no kind": ({"hidden_size": 1}, "SH723", "no model_type", 1),
    "another kind": ({**LLAMA_3_8B, "model_type": "bert"}, "SH725", "of a bert, not of a llama", 2),
    "a mixtral": ({**LLAMA_3_8B, "model_type": "mixtral"}, "SH725", "shardlang new mixtral", 2),
    "a number for a kind": ({**LLAMA_3_8B, "model_type": 5}, "SH725", "of a 5", 2),
    "a word for a size": ({**LLAMA_3_8B, "hidden_size": "large"}, "SH724", "is 'large'", 3),
    "a size of 0": ({**LLAMA_3_8B, "vocab_size": 0}, "SH724", "above 0", 12),
    "half a layer": ({**LLAMA_3_8B, "num_hidden_layers": 1.5}, "SH724", "is 1.5", 6),
    "true layers": ({**LLAMA_3_8B, "num_hidden_layers": True}, "SH724", "is true", 6),
    "no number": ({**LLAMA_3_8B, "rms_norm_eps": float("nan")}, "SH724", "is NaN", 8),
    "a bias of words": ({**LLAMA_3_8B, "mlp_bias": "no"}, "SH724", "true or false", 13),
    "an unknown dtype": ({**LLAMA_3_8B, "torch_dtype": "int8"}, "SH724", "bfloat16", 11),
    "uneven groups": ({**LLAMA_3_8B, "num_key_value_heads": 5}, "SH727", "5 key heads", 7),
    "uneven heads": ({**LLAMA_3_8B, "num_attention_heads": 24}, "SH727", "no head_dim", 5),
    "odd heads": ({**LLAMA_3_8B, "head_dim": 63}, "SH727", "63 elements", 13),
    "another activation": ({**LLAMA_3_8B, "hidden_act": "gelu"}, "SH726", "'gelu'", 13),
    "a window": ({**LLAMA_3_8B, "sliding_window": 4096}, "SH726", "4096", 13),
    "yarn": ({**LLAMA_3_8B, "rope_scaling": {"type": "yarn"}}, "SH726", "'yarn'", 13),
    "a scaling that is none": ({**LLAMA_3_8B, "rope_scaling": 8}, "SH724", "object or null", 13),
    "a scaling without factor": (
        {**LLAMA_3_8B, "rope_scaling": {"type": "linear"}}, "SH723", "no factor", 1,
    ),
    "waves the wrong way": (
        {**LLAMA_3_8B, "rope_scaling": {
            **LLAMA_32_1B["rope_scaling"], "low_freq_factor": 4, "high_freq_factor": 1}},
        "SH727", "above low_freq_factor 4", 15,
    ),
    "8 key heads over 16": (LLAMA_3_8B, "SH728", "into 16 over Y", 7),
    **{
        f"no {field}": (
            {key: value for key, value in LLAMA_3_8B.items() if key != field}, "SH723", field, 1,
        )
        for field in ("hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size")
    },
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_wrong_configurations(shardlang, tmp_path, name):
    """Each mistake is told at its line with its code."""
    data, code, words, line = WRONG[name]
    path = file(tmp_path, data)
    result = shardlang("new", "llama", "--config", path, "--mesh", "Y=16")

    assert (result.status, result.out) == (1, "")
    assert result.err.startswith(f"{path}:{line}:")
    assert f"error[{code}]" in result.err
    assert words in " ".join(result.err.split())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--shard", "zero"], "'zero' is no way to split a model"),
        (["--shard", "dp+fsdp"], "name one of them"),
        (["--shard", "ep"], "a llama has no experts"),
        (["--shard", "dp", "--mesh", "Y=2"], "the axes of --shard dp are X"),
        (["--mesh", "X=0"], "is not a mesh"),
        (["--mesh", "X"], "is not a mesh"),
        (["--set", "D=4"], "sizes to set are B, T"),
        (["--set", "B=1.5"], "a whole number"),
        (["--set", "B=3", "--mesh", "X=2"], "can't be split into 2 over X"),
        (["--config", "no.json"], "no.json"),
    ],
)
def test_wrong_usage(shardlang, tmp_path, arguments, words):
    """What is wrong with the options is wrong usage."""
    path = file(tmp_path, LLAMA_3_8B)
    result = shardlang("new", "llama", "--config", path, *arguments)

    assert (result.status, result.out) == (2, "")
    assert words in " ".join(result.err.split())


def test_newer_configurations():
    """`rope_parameters` and `dtype` are the newer names of what older files call otherwise."""
    older = {**LLAMA_32_1B, "rope_theta": 500000.0}
    newer = {
        k: v for k, v in older.items() if k not in ("rope_theta", "rope_scaling", "torch_dtype")
    }
    newer["rope_parameters"] = {**older["rope_scaling"], "rope_theta": 500000.0}
    newer["dtype"] = older["torch_dtype"]
    read = [read_config(Source("c", json.dumps(data)), "llama") for data in (older, newer)]

    assert read[0] == read[1]


def test_a_reader_error_is_shardlangs():
    """The library raises what the command prints."""
    with pytest.raises(ShardlangError) as error:
        read_config(Source("c", "{}"), "llama")

    assert [d.code for d in error.value.diagnostics] == ["SH723"]
