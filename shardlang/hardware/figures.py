"""Figures of a chip: what each one is called, means and is measured in, and how units convert.

A figure is kept in its plain unit (B, B/s, FLOP/s, s, USD/h, or a count) whatever it is written in;
the conversion is exact, so that 95 GiB are 102005473280 B and 2.765 TB/s are 2765 GB/s.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure in its plain unit, where it comes from, and the date of that source's state.

    `date` is a year, a month or a day (`2025-02`), empty where nothing is said. `shape` is the
    topology of a pod or a host, as in 16x20x28; the value is then the number of chips.
    """

    value: float
    unit: str
    source: str
    date: str = ""
    shape: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Kind:
    """What a figure is: its plain unit, and its meaning in a few words."""

    unit: str
    meaning: str


FIGURES: Mapping[str, Kind] = {
    "hbm": Kind("B", "memory"),
    "W_hbm": Kind("B/s", "memory bandwidth"),
    "scratchpad": Kind("B", "on-chip memory of all cores: VMEM, shared memory"),
    "W_scratchpad": Kind("B/s", "bandwidth of the on-chip memory"),
    "cache": Kind("B", "last cache before the memory: L2, Infinity Cache, CMEM"),
    "W_ici": Kind("B/s", "interconnect: a torus axis, both ways; else egress, one way"),
    "w_ici": Kind("B/s", "what two neighbours can send, one way"),
    "ici_axes": Kind("axes", "axes of the interconnect"),
    "links": Kind("links", "links of a chip"),
    "node": Kind("chips", "chips of a node: behind one switch, or fully connected"),
    "pod": Kind("chips", "chips of the largest torus"),
    "wrap_axis": Kind("chips", "size at which an axis of a slice wraps around"),
    "wrap_cube": Kind("chips", "a slice wraps around if all its axes are multiples"),
    "in_network": Kind("yes/no", "the switch adds up what it passes on"),
    "hop_latency": Kind("s", "time of a hop over the interconnect, whatever its size"),
    "W_dcn": Kind("B/s", "data-centre network, egress of a chip"),
    "dcn_latency": Kind("s", "time of a message in the data-centre network"),
    "W_pcie": Kind("B/s", "link to the host, a chip, one way"),
    "host": Kind("chips", "chips of a host"),
    "cores": Kind("cores", "cores of a chip"),
    "devices": Kind("devices", "JAX devices of a chip"),
    "price": Kind("USD/h", "rent of a chip"),
}
"""The figures besides `flops`, in the order in which they are shown."""

EFFICIENCIES: Mapping[str, str] = {
    "C": "E_math",
    "W_ici": "E_ici",
    "W_dcn": "E_dcn",
    "W_hbm": "E_hbm",
}
"""What share of a figure is had in practice, by the figure: no part of a chip, and 1 unless set."""

COUNTS = frozenset({"axes", "links", "chips", "cores", "devices"})
"""Units of figures that are whole numbers."""

SHAPED = frozenset({"pod", "host"})
"""Figures that may be written as a shape, `"16x20x28"`."""

DTYPES = ("f64", "f32", "tf32", "bf16", "f16", "fp8", "fp6", "fp4", "int8", "int4")
"""What peaks can be given for; `fp8` is any form of 8-bit float."""

_PREFIXES: Mapping[str, int] = {
    "": 1,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "P": 10**15,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
}


def _spellings(plain: str) -> Mapping[str, Fraction]:
    """List the ways to write a unit, with what each is in the plain one."""
    bytes_ = {f"{prefix}B": Fraction(size) for prefix, size in _PREFIXES.items()}
    decimal = {prefix: size for prefix, size in _PREFIXES.items() if not prefix.endswith("i")}
    match plain:
        case "B":
            return bytes_
        case "B/s":
            bits = {f"{prefix}b/s": Fraction(size, 8) for prefix, size in decimal.items()}
            return {f"{unit}/s": size for unit, size in bytes_.items()} | bits
        case "FLOP/s":
            return {f"{prefix}FLOP/s": Fraction(size) for prefix, size in decimal.items()} | {
                f"{prefix}OP/s": Fraction(size) for prefix, size in decimal.items()
            }
        case "s":
            powers = {"s": 0, "ms": 3, "us": 6, "µs": 6, "ns": 9}
            return {unit: Fraction(1, 10**power) for unit, power in powers.items()}
        case _:
            return {plain: Fraction(1)}


def scale(unit: str, plain: str) -> Fraction | None:
    """Give what one `unit` is in the plain unit, None where it is no such unit."""
    return _spellings(plain).get(unit)


def nearest_unit(unit: str, plain: str) -> str | None:
    """Guess which unit was meant: `GBps` is GB/s."""
    import difflib  # noqa: PLC0415  (for the error alone)

    known = _spellings(plain)
    written = unit.replace("ps", "/s").replace("FLOPS", "FLOP/s").replace("FLOPs/s", "FLOP/s")
    if written in known:
        return written
    near = difflib.get_close_matches(unit, known, n=1, cutoff=0.7)
    return near[0] if near else None


def shape_text(shape: tuple[int, ...]) -> str:
    """Print a shape: `16x20x28`."""
    return "x".join(map(str, shape))
