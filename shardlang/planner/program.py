"""The best plan of a whole program, forward and backward together, with a proof.

`problem` writes the program as operations with ways and values with trees, `bound` says what every
plan costs at least, `search` looks for the best, `build` writes it out. What is best is so for the
prices given: the least of their sum (bytes that a device moves, or seconds together with those of its
FLOPs), then the FLOPs of a device, then the number of collectives. The answer is never dearer than the
book plan under the same prices.

All plans count that do the program's own operations, each once (with a `save` line, those that it makes
necessary once more in the backward pass), and its stated collectives, and begin and end where the book plan
does; that have every value in the layouts that the text declares for it; and that keep no copies of
parameters from the forward to the backward pass, unless `keep_gathered` says so.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from math import prod
from time import monotonic
from typing import Literal

from shardlang.cost.flops import counts, flops
from shardlang.diagnostics import ShardlangError
from shardlang.hardware.catalogue import load_hardware
from shardlang.ir.ops import Relayout
from shardlang.ir.plan import Plan, Proof, Step
from shardlang.ir.program import Program
from shardlang.ir.types import Dim
from shardlang.passes import lower
from shardlang.planner.bound import Folded
from shardlang.planner.build import build_plan
from shardlang.planner.errors import NoHardware, wrong
from shardlang.planner.parts import best_of_parts
from shardlang.planner.prices import price, Prices, prices_of, seconds
from shardlang.planner.problem import build, total_of, UnplannableError
from shardlang.planner.reshard import extent
from shardlang.planner.search import search
from shardlang.source import Span

Objective = Literal["bytes", "time", "serial"]
"""Bytes that a device moves, or the time of its FLOPs and collectives: T_overlapped, or T_serial."""

BUDGET = 60.0
"""Seconds that a search may take by default."""


def best_plan(
    program: Program,
    *,
    prices: str | Prices = "link",
    objective: Objective = "bytes",
    hardware: str | None = None,
    budget: float | None = None,
    keep_gathered: bool = False,
    forward_only: bool = False,
    sub_axes: bool | None = None,
) -> Plan:
    """Find the plan of least bytes, or of least time on the program's hardware or the one given.

    `sub_axes` says whether axes may be split into parts; by default where few are (see `parts`). Prices are in bytes here; `plan_program` takes others. Raises `ShardlangError`, also where times
    are asked for and no hardware is known.
    """

    def find(program: Program, budget: float) -> Plan:
        return _best_plan(
            program,
            prices,
            objective,
            hardware,
            budget,
            keep_gathered=keep_gathered,
            forward_only=forward_only,
        )

    limit = BUDGET if budget is None else budget
    try:
        return best_of_parts(program, find, sub_axes=sub_axes, budget=limit)
    except ShardlangError as error:
        raise _placed(error, program) from None


def _placed(error: ShardlangError, program: Program) -> ShardlangError:
    """Give mistakes that have no place the program's text and its first statement."""
    at = program.statements[0].span if program.statements else Span(0, 0)
    return ShardlangError(
        d if d.source.text else replace(d, source=program.source, span=at)
        for d in error.diagnostics
    )


def _best_plan(
    program: Program,
    prices: str | Prices,
    objective: Objective,
    hardware: str | None,
    budget: float,
    *,
    keep_gathered: bool,
    forward_only: bool,
) -> Plan:
    table, rate = prices_of(prices), None
    if objective != "bytes":
        table, rate = _on_hardware(program, hardware or program.hardware, table)
    if objective == "time":
        from shardlang.planner.overlap import plan_overlapped  # noqa: PLC0415 (it calls back)

        assert rate is not None
        return plan_overlapped(
            program,
            table,
            rate,
            budget=budget,
            keep_gathered=keep_gathered,
            forward_only=forward_only,
        )
    return plan_program(
        program,
        table,
        rate=rate,
        budget=budget,
        keep_gathered=keep_gathered,
        forward_only=forward_only,
    )


def _on_hardware(program: Program, hardware: str | None, prices: Prices) -> tuple[Prices, Fraction]:
    """Give prices in seconds and the FLOPs/s of a device, as `cost` has them."""
    if hardware is None:
        raise wrong(NoHardware())
    chip = load_hardware(hardware)
    bandwidths: dict[str, Fraction] = {}
    for info in program.mesh.axes:
        figure = "W_ici" if info.network == "ici" else "W_dcn"
        speed = chip.get(figure)
        if speed is None:
            raise wrong(NoHardware(figure))
        bandwidths[info.wire.name] = Fraction(speed) * info.links
    peak = chip.peak(program.dtype.name) or chip.get("C")
    if not peak:
        raise wrong(NoHardware("flops"))
    return seconds(bandwidths, prices=prices), Fraction(peak)


def plan_program(
    program: Program,
    prices: str | Prices = "link",
    *,
    rate: Fraction | float | None = None,
    budget: float = BUDGET,
    keep_gathered: bool = False,
    forward_only: bool = False,
) -> Plan:
    """Find the plan of least cost for a program whose sizes are known.

    With a `rate`, the FLOPs/s of one device, and prices in seconds, the aim is T_serial: the time of
    the FLOPs that count and of all collectives, one after the other. The search stops after `budget`
    seconds with the best plan so far; the plan's `proof` says how far it can be from the best. What
    only the rules can lower (see `UnplannableError`) is lowered by them, with a warning and no
    proof. Raises `ShardlangError`.
    """
    start = monotonic()
    book = lower(program, "book", keep_gathered=keep_gathered, forward_only=forward_only)
    table = prices_of(prices)
    speed = None if rate is None else Fraction(rate)
    try:
        problem = build(
            book, table, rate=speed, keep_gathered=keep_gathered, forward_only=forward_only
        )
    except UnplannableError as why:
        text = f"planned by the rules of `book`, without a search: {why}"
        return replace(book, strategy="optimal", warnings=(*book.warnings, text))
    folded = Folded(problem)
    found = search(problem, folded, book, lambda: monotonic() - start > budget)
    plan = build_plan(problem, folded.trees, found.ways, book)
    cost, other = total_of(plan, problem), total_of(book, problem)
    if other < cost:
        plan, cost = replace(book, strategy="optimal"), other
    least = int(found.bound) // problem.scale.digit * problem.scale.unit
    objective: Objective = "bytes" if rate is None else "serial"
    return replace(plan, proof=Proof(objective, table.name, cost, min(least, cost)))


def times_of(plan: Plan, prices: Prices, rate: Fraction) -> tuple[Fraction, Fraction, Fraction]:
    """Give T_math and T_comms of a plan, and the T_math that no plan of its program is below.

    That one is the FLOPs that count over all devices: no way divides them by more.
    """
    mesh, sizes = plan.program.mesh, plan.program.sizes.known
    math = comms = least = Fraction(0)
    devices = prod(info.size or 1 for info in mesh.axes)
    for section, step in plan.steps():
        if isinstance(step.op, Relayout):
            comms += price(step.op, step.inputs[0], step.output, mesh, sizes, prices)
        elif counts(step, section):
            math += (flops(step).evaluate(sizes).number or 0) / rate
            whole = prod(extent(d, sizes) for d in index_dims(step)) * 2
            least += Fraction(whole, devices) / rate
    return math, comms, least


def index_dims(step: Step) -> list[Dim]:
    """Give every dim of a step's index space."""
    arrays = (*step.inputs, step.output)
    return list(dict.fromkeys(dim for array in arrays for dim in array.tensor.dims))
