"""Blocks written out: a program or a plan with each layer's lines one after the other, and no block.

That is what a block means. Layer i has the values and leaves of a block under names with `_i` behind,
counted from 0. Nothing is sent between stages: all layers are on one. Each layer begins with the values that it is handed as copies of its own, in the layout
that the block says (`x_1 = x2_0`), so that no layer uses what another one has gathered; so the lines behind
the block begin with what the last layer hands on. Copies in one layout move nothing and take no memory. What
is prefetched stands one layer ahead.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from shardlang.ir.ops import Coefficient, Linear, RingAttention
from shardlang.ir.plan import Gradient, Plan, Step
from shardlang.ir.program import Block, Leaf, Program, Save, Statement, Use
from shardlang.ir.types import Array, Layout, Tensor
from shardlang.passes.layers import bodies, left_inside, members, stack
from shardlang.passes.live import runs
from shardlang.passes.overlap import ahead

COPY = Linear((Coefficient(),))


@dataclass(frozen=True)
class Unrolled:
    """A plan with its blocks written out.

    `origins` are the steps of the plan with blocks that its steps are of, in order, None for those that
    hand values on. `layers` gives the block and the layer of each value that is one a layer, by its name.
    """

    plan: Plan
    origins: tuple[Step | None, ...]
    layers: Mapping[str, tuple[int, int]]


def unroll(program: Program, count: int | Mapping[int, int]) -> Program:
    """Write the blocks of a program out, each with `count` layers, or as many as its number has.

    Of an explicit program the forward pass is written out alone. Raises `ShardlangError` where the
    program has no plan.
    """
    if not program.blocks:
        return program
    return _Writer.of(program, count).program()


def unroll_plan(plan: Plan, count: int | Mapping[int, int]) -> Unrolled:
    """Write the blocks of a plan out, each with `count` layers, or as many as its number has."""
    layouts = {
        carry.exit.name: carry.layout
        for step in plan.forward
        if step.loop is not None
        for carry in step.loop.carries
    }
    writer = _Writer.of(plan.program, count, layouts)
    return writer.unrolled(plan)


@dataclass
class _Writer:
    """Writes layers: `inside` names the values of each block, `layouts` has where exits live."""

    source: Program
    counts: Mapping[int, int]
    layouts: Mapping[str, Layout | None]
    inside: Mapping[int, frozenset[str]]
    taken: set[str]
    names: dict[tuple[str, int, int], str] = field(default_factory=dict[tuple[str, int, int], str])
    layers: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])

    @staticmethod
    def of(
        program: Program,
        count: int | Mapping[int, int],
        layouts: Mapping[str, Layout | None] | None = None,
    ) -> _Writer:
        """Prepare for a program."""
        if layouts is None:
            layouts = _layouts(program)
        blocks = program.blocks
        counts = {b.number: count if isinstance(count, int) else count[b.number] for b in blocks}
        taken = {leaf.array.name for leaf in program.leaves}
        taken |= {s.result.name for s in program.statements}
        taken |= {f"d{name}" for name in taken}
        inside = {block.number: members(program, block) for block in blocks}
        return _Writer(program, counts, layouts, inside, taken)

    # --- names

    def name(self, name: str, number: int, layer: int) -> str:
        """Give the name of a layer's value; that of its gradient follows it."""
        key = (name, number, layer)
        if key not in self.names:
            base = name[1:]
            if name.startswith("d") and base in self.inside[number]:
                found = f"d{self.name(base, number, layer)}"
            else:
                found = f"{name}_{layer}"
                while found in self.taken:
                    found += "'"
            self.names[key] = found
            self.taken.add(found)
            self.layers[found] = (number, layer)
        return self.names[key]

    def tensor(self, tensor: Tensor, number: int, layer: int) -> Tensor:
        """Give a layer's value."""
        return replace(tensor, name=self.name(tensor.name, number, layer))

    def array(self, array: Array, number: int, layer: int, own: frozenset[str]) -> Array:
        """Give an array of a layer; one of the lines outside is the same in all."""
        if array.name not in own:
            return array
        return Array(self.tensor(array.tensor, number, layer), array.layout)

    # --- programs

    def program(self) -> Program:
        """Give the program."""
        source = self.source
        statements: list[Statement] = []
        for block, run in bodies(s for s in source.statements if s.section == "forward"):
            if block is None:
                statements += run
            else:
                statements += self.statements(block, run)
        return replace(
            source,
            statements=tuple(statements),
            leaves=tuple(leaf for old in source.leaves for leaf in self.leaves(old)),
            dims=tuple(i for i in source.dims if i.dim not in {b.dim for b in source.blocks}),
            save=self.save(),
            prefetch=frozenset(),
            has_backward=False,
        )

    def statements(self, block: Block, run: list[Statement]) -> Iterator[Statement]:
        """Write out a block of the forward pass."""
        number, own = block.number, self.inside[block.number]

        def handed(old: Tensor, new: Tensor, layout: Layout | None) -> Statement:
            span = run[0].span
            return Statement(COPY, (Use(old, None, span),), new, layout, span, follows=new)

        count = self.counts[number]
        for layer in range(count):
            for carry in block.carries:
                before = self.tensor(carry.exit, number, layer - 1) if layer else carry.entry
                mine = self.tensor(carry.entry, number, layer)
                yield handed(before, mine, self.layouts.get(carry.exit.name))
            for statement in run:
                yield self.statement(statement, number, layer, own)
        for carry in block.carries:
            last = self.tensor(carry.exit, number, count - 1)
            yield handed(last, carry.exit, self.layouts.get(carry.exit.name))

    def statement(
        self, statement: Statement, number: int, layer: int, own: frozenset[str]
    ) -> Statement:
        """Write a line of a layer."""

        def use(old: Use) -> Use:
            if old.tensor.name not in own:
                return old
            return replace(old, tensor=self.tensor(old.tensor, number, layer))

        target, follows = statement.target, statement.follows
        ends = {c.exit for c in statement.block.carries} if statement.block is not None else set()
        if target is None and statement.result in ends:
            target, follows = self.layouts.get(statement.result.name), statement.result
        return replace(
            statement,
            operands=tuple(use(old) for old in statement.operands),
            result=self.tensor(statement.result, number, layer),
            target=target,
            follows=follows,
            block=None,
        )

    def leaves(self, leaf: Leaf) -> Iterator[Leaf]:
        """Give the leaves of all layers."""
        number = self.block_of(leaf)
        if number is None:
            yield replace(leaf, loop=None, pipeline=None)
            return
        for layer in range(self.counts[number]):
            array = self.array(leaf.array, number, layer, self.inside[number])
            yield replace(leaf, array=array, loop=None, pipeline=None)

    def block_of(self, leaf: Leaf) -> int | None:
        """Give the number of the block that has a leaf a layer."""
        if leaf.loop is None:
            return None
        return next((n for n, own in self.inside.items() if leaf.array.name in own), None)

    def save(self) -> Save:
        """Name what is kept in every layer; what layers hand on always is."""
        save, names = self.source.save, set[str]()
        for name in save.names:
            found = [n for n, own in self.inside.items() if name in own]
            layers = [self.name(name, n, i) for n in found for i in range(self.counts[n])]
            names.update(layers or [name])
        if save.everything:
            return replace(save, names=frozenset(names))
        given = {leaf.array.name for leaf in self.source.leaves}
        for block in self.source.blocks:
            for carry in block.carries:
                names |= {carry.entry.name, carry.exit.name} - given
                count = range(self.counts[block.number])
                names.update(self.name(carry.entry.name, block.number, i) for i in count)
        return replace(save, names=frozenset(names))

    # --- plans

    def unrolled(self, plan: Plan) -> Unrolled:
        """Write out a plan of the program."""
        self.taken.update(step.output.name for _, step in plan.steps())
        forward = list(self.steps(plan, plan.forward, back=False))
        backward = list(self.steps(plan, plan.backward, back=True))
        update = list(self.steps(plan, plan.update, back=False))
        gradients: list[Gradient] = []
        for each in plan.gradients:
            leaf = next(x for x in plan.program.leaves if x.array == each.leaf)
            number = self.block_of(leaf)
            own = frozenset({each.leaf.name, each.gradient.name})
            if number is None:
                gradients.append(each)
                continue
            for layer in range(self.counts[number]):
                pair = (self.array(a, number, layer, own) for a in (each.leaf, each.gradient))
                gradients.append(Gradient(*pair))
        made = replace(
            plan,
            program=self.program(),
            forward=tuple(step for step, _ in forward),
            backward=tuple(step for step, _ in backward),
            outputs=tuple(self.ends(plan, plan.outputs)),
            cotangents=tuple(self.ends(plan, plan.cotangents)),
            gradients=tuple(gradients),
            update=tuple(step for step, _ in update),
        )
        origins = tuple(origin for _, origin in (*forward, *backward, *update))
        return Unrolled(made, origins, self.layers)

    def ends(self, plan: Plan, arrays: Iterable[Array]) -> Iterator[Array]:
        """Give outputs or their cotangents, those of all layers where each has one."""
        own = self.left(plan)
        for array in arrays:
            if array.name not in own:
                yield array
                continue
            number = own[array.name]
            for layer in range(self.counts[number]):
                yield self.array(array, number, layer, frozenset({array.name}))

    def left(self, plan: Plan) -> dict[str, int]:
        """Give the outputs that each layer has, and their cotangents, with their block's number."""
        outputs = [output.tensor for output in plan.outputs]
        found: dict[str, int] = {}
        for block in plan.program.blocks:
            for tensor in left_inside(plan.program, outputs, block):
                found[tensor.name] = found[f"d{tensor.name}"] = block.number
        return found

    def steps(
        self, plan: Plan, steps: Iterable[Step], *, back: bool
    ) -> Iterator[tuple[Step, Step | None]]:
        """Write out one pass: its steps, each with the step that it is of."""
        left = self.left(plan)
        for block, run in runs(steps):
            if block is None:
                yield from ((step, step) for step in run)
                continue
            number = block.number
            own = {step.output.name for step in run}.union(self.inside[number])
            own |= {carry.entry.name for carry in block.carries}
            own |= {name for name, n in left.items() if n == number}
            own |= {f"d{leaf.array.name}" for leaf in stack(plan.program, block)}
            mine = (s for _, s in plan.steps() if s.loop is not None and s.loop.number == number)
            own |= {array.name for s in mine for array in s.outputs[1:]}
            yield from self.body(block, run, frozenset(own), back=back)

    def body(
        self, block: Block, run: list[Step], own: frozenset[str], *, back: bool
    ) -> Iterator[tuple[Step, Step | None]]:
        """Write out a block of a plan."""
        number = block.number
        order = range(self.counts[number])
        sums: dict[str, Array] = {}
        before: int | None = None
        layers = tuple(reversed(order)) if back else tuple(order)
        early = ahead(self.source, run)

        def written(step: Step, layer: int) -> tuple[Step, Step]:
            inputs = tuple(self.array(a, number, layer, own) for a in step.inputs)
            output = self.array(step.output, number, layer, own)
            op = step.op
            if isinstance(op, RingAttention):
                op = replace(op, kept=tuple(self.array(a, number, layer, own) for a in op.kept))
            return replace(step, op=op, inputs=inputs, output=output, loop=None), step

        yield from (written(step, layer) for step in early for layer in layers[:1])
        for place, layer in enumerate(layers):
            last = place == len(layers) - 1
            for carry in block.carries:
                old = carry.exit if before is not None else carry.entry
                source = old if before is None else self.tensor(old, number, before)
                yield _handed(source, self.tensor(carry.entry, number, layer), carry.layout)
            following = layers[place + 1 : place + 2]
            yield from (written(step, after) for step in early for after in following)
            for step in (step for step in run if not step.sends):
                if step.accumulates:
                    part = self.array(step.inputs[0], number, layer, own)
                    yield from self.added(step, part, sums, layer, last=last)
                elif step not in early:
                    yield written(step, layer)
            before = layer
        assert before is not None
        for carry in block.carries:
            yield _handed(self.tensor(carry.exit, number, before), carry.exit, carry.layout)

    def added(
        self, step: Step, part: Array, sums: dict[str, Array], layer: int, *, last: bool
    ) -> Iterator[tuple[Step, Step | None]]:
        """Add a layer's part to the sum over the layers before it."""
        assert step.loop is not None
        name = step.output.name
        parts = (sums[name], part) if name in sums else (part,)
        sums[name] = part
        if len(parts) == 2 or last:
            tensor = step.output.tensor
            made = tensor if last else self.tensor(tensor, step.loop.number, layer)
            sums[name] = Array(made, step.output.layout)
            op = Linear((Coefficient(),) * len(parts))
            yield replace(step, op=op, inputs=parts, output=sums[name], loop=None), None


def _handed(old: Tensor, new: Tensor, layout: Layout | None) -> tuple[Step, None]:
    assert layout is not None
    step = Step(COPY, (Array(old, layout),), Array(new, layout), "local", "handed on")
    return step, None


def _layouts(program: Program) -> dict[str, Layout | None]:
    """Give where the values live that layers hand on, by the names of the exits."""
    from shardlang.passes import lower  # noqa: PLC0415  (which writes blocks out nowhere)

    plan = lower(program, forward_only=True)
    blocks = {step.loop for step in plan.forward if step.loop is not None}
    return {carry.exit.name: carry.layout for block in blocks for carry in block.carries}
