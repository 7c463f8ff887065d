"""Integers that a loop's body computes from its counters, for all steps at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias, final

import numpy as np

from rlx.dtypes import DType
from rlx.ir.attributes import Array
from rlx.ir.graph import Graph, Node, Value
from rlx.ir.op import Op
from rlx.ops.arithmetic import Abs, Add, Max, Min, Mul, Neg, Sub
from rlx.ops.compare import Compare, Select
from rlx.ops.convert import Convert, Copy
from rlx.ops.io import Constant
from rlx.ops.reduction import numbers
from rlx.ops.shape import BroadcastInDim, Expand, Iota, Reshape, Reverse, Slice

MAX_STEPS = 2**17
"""Loops of more steps are not followed: their counters are computed one by one here."""

_LAYOUTS: tuple[type[Op], ...] = (BroadcastInDim, Copy, Expand, Reshape)
_ELEMENTWISE: tuple[type[Op], ...] = (
    Abs, Add, Compare, Convert, Max, Min, Mul, Neg, Select, Sub,
)  # fmt: skip

_VECTORS: tuple[type[Op], ...] = (BroadcastInDim, Copy, Reverse, Slice)

Known: TypeAlias = "Mapping[Value, Array]"


@final
@dataclass(frozen=True)
class Counter:
    """A carried integer that each step adds a constant to.

    Attributes:
        place: which carry it is.
        start: its first value.
        step: what is added; not 0.
    """

    place: int
    start: int
    step: int

    def last(self, length: int) -> int:
        """Its value after so many steps."""
        return self.start + self.step * length

    def fits(self, length: int, dtype: DType) -> bool:
        """Whether it never leaves its type."""
        return _holds(dtype, self.start) and _holds(dtype, self.last(length))

    def elements(self, length: int, dtype: DType) -> Array:
        """Its values, step by step [length]; it fits the type."""
        kind = np.uint64 if dtype is DType.U64 else np.int64
        steps = np.arange(length, dtype=np.int64).astype(kind)
        start, step = (np.array(n % 2**64, np.uint64).astype(kind) for n in (self.start, self.step))
        return (steps * step + start).astype(dtype.numpy)


def _holds(dtype: DType, number: int) -> bool:
    """Whether an integer is one of a type's."""
    return int(numbers.lowest(dtype)) <= number <= int(numbers.highest(dtype))


def literal(value: Value) -> int | None:
    """The integer that a scalar is, where it is a constant; through conversions of integers."""
    node, passed = value.node, [value.dtype]
    while isinstance(node.op, Convert | Copy) and node.inputs[0].dtype.is_integer:
        passed.append(node.inputs[0].dtype)
        node = node.inputs[0].node
    if value.rank or not value.dtype.is_integer or not isinstance(node.op, Constant):
        return None
    found = int(node.op.value.array)
    return found if all(_holds(dtype, found) for dtype in passed) else None


def counter_at(body: Graph, first: int, place: int, start: Value) -> Counter | None:
    """The counter that a carry is.

    Args:
        body: what one step does.
        first: where carries begin among its inputs.
        place: which carry.
        start: its first value, outside the loop.
    """
    given = literal(start)
    node = body.outputs[place].node
    carried = body.inputs[first + place]
    if given is None or not isinstance(node.op, Add | Sub):
        return None
    lhs, rhs = node.inputs
    if lhs is carried:
        step = literal(rhs)
    elif rhs is carried and isinstance(node.op, Add):
        step = literal(lhs)
    else:
        return None
    if not step:
        return None
    return Counter(place, given, -step if isinstance(node.op, Sub) else step)


def vector(value: Value, depth: int = 8) -> Array | None:
    """The integers of a vector that is computed of constants alone; None for anything else."""
    node, op = value.node, value.node.op
    if value.rank > 1 or not value.dtype.is_integer or not depth:
        return None
    if isinstance(op, Constant):
        return op.value.array
    if isinstance(op, Iota):
        size = value.shape[0]
        known = isinstance(size, int) and size <= MAX_STEPS
        return np.asarray(op.evaluate()) if known else None
    if not isinstance(op, (*_ELEMENTWISE, *_VECTORS)):
        return None
    given = [a for v in node.inputs if (a := vector(v, depth - 1)) is not None]
    known = len(given) == len(node.inputs) and all(isinstance(size, int) for size in value.shape)
    return np.asarray(op.evaluate(*given)) if known else None


def sequences(body: Graph, known: Known, length: int) -> dict[Value, Array]:
    """The integers and truth values of a body that depend on counters alone, step by step.

    Args:
        body: what one step does.
        known: inputs of the body, each with its elements [length].
        length: number of steps.

    Returns:
        Values of one element, each with its elements [length].
    """
    found: dict[Value, Array] = dict(known)
    for node in body.nodes():
        made = _elements(node, found, length)
        if made is not None:
            found[node.results[0]] = made
    return found


def _elements(node: Node, known: Known, length: int) -> Array | None:
    op, type_ = node.op, node.types[0] if node.types else None
    if type_ is None or type_.dtype.is_float or any(size != 1 for size in type_.shape):
        return None
    if isinstance(op, Constant):
        return np.broadcast_to(op.value.array.reshape(1), (length,))
    if isinstance(op, _LAYOUTS):
        return known.get(node.inputs[0])
    given = [known.get(v) for v in node.inputs]
    if not isinstance(op, _ELEMENTWISE) or any(a is None for a in given):
        return None
    return np.asarray(op.evaluate(*given))
