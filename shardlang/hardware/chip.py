"""A chip: its figures, its interconnect, and the ratios that follow from them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from shardlang.hardware.figures import Figure, FIGURES
from shardlang.hardware.topology import Topology, TopologyKind


@dataclass(frozen=True, slots=True)
class Hardware:
    """A chip: FLOP/s by dtype and the other figures, by their names in the catalogue.

    `kind` says how its chips are joined, None where nothing says so. `variants` are the names of
    the same chip with other figures; `basis` is the one of them that is a further name of the chip
    itself (`tpu_v5p:book`), empty where none is. `sources` says what short names in the figures'
    sources stand for.
    """

    name: str
    title: str
    flops: Mapping[str, Figure]
    figures: Mapping[str, Figure]
    kind: TopologyKind | None = None
    variants: tuple[str, ...] = ()
    basis: str = ""
    sources: Mapping[str, str] = field(default_factory=dict[str, str])

    def get(self, figure: str) -> float | None:
        """Give a figure's value (`flops.fp8`; `C` is `flops.bf16`), None where the chip has none."""
        if figure == "C":
            return self.flops["bf16"].value
        kind, _, dtype = figure.partition(".")
        found = self.flops.get(dtype) if kind == "flops" else self.figures.get(figure)
        return None if found is None else found.value

    def peak(self, dtype: str) -> float | None:
        """Give the FLOP/s at a dtype of the notation; both forms of f8 are `fp8`."""
        found = self.flops.get("fp8" if dtype.startswith("f8") else dtype)
        return None if found is None else found.value

    def all(self) -> Iterator[tuple[str, str, Figure]]:
        """Give every figure with its name and its meaning, peaks first."""
        for dtype, figure in self.flops.items():
            yield f"flops.{dtype}", f"peak, dense, {dtype}", figure
        for key, kind in FIGURES.items():
            if key in self.figures:
                yield key, kind.meaning, self.figures[key]

    @property
    def topology(self) -> Topology | None:
        """How its chips are joined, None where nothing says so."""
        if self.kind is None:
            return None
        torus = self.kind == "torus"
        axes = (self._count("ici_axes") or 1) if torus else 1
        link = self.get("w_ici")
        ports = self._count("links") or 2 * axes
        egress = self.get("W_ici")
        if torus:
            egress = None if link is None else ports * link
        pod = self.figures.get("pod")
        return Topology(
            kind=self.kind,
            axes=axes,
            link=link,
            egress=egress,
            node=self._count("pod" if torus else "node"),
            pod=() if pod is None else pod.shape,
            in_network=bool(self.get("in_network")),
            hop_latency=self.get("hop_latency"),
            wrap_axis=self._count("wrap_axis"),
            wrap_cube=self._count("wrap_cube"),
        )

    def _count(self, figure: str) -> int | None:
        value = self.get(figure)
        return None if value is None else int(value)


@dataclass(frozen=True, slots=True)
class Ratio:
    """A number that follows from a chip's figures: its unit, its meaning, and the formula.

    The formula gives None where the chip lacks a figure.
    """

    unit: str
    meaning: str
    of: Callable[[Hardware], float | None]


def _quotient(over: str, under: str) -> Callable[[Hardware], float | None]:
    def value(chip: Hardware) -> float | None:
        a, b = chip.get(over), chip.get(under)
        return None if a is None or b is None else a / b

    return value


def _product(*figures: str) -> Callable[[Hardware], float | None]:
    def value(chip: Hardware) -> float | None:
        result = 1.0
        for figure in figures:
            factor = chip.get(figure)
            if factor is None:
                return None
            result *= factor
        return result

    return value


def _for_a_dollar(chip: Hardware) -> float | None:
    peak, price = chip.get("C"), chip.get("price")
    return None if peak is None or price is None else peak * 3600 / price


def _egress(chip: Hardware) -> float | None:
    peak, node, link = chip.get("C"), chip.get("node"), chip.get("W_dcn")
    return None if peak is None or node is None or link is None else peak / (node * link)


RATIOS: Mapping[str, Ratio] = {
    "C/W_ici": Ratio(
        "FLOP/B", "bf16 FLOPs in the time of a byte on W_ici", _quotient("C", "W_ici")
    ),
    "C/W_hbm": Ratio(
        "FLOP/B", "bf16 FLOPs in the time of a byte on W_hbm", _quotient("C", "W_hbm")
    ),
    "int8/W_hbm": Ratio("FLOP/B", "the same at int8", _quotient("flops.int8", "W_hbm")),
    "fp8/W_hbm": Ratio("FLOP/B", "the same at fp8", _quotient("flops.fp8", "W_hbm")),
    "C/W_dcn": Ratio("FLOP/B", "as C/W_ici, for the data-centre network", _quotient("C", "W_dcn")),
    "w_ici*hop": Ratio(
        "B", "a hop with fewer is bound by its latency", _product("w_ici", "hop_latency")
    ),
    "C/USD": Ratio("FLOP/USD", "bf16 FLOPs for a dollar, at the peak", _for_a_dollar),
    "pod*C": Ratio("FLOP/s", "bf16 peak of a pod", _product("pod", "C")),
    "pod*hbm": Ratio("B", "memory of a pod", _product("pod", "hbm")),
    "pod/host": Ratio("hosts", "hosts of a pod", _quotient("pod", "host")),
    "pod*cores": Ratio("cores", "cores of a pod", _product("pod", "cores")),
    "node*C": Ratio("FLOP/s", "bf16 peak of a node", _product("node", "C")),
    "node*hbm": Ratio("B", "memory of a node", _product("node", "hbm")),
    "node*W_dcn": Ratio("B/s", "egress of a node", _product("node", "W_dcn")),
    "C/(node*W_dcn)": Ratio(
        "FLOP/B", "bf16 FLOPs of a chip in the time of a byte of that", _egress
    ),
}
"""What `shardlang hardware` derives from the figures, in the order in which it is shown."""


def ratios(chip: Hardware) -> Mapping[str, float]:
    """Give the derived numbers that a chip has the figures for, by their names in `RATIOS`."""
    values = {name: ratio.of(chip) for name, ratio in RATIOS.items()}
    return {name: value for name, value in values.items() if value is not None}
