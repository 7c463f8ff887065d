"""Ways of writing loops of cells: by numbers of steps, several cells in one, read-outs inside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import haiku as hk
import jax
import jax.numpy as jnp
from jax import lax

from tests.rlx_xla.recognize_cells import RNN, H, _cell, _unrolled, plain
from tests.rlx_xla.recognize_layers import GRU, KEY, SEQUENCE
from tests.rlx_xla.recognize_models import CELL, SCAN
from tests.rlx_xla.recognize_ways import Way

STEPS = 6
SHORT = 0.4
"""Makes keys so short that no correction goes too far, which would let roundings grow."""


def _zeros(x: Any) -> Any:
    return jnp.zeros((x.shape[1], H))


def lstm_by_rows(x: Any, w: Any, u: Any, b: Any) -> Any:
    """Rows that are read and written at the number of a step."""

    def step(t: Any, carry: Any) -> Any:
        h, c, ys = carry
        h, c = _cell(*jnp.split(plain(x[t], h, w, u, b), 4, -1), c)
        return h, c, ys.at[t].set(h)

    return lax.fori_loop(0, STEPS, step, (_zeros(x), _zeros(x), jnp.zeros((*x.shape[:2], H))))


def lstm_of_carried_weights(x: Any, w: Any, u: Any, b: Any) -> Any:
    def step(carry: Any) -> Any:
        t, weights, h, c = carry
        return t + 1, weights, *_cell(*jnp.split(plain(x[t], h, *weights), 4, -1), c)

    start = (jnp.int32(0), (w, u, b), _zeros(x), _zeros(x))
    return lax.while_loop(lambda carry: carry[0] < x.shape[0], step, start)[2]


def gru_downwards(x: Any, w: Any, u: Any, b: Any, c: Any) -> Any:
    """From the last step to the first, by a condition of its own."""

    def step(carry: Any) -> Any:
        t, h, ys = carry
        now = lax.dynamic_index_in_dim(x, t, 0, keepdims=False)
        (r, z, n), (s, m, k) = jnp.split(now @ w + b, 3, -1), jnp.split(h @ u + c, 3, -1)
        n = jnp.tanh(n + jax.nn.sigmoid(r + s) * k)
        z = jax.nn.sigmoid(z + m)
        h = z * h + (1 - z) * n
        return t - 1, h, lax.dynamic_update_index_in_dim(ys, h, t, 0)

    start = (jnp.int32(STEPS - 1), _zeros(x), jnp.zeros((*x.shape[:2], H)))
    return lax.while_loop(lambda carry: carry[0] >= 0, step, start)[2]


def rnn_batch_first(x: Any, w: Any, u: Any, b: Any) -> Any:
    """Steps along the second axis, of what is read and of what is written."""

    def step(t: Any, carry: Any) -> Any:
        h, ys = carry
        h = jnp.tanh(plain(x[:, t], h, w, u, b))
        return h, ys.at[:, t].set(h)

    start = (jnp.zeros((x.shape[0], H)), jnp.zeros((*x.shape[:2], H)))
    return lax.fori_loop(0, x.shape[1], step, start)[1]


def rnn_of_one_more_row(x: Any, w: Any, u: Any, b: Any) -> Any:
    """The first state stands before the others; only a part of what is read is."""

    def step(t: Any, carry: Any) -> Any:
        h, ys = carry
        h = jnp.tanh(plain(x[t + 1], h, w, u, b))
        return h, ys.at[t + 2].set(h)

    start = (_zeros(x), jnp.ones((STEPS + 2, x.shape[1], H)))
    return lax.fori_loop(0, STEPS - 2, step, start)[1]


def rnn_into_its_input(x: Any, u: Any, b: Any) -> Any:
    """Each row is read, and then written."""

    def step(t: Any, carry: Any) -> Any:
        h, rows = carry
        h = jnp.tanh(plain(rows[t], h, u, u, b))
        return h, rows.at[t].set(h)

    return lax.fori_loop(0, STEPS, step, (_zeros(x), x))[1]


def _eqx_by_numbers() -> Callable[..., Any]:
    cell = eqx.nn.GRUCell(3, H, key=KEY)

    def one(x: Any) -> Any:
        return lax.fori_loop(0, x.shape[0], lambda t, h: cell(x[t], h), jnp.zeros(H))

    return jax.vmap(one)


def mamba_by_numbers(x: Any, delta: Any, a: Any, b: Any, c: Any) -> Any:
    delta = jax.nn.sigmoid(delta)

    def step(t: Any, carry: Any) -> Any:
        h, ys = carry
        decay = jnp.exp(delta[:, t, :, None] * -jnp.exp(a))
        h = decay * h + (delta[:, t] * x[:, t])[..., None] * b[:, t, None, :]
        return h, ys.at[:, t].set((h * c[:, t, None, :]).sum(-1))

    start = (jnp.zeros((x.shape[0], *a.shape)), jnp.zeros_like(x))
    return lax.fori_loop(0, x.shape[1], step, start)[1]


def two_layers(x: Any, w: Any, u: Any, b: Any, v: Any, k: Any) -> Any:
    """An LSTM under a plain cell that reads it; all states are returned."""

    def step(carry: Any, now: Any) -> Any:
        h, c, top = carry
        h, c = _cell(*jnp.split(plain(now, h, w, u, b), 4, -1), c)
        top = jnp.tanh(h @ v + top @ k)
        return (h, c, top), (h, top)

    return lax.scan(step, (_zeros(x),) * 3, x)


def side_by_side(x: Any, w: Any, u: Any, b: Any, v: Any) -> Any:
    """Two cells of one input, that nothing joins but their sum."""

    def step(carry: Any, now: Any) -> Any:
        one, two = carry
        one, two = jnp.tanh(plain(now, one, w, u, b)), jnp.tanh(plain(now, two, v, u, b))
        return (one, two), one + two

    return lax.scan(step, (_zeros(x), _zeros(x)), x)[1]


def classes_at_each_step(x: Any, w: Any, u: Any, b: Any, out: Any) -> Any:
    def step(h: Any, now: Any) -> Any:
        h = jnp.tanh(plain(now, h, w, u, b))
        return h, jax.nn.softmax(jax.nn.relu(h) @ out + now[:, :1] + 1)

    return lax.scan(step, _zeros(x), x)


def residual_layers(x: Any, u: Any, b: Any, v: Any) -> Any:
    """Two plain cells, the second of which reads the input of the first too."""

    def step(carry: Any, now: Any) -> Any:
        one, two = carry
        one = jnp.tanh(now @ u + one @ u + b)
        two = jnp.tanh((one + now) @ v + two @ v)
        return (one, two), two

    return lax.scan(step, (_zeros(x), _zeros(x)), x)[1]


def rnn_of_both(x: Any, y: Any, w: Any, u: Any) -> Any:
    def step(h: Any, now: Any) -> Any:
        h = jnp.tanh(jax.nn.relu(jnp.concatenate(now, -1)) @ w + h @ u)
        return h, h

    return lax.scan(step, _zeros(x), (x, y))[1]


def joined_cells(x: Any, w: Any, u: Any, b: Any) -> Any:
    """Each cell reads what the other one was."""

    def step(carry: Any, now: Any) -> Any:
        one, two = carry
        return (jnp.tanh(plain(now, two, w, u, b)), jnp.tanh(plain(now, one, w, u, b))), one

    return lax.scan(step, (_zeros(x), _zeros(x)), x)[1]


def until_it_rests(x: Any, u: Any) -> Any:
    """A loop that ends when its state does not change any more."""

    def step(carry: Any) -> Any:
        t, h, _ = carry
        new = jnp.tanh(x[t] @ u + h @ u)
        return t + 1, new, jnp.abs(new - h).max()

    def goes_on(carry: Any) -> Any:
        return (carry[0] < STEPS) & (carry[2] > 1e-3)

    return lax.while_loop(goes_on, step, (0, _zeros(x), jnp.float32(1)))[1]


def every_second(x: Any, u: Any) -> Any:
    return lax.fori_loop(0, 3, lambda t, h: jnp.tanh(x[2 * t] @ u + h @ u), _zeros(x))


def of_the_row_before(x: Any, u: Any) -> Any:
    """Rows that are read after they have been written."""
    return lax.fori_loop(1, STEPS, lambda t, ys: ys.at[t].set(jnp.tanh(ys[t] + ys[t - 1] @ u)), x)


def masked_steps(x: Any, u: Any, lengths: Any) -> Any:
    """A cell whose state stays where its sequence has ended."""

    def step(t: Any, h: Any) -> Any:
        return jnp.where((t < jnp.abs(lengths) * 4)[:, None], jnp.tanh(x[t] @ u + h @ u), h)

    return lax.fori_loop(0, STEPS, step, _zeros(x))


def delta_rule(q: Any, k: Any, v: Any, beta: Any) -> Any:
    """One head, whose state stays but for its corrections."""

    def step(state: Any, now: Any) -> Any:
        q, k, v, beta = now
        state = state + jnp.outer(k, beta * (v - state.T @ k))
        return state, state.T @ q

    return lax.scan(step, jnp.zeros((H, H)), (q, k * SHORT, v, jax.nn.sigmoid(beta)))[1]


def gated_delta(
    read: Callable[[Any, Any], Any] = lambda state, q: jnp.einsum("...kv,...k->...v", state, q),
    decay: Callable[[Any], Any] = lambda g: jnp.exp(-jax.nn.softplus(g)),
    kept: bool = False,
) -> Callable[..., Any]:
    """Heads with a gate each: q, k and v are [S, ..., N], g and beta [S, ...]."""

    def function(q: Any, k: Any, v: Any, g: Any, beta: Any, *first: Any) -> Any:
        def step(state: Any, now: Any) -> Any:
            q, k, v, decay, beta = now
            state = state * decay[..., None, None]
            correction = (v - read(state, k)) * beta[..., None]
            state = state + k[..., None] * correction[..., None, :]
            return state, read(state, q)

        start = first[0] if first else jnp.zeros((*q.shape[1:], v.shape[-1]))
        made = lax.scan(step, start, (q * 0.5, k * SHORT, v, decay(g), jax.nn.sigmoid(beta)))
        return made if kept else made[1]

    return function


def _by_sum(state: Any, vector: Any) -> Any:
    return (state * vector[..., None]).sum(-2)


def delta_of_channels(q: Any, k: Any, v: Any, g: Any) -> Any:
    """States [v, k] whose columns decay by themselves, and a scale in the loop."""

    def step(state: Any, now: Any) -> Any:
        q, k, v, g = now
        state = state * jnp.exp(g)[:, None, :]
        error = v - jnp.einsum("hvk,hk->hv", state, k)
        state = state + error[:, :, None] * k[:, None, :]
        return state, jnp.einsum("hvk,hk->hv", state, q) * H**-0.5

    start = jnp.zeros((q.shape[1], H, H))
    return lax.scan(step, start, (q, k * SHORT, v, -jnp.abs(g)))[1]


def delta_read_before(q: Any, k: Any, v: Any) -> Any:
    """A query that meets the state before it is corrected."""

    def step(state: Any, now: Any) -> Any:
        q, k, v = now
        return state + jnp.outer(k, v - state.T @ k), state.T @ q

    return lax.scan(step, jnp.zeros((H, H)), (q, k, v))[1]


def sums_of_outer_products(q: Any, k: Any, v: Any) -> Any:
    def step(state: Any, now: Any) -> Any:
        q, k, v = now
        state = state + jnp.outer(k, v)
        return state, state.T @ q

    return lax.scan(step, jnp.zeros((H, H)), (q, k, v))[1]


def _deep(make: Callable[[], Any]) -> Callable[..., Any]:
    return _unrolled(lambda: hk.DeepRNN([make(), jax.nn.relu, make()]))


SQUARE = ((STEPS, 2, H), (H, H))
TOKEN, GATE = (STEPS, 2, 3, H), (STEPS, 2, 3)
DELTA = (TOKEN, TOKEN, TOKEN, GATE, GATE)
GATED = {"gated_delta_net": 1, "softplus": 1}
LSTM, ONE_RNN = {"lstm": 1}, {"rnn": 1}
BATCHES = ((2, STEPS, 3), *RNN[1:])
WAYS = [
    Way("lstm by rows", lstm_by_rows, CELL, LSTM),
    Way("lstm of carried weights", lstm_of_carried_weights, CELL, LSTM, hostile=False),
    Way("gru downwards", gru_downwards, GRU, {"gru": 1}, hostile=False),
    Way("rnn, batch first", rnn_batch_first, BATCHES, ONE_RNN, hostile=False),
    Way("rnn of one more row", rnn_of_one_more_row, RNN, ONE_RNN, hostile=False),
    Way("rnn into its input", rnn_into_its_input, (*SQUARE, (H,)), ONE_RNN),
    Way("eqx.nn.GRUCell by numbers", _eqx_by_numbers(), (SEQUENCE,), {"gru": 1}, hostile=False),
    Way("selective scan by numbers", mamba_by_numbers, SCAN, {"selective_scan": 1},
        hostile=False),
    Way("an lstm under a cell", two_layers, (*CELL, (H, H), (H, H)), {"lstm": 1, "rnn": 1}),
    Way("cells side by side", side_by_side, (*RNN, (3, H)), {"rnn": 2}, hostile=False),
    Way("classes at each step", classes_at_each_step, (*RNN, (H, 5)), {"rnn": 1, "softmax": 1}),
    Way("a layer over a sum", residual_layers, (*SQUARE, (H,), (H, H)), {"rnn": 2}),
    Way("rnn of inputs side by side", rnn_of_both, (CELL[0], CELL[0], (6, H), (H, H)), ONE_RNN,
        hostile=False),
    Way("delta rule", delta_rule, (*[(STEPS, H)] * 3, (STEPS,)), {"gated_delta_net": 1}),
    Way("delta rule, gated", gated_delta(), DELTA, GATED, hostile=False),
    Way("delta rule, gated, by sums", gated_delta(_by_sum), DELTA, GATED, hostile=False),
    Way("delta rule, gated, state kept", gated_delta(kept=True), (*DELTA, (2, 3, H, H)), GATED,
        hostile=False),
    Way("delta rule under vmap", jax.vmap(gated_delta(), 1, 1), DELTA, GATED, hostile=False),
    Way("delta rule of channels", delta_of_channels, ((STEPS, 2, H),) * 4,
        {"gated_delta_net": 1}, hostile=False),
    Way("a cell of every second step", every_second, SQUARE, ONE_RNN, hostile=False),
    Way("a cell of masked steps", masked_steps, (*SQUARE, (2,)), ONE_RNN, hostile=False),
    Way("hk.DeepRNN of GRUs", _deep(lambda: hk.GRU(H)), (CELL[0],), {"gru": 2}, hostile=False),
]  # fmt: skip

LOOKALIKES = [
    Way("cells that read each other", joined_cells, RNN, {}),
    Way("a loop until it rests", until_it_rests, SQUARE, {}),
    Way("a cell of the row before", of_the_row_before, SQUARE, {}),
    Way("delta rule of other decays", gated_delta(decay=jax.nn.sigmoid), DELTA, {}, misses=(
        "its decay is not known to be an exponential, of which the op takes the exponent",)),
    Way("delta rule of wide values", gated_delta(), (TOKEN, TOKEN, (STEPS, 2, 3, 5), GATE, GATE),
        {"softplus": 1}, misses=("its keys have 4 elements and its values 5",)),
    Way("delta rule, read before", delta_read_before, ((STEPS, H),) * 3, {}),
    Way("sums of outer products", sums_of_outer_products, ((STEPS, H),) * 3, {}),
]  # fmt: skip
