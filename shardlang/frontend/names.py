"""Subscripts: which part of `B_XY` is the dim, and which are its axes.

Decides what the text after the last underscore means, given the axes; and, for a text with no mesh
line, which names are axes. Units: places are spans of the source.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from shardlang.diagnostics import Label, Reporter
from shardlang.frontend import errors, hints
from shardlang.frontend.heads import ATTENTION, COLLECTIVES, RINGS, WITH_DIM
from shardlang.frontend.syntax import DimRef, Item, Layers, TensorRef, Word
from shardlang.frontend.walk import calls, references
from shardlang.ir.types import Array, Axis, Dim, DTYPES, Layout, Reduction, Tensor
from shardlang.source import Span

USUAL_AXES = "WXYZ"
"""Single letters that are axes where no mesh line says otherwise."""


def tail(word: Word, start: int, length: int) -> Span:
    """Give the span of a part of a word, or of all of it where LaTeX makes the text longer."""
    if word.span.end - word.span.start != len(word.text):
        return word.span
    return Span(word.span.start + start, word.span.start + start + length)


@dataclass(frozen=True, slots=True)
class Place:
    """An axis and where it is written."""

    axis: Axis
    span: Span


@dataclass(frozen=True, slots=True)
class Brackets:
    """What the brackets and braces of a mention say, before any tensor is known.

    `dims` are in the order written; `axes` has one tuple a dim; `spans` the places of the dims.
    `wrong` says that a dim stands twice, so that nothing more can be said of the tensor.
    """

    dims: tuple[Dim, ...]
    axes: tuple[tuple[Axis, ...], ...]
    spans: tuple[Span, ...]
    unreduced: frozenset[Axis] = frozenset()
    reduction: Reduction = "sum"
    wrong: bool = False

    def layout(self, order: Sequence[Dim]) -> Layout:
        """Give the layout for a tensor whose dims are these, in another order."""
        by_dim = dict(zip(self.dims, self.axes, strict=True))
        return Layout(tuple(by_dim[dim] for dim in order), self.unreduced, self.reduction)

    def ordered(self, order: Sequence[Dim]) -> Brackets:
        """Give the same with the dims in another order."""
        places = [self.dims.index(dim) for dim in order]
        axes = tuple(self.axes[place] for place in places)
        spans = tuple(self.spans[place] for place in places)
        return replace(self, dims=tuple(order), axes=axes, spans=spans)


@dataclass(frozen=True, slots=True)
class AxisNames:
    """The axes of a program, and how words are read as axes."""

    names: tuple[str, ...]
    dims: frozenset[str] = frozenset()
    former: frozenset[str] = frozenset()
    """The axes of the text's own mesh line, where another one is given in its place."""
    implied: bool = False
    """Whether no mesh line says what the axes are."""

    def read(self, text: str) -> tuple[Axis, ...] | None:
        """Read a word as axes: an axis name, or single-letter names one after the other."""
        if text in self.names:
            return (Axis(text),)
        if text and all(letter in self.names for letter in text):
            return tuple(Axis(letter) for letter in text)
        return None

    def places(self, word: Word, start: int = 0) -> list[Place] | None:
        """Read a word from an offset on as axes with their places."""
        axes = self.read(word.text[start:])
        if axes is None:
            return None
        found: list[Place] = []
        for axis in axes:
            found.append(Place(axis, tail(word, start, len(axis.name))))
            start += len(axis.name)
        return found

    def ends_in_axes(self, text: str) -> bool:
        """Say whether a word is an axis, or a dim with axes, where only a dim may stand."""
        base, _, suffix = text.rpartition("_")
        return text in self.names or bool(base and self.read(suffix))

    def meant(self, text: str) -> bool:
        """Say whether a word that is no axis was surely meant as one."""
        if self.was_axes(text):
            return True
        if text.isupper() and any(letter in self.names or letter in USUAL_AXES for letter in text):
            return all(letter.isalpha() for letter in text)
        longer = [name for name in self.names if len(name) > 1]
        match = hints.nearest(text, longer) if len(text) > 2 else None
        return match is not None and abs(len(match) - len(text)) <= 1

    def was_axes(self, text: str) -> bool:
        """Say whether a word was axes under the text's own mesh line."""
        axes = self.former.union(self.names) if self.former else frozenset[str]()
        return text in axes or (bool(text) and all(letter in axes for letter in text))

    def unknown(self, word: Word, start: int = 0) -> Iterator[Word]:
        """Give the parts of a word that are no axes: letters beside axes, or else all of it."""
        text = word.text[start:]
        axes = self.former.union(self.names)
        if text not in self.former and all(letter in axes for letter in text):
            for place, letter in enumerate(text, start):
                if letter not in self.names:
                    yield Word(letter, tail(word, place, 1))
        else:
            yield Word(text, tail(word, start, len(text)))

    def reading(self, dim: str, dims: Iterable[str]) -> str | None:
        """Say how a dim such as `I_x` may have been meant, where `I` is a dim, too."""
        base, _, suffix = dim.rpartition("_")
        if not base or base not in dims:
            return None
        known = (*self.names, *(USUAL_AXES if self.implied else ()))
        lowered = {name.lower(): name for name in known}
        letters = [lowered.get(letter.lower(), "") for letter in suffix]
        axis = lowered.get(suffix.lower()) or ("".join(letters) if all(letters) else None)
        axis = axis or hints.nearest(suffix, [name for name in known if len(name) > 1])
        if axis is None:
            return f"{dim} is one dim here, since {suffix} is not an axis"
        subscript = f"{{{axis}}}" if "_" in axis else axis
        return f"did you mean {base}_{subscript}?"


class BracketReader:
    """Reads the brackets of every mention once, and reports what is wrong with them alone."""

    def __init__(self, axes: AxisNames, reporter: Reporter) -> None:
        """Start with nothing read."""
        self.axes = axes
        self.reporter = reporter

    def read(self, ref: TensorRef) -> Brackets | None:
        """Read a mention's brackets; None for a bare name."""
        if ref.dims is None:
            if ref.name is not None and ref.marker is not None:
                words = [word.text for word in ref.marker.words]
                inside = words[0] if len(words) == 1 else f"{{{','.join(words)}}}"
                mark = f"{{{ref.marker.kind.text}_{inside}}}"
                self.reporter.report(ref.span, errors.MarkAlone(ref.name.text, mark))
            return None
        tensor = ref.name.text if ref.name is not None else "this tensor"
        dims: list[Dim] = []
        spans: list[Span] = []
        bare: list[str] = []
        rows: list[list[Place]] = []
        for dim_ref in ref.dims:
            name, places = self._split(dim_ref)
            bare.append(name)
            rows.append(places)
            dims.append(self._dim(name, dim_ref, dims, spans, tensor))
            spans.append(dim_ref.span)
        words = () if ref.marker is None else ref.marker.words
        rows.append([place for word in words for place in self._axes_of(word)])
        reduction: Reduction = "sum"
        if rows[-1] and ref.marker is not None and ref.marker.kind.text in ("max", "min"):
            reduction = "max" if ref.marker.kind.text == "max" else "min"
        wrong = any(
            not r.literal and d.name != n for r, d, n in zip(ref.dims, dims, bare, strict=True)
        )
        whole = Brackets(tuple(dims), (), tuple(spans), frozenset(), reduction, wrong)
        return _filled(whole, self._once(rows, whole, tensor))

    def _once(self, rows: list[list[Place]], whole: Brackets, tensor: str) -> list[list[Place]]:
        """Keep each axis' first place; report the others, with what is left without either."""
        seen: dict[Axis, list[Place]] = {}
        for place in (place for places in rows for place in places):
            seen.setdefault(place.axis, []).append(place)
        firsts = {axis: places[0] for axis, places in seen.items()}
        for axis, (first, *others) in seen.items():
            if not others:
                continue
            options = [
                _shown(tensor, _filled(whole, _only(rows, {**firsts, axis: place})))
                for place in (first, *others)
            ]
            mistake = errors.AxisTwice(axis.name, tensor, tuple(dict.fromkeys(reversed(options))))
            label = Label(first.span, f"{axis} stands here first")
            self.reporter.report(others[0].span, mistake, [label])
        return _only(rows, firsts)

    def _axes_of(self, word: Word) -> list[Place]:
        """Read a word that can only be axes."""
        places = self.axes.places(word)
        if places is None:
            for part in self.axes.unknown(word):
                self.reporter.report(part.span, errors.UnknownAxis(part.text, self.axes.names))
            return []
        return places

    def _split(self, ref: DimRef) -> tuple[str, list[Place]]:
        """Separate a dim's name from its axes."""
        text, places = ref.name.text, list[Place]()
        base, underscore, _ = text.rpartition("_")
        suffix = text[len(base) + 1 :]
        if base and underscore and not ref.literal:
            found = self.axes.places(ref.name, len(base) + 1)
            if found is not None:
                text, places = base, found
            elif self.axes.was_axes(suffix) or (base in self.axes.dims and self.axes.meant(suffix)):
                for part in self.axes.unknown(ref.name, len(base) + 1):
                    self.reporter.report(part.span, errors.UnknownAxis(part.text, self.axes.names))
                text = base
        match ref.braced:
            case (word,) if self.axes.read(word.text) is None and not self._like_axis(word.text):
                text = f"{text}_{word.text}"
            case words:
                for word in words:
                    places.extend(self._axes_of(word))
        for word in ref.slashed:
            places.extend(self._axes_of(word))
        return text, places

    def _like_axis(self, text: str) -> bool:
        """Say whether the word in `d_{model}` was meant as an axis: a capital, or nearly a name."""
        return text.isupper() or self.axes.meant(text)

    def _dim(
        self, name: str, ref: DimRef, before: list[Dim], spans: list[Span], tensor: str
    ) -> Dim:
        dim = Dim(name)
        if name in self.axes.names:
            self.reporter.report(ref.name.span, errors.DimIsAxis(name))
        if ref.literal:
            while dim in before:
                dim = Dim(dim.name + "'")
        elif dim in before:
            label = Label(spans[before.index(dim)], f"{dim} stands here first")
            self.reporter.report(ref.span, errors.DimTwice(name, tensor), [label])
            while dim in before:
                dim = Dim(dim.name + "'")
        return dim


def _only(rows: list[list[Place]], kept: Mapping[Axis, Place]) -> list[list[Place]]:
    """Leave one place of each axis."""
    return [[place for place in row if kept[place.axis] is place] for row in rows]


def _filled(whole: Brackets, rows: list[list[Place]]) -> Brackets:
    """Give brackets with the axes of each dim, and in the last row those of the marker."""
    *axes, marked = (tuple(place.axis for place in row) for row in rows)
    reduction = whole.reduction if marked else "sum"
    return replace(whole, axes=tuple(axes), unreduced=frozenset(marked), reduction=reduction)


def _shown(tensor: str, brackets: Brackets) -> str:
    """Print brackets behind a tensor's name."""
    layout = Layout(brackets.axes, brackets.unreduced, brackets.reduction)
    return str(Array(Tensor(tensor, brackets.dims, DTYPES["bf16"]), layout))


def plain_dims(items: Iterable[Item]) -> frozenset[str]:
    """List the dims that stand somewhere with no underscore, so that `B_X` may be B over X."""
    found: set[str] = set()
    for ref in references(items):
        for dim in ref.dims or ():
            found.add(dim.name.text)
            base, _, suffix = dim.name.text.rpartition("_")
            if base and suffix and all(letter in USUAL_AXES for letter in suffix):
                found.add(base)
    return frozenset(found)


def implied_axes(items: Sequence[Item]) -> tuple[str, ...]:
    """List the axes of a text with no mesh line.

    They are the words of `{U_..}` markers, of slashes, of braces with commas, the first words of
    collectives' subscripts, and the letters W, X, Y, Z in subscripts. Single letters come first, in
    alphabetical order, then longer names as they are met.
    """
    words: dict[str, None] = {}
    letters: set[str] = set()
    plain = plain_dims(items)
    stacks = [(item.stack,) for item in items if isinstance(item, Layers) and item.stack]
    for dims in (*stacks, *(ref.dims or () for ref in references(items))):
        for dim in dims:
            words.update((word.text, None) for word in dim.slashed)
            if len(dim.braced) > 1:
                words.update((word.text, None) for word in dim.braced)
            base, _, suffix = dim.name.text.rpartition("_")
            subscripts = [word.text for word in dim.braced] + ([suffix] if base else [])
            for text in subscripts:
                if text and all(letter in USUAL_AXES for letter in text):
                    letters.update(text)
    for ref in references(items):
        if ref.marker is not None:
            words.update((word.text, None) for word in ref.marker.words)
    for call in calls(items):
        if call.head.text in (*COLLECTIVES, *RINGS, *ATTENTION):
            given = [word.text for word in call.subscript or ()]
            given = given[:1] if call.head.text in ATTENTION else given
            if call.head.text in WITH_DIM and len(given) > 1:
                given.pop()
            words.update((text, None) for text in given if text not in plain)
    letters.update(text for text in words if len(text) == 1)
    usual = letters.union(USUAL_AXES)
    longer: list[str] = []
    for text in words:
        if len(text) > 1 and all(letter in usual for letter in text):
            letters.update(text)
        elif len(text) > 1:
            longer.append(text)
    return (*sorted(letters), *longer)
