"""Ways of writing softmax, its logarithm and sums of exponentials where a mask leaves some out."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from tests.rlx_xla.recognize_models import SEQUENCES, B, S, _einsum_scores
from tests.rlx_xla.recognize_ways import Way, bools

X = (4, 8)
MASKED = (X, bools(X))


def _softmax(x: Any, mask: Any, fill: float, least: float) -> Any:
    """As JAX writes a masked softmax, from other numbers."""
    kept = jnp.where(mask, x, fill)
    e = jnp.exp(kept - jnp.max(jnp.where(mask, x, least), -1, keepdims=True))
    return e / jnp.sum(e, -1, where=mask, keepdims=True)


def other_mask(x: Any, mask: Any, other: Any) -> Any:
    kept = jnp.where(mask, x, -jnp.inf)
    e = jnp.exp(kept - kept.max(-1, keepdims=True))
    return e / jnp.sum(e, -1, where=other, keepdims=True)


def attention_where(q: Any, k: Any, v: Any, mask: Any) -> Any:
    weights = jax.nn.softmax(_einsum_scores(q, k), where=mask)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v)


SOFTMAX = {"softmax": 1}
WAYS = [
    Way("jax.nn.softmax, where", lambda x, m: jax.nn.softmax(x, where=m), MASKED, SOFTMAX),
    Way("jax.nn.softmax, where, of columns", lambda x, m: jax.nn.softmax(x, 0, where=m[:, None]),
        (X, bools((4,))), SOFTMAX),
    Way("jax.nn.softmax, where, bf16", lambda x, m: jax.nn.softmax(x, where=m), MASKED, SOFTMAX,
        jnp.bfloat16),
    Way("softmax of −Inf outside", lambda x, m: _softmax(x, m, -jnp.inf, -jnp.inf), MASKED,
        SOFTMAX),
    Way("jax.nn.log_softmax, where", lambda x, m: jax.nn.log_softmax(x, where=m), MASKED,
        {"log_softmax": 1}),
    Way("logsumexp, where", lambda x, m: jax.nn.logsumexp(x, -1, where=m), MASKED,
        {"logsumexp": 1}),
    Way("logsumexp, where, keepdims", lambda x, m: jax.nn.logsumexp(x, 0, where=m, keepdims=True),
        MASKED, {"logsumexp": 1}),
]  # fmt: skip

LOOKALIKES = [
    Way("softmax of zeros outside", lambda x, m: _softmax(x, m, 0.0, 0.0), MASKED, {}, misses=(
        "hidden logits become 0, and not −Inf, before the maximum is taken: a row far below that "
        "gives NaN",)),
    Way("softmax of another mask", other_mask, (X, bools(X), bools(X)), {}, misses=(
        "its sum leaves elements out by a mask that its maximum does not know",)),
    Way("logsumexp with weights", lambda x, b: jax.nn.logsumexp(x, -1, b=b), (X, X), {}, misses=(
        "its exponentials are multiplied by weights, which the op does not take",)),
    Way("jax.nn.standardize, where", lambda x, m: jax.nn.standardize(x, where=m), MASKED, {},
        misses=("its mean leaves elements out by a mask",)),
    Way("attention by softmax, where", attention_where, (*SEQUENCES, bools((B, 1, S, S))), SOFTMAX,
        misses=("a row is 0 where all keys are hidden, and NaN where their scores are −Inf",)),
]  # fmt: skip
WAYS = [dataclasses.replace(way, units={}) for way in WAYS]
