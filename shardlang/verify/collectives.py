"""The collectives of a plan, and those in what JAX lowered, in one form that compares.

Decides what makes two collectives the same: kind, local operand shape and dtype, the groups of
devices (ordered where the order matters), and the dims that they join, split or exchange.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from shardlang.backends.jax.sizes import Numbers
from shardlang.backends.jax.train import loss_of, moves_home
from shardlang.ir.ops import (
    AllGather,
    AllReduce,
    AllToAll,
    Permute,
    ReduceScatter,
    Ring,
    RingAttention,
)
from shardlang.ir.plan import Pass, Plan, Step
from shardlang.ir.types import Array, Axis, Dim
from shardlang.passes.live import alive, runs
from shardlang.passes.normal import without_axes
from shardlang.passes.overlap import ahead
from shardlang.passes.stages import stage_sums
from shardlang.passes.update import of_all_layers
from shardlang.verify.result import CollectivesCheck
from shardlang.verify.sizes import ticks

MLIR_DTYPES: Mapping[str, str] = {
    "f64": "f64", "f32": "f32", "bf16": "bf16", "f16": "f16", "f8e4m3": "f8E4M3FN",
    "f8e5m2": "f8E5M2", "int64": "i64", "int32": "i32", "int16": "i16", "int8": "i8", "int4": "i4",
    "uint32": "ui32", "uint16": "ui16", "uint8": "ui8", "uint4": "ui4", "bool": "i1",
}  # fmt: skip
"""StableHLO's names of the element types."""

Groups = tuple[tuple[int, ...], ...]

NO_PARTS: Mapping[Dim, int] = {}
"""No dim is divided further."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One collective: what is compared."""

    kind: str
    operand: str
    groups: Groups
    detail: str = ""

    def __str__(self) -> str:
        """Print it on one line."""
        groups = " ".join(str(list(group)) for group in self.groups)
        return f"{self.kind}({self.operand}) {self.detail} groups {groups}".replace("  ", " ")


def planned(plan: Plan, numbers: Numbers, wanted: Iterable[Pass]) -> Counter[Seen]:
    """List the collectives of the plan's passes that reach an output or a gradient, in all layers.

    JAX leaves out the others (see `idle`). Axes of size 1 have none. Of the forward pass alone those
    count that reach an output: what only the backward pass reads is not part of `forward`. With the
    update they are those of a training step, with all of its microbatches.
    """
    ones = frozenset(axis for axis, size in numbers.axes.items() if size == 1)
    passes = set(wanted)
    plan = without_axes(plan, ones)
    forward = plan.forward if "forward" in passes else ()
    backward = plan.backward if "backward" in passes else ()
    gradients = [g.gradient for g in plan.gradients] if "backward" in passes else []
    lives = alive(forward, backward, plan.outputs, gradients)
    found: Counter[Seen] = Counter()
    bodies = (run for steps in (forward, backward) for block, run in runs(steps) if block)
    early = {id(step) for run in bodies for step in ahead(plan.program, run)}
    done = ticks(plan, numbers)
    turns = 1 if done is None else done.both if "backward" in passes else done.forward
    for place, (step, live) in enumerate(zip((*forward, *backward), lives, strict=True)):
        times = _layers(step, numbers)
        times += id(step) in early  # for the first layer, or by the last one for nobody
        times *= turns
        if live and isinstance(step.op, Ring):
            for seen, count in _of_ring(step, step.op, numbers).items():
                found[seen] += count * times
        elif live and isinstance(step.op, RingAttention):
            for seen, count in _of_attention(step, step.op, numbers).items():
                found[seen] += count * times
        elif live and step.is_collective and getattr(step.op, "axes", ()):
            found[_of_step(step, numbers, back=place >= len(forward))] += times
    if done is not None:
        found += _over_stages(plan, numbers, backward="backward" in passes)
    if "update" in passes:
        many = plan.program.microbatches if done is None else None
        times = 1 if many is None else numbers.dims[many]
        found = Counter({seen: times * n for seen, n in found.items()}) + _of_update(plan, numbers)
    return found


def planned_step(plan: Plan, numbers: Numbers) -> Counter[Seen]:
    """List those of a training step, which gives the loss alone and moves parameters alone.

    Outputs without a gradient are not computed, nor are the gradients of inputs that a plan without an update has.
    """
    place = loss_of(plan)
    assert place is not None
    trained = tuple(each for each in plan.gradients if each.leaf.tensor in plan.parameters)
    plan = replace(plan, outputs=(plan.outputs[place],), gradients=trained)
    return planned(plan, numbers, ["forward", "backward", "update"])


def planned_both(plan: Plan, numbers: Numbers) -> Counter[Seen]:
    """List the collectives of both passes of one batch, whose gradients end as their leaves live.

    What an update does with the gradients of all microbatches, and then with the parameters, is done with those of one,
    unless all of these end as their leaves live already.
    """
    ones = frozenset(axis for axis, size in numbers.axes.items() if size == 1)
    lean = without_axes(plan, ones)
    passes = planned(plan, numbers, ["forward", "backward"])
    return passes + _of_update(lean, numbers) if moves_home(lean) else passes


def planned_gradients(plan: Plan, numbers: Numbers) -> Counter[Seen]:
    """List those of all microbatches of a step that bring gradients to where the optimizer's state lies."""
    new = {array.tensor for array in plan.renewed}
    reduced = tuple(step for step in plan.update if step.output.tensor not in new)
    return planned(replace(plan, update=reduced), numbers, ["forward", "backward", "update"])


def _layers(step: Step, numbers: Numbers) -> int:
    """Say how often a device does a step with a batch, or in a tick."""
    if step.loop is None or step.sends:
        return 1
    layers, pipeline = numbers.dims[step.loop.dim], step.loop.pipeline
    if pipeline is None:
        return layers
    return layers // (numbers.parts(pipeline.axes) * pipeline.chunks)


def _over_stages(plan: Plan, numbers: Numbers, *, backward: bool) -> Counter[Seen]:
    """List what the stages of a pipeline add up at the end, where they have no parts of their own.

    Outputs are the last stage's, for all microbatches; gradients are sums in f32 at the least, those of
    inputs for all microbatches.
    """
    program = plan.program
    assert program.pipeline is not None
    assert program.microbatches is not None
    found: Counter[Seen] = Counter()
    for each in stage_sums(plan, backward=backward):
        front = [
            *([numbers.dims[program.microbatches]] if each.many else []),
            *([numbers.dims[each.loop]] if each.loop is not None else []),
            *([1] if each.whose.layout.unreduced else []),
        ]
        operand = "x".join([*map(str, front), local_type(each.array, numbers)])
        rows = groups(program.pipeline.axes, numbers)
        found[Seen("all_reduce", operand, _unordered(rows), "sum")] += 1
    return found


def _of_update(plan: Plan, numbers: Numbers) -> Counter[Seen]:
    """List those of the update: what it does with the parameters of a block, it does for all layers at once."""
    found: Counter[Seen] = Counter()
    for step in plan.update:
        if step.is_collective and getattr(step.op, "axes", ()):
            found[_of_step(of_all_layers(step), _of_stack(step, numbers))] += 1
    return found


def _of_stack(step: Step, numbers: Numbers) -> Numbers:
    """Give the sizes of a step that is done for all layers at once: in chunks a stack has two dims of them."""
    pipeline = None if step.loop is None else step.loop.pipeline
    if step.loop is None or pipeline is None:
        return numbers
    stack = pipeline.stack(numbers.dims[step.loop.dim])
    front = of_all_layers(step).output.tensor.dims[: len(stack)]
    sizes = {dim: size for dim, (size, _) in zip(front, stack, strict=True)}
    return replace(numbers, dims={**numbers.dims, **sizes})


def idle(plan: Plan) -> tuple[Step, ...]:
    """List the collectives that the text asks for and that reach no output and no gradient."""
    gradients = [gradient.gradient for gradient in plan.gradients]
    lives = alive(plan.forward, plan.backward, plan.outputs, gradients)
    steps = zip((*plan.forward, *plan.backward), lives, strict=True)
    return tuple(step for step, live in steps if step.is_collective and not live)


def _of_step(step: Step, numbers: Numbers, *, back: bool = False) -> Seen:
    """Say what a step must become; what is sent between stages goes `back` in the backward pass."""
    array = step.inputs[0]
    dims, operand = array.tensor.dims, local_type(array, numbers)
    match step.op:
        case AllGather(axes, dim):
            return Seen("all_gather", operand, groups(axes, numbers), f"dim {dims.index(dim)}")
        case ReduceScatter(axes, dim):
            detail = f"dim {dims.index(dim)} sum"
            return Seen("reduce_scatter", operand, groups(axes, numbers), detail)
        case AllReduce(axes):
            return Seen(
                "all_reduce", operand, _unordered(groups(axes, numbers)), array.layout.reduction
            )
        case AllToAll(axes, source, dim):
            detail = f"split {dims.index(dim)} concat {dims.index(source)}"
            return Seen("all_to_all", operand, groups(axes, numbers), detail)
        case Permute(axes) if step.sends:
            rows = groups(axes, numbers)
            if step.loop is not None and step.loop.pipeline and step.loop.pipeline.chunks > 1:
                moves = _round(
                    axes, -1 if back else 1, numbers
                )  # the last stage to the next chunk's first
                return Seen("collective_permute", operand, moves)
            onward = [pair for row in rows for pair in itertools.pairwise(row)]
            moves = ((b, a) for a, b in onward) if back else onward
            return Seen("collective_permute", operand, tuple(sorted(moves)))
        case Permute():
            return Seen("collective_permute", operand, _moves(array, step.output, numbers))
        case _:
            raise AssertionError(step.op)


def _of_ring(step: Step, op: Ring, numbers: Numbers) -> Counter[Seen]:
    """Say what a ring must become: n-1 permutes of a shard each, as many one way round as the other.

    For an even n there is one more to the next device than to the one before.
    """
    move = step.moving
    shard = move.inputs[0] if op.gathers else move.output
    n = numbers.parts(op.axes)
    found: Counter[Seen] = Counter()
    for way, hops in ((1, n // 2), (-1, (n - 1) // 2)):
        moves = _round(op.axes, way, numbers)
        found[Seen("collective_permute", local_type(shard, numbers), moves)] += hops
    return +found


def _of_attention(step: Step, op: RingAttention, numbers: Numbers) -> Counter[Seen]:
    """Say what ring attention must become: n-1 permutes of each half shard, half of them each way round.

    A shard of an odd number of positions goes one way, whole.
    """
    k, v = step.inputs[op.query + 1 : op.query + 3]
    n = numbers.parts(op.axes)
    even = numbers.dims[op.dim] // numbers.parts(k.axes(op.dim)) % 2 == 0
    found: Counter[Seen] = Counter()
    for array in (k, v, *(op.kept if op.back else ())):
        operand = local_type(array, numbers, {op.dim: 2} if even else {})
        for way in (1, -1) if even else (1,):
            found[Seen("collective_permute", operand, _round(op.axes, way, numbers))] += n - 1
    return +found


def _round(axes: tuple[Axis, ...], way: int, numbers: Numbers) -> Groups:
    """List who sends to whom in rings over axes: each device to the next one, or to the one before."""
    rings = groups(axes, numbers)
    n = len(rings[0])
    return tuple(sorted((g[i], g[(i + way) % n]) for g in rings for i in range(n)))


def local_type(array: Array, numbers: Numbers, parts: Mapping[Dim, int] = NO_PARTS) -> str:
    """Write a device's part of an array as StableHLO writes its type; `parts` divide dims further."""
    sizes = [
        numbers.dims[dim] // numbers.parts(axes) // parts.get(dim, 1)
        for dim, axes in zip(array.tensor.dims, array.layout.sharding, strict=True)
    ]
    return "x".join([*map(str, sizes), MLIR_DTYPES[array.tensor.dtype.name]])


def coordinates(numbers: Numbers) -> Iterator[dict[Axis, int]]:
    """Go through the devices of the mesh, in their order, as an index along each axis."""
    for index in itertools.product(*(range(size) for size in numbers.axes.values())):
        yield dict(zip(numbers.axes, index, strict=True))


def rank(at: Mapping[Axis, int], axes: Iterable[Axis], numbers: Numbers) -> int:
    """Number a device along axes, the first one outermost."""
    number = 0
    for axis in axes:
        number = number * numbers.axes[axis] + at[axis]
    return number


def groups(axes: tuple[Axis, ...], numbers: Numbers) -> Groups:
    """List the groups of devices that differ along `axes` alone, each in the order of the axes."""
    table: dict[tuple[int, ...], dict[int, int]] = {}
    for device, at in enumerate(coordinates(numbers)):
        key = tuple(index for axis, index in at.items() if axis not in axes)
        table.setdefault(key, {})[rank(at, axes, numbers)] = device
    return tuple(sorted(tuple(g[i] for i in range(len(g))) for g in table.values()))


def _unordered(found: Groups) -> Groups:
    return tuple(sorted(tuple(sorted(group)) for group in found))


def _moves(source: Array, target: Array, numbers: Numbers) -> Groups:
    """List the pairs (sender, receiver): who has its block keeps it, the others pair up in order."""

    def holders(array: Array) -> dict[tuple[int, ...], list[int]]:
        table: dict[tuple[int, ...], list[int]] = {}
        still = [axis for axis in numbers.axes if axis not in moving]
        for device, at in enumerate(coordinates(numbers)):
            fixed = tuple(at[axis] for axis in still)
            block = tuple(rank(at, array.axes(dim), numbers) for dim in source.tensor.dims)
            table.setdefault((*fixed, *block), []).append(device)
        return table

    moving = {*source.layout.split_axes, *target.layout.split_axes}
    have, want = holders(source), holders(target)
    pairs: list[tuple[int, int]] = []
    for block, users in want.items():
        stay = set(users) & set(have[block])
        senders = (device for device in have[block] if device not in stay)
        receivers = (device for device in users if device not in stay)
        pairs += [(device, device) for device in stay]
        pairs += zip(senders, receivers, strict=True)
    return tuple(sorted(pairs))


def lowered(module: Any) -> Counter[Seen]:
    """List the collectives of a StableHLO module, through the functions that it calls.

    Those in the body of a loop count as often as it runs, which has to be a number.
    """
    functions = {str(op.attributes["sym_name"]).strip('"'): op for op in module.body.operations}
    found: Counter[Seen] = Counter()

    def walk(operation: Any, times: int) -> None:
        for region in operation.regions:
            for block in region.blocks:
                for child in block.operations:
                    op = child.operation
                    if op.name == "func.call":
                        callee = str(op.attributes["callee"]).lstrip("@").strip('"')
                        walk(functions[callee].operation, times)
                    seen = _of_operation(op)
                    if seen is not None:
                        found[seen] += times
                    else:
                        walk(op, times * (_trips(op) if op.name == "stablehlo.while" else 1))

    walk(functions["main"].operation, 1)
    return found


def _trips(loop: Any) -> int:
    """Read how often the loop of a scan runs: it counts from 0 up to a constant."""
    condition = [child.operation for child in loop.regions[0].blocks[0].operations]
    (limit,) = (op for op in condition if op.name == "stablehlo.constant")
    return int(limit.attributes["value"].get_splat_value().value)


_KINDS = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "collective_permute")


def _of_operation(op: Any) -> Seen | None:
    """Read a StableHLO collective, or give None for anything else."""
    kind = op.name.removeprefix("stablehlo.")
    if kind not in _KINDS and kind != "collective_broadcast":
        return None

    def number(name: str) -> int:
        return int(op.attributes[name].value)

    def table(name: str) -> Groups:
        values = op.attributes[name]
        rows, columns = values.type.shape
        flat = [int(values[i]) for i in range(rows * columns)]
        return tuple(sorted(tuple(flat[i * columns : (i + 1) * columns]) for i in range(rows)))

    operand = str(op.operands[0].type).removeprefix("tensor<").removesuffix(">")
    match kind:
        case "all_gather":
            return Seen(kind, operand, table("replica_groups"), f"dim {number('all_gather_dim')}")
        case "reduce_scatter":
            detail = f"dim {number('scatter_dimension')} {_combiner(op)}"
            return Seen(kind, operand, table("replica_groups"), detail)
        case "all_reduce":
            return Seen(kind, operand, _unordered(table("replica_groups")), _combiner(op))
        case "all_to_all":
            detail = f"split {number('split_dimension')} concat {number('concat_dimension')}"
            return Seen(kind, operand, table("replica_groups"), detail)
        case "collective_permute":
            return Seen(kind, operand, table("source_target_pairs"))
        case _:
            return Seen(kind, operand, ())


def _combiner(op: Any) -> str:
    """Read what a reduction combines with."""
    names = {"stablehlo.add": "sum", "stablehlo.maximum": "max", "stablehlo.minimum": "min"}
    inside: list[str] = [child.operation.name for child in op.regions[0].blocks[0].operations]
    return "+".join(names.get(name, name) for name in inside if name != "stablehlo.return")


def compare(
    function: str, plan: Counter[Seen], jax: Counter[Seen], floats: str = ""
) -> CollectivesCheck:
    """Hold two lists against each other, one to one; `floats` names the module's float types."""

    def texts(difference: Counter[Seen]) -> tuple[str, ...]:
        """Print what one list has alone, a line each, with how often where it is not once."""
        return tuple(
            sorted(str(seen) if n == 1 else f"{n} × {seen}" for seen, n in difference.items())
        )

    return CollectivesCheck(
        function, plan.total(), jax.total(), texts(plan - jax), texts(jax - plan), floats
    )


def blocks(
    array: Array,
    shape: tuple[int, ...],
    numbers: Numbers,
    front: tuple[tuple[Axis, ...], ...] = (),
) -> list[tuple[slice, ...]]:
    """Say which part of the whole each device of the mesh holds, in the devices' order.

    A stack of layers has one dim more, in front, which no axis splits; `front` says how it is split where
    stages hold parts of it.
    """
    found: list[tuple[slice, ...]] = []
    before = len(shape) - len(array.layout.sharding) - len(front)
    sharding = (*((),) * before, *front, *array.layout.sharding)
    for at in coordinates(numbers):
        parts: list[slice] = []
        for size, axes in zip(shape, sharding, strict=True):
            step = size // math.prod(numbers.axes[axis] for axis in axes)
            index = rank(at, axes, numbers)
            parts.append(slice(index * step, (index + 1) * step))
        found.append(tuple(parts))
    return found
