"""From changed steps to a changed text: lines whose steps stay are not touched.

A *unit* is a statement with all steps inside it. Where one of them changes, the unit's lines are
written anew, each step on its own line; a comment behind a statement stays with it, or takes its place.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from shardlang.ir.plan import Pass, Step
from shardlang.ir.printer import statement
from shardlang.source import Source, Span


@dataclass(frozen=True, slots=True)
class Item:
    """A step of the new program, and the number of the old step in whose place it stands, if any."""

    step: Step
    old: int | None = None


@dataclass(frozen=True, slots=True)
class _Unit:
    """A statement of the text: the lines it takes, its span, and its steps' numbers."""

    first: int
    last: int
    span: Span
    steps: tuple[int, ...]


def edited(
    source: Source,
    old: Mapping[Pass, Sequence[Step]],
    new: Mapping[Pass, Sequence[Item]],
    gone: Iterable[Span] = (),
) -> str | None:
    """Give the text with the new steps in place of the old ones; None where lines can't be told apart.

    `gone` are statements that are no steps (they do nothing) and are left out.
    """
    lines = source.text.split("\n")
    removed: set[int] = set()
    before: dict[int, list[str]] = {}
    after: dict[int, list[str]] = {}
    for section, items in new.items():
        units = _units(source, old[section])
        if units is None:
            return None
        if _place(lines, old[section], items, units, (removed, before, after)) is None:
            return None
    for span in gone:
        first, last = (source.position(at)[0] for at in (span.start, span.end))
        removed.update(range(first, last + 1))
    out: list[str] = []
    for number, line in enumerate(lines, 1):
        out += before.get(number, [])
        if number not in removed:
            out.append(line)
        out += after.get(number, [])
    return "\n".join(out)


def _units(source: Source, steps: Sequence[Step]) -> list[_Unit] | None:
    """Group steps by the statement that they stand in; None where two share a line."""
    found: list[_Unit] = []
    for index, step in enumerate(steps):
        if step.span is None or step.span.end > len(source.text):  # a line of another file
            return None
        span, own = step.span, (index,)
        if found and span.start <= found[-1].span.start and found[-1].span.end <= span.end:
            last = found.pop()
            own = (*last.steps, index)
            while found and span.start <= found[-1].span.start:
                own = (*found.pop().steps, *own)
        first, end = source.position(span.start)[0], source.position(span.end)[0]
        found.append(_Unit(first, end, span, own))
    merged: list[_Unit] = []
    for unit in found:
        if merged and unit.first <= merged[-1].last:
            # parts of one statement beside each other, or two statements on a line
            last = merged.pop()
            unit = _Unit(  # noqa: PLW2901
                min(unit.first, last.first),
                max(unit.last, last.last),
                unit.span.join(last.span),
                (*last.steps, *unit.steps),
            )
        merged.append(unit)
    starts = [u.first for u in merged]
    alone = all(_alone(source, unit.span) for unit in merged)
    return merged if alone and starts == sorted(set(starts)) else None


def _alone(source: Source, span: Span) -> bool:
    """Say whether nothing but blanks and a comment stands beside a statement on its lines."""
    first, column = source.position(span.start)
    last, end = source.position(span.end)
    behind = source.line(last)[end - 1 :].strip()
    ahead = source.line(first)[: column - 1].strip()
    return not ahead and (not behind or behind.startswith(("//", "#")))


def _place(
    lines: Sequence[str],
    old: Sequence[Step],
    items: Sequence[Item],
    units: Sequence[_Unit],
    found: tuple[set[int], dict[int, list[str]], dict[int, list[str]]],
) -> bool | None:
    """Note what to take out and what to put in; None where it can't be done line by line."""
    removed, before, after = found
    of = {index: number for number, unit in enumerate(units) for index in unit.steps}
    inside: dict[int, list[Item]] = {}
    waiting: list[Item] = []
    lead: dict[int, list[Item]] = {}
    for item in items:
        if item.old is None:
            waiting.append(item)
            continue
        unit = of[item.old]
        if unit in inside:
            inside[unit] += [*waiting, item]
        else:
            lead[unit], inside[unit] = waiting, [item]
        waiting = []
    order = list(inside)
    if order != sorted(order):
        return None
    for number, unit in enumerate(units):
        text = lines[unit.first - 1]
        indent = text[: len(text) - len(text.lstrip())]
        end = "\r" if text.endswith("\r") else ""
        put = [indent + statement(item.step) for item in lead.get(number, ())]
        own = inside.get(number, [])
        same = [item.old for item in own] == list(unit.steps) and all(
            item.step == old[i] for item, i in zip(own, unit.steps, strict=True)
        )
        if not same:
            removed.update(range(unit.first, unit.last + 1))
            put += [indent + statement(item.step) for item in own]
            comment = _comment(lines[unit.last - 1])
            if own and comment:
                put[-1] += comment
            elif comment and "critical path" not in comment:
                put.append(indent + comment.strip())
        if put:
            before.setdefault(unit.first, []).extend(line + end for line in put)
    if waiting:
        if not units:
            return None
        text = lines[units[-1].first - 1]
        indent = text[: len(text) - len(text.lstrip())]
        end = "\r" if text.endswith("\r") else ""
        more = [indent + statement(item.step) + end for item in waiting]
        after.setdefault(units[-1].last, []).extend(more)
    return True


def _comment(line: str) -> str:
    """Give the comment behind a statement with the blanks before it."""
    line = line.rstrip("\r")
    places = [at for mark in ("//", "#") if (at := line.find(mark)) >= 0]
    if not places:
        return ""
    at = min(places)
    code = line[:at].rstrip()
    return line[len(code) :]
