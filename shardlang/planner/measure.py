"""What the parts of a problem cost: prices, FLOPs and collectives as the digits of one number.

Costs are whole numbers held in floats below 2**53, in which sums and least sums are exact: the price
in its unit, then the FLOPs of a device, then the number of collectives, one digit above the other.
To look for plans that hold less, each byte that an operation reads or makes can be given a price.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import gcd, lcm, prod

import numpy as np

from shardlang.cost.flops import counts, flops
from shardlang.ir.ops import (
    Collective,
    Rename,
)
from shardlang.ir.plan import Plan
from shardlang.ir.types import Tensor
from shardlang.planner.network import Distances, distances, Vector
from shardlang.planner.prices import price_plan
from shardlang.planner.problem import Operation, Problem, Scale, Value
from shardlang.planner.reshard import extent
from shardlang.planner.states import COLLECTIVE, UNIT


def work_of(plan: Plan, sizes: Mapping[str, int]) -> Fraction:
    """Add up the FLOPs of a device that count for T_math, those of all microbatches."""
    found = Fraction(0)
    for section, step in plan.steps():
        if step.is_compute and counts(step, section):
            found += (flops(step) * plan.times(section, step)).evaluate(sizes).number or 0
    return found


def total_of(plan: Plan, problem: Problem) -> Fraction:
    """Give a plan's cost as the problem counts it: its price, and with a rate the time of its FLOPs."""
    found = price_plan(plan, problem.prices)
    if problem.rate is not None:
        found += work_of(plan, problem.sizes) / problem.rate
    return found


BITS = 49
"""How large costs may get: sums of a few stay below 2**53."""

FINEST = 64
"""What one collective counts, and what all costs are multiples of: below is room for rounding."""


def _units(problem: Problem, added: Sequence[Sequence[Fraction]]) -> tuple[Fraction, Fraction]:
    """Give the largest amounts that every price, and all FLOPs, are multiples of."""
    rate = problem.rate
    unit, work = Fraction(0), Fraction(0)
    for value in problem.values:
        problem.on_time()
        factor = value.graph.factor * value.times
        unit = _gcd(unit, factor * gcd(*(w // UNIT for w in value.network.weights)))
    for operation in problem.operations:
        for amount in operation.work.values():
            work = _gcd(work, amount)
            unit = unit if rate is None else _gcd(unit, amount / rate)
        if operation.price is not None:
            unit = _gcd(unit, operation.price)
        for amount in set(operation.sent):
            unit = _gcd(unit, amount)
    for amount in {amount for row in added for amount in row}:
        work = _gcd(work, amount)
    return unit or Fraction(1), work or Fraction(1)


def measure(problem: Problem, book: Plan) -> None:
    """Choose the digits of costs, and write every table in them."""
    rate = problem.rate
    added = [_additions(problem, value) for value in problem.values]
    unit, work = _units(problem, added)
    most = total_of(book, problem) + problem.lean * _touched(book, problem)
    places = len(problem.slots) + sum(len(v.terminals) for v in problem.values) + 1
    count_bits = (FINEST * 8 * places).bit_length()
    whole = sum((max(operation.work.values()) for operation in problem.operations), Fraction(0))
    whole += sum(
        (max(row) * len(v.sources) for v, row in zip(problem.values, added, strict=True) if row),
        Fraction(0),
    )
    work_bits = int(whole / work).bit_length() if rate is None else 0
    price_bits = int(most / unit + 2).bit_length()
    room = BITS - count_bits
    exact = price_bits <= room
    if not exact:
        unit, price_bits = max(unit, most / (1 << room)), room
    if work_bits > room - price_bits:
        work_bits = max(room - price_bits, 0)
        work = whole / (1 << (work_bits - 1)) if work_bits else Fraction(0)
    digit = 1 << work_bits + count_bits
    problem.scale = Scale(unit, digit, exact, work, 1 << count_bits)
    problem.most = float(int(most / unit + 2) * digit)
    priced: dict[tuple[int, Fraction], Distances] = {}
    for value, row in zip(problem.values, added, strict=True):
        key = (id(value.network), value.graph.factor * value.times)
        if key not in priced:
            problem.on_time()
            factor = value.graph.factor * value.times / unit

            def price_of_move(weight: int, factor: Fraction = factor) -> float:
                count = weight % UNIT // COLLECTIVE
                return float(int(weight // UNIT * factor) * digit + count * FINEST)

            priced[key] = distances(value.network, price_of_move, problem.most)
        value.cost = priced[key]
        space = value.graph.space
        partial = space.full << space.high
        value.whole = np.array([not code & partial for code in value.codes])
        value.adding = np.array([_digits(problem, amount) for amount in row])
    for operation in problem.operations:
        table = {split: _digits(problem, amount) for split, amount in operation.work.items()}
        operation.cost = np.array([table[way.split] for way in operation.ways])
        if problem.lean and (operation.op is not None or operation.held):
            units = _held(problem, operation) * float(problem.lean / problem.scale.unit)
            operation.cost += np.minimum(np.floor(units) * digit, problem.most)
        if operation.sent:
            units = [float(amount // problem.scale.unit * digit) for amount in operation.sent]
            operation.cost = np.minimum(operation.cost + np.array(units), problem.most)
        if operation.price is not None:
            count = FINEST if isinstance(operation.op, Collective) else 0
            operation.cost += float(operation.price // unit * digit + count)


def _held(problem: Problem, operation: Operation) -> Vector:
    """Give the bytes on a device of what an operation reads and makes, by way, in all layers."""
    total = np.zeros(len(operation.ways))
    tensors = (*operation.operands, operation.result)
    if operation.held:
        tensors = tensors[:1]
    for slot, tensor, states in zip(operation.slots, tensors, operation.states, strict=False):
        value = problem.values[problem.slots[slot].value]
        space = value.graph.space
        size = float(_whole(problem, tensor) * (operation.held or 1))
        shards = [prod(space.counts[i] for i in space.parts(code)[0]) for code in value.codes]
        total += (size / np.array(shards))[states]
    return total * problem.regions.times(operation.region)


def _whole(problem: Problem, tensor: Tensor) -> Fraction:
    """Give the bytes of a whole tensor."""
    count = prod(extent(dim, problem.sizes) for dim in tensor.dims)
    return Fraction(count * tensor.dtype.bits, 8)


def _touched(plan: Plan, problem: Problem) -> Fraction:
    """Add up the bytes on a device of what a plan's operations read and make, and what lies there."""
    arrays = [
        array.local_bytes * step.times
        for _, step in plan.steps()
        if step.is_compute and not isinstance(step.op, Rename)
        for array in (*step.inputs, step.output)
    ]
    sizes = (size.evaluate(problem.sizes).number for size in arrays)
    times = problem.regions.times
    lying = sum(o.held * _whole(problem, o.result) * times(o.region) for o in problem.operations)
    return sum((size or Fraction(0) for size in sizes), Fraction(lying))


def _additions(problem: Problem, value: Value) -> list[Fraction]:
    """Give the FLOPs of adding two contributions in each state; elementwise work takes no time."""
    if len(value.sources) < 2 or problem.rate is not None:
        return []
    whole = prod(extent(dim, problem.sizes) for dim in value.tensor.dims) * value.times
    space = value.graph.space
    return [
        Fraction(whole, prod(space.counts[index] for index in space.parts(code)[0]))
        for code in value.codes
    ]


def _digits(problem: Problem, amount: Fraction) -> float:
    """Write an amount of FLOPs as a cost."""
    scale = problem.scale
    if problem.rate is not None:
        return float(amount / problem.rate // scale.unit * scale.digit)
    return float(amount // scale.work * scale.count) if scale.work else 0.0


def _gcd(left: Fraction, right: Fraction) -> Fraction:
    """Give the largest amount that both are multiples of."""
    over = lcm(left.denominator, right.denominator)
    return Fraction(gcd(int(left * over), int(right * over)), over)
