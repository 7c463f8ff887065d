"""Ways of writing cross entropy against labels that are smoothed, and what looks like it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import lax

from tests.rlx_xla.recognize_layers import LABELS, C, X
from tests.rlx_xla.recognize_ways import Way

RIGHT, WRONG = 0.9, 0.1 / (C - 1)


def _loss(x: Any, targets: Any) -> Any:
    return -jnp.sum(targets * jax.nn.log_softmax(x), -1)


def by_optax(x: Any, i: Any) -> Any:
    targets = optax.smooth_labels(jax.nn.one_hot(i, C, dtype=x.dtype), 0.1)
    return optax.softmax_cross_entropy(x, targets)


def of_wmt(x: Any, i: Any) -> Any:
    """As the translation example of flax has it."""
    hot = i[..., None] == jnp.arange(C)[None]
    soft = lax.select(hot, jnp.full(hot.shape, RIGHT), jnp.full(hot.shape, WRONG))
    return _loss(x, soft.astype(jnp.float32)) - 0.5


def scaled(x: Any, i: Any) -> Any:
    return _loss(x, jax.nn.one_hot(i, C) * (RIGHT - WRONG) + WRONG).mean()


def chosen(x: Any, i: Any) -> Any:
    return jnp.sum(-jax.nn.log_softmax(x) * jnp.where(jax.nn.one_hot(i, C) > 0, RIGHT, WRONG), -1)


def by_einsum(x: Any, i: Any) -> Any:
    soft = (1 - 0.2) * jax.nn.one_hot(i, C) + 0.2 / C
    return -jnp.einsum("bc,bc->b", soft, jax.nn.log_softmax(x))


def by_mean(x: Any, i: Any) -> Any:
    """As torch has it: a part of the loss is the mean over all classes."""
    logs = jax.nn.log_softmax(x)
    picked = jnp.take_along_axis(logs, i[:, None], -1)[:, 0]
    return -RIGHT * picked - 0.1 * logs.mean(-1)


SMOOTHED = {"softmax_cross_entropy": 1}
NOT_KNOWN = "its targets are not known to be one-hot"
WAYS = [
    Way("optax, smoothed labels", by_optax, LABELS, SMOOTHED),
    Way("optax, smoothed labels, bf16", by_optax, LABELS, SMOOTHED, jnp.bfloat16),
    Way("smoothed labels of flax's examples", of_wmt, LABELS, SMOOTHED),
    Way("smoothed labels, scaled", scaled, LABELS, SMOOTHED),
    Way("smoothed labels, chosen", chosen, LABELS, SMOOTHED),
    Way("smoothed labels by einsum", by_einsum, LABELS, SMOOTHED),
]

LOOKALIKES = [
    Way("smoothed labels of which some are 0", lambda x, i: _loss(
        x, jax.nn.one_hot(i, C) * 0.5 - 0.5), LABELS, {"log_softmax": 1}, misses=(NOT_KNOWN,)),
    Way("smoothed labels by a given number", lambda x, i, a: _loss(
        x, (1 - a[0]) * jax.nn.one_hot(i, C) + a[0] / C), (*LABELS, (1,)), {"log_softmax": 1},
        misses=(NOT_KNOWN,)),
    Way("a distribution", optax.softmax_cross_entropy, (X, X), {"log_softmax": 1},
        misses=(NOT_KNOWN,)),
    Way("smoothed labels by a mean", by_mean, LABELS, {"log_softmax": 1}, misses=(
        "its log_softmax is used elsewhere, as by smoothed labels or a derivative",)),
]  # fmt: skip
