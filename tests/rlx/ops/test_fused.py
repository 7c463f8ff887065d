"""Fused ops against their formulas in float64, written out; and where they round."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.dtypes import DType
from rlx.ops.activation_kinds import Activation
from rlx.ops.fused import (
    BatchElementwiseRegion,
    ElementwiseRegion,
    FusedAttentionBlock,
    FusedConvBiasAct,
    FusedMatmulBiasAct,
    FusedMatmulResidual,
    FusedResidualLn,
    FusedResidualRmsNorm,
    FusedSwiglu,
    FusedTransformerLayer,
    RegionPrologue,
    TransformRegion,
    TransformStep,
)
from rlx.ops.fused.regions import is_elementwise
from rlx.ops.io import Input

Array = np.ndarray[Any, Any]


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def _erf(x: Array) -> Array:
    return np.vectorize(math.erf)(x)


FORMULAS: dict[Activation, Callable[[Array], Array]] = {
    Activation.GELU: lambda x: x * (1 + _erf(x / np.sqrt(2))) / 2,
    Activation.GELU_APPROX: lambda x: (
        x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))) / 2
    ),
    Activation.SILU: lambda x: x * sigmoid(x),
    Activation.RELU: lambda x: np.maximum(x, 0),
    Activation.SIGMOID: sigmoid,
    Activation.TANH: np.tanh,
    Activation.EXP: np.exp,
    Activation.LOG: np.log,
    Activation.SQRT: np.sqrt,
    Activation.RSQRT: lambda x: x**-0.5,
    Activation.NEG: np.negative,
    Activation.ABS: np.abs,
    Activation.SIN: np.sin,
    Activation.COS: np.cos,
    Activation.TAN: np.tan,
    Activation.ATAN: np.arctan,
    Activation.ROUND: np.rint,
    Activation.RECIP: np.reciprocal,
    Activation.FLOOR: np.floor,
    Activation.CEIL: np.ceil,
    Activation.SIGN: np.sign,
    Activation.SOFTPLUS: lambda x: np.log1p(np.exp(x)),
    Activation.ELU: lambda x: np.where(x > 0, x, np.expm1(x)),
    Activation.ERF: _erf,
    Activation.HARD_SWISH: lambda x: x * np.clip(x + 3, 0, 6) / 6,
    Activation.HARD_SIGMOID: lambda x: np.clip(x / 6 + 0.5, 0, 1),
    Activation.MISH: lambda x: x * np.tanh(np.log1p(np.exp(x))),
    Activation.SOFTSIGN: lambda x: x / (1 + np.abs(x)),
    Activation.LOG_SIGMOID: lambda x: np.log(sigmoid(x)),
}
POSITIVE = (Activation.LOG, Activation.SQRT, Activation.RSQRT)


@pytest.mark.parametrize("kind", Activation)
def test_every_activation(rng: np.random.Generator, kind: Activation) -> None:
    x = rng.uniform(0.5 if kind in POSITIVE else -4, 4, (5, 1))
    op = FusedMatmulBiasAct(activation=kind)
    found = op.evaluate(x, np.ones((1, 1)), np.zeros(1))
    np.testing.assert_allclose(found, FORMULAS[kind](x), rtol=1e-10, atol=1e-12)


def test_halves_round_to_the_even_neighbour() -> None:
    op = FusedMatmulBiasAct(activation=Activation.ROUND)
    x = np.array([[0.5], [1.5], [2.5], [-0.5]])
    assert op.evaluate(x, np.ones((1, 1)), np.zeros(1)).ravel().tolist() == [0, 2, 2, 0]


def test_products(rng: np.random.Generator) -> None:
    x, w = rng.uniform(-1, 1, (2, 3, 4)), rng.uniform(-1, 1, (4, 5))
    bias, residual = rng.uniform(-1, 1, 5), rng.uniform(-1, 1, (2, 3, 5))
    np.testing.assert_allclose(FusedMatmulBiasAct().evaluate(x, w, bias), x @ w + bias, rtol=1e-12)
    found = FusedMatmulResidual().evaluate(x, w, residual)
    np.testing.assert_allclose(found, x @ w + residual, rtol=1e-12)


def test_a_product_is_rounded_once() -> None:
    """256 + 1 + 1 in bf16: rounding the product first would lose both ones."""
    bf16 = DType.BF16.numpy
    x, w = np.array([[16, 1]], bf16), np.array([[16], [1]], bf16)
    assert FusedMatmulBiasAct().evaluate(x, w, np.array([1], bf16)).item() == 258
    assert FusedMatmulResidual().evaluate(x, w, np.array([[1]], bf16)).item() == 258


def test_swiglu(rng: np.random.Generator) -> None:
    x = rng.uniform(-3, 3, (2, 10))
    up, gate = x[:, :5], x[:, 5:]
    found = FusedSwiglu().evaluate(x)
    np.testing.assert_allclose(found, gate * sigmoid(gate) * up, rtol=1e-12)
    found = FusedSwiglu(gate_first=True).evaluate(x)
    np.testing.assert_allclose(found, up * sigmoid(up) * gate, rtol=1e-12)
    assert FusedSwiglu(cast_to=DType.F16).evaluate(x).dtype == np.float16


def test_convolution(rng: np.random.Generator) -> None:
    x, w = rng.uniform(-1, 1, (1, 2, 5)), rng.uniform(-1, 1, (3, 2, 3))
    bias, residual = rng.uniform(-1, 1, 3), rng.uniform(-1, 1, (1, 3, 5))
    op = FusedConvBiasAct(stride=(1,), padding=(1,), dilation=(1,), activation=Activation.RELU)
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1)))
    plain = np.stack([(padded[:, None, :, p : p + 3] * w).sum((2, 3)) for p in range(5)], axis=-1)
    total = plain + bias[:, None]
    np.testing.assert_allclose(op.evaluate(x, w, bias), np.maximum(total, 0), rtol=1e-10)
    found = op.evaluate(x, w, bias, residual)
    np.testing.assert_allclose(found, np.maximum(total + residual, 0), rtol=1e-10)


def test_residual_norms(rng: np.random.Generator) -> None:
    x, residual = rng.uniform(-1, 1, (2, 3, 7)), rng.uniform(-1, 1, (2, 3, 7))
    gamma, beta, bias = rng.uniform(-1, 1, (3, 7))
    for extra in ((), (bias,)):
        total = x + residual + (bias if extra else 0)
        centred = total - total.mean(-1, keepdims=True)
        wanted = centred / np.sqrt(total.var(-1, keepdims=True) + 1e-3) * gamma + beta
        found = FusedResidualLn(eps=1e-3).evaluate(x, residual, gamma, beta, *extra)
        np.testing.assert_allclose(found, wanted, rtol=1e-10)
        square = (total**2).mean(-1, keepdims=True)
        wanted = total / np.sqrt(square + 1e-3) * gamma + beta
        found = FusedResidualRmsNorm(eps=1e-3).evaluate(x, residual, gamma, beta, *extra)
        np.testing.assert_allclose(found, wanted, rtol=1e-10)


def attend(q: Array, k: Array, v: Array, seen: Array, heads: int) -> Array:
    """[B, S, H·D] in and out; seen is [B, S]."""
    batch, packed = q.shape[0], q.shape[2]
    width = packed // heads
    out = np.zeros_like(q)
    for b in range(batch):
        for h in range(heads):
            part = slice(h * width, (h + 1) * width)
            scores = q[b, :, part] @ k[b, :, part].T / np.sqrt(width)
            weights = np.exp(scores) * seen[b]
            out[b, :, part] = weights / weights.sum(1, keepdims=True) @ v[b, :, part]
    return out


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("has_rope", [False, True])
def test_attention_block(rng: np.random.Generator, has_bias: bool, has_rope: bool) -> None:
    hidden = rng.uniform(-1, 1, (2, 5, 6))
    qkv, out = rng.uniform(-1, 1, (6, 24)), rng.uniform(-1, 1, (8, 3))
    biases = [rng.uniform(-1, 1, 24), rng.uniform(-1, 1, 3)] if has_bias else [0, 0]
    seen = rng.integers(0, 2, (2, 5))
    seen[:, 2] = 1
    angles = rng.uniform(0, 6, (5, 2))
    q, k, v = np.split(hidden @ qkv + biases[0], 3, axis=-1)
    if has_rope:
        spread = np.exp(1j * angles)[:, None]
        for x in (q, k):
            heads = x.reshape(2, 5, 2, 2, 2)
            turned = (heads[..., 0, :] + 1j * heads[..., 1, :]) * spread
            heads[..., 0, :], heads[..., 1, :] = turned.real, turned.imag
    wanted = attend(q, k, v, seen, 2) @ out + biases[1]
    op = FusedAttentionBlock(num_heads=2, head_dim=4, has_bias=has_bias, has_rope=has_rope)
    extras = [
        *(biases if has_bias else ()),
        *((np.cos(angles), np.sin(angles)) if has_rope else ()),
    ]
    found = op.evaluate(hidden, qkv, out, seen.astype(np.float64), *extras)
    np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("has_bias", [False, True])
def test_transformer_layer(rng: np.random.Generator, has_bias: bool) -> None:
    def norm(x: Array, gamma: Array, beta: Array) -> Array:
        centred = x - x.mean(-1, keepdims=True)
        return centred / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * gamma + beta

    hidden = rng.uniform(-1, 1, (2, 5, 6))
    qkv, out = rng.uniform(-1, 1, (6, 24)), rng.uniform(-1, 1, (8, 6))
    fc1, fc2 = rng.uniform(-1, 1, (6, 9)), rng.uniform(-1, 1, (9, 6))
    g1, b1, g2, b2 = rng.uniform(-1, 1, (4, 6))
    biases = [rng.uniform(-1, 1, n) if has_bias else np.zeros(n) for n in (24, 6, 9, 6)]
    seen = np.ones((2, 5), bool)
    q, k, v = np.split(hidden @ qkv + biases[0], 3, axis=-1)
    middle = norm(hidden + attend(q, k, v, seen, 2) @ out + biases[1], g1, b1)
    inner = FORMULAS[Activation.GELU](middle @ fc1 + biases[2])
    wanted = norm(middle + inner @ fc2 + biases[3], g2, b2)
    op = FusedTransformerLayer(num_heads=2, head_dim=4, eps=1e-5)
    arrays = (hidden, qkv, out, seen, g1, b1, fc1, fc2, g2, b2, *(biases if has_bias else ()))
    np.testing.assert_allclose(op.evaluate(*arrays), wanted, rtol=1e-9, atol=1e-11)


def scalar_body() -> rlx.Graph:
    """(a, b) → (a − b)²"""
    a, b = (Input(name=n, dtype=DType.F64, shape=())() for n in "ab")
    return rlx.Graph((a, b), (), ((a - b) * (a - b),), name="body")


@pytest.mark.parametrize(
    "shapes", [((4, 1), (4, 5)), ((4, 5), (4, 1)), ((5,), (4, 5)), ((1, 5), (4, 1)), ((), (3,))]
)
def test_regions_broadcast_as_numpy_does(rng: np.random.Generator, shapes: Any) -> None:
    """[4, 1] against [4, 5] divides evenly, and still reads one element for each row."""
    a, b = (rng.uniform(-1, 1, shape) for shape in shapes)
    found = ElementwiseRegion(body=scalar_body()).evaluate(a, b)
    np.testing.assert_array_equal(found, (a - b) ** 2)


def test_a_region_resizes_an_input_first(rng: np.random.Generator) -> None:
    image, offset = rng.uniform(-1, 1, (1, 2, 3, 2)), rng.uniform(-1, 1, (2, 1, 1))
    op = ElementwiseRegion(body=scalar_body(), prologue=RegionPrologue.RESIZE_NEAREST_2X)
    large = image.repeat(2, 2).repeat(2, 3)
    np.testing.assert_array_equal(op.evaluate(image, offset), (large - offset) ** 2)


def test_slices_are_joined(rng: np.random.Generator) -> None:
    slices = [rng.uniform(-1, 1, (2, 3)) for _ in range(3)]
    shared = rng.uniform(-1, 1, 3)
    op = BatchElementwiseRegion(body=scalar_body(), num_batch_inputs=3)
    wanted = np.concatenate([(x - shared) ** 2 for x in slices])
    np.testing.assert_array_equal(op.evaluate(*slices, shared), wanted)


def test_transform_steps_read_inputs_and_steps(rng: np.random.Generator) -> None:
    first, second = rng.uniform(-1, 1, (1, 1, 2, 3)), rng.uniform(-1, 1, (1, 2, 1, 1))
    step = TransformStep.RESIZE_NEAREST_2X
    found = TransformRegion(steps=((step, 0), (step, 1), (step, 3))).evaluate(first, second)
    np.testing.assert_array_equal(found, np.broadcast_to(second, (1, 2, 4, 4)))


def test_regions_print_parse_and_bind() -> None:
    b = rlx.GraphBuilder()
    x, y = b.input("x", "f64[n, 1]"), b.input("y", "f64[n, m]")
    graph = b.build(ElementwiseRegion(body=scalar_body())(x, y))
    assert rlx.same(rlx.parse(str(graph)), graph)
    assert str(rlx.bind(graph, {"n": 2, "m": 3}).outputs[0].type) == "f64[2, 3]"


def test_what_may_stand_in_a_region() -> None:
    assert is_elementwise(rlx.ops.Gelu())
    assert is_elementwise(rlx.ops.Convert(dtype=DType.I8))
    assert not is_elementwise(rlx.ops.Reshape(shape=(1,)))
    assert not is_elementwise(rlx.ops.OptimizationBarrier())
