"""Writes a module's own check: an unsharded reference, and a main that compares with it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from shardlang.backends.jax.attention import attention
from shardlang.backends.jax.compute import aligned, compute, dtype_code, jax_dtype
from shardlang.backends.jax.context import Context
from shardlang.backends.jax.data import scales
from shardlang.backends.jax.flow import Value
from shardlang.backends.jax.functions import jumps, PRODUCTS_ON_CPU, widens_on_cpu
from shardlang.backends.jax.names import comment, comments, filled, Names, quoted
from shardlang.backends.jax.pretty import (
    call,
    dictionary,
    Entry,
    flat,
    Item,
    layout,
    parens,
    unpack,
)
from shardlang.backends.jax.scans import Layer
from shardlang.backends.jax.sizes import arrays, DEEP, fitted, layers_of, Numbers, shrunk
from shardlang.backends.jax.stages import count
from shardlang.backends.jax.template import (
    CHECK,
    fill,
    LIKE,
    MAIN,
    MAIN_GRADIENTS,
    MAIN_JUMPS,
    MAIN_WHOLE,
    ON_CPU,
)
from shardlang.backends.jax.train import training_check
from shardlang.ir.ops import Coefficient, Compute, Linear, Reduce, RingAttention
from shardlang.ir.plan import Plan, Step
from shardlang.ir.program import Block, Statement
from shardlang.ir.types import Array, Dim, DType, DTYPES, Layout, Tensor
from shardlang.passes.layers import bodies, left_inside, members, stack

CHECK_ELEMENTS = 2**20
"""The largest array, in elements, that the module's own check uses at its declared sizes."""

CHECK_WORK = 2**26
"""The largest product of a step's dims that it does."""

CHECK_DEVICES = 16
"""The largest mesh that it simulates."""

INPUTS_PLAIN = (
    "    inputs = tuple(_data(rng, shapes[name], dtype) for name, (_, dtype, _) in INPUTS.items())",
)

INPUTS_SCALED = (
    "    inputs = tuple(",
    "        _data(rng, shapes[name], dtype, scales.get(name, 1.0))",
    "        for name, (_, dtype, _) in INPUTS.items()",
    "    )",
)

_COMBINE: Mapping[str, str] = {"sum": "sum", "max": "max", "min": "min"}

_TOLERANCES: Mapping[str, str] = {
    "f64": "1e-10", "f32": "1e-04", "f16": "2e-02", "bf16": "1e-01", "f8e4m3": "0.5",
    "f8e5m2": "1.0",
}  # fmt: skip


def check(context: Context) -> str:
    """Write the reference, main, and what they share."""
    plan, flow = context.plan, context.flow
    fixed = _fixed(context)
    small = _small(context, fixed) if _too_large(context) else None
    setup = [] if small is None else _small_setup(context, small)
    if small is None:
        setup = [
            "    axes = MESH_AXES",
            "    shapes = {name: shape for name, (shape, _, _) in INPUTS.items()}",
        ]
    scaled = _scales(context, (small or context.numbers).dims)
    marks: dict[str, Item] = {
        "wide": "float64" if context.x64 else "float32",
        "setup": "\n".join((*setup, *scaled)),
        "inputs": "\n".join(INPUTS_SCALED if scaled else INPUTS_PLAIN),
        "magnitude": "a scale" if scaled else "1",
        "scale_parameter": ", scale=1.0" if scaled else "",
        "times_scale": " * scale" if scaled else "",
        "combine": _combine(context),
        "tolerance": _tolerance(plan),
        "on_cpu": ON_CPU.strip("\n") if widens_on_cpu(plan) else "",
        "precision": f'"{PRODUCTS_ON_CPU}" if on_cpu else "highest"'
        if widens_on_cpu(plan)
        else '"highest"',
    }
    seeds = [
        f"cotangents[{i}][{':, ' * len(context.front(x))}None]"
        if x.array.layout.unreduced and context.front(x)
        else f"cotangents[{i}]"
        for i, x in enumerate(flow.outputs)
    ]
    behind = any(x.array.layout.unreduced and context.front(x) for x in flow.outputs)
    marks["seeds"] = parens(*seeds) if behind else "cotangents"
    trained = "name in STATES" if plan.update else "want.dtype != jax.dtypes.float0"
    marks |= {"gradients": "", "compared": trained}
    shared = fill(CHECK, marks).strip("\n")
    if context.has_backward:
        jumping = _jumps(plan)
        parts = (MAIN_WHOLE, MAIN_JUMPS if jumping else MAIN_GRADIENTS)
        filled = [fill(part, marks).strip("\n") for part in parts]
        scanned = plan.program.microbatches is not None and context.stages is None
        combine = _combine(context, int(scanned))
        filled += training_check(context, combine, gradients=not jumping)
        marks["gradients"] = "\n" + "\n\n".join(filled)
        shared += "" if jumping else "\n\n\n" + LIKE.strip("\n")
    reference = "\n\n\n".join(_Reference(context).texts())
    return "\n\n\n".join([reference, shared, fill(MAIN, marks).strip("\n")])


def _fixed(context: Context) -> frozenset[Dim]:
    """Give the dims whose size no input has, so that it is a number in the module."""
    leaves = context.flow.leaves
    dims = [dim for leaf in leaves for dim in leaf.array.tensor.dims]
    dims += [leaf.loop for leaf in leaves if leaf.loop is not None]
    dims += [dim for dim in map(context.microbatches, leaves) if dim is not None]
    read = {context.roots[dim] for dim in dims}
    return frozenset(dim for dim, root in context.roots.items() if root not in read)


def _combine(context: Context, before: int = 0) -> str:
    """Write how stacked partial outputs are combined, which have so many dims `before` all others."""
    outputs = context.flow.outputs
    if not any(value.array.layout.unreduced for value in outputs):
        return ""
    combined = [
        _combined(f"outputs[{i}]", value, len(context.front(value)) + before)
        for i, value in enumerate(outputs)
    ]
    return "\n".join(layout("outputs = ", parens(*combined), 2))


def _combined(code: str, value: Value, front: int) -> Item:
    """Combine stacked partial results, which lie behind microbatches and layers: the dims in front."""
    if not value.array.layout.unreduced:
        return code
    return call(f"{code}.{_COMBINE[value.array.layout.reduction]}", f"axis={front}")


def _too_large(context: Context) -> bool:
    """Say whether the declared sizes are too large for a run on one machine."""
    sizes, plan = context.numbers.dims, context.plan
    elements = (math.prod(sizes[d] for d in x.tensor.dims) for x in arrays(plan))
    stacks = (math.prod(context.shape(leaf, context.numbers)) for leaf in context.flow.leaves)
    work = (
        math.prod(sizes[d] for d in {d for x in step.inputs for d in x.tensor.dims})
        for _, step in plan.steps()
    )
    return (
        context.numbers.devices > CHECK_DEVICES
        or max((*elements, *stacks), default=0) > CHECK_ELEMENTS
        or max(work, default=0) > CHECK_WORK
        or any(sizes[loop] > DEEP for loop in layers_of(plan))
    )


def _small(context: Context, fixed: frozenset[Dim]) -> Numbers | None:
    """Give the small sizes that the check uses instead; None if all were given."""
    numbers = context.numbers
    small = fitted(context.plan, numbers, context.given, devices=CHECK_DEVICES, fixed=fixed)
    return None if (small.axes, small.dims) == (numbers.axes, numbers.dims) else small


def _small_setup(context: Context, small: Numbers) -> list[str]:
    """Write the small mesh and shapes."""
    axes = [Entry(f"{quoted(a.name)}: ", str(n)) for a, n in small.axes.items()]
    shapes = [
        Entry(f"{quoted(x.array.name)}: ", parens(*(str(n) for n in context.shape(x, small))))
        for x in context.flow.leaves
    ]
    start = "The declared sizes are too large to try here. This is the same code at small ones: "
    return [
        *(f"    {comment(line)}" for line in filled(start, shrunk(context.numbers, small), 94)),
        *layout("axes = ", dictionary(*axes), 1),
        *layout("shapes = ", dictionary(*shapes), 1),
    ]


def _scales(context: Context, sizes: Mapping[Dim, int]) -> list[str]:
    """Write the magnitudes of inputs for which 1 would be too large."""
    found = scales(context.plan.program, sizes) if context.flow.scans else {}
    if not found:
        return []
    entries = [Entry(f"{quoted(name)}: ", str(scale)) for name, scale in found.items()]
    return [
        "    # Sums of products of these stay near 1, however many layers there are.",
        *layout("scales = ", dictionary(*entries), 1),
    ]


def _tolerance(plan: Plan) -> str:
    """Give the error, relative to the largest value, that the narrowest dtype allows."""
    used = {array.tensor.dtype.name for array in arrays(plan)}
    return max((_TOLERANCES.get(name, "1e-04") for name in used), key=float, default="1e-04")


def _jumps(plan: Plan) -> bool:
    """Say whether rounding to a narrow float can move a derivative from one side of a jump."""
    narrow = any(x.tensor.dtype.kind == "float" and x.tensor.dtype.bits < 32 for x in arrays(plan))
    return narrow and jumps(plan)


@dataclass
class _Reference:
    """Writes the program's global meaning as plain functions of whole arrays.

    Values are wide floats. A variable has the same name in all functions, those of layers too.
    """

    context: Context
    names: Names = field(default_factory=Names)
    table: dict[str, str] = field(default_factory=dict[str, str])
    whole: dict[str, Array] = field(default_factory=dict[str, Array])
    layers: list[str] = field(default_factory=list[str])

    def define(self, tensor: Tensor) -> str:
        """Give a tensor's variable, from now on."""
        wider = replace(tensor, dtype=self.wider(tensor))
        self.whole[tensor.name] = Array(wider, Layout.replicated(len(tensor.dims)))
        if tensor.name not in self.table:
            self.table[tensor.name] = self.names.fresh(tensor.name)
        return self.table[tensor.name]

    def wider(self, tensor: Tensor) -> DType:
        """Give the dtype that a value has here."""
        wide = DTYPES["f64" if self.context.x64 else "f32"]
        return wide if tensor.dtype.kind == "float" else tensor.dtype

    def texts(self) -> list[str]:
        """Write the functions: those of layers first."""
        context = self.context
        leaves = [self.define(leaf.array.tensor) for leaf in context.flow.leaves]
        lines = unpack(leaves, "inputs", 1)
        constant = {x.array: x for x in context.plan.program.leaves if not x.differentiable}
        for name, leaf in zip(leaves, context.flow.leaves, strict=True):
            if context.chunks(leaf) > 1:
                lines += comments("All layers, from those of the stages' first chunks on", 1)
                lines.append(f"    {name} = {name}.reshape(-1, *{name}.shape[2:])")
            if leaf.array.layout.unreduced:
                lines += layout(f"{name} = ", _combined(name, leaf, int(leaf.loop is not None)), 1)
            if leaf.array in constant and leaf.array.tensor.dtype.kind == "float":
                why = "frozen" if constant[leaf.array].frozen else "a cache"
                lines.append(f"    {name} = jax.lax.stop_gradient({name})  # {why}")
        for array in context.flow.indices:
            (dim,) = array.tensor.dims
            lines += layout(f"{self.define(array.tensor)} = ", context.places(dim), 1)
        forward = (s for s in context.plan.program.statements if s.section == "forward")
        for block, run in bodies(forward):
            lines += self.run(run) if block is None else self.block(block, run)
        for array in context.plan.outputs:
            if array.name not in self.table:
                text = f"no statement of the program defines the output {array.name}"
                raise context.defect(text)
        outputs: list[str] = []
        for output in context.flow.outputs:
            name, chunks = self.table[output.array.name], context.chunks(output)
            split = f".reshape({chunks}, -1, *{name}.shape[1:])" if chunks > 1 else ""
            outputs.append(f"{name}{split}")
        sizes = ["    sizes = _sizes(inputs)"] if "sizes" in "\n".join(lines) else []
        says = '    """Compute the outputs with no sharding at all, as the program means them."""'
        body = [*lines, *layout("return ", parens(*outputs), 1)]
        if self.context.stages is None:
            function = ["def reference(*inputs):", says, *sizes, *body]
            return [*self.layers, "\n".join(function)]
        sized = ", sizes" if sizes else ""
        one = [
            f"def _reference_of_one(inputs{sized}):",
            '    """Compute the outputs of a microbatch."""',
            *body,
        ]
        function = [
            "def reference(*inputs):",
            says,
            *sizes,
            '    fronts = [front.replace("c", "") for front in FRONT]',
            "",
            "    def one(i):",
            '        return _reference_of_one(_of(inputs, fronts, {"i": i})' + f"{sized})",
            "",
            f"    return lax.map(one, jnp.arange({flat(count(self.context))}))",
        ]
        return [*self.layers, "\n".join(one), "\n".join(function)]

    def run(self, statements: Iterable[Statement]) -> list[str]:
        """Write statements outside of blocks, or those of a layer."""
        lines: list[str] = []
        for item in statements:
            missing = [u.tensor.name for u in item.operands if u.tensor.name not in self.whole]
            if missing:
                text = f"the reference needs {missing[0]}, which nothing defines"
                raise self.context.defect(text)
            inputs = tuple(self.whole[use.tensor.name] for use in item.operands)
            lines += self.statement(item, inputs, [self.table[x.name] for x in inputs])
        return lines

    def statement(
        self, item: Statement, inputs: tuple[Array, ...], sources: list[str]
    ) -> list[str]:
        """Write one statement on whole arrays; a change of layout is nothing, or a copy."""
        op = item.op
        if not isinstance(op, Compute):
            if item.result.name == inputs[0].name:
                return []
            op = Linear((Coefficient(),))
        target = self.define(item.result)
        if _adds_layers(item):
            part = aligned(sources[0], inputs[0].tensor.dims, item.result.dims)
            return layout(f"{target} = ", f"{target} + {part}", 1)
        output = self.whole[item.result.name]
        if isinstance(op, RingAttention):
            alone = Step(replace(op, axes=()), inputs, output)
            return attention(alone, sources, [target, "_"], self.context.scope)
        lines = compute(op, inputs, sources, output, target, self.context.scope)
        if item.constant:
            lines.append(f"    {target} = lax.stop_gradient({target})")
        return lines

    def block(self, block: Block, run: Sequence[Statement]) -> list[str]:
        """Write a block as a scan, and the function of a layer."""
        program, plan = self.context.plan.program, self.context.plan
        own = members(program, block)
        stacks = {leaf.array.name for leaf in stack(program, block)}
        made = {item.result.name for item in run} | {c.entry.name for c in block.carries}
        read = dict.fromkeys(use.tensor.name for item in run for use in item.operands)
        stacked = [self.table[name] for name in read if name in stacks]
        sums = [item.result for item in run if _adds_layers(item)]
        totals = [self.define(tensor) for tensor in sums]
        handed = [*(self.table[carry.entry.name] for carry in block.carries), *totals]
        outside = [self.table[name] for name in read if name not in own and name not in made]
        body = self.run(run)
        ends = [*(self.table[carry.exit.name] for carry in block.carries), *totals]
        left = left_inside(program, (x.tensor for x in plan.outputs), block)
        given = [self.table[tensor.name] for tensor in left]
        layer = Layer(
            f"_reference_layer_{block.number + 1}",
            f"Compute a layer of `layers {block.dim}`.",
            outside,
            "sizes[" in "\n".join(body),
            handed,
            stacked,
            body,
            ends,
            given,
        )
        self.layers.append(layer.text())
        length = [] if stacked else [f"length={self.context.size(block.dim)}"]
        zeros = (self.zeros(tensor, name) for tensor, name in zip(sums, totals, strict=True))
        return [
            *(line for lines in zeros for line in lines),
            *layer.scan(handed, stacked, ends, given, *length),
        ]

    def zeros(self, tensor: Tensor, name: str) -> list[str]:
        """Write the zeros that a sum over layers begins with."""
        shape = parens(*(self.context.size(dim) for dim in tensor.dims))
        dtype = dtype_code(jax_dtype(self.wider(tensor)))
        return layout(f"{name} = ", call("jnp.zeros", shape, dtype), 1)


def _adds_layers(item: Statement) -> bool:
    """Say whether a line of a block adds something up over the layers."""
    return item.block is not None and item.op == Reduce("sum", (item.block.dim,))
