"""Memory of blocks with few layers: one formula for any number of layers, and where it is not exact.

What is kept of each layer is in proportion to their number, so that its formula holds for any. What is alive at
once is a maximum over moments, and some of them need two or three layers: the end of one and the beginning of
the next, or a first, a last and one between. For fewer layers the formula is then an upper bound, or, where a
single layer is first and last at once, it may be too low (`Exactness.low`). A part whose formula is not that of
the program's own few layers has the formula of that number alone.

Layers that gather ahead count as many: the last one gathers once more, for nobody.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product

from shardlang.cost.formula import Formula, Powers
from shardlang.cost.liveness import between, exceeds, peak
from shardlang.cost.memory import few_layers, Layers, memory, MemoryFormulas, SHOWN
from shardlang.ir.plan import Plan
from shardlang.ir.size import Monomial


@dataclass(frozen=True)
class Held:
    """The memory of a plan: its parts, the most that is alive at once, and which formulas hold for any layers.

    `alone` names the parts whose formula is that of the program's own number of layers alone.
    """

    parts: MemoryFormulas
    peak: Formula
    alone: frozenset[str] = frozenset()

    @property
    def formulas(self) -> dict[str, Formula]:
        """Each part by its name, the total and the peak."""
        return {**self.parts.parts, "peak": self.peak}


PARTS = ("activations", "gathered_peak")
"""The parts that may be a maximum over moments, besides `peak`."""


def held(plan: Plan, known: Mapping[str, Fraction], layers: Layers) -> Held:
    """Give the memory of a plan whose sizes are `known`, in its own names; `layers` are those of any number."""
    many = _held(plan, layers)
    few = few_layers(plan, known)
    if not few:
        return many
    own = _held(plan, Layers.of(plan, few))
    unlike = _unlike(plan, many, own, few)
    alone = frozenset(unlike.above | unlike.below)
    chosen = {name: getattr(own.parts, name) for name in alone.intersection(PARTS)}
    most = own.peak if "peak" in alone else many.peak
    return Held(replace(many.parts, **chosen), most, alone | ({"total"} if chosen else set()))


@dataclass(frozen=True)
class Exactness:
    """From how many layers on the parts are exact where that is not 1, and which of them may be too low for fewer.

    Those that are not `low` are upper bounds for fewer.
    """

    counts: Mapping[str, int]
    low: frozenset[str]


def exactness(plan: Plan) -> Exactness:
    """Give the number of layers from which on a formula is exact, of the parts where that is not 1.

    Of several blocks it is the most that any of them needs, whether the others have as few layers or many.
    """
    many = _held(plan, Layers.of(plan, {}))
    blocks = [block.number for block in plan.program.blocks]
    found, low = dict[str, int](), set[str]()
    for count in range(SHOWN - 1, 0, -1):
        each = {frozenset((number,)) for number in blocks} | {frozenset(blocks)}
        for own in each - {frozenset()}:
            few = few_layers(plan, None, dict.fromkeys(own, count))
            if few:
                unlike = _unlike(plan, many, _held(plan, Layers.of(plan, few)), few)
                for name in sorted(unlike.above | unlike.below):
                    found.setdefault(name, count + 1)
                low |= unlike.below
    parts = [found[name] for name in PARTS if name in found]
    if low.intersection(PARTS):
        low.add("total")
    return Exactness({**found, "total": max(parts)} if parts else found, frozenset(low))


def _held(plan: Plan, layers: Layers) -> Held:
    own = memory(plan, layers)
    return Held(own, peak(layers, own))


@dataclass(frozen=True)
class _Unlike:
    """The parts whose formula for any number of layers may be above that of a few, and below it."""

    above: set[str]
    below: set[str]


def _unlike(plan: Plan, many: Held, own: Held, few: Mapping[int, int]) -> _Unlike:
    """Name the parts whose formula for any number of layers is not that of these few."""
    counted = {
        block.dim.name: Monomial.of(block.dim.name) / block.layers * Fraction(few[block.number])
        for block in plan.program.blocks
        if block.number in few
    }
    own_parts, found = own.formulas, _Unlike(set(), set())
    for name, formula in many.formulas.items():
        if name not in (*PARTS, "peak"):
            continue
        of_few = list(_moments(own_parts[name].rewrite(counted)))
        of_any = list(_moments(formula.rewrite(counted)))
        if not all(_reached(moment, of_few) for moment in of_any):
            found.above.add(name)
        if not all(_reached(moment, of_any) for moment in of_few):
            found.below.add(name)
    return found


Moment = Mapping[Powers, Fraction]


def _moments(formula: Formula) -> Iterator[Moment]:
    """Give what a formula is the largest of: sums of products, each product with its number."""
    for options in product(*formula.maxima):
        whole = Formula.sum((Formula(formula.terms), *options))
        yield {term.powers: term.coefficient for term in whole.terms}


def _reached(moment: Moment, limits: list[Moment]) -> bool:
    """Say whether a moment takes no more than the largest of others, whatever the sizes are."""
    if any(exceeds(other, moment) for other in limits):
        return True
    return any(
        between(one, moment, other)
        for place, one in enumerate(limits)
        for other in limits[place + 1 :]
    )
