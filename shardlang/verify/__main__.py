"""The process that `verify` starts: a plan on standard input, the result as JSON on the last line."""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Mapping

from shardlang.ir.plan import Plan
from shardlang.verify.result import VerifyResult
from shardlang.verify.runner import run_check


def check(plan: Plan, sizes: Mapping[str, int]) -> VerifyResult:
    """Check a plan in its own dtypes, and again in f32 where those are narrow."""
    result = run_check(plan, sizes=sizes, exact=False, thorough=True)
    dtypes = {step.output.tensor.dtype for _, step in plan.steps()}
    if any(dtype.kind == "float" and dtype.bits < 32 for dtype in dtypes):
        result = result.joined(run_check(plan, sizes=sizes, exact=True))
    return result


if __name__ == "__main__":
    given = pickle.loads(sys.stdin.buffer.read())  # noqa: S301 - written by `verify`
    sys.stdout.write("\n" + json.dumps(check(*given).to_dict()) + "\n")
