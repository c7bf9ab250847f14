"""Writes docs/rules.md from the rule table: `python docs/make_rules.py`."""

from __future__ import annotations

from pathlib import Path

from shardlang.rules.table import RULES

HEAD = """# The rules of strategy `book`

Made by `python docs/make_rules.py` from the rows in `shardlang/rules/table.py`; don't edit it.

The rules look at one operation and one mesh axis at a time. Where the axis stands in the operands
and in the wanted result picks exactly one row. What the row leaves to be done (a gather before, a
reduction or a gather after) is then done in the cheapest order: slices, ReduceScatter, AllToAll,
AllReduce, AllGather. Where one Permute leads to the wanted layout, it takes the place of a gather.
"""


def page() -> str:
    """Give the page's text."""
    parts = [HEAD]
    for rule in RULES:
        parts.append(f"## {rule.name}\n")
        parts.append(f"*{rule.citation}.* {rule.action.value[0].upper()}{rule.action.value[1:]}.\n")
        for title, values in (
            ("the axis", rule.splits),
            ("partial sums over it", rule.partials),
            ("the wanted result has it", rule.wishes),
        ):
            listed = sorted(value.value for value in values)
            text = "wherever it is" if len(values) > 4 else "; or ".join(listed)
            parts.append(f"- {title}: {text}")
        parts.append(f"\n```\n{rule.before}\n```\nbecomes\n```")
        parts.extend(rule.after)
        parts.append("```\n")
    return "\n".join(parts)


if __name__ == "__main__":
    Path(__file__).with_name("rules.md").write_text(page(), encoding="utf-8")
