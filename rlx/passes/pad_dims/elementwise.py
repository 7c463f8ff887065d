"""Padding of ops that compute each element from the elements at its place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rlx.ir.graph import Node
from rlx.ops import activation, arithmetic, bitwise, compare, convert, special, transcendental
from rlx.ops.collective import ShardingConstraint
from rlx.ops.complex_fft import Complex, Conj, Imag, Real
from rlx.ops.io import Constant
from rlx.ops.random.counter import Threefry2x32
from rlx.ops.shape import (
    BroadcastInDim,
    DimValue,
    Expand,
    Iota,
    Transpose,
)
from rlx.passes.pad_dims.context import Padding, Results, pads
from rlx.passes.pad_dims.layout import Axis, Padded, Refusal, combined, plain

_SAME_PLACE = (
    *(getattr(arithmetic, n) for n in (
        "Abs", "Add", "Ceil", "Clamp", "Div", "Floor", "Fma", "IntegerPow", "IsFinite", "Max",
        "Min", "Mul", "MulHi", "Neg", "NextAfter", "OneMinusSquare", "Polynomial", "Pow", "Rem",
        "Round", "Sign", "Square", "Sub",
    )),
    *(getattr(bitwise, n) for n in (
        "And", "Clz", "Not", "Or", "PopulationCount", "ShiftLeft", "ShiftRightArithmetic",
        "ShiftRightLogical", "Xor",
    )),
    *(getattr(activation, n) for n in (
        "Elu", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "LogSigmoid", "Mish", "Relu",
        "Silu", "Softplus", "Softsign",
    )),
    *(getattr(special, n) for n in (
        "BesselI0e", "BesselI1e", "Digamma", "Erf", "ErfInv", "Erfc", "Igamma", "IgammaGradA",
        "Igammac", "Lgamma", "Polygamma", "RegularizedIncompleteBeta", "Zeta",
    )),
    *(getattr(transcendental, n) for n in (
        "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atan2", "Atanh", "Cbrt", "Cos", "Cosh", "Exp",
        "Exp2", "Expm1", "Log", "Log1p", "Log2", "Logistic", "Rsqrt", "Sin", "Sinh", "Sqrt", "Tan",
        "Tanh",
    )),
    compare.Compare, compare.Select, compare.SelectN,
    convert.Convert, convert.Copy, convert.ReducePrecision, convert.StopGradient,
    Complex, Conj, Imag, Real, ShardingConstraint, Threefry2x32,
)  # fmt: skip

_SAME_VALUE = (convert.Convert, convert.Copy, ShardingConstraint)
"""Ops that leave a zero a zero."""


@pads(*_SAME_PLACE)
def same_place(ctx: Padding, node: Node, inputs: Sequence[Padded]) -> Results:
    axes = _common(inputs, len(node.types[0].shape))
    if isinstance(axes, Refusal):
        return axes
    made = ctx.remade(node, [x.value for x in inputs], axes)
    if isinstance(made, Refusal) or not isinstance(node.op, _SAME_VALUE):
        return made
    return [replace(y, zeros=inputs[0].zeros) for y in made]


@pads(convert.BitcastConvert)
def bitcast_convert(ctx: Padding, node: Node, inputs: Sequence[Padded]) -> Results:
    (x,) = inputs
    before, after = x.shape, node.types[0].shape
    if before == after:
        return ctx.remade(node, [x.value], x.axes)
    shared = min(len(before), len(after))
    if any(not isinstance(d, int) for d in (*before[shared:], *after[shared:])):
        return Refusal("the axis of parts is padded")
    return ctx.remade(node, [x.value], (*x.axes[:shared], *plain(after[shared:])))


@pads(convert.OptimizationBarrier)
def optimization_barrier(ctx: Padding, node: Node, inputs: Sequence[Padded]) -> Results:
    from rlx.ir.graph import make_node

    made = make_node(node.op, [x.value for x in inputs], node.location)
    return ctx.results(node, made.results, [x.axes for x in inputs])


@pads(Constant)
def constant(ctx: Padding, node: Node, inputs: Sequence[Padded]) -> Results:
    return ctx.results(node, node.results, [plain(t.shape) for t in node.types])


@pads(DimValue)
def dim_value(ctx: Padding, node: Node, inputs: Sequence[Padded]) -> Results:
    op = node.op
    assert isinstance(op, DimValue)
    return [Padded(ctx.number(op.dim, op.dtype), (), ())]


@pads(Iota)
def iota(ctx: Padding, node: Node, inputs: Sequence[Padded]) -> Results:
    op = node.op
    assert isinstance(op, Iota)
    axes: list[Axis] = [(d,) if isinstance(d, int) else None for d in op.shape]
    axes[op.axis] = (op.shape[op.axis],)
    return ctx.remade(node, [], axes)


@pads(BroadcastInDim)
def broadcast_in_dim(ctx: Padding, node: Node, inputs: Sequence[Padded]) -> Results:
    op = node.op
    assert isinstance(op, BroadcastInDim)
    (x,) = inputs
    axes: list[Axis] = [(d,) if isinstance(d, int) else None for d in op.shape]
    for axis, target in enumerate(op.broadcast_dimensions):
        if x.shape[axis] == op.shape[target]:
            axes[target] = x.axes[axis]
    return ctx.remade(node, [x.value], axes)


@pads(Expand)
def expand(ctx: Padding, node: Node, inputs: Sequence[Padded]) -> Results:
    (x,) = inputs
    shape = node.types[0].shape
    axes: list[Axis] = [(d,) if isinstance(d, int) else None for d in shape]
    for axis, dim in enumerate(x.shape, len(shape) - len(x.shape)):
        if dim == shape[axis]:
            axes[axis] = x.axes[axis - len(shape) + len(x.shape)]
    return ctx.remade(node, [x.value], axes)


@pads(Transpose)
def transpose(ctx: Padding, node: Node, inputs: Sequence[Padded]) -> Results:
    op = node.op
    assert isinstance(op, Transpose)
    (x,) = inputs
    return ctx.remade(node, [x.value], [x.axes[p] for p in op.permutation])


def _common(inputs: Sequence[Padded], rank: int) -> list[Axis] | Refusal:
    """Layout of what operands give together, scalars and axes of one element broadcast."""
    axes: list[Axis] = []
    for axis in range(rank):
        found: list[Axis] = []
        for x in inputs:
            place = axis - rank + len(x.shape)
            if place >= 0 and not (isinstance(x.shape[place], int) and x.shape[place] == 1):
                found.append(x.axes[place])
        made = combined(found) if found else (1,)
        if isinstance(made, Refusal):
            return made
        axes.append(made)
    return axes
