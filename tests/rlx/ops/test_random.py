"""Random ops under a policy: the seed as a value of the graph, other backends, and refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rlx
from rlx import rng
from rlx.dims import symbol
from rlx.dtypes import DType
from rlx.errors import LoweringError
from rlx.ir.graph import Graph
from rlx.ops.random import RANDOM_OPS, RngNormal, RngUniform, Sample, draw, seeded
from rlx.ops.random.seeded import seed_value
from rlx.options.rng import RngBackend, RngOptions

OPS = (
    RngNormal(dtype=DType.F32, shape=(7, 3), mean=0.5, scale=2.0, key=5),
    RngUniform(dtype=DType.F16, shape=(65,), low=-1.0, high=3.0, key=2**63 + 9),
    RngUniform(dtype=DType.F32, shape=(3,)),
)


def _drawn_seed() -> int:
    return int(np.random.default_rng().integers(2**64, dtype=np.uint64))


def _words(seed: int) -> Any:
    return np.array([seed & 0xFFFFFFFF, seed >> 32], np.uint32)


@pytest.mark.parametrize("op", OPS, ids=str)
def test_the_seed_may_be_a_value_of_the_graph(op: Any) -> None:
    b = rlx.GraphBuilder("g")
    graph = b.build(seeded(op, (), b.param("seed", "u32[2]"), RngBackend.PHILOX))
    for seed in (0, _drawn_seed(), 2**64 - 1):
        (found,) = rlx.interpret(graph, {}, {"seed": _words(seed)})
        wanted = draw(op, RngOptions.philox(seed))
        np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6)
        if isinstance(op, RngUniform):
            assert np.array_equal(found, wanted)


def test_uniforms_are_those_of_the_stream() -> None:
    seed = _drawn_seed()
    found = draw(RngUniform(dtype=DType.F32, shape=(4, 5), key=3), RngOptions.philox(seed))
    wanted = rng.Philox4x32(rng.mixed_seed(seed, 3)).uniform((4, 5))
    assert np.array_equal(found, wanted)
    normal = draw(RngNormal(dtype=DType.F32, shape=(4, 5)), RngOptions.philox(seed))
    assert np.array_equal(normal, rng.Philox4x32(seed).normal((4, 5)))


def test_no_number_rounds_up_to_the_end_of_the_range() -> None:
    for dtype in (DType.BF16, DType.F16, DType.F8E4M3FN):
        for low, high in ((0.0, 1.0), (1.0, 2.0), (-3.0, -0.5)):
            op = RngUniform(dtype=dtype, shape=(5000,), low=low, high=high)
            found = draw(op, RngOptions.philox(_drawn_seed())).astype(np.float64)
            assert found.min() >= low
            assert found.max() < high


@pytest.mark.parametrize("op", OPS, ids=str)
def test_the_zero_backend_gives_zeros(op: Any) -> None:
    graph = Graph((), (), [seeded(op, (), seed_value(1), RngBackend.ZERO)])
    (found,) = rlx.interpret(graph)
    assert found.dtype == op.dtype.numpy
    assert found.shape == op.shape
    assert not found.any()
    assert not draw(op, RngOptions.zero()).any()


@pytest.mark.parametrize("op", OPS, ids=str)
def test_the_ort_backend_gives_onnx_runtimes_numbers(op: Any) -> None:
    seed = _drawn_seed()
    (found,) = rlx.interpret(Graph((), (), [seeded(op, (), seed_value(seed), RngBackend.ORT)]))
    assert np.array_equal(found, draw(op, RngOptions.ort(seed)))
    source = rng.normals if isinstance(op, RngNormal) else rng.uniforms
    unit = source(RngOptions.ort(seed), found.size, key=op.key).reshape(found.shape)
    factor, offset = (2.0, 0.5) if isinstance(op, RngNormal) else (op.high - op.low, op.low)
    np.testing.assert_allclose(found, unit * factor + offset, rtol=2e-3, atol=1e-3)


def test_the_ort_backend_needs_a_constant_seed_and_sizes() -> None:
    b = rlx.GraphBuilder("g")
    seed = b.param("seed", "u32[2]")
    plain = RngNormal(dtype=DType.F32, shape=(2,))
    message = (
        r"rng_normal: the ORT backend is required to know sizes and seed when the graph is "
        r"compiled; got shape \[2\] and a seed made by 'param'. Bind the symbols and pass the "
        r"seed as a constant, or use the Philox backend."
    )
    with pytest.raises(LoweringError, match=message):
        seeded(plain, (), seed, RngBackend.ORT)
    symbolic = RngUniform(dtype=DType.F32, shape=(symbol("b"),))
    with pytest.raises(LoweringError, match=r"rng_uniform: .* got shape \[b\] and a seed made by"):
        seeded(symbolic, (), seed_value(1), RngBackend.ORT)
    own = RngNormal(dtype=DType.F32, shape=(2,), op_seed=7.0)
    (found,) = rlx.interpret(Graph((), (), [seeded(own, (), seed, RngBackend.ORT)]), {}, {})
    assert np.array_equal(found, rng.normals(RngOptions.ort(7), 2))


def test_only_random_ops_are_seeded() -> None:
    b = rlx.GraphBuilder("g")
    x = b.input("x", "f32[2]")
    message = r"seeded: a random op \(rng_normal, rng_uniform, sample\) is required; got 'neg'"
    with pytest.raises(LoweringError, match=message):
        seeded(rlx.ops.Neg(), (x,), seed_value(1), RngBackend.PHILOX)


def test_a_seed_of_its_own_keeps_a_sample_from_the_policy() -> None:
    logits = np.random.default_rng().normal(size=(64, 50)).astype(np.float32)
    own = [draw(Sample(seed=9), RngOptions.philox(s), logits) for s in (1, 2)]
    assert np.array_equal(own[0], own[1])
    free = [draw(Sample(), RngOptions.philox(s), logits) for s in (1, 2, 9)]
    assert not np.array_equal(free[0], free[1])
    assert np.array_equal(free[2], own[0])
    kept = draw(Sample(top_k=3), RngOptions.zero(), logits)
    wanted = [np.flatnonzero(row >= np.sort(row)[-3])[0] for row in logits]
    assert np.array_equal(kept, wanted)  # r = 0 takes the first that is kept


def test_samples_follow_their_probabilities() -> None:
    weights = np.array([0.1, 0.2, 0.3, 0.4], np.float32)
    logits = np.tile(np.log(weights), (20000, 1))
    found = draw(Sample(), RngOptions.philox(_drawn_seed()), logits)
    np.testing.assert_allclose(np.bincount(found, minlength=4) / 20000, weights, atol=0.03)
    warm = draw(Sample(temperature=0.5), RngOptions.philox(_drawn_seed()), logits)
    squares = weights**2 / (weights**2).sum()
    np.testing.assert_allclose(np.bincount(warm, minlength=4) / 20000, squares, atol=0.03)
    nucleus = draw(Sample(top_p=0.65), RngOptions.philox(_drawn_seed()), logits)
    shares = np.bincount(nucleus, minlength=4) / 20000
    np.testing.assert_allclose(shares, [0, 0, 3 / 7, 4 / 7], atol=0.03)


def test_draws_are_not_folded() -> None:
    logits = rlx.constant(np.zeros((4, 3), np.float32))
    values = [Sample()(logits), RngNormal(dtype=DType.F32, shape=(2,))()]
    graph = Graph((), (), values)
    folded = rlx.passes.run(graph, [rlx.passes.FoldConstants()])
    assert [n.op for n in folded.nodes() if isinstance(n.op, RANDOM_OPS)] == [
        v.node.op for v in values
    ]
