"""A report as LaTeX: tables to be included in a document, or formulas for a notebook.

Needs no package. Names outside of ASCII and the notation's own `·` and `⊙` want XeLaTeX or LuaLaTeX
for what stands in words; formulas use commands only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from fractions import Fraction

from shardlang.backends.report_tables import Block, blocks, Cell
from shardlang.backends.units import amount
from shardlang.cost.bound import Condition
from shardlang.cost.formula import digits, Floor, Formula, Min, Sum
from shardlang.cost.report import PASSES, Report
from shardlang.ir.size import Monomial
from shardlang.ir.types import Array, Axis

_ESCAPES = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "_": r"\_",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\ensuremath{<}",
    ">": r"\ensuremath{>}",
    "|": r"\ensuremath{|}",
    "·": r"\ensuremath{\cdot}",
    "⊙": r"\ensuremath{\odot}",
    "→": r"\ensuremath{\rightarrow}",
    "µ": r"\ensuremath{\mu}",
    "∈": r"\ensuremath{\in}",
    "×": r"\ensuremath{\times}",
    "…": r"\ldots{}",
}
_GREEK = frozenset(
    (
        "alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa",
        "lambda", "mu", "nu", "xi", "pi", "rho", "sigma", "tau", "upsilon", "phi", "chi", "psi",
        "omega", "Gamma", "Delta", "Theta", "Lambda", "Xi", "Pi", "Sigma", "Upsilon", "Phi", "Psi",
        "Omega",
    )
)  # fmt: skip


def render(report: Report, *, notebook: bool = False) -> str:
    """Print a report as LaTeX; `notebook` gives the totals alone, as one displayed formula."""
    if notebook:
        return _display(report)
    about = "The cost of a plan, made by shardlang. Every figure is of one device."
    return tables(about, blocks(report))


def tables(about: str, blocks: Iterable[Block]) -> str:
    """Print tables as LaTeX, with a comment that says what they are."""
    return f"% {about}\n{sections(blocks)}"


def sections(blocks: Iterable[Block]) -> str:
    """Print tables as LaTeX, each with a heading of its own."""
    lines: list[str] = []
    for block in blocks:
        lines += ["", rf"\paragraph{{{escape(block.title)}}}\mbox{{}}", ""]
        if block.rows:
            skip = {i for i, column in enumerate(block.columns) if column == "reason"}
            heads = [c for i, c in enumerate(block.columns) if i not in skip]
            form = "".join(_form(column, block) for column in heads)
            lines += [rf"\begin{{tabular}}{{{form}}}", r"\hline"]
            lines += [" & ".join(escape(head) for head in heads) + r" \\", r"\hline"]
            for row in block.cells:
                cells = [_cell(cell) for i, cell in enumerate(row) if i not in skip]
                lines.append(" & ".join(cells) + r" \\")
            lines += [r"\hline", r"\end{tabular}"]
        for note in block.notes:
            lines += ["", escape(note)]
    return "\n".join(lines) + "\n"


def _form(column: str, block: Block) -> str:
    if column in block.wide:
        return rf"p{{{0.6 / len(block.wide):.2g}\linewidth}}"
    return "r" if column in block.numbers else "l"


def escape(text: str) -> str:
    """Print text so that LaTeX shows it as it is."""
    return "".join(_ESCAPES.get(char, char) for char in text)


def _cell(cell: Cell) -> str:
    match cell:
        case Formula():
            return f"${formula(cell)}$"
        case Array():
            return f"${array(cell)}$"
        case Condition(text):
            return text if text.isalpha() else f"${condition(text)}$"
        case _:
            return escape(cell)


def symbol(name: str) -> str:
    r"""Print a name in mathematics: `W_in` is `W_{\mathrm{in}}`, `lambda_` is `\lambda`."""
    head, _, rest = name.strip("_").partition("_")
    if not head:
        return escape(name)
    if head in _GREEK:
        base = f"\\{head}"
    else:
        base = head if len(head) == 1 else rf"\mathit{{{escape(head)}}}"
    if not rest:
        return base
    below = rest if len(rest) == 1 else rf"\mathrm{{{escape(rest)}}}"
    return f"{base}_{{{below}}}"


def _factor(name: str, power: int) -> str:
    match name:
        case Sum():
            text = f"({formula(Formula(name.inside))})"
        case Floor():
            text = rf"\lfloor {monomial(name.inside[0])} \rfloor"
        case Min():
            text = rf"\min({', '.join(map(monomial, name.inside))})"
        case _:
            text = symbol(name)
    return text if power == 1 else f"{{{text}}}^{{{power}}}"


def monomial(term: Monomial) -> str:
    r"""Print a product: `\frac{2 D F}{Y}`."""
    number: Fraction = abs(term.coefficient)
    top = [_factor(n, p) for n, p in term.powers if p > 0]
    bottom = [_factor(n, -p) for n, p in term.powers if p < 0]
    if number.numerator != 1 or not top:
        top.insert(0, digits(number.numerator))
    if number.denominator != 1:
        bottom.insert(0, digits(number.denominator))
    above, below = r" \, ".join(top), r" \, ".join(bottom)
    return rf"\frac{{{above}}}{{{below}}}" if bottom else above


def formula(value: Formula) -> str:
    r"""Print a formula, maxima as `\max(…)`."""
    ordered = sorted(value.terms, key=lambda term: term.coefficient < 0)
    text = ""
    for term in ordered:
        sign = "-" if term.coefficient < 0 else "+" if text else ""
        text += f" {sign} {monomial(term)}" if text else f"{sign}{monomial(term)}"
    for options in value.maxima:
        inner = ",\\; ".join(formula(option) for option in options)
        text += (" + " if text else "") + rf"\max\left({inner}\right)"
    return text or "0"


def condition(text: str) -> str:
    """Print an inequality that is text: its names and operators, one by one."""

    def token(found: re.Match[str]) -> str:
        name, power, operator = found.groups()
        if name:
            return r"\;\mathrm{and}\;" if name == "and" else symbol(name)
        return f"^{{{power}}}" if power else {"*": r" \, ", "/": " / "}[operator]

    return re.sub(r"([^\W\d]\w*)|\*\*(\d+)|([*/])", token, text)


def array(value: Array) -> str:
    """Print an array as the book does."""

    def below(axes: tuple[Axis, ...]) -> str:
        names = [axis.name for axis in axes]
        if not names:
            return ""
        joined = "".join(names) if all(len(n) == 1 for n in names) else ",".join(names)
        return f"_{{{escape(joined)}}}"

    dims = ", ".join(
        (symbol(dim.name) if not axes else f"{{{symbol(dim.name)}}}{below(axes)}")
        for dim, axes in zip(value.tensor.dims, value.layout.sharding, strict=True)
    )
    partial = ""
    if value.layout.unreduced:
        word = "U" if value.layout.reduction == "sum" else rf"\{value.layout.reduction}"
        partial = rf"\{{{word}{below(tuple(sorted(value.layout.unreduced)))}\}}"
    return f"{symbol(value.name)}[{dims}]{partial}"


def _display(report: Report) -> str:
    lines: list[str] = []
    for name in PASSES if report.plan.backward else PASSES[:1]:
        totals = report.totals[name]
        for key, label in (("t_math", "math"), ("t_comms", "comms")):
            quantity = totals.quantity(key)
            value = amount(quantity, "s")
            shown = (
                rf" &= \mathrm{{{value.replace('µ', 'u').replace(' ', '~')}}}" if value else " &"
            )
            left = rf"T_{{\mathrm{{{label}}}}}^{{\mathrm{{{name}}}}}"
            lines.append(rf"{left} &= {formula(quantity.formula)}{shown} \\")
    return "$\\displaystyle\n\\begin{array}{lll}\n" + "\n".join(lines) + "\n\\end{array}$\n"
