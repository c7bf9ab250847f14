"""shardlang: a language and compiler for sharded einsums.

The library in one screen: `parse` and `load` give a program, `lower` its plan, and `cost`,
`emit_jax` and `verify` read the plan. Importing the package loads none of sympy, lark, numpy and
JAX; each function imports what it needs when it is called.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING

from shardlang.diagnostics import Diagnostic, ShardlangError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from fractions import Fraction
    from os import PathLike
    from typing import Any, Literal

    from shardlang.advice.explain import Explanation
    from shardlang.cost.report import Report
    from shardlang.ir.plan import Plan
    from shardlang.ir.program import Program
    from shardlang.ir.types import Array, Mesh
    from shardlang.planner.meshes import Ranking
    from shardlang.planner.prices import Prices
    from shardlang.planner.reshard import Route
    from shardlang.planner.symbolic import Piecewise
    from shardlang.verify import VerifyResult

__version__ = "0.1.0"

__all__ = [
    "Diagnostic",
    "ShardlangError",
    "__version__",
    "best_meshes",
    "check",
    "cost",
    "emit_jax",
    "explain",
    "load",
    "lower",
    "overlap",
    "parse",
    "plans",
    "reshard",
    "reshard_cost",
    "ring_attention",
    "verify",
]


def _take(function: str, **given: object) -> None:
    """Raise TypeError where a public function is given something else than it takes.

    `given` are arguments by their names, which say what they have to be; None is an option that was left out.
    """
    from collections.abc import Mapping
    from numbers import Integral

    from shardlang.ir.plan import Plan
    from shardlang.ir.program import Program
    from shardlang.ir.types import Array, Mesh

    program, plan = "a Program: parse(text) or load(path)", "a Plan: lower(program)"
    sizes, layout = "sizes by names, as {'D': 64}", "a layout, as in 'A[I_X, J]'"
    wanted: dict[str, tuple[tuple[type, ...], str]] = {
        "text": ((str,), "the text of a program, a str"),
        "program": ((Program,), program),
        "program_or_text": ((Program, str), f"{program}, or its text"),
        "plan": ((Plan,), plan),
        "sizes": ((Mapping,), sizes),
        "hardware": ((str,), "hardware by its name or the path of its file, a str"),
        "source": ((Array, str), layout),
        "target": ((Array, str), layout),
        "mesh": ((Mesh, str, Mapping), "a mesh, as in 'X=4, Y=2'"),
    }
    for name, value in given.items():
        kinds, text = wanted[name]
        optional = name in ("sizes", "hardware")
        whole = not isinstance(value, Mapping) or all(
            isinstance(x, Integral) for x in value.values()
        )
        if not (value is None and optional) and not (isinstance(value, kinds) and whole):
            what = (
                repr(value)
                if isinstance(value, Mapping)
                else f"a value of type {type(value).__name__}"
            )
            raise TypeError(f"{function} takes {text}; it was given {what}")


def parse(text: str, name: str = "<string>") -> Program:
    """Read a program from its text; `name` is what diagnostics call it.

    Raises `ShardlangError`, whose `.diagnostics` say what is wrong and where.
    """
    _take("parse", text=text)
    from shardlang.frontend.resolve import load_text

    return load_text(text, name)


def load(path: str | PathLike[str]) -> Program:
    """Read a program from a UTF-8 file.

    Raises `ShardlangError` for what is wrong in it, and where it can't be read.
    """
    from os import fspath

    from shardlang.frontend.files import read_source
    from shardlang.frontend.parser import parse as parse_source
    from shardlang.frontend.resolve import resolve

    source = read_source(fspath(path))
    return resolve(parse_source(source), source)


def lower(
    program: Program,
    strategy: Literal["book", "optimal"] = "book",
    sizes: Mapping[str, int] | None = None,
    *,
    keep_gathered: bool | None = None,
    forward_only: bool = False,
    prices: str | Prices = "link",
    objective: Literal["bytes", "time", "serial"] | None = None,
    hardware: str | None = None,
    budget: float | None = None,
    memory_limit: float | Fraction | None = None,
    sub_axes: bool | None = None,
) -> Plan:
    """Infer the collectives of forward and backward, and give the plan.

    `sizes` of dims and axes win over the program's own; dims declared in terms of them follow.
    `keep_gathered` keeps all gathered weights for the backward pass, or none (by default those that the
    `save` line names, with `optimal` what is best); `forward_only` leaves that pass out.
    `shardlang.ir.printer.print_plan` prints a plan as `shardlang lower` does. `memory_limit` is the most
    bytes that a device may need.

    `optimal` searches for the plan of least T_overlapped on `hardware` (`objective` `time`), T_serial
    (`serial`) or bytes moved (`bytes`), by the price list `prices` (`book`, `link` or one's own), for at
    most `budget` seconds; the default is `time` where the hardware is known, else `bytes`. Its `proof`
    says how far it can be from the best. `sub_axes` lets it split X=4 into X1=2, X2=2 where that is
    cheaper, by default where at most 3 axes come out; the plan is then one on that mesh. All sizes must
    be known; `plans` leaves them open. Raises `ShardlangError`.
    """
    _take("lower", program=program, sizes=sizes, hardware=hardware)
    if sizes:
        program = _with_sizes(program, sizes)
    if strategy == "optimal":
        from shardlang.planner.program import best_plan

        return best_plan(
            program,
            prices=prices,
            objective=objective,
            hardware=hardware,
            budget=budget,
            memory_limit=memory_limit,
            sub_axes=sub_axes,
            keep_gathered=keep_gathered,
            forward_only=forward_only,
        )
    from shardlang.passes import lower as lower_program

    plan = lower_program(
        program, strategy=strategy, keep_gathered=keep_gathered, forward_only=forward_only
    )
    if memory_limit is None:
        return plan
    from shardlang.planner.memory import fitting

    return fitting(plan, memory_limit)


def _with_sizes(program: Program, sizes: Mapping[str, int]) -> Program:
    from shardlang.frontend.parser import parse as parse_source
    from shardlang.frontend.resolve import Overrides, resolve

    tree = parse_source(program.source)
    return resolve(tree, program.source, Overrides(sizes=dict(sizes)))


def plans(
    program: Program,
    sizes: Mapping[str, int] | None = None,
    *,
    keep_gathered: bool | None = None,
    forward_only: bool = False,
    prices: str | Prices = "link",
) -> Piecewise:
    """Find every plan of a small program that moves the fewest bytes for some sizes, and when it does.

    The sizes of any dims and axes may be left open. The result has `.pieces`, each with a `.condition`
    (a sympy expression; `.text` prints it), a `.cost` in bytes and a `.plan`; `.complete` says whether
    it is proven that there is no other; `.at({"K": 64, ...})` gives the plan for sizes. Raises
    `ShardlangError`: SH351 says why a program is beyond what can be answered for.
    """
    _take("plans", program=program, sizes=sizes)
    from shardlang.planner.symbolic import plans as find

    return find(
        _with_sizes(program, sizes) if sizes else program,
        prices,
        keep_gathered=keep_gathered,
        forward_only=forward_only,
    )


def best_meshes(
    program: Program,
    chips: int,
    sizes: Mapping[str, int] | None = None,
    *,
    hardware: str | None = None,
    axes: int | None = None,
    layouts: bool = True,
    strategy: Literal["book", "optimal"] = "optimal",
    objective: Literal["time", "serial"] = "time",
    prices: str | Prices = "link",
    memory_limit: float | Fraction | None = None,
    keep_gathered: bool | None = None,
    forward_only: bool = False,
    hbm: bool = False,
    budget: float | None = None,
) -> Ranking:
    """Find the best meshes of so many chips, and the layouts of leaves and outputs on them.

    The result has `.candidates`, best first, each with `.mesh`, `.arrays`, `.plan`, its times in seconds and
    the bytes of memory. `sizes` win over the program's own. `layouts=False` takes the layouts as they are written. Raises `ShardlangError` where
    a size or the hardware is missing, and where nothing fits.
    """
    _take("best_meshes", program=program, sizes=sizes, hardware=hardware)
    from shardlang.planner.meshes import best_meshes as find

    return find(
        _with_sizes(program, sizes) if sizes else program,
        chips,
        hardware=hardware,
        axes=axes,
        layouts=layouts,
        strategy=strategy,
        objective=objective,
        prices=prices,
        memory_limit=memory_limit,
        keep_gathered=keep_gathered,
        forward_only=forward_only,
        hbm=hbm,
        budget=budget,
    )


def cost(
    plan: Plan,
    hardware: str | None = None,
    *,
    model: Literal["book", "link"] = "book",
    overlap: Literal["axes"] | None = None,
    sets: Mapping[str, float] | None = None,
    hbm: bool = False,
) -> Report:
    """Price a plan: bytes, times, FLOPs and memory per device, as sympy expressions.

    `hardware` is a name of the catalogue or a path of a TOML file, and wins over the program's;
    `sets` gives hardware quantities (`{"W_ici": 1.8e11}`). With `hbm` no
    contraction takes less than its reads and writes do at W_hbm. Raises `ShardlangError`.
    """
    _take("cost", plan=plan, hardware=hardware)
    from shardlang.cost.report import cost as cost_of

    return cost_of(plan, hardware=hardware, model=model, overlap=overlap, sets=sets, hbm=hbm)


def overlap(
    plan: Plan,
    hardware: str | None = None,
    *,
    model: Literal["book", "link"] = "book",
    sets: Mapping[str, float] | None = None,
    always: bool = False,
) -> Plan:
    """Do gathers and scatters of a plan in rings beside their products, where that pays.

    That is known where sizes and `hardware` are; else the plan's alternatives say when it would. With
    `always` whatever can be a ring is one. In a program with stages nothing can. Raises `ShardlangError`.
    """
    _take("overlap", plan=plan, hardware=hardware)
    from shardlang.cost.rings import overlap as overlapped

    return overlapped(plan, hardware, model, sets, always=always)


def ring_attention(plan: Plan) -> Plan:
    """Let keys and values go round with a running softmax, wherever a plan gathers both of them.

    No device then has all keys and values, or the scores. Plans with no such place are given back, and those with stages.
    """
    _take("ring_attention", plan=plan)
    from shardlang.passes.ring_attention import with_ring_attention

    return with_ring_attention(plan)


def emit_jax(plan: Plan, sizes: Mapping[str, int] | None = None) -> str:
    """Write the plan as a standalone JAX module with explicit collectives.

    `sizes` fills in dims and axes that the plan leaves open. Raises `ShardlangError`.
    """
    _take("emit_jax", plan=plan, sizes=sizes)
    from shardlang.backends.jax.emit import emit_jax as emit

    return emit(plan, sizes=sizes)


def explain(
    program: Program,
    strategy: Literal["book", "optimal"] | None = None,
    sizes: Mapping[str, int] | None = None,
    *,
    prices: Literal["book", "link"] = "link",
    objective: Literal["bytes", "time", "serial"] | None = None,
    hardware: str | None = None,
    budget: float | None = None,
    memory_limit: float | Fraction | None = None,
    keep_gathered: bool | None = None,
    forward_only: bool = False,
    sub_axes: bool | None = None,
) -> Explanation:
    """Say why a plan has its collectives, which plans are close to it, and what they would cost.

    Without a strategy it is the optimal plan where every size is known, else the book's. `sizes` and the options
    are those of `lower`. `str()` of the result is what `shardlang explain` prints; it has
    `.to_dict()`. Raises `ShardlangError`.
    """
    _take("explain", program=program, sizes=sizes, hardware=hardware)
    from shardlang.advice.explain import explain as explain_plan

    return explain_plan(
        _with_sizes(program, sizes) if sizes else program,
        strategy,
        prices=prices,
        objective=objective,
        hardware=hardware,
        budget=budget,
        memory_limit=memory_limit,
        keep_gathered=keep_gathered,
        forward_only=forward_only,
        sub_axes=sub_axes,
    )


def check(
    program: Program | str,
    *,
    explicit: bool = False,
    prices: Literal["book", "link"] = "link",
) -> list[Diagnostic]:
    """List every error and warning of a program, or of its text; nothing is raised.

    `explicit` demands that each line is legal as it stands, with no inferred communication. The lines
    of an explicit program that move more than they have to, by `prices`, get a warning.
    """
    _take("check", program_or_text=program)
    from dataclasses import replace

    from shardlang.cost.hardware import hardware_mistakes, hardware_of, slice_mistakes
    from shardlang.passes import check as check_program
    from shardlang.source import Source

    found: list[Diagnostic] = []
    try:
        resolved = parse(program) if isinstance(program, str) else program
        if explicit:
            resolved = replace(resolved, explicit=True)
        listed = check_program(resolved)
        if resolved.explicit and all(each.severity == "warning" for each in listed):
            from shardlang.advice.lint import advised  # loads the planner, for such programs alone

            listed = advised(resolved, listed, prices)
        found += listed
    except ShardlangError as error:
        found += error.diagnostics
        if isinstance(program, str):
            found += hardware_mistakes(Source("<string>", program))
    else:
        if resolved.hardware is not None:
            try:
                chip = hardware_of(resolved.source, resolved.hardware)
                found += slice_mistakes(resolved, chip)
            except ShardlangError as error:
                found += error.diagnostics
    return list(ShardlangError(found).diagnostics)


def verify(plan: Plan, sizes: Mapping[str, int] | None = None) -> VerifyResult:
    """Run the emitted module on simulated devices and compare it with an unsharded reference.

    Dims are made small, but for what `sizes` gives. Needs JAX, which runs in a process of its own.
    The result has `.ok`, `.to_text()` and `.to_dict()`. Raises `ShardlangError`.
    """
    _take("verify", plan=plan, sizes=sizes)
    from shardlang.verify import verify as verify_plan

    return verify_plan(plan, sizes=sizes)


def reshard(
    source: Array | str,
    target: Array | str,
    mesh: Mesh | str | Mapping[str, int],
    sizes: Mapping[str, int] | None = None,
    prices: str | Prices = "link",
    *,
    sub_axes: bool = False,
) -> Route:
    """Find the cheapest steps from one layout of a tensor to another.

    `reshard("A[I_X, J]", "A[I, J_X]", "X=4")`; the result has `.steps`, `.cost` and `.mesh`, which with
    `sub_axes` is one with parts of axes where that is cheaper. Raises `ShardlangError`.
    """
    _take("reshard", source=source, target=target, mesh=mesh, sizes=sizes)
    from shardlang.planner.reshard import reshard as find

    return find(source, target, mesh, sizes, prices, sub_axes=sub_axes)


def reshard_cost(
    source: Array | str,
    target: Array | str,
    mesh: Mesh | str | Mapping[str, int],
    sizes: Mapping[str, int] | None = None,
    prices: str | Prices = "link",
    *,
    sub_axes: bool = False,
) -> Fraction:
    """Give what a device pays for the cheapest steps between two layouts, in the price list's unit.

    Raises `ShardlangError`.
    """
    _take("reshard_cost", source=source, target=target, mesh=mesh, sizes=sizes)
    from shardlang.planner.reshard import reshard_cost as price

    return price(source, target, mesh, sizes, prices, sub_axes=sub_axes)


class _CallablePackage(ModuleType):
    """A subpackage that has a public function's name: calling it calls that function."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Call the function of the same name."""
        return _SHADOWED[self.__name__.rpartition(".")[2]](*arguments, **options)


class _Package(ModuleType):
    """This package: importing `shardlang.cost` must not take the function `cost` away."""

    def __setattr__(self, name: str, value: object) -> None:
        """Let a subpackage that takes a function's place be called as the function was."""
        if name in _SHADOWED and isinstance(value, ModuleType):
            value.__class__ = _CallablePackage
        super().__setattr__(name, value)


_SHADOWED = {"cost": cost, "verify": verify}
sys.modules[__name__].__class__ = _Package
