"""The lint of explicit programs: lines that move more than others that make the same.

Two kinds of changes are looked for. The *moves* of a value in a pass are compared with cheaper ones
from the same roots to the same wants; and an *operation* is tried on other shards, with the moves of
all values around it found anew, as long as it takes no more FLOPs. Operations that read one array are
tried together, and so are neighbors where a change alone neither saves nor costs.

Every warning is proven before it is given: the changed text is read and checked again, has to have
the same leaves, results and cotangents and exactly the steps that were meant, and to move less by
the amount named. Sizes that are left open are taken to be any: what is cheaper at some of them only
gets no warning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cache
from itertools import islice
from math import prod

from shardlang.advice.edit import edited, Item
from shardlang.advice.errors import (
    AddFirst,
    CheaperWay,
    Costly,
    Detour,
    ReduceAfter,
    ReducedThenSliced,
    TooMany,
    TooWide,
)
from shardlang.advice.flow import (
    axes_of,
    difference,
    Flow,
    Forest,
    held,
    PASSES,
    Place,
    UnknownRouteError,
)
from shardlang.backends.units import si
from shardlang.cost.formula import common_factor, Formula, monomial_text
from shardlang.cost.symbols import literal_size
from shardlang.diagnostics import Diagnostic, ShardlangError
from shardlang.ir.ops import (
    AllGather,
    AllReduce,
    Einsum,
    Linear,
    ReduceScatter,
    Relayout,
    Rename,
    Slice,
)
from shardlang.ir.plan import Pass, Plan, Step
from shardlang.ir.printer import axis_declaration, statement
from shardlang.ir.program import Program
from shardlang.ir.size import Monomial
from shardlang.ir.types import Array, Axis, Dim
from shardlang.passes import check, lower
from shardlang.passes.live import alive
from shardlang.planner.ways import Local, ways
from shardlang.rules.errors import Repeated, Unused

WAYS = 4000
"""Operations with more ways than this are left as they are."""

TIES = 12
"""How many changes that neither save nor cost are followed further from one operation."""

Changes = Mapping[int, Step]
"""Operations of one pass, by their numbers, done otherwise."""

Read = Callable[[str], Program]
"""Reads a changed text as the program was read: under the same name, sizes and mesh."""


@dataclass(frozen=True, slots=True)
class Advice:
    """A warning, what its fix saves a device, and the whole text after the fix.

    `text` is None where the fix can't be written line by line.
    """

    diagnostic: Diagnostic
    saved: Formula
    text: str | None


@dataclass(frozen=True, slots=True)
class Fixed:
    """A text in which nothing is left to fix, what was fixed, and the bytes that it saves in all."""

    text: str
    applied: tuple[Diagnostic, ...]
    saved: Formula


def lint(
    program: Program,
    found: Sequence[Diagnostic],
    read: Read | None = None,
    prices: str = "link",
) -> list[Advice]:
    """List what an explicit program may do cheaper; `found` is what checking it gave, without errors.

    `prices` says what counts as bytes: what a device sends (`link`), or the book's (`book`).

    Warnings of repeated and unused lines among `found` come back with what they cost.
    """
    plan = _checked(program)
    assert plan is not None
    return _Lint(plan, found, read or _reader(program), prices).run()


def advised(
    program: Program, found: Sequence[Diagnostic], prices: str = "link"
) -> list[Diagnostic]:
    """Give the warnings of an explicit program: those found by checking it, and the lint's."""
    listed = [d for d in found if not isinstance(d.mistake, Repeated | Unused)]
    listed += [advice.diagnostic for advice in lint(program, found, prices=prices)]
    return sorted(listed, key=lambda d: (d.span.start, d.span.end))


def fix(program: Program, read: Read | None = None, prices: str = "link") -> Fixed:
    """Apply fixes until none is left: each step is checked, so the last text is as right as the first.

    The program has no errors. `read` reads a changed text; without it, with the program's sizes.
    """
    reader = read or _reader(program)
    applied: list[Diagnostic] = []
    saved = Formula()
    while True:
        plan = _checked(program)
        assert plan is not None
        warnings = check(program, explicit=True)
        # All at once is proven once; where that fails, or lines are useless, one after the other.
        work = _Lint(plan, warnings, reader, prices, sure=False)
        found = work.run(quick=True)
        whole = work.together() if len(found) == len(work.taken) else None
        if whole is None:
            listed = _Lint(plan, warnings, reader, prices).run(quick=True)
            found = [advice for advice in listed if advice.text is not None][:1]
        if not found:
            text = _without_claims(program.source.text) if applied else program.source.text
            return Fixed(text, tuple(applied), saved)
        best = whole or found[0]
        assert best.text is not None
        applied += [advice.diagnostic for advice in found]
        saved += best.saved
        program = replace(reader(best.text), explicit=True)


def _without_claims(text: str) -> str:
    """Take out the comment in which `lower` said what a search had proven: it was of other lines."""
    lines = text.split("\n")
    return "\n".join(x for x in lines if not x.startswith(("// optimal: ", "// best found: ")))


def _reader(program: Program) -> Read:
    """Read other texts with the mesh and the sizes of a program."""

    def read(text: str) -> Program:
        from shardlang.frontend.resolve import load_text, Overrides  # noqa: PLC0415 (loads lark)

        mesh = ", ".join(axis_declaration(info) for info in program.mesh.axes)
        sizes = {info.dim.name: info.size for info in program.dims if info.size is not None}
        given = Overrides(
            {name: size for name, size in sizes.items() if literal_size(name) is None},
            mesh or None,
            forward_only=not program.has_backward,
        )
        return load_text(text, program.source.name, given)

    return read


def _checked(program: Program) -> Plan | None:
    try:
        return lower(replace(program, explicit=True))
    except ShardlangError:
        return None


def _asks_more(old: Plan, new: Plan) -> bool:
    """Say whether a plan splits a dim whose size is open in a way for which another had no need."""
    sized = {info.dim for info in old.program.dims if info.size is not None}
    had = _splits(old)
    return any(
        dim not in sized
        and literal_size(dim.name) is None
        and not any(other == dim and axes <= wider for other, wider in had)
        for dim, axes in _splits(new)
    )


def _holds_more(old: Plan, new: Plan) -> bool:
    """Say whether a plan keeps for its backward pass what another makes again, as its `save` line asks."""
    if new.program.save.everything:
        return False
    return not {*held(new.forward, new.backward)} <= {*held(old.forward, old.backward)}


def _splits(plan: Plan) -> set[tuple[Dim, frozenset[Axis]]]:
    """Give each dim with the sets of axes that split it somewhere."""
    return {
        (dim, frozenset(axes))
        for _, step in plan.steps()
        for array in (*step.inputs, step.output)
        for dim, axes in zip(array.tensor.dims, array.layout.sharding, strict=True)
        if axes
    }


def amount(saved: Formula) -> str:
    """Print bytes: a number with its unit, else a product with what is in brackets added up."""
    if not saved.names:
        return si(float(saved.value({}) or 0), "B")
    if len(saved.terms) == 1:
        return f"{monomial_text(saved.terms[0])} bytes"
    common = common_factor(saved.terms)
    inside = _sum_text([term / common for term in saved.terms])
    top = Monomial(
        Fraction(common.coefficient.numerator), tuple((n, p) for n, p in common.powers if p > 0)
    )
    bottom = Monomial(
        Fraction(common.coefficient.denominator), tuple((n, -p) for n, p in common.powers if p < 0)
    )
    text = f"({inside})" if top == Monomial() else f"{monomial_text(top)}*({inside})"
    if bottom == Monomial():
        return f"{text} bytes"
    below = monomial_text(bottom)
    return f"{text}/{f'({below})' if '*' in below else below} bytes"


def _sum_text(terms: Iterable[Monomial]) -> str:
    """Print a sum, the highest power first."""
    ordered = sorted(terms, key=lambda t: (-sum(p for _, p in t.powers), t.powers))
    text = ""
    for term in ordered:
        piece = monomial_text(term)
        sign = " - " if piece.startswith("-") else " + "
        text += f"{sign}{piece.removeprefix('-')}" if text else piece
    return text


@dataclass(frozen=True, slots=True)
class _Found:
    """A change that saves something: of moves alone, or of operations too."""

    section: Pass
    changes: Changes
    places: tuple[Place, ...]
    forests: Mapping[str, Forest]
    saved: Formula
    fewer: int = 0
    """How many collectives fewer there are, where no bytes are saved."""

    @property
    def values(self) -> set[str]:
        return {place.value for place in self.places}


@dataclass
class _Lint:
    """The lint at work on one plan; if not `sure`, changes are taken that are still to be proven."""

    plan: Plan
    found: Sequence[Diagnostic]
    read: Read
    prices: str = "link"
    sure: bool = True
    advice: list[Advice] = field(default_factory=list[Advice])
    touched: set[tuple[str, Pass]] = field(default_factory=set[tuple[str, Pass]])
    taken: list[_Found] = field(default_factory=list["_Found"])

    def __post_init__(self) -> None:
        """Lay the steps out."""
        self.steps: dict[Pass, tuple[Step, ...]] = {
            "forward": self.plan.forward,
            "backward": self.plan.backward,
        }
        self.flow = Flow(self.plan, self.steps, self.prices)

    def run(self, *, quick: bool = False) -> list[Advice]:
        """Find everything, the largest savings first, none two about the same value.

        If `quick`, operations are left for when nothing simpler is left to fix.
        """
        self.lines()
        moves = [m for place in self.flow.places.values() if (m := self.moves(place))]
        self.take(moves)
        if not quick or not any(a.text for a in self.advice):
            self.take([c for section in PASSES for c in self.operations(section)])
        return sorted(self.advice, key=lambda a: -self.flow.nominal(a.saved))

    def together(self) -> Advice | None:
        """Give all changes that were taken as one, if together they are what was meant."""
        if not self.taken:
            return None
        items: dict[Pass, list[Item]] = {
            p: [Item(s, i) for i, s in enumerate(self.steps[p])] for p in PASSES
        }
        saved = Formula()
        for section in PASSES:
            own = [found for found in self.taken if found.section == section]
            if not own:
                continue
            joint = _Found(
                section,
                {i: s for found in own for i, s in found.changes.items()},
                tuple(place for found in own for place in found.places),
                {v: forest for found in own for v, forest in found.forests.items()},
                Formula.sum(found.saved for found in own),
            )
            made = self._items(joint)
            if made is None:
                return None
            items[section] = made[section]
            saved += joint.saved
        text = edited(self.plan.program.source, self.steps, items)
        if text is None or self.same(text, items, saved) is None:
            return None
        return replace(self.advice[0], saved=saved, text=text)

    def take(self, found: Sequence[_Found]) -> None:
        """Take those that save most and touch nothing that another one touches."""
        for each in sorted(found, key=lambda f: -self.flow.nominal(f.saved)):
            keys: set[tuple[str, Pass]] = {(value, each.section) for value in each.values}
            if keys & self.touched:
                continue
            made = self.prove(each)
            if made is not None:
                self.touched |= keys
                self.taken.append(each)
                self.advice.append(made)

    # Repeated and unused lines --------------------------------------------------------------

    def lines(self) -> None:
        """Say of the lines that do nothing what they cost; leaving them out is the fix."""
        useless = self._useless()
        for diagnostic in self.found:
            if not isinstance(diagnostic.mistake, Repeated | Unused):
                continue
            places: list[tuple[Pass, int]] = [
                (section, i)
                for section in PASSES
                for i, step in enumerate(self.steps[section])
                if step.span == diagnostic.span and isinstance(step.op, Relayout)
            ]
            saved, gone = Formula(), set(places)
            for section, i in places:
                step = self.steps[section][i]
                saved += self.flow.price(step)
                self.touched.add((self.flow.member[step.output.name], section))
                if isinstance(diagnostic.mistake, Unused):
                    gone |= self._dependents(section, i, useless)
            items: dict[Pass, list[Item]] = {
                p: [Item(s, i) for i, s in enumerate(self.steps[p]) if (p, i) not in gone]
                for p in PASSES
            }
            extra = sum((self.flow.price(self.steps[p][i]) for p, i in gone - set(places)), saved)
            text = edited(
                self.plan.program.source, self.steps, items, [] if places else [diagnostic.span]
            )
            if text is not None and self.same(text, items, extra) is None:
                text = None
            mistake = replace(diagnostic.mistake, saved=amount(saved) if saved else None)
            self.advice.append(Advice(replace(diagnostic, mistake=mistake), extra, text))

    def _useless(self) -> set[tuple[Pass, int]]:
        ends = [g.gradient for g in self.plan.gradients]
        lives = alive(self.plan.forward, self.plan.backward, self.plan.outputs, ends)
        every: list[tuple[Pass, int]] = [(p, i) for p in PASSES for i in range(len(self.steps[p]))]
        return {place for place, living in zip(every, lives, strict=True) if not living}

    def _dependents(
        self, section: Pass, index: int, useless: set[tuple[Pass, int]]
    ) -> set[tuple[Pass, int]]:
        """Give the useless steps that read what a useless step makes, and those that read theirs."""
        gone = {self.steps[section][index].output}
        found: set[tuple[Pass, int]] = set()
        for p in PASSES[PASSES.index(section) :]:
            for i, step in enumerate(self.steps[p]):
                if p == section and i <= index:
                    continue
                if (p, i) in useless and gone.intersection(step.inputs):
                    gone.add(step.output)
                    found.add((p, i))
        return found

    # Moves ----------------------------------------------------------------------------------

    def moves(self, place: Place) -> _Found | None:
        """Find cheaper moves of a value in a pass."""
        if not place.moves or (place.value, place.section) in self.touched:
            return None
        old = self.flow.paid(place)
        many = sum(step.is_collective for step in self.flow.old(place))
        fewer: _Found | None = None
        for _ in self.flow.scopes([place]):
            forest = self.flow.forest(place, {})
            if forest is None:
                continue
            saved = difference(old, forest.bytes)
            found = _Found(place.section, {}, (place,), {place.value: forest}, saved)
            if self.flow.saves(saved):
                return found
            if not saved.terms and forest.collectives < many and fewer is None:
                fewer = replace(found, fewer=many - forest.collectives)
        return fewer

    # Operations -----------------------------------------------------------------------------

    def operations(self, section: Pass) -> list[_Found]:
        """Find operations of a pass that are cheaper on other shards."""
        found: list[_Found] = []
        for index in range(len(self.steps[section])):
            if not self._open(section, index):
                continue
            around = self._around(section, {index: self.steps[section][index]})
            for _ in self.flow.scopes(around):
                best = self._tried(lambda: self._best(section, index))  # noqa: B023 (called at once)
                if best is not None:
                    found.append(best)
                    break
        for place in self.flow.places.values():
            if place.section == section:
                found += self._readers(place)
        return found

    def _tried(self, search: Callable[[], _Found | None]) -> _Found | None:
        """Search, and give nothing where tensors have too many layouts."""
        try:
            return search()
        except UnknownRouteError:
            return None

    def _open(self, section: Pass, index: int) -> bool:
        """Say whether an operation may be done otherwise, and something around it moves."""
        step = self.steps[section][index]
        if isinstance(step.op, Relayout | Rename):
            return False
        places = self._around(section, {index: step})
        free = not any((p.value, section) in self.touched for p in places)
        return free and any(p.moves for p in places)

    def _around(self, section: Pass, changes: Changes) -> list[Place]:
        names = dict.fromkeys(
            self.flow.member[a.name] for s in changes.values() for a in (*s.inputs, s.output)
        )
        return [self.flow.places[name, section] for name in names]

    def _others(self, section: Pass, index: int, most: Fraction) -> Iterable[Step]:
        """List an operation's other ways that take no more FLOPs, as steps.

        Those whose moves are sure to cost more than `most`, at the nominal sizes, are left out.
        """
        step = self.steps[section][index]
        arrays = (*step.inputs, step.output)
        ends = [(self.flow.graph(a).space, a.tensor.dims) for a in arrays]
        axes = ends[0][0].axes
        used = {x for a in arrays for x in a.layout.split_axes}
        now = sum(1 << a for a, axis in enumerate(axes) if axis in used)
        own = [space.encode(a.layout) for (space, _), a in zip(ends, arrays, strict=True)]
        assert not isinstance(step.op, Relayout)
        listed = list(islice(ways(step.op, ends[:-1], ends[-1], self.flow.sizes), WAYS + 1))
        if len(listed) > WAYS:
            return
        floors = self._floors(section, index)
        for way in listed:
            codes = [*way.operands, way.result]
            if codes == own or not self._no_more(way.split, now, axes):
                continue
            least: dict[str, Fraction] = {}
            for floor, array, code in zip(floors, arrays, codes, strict=True):
                value = self.flow.member[array.name]
                least[value] = max(least.get(value, Fraction(0)), floor(code))
            if sum(least.values()) <= most:
                yield self._as_step(step, way)

    def _as_step(self, step: Step, way: Local) -> Step:
        codes = (*way.operands, way.result)
        arrays = [
            a.with_layout(self.flow.graph(a).space.decode(code))
            for a, code in zip((*step.inputs, step.output), codes, strict=True)
        ]
        return replace(step, inputs=tuple(arrays[:-1]), output=arrays[-1])

    def _no_more(self, new: int, now: int, axes: Sequence[Axis]) -> bool:
        """Say whether the work is divided at least as much; both are masks of axes."""
        if not self.flow.complete:
            return new & now == now
        sizes = [self.flow.mesh[axis].size or 1 for axis in axes]
        many = [prod(n for a, n in enumerate(sizes) if mask >> a & 1) for mask in (new, now)]
        return many[0] >= many[1]

    def _evaluate(self, section: Pass, changes: Changes) -> _Found | None:
        """Give what a change saves, in the nominal sizes' sense maybe nothing; None if it can't be."""
        places = self._around(section, {**changes, **self._originals(section, changes)})
        forests: dict[str, Forest] = {}
        before = after = Formula()
        for place in places:
            forest = self.flow.forest(place, changes)
            if forest is None:
                return None
            forests[place.value] = forest
            before += self.flow.paid(place)
            after += forest.bytes
        return _Found(section, changes, tuple(places), forests, difference(before, after))

    def _originals(self, section: Pass, changes: Changes) -> Changes:
        return {-1 - i: self.steps[section][i] for i in changes}

    def _floors(self, section: Pass, index: int) -> list[Callable[[int], Fraction]]:
        """Give, for each end of an operation, a price that its value's moves are not below.

        That is, of the value with the end in a state, the dearest single want from the nearest root.
        """
        step = self.steps[section][index]

        def floor(array: Array, *, result: bool) -> Callable[[int], Fraction]:
            place = self.flow.places[self.flow.member[array.name], section]
            graph = self.flow.graph(array)
            space = graph.space
            roots = {
                space.encode(a.layout)
                for a in (*place.given, *(a for i, a in place.made.items() if i != index))
            }
            reads = (a for i, own in place.reads.items() if i != index for a in own)
            wants = {space.encode(a.layout) for a in (*reads, *place.last)}

            def near(goal: int, state: int | None = None) -> int:
                found = [space.distances_from(root).get(goal) for root in roots]
                if state is not None:
                    found.append(space.distances_to(goal).get(state))
                return min((weight for weight in found if weight is not None), default=0)

            fixed = 0 if result else max((near(goal) for goal in wants), default=0)

            @cache
            def price(state: int) -> Fraction:
                if result:
                    return graph.cost(max((near(goal, state) for goal in wants), default=0))
                return graph.cost(max(fixed, near(state)))

            return price

        ends = [floor(array, result=False) for array in step.inputs]
        return [*ends, floor(step.output, result=True)]

    def _now(self, places: Iterable[Place]) -> Fraction:
        """Give what the moves of values cost now, at the nominal sizes."""
        return self.flow.nominal(Formula.sum(self.flow.paid(place) for place in places))

    def _best(self, section: Pass, index: int) -> _Found | None:
        """Find the best way of an operation, with neighbors where it alone changes nothing."""
        step = self.steps[section][index]
        around = self._around(section, {index: step})
        best: _Found | None = None
        ties: list[_Found] = []
        for other in self._others(section, index, self._now(around)):
            found = self._evaluate(section, {index: other})
            if found is None:
                continue
            if self.flow.saves(found.saved):
                best = self._better(best, found)
            elif not found.saved.terms:
                ties.append(found)
        return best if best is not None else self._follow(section, ties)

    def _better(self, best: _Found | None, found: _Found) -> _Found:
        if best is None:
            return found
        ahead = self.flow.nominal(found.saved) > self.flow.nominal(best.saved)
        return found if ahead else best

    def _follow(self, section: Pass, ties: list[_Found]) -> _Found | None:
        """Change a reader of what a change makes as well, where that change is even."""
        best: _Found | None = None
        for tie in ties[:TIES]:
            made = {self.flow.member[s.output.name] for s in tie.changes.values()}
            for value in made:
                for reader in self.flow.places[value, section].reads:
                    if reader in tie.changes or not self._open(section, reader):
                        continue
                    near = self._around(section, {0: self.steps[section][reader]})
                    if not self.flow.used(near) <= self.flow.scope:
                        continue
                    most = self._now({p.value: p for p in (*tie.places, *near)}.values())
                    for other in self._others(section, reader, most):
                        if not any(
                            a == s.output for a in other.inputs for s in tie.changes.values()
                        ):
                            continue
                        found = self._evaluate(section, {**tie.changes, reader: other})
                        if found is not None and self.flow.saves(found.saved):
                            best = self._better(best, found)
        return best

    def _readers(self, place: Place) -> list[_Found]:
        """Try operations that read one array on narrower shards of it, all together."""
        if len(place.reads) < 2 or not place.moves:
            return []
        by_array: dict[Array, list[int]] = {}
        for index, arrays in place.reads.items():
            for array in arrays:
                by_array.setdefault(array, []).append(index)
        found: list[_Found] = []
        for array, readers in by_array.items():
            if len(readers) < 2 or array in place.given:
                continue
            if not all(self._open(place.section, i) for i in readers):
                continue
            around = self._around(place.section, {i: self.steps[place.section][i] for i in readers})
            for _ in self.flow.scopes(around):
                best = self._tried(
                    lambda: self._together(place, array, readers)  # noqa: B023 (called at once)
                )
                if best is not None:
                    found.append(best)
                    break
        return found

    def _together(self, place: Place, array: Array, readers: Sequence[int]) -> _Found | None:
        ways_of: dict[int, dict[Array, list[Step]]] = {}
        most = self._now(
            self._around(place.section, {i: self.steps[place.section][i] for i in readers})
        )
        for index in readers:
            listed = ways_of[index] = {}
            for other in self._others(place.section, index, most):
                for own in other.inputs:
                    if own.tensor == array.tensor and own != array:
                        listed.setdefault(own, []).append(other)
        best: _Found | None = None
        for narrow in set.intersection(*(set(listed) for listed in ways_of.values())):
            changes: dict[int, Step] = {}
            for index in readers:
                options = ways_of[index][narrow]
                tried = [(self._evaluate(place.section, {**changes, index: o}), o) for o in options]
                able = [(self.flow.nominal(f.saved), o) for f, o in tried if f is not None]
                if not able:
                    break
                changes[index] = max(able, key=lambda pair: pair[0])[1]
            else:
                found = self._evaluate(place.section, changes)
                if found is not None and self.flow.saves(found.saved):
                    best = self._better(best, found)
        return best

    # Proof ----------------------------------------------------------------------------------

    def prove(self, found: _Found) -> Advice | None:
        """Write a change down, read it back, and give it as a warning if it is what was meant."""
        items = self._items(found)
        if items is None:
            return None
        source = self.plan.program.source
        text = edited(source, self.steps, items)
        if text is None or (self.sure and self.same(text, items, found.saved) is None):
            return None
        step = self._worst(found)
        if step is None or step.span is None:
            return None
        new = [i.step for p in PASSES for i in items[p] if self._is_new(p, i)]
        lines = tuple(statement(s) for s in new)
        mistake: Costly
        made = str(step.output)
        kind = _kind(found, step, self.steps[found.section])
        if kind in (Detour, CheaperWay) or found.fewer:
            made = str(self._leads(found, new))
        if found.fewer:
            mistake = TooMany(made, amount(found.saved), lines, found.fewer)
        else:
            mistake = kind(made, amount(found.saved), lines)
        return Advice(Diagnostic(source, step.span, mistake), found.saved, text)

    def _is_new(self, section: Pass, item: Item) -> bool:
        return item.old is None or item.step != self.steps[section][item.old]

    def _leads(self, found: _Found, new: Sequence[Step]) -> Array:
        """Give what the new lines are for: an operation's result, or the last layout they make."""
        for step in found.changes.values():
            return step.output
        made = [step.output for step in new]
        wants = {a for p in found.places for a in p.wants(found.changes, self.flow.member)}
        return next(
            (a for a in reversed(made) if a in wants), made[-1] if made else next(iter(wants))
        )

    def _worst(self, found: _Found) -> Step | None:
        """Give the dearest step that goes away."""
        new = {
            (s.op, s.inputs, s.output) for f in found.forests.values() for s in f.before.values()
        }
        gone = [
            step
            for place in found.places
            for step in self.flow.old(place)
            if (step.op, step.inputs, step.output) not in new
        ]
        return max(gone, key=lambda s: self.flow.nominal(self.flow.price(s)), default=None)

    def _items(self, found: _Found) -> dict[Pass, list[Item]] | None:
        """Put new moves in the place of old ones, as late as they are needed."""
        items: dict[Pass, list[Item]] = {
            p: [Item(s, i) for i, s in enumerate(self.steps[p])] for p in PASSES
        }
        before = {a: s for forest in found.forests.values() for a, s in forest.before.items()}
        have = {a for place in found.places for a in place.given}
        mine = {i for place in found.places for i in place.moves}
        values = found.values
        made: list[Item] = []

        def obtain(array: Array, old: int | None = None) -> bool:
            if array in have or self.flow.member.get(array.name) not in values:
                return True
            step = before.get(array)
            if step is None or not obtain(step.inputs[0]):
                return False
            have.add(array)
            made.append(Item(replace(step, span=None), old))
            return True

        steps = self.steps[found.section]
        for index, step in enumerate(steps):
            if index in mine:
                new = before.get(step.output)
                if new is None or step.output in have or not _rooted(new, before, have):
                    continue
                if (new.op, new.inputs) == (step.op, step.inputs) and step.inputs[0] in have:
                    have.add(step.output)
                    made.append(Item(step, index))
                else:
                    obtain(step.output, index)
                continue
            now = found.changes.get(index, step)
            if not all(obtain(array) for array in now.inputs):
                return None
            made.append(Item(now, index))
            have.add(now.output)
        last = dict.fromkeys(a for place in found.places for a in place.last)
        if not all(obtain(array) for array in last):
            return None
        items[found.section] = made
        return items

    def _crosses_more(self, old: Plan, new: Plan) -> bool:
        """Say whether a plan moves more over `@dcn` axes: bytes saved elsewhere don't make up for that."""
        slow = {info.axis for info in old.program.mesh.axes if info.network == "dcn"}

        def crossing(plan: Plan) -> Fraction:
            steps = [s for _, s in plan.steps() if slow.intersection(axes_of(s))]
            return self.flow.nominal(self.flow.total(steps)) if steps else Fraction(0)

        return bool(slow) and crossing(new) > crossing(old)

    def same(self, text: str, items: Mapping[Pass, Sequence[Item]], saved: Formula) -> Plan | None:
        """Read a changed text, and give its plan if it is legal, means the steps, and saves as said."""
        try:
            program = replace(self.read(text), explicit=True)
        except ShardlangError:
            return None
        plan = _checked(program)
        if plan is None:
            return None
        old = self.plan
        if _asks_more(old, plan) or _holds_more(old, plan) or self._crosses_more(old, plan):
            return None
        meant = {p: [_bare(item.step) for item in items[p]] for p in PASSES}
        ends = (plan.outputs, plan.cotangents, plan.gradients)
        if ends != (old.outputs, old.cotangents, old.gradients):
            return None
        before = [(x.array, x.word) for x in old.program.leaves]
        if before != [(x.array, x.word) for x in plan.program.leaves]:
            order = {x.array.name: n for n, (x) in enumerate(old.program.leaves)}
            leaves = sorted(plan.program.leaves, key=lambda x: order.get(x.array.name, -1))
            if before != [(x.array, x.word) for x in leaves]:
                return None
        if [_bare(s) for s in plan.forward] != meant["forward"]:
            return None
        if [_bare(s) for s in plan.backward] != meant["backward"]:
            return None
        total = difference(
            self.flow.total(s for _, s in old.steps()), self.flow.total(s for _, s in plan.steps())
        )
        return plan if total == saved else None


def _bare(step: Step) -> tuple[object, ...]:
    return step.op, step.inputs, step.output


def _rooted(step: Step, before: Mapping[Array, Step], have: set[Array]) -> bool:
    """Say whether all that leads to a new move is at hand."""
    source = step.inputs[0]
    while source not in have:
        earlier = before.get(source)
        if earlier is None:
            return False
        source = earlier.inputs[0]
    return True


def _kind(found: _Found, step: Step, steps: Sequence[Step]) -> type[Costly]:
    """Say what a change is an instance of; `step` is the dearest line that goes away."""
    new = [s for forest in found.forests.values() for s in forest.before.values()]
    if not found.changes:
        if isinstance(step.op, AllReduce) and any(
            isinstance(s.op, ReduceScatter) and set(axes_of(s)) & set(axes_of(step)) for s in new
        ):
            return ReducedThenSliced
        if isinstance(step.op, AllGather) and _narrower(step, new):
            return TooWide
        return Detour
    for index, changed in found.changes.items():
        more = changed.output.layout.unreduced - steps[index].output.layout.unreduced
        if (
            more
            and isinstance(changed.op, Linear)
            and isinstance(step.op, AllReduce | ReduceScatter)
        ):
            return AddFirst
        if more and isinstance(changed.op, Einsum) and isinstance(step.op, AllGather):
            return ReduceAfter
    if isinstance(step.op, AllGather) and _narrower(step, new):
        return TooWide
    return CheaperWay


def _narrower(step: Step, new: Iterable[Step]) -> bool:
    """Say whether a gathered value is gathered over fewer axes now, or over none, and not moved."""
    own = [s for s in new if s.output.tensor == step.output.tensor]
    return all(isinstance(s.op, AllGather | Slice) for s in own)
