"""Going through a syntax tree: every mention of a tensor, and every call, in reading order.

The right side of a definition comes before its left, whichever way the arrow points. Nothing here
recurses, so that a chain of thousands of operands is read like a short one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any, cast, TypeVar

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
from shardlang.source import Span

Node = TypeVar("Node")


def parts(expr: Expr) -> tuple[Expr, ...]:
    """Give an expression's direct parts, in reading order."""
    match expr:
        case Product() | Binary() | Comparison():
            return (expr.left, expr.right)
        case Negate():
            return (expr.operand,)
        case Call():
            return (*expr.arguments, *expr.results)
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


def rebuilt(
    expr: Expr,
    change: Callable[[Expr], Expr | None],
    after: Callable[[Expr], Expr] = lambda node: node,
) -> Expr:
    """Give an expression with parts changed; what a change gives is not looked into.

    `change` says what stands for a part, None for the part itself with its own parts changed; those
    go through `after`.
    """
    new = change(expr)
    return after(_with_parts(expr, change, after)) if new is None else new


def _with_parts(
    expr: Expr, change: Callable[[Expr], Expr | None], after: Callable[[Expr], Expr]
) -> Expr:
    match expr:
        case Product() | Binary() | Comparison():
            left, right = rebuilt(expr.left, change, after), rebuilt(expr.right, change, after)
            return replace(expr, left=left, right=right)
        case Negate():
            return replace(expr, operand=rebuilt(expr.operand, change, after))
        case Call():
            arguments: list[Expr] = []
            for each in expr.arguments:
                arguments.append(rebuilt(each, change, after))  # noqa: PERF401  (a comprehension would be a frame more)
            results: list[TensorRef] = []
            for old in expr.results:
                made = rebuilt(old, change, after)
                results.append(made if isinstance(made, TensorRef) else old)
            first, more = (results[0], tuple(results[1:])) if results else (None, ())
            return replace(expr, arguments=tuple(arguments), result=first, more=more)
        case TensorRef() | NumberRef() | SizeOf():
            return expr


def moved(node: Node, by: int) -> Node:
    """Give a node with every span in it moved by so many offsets."""
    if not by:
        return node
    if isinstance(node, Span):
        return cast("Node", Span(node.start + by, node.end + by))
    if isinstance(node, tuple):
        parts: list[object] = []
        for part in cast("tuple[object, ...]", node):
            parts.append(moved(part, by))  # noqa: PERF401  (a comprehension would be a frame more)
        return cast("Node", tuple(parts))
    if is_dataclass(node) and not isinstance(node, type):
        given = cast("Any", node)
        changes: dict[str, object] = {}
        for each in fields(given):
            if each.init:
                changes[each.name] = moved(getattr(given, each.name), by)
        return cast("Node", type(given)(**changes))
    return node
