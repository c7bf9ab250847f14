"""Writes a model as a page of notation, with every layout from its scheme.

One dim has one letter on all pages: B sequences of T tokens (S, where they are attended to), D the
residual stream, F hidden units, K key heads with G query heads each, H a head's elements in R pairs,
V the vocabulary, L layers; E experts, J that a token goes to, C places that each has for a sequence.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from textwrap import wrap

from shardlang.models.config import Config, Stretch
from shardlang.models.scheme import PARTS, Scheme

WIDTH = 100
"""Columns of a page."""

MICROBATCHES = "i"
"""What a page with stages calls the number of microbatches."""


@dataclass(frozen=True)
class Parameter:
    """A weight: its dims with their axes; `layered` where each layer has its own."""

    name: str
    dims: tuple[tuple[str, str], ...]
    layered: bool = True

    def line(self, stages: str) -> str:
        """Write it as a `param` line has it."""
        dims = [_split("L", stages)] * self.layered + [_split(dim, axes) for dim, axes in self.dims]
        return f"{self.name}: [{', '.join(dims)}]"


@dataclass(frozen=True)
class Page:
    """What a page is about; the writer below reads nothing else."""

    config: Config
    scheme: Scheme
    command: str
    mesh: Mapping[str, int | None] = field(default_factory=dict[str, int | None])
    given: Mapping[str, int] = field(default_factory=dict[str, int])
    until: str = "loss"


def open_sizes(scheme: Scheme, *, experts: bool) -> tuple[str, ...]:
    """Name what no configuration has the size of: of sequences, experts' places, and microbatches."""
    places = ("C",) if experts else ()
    return ("B", "T", *places, *((MICROBATCHES,) if scheme.stages else ()))


def write(page: Page) -> str:
    """Write the program of a model, as `shardlang new` prints it."""
    return _Writer(page).text()


def sizes(config: Config) -> dict[str, int]:
    """Give the sizes of a model's dims."""
    found = {
        "D": config.hidden,
        "F": config.inner,
        "K": config.key_heads,
        "G": config.heads // config.key_heads,
        "H": config.head,
        "R": config.head // 2,
        "V": config.vocab,
        "L": config.layers,
    }
    return {**found, "E": config.experts, "J": config.chosen} if config.experts else found


def parameters(config: Config, scheme: Scheme) -> tuple[Parameter, ...]:
    """List a model's weights in the order in which the model reads them."""
    d, v = ("D", scheme.weights), ("V", scheme.tensor)
    k, g, h = ("K", scheme.tensor), ("G", ""), ("H", "")
    f = ("F", scheme.tensor)
    found = [Parameter("W_embed", (v, d), layered=False)]
    if not config.tied:
        found.append(Parameter("W_vocab", (d, v), layered=False))
    found.append(Parameter("g_final", (("D", ""),), layered=False))
    found += [
        Parameter("g_attend", (("D", ""),)),
        Parameter("W_q", (d, k, g, h)),
        Parameter("W_k", (d, k, h)),
        Parameter("W_v", (d, k, h)),
        Parameter("W_o", (k, g, h, d)),
    ]
    if config.attention_bias:
        found += [
            Parameter("b_q", (k, g, h)),
            Parameter("b_k", (k, h)),
            Parameter("b_v", (k, h)),
            Parameter("b_o", (("D", ""),)),
        ]
    found.append(Parameter("g_mlp", (("D", ""),)))
    if config.experts:
        # An axis splits a weight once: over X there are either experts or the parts of D.
        e = ("E", scheme.experts)
        d = ("D", "".join(x for x in scheme.weights if x not in scheme.experts))
        found.append(Parameter("W_route", (("D", ""), ("E", ""))))
        found += [Parameter(f"W_{name}", (e, d, f)) for name in ("gate", "up")]
        found.append(Parameter("W_down", (e, f, d)))
        return tuple(found)
    found += [Parameter(f"W_{name}", (d, f)) for name in ("gate", "up")]
    found.append(Parameter("W_down", (f, d)))
    if config.mlp_bias:
        found += [
            Parameter("b_gate", (f,)),
            Parameter("b_up", (f,)),
            Parameter("b_down", (("D", ""),)),
        ]
    return tuple(found)


def count(config: Config, scheme: Scheme) -> int:
    """Count a model's parameters."""
    size = sizes(config)
    return sum(
        math.prod(size[dim] for dim, _ in each.dims) * (size["L"] if each.layered else 1)
        for each in parameters(config, scheme)
    )


def _split(dim: str, axes: str) -> str:
    return f"{dim}_{axes}" if axes else dim


def _size(value: int) -> str:
    """Write a size: `4096`, `128_256`."""
    return f"{value:_}" if value >= 100_000 else str(value)


def _number(value: float) -> str:
    """Write a number: `8`, `0.125`, `1e-05` as `1e-5`."""
    if value.is_integer() and value < 1e15:
        return str(int(value))
    return repr(value).replace("e-0", "e-")


class _Writer:
    """Writes one page."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self._config = page.config
        scheme = page.scheme
        self._table = {"B": scheme.batch, "T": scheme.context, "K": scheme.tensor, "F": scheme.tensor,
                       "V": scheme.tensor, "E": scheme.experts}  # fmt: skip
        # Between the layers' parts tokens are split over the tensor axis as well.
        self._stream = {**self._table, "T": scheme.context + scheme.tensor}

    def text(self) -> str:
        """Write the whole page."""
        parts = [
            self._head(),
            self._declarations(),
            self._leaves(),
            *self._blocks(),
            self._before(),
            self._layers(),
            self._after(),
        ]
        return "\n".join("\n".join(part) + "\n" for part in parts)

    def _t(self, name: str, dims: str, table: Mapping[str, str] | None = None) -> str:
        """Write a tensor in the layout of its scheme, or with the axes of another table."""
        axes = self._table if table is None else table
        return f"{name}[{', '.join(_split(dim, axes.get(dim, '')) for dim in dims.split())}]"

    # The top of the page

    def _head(self) -> list[str]:
        """Write the comment on top."""
        config = self._config
        total = count(config, self._page.scheme)
        kind = "A mixture of experts" if config.experts else "A Llama"
        by = wrap(
            f"Written by `{self._page.command}`.",
            WIDTH - 2,
            break_long_words=False,
            break_on_hyphens=False,
        )
        lines = [
            f"# {kind} of {config.layers} layers, {_large(total)}.",
            *(f"# {line}" for line in by),
            "#",
        ]
        lines += [f"# {PARTS[part].says}" for part in self._page.scheme.parts]
        words = (
            f"B sequences{' of a microbatch' if self._page.scheme.stages else ''} have T tokens "
            "(S are those that answer, T those that ask). D is the residual "
            "stream, F are hidden units, K key heads with G query heads each, H the elements of a head "
            "in R pairs, V the vocabulary, L the layers."
        )
        if config.experts:
            words += (
                " A token goes to J of E experts; each of them has C places for the tokens of a "
                "sequence, and tokens that find none are dropped and counted."
            )
        lines += ["#", *(f"# {line}" for line in wrap(words, WIDTH - 2))]
        open_ = [name for name in self._open() if name not in self._page.given]
        if open_:
            sets = " ".join(f"--set {name}=.." for name in open_)
            lines.append(f"# Left open: shardlang cost FILE {sets}")
        return lines

    def _open(self) -> tuple[str, ...]:
        return open_sizes(self._page.scheme, experts=bool(self._config.experts))

    def _declarations(self) -> list[str]:
        """Write mesh, sizes, dtype, and what is kept."""
        size = sizes(self._config)
        given = {name: n for name, n in self._page.given.items() if name != MICROBATCHES}
        dims = [f"{name}={_size(n)}" for name, n in {**given, **size}.items()]
        axes = [
            axis if self._page.mesh.get(axis) is None else f"{axis}={self._page.mesh[axis]}"
            for axis in self._page.scheme.axes
        ]
        lines = [
            f"mesh {', '.join(axes)}",
            f"dims {', '.join(dims)}",
            f"dtype {self._config.dtype}",
        ]
        if self._page.scheme.stages:
            count_ = self._page.given.get(MICROBATCHES)
            behind = "" if count_ is None else f"={count_}"
            lines += [f"accumulate {MICROBATCHES}{behind}", "schedule 1f1b"]
        if self._page.until == "loss":
            lines.append("optimizer adamw")
        mlp = "experts" if self._config.experts else "mlp"
        kept = [*(f"attend_{name}" for name in "qkvo"), f"{mlp}_gate", f"{mlp}_up"]
        lines += [
            "# What layers hand on is kept in any case; what is not named here is computed again.",
            f"save {', '.join(kept)}",
        ]
        return lines

    def _leaves(self) -> list[str]:
        """Write the inputs and the parameters, a few a line."""
        given = ["tokens: int32" + self._t("", "B T")]
        if self._page.until == "loss":
            given.append("labels: int32" + self._t("", "B T"))
        groups: dict[str, list[str]] = {}
        stages = self._page.scheme.stages
        for each in parameters(self._config, self._page.scheme):
            groups.setdefault(_GROUPS.get(each.name, "mlp"), []).append(each.line(stages))
        lines = [f"input {', '.join(given)}"]
        for group in groups.values():
            lines += _listed("param ", group)
        return lines

    # What is before, in, and behind the layers

    def _before(self) -> list[str]:
        """Write the embedding and the angles of the rotary embedding."""
        config = self._config
        rate = f"log({_number(config.theta)}) / |R| * index_R"
        lines = [
            f"{self._t('x', 'B T D', self._stream)} = take_V(W_embed, tokens)",
            "",
            f"# Position t turns pair r by t / {_number(config.theta)}^(r/R); that is, in f32:",
            f"turns: f32[R] = {rate}",
            "freq: f32[R] = exp(-turns)",
        ]
        name, more = _stretched(config.stretch)
        lines += [*more, f"angle: f32[T, R] = index_T ⊙ {name}"]
        if config.experts:
            lines += ["", "# Tokens that find no place with an expert, over all layers: none yet."]
            lines.append("lost: int32[] = 0 * sum_J(index_J)")
        return lines

    def _blocks(self) -> list[list[str]]:
        """Write what the layers are made of, a block each."""
        norm = [f"  rmsnorm_D(x, {_number(self._config.epsilon)}) ⊙ gain"]
        mlp = self._experts() if self._config.experts else self._mlp()
        return [["block norm(x, gain):", *norm], self._attention(), mlp]

    def _attention(self) -> list[str]:
        """Write causal attention with grouped heads and rotary positions."""
        bias = self._config.attention_bias
        q, k, v, o = (f" + b_{name}" if bias else "" for name in "qkvo")
        answer = self._t("", "B S K H")
        return [
            "# Each position asks those up to itself; scores are divided by the root of H.",
            "block attend(x):",
            f"  {self._t('q', 'B T K G H')} = rotary_H(x ·_D W_q{q}, angle)",
            f"  {self._t('k', 'B T K H')} = rotary_H(x ·_D W_k{k}, angle)",
            f"  {self._t('v', 'B T K H')} = x ·_D W_v{v}",
            f"  {self._t('s', 'B K G T S')} = q ·_H k{answer} / sqrt(|H|)",
            "  p = softmax_S(where(index_S <= index_T, s, -inf))",
            f"  {self._t('o', 'B T K G H')} = p ·_S v{answer}",
            f"  o ·_{{K,G,H}} W_o{o}",
        ]

    def _mlp(self) -> list[str]:
        """Write the gated MLP."""
        gate, up, down = (
            f" + b_{name}" if self._config.mlp_bias else "" for name in ("gate", "up", "down")
        )
        return [
            "block mlp(x):",
            f"  {self._t('gate', 'B T F')} = x ·_D W_gate{gate}",
            f"  {self._t('up', 'B T F')} = x ·_D W_up{up}",
            "  h = silu(gate) ⊙ up",
            f"  h ·_F W_down{down}",
        ]

    @property
    def _partial(self) -> str:
        """Units are split, so that what they add up to is a partial sum until tokens are back."""
        return f"{{U_{self._page.scheme.tensor}}}" if self._page.scheme.tensor else ""

    def _experts(self) -> list[str]:
        """Write the experts: tokens go to their places, and what is made of them comes back."""
        # Over an axis of experts, each device has all sequences' tokens of its own experts.
        scheme = self._page.scheme
        table = {**self._table, "B": "" if scheme.experts else scheme.batch}
        return [
            "# Tokens go to their places with the experts of their choice, and come back.",
            "block experts(x, choice, place):",
            f"  {self._t('sent', 'B E C D', table)} = put_{{E,C}}(x, choice, place)",
            f"  {self._t('gate', 'B E C F', table)} = sent ·_D W_gate",
            f"  {self._t('up', 'B E C F', table)} = sent ·_D W_up",
            "  h = silu(gate) ⊙ up",
            f"  {self._t('made', 'B E C D', table)}{self._partial} = h ·_F W_down",
            "  take_{E,C}(made, choice, place)",
        ]

    def _layers(self) -> list[str]:
        """Write the layers."""
        lines = [
            f"layers {_split('L', self._page.scheme.stages)}:",
            "  x = x + attend(norm(x, g_attend))",
        ]
        if not self._config.experts:
            return [*lines, "  x = x + mlp(norm(x, g_mlp))"]
        whole = {**self._table, "E": ""}
        # The shares are f32, and what is sent back is not.
        back = "back" if self._config.dtype == "f32" else f"back: {self._config.dtype}"
        return [
            *lines,
            "",
            "  # Each token goes to the J experts that the router scores highest, if they have places.",
            "  m = norm(x, g_mlp)",
            f"  score: f32{self._t('', 'B T E', whole)} = m ·_D W_route",
            f"  choice{self._t('', 'B T J')} = top_{{E,J}}(score)",
            f"  share{self._t('', 'B T J')} = softmax_J(take_E(score, choice))",
            f"  place{self._t('', 'B T J')} = rank_{{T,J}}(choice)",
            "  lost = lost + sum_{B,T,J}(place >= |C|)",
            f"  {self._t('got', 'B T J D')}{self._partial} = experts(m, choice, place)",
            f"  {back}{self._t('', 'B T D')}{self._partial} = got ·_J share",
            "  x = x + back",
        ]

    def _after(self) -> list[str]:
        """Write the last norm, the logits and the loss."""
        table = "W_embed" if self._config.tied else "W_vocab"
        lines = [f"logits: f32{self._t('', 'B T V')} = norm(x, g_final) ·_D {table}"]
        if self._config.experts:
            lines.insert(0, "dropped: int32[] = lost")
        if self._page.until == "loss":
            lines.append("loss: f32[] = mean_{B,T}(cross_entropy_V(logits, labels))")
        return lines


_GROUPS: Mapping[str, str] = {
    "W_embed": "ends", "W_vocab": "ends", "g_final": "ends", "g_attend": "attention",
    "W_q": "attention", "W_k": "attention", "W_v": "attention", "W_o": "attention",
    "b_q": "attention biases", "b_k": "attention biases", "b_v": "attention biases",
    "b_o": "attention biases", "b_gate": "mlp biases", "b_up": "mlp biases", "b_down": "mlp biases",
}  # fmt: skip
"""Which parameters share a line; the rest are the MLP's."""


def _listed(start: str, words: list[str]) -> list[str]:
    """Write words as lines that begin alike."""
    lines: list[str] = []
    for word in words:
        if lines and len(lines[-1]) + len(word) + 2 <= WIDTH:
            lines[-1] += f", {word}"
        else:
            lines.append(start + word)
    return lines


def _stretched(stretch: Stretch | None) -> tuple[str, list[str]]:
    """Write the scaling of the frequencies; give the name of the result."""
    if stretch is None:
        return "freq", []
    factor = _number(stretch.factor)
    if stretch.kind == "linear":
        return "slow", [
            f"# Positions are stretched {factor} times.",
            f"slow: f32[R] = freq / {factor}",
        ]
    span = stretch.high - stretch.low
    per = stretch.original / (2 * math.pi * span)
    low = stretch.low / span
    waves = (
        f"{_number(stretch.low)} to {_number(stretch.high)} waves in {stretch.original} positions"
    )
    return "slow", [
        f"# Long waves are slowed {factor} times, short ones not; from {waves} it goes over:",
        "# short is 0 for long waves and 1 for short ones.",
        f"ramp: f32[R] = {_number(per)} * freq - {_number(low)}",
        "short: f32[R] = relu(ramp) - relu(ramp - 1)",
        f"slow: f32[R] = freq / {factor} + {_number(1 - 1 / stretch.factor)} * freq ⊙ short",
    ]


def _large(total: int) -> str:
    """Write a count of parameters: in millions or billions, and in full."""
    for unit, word in ((10**9, "billion"), (10**6, "million")):
        if total >= unit:
            return f"{total / unit:.2f} {word} parameters ({total:,})"
    return f"{total:,} parameters"
