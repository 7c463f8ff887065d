"""Factorisations in NumPy of what has none."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import rlx
from rlx import ops as typed_ops

ops: Any = typed_ops


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("uv", [True, False])
def test_singular_values_of_infinities_are_nan_and_end(
    rng: np.random.Generator, bad: float, uv: bool
) -> None:
    b = rlx.GraphBuilder()
    made = ops.Svd(compute_uv=uv)(b.input("x", "f32[2, 5, 3]"))
    graph = b.build(*(made if isinstance(made, tuple) else (made,)))
    x = rng.normal(size=(2, 5, 3)).astype(np.float32)
    x[1, 0, 0] = bad
    found: list[Any] = []
    # Without the check NumPy's LAPACK never comes back for an infinity.
    work = threading.Thread(target=lambda: found.extend(rlx.interpret(graph, {"x": x})))
    work.daemon = True
    work.start()
    work.join(30)
    assert len(found) == (3 if uv else 1)
    for part in found:
        assert np.isfinite(part[0]).all()
        assert np.isnan(part[1]).all()
