"""Going through a syntax tree: every mention of a tensor, and every call, in reading order.

The right side of a definition comes before its left, whichever way the arrow points. Nothing here
recurses, so that a chain of thousands of operands is read like a short one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from shardlang.frontend.syntax import (
    Binary,
    Call,
    Comparison,
    Definition,
    Expr,
    Item,
    LeafDecl,
    Negate,
    NumberRef,
    Product,
    SizeOf,
    TensorRef,
)


def parts(expr: Expr) -> tuple[Expr, ...]:
    """Give an expression's direct parts, in reading order."""
    match expr:
        case Product() | Binary() | Comparison():
            return (expr.left, expr.right)
        case Negate():
            return (expr.operand,)
        case Call():
            inside = () if expr.result is None else (expr.result,)
            return (*expr.arguments, *inside)
        case TensorRef() | NumberRef() | SizeOf():
            return ()


def walk(expr: Expr) -> Iterator[Expr]:
    """Go through an expression and all its parts, in reading order."""
    waiting: list[Expr] = [expr]
    while waiting:
        node = waiting.pop()
        yield node
        waiting.extend(reversed(parts(node)))


def nodes(items: Iterable[Item]) -> Iterator[Expr]:
    """Go through every expression of a text and what it is given to."""
    for item in items:
        match item:
            case Definition():
                yield from walk(item.expr)
                if item.target is not None:
                    yield item.target
            case LeafDecl():
                yield from item.tensors
            case _:
                pass


def references(items: Iterable[Item]) -> Iterator[TensorRef]:
    """Go through every mention of a tensor."""
    return (node for node in nodes(items) if isinstance(node, TensorRef))


def calls(items: Iterable[Item]) -> Iterator[Call]:
    """Go through every call."""
    return (node for node in nodes(items) if isinstance(node, Call))
