"""Random programs with blocks, for tests: several kinds of bodies on random layouts."""

from __future__ import annotations

import random

AXES = "XY"
SIZES = {"B": 8, "D": 16, "E": 4, "F": 32, "H": 12, "S": 8}
"""Sizes of the dims, which the axes divide."""

Body = tuple[list[str], list[str], list[str]]
"""The lines before a block, its lines, and those behind it."""

SAVES = {
    "mlp": ("save h", "save all, W_in", "save h, W_out"),
    "norm": ("save h", "save all, W_out"),
    "twice": ("save h", "save all, W_a"),
    "shared": ("save k", "save e", "save all, W_e"),
    "own": ("save q", "save all, W_q"),
    "two": ("save y", "save all, W_y"),
    "attention": ("save q, k", "save P, o", "save all, W_q, W_o"),
}
"""The kinds of bodies, and what may be kept of each."""

KINDS = tuple(SAVES)


class Writer:
    """Writes tensors on random layouts."""

    def __init__(self, rng: random.Random) -> None:
        """Draw from a generator."""
        self.rng = rng

    def __call__(self, *dims: str) -> str:
        """Write brackets: each axis on one of the dims, or on none."""
        places = {axis: self.rng.choice([None, *range(len(dims))]) for axis in AXES}
        text = []
        for index, dim in enumerate(dims):
            own = "".join(axis for axis in AXES if places[axis] == index)
            text.append(f"{dim}_{own}" if own else dim)
        return f"[{', '.join(text)}]"


def _mlp(b: Writer) -> Body:
    lines = [
        f"h{b('B', 'F')} = gelu(x ·_D W_in{b('D', 'F')})",
        f"x = x + h ·_F W_out{b('F', 'D')}",
    ]
    return [], lines, [f"Out{b('B', 'E')} = x ·_D W_end{b('D', 'E')}"]


def _norm(b: Writer) -> Body:
    """Nothing behind the block: what it hands on is the output."""
    lines = [
        f"h{b('B', 'D')} = rmsnorm_D(x) ⊙ W_g[D]",
        f"x = x + h ·_D W_in{b('D', 'F')} ·_F W_out{b('F', 'D')}",
    ]
    return [], lines, []


def _twice(b: Writer) -> Body:
    """The value is defined again twice; it is read before the block, too."""
    lines = [
        f"x = x + x ·_D W_a{b('D', 'F')} ·_F W_b{b('F', 'D')}",
        f"h{b('B', 'D')} = tanh(x)",
        f"x = x + h ·_D W_in{b('D', 'F')} ·_F W_out{b('F', 'D')}",
    ]
    before = [f"y{b('B', 'E')} = x ·_D W_y{b('D', 'E')}"]
    return before, lines, [f"Out{b('B', 'E')} = y + x ·_D W_end{b('D', 'E')}"]


def _shared(b: Writer) -> Body:
    """A value of the lines before is read by all layers, and behind them."""
    before = [f"input c: {b('B', 'E')}", f"e{b('B', 'E')} = tanh(c)"]
    lines = [
        f"k{b('B', 'D')} = e ·_E W_e{b('E', 'D')}",
        f"x = x + k ⊙ tanh(e ·_E W_f{b('E', 'D')})",
    ]
    return before, lines, [f"Out{b('B', 'E')} = x ·_D W_end{b('D', 'E')}", "Too[B, E] = e ⊙ e"]


def _own(b: Writer) -> Body:
    """Each layer has an input and an output of its own; what is handed on is read again at the end."""
    lines = [
        f"q{b('B', 'F')} = p ·_D W_q{b('D', 'F')}",
        f"x = x + q ·_F W_out{b('F', 'D')}",
        f"seen{b('B', 'E')} = x ·_D W_s{b('D', 'E')}",
    ]
    before = [f"input p: [L, {b('B', 'D')[1:]}"]
    return before, lines, [f"Out{b('B', 'E')} = x ·_D W_end{b('D', 'E')}"]


def _two(b: Writer) -> Body:
    """Two values are handed on."""
    lines = [
        f"y{b('B', 'D')} = z ·_E W_y{b('E', 'D')}",
        "x = x + y",
        f"z = tanh(z) + x ·_D W_w{b('D', 'E')}",
    ]
    before = [f"z{b('B', 'E')} = x ·_D W_z{b('D', 'E')}"]
    return before, lines, [f"Out{b('B', 'E')} = x ·_D W_end{b('D', 'E')}"]


def _attention(b: Writer) -> Body:
    lines = [
        f"q{b('B', 'H')} = x ·_D W_q{b('D', 'H')}",
        f"k{b('S', 'H')} = x[S, D] ·_D W_k{b('D', 'H')}",
        f"P{b('B', 'S')} = softmax_S(q ·_H k)",
        f"o{b('B', 'H')} = P ·_S k",
        f"x = x + o ·_H W_o{b('H', 'D')}",
    ]
    return [], lines, [f"Out{b('B', 'E')} = x ·_D W_end{b('D', 'E')}"]


_BODIES = {
    "mlp": _mlp,
    "norm": _norm,
    "twice": _twice,
    "shared": _shared,
    "own": _own,
    "two": _two,
    "attention": _attention,
}


def program(kind: str, seed: int, layers: str = "L") -> str:
    """Write a random program of a kind; the same for a seed, whatever the layers."""
    rng = random.Random(f"{kind}{seed}")
    write = Writer(rng)
    stream = f"input x: {write('B', 'D')}"
    before, lines, behind = _BODIES[kind](write)
    save = rng.choice(["", *SAVES[kind]])
    optimizer = rng.choice(["", "optimizer adam", "optimizer adafactor"])
    text = ["mesh X=2, Y=2", "dims " + ", ".join(f"{d}={n}" for d, n in SIZES.items())]
    text += [optimizer, save, stream, *before, f"layers {layers}:"]
    text += [f"  {line}" for line in lines]
    return "\n".join([*text, *behind]) + "\n"
