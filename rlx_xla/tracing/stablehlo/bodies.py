"""Bodies of reductions, sorts and scatters, recognised by comparing them with what is emitted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from rlx.dtypes import DType
from rlx.ir.graph import Graph, Value
from rlx.ir.op import Op
from rlx.ir.operators import constant
from rlx.ops import arithmetic, bitwise
from rlx.ops.compare import Compare, Direction, Select
from rlx.ops.complex_fft import Imag, Real
from rlx.ops.io import Input

_COMMUTATIVE: tuple[type[Op], ...] = (
    arithmetic.Add, arithmetic.Mul, arithmetic.Max, arithmetic.Min,
    bitwise.And, bitwise.Or, bitwise.Xor,
)  # fmt: skip


def combination(body: Graph) -> type[Op] | None:
    """The op of a body that is one op on its two arguments, or None."""
    if len(body.inputs) != 2 or len(body.outputs) != 1:
        return None
    node = body.outputs[0].node
    cls = type(node.op)
    if node.inputs == body.inputs and cls in (*_COMMUTATIVE, arithmetic.Sub):
        return cls
    return cls if node.inputs == body.inputs[::-1] and cls in _COMMUTATIVE else None


def direction(body: Graph) -> Direction | None:
    """The direction of a body that compares its two arguments, or None."""
    if len(body.inputs) != 2 or len(body.outputs) != 1:
        return None
    node = body.outputs[0].node
    op = node.op
    if isinstance(op, Compare) and not op.total_order and node.inputs == body.inputs:
        return op.direction
    return None


def argument_extreme(body: Graph) -> Direction | None:
    """GT for the body of an argmax, LT for that of an argmin, or None."""
    types = [v.type for v in body.inputs]
    if len(types) != 4 or types[0] != types[2] or types[1] != types[3]:
        return None
    dtype = types[0].dtype
    for better in (Direction.GT, Direction.LT):
        for check_nan in (True, False) if not dtype.is_float else (True,):
            if _alike(body, _argument_body(body, better, check_nan)):
                return better
    return None


def _alike(lhs: Graph, rhs: Graph) -> bool:
    """Whether two graphs compute the same, whichever of their nodes are shared."""
    table: dict[object, int] = {}
    results: list[list[int]] = []
    for graph in (lhs, rhs):
        numbers: dict[Value, int] = {}
        for node in graph.nodes():
            inputs = tuple(numbers[v] for v in node.inputs)
            for value in node.results:
                key = (node.op, inputs, value.index)
                numbers[value] = table.setdefault(key, len(table))
        results.append([numbers[v] for v in graph.outputs])
    return results[0] == results[1]


def _leaves(body: Graph) -> list[Value]:
    return [Input(name=v.name, dtype=v.dtype, shape=v.type.shape)() for v in body.inputs]


def _argument_body(body: Graph, better: Direction, check_nan: bool) -> Graph:
    leaves = best, at, other, there = _leaves(body)
    keep = Compare(direction=better)(best, other)
    if check_nan:
        keep = bitwise.Or()(keep, Compare(direction=Direction.NE)(best, best))
    tie = bitwise.And()(
        Compare(direction=Direction.EQ)(best, other), Compare(direction=Direction.LT)(at, there)
    )
    first = bitwise.Or()(keep, tie)
    outputs = (Select()(keep, best, other), Select()(first, at, there))
    return Graph(leaves, (), outputs, name=body.name)


def sort_keys(body: Graph) -> int | None:
    """How many keys a comparator of a sort compares, if it does so in RLX's order; or None."""
    pairs = len(body.inputs) // 2
    for count in range(1, pairs + 1):
        for clean in (_clean_input, _clean_zeroed):
            if _alike(body, _comparator(body, count, clean)):
                return count
    return None


def _comparator(body: Graph, keys: int, clean: Callable[[Value], Value]) -> Graph:
    leaves = _leaves(body)
    result: Value | None = None
    for index in reversed(range(keys)):
        lefts, rights = (list(_parts(leaves[2 * index + side])) for side in (0, 1))
        for left, right in zip(reversed(lefts), reversed(rights), strict=True):
            total = left.dtype.is_float
            lhs, rhs = (clean(x) if total else x for x in (left, right))
            less = Compare(direction=Direction.LT, total_order=total)(lhs, rhs)
            if result is not None:
                alike = Compare(direction=Direction.EQ, total_order=total)(lhs, rhs)
                less = bitwise.Or()(less, bitwise.And()(alike, result))
            result = less
    outputs: Sequence[Value] = () if result is None else (result,)
    return Graph(leaves, (), outputs, name=body.name)


def _parts(x: Value) -> Iterator[Value]:
    if x.dtype.is_complex:
        yield Real()(x)
        yield Imag()(x)
    else:
        yield x


def _clean_input(x: Value) -> Value:
    """One zero, one NaN, as JAX writes it: both asked of x itself."""
    return _one_nan(x, _one_zero(x))


def _clean_zeroed(x: Value) -> Value:
    """The same as RLX's own lowering writes it: NaN asked of what has one zero."""
    zeroed = _one_zero(x)
    return _one_nan(zeroed, zeroed)


def _one_zero(x: Value) -> Value:
    zero = _scalar(0, x.dtype)
    return Select()(Compare(direction=Direction.EQ)(x, zero), _scalar(0, x.dtype), x)


def _one_nan(asked: Value, x: Value) -> Value:
    is_nan = Compare(direction=Direction.NE)(asked, asked)
    return Select()(is_nan, _scalar(np.nan, x.dtype), x)


def _scalar(value: float, dtype: DType) -> Value:
    return constant(np.asarray(value, dtype.numpy))
