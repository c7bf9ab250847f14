"""Hold the memory that `cost` claims against what XLA allocates for the compiled training step of a Llama.

The program is `examples/train_llama/model.shd` at three sizes, on 8 simulated devices: FSDP over 4 and tensor
parallelism over 2. Its module's training step is compiled for shapes alone (nothing runs), with optax's adamw, and
each part of the claim stands beside what it is in the compiled step, of one device:

- parameters and optimizer: bytes of the step's arguments;
- gradients: bytes of what `loss_and_gradients` gives;
- activations: bytes of what the module's forward pass hands to its backward pass;
- the rest: what else is alive at the worst moment, gathered copies and a layer's own values;
- at once: XLA's arguments, temporaries and outputs that take no argument's place.

XLA's CPU backend computes in f32 what is bf16, from copies of whole stacks that it makes before its loops. No
GPU or TPU does; the rows in bf16 are compiled with that pass turned off. `--buffers 20` shows XLA's largest
buffers. Needs JAX and optax.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import tempfile
import types
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

os.environ["XLA_FLAGS"] = (
    f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
)
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import optax

import shardlang as sl

PROGRAM = Path(__file__).parents[1] / "examples/train_llama/model.shd"

SMALL = {"B": 16, "T": 64, "D": 128, "F": 512, "K": 2, "G": 2, "H": 32, "R": 16, "V": 512, "L": 8}
MEDIUM = {**SMALL, "T": 128, "D": 256, "F": 1024, "K": 4, "V": 1024, "L": 12}
LARGE = {**SMALL, "T": 256, "D": 512, "F": 2048, "K": 8, "V": 4096, "L": 16}

WIDE = {"xla_disable_hlo_passes": "while-loop-invariant-code-motion"}
"""Keeps XLA from making f32 copies of stacks in bf16 before a loop."""


@dataclass(frozen=True)
class Case:
    """Sizes, the dtype, and what the backward pass finds kept (the program's `save` line, or none)."""

    name: str
    sizes: dict[str, int]
    dtype: str = "f32"
    save: str = "named"

    @property
    def title(self) -> str:
        """Say what it is."""
        return (
            f"{self.name}, {self.dtype}, {'save none' if self.save == 'none' else 'values named'}"
        )


CASES = (
    Case("small", SMALL),
    Case("small-none", SMALL, save="none"),
    Case("small-bf16", SMALL, dtype="bf16"),
    Case("medium", MEDIUM),
    Case("medium-none", MEDIUM, save="none"),
    Case("large", LARGE),
)


@dataclass(frozen=True)
class Row:
    """A part of the memory of one device, in bytes."""

    part: str
    claimed: int
    compiled: int

    @property
    def ratio(self) -> float:
        """Give the claim over what is compiled; 1 where neither has any."""
        return self.claimed / self.compiled if self.compiled else float(not self.claimed)


def source(case: Case) -> str:
    """Write the program of a case."""
    text = PROGRAM.read_text().replace("dtype f32", f"dtype {case.dtype}")
    return (
        re.sub(r"^save .*$", "save none", text, flags=re.MULTILINE) if case.save == "none" else text
    )


def rows(case: Case, buffers: int = 0) -> Iterator[Row]:
    """Price and compile a case; print XLA's largest buffers where some are asked for."""
    plan = sl.lower(sl.parse(source(case)), sizes=case.sizes)
    memory = sl.cost(plan, sets=case.sizes).memory
    claimed = {name: int(quantity.value or 0) for name, quantity in memory.quantities.items()}
    module: Any = types.ModuleType("emitted")
    exec(sl.emit_jax(plan, case.sizes), module.__dict__)  # noqa: S102 - our own text
    mesh = module.make_mesh()
    state, batch, optimizer = arguments(module, mesh)

    handed: list[int] = []
    backward = module._backward_steps  # noqa: SLF001 - what it is given is what the forward pass kept

    def watched(leaves: Any, saved: Any, *others: Any) -> Any:
        handed.append(sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(saved)))
        return backward(leaves, saved, *others)

    module._backward_steps = watched  # noqa: SLF001
    gradients = jax.eval_shape(
        lambda p, b: module.loss_and_gradients(mesh, p, b)[1], state["parameters"], batch
    )
    lying = {
        name: jax.ShapeDtypeStruct(
            x.shape, x.dtype, sharding=jax.NamedSharding(mesh, module.STATES[name])
        )
        for name, x in gradients.items()
    }
    options = dict(WIDE) if case.dtype == "bf16" else {}
    with tempfile.TemporaryDirectory() as folder:
        if buffers:
            options["xla_dump_to"] = folder
        step = module.make_train_step(mesh, optimizer).lower(state, batch)
        found = step.compile(compiler_options=options).memory_analysis()
        if buffers:
            report = next(Path(folder).glob("*jit_step*memory-usage-report.txt")).read_text()
            print("\n".join(report.splitlines()[1 : buffers + 4]))
    compiled = {
        "parameters": local(state["parameters"]),
        "optimizer": local({name: x for name, x in state.items() if name != "parameters"}),
        "gradients": local(lying),
        "activations": handed[0] + local(batch),
    }
    whole = (
        found.argument_size_in_bytes
        + found.temp_size_in_bytes
        + found.output_size_in_bytes
        - found.alias_size_in_bytes
    )
    for part, number in compiled.items():
        yield Row(part, claimed[part], number)
    named = sum(claimed[part] for part in compiled)
    yield Row("the rest", claimed["peak"] - named, whole - sum(compiled.values()))
    yield Row("at once", claimed["peak"], whole)


def arguments(module: Any, mesh: Any) -> tuple[Any, Any, Any]:
    """Give the shapes of a step's state and batch, where they lie, and the optimizer."""
    optimizer = optax.adamw(1e-3)

    def lying(row: tuple[tuple[int, ...], str, Any]) -> Any:
        shape, dtype, spec = row
        sharding = jax.NamedSharding(mesh, spec)
        return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype), sharding=sharding)

    parameters = {name: lying(module.INPUTS[name]) for name in module.STATES}
    wide = {
        name: lying((x.shape, "float32", module.STATES[name])) for name, x in parameters.items()
    }
    moments = jax.eval_shape(optimizer.init, wide)
    places = module._state_shardings(mesh, moments, wide)  # noqa: SLF001 - where `init_state` puts them
    moments = jax.tree.map(
        lambda x, place: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), moments, places
    )
    state: dict[str, Any] = {"parameters": parameters, "optimizer": moments}
    if any(x.dtype != jnp.float32 for x in parameters.values()):
        state["masters"] = wide
    return state, {name: lying(row) for name, row in module.BATCH.items()}, optimizer


def local(tree: Any) -> int:
    """Add up the bytes that one device has of arrays."""
    return sum(
        math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in jax.tree.leaves(tree)
    )


def table(case: Case, found: list[Row]) -> str:
    """Write the rows of a case in MB."""
    sizes = " ".join(f"{name}={size}" for name, size in case.sizes.items())
    lines = [case.title, sizes, f"{'part':<12} {'claimed':>9} {'compiled':>9}  ratio"]
    for row in found:
        claimed, compiled = row.claimed / 1e6, row.compiled / 1e6
        lines.append(f"{row.part:<12} {claimed:>9.3f} {compiled:>9.3f} {row.ratio:>6.3f}")
    return "\n".join(lines)


def main() -> None:
    """Print a table for each case."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    names = [case.name for case in CASES]
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(names)} (all)")
    parser.add_argument("--buffers", type=int, default=0, help="XLA's largest buffers (none)")
    parser.add_argument("--json", action="store_true", help="bytes, for other programs")
    asked = parser.parse_args()
    if unknown := set(asked.cases).difference(names):
        parser.error(f"no such case: {', '.join(sorted(unknown))}")
    for case in CASES:
        if asked.cases and case.name not in asked.cases:
            continue
        found = list(rows(case, asked.buffers))
        if asked.json:
            print(json.dumps({"case": case.name, "rows": [asdict(row) for row in found]}))
        else:
            print(table(case, found), end="\n\n", flush=True)


if __name__ == "__main__":
    main()
