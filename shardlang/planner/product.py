"""The cheapest plan of a product of several operands, the order of multiplication left open.

`einsum` multiplies all operands at once. Here a product may also be made in parts: any set of operands
is multiplied on its own, what nothing else needs is summed, and the part, smaller or larger than its
operands, moves on in whatever layout is cheapest. A dim that one operand alone has may be summed
before anything moves. All at once stays one of the ways, so this is never dearer.

It is a dynamic program over the subsets of the operands with a weight for every layout of each part:
a part's layouts start from every way to multiply two or more smaller parts, and spread along the moves
of its graph. It is exact for the prices given: least are the price, the FLOPs of all steps, the number
of collectives, the number of moves. An operand that stands twice counts as two.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import lcm, prod

from shardlang.ir.ops import Einsum, Reduce
from shardlang.ir.plan import Step
from shardlang.ir.types import Array, AxisInfo, Dim, Layout, Mesh, promote, Tensor
from shardlang.planner.einsum import EinsumPlan, Local, local_ways
from shardlang.planner.errors import NoRoute, wrong
from shardlang.planner.prices import Prices, sized
from shardlang.planner.reshard import check_layout, extent, Layouts, layouts, steps_along
from shardlang.planner.states import UNIT

_FLOPS = 1 << 128
"""Room for FLOPs between the price and the counts of a weight."""


@dataclass(slots=True)
class _Form:
    """One way to have a part: as which tensor, and what each of its layouts costs."""

    tensor: Tensor
    graph: Layouts
    known: dict[int, int] = field(default_factory=dict[int, int])
    via: dict[int, int] = field(default_factory=dict[int, int])
    start: dict[int, tuple[tuple[_Form, ...], Local] | None] = field(
        default_factory=dict[int, "tuple[tuple[_Form, ...], Local] | None"]
    )


def plan_product(
    operands: tuple[Array, ...],
    result: Array,
    mesh: Mesh,
    sizes: Mapping[str, int],
    prices: str | Prices = "link",
) -> EinsumPlan:
    """Find the cheapest plan of the product of operands that sums every dim the result lacks.

    The parts are named `Tmp`, `Tmp2`, ..., skipping names taken. Raises `ShardlangError` as `reshard`
    does.
    """
    return _Search(operands, result, Mesh(sized(mesh, sizes)), sizes, prices).plan()


class _Search:
    """The dynamic program over subsets, as masks of operands."""

    def __init__(
        self,
        operands: tuple[Array, ...],
        result: Array,
        mesh: Mesh,
        sizes: Mapping[str, int],
        prices: str | Prices,
    ) -> None:
        """Make the graphs of all tensors that can occur."""
        self.operands = operands
        self.result = result
        self.mesh = mesh
        self.known = {**mesh.sizes, **sizes}
        self.every = (1 << len(operands)) - 1
        for array in (*operands, result):
            check_layout(array, mesh, sizes)

        def form(tensor: Tensor) -> _Form:
            array = Array(tensor, Layout.replicated(len(tensor.dims)))
            return _Form(tensor, layouts(array, mesh, sizes, prices))

        taken = {array.name for array in (*operands, result)}
        self.names = (name for name in _names() if name not in taken)
        dtype = promote(array.tensor.dtype for array in operands)
        self.forms: dict[int, list[_Form]] = {}
        for subset in range(1, self.every + 1):
            dims = self._kept(subset)
            single = subset.bit_count() == 1
            if not single:
                whole = subset == self.every
                own = [form(result.tensor if whole else Tensor("", dims, dtype))]
            else:
                own = [form(operands[subset.bit_length() - 1].tensor)]
                if len(own[0].tensor.dims) > len(dims):
                    own.append(form(Tensor("", dims, dtype)))
            self.forms[subset] = own
        every_form = [f for forms in self.forms.values() for f in forms]
        self.common = lcm(*(f.graph.factor.denominator for f in every_form))

    def _kept(self, subset: int) -> tuple[Dim, ...]:
        """Give the dims that a part still has: those of the result, and of operands elsewhere."""
        inside = [a for i, a in enumerate(self.operands) if subset >> i & 1]
        outside = [a for i, a in enumerate(self.operands) if not subset >> i & 1]
        needed = {dim for array in (*outside, self.result) for dim in array.tensor.dims}
        dims = dict.fromkeys(dim for array in inside for dim in array.tensor.dims)
        return tuple(dim for dim in dims if dim in needed)

    def plan(self) -> EinsumPlan:
        """Fill in the parts, the smaller ones first, and write the plan out."""
        for subset in range(1, self.every + 1):
            forms = self.forms[subset]
            if subset.bit_count() == 1:
                source = self.operands[subset.bit_length() - 1].layout
                self._spread(forms[0], {forms[0].graph.space.encode(source): 0})
                if len(forms) > 1:
                    self._make(forms[1], [(forms[0],)])
            else:
                self._make(forms[0], list(self._divisions(subset)))
        last = self.forms[self.every][0]
        target = last.graph.space.encode(self.result.layout)
        if target not in last.known:
            raise wrong(NoRoute(", ".join(map(str, self.operands)), str(self.result)))
        steps = tuple(self._steps(last, target))
        price, rest = divmod(last.known[target], UNIT * _FLOPS)
        return EinsumPlan(steps, Fraction(price, self.common), Fraction(rest // UNIT), self.mesh)

    def _divisions(self, subset: int) -> Iterator[tuple[_Form, ...]]:
        """List the ways to put a set of operands together of two or more parts, each in each form."""

        def divide(rest: int, parts: tuple[_Form, ...], first: int) -> Iterator[tuple[_Form, ...]]:
            if not rest:
                if len(parts) > 1:
                    yield parts
                return
            lowest = rest & -rest
            others = rest ^ lowest
            sub = others
            while True:
                part = sub | lowest
                if part != first:
                    for form in self.forms[part]:
                        yield from divide(rest ^ part, (*parts, form), first)
                if not sub:
                    return
                sub = (sub - 1) & others

        yield from divide(subset, (), subset)

    def _make(self, form: _Form, divisions: Sequence[tuple[_Form, ...]]) -> None:
        """Start a part's layouts from every way to make it, and spread them."""
        start: dict[int, int] = {}
        for parts in divisions:
            op, dims = self._operation(form, parts)
            gone = set(op.dims if isinstance(op, Reduce) else op.contracted)
            points = prod(extent(dim, self.known) for dim in dims) * _times(op, len(parts))
            described = [(part.graph, part.tensor.dims) for part in parts]
            own = (form.graph, form.tensor.dims)
            flops: dict[int, int] = {}
            for way in local_ways(Einsum(tuple(gone)), described, own):
                if way.split not in flops:
                    flops[way.split] = points // _count(way.split, self.mesh.axes)
                total = flops[way.split] * UNIT
                for part, state in zip(parts, way.operands, strict=True):
                    if state not in part.known:
                        break
                    total += part.known[state]
                else:
                    if way.result not in start or total < start[way.result]:
                        start[way.result] = total
                        form.start[way.result] = (parts, way)
        self._spread(form, start)

    def _spread(self, form: _Form, start: Mapping[int, int]) -> None:
        for state in start:
            form.start.setdefault(state, None)
        scale = int(form.graph.factor * self.common) * _FLOPS
        form.known, form.via = form.graph.space.spread(start, scale=scale)

    def _operation(
        self, form: _Form, parts: Sequence[_Form]
    ) -> tuple[Einsum | Reduce, tuple[Dim, ...]]:
        """Give what makes a part of smaller ones, and all dims that it runs over."""
        dims = tuple(dict.fromkeys(dim for part in parts for dim in part.tensor.dims))
        gone = tuple(dim for dim in dims if dim not in form.tensor.dims)
        wider = tuple(dim for dim in form.tensor.dims if dim not in dims)
        op = Einsum(gone) if len(parts) > 1 else Reduce("sum", gone)
        return op, (*dims, *wider)

    def _steps(self, form: _Form, state: int) -> Iterator[Step]:
        """Write out how a part comes to be in a layout."""
        trail = [state]
        while trail[-1] in form.via:
            trail.append(form.via[trail[-1]])
        origin = form.start[trail[-1]]
        if origin is not None:
            parts, way = origin
            inputs: list[Array] = []
            for part, own in zip(parts, way.operands, strict=True):
                yield from self._steps(part, own)
                inputs.append(Array(part.tensor, part.graph.space.decode(own)))
            if not form.tensor.name:
                form.tensor = Tensor(next(self.names), form.tensor.dims, form.tensor.dtype)
            made = Array(form.tensor, form.graph.space.decode(trail[-1]))
            op, _ = self._operation(form, parts)
            yield Step(op, tuple(inputs), made, rule="einsum")
        else:
            made = Array(form.tensor, form.graph.space.decode(trail[-1]))
        yield from steps_along(form.graph, made, trail[::-1])


def _names() -> Iterator[str]:
    yield "Tmp"
    number = 2
    while True:
        yield f"Tmp{number}"
        number += 1


def _times(op: Einsum | Reduce, parts: int) -> int:
    """Give the FLOPs a point, as `cost.flops` counts them."""
    if isinstance(op, Reduce):
        return 1
    return 2 if op.contracted else parts - 1


def _count(mask: int, axes: Sequence[AxisInfo]) -> int:
    return prod(info.size or 1 for a, info in enumerate(axes) if mask >> a & 1)
