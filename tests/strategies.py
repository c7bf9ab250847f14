"""Valid programs at random: as text from a seed, and as hypothesis strategies.

Every program that `random_program` writes is an ordinary program that must lower: no axis stands
twice in a layout, every dim has a size that the mesh divides, contracted dims are shared, and
partial results are declared only where the operation leaves them. Values stay of moderate size, so
that float32 is enough to compare them, and no maximum is taken over values that may be equal.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hypothesis import strategies as st

MESHES = ((2,), (4,), (8,), (2, 2), (2, 4), (4, 2), (2, 2, 2))
"""Axis sizes: one to three axes over at most eight devices."""

DIMS = ("B", "D", "F", "H", "K", "S")
SMOOTH = ("gelu", "silu", "tanh", "sigmoid", "sin", "cos", "softplus")
KINKED = ("relu", "abs")
LARGEST = 300.0
"""Values estimated above this are scaled down before they are used on."""

FLAT = 3.0
"""Beyond this `tanh` and softmax are flat, and float32 loses their derivative."""


@dataclass
class Value:
    """A value of the program so far: its dims and the layout that it was written with."""

    name: str
    dims: tuple[str, ...]
    layout: str
    scale: float = 1.0
    distinct: bool = True
    """Whether no two of its elements are equal, but by chance."""


@dataclass
class Writer:
    """Writes one program; each `_statement` method adds one or two lines."""

    rng: random.Random
    axes: tuple[str, ...]
    sizes: dict[str, int]
    values: list[Value] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    count: int = 0

    def fresh(self, prefix: str) -> str:
        """Give an unused name."""
        self.count += 1
        return f"{prefix}{self.count}"

    # Layouts

    def layout(self, dims: Sequence[str], partial: Sequence[str] = (), chance: float = 0.65) -> str:
        """Write dims with random axes; of the axes in `partial` some may go into `{U_..}`."""
        split: dict[str, list[str]] = {dim: [] for dim in dims}
        unreduced: list[str] = []
        for axis in self.rng.sample(self.axes, len(self.axes)):
            if axis in partial and self.rng.random() < 0.6:
                unreduced.append(axis)
            elif dims and self.rng.random() < chance:
                split[self.rng.choice(list(dims))].append(axis)
        inside = ", ".join(dim + self.subscript(axes) for dim, axes in split.items())
        return f"[{inside}]" + self.marker(unreduced)

    def subscript(self, axes: Sequence[str]) -> str:
        """Write axes behind a dim in one of the spellings."""
        if not axes:
            return ""
        joined = "".join(axes)
        spelled = [f"_{joined}", f"_{joined}", f"_{{{joined}}}", f"_{{{','.join(axes)}}}"]
        return self.rng.choice([*spelled, "".join(f"/{axis}" for axis in axes)])

    def marker(self, axes: Sequence[str]) -> str:
        """Write what is still to be added up."""
        if not axes:
            return ""
        joined = "".join(axes)
        several = ", ".join(f"U_{axis}" for axis in axes)
        return self.rng.choice([f"{{U_{joined}}}", f"{{U_{{{joined}}}}}", f"{{{several}}}"])

    # Operands

    def leaf(self, dims: Sequence[str]) -> tuple[Value, str]:
        """Make a leaf, now and then an unreduced one, and give its first mention."""
        partial = self.axes if self.rng.random() < 0.15 else ()
        name = self.fresh(self.rng.choice(["W", "a"]))
        value = Value(name, tuple(dims), self.layout(dims, partial))
        self.values.append(value)
        return value, name + value.layout

    def mention(self, value: Value) -> str:
        """Mention a value: as it lives, in another layout, or by its name alone."""
        draw = self.rng.random()
        if draw < 0.6:
            return value.name + value.layout
        if draw < 0.85:
            return value.name + self.layout(value.dims)
        return value.name

    def operand(self, fits: Callable[[Value], bool]) -> tuple[Value, str] | None:
        """Find a value made so far that fits."""
        found = [value for value in self.values if fits(value)]
        if not found:
            return None
        value = self.rng.choice(found)
        return value, self.mention(value)

    def any_operand(self, least: int = 1, most: int = 3) -> tuple[Value, str]:
        """Give a value made so far or a new leaf, of a rank between the two."""
        if self.rng.random() < 0.6:
            found = self.operand(lambda value: least <= len(value.dims) <= most)
            if found is not None:
                return found
        rank = self.rng.randint(least, min(most, 3))
        return self.leaf(self.rng.sample(DIMS, rank))

    # Results

    def define(
        self,
        expression: str,
        dims: Sequence[str],
        scale: float,
        *,
        partial: Sequence[str] = (),
        distinct: bool = True,
        bare: bool = False,
    ) -> Value:
        """Write a definition in either direction and squash what has grown too large."""
        name = self.fresh("v")
        order = self.rng.sample(list(dims), len(dims))
        layout = self.layout(order, partial)
        without = bare and self.rng.random() < 0.15
        target = name if without else name + layout
        if without:
            layout = ""
        arrow = self.rng.random() < 0.5
        self.lines.append(f"{expression} -> {target}" if arrow else f"{target} = {expression}")
        value = Value(name, tuple(order), layout, scale, distinct)
        self.values.append(value)
        if scale > LARGEST:
            self.values.remove(value)
            factor, scale = shrink(scale)
            return self.define(f"{factor}{name}", order, scale, distinct=distinct)
        return value

    # Statements

    def chain(self, operands: int) -> None:
        """`A ·_D B ·_F C -> Out[..]`: contractions left to right, shared dims left over as batch."""
        value, text = self.any_operand(1, 3)
        running, scale, split = list(value.dims), value.scale, self.axes
        for _ in range(operands - 1):
            shared = self.rng.sample(running, self.rng.randint(1, min(2, len(running))))
            other = [dim for dim in DIMS if dim not in running]
            room = 3 - len(running) + len(shared)
            new = self.rng.sample(other, min(len(other), self.rng.randint(0, min(2, room))))
            contracted = shared[: self.rng.randint(1, len(shared))]
            if len(running) + len(new) - len(contracted) < 1:
                new = self.rng.sample(other, 1)
            dims = self.rng.sample([*shared, *new], len(shared) + len(new))
            right, mention = self.second(dims)
            text += f" {self.dot(contracted, shared, last=operands == 2)} {mention}"
            running = [dim for dim in running if dim not in contracted] + new
            scale = self.product(scale, right.scale, contracted)
        self.define(text, running, scale, partial=split, bare=True)

    def second(self, dims: Sequence[str]) -> tuple[Value, str]:
        """Give an operand with just these dims: one made so far, or a new leaf."""
        if self.rng.random() < 0.4:
            found = self.operand(lambda value: set(value.dims) == set(dims))
            if found is not None:
                return found
        return self.leaf(dims)

    def dot(self, contracted: Sequence[str], shared: Sequence[str], *, last: bool) -> str:
        """Write the product's sign, without a subscript where that has one reading."""
        names = ",".join(contracted)
        if len(shared) == 1 and not last and self.rng.random() < 0.3:
            return "·"
        if len(contracted) == 1 and self.rng.random() < 0.7:
            return self.rng.choice(["·", "⋅", "×", "@"]) + f"_{names}"
        return f"·_{{{names}}}"

    def product(self, left: float, right: float, contracted: Sequence[str]) -> float:
        """Estimate the size of a product of values with random signs."""
        terms = 1
        for dim in contracted:
            terms *= self.sizes[dim]
        return left * right * terms**0.5

    def star(self, operands: int) -> None:
        """`A * B * C -> Out[..]`: one einsum over all operands, summing what the result lacks."""
        picked = [self.any_operand(1, 2)]
        while len(picked) < operands:
            known = sorted({dim for value, _ in picked for dim in value.dims})
            dims = self.rng.sample(known, 1)
            dims += self.rng.sample([dim for dim in DIMS if dim not in known], 1)
            picked.append(self.second(dims))
        every = sorted({dim for value, _ in picked for dim in value.dims})
        kept = self.rng.sample(every, self.rng.randint(1, min(3, len(every))))
        scale = 1.0
        for value, _ in picked:
            scale *= value.scale
        scale = self.product(scale, 1.0, [dim for dim in every if dim not in kept])
        partial = self.axes if len(kept) < len(every) else ()
        self.define(" * ".join(text for _, text in picked), kept, scale, partial=partial)

    def hadamard(self) -> None:
        """`A ⊙ B` with broadcasting over the dims that one of them lacks."""
        left, one = self.any_operand(1, 3)
        dims = self.rng.sample(left.dims, self.rng.randint(1, len(left.dims)))
        right, two = self.second(dims)
        self.define(
            f"{one} ⊙ {two}", left.dims, left.scale * right.scale, distinct=left is not right
        )

    def total(self) -> None:
        """`2 * A + B - 3`: a sum with broadcasting, factors and perhaps a number."""
        first, text = self.any_operand(1, 3)
        scale = first.scale
        if self.rng.random() < 0.3:
            text = f"{self.rng.choice(['2', '0.5', '3'])} * {text}"
            scale *= 3
        for _ in range(self.rng.randint(1, 2)):
            dims = self.rng.sample(first.dims, self.rng.randint(1, len(first.dims)))
            other, mention = self.second(dims)
            text += f" {self.rng.choice('+-')} {mention}"
            scale += other.scale
        if self.rng.random() < 0.2:
            text += " + 1"
        # `A - A` is zero everywhere.
        self.define(text, first.dims, scale, distinct=False)

    def quotient(self) -> None:
        """`A / B` with a denominator that stays away from zero."""
        left, one = self.any_operand(1, 3)
        dims = self.rng.sample(left.dims, self.rng.randint(1, len(left.dims)))
        _, two = self.second(dims)
        self.define(f"{one} / (square({two}) + 1)", left.dims, left.scale, distinct=False)

    def function(self) -> None:
        """One elementwise function, or two of them one inside the other."""
        value, text = self.any_operand(1, 3)
        factor, scale = shrink(value.scale)
        text = factor + text
        draw = self.rng.random()
        name = self.rng.choice(SMOOTH)
        if draw < 0.15:
            self.define(f"square({text})", value.dims, scale**2, distinct=False)
        elif draw < 0.3:
            self.define(f"exp(tanh({text}))", value.dims, 3.0, distinct=False)
        elif draw < 0.4:
            self.define(f"rsqrt(square({text}) + 1)", value.dims, 1.0, distinct=False)
        elif draw < 0.55:
            kinked = self.rng.choice(KINKED)
            self.define(f"{kinked}({text})", value.dims, scale, distinct=False, bare=True)
        else:
            self.define(f"{name}({text})", value.dims, scale, distinct=False, bare=True)

    def reduction(self) -> None:
        """`sum_B(A)`, `mean_{B,D}(A)`; a maximum only of values that are all different."""
        value, text = self.any_operand(2, 3)
        gone = self.rng.sample(value.dims, self.rng.randint(1, len(value.dims) - 1))
        kinds = ["sum", "sum", "mean"]
        if value.distinct and value.name.startswith(("a", "W")):
            kinds += ["max"]
        kind = self.rng.choice(kinds)
        under = f"_{gone[0]}" if len(gone) == 1 else f"_{{{','.join(gone)}}}"
        left = [dim for dim in value.dims if dim not in gone]
        scale = self.product(value.scale, 1.0, gone) if kind == "sum" else value.scale
        partial = self.axes if kind == "sum" else ()
        distinct = value.distinct and kind != "max"
        self.define(f"{kind}{under}({text})", left, scale, partial=partial, distinct=distinct)

    def normalisation(self) -> None:
        """`softmax_S(A)` or `rmsnorm_D(A)` along a dim that may be split."""
        value, text = self.any_operand(1, 3)
        dim = self.rng.choice(value.dims)
        factor, _ = shrink(value.scale)
        # Equal values have no single maximum, but softmax lets no gradient through its own.
        name = self.rng.choice(["softmax", "rmsnorm"])
        self.define(f"{name}_{dim}({factor}{text})", value.dims, 3.0, distinct=False)

    def relayout(self) -> None:
        """`A[I_X, J] -> A[I, J_X]`, or a copy under another name."""
        value = self.rng.choice(self.values)
        layout = self.layout(value.dims)
        mention = value.name + value.layout
        if self.rng.random() < 0.6:
            self.lines.append(f"{mention} -> {value.name}{layout}")
            value.layout = layout
        else:
            name = self.fresh("v")
            self.lines.append(f"{name}{layout} = {mention}")
            self.values.append(Value(name, value.dims, layout, value.scale, value.distinct))


def shrink(scale: float) -> tuple[str, float]:
    """Give what to write before a value so that it is of size one or so, and its size then."""
    zeros = 0
    while scale > FLAT:
        zeros, scale = zeros + 1, scale / 10
    return (f"0.{'0' * (zeros - 1)}1 * " if zeros else ""), scale


def random_program(rng: random.Random, *, statements: int | None = None) -> str:
    """Write a valid ordinary program of up to six statements."""
    writer, header = _start(rng)
    for _ in range(statements or rng.randint(1, 6)):
        kinds: list[Callable[[], None]] = [
            writer.hadamard,
            writer.total,
            writer.quotient,
            writer.function,
            writer.reduction,
            writer.normalisation,
        ]
        if writer.values:
            kinds.append(writer.relayout)
        draw = rng.random()
        if draw < 0.4:
            writer.chain(rng.randint(2, 4))
        elif draw < 0.5:
            writer.star(rng.randint(2, 3))
        else:
            rng.choice(kinds)()
    return _finish(writer, header)


def random_chain(rng: random.Random) -> str:
    """Write a valid program of one einsum chain of two to four operands."""
    writer, header = _start(rng)
    writer.chain(rng.randint(2, 4))
    return _finish(writer, header)


def _start(rng: random.Random) -> tuple[Writer, list[str]]:
    sizes = rng.choice(MESHES)
    axes = tuple("XYZ"[: len(sizes)])
    dims = {dim: rng.choice((8, 8, 16)) for dim in DIMS}
    mesh = ", ".join(f"{axis}={size}" for axis, size in zip(axes, sizes, strict=True))
    return Writer(rng, axes, dims), [f"mesh {mesh}"]


def _finish(writer: Writer, header: list[str]) -> str:
    body = "\n".join(writer.lines)
    used = [dim for dim in DIMS if dim in body]
    sizes = ", ".join(f"{dim}={writer.sizes[dim]}" for dim in used)
    return "\n".join([*header, f"dims {sizes}", "dtype f32", body]) + "\n"


def programs(statements: int | None = None) -> st.SearchStrategy[str]:
    """Draw valid programs of any kind."""
    randoms = st.randoms(use_true_random=False)
    return randoms.map(lambda rng: random_program(rng, statements=statements))


def chains() -> st.SearchStrategy[str]:
    """Draw valid programs of one einsum chain."""
    return st.randoms(use_true_random=False).map(random_chain)


def texts() -> st.SearchStrategy[str]:
    """Draw texts that are mostly no programs, made of the notation's own pieces."""
    pieces = st.sampled_from([
        "A", "B", "W_in", "[", "]", "_X", "_{XY}", "/Y", "{U_X}", "·", "·_D", "⊙", "*", "+", "-",
        "/", "->", "=", ",", "(", ")", "gelu", "sum_B", "softmax_S", "AllGather_X", "mesh", "dims",
        "X=2", "B=3M", "forward:", "backward:", "\n", " ", "#", "|B|", "1e400", "\\cdot", "$", "^T",
        "\u00e9", "\U0001f600", "\x00", "'", "{", "}",
    ])  # fmt: skip
    return st.lists(st.one_of(pieces, st.text(max_size=3)), max_size=40).map("".join)
