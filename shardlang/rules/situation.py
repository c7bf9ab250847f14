"""Where the axes stand in one operation, and what the table's rows make of it.

`decide` gives the layout that each operand is wanted in, the layout that the local result then has,
and, for each axis that something is done about, the row and its reason. It makes no steps and
chooses no collective: that is `passes.reshard`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce

from shardlang.ir.ops import (
    Compute,
    Divide,
    Einsum,
    Linear,
    Put,
    Reduce,
    Rename,
    Reshape,
    Rotary,
    Select,
    Take,
)
from shardlang.ir.size import Monomial
from shardlang.ir.types import Array, Axis, Dim, Layout, prefix, Tensor
from shardlang.rules.collectives import Illegal
from shardlang.rules.local import local, partial_rule, summed
from shardlang.rules.price import Posynomial
from shardlang.rules.table import Action, lookup, Partial, Rule, Split, Wish
from shardlang.rules.whole import (
    by_factors,
    given_as,
    needed_whole,
    seen_as,
    Stray,
    used_up,
    wish_by_factors,
)

Axes = tuple[Axis, ...]


@dataclass(frozen=True, slots=True)
class Because:
    """The row that settled an axis, with its reason in the notation's words."""

    rule: Rule
    reason: str


@dataclass(frozen=True, slots=True)
class Point:
    """A choice that the rules leave to sizes, or offer only: what else could be done.

    `options` are the words for the others than the first. An `offered` one is never taken: the
    book's rules settle the question, and the answer says when the other way would be cheaper.
    """

    axis: Axis
    options: tuple[str, ...]
    offered: bool = False


@dataclass(frozen=True, slots=True)
class Choice:
    """A choice as reported: what else could be done, and when that is cheaper."""

    instead: str
    cheaper_when: str


@dataclass(frozen=True, slots=True)
class Decision:
    """What an operation needs: the operands' layouts, in stages, and the local result's layout.

    `stages` gives for each operand the layouts to go through: a gather by case 2 comes before the
    slice that the target asks for. `because` has the row of an axis for each operand, by its place,
    and for the result, under None. `points` are the choices that were met, in order.
    """

    stages: tuple[tuple[Layout, ...], ...]
    result: Layout
    because: Mapping[tuple[int | None, Axis], Because]
    points: tuple[Point, ...] = ()
    choices: tuple[Choice, ...] = ()

    def reasons(self, operand: int | None) -> dict[Axis, Because]:
        """Give the rows that speak of one operand, or of the result (None)."""
        return {axis: found for (at, axis), found in self.because.items() if at == operand}


Price = Callable[[Decision], tuple[Monomial, ...]]
"""What a decision moves, from the operands as given to the result as wanted, as a sum."""


def cheaper(left: Monomial, right: Monomial, sizes: Mapping[str, int]) -> bool | None:
    """Say whether one size is less than another, or None where that depends on symbols."""
    ratio = (left / right).evaluate(sizes).number
    return None if ratio is None else ratio < 1


@dataclass
class _Situation:
    """One operation, looked at axis by axis."""

    op: Compute
    given: tuple[Array, ...]
    tensor: Tensor
    wish: Layout | None
    sizes: Mapping[str, int]
    arrays: tuple[Array, ...] = ()
    made: Tensor = field(init=False)
    strays: dict[Axis, list[tuple[int, Stray]]] = field(
        default_factory=dict[Axis, "list[tuple[int, Stray]]"]
    )
    gone: tuple[Dim, ...] = ()
    lists: dict[Dim, Axes] = field(default_factory=dict[Dim, Axes])
    home: dict[Axis, Dim] = field(default_factory=dict[Axis, Dim])
    whole: set[Axis] = field(default_factory=set[Axis])
    reduced: set[tuple[int, Axis]] = field(default_factory=set[tuple[int, Axis]])
    masked: set[tuple[int, Axis]] = field(default_factory=set[tuple[int, Axis]])
    sliced: set[Axis] = field(default_factory=set[Axis])
    lonely: set[Axis] = field(default_factory=set[Axis])
    because: dict[tuple[int | None, Axis], Because] = field(
        default_factory=dict[tuple[int | None, Axis], Because]
    )
    script: tuple[int, ...] = ()
    open_over: frozenset[Axis] = frozenset()
    points: list[Point] = field(default_factory=list[Point])
    direct: set[Axis] = field(default_factory=set[Axis])

    # --- where things stand -------------------------------------------------------------------

    def prepare(self) -> None:
        """Settle, dim by dim, which axes the operands can split it over alike.

        A reshaped dim is looked at as its factors, in the operand and in the result.
        """
        for index, given in enumerate(self.given):
            array, strays = seen_as(self.op, given, self.sizes)
            self.arrays = (*self.arrays, array)
            for stray in strays:
                for axis in stray.axes:
                    self.strays.setdefault(axis, []).append((index, stray))
        self.made = self.tensor
        self.wish = wish_by_factors(self.op, self.tensor, self.wish, self.sizes)
        self.tensor = by_factors(self.op, self.tensor)
        self.gone = summed(self.op)
        lists: dict[Dim, list[Axes]] = {}
        for array in self.arrays:
            for dim, axes in zip(array.tensor.dims, array.layout.sharding, strict=True):
                lists.setdefault(dim, []).append(axes)
        for dim, found in lists.items():
            self.lists[dim] = (
                reduce(prefix, found) if dim in self.gone else self._shared(dim, found)
            )

    def _shared(self, dim: Dim, found: list[Axes]) -> Axes:
        """Choose how a kept dim is split: as its longest split, if the others are beginnings of it.

        Where they are not, as the wish has it, else as in the operand that is dearest to gather,
        else as in the first.
        """
        longest = max(found, key=len)
        if all(longest[: len(axes)] == axes for axes in found):
            return longest
        wanted = self.wished(dim)
        if wanted in found:
            return wanted
        owners = [a for a in self.arrays if dim in a.tensor.dims and a.axes(dim)]
        best = owners[0]
        for other in owners[1:]:
            if cheaper(best.local_bytes, other.local_bytes, self.sizes):
                best = other
        return best.axes(dim)

    def wished(self, dim: Dim) -> Axes:
        """Give the axes that the wish splits a dim of the result over."""
        if self.wish is None or dim not in self.tensor.dims:
            return ()
        return self.wish.sharding[self.tensor.dims.index(dim)]

    def wish_dim(self, axis: Axis) -> Dim | None:
        """Give the result's dim that the wish splits over an axis."""
        if self.wish is None:
            return None
        for dim, axes in zip(self.tensor.dims, self.wish.sharding, strict=True):
            if axis in axes:
                return dim
        return None

    def partials(self, axis: Axis) -> list[int]:
        """Give the operands that are still partial over an axis."""
        return [
            index
            for index, array in enumerate(self.arrays)
            if axis in array.layout.unreduced and (index, axis) not in self.reduced
        ]

    def partial(self, axis: Axis) -> Partial:
        """Say what partial results over an axis mean here."""
        found = self.partials(axis)
        if not found:
            return Partial.NONE
        arrays = tuple(
            array
            if (index, axis) not in self.reduced
            else array.with_layout(array.layout.reduced())
            for index, array in enumerate(self.arrays)
        )
        if not isinstance(partial_rule(self.op, arrays, axis), Illegal):
            return Partial.PASSES
        some = isinstance(self.op, Linear) and not self.op.constant and len(found) < len(arrays)
        sums = all(self.arrays[index].layout.reduction == "sum" for index in found)
        wanted = self.open_over if self.wish is None else self.open_over | self.wish.unreduced
        if some and sums and axis in wanted:
            return Partial.MASKS
        return Partial.BLOCKED

    def split(self, axis: Axis) -> tuple[Split, list[Dim], list[tuple[int, Dim]]]:
        """Say where an axis splits the operands: the kept dims, and the operands with others."""
        if axis in self.strays:
            return Split.STRAY, [], [(index, stray.dim) for index, stray in self.strays[axis]]
        kept = [d for d, axes in self.lists.items() if d not in self.gone and axis in axes]
        aligned = [d for d, axes in self.lists.items() if d in self.gone and axis in axes]
        lone = [
            (index, dim)
            for index, array in enumerate(self.arrays)
            for dim, axes in zip(array.tensor.dims, array.layout.sharding, strict=True)
            if dim in self.gone and axis in axes and axis not in self.lists[dim]
        ]
        summed_over = [
            (index, dim)
            for dim in aligned
            for index, array in enumerate(self.arrays)
            if axis in array.axes(dim)
        ]
        if len(kept) > 1:
            return Split.CLASH, kept, lone + summed_over
        if kept and (aligned or lone):
            return Split.MIXED, kept, lone + summed_over
        if kept:
            return Split.KEPT, kept, []
        if len(aligned) == 1 and not lone:
            return Split.CONTRACTED, aligned, []
        if aligned or lone:
            return Split.LONELY, [], lone + summed_over
        return Split.NOWHERE, [], []

    def wished_for(self, axis: Axis, kept: list[Dim]) -> Wish:
        """Say where the wanted result has an axis."""
        if self.wish is None:
            return Wish.OPEN
        if axis in self.wish.unreduced:
            return Wish.PARTIAL
        dim = self.wish_dim(axis)
        if dim is None:
            return Wish.NOWHERE
        return Wish.SAME if dim in kept else Wish.OTHER

    # --- what is done about it ----------------------------------------------------------------

    def settle(self, axis: Axis) -> None:
        """Look up the row of an axis and do what it says."""
        split, kept, others = self.split(axis)
        rule = lookup(split, self.partial(axis), self.wished_for(axis, kept))
        match rule.action:
            case Action.NOTHING:
                self.whole.add(axis)
            case Action.GATHER_STRAY:
                for index, stray in self.strays.pop(axis):
                    self.explain(rule, axis, [index], (index, stray.dim), stray.why)
                self.settle(axis)
            case Action.GATHER:
                self.whole.add(axis)
                self.gather_lonely(rule, axis, others)
            case Action.KEEP | Action.SUM:
                self.home[axis] = kept[0]
                place = (self.owner(axis, kept[0]), kept[0])
                self.explain(rule, axis, [*self.everyone, None], place)
            case Action.KEEP_OR_GATHER:
                self.keep_or_gather(rule, axis, kept[0])
            case Action.GATHER_CONTRACTED:
                self.home[axis] = kept[0]
                for index, dim in others:
                    self.explain(rule, axis, [index], (index, dim), kept[0])
            case Action.GATHER_ONE:
                self.gather_one(rule, axis, kept)
            case Action.SLICE:
                self.explain(rule, axis, self.everyone)
                self.slice_for_wish(axis)
            case Action.SLICE_CONTRACTED:
                self.explain(rule, axis, self.everyone)
                self.slice_contracted(axis, others)
            case Action.LEAVE:
                self.explain(rule, axis, [None], (self.partials(axis)[0], None))
            case Action.MASK:
                self.explain(rule, axis, self.everyone)
                found = self.partials(axis)
                self.masked.update((i, axis) for i in self.everyone if i not in found)
            case Action.REDUCE:
                self.reduce(rule, axis, split)

    @property
    def everyone(self) -> range:
        """The places of the operands."""
        return range(len(self.arrays))

    def owner(self, axis: Axis, dim: Dim) -> int:
        """Give the first operand that an axis splits a dim of."""
        return next(i for i, array in enumerate(self.arrays) if axis in array.axes(dim))

    def choose(self, axis: Axis, *options: str, offered: bool = False) -> int:
        """Meet a choice: 0 is what is done where sizes don't say otherwise."""
        place = len(self.points)
        self.points.append(Point(axis, options, offered))
        return self.script[place] if place < len(self.script) else 0

    def explain(
        self,
        rule: Rule,
        axis: Axis,
        at: Iterable[int | None],
        where: tuple[int, Dim | None] | None = None,
        other: Dim | str = "",
    ) -> None:
        """Remember why an axis is treated as it is, for some operands or the result (None).

        `where` is the operand and dim that the reason names, `other` another dim, or words.
        """
        tensor, dim = "", ""
        if where is not None:
            index, found = where
            tensor, dim = self.arrays[index].name, "" if found is None else found.name
        also = other
        if isinstance(other, Dim):
            also = f"{other} of {self.arrays[self.owner(axis, other)].name}"
        reason = rule.reason.format(axis=axis, tensor=tensor, dim=dim, other=also)
        for index in at:
            self.because.setdefault((index, axis), Because(rule, reason))

    def reduce(self, rule: Rule, axis: Axis, split: Split) -> None:
        """Reduce partial operands: all of them, or of a product's several all but one."""
        found = self.partials(axis)
        if isinstance(self.op, Einsum) and len(found) > 1 and split is Split.NOWHERE:
            others = [f"leave {self.arrays[i]} unreduced over {axis} instead" for i in found[1:]]
            keep = found[self.choose(axis, *others)]
            found = [index for index in found if index != keep]
        for index in found:
            self.explain(rule, axis, [index], (index, None))
            self.reduced.add((index, axis))
        self.settle(axis)

    def gather_lonely(self, rule: Rule, axis: Axis, others: list[tuple[int, Dim]]) -> None:
        """Case 2, with its other ways offered: slice and reduce, or move the axis at once."""
        for index, dim in others:
            self.explain(rule, axis, [index], (index, dim))
        if self.can_slice(axis, others) and self.choose(
            axis, self.slicing(axis, others[0]), offered=True
        ):
            self.whole.discard(axis)
            self.slice_contracted(axis, others)
            return
        self.lonely.add(axis)
        self.slice_for_wish(axis)
        index, _ = others[0]
        target = self.wish_dim(axis)
        if len(others) == 1 and target in self.arrays[index].tensor.dims:
            words = f"AllToAll_{{{axis},{target}}}({self.arrays[index]}) at once"
            if self.choose(axis, words, offered=True):
                self.lonely.discard(axis)

    def can_slice(self, axis: Axis, others: list[tuple[int, Dim]]) -> bool:
        """Say whether case 2 can be done the other way round: all that have the dim can be split."""
        if not isinstance(self.op, Einsum) or len(others) != 1:
            return False
        index, dim = others[0]
        rest = [a for i, a in enumerate(self.arrays) if i != index and dim in a.tensor.dims]
        alone = self.arrays[index].axes(dim) == (axis,)
        return bool(rest) and alone and not any(axis in a.layout.used for a in rest)

    def slicing(self, axis: Axis, where: tuple[int, Dim]) -> str:
        """Put case 2's other way into words."""
        index, dim = where
        rest = [a for i, a in enumerate(self.arrays) if i != index and dim in a.tensor.dims]
        scatter = self.wish_dim(axis)
        verb = f"ReduceScatter_{{{axis},{scatter}}}" if scatter else f"AllReduce_{axis}"
        return f"slice {rest[0]} to {dim}_{axis}, multiply, {verb}({self.tensor.name})"

    def slice_for_wish(self, axis: Axis) -> None:
        """Let the operands be sliced as the wish has it; `work` drops what can't be."""
        dim = self.wish_dim(axis)
        if dim is not None:
            self.home[axis] = dim
            self.whole.discard(axis)
            self.sliced.add(axis)

    def slice_contracted(self, axis: Axis, others: list[tuple[int, Dim]]) -> None:
        """Let a contracted dim be sliced over an axis that the result is wanted partial over."""
        dims = [dim for _, dim in others]
        dims = dims or [d for d in self.gone if self.divides(d, (*self.lists[d], axis))]
        if not dims:
            self.mask(axis)
            return
        if others:
            index, dim = others[0]
            own = self.arrays[index].axes(dim)
            if self.lists[dim] != own[: own.index(axis)]:
                self.whole.add(axis)
                self.mask(axis)
                return
            self.lists[dim] = own[: own.index(axis) + 1]
        else:
            self.lists[dims[0]] = (*self.lists[dims[0]], axis)
        self.home[axis] = dims[0]

    def mask(self, axis: Axis) -> None:
        """Keep on one device of an axis what makes the result a partial sum over it."""
        match self.op:
            case Linear(_, constant) if not constant:
                self.masked.update((index, axis) for index in range(len(self.arrays)))
            case (
                Einsum()
                | Divide()
                | Rename()
                | Rotary()
                | Reshape()
                | Take()
                | Put()
                | Reduce(kind="sum" | "mean")
            ):
                self.masked.add((0, axis))
            case Select(fill) if fill == 0:
                self.masked.add((1, axis))
            case _:
                pass

    def keep_or_gather(self, rule: Rule, axis: Axis, dim: Dim) -> None:
        """Rule 5: compute first, or gather the operand first where that is fewer bytes."""
        index = self.owner(axis, dim)
        self.home[axis] = dim
        self.explain(rule, axis, [*self.everyone, None], (index, dim))
        sharers = [array for array in self.arrays if axis in array.axes(dim)]
        words = f"gather {sharers[0]} over {axis} first"
        if len(sharers) == 1 and len(self.arrays) > 1 and self.choose(axis, words):
            self.home.pop(axis)
            self.whole.add(axis)
            self.lonely.add(axis)
            self.slice_for_wish(axis)

    def gather_one(self, rule: Rule, axis: Axis, kept: list[Dim]) -> None:
        """Case 4: keep the axis where the wish has it, else on what is dearest to gather."""
        wanted = self.wish_dim(axis)
        if wanted in kept:
            assert wanted is not None
            survivor = wanted
        else:
            first, *rest = sorted(kept, key=lambda dim: not self.exchanged(axis, dim, kept))
            words = [self.instead(axis, first, dim) for dim in rest]
            survivor = (first, *rest)[self.choose(axis, *words)]
        self.home[axis] = survivor
        for dim in kept:
            if dim != survivor:
                index = self.owner(axis, dim)
                self.explain(rule, axis, [index], (index, dim), survivor)
                self.lists[dim] = tuple(a for a in self.lists[dim] if a != axis)
        if self.wish is not None and wanted not in kept:
            self.keep_or_gather(KEPT_ELSEWHERE, axis, survivor)

    def exchanged(self, axis: Axis, dim: Dim, kept: list[Dim]) -> bool:
        """Say whether an axis is better kept on a dim where sizes don't say which of two is dearer.

        It is if the other operand has the dim too, so that it need not be gathered and one AllToAll moves
        its axis there (tokens to their experts), while the operand with the dim would have to be gathered;
        but not if it is a part of the other in size, as a bias is.
        """
        own = self.arrays[self.owner(axis, dim)].tensor.dims
        others = [(d, self.arrays[self.owner(axis, d)].tensor.dims) for d in kept if d != dim]
        return all(dim in dims and d not in own and not {*own} <= {*dims} for d, dims in others)

    def instead(self, axis: Axis, first: Dim, dim: Dim) -> str:
        """Put into words that an axis is kept on another dim than the first."""
        array = self.arrays[self.owner(axis, first)]
        if dim in array.tensor.dims:
            return f"AllToAll_{{{axis},{dim}}}({array}) instead"
        return f"gather {array} over {axis} instead"

    # --- what comes out -----------------------------------------------------------------------

    def divides(self, dim: Dim, axes: Axes) -> bool:
        """Say whether axes divide a dim, as far as the sizes are known."""
        if dim.name not in self.sizes:
            return True
        product = 1
        for axis in axes:
            product *= self.sizes.get(axis.name, 1)
        return self.sizes[dim.name] % product == 0

    def work(self) -> dict[Dim, Axes]:
        """Give the axes that each dim is split over while computing."""
        work = {
            dim: tuple(a for a in axes if self.home.get(a) == dim)
            for dim, axes in self.lists.items()
        }
        for dim in self.in_order():
            base, wanted = work.get(dim, ()), self.wished(dim)
            if wanted[: len(base)] != base or not self.may_split(dim, work):
                continue
            for axis in wanted[len(base) :]:
                longer = (*base, axis)
                if axis not in self.sliced or not self.divides(dim, longer):
                    break
                base = longer
            work[dim] = base
        return work

    def in_order(self) -> list[Dim]:
        """Give the result's dims, the factors of a reshaped one from the outside in."""
        factors = self.op.factors if isinstance(self.op, Reshape) else ()
        return [*factors, *(dim for dim in self.tensor.dims if dim not in factors)]

    def may_split(self, dim: Dim, work: Mapping[Dim, Axes]) -> bool:
        """Say whether the operation can be done with a dim of the result split by one more axis."""
        if dim in needed_whole(self.op):
            return False
        if not isinstance(self.op, Reshape) or dim not in self.op.factors:
            return True
        before = self.op.factors[: self.op.factors.index(dim)]
        return all(used_up(factor, work[factor], self.sizes) for factor in before)

    def decision(self) -> Decision:
        """Put the axes' rows together."""
        work = self.work()
        stages: list[tuple[Layout, ...]] = []
        for index, array in enumerate(self.arrays):
            left = {a for a in array.layout.unreduced if (index, a) not in self.reduced}
            partial = left | {axis for i, axis in self.masked if i == index}
            reduction = array.layout.reduction if left else "sum"
            final = Layout(
                tuple(work[dim] for dim in array.tensor.dims), frozenset(partial), reduction
            )
            lonely = [a for a in array.layout.split_axes if a in self.lonely]
            if lonely and any(a in final.split_axes for a in lonely):
                first = Layout(
                    tuple(tuple(a for a in axes if a not in lonely) for axes in final.sharding),
                    final.unreduced,
                    final.reduction,
                )
                wanted = (first, final)
            else:
                wanted = (final,)
            given = self.given[index].tensor
            stages.append(tuple(given_as(self.op, given, layout) for layout in wanted))
        arrays = tuple(
            array.with_layout(layouts[-1])
            for array, layouts in zip(self.given, stages, strict=True)
        )
        declared = Layout(tuple(work.get(dim, ()) for dim in self.tensor.dims))
        declared = given_as(self.op, self.made, declared)
        result = local(self.op, arrays, self.made, declared, self.sizes)
        assert not isinstance(result, Illegal), f"the rules left {arrays}: {result.why}"
        return Decision(tuple(stages), result, self.because, tuple(self.points))


KEPT_ELSEWHERE = lookup(Split.KEPT, Partial.NONE, Wish.NOWHERE)

MOST_CANDIDATES = 64
"""How many combinations of choices are priced; an operation has rarely more than four."""


def decide(
    op: Compute,
    arrays: tuple[Array, ...],
    tensor: Tensor,
    wish: Layout | None,
    sizes: Mapping[str, int],
    price: Price,
    open_over: frozenset[Axis] = frozenset(),
) -> Decision:
    """Apply the table to one operation.

    `wish` is the layout wanted for the result, None where nothing is said; `sizes` are those known.
    `open_over` are the axes over which the result of partial sums may be one too.
    Where the rules leave a choice to sizes, every combination is priced as a whole, from the
    operands as they are to the result as wanted, and the cheapest is taken. Where a choice hangs on
    a size that is not known, the first option is taken, and the answer says when another is cheaper.
    """

    def attempt(script: tuple[int, ...]) -> Decision:
        situation = _Situation(op, arrays, tensor, wish, sizes, script=script, open_over=open_over)
        situation.prepare()
        axes = {axis for array in arrays for axis in array.layout.used}
        if wish is not None:
            axes |= wish.used
        for axis in sorted(axes):
            situation.settle(axis)
        return situation.decision()

    best, script = attempt(()), tuple[int, ...]()
    if not best.points:
        return best
    candidates = _candidates(attempt, best)
    cost = Posynomial.of(price(best))
    for other, decision in candidates.items():
        if any(o and point.offered for o, point in zip(other, decision.points, strict=False)):
            continue
        found = Posynomial.of(price(decision))
        if found.less(cost, sizes):
            best, script, cost = decision, other, found
    choices: list[Choice] = []
    for place, point in enumerate(best.points):
        chosen = script[place] if place < len(script) else 0
        for option, words in enumerate(point.options, start=1):
            other = (*(*script, *(0,) * (place - len(script)))[:place], option)
            if option == chosen or other not in candidates:
                continue
            found = Posynomial.of(price(candidates[other]))
            condition = found.condition(cost, sizes, offered=point.offered)
            if condition is not None:
                choices.append(Choice(words, condition))
    return replace(best, choices=tuple(choices))


def _candidates(
    attempt: Callable[[tuple[int, ...]], Decision], first: Decision
) -> dict[tuple[int, ...], Decision]:
    """Try every combination of options, as far as there are not too many."""
    found: dict[tuple[int, ...], Decision] = {}
    waiting: list[tuple[tuple[int, ...], Decision]] = [((), first)]
    while waiting and len(found) < MOST_CANDIDATES:
        script, decision = waiting.pop(0)
        for place in range(len(script), len(decision.points)):
            for option in range(1, len(decision.points[place].options) + 1):
                longer = (*script, *(0,) * (place - len(script)), option)
                found[longer] = attempt(longer)
                waiting.append((longer, found[longer]))
    return found
