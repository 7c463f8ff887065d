"""Packed weights: their numbers, products with them, and rows of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np

from rlx import dims
from rlx.dtypes import DType
from rlx.ir import operators
from rlx.ir.op import Op, define_op
from rlx.ops.dot import DotGeneral
from rlx.ops.indexing import Gather, GatherNd
from rlx.ops.indexing.places import require_integers
from rlx.ops.quantized.checks import (
    packed_matrix,
    require_dtype,
    require_float,
    require_rank,
    require_shape,
    scheme_of,
)
from rlx.ops.quantized.lanes import GRAPH
from rlx.ops.shape import Iota
from rlx.quant import packed
from rlx.quant.schemes import QuantScheme, SchemeKind
from rlx.types import TensorType

if TYPE_CHECKING:
    from rlx.ir.attributes import Array
    from rlx.ir.graph import Value


_FLAT = (SchemeKind.INT4, SchemeKind.NVFP4)
"""Schemes whose codes are one row of nibbles, from which K cannot be told."""


@define_op("dequantize_blocks")
class DequantizeBlocks(Op):
    """The numbers of a packed weight.

    y = what the scheme says: (code − zero) · scale, or what its blocks hold

    Inputs:
        weight: u8, i8 or u32   codes, shaped as the table in `rlx.quant.schemes` says.
        scale: f32, u8, …       where the scheme has scales of its own.
        zero: f32, …            zero points, biases or the global scale, where it has them.

    Attributes:
        scheme: the display name of a `QuantScheme`, such as ``gguf_q4k`` or ``int8/32``.
        size: K for int4 and nvfp4, whose flat codes do not say it; 0 means whole blocks.
        dtype: of the result.

    Result:
        dtype[K, N], or dtype[N, K] for schemes that are stored by rows (GGUF, MLX, mxfp4x2).

    Constraints:
        C1: scheme names a scheme.
        C2: weight, scale and zero are static and belong together as the scheme says.
        C3: dtype is floating.

    Numerics: computes in f32; result rounded once.
    Source: RLX's dequantisation of `QuantScheme`.
    """

    scheme: str
    size: int = 0
    dtype: DType = DType.F32

    def infer(
        self, weight: TensorType, scale: TensorType | None = None, zero: TensorType | None = None
    ) -> TensorType:
        scheme = scheme_of(self, "C1", self.scheme)
        shape = packed_matrix(self, "C2", scheme, weight, scale, zero, self.size)
        result = TensorType(self.dtype, shape)
        require_float(self, "C3", "the result", result)
        return result

    def evaluate(
        self, weight: Array, scale: Array | None = None, zero: Array | None = None
    ) -> Array:
        scheme = QuantScheme.parse(self.scheme)
        with np.errstate(all="ignore"):
            wide = packed.unpack(scheme, weight, scale, zero, size=self.size)
            return wide.astype(self.dtype.numpy, copy=False)

    def decompose(
        self, weight: Value, scale: Value | None = None, zero: Value | None = None
    ) -> Value:
        types = [None if v is None else v.type for v in (scale, zero)]
        scheme = QuantScheme.parse(self.scheme)
        shape = packed_matrix(self, "C2", scheme, weight.type, types[0], types[1], self.size)
        return packed.weights(GRAPH, scheme, weight, scale, zero, shape).convert(self.dtype)


@define_op("dequant_matmul")
class DequantMatmul(Op):
    """Product with a packed weight.

    y[..., n] = Σ_k x[..., k] · w[k, n]

    Inputs:
        x: float[..., K]
        weight: u8, i8 or u32   codes, shaped as the table in `rlx.quant.schemes` says.
        scale: f32, u8, …       where the scheme has scales of its own.
        zero: f32, …            zero points, biases or the global scale, where it has them.

    Attributes:
        scheme: the display name of a `QuantScheme`, such as ``gguf_q4k`` or ``int8/32``.

    Result:
        Dtype of x, [..., N].

    Constraints:
        C1: scheme names a scheme.
        C2: weight, scale and zero are static and belong together as the scheme says.
        C3: x is floating and has at least one axis.
        C4: x and the weight have one size K.

    Numerics: weights, products and sums are f32 (f64 for f64); result rounded once.
    Source: RLX `Op::DequantMatMul`.
    """

    scheme: str

    def infer(
        self,
        x: TensorType,
        weight: TensorType,
        scale: TensorType | None = None,
        zero: TensorType | None = None,
    ) -> TensorType:
        scheme = scheme_of(self, "C1", self.scheme)
        _require_x(self, "C3", x)
        rows, cols = packed_matrix(self, "C2", scheme, weight, scale, zero, _flat_size(scheme, x))
        inner, outer = (cols, rows) if scheme.is_rows else (rows, cols)
        _require_inner(self, "C4", x, inner, weight)
        return TensorType(x.dtype, (*x.shape[:-1], outer))

    def decompose(
        self, x: Value, weight: Value, scale: Value | None = None, zero: Value | None = None
    ) -> Value:
        scheme = QuantScheme.parse(self.scheme)
        wide = x.convert(x.dtype.compute)
        unpacked = DequantizeBlocks(
            scheme=self.scheme, size=_flat_size(scheme, x.type), dtype=wide.dtype
        )
        numbers = unpacked(*(v for v in (weight, scale, zero) if v is not None))
        product = DotGeneral(
            lhs_contracting=(x.rank - 1,), rhs_contracting=(1 if scheme.is_rows else 0,)
        )
        return cast("Value", product(wide, numbers)).convert(x.dtype)


@define_op("dequant_gather")
class DequantGather(Op):
    """Rows of a packed table: an embedding lookup that unpacks only what it reads.

    y[i…, k] = w[k, indices[i…]],  w[k, n] the numbers of the packed weight as in `dequant_matmul`

    Inputs:
        weight: u8, i8 or u32   codes, shaped as the table in `rlx.quant.schemes` says; a table's
            row is one of the N outputs, so that a tied head shares it.
        indices: int[...]
        scale: f32, u8, …       where the scheme has scales of its own.
        zero: f32, …            zero points, biases or the global scale, where it has them.

    Attributes:
        scheme: the display name of a `QuantScheme`, such as ``gguf_q4k`` or ``int8/32``.
        size: K for int4 and nvfp4, whose flat codes do not say it; 0 means whole blocks.
        dtype: of the result.

    Result:
        dtype[indices.dims ++ [K]]. Indices outside are clipped, as in `gather`.

    Constraints:
        C1: scheme names a scheme.
        C2: weight, scale and zero are static and belong together as the scheme says.
        C3: indices are integers.
        C4: dtype is floating.
        C5: the table has at least one row.

    Numerics: computes in f32; result rounded once.
    Source: ours; the lookup is RLX `Op::Gather`.
    """

    scheme: str
    size: int = 0
    dtype: DType = DType.F32

    def infer(
        self,
        weight: TensorType,
        indices: TensorType,
        scale: TensorType | None = None,
        zero: TensorType | None = None,
    ) -> TensorType:
        scheme = scheme_of(self, "C1", self.scheme)
        rows, cols = packed_matrix(self, "C2", scheme, weight, scale, zero, self.size)
        inner, outer = (cols, rows) if scheme.is_rows else (rows, cols)
        require_integers(self, "C3", indices)
        result = TensorType(self.dtype, (*indices.shape, inner))
        require_float(self, "C4", "the result", result)
        self.require(
            "C5",
            outer > 0,
            lambda: f"weight is required to have at least one row; got {weight}. Check its shape.",
        )
        return result

    def decompose(
        self, weight: Value, indices: Value, scale: Value | None = None, zero: Value | None = None
    ) -> Value:
        scheme = QuantScheme.parse(self.scheme)
        types = [None if v is None else v.type for v in (scale, zero)]
        rows, cols = packed_matrix(self, "C2", scheme, weight.type, types[0], types[1], self.size)
        count = dims.product(indices.shape)
        chosen = indices.reshape((count,))
        if scheme.is_rows:
            axis = 1 if scheme.kind is SchemeKind.MXFP4X2 else 0  # after the axis of the planes
            codes, scales, zeros = (
                None if v is None else _taken(v, chosen, axis) for v in (weight, scale, zero)
            )
            numbers: Value = packed.weights(GRAPH, scheme, codes, scales, zeros, (count, cols))
            return numbers.convert(self.dtype).reshape((*indices.shape, cols))
        flat = scheme.kind in _FLAT
        codes = _nibbles(weight, chosen, rows, cols) if flat else _taken(weight, chosen, 1)
        scales = None if scale is None else _taken(scale, chosen, scale.rank - 1)
        whole = zero is None or scheme.kind is SchemeKind.NVFP4  # one scale for all
        zeros = zero if whole else _taken(cast("Value", zero), chosen, 1)
        numbers = packed.from_codes(GRAPH, scheme, codes, scales, zeros, (rows, count))
        return numbers.T.convert(self.dtype).reshape((*indices.shape, rows))


@define_op("dequant_moe_weights")
class DequantMoeWeights(Op):
    """The numbers of the packed weights of every expert.

    y[e, k, n] = numbers of weight[e, n, :] at k

    Inputs:
        weight: u8[E, N, bytes]   slabs of rows of GGUF blocks.

    Attributes:
        scheme: the display name of a GGUF scheme.

    Result:
        f32[E, K, N]

    Constraints:
        C1: scheme names a GGUF scheme.
        C2: weight is static u8[E, N, whole blocks].

    Source: RLX `Op::DequantMoEWeights`.
    """

    scheme: str

    def infer(self, weight: TensorType) -> TensorType:
        experts, rows, cols = _slabs(self, weight)
        return TensorType(DType.F32, (experts, cols, rows))

    def decompose(self, weight: Value) -> Value:
        experts, rows, cols = _slabs(self, weight.type)
        unpacked = DequantizeBlocks(scheme=self.scheme)
        numbers = unpacked(weight.reshape(experts * rows, weight.shape[2]))
        return cast("Value", numbers).reshape(experts, rows, cols).transpose(0, 2, 1)


@define_op("dequant_grouped_matmul")
class DequantGroupedMatmul(Op):
    """Product of each row with the packed weight of its expert.

    y[m, n] = Σ_k x[m, k] · w[ids[m], n, k]

    Inputs:
        x: float[M, K]
        weight: u8[E, N, bytes]   slabs of rows of GGUF blocks.
        ids: int[M]               the expert of each row; outside are clipped.

    Attributes:
        scheme: the display name of a GGUF scheme.

    Result:
        Dtype of x, [M, N].

    Constraints:
        C1: scheme names a GGUF scheme.
        C2: weight is static u8[E, N, whole blocks], E ≥ 1.
        C3: x is floating [M, K].
        C4: x and the weight have one size K.
        C5: ids are integers [M].

    Numerics: weights, products and sums are f32 (f64 for f64); result rounded once.
    Source: RLX `Op::DequantGroupedMatMul`.
    """

    scheme: str

    def infer(self, x: TensorType, weight: TensorType, ids: TensorType) -> TensorType:
        experts, rows, cols = _slabs(self, weight)
        self.require(
            "C2",
            experts > 0,
            lambda: f"weight is required to have at least one expert; got {weight}. Check it.",
        )
        require_float(self, "C3", "x", x)
        require_rank(self, "C3", "x", x, 2, "[M, K]")
        _require_inner(self, "C4", x, cols, weight)
        require_integers(self, "C5", ids, "ids")
        require_shape(self, "C5", "ids", ids, x.shape[:1])
        return TensorType(x.dtype, (x.shape[0], rows))

    def decompose(self, x: Value, weight: Value, ids: Value) -> Value:
        scheme = QuantScheme.parse(self.scheme)
        experts, rows, cols = _slabs(self, weight.type)
        return _grouped(x, scheme, (weight, None, None), ids, (experts, rows, cols))


@define_op("dequant_grouped_matmul_mlx")
class DequantGroupedMatmulMlx(Op):
    """Product of each row with the weight of its expert, packed as MLX does.

    y[m, n] = Σ_k x[m, k] · (q[e, n, k] · scale[e, n, k / b] + bias[e, n, k / b]),  e = ids[m]

    Inputs:
        x: float[M, K]
        weight: u32[E, N, K·bits/32]   codes.
        scale: float[E, N, K/b]
        bias: float[E, N, K/b]
        ids: int[M]                    the expert of each row; outside are clipped.

    Attributes:
        scheme: ``mlx_affine/bits/b``.

    Result:
        Dtype of x, [M, N].

    Constraints:
        C1: scheme names an mlx_affine scheme.
        C2: weight, scale and bias are static and belong together, E ≥ 1.
        C3: x is floating [M, K].
        C4: x and the weight have one size K.
        C5: ids are integers [M].

    Numerics: weights, products and sums are f32 (f64 for f64); result rounded once.
    Source: RLX `Op::DequantGroupedMatMulMlx`.
    """

    scheme: str

    def infer(
        self,
        x: TensorType,
        weight: TensorType,
        scale: TensorType,
        bias: TensorType,
        ids: TensorType,
    ) -> TensorType:
        _, rows, cols = self._sizes(weight, scale, bias)
        require_float(self, "C3", "x", x)
        require_rank(self, "C3", "x", x, 2, "[M, K]")
        _require_inner(self, "C4", x, cols, weight)
        require_integers(self, "C5", ids, "ids")
        require_shape(self, "C5", "ids", ids, x.shape[:1])
        return TensorType(x.dtype, (x.shape[0], rows))

    def decompose(self, x: Value, weight: Value, scale: Value, bias: Value, ids: Value) -> Value:
        sizes = self._sizes(weight.type, scale.type, bias.type)
        scheme = QuantScheme.parse(self.scheme)
        return _grouped(x, scheme, (weight, scale, bias), ids, sizes)

    def _sizes(
        self, weight: TensorType, scale: TensorType, bias: TensorType
    ) -> tuple[int, int, int]:
        scheme = scheme_of(self, "C1", self.scheme)
        self.require(
            "C1",
            scheme.kind is SchemeKind.MLX_AFFINE,
            lambda: f"scheme is required to be an mlx_affine one; got {scheme}. Choose one.",
        )
        flat: list[TensorType] = []
        for name, found in (("weight", weight), ("scale", scale), ("bias", bias)):
            require_rank(self, "C2", name, found, 3, "[E, N, …]")
            self.require(
                "C2",
                found.is_static and found.shape[0] == weight.shape[0] != 0,
                lambda name=name, found=found: (
                    f"{name} is required to be static and to have at least one expert, as many as "
                    f"weight: {weight}; got {found}. Check its first axis."
                ),
            )
            joined = dims.product(found.shape[:2])
            flat.append(found.with_shape((joined, found.shape[2])))
        rows, cols = packed_matrix(self, "C2", scheme, flat[0], flat[1], flat[2])
        experts = cast("int", weight.shape[0])
        return experts, rows // experts, cols


def _require_x(op: Op, label: str, x: TensorType) -> None:
    require_float(op, label, "x", x)
    op.require(
        label,
        x.rank > 0,
        lambda: f"x is required to have at least one axis; got {x}. Reshape it.",
    )


def _require_inner(op: Op, label: str, x: TensorType, inner: int, weight: TensorType) -> None:
    op.require_same_dims(
        label,
        x.shape[-1:],
        (inner,),
        lambda: (
            f"the last axis of x is required to be K = {inner} of weight: {weight}; got {x}. "
            "Check which axis is which."
        ),
    )


def _flat_size(scheme: QuantScheme, x: TensorType) -> int:
    """K where only x says it: for schemes with flat codes."""
    inner = x.shape[-1]
    return inner if scheme.kind in _FLAT and type(inner) is int else 0


def _slabs(
    op: DequantMoeWeights | DequantGroupedMatmul, weight: TensorType
) -> tuple[int, int, int]:
    """Check C1 and C2 of slabs of GGUF rows, and return E, N and K."""
    scheme = scheme_of(op, "C1", op.scheme)
    op.require(
        "C1",
        scheme.is_gguf,
        lambda: f"scheme is required to be one of GGUF; got {scheme}. Choose one.",
    )
    require_dtype(op, "C2", "weight", weight, DType.U8)
    require_rank(op, "C2", "weight", weight, 3, "[E, N, bytes]")
    op.require(
        "C2",
        weight.is_static,
        lambda: f"weight is required to be static; got {weight}. Bind its symbols.",
    )
    experts, rows, width = (cast("int", d) for d in weight.shape)
    flat = TensorType(DType.U8, (experts * rows, width))
    return experts, rows, packed_matrix(op, "C2", scheme, flat, None, None)[1]


def _taken(x: Value, indices: Value, axis: int) -> Value:
    return cast("Value", Gather(axis=axis)(x, indices))


def _nibbles(flat: Value, columns: Value, rows: int, cols: int) -> Value:
    """Columns (u8[rows, count]) of row-major nibbles that were packed without regard to rows."""
    narrow = columns.dtype.bits < 32 or columns.dtype is DType.I32
    dtype = DType.I32 if narrow and rows * cols < 2**31 else DType.I64
    columns = operators.binary("Max", columns.convert(dtype), 0)
    columns = operators.binary("Min", columns, cols - 1)
    starts: Value = Iota(dtype=dtype, shape=(rows, 1))()
    places = starts * cols + columns
    shifts = (places & 1).convert(DType.U8) * 4
    pairs = _taken(flat, GRAPH.shift_right(places, 1), 0)
    return GRAPH.shift_right(pairs, shifts) & 15


def _grouped(
    x: Value,
    scheme: QuantScheme,
    tensors: tuple[Value, Value | None, Value | None],
    ids: Value,
    sizes: tuple[int, int, int],
) -> Value:
    """Product of each row with its expert's weight, whichever unpacks fewer numbers."""
    experts, rows, cols = sizes
    wide = x.convert(x.dtype.compute)
    count = x.shape[0]
    few = type(count) is int and count <= experts
    slabs = count if few else experts

    def flat(tensor: Value | None) -> Value | None:
        """The slabs that are needed, all rows one after another."""
        if tensor is None:
            return None
        chosen = _taken(tensor, ids, 0) if few else tensor
        return chosen.reshape((slabs * rows, chosen.shape[2]))

    codes, scales, zeros = (flat(t) for t in tensors)
    numbers: Value = packed.weights(GRAPH, scheme, codes, scales, zeros, (slabs * rows, cols))
    numbers = numbers.convert(wide.dtype).reshape((slabs, rows, cols))
    if few:
        each = DotGeneral(
            lhs_batch=(0,), rhs_batch=(0,), lhs_contracting=(1,), rhs_contracting=(2,)
        )
        return cast("Value", each(wide, numbers)).convert(x.dtype)
    every = DotGeneral(lhs_contracting=(1,), rhs_contracting=(2,))(wide, numbers)
    chosen = GatherNd(batch_dims=1)(every, ids.reshape((count, 1)))
    return cast("Value", chosen).convert(x.dtype)
