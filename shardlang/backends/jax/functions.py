"""The JAX code of each elementwise function: one row each, with the keys of `ir.functions`.

A row is an expression in which `x` stands for the operand once, or the name of a helper whose
definition `HELPERS` holds; only helpers that a module uses are written into it.
"""

from __future__ import annotations

from collections.abc import Mapping

from shardlang.backends.jax.sizes import arrays
from shardlang.ir.ops import Compare, Map, Top
from shardlang.ir.plan import Plan, Step

CODE: Mapping[str, str] = {
    "gelu": "jax.nn.gelu({x})",
    "gelu_grad": "_gelu_grad({x})",
    "silu": "jax.nn.silu({x})",
    "silu_grad": "_silu_grad({x})",
    "relu": "jax.nn.relu({x})",
    "relu_grad": "jnp.heaviside({x}, 0)",
    "square": "jnp.square({x})",
    "square_grad": "2 * {x}",
    "sqrt": "jnp.sqrt({x})",
    "sqrt_grad": "0.5 * lax.rsqrt({x})",
    "rsqrt": "lax.rsqrt({x})",
    "rsqrt_grad": "_rsqrt_grad({x})",
    "reciprocal": "jnp.reciprocal({x})",
    "reciprocal_grad": "-jnp.square(jnp.reciprocal({x}))",
    "log": "jnp.log({x})",
    "log_grad": "jnp.reciprocal({x})",
    "tanh": "jnp.tanh({x})",
    "tanh_grad": "1 - jnp.square(jnp.tanh({x}))",
    "sigmoid": "jax.nn.sigmoid({x})",
    "sigmoid_grad": "_sigmoid_grad({x})",
    "softplus": "jax.nn.softplus({x})",
    "softplus_grad": "jax.nn.sigmoid({x})",
    "abs": "jnp.abs({x})",
    "abs_grad": "jnp.sign({x})",
    "sin": "jnp.sin({x})",
    "sin_grad": "jnp.cos({x})",
    "cos": "jnp.cos({x})",
    "cos_grad": "-jnp.sin({x})",
    "exp": "jnp.exp({x})",
}
"""Code by function name."""

EXACT = frozenset({"relu", "relu_grad", "square", "square_grad", "abs", "abs_grad"})
"""Functions that round at most once in the operand's own dtype, and so need no wider one."""

JUMPS = frozenset({"relu_grad", "abs_grad"})
"""Functions that jump, so that a rounded operand can give quite another result."""


def chooses(step: Step) -> bool:
    """Say whether a step chooses among floats, so that near-equal ones, rounded, make it choose others."""
    return isinstance(step.op, Top) and step.inputs[0].tensor.dtype.kind == "float"


PRODUCTS_ON_CPU = "F32_F32_F32"
"""JAX's name of the precision with which products of bf16 are made on CPU: of factors brought to f32 first.

That changes no product, since those of bf16 are exact in f32, where they are summed anyway. Without it XLA's
CPU backend plans some batched products that it then can't run (seen in JAX 0.10.2: DotThunk).
"""


def widens_on_cpu(plan: Plan) -> bool:
    """Say whether products have to be made with `PRODUCTS_ON_CPU` on CPU; it would round those of f64."""
    dtypes = {array.tensor.dtype.name for array in arrays(plan)}
    return "bf16" in dtypes and "f64" not in dtypes


def jumps(plan: Plan) -> bool:
    """Say whether a plan has a step that jumps: its narrow and its exact values may then differ."""
    return any(
        (isinstance(step.op, Compare) and any(x.tensor.dtype.kind == "float" for x in step.inputs))
        or (isinstance(step.op, Map) and step.op.function in JUMPS)
        or chooses(step)
        for _, step in plan.steps()
    )


HELPERS: Mapping[str, str] = {
    "_after": '''
def _after(x, cotangent):
    """Give x so that XLA can't know that it is x, and only when the cotangent is there.

    What is made of it again is then made in its turn, and not kept from the forward pass.
    """
    x, cotangent = lax.optimization_barrier((x, cotangent))
    if jax.default_backend() != "cpu":
        return x
    # On CPUs XLA drops barriers before it looks for equal computations. No number times 0 is 1.
    return jnp.where(cotangent.ravel()[0] * 0 != 1, x, jnp.zeros_like(x))
''',
    "_gelu_grad": '''
def _gelu_grad(x):
    """Differentiate gelu (in its tanh approximation, as jax.nn.gelu has it)."""
    scale = 0.7978845608028654  # sqrt(2 / pi)
    t = jnp.tanh(scale * (x + 0.044715 * x**3))
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * scale * (1 + 3 * 0.044715 * x * x)
''',
    "_silu_grad": '''
def _silu_grad(x):
    """Differentiate silu."""
    s = jax.nn.sigmoid(x)
    return s * (1 + x * (1 - s))
''',
    "_rsqrt_grad": '''
def _rsqrt_grad(x):
    """Differentiate 1 / sqrt(x)."""
    return -0.5 * lax.rsqrt(x) / x
''',
    "_sigmoid_grad": '''
def _sigmoid_grad(x):
    """Differentiate the logistic function."""
    return jax.nn.sigmoid(x) * jax.nn.sigmoid(-x)
''',
    "_next": '''
def _next(function, stacks, layer, way):
    """Apply a function to the part of stacks that the layer after `layer` has, 1 or -1 further on.

    The last layer comes before the first one: what it gathers nobody reads.
    """
    number = (layer + way) % stacks[0].shape[0]
    return function(tuple(lax.dynamic_index_in_dim(x, number, keepdims=False) for x in stacks))
''',
    "_rotary": '''
def _rotary(x, angle, axis):
    """Turn the pairs of the two halves of an axis by angles, which have no gradient."""
    angle = lax.stop_gradient(angle)
    first, second = jnp.split(x, 2, axis)
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis)
''',
    "_rank": '''
def _rank(x):
    """Count, for each place of the last axis, the earlier ones with the same value."""
    order = jnp.argsort(x, axis=-1, stable=True)
    x = jnp.take_along_axis(x, order, axis=-1)
    place = jnp.arange(x.shape[-1], dtype=jnp.int32)
    new = jnp.concatenate([jnp.ones_like(x[..., :1], bool), x[..., 1:] != x[..., :-1]], axis=-1)
    first = lax.cummax(jnp.where(new, place, 0), axis=x.ndim - 1)
    return jnp.take_along_axis(place - first, jnp.argsort(order, axis=-1), axis=-1)
''',
    "_places": '''
def _places(ids, rows, axes=()):
    """Give ids as places among this device's rows of a dim split over `axes`; others as `rows`."""
    places = ids - lax.axis_index(axes) * rows if axes else ids
    return jnp.where((places >= 0) & (places < rows), places, rows)
''',
    "_take_rows": '''
def _take_rows(table, *places):
    """Look up rows of a table; a place past the end gives 0."""
    return table.at[places].get(mode="fill", fill_value=0)
''',
    "_add_rows": '''
def _add_rows(shape, values, *places):
    """Add values up at places of an array of zeros; a place past the end drops its value."""
    return jnp.zeros(shape, values.dtype).at[places].add(values, mode="drop")
''',
    "_own_shard": '''
def _own_shard(x, axes, dim):
    """Keep this device's shard along a dim that is replicated over `axes`; nothing moves."""
    size = x.shape[dim] // lax.axis_size(axes)
    return lax.dynamic_slice_in_dim(x, lax.axis_index(axes) * size, size, axis=dim)
''',
    "_neighbours": '''
def _neighbours(axes, way):
    """List who sends to whom: each device of a ring along `axes` to the next one, or to the one before.

    Places in the ring are counted with the first axis outermost, devices as lax.ppermute does, in the mesh's order.
    """
    names = (axes,) if isinstance(axes, str) else axes
    order = [name for name in jax.sharding.get_abstract_mesh().axis_names if name in names]
    devices = np.arange(lax.axis_size(names)).reshape([lax.axis_size(name) for name in order])
    ring = devices.transpose([order.index(name) for name in names]).ravel().tolist()
    return [(device, ring[(place + way) % len(ring)]) for place, device in enumerate(ring)]
''',
    "_shard_moves": '''
def _shard_moves(axes, source, target):
    """List who sends its shard to whom, so that the layout `source` becomes `target`.

    A layout gives, for each dim, the axes that split it, outermost first. Devices are numbered
    along `axes`, the first one outermost, as lax.ppermute numbers them. Whoever already has what it
    needs keeps it.
    """
    sizes = [lax.axis_size(axis) for axis in axes]

    def holders(layout):
        table = {}
        for device, index in enumerate(np.ndindex(*sizes)):
            at = dict(zip(axes, index, strict=True))
            block = []
            for dim in layout:
                number = 0
                for axis in dim:
                    number = number * lax.axis_size(axis) + at[axis]
                block.append(number)
            table.setdefault(tuple(block), []).append(device)
        return table

    have, want = holders(source), holders(target)
    moves = []
    for block, users in want.items():
        kept = [device for device in users if device in have[block]]
        senders = [device for device in have[block] if device not in kept]
        others = [device for device in users if device not in kept]
        moves += [(device, device) for device in kept] + list(zip(senders, others, strict=True))
    return moves
''',
}
"""Definitions of helpers by name; those that layouts need stand here too."""
