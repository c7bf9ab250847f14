"""Memory of blocks with few layers: one formula for any number of layers, and where it is not exact.

What is kept of each layer is in proportion to their number, so that its formula holds for any. What is alive at
once is a maximum over moments, and some of them need two or three layers: the end of one and the beginning of
the next, or a first, a last and one between. For fewer layers the formula is then an upper bound. A part whose
formula is larger than what the program's own few layers take has the formula of that number alone.

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
    alone = frozenset(_too_large(plan, many, own, few))
    chosen = {name: getattr(own.parts, name) for name in alone.intersection(PARTS)}
    most = own.peak if "peak" in alone else many.peak
    return Held(replace(many.parts, **chosen), most, alone | ({"total"} if chosen else set()))


def exact_from(plan: Plan) -> dict[str, int]:
    """Give the number of layers from which on a formula is exact, of the parts where that is not 1.

    Of several blocks it is the most that any of them needs, whether the others have as few layers or many.
    """
    many = _held(plan, Layers.of(plan, {}))
    blocks = [block.number for block in plan.program.blocks]
    found: dict[str, int] = {}
    for count in range(SHOWN - 1, 0, -1):
        each = {frozenset((number,)) for number in blocks} | {frozenset(blocks)}
        for own in each - {frozenset()}:
            few = few_layers(plan, None, dict.fromkeys(own, count))
            if few:
                for name in _too_large(plan, many, _held(plan, Layers.of(plan, few)), few):
                    found.setdefault(name, count + 1)
    parts = [found[name] for name in PARTS if name in found]
    return {**found, "total": max(parts)} if parts else found


def _held(plan: Plan, layers: Layers) -> Held:
    own = memory(plan, layers)
    return Held(own, peak(layers, own))


def _too_large(plan: Plan, many: Held, own: Held, few: Mapping[int, int]) -> Iterator[str]:
    """Name the parts whose formula for any number of layers is not that of these few."""
    counted = {
        block.dim.name: Monomial.of(block.dim.name) / block.layers * Fraction(few[block.number])
        for block in plan.program.blocks
        if block.number in few
    }
    own_parts = own.formulas
    for name, formula in many.formulas.items():
        if name not in (*PARTS, "peak"):
            continue
        limits = list(_moments(own_parts[name].rewrite(counted)))
        if not all(_reached(moment, limits) for moment in _moments(formula.rewrite(counted))):
            yield name


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
