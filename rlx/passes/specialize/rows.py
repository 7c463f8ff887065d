"""One row of bf16 or int8 times a matrix, as two rows of which one is zero.

From two rows on XLA's CPU multiplies these dtypes as they are; for one row it first writes the
whole matrix out in a wider type. ``bench_specialize`` measures without kernels: bf16 rows of 4096
times [4096, 4096], by rows 3.6 ms where XLA takes 22 or more, by columns 5.5 where it takes 30;
int8 by rows 1.4 where it takes 28. No matrix of 2¹⁶ elements or more lost; u8, f16, f32 and
products with batch axes did, and stay. A short row times a matrix by rows has a better form, which
its lowering chooses (``row_read_once``).

Numerics: int8 is exact; the sums of bf16 are taken in f32, in another order, so ``strict`` leaves
them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from rlx.dtypes import DType
from rlx.ir.graph import Node, Value
from rlx.ir.operators import constant
from rlx.ir.rewrite import Rule, rule
from rlx.ops.convert import OptimizationBarrier
from rlx.ops.dot import DotGeneral
from rlx.ops.shape import Pad, Slice
from rlx.passes.base import PassContext
from rlx.types import TensorType

MIN_ELEMENTS = 2**16
"""Smallest matrix that gains."""

MIN_F32_ELEMENTS = 2**12
"""Smallest matrix of f32 that is turned: XLA takes the loops of small ones apart."""

MAX_ROW = 4095
"""Longest row that XLA's CPU keeps in the loop that reads the matrix: below 16 KiB in f32."""

_RESULTS = {DType.BF16: (DType.BF16, DType.F32), DType.I8: (DType.I32,)}
"""Dtype of the operands → those of a result that gain."""


def rules(ctx: PassContext) -> tuple[Rule, ...]:
    """The rule for what no kernel of the device carries out."""

    @rule(DotGeneral)
    def one_row_as_two(node: Node) -> Value | None:
        """Product of one row of bf16 or int8 as two rows."""
        op = node.op
        if not isinstance(op, DotGeneral):
            return None
        types = [v.type for v in node.inputs]
        side = row_of(op, types)
        if side is None or (ctx.options.strict and types[0].dtype.is_float):
            return None
        if row_read_once(op, types) is not None or (
            ctx.has_kernel is not None and ctx.has_kernel(node)
        ):
            return None
        return _doubled(op, node, side)

    return (one_row_as_two,)


def row_of(op: DotGeneral, types: Sequence[TensorType]) -> int | None:
    """Which operand is one row, where the other is a matrix that XLA's CPU would widen."""
    if op.infer(*types).dtype not in _RESULTS.get(types[0].dtype, ()):
        return None
    return _row_of(op, types, MIN_ELEMENTS)


def _row_of(op: DotGeneral, types: Sequence[TensorType], least: int) -> int | None:
    """Which operand is one row, where the other is a matrix of at least so many elements."""
    lhs, rhs = types
    if op.algorithm is not None or op.lhs_batch or lhs.dtype is not rhs.dtype:
        return None
    if not all(t.is_static and 0 not in t.shape for t in types):
        return None
    frees = [_size(lhs, op.lhs_free(lhs.rank)), _size(rhs, op.rhs_free(rhs.rank))]
    for side in (0, 1):
        matrix = types[1 - side]
        large = _size(matrix, range(matrix.rank)) >= least
        if frees[side] == 1 and frees[1 - side] > 1 and large:
            return side
    return None


def row_read_once(op: DotGeneral, types: Sequence[TensorType]) -> int | None:
    """Which operand is one row, where the product is best lowered with its matrix [n, k] turned.

    XLA's CPU reads the matrix within the loop of the product, if it is turned there and the row
    is short: bf16 [32000, 1024] in 2.3 ms, where it takes 200 as it is and 27 by two rows. In f32
    both ways take as long, and this one compiles in 20 ms, a third of the other.
    """
    matrices = [t for t in types if t.rank == 2]
    if not matrices or op.lhs_batch or len(op.lhs_contracting) != 1:  # soon, for most products
        return None
    if op.infer(*types).dtype is DType.F32 is types[0].dtype:
        side = _row_of(op, types, MIN_F32_ELEMENTS)
    else:
        side = row_of(op, types)
    if side is None:
        return None
    matrix, summed = types[1 - side], (op.rhs_contracting, op.lhs_contracting)[side]
    short = matrix.rank == 2 and summed == (1,) and _size(matrix, summed) <= MAX_ROW
    return side if short else None


def _size(type_: TensorType, axes: Sequence[int]) -> int:
    return math.prod(int(str(type_.shape[axis])) for axis in axes)


def _doubled(op: DotGeneral, node: Node, side: int) -> Value:
    row, matrix = node.inputs[side], node.inputs[1 - side]
    one: Value = row.reshape(1, *row.shape)
    still = (0,) * row.rank
    padded: Value = Pad(low=(0, *still), high=(1, *still), interior=(0, *still))(
        one, constant(0, row.dtype)
    )
    # Behind a barrier: XLA would see that one of the rows is never read.
    two: Value = OptimizationBarrier()(padded)
    summed = (op.lhs_contracting, op.rhs_contracting)
    made: Value = op.replace(
        lhs_contracting=tuple(axis + 1 for axis in summed[side]),
        rhs_contracting=summed[1 - side],
        precision=op.precision if side == 0 else op.precision[::-1],
        preferred_element_type=node.types[0].dtype,
    )(two, matrix)
    # Two rows, axes of size one, columns: the order of elements is that of the result.
    first: Value = Slice(
        start_indices=(0,) * made.rank,
        limit_indices=(1, *made.shape[1:]),
        strides=(1,) * made.rank,
    )(made)
    return first.reshape(*node.types[0].shape)
