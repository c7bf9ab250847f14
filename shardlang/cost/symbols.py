"""Names in formulas: which symbol stands for which dim, axis and hardware figure, and its value.

Formulas must be readable by sympy with every name given as a symbol. So a dim called `lambda` is
written `lambda_`, `D'` is `D_prime`, a dim of literal size is its number, and where a dim or an axis
has the name of a hardware figure, the figure gets the suffix `_hw`.
"""

from __future__ import annotations

import keyword
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Literal

from shardlang.hardware.figures import EFFICIENCIES
from shardlang.ir.plan import Plan
from shardlang.ir.size import BinOp, Monomial, Name, Number, SizeExpr
from shardlang.ir.types import Axis, AxisInfo, Dim

Kind = Literal["dim", "axis", "hardware"]

FIGURES = ("C", "W_ici", "W_dcn", "W_hbm")
"""The hardware figures that formulas use: FLOP/s, and bytes/s of one torus axis, DCN and HBM."""

# What sympy's parser itself writes into the text that it evaluates, and the functions we print.
_READER_NAMES = frozenset(
    {"Integer", "Float", "Rational", "Symbol", "Function", "Max", "Min", "floor"}
)


def literal_size(dim: str) -> int | None:
    """Give the size of a dim that is written as one: `128`, or `128'` for a second such dim."""
    text = dim.rstrip("'")
    return int(text) if text.isdecimal() else None


def readable(name: str) -> str:
    """Give a name that sympy reads as a symbol: an identifier that means nothing else."""
    if not name.isascii():
        import unicodedata  # noqa: PLC0415  (rare, and not free)

        name = unicodedata.normalize("NFKC", name)
    name = name.replace("'", "_prime").replace("′", "_prime")
    # sympy's reader ends a name at a combining mark, Python does not
    name = "".join(c if c.isalnum() and f"a{c}".isidentifier() else "_" for c in name)
    name = name if name.isidentifier() else f"_{name}"
    return f"{name}_" if keyword.iskeyword(name) or name in _READER_NAMES else name


@dataclass
class Symbols:
    """The names of one report's formulas.

    `of` maps dims and axes by their own names to their symbols; `kinds` lists every symbol;
    `figures` maps the plain names of hardware figures (`C`, `M_X`) to theirs.
    """

    of: dict[str, str]
    kinds: dict[str, Kind]
    figures: dict[str, str]
    plain: bool = True
    _links: dict[Axis, str] = field(default_factory=dict[Axis, str], repr=False)

    def monomial(self, monomial: Monomial) -> Monomial:
        """Write a product of dims and axes in the report's symbols; literal dims are numbers."""
        if self.plain:
            return monomial
        result = Monomial(monomial.coefficient)
        for name, power in monomial.powers:
            size = literal_size(name)
            if size is None:
                result *= Monomial(Fraction(1), ((self.of.get(name, name), power),))
            elif size or power > 0:
                result *= Fraction(size) ** power
        return result

    def links(self, axis: Axis) -> str:
        """Give the symbol for the number of hardware axes that an axis spans: `M_X`."""
        return self.figures[f"M_{self.of.get(axis.name, axis.name)}"]

    def rate(self, figure: str) -> Monomial:
        """Give a figure of the hardware as formulas have it: times its efficiency, where that is named."""
        rate = Monomial.of(self.figures[figure])
        efficiency = self.figures.get(EFFICIENCIES.get(figure, ""))
        return rate if efficiency is None else rate * Monomial.of(efficiency)

    @property
    def efficiencies(self) -> tuple[str, ...]:
        """The symbols of the efficiencies that formulas have."""
        return tuple(self.figures[name] for name in EFFICIENCIES.values() if name in self.figures)

    @property
    def renamed(self) -> Mapping[str, str]:
        """The dims and axes whose symbol is not their name."""
        return {name: symbol for name, symbol in self.of.items() if name != symbol}


def dims_and_axes(plan: Plan) -> tuple[list[str], list[AxisInfo], bool]:
    """List the dims and axes of a plan, declared ones first; and say whether it has literal dims.

    Literal dims are not listed.
    """
    names = dict.fromkeys(info.dim.name for info in plan.program.dims)
    infos = {info.axis: info for info in plan.program.mesh.axes}
    seen: set[tuple[tuple[Dim, ...], tuple[tuple[Axis, ...], ...]]] = set()
    arrays = [leaf.array for leaf in plan.program.leaves]
    arrays.extend(a for _, step in plan.steps() for a in (*step.inputs, step.output))
    for array in arrays:
        key = (array.tensor.dims, array.layout.sharding)
        if key not in seen:
            seen.add(key)
            names.update(dict.fromkeys(dim.name for dim in array.tensor.dims))
            for axis in array.layout.split_axes:
                infos.setdefault(axis, AxisInfo(axis))
        for axis in array.layout.unreduced:
            infos.setdefault(axis, AxisInfo(axis))
    for _, step in plan.steps():
        for axis in getattr(step.op, "axes", ()):
            infos.setdefault(axis, AxisInfo(axis))
    names.update((block.dim.name, None) for block in plan.program.blocks)
    if plan.program.microbatches is not None:
        names.setdefault(plan.program.microbatches.name)
    dims = [name for name in names if literal_size(name) is None]
    return dims, list(infos.values()), len(dims) < len(names)


def make_symbols(
    dims: Iterable[str],
    axes: Iterable[str],
    figures: Iterable[str] = FIGURES,
    *,
    literals: bool = True,
) -> Symbols:
    """Name everything; `literals` says that some dim may be written as its size.

    `figures` are the hardware figures, without those of axes (`M_X`).
    """
    of: dict[str, str] = {}
    kinds: dict[str, Kind] = {}

    def add(name: str, kind: Kind) -> None:
        symbol = readable(name)
        while symbol in kinds:
            symbol += "_"
        of[name] = symbol
        kinds[symbol] = kind

    axes = list(axes)
    for name in dims:
        add(name, "dim")
    for name in axes:
        add(name, "axis")
    named: dict[str, str] = {}
    for figure in (*figures, *(f"M_{of[name]}" for name in axes)):
        symbol = figure
        while symbol in kinds:
            symbol += "_hw"
        named[figure] = symbol
        kinds[symbol] = "hardware"
    plain = not literals and all(name == symbol for name, symbol in of.items())
    return Symbols(of, kinds, named, plain)


def evaluate_size(expr: SizeExpr, known: Mapping[str, Fraction]) -> Fraction | None:
    """Compute a declared size from the sizes that are known, None where that is not possible."""
    match expr:
        case Number(value):
            return value
        case Name(name):
            return known.get(name)
        case BinOp(op, left, right):
            a, b = evaluate_size(left, known), evaluate_size(right, known)
            if a is None or b is None:
                return None
            match op:
                case "+":
                    return a + b
                case "-":
                    return a - b
                case "*":
                    return a * b
                case "/":
                    return a / b if b else None
                case "**":
                    small = b.denominator == 1 and abs(b) <= 64 and (a or b >= 0)
                    return Fraction(a ** int(b)) if small else None


def known_sizes(
    plan: Plan, axes: Iterable[AxisInfo], sets: Mapping[str, Fraction]
) -> dict[str, Fraction]:
    """Give the sizes of dims and axes by their own names; `sets` win over what the plan has.

    A dim that is declared by others (`F=4*D`) follows them when they are set.
    """
    program = plan.program
    known = {i.axis.name: Fraction(i.size) for i in axes if i.size is not None}
    declared = {i.dim.name: i.declared for i in program.dims if i.declared is not None}
    for info in program.dims:
        if info.size is not None:
            known[info.dim.name] = Fraction(info.size)
    known.update(sets)
    if sets:
        for _ in declared:
            changed = False
            for name, expr in declared.items():
                value = None if name in sets else evaluate_size(expr, known)
                if value is not None and value > 0 and known.get(name) != value:
                    known[name], changed = value, True
            if not changed:
                break
    return known
