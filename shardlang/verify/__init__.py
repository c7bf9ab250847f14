"""Proves that emitted code does what the plan says: values, gradients and collectives.

`verify` runs in a process of its own, so that the caller never loads JAX; `run_check` (in
`shardlang.verify.runner`) checks many plans in a process that has JAX already. Raises ShardlangError:
SH605 where JAX is not installed, and the SH6xx of emission.
"""

from __future__ import annotations

from shardlang.verify.process import verify
from shardlang.verify.result import ArrayCheck, CollectivesCheck, VerifyResult

__all__ = ["ArrayCheck", "CollectivesCheck", "VerifyResult", "verify"]
