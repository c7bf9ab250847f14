"""A report as text for people: tables that fit the width they are given.

Formulas stand beside their values; what is too long for its column goes on in the next line. `*`
marks what is on the critical path.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

from shardlang.backends.report_tables import layers_note, pipeline_rows, staged
from shardlang.backends.units import amount, count, fit, si, UNITS
from shardlang.cost.formula import Formula
from shardlang.cost.models import LATENCIES
from shardlang.cost.quantities import CollectiveCost, ComputeCost, Quantity, Totals
from shardlang.cost.report import HBM, Report
from shardlang.ir.printer import found, notes

if TYPE_CHECKING:
    from shardlang.cost.schedule import Timeline

NO_BREAK = "\u00a0"

OPERATOR = re.compile(r"(?<=[\w)]) ([-+<>]) (?=[\w(])")
"""An operator between two terms."""

SUM = re.compile(r"\([^() ]+(?: [-+] [^() ]+)+\)")
"""A sum in brackets."""

INSIDE = re.compile(r", (?=[^][]*\])")
"""A comma inside of a tensor's brackets."""
GAP = 2
NARROWEST = 8
LABELS = {
    "flops": "FLOPs",
    "bytes": "bytes",
    "t_math": "T_math",
    "t_comms": "T_comms",
    "t_exposed": "T_exposed",
    "t_overlapped": "T_overlapped",
    "t_serial": "T_serial",
    "t_load": "T_load",
    "hbm_bytes": "HBM bytes",
    "t_hbm": "T_hbm",
}
SHOWN_LINES = 4
"""So many lines a formula of what is alive at once may take; longer ones are in JSON."""

MEMORY_LABELS = {
    "parameters": "parameters",
    "gradients": "gradients",
    "optimizer": "optimizer",
    "caches": "caches",
    "activations": "activations",
    "gathered_peak": "gathered",
    "total": "total",
    "peak": "at once",
}


def render(report: Report, width: int = 80, *, color: bool = False) -> str:
    """Print a report in `width` columns, with ANSI colors if asked."""
    printer = _Printer(report, max(width, 40), color)
    return "\n".join(line.rstrip() for line in printer.lines()) + "\n"


def wrap(text: str, width: int) -> list[str]:
    """Break a formula or a sentence at its spaces, and what has none at its operators.

    A line begins with the operator of the sum that it goes on with, and a short sum in brackets stays whole.
    """
    lines: list[str] = []
    line = ""
    for long in _words(text, width):
        word = long
        while len(word) > width:
            if line:
                lines.append(line)
                line = ""
            cuts = (max(word.rfind(char, 1, width) for char in chars) for chars in ("*/,(", "_"))
            cut = next((cut for cut in cuts if cut > width // 2), width)
            lines.append(word[:cut])
            word = word[cut:]
        if line and len(line) + 1 + len(word) > width:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}" if line else word
    lines += [line] if line or not lines else []
    return [line.replace(NO_BREAK, " ") for line in lines]


def _words(text: str, width: int) -> list[str]:
    """Give what a text is broken into where it has spaces."""

    def together(found: re.Match[str]) -> str:
        return found[0].replace(" ", NO_BREAK) if len(found[0]) <= width // 2 else found[0]

    return OPERATOR.sub(rf" \1{NO_BREAK}", SUM.sub(together, text)).split(" ")


def broken(rows: Sequence[Sequence[str]], width: int, indent: str = "") -> bool:
    """Say whether a table of so many columns would break words."""
    room = width - len(indent) - GAP * (len(rows[0]) - 1)
    columns = zip(*rows, strict=True)
    words = ([len(w) for text in column for w in _words(text, width)] for column in columns)
    return sum(max(lengths, default=0) for lengths in words) > room


def table(
    rows: Sequence[Sequence[str]], width: int, right: Sequence[int], indent: str = ""
) -> list[str]:
    """Align rows; where they don't fit, the widest columns are wrapped. `right` are flush right."""
    columns = [i for i in range(len(rows[0])) if any(row[i] for row in rows)]
    widths = {i: max(len(row[i]) for row in rows) for i in columns}
    room = width - len(indent) - GAP * (len(columns) - 1)
    while sum(widths.values()) > room and max(widths.values()) > NARROWEST:
        widest = max(widths, key=lambda i: widths[i])
        widths[widest] -= 1
    lines: list[str] = []
    for row in rows:
        pieces = {i: wrap(row[i], widths[i]) for i in columns}
        for number in range(max(map(len, pieces.values()))):
            cells: list[str] = []
            for i in columns:
                text = pieces[i][number] if number < len(pieces[i]) else ""
                cells.append(text.rjust(widths[i]) if i in right else text.ljust(widths[i]))
            lines.append((indent + (" " * GAP).join(cells)).rstrip())
    return lines


def timeline(found: Timeline, width: int = 80) -> str:
    """Print the lanes of a schedule under a heading, and what it comes to."""
    rows = [f"  {row}".rstrip() for row in found.to_text(width - 2).splitlines()]
    total, waits = si(found.seconds, "s"), si(found.exposed, "s")
    return "\n".join(
        (
            "Timeline  (simulated: each step as early as what it reads and its lane allow)",
            *rows,
            f"  T_scheduled = {total}, of which {waits} the matrix unit waits",
            "",
        )
    )


class _Printer:
    def __init__(self, report: Report, width: int, color: bool) -> None:
        self.report = report
        self.width = width
        self.color = color

    def head(self, text: str) -> str:
        return f"\033[1m{text}\033[0m" if self.color else text

    def lines(self) -> Iterator[str]:
        """Give the whole report, a block an aspect."""
        yield from self.header()
        yield from self.collectives()
        yield from self.compute()
        for name in self.report.passes:
            yield from self.totals(name)
        yield from self.pipeline()
        yield from self.memory()
        yield from self.remarks()

    def labelled(self, label: str, text: str) -> Iterator[str]:
        for number, line in enumerate(wrap(text, self.width - 11)):
            yield f"{label if number == 0 else '':<9}  {line}"

    def header(self) -> Iterator[str]:
        report = self.report
        model = f"model {report.model}" + (", axes overlap" if report.overlap else "")
        model += ", overlap" if report.plan.overlaps else ""
        yield from self.labelled("strategy", f"{report.plan.strategy}, {model}")
        if report.plan.proof is not None:
            yield from self.labelled("plan", found(report.plan.proof))
        axes: list[str] = []
        for info in report.axes:
            size = report.mesh[info.axis.name]
            text = info.axis.name if size is None else f"{info.axis}={count(size)}"
            axes.append(text + notes(info))
        if axes:
            yield from self.labelled("mesh", ", ".join(axes))
        if report.dims:
            dims = [d if n is None else f"{d}={count(n)}" for d, n in report.dims.items()]
            yield from self.labelled("dims", ", ".join(dims))
        yield from self.labelled("hardware", self.hardware())
        if report.slice:
            yield from self.labelled("slice", report.slice)
        bound = ": T_overlapped is a lower bound" if report.is_bound else ": an estimate, no bound"
        roofline = ", no contraction faster than its bytes over W_hbm" if report.hbm else ""
        yield from self.labelled(
            "figures", f"of one device; times at {report.rates}{roofline}{bound}"
        )
        yield from self.labelled("no time", f"for {', '.join(report.left_out)}")
        for number, note in enumerate(report.notes):
            yield from self.labelled("network" if number == 0 else "", note)

    def hardware(self) -> str:
        report = self.report
        figures = report.symbols.figures
        units = {"C": "FLOP/s", "W_ici": "B/s", "W_dcn": "B/s", "W_hbm": "B/s"}
        units |= {figure: "s" for figure in LATENCIES if figure in figures}
        used = report.total.quantity("t_comms").formula.names
        shown: list[str] = []
        for figure, unit in units.items():
            symbol = figures[figure]
            value = report.known.get(symbol)
            wanted = figure in ("C", "W_ici", "W_hbm") or (symbol in used and value)
            wanted = wanted or (figure == "W_dcn" and any(i.network == "dcn" for i in report.axes))
            if value is not None and wanted:
                shown.append(f"{figures[figure]} {si(float(value), unit)}")
        if report.hardware is None:
            return ", ".join(shown) or "none named, so that its figures stay symbols"
        size = report.hardware.get("hbm")
        if size is not None:
            shown.append(f"HBM {si(size, 'B')}")
        return f"{report.hardware.name}: {', '.join(shown)}"

    def collectives(self) -> Iterator[str]:
        costs = self.report.collectives
        yield ""
        if not costs:
            yield self.head("No collectives")
            return
        wide = self.width >= 120
        loops = ["layer"] if any(cost.step.loop for cost in costs) else []
        if self.report.plan.program.microbatches is not None:
            loops.append("microbatch")
        looped = f", × in each {' or '.join(loops)}" if loops else ""
        yield self.head("Collectives") + f"  (* on the critical path{looped})"
        exposed = "exposed" if self.report.plan.overlaps else ""
        title = ["", "", "", "bytes", "", "time", exposed, "why" if wide else ""]
        rows = [
            title,
            *(
                [
                    "*" if cost.step.critical else " ",
                    cost.pass_,
                    f"{cost.move} {cost.tensor}{_times(cost)}",
                    str(cost.bytes),
                    amount(cost.bytes, "B"),
                    amount(cost.time, "s") or str(cost.time),
                    self.exposed(cost),
                    cost.step.reason if wide else "",
                ]
                for cost in costs
            ),
        ]
        open_ = all(cost.time.value is None for cost in costs)
        if open_:
            rows[0][5] = "seconds"
        needed = sum(max(map(len, column)) + GAP for column in zip(*rows, strict=True)) - GAP
        if open_ and needed > self.width:
            yield from self.one_by_one(costs)
        else:
            yield from table(rows, self.width, (4,))

    def one_by_one(self, costs: Sequence[CollectiveCost]) -> Iterator[str]:
        """Show collectives whose formulas do not fit beside each other: each with its formulas below."""
        pass_ = ""
        for cost in costs:
            shown = cost.pass_ if cost.pass_ != pass_ else ""
            pass_ = cost.pass_
            name = f"{cost.move} {cost.tensor}{_times(cost)}".replace(NO_BREAK, " ")
            yield f"{'*' if cost.step.critical else ' '} {shown:<8}  {name}"
            value = amount(cost.bytes, "B").replace(" ", NO_BREAK)
            exposed = f", exposed: {self.exposed(cost)}" if self.exposed(cost) else ""
            sent = f"{cost.bytes} bytes" + (f" = {value}" if value else "")
            for text in (sent, f"{cost.time} seconds{exposed}"):
                for number, line in enumerate(wrap(text, self.width - 16)):
                    yield f"{'':<14}{'  ' if number else ''}{line}"

    def exposed(self, cost: CollectiveCost) -> str:
        """Say what of a collective's time nothing hides; a long formula is in JSON alone."""
        if cost.exposed is None:
            return ""
        if not cost.exposed.formula or cost.exposed.value == 0:
            return "hidden"
        if cost.exposed.formula == cost.time.formula:
            return "all"
        return amount(cost.exposed, "s") or "in part"

    def compute(self) -> Iterator[str]:
        """Show the contractions one by one, and what else there is as a sum."""
        costs = [cost for cost in self.report.compute if cost.counted]
        others = [c for c in self.report.compute if not c.counted and c.flops.formula]
        if not costs and not others:
            return
        yield ""
        yield self.head("Contractions" if costs else "No contractions") + self.balance()
        texts = [cost.einsum for cost in costs]
        formulas = [str(cost.flops) for cost in costs]
        values = [amount(cost.flops, "FLOP") for cost in costs]
        columns = [max(map(len, column), default=0) for column in (texts, formulas, values)]
        room = self.width - 12
        one_line = sum(columns) + 2 * GAP <= room
        pass_ = ""
        for cost, text, formula, value in zip(costs, texts, formulas, values, strict=True):
            shown = cost.pass_ if cost.pass_ != pass_ else ""
            pass_ = cost.pass_
            if one_line:
                cells = f"{text:<{columns[0]}}  {formula:<{columns[1]}}  {value:>{columns[2]}}"
                yield f"  {shown:<8}  {cells}"
                yield from self.intensity(cost, room - 2)
                continue
            # a tensor's brackets are kept together
            for number, line in enumerate(wrap(INSIDE.sub(f",{NO_BREAK}", text), room)):
                yield f"  {shown if number == 0 else '':<8}  {line}"
            result = f" = {value.replace(' ', NO_BREAK)}" if value else " FLOPs"
            for line in wrap(f"{formula}{result}", room - 2):
                yield f"  {'':<8}    {line}"
            yield from self.intensity(cost, room - 2)
        if others:
            more = amount(self.report.total.quantity("elementwise"), "FLOP")
            text = f"and {len(others)} elementwise steps" + (f", {more}" if more else "")
            yield f"  {text}, not counted below"

    def rate(self, figure: str) -> Fraction | None:
        """Give a rate of the hardware, with its efficiency, where it is known."""
        return self.report.quantity(Formula.of(self.report.symbols.rate(figure))).value

    def balance(self) -> str:
        """Give the FLOPs a byte below which memory takes longer than the FLOPs, if that is shown."""
        peak, speed = self.rate("C"), self.rate("W_hbm")
        if not self.report.hbm or peak is None or speed is None:
            return ""
        return f"  (bound by memory below C/W_hbm = {float(peak / speed):.4g} FLOP/B)"

    def intensity(self, cost: ComputeCost, room: int) -> Iterator[str]:
        """Show the FLOPs a byte of a contraction, and what takes longer, where HBM counts."""
        if not self.report.hbm:
            return
        value, time = cost.intensity_value, amount(cost.time, "s")
        number = "" if value is None else f" = {value:.4g}"
        bound = {None: "", True: ", bound by memory", False: ", bound by compute"}
        words = bound[cost.memory_bound] + (f": {time}" if time else "")
        for line in wrap(f"{cost.intensity}{number} FLOP/B{words}", room):
            yield f"  {'':<8}    {line}"

    def quantities(self) -> Iterator[str]:
        """Go through the totals that are shown: those of HBM where somebody asked, or there are caches."""
        report = self.report
        for key in LABELS:
            if key not in report.total.quantities:
                continue
            serves = key == "t_load" and report.memory.quantity("caches").formula
            if key not in HBM or report.hbm or serves:
                yield key

    def totals(self, name: str) -> Iterator[str]:
        totals = self.report.totals[name]
        yield ""
        yield self.head(self.titles[name])
        rows: list[list[str]] = []
        for key in self.quantities():
            label, quantity = LABELS[key], totals.quantity(key)
            text = str(quantity)
            if key == "t_math" and self.report.hbm and quantity.value is not None:
                text = "the larger of FLOPs/C and bytes/W_hbm, contraction by contraction"
            elif key == "t_overlapped":
                words = "a lower bound" if self.report.is_bound else "an estimate"
                math = "T_math + T_exposed" if "t_exposed" in totals.quantities else "T_math"
                text = f"max({math}, T_comms), {words}"
                text += " if no kernels are fused" if self.report.hbm else ""
            elif key == "t_exposed" and quantity.value is not None:
                text = "what of the collectives nothing hides"
            elif key == "t_serial":
                text = "T_math + T_comms"
            elif key == "t_hbm":
                text = "HBM bytes/W_hbm"
            rows.append([f"{label:<13}", text, amount(quantity, UNITS.get(key, "s"))])
        other = totals.quantity("elementwise")
        if other.formula:
            rows.insert(1, ["elementwise", str(other), amount(other, "FLOP")])
        yield from table(rows, self.width, (2,), "  ")
        condition = totals.condition
        holds = {True: " (so it is)", False: " (it is not)", None: ""}[condition.holds]
        if condition.text in ("always", "never"):
            holds = ""
        if self.report.hbm:
            holds = self.judged(totals) or holds
        what = ", FLOPs against collectives" if self.report.hbm else ""
        yield from self.indented("compute-bound", f"{condition}{holds}{what}")
        if condition.solved:
            yield from self.indented("", f"that is {condition.solved}")

    @property
    def titles(self) -> Mapping[str, str]:
        """The headings of the totals."""
        dim = self.report.plan.program.microbatches
        of_all = "" if dim is None else f" × {dim}"
        both = "All of a step" if self.report.plan.update else f"Both{of_all}"
        return {
            "forward": f"Forward{of_all}",
            "backward": f"Backward{of_all}",
            "update": "Update",
            "total": both,
        }

    def judged(self, totals: Totals) -> str:
        """Say what takes longest where memory counts, and all is known."""
        work, moved = totals.quantity("flops").value, totals.quantity("t_hbm").value
        comms = totals.quantity("t_comms").value
        peak = self.rate("C")
        if work is None or moved is None or comms is None or peak is None:
            return ""
        if moved > max(work / peak, comms):
            return " (the memory takes longer than either)"
        return " (so it is)" if work / peak > comms else " (it is not)"

    def indented(self, label: str, text: str) -> Iterator[str]:
        for number, line in enumerate(wrap(text, self.width - 17)):
            yield f"  {label if number == 0 else '':<13}  {line}"

    def pipeline(self) -> Iterator[str]:
        """Show what the stages wait for each other, and a step's times with that."""
        found = self.report.pipeline
        if found is None:
            return
        yield ""
        own = wrap(f"({staged(found)}; F\u00a0=\u00a0B\u00a0=\u00a0W)", self.width - 10)
        own = [line.replace("\u00a0", " ") for line in own]
        yield self.head("Pipeline") + f"  {own[0]}"
        yield from (f"{'':10}{line}" for line in own[1:])
        rows = [[f"{label:<13}", text, value] for label, text, value in pipeline_rows(found)]
        yield from table(rows, self.width, (2,), "  ")

    def memory(self) -> Iterator[str]:
        yield ""
        yield self.head("Memory")
        rows: list[list[str]] = []
        program = self.report.plan.program
        for key, label in MEMORY_LABELS.items():
            quantity = self.report.memory.quantity(key)
            if key == "caches" and not quantity.formula:
                continue
            words, formula = label, str(quantity)
            if key == "peak":
                formula = self.alive(quantity)
            if key == "optimizer" and self.report.plan.backward:
                words = f"{label} {program.optimizer or ''}"
                if program.optimizer is None:
                    formula = "0 (no optimizer is named)"
            rows.append([f"{words:<13}", formula, amount(quantity, "B")])
        if said := layers_note(self.report):
            rows.append([f"{'layers':<13}", said, ""])
        if said := fit(self.report):
            label = "fits" if (self.report.share or 0) <= 1 else "does not fit"
            rows.append([f"{label:<13}", said, ""])
        yield from table(rows, self.width, (2,), "  ")

    def alive(self, quantity: Quantity) -> str:
        """Say what is alive at once: in words where the number stands beside, or it is too long."""
        if quantity.value is not None:
            return "the most alive at once, temporaries included"
        formula = str(quantity)
        long = len(wrap(formula, self.width - 17)) > SHOWN_LINES
        return "a long maximum: --format json has it" if long else formula

    def remarks(self) -> Iterator[str]:
        if self.report.plan.alternatives:
            yield ""
            yield self.head("Alternatives")
            for other in self.report.plan.alternatives:
                text = f"{other.at}: {other.instead}, cheaper when {other.cheaper_when}"
                for number, line in enumerate(wrap(text, self.width - 4)):
                    yield f"  {'- ' if number == 0 else '  '}{line}"
        for warning in self.report.warnings:
            yield ""
            for number, line in enumerate(wrap(f"warning: {warning}", self.width - 2)):
                yield line if number == 0 else f"  {line}"


def _times(cost: CollectiveCost) -> str:
    """Say in how many microbatches and layers a collective is done."""
    loop = cost.step.loop
    stages = (
        ""
        if loop is None or loop.pipeline is None
        else f"/{'/'.join(map(str, loop.pipeline.axes))}"
    )
    counted = "".join(
        f" × {dim}{stages if loop is not None and dim == loop.dim else ''}" for dim in cost.repeats
    )
    return f" {counted[1:].replace(' ', NO_BREAK)}" if counted else ""
