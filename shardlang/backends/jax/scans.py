"""The code of a block: a function of one layer, and the `lax.scan` over it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shardlang.backends.jax.pretty import call, Item, layout, parens, unpack


@dataclass(frozen=True)
class Layer:
    """The function of one layer, whose variables have the names that they have outside of it.

    It is given the values of `outside` and the sizes (where any step needs one), what the layer before
    hands on, and its part of stacks; it gives `handed` and `given`, its part of others.
    """

    name: str
    summary: str
    outside: Sequence[str]
    sizes: bool
    carry: Sequence[str]
    stacked: Sequence[str]
    body: Sequence[str]
    handed: Sequence[Item]
    given: Sequence[Item]

    def text(self) -> str:
        """Write the function."""
        fixed = [*(["outside"] if self.outside else []), *(["sizes"] if self.sizes else [])]
        return "\n".join(
            [
                f"def {self.name}({', '.join((*fixed, 'carry', 'layer'))}):",
                f'    """{self.summary}"""',
                *unpack(self.outside, "outside", 1),
                *unpack(self.carry, "carry", 1),
                *unpack(self.stacked, "layer", 1),
                *self.body,
                *layout("return ", parens(parens(*self.handed), parens(*self.given)), 1),
            ]
        )

    def scan(
        self,
        first: Sequence[Item],
        stacks: Sequence[str],
        last: Sequence[str],
        given: Sequence[str],
        *options: str,
    ) -> list[str]:
        """Write the scan: from the values that the `first` layer is handed to those of the `last`.

        `stacks` are those that the layers take their parts of, `given` those that they give.
        """
        fixed: list[Item] = [parens(*self.outside)] if self.outside else []
        fixed += ["sizes"] if self.sizes else []
        function = call("functools.partial", self.name, *fixed) if fixed else self.name
        target = f"{'carry' if last else '_'}, {'layers' if given else '_'} = "
        made = call("lax.scan", function, parens(*first), parens(*stacks), *options)
        return [
            *layout(target, made, 1),
            *unpack(last, "carry", 1),
            *unpack(given, "layers", 1),
        ]
