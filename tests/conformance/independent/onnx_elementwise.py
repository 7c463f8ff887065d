"""ONNX's elementwise nodes and reductions in our ops."""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np

from rlx import ops
from rlx.dtypes import DType, as_dtype
from rlx.ir.graph import Value
from rlx.ir.operators import binary, broadcast_to, compare, normalise_axis
from rlx.ops.arithmetic import Ties
from tests.conformance.independent.case import Case, NotMapped, Results, full, maps

OPS: Any = ops  # classes by name

SAME = (
    "Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Ceil", "Cos", "Cosh", "Erf", "Exp",
    "Floor", "HardSwish", "Log", "Mish", "Neg", "Not", "Relu", "Sign", "Sin", "Sinh", "Softplus",
    "Softsign", "Sqrt", "Tan", "Tanh",
)  # fmt: skip
UNARY = {name: name for name in SAME} | {"Sigmoid": "Logistic", "BitwiseNot": "Not"}

BINARY = {
    "Add": "Add", "Sub": "Sub", "Mul": "Mul", "Div": "Div", "And": "And", "Or": "Or", "Xor": "Xor",
    "BitwiseAnd": "And", "BitwiseOr": "Or", "BitwiseXor": "Xor", "Pow": "Pow",
}  # fmt: skip

DIRECTIONS = {
    "Equal": "eq", "Greater": "gt", "GreaterOrEqual": "ge", "Less": "lt", "LessOrEqual": "le",
}  # fmt: skip


@maps(*UNARY)
def unary(case: Case) -> Results:
    return getattr(OPS, UNARY[case.kind])()(case.value())


@maps("Round")
def rounded(case: Case) -> Results:
    return OPS.Round(ties=Ties.EVEN)(case.value())


@maps(*BINARY)
def two(case: Case) -> Results:
    lhs, rhs = case.value(0), case.value(1)
    if lhs.dtype is not rhs.dtype:
        if case.kind != "Pow":
            raise NotMapped("two dtypes")
        if lhs.dtype.is_integer and rhs.dtype.is_float:
            raise NotMapped("an integer to the power of a float")
        rhs = rhs.convert(lhs.dtype)
    return binary(BINARY[case.kind], lhs, rhs)


@maps(*DIRECTIONS)
def comparison(case: Case) -> Results:
    return compare(DIRECTIONS[case.kind], case.value(0), case.value(1))


@maps("Max", "Min", "Sum", "Mean")
def several(case: Case) -> Results:
    name = {"Max": "Max", "Min": "Min"}.get(case.kind, "Add")
    values = [case.value(i) for i in range(len(case.values))]
    total = reduce(lambda x, y: binary(name, x, y), values)
    return total / float(len(values)) if case.kind == "Mean" else total


@maps("Mod")
def mod(case: Case) -> Results:
    lhs, rhs = case.value(0), case.value(1)
    remainder = binary("Rem", lhs, rhs)
    if case.get("fmod", 0) or not lhs.dtype.is_signed:
        return remainder
    # Python's: the sign of the divisor.
    other = broadcast_to(rhs, remainder.shape)
    differs = remainder.ne(0) & (remainder < 0).ne(other < 0)
    return OPS.Select()(differs, remainder + other, remainder)


@maps("BitShift")
def shift(case: Case) -> Results:
    name = "ShiftLeft" if case.get("direction") == "LEFT" else "ShiftRightLogical"
    if case.value().dtype.is_signed and name != "ShiftLeft":
        name = "ShiftRightArithmetic"
    return binary(name, case.value(0), case.value(1))


@maps("Reciprocal")
def reciprocal(case: Case) -> Results:
    return 1.0 / case.value()


@maps("IsNaN")
def is_nan(case: Case) -> Results:
    return case.value().ne(case.value())


@maps("IsInf")
def is_inf(case: Case) -> Results:
    x = case.value()
    found = abs(x).eq(float("inf"))
    if not case.get("detect_negative", 1):
        found = found & (x > 0.0)
    return found & (x < 0.0) if not case.get("detect_positive", 1) else found


@maps("Elu", "Celu", "Selu")
def elu(case: Case) -> Results:
    x, alpha = (
        case.value(),
        case.get("alpha", 1.67326319217681884765625 if case.kind == "Selu" else 1.0),
    )
    if case.kind == "Elu":
        return OPS.Elu(alpha=alpha)(x)
    if case.kind == "Celu":
        return OPS.Elu(alpha=1.0)(x / alpha) * alpha
    return OPS.Elu(alpha=alpha)(x) * case.get("gamma", 1.05070102214813232421875)


@maps("LeakyRelu")
def leaky(case: Case) -> Results:
    return OPS.LeakyRelu(alpha=case.get("alpha", 0.01))(case.value())


@maps("PRelu")
def prelu(case: Case) -> Results:
    x = case.value()
    slope = broadcast_to(case.value(1), x.shape)
    return OPS.Select()(x < 0.0, x * slope, x)


@maps("ThresholdedRelu")
def thresholded(case: Case) -> Results:
    x = case.value()
    return OPS.Select()(x > float(case.get("alpha", 1.0)), x, x * 0.0)


@maps("HardSigmoid")
def hard_sigmoid(case: Case) -> Results:
    x, alpha, beta = case.value(), case.get("alpha", 0.2), case.get("beta", 0.5)
    if (alpha, beta) == (1 / 6, 0.5):
        return OPS.HardSigmoid()(x)
    return OPS.Clamp()(full(x, 0), x * alpha + beta, full(x, 1))


@maps("Gelu")
def gelu(case: Case) -> Results:
    return case.value().gelu(approximate=case.get("approximate", "none") == "tanh")


@maps("Swish")
def swish(case: Case) -> Results:
    case.only(alpha=1.0)
    return OPS.Silu()(case.value())


@maps("Identity")
def identity(case: Case) -> Results:
    return OPS.Copy()(case.value())


@maps("Clip")
def clip(case: Case) -> Results:
    x = case.value()
    for place, name in ((1, "Max"), (2, "Min")):
        limit = case.optional(place)
        x = x if limit is None else binary(name, x, limit)
    return OPS.Copy()(x) if x is case.value() else x


@maps("Where")
def where(case: Case) -> Results:
    chosen, other = case.value(1), case.value(2)
    shape = np.broadcast_shapes(*(case.value(i).shape for i in range(3)))  # type: ignore[arg-type]
    return OPS.Select()(*(broadcast_to(v, shape) for v in (case.value(), chosen, other)))


@maps("Cast", "CastLike")
def cast(case: Case) -> Results:
    import onnx

    if case.kind == "CastLike":
        target = case.value(1).dtype
    else:
        target = as_dtype(onnx.helper.tensor_dtype_to_np_dtype(case.get("to")))
    if target.bits == 8 and target.is_float and case.get("saturate", 1):
        raise NotMapped("conversions to 8-bit floats that saturate")
    if target.bits < 8 and target.is_integer and not case.value().dtype.is_integer:
        raise NotMapped("conversions of floats to narrow integers that wrap around")
    return OPS.Convert(dtype=target)(case.value())


REDUCE = {
    "ReduceSum": "ReduceSum", "ReduceMean": "Mean", "ReduceMax": "ReduceMax",
    "ReduceMin": "ReduceMin", "ReduceProd": "ReduceProd", "ReduceL1": "ReduceSum",
    "ReduceL2": "ReduceSum", "ReduceLogSum": "ReduceSum", "ReduceLogSumExp": "ReduceSum",
    "ReduceSumSquare": "ReduceSum",
}  # fmt: skip


@maps(*REDUCE)
def reduction(case: Case) -> Results:
    x, given = case.value(), case.numbers("axes", 1)
    if not given and case.get("noop_with_empty_axes", 0):
        axes: tuple[int, ...] = ()
    else:
        axes = tuple(sorted(normalise_axis(a, x.rank) for a in given or range(x.rank)))
    if case.kind == "ReduceLogSumExp":
        x = x.exp()
    elif case.kind in ("ReduceL2", "ReduceSumSquare"):
        x = x * x
    elif case.kind == "ReduceL1":
        x = abs(x)
    name = REDUCE[case.kind]
    if x.dtype is DType.BOOL:
        name = {"ReduceMax": "ReduceOr", "ReduceMin": "ReduceAnd"}[name]
    result: Value = getattr(OPS, name)(axes=axes)(x)
    if case.get("keepdims", 1):
        kept = tuple(1 if a in axes else d for a, d in enumerate(x.shape))
        result = result.reshape(kept)
    if case.kind.startswith("ReduceLog"):
        return result.log()
    return result.sqrt() if case.kind == "ReduceL2" else result


@maps("ArgMax", "ArgMin")
def arg(case: Case) -> Results:
    x, axis = case.value(), case.axis(0)
    op = getattr(OPS, case.kind.capitalize())(axis=axis, index_dtype=DType.I64)
    if case.get("select_last_index", 0):
        last = op(OPS.Reverse(axes=(axis,))(x))
        result = full(last, int(x.shape[axis]) - 1)  # type: ignore[arg-type]
        result = broadcast_to(result, last.shape) - last
    else:
        result = op(x)
    if not case.get("keepdims", 1):
        return result
    return result.reshape(tuple(1 if a == axis else d for a, d in enumerate(x.shape)))


@maps("CumSum", "CumProd")
def cumulative(case: Case) -> Results:
    x = case.value()
    (axis,) = case.numbers("axis", 1) or [0]
    op = getattr(OPS, {"CumSum": "CumSum", "CumProd": "CumProd"}[case.kind])
    flags = {name: bool(case.get(name, 0)) for name in ("reverse", "exclusive")}
    return op(axis=normalise_axis(axis, x.rank), **flags)(x)


@maps("Softmax", "LogSoftmax")
def softmax(case: Case) -> Results:
    return getattr(OPS, case.kind)(axis=case.axis(-1))(case.value())


@maps("TopK")
def top_k(case: Case) -> Results:
    x, axis = case.value(), case.axis(-1)
    (k,) = case.numbers("k", 1) or [0]
    largest = case.get("largest", 1)
    order = [a for a in range(x.rank) if a != axis] + [axis]
    back = [order.index(a) for a in range(x.rank)]
    moved = x.transpose(order)
    if not largest and not x.dtype.is_signed:
        raise NotMapped("the smallest of unsigned numbers")
    values, indices = OPS.TopK(k=k)(moved if largest else -moved)
    values = values if largest else -values
    return values.transpose(back), indices.convert(DType.I64).transpose(back)
