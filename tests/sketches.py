"""Trees as short texts, for tests: every part of a node is shown, no place is."""

from __future__ import annotations

from shardlang.frontend.syntax import (
    AccumulateDecl,
    AxisDecl,
    Binary,
    BlockDecl,
    Call,
    Definition,
    DimRef,
    DimsDecl,
    DTypeDecl,
    Expr,
    HardwareDecl,
    IncludeDecl,
    Item,
    Layers,
    LeafDecl,
    MeshDecl,
    Negate,
    NumberRef,
    OptimizerDecl,
    Product,
    SaveDecl,
    ScheduleDecl,
    Section,
    SizeOf,
    TensorRef,
    Word,
)
from shardlang.ir.size import BinOp, Name, Number, SizeExpr


def words(listed: tuple[Word, ...] | None) -> str:
    """Join words by a comma; `~` for none written."""
    return "~" if listed is None else ",".join(word.text for word in listed)


def dim(ref: DimRef) -> str:
    """`B<braced>/slashed`, a literal with `#`."""
    text = ("#" if ref.literal else "") + ref.name.text
    text += f"<{words(ref.braced)}>" if ref.braced else ""
    return text + "".join(f"/{word.text}" for word in ref.slashed)


def tensor(ref: TensorRef) -> str:
    """`name:dtype[dims]{kind words}^T@index`."""
    text = "" if ref.name is None else ref.name.text
    text += "" if ref.dtype is None else f":{ref.dtype.text}"
    text += "" if ref.dims is None else "[" + " ".join(dim(d) for d in ref.dims) + "]"
    if ref.marker is not None:
        text += f"{{{ref.marker.kind.text} {words(ref.marker.words)}}}"
    text += "^T" if ref.transposed else ""
    return text + ("" if ref.index is None else f"@{ref.index.text}")


def expr(node: Expr) -> str:
    """A tensor, or a list with the operator first."""
    match node:
        case TensorRef():
            return tensor(node)
        case NumberRef(word):
            return word.text
        case SizeOf(name):
            return f"|{name.text}|"
        case Negate(operand):
            return f"(neg {expr(operand)})"
        case Binary(op, left, right):
            return f"({op} {expr(left)} {expr(right)})"
        case Product(op, left, right, subscript, local):
            mark = "_LOCAL" if local else "" if subscript is None else f"_{words(subscript)}"
            return f"({op}{mark} {expr(left)} {expr(right)})"
        case Call(head, subscript, arguments, _, bare, result):
            inside = "".join(f" {expr(a)}" for a in arguments)
            inside += "" if result is None else f" -> {tensor(result)}"
            mark = "" if subscript is None else f"<{words(subscript)}>"
            return f"({head.text}{mark}{'!' if bare else ''}{inside})"


def size(node: SizeExpr) -> str:
    """An exact size, fully bracketed."""
    match node:
        case Number(value):
            return str(value)
        case Name(name):
            return name
        case BinOp(op, left, right):
            return f"({size(left)}{op}{size(right)})"


def _axis(axis: AxisDecl) -> str:
    text = axis.name.text + ("" if axis.size is None else f"={size(axis.size)}")
    for note in axis.notes:
        text += f"@{note.name.text}" + ("" if note.argument is None else f"*{note.argument.text}")
    return text


def item(node: Item) -> str:
    """A statement: its kind and its parts."""
    match node:
        case Definition(None, body):
            return expr(body)
        case Definition(target, body, _, arrow):
            assert target is not None
            sign = "->" if arrow else "="
            return f"{tensor(target)} {sign} {expr(body)}"
        case MeshDecl(axes):
            return "mesh " + " ".join(_axis(axis) for axis in axes)
        case HardwareDecl(name):
            return f"hardware {name.text}"
        case DimsDecl(dims):
            return "dims " + " ".join(
                f"{d.name.text}={size(d.size)}" + (f"<{words(d.names)}>" if d.names else "")
                for d in dims
            )
        case DTypeDecl(name):
            return f"dtype {name.text}"
        case LeafDecl(kind, tensors):
            return f"{kind} " + " ".join(tensor(t) for t in tensors)
        case OptimizerDecl(name, _, zero):
            behind = "" if zero is None else f" zero {zero.level.text} {words(zero.axes)}"
            return f"optimizer {name.text}{behind}"
        case AccumulateDecl(dim, count):
            return f"accumulate {dim.text} {'' if count is None else count.size}"
        case SaveDecl(names):
            return f"save {words(names)}"
        case Section(name):
            return f"section {name}"
        case AccumulateDecl(dim, given):
            count = "" if given is None else f"={size(given.size)}"
            return f"accumulate {dim.text}{count}"
        case ScheduleDecl(name, keyword, chunks):
            return f"schedule {name.text} {keyword and keyword.text} {chunks and chunks.text}"
        case Layers(dim, given, carries, _, length):
            count = "" if given is None else f"={size(given.size)}"
            handed = "".join(f", {c.exit.text} -> {c.entry.text}" for c in carries)
            return f"layers {dim.text}{count}{handed}: {length}"
        case BlockDecl(name, parameters, result, _, length):
            gives = "" if result is None else f" -> {result.text}"
            return f"block {name.text}({words(parameters)}){gives}: {length}"
        case IncludeDecl(path):
            return f"include {path.text}"
