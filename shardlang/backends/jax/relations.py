"""Which sizes of a plan hang together, and how open ones are chosen so that they still do.

Two names have one size where a Rename or a declaration `S=T` says so, and where one is the other
with a prime. A declaration such as `F=4*D` ties sizes by an expression, and so do operations that write
one dim as several or turn its halves. Sizes are counts.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from itertools import chain

from shardlang.frontend.sizes import evaluate, names_in, SizeError
from shardlang.ir.ops import Rename, Reshape, Rotary
from shardlang.ir.plan import Plan
from shardlang.ir.size import BinOp, Name, Number, SizeExpr
from shardlang.ir.types import Dim

TRIES = 512
"""How many multiples of a size are tried, so that the sizes that depend on it come out whole."""

ROUNDS = 32
"""How many sizes are changed at most."""


@dataclass(frozen=True)
class Relations:
    """What a plan says of sizes that belong together.

    `stands` gives each name one that stands for all of the same size; `exprs` the expressions of
    those sizes, by that name. Names of axes have no part in either but as names in expressions.
    """

    stands: Mapping[str, str]
    exprs: Mapping[str, tuple[SizeExpr, ...]]

    @staticmethod
    def of(plan: Plan, dims: Iterable[str], own: Container[str] = frozenset()) -> Relations:
        """Collect them for the dims of a plan; of those in `own` the declarations don't count."""
        axes = frozenset(plan.program.mesh.names)
        declared = {
            info.dim.name: info.declared
            for info in plan.program.dims
            if isinstance(info.declared, Name | BinOp) and info.dim.name not in own
        }
        used = (name for expr in declared.values() for name in names_in(expr))
        stands = {name: name for name in chain(dims, declared, used) if name not in axes}
        for left, right in _pairs(plan, declared, stands, own):
            old, new = stands[right], stands[left]
            if old == new:
                continue
            stands = {name: new if root == old else root for name, root in stands.items()}
        exprs: dict[str, tuple[SizeExpr, ...]] = {}
        for name, expr in (*declared.items(), *_steps(plan, declared)):
            if not (isinstance(expr, Name) and expr.name in stands):
                exprs[stands[name]] = (*exprs.get(stands[name], ()), expr)
        return Relations(stands, exprs)

    def needs(self, expr: SizeExpr) -> set[str]:
        """Give what stands for the names in an expression; axes are left out."""
        return {self.stands[name] for name in names_in(expr) if name in self.stands}

    def together(self, start: Iterable[str]) -> frozenset[str]:
        """Give all sizes that an expression ties to some of these, directly or not."""
        found = {self.stands[name] for name in start}
        while True:
            groups = [
                {name, *self.needs(expr)} for name, exprs in self.exprs.items() for expr in exprs
            ]
            more = set[str]().union(*(group for group in groups if group & found))
            if more <= found:
                return frozenset(found)
            found |= more

    def settled(self, fixed: Mapping[str, int], axes: Mapping[str, int]) -> dict[str, Fraction]:
        """Give the sizes that follow from some, with those; what is fixed stays."""
        values = {name: Fraction(size) for name, size in fixed.items()}
        outer = {name: Fraction(size) for name, size in axes.items()}
        waiting = [(name, expr) for name, exprs in self.exprs.items() for expr in exprs]
        while True:
            left: list[tuple[str, SizeExpr]] = []
            for name, expr in waiting:
                value = self._value(expr, values, outer)
                if value is None:
                    left.append((name, expr))
                else:
                    values.setdefault(name, value)
            if len(left) == len(waiting):
                return values
            waiting = left

    def _value(
        self, expr: SizeExpr, values: Mapping[str, Fraction], axes: Mapping[str, Fraction]
    ) -> Fraction | None:
        known = {
            name: values[root]
            for name in names_in(expr)
            if (root := self.stands.get(name)) is not None and root in values
        }
        try:
            return evaluate(expr, {**axes, **known})
        except SizeError:
            return Fraction(0)

    def wrong(
        self,
        values: Mapping[str, Fraction],
        axes: Mapping[str, int],
        parts: Mapping[str, int],
    ) -> tuple[str, SizeExpr] | None:
        """Find an expression whose size is no count, is not divided by its parts, or is another."""
        outer = {name: Fraction(size) for name, size in axes.items()}
        for name, exprs in self.exprs.items():
            for expr in exprs:
                value = self._value(expr, values, outer)
                if value is None:
                    continue
                whole = value.denominator == 1 and value >= 1
                if not whole or value % parts.get(name, 1) or values[name] != value:
                    return name, expr
        return None

    def solve(
        self,
        fixed: Mapping[str, int],
        start: Mapping[str, int],
        axes: Mapping[str, int],
        parts: Mapping[str, int],
    ) -> dict[str, int] | tuple[str, SizeExpr]:
        """Give every size: `fixed` ones as they are, open ones as in `start` or near it.

        `parts` must divide a size, but for what follows from the fixed ones. Gives an expression instead that can't be satisfied.
        """
        derived = frozenset(self.exprs) - fixed.keys()
        open_ = {name: start[name] for name in start if name not in fixed and name not in derived}
        firm = self.settled(fixed, axes)
        parts = {name: n for name, n in parts.items() if name not in firm}
        values = self.settled({**fixed, **open_}, axes)
        bad = self.wrong(values, axes, parts)
        for _ in range(ROUNDS):
            found = None if bad is None else self._better(bad, fixed, open_, axes, parts)
            if found is None:
                break
            open_ = found
            values = self.settled({**fixed, **open_}, axes)
            bad = self.wrong(values, axes, parts)
        if bad is not None:
            return bad
        missing = {name: start[name] for name in start if name not in values}
        return {**{name: int(value) for name, value in values.items()}, **missing}

    def _better(
        self,
        bad: tuple[str, SizeExpr],
        fixed: Mapping[str, int],
        open_: Mapping[str, int],
        axes: Mapping[str, int],
        parts: Mapping[str, int],
    ) -> dict[str, int] | None:
        """Change one open size so that an expression comes right, with all before it."""
        order = [(name, expr) for name, exprs in self.exprs.items() for expr in exprs]
        reach = [name for name in open_ if name in self._inputs(bad[1])]
        for multiple in range(1, TRIES + 1):
            for name in reach:
                trial = {**open_, name: parts.get(name, 1) * multiple}
                left = self.wrong(self.settled({**fixed, **trial}, axes), axes, parts)
                if left is None or order.index(left) > order.index(bad):
                    return trial
        return None

    def _inputs(self, expr: SizeExpr) -> set[str]:
        """Give everything that an expression depends on, through others too."""
        found: set[str] = set()
        waiting = [expr]
        while waiting:
            for name in self.needs(waiting.pop()) - found:
                found.add(name)
                waiting.extend(self.exprs.get(name, ()))
        return found


def _steps(plan: Plan, declared: Mapping[str, SizeExpr]) -> Iterator[tuple[str, SizeExpr]]:
    """Go through the sizes that steps need to be products: |N| = |K||G|, |H| = 2|R|, and |K| = X.

    The last is so where K is split into single places, so that the next factor may be split as well. A
    product that a declaration says already, in whichever way, is left out.
    """
    known = {frozenset((name, *names_in(expr))) for name, expr in declared.items()}
    found: dict[tuple[str, SizeExpr], None] = {}

    def product(whole: Dim, times: int, factors: Iterable[Dim]) -> None:
        names = [factor.name for factor in factors]
        if frozenset((whole.name, *names)) not in known:
            found[whole.name, _product(times, names)] = None

    for _, step in plan.steps():
        match step.op:
            case Reshape() as op:
                product(op.whole, 1, op.factors)
                array = step.output if op.splits else step.inputs[0]
                split = [place for place, factor in enumerate(op.factors) if array.axes(factor)]
                for factor in op.factors[: split[-1]] if split else ():
                    axes = [axis.name for axis in array.axes(factor)]
                    found[factor.name, _product(1, axes)] = None
            case Rotary(dim, half):
                product(dim, 2, (half,))
            case _:
                pass
    yield from found


def _product(times: int, names: Sequence[str]) -> SizeExpr:
    parts: list[SizeExpr] = [Number(Fraction(times))] * (times != 1 or not names)
    parts += map(Name, names)
    return reduce(lambda left, right: BinOp("*", left, right), parts)


def _pairs(
    plan: Plan, declared: Mapping[str, SizeExpr], names: Container[str], own: Container[str]
) -> Iterator[tuple[str, str]]:
    """Go through the pairs of names that have one size."""
    for _, step in plan.steps():
        if isinstance(step.op, Rename):
            for old, new in zip(step.inputs[0].tensor.dims, step.op.dims, strict=True):
                yield old.name, new.name
    for name, expr in declared.items():
        if isinstance(expr, Name) and expr.name in names:
            yield expr.name, name
    settled = {info.dim.name for info in plan.program.dims if info.declared is not None}
    known = plan.program.sizes.known
    for info in plan.program.dims:
        name, plain = info.dim.name, info.dim.name.rstrip("'")
        free = name not in own and name not in settled and plain != name and plain in names
        if free and name in names and known.get(name) == known.get(plain):
            yield plain, name
