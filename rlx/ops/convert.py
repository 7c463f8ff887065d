"""Changes of element type, and identities that mean something to the compiler."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from rlx.dtypes import DType, Kind, as_dtype
from rlx.errors import DTypeError, ShapeError
from rlx.ir.attributes import Array
from rlx.ir.op import Op, define_op
from rlx.ops.elementwise import ANY, FLOATING, parts, require_kind, round_to
from rlx.types import TensorType


@define_op("convert")
class Convert(Op):
    """Convert the elements to another dtype.

    y = x as dtype

    Inputs:
        x: T[...]   number or bool.

    Attributes:
        dtype: element type of the result.

    Result:
        dtype[...] of the same shape. Floats become integers by truncation; what does not fit
        saturates, and NaN gives 0. Integers wrap around. bool is x ≠ 0. A complex number gives
        its real part to what is not complex.

    Constraints:
        C1: x is number or bool.
        C2: dtype is number or bool.

    Source: StableHLO `convert`, `jax.lax.convert_element_type`; RLX `Op::Cast`.
    """

    dtype: DType

    def infer(self, x: TensorType) -> TensorType:
        require_kind(self, "C1", "x", x, ANY)
        result = x.with_dtype(self.dtype)
        require_kind(self, "C2", "the result", result, ANY)
        return result

    def evaluate(self, x: Array) -> Array:
        return convert_array(x, self.dtype)


def convert_array(x: Array, target: DType) -> Array:
    """Convert as XLA does."""
    if np.iscomplexobj(x) and not target.is_complex:
        x = parts(x)[0]
    source = as_dtype(x.dtype)
    if target is DType.BOOL:
        return np.asarray(x.astype(source.compute.numpy, copy=False) != 0)
    if source.is_float and target.is_integer:
        return _saturate(x.astype(np.float64), target)
    with np.errstate(all="ignore"):
        if source.compute is not source:
            x = x.astype(source.compute.numpy)
        return np.asarray(round_to(x, target))


def _saturate(x: Array, target: DType) -> Array:
    """Truncate floats to integers; what is out of range becomes the nearest end, NaN 0."""
    signed = target.kind is Kind.INT
    least = -(2 ** (target.bits - 1)) if signed else 0
    beyond = 2 ** (target.bits - 1) if signed else 2**target.bits
    low, high = x <= float(least), x >= float(beyond)
    inside = np.where(low | high | np.isnan(x), 0.0, np.trunc(x))
    wide = inside.astype(np.int64 if signed else np.uint64)
    clipped = np.where(
        low, wide.dtype.type(least), np.where(high, wide.dtype.type(beyond - 1), wide)
    )
    return clipped.astype(target.numpy)


@define_op("bitcast_convert")
class BitcastConvert(Op):
    """Read the bits of the elements as another dtype.

    y = the bits of x; a narrower dtype adds a last axis of the parts, lowest bits first, and a
    wider one joins the last axis

    Inputs:
        x: T[...]   real number.

    Attributes:
        dtype: element type of the result.

    Result:
        dtype[...]; with a last axis of width(T) / width(dtype) when dtype is narrower, and
        without the last axis when it is wider.

    Constraints:
        C1: x and dtype are integers or floats, or one and the same type.
        C2: the wider width is a multiple of the narrower.
        C3: when dtype is wider, the last axis of x has width(dtype) / width(T) elements.

    Source: StableHLO `bitcast_convert`, `jax.lax.bitcast_convert_type`.
    """

    dtype: DType

    def infer(self, x: TensorType) -> TensorType:
        if x.dtype is self.dtype and x.dtype is not DType.TOKEN:
            return x
        plain = (Kind.INT, Kind.UINT, Kind.FLOAT)
        self.require(
            "C1",
            x.dtype.kind in plain and self.dtype.kind in plain,
            lambda: (
                f"integers or floats are required on both sides; got {x} and {self.dtype}. "
                "Bitcast the real and imaginary parts, or convert bool to an integer."
            ),
            DTypeError,
        )
        old, new = x.dtype.bits, self.dtype.bits
        self.require(
            "C2",
            max(old, new) % min(old, new) == 0,
            f"the wider width is required to be a multiple of the narrower; got {old} bits of {x} "
            f"and {new} of {self.dtype}. Convert instead.",
            DTypeError,
        )
        if old == new:
            return x.with_dtype(self.dtype)
        if old > new:
            return TensorType(self.dtype, (*x.shape, old // new))
        message = (
            f"the last axis of x is required to have {new // old} elements to make one of "
            f"{self.dtype}; got {x}. Reshape it."
        )
        self.require("C3", bool(x.shape), message, ShapeError)
        self.require_same_dims("C3", x.shape[-1:], (new // old,), message)
        return TensorType(self.dtype, x.shape[:-1])

    def evaluate(self, x: Array) -> Array:
        source, target = as_dtype(x.dtype), self.dtype
        if source is target:
            return x
        if source.bits == target.bits:
            return np.ascontiguousarray(x).view(target.numpy).reshape(x.shape)
        parts = _to_bits(x, source)
        if source.bits > target.bits:
            count = source.bits // target.bits
            return _from_bits(parts.reshape(*x.shape, count, target.bits), target)
        return _from_bits(parts.reshape(*x.shape[:-1], target.bits), target)


def _to_bits(x: Array, dtype: DType) -> Array:
    """Bits of each element on a new last axis, lowest first."""
    raw = np.ascontiguousarray(x).reshape(-1).view(np.uint8).reshape(x.size, dtype.itemsize)
    bits = np.unpackbits(raw, axis=-1, bitorder="little")
    return bits[:, : dtype.bits].reshape(*x.shape, dtype.bits)


def _from_bits(bits: Array, dtype: DType) -> Array:
    """Elements from the bits on the last axis, lowest first."""
    raw = np.packbits(bits, axis=-1, bitorder="little")
    if dtype.bits < 8 and dtype.is_integer:
        return round_to(raw[..., 0], dtype)
    shape = bits.shape[:-1]
    return np.ascontiguousarray(raw).reshape(-1).view(dtype.numpy).reshape(shape)


@define_op("reduce_precision")
class ReducePrecision(Op):
    """Round to a float of fewer bits, and keep the dtype.

    y = x rounded to exponent_bits and mantissa_bits

    Inputs:
        x: T[...]   float.

    Attributes:
        exponent_bits: ≥ 1.
        mantissa_bits: ≥ 0, without the leading one.

    Result:
        Same type as x. Rounds half to even; too large gives infinity, too small (subnormal in the
        smaller format) gives zero.

    Constraints:
        C1: x is float.
        C2: exponent_bits ≥ 1 and mantissa_bits ≥ 0.

    Source: StableHLO `reduce_precision`, `jax.lax.reduce_precision`.
    """

    exponent_bits: int
    mantissa_bits: int

    def infer(self, x: TensorType) -> TensorType:
        require_kind(self, "C1", "x", x, FLOATING)
        self.require(
            "C2",
            self.exponent_bits >= 1 and self.mantissa_bits >= 0,
            f"exponent_bits ≥ 1 and mantissa_bits ≥ 0 are required; got {self.exponent_bits} and "
            f"{self.mantissa_bits}. Name the widths of a float format.",
        )
        return x

    def evaluate(self, x: Array) -> Array:
        import ml_dtypes

        info = cast("Any", ml_dtypes.finfo(x.dtype))
        dropped = int(info.nmant) - self.mantissa_bits
        bits: Array = np.ascontiguousarray(x).view(f"u{x.dtype.itemsize}").reshape(x.shape)
        if dropped > 0:
            # On the bits, as XLA does: without mantissa bits a tie looks at the exponent's last.
            last = (bits >> dropped) & 1
            bits = (bits + ((1 << (dropped - 1)) - 1 + last)) >> dropped << dropped
        wide = bits.astype(bits.dtype).view(x.dtype).reshape(x.shape).astype(np.float64)
        if self.exponent_bits < info.nexp:
            bias = 2 ** (self.exponent_bits - 1) - 1
            size = np.abs(wide)
            wide = np.where(size >= np.ldexp(1.0, bias + 1), np.copysign(np.inf, wide), wide)
            wide = np.where(size < np.ldexp(1.0, 1 - bias), np.copysign(0.0, wide), wide)
        with np.errstate(all="ignore"):
            return np.where(np.isnan(x.astype(np.float64)), np.nan, wide).astype(x.dtype)


@define_op("copy")
class Copy(Op):
    """The same values in a buffer of their own.

    y = x

    Inputs:
        x: T[...]   any dtype.

    Result:
        Same type as x.

    Source: `jax.lax.copy_p`.
    """

    def infer(self, x: TensorType) -> TensorType:
        return x

    def evaluate(self, x: Array) -> Array:
        return x.copy()


@define_op("stop_gradient")
class StopGradient(Op):
    """The same values, through which no gradient flows.

    y = x

    Inputs:
        x: T[...]   any dtype.

    Result:
        Same type as x.

    Source: `jax.lax.stop_gradient`; RLX `Op::StopGradient`.
    """

    def infer(self, x: TensorType) -> TensorType:
        return x

    def evaluate(self, x: Array) -> Array:
        return x


@define_op("optimization_barrier")
class OptimizationBarrier(Op):
    """The same values, computed before anything that uses them and never merged with it.

    y_i = x_i

    Inputs:
        xs: any types.

    Result:
        The types of the inputs, one result for each.

    Source: StableHLO `optimization_barrier`, `jax.lax.optimization_barrier`.
    """

    def infer(self, *xs: TensorType) -> tuple[TensorType, ...]:
        return xs

    def evaluate(self, *xs: Array) -> tuple[Array, ...]:
        return xs
