"""Values that an op's attributes may hold, with equality by type and bit pattern.

The set is closed: bool, int, float, str, bytes, None, Enum, DType, Dim, Literal, Graph, Opaque
and tuples of these. Hence printing, parsing, hashing and cache keys are written once.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, TypeAlias, cast, final

import numpy as np

from rlx.dims import DimExpr
from rlx.dtypes import DType, as_dtype
from rlx.errors import RegistryError
from rlx.types import TensorType

if TYPE_CHECKING:
    import numpy.typing as npt

Array: TypeAlias = "npt.NDArray[Any]"


@final
class Literal:
    """A read-only array inside an attribute; equal when dtype, shape and bits are equal."""

    __slots__ = ("_bytes", "array")

    def __init__(self, array: npt.ArrayLike, dtype: DType | str | None = None) -> None:
        """Copy an array (C order); ``dtype`` converts exactly as NumPy does."""
        target = None if dtype is None else as_dtype(dtype).numpy
        copied = np.array(array, dtype=target, order="C", copy=True)
        as_dtype(copied.dtype)
        copied.flags.writeable = False
        self.array: Array = copied
        self._bytes: bytes | None = None

    @property
    def type(self) -> TensorType:
        """Dtype and shape."""
        return TensorType(as_dtype(self.array.dtype), tuple(int(n) for n in self.array.shape))

    def tobytes(self) -> bytes:
        """Elements in C order, little endian."""
        if self._bytes is None:
            self._bytes = self.array.tobytes()
        return self._bytes

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Literal):
            return NotImplemented
        return (
            self.array.dtype == other.array.dtype
            and self.array.shape == other.array.shape
            and self.tobytes() == other.tobytes()
        )

    def __hash__(self) -> int:
        return hash((self.array.dtype, self.array.shape, self.tobytes()))

    def __repr__(self) -> str:
        if self.array.size == 1:
            return f"Literal({self.array.reshape(()).item()!r}, {self.type})"
        return f"Literal({self.type})"


@final
class Opaque:
    """A live Python object inside an attribute, compared by identity; never printed or saved.

    Attributes:
        counts: whether it is part of the op's meaning. One that is not only knows more of where the
            op comes from; it is left out of equality and of fingerprints, as if it were None.
        value: the object, for instance a jaxpr.
        evaluate: NumPy meaning supplied by the backend that made the node, or None.
        portable: gives StableHLO text by platform, for saving; empty where there is none.
    """

    __slots__ = ("counts", "evaluate", "portable", "value")

    def __init__(
        self,
        value: object,
        evaluate: Callable[..., Any] | None = None,
        portable: Callable[[], tuple[tuple[str, str], ...]] | None = None,
        *,
        counts: bool = True,
    ) -> None:
        """Wrap an object."""
        self.value = value
        self.evaluate = evaluate
        self.portable = portable
        self.counts = counts

    def __repr__(self) -> str:
        return f"Opaque({type(self.value).__name__})"


NORMAL = frozenset({int, str, bool, float, type(None), DType, Literal})
"""Kinds of attributes, and of items of tuples, that ``normalise`` leaves as they are."""


def normalise(where: str, value: Any) -> Any:
    """Return the attribute with lists as tuples and NumPy scalars as Python scalars.

    Raises:
        RegistryError: the value's type is outside the closed set.
    """
    kind = cast("type[object]", type(value))
    if kind in NORMAL:
        return value
    if kind is tuple or kind is list:
        return tuple([normalise(where, item) for item in value])
    if isinstance(value, enum.Enum | bytes | DimExpr | Opaque):
        return value
    if isinstance(value, np.bool_ | np.integer | np.floating):
        return cast("bool | int | float", value.item())
    if isinstance(value, np.ndarray):
        return Literal(cast("Array", value))
    if kind.__name__ == "Graph" and kind.__module__ == "rlx.ir.graph":
        return value
    raise RegistryError(
        f"{where}: an attribute must be bool, int, float, str, bytes, None, Enum, DType, Dim, "
        f"Literal, Graph, Opaque or a tuple of these; got {kind.__name__}."
    )


_OWN_KEYS = frozenset({int, str})
"""Kinds of which a value stands for itself: nothing of another kind that stands there equals it."""


def key(value: Any) -> Hashable:
    """Return what stands for an attribute in equality and hashing.

    NaN equals itself, 0.0 differs from −0.0 and 1 from True.
    """
    kind = cast("type[object]", type(value))
    if kind is int or kind is str:
        return value
    if kind is float:
        return ("float", struct.pack("<d", value))
    if kind is bool:
        return ("bool", value)
    if kind is tuple:
        if _OWN_KEYS.issuperset(map(type, value)):
            return value
        return tuple([key(item) for item in value])
    if kind is Opaque and not value.counts:
        return None
    return value
