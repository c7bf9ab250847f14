"""The machines of a page: the chips of the catalogue, and the one that was asked for first."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path

from shardlang.cost.hardware import hardware_of
from shardlang.hardware.catalogue import Hardware, known_hardware, load_hardware
from shardlang.hardware.slices import shape_text, split_shape
from shardlang.ir.program import Program

DEFAULT = "tpu_v5p"
"""The chip that a page starts with where neither the program nor the command line names one."""


@dataclass(frozen=True)
class Machine:
    """A chip, and the shape of the slice that its chips form, empty where none is given.

    `asked` is what `cost` takes for `hardware`.
    """

    chip: Hardware
    asked: str | Hardware
    shape: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """What the page calls it."""
        return f"{self.chip.name} {shape_text(self.shape)}" if self.shape else self.chip.name

    @property
    def kind(self) -> Hashable:
        """What formulas depend on besides figures: how the chips are joined, and what is unknown."""
        topology = self.chip.topology
        joined = None
        if topology is not None:
            torus = topology.kind == "torus"
            joined = (topology.kind, None if torus else topology.node, topology.in_network)
        lacking = tuple(self.chip.get(name) is None for name in ("hop_latency", "dcn_latency"))
        return (self.shape and self.name, joined, lacking)


def machines(programs: Sequence[Program], hardware: str | Hardware | None) -> list[Machine]:
    """List the machines of a page, the one that it starts with first. Raises `ShardlangError`."""
    listed = [Machine(load_hardware(DEFAULT), DEFAULT)]
    if isinstance(hardware, Hardware):
        listed = [Machine(hardware, hardware)]
    elif hardware is not None:
        listed = [Machine(load_hardware(hardware), hardware, split_shape(hardware)[1])]
    else:
        listed = [_named(p, p.hardware) for p in programs if p.hardware is not None] or listed
    for name in known_hardware():
        chip = load_hardware(name)
        listed.append(Machine(chip, name))
        listed.extend(Machine(load_hardware(v), v) for v in chip.variants if v != chip.basis)
    found: dict[str, Machine] = {}
    for machine in listed:
        found.setdefault(machine.name, machine)
    return list(found.values())


def _named(program: Program, name: str) -> Machine:
    """Give the machine that a program names."""
    chip = hardware_of(program.source, name)
    if not program.slice:
        return Machine(chip, chip)
    beside = Path(program.source.name).parent / name
    path = beside if Path(str(beside).partition("#")[0]).exists() else name
    return Machine(chip, f"{path} {shape_text(program.slice)}", program.slice)
