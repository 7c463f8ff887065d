"""Field cases about numbers that a compiler may not change, and about arguments it may not drop.

Every graph is compiled with ``validate``, so that the pass that changed a result would be named.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

import rlx

DEVICES = [d for d in ("interpret", "cpu") if d in rlx.registered_devices()]
OPTIONS = [
    rlx.CompileOptions(validate=True, strict=strict, cache_param_invariant=staged, dce=dce)
    for strict, staged, dce in itertools.product((False, True), repeat=3)
]


@pytest.fixture(params=DEVICES)
def session(request: pytest.FixtureRequest) -> rlx.Session:
    return rlx.Session(request.param)


@pytest.mark.parametrize("options", OPTIONS, ids=range(len(OPTIONS)))
def test_d9_zero_times_nan_stays_nan(session: rlx.Session, options: rlx.CompileOptions) -> None:
    """Values [1, 1], mask [F, T]: the masked loss is 0 · (0/0), and so is the total."""
    b = rlx.GraphBuilder("losses")
    values, mask = b.input("values", "f32[2]"), b.input("mask", "bool[2]")
    weight = mask.convert(rlx.DType.F32)
    empty = weight * 0.0
    loss_1 = (values * weight).sum() / weight.sum()
    loss_2 = (values * empty).sum() / empty.sum() * 0.0
    compiled = session.compile(b.build(loss_1, loss_2, loss_1 + loss_2), options=options)
    found = compiled.run({"values": [1.0, 1.0], "mask": [False, True]})
    assert float(found[0]) == 1.0
    assert math.isnan(found[1])
    assert math.isnan(found[2])


@pytest.mark.parametrize("options", OPTIONS, ids=range(len(OPTIONS)))
def test_d10_sums_keep_their_order(session: rlx.Session, options: rlx.CompileOptions) -> None:
    """x − (x + y) + y with x = 1e30 and y = 1 is 1."""
    b = rlx.GraphBuilder("sum")
    x, y = b.input("x", "f32[]"), b.input("y", "f32[]")
    compiled = session.compile(b.build(x - (x + y) + y), options=options)
    assert float(compiled.run({"x": 1e30, "y": 1.0})[0]) == 1.0
    b = rlx.GraphBuilder("bound")
    x, y = b.input("x", "f32[]"), b.param("y", "f32[]")
    graph = b.build(x - (x + y) + y)
    fixed = session.compile(graph, options=options.replace(param_bindings={"y": 1.0}))
    assert float(fixed.run({"x": 1e30})[0]) == 1.0


def test_h4_one_array_twice_and_arguments_that_nothing_reads(session: rlx.Session) -> None:
    b = rlx.GraphBuilder("first")
    first, _ = b.input("x", "f32[3]"), b.input("y", "f32[3]")
    x = np.arange(3, dtype=np.float32)
    compiled = session.compile(b.build(first))
    assert np.asarray(compiled(x, x)).tolist() == [0.0, 1.0, 2.0]
    b = rlx.GraphBuilder("ignores")
    x_input, _ = b.input("x", "f32[1000]"), b.input("t", "f32[1001]")
    compiled = session.compile(b.build(x_input * 2.0))
    found = compiled(np.ones(1000, np.float32), np.ones(1001, np.float32))
    assert np.asarray(found).sum() == 2000.0
