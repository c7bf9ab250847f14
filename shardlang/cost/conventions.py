"""FLOPs under the conventions that are in use, each by its name, all from a plan's steps.

Two people who quote the MFU of one run rarely mean one number. They differ in three things: whether
attention under a causal mask counts in full or half, whether work that the backward pass does again
(or that several devices do alike) counts, and whether parameters are multiplied by tokens instead of
counting contractions, with or without a table that is looked up. `CONVENTIONS` has a row for each.

- *Model FLOPs* are those of the program: every contraction of both passes once, over all devices. A
  contraction of the backward pass whose value the forward pass had (`save`) counts no second time,
  and one that several devices do alike counts once.
- *Hardware FLOPs* are what the devices run: the sum of the report, times the number of devices; lines behind
  a pipeline's layers are run by the last stage's alone.
- *Attention* is found in the forward pass: a contraction of two activations (scores), whose result
  comes through a function of each element (softmax's exp) into another contraction of two activations
  that sums over a dim which one operand of the first had alone (the keys). Both, and their transposes
  in the backward pass, count half under a causal mask. Where the sizes of queries and keys are known
  and differ (decoding), there is no square to halve, and they count in full.
- *Parameters*: those that a contraction reads, at least through elementwise steps. A weight that none
  reads is a table that is looked up, or a scale. All experts count, whatever a token is sent to.

Elementwise steps count nowhere (`shardlang.cost.flops`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, TYPE_CHECKING

from shardlang.cost.bound import batch_of
from shardlang.cost.flops import split_axes
from shardlang.cost.formula import Formula
from shardlang.cost.quantities import ComputeCost, Quantity
from shardlang.ir.ops import Einsum, Map, Rename
from shardlang.ir.plan import Plan, Step
from shardlang.ir.program import Leaf
from shardlang.ir.size import Monomial
from shardlang.ir.types import Dim, Tensor

if TYPE_CHECKING:
    from shardlang.cost.report import Report

HALF = Fraction(1, 2)


@dataclass(frozen=True)
class Convention:
    """A way to count FLOPs: its name, what it counts, and who uses it."""

    name: str
    counts: str
    users: str
    total: Callable[[Work], Formula | None]


@dataclass(frozen=True)
class Work:
    """What conventions count from: FLOPs of all devices, parameters, and tokens of a step.

    `model` and `hardware` are without attention, `attention` and `attended` are that of each. `read`
    are the parameters that contractions read, `parameters` all of them; `read_passes` and `passes` are the same,
    each as often as the passes that it takes are worth: 3 of a trained one, as gradients of both operands take
    twice the forward pass, 2 of one that has no gradient, 1 with no backward pass. `tokens` is None where nothing
    says what the batch is.
    `halved` are the contractions of attention in the notation.
    """

    model: Formula
    attention: Formula
    hardware: Formula
    attended: Formula
    read: Formula
    parameters: Formula
    read_passes: Formula
    passes: Formula
    tokens: Monomial | None
    devices: Monomial
    halved: tuple[str, ...] = field(default=())

    def of_parameters(self, passes: Formula) -> Formula | None:
        """Give 2 FLOPs a parameter and token for each pass that the forward pass is worth."""
        return None if self.tokens is None else passes * (self.tokens * 2)


def _model(work: Work) -> Formula:
    return work.model + work.attention


def _model_causal(work: Work) -> Formula:
    return work.model + work.attention * Monomial(HALF)


def _hardware(work: Work) -> Formula:
    return work.hardware + work.attended


def _hardware_causal(work: Work) -> Formula:
    return work.hardware + work.attended * Monomial(HALF)


def _read(work: Work) -> Formula | None:
    return work.of_parameters(work.read_passes)


def _all(work: Work) -> Formula | None:
    return work.of_parameters(work.passes)


CONVENTIONS: Mapping[str, Convention] = {
    row.name: row
    for row in (
        Convention(
            "model",
            "every contraction of the program once, attention in full",
            "MFU of PaLM (Chowdhery et al., 2022, appendix B); MaxText's logs for v5p and v6e",
            _model,
        ),
        Convention(
            "model-causal",
            "the same, attention half",
            "MaxText's recipes for TPU7x; FlashAttention's benchmarks",
            _model_causal,
        ),
        Convention(
            "hardware",
            "what the devices run: work done again or by several alike counts each time",
            "HFU of PaLM; Megatron-LM, 2021, with full recomputation",
            _hardware,
        ),
        Convention(
            "hardware-causal",
            "the same, attention half",
            "what kernels that skip masked blocks run",
            _hardware_causal,
        ),
        Convention(
            "parameters",
            "6 a token (4 if frozen, 2 with no backward pass) for each parameter that a contraction reads",
            "Kaplan et al., 2020, whose N leaves out embeddings",
            _read,
        ),
        Convention(
            "parameters-all",
            "the same for every parameter, tables that are looked up too",
            "6*N*tokens with the N that a model is called by; How to Scale Your Model",
            _all,
        ),
    )
}
"""The conventions, by name: a row each."""


@dataclass(frozen=True)
class Count:
    """The FLOPs of a step under one convention: of all devices, of one, and of a token.

    They are None where nothing says what the batch is and the convention asks for tokens.
    """

    convention: Convention
    total: Quantity | None
    device: Quantity | None
    token: Quantity | None

    def to_dict(self) -> dict[str, Any]:
        """Give it as data."""
        figures = {"total": self.total, "device": self.device, "token": self.token}
        return {
            "counts": self.convention.counts,
            "users": self.convention.users,
            **{key: entry(value) for key, value in figures.items()},
        }


@dataclass(frozen=True)
class Counts:
    """A report's FLOPs under every convention.

    `tokens` are those of a step, None where nothing says what the batch is; `parameters` all that the
    program has, `read` those that contractions read; `halved` the contractions that count half in the
    causal conventions.
    """

    by_name: Mapping[str, Count]
    devices: Quantity
    tokens: Quantity | None
    parameters: Quantity
    read: Quantity
    halved: tuple[str, ...]

    def __getitem__(self, name: str) -> Count:
        """Give the FLOPs under a convention."""
        return self.by_name[name]

    def to_dict(self) -> dict[str, Any]:
        """Give it as data."""
        return {
            "devices": entry(self.devices),
            "tokens": entry(self.tokens),
            "parameters": entry(self.parameters),
            "parameters_read": entry(self.read),
            "attention": list(self.halved),
            "flops": {name: count.to_dict() for name, count in self.by_name.items()},
        }


def entry(quantity: Quantity | None) -> dict[str, Any] | None:
    """Give a quantity as JSON has it."""
    if quantity is None:
        return None
    return {"formula": str(quantity.formula), "value": quantity.number}


def conventions(report: Report) -> Counts:
    """Count a report's FLOPs under every convention."""
    work = count_work(report)
    quantity = report.quantity
    found: dict[str, Count] = {}
    for name, row in CONVENTIONS.items():
        total = row.total(work)
        found[name] = Count(
            row,
            None if total is None else quantity(total),
            None if total is None else quantity(total / work.devices),
            None if total is None or work.tokens is None else quantity(total / work.tokens),
        )
    return Counts(
        found,
        quantity(Formula.of(work.devices)),
        None if work.tokens is None else quantity(Formula.of(work.tokens)),
        quantity(work.parameters),
        quantity(work.read),
        work.halved,
    )


def count_work(report: Report) -> Work:
    """Sort a report's contractions, and count its parameters and tokens."""
    values = Values(report.plan)
    devices = report.symbols.monomial(Monomial.of(*(info.axis.name for info in report.axes)))
    attention = _attention(report, values)
    last, pipeline = _last_stage_alone(report.plan), report.plan.program.pipeline
    stages = Monomial() if pipeline is None else report.symbols.monomial(pipeline.stages)
    sums: dict[tuple[bool, bool], list[Formula]] = {}
    halved: dict[str, None] = {}
    for cost in report.compute:
        if not cost.counted:
            continue
        half = id(cost.step) in attention
        running = devices / stages if id(cost.step) in last else devices
        sums.setdefault((False, half), []).append(cost.flops.formula * running)
        if half:
            halved[str(cost.step.output.tensor.name)] = None
        if id(cost.step) not in values.again:
            sums.setdefault((True, half), []).append(_whole(report, cost))
    total = {key: Formula.sum(formulas) for key, formulas in sums.items()}
    nothing = Formula()
    weights = {
        leaf.array.tensor: Formula.of(
            report.symbols.monomial(leaf.array.tensor.elements * leaf.times)
        )
        for leaf in report.plan.program.leaves
        if leaf.kind == "param"
    }
    passes = {
        leaf.array.tensor: weights[leaf.array.tensor]
        * Monomial(Fraction(_passes(report.plan, leaf)))
        for leaf in report.plan.program.leaves
        if leaf.kind == "param"
    }
    return Work(
        model=total.get((True, False), nothing),
        attention=total.get((True, True), nothing),
        hardware=total.get((False, False), nothing),
        attended=total.get((False, True), nothing),
        read=Formula.sum(n for tensor, n in weights.items() if tensor in values.read),
        parameters=Formula.sum(weights.values()),
        read_passes=Formula.sum(n for tensor, n in passes.items() if tensor in values.read),
        passes=Formula.sum(passes.values()),
        tokens=_tokens(report, values),
        devices=devices,
        halved=tuple(halved),
    )


def _passes(plan: Plan, leaf: Leaf) -> int:
    """Say how many forward passes those of a parameter are worth."""
    if not plan.backward:
        return 1
    return 3 if leaf.differentiable else 2


def _whole(report: Report, cost: ComputeCost) -> Formula:
    """Give the FLOPs of a step over all devices, with what several do alike counted once.

    Of a pipeline's layers each stage has its own.
    """
    axes = [axis.name for axis in split_axes(cost.step)]
    if cost.step.loop is not None and cost.step.loop.pipeline is not None:
        axes += [axis.name for axis in cost.step.loop.pipeline.axes]
    return cost.flops.formula * report.symbols.monomial(Monomial.of(*axes))


def _last_stage_alone(plan: Plan) -> frozenset[int]:
    """Name the steps that the last stage of a pipeline does alone: those of lines behind its layers."""
    found: list[int] = []
    for steps in (plan.forward[::-1], plan.backward):
        staged = [s.loop is not None and s.loop.pipeline is not None for s in steps]
        if True in staged:
            found += [id(step) for step in steps[: staged.index(True)]]
    return frozenset(found)


class Values:
    """Which arrays are one value, whatever their layouts and names, and what values are made of.

    A number stands for a value: leaves have one each, and equal operations of equal values make one.
    `weights` maps the values that are made of parameters alone to the parameters. `again` are the steps
    (by `id`) of the backward pass that make a value which was made before. `read` are the parameters
    that some contraction reads.
    """

    def __init__(self, plan: Plan) -> None:
        """Number the values of a plan."""
        self.numbers: dict[Tensor, int] = {}
        self.weights: dict[int, frozenset[Tensor]] = {}
        self.again: set[int] = set()
        self.read: set[Tensor] = set()
        self.made: dict[object, int] = {}
        for tensor in plan.parameters:
            self.weights[self.number(tensor)] = frozenset((tensor,))
        for step in plan.forward:
            self._step(step, again=False)
        for step in plan.backward:
            self._step(step, again=True)

    def number(self, tensor: Tensor) -> int:
        """Give the number of a tensor's value."""
        return self.numbers.setdefault(tensor, len(self.numbers))

    def operands(self, step: Step) -> tuple[int, ...]:
        """Give the values that a step reads."""
        return tuple(self.number(array.tensor) for array in step.inputs)

    def is_weight(self, number: int) -> bool:
        """Say whether a value is made of parameters alone."""
        return number in self.weights

    def activations(self, step: Step) -> bool:
        """Say whether a step is a contraction of activations alone."""
        return contracts(step) and not any(map(self.is_weight, self.operands(step)))

    def _step(self, step: Step, *, again: bool) -> None:
        numbers = self.operands(step)
        made = step.output.tensor
        if not step.is_compute:
            self.numbers[made] = numbers[0]
            return
        op = step.computing.op
        order = tuple(sorted(numbers)) if isinstance(op, Einsum) else numbers
        key = (op, order, frozenset(made.dims))
        if key not in self.made:
            self.made[key] = self.number(made)
        elif again:
            self.again.add(id(step))
        self.numbers[made] = self.made[key]
        owned = [self.weights.get(number) for number in numbers]
        if contracts(step):
            self.read.update(tensor for each in owned if each for tensor in each)
        if all(owned):
            self.weights[self.numbers[made]] = frozenset(t for each in owned if each for t in each)


def contracts(step: Step) -> bool:
    """Say whether a step sums a product over some dim."""
    op = step.computing.op
    return isinstance(op, Einsum) and bool(op.contracted) and len(step.inputs) > 1


def _summed(contraction: Step) -> tuple[Dim, ...]:
    """Give the dims that a contraction sums over."""
    op = contraction.computing.op
    assert isinstance(op, Einsum)
    return op.contracted


def _dims(step: Step) -> frozenset[Dim]:
    return frozenset(d for array in (*step.inputs, step.output) for d in array.tensor.dims)


def _attention(report: Report, values: Values) -> set[int]:
    """Find the contractions of attention in both passes, by the `id` of their steps."""
    plan = report.plan
    forward = [step for step in plan.forward if contracts(step)]
    found: set[int] = set()
    for index, step in enumerate(plan.forward):
        if values.activations(step) and (plan.parameters or _batched(step)):
            for other in _fed(plan.forward[index + 1 :], step, values):
                if _square(report, step, other):
                    found.update((id(step), id(other)))
    for step in plan.backward if found else ():
        if contracts(step):
            like = [f for f in forward if _dims(f) == _dims(step) and _shared(f, step, values)]
            if like and all(id(each) in found for each in like):
                found.add(id(step))
    return found


def _shared(one: Step, other: Step, values: Values) -> bool:
    return bool(set(values.operands(one)) & set(values.operands(other)))


def _batched(step: Step) -> bool:
    """Say whether some dim of all operands is kept: with no parameter named, nothing else tells."""
    kept = set(step.output.tensor.dims)
    return bool(kept.intersection(*(array.tensor.dims for array in step.inputs)))


def _alone(step: Step) -> dict[Dim, int]:
    """Give the dims of a contraction's result that one operand has alone, with that operand."""
    found: dict[Dim, int] = {}
    for dim in step.output.tensor.dims:
        have = [i for i, array in enumerate(step.inputs) if dim in array.tensor.dims]
        if len(have) == 1:
            found[dim] = have[0]
    return found


def _fed(steps: tuple[Step, ...], scores: Step, values: Values) -> list[Step]:
    """List the contractions of activations that read scores through a function of each element.

    They sum over a dim that one operand of the scores had alone.
    """
    alone = set(_alone(scores))
    reached = {values.number(scores.output.tensor): False}
    found: list[Step] = []
    for step in steps:
        known = [reached[number] for number in values.operands(step) if number in reached]
        if not known:
            continue
        if contracts(step):
            if any(known) and values.activations(step) and alone.intersection(_summed(step)):
                found.append(step)
            continue
        number = values.number(step.output.tensor)
        through = any(known) or isinstance(step.op, Map)
        reached[number] = reached.get(number, False) or through
    return found


def _square(report: Report, scores: Step, summed: Step) -> bool:
    """Say whether the queries may be as many as the keys, as far as sizes are known."""
    alone = _alone(scores)
    for keys in alone.keys() & set(_summed(summed)):
        size = _size(report, keys)
        others = [_size(report, dim) for dim, i in alone.items() if i != alone[keys]]
        if size is None or None in others or size in others:
            return True
    return False


def _size(report: Report, dim: Dim) -> Fraction | None:
    symbols = report.symbols
    return Formula.of(symbols.monomial(Monomial.of(dim.name))).value(report.known)


def _tokens(report: Report, values: Values) -> Monomial | None:
    """Give the tokens of a step: the dims of the first activation that meets a weight, and no weight has.

    Dims that are other names of an input's (the positions of keys) are passed over. All microbatches count.
    """
    plan, symbols = report.plan, report.symbols
    batch = batch_of(plan, symbols).dims
    owned = {dim for tensor in plan.parameters for dim in tensor.dims}
    counted = plan.program.microbatches
    many = () if counted is None or counted.name not in symbols.of else (symbols.of[counted.name],)
    other = {
        dim
        for step in plan.forward
        if isinstance(step.op, Rename)
        for dim in set(step.output.tensor.dims).difference(step.inputs[0].tensor.dims)
    }
    for step in plan.forward:
        operands = values.operands(step)
        met = [values.is_weight(number) for number in operands]
        if contracts(step) and any(met) and not all(met):
            dims = {
                dim
                for array, weight in zip(step.inputs, met, strict=True)
                if not weight
                for dim in array.tensor.dims
                if dim not in owned
            }
            names = {symbols.of[dim.name] for dim in dims if dim.name in symbols.of}
            if names and names <= batch and not dims & other:
                return Monomial.of(*names, *many)
    return Monomial.of(*batch, *many) if batch else None
