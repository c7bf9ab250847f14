"""Compiled reports: a report's quantities as one numpy function over arrays, for planners.

The outputs are the report's own formulas, in one expression graph (`shardlang.cost.graph`). Where an
axis that is varied has size 1, they are those of the report priced without it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, combinations
from math import nextafter
from typing import Any, TYPE_CHECKING

import numpy as np

from shardlang.cost.builder import Builder, Case, number
from shardlang.cost.formula import Formula
from shardlang.cost.graph import Graph, OutOfRangeError
from shardlang.cost.models import LATENCIES
from shardlang.ir.size import BinOp, Name, names_in, Number, SizeExpr

if TYPE_CHECKING:
    from shardlang.cost.report import Report
    from shardlang.cost.symbols import Symbols

FORMAT = "shardlang compiled report 1"
LARGEST = sys.float_info.max
SMALLEST = nextafter(0.0, 1.0)


def _no_symbol(name: str, symbols: Symbols) -> str:
    """Say what there is in place of a name that nothing has."""
    groups = {
        words: [symbol for symbol, kind in symbols.kinds.items() if kind == each]
        for each, words in (("dim", "dims"), ("axis", "axes"), ("hardware", "hardware figures"))
    }
    listed = "; ".join(f"{words} {', '.join(found)}" for words, found in groups.items() if found)
    return f"this report has no dim, axis or hardware figure {name!r}; it has {listed}"


class Outputs(tuple[Any, ...]):  # noqa: SLOT001  (a tuple's subclass can't have slots with names)
    """The arrays that a compiled report gives, in order; also by name: `out["t_comms"]`."""

    names: tuple[str, ...]

    @staticmethod
    def of(names: tuple[str, ...], arrays: list[Any]) -> Outputs:
        """Name arrays."""
        found = Outputs(arrays)
        found.names = names
        return found

    def __getitem__(self, key: Any) -> Any:
        """Give an array by its place or its name."""
        return super().__getitem__(self.names.index(key) if isinstance(key, str) else key)

    def items(self) -> Iterator[tuple[str, Any]]:
        """Go through the arrays with their names, in order."""
        return zip(self.names, self, strict=True)


@dataclass(frozen=True)
class Compiled:
    """A numpy function of the named symbols, in their order or by keyword.

    It gives one array an output, all of the shape that the arguments broadcast to, in float64:
    seconds, bytes, FLOPs of both passes, and `memory`, the total in bytes. An output may name a pass
    (`forward.t_comms`) or a part of memory (`memory.activations`); `compute_bound` says where T_math
    is larger than T_comms. Each number is what a report priced at these sizes says, so that over an
    axis of size 1 nothing moves. A dim that is declared by others (`F=4*D`) follows them.

    Dims and axes have to be at least 1, and finite; they need not be whole. Hardware figures have to
    be positive, latencies at least 0. An axis whose size is 1 in the report itself has no collectives
    left: to be named, it has to stay 1. So has one that is laid on a slice to keep its size. Anything
    else is a ValueError that names the argument, its value and its place. Figures beyond 1.8e308 are
    infinite, or an error where nothing can be said.

    It needs nothing of the program: it can be pickled, and written to JSON and read again. Calls
    share nothing, so that threads may call at once; large ones use all cores. Beside the outputs a
    call takes some hundred KiB a core, and what depends on few of the arguments.
    """

    names: tuple[str, ...]
    outputs: tuple[str, ...]
    graph: Graph
    own: Mapping[str, str] = field(default_factory=dict[str, str])
    ones: tuple[str, ...] = ()
    fixed: tuple[str, ...] = ()

    @staticmethod
    def of(report: Report, names: tuple[str, ...], outputs: tuple[str, ...]) -> Compiled:
        """Compile a report; raises ValueError for a name or an output that it does not have."""
        symbols = report.symbols
        arguments = tuple(symbols.of.get(name, name) for name in names)
        for name, symbol in zip(names, arguments, strict=True):
            if symbol not in symbols.kinds:
                raise ValueError(_no_symbol(name, symbols))
            if arguments.count(symbol) > 1:
                raise ValueError(f"{name} is named twice")
        compiler = _Compiler(report, arguments, outputs)
        return Compiled(
            names=arguments,
            outputs=outputs,
            graph=compiler.graph(),
            own={symbol: name for name, symbol in symbols.of.items()},
            ones=compiler.ones,
            fixed=tuple(symbol for symbol in arguments if symbol in report.fixed),
        )

    def __call__(self, *arrays: Any, **named: Any) -> Outputs:
        """Evaluate over arrays."""
        given = dict(zip(self.names, arrays, strict=False))
        twice = set(given) & set(named)
        given.update(named)
        if len(arrays) > len(self.names) or set(given) != set(self.names) or twice:
            raise TypeError(f"expected {', '.join(self.names)}")
        values = {name: self._array(name, value) for name, value in given.items()}
        try:
            return Outputs.of(self.outputs, self.graph(values))
        except OutOfRangeError as error:
            raise ValueError(self._mistake(error, values.get(error.name))) from error
        except FloatingPointError as error:
            raise ValueError("the sizes are too large: some figures are beyond 1.8e308") from error

    def _array(self, name: str, value: Any) -> Any:
        array = np.asarray(value)
        if array.dtype.kind in "iuf":
            return array
        try:
            if array.dtype.kind == "O":
                return array.astype(np.float64)  # whole numbers beyond 64 bits, fractions
        except (TypeError, ValueError, OverflowError):
            pass
        raise TypeError(f"{self.own.get(name, name)} has to be numbers, not {array.dtype}")

    def _mistake(self, error: OutOfRangeError, array: Any) -> str:
        """Say what is wrong with a value, and where it stands."""
        name = self.own.get(error.name, error.name)
        low, high = error.low, error.high
        if error.name in self.ones:
            return (
                f"the axis {name} has size 1 in this report, which has no collectives"
                f" over it: to vary {name}, lower the program with another size of it,"
                " or with none"
            )
        if error.name in self.fixed:
            return (
                f"the axis {name} has size {low:g} in this report, which lays it on a"
                f" slice: to vary {name}, leave out the slice's shape, or price each size"
                " on its own"
            )
        what = f"{name} has to be " + ("larger than 0" if low == SMALLEST else f"at least {low:g}")
        if error.value > high:
            what = f"{name} has to be " + ("finite" if high == LARGEST else f"at most {high:g}")
        place = ""
        if array is not None and array.ndim:
            with np.errstate(invalid="ignore"):
                wrong = ~((array >= low) & (array <= high))
            place = f" at {', '.join(map(str, np.argwhere(wrong)[0]))}"
            error.value = float(array[wrong][0])
        elif array is None:
            place = ", which follows from other dims"
        return f"{what}: it is {error.value:g}{place}"

    def to_dict(self) -> dict[str, Any]:
        """Give the function as JSON has it."""
        return {
            "format": FORMAT,
            "names": list(self.names),
            "outputs": list(self.outputs),
            "own": dict(self.own),
            "ones": list(self.ones),
            "fixed": list(self.fixed),
            "graph": self.graph.to_dict(),
        }

    def to_json(self) -> str:
        """Give the function as JSON text."""
        return json.dumps(self.to_dict(), ensure_ascii=False)

    @staticmethod
    def from_dict(data: Any) -> Compiled:
        """Read what `to_dict` gave; raises ValueError for anything else."""
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise ValueError(f"this is no compiled report: its format is not {FORMAT!r}")
        graph = Graph.from_dict(data.get("graph", {}))
        lists = [
            tuple(map(str, data.get(key, ()))) for key in ("names", "outputs", "ones", "fixed")
        ]
        names, outputs, ones, fixed = lists
        used = {node.name for node in graph.nodes if node.op == "input"}
        if len(outputs) != len(graph.outputs) or not used <= set(names):
            raise ValueError("this is no compiled report: its names are not those of its graph")
        own = {str(symbol): str(name) for symbol, name in data.get("own", {}).items()}
        return Compiled(names, outputs, graph, own, ones, fixed)

    @staticmethod
    def from_json(text: str) -> Compiled:
        """Read what `to_json` gave; raises ValueError for anything else."""
        return Compiled.from_dict(json.loads(text))


class _Compiler:
    """Writes the outputs of one report as a graph."""

    def __init__(
        self, report: Report, arguments: tuple[str, ...], outputs: tuple[str, ...]
    ) -> None:
        self.report = report
        self.arguments = arguments
        self.outputs = outputs
        self.kinds = report.symbols.kinds
        self.derived = _derived(report, arguments)
        free = {*arguments, *self.derived}
        self.known = {s: v for s, v in report.known.items() if s not in free}
        axes = [symbol for symbol in arguments if self.kinds[symbol] == "axis"]
        self.ones = tuple(axis for axis in axes if report.known.get(axis) == 1)
        moving = {report.symbols.of[a] for cost in report.collectives for a in cost.axes}
        fixed = {*report.fixed, *self.ones}
        self.axes = [axis for axis in axes if axis in moving and axis not in fixed]
        self.cases: dict[Case, Report] = {}
        self.builder = Builder()

    def graph(self) -> Graph:
        """Write everything."""
        needed = [(output, self._formulas(output)) for output in self.outputs]
        names = {
            name
            for _, parts in needed
            for cases in parts
            for formula in cases.values()
            for name in formula.names
        }
        lacking = sorted(names - set(self.arguments) - set(self.known) - set(self.derived))
        if lacking:
            raise ValueError(f"no value is known for {', '.join(lacking)}: name it, or set it")
        for symbol in self.arguments:
            self.builder.input(symbol, *self._bounds(symbol))
        for symbol, value in self.known.items():
            self.builder.bound[symbol] = self.builder.number(number(value))
        self._follow()
        places: list[int] = []
        for _, parts in needed:
            found = [self._place(cases) for cases in parts]
            places.append(found[0] if len(found) == 1 else self.builder.few(">", *found))
        # inputs that no output needs are checked all the same
        return self.builder.graph(places, [self.builder.bound[name] for name in self.arguments])

    def _bounds(self, symbol: str) -> tuple[float, float]:
        """Give the least and the most that an argument may be."""
        if symbol in self.ones or symbol in self.report.fixed:
            size = number(self.report.known[symbol])
            return size, size
        if self.kinds[symbol] != "hardware":
            return 1.0, LARGEST
        if symbol in self.report.symbols.efficiencies:
            return SMALLEST, 1.0
        latencies = {self.report.symbols.figures.get(figure) for figure in LATENCIES}
        return (0.0 if symbol in latencies else SMALLEST), LARGEST

    def _place(self, cases: Mapping[Case, Formula]) -> int:
        substituted = {case: formula.substitute(self.known) for case, formula in cases.items()}
        return self.builder.piecewise(self.axes, substituted)

    def _formulas(self, output: str) -> list[Mapping[Case, Formula]]:
        """Give what an output is, by which axes are larger than 1; two for a condition."""
        part, _, key = output.rpartition(".")
        if output == "memory" or part == "memory":
            key = "total" if output == "memory" else key
            if key in self.report.memory.quantities:
                return [
                    {
                        case: report.memory.quantity(key).formula
                        for case, report in self._reports().items()
                    }
                ]
            raise ValueError(f"no output is called {output!r}: {self._listed()}")
        pass_ = part or "total"
        keys = ("t_math", "t_comms") if key == "compute_bound" else (key,)
        if pass_ not in self.report.totals or keys[0] not in self.report.totals[pass_].quantities:
            raise ValueError(f"no output is called {output!r}: {self._listed()}")
        return [
            {
                case: report.totals[pass_].quantity(key).formula
                for case, report in self._reports().items()
            }
            for key in keys
        ]

    def _listed(self) -> str:
        memory = (f"memory.{key}" for key in self.report.memory.quantities)
        totals = self.report.total.quantities
        return ", ".join((*totals, "compute_bound", "memory", *memory))

    def _reports(self) -> Mapping[Case, Report]:
        """Price the program for each set of axes larger than 1."""
        if not self.cases:
            every = frozenset(self.axes)
            sizes = range(len(self.axes) + 1)
            for single in chain.from_iterable(combinations(self.axes, n) for n in sizes):
                left = every.difference(single)
                found = self.report
                if single and self.report.again is not None:
                    found = self.report.again(single=frozenset(single))
                self.cases[left] = found
        return self.cases

    def _follow(self) -> None:
        """Write the dims that follow others, those first that they follow."""
        left = dict(self.derived)
        own = self.report.symbols.of
        while left:
            ready = [
                s for s, e in left.items() if not {own.get(n, n) for n in names_in(e)} & set(left)
            ]
            for symbol in ready or list(left):
                place = self._size(left.pop(symbol), own)
                self.builder.bound[symbol] = self.builder.check(symbol, place, 1.0, LARGEST)

    def _size(self, expr: SizeExpr, own: Mapping[str, str]) -> int:
        """Write a declared size."""
        builder = self.builder
        match expr:
            case Number(value):
                return builder.number(number(value))
            case Name(name):
                return builder.bound[own.get(name, name)]
            case BinOp(op, left, right):
                a, b = self._size(left, own), self._size(right, own)
                match op:
                    case "+":
                        return builder.sum([a, b])
                    case "-":
                        return builder.sum([a, builder.product([builder.number(-1.0), b])])
                    case "*":
                        return builder.product([a, b])
                    case "/" | "**":
                        return builder.few(op, a, b)


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
            if {symbols.of.get(name, name) for name in names_in(expr)} & moving:
                moving.add(symbol)
                found[symbol] = expr
    return found
