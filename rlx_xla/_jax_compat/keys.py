"""PRNG keys and other extended dtypes of JAX 0.7.2 to 0.12."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from rlx.dtypes import DType
from rlx.errors import DTypeError
from rlx_xla._jax_compat.jaxpr import Tracer, is_key_dtype

FLOAT0 = "float0"
"""What stands for an implementation where an array is float0, the type of tangents of integers."""


_MADE: dict[str, tuple[Any, Any]] = {}
"""Implementation → the class of its arrays of keys, and what they are made with."""


def key_shape(dtype: Any) -> tuple[int, ...]:
    """Trailing shape of a key's raw data: ``(2,)`` for threefry, ``(4,)`` for rbg."""
    return tuple(dtype._impl.key_shape)


def key_impl(dtype: Any) -> str:
    """Name of a key dtype's implementation: ``threefry2x32``, ``rbg``, ``unsafe_rbg``."""
    if is_float0(dtype):
        return FLOAT0
    return str(dtype._impl.name)


def key_data(keys: Any) -> Any:
    """Raw ``u32[..., n]`` data of new-style keys; booleans of float0."""
    held = getattr(keys, "_base_array", None)  # what jax.random.key_data copies, in 20 µs
    if held is not None and not _reuse_is_checked():
        return held
    if is_float0(getattr(keys, "dtype", None)):
        return np.zeros(np.shape(keys), np.bool_)
    return jax.random.key_data(keys)


def raw(value: Any) -> Any:
    """The data of keys or of float0, whatever else it is as it came."""
    if hasattr(value, "_base_array") or is_wrapped(value):
        return key_data(value)
    return value


def wrap_key(data: Any, impl: str) -> Any:
    """New-style keys from raw data; for ``"float0"`` tangents of integers from their booleans."""
    if impl == FLOAT0:
        return np.zeros(np.shape(data), jax.dtypes.float0)
    held = isinstance(data, jax.Array) and not isinstance(data, Tracer)
    if held and impl in _MADE and not _reuse_is_checked():
        kind, of_impl = _MADE[impl]
        return kind(of_impl, data)
    made = jax.random.wrap_key_data(data, impl=impl)
    if held and hasattr(made, "_base_array"):
        _MADE[impl] = (type(made), made.dtype._impl)
    return made


def _reuse_is_checked() -> bool:
    return bool(getattr(jax.config, "jax_debug_key_reuse", False))


def is_wrapped(aval: Any) -> bool:
    """Tell whether JAX's arrays of a type are others than RLX's: keys, and float0."""
    return is_key(aval) or is_float0(getattr(aval, "dtype", None))


def is_key(aval: Any) -> bool:
    """Tell whether an abstract value or array holds new-style keys."""
    dtype = getattr(aval, "dtype", None)
    return dtype is not None and is_key_dtype(dtype)


def extended_dtype(dtype: Any) -> DType:
    """RLX's dtype for JAX's dtypes that are neither NumPy's nor keys.

    Raises:
        DTypeError: there is none.
    """
    if dtype == jax.dtypes.float0:
        return DType.BOOL
    raise DTypeError(f"trace: dtype {dtype} of {type(dtype).__name__} has no counterpart in RLX.")


def is_float0(dtype: Any) -> bool:
    """Tell whether a dtype is float0, the type of tangents of integers."""
    return isinstance(dtype, np.dtype) and dtype == jax.dtypes.float0
