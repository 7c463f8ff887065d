"""What a rule can know about a value's elements."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx.ir.attributes import Array
from rlx.ir.graph import Value
from rlx.ops.io import Constant
from rlx.ops.shape import BroadcastInDim, Expand, Reshape, Tile, Transpose

_SPREADS = (BroadcastInDim, Expand, Reshape, Tile, Transpose)
_MAX_ELEMENTS = 256
"""A longer literal is not searched for being all equal; folding makes none that is longer."""


def array_of(value: Value) -> Array | None:
    """The array of a constant, None for any other value."""
    op = value.node.op
    return op.value.array if isinstance(op, Constant) else None


def element_of(value: Value) -> Any:
    """The one element that all elements of a value equal bit for bit, or None.

    Looks through broadcasts and other ops that only repeat or move elements.
    """
    while isinstance(value.node.op, _SPREADS):
        value = value.node.inputs[0]
    array = array_of(value)
    if array is None or not 0 < array.size <= _MAX_ELEMENTS:
        return None
    flat = array.reshape(-1)
    width = flat.dtype.itemsize
    data = flat.tobytes()
    return flat[0] if data == data[:width] * array.size else None


def is_plus_zero(element: Any) -> bool:
    """Whether an element is 0, and +0 where zeros have a sign (both parts, when complex)."""
    return _is_zero(element, negative=False)


def is_minus_zero(element: Any) -> bool:
    """Whether an element is −0, or the 0 of an integer (which has one only)."""
    return _is_zero(element, negative=True)


def is_one(element: Any) -> bool:
    """Whether an element is 1."""
    return element is not None and element.dtype.kind != "b" and complex(element) == 1


def _is_zero(element: Any, *, negative: bool) -> bool:
    if element is None:
        return False
    kind = element.dtype.kind
    if kind in "iu":
        return int(element) == 0
    if kind == "b":
        return False
    number = complex(element)
    parts = [number.real, number.imag] if kind == "c" else [number.real]
    return number == 0 and all(bool(np.signbit(p)) is negative for p in parts)
