"""Products with a matrix of each row's own, and with a low-rank correction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rlx.dtypes import DType, as_dtype
from rlx.errors import DTypeError
from rlx.ir.attributes import Array
from rlx.ir.graph import Graph
from rlx.ir.op import Op, define_op
from rlx.ops.axes import require_at_most
from rlx.ops.dot.general import DotGeneral
from rlx.ops.elementwise import FLOATING, require_kind, round_to
from rlx.types import TensorType

if TYPE_CHECKING:
    from rlx.ir.graph import Value


@define_op("grouped_matmul")
class GroupedMatmul(Op):
    """Rows of x, each multiplied with the matrix of its own expert.

    y[m, n] = Σ_k x[m, k] · weight[ids[m], k, n]

    Inputs:
        x: T[M, K]   float.
        weight: T[E, K, N]
        ids: i32[M] or i64[M]   which expert; outside of [0, E) the nearest one.

    Result:
        T[M, N]

    Constraints:
        C1: x is [M, K], weight [E, K, N] with E ≥ 1, and ids [M].
        C2: x and weight have one dtype, a float.
        C3: ids are i32 or i64.

    Numerics: floats narrower than f32 accumulate in f32 and round once. What stands in the weights
    of other experts has no effect, be it infinite.
    Source: RLX `Op::GroupedMatMul`.
    """

    def infer(self, x: TensorType, weight: TensorType, ids: TensorType) -> TensorType:
        message = (
            "x is required to be [M, K], weight [E, K, N] with E ≥ 1 and ids [M]; got "
            f"{x}, {weight} and {ids}. Reshape them."
        )
        self.require("C1", (x.rank, weight.rank, ids.rank) == (2, 3, 1), message)
        self.require_same_dims("C1", (weight.shape[1], ids.shape[0]), x.shape[::-1], message)
        require_at_most(self, "C1", 1, weight.shape[0], message)
        _check_floats(self, x, weight=weight)
        self.require(
            "C3",
            ids.dtype in (DType.I32, DType.I64),
            lambda: f"ids are required to be i32 or i64; got {ids}. Convert them.",
            DTypeError,
        )
        return x.with_shape((x.shape[0], weight.shape[2]))

    def evaluate(self, x: Array, weight: Array, ids: Array) -> Array:
        dtype = as_dtype(x.dtype)
        wide = dtype.compute.numpy
        chosen = np.clip(ids, 0, weight.shape[0] - 1)
        result = np.zeros((x.shape[0], weight.shape[2]), wide)
        with np.errstate(all="ignore"):
            for expert in np.unique(chosen):
                rows = chosen == expert
                result[rows] = x[rows].astype(wide) @ weight[expert].astype(wide)
            return round_to(result, dtype)

    def decompose(self, x: Value, weight: Value, ids: Value) -> Value:
        from rlx.ir.operators import broadcast_to, constant
        from rlx.ops.arithmetic import Max, Min

        (rows, _), (experts, _, _) = x.shape, weight.shape
        if isinstance(rows, int) and isinstance(experts, int) and rows <= experts:
            from rlx.ops.indexing import Gather

            own: Value = Gather(axis=0)(weight, ids)
            product = DotGeneral(
                lhs_contracting=(1,), rhs_contracting=(1,), lhs_batch=(0,), rhs_batch=(0,),
                preferred_element_type=x.dtype.compute,
            )  # fmt: skip
            return product(x, own).convert(x.dtype)
        zero = broadcast_to(constant(0, ids.dtype), ids.shape)
        last = _size(experts, ids.dtype) - 1
        chosen = Min()(Max()(ids, zero), broadcast_to(last, ids.shape))
        return _by_expert(x, weight, chosen)


@define_op("lora_matmul")
class LoraMatmul(Op):
    """A matrix product with a low-rank correction of the matrix.

    y = x · weight + scale · (x · a) · b

    Inputs:
        x: T[..., K]   float.
        weight: T[K, N]
        a: T[K, R]
        b: T[R, N]

    Attributes:
        scale: factor of the correction.

    Result:
        T[..., N]

    Constraints:
        C1: x is [..., K], weight [K, N], a [K, R] and b [R, N].
        C2: one dtype, a float.

    Numerics: floats narrower than f32 are computed in f32, x · a and the sum included, and rounded
    once.
    Source: RLX `Op::LoraMatMul`; Hu et al. 2021, arXiv:2106.09685.
    """

    scale: float = 1.0

    def infer(self, x: TensorType, weight: TensorType, a: TensorType, b: TensorType) -> TensorType:
        message = (
            "x is required to be [..., K], weight [K, N], a [K, R] and b [R, N]; got "
            f"{x}, {weight}, {a} and {b}. Transpose or reshape them."
        )
        good = x.rank >= 1 and (weight.rank, a.rank, b.rank) == (2, 2, 2)
        self.require("C1", good, message)
        k, (inner, n), r = x.shape[-1], weight.shape, a.shape[1]
        found = (inner, a.shape[0], *b.shape)
        self.require_same_dims("C1", found, (k, k, r, n), message)
        _check_floats(self, x, weight=weight, a=a, b=b)
        return x.with_shape((*x.shape[:-1], n))

    def evaluate(self, x: Array, weight: Array, a: Array, b: Array) -> Array:
        dtype = as_dtype(x.dtype)
        wide: Any = [array.astype(dtype.compute.numpy) for array in (x, weight, a, b)]
        left, full, down, up = wide
        scale = left.dtype.type(self.scale)
        with np.errstate(all="ignore"):
            return round_to(left @ full + scale * (left @ down @ up), dtype)

    def decompose(self, x: Value, weight: Value, a: Value, b: Value) -> Value:
        wide = x.dtype.compute
        product = DotGeneral(
            lhs_contracting=(x.rank - 1,), rhs_contracting=(0,), preferred_element_type=wide
        )
        low: Value = product(x, a)
        correction = product(low, b.convert(wide)) * self.scale
        return (product(x, weight) + correction).convert(x.dtype)


def _check_floats(op: Op, x: TensorType, **others: TensorType) -> None:
    require_kind(op, "C2", "x", x, FLOATING)
    for name, other in others.items():
        op.require(
            "C2",
            other.dtype is x.dtype,
            f"x and {name} are required to have one dtype; got {x} and {other}. Convert one.",
            DTypeError,
        )


def _size(dim: Any, dtype: DType) -> Value:
    from rlx.ir.operators import constant
    from rlx.ops.shape import DimValue

    return constant(dim, dtype) if isinstance(dim, int) else DimValue(dim=dim, dtype=dtype)()


def _by_expert(x: Value, weight: Value, ids: Value) -> Value:
    """One expert after the other, for all rows; each keeps the rows that are its own."""
    from rlx.ir.operators import broadcast_to, constant
    from rlx.ops.compare import Select
    from rlx.ops.control_flow import Scan
    from rlx.ops.io import Input
    from rlx.ops.shape import BroadcastInDim

    (rows, _), (experts, inner, columns) = x.shape, weight.shape
    shape = (rows, columns)
    kinds = {
        "x": x.type,
        "ids": ids.type,
        "expert": TensorType(ids.dtype),
        "y": TensorType(x.dtype, shape),
        "weight": TensorType(weight.dtype, (inner, columns)),
    }
    leaves = [Input(name=n, dtype=t.dtype, shape=t.shape)() for n, t in kinds.items()]
    left, which, expert, y, matrix = leaves
    multiply = DotGeneral(
        lhs_contracting=(1,), rhs_contracting=(0,), preferred_element_type=x.dtype.compute
    )
    product = multiply(left, matrix).convert(x.dtype)
    own = which.eq(broadcast_to(expert, which.shape))
    kept: Value = Select()(BroadcastInDim(shape=shape, broadcast_dimensions=(0,))(own), product, y)
    body = Graph(leaves, (), (expert + 1, kept), name="expert")
    start = constant(0, ids.dtype), broadcast_to(constant(0.0, x.dtype), shape)
    scan = Scan(body=body, length=experts, num_consts=2, num_carry=2)
    return scan(x, ids, *start, weight)[1]
