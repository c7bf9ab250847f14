"""Plans with sizes left open: every plan that is the best for some sizes, and when it is.

`plans` answers for programs small enough that all ways can be gone through (`fronts`): an einsum of
any number of operands on up to three axes, forward alone or with its backward pass, a change of
layout, and short chains. What a plan moves is then a sum of products of sizes, and the answer has the
plans of which each is the only best one for some sizes, with the condition in closed form. Conditions
are strict and cover everything but their boundaries, on which both sides move the same.

Which plans there are is proven, not sampled: what `fronts` drops is never the only best one, and each
of the rest that never wins at sample points is shown to cost at least as much as a mean of winners
does, for all sizes assumed (`polynomials.Assumed`). Where that can't be shown, `complete` is False and
the answer says so.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import prod
from typing import Any, TYPE_CHECKING

import numpy as np

from shardlang.diagnostics import ShardlangError
from shardlang.ir.ops import Relayout
from shardlang.ir.plan import Plan
from shardlang.ir.program import Program
from shardlang.ir.size import BinOp, Name, Number, SizeExpr
from shardlang.ir.types import AxisInfo, Mesh
from shardlang.passes import lower
from shardlang.planner.bound import Folded
from shardlang.planner.build import build_plan
from shardlang.planner.errors import OutsideAssumed, placed, SizesNeeded, wrong
from shardlang.planner.formulate import build
from shardlang.planner.fronts import Candidate, Fronts
from shardlang.planner.polynomials import Assumed, Polynomial
from shardlang.planner.prices import price, Prices, prices_of
from shardlang.planner.problem import Problem, UnplannableError
from shardlang.planner.program import plan_program
from shardlang.planner.states import divisors

if TYPE_CHECKING:
    from numpy.typing import NDArray

POINTS = 20_000
"""How many sizes the candidates are compared at to find those that win."""

MARGIN = 1e-9
"""By which share a plan must be below all others at a point to count as the only best."""

NEAR = 100
"""At how many points a candidate is looked at for the winners that a proof tries first."""

PIECES = 16
"""The most plans that an answer has."""

WIDTH = 90
"""The longest condition that is printed in one line."""

AXES = (2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 64)
"""Sizes that axes are sampled at."""

PRIMES = (5, 7, 11, 13, 17, 19, 3, 2)
"""Sizes for axes of which no two products are equal."""


@dataclass(frozen=True)
class Piece:
    """A plan, when it is the best, and what it moves.

    `condition` is a sympy expression in positive symbols, `texts` print it, one after `and` the other.
    `cost` is what a device moves in bytes, a sympy expression too.
    """

    condition: Any
    texts: tuple[str, ...]
    cost: Any
    plan: Plan

    @property
    def text(self) -> str:
        """Give the condition in a line: `J/X < K < J*(1 - 1/X)`; a plan that is best always has none."""
        return " and ".join(self.texts) or "always"

    def heading(self, prices: str) -> str:
        """Give the condition and the cost by a price list as comment lines of the notation."""
        lines = [f"when {self.text}"]
        if len(lines[0]) > WIDTH:
            lines = [f"{'and' if i else 'when'} {text}" for i, text in enumerate(self.texts)]
        lines.append(f"moves {self.cost} bytes a device ({prices} prices)")
        return "".join(f"// {line}\n" for line in lines)


@dataclass(frozen=True)
class Piecewise:
    """The plans that are the best somewhere.

    Of two that cost the same at some sizes, `at` gives the one of fewer FLOPs, then of fewer
    collectives. `assumed` says in words what holds of the sizes, and `complete` whether it is proven
    that nothing else is ever better.
    """

    program: Program
    prices: str
    pieces: tuple[Piece, ...]
    assumed: tuple[str, ...]
    complete: bool
    _sizes: _Sizes = field(repr=False)
    _costs: tuple[Polynomial, ...] = field(repr=False)
    _rank: tuple[int, ...] = field(repr=False)

    def at(self, sizes: Mapping[str, int] | None = None, **more: int) -> Plan:
        """Give the plan for sizes of all that is left open.

        Raises `ShardlangError` where a size is missing (SH351) or outside of what is assumed (SH358).
        """
        given = {**(sizes or {}), **more}
        known = self._sizes.complete(given)
        values = [cost.value(known) for cost in self._costs]
        best = min(range(len(values)), key=lambda i: (values[i], self._rank[i]))
        return replace(self.pieces[best].plan, program=sized(self.program, known))

    def __str__(self) -> str:
        """Print every plan after its condition."""
        from shardlang.ir.printer import print_plan  # noqa: PLC0415  (only to print)

        parts = [
            self.heading(),
            *(p.heading(self.prices) + print_plan(p.plan) for p in self.pieces),
        ]
        return "\n".join(parts)

    def heading(self) -> str:
        """Say how many plans there are, for which sizes, and what is proven."""
        if len(self.pieces) == 1:
            lines = ["one plan, whatever the sizes"]
        else:
            lines = [f"{len(self.pieces)} plans, each where its condition says"]
        if self.assumed:
            lines.append("assumed: " + "; ".join(self.assumed))
        if self.complete:
            lines.append("optimal: no plan on whole axes moves less")
        else:
            lines.append("best found; not proven that no other plan moves less anywhere")
        return "".join(f"// {line}\n" for line in lines)


@dataclass(frozen=True)
class _Sizes:
    """Which sizes are open, and what the others are in terms of them."""

    axes: tuple[str, ...]
    dims: tuple[str, ...]
    known: Mapping[str, int]
    defined: Mapping[str, Polynomial]
    mesh: Mesh
    fixed: Mapping[str, int]
    """Dims of known size."""

    @property
    def assumed(self) -> Assumed:
        """Give what proofs assume."""
        devices = Polynomial.of(1)
        for info in self.mesh.axes:
            devices *= self.symbol(info.axis.name)
        return Assumed(self.axes, self.dims, devices)

    def symbol(self, name: str) -> Polynomial:
        """Give a size in terms of those that are open."""
        if name in self.defined:
            return self.defined[name]
        if name in self.known:
            return Polynomial.of(self.known[name])
        bare = name.rstrip("'")
        return Polynomial.of(int(bare)) if bare.isdecimal() else _name(name)

    def words(self) -> tuple[str, ...]:
        """Say what is assumed."""
        found: list[str] = []
        if self.axes:
            found.append(f"{', '.join(self.axes)} >= 2")
        if len(self.mesh.axes) > 1 and self.axes:
            found.append("no axes or products of axes of equal size")
        over = "*".join(info.axis.name for info in self.mesh.axes if info.size != 1)
        if self.dims and over:
            noun = "a multiple" if len(self.dims) == 1 else "multiples"
            found.append(f"{', '.join(self.dims)} {noun} of {over}")
        if self.axes and self.fixed:
            found.append(f"even splits of {', '.join(self.fixed)}")
        return tuple(found)

    def splits_evenly(self, sizes: Mapping[str, int]) -> bool:
        """Say whether axes split the dims of known size as is assumed: in two parts, if at all."""
        axes = [AxisInfo(i.axis, sizes.get(i.axis.name, i.size)) for i in self.mesh.axes]
        halves = [AxisInfo(i.axis, i.size or 1) for i in self.mesh.axes]
        opened = [info.size is None for info in self.mesh.axes]
        for size in self.fixed.values():
            expected = divisors(halves, size)
            for mask, fits in enumerate(divisors(axes, size)):
                many = sum(mask >> a & opened[a] for a in range(len(axes)))
                part = prod(info.size or 1 for a, info in enumerate(halves) if mask >> a & 1)
                if fits != (expected[mask] and size // part >= 2**many):
                    return False
        return True

    def different(self, sizes: Mapping[str, int]) -> bool:
        """Say whether products of axes are equal only if they are for all sizes."""
        shards: dict[int, Polynomial] = {1: Polynomial.of(1)}
        for info in self.mesh.axes:
            for n, product in list(shards.items()):
                name = info.axis.name
                made = n * sizes.get(name, info.size or 1)
                formula = product * self.symbol(name)
                if shards.setdefault(made, formula) != formula:
                    return False
        return True

    def complete(self, given: Mapping[str, int]) -> dict[str, int]:
        """Give all sizes from those of what is open; raises `ShardlangError`."""
        missing = [name for name in (*self.axes, *self.dims) if name not in given]
        if missing:
            raise wrong(SizesNeeded(tuple(missing)))
        sizes = {**self.known, **{n: given[n] for n in (*self.axes, *self.dims)}}
        devices = int(self.assumed.devices.value(sizes))
        for name in self.axes:
            if sizes[name] < 2:
                raise wrong(OutsideAssumed(f"{name} is {sizes[name]}, and has to be at least 2"))
        for name in self.dims:
            if sizes[name] < 1 or sizes[name] % devices:
                raise wrong(
                    OutsideAssumed(f"{name} is {sizes[name]}, no multiple of {devices} devices")
                )
        if not self.different(sizes):
            raise wrong(OutsideAssumed("some axes, or products of them, have equal sizes"))
        if not self.splits_evenly(sizes):
            raise wrong(OutsideAssumed("an axis does not divide a dim of given size"))
        return self.evaluated(sizes)

    def evaluated(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Add the sizes that are defined by others."""
        return {**sizes, **{n: int(p.value(sizes)) for n, p in self.defined.items()}}

    def reference(self) -> dict[str, int]:
        """Give some admissible sizes; raises `UnplannableError` where none are found."""
        axes = next(self.axes_sampled(PRIMES), None)
        if axes is None:
            axes = next(self.axes_sampled(range(2, 33)), None)
        if axes is None:
            raise UnplannableError("no sizes of the axes split the dims whose sizes are given")
        devices = int(self.assumed.devices.value({**self.known, **axes}))
        dims = {dim: devices * n for dim, n in zip(self.dims, _primes(), strict=False)}
        return self.evaluated({**self.known, **axes, **dims})

    def axes_sampled(self, sizes: Sequence[int]) -> Iterator[dict[str, int]]:
        """Give admissible sizes of the open axes."""
        for chosen in itertools.product(sizes, repeat=len(self.axes)):
            axes = dict(zip(self.axes, chosen, strict=True))
            if self.different(axes) and self.splits_evenly(axes):
                yield axes

    def points(self) -> list[dict[str, int]]:
        """Give many admissible sizes, dims up to some 65,000 a device; the same each time."""
        draw = random.Random(0)  # noqa: S311  (points to compare at, no secrets)
        choices = list(itertools.islice(self.axes_sampled(AXES), 1000))
        choices = choices or list(itertools.islice(self.axes_sampled(range(2, 33)), 100))
        devices = [int(self.assumed.devices.value({**self.known, **axes})) for axes in choices]
        found: list[dict[str, int]] = []
        for _ in range(POINTS if self.dims else len(choices)):
            at = draw.randrange(len(choices)) if self.dims else len(found)
            most = draw.choice((3, 6, 10, 16))
            dims = {d: devices[at] * int(2 ** draw.uniform(0, most)) for d in self.dims}
            found.append({**choices[at], **dims})
        return found


def _name(name: str) -> Polynomial:
    return Polynomial({((name, 1),): Fraction(1)})


def _primes() -> Iterator[int]:
    return (n for n in itertools.count(23) if all(n % d for d in range(2, int(n**0.5) + 1)))


def _sizes_of(program: Program) -> _Sizes:
    """Tell what is open from what is given or defined."""
    mesh = Mesh(tuple(info for info in program.mesh.axes if info.size != 1))
    known = dict(program.sizes.known)
    axes = tuple(info.axis.name for info in mesh.axes if info.size is None)
    declared = {i.dim.name: i.declared for i in program.dims if i.size is None and i.declared}
    dims = tuple(
        i.dim.name
        for i in program.dims
        if i.size is None and i.declared is None and not i.dim.name.rstrip("'").isdecimal()
    )
    defined: dict[str, Polynomial] = {}

    def symbol(name: str) -> Polynomial:
        if name in declared and name not in defined:
            defined[name] = made = expression(declared[name])
            if len(made.terms) != 1 or not made.names <= set(dims):
                raise UnplannableError(f"{name} is no product of other sizes")
        if name in defined:
            return defined[name]
        return Polynomial.of(known[name]) if name in known else _name(name)

    def expression(expr: SizeExpr) -> Polynomial:
        match expr:
            case Number(value):
                return Polynomial.of(value)
            case Name(name):
                return symbol(name)
            case BinOp("**", left, Number(power)) if power.denominator == 1 and 0 <= power <= 9:
                return prod([expression(left)] * int(power), start=Polynomial.of(1))
            case BinOp("+", left, right):
                return expression(left) + expression(right)
            case BinOp("-", left, right):
                return expression(left) - expression(right)
            case BinOp("*", left, right):
                return expression(left) * expression(right)
            case BinOp("/", left, right) if len(expression(right).terms) == 1:
                return expression(left) / expression(right)
            case _:
                raise UnplannableError("a size is no product of other sizes")

    for name in declared:
        symbol(name)
    fixed = {i.dim.name: i.size for i in program.dims if i.size is not None}
    return _Sizes(axes, dims, known, defined, mesh, fixed)


def sized(program: Program, sizes: Mapping[str, int]) -> Program:
    """Give a program with sizes filled in."""
    axes = tuple(replace(i, size=sizes.get(i.axis.name, i.size)) for i in program.mesh.axes)
    dims = tuple(replace(i, size=sizes.get(i.dim.name, i.size)) for i in program.dims)
    return replace(program, mesh=Mesh(axes), dims=dims)


def plans(
    program: Program,
    prices: str | Prices = "link",
    *,
    keep_gathered: bool | None = None,
    forward_only: bool = False,
) -> Piecewise:
    """Find every plan of a program that moves the fewest bytes for some sizes, and when it does.

    Sizes that the program gives count; those of any dims and axes may be left open. Raises
    `ShardlangError`: SH351 says why where the program is beyond what this can answer for.
    """
    try:
        _refuse_blocks(program)
        sizes = _sizes_of(program)
        if not sizes.axes and not sizes.dims:
            return _settled(program, prices, sizes, keep_gathered, forward_only)
        return _Answer(program, prices_of(prices), sizes, keep_gathered, forward_only).give()
    except UnplannableError as why:
        names = tuple(i.axis.name for i in program.mesh.axes if i.size is None)
        names += tuple(i.dim.name for i in program.dims if i.size is None)
        raise placed(wrong(SizesNeeded(names, why=str(why))), program) from None
    except ShardlangError as error:
        raise placed(error, program) from None


def _refuse_blocks(program: Program) -> None:
    if program.blocks:
        raise UnplannableError(f"layers {program.blocks[0].dim} are a block")


def _settled(
    program: Program,
    prices: str | Prices,
    sizes: _Sizes,
    keep_gathered: bool | None,
    forward_only: bool,
) -> Piecewise:
    """Answer where nothing is open."""
    import sympy  # noqa: PLC0415  (costs as much as everything else together)

    plan = plan_program(program, prices, keep_gathered=keep_gathered, forward_only=forward_only)
    cost = plan.proof.cost if plan.proof is not None else Fraction(0)
    proven = plan.proof is not None and plan.proof.optimal
    number = sympy.Rational(cost.numerator, cost.denominator)
    piece = Piece(sympy.true, (), number, plan)
    name = prices_of(prices).name
    return Piecewise(program, name, (piece,), (), proven, sizes, (Polynomial.of(cost),), (0,))


def _refuse(program: Program) -> None:
    """Raise `UnplannableError` for what fixes moves, whose prices are not left open here."""
    if not program.save.everything:
        raise UnplannableError("the program saves some values only")
    for s in program.statements:
        if isinstance(s.op, Relayout):
            raise UnplannableError("the program states a collective")
        if s.keep_unreduced:
            raise UnplannableError("the program multiplies locally (·_LOCAL)")


@dataclass
class _Answer:
    """The search for the pieces of one program."""

    program: Program
    prices: Prices
    sizes: _Sizes
    keep_gathered: bool | None
    forward_only: bool

    def __post_init__(self) -> None:
        """Write the program as a problem at some sizes, where nothing is equal by chance."""
        _refuse(self.program)
        self.assumed = self.sizes.assumed
        self.points = self.sizes.points()
        self.book = self._lowered(self.program)
        self.problem, self.folded, at = self._problem(self.sizes.reference())
        ends = (at.outputs, at.cotangents, at.gradients)
        if ends != (self.book.outputs, self.book.cotangents, self.book.gradients):
            raise UnplannableError("where results end depends on sizes: declare their layouts")

    def _lowered(self, program: Program) -> Plan:
        return lower(
            program, "book", keep_gathered=self.keep_gathered, forward_only=self.forward_only
        )

    def _problem(self, sizes: Mapping[str, int]) -> tuple[Problem, Folded, Plan]:
        book = self._lowered(sized(self.program, sizes))
        weights = {leaf.array.name for leaf in self.program.leaves if leaf.kind == "param"}
        kept = () if self.keep_gathered is False else weights
        problem = build(book, self.prices, kept=kept, forward_only=self.forward_only)
        return problem, Folded(problem), book

    def give(self) -> Piecewise:
        """Find the pieces."""
        from shardlang.planner import conditions  # noqa: PLC0415  (loads sympy)

        found = self._candidates()
        winning = self._winners(found)
        if len(winning) > PIECES:
            alone = "" if self.forward_only else ", or plan the forward pass alone"
            raise UnplannableError(
                f"{len(winning)} plans are the best somewhere: give the size of an axis{alone}"
            )
        chosen = list(winning)
        plans = {i: self._plan(found[i], winning[i]) for i in chosen}
        borders = {i: self._borders(i, chosen, found) for i in chosen}
        complete = self._proven(found, winning)
        boundaries = {
            (i, j): conditions.Boundary(found[j].cost - found[i].cost, self.assumed)
            for i in chosen
            for j in borders[i]
        }
        names = (*reversed(self.sizes.dims), *self.sizes.axes)
        first = conditions.common_size(list(boundaries.values()), names)
        if first is not None:
            chosen.sort(key=lambda i: np.mean([np.log(point[first]) for point in winning[i]]))
        pieces: list[Piece] = []
        for i in chosen:
            own = [boundaries[i, j] for j in borders[i]]
            order = names if first is None else (first,)
            condition, texts = conditions.condition(own, order)
            cost = conditions.tidy(found[i].cost.formula.sympy(), self.sizes.axes)
            pieces.append(Piece(condition, texts, cost, plans[i]))
        return Piecewise(
            self.program,
            self.prices.name,
            tuple(pieces),
            self.sizes.words(),
            complete,
            self.sizes,
            tuple(found[i].cost for i in chosen),
            tuple(chosen),
        )

    def _candidates(self) -> list[Candidate]:
        volumes: list[Polynomial] = []
        for value in self.problem.values:
            volume = Polynomial.of(Fraction(value.tensor.dtype.bits, 8))
            for dim in value.tensor.dims:
                volume *= self.sizes.symbol(dim.name)
            volumes.append(volume)
        fronts = Fronts(self.problem, self.prices, self.sizes.axes, volumes)
        found: dict[Polynomial, Candidate] = {}
        for candidate in fronts.candidates():
            found.setdefault(candidate.cost, candidate)
        return list(found.values())

    def _winners(self, found: Sequence[Candidate]) -> dict[int, list[dict[str, int]]]:
        """Give the candidates that are the only best at some points, with those points."""
        if len(found) == 1:
            return {0: self.points[:1]}
        self.costs = self._evaluated(found)
        two = np.partition(self.costs, 1, axis=0)[:2]
        alone = two[0] < two[1] * (1 - MARGIN)
        best = np.argmin(self.costs, axis=0)
        return {
            i: [self.points[p] for p in np.flatnonzero(alone & (best == i))[:500]]
            for i in sorted({int(i) for i in best[alone]})
        } or {0: self.points[:1]}

    def _evaluated(self, found: Sequence[Candidate]) -> NDArray[np.float64]:
        """Give what every candidate costs at every point."""
        columns = {
            name: np.array([float(point[name]) for point in self.points])
            for name in (*self.sizes.axes, *self.sizes.dims)
        }
        products = sorted({powers for candidate in found for powers in candidate.cost.terms})
        values = np.ones((len(products), len(self.points)))
        for i, powers in enumerate(products):
            for name, power in powers:
                values[i] *= columns[name] ** power
        rows = [[float(each.cost.terms.get(p, 0)) for p in products] for each in found]
        return np.array(rows).reshape(len(found), len(products)) @ values

    def _proven(self, found: Sequence[Candidate], winning: Mapping[int, object]) -> bool:
        """Say whether every other candidate is shown to cost at least a mean of some winners."""
        best = np.argmin(self.costs[list(winning)], axis=0) if len(found) > 1 else None
        for number, each in enumerate(found):
            if number in winning or best is None:
                continue
            # those that win where it is nearly the best are tried first: they are few
            ratio = self.costs[number] / self.costs[list(winning)].min(axis=0)
            near = {list(winning)[i] for i in best[np.argsort(ratio, kind="stable")[:NEAR]]}
            if not any(
                self.assumed.some_positive([each.cost - found[i].cost for i in some])
                for some in (sorted(near), list(winning))
            ):
                return False
        return True

    def _borders(self, mine: int, chosen: Sequence[int], found: Sequence[Candidate]) -> list[int]:
        """Give the winners whose comparison with one implies all the others'."""
        kept = [i for i in chosen if i != mine]
        if not kept:
            return []
        less = {i: self.costs[mine] < self.costs[i] * (1 - MARGIN) for i in kept}
        more = {i: self.costs[mine] > self.costs[i] * (1 + MARGIN) for i in kept}
        binding = [
            i
            for i in kept
            if np.any(np.logical_and.reduce([less[j] for j in kept if j != i] + [more[i]]))
        ]
        above = [found[i].cost - found[mine].cost for i in binding]
        return [
            i
            for i in kept
            if i in binding
            or not self.assumed.some_positive([found[i].cost - found[mine].cost], above)
        ]

    def _plan(self, candidate: Candidate, points: Sequence[Mapping[str, int]]) -> Plan:
        """Write a candidate's plan out, with routes that cost what it does whatever the sizes."""
        trees = self.folded.trees
        plan = build_plan(self.problem, trees, candidate.ways, self.book)
        if self._costs_as(plan, candidate, points):
            return plan
        for point in points[:20]:
            at = self.sizes.evaluated({**self.sizes.known, **point})
            problem, folded, _ = self._problem(at)
            ways = {
                op: problem.operations[op].ways.index(self.problem.operations[op].ways[way])
                for op, way in candidate.ways.items()
            }
            plan = build_plan(problem, folded.trees, ways, self.book)
            if self._costs_as(plan, candidate, points):
                return plan
        raise UnplannableError("the routes of a plan depend on the sizes")

    def _costs_as(
        self, plan: Plan, candidate: Candidate, points: Sequence[Mapping[str, int]]
    ) -> bool:
        checked = [*points[:3], *self.points[:3], *self.points[-3:]]
        return all(self._moved(plan, p) == candidate.cost.value(p) for p in checked)

    def _moved(self, plan: Plan, point: Mapping[str, int]) -> Fraction:
        sizes = self.sizes.evaluated({**self.sizes.known, **point})
        mesh = sized(self.program, sizes).mesh
        return sum(
            (
                price(s.op, s.inputs[0], s.output, mesh, sizes, self.prices)
                for _, s in plan.steps()
                if isinstance(s.op, Relayout)
            ),
            Fraction(0),
        )
