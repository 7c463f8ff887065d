"""Random bits."""

from __future__ import annotations

from collections.abc import Sequence

from rlx.dtypes import DType
from rlx.ops.random import RngAlgorithm, RngBitGenerator, Threefry2x32
from rlx.ops.random_bits import PARITY, ROTATIONS
from rlx.types import TensorType
from rlx_xla._jax_compat.mlir import ir, stablehlo
from rlx_xla.lowering.context import LoweringContext
from rlx_xla.lowering.registry import lowers

ALGORITHMS = {
    RngAlgorithm.DEFAULT: "DEFAULT",
    RngAlgorithm.THREE_FRY: "THREE_FRY",
    RngAlgorithm.PHILOX: "PHILOX",
}


@lowers(Threefry2x32)
def threefry2x32(
    ctx: LoweringContext,
    op: Threefry2x32,
    k1: ir.Value,
    k2: ir.Value,
    x1: ir.Value,
    x2: ir.Value,
) -> Sequence[ir.Value]:
    type_ = ctx.output_types[0]

    def number(value: int) -> ir.Value:
        return ctx.full(value, type_)

    k3 = stablehlo.xor(stablehlo.xor(k1, k2), number(PARITY))
    keys = (k1, k2, k3)
    a, b = stablehlo.add(x1, k1), stablehlo.add(x2, k2)
    for block in range(5):
        for rotation in ROTATIONS[block % 2]:
            a = stablehlo.add(a, b)
            left = stablehlo.shift_left(b, number(rotation))
            right = stablehlo.shift_right_logical(b, number(32 - rotation))
            b = stablehlo.xor(a, stablehlo.or_(left, right))
        a = stablehlo.add(a, keys[(block + 1) % 3])
        b = stablehlo.add(b, keys[(block + 2) % 3])
        b = stablehlo.add(b, number(block + 1))
    return [a, b]


@lowers(RngBitGenerator)
def rng_bit_generator(
    ctx: LoweringContext, op: RngBitGenerator, state: ir.Value
) -> Sequence[ir.Value]:
    wide = TensorType(DType.U64, (2,))
    pairs = TensorType(DType.U32, (2, 2))
    narrow = ctx.input_types[0].dtype is DType.U32
    if narrow:
        state = stablehlo.reshape(ctx.mlir_type(pairs), state)
        state = stablehlo.bitcast_convert(ctx.mlir_type(wide), state)
    attribute = stablehlo.RngAlgorithmAttr.get(ALGORITHMS[op.algorithm])
    made = stablehlo.RngBitGeneratorOp(
        ctx.mlir_type(wide), ctx.mlir_type(ctx.output_types[1]), attribute, state
    )
    following, bits = made.results
    if narrow:
        following = stablehlo.bitcast_convert(ctx.mlir_type(pairs), following)
        following = stablehlo.reshape(ctx.mlir_type(ctx.output_types[0]), following)
    return [following, bits]
