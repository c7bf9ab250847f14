"""The parts of a training step that are the same in each module: `@name@` marks what is filled in."""

from __future__ import annotations

GRADIENTS = '''
def loss_and_gradients(mesh, parameters, batch):
    """Give the @mean@loss of a batch, and its gradients where STATES says.

    `parameters` and `batch` hold global arrays by their names in STATES and in BATCH.
    """
    parameters = {name: jnp.asarray(parameters[name], INPUTS[name][1]) for name in STATES}
    batch = {name: jnp.asarray(batch[name], dtype) for name, (_, dtype, _) in BATCH.items()}
@data@
@sizes@

    def device(parameters, batch):
@body@

    in_specs = (
        {name: INPUTS[name][2] for name in STATES},
        {name: spec for name, (_, _, spec) in BATCH.items()},
    )
    return _on_devices(mesh, device, in_specs, (P(), STATES))(parameters, batch)
'''
"""The loss and the gradients of all that a step sees."""

OF_ONE = """
        def gradients_of(data):
            inputs = @inputs@
            outputs, saved = _forward_steps(inputs@pass_sizes@)
            leaves = @leaves@
            cotangents = (jnp.ones((), "@dtype@"),)
            gradients = _backward_steps(leaves, saved, cotangents@pass_sizes@)
            wanted = @wanted@
            return outputs[@loss@], wanted
"""
"""The gradients of a batch, or of one microbatch."""

MICROBATCHES = """
        def add(total, data):
            loss, gradients = gradients_of(data)
            return tuple(x + y.astype(x.dtype) for x, y in zip(total, gradients, strict=True)), loss

        # Each device adds up its own gradients in a wide dtype; they are reduced once, behind the scan.
        data = {name: x[0] for name, x in batch.items()}
        shapes = jax.eval_shape(gradients_of, data)[1]
        zeros = tuple(
            lax.pcast(jnp.zeros(x.shape, dtype), axes, to="varying") if axes else jnp.zeros(x.shape, dtype)
            for x, (dtype, axes) in zip(shapes, ACCUMULATORS, strict=True)
        )
        total, losses = lax.scan(add, zeros, batch)
        gradients = tuple(x / len(losses) for x in total)
        return jnp.mean(losses), dict(zip(STATES, @reduced@, strict=True))
"""
"""How microbatches are gone through."""

STAGES = """
        data = batch
        inputs = @inputs@
        count = @count@
        outputs, gradients = _both_ways(inputs, (jnp.ones((count,), "@dtype@"),)@pass_sizes@)
        wanted = @wanted@
        gradients = tuple(x / count for x in wanted)
        return jnp.mean(outputs[@loss@]), dict(zip(STATES, @reduced@, strict=True))
"""
"""How microbatches go through the stages of a pipeline."""

ONE_BATCH = """
        loss, gradients = gradients_of(batch)
        return loss, dict(zip(STATES, @reduced@, strict=True))
"""
"""The same for a step of one batch."""

STEP = '''
def init_state(mesh, optimizer, parameters):
    """Give the state that training begins with, of parameters by name: whole, or as `place` gives them.

    It holds the parameters as INPUTS has them, @masters@and the optimizer's state.
    `optimizer` is a GradientTransformation of optax, or has its `init` and `update`.
    """

    def placed(name, dtype, spec):
        x, sharding = parameters[name], NamedSharding(mesh, spec)
        if isinstance(x, jax.Array):  # a copy, since steps are given the state's memory
            return jax.device_put(jnp.array(x, dtype), sharding)
        x = np.asarray(x, jnp.dtype(dtype))
        return jax.make_array_from_callback(x.shape, sharding, lambda index: x[index])

    state = {"parameters": {name: placed(name, *INPUTS[name][1:]) for name in STATES}}
    wide = {name: placed(name, _wide_dtype(name), spec) for name, spec in STATES.items()}
    shardings = _state_shardings(mesh, jax.eval_shape(optimizer.init, wide), wide)
    state["optimizer"] = jax.jit(optimizer.init, out_shardings=shardings)(wide)
@keep_masters@
    return state


def make_train_step(mesh, optimizer):
    """Give the function (state, batch) -> (state, loss) of one step; the old state is donated to it."""

    @functools.partial(jax.jit, donate_argnums=0)
    def step(state, batch):
        loss, gradients = loss_and_gradients(mesh, state["parameters"], batch)
@old@
        gradients = {name: gradients[name].astype(x.dtype) for name, x in old.items()}
        updates, moments = optimizer.update(gradients, state["optimizer"], old)
        new = {name: x + updates[name].astype(x.dtype) for name, x in old.items()}
        new, moments = (
            jax.lax.with_sharding_constraint(tree, _state_shardings(mesh, tree, old))
            for tree in (new, moments)
        )
        parameters = {name: x.astype(INPUTS[name][1]) for name, x in new.items()}
@whole@
        return {"parameters": parameters, "optimizer": moments@masters_too@}, loss

    return step


def _wide_dtype(name):
    """Give the dtype in which a parameter is updated."""
    return jnp.promote_types(INPUTS[name][1], "float32")


def _state_shardings(mesh, tree, parameters):
    """Give the sharding of each array by a parameter's name: that of STATES, where it has its shape."""

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

        # The loss and the gradients of a step, against those of the reference.
        trained = {name: x for name, x in zip(INPUTS, inputs, strict=True) if name in STATES}
        rest = {name: x for name, x in zip(INPUTS, inputs, strict=True) if name in BATCH}
        batches = [rest, {name: jnp.roll(x, 1, -1) if x.ndim else x for name, x in rest.items()}]

        def mean_loss(parameters):
            losses = [
                reference(*({**parameters, **each}[name] for name in INPUTS))[@loss@]
                for each in batches[:@count@]
            ]
            return jnp.mean(jnp.stack(losses))

        data = @batch@
        batches = [{name: _wide(x) for name, x in each.items()} for each in batches]
        wide = {name: _wide(x) for name, x in trained.items()}
        loss, wanted = jax.value_and_grad(mean_loss)(wide)
        got, gradients = jax.jit(loss_and_gradients, static_argnums=0)(mesh, trained, data)
        good.append(_compare("loss of a step", got, loss))
        for name, x in gradients.items():
            good.append(_compare(f"gradient of {name} in a step", x, wanted[name]))
"""
"""What the module's own check adds for a training step."""
