"""Reductions by a computation of one's own, evaluated."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rlx.dtypes import DType
from rlx.ir.graph import Graph
from rlx.ops.arithmetic import Max
from rlx.ops.bitwise import Or
from rlx.ops.compare import Select
from rlx.ops.io import Input
from rlx.ops.reduction import Reduce


def _body(kind: str) -> Graph:
    m0, n0, m1, n1 = (
        Input(name=name, dtype=dtype)()
        for name, dtype in zip("abcd", (DType.F32, DType.I32) * 2, strict=True)
    )
    if kind == "extreme":
        return Graph([m0, n0, m1, n1], (), [Max()(m0, m1), Or()(n0, n1)])
    # Associative, and not the same from right to left: the last pair whose flag is set.
    taken = n1.ne(0)
    return Graph([m0, n0, m1, n1], (), [Select()(taken, m1, m0), Select()(taken, n1, n0)])


@pytest.mark.parametrize("size", [0, 1, 2, 7, 64, 65])
@pytest.mark.parametrize("kind", ["extreme", "last"])
def test_neighbours_are_combined_in_their_order(
    kind: str, size: int, rng: np.random.Generator
) -> None:
    x = rng.standard_normal((3, size, 2)).astype(np.float32)
    flags = rng.integers(0, 2, x.shape, dtype=np.int32)
    first = (np.float32(-1.5), np.int32(0))
    op = Reduce(axes=(1,), body=_body(kind))
    found = op.evaluate(x, flags, *(np.asarray(v) for v in first))
    for row, column in np.ndindex(3, 2):
        state: tuple[Any, Any] = first
        for value, flag in zip(x[row, :, column], flags[row, :, column], strict=True):
            if kind == "extreme":
                state = max(state[0], value), state[1] | flag
            elif flag:
                state = value, flag
        assert (found[0][row, column], found[1][row, column]) == state
