"""The best plan of a whole program, forward and backward together, with a proof.

What is best is so for an objective and the prices given: the bytes that a device moves (`solve`), the
time of its FLOPs and collectives one after the other (`solve`) or at the same time (`overlap`); with a
limit on the memory of a device, among the plans that keep it (`memory`). The answer is never dearer
than the book plan under the same prices, where that one fits.

Whether the gathered copies of a parameter are kept from the forward to the backward pass is part of
the choice; the plan's program names the parameters of which some are, on its `save` line.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from time import monotonic

from shardlang.diagnostics import ShardlangError
from shardlang.hardware.catalogue import load_hardware
from shardlang.ir.plan import Holding, Objective, Plan
from shardlang.ir.program import Program
from shardlang.passes import lower
from shardlang.passes.keep import alternatives, kept_copies
from shardlang.passes.update import postpones
from shardlang.planner.errors import NoHardware, placed, short_by, wrong
from shardlang.planner.memory import fitting, plan_within
from shardlang.planner.orders import Ordered, plans_in_orders
from shardlang.planner.overlap import plan_overlapped
from shardlang.planner.parts import best_of_parts
from shardlang.planner.prices import price_all, Prices, prices_of, seconds
from shardlang.planner.search import Start
from shardlang.planner.solve import Aim, solve, Task

BUDGET = 60.0
"""Seconds that a search may take by default."""


def best_plan(
    program: Program,
    *,
    prices: str | Prices = "link",
    objective: Objective | None = None,
    hardware: str | None = None,
    budget: float | None = None,
    memory_limit: Fraction | float | None = None,
    keep_gathered: bool | None = None,
    forward_only: bool = False,
    sub_axes: bool | None = None,
) -> Plan:
    """Find the plan of least bytes, or of least time on the program's hardware or the one given.

    With no `objective` it is T_overlapped where the hardware is known with all figures that times
    need, else bytes. `memory_limit` are the bytes that a device has. `sub_axes` says whether axes may be
    split into parts; by default where few are (see `parts`), and not for times: the parts of a ring share
    its links, which prices in seconds don't know. Prices are in bytes here; `plan_program`
    takes others. Raises `ShardlangError`, also where times are asked for and no hardware is known, and
    where nothing is found that fits.
    """
    why = _unsearched(program, forward_only=forward_only)
    if why is not None:
        return _by_rules(program, why, memory_limit, keep_gathered, forward_only)
    table = prices_of(prices)
    limit = None if memory_limit is None else Fraction(memory_limit)

    def find(program: Program, budget: float, start: Start | None) -> Plan:
        def task_of(program: Program) -> Task:
            return Task.of(
                program, keep_gathered=keep_gathered, forward_only=forward_only, start=start
            )

        aim = aim_of(program, objective, hardware, table)
        end = monotonic() + budget
        found = plans_in_orders(
            program,
            lambda each, seconds_left: _planned(task_of(each), aim, seconds_left),
            aim.of,
            budget=budget if limit is None else budget / 2,
        )
        if limit is None:
            return found[0].plan
        return _within(found, task_of, aim, limit, end)

    try:
        if sub_axes is None and aim_of(program, objective, hardware, table).objective != "bytes":
            sub_axes = False
        plan = best_of_parts(
            program, find, sub_axes=sub_axes, budget=BUDGET if budget is None else budget
        )
    except ShardlangError as error:
        raise placed(error, program) from None
    if plan.proof is None:
        return plan
    proof = replace(plan.proof, holdings=_holdings(plan, table))
    return replace(plan, proof=proof, alternatives=alternatives(plan))


def _unsearched(program: Program, *, forward_only: bool) -> str | None:
    """Say why a program is left to the rules: it has blocks or an update, and sizes left open."""
    if not program.blocks and (forward_only or not postpones(program)):
        return None
    known = program.sizes.known
    names = [info.dim.name for info in program.dims] + [i.axis.name for i in program.mesh.axes]
    names += [block.dim.name for block in program.blocks]
    names += [] if program.microbatches is None else [program.microbatches.name]
    missing = dict.fromkeys(name for name in names if name not in known)
    return f"{', '.join(missing)} have no size" if missing else None


def _by_rules(
    program: Program,
    why: str,
    memory_limit: Fraction | float | None,
    keep_gathered: bool | None,
    forward_only: bool,
) -> Plan:
    """Plan a program in which nothing is searched, for the reason given."""
    plan = lower(program, keep_gathered=keep_gathered, forward_only=forward_only)
    text = f"planned by the rules of `book`, without a search: {why}"
    plan = replace(plan, warnings=(*plan.warnings, text))
    return plan if memory_limit is None else fitting(plan, memory_limit)


def aim_of(
    program: Program, objective: Objective | None, hardware: str | None, prices: Prices
) -> Aim:
    """Settle what is to be least, with prices in seconds where it is a time, as `cost` has them."""
    hardware = hardware or program.hardware
    if objective == "bytes" or (objective is None and hardware is None):
        return Aim("bytes", prices)
    if hardware is None:
        raise wrong(NoHardware())
    chip = load_hardware(hardware)
    bandwidths: dict[str, Fraction] = {}
    missing: list[str] = []
    for info in program.mesh.axes:
        figure = "W_ici" if info.network == "ici" else "W_dcn"
        speed = chip.get(figure)
        if speed is None:
            missing.append(figure)
        else:
            bandwidths[info.wire.name] = Fraction(speed) * info.links
    peak = chip.peak(program.dtype.name) or chip.get("C")
    if not peak:
        missing.append("flops")
    if missing or not peak:
        if objective is None:
            return Aim("bytes", prices)
        raise wrong(NoHardware(missing[0]))
    # the book adds bandwidths up on every chip; behind a switch a chip has one way out
    switched = chip.topology is not None and chip.topology.kind != "torus"
    table = seconds(bandwidths, prices=prices, one_way_out=switched and prices.name != "book")
    return Aim(objective or "time", table, Fraction(peak))


def _planned(task: Task, aim: Aim, budget: float) -> Plan:
    """Find the best plan, whatever memory it takes."""
    if aim.objective == "time":
        return plan_overlapped(task, aim, budget=budget)
    rate = None if aim.objective == "bytes" else aim.rate
    return solve(task, aim.prices, rate=rate, budget=budget)


def _within(
    found: Sequence[Ordered],
    task_of: Callable[[Program], Task],
    aim: Aim,
    limit: Fraction,
    end: float,
) -> Plan:
    """Find the best plan that fits, from the best plans of each order of the products.

    Raises `ShardlangError` where none fits, with what the leanest takes.
    """
    best: Plan | None = None
    errors: list[ShardlangError] = []
    for number, each in enumerate(found):
        if best is not None and aim.of(best)[0] <= aim.of(each.plan)[0]:
            break  # the best of every order that is left costs no less without a limit
        share = max(end - monotonic(), 0.0) / (2 if number + 1 < len(found) else 1)
        try:
            plan = plan_within(task_of(each.program), aim, each.plan, limit, budget=share)
        except ShardlangError as error:
            errors.append(error)
            continue
        if best is None or aim.of(plan) < aim.of(best):
            best = plan
    if best is None:
        raise min(errors, key=short_by)
    return best


def _holdings(plan: Plan, prices: Prices) -> tuple[Holding, ...]:
    """Say what the copies that are kept take, and what making them again would move."""
    mesh, sizes = plan.program.mesh, plan.program.sizes.known
    batches = plan.program.microbatches
    times = 1 if batches is None else sizes.get(batches.name, 1)
    found: list[Holding] = []
    for kept in kept_copies(plan.program, plan.forward, plan.backward):
        every = (copy.local_bytes * kept.times for copy in kept.copies)
        held = (size.evaluate(sizes).number or Fraction(0) for size in every)
        moved = price_all(kept.steps, mesh, sizes, prices) * times
        found.append(Holding(kept.leaf.name, sum(held, Fraction(0)), moved))
    return tuple(found)


def plan_program(
    program: Program,
    prices: str | Prices = "link",
    *,
    rate: Fraction | float | None = None,
    budget: float = BUDGET,
    keep_gathered: bool | None = None,
    forward_only: bool = False,
) -> Plan:
    """Find the plan of least sum of a price list, with FLOPs/s that of T_serial; see `solve`."""
    task = Task.of(program, keep_gathered=keep_gathered, forward_only=forward_only)
    speed = None if rate is None else Fraction(rate)
    return solve(task, prices_of(prices), rate=speed, budget=budget)
