"""A report as LaTeX: tables to be included in a document, or formulas for a notebook.

Needs no package. Names outside of ASCII want XeLaTeX or LuaLaTeX
for what stands in words; formulas use commands only.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from fractions import Fraction

from shardlang.backends.report_tables import Block, blocks, Cell, Notation
from shardlang.backends.units import amount
from shardlang.cost.bound import Condition
from shardlang.cost.formula import digits, Floor, Formula, Min, Sum
from shardlang.cost.report import Report
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


SIZES = (("", 64), (r"\small", 70), (r"\footnotesize", 78), (r"\scriptsize", 92))
"""Sizes of type, with the characters that a line of LaTeX's article holds in them, gaps counted."""

ROWS = 16
"""The most rows of a table: pages break between tables."""


def tables(about: str, blocks: Iterable[Block]) -> str:
    """Print tables as LaTeX, with a comment that says what they are."""
    return f"% {about}\n{sections(blocks)}"


def sections(blocks: Iterable[Block]) -> str:
    """Print tables as LaTeX, each with a heading of its own."""
    lines: list[str] = []
    for block in blocks:
        lines += ["", rf"\paragraph{{{escape(block.title)}}}\mbox{{}}\nopagebreak"]
        if block.rows:
            lines += _table(block)
        for note in block.notes:
            lines += ["", escape(note)]
    return "\n".join(lines) + "\n"


def _table(block: Block) -> Iterator[str]:
    """Print a table in the largest type that fits the line; where none does, columns are broken."""
    shown = [i for i, column in enumerate(block.columns) if column not in block.more]
    natural = {
        i: max(len(block.columns[i]), *(_length(row[i]) for row in block.cells)) + GAP
        for i in shown
    }
    size, room = next((s for s in SIZES if sum(natural.values()) <= s[1]), SIZES[-1])
    broken = [i for i in shown if block.columns[i] in block.wide]
    spare = room - sum(natural[i] for i in shown if i not in broken)
    share = spare / (sum(natural[i] for i in broken) or 1)
    fits = share >= 1 or not broken
    form = "".join(
        "r"
        if block.columns[i] in block.numbers
        else "l"
        if fits or i not in broken
        else rf"p{{{max(natural[i] * share - GAP, 6) / room:.2f}\linewidth}}"
        for i in shown
    )
    heads = " & ".join(escape(block.columns[i]) for i in shown)
    for start in range(0, len(block.cells), ROWS):
        yield ""
        yield rf"{{{size}\setlength{{\tabcolsep}}{{3pt}}\renewcommand{{\arraystretch}}{{1.5}}\noindent"
        yield rf"\begin{{tabular}}{{{form}}}"
        yield r"\hline"
        yield rf"{heads} \tabularnewline"
        yield r"\hline"
        for row in block.cells[start : start + ROWS]:
            cells = [
                ("" if fits or i not in broken else r"\raggedright ") + _cell(row[i]) for i in shown
            ]
            yield " & ".join(cells) + r" \tabularnewline"
        yield r"\hline"
        yield r"\end{tabular}\par}\smallskip"


GAP = 1.3
"""The room between columns, in characters."""


def _length(cell: Cell) -> int:
    """Estimate the characters that a cell takes in a line: fractions are as wide as their wider half."""
    match cell:
        case Formula():
            wide = sum(_width(term) + 2 for term in cell.terms)
            return wide + sum(6 + sum(_length(o) + 2 for o in options) for options in cell.maxima)
        case Array():
            return round(0.95 * len(str(cell)))
        case Condition():
            return round(0.9 * len(str(cell)))
        case Notation():
            return round(0.95 * len(cell))
        case _:
            return len(str(cell))


def _width(term: Monomial) -> int:
    """Estimate a product's width: letters of a fraction are set small."""
    halves = [
        sum(round(0.7 * len(str(name))) + 1 for name, power in term.powers if power * sign > 0)
        for sign in (1, -1)
    ]
    number = 0 if abs(term.coefficient) == 1 else len(str(term.coefficient))
    return max(halves[0] + number, halves[1], 1)


def escape(text: str) -> str:
    """Print text so that LaTeX shows it as it is."""
    return "".join(_ESCAPES.get(char) or _greek(char) for char in text)


def _greek(char: str) -> str:
    """Give the command of a Greek letter, which pdfTeX knows; any other character stays."""
    if char.isascii():
        return char
    found = re.fullmatch(r"GREEK (CAPITAL|SMALL) LETTER (\w+)", unicodedata.name(char, ""))
    word = "" if found is None else found[2].lower().replace("lamda", "lambda")
    if found is not None and found[1] == "CAPITAL":
        word = word.capitalize()
    return rf"\ensuremath{{\{word}}}" if word in _GREEK else char


def _cell(cell: Cell) -> str:
    match cell:
        case Formula():
            return f"${formula(cell)}$"
        case Array():
            return f"${array(cell)}$"
        case Notation():
            return f"${notation(cell)}$"
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
        base = escape(head) if len(head) == 1 else rf"\mathit{{{escape(head)}}}"
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
        inner = r",\;\allowbreak ".join(formula(option) for option in options)
        text += (" + " if text else "") + rf"\max({inner})"
    return text or "0"


def condition(text: str) -> str:
    """Print an inequality that is text: its names and operators, one by one."""

    def token(found: re.Match[str]) -> str:
        name, power, operator = found.groups()
        if name:
            return r"\;\mathrm{and}\;" if name == "and" else symbol(name)
        return f"^{{{power}}}" if power else {"*": r" \, ", "/": " / "}[operator]

    return re.sub(r"([^\W\d]\w*)|\*\*(\d+)|([*/])", token, text)


def notation(text: str) -> str:
    r"""Print a line of the notation, `A[I_X, J] ·_J B[J]` with `\cdot_{J}`; it may be broken."""

    def token(found: re.Match[str]) -> str:
        sign, below, name, axes, other = found.groups()
        if sign:
            lower = "" if below is None else rf"_{{{escape(below.strip('{}'))}}}"
            return rf"\mathbin{{{_SIGNS[sign]}{lower}}}"
        if name:
            return rf"{{{symbol(name)}}}_{{{escape(axes)}}}" if axes else symbol(name)
        return _SIGNS.get(other, other)

    return re.sub(
        r"([·⊙*])(?:_(\w+|\{[^{}]*\}))?|([^\W\d]\w*'*?)(?:_\{([^{}]*)\})?(?!\w)|([{}=,|→#_^&%$\\])",
        token,
        text,
    )


_SIGNS = {
    "·": r"\cdot ",
    "⊙": r"\odot ",
    "*": r"\ast ",
    "→": r"\rightarrow ",
    "{": r"\{",
    "}": r"\}",
    "=": r"\mathrel{=}\allowbreak ",
    ",": r",\,",
    "|": r"\vert ",
    "#": r"\#",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "^": r"\hat{}",
    "\\": r"\backslash ",
}
"""How the notation's signs are set."""


def array(value: Array) -> str:
    """Print an array as the book does."""

    def below(axes: tuple[Axis, ...]) -> str:
        names = [axis.name for axis in axes]
        if not names:
            return ""
        joined = "".join(names) if all(len(n) == 1 for n in names) else ",".join(names)
        return f"_{{{escape(joined)}}}"

    dims = r",\allowbreak ".join(
        (symbol(dim.name) if not axes else f"{{{symbol(dim.name)}}}{below(axes)}")
        for dim, axes in zip(value.tensor.dims, value.layout.sharding, strict=True)
    )
    partial = ""
    if value.layout.unreduced:
        word = "U" if value.layout.reduction == "sum" else rf"\{value.layout.reduction}"
        partial = rf"\allowbreak\{{{word}{below(tuple(sorted(value.layout.unreduced)))}\}}"
    return f"{symbol(value.name)}[{dims}]{partial}"


def _display(report: Report) -> str:
    lines: list[str] = []
    for name in report.passes:
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
