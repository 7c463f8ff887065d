"""Decoder-only language models in plain JAX, with caches of keys and values on the device.

The Llama family (Llama, Mistral, SmolLM, Qwen 2 and 3) and Gemma 3.

One function serves for a prompt's tokens and for one new token; `decoder_loop` has the same as a
loop over layers. Rows of a batch end at the same
position of the caches; a shorter prompt starts later.

Attention reads the caches in blocks, and only those that hold something that is seen, so that the
time does not depend on their capacity. Softmax is computed as the blocks come.

Source: Touvron et al. 2023, arXiv:2302.13971; Gemma team 2025, arXiv:2503.19786; Milakov and
Gimelshein 2018, arXiv:1805.02867 (softmax in one pass).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax

from rlx_xla._jax_compat.jaxpr import enable_x64
from rlx_xla.models.decoder_config import DecoderConfig
from rlx_xla.models.decoder_step import HIDDEN, MOST_POSITIONS, attend_one
from rlx_xla.models.packed import PackedWeight, product, rows_of
from rlx_xla.models.rope import RopeScaling

BLOCK = 128
"""Positions of the caches that attention reads at once; capacities are multiples of it."""

PARTS = 8
"""Parts of a token's features whose squares are added up apart."""

MOST_SCORES = 1 << 19
"""Queries times positions that attention holds scores of at once, for each head."""

Params: TypeAlias = Mapping[str, Any]
Cache: TypeAlias = "tuple[jax.Array, jax.Array]"
Normed: TypeAlias = "tuple[jax.Array, jax.Array | None]"
"""States before a product, and a factor of each row that the product's result takes in their place.

A mean that the product need not wait for is one kernel less in a chain of them.
"""


def forward(
    params: Params,
    config: DecoderConfig,
    ids: jax.Array,
    start: jax.Array,
    offset: jax.Array,
    caches: Sequence[Cache],
) -> tuple[jax.Array, list[Cache]]:
    """Return the last hidden states of some tokens, and the caches with their keys and values.

    Args:
        params: as `decoder_params.load_params` returns them.
        config: sizes that belong to `params`.
        ids: i32[batch, seq], tokens at cache positions `offset` … `offset + seq − 1`.
        start: i32[batch], the first position of each row that is not padding.
        offset: i32[], positions of the caches that are filled.
        caches: per layer keys float[batch, kv_heads, capacity, head_size] and values; zeros at
            first.

    Returns:
        f32[batch, seq, width], normalised, and the new caches.
    """
    with jax.numpy_rank_promotion("allow"), x64(config.wide):
        return _forward(params, config, ids, start, offset, caches)


def _forward(
    params: Params,
    config: DecoderConfig,
    ids: jax.Array,
    start: jax.Array,
    offset: jax.Array,
    caches: Sequence[Cache],
) -> tuple[jax.Array, list[Cache]]:
    x, places, angles = first_states(params, config, ids, start, offset)
    made: list[Cache] = []
    for i, layer in enumerate(params["layers"]):
        windowed = config.has_window(i)
        x, cache = _layer(config, windowed, layer, x, angles[windowed], places, start, caches[i])
        made.append(cache)
    return rms_norm(x, params["norm"], config.eps, dtype_of(config)), made


def first_states(
    params: Params, config: DecoderConfig, ids: jax.Array, start: jax.Array, offset: jax.Array
) -> tuple[jax.Array, jax.Array, dict[bool, tuple[jax.Array, jax.Array]]]:
    """Return what the first layer takes.

    Returns:
        f32[batch, seq, width]; i32[seq], places in the caches; cosines and sines of the
        rotations, for layers with a window and without, those that there are.
    """
    x = rows_of(params["embedding"], ids) * jnp.float32(config.embedding_scale)
    places = offset + jnp.arange(ids.shape[1], dtype=jnp.int32)
    positions = jnp.maximum(places[None, :] - start[:, None], 0)
    angles = {
        windowed: _angles(config, params.get("rope_factors"), positions, windowed)
        for windowed in sorted({config.has_window(i) for i in range(config.layers)})
    }
    return x, places, angles


@functools.partial(jax.jit, static_argnums=(0, 1))
def _layer(
    config: DecoderConfig,
    windowed: bool,
    layer: Params,
    x: jax.Array,
    angles: tuple[jax.Array, jax.Array],
    places: jax.Array,
    start: jax.Array,
    cache: Cache,
) -> tuple[jax.Array, Cache]:
    """One block; traced once for all layers whose weights are alike."""
    window = config.window if windowed else 0
    return block(config, window, layer, x, angles, places, start, cache)


def block(
    config: DecoderConfig,
    window: Any,
    layer: Params,
    x: jax.Array,
    angles: tuple[jax.Array, jax.Array],
    places: jax.Array,
    start: jax.Array,
    cache: Cache,
    at: tuple[jax.Array, ...] = (),
) -> tuple[jax.Array, Cache]:
    """Return what a layer makes of x[batch, seq, width], and the cache with its keys and values.

    Args:
        config: sizes.
        window: positions seen, an int or i32[]; 0 for all (an int only).
        layer: its weights.
        x: f32[batch, seq, width].
        angles: of the rotations.
        places: i32[seq], the tokens' places in the cache.
        start: i32[batch].
        cache: keys and values; with `at`, those of all layers along a first axis.
        at: the number of the layer, i32[], where the cache is that of all.
    """
    dtype = dtype_of(config)
    normed = _normed(config, x, layer["attention_norm"])
    attended, cache = _attention(layer, config, normed, angles, places, start, cache, window, at)
    if "attention_post_norm" in layer:
        attended = rms_norm(attended, layer["attention_post_norm"], config.eps, dtype)
    x = x + attended
    fed = _feed_forward(layer, config, _normed(config, x, layer["feed_norm"]))
    if "feed_post_norm" in layer:
        fed = rms_norm(fed, layer["feed_post_norm"], config.eps, dtype)
    return x + fed, cache


def _normed(config: DecoderConfig, x: jax.Array, gain: jax.Array) -> Normed:
    """Normalised x as products take it; see ``Normed``."""
    dtype = dtype_of(config)
    if not (config.sums and x.shape[1] == 1):
        return rms_norm(x, gain, config.eps, dtype), None
    # Several warps add up a part each; who takes the mean adds the parts.
    parts = (x * x).reshape(*x.shape[:-1], math.gcd(x.shape[-1], PARTS), -1).sum(axis=-1)
    mean = sum(jnp.split(parts, parts.shape[-1], axis=-1)) / dtype(x.shape[-1])
    return x * jnp.asarray(gain), lax.rsqrt(mean + dtype(config.eps))


def products(normed: Normed, layer: Params, sizes: Mapping[str, int]) -> dict[str, jax.Array]:
    """Return the products of states with matrices of a layer, by name.

    Args:
        normed: f32[..., width], and what results are multiplied by.
        layer: weights; one that is made of several is named by their names, a comma between.
        sizes: rows of each matrix that is wanted.
    """
    x, factor = normed
    made: dict[str, jax.Array] = {}
    for joined in layer:
        names = [name for name in joined.split(",") if name in sizes]
        if not names:
            continue
        y, at = product(x, layer[joined]), 0
        if factor is not None:
            y = y * factor
        for name in names:
            made[name] = y[..., at : at + sizes[name]] if len(names) > 1 else y
            at += sizes[name]
    return made


def logits_of(params: Params, config: DecoderConfig, hidden: jax.Array) -> jax.Array:
    """Return the logits f32[..., vocabulary] of hidden states f32[..., width]."""
    head = params.get("head", params["embedding"])
    if isinstance(head, PackedWeight):  # logits are compared: the head rounds no inputs
        head = replace(head, inputs="exact")
    logits = product(hidden, head)
    if config.final_softcap:
        cap = jnp.float32(config.final_softcap)
        logits = cap * jnp.tanh(logits / cap)
    return logits


def empty_caches(
    config: DecoderConfig, batch: int, capacity: int, dtype: Any = jnp.float32
) -> list[Cache]:
    """Return caches without content.

    Args:
        config: of the model.
        batch: rows.
        capacity: positions.
        dtype: of keys and values in the caches; computing is in f32.
    """
    shapes = cache_shapes(config, batch, capacity)
    return [
        (jnp.zeros(shapes[0], dtype), jnp.zeros(shapes[1], dtype)) for _ in range(config.layers)
    ]


def cache_shapes(
    config: DecoderConfig, batch: int, capacity: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shapes of a layer's keys and values in the caches.

    Values have positions first, as keys have, or last where sums run over them (``config.sums``):
    there XLA would turn all of them.
    """
    heads = (batch, config.kv_heads)
    values = (capacity, config.value_size)
    return (*heads, capacity, config.head_size), (*heads, *(values[:: -1 if config.sums else 1]))


def rms_norm(x: jax.Array, gain: jax.Array, eps: float, dtype: Any = jnp.float32) -> jax.Array:
    """Return x / sqrt(mean(x², last axis) + eps) · gain in x's dtype, computed in `dtype`."""
    wide = x.astype(dtype)
    mean = jnp.mean(wide * wide, axis=-1, keepdims=True)
    return (wide * lax.rsqrt(mean + dtype(eps)) * jnp.asarray(gain).astype(dtype)).astype(x.dtype)


def x64(wide: bool) -> AbstractContextManager[Any]:
    """64-bit types in JAX, where they are wanted."""
    return enable_x64() if wide else nullcontext()


def dtype_of(config: DecoderConfig) -> Any:
    """What norms, rotations, attention and gates are computed in."""
    return jnp.float64 if config.wide else jnp.float32


def _angles(
    config: DecoderConfig, factors: Any, positions: jax.Array, windowed: bool
) -> tuple[jax.Array, jax.Array]:
    """Cosines and sines [batch, 1, seq, rope_size / 2] of the rotations."""
    scaling = RopeScaling() if windowed else config.rope
    base = config.rope_local_base if windowed else config.rope_base
    dtype = dtype_of(config)
    rates = jnp.asarray(scaling.rates(base, config.rope_size))
    if factors is not None and not windowed:
        rates = rates / factors
    angles = positions.astype(dtype)[:, None, :, None] * rates.astype(dtype)
    gain = scaling.gain()
    if gain == 1.0:
        return jnp.cos(angles), jnp.sin(angles)
    return jnp.cos(angles) * dtype(gain), jnp.sin(angles) * dtype(gain)


def _rotated(config: DecoderConfig, x: jax.Array, angles: tuple[jax.Array, jax.Array]) -> jax.Array:
    """x[batch, heads, seq, head_size] with its first `rope_size` features rotated."""
    cos, sin = angles
    size = config.rope_size
    if config.rope_pairs:
        pairs = x[..., :size].reshape(*x.shape[:-1], size // 2, 2)
        first, second = pairs[..., 0], pairs[..., 1]
    else:
        first, second = x[..., : size // 2], x[..., size // 2 : size]
    turned = (first * cos - second * sin, first * sin + second * cos)
    if config.rope_pairs:
        done = jnp.stack(turned, axis=-1).reshape(*x.shape[:-1], size)
    else:
        done = jnp.concatenate(turned, axis=-1)
    return done if size == x.shape[-1] else jnp.concatenate([done, x[..., size:]], axis=-1)


def _attention(
    layer: Params,
    config: DecoderConfig,
    normed: Normed,
    angles: tuple[jax.Array, jax.Array],
    places: jax.Array,
    start: jax.Array,
    cache: Cache,
    window: Any,
    at: tuple[jax.Array, ...],
) -> tuple[jax.Array, Cache]:
    batch, seq = normed[0].shape[:2]
    dtype = dtype_of(config)

    counts = {"query": config.heads, "key": config.kv_heads, "value": config.kv_heads}
    sizes = {"query": config.head_size, "key": config.head_size, "value": config.value_size}
    made = products(normed, layer, {name: count * sizes[name] for name, count in counts.items()})

    def heads(name: str) -> jax.Array:
        y = made[name]
        if f"{name}_bias" in layer:
            y = y + layer[f"{name}_bias"]
        return y.reshape(batch, seq, counts[name], sizes[name]).transpose(0, 2, 1, 3)

    q, k, v = map(heads, counts)
    if "query_norm" in layer:
        q = rms_norm(q, layer["query_norm"], config.eps, dtype_of(config))
        k = rms_norm(k, layer["key_norm"], config.eps, dtype_of(config))
    q = _rotated(config, q, angles) * dtype(config.query_scale)
    k = _rotated(config, k, angles)
    keys = _written(cache[0], k, places[0], at)
    values = _written(cache[1], v, places[0], at, turned=config.sums)
    if config.sums and seq == 1 and keys.shape[-2] <= MOST_POSITIONS:
        k, v = (part[at[0]] if at else part for part in (keys, values))
        y = attend_one(q, k, v, places[0], start, window)
    else:
        y = attend(q, keys, values, places, start, window, at, config.span, turned=config.sums)
    y = y.astype(jnp.float32)
    y = y.transpose(0, 2, 1, 3).reshape(batch, seq, config.heads * config.value_size)
    return product(y, layer["output"]), (keys, values)


def _written(
    cache: jax.Array,
    new: jax.Array,
    offset: jax.Array,
    at: tuple[jax.Array, ...],
    *,
    turned: bool = False,
) -> jax.Array:
    """A cache with new positions [batch, kv_heads, seq, size]; `at` is the layer in all of them."""
    zero = jnp.int32(0)
    new = jnp.swapaxes(new, -1, -2) if turned else new
    update = new.astype(cache.dtype).reshape((1,) * len(at) + new.shape)
    place = (zero, offset) if turned else (offset, zero)
    return lax.dynamic_update_slice(cache, update, (*at, zero, zero, *place))


def _block_of(
    cache: jax.Array,
    first: jax.Array,
    at: tuple[jax.Array, ...],
    count: int,
    *,
    turned: bool = False,
) -> jax.Array:
    """Positions of a cache, [batch, kv_heads, count, size]."""
    zero = jnp.int32(0)
    batch, heads, *last = cache.shape[len(at) :]
    sizes, place = (
        ((last[0], count), (zero, first)) if turned else ((count, last[1]), (first, zero))
    )
    part = lax.dynamic_slice(
        cache, (*at, zero, zero, *place), (*(1 for _ in at), batch, heads, *sizes)
    ).reshape(batch, heads, *sizes)
    return jnp.swapaxes(part, -1, -2) if turned else part


def span_for(device: str) -> int:
    """Positions that attention looks at at once on a device, such as ``cpu`` or ``cuda:0``.

    A GPU waits for the host at each turn of a loop; in that time it reads thousands of positions.
    """
    return 32 * BLOCK if is_gpu(device) else BLOCK


def is_gpu(device: str) -> bool:
    """Whether a device's name is a GPU's."""
    return device.startswith(("cuda", "rocm", "gpu"))


def _span(capacity: int, most: int) -> int:
    """Positions looked at at once: what divides the capacity, as no slice may end beyond."""
    if capacity % BLOCK:
        return capacity
    span = min(capacity, most // BLOCK * BLOCK)
    while capacity % span:
        span -= BLOCK
    return span


def attend(
    q: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    places: jax.Array,
    start: jax.Array,
    window: Any,
    at: tuple[jax.Array, ...] = (),
    span: int = BLOCK,
    *,
    turned: bool = False,
) -> jax.Array:
    """Return causal attention over the filled part of a cache, [batch, heads, seq, value_size].

    Args:
        q: float[batch, heads, seq, size], scaled; computing is in its dtype.
        keys: float[batch, kv_heads, capacity, size].
        values: float[batch, kv_heads, capacity, value_size].
        places: i32[seq], the queries' positions in the cache, one after another.
        start: i32[batch], the first position that a row may see.
        window: positions seen, itself included, an int or i32[]; the int 0 for all.
        at: number of the layer, i32[], where keys and values have those of all along a first axis.
        span: most positions looked at at once, a multiple of ``BLOCK``; filled ones beyond the
            first take turns of a loop. A capacity that is no multiple is looked at whole.
        turned: the last two axes of values are value_size and capacity.
    """
    batch, heads, seq, size = q.shape
    kv_heads, value_size = keys.shape[-3], values.shape[-2 if turned else -1]
    group = heads // kv_heads
    grouped = q.reshape(batch, kv_heads, group * seq, size)
    first = jnp.min(start)
    bounded = not isinstance(window, int) or window > 0
    if bounded:
        first = jnp.maximum(first, places[0] - (window - 1))
    capacity = keys.shape[-2]
    span = _span(capacity, min(span, max(BLOCK, MOST_SCORES // seq)))
    last = places[-1] // span + 1

    def step(index: jax.Array, state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        top, total, summed = state
        begin = index * span
        k = _block_of(keys, begin, at, span).astype(q.dtype)
        v = _block_of(values, begin, at, span, turned=turned).astype(q.dtype)
        scores = jnp.einsum("bhqd,bhsd->bhqs", grouped, k)
        scores = scores.reshape(batch, kv_heads, group, seq, span)
        there = begin + jnp.arange(span, dtype=jnp.int32)
        seen = there[None, :] <= places[:, None]
        if bounded:
            seen = seen & (there[None, :] > places[:, None] - window)
        seen = seen[None] & (there[None, None, :] >= start[:, None, None])
        scores = jnp.where(seen[:, None, None], scores, q.dtype.type(HIDDEN))
        higher = jnp.maximum(top, scores.max(axis=-1))
        shrunk = jnp.exp(top - higher)
        weights = jnp.exp(scores - higher[..., None])
        added = jnp.einsum("bhqs,bhsd->bhqd", weights.reshape(*grouped.shape[:3], span), v)
        added = added.reshape(batch, kv_heads, group, seq, value_size)
        total = total * shrunk + weights.sum(axis=-1)
        return higher, total, summed * shrunk[..., None] + added

    shape = (batch, kv_heads, group, seq)
    state = (
        jnp.full(shape, HIDDEN, q.dtype),
        jnp.zeros(shape, q.dtype),
        jnp.zeros((*shape, value_size), q.dtype),
    )
    if capacity == span:
        _, total, summed = step(jnp.int32(0), state)
    else:
        _, total, summed = lax.fori_loop(first // span, last, step, state)
    return (summed / total[..., None]).reshape(batch, heads, seq, value_size)


def _feed_forward(layer: Params, config: DecoderConfig, normed: Normed) -> jax.Array:
    dtype = dtype_of(config)
    made = products(normed, layer, {"gate": config.inner, "up": config.inner})
    gate, up = (made[name].astype(dtype) for name in ("gate", "up"))
    gate = jax.nn.gelu(gate, approximate=True) if config.gelu else jax.nn.silu(gate)
    return product((gate * up).astype(jnp.float32), layer["down"])
