"""Layers against JAX's and flax's own: attention, norms, gated layers."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rlx
from rlx.ops.attention import Attention, MaskKind
from rlx.ops.normalization import GroupNorm, LayerNorm, LayerNorm2d, RmsNorm

Array = np.ndarray[Any, Any]
BOUND: dict[str, float] = {"rtol": 2e-5, "atol": 2e-6}


def draw(rng: np.random.Generator, *shape: int) -> Array:
    return rng.uniform(-1, 1, shape).astype(np.float32)


def qkv(rng: np.random.Generator, length: int, keys: int, kv_heads: int) -> list[Array]:
    return [draw(rng, 2, n, h, 8) for n, h in ((length, 4), (keys, kv_heads), (keys, kv_heads))]


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("case", ["plain", "causal", "window", "mask", "bias", "lengths", "scale"])
def test_attention_is_that_of_jax(rng: np.random.Generator, case: str, kv_heads: int) -> None:
    square = case in ("causal", "window")
    q, k, v = qkv(rng, 5, 5 if square else 7, kv_heads)
    given: dict[str, Any] = {}
    theirs: dict[str, Any] = {}
    extra: tuple[Array, ...] = ()
    match case:
        case "causal":
            given["mask_kind"], theirs["is_causal"] = MaskKind.CAUSAL, True
        case "window":
            given.update(mask_kind=MaskKind.SLIDING_WINDOW, window=2)
            theirs.update(is_causal=True, local_window_size=(2, 0))
        case "mask":
            seen = rng.integers(0, 2, (2, 1, 5, 7)).astype(bool)
            seen[..., 0] = True
            given["mask_kind"], theirs["mask"], extra = MaskKind.CUSTOM, seen, (seen,)
        case "bias":
            bias = draw(rng, 1, 4, 5, 7)
            given["mask_kind"], theirs["bias"], extra = MaskKind.BIAS, bias, (bias,)
        case "lengths":
            lengths = rng.integers(1, 8, 2).astype(np.int32)
            given["mask_kind"], extra = MaskKind.LENGTHS, (lengths,)
            theirs["key_value_seq_lengths"] = lengths
        case "scale":
            given["score_scale"], theirs["scale"] = 0.3, 0.3
        case _:
            pass
    op = Attention(num_heads=4, head_dim=8, **given)
    b = rlx.GraphBuilder()
    arrays = (q, k, v, *extra)
    leaves = [b.input(f"x{i}", rlx.constant(a).type) for i, a in enumerate(arrays)]
    compiled = rlx.Session("cpu").compile(b.build(op(*leaves)))
    (found,) = compiled.run({f"x{i}": a for i, a in enumerate(arrays)})
    wanted = jax.nn.dot_product_attention(*map(jnp.asarray, (q, k, v)), **theirs)
    np.testing.assert_allclose(found, wanted, **BOUND)


def test_norms_are_those_of_flax(rng: np.random.Generator) -> None:
    linen = pytest.importorskip("flax.linen")
    x, gamma, beta = draw(rng, 3, 4, 8), draw(rng, 8), draw(rng, 8)
    params = {"params": {"scale": gamma, "bias": beta}}
    wanted = linen.LayerNorm(epsilon=1e-3, use_fast_variance=False).apply(params, x)
    found = LayerNorm(eps=1e-3).evaluate(x, gamma, beta)
    np.testing.assert_allclose(found, wanted, **BOUND)
    wanted = linen.RMSNorm(epsilon=1e-3).apply({"params": {"scale": gamma}}, x)
    found = RmsNorm(eps=1e-3).evaluate(x, gamma, np.zeros_like(beta))
    np.testing.assert_allclose(found, wanted, **BOUND)
    layer = linen.GroupNorm(num_groups=2, epsilon=1e-3, use_fast_variance=False)
    found = GroupNorm(num_groups=2, eps=1e-3).evaluate(x.swapaxes(1, 2), gamma, beta)
    np.testing.assert_allclose(found.swapaxes(1, 2), layer.apply(params, x), **BOUND)
    image = draw(rng, 2, 8, 3, 4)
    wanted = linen.LayerNorm(epsilon=1e-3, use_fast_variance=False).apply(
        params, image.transpose(0, 2, 3, 1)
    )
    found = LayerNorm2d(eps=1e-3).evaluate(image, gamma, beta)
    np.testing.assert_allclose(found.transpose(0, 2, 3, 1), wanted, **BOUND)


@pytest.mark.parametrize("policy", rlx.FusionPolicy)
def test_a_decoder_compiles_alike_under_both_policies(
    rng: np.random.Generator, policy: rlx.FusionPolicy
) -> None:
    """Two layers, weights as params, on XLA against NumPy."""
    from tests.samples.blocks import llama_arrays, llama_shapes

    op = rlx.ops.LlamaDecoderBlock(num_heads=4, num_kv_heads=2, head_dim=4)  # type: ignore[call-arg]
    layers = [llama_arrays(rng, op, rlx.DType.F32, 2, 5, 6, 9) for _ in range(2)]
    b = rlx.GraphBuilder("decoder")
    x = b.input("x", f"f32{list(llama_shapes(op, 2, 5, 6, 9)[0])}")
    params: dict[str, Array] = {}
    for number, arrays in enumerate(layers):
        named = {f"{number}/{i}": a for i, a in enumerate(arrays[1:])}
        params.update(named)
        with b.scope(f"layers/{number}"):
            x = op(x, *(b.param(n, f"f32{list(a.shape)}") for n, a in named.items()))
    graph = b.build(x)
    feed = {"x": layers[0][0]}
    compiled = rlx.Session("cpu").compile(rlx.Module.from_hir(graph, policy))
    compiled.set_params(params)
    (found,) = compiled.run(feed)
    (wanted,) = rlx.interpret(graph, feed, params)
    np.testing.assert_allclose(found, wanted, rtol=2e-4, atol=2e-5)
