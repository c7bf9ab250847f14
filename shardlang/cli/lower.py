"""`shardlang lower`: the program with every collective written out, in the notation itself."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any, TYPE_CHECKING

from shardlang.cli import arguments as options
from shardlang.cli.program import lower_program, open_plans, overlapped, read_program, warned
from shardlang.cli.render import dress, SCHEMA, to_json
from shardlang.cli.streams import write_result

if TYPE_CHECKING:
    from shardlang.ir.plan import Plan, Proof
    from shardlang.planner.symbolic import Piecewise

NAME = "lower"
HELP = "the program with its collectives written out, forward and backward"


def configure(parser: ArgumentParser) -> None:
    """Declare the options."""
    options.add_source(parser)
    options.add_lowering(parser)
    options.add_overlap(parser)
    options.add_output(parser)


def run(arguments: Namespace) -> int:
    """Print the explicit program."""
    program = read_program(arguments)
    by_size = open_plans(program, arguments)
    as_data = arguments.format == "json"
    if by_size is not None:
        text = to_json(_by_size(by_size)) if as_data else str(by_size)
    else:
        plan = overlapped(warned(lower_program(program, arguments)), arguments)
        text = to_json(_described(plan)) if as_data else str(plan)
    write_result(dress(text, arguments.format), arguments.output)
    return 0


def _proof(proof: Proof) -> dict[str, Any]:
    return {
        "objective": proof.objective,
        "prices": proof.prices,
        "cost": float(proof.cost),
        "bound": float(proof.bound),
        "gap": float(proof.gap),
        "optimal": proof.optimal,
        "kept": [
            {"parameter": each.parameter, "held": float(each.held), "moved": float(each.moved)}
            for each in proof.holdings
        ],
        "memory": None
        if proof.fit is None
        else {"limit": float(proof.fit.limit), "peak": float(proof.fit.peak)},
    }


def _described(plan: Plan) -> dict[str, Any]:
    """Give the plan as data: the text, and for each step what asked for it."""
    from shardlang.ir.printer import statement

    steps = [
        {
            "pass": which,
            "op": type(step.op).__name__,
            "text": statement(step),
            "rule": step.rule or None,
            "reason": step.reason or None,
            "critical": step.critical if step.is_collective else None,
        }
        for which, step in plan.steps()
    ]
    return {
        "schema": SCHEMA,
        "strategy": plan.strategy,
        "program": str(plan),
        "proof": None if plan.proof is None else _proof(plan.proof),
        "steps": steps,
        "warnings": list(plan.warnings),
    }


def _by_size(found: Piecewise) -> dict[str, Any]:
    """Give the plans of sizes left open as data, each with its condition and the bytes that it moves."""
    return {
        "schema": SCHEMA,
        "strategy": "optimal",
        "prices": found.prices,
        "assumed": list(found.assumed),
        "complete": found.complete,
        "pieces": [
            {"condition": piece.text, "bytes": str(piece.cost), **_described(piece.plan)}
            for piece in found.pieces
        ],
    }
