"""The hardware catalogue: chips by name, and those of a user's own files.

Reading is cheap: nothing but `tomllib`, and only when asked for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from shardlang.diagnostics import Diagnostic, ShardlangError
from shardlang.hardware.chip import Hardware
from shardlang.hardware.errors import NotOneChip, UnknownHardware, UnreadableHardware
from shardlang.hardware.reader import base_names, read_chips
from shardlang.hardware.slices import split_shape
from shardlang.source import Source, Span

CATALOGUE = Path(__file__).with_name("catalogue.toml")


def load_hardware(name: str, source: Source | None = None, span: Span | None = None) -> Hardware:
    """Load a chip by its name in the catalogue, or from a TOML file by its path (`FILE#CHIP`).

    A variant is named after a colon: `tpu_v5p:spec`, `FILE#CHIP:VARIANT`. A slice's shape behind the
    name (`tpu_v5p 4x4x4`) is not looked at. `source` and `span` say where the name was written; a
    relative path is looked for beside that source too. Raises
    `ShardlangError`.
    """
    name, _ = split_shape(name)
    chips = _catalogue()
    key = re.sub(r"[\s-]+", "_", name.strip()).lower()
    if key in chips:
        return chips[key]
    where = source or Source("--hardware", name)
    place = span or Span(0, len(where.text) if source is None else 0)
    path, _, chosen = name.partition("#")
    found = _find(path, source)
    if found is None:
        import difflib  # noqa: PLC0415  (for the error alone)

        near = difflib.get_close_matches(key, chips, n=1, cutoff=0.5)
        mistake = UnknownHardware(name, near[0] if near else None, known_hardware())
        raise ShardlangError([Diagnostic(where, place, mistake)])
    try:
        text = found.read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        why = "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else str(error.strerror)
        raise ShardlangError([Diagnostic(where, place, UnreadableHardware(path, why))]) from None
    own = read_chips(Source(path, text), found.stem)
    names = base_names(own)
    if not chosen or chosen.startswith(":"):
        chosen = f"{names[0]}{chosen}" if len(names) == 1 else ""
    if chosen not in own:
        mistake = NotOneChip(path, names, chosen)
        raise ShardlangError([Diagnostic(where, place, mistake)])
    return own[chosen]


def known_hardware() -> tuple[str, ...]:
    """List the chips in the catalogue, without variants."""
    return base_names(_catalogue())


def _find(path: str, source: Source | None) -> Path | None:
    """Find a file as named, or beside the program that names it."""
    tries = [Path(path)]
    if source is not None:
        tries.append(Path(source.name).parent / path)
    for candidate in tries:
        try:
            if path and candidate.exists():
                return candidate
        except (OSError, ValueError):  # too long, or with a zero byte in it
            return None
    return None


@cache
def _catalogue() -> Mapping[str, Hardware]:
    return read_chips(Source(CATALOGUE.name, CATALOGUE.read_text(encoding="utf-8")), "")
