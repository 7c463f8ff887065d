"""Reductions made of others: mean and log-sum-exp."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np

from rlx import dims
from rlx.dtypes import DType, as_dtype
from rlx.ir.attributes import Array
from rlx.ir.op import Op, define_op
from rlx.ops.reduction import numbers
from rlx.types import TensorType

if TYPE_CHECKING:
    from rlx.ir.graph import Value


@define_op("mean")
class Mean(Op):
    """Arithmetic mean over axes.

    y = Σ_axes x / count

    Inputs:
        x: float[...]   or complex.

    Attributes:
        axes: the axes to remove, increasing.

    Result:
        x without the axes; NaN where there is nothing to average.

    Constraints:
        C1: axes are in range and increasing.
        C2: x holds floats or complex numbers.

    Numerics: floats narrower than f32 are summed and divided in f32 and rounded once.
    Source: RLX `Op::Reduce` with Mean.

    Example:
        >>> import numpy as np
        >>> Mean(axes=(0,)).evaluate(np.array([1, 2, 6], np.float32))
        array(3., dtype=float32)
    """

    axes: tuple[int, ...]

    def infer(self, x: TensorType) -> TensorType:
        numbers.check_axes(self, self.axes, x)
        good = x.dtype.is_float or x.dtype.is_complex
        numbers.check_kind(self, x, good, "floats or complex numbers")
        return x.with_shape(d for i, d in enumerate(x.shape) if i not in self.axes)

    def evaluate(self, x: Array) -> Array:
        wide = numbers.widen(x)
        count = int(np.prod([x.shape[i] for i in self.axes]))
        with np.errstate(all="ignore"):
            mean = np.asarray(np.sum(wide, self.axes, wide.dtype) / np.real(wide).dtype.type(count))
        return numbers.narrow(mean, as_dtype(x.dtype))

    def decompose(self, x: Value) -> Value:
        from rlx.ir.operators import broadcast_to
        from rlx.ops.reduction.plain import ReduceSum
        from rlx.ops.shape import DimValue

        wide = x.convert(x.dtype.compute)
        total = ReduceSum(axes=self.axes)(wide)
        count = dims.product(x.shape[i] for i in self.axes)
        if isinstance(count, int):
            return (total / float(count)).convert(x.dtype)
        number = DimValue(dim=count, dtype=DType.I64)().convert(wide.dtype)
        return (total / broadcast_to(number, total.shape)).convert(x.dtype)


@define_op("logsumexp")
class LogSumExp(Op):
    """Logarithm of the sum of exponentials along one axis, without overflow.

    y = log Σ_axis exp(x) = m + log Σ_axis exp(x − m), m = max x made finite

    Inputs:
        x: float[...]

    Attributes:
        axis: the axis to remove.

    Result:
        x without the axis; −inf where it is empty or all −inf.

    Constraints:
        C1: axis is in range for x.
        C2: x holds real floats.

    Numerics: floats narrower than f32 compute in f32 and round once.
    Source: `jax.scipy.special.logsumexp`.
    """

    axis: int

    def infer(self, x: TensorType) -> TensorType:
        numbers.check_axis(self, self.axis, x)
        numbers.check_kind(self, x, x.dtype.is_float, "real floats")
        return x.with_shape(d for i, d in enumerate(x.shape) if i != self.axis)

    def evaluate(self, x: Array) -> Array:
        wide = numbers.widen(x)
        info = cast("Any", np.finfo(wide.dtype))
        with np.errstate(all="ignore"):
            top = np.max(wide, self.axis, keepdims=True, initial=info.min)
            top = np.minimum(top, info.max)
            total = np.sum(np.exp(wide - top), self.axis, wide.dtype)
            return numbers.narrow(np.log(total) + np.squeeze(top, self.axis), as_dtype(x.dtype))

    def decompose(self, x: Value) -> Value:
        import ml_dtypes

        from rlx.ir.operators import binary
        from rlx.ops.shape import BroadcastInDim

        wide = x.convert(x.dtype.compute)
        info: Any = cast("Any", ml_dtypes.finfo(wide.dtype.numpy))
        # An infinite maximum would give inf − inf; the nearest finite number gives the limit.
        top = binary("Max", wide.max(self.axis), float(info.min))
        top = binary("Min", top, float(info.max))
        kept = tuple(i for i in range(x.rank) if i != self.axis)
        spread = BroadcastInDim(shape=x.shape, broadcast_dimensions=kept)(top)
        total = (wide - spread).exp().sum(self.axis)
        return (total.log() + top).convert(x.dtype)
