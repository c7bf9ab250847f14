"""A mesh of devices in numpy: runs a plan's steps shard by shard.

It shares no code with the compiler's rules: it knows what each step means from the language's
definition alone, so that a plan which drops, doubles or misplaces a reduction gives other numbers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from shardlang.ir import ops
from shardlang.ir.plan import Plan, Step
from shardlang.ir.program import Leaf
from shardlang.ir.types import Array, Axis, Dim

Coordinates = tuple[int, ...]
Shards = dict[Coordinates, np.ndarray]


def factor_of(factor: ops.Coefficient, sizes: Mapping[str, int]) -> float:
    """Give a number times powers of sizes."""
    made = factor.value.numerator / factor.value.denominator
    for dim, power in factor.powers:
        made *= math.exp(math.log(sizes[dim.name]) * power)
    return made


def _gelu(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def _gelu_grad(x: np.ndarray) -> np.ndarray:
    c = math.sqrt(2 / math.pi)
    t = np.tanh(c * (x + 0.044715 * x**3))
    return 0.5 * (1 + t) + 0.5 * x * (1 - t**2) * c * (1 + 3 * 0.044715 * x**2)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


FUNCTIONS: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "gelu": _gelu,
    "gelu_grad": _gelu_grad,
    "silu": lambda x: x * _sigmoid(x),
    "silu_grad": lambda x: _sigmoid(x) * (1 + x * (1 - _sigmoid(x))),
    "relu": lambda x: np.maximum(x, 0),
    "relu_grad": lambda x: (x > 0).astype(x.dtype),
    "square": lambda x: x * x,
    "square_grad": lambda x: 2 * x,
    "sqrt": np.sqrt,
    "sqrt_grad": lambda x: 0.5 / np.sqrt(x),
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "rsqrt_grad": lambda x: -0.5 * x**-1.5,
    "reciprocal": lambda x: 1 / x,
    "reciprocal_grad": lambda x: -1 / x**2,
    "log": np.log,
    "log_grad": lambda x: 1 / x,
    "tanh": np.tanh,
    "tanh_grad": lambda x: 1 - np.tanh(x) ** 2,
    "sigmoid": _sigmoid,
    "sigmoid_grad": lambda x: _sigmoid(x) * (1 - _sigmoid(x)),
    "softplus": lambda x: np.log1p(np.exp(x)),
    "softplus_grad": _sigmoid,
    "abs": np.abs,
    "abs_grad": np.sign,
    "sin": np.sin,
    "sin_grad": np.cos,
    "cos": np.cos,
    "cos_grad": lambda x: -np.sin(x),
    "exp": np.exp,
}


RELATIONS: Mapping[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "==": np.equal,
    "!=": np.not_equal,
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
}

LOWEST = -1e30
"""What stands for the lowest finite number: differences of it have to be finite too."""


class Simulator:
    """Runs plans on a mesh with the given sizes; every dim of the plan needs a size."""

    def __init__(self, plan: Plan, sizes: Mapping[str, int]) -> None:
        self.plan = plan
        self.sizes = dict(sizes)
        self.axes = [info.axis for info in plan.program.mesh.axes]
        self.shape = [self.sizes[axis.name] for axis in self.axes]
        self.values: dict[Array, Shards] = {}
        self.collectives = 0

    def devices(self) -> Iterator[Coordinates]:
        """List the devices by their coordinates."""
        return itertools.product(*(range(n) for n in self.shape))

    def index(self, device: Coordinates, axes: tuple[Axis, ...]) -> int:
        """Give a device's place along axes, the first the outermost."""
        place = 0
        for axis in axes:
            place = place * self.sizes[axis.name] + device[self.axes.index(axis)]
        return place

    def count(self, axes: tuple[Axis, ...]) -> int:
        """Give the number of devices along axes."""
        return math.prod(self.sizes[axis.name] for axis in axes)

    def group(self, device: Coordinates, axes: tuple[Axis, ...]) -> list[Coordinates]:
        """Give the devices that differ from one along axes alone, in their order."""
        members = []
        for places in itertools.product(*(range(self.sizes[a.name]) for a in axes)):
            other = list(device)
            for axis, place in zip(axes, places, strict=True):
                other[self.axes.index(axis)] = place
            members.append(tuple(other))
        return members

    def region(
        self, array: Array, device: Coordinates, whole: tuple[int, ...]
    ) -> tuple[slice, ...]:
        """Give the block of the whole array that a device holds."""
        found = []
        for axes, size in zip(array.layout.sharding, whole, strict=True):
            block = size // self.count(axes)
            assert block * self.count(axes) == size
            start = self.index(device, axes) * block
            found.append(slice(start, start + block))
        return tuple(found)

    def scatter(self, array: Array, value: np.ndarray, rng: np.random.Generator) -> Shards:
        """Split a global value; partial sums are random and add up to it."""
        partial = tuple(sorted(array.layout.unreduced))
        assert array.layout.reduction == "sum"
        parts = [value]
        if partial:
            parts = [rng.normal(size=value.shape) * 3 for _ in range(self.count(partial) - 1)]
            parts.append(value - sum(parts))
        return {
            device: parts[self.index(device, partial)][
                self.region(array, device, value.shape)
            ].copy()
            for device in self.devices()
        }

    def collect(self, array: Array) -> np.ndarray:
        """Join shards to the global value, and demand that copies are equal."""
        shards = self.values[array]
        partial = tuple(sorted(array.layout.unreduced))
        local = next(iter(shards.values())).shape
        whole = tuple(
            n * self.count(axes) for n, axes in zip(local, array.layout.sharding, strict=True)
        )
        parts = np.full((self.count(partial), *whole), np.nan)
        for device, shard in shards.items():
            place = (self.index(device, partial), *self.region(array, device, whole))
            seen = parts[place]
            if not np.isnan(seen).any():
                np.testing.assert_allclose(
                    seen, shard, rtol=1e-9, atol=1e-9, err_msg=f"copies of {array}"
                )
            parts[place] = shard
        assert not np.isnan(parts).any()
        combine = {"sum": np.sum, "max": np.max, "min": np.min}[array.layout.reduction]
        return combine(parts, axis=0)

    def run(self, step: Step) -> None:
        """Run a step on every device, and check the shapes that it makes."""
        inputs = [self.values[array] for array in step.inputs]
        if isinstance(step.op, ops.Ring):
            self.run_ring(step, step.op)
        elif isinstance(step.op, ops.RingAttention):
            self.run_attention(step, step.op)
        else:
            self.values[step.output] = {d: self.one(step, inputs, d) for d in self.devices()}
        self.collectives += step.is_collective
        expected = tuple(
            self.sizes[dim.name] // self.count(axes)
            for dim, axes in zip(step.output.tensor.dims, step.output.layout.sharding, strict=True)
        )
        for shard in self.values[step.output].values():
            assert shard.shape == expected, (step, shard.shape, expected)

    def one(self, step: Step, inputs: list[Shards], device: Coordinates) -> np.ndarray:
        """Run a step on one device."""
        op = step.op
        own = [shards[device] for shards in inputs]
        dims = step.inputs[0].tensor.dims
        match op:
            case ops.AllGather(axes, dim):
                parts = [inputs[0][other] for other in self.group(device, axes)]
                return np.concatenate(parts, axis=dims.index(dim))
            case ops.AllReduce(axes):
                parts = [inputs[0][other] for other in self.group(device, axes)]
                how = step.inputs[0].layout.reduction
                return {"sum": np.sum, "max": np.max, "min": np.min}[how](np.stack(parts), axis=0)
            case ops.ReduceScatter(axes, dim):
                total = sum(inputs[0][other] for other in self.group(device, axes))
                return self.block(total, dims.index(dim), axes, device)
            case ops.AllToAll(axes, source, dim):
                parts = [
                    self.block(inputs[0][other], dims.index(dim), axes, device)
                    for other in self.group(device, axes)
                ]
                return np.concatenate(parts, axis=dims.index(source))
            case ops.Slice(axes, dim):
                return self.block(own[0], dims.index(dim), axes, device)
            case ops.Mask(axes):
                return own[0] if self.index(device, axes) == 0 else np.zeros_like(own[0])
            case ops.Permute():
                whole = tuple(self.sizes[dim.name] for dim in dims)
                wanted = self.region(step.output, device, whole)
                moved = set(step.inputs[0].layout.split_axes) | set(step.output.layout.split_axes)
                group = self.group(device, tuple(axis for axis in self.axes if axis in moved))
                holders = [o for o in group if self.region(step.inputs[0], o, whole) == wanted]
                users = [o for o in group if self.region(step.output, o, whole) == wanted]
                assert len(holders) == len(users), f"no bijection of devices in {step}"
                return inputs[0][holders[users.index(device)]]
            case _:
                return self.compute(step, own, device)

    def run_ring(self, step: Step, op: ops.Ring) -> None:
        """Send shards, or partial sums, to the next device and multiply what each device holds.

        One way round, unlike the emitted code: the sums are the same.
        """
        n = self.count(op.axes)
        inputs = [self.values[array] for array in step.inputs]
        ring = {d: self.group(d, op.axes) for d in self.devices()}
        place = {d: self.index(d, op.axes) for d in self.devices()}
        dims = [array.tensor.dims for array in step.inputs]
        out = step.output.tensor.dims

        def product(values: list[np.ndarray]) -> np.ndarray:
            return compute(op.product, values, dims, out, self.sizes)

        def cut(array: Array, value: np.ndarray, block: int) -> np.ndarray:
            if op.dim not in array.tensor.dims:
                return value
            return np.split(value, n, axis=array.tensor.dims.index(op.dim))[block]

        made: Shards = {}
        if op.gathers:
            held = {d: (place[d], inputs[op.operand][d]) for d in self.devices()}
            whole: dict[Coordinates, dict[int, np.ndarray]] = {d: {} for d in self.devices()}
            parts: dict[Coordinates, dict[int, np.ndarray]] = {d: {} for d in self.devices()}
            for _ in range(n):
                for d, (block, shard) in held.items():
                    own = [
                        cut(a, x[d], block)
                        for a, x in zip(step.inputs, inputs, strict=True)
                        if a is not step.inputs[op.operand]
                    ]
                    own.insert(op.operand, shard)
                    parts[d][block], whole[d][block] = product(own), shard
                held = {d: held[ring[d][(place[d] - 1) % n]] for d in self.devices()}
            for d, found in parts.items():
                listed = [found[i] for i in range(n)]
                if op.dim in out:
                    made[d] = np.concatenate(listed, axis=out.index(op.dim))
                else:
                    made[d] = sum(listed[1:], listed[0])
            if op.keep:
                axis = dims[op.operand].index(op.dim)
                self.values[step.outputs[1]] = {
                    d: np.concatenate([found[i] for i in range(n)], axis=axis)
                    for d, found in whole.items()
                }
        else:
            sums: dict[Coordinates, np.ndarray] = {}
            for hop in range(n):
                arriving = {d: sums[ring[d][(place[d] - 1) % n]] for d in sums}
                for d in self.devices():
                    block = (place[d] - hop - 1) % n
                    own = [cut(a, x[d], block) for a, x in zip(step.inputs, inputs, strict=True)]
                    sums[d] = product(own) + arriving.get(d, 0)
            made = sums
        self.values[step.output] = made

    def run_attention(self, step: Step, op: ops.RingAttention) -> None:
        """Attend to all keys at once on each device, which takes them from where they are.

        Nothing runs and nothing goes round, unlike in the emitted code.
        """
        q, k, v = step.inputs[op.query : op.query + 3]
        made: list[Shards] = [{} for _ in step.outputs]
        axis = [k.tensor.dims.index(op.dim), v.tensor.dims.index(op.dim)]
        rows = tuple(d for d in q.tensor.dims if d not in op.summed)
        scores = (*rows, op.dim)
        given = step.inputs[0] if op.back else step.output
        names = {d: i for i, d in enumerate(dict.fromkeys((*scores, *op.summed)))}

        def product(*parts: tuple[np.ndarray, tuple[Dim, ...]], to: tuple[Dim, ...]) -> np.ndarray:
            listed = [x for value, dims in parts for x in (value, [names[d] for d in dims])]
            return np.einsum(*listed, [names[d] for d in to])

        for device in self.devices():
            group = self.group(device, op.axes)
            query = (self.values[q][device], q.tensor.dims)
            keys, values = (
                (np.concatenate([self.values[x][o] for o in group], axis=i), x.tensor.dims)
                for x, i in zip((k, v), axis, strict=True)
            )
            factor = factor_of(op.scale, self.sizes)
            s = factor * product(query, keys, to=scores)
            seen = np.ones_like(s)
            if op.relation is not None:
                sides = []
                for array in step.inputs[-2:]:
                    (dim,) = array.tensor.dims
                    whole = self.values[array][device]
                    if dim != op.dim:
                        whole = whole[
                            self.region(q, device, self.whole(q))[q.tensor.dims.index(dim)]
                        ]
                    sides.append(whole.reshape([-1 if d == dim else 1 for d in scores]))
                seen = np.broadcast_to(RELATIONS[op.relation](*sides), s.shape)
            s = np.where(seen, s, LOWEST)
            most = s.max(axis=-1, keepdims=True)
            total = np.exp(s - most).sum(axis=-1, keepdims=True)
            p = np.exp(s - most) / total
            if not op.back:
                made[0][device] = product((p, scores), values, to=given.tensor.dims)
                lse = (most + np.log(total))[..., 0]
                order = [rows.index(d) for d in op.kept[0].tensor.dims]
                made[1][device] = np.transpose(lse, order)
                continue
            out = (self.values[given][device], given.tensor.dims)
            # the logarithm and the result that the step is given have to be those of the forward pass
            lse = self.values[step.inputs[5]][device]
            order = [step.inputs[5].tensor.dims.index(d) for d in rows]
            p = np.exp(s - np.transpose(lse, order)[..., None])
            done = self.values[step.inputs[4]][device], step.inputs[4].tensor.dims
            delta = product(out, done, to=rows)[..., None]
            ds = factor * seen * p * (product(out, values, to=scores) - delta)
            made[0][device] = product((ds, scores), keys, to=step.output.tensor.dims)
            made[1][device] = product((ds, scores), query, to=k.tensor.dims)
            made[2][device] = product((p, scores), out, to=v.tensor.dims)
        if op.back:
            for place, like in ((1, k), (2, v)):
                whole, dims = made[place], step.outputs[place].tensor.dims
                order = [like.tensor.dims.index(d) for d in dims]
                made[place] = {
                    d: np.transpose(
                        self.block(
                            sum(whole[o] for o in self.group(d, op.axes)),
                            like.tensor.dims.index(op.dim), op.axes, d,
                        ),
                        order,
                    )
                    for d in self.devices()
                }  # fmt: skip
        for array, shards in zip(step.outputs, made, strict=True):
            self.values[array] = shards

    def block(
        self, value: np.ndarray, position: int, axes: tuple[Axis, ...], device: Coordinates
    ) -> np.ndarray:
        """Cut the own block out of a value."""
        blocks = np.split(value, self.count(axes), axis=position)
        return blocks[self.index(device, axes)]

    def local_shape(self, array: Array) -> tuple[int, ...]:
        """Give the shape of a shard."""
        return tuple(
            self.sizes[dim.name] // self.count(axes)
            for dim, axes in zip(array.tensor.dims, array.layout.sharding, strict=True)
        )

    def compute(self, step: Step, own: list[np.ndarray], device: Coordinates) -> np.ndarray:
        """Run a local computation on one device."""
        dims = [array.tensor.dims for array in step.inputs]
        held = step.output if isinstance(step.op, ops.Put | ops.Reshape) else step.inputs[0]
        rows = {
            dim: range(self.sizes[dim.name])[self.region(held, device, self.whole(held))[place]]
            for place, dim in enumerate(held.tensor.dims)
        }
        return np.broadcast_to(
            compute(step.op, own, dims, step.output.tensor.dims, self.sizes, rows),
            self.local_shape(step.output),
        ).copy()

    def whole(self, array: Array) -> tuple[int, ...]:
        """Give the shape of the whole array."""
        return tuple(self.sizes[dim.name] for dim in array.tensor.dims)


def compute(
    op: ops.Compute,
    values: list[np.ndarray],
    dims: list[tuple[Dim, ...]],
    out: tuple[Dim, ...],
    sizes: Mapping[str, int],
    rows: Mapping[Dim, range] | None = None,
) -> np.ndarray:
    """Compute an operation by dim name; `sizes` are global.

    `rows` are those that are held along the dims that ids are of, or that are written as others: all,
    where it has none.
    """
    starts = rows or {}
    if rows is None and isinstance(op, ops.Take | ops.Put):
        starts = {d: range(sizes[d.name]) for d in op.dims}
    if rows is None and isinstance(op, ops.Reshape):
        starts = {d: range(sizes[d.name]) for d in out}

    def lined_up(value: np.ndarray, own: tuple[Dim, ...]) -> np.ndarray:
        order = [d for d in out if d in own]
        moved = np.transpose(value, [own.index(d) for d in order])
        shape = iter(moved.shape)
        return moved.reshape([next(shape) if d in own else 1 for d in out])

    match op:
        case ops.Einsum(contracted):
            letters = {d: i for i, d in enumerate(dict.fromkeys(d for own in dims for d in own))}
            kept = [d for d in out if d in letters]
            assert set(letters) - set(kept) == set(contracted), (op, dims, out)
            args: list[object] = []
            for value, own in zip(values, dims, strict=True):
                args += [value, [letters[d] for d in own]]
            result = np.einsum(*args, [letters[d] for d in kept])
            return lined_up(result, tuple(kept))
        case ops.Linear(coefficients, constant):
            total: np.ndarray = np.asarray(float(constant))
            for c, value, own in zip(coefficients, values, dims, strict=True):
                factor = factor_of(c, sizes)
                total = total + factor * lined_up(value, own)
            return total
        case ops.Map(function):
            return lined_up(FUNCTIONS[function](values[0]), dims[0])
        case ops.Divide():
            return lined_up(values[0], dims[0]) / lined_up(values[1], dims[1])
        case ops.Compare(relation, bound):
            sides = [lined_up(value, own) for value, own in zip(values, dims, strict=True)]
            if bound is not None:
                sides.append(np.asarray(float(bound.evaluate(sizes).number)))
            return RELATIONS[relation](*sides).astype(float)
        case ops.Select(fill):
            mask, value = (lined_up(value, own) for value, own in zip(values, dims, strict=True))
            return np.where(mask != 0, value, LOWEST if fill is None else float(fill))
        case ops.Take(gone):
            return lined_up(*_taken(gone, values, dims, starts))
        case ops.Put(new):
            shape = {d: starts[d].stop - starts[d].start for d in new}
            return lined_up(*_added(op, values, dims, starts, shape))
        case ops.Rename(names):
            return lined_up(values[0], names)
        case ops.Rotary(dim, half, back):
            x, angle = values
            place, other = dims[0].index(dim), dims[1].index(half)
            beside = [tuple(d for d in own if d not in (dim, half)) for own in dims]
            count = angle.shape[other]
            low, high = [], []
            for r in range(count):
                by = lined_up(np.take(angle, r, other), beside[1]) * (-1 if back else 1)
                first = lined_up(np.take(x, r, place), beside[0])
                second = lined_up(np.take(x, r + count, place), beside[0])
                low.append(first * np.cos(by) - second * np.sin(by))
                high.append(second * np.cos(by) + first * np.sin(by))
            return np.concatenate(low + high, axis=out.index(dim))
        case ops.Reshape(source, into):
            rest = [d for d in dims[0] if d not in source]
            moved = np.transpose(values[0], [dims[0].index(d) for d in (*rest, *source)])
            named = (*rest, *into)
            return lined_up(moved.reshape([len(starts[d]) for d in named]), named)
        case ops.Top(dim, into):
            place = dims[0].index(dim)
            order = np.argsort(-values[0], axis=place, kind="stable")
            found = np.take(order, range(sizes[into.name]), axis=place)
            return lined_up(found, tuple(into if d == dim else d for d in dims[0])).astype(float)
        case ops.Rank(over):
            rest = [d for d in dims[0] if d not in over]
            named = (*rest, *over)
            moved = np.transpose(values[0], [dims[0].index(d) for d in named])
            rows = moved.reshape(-1, math.prod(moved.shape[len(rest) :]))
            found = [[list(row[:n]).count(row[n]) for n in range(len(row))] for row in rows]
            return lined_up(np.array(found, float).reshape(moved.shape), named)
        case ops.Reduce(kind, gone):
            places = tuple(dims[0].index(d) for d in gone)
            kept = tuple(d for d in dims[0] if d not in gone)
            if kind == "mean":
                n = math.prod(sizes[d.name] for d in gone)
                return lined_up(values[0].sum(axis=places) / n, kept)
            return lined_up(getattr(np, kind)(values[0], axis=places), kept)


def _points(
    ids: list[np.ndarray], dims: list[tuple[Dim, ...]], more: dict[Dim, int]
) -> Iterator[tuple[dict[Dim, int], list[int]]]:
    """Go through all places of ids along their dims and some more, with the ids there."""
    extent = {
        d: n
        for one, own in zip(ids, dims, strict=True)
        for d, n in zip(own, one.shape, strict=True)
    }
    extent.update(more)
    for place in itertools.product(*(range(n) for n in extent.values())):
        at = dict(zip(extent, place, strict=True))
        yield (
            at,
            [
                round(float(one[tuple(at[d] for d in own)]))
                for one, own in zip(ids, dims, strict=True)
            ],
        )


def _taken(
    gone: tuple[Dim, ...],
    values: list[np.ndarray],
    dims: list[tuple[Dim, ...]],
    rows: Mapping[Dim, range],
) -> tuple[np.ndarray, tuple[Dim, ...]]:
    """Look up, one element after the other."""
    more = {d: n for d, n in zip(dims[0], values[0].shape, strict=True) if d not in gone}
    found: dict[tuple[int, ...], float] = {}
    order: tuple[Dim, ...] = ()
    for at, ids in _points(values[1:], dims[1:], more):
        order = tuple(at)
        here = dict(zip(gone, ids, strict=True))
        inside = all(here[d] in rows[d] for d in gone)
        local = {**at, **{d: here[d] - rows[d].start for d in gone}}
        found[tuple(at.values())] = values[0][tuple(local[d] for d in dims[0])] if inside else 0.0
    result = np.zeros(np.max(list(found), axis=0) + 1 if order else ())
    for place, number in found.items():
        result[place] = number
    return result, order


def _added(
    op: ops.Put,
    values: list[np.ndarray],
    dims: list[tuple[Dim, ...]],
    rows: Mapping[Dim, range],
    new: dict[Dim, int],
) -> tuple[np.ndarray, tuple[Dim, ...]]:
    """Add up, one element after the other."""
    extent = dict(new)
    for own, value in zip(dims, values, strict=True):
        extent.update(
            (d, n) for d, n in zip(own, value.shape, strict=True) if d not in op.contracted
        )
    result = np.zeros(tuple(extent.values()))
    for at, ids in _points(values[1:], dims[1:], dict(zip(dims[0], values[0].shape, strict=True))):
        here = dict(zip(op.dims, ids, strict=True))
        if all(here[d] in rows[d] for d in op.dims):
            place = {**at, **{d: here[d] - rows[d].start for d in op.dims}}
            result[tuple(place[d] for d in extent)] += values[0][tuple(at[d] for d in dims[0])]
    return result, tuple(extent)


def reference(
    plan: Plan, leaves: Mapping[str, np.ndarray], sizes: Mapping[str, int]
) -> dict[str, np.ndarray]:
    """Evaluate the program's statements on whole arrays."""
    values = dict(leaves)
    for statement in plan.program.statements:
        if statement.section != "forward":
            continue
        operands = [values[use.tensor.name] for use in statement.operands]
        if not isinstance(statement.op, ops.Compute):
            values[statement.result.name] = operands[0]
            continue
        out = tuple(sizes[d.name] for d in statement.result.dims)
        own = [use.tensor.dims for use in statement.operands]
        op = statement.op.product if isinstance(statement.op, ops.Ring) else statement.op
        found = compute(op, operands, own, statement.result.dims, sizes)
        values[statement.result.name] = np.broadcast_to(found, out)
    return values


def small_sizes(plan: Plan, axis: int = 2) -> dict[str, int]:
    """Give every axis and dim of a program a small size that divides."""
    known = dict(plan.program.sizes.known)
    for info in plan.program.mesh.axes:
        known.setdefault(info.axis.name, axis)
    devices = math.prod(known[info.axis.name] for info in plan.program.mesh.axes)
    for info in plan.program.dims:
        known.setdefault(info.dim.name, devices)
    return known


def data(leaf: Leaf, plan: Plan, sizes: Mapping[str, int], rng: np.random.Generator) -> np.ndarray:
    """Make a leaf's values: places of an index, ids in range and a few out of it, else any number."""
    shape = [sizes[d.name] for d in leaf.array.tensor.dims]
    if leaf.kind == "index":
        return np.arange(*shape)
    if leaf.array.tensor.dtype.kind == "float":
        return rng.normal(size=shape)
    counts = [
        sizes[dim.name]
        for s in plan.program.statements
        if isinstance(s.op, ops.Take | ops.Put)
        for use, dim in zip(s.operands[1:], s.op.dims, strict=True)
        if use.tensor == leaf.array.tensor
    ]
    count = min(counts, default=4)
    wrong = rng.choice([-1 - count, -1, count, 2 * count], size=shape)
    return np.where(rng.random(shape) < 0.15, wrong, rng.integers(0, count, shape))


def check_numbers(plan: Plan, seed: int = 0, sizes: Mapping[str, int] | None = None) -> Simulator:
    """Run a plan on mixed-sign data and compare values and gradients with the unsharded program.

    Gradients are compared with central differences of the reference along random directions, which
    know nothing of the backward rules.
    """
    rng = np.random.default_rng(seed)
    sizes = dict(sizes or small_sizes(plan))
    run = Simulator(plan, sizes)
    leaves = {leaf.array.name: data(leaf, plan, sizes, rng) for leaf in plan.program.leaves}
    for leaf in plan.program.leaves:
        run.values[leaf.array] = run.scatter(leaf.array, leaves[leaf.array.name], rng)
    for step in plan.forward:
        run.run(step)
    expected = reference(plan, leaves, sizes)
    for output in plan.outputs:
        np.testing.assert_allclose(
            run.collect(output), expected[output.name], rtol=1e-7, atol=1e-7, err_msg=str(output)
        )
    if not plan.backward and not plan.gradients:
        return run
    given = {}
    for output in plan.outputs:
        given[output.name] = rng.normal(size=expected[output.name].shape)
    for cotangent in plan.cotangents:
        run.values[cotangent] = run.scatter(cotangent, given[cotangent.name[1:]], rng)
    for step in plan.backward:
        run.run(step)
    cotangents = {cotangent.name[1:] for cotangent in plan.cotangents}
    for gradient in plan.gradients:
        name = gradient.leaf.name
        found = run.collect(gradient.gradient)
        direction = rng.normal(size=leaves[name].shape)
        step = 1e-6
        ends = []
        for sign in (1, -1):
            moved = {**leaves, name: leaves[name] + sign * step * direction}
            values = reference(plan, moved, sizes)
            ends.append(sum(np.sum(given[n] * values[n]) for n in cotangents))
        slope = (ends[0] - ends[1]) / (2 * step)
        scale = max(1.0, float(np.abs(found * direction).sum()))
        np.testing.assert_allclose(
            np.sum(found * direction) / scale, slope / scale, rtol=0, atol=2e-6,
            err_msg=f"gradient of {name}",
        )  # fmt: skip
    return run
