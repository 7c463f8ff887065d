"""What one call of a program does: run the model over some tokens, and choose what comes next."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax

from rlx_xla.generation import sampling
from rlx_xla.models import decoder
from rlx_xla.models.decoder_config import DecoderConfig

Forward: TypeAlias = Callable[..., tuple[jax.Array, Any]]
"""A model's function, such as `decoder.forward`."""


def step(
    forward: Forward,
    config: DecoderConfig,
    greedy: bool | None,
    params: Any,
    ids: jax.Array,
    start: jax.Array,
    settings: jax.Array,
    seed: jax.Array,
    offset: jax.Array,
    seen: jax.Array,
    caches: Any,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array, Any]:
    """Run the model over tokens of each row and choose the next one.

    Args:
        forward: of the model.
        config: of the model.
        greedy: see `sampling.choose`.
        params: of the model.
        ids: i32[batch, seq].
        start: i32[batch], the first position of each row that is not padding.
        settings: f32[SETTINGS].
        seed: u32[].
        offset: i32[], positions of the caches that are filled.
        seen: bool[batch, vocabulary], tokens that occurred.
        caches: of the model.

    Returns:
        i32[batch, 1], the new tokens; f32[batch, 1], their log-probabilities; offset, seen and
        caches after it.
    """
    hidden, caches = forward(params, config, ids, start, offset, caches)
    after = offset + ids.shape[1]
    places = offset + jnp.arange(ids.shape[1], dtype=jnp.int32)
    padding = places[None, :] < start[:, None]
    rows = jnp.arange(ids.shape[0], dtype=jnp.int32)[:, None]
    marked = jnp.where(padding, config.vocabulary, ids)  # out of range: dropped
    seen = seen.at[rows, marked].set(True, mode="drop")
    logits = decoder.logits_of(params, config, hidden[:, -1])
    token, logprob = sampling.choose(
        logits, seen, settings, seed, after, greedy, 4 if config.sums else 1
    )
    return token[:, None], logprob[:, None], after, seen, caches


def burst(
    forward: Forward,
    config: DecoderConfig,
    greedy: bool | None,
    params: Any,
    ids: jax.Array,
    given: jax.Array,
    start: jax.Array,
    settings: jax.Array,
    seed: jax.Array,
    token: jax.Array,
    offset: jax.Array,
    seen: jax.Array,
    caches: Any,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array, Any]:
    """Make several steps, each over one token of each row, without the host between them.

    Args:
        forward: of the model.
        config: of the model.
        greedy: see `sampling.choose`.
        params: of the model.
        ids: i32[batch, count], what the first steps take.
        given: i32[], how many do; the others take what the step before them chose.
        start: as of `step`, and so are `settings`, `seed`, `offset`, `seen` and `caches`.
        settings: see there.
        seed: see there.
        token: i32[batch, any], the last of which the first step takes where none is given.
        offset: see there.
        seen: see there.
        caches: see there.

    Returns:
        i32[batch, count], what each step chose; f32[batch, count], their log-probabilities;
        offset, seen and caches after all.
    """
    count = ids.shape[1]

    def one(carry: tuple[Any, ...], number: jax.Array) -> tuple[tuple[Any, ...], Any]:
        newest, *rest = carry
        mine = lax.dynamic_slice_in_dim(ids, number, 1, axis=1)
        taken = jnp.where(number < given, mine, newest)
        offset, seen, caches = rest
        newest, logprob, *rest = step(
            forward, config, greedy, params, taken, start, settings, seed, offset, seen, caches
        )
        return (newest, *rest), (newest[:, 0], logprob[:, 0])

    state = (token[:, -1:], offset, seen, caches)
    if count == 1:
        state, (tokens, logprobs) = one(state, jnp.int32(0))
        return tokens[:, None], logprobs[:, None], *state[1:]
    numbers = jnp.arange(count, dtype=jnp.int32)
    state, (tokens, logprobs) = lax.scan(one, state, numbers)
    return tokens.T, logprobs.T, *state[1:]
