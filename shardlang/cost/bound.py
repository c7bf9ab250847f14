"""When a pass is compute-bound: T_math > T_comms, solved for what a reader would ask for.

Where both are one product, the condition is a comparison of products, and it is solved for the
batch on one device if the batch is in it (`B/X > C/W_ici`), else for the axes that divide the work
(`Y < F*W_ici/C`). Where the communication is a sum, the left side is the arithmetic intensity,
FLOPs over bytes (`B*F/(B*Y + F*X) > C/W_ici`); where its parts run over different networks, it is
the plain inequality with no fraction left; so it is where it is a sum of maxima. The number of hardware axes, M_X, is left out where
nobody has set it: it is 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from shardlang.cost.formula import common_factor, Formula, monomial_text, parts
from shardlang.cost.symbols import Symbols
from shardlang.ir.plan import Plan
from shardlang.ir.size import Monomial


@dataclass(frozen=True, slots=True)
class Condition:
    """When a pass is compute-bound: as text, and whether it is so where all is known.

    `solved` is the same condition solved for the batch on one device, where `text` is not and that
    can be done; it says what else must hold then.
    """

    text: str
    holds: bool | None = None
    solved: str | None = None

    def __str__(self) -> str:
        """Print the condition."""
        return self.text


@dataclass(frozen=True, slots=True)
class Batch:
    """The dims of the batch (in inputs and in no weight) and the axes that split them, as symbols."""

    dims: frozenset[str]
    axes: frozenset[str]


def batch_of(plan: Plan, symbols: Symbols) -> Batch:
    """Find the batch: the dims of inputs that no weight has; with no weights there is none."""
    weights = [leaf.array for leaf in plan.program.leaves if leaf.kind == "param"]
    own = {dim for array in weights for dim in array.tensor.dims}
    inputs = [leaf.array for leaf in plan.program.leaves if leaf.kind != "param"]
    dims = {dim for array in inputs for dim in array.tensor.dims} - own if weights else set()
    arrays = {a for _, step in plan.steps() for a in (*step.inputs, step.output)}
    arrays.update(inputs)
    axes = {axis.name for array in arrays for dim in dims for axis in array.axes(dim)}
    return Batch(
        frozenset(symbols.of[dim.name] for dim in dims if dim.name in symbols.of),
        frozenset(symbols.of[name] for name in axes),
    )


def compute_bound(
    flops: Formula,
    comms: Formula,
    symbols: Symbols,
    batch: Batch,
    ones: Mapping[str, Fraction],
    known: Mapping[str, Fraction],
) -> Condition:
    """Give the condition under which FLOPs over C take longer than `comms` (seconds).

    `ones` are the numbers of hardware axes that nobody has set.
    """
    math = flops / symbols.rate("C")
    t_math, t_comms = math.value(known), comms.value(known)
    holds = None if t_math is None or t_comms is None else t_math > t_comms
    if not comms:
        return Condition("always", holds=True)
    if not math:
        return Condition("never", holds=False)
    comms = comms.substitute(ones)
    alone = len(comms.maxima) == 1 and not comms.terms
    options = comms.maxima[0] if alone else (comms,)
    conditions = [_compare(math, option, symbols, batch) for option in options]
    texts = dict.fromkeys(condition.text for condition in conditions)
    solved = conditions[0].solved if len(conditions) == 1 else None
    return Condition(" and ".join(texts), holds, solved)


def _split(monomial: Monomial, names: Iterable[str]) -> Monomial:
    """Give the part of a monomial in the given names, without its coefficient."""
    wanted = set(names)
    return Monomial(Fraction(1), tuple((n, p) for n, p in monomial.powers if n in wanted))


def _compare(math: Formula, comms: Formula, symbols: Symbols, batch: Batch) -> Condition:
    hardware = {name for name, kind in symbols.kinds.items() if kind == "hardware"}
    figures = {n for term in (*math.terms, *comms.terms) for n, _ in term.powers}
    figures = {name for name in figures if set(parts(name)) <= hardware}
    if comms.maxima:
        return Condition(f"{math} > {comms}")
    if len(math.terms) == len(comms.terms) == 1:
        return Condition(_products(math.terms[0] / comms.terms[0], figures, batch, symbols))
    speeds = {_split(term, figures) for term in comms.terms}
    solved = _solve_batch(math, comms, batch)
    if len(speeds) > 1:
        factor = common_factor((*math.terms, *comms.terms))
        return Condition(f"{math / factor} > {comms / factor}", solved=solved)
    (speed,) = speeds
    work = math * symbols.rate("C")
    sent = comms / speed
    factor = common_factor((*work.terms, *sent.terms))
    left = _quotient(work / factor, sent / factor)
    right = monomial_text(symbols.rate("C") * speed)
    return Condition(f"{left} > {right}", solved=solved)


def _products(ratio: Monomial, figures: set[str], batch: Batch, symbols: Symbols) -> str:
    """Solve `ratio > 1`."""
    powers = dict(ratio.powers)
    up = [name for name in batch.dims if powers.get(name, 0) > 0]
    down = [name for name in batch.dims if powers.get(name, 0) < 0]
    spread = [name for name in batch.axes if powers.get(name, 0) < 0]
    if up:
        left = _split(ratio, (*up, *spread))
        return f"{monomial_text(left)} > {monomial_text(left / ratio)}"
    axes = [n for n, p in powers.items() if p < 0 and symbols.kinds.get(n) == "axis"]
    if down or axes:
        left = Monomial() / _split(ratio, down or axes)
        return f"{monomial_text(left)} < {monomial_text(left * ratio)}"
    left = _split(ratio, (name for name in powers if name not in figures))
    if not left.powers:
        left = Monomial(ratio.coefficient)
    return f"{monomial_text(left)} > {monomial_text(left / ratio)}"


def _quotient(top: Formula, bottom: Formula) -> str:
    over = f"({top})" if len(top.terms) > 1 else str(top)
    simple = len(bottom.terms) == 1 and "*" not in str(bottom)
    return f"{over}/{bottom if simple else f'({bottom})'}"


def _solve_batch(math: Formula, comms: Formula, batch: Batch) -> str | None:
    """Solve `b*m > b*p + q` for b, the batch on one device, where that is its form."""
    names = (*batch.dims, *batch.axes)
    if len(math.terms) != 1 or len(comms.terms) != 2:
        return None
    (work,) = math.terms
    share = _split(work, names)
    with_batch = [term for term in comms.terms if _split(term, names) == share]
    without = [term for term in comms.terms if not _split(term, names).powers]
    if not share.powers or len(with_batch) != 1 or len(without) != 1:
        return None
    m, p, q = work / share, with_batch[0] / share, without[0]
    factor = common_factor((m, p, q))
    m, p, q = m / factor, p / factor, q / factor
    bottom = Formula((m, p * -1))
    where = common_factor((m, p))
    return (
        f"{monomial_text(share)} > {monomial_text(q)}/({bottom})"
        f" where {monomial_text(m / where)} > {monomial_text(p / where)}"
    )
