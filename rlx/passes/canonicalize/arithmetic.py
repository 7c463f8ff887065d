"""Identities of numbers that hold for NaN, Inf and −0 too."""

from __future__ import annotations

from rlx.dtypes import DType, Kind
from rlx.ir.graph import Node, Value
from rlx.ir.rewrite import Rule, rule
from rlx.ops.arithmetic import Add, Clamp, Div, IntegerPow, Max, Min, Mul, Neg, Pow, Sub
from rlx.ops.convert import Convert
from rlx.passes.canonicalize.constants import element_of, is_minus_zero, is_one, is_plus_zero

_PLAIN_FLOATS = (DType.F64, DType.F32, DType.F16, DType.BF16)


@rule(Neg)
def neg_of_neg(node: Node) -> Value | None:
    """−(−x) = x: the sign bit flips twice; integers wrap around twice."""
    inner = node.inputs[0].node
    return inner.inputs[0] if isinstance(inner.op, Neg) else None


@rule(Add)
def add_of_zero(node: Node) -> Value | None:
    """Adding −0 keeps both zeros, adding +0 would make −0 to +0; an integer has one zero."""
    lhs, rhs = node.inputs
    if is_minus_zero(element_of(rhs)):
        return lhs
    return rhs if is_minus_zero(element_of(lhs)) else None


@rule(Sub)
def sub_of_zero(node: Node) -> Value | None:
    """Subtracting +0 keeps both zeros, subtracting −0 would make −0 to +0."""
    lhs, rhs = node.inputs
    return lhs if is_plus_zero(element_of(rhs)) else None


@rule(Mul)
def mul_by_one(node: Node) -> Value | None:
    """1 is neutral for real numbers; a complex product mixes the parts, and Inf·0 gives NaN."""
    lhs, rhs = node.inputs
    if lhs.type.dtype.is_complex:
        return None
    if is_one(element_of(rhs)):
        return lhs
    return rhs if is_one(element_of(lhs)) else None


@rule(Div)
def div_by_one(node: Node) -> Value | None:
    """Real numbers divided by 1 stay as they are."""
    lhs, rhs = node.inputs
    if lhs.type.dtype.is_complex:
        return None
    return lhs if is_one(element_of(rhs)) else None


@rule(Pow)
def pow_of_one(node: Node) -> Value | None:
    """The first power of a real number is itself; IEEE 754 says so for NaN, Inf and −0."""
    lhs, rhs = node.inputs
    if lhs.type.dtype.is_complex:
        return None
    return lhs if is_one(element_of(rhs)) else None


@rule(IntegerPow)
def integer_pow_of_one(node: Node) -> Value | None:
    """The first power multiplies nothing."""
    op = node.op
    return node.inputs[0] if isinstance(op, IntegerPow) and op.exponent == 1 else None


@rule(Max, Min)
def extreme_of_itself(node: Node) -> Value | None:
    """max(x, x) = min(x, x) = x, NaN included. Complex numbers have no order, and no rule."""
    lhs, rhs = node.inputs
    return lhs if lhs is rhs and not lhs.type.dtype.is_complex else None


@rule(Clamp)
def clamp_twice(node: Node) -> Value | None:
    """A second clamp to the same bounds changes nothing, whichever bound is greater."""
    lower, x, upper = node.inputs
    inner = x.node
    if isinstance(inner.op, Clamp) and inner.inputs[0] is lower and inner.inputs[2] is upper:
        return x
    return None


@rule(Convert)
def convert_to_itself(node: Node) -> Value | None:
    """A conversion to the dtype that is there already does nothing."""
    x = node.inputs[0]
    return x if x.type == node.types[0] else None


@rule(Convert)
def convert_after_widening(node: Node) -> Value | None:
    """A conversion to a type that holds every number of the source can be left out on the way."""
    inner = node.inputs[0].node
    if not isinstance(inner.op, Convert):
        return None
    source = inner.inputs[0]
    between = node.inputs[0].type.dtype
    if not _holds(between, source.type.dtype):
        return None
    target = node.types[0].dtype
    # What does not fit an integer saturates when it comes from a float, and wraps around otherwise.
    through_float = source.type.dtype.is_integer and between.is_float and target.is_integer
    if through_float and not _holds(target, source.type.dtype):
        return None
    made: Value = source if source.type.dtype is target else Convert(dtype=target)(source)
    return made


def _holds(wide: DType, narrow: DType) -> bool:
    """Whether each number of ``narrow`` is one of ``wide``, NaN, Inf and −0 included."""
    if narrow.kind is Kind.BOOL:
        return wide.is_integer or wide in _PLAIN_FLOATS
    if narrow.is_integer and wide.is_integer:
        if narrow.kind is wide.kind:
            return wide.bits >= narrow.bits
        return wide.kind is Kind.INT and wide.bits > narrow.bits
    if narrow.is_integer and wide in _PLAIN_FLOATS:
        digits = {DType.F64: 53, DType.F32: 24, DType.F16: 11, DType.BF16: 8}[wide]
        return narrow.bits <= digits
    if narrow.is_float and wide.is_float:
        if wide is DType.F64:
            return narrow is not DType.F8E8M0FNU
        return wide is DType.F32 and narrow.bits < 32 and narrow is not DType.F8E8M0FNU
    return False


RULES: tuple[Rule, ...] = (
    neg_of_neg,
    add_of_zero,
    sub_of_zero,
    mul_by_one,
    div_by_one,
    pow_of_one,
    integer_pow_of_one,
    extreme_of_itself,
    clamp_twice,
    convert_to_itself,
    convert_after_widening,
)
