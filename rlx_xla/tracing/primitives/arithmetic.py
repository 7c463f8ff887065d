"""Elementwise arithmetic."""

from __future__ import annotations

from typing import Any

from rlx.dtypes import as_dtype
from rlx.ir.graph import Value
from rlx.ir.op import Op
from rlx.ops import arithmetic as ops
from rlx_xla.tracing.context import TraceContext
from rlx_xla.tracing.registry import Rule, traces

_UNARY: dict[str, type[Op]] = {
    "neg": ops.Neg,
    "abs": ops.Abs,
    "sign": ops.Sign,
    "square": ops.Square,
    "floor": ops.Floor,
    "ceil": ops.Ceil,
    "is_finite": ops.IsFinite,
    "one_minus_square": ops.OneMinusSquare,
}
_BINARY: dict[str, type[Op]] = {
    "add": ops.Add,
    "add_any": ops.Add,
    "sub": ops.Sub,
    "mul": ops.Mul,
    "div": ops.Div,
    "rem": ops.Rem,
    "max": ops.Max,
    "min": ops.Min,
    "nextafter": ops.NextAfter,
    "mulhi": ops.MulHi,
}


def unary_rule(op: type[Op]) -> Rule:
    """Rule of a primitive that is an attribute-free op of one input."""
    shared = op()  # without attributes, one serves all nodes

    def rule(ctx: TraceContext, params: dict[str, Any], x: Value) -> Value:
        if params.get("accuracy") is not None:
            return NotImplemented
        return shared(x)

    return rule


def binary_rule(op: type[Op]) -> Rule:
    """Rule of a primitive that is an attribute-free op of inputs which broadcast."""
    shared = op()

    def rule(ctx: TraceContext, params: dict[str, Any], *inputs: Value) -> Value:
        values = ctx.same_shape(*inputs)
        if params.get("out_dtype") is not None:
            values = tuple(v.convert(as_dtype(params["out_dtype"])) for v in values)
        return shared(*values)

    return rule


for _name, _op in _UNARY.items():
    traces(_name)(unary_rule(_op))
for _name, _op in _BINARY.items():
    traces(_name)(binary_rule(_op))


@traces("pow")
def pow(ctx: TraceContext, params: dict[str, Any], x: Value, y: Value) -> Value:
    x, y = ctx.same_shape(x, y)
    return ops.Pow()(x, y.convert(ctx.out_type.dtype))


@traces("integer_pow")
def integer_pow(ctx: TraceContext, params: dict[str, Any], x: Value) -> Value:
    return ops.IntegerPow(exponent=int(params["y"]))(x)


@traces("round")
def round(ctx: TraceContext, params: dict[str, Any], x: Value) -> Value:
    even = params["rounding_method"].name == "TO_NEAREST_EVEN"
    return ops.Round(ties=ops.Ties.EVEN if even else ops.Ties.AWAY)(x)


@traces("clamp")
def clamp(ctx: TraceContext, params: dict[str, Any], lower: Value, x: Value, upper: Value) -> Value:
    if x.dtype.is_complex:
        lower, x, upper = ctx.same_shape(lower, x, upper)
        return ops.Min()(ops.Max()(x, lower), upper)
    return ops.Clamp()(lower, x, upper)


@traces("polynomial")
def polynomial(ctx: TraceContext, params: dict[str, Any], x: Value, *coefficients: Value) -> Value:
    return ops.Polynomial()(*ctx.same_shape(x, *coefficients))
