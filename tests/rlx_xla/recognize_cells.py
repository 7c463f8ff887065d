"""Ways of writing recurrent cells in a loop: by hand, in one piece, backwards, for one sequence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import haiku as hk
import jax
import jax.numpy as jnp
from jax import lax

from tests.rlx_xla.recognize_layers import GRU, KEY, SEQUENCE, gru
from tests.rlx_xla.recognize_models import CELL
from tests.rlx_xla.recognize_ways import Way

H = 4


def _cell(i: Any, f: Any, g: Any, o: Any, c: Any) -> Any:
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(c), c


def lstm(
    sums: Callable[..., Any], *, order: str = "ifgo", before: Callable[..., Any] | None = None,
    reverse: bool = False, shown: bool = True,
) -> Callable[..., Any]:  # fmt: skip
    """An LSTM of x [S, B, I] or [S, I], of which the sums of the gates are written in some way."""

    def function(x: Any, *weights: Any) -> Any:
        start = jnp.zeros((*x.shape[1:-1], H))

        def step(carry: Any, now: Any) -> Any:
            h, c = carry
            gates = dict(zip(order, jnp.split(sums(now, h, *weights), 4, -1), strict=True))
            h, c = _cell(**gates, c=c)
            return (h, c), h if shown else None

        rows = x if before is None else before(x, *weights)
        (h, _), y = lax.scan(step, (start, start), rows, reverse=reverse)
        return y if shown else h

    return function


def plain(now: Any, h: Any, w: Any, u: Any, b: Any) -> Any:
    return now @ w + h @ u + b


def side_by_side(now: Any, h: Any, w: Any, u: Any, b: Any) -> Any:
    return jnp.concatenate([now, h], -1) @ jnp.concatenate([w, u], 0) + b


def parts_of_one(now: Any, h: Any, w: Any, b: Any) -> Any:
    return now @ w[:3] + h @ w[3:] + b


def turned(now: Any, h: Any, w: Any, u: Any, b: Any) -> Any:
    return w.T @ now + u.T @ h + b


def state_only(now: Any, h: Any, w: Any, u: Any, b: Any) -> Any:
    del w, b
    return now + h @ u


def more_bias(now: Any, h: Any, w: Any, u: Any, b: Any) -> Any:
    return state_only(now, h, w, u, b) + b + 1


def batch_first(x: Any, w: Any, u: Any, b: Any) -> Any:
    """Products of [B, S, I], which the loop reads by steps."""
    del u
    return jnp.swapaxes(jnp.swapaxes(x, 0, 1) @ w + b, 0, 1)


def separate(x: Any, *weights: Any) -> Any:
    def step(carry: Any, now: Any) -> Any:
        h, c = carry
        sums = (now @ weights[n] + h @ weights[4 + n] for n in range(4))
        h, c = _cell(*sums, c)
        return (h, c), h

    start = jnp.zeros((x.shape[1], H))
    return lax.scan(step, (start, start), x)[1]


def _last(cell: Any, states: int) -> Callable[..., Any]:
    """The last state of one sequence, as a classifier reads it."""

    def function(x: Any) -> Any:
        start = jnp.zeros(H)
        start = (start, start) if states == 2 else start
        last, _ = lax.scan(lambda carry, now: (cell(now, carry), None), start, x)
        return last[0] if states == 2 else last

    return function


def _unrolled(make: Callable[[], Any], **options: Any) -> Callable[..., Any]:
    def apply(x: Any) -> Any:
        core = make()
        return hk.dynamic_unroll(core, x, core.initial_state(x.shape[1]), **options)

    transformed = hk.transform(apply)
    params = transformed.init(KEY, jnp.ones(CELL[0]))
    return lambda x: transformed.apply(params, None, x)


def swapped(z: Any, n: Any, h: Any) -> Any:
    return z * n + (1 - z) * h


def other_order(x: Any, w: Any, u: Any, b: Any, c: Any) -> Any:
    """Gates z, r and n."""

    def step(h: Any, now: Any) -> Any:
        (z, r, n), (t, s, m) = jnp.split(now @ w + b, 3, -1), jnp.split(h @ u + c, 3, -1)
        n = jnp.tanh(n + jax.nn.sigmoid(r + s) * m)
        z = jax.nn.sigmoid(z + t)
        h = z * h + (1 - z) * n
        return h, h

    return lax.scan(step, jnp.zeros((x.shape[1], H)), x)


def swapped_from(x: Any, w: Any, u: Any, h: Any) -> Any:
    """A GRU of swapped gates whose first state is given."""

    def step(h: Any, now: Any) -> Any:
        (r, z, n), (s, t, m) = jnp.split(now @ w, 3, -1), jnp.split(h @ u, 3, -1)
        n = jnp.tanh(n + jax.nn.sigmoid(r + s) * m)
        h = swapped(jax.nn.sigmoid(z + t), n, h)
        return h, h

    return lax.scan(step, h, x)[1]


def by_numbers(x: Any, w: Any, u: Any, b: Any) -> Any:
    """A loop over numbers of steps."""
    start = jnp.zeros((x.shape[1], H))

    def step(t: Any, carry: Any) -> Any:
        h, c = carry
        return _cell(*jnp.split(plain(x[t], h, w, u, b), 4, -1), c)

    return lax.fori_loop(0, x.shape[0], step, (start, start))[0]


def rnn(activation: Callable[[Any], Any]) -> Callable[..., Any]:
    def function(x: Any, *weights: Any) -> Any:
        def step(h: Any, now: Any) -> Any:
            h = activation(plain(now, h, *weights))
            return h, h

        return lax.scan(step, jnp.zeros((x.shape[1], H)), x)[1]

    return function


def read_out(x: Any, w: Any, u: Any, b: Any) -> Any:
    """A network that multiplies its state once more for what it returns."""

    def step(h: Any, now: Any) -> Any:
        h = jnp.tanh(now @ w + h @ u + b)
        return h, h @ u

    return lax.scan(step, jnp.zeros((x.shape[1], H)), x)[1]


def two_arrays(x: Any, y: Any, w: Any, u: Any) -> Any:
    def step(h: Any, now: Any) -> Any:
        h = jnp.tanh(now[0] @ w + now[1] @ w + h @ u)
        return h, h

    return lax.scan(step, jnp.zeros((x.shape[1], H)), (x, y))[1]


def training(x: Any, w: Any) -> Any:
    """Steps of gradient descent, which carry weights and no state."""
    loss = lambda w, x: (jnp.tanh(x @ w) ** 2).sum()  # noqa: E731
    return lax.scan(lambda w, _: (w - 0.1 * jax.grad(loss)(w, x), None), w, None, length=3)[0]


def _stacked() -> Callable[..., Any]:
    return _unrolled(lambda: hk.DeepRNN([hk.LSTM(H), hk.LSTM(H)]))


ONE = (CELL[0][::2], *CELL[1:])
RNN = (CELL[0], (3, H), (H, H), (H,))
LSTM = {"lstm": 1}
WAYS = [
    Way("lstm of another order", lstm(plain, order="gofi"), CELL, LSTM),
    Way("lstm of products side by side", lstm(side_by_side), CELL, LSTM),
    Way("lstm of parts of one weight", lstm(parts_of_one), (CELL[0], (7, 16), (16,)), LSTM),
    Way("lstm backwards", lstm(plain, reverse=True), CELL, LSTM),
    Way("lstm of one sequence", lstm(plain), ONE, LSTM),
    Way("lstm of one sequence, columns", lstm(turned), ONE, LSTM),
    Way("lstm, last state", lstm(plain, shown=False), CELL, LSTM),
    Way("lstm of products before the loop",
        lstm(state_only, before=lambda x, w, u, b: x @ w + b), CELL, LSTM),
    Way("lstm of products before the loop, batch first", lstm(more_bias, before=batch_first), CELL,
        LSTM),
    Way("lstm of products before the loop, one sequence",
        lstm(more_bias, before=lambda x, w, u, b: b + x @ w, shown=False), ONE, LSTM),
    Way("lstm of separate weights", separate, (CELL[0], *[(3, H)] * 4, *[(H, H)] * 4), LSTM),
    Way("eqx.nn.LSTMCell, last of one", _last(eqx.nn.LSTMCell(3, H, key=KEY), 2),
        (SEQUENCE[1:],), LSTM),
    Way("eqx.nn.GRUCell, last of each", jax.vmap(_last(eqx.nn.GRUCell(3, H, key=KEY), 1)),
        (SEQUENCE,), {"gru": 1}),
    Way("hk.LSTM backwards", _unrolled(lambda: hk.LSTM(H), reverse=True), (CELL[0],), LSTM),
    Way("gru of swapped gates", lambda *a: gru(*a, mix=swapped), GRU, {"gru": 1}),
    Way("gru of another order", other_order, GRU, {"gru": 1}),
    Way("rnn by max", rnn(jax.nn.relu), RNN, {"rnn": 1}),
    Way("hk.GRU, time first", _unrolled(lambda: hk.GRU(H)), (CELL[0],), {"gru": 1}),
    Way("lstm by numbers of steps", by_numbers, CELL, {"lstm": 1}),
    Way("two cells in one loop", _stacked(), (CELL[0],), {"lstm": 2}),
    Way("rnn that reads its state out", read_out, RNN, {"rnn": 1}),
]  # fmt: skip

LOOKALIKES = [
    Way("gru of swapped gates from a state", swapped_from,
        ((6, 2, 3), (3, 12), (H, 12), (2, H)), {}, misses=(
        "its update gate z takes the new state, and 1 − z the last one, which may be Inf: its "
        "first state is not a known number",)),
    Way("rnn of two arrays", two_arrays, (CELL[0], CELL[0], (3, H), (H, H)), {}, misses=(
        "each step reads 2 arrays, and a layer over a sequence reads one",)),
    Way("rnn with a sigmoid", rnn(jax.nn.sigmoid), RNN, {}, misses=(
        "are not those of an LSTM, a GRU or a plain cell",)),
    Way("lstm of the input as it is", lstm(state_only), ((6, 2, 16), (3, 16), (H, 16), (16,)), {},
        misses=("are not those of an LSTM, a GRU or a plain cell",)),
    Way("steps of training", training, ((5, H), (H, H)), {}),
]  # fmt: skip
