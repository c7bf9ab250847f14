"""Random programs with blocks, for tests: several kinds of bodies on random layouts."""

from __future__ import annotations

import random

AXES = "XY"


def brackets(rng: random.Random, *dims: str) -> str:
    """Put each axis on one of the dims, or on none."""
    places = {axis: rng.choice([None, *range(len(dims))]) for axis in AXES}
    text = []
    for index, dim in enumerate(dims):
        own = "".join(axis for axis in AXES if places[axis] == index)
        text.append(f"{dim}_{own}" if own else dim)
    return f"[{', '.join(text)}]"


def body(kind: str, rng: random.Random) -> tuple[list[str], list[str], list[str]]:
    """Give the lines before a block, its lines, and those behind it."""

    def b(*dims: str) -> str:
        return brackets(rng, *dims)

    stream = f"input x: {b('B', 'D')}"
    end = f"Out{b('B', 'D')} = x ·_D W_end{b('D', 'E')}".replace("Out[B", "Out[B")
    end = f"Out{b('B', 'E')} = x ·_D W_end{b('D', 'E')}"
    match kind:
        case "mlp":
            lines = [
                f"h{b('B', 'F')} = gelu(x ·_D W_in{b('D', 'F')})",
                f"x = x + h ·_F W_out{b('F', 'D')}",
            ]
            return [stream], lines, [end]
        case "norm":
            lines = [
                f"h{b('B', 'D')} = rmsnorm_D(x) ⊙ W_g[D]",
                f"x = x + h ·_D W_in{b('D', 'F')} ·_F W_out{b('F', 'D')}",
            ]
            return [stream], lines, []
        case "twice":
            lines = [
                f"x = x + x ·_D W_a{b('D', 'F')} ·_F W_b{b('F', 'D')}",
                f"h{b('B', 'D')} = square(x)",
                f"x = x + h ·_D W_in{b('D', 'F')} ·_F W_out{b('F', 'D')}",
            ]
            return [stream], lines, [end]
        case "shared":  # an input and a value of the lines before, read by all layers
            before = [stream, f"input c: {b('B', 'E')}", f"e{b('B', 'E')} = tanh(c)"]
            lines = [
                f"k{b('B', 'D')} = e ·_E W_e{b('E', 'D')}",
                "x = x + k ⊙ tanh(e ·_E W_f" + b("E", "D") + ")",
            ]
            return before, lines, [end, f"Too{b('B', 'E')} = e ⊙ e"]
        case "own":  # an input of each layer, and an output of each
            before = [stream, f"input p: [L, {b('B', 'D')[1:]}"]
            lines = [
                f"q{b('B', 'F')} = p ·_D W_q{b('D', 'F')}",
                f"x = x + q ·_F W_out{b('F', 'D')}",
                f"seen{b('B', 'E')} = x ·_D W_s{b('D', 'E')}",
            ]
            return before, lines, [end]
        case "two":  # two values that are handed on
            before = [stream, f"z{b('B', 'D')} = x ·_E W_z{b('E', 'D')}".replace("x ·_E", "x ·_D")]
            before[1] = f"z{b('B', 'E')} = x ·_D W_z{b('D', 'E')}"
            lines = [
                f"y{b('B', 'D')} = z ·_E W_y{b('E', 'D')}",
                "x = x + y",
                f"z = tanh(z) + x ·_D W_w{b('D', 'E')}",
            ]
            return before, lines, [end]
        case _:  # attention
            before = [stream]
            lines = [
                f"q{b('B', 'H')} = x ·_D W_q{b('D', 'H')}",
                f"k{b('B', 'H')} = x ·_D W_k{b('D', 'H')}",
                f"P{b('B', 'S')} = softmax_S(q ·_H k[S, H])",
                f"o{b('B', 'H')} = P ·_S k[S, H]",
                f"x = x + o ·_H W_o{b('H', 'D')}",
            ]
            return before, lines, [end]


KINDS = ("mlp", "norm", "twice", "shared", "own", "two", "attention")
SAVES = ("", "save h, q\n", "save all, W_in, W_q\n")


def program(kind: str, seed: int, layers: str = "L", *, save: bool = True) -> str:
    """Write a random program of a kind."""
    rng = random.Random(f"{kind}{seed}")
    before, lines, behind = body(kind, rng)
    names = " ".join(lines)
    saved = rng.choice(SAVES) if save else ""
    if saved and not all(f"{n}[" in names for n in saved.replace("save", "").split(",") if n.strip() not in ("all", "x") for n in [n.strip()]):
        saved = ""
    inside = "".join(f"  {line}\n" for line in lines)
    optimizer = rng.choice(["", "optimizer adam\n", "optimizer adafactor\n"])
    return (
        "mesh X=2, Y=2\n" + optimizer + saved + "\n".join(before)
        + f"\nlayers {layers}:\n{inside}" + "\n".join(behind) + "\n"
    )  # fmt: skip
