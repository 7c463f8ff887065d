"""Greatest and least elements whose NaN XLA's CPU leaves out.

From some thousand elements on, XLA's CPU (seen in jax 0.10) reduces in vector lanes with an
instruction that drops NaN, so that ``jnp.max`` of an array with a NaN is a number. Whether there is
one has to be found out beside it, which is the price of the right answer. Three forms keep it low
(``bench_extremes``; times of the maximum that drops NaN, on a busy machine of two cores):

- *paired*, where the last axis is reduced: one reduction of pairs, the extreme and whether there
  was a NaN, the numbers in f32 (narrow ones) and the flag as an integer of their width. Rows of
  1024² f32: 1.4, where asking apart takes 3 and a flag of one byte 1.6.
- *folded*, before either other form, where another axis is reduced: eight slices along it meet
  element by element, which keeps NaN, and an eighth of the array is left. Columns of 1024² f32:
  1.2; all of 4096²: 1.7, where asking apart takes 7 to 20. Pairs down columns take 20 and more.
- *apart*, for what is left: a reduction by "or" of whether each is a NaN. It is the only form for
  sizes that are not known, for programs over several devices, where slices would move elements
  from one to another, and for narrow columns, where the others lose.

Where a softmax or the like was recognised its maximum stays as it is: a NaN reaches the whole row
through the sum.
"""

from __future__ import annotations

import math
from collections import Counter

from rlx.dtypes import DType
from rlx.ir.graph import Graph, Node, Value
from rlx.ir.operators import constant
from rlx.ir.rewrite import Rewritten, Rule, sweep
from rlx.ops.arithmetic import Max, Min
from rlx.ops.bitwise import Or
from rlx.ops.compare import Select
from rlx.ops.convert import Convert
from rlx.ops.io import Input
from rlx.ops.reduction import Reduce, ReduceMax, ReduceMin, ReduceOr, numbers
from rlx.ops.shape import Slice
from rlx.sharding import mesh_of

SMALLEST = 1024
"""Arrays of fewer elements are reduced one after another, NaN included."""

TITLE = "Greatest or least element with NaN"

SLICES = 8
"""How many slices of an axis meet element by element."""

LONG = 32
"""Elements along an axis from which on it is folded."""

_WIDE = {DType.F32: DType.I32, DType.F64: DType.I64}
"""Dtypes that are reduced as they are → integers of the same width."""

Extreme = ReduceMax | ReduceMin


def keep_nan(graph: Graph) -> tuple[Graph, Counter[str]]:
    """Find out beside each extreme whether there is a NaN; returns the graph, and how often."""
    applied: Counter[str] = Counter()
    mesh = mesh_of(graph)
    alone = mesh is None or mesh.size == 1

    def start() -> Rule:
        return lambda node: _kept(node, applied, alone)

    return sweep(graph, start), applied


def _kept(node: Node, applied: Counter[str], alone: bool) -> Rewritten:
    op = node.op
    if not isinstance(op, Extreme) or not op.axes:
        return None
    x = node.inputs[0]
    small = x.type.is_static and math.prod(_sizes(x)) < SMALLEST
    if small or not x.dtype.is_float:
        return None
    applied[TITLE] += 1
    if not alone or not x.type.is_static or 0 in x.shape:
        return _apart(op, x)
    return _found(op, x, op.axes)


def _sizes(x: Value) -> list[int]:
    return [size for size in x.shape if isinstance(size, int)]


def _found(op: Extreme, x: Value, open_axes: tuple[int, ...]) -> Value:
    """The best form, where some of the axes may still be folded."""
    long = [axis for axis in open_axes if axis < x.rank - 1 and _sizes(x)[axis] >= LONG]
    if long and x.dtype in _WIDE:
        return _folded(op, x, open_axes, max(long, key=lambda axis: _sizes(x)[axis]))
    paired = op.axes[-1] == x.rank - 1 and x.dtype.bits in (16, 32, 64)
    return _paired(op, x) if paired else _apart(op, x)


def _apart(op: Extreme, x: Value) -> Value:
    """Two reductions."""
    return _with_nan(ReduceOr(axes=op.axes)(x.ne(x)), op(x))


def _paired(op: Extreme, x: Value) -> Value:
    """One reduction of pairs."""
    dtype = x.dtype if x.dtype in _WIDE else DType.F32
    flag = _WIDE[dtype]
    meet = Max() if isinstance(op, ReduceMax) else Min()
    least = numbers.lowest(dtype) if isinstance(op, ReduceMax) else numbers.highest(dtype)
    pairs = [Input(name=f"x{i}", dtype=(dtype, flag)[i % 2], shape=())() for i in range(4)]
    body = Graph(pairs, (), [meet(pairs[0], pairs[2]), Or()(pairs[1], pairs[3])])
    is_nan = Convert(dtype=flag)(x.ne(x))
    wide = x if x.dtype is dtype else Convert(dtype=dtype)(x)
    found, seen = Reduce(axes=op.axes, body=body)(
        wide, is_nan, constant(least, dtype), constant(0, flag)
    )
    return _with_nan(seen.ne(0), found if x.dtype is dtype else Convert(dtype=x.dtype)(found))


def _folded(op: Extreme, x: Value, open_axes: tuple[int, ...], axis: int) -> Value:
    """Slices along an axis met element by element, then the rest; a remainder apart."""
    size = _sizes(x)[axis]
    part = size // SLICES
    meet = Max() if isinstance(op, ReduceMax) else Min()
    slices = [_along(x, axis, i * part, (i + 1) * part) for i in range(SLICES)]
    while len(slices) > 1:
        slices = [meet(a, b) for a, b in zip(slices[::2], slices[1::2], strict=True)]
    # A second fold gains along another axis, and only where the last one is kept.
    more = () if op.axes[-1] == x.rank - 1 else tuple(a for a in open_axes if a != axis)
    found = _found(op, slices[0], more)
    left = size - part * SLICES
    return meet(found, _apart(op, _along(x, axis, size - left, size))) if left else found


def _along(x: Value, axis: int, start: int, limit: int) -> Value:
    """A slice of one axis."""
    starts = [0] * x.rank
    limits = _sizes(x)
    starts[axis], limits[axis] = start, limit
    return Slice(start_indices=tuple(starts), limit_indices=tuple(limits), strides=(1,) * x.rank)(x)


def _with_nan(is_nan: Value, found: Value) -> Value:
    return Select()(is_nan, constant(math.nan, found.dtype).broadcast_to(found.shape), found)
