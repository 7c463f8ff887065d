"""Programs that people found slow or wrong, where a kernel is the cure: E1 to E4, E9, G3, I1 to I6.

What is timed stands in ``tests/benchmarks``; here it is the values, and which kernel gave them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rlx
import rlx_xla
from rlx.dtypes import DType
from rlx.errors import KernelError
from rlx.ir.attributes import Literal
from rlx.ir.plan import Implementation, Refusals
from rlx.ops.attention import Attention, MaskKind
from rlx.ops.quantized import DequantMatmul
from rlx.ops.reduction import Argmax
from rlx.options.dispatch import KernelDispatch
from rlx.quant import QuantScheme, pack, unpack
from rlx.types import TensorType
from rlx_xla.kernels import ffi
from rlx_xla.kernels.select import choose

MEBIBYTE = 1 << 20


@pytest.fixture(autouse=True)
def _library() -> None:
    if isinstance(library := ffi.load(), ffi.Unavailable):
        pytest.skip(library.reason)


def _kernels(fast: Any) -> list[str]:
    return [choice.implementation for choice in fast.report().kernels]


def _same(fn: Callable[..., Any], *args: Any, rtol: float = 0, atol: float = 0) -> list[str]:
    """Compare with ``jax.jit``; returns the kernels that ran."""
    fast = rlx_xla.jit(fn)
    found, wanted = (jax.tree_util.tree_leaves(f(*args)) for f in (fast, jax.jit(fn)))
    for mine, theirs in zip(found, wanted, strict=True):
        assert mine.dtype == theirs.dtype
        np.testing.assert_allclose(
            np.asarray(mine, np.float64), np.asarray(theirs, np.float64), rtol=rtol, atol=atol
        )
    return _kernels(fast)


def test_e1_sort_and_argsort(rng: np.random.Generator) -> None:
    x = np.round(rng.normal(size=50_000), 2).astype(np.float32)
    x[rng.integers(0, len(x), 900)] = np.repeat(np.float32([np.nan, 0.0, -0.0]), 300)
    assert _same(jnp.sort, x) == ["sort.cpu.ffi"]
    assert _same(jnp.argsort, x) == ["sort.cpu.ffi"]
    found = np.asarray(rlx_xla.jit(jnp.sort)(x))
    np.testing.assert_array_equal(np.signbit(found), np.signbit(np.asarray(jnp.sort(x))))
    assert np.isnan(found[-1])
    assert _same(lambda x: jax.lax.top_k(x, 9), np.nan_to_num(x)) == ["top_k.cpu.ffi"]


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@pytest.mark.parametrize(("groups", "per_group", "dilation"), [(16, 1, 1), (16, 1, 2), (4, 8, 1)])
def test_e2_grouped_convolutions(
    layout: str, groups: int, per_group: int, dilation: int, rng: np.random.Generator
) -> None:
    channels = groups * per_group
    last = layout == "NHWC"
    x = rng.normal(size=(1, 20, 20, channels) if last else (1, channels, 20, 20))
    w = rng.normal(size=(3, 3, per_group, channels) if last else (channels, per_group, 3, 3))

    def convolve(x: jax.Array, w: jax.Array) -> jax.Array:
        return jax.lax.conv_general_dilated(
            x,
            w,
            (1, 1),
            "SAME",
            rhs_dilation=(dilation,) * 2,
            dimension_numbers=(layout, "HWIO" if last else "OIHW", layout),
            feature_group_count=groups,
        )

    arrays = x.astype(np.float32), w.astype(np.float32)
    kernels = _same(convolve, *arrays, rtol=1e-5, atol=1e-4)
    # Never XLA's convolution: a kernel, or channels first and in small groups shifted products.
    shifted = per_group == 1 and not last
    assert kernels == ([] if shifted else ["conv_general_dilated.cpu.ffi"])
    if shifted:
        traced = rlx_xla.trace(convolve, *arrays)
        assert "stablehlo.convolution" not in rlx.Session("cpu").compile(traced).stablehlo()


@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16, DType.F16])
def test_e2_depthwise_layers_need_no_loops_of_their_own(
    dtype: DType, rng: np.random.Generator
) -> None:
    x = rng.normal(size=(1, 10, 10, 32)).astype(dtype.numpy)
    w = rng.normal(size=(3, 3, 1, 32)).astype(dtype.numpy)

    def convolve(x: jax.Array, w: jax.Array) -> jax.Array:
        return jax.lax.conv_general_dilated(
            x,
            w,
            (1, 1),
            "SAME",
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
            feature_group_count=32,
        )

    compiled = rlx.Session("cpu").compile(rlx_xla.trace(convolve, x, w))
    names = [c.implementation for c in compiled.report().kernels]
    assert names == ["conv_general_dilated.cpu.ffi"]
    wanted = np.asarray(convolve(x.astype(np.float32), w.astype(np.float32)))
    found = np.asarray(compiled(x, w), np.float32)
    np.testing.assert_allclose(found, wanted, rtol=1e-2, atol=1e-1)


def test_e3_a_transposed_matrix_is_not_copied(rng: np.random.Generator) -> None:
    x, w = (rng.normal(size=s).astype(np.float32) for s in ((1, 1024), (1024, 1024)))
    traced = rlx_xla.trace(lambda x, w: x @ w.T, x, w)
    compiled = rlx.Session("cpu").compile(traced)
    assert "stablehlo.transpose" not in compiled.stablehlo()
    assert compiled.memory()["temp"] < MEBIBYTE
    np.testing.assert_allclose(compiled(x, w), x @ w.T, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("dtype", [DType.BF16, DType.F16])
def test_e4_a_vector_times_a_matrix_of_16_bits(dtype: DType, rng: np.random.Generator) -> None:
    x = rng.normal(size=(1, 1024)).astype(dtype.numpy)
    w = (rng.normal(size=(1024, 1024)) / 32).astype(dtype.numpy)
    traced = rlx_xla.trace(lambda x, w: x @ w, x, w)
    compiled = rlx.Session("cpu").compile(traced)
    assert [c.implementation for c in compiled.report().kernels] == ["dot_general.cpu.ffi"]
    assert compiled.memory()["temp"] < MEBIBYTE
    wanted = x.astype(np.float64) @ w.astype(np.float64)
    found = np.asarray(compiled(x, w), np.float64)
    np.testing.assert_allclose(found, wanted, rtol=1e-2, atol=2e-2)


def test_e9_max_pool_and_argmax(rng: np.random.Generator) -> None:
    def pool(x: jax.Array) -> jax.Array:
        return jax.lax.reduce_window(
            x, -jnp.inf, jax.lax.max, (1, 1, 3, 3), (1, 1, 2, 2), ((0, 0),) * 2 + ((1, 1),) * 2
        )

    x = np.round(rng.normal(size=(2, 4, 30, 31)), 1).astype(np.float32)
    x[0, 0, 3, 3], x[1, 2, 9, 4] = np.nan, -np.inf
    assert _same(pool, x) == ["reduce_window.cpu.ffi"]
    gradient = jax.grad(lambda x: (pool(x) ** 2).sum())
    kernels = _same(gradient, np.round(rng.normal(size=(1, 17, 17, 17)), 1).astype(np.float32))
    assert sorted(kernels) == ["reduce_window.cpu.ffi", "select_and_scatter_add.cpu.ffi"]
    rows = np.round(rng.normal(size=(8, 500))).astype(np.float32)
    rows[3, 77] = rows[3, 400] = np.nan
    assert _same(lambda x: jnp.argmax(x, axis=1), rows) == ["argmax.cpu.ffi"]
    found = rlx_xla.jit(lambda x: jnp.argmax(x, axis=1))(rows)
    assert found[3] == 77
    assert found[0] == np.flatnonzero(rows[0] == rows[0].max())[0]


@pytest.mark.parametrize("name", ["int8/32", "gguf_q4k", "fp8e4m3", "nvfp4/16"])
def test_g3_packed_weights_stay_packed(name: str, rng: np.random.Generator) -> None:
    scheme = QuantScheme.parse(name)
    size = 1024
    numbers = rng.normal(size=(size, size)).astype(np.float32)
    tensors = [t for t in pack(scheme, numbers) if t is not None]
    b = rlx.GraphBuilder("decode")
    x = b.input("x", TensorType(DType.F32, (1, size)))
    weights = [b.param(f"w{i}", Literal(t).type) for i, t in enumerate(tensors)]
    compiled = rlx.Session("cpu").compile(b.build(DequantMatmul(scheme=name)(x, *weights)))
    compiled.set_params({f"w{i}": t for i, t in enumerate(tensors)})
    assert [c.implementation for c in compiled.report().kernels] == ["dequant_matmul.cpu.ffi"]
    assert compiled.memory()["temp"] < MEBIBYTE
    row = rng.normal(size=(1, size)).astype(np.float32)
    meant = unpack(scheme, *tensors, size=size)
    wanted = row.astype(np.float64) @ (meant.T if scheme.is_rows else meant)
    np.testing.assert_allclose(compiled.run({"x": row})[0], wanted, rtol=1e-4, atol=1e-3)


def test_i1_a_kernel_of_another_platform() -> None:
    b = rlx.GraphBuilder("g")
    graph = b.build(Argmax(axis=1)(b.input("x", "f32[3, 64]")))
    (node,) = [n for n in graph.nodes() if isinstance(n.op, Argmax)]
    told = "argmax.cpu.ffi: registered for cpu; the platform asked is cuda"
    demanded = KernelDispatch(forced=frozenset({"argmax.cpu.ffi"}))
    refused = choose(node, "cuda", demanded)
    assert isinstance(refused, Refusals)
    assert refused.demanded
    assert told in [str(r) for r in refused.refused]
    allowed = choose(node, "cuda", KernelDispatch())
    assert isinstance(allowed, Implementation)
    assert allowed.kind == "rule"
    assert told in [str(r) for r in allowed.refused]
    unknown = rlx.CompileOptions(kernel_dispatch=KernelDispatch(forced=frozenset({"argmax.npu"})))
    with pytest.raises(KernelError, match=r"kernel 'argmax\.npu' is not registered"):
        rlx.Session("cpu").compile(graph, options=unknown)


def test_i2_a_mapped_kernel_is_one_call(rng: np.random.Generator) -> None:
    x = rng.normal(size=(3, 4, 100)).astype(np.float32)
    y = rng.normal(size=(5, 100)).astype(np.float32)
    once = jax.vmap(jnp.sort)
    nested = jax.vmap(jax.vmap(lambda a, b: jnp.sort(a + b), in_axes=(0, None)), in_axes=(0, None))
    inner = jax.vmap(jax.vmap(lambda a, b: jnp.sort(a + b), in_axes=(None, 0)), in_axes=(0, None))
    for fn, args in ((once, (x,)), (nested, (x, y[0])), (inner, (x[:, 0], y))):
        assert _same(fn, *args) == ["sort.cpu.ffi"]
        compiled = rlx.Session("cpu").compile(rlx_xla.trace(fn, *args))
        assert sum(c.count for c in compiled.report().kernels) == 1


def test_i3_attention_of_any_length_and_width(rng: np.random.Generator) -> None:
    b = rlx.GraphBuilder("attention")
    feeds: dict[str, Any] = {}
    wanted: list[np.ndarray[Any, Any]] = []
    made: list[rlx.Value] = []
    for length in (1, 63, 64, 65, 192):
        for width in (16, 40, 64, 96, 128, 256):
            causal = bool(rng.integers(2))
            arrays = [rng.normal(size=(1, length, 2, width)).astype(np.float32) for _ in "qkv"]
            names = [f"{n}_{length}_{width}" for n in "qkv"]
            feeds |= dict(zip(names, arrays, strict=True))
            leaves = [
                b.input(n, TensorType(DType.F32, a.shape))
                for n, a in zip(names, arrays, strict=True)
            ]
            op = Attention(
                num_heads=2, head_dim=width, mask_kind=MaskKind.CAUSAL if causal else MaskKind.NONE
            )
            made.append(op(*leaves))
            wanted.append(_attention(*(a.astype(np.float64) for a in arrays), causal=causal))
    compiled = rlx.Session("cpu").compile(b.build(*made))
    for found, meant in zip(compiled.run(feeds), wanted, strict=True):
        np.testing.assert_allclose(found, meant, rtol=1e-5, atol=1e-5)


def _attention(q: Any, k: Any, v: Any, *, causal: bool) -> np.ndarray[Any, Any]:
    scores = np.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(q.shape[-1])
    if causal:
        scores = np.where(np.tri(q.shape[1], dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("bhqk,bkhd->bqhd", weights / weights.sum(-1, keepdims=True), v)


@pytest.mark.parametrize("platform", ["cpu", "cuda", "tpu"])
def test_i6_a_causal_mask_is_no_tensor(platform: str) -> None:
    b = rlx.GraphBuilder("attention")
    leaves = [b.input(n, "bf16[1, 4096, 16, 128]") for n in "qkv"]
    op = Attention(num_heads=16, head_dim=128, mask_kind=MaskKind.CAUSAL)
    text = rlx_xla.stablehlo(b.build(op(*leaves)), platform=platform)
    constants = [line for line in text.splitlines() if "stablehlo.constant" in line]
    assert not [line for line in constants if "4096x4096" in line and 'dense<"' in line]
    assert len(text) < 100_000
