"""The best meshes and layouts for so many chips: which axes of which sizes, and where everything lies.

Every way to write the number of chips as a product of the mesh axes is a mesh. On each the layouts of leaves
and outputs are searched (`placement`), with no price on memory first, then with the least one at which the plan fits
a device; the program with these layouts is planned as any other (`program`), with a proof. The layouts that
the program has itself are tried on every mesh as well. Answers are ranked by T_overlapped, then T_serial, and
those that take and hold the same are listed once.

Times are those of `cost` with its `link` model, which knows hops, nodes and slices. Axes that reach beyond a
node or a pod (the last ones of the mesh lie inside) are planned as `@dcn` where the program has not said so. Left
out are meshes that do not fit the slice that the hardware names, or need more axes of a torus than there are, and
those whose stages the schedule of a pipeline refuses. What has no answer of its own is named with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from itertools import islice
from math import gcd, prod
from time import monotonic
from typing import Literal

from shardlang.cost.network import wire, Wiring
from shardlang.cost.report import cost
from shardlang.diagnostics import of_kind, ShardlangError
from shardlang.hardware.catalogue import load_hardware
from shardlang.hardware.errors import NotLaid, SliceSize
from shardlang.hardware.slices import split_shape
from shardlang.hardware.topology import Topology
from shardlang.ir.plan import Plan
from shardlang.ir.program import Program
from shardlang.ir.types import Array, Axis, AxisInfo, Mesh
from shardlang.passes import lower
from shardlang.pipelines.schedules import SCHEDULES
from shardlang.planner.errors import (
    late,
    NoHardware,
    NoMesh,
    NoStages,
    placed,
    short_by,
    SizesNeeded,
    TooMuchMemory,
    wrong,
)
from shardlang.planner.memory import fitting, peak
from shardlang.planner.placement import anywhere, arrays_of, place
from shardlang.planner.prices import Moved, Prices, prices_of
from shardlang.planner.problem import OutOfTimeError, UnplannableError
from shardlang.planner.program import aim_of, best_plan
from shardlang.planner.reshard import check_layout
from shardlang.planner.solve import Aim

NAMES = ("X", "Y", "Z", "V")
"""What axes are called where the program has none."""

POWERS = range(-14, 8)
"""Prices of a byte held, as powers of 2 of what one costs that is sent."""

EXPECTED = (TooMuchMemory, SliceSize, NotLaid)
"""Mistakes of a candidate that leave the others as they are."""

NAMED = 4
"""So many meshes are named that are not listed for one reason."""

SHORT = "nothing that was tried fits the memory"
ALIKE = "takes and holds the same as one that is listed"
LATE = "time was over (--budget)"
UNEVEN = "a dim is not split evenly there by the layouts of the text"

BUDGET = 120.0
"""Seconds that a search may take by default."""


@dataclass(frozen=True)
class Candidate:
    """A mesh with layouts, and its best plan.

    Times are in seconds, at peak rates; `memory` are the bytes that a device holds at most. `written` says
    that the layouts are those of the program.
    """

    plan: Plan
    arrays: tuple[Array, ...]
    t_math: Fraction
    t_comms: Fraction
    memory: Fraction
    written: bool

    @property
    def mesh(self) -> dict[str, int]:
        """The sizes of the axes."""
        return {info.axis.name: info.size or 1 for info in self.plan.program.mesh.axes}

    @property
    def t_overlapped(self) -> Fraction:
        """The larger of T_math and T_comms, in seconds."""
        return max(self.t_math, self.t_comms)

    @property
    def t_serial(self) -> Fraction:
        """The sum of T_math and T_comms, in seconds."""
        return self.t_math + self.t_comms


@dataclass(frozen=True)
class Ranking:
    """The best candidates, best first, and what was looked at.

    `limit` are the bytes that a device has, `short` the least that something needed where nothing fits.
    `finished` says whether every mesh was looked at.
    """

    chips: int
    hardware: str
    limit: Fraction | None
    candidates: tuple[Candidate, ...]
    meshes: int
    finished: bool
    notes: tuple[str, ...] = ()


def best_meshes(
    program: Program,
    chips: int,
    *,
    hardware: str | None = None,
    axes: int | None = None,
    strategy: Literal["book", "optimal"] = "optimal",
    objective: Literal["time", "serial"] = "time",
    prices: str | Prices = "link",
    memory_limit: Fraction | float | None = None,
    keep_gathered: bool | None = None,
    layouts: bool = True,
    forward_only: bool = False,
    hbm: bool = False,
    budget: float | None = None,
) -> Ranking:
    """Search meshes of so many chips and layouts on them.

    With `hbm` the times are those of the roofline: no contraction takes less than its reads and writes.

    The plan on each is by `strategy`; answers are ranked by T_overlapped, or T_serial first. `axes` is the most mesh axes (by default those of the program, else 2); `layouts` says whether layouts
    are searched, or the program's own taken alone. The memory of a device is `memory_limit`, else the
    chip's. Raises `ShardlangError`: sizes (SH351), hardware (SH356) or meshes (SH359) that are missing, or
    SH357 where nothing fits.
    """
    of_kind(program, Program, "best_meshes takes a program, as sl.parse gives it")
    of_kind(chips, int, "chips are counted by a whole number")
    if chips < 1:
        raise ValueError(f"there is at least one chip, not {chips}")
    named = hardware or program.hardware
    try:
        if named is None:
            raise wrong(NoHardware())
        missing = [info.dim.name for info in program.dims if info.size is None]
        if missing:
            raise wrong(SizesNeeded(tuple(missing), "the best mesh"))
        size = load_hardware(named).get("hbm")
        limit = memory_limit if memory_limit is not None else size
        search = _Search(
            program,
            named,
            hardware,
            _Asked(strategy, objective, prices_of(prices), keep_gathered, forward_only, hbm),
            None if limit is None else Fraction(limit),
            monotonic() + (BUDGET if budget is None else budget),
        )
        return search.run(chips, _infos(program, axes), layouts=layouts)
    except ShardlangError as error:
        raise placed(error, program) from None


def _infos(program: Program, axes: int | None) -> tuple[AxisInfo, ...]:
    """Give the axes whose sizes are searched and, first, those that cross the data-centre network."""
    own = program.mesh.axes
    fixed = [info for info in own if info.network == "dcn"]
    free = [info for info in own if info.network != "dcn"]
    count = axes or len(free) or 2
    taken = {info.dim.name for info in program.dims} | {info.axis.name for info in own}
    spare = (name for name in NAMES if name not in taken)
    free += [AxisInfo(Axis(name)) for name in islice(spare, max(count - len(free), 0))]
    return (*fixed, *free[:count])


def factorisations(count: int, parts: int) -> Iterator[tuple[int, ...]]:
    """Give every way to write a number as a product of so many factors, in order, 1 among them."""
    if parts == 1:
        yield (count,)
        return
    for first in range(count, 0, -1):
        if count % first == 0:
            for rest in factorisations(count // first, parts - 1):
                yield (first, *rest)


@dataclass(frozen=True)
class _Asked:
    """How plans are made, and what is least."""

    strategy: Literal["book", "optimal"]
    objective: Literal["time", "serial"]
    prices: Prices
    keep_gathered: bool | None
    forward_only: bool
    hbm: bool

    def plan(self, program: Program, hardware: str, limit: Fraction | None, budget: float) -> Plan:
        """Plan a program; raises `ShardlangError` where it does not fit."""
        if self.strategy == "book":
            made = lower(
                program, "book", keep_gathered=self.keep_gathered, forward_only=self.forward_only
            )
            return made if limit is None else fitting(made, limit)
        return best_plan(
            program,
            prices=self.prices,
            objective=self.objective,
            hardware=hardware,
            budget=budget,
            memory_limit=limit,
            keep_gathered=self.keep_gathered,
            forward_only=self.forward_only,
        )

    def key(self, each: Candidate) -> tuple[Fraction | bool, ...]:
        """Give what candidates are ranked by; of equals the program's own layouts come first."""
        times = (each.t_overlapped, each.t_serial)
        return (
            *(times if self.objective == "time" else times[::-1]),
            each.memory,
            not each.written,
        )


@dataclass
class _SoFar:
    """What a search has found, what did not fit, and which meshes have no answer, by the reason."""

    found: list[Candidate] = field(default_factory=list[Candidate])
    errors: list[ShardlangError] = field(default_factory=list[ShardlangError])
    notes: dict[str, None] = field(default_factory=dict[str, None])
    unlisted: dict[str, list[Mesh]] = field(default_factory=dict[str, list[Mesh]])
    shapes: dict[tuple[tuple[int, str, int], ...], str] = field(
        default_factory=dict[tuple[tuple[int, str, int], ...], str]
    )
    """The shapes whose layouts were searched, and why another mesh of the same shape has no answer."""

    def leave_out(self, mesh: Mesh, why: str) -> None:
        """Take note of a mesh that is not listed."""
        self.unlisted.setdefault(why, []).append(mesh)

    @property
    def said(self) -> tuple[str, ...]:
        """What there is to say besides the answers."""
        return (*self.notes, *(_not_listed(own, why) for why, own in self.unlisted.items()))


@dataclass
class _Search:
    """One search, with its clock."""

    program: Program
    hardware: str
    given: str | None
    asked: _Asked
    limit: Fraction | None
    end: float

    def run(self, chips: int, infos: Sequence[AxisInfo], *, layouts: bool) -> Ranking:
        """Look at every mesh: at the program's own layouts, then at all."""
        so_far = _SoFar()
        every = self._possible(chips, infos, so_far)
        meshes: list[Mesh] = []
        for mesh in every:
            refused = self._refused(mesh)
            if refused is None:
                meshes.append(mesh)
            else:
                so_far.leave_out(mesh, refused)
        if not meshes:
            raise wrong(NoStages(chips, next(iter(so_far.unlisted))))
        done = 0
        for number, mesh in enumerate(meshes):
            if monotonic() > self.end and (so_far.found or so_far.errors):
                break
            done += 1
            share = monotonic() + max(self.end - monotonic(), 1.0) / (len(meshes) - number) * 2
            self._look(mesh, so_far, share, layouts=layouts)
        if not so_far.found and so_far.errors:
            error = min(so_far.errors, key=short_by)
            raise error if done == len(meshes) else late(error)
        if not so_far.found:
            raise wrong(NoMesh(chips, ()))
        ranked = tuple(_distinct(sorted(so_far.found, key=self.asked.key)))
        listed = [each.mesh for each in ranked]
        for mesh in dict.fromkeys(each.plan.program.mesh for each in so_far.found):
            if _sizes(mesh) not in listed:
                so_far.leave_out(mesh, ALIKE)
        return Ranking(
            chips,
            self.hardware,
            self.limit,
            ranked,
            len(every),
            done == len(meshes),
            so_far.said,
        )

    def _possible(self, chips: int, infos: Sequence[AxisInfo], so_far: _SoFar) -> list[Mesh]:
        """Give the meshes of so many chips that these have links for; raises where there is none."""
        inside = (self._inside(mesh) for mesh in _meshes(chips, infos))
        meshes = [mesh for mesh in inside if mesh is not None]
        possible = [mesh for mesh in meshes if self._wired(mesh)]
        if possible and len(possible) < len(meshes):
            meshes = possible
            axes = f"{self.hardware} has {self._axes()} axes of the interconnect"
            so_far.notes[f"{axes}: no mesh takes more"] = None
        if not meshes:
            raise wrong(NoMesh(chips, tuple(i.axis.name for i in infos if i.network == "dcn")))
        return meshes

    def _look(self, mesh: Mesh, so_far: _SoFar, until: float, *, layouts: bool) -> None:
        """Plan the program on a mesh: with its own layouts and, once for all meshes of a shape, the best ones."""
        before, failed = len(so_far.found), len(so_far.errors)
        written, shape = self._written(mesh), _shape(mesh)
        programs = [] if written is None else [(written, True)]
        if layouts and shape not in so_far.shapes:
            so_far.shapes[shape] = SHORT
            try:
                programs += [(each, False) for each in self._places(mesh, until)]
            except UnplannableError as said:
                so_far.notes[f"layouts are not searched: {said}; those of the text are taken"] = (
                    None
                )
                so_far.shapes[shape] = UNEVEN
            except OutOfTimeError:
                so_far.shapes[shape] = LATE
        why = so_far.shapes.get(shape, UNEVEN)
        for each, own in programs:
            try:
                so_far.found.append(self._candidate(each, written=own, until=until))
                if not own:
                    so_far.shapes[shape] = ALIKE
            except ShardlangError as error:
                if not all(isinstance(d.mistake, EXPECTED) for d in error.diagnostics):
                    raise
                so_far.errors.append(error)
        if len(so_far.found) == before:
            so_far.leave_out(mesh, SHORT if len(so_far.errors) > failed else why)

    def _refused(self, mesh: Mesh) -> str | None:
        """Say why a pipeline has no schedule on a mesh; None where it has one, or there is no pipeline."""
        block = next((b for b in self.program.blocks if b.pipeline is not None), None)
        if block is None or block.pipeline is None:
            return None
        pipeline, sizes = block.pipeline, self.program.sizes.known
        stages = prod(mesh.sizes.get(axis.name) or 1 for axis in pipeline.axes)
        layers, many = sizes.get(block.dim.name), self.program.microbatches
        if layers is not None and layers % (stages * pipeline.chunks):
            chunks = f" of {pipeline.chunks} chunks each" if pipeline.chunks > 1 else ""
            return f"{block.dim}={layers} layers can't be divided into {stages} stages{chunks}"
        microbatches = 1 if many is None else sizes.get(many.name)
        if stages == 1 or microbatches is None:
            return None
        row = SCHEDULES[pipeline.schedule]
        mistake = row.mistake(stages, microbatches, pipeline.chunks)
        return None if mistake is None else mistake.message()

    @property
    def shape(self) -> tuple[int, ...]:
        """The slice that the hardware names, empty where none is given."""
        shape = split_shape(self.hardware)[1]
        return shape or (self.program.slice if self.given is None else ())

    @cached_property
    def topology(self) -> Topology | None:
        """How the chips are joined."""
        return load_hardware(self.hardware).topology

    def _aim(self, program: Program) -> Aim:
        return aim_of(program, "time", self.hardware, self.asked.prices)

    def _inside(self, mesh: Mesh) -> Mesh | None:
        """Give a mesh with the bandwidths that its axes have: what `links` and `@dcn` stand for in prices.

        On a slice an axis has as many links as axes of the slice that it takes; a mesh that does not fit is
        None. The last axes of a mesh lie inside a node or a pod. One that reaches beyond has the ways out of all
        chips along it inside. What the program itself says of `@dcn` stays.
        """
        topology = self.topology
        if self.shape:
            sizes = {name: Fraction(size) for name, size in mesh.sizes.items()}
            wiring = wire(topology, self.shape, mesh.axes, sizes)
            if not isinstance(wiring, Wiring):
                return None
            strands = {axis: len(own) for axis, own in wiring.strands.items()}
            return Mesh(tuple(replace(i, links=strands.get(i.wire) or i.links) for i in mesh.axes))
        if topology is None or topology.node is None or any(i.network == "dcn" for i in mesh.axes):
            return mesh
        room, infos = topology.node, list[AxisInfo]()
        for info in reversed(mesh.axes):
            size = info.size or 1
            if size <= room:
                infos.append(info)
                room //= size
            else:
                infos.append(replace(info, network="dcn", links=gcd(size, room)))
                room = 1
        return Mesh(tuple(reversed(infos)))

    def _axes(self) -> int | None:
        """Give how many axes the interconnect has, where it is a torus."""
        topology = self.topology
        return topology.axes if topology is not None and topology.kind == "torus" else None

    def _wired(self, mesh: Mesh) -> bool:
        """Say whether the chips have links for each axis of a mesh."""
        most = self._axes()
        inside = [i for i in mesh.axes if i.network == "ici" and (i.size or 1) > 1]
        return most is None or sum(info.links for info in inside) <= most

    def _written(self, mesh: Mesh) -> Program | None:
        """Give the program on a mesh with its own layouts; None where a split is uneven there."""
        if not self.program.mesh.axes:
            return None
        made = replace(self.program, mesh=mesh)
        known = dict(made.sizes.known)
        book_arrays = [leaf.array for leaf in made.leaves]
        book_arrays += [Array(s.result, s.target) for s in made.statements if s.target is not None]
        try:
            for array in book_arrays:
                check_layout(array, mesh, known)
        except ShardlangError:
            return None
        return made

    def _places(self, mesh: Mesh, until: float) -> list[Program]:
        """Give the program with the best layouts without regard to memory, and with the best that fit."""
        bare = anywhere(replace(self.program, mesh=mesh))
        aim = self._aim(bare)
        kept: list[Program] = []

        def at(lean: Fraction) -> tuple[Program, bool]:
            found = place(
                bare,
                aim.prices,
                aim.rate,
                lean=lean,
                forward_only=self.asked.forward_only,
                late=lambda: monotonic() > until,
            )
            fits = self._fits(found)
            if fits:
                kept.append(found)
            return found, fits

        found, fits = at(Fraction(0))
        if fits:
            return [found]
        unit = self._unit(mesh, aim)
        low, high = POWERS[0], POWERS[-1]
        try:
            found, fits = at(unit * Fraction(2) ** high)
        except OutOfTimeError:
            return [found]
        if not fits:
            return [found]
        while high - low > 1 and monotonic() < until:
            middle = (low + high) // 2
            try:
                _, fits = at(unit * Fraction(2) ** middle)
            except OutOfTimeError:
                break
            low, high = (low, middle) if fits else (middle, high)
        return kept

    def _unit(self, mesh: Mesh, aim: Aim) -> Fraction:
        """Give the seconds of a byte sent over the first axis that is larger than 1."""
        axes = tuple(info for info in mesh.axes if (info.size or 1) > 1)[:1]
        if not axes:
            return Fraction(1, 10**12)
        many = axes[0].size or 1
        return Fraction(aim.prices.all_gather(Moved(Fraction(1, many), Fraction(1), axes, many)))

    def _fits(self, program: Program) -> bool:
        if self.limit is None:
            return True
        return peak(lower(program, "book", forward_only=self.asked.forward_only)) <= self.limit

    def _candidate(self, program: Program, *, written: bool, until: float) -> Candidate:
        """Plan a program; raises `ShardlangError` where it does not fit."""
        budget = max(until - monotonic(), 0.5)
        plan = self._plain(self.asked.plan(program, self.hardware, self.limit, budget))
        report = cost(plan, hardware=self.given, model="link", hbm=self.asked.hbm)
        whole = report.total.quantities if report.pipeline is None else report.pipeline.times
        math, comms = (whole[key].value or Fraction(0) for key in ("t_math", "t_comms"))
        return Candidate(plan, arrays_of(program, plan), math, comms, peak(plan), written)

    def _plain(self, plan: Plan) -> Plan:
        """Give a plan on the mesh as the program has it: `cost` knows slices and nodes by itself.

        On a torus the axes that reach beyond a pod stay `@dcn`.
        """
        own = {info.axis: info for info in self.program.mesh.axes}
        torus = self.topology is not None and self.topology.kind == "torus"

        def plain(info: AxisInfo) -> AxisInfo:
            given = own.get(info.axis, AxisInfo(info.axis))
            beyond = torus and info.network == "dcn"
            return replace(given, size=info.size, network="dcn" if beyond else given.network)

        mesh = Mesh(tuple(plain(info) for info in plan.program.mesh.axes))
        return replace(plan, program=replace(plan.program, mesh=mesh))


def _meshes(chips: int, infos: Sequence[AxisInfo]) -> Iterator[Mesh]:
    """Give the meshes of so many chips: axes across the data-centre network keep their sizes."""
    free = [info for info in infos if info.network != "dcn" or info.size is None]
    fixed = prod(info.size or 1 for info in infos if info not in free)
    if chips % fixed:
        return
    if not free:
        if chips == fixed:
            yield Mesh(tuple(infos))
        return
    for sizes in factorisations(chips // fixed, len(free)):
        given = dict(zip((info.axis for info in free), sizes, strict=True))
        yield Mesh(tuple(replace(i, size=given.get(i.axis, i.size)) for i in infos))


def _sizes(mesh: Mesh) -> dict[str, int]:
    return {info.axis.name: info.size or 1 for info in mesh.axes}


def _not_listed(meshes: Sequence[Mesh], why: str) -> str:
    """Say which meshes have no answer of their own, and why."""
    names = [", ".join(f"{n}={size}" for n, size in _sizes(mesh).items()) for mesh in meshes]
    more = f"; and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"not listed: {'; '.join(names[:NAMED])}{more}: {why}"


def _shape(mesh: Mesh) -> tuple[tuple[int, str, int], ...]:
    """Give what two meshes have alike on which layouts are the same but for the axes' names."""
    return tuple(
        sorted((info.size or 1, info.network, info.links) for info in mesh.axes if info.size != 1)
    )


def _distinct(ranked: Sequence[Candidate]) -> Iterator[Candidate]:
    """Leave out candidates that come to the same as a better one."""
    seen: set[object] = set()
    for each in ranked:
        what = (each.t_math, each.t_comms, each.memory)
        if what not in seen:
            seen.add(what)
            yield each
