"""Formulas as expression graphs: equal nodes are one node, and what others share is computed once.

Numbers are folded, sums of products are factored (`B*(c + d/Y)/X`), and a division is a product
with a reciprocal, made once. Only inside `floor` there are true divisions, which are exact where the
result is whole. A cost that has other formulas where axes have size 1 is written piece by piece: what
is the same in all cases once, the rest under `where`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from heapq import heapify, heappop, heappush
from itertools import combinations
from math import inf

import numpy as np

from shardlang.cost.formula import Atom, Floor, Formula, Min
from shardlang.cost.graph import FEW, Graph, MANY, Node
from shardlang.ir.size import Monomial

Case = frozenset[str]
"""The axes that are larger than 1."""

PAIRED = 32
"""Sums of more operands are not searched for pairs, of which they have too many."""


def number(value: Fraction) -> float:
    """Give the nearest float, infinity for what is beyond."""
    try:
        return float(value)
    except OverflowError:
        return inf


class Builder:
    """Writes formulas as nodes; `bound` gives the node of each name that is no plain number."""

    def __init__(self) -> None:
        """Start with nothing."""
        self.nodes: list[Node] = []
        self.bound: dict[str, int] = {}
        self._places: dict[Node, int] = {}
        self._formulas: dict[Formula, int] = {}

    def add(self, node: Node) -> int:
        """Give the place of a node; equal nodes have one place."""
        place = self._places.setdefault(node, len(self.nodes))
        if place == len(self.nodes):
            self.nodes.append(node)
        return place

    def number(self, value: float) -> int:
        """Give a number."""
        return self.add(Node("number", numbers=(value,)))

    def value(self, place: int) -> float | None:
        """Give the number that a node is, None where it is none."""
        node = self.nodes[place]
        return node.numbers[0] if node.op == "number" else None

    def input(self, name: str, low: float = -inf, high: float = inf) -> int:
        """Give an argument, which has to lie between two numbers."""
        self.bound[name] = self.add(Node("input", (), name, (low, high)))
        return self.bound[name]

    def check(self, name: str, place: int, low: float, high: float) -> int:
        """Give a value that has to lie between two numbers, under a name."""
        self.bound[name] = self.add(Node("check", (place,), name, (low, high)))
        return self.bound[name]

    def few(self, op: str, *args: int) -> int:
        """Give an operation of a fixed number of operands; of numbers at once."""
        values = [self.value(arg) for arg in args]
        known = [value for value in values if value is not None]
        if op in FEW and len(known) == len(args) and op != ">":
            return self.number(float(FEW[op][1](*(np.float64(value) for value in known))))
        return self.add(Node(op, args))

    def many(self, op: str, args: Iterable[int], neutral: float | None = None) -> int:
        """Give a sum, product, maximum or minimum: flat, with one number at most."""
        found: list[int] = []
        held = neutral
        for arg in args:
            node = self.nodes[arg]
            for inner in node.args if node.op == op else (arg,):
                value = self.value(inner)
                if value is None:
                    found.append(inner)
                else:
                    held = value if held is None else float(MANY[op](held, value))
        if op in ("max", "min"):
            found = list(dict.fromkeys(found))
        if op == "*" and held == 0:
            return self.number(0.0)
        if held is not None and (held != neutral or not found):
            found.append(self.number(held))
        return found[0] if len(found) == 1 else self.add(Node(op, tuple(sorted(found))))

    def sum(self, args: Iterable[int]) -> int:
        """Add up."""
        return self.many("+", args, 0.0)

    def product(self, args: Iterable[int]) -> int:
        """Multiply."""
        return self.many("*", args, 1.0)

    def largest(self, args: Iterable[int]) -> int:
        """Give the largest of at least one."""
        return self.many("max", args)

    def select(self, axis: str, many: int, one: int) -> int:
        """Choose by whether an axis is larger than 1."""
        if many == one:
            return many
        chosen = (("many", many), ("one", one))
        return self.sum(
            [
                self.add(Node("where", (self.add(Node(op, (self.bound[axis],))), value)))
                for op, value in chosen
                if self.value(value) != 0
            ]
        )

    def base(self, name: str) -> int:
        """Give a name or an atom."""
        if not isinstance(name, Atom):
            return self.bound[name]
        match name:
            case Floor():
                return self.few("floor", self.quotient(name.inside[0]))
            case Min():
                return self.many("min", map(self.monomial, name.inside))
            case _:
                return self.terms(name.inside)

    def power(self, name: str, exponent: int) -> int:
        """Give a whole power: of the reciprocal, where it is below 0."""
        base = self.base(name)
        if exponent < 0:
            base = self.few("inverse", base)
        return self.product([base] * abs(exponent))

    def monomial(self, term: Monomial) -> int:
        """Give a product."""
        factors = [self.power(name, exponent) for name, exponent in term.powers]
        return self.product([self.number(number(term.coefficient)), *factors])

    def quotient(self, term: Monomial) -> int:
        """Give a product by one division: exact where it is a whole number, so that floors are right."""
        top = Monomial(
            Fraction(term.coefficient.numerator), tuple((n, p) for n, p in term.powers if p > 0)
        )
        bottom = Monomial(
            Fraction(term.coefficient.denominator), tuple((n, -p) for n, p in term.powers if p < 0)
        )
        if bottom == Monomial():
            return self.monomial(top)
        return self.few("/", self.monomial(top), self.monomial(bottom))

    def terms(self, terms: Iterable[Monomial]) -> int:
        """Give a sum of products, what most of them share taken out again and again."""
        left = list(terms)
        sizes = {abs(term.coefficient) for term in left}
        if len(left) > 1 and len(sizes) == 1 and sizes != {1}:
            # `c - c/n` as `c*(1 - 1/n)`, which others have as well
            alone = self.terms(Monomial(t.coefficient / abs(t.coefficient), t.powers) for t in left)
            return self.product([self.number(number(sizes.pop())), alone])
        parts: list[int] = []
        while len(left) > 1:
            shared = Counter((n, 1 if p > 0 else -1) for term in left for n, p in term.powers)
            (name, sign), times = max(
                shared.items(), key=lambda item: (item[1], item[0]), default=(("", 1), 0)
            )
            if times < 2:
                break
            powers = [sign * dict(term.powers).get(name, 0) for term in left]
            least = min(power for power in powers if power > 0)
            factor = Monomial(Fraction(1), ((name, sign * least),))
            inside = [term / factor for term, p in zip(left, powers, strict=True) if p > 0]
            parts.append(self.product([self.power(name, sign * least), self.terms(inside)]))
            left = [term for term, p in zip(left, powers, strict=True) if p <= 0]
        return self.sum([*parts, *map(self.monomial, left)])

    def formula(self, formula: Formula) -> int:
        """Give a formula."""
        if formula not in self._formulas:
            maxima = (self.largest(map(self.formula, options)) for options in formula.maxima)
            self._formulas[formula] = self.sum([self.terms(formula.terms), *maxima])
        return self._formulas[formula]

    def piecewise(self, axes: Sequence[str], cases: Mapping[Case, Formula]) -> int:
        """Give a cost, no less than zero, that has a formula for each set of axes larger than 1.

        `cases` has all subsets of `axes`. What several formulas have in common is computed once.
        """
        alike = next(iter(cases.values()))
        if all(formula == alike for formula in cases.values()):
            return self.formula(alike)
        options = {case: _options(formula) for case, formula in cases.items()}
        common = [each for each in _options(alike) if all(each in o for o in options.values())]
        if common:
            rest = {
                case: _largest([each for each in own if each not in common])
                for case, own in options.items()
            }
            return self.largest([*map(self.formula, common), self.piecewise(axes, rest)])
        views = (
            (self.sum, _summed(axes, cases), Formula.sum),
            (self.largest, _by_case(options), _largest),
        )
        join, found, inside = min(views, key=lambda view: len(view[1]))
        zero = self.number(0.0)
        return join(
            [
                self._where(axes, frozenset(), where, self.formula(inside(pieces)), zero)
                for where, pieces in found.items()
            ]
        )

    def _where(
        self, axes: Sequence[str], case: Case, where: frozenset[Case], value: int, zero: int
    ) -> int:
        """Give a value in some cases, zero in the others, by the axes left."""
        if not axes:
            return value if case in where else zero
        many = self._where(axes[1:], case | {axes[0]}, where, value, zero)
        return self.select(axes[0], many, self._where(axes[1:], case, where, value, zero))

    def graph(self, outputs: Sequence[int], checked: Sequence[int] = ()) -> Graph:
        """Give what the outputs need, and what has to be checked all the same."""
        return _needed(_shared(self.nodes, outputs), outputs, checked)


def _options(formula: Formula) -> tuple[Formula, ...]:
    """List what a formula is the largest of; zero is the largest of nothing."""
    if not formula.terms and len(formula.maxima) == 1:
        return formula.maxima[0]
    return (formula,) if formula else ()


def _largest(options: Sequence[Formula]) -> Formula:
    if len(options) > 1:
        return Formula(maxima=(tuple(options),))
    return options[0] if options else Formula()


def _by_case(pieces: Mapping[Case, Iterable[Formula]]) -> dict[frozenset[Case], list[Formula]]:
    """Sort pieces by the cases in which they count."""
    found: dict[Formula, set[Case]] = {}
    for case, own in pieces.items():
        for piece in own:
            found.setdefault(piece, set()).add(case)
    sorted_: dict[frozenset[Case], list[Formula]] = {}
    for piece, where in found.items():
        sorted_.setdefault(frozenset(where), []).append(piece)
    return sorted_


def _summed(
    axes: Sequence[str], cases: Mapping[Case, Formula]
) -> dict[frozenset[Case], list[Formula]]:
    """Sort what is added up by the cases in which it counts.

    A product's coefficient in each case is taken apart into what is added for each set of axes that are
    all larger than 1 (a Möbius inversion), so that what depends on one axis is added for that axis alone.
    Nothing is added to be taken off again, which would cost digits: then each product stands in its cases.
    """
    maxima = {
        case: [Formula(maxima=(o,) * n) for o, n in Counter(formula.maxima).items()]
        for case, formula in cases.items()
    }
    found = _by_case(maxima)
    ordered = sorted(cases, key=len)
    held = {case: {t.powers: t.coefficient for t in cases[case].terms} for case in ordered}
    for axis in axes:
        for case in ordered[::-1]:
            if axis in case:
                for powers, coefficient in held[case - {axis}].items():
                    held[case][powers] = held[case].get(powers, Fraction(0)) - coefficient
    own = {(case, t.powers): t.coefficient for case in ordered for t in cases[case].terms}
    if any(
        coefficient * own.get((case, powers), Fraction(0)) < 0
        or (coefficient and (case, powers) not in own)
        for case in ordered
        for powers, coefficient in held[case].items()
    ):
        return _by_case({c: [*maxima[c], *map(Formula.of, cases[c].terms)] for c in cases})
    for case in ordered:
        terms = [Monomial(coefficient, powers) for powers, coefficient in held[case].items()]
        if any(term.coefficient for term in terms):
            where = frozenset(other for other in cases if case <= other)
            found.setdefault(where, []).append(Formula.of(*terms))
    return found


def _shared(nodes: Sequence[Node], outputs: Sequence[int]) -> list[Node]:
    """Compute the pairs that stand in several sums (or products, or maxima) once, the commonest first."""
    found = list(nodes)
    users: dict[tuple[str, int, int], set[int]] = {}

    def pairs(place: int) -> Iterator[tuple[str, int, int]]:
        node = found[place]
        if node.op in MANY and len(node.args) <= PAIRED:
            for left, right in combinations(node.args, 2):
                yield node.op, left, right

    for place in _reached(nodes, outputs):
        for pair in pairs(place):
            users.setdefault(pair, set()).add(place)
    waiting = [(-len(places), pair) for pair, places in users.items() if len(places) > 1]
    heapify(waiting)
    while waiting:
        times, pair = heappop(waiting)
        places = users.get(pair, set())
        if len(places) < 2:
            continue
        if len(places) != -times:
            heappush(waiting, (-len(places), pair))
            continue
        op, left, right = pair
        new = next((p for p in places if len(found[p].args) == 2), len(found))
        if new == len(found):
            found.append(Node(op, (left, right)))
        for place in places - {new}:
            for old in set(pairs(place)):
                users[old].discard(place)
            args = list(found[place].args)
            args.remove(left)
            args.remove(right)
            found[place] = Node(op, tuple(sorted((*args, new))))
            for fresh in set(pairs(place)):
                users.setdefault(fresh, set()).add(place)
                if len(users[fresh]) > 1:
                    heappush(waiting, (-len(users[fresh]), fresh))
        users[pair].intersection_update({new})
    return found


def _reached(nodes: Sequence[Node], outputs: Iterable[int]) -> set[int]:
    """List what the outputs need."""
    reached: set[int] = set()
    waiting = list(outputs)
    while waiting:
        place = waiting.pop()
        if place not in reached:
            reached.add(place)
            waiting.extend(nodes[place].args)
    return reached


def _needed(nodes: Sequence[Node], outputs: Sequence[int], checked: Sequence[int]) -> Graph:
    """Put the nodes that the outputs need in order, operands first."""
    places: dict[int, int] = {}
    ordered: list[Node] = []
    waiting = [*outputs, *checked]
    while waiting:
        place = waiting[-1]
        node = nodes[place]
        open_ = [arg for arg in node.args if arg not in places]
        if place in places or not open_:
            waiting.pop()
            if place not in places:
                places[place] = len(ordered)
                moved = tuple(places[arg] for arg in node.args)
                ordered.append(Node(node.op, moved, node.name, node.numbers))
        else:
            waiting.extend(open_)
    return Graph(tuple(ordered), tuple(places[output] for output in outputs))


def graph_of(formulas: Iterable[Formula], constants: Mapping[str, Fraction]) -> Graph:
    """Write formulas down; names that are no constants are inputs of any value."""
    builder = Builder()
    listed = list(formulas)
    for name in sorted(frozenset[str]().union(*(formula.names for formula in listed))):
        if name in constants:
            builder.bound[name] = builder.number(number(constants[name]))
        else:
            builder.input(name)
    return builder.graph([builder.formula(formula) for formula in listed])
