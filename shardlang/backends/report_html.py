"""A report as a piece of HTML, for notebooks: tables, with everything escaped."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from shardlang.backends.report_tables import Block, blocks
from shardlang.cost.report import Report


def render(report: Report) -> str:
    """Print a report as HTML."""
    return tables(blocks(report))


def tables(blocks: Iterable[Block]) -> str:
    """Print tables as HTML."""
    parts = ['<div class="shardlang-cost">']
    for block in blocks:
        parts.append(f"<h4>{escape(block.title)}</h4>")
        if block.rows:
            parts.extend(_table(block))
        if block.notes:
            items = "".join(f"<li>{escape(note)}</li>" for note in block.notes)
            parts.append(f"<ul>{items}</ul>")
    parts.append("</div>")
    return "\n".join(parts) + "\n"


def _table(block: Block) -> list[str]:
    lines = ["<table>"]
    heads = "".join(f"<th>{escape(column)}</th>" for column in block.columns)
    lines.append(f"<thead><tr>{heads}</tr></thead>")
    lines.append("<tbody>")
    for row in block.rows:
        cells = ""
        for column, cell in zip(block.columns, row, strict=True):
            text = escape(cell)
            if text and column in block.code:
                text = f"<code>{text}</code>"
            align = "right" if column in block.numbers else "left"
            cells += f'<td style="text-align: {align}">{text}</td>'
        lines.append(f"<tr>{cells}</tr>")
    return [*lines, "</tbody>", "</table>"]
