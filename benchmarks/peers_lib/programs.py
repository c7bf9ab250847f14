"""The programs of the benchmark, from a seed: layers of a transformer, and random programs.

Only what goes in and what comes out has a layout; what is between is left to whoever plans. No value
is partial, since the peers have no word for that at a boundary, and every axis divides every dim.
Sizes are small enough to run on host devices.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

Sharding = tuple[str, ...]
"""For each dim the axes that split it, outermost first, as a string of one-letter names."""

MESHES: tuple[Mapping[str, int], ...] = (
    {"X": 4, "Y": 2},
    {"X": 2, "Y": 4},
    {"X": 8},
    {"X": 2, "Y": 2, "Z": 2},
    {"X": 2, "Y": 2},
)
"""The meshes, by turns: one to three axes over at most eight devices."""


@dataclass(frozen=True)
class Case:
    """One program: its name, its text, and the layouts of its leaves and outputs."""

    name: str
    mesh: Mapping[str, int]
    text: str
    layouts: tuple[Sharding, ...]


def kind(layout: Sharding, mesh: Mapping[str, int]) -> str:
    """Name the kind of a layout."""
    order = "".join(mesh)
    split = [axes for axes in layout if axes]
    if not split:
        return "replicated"
    if len(split) > 1:
        return "two dims"
    if len(split[0]) == 1:
        return "one axis"
    return "axes in order" if split[0] in order else "axes out of order"


def generate(count: int, seed: int) -> list[Case]:
    """Write so many programs; the same ones for the same seed, and the first ones of a longer list.

    Of ten programs four are layers in a usual scheme, two layers with random layouts, four random;
    one in 25 is an exchange of axes of unequal size instead, which random layouts seldom have.
    """
    cases: list[Case] = []
    for index in range(count):
        rng = random.Random(f"{seed}/{index}")  # noqa: S311 - no secret
        mesh = MESHES[index % len(MESHES)]
        turn = index % 10
        if index % 50 in (15, 41):
            cases.append(_swap(rng, index, mesh))
        elif turn < 6:
            cases.append(_layer(rng, index, mesh, usual=turn < 4))
        else:
            cases.append(_Random(rng, mesh).case(index))
    return cases


# Layers


@dataclass(frozen=True)
class Layer:
    """A form of a layer: leaves by name and dims, lines, and outputs by name and dims.

    Leaves whose names start with `W` or `w` are parameters. A line that defines an output starts with
    its bare name.
    """

    leaves: Mapping[str, str]
    lines: Sequence[str]
    outputs: Mapping[str, str]


LAYERS: Mapping[str, Layer] = {
    "mlp": Layer(
        {"x": "BTD", "W1": "DF", "W2": "FD"},
        ("h = x ·_D W1", "a = gelu(h)", "y = a ·_F W2"),
        {"y": "BTD"},
    ),
    "linear mlp": Layer(
        {"x": "BD", "W1": "DF", "W2": "FD"}, ("h = x ·_D W1", "y = h ·_F W2"), {"y": "BD"}
    ),
    "gated mlp": Layer(
        {"x": "BTD", "W1": "DF", "W2": "DF", "W3": "FD"},
        ("g = x ·_D W1", "u = x ·_D W2", "s = silu(g)", "h = s ⊙ u", "y = h ·_F W3"),
        {"y": "BTD"},
    ),
    "norm mlp": Layer(
        {"x": "BTD", "w": "D", "W1": "DF", "W2": "FD"},
        (
            "z = rmsnorm_D(x)", "n = z ⊙ w", "h = n ·_D W1", "a = gelu(h)", "o = a ·_F W2",
            "y = x + o",
        ),
        {"y": "BTD"},
    ),
    "projections": Layer(
        {"x": "BTD", "Wq": "DNK", "Wk": "DNK", "Wv": "DNK"},
        ("q = x ·_D Wq", "k = x ·_D Wk", "v = x ·_D Wv"),
        {"q": "BTNK", "k": "BTNK", "v": "BTNK"},
    ),
    "scores": Layer(
        {"q": "BTNK", "k": "BSNK", "v": "BSNK"},
        ("s = q ·_K k", "p = softmax_S(s)", "y = p ·_S v"),
        {"y": "BTNK"},
    ),
    "attention": Layer(
        {"x": "BTD", "c": "BSD", "Wq": "DNK", "Wk": "DNK", "Wv": "DNK", "Wo": "NKD"},
        (
            "q = x ·_D Wq", "k = c ·_D Wk", "v = c ·_D Wv", "s = q ·_K k", "p = softmax_S(s)",
            "o = p ·_S v", "r = o ·_{N,K} Wo", "y = x + r",
        ),
        {"y": "BTD"},
    ),
    "out projection": Layer(
        {"o": "BTNK", "x": "BTD", "Wo": "NKD"},
        ("r = o ·_{N,K} Wo", "y = x + r"),
        {"y": "BTD"},
    ),
    "head": Layer(
        {"x": "BTD", "w": "D", "W": "DV"},
        ("z = rmsnorm_D(x)", "n = z ⊙ w", "l = n ·_D W", "y = softmax_V(l)"),
        {"y": "BTV"},
    ),
}  # fmt: skip

SIZES: Mapping[str, tuple[int, ...]] = {
    "B": (16, 32), "T": (16, 32), "S": (16,), "D": (16, 32, 64), "F": (16, 32, 64), "V": (32, 64),
    "N": (16,), "K": (16,), "I": (16, 32, 64), "J": (16, 32), "L": (16, 32), "M": (16, 64),
}  # fmt: skip
"""What the size of each dim is drawn from; 8 divides all."""

SCHEMES: Mapping[str, tuple[int, Mapping[str, str], Mapping[str, str]]] = {
    "dp": (1, {"B": "*"}, {}),
    "fsdp": (1, {"B": "*"}, {"D": "*"}),
    "tp": (1, {"N": "*"}, {"F": "*", "N": "*", "V": "*"}),
    "tp, split D": (1, {"D": "*", "N": "*", "V": "*"}, {"F": "*", "N": "*", "V": "*"}),
    "sequence": (1, {"T": "*", "S": "*"}, {}),
    "sequence + fsdp": (1, {"T": "*", "S": "*"}, {"D": "*"}),
    "dp + tp": (2, {"B": "0", "N": "1"}, {"F": "1", "N": "1", "V": "1"}),
    "fsdp + tp": (2, {"B": "0", "D": "1", "N": "1", "V": "1"}, {"D": "0", "F": "1", "N": "1", "V": "1"}),
    "fsdp + sequence tp": (2, {"B": "0", "N": "1", "T": "1", "S": "1"}, {"D": "0", "F": "1", "N": "1", "V": "1"}),
    "2d weights": (2, {"D": "0", "N": "1", "V": "1"}, {"D": "0", "F": "1", "N": "1", "V": "1"}),
    "2d weights, split D": (2, {"D": "01", "N": "1", "V": "1"}, {"D": "0", "F": "1", "N": "1", "V": "1"}),
    "hybrid fsdp": (2, {"B": "01"}, {"D": "1"}),
    "3d": (3, {"B": "0", "T": "1", "S": "1", "D": "2", "N": "2", "V": "2"}, {"D": "01", "F": "2", "N": "2", "V": "2"}),
    "fsdp 2 + tp": (3, {"B": "01", "D": "2", "N": "2", "V": "2"}, {"D": "01", "F": "2", "N": "2", "V": "2"}),
}  # fmt: skip
"""By name: the least number of axes, and the axes of activations' and of weights' dims.

Digits count the axes in a random order; `*` is all of them, and the last digit takes what is left.
Axes of one dim stand in the order of the mesh.
"""


def _layer(rng: random.Random, index: int, mesh: Mapping[str, int], *, usual: bool) -> Case:
    """Write a layer in a scheme, or with random layouts."""
    form = rng.choice(list(LAYERS))
    layer = LAYERS[form]
    names = {**layer.leaves, **layer.outputs}
    if usual:
        scheme = rng.choice([name for name, row in SCHEMES.items() if row[0] <= len(mesh)])
        axes = rng.sample(list(mesh), len(mesh))
        layouts = {name: _in_scheme(scheme, name, dims, axes, mesh) for name, dims in names.items()}
    else:
        scheme = "random"
        choose = _Layouts(rng, mesh)
        layouts = {name: choose(dims) for name, dims in names.items()}
    sizes = {dim: rng.choice(SIZES[dim]) for dim in dict.fromkeys("".join(names.values()))}
    text = _text(
        mesh,
        sizes,
        {name: (dims, layouts[name]) for name, dims in layer.leaves.items()},
        layer.lines,
        {name: (dims, layouts[name]) for name, dims in layer.outputs.items()},
    )
    return Case(f"{index} {form}, {scheme}", mesh, text, tuple(layouts.values()))


def _in_scheme(
    scheme: str, name: str, dims: str, axes: Sequence[str], mesh: Mapping[str, int]
) -> Sharding:
    """Lay a tensor out in a scheme: an axis goes to the first of its dims that the tensor has."""
    least, activations, weights = SCHEMES[scheme]
    first = axes[: least - 1]
    parts = [*first, "".join(axis for axis in mesh if axis not in first)]
    rule = weights if name[0] in "Ww" else activations
    taken: set[str] = set()
    split = dict.fromkeys(dims, "")
    for dim, digits in rule.items():
        if dim in split:
            wanted = "".join(mesh) if digits == "*" else "".join(parts[int(d)] for d in digits)
            wanted = "".join(axis for axis in mesh if axis in wanted)
            split[dim] = "".join(axis for axis in wanted if axis not in taken)
            taken |= set(split[dim])
    return tuple(split.values())


class _Layouts:
    """Draws layouts; in two programs of three every dim has its axes in the order of the mesh."""

    def __init__(self, rng: random.Random, mesh: Mapping[str, int]) -> None:
        self._rng = rng
        self._axes = "".join(mesh)
        self._ordered = rng.random() < 2 / 3

    def __call__(self, dims: Sequence[str]) -> Sharding:
        """Draw a layout for a tensor of these dims."""
        rng = self._rng
        count = rng.choice([0, 1, 1, 1, 2, 2, 2, 3])
        axes = rng.sample(self._axes, min(count, len(self._axes)))
        split = dict.fromkeys(dims, "")
        together = rng.random() < 0.45
        place = rng.choice(list(dims))
        for axis in axes:
            split[place if together else rng.choice(list(dims))] += axis
        if self._ordered:
            split = {dim: "".join(sorted(part)) for dim, part in split.items()}
        return tuple(split.values())


def _swap(rng: random.Random, index: int, mesh: Mapping[str, int]) -> Case:
    """Write a program whose operand and result have two axes on each other's dims."""
    dims = "".join(rng.sample("IJL", rng.randint(2, 3)))
    first, second = rng.sample(list(mesh), 2)
    one, other = rng.sample(range(len(dims)), 2)
    given, wanted = [""] * len(dims), [""] * len(dims)
    given[one], given[other] = first, second
    wanted[one], wanted[other] = second, first
    leaves = {"x": (dims, tuple(given))}
    line = "y = tanh(x)"
    if rng.random() < 0.5:
        leaves["W"] = (dims, tuple(wanted))
        line = "y = x ⊙ W"
    sizes = {dim: rng.choice(SIZES[dim]) for dim in dims}
    text = _text(mesh, sizes, leaves, [line], {"y": (dims, tuple(wanted))})
    layouts = (*(layout for _, layout in leaves.values()), tuple(wanted))
    return Case(f"{index} swap", mesh, text, layouts)


# Random programs


@dataclass
class _Random:
    """Writes one random program."""

    rng: random.Random
    mesh: Mapping[str, int]
    leaves: dict[str, str] = field(default_factory=dict)
    values: dict[str, str] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    read: set[str] = field(default_factory=set)

    DIMS = "IJLMBD"
    FUNCTIONS = ("gelu", "silu", "tanh", "square", "sigmoid", "sin")

    def case(self, index: int) -> Case:
        """Write a program of a random form."""
        forms = {
            "einsum of 2": self.einsum_of_two,
            "einsum of 3": self.einsum_of_three,
            "chain": self.chain,
            "fan-out": self.fan_out,
            "elementwise": self.elementwise,
            "sums": self.sums,
            "mixed": self.mixed,
        }
        form = self.rng.choice(list(forms))
        forms[form]()
        choose = _Layouts(self.rng, self.mesh)
        made = {**self.leaves, **self.values}
        used = {dim: self.rng.choice(SIZES[dim]) for dim in dict.fromkeys("".join(made.values()))}
        leaves = {name: (dims, choose(dims)) for name, dims in self.leaves.items()}
        ends = {
            name: (dims, choose(dims))
            for name, dims in self.values.items()
            if name not in self.read
        }
        text = _text(self.mesh, used, leaves, self.lines, ends)
        layouts = tuple(layout for _, layout in (*leaves.values(), *ends.values()))
        return Case(f"{index} {form}", self.mesh, text, layouts)

    # Pieces

    def leaf(self, dims: Sequence[str]) -> str:
        """Make a leaf; most are parameters."""
        name = f"{self.rng.choice('WWx')}{len(self.leaves) + 1}"
        self.leaves[name] = "".join(dims)
        return name

    def define(self, expression: str, operands: Sequence[str], dims: Sequence[str]) -> str:
        """Write a definition."""
        name = f"v{len(self.values) + 1}"
        self.values[name] = "".join(dims)
        self.lines.append(f"{name} = {expression}")
        self.read.update(operands)
        return name

    def dims(self, name: str) -> str:
        """Give the dims of a value."""
        return self.leaves.get(name) or self.values[name]

    def product(self, left: str, *, rank: int = 3) -> str:
        """Contract a value with a new leaf."""
        rng, dims = self.rng, self.dims(left)
        shared = rng.sample(dims, rng.randint(1, min(2, len(dims))))
        contracted = rng.sample(shared, rng.randint(1, len(shared)))
        kept = [dim for dim in dims if dim not in contracted]
        room = rank - len(kept)
        least = 0 if kept else 1
        new = rng.sample(
            [d for d in self.DIMS if d not in dims], rng.randint(least, max(1, min(room, 2)))
        )
        right = self.leaf(rng.sample(shared + new, len(shared) + len(new)))
        subscript = ",".join(contracted)
        return self.define(f"{left} ·_{{{subscript}}} {right}", [left, right], kept + new)

    def function(self, name: str) -> str:
        """Apply a function."""
        return self.define(f"{self.rng.choice(self.FUNCTIONS)}({name})", [name], self.dims(name))

    def combined(self, name: str) -> str:
        """Add or multiply by a leaf of some of the dims."""
        dims = self.dims(name)
        other = self.leaf(self.rng.sample(dims, self.rng.randint(1, len(dims))))
        return self.define(f"{name} {self.rng.choice('+⊙-')} {other}", [name, other], dims)

    def reduced(self, name: str) -> str:
        """Sum or average one dim away, or take a softmax along it."""
        dims = self.dims(name)
        dim = self.rng.choice(dims)
        if len(dims) == 1 or self.rng.random() < 0.3:
            return self.define(f"softmax_{dim}({name})", [name], dims)
        kind = self.rng.choice(["sum", "mean"])
        return self.define(f"{kind}_{dim}({name})", [name], [d for d in dims if d != dim])

    def start(self) -> str:
        """Make a first leaf."""
        return self.leaf(self.rng.sample(self.DIMS, self.rng.randint(2, 3)))

    # Forms

    def einsum_of_two(self) -> None:
        """Write `A ·_J B`, with batch dims now and then."""
        self.product(self.start())

    def einsum_of_three(self) -> None:
        """Write `A * B * C`, summed over the dims that the result lacks."""
        rng = self.rng
        a, b, c = rng.sample(self.DIMS, 3)
        forms = ([a + b, b + c, c + a], [a + b, b + c, c], [a + b, a + c, a], [a + b + c, b, c])
        operands = [self.leaf(rng.sample(dims, len(dims))) for dims in rng.choice(forms)]
        every = sorted({dim for name in operands for dim in self.dims(name)})
        kept = rng.sample(every, rng.randint(1, 2))
        self.define(" * ".join(operands), operands, kept)

    def chain(self) -> None:
        """Write two or three products in a row, now and then a function between."""
        value = self.start()
        for _ in range(self.rng.randint(2, 3)):
            value = self.product(value)
            if self.rng.random() < 0.3:
                value = self.function(value)

    def fan_out(self) -> None:
        """Read one value in two or three products."""
        value = self.start()
        if self.rng.random() < 0.5:
            value = self.function(value)
        for _ in range(self.rng.randint(2, 3)):
            self.product(value)

    def elementwise(self) -> None:
        """Write functions, sums and products without contraction."""
        value = self.start()
        for _ in range(self.rng.randint(2, 4)):
            value = self.combined(value) if self.rng.random() < 0.6 else self.function(value)

    def sums(self) -> None:
        """Write a reduction of a product or of a leaf."""
        value = self.start()
        if self.rng.random() < 0.5:
            value = self.product(value)
        value = self.reduced(value)
        if self.rng.random() < 0.5:
            self.combined(value)

    def mixed(self) -> None:
        """Write a few statements, each over some value made so far."""
        values = [self.start()]
        steps = (self.product, self.product, self.function, self.combined, self.reduced)
        for _ in range(self.rng.randint(3, 5)):
            values.append(self.rng.choice(steps)(self.rng.choice(values)))


# Text

Laid = Mapping[str, tuple[str, Sharding]]
"""Dims and layout by name."""


def _text(
    mesh: Mapping[str, int],
    sizes: Mapping[str, int],
    leaves: Laid,
    lines: Sequence[str],
    ends: Laid,
) -> str:
    """Write a program; only leaves and ends get a layout."""
    head = [
        "mesh " + ", ".join(f"{axis}={size}" for axis, size in mesh.items()),
        "dims " + ", ".join(f"{dim}={size}" for dim, size in sizes.items()),
        "dtype f32",
    ]
    for name, (dims, layout) in leaves.items():
        word = "param" if name[0] in "Ww" else "input"
        head.append(f"{word} {name}: {_brackets(dims, layout)}")
    body: list[str] = []
    for line in lines:
        name, expression = line.split(" = ", 1)
        mark = _brackets(*ends[name]) if name in ends else ""
        body.append(f"{name}{mark} = {expression}")
    return "\n".join([*head, *body]) + "\n"


def _brackets(dims: str, layout: Sharding) -> str:
    """Write dims with their axes."""
    parts = [f"{dim}_{axes}" if axes else dim for dim, axes in zip(dims, layout, strict=True)]
    return f"[{', '.join(parts)}]"
