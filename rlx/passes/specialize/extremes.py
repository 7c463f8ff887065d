"""Greatest and least elements whose NaN XLA's CPU leaves out.

From some thousand elements on, XLA's CPU (seen in jax 0.10) reduces in vector lanes with an
instruction that drops NaN, so that ``jnp.max`` of an array with a NaN is a number. Whether there is
one has to be found out beside it, which is the price of the right answer. Three forms keep it low
(``bench_extremes``; times of the maximum that drops NaN, on a busy machine of two cores):

- *keyed*, where the last axis is reduced: one reduction of integers that are ordered as the
  numbers are, for the extreme and the opposite one. A NaN is beyond infinity, at the end that its
  sign says. Rows of 1024² f32: 0.8, of bf16 1.1, where pairs of the number and a flag take 1.4
  and 2.8, and asking apart 3.
- *folded*, where only other axes are reduced: slices along one of them meet element by element,
  which keeps NaN, and an eighth of the array is left, or a sixteenth. Columns of 1024² f32: 1.2;
  of 4096 × 1024 1.25 with sixteen slices and 1.5 with eight. Of bf16, as f32, 0.5 to 0.9 of what
  asking apart takes; f16 is read slowly as f32, and asked apart. Keys down columns take 60.
- *apart*, for what is left: a reduction by "or" of whether each is a NaN. It is the only form for
  sizes that are not known, for programs over several devices, where slices would move elements
  from one to another, and for narrow columns, where the others lose.

Where a softmax or the like was recognised its maximum stays as it is: a NaN reaches the whole row
through the sum.
"""

from __future__ import annotations

import math
from collections import Counter

import numpy as np

from rlx.dtypes import DType
from rlx.ir.graph import Graph, Node, Value
from rlx.ir.operators import constant
from rlx.ir.rewrite import Rewritten, Rule, sweep
from rlx.ops.arithmetic import Max, Min
from rlx.ops.bitwise import And, Or, ShiftRightArithmetic, Xor
from rlx.ops.compare import Select
from rlx.ops.convert import BitcastConvert
from rlx.ops.io import Input
from rlx.ops.reduction import Reduce, ReduceMax, ReduceMin, ReduceOr, numbers
from rlx.ops.shape import Slice
from rlx.sharding import mesh_of

SMALLEST = 1024
"""Arrays of fewer elements are reduced one after another, NaN included."""

TITLE = "Greatest or least element with NaN"

SLICES = 8
"""How many slices of an axis meet element by element."""

MORE_SLICES = 16
"""The same for f32 arrays of at least ``LARGE`` elements, along an axis of ``LONGER``."""

LARGE = 1 << 21
"""See there."""

LONGER = 512
"""See there."""

LONG = 32
"""Elements along an axis from which on it is folded."""

_KEYS = {
    DType.F32: DType.I32,
    DType.F64: DType.I64,
    DType.BF16: DType.I16,
    DType.F16: DType.I16,
}
"""Dtypes whose bits are read as integers → those."""

_FOLDED = (DType.F32, DType.F64, DType.BF16)
"""Dtypes whose slices XLA's CPU compares fast: as they are, and bf16 as f32."""

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
    if op.axes[-1] == x.rank - 1 and x.dtype in _KEYS:
        return _keyed(op, x)
    long = [axis for axis in open_axes if axis < x.rank - 1 and _sizes(x)[axis] >= LONG]
    if not long or x.dtype not in _FOLDED:
        return _apart(op, x)
    axis = max(long, key=lambda axis: _sizes(x)[axis])
    if x.dtype is DType.BF16:
        return _folded(op, x.convert(DType.F32), open_axes, axis, SLICES).convert(x.dtype)
    large = math.prod(_sizes(x)) >= LARGE and _sizes(x)[axis] >= LONGER
    more = x.dtype is DType.F32 and large
    return _folded(op, x, open_axes, axis, MORE_SLICES if more else SLICES)


def _apart(op: Extreme, x: Value) -> Value:
    """Two reductions."""
    return _with_nan(ReduceOr(axes=op.axes)(x.ne(x)), op(x))


def _keyed(op: Extreme, x: Value) -> Value:
    """One reduction of integers, for both extremes."""
    dtype = _KEYS[x.dtype]
    keys = _turned(BitcastConvert(dtype=dtype)(x))
    largest = isinstance(op, ReduceMax)
    meet, other = (Max(), Min()) if largest else (Min(), Max())
    ends = numbers.lowest(dtype), numbers.highest(dtype)
    starts = ends if largest else ends[::-1]
    pairs = [Input(name=f"x{i}", dtype=dtype, shape=())() for i in range(4)]
    body = Graph(pairs, (), [meet(pairs[0], pairs[2]), other(pairs[1], pairs[3])])
    found, opposite = Reduce(axes=op.axes, body=body)(
        keys, keys, *(constant(start, dtype) for start in starts)
    )
    infinity = _key(-math.inf if largest else math.inf, x.dtype)
    last = constant(infinity, dtype).broadcast_to(found.shape)
    beyond = opposite < last if largest else opposite > last
    extreme = BitcastConvert(dtype=x.dtype)(_turned(found))
    return _with_nan(Or()(beyond, extreme.ne(extreme)), extreme)


def _turned(bits: Value) -> Value:
    """Bits of floats as integers that are ordered as they are, or the other way round."""
    last = constant(bits.dtype.bits - 1, bits.dtype).broadcast_to(bits.shape)
    magnitude = constant(numbers.highest(bits.dtype), bits.dtype).broadcast_to(bits.shape)
    return Xor()(bits, And()(ShiftRightArithmetic()(bits, last), magnitude))


def _key(number: float, dtype: DType) -> int:
    """The key of a number that is no NaN."""
    bits = int(np.asarray(number, dtype.numpy).view(_KEYS[dtype].numpy))
    return bits ^ int(numbers.highest(_KEYS[dtype])) if bits < 0 else bits


def _folded(op: Extreme, x: Value, open_axes: tuple[int, ...], axis: int, count: int) -> Value:
    """Slices along an axis met element by element, then the rest; a remainder apart."""
    size = _sizes(x)[axis]
    part = size // count
    meet = Max() if isinstance(op, ReduceMax) else Min()
    slices = [_along(x, axis, i * part, (i + 1) * part) for i in range(count)]
    while len(slices) > 1:
        slices = [meet(a, b) for a, b in zip(slices[::2], slices[1::2], strict=True)]
    found = _found(op, slices[0], tuple(a for a in open_axes if a != axis))
    left = size - part * count
    return meet(found, _apart(op, _along(x, axis, size - left, size))) if left else found


def _along(x: Value, axis: int, start: int, limit: int) -> Value:
    """A slice of one axis."""
    starts = [0] * x.rank
    limits = _sizes(x)
    starts[axis], limits[axis] = start, limit
    return Slice(start_indices=tuple(starts), limit_indices=tuple(limits), strides=(1,) * x.rank)(x)


def _with_nan(is_nan: Value, found: Value) -> Value:
    return Select()(is_nan, constant(math.nan, found.dtype).broadcast_to(found.shape), found)
