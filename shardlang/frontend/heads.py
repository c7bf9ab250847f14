"""The words that begin calls, by what they mean; the one list of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from shardlang.ir.functions import FUNCTION_ALIASES, FUNCTIONS
from shardlang.ir.ops import Relation

COLLECTIVES = ("AllGather", "ReduceScatter", "AllReduce", "AllToAll", "Permute", "Slice", "Mask")
"""Relayouts; they may stand without brackets."""

RING_GATHER, RING_SCATTER = "RingGather", "RingScatter"
RINGS = (RING_GATHER, RING_SCATTER)
"""Collectives that are done together with a product."""

WITH_DIM = ("ReduceScatter", "AllToAll", "Slice", RING_SCATTER)
"""Collectives whose subscript ends in a dim."""

RING_ATTENTION, RING_ATTENTION_BACK = "RingAttention", "RingAttentionBack"
ATTENTION = (RING_ATTENTION, RING_ATTENTION_BACK)
"""Attention whose keys and values go round, with several results; the first word of the subscript are axes."""

REDUCTIONS: Mapping[str, Literal["sum", "mean", "max", "min"]] = {
    "sum": "sum",
    "mean": "mean",
    "max": "max",
    "min": "min",
}
"""Reductions along dims."""

NORMALISATIONS = ("softmax", "rmsnorm", "logsumexp", "log_softmax", "cross_entropy")
"""What is written out as several statements, along a dim."""

PUT = "put"
LOOKUPS = ("take", PUT)
"""What takes the dims that ids are of as its subscript."""

SELECTIONS = ("where", *LOOKUPS)
"""What chooses, looks up, and adds up at places."""

ROTARY = ("rotary", "unrotary")
RESHAPE = "Reshape"
SHAPES = (*ROTARY, RESHAPE, "top", "rank")
"""What takes the dims that it needs whole, or makes, as its subscript."""

RENAME = "Rename"
"""What gives a value other dim names: the result's dims are its subscript."""

UPDATE = "Update"
"""The optimizer's step: a parameter's new value from the parameter and its gradient."""

SUBSCRIPTED = (
    *COLLECTIVES,
    *RINGS,
    *ATTENTION,
    *REDUCTIONS,
    *NORMALISATIONS,
    *LOOKUPS,
    *SHAPES,
    RENAME,
)
"""What goes on with a subscript: the word ends at the underscore, as in `sum_d_model(A)`."""

HEADS = (*FUNCTIONS, *FUNCTION_ALIASES, *SUBSCRIPTED, "equal", "where", UPDATE)
"""Everything that may be called."""

RELATIONS: Mapping[str, Relation] = {
    "==": "==", "!=": "!=", "≠": "!=", "ne": "!=", "neq": "!=",
    "<=": "<=", "≤": "<=", "le": "<=", "leq": "<=", "<": "<", "lt": "<",
    ">=": ">=", "≥": ">=", "ge": ">=", "geq": ">=", ">": ">", "gt": ">",
}  # fmt: skip
"""The spellings of comparisons, without the backslash of LaTeX."""
