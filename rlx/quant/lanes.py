"""The few array operations that codecs are written in, once for NumPy and once for graphs.

A codec is a plain function of ``Lanes``: with ``NUMPY`` it computes, with the graph's lanes (family
``quantized``) it makes nodes. So what the interpreter decodes and what XLA decodes is one text.
Arrays keep Python's operators ``+ − * / & | ^ <``, which broadcast as NumPy does.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, final

import numpy as np

from rlx.dtypes import DType

if TYPE_CHECKING:
    import numpy.typing as npt

Lane: TypeAlias = Any
"""A NumPy array or a graph value."""


class AbstractLanes(abc.ABC):
    """Operations on arrays of any rank; ``last`` means the last axis."""

    @abc.abstractmethod
    def constant(self, values: npt.ArrayLike, dtype: DType) -> Lane:
        """An array of known numbers."""

    @abc.abstractmethod
    def shape(self, x: Lane) -> tuple[Any, ...]:
        """Sizes of the axes."""

    @abc.abstractmethod
    def reshape(self, x: Lane, shape: Sequence[Any]) -> Lane:
        """The same elements in C order under another shape."""

    @abc.abstractmethod
    def expand(self, x: Lane, shape: Sequence[Any]) -> Lane:
        """Broadcast to a shape, as NumPy does."""

    @abc.abstractmethod
    def cut(self, x: Lane, start: int, stop: int) -> Lane:
        """Elements ``start`` to ``stop`` of the last axis."""

    @abc.abstractmethod
    def join(self, parts: Sequence[Lane]) -> Lane:
        """Concatenate along the last axis."""

    @abc.abstractmethod
    def pad(self, x: Lane, size: int) -> Lane:
        """Zeros after the last axis, up to ``size`` elements."""

    @abc.abstractmethod
    def convert(self, x: Lane, dtype: DType) -> Lane:
        """Convert numbers that the dtype holds."""

    @abc.abstractmethod
    def bits(self, x: Lane, dtype: DType) -> Lane:
        """Read the bits of each element as another dtype of the same width."""

    @abc.abstractmethod
    def read(self, x: Lane, dtype: DType) -> Lane:
        """Read bytes (u8) of the last axis as little-endian elements of a dtype."""

    @abc.abstractmethod
    def shift_left(self, x: Lane, amount: Any) -> Lane:
        """Bits of unsigned integers moved up; ``amount`` is a number or an array like x."""

    @abc.abstractmethod
    def shift_right(self, x: Lane, amount: Any) -> Lane:
        """Bits of unsigned integers moved down; ``amount`` is a number or an array like x."""

    @abc.abstractmethod
    def fields(self, x: Lane, shifts: Sequence[int], mask: int, *, last: bool = False) -> Lane:
        """``(x >> shift) & mask`` for each shift, on a new axis before the last or behind it."""

    @abc.abstractmethod
    def equal(self, x: Lane, y: Any) -> Lane:
        """Elementwise ==."""

    @abc.abstractmethod
    def select(self, condition: Lane, yes: Any, no: Any) -> Lane:
        """``yes`` where the condition holds, else ``no``; one of them may be a number."""

    @abc.abstractmethod
    def take(self, table: npt.NDArray[Any], codes: Lane) -> Lane:
        """Entries of a one-dimensional table; codes are unsigned and in range."""

    @abc.abstractmethod
    def divide(self, x: Lane, y: Lane) -> Lane:
        """``x / y``, rounded once; y broadcasts to x."""

    @abc.abstractmethod
    def round_even(self, x: Lane) -> Lane:
        """Nearest whole number, ties to even."""

    @abc.abstractmethod
    def minimum(self, x: Lane, bound: Any) -> Lane:
        """The lesser of x and a bound."""

    @abc.abstractmethod
    def maximum(self, x: Lane, bound: Any) -> Lane:
        """The greater of x and a bound."""

    @abc.abstractmethod
    def amax(self, x: Lane, *, everything: bool = False) -> Lane:
        """The greatest |x| along the last axis (kept with size 1), or of all as [1]; 0 if none.

        NaN counts as 0.
        """

    def choose(self, table: Sequence[float], codes: Lane, dtype: DType) -> Lane:
        """Entries of a short table as a tree of selects, which vectorises on every device.

        Args:
            table: 2^n numbers.
            codes: u8, below 2^n.
            dtype: of the result.
        """
        level: list[Any] = [self.constant(v, dtype) for v in table]
        shape = self.shape(codes)
        bit = 1
        while len(level) > 1:
            odd = self.equal(codes & bit, bit)
            level = [
                self.select(odd, self.expand(high, shape), self.expand(low, shape))
                for low, high in zip(level[::2], level[1::2], strict=True)
            ]
            bit *= 2
        return level[0]


@final
class NumpyLanes(AbstractLanes):
    """The operations in NumPy."""

    def constant(self, values: npt.ArrayLike, dtype: DType) -> Lane:
        return np.asarray(values, dtype.numpy)

    def shape(self, x: Lane) -> tuple[Any, ...]:
        return tuple(x.shape)

    def reshape(self, x: Lane, shape: Sequence[Any]) -> Lane:
        return np.reshape(x, tuple(shape))

    def expand(self, x: Lane, shape: Sequence[Any]) -> Lane:
        return np.broadcast_to(x, tuple(shape))

    def cut(self, x: Lane, start: int, stop: int) -> Lane:
        return x[..., start:stop]

    def join(self, parts: Sequence[Lane]) -> Lane:
        return np.concatenate(parts, axis=-1)

    def pad(self, x: Lane, size: int) -> Lane:
        widths = [(0, 0)] * (x.ndim - 1) + [(0, size - x.shape[-1])]
        return np.pad(x, widths)

    def convert(self, x: Lane, dtype: DType) -> Lane:
        return x.astype(dtype.numpy)

    def bits(self, x: Lane, dtype: DType) -> Lane:
        return np.ascontiguousarray(x).view(dtype.numpy).reshape(x.shape)

    def read(self, x: Lane, dtype: DType) -> Lane:
        shape = (*x.shape[:-1], x.shape[-1] // dtype.itemsize)
        return np.ascontiguousarray(x).reshape(-1).view(dtype.numpy).reshape(shape)

    def shift_left(self, x: Lane, amount: Any) -> Lane:
        return x << np.asarray(amount).astype(x.dtype)

    def shift_right(self, x: Lane, amount: Any) -> Lane:
        return x >> np.asarray(amount).astype(x.dtype)

    def fields(self, x: Lane, shifts: Sequence[int], mask: int, *, last: bool = False) -> Lane:
        amounts = np.asarray(shifts, x.dtype)
        if last:
            return (x[..., None] >> amounts) & x.dtype.type(mask)
        return (x[..., None, :] >> amounts[:, None]) & x.dtype.type(mask)

    def equal(self, x: Lane, y: Any) -> Lane:
        return x == y

    def select(self, condition: Lane, yes: Any, no: Any) -> Lane:
        dtype: Any = no.dtype if isinstance(yes, int | float) else yes.dtype
        chosen: Any = np.where(condition, np.asarray(yes, dtype), np.asarray(no, dtype))
        return chosen

    def take(self, table: npt.NDArray[Any], codes: Lane) -> Lane:
        return table[codes]

    def divide(self, x: Lane, y: Lane) -> Lane:
        return x / np.asarray(y, x.dtype)

    def round_even(self, x: Lane) -> Lane:
        return np.rint(x)

    def minimum(self, x: Lane, bound: Any) -> Lane:
        return np.minimum(x, np.asarray(bound, x.dtype))

    def maximum(self, x: Lane, bound: Any) -> Lane:
        return np.maximum(x, np.asarray(bound, x.dtype))

    def amax(self, x: Lane, *, everything: bool = False) -> Lane:
        size: Any = self.select(np.isnan(x), 0.0, np.abs(x))
        if everything:
            return np.max(size, initial=0).reshape(1)
        return np.max(size, axis=-1, keepdims=True, initial=0)


NUMPY = NumpyLanes()
