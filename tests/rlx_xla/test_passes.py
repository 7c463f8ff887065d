"""What the pipeline does to traced functions on their way to XLA."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rlx
import rlx_xla


def test_e3_a_transposed_weight_is_never_moved() -> None:
    """Field case E3; that it runs as fast as the einsum form is shown by the benchmarks."""
    x, w = jnp.ones((1, 512)), jnp.ones((512, 512))
    compiled = rlx.Session("cpu").compile(rlx_xla.trace(lambda x, w: x @ w.T, x, w))
    assert "transpose" not in compiled.stablehlo()
    assert compiled.memory()["temp"] < 512 * 512 * 4 / 2
    np.testing.assert_allclose(compiled(x, w), np.full((1, 512), 512.0))


def test_a_masked_loss_keeps_its_nan() -> None:
    def losses(x, mask):
        loss = jnp.sum(jnp.where(mask, x * jnp.nan, 0.0) + 0.0 * jnp.log(-x))
        return {"loss": loss, "total": loss + jnp.sum(x)}

    args = (jnp.array([1.0, 1.0]), jnp.array([False, True]))
    compiled = rlx.Session("cpu").compile(rlx_xla.trace(losses, *args))
    assert all(np.isnan(v) for v in compiled(*args).values())


def test_a_jitted_function_prints_once_and_stays_one_function_when_called_often() -> None:
    @jax.jit
    def long(x):
        for _ in range(6):
            x = jnp.exp(jnp.sin(jnp.cos(x) + 1.0) * 2.0) - 3.0
        return jnp.tanh(x)

    x = jnp.ones(3)
    for fn, calls in ((lambda x: long(x), 0), (lambda x: long(long(x)), 2)):
        traced = rlx_xla.trace(fn, x)
        assert str(traced.graph).count(" tanh(") == 1
        compiled = rlx.Session("cpu").compile(traced)
        assert compiled.stablehlo().count(" call @") == calls
        np.testing.assert_allclose(compiled(x), fn(x), rtol=1e-6)


def test_an_update_of_huge_ones_embeds_no_literal() -> None:
    traced = rlx_xla.trace(lambda: jnp.ones((500, 500, 500)).at[100, 100, 100].set(2))
    lir = rlx.Session("cpu").lower(traced.graph)
    constants = [n for n in lir.graph.nodes() if n.op.op_name == "constant"]
    assert sum(n.types[0].nbytes for n in constants) < 10_000


def test_validation_accepts_the_pipeline_on_a_traced_network() -> None:
    def network(w, x):
        for _ in range(2):
            x = jax.nn.relu(x @ w.T + 1.0)
        return jax.nn.softmax(x)

    args = (jnp.ones((4, 4)), jnp.ones((2, 4)))
    compiled = rlx.Session("cpu").compile(
        rlx_xla.trace(network, *args), options=rlx.CompileOptions(validate=True)
    )
    np.testing.assert_allclose(compiled(*args), jax.jit(network)(*args), rtol=1e-6)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("axis", [0, 1, None])
@pytest.mark.parametrize("reduce", [jnp.max, jnp.min])
def test_extremes_keep_nan(
    reduce: Callable[..., Any], axis: int | None, dtype: Any, rng: np.random.Generator
) -> None:
    """XLA's CPU drops it in arrays of this size, under ``jax.jit`` too (seen in jax 0.10)."""
    x = jnp.asarray(rng.standard_normal((67, 65)), dtype)
    compiled = rlx.Session("cpu").compile(rlx_xla.trace(lambda x: reduce(x, axis), x))
    place = tuple(int(rng.integers(size)) for size in x.shape)
    for value in (x, x.at[place].set(jnp.nan), x.at[place].set(jnp.inf)):
        found = np.asarray(compiled(value), np.float64)
        wanted = getattr(np, reduce.__name__)(np.asarray(value, np.float64), axis)
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("reduce", [jnp.max, jnp.min])
def test_extremes_of_all_kinds_of_rows(
    reduce: Callable[..., Any], dtype: Any, rng: np.random.Generator
) -> None:
    """NaN of both signs and many payloads, infinities, rows of one sign, zeros."""
    x = np.asarray(rng.standard_normal((12, 100)), dtype)
    x[1], x[2] = np.abs(x[1]), -np.abs(x[2])
    x[3], x[4], x[5, 3:9] = np.inf, -np.inf, (0, -0.0, np.inf, -np.inf, 1, -1)
    for row in (6, 7, 8, 9):  # the largest and the smallest NaN of either sign
        bits = x[row : row + 1].view(f"i{x.itemsize}")
        infinity = int(np.asarray(np.inf, x.dtype).view(bits.dtype))
        most = np.iinfo(bits.dtype).max
        nan = infinity + 1 if row % 2 else most
        bits[0, rng.integers(100)] = nan if row < 8 else nan - most - 1
    x[10] = np.nan
    compiled = rlx.Session("cpu").compile(rlx_xla.trace(lambda x: reduce(x, -1), jnp.asarray(x)))
    assert "stablehlo.bitcast_convert" in compiled.stablehlo()  # one reduction of integers
    found = np.asarray(compiled(jnp.asarray(x)), np.float64)
    with np.errstate(invalid="ignore"):  # signalling ones
        wide = np.asarray(x, np.float64)
    np.testing.assert_array_equal(found, getattr(np, reduce.__name__)(wide, -1))


def test_a_recognised_softmax_keeps_its_plain_maximum() -> None:
    x = jnp.ones((64, 65))
    compiled = rlx.Session("cpu").compile(rlx_xla.trace(jax.nn.softmax, x))
    assert "stablehlo.or" not in compiled.stablehlo()


@pytest.mark.parametrize(
    "policy",
    [
        rlx.PrecisionPolicy.AUTO_MIXED,
        rlx.PrecisionPolicy.AUTO_MIXED_BF16,
        rlx.PrecisionPolicy.ALWAYS_F16,
    ],
    ids=str,
)
def test_texts_of_padding_alone_have_the_rows_of_f32(
    policy: rlx.PrecisionPolicy, rng: np.random.Generator
) -> None:
    """A bias of −1e9 is added in f32, by the kernel too: in f16 it would be −Inf, its rows NaN."""

    def attend(x: Any, mask: Any, w: Any) -> Any:
        q, k, v = (jnp.einsum("bsd,dhe->bshe", x, one) for one in w)
        bias = (1.0 - mask[:, None, None, :]) * -1e9
        weights = jax.nn.softmax(jnp.einsum("bqhe,bkhe->bhqk", q, k) * 16**-0.5 + bias, -1)
        return jnp.einsum("bhqk,bkhe->bqhe", weights, v)

    x = rng.normal(size=(3, 9, 32)).astype(np.float32)
    w = rng.normal(size=(3, 32, 2, 16)).astype(np.float32) / 6
    mask = np.array([[1] * 9, [1] * 4 + [0] * 5, [0] * 9], np.float32)
    compiled = rlx.Session("cpu", policy=policy).compile(rlx_xla.trace(attend, x, mask, w))
    (node,) = [n for n in compiled.report().lir.graph.nodes() if n.op.op_name == "attention"]
    assert [str(v.dtype) for v in node.inputs[-1:]] == ["f32"]
    assert str(node.inputs[0].dtype) in ("f16", "bf16")
    np.testing.assert_allclose(compiled(x, mask, w), attend(x, mask, w), rtol=3e-2, atol=3e-2)
