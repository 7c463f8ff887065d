"""Compares trees of arrays, and says which leaf and element is wrong and by how many ulps."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import ml_dtypes
import numpy as np

from rlx.dtypes import DType, as_dtype
from rlx.options.precision import Precision
from rlx_xla._jax_compat import keys
from rlx_xla.testing.tolerances import Tolerance, tolerance

Array = np.ndarray[Any, Any]
Bound = Callable[[DType, Array], Tolerance]


def assert_close(
    found: Any,
    wanted: Any,
    *,
    tolerance: Tolerance | None = None,
    precision: Precision = Precision.F32,
    label: str = "result",
) -> None:
    """Assert that two trees of arrays have one structure, equal types, and values within bounds.

    Args:
        found: a tree of arrays, scalars or keys.
        wanted: the same, what is right.
        tolerance: bounds for every leaf; by dtype and precision where it is None.
        precision: what ``found`` was computed in.
        label: names the trees in messages.

    Raises:
        AssertionError: they differ; every leaf that does is reported with its worst element.

    Example:
        >>> assert_close({"a": np.float32(1)}, {"a": np.float32(1 + 1e-7)})
    """
    compare(found, wanted, _bound(tolerance, precision), label)


def compare(found: Any, wanted: Any, bound: Bound, label: str) -> None:
    """Do as ``assert_close``, with bounds from the dtype and the wanted values of each leaf."""
    found_leaves, found_tree = jax.tree_util.tree_flatten_with_path(found)
    wanted_leaves, wanted_tree = jax.tree_util.tree_flatten_with_path(wanted)
    if found_tree != wanted_tree:
        raise AssertionError(
            f"{label} is required to have the structure {wanted_tree}; it has {found_tree}."
        )
    problems = [
        text
        for (path, left), (_, right) in zip(found_leaves, wanted_leaves, strict=True)
        for text in _problems(f"{label}{jax.tree_util.keystr(path)}", left, right, bound)
    ]
    if problems:
        raise AssertionError("\n".join(problems))


def ulps(found: Array, wanted: Array) -> Array | None:
    """Distance in units in the last place, elementwise; None for dtypes without such units.

    Args:
        found: floats of 8, 16, 32 or 64 bits.
        wanted: the same dtype and shape.
    """
    size = wanted.dtype.itemsize
    if not _is_float(wanted.dtype) or size not in (1, 2, 4, 8):
        return None
    counts = [_counted(x) for x in (found, wanted)]
    low, high = np.minimum(*counts), np.maximum(*counts)
    return high.astype(np.uint64) - low.astype(np.uint64)


def _counted(array: Array) -> Array:
    """Floats as i64 numbers that count them in order, both zeros as 0."""
    size = array.dtype.itemsize
    bits = np.ascontiguousarray(array).view(f"i{size}").astype(np.int64)
    lowest = np.int64(-(2 ** (8 * size - 1)))
    return np.where(bits < 0, lowest - bits, bits).reshape(array.shape)


def _bound(given: Tolerance | None, precision: Precision) -> Bound:
    return lambda dtype, _: tolerance(dtype, precision) if given is None else given


def _problems(where: str, found: Any, wanted: Any, bound: Bound) -> list[str]:
    left, right = _as_array(found), _as_array(wanted)
    if (left.dtype, left.shape) != (right.dtype, right.shape):
        return [f"{where} is required to be {_type(right)}; it is {_type(left)}."]
    if not right.size:
        return []
    if right.dtype.kind == "V" and not _is_float(right.dtype):  # narrow integers of ml_dtypes
        left, right = left.astype(np.int64), right.astype(np.int64)
    limit = bound(as_dtype(right.dtype), right)
    wrong, error = _wrong(left, right, limit)
    count = int(wrong.sum())
    if not count:
        return []
    ranked = np.where(wrong, np.where(np.isnan(error), np.inf, error), -1.0)
    index = tuple(int(i) for i in np.unravel_index(int(ranked.argmax()), ranked.shape))
    distance = ulps(left, right)
    apart = "" if distance is None else f", {int(distance[index])} ulps apart"
    if distance is not None and not (
        np.isfinite(_wide(left[index])) and np.isfinite(_wide(right[index]))
    ):
        apart = ""
    place = f"[{', '.join(map(str, index))}]" if index else ""
    return [
        f"{where}{place} is required to be {right[index]!r}; it is {left[index]!r}{apart} "
        f"(atol {limit.atol:g}, rtol {limit.rtol:g}). {count} of {right.size} elements of "
        f"{_type(right)} are outside; this is the worst."
    ]


def _wrong(found: Array, wanted: Array, limit: Tolerance) -> tuple[Array, Array]:
    """Which elements are outside the bounds, and the excess of each."""
    if limit == Tolerance(0.0, 0.0):
        equal = (found == wanted) | ((found != found) & (wanted != wanted))
        apart = np.abs(_wide(found) - _wide(wanted)) if found.dtype.kind != "b" else ~equal
        return ~equal, np.where(equal, 0.0, apart.astype(np.float64))
    left, right = _wide(found), _wide(wanted)
    with np.errstate(all="ignore"):
        error = np.abs(left - right) - (limit.atol + limit.rtol * np.abs(right))
        same = (left == right) | (np.isnan(left) & np.isnan(right))
        fine = np.isfinite(left) & np.isfinite(right) & (error <= 0)
    return ~(same | fine), error


def _wide(array: Array) -> Any:
    """Values as f64 or c128."""
    return np.asarray(array).astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def _is_float(dtype: np.dtype[Any]) -> bool:
    if dtype.kind in "fc":
        return dtype.kind == "f"
    return dtype.kind == "V" and _has_finfo(dtype)


def _has_finfo(dtype: np.dtype[Any]) -> bool:
    return as_dtype(dtype).is_float and math.isfinite(float(ml_dtypes.finfo(dtype).max))


def _as_array(leaf: Any) -> Array:
    return np.asarray(keys.key_data(leaf) if keys.is_key(leaf) else leaf)


def _type(array: Array) -> str:
    return f"{as_dtype(array.dtype)}[{', '.join(map(str, array.shape))}]"
