"""The rules of one operation, for strategy `book`: one row a situation of one mesh axis.

An operation's situation is looked at axis by axis, and only where the axis stands matters: in the
operands (`Split`, `Partial`) and in the wanted result (`Wish`). Exactly one row holds in each
situation; a test goes through them all. The rows are to be read against the four cases of *How to
Scale Your Model*, section 3.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum


class Split(Enum):
    """Where an axis splits the operands."""

    NOWHERE = "it splits no operand"
    KEPT = "it splits a dim that the result keeps"
    CONTRACTED = "it splits a contracted dim, alike in every operand that has the dim"
    LONELY = "it splits a contracted dim of one operand, and not alike in the others"
    MIXED = "it splits a contracted dim of one operand and a kept dim of another"
    CLASH = "it splits different kept dims of the operands"
    STRAY = "it splits a dim that is needed whole, or a reshaped one where it can't stay"


class Partial(Enum):
    """What partial sums over an axis mean for the operation."""

    NONE = "no operand is a partial sum over it"
    PASSES = "one is, and the operation is linear in it"
    MASKS = "some terms of a sum are, the others are whole, and the result is wanted partial"
    BLOCKED = "one is, and has to be reduced first"


class Wish(Enum):
    """Where the wanted result has the axis."""

    OPEN = "nothing is said of the result"
    SAME = "on the dim that the axis splits in the operands"
    OTHER = "on another dim"
    PARTIAL = "in its unreduced set"
    NOWHERE = "nowhere"


class Action(Enum):
    """What is done about the axis."""

    NOTHING = "leave the axis out of it"
    KEEP = "compute on the shards; the result is split as the operands are"
    KEEP_OR_GATHER = (
        "compute first and move the result, or gather the operand where that is cheaper"
    )
    SUM = "multiply the shards; the result is a partial sum"
    GATHER = "gather the operand over the axis"
    GATHER_STRAY = "gather the operand over the axis, then look again"
    GATHER_CONTRACTED = "gather the operand that has it on the contracted dim"
    GATHER_ONE = "gather one operand: not the one that the result is split as"
    SLICE = "keep the own shard of the operands: free"
    SLICE_CONTRACTED = "keep the own shard of the contracted dim: free; the result is a partial sum"
    LEAVE = "leave the partial sum to the result"
    MASK = "keep the whole terms on one device of the axis: free"
    REDUCE = "reduce the partial sums first, then look again"


@dataclass(frozen=True, slots=True)
class Rule:
    """One row: its name, its place in the book, when it holds, and what it does.

    `before` and `after` are an example in the notation; a test lowers the one and finds the other.
    """

    name: str
    citation: str
    action: Action
    splits: frozenset[Split]
    partials: frozenset[Partial]
    wishes: frozenset[Wish]
    before: str
    after: tuple[str, ...]
    reason: str

    def holds(self, split: Split, partial: Partial, wish: Wish) -> bool:
        """Say whether the row is the one for a situation."""
        return split in self.splits and partial in self.partials and wish in self.wishes


ANY_SPLIT, ANY_WISH = tuple(Split), tuple(Wish)


def _rule(
    name: str,
    citation: str,
    action: Action,
    *,
    split: Iterable[Split],
    wish: Iterable[Wish] = ANY_WISH,
    partial: Iterable[Partial] = (Partial.NONE,),
    example: tuple[str, tuple[str, ...]],
    reason: str,
) -> Rule:
    before, after = example
    return Rule(
        name, citation, action, frozenset(split), frozenset(partial), frozenset(wish),
        before, after, reason,
    )  # fmt: skip


RULES: tuple[Rule, ...] = (
    _rule(
        "case-1-local", "section 3, case 1", Action.KEEP,
        split=[Split.KEPT], wish=[Wish.OPEN, Wish.SAME],
        example=("A[I_X, J] · B[J, K_Y] -> C[I_X, K_Y]",
                 ("C[I_X, K_Y] = A[I_X, J] ·_J B[J, K_Y]",)),
        reason="{axis} splits {dim}, which is kept",
    ),
    _rule(
        "case-2-gather", "section 3, case 2", Action.GATHER,
        split=[Split.LONELY], wish=[Wish.OPEN, Wish.SAME, Wish.OTHER, Wish.NOWHERE],
        example=("A[I, J_X] · B[J, K] -> C[I, K]",
                 ("A[I, J] = AllGather_X(A[I, J_X])", "C[I, K] = A[I, J] ·_J B[J, K]")),
        reason="{dim} is contracted and split over {axis} in {tensor} only",
    ),
    _rule(
        "case-2-slice", "section 3, case 2, the other way round", Action.SLICE_CONTRACTED,
        split=[Split.LONELY], wish=[Wish.PARTIAL],
        example=("A[I, J_X] · B[J, K] -> C[I, K]{U_X}",
                 ("B[J_X, K] = Slice_{X,J}(B[J, K])", "C[I, K]{U_X} = A[I, J_X] ·_J B[J_X, K]")),
        reason="the result is wanted unreduced over {axis}",
    ),
    _rule(
        "case-2-fsdp", "section 3, case 2, and section 5, FSDP", Action.GATHER_CONTRACTED,
        split=[Split.MIXED],
        example=("In[B_X, D] · W[D_X, F] -> Out[B_X, F]",
                 ("W[D, F] = AllGather_X(W[D_X, F])", "Out[B_X, F] = In[B_X, D] ·_D W[D, F]")),
        reason="{dim} is contracted and split over {axis} in {tensor} only, while {axis} also "
        "splits {other}",
    ),
    _rule(
        "case-3-sum", "section 3, case 3", Action.SUM,
        split=[Split.CONTRACTED],
        example=("A[I, J_X] · B[J_X, K] -> C[I, K]",
                 ("C[I, K]{U_X} = A[I, J_X] ·_J B[J_X, K]", "C[I, K] = AllReduce_X(C[I, K]{U_X})")),
        reason="{dim} is contracted and split over {axis} alike in the operands",
    ),
    _rule(
        "case-4-gather-one", "section 3, case 4", Action.GATHER_ONE,
        split=[Split.CLASH],
        example=("A[I_X, J] · B[J, K_X] -> C[I, K_X]",
                 ("A[I, J] = AllGather_X(A[I_X, J])", "C[I, K_X] = A[I, J] ·_J B[J, K_X]")),
        reason="{axis} splits {dim} of {tensor} and {other}: the result can have it once",
    ),
    _rule(
        "needed-whole", "section 3, case 2, for what works along a dim", Action.GATHER_STRAY,
        split=[Split.STRAY], partial=[Partial.NONE, Partial.PASSES, Partial.MASKS],
        example=("rotary_H(q[B, H_X], angle[R]) -> k[B, H]",
                 ("q[B, H] = AllGather_X(q[B, H_X])", "k[B, H] = rotary_H(q[B, H], angle[R])")),
        reason="{axis} splits {dim} of {tensor}, {other}",
    ),
    _rule(
        "kept-elsewhere", "section 3, question 4", Action.KEEP_OR_GATHER,
        split=[Split.KEPT], wish=[Wish.OTHER, Wish.NOWHERE, Wish.PARTIAL],
        example=("A[I_X, J] · B[J, K] -> C[I, K]",
                 ("C[I_X, K] = A[I_X, J] ·_J B[J, K]", "C[I, K] = AllGather_X(C[I_X, K])")),
        reason="{axis} splits {dim} of {tensor}, and the result is wanted without it there",
    ),
    _rule(
        "target-slice", "section 3, a free reshard", Action.SLICE,
        split=[Split.NOWHERE], wish=[Wish.SAME, Wish.OTHER],
        example=("A[I, J] · B[J, K] -> C[I_X, K]",
                 ("A[I_X, J] = Slice_{X,I}(A[I, J])", "C[I_X, K] = A[I_X, J] ·_J B[J, K]")),
        reason="the result is wanted split over {axis}, which no operand uses",
    ),
    _rule(
        "target-partial", "section 3, a free reshard", Action.SLICE_CONTRACTED,
        split=[Split.NOWHERE], wish=[Wish.PARTIAL],
        example=("A[I, J] · B[J, K] -> C[I, K]{U_X}",
                 ("A[I, J_X] = Slice_{X,J}(A[I, J])", "B[J_X, K] = Slice_{X,J}(B[J, K])",
                  "C[I, K]{U_X} = A[I, J_X] ·_J B[J_X, K]")),
        reason="the result is wanted unreduced over {axis}, which no operand uses",
    ),
    _rule(
        "idle", "section 3, replication", Action.NOTHING,
        split=[Split.NOWHERE], wish=[Wish.OPEN, Wish.NOWHERE],
        example=("A[I, J] · B[J, K] -> C[I, K]", ("C[I, K] = A[I, J] ·_J B[J, K]",)),
        reason="{axis} is not used",
    ),
    _rule(
        "partial-passes", "section 3, linearity", Action.LEAVE,
        split=[Split.NOWHERE], partial=[Partial.PASSES],
        example=("A[I, J]{U_X} · B[J, K] -> C[I, K]",
                 ("C[I, K]{U_X} = A[I, J]{U_X} ·_J B[J, K]",
                  "C[I, K] = AllReduce_X(C[I, K]{U_X})")),
        reason="{tensor} is a partial sum over {axis}, and the operation is linear in it",
    ),
    _rule(
        "partial-masks", "section 3, linearity", Action.MASK,
        split=[Split.NOWHERE], partial=[Partial.MASKS],
        example=("z[B, D]{U_X} + b[D] -> o[B, D]{U_X}",
                 ("b[D]{U_X} = Mask_X(b[D])", "o[B, D]{U_X} = z[B, D]{U_X} + b[D]{U_X}")),
        reason="the sum is wanted unreduced over {axis}, so a whole term counts on one device",
    ),
    _rule(
        "partial-reduce", "section 3, what is not linear", Action.REDUCE,
        split=ANY_SPLIT, partial=[Partial.BLOCKED],
        example=("gelu(A[I, J]{U_X}) -> C[I, J]",
                 ("A[I, J] = AllReduce_X(A[I, J]{U_X})", "C[I, J] = gelu(A[I, J])")),
        reason="{tensor} is a partial sum over {axis}, and the operation is not linear in it",
    ),
    _rule(
        "partial-reduce-split", "section 3, what is not linear", Action.REDUCE,
        split=[s for s in Split if s not in (Split.NOWHERE, Split.STRAY)],
        partial=[Partial.PASSES, Partial.MASKS],
        example=("A[I, J]{U_X} · B[J, K_X] -> C[I, K_X]",
                 ("A[I, J] = AllReduce_X(A[I, J]{U_X})",
                  "C[I, K_X] = A[I, J] ·_J B[J, K_X]")),
        reason="{tensor} is a partial sum over {axis}, which splits another operand",
    ),
)  # fmt: skip
"""Every row. The four cases of the book come first."""


def lookup(split: Split, partial: Partial, wish: Wish) -> Rule:
    """Give the row that holds in a situation."""
    found = [rule for rule in RULES if rule.holds(split, partial, wish)]
    if len(found) != 1:
        names = ", ".join(rule.name for rule in found) or "none"
        raise LookupError(f"rules for {split}, {partial}, {wish}: {names}")
    return found[0]
