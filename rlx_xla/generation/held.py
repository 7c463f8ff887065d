"""What a prompt shares with the one before it: its keys and values are in the caches already."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from rlx_xla.generation.programs import State


@final
@dataclass(frozen=True)
class Held:
    """Caches of one row that a call left.

    Attributes:
        ids: tokens in the caches, from ``start`` on.
        start: position of the first one.
        size: capacity.
        state: what lives on the device; whoever runs a step with it consumes it.
    """

    ids: tuple[int, ...]
    start: int
    size: int
    state: State


@final
@dataclass(frozen=True)
class Feed:
    """What a call feeds before its first new token.

    Attributes:
        ids: i32[batch, calls · chunk].
        chunk: tokens of a row in each call.
        start: i32[batch], the first position of each row that is not padding.
        begin: position of the first one.
        size: capacity.
    """

    ids: np.ndarray
    chunk: int
    start: np.ndarray
    begin: int
    size: int


def shared(held: Held, ids: Sequence[int]) -> int:
    """Return how many tokens from the first on need not be fed; the last one always is."""
    pairs = zip(held.ids, ids[:-1], strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(held.ids), len(ids) - 1))


def fresh(rows: Sequence[Sequence[int]], chunk: int, padded: int, size: int) -> Feed:
    """Feed whole prompts; shorter ones begin later."""
    ids = np.zeros((len(rows), padded), np.int32)
    for i, row in enumerate(rows):
        ids[i, padded - len(row) :] = row
    start = np.asarray([padded - len(row) for row in rows], np.int32)
    return Feed(ids, chunk, start, 0, size)


def rest(held: Held, ids: Sequence[int], chunk: int, size: int) -> Feed | None:
    """Feed what the caches lack, and so much before it that calls are whole; None without room."""
    end = held.start + len(ids)
    calls = -(-(len(ids) - shared(held, ids)) // chunk)
    begin = end - calls * chunk
    if begin < 0:
        return None
    whole = [0] * held.start + list(ids)
    fed = np.asarray([whole[begin:]], np.int32)
    return Feed(fed, chunk, np.asarray([held.start], np.int32), begin, size)
