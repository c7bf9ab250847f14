"""The one printer of the notation: steps, plans and their parts as text that parses again.

Precondition: the plan's steps are legal. Effect: `print_plan` gives an explicit program; lowering
it again changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from itertools import groupby

from shardlang.ir.functions import FUNCTIONS
from shardlang.ir.ops import (
    AllGather,
    AllReduce,
    AllToAll,
    Coefficient,
    Compare,
    Divide,
    Einsum,
    implied,
    Linear,
    Map,
    Mask,
    Op,
    Permute,
    Put,
    Rank,
    Reduce,
    ReduceScatter,
    Rename,
    Reshape,
    Ring,
    RingAttention,
    Rotary,
    Select,
    Slice,
    Take,
    Top,
    Update,
)
from shardlang.ir.plan import Plan, Proof, Step
from shardlang.ir.program import Block, Leaf, Program, Zero
from shardlang.ir.size import BinOp, Monomial, Name, Number, SizeExpr
from shardlang.ir.types import Array, Axis, AxisInfo, Dim, DTYPES, subscript


def number(value: Fraction) -> str:
    """Print an exact number: as an integer or a decimal where it is one, else as a quotient."""
    if value.denominator == 1:
        return str(value.numerator)
    rest, twos, fives = value.denominator, 0, 0
    while rest % 2 == 0:
        rest, twos = rest // 2, twos + 1
    while rest % 5 == 0:
        rest, fives = rest // 5, fives + 1
    if rest != 1:
        return f"{value.numerator}/{value.denominator}"
    digits = max(twos, fives)
    scaled = abs(value) * 10**digits
    text = str(scaled.numerator).rjust(digits + 1, "0")
    sign = "-" if value < 0 else ""
    return f"{sign}{text[:-digits]}.{text[-digits:]}"


def monomial(size: Monomial) -> str:
    """Print a product of a number and sizes as an expression: `2 * |C| / |E|`."""
    over = [f"|{name}|" for name, power in size.powers for _ in range(power)]
    under = [f"|{name}|" for name, power in size.powers for _ in range(-power)]
    factor = [number(size.coefficient)] if size.coefficient != 1 or not over else []
    return " / ".join((" * ".join((*factor, *over)), *under))


def size_expr(expr: SizeExpr, *, above: int = 0) -> str:
    """Print a declared size, with the brackets that it needs and no others."""
    match expr:
        case Number(value):
            return number(value)
        case Name(name):
            return name
        case BinOp(op, left, right):
            level = {"+": 1, "-": 1, "*": 2, "/": 2, "**": 3}[op]
            gap = "" if level > 1 else " "
            text = (
                f"{size_expr(left, above=level + (op == '**'))}{gap}{op}{gap}"
                f"{size_expr(right, above=level + (op in '-/'))}"
            )
            return f"({text})" if level < above else text


def _braced(names: Iterable[str]) -> str:
    listed = list(names)
    if len(listed) == 1 and "_" not in listed[0]:
        return f"_{listed[0]}"
    return "_{" + ",".join(listed) + "}"


def _axes_and_dim(axes: tuple[Axis, ...], dim: Dim) -> str:
    names = [axis.name for axis in axes]
    joined = "".join(names) if all(len(name) == 1 for name in names) else ",".join(names)
    return f"_{{{joined},{dim}}}"


def _term(coefficient: Coefficient, text: str) -> tuple[str, str]:
    """Give a term of a sum as sign and magnitude."""
    sign = "-" if coefficient.value < 0 else "+"
    size = abs(coefficient.value)
    if "/" in number(size) and "/" not in number(1 / size):
        above, below = Fraction(1), number(1 / size)
    elif "/" in number(size):
        above, below = Fraction(size.numerator), str(size.denominator)
    else:
        above, below = size, ""
    factors = [text] if above == 1 else [number(above), text]
    factors[-1:-1] = [part for dim, power in coefficient.powers for part in _powers(dim, power)]
    under = [part for dim, power in coefficient.powers for part in _powers(dim, -power)]
    return sign, " / ".join((" * ".join(factors), *filter(None, (below,)), *under))


def _powers(dim: Dim, power: Fraction) -> Iterator[str]:
    """Print a positive power of a size as factors: `|D|`, `sqrt(|D|)`, `sqrt(sqrt(|D|))`."""
    text = f"|{dim}|"
    while power > 0:
        for _ in range(int(power)):
            yield text
        power, text = 2 * (power - int(power)), f"sqrt({text})"


def _linear(op: Linear, operands: list[str]) -> str:
    terms = [_term(c, text) for c, text in zip(op.coefficients, operands, strict=True)]
    if op.constant:
        terms.append(("-" if op.constant < 0 else "+", number(abs(op.constant))))
    (sign, body), *rest = terms
    return ("-" if sign == "-" else "") + body + "".join(f" {s} {b}" for s, b in rest)


def expression(op: Op, operands: list[str]) -> str:
    """Print an operation over operands that are already text."""
    match op:
        case Einsum(()):
            return " ⊙ ".join(operands)
        case Einsum(contracted) if len(operands) == 2:
            return f" ·{_braced(d.name for d in contracted)} ".join(operands)
        case Einsum():
            return " * ".join(operands)
        case Linear():
            return _linear(op, operands)
        case Map(function):
            assert function in FUNCTIONS
            return f"{function}({operands[0]})"
        case Divide():
            return " / ".join(operands)
        case Compare("==", None):
            return f"equal({', '.join(operands)})"
        case Compare(relation, None):
            return f" {relation} ".join(operands)
        case Compare(relation, bound):
            assert bound is not None
            return f"{operands[0]} {relation} {monomial(bound)}"
        case Select(fill):
            return f"where({', '.join(operands)}, {'-inf' if fill is None else number(fill)})"
        case Take(dims):
            return f"take{_braced(d.name for d in dims)}({', '.join(operands)})"
        case Put(dims):
            return f"put{_braced(d.name for d in dims)}({', '.join(operands)})"
        case Reduce(kind, dims):
            return f"{kind}{_braced(d.name for d in dims)}({operands[0]})"
        case Update():
            return f"Update({', '.join(operands)})"
        case Rename(dims):
            return f"Rename_{{{','.join(d.name for d in dims)}}}({operands[0]})"
        case Rotary(dim, _, back):
            return f"{'un' if back else ''}rotary{_braced((dim.name,))}({', '.join(operands)})"
        case Reshape(source, into):
            before, after = (",".join(dim.name for dim in dims) for dims in (source, into))
            return f"Reshape_{{{before}->{after}}}({operands[0]})"
        case Top(dim, into):
            return f"top{_braced((dim.name, into.name))}({operands[0]})"
        case Rank(dims):
            return f"rank{_braced(d.name for d in dims)}({operands[0]})"
        case AllGather(axes):
            return f"AllGather{subscript(axes)}({operands[0]})"
        case ReduceScatter(axes, dim):
            return f"ReduceScatter{_axes_and_dim(axes, dim)}({operands[0]})"
        case AllReduce(axes):
            return f"AllReduce{subscript(axes)}({operands[0]})"
        case AllToAll(axes, _, dim):
            return f"AllToAll{_axes_and_dim(axes, dim)}({operands[0]})"
        case Permute():
            return f"Permute({operands[0]})"
        case Slice(axes, dim):
            return f"Slice{_axes_and_dim(axes, dim)}({operands[0]})"
        case Mask(axes):
            return f"Mask{subscript(axes)}({operands[0]})"
        case Ring(product, ReduceScatter(axes, dim)):
            inner = expression(product, operands)
            return f"RingScatter{_axes_and_dim(axes, dim)}({inner})"
        case Ring(product, move, place):
            round_ = f"RingGather{subscript(move.axes)}({operands[place]})"
            return expression(product, [*operands[:place], round_, *operands[place + 1 :]])
        case RingAttention():
            return _attention(op, operands)


def _attention(op: RingAttention, operands: list[str]) -> str:
    """Print attention: axes, the dim that goes round and the dims summed over; operands; what it keeps."""
    given = list(operands)
    sign, given[op.query] = _term(op.scale, given[op.query])
    if sign == "-":
        given[op.query] = f"-{given[op.query]}"
    if op.relation is not None:
        given[-2:] = [f" {op.relation} ".join(given[-2:])]
    names = [axis.name for axis in op.axes]
    joined = "".join(names) if all(len(name) == 1 for name in names) else ",".join(names)
    head = ",".join((joined, op.dim.name, *(dim.name for dim in op.summed)))
    kept = ", ".join(map(str, op.kept))
    name = "RingAttentionBack" if op.back else "RingAttention"
    return f"{name}_{{{head}}}({', '.join(given)}{' -> ' if kept else ''}{kept})"


def definition(op: Op, array: Array, operands: Iterable[Array]) -> str:
    """Print what stands left of `=`, with its dtype where the operands don't imply it."""
    if implied(op, [operand.tensor.dtype for operand in operands]) == array.tensor.dtype:
        return str(array)
    name = array.tensor.name
    return f"{name}: {array.tensor.dtype}{str(array)[len(name) :]}"


def statement(step: Step) -> str:
    """Print a step as a line of an explicit program, without its comment."""
    operands = [str(array) for array in step.inputs]
    if isinstance(step.op, Ring) and step.op.keep:
        operands[step.op.operand] += f" -> {step.moving.output}"
    if step.sends:
        assert isinstance(step.op, Permute)
        return f"Permute{subscript(step.op.axes)}({step.inputs[0]})"
    right = expression(step.op, operands)
    return f"{definition(step.op, step.output, step.inputs)} = {right}"


def axis_declaration(info: AxisInfo) -> str:
    """Print an axis as the `mesh` line has it: `X=16 @ici(2)`."""
    size = "" if info.size is None else f"={info.size}"
    return f"{info.axis}{size}{notes(info)}"


def notes(info: AxisInfo) -> str:
    """Print what the `mesh` line says of an axis after its size: ` @part(X) @ici(2)`, or nothing."""
    part = "" if info.whole is None else f" @part({info.whole})"
    links = f"({info.links})" if info.links != 1 else ""
    network = f" @{info.network}{links}" if info.network != "ici" or links else ""
    return part + network


def declarations(program: Program) -> list[str]:
    """Print the declarations that a program needs to mean the same when it is read again."""
    lines: list[str] = []
    if program.mesh.axes:
        lines.append("mesh " + ", ".join(axis_declaration(info) for info in program.mesh.axes))
    if program.hardware is not None:
        behind = "x".join(map(str, program.slice))
        lines.append(f"hardware {program.hardware} {behind}".rstrip())
    shown = [
        f"{info.dim}={size_expr(info.declared)}"
        for info in program.dims
        if info.declared is not None
    ]
    if shown:
        lines.append("dims " + ", ".join(shown))
    if program.dtype != DTYPES["bf16"]:
        lines.append(f"dtype {program.dtype}")
    if _leaves_needed(program):
        lines.extend(leaf_line(leaf, program) for leaf in program.given)
    if program.optimizer is not None:
        behind = "" if program.zero is None else f", {zero(program.zero)}"
        lines.append(f"optimizer {program.optimizer}{behind}")
    if program.microbatches is not None:
        lines.append(f"accumulate {program.microbatches}")
    if program.pipeline is not None:
        chunks = program.pipeline.chunks
        behind = f", chunks {chunks}" if chunks > 1 else ""
        lines.append(f"schedule {program.pipeline.schedule}{behind}")
    if program.save.words:
        lines.append("save " + ", ".join(program.save.words))
    if program.prefetch:
        lines.append("prefetch " + ", ".join(sorted(program.prefetch)))
    return lines


def zero(declared: Zero) -> str:
    """Print over which axes the optimizer's state is split: `zero 1 over X, Y`."""
    return f"zero {declared.level} over {', '.join(axis.name for axis in declared.axes)}"


def _leaves_needed(program: Program) -> bool:
    """Say whether reading the steps alone would not give the same leaves."""
    return any(
        leaf.declared
        or leaf.array.tensor.dtype != program.dtype
        or (leaf.kind == "param") != leaf.array.name.startswith("W")
        or (leaf.loop is not None and leaf.kind != "param")
        for leaf in program.given
    )


def leaf_line(leaf: Leaf, program: Program) -> str:
    """Print the line that declares a leaf: `param W: [L, D_X, F]`."""
    tensor = leaf.array.tensor
    dtype = "" if tensor.dtype == program.dtype else str(tensor.dtype)
    brackets = str(leaf.array)[len(tensor.name) :]
    if leaf.loop is not None:
        stages = "" if leaf.pipeline is None else subscript(leaf.pipeline.axes)
        brackets = f"[{leaf.loop}{stages}{', ' if tensor.dims else ''}{brackets[1:]}"
    return f"{leaf.word} {tensor.name}: {dtype}{brackets}"


def amount(value: Fraction, unit: str) -> str:
    """Print bytes or seconds to three digits: `1.23 MB`, `45 us`."""
    number_, small = float(value), ("m", "u", "n")
    for prefix, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3), ("", 1.0)):
        if number_ >= size:
            return f"{number_ / size:.3g} {prefix}{unit}"
    for power, prefix in enumerate(small if unit == "s" else (), 1):
        if number_ >= 1e-3**power:
            return f"{number_ * 1e3**power:.3g} {prefix}{unit}"
    return f"{number_:.3g} {unit}"


def proven(proof: Proof) -> list[str]:
    """Say what a search for the best plan has found, how sure it is, and what it holds for that."""
    lines = [found(proof)]
    for each in proof.holdings:
        held, moved = amount(each.held, "B"), amount(each.moved, "B")
        lines.append(
            f"{each.parameter} is kept gathered: {held} held, making it again moves {moved}"
        )
    if proof.fit is not None:
        peak, limit = amount(proof.fit.peak, "B"), amount(proof.fit.limit, "B")
        least = "" if proof.optimal else "; the least is that without a limit"
        lines.append(f"memory: {peak} at the peak, {limit} allowed{least}")
    return lines


def found(proof: Proof) -> str:
    """Say in a line what a search found, and how far from the best it can be."""
    if proof.objective == "bytes":
        what = f"{amount(proof.cost, 'B')} moved a device ({proof.prices} prices)"
        least = "moves less"
    else:
        name = "T_overlapped" if proof.objective == "time" else "T_serial"
        what, least = f"{name} = {amount(proof.cost, 's')} ({proof.prices})", "takes less"
    if proof.optimal:
        return f"optimal: {what}, no plan {least}"
    least = "the optimum" if proof.fit is None else "the least"
    if not proof.bound:
        return f"best found: {what}, nothing is proven"
    return f"best found: {what}, at most {float(100 * proof.gap):.2g}% above {least}"


def print_plan(plan: Plan) -> str:
    """Print a plan as an explicit program, each collective marked as critical or not.

    A plan that was searched for begins with what the search has proven.
    """
    lines = [] if plan.proof is None else [f"// {line}" for line in proven(plan.proof)]
    lines += declarations(plan.program)
    sections = [("forward", plan.forward)]
    if plan.backward:
        sections.append(("backward", plan.backward))
    if plan.update:
        sections.append(("update", plan.update))
    for title, steps in sections:
        lines.append(f"{title}:")
        for block, run in groupby(steps, key=lambda step: step.loop):
            if block is not None:
                lines.append(f"  {head(block)}")
            lines += _body(list(run), "  " if block is None else "    ")
    return "\n".join(lines) + "\n"


def head(block: Block) -> str:
    """Print the head of a block: how many layers, and what each hands to the next."""
    carries = (f", {carry.exit.name} -> {carry.entry.name}" for carry in block.carries)
    stages = "" if block.pipeline is None else subscript(block.pipeline.axes)
    return f"layers {block.dim}{stages}{''.join(carries)}:"


def _body(steps: Sequence[Step], indent: str) -> Iterator[str]:
    """Print steps as lines, with what there is to say of the collectives behind them."""
    texts = [f"{indent}{statement(step)}" for step in steps]
    width = min(max((len(t) for t in texts), default=0), 60)
    for text, step in zip(texts, steps, strict=True):
        if step.is_collective:
            note = "on the critical path" if step.critical else "not on the critical path"
            yield f"{text.ljust(width)}  // {note}"
        else:
            yield text
