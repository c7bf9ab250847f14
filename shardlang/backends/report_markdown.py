"""A report as Markdown: GitHub's tables, formulas as code."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from shardlang.backends.report_tables import Block, blocks
from shardlang.cost.report import Report


def render(report: Report) -> str:
    """Print a report as Markdown."""
    return tables("Cost", blocks(report))


def tables(title: str, blocks: Iterable[Block]) -> str:
    """Print tables as Markdown, under a heading."""
    return f"# {title}\n\n{sections(blocks)}"


def sections(blocks: Iterable[Block]) -> str:
    """Print tables as Markdown, each with a heading of its own."""
    lines: list[str] = []
    for block in blocks:
        lines += [f"## {_plain(block.title)}", ""]
        if block.rows:
            lines.append(_row(block.columns))
            lines.append(_row(["---:" if c in block.numbers else "---" for c in block.columns]))
            for row in block.rows:
                cells = [
                    "`{}`".format(cell.replace("|", r"\|"))
                    if cell and column in block.code
                    else _plain(cell)
                    for column, cell in zip(block.columns, row, strict=True)
                ]
                lines.append(_row(cells))
            lines.append("")
        for note in block.notes:
            lines += [f"- {_plain(note)}"]
        if block.notes:
            lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _plain(text: str) -> str:
    for char in "\\`*_{}[]<>|":
        text = text.replace(char, f"\\{char}")
    return text.replace("\n", " ")
