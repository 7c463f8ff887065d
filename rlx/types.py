"""Types of values: a dtype and a shape whose dims may be symbolic."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, SupportsIndex, TypeAlias, cast, final

from rlx import dims
from rlx.dims import DimExpr
from rlx.dtypes import BY_LABEL, DType, as_dtype
from rlx.errors import ParseError, ShapeError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping

Dim: TypeAlias = "int | DimExpr"
Shape: TypeAlias = "tuple[Dim, ...]"

MAX_BYTES = 2**62
"""No tensor may be larger than this; offsets stay within 64-bit integers."""

_SPEC = re.compile(r"\s*([a-z0-9]+)\s*(?:\[(.*)\])?\s*", re.DOTALL)


@final
@dataclass(frozen=True, slots=True)
class TensorType:
    """The type of one value, printed as ``f32[batch, 64]``.

    Attributes:
        dtype: the element type; its label (``"f32"``) or NumPy's dtype is taken too.
        shape: one dim per axis, an int ≥ 0 or a symbolic expression; a dim may be given as text
            (``"2*n"``).
    """

    dtype: DType
    shape: Shape = ()

    def __post_init__(self) -> None:
        if type(self.dtype) is not DType:
            object.__setattr__(self, "dtype", as_dtype(self.dtype))
        if type(self.shape) is not tuple:
            object.__setattr__(self, "shape", _as_shape(self.shape))
        size = 1
        for axis, dim in enumerate(self.shape):
            if type(dim) is int:
                if dim < 0:
                    raise ShapeError(
                        f"type: dims are required to be ≥ 0; axis {axis} is {dim} in {self}."
                    )
                size *= dim
            elif not isinstance(dim, DimExpr):
                object.__setattr__(self, "shape", _as_shape(self.shape))
                self.__post_init__()
                return
        if size * self.dtype.itemsize > MAX_BYTES:
            raise ShapeError(
                f"type: a tensor may hold at most 2^62 bytes; {self} would hold more. "
                "Check the shape for an overflow."
            )

    def __str__(self) -> str:
        if self.dtype is DType.TOKEN:
            return "token"
        return f"{self.dtype.label}[{', '.join(str(d) for d in self.shape)}]"

    @property
    def rank(self) -> int:
        """How many axes there are."""
        return len(self.shape)

    @property
    def is_static(self) -> bool:
        """Whether every dim is a number."""
        return all(type(d) is int for d in self.shape)

    @property
    def size(self) -> Dim:
        """How many elements there are, maybe symbolic."""
        return dims.product(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes in a NumPy array of this type; the type must be static."""
        return math.prod(dims.evaluate(d, {}) for d in self.shape) * self.dtype.itemsize

    @property
    def symbols(self) -> tuple[str, ...]:
        """Names of the symbols in the shape, sorted."""
        return dims.symbols(self.shape)

    def with_dtype(self, dtype: DType) -> TensorType:
        """The same shape with another dtype."""
        return self if dtype is self.dtype else TensorType(dtype, self.shape)

    def with_shape(self, shape: Iterable[Dim]) -> TensorType:
        """The same dtype with another shape."""
        return TensorType(self.dtype, tuple(shape))

    def bind(self, binding: Mapping[str, Dim]) -> TensorType:
        """Put dims in place of symbols."""
        if self.is_static:
            return self
        return TensorType(self.dtype, tuple(dims.substitute(d, binding) for d in self.shape))


def _as_shape(shape: object) -> Shape:
    """Dims as a type holds them, from what was given as a shape.

    Raises:
        ShapeError: it is no sequence, or one of them is no dim.
        DimError: the text of a dim is no expression.
    """
    if isinstance(shape, str) or not isinstance(shape, Iterable):
        raise ShapeError(
            f"type: a shape is a tuple of dims; got {shape!r}. Write one such as (4, 'n')."
        )
    return tuple(_as_dim(axis, dim) for axis, dim in enumerate(cast("Iterable[object]", shape)))


def _as_dim(axis: int, dim: object) -> Dim:
    if isinstance(dim, DimExpr):
        return dim
    if isinstance(dim, str):
        return dims.parse(dim)
    if not isinstance(dim, bool) and isinstance(dim, SupportsIndex):
        return operator.index(dim)
    raise ShapeError(f"type: a dim is an int or a symbolic expression; axis {axis} is {dim!r}.")


TOKEN = TensorType(DType.TOKEN)


def as_type(spec: TensorType | str) -> TensorType:
    """Return a type from itself or from text such as ``"f32[batch, 64]"``.

    Raises:
        ParseError: the text is not a type; the column is given.
    """
    if isinstance(spec, TensorType):
        return spec
    match = _SPEC.fullmatch(spec) if isinstance(cast("object", spec), str) else None
    if match is None:
        raise ParseError(f"type: required text such as 'f32[batch, 64]'; got {spec!r}.")
    name, inner = match.group(1), match.group(2)
    if name not in BY_LABEL:
        raise ParseError(
            f"type: {name!r} is not a dtype in {spec!r}.{did_you_mean(name, BY_LABEL)}", column=1
        )
    dtype = as_dtype(name)
    if dtype is DType.TOKEN:
        return TOKEN
    if inner is None or not inner.strip():
        return TensorType(dtype)
    return TensorType(dtype, tuple(dims.parse(part) for part in split_commas(inner)))


def split_commas(text: str) -> list[str]:
    """Split at the commas that stand outside parentheses and brackets."""
    parts: list[str] = []
    depth = start = 0
    for position, char in enumerate(text):
        if char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
        elif char == "," and depth == 0:
            parts.append(text[start:position])
            start = position + 1
    parts.append(text[start:])
    return parts
