"""A slice of a chip's torus behind the hardware's name: `tpu_v5p 16x16x16`."""

from __future__ import annotations

import re

_SIZES = r"[1-9][0-9]{0,5}(?:[x×][1-9][0-9]{0,5})+"
_NAMED = re.compile(rf"\s*(?P<name>.*\S)\s+(?P<shape>{_SIZES})\s*", re.DOTALL)


def split_shape(text: str) -> tuple[str, tuple[int, ...]]:
    """Give the hardware's name and the shape of the slice, empty where there is none."""
    found = _NAMED.fullmatch(text)
    return (text, ()) if found is None else (found["name"], read_shape(found["shape"]))


def read_shape(text: str) -> tuple[int, ...]:
    """Read `16x16x16`; empty where the text is no shape."""
    if re.fullmatch(_SIZES, text) is None:
        return ()
    return tuple(int(size) for size in re.split("[x×]", text))


def shape_text(shape: tuple[int, ...]) -> str:
    """Print a shape."""
    return "x".join(map(str, shape))
