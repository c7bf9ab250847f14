"""What can be wrong with layouts: the mistakes that rules and passes report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from shardlang.diagnostics import Mistake, Severity, Told


@dataclass(frozen=True)
class IllegalStep(Told):
    """`AllGather_Y(W[D_X, F])`: nothing of W is split over Y."""

    code: ClassVar[str] = "SH301"
    title: ClassVar[str] = "not possible as it stands"


@dataclass(frozen=True)
class LocalResult(Mistake):
    """`C[I, K] = A[I, J_X] ·_J B[J_X, K]` in an explicit program gives `C[I, K]{U_X}`."""

    code: ClassVar[str] = "SH302"
    title: ClassVar[str] = "another layout comes out"

    made: str
    declared: str
    instead: str | None = None

    def message(self) -> str:
        """Say what comes out."""
        return f"this gives {self.made}, and the line says {self.declared}"

    def hint(self) -> str | None:
        """Say which collective is missing, if that is known."""
        return self.instead


@dataclass(frozen=True)
class CannotCommunicate(Mistake):
    """`A[I, J_X] ·_LOCAL B[J, K]`: the shards don't fit each other."""

    code: ClassVar[str] = "SH303"
    title: ClassVar[str] = "not a local product"

    why: str

    def message(self) -> str:
        """Say why the shards can't be multiplied."""
        return f"·_LOCAL multiplies the shards as they are: {self.why}"

    def hint(self) -> str | None:
        """Offer the product that may communicate."""
        return "write · or ·_D to let the collectives be inferred"


@dataclass(frozen=True)
class NoPartialMaxima(Mistake):
    """`B[I]{max_X} = A[I_X]`: only a maximum over a split dim leaves partial maxima."""

    code: ClassVar[str] = "SH304"
    title: ClassVar[str] = "no partial maxima"

    wanted: str
    home: str | None

    def message(self) -> str:
        """Say what can't be made."""
        where = f" from {self.home}" if self.home is not None else " here"
        return f"{self.wanted} can't be made{where}: a whole value holds no partial maxima"

    def hint(self) -> str | None:
        """Say what leaves them."""
        return "max_J(A[I, J_X]) leaves them over X; leave the marker out otherwise"


@dataclass(frozen=True)
class NotAvailable(Mistake):
    """`Tmp = In[B_X, D] ·_D W`: no earlier line made `In[B_X, D]`."""

    code: ClassVar[str] = "SH401"
    title: ClassVar[str] = "not made by an earlier line"

    wanted: str
    known: tuple[str, ...]
    step: str | None = None
    saving: str | None = None

    def message(self) -> str:
        """Say what is missing and what there is."""
        if self.saving is not None:
            return (
                f"{self.wanted} is a copy of a parameter that the forward pass made, and is dropped "
                "at its end"
            )
        if not self.known:
            return f"{self.wanted} is not defined by an earlier line"
        return f"{self.wanted} is not made by an earlier line: there is {', '.join(self.known)}"

    def hint(self) -> str | None:
        """Give the lines that would make it."""
        if self.step is None:
            return None
        more = "" if self.saving is None else f" (or keep it: {self.saving})"
        return f"add: {self.step}{more}"


@dataclass(frozen=True)
class WrongGradient(Mistake):
    """`dW[D, F]{U_X}` is the last of dW, and W lives as `W[D, F]`."""

    code: ClassVar[str] = "SH402"
    title: ClassVar[str] = "a gradient ends in another layout than its leaf"

    gradient: str
    leaf: str
    step: str | None = None

    def message(self) -> str:
        """Say where the gradient ends."""
        return f"the gradient of {self.leaf} ends as {self.gradient}"

    def hint(self) -> str | None:
        """Give the line that is missing."""
        return None if self.step is None else f"add: {self.step}"


@dataclass(frozen=True)
class WrongCotangent(Mistake):
    """`Out` ends as `Out[B, D]{U_Y}`, and the backward pass takes `dOut[B, D_Y]`."""

    code: ClassVar[str] = "SH403"
    title: ClassVar[str] = "an output and its cotangent differ"

    output: str
    cotangent: str
    expected: str
    step: str | None = None

    def message(self) -> str:
        """Say which is which."""
        return (
            f"the output ends as {self.output}, so its cotangent arrives as {self.expected}, and "
            f"the backward pass takes {self.cotangent}"
        )

    def hint(self) -> str | None:
        """Give the line that is missing."""
        return None if self.step is None else f"add: {self.step}"


@dataclass(frozen=True)
class LeafElsewhere(Mistake):
    """A product takes `In[B, D]` and the gradient ends as `dIn[B, D_Y]`: In was not gathered."""

    code: ClassVar[str] = "SH406"
    title: ClassVar[str] = "not where its gradient is"

    taken: str
    gradient: str
    home: str
    step: str | None = None

    def message(self) -> str:
        """Say what does not fit."""
        return (
            f"{self.taken} is not made by an earlier line, and its gradient ends as {self.gradient}, "
            f"so it would live as {self.home}"
        )

    def hint(self) -> str | None:
        """Give the line that is missing."""
        return None if self.step is None else f"add: {self.step}"


@dataclass(frozen=True)
class FirstInBackward(Mistake):
    """`backward:` reads `Bzz[J_X, K]`, which the forward pass neither makes nor reads."""

    code: ClassVar[str] = "SH407"
    title: ClassVar[str] = "not known from the forward pass"

    name: str
    near: tuple[str, ...]

    def message(self) -> str:
        """Say that nothing gives it."""
        return (
            f"{self.name} is neither made nor read by the forward pass, and nothing here makes it"
        )

    def hint(self) -> str | None:
        """Offer the nearest name."""
        return f"did you mean {' or '.join(self.near)}?" if self.near else None


@dataclass(frozen=True)
class NoGradient(Mistake):
    """`backward:` makes gradients, but none of the parameter W."""

    code: ClassVar[str] = "SH453"
    title: ClassVar[str] = "a parameter without a gradient"
    severity: ClassVar[Severity] = "warning"

    leaf: str

    def message(self) -> str:
        """Say which."""
        return f"the backward pass makes no gradient of the parameter {self.leaf}"

    def hint(self) -> str | None:
        """Say what would be one."""
        return f"a line that defines d{self.leaf}"


@dataclass(frozen=True)
class FrozenGradient(Mistake):
    """`backward:` makes a gradient of W, which a `frozen` line declares."""

    code: ClassVar[str] = "SH460"
    title: ClassVar[str] = "a gradient that nothing is done with"
    severity: ClassVar[Severity] = "warning"

    leaf: str

    def message(self) -> str:
        """Say which."""
        return f"{self.leaf} is frozen, and nothing is done with its gradient d{self.leaf}"

    def hint(self) -> str | None:
        """Offer both ways out."""
        return f"leave this line out, or declare {self.leaf} with `param`"


@dataclass(frozen=True)
class UnusedCotangent(Mistake):
    """`Out` ends the forward pass, and no line of `backward:` reads dOut."""

    code: ClassVar[str] = "SH454"
    title: ClassVar[str] = "an output that the backward pass leaves out"
    severity: ClassVar[Severity] = "warning"

    output: str

    def message(self) -> str:
        """Say which."""
        return f"nothing reads {self.output}, so it is an output, and the backward pass reads no d{self.output}"

    def hint(self) -> str | None:
        """Say what it may be."""
        return "is the name misspelt here, or where it is read?"


def _cost(saved: str | None) -> str:
    return "" if saved is None else f"; without it a device would move {saved} less"


@dataclass(frozen=True)
class Repeated(Mistake):
    """The same collective twice: the second makes nothing new."""

    code: ClassVar[str] = "SH451"
    title: ClassVar[str] = "made already"
    severity: ClassVar[Severity] = "warning"

    made: str
    saved: str | None = None

    def message(self) -> str:
        """Say what is there already."""
        return f"{self.made} is made already by an earlier line of this pass{_cost(self.saved)}"

    def hint(self) -> str | None:
        """Say what to do."""
        return "leave this line out"


@dataclass(frozen=True)
class Unused(Mistake):
    """A collective whose result nothing reads."""

    code: ClassVar[str] = "SH452"
    title: ClassVar[str] = "used by nothing"
    severity: ClassVar[Severity] = "warning"

    made: str
    saved: str | None = None

    def message(self) -> str:
        """Say what is not used."""
        return f"no later line reads {self.made}, and it is no result{_cost(self.saved)}"

    def hint(self) -> str | None:
        """Say what to do."""
        return "leave this line out"


@dataclass(frozen=True)
class DefinedTwice(Mistake):
    """A value computed by two lines of a pass."""

    code: ClassVar[str] = "SH404"
    title: ClassVar[str] = "computed twice"

    name: str

    def message(self) -> str:
        """Say which."""
        return f"{self.name} is computed by an earlier line already"


@dataclass(frozen=True)
class UnknownGradient(Mistake):
    """`backward:` reads `dFoo` before a line makes it, and Foo is no output."""

    code: ClassVar[str] = "SH405"
    title: ClassVar[str] = "not given"

    name: str
    given: tuple[str, ...]

    def message(self) -> str:
        """Say what is given."""
        return (
            f"{self.name} is not made by an earlier line, and only cotangents of outputs are given"
        )

    def hint(self) -> str | None:
        """List what is given."""
        return f"given: {', '.join(self.given)}" if self.given else None


@dataclass(frozen=True)
class OtherLayout(Mistake):
    """`x[B_X, D] = ...` in a block, which reads `x[B_X, D_Y]`."""

    code: ClassVar[str] = "SH311"
    title: ClassVar[str] = "the next layer finds it in another layout"

    first: str
    last: str

    def message(self) -> str:
        """Give both layouts."""
        return f"a layer begins with {self.first} and hands {self.last} to the next one"

    def hint(self) -> str | None:
        """Say what to write."""
        return f"write {self.first} for the result, or nothing: it then ends where it began"


@dataclass(frozen=True)
class PartialCarry(Mistake):
    """A value that lives as partial sums is handed from layer to layer."""

    code: ClassVar[str] = "SH312"
    title: ClassVar[str] = "partial sums are not handed on"

    first: str

    def message(self) -> str:
        """Name it."""
        return f"{self.first} is handed from layer to layer, and holds partial sums"

    def hint(self) -> str | None:
        """Say what to do."""
        return "reduce it before the block"


@dataclass(frozen=True)
class NotSent(Mistake):
    """`layers L_Z, x2 -> x:` in an explicit program with no `Permute_Z(x2)`."""

    code: ClassVar[str] = "SH408"
    title: ClassVar[str] = "not sent to the next stage"

    handed: str
    line: str

    def message(self) -> str:
        """Say what is missing."""
        return f"{self.handed} is handed to the next stage, and no line sends it"

    def hint(self) -> str | None:
        """Give the line."""
        return f"end the block with {self.line}"


@dataclass(frozen=True)
class NotHandedOn(Mistake):
    """`layers L, x2 -> x:` in an explicit program, and `x2` is not there as `x` was."""

    code: ClassVar[str] = "SH313"
    title: ClassVar[str] = "not there for the next layer"

    needed: str
    known: tuple[str, ...]

    def message(self) -> str:
        """Say what is missing."""
        there = f"; there is {', '.join(self.known)}" if self.known else ""
        return f"the next layer needs {self.needed}, which no line of the block makes{there}"

    def hint(self) -> str | None:
        """Say what to do."""
        return "end the block with it in this layout"
