"""Formulas as data: products, sums and maxima by number, for a script that evaluates them.

A variable is what has a value in the page: a dim, an axis of a mesh, or a figure of the hardware. Each
distinct product and formula is written once, whatever number of programs and meshes it occurs in.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from shardlang.cost.formula import Atom, Floor, Formula, Min
from shardlang.ir.size import BinOp, Monomial, Name, Number, SizeExpr

Variable = tuple[str | int, ...]
"""What has a value: `("dim", B)`, `("axis", mesh, X)`, `("links", mesh, X)`, `("figure", C)`."""

Names = Mapping[str, Variable]
"""The variables that a report's symbols stand for."""


def number(value: Fraction) -> float:
    """Give the nearest float, and the largest for what is beyond: JSON has no infinity."""
    try:
        return float(value)
    except OverflowError:
        return sys.float_info.max


@dataclass
class Formulas:
    """The tables of a page.

    `products` are `[coefficient, factor, power, factor, power, …]`, where a factor is the number of a
    variable, or minus one minus that of an atom; `atoms` are `[kind, product, …]`; `formulas` are
    `[[product, …], [[formula, …], …], text]`: a sum of products and of maxima.
    """

    variables: dict[Variable, int] = field(default_factory=dict[Variable, int])
    products: list[list[float]] = field(default_factory=list[list[float]])
    atoms: list[list[str | int]] = field(default_factory=list[list[str | int]])
    formulas: list[list[Any]] = field(default_factory=list[list[Any]])
    _found: dict[object, int] = field(default_factory=dict[object, int])

    def variable(self, variable: Variable) -> int:
        """Give the number of a variable."""
        return self.variables.setdefault(variable, len(self.variables))

    def formula(self, formula: Formula, names: Names) -> int:
        """Give the number of a formula, its symbols being those of `names`."""
        sums = [self._product(term, names) for term in formula.terms]
        most = [[self.formula(each, names) for each in options] for options in formula.maxima]
        text = str(formula)
        key = ("formula", text, tuple(sums), tuple(map(tuple, most)))
        if key not in self._found:
            self._found[key] = len(self.formulas)
            self.formulas.append([sums, most, text])
        return self._found[key]

    def _product(self, term: Monomial, names: Names) -> int:
        row: list[float] = [number(term.coefficient)]
        for name, power in term.powers:
            factor = self._atom(name, names) if isinstance(name, Atom) else None
            row.extend((self.variable(names[name]) if factor is None else -1 - factor, power))
        key = ("product", *row)
        if key not in self._found:
            self._found[key] = len(self.products)
            self.products.append(row)
        return self._found[key]

    def _atom(self, atom: Atom, names: Names) -> int:
        kind = "floor" if isinstance(atom, Floor) else "min" if isinstance(atom, Min) else "sum"
        row = [kind, *(self._product(term, names) for term in atom.inside)]
        key = ("atom", *row)
        if key not in self._found:
            self._found[key] = len(self.atoms)
            self.atoms.append(row)
        return self._found[key]

    def size(self, expr: SizeExpr, names: Mapping[str, Variable]) -> Any:
        """Write how a dim follows from others: a number, `["v", variable]`, or `[op, left, right]`."""
        match expr:
            case Number(value):
                return number(value)
            case Name(name):
                return ["v", self.variable(names[name])]
            case BinOp(op, left, right):
                return [op, self.size(left, names), self.size(right, names)]


def size_names(expr: SizeExpr) -> frozenset[str]:
    """Give the dims and axes that a declared size is made of."""
    match expr:
        case Name(name):
            return frozenset({name})
        case BinOp(_, left, right):
            return size_names(left) | size_names(right)
        case Number():
            return frozenset()


def size_text(expr: SizeExpr) -> str:
    """Print a declared size: `4*D`, `(D + E)/2`."""
    match expr:
        case Number(value):
            return str(value)
        case Name(name):
            return name
        case BinOp(op, left, right):
            a, b = (_inner(each) for each in (left, right))
            return f"{a} {op} {b}" if op in "+-" else f"{a}{op}{b}"


def _inner(expr: SizeExpr) -> str:
    text = size_text(expr)
    return f"({text})" if isinstance(expr, BinOp) and expr.op in "+-" else text
