"""Writes ring attention: blocks of keys and values go round by `lax.ppermute`, with a running softmax.

Half of each shard goes one way round and half the other, so that both directions of a ring are used; a shard
of an odd number of positions goes one way. Of n devices each sends n-1 times. In the backward pass the
sums of dk and dv follow their blocks: n-1 times as well, the last time home.

The running maximum, the sum and the result are in f32 (f64 for operands in f64). Where the mask leaves a position
no key at all, all keys count alike, as they do in softmax_S(where(mask, s, -inf)); its gradients are 0.
"""

from __future__ import annotations

from collections.abc import Mapping

from shardlang.backends.jax.compute import COMPARISONS, Scope
from shardlang.backends.jax.pretty import call, flat, Item, layout, parens
from shardlang.ir.ops import Coefficient, RingAttention
from shardlang.ir.plan import Step
from shardlang.ir.types import Dim


def attention(step: Step, names: list[str], targets: list[str], scope: Scope) -> list[str]:
    """Write ring attention as lines that assign `targets`: the result, and what it keeps."""
    op = step.op
    assert isinstance(op, RingAttention)
    q, k, v = (array.tensor.dims for array in step.inputs[op.query : op.query + 3])
    lse = (step.inputs[5] if op.back else op.kept[0]).tensor.dims
    scores = (*lse, op.dim)
    letters = scope.letters(tuple(dict.fromkeys((*scores, *op.summed))))
    given = (step.inputs[0] if op.back else step.output).tensor.dims
    terms = ("".join(letters[d] for d in dims) for dims in (q, k, v, scores, given))
    lines: list[str] = []
    operands = names
    mask: Item = "None"
    if op.relation is not None:
        operands, sides = names[:-2], list(zip(names[-2:], step.inputs[-2:], strict=True))
        codes: list[str] = []
        at = "None"
        for name, array in sides:
            (dim,) = array.tensor.dims
            if dim == op.dim:
                codes.append("at")
                at = name
                continue
            codes.append(_own(lines, name, step, dim, scores, scope))
        mask = parens(f"lambda at: {COMPARISONS[op.relation]}({', '.join(codes)})", at)
    axes = scope.axes(op.axes) if op.axes else "()"
    arguments: list[Item] = [*operands, axes, f'"{",".join(terms)}"']
    if op.scale != Coefficient():
        arguments.append(f"scale={_number(op.scale, scope)}")
    if op.relation is not None:
        arguments.append(f"mask={flat(mask)}")
    function = "_ring_attention_back" if op.back else "_ring_attention"
    lines += layout(f"{', '.join(targets)} = ", call(function, *arguments), 1)
    return lines


def _own(
    lines: list[str], name: str, step: Step, dim: Dim, scores: tuple[Dim, ...], scope: Scope
) -> str:
    """Write what a mask compares of the device's own positions, in the place of their dim."""
    op = step.op
    assert isinstance(op, RingAttention)
    axes = step.inputs[op.query].axes(dim)
    code = name
    if axes:
        lines += layout("asks = ", call("_own_shard", name, scope.axes(axes), "dim=0"), 1)
        code = "asks"
    behind = len(scores) - 1 - scores.index(dim)
    return f"{code}[:, {', '.join(['None'] * behind)}]"


def _number(scale: Coefficient, scope: Scope) -> str:
    """Write a factor."""
    value = scale.value
    text = str(value.numerator) if value.denominator == 1 else repr(float(value))
    above, below = scope.powers(scale)
    return "".join((*(f"{part} * " for part in above), text, *(f" / {part}" for part in below)))


HELPERS: Mapping[str, str] = {
    "_ring_attention": '''
def _ring_attention(q, k, v, axes, spec, scale=1, mask=None):
    """Attend to keys and values that go round `axes`; also give the log of the sum of exponentials.

    `spec` has the letters of q, k, v, the scores (the keys' positions last) and the result. `mask` is a
    function of the keys' positions, and these.
    """
    *_, scores, result = spec.split(",")
    most = total = made = None
    for _, _, start, (keys, values) in _rounds(k, v, axes, spec):
        s, _ = _scores(q, keys, start, spec, scale, mask)
        top = s.max(-1) if most is None else jnp.maximum(most, s.max(-1))
        p = jnp.exp(s - top[..., None])
        part = _times(p.astype(v.dtype), values, spec, (3, 2, 4))
        if most is None:
            total, made = p.sum(-1), part
        else:
            keep = jnp.exp(most - top)
            total = keep * total + p.sum(-1)
            made = jnp.einsum(f"{scores[:-1]},{result}->{result}", keep, made) + part
        most = top
    made = jnp.einsum(f"{scores[:-1]},{result}->{result}", 1 / total, made)
    return made.astype(q.dtype), most + jnp.log(total)
''',
    "_ring_attention_back": '''
def _ring_attention_back(do, q, k, v, o, lse, axes, spec, scale=1, mask=None):
    """Give dq, dk and dv of _ring_attention; sums of dk and dv go round with their blocks, and home."""
    _, keyed, valued, scores, result = spec.split(",")
    wide = [x.astype(lse.dtype) for x in (do, o)]
    delta = jnp.einsum(f"{result},{result}->{scores[:-1]}", *wide)
    dq, own, sums = 0, {}, {}
    for way, hop, start, (keys, values) in _rounds(k, v, axes, spec):
        s, seen = _scores(q, keys, start, spec, scale, mask)
        p = jnp.exp(s - lse[..., None])
        p = p if seen is None else jnp.where(seen, p, 0)
        ds = scale * p * (_times(do, values, spec, (4, 2, 3)) - delta[..., None])
        ds = ds.astype(q.dtype)
        dq = dq + _times(ds, keys, spec, (3, 1, 0))
        parts = _times(ds, q, spec, (3, 0, 1)), _times(p.astype(v.dtype), do, spec, (3, 4, 2))
        if hop == 0:
            own[way] = parts
            continue
        if way in sums:
            parts = [x + y for x, y in zip(sums[way], parts)]
        sums[way] = [_sent(x.astype(y.dtype), axes, way) for x, y in zip(parts, (k, v))]
    ends = []
    for place, letters in enumerate((keyed, valued)):
        halves = [own[way][place] + (sums[way][place] if sums else 0) for way in own]
        ends.append(jnp.concatenate(halves, axis=letters.index(scores[-1])))
    return dq.astype(q.dtype), ends[0].astype(k.dtype), ends[1].astype(v.dtype)
''',
    "_rounds": '''
def _rounds(k, v, axes, spec):
    """Let blocks of keys and values go round: by way and hop, from which position on each is, and both.

    Half of each shard goes one way, half the other, or all one way where there is no half.
    """
    n = lax.axis_size(axes) if axes else 1
    own = lax.axis_index(axes) if axes else 0
    _, keyed, valued, scores, _ = spec.split(",")
    dims = [letters.index(scores[-1]) for letters in (keyed, valued)]
    size = k.shape[dims[0]]
    ways = (1, -1) if n > 1 and size % 2 == 0 else (1,)
    half = size // len(ways)
    blocks = {
        way: [lax.slice_in_dim(x, i * half, (i + 1) * half, axis=d) for x, d in zip((k, v), dims)]
        for i, way in enumerate(ways)
    }
    for hop in range(n):
        for i, way in enumerate(ways):
            yield way, hop, (own - way * hop) % n * size + i * half, blocks[way]
            if hop < n - 1:
                blocks[way] = [_sent(x, axes, way) for x in blocks[way]]
''',
    "_scores": '''
def _scores(q, keys, start, spec, scale, mask):
    """Give the scores of a block of keys, and where they count; None is everywhere."""
    _, keyed, _, scores, _ = spec.split(",")
    s = scale * _times(q, keys, spec, (0, 1, 3))
    if mask is None:
        return s, None
    allowed, at = mask
    count = keys.shape[keyed.index(scores[-1])]
    seen = allowed(lax.dynamic_slice_in_dim(at, start, count))
    return jnp.where(seen, s, jnp.finfo(s.dtype).min), seen
''',
    "_times": '''
def _times(x, y, spec, places):
    """Multiply two operands, in f32 or wider; `places` say where `spec` has their letters and the result's."""
    one, other, result = (spec.split(",")[place] for place in places)
    wide = jnp.promote_types(jnp.promote_types(x.dtype, y.dtype), jnp.float32)
    return jnp.einsum(f"{one},{other}->{result}", x, y, preferred_element_type=wide)
''',
    "_sent": '''
def _sent(x, axes, way):
    """Send to the next device of a ring, or to the one before."""
    return lax.ppermute(x, axes, _neighbours(axes, way))
''',
}
"""What emitted attention calls, by name."""

PARTS = ("_rounds", "_scores", "_times", "_sent")
"""The helpers that both need."""


def helpers(code: str) -> list[str]:
    """Give the helpers that the attention in a piece of code needs, in the order of `HELPERS`."""
    called = {name for name in HELPERS if name not in PARTS and f" {name}(" in code}
    wanted = called.union(PARTS if called else ())
    return [text.strip("\n") for name, text in HELPERS.items() if name in wanted]
