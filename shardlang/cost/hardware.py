"""The hardware that a program names: the place where it does, its figures, and what is wrong there."""

from __future__ import annotations

import re
from fractions import Fraction

from shardlang.cost.network import wire, Wiring
from shardlang.diagnostics import Diagnostic, ShardlangError
from shardlang.hardware.catalogue import Hardware, load_hardware
from shardlang.hardware.slices import shape_text
from shardlang.ir.program import Program
from shardlang.source import Source, Span

_LINE = re.compile(
    r'^[^\S\n]*hardware[ \t]+(?:"(?P<quoted>[^"\n]*)"|(?P<bare>[^\s",#]+))'
    r"(?:[ \t]+(?P<shape>[0-9]+(?:[x×][0-9]+)+))?",
    re.MULTILINE,
)


def named_in(source: Source) -> tuple[str, Span] | None:
    """Give what the `hardware` line of a text names, with its place; None where there is no line."""
    found = _line(source)
    if found is None:
        return None
    base, line = found
    group = "bare" if line["quoted"] is None else "quoted"
    return line[group], _span(base, line, group)


def _line(source: Source) -> tuple[int, re.Match[str]] | None:
    """Find the line that names the hardware, in a text or the files that it includes."""
    lines = ((base, _LINE.search(text)) for base, text in source.texts())
    return next(((base, line) for base, line in lines if line is not None), None)


def _span(base: int, line: re.Match[str], group: str) -> Span:
    return Span(base + line.start(group), base + line.end(group))


def hardware_of(source: Source, name: str) -> Hardware:
    """Load the hardware that a program names; a mistake is placed at the line that names it.

    Raises `ShardlangError`.
    """
    named = named_in(source)
    span = named[1] if named is not None and named[0] == name else Span(0, 0)
    return load_hardware(name, source, span)


def slice_place(program: Program, name: str, shape: tuple[int, ...]) -> tuple[Source, Span]:
    """Give the place of a slice's shape: in the text, else behind the name on the command line."""
    found = _line(program.source)
    text = shape_text(shape)
    if found is not None and (found[1]["shape"] or "").replace("×", "x") == text:
        return program.source, _span(*found, "shape")
    where = Source("--hardware", f"{name} {text}")
    return where, Span(len(where.text) - len(text), len(where.text))


def slice_mistakes(program: Program, chip: Hardware) -> list[Diagnostic]:
    """List what is wrong with the slice of a program: a shape that its mesh does not fit."""
    known = {name: Fraction(size) for name, size in program.mesh.sizes.items()}
    wiring = wire(chip.topology, program.slice, program.mesh.axes, known)
    if isinstance(wiring, Wiring):
        return []
    return [Diagnostic(*slice_place(program, chip.name, program.slice), wiring)]


def hardware_mistakes(source: Source) -> list[Diagnostic]:
    """List what is wrong with the hardware that a text names, also where the rest is no program."""
    named = named_in(source)
    if named is None:
        return []
    try:
        load_hardware(named[0], source, named[1])
    except ShardlangError as error:
        return list(error.diagnostics)
    return []
