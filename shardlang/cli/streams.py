"""Where results and messages go: UTF-8 always, and no traceback when nobody reads them."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import Any, IO, TextIO

DEFAULT_WIDTH = 80
"""Columns of a table where the terminal doesn't say."""


class UsageError(Exception):
    """The command was used wrongly: exit status 2, with this message."""


class OutputError(Exception):
    """The result could not be written: exit status 1, with this message."""


def use_utf8() -> None:
    """Write the notation's characters whatever the locale says; escape what UTF-8 can't hold."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")


def _present(stream: TextIO | None) -> TextIO | None:
    """Give a standard stream, None where the caller closed it (Python's stubs forget that)."""
    return None if stream is None or stream.closed else stream


def is_terminal(stream: TextIO | None) -> bool:
    """Say whether a person looks at the stream."""
    present = _present(stream)
    return present is not None and present.isatty()


def wants_color(stream: TextIO | None, *, forbidden: bool) -> bool:
    """Say whether to color: on a terminal, without `--no-color` and `NO_COLOR`."""
    if forbidden or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return is_terminal(stream)


def width() -> int:
    """Give the columns to lay tables out for: `COLUMNS`, else the terminal's, else 80."""
    asked = os.environ.get("COLUMNS", "")
    if asked.isascii() and asked.isdigit() and int(asked[:6]) > 0:
        return int(asked[:6])
    if not is_terminal(sys.stdout):
        return DEFAULT_WIDTH
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or DEFAULT_WIDTH
    except (OSError, ValueError):
        return DEFAULT_WIDTH


def write_result(text: str, path: str | None = None) -> None:
    """Write a result to stdout, or to the file of `-o`; a last line gets its end.

    A reader that went away is no error. Raises `UsageError` where the file can't be written, and
    `OutputError` where stdout is closed or full.
    """
    if text and not text.endswith("\n"):
        text += "\n"
    if path is not None and path != "-":
        write_file(text.encode("utf-8", "backslashreplace"), path)
        return
    stdout = _present(sys.stdout)
    if stdout is None:
        if text:
            raise OutputError("there is no standard output to write the result to")
        return
    _flushed(stdout, stdout, text)


def write_bytes(content: bytes) -> None:
    """Write a result that is no text to stdout; raises `OutputError` as `write_result` does."""
    stdout = _present(sys.stdout)
    if stdout is None:
        raise OutputError("there is no standard output to write the result to")
    _flushed(stdout, stdout.buffer, content)


def _flushed(stdout: TextIO, stream: IO[Any], content: object) -> None:
    try:
        stream.write(content)
        stream.flush()
    except BrokenPipeError:
        discard(stdout)
    except OSError as error:
        discard(stdout)
        raise OutputError(f"can't write to standard output: {error.strerror or error}") from None


def write_file(content: bytes, path: str) -> None:
    """Write a file; raises `UsageError` where that can't be done."""
    try:
        Path(path).write_bytes(content)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UsageError(f"can't write {path}: {why}") from None


def complain(text: str) -> None:
    """Write a message to stderr; one that nobody can read is dropped."""
    stderr = _present(sys.stderr)
    if stderr is None:
        return
    try:
        stderr.write(text if text.endswith("\n") else text + "\n")
        stderr.flush()
    except OSError:
        discard(stderr)


def discard(stream: TextIO) -> None:
    """Send the rest of a broken stream nowhere, so that closing it at exit says nothing."""
    try:
        descriptor = stream.fileno()
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, descriptor)
        os.close(nowhere)
    except (OSError, ValueError):
        return


def finish() -> None:
    """Flush what argparse may have left, before Python does it with a traceback."""
    for stream in (sys.stdout, sys.stderr):
        present = _present(stream)
        if present is None:
            continue
        try:
            present.flush()
        except OSError:
            discard(present)
