"""What elementwise steps take of a device's memory: the library's times count contractions alone.

Connected elementwise steps of a pass are one kernel, as compilers fuse them: it reads once what other
steps made, and writes once what other steps read. New names for dims move nothing. With `fused`
attention, arrays over both the positions that ask and those that answer stay on the chip.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from shardlang.cost.formula import Formula
from shardlang.cost.local import local_bytes
from shardlang.cost.report import Report
from shardlang.ir.ops import Rename
from shardlang.ir.plan import Step
from shardlang.ir.types import Array

POSITIONS = frozenset("TS")


def elementwise(report: Report, *, fused: bool) -> float:
    """Give the seconds that elementwise kernels take to read and write at W_hbm."""
    bandwidth = None if report.hardware is None else report.hardware.get("W_hbm")
    assert bandwidth is not None
    counted = {id(cost.step) for cost in report.compute if cost.counted}
    plan = report.plan
    later = {array for step in plan.backward for array in step.inputs}
    moved = 0.0
    for steps, kept in ((plan.forward, later | set(plan.outputs)), (plan.backward, set[Array]())):
        for step, array in _ends(steps, counted, kept):
            if not (fused and {dim.name for dim in array.tensor.dims} >= POSITIONS):
                moved += _layers(report, step) * _bytes(report, array)
    return moved / bandwidth


def _ends(
    steps: Sequence[Step], counted: Collection[int], kept: set[Array]
) -> Iterator[tuple[Step, Array]]:
    """Give what each kernel of a pass reads and writes, each with a step of the kernel."""
    names = {step.output: step.inputs[0] for step in steps if isinstance(step.op, Rename)}
    kept = {_root(array, names) for array in kept}
    mine = [s for s in steps if s.is_compute and id(s) not in counted and s.output not in names]
    kernels = _kernels(mine, names)
    of = {step.output: number for number, kernel in enumerate(kernels) for step in kernel}
    readers: dict[Array, set[int]] = {}
    for step in steps:
        if step.output not in names:
            for array in step.inputs:
                readers.setdefault(_root(array, names), set()).add(of.get(step.output, -1))
    for number, kernel in enumerate(kernels):
        made = {step.output for step in kernel}
        read = {_root(array, names) for step in kernel for array in step.inputs}
        for array in read - made:
            yield kernel[0], array
        for array in made:
            if array in kept or readers.get(array, {-1}) != {number}:
                yield kernel[0], array


def _kernels(steps: Sequence[Step], names: Mapping[Array, Array]) -> list[list[Step]]:
    """Put connected steps together, those of a block apart from others."""
    group: dict[Array, list[Step]] = {}
    for step in steps:
        own = [step]
        for array in step.inputs:
            other = group.get(_root(array, names))
            if other is not None and other is not own and other[0].loop == step.loop:
                other += own
                own = other
                for each in own:
                    group[each.output] = own
        group[step.output] = own
    return list({id(own): own for own in group.values()}.values())


def _root(array: Array, names: Mapping[Array, Array]) -> Array:
    while array in names:
        array = names[array]
    return array


def _layers(report: Report, step: Step) -> int:
    """Say how many layers do a step."""
    if step.loop is None:
        return 1
    return int(report.known[report.symbols.of[step.loop.dim.name]])


def _bytes(report: Report, array: Array) -> float:
    formula = Formula.of(report.symbols.monomial(local_bytes(array)))
    return float(formula.value(report.known) or 0)
