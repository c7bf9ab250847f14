"""`shardlang new`: the program of a known model, from its configuration."""

from __future__ import annotations

import re
import shlex
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from typing import TYPE_CHECKING

from shardlang.cli import arguments as options
from shardlang.cli.program import open_source
from shardlang.cli.render import dress, SCHEMA, to_json
from shardlang.cli.streams import UsageError, write_result

if TYPE_CHECKING:
    from shardlang.models import Scheme

NAME = "new"
HELP = "the program of a Llama or a Mixtral, from a Hugging Face config.json"

FAMILIES = ("llama", "mixtral")
"""The models that there are pages of."""


def configure(parser: ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("family", choices=FAMILIES, help="which kind of model")
    parser.add_argument(
        "--config",
        metavar="config.json",
        required=True,
        help="the model's configuration, or - for stdin",
    )
    parser.add_argument(
        "--shard",
        metavar="fsdp+tp",
        default="fsdp+tp",
        help="how it is split: a sum of dp, fsdp, tp, context, pipeline and (mixtral) ep",
    )
    parser.add_argument(
        "--mesh", metavar="X=8,Y=4", type=_mesh, default={}, help="sizes of the scheme's axes"
    )
    parser.add_argument(
        "--set",
        dest="settings",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        type=options.setting,
        help="the size of B (sequences), T (tokens of each), C (places of an expert), or i (microbatches)",
    )
    parser.add_argument(
        "--until",
        choices=("loss", "logits"),
        default="loss",
        help="what the program ends with: the loss of labels (default), or the logits",
    )
    options.add_output(parser)


def _mesh(text: str) -> dict[str, int]:
    """Read `X=8,Y=4`."""
    found: dict[str, int] = {}
    for part in text.split(","):
        match = re.fullmatch(r"\s*([^\W\d]\w*)\s*=\s*([0-9]{1,9})\s*", part)
        if match is None or int(match[2]) < 1:
            raise ArgumentTypeError(f"{options.shorten(text)} is not a mesh such as X=8,Y=4")
        found[match[1]] = int(match[2])
    return found


def run(arguments: Namespace) -> int:
    """Print the page."""
    from shardlang.models import Page, read_config, write
    from shardlang.models.config import refuse
    from shardlang.models.errors import DoesNotDivide
    from shardlang.models.fit import uneven

    family, mesh = arguments.family, arguments.mesh
    scheme = _scheme(arguments)
    for axis in mesh:
        if axis not in scheme.axes:
            axes = " and ".join(scheme.axes)
            raise UsageError(f"--mesh {axis}: the axes of --shard {arguments.shard} are {axes}")
    given = _given(arguments, scheme)
    source = open_source(arguments.config)
    config = read_config(source, family)
    for each in uneven(config, scheme, mesh, given):
        if each.field is None:
            what = f"can't be split into {each.parts} over {each.axes}"
            raise UsageError(f"--set {each.dim}={each.size}: {what}")
        refuse(source, DoesNotDivide(each.field, each.size, each.axes, each.parts), each.field)
    text = write(Page(config, scheme, _command(arguments), mesh, given, arguments.until))
    if arguments.format == "json":
        text = to_json({"schema": SCHEMA, "program": text})
    write_result(dress(text, arguments.format), arguments.output)
    return 0


def _scheme(arguments: Namespace) -> Scheme:
    from shardlang.models import scheme

    found = scheme(arguments.shard)
    if isinstance(found, str):
        raise UsageError(f"--shard {options.shorten(arguments.shard)}: {found}")
    if found.experts and arguments.family != "mixtral":
        raise UsageError(f"--shard {arguments.shard}: a {arguments.family} has no experts")
    return found


def _given(arguments: Namespace, scheme: Scheme) -> dict[str, int]:
    """Give the sizes of `--set`."""
    from shardlang.models import open_sizes

    known = open_sizes(scheme, experts=arguments.family == "mixtral")
    settings: list[options.Setting] = arguments.settings
    for item in settings:
        if item.name not in known:
            raise UsageError(f"--set {item.name}: sizes to set are {', '.join(known)}")
        if item.value.denominator != 1 or item.value < 1:
            raise UsageError(f"--set {item.name}: a size is a whole number above 0")
    return {item.name: item.value.numerator for item in settings}


def _command(arguments: Namespace) -> str:
    """Write the command that writes the page again."""
    words = ["shardlang", "new", arguments.family, "--config", arguments.config]
    words += ["--shard", arguments.shard]
    if arguments.mesh:
        words += ["--mesh", ",".join(f"{axis}={size}" for axis, size in arguments.mesh.items())]
    for item in arguments.settings:
        words += ["--set", f"{item.name}={item.value}"]
    if arguments.until != "loss":
        words += ["--until", arguments.until]
    return shlex.join(words).replace("\n", " ")
