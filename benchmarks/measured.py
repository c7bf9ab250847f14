"""Print what the library predicts for published runs, and what was measured.

`--write` puts the tables into docs/measured.md. `--program RUN` prints the programs of a run's layers.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from measured_lib import tables
from measured_lib.programs import step_programs
from measured_lib.runs import families, Family, models

PAGE = Path(__file__).parents[1] / "docs" / "measured.md"
MARKS = re.compile(r"(<!-- (?P<name>[a-z0-9_ ]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def sections() -> Mapping[str, Iterator[str]]:
    """Give the lines of each table by its name on the page; they are made when they are read."""
    return {
        "flops": tables.flops_table(),
        "ranks": tables.ranks_table(),
        "nccl": tables.nccl_table(),
        "rings": tables.rings_table(),
        "nccl ranks": tables.nccl_ranks_table(),
        "single": tables.single_table(),
        **{family.key: tables.times_table(family) for family in families()},
        "sources": sources(),
    }


def sources() -> Iterator[str]:
    """List where each family's figures come from."""
    for family in families():
        notes = f" Here, {family.notes}." if family.notes else ""
        yield f"- **{family.title}**: {family.source}. Published: {family.statement}.{notes}"


def page(text: str, wanted: Mapping[str, Iterator[str]]) -> str:
    """Fill in tables, each between the comment with its name and the next `end`."""

    def filled(match: re.Match[str]) -> str:
        lines = wanted.get(match["name"])
        return (
            match[0] if lines is None else "".join((match[1], *(f"{x}\n" for x in lines), match[3]))
        )

    return MARKS.sub(filled, text)


def programs(name: str) -> Iterator[str]:
    """Give the programs of a run's layers."""
    known = models()
    runs = [run for family in families() for run in family.runs if run.name == name]
    if not runs:
        sys.exit(f"no run is called {name!r}")
    for text, share in step_programs(runs[0], known[runs[0].model]):
        yield text if share == 1 else f"# {share} of it on each device\n{text}"


def below(found: Family) -> Iterator[str]:
    """Name the runs that were measured below the bound."""
    for result in tables.results(found.key):
        if result.measured < result.times.overlapped:
            yield f"{result.run.name}: measured below the bound"


def main() -> int:
    """Print or write the tables; 1 where a measured time lies below the bound."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name}")
    parser.add_argument("--program", metavar="RUN", help="print a run's programs, and stop")
    given = parser.parse_args()
    if given.program is not None:
        print("\n".join(programs(given.program)))
        return 0
    made = sections()
    if given.write:
        PAGE.write_text(page(PAGE.read_text("utf-8"), made), "utf-8")
    else:
        for name, lines in made.items():
            print(f"\n{name}\n", *lines, sep="\n", flush=True)
    wrong = [line for family in families() for line in below(family)]
    wrong += [
        f"{p.what} {p.operation} {p.size}: measured below the bound"
        for p in tables.points()
        if p.ratio < 1
    ]
    print("\n".join(wrong or ["no measured time lies below its bound"]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
