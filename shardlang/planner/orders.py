"""Products in every order: `A * B * C` as a tree of products of two, own dims summed first.

A product of several operands is one statement and can be done in many orders. Each *order* is a program
of ordinary statements, so that its adjoint, its costs and its text are those of any program:

- as written, all operands at once;
- the same after *tidying*: a dim that one operand alone has is summed before anything else is done, and
  dims that no operand has come last, so that the backward pass sums them first;
- a tree of products of two, tidied, each part with the dims that something else still needs.

Each order is planned on its own, with a bound; the answer is the plan that costs least, and its bound the
least of all bounds. Of up to four operands all trees are orders, of more those that a beam finds by
FLOPs. With several products one is changed at a time while that helps; where there are few combinations
the others are planned as well. Where some order was not planned nothing is proven, and the bound is 0.
Products with `·_LOCAL` stay as they are written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import combinations, product
from math import prod
from time import monotonic

from shardlang.diagnostics import ShardlangError
from shardlang.ir.ops import Coefficient, Einsum, Linear, Op, Reduce
from shardlang.ir.plan import Plan
from shardlang.ir.program import Program, Statement, Use
from shardlang.ir.types import Dim, promote, Tensor
from shardlang.passes.adjoint import gradient_of

Tree = int | tuple["Tree", ...]
"""An operand's number, or the parts of a product."""

COMPLETE = 4
"""The most operands of which all trees are tried."""

BEAM = 15
"""How many trees are tried of more operands: as many as four have."""

COMBINED = 100
"""The most combinations that are all planned, for a proof."""


@dataclass(frozen=True, slots=True)
class Order:
    """How a product is done: in which parts, and whether it is tidied."""

    tree: Tree
    tidy: bool


@dataclass(frozen=True, slots=True)
class Ordered:
    """A program with its products in some order, and the best plan found of it."""

    program: Program
    plan: Plan


def plans_in_orders(
    program: Program,
    find: Callable[[Program, float], Plan],
    worth: Callable[[Plan], tuple[Fraction, ...]],
    *,
    budget: float,
) -> list[Ordered]:
    """Plan a program in the orders of its products, the best first; every proof is that of all orders.

    `find` plans a program in some seconds; `worth` is what a plan comes to, the least being best, and
    its first number is what proofs are of. If the search has no model of the program as it is written,
    and of no order that costs less than the rules' plan of that, this plan comes back alone, without a
    proof. Raises `ShardlangError`.
    """
    work = _Work(program, find, worth, monotonic() + budget)
    first = work.plan({}, budget / 2 if work.orders else budget)
    assert first is not None
    if not work.orders:
        return [first]
    work.program = _ending(program, first.plan)
    work.improve()
    bound = work.bound()
    best = sorted(work.found, key=lambda each: worth(each.plan))
    if not best or (first.plan.proof is None and worth(first.plan) <= worth(best[0].plan)):
        return [first]
    return [_bounded(each, bound) for each in best]


def _bounded(found: Ordered, bound: Fraction) -> Ordered:
    proof = found.plan.proof
    assert proof is not None
    proof = replace(proof, bound=min(bound, proof.cost))
    return Ordered(found.program, replace(found.plan, proof=proof))


Choice = Mapping[int, int]
"""For some statements, by place, the number of an order; the others are as written."""


class _Work:
    """The combinations of orders that are planned, and those that are left."""

    def __init__(
        self,
        program: Program,
        find: Callable[[Program, float], Plan],
        worth: Callable[[Plan], tuple[Fraction, ...]],
        end: float,
    ) -> None:
        """List the orders of every product."""
        self.program, self.find, self.worth, self.end = program, find, worth, end
        listed = ((i, orders_of(s, program)) for i, s in enumerate(program.statements))
        self.orders = {place: orders for place, orders in listed if len(orders) > 1}
        self.done: dict[tuple[int, ...], Ordered | None] = {}
        self.pruned = any(
            len(program.statements[place].operands) > COMPLETE for place in self.orders
        )

    @property
    def found(self) -> list[Ordered]:
        """The plans that have a proof."""
        return [each for each in self.done.values() if each and each.plan.proof]

    def plan(self, choice: Choice, seconds: float) -> Ordered | None:
        """Plan a combination, once; None where it can't be lowered though the program can."""
        key = tuple(choice.get(place, 0) for place in self.orders)
        if key not in self.done:
            chosen = {p: self.orders[p][n] for p, n in choice.items() if n}
            made = in_order(self.program, chosen) if chosen else self.program
            try:
                self.done[key] = Ordered(made, self.find(made, seconds))
            except ShardlangError:
                if not chosen:
                    raise
                self.done[key] = None
        return self.done[key]

    def improve(self) -> None:
        """Change one product at a time while that helps; then plan what is left, where it is little."""
        starts = [dict.fromkeys(self.orders, 0), {p: self._lightest(p) for p in self.orders}]
        best = min(starts, key=self._key)
        todo = list(self.orders)
        while todo and not self.late:
            place = todo.pop(0)
            tried = [{**best, place: number} for number in range(len(self.orders[place]))]
            better = min(tried, key=self._key)
            if self._key(better) < self._key(best):
                best = better
                todo = [other for other in self.orders if other != place]
        if self.many <= COMBINED:
            for each in product(*(range(len(orders)) for orders in self.orders.values())):
                self._attempt(dict(zip(self.orders, each, strict=True)))

    @property
    def many(self) -> int:
        """How many combinations there are."""
        return prod(len(orders) for orders in self.orders.values())

    @property
    def late(self) -> bool:
        """Whether the time is over."""
        return monotonic() > self.end

    def _attempt(self, choice: Choice) -> Ordered | None:
        """Plan a combination in a part of the time left, if there is any."""
        left = self.end - monotonic()
        return self.plan(choice, left / 4) if left > 0 else None

    def _key(self, choice: Choice) -> tuple[bool, tuple[Fraction, ...]]:
        """Order combinations by their plans; one without a plan comes last."""
        made = self._attempt(choice)
        plain = made is None or made.plan.proof is None
        return plain, () if made is None or plain else self.worth(made.plan)

    def _lightest(self, place: int) -> int:
        """Give the tree of least FLOPs, if there is one."""
        orders, statement = self.orders[place], self.program.statements[place]
        return min(
            range(len(orders)),
            key=lambda n: (not orders[n].tidy, work_of(orders[n].tree, statement, self.program)),
        )

    def bound(self) -> Fraction:
        """Give the least that any plan in any order costs: 0 where one was not planned."""
        if self.pruned or len(self.found) < self.many:
            return Fraction(0)
        return min(each.plan.proof.bound for each in self.found if each.plan.proof)


# Orders -----------------------------------------------------------------------------------------


def orders_of(statement: Statement, program: Program) -> list[Order]:
    """List the orders of a statement, the one as written first: it has no other if it is no product."""
    many = len(statement.operands)
    flat: Tree = tuple(range(many))
    found = [Order(flat, tidy=False)]
    if not isinstance(statement.op, Einsum) or statement.keep_unreduced:
        return found
    if _own(statement) or _wider(statement):
        found.append(Order(flat, tidy=True))
    if many > 2:
        trees = _trees(flat) if many <= COMPLETE else _light_trees(statement, program)
        found += [Order(tree, tidy=True) for tree in trees]
    return found


def _trees(parts: Sequence[Tree]) -> Iterator[Tree]:
    """List every binary tree over some parts, each once."""
    if len(parts) == 1:
        yield parts[0]
        return
    first, *rest = parts
    for many in range(len(rest)):
        for chosen in combinations(range(len(rest)), many):
            left = [first, *(rest[i] for i in chosen)]
            right = [part for i, part in enumerate(rest) if i not in chosen]
            yield from product(_trees(left), _trees(right))


def _light_trees(statement: Statement, program: Program) -> list[Tree]:
    """Find trees of few FLOPs: pairs are joined step by step, the best few forests going on."""
    forests: list[tuple[Tree, ...]] = [tuple(range(len(statement.operands)))]

    def weight(forest: tuple[Tree, ...]) -> int:
        return sum(work_of(tree, statement, program) for tree in forest)

    while len(forests[0]) > 1:
        joined: dict[frozenset[object], tuple[Tree, ...]] = {}
        for forest in forests:
            for one, two in combinations(range(len(forest)), 2):
                rest = [tree for i, tree in enumerate(forest) if i not in (one, two)]
                made = (*rest, (forest[one], forest[two]))
                joined.setdefault(frozenset(map(_unordered, made)), made)
        forests = sorted(joined.values(), key=weight)[:BEAM]
    return [forest[0] for forest in forests]


def _unordered(tree: Tree) -> object:
    return tree if isinstance(tree, int) else frozenset(map(_unordered, tree))


def _leaves(tree: Tree) -> frozenset[int]:
    """Give the numbers of the operands in a part."""
    if isinstance(tree, int):
        return frozenset((tree,))
    return frozenset[int]().union(*map(_leaves, tree))


def _dims(tree: Tree, statement: Statement) -> tuple[Dim, ...]:
    """Give the dims that a part still has: those of the result, and of operands outside of it."""
    inside = _leaves(tree)
    needed = set(statement.result.dims)
    for number, use in enumerate(statement.operands):
        if number not in inside:
            needed.update(use.tensor.dims)
    operands = [statement.operands[number].tensor for number in sorted(inside)]
    dims = dict.fromkeys(dim for operand in operands for dim in operand.dims)
    return tuple(dim for dim in dims if dim in needed)


def _own(statement: Statement) -> bool:
    """Say whether some operand has dims alone that are summed."""
    return any(
        len(_dims(number, statement)) < len(use.tensor.dims)
        for number, use in enumerate(statement.operands)
    )


def _wider(statement: Statement) -> bool:
    """Say whether the result has dims that no operand has."""
    there = {dim for use in statement.operands for dim in use.tensor.dims}
    return not there.issuperset(statement.result.dims)


def work_of(tree: Tree, statement: Statement, program: Program) -> int:
    """Give the FLOPs of a part in tidy order on one device of one, as `cost.flops` counts them."""
    sizes = program.sizes.known

    def points(dims: Iterable[Dim]) -> int:
        return prod(sizes.get(dim.name, 1) for dim in dims)

    if isinstance(tree, int):
        whole = statement.operands[tree].tensor.dims
        return points(whole) if len(_dims(tree, statement)) < len(whole) else 0
    dims = set[Dim]().union(*(_dims(part, statement) for part in tree))
    summed = len(dims) > len(_dims(tree, statement))
    times = 2 if summed else len(tree) - 1
    return points(dims) * times + sum(work_of(part, statement, program) for part in tree)


# Programs ---------------------------------------------------------------------------------------


def in_order(program: Program, orders: Mapping[int, Order]) -> Program:
    """Write a program with some of its products, by place, in other orders.

    What lies in between is named `Tmp`, `Tmp2`, ..., skipping names taken.
    """
    writer = _Writer(program)
    statements: list[Statement] = []
    for place, statement in enumerate(program.statements):
        order = orders.get(place)
        statements += [statement] if order is None else writer.written(statement, order)
    return replace(program, statements=tuple(statements))


def _ending(program: Program, plan: Plan) -> Program:
    """Declare each output where it ends in a plan, so that it ends there in every order."""
    ends = {output.name: output.layout for output in plan.outputs}
    declared = {s.result.name for s in program.statements if s.target is not None}
    statements = (
        s if s.result.name in declared else replace(s, target=ends.get(s.result.name))
        for s in program.statements
    )
    return replace(program, statements=tuple(statements))


class _Writer:
    """Writes products in parts."""

    def __init__(self, program: Program) -> None:
        """Take note of all names, those of gradients included."""
        tensors = [leaf.array.tensor for leaf in program.leaves]
        tensors += [statement.result for statement in program.statements]
        self.taken = {tensor.name for tensor in tensors}
        self.taken |= {gradient_of(tensor).name for tensor in tensors}

    def written(self, statement: Statement, order: Order) -> list[Statement]:
        """Write one product: the statements of its parts, then its own."""
        made: list[Statement] = []

        def use(tree: Tree) -> Use:
            dims = _dims(tree, statement)
            if not isinstance(tree, int):
                return part(_einsum(parts := [use(t) for t in tree], dims), parts, dims)
            own = statement.operands[tree]
            gone = tuple(dim for dim in own.tensor.dims if dim not in dims)
            return part(Reduce("sum", gone), [own], dims) if gone else own

        def part(op: Op, operands: list[Use], dims: tuple[Dim, ...]) -> Use:
            """Have a value in between."""
            tensor = self._fresh(dims, operands)
            made.append(
                replace(
                    statement,
                    op=op,
                    operands=tuple(operands),
                    result=tensor,
                    target=None,
                    hint=None,
                )
            )
            return Use(tensor, None, statement.span)

        assert isinstance(order.tree, tuple)
        operands = [use(tree) for tree in order.tree]
        dims = statement.result.dims
        there = {dim for operand in operands for dim in operand.tensor.dims}
        op: Op = _einsum(operands, dims)
        if not there.issuperset(dims):
            inner = tuple(dim for dim in dims if dim in there)
            operands, op = [part(op, operands, inner)], Linear((Coefficient(),))
        return [*made, replace(statement, op=op, operands=tuple(operands))]

    def _fresh(self, dims: tuple[Dim, ...], operands: Sequence[Use]) -> Tensor:
        """Give a tensor whose name nothing has, nor its gradient's."""
        dtype = promote(operand.tensor.dtype for operand in operands)
        name, number = "Tmp", 1
        while name in self.taken or f"d{name}" in self.taken:
            number += 1
            name = f"Tmp{number}"
        self.taken |= {name, f"d{name}"}
        return Tensor(name, dims, dtype)


def _einsum(operands: Sequence[Use], dims: tuple[Dim, ...]) -> Einsum:
    """Multiply operands and sum the dims that the result lacks."""
    there = dict.fromkeys(dim for operand in operands for dim in operand.tensor.dims)
    return Einsum(tuple(dim for dim in there if dim not in dims))
