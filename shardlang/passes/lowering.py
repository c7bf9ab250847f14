"""The state of a lowering: the values at hand in each layout, and the steps made so far.

Precondition: arrays asked for have been made, or their tensor is a leaf or can be made again.
Effect: every step is appended in an order in which it can run; a layout made once in a pass is used
again by whoever asks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction

from shardlang.ir.ops import Compute, Relayout, Rename
from shardlang.ir.plan import Alternative, Step
from shardlang.ir.printer import expression
from shardlang.ir.program import Block
from shardlang.ir.size import Monomial
from shardlang.ir.types import Array, Axis, Layout, subscript, Tensor
from shardlang.passes.reshard import Move, nominal, route
from shardlang.passes.stages import sends
from shardlang.rules.collectives import Illegal
from shardlang.rules.local import local
from shardlang.rules.price import book_bytes
from shardlang.rules.situation import Because, decide, Decision
from shardlang.rules.whole import assumed
from shardlang.source import Span


@dataclass(frozen=True, slots=True)
class Reason:
    """The name of a row, and its sentence."""

    rule: str
    text: str


@dataclass(frozen=True, slots=True)
class View:
    """A value under other dim names: whatever is done to it is done to the value itself."""

    op: Rename
    original: Tensor


@dataclass(frozen=True, slots=True)
class Delayed:
    """A term that waits for its sum: where it is wanted, and why it would be reduced."""

    hint: Layout | None
    because: Mapping[Axis, Because]


@dataclass
class Scope:
    """A block that is being lowered.

    `around` are the values of the lines outside, those that were made again for the block included;
    `hidden` is what the lines outside have at hand of values that the block has otherwise, `before`
    the steps before it. With `outer` set, all steps go there.
    """

    block: Block
    around: set[str]
    hidden: dict[str, list[Array]]
    before: list[Step]
    outer: bool = False

    def outside(self, step: Step) -> bool:
        """Say whether a step is one of the lines outside: each layer would do the same."""
        copy = isinstance(step.op, Relayout) and step.rule != "stated"
        return self.outer or (copy and step.output.name in self.around)


@dataclass
class Lowering:
    """Makes the steps of one pass.

    `home` is where each value lives, `at_hand` every layout of it that exists now, in the order
    they were made. `recompute` makes a value that the pass was not given;
    `reserved` are names that later values will have, `open_parts` those that are left as they are made,
    `partial_over` the axes over which parts of an expression are left partial, `terms` the parts that
    are reduced no sooner than the sum that they are in asks for it, `delayed` those that wait for it.
    `permutes` says whether values may be laid out anew by a Permute.
    """

    sizes: dict[str, int]
    permutes: bool = True
    home: dict[str, Layout] = field(default_factory=dict[str, Layout])
    at_hand: dict[str, list[Array]] = field(default_factory=dict[str, list[Array]])
    steps: list[Step] = field(default_factory=list[Step])
    alternatives: list[Alternative] = field(default_factory=list[Alternative])
    recompute: Callable[[Tensor], None] | None = None
    reserved: set[str] = field(default_factory=set[str])
    open_parts: frozenset[str] = frozenset()
    partial_over: Mapping[str, frozenset[Axis]] = field(default_factory=dict[str, frozenset[Axis]])
    terms: frozenset[str] = frozenset()
    delayed: dict[str, Delayed] = field(default_factory=dict[str, "Delayed"])
    views: dict[str, View] = field(default_factory=dict[str, "View"])
    scope: Scope | None = None
    warnings: list[str] = field(default_factory=list[str])

    def add(self, step: Step) -> Array:
        """Append a step; what it makes is at hand from then on.

        Within a block, a copy of a value of the lines outside is made once, before the block.
        """
        if self.scope is None:
            self.steps.append(step)
        elif self.scope.outside(step):
            self.scope.before.append(step)
        else:
            self.steps.append(replace(step, loop=self.scope.block))
        known = self.at_hand.setdefault(step.output.name, [])
        if step.output not in known:
            known.append(step.output)
        return step.output

    def enter(self, block: Block, inside: Mapping[str, list[Array]]) -> None:
        """Begin a block, with what its lines alone have at hand."""
        around = set(self.at_hand).difference(inside)
        hidden = {name: self.at_hand[name] for name in inside if name in self.at_hand}
        self.scope = Scope(block, around, hidden, self.steps)
        self.home.update((c.entry.name, c.layout) for c in block.carries if c.layout is not None)
        self.steps = []
        self.at_hand.update((name, list(arrays)) for name, arrays in inside.items())

    def send(self) -> None:
        """End a stage of a pipeline: what its last layer hands on is sent to the next stage."""
        assert self.scope is not None
        for step in sends(self.scope.block):
            self.add(step)

    def leave(self) -> dict[str, list[Array]]:
        """End the block; give what its lines had at hand.

        Behind it there are the values that it hands on, where they live, and its sums over layers.
        """
        scope, made = self.scope, {step.output for step in self.steps}
        assert scope is not None
        own = {n: a for n, a in self.at_hand.items() if n not in scope.around}
        self.at_hand = {
            name: [array for array in arrays if array not in made]
            for name, arrays in self.at_hand.items()
            if name in scope.around
        }
        self.at_hand.update(scope.hidden)
        for carry in scope.block.carries:
            assert carry.layout is not None
            self.home[carry.exit.name] = carry.layout
            self.at_hand[carry.exit.name] = [Array(carry.exit, carry.layout)]
        for step in self.steps:
            if step.accumulates:
                self.at_hand[step.output.name] = [step.output]
        self.steps = [*scope.before, *self.steps]
        self.scope = None
        return own

    def fresh(self, name: str) -> str:
        """Give a name that no value of the pass has or will have."""
        found, number = name, 2
        while found in self.home or found in self.reserved:
            found, number = f"{name}{number}", number + 1
        return found

    def view(self, tensor: Tensor, op: Rename, original: Tensor) -> None:
        """Let a tensor be another under other dim names: it is at hand wherever that one is."""
        self.views[tensor.name] = View(op, original)
        self.home[tensor.name] = self.array(original).layout
        self.at_hand.setdefault(tensor.name, [])

    def give(self, array: Array) -> None:
        """Put an array at hand that no step makes, at home where nothing of it was known."""
        self.home.setdefault(array.name, array.layout)
        self.at_hand.setdefault(array.name, []).append(array)

    def array(self, tensor: Tensor) -> Array:
        """Give a value where it lives; one that lives unreduced and was reduced, as it was reduced.

        So no value is reduced twice, and what compares a value with its own maximum sees the same
        bits in both.
        """
        if tensor.name not in self.at_hand and self.recompute is not None:
            self.recompute(tensor)
        array = Array(tensor, self.home[tensor.name])
        if array.layout.unreduced:
            whole = [a for a in self.at_hand[tensor.name] if not a.layout.unreduced]
            return whole[0] if whole else array
        return array

    def obtain(
        self,
        tensor: Tensor,
        layout: Layout,
        why: Mapping[Axis, Because] | Reason,
        span: Span | None = None,
    ) -> Array:
        """Give a value in a layout: from what is at hand, by the fewest collectives."""
        self.array(tensor)
        known = self.at_hand[tensor.name]
        wanted = Array(tensor, layout)
        if wanted in known:
            return wanted
        view = self.views.get(tensor.name)
        if view is not None:
            source = self.obtain(view.original, layout, why, span)
            return self.add(Step(view.op, (source,), wanted, "view", span=span))
        whole = [array for array in known if not array.layout.unreduced]
        if (
            whole and not layout.unreduced
        ):  # a value is reduced once: its copies are equal bit by bit
            known = whole
        routes = [(array, self.route(array, layout)) for array in known]
        source, moves = min(routes, key=lambda found: self.price(*found))
        return self.follow(source, moves, why, span)

    def route(self, array: Array, layout: Layout) -> list[Move]:
        """Give the moves that bring an array into a layout."""
        return route(array, layout, self.sizes, permutes=self.permutes)

    def price(self, source: Array, moves: list[Move]) -> tuple[int, Fraction, bool, int]:
        """Order routes to a layout: by collectives, then by nominal bytes, then from home."""
        moved, collectives = nominal(source, moves, self.sizes)
        return collectives, moved, source.layout != self.home[source.name], len(moves)

    def follow(
        self,
        array: Array,
        moves: Iterable[Move],
        why: Mapping[Axis, Because] | Reason,
        span: Span | None = None,
    ) -> Array:
        """Append the steps of a route."""
        for move in moves:
            if move.output not in self.at_hand.get(array.name, ()):
                reason = why if isinstance(why, Reason) else _reason(move, why)
                self.add(Step(move.op, (array,), move.output, reason.rule, reason.text, span=span))
            array = move.output
        return array

    def compute(
        self,
        op: Compute,
        arrays: tuple[Array, ...],
        result: Tensor,
        wish: Layout | None,
        span: Span | None = None,
        *,
        end: Callable[[Array], Layout] | None = None,
    ) -> tuple[Array, Decision]:
        """Append an operation with what its operands need; its result is as the rules leave it.

        `end` gives the layout that the caller will bring the result to, for prices.
        """

        def price(decision: Decision) -> tuple[Monomial, ...]:
            return self.moved(arrays, Array(result, decision.result), decision, end)

        open_over = self.partial_over.get(result.name, frozenset())
        decision = decide(op, arrays, result, wish, self.sizes, price, open_over)
        ready: list[Array] = []
        for place, (array, stages) in enumerate(zip(arrays, decision.stages, strict=True)):
            why = decision.reasons(place)
            made = [self.obtain(array.tensor, stage, why, span) for stage in stages]
            ready.append(made[-1])
        output = Array(result, decision.result)
        made = self.add(Step(op, tuple(ready), output, _main_rule(decision), "", span=span))
        taken = assumed(op, ready[0], self.sizes)
        if taken is not None:
            axes, factor = taken
            self.warnings.append(
                f"{expression_of(op, tuple(ready), output)}: {subscript(axes)[1:]} is taken to divide "
                f"{factor}, whose size is not known"
            )
        for choice in decision.choices:
            self.alternatives.append(
                Alternative(expression_of(op, arrays, output), choice.instead, choice.cheaper_when)
            )
        return made, decision

    def moved(
        self,
        arrays: tuple[Array, ...],
        made: Array,
        decision: Decision,
        end: Callable[[Array], Layout] | None,
    ) -> tuple[Monomial, ...]:
        """Give the bytes of each collective that a decision asks for, operands and result."""
        terms: list[Monomial] = []
        legs = [
            (array, stage)
            for array, stages in zip(arrays, decision.stages, strict=True)
            for array, stage in zip((array, *map(array.with_layout, stages)), stages, strict=False)
        ]
        if end is not None:
            legs.append((made, end(made)))
        for start, goal in legs:
            array = start
            for move in self.route(start, goal):
                terms.append(book_bytes(move.op, array, move.output))
                array = move.output
        return tuple(term for term in terms if term.coefficient)

    def local(
        self, op: Compute, arrays: tuple[Array, ...], result: Tensor, span: Span | None
    ) -> Array | Illegal:
        """Append an operation that may not communicate, or say why it can't be done so."""
        layout = local(op, arrays, result, sizes=self.sizes)
        if isinstance(layout, Illegal):
            return layout
        return self.add(Step(op, arrays, Array(result, layout), "local", "", span=span))


def expression_of(op: Compute, arrays: tuple[Array, ...], output: Array) -> str:
    """Print an operation over operands as they were given."""
    return f"{expression(op, [str(array) for array in arrays])} -> {output}"


def _main_rule(decision: Decision) -> str:
    names = list(dict.fromkeys(because.rule.name for because in decision.because.values()))
    return ", ".join(names) or "local"


def _reason(move: Move, because: Mapping[Axis, Because]) -> Reason:
    """Give the reason of a move: that of its axes."""
    axes = getattr(move.op, "axes", ())
    found = [because[axis] for axis in axes if axis in because]
    if not found:
        return Reason("reshard", f"the value is wanted as {move.output}")
    rules = list(dict.fromkeys(b.rule.name for b in found))
    texts = list(dict.fromkeys(b.reason for b in found))
    return Reason(", ".join(rules), "; ".join(texts))
