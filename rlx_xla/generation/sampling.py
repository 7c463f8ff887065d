"""Choosing the next token on the device, without a sort.

The least logit that may still be chosen is found by bisection over the numbers' bits: 32 counts or
sums over the vocabulary, whatever its size. Tokens that tie with the last one allowed stay.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast, final

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rlx.errors import RunError

SETTINGS = 5
"""Numbers of a `SamplingOptions` as an array: temperature, top_k, top_p, min_p, penalty."""


@final
@dataclass(frozen=True, kw_only=True)
class SamplingOptions:
    """How the next token is chosen.

    Attributes:
        temperature: logits are divided by it; 0 takes the most likely token.
        top_k: only so many of the most likely tokens may be chosen; 0 for all.
        top_p: only the most likely tokens that together have this probability; 1 for all.
        min_p: only tokens with this share of the greatest probability; 0 for all.
        repetition_penalty: logits of tokens that occurred are divided by it where they are
            positive, else multiplied; 1 for none.
        seed: of the draws.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("temperature", "top_p", "min_p", "repetition_penalty"):
            _require_kind(getattr(self, name), name, (int, float, np.number), "a number")
        for name in ("top_k", "seed"):
            _require_kind(getattr(self, name), name, (int, np.integer), "a whole number")
        _require(self.temperature, "temperature", 0.0 <= self.temperature < math.inf, "≥ 0")
        _require(self.top_k, "top_k", 0 <= self.top_k < 2**24, "from 0 to 2²⁴ − 1")
        _require(self.top_p, "top_p", 0.0 < self.top_p <= 1.0, "> 0 and ≤ 1")
        _require(self.min_p, "min_p", 0.0 <= self.min_p <= 1.0, "from 0 to 1")
        good = 0.0 < self.repetition_penalty < math.inf
        _require(self.repetition_penalty, "repetition_penalty", good, "> 0")
        _require(self.seed, "seed", 0 <= self.seed < 2**32, "from 0 to 2³² − 1")

    def array(self) -> np.ndarray:
        """The settings as f32[SETTINGS], in the order of ``SETTINGS``; the seed is apart."""
        values = (self.temperature, self.top_k, self.top_p, self.min_p, self.repetition_penalty)
        return np.asarray(values, np.float32)


def sampling_or_default(given: SamplingOptions | None) -> SamplingOptions:
    """What was asked for; the most likely tokens where nothing was.

    Raises:
        RunError: this is something else.
    """
    if given is None:
        return SamplingOptions()
    if not isinstance(cast("object", given), SamplingOptions):
        raise RunError(
            f"generate [sampling]: SamplingOptions, or None, are required; got {given!r}. Write "
            "SamplingOptions(temperature=0.8)."
        )
    return given


def _require(value: float, name: str, good: bool, wanted: str) -> None:
    if not good:
        raise RunError(f"sampling [{name}]: {name} must be {wanted}; got {value}. Change it.")


def _require_kind(value: Any, name: str, kinds: tuple[type, ...], wanted: str) -> None:
    if isinstance(value, bool) or not isinstance(value, kinds):
        raise RunError(f"sampling [{name}]: {name} must be {wanted}; got {value!r}. Change it.")


def choose(
    logits: jax.Array,
    seen: jax.Array,
    settings: jax.Array,
    seed: jax.Array,
    place: jax.Array,
    greedy: bool | None = None,
    bits: int = 1,
) -> tuple[jax.Array, jax.Array]:
    """Return the next token of each row, and its log-probability in the model.

    Args:
        logits: f32[batch, vocabulary].
        seen: bool[batch, vocabulary], tokens that occurred.
        settings: f32[SETTINGS].
        seed: u32[].
        place: i32[], the position of the new token; draws differ between positions.
        greedy: whether the temperature is 0; None where the device is to look, for which a GPU
            waits for the host.
        bits: of a limit that one look at all logits finds, dividing 32: with 1 least work, with
            more fewer looks, one after another.

    Returns:
        i32[batch] and f32[batch].
    """
    with jax.numpy_rank_promotion("allow"):
        return _choose(logits, seen, settings, seed, place, greedy, bits)


def _choose(
    logits: jax.Array,
    seen: jax.Array,
    settings: jax.Array,
    seed: jax.Array,
    place: jax.Array,
    greedy: bool | None,
    bits: int,
) -> tuple[jax.Array, jax.Array]:
    temperature, penalty = settings[0], settings[4]
    punished = jnp.where(logits > 0, logits / penalty, logits * penalty)
    adjusted = jnp.where(seen, punished, logits)

    def draw() -> jax.Array:
        scaled = adjusted / temperature
        allowed = scaled >= _least(scaled, settings, bits)[:, None]
        key = jax.random.fold_in(jax.random.PRNGKey(seed), place)
        noise = jax.random.gumbel(key, scaled.shape, jnp.float32)
        return jnp.argmax(jnp.where(allowed, scaled + noise, -jnp.inf), axis=-1).astype(jnp.int32)

    def likeliest() -> jax.Array:
        return jnp.argmax(adjusted, axis=-1).astype(jnp.int32)

    if greedy is None:
        token = lax.cond(temperature > 0, draw, likeliest)
    else:
        token = likeliest() if greedy else draw()
    chosen = jnp.take_along_axis(logits, token[:, None], axis=-1)[:, 0]
    return token, chosen - jax.nn.logsumexp(logits, axis=-1)


def _least(scaled: jax.Array, settings: jax.Array, bits: int) -> jax.Array:
    """The least logit of each row that top_k, top_p and min_p all allow, f32[batch]."""
    size = scaled.shape[-1]
    top = scaled.max(axis=-1)
    wanted = jnp.where(settings[1] > 0, jnp.minimum(settings[1], size), size)
    by_count = _bisect(scaled, lambda kept: kept.sum(axis=-1).astype(jnp.float32) >= wanted, bits)
    # top_p looks at what top_k left.
    left = scaled >= by_count[:, None]
    shares = jnp.where(left, jnp.exp(scaled - top[:, None]), 0.0)
    mass = settings[2] * shares.sum(axis=-1)
    by_mass = _bisect(
        scaled,
        lambda kept: jnp.where(kept, shares[:, None], 0.0).sum(axis=-1) >= mass[:, None],
        bits,
    )
    by_mass = jnp.where(settings[2] < 1, by_mass, -jnp.inf)
    least = jnp.maximum(jnp.maximum(by_count, by_mass), top + jnp.log(settings[3]))
    return jnp.minimum(least, top)


def _bisect(scaled: jax.Array, enough: Callable[[jax.Array], jax.Array], bits: int) -> jax.Array:
    """The greatest number of each row such that what is not below it is enough.

    Args:
        scaled: f32[batch, vocabulary].
        enough: of bool[batch, trials, vocabulary] says bool[batch, trials].
        bits: of the number that one step finds, by looking at all that they may be.
    """
    ordered = _ordered(scaled)[:, None]
    digits = jnp.arange(1, 1 << bits, dtype=jnp.uint32)

    def step(place: jax.Array, found: jax.Array) -> jax.Array:
        low = jnp.uint32(32 - bits) - jnp.uint32(bits) * place.astype(jnp.uint32)
        trials = found[:, None] | (digits << low)
        # What is enough for a trial is enough for a smaller one.
        digit = enough(ordered >= trials[..., None]).sum(axis=-1).astype(jnp.uint32)
        return found | (digit << low)

    found = jnp.zeros(scaled.shape[:1], jnp.uint32)
    if bits == 1:
        return _from_ordered(lax.fori_loop(0, 32, step, found))
    for place in range(32 // bits):
        found = step(jnp.int32(place), found)
    return _from_ordered(found)


def _ordered(x: jax.Array) -> jax.Array:
    """Numbers as u32 in the same order."""
    bits = lax.bitcast_convert_type(x, jnp.uint32)
    return jnp.where(bits >> 31 == 1, ~bits, bits | jnp.uint32(1 << 31))


def _from_ordered(bits: jax.Array) -> jax.Array:
    plain = jnp.where(bits >> 31 == 1, bits & jnp.uint32(0x7FFFFFFF), ~bits)
    return lax.bitcast_convert_type(plain, jnp.float32)
