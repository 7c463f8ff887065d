"""Whether the tokens that a model chooses stay the same where its logits change a little.

Two ways to compute a model give logits that differ in their last digits. Where two tokens are as
near as that either is right, and comparing tells nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlx_xla.generation import sampling

NUDGE = 1e-4
"""By how much logits are changed; two ways differ by 5e-6."""

TRIES = 20
"""Changes that are tried, each up or down for each logit: a tie shows itself in one of two."""


@contextmanager
def watched() -> Iterator[list[bool]]:
    """Let programs that are made inside say of each step whether a change would change its tokens.

    Yields:
        What they said; ``jax.effects_barrier()`` waits for all of it.
    """
    said: list[bool] = []
    choose = sampling.choose
    seed = int(np.random.default_rng().integers(2**31))

    def watching(logits: jax.Array, *rest: Any) -> tuple[jax.Array, jax.Array]:
        signs = jax.random.rademacher(jax.random.key(seed), (TRIES, *logits.shape), jnp.float32)
        tokens, logprobs = choose(logits, *rest)
        others = jax.vmap(lambda sign: choose(logits + NUDGE * sign, *rest)[0])(signs)
        moved = (others != tokens[None]).any()
        jax.debug.callback(lambda moved: said.append(bool(moved)), moved)
        return tokens, logprobs

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampling, "choose", watching)
        yield said
