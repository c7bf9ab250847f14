"""Programs of known models: a `config.json` of Hugging Face is read, and a page of notation written."""

from __future__ import annotations

from shardlang.models.config import Config, FAMILIES, read_config
from shardlang.models.page import count, open_sizes, Page, parameters, write
from shardlang.models.scheme import PARTS, Scheme, scheme

__all__ = [
    "FAMILIES",
    "PARTS",
    "Config",
    "Page",
    "Scheme",
    "count",
    "open_sizes",
    "parameters",
    "read_config",
    "scheme",
    "write",
]
