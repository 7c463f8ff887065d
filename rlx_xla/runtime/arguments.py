"""What a call accepts: arrays and scalars turned into buffers of the declared types.

This is the slow side of a call. An argument comes here only when it is not a ``jax.Array``
whose aval and sharding were accepted for its position before.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from rlx.dtypes import DType, as_dtype
from rlx.errors import RunError, also
from rlx.host_values import cast_array, refuse_masked
from rlx_xla._jax_compat import client as jax_client
from rlx_xla._jax_compat import placement
from rlx_xla._jax_compat.jaxpr import enable_x64, is_key_dtype
from rlx_xla.runtime.spread import Spread

_NARROWED_BY_JAX = {
    (np.dtype(np.int64), np.dtype(np.int32)),
    (np.dtype(np.uint64), np.dtype(np.uint32)),
    (np.dtype(np.complex128), np.dtype(np.complex64)),
}
"""What jax.jit narrows without a word when 64-bit types are off; f64 → f32 is left out."""


@final
@dataclass(frozen=True, slots=True)
class BufferType:
    """The type of an argument or a result at run time, printed as ``f32[8, 64]``.

    Attributes:
        dtype: NumPy or ml_dtypes dtype.
        shape: sizes in elements.
    """

    dtype: np.dtype
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{as_dtype(self.dtype).label}[{', '.join(map(str, self.shape))}]"

    @classmethod
    def of(cls, spec: Any) -> BufferType:
        """Return the type for a ``(dtype, shape)`` pair or anything with dtype and shape."""
        dtype, shape = spec if isinstance(spec, tuple) else (spec.dtype, spec.shape)
        numpy_dtype = dtype.numpy if isinstance(dtype, DType) else np.dtype(dtype)
        return cls(numpy_dtype, tuple(int(size) for size in shape))


@final
class ArgumentRules:
    """The declared arguments of one executable and how values become them.

    Attributes:
        names: the arguments' names, in order.
        types: their types, in order.
        device: where buffers live.
        sharding: the sharding of accepted buffers; None where each has its own.
        avals: one aval for each argument.
    """

    __slots__ = (
        "_cast", "_committed", "_devices", "_loose", "_spread",
        "avals", "device", "names", "sharding", "types",
    )  # fmt: skip

    def __init__(
        self,
        names: Sequence[str],
        types: Sequence[BufferType],
        device: jax_client.Device,
        *,
        committed: bool,
        cast: bool,
        loose: bool = False,
        spread: Spread | None = None,
    ) -> None:
        """Declare the arguments of an executable on ``device``, or on several.

        Args:
            names: the arguments' names, in order.
            types: their types, in order.
            device: where buffers live.
            committed: whether host arrays are tied to the device.
            cast: convert arguments of another dtype instead of refusing them.
            loose: an array that is free to move stays so when it is moved here.
            spread: where arguments lie, for a program over several devices.
        """
        self.names = tuple(names)
        self.types = tuple(types)
        self.device = device
        self._spread = None if spread is None else spread.arguments
        self.sharding = jax_client.single_device_sharding(device) if spread is None else None
        self.avals = tuple(jax_client.shaped_array(t.shape, t.dtype) for t in types)
        self._devices = {device}
        self._committed = committed
        self._cast = cast
        self._loose = loose

    def admit(self, index: int, value: Any, *, alias: bool = True) -> jax.Array:
        """Return a value as a buffer of the argument's type on the executable's device.

        Args:
            index: position of the argument.
            value: a ``jax.Array``, a NumPy array or scalar, or a Python scalar.
            alias: a host array may be aliased (as ``jax.jit`` does) rather than copied.

        Raises:
            RunError: wrong kind of value, dtype, shape or device.
        """
        type_ = self.types[index]
        if isinstance(value, jax.Array):
            return self._place(index, self.checked(index, value))
        host = self._host(index, value)
        if host.shape != type_.shape:
            raise self._mismatch(index, host.dtype, host.shape, "Pass an array of that shape.")
        if self._spread is not None:
            return placement.spread_host(host if alias else host.copy(), self._spread[index])
        return jax_client.put(
            host,
            self.avals[index],
            self.sharding,
            self.device,
            committed=self._committed,
            alias=alias,
        )

    def fast_admit(self) -> Callable[[int, Any], jax.Array]:
        """Return ``admit`` as a function with a short way for NumPy arrays of the right type."""
        if self._spread is not None:
            return self.admit
        put = jax_client.putter(self.device, committed=self._committed)
        admit, array = self.admit, np.ndarray
        wanted = [(t.dtype, t.shape, aval) for t, aval in zip(self.types, self.avals, strict=True)]

        def fast_admit(index: int, value: Any) -> jax.Array:
            dtype, shape, aval = wanted[index]
            if type(value) is array and value.dtype == dtype and value.shape == shape:
                return put(value, aval)
            return admit(index, value)

        return fast_admit

    def checked(self, index: int, value: jax.Array) -> jax.Array:
        """Return an array (or tracer) of the argument's type, cast if that is allowed.

        Raises:
            RunError: wrong dtype or shape.
        """
        type_ = self.types[index]
        if value.dtype == type_.dtype and value.shape == type_.shape:
            return value
        if is_key_dtype(value.dtype):
            raise self._mismatch(
                index, value.dtype, value.shape, "Pass jax.random.key_data(key) instead."
            )
        if value.shape != type_.shape:
            raise self._mismatch(index, value.dtype, value.shape, "Pass an array of that shape.")
        if not (self._cast and _castable(value.dtype, type_.dtype)):
            raise self._mismatch(index, value.dtype, value.shape, self._cast_advice(index))
        with enable_x64():
            return jax.lax.convert_element_type(value, type_.dtype)

    def _place(self, index: int, value: jax.Array) -> jax.Array:
        sharding = value.sharding
        if self._spread is not None:
            target = self._spread[index]
            if sharding == target or sharding.is_equivalent_to(target, value.ndim):
                return value
            if value.is_fully_addressable and not target.is_fully_addressable:
                return placement.spread_host(np.asarray(value), target)
            return jax.device_put(value, target)
        if sharding == self.sharding:
            return value
        devices = sharding.device_set
        if devices == self._devices or not value.committed:
            # Another memory of this device, a one-device mesh, or free to move: JAX moves it.
            moved = jax.device_put(value, self.sharding)
            return jax_client.uncommitted(moved) if self._loose and not value.committed else moved
        where = ", ".join(sorted(map(str, devices)))
        raise RunError(
            f"call: argument {self.names[index]!r} must live on {self.device}; got "
            f"{self.types[index]} committed to {where}. "
            "Move it with jax.device_put(x, device), or compile for its device."
        )

    def _host(self, index: int, value: Any) -> np.ndarray:
        """Return a host value as a NumPy array of the argument's dtype (any shape)."""
        dtype = self.types[index].dtype
        refuse_masked(f"call: argument {self.names[index]!r}", value)
        if isinstance(value, np.ndarray | np.generic):
            return self._host_array(index, np.asarray(value))
        if isinstance(value, bool | int | float | complex):
            return self._host_scalar(index, value)
        convert = getattr(value, "__jax_array__", None) or getattr(value, "__array__", None)
        if convert is None or isinstance(value, type | list | tuple | dict):
            raise RunError(
                f"call: argument {self.names[index]!r} must be {self.types[index]}: an array or "
                f"a scalar; got {type(value).__name__}. Pass a jax.Array or a NumPy array of "
                f"dtype {dtype.name}."
            )
        return self._host_array(index, np.asarray(convert()))

    def _host_array(self, index: int, array: np.ndarray) -> np.ndarray:
        wanted = self.types[index].dtype
        if array.dtype == wanted:
            return array
        narrowed = not jax_client.x64_enabled() and (array.dtype, wanted) in _NARROWED_BY_JAX
        if narrowed:
            return array.astype(wanted)
        if self._cast and _castable(array.dtype, wanted):
            return cast_array(array, as_dtype(wanted))
        raise self._mismatch(index, array.dtype, array.shape, self._cast_advice(index))

    def _host_scalar(self, index: int, value: complex) -> np.ndarray:
        """Convert a Python scalar as a weakly typed one: its kind must fit, its width adapts."""
        wanted = self.types[index].dtype
        kinds = {bool: "bool", int: "int", float: "float", complex: "complex"}
        order = list(kinds.values())
        have, target = kinds[_scalar_type(value)], _kind(wanted)
        fits = have == target or (have != "bool" and order.index(have) < order.index(target))
        if not fits and not (self._cast and have != "complex"):
            raise self._mismatch(
                index, f"Python {have}", (), f"Pass a {target} or an array of {wanted.name}."
            )
        if target == "int" and have == "int":
            info = ml_dtypes.iinfo(wanted)
            if not int(info.min) <= int(value.real) <= int(info.max):
                raise also(RunError, OverflowError)(
                    f"call: argument {self.names[index]!r} must be {self.types[index]}, from "
                    f"{info.min} to {info.max}; got {value}. Use a value in range."
                )
        return np.asarray(value).astype(wanted)

    def _cast_advice(self, index: int) -> str:
        name = self.types[index].dtype.name
        return f"Convert it to {name}, or compile with CompileOptions(cast_inputs=True)."

    def _mismatch(self, index: int, dtype: Any, shape: tuple[int, ...], advice: str) -> RunError:
        found = f"{dtype}" if isinstance(dtype, str) else _type_text(dtype, shape)
        return RunError(
            f"call: argument {self.names[index]!r} must be {self.types[index]}; got {found}. "
            f"{advice}"
        )


def argument_count_error(names: Sequence[str], found: int) -> RunError:
    """Return the error for a call with the wrong number of arguments."""
    listed = ", ".join(map(repr, names)) or "none"
    return RunError(
        f"call: must have {len(names)} arguments ({listed}); got {found}. "
        "Pass every argument that is not bound, in order."
    )


def keyword_error(names: Sequence[str], found: str) -> RunError:
    """Return the error for a call with a keyword where arguments are positional."""
    listed = ", ".join(map(repr, names)) or "none"
    return also(RunError, TypeError)(
        f"call: arguments are required by position, in the order {listed}; got the keyword "
        f"{found!r}. Pass it by position; run(...) takes inputs by name."
    )


def unknown_name_error(name: str, names: Sequence[str]) -> RunError:
    """Return the error for a name that is not an argument."""
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    listed = ", ".join(map(repr, names)) or "none"
    return RunError(f"bind: unknown argument {name!r}; bindable are {listed}.{hint}")


def _castable(have: np.dtype, wanted: np.dtype) -> bool:
    """Tell whether a cast keeps the number's meaning: all but dropping an imaginary part."""
    return _kind(have) != "other" and not (_kind(have) == "complex" and _kind(wanted) != "complex")


def _kind(dtype: Any) -> str:
    if dtype == np.bool_:
        return "bool"
    for name, group in (
        ("int", np.integer), ("float", np.floating), ("complex", np.complexfloating)
    ):  # fmt: skip
        if jnp.issubdtype(dtype, group):
            return name
    return "other"


def _scalar_type(value: complex) -> type:
    return next(t for t in (bool, int, float, complex) if isinstance(value, t))


def _type_text(dtype: Any, shape: tuple[int, ...]) -> str:
    known = isinstance(dtype, np.dtype) and _kind(dtype) != "other"
    label = as_dtype(dtype).label if known and dtype.isnative else str(dtype)
    return f"{label}[{', '.join(map(str, shape))}]"
