"""From chosen ways to a plan: the steps of both passes, in an order in which they can run.

Every operation is done as chosen; what it reads is moved there right before, along the value's tree,
and what has to be had is moved right after it is made. In a block that holds for what is a layer's own: what
its lines read of the values outside is moved before the block, what they add up over the layers behind it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

import numpy as np

from shardlang.ir.ops import Coefficient, Compute, Linear
from shardlang.ir.plan import Pass, Plan, Step
from shardlang.ir.program import Block
from shardlang.ir.types import Array, Tensor
from shardlang.passes.keep import made_again_for_nothing, named
from shardlang.passes.live import mark_critical
from shardlang.passes.stages import sends
from shardlang.planner.problem import Operation, Problem, Value
from shardlang.planner.reasons import with_reasons
from shardlang.planner.regions import COPY, Region
from shardlang.planner.reshard import steps_along
from shardlang.planner.trees import halves, Trees
from shardlang.planner.update import ended, updated
from shardlang.source import Span


@dataclass(frozen=True, slots=True)
class Meeting:
    """Where parts of a sum are added: at a state, each part being a source or added before."""

    state: int
    parts: tuple[tuple[int | Meeting, tuple[int, ...]], ...]
    """Each part with the nodes of its route here."""


@dataclass(slots=True)
class Routes:
    """How a value comes to every layout that it is had in."""

    root: int
    sum: Meeting | None
    before: dict[Array, Step] = field(default_factory=dict[Array, Step])


class Builder:
    """Appends the steps of one pass after the other."""

    def __init__(self, problem: Problem, trees: Sequence[Trees], ways: Mapping[int, int]) -> None:
        """Settle the tree of every value."""
        self.problem = problem = problem.settled(ways)
        self.ways = ways
        self.trees = trees
        self.routes = [self._routes(index) for index in range(len(problem.values))]
        self.steps: dict[Pass, list[Step]] = {"forward": [], "backward": []}
        self.section: Pass = "forward"
        self.block: Block | None = None
        self.body: list[Step] = []
        self.ends: set[Array] = set()
        self.shown: dict[Array, Array] = {}
        self.given = {(region, array) for (region, _), array in problem.homes.items()}
        self.made = set(self.given)
        self.kept = set(problem.passed(ways))
        self.owner = dict(problem.regions.owner)
        self.names = {s.result.name for s in problem.program.statements}
        self.names |= {array.name for _, array in self.given}
        self.names |= {operation.result.name for operation in problem.operations}
        self.names |= set(problem.alias)

    def state(self, slot: int) -> int:
        """Give the state that was chosen for a slot."""
        where = self.problem.slots[slot]
        operation = self.problem.operations[where.op]
        return int(operation.states[where.end][self.ways[where.op]])

    # Trees ----------------------------------------------------------------------------------

    def _routes(self, index: int) -> Routes:
        value, trees = self.problem.values[index], self.trees[index]
        wanted = [*(self.state(s) for s in value.targets), *value.terminals]
        sources = [self.state(s) for s in value.sources]
        if not wanted:
            return Routes(value.root or 0, None)
        if len(sources) > 1:
            root, meeting = self._sum(value, trees, sources, wanted)
        else:
            root, meeting = (sources[0] if sources else value.root or 0), None
        made = Routes(root, meeting)
        start = root
        legs: list[tuple[int, ...]] = []
        space = value.graph.space
        if value.once and not value.whole[root]:
            start = trees.reduced(root, wanted)
            legs.append(tuple(space.trail(value.codes[root], value.codes[start])))
        goals = sorted({value.codes[state] for state in wanted if state != start})
        if len(goals) == 1:
            legs.append(tuple(space.trail(value.codes[start], goals[0])))
        elif goals:
            tree = space.tree(value.codes[start], goals)
            assert tree is not None
            legs += tree.legs
        home = Array(value.tensor, value.layout(root))
        for leg in legs:
            source = Array(value.tensor, space.decode(leg[0]))
            for step in steps_along(value.graph, source, leg):
                if step.output != home:
                    made.before.setdefault(step.output, step)
        self._as_stated(value, made, home)
        return made

    def _as_stated(self, value: Value, routes: Routes, home: Array) -> None:
        """Let what a stated collective makes come from it, also where another route costs as little."""
        if value.section == "backward" and value.tensor.name in self.problem.split:
            return
        for before, after in self.problem.made.get(value.tensor.name, ()):
            source, target = (Array(value.tensor, layout) for layout in (before, after))
            at = source
            while at in routes.before and at != target:
                at = routes.before[at].inputs[0]
            if target in routes.before and at == home != target:
                ends = (value.graph.space.encode(before), value.graph.space.encode(after))
                (routes.before[target],) = steps_along(value.graph, source, ends)

    def _sum(
        self, value: Value, trees: Trees, sources: list[int], wanted: list[int]
    ) -> tuple[int, Meeting]:
        """Give where a sum is complete, and how its parts come there."""
        there, meet, whole = trees.inside(sources, wanted)
        every = (1 << len(sources)) - 1
        root = int(np.argmin(meet[every] + whole))
        space = value.graph.space

        def meeting(subset: int, state: int) -> Meeting:
            own = float(meet[subset][state]) - float(trees.adding[state])
            one, two = next(
                (a, b) for a, b in halves(subset) if there[a][state] + there[b][state] == own
            )
            parts: list[tuple[int | Meeting, tuple[int, ...]]] = []
            for part in (one, two):
                if part & (part - 1):
                    begin = int(np.argmin(meet[part] + trees.cost.into(state)))
                    inner = meeting(part, begin)
                    if begin == state:
                        parts += inner.parts
                        continue
                    made: int | Meeting = inner
                else:
                    made = part.bit_length() - 1
                    begin = sources[made]
                trail = space.trail(value.codes[begin], value.codes[state])
                parts.append((made, tuple(trail)))
            return Meeting(state, tuple(parts))

        return root, meeting(every, root)

    # Steps ----------------------------------------------------------------------------------

    @property
    def among(self) -> Region:
        """The block whose lines are written."""
        return None if self.block is None else self.block.number

    def place(self, array: Array) -> tuple[Region, Array]:
        """Give an array with the region of which it is one."""
        among = self.among
        if among is not None and array.name in self.problem.regions.handed[among]:
            return among, array
        return self.owner.get(array.name), array

    def add(self, step: Step) -> Array:
        """Append a step, unless what it makes is at hand: to its block, or before the block."""
        place = self.place(step.output)
        if place in self.made:
            return step.output
        self.made.add(place)
        inside = replace(step, loop=self.block)
        if place[0] is not None or inside.accumulates:
            self.body.append(inside)
        else:
            self.steps[self.section].append(step)
        return step.output

    def obtain(self, array: Array, span: Span | None) -> Array:
        """Have a value in a layout that its tree leads to."""
        view = self.problem.alias.get(array.name)
        if view is not None and view[0] == COPY and array not in self.ends:
            return self.obtain(Array(view[1], array.layout), span)
        if view is not None:
            return self._view(array, *view, span)
        if self.place(array) in self.made:
            return array
        routes = self.routes[self.problem.at(array.tensor, self.section, self.among)]
        step = routes.before.get(array)
        if step is None:
            self._add_up(array.tensor, span)
            assert self.place(array) in self.made, f"{array} is made by nothing"
            return array
        source = self.obtain(step.inputs[0], span)
        return self.add(replace(step, inputs=(source,), rule="optimal", span=span))

    def _view(self, array: Array, op: Compute, original: Tensor, span: Span | None) -> Array:
        """Have a view of a value: in every other layout of a pass it gets another name.

        A name stands for one computation. An output or gradient that is a view keeps its own.
        """
        if array in self.shown:
            return self.shown[array]
        source = self.obtain(Array(original, array.layout), span)
        kept = any(array.name == end.name for end in self.ends)
        again = any(array.name == other.name for other in self.shown)
        name = array.name
        if array not in self.ends and (kept or again):
            name = self._fresh(name, array.name)
        made = Array(replace(array.tensor, name=name), array.layout)
        self.shown[array] = self.add(Step(op, (source,), made, "view", span=span))
        return made

    def _add_up(self, tensor: Tensor, span: Span | None) -> None:
        """Add the contributions to a gradient."""
        index = self.problem.at(tensor, self.section, self.among)
        value, routes = self.problem.values[index], self.routes[index]
        assert routes.sum is not None, f"{tensor.name} is made by nothing"
        slots = [self.problem.slots[s] for s in value.sources]

        def part(made: int | Meeting) -> Array:
            if isinstance(made, Meeting):
                return together(made, self._fresh(f"{tensor.name}_sum", tensor.name))
            operation = self.problem.operations[slots[made].op]
            own = operation.result if operation.op is not None else operation.operands[0]
            state = self.state(value.sources[made])
            return self.obtain_part(Array(own, value.layout(state)), operation, span)

        def together(meeting: Meeting, name: str) -> Array:
            operands: list[Array] = []
            for made, trail in meeting.parts:
                array = part(made)
                for step in steps_along(value.graph, array, trail):
                    array = self.add(replace(step, rule="optimal", span=span))
                operands.append(array)
            total = Tensor(name, tensor.dims, tensor.dtype)
            op = Linear((Coefficient(),) * len(operands))
            output = Array(total, value.layout(meeting.state))
            return self.add(Step(op, tuple(operands), output, "optimal", span=span))

        together(routes.sum, tensor.name)

    def obtain_part(self, array: Array, operation: Operation, span: Span | None) -> Array:
        """Have a contribution: one that an operation made for the sum, or a value passed into it."""
        return self.obtain(array, span) if operation.op is None else array

    def _fresh(self, name: str, like: str) -> str:
        """Give a name that nothing has, for a value of the region of another one."""
        found, number = name, 2
        while found in self.names:
            found, number = f"{name}{number}", number + 1
        self.names.add(found)
        handed = self.among is not None and like in self.problem.regions.handed[self.among]
        region = self.among if handed else self.owner.get(like)
        if region is not None:
            self.owner[found] = region
        return found

    def run(self, outputs: Sequence[Array], gradients: Sequence[Array]) -> None:
        """Append all operations, each after what it reads, then what has to be had of its result."""
        left = [len(value.sources) for value in self.problem.values]
        ends: dict[Pass, list[Array]] = {
            "forward": list(outputs),
            "backward": list(gradients),
        }
        for section, wanted in ends.items():
            self.section, self.ends = section, set(wanted)
            if section == "backward":
                self._forget()
            carries = [c for s, _, c in self.problem.regions.handing() if s == section]
            self._given(None, {carry.exit.name for carry in carries})
            for region, run in groupby(self._order(section), key=self._during):
                self._enter(region)
                behind: list[tuple[int, Span | None]] = []
                for index in run:
                    self._line(index, left, behind)
                self._leave(wanted)
                for value, span in behind:
                    self._terminals(value, span)
            for array in wanted:
                if self.place(array)[0] is None:
                    self.obtain(array, None)

    def _during(self, index: int) -> Region:
        return self.problem.operations[index].during

    def _order(self, section: Pass) -> list[int]:
        """List the operations of a pass; what each layer passes on comes at the end of its block."""
        operations = self.problem.operations
        found = [
            index
            for index, each in enumerate(operations)
            if each.section == section and not each.chooses
        ]
        if section == "backward":
            return found
        last: dict[Region, int] = {}
        for index in found:
            if operations[index].op is not None:
                last[self._during(index)] = index
        end = len(operations)

        def place(index: int) -> tuple[int, int]:
            keeps = operations[index].op is None
            return last.get(self._during(index), end) if keeps else index, index

        return sorted(found, key=place)

    def _line(self, index: int, left: list[int], behind: list[tuple[int, Span | None]]) -> None:
        """Append an operation; what is to be moved behind the block that it is in is put off."""
        operation = self.problem.operations[index]
        for array in self.problem.shown.get(index, ()) if self.section == "forward" else ():
            self.obtain(array, None)
        self._operation(index, operation)
        slot = self.problem.slots[operation.slots[-1]]
        if not slot.source or (operation.op is None and self.section == "forward"):
            return
        left[slot.value] -= 1
        if left[slot.value]:
            return
        if operation.region is not None and self.problem.values[slot.value].region is None:
            behind.append((slot.value, operation.span))
        else:
            self._terminals(slot.value, operation.span)

    def _given(self, region: Region, later: Collection[str] = ()) -> None:
        """Have what has to be had of the values that are given in a region, but for some."""
        for index, value in enumerate(self.problem.values):
            here = (value.region, value.section) == (region, self.section)
            if here and value.root is not None and value.tensor.name not in later:
                self._terminals(index, None)

    def _enter(self, region: Region) -> None:
        """Begin the lines of a block, or those outside."""
        self.block = None
        if region is not None:
            self.block = self.problem.regions.loops[self.section, region]
            self._given(region)

    def _leave(self, wanted: Sequence[Array]) -> None:
        """End a block: each layer has its outputs and gradients, and behind it is what it hands on."""
        block, region = self.block, self.among
        if block is None:
            return
        for array in wanted:
            if self.owner.get(array.name) == region:
                self.obtain(array, None)
        self.steps[self.section] += [*self.body, *sends(block)]
        self.body, self.block = [], None
        names = {carry.exit.name for carry in block.carries}
        for index, value in enumerate(self.problem.values):
            if value.region is None and value.root is not None and value.tensor.name in names:
                self._terminals(index, None)

    def _operation(self, index: int, operation: Operation) -> None:
        if operation.op is None and operation.section == "forward":
            value = self.problem.values[self.problem.slots[operation.slots[0]].value]
            kept = Array(operation.result, value.layout(self.state(operation.slots[0])))
            self.kept.add(self.place(self.obtain(kept, operation.span)))
        if operation.op is None:
            return
        way = operation.ways[self.ways[index]]
        values = [self.problem.values[self.problem.slots[s].value] for s in operation.slots]
        inputs = tuple(
            self.obtain(Array(tensor, value.graph.space.decode(code)), operation.span)
            for tensor, value, code in zip(operation.operands, values, way.operands, strict=False)
        )
        output = Array(operation.result, values[-1].graph.space.decode(way.result))
        self.add(Step(operation.op, inputs, output, "optimal", span=operation.span))

    def _terminals(self, index: int, span: Span | None) -> None:
        value = self.problem.values[index]
        for state in value.terminals:
            self.obtain(Array(value.tensor, value.layout(state)), span)

    def _forget(self) -> None:
        """Drop the copies of parameters that are not kept, what is not saved, and all views."""
        stay = self.given | self.kept
        self.shown.clear()
        self.made = {
            place for place in self.made if place in stay or place[1].name not in self.problem.split
        }


def build_plan(
    problem: Problem, trees: Sequence[Trees], ways: Mapping[int, int], book: Plan
) -> Plan:
    """Write the plan of an assignment out; `book` says what it begins and ends with."""
    builder = Builder(problem, trees, ways)
    gradients = ended(problem, ways, book)
    builder.run(book.outputs, [each.gradient for each in gradients])
    forward, backward = (tuple(steps) for steps in builder.steps.values())
    forward, backward = mark_critical(book.program, forward, backward, book.outputs, gradients)
    plan = replace(
        book,
        strategy="optimal",
        forward=forward,
        backward=backward,
        gradients=gradients,
        alternatives=(),
        warnings=(),
        update=(),
    )
    plan = with_reasons(named(made_again_for_nothing(plan)))
    return replace(plan, update=updated(problem, plan, (*plan.forward, *plan.backward)))
