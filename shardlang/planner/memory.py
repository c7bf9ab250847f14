"""Plans that fit: the best one found whose peak of memory a device has room for.

The peak is `total` of `cost.memory`, the figure that `cost` reports. It is no sum over operations and
values, so that the search can't bound it; the best plan without a limit is the answer where it fits,
and its bound stays a bound. Else plans are looked for that hold less:

- of every plan found, those that make copies of some parameters again (all sets of a few parameters,
  else those dropped first that hold most for what they save moving);
- the best plans in which no copies are kept, or those alone that are asked for, and the best with each
  set of a few;
- the best plans with a price on every byte that an operation reads or makes, from a price so high
  that memory alone counts down to the least with which something fits.

The book's plans count as well. Of all that fit the best is the answer; where none does, that is an
error which says what the leanest takes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import combinations, product
from math import prod
from time import monotonic

from shardlang.cost.memory import kept_for_backward, memory, MemoryFormulas, Storage
from shardlang.diagnostics import ShardlangError
from shardlang.ir.plan import Fit, Plan, Step
from shardlang.ir.size import Monomial
from shardlang.ir.types import Array
from shardlang.passes.keep import kept_copies, regathered
from shardlang.planner.errors import placed, SizesNeeded, TooMuchMemory, wrong
from shardlang.planner.overlap import MATH, weighted
from shardlang.planner.prices import Moved, Prices
from shardlang.planner.solve import Aim, solve, Task

SUBSETS = 5
"""Of so many parameters every set is tried on the same ways."""

SEARCHED = 3
"""Of so many parameters there is a search for every set."""

LOW, STEEP = -10, (12, 6, 2)
"""Prices of a byte held, against one that is moved, as powers of 2: at the first of the steep ones little
else counts. The sum that is priced is not the peak, so that less of it can take more at the peak."""

SHOWN = 3
"""How many arrays an error lists."""


def peak(plan: Plan) -> Fraction:
    """Give the bytes that a device needs at most, as `cost` reports them.

    Raises `ShardlangError` where a size is missing (SH351).
    """
    total = memory(plan).total
    known = {name: Fraction(size) for name, size in plan.program.sizes.known.items()}
    found = total.value(known)
    if found is None:
        names = tuple(sorted(total.names - set(known)))
        raise wrong(SizesNeeded(names, "the memory that is needed"))
    return found


def fitting(plan: Plan, limit: Fraction | float) -> Plan:
    """Give a plan that takes no more than a limit; raises `ShardlangError` where it does (SH357)."""
    try:
        taken = peak(plan)
        if taken > limit:
            raise wrong(_too_much(plan, taken, Fraction(limit)))
    except ShardlangError as error:
        raise placed(error, plan.program) from None
    return plan


def plan_within(task: Task, aim: Aim, free: Plan, limit: Fraction, *, budget: float) -> Plan:
    """Find the best plan that fits; `free` is the best without a limit. Raises `ShardlangError`.

    A plan without a proof is what the rules alone can make: it fits, or there is none.
    """
    if free.proof is None:
        return fitting(free, limit)
    pool = _Pool(task, aim, limit, free.proof.bound, monotonic() + budget)
    if not pool.offer(free):
        _look(pool, free)
    if pool.best is None:
        raise wrong(replace(_too_much(pool.leanest, pool.least, limit), late=pool.late))
    best, (cost, *_) = pool.best, aim.of(pool.best)
    proof = replace(
        free.proof, cost=cost, bound=min(free.proof.bound, cost), fit=Fit(limit, peak(best))
    )
    return replace(best, strategy="optimal", warnings=(), proof=proof)


class _Pool:
    """The plans found: the best of those that fit, and the one that takes least."""

    def __init__(self, task: Task, aim: Aim, limit: Fraction, bound: Fraction, end: float) -> None:
        """Begin with none; no plan comes to less than `bound`, and at `end` time is over."""
        self.task, self.aim, self.limit, self.bound, self.end = task, aim, limit, bound, end
        self.best: Plan | None = None
        self.key: tuple[Fraction, ...] = ()
        self._peaks: dict[tuple[int, int], tuple[Plan, Fraction]] = {}
        self._spread: dict[tuple[tuple[Step, ...], ...], bool] = {}
        self.leanest: Plan = task.books[-1]
        self.least = self.peak(self.leanest)

    @property
    def late(self) -> bool:
        """Whether time is over."""
        return monotonic() > self.end

    def peak(self, plan: Plan) -> Fraction:
        """Give the bytes that a plan needs at most; of the same steps it is worked out once."""
        key = id(plan.forward), id(plan.backward)  # of plans that are kept here
        if key not in self._peaks:
            self._peaks[key] = plan, peak(plan)
        return self._peaks[key][1]

    @property
    def done(self) -> bool:
        """Whether no plan can be better than the best."""
        return self.best is not None and self.key[0] <= self.bound

    def offer(self, plan: Plan) -> bool:
        """Take note of a plan; say whether it fits."""
        taken = self.peak(plan)
        if taken < self.least:
            self.leanest, self.least = plan, taken
        if taken > self.limit:
            return False
        key = self.aim.of(plan)
        if self.best is None or key < self.key:
            self.best, self.key = plan, key
        return True

    def spread(self, plan: Plan) -> bool:
        """Take note of a plan and of those that keep fewer copies; say whether one of them fits.

        Plans of the same steps are looked at once. When time is over it is the plan alone and, if
        nothing has fitted yet, the one that keeps no copies.
        """
        steps = plan.forward, plan.backward, plan.update
        if steps not in self._spread:
            self._spread[steps] = self._offered(plan)
        return self._spread[steps]

    def _offered(self, plan: Plan) -> bool:
        found = self.offer(plan)
        if not self.late:
            for each in self.thriftier(plan):
                found |= self.offer(each)
                if self.late:
                    break
        if self.late and self.best is None:
            held = {
                each.leaf.name for each in kept_copies(plan.program, plan.forward, plan.backward)
            }
            found |= self.offer(regathered(plan, sorted(held - self.task.must)))
        return found

    def thriftier(self, plan: Plan) -> Iterator[Plan]:
        """Go through plans on the same ways that make copies of parameters again."""
        sizes = plan.program.sizes.known
        worth: dict[str, Fraction] = {}
        for kept in kept_copies(plan.program, plan.forward, plan.backward):
            if kept.leaf.name not in self.task.must:
                every = (copy.local_bytes * kept.times for copy in kept.copies)
                held = [size.evaluate(sizes).number or 0 for size in every]
                saved = self.aim.of(regathered(plan, [kept.leaf.name]))[0] - self.aim.of(plan)[0]
                worth[kept.leaf.name] = Fraction(saved) / (sum(held) or 1)
        names = sorted(worth, key=lambda name: (worth[name], name))
        if len(names) <= SUBSETS:
            for many in range(1, len(names) + 1):
                for chosen in combinations(names, many):
                    yield regathered(plan, chosen)
            return
        dropped: list[str] = []
        for name in names:
            dropped.append(name)
            fewer = regathered(plan, dropped)
            yield fewer
            if self.peak(fewer) <= self.limit:
                break
        for name in reversed(dropped[:-1]):  # what the last one has made room for is kept again
            fewer = regathered(plan, [each for each in dropped if each != name])
            if self.peak(fewer) <= self.limit:
                dropped.remove(name)
                yield fewer


@dataclass(frozen=True)
class _Question:
    """What a search is to make least, and whose copies may be kept in it.

    With `in_place` layers hand values on where the book plan does: each layer keeps what it is handed.
    """

    prices: Prices
    rate: Fraction | None
    kept: frozenset[str]
    in_place: bool

    def ask(self, pool: _Pool, lean: Fraction, end: float) -> bool:
        """Search, with a price for each byte held, in half of the time that is left."""
        budget = max(end - monotonic(), 0.0) / 2
        plan = solve(
            pool.task,
            self.prices,
            rate=self.rate,
            budget=budget,
            kept=self.kept,
            lean=lean,
            in_place=self.in_place,
        )
        return pool.spread(plan)


def _look(pool: _Pool, free: Plan) -> None:
    """Fill the pool until time is over, the best is known, or there is nothing more to try."""
    task, sums, end = pool.task, _sums(pool.aim), pool.end
    for plan in (free, *task.books):
        pool.spread(plan)
    places = (False, True) if free.program.blocks else (False,)
    questions = [
        _Question(*each, kept, in_place)
        for kept in dict.fromkeys((task.must, task.may))
        for each in sums
        for in_place in places
    ]
    for number, question in enumerate(questions):
        share = monotonic() + max(end - monotonic(), 0.0) / (len(questions) - number)
        if not pool.done and not pool.late:
            _price_memory(pool, question, share)
    held = kept_copies(free.program, free.forward, free.backward)
    names = sorted({each.leaf.name for each in held} - task.must)
    for many in range(1, len(names) if len(names) <= SEARCHED else 0):
        for chosen in combinations(names, many):
            for each, in_place in product(sums, reversed(places)):
                if not pool.late and not pool.done:
                    question = _Question(*each, task.must.union(chosen), in_place)
                    question.ask(pool, Fraction(0), end)


def _sums(aim: Aim) -> list[tuple[Prices, Fraction | None]]:
    """List the sums that stand for an objective in a search."""
    match aim.objective:
        case "bytes":
            return [(aim.prices, None)]
        case "serial":
            return [(aim.prices, aim.rate)]
        case "time":
            return [weighted(aim, weight) for weight in (Fraction(1, 2), Fraction(0), MATH)]


def _price_memory(pool: _Pool, question: _Question, end: float) -> None:
    """Look for the least price of a byte held with which a plan fits, and for what fits on the way."""
    if question.ask(pool, Fraction(0), end):
        return
    rate = _rate(pool, question)

    def enough(power: int) -> bool:
        fits = question.ask(pool, rate * Fraction(2) ** power, end)
        return fits or monotonic() > end

    low, high = LOW, next((power for power in STEEP if enough(power)), LOW)
    while high - low > 1 and monotonic() < end:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)


def _rate(pool: _Pool, question: _Question) -> Fraction:
    """Give what a byte costs that is gathered over the whole mesh: held bytes are priced around it."""
    size = pool.least or Fraction(1)
    axes = tuple(info for info in pool.leanest.program.mesh.axes if info.size != 1)
    many = prod(info.size or 1 for info in axes)
    price = question.prices.all_gather(Moved(size / many, size, axes, many)) if axes else 0
    return Fraction(price) / size or Fraction(1)


def _times(plan: Plan) -> dict[Array, Monomial]:
    """Say of what each layer of a block has how many there are."""
    found = {leaf.array: leaf.held for leaf in plan.program.leaves}
    for step in plan.forward:
        found[step.output] = step.times
        for carry in step.loop.carries if step.loop is not None else ():
            if carry.layout is not None:
                found[Array(carry.entry, carry.layout)] = step.times
    return found


def _too_much(plan: Plan, taken: Fraction, limit: Fraction) -> TooMuchMemory:
    """Say what the leanest plan takes, and what most of it is."""
    known = {name: Fraction(size) for name, size in plan.program.sizes.known.items()}
    held = memory(plan)
    parts = {
        name: getattr(held, name).value(known) or Fraction(0)
        for name in MemoryFormulas.__dataclass_fields__
    }
    arrays = kept_for_backward(plan, Storage(plan)) if plan.backward else []
    times = _times(plan)
    held_by = ((a, a.local_bytes * times.get(a, Monomial())) for a in arrays)
    sizes = {str(a): size.evaluate(plan.program.sizes.known).number for a, size in held_by}
    largest = sorted(sizes, key=lambda name: sizes[name] or 0, reverse=True)[:SHOWN]
    ordered = sorted(parts, key=lambda name: parts[name], reverse=True)
    return TooMuchMemory(
        limit,
        taken,
        tuple((name, parts[name]) for name in ordered if parts[name]),
        tuple((name, sizes[name] or Fraction(0)) for name in largest),
    )
