"""Ways of writing cells of sequences that end, in both directions, and of loops over some rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from tests.rlx_xla.recognize_cells import H, _cell, plain
from tests.rlx_xla.recognize_layers import GRU, KEY
from tests.rlx_xla.recognize_models import CELL
from tests.rlx_xla.recognize_ways import Way, bools, ints

STEPS = 6
Step = Callable[..., Any]


def _lstm(now: Any, state: Any, w: Any, u: Any, b: Any) -> Any:
    h, c = state
    return _cell(*jnp.split(plain(now, h, w, u, b), 4, -1), c)


def _gru(now: Any, state: Any, w: Any, u: Any, b: Any, c: Any) -> Any:
    (h,) = state
    (r, z, n), (s, t, m) = jnp.split(now @ w + b, 3, -1), jnp.split(h @ u + c, 3, -1)
    n = jnp.tanh(n + jax.nn.sigmoid(r + s) * m)
    z = jax.nn.sigmoid(z + t)
    return ((1 - z) * n + z * h,)


def _rnn(now: Any, state: Any, w: Any, u: Any, b: Any) -> Any:
    return (jnp.tanh(plain(now, state[0], w, u, b)),)


def stays(goes: Any, new: Any, old: Any) -> Any:
    return jax.tree.map(lambda a, b: jnp.where(goes[..., None], a, b), new, old)


def masked(
    step: Step,
    *,
    shown: Callable[..., Any] = lambda goes, new, kept: kept,
    choose: Callable[..., Any] = stays,
    read: Callable[..., Any] = lambda goes: goes,
    reverse: bool = False,
) -> Callable[..., Any]:
    """A cell over x [S, B, I] or [S, I] whose states stay where a mask says so.

    Args:
        step: the cell.
        shown: of mask, new hidden state and the one that is kept, what is stacked.
        choose: of mask, new states and old ones, which are kept.
        read: what the mask is, of what the loop reads.
        reverse: from the last step to the first.
    """
    states = 2 if step is _lstm else 1

    def function(x: Any, goes: Any, *weights: Any) -> Any:
        def one(state: Any, now: Any) -> Any:
            row, goes = now
            goes = read(goes)
            new = step(row, state, *weights)
            kept = choose(goes, new, state)
            return kept, shown(goes, new[0], kept[0])

        start = (jnp.zeros((*x.shape[1:-1], H)),) * states
        return lax.scan(one, start, (x, goes), reverse=reverse)

    return function


def zeros(goes: Any, new: Any, kept: Any) -> Any:
    return jnp.where(goes[..., None], new, 0.0)


def all_states(
    goes_on: bool, *, swapped: bool = False, extra: bool = False, of_one: bool = False
) -> Callable[..., Any]:
    """An LSTM of which both states of all steps are read, with a mask or without.

    Args:
        goes_on: without a mask.
        swapped: the cell states are carried and stacked first.
        extra: what a step returns is one more array.
        of_one: only the cell states are stacked.
    """

    def function(x: Any, goes: Any, *weights: Any) -> Any:
        def one(state: Any, now: Any) -> Any:
            row, goes = now
            pair = state[::-1] if swapped else state
            new = _lstm(row, pair, *weights)
            if not goes_on:
                new = stays(goes, new, pair)
            order = new[::-1] if swapped else new
            return order, (new[1] if of_one else (*order, pair[0] * new[1]) if extra else order)

        start = (jnp.zeros((*x.shape[1:-1], H)),) * 2
        return lax.scan(one, start, (x, goes))

    return function


def by_lengths(step: Step, states: int = 1, *, shown: bool = True) -> Callable[..., Any]:
    """States that stay once a sequence has ended, by its length; rows by numbers of steps."""

    def function(x: Any, lengths: Any, *weights: Any) -> Any:
        def one(t: Any, carry: Any) -> Any:
            *state, ys = carry
            new = stays(t < lengths, step(x[t], state, *weights), tuple(state))
            return *new, ys.at[t].set(new[0]) if shown else ys

        start = (jnp.zeros((x.shape[1], H)),) * states
        made = lax.fori_loop(0, STEPS, one, (*start, jnp.zeros((*x.shape[:2], H))))
        return made if shown else made[0]

    return function


def padded(step: Step) -> Callable[..., Any]:
    """A mask of tokens that are not 0, which is read with a number of the step besides."""

    def function(x: Any, tokens: Any, *weights: Any) -> Any:
        def one(carry: Any, now: Any) -> Any:
            t, state = carry
            row, token = now
            kept = stays((token != 0) & (t < STEPS - 1), step(row, state, *weights), state)
            return (t + 1, kept), kept[0]

        return lax.scan(one, (0, (jnp.zeros((x.shape[1], H)),)), (x, tokens))[1]

    return function


def by_rows(
    row: Callable[[Any, Any], Any],
    *,
    steps: int = STEPS,
    write: Callable[[Any], Any] | None = None,
    numbers: Callable[[], Any] | None = None,
) -> Callable[..., Any]:
    """A plain cell over rows of x that a number of the step chooses.

    Args:
        row: of x and the number.
        steps: how many.
        write: into which row of the result the state goes, of the number; None for no result.
        numbers: what a scan reads in place of the numbers of a counted loop.
    """

    def function(x: Any, w: Any, u: Any, b: Any) -> Any:
        def one(t: Any, carry: Any) -> Any:
            h, ys = carry
            h = jnp.tanh(plain(row(x, t), h, w, u, b))
            return h, ys if write is None else ys.at[write(t)].set(h)

        start = (jnp.zeros((x.shape[1], H)), jnp.zeros((steps, x.shape[1], H)))
        if numbers is None:
            return lax.fori_loop(0, steps, one, start)[write is not None]
        return lax.scan(lambda carry, t: (one(t, carry), None), start, numbers())[0][0]

    return function


def product_mask(goes: Any, new: Any, old: Any) -> Any:
    factor = goes[..., None].astype(jnp.float32)
    return jax.tree.map(lambda a, b: factor * a + (1 - factor) * b, new, old)


def only_hidden(goes: Any, new: Any, old: Any) -> Any:
    return jnp.where(goes[..., None], new[0], old[0]), new[1]


def each_unit(goes: Any, new: Any, old: Any) -> Any:
    return tuple(jnp.where(goes, a, b) for a, b in zip(new, old, strict=True))


def to_zeros(goes: Any, new: Any, old: Any) -> Any:
    """States that begin anew."""
    del old
    return jax.tree.map(lambda a: jnp.where(goes[..., None], a, 0.0), new)


def both_masks(goes: Any, new: Any, old: Any) -> Any:
    (h, c), (g, d) = new, old
    return jnp.where(goes[..., None], h, g), jnp.where(goes[..., None], d, c)


def _linen(make: Callable[[], nn.Module], **given: Any) -> Callable[..., Any]:
    """A module of x [B, S, I] and perhaps lengths."""
    module = make()
    variables = module.init(KEY, jnp.ones((2, STEPS, 3)))

    def function(x: Any, *lengths: Any) -> Any:
        named = {"seq_lengths": lengths[0]} if lengths else {}
        return module.apply(variables, x, **named, **given)

    return function


def _cells(cell: Any, **options: Any) -> Callable[[], nn.Module]:
    return lambda: nn.RNN(cell(H, dtype=jnp.float32), **options)


def _both() -> nn.Module:
    return nn.Bidirectional(_cells(nn.GRUCell)(), _cells(nn.GRUCell)())


X = (STEPS, 2, 3)
MASK, ONE_MASK, LENGTHS = bools((STEPS, 2)), bools((STEPS,)), ints((2,), STEPS + 1)
LSTM, ONE_GRU, ONE_RNN = {"lstm": 1}, {"gru": 1}, {"rnn": 1}
LSTMS, GRUS, RNNS = CELL[1:], GRU[1:], ((3, H), (H, H), (H,))
BSI = (2, STEPS, 3)
WAYS = [
    Way("masked lstm", masked(_lstm), (X, MASK, *LSTMS), LSTM),
    Way("masked gru", masked(_gru), (X, MASK, *GRUS), ONE_GRU, hostile=False),
    Way("masked rnn backwards", masked(_rnn, reverse=True), (X, MASK, *RNNS), ONE_RNN),
    Way("masked rnn that shows zeros", masked(_rnn, shown=zeros), (X, MASK, *RNNS), ONE_RNN),
    Way("masked lstm that shows zeros, backwards", masked(_lstm, shown=zeros, reverse=True),
        (X, MASK, *LSTMS), LSTM, hostile=False),
    Way("masked gru of one sequence", masked(_gru), ((STEPS, 3), ONE_MASK, *GRUS), ONE_GRU,
        hostile=False),
    Way("one mask of all sequences", masked(_rnn, choose=each_unit, shown=lambda *a: a[2]),
        (X, bools((STEPS, 1, 1)), *RNNS), ONE_RNN, hostile=False),
    Way("masked by what ends", masked(_rnn, read=jnp.logical_not), (X, MASK, *RNNS), ONE_RNN,
        hostile=False),
    Way("masked rnn under vmap", jax.vmap(masked(_rnn), (1, 1, None, None, None), 1),
        (X, MASK, *RNNS), ONE_RNN, hostile=False),
    Way("lstm by lengths", by_lengths(_lstm, 2), (X, LENGTHS, *LSTMS), LSTM, hostile=False),
    Way("gru by lengths, last state", by_lengths(_gru, shown=False), (X, LENGTHS, *GRUS), ONE_GRU,
        hostile=False),
    Way("rnn of padded tokens", padded(_rnn), (X, ints((STEPS, 2), 3), *RNNS), ONE_RNN,
        hostile=False),
    Way("linen.RNN of GRUs by lengths", _linen(_cells(nn.GRUCell), return_carry=True),
        (BSI, LENGTHS), ONE_GRU, hostile=False),
    Way("linen.RNN of LSTMs by lengths", _linen(_cells(nn.LSTMCell)), (BSI, LENGTHS), LSTM,
        hostile=False),
    Way("linen.RNN of LSTMs that returns all cells", _linen(
        _cells(nn.LSTMCell), return_carry=True), (BSI, LENGTHS), LSTM, hostile=False),
    Way("masked lstm, all states", all_states(False), (X, MASK, *LSTMS), LSTM),
    Way("masked lstm, all states, swapped", all_states(False, swapped=True), (X, MASK, *LSTMS),
        LSTM, hostile=False),
    Way("masked lstm, all cell states", all_states(False, of_one=True), (X, MASK, *LSTMS), LSTM,
        hostile=False),
    Way("lstm, all states", lambda x, *w: all_states(True)(x, jnp.ones((STEPS, 2), bool), *w),
        (X, *LSTMS), LSTM, hostile=False),
    Way("linen.RNN of cells backwards", _linen(_cells(
        nn.SimpleCell, reverse=True, keep_order=True)), (BSI,), ONE_RNN, hostile=False),
    Way("linen.Bidirectional", _linen(_both), (BSI,), {"gru": 2}, hostile=False),
    Way("linen.Bidirectional by lengths", _linen(_both), (BSI, LENGTHS), {"gru": 2},
        hostile=False),
    Way("rows of a loop, last to first", by_rows(lambda x, t: x[STEPS - 1 - t]), (X, *RNNS),
        ONE_RNN, hostile=False),
    Way("rows of a loop, last to first, written", by_rows(
        lambda x, t: x[-1 - t], write=lambda t: t), (X, *RNNS), ONE_RNN, hostile=False),
    Way("rows of a loop, written last to first", by_rows(
        lambda x, t: x[t], write=lambda t: STEPS - 1 - t), (X, *RNNS), ONE_RNN, hostile=False),
    Way("rows before those of a loop, around", by_rows(lambda x, t: x[t - 1]), (X, *RNNS),
        ONE_RNN, hostile=False),
    Way("rows before those of a loop, clamped", by_rows(
        lambda x, t: lax.dynamic_index_in_dim(x, t - 1, 0, keepdims=False)), (X, *RNNS), ONE_RNN,
        hostile=False),
    Way("every second row, from the end", by_rows(lambda x, t: x[5 - 2 * t], steps=3),
        (X, *RNNS), ONE_RNN, hostile=False),
    Way("rows by numbers that a scan reads", by_rows(
        lambda x, t: x[t], numbers=lambda: jnp.arange(STEPS)), (X, *RNNS), ONE_RNN, hostile=False),
    Way("rows by numbers from the end", by_rows(
        lambda x, t: x[t], numbers=lambda: jnp.arange(1, STEPS)[::-1]), (X, *RNNS), ONE_RNN,
        hostile=False),
]  # fmt: skip

LOOKALIKES = [
    Way("a mask as a factor", masked(_rnn, choose=product_mask), (X, MASK, *RNNS), {}, misses=(
        "its states are mixed by a mask's factors, where the NaN and Inf of a step count though "
        "the state stays; write jnp.where(mask, new, state)",)),
    Way("a mask of the hidden state only", masked(_lstm, choose=only_hidden), (X, MASK, *LSTMS),
        {}, misses=("some of its states stay by a mask, and others change in all steps",)),
    Way("a mask of units", masked(_rnn, choose=each_unit, shown=lambda *a: a[2]),
        (X, bools((STEPS, H)), *RNNS), {}, misses=(
        "its states stay by a mask bool[4], which is not one of each sequence and step",)),
    Way("a state that begins anew", masked(_gru, choose=to_zeros), (X, MASK, *GRUS), {},
        misses=("a mask chooses between two values neither of which is the last state",)),
    Way("a mask and its opposite", masked(_lstm, choose=both_masks), (X, MASK, *LSTMS), {},
        misses=("its states stay by different masks",)),
    Way("masked, the new state is shown", masked(_rnn, shown=lambda goes, new, kept: new),
        (X, MASK, *RNNS), {}, misses=("returns another value than that state, or zeros",)),
    Way("masked lstm, more than its states", all_states(False, extra=True), (X, MASK, *LSTMS), {},
        misses=("returns another value than that state, or zeros",)),
    Way("lstm, more than its states", lambda x, *w: all_states(True, extra=True)(
        x, jnp.ones((STEPS, 2), bool), *w), (X, *LSTMS), {},
        misses=("each step returns 3 arrays, and a cell returns its states",)),
    Way("rows by squares of numbers", by_rows(lambda x, t: x[t * t % STEPS]), (X, *RNNS), {},
        misses=("its steps read no rows of an array in an order that a scan has",)),
    Way("every second row is written", by_rows(
        lambda x, t: x[t], steps=3, write=lambda t: 2 * t % 3), (X, *RNNS), {}),
]  # fmt: skip
