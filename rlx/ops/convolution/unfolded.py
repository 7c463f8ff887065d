"""Windows laid out as rows of a matrix, and long one-dimensional convolutions."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from rlx import dims
from rlx.dtypes import as_dtype
from rlx.errors import DTypeError
from rlx.ir.attributes import Array
from rlx.ir.graph import Value
from rlx.ir.op import Op, define_op
from rlx.ops import windows
from rlx.ops.axes import require_at_most
from rlx.ops.convolution.general import ConvGeneralDilated
from rlx.ops.elementwise import FLOATING, require_kind, round_to
from rlx.types import Dim, Shape, TensorType


@define_op("im2col")
class Im2Col(Op):
    """The windows of channels-first arrays as rows of a matrix, so that conv is a product.

    y[(n, p), (c, k)] = x[n, c, p·stride + k·dilation − padding], 0 outside

    Inputs:
        x: T[N, C, *spatial]

    Attributes:
        kernel: elements of the window on each spatial axis.
        stride: distance between windows on each spatial axis.
        padding: zeros on both sides of each spatial axis.
        dilation: distance between neighbours inside the window.

    Result:
        T[N · Π windows, C · Π kernel], both in C order; the windows are those of `conv`.

    Constraints:
        C1: x has at least three axes; one attribute entry for each spatial axis.
        C2: kernel, stride and dilation are positive, padding is not negative.

    Source: RLX `Op::Im2Col`; Chellapilla et al. 2006.
    """

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    def infer(self, x: TensorType) -> TensorType:
        lengths = [len(v) for v in (self.kernel, self.stride, self.padding, self.dilation)]
        self.require(
            "C1",
            x.rank >= 3 and lengths == [x.rank - 2] * 4,
            lambda: (
                f"x is required to be [N, C, *spatial], and the attributes to have one entry for "
                f"each spatial axis; got {x} and {lengths} entries. Give one for each."
            ),
        )
        self.require(
            "C2",
            min((*self.kernel, *self.stride, *self.dilation)) > 0 and min(self.padding) >= 0,
            lambda: (
                f"kernel, stride and dilation are required to be positive and padding not "
                f"negative; got {self.kernel}, {self.stride}, {self.dilation} and {self.padding}. "
                "Correct the attribute."
            ),
        )
        rows = dims.product((x.shape[0], *self._counts(x.shape)))
        return x.with_shape((rows, dims.product((x.shape[1], *self.kernel))))

    def evaluate(self, x: Array) -> Array:
        padded = np.pad(x, [(0, 0), (0, 0), *((p, p) for p in self.padding)])
        ones = (1, 1)
        raw = padded.view(f"V{x.itemsize}")  # NumPy strides over bytes of every dtype
        seen = windows.view(
            raw, (*ones, *self.kernel), (*ones, *self.stride), (*ones, *self.dilation)
        )
        spatial = x.ndim - 2  # seen is [N, C, *windows, 1, 1, *kernel]
        order = (0, *range(2, 2 + spatial), 1, *range(x.ndim, 2 * x.ndim))
        rows = x.shape[0] * int(np.prod(seen.shape[2 : x.ndim]))
        columns = x.shape[1] * int(np.prod(self.kernel))
        return seen.transpose(order).reshape(rows, columns).view(x.dtype)

    def decompose(self, x: Value) -> Value:
        from rlx.ir.operators import constant
        from rlx.ops.shape import Concatenate, Pad, Slice

        n, channels = x.shape[:2]
        counts = self._counts(x.shape)
        none = (0,) * x.rank
        around = (0, 0, *self.padding)
        zero = constant(np.zeros((), x.dtype.numpy))
        padded: Value = Pad(low=around, high=around, interior=none)(x, zero)
        parts: list[Value] = []
        for place in itertools.product(*map(range, self.kernel)):
            starts = [k * d for k, d in zip(place, self.dilation, strict=True)]
            limits = [
                dims.max_(start + (count - 1) * stride + 1, start)
                for start, count, stride in zip(starts, counts, self.stride, strict=True)
            ]
            taken: Value = Slice(
                start_indices=(0, 0, *starts) if 0 not in counts else none,
                limit_indices=(n, channels, *limits) if 0 not in counts else (n, channels, *counts),
                strides=(1, 1, *self.stride),
            )(padded)
            parts.append(taken.reshape(n, channels, 1, *counts))
        stacked: Value = Concatenate(axis=2)(*parts)
        spatial = tuple(range(3, 3 + len(counts)))
        return stacked.transpose(0, *spatial, 1, 2).reshape(
            dims.product((n, *counts)), dims.product((channels, *self.kernel))
        )

    def _counts(self, shape: Shape) -> list[Dim]:
        pads = [(p, p) for p in self.padding]
        ones = (1,) * len(pads)
        return list(
            map(windows.count, shape[2:], self.kernel, self.stride, pads, ones, self.dilation)
        )


@define_op("partitioned_conv")
class PartitionedConv(Op):
    """Full linear convolution of signals with one impulse response.

    y[..., t] = Σ_k x[..., t − k] · ir[k]

    Inputs:
        x: T[..., L]   float.
        ir: T[M]

    Attributes:
        block: responses of at most so many taps are summed directly; longer ones go through a
            Fourier transform.

    Result:
        T[..., L + M − 1].

    Constraints:
        C1: x has a last axis and ir is a vector, both of at least one element.
        C2: one dtype, a float.
        C3: block ≥ 1.

    Numerics: floats narrower than f32 are computed in f32 and rounded once. The error of a long
    response is relative to the largest result, not to each.
    Source: RLX `Op::PartitionedConv`; NumPy `convolve`, mode full.
    """

    block: int = 256

    def infer(self, x: TensorType, ir: TensorType) -> TensorType:
        message = f"x is required to be [..., L] and ir [M]; got {x} and {ir}. Reshape them."
        self.require("C1", x.rank >= 1 and ir.rank == 1, message)
        for size in (x.shape[-1], ir.shape[0]):
            require_at_most(self, "C1", 1, size, message)
        require_kind(self, "C2", "x", x, FLOATING)
        self.require(
            "C2",
            ir.dtype is x.dtype,
            lambda: f"x and ir are required to have one dtype; got {x} and {ir}. Convert one.",
            DTypeError,
        )
        self.require("C3", self.block >= 1, f"block is required to be ≥ 1; got {self.block}.")
        return x.with_shape((*x.shape[:-1], x.shape[-1] + ir.shape[0] - 1))

    def evaluate(self, x: Array, ir: Array) -> Array:
        signals = x.astype(np.float64).reshape(-1, x.shape[-1])
        taps = ir.astype(np.float64)
        with np.errstate(all="ignore"):
            rows = [np.convolve(row, taps) for row in signals]
            made: Any = np.array(rows, np.float64).reshape(
                *x.shape[:-1], x.shape[-1] + ir.shape[0] - 1
            )
            return round_to(made, as_dtype(x.dtype))

    def decompose(self, x: Value, ir: Value) -> Value:
        rows = dims.product(x.shape[:-1])
        length, taps = x.shape[-1], dims.evaluate(ir.shape[0], {})
        shape = (*x.shape[:-1], length + taps - 1)
        wide = x.dtype.compute
        signals = x.convert(wide).reshape(rows, length)
        made = (_direct if taps <= self.block else _by_transform)(signals, ir.convert(wide), taps)
        return made.reshape(shape).convert(x.dtype)


def _direct(x: Value, ir: Value, taps: int) -> Value:
    from rlx.ops.shape import Reverse

    rows, length = x.shape
    order = (0, 1, 2)
    conv = ConvGeneralDilated(
        window_strides=(1,), padding=((taps - 1, taps - 1),), lhs_dilation=(1,), rhs_dilation=(1,),
        lhs_spec=order, rhs_spec=order, out_spec=order,
    )  # fmt: skip
    weight = Reverse(axes=(0,))(ir).reshape(1, 1, taps)
    made: Value = conv(x.reshape(rows, 1, length), weight)
    return made.reshape(rows, length + taps - 1)


def _by_transform(x: Value, ir: Value, taps: int) -> Value:
    from rlx.ir.operators import broadcast_to, constant
    from rlx.ops.complex_fft import Fft, FftType
    from rlx.ops.shape import Pad

    rows, length = x.shape[0], dims.evaluate(x.shape[1], {})
    total = length + taps - 1
    size = 1 << (total - 1).bit_length()
    forward, back = (Fft(fft_type=t, fft_lengths=(size,)) for t in (FftType.RFFT, FftType.IRFFT))
    zero = constant(0.0, x.dtype)

    def spectrum(signal: Value) -> Value:
        none, room = (0,) * signal.rank, size - dims.evaluate(signal.shape[-1], {})
        padded: Value = Pad(low=none, high=(*none[1:], room), interior=none)(signal, zero)
        return forward(padded)

    product = spectrum(x) * broadcast_to(spectrum(ir), (rows, size // 2 + 1))
    return back(product).narrow(1, 0, total)
