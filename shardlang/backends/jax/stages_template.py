"""The parts of a pipelined module that are the same in each: `@name@` marks what is filled in."""

from __future__ import annotations

from collections.abc import Mapping

ORDERS: Mapping[str, str] = {
    "gpipe": '''
def _phases(stages, count):
    """Say what is done in which tick: all forwards, then all backwards."""
    kinds = (FORWARD, BACKWARD)
    return [_ticks([[(kind, i) for i in range(count)]] * stages) for kind in kinds]
''',
    "1f1b": '''
def _phases(stages, count):
    """Say what is done in which tick: one forward a stage left, then a backward and a forward in turn."""
    orders = []
    for stage in range(stages):
        first = min(stages - stage, count)
        order = [(FORWARD, i) for i in range(first)]
        for i in range(count):
            order += [(BACKWARD, i), (FORWARD, first + i)]
        orders.append([(what, i) for what, i in order if i < count])
    return [_ticks(orders)]
''',
}
"""How the work of a step is ordered, by the schedules that can be emitted: those of one chunk, where dX and dW are one."""

TICKS = '''
IDLE, FORWARD, BACKWARD = range(3)  # what a stage does in a tick


def _ticks(orders):
    """Lay out what each stage does, one piece of work a tick, each as soon as what it needs is there.

    Gives an array [tick, stage, (what, microbatch)].
    """
    wanted = {(stage, work) for stage, order in enumerate(orders) for work in order}
    done, ticks, waiting = set(), [], [list(order) for order in orders]
    while any(waiting):
        tick = [(IDLE, 0)] * len(orders)
        for stage, order in enumerate(waiting):
            what, i = order[0] if order else (IDLE, 0)
            needs = {(stage - 1, (FORWARD, i))}
            if what == BACKWARD:
                needs = {(stage, (FORWARD, i)), (stage + 1, (BACKWARD, i))}
            if order and needs & wanted <= done:
                tick[stage] = order.pop(0)
        done |= set(enumerate(tick))
        ticks.append(tick)
    return np.array(ticks, np.int32)


@phases@
'''
"""The order of the work."""

STAGES = '''
def _slots(ticks):
    """Say for how many microbatches a stage has room, from what is sent to it to its own backward."""
    made, done = (np.cumsum(ticks[..., 0] == what, axis=0) for what in (FORWARD, BACKWARD))
    return int(np.max(made[:, [0, *range(made.shape[1] - 1)]] - done))


def _either(here, own, sent):
    """Take what a stage makes itself where `here`, else what was sent to it."""
    if sent is None:
        return own
    return tuple(jnp.where(here, x, y) for x, y in zip(own, sent, strict=True))


def _microbatch(arrays, batched, i):
    """Take a microbatch's part of those arrays that have one, which is their first dim."""
    pairs = zip(arrays, batched, strict=True)
    return tuple(lax.dynamic_index_in_dim(x, i, keepdims=False) if own else x for x, own in pairs)


def _put(arrays, values, i, here=True):
    """Put values at a place of arrays, where `here`."""
    at = functools.partial(lax.dynamic_index_in_dim, index=i, keepdims=False)
    return tuple(
        lax.dynamic_update_index_in_dim(x, jnp.where(here, y, at(x)), i, 0)
        for x, y in zip(arrays, values, strict=True)
    )


def _room(values, *front):
    """Make zeros for values, with some dims in front."""
    return tuple(jnp.zeros((*front, *x.shape), x.dtype) for x in values)


def _summed(x):
    """Give the dtype in which gradients are added up over microbatches and stages."""
    floats = jnp.issubdtype(x.dtype, jnp.floating)
    return jnp.promote_types(x.dtype, "float32") if floats else x.dtype


def _over_stages(arrays, summed):
    """Add up over the stages those arrays that are to be."""
    pairs = zip(arrays, summed, strict=True)
    return tuple(lax.psum(x, @axes@).astype(x.dtype) if every else x for x, every in pairs)


def _go(ticks, slots, state, forward, backward):
    """Go through ticks: a stage does its work, and what it has made goes to its neighbours.

    What arrives, and what is kept of a microbatch until its backward, has its place among the slots.
    Which work it is depends on the stage alone: devices that communicate within a stage agree.
    """
    stage, stages = lax.axis_index(@axes@), lax.axis_size(@axes@)
    kinds = set(ticks[..., 0].flat)
    places = @places@
    onward = [(places[i], places[i + 1]) for i in range(stages - 1)]

    def tick(state, work):
        works = [lambda state, _: state] * 3
        works[FORWARD] = forward if FORWARD in kinds else works[IDLE]
        works[BACKWARD] = backward if BACKWARD in kinds else works[IDLE]
        state = lax.switch(work[stage, 0], works, state, work[stage, 1])
        if FORWARD in kinds:
@forward_notes@
            sent = [lax.ppermute(x, @moving@, onward) for x in state["handed"]]
            what, i = work[stage - 1]
            state = state | {"got": _put(state["got"], sent, i % slots, what == FORWARD)}
@send_back@
        return state, None

    return lax.scan(tick, state, jnp.asarray(ticks))[0]


def _start(inputs, count, slots@sizes_parameter@):
    """Make room for what the forward passes of `count` microbatches give."""
    step = functools.partial(_forward_steps, sent=None@pass_sizes_named@)
    outputs, saved, handed = jax.eval_shape(step, jax.eval_shape(_first, inputs))
    return {
        "outputs": _room(outputs, count),
        "saved": _room(saved, slots),
        "handed": _room(handed),
        "got": _room(handed, slots),
    }


def _first(inputs):
    """Take the first microbatch."""
    return _microbatch(inputs, BATCHED, 0)


def _forward_work(inputs, slots@sizes_parameter@):
    """Give the forward pass of a microbatch as a stage does it."""

    def work(state, i):
        sent = _microbatch(state["got"], [True] * len(state["got"]), i % slots)
        own = _microbatch(inputs, BATCHED, i)
        outputs, saved, handed = _forward_steps(own, sent@pass_sizes@)
        return state | {
            "outputs": _put(state["outputs"], outputs, i),
            "saved": _put(state["saved"], saved, i % slots),
            "handed": handed,
        }

    return work


def _forward_all(inputs@sizes_parameter@):
    """Run the forward pass of all microbatches on one device: outputs, and what backward reads."""
    count, stages = @count@, lax.axis_size(@axes@)
    ticks = _ticks([[(FORWARD, i) for i in range(count)]] * stages)
    state = _start(inputs, count, count@pass_sizes@)
    state = _go(ticks, count, state, _forward_work(inputs, count@pass_sizes@), None)
    return _last_outputs(state), tuple(x[None] for x in state["saved"])


def _last_outputs(state):
    """Give the outputs of the last stage to all; those of each stage stay there."""
    last = lax.axis_index(@axes@) == lax.axis_size(@axes@) - 1
    pairs = zip(state["outputs"], LAST, strict=True)
    chosen = (jnp.where(last, x, jnp.zeros_like(x)) if own else x for x, own in pairs)
    return _over_stages(tuple(chosen), LAST)
'''
"""The ticks, and the forward pass."""

SEND_BACK = """
        if BACKWARD in kinds:
@backward_notes@
            moves = [(after, before) for before, after in onward]
            sent = [lax.ppermute(x, @moving@, moves) for x in state["handed_back"]]
            what, i = work[(stage + 1) % stages]
            state = state | {"got_back": _put(state["got_back"], sent, i % slots, what == BACKWARD)}
"""
"""What a tick sends against the way of the microbatches."""

BACK = '''
def _start_back(leaves, saved, cotangents, slots@sizes_parameter@):
    """Make room for gradients: sums, but for those of what each microbatch has its own of."""
    batched = [BATCHED[i] for i in LEAVES]
    first = jax.eval_shape(lambda x: _microbatch(x, batched, 0), leaves)
    kept, seeds = (
        jax.eval_shape(lambda values: _microbatch(values, [True] * len(values), 0), x)
        for x in (saved, cotangents)
    )
    step = functools.partial(_backward_steps, sent=None@pass_sizes_named@)
    gradients, handed = jax.eval_shape(step, first, kept, seeds)
    count = cotangents[0].shape[0]
    return {
        "gradients": tuple(
            jnp.zeros((count, *x.shape) if own else x.shape, _summed(x))
            for x, own in zip(gradients, BATCHED, strict=True)
        ),
        "handed_back": _room(handed),
        "got_back": _room(handed, slots),
    }


def _backward_work(leaves, cotangents, slots@sizes_parameter@):
    """Give the backward pass of a microbatch as a stage does it."""
    batched = [BATCHED[i] for i in LEAVES]

    def work(state, i):
        kept, sent = (
            _microbatch(state[x], [True] * len(state[x]), i % slots) for x in ("saved", "got_back")
        )
        own = _microbatch(leaves, batched, i)
        seeds = _microbatch(cotangents, [True] * len(cotangents), i)
        gradients, handed = _backward_steps(own, kept, seeds, sent@pass_sizes@)
        totals = tuple(
            _put([total], [x.astype(total.dtype)], i)[0] if own else total + x.astype(total.dtype)
            for total, x, own in zip(state["gradients"], gradients, BATCHED, strict=True)
        )
        return state | {"gradients": totals, "handed_back": handed}

    return work


def _backward_all(leaves, saved, cotangents@sizes_parameter@):
    """Run the backward pass of all microbatches on one device: the gradients in the order of INPUTS."""
    count, stages = cotangents[0].shape[0], lax.axis_size(@axes@)
    saved = tuple(x[0] for x in saved)
    ticks = _ticks([[(BACKWARD, i) for i in range(count)]] * stages)
    state = {"saved": saved}
    state |= _start_back(leaves, saved, cotangents, count@pass_sizes@)
    work = _backward_work(leaves, cotangents, count@pass_sizes@)
    return _rounded(_over_stages(_go(ticks, count, state, None, work)["gradients"], SUMMED))


def _rounded(gradients):
    """Bring the sums of gradients to the dtypes of their inputs."""
    dtypes = [dtype for _, dtype, _ in INPUTS.values()]
    return tuple(x.astype(dtype) for x, dtype in zip(gradients, dtypes, strict=True))


def _both_ways(inputs, cotangents@sizes_parameter@):
    """Run both passes of all microbatches in the schedule's order: outputs, and wide sums of gradients."""
    count, stages = cotangents[0].shape[0], lax.axis_size(@axes@)
    phases = _phases(stages, count)
    slots = _slots(np.concatenate(phases))
    leaves = tuple(inputs[i] for i in LEAVES)
    state = _start(inputs, count, slots@pass_sizes@)
    state |= _start_back(leaves, state["saved"], cotangents, slots@pass_sizes@)
    works = (
        _forward_work(inputs, slots@pass_sizes@),
        _backward_work(leaves, cotangents, slots@pass_sizes@),
    )
    for ticks in phases:
        state = _go(ticks, slots, state, *works)
    return _last_outputs(state), _over_stages(state["gradients"], SUMMED)
'''
"""The backward pass, and both in the schedule's order."""

ONLY_IF = '''
def _only_if(here, function, values):
    """Run a function of values where `here`; elsewhere it gives zeros."""
    shapes = jax.eval_shape(function, values)
    return lax.cond(here, function, lambda _: _room(shapes), values)
'''
"""What keeps the lines behind the layers to the last stage."""
