"""What a caller gives for an input or a param, as an array of the declared type."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from rlx import dims
from rlx.dtypes import DType, Kind, as_dtype
from rlx.errors import CompileError, DTypeError, RunError, did_you_mean
from rlx.host_values import python_array, refuse_masked
from rlx.ir.graph import Graph, Value
from rlx.options.compile import CompileOptions
from rlx.types import TensorType

CONVERTIBLE = frozenset(
    {
        (DType.F32, DType.F16),
        (DType.F32, DType.BF16),
        (DType.F16, DType.F32),
        (DType.BF16, DType.F32),
        (DType.F16, DType.BF16),
        (DType.BF16, DType.F16),
    }
)
"""(given, declared) dtypes that values of params and typed bytes are converted between."""


def listing(values: Sequence[Value]) -> str:
    """Names and types, for messages."""
    return ", ".join(f"{v.name!r}: {v.type}" for v in values) or "none"


def param_value(what: str, value: Any, type_: TensorType, advice: Callable[[], str] = str) -> Any:
    """Return a value for a param or a kept input: a host or device array of exactly its dtype.

    Args:
        what: beginning of messages, such as ``"set_param: param 'w'"``.
        value: an array, a Python number or lists; the latter adopt the dtype.
        type_: declared; symbolic dims take any size.
        advice: what to do with a value of another type, in place of the usual; empty for that.

    Raises:
        RunError: another shape, or a dtype that is not converted.
    """
    wanted = type_.dtype
    refuse_masked(what, value)
    if isinstance(value, bool | int | float | complex | list | tuple):
        value = python_array(what, value, wanted)
    if value is None:
        usual = "Pass an array of that type."
        raise RunError(f"{what} is required to be {type_}; got None. {advice() or usual}")
    if not hasattr(value, "dtype") or not hasattr(value, "shape"):
        value = np.asarray(value)
    try:
        found = as_dtype(np.dtype(value.dtype))
    except (DTypeError, TypeError) as error:
        raise RunError(
            f"{what} is required to be {type_}; got {value.dtype}. "
            f"{advice() or 'Pass an array of that type.'}"
        ) from error
    shape = tuple(int(n) for n in value.shape)
    if not _fits(shape, type_):
        raise RunError(
            f"{what} is required to be {type_}; got {TensorType(found, shape)}. "
            f"{advice() or 'Reshape or transpose it.'}"
        )
    if found is wanted:
        return value
    if (found, wanted) in CONVERTIBLE:
        return np.asarray(value).astype(wanted.numpy)
    usual = f"Convert it with .astype({wanted.numpy.name!r})."
    raise RunError(
        f"{what} is required to be {type_}; got {TensorType(found, shape)}. {advice() or usual}"
    )


def input_value(name: str, value: Any, type_: TensorType) -> Any:
    """Return a value for an input that is fed by name.

    Lists take the declared dtype, as Python numbers do, and host arrays of f32, f16 or bf16
    become the one of these that is declared narrower, as in RLX.
    """
    if isinstance(value, list | tuple):
        return python_array(f"run: input {name!r}", value, type_.dtype)
    refuse_masked(f"run: input {name!r}", value)
    half = type_.dtype in (DType.F16, DType.BF16)
    if half and isinstance(value, np.ndarray):
        array = cast("np.ndarray[Any, Any]", value)
        return array.astype(type_.dtype.numpy) if array.dtype == np.float32 else array
    return value


def from_bytes(
    where: str, data: bytes, dtype: DType | str, type_: TensorType
) -> np.ndarray[Any, Any]:
    """Return raw little-endian bytes in C order as an array of a static type.

    f32, f16 and bf16 are converted into each other. ``u8`` for another one-byte or sub-byte dtype
    means its bits: packed bytes, two elements of four bits in each (the low half first), and so
    on for two.

    Raises:
        RunError: the number of bytes does not fit.
    """
    given = as_dtype(dtype)
    sizes = tuple(dims.evaluate(d, {}) for d in type_.shape)
    count = math.prod(sizes)
    wanted = type_.dtype
    one_byte = wanted.itemsize == 1 and wanted.kind in (Kind.INT, Kind.FLOAT)
    raw = given is DType.U8 and wanted is not DType.U8 and one_byte
    bits = wanted.bits if raw else 8 * given.itemsize
    expected = -(-count * bits // 8)
    data = _raw(where, data)
    if len(data) != expected:
        raise RunError(
            f"{where} is required to be {type_}, {count} elements of {given} in "
            f"{expected} bytes; got {len(data)} bytes."
        )
    if raw:
        return _unpacked(np.frombuffer(data, np.uint8), wanted, count).reshape(sizes)
    array: np.ndarray[Any, Any] = np.frombuffer(data, given.numpy).reshape(sizes)
    return array.astype(wanted.numpy) if (given, wanted) in CONVERTIBLE else array


def with_bytes(
    name: str, old: np.ndarray[Any, Any], offset: int, data: bytes
) -> np.ndarray[Any, Any]:
    """Return a copy of a param's array with some of its bytes replaced.

    Args:
        name: of the param, for messages.
        old: its value now.
        offset: of the first byte, in the array's own dtype and C order.
        data: what to put there.

    Raises:
        RunError: the range does not lie inside the array.
    """
    size = old.size * old.dtype.itemsize
    if not (isinstance(offset, int) and not isinstance(offset, bool)) or offset < 0:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise RunError(
            f"set_param_range: param {name!r}: the offset is required to be an int ≥ 0, in bytes; "
            f"got {offset!r}."
        )
    data = _raw(f"set_param_range: param {name!r}", data)
    if offset + len(data) > size:
        raise RunError(
            f"set_param_range: param {name!r} is required to hold the range; it has {size} bytes; "
            f"got bytes {offset} to {offset + len(data)}. Shorten it."
        )
    changed = bytearray(np.ascontiguousarray(old).tobytes())
    changed[offset : offset + len(data)] = data
    return np.frombuffer(bytes(changed), old.dtype).reshape(old.shape)


def _raw(where: str, data: object) -> bytes:
    """What a buffer holds, in C order, as bytes.

    Raises:
        RunError: it is no buffer.
    """
    if isinstance(data, bytes | bytearray):
        return bytes(data)
    if not isinstance(data, memoryview | np.ndarray):
        raise RunError(
            f"{where} is required to be given as bytes; got {type(data).__name__}. Use "
            "array.tobytes(), or set_param for an array."
        )
    return cast("memoryview", data).tobytes()


def _unpacked(packed: np.ndarray[Any, Any], dtype: DType, count: int) -> np.ndarray[Any, Any]:
    """Elements of a dtype of at most 8 bits from their bits."""
    if dtype.bits == 8:
        return packed.view(dtype.numpy)
    per_byte = 8 // dtype.bits
    if per_byte * dtype.bits != 8:
        raise RunError(
            f"set_param_typed: {dtype} does not pack evenly into bytes. Pass one element per byte "
            f"with dtype {dtype}."
        )
    shifts = np.arange(per_byte, dtype=np.uint8) * dtype.bits
    codes = (packed[:, None] >> shifts) & np.uint8((1 << dtype.bits) - 1)
    return codes.reshape(-1)[:count].view(dtype.numpy)


def _fits(shape: tuple[int, ...], type_: TensorType) -> bool:
    if len(shape) != type_.rank:
        return False
    return all(not isinstance(d, int) or d == n for d, n in zip(type_.shape, shape, strict=True))


def fixed_values(graph: Graph, options: CompileOptions) -> dict[str, np.ndarray[Any, Any]]:
    """Values of the params that the options fix, as host arrays of the declared dtypes.

    Raises:
        CompileError: unknown names, other types or sizes, or a name in both fields; all at once.
    """
    declared = {v.name: v.type for v in graph.params}
    found: dict[str, np.ndarray[Any, Any]] = {}
    problems: list[str] = []
    for field, values in (
        ("param_bindings", options.param_bindings),
        ("quant_param_bindings", options.quant_param_bindings),
    ):
        where = f"CompileOptions.{field}"
        for name, value in (values or {}).items():
            if name not in declared:
                problems.append(
                    f"{where}: unknown param {name!r}; params are {listing(graph.params)}."
                    f"{did_you_mean(name, declared)}"
                )
                continue
            if name in found:
                problems.append(f"{where}: param {name!r} has a value in param_bindings already.")
                continue
            try:
                what = f"{where}: param {name!r}"
                if field == "quant_param_bindings":
                    value = from_bytes(what, bytes(value), DType.U8, declared[name])
                found[name] = np.asarray(param_value(what, value, declared[name]))
            except RunError as error:
                problems.append(str(error))
    if problems:
        raise CompileError("\n".join(problems))
    return found
