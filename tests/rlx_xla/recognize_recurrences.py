"""Ways of writing recurrences of state-space models, linear attention and newer cells."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tests.rlx_xla.recognize_models import SCAN
from tests.rlx_xla.recognize_ways import Way

B, S, D, N = 2, 6, 4, 3
Pair = tuple[Any, Any]


def combine(left: Pair, right: Pair) -> Pair:
    """Two pieces of h = a h + b, one behind the other."""
    return left[0] * right[0], right[0] * left[1] + right[1]


def by_associative_scan(decay: Any, entering: Any, axis: int) -> Any:
    return lax.associative_scan(combine, (decay, entering), axis=axis)[1]


def by_doubling(decay: Any, entering: Any, axis: int) -> Any:
    """Every step takes the one before it, then two, four … before it."""
    moved = [jnp.moveaxis(v, axis, 0) for v in (decay, entering)]
    distance = 1
    while distance < moved[0].shape[0]:
        a, b = moved
        new = combine((a[:-distance], b[:-distance]), (a[distance:], b[distance:]))
        moved = [jnp.concatenate([old[:distance], v]) for old, v in zip((a, b), new, strict=True)]
        distance *= 2
    return jnp.moveaxis(moved[1], 0, axis)


def mamba(
    scan: Callable[[Any, Any, int], Any] = by_associative_scan,
    *,
    sum_of: Callable[[Any, Any], Any] = lambda h, c: jnp.einsum("bsdn,bsn->bsd", h, c),
    step: Callable[[Any], Any] = jax.nn.softplus,
    rate: Callable[[Any], Any] = lambda a: -jnp.exp(a),
) -> Callable[..., Any]:
    """The selective scan of Mamba by a tree of products.

    Args:
        scan: h = a h + b along an axis.
        sum_of: what is read of the states.
        step: of what is given for delta.
        rate: of what is given for a.
    """

    def function(x: Any, delta: Any, a: Any, b: Any, c: Any) -> Any:
        delta = step(delta)
        decay = jnp.exp(delta[..., None] * rate(a))
        entering = (delta * x)[..., None] * b[:, :, None, :]
        return sum_of(scan(decay, entering, 1), c)

    return function


def mamba_of_one(x: Any, delta: Any, a: Any, b: Any, c: Any) -> Any:
    """One sequence at a time, steps first."""

    def one(x: Any, delta: Any, b: Any, c: Any) -> Any:
        delta = jax.nn.softplus(delta)
        decay = jnp.exp(jnp.einsum("sd,dn->sdn", delta, -jnp.exp(a)))
        entering = jnp.einsum("sd,sn,sd->sdn", delta, b, x)
        return jnp.einsum("sdn,sn->sd", by_associative_scan(decay, entering, 0), c)

    return jax.vmap(one)(x, delta, b, c)


def by_sum(h: Any, c: Any) -> Any:
    return (h * c[:, :, None, :]).sum(-1)


def with_last_state(h: Any, c: Any) -> Any:
    return by_sum(h, c), h[:, -1]


def _sum_scan(decay: Any, entering: Any, axis: int) -> Any:
    """Not a recurrence: the state before is not multiplied."""

    def add(left: Pair, right: Pair) -> Pair:
        return left[0] * right[0], left[1] + right[1]

    return lax.associative_scan(add, (decay, entering), axis=axis)[1]


def _late_decay(decay: Any, entering: Any, axis: int) -> Any:
    """Not ours: what enters is decayed at once."""

    def late(left: Pair, right: Pair) -> Pair:
        return left[0] * right[0], right[0] * (left[1] + right[1])

    return lax.associative_scan(late, (decay, entering), axis=axis)[1]


def _linear(
    decay: Callable[..., Any], entering: Callable[..., Any], *, inside: bool = False
) -> Callable[..., Any]:
    """h = a h + b over x [S, B, D], of factors of x and weights, all at once or step by step."""

    def function(x: Any, *weights: Any) -> Any:
        def step(h: Any, now: Any) -> Any:
            a, b = (decay(now, *weights), entering(now, *weights)) if inside else now
            h = a * h + b
            return h, h

        given = x if inside else (decay(x, *weights), entering(x, *weights))
        width = jax.eval_shape(lambda: entering(x, *weights)).shape[1:]
        return lax.scan(step, jnp.zeros(width), given)[1]

    return function


def _gate(x: Any, w: Any, *_: Any) -> Any:
    return jax.nn.sigmoid(x @ w)


rg_lru = _linear(
    lambda x, w, lam: jnp.exp(-8 * jax.nn.softplus(lam) * _gate(x, w)),
    lambda x, w, lam: jnp.sqrt(1 - jnp.exp(-16 * jax.nn.softplus(lam) * _gate(x, w))) * x,
)
"""Griffin's real-gated linear recurrent unit."""

min_gru = _linear(lambda x, w, u: 1 - _gate(x, w), lambda x, w, u: _gate(x, w) * (x @ u))
min_gru_inside = _linear(
    lambda x, w, u: 1 - _gate(x, w), lambda x, w, u: _gate(x, w) * (x @ u), inside=True
)
min_lstm = _linear(
    lambda x, w, v, u: _gate(x, w) / (_gate(x, w) + _gate(x, v)),
    lambda x, w, v, u: _gate(x, v) / (_gate(x, w) + _gate(x, v)) * (x @ u),
)


def returns(rewards: Any, values: Any) -> Any:
    """Generalised advantage estimates, from the last step to the first."""

    def step(total: Any, now: Any) -> Any:
        reward, value, later = now
        total = reward + 0.99 * later - value + 0.94 * total
        return total, total

    start = jnp.zeros(rewards.shape[1:])
    return lax.scan(step, start, (rewards, values[:-1], values[1:]), reverse=True)[1]


def retention(q: Any, k: Any, v: Any) -> Any:
    gamma = 1 - 2.0 ** (-5 - jnp.arange(float(B)))

    def step(state: Any, now: Any) -> Any:
        q, k, v = now
        state = gamma[:, None, None] * state + jnp.einsum("hk,hv->hkv", k, v)
        return state, jnp.einsum("hkv,hk->hv", state, q)

    return lax.scan(step, jnp.zeros((B, D, D)), (q, k, v))[1]


def linear_attention(q: Any, k: Any, v: Any) -> Any:
    def step(state: Any, now: Any) -> Any:
        q, k, v = now
        state = state + k[..., None] * v[..., None, :]
        return state, jnp.einsum("hkv,hk->hv", state, q)

    return lax.scan(step, jnp.zeros((B, D, D)), (jnp.exp(q), jnp.exp(k), v))[1]


def wkv4(k: Any, v: Any, w: Any, u: Any) -> Any:
    """RWKV-4, with a running maximum."""

    def step(carry: Any, now: Any) -> Any:
        a, b, p = carry
        k, v = now
        top = jnp.maximum(p, u + k)
        old, new = jnp.exp(p - top), jnp.exp(u + k - top)
        y = (old * a + new * v) / (old * b + new)
        top = jnp.maximum(p - w, k)
        old, new = jnp.exp(p - w - top), jnp.exp(k - top)
        return (old * a + new * v, old * b + new, top), y

    zero = jnp.zeros(k.shape[1:])
    return lax.scan(step, (zero, zero, zero - 1e30), (k, v))[1]


def wkv6(r: Any, k: Any, v: Any, w: Any, u: Any) -> Any:
    """RWKV-6: decays of each channel, and a bonus for the step itself."""

    def step(state: Any, now: Any) -> Any:
        r, k, v, w = now
        pairs = k[..., None] * v[..., None, :]
        y = jnp.einsum("hkv,hk->hv", state + u[..., None] * pairs, r)
        return jnp.exp(-jnp.exp(w))[..., None] * state + pairs, y

    return lax.scan(step, jnp.zeros((B, D, D)), (r, k, v, w))[1]


def s_lstm(x: Any, w: Any, r: Any) -> Any:
    """The scalar cell of xLSTM, with exponential gates."""

    def step(carry: Any, now: Any) -> Any:
        c, n, h, m = carry
        z, i, f, o = jnp.split(now @ w + h @ r, 4, -1)
        top = jnp.maximum(f + m, i)
        i, f = jnp.exp(i - top), jnp.exp(f + m - top)
        c, n = f * c + i * jnp.tanh(z), f * n + i
        h = jax.nn.sigmoid(o) * c / n
        return (c, n, h, top), h

    zero = jnp.zeros((x.shape[1], D))
    return lax.scan(step, (zero, zero + 1, zero, zero), x)[1]


def peepholes(x: Any, w: Any, u: Any, p: Any) -> Any:
    def step(carry: Any, now: Any) -> Any:
        h, c = carry
        i, f, g, o = jnp.split(now @ w + h @ u, 4, -1)
        i, f = jax.nn.sigmoid(i + p[0] * c), jax.nn.sigmoid(f + p[1] * c)
        c = f * c + i * jnp.tanh(g)
        h = jax.nn.sigmoid(o + p[2] * c) * jnp.tanh(c)
        return (h, c), h

    zero = jnp.zeros((x.shape[1], D))
    return lax.scan(step, (zero, zero), x)[1]


def normalised(x: Any, w: Any, u: Any) -> Any:
    """An LSTM whose sums are normalised."""

    def norm(sums: Any) -> Any:
        mean = sums.mean(-1, keepdims=True)
        return (sums - mean) * lax.rsqrt(sums.var(-1, keepdims=True) + 1e-5)

    def step(carry: Any, now: Any) -> Any:
        h, c = carry
        i, f, g, o = jnp.split(norm(now @ w + h @ u), 4, -1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    zero = jnp.zeros((x.shape[1], D))
    return lax.scan(step, (zero, zero), x)[1]


def s4d(u: Any, log_rate: Any, frequency: Any, c: Any, step_size: Any) -> Any:
    """Diagonal, complex and the same in all steps."""
    rate = -jnp.exp(log_rate) + 1j * frequency
    decay = jnp.exp(rate * jnp.exp(step_size)[:, None])
    gain = (decay - 1) / rate

    def step(h: Any, now: Any) -> Any:
        h = decay * h + gain * now[:, :, None]
        return h, 2 * jnp.real((c * h).sum(-1))

    return lax.scan(step, jnp.zeros((u.shape[1], *decay.shape), decay.dtype), u)[1]


X, SQUARE = (S, B, D), (D, D)
FOUND = {"selective_scan": 1, "softplus": 1}
ELEMENTS = "h = a · h + b by elements: selective_scan is exp(delta · a) · h + delta · b · x"
OUTER = "k ⊗ v is added to its state, and nothing that the state already gives for k is taken back"
TOP = "a sum of exponentials below a running maximum: no op of ours carries one along a sequence"
NOT_EXP = "what decays its state or enters it is not exp(delta · a) and delta · b · x"
WAYS = [
    Way("mamba by associative_scan", mamba(), SCAN, FOUND, hostile=False, trees=True),
    Way("mamba by associative_scan, sums", mamba(sum_of=by_sum), SCAN, FOUND,
        hostile=False, trees=True),
    Way("mamba by associative_scan, einsum, each sequence", mamba_of_one, SCAN, FOUND,
        hostile=False, trees=True),
    Way("mamba by doubling", mamba(by_doubling), SCAN, FOUND, hostile=False, trees=True),
    Way("mamba by associative_scan of other sizes", mamba(step=jax.nn.sigmoid), (
        (1, 11, D), (1, 11, D), (D, N), (1, 11, N), (1, 11, N)), {"selective_scan": 1},
        hostile=False, trees=True),
    Way("mamba by associative_scan, bf16", mamba(step=jnp.abs), SCAN, {"selective_scan": 1},
        dtype=jnp.bfloat16, hostile=False, trees=True),
    Way("mamba by associative_scan, x64", mamba(), SCAN, FOUND, x64=True, dtype=jnp.float64,
        hostile=False, trees=True),
]  # fmt: skip

LOOKALIKES = [
    Way("mamba by associative_scan, unasked", mamba(), SCAN, {"softplus": 1}, misses=(
        "its tree of products makes NaN where decays vanish beside an Inf, which steps keep; "
        "FusionOptions(scan_trees=True) takes it",)),
    Way("mamba, last state", mamba(sum_of=with_last_state), SCAN, {"softplus": 1},
        misses=("the states of its tree of products are read besides",)),
    Way("mamba of any decay", mamba(rate=lambda a: a), SCAN, {"softplus": 1}, misses=(
        "its tree of products multiplies decays that are not known to be at most 1, which give "
        "another Inf and NaN than steps do",)),
    Way("mamba of other decays", lambda x, d, a, b, c: mamba()(x, d, a, b, c) + by_sum(
        by_associative_scan(jax.nn.sigmoid(d[..., None] * a), x[..., None] * b[:, :, None], 1), c),
        SCAN, FOUND, misses=(NOT_EXP,), trees=True),
    Way("a tree of sums", mamba(_sum_scan), SCAN, {"softplus": 1}),
    Way("a tree that decays what enters", mamba(_late_decay), SCAN, {"softplus": 1}),
    Way("rg-lru", rg_lru, (X, SQUARE, (D,)), {"softplus": 1}, misses=(ELEMENTS,)),
    Way("minGRU", min_gru, (X, SQUARE, SQUARE), {}, misses=(ELEMENTS,)),
    Way("minGRU, products inside", min_gru_inside, (X, SQUARE, SQUARE), {}, misses=(ELEMENTS,)),
    Way("minLSTM", min_lstm, (X, SQUARE, SQUARE, SQUARE), {}, misses=(ELEMENTS,)),
    Way("estimates of advantages", returns, ((S, B), (S + 1, B)), {}, misses=(ELEMENTS,)),
    Way("retention", retention, (X, X, X), {}, misses=(OUTER,)),
    Way("linear attention by steps", linear_attention, (X, X, X), {}, misses=(OUTER,)),
    Way("RWKV-4", wkv4, (X, X, (D,), (D,)), {}, misses=(TOP,)),
    Way("RWKV-6", wkv6, (X, X, X, X, (B, D)), {}, misses=(OUTER,)),
    Way("the scalar cell of xLSTM", s_lstm, (X, (D, 4 * D), (D, 4 * D)), {},
        misses=("its loop carries 4 values, and one cell carries one or two",)),
    Way("an lstm with peepholes", peepholes, (X, (D, 4 * D), (D, 4 * D), (3, D)), {}, misses=(
        "a gate reads a cell's state by elements (a peephole), which the op does not",)),
    Way("an lstm of normalised sums", normalised, (X, (D, 4 * D), (D, 4 * D)), {"layer_norm": 1},
        misses=("its gates are normalised in each step, and those of the op are sums",)),
    Way("S4D", s4d, (X, (D, N), (D, N), (D, N), (D,)), {},
        misses=("its state is c64; selective_scan decays real states",)),
]  # fmt: skip
