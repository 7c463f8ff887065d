"""The kernels of products with an epilogue and of residual norms: where they are taken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

import rlx
import rlx_xla
from rlx.ops.activation_kinds import Activation
from rlx.ops.fused import FusedMatmulBiasAct, FusedResidualLn
from rlx.types import as_type
from rlx_xla.kernels import ffi
from rlx_xla.kernels.base import Refused, Supported
from rlx_xla.kernels.library import matmul
from rlx_xla.kernels.select import kernels_for

PRODUCT, NORM = "fused_matmul_bias_act.cpu.ffi", "fused_residual_ln.cpu.ffi"


@pytest.fixture(autouse=True)
def _library() -> None:
    library = ffi.load()
    if isinstance(library, ffi.Unavailable):
        pytest.skip(library.reason)


def _kernels(function: Any) -> list[str]:
    return [c.implementation for c in function.report().choices if c.kind == "kernel"]


@pytest.mark.skipif(not matmul.WIDE, reason="other CPUs gain nothing")
@pytest.mark.parametrize(
    "activation",
    [
        lambda y: y,
        jax.nn.relu,
        lambda y: jax.nn.gelu(y, approximate=False),
        lambda y: jax.nn.gelu(y, approximate=True),
        jax.nn.silu,
    ],
    ids=["none", "relu", "gelu", "gelu_approx", "silu"],
)
def test_a_dense_layer_is_one_kernel(
    activation: Callable[[jax.Array], jax.Array], rng: np.random.Generator
) -> None:
    x = jnp.asarray(rng.normal(size=(2, 6, 200)), jnp.float32)
    w = jnp.asarray(rng.normal(size=(200, 150)) / 14, jnp.float32)
    b = jnp.asarray(rng.normal(size=150), jnp.float32)

    def layer(x: jax.Array, w: jax.Array, b: jax.Array) -> jax.Array:
        return activation(x @ w + b[None, None])

    ours = rlx_xla.jit(layer)
    np.testing.assert_allclose(ours(x, w, b), jax.jit(layer)(x, w, b), rtol=1e-5, atol=2e-6)
    assert _kernels(ours) == [PRODUCT]


def test_a_residual_norm_is_one_kernel(rng: np.random.Generator) -> None:
    x, residual = (jnp.asarray(rng.normal(size=(3, 5, 70)), jnp.float32) for _ in range(2))
    gamma, beta = (jnp.asarray(rng.normal(size=70), jnp.float32) for _ in range(2))

    def norm(x: jax.Array, r: jax.Array, gamma: jax.Array, beta: jax.Array) -> jax.Array:
        total = x + r
        mean = total.mean(axis=-1, keepdims=True)
        apart = total - mean
        variance = jnp.square(apart).mean(axis=-1, keepdims=True)
        return apart * jax.lax.rsqrt(variance + 1e-6) * gamma[None, None] + beta[None, None]

    ours = rlx_xla.jit(norm)
    args = (x, residual, gamma, beta)
    np.testing.assert_allclose(ours(*args), jax.jit(norm)(*args), rtol=2e-5, atol=2e-6)
    assert _kernels(ours) == [NORM]


@pytest.mark.skipif(not matmul.WIDE, reason="other CPUs gain nothing")
def test_the_gelu_keeps_the_digits_of_its_tail() -> None:
    x = np.linspace(-12.9, 6, 200 * 16, dtype=np.float32).reshape(16, 200)
    op = FusedMatmulBiasAct(activation=Activation.GELU)
    b = rlx.GraphBuilder()
    given = [b.input("x", "f32[16, 200]"), b.input("w", "f32[200, 200]"), b.input("b", "f32[200]")]
    compiled = rlx.Session("cpu").compile(b.build(op(*given)))
    one = {"x": x, "w": np.eye(200, dtype=np.float32), "b": np.zeros(200, np.float32)}
    found = compiled.run(one)[0]
    wide = x.astype(np.float64)
    wanted = 0.5 * wide * scipy.special.erfc(-wide / np.sqrt(2))
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=0)
    assert _kernels(compiled) == [PRODUCT]


@pytest.mark.parametrize(
    ("op", "types", "reason"),
    [
        (
            FusedMatmulBiasAct(),
            ["bf16[4, 200]", "bf16[200, 200]", "bf16[200]"],
            "x is bf16, and f32 is taken",
        ),
        (
            FusedMatmulBiasAct(),
            ["f32[b, 200]", "f32[200, 200]", "f32[200]"],
            "f32[b, 200] is not static",
        ),
        (
            FusedMatmulBiasAct(activation=Activation.TANH),
            ["f32[4, 200]", "f32[200, 200]", "f32[200]"],
            "the activation is tanh, and relu, gelu, gelu_approx, silu are taken",
        ),
        (
            FusedMatmulBiasAct(),
            ["f32[1, 200]", "f32[200, 200]", "f32[200]"],
            "1 rows times 40000 elements gain nothing (8 to 64 rows and 16384 to 4194304 elements "
            "with at most 16777216 terms do)",
        ),
        (
            FusedResidualLn(),
            ["bf16[4, 200]", "bf16[4, 200]", "bf16[200]", "bf16[200]"],
            "x is bf16, and f32 is taken",
        ),
        (
            FusedResidualLn(),
            ["f32[b, 200]", "f32[b, 200]", "f32[200]", "f32[200]"],
            "f32[b, 200] is not static",
        ),
        (
            FusedResidualLn(),
            ["f32[2, 200]", "f32[2, 200]", "f32[200]", "f32[200]"],
            "400 elements are not from 512 to 1048576, which gain",
        ),
    ],
)
def test_refusals(op: Any, types: list[str], reason: str) -> None:
    (kernel,) = kernels_for(type(op), "cpu")
    assert kernel.supports(op, [as_type(t) for t in types], "cpu") == Refused(reason)


def test_what_is_taken() -> None:
    (norm,) = kernels_for(FusedResidualLn, "cpu")
    types = [as_type(t) for t in ("f32[4, 200]", "f32[4, 200]", "f32[200]", "f32[200]")]
    assert norm.supports(FusedResidualLn(), types, "cpu") == Supported()


def _refused(
    symbol: str, args: list[np.ndarray[Any, Any]], message: str, **attributes: Any
) -> None:
    library = ffi.load()
    assert not isinstance(library, ffi.Unavailable)
    call = jax.ffi.ffi_call(library.target(symbol), jax.ShapeDtypeStruct((2, 3), jnp.float32))
    with pytest.raises(jax.errors.JaxRuntimeError, match=f"{symbol}: {message}"):
        jax.block_until_ready(jax.jit(lambda *a: call(*a, **attributes))(*args))


def test_the_handlers_check_their_calls() -> None:
    x, w, bias = (np.zeros(s, np.float32) for s in ((2, 4), (4, 3), (3,)))
    product = "rlx_fused_matmul_bias_act_f32_cpu"
    text = r"an activation from 0 to 4 is required; got 5\."
    _refused(product, [x, w, bias], text, activation=np.int64(5))
    text = r"x \[..., k\], weight \[k, n\] and bias \[n\] are required; got \[2, 4\], \[4, 3\] and "
    more = r"\[4\] -> \[2, 3\]\."
    _refused(product, [x, w, np.zeros(4, np.float32)], text + more, activation=np.int64(0))
    text = "x and residual of one shape and vectors of x's last axis are required; got "
    more = r"\[2, 3\], \[2, 3\] and \[4\] -> \[2, 3\]\."
    total, long = np.zeros((2, 3), np.float32), np.zeros(4, np.float32)
    norm = "rlx_fused_residual_ln_f32_cpu"
    _refused(norm, [total, total, long, bias], text + more, eps=np.float32(1e-5))
