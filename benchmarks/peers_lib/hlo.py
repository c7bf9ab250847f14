"""Counts the bytes that each device sends, from the text of a compiled HLO module.

L is what a device holds of the operands, n the devices of a group:

| collective         | bytes of a device |
| ------------------ | ----------------- |
| all-gather         | L (n-1)           |
| reduce-scatter     | L (n-1)/n         |
| all-reduce         | 2 L (n-1)/n       |
| all-to-all         | L (n-1)/n         |
| collective-permute | L, of a device that sends to another |

The figure of a module is that of its busiest device. An all-reduce that is only sliced afterwards is a
reduce-scatter on accelerators, where a pass of XLA's makes it one that the CPU backend does not run;
`corrected` counts it so. `shared` also counts collectives with equal operands, groups and dims once:
the CPU backend leaves such copies standing.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

WIDTHS: Mapping[str, int] = {
    "pred": 1, "s8": 1, "u8": 1, "s16": 2, "u16": 2, "bf16": 2, "f16": 2, "s32": 4, "u32": 4,
    "f32": 4, "s64": 8, "u64": 8, "f64": 8, "token": 0,
}  # fmt: skip
"""Bytes of an element."""

KINDS = ("all-gather", "reduce-scatter", "all-reduce", "all-to-all", "collective-permute")
UNKNOWN = ("collective-broadcast", "ragged-all-to-all", "send", "recv", "while")
"""What would move bytes that this does not count; none is expected."""

PASSING = ("bitcast", "reshape", "copy", "transpose")
"""Operations after which an array is the same numbers."""


class UncountedError(Exception):
    """A module with something whose bytes are unknown; the text says what."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """One line of a computation: shapes are a list of the parts of a tuple."""

    name: str
    opcode: str
    shapes: tuple[str, ...]
    operands: tuple[str, ...]
    attributes: str
    root: bool


@dataclass
class Computation:
    """The instructions of a computation by name, and who reads what."""

    lines: dict[str, Instruction] = field(default_factory=dict)
    users: dict[str, list[Instruction]] = field(default_factory=dict)

    def parameter(self, number: int) -> Instruction:
        """Give a parameter by its number."""
        return next(
            x
            for x in self.lines.values()
            if x.opcode == "parameter" and x.operands == (str(number),)
        )


@dataclass(frozen=True, slots=True)
class Bytes:
    """What the busiest device sends: as compiled, and under the two corrections."""

    raw: Fraction
    corrected: Fraction
    shared: Fraction
    collectives: tuple[str, ...]
    """One line each, for people."""


Groups = tuple[tuple[int, ...], ...]

_LINE = re.compile(r"^\s*(ROOT )?%?([\w.\-]+) = (.*)$")
_HEAD = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) \(.*\) -> .*\{$")
_SHAPE = re.compile(r"\b([a-z]+\d*\w*)\[([\d,]*)\]")


def count(text: str) -> Bytes:
    """Count the bytes of a module. Raises `UncountedError`."""
    found = re.search(r"num_partitions=(\d+)", text)
    devices = int(found[1]) if found else 1
    module = parse(text)
    raw, corrected, shared = ([Fraction(0)] * devices for _ in range(3))
    seen: set[object] = set()
    lines: list[str] = []
    for computation in module.values():
        for line in computation.lines.values():
            kind = _kind(line)
            if kind is None:
                continue
            sent = _sent(kind, line, computation, devices)
            less = sent
            if kind == "all-reduce":
                less = _scattered(line, computation, module, devices)
            key = (kind, line.operands, _who(line, devices), _dimensions(line))
            again = key in seen
            seen.add(key)
            for device in range(devices):
                raw[device] += sent[device]
                corrected[device] += less[device]
                shared[device] += 0 if again else less[device]
            lines.append(_told(kind, line, computation, sent, less, again=again))
    return Bytes(max(raw), max(corrected), max(shared), tuple(lines))


def parse(text: str) -> dict[str, Computation]:
    """Read the computations of a module by name."""
    module: dict[str, Computation] = {}
    inside: Computation | None = None
    for line in text.splitlines():
        head = _HEAD.match(line)
        if head:
            inside = module.setdefault(head[1], Computation())
        elif line.startswith("}"):
            inside = None
        elif inside is not None:
            instruction = _instruction(line)
            if instruction is not None:
                inside.lines[instruction.name] = instruction
                for name in dict.fromkeys(instruction.operands):
                    inside.users.setdefault(name, []).append(instruction)
    return module


def _instruction(line: str) -> Instruction | None:
    """Read one line of a computation."""
    match = _LINE.match(re.sub(r"/\*.*?\*/", "", line))
    if match is None:
        return None
    rest = match[3]
    end = _closing(rest, 0) + 1 if rest.startswith("(") else rest.index(" ")
    shape, call = rest[:end], rest[end:].strip()
    opcode, _, _ = call.partition("(")
    start = len(opcode)
    close = _closing(call, start)
    inner = call[start + 1 : close]
    operands = (inner.strip(),) if opcode == "parameter" else tuple(_operands(inner))
    shapes = tuple(found[0] for found in _SHAPE.finditer(shape))
    return Instruction(match[2], opcode, shapes, operands, call[close + 1 :], bool(match[1]))


def _operands(text: str) -> Iterator[str]:
    """Give the names of operands, which may have their shapes before them."""
    for found in re.finditer(r"%([\w.\-]+)", text):
        yield found[1]


def _closing(text: str, start: int) -> int:
    """Find the bracket that closes the one at `start`."""
    depth = 0
    for place in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[place], 0)
        if depth == 0:
            return place
    raise UncountedError(f"a line with no closing bracket: {text[:80]}")


def _kind(line: Instruction) -> str | None:
    """Name the collective that a line is; the end of an asynchronous one is none."""
    if line.opcode in UNKNOWN:
        raise UncountedError(f"{line.opcode} {line.name}")
    opcode = line.opcode.removesuffix("-start")
    return opcode if opcode in KINDS else None


def size(shape: str) -> int:
    """Give the bytes of a shape as `f32[8,16]`."""
    found = _SHAPE.match(shape)
    if found is None or found[1] not in WIDTHS:
        raise UncountedError(f"a shape of unknown width: {shape}")
    return WIDTHS[found[1]] * math.prod(int(part) for part in found[2].split(",") if part)


def _held(line: Instruction, computation: Computation) -> int:
    """Give the bytes of all operands."""
    return sum(
        sum(map(size, computation.lines[name].shapes))
        if name in computation.lines
        else _missing(name)
        for name in line.operands
    )


def _missing(name: str) -> int:
    raise UncountedError(f"an operand that no line defines: {name}")


def _sent(kind: str, line: Instruction, computation: Computation, devices: int) -> list[Fraction]:
    """Give what each device sends."""
    held = Fraction(_held(line, computation))
    sent = [Fraction(0)] * devices
    if kind == "collective-permute":
        for source, target in pairs(line.attributes):
            if source != target:
                sent[source] += held
        return sent
    for group in groups(line.attributes, devices):
        for device in group:
            sent[device] = held * _factor(kind, len(group))
    return sent


def _factor(kind: str, n: int) -> Fraction:
    """Give the bytes sent for each byte held."""
    match kind:
        case "all-gather":
            return Fraction(n - 1)
        case "all-reduce":
            return Fraction(2 * (n - 1), n)
        case _:
            return Fraction(n - 1, n)


# Groups


def pairs(attributes: str) -> list[tuple[int, int]]:
    """Read `source_target_pairs={{0,1},{1,0}}`."""
    found = re.search(r"source_target_pairs=\{(.*?)\}\}", attributes)
    return [(int(a), int(b)) for a, b in re.findall(r"\{(\d+),(\d+)", found[1])] if found else []


def groups(attributes: str, devices: int) -> Groups:
    """Read `replica_groups` in one of its three notations.

    `{{0,1},{2,3}}`; `[2,2]<=[4]` with perhaps a transposition; or axes of a mesh,
    `mesh['a'=4,'b'=2] {'a'}`, where `'a':(2)2` is a part of an axis.
    """
    if found := re.search(r"replica_groups=\{(\{.*?\})?\}", attributes):
        listed = re.findall(r"\{([\d,]*)\}", found[1] or "")
        read = tuple(tuple(int(x) for x in part.split(",") if x) for part in listed)
        return read or (tuple(range(devices)),)
    if found := re.search(
        r"replica_groups=\[(\d+),(\d+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", attributes
    ):
        rows, width = int(found[1]), int(found[2])
        dims = [int(x) for x in found[3].split(",")]
        order = [int(x) for x in (found[4] or "").split(",") if x] or list(range(len(dims)))
        flat = list(_transposed(dims, order))
        return tuple(tuple(flat[i * width : (i + 1) * width]) for i in range(rows))
    if found := re.search(r"replica_groups=@?mesh\[([^\]]*)\](.*?) ?\{([^}]*)\}", attributes):
        return _mesh_groups(found[1], _device_order(found[2]), found[3])
    raise UncountedError(f"groups in an unknown notation: {attributes[:200]}")


def _transposed(dims: Sequence[int], order: Sequence[int]) -> Iterator[int]:
    """Count through an array of these dims and list it with the dims in another order."""
    strides = [math.prod(dims[i + 1 :]) for i in range(len(dims))]
    for index in itertools.product(*(range(dims[i]) for i in order)):
        yield sum(strides[i] * at for i, at in zip(order, index, strict=True))


def _device_order(text: str) -> list[int] | None:
    """Read `, device_ids=([4,2]T(1,0))` or a plain list; None where devices are in order."""
    if not text:
        return None
    if found := re.fullmatch(r", device_ids=\(\[([\d,]+)\](?:T\(([\d,]+)\))?\)", text):
        dims = [int(x) for x in found[1].split(",")]
        order = [int(x) for x in (found[2] or "").split(",") if x] or list(range(len(dims)))
        return list(_transposed(dims, order))
    if found := re.fullmatch(r", device_ids=\(([\d,]+)\)", text):
        return [int(x) for x in found[1].split(",")]
    raise UncountedError(f"devices of a mesh in an unknown notation: {text}")


def _mesh_groups(mesh: str, devices: list[int] | None, wanted: str) -> Groups:
    """List the groups along axes of a mesh, or along parts of axes."""
    axes = {name: int(n) for name, n in re.findall(r"'([^']+)'=(\d+)", mesh)}
    along: list[tuple[int, int]] = []
    total = math.prod(axes.values())
    inside = {name: math.prod(list(axes.values())[place + 1 :]) for place, name in enumerate(axes)}
    for name, before, part in re.findall(r"'([^']+)'(?::\((\d+)\)(\d+))?", wanted):
        if before:
            rest = axes[name] // (int(before) * int(part))
            along.append((inside[name] * rest, int(part)))
        else:
            along.append((inside[name], axes[name]))
    table: dict[int, list[int]] = {}
    for device in range(total):
        base = device - sum(device // stride % n * stride for stride, n in along)
        table.setdefault(base, []).append(device)
    # The order within a group is that of the axes.
    ids = devices or list(range(total))
    return tuple(
        tuple(ids[d] for d in sorted(group, key=lambda d: [d // stride % n for stride, n in along]))
        for group in table.values()
    )


def _who(line: Instruction, devices: int) -> object:
    """Give a collective's groups or pairs in a form that compares."""
    if line.opcode.startswith("collective-permute"):
        return tuple(pairs(line.attributes))
    return tuple(sorted(groups(line.attributes, devices)))


def _dimensions(line: Instruction) -> str:
    """Give the dims that a collective joins or splits, as written."""
    found = re.search(r"\bdimensions=\{[^}]*\}", line.attributes)
    return found[0] if found else ""


# The all-reduce that is a reduce-scatter


def _scattered(
    line: Instruction, computation: Computation, module: Mapping[str, Computation], devices: int
) -> list[Fraction]:
    """Give what each device sends in an all-reduce where what is only sliced is scattered."""
    sent = [Fraction(0)] * devices
    for place, operand in enumerate(line.operands):
        held = sum(map(size, computation.lines[operand].shapes))
        if len(line.operands) == 1:
            pieces = _pieces(line.name, computation, module)
        else:
            parts = [
                user
                for user in computation.users.get(line.name, ())
                if user.opcode == "get-tuple-element"
                and re.search(rf"index={place}\b", user.attributes)
            ]
            pieces = set() if parts and not line.root else None
            for part in parts:
                more = _pieces(part.name, computation, module)
                pieces = None if pieces is None or more is None else pieces | more
        for group in groups(line.attributes, devices):
            for device in group:
                sent[device] += _as_scatter(held, len(group), pieces)
    return sent


def _as_scatter(held: int, n: int, pieces: set[tuple[str, str]] | None) -> Fraction:
    """Give the bytes of an all-reduce whose result is read in these slices alone."""
    whole = Fraction(2 * held * (n - 1), n)
    if not pieces:
        return whole
    total = Fraction(0)
    for shape, _ in pieces:
        parts = held // size(shape)
        if parts >= n:
            total += Fraction(held * (n - 1), n)
        elif parts > 1 and n % parts == 0:
            rest = n // parts
            total += Fraction(held * (parts - 1), parts)
            total += Fraction(2 * (held // parts) * (rest - 1), rest)
        else:
            return whole
    return min(whole, total)


def _pieces(
    name: str, computation: Computation, module: Mapping[str, Computation]
) -> set[tuple[str, str]] | None:
    """List the slices in which a value is read, by shape and sizes; None where it is read whole."""
    if computation.lines[name].root:
        return None
    found: set[tuple[str, str]] = set()
    for user in computation.users.get(name, ()):
        more = _read(name, user, computation, module)
        if more is None:
            return None
        found |= more
    return found or None


def _read(
    name: str, user: Instruction, computation: Computation, module: Mapping[str, Computation]
) -> set[tuple[str, str]] | None:
    """List the slices in which one instruction reads a value."""
    if user.opcode in ("dynamic-slice", "slice") and user.operands[0] == name:
        sizes = re.search(r"(?:dynamic_slice_sizes|slice)=\{[^}]*\}", user.attributes)
        return {(user.shapes[0], sizes[0] if sizes else "")}
    if user.opcode in PASSING:
        return _pieces(user.name, computation, module)
    called = re.search(r"(?:calls|to_apply)=%?([\w.\-]+)", user.attributes)
    if user.opcode not in ("fusion", "call") or called is None:
        return None
    inner = module[called[1]]
    found: set[tuple[str, str]] = set()
    for place, operand in enumerate(user.operands):
        if operand != name:
            continue
        more = _through(inner.parameter(place).name, inner, module)
        if more == "whole":
            return None
        found |= _pieces(user.name, computation, module) or set() if more == "passed" else more
        if more == "passed" and not found:
            return None
    return found


def _through(
    name: str, inner: Computation, module: Mapping[str, Computation]
) -> set[tuple[str, str]] | str:
    """Follow a parameter through a fusion: slices, `whole`, or `passed` on as the result."""
    at = name
    while True:
        if inner.lines[at].root:
            return "passed"
        users = inner.users.get(at, [])
        if len(users) == 1 and users[0].opcode in PASSING:
            at = users[0].name
            continue
        found = _pieces(at, inner, module)
        return "whole" if found is None else found


def _told(
    kind: str,
    line: Instruction,
    computation: Computation,
    sent: Sequence[Fraction],
    less: Sequence[Fraction],
    *,
    again: bool,
) -> str:
    """Write a collective for people."""
    operands = "+".join(s for name in line.operands for s in computation.lines[name].shapes)
    told = f"{kind} {operands}: {float(max(sent)):g}"
    if less != sent:
        told += f", as reduce-scatter {float(max(less)):g}"
    return told + (", again" if again else "")
