"""FLOPs of a step on one device: a row an operation.

A contraction counts one multiply-add, 2 FLOPs, a point of its index space: 2 times the product of
all its distinct dims, however many operands it has. Everything else is *elementwise* and counted
apart, as the book does: totals and T_math hold contractions alone, since elementwise work runs on
another unit and is bound by memory. (`counts` says which steps these are.)

| operation                 | FLOPs on one device                                              |
| ------------------------- | ---------------------------------------------------------------- |
| contraction               | 2 a point of the index space                                      |
| product, nothing summed   | (operands - 1) an element                                         |
| linear combination        | a sum each, and a product for each factor that is not 1 or -1     |
| function, quotient        | 1 an element                                                      |
| comparison, `where`       | 1 an element                                                      |
| `take`, `put`             | 1 an element of the rows that are read or added                   |
| reduction                 | 1 an element of the operand                                       |
| rotary                    | 3 an element: two products and a sum                              |
| top, rank                 | 1 an element of the operand, as one comparison                    |
| other dims, new names     | nothing                                                           |
| ring attention            | 4 a point of its scores times the dims summed over: two products; |
|                           | 10 backward, as the scores are made again                         |
| update                    | as the optimizer takes an element (`UPDATES`)                     |

A dim counts with its local size: its size over the axes that split it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction

from shardlang.cost.local import local_elements
from shardlang.ir.functions import FUNCTIONS
from shardlang.ir.ops import (
    Compare,
    Divide,
    Einsum,
    Linear,
    Map,
    Put,
    Rank,
    Reduce,
    Rename,
    Reshape,
    RingAttention,
    Rotary,
    Select,
    Take,
    Top,
    Update,
)
from shardlang.ir.plan import Pass, Step
from shardlang.ir.size import Monomial
from shardlang.ir.types import Array, Axis


def split_axes(step: Step) -> tuple[Axis, ...]:
    """List the axes that split a step's index space; over all others, devices do the same work."""
    step = step.computing
    arrays = (*step.inputs, step.output)
    return tuple(
        dict.fromkeys(axis for a in arrays for split in a.layout.sharding for axis in split)
    )


def index_space(step: Step) -> Monomial:
    """Give the number of points of a step's index space on one device."""
    dims = dict.fromkeys(dim for a in (*step.inputs, step.output) for dim in a.tensor.dims)
    powers = [(dim.name, 1) for dim in dims] + [(axis.name, -1) for axis in split_axes(step)]
    return Monomial(Fraction(1), tuple(sorted(powers)))


def _einsum(step: Step) -> Monomial:
    assert isinstance(step.op, Einsum)
    times = 2 if step.op.contracted else len(step.inputs) - 1
    return index_space(step) * times


def _linear(step: Step) -> Monomial:
    assert isinstance(step.op, Linear)
    sums = len(step.op.coefficients) - 1 + bool(step.op.constant)
    products = sum(abs(c.value) != 1 or bool(c.powers) for c in step.op.coefficients)
    return local_elements(step.output) * (sums + products)


def _map(step: Step) -> Monomial:
    assert isinstance(step.op, Map)
    return local_elements(step.output) * FUNCTIONS[step.op.function].flops


def _each(step: Step) -> Monomial:
    return local_elements(step.output)


def _reduce(step: Step) -> Monomial:
    return local_elements(step.inputs[0])


def _rows(step: Step) -> Monomial:
    """Count an element of the rows that are read or added; those of a split table are shared evenly."""
    assert isinstance(step.op, Take | Put)
    return index_space(step) / Monomial.of(*(dim.name for dim in step.op.dims))


def _nothing(step: Step) -> Monomial:
    return local_elements(step.output) * 0


UPDATES: Mapping[str, int] = {
    "adam": 14, "adamw": 16, "sgd": 2, "momentum": 4, "lion": 11, "muon": 4, "adafactor": 14,
    "none": 0,
}  # fmt: skip
"""FLOPs of an update an element: adam two moments (3 and 4), their corrections (2), root, epsilon and
quotient (3), the step (2); adamw weight decay besides (2). Of muon the moment and the step alone: its
matrix products are not counted. adafactor's rows and columns are taken as adam's moments."""


def _update(step: Step) -> Monomial:
    assert isinstance(step.op, Update)
    return local_elements(step.output) * UPDATES.get(step.op.optimizer or "none", 0)


def _rotary(step: Step) -> Monomial:
    return local_elements(step.output) * 3


def _compared(step: Step) -> Monomial:
    return local_elements(step.inputs[0])


def _attention(step: Step) -> Monomial:
    assert isinstance(step.op, RingAttention)
    return index_space(step) * (10 if step.op.back else 4)


FLOPS: Mapping[type, Callable[[Step], Monomial]] = {
    Einsum: _einsum,
    Linear: _linear,
    Map: _map,
    Divide: _each,
    Compare: _each,
    Select: _each,
    Take: _rows,
    Put: _rows,
    Reduce: _reduce,
    Rename: _nothing,
    Update: _update,
    Rotary: _rotary,
    Reshape: _nothing,
    Top: _compared,
    Rank: _compared,
    RingAttention: _attention,
}
"""How an operation's FLOPs are counted."""


def flops(step: Step) -> Monomial:
    """Give the FLOPs of a compute step on one device; the coefficient may be zero."""
    step = step.computing
    row = FLOPS.get(type(step.op))
    if row is None:
        raise LookupError(f"internal error: {type(step.op).__name__} has no row in the table FLOPS")
    return row(step)


def multiplied(step: Step) -> tuple[Array, ...]:
    """Give the operands that a contraction multiplies: of attention not the logarithm, nor the mask's."""
    op = step.op
    return step.inputs[op.query : op.query + 3] if isinstance(op, RingAttention) else step.inputs


def counts(step: Step, section: Pass) -> bool:
    """Say whether a step's FLOPs count for T_math: whether it is a contraction.

    One exception: a contraction of the backward pass whose operands all have the same dims is the
    gradient of a product with broadcasting (a norm's scale, a softmax's sum). It reuses nothing, and
    is elementwise work as the product was.
    """
    op = step.computing.op
    if isinstance(op, RingAttention):
        return True
    if not isinstance(op, Einsum) or not op.contracted:
        return False
    dims = {frozenset(array.tensor.dims) for array in step.inputs}
    return section == "forward" or len(dims) > 1
