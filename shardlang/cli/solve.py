"""`shardlang solve`: when a program is compute-bound, and the best split of its mesh."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from fractions import Fraction
from textwrap import wrap
from typing import Any, TYPE_CHECKING

from shardlang.backends.units import si
from shardlang.cli import arguments as options
from shardlang.cli.program import make_plan, priced, read_program
from shardlang.cli.render import dress, SCHEMA, to_json
from shardlang.cli.streams import UsageError, width, write_result

if TYPE_CHECKING:
    from shardlang.cost.fits import Fit
    from shardlang.cost.report import Report
    from shardlang.cost.solve import Solution
    from shardlang.cost.split import Constraint, Pass, Split

NAME = "solve"
HELP = (
    "when a program is compute-bound or fits into memory, for any symbol; the best split of a mesh"
)
TIMES = ("t_comms", "t_serial", "t_overlapped")


def configure(parser: ArgumentParser) -> None:
    """Declare the options."""
    options.add_source(parser)
    group = parser.add_argument_group("question")
    group.add_argument(
        "--for", dest="symbol", metavar="B", help="the symbol to solve T_math > T_comms for"
    )
    group.add_argument(
        "--when",
        dest="asked",
        metavar="T>T",
        default="t_math>t_comms",
        help="what --for solves in place of that: any of t_math, t_comms, t_load, t_hbm against another",
    )
    group.add_argument(
        "--fits",
        metavar="B",
        help="the symbol to solve memory <= hbm for: the largest dim, or the smallest axis",
    )
    group.add_argument(
        "--parts",
        metavar="PART,PART",
        default="total",
        help="what of the memory has to fit (total), as in parameters,optimizer",
    )
    group.add_argument(
        "--minimize", choices=TIMES, help="what the split of --over is to make least (t_comms)"
    )
    group.add_argument("--over", metavar="X,Y", help="the mesh axes that are free")
    group.add_argument(
        "--with",
        dest="constraint",
        metavar="X*Y=N",
        help="what their product is, a name or a number",
    )
    options.add_lowering(parser)
    options.add_model(parser, hbm=False)
    options.add_output(parser)


def run(arguments: Namespace) -> int:
    """Print the answers."""
    from shardlang.cost.solve import when

    over = _axes(arguments)
    more = _own_symbols(arguments)
    plan = make_plan(arguments)
    report = priced(arguments, plan)
    constraint = _constraint(arguments, over, report, more)
    passes: tuple[Pass, ...] = (
        ("forward",) if arguments.passes == "forward" else ("forward", "backward", "total")
    )
    split: Split | None = None
    if constraint is not None:
        split = _split(report, arguments, constraint, passes[-1])
    found: dict[str, Solution] = {}
    if arguments.symbol is not None:
        found = {
            name: when(
                report,
                arguments.symbol,
                name,
                over=over,
                constraint=constraint,
                asked=arguments.asked,
            )
            for name in passes
        }
    fit, *at_once = _fit(report, arguments) or (None,)
    if arguments.format == "json":
        data = _data(report, arguments, found, split)
        data["fits"] = None if fit is None else fit.to_dict()
        data["fits_at_once"] = at_once[0].to_dict() if at_once else None
        if fit is not None:
            data["symbols"][fit.hbm] = "hardware"
        write_result(to_json(data), arguments.output)
    else:
        text = _text(report, arguments, found, split)
        if fit is not None:
            asked = found or split is not None
            text = f"{text}\n\n" if asked else text.splitlines()[0] + "\n\n"
            text += "\n".join((*_fit_lines(fit), *map(_at_once, at_once)))
        write_result(dress(text, arguments.format), arguments.output)
    return 0


def _fit(report: Report, arguments: Namespace) -> tuple[Fit, ...]:
    """Solve for what fits: of the total, also for what is alive at once where that is more."""
    if arguments.fits is None:
        return ()
    from shardlang.cost.fits import fits

    parts = tuple(part.strip() for part in arguments.parts.split(","))
    found = fits(report, arguments.fits, parts)
    if parts != ("total",):
        return (found,)
    other = fits(report, arguments.fits, ("peak",))
    fewer = None not in (found.most, other.most) and (other.most or 0) < (found.most or 0)
    more = None not in (found.least, other.least) and (other.least or 0) > (found.least or 0)
    return (found, other) if fewer or more else (found,)


def _axes(arguments: Namespace) -> tuple[str, ...]:
    """Give the axes of `--over`; refuse questions that ask nothing or half of one."""
    from shardlang.cost.solve import sides

    over = tuple(part.strip() for part in (arguments.over or "").split(",") if part.strip())
    if bool(over) != (arguments.constraint is not None):
        raise UsageError("--over X,Y and --with 'X*Y=N' go together")
    if arguments.minimize is not None and not over:
        raise UsageError("--minimize needs --over X,Y --with 'X*Y=N'")
    if arguments.symbol is None and arguments.fits is None and not over:
        raise UsageError(
            "nothing to solve: give --for B, --fits B, or --minimize t_comms --over X,Y --with ..."
        )
    if over and sides(arguments.asked) != ("t_math", "t_comms"):
        raise UsageError("--when with --over X,Y is t_math>t_comms: the split is that of T_comms")
    if len(set(over)) < len(over) or len(over) == 1:
        raise UsageError("--over takes two or more different axes")
    if len(over) > 4:
        raise UsageError("--over takes at most four axes")
    return over


def _own_symbols(arguments: Namespace) -> dict[str, Fraction]:
    """Take the settings out that are of the constraint's own symbols (`--set N=64`)."""
    text: str = arguments.constraint or ""
    names = {part.strip() for part in text.partition("=")[2].split("*")}
    settings: list[options.Setting] = arguments.settings
    arguments.settings = [item for item in settings if item.name not in names]
    program = read_program(arguments)
    names -= {info.dim.name for info in program.dims}.union(program.mesh.names)
    arguments.settings = [item for item in settings if item.name not in names]
    return {item.name: item.value for item in settings if item.name in names}


def _constraint(
    arguments: Namespace, over: tuple[str, ...], report: Report, more: dict[str, Fraction]
) -> Constraint | None:
    if not over:
        return None
    from shardlang.cost.solve import constraint_of

    return constraint_of(report, arguments.constraint, over, more)


def _split(report: Report, arguments: Namespace, constraint: Constraint, name: Pass) -> Split:
    from shardlang.cost.split import best_split

    return best_split(report, constraint.axes, constraint, name, arguments.minimize or "t_comms")


def _data(
    report: Report, arguments: Namespace, found: dict[str, Solution], split: Split | None
) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "strategy": report.plan.strategy,
        "model": report.model,
        "overlap": report.overlap,
        "for": arguments.symbol,
        "compute_bound": {name: solution.to_dict() for name, solution in found.items()},
        "minimize": None if split is None else arguments.minimize or "t_comms",
        "split": None if split is None else split.to_dict(),
        "symbols": dict(report.symbols.kinds),
    }


def _text(
    report: Report, arguments: Namespace, found: dict[str, Solution], split: Split | None
) -> str:
    from shardlang.cost.solve import sides

    lines: list[str] = []
    overlap = ", axes overlap each other" if report.overlap else ", collectives one after another"
    lines.append(
        f"strategy   {report.plan.strategy}, model {report.model}{overlap if report.model else ''}"
    )
    latency = "; hops take T_hop" if report.exact else ", no latency"
    regime = f"{report.rates}{latency}; C in FLOP/s, W in B/s, times in seconds"
    lines += wrap(regime, 79, initial_indent=f"{'regime':<11}", subsequent_indent=" " * 11)
    for number, note in enumerate(report.notes):
        label = "" if number else "network"
        lines += wrap(note, 79, initial_indent=f"{label:<11}", subsequent_indent=" " * 11)
    if split is not None:
        lines += ["", *_split_lines(split, arguments.minimize or "t_comms")]
    if found:
        at = " at that split" if split is not None else ""
        asked = " > ".join("T" + side[1:] for side in sides(arguments.asked))
        bound = "Compute-bound, " if asked == "T_math > T_comms" else ""
        lines += ["", f"{bound}{asked}{at}, where"]
        for name, solution in found.items():
            lines += (part for line in _solution_lines(name, solution) for part in _folded(line))
    return "\n".join(lines)


COLUMN = 13
"""Where the conditions stand, behind the names of the passes."""


LONG = 200
"""Conditions of more characters are not printed a second time, for more hardware axes."""


def _folded(line: str) -> list[str]:
    """Break a condition that is too long for the terminal; what goes on stands further in."""
    from shardlang.backends.report_text import wrap as fold

    first, *more = fold(line[COLUMN:], max(width() - COLUMN - 2, 40))
    return [line[:COLUMN] + first, *(" " * (COLUMN + 2) + part for part in more)]


def _solution_lines(name: str, solution: Solution) -> list[str]:
    lines = [f"  {name:<9}  {solution.text}"]
    if solution.solved is not None and solution.solved != solution.text:
        lines.append(f"             that is {solution.solved}")
    if solution.general is not None and len(solution.general) > LONG:
        lines.append("             with more hardware axes: --format json has it")
    elif solution.general is not None:
        lines.append(f"             with more hardware axes: {solution.general}")
    match solution.how:
        case "never" if solution.text != "never":
            lines.append("             which is never so at these sizes: no choice helps")
        case "always" if solution.text != "always":
            lines.append("             which is always so at these sizes")
        case "open":
            lines.append("             there is no closed form; give the other sizes with --set")
        case "whatever":
            lines.append(f"             no choice of {solution.symbol} helps")
        case _:
            pass
    if solution.low is not None or solution.high is not None:
        low = "" if solution.low is None else f"{_number(solution.low)} < "
        high = "" if solution.high is None else f" < {_number(solution.high)}"
        how = ", found numerically" if solution.how == "numerically" else ""
        lines.append(f"             here {low}{solution.symbol}{high}{how}")
    return lines


def _fit_lines(fit: Fit) -> list[str]:
    solution = fit.solution
    name = solution.symbol
    what = "memory" if fit.parts == ("total",) else " + ".join(fit.parts)
    size = f", {fit.hbm} = {si(float(fit.capacity), 'B')}" if fit.capacity is not None else ""
    lines = [f"Fits, {what} <= {fit.hbm}{size}, where"]
    for number, part in enumerate((solution.solved or solution.text).split(" and ")):
        indent = "  and " if number else "  "
        lines += wrap(part, 77, initial_indent=indent, subsequent_indent="      ")
    rest = "" if fit.rest_value is None else f": {si(float(fit.rest_value), 'B')}"
    alone = f"what does not depend on {name}, {fit.rest}{rest}"
    match solution.how:
        case "never":
            said = f"never so here: no choice of {name} helps; {alone}, is too much"
        case "always":
            said = "always so here"
        case "whatever":
            said = f"no choice of {name} helps: the memory does not depend on it"
        case "open":
            said = "there is no closed form; give the other sizes with --set"
        case _:
            said = f"beside {alone}" if fit.rest else ""
    if said:
        lines += wrap(said, 77, initial_indent="  ", subsequent_indent="    ")
    how = ", found numerically" if solution.how == "numerically" else ""
    if fit.least is not None and solution.low is not None:
        lines.append(
            f"  here {name} >= {_number(solution.low)}, in whole numbers {fit.least:_}{how}"
        )
    if fit.most is not None:
        lines.append(f"  here {name} <= {fit.most:_}{how}")
    return lines


def _at_once(fit: Fit) -> str:
    """Say what fits with all that is alive at once, where that is less than the total lets in."""
    border = f"<= {fit.most:_}" if fit.most is not None else f">= {fit.least:_}"
    return f"  with temporaries, at the worst moment (--parts peak): {fit.solution.symbol} {border}"


def _split_lines(split: Split, what: str) -> list[str]:
    lines = [f"Least {what}"]
    for name, root in split.values.items():
        number = f" = {_number(split.numbers[name])}" if name in split.numbers else ""
        lines.append(f"  {name} = {split.sums.text(root)}{number}")
    if not split.values:
        for name, value in split.numbers.items():
            lines.append(f"  {name} = {_number(value)}")
    match split.how:
        case "flat":
            lines.append("  no choice helps: it does not depend on the split")
        case "at the end":
            lines.append("  found numerically: it falls all the way to the end of the range")
        case "numerically":
            lines.append("  found numerically: there is no closed form")
        case "open":
            lines.append("  there is no closed form; give the sizes with --set")
        case "closed form":
            lines.append("  in closed form")
    if split.how == "closed form":
        lines.append(f"  {what} is then {split.text}")
    if split.seconds is not None:
        lines.append(f"  {what} = {split.seconds:.4g} s")
    if split.whole and split.whole_seconds is not None:
        listed = ", ".join(f"{name}={value}" for name, value in split.whole.items())
        lines.append(f"  in whole numbers {listed}: {split.whole_seconds:.4g} s")
    return lines


def _number(value: float) -> str:
    """Print a number with four digits, large ones with their thousands: `40_800`."""
    if abs(value) >= 1000:
        digits = max(0, 3 - int(f"{value:e}".partition("e")[2]))
        return f"{round(value, digits) if digits else round(value):_}"
    return f"{value:.4g}"
