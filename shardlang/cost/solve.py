"""Solving a report: when a program is compute-bound, for any symbol, and the best split of a mesh.

`when` solves T_math > T_comms for one symbol. Both sides are sums of products of positive sizes, so
that their difference is a polynomial in the symbol. Where its coefficients change sign once, it has one
positive root (Descartes' rule of signs), and the condition is a threshold: in closed form with two
powers or a quadratic, else as a number where everything else is known. `best_split` minimises a time
over axes whose product is fixed (`shardlang.cost.split`); `when` at that split takes the least time for
T_comms.

Where the communication holds maxima (of latency and load, or of axes that overlap), the condition is that
of every choice among them, as long as there are few. With more of them, or a symbol that is rounded or
stands in a sum (`floor(X/2)`), it is found numerically where everything else is known, and stays an
inequality where not.

The regime is the report's: peak rates, collectives one after the other unless axes overlap, and latency
where its model has any.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import prod
from typing import Any, Literal

from shardlang.cost.errors import FollowsBySum, LaidAxis, NotAnAxis, NoTime, UnknownSymbol
from shardlang.cost.formula import common_factor, Formula, power
from shardlang.cost.report import Report
from shardlang.cost.roots import Root, Sums
from shardlang.cost.split import best_split, Constraint, Pass, read_constraint, Split
from shardlang.cost.symbols import Symbols
from shardlang.diagnostics import Diagnostic, ShardlangError
from shardlang.hardware.figures import EFFICIENCIES
from shardlang.ir.size import BinOp, Monomial, Name, names_in, Number, SizeExpr
from shardlang.source import Source, Span

MOST = 4
"""The most choices among maxima that are written as conditions one by one."""

LARGEST = 120
"""Values are looked for up to 2 to the power of this, and down to its inverse."""

STEPS = 32
"""Points of the grid for each power of two."""

How = Literal["closed form", "numerically", "always", "never", "whatever", "open"]
"""How a condition was found: `whatever` where the symbol cancels out, `open` where sizes are missing."""


@dataclass(frozen=True, slots=True)
class Solution:
    """When a pass is compute-bound, as a condition on a symbol.

    `text` is the condition in groups that engineers know (`B/X > C/W_ici`), `solved` the same for the
    symbol alone (`B > C*X/W_ici`), None where it is not one comparison. `general` is `text` with the
    numbers of hardware axes (M_X) that nobody has set, None where there are none. `low` and `high` are
    the numbers between which it holds, where everything else is known; `how` says how it was found.
    """

    symbol: str
    text: str
    solved: str | None = None
    general: str | None = None
    low: float | None = None
    high: float | None = None
    how: How = "closed form"

    def to_dict(self) -> dict[str, Any]:
        """Give it as data."""
        return {
            "condition": self.text,
            "solved": self.solved,
            "general": self.general,
            "low": self.low,
            "high": self.high,
            "how": self.how,
        }


def check_symbol(
    report: Report, name: str, more: Sequence[str] = (), *, where: str = "--for"
) -> str:
    """Give the symbol that a name of a dim, an axis or a figure has in a report's formulas.

    Raises `ShardlangError` (SH521) for a name that no formula has, at the option `where`.
    """
    symbols = report.symbols
    symbol = symbols.of.get(name) or symbols.figures.get(name) or name
    if symbol in symbols.kinds or name in (*more, *EFFICIENCIES.values()):
        return symbol
    from difflib import get_close_matches  # noqa: PLC0415 (for the error alone)

    known = list(dict.fromkeys((*symbols.of, *symbols.figures, *EFFICIENCIES.values(), *more)))
    near = get_close_matches(name, known, n=1)
    mistake = UnknownSymbol(name, near[0] if near else None, tuple(known))
    raise ShardlangError([Diagnostic(Source(where, name), Span(0, len(name)), mistake)])


TIMES = ("t_math", "t_comms", "t_load", "t_hbm")
"""The times of a pass that can be compared."""


def sides(text: str) -> tuple[str, str]:
    """Read `t_load>t_comms`; raises `ShardlangError` (SH527) where it compares no two times."""
    left, _, right = (part.strip() for part in text.partition(">"))
    if left not in TIMES or right not in TIMES or left == right:
        where = Diagnostic(Source("--when", text), Span(0, len(text)), NoTime(text, TIMES))
        raise ShardlangError([where])
    return left, right


def when(
    report: Report,
    symbol: str,
    which: Pass = "total",
    *,
    over: Sequence[str] = (),
    constraint: Constraint | None = None,
    asked: str = "t_math>t_comms",
) -> Solution:
    """Solve T_math > T_comms of a pass for a symbol, or what is `asked` (`t_load>t_comms`).

    With `over` and a constraint on the product of those axes, T_comms is the least that a split of the
    mesh over them can have. Raises `ShardlangError` for a name that no formula has (SH521)
    and for what is no comparison of times (SH527).
    """
    name = check_symbol(report, symbol, () if constraint is None else constraint.names)
    report = freed(report, "--for", [name, *over])
    totals = report.totals[which]
    math, comms = (totals.quantity(key).formula for key in sides(asked))
    followed = followers(report, name)
    math, comms = math.rewrite(followed), comms.rewrite(followed)
    known = {n: v for n, v in report.known.items() if n != name and n not in followed}
    unset = {n: Fraction(1) for n in _links(report.symbols) if report.known.get(n) == 1}
    known.update({} if constraint is None else constraint.known)
    split: Split | None = None
    if constraint is not None:
        split = best_split(report, over, constraint, which)
        math = constraint.reduce(math)
        # the axes that are chosen are not given
        known = {n: v for n, v in known.items() if n not in over}
    if split is not None and split.least is not None and len(math.terms) == 1:
        found = _at_split(name, math.terms[0], split, known, unset)
    elif split is not None:
        found = Solution(name, f"{math} > {split.text}", how="open")
    else:
        found = compare(report, name, math, comms, known, unset)
    torus = report.hardware is None or report.hardware.kind in {None, "torus"}
    return found if torus else replace(found, general=None)


def constraint_of(
    report: Report, text: str, over: Sequence[str], more: Mapping[str, Fraction]
) -> Constraint:
    """Read `X*Y=N` in a report's symbols; `more` are numbers for names that the program has not.

    Raises `ShardlangError` for what is no axis of the mesh (SH523) or no such product (SH522).
    """
    axes = {info.axis.name for info in report.axes}
    for name in over:
        if name not in axes:
            where = Diagnostic(
                Source("--over", name), Span(0, len(name)), NotAnAxis(name, tuple(sorted(axes)))
            )
            raise ShardlangError([where])
    report = freed(report, "--over", over)
    symbols = report.symbols.of
    constraint = read_constraint(text, over, {})
    product = Monomial(constraint.product.coefficient)
    for name, exponent in constraint.product.powers:
        product *= power(Monomial.of(symbols.get(name, name)), exponent)
    known = {**{n: v for n, v in report.known.items() if n in dict(product.powers)}, **more}
    return Constraint(tuple(symbols[name] for name in over), product, known)


def freed(report: Report, where: str, names: Sequence[str]) -> Report:
    """Give a report that takes any sizes of the named axes.

    Raises `ShardlangError` (SH524) where the mesh lies on a slice, which gives those sizes.
    """
    report = report.freed(names)
    for name in names:
        if report.symbols.of.get(name, name) in report.fixed:
            mistake = LaidAxis(name, (report.slice or "").partition(":")[0])
            raise ShardlangError([Diagnostic(Source(where, name), Span(0, len(name)), mistake)])
    return report


def _links(symbols: Symbols) -> list[str]:
    """List the symbols of the numbers of hardware axes."""
    return [symbol for plain, symbol in symbols.figures.items() if plain.startswith("M_")]


# Dims that are declared by others --------------------------------------------------------------


def followers(report: Report, symbol: str, where: str = "--for") -> dict[str, Monomial]:
    """Give the dims that are declared as products of the symbol (`F = 4*D`, `G = F/2`), as such products.

    Raises `ShardlangError` (SH528) for one that follows it by a sum, which no condition is solved for.
    """
    names = report.symbols.of
    left = {
        names[info.dim.name]: info.declared
        for info in report.plan.program.dims
        if info.declared is not None and names.get(info.dim.name) not in (None, symbol)
    }
    found: dict[str, Monomial] = {}
    moving = {symbol}
    for _ in tuple(left):
        for own, expr in tuple(left.items()):
            used = {names.get(name, name) for name in names_in(expr)}
            if not used & moving or used & set(left) & moving:
                continue
            product = _product(expr, names, found)
            if product is None:
                name = next(name for name, each in names.items() if each == own)
                mistake = FollowsBySum(name, symbol)
                at = Source(where, symbol)
                raise ShardlangError([Diagnostic(at, Span(0, len(symbol)), mistake)])
            found[own] = product
            moving.add(own)
            del left[own]
    return found


def _product(
    expr: SizeExpr, names: Mapping[str, str], found: Mapping[str, Monomial]
) -> Monomial | None:
    match expr:
        case Number(value):
            return Monomial(value) if value > 0 else None
        case Name(name):
            own = names.get(name, name)
            return found.get(own, Monomial.of(own))
        case BinOp("*" | "/" as op, left, right):
            a, b = _product(left, names, found), _product(right, names, found)
            if a is None or b is None:
                return None
            return a * b if op == "*" else a / b
        case BinOp("**", left, Number(value)) if value.denominator == 1:
            base = _product(left, names, found)
            return None if base is None else power(base, int(value))
        case BinOp():
            return None


# A condition on one symbol ---------------------------------------------------------------------


def compare(
    report: Report,
    name: str,
    math: Formula,
    comms: Formula,
    known: Mapping[str, Fraction],
    unset: Mapping[str, Fraction],
    *,
    strict: bool = True,
    most: int = MOST,
) -> Solution:
    """Solve `math > comms` for a symbol, or `math >= comms` where it is not `strict`.

    `known` are the values of other symbols, for numbers alone; `unset` those that are 1 where nobody
    has set them. Beyond `most` choices among maxima it is solved in numbers alone.
    """
    if not strict:
        return _or_equal(compare(report, name, math, comms, known, unset, most=most))
    if not comms:
        return Solution(name, "always", how="always")
    if not math:
        return Solution(name, "never", how="never")
    hidden = name in math.hidden | comms.hidden
    if hidden or math.maxima or _many(comms) > most:
        return _searched(name, math, comms, known, unset)
    found = [_against(report, name, math, option, known, unset) for option in _options(comms)]
    distinct = list({each.text: each for each in found}.values())
    if len(distinct) > 1 and not {each.how for each in distinct} <= _JOINED:
        return _searched(name, math, comms, known, unset)
    return _all_of(name, distinct)


def _or_equal(solution: Solution) -> Solution:
    """Let both sides be equal: the border belongs to it, but where what is divided by has to be positive."""
    begins = re.compile(rf"\(?{re.escape(solution.symbol)}\b")

    def written(text: str | None) -> str | None:
        return None if text is None else " and ".join(dict.fromkeys(map(one, text.split(" and "))))

    def one(part: str) -> str:
        bounded = begins.match(part) or solution.solved is None
        return part.replace(" > ", " >= ").replace(" < ", " <= ") if bounded else part

    return replace(
        solution,
        text=written(solution.text) or "",
        solved=written(solution.solved),
        general=written(solution.general),
    )


def _many(formula: Formula) -> int:
    """Count the choices among the options of a formula's maxima."""
    inner = [sum(_many(option) for option in options) for options in formula.maxima]
    return prod(inner)


def _searched(
    name: str,
    math: Formula,
    comms: Formula,
    known: Mapping[str, Fraction],
    unset: Mapping[str, Fraction],
) -> Solution:
    """Solve numerically: find the first stretch of values on which the condition holds."""
    left, right = math.substitute(unset), comms.substitute(unset)
    text, general = f"{left} > {right}", f"{math} > {comms}"
    low = high = None
    how: How = "open"
    if (math.names | comms.names) - {name} <= set(known):
        low, high, how = _stretch(name, math, comms, known)
    return Solution(name, text, None, general if general != text else None, low, high, how)


def _stretch(
    name: str, math: Formula, comms: Formula, known: Mapping[str, Fraction]
) -> tuple[float | None, float | None, How]:
    """Look for where `math > comms` on a fine grid of all magnitudes, then between its points."""
    import numpy as np  # noqa: PLC0415 (for this case alone)

    from shardlang.cost.builder import graph_of  # noqa: PLC0415 (imports numpy)

    graph = graph_of((math, comms), {n: value for n, value in known.items() if n != name})

    def holds(at: Any) -> Any:
        left, right = graph({name: at})
        return left > right

    grid = 2.0 ** (np.arange(-LARGEST * STEPS, LARGEST * STEPS + 1) / STEPS)
    if name in math.hidden | comms.hidden:
        grid = grid[grid >= 1]  # of axes of size 1 nothing is said
    found = np.broadcast_to(holds(grid), grid.shape)
    if not found.any():
        return None, None, "never"
    start = int(found.argmax())
    ends = np.flatnonzero(~found[start:])

    def border(left: float, right: float) -> float:
        inside = bool(holds(left))
        for _ in range(80):
            middle = (left + right) / 2
            left, right = (middle, right) if bool(holds(middle)) == inside else (left, middle)
        return (left + right) / 2

    low = None if start == 0 else border(float(grid[start - 1]), float(grid[start]))
    high = None
    if ends.size:
        end = start + int(ends[0])
        high = border(float(grid[end - 1]), float(grid[end]))
    return low, high, "always" if low is None and high is None else "numerically"


def _options(comms: Formula) -> list[Formula]:
    """List the sums of which a formula is the largest."""
    base = Formula(comms.terms)
    return [Formula.sum((base, *chosen)) for chosen in itertools.product(*comms.maxima)]


_JOINED: frozenset[How] = frozenset({"closed form", "always", "never"})
"""How conditions are found that may be joined into one."""


def _all_of(name: str, parts: Sequence[Solution]) -> Solution:
    """Join conditions that all have to hold; one that always does says nothing."""
    parts = [part for part in parts if part.text != "always"] or parts[:1]
    if len(parts) == 1:
        return parts[0]

    def joined(texts: Sequence[str | None]) -> str | None:
        given = [f"({text})" if " or " in text else text for text in texts if text is not None]
        return " and ".join(dict.fromkeys(given)) if len(given) == len(texts) else None

    lows = [part.low for part in parts if part.low is not None]
    highs = [part.high for part in parts if part.high is not None]
    hows = {part.how for part in parts}
    low, high = max(lows, default=None), min(highs, default=None)
    how: How = "closed form"
    if "never" in hows or (low is not None and high is not None and low >= high):
        how, low, high = "never", None, None
    elif hows == {"always"}:
        how = "always"
    generals = joined([part.general or part.text for part in parts])
    text = joined([part.text for part in parts]) or ""
    return Solution(
        name,
        text,
        joined([part.solved for part in parts]),
        generals if generals != text else None,
        low,
        high,
        how,
    )


def _against(
    report: Report,
    name: str,
    math: Formula,
    comms: Formula,
    known: Mapping[str, Fraction],
    unset: Mapping[str, Fraction],
) -> Solution:
    plain = _one(report, name, math.substitute(unset), comms.substitute(unset), known)
    full = _one(report, name, math, comms, known)
    general = full.text if full.text != plain.text else None
    return Solution(name, plain.text, plain.solved, general, plain.low, plain.high, plain.how)


def _one(
    report: Report, name: str, math: Formula, comms: Formula, known: Mapping[str, Fraction]
) -> Solution:
    """Solve `math > comms` for a name, both sums of products."""
    by_power = _by_power(math, comms, name)
    sums = Sums()
    exponents = sorted(by_power)
    if len(exponents) == 1:
        return _independent(name, math, comms, known)
    if len(exponents) == 2:
        low, high = exponents
        return _two_powers(report, name, by_power[low], by_power[high], high - low, known, sums)
    return _more_powers(name, math, comms, by_power, known)


def _by_power(math: Formula, comms: Formula, name: str) -> dict[int, Formula]:
    """Give the coefficients of `math - comms` as a polynomial in a name, times a power of it."""
    found: dict[int, list[Monomial]] = {}
    for sign, formula in ((1, math), (-1, comms)):
        for term in formula.terms:
            exponent = dict(term.powers).get(name, 0)
            rest = Monomial(term.coefficient * sign, tuple(p for p in term.powers if p[0] != name))
            found.setdefault(exponent, []).append(rest)
    made = {exponent: Formula.of(*terms) for exponent, terms in found.items()}
    return {exponent: formula for exponent, formula in made.items() if formula}


def _sign(formula: Formula) -> int:
    """Give the sign of a sum of products of positive sizes, 0 where it depends on them."""
    signs = {term.coefficient > 0 for term in formula.terms}
    return 0 if len(signs) != 1 else 1 if signs.pop() else -1


def _independent(
    name: str,
    math: Formula,
    comms: Formula,
    known: Mapping[str, Fraction],
) -> Solution:
    """Say when it holds where the symbol cancels out: no choice of it helps."""
    difference = Formula.sum((math, comms * Monomial(Fraction(-1))))
    factor = common_factor((*math.terms, *comms.terms))
    left, right = math / factor, comms / factor
    value = difference.value({**known, name: Fraction(1)})
    how: How = "whatever"
    if value is not None:
        how = "always" if value > 0 else "never"
    return Solution(name, f"{left} > {right}, whatever {name} is", how=how)


def _two_powers(
    report: Report,
    name: str,
    low: Formula,
    high: Formula,
    degree: int,
    known: Mapping[str, Fraction],
    sums: Sums,
) -> Solution:
    """Solve `high*x**degree + low > 0`."""
    signs = _sign(low), _sign(high)
    if signs == (1, 1):
        return Solution(name, "always", how="always")
    if signs == (-1, -1):
        return Solution(name, "never", how="never")
    if signs == (0, 0):
        number = high.value(known)
        if number is None or not number:
            text = (
                f"{_positive(Formula.sum((high * Monomial(Fraction(1), ((name, degree),)), low)))}"
            )
            return Solution(name, text, how="open")
        return _two_powers_known(report, name, low, high, degree, known, sums, rising=number > 0)
    return _two_powers_known(
        report, name, low, high, degree, known, sums, rising=signs in ((-1, 1), (-1, 0), (0, 1))
    )


def _two_powers_known(
    report: Report,
    name: str,
    low: Formula,
    high: Formula,
    degree: int,
    known: Mapping[str, Fraction],
    sums: Sums,
    *,
    rising: bool,
) -> Solution:
    minus = Monomial(Fraction(-1))
    top, bottom = (low * minus, high) if rising else (low, high * minus)
    factor = common_factor((*top.terms, *bottom.terms))
    top, bottom = top / factor, bottom / factor
    border = Root.of(sums.name(top) / sums.name(bottom), degree)
    relation = ">" if rising else "<"
    needs = bottom if _sign(bottom) == 0 else None
    above = top.value(known)
    # where what it divides by is not positive, a lower border is never passed, and an upper one always
    where = ""
    if needs is not None:
        bounded = rising or _sign(low) != 1
        where = f" and {_positive(needs)}" if bounded else f" or {_positive(needs * minus)}"
    solved = f"{name} {relation} {sums.text(border)}"
    text = solved if degree > 1 else _grouped(report, name, border, relation, sums)
    value = border.value(sums.values(known)) if _value_positive(top, bottom, known) else None
    how: How = "closed form"
    if needs is not None:
        number = needs.value(known)
        if number is not None and number <= 0:
            how = "never" if rising else "always"
    if how == "closed form" and above is not None and above <= 0:
        how = "always" if rising else "never"
    return Solution(
        name,
        text + where,
        solved + where,
        None,
        value if rising else None,
        None if rising else value,
        how,
    )


def _value_positive(top: Formula, bottom: Formula, known: Mapping[str, Fraction]) -> bool:
    numbers = top.value(known), bottom.value(known)
    return all(number is not None and number > 0 for number in numbers)


def _positive(formula: Formula) -> str:
    """Print `formula > 0` with the negative terms on the other side and no common factor."""
    factor = common_factor(formula.terms)
    left = Formula.of(*(term / factor for term in formula.terms if term.coefficient > 0))
    right = Formula.of(*(term / factor * -1 for term in formula.terms if term.coefficient < 0))
    return f"{left} > {right}"


def _grouped(report: Report, name: str, border: Root, relation: str, sums: Sums) -> str:
    """Print a threshold with the axes that share the symbol beside it: `B/X > C/W_ici`."""
    kinds = report.symbols.kinds
    beside = [
        (other, exponent)
        for other, exponent in border.inside.powers
        if kinds.get(other) == "axis" and kinds.get(name) == "dim" and exponent > 0
    ]
    left, right = Root.of(Monomial.of(name)), border
    if border.degree == 1:
        for other, exponent in beside:
            factor = Root.of(Monomial(Fraction(1), ((other, exponent),)))
            left, right = left / factor, right / factor
    return f"{sums.text(left)} {relation} {sums.text(right)}"


def _more_powers(
    name: str,
    math: Formula,
    comms: Formula,
    by_power: Mapping[int, Formula],
    known: Mapping[str, Fraction],
) -> Solution:
    """Solve where three or more powers of the symbol occur: a quadratic in closed form, else roots."""
    factor = common_factor((*math.terms, *comms.terms))
    text = f"{math / factor} > {comms / factor}"
    least = min(by_power)
    numbers = {exponent - least: f.value(known) for exponent, f in by_power.items()}
    low = high = None
    how: How = "open"
    if all(value is not None for value in numbers.values()):
        low, high, how = _intervals({e: v for e, v in numbers.items() if v is not None})
    solved = _quadratic(name, by_power)
    if solved is not None:
        how = "closed form" if how in ("open", "numerically") else how
    return Solution(name, text, solved, None, low, high, how)


def _quadratic(name: str, by_power: Mapping[int, Formula]) -> str | None:
    """Solve `a*x**2 + b*x + c > 0` where its coefficients change sign once."""
    exponents = sorted(by_power)
    if exponents[-1] - exponents[0] != 2 or len(exponents) != 3:
        return None
    c, b, a = (by_power[exponent] for exponent in exponents)
    signs = _sign(c), _sign(b), _sign(a)
    needs = ""
    if signs == (0, -1, -1):  # a memory that the rest alone may fill
        needs = f" and {_positive(c)}"
    elif 0 in (signs[0], signs[2]) or signs[0] == signs[2]:
        return None
    root = f"(sqrt(({b})**2 - 4*({a})*({c})) - ({b}))/(2*({a}))"
    if signs[2] < 0:
        minus = Monomial(Fraction(-1))
        a, b, c = a * minus, b * minus, c * minus
        root = f"(sqrt(({b})**2 - 4*({a})*({c})) - ({b}))/(2*({a}))"
        return f"{name} < {root}{needs}"
    return f"{name} > {root}"


def _intervals(
    numbers: Mapping[int, Fraction],
) -> tuple[float | None, float | None, Literal["numerically", "always", "never"]]:
    """Find the first stretch of positive values on which a polynomial is positive."""
    import numpy as np  # noqa: PLC0415 (for this case alone)

    degree = max(numbers)
    roots = np.roots([float(numbers.get(e, 0)) for e in range(degree, -1, -1)])
    real = sorted(float(r.real) for r in roots if abs(r.imag) <= 1e-9 * abs(r) and r.real > 0)

    def positive(at: float) -> bool:
        return sum(float(value) * at**e for e, value in numbers.items()) > 0

    borders = [0.0, *real]
    for left, right in zip(borders, [*real, None], strict=True):
        middle = (left + right) / 2 if right is not None else 2 * left + 1
        if positive(middle):
            if left == 0.0 and right is None:
                return None, None, "always"
            return left or None, right, "numerically"
    return None, None, "never"


# At the best split -----------------------------------------------------------------------------


def _at_split(
    name: str,
    math: Monomial,
    split: Split,
    known: Mapping[str, Fraction],
    unset: Mapping[str, Fraction],
) -> Solution:
    """Solve T_math > the least T_comms, where both are products."""
    assert split.least is not None
    assert split.constraint is not None
    least, chips_of = split.least, split.constraint.names

    def solved(fixed: Mapping[str, Fraction]) -> tuple[str, str, Root | None, bool]:
        ratio = Root.of(math) / least
        ratio = Root.of(Formula.of(ratio.inside).substitute(fixed).terms[0], ratio.degree)
        exponent = ratio.exponent(name)
        if not exponent:
            return f"{split.sums.text(ratio)} > 1, whatever {name} is", "", None, True
        border = (ratio / Root.of(Monomial.of(name)) ** exponent) ** (-1 / exponent)
        relation = ">" if exponent > 0 else "<"
        left, right = Root.of(Monomial.of(name)), border
        for chips in chips_of:
            beside = border.exponent(chips)
            if exponent > 0 and beside > 0:
                factor = Root.of(Monomial.of(chips)) ** beside
                left, right = left / factor, right / factor
        text = f"{split.sums.text(left)} {relation} {split.sums.text(right)}"
        alone = f"{name} {relation} {split.sums.text(border)}"
        return text, alone, border, exponent > 0

    text, alone, border, rising = solved(unset)
    general = solved({})[0]
    value = None if border is None else border.value(split.sums.values(known))
    return Solution(
        name,
        text,
        alone or None,
        general if general != text else None,
        value if rising else None,
        None if rising else value,
    )
