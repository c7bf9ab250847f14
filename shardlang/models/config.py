"""Reads a Hugging Face `config.json`: which model it is, its sizes, and what is beyond a page.

What is read is checked at its place in the text; fields that say nothing about the model's
mathematics (such as `bos_token_id`) are passed over.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import cast, Literal, NoReturn

from shardlang.diagnostics import Diagnostic, Mistake, ShardlangError
from shardlang.models.errors import (
    BadField,
    Inconsistent,
    MissingField,
    NoConfiguration,
    NotJson,
    OtherModel,
    Unsupported,
)
from shardlang.source import Source, Span

Family = Literal["llama", "mixtral"]

FAMILIES: Mapping[Family, tuple[str, ...]] = {
    "llama": ("llama", "mistral"),
    "mixtral": ("mixtral",),
}
"""What can be written, and the `model_type`s that mean it."""

DTYPES: Mapping[str, str] = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}
"""Element types by their names in a configuration."""

_LARGEST = 10**15


@dataclass(frozen=True)
class Stretch:
    """Rotary frequencies for longer texts than the model was first trained on.

    `linear` divides them all by `factor`. `llama3` does so with those of long waves, keeps those of
    short ones, and goes over from one to the other between `low` and `high` waves in `original`
    positions.
    """

    kind: Literal["linear", "llama3"]
    factor: float
    low: float = 1.0
    high: float = 4.0
    original: int = 8192


@dataclass(frozen=True)
class Config:
    """A model's sizes and switches, by what they mean."""

    family: Family
    hidden: int
    inner: int
    layers: int
    heads: int
    key_heads: int
    head: int
    vocab: int
    theta: float
    stretch: Stretch | None
    epsilon: float
    tied: bool
    attention_bias: bool
    mlp_bias: bool
    dtype: str
    experts: int = 0
    chosen: int = 0


def read_config(source: Source, family: Family) -> Config:
    """Read the configuration of a model; raise ShardlangError (SH7xx) where it is none of that family."""
    return _Reader(source, family).config()


def refuse(source: Source, mistake: Mistake, field: str | None = None) -> NoReturn:
    """Raise a mistake at a field of a configuration, or at its first character."""
    text = source.text
    found = None if field is None else re.search(rf'"{re.escape(field)}"\s*:', text)
    first = len(text) - len(text.lstrip())
    span = Span(first, first + 1) if found is None else Span(found.start(), found.end() - 1)
    raise ShardlangError([Diagnostic(source, span, mistake)]) from None


class _Reader:
    """Takes fields from a configuration, each error at the field's place."""

    def __init__(self, source: Source, family: Family) -> None:
        self._source = source
        self._family: Family = family
        self._data = self._parsed()

    def config(self) -> Config:
        """Read everything."""
        self._kind()
        hidden, heads = self._count("hidden_size"), self._count("num_attention_heads")
        key_heads = self._count("num_key_value_heads", heads)
        if heads % key_heads:
            why = f"{heads} heads can't share {key_heads} key heads evenly"
            self._fail(Inconsistent(why), "num_key_value_heads")
        if self._data.get("head_dim") is None and hidden % heads:
            why = f"hidden_size {hidden} is no multiple of the {heads} heads, and there is no head_dim"
            self._fail(Inconsistent(why), "num_attention_heads")
        head = self._count("head_dim", hidden // heads)
        if head % 2:
            why = f"rotary embedding turns pairs, and a head has {head} elements"
            self._fail(Inconsistent(why), "head_dim")
        theta, stretch = self._rotary()
        self._refuse_others()
        experts = self._count("num_local_experts") if self._family == "mixtral" else 0
        chosen = self._count("num_experts_per_tok") if experts else 0
        if chosen > experts:
            why = f"a token can't go to {chosen} of {experts} experts"
            self._fail(Inconsistent(why), "num_experts_per_tok")
        return Config(
            family=self._family,
            hidden=hidden,
            inner=self._count("intermediate_size"),
            layers=self._count("num_hidden_layers"),
            heads=heads,
            key_heads=key_heads,
            head=head,
            vocab=self._count("vocab_size"),
            theta=theta,
            stretch=stretch,
            epsilon=self._positive("rms_norm_eps", 1e-6),
            tied=self._switch("tie_word_embeddings"),
            attention_bias=self._switch("attention_bias"),
            mlp_bias=self._switch("mlp_bias"),
            dtype=self._dtype(),
            experts=experts,
            chosen=chosen,
        )

    # What it is

    def _parsed(self) -> Mapping[str, object]:
        try:
            data: object = json.loads(self._source.text)
        except json.JSONDecodeError as error:
            at = min(error.pos, max(len(self._source.text) - 1, 0))
            self._fail_at(Span(at, at + 1), NotJson(error.msg[:1].lower() + error.msg[1:]))
        except (
            ValueError,
            RecursionError,
        ):  # a number of thousands of digits, thousands of brackets
            self._fail_at(Span(0, 1), NotJson("a number or a nesting in it has no end"))
        if not isinstance(data, dict):
            self._fail_at(Span(0, 1), NoConfiguration(_said(data)))
        return cast("Mapping[str, object]", data)

    def _kind(self) -> None:
        """Refuse the configuration of another model."""
        found = self._data.get("model_type")
        known = FAMILIES[self._family]
        if found is None:
            self._missing("model_type")
        if found not in known:
            other = next((name for name, types in FAMILIES.items() if found in types), None)
            word = found if isinstance(found, str) else _said(found)
            self._fail(OtherModel(self._family, word, other, known), "model_type")

    def _refuse_others(self) -> None:
        """Refuse what would make another model of it than the page says."""
        act = self._data.get("hidden_act", "silu")
        if act not in ("silu", "swish"):
            self._fail(Unsupported(f"the activation {_said(act)}", "silu is"), "hidden_act")
        if self._data.get("sliding_window") is not None:
            what = f"a sliding_window of {_said(self._data['sliding_window'])}"
            self._fail(
                Unsupported(what, "attention over all positions is (null)"), "sliding_window"
            )
        part = self._data.get("partial_rotary_factor", 1.0)
        if part != 1.0:
            what = f"a partial_rotary_factor of {_said(part)}"
            self._fail(Unsupported(what, "whole heads are turned"), "partial_rotary_factor")

    def _rotary(self) -> tuple[float, Stretch | None]:
        """Read theta and the scaling, as older and newer configurations write them."""
        name = (
            "rope_parameters" if self._data.get("rope_parameters") is not None else "rope_scaling"
        )
        table = self._data.get(name)
        if table is None:
            return self._positive("rope_theta", 10000.0), None
        if not isinstance(table, dict):
            self._fail(BadField(name, "an object or null", _said(table)), name)
        inner = cast("Mapping[str, object]", table)
        theta = self._positive("rope_theta", self._positive("rope_theta", 10000.0), inner)
        kind = inner.get("rope_type", inner.get("type", "default"))
        if kind == "default":
            return theta, None
        if kind == "linear":
            return theta, Stretch("linear", self._positive("factor", None, inner))
        if kind != "llama3":
            what = f"the {name} {_said(kind)}"
            self._fail(Unsupported(what, "supported are default, linear and llama3"), name)
        low = self._positive("low_freq_factor", None, inner)
        high = self._positive("high_freq_factor", None, inner)
        original = self._count("original_max_position_embeddings", None, inner)
        if high <= low:
            why = f"high_freq_factor {high:g} has to be above low_freq_factor {low:g}"
            self._fail(Inconsistent(why), "high_freq_factor")
        factor = self._positive("factor", None, inner)
        return theta, Stretch("llama3", factor, low, high, original)

    # Fields

    def _count(
        self, field: str, default: int | None = None, table: Mapping[str, object] | None = None
    ) -> int:
        """Read a whole number above 0."""
        found = self._field(field, default, table)
        if isinstance(found, float) and found.is_integer():
            found = int(found)
        if isinstance(found, bool) or not isinstance(found, int) or not 0 < found < _LARGEST:
            self._fail(BadField(field, "a whole number above 0", _said(found)), field)
        return found

    def _positive(
        self, field: str, default: float | None, table: Mapping[str, object] | None = None
    ) -> float:
        """Read a number above 0."""
        found = self._field(field, default, table)
        if isinstance(found, bool) or not isinstance(found, int | float):
            self._fail(BadField(field, "a number above 0", _said(found)), field)
        if not 0 < found < _LARGEST:
            self._fail(BadField(field, "a number above 0", _said(found)), field)
        return float(found)

    def _switch(self, field: str) -> bool:
        found = self._field(field, default=False)
        if not isinstance(found, bool):
            self._fail(BadField(field, "true or false", _said(found)), field)
        return found

    def _dtype(self) -> str:
        name = "dtype" if self._data.get("dtype") is not None else "torch_dtype"
        found = self._field(name, "bfloat16")
        if not isinstance(found, str) or found not in DTYPES:
            self._fail(BadField(name, f"one of {', '.join(DTYPES)}", _said(found)), name)
        return DTYPES[found]

    def _field(
        self, field: str, default: object = None, table: Mapping[str, object] | None = None
    ) -> object:
        """Give a field, or its default where it is missing or null."""
        found = (self._data if table is None else table).get(field)
        if found is not None:
            return found
        if default is None:
            self._missing(field)
        return default

    # Errors

    def _missing(self, field: str) -> NoReturn:
        near = get_close_matches(field, [key for key in self._data if key != field], 1)
        self._fail(MissingField(field, near[0] if near else None), None)

    def _fail(self, mistake: Mistake, field: str | None) -> NoReturn:
        """Raise a mistake at a field."""
        refuse(self._source, mistake, field)

    def _fail_at(self, span: Span, mistake: Mistake) -> NoReturn:
        raise ShardlangError([Diagnostic(self._source, span, mistake)]) from None


def _said(value: object) -> str:
    """Name a value in a few words."""
    match value:
        case None:
            return "null"
        case bool() | int() | float():
            return json.dumps(value)[:40]
        case str():
            return f"'{value[:40]}'"
        case list():
            return "a list"
        case _:
            return "an object"
