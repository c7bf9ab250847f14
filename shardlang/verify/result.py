"""What a verification found, as data that renders to text and JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from textwrap import wrap
from typing import Any


@dataclass(frozen=True, slots=True)
class ArrayCheck:
    """One array against the reference.

    `error` is the largest difference relative to the largest value; `devices` says on how many
    devices the shard was held against its part of the reference (0 for partial results).
    """

    name: str
    kind: str
    dtype: str
    error: float
    tolerance: float
    devices: int = 0
    problem: str = ""

    @property
    def ok(self) -> bool:
        """Whether it agrees."""
        return not self.problem and self.error <= self.tolerance


@dataclass(frozen=True, slots=True)
class CollectivesCheck:
    """The collectives of one function of the module against those that JAX lowered.

    `floats` names the float types of that module: a plan with narrow ones is run again in f32.
    """

    function: str
    planned: int
    lowered: int
    missing: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    floats: str = ""

    @property
    def ok(self) -> bool:
        """Whether they are equal, one to one."""
        return not self.missing and not self.extra


@dataclass(frozen=True)
class VerifyResult:
    """All that one verification compared; `problems` are what else was wrong."""

    arrays: tuple[ArrayCheck, ...] = ()
    collectives: tuple[CollectivesCheck, ...] = ()
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    mesh: Mapping[str, int] = field(default_factory=dict[str, int])
    dims: Mapping[str, int] = field(default_factory=dict[str, int])

    @property
    def ok(self) -> bool:
        """Whether everything agreed, and there was something to compare."""
        checks = (*self.arrays, *self.collectives)
        return bool(self.arrays) and not self.problems and all(check.ok for check in checks)

    @property
    def largest_error(self) -> float:
        """The largest relative error of any array."""
        return max((check.error for check in self.arrays), default=0.0)

    def joined(self, other: VerifyResult) -> VerifyResult:
        """Add another run of the same plan."""
        return VerifyResult(
            self.arrays + other.arrays,
            self.collectives + other.collectives,
            tuple(dict.fromkeys(self.problems + other.problems)),
            tuple(dict.fromkeys(self.notes + other.notes)),
            self.mesh or other.mesh,
            self.dims or other.dims,
        )

    def to_text(self) -> str:
        """Write what was compared, a line each, and the verdict."""
        sizes = ", ".join(f"{k}={v}" for k, v in (*self.mesh.items(), *self.dims.items()))
        devices = 1
        for size in self.mesh.values():
            devices *= size
        ran = f"ran on {devices} simulated device{'s' * (devices != 1)}: {sizes}"
        lines = _wrapped(ran) if sizes else []
        for check in self.arrays:
            verdict = "ok" if check.ok else f"WRONG {check.problem}".rstrip()
            where = f", on {check.devices} devices" if check.devices > 1 else ""
            lines += _wrapped(
                f"{check.kind} {check.name} ({check.dtype}): error {check.error:.1e}, "
                f"allowed {check.tolerance:.0e}{where}: {verdict}"
            )
        for check in self.collectives:
            lines += _of_collectives(check, several=len({x.floats for x in self.collectives}) > 1)
        lines += [line for text in self.problems for line in _wrapped(f"problem: {text}")]
        lines += [line for text in self.notes for line in _wrapped(f"note: {text}")]
        lines.append(
            f"verified: largest error {self.largest_error:.1e}"
            if self.ok
            else "verification FAILED"
        )
        return "\n".join(lines) + "\n"

    def to_dict(self) -> dict[str, Any]:
        """Give it as JSON values, with the verdicts written out."""
        plain = asdict(self)
        plain["ok"] = self.ok
        plain["largest_error"] = self.largest_error
        for row, check in zip(plain["arrays"], self.arrays, strict=True):
            row["ok"] = check.ok
        for row, check in zip(plain["collectives"], self.collectives, strict=True):
            row["ok"] = check.ok
        return plain

    @staticmethod
    def from_dict(plain: Mapping[str, Any]) -> VerifyResult:
        """Read what `to_dict` gave."""

        def tuples(row: Mapping[str, Any]) -> dict[str, Any]:
            return {k: tuple(v) if isinstance(v, list) else v for k, v in row.items() if k != "ok"}

        return VerifyResult(
            tuple(ArrayCheck(**tuples(row)) for row in plain["arrays"]),
            tuple(CollectivesCheck(**tuples(row)) for row in plain["collectives"]),
            tuple(plain["problems"]),
            tuple(plain["notes"]),
            dict(plain["mesh"]),
            dict(plain["dims"]),
        )


def _wrapped(text: str) -> list[str]:
    """Break a text into lines of 80 columns."""
    return wrap(text, 80, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def _of_collectives(check: CollectivesCheck, *, several: bool) -> list[str]:
    """Write a comparison of collectives; `several` says that there is more than one module."""
    module = f" ({check.floats})" if several else ""
    start = f"collectives of {check.function}{module}: {check.planned} in the plan, "
    verdict = ("equal" if several else "equal one to one") if check.ok else "DIFFERENT"
    lines = _wrapped(f"{start}{check.lowered} lowered by JAX: {verdict}")
    lines += [f"  only in the plan: {text}" for text in check.missing]
    lines += [f"  only in JAX: {text}" for text in check.extra]
    return lines
