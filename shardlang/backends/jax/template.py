"""The parts of an emitted module that are the same in each: `@name@` marks what is filled in."""

from __future__ import annotations

import re
from collections.abc import Mapping

from shardlang.backends.jax.pretty import flat, Item, layout

MODULE = {
    "make_mesh": '''
def make_mesh(devices=None, axes=None) -> Mesh:
    """Arrange devices (by default, all that JAX has) as the mesh of MESH_AXES."""
    axes = MESH_AXES if axes is None else axes
    devices = jax.devices() if devices is None else list(devices)
    count = math.prod(axes.values())
    if len(devices) < count:
        raise ValueError(
            f"the mesh {axes} needs {count} devices and there are {len(devices)}; "
            "run this file as a program to simulate them on the host CPU"
        )
    return jax.make_mesh(
        tuple(axes.values()),
        tuple(axes),
        axis_types=(AxisType.Auto,) * len(axes),
        devices=devices[:count],
    )
''',
    "place": '''
def place(mesh, name, make):
    """Make @placed_what@ on a mesh, shard by shard.

    make(index) gives the part of the global array at a tuple of slices, each with start and stop.
    A process asks for the shards of its own devices alone, and for each of them once.
    """
    shape, dtype, spec = @placed@[name]
    made = {}

    def shard(index):
        ends = tuple(part.indices(size)[:2] for part, size in zip(index, shape, strict=True))
        if ends not in made:
            made[ends] = np.asarray(make(tuple(slice(*x) for x in ends)), jnp.dtype(dtype))
        return made[ends]

    return jax.make_array_from_callback(shape, NamedSharding(mesh, spec), shard)
''',
    "on_devices": '''
def _on_devices(mesh, function, in_specs, out_specs):
    """Map a function over a mesh: each device runs it on its own shards."""
    mesh = Mesh(mesh.devices, mesh.axis_names)  # Auto axes: inputs in any sharding are brought in
@unchecked_why@
    return @mapped@
''',
    "arrays": '''
def _arrays(arrays, table):
    """Give arrays the dtypes that a table (INPUTS or OUTPUTS) declares."""
    if len(arrays) != len(table):
        raise TypeError(f"expected {len(table)} arrays ({', '.join(table)}), got {len(arrays)}")
    dtypes = [dtype for _, dtype, _ in table.values()]
    return tuple(jnp.asarray(x, dtype) for x, dtype in zip(arrays, dtypes, strict=True))
''',
    "specs": '''
def _specs(table):
    """List the PartitionSpecs of a table."""
    return tuple(spec for _, _, spec in table.values())
''',
    "forward": '''
@functools.partial(jax.jit, static_argnums=0)
def forward(mesh, *inputs):
    """Run the forward pass: global arrays in, a tuple of global arrays out."""
    inputs = _arrays(inputs, INPUTS)
@sizes@

    def device(*shards):
        outputs, _ = @forward_steps@(shards@pass_sizes@)
        return outputs

    return _on_devices(mesh, device, _specs(INPUTS), _specs(OUTPUTS))(*inputs)
''',
    "forward_backward": '''
@functools.partial(jax.jit, static_argnums=0)
def forward_backward(mesh, inputs, cotangents):
    """Run @what@: give (outputs, gradients in the order of INPUTS).

    Each gradient has its input's PartitionSpec. There is one cotangent an output.
    """
    inputs = _arrays(inputs, INPUTS)
    cotangents = @cotangents@
@sizes@

    def device(inputs, cotangents):
@both@

    in_specs = (_specs(INPUTS), COTANGENTS)
    out_specs = (_specs(OUTPUTS), _specs(INPUTS))
    return _on_devices(mesh, device, in_specs, out_specs)(inputs, cotangents)
''',
    "differentiable": '''
def differentiable(mesh):
    """Give the program as a function of *inputs; jax.grad of it runs the plan's own backward pass.

    Between the passes it keeps what the plan's backward steps read, and nothing else.@stacked@
    """

    @jax.custom_vjp
    def function(*inputs):
        return forward(mesh, *inputs)

    def forward_rule(*inputs):
        outputs, saved = _forward_saving(mesh, *inputs)
        leaves = @leaves@
        return outputs, (leaves, saved@static_sizes@)

    def backward_rule(kept, cotangents):
@vjp_cotangents@
@vjp_gradients@

    function.defvjp(forward_rule, backward_rule)
    return function


@functools.partial(jax.jit, static_argnums=0)
def _forward_saving(mesh, *inputs):
    """Run the forward pass and also give what the backward pass reads of it."""
    inputs = _arrays(inputs, INPUTS)
@sizes@

    def device(*shards):
        return @forward_steps@(shards@pass_sizes@)

    out_specs = (_specs(OUTPUTS), SAVED)
    return _on_devices(mesh, device, _specs(INPUTS), out_specs)(*inputs)


@functools.partial(jax.jit, static_argnums=0)
def _backward(mesh, leaves, saved, @sizes_parameter@cotangents):
    """Run the backward pass alone."""

    def device(leaves, saved, cotangents):
        return @home@@backward_steps@(leaves, saved, cotangents@pass_sizes@)@at_home@

    in_specs = @backward_specs@
    return _on_devices(mesh, device, in_specs, _specs(INPUTS))(leaves, saved, cotangents)
''',
    "sizes_class": '''
@jax.tree_util.register_static
class _Sizes(dict):
    """The global sizes of dims by name: static numbers for JAX."""

    def __hash__(self):
        return hash(tuple(self.items()))
''',
}
"""Public functions and what they share."""

BOTH_STEPS = """
        outputs, saved = _forward_steps(inputs@pass_sizes@)
        leaves = @leaves@
        return outputs, @home@_backward_steps(leaves, saved, cotangents@pass_sizes@)@at_home@
"""
"""Both passes."""

BOTH_WAYS = """
        outputs, gradients = _both_ways(inputs, cotangents@pass_sizes@)
        return outputs, _rounded(@home@gradients@at_home@)
"""
"""Both passes of all microbatches of a pipeline."""

CHECK = '''
TOLERANCE = @tolerance@


def _data(rng, shape, dtype@scale_parameter@):
    """Make random data of both signs, of magnitudes near @magnitude@."""
    if jnp.issubdtype(dtype, jnp.floating):
        values = rng.uniform(0.5, 1.5, shape) * rng.choice([-1.0, 1.0], shape)@times_scale@
    else:
        values = rng.integers(0 if dtype.startswith(("u", "b")) else -2, 2, shape)
    return jnp.asarray(values.astype(np.float32), dtype)


def _wide(x):
    """Give an array's values in a dtype that loses nothing."""
    return x.astype(jnp.@wide@) if jnp.issubdtype(x.dtype, jnp.floating) else x


def _compare(name, got, want):
    """Print the largest difference, relative to the largest value; say whether it is small."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    scale = max(float(np.max(np.abs(want), initial=0.0)), 1e-6)
    error = float(np.max(np.abs(got - want), initial=0.0)) / scale
    good = got.shape == want.shape and error <= TOLERANCE
    print(f"{name}: largest error {error:.1e} of {TOLERANCE:.0e} {'ok' if good else 'WRONG'}")
    return good


def _enough_devices(count):
    """Give JAX's devices, or that many simulated ones on the host CPU where there are fewer."""
    flag = f"--xla_force_host_platform_device_count={count}"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}"
    devices = jax.devices()
    return devices if len(devices) >= count else jax.devices("cpu")
'''
"""What the module's own check shares."""

MAIN = '''
def main() -> int:
    """Compare values and gradients with the unsharded reference: 0 if all agree, else 1."""
@setup@
    mesh = make_mesh(_enough_devices(math.prod(axes.values())), axes)
    rng = np.random.default_rng(0)
@inputs@
@on_cpu@
    with jax.default_matmul_precision(@precision@):
        expected = reference(*map(_wide, inputs))
        if any(np.isnan(np.asarray(x)).any() for x in expected):  # such as the log of a negative
            inputs = tuple(jnp.abs(x) for x in inputs)
            expected = reference(*map(_wide, inputs))
        outputs = forward(mesh, *inputs)
@combine@
        good = [_compare(*row) for row in zip(OUTPUTS, outputs, expected, strict=True)]
@gradients@
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
'''
"""The module's own check, and the lines that run it."""

ON_CPU = """
    on_cpu = mesh.devices.flat[0].platform == "cpu"
    if on_cpu:
        print("on CPU factors of bfloat16 are multiplied in float32, which changes no product")
"""
"""What the check says where XLA's CPU backend can't run all products (`functions.PRODUCTS_ON_CPU`)."""

MAIN_WHOLE = """

        # The whole plan as one program.
        dtypes = [dtype for _, dtype, _ in OUTPUTS.values()]
        cotangents = tuple(
            _data(rng, x.shape, dtype) for x, dtype in zip(expected, dtypes, strict=True)
        )
        outputs, gradients = forward_backward(mesh, inputs, cotangents)
@combine@
        for name, got, want in zip(OUTPUTS, outputs, expected, strict=True):
            good.append(_compare(f"{name} with its backward pass", got, want))
"""
"""What the check adds where there is a backward pass."""

MAIN_GRADIENTS = """

        # Its gradients, and those through jax.vjp of differentiable().
        _, pullback = jax.vjp(reference, *map(_wide, inputs))
        wanted = pullback(_like(cotangents, expected))
        outputs, pullback = jax.vjp(differentiable(mesh), *inputs)
        again = pullback(_like(@seeds@, outputs))
        for name, one, other, want in zip(INPUTS, gradients, again, wanted, strict=True):
            if @compared@:
                good.append(_compare(f"gradient of {name}", one, want))
                good.append(_compare(f"gradient of {name} by jax.vjp", other, want))
"""
"""How it compares gradients."""

MAIN_JUMPS = """

        # Gradients ran, and are not compared: at this precision values can tie or change sign, and
        # the derivatives of max, min, relu and abs jump there.
        for name, x in zip(INPUTS, gradients, strict=True):
            print(f"gradient of {name}: NOT compared: it jumps, {x.dtype} can be on either side")
        print("to compare gradients too: emit with `dtype f32`, or run shardlang verify")
"""
"""What it says instead where they can't be compared in the plan's own dtypes."""

LIKE = '''
def _like(cotangents, outputs):
    """Give cotangents the shapes and dtypes of outputs; integers have none."""
    return tuple(
        jnp.broadcast_to(c, x.shape).astype(x.dtype)
        if jnp.issubdtype(x.dtype, jnp.floating)
        else np.zeros(x.shape, jax.dtypes.float0)
        for c, x in zip(cotangents, outputs, strict=True)
    )
'''
"""A helper of the check's gradients."""


def fill(template: str, values: Mapping[str, Item]) -> str:
    """Fill `@name@` marks; a line whose mark is a bracket is broken where it is too long."""
    lines: list[str] = []
    for line in template.split("\n"):
        whole = re.fullmatch(r"@(\w+)@", line)
        if whole is not None and values[whole[1]] == "":
            continue
        marks = re.findall(r"@(\w+)@", line)
        nodes = [name for name in marks if not isinstance(values[name], str)]
        if len(marks) == 1 and nodes:
            before, _, after = line.partition(f"@{marks[0]}@")
            indent = (len(before) - len(before.lstrip())) // 4
            lines += layout(before.lstrip(), values[marks[0]], indent, after)
            continue
        lines.append(re.sub(r"@(\w+)@", lambda m: flat(values[m[1]]), line))
    return "\n".join(lines)
