"""A resolved program: what the text means, before any communication is inferred."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from shardlang.ir.ops import Op
from shardlang.ir.size import Monomial, SizeExpr
from shardlang.ir.types import (
    Array,
    Axis,
    AxisInfo,
    Dim,
    DType,
    DTYPES,
    Layout,
    Mesh,
    Sizes,
    Tensor,
)
from shardlang.source import Source, Span

LeafKind = Literal["input", "param", "cache", "index"]
"""What a leaf is to the costs: given anew in each step, a weight, or state of serving.

An `index` is given by nobody: `index_T` has the numbers 0 to |T| - 1, on every device, and takes no memory.
"""

LeafWord = Literal["input", "param", "frozen", "cache", "index"]
"""The first word of a leaf's declaration: its kind, but for parameters that are not trained."""

Pass = Literal["forward", "backward", "update"]
"""The parts of a step: of a training step with a declaration that asks for it, `update` is the last."""


@dataclass(frozen=True, slots=True)
class DimInfo:
    """A dim as declared: `F = 4*D` keeps its expression, and its size where that is a number."""

    dim: Dim
    size: int | None = None
    declared: SizeExpr | None = None


@dataclass(frozen=True, slots=True)
class Carry:
    """A value that each layer of a block hands to the next.

    The body reads `entry` and makes `exit`, which is the next layer's entry, and the value after the
    block. `layout` is where it lives at both ends: settled in plans, None before. `word` is its name
    in the text, where that is one for both.
    """

    entry: Tensor
    exit: Tensor
    layout: Layout | None = None
    word: str | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Layers on stages: each of the devices of `axes` holds consecutive ones, and microbatches go through.

    `schedule` names the order of work (`shardlang.pipelines.schedules`); with several `chunks` each stage
    holds that many runs of consecutive layers.
    """

    axes: tuple[Axis, ...]
    schedule: str
    chunks: int = 1

    @property
    def stages(self) -> Monomial:
        """How many stages there are."""
        return Monomial.of(*(axis.name for axis in self.axes))

    def stack(self, layers: int) -> tuple[tuple[int, tuple[Axis, ...]], ...]:
        """Give the dims of a stack of all layers, with the axes that split each, in the order of the layers.

        With several chunks a dim of these stands before: a stage holds a run of layers in each.
        """
        if self.chunks == 1:
            return ((layers, self.axes),)
        return ((self.chunks, ()), (layers // self.chunks, self.axes))

    @property
    def copies(self) -> int:
        """How many stages' layers a device holds: two where microbatches come from both ends."""
        return 2 if self.schedule == "dualpipe" else 1


@dataclass(frozen=True, slots=True)
class Block:
    """`layers L:`: lines that are repeated, once for each layer, one layer after another.

    `number` counts the blocks of the forward pass; the block of the backward pass that goes back
    through the same layers has the same number. `pipeline` says how its layers lie on stages; None where
    each device has all of them.
    """

    dim: Dim
    number: int
    carries: tuple[Carry, ...] = ()
    pipeline: Pipeline | None = None

    @property
    def layers(self) -> Monomial:
        """How many layers a device goes through with a microbatch."""
        count = Monomial.of(self.dim.name)
        return count if self.pipeline is None else count / self.pipeline.stages


@dataclass(frozen=True, slots=True)
class Leaf:
    """A tensor that the program is given: where it lives, and whether it counts as a weight.

    A `cache` is state of serving, such as keys and values: an input that has no gradient. A `frozen`
    parameter is not trained: a weight like all others, but for its gradient and what an optimizer makes of it.
    `declared` says that the text has a line for it (`input`, `param`, `frozen`, `cache`); others are leaves
    because nothing defines them.
    A leaf with a `loop` is one of a stack: each layer of the block over that dim has its own, and `array`
    is one layer's. It has the block's `pipeline`.
    """

    array: Array
    kind: LeafKind
    span: Span
    declared: bool = False
    loop: Dim | None = None
    pipeline: Pipeline | None = None
    frozen: bool = False

    @property
    def word(self) -> LeafWord:
        """The word that declares it."""
        return "frozen" if self.frozen else self.kind

    @property
    def times(self) -> Monomial:
        """How many there are: one, or one a layer."""
        return Monomial() if self.loop is None else Monomial.of(self.loop.name)

    @property
    def held(self) -> Monomial:
        """How many of them a device holds: all, or those of its stage's layers."""
        if self.pipeline is None:
            return self.times
        return self.times / self.pipeline.stages * self.pipeline.copies

    @property
    def differentiable(self) -> bool:
        """Whether it has a gradient: integers, caches and frozen parameters have none."""
        given_gradients = self.word in ("input", "param")
        return given_gradients and self.array.tensor.dtype.kind == "float"


@dataclass(frozen=True, slots=True)
class Use:
    """An operand as written: the value, and the layout that its brackets ask for.

    `layout` None (a bare name, or an inner expression) takes the value where it lives.
    """

    tensor: Tensor
    layout: Layout | None
    span: Span


@dataclass(frozen=True, slots=True)
class Statement:
    """One operation of the program.

    `target` is the layout that the text declares for the result, None where it declares none. Where the
    result goes on as a value that layers hand on, `follows` names that value: the text gives no layout,
    and the target is where the value lives before the block.
    `hint` is a layout that the surrounding expression would like, for a result with no target:
    the declared layout of `h[B_X, F_Y] = gelu(A ·_D W)` is a hint for the product inside.
    A relayout (`op` is a collective, a slice or a mask) whose result has the operand's name changes
    where the value is available; with another name it defines a copy. `keep_unreduced` is
    `·_LOCAL`. `constant` marks a value that no gradient flows through (a softmax's maximum). `block`
    is the block that repeats it, None where it stands outside of any. `inner` says that the result is a
    part of a larger expression, which the text has no name for.
    """

    op: Op
    operands: tuple[Use, ...]
    result: Tensor
    target: Layout | None
    span: Span
    hint: Layout | None = None
    keep_unreduced: bool = False
    follows: Tensor | None = None
    constant: bool = False
    section: Pass = "forward"
    block: Block | None = None
    inner: bool = False


@dataclass(frozen=True, slots=True)
class Save:
    """What the forward pass keeps for the backward pass.

    With `everything`, every value in each layout that it was had in, but for the gathered copies of
    parameters; else the values among `names`, where they live. Of the parameters among `names` the
    gathered copies are kept as well, in either case.
    """

    everything: bool = True
    names: frozenset[str] = frozenset()

    @property
    def words(self) -> tuple[str, ...]:
        """What stands on the `save` line: nothing where none is needed."""
        if not self.everything and not self.names:
            return ("none",)
        return (*(("all",) if self.everything and self.names else ()), *sorted(self.names))


@dataclass(frozen=True, slots=True)
class Zero:
    """`zero 1 over X`: the optimizer's state of each parameter is split over some more axes.

    At level 2 what is kept of the gradients is split as well. (Level 3 is where the parameters live.)
    """

    level: Literal[1, 2]
    axes: tuple[Axis, ...]


@dataclass(frozen=True)
class Program:
    """A whole resolved program.

    `explicit` is set by `forward:` and `backward:` headings: its statements are then the plan's
    steps, one for one, and nothing is inferred. `axes_declared` says whether a `mesh` line exists.
    `prefetch` names parameters of which each layer has its own and whose copies are gathered while the layer
    before runs.
    `slice` is the shape of the hardware's slice (`hardware tpu_v5p 16x16x16`), empty where none is given.
    `microbatches` counts those over which a step's gradients are added, None where there is one batch.
    """

    source: Source
    mesh: Mesh
    dims: tuple[DimInfo, ...]
    leaves: tuple[Leaf, ...]
    statements: tuple[Statement, ...]
    explicit: bool = False
    has_backward: bool = False
    hardware: str | None = None
    slice: tuple[int, ...] = ()
    dtype: DType = DTYPES["bf16"]
    optimizer: str | None = None
    zero: Zero | None = None
    microbatches: Dim | None = None
    save: Save = field(default_factory=Save)
    prefetch: frozenset[str] = frozenset()

    @property
    def has_update(self) -> bool:
        """Whether it is explicit and says how parameters are updated."""
        return self.explicit and any(s.section == "update" for s in self.statements)

    @property
    def kept(self) -> frozenset[str]:
        """The parameters whose gathered copies the forward pass keeps for the backward pass.

        Those of a parameter that lives unreduced always are: a sum taken twice need not have the
        same bits.
        """
        weights = {leaf.array for leaf in self.leaves if leaf.kind == "param"}
        return frozenset(a.name for a in weights if a.layout.unreduced or a.name in self.save.names)

    def keeping(self, kept: Collection[str]) -> Program:
        """Give the same program with other parameters named on its `save` line."""
        weights = {leaf.array.name for leaf in self.leaves if leaf.kind == "param"}
        names = (self.save.names - weights).union(kept)
        return (
            self
            if names == self.save.names
            else replace(self, save=replace(self.save, names=names))
        )

    @property
    def given(self) -> tuple[Leaf, ...]:
        """The leaves that somebody has to give: all but the indices."""
        return tuple(leaf for leaf in self.leaves if leaf.kind != "index")

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The blocks of the forward pass, in order."""
        found = [s.block for s in self.statements if s.block and s.section == "forward"]
        return tuple(dict.fromkeys(found))

    @property
    def pipeline(self) -> Pipeline | None:
        """How layers lie on stages, where they do."""
        return next((b.pipeline for b in self.blocks if b.pipeline is not None), None)

    @property
    def sizes(self) -> Sizes:
        """Every size that is known, of dims and of axes."""
        known = {info.dim.name: info.size for info in self.dims if info.size is not None}
        return Sizes({**known, **self.mesh.sizes})

    @property
    def axes(self) -> Mapping[str, AxisInfo]:
        """The mesh's axes by name."""
        return {info.axis.name: info for info in self.mesh.axes}
