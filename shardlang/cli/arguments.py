"""The options that commands share, and the values that they take."""

from __future__ import annotations

import re
from argparse import ArgumentParser, ArgumentTypeError, SUPPRESS
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

FORMATS = ("text", "json", "latex", "markdown")
"""What `--format` takes."""

STRATEGIES = ("book", "optimal")
"""What `--strategy` takes: the book's rules, or a search over all plans."""

KEEPING = {"none": False, "weights": True}
"""What `--keep-gathered` takes, and whether gathered weights are kept then."""
SUB_AXES = {"yes": True, "no": False}
"""What `--sub-axes` takes, and whether axes may be split into parts then."""

_NAME = r"[^\W\d]\w*'*"
_VALUE = re.compile(
    r"(?P<number>[0-9][0-9_]*(?:\.[0-9]*)?|\.[0-9]+)(?:[eE](?P<power>[+-]?[0-9]+))?"
    r"(?P<unit>Ki|Mi|Gi|Ti|[kKMGT])?\Z"
)
_UNITS = {
    None: 1,
    "k": 10**3,
    "K": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
}
_LONGEST_NUMBER = 1000
_LARGEST_POWER = 1000


@dataclass(frozen=True)
class Setting:
    """One `--set NAME=VALUE`: a size, or a hardware quantity."""

    name: str
    value: Fraction


def value(text: str) -> Fraction:
    """Read a number in the notation of sizes: `48_000`, `3M`, `32Ki`, `4e6`, `1.8e11`."""
    match = _VALUE.match(text.strip())
    if match is None:
        raise ArgumentTypeError(f"{shorten(text)} is not a number such as 4096, 48_000, 3M or 32Ki")
    digits, power = match["number"], int((match["power"] or "0")[:9])
    if len(digits) > _LONGEST_NUMBER or abs(power) > _LARGEST_POWER:
        raise ArgumentTypeError(f"{shorten(text)} is too large a number")
    number = Fraction(digits.rstrip(".").replace("_", "")) * Fraction(10) ** power
    return number * _UNITS[match["unit"]]


def setting(text: str) -> Setting:
    """Read `NAME=VALUE`."""
    name, equals, number = text.partition("=")
    name = name.strip()
    if not equals or re.fullmatch(_NAME, name) is None:
        raise ArgumentTypeError(f"{shorten(text)} is not NAME=VALUE, as in B=3M")
    return Setting(name, value(number))


def mesh(text: str) -> str:
    """Take the text of a mesh line, which the front end reads; refuse what is plainly none."""
    if "\n" in text or re.match(rf"\s*{_NAME}\s*(?:[=,@]|\Z|\s\S)", text) is None:
        raise ArgumentTypeError(f"{shorten(text)} is not a mesh such as X=16,Y=4")
    return text


def duration(text: str) -> float:
    """Read seconds: `10s`, `500ms`, `2min`, or a bare number."""
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(ms|s|min)?\s*", text)
    if match is None or len(text) > _LONGEST_NUMBER:
        raise ArgumentTypeError(f"{shorten(text)} is not a time such as 10s, 500ms or 2min")
    return float(match[1]) * {"ms": 0.001, "s": 1.0, "min": 60.0, None: 1.0}[match[2]]


def memory(text: str) -> Fraction:
    """Read bytes: `95GB`, `90GiB`, `16_000MB`, or a bare number."""
    try:
        found = value(re.sub(r"B?\Z", "", text.replace(" ", "")))
    except ArgumentTypeError:
        found = Fraction(0)
    if found <= 0:
        raise ArgumentTypeError(f"{shorten(text)} is not a size such as 95GB, 90GiB or 500MB")
    return found


def share(text: str) -> Fraction:
    """Read a share of a whole: `0.4` or `40%`."""
    percent = text.strip().endswith("%")
    found = value(text.strip().removesuffix("%"))
    found = found / 100 if percent else found
    if not 0 < found <= 1:
        raise ArgumentTypeError(f"{shorten(text)} is not a share such as 0.4 or 40%")
    return found


def positive(text: str) -> Fraction:
    """Read a number above 0."""
    found = value(text)
    if found <= 0:
        raise ArgumentTypeError(f"{shorten(text)} is not a number above 0")
    return found


def shorten(text: str, limit: int = 60) -> str:
    """Quote what was typed, cut where it is long."""
    return f"'{text}'" if len(text) <= limit else f"'{text[: limit - 3]}...'"


def add_source(parser: ArgumentParser, *, several: bool = False) -> None:
    """Add where the program comes from, or `several` of them, and what overrides it."""
    if several:
        parser.add_argument("files", metavar="FILE", nargs="*", help=".shd files, or - for stdin")
    else:
        parser.add_argument("file", metavar="FILE", nargs="?", help="a .shd file, or - for stdin")
    parser.add_argument(
        "-e",
        dest="text",
        metavar="TEXT",
        action="append",
        help="a line of notation instead of a file (repeatable)",
    )
    group = parser.add_argument_group("sizes and hardware")
    group.add_argument(
        "--set",
        dest="settings",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        type=setting,
        help="the size of a dim or an axis, or a hardware quantity (repeatable; wins over the file)",
    )
    group.add_argument("--mesh", metavar="X=16,Y=4", type=mesh, help="the mesh axes")
    group.add_argument(
        "--hardware",
        metavar="NAME|FILE",
        help="a name of the catalogue, or a TOML; with a slice's shape as in 'tpu_v5e 4x8'",
    )


def add_lowering(parser: ArgumentParser, *, shown: bool = True) -> None:
    """Add how collectives are chosen; commands that choose none take them and do nothing."""
    group = parser.add_argument_group("collectives") if shown else parser

    def described(text: str) -> str:
        return text if shown else SUPPRESS

    group.add_argument(
        "--strategy",
        choices=STRATEGIES,
        default="book",
        help=described("the rules (book), or a search for the best plan (optimal)"),
    )
    group.add_argument(
        "--objective",
        choices=("bytes", "time", "serial"),
        help=described(
            "what is least: bytes moved, T_overlapped or T_serial (optimal; time where the hardware "
            "is known, else bytes)"
        ),
    )
    group.add_argument(
        "--prices",
        choices=("book", "link"),
        default="link",
        help=described(
            "what a collective costs: the book's bytes, or what a device sends (optimal)"
        ),
    )
    group.add_argument(
        "--budget",
        metavar="10s",
        type=duration,
        help=described("how long to search; the best so far is given with its gap (optimal)"),
    )
    group.add_argument(
        "--sub-axes",
        choices=tuple(SUB_AXES),
        help=described(
            "split mesh axes into parts where that is cheaper, or don't (optimal; by default where at "
            "most 3 axes come out)"
        ),
    )
    group.add_argument(
        "--pass",
        dest="passes",
        choices=("both", "forward"),
        default="both",
        help=described("forward and backward, or forward alone (inference)"),
    )
    group.add_argument(
        "--keep-gathered",
        choices=tuple(KEEPING),
        help=described(
            "keep gathered weights for the backward pass, or none (by default those that the save line "
            "names; with optimal, what is best)"
        ),
    )
    group.add_argument(
        "--memory-limit",
        metavar="95GB",
        type=memory,
        help=described("the most memory that a device may need, as cost reports it"),
    )


def add_overlap(parser: ArgumentParser) -> None:
    """Add whether collectives are done in pieces, beside products."""
    group = parser.add_argument_group("overlap")
    group.add_argument(
        "--overlap",
        dest="rings",
        action="store_const",
        const="paying",
        help="gathers and scatters in rings beside their products, where the sizes and the hardware say "
        "that it pays",
    )
    group.add_argument(
        "--overlap-all",
        dest="rings",
        action="store_const",
        const="all",
        help="the same for all that can be a ring, whether it pays or not",
    )
    add_attention(parser)


def add_attention(parser: ArgumentParser) -> None:
    """Add whether keys and values go round or are gathered."""
    group = parser.add_argument_group("attention")
    group.add_argument(
        "--attention",
        choices=("gather", "ring"),
        default="gather",
        help="where keys and values are split by position: each device gathers all of them (default), or "
        "they go round with a running softmax (ring), and no device has all of them, or the scores",
    )


def add_model(parser: ArgumentParser, *, hbm: bool = True, rings: bool = False) -> None:
    """Add how collectives are priced and, with `hbm`, whether contractions wait for memory.

    With `rings`, gathers and scatters may also be done in pieces, beside products.
    """
    group = parser.add_argument_group("cost model")
    group.add_argument(
        "--model",
        choices=("book", "link", "link-one-way", "link-ring"),
        default="book",
        help="the book's bytes (default); or link: what one device sends, with (n-1)/n, and the time of "
        "the busiest link or of the hops, on rings, lines, tori, switched nodes and across nodes "
        "(link-one-way: rings one way round; link-ring: rings through switches)",
    )
    group.add_argument(
        "--overlap",
        choices=("axes", "rings", "axes,rings") if rings else ("axes",),
        help="axes: collectives over different axes overlap each other"
        + ("; rings: gathers and scatters overlap their products, where it pays" if rings else ""),
    )
    if rings:
        add_attention(parser)
    if hbm:
        group.add_argument(
            "--hbm",
            action="store_true",
            help="no contraction takes less than its reads and writes do at W_hbm",
        )


def add_output(parser: ArgumentParser, formats: Sequence[str] = FORMATS) -> None:
    """Add how and where the result is written."""
    group = parser.add_argument_group("output")
    group.add_argument("--format", choices=formats, default="text", help="text is the default")
    group.add_argument("-o", dest="output", metavar="FILE", help="write the result to a file")
    group.add_argument("--no-color", action="store_true", help="no colors (nor with NO_COLOR set)")
