"""Writes rings: products that are multiplied shard by shard while shards go round by `lax.ppermute`.

A device sends its shard both ways, so that n-1 permutes bring all others in floor(n/2) hops. What arrives and what
is multiplied do not wait for each other: XLA's scheduler starts a permute, multiplies, and awaits it. The
loops are written out when the code is traced, as the number of devices is known then.
"""

from __future__ import annotations

from collections.abc import Mapping

from shardlang.backends.jax.compute import common, dtype_code, jax_dtype, Scope, wide
from shardlang.backends.jax.pretty import call, flat, Item, layout, parens
from shardlang.ir.ops import Ring
from shardlang.ir.plan import Step
from shardlang.ir.types import Array, Dim


def ring(step: Step, names: list[str], target: str, kept: str | None, scope: Scope) -> list[str]:
    """Write a ring as lines that assign `target`, and `kept` where it keeps what came round."""
    op, result = step.op, step.output.tensor
    assert isinstance(op, Ring)
    dims = tuple(dict.fromkeys(d for x in step.inputs for d in x.tensor.dims))
    letters = scope.letters(dims)
    terms = ",".join("".join(letters[d] for d in x.tensor.dims) for x in step.inputs)
    spec = f'"{terms}->{"".join(letters[d] for d in result.dims)}"'
    has = [jax_dtype(x.tensor.dtype) for x in step.inputs]
    same, dtype = common(set(has)), jax_dtype(result.dtype)
    into = wide({same, dtype} if "float" in same else {same})
    extra = [f"preferred_element_type={dtype_code(into)}"] if into != same else []
    product: Item
    if set(has) == {same}:
        product = call("functools.partial", "jnp.einsum", spec, *extra)
    else:
        casts = (f"{x}.astype({dtype_code(same)})" for x in "xy")
        product = f"lambda x, y: {flat(call('jnp.einsum', spec, *casts, *extra))}"
    places = [_place(x, op.dim) for x in step.inputs]
    lines = layout("product = ", product, 1) if isinstance(product, str) is False else []
    first: Item = "product" if lines else product
    arguments = [first, *names, scope.axes(op.axes)]
    along = parens(*places)
    if op.gathers:
        more = [f"place={op.operand}"] if op.operand else []
        where = _place(step.output, op.dim)
        more += [f"result={where}"] if where != "None" else []
        name = "_ring_gather" if kept is None else "_ring_gather_keep"
        given = target if kept is None else f"{target}, {kept}"
        lines += layout(f"{given} = ", call(name, *arguments, along, *more), 1)
    else:
        lines += layout(
            f"{target} = ", call("_ring_scatter", *arguments, along, dtype_code(dtype)), 1
        )
    if into != dtype:
        lines.append(f"    {target} = {target}.astype({dtype_code(dtype)})")
    return lines


def _place(array: Array, dim: Dim) -> str:
    dims = array.tensor.dims
    return str(dims.index(dim)) if dim in dims else "None"


HELPERS: Mapping[str, str] = {
    "_ring_gather": '''
def _ring_gather(product, x, y, axes, dims, place=0, result=None):
    """Multiply x and y, of which one (`place`) is gathered over `axes` shard by shard.

    `dims` say where its gathered dim is in x and in y; `result` where it is in the product, None where it
    is summed.
    """
    return _ring_gather_keep(product, x, y, axes, dims, place, result)[0]
''',
    "_ring_gather_keep": '''
def _ring_gather_keep(product, x, y, axes, dims, place=0, result=None):
    """Do what _ring_gather does, and also give the gathered array."""
    made = whole = None
    for source, shard in _around((x, y)[place], axes):
        others = [_block(z, axes, dim, source) for z, dim in zip((x, y), dims, strict=True)]
        others[place] = shard
        part = product(*others)
        if result is not None:
            made = _placed(made, part, axes, result, source)
        else:
            made = part if made is None else made + part
        whole = _placed(whole, shard, axes, dims[place], source)
    return made, whole
''',
    "_ring_scatter": '''
def _ring_scatter(product, x, y, axes, dims, dtype):
    """Multiply x and y and add up over `axes`; each device keeps its block of the product.

    `dims` say where the dim of these blocks is in x and in y. Sums go round in `dtype`, from both sides
    to the device that keeps them, and each device on the way adds its own.
    """
    n, own = lax.axis_size(axes), lax.axis_index(axes)

    def part(ahead):
        owner = (own + ahead) % n
        return product(*(_block(z, axes, d, owner) for z, d in zip((x, y), dims, strict=True)))

    total = part(0)
    for way, hops in ((1, n // 2), (-1, (n - 1) // 2)):
        sums = None
        for hop in range(hops, 0, -1):
            sums = part(way * hop) if sums is None else part(way * hop) + sums
            sums = lax.ppermute(sums.astype(dtype), axes, _neighbours(axes, way))
        total = total if sums is None else total + sums
    return total
''',
    "_around": '''
def _around(x, axes):
    """Go through the shards of all devices of a ring as they arrive from both sides: whose, and what."""
    n, own = lax.axis_size(axes), lax.axis_index(axes)
    yield own, x
    before = behind = x
    for hop in range(1, n // 2 + 1):
        before = lax.ppermute(before, axes, _neighbours(axes, 1))
        yield (own - hop) % n, before
        if 2 * hop < n:
            behind = lax.ppermute(behind, axes, _neighbours(axes, -1))
            yield (own + hop) % n, behind
''',
    "_block": '''
def _block(x, axes, dim, index):
    """Cut out one of the blocks into which a ring divides a dim; all of x where it lacks the dim."""
    if dim is None:
        return x
    size = x.shape[dim] // lax.axis_size(axes)
    return lax.dynamic_slice_in_dim(x, index * size, size, axis=dim)
''',
    "_placed": '''
def _placed(whole, part, axes, dim, index):
    """Put a block in its place along a dim; there is no whole before the first one."""
    if whole is None:
        n = lax.axis_size(axes)
        whole = jnp.zeros((*part.shape[:dim], n * part.shape[dim], *part.shape[dim + 1 :]), part.dtype)
    return lax.dynamic_update_slice_in_dim(whole, part, index * part.shape[dim], axis=dim)
''',
}
"""What emitted rings call, by name."""

NEEDS: Mapping[str, tuple[str, ...]] = {
    "_ring_gather": ("_ring_gather_keep", "_around", "_block", "_placed"),
    "_ring_gather_keep": ("_around", "_block", "_placed"),
    "_ring_scatter": ("_block",),
}
"""The helpers that those need which are called by steps."""


def helpers(code: str) -> list[str]:
    """Give the helpers that the rings in a piece of code need, in the order of `HELPERS`."""
    called = {name for name in NEEDS if f" {name}(" in code}
    wanted = called.union(*(NEEDS[name] for name in called))
    return [text.strip("\n") for name, text in HELPERS.items() if name in wanted]
