"""Compare the bytes that devices send with those of other partitioners, forward and backward.

For each program of a seed: our emitted module, `jax.jit` under Shardy, JAX's explicit-sharding mode,
and DTensor. Prints a line a program, geometric means, every program in which a peer moves less, planning
times and wall times. Needs JAX, and for DTensor the extra `bench`. What the peers answer is kept in
a cache, since it does not depend on this compiler.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import importlib.util
import json
import math
import os
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from peers_lib import report
from peers_lib.programs import Case, generate
from peers_lib.worker import Answer, Worker

LIMIT = 20
"""Seconds that DTensor may take for a program."""

PATIENCE = 300.0
"""Seconds after which a worker counts as stuck."""


class Cache:
    """Answers of peers by program, peer and versions: a file with one JSON object a line."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, Answer] = {}
        if path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                entry = json.loads(line)
                self._known[entry["key"]] = entry["answer"]

    def find(self, key: str) -> Answer | None:
        """Give a kept answer."""
        return self._known.get(key)

    def keep(self, key: str, answer: Answer) -> None:
        """Keep an answer."""
        self._known[key] = answer
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"key": key, "answer": answer}) + "\n")


@dataclass
class Measurer:
    """Asks the workers, and the cache before them."""

    cache: Cache
    budget: float
    wall: bool
    workers: dict[tuple[str, int], Worker] = field(default_factory=dict)

    def ours(self, case: Case) -> Answer:
        """Measure our side; nothing is kept."""
        job = {"what": "ours", "text": case.text, "budget": self.budget, "wall": self.wall}
        return self._worker("jax").ask(job, PATIENCE)

    def peer(self, name: str, case: Case) -> Answer:
        """Measure a peer, or give what it answered before."""
        key = f"{name} {version(name)} {hashlib.sha256(case.text.encode()).hexdigest()}"
        known = self.cache.find(key)
        if known is not None:
            return known
        job = {"what": name, "text": case.text, "limit": LIMIT}
        devices = math.prod(case.mesh.values())
        worker = self._worker("dtensor", devices) if name == "dtensor" else self._worker("jax")
        answer = worker.ask(job, PATIENCE)
        if name == "dtensor" and answer.get("failed", "").startswith("no answer"):
            answer = {"refused": f"timed out after {LIMIT} s"}
        if "failed" not in answer:
            self.cache.keep(key, answer)
        return answer

    def close(self) -> None:
        """End all workers."""
        for worker in self.workers.values():
            worker.close()

    def _worker(self, kind: str, devices: int = 8) -> Worker:
        return self.workers.setdefault((kind, devices), Worker(kind, devices))


def version(peer: str) -> str:
    """Name the versions that an answer of a peer depends on: of its library, and of our measuring."""
    library = "torch" if peer == "dtensor" else "jaxlib"
    module = "dtensor" if peer == "dtensor" else "xla"
    text = Path(__file__).with_name("peers_lib").joinpath(f"{module}.py").read_text("utf-8")
    found = re.search(r"^VERSION = (\d+)$", text, re.MULTILINE)
    assert found is not None
    return f"{importlib.metadata.version(library)}/{found[1]}"


def default_cache() -> Path:
    """Give the file in the user's cache directory."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "shardlang" / "peers.jsonl"


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=300, help="programs (300)")
    parser.add_argument("--seed", type=int, default=0, help="which programs (0)")
    parser.add_argument("--only", metavar="NAME", help="programs whose name has this in it, or N")
    parser.add_argument("--budget", type=float, default=5.0, help="seconds to plan one (5)")
    parser.add_argument("--peers", default="xla,explicit,dtensor", help="which, with commas")
    parser.add_argument("--cache", type=Path, default=default_cache(), help="peers' answers")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all answers there")
    parser.add_argument("--no-wall", action="store_true", help="do not time the programs")
    return parser.parse_args()


def chosen(given: argparse.Namespace) -> list[Case]:
    """Give the programs asked for."""
    cases = generate(given.count, given.seed)
    if given.only is None:
        return cases
    if given.only.isdigit():
        return generate(int(given.only) + 1, given.seed)[-1:]
    return [case for case in cases if given.only in case.name]


def peers(names: str) -> list[str]:
    """Give the peers that can be asked; say which can't."""
    wanted = names.split(",") if names else []
    unknown = [name for name in wanted if name not in report.PEERS]
    if unknown:
        sys.exit(f"no such peer: {', '.join(unknown)}; there are {', '.join(report.PEERS)}")
    if "dtensor" in wanted and importlib.util.find_spec("torch") is None:
        print("DTensor is left out: PyTorch is not installed (pip install 'shardlang[bench]')")
        wanted.remove("dtensor")
    return wanted


def main() -> int:
    """Measure and print; 1 where our side is wrong somewhere or a peer moves less."""
    given = arguments()
    wanted = peers(given.peers)
    measurer = Measurer(Cache(given.cache), given.budget, not given.no_wall)
    rows: list[report.Row] = []
    print(report.HEADER)
    try:
        for case in chosen(given):
            answers = {name: measurer.peer(name, case) for name in wanted}
            row = report.Row(case, measurer.ours(case), dict(answers))
            rows.append(row)
            print(report.line(row), flush=True)
    finally:
        measurer.close()
    print()
    print("\n".join(report.losses(rows)))
    print()
    print("\n".join(report.summary(rows)))
    if given.json is not None:
        given.json.write_text(json.dumps(plain(rows), indent=1), encoding="utf-8")
    wrong = any(True for row in rows for _ in row.problems())
    return 1 if wrong or any(row.lost() for row in rows) else 0


def plain(rows: Iterable[report.Row]) -> list[dict[str, Any]]:
    """Give all answers as JSON."""
    return [
        {
            "name": row.case.name,
            "mesh": dict(row.case.mesh),
            "text": row.case.text,
            "ours": dict(row.ours),
            "peers": {name: dict(answer) for name, answer in row.peers.items()},
        }
        for row in rows
    ]


if __name__ == "__main__":
    sys.exit(main())
