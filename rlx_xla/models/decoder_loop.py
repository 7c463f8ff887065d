"""A decoder as a loop over its layers: a program of one layer, whatever their number.

XLA compiles, keeps and loads one layer instead of thirty. Packed weights stay apart, each where it
lies: the product in the loop takes all of them and the number of the layer (`PickedWeight`).
Vectors are stacked, which costs some kilobytes, and so are the caches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rlx_xla.models import decoder
from rlx_xla.models.decoder_config import DecoderConfig
from rlx_xla.models.packed import PackedWeight, PickedWeight

LEAST_LAYERS = 4
"""Fewer layers are written out."""

FAR = 1 << 30
"""The window of a layer that sees everything, where others have one."""

Stacks: TypeAlias = "tuple[jax.Array, jax.Array]"
"""Keys and values of all layers, float[layers, batch, kv_heads, capacity, size]."""


def loop_params(params: decoder.Params) -> dict[str, Any] | None:
    """Return the params of a loop, or None where the layers do not fit one.

    Args:
        params: as `decoder_params.load_params` returns them. Layers must have the same weights of
            the same shapes, matrices packed; their schemes may differ.

    Returns:
        The same tree, but for ``layers``: by name, a list of packed matrices or the vectors of all
        layers stacked.
    """
    layers: Sequence[Mapping[str, Any]] = params["layers"]
    first = layers[0]
    alike = all(
        layer.keys() == first.keys()
        and all(_shape(layer[name]) == _shape(first[name]) for name in first)
        for layer in layers
    )
    loops = len(layers) >= LEAST_LAYERS and alike
    if not loops or any(len(weight.shape) > 1 and not _packed(weight) for weight in first.values()):
        return None
    columns = {name: [layer[name] for layer in layers] for name in first}
    joined = {name: rows if _packed(rows[0]) else np.stack(rows) for name, rows in columns.items()}
    return {**params, "layers": joined}


def empty_stacks(
    config: DecoderConfig, batch: int, capacity: int, dtype: Any = jnp.float32
) -> Stacks:
    """Return caches without content; see `decoder.empty_caches`."""
    keys, values = decoder.cache_shapes(config, batch, capacity)
    return jnp.zeros((config.layers, *keys), dtype), jnp.zeros((config.layers, *values), dtype)


def forward(
    params: decoder.Params,
    config: DecoderConfig,
    ids: jax.Array,
    start: jax.Array,
    offset: jax.Array,
    stacks: Stacks,
) -> tuple[jax.Array, Stacks]:
    """Return what `decoder.forward` returns, with the params of a loop and the caches as stacks."""
    with jax.numpy_rank_promotion("allow"), decoder.x64(config.wide):
        return _forward(params, config, ids, start, offset, stacks)


def _forward(
    params: decoder.Params,
    config: DecoderConfig,
    ids: jax.Array,
    start: jax.Array,
    offset: jax.Array,
    stacks: Stacks,
) -> tuple[jax.Array, Stacks]:
    x, places, angles = decoder.first_states(params, config, ids, start, offset)
    layers: Mapping[str, Any] = params["layers"]
    matrices = {name: rows for name, rows in layers.items() if isinstance(rows, list | tuple)}
    vectors = {name: rows for name, rows in layers.items() if name not in matrices}
    windowed = np.array([config.has_window(i) for i in range(config.layers)])

    def step(carry: tuple[Any, ...], given: tuple[Any, ...]) -> tuple[tuple[Any, ...], None]:
        x, keys, values = carry
        number, sees_part, layer = given
        picked = {name: PickedWeight(rows, number) for name, rows in matrices.items()}
        if len(angles) == 1:
            window, turned = config.window if windowed[0] else 0, angles[bool(windowed[0])]
        else:
            window = jnp.where(sees_part, jnp.int32(config.window), jnp.int32(FAR))
            part, whole = angles[True], angles[False]
            turned = (
                jnp.where(sees_part, part[0], whole[0]),
                jnp.where(sees_part, part[1], whole[1]),
            )
        x, (keys, values) = decoder.block(
            config, window, {**layer, **picked}, x, turned, places, start, (keys, values), (number,)
        )
        return (x, keys, values), None

    given = (np.arange(config.layers, dtype=np.int32), windowed, vectors)
    (x, *made), _ = lax.scan(step, (x, *stacks), given)
    x = decoder.rms_norm(x, params["norm"], config.eps, decoder.dtype_of(config))
    return x, (made[0], made[1])


def _packed(weight: Any) -> bool:
    return isinstance(weight, PackedWeight)


def _shape(weight: Any) -> tuple[Any, ...]:
    return (_packed(weight), *weight.shape)
