"""What can be wrong with an expression and its result (codes SH2xx)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from shardlang.diagnostics import Mistake, Severity
from shardlang.frontend.hints import contraction, few, listed, nearest, SHOWN, suggest


@dataclass(frozen=True)
class UnknownFunction(Mistake):
    """`gleu(A)`."""

    code: ClassVar[str] = "SH206"
    title: ClassVar[str] = "unknown function"
    name: str
    known: tuple[str, ...]
    tensor: str | None = None
    blocks: tuple[str, ...] = ()

    def message(self) -> str:
        """Name it."""
        kinds = (
            "a function",
            "a reduction",
            "a collective",
            *(("a block",) if self.blocks else ()),
        )
        return f"{self.name} is not {listed(kinds, 'or')}"

    def hint(self) -> str | None:
        """Give the form of a tensor where one was meant, else the nearest name, or what there is."""
        if self.tensor is not None:
            return f"a tensor has square brackets: {self.tensor}"
        match = nearest(self.name, (*self.known, *self.blocks))
        if match is not None:
            return f"did you mean {match}?"
        near = listed(few(self.name, self.known))
        if not self.blocks:
            return f"the nearest are {near}"
        verb = "blocks of the program are" if len(self.blocks) > 1 else "block of the program is"
        return f"the {verb} {listed(self.blocks[:SHOWN])}; the nearest functions are {near}"


@dataclass(frozen=True)
class UnknownDim(Mistake):
    """`A[I, J] ·_Q B[J, K]`."""

    code: ClassVar[str] = "SH217"
    title: ClassVar[str] = "unknown dim"
    name: str
    known: tuple[str, ...]
    where: str

    def message(self) -> str:
        """Name it and where it was looked for."""
        return f"{self.name} is not a dim of {self.where}"

    def hint(self) -> str | None:
        """Give the nearest dim."""
        return suggest(self.name, self.known, "the dims there are")


@dataclass(frozen=True)
class ResultLacks(Mistake):
    """`A[I, J, D] ·_J B[J, K] -> C[I, K]`."""

    code: ClassVar[str] = "SH218"
    title: ClassVar[str] = "result lacks a dim"
    result: str
    dims: tuple[str, ...]
    product: bool
    reading: str | None = None

    def message(self) -> str:
        """Name the result and the dims."""
        return f"{self.result} lacks {listed(self.dims)}, which the expression has"

    def hint(self) -> str | None:
        """Say how to contract or keep it."""
        one = len(self.dims) == 1
        it = "it" if one else "them"
        if self.product:
            way = f"contract {it} with {contraction(self.dims)}, or keep {it}"
        else:
            subscript = self.dims[0] if one else "{" + ",".join(self.dims) + "}"
            way = f"add {it} up with sum_{subscript}(..), or keep {it}"
        if self.reading is None:
            return way
        return f"{way}; {'or ' * self.reading.startswith('did')}{self.reading}"


@dataclass(frozen=True)
class DimsExchanged(Mistake):
    """`xs[B, S, D] = x[B, T, D]`: a sum over T and a broadcast along S, which nobody means."""

    code: ClassVar[str] = "SH243"
    title: ClassVar[str] = "dims lost and gained"
    result: str
    lost: tuple[str, ...]
    gained: tuple[str, ...]
    rename: str | None = None
    reading: str | None = None

    def message(self) -> str:
        """Name the dims of both."""
        return (
            f"{self.result} lacks {listed(self.lost)}, which the expression has, "
            f"and has {listed(self.gained)}, which the expression lacks"
        )

    def hint(self) -> str | None:
        """Give the line that renames, or what was meant."""
        if self.reading is not None:
            return self.reading
        if self.rename is not None:
            return f"the same value under other dim names is {self.rename}"
        subscript = self.lost[0] if len(self.lost) == 1 else "{" + ",".join(self.lost) + "}"
        return f"to sum and then broadcast, write sum_{subscript}(..) in a line of its own"


@dataclass(frozen=True)
class AmbiguousProduct(Mistake):
    """`A[B, D, H] · W[D, H, F]` with nothing that says what to contract."""

    code: ClassVar[str] = "SH219"
    title: ClassVar[str] = "ambiguous product"
    shared: tuple[str, ...]

    def message(self) -> str:
        """List the dims and the readings."""
        return (
            f"the operands share {listed(self.shared)}: this product could be "
            f"{listed(self.readings(), 'or')}"
        )

    def readings(self) -> list[str]:
        """Give the possible subscripts: each dim alone, and together."""
        dims = self.shared
        if len(dims) > 3:
            return [*(contraction([d]) for d in dims), contraction(dims)]
        subsets = [
            [d for i, d in enumerate(dims) if mask >> i & 1] for mask in range(1, 2 ** len(dims))
        ]
        return [
            contraction(s)
            for s in sorted(subsets, key=lambda s: (len(s), [dims.index(d) for d in s]))
        ]

    def hint(self) -> str | None:
        """Say what to do."""
        return "write the dims to contract as a subscript"


@dataclass(frozen=True)
class NothingShared(Mistake):
    """`A[I] · B[J]`."""

    code: ClassVar[str] = "SH220"
    title: ClassVar[str] = "nothing to contract"
    left: tuple[str, ...]
    right: tuple[str, ...]

    def message(self) -> str:
        """Show both operands' dims."""
        return (
            f"the operands [{', '.join(self.left)}] and [{', '.join(self.right)}] "
            "share no dim to contract"
        )

    def hint(self) -> str | None:
        """Offer the outer product."""
        return "for an outer product write ⊙, or a result that has all the dims"


FORMS = {
    "take": "take_V(W, ids), with ids for each dim that is looked up",
    "put": "put_{E,C}(A, i, j), with ids for each new dim",
    "rotary": "rotary_H(x, angle)",
    "unrotary": "unrotary_H(x, angle)",
    "cross_entropy": "cross_entropy_V(logits, labels)",
    "where": "where(mask, A, B)",
    "equal": "equal(A, B)",
    "Update": "Update(W[D_X, F], dW[D_X, F])",
    "rmsnorm": "rmsnorm_D(A), or rmsnorm_D(A, 1e-5)",
}
"""The form of each call that takes more than one argument, or may."""


@dataclass(frozen=True)
class WrongArguments(Mistake):
    """`gelu(A, B)`, `equal(A)`."""

    code: ClassVar[str] = "SH223"
    title: ClassVar[str] = "wrong number of arguments"
    function: str
    wanted: int
    given: int

    def message(self) -> str:
        """Say how many it takes."""
        plural = "" if self.wanted == 1 else "s"
        return f"{self.function} takes {self.wanted} argument{plural}, not {self.given}"

    def hint(self) -> str | None:
        """Show the form."""
        longest = max(
            (head for head in FORMS if self.function.startswith(head)), key=len, default=""
        )
        form = FORMS.get(longest)
        return None if form is None else f"as in {form}"


@dataclass(frozen=True)
class WrongSubscript(Mistake):
    """`gelu_D(A)`, or `softmax(A)` with no dim."""

    code: ClassVar[str] = "SH224"
    title: ClassVar[str] = "wrong subscript"
    function: str
    dims: tuple[str, ...] | None = None

    def message(self) -> str:
        """Say whether one is missing or too much."""
        if self.dims is None:
            return f"{self.function} works on single elements and takes no subscript"
        return f"{self.function} needs the dim it works along as a subscript"

    def hint(self) -> str | None:
        """Show the form."""
        if not self.dims:
            return None
        return f"as in {self.function}_{self.dims[-1]}(..)"


@dataclass(frozen=True)
class WrongRename(Mistake):
    """`Rename_{B,S}(A[B, T, D])`."""

    code: ClassVar[str] = "SH241"
    title: ClassVar[str] = "wrong number of new names"
    tensor: str
    dims: tuple[str, ...]
    given: int

    def message(self) -> str:
        """Say how many it needs."""
        count = f"{self.given} name{'' if self.given == 1 else 's'}"
        return (
            f"Rename gives {self.tensor}[{', '.join(self.dims)}] {count}: "
            f"it needs one for each of its {len(self.dims)} dims"
        )

    def hint(self) -> str | None:
        """Show the form."""
        if not self.dims:
            return None
        return (
            f"list the result's dims in the order of [{', '.join(self.dims)}], "
            f"as in Rename_{{{','.join((*self.dims[:-1], f'{self.dims[-1]}2'))}}}({self.tensor})"
        )


@dataclass(frozen=True)
class RenameToAxes(Mistake):
    """`Rename_{B_X,S}(A[B_X, T])`."""

    code: ClassVar[str] = "SH242"
    title: ClassVar[str] = "axes in a subscript of dims"
    word: str
    head: str = "Rename"

    def message(self) -> str:
        """Name the word."""
        return f"the subscript of {self.head} lists dims alone, and {self.word} ends in an axis"

    def hint(self) -> str | None:
        """Say where the axes stand."""
        if self.head != "Rename":
            return "write the axes in the result's brackets"
        return "write the axes in the result's brackets: a renamed value is split as it was"


@dataclass(frozen=True)
class Unsettled(Mistake):
    """`AllGather(A[I_X])` with no result that says over what."""

    code: ClassVar[str] = "SH225"
    title: ClassVar[str] = "collective not settled"
    collective: str
    reason: str
    form: str

    def message(self) -> str:
        """Say what is missing."""
        return f"{self.collective}: {self.reason}"

    def hint(self) -> str | None:
        """Show the full form."""
        return f"write it in full, as in {self.form}"


@dataclass(frozen=True)
class RingMisplaced(Mistake):
    """`RingGather_Y(A[B, D_Y]) + C`."""

    code: ClassVar[str] = "SH251"
    title: ClassVar[str] = "ring out of place"
    ring: str
    why: str
    form: str

    def message(self) -> str:
        """Say what is wrong."""
        return f"{self.ring} {self.why}"

    def hint(self) -> str | None:
        """Show the form."""
        return f"as in {self.form}"


@dataclass(frozen=True)
class NotSplit(Mistake):
    """`AllGather_X(A[I, J])`."""

    code: ClassVar[str] = "SH226"
    title: ClassVar[str] = "axis splits nothing"
    collective: str
    axis: str
    operand: str
    split: tuple[str, ...] = ()
    partial: tuple[str, ...] = ()

    def message(self) -> str:
        """Name the axis and the operand."""
        return f"{self.collective} over {self.axis}: no dim of {self.operand} is split over {self.axis}"

    def hint(self) -> str | None:
        """Say what the axis or the operand allows."""
        if self.axis in self.partial:
            return (
                f"partial sums over {self.axis} are added up with "
                f"AllReduce_{self.axis} or ReduceScatter_{{{self.axis},..}}"
            )
        if self.split:
            return f"it is split over {listed(self.split)}"
        return f"write {self.operand} without {self.collective}, or split a dim of it"


@dataclass(frozen=True)
class NoTensor(Mistake):
    """`x = 2`, `gelu(2)`."""

    code: ClassVar[str] = "SH234"
    title: ClassVar[str] = "no tensor"

    def message(self) -> str:
        """Say so."""
        return "a number stands here where a tensor is needed"


@dataclass(frozen=True)
class Misplaced(Mistake):
    """`A + |B|`, `A / 0`, `1e999999`."""

    code: ClassVar[str] = "SH235"
    title: ClassVar[str] = "number out of place"
    text: str
    advice: str | None = None

    def message(self) -> str:
        """Say why."""
        return self.text

    def hint(self) -> str | None:
        """Give what helps, where something does."""
        return self.advice


@dataclass(frozen=True)
class RoundedPlaces(Mistake):
    """`angle = index_T ⊙ freq` in bf16, with T=8192."""

    code: ClassVar[str] = "SH246"
    title: ClassVar[str] = "places are rounded"
    severity: ClassVar[Severity] = "warning"
    index: str
    size: int
    result: str
    dtype: str
    exact: int
    dims: str

    def message(self) -> str:
        """Say what is lost."""
        return (
            f"{self.index} goes up to {self.size - 1}, and {self.dtype}, in which {self.result} is "
            f"computed, has whole numbers up to {self.exact} alone: places beyond are rounded"
        )

    def hint(self) -> str | None:
        """Say how to compute it."""
        return f"compute it in f32 on a line of its own, name: f32[{self.dims}] = .., and what it is made of as well"


@dataclass(frozen=True)
class TooDeep(Mistake):
    """Thousands of nested brackets."""

    code: ClassVar[str] = "SH237"
    title: ClassVar[str] = "nested too deeply"

    def message(self) -> str:
        """Say so."""
        return "this expression is nested too deeply"

    def hint(self) -> str | None:
        """Say what to do."""
        return "give the inner parts names, a line each"


@dataclass(frozen=True)
class ContractedKept(Mistake):
    """`A[I, J] ·_J B[J, K] -> C[I, J, K]`."""

    code: ClassVar[str] = "SH238"
    title: ClassVar[str] = "contracted dim in the result"
    result: str
    dim: str

    def message(self) -> str:
        """Name both."""
        return f"{self.dim} is summed over, so {self.result} cannot have it"

    def hint(self) -> str | None:
        """Say what to do."""
        return f"drop {self.dim} from the result, or multiply with ⊙ to keep it"


@dataclass(frozen=True)
class DimsChanged(Mistake):
    """`AllGather_X(A[I_X, J]) -> B[I]`."""

    code: ClassVar[str] = "SH239"
    title: ClassVar[str] = "dims changed"
    collective: str
    operand: tuple[str, ...]
    result: tuple[str, ...]

    def message(self) -> str:
        """Show both."""
        return (
            f"{self.collective} keeps the dims of its operand [{', '.join(self.operand)}], "
            f"but the result is written [{', '.join(self.result)}]"
        )


@dataclass(frozen=True)
class NoEffect(Mistake):
    """A line `A[I_X, J]`."""

    code: ClassVar[str] = "SH216"
    title: ClassVar[str] = "statement with no effect"

    def message(self) -> str:
        """Say so."""
        return "this line computes nothing"

    def hint(self) -> str | None:
        """Say what to write."""
        return "to say where a given tensor lives, write `input A: [I_X, J]`"


@dataclass(frozen=True)
class NotIds(Mistake):
    """`take_V(W, x)` where x is bf16."""

    code: ClassVar[str] = "SH271"
    title: ClassVar[str] = "ids are integers"
    function: str
    operand: str
    dtype: str

    def message(self) -> str:
        """Name the operand and its dtype."""
        return f"{self.function} takes whole numbers as ids, and {self.operand} is {self.dtype}"

    def hint(self) -> str | None:
        """Show how ids are declared."""
        return f"as in `input {self.operand}: int32[..]`; ids count from 0"


@dataclass(frozen=True)
class DimOfIds(Mistake):
    """`take_V(W[V, D], ids[V])`, `put_E(x[E, D], ids[E])`."""

    code: ClassVar[str] = "SH272"
    title: ClassVar[str] = "a dim that ids are of"
    function: str
    operand: str
    dim: str
    new: bool

    def message(self) -> str:
        """Name the dim and who has it."""
        if self.new:
            return (
                f"{self.dim} is a new dim of what {self.function} makes, and {self.operand} has it"
            )
        return (
            f"ids of {self.dim} are looked up along {self.dim}, and {self.operand} has that dim too"
        )

    def hint(self) -> str | None:
        """Say how it gets another name."""
        return f"read it under another name: {self.operand}[{self.dim}2], with {self.dim}2={self.dim} in dims"


@dataclass(frozen=True)
class PutWhere(Mistake):
    """`put_E(x, choice) ·_E W`: nothing says what is summed over."""

    code: ClassVar[str] = "SH273"
    title: ClassVar[str] = "a put with no result"
    dims: tuple[str, ...]
    summed: tuple[str, ...]

    def message(self) -> str:
        """Say what is not known."""
        return (
            f"put adds up over the dims that its result lacks, and nothing says which of "
            f"{listed(self.summed)} it has"
        )

    def hint(self) -> str | None:
        """Show a line of its own."""
        return f"write a line of its own, with the result's dims: Name[{', '.join(self.dims)}, ..] = put(..)"


@dataclass(frozen=True)
class NothingSelected(Mistake):
    """`where(m, 1, 0)`."""

    code: ClassVar[str] = "SH274"
    title: ClassVar[str] = "where chooses among numbers"

    def message(self) -> str:
        """Say so."""
        return (
            "where chooses between a tensor and a number, or two tensors, and here are two numbers"
        )

    def hint(self) -> str | None:
        """Offer arithmetic."""
        return "a comparison is 1 or 0 itself: `2 * (A > B) + 3` is 5 or 3"


@dataclass(frozen=True)
class UnknownIndex(Mistake):
    """`index_Q` in a program without a dim Q."""

    code: ClassVar[str] = "SH275"
    title: ClassVar[str] = "index of an unknown dim"
    name: str
    dim: str
    known: tuple[str, ...]

    def message(self) -> str:
        """Name both."""
        return f"{self.name} counts the places along {self.dim}, and no tensor has a dim {self.dim}"

    def hint(self) -> str | None:
        """Give the nearest dim."""
        return suggest(self.dim, self.known, "the dims there are")


@dataclass(frozen=True)
class WhereTo(Mistake):
    """`where(m, A, inf)`."""

    code: ClassVar[str] = "SH276"
    title: ClassVar[str] = "not a value to fill in"
    text: str

    def message(self) -> str:
        """Say what is wrong."""
        return self.text

    def hint(self) -> str | None:
        """Say what can be filled in."""
        return "a number or `-inf`, which is the lowest finite number of the dtype"
