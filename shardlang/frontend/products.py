"""Which dims a product contracts.

A subscript says so; else the declared result does, by what it lacks; else there is one shared dim.
Where several readings are left, that is an error that lists them.
"""

from __future__ import annotations

from collections.abc import Sequence

from shardlang.diagnostics import Reporter
from shardlang.frontend import expression_errors
from shardlang.frontend.syntax import Product, Word
from shardlang.frontend.terms import Want
from shardlang.ir.types import Dim


def names(dims: Sequence[Dim]) -> tuple[str, ...]:
    """Give the names of dims."""
    return tuple(dim.name for dim in dims)


def dims_named(
    words: Sequence[Word], known: Sequence[Dim], where: str, reporter: Reporter
) -> tuple[Dim, ...] | None:
    """Read a subscript as dims of an operand: `D`, `{D,H}`, or single letters as in `DH`."""
    found: dict[Dim, None] = {}
    wrong = False
    for word in words:
        letters = [Dim(letter) for letter in word.text]
        if Dim(word.text) in known:
            found[Dim(word.text)] = None
        elif len(letters) > 1 and all(dim in known for dim in letters):
            found.update((dim, None) for dim in letters)
        else:
            wrong = True
            reporter.report(word.span, expression_errors.UnknownDim(word.text, names(known), where))
    return None if wrong else tuple(found)


def contracted(
    product: Product,
    left: Sequence[Dim],
    right: Sequence[Dim],
    want: Want | None,
    reporter: Reporter,
) -> tuple[Dim, ...] | None:
    """Give the dims that a `·` contracts; None where that is an error, which is then reported."""
    both = tuple(dict.fromkeys((*left, *right)))
    if product.subscript is not None:
        return dims_named(product.subscript, both, "either operand", reporter)
    shared = tuple(dim for dim in left if dim in right)
    if want is not None and not want.chain:
        return tuple(dim for dim in shared if dim not in want.axes)
    if len(shared) == 1:
        return shared
    if shared:
        reporter.report(product.operator, expression_errors.AmbiguousProduct(names(shared)))
        return None
    if want is not None and all(dim in want.axes for dim in both):
        return ()
    reporter.report(product.operator, expression_errors.NothingShared(names(left), names(right)))
    return None
