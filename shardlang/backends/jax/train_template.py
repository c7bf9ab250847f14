"""The parts of a training step that are the same in each module: `@name@` marks what is filled in."""

from __future__ import annotations

GRADIENTS = '''
def @function@(mesh, parameters, batch@seeds@):
    """Give the @what@ where STATES says.

    @arguments@
    """
    parameters = {name: jnp.asarray(parameters[name], INPUTS[name][1]) for name in @all_own@}
    batch = {name: jnp.asarray(batch[name], dtype) for name, (_, dtype, _) in BATCH.items()}
@cast_seeds@
@data@
@sizes@

    def device(parameters, batch@seeds@):
@body@

    in_specs = (
        {name: INPUTS[name][2] for name in @all_own@},
        {name: spec for name, (_, _, spec) in BATCH.items()},
@specs_of_seeds@
    )
    out_specs = (@specs@, STATES)
    return _on_devices(mesh, device, in_specs, out_specs)(parameters, batch@seeds@)
'''
"""The loss (or the outputs) and the gradients of all that a step sees."""

OF_ONE = """
        def gradients_of(data@seeds@):
            inputs = @inputs@
            outputs, saved = _forward_steps(inputs@pass_sizes@)
            leaves = @leaves@
            cotangents = @cotangents@
            gradients = _backward_steps(leaves, saved, cotangents@pass_sizes@)
            wanted = @wanted@
            return @found@, wanted
"""
"""The gradients of a batch, or of one microbatch."""

MICROBATCHES = """
        def add(total, given):
            @one@, gradients = gradients_of(*given)
            pairs = zip(total, gradients, strict=True)
            return tuple(x + y.astype(x.dtype) for x, y in pairs), @one@

        def zeros(x, dtype, axes):
            x = jnp.zeros(x.shape, dtype)
            return lax.pcast(x, axes, to="varying") if axes else x

        # Each device adds up its own gradients in a wide dtype; they are reduced once, at the end.
        given = (batch@seeds_of_all@)
        first = jax.tree.map(lambda x: x[0], given)
        shapes = jax.eval_shape(gradients_of, *first)[1]
        start = tuple(zeros(x, *row) for x, row in zip(shapes, ACCUMULATORS, strict=True))
        total, @all@ = lax.scan(add, start, given@length@)
        gradients = tuple(x / len(@counted@) for x in total)
        return @mean_of_all@, dict(zip(STATES, @reduced@, strict=True))
"""
"""How microbatches are gone through."""

STAGES = """
        inputs = @inputs@
        count = @count@
        cotangents = @cotangents@
        outputs, gradients = _both_ways(inputs, cotangents@pass_sizes@)
        wanted = @wanted@
        gradients = tuple(x / count for x in wanted)
        return @mean_found@, dict(zip(STATES, @reduced@, strict=True))
"""
"""How microbatches go through the stages of a pipeline."""

ONE_BATCH = """
        @one@, gradients = gradients_of(batch@seeds@)
        return @one@, dict(zip(STATES, @reduced@, strict=True))
"""
"""The same for a step of one batch."""

WIDE_DTYPE = '''
def _wide_dtype(name):
    """Give the dtype in which a parameter is updated."""
    return jnp.promote_types(INPUTS[name][1], "float32")

'''
"""What narrow parameters need besides."""

STEP = '''
def init_state(mesh, optimizer, parameters):
    """Give the state that training begins with.

    It holds the parameters as INPUTS has them, @masters@and the optimizer's state@and_frozen@.
    `parameters` are by name, whole or as `place` gives them. `optimizer` is a
    GradientTransformation of optax, or has its `init` and `update`.
    """

    def placed(name, dtype, spec):
        x, sharding = parameters[name], NamedSharding(mesh, spec)
        if isinstance(x, jax.Array):  # a copy, since steps are given the state's memory
            return jax.device_put(jnp.array(x, dtype), sharding)
        x = np.asarray(x, jnp.dtype(dtype))
        return jax.make_array_from_callback(x.shape, sharding, lambda index: x[index])

    state = {"parameters": {name: placed(name, *INPUTS[name][1:]) for name in STATES}}
    own = {name: placed(name, @own_dtype@, spec) for name, spec in STATES.items()}
    shardings = _state_shardings(mesh, jax.eval_shape(optimizer.init, own), own)
    state["optimizer"] = jax.jit(optimizer.init, out_shardings=shardings)(own)
@keep_masters@
@keep_frozen@
    return state


def make_train_step(mesh, optimizer):
    """Give one step, a function (state, batch) -> (state, loss); it is donated the old state."""

    @functools.partial(jax.jit, donate_argnums=0)
    def step(state, batch):
@join@
        loss, gradients = loss_and_gradients(mesh, @all_of_state@, batch)
@old@
@widen@
        updates, moments = optimizer.update(gradients, state["optimizer"], old)
        new = {name: x + updates[name].astype(x.dtype) for name, x in old.items()}
        new, moments = (
            jax.lax.with_sharding_constraint(tree, _state_shardings(mesh, tree, old))
            for tree in (new, moments)
        )
@parameters@
@ended@

    return step


@wide_dtype@
def _state_shardings(mesh, tree, parameters):
    """Give arrays under a parameter's name its sharding in STATES, where they have its shape."""

    def sharding(path, x):
        keys = [key.key for key in path if isinstance(key, jax.tree_util.DictKey)]
        names = [key for key in keys if key in STATES and x.shape == parameters[key].shape]
        return NamedSharding(mesh, STATES[names[-1]] if names else P())

    return jax.tree_util.tree_map_with_path(sharding, tree)
'''
"""The optimizer's step."""

MOVED = '''
def @name@(mesh, @argument@):
    """@what@"""

    def device(@argument@):
        moved = @function@(tuple(@argument@[name] for name in STATES))
        return dict(zip(STATES, moved, strict=True))

    lying = {name: INPUTS[name][2] for name in STATES}
    return _on_devices(mesh, device, (@before@,), @behind@)(@argument@)
'''
"""A change of layout of all parameters."""

CHECK_TRAINING = """
        # The @what@ and gradients of a step, against those of the reference.
        trained = {name: x for name, x in zip(INPUTS, inputs, strict=True) if name in STATES}
        rest = {name: x for name, x in zip(INPUTS, inputs, strict=True) if name in BATCH}
@fixed@
        batches = @batches@
        data = @batch@
        wide = {name: _wide(x) for name, x in trained.items()}

        def expect(parameters, batch):
            given = {**parameters, **{name: _wide(x) for name, x in @given@.items()}}
            return reference(*(given[name] for name in INPUTS))
"""
"""What the module's own check adds for a training step."""

CHECK_LOSS = """
        def mean_loss(parameters):
            return jnp.mean(jnp.stack([expect(parameters, each)[@loss@] for each in batches]))

        loss, wanted = jax.value_and_grad(mean_loss)(wide)
        got, gradients = jax.jit(loss_and_gradients, static_argnums=0)(mesh, @all_trained@, data)
        good.append(_compare("loss of a step", got, loss))
"""
"""What it does where there is a loss."""

CHECK_OUTPUTS = """
        def weighted(parameters):
            found = [expect(parameters, each) for each in batches]
            outputs = @expected@
            rows = zip(OUTPUTS, outputs, cotangents, strict=True)
            terms = [jnp.sum(x * _wide(seed)) for name, x, seed in rows if name in SEEDS]
            return sum(terms) / @divisor@, outputs

        seeds = dict(zip(OUTPUTS, cotangents, strict=True))
        seeds = {name: @seeds@ for name in SEEDS}
        (_, expected), wanted = jax.value_and_grad(weighted, has_aux=True)(wide)
        function = jax.jit(outputs_and_gradients, static_argnums=0)
        outputs, gradients = function(mesh, @all_trained@, data, seeds)
@combine_all@
        for name, got, want in zip(OUTPUTS, outputs, expected, strict=True):
            good.append(_compare(f"{name} of a step", got, want))
"""
"""What it does where the caller gives cotangents."""

CHECK_GRADIENTS = """
        for name, x in gradients.items():
            good.append(_compare(f"gradient of {name} in a step", x, wanted[name]))
"""
"""How it compares the gradients."""
