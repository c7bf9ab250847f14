"""Why a plan is as it is: each collective with its reason, and what other plans would cost.

For a plan of strategy `optimal` the other plans are those close to it, each the best one that does
without one of its collectives, and the book's. For one of `book`, they are the choices that its rules
left to sizes, and the optimal plan where all sizes are known.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Literal

from shardlang.advice.flow import bytes_of
from shardlang.backends.units import si
from shardlang.cost.symbols import literal_size
from shardlang.diagnostics import ShardlangError
from shardlang.ir.plan import Alternative, Objective, Pass, Plan, Step
from shardlang.ir.printer import statement
from shardlang.ir.program import Program
from shardlang.passes import lower
from shardlang.planner.close import close_plans, collectives
from shardlang.planner.errors import placed
from shardlang.planner.prices import prices_of
from shardlang.planner.program import aim_of, best_plan
from shardlang.planner.solve import Aim

SCHEMA = 1
"""The version of the JSON object."""

SHOWN = 5
"""How many close plans are listed."""

LINES = 4
"""How many of a plan's collectives are shown on each side of a difference."""

SEARCH = 3.0
"""Seconds that the search for close plans may take, unless the budget says less."""

Strategy = Literal["book", "optimal"]
Prices = Literal["book", "link"]


@dataclass(frozen=True, slots=True)
class Reasoned:
    """A collective: where, its line, why, and the bytes a device moves, as a number where it is one."""

    section: Pass
    text: str
    op: str
    value: str
    axes: tuple[str, ...]
    formula: str
    bytes: Fraction | None
    critical: bool
    rule: str
    reason: str


@dataclass(frozen=True, slots=True)
class Line:
    """A collective of a plan that another plan has not."""

    section: Pass
    text: str


@dataclass(frozen=True, slots=True)
class Other:
    """Another plan against the one explained: its total, how much more that is, and what differs.

    `instead_of` is the collective that a close plan does without; `kept` counts what both have.
    """

    total: Fraction
    more: Fraction
    share: Fraction | None
    kept: int
    gone: tuple[Line, ...]
    new: tuple[Line, ...]
    instead_of: Line | None = None


@dataclass(frozen=True)
class Explanation:
    """A plan explained; `str()` gives what `shardlang explain` prints.

    `total` and `bound` are in the objective's unit (bytes, or seconds), None where sizes are missing
    or nothing was searched. They and `formula` are of both passes of a batch, or of what `counts` says: all microbatches,
    the update. `compared` is the book's plan, or the optimal one for a plan of `book`.
    """

    strategy: str
    note: str | None
    objective: Objective
    prices: str
    total: Fraction | None
    formula: str
    bound: Fraction | None
    collectives: tuple[Reasoned, ...]
    close: tuple[Other, ...]
    compared: Other | None
    choices: tuple[Alternative, ...]
    counts: str | None = None

    @property
    def optimal(self) -> bool:
        """Whether it is proven that no plan costs less."""
        return self.bound is not None and self.bound == self.total

    def to_dict(self) -> dict[str, Any]:
        """Give everything as JSON data; costs are floats in the objective's unit."""
        return {
            "schema": SCHEMA,
            "strategy": self.strategy,
            "note": self.note,
            "counts": self.counts,
            "objective": self.objective,
            "prices": self.prices,
            "total": _float(self.total),
            "formula": self.formula,
            "bound": _float(self.bound),
            "optimal": self.optimal,
            "collectives": [
                {
                    "pass": c.section,
                    "text": c.text,
                    "op": c.op,
                    "value": c.value,
                    "axes": list(c.axes),
                    "formula": c.formula,
                    "bytes": _float(c.bytes),
                    "critical": c.critical,
                    "rule": c.rule or None,
                    "reason": c.reason or None,
                }
                for c in self.collectives
            ],
            "close": [_other(other) for other in self.close],
            "compared": None if self.compared is None else _other(self.compared),
            "choices": [
                {"at": c.at, "instead": c.instead, "cheaper_when": c.cheaper_when}
                for c in self.choices
            ],
        }

    def to_text(self, width: int = 80) -> str:
        """Lay it out for a terminal of some width."""
        return "\n".join(_Text(self, width).rows()) + "\n"

    def __str__(self) -> str:
        """Lay it out for 80 columns."""
        return self.to_text()


def _float(value: Fraction | None) -> float | None:
    return None if value is None else float(value)


def _other(other: Other) -> dict[str, Any]:
    def line(each: Line) -> dict[str, str]:
        return {"pass": each.section, "text": each.text}

    return {
        "instead_of": None if other.instead_of is None else line(other.instead_of),
        "total": float(other.total),
        "more": float(other.more),
        "share": _float(other.share),
        "kept": other.kept,
        "gone": [line(each) for each in other.gone],
        "new": [line(each) for each in other.new],
    }


def explain(
    program: Program,
    strategy: Strategy | None = None,
    *,
    prices: Prices = "link",
    objective: Objective | None = None,
    hardware: str | None = None,
    budget: float | None = None,
    memory_limit: Fraction | float | None = None,
    keep_gathered: bool | None = None,
    forward_only: bool = False,
    sub_axes: bool | None = None,
) -> Explanation:
    """Explain a program's plan: by default the optimal one where every size is known.

    Options are those of `lower`. Raises `ShardlangError`.
    """
    note = None
    if strategy is None:
        note = _why_book(program)
        strategy = "optimal" if note is None else "book"
    known = not _sizeless(program) and not program.explicit
    aim = Aim("bytes", prices_of(prices))
    if known:
        try:
            aim = aim_of(program, objective, hardware, aim.prices)
        except ShardlangError as error:
            raise placed(error, program) from None

    def worth(plan: Plan) -> Fraction:
        return aim.of(plan)[0]

    def searched() -> Plan:
        return best_plan(
            program,
            prices=prices,
            objective=objective,
            hardware=hardware,
            budget=budget,
            memory_limit=memory_limit,
            keep_gathered=keep_gathered,
            forward_only=forward_only,
            sub_axes=sub_axes,
        )

    book = lower(program, "book", keep_gathered=keep_gathered, forward_only=forward_only)
    plan, close, compared = book, (), None
    if strategy == "optimal":
        plan = searched()
        if plan.proof is None:
            note = plan.warnings[-1] if plan.warnings else note
        else:
            compared = _against(plan, book, worth)
            found = close_plans(
                plan,
                aim,
                keep_gathered=keep_gathered,
                forward_only=forward_only,
                budget=min(SEARCH, SEARCH if budget is None else budget),
            )
            others = [
                replace(
                    _against(plan, each.plan, worth),
                    instead_of=Line(_pass_of(plan, each.without), statement(each.without)),
                )
                for each in found
            ]
            close = tuple(sorted(others, key=lambda other: other.total)[:SHOWN])
    elif known:
        best = searched()
        compared = None if best.proof is None else _against(book, best, worth)
    whole = bytes_of(plan, collectives(plan), prices)
    number = whole.value({})
    total = worth(plan) if known else number
    return Explanation(
        plan.strategy,
        note,
        aim.objective,
        prices,
        total,
        str(whole),
        None if plan.proof is None else plan.proof.bound,
        tuple(_reasoned(plan, section, step, prices) for section, step in collectives(plan)),
        close,
        compared,
        plan.alternatives,
        _counts(plan, aim.objective),
    )


def _counts(plan: Plan, objective: Objective) -> str | None:
    """Say what the total is of, where that is more than both passes of a batch."""
    many, stages = plan.program.microbatches, plan.program.pipeline
    if many is None and not plan.update:
        return None
    size = plan.program.sizes.known.get(many.name) if many is not None else None
    named = "" if many is None else f"{many}={size}" if size is not None else str(many)
    what = "a batch" if many is None else f"all {named} microbatches"
    whole = f"{what} and the update" if plan.update else what
    if stages is None:
        return whole
    without = "" if objective == "bytes" else ", without the bubble"
    return f"{whole}, on a stage{without}; `shardlang cost` has the rest of a step"


def _why_book(program: Program) -> str | None:
    """Say why a program's optimal plan is not looked for, if it is not."""
    if program.explicit:
        return "the lines are the steps; `shardlang check` says what would be cheaper"
    missing = _sizeless(program)
    if not missing:
        return None
    names = ", ".join(missing[:6]) + (", ..." if len(missing) > 6 else "")
    have = "has" if len(missing) == 1 else "have"
    return f"{names} {have} no size, so this is the book's plan; --set {missing[0]}=... gives one"


def _sizeless(program: Program) -> list[str]:
    axes = [info.axis.name for info in program.mesh.axes if info.size is None]
    dims = [
        info.dim.name
        for info in program.dims
        if info.size is None and literal_size(info.dim.name) is None
    ]
    return [*axes, *dims]


def _pass_of(plan: Plan, step: Step) -> Pass:
    return next(section for section, each in plan.steps() if each is step)


def _reasoned(plan: Plan, section: Pass, step: Step, prices: Prices) -> Reasoned:
    formula = bytes_of(plan, ((section, step),), prices)
    return Reasoned(
        section,
        statement(step),
        type(step.op).__name__,
        step.output.name,
        tuple(axis.name for axis in getattr(step.op, "axes", ())),
        str(bytes_of(plan, ((section, step),), prices, numbers=False)),
        formula.value({}),
        step.critical,
        step.rule,
        step.reason,
    )


def _against(plan: Plan, other: Plan, worth: Callable[[Plan], Fraction]) -> Other:
    """Set another plan against a plan."""
    mine, theirs = _lines(plan), _lines(other)
    own, total = worth(plan), worth(other)
    return Other(
        total,
        total - own,
        (total - own) / own if own else None,
        sum(line in theirs for line in mine),
        tuple(line for line in mine if line not in theirs),
        tuple(line for line in theirs if line not in mine),
    )


def _lines(plan: Plan) -> list[Line]:
    return [Line(section, statement(step)) for section, step in collectives(plan)]


@dataclass(frozen=True)
class _Text:
    """The rows of the text."""

    found: Explanation
    width: int

    @property
    def unit(self) -> str:
        return "B" if self.found.objective == "bytes" else "s"

    def rows(self) -> Iterator[str]:
        """Give every row."""
        yield from self.header()
        yield from self.body()
        yield from self.choices()
        yield from self.close()
        yield from self.compared()

    def header(self) -> Iterator[str]:
        """Say what is explained and what it costs in all."""
        found = self.found
        yield f"strategy   {found.strategy}"
        if found.note is not None:
            yield from self.wrapped("note       ", found.note)
        if found.counts is not None:
            yield from self.wrapped("counts     ", found.counts)
        what = {
            "bytes": "the bytes that a device moves",
            "serial": "T_serial",
            "time": "T_overlapped",
        }[found.objective]
        yield f"objective  {what}, by {found.prices} prices"
        many = len(found.collectives)
        count = f"{many or 'no'} collective{'' if many == 1 else 's'}"
        if found.total is None:
            yield from self.wrapped("total      ", f"{found.formula} in {count}")
            return
        sure = ""
        if found.bound is not None:
            least = "moves less" if found.objective == "bytes" else "takes less"
            gap = (found.total - found.bound) / found.bound if found.bound else Fraction(1)
            sure = f"; {'no plan ' + least if found.optimal else self.above(gap)}"
        yield f"total      {si(float(found.total), self.unit)} in {count}{sure}"

    def above(self, gap: Fraction) -> str:
        """Say how far from the best a plan may be."""
        return f"at most {float(100 * gap):.2g}% above the least"

    def wrapped(self, head: str, text: str) -> Iterator[str]:
        """Break a text behind a head, and indent what follows."""
        yield from textwrap.wrap(
            text,
            self.width,
            initial_indent=head,
            subsequent_indent=" " * len(head),
            break_long_words=False,
            break_on_hyphens=False,
        ) or [head.rstrip()]

    def beside(self, left: str, right: str) -> Iterator[str]:
        """Put a figure at the right edge, or on a row of its own."""
        if len(left) + len(right) + 2 > self.width:
            yield left
            left = ""
        yield left + right.rjust(self.width - len(left))

    def body(self) -> Iterator[str]:
        """List the collectives with their reasons."""
        if not self.found.collectives:
            return
        section = None
        for each in self.found.collectives:
            if each.section != section:
                yield ""
                section = each.section
                yield f"{section.capitalize()}  (* on the critical path)"
            figure = each.formula if each.bytes is None else si(float(each.bytes), "B")
            yield from self.beside(f"{'*' if each.critical else ' '} {each.text}", figure)
            if each.reason:
                yield from self.wrapped("    ", each.reason)

    def choices(self) -> Iterator[str]:
        """List what the rules left to sizes."""
        if not self.found.choices:
            return
        yield ""
        yield "Choices that sizes settle"
        for choice in self.found.choices:
            yield from self.wrapped("  at  ", choice.at)
            yield from self.wrapped("      instead: ", choice.instead)
            yield from self.wrapped("      cheaper: ", choice.cheaper_when)

    def close(self) -> Iterator[str]:
        """List the close plans."""
        if not self.found.close:
            return
        yield ""
        yield "Close plans  (each the best that was found without one of the collectives)"
        for other in self.found.close:
            yield self.figures("  ", other)
            yield from self.lines(other)

    def figures(self, indent: str, other: Other) -> str:
        """Say what another plan costs against this one."""
        total = si(float(other.total), self.unit)
        if not other.more:
            return f"{indent}{total}, as much"
        more = f"{si(float(abs(other.more)), self.unit)} {'more' if other.more > 0 else 'less'}"
        return f"{indent}{total}, {more}{self.share(other)}"

    def share(self, other: Other) -> str:
        """Say how much more or less that is, as a share or, from twice as much, as a factor."""
        if other.share is None:
            return ""
        if other.share >= 1:
            return f" ({float(1 + other.share):.3g} times as much)"
        return f" ({float(100 * other.share):+.3g}%)"

    def lines(self, other: Other) -> Iterator[str]:
        """Show what another plan does without, and what it has in its place."""
        for sign, listed in (("-", other.gone), ("+", other.new)):
            shown = sorted(listed, key=lambda each: each != other.instead_of)[:LINES]
            for each in shown:
                yield from self.wrapped(f"    {sign} {each.section:<8}  ", each.text)
            if len(listed) > len(shown):
                yield f"    {sign} and {len(listed) - len(shown)} more"

    def compared(self) -> Iterator[str]:
        """Set the other strategy's plan against this one."""
        other = self.found.compared
        if other is None:
            return
        yield ""
        name = "book" if self.found.strategy == "optimal" else "optimal"
        if not other.gone and not other.new:
            yield f"`{name}` has the same collectives"
            return
        many = f"{other.kept} collective{' is' if other.kept == 1 else 's are'} the same"
        yield f"`{name}` instead  ({many if other.kept else 'no collective is the same'})"
        yield self.figures("  ", other)
        yield from self.lines(other)
