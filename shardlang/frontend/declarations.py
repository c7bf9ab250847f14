"""What the declaring lines say: the mesh, sizes, the dtype, the optimizer, microbatches; with overrides.

Decides every size before any statement is read, and reports each layout that does not divide.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import prod
from typing import Literal, TypeVar

from shardlang.diagnostics import Label, Mistake, Reporter
from shardlang.frontend import declaration_errors, errors, shape_errors, training_errors
from shardlang.frontend.amounts import LARGEST_SIZE, too_large
from shardlang.frontend.names import AxisNames, Brackets
from shardlang.frontend.parser import parse
from shardlang.frontend.renames import Tie
from shardlang.frontend.sizes import AtMost, Multiple, names_in, shortest, SizeTable
from shardlang.frontend.syntax import (
    AccumulateDecl,
    AxisDecl,
    DimDecl,
    DimsDecl,
    DTypeDecl,
    HardwareDecl,
    Item,
    MeshDecl,
    OptimizerDecl,
    ScheduleDecl,
    Word,
    ZeroDecl,
)
from shardlang.hardware.figures import EFFICIENCIES, FIGURES
from shardlang.ir.printer import size_expr
from shardlang.ir.program import DimInfo, Zero
from shardlang.ir.size import Name, Number, SizeExpr
from shardlang.ir.types import Axis, AxisInfo, Dim, DType, DTYPE_ALIASES, DTYPES, Mesh
from shardlang.source import Source, Span

Line = TypeVar(
    "Line", MeshDecl, HardwareDecl, DTypeDecl, OptimizerDecl, AccumulateDecl, ScheduleDecl
)

OPTIMIZERS = ("adam", "adamw", "sgd", "momentum", "lion", "muon", "adafactor", "none")
"""The optimizers that a program may name."""

HARDWARE_QUANTITIES = frozenset({"C", "T_hop", "T_dcn", *FIGURES, *EFFICIENCIES.values()})
"""What `--set` may give beside sizes; so are `M_<axis>`, and all of these with `_hw` behind."""


@dataclass(frozen=True)
class Overrides:
    """What the command line gives in place of the text.

    `sizes` are of dims and axes by name; `mesh` is the text of a mesh line; `hardware` a name or a
    path. `forward_only` leaves out the backward pass.
    """

    sizes: Mapping[str, int] = field(default_factory=dict[str, int])
    mesh: str | None = None
    hardware: str | None = None
    forward_only: bool = False


@dataclass(frozen=True)
class MeshLine:
    """The mesh line that counts, and where to report about it."""

    axes: tuple[AxisDecl, ...]
    reporter: Reporter


def dtype(word: Word, reporter: Reporter) -> DType | None:
    """Read a dtype in any spelling; None where it is unknown."""
    name = DTYPE_ALIASES.get(word.text, word.text)
    if name not in DTYPES:
        known = (*DTYPES, *DTYPE_ALIASES)
        reporter.report(word.span, declaration_errors.UnknownDType(word.text, known))
        return None
    return DTYPES[name]


def mesh_line(items: Iterable[Item], overrides: Overrides, reporter: Reporter) -> MeshLine | None:
    """Find the mesh line: the override's, else the text's."""
    own = only(items, MeshDecl, "mesh", reporter)
    if overrides.mesh is None:
        return None if own is None else MeshLine(own.axes, reporter)
    text = overrides.mesh.strip()
    source = Source("--mesh", text if text.split(" ")[0] == "mesh" else f"mesh {text}")
    reporter = Reporter(source)
    given = [item for item in parse(source, whole=False).items if isinstance(item, MeshDecl)]
    return MeshLine(tuple(axis for item in given for axis in item.axes), reporter)


def own_axes(items: Iterable[Item]) -> tuple[str, ...]:
    """List the axes of the text's own mesh lines."""
    lines = (item for item in items if isinstance(item, MeshDecl))
    return tuple(axis.name.text for line in lines for axis in line.axes)


def axis_names(line: MeshLine) -> tuple[str, ...]:
    """List the axes of a mesh line, reporting names that are declared twice or read two ways."""
    seen: dict[str, Word] = {}
    for axis in line.axes:
        name = axis.name.text
        if name in seen:
            label = Label(seen[name].span, "declared here first")
            line.reporter.report(
                axis.name.span, declaration_errors.DeclaredTwice("axis", name), [label]
            )
        seen.setdefault(name, axis.name)
    for name, word in seen.items():
        if len(name) > 1 and all(letter in seen for letter in name):
            line.reporter.report(word.span, declaration_errors.AmbiguousAxis(name))
    return tuple(seen)


def axis_info(decl: AxisDecl, size: int | None, reporter: Reporter) -> AxisInfo:
    """Give what is declared of an axis: its size, network and links, and what it is a part of."""
    network: Literal["ici", "dcn"] = "ici"
    links, whole = 1, None
    seen: set[str] = set()
    for note in decl.notes:
        name, argument = note.name.text.lower(), "" if note.argument is None else note.argument.text
        kind = "part" if name == "part" else "network"
        counts = argument.isdecimal() and len(argument) < 4 and int(argument) > 0
        if kind in seen:
            reporter.report(note.span, declaration_errors.DeclaredTwice(kind, note.text))
        elif kind == "part" and argument and not argument.isdecimal():
            whole = Axis(argument)
        elif name in ("ici", "dcn") and (note.argument is None or counts):
            network, links = ("dcn" if name == "dcn" else "ici"), int(argument or 1)
        else:
            reporter.report(note.span, declaration_errors.BadNetwork(note.text))
        seen.add(kind)
    return AxisInfo(Axis(decl.name.text), size, network, links, whole)


def only(items: Iterable[Item], kind: type[Line], what: str, reporter: Reporter) -> Line | None:
    """Find the one line of a kind; report any further one."""
    found: Line | None = None
    for item in items:
        if isinstance(item, kind):
            if found is not None:
                label = Label(found.span, "declared here first")
                reporter.report(item.span, declaration_errors.DeclaredTwice(what), [label])
            else:
                found = item
    return found


def optimizer(
    items: Iterable[Item], axes: AxisNames, reporter: Reporter
) -> tuple[str | None, Zero | None]:
    """Read the optimizer line: its name, and over which axes its state is split."""
    line = only(items, OptimizerDecl, "optimizer", reporter)
    if line is None:
        return None, None
    name = line.name.text.lower()
    if name not in OPTIMIZERS:
        reporter.report(
            line.name.span, declaration_errors.UnknownOptimizer(line.name.text, OPTIMIZERS)
        )
    return name, None if line.zero is None else _zero(line.name.text, line.zero, axes, reporter)


def _zero(name: str, line: ZeroDecl, axes: AxisNames, reporter: Reporter) -> Zero | None:
    """Read `zero 1 over X` behind an optimizer's name."""
    level = line.level.text
    if level not in ("1", "2"):
        axis = line.axes[0].text if line.axes else (*axes.names, "X")[0]
        reporter.report(line.level.span, training_errors.ZeroLevel(level, axis))
        return None
    if not line.axes:
        mistake = training_errors.ZeroOverNothing(name, level, axes.names)
        reporter.report(line.span, mistake)
        return None
    found: list[Axis] = []
    for word in line.axes:
        places = axes.places(word)
        if places is None:
            for part in axes.unknown(word):
                reporter.report(part.span, errors.UnknownAxis(part.text, axes.names))
            return None
        for place in places:
            if place.axis in found:
                mistake = training_errors.AxisTwiceInZero(place.axis.name)
                reporter.report(place.span, mistake)
            found.append(place.axis)
    return Zero(2 if level == "2" else 1, tuple(dict.fromkeys(found)))


def microbatches(
    items: Iterable[Item], axes: Iterable[str], used: Container[Dim], reporter: Reporter
) -> Dim | None:
    """Read the line that says over how many microbatches gradients are added; `used` have tensors."""
    line = only(items, AccumulateDecl, "accumulate", reporter)
    if line is None:
        return None
    dim = Dim(line.dim.text)
    if dim.name in axes:
        reporter.report(line.dim.span, errors.DimIsAxis(dim.name))
    elif dim in used:
        reporter.report(line.dim.span, training_errors.MicrobatchDim(dim.name))
    return dim


def is_hardware(name: str, axes: Iterable[str]) -> bool:
    """Say whether a name given by `--set` is a hardware quantity."""
    plain = name.removesuffix("_hw")
    return plain in HARDWARE_QUANTITIES or plain in {f"M_{axis}" for axis in axes}


class SizeReader:
    """Settles the size of every dim and axis, from the text and the overrides."""

    def __init__(
        self,
        items: Sequence[Item],
        axes: Sequence[AxisDecl],
        names: Sequence[str],
        dims: Iterable[Dim],
        overrides: Overrides,
        reporters: tuple[Reporter, Reporter],
    ) -> None:
        """Read the lines; `reporters` are the text's and the mesh line's; `dims` all that occur."""
        self.axes = {axis.name.text: axis for axis in reversed(axes)}
        self.names = tuple(names)
        self.occurring = {dim.name: dim for dim in dims}
        self.reporter, self.mesh_reporter = reporters
        self.reporters = list(reporters)
        self.declared: dict[str, DimDecl] = {}
        for item in items:
            if isinstance(item, DimsDecl):
                for decl in item.dims:
                    self._declare(decl)
        self._split_names()
        self.known = tuple(dict.fromkeys((*self.declared, *self.occurring, *self.names)))
        self.given = self._overrides(overrides.sizes)
        self.table = SizeTable(self._expressions())
        self.tied: dict[str, SizeExpr] = {}
        self._report()

    def _declare(self, decl: DimDecl) -> None:
        name = decl.name.text
        if name in self.declared:
            label = Label(self.declared[name].name.span, "declared here first")
            self.reporter.report(
                decl.name.span, declaration_errors.DeclaredTwice("dim", name), [label]
            )
            return
        if name in self.names:
            self.reporter.report(decl.name.span, errors.DimIsAxis(name))
            return
        self.declared[name] = decl

    def _split_names(self) -> None:
        """Report dims whose names are read as other dims with axes wherever they stand, so that no size is used."""
        axes = AxisNames(self.names)
        sizes = [decl.size for decl in self.declared.values()]
        sizes += [axis.size for axis in self.axes.values() if axis.size is not None]
        used = {name for size in sizes for name in names_in(size)}.union(self.occurring)
        for name, decl in self.declared.items():
            base, _, suffix = name.rpartition("_")
            over = axes.read(suffix)
            if over and base in self.occurring and name not in used:
                listed = ", ".join(axis.name for axis in over)
                self.reporter.report(decl.name.span, errors.DimIsSplit(name, base, listed))

    def _overrides(self, sizes: Mapping[str, int]) -> dict[str, Fraction]:
        """Keep what is of this program; report names that are nobody's."""
        given: dict[str, Fraction] = {}
        for name, value in sizes.items():
            if name in self.known and value > LARGEST_SIZE:
                text = shortest(value)
                self._about_setting(f"{name}={text}", too_large(f"`{text}`"), len(name) + 1)
            elif name in self.known:
                given[name] = Fraction(value)
            elif not is_hardware(name, self.names):
                self._about_setting(name, declaration_errors.UnknownSetting(name, self.known))
        return given

    def _about_setting(self, text: str, mistake: Mistake, start: int = 0) -> None:
        reporter = Reporter(Source("--set", text))
        reporter.report(Span(start, len(text)), mistake)
        self.reporters.append(reporter)

    def _expressions(self) -> dict[str, SizeExpr]:
        """List every size that has an expression; report the names in them that mean nothing."""
        exprs: dict[str, SizeExpr] = {}
        for name, decl in self.declared.items():
            if name in self.given:
                continue
            exprs[name] = decl.size
            for word in decl.names:
                if word.text not in self.known:
                    mistake = declaration_errors.UnknownSizeName(word.text, self.known)
                    self.reporter.report(word.span, mistake)
        for name, axis in self.axes.items():
            if axis.size is None or name in self.given:
                continue
            exprs[name] = axis.size
            for used in names_in(axis.size):
                if used not in self.known:
                    mistake = declaration_errors.UnknownSizeName(used, self.known)
                    self.mesh_reporter.report(axis.span, mistake)
        exprs.update((name, Number(value)) for name, value in self.given.items())
        return exprs

    def _report(self) -> None:
        for name, reason in self.table.wrong.items():
            self._about(name, declaration_errors.BadSize(name, reason))
        for names in self.table.circles:
            self._about(names[0], declaration_errors.CircularSize(names))

    def _about(self, name: str, mistake: Mistake) -> None:
        """Report at the place where a size was given."""
        if name in self.given:
            self._about_setting(name, mistake)
        elif name in self.declared:
            self.reporter.report(self.declared[name].span, mistake)
        else:
            self.mesh_reporter.report(self.axes[name].span, mistake)

    def tie(
        self,
        ties: Sequence[Tie],
        multiples: Sequence[Multiple],
        at_most: Sequence[AtMost],
        mesh: Mesh,
    ) -> Mesh:
        """Let sizes follow from others; report those that don't fit; give the mesh with what is known.

        Both names of one dim have one size: where one has no expression it gets the other's name as
        its own. Of a size that is the product of others, one that has no expression follows from them.
        """
        exprs = dict(self.table.exprs)
        apart: set[tuple[str, str]] = set()
        for each in ties:
            old, new = self._root(each.old.name, exprs), self._root(each.new.name, exprs)
            if old == new:
                continue
            free, other = (new, old) if self._free(new, exprs) else (old, new)
            if not self._free(free, exprs):
                continue
            if free in self._needs(other, exprs):
                apart.add((each.old.name, each.new.name))
                continue
            plain = other.rstrip("'")
            size = Number(Fraction(int(plain))) if plain.isdecimal() else Name(other)
            exprs[free] = self.tied[free] = size
        made = self._follow(multiples, exprs)
        if self.tied:
            reported = self.table.wrong
            self.table = SizeTable(exprs)
            for name, reason in self.table.wrong.items():
                if name not in reported and name not in made:
                    self._about(name, declaration_errors.BadSize(name, reason))
        for each in multiples:
            self._multiply(each)
        for each in at_most:
            size, count = self.size(each.dim.name), self.size(each.into.name)
            if size is not None and count is not None and count > size:
                mistake = shape_errors.TooMany(each.dim.name, size, each.into.name, count)
                self.reporter.report(each.span, mistake)
        for each in ties:
            self._compare(each, apart=(each.old.name, each.new.name) in apart)
        values = self.table.values
        infos = (replace(info, size=values.get(info.axis.name)) for info in mesh.axes)
        return Mesh(tuple(infos))

    def _follow(self, multiples: Sequence[Multiple], exprs: dict[str, SizeExpr]) -> set[str]:
        """Let a size that has no expression follow from the others of a product; give such names."""
        made: set[str] = set()
        for each in multiples:
            names = (each.whole.name, *(factor.name for factor in reversed(each.factors)))
            for name in names:
                root = self._root(name, exprs)
                others = {self._root(other, exprs) for other in names if other != name}
                circular = root in others.union(*(self._needs(other, exprs) for other in others))
                if self._free(root, exprs) and not circular:
                    exprs[root] = self.tied[root] = each.solved(name)
                    made.add(root)
                    break
        return made

    def _multiply(self, each: Multiple) -> None:
        """Report sizes that don't multiply to the one that they should."""
        names = (each.whole.name, *(factor.name for factor in each.factors))
        found = {name: size for name in names if (size := self.size(name)) is not None}
        whole = found.get(each.whole.name)
        product = each.times * prod(found.get(factor.name, 1) for factor in each.factors)
        if whole is None or (whole % product == 0 and len(found) < len(names)) or whole == product:
            return
        mistake = shape_errors.SizesDontMultiply(
            each.whole.name, names[1:], each.times, tuple(found.items()), each.call
        )
        self.reporter.report(each.span, mistake)

    def _compare(self, tie: Tie, *, apart: bool) -> None:
        """Report two sizes of one dim: two numbers, or one in terms of the other."""
        old, new = self.size(tie.old.name), self.size(tie.new.name)
        if apart or (None not in (old, new) and old != new):
            texts = [
                size_expr(self._expression(name) or Name(name)) if size is None else str(size)
                for name, size in ((tie.old.name, old), (tie.new.name, new))
            ]
            mistake = declaration_errors.SizesDiffer(
                tie.tensor, tie.old.name, texts[0], tie.new.name, texts[1]
            )
            self.reporter.report(tie.span, mistake)

    def _root(self, name: str, exprs: Mapping[str, SizeExpr]) -> str:
        """Go from a dim to the one that it has its size from, as `S` to `T` after `S=T`."""
        seen = {name}
        while True:
            match exprs.get(name):
                case Name(other):
                    name = other
                case None if name.rstrip("'") in self.known:
                    name = name.rstrip("'")
                case _:
                    return name
            if name in seen:
                return name
            seen.add(name)

    @staticmethod
    def _free(name: str, exprs: Mapping[str, SizeExpr]) -> bool:
        """Say whether nothing settles a size: no expression, and no digits for a name."""
        return name not in exprs and not name.rstrip("'").isdecimal()

    @staticmethod
    def _needs(name: str, exprs: Mapping[str, SizeExpr]) -> set[str]:
        """Give every name that a size depends on."""
        found: set[str] = set()
        waiting = [name]
        while waiting:
            needed = waiting.pop()
            if needed in exprs:
                more = set(names_in(exprs[needed])) - found
                found |= more
                waiting.extend(more)
        return found

    @property
    def mesh(self) -> Mesh:
        """The mesh, with the sizes that are known."""
        return Mesh(
            tuple(
                axis_info(self.axes[name], self.table.values.get(name), self.mesh_reporter)
                if name in self.axes
                else AxisInfo(Axis(name), self.table.values.get(name))
                for name in self.names
            )
        )

    def size(self, name: str) -> int | None:
        """Give a dim's size: its own, that of its digits, or that of the dim it is primed from."""
        plain = name.rstrip("'")
        if plain.isdecimal():
            return int(plain) if len(plain) < 4000 else None
        return self.table.values.get(name, self.table.values.get(plain))

    def infos(self) -> tuple[DimInfo, ...]:
        """List every dim: declared ones first, then the others as they occur."""
        names = dict.fromkeys((*self.declared, *self.occurring))
        return tuple(DimInfo(Dim(name), self.size(name), self._expression(name)) for name in names)

    def _expression(self, name: str) -> SizeExpr | None:
        if name in self.given:
            return Number(self.given[name])
        return self.declared[name].size if name in self.declared else self.tied.get(name)

    def check(self, mentions: Iterable[Brackets]) -> None:
        """Report every layout that its axes do not divide evenly, each once."""
        seen: set[tuple[str, tuple[Axis, ...]]] = set()
        for brackets in mentions:
            for dim, axes, span in zip(brackets.dims, brackets.axes, brackets.spans, strict=True):
                if dim.name.rstrip("'").isdecimal() and self.size(dim.name) == 0:
                    mistake = declaration_errors.BadSize(dim.name, "is 0, and not positive")
                    self.reporter.report(span, mistake)
                if not axes or (dim.name, axes) in seen:
                    continue
                seen.add((dim.name, axes))
                self._check(dim, axes, span)

    def _check(self, dim: Dim, axes: tuple[Axis, ...], span: Span) -> None:
        size = self.size(dim.name)
        values = self.table.values
        sizes = [(axis.name, values[axis.name]) for axis in axes if axis.name in values]
        if size is not None and size % prod(value for _, value in sizes):
            self.reporter.report(
                span, declaration_errors.NotDivisible(dim.name, size, tuple(sizes))
            )
