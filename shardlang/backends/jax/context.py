"""What the parts of the emitter share: the plan, its sizes, the names of its values, and their types."""

from __future__ import annotations

from collections.abc import Iterable

from shardlang.backends.jax.compute import Scope
from shardlang.backends.jax.errors import failure, PlanDefect
from shardlang.backends.jax.flow import trace, Value
from shardlang.backends.jax.layout import names_of_axes, stacked_axes
from shardlang.backends.jax.names import comments, quoted
from shardlang.backends.jax.pretty import call, Item, parens, unpack
from shardlang.backends.jax.sizes import arrays, Numbers, roots
from shardlang.backends.jax.variables import Letters, Variables
from shardlang.backends.jax.varying import Varying
from shardlang.diagnostics import ShardlangError
from shardlang.ir.plan import Plan, Step
from shardlang.ir.program import Pipeline
from shardlang.ir.types import Axis, Dim
from shardlang.passes.normal import within_stages


class Context:
    """One module that is being written.

    `original` is the plan as it is printed, `plan` the same without axes of size 1. `given` names the
    sizes that the caller gave, `sized` collects the dims whose global size some code needs.
    """

    def __init__(self, original: Plan, plan: Plan, numbers: Numbers, given: frozenset[str]) -> None:
        """Follow the plan's values, and name and type them."""
        self.plan = plan
        self.original = original
        self.numbers = numbers
        self.given = given
        self.flow = trace(within_stages(plan), within_stages(original))
        self.names = Variables(plan, self.flow)
        self.roots = roots(plan)
        self.sized: dict[Dim, None] = {}
        letters = Letters(plan)
        self.scope = Scope(letters.one, self.size, names_of_axes, letters.of)
        self.has_backward = bool(plan.backward or plan.gradients or plan.cotangents)
        self.varying = Varying.of(self.flow)
        ends = (*self.flow.outputs, *self.flow.saved, *self.flow.gradients.values())
        self.unproven = self.varying.unproven(ends)

    @property
    def stages(self) -> Pipeline | None:
        """How layers lie on stages, where they do: then all microbatches go through the module at once."""
        return self.plan.program.pipeline

    @property
    def stage_axes(self) -> Item:
        """Write the axes of the stages."""
        return names_of_axes(() if self.stages is None else self.stages.axes)

    def sent(self, *, back: bool) -> tuple[Step, ...]:
        """Give the steps that send what a stage hands on, as they are printed."""
        steps = self.original.backward if back else self.original.forward
        return tuple(step for step in steps if step.sends)

    def microbatches(self, value: Value) -> Dim | None:
        """Give the dim of all microbatches, which in a pipeline all have in front but the parameters."""
        shared = value.array.tensor in self.plan.parameters
        return None if self.stages is None or shared else self.plan.program.microbatches

    def pipeline(self, value: Value) -> Pipeline | None:
        """Give how the layers of a stack lie on stages, where they do."""
        mine = (x.pipeline for x in self.plan.program.blocks if x.dim == value.loop)
        return next(mine, None)

    def staged(self, value: Value) -> tuple[Axis, ...]:
        """Give the axes of the stages that hold parts of a stack."""
        pipeline = self.pipeline(value)
        return () if pipeline is None else pipeline.axes

    def chunks(self, value: Value) -> int:
        """Say in how many chunks a stage holds its part of a stack."""
        pipeline = self.pipeline(value)
        return 1 if pipeline is None else pipeline.chunks

    def front(self, value: Value) -> list[Item]:
        """Write how a value's dims before its own are split: microbatches, then (chunks of) layers."""
        many: list[Item] = ["None"] if self.microbatches(value) else []
        return many + [names_of_axes(axes) if axes else "None" for _, axes in self._stack(value, 1)]

    def _stack(self, value: Value, layers: int) -> tuple[tuple[int, tuple[Axis, ...]], ...]:
        """Give the dims of a stack, with the axes that split each; none where a value is no stack."""
        if value.loop is None:
            return ()
        pipeline = self.pipeline(value)
        return ((layers, ()),) if pipeline is None else pipeline.stack(layers)

    def size(self, dim: Dim) -> str:
        """Write the global size of a dim, and remember that it is needed."""
        self.sized[dim] = None
        return f"sizes[{quoted(dim.name)}]"

    def places(self, dim: Dim) -> Item:
        """Write the places along a dim, on every device."""
        return call("jnp.arange", self.size(dim), "dtype=jnp.int32")

    def defect(self, text: str) -> ShardlangError:
        """Make the error of a plan that does not hold together."""
        return failure(self.plan, PlanDefect(text))

    def shape(self, value: Value, numbers: Numbers) -> tuple[int, ...]:
        """Give the global shape: in front microbatches and layers, and then stacked partial results."""
        shape = tuple(numbers.dims[dim] for dim in value.array.tensor.dims)
        partial = stacked_axes(value.array.layout)
        if partial:
            shape = (numbers.parts(partial), *shape)
        many = self.microbatches(value)
        layers = 1 if value.loop is None else numbers.dims[value.loop]
        stack = (size for size, _ in self._stack(value, layers))
        return (*([numbers.dims[many]] if many is not None else []), *stack, *shape)

    @property
    def without_gradient(self) -> frozenset[str]:
        """The leaves for which the plan has no gradient; they get zeros."""
        return frozenset(leaf.array.name for leaf in self.flow.leaves) - self.flow.gradients.keys()

    @property
    def again(self) -> tuple[Value, ...]:
        """The leaves that the backward pass reads, or makes zeros of the shape of."""
        missing = self.without_gradient
        return tuple(
            leaf
            for leaf in self.flow.leaves
            if leaf.array in self.flow.read or leaf.array.name in missing
        )

    @property
    def leaves_read(self) -> Item:
        """Write the leaves that the backward pass reads, taken from all inputs."""
        every, read = self.flow.leaves, self.again
        if read == every:
            return "inputs"
        return parens(*(f"inputs[{every.index(leaf)}]" for leaf in read))

    @property
    def x64(self) -> bool:
        """Whether JAX has to have its 64-bit types."""
        return any(array.tensor.dtype.bits == 64 for array in arrays(self.plan))

    def parameters(self, *names: str) -> str:
        """List the parameters of a function of steps: the sizes too, where any step needs some."""
        return ", ".join((*names, *(["sizes"] if self.sized else [])))

    def unpack(self, values: Iterable[Value], source: str) -> list[str]:
        """Unpack values as they lie outside of blocks; of partial results take this device's."""
        listed = tuple(values)
        names = [self.names.whole(value) for value in listed]
        lines = unpack(names, source, 1)
        for name, value in zip(names, listed, strict=True):
            if value.loop is None:
                lines += own_part(name, value)
        return lines

    def packed(self, value: Value) -> str:
        """Write a value as it leaves the devices."""
        name = self.names.whole(value)
        return f"{name}[None]" if value.array.layout.unreduced and value.loop is None else name


def own_part(name: str, value: Value) -> list[str]:
    """Take this device's part of partial results that are stacked along a leading dim."""
    if not value.array.layout.unreduced:
        return []
    return [*comments(f"{value.array}: this device's partial result", 1), f"    {name} = {name}[0]"]
