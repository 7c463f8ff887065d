"""Reductions, over axes and over windows."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx.dtypes import DType, Kind
from rlx.ir.graph import Value
from rlx.ir.op import Op
from rlx.ops import arithmetic, bitwise
from rlx.ops.compare import Direction
from rlx.ops.pooling import (
    ReduceWindow,
    ReduceWindowGeneral,
    SelectAndScatterAdd,
    WindowKind,
    WindowSelect,
    identity,
)
from rlx.ops.reduction import (
    Argmax,
    Argmin,
    Reduce,
    ReduceAnd,
    ReduceMax,
    ReduceMin,
    ReduceOr,
    ReduceProd,
    ReduceSum,
    ReduceXor,
    numbers,
)
from rlx.ops.shape import BroadcastInDim, Iota
from rlx_xla.tracing.stablehlo import bodies
from rlx_xla.tracing.stablehlo.context import OpContext, constant_of, integer_constant
from rlx_xla.tracing.stablehlo.registry import imports

PLAIN: dict[type[Op], Any] = {
    arithmetic.Add: ReduceSum,
    arithmetic.Mul: ReduceProd,
    arithmetic.Max: ReduceMax,
    arithmetic.Min: ReduceMin,
    bitwise.And: ReduceAnd,
    bitwise.Or: ReduceOr,
    bitwise.Xor: ReduceXor,
}
WINDOWS: dict[type[Op], WindowKind] = {
    arithmetic.Add: WindowKind.SUM,
    arithmetic.Mul: WindowKind.PROD,
    arithmetic.Max: WindowKind.MAX,
    arithmetic.Min: WindowKind.MIN,
}
SELECTS = {Direction.GE: WindowSelect.GE, Direction.LE: WindowSelect.LE}


def neutral(op: type[Op], dtype: DType) -> Any:
    """What changes nothing when it is combined by an op, as a NumPy scalar."""
    if op is arithmetic.Max:
        return numbers.lowest(dtype)
    if op is arithmetic.Min:
        return numbers.highest(dtype)
    if op is bitwise.And:
        ones = -1 if dtype.kind is Kind.INT else numbers.highest(dtype)
        return np.asarray(ones, dtype.numpy)
    return np.asarray(1 if op is arithmetic.Mul else 0, dtype.numpy)


def is_constant(value: Value, wanted: Any) -> bool:
    """Whether a value is a constant with the bits of a scalar."""
    found = constant_of(value)
    expected = np.asarray(wanted, value.type.dtype.numpy)
    return found is not None and found.size == 1 and found.tobytes() == expected.tobytes()


def takes(op: type[Op], dtype: DType) -> bool:
    """Whether RLX's own reduction by an op takes a dtype."""
    if op in (arithmetic.Add, arithmetic.Mul):
        return numbers.is_number(dtype)
    if op in (arithmetic.Max, arithmetic.Min):
        return numbers.is_ordered(dtype)
    return dtype.is_integer or dtype is DType.BOOL


@imports("stablehlo.reduce")
def reduce(ctx: OpContext, *operands: Value) -> Any:
    """A known reduction if the body and the initial value say so, else a general one."""
    body = None if ctx.free() else ctx.graph(0, name="reduce_body")
    if body is None:
        return NotImplemented
    axes = tuple(sorted(ctx.integers("dimensions")))
    kind = bodies.combination(body) if len(operands) == 2 else None
    dtype = operands[0].dtype
    if kind in PLAIN and takes(kind, dtype) and is_constant(operands[1], neutral(kind, dtype)):
        return PLAIN[kind](axes=axes)(operands[0])
    found = _argument(ctx, axes, operands, bodies.argument_extreme(body))
    return found or Reduce(axes=axes, body=body)(*operands)


def _argument(
    ctx: OpContext, axes: tuple[int, ...], operands: tuple[Value, ...], better: Direction | None
) -> Any:
    """An argmax or argmin whose extreme itself is not used; None if it is not one."""
    if better is None or len(axes) != 1 or next(iter(ctx.op.results[0].uses), None) is not None:
        return None
    x, index, start, zero = operands
    least = numbers.lowest if better is Direction.GT else numbers.highest
    counted = _counts(index, axes[0]) and index.dtype.is_integer
    if not counted or not is_constant(zero, 0) or not is_constant(start, least(x.dtype)):
        return None
    if x.type.shape[axes[0]] == 0:
        return None
    op = Argmax if better is Direction.GT else Argmin
    return (None, op(axis=axes[0], index_dtype=index.dtype)(x))


def _counts(value: Value, axis: int) -> bool:
    """Whether a value counts 0, 1, 2 … along an axis."""
    op = value.node.op
    if isinstance(op, BroadcastInDim):
        inner = value.node.inputs[0]
        source = inner.node.op
        if not isinstance(source, Iota) or inner.type.shape[source.axis] == 1:
            return False
        return op.broadcast_dimensions[source.axis] == axis
    return isinstance(op, Iota) and op.axis == axis


def _window(ctx: OpContext, rank: int) -> dict[str, Any]:
    ones = (1,) * rank
    return {
        "window_dimensions": ctx.integers("window_dimensions", ones),
        "window_strides": ctx.integers("window_strides", ones),
        "padding": ctx.pairs("padding", rank),
        "base_dilation": ctx.integers("base_dilations", ones),
        "window_dilation": ctx.integers("window_dilations", ones),
    }


@imports("stablehlo.reduce_window")
def reduce_window(ctx: OpContext, *operands: Value) -> Any:
    """A sum, product, maximum or minimum of windows, else a general reduction of them."""
    body = None if ctx.free() else ctx.graph(0, name="window_body")
    return NotImplemented if body is None else windows(ctx, body, operands)


def windows(
    ctx: OpContext, body: Any, operands: tuple[Value, ...], window: dict[str, Any] | None = None
) -> Any:
    """The reduction of windows by a body."""
    window = _window(ctx, operands[0].rank) if window is None else window
    kind = bodies.combination(body) if len(operands) == 2 else None
    dtype = operands[0].dtype
    if kind in WINDOWS and takes(kind, dtype):
        named = WINDOWS[kind]
        if is_constant(operands[1], identity(named, dtype)):
            return ReduceWindow(kind=named, **window)(operands[0])
    return ReduceWindowGeneral(body=body, **window)(*operands)


def dynamic_reduce_window(ctx: OpContext, body: Any, operands: tuple[Value, ...]) -> Any:
    """A reduction of windows whose attributes are constant operands; None when they are not.

    The operands are the arrays, the initial values, then dimensions, strides, base dilations,
    window dilations and padding of the windows.
    """
    arrays, given = operands[:-5], [integer_constant(v) for v in operands[-5:]]
    if None in given:
        return ctx.refuse("its windows must be constants")
    sizes, strides, base, dilation, padding = (n or () for n in given)
    pairs = tuple((padding[2 * i], padding[2 * i + 1]) for i in range(len(padding) // 2))
    window = {
        "window_dimensions": sizes,
        "window_strides": strides,
        "padding": pairs,
        "base_dilation": base,
        "window_dilation": dilation,
    }
    return windows(ctx, body, arrays, window)


@imports("stablehlo.select_and_scatter")
def select_and_scatter(ctx: OpContext, operand: Value, source: Value, start: Value) -> Any:
    """The gradient of a maximum or minimum over windows."""
    if ctx.free():
        return NotImplemented
    select, scatter = ctx.graph(0), ctx.graph(1)
    if select is None or scatter is None:
        return NotImplemented
    chosen = SELECTS.get(bodies.direction(select) or Direction.EQ)
    adds = bodies.combination(scatter) is arithmetic.Add and is_constant(start, 0)
    good = operand.dtype.is_float or operand.dtype.is_integer
    if chosen is None or not adds or not good:
        return NotImplemented
    window = _window(ctx, operand.rank)
    return SelectAndScatterAdd(
        select=chosen,
        window_dimensions=window["window_dimensions"],
        window_strides=window["window_strides"],
        padding=window["padding"],
    )(source, operand)
