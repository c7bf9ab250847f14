"""Checks plans in this process: emits, runs on simulated devices, compares. This loads JAX.

The process must have enough devices (`--xla_force_host_platform_device_count` in XLA_FLAGS).
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shardlang.backends.jax.compute import jax_dtype
from shardlang.backends.jax.data import scales
from shardlang.backends.jax.emit import emit_jax
from shardlang.backends.jax.errors import PlanDefect
from shardlang.backends.jax.functions import chooses, jumps, PRODUCTS_ON_CPU, widens_on_cpu
from shardlang.backends.jax.layout import stacked_axes
from shardlang.backends.jax.sizes import Numbers, pipelines_of
from shardlang.backends.jax.train import loss_of
from shardlang.diagnostics import ShardlangError
from shardlang.ir.ops import (
    AllReduce,
    Coefficient,
    Linear,
    Op,
    Put,
    ReduceScatter,
    Rename,
    RingAttention,
    Take,
)
from shardlang.ir.plan import Gradient, Plan, Step
from shardlang.ir.printer import statement
from shardlang.ir.program import Block, Program
from shardlang.ir.types import Array, Axis, Dim, DType, DTYPES, Tensor
from shardlang.passes.layers import left_inside
from shardlang.passes.normal import without_axes
from shardlang.passes.update import postpones
from shardlang.verify.collectives import (
    blocks,
    compare,
    idle,
    lowered,
    planned,
    planned_both,
    planned_gradients,
    planned_step,
    Seen,
)
from shardlang.verify.reference import evaluate
from shardlang.verify.result import ArrayCheck, CollectivesCheck, VerifyResult
from shardlang.verify.sizes import size_notes, small_sizes, stage_notes
from shardlang.verify.step import NO_OPTAX, optimizers, STEPS, trained, Tree, weighted

TOLERANCES: Mapping[str, float] = {
    "f64": 1e-9, "f32": 1e-4, "f16": 2e-2, "bf16": 2e-1, "f8e4m3": 0.5, "f8e5m2": 1.0,
}  # fmt: skip
"""The error that a dtype allows, relative to the largest value of an array."""

ATTEMPTS = 3
"""How many sets of random data may disagree: sums that cancel can make rounding look large."""

COPY = Linear((Coefficient(),))

FLOOR = 1e-2
"""Values are held against at least this magnitude: data are near 1."""


@dataclass(frozen=True)
class _Draw:
    """How data are drawn: with both signs or without, and about how many ids are out of range."""

    positive: bool = False
    outside: float = 0.1
    note: str | None = None


DRAWS = (
    _Draw(),
    _Draw(
        outside=0.0,
        note="with the zeros of ids out of range gradients grow beyond f32, so all ids are in range",
    ),
    _Draw(
        positive=True,
        note="with data of both signs the program gives NaN, so the inputs are positive",
    ),
)
"""In this order, until values and gradients are numbers that f32 can hold."""


def run_check(
    plan: Plan,
    *,
    sizes: Mapping[str, int] | None = None,
    exact: bool = True,
    thorough: bool = False,
    text: str | None = None,
    seed: int = 0,
) -> VerifyResult:
    """Check one plan; give what was compared, also where running it failed.

    `exact` replaces narrow floats by f32, so that the tolerance is tight. `thorough` also runs
    `forward` and the gradients of `differentiable`. `text` is the module to check in place of the
    one that emission gives. Raises ShardlangError where sizes don't fit the program.
    """
    if exact:
        plan = with_floats(plan, DTYPES["f32"])
    numbers = small_sizes(plan, sizes)
    mesh = {axis.name: size for axis, size in numbers.axes.items()}
    dims = {dim.name: size for dim, size in numbers.dims.items()}
    notes = (*size_notes(plan, numbers, sizes), *stage_notes(plan, numbers))
    result = VerifyResult(problems=doubled(plan), notes=notes, mesh=mesh, dims=dims)
    x64 = bool(jax.config.read("jax_enable_x64"))
    try:
        text = emit_jax(plan, {**mesh, **dims}) if text is None else text
        found = _Run(plan, numbers, text, seed).check(thorough=thorough)
        for again in range(1, ATTEMPTS):
            if found.ok or not all(check.ok for check in found.collectives):
                break
            found = _Run(plan, numbers, text, seed + again).check(thorough=thorough)
        if not found.ok and _chooses_among_narrow(plan):
            note = "where top chose others of near-equal numbers, values are compared in f32 alone"
            kept = tuple(check for check in found.arrays if check.ok)
            found = replace(found, arrays=kept, notes=(*found.notes, note))
    except ShardlangError as error:
        if not all(isinstance(d.mistake, PlanDefect) for d in error.diagnostics):
            raise
        return replace(result, problems=(*result.problems, *(d.message for d in error.diagnostics)))
    except _NotRun as error:
        problem = f"the emitted module did not run: {_said(error.__cause__)}"
        return replace(result, problems=(*result.problems, problem))
    except Exception as error:  # noqa: BLE001 - the report must say whose fault it is
        problem = f"the check itself broke, which says nothing about the module: {_said(error)}"
        return replace(result, problems=(*result.problems, problem))
    finally:
        jax.config.update("jax_enable_x64", x64)
    return result.joined(found)


class _NotRun(Exception):  # noqa: N818 - it carries what went wrong to the report, and ends there
    """The emitted module did not run: its cause is what Python or JAX said of it."""


@contextlib.contextmanager
def _running() -> Generator[None]:
    """Say of whatever goes wrong inside that the emitted module did not run."""
    try:
        yield
    except Exception as error:
        raise _NotRun from error


def _said(error: BaseException | None) -> str:
    """Give what an error says first, with its kind."""
    first = str(error).strip().split("\n")[0][:500]
    return f"{type(error).__name__}: {first}"


def _chooses_among_narrow(plan: Plan) -> bool:
    """Say whether a step chooses among numbers that are narrow floats, or are made of such."""
    steps = [step for _, step in plan.steps()]
    floats = {s.output.tensor.dtype for s in steps if s.output.tensor.dtype.kind == "float"}
    return any(map(chooses, steps)) and any(dtype.bits < 32 for dtype in floats)


def loops(plan: Plan) -> dict[str, Dim]:
    """Give the dims over which leaves and outputs are stacked: there is one in each layer of a block."""
    found = {x.array.name: x.loop for x in plan.program.leaves if x.loop is not None}
    outputs = [output.tensor for output in plan.outputs]
    for block in plan.program.blocks:
        found.update((x.name, block.dim) for x in left_inside(plan.program, outputs, block))
    return found


def counts(program: Program, sizes: Mapping[Dim, int]) -> dict[str, int]:
    """Give the leaves that are ids, each with the number of places that all its uses have."""
    leaves = {x.array.name: x.array.name for x in program.leaves}
    found: dict[str, int] = {}
    for item in program.statements:
        names = [use.tensor.name for use in item.operands]
        if isinstance(item.op, Take | Put):
            for name, dim in zip(names[1:], item.op.dims, strict=True):
                if name in leaves:
                    ids = leaves[name]
                    found[ids] = min(found.get(ids, sizes[dim]), sizes[dim])
        elif names[0] in leaves and (isinstance(item.op, Rename) or item.op == COPY):
            leaves[item.result.name] = leaves[names[0]]
    return found


def doubled(plan: Plan) -> tuple[str, ...]:
    """Name the reductions that one pass does twice: the value is the same and the cost is not."""
    problems: list[str] = []
    for steps in (plan.forward, plan.backward):
        seen: set[tuple[object, ...]] = set()
        for step in steps:
            key = (step.op, step.inputs, step.output, step.loop)
            if isinstance(step.op, AllReduce | ReduceScatter) and key in seen:
                problems.append(f"`{statement(step)}` stands twice in one pass")
            seen.add(key)
    return tuple(problems)


def with_floats(plan: Plan, dtype: DType) -> Plan:
    """Give the same plan with every narrow float replaced by a wider one."""

    def tensor(value: Tensor) -> Tensor:
        narrow = value.dtype.kind == "float" and value.dtype.bits < dtype.bits
        return replace(value, dtype=dtype) if narrow else value

    def array(value: Array) -> Array:
        return Array(tensor(value.tensor), value.layout)

    def block(value: Block | None) -> Block | None:
        if value is None:
            return None
        carries = (
            replace(carry, entry=tensor(carry.entry), exit=tensor(carry.exit))
            for carry in value.carries
        )
        return replace(value, carries=tuple(carries))

    def made(op: Op) -> Op:
        if not isinstance(op, RingAttention):
            return op
        return replace(op, kept=tuple(array(x) for x in op.kept))

    def step(value: Step) -> Step:
        inputs = tuple(array(x) for x in value.inputs)
        loop = block(value.loop)
        return replace(
            value, op=made(value.op), inputs=inputs, output=array(value.output), loop=loop
        )

    program: Program = replace(
        plan.program,
        leaves=tuple(replace(leaf, array=array(leaf.array)) for leaf in plan.program.leaves),
        statements=tuple(
            replace(
                item,
                operands=tuple(replace(use, tensor=tensor(use.tensor)) for use in item.operands),
                result=tensor(item.result),
                block=block(item.block),
            )
            for item in plan.program.statements
        ),
    )
    return replace(
        plan,
        program=program,
        forward=tuple(step(s) for s in plan.forward),
        backward=tuple(step(s) for s in plan.backward),
        outputs=tuple(array(x) for x in plan.outputs),
        update=tuple(step(s) for s in plan.update),
        cotangents=tuple(array(x) for x in plan.cotangents),
        gradients=tuple(Gradient(array(g.leaf), array(g.gradient)) for g in plan.gradients),
    )


@contextlib.contextmanager
def _wide() -> Generator[None]:
    """Let the reference compute in f64 whatever the module uses."""
    with jax.enable_x64(True):  # noqa: FBT003 - JAX takes no keyword
        yield


@dataclass(frozen=True)
class _Reference:
    """Whole values: of the leaves as given (stacked where partial), the outputs, the gradients."""

    inputs: tuple[np.ndarray[Any, Any], ...]
    cotangents: tuple[np.ndarray[Any, Any], ...]
    outputs: tuple[np.ndarray[Any, Any], ...]
    gradients: tuple[np.ndarray[Any, Any] | None, ...]

    @property
    def numbers(self) -> bool:
        """Whether no output is NaN."""
        return not any(np.isnan(x).any() for x in self.outputs)


class _Run:
    """One plan at one set of sizes."""

    def __init__(self, plan: Plan, numbers: Numbers, text: str, seed: int) -> None:
        ones = frozenset(axis for axis, size in numbers.axes.items() if size == 1)
        self._plan = without_axes(plan, ones)
        self._numbers = numbers
        self._scales = scales(plan.program, numbers.dims)
        self._counts = counts(plan.program, numbers.dims)
        self._rng = np.random.default_rng(seed)
        self._draw = DRAWS[0]
        self._leaves = tuple(leaf.array for leaf in self._plan.program.given)
        self._loops = loops(self._plan)
        self._module: dict[str, Any] = {"__name__": "emitted"}
        with _running():
            exec(compile(text, "<emitted module>", "exec"), self._module)  # noqa: S102 - our own text
        devices = np.asarray(jax.devices("cpu")[: numbers.devices], dtype=object)
        if devices.size < numbers.devices:
            raise RuntimeError(f"{numbers.devices} devices are needed, there are {devices.size}")
        shape = tuple(numbers.axes.values())
        self._mesh = jax.sharding.Mesh(devices.reshape(shape), tuple(a.name for a in numbers.axes))

    # Data

    def _shape(self, array: Array, *, stacked: bool = True) -> tuple[int, ...]:
        """Give the shape of a leaf or an output, with partial results `stacked` behind the layers."""
        shape = tuple(self._numbers.dims[dim] for dim in array.tensor.dims)
        over = stacked_axes(array.layout) if stacked else ()
        front = [size for size, _ in self._dims(array)]
        return (*front, *([self._numbers.parts(over)] if over else []), *shape)

    def _dims(self, array: Array) -> tuple[tuple[int, tuple[Axis, ...]], ...]:
        """Give the dims in front of a leaf or an output, each with the axes that split it.

        These are all microbatches of a pipeline, and layers, which with several chunks a stage are two dims.
        """
        sizes, loop = self._numbers.dims, self._loops.get(array.name)
        many = () if self._many is None or not self._batched(array) else ((sizes[self._many], ()),)
        if loop is None:
            return many
        pipeline = pipelines_of(self._plan).get(loop)
        return (*many, *(pipeline.stack(sizes[loop]) if pipeline else ((sizes[loop], ()),)))

    def _batched(self, array: Array) -> bool:
        """Whether there is one of a leaf or an output in each microbatch of a pipeline."""
        return self._many is not None and array.tensor not in self._plan.parameters

    def _layers(self, array: Array, value: Any) -> Any:
        """Give what there is of all layers of one microbatch along one dim, in the order of the layers."""
        loop = self._loops.get(array.name)
        if loop is None:
            return value
        front = len(self._dims(array)) - self._batched(array)
        return value.reshape(-1, *value.shape[front:])

    @property
    def _many(self) -> Dim | None:
        """The dim of the microbatches, where all of them are run at once."""
        program = self._plan.program
        return None if program.pipeline is None else program.microbatches

    def _front(self, array: Array) -> int:
        """Say where partial results of a leaf or an output are stacked: behind microbatches and layers."""
        return len(self._dims(array))

    def _splits(self, array: Array) -> tuple[tuple[Axis, ...], ...]:
        """Say how the dims in front of a leaf or an output are split: layers, over the stages."""
        return tuple(axes for _, axes in self._dims(array))

    def _data(
        self, shape: tuple[int, ...], dtype: DType, *, positive: bool = False, scale: float = 1
    ) -> np.ndarray[Any, Any]:
        """Make mixed-sign data near the scale, or small integers."""
        if dtype.kind == "float":
            signs = 1.0 if positive else self._rng.choice([-1.0, 1.0], shape)
            values = self._rng.uniform(0.5, 1.5, shape) * signs * scale
        else:
            low = -2 if dtype.name.startswith("int") and not positive else 0
            values = self._rng.integers(low, 2, shape)
        narrow = np.dtype(jax_dtype(dtype)) if dtype.name == "bool" else jnp.dtype(jax_dtype(dtype))
        return np.asarray(values).astype(np.float32).astype(narrow)

    def _ids(self, shape: tuple[int, ...], dtype: DType, count: int) -> np.ndarray[Any, Any]:
        """Make ids from 0 to a count, and now and then one that is out of range."""
        narrow = jnp.dtype(jax_dtype(dtype))
        low, high = int(jnp.iinfo(narrow).min), int(jnp.iinfo(narrow).max)
        outside = self._rng.choice([-count, -1, count, count + 1], shape)
        values = self._rng.integers(0, count, shape)
        chosen = np.where(self._rng.random(shape) < self._draw.outside, outside, values)
        return np.clip(chosen, low, high).astype(narrow)

    def _drawn(self, leaf: Array) -> np.ndarray[Any, Any]:
        """Make data for a leaf."""
        shape, dtype = self._shape(leaf), leaf.tensor.dtype
        if leaf.name in self._counts:
            return self._ids(shape, dtype, self._counts[leaf.name])
        scale = self._scales.get(leaf.name, 1)
        return self._data(shape, dtype, positive=self._draw.positive, scale=scale)

    def _drawn_reference(self) -> _Reference:
        """Make data of the first kind that gives numbers, gradients included; else of one whose outputs are."""
        rough: dict[_Draw, _Reference] = {}
        for draw in DRAWS:
            if not draw.outside and not self._counts:
                continue
            self._draw = draw
            rough[draw] = reference = self._reference()
            if reference.numbers and self._moderate(reference):
                return reference
        self._draw = next((draw for draw, each in rough.items() if each.numbers), DRAWS[-1])
        return rough[self._draw]

    def _reference(self) -> _Reference:
        """Make data and compute what they should give, in f64."""
        inputs = tuple(self._drawn(leaf) for leaf in self._leaves)
        cotangents = tuple(
            self._data(self._shape(x, stacked=False), x.tensor.dtype) for x in self._plan.outputs
        )
        with _wide():
            outputs, gradients = self._computed(inputs, cotangents)
        return _Reference(inputs, cotangents, outputs, gradients)

    def _moderate(self, reference: _Reference) -> bool:
        """Whether gradients are numbers in f32 as well: of zero rows each layer's norm can make them 1000 times as large."""
        if not self._counts or not self._plan.program.blocks:
            return True
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Explicitly requested dtype")  # int32 is enough here
            _, gradients = self._computed(reference.inputs, reference.cotangents)
        return all(bool(np.isfinite(x).all()) for x in gradients if x is not None)

    def _computed(
        self, inputs: Sequence[np.ndarray[Any, Any]], cotangents: Sequence[np.ndarray[Any, Any]]
    ) -> tuple[tuple[np.ndarray[Any, Any], ...], tuple[np.ndarray[Any, Any] | None, ...]]:
        """Compute outputs and gradients of whole leaves, in f64 if JAX has that on, else in f32."""
        floats = [i for i, x in enumerate(self._leaves) if x.tensor.dtype.kind == "float"]
        smooth = [i for i, x in enumerate(self._plan.outputs) if x.tensor.dtype.kind == "float"]

        def run(given: Sequence[Any], seeds: Sequence[Any]) -> tuple[Any, Any]:
            def outputs(values: Sequence[Any]) -> tuple[Any, ...]:
                whole = list(given)
                for index, value in zip(floats, values, strict=True):
                    whole[index] = value
                if self._many is None:
                    return self._one(whole)
                found = self._each(whole, [self._batched(leaf) for leaf in self._leaves])
                rows = zip(self._plan.outputs, found, strict=True)
                return tuple(x.reshape(self._shape(a, stacked=False)) for a, x in rows)

            def differentiable(values: Sequence[Any]) -> tuple[Any, ...]:
                found = outputs(values)
                return tuple(found[i] for i in smooth)

            values = [given[i] for i in floats]
            _, pullback = jax.vjp(differentiable, values)
            return outputs(values), pullback(tuple(seeds[i] for i in smooth))[0]

        given = [self._to_wide(x) for x in inputs]
        seeds = [self._to_wide(x) for x in cotangents]
        outputs, gradients = jax.jit(run)(given, seeds)
        table = dict(zip(floats, gradients, strict=True))
        return tuple(np.asarray(x) for x in outputs), tuple(
            np.asarray(table[i]) if i in table and self._differentiated(leaf) else None
            for i, leaf in enumerate(self._leaves)
        )

    def _differentiated(self, leaf: Array) -> bool:
        """Say whether a leaf is to have a gradient: of a training step, only parameters are."""
        return leaf.tensor in self._plan.parameters or not postpones(self._plan.program)

    def _one(self, whole: Sequence[Any]) -> tuple[Any, ...]:
        """Give the outputs of one microbatch, of whole leaves: those that are partial are combined first."""
        env: dict[str, Any] = {}
        for leaf, own in zip(self._leaves, whole, strict=True):
            value = self._layers(leaf, own)
            combine = {"sum": jnp.sum, "max": jnp.max, "min": jnp.min}[leaf.layout.reduction]
            partial, layers = bool(leaf.layout.unreduced), int(leaf.name in self._loops)
            env[leaf.name] = combine(value, axis=layers) if partial else value
        wanted = [x.name for x in self._plan.outputs]
        return evaluate(self._plan.program, env, self._numbers.dims, wanted)

    def _each(self, whole: Sequence[Any], batched: Sequence[bool]) -> tuple[Any, ...]:
        """Give the outputs of all microbatches, which are the first dim of what is `batched`."""
        many = self._plan.program.microbatches
        assert many is not None
        found = [
            self._one([x[i] if own else x for x, own in zip(whole, batched, strict=True)])
            for i in range(self._numbers.dims[many])
        ]
        return tuple(jnp.stack(each) for each in zip(*found, strict=True))

    @staticmethod
    def _to_wide(value: np.ndarray[Any, Any]) -> Any:
        floating = jnp.issubdtype(value.dtype, jnp.floating)
        wide = value.astype(np.float64) if floating else value
        narrow = {"int4": np.int8, "uint4": np.uint8}.get(str(value.dtype))
        return jnp.asarray(value.astype(narrow) if narrow else wide)

    # Comparison

    def check(self, *, thorough: bool) -> VerifyResult:
        """Compare values, gradients and collectives."""
        notes = tuple(
            f"`{statement(step)}` reaches no output and no gradient, so JAX leaves it out"
            for step in idle(self._plan)
        )
        reference = self._drawn_reference()
        notes += () if self._draw.note is None else (self._draw.note,)
        with jax.default_matmul_precision(PRODUCTS_ON_CPU if widens_on_cpu(self._plan) else None):
            found = self._compared(reference, thorough=thorough)
            if "STATES" in self._module:
                found = found.joined(self._step_compared(reference))
        return replace(found, notes=(*notes, *found.notes))

    def _compared(self, reference: _Reference, *, thorough: bool) -> VerifyResult:
        """Compare with a reference."""
        notes: tuple[str, ...] = ()
        backward = "forward_backward" in self._module
        arrays: list[ArrayCheck] = []
        with _running():
            forward = self._module["forward"].lower(self._mesh, *reference.inputs)
        wanted = planned(self._plan, self._numbers, ["forward"])
        collectives = [self._collectives("forward", wanted, forward)]
        if thorough or not backward:
            with _running():
                outputs = forward.compile()(*reference.inputs)
            arrays += self._outputs("output", outputs, reference)
        if backward:
            arguments = (reference.inputs, reference.cotangents)
            with _running():
                whole = self._module["forward_backward"].lower(self._mesh, *arguments)
            wanted = planned_both(self._plan, self._numbers)
            collectives.append(self._collectives("forward_backward", wanted, whole))
            with _running():
                outputs, gradients = whole.compile()(*arguments)
            arrays += self._outputs(
                "output with backward" if thorough else "output", outputs, reference
            )
            if self._narrow() and jumps(self._plan):
                notes += ("gradients that jump are compared in f32 alone: narrow values can tie",)
                return VerifyResult(tuple(arrays), tuple(collectives), (), notes)
            arrays += self._gradients("gradient of", gradients, reference)
            if thorough:
                with _running():
                    again = self._by_vjp(reference)
                arrays += self._gradients("jax.vjp of", again, reference)
        return VerifyResult(tuple(arrays), tuple(collectives), (), notes)

    def _collectives(self, name: str, wanted: Counter[Seen], low: Any) -> CollectivesCheck:
        """Compare collectives with those of what JAX lowered."""
        floats = ", ".join(sorted(x for x in self._dtypes() if DTYPES[x].kind == "float"))
        return compare(name, wanted, lowered(low.compiler_ir("stablehlo")), floats)

    # All microbatches of a step

    def _step_compared(self, reference: _Reference) -> VerifyResult:
        """Compare what the module does with all microbatches: steps of optimizers, or gradients for cotangents.

        With narrow floats these are run in f32 alone: what a step changes may be less than narrow ones tell apart.
        """
        parameters, pairs = self._plan.parameters, zip(self._leaves, reference.inputs, strict=True)
        weights = {leaf.name: x for leaf, x in pairs if leaf.tensor in parameters}
        rest = [leaf for leaf in self._leaves if leaf.tensor not in parameters]
        batch = {leaf.name: self._of_all(leaf) for leaf in rest}
        if "make_train_step" in self._module:
            return self._trained(weights, batch)
        return self._seeded(weights, batch)

    @property
    def _times(self) -> int | None:
        """How many microbatches a step goes through one by one; None where it has none, or all at once."""
        many = None if self._many is not None else self._plan.program.microbatches
        return None if many is None else self._numbers.dims[many]

    def _of_all(self, leaf: Array) -> np.ndarray[Any, Any]:
        """Make what a step sees of a leaf that is not trained."""
        if self._times is None:
            return self._drawn(leaf)
        return np.stack([self._drawn(leaf) for _ in range(self._times)])

    def _whole_outputs(self, batch: Tree) -> Callable[[Tree], dict[str, Any]]:
        """Give the function from parameters to all outputs of a step, by name, in f64."""
        with _wide():
            data = {name: self._to_wide(x) for name, x in batch.items()}

        def outputs(parameters: Tree) -> dict[str, Any]:
            whole = [{**data, **parameters}[leaf.name] for leaf in self._leaves]
            if self._plan.program.microbatches is None:
                found = self._one(whole)
            else:
                found = self._each(whole, [leaf.name in batch for leaf in self._leaves])
            return {x.name: value for x, value in zip(self._plan.outputs, found, strict=True)}

        return outputs

    def _trained(self, weights: Tree, batch: Tree) -> VerifyResult:
        """Take steps by each optimizer, and compare losses and parameters with those of whole arrays."""
        module, mesh, outputs = self._module, self._mesh, self._whole_outputs(batch)
        place = loss_of(self._plan)
        assert place is not None
        loss = self._plan.outputs[place]
        wanted = planned_step(self._plan, self._numbers)
        arrays, collectives = list[ArrayCheck](), list[CollectivesCheck]()
        known = optimizers()
        for name, optimizer in known.items():
            with _running():
                step = module["make_train_step"](mesh, optimizer)
                state = module["init_state"](mesh, optimizer, weights)
                low = step.lower(state, batch)
            collectives.append(self._collectives(f"a step of {name}", wanted, low))
            if self._narrow():
                continue
            with _wide():
                start, fixed = self._starts(weights)
                losses, ends = trained(
                    lambda p, fixed=fixed: jnp.mean(outputs({**fixed, **p})[loss.name]),
                    start,
                    optimizer,
                )
            for number, value in enumerate(losses, 1):
                with _running():
                    state, got = step(state, batch)
                kind, want = f"step {number} of {name}:", np.asarray(value)
                arrays.append(self._close(kind, loss, np.asarray(got, np.float64), want, 0))
            for leaf in self._leaves:
                if leaf.name in weights:
                    kind, want = f"after {STEPS} steps of {name}:", (fixed | ends)[leaf.name]
                    got = (state["parameters"] | state.get("frozen", {}))[leaf.name]
                    arrays.append(self._compare(kind, leaf, got, np.asarray(want)))
        notes = () if self._narrow() else (self._says(known),)
        return VerifyResult(tuple(arrays), tuple(collectives), (), notes)

    def _starts(self, weights: Tree) -> tuple[Tree, Tree]:
        """Give the parameters that are trained, in f64, and those that get no gradient and stay as they are."""
        trained = {gradient.leaf.name for gradient in self._plan.gradients}
        wide = {name: self._to_wide(x) for name, x in weights.items()}
        own = {name: x for name, x in wide.items() if name in trained}
        return own, {name: x for name, x in wide.items() if name not in trained}

    def _says(self, known: Mapping[str, Any]) -> str:
        """Say what was compared of training steps."""
        many = self._plan.program.microbatches
        count = 1 if many is None else self._numbers.dims[many]
        batch = f"all {count} microbatches" if many is not None else "the whole batch"
        text = (
            f"{STEPS} steps of {' and of '.join(known)} were compared with jax.grad over {batch} "
            "and the optimizer on whole arrays, in f64"
        )
        return text if "adamw" in known else f"{text}; {NO_OPTAX}"

    def _seeded(self, weights: Tree, batch: Tree) -> VerifyResult:
        """Compare the outputs of all microbatches, and the means of their gradients for random cotangents."""
        front = () if self._times is None else (self._times,)
        given = {x.name: x for x in self._plan.outputs if x.name in self._module["SEEDS"]}
        seeds = {
            name: self._data((*front, *self._shape(x, stacked=False)), x.tensor.dtype)
            for name, x in given.items()
        }
        function = jax.jit(self._module["outputs_and_gradients"], static_argnums=0)
        with _running():
            low = function.lower(self._mesh, weights, batch, seeds)
        wanted = planned_gradients(self._plan, self._numbers)
        collectives = (self._collectives("outputs_and_gradients", wanted, low),)
        if self._narrow():
            return VerifyResult((), collectives)
        with _wide():
            many = self._plan.program.microbatches
            count = 1 if many is None else self._numbers.dims[many]
            wide = {name: self._to_wide(x) / count for name, x in seeds.items()}
            start, fixed = self._starts(weights)
            outputs = self._whole_outputs(batch)
            _, expected = weighted(lambda p: outputs({**fixed, **p}), start, wide)
        with _running():
            _, gradients = low.compile()(weights, batch, seeds)
        states = {x.name: self._plan.states.get(x.tensor, x) for x in self._leaves}
        arrays = [
            self._compare("mean gradient of", states[name], got, np.asarray(expected[name]))
            for name, got in gradients.items()
        ]
        return VerifyResult(tuple(arrays), collectives)

    def _by_vjp(self, reference: _Reference) -> tuple[Any, ...]:
        """Take the gradients through `differentiable`."""
        inputs = [jnp.asarray(x) for x in reference.inputs]
        outputs, pullback = jax.vjp(self._module["differentiable"](self._mesh), *inputs)

        def seed(array: Array, cotangent: Any, output: Any) -> Any:
            if not jnp.issubdtype(output.dtype, jnp.floating):
                return np.zeros(output.shape, jax.dtypes.float0)
            given = jnp.asarray(cotangent)
            if array.layout.unreduced:
                given = jnp.expand_dims(given, self._front(array))
            return jnp.broadcast_to(given, output.shape).astype(output.dtype)

        return pullback(tuple(map(seed, self._plan.outputs, reference.cotangents, outputs)))

    def _outputs(
        self, kind: str, found: Sequence[Any], reference: _Reference
    ) -> Iterator[ArrayCheck]:
        """Compare the outputs; partial results are combined first."""
        for array, got, want in zip(self._plan.outputs, found, reference.outputs, strict=True):
            yield self._compare(kind, array, got, want)

    def _gradients(
        self, kind: str, found: Sequence[Any], reference: _Reference
    ) -> Iterator[ArrayCheck]:
        """Compare the gradients of the leaves that have one."""
        for leaf, got, want in zip(self._leaves, found, reference.gradients, strict=True):
            if want is None:
                continue
            whole = leaf.with_layout(leaf.layout.reduced())
            if leaf.layout.unreduced:
                yield self._close(kind, leaf, np.asarray(got, np.float64), want, 0)
            else:
                yield self._compare(kind, whole, got, want)

    def _compare(self, kind: str, array: Array, got: Any, want: np.ndarray[Any, Any]) -> ArrayCheck:
        """Compare an array with the reference on every device, by the plan's own layout."""
        if array.layout.unreduced:
            combine = {"sum": np.sum, "max": np.max, "min": np.min}[array.layout.reduction]
            whole = np.asarray(got, np.float64)
            return self._close(kind, array, combine(whole, axis=self._front(array)), want, 0)
        by_device = {shard.device: shard.data for shard in got.addressable_shards}
        devices = list(self._mesh.devices.flat)
        if set(by_device) != set(devices):
            return self._close(kind, array, np.asarray(got, np.float64), want, 0)
        result: ArrayCheck | None = None
        parts = blocks(array, want.shape, self._numbers, self._splits(array))
        for device, block in zip(devices, parts, strict=True):
            data = np.asarray(by_device[device], np.float64)
            check = self._close(kind, array, data, want[block], len(devices), np.abs(want))
            if result is None or not check.error <= result.error or check.problem:
                result = check
            if not check.ok:
                break
        assert result is not None
        return result

    def _close(
        self,
        kind: str,
        array: Array,
        got: np.ndarray[Any, Any],
        want: np.ndarray[Any, Any],
        devices: int,
        magnitude: np.ndarray[Any, Any] | None = None,
    ) -> ArrayCheck:
        """Compare numbers, relative to the largest of the whole array."""
        dtype = array.tensor.dtype.name
        tolerance = max(TOLERANCES.get(name, 0.0) for name in self._dtypes())
        problem = ""
        error = math.inf
        if got.shape != want.shape:
            problem = f"(shape {got.shape}, should be {want.shape})"
        else:
            want = want.astype(np.float64)
            size = np.abs(want) if magnitude is None else magnitude.astype(np.float64)
            finite = size[np.isfinite(size)]
            scale = max(float(np.max(finite, initial=0.0)), FLOOR)
            both = (got == want) | (np.isnan(got) & np.isnan(want))
            difference = np.where(both, 0.0, np.abs(got - want))
            error = float(np.max(difference, initial=0.0)) / scale
            if np.isnan(error):
                error = math.inf
        return ArrayCheck(array.name, kind, dtype, error, tolerance, devices, problem)

    def _narrow(self) -> bool:
        """Whether some float of the plan is narrower than f32."""
        return any(
            DTYPES[name].kind == "float" and DTYPES[name].bits < 32 for name in self._dtypes()
        )

    def _dtypes(self) -> set[str]:
        """List the float dtypes of the plan; with none of them, integers compare exactly."""
        used = {x.tensor.dtype.name for x in self._leaves}
        for _, step in self._plan.steps():
            used.add(step.output.tensor.dtype.name)
        return used
