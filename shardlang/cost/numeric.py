"""Compiled reports: a report's quantities as one numpy function over arrays, for planners.

Products are evaluated directly, with each power of each array computed once: no code is generated,
so that a compiled report can be pickled and no text of the program can become code.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from math import inf
from typing import Any, TYPE_CHECKING

import numpy as np

from shardlang.cost.formula import Atom, Floor, Formula, Min
from shardlang.ir.size import BinOp, Monomial, Name, Number, SizeExpr

if TYPE_CHECKING:
    from shardlang.cost.report import Report
    from shardlang.cost.symbols import Symbols

MEMORY_PARTS = (
    "parameters",
    "gradients",
    "optimizer",
    "caches",
    "activations",
    "gathered_peak",
    "peak",
)
HBM = ("t_load", "hbm_bytes", "t_hbm", "hbm_fused")
TIMES = ("flops", "bytes", "t_math", "t_comms", "t_overlapped", "t_serial", *HBM)

Groups = tuple[tuple[tuple[str, ...], Formula], ...]


def number(value: Fraction) -> float:
    """Give the nearest float, infinity for what is beyond."""
    try:
        return float(value)
    except OverflowError:
        return inf


def _no_symbol(name: str, symbols: Symbols) -> str:
    """Say what there is in place of a name that nothing has."""
    groups = {
        words: [symbol for symbol, kind in symbols.kinds.items() if kind == each]
        for each, words in (("dim", "dims"), ("axis", "axes"), ("hardware", "hardware figures"))
    }
    listed = "; ".join(f"{words} {', '.join(found)}" for words, found in groups.items() if found)
    return f"this report has no dim, axis or hardware figure {name!r}; it has {listed}"


class Outputs(tuple[Any, ...]):
    """The arrays that a compiled report gives, in order; also by name: `out["t_comms"]`."""

    __slots__ = ()
    names: tuple[str, ...]

    def __getitem__(self, key: Any) -> Any:
        """Give an array by its place or its name."""
        return super().__getitem__(self.names.index(key) if isinstance(key, str) else key)


def _outputs(names: tuple[str, ...], arrays: list[Any]) -> Outputs:
    kind = type("Outputs", (Outputs,), {"names": names, "__slots__": ()})
    return kind(arrays)


@dataclass(frozen=True)
class Compiled:
    """A numpy function of the named symbols, in their order or by keyword.

    It gives one array an output, all of the shape that the arguments broadcast to, in floats:
    seconds, bytes, FLOPs of both passes, and `memory`, the total in bytes. An output may name a pass
    (`forward.t_comms`) or a part of memory (`memory.activations`). Where an axis has size 1, its
    collectives cost nothing. A dim that is declared by others (`F=4*D`) follows them. An axis whose
    size is 1 in the report itself has no collectives left: to be named, it has to stay 1. So has one
    that is laid on a slice to keep its size.
    """

    names: tuple[str, ...]
    outputs: tuple[str, ...]
    constants: Mapping[str, float]
    derived: Mapping[str, SizeExpr]
    formulas: Mapping[str, Formula]
    groups: Mapping[str, Groups]
    axes_overlap: bool
    own: Mapping[str, str]
    ones: tuple[str, ...] = ()
    fixed: Mapping[str, float] = field(default_factory=dict[str, float])

    @staticmethod
    def of(report: Report, names: tuple[str, ...], outputs: tuple[str, ...]) -> Compiled:
        """Compile a report; raises ValueError for a name or an output that it does not have."""
        symbols = report.symbols
        arguments = tuple(symbols.of.get(name, name) for name in names)
        for name, symbol in zip(names, arguments, strict=True):
            if symbol not in symbols.kinds:
                raise ValueError(_no_symbol(name, symbols))
        derived = _derived(report, arguments)
        known = {s: v for s, v in report.known.items() if s not in arguments and s not in derived}
        formulas: dict[str, Formula] = {}
        groups: dict[str, Groups] = {}
        needed: set[str] = set()
        for output in outputs:
            part, _, key = output.rpartition(".")
            if output.startswith("memory"):
                key = "total" if output == "memory" else key
                if key not in (*MEMORY_PARTS, "total"):
                    raise ValueError(f"no output is called {output!r}")
                formulas[output] = report.memory.quantity(key).formula
                needed |= formulas[output].names
                continue
            pass_ = part or "total"
            if key not in TIMES or pass_ not in report.totals:
                raise ValueError(f"no output is called {output!r}: {', '.join((*TIMES, 'memory'))}")
            totals = report.totals[pass_]
            if key in HBM:
                formulas[output] = totals.quantity(key).formula
            if key in ("flops", "t_math", "t_overlapped", "t_serial"):
                formulas[f"{pass_}.{'flops' if key == 'flops' else 't_math'}"] = totals.quantity(
                    "flops" if key == "flops" else "t_math"
                ).formula
            if key in ("bytes", "t_comms", "t_overlapped", "t_serial"):
                which = 0 if key == "bytes" else 1
                name = f"{pass_}.{'bytes' if key == 'bytes' else 't_comms'}"
                groups[name] = tuple(
                    (axes, both[which]) for axes, both in report.groups[pass_].items()
                )
        for formula in (*formulas.values(), *(f for g in groups.values() for _, f in g)):
            needed |= formula.names
        lacking = sorted(needed - set(arguments) - set(known) - set(derived))
        if lacking:
            raise ValueError(f"no value is known for {', '.join(lacking)}: name it, or set it")
        return Compiled(
            names=arguments,
            outputs=outputs,
            constants={symbol: number(value) for symbol, value in known.items()},
            derived=derived,
            formulas={name: f.substitute(known) for name, f in formulas.items()},
            groups={
                name: tuple((axes, f.substitute(known)) for axes, f in group)
                for name, group in groups.items()
            },
            axes_overlap=report.overlap == "axes",
            own={symbol: name for name, symbol in symbols.of.items()},
            ones=tuple(
                symbol
                for symbol in arguments
                if symbols.kinds[symbol] == "axis" and report.known.get(symbol) == 1
            ),
            fixed={
                symbol: number(report.known[symbol])
                for symbol in arguments
                if symbol in report.fixed
            },
        )

    def __call__(self, *arrays: Any, **named: Any) -> Outputs:
        """Evaluate over arrays."""
        given = dict(zip(self.names, arrays, strict=False))
        given.update(named)
        if len(arrays) > len(self.names) or set(given) != set(self.names):
            raise TypeError(f"expected {', '.join(self.names)}")
        values: dict[str, Any] = {n: np.asarray(v, dtype=np.float64) for n, v in given.items()}
        for name in self.ones:
            if np.any(values[name] != 1):
                raise ValueError(
                    f"the axis {self.own[name]} has size 1 in this report, which has no collectives"
                    f" over it: to vary {self.own[name]}, lower the program with another size of it,"
                    " or with none"
                )
        for name, size in self.fixed.items():
            if np.any(values[name] != size):
                raise ValueError(
                    f"the axis {self.own[name]} has size {size:g} in this report, which lays it on a"
                    f" slice: to vary {self.own[name]}, leave out the slice's shape, or price each size"
                    " on its own"
                )
        shape = np.broadcast_shapes(*(value.shape for value in values.values()))
        known: dict[str, Any] = {**self.constants, **values}
        known.update(self._follow(known))
        evaluate = Evaluation(known)
        results = [
            np.broadcast_to(np.asarray(self._output(name, evaluate)), shape)
            for name in self.outputs
        ]
        return _outputs(self.outputs, results)

    def _follow(self, known: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        """Compute the dims that follow others, as far as those are known."""
        named = {self.own.get(symbol, symbol): value for symbol, value in known.items()}
        for _ in self.derived:
            for symbol, expr in self.derived.items():
                value = _size(expr, named)
                if value is not None:
                    named[self.own[symbol]] = value
        for symbol in self.derived:
            if self.own[symbol] in named:
                yield symbol, named[self.own[symbol]]

    def _output(self, name: str, evaluate: Evaluation) -> Any:
        pass_, _, key = name.rpartition(".")
        if name in self.formulas and key not in ("flops", "t_math"):
            return evaluate.formula(self.formulas[name])
        pass_ = pass_ or "total"
        match key:
            case "flops" | "t_math":
                return evaluate.formula(self.formulas[f"{pass_}.{key}"])
            case "bytes":
                return sum((v for _, v in self._parts(f"{pass_}.bytes", evaluate)), 0.0)
            case _:
                comms = self._comms(f"{pass_}.t_comms", evaluate)
                if key == "t_comms":
                    return comms
                math = evaluate.formula(self.formulas[f"{pass_}.t_math"])
                return np.maximum(math, comms) if key == "t_overlapped" else math + comms

    def _parts(self, name: str, evaluate: Evaluation) -> Iterator[tuple[tuple[str, ...], Any]]:
        """Give each group's cost, zero where its axes come to one device."""
        for axes, formula in self.groups[name]:
            value = evaluate.formula(formula)
            known = all(axis in evaluate.values for axis in axes)
            if known and any(axis in self.names for axis in axes):
                n = evaluate.monomial(Monomial.of(*axes))
                yield axes, np.where(n > 1, value, 0.0)
            else:
                yield axes, value

    def _comms(self, name: str, evaluate: Evaluation) -> Any:
        if name not in evaluate.cache:
            evaluate.cache[name] = self._overlapping(name, evaluate)
        return evaluate.cache[name]

    def _overlapping(self, name: str, evaluate: Evaluation) -> Any:
        found = list(self._parts(name, evaluate))
        if not self.axes_overlap:
            return sum((value for _, value in found), 0.0)
        result: Any = 0.0
        for axis in dict.fromkeys(axis for axes, _ in found for axis in axes):
            own: Any = sum((value for axes, value in found if axis in axes), 0.0)
            result = np.maximum(result, own)
        return result


def _derived(report: Report, arguments: tuple[str, ...]) -> dict[str, SizeExpr]:
    """Find the dims that are declared by an argument, through others or directly."""
    symbols = report.symbols
    moving = set(arguments)
    declared = {
        symbols.of[info.dim.name]: info.declared
        for info in report.plan.program.dims
        if info.declared is not None and symbols.of[info.dim.name] not in moving
    }
    found: dict[str, SizeExpr] = {}
    for _ in declared:
        for symbol, expr in declared.items():
            if {symbols.of.get(name, name) for name in _names(expr)} & moving:
                moving.add(symbol)
                found[symbol] = expr
    return found


def _names(expr: SizeExpr) -> Iterator[str]:
    match expr:
        case Name(name):
            yield name
        case BinOp(_, left, right):
            yield from _names(left)
            yield from _names(right)
        case Number():
            return


def _size(expr: SizeExpr, known: Mapping[str, Any]) -> Any:
    """Compute a declared size over arrays; whole numbers go through exactly."""
    match expr:
        case Number(value):
            return number(value)
        case Name(name):
            return known.get(name)
        case BinOp(op, left, right):
            a, b = _size(left, known), _size(right, known)
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
                    return a / b
                case "**":
                    return a**b


class Evaluation:
    """One call: the values of names, and each power and product that has been computed."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values
        self.cache: dict[object, Any] = {}

    def power(self, name: str, power: int) -> Any:
        """Give a power of a name."""
        key = (name, power)
        if key not in self.cache:
            value = self.atom(name) if isinstance(name, Atom) else self.values[name]
            if power < 0:
                value = 1.0 / self.power(name, -power)
            elif power > 1:
                value = value**power
            self.cache[key] = value
        return self.cache[key]

    def atom(self, atom: Atom) -> Any:
        """Give a sum, a product rounded down, or the smaller of two."""
        values = [self.monomial(term) for term in atom.inside]
        match atom:
            case Floor():
                return np.floor(values[0])
            case Min():
                return np.minimum(values[0], values[1])
            case _:
                return sum(values)

    def monomial(self, monomial: Monomial) -> Any:
        """Give a product: numbers first, then the smaller arrays."""
        key = monomial.powers
        if key not in self.cache:
            factors = [self.power(name, power) for name, power in key]
            factors.sort(key=np.size)
            product: Any = 1.0
            for factor in factors:
                product = product * factor
            self.cache[key] = product
        return self.cache[key] * number(monomial.coefficient)

    def formula(self, formula: Formula) -> Any:
        """Give a formula's value."""
        if formula not in self.cache:
            self.cache[formula] = self._add(formula)
        return self.cache[formula]

    def _add(self, formula: Formula) -> Any:
        total: Any = 0.0
        for term in formula.terms:
            total = total + self.monomial(term)
        for options in formula.maxima:
            most = self.formula(options[0])
            for option in options[1:]:
                most = np.maximum(most, self.formula(option))
            total = total + most
        return total
