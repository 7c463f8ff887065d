"""Sizes of an attention, whatever the layout of its inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from rlx import dims
from rlx.ops.attention import Attention
from rlx.types import TensorType


@final
@dataclass(frozen=True)
class Sizes:
    """Sizes of a problem."""

    batch: int
    queries: int
    keys: int
    heads: int
    kv_heads: int
    dim: int
    v_dim: int


def sizes_of(op: Attention, types: Sequence[TensorType]) -> Sizes:
    """Sizes of an attention of static inputs of rank 4, in either layout."""
    q, k, v = ([dims.evaluate(d, {}) for d in t.shape] for t in types[:3])
    if op.layout == "bhsd":
        q, k, v = ([x[0], x[2], x[1], x[3]] for x in (q, k, v))
    return Sizes(q[0], q[1], k[1], q[2], k[2], q[3], v[3])
