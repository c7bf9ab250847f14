"""The parts of a pipelined module that are the same in each: `@name@` marks what is filled in."""

from __future__ import annotations

TICKS = '''
KINDS = ("idle", "F", "BW")  # what a stage does in a tick
IDLE, FORWARD, BACKWARD = range(3)


@orders@


def _ticks(orders):
    """Lay out what each stage does: one piece of work a tick, as soon as what it needs is there.

    A piece is (kind, microbatch, part): the layers are in parts, which lie on the stages in turn.
    """
    stages = len(orders)
    waiting = [
        [(kind, i, chunk * stages + stage) for kind, i, chunk in order]
        for stage, order in enumerate(orders)
    ]
    wanted, done, ticks = {piece for order in waiting for piece in order}, set(), []
    while any(waiting):
        ready = [bool(order) and _needs(*order[0]) & wanted <= done for order in waiting]
        pairs = zip(ready, waiting, strict=True)
        ticks.append([order.pop(0) if now else ("idle", 0, 0) for now, order in pairs])
        done.update(ticks[-1])
    return ticks


def _needs(kind, i, part):
    """Say what has to be done before a piece of work."""
    if kind == "F":
        return {("F", i, part - 1)}
    return {("F", i, part), ("BW", i, part + 1)}


def _table(ticks):
    """Say what each stage does in each tick, and which slots it reads and puts things into.

    Gives arrays [tick, stage], and how many slots there are: of what a stage keeps of a microbatch
    until its backward (`kept`; of the lines behind the layers, `ends`), and of what is sent to it
    (`got`) and sent back (`got_back`). A slot of -1 is none.
    """
    shape = len(ticks), len(ticks[0])
    when = {piece: t for t, tick in enumerate(ticks) for piece in tick if piece[0] != "idle"}
    last = max(part for _, _, part in when)
    # What lives in slots: the ticks in which it is put and read, and the stage.
    lives = {"kept": [], "ends": [], "got": [], "got_back": []}
    for (kind, i, part), t in when.items():
        stage = part % shape[1]
        if kind == "F":
            life = t, when["BW", i, part], stage
            lives["kept"].append(life)
            lives["ends"] += [life] if part == last else []
            lives["got"] += [(when["F", i, part - 1], t, stage)] if part else []
        elif part < last:
            lives["got_back"].append((when["BW", i, part + 1], t, stage))
    put, read = ({name: np.full(shape, -1, np.int32) for name in lives} for _ in range(2))
    room = {}
    for name, rows in lives.items():
        slots, room[name] = _slots(rows)
        for (begin, end, stage), slot in slots.items():
            put[name][begin, stage] = read[name][end, stage] = slot
    kinds, i, part = (np.array([[x[n] for x in tick] for tick in ticks]) for n in range(3))
    what = np.select([kinds == kind for kind in KINDS], range(3)).astype(np.int32)
    own = {"i": i.astype(np.int32), "c": (part // shape[1]).astype(np.int32)}
    own |= {"what": what, "first": part == 0, "last": part == last}
    return {**own, "put": put, "read": read}, room


def _slots(lives):
    """Give each thing that is put somewhere and read later a slot on its stage, and count the slots.

    A slot that is read in a tick is free for what is put in that tick or later.
    """
    slots, ends = {}, {}
    for begin, end, stage in sorted(lives):
        used = ends.setdefault(stage, [])
        slot = next((n for n, free in enumerate(used) if free <= begin), len(used))
        used[slot : slot + 1] = [end]
        slots[begin, end, stage] = slot
    return slots, max(map(len, ends.values()), default=0)


def _phases(table):
    """Cut the ticks in two where all forwards are before all backwards."""
    backward = np.argmax((table["what"] == BACKWARD).any(axis=1))
    cuts = [0, int(backward), len(table["what"])]
    if (table["what"][backward:] == FORWARD).any():
        cuts = [0, len(table["what"])]
    pairs = zip(cuts, cuts[1:], strict=False)
    return [jax.tree.map(lambda x, a=a, b=b: x[a:b], table) for a, b in pairs]


def _apart(stages, count):
    """Give the ticks of all forwards, those of all backwards behind them, and the slots of both."""
    orders, ticks = _orders(stages, count@chunks_too@), []
    for kind in ("F", "BW"):
        ticks += _ticks([[piece for piece in order if piece[0] == kind] for order in orders])
    table, room = _table(ticks)
    return *_phases(table), room
'''
"""The order of the work."""

STAGES = '''
def _either(here, own, sent):
    """Take what a stage makes itself where `here`, else what was sent to it."""
    if sent is None:
        return own
    return tuple(jnp.where(here, x, y) for x, y in zip(own, sent, strict=True))


def _take(x, *at):
    """Take the part of an array at places along its first dims."""
    rest = x.shape[len(at) :]
    starts, sizes = (*at, *[0] * len(rest)), (*[1] * len(at), *rest)
    return lax.dynamic_slice(x, starts, sizes).reshape(rest) if at else x


def _put(x, value, *at, here=True):
    """Put a value at places along an array's first dims, where `here`."""
    if here is not True:
        value = jnp.where(here, value, _take(x, *at))
    starts = (*at, *[0] * value.ndim)
    value = jnp.expand_dims(value, range(len(at)))
    return lax.dynamic_update_slice(x, value, starts) if at else value


def _of(arrays, fronts, at):
    """Take the parts of arrays that a piece of work is about; `fronts` say what first dims count."""
    return tuple(_take(x, *(at[k] for k in front)) for x, front in zip(arrays, fronts, strict=True))


def _slot(arrays, slot):
    """Take what is in a slot of each array."""
    return tuple(_take(x, slot) for x in arrays)


def _store(arrays, values, slot):
    """Put values into a slot of arrays, if there is one for them."""
    pairs = zip(arrays, values, strict=True)
    return tuple(_put(x, value, slot, here=slot >= 0) for x, value in pairs)


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


def _go(table, state, forward, backward):
    """Go through ticks: a stage does its work, and what it has made goes to its neighbours.

    Which work it is depends on the stage alone: devices that communicate within a stage agree.
    """
    stage, stages = lax.axis_index(@axes@), lax.axis_size(@axes@)
    kinds = set(table["what"].flat)
    places = @places@
    onward = [(places[i], places[@next@]) for i in range(@senders@)]

    def tick(state, work):
        at = jax.tree.map(lambda x: x[stage], work)
        works = [lambda state, _: state] * 3
        works[FORWARD] = forward if FORWARD in kinds else works[IDLE]
        works[BACKWARD] = backward if BACKWARD in kinds else works[IDLE]
        state = lax.switch(at["what"], works, state, at)
        if FORWARD in kinds:
@forward_notes@
            sent = [lax.ppermute(x, @moving@, onward) for x in state["handed"]]
            state = state | {"got": _store(state["got"], sent, at["put"]["got"])}
@send_back@
        return state, None

    return lax.scan(tick, state, jax.tree.map(jnp.asarray, table))[0]


def _start(inputs, count, room@sizes_parameter@):
    """Make room for what the forward passes of `count` microbatches give."""
    step = functools.partial(_forward_steps, sent=None, first=True, last=True@pass_sizes_named@)
    outputs, saved, handed = jax.eval_shape(lambda x: step(_of(x, FRONT, FIRST)), inputs)
    many = {"i": count, "c": @chunks@}
    pairs = zip(outputs, OUTPUTS_FRONT, strict=True)
    return {
        "outputs": tuple(_room([x], *(many[k] for k in front))[0] for x, front in pairs),
        "saved": tuple(_room([x], room[k])[0] for x, k in zip(saved, KEPT, strict=True)),
        "handed": _room(handed),
        "got": _room(handed, room["got"]),
    }


def _forward_work(inputs@sizes_parameter@):
    """Give the forward pass of a microbatch as a stage does it."""

    def work(state, at):
        sent = _slot(state["got"], at["read"]["got"])
        own = _of(inputs, FRONT, at)
        outputs, saved, handed = _forward_steps(own, sent, at["first"], at["last"]@pass_sizes@)
        rows = zip(state["outputs"], outputs, OUTPUTS_FRONT, strict=True)
        outputs = tuple(_put(x, value, *(at[k] for k in front)) for x, value, front in rows)
        rows = zip(state["saved"], saved, KEPT, strict=True)
        here = {"kept": True, "ends": at["last"]}
        saved = tuple(_put(x, value, at["put"][k], here=here[k]) for x, value, k in rows)
        return state | {"outputs": outputs, "saved": saved, "handed": handed}

    return work


def _forward_all(inputs@sizes_parameter@):
    """Run the forward pass of all microbatches on one device: outputs, and what backward reads."""
    count = @count@
    ticks, _, room = _apart(lax.axis_size(@axes@), count)
    state = _start(inputs, count, room@pass_sizes@)
    state = _go(ticks, state, _forward_work(inputs@pass_sizes@), None)
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
            state = state | {"got_back": _store(state["got_back"], sent, at["put"]["got_back"])}
"""
"""What a tick sends against the way of the microbatches."""

BACK = '''
def _start_back(leaves, saved, cotangents, room@sizes_parameter@):
    """Make room for gradients: sums, but for what each microbatch or chunk has its own of."""
    step = functools.partial(_backward_steps, sent=None, first=True, last=True@pass_sizes_named@)

    def work(leaves, saved, cotangents):
        seeds = _of(cotangents, SEEDS_FRONT, FIRST)
        return step(_of(leaves, [FRONT[i] for i in LEAVES], FIRST), _slot(saved, 0), seeds)

    gradients, handed = jax.eval_shape(work, leaves, saved, cotangents)
    many = {"i": cotangents[0].shape[0], "c": @chunks@}
    return {
        "gradients": tuple(
            jnp.zeros((*(many[k] for k in front), *x.shape), _summed(x))
            for x, front in zip(gradients, FRONT, strict=True)
        ),
        "handed_back": _room(handed),
        "got_back": _room(handed, room["got_back"]),
    }


def _backward_work(leaves, cotangents@sizes_parameter@):
    """Give the backward pass of a microbatch as a stage does it."""

    def add(total, x, *at):
        return _put(total, _take(total, *at) + x.astype(total.dtype), *at)

    def work(state, at):
        kept = tuple(_take(x, at["read"][k]) for x, k in zip(state["saved"], KEPT, strict=True))
        sent = _slot(state["got_back"], at["read"]["got_back"])
        own = _of(leaves, [FRONT[i] for i in LEAVES], at)
        seeds = _of(cotangents, SEEDS_FRONT, at)
        gradients, handed = _backward_steps(own, kept, seeds, sent, at["first"], at["last"]@pass_sizes@)
        rows = zip(state["gradients"], gradients, FRONT, strict=True)
        totals = tuple(add(total, x, *(at[k] for k in front)) for total, x, front in rows)
        return state | {"gradients": totals, "handed_back": handed}

    return work


def _backward_all(leaves, saved, cotangents@sizes_parameter@):
    """Run the backward pass of all microbatches on one device: the gradients in the order of INPUTS."""
    saved = tuple(x[0] for x in saved)
    _, ticks, room = _apart(lax.axis_size(@axes@), cotangents[0].shape[0])
    state = {"saved": saved} | _start_back(leaves, saved, cotangents, room@pass_sizes@)
    state = _go(ticks, state, None, _backward_work(leaves, cotangents@pass_sizes@))
    return _rounded(_over_stages(state["gradients"], SUMMED))


def _rounded(gradients):
    """Bring the sums of gradients to the dtypes of their inputs."""
    dtypes = [dtype for _, dtype, _ in INPUTS.values()]
    return tuple(x.astype(dtype) for x, dtype in zip(gradients, dtypes, strict=True))


def _both_ways(inputs, cotangents@sizes_parameter@):
    """Run both passes of all microbatches in the schedule's order: outputs, and wide sums of gradients."""
    count = cotangents[0].shape[0]
    table, room = _table(_ticks(_orders(lax.axis_size(@axes@), count@chunks_too@)))
    leaves = tuple(inputs[i] for i in LEAVES)
    state = _start(inputs, count, room@pass_sizes@)
    state |= _start_back(leaves, state["saved"], cotangents, room@pass_sizes@)
    works = (
        _forward_work(inputs@pass_sizes@),
        _backward_work(leaves, cotangents@pass_sizes@),
    )
    for ticks in _phases(table):
        state = _go(ticks, state, *works)
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
