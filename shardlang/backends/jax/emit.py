"""Writes a plan as a standalone JAX module: every step of both passes, with its notation above it.

Reads the plan and nothing else. The module's text is data until somebody runs it: names of the
program become identifiers through `names`, everything else of it stands in comments or literals.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from textwrap import wrap
from typing import Protocol

from shardlang.backends.jax.compute import compute, jax_dtype, Scope
from shardlang.backends.jax.errors import (
    AxisNotAscii,
    BlockNotEmitted,
    failure,
    PlanDefect,
    TooManyDims,
)
from shardlang.backends.jax.functions import HELPERS, jumps
from shardlang.backends.jax.layout import (
    names_of_axes,
    partition_spec,
    stacked_axes,
)
from shardlang.backends.jax.names import comment, comments, docstring_text, Names, quoted
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
from shardlang.backends.jax.rings import helpers, ring
from shardlang.backends.jax.sizes import arrays, choose, dims_of, fitted, Numbers, shrunk
from shardlang.backends.jax.template import (
    CHECK,
    LIKE,
    MAIN,
    MAIN_GRADIENTS,
    MAIN_JUMPS,
    MAIN_WHOLE,
    MODULE,
)
from shardlang.backends.jax.varying import unproven
from shardlang.ir.ops import (
    AllGather,
    AllReduce,
    AllToAll,
    Coefficient,
    Compute,
    Linear,
    Mask,
    Permute,
    ReduceScatter,
    Relayout,
    Ring,
    Slice,
)
from shardlang.ir.plan import Plan, Step
from shardlang.ir.printer import statement
from shardlang.ir.program import Statement
from shardlang.ir.types import Array, Axis, Dim, DTYPES, Layout, Tensor
from shardlang.passes.normal import without_axes
from shardlang.source import Span

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"

CHECK_ELEMENTS = 2**20
"""The largest array, in elements, that the module's own check uses at its declared sizes."""

CHECK_WORK = 2**26
"""The largest product of a step's dims that it does."""

CHECK_DEVICES = 16
"""The largest mesh that it simulates."""


def emit_jax(plan: Plan, sizes: Mapping[str, int] | None = None) -> str:
    """Write a plan as the text of a Python module, as docs and `interface.md` describe it.

    `sizes` are global sizes of dims and axes by name; they win over the program's. Those that
    nobody gives are chosen. Raises ShardlangError with an SH6xx code.
    """
    if plan.program.blocks:
        first = next(s for s in plan.program.statements if s.block is not None)
        name = plan.program.blocks[0].dim.name
        raise failure(plan, BlockNotEmitted(name), first.span)
    numbers = choose(plan, sizes)
    for axis in numbers.axes:
        if not axis.name.isascii():
            raise failure(plan, AxisNotAscii(axis.name))
    declared = plan.program.mesh.sizes
    ones = frozenset(
        axis
        for axis, size in numbers.axes.items()
        if size == 1 and (axis.name in declared or axis.name in (sizes or {}))
    )
    return _Module(plan, without_axes(plan, ones), numbers, frozenset(sizes or {})).text()


@dataclass
class _Letters:
    """Gives each dim an einsum letter, the same one in the whole module where 52 suffice."""

    plan: Plan
    _table: dict[Dim, str] = field(default_factory=dict[Dim, str])

    def __post_init__(self) -> None:
        """Let every dim have its own initial where it is free."""
        dims = dims_of(self.plan)
        if len(dims) <= len(LETTERS):
            self._table = _letters(dims)

    def one(self, dim: Dim) -> str:
        """Give a dim's letter."""
        return self._table[dim]

    def of(self, dims: tuple[Dim, ...]) -> Mapping[Dim, str]:
        """Give the letters of a step's dims."""
        if self._table:
            return self._table
        if len(dims) > len(LETTERS):
            names = ", ".join(dim.name for dim in dims[:3])
            raise failure(self.plan, TooManyDims(f"the einsum over {names}, ...", len(dims)))
        return _letters(dims)


def _letters(dims: Iterable[Dim]) -> dict[Dim, str]:
    """Give each dim the lower-case initial of its name where free, else some free letter."""
    table: dict[Dim, str] = {}
    for dim in dims:
        initial = dim.name[:1]
        wanted = [initial.lower(), initial.upper(), *LETTERS]
        free = (x for x in wanted if x in LETTERS and x and x not in table.values())
        table[dim] = next(free)
    return table


class _Variables:
    """Names every array of a plan: the bare name for a tensor's usual layout, else with a suffix."""

    def __init__(self, plan: Plan) -> None:
        self._names = Names()
        self._table: dict[tuple[str, Layout], str] = {}
        home: dict[str, Layout] = {}
        ends = (*(g.gradient for g in plan.gradients), *plan.outputs, *plan.cotangents)
        for array in (*(leaf.array for leaf in plan.program.leaves), *ends):
            home.setdefault(array.name, array.layout)
        steps = [step for _, step in plan.steps()]
        for step in steps:
            if not step.output.layout.unreduced:
                home.setdefault(step.output.name, step.output.layout)
        for step in steps:
            home.setdefault(step.output.name, step.output.layout)
        for name, layout_ in home.items():
            self._table[name, layout_] = self._names.fresh(name)
        for step in steps:
            for array, word in (
                (step.output, _suffix(step)),
                *((x, "gathered") for x in step.outputs[1:]),
                *((x, "relaid") for x in step.inputs),
            ):
                if (array.name, array.layout) not in self._table:
                    wanted = f"{array.name}_{word}"
                    self._table[array.name, array.layout] = self._names.fresh(wanted)

    def __getitem__(self, array: Array) -> str:
        """Give the variable that holds an array."""
        return self._table[array.name, array.layout]


def _suffix(step: Step) -> str:
    """Say in a word how a step's result differs from the tensor's usual layout."""
    match step.op:
        case AllGather():
            return "gathered"
        case ReduceScatter():
            return "scattered"
        case AllReduce():
            return "reduced"
        case AllToAll() | Permute():
            return "moved"
        case Slice():
            return "sliced"
        case Mask():
            return "masked"
        case _:
            return "partial" if step.output.layout.unreduced else "local"


class _Module:
    """Writes the module of one plan."""

    def __init__(self, original: Plan, plan: Plan, numbers: Numbers, given: frozenset[str]) -> None:
        self._original = original
        self._given = given
        self._plan = plan
        self._numbers = numbers
        self._names = _Variables(plan)
        letters = _Letters(plan)
        self._sized: dict[Dim, None] = {}
        self._scope = Scope(letters.one, self._size, names_of_axes, letters.of)
        self._leaves = tuple(leaf.array for leaf in plan.program.leaves)
        self._caches = {leaf.array for leaf in plan.program.leaves if leaf.kind == "cache"}
        self._has_backward = bool(plan.backward or plan.gradients or plan.cotangents)
        self._unproven: list[tuple[Array, tuple[Axis, ...]]] = []

    # Names and sizes

    def _size(self, dim: Dim) -> str:
        """Write the global size of a dim, and remember that it is needed."""
        self._sized[dim] = None
        return f"sizes[{quoted(dim.name)}]"

    def _defect(self, text: str, span: Span | None = None) -> Exception:
        return failure(self._plan, PlanDefect(text), span)

    def _shape(self, array: Array, numbers: Numbers) -> tuple[int, ...]:
        """Give the global shape, with the stacked partial results in front."""
        shape = tuple(numbers.dims[dim] for dim in array.tensor.dims)
        stacked = stacked_axes(array.layout)
        return (numbers.parts(stacked), *shape) if stacked else shape

    # Steps

    def _step(self, step: Step) -> list[str]:
        """Write one step without its comment."""
        target = self._names[step.output]
        sources = [self._names[array] for array in step.inputs]
        if isinstance(step.op, Ring):
            kept = next((self._names[array] for array in step.outputs[1:]), None)
            return ring(step, sources, target, kept, self._scope)
        if isinstance(step.op, Compute):
            if _is_copy(step):
                return layout(f"{target} = ", sources[0], 1)
            return compute(step.op, step.inputs, sources, step.output, target, self._scope)
        return self._relayout(step.op, step, sources[0], target)

    def _relayout(self, op: Relayout, step: Step, source: str, target: str) -> list[str]:
        """Write a collective or a local change of layout; over no axes it does nothing."""
        dims = step.inputs[0].tensor.dims
        if not op.axes and not isinstance(op, Permute):
            expression: Item = source
        else:
            expression = self._moved(op, step, source, dims)
        lines = layout(f"{target} = ", expression, 1)
        wanted = step.output.tensor.dims
        if wanted != dims:
            order = parens(*(str(dims.index(dim)) for dim in wanted))
            lines += layout(f"{target} = ", call("jnp.transpose", target, order), 1)
        return lines

    def _moved(self, op: Relayout, step: Step, source: str, dims: tuple[Dim, ...]) -> Item:
        """Write the call of a relayout."""
        axes = names_of_axes(op.axes) if op.axes else "()"
        match op:
            case AllGather(_, dim):
                where = f"axis={dims.index(dim)}"
                return call("lax.all_gather", source, axes, where, "tiled=True", 'to="invarying"')
            case ReduceScatter(_, dim):
                where = f"scatter_dimension={dims.index(dim)}"
                return call("lax.psum_scatter", source, axes, where, "tiled=True")
            case AllReduce():
                function = {"sum": "psum", "max": "pmax", "min": "pmin"}
                return call(f"lax.{function[step.inputs[0].layout.reduction]}", source, axes)
            case AllToAll(_, gathered, dim):
                split, concat = (
                    f"split_axis={dims.index(dim)}",
                    f"concat_axis={dims.index(gathered)}",
                )
                return call("lax.all_to_all", source, axes, split, concat, "tiled=True")
            case Slice(_, dim):
                return call("_own_shard", source, axes, f"dim={dims.index(dim)}")
            case Mask():
                index = f"{flat(call('lax.axis_index', axes))} == 0"
                return call("jnp.where", index, source, f"jnp.zeros_like({source})")
            case Permute():
                return self._permute(step, source)

    def _permute(self, step: Step, source: str) -> Item:
        """Write a permutation of shards, computed from both layouts when the code is traced."""
        have, want = step.inputs[0], step.output
        split = {*have.layout.split_axes, *want.layout.split_axes}
        moving = [axis for axis in self._numbers.axes if axis in split]
        axes = names_of_axes(moving)

        def written(array: Array) -> Item:
            per_dim = (array.axes(dim) for dim in have.tensor.dims)
            return parens(*(parens(*(quoted(a.name) for a in axes)) for axes in per_dim))

        whole = axes if len(moving) > 1 else parens(axes)
        moves = call("_shard_moves", whole, written(have), written(want))
        return call("lax.ppermute", source, axes, moves)

    def _pass(self, steps: tuple[Step, ...], originals: tuple[Step, ...]) -> list[str]:
        """Write the steps of a pass, each under its notation."""
        lines: list[str] = []
        for step, original in zip(steps, originals, strict=True):
            note = ""
            if step.is_collective:
                note = "  // on the critical path" if step.critical else ""
            lines += comments(statement(original) + note, 1)
            lines += self._step(step)
        return lines

    # What the passes hand over

    def _check_sources(self) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        """Find what backward reads of the leaves and of forward's values; refuse what is unmade."""
        made = {(x.name, x.layout): x for x in self._leaves}
        leaves = set(made)
        self._check_reads(self._plan.forward, made, "forward")
        for array in self._plan.outputs:
            self._need(array, made, "output")
        forward = dict(made)
        made.update({(x.name, x.layout): x for x in self._plan.cotangents})
        given = {(x.name, x.layout) for x in self._plan.cotangents}
        read: dict[tuple[str, Layout], Array] = {}
        for step in self._plan.backward:
            for array in step.inputs:
                key = (array.name, array.layout)
                self._need(array, made, "backward", step)
                if key in forward and key not in given:
                    read.setdefault(key, array)
            made.update(((x.name, x.layout), x) for x in step.outputs)
            given.update((x.name, x.layout) for x in step.outputs)
        for gradient in self._plan.gradients:
            self._need(gradient.gradient, made, "gradient")
            key = (gradient.gradient.name, gradient.gradient.layout)
            if key in forward and key not in given:
                read.setdefault(key, gradient.gradient)
        from_leaves = {key for key in read if key in leaves}
        missing = self._without_gradient()
        again = tuple(
            x for x in self._leaves if (x.name, x.layout) in from_leaves or x.name in missing
        )
        return again, tuple(array for key, array in read.items() if key not in leaves)

    def _check_reads(
        self, steps: tuple[Step, ...], made: dict[tuple[str, Layout], Array], where: str
    ) -> None:
        for step in steps:
            for array in step.inputs:
                self._need(array, made, where, step)
            made.update(((x.name, x.layout), x) for x in step.outputs)

    def _need(
        self,
        array: Array,
        made: Mapping[tuple[str, Layout], Array],
        where: str,
        step: Step | None = None,
    ) -> None:
        if (array.name, array.layout) not in made:
            text = f"{where}: {array} is read and no earlier step makes it"
            raise self._defect(text, step.span if step else None)

    def _without_gradient(self) -> set[str]:
        """Name the leaves for which the plan has no gradient; they get zeros."""
        have = {gradient.leaf.name for gradient in self._plan.gradients}
        return {leaf.name for leaf in self._leaves} - have

    # Sections

    def text(self) -> str:
        """Write the whole module."""
        again, saved = self._check_sources()
        gradients = (gradient.gradient for gradient in self._plan.gradients)
        self._unproven = unproven(self._plan, (*self._plan.outputs, *saved, *gradients))
        check = self._check()
        # Any pass may be the first to need the size of a dim, and then all take the sizes.
        self._pass(self._plan.forward, self._original.forward)
        self._pass(self._plan.backward, self._original.backward)
        code = [self._forward_steps(saved)]
        if self._has_backward:
            code.append(self._backward_steps(again, saved))
        steps = "\n\n\n".join(code)
        helpers = self._helpers(steps + check)
        parts = [
            self._head("".join((*helpers, steps, check))),
            self._tables(saved),
            *helpers,
            self._sizes_function(),
            steps,
            self._public(again),
            check,
        ]
        return (
            "\n\n\n".join(part.strip("\n") for part in parts if part).replace(
                "\n\n\nMESH_AXES", "\n\nMESH_AXES", 1
            )
            + "\n"
        )

    def _head(self, code: str) -> str:
        """Write the docstring and the imports."""
        program = self._plan.program
        name = docstring_text(PurePath(program.source.name).name) or "a program"
        what = "forward and backward" if self._has_backward else "forward"
        lines = [f'"""{name} in JAX: {what} with explicit collectives under jax.shard_map.', ""]
        lines.append(
            "Written by shardlang from a plan. The notation of each step stands above its code."
        )
        lines += self._notes()
        lines += ['"""', ""]
        lines += ["import functools", "import math", "import os", "import sys", ""]
        lines += ["import jax", "import jax.numpy as jnp", "import numpy as np"]
        if re.search(r"\blax\.", code):
            lines.append("from jax import lax")
        lines += [
            "from jax.sharding import AxisType, Mesh",
            "from jax.sharding import PartitionSpec as P",
        ]
        if self._x64:
            lines += ["", 'jax.config.update("jax_enable_x64", True)']
        return "\n".join(lines)

    @property
    def _x64(self) -> bool:
        return any(array.tensor.dtype.bits == 64 for array in arrays(self._plan))

    def _notes(self) -> list[str]:
        """Say in the docstring what a reader could not see in the code."""
        notes: list[str] = []
        if self._numbers.chosen:
            axes = {axis.name: size for axis, size in self._numbers.axes.items()}
            known = {**axes, **{dim.name: size for dim, size in self._numbers.dims.items()}}
            sizes = [f"{docstring_text(n)}={known[n]}" for n in self._numbers.chosen]
            notes += ["", *_filled("Sizes that nobody gave were chosen: ", sizes)]
        stacked = [x.name for x in (*self._leaves, *self._plan.outputs) if x.layout.unreduced]
        if stacked:
            notes += [
                "",
                *_filled(
                    "Partial results, one a device group, are stacked along a leading dim of: ",
                    stacked,
                ),
            ]
        none = [name for name in sorted(self._without_gradient()) if self._has_backward]
        if none:
            notes += ["", *_filled("No gradient flows to these, which get zeros: ", none)]
        if not self._has_backward:
            notes += ["", "The plan has no backward pass, so there is no forward_backward."]
        return notes

    def _tables(self, saved: tuple[Array, ...]) -> str:
        """Write MESH_AXES, INPUTS, OUTPUTS and the specs of what lies between the passes."""
        axes = [Entry(f"{quoted(a.name)}: ", str(n)) for a, n in self._numbers.axes.items()]
        lines = layout("MESH_AXES = ", dictionary(*axes), 0)
        lines += [comment(line) for line in self._parts()]
        lines += [
            "",
            "# Name: (global shape, dtype, PartitionSpec), in the order of the arguments.",
        ]
        lines += self._table("INPUTS", self._leaves)
        lines.append("")
        lines += self._table("OUTPUTS", self._plan.outputs)
        if self._has_backward:
            lines += [
                "",
                "# The specs of the outputs' cotangents, and of what the forward pass keeps.",
            ]
            specs = [partition_spec(x.layout) for x in self._plan.cotangents]
            lines += layout("COTANGENTS = ", parens(*specs), 0)
            lines += layout("SAVED = ", parens(*(partition_spec(x.layout) for x in saved)), 0)
        return "\n".join(lines)

    def _parts(self) -> list[str]:
        """Say which axes are parts of one, and that its devices are theirs."""
        wholes: dict[Axis, list[str]] = {}
        for info in self._plan.program.mesh.axes:
            if info.whole is not None:
                wholes.setdefault(info.whole, []).append(info.axis.name)
        return [
            f"{', '.join(own)} are the parts of an axis {whole}, on the same devices in the same order."
            for whole, own in wholes.items()
        ]

    def _table(self, name: str, rows: tuple[Array, ...]) -> list[str]:
        entries: list[Entry] = []
        for array in rows:
            shape = parens(*(str(n) for n in self._shape(array, self._numbers)))
            dtype = f'"{jax_dtype(array.tensor.dtype)}"'
            value = parens(shape, dtype, partition_spec(array.layout))
            entries.append(Entry(f"{quoted(array.name)}: ", value))
        return layout(f"{name} = ", dictionary(*entries), 0, force=bool(entries))

    def _helpers(self, code: str) -> list[str]:
        """Write the helpers that the steps call."""
        own = [text.strip("\n") for name, text in HELPERS.items() if f"{name}(" in code]
        return [*own, *helpers(code)]

    def _sizes_function(self) -> str:
        """Write the function that reads the global sizes off the inputs' shapes."""
        if not self._sized:
            return ""
        entries: list[Entry] = []
        for dim in self._sized:
            value = str(self._numbers.dims[dim])
            for index, leaf in enumerate(self._leaves):
                if dim in leaf.tensor.dims:
                    at = leaf.tensor.dims.index(dim) + bool(leaf.layout.unreduced)
                    value = f"inputs[{index}].shape[{at}]"
                    break
            entries.append(Entry(f"{quoted(dim.name)}: ", value))
        lines = [
            "def _sizes(inputs):",
            '    """Give the global sizes of the dims that steps need."""',
        ]
        lines += layout("return ", call("_Sizes", dictionary(*entries)), 1)
        return MODULE["sizes_class"].strip("\n") + "\n\n\n" + "\n".join(lines)

    def _unpack(self, arrays_: tuple[Array, ...], value: str) -> list[str]:
        """Unpack arrays, and take this device's part of stacked partial results."""
        if not arrays_:
            return []
        names = [self._names[x] for x in arrays_]
        lines = unpack(names, value, 1)
        for name, array in zip(names, arrays_, strict=True):
            if array.layout.unreduced:
                lines += comments(f"{array}: this device's partial result", 1)
                lines.append(f"    {name} = {name}[0]")
        return lines

    def _out(self, array: Array, *, stack: bool) -> str:
        name = self._names[array]
        return f"{name}[None]" if stack else name

    def _parameters(self, *names: str) -> str:
        return ", ".join((*names, *(["sizes"] if self._sized else [])))

    def _forward_steps(self, saved: tuple[Array, ...]) -> str:
        """Write the forward pass as a function of one device's shards."""
        body = self._pass(self._plan.forward, self._original.forward)
        outputs = [self._out(x, stack=bool(x.layout.unreduced)) for x in self._plan.outputs]
        kept = [self._out(x, stack=bool(x.layout.unreduced)) for x in saved]
        return "\n".join(
            [
                f"def _forward_steps({self._parameters('inputs')}):",
                '    """Run the forward pass on one device: its outputs, and what backward reads."""',
                *self._unpack(self._leaves, "inputs"),
                *body,
                *layout("return ", parens(parens(*outputs), parens(*kept)), 1),
            ]
        )

    def _backward_steps(self, again: tuple[Array, ...], saved: tuple[Array, ...]) -> str:
        """Write the backward pass as a function of one device's shards."""
        by_leaf = {gradient.leaf.name: gradient.gradient for gradient in self._plan.gradients}
        results: list[str] = []
        for leaf in self._leaves:
            gradient = by_leaf.get(leaf.name)
            if gradient is None:
                like = f"jnp.zeros_like({self._names[leaf]})"
                results.append(f"{like}[None]" if leaf.layout.unreduced else like)
                continue
            if gradient.layout != leaf.layout.reduced():
                text = f"the gradient {gradient} is not laid out as its leaf {leaf}"
                raise self._defect(text)
            results.append(self._out(gradient, stack=bool(leaf.layout.unreduced)))
        return "\n".join(
            [
                f"def _backward_steps({self._parameters('leaves', 'saved', 'cotangents')}):",
                '    """Run the backward pass on one device: the gradients in the order of INPUTS."""',
                *self._unpack(again, "leaves"),
                *self._unpack(saved, "saved"),
                *self._unpack(self._plan.cotangents, "cotangents"),
                *self._pass(self._plan.backward, self._original.backward),
                *layout("return ", parens(*results), 1),
            ]
        )

    def _cotangent_positions(self) -> tuple[int, ...]:
        """Say for each cotangent of the plan which output it belongs to."""
        outputs, cotangents = self._plan.outputs, self._plan.cotangents
        if len(outputs) == len(cotangents):
            return tuple(range(len(outputs)))
        names = {f"d{array.name}": index for index, array in enumerate(outputs)}
        if any(array.name not in names for array in cotangents):
            raise self._defect("there is not one cotangent an output")
        return tuple(names[array.name] for array in cotangents)

    def _unchecked(self) -> list[str]:
        """Say why JAX can't check what leaves the devices, where it can't."""
        if not self._unproven:
            return []
        ends = [
            f"{self._names[array]} along {', '.join(axis.name for axis in axes)}"
            for array, axes in self._unproven
        ]
        text = (
            "By JAX's types what a ppermute makes varies along all axes that it ran over, and no cast "
            f"says otherwise. These are in fact the same: {'; '.join(ends)}."
        )
        return [f"    {comment(line)}" for line in wrap(text, 90)]

    def _leaf_specs(self, again: tuple[Array, ...]) -> Item:
        return parens(*(partition_spec(x.layout) for x in again))

    def _public(self, again: tuple[Array, ...]) -> str:
        """Write make_mesh, forward, forward_backward and differentiable."""
        positions = self._cotangent_positions()
        outputs, leaves = self._plan.outputs, self._leaves
        every = positions == tuple(range(len(outputs)))
        order = {(leaf.name, leaf.layout): index for index, leaf in enumerate(leaves)}
        read = [f"inputs[{order[x.name, x.layout]}]" for x in again]
        given = [f"cotangents[{i}]" for i in positions]
        parts = [
            f"{c}[0]" if outputs[i].layout.unreduced else c
            for c, i in zip(given, positions, strict=True)
        ]
        stacked = any(outputs[i].layout.unreduced for i in positions)
        integer = [leaf.tensor.dtype.kind != "float" for leaf in leaves]
        floats = ["None" if no else f"gradients[{i}]" for i, no in enumerate(integer)]
        renamed: list[str] = []
        if stacked or not every:
            renamed = layout("cotangents = ", parens(*parts), 2)
        returned = ["        return _backward(mesh, *kept, cotangents)"]
        if any(integer):
            returned = ["        gradients = _backward(mesh, *kept, cotangents)"]
            returned += layout("return ", parens(*floats), 2)
        sized = bool(self._sized)
        mapped = ["function", "mesh=mesh", "in_specs=in_specs", "out_specs=out_specs"]
        mapped += ["check_vma=False"] if self._unproven else []
        fill: dict[str, Item] = {
            "sizes": "    sizes = _sizes(inputs)" if sized else "",
            "pass_sizes": ", sizes" if sized else "",
            "sizes_parameter": "sizes, " if sized else "",
            "static_sizes": ", _sizes(inputs)" if sized else "",
            "leaves": parens(*read),
            "leaf_specs": self._leaf_specs(again),
            "unchecked_why": "\n".join(self._unchecked()),
            "mapped": call("jax.shard_map", *mapped),
            "cotangents": "_arrays(cotangents, OUTPUTS)" if every else parens(*given),
            "vjp_cotangents": "\n".join(renamed),
            "vjp_gradients": "\n".join(returned),
            "stacked": (
                "\n    A loss may depend on stacked partial results through their sum alone."
                if stacked
                else ""
            ),
        }
        names = ["make_mesh", "on_devices", "arrays", "specs", "forward"]
        if self._has_backward:
            names += ["forward_backward", "differentiable"]
        return "\n\n\n".join(_fill(MODULE[name], fill).strip("\n") for name in names)

    # The module's own check

    def _check(self) -> str:
        """Write the reference, main, and what they share."""
        fixed = frozenset(dims_of(self._plan)).difference(*(x.tensor.dims for x in self._leaves))
        setup = self._small_setup(fixed) if self._too_large() else None
        if setup is None:
            setup = [
                "    axes = MESH_AXES",
                "    shapes = {name: shape for name, (shape, _, _) in INPUTS.items()}",
            ]
        combined = [
            f"outputs[{i}].{_COMBINE[x.layout.reduction]}(axis=0)"
            if x.layout.unreduced
            else f"outputs[{i}]"
            for i, x in enumerate(self._plan.outputs)
        ]
        stacked = any(x.layout.unreduced for x in self._plan.outputs)
        fill: dict[str, Item] = {
            "wide": "float64" if self._x64 else "float32",
            "setup": "\n".join(setup),
            "combine": "\n".join(layout("outputs = ", parens(*combined), 2)) if stacked else "",
            "tolerance": self._tolerance(),
        }
        fill["gradients"] = ""
        shared = _fill(CHECK, fill).strip("\n")
        if self._has_backward:
            jumping = _jumps(self._plan)
            parts = (MAIN_WHOLE, MAIN_JUMPS if jumping else MAIN_GRADIENTS)
            filled = (_fill(part, fill).strip("\n") for part in parts)
            fill["gradients"] = "\n" + "\n\n".join(filled)
            shared += "" if jumping else "\n\n\n" + LIKE.strip("\n")
        return "\n\n\n".join([self._reference(), shared, _fill(MAIN, fill).strip("\n")])

    def _too_large(self) -> bool:
        """Say whether the declared sizes are too large for a run on one machine."""
        sizes = self._numbers.dims
        elements = (math.prod(sizes[d] for d in x.tensor.dims) for x in arrays(self._plan))
        work = (
            math.prod(sizes[d] for d in {d for x in step.inputs for d in x.tensor.dims})
            for _, step in self._plan.steps()
        )
        return (
            self._numbers.devices > CHECK_DEVICES
            or max(elements, default=0) > CHECK_ELEMENTS
            or max(work, default=0) > CHECK_WORK
        )

    def _small_setup(self, fixed: frozenset[Dim]) -> list[str] | None:
        """Write the small mesh and shapes that the check uses instead; None if all were given."""
        small = fitted(self._plan, self._numbers, self._given, devices=CHECK_DEVICES, fixed=fixed)
        if (small.axes, small.dims) == (self._numbers.axes, self._numbers.dims):
            return None
        axes = [Entry(f"{quoted(a.name)}: ", str(n)) for a, n in small.axes.items()]
        shapes = [
            Entry(f"{quoted(x.name)}: ", parens(*(str(n) for n in self._shape(x, small))))
            for x in self._leaves
        ]
        return [
            "    # The declared sizes are too large to try here: the same code at small sizes.",
            *(f"    {comment(line)}" for line in wrap(", ".join(shrunk(self._numbers, small)), 90)),
            *layout("axes = ", dictionary(*axes), 1),
            *layout("shapes = ", dictionary(*shapes), 1),
        ]

    def _tolerance(self) -> str:
        """Give the error, relative to the largest value, that the narrowest dtype allows."""
        used = {array.tensor.dtype.name for array in arrays(self._plan)}
        return max((_TOLERANCES.get(name, "1e-04") for name in used), key=float, default="1e-04")

    def _reference(self) -> str:
        """Write the program's global meaning as plain functions of whole arrays."""
        names = Names()
        table: dict[str, str] = {}
        whole: dict[str, Array] = {}

        def define(tensor: Tensor) -> str:
            dtype = DTYPES["f64" if self._x64 else "f32"]
            dtype = dtype if tensor.dtype.kind == "float" else tensor.dtype
            wide = replace(tensor, dtype=dtype)
            whole[tensor.name] = Array(wide, Layout.replicated(len(tensor.dims)))
            table.setdefault(tensor.name, names.fresh(tensor.name))
            return table[tensor.name]

        leaves = [define(leaf.tensor) for leaf in self._leaves]
        lines = unpack(leaves, "inputs", 1) if leaves else []
        for name, leaf in zip(leaves, self._leaves, strict=True):
            if leaf.layout.unreduced:
                reduce = f"{name}.{_COMBINE[leaf.layout.reduction]}"
                lines += layout(f"{name} = ", call(reduce, "axis=0"), 1)
            if leaf in self._caches:
                lines.append(f"    {name} = jax.lax.stop_gradient({name})  # a cache")
        for item in self._plan.program.statements:
            if item.section != "forward":
                continue
            missing = [use.tensor.name for use in item.operands if use.tensor.name not in whole]
            if missing:
                raise self._defect(f"the reference needs {missing[0]}, which nothing defines")
            inputs = tuple(whole[use.tensor.name] for use in item.operands)
            lines += self._global(item, inputs, [table[x.name] for x in inputs], define)
        for array in self._plan.outputs:
            if array.name not in table:
                raise self._defect(f"no statement of the program defines the output {array.name}")
        outputs = [table[array.name] for array in self._plan.outputs]
        body = "\n".join(lines)
        sizes = ["    sizes = _sizes(inputs)"] if "sizes[" in body else []
        return "\n".join(
            [
                "def reference(*inputs):",
                '    """Compute the outputs with no sharding at all, as the program means them."""',
                *sizes,
                *lines,
                *layout("return ", parens(*outputs), 1),
            ]
        )

    def _global(
        self, item: Statement, inputs: tuple[Array, ...], sources: list[str], define: Definer
    ) -> list[str]:
        """Write one statement on whole arrays; a change of layout is nothing, or a copy."""
        op = item.op
        if not isinstance(op, Compute):
            if item.result.name == inputs[0].name:
                return []
            op = Linear((Coefficient(),))
        target = define(item.result)
        dtype = DTYPES["f64" if self._x64 else "f32"]
        tensor = item.result
        output = Array(
            replace(tensor, dtype=dtype if tensor.dtype.kind == "float" else tensor.dtype),
            Layout.replicated(len(tensor.dims)),
        )
        lines = compute(op, inputs, sources, output, target, self._scope)
        if item.constant:
            lines.append(f"    {target} = lax.stop_gradient({target})")
        return lines


class Definer(Protocol):
    """Names a tensor of the reference."""

    def __call__(self, tensor: Tensor) -> str:
        """Give the variable's name."""
        ...


_COMBINE: Mapping[str, str] = {"sum": "sum", "max": "max", "min": "min"}

_TOLERANCES: Mapping[str, str] = {
    "f64": "1e-10", "f32": "1e-04", "f16": "2e-02", "bf16": "1e-01", "f8e4m3": "0.5",
    "f8e5m2": "1.0",
}  # fmt: skip


def _jumps(plan: Plan) -> bool:
    """Say whether rounding to a narrow float can move a derivative from one side of a jump."""
    narrow = any(x.tensor.dtype.kind == "float" and x.tensor.dtype.bits < 32 for x in arrays(plan))
    return narrow and jumps(plan)


def _is_copy(step: Step) -> bool:
    """Say whether a step gives its operand another name and changes nothing."""
    op, source, target = step.op, step.inputs[0].tensor, step.output.tensor
    plain = isinstance(op, Linear) and op.coefficients == (Coefficient(),) and not op.constant
    return plain and source.dims == target.dims and source.dtype == target.dtype


def _filled(start: str, words: Iterable[str]) -> list[str]:
    """Write a list of words as lines of at most 100 columns."""
    lines, line = list[str](), start
    listed = list(words)
    for index, word in enumerate(listed):
        piece = word + ("." if index == len(listed) - 1 else ",")
        if len(line) + len(piece) + 1 > 100:
            lines.append(line.rstrip())
            line = ""
        line += piece if line.endswith(" ") or not line else f" {piece}"
    return [*lines, line]


def _fill(template: str, values: Mapping[str, Item]) -> str:
    """Fill `@name@` marks; a line whose mark is a bracket is broken where it is too long."""
    lines: list[str] = []
    for line in template.split("\n"):
        whole = re.fullmatch(r"@(\w+)@", line)
        if whole is not None and values[whole[1]] == "":
            continue
        marks = re.findall(r"@(\w+)@", line)
        nodes = [name for name in marks if not isinstance(values[name], str)]
        if len(marks) == 1 and nodes:
            before, _, after = line.partition(f"@{marks[0]}@")
            indent = (len(before) - len(before.lstrip())) // 4
            lines += layout(before.lstrip(), values[marks[0]], indent, after)
            continue
        lines.append(re.sub(r"@(\w+)@", lambda m: flat(values[m[1]]), line))
    return "\n".join(lines)
