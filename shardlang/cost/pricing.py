"""Pricing: from a plan to its report, each step once, then the sums.

The bandwidth of an axis is `M_X*W_ici`, with M_X the number of hardware axes that it spans (its
`links`, 1 where nothing is said); that of several axes is the sum, parts of one axis counting once. A `@dcn` axis has `W_dcn` (times
its links, if it has more than one). In a collective over axes of both networks the slower governs:
it is priced as if all of it crossed the `@dcn` axes, once, since they share a chip's one way out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import cast

from shardlang.cost.bound import batch_of, compute_bound
from shardlang.cost.errors import BadEfficiency
from shardlang.cost.few_layers import held
from shardlang.cost.flops import counts, flops, multiplied
from shardlang.cost.formula import Formula, Sum
from shardlang.cost.hardware import slice_place
from shardlang.cost.local import local_bytes
from shardlang.cost.memory import few_layers, Layers, MemoryFormulas, OPTIMIZERS
from shardlang.cost.models import LATENCIES, Model, Moved, Price, price
from shardlang.cost.network import Network, wire, Wiring
from shardlang.cost.quantities import (
    CollectiveCost,
    ComputeCost,
    LARGEST,
    Memory,
    Quantity,
    together,
    Totals,
)
from shardlang.cost.report import Overlap, passes_of, Report
from shardlang.cost.rings import exposed, exposed_attention
from shardlang.cost.symbols import dims_and_axes, FIGURES, known_sizes, make_symbols
from shardlang.cost.traffic import contraction, fused
from shardlang.diagnostics import Diagnostic, Mistake, ShardlangError
from shardlang.hardware.catalogue import Hardware
from shardlang.hardware.errors import BadQuantity, NotSet, UnknownQuantity
from shardlang.hardware.figures import EFFICIENCIES
from shardlang.hardware.figures import FIGURES as CATALOGUE
from shardlang.hardware.topology import Topology
from shardlang.ir.ops import AllGather, AllReduce, Collective, Ring, RingAttention
from shardlang.ir.plan import Pass, Plan, Step
from shardlang.ir.size import Monomial
from shardlang.ir.types import Axis, promote
from shardlang.passes.leaves import not_used, not_weights
from shardlang.passes.normal import without_axes
from shardlang.passes.overlap import apart, gathered_ahead
from shardlang.passes.stages import stage_sums
from shardlang.source import Source, Span

SECTIONS: tuple[Pass, ...] = ("forward", "backward", "update")

WRAPPING = ("wrap_axis", "wrap_cube")
"""Figures that a slice depends on, and no formula has."""

UNUSED = frozenset({*CATALOGUE, *LATENCIES}).difference(WRAPPING, LATENCIES.values())
"""Figures that may be set, though no formula of the model has them."""

MAY_BE_ZERO = frozenset({*LATENCIES, "in_network"})
"""Figures that may be set to 0: no latency, no adding up in the switch."""


class Pricing:
    """Prices the steps of one plan: names first, then each step once, then the sums."""

    def __init__(
        self,
        plan: Plan,
        hardware: Hardware | None,
        model: Model,
        overlap: Overlap,
        sets: Mapping[str, float | Fraction],
        shape: tuple[int, ...] = (),
        *,
        hbm: bool = False,
        any_size: bool = False,
        named: Collection[str] = (),
        single: frozenset[str] = frozenset(),
    ) -> None:
        """Name everything and lay the mesh.

        With `hbm` no contraction takes less than what it reads and writes; `any_size` lays the mesh on
        nodes for any sizes of the axes; `named` are efficiencies that formulas have besides those in
        `sets`. The axes whose symbols are in `single` take no part in any collective, as if of size 1.
        """
        self.again = partial(
            _again,
            plan,
            hardware,
            model,
            overlap=overlap,
            sets=dict(sets),
            hbm=hbm,
            shape=shape,
            any_size=any_size,
            given=tuple(named),
        )
        self.roofline = hbm
        self.early = frozenset(map(id, gathered_ahead(plan)))
        self.single = single
        self.plan = plan
        self.hardware = hardware
        self.model = model
        self.overlap: Overlap = overlap
        self.warnings = list(plan.warnings)
        dims, self.axes, literals = dims_and_axes(plan)
        size = None if hardware is None else hardware.get("hbm")
        self.hbm = None if size is None else Fraction(size)
        self.own: tuple[str, ...] = tuple(getattr(model, "figures", ()))
        names = [info.axis.name for info in self.axes]
        shares = _efficiencies({*sets, *named}, {*dims, *names})
        self.symbols = make_symbols(dims, names, (*FIGURES, *self.own, *shares), literals=literals)
        self.info = {info.axis: info for info in self.axes}
        self.known: dict[str, Fraction] = {}
        self.ones: dict[str, Fraction] = {}
        self.exact = False
        self.any_size = any_size
        self.no_latency: list[str] = []
        self.topology = None if hardware is None else hardware.topology
        self.wiring = Wiring()
        self._values(sets, shape)
        self.network = Network(
            self.topology,
            self.wiring,
            self._parts(),
            lambda axis: self.symbols.monomial(Monomial.of(axis.name)),
            lambda axis: Monomial.of(self.symbols.links(axis)),
            self._figure,
            self.bandwidth,
        )

    # --- what is known ---

    def _values(self, sets: Mapping[str, float | Fraction], shape: tuple[int, ...]) -> None:
        sizes, figures = self._sort(sets)
        sizes = known_sizes(self.plan, self.axes, sizes)
        for name, value in sizes.items():
            if name in self.symbols.of:
                self.known[self.symbols.of[name]] = value
        self._lay(shape, sizes)
        for axis, info in self.info.items():
            links = self.symbols.links(axis)
            count = len(self.wiring.strands.get(info.wire, ())) or info.links
            self.known[links] = Fraction(count)
            if count == 1 and links not in figures:
                self.ones[links] = Fraction(1)
        for figure in self.own:
            if self.symbols.figures[figure] not in figures:
                self._own_figure(figure)
        if self.hardware is not None:
            for figure in FIGURES:
                value = self._peak() if figure == "C" else self.hardware.get(figure)
                if value is not None:
                    self.known[self.symbols.figures[figure]] = Fraction(value)
        self.known.update(figures)
        for name, symbol in self.symbols.renamed.items():
            self.warnings.append(f"'{name}' is written {symbol} in formulas")

    def _lay(self, shape: tuple[int, ...], sizes: Mapping[str, Fraction]) -> None:
        """Lay the mesh on the slice or on nodes; raises ShardlangError where it does not fit."""
        wiring = wire(self.topology, shape, self.axes, {} if self.any_size else sizes)
        if not isinstance(wiring, Wiring):
            name = "" if self.hardware is None else self.hardware.name
            place = slice_place(self.plan.program, name, shape)
            raise ShardlangError([Diagnostic(*place, wiring)])
        self.wiring = wiring

    def _parts(self) -> dict[Axis, tuple[Axis, ...]]:
        """List what shares the links of an axis: the parts that are not known to have size 1."""
        found: dict[Axis, tuple[Axis, ...]] = {}
        for axis in self.counting(self.info):
            wire = self.info[axis].wire
            found[wire] = (*found.get(wire, ()), axis)
        return found

    def _own_figure(self, figure: str) -> None:
        """Find the value of a figure that the model alone uses; a latency that is missing is 0."""
        if self.hardware is None:
            return
        named = LATENCIES.get(figure)
        value = self.hardware.get(named or figure)
        if value is None and named:
            self.no_latency.append(figure)
        if value is not None:
            self.known[self.symbols.figures[figure]] = Fraction(value)

    def _figure(self, figure: str) -> Monomial:
        """Give a figure of the hardware in a formula: 0 where the model or the chip has none."""
        symbol = self.symbols.figures.get(figure)
        if symbol is None or figure in self.no_latency:
            return Monomial(Fraction(0))
        return self.symbols.rate(figure)

    def _sort(
        self, sets: Mapping[str, float | Fraction]
    ) -> tuple[dict[str, Fraction], dict[str, Fraction]]:
        """Sort what is set into sizes, by their own names, and hardware figures, by symbols."""
        sizes: dict[str, Fraction] = {}
        figures: dict[str, Fraction] = {}
        own = set(self.symbols.figures.values())
        for name, given in sets.items():
            where = Source("--set", f"{name}={given}")
            try:
                value = Fraction(given)
            except (ValueError, OverflowError, TypeError):
                value = Fraction(0)
            if name in self.symbols.efficiencies and not 0 < value <= 1:
                mistake = BadEfficiency(name, str(given))
                raise ShardlangError([Diagnostic(where, Span(0, len(where.text)), mistake)])
            if value < 0 or (value == 0 and name not in MAY_BE_ZERO):
                mistake = BadQuantity(name, str(given))
                raise ShardlangError([Diagnostic(where, Span(0, len(where.text)), mistake)])
            if name in self.symbols.of:
                sizes[name] = value
            elif name in own:
                figures[name] = value
            elif name == "hbm":
                self.hbm = value
            elif name in ("node", "in_network") and self.own:
                self._switch(name, value)
            elif name in UNUSED:
                self.warnings.append(f"no formula uses {name}")
            else:
                mistake = self._not_set(name, own)
                raise ShardlangError([Diagnostic(where, Span(0, len(name)), mistake)])
        return sizes, figures

    def _not_set(self, name: str, own: Iterable[str]) -> Mistake:
        """Say why a name can't be set: nothing has it, or it is a figure of files alone."""
        if name in CATALOGUE:
            names = [symbol for symbol, figure in LATENCIES.items() if figure == name]
            return NotSet(name, names[0] if names else None)
        import difflib  # noqa: PLC0415  (for the error alone)

        near = difflib.get_close_matches(name, [*self.symbols.of, *own], n=1)
        return UnknownQuantity(name, near[0] if near else None)

    def _switch(self, name: str, value: Fraction) -> None:
        """Set what a node is: its chips, and whether its switch adds up."""
        had = self.topology or Topology("switch", axes=1, link=None, egress=None)
        if name == "in_network":
            self.topology = replace(had, in_network=value != 0)
            if had.kind != "switch":
                self.warnings.append("no formula uses in_network: no switch joins these chips")
        else:
            kind = "switch" if had.kind == "torus" else had.kind
            self.topology = replace(had, kind=kind, node=max(int(value), 1))

    def _peak(self) -> float | None:
        """Give C: the peak at the dtype of the contractions if they share one, else at bf16."""
        assert self.hardware is not None
        types = {
            promote(array.tensor.dtype for array in multiplied(step))
            for pass_, step in self.plan.steps()
            if counts(step, pass_)
        }
        names = {dtype.name for dtype in types}
        if len(names) == 1 and names != {"bf16"}:
            (name,) = names
            peak = self.hardware.peak(name)
            if peak is not None:
                self.warnings.append(
                    f"{self.symbols.figures['C']} is the {name} peak of {self.hardware.name}"
                )
                return peak
        if names - {"bf16"}:
            listed = ", ".join(sorted(names - {"bf16"}))
            peak = self.symbols.figures["C"]
            self.warnings.append(f"{peak} is the bf16 peak, also for contractions in {listed}")
        return self.hardware.get("C")

    def quantity(self, formula: Formula) -> Quantity:
        """Put a value beside a formula; what is priced with axes left out is read as formulas."""
        return Quantity(formula, None if self.single else formula.value(self.known))

    # --- one step ---

    def counting(self, axes: Iterable[Axis]) -> tuple[Axis, ...]:
        """Give the axes that are not known to have size 1."""
        symbols = ((axis, self.symbols.of[axis.name]) for axis in axes)
        return tuple(a for a, s in symbols if self.known.get(s) != 1 and s not in self.single)

    def collective(self, pass_: Pass, step: Step) -> CollectiveCost:
        """Price a collective."""
        move = step.moving
        axes = self.counting(cast("Collective", move.op).axes)
        name = self.symbols.monomial
        arrays = step.op.moves if isinstance(step.op, RingAttention) else 1
        moved = Moved(
            operand=name(local_bytes(move.inputs[0]) * arrays),
            result=name(local_bytes(move.output) * arrays),
            n=name(Monomial.of(*(axis.name for axis in axes))),
            levels=self.network.levels([self.info[axis] for axis in axes]),
        )
        match price(self.model, move, moved):
            case Price() as found:
                sent, time = found.sent, found.time
                self.exact = True
            case sent:
                time = sent / self.bandwidth(axes) if axes else sent
        if isinstance(step.op, Ring | RingAttention) and len(axes) > 1:
            alone = (sent / self.bandwidth((axis,)) for axis in axes)
            time = Formula.largest((time, *alone))
        repeats = self.plan.repeats(pass_, step)
        times = name(self.plan.times(pass_, step))
        bare = None
        if self.plan.overlaps:
            bare = self.quantity(self.exposed(step, time, moved.n) * times)
        if id(step) in self.early and step.loop is not None:
            layers = name(step.loop.layers)
            bare = self.quantity(time * (times / layers))  # the first layer's
            # Once more, by the last one for nobody.
            times = times / layers * Sum.of((layers, Monomial()))
        sent, time = self.quantity(sent * times), self.quantity(time * times)
        return CollectiveCost(pass_, step, sent, time, repeats, bare)

    def stage_sums(self) -> Iterator[CollectiveCost]:
        """Price what the stages of a pipeline add up at the end, once a step: it is in no total."""
        pipeline, many = self.plan.program.pipeline, self.plan.program.microbatches
        if pipeline is None or not self.counting(pipeline.axes):
            return
        name = self.symbols.monomial
        for each in stage_sums(self.plan, backward=bool(self.plan.backward)):
            step = Step(AllReduce(pipeline.axes), (each.array,), each.array, "stage")
            dims = ((each.loop, each.loop is not None), (many, each.many))
            times = name(Monomial.of(*(d.name for d, counts in dims if counts and d is not None)))
            found = self.collective("update", step)
            sent, time = (self.quantity(q.formula * times) for q in (found.bytes, found.time))
            yield replace(found, bytes=sent, time=time, exposed=None)

    def exposed(self, step: Step, time: Formula, n: Monomial) -> Formula:
        """Give what of a collective's time nothing hides, each time that it is done.

        Of what layers gather of their own parameters that is all, where it is not prefetched, since a layer
        begins when the one before has ended. What else is not critical is hidden.
        """
        if not isinstance(step.op, Ring | RingAttention):
            own = step.loop is not None and isinstance(step.op, AllGather)
            own = own and step.inputs[0] in {leaf.array for leaf in self.plan.program.leaves}
            return time if step.critical or own else Formula()
        math = Formula.of(self.symbols.monomial(flops(step))) / self.symbols.rate("C")
        if isinstance(step.op, RingAttention):
            return exposed_attention(time, math, n, back=step.op.back) if time else time
        return exposed(time, math, n) if time else time

    def bandwidth(self, axes: Iterable[Axis]) -> Monomial:
        """Give the bandwidth of a collective over the axes, in bytes/s."""
        wires = {self.info[axis].wire: self.info[axis] for axis in axes}
        infos = sorted(wires.values(), key=self.axes.index)  # equal sums look alike
        slow = [info for info in infos if info.network == "dcn"]
        if slow:
            links = [i for i in slow if i.links != 1 or self.symbols.links(i.axis) not in self.ones]
            egress = self.symbols.rate("W_dcn")
            if links:
                egress *= Sum.of(Monomial.of(self.symbols.links(i.axis)) for i in links)
            return egress
        factor = Sum.of(Monomial.of(self.symbols.links(info.axis)) for info in infos)
        return self.symbols.rate("W_ici") * factor

    def compute(self, pass_: Pass, step: Step) -> ComputeCost:
        """Count a compute step, and price it where it is a contraction."""
        repeats = self.plan.repeats(pass_, step)
        times = self.symbols.monomial(self.plan.times(pass_, step))
        work = Formula.of(self.symbols.monomial(flops(step))) * times
        counted = counts(step, pass_)
        moved = self.named(contraction(step)) * times if counted else Formula()
        math = self.quantity(work / self.symbols.rate("C") if counted else Formula())
        hbm = self.quantity(moved / self.symbols.rate("W_hbm"))
        known = counted and math.value is not None and hbm.value is not None
        time = Formula.largest((math.formula, hbm.formula)) if self.roofline else math.formula
        return ComputeCost(
            pass_,
            step,
            self.quantity(work),
            counted,
            self.quantity(moved),
            self.quantity(time),
            (hbm.value or 0) > (math.value or 0) if known else None,
            repeats,
        )

    # --- the whole ---

    def report(self) -> Report:
        """Price everything."""
        steps = list(self.plan.steps())
        collectives = [self.collective(p, step) for p, step in steps if step.is_collective]
        compute = [self.compute(p, step) for p, step in steps if step.is_compute]
        passes = passes_of(self.plan)
        groups = {name: self.groups(collectives, name) for name in passes}
        batch = batch_of(self.plan, self.symbols)
        lying = self.lying()
        layers = Layers.of(lying, {})
        sizes = {} if self.any_size else self._own_sizes()
        found = held(lying, sizes, layers)
        own = found.parts
        load = self.named(own.parameters + own.caches) / self.symbols.rate("W_hbm")
        flow = Layers.of(apart(lying), {}) if self.plan.has_rings else layers
        least = {name: self.least(flow, own, name) for name in SECTIONS}
        totals: dict[str, Totals] = {}
        for name in passes:
            mine = [c for c in compute if name in (c.pass_, "total")]
            work = Formula.sum(c.flops.formula for c in mine if c.counted)
            other = Formula.sum(c.flops.formula for c in mine if not c.counted)
            math = Formula.sum(c.time.formula for c in mine if c.counted)
            moved = Formula.sum(c.moved.formula for c in mine if c.counted)
            comms = self.overlapping(groups[name])
            waits = [c for c in collectives if name in (c.pass_, "total") and c.exposed]
            bare = Formula.sum(c.exposed.formula for c in waits if c.exposed)
            formulas = {
                "flops": work,
                "elementwise": other,
                "bytes": Formula.sum(sent for sent, _ in groups[name].values()),
                "t_math": math,
                "t_comms": comms,
                **({"t_exposed": bare} if self.plan.overlaps else {}),
                "t_overlapped": Formula.largest((math + bare, comms)),
                "t_serial": math + comms,
                "t_load": load,
                "hbm_bytes": moved,
                "t_hbm": moved / self.symbols.rate("W_hbm"),
                "fused_bytes": Formula.sum(least[s] for s in SECTIONS if name in (s, "total")),
            }
            condition = compute_bound(work, comms, self.symbols, batch, self.ones, self.known)
            totals[name] = Totals({k: self.quantity(f) for k, f in formulas.items()}, condition)
        holding = Memory(
            {key: self.quantity(self.named(each)) for key, each in found.formulas.items()}
        )
        self.check(totals, holding)
        short = self.short(few_layers(lying, sizes) if found.alone else ())
        return Report(
            plan=self.plan,
            hardware=self.hardware,
            model=self.model.name,
            overlap=self.overlap,
            hbm=self.roofline,
            capacity=self.hbm,
            symbols=self.symbols,
            known=self.known,
            axes=tuple(self.axes),
            collectives=tuple(collectives),
            compute=tuple(compute),
            totals=totals,
            memory=holding,
            alone=found.alone,
            lying=lying,
            ends=tuple(self.stage_sums()),
            warnings=tuple(dict.fromkeys(self.warnings)),
            slice=self.wiring.slice if self.exact or self.wiring.strands else None,
            notes=tuple(self.notes(totals["total"].quantity("t_comms").formula.names)),
            fixed=self.fixed() | short,
            exact=self.exact,
            varies=bool(self.wiring.inside or short),
            again=self.again,
            groups=groups,
        )

    def least(self, layers: Layers, own: MemoryFormulas, section: Pass) -> Formula:
        """Give the least bytes that a pass reads and writes, of all microbatches; an update the state as well."""
        moved = fused(layers, section)
        dim = self.plan.program.microbatches
        if section == "update":
            moved += own.optimizer * Monomial(Fraction(2 if self.plan.states else 0))
        elif dim is not None:
            moved *= Monomial.of(dim.name)
        return self.named(moved)

    def lying(self) -> Plan:
        """Give the plan without the axes that are known to have size 1: over them nothing is gathered."""
        counting = self.counting(self.info)
        ones = frozenset(axis for axis in self.info if axis not in counting)
        if not ones:
            return self.plan
        plan = without_axes(self.plan, ones)
        forward = tuple(step for step in plan.forward if step.output not in step.inputs)
        backward = tuple(step for step in plan.backward if step.output not in step.inputs)
        update = tuple(step for step in plan.update if step.output not in step.inputs)
        return replace(plan, forward=forward, backward=backward, update=update)

    def groups(
        self, collectives: Iterable[CollectiveCost], pass_: str
    ) -> dict[tuple[str, ...], tuple[Formula, Formula]]:
        """Add up bytes and seconds by the axes that a collective runs over, in mesh order."""
        found: dict[tuple[str, ...], list[CollectiveCost]] = {}
        for priced in collectives:
            axes = set(self.counting(cast("Collective", priced.step.op).axes))
            if axes and pass_ in (priced.pass_, "total"):
                key = tuple(self.symbols.of[i.axis.name] for i in self.axes if i.axis in axes)
                found.setdefault(key, []).append(priced)
        return {
            key: (
                Formula.sum(c.bytes.formula for c in group),
                Formula.sum(c.time.formula for c in group),
            )
            for key, group in found.items()
        }

    def overlapping(self, groups: Mapping[tuple[str, ...], tuple[Formula, Formula]]) -> Formula:
        """Give T_comms of what runs over each set of axes."""
        wires = {self.symbols.of[info.axis.name]: info.wire for info in self.axes}
        times = {key: seconds for key, (_, seconds) in groups.items()}
        return together(times, wires if self.overlap else None)

    def named(self, formula: Formula) -> Formula:
        """Write a formula of dims and axes in the report's symbols."""
        if self.symbols.plain:
            return formula
        return Formula.sum(
            (
                Formula.of(*(self.symbols.monomial(term) for term in formula.terms)),
                *(
                    Formula.largest(self.named(option) for option in options)
                    for options in formula.maxima
                ),
            )
        )

    def check(self, totals: Mapping[str, Totals], held: Memory) -> None:
        """Warn of what the figures leave out, or can't say."""
        program = self.plan.program
        optimizer = program.optimizer
        if optimizer is not None and optimizer not in OPTIMIZERS:
            listed = ", ".join(OPTIMIZERS)
            self.warnings.append(
                f"the optimizer '{optimizer}' is not known ({listed}): its state counts 0 bytes"
            )
        self.warnings.extend(self.leaves())
        if self.hardware is not None:
            self.warnings.extend(self.crowded())
            used = frozenset[str]().union(
                *(t.quantity("t_comms").formula.names for t in totals.values())
            )
            for figure in (*FIGURES, *self.own):
                symbol = self.symbols.figures[figure]
                if symbol in used and symbol not in self.known:
                    self.warnings.append(f"{self.hardware.name} has no figure {figure}")
        load, least = (totals["forward"].quantity(k).value for k in ("t_load", "t_overlapped"))
        serves = bool(held.quantity("caches").formula) and not self.roofline
        if serves and load is not None and least is not None and load > least:
            self.warnings.append(
                "reading weights and caches alone takes longer than T_overlapped of the forward pass:"
                " --hbm counts it"
            )
        values = [q.value for t in totals.values() for q in t.quantities.values()]
        values += [q.value for q in held.quantities.values()]
        if any(value is not None and value > LARGEST for value in values):
            self.warnings.append("some values are beyond 1e300 and are left out")

    def crowded(self) -> Iterator[str]:
        """Warn where the mesh needs more axes of the interconnect than the chip has."""
        assert self.hardware is not None
        have = self.hardware.get("ici_axes")
        if self.exact and self.topology is not None and self.topology.kind != "torus":
            return
        spans: dict[Axis, Fraction] = {}
        for info in self.axes:
            size = self.known.get(self.symbols.of[info.axis.name])
            if info.network == "ici" and size is not None and size > 1:
                spans[info.wire] = self.known[self.symbols.links(info.axis)]
        needed = sum(spans.values())
        if have is not None and needed > have:
            listed = ", ".join(f"{n} ({m})" if m != 1 else str(n) for n, m in spans.items())
            yield (
                f"the mesh axes {listed} take {needed} axes of the interconnect, and"
                f" {self.hardware.name} has {have:g}: their times count links of its own for each,"
                " and can be too short"
            )

    def notes(self, used: frozenset[str]) -> Iterator[str]:
        """Say what the model counts, and what it takes as given; `used` are the names in T_comms."""
        if self.exact:
            note = getattr(self.model, "note", "")
            if note:
                yield note
            beside = {"T_hop": "W_ici", "T_dcn": "W_dcn"}
            lacking = [f for f in self.no_latency if self.symbols.figures[beside[f]] in used]
            if lacking and self.hardware is not None:
                yield f"{self.hardware.name} has no {' and no '.join(lacking)}: taken as 0 s"
            yield from self._adding()
        if self.exact or self.wiring.strands:
            yield from self.wiring.remarks

    def _adding(self) -> Iterator[str]:
        """Say how the AllReduces inside a node behind a switch are taken."""
        topology = self.topology
        inside = (
            self.info[axis].network == "ici"
            for _, step in self.plan.steps()
            if isinstance(step.op, AllReduce)
            for axis in self.counting(step.op.axes)
        )
        if topology is None or topology.kind != "switch" or not any(inside):
            return
        if not getattr(self.model, "in_network", False):
            return
        if topology.in_network:
            yield "the switch of a node adds up AllReduces; --set in_network=0 has them in rings"
        else:
            yield "AllReduces add up in the chips; --set in_network=1 lets a node's switch add up"

    def fixed(self) -> frozenset[str]:
        """Give the axes, as symbols, whose sizes the formulas rest on."""
        if not self.exact and not self.wiring.strands:
            return frozenset()
        return frozenset(self.symbols.of[axis.name] for axis in self.wiring.fixed)

    def _own_sizes(self) -> dict[str, Fraction]:
        """Give what is known of the dims and axes, by their own names."""
        of = self.symbols.of.items()
        return {name: self.known[symbol] for name, symbol in of if symbol in self.known}

    def short(self, few: Collection[int]) -> frozenset[str]:
        """Give what counts the layers of blocks, by their numbers, whose own number memory rests on."""
        blocks = (block for block in self.plan.program.blocks if block.number in few)
        return frozenset(self.symbols.of[block.dim.name] for block in blocks)

    def leaves(self) -> Iterator[str]:
        """Warn of leaves that may not count as was meant, or that nothing uses."""
        program = self.plan.program
        for _, mistake in not_weights(program):
            yield f"{mistake.message()}; {mistake.hint()}"
        for _, unused in not_used(program):
            yield unused.message()


def _efficiencies(given: Collection[str], taken: Collection[str]) -> tuple[str, ...]:
    """Give the efficiencies that are meant: a dim or an axis of that name goes first."""
    return tuple(
        name
        for name in EFFICIENCIES.values()
        if (name in given and name not in taken) or (name in taken and f"{name}_hw" in given)
    )


def _again(
    plan: Plan,
    hardware: Hardware | None,
    model: Model,
    *,
    overlap: Overlap,
    sets: Mapping[str, float | Fraction],
    hbm: bool,
    shape: tuple[int, ...],
    any_size: bool,
    given: tuple[str, ...],
    named: Collection[str] = (),
    single: frozenset[str] = frozenset(),
    free: bool = False,
) -> Report:
    """Price once more, as `Report.again` says."""
    return Pricing(
        plan,
        hardware,
        model,
        overlap,
        sets,
        () if free else shape,
        hbm=hbm,
        any_size=any_size or free,
        named=(*given, *named),
        single=single,
    ).report()
