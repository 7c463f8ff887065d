"""Windows of two neighbouring axes on the CPU: their reduction, and back through their maxima.

XLA reduces each window by itself, an element at a time, and scatters one window after another on
one thread (``cc/pool.h``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from rlx.dtypes import DType
from rlx.ops.pooling import ReduceWindow, SelectAndScatterAdd, WindowKind, WindowSelect
from rlx.types import TensorType
from rlx_xla.kernels.base import FfiKernel, Refused, Supported
from rlx_xla.kernels.calibration import bound
from rlx_xla.kernels.select import register_kernel

DTYPES = (DType.F32, DType.BF16, DType.F16)

_SIZES = (1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 18)
MIN_WORK = bound("reduce_window.cpu.ffi/work", 1 << 12, _SIZES)
MIN_WORK_BACKWARD = bound("select_and_scatter_add.cpu.ffi/work", 1 << 12, _SIZES)
"""Fewest elements of all windows that gain."""

MIN_TAPS = {WindowKind.MAX: 5, WindowKind.MIN: 5, WindowKind.SUM: 5}
"""Fewest elements of a window whose reduction gains; back through a maximum, any do."""

_NAMES = {WindowKind.MAX: "max", WindowKind.MIN: "min", WindowKind.SUM: "sum"}


def first_axis(
    window: Sequence[int], strides: Sequence[int], padding: Sequence[Sequence[object]]
) -> int | Refused:
    """The first of the two neighbouring axes that windows lie on, or why they do not."""
    axes = [
        axis
        for axis, (size, stride, pads) in enumerate(zip(window, strides, padding, strict=True))
        if size != 1 or stride != 1 or any(p != 0 for p in pads)
    ]
    if not axes:
        return Refused("windows of one element are none")
    if len(window) < 2:
        return Refused("windows lie on the only axis")
    if axes[-1] - axes[0] > 1:
        return Refused(f"windows lie on axes {axes}, and two neighbouring ones are taken")
    return min(axes[0], len(window) - 2)


def _work(result: TensorType, window: Sequence[int]) -> int:
    work = 1
    for size in (*result.shape, *window):
        assert isinstance(size, int)
        work *= size
    return work


def _checked(
    op: ReduceWindow | SelectAndScatterAdd, x: TensorType, result: TensorType
) -> Supported | Refused:
    if not (x.is_static and result.is_static):
        return Refused(f"{x} is not static")
    axis = first_axis(op.window_dimensions, op.window_strides, op.padding)
    if isinstance(axis, Refused):
        return axis
    least = MIN_WORK if isinstance(op, ReduceWindow) else MIN_WORK_BACKWARD
    work = _work(result, op.window_dimensions)
    if not least.admits(work):
        return Refused(f"windows of {work} elements in all are less than {least}")
    return Supported()


def _check(op: ReduceWindow, types: Sequence[TensorType]) -> Supported | Refused:
    (x,) = types
    if op.kind not in _NAMES:
        return Refused(f"kind is {op.kind.value}, and max, min and sum are taken")
    if x.dtype not in DTYPES:
        return Refused(f"x is {x.dtype}, and f32, bf16 and f16 are taken")
    if any(n != 1 for n in (*op.base_dilation, *op.window_dilation)):
        return Refused("x or the window is dilated")
    taps = math.prod(op.window_dimensions)
    if taps < MIN_TAPS[op.kind]:
        return Refused(f"windows of {taps} elements are smaller than {MIN_TAPS[op.kind]}")
    return _checked(op, x, op.infer(x))


def _check_backward(op: SelectAndScatterAdd, types: Sequence[TensorType]) -> Supported | Refused:
    source, operand = types
    if source.dtype is not DType.F32:
        return Refused(f"source is {source.dtype}, and f32 is taken")
    return _checked(op, operand, source)


def _attributes(
    op: ReduceWindow | SelectAndScatterAdd, types: Sequence[TensorType]
) -> dict[str, int | bool]:
    del types
    axis = first_axis(op.window_dimensions, op.window_strides, op.padding)
    assert isinstance(axis, int)
    found: dict[str, int | bool] = {"axis": axis}
    for name, at in zip("hw", (axis, axis + 1), strict=True):
        low = op.padding[at][0]
        assert isinstance(low, int)
        found[f"window_{name}"] = op.window_dimensions[at]
        found[f"stride_{name}"] = op.window_strides[at]
        found[f"low_{name}"] = low
    if isinstance(op, SelectAndScatterAdd):
        found["greatest"] = op.select is WindowSelect.GE
    return found


register_kernel(
    FfiKernel(
        name="reduce_window.cpu.ffi",
        op=ReduceWindow,
        platforms=("cpu",),
        symbol=lambda op, types: f"rlx_pool_{_NAMES[op.kind]}_{types[0].dtype}_cpu",
        check=_check,
        attributes=_attributes,
    )
)

register_kernel(
    FfiKernel(
        name="select_and_scatter_add.cpu.ffi",
        op=SelectAndScatterAdd,
        platforms=("cpu",),
        symbol=lambda op, types: "rlx_pool_backward_f32_cpu",
        check=_check_backward,
        attributes=_attributes,
    )
)
