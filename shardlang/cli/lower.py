"""`shardlang lower`: the program with every collective written out, in the notation itself."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any, TYPE_CHECKING

from shardlang.cli import arguments as options
from shardlang.cli.program import make_plan
from shardlang.cli.render import dress, SCHEMA, to_json
from shardlang.cli.streams import write_result

if TYPE_CHECKING:
    from shardlang.ir.plan import Plan, Proof

NAME = "lower"
HELP = "the program with its collectives written out, forward and backward"


def configure(parser: ArgumentParser) -> None:
    """Declare the options."""
    options.add_source(parser)
    options.add_lowering(parser)
    options.add_output(parser)


def run(arguments: Namespace) -> int:
    """Print the explicit program."""
    from shardlang.ir.printer import print_plan

    plan = make_plan(arguments)
    text = print_plan(plan)
    if arguments.format == "json":
        text = to_json(_described(plan, text))
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


def _described(plan: Plan, text: str) -> dict[str, Any]:
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
        "program": text,
        "proof": None if plan.proof is None else _proof(plan.proof),
        "steps": steps,
        "warnings": list(plan.warnings),
    }
