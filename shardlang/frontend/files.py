"""From a path to a `Source`: whatever is no readable text is one error with its place.

Nothing is guessed: a file is UTF-8, perhaps with a byte-order mark.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import BinaryIO, NoReturn

from shardlang.diagnostics import Diagnostic, Mistake, ShardlangError
from shardlang.frontend.parse_errors import (
    CannotRead,
    EmptyFile,
    FileTooLarge,
    HasNul,
    IsADirectory,
    NoSuchFile,
    NotUtf8,
)
from shardlang.source import Source, Span

MAX_BYTES = 64 << 20
"""No program is larger than this; a device that never ends is refused at it."""


def read_source(path: str) -> Source:
    """Read a file, or standard input for `-`; raise `ShardlangError` (SH90x) where that fails."""
    if path == "-":
        return decode("<stdin>", _bytes(sys.stdin.buffer, "<stdin>"))
    return read_file(path)


def read_file(path: str) -> Source:
    """Read a file; raise `ShardlangError` (SH90x) where that fails."""
    try:
        with Path(path).open("rb") as file:
            data = _bytes(file, path)
    except FileNotFoundError:
        _refuse(path, NoSuchFile(path))
    except IsADirectoryError:
        _refuse(path, IsADirectory(path))
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL character
        _refuse(path, CannotRead(path, _reason(error)))
    return decode(path, data)


def decode(name: str, data: bytes) -> Source:
    """Read bytes as UTF-8 text; raise `ShardlangError` at the first byte that is none."""
    utf16 = data[:2] in (b"\xff\xfe", b"\xfe\xff")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        bad = data[len(data) - len(error.object) + error.start]
        before = error.object[: error.start].decode("utf-8")
        source = Source(name, before + "\ufffd" + _rest_of_line(error.object[error.start + 1 :]))
        _refuse_at(source, len(before.removeprefix("\ufeff")), NotUtf8(bad, utf16))
    source = Source(name, text)
    nul = source.text.find("\0")
    if nul >= 0:
        _refuse_at(source, nul, HasNul())
    if not source.text.strip():
        _refuse(name, EmptyFile())
    return source


def _rest_of_line(data: bytes) -> str:
    return data[:200].split(b"\n")[0].decode("utf-8", errors="replace")


def _bytes(file: BinaryIO, path: str) -> bytes:
    data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        _refuse(path, FileTooLarge(path, MAX_BYTES))
    return data


def _reason(error: OSError | ValueError) -> str:
    if isinstance(error, OSError) and error.errno is not None:
        return os.strerror(error.errno).lower()
    return str(error)


def _refuse(name: str, mistake: Mistake) -> NoReturn:
    _refuse_at(Source(name, ""), 0, mistake)


def _refuse_at(source: Source, offset: int, mistake: Mistake) -> NoReturn:
    span = Span(offset, min(offset + 1, len(source.text)))
    raise ShardlangError([Diagnostic(source, span, mistake)]) from None
