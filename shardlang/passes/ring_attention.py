"""Ring attention: keys and values go round the devices, and no device has all of them, or the scores.

Precondition: a legal plan. Effect: where keys and values are gathered over the same axes for a softmax along the
dim that they are split by, those steps become `RingAttention`, and those of the backward pass that come from
them `RingAttentionBack`. What else reads the gathered arrays or the scores keeps a place as it is. Values
are the same but for rounding, layouts are kept.

What is looked for, with q split over the axes as well or not:

    k = AllGather(k); s = scale * q · k; s = where(index_S <= index_T, s, -inf); p = softmax_S(s)
    v = AllGather(v); o = p ·_S v

where k and v may be renamed (T to S) before or behind their gathers, and scale and mask may be missing. Backward,
the products that make the gradients of q, k and v are found by their operands; what lies between is not
read any more, and goes. In a program with stages nothing is: what goes round needs every device of the mesh at
once, and stages do different work.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from shardlang.ir.ops import (
    AllGather,
    Coefficient,
    Compare,
    Divide,
    Einsum,
    Linear,
    Map,
    Reduce,
    ReduceScatter,
    Relation,
    Rename,
    RingAttention,
    Select,
    Slice,
)
from shardlang.ir.plan import Plan, Step
from shardlang.ir.types import Array, Axis, Dim, DTYPES, Layout, Tensor
from shardlang.passes.live import mark_critical, prune, runs
from shardlang.rules.collectives import Illegal
from shardlang.rules.local import local

SHIFT = (Coefficient(), Coefficient(-Coefficient().value))


@dataclass(frozen=True)
class _Side:
    """Keys or values: gathered, and as shards, which a rename gives their dim where there is one."""

    whole: Array
    gather: Step
    shard: Array
    rename: Step | None

    @property
    def axes(self) -> tuple[Axis, ...]:
        """The axes that it is gathered over."""
        assert isinstance(self.gather.op, AllGather)
        return self.gather.op.axes

    def steps(self, like: Step) -> tuple[Step, ...]:
        """Give the step that renames the shards, where there is one, beside another step."""
        return () if self.rename is None else (replace(self.rename, loop=like.loop),)


@dataclass(frozen=True)
class _Found:
    """Attention in a forward pass: its last step, and what it is made of."""

    last: Step
    p: Array
    scores: Array
    q: Array
    k: _Side
    v: _Side
    summed: tuple[Dim, ...]
    dim: Dim
    scale: Coefficient
    relation: Relation | None
    sides: tuple[Array, ...]
    between: frozenset[Array]

    def forward(self, lse: Tensor) -> Step:
        """Give the step that stands for all of it."""
        layout = Layout(tuple(self.scores.axes(dim) for dim in lse.dims))
        op = self.op((Array(lse, layout),))
        inputs = (self.q, self.k.shard, self.v.shard, *self.sides)
        gather = self.k.gather
        return replace(self.last, op=op, inputs=inputs, rule=gather.rule, reason=gather.reason)

    def op(self, kept: tuple[Array, ...], *, back: bool = False) -> RingAttention:
        """Give the operation."""
        return RingAttention(
            self.k.axes, self.dim, self.summed, self.scale, self.relation, kept, back
        )


def with_ring_attention(plan: Plan) -> Plan:
    """Let keys and values go round wherever a plan gathers them for a softmax, but in no pipeline."""
    if plan.program.pipeline is not None:
        return plan
    while True:
        found = (_attention(plan.forward, place) for place in range(len(plan.forward)))
        written = (_written(plan, each) for each in found if each is not None)
        made = next((each for each in written if each is not None), None)
        if made is None:
            return plan
        plan = made


def in_between(plan: Plan) -> Step | None:
    """Give a function that a softmax's scores go through after the product, where its values are gathered.

    Rings have no such functions: of scores they know a factor and a mask.
    """
    steps = plan.forward
    for last, step in enumerate(steps):
        if not isinstance(step.op, Einsum) or len(step.op.contracted) != 1 or len(step.inputs) != 2:
            continue
        (dim,) = step.op.contracted
        makers = {array: s for s in steps[:last] for array in s.outputs}
        for p, values in (step.inputs, step.inputs[::-1]):
            soft = _softmax(makers, p, dim)
            if soft is None or _side(makers, values, dim) is None:
                continue
            todo = [soft[0]]
            while todo:
                maker = makers.get(todo.pop())
                if maker is None or isinstance(maker.op, Einsum):
                    continue
                if isinstance(maker.op, Map):
                    return maker
                todo += maker.inputs
    return None


def _written(plan: Plan, found: _Found) -> Plan | None:
    """Write one attention as a ring; None where something else reads what the ring never has."""
    o = found.last.output
    taken = {array.name for _, step in plan.steps() for array in (*step.inputs, *step.outputs)}
    name = f"{o.name}_lse"
    while name in taken:
        name += "'"
    dims = tuple(dim for dim in found.scores.tensor.dims if dim != found.dim)
    wide = found.q.tensor.dtype
    lse = Tensor(name, dims, wide if wide.bits > DTYPES["f32"].bits else DTYPES["f32"])
    ring = found.forward(lse)
    assert isinstance(ring.op, RingAttention)
    if isinstance(local(ring.op, ring.inputs, o.tensor), Illegal):
        return None

    def again(steps: Iterable[Step]) -> Iterator[Step]:
        for step in steps:
            if step.output == o and step.op == found.last.op:
                yield from (*found.k.steps(step), *found.v.steps(step))
                yield replace(ring, loop=step.loop)
            else:
                yield step

    backward = plan.backward
    if backward:
        made = _backward(plan, found, ring)
        if made is None:
            return None
        backward = made
    forward, backward = prune(
        tuple(again(plan.forward)), tuple(again(backward)), plan.outputs, plan.gradients
    )
    if any(array in found.between for s in (*forward, *backward) for array in s.outputs):
        return None
    forward, backward = mark_critical(plan.program, forward, backward, plan.outputs, plan.gradients)
    return replace(plan, forward=forward, backward=backward)


# --- the forward pass


def _attention(steps: Sequence[Step], last: int) -> _Found | None:
    """Recognise attention by its last step, the product with the values."""
    step = steps[last]
    if not isinstance(step.op, Einsum) or len(step.op.contracted) != 1 or len(step.inputs) != 2:
        return None
    (dim,) = step.op.contracted
    makers = {array: s for s in steps[:last] for array in s.outputs}
    for p, values in (step.inputs, step.inputs[::-1]):
        soft = _softmax(makers, p, dim)
        v = _side(makers, values, dim)
        if soft is None or v is None:
            continue
        scores, parts = soft
        found = _scores(makers, scores, dim)
        if found is None:
            continue
        q, keys, summed, scale, relation, sides, more = found
        k = _side(makers, keys, dim)
        if k is None or k.axes != v.axes:
            continue
        between = frozenset((*parts, *more, k.whole, v.whole, k.gather.output, v.gather.output))
        if set(summed) != set(values.tensor.dims) - set(scores.tensor.dims):
            continue
        return _Found(step, p, scores, q, k, v, summed, dim, scale, relation, sides, between)
    return None


def _softmax(
    makers: dict[Array, Step], p: Array, dim: Dim
) -> tuple[Array, tuple[Array, ...]] | None:
    """Give the scores that a softmax is of, and what lies between."""
    match makers.get(p):
        case Step(op=Divide(), inputs=(exp, total)):
            pass
        case _:
            return None
    match makers.get(total), makers.get(exp):
        case Step(op=Reduce("sum", dims), inputs=(summed,)), Step(op=Map("exp"), inputs=(shifted,)):
            if dims != (dim,) or summed != exp:
                return None
        case _:
            return None
    match makers.get(shifted):
        case Step(op=Linear(coefficients), inputs=(scores, most)) if coefficients == SHIFT:
            pass
        case _:
            return None
    match makers.get(most):
        case Step(op=Reduce("max", dims), inputs=(same,)) if dims == (dim,) and same == scores:
            return scores, (p, exp, shifted, scores)
        case _:
            return None


def _scores(
    makers: dict[Array, Step], scores: Array, dim: Dim
) -> (
    tuple[
        Array, Array, tuple[Dim, ...], Coefficient, Relation | None, tuple[Array, ...],
        tuple[Array, ...],
    ]
    | None
):  # fmt: skip
    """Give what scores are made of: q, k, the dims summed over, scale and mask, and what lies between."""
    scale, relation, sides = Coefficient(), None, tuple[Array, ...]()
    between: list[Array] = []
    while True:
        step = makers.get(scores)
        between.append(scores)
        match step:
            case Step(op=Select(None), inputs=(mask, inner)) if relation is None:
                found = _mask(makers, mask, dim)
                if found is None:
                    return None
                relation, sides = found
                scores = inner
            case Step(op=Linear((factor,), constant), inputs=(inner,)) if (
                not constant and scale == Coefficient() and inner.tensor.dims == scores.tensor.dims
            ):
                scale, scores = factor, inner
            case Step(op=Einsum(summed), inputs=(one, other)) if summed:
                q, k = (one, other) if dim in other.tensor.dims else (other, one)
                if dim in q.tensor.dims or dim not in k.tensor.dims:
                    return None
                return q, k, summed, scale, relation, sides, tuple(between)
            case _:
                return None


def _mask(
    makers: dict[Array, Step], mask: Array, dim: Dim
) -> tuple[Relation, tuple[Array, ...]] | None:
    """Give what a mask compares: two whole arrays of one dim each, one of them that of the keys."""
    match makers.get(mask):
        case Step(op=Slice(), inputs=(inner,)):
            return _mask(makers, inner, dim)
        case Step(op=Compare(relation, None), inputs=(one, other)):
            dims = [array.tensor.dims for array in (one, other)]
            whole = not one.layout.used and not other.layout.used
            if whole and [len(each) for each in dims] == [1, 1] and (dim,) in dims:
                return relation, (one, other)
            return None
        case _:
            return None


def _side(makers: dict[Array, Step], whole: Array, dim: Dim) -> _Side | None:
    """Follow keys or values back to their shards, through a gather and a rename."""
    match makers.get(whole):
        case Step(op=AllGather(_, own), inputs=(shard,)) as gather if own == dim:
            return _Side(whole, gather, shard, None)
        case Step(op=Rename(dims), inputs=(inner,)) as rename:
            gather = makers.get(inner)
            if gather is None or not isinstance(gather.op, AllGather):
                return None
            place = inner.tensor.dims.index(gather.op.dim)
            shard = gather.inputs[0]
            if dims[place] != dim or whole.tensor.dims != dims or shard.tensor != inner.tensor:
                return None
            named = whole.with_layout(shard.layout)
            return _Side(whole, gather, named, replace(rename, inputs=(shard,), output=named))
        case _:
            return None


# --- the backward pass


def _backward(plan: Plan, found: _Found, ring: Step) -> tuple[Step, ...] | None:
    """Write the gradient as a ring: in place of the products that make dq, dk and dv, which it makes."""
    steps = plan.backward
    key, value, scores = (set(x.tensor.dims) for x in (found.k.whole, found.v.whole, found.scores))

    def products(one: Array, dims: set[Dim]) -> list[tuple[Step, Array]]:
        """Give the products of an array that have some dims, each with its other operand."""
        return [
            (step, next(a for a in step.inputs if a != one))
            for step in steps
            if isinstance(step.op, Einsum)
            and one in step.inputs
            and len(set(step.inputs)) == 2
            and set(step.output.tensor.dims) == dims
        ]

    of_v = [each for each in products(found.p, value) if each[1].layout == ring.output.layout]
    of_k = [each for each in products(found.q, key) if set(each[1].tensor.dims) == scores]
    of_q = [
        each
        for each in products(found.k.whole, set(found.q.tensor.dims))
        if set(each[1].tensor.dims) == scores
    ]
    if not len(of_v) == len(of_k) == len(of_q) == 1 or of_k[0][1] != of_q[0][1]:
        return None
    ends = [_end(steps, each[0].output, found) for each in (of_k[0], of_v[0])]
    known = [end for end in ends if end is not None]
    if len(known) < 2:
        return None
    kept = tuple(each[0] for each in known)
    last = of_q[0][0]
    (lse,) = ring.outputs[1:]
    inputs = (of_v[0][1], found.q, found.k.shard, found.v.shard, ring.output, lse, *found.sides)
    op = found.op(kept, back=True)
    back = replace(last, op=op, inputs=inputs, rule=ring.rule, reason=ring.reason)
    if isinstance(local(op, inputs, last.output.tensor), Illegal):
        return None
    gone = {id(step) for _, each in known for step in each}
    renames = [replace(each[-1], inputs=(each_kept,)) for each_kept, each in known if len(each) > 1]
    written: list[Step] = []
    for step in steps:
        if step is last:
            written += (*found.k.steps(step), *found.v.steps(step), back, *renames)
        elif id(step) not in gone:
            written.append(step)
    return tuple(_ordered(written))


def _end(
    steps: Sequence[Step], partial: Array, found: _Found
) -> tuple[Array, tuple[Step, ...]] | None:
    """Follow the gradient of keys or values to where its sums are scattered.

    Gives what the ring makes in its place, and the steps that are not done: the scatter and, where
    there is one, the rename, with the output that it then has.
    """
    rename: Step | None = None
    array = partial
    while True:
        readers = [step for step in steps if array in step.inputs]
        if len(readers) != 1:
            return None
        step = readers[0]
        match step.op:
            case ReduceScatter(axes) if axes == found.k.axes:
                if rename is None:
                    return step.output, (step,)
                named = Array(partial.tensor, step.output.layout)
                return named, (step, rename, replace(rename, output=step.output))
            case Rename() if rename is None and step.output.tensor.dims == step.op.dims:
                rename, array = step, step.output
            case _:
                return None


def _ordered(steps: Iterable[Step]) -> Iterator[Step]:
    """Let steps wait for what they read, where it is made later in their run."""
    for _, run in runs(steps):
        coming = [array for step in run for array in step.outputs]
        made: set[Array] = set()
        waiting: list[Step] = []
        later = frozenset(coming)
        for step in run:
            waiting.append(step)
            ready = True
            while ready:
                ready = False
                for each in waiting:
                    if made.issuperset(later.intersection(each.inputs) - set(each.outputs)):
                        waiting.remove(each)
                        made.update(each.outputs)
                        yield each
                        ready = True
                        break
        yield from waiting
