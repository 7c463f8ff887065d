"""Implementations of JAX's key types as jaxprs on raw key data, on JAX 0.7.2 to 0.12.

An implementation is what ``jax.random`` calls for a key type: seed, split, fold_in and random_bits
of one key. Arrays of keys map over them as JAX does.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax._src import random as _random

from rlx_xla._jax_compat.jaxpr import ClosedJaxpr, abstract, enable_x64, trace_function
from rlx_xla._jax_compat.keys import wrap_key

# The package that 0.10 made of the module keeps its functions in a module of its own.
_HOMES: tuple[Any, ...] = (_random, getattr(_random, "core", None))


def implementation(dtype: Any) -> Any:
    """Return the implementation of a key dtype."""
    return dtype._impl


def seed_jaxpr(impl: Any, shape: Sequence[Any], dtype: np.dtype) -> ClosedJaxpr:
    """Return seeds[shape] → key data."""
    return _traced(impl, "seed", (), ((tuple(shape), np.dtype(dtype)),), *_state())


def split_jaxpr(impl: Any, keys: Sequence[Any], shape: Sequence[Any]) -> ClosedJaxpr:
    """Return key data of keys[keys] → key data of keys[keys, shape]."""
    return _traced(impl, "split", (tuple(shape),), (_data(impl, keys),), *_state())


def fold_in_jaxpr(
    impl: Any, keys: Sequence[Any], shape: Sequence[Any], dtype: np.dtype
) -> ClosedJaxpr:
    """Return (key data of keys[keys], messages[shape]) → key data, shapes broadcast together."""
    avals = (_data(impl, keys), (tuple(shape), np.dtype(dtype)))
    return _traced(impl, "fold_in", (), avals, *_state())


def bits_jaxpr(impl: Any, keys: Sequence[Any], bit_width: int, shape: Sequence[Any]) -> ClosedJaxpr:
    """Return key data of keys[keys] → uint<bit_width>[keys, shape]."""
    settings = (int(bit_width), tuple(shape))
    return _traced(impl, "random_bits", settings, (_data(impl, keys),), *_state())


def gamma_jaxpr(
    impl: Any, keys: Sequence[Any], shape: Sequence[Any], dtype: np.dtype, log_space: bool
) -> ClosedJaxpr | None:
    """Return (key data of keys[keys], concentrations[shape]) → samples[shape] as JAX lowers it.

    None where this JAX has the implementation under another name.
    """
    implement = next((home._gamma_impl for home in _HOMES if hasattr(home, "_gamma_impl")), None)
    if implement is None:
        return None
    avals = (_data(impl, keys), (tuple(shape), np.dtype(dtype)))
    return _traced_gamma(implement, impl, avals, log_space, *_state())


@functools.lru_cache(maxsize=256)
def _traced_gamma(
    implement: Callable[..., Any],
    impl: Any,
    avals: tuple[tuple[tuple[Any, ...], np.dtype], ...],
    log_space: bool,
    partitionable: bool,
    x64: bool,
) -> ClosedJaxpr:
    del partitionable, x64  # part of the key only

    def function(data: jax.Array, concentrations: jax.Array) -> jax.Array:
        keys = wrap_key(data, impl.name)
        return implement(keys, concentrations, log_space=log_space, use_vmap=True)

    with enable_x64() if avals[1][1].itemsize == 8 else contextlib.nullcontext():
        return trace_function(function, [abstract(s, d) for s, d in avals]).jaxpr


def _data(impl: Any, keys: Sequence[Any]) -> tuple[tuple[Any, ...], np.dtype]:
    return (*keys, *impl.key_shape), np.dtype(np.uint32)


def _state() -> tuple[bool, bool]:
    """What the implementations read from JAX's settings."""
    config: Any = jax.config
    return bool(config.jax_threefry_partitionable), bool(config.jax_enable_x64)


@functools.lru_cache(maxsize=1024)
def _traced(
    impl: Any,
    method: str,
    settings: tuple[Any, ...],
    avals: tuple[tuple[tuple[Any, ...], np.dtype], ...],
    partitionable: bool,
    x64: bool,
) -> ClosedJaxpr:
    del partitionable, x64  # part of the key only
    call = getattr(impl, method)
    if method == "random_bits":
        function, wide = (lambda key: call(key, *settings)), settings[0] == 64
    elif method == "split":
        function, wide = (lambda key: call(key, *settings)), False
    else:
        function, wide = call, avals[-1][1].itemsize == 8
    base = len(impl.key_shape)
    ranks = [len(shape) for shape, _ in avals]
    if method == "seed":
        mapped = _mapped(function, ranks[0])
    elif method == "fold_in":
        mapped = _mapped_pair(function, avals[0][0][:-base], avals[1][0])
    else:
        mapped = _mapped(function, ranks[0] - base)
    # 64-bit values exist only with x64 on; whoever holds one already switched it on.
    with enable_x64() if wide else contextlib.nullcontext():
        return trace_function(mapped, [abstract(s, d) for s, d in avals]).jaxpr


def _mapped(function: Callable[..., Any], axes: int) -> Callable[..., Any]:
    for _ in range(axes):
        function = jax.vmap(function)
    return function


def _mapped_pair(
    function: Callable[..., Any], keys: tuple[Any, ...], messages: tuple[Any, ...]
) -> Callable[..., Any]:
    """Map a function of (key, message) over arrays of both, or of one and a single other."""
    if not keys or not messages:
        axes = (0 if keys else None, 0 if messages else None)
        for _ in keys or messages:
            function = jax.vmap(function, in_axes=axes)
        return function
    shape = np.broadcast_shapes(keys, messages)
    mapped = _mapped(function, len(shape))

    def broadcast(data: jax.Array, message: jax.Array) -> Any:
        trailing = data.shape[len(keys) :]
        data = jax.numpy.broadcast_to(data, (*shape, *trailing))
        return mapped(data, jax.numpy.broadcast_to(message, shape))

    return broadcast
