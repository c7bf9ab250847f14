"""`shardlang fmt`: the canonical layout of a source."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from shardlang.cli import arguments as options
from shardlang.cli.program import read_text
from shardlang.cli.render import dress, SCHEMA, to_json
from shardlang.cli.streams import complain, write_result

NAME = "fmt"
HELP = "the canonical layout of the source, on stdout (-o FILE writes it there)"


def configure(parser: ArgumentParser) -> None:
    """Declare the options."""
    options.add_source(parser)
    parser.add_argument(
        "--check",
        action="store_true",
        help="print nothing; exit status 1 says that the layout would change",
    )
    options.add_lowering(parser, shown=False)
    options.add_output(parser)


def run(arguments: Namespace) -> int:
    """Print the source in its canonical layout, or say whether it has it already."""
    from shardlang.frontend.format import format_source

    source = read_text(arguments)
    text = format_source(source)
    changed = text != source.text
    if arguments.check:
        if changed:
            complain(f"{source.name}: the layout would change")
        return int(changed)
    if arguments.format == "json":
        text = to_json({"schema": SCHEMA, "text": text, "changed": changed})
    write_result(dress(text, arguments.format), arguments.output)
    return 0
