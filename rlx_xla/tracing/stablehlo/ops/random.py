"""Random bits."""

from __future__ import annotations

from typing import Any

from rlx.dtypes import Kind
from rlx.ir.graph import Value
from rlx.ops.random import RngAlgorithm, RngBitGenerator
from rlx.types import TensorType
from rlx_xla.tracing.stablehlo.context import OpContext
from rlx_xla.tracing.stablehlo.registry import imports

ALGORITHMS = {
    "DEFAULT": RngAlgorithm.DEFAULT,
    "THREE_FRY": RngAlgorithm.THREE_FRY,
    "PHILOX": RngAlgorithm.PHILOX,
}
STATE = "u64[2]"


@imports("stablehlo.rng_bit_generator")
def rng_bit_generator(ctx: OpContext, state: Value) -> Any:
    """Bits of an unsigned dtype from a state of two words; others are left to XLA."""
    return generate(ctx, state, ctx.out_types[1], ctx.word("rng_algorithm"))


def generate(ctx: OpContext, state: Value, wanted: TensorType, algorithm: str) -> Any:
    """The next state and bits of a type."""
    plain = wanted.dtype.kind is Kind.UINT and wanted.dtype.bits >= 8
    if str(state.type) != STATE or not plain or algorithm not in ALGORITHMS:
        return NotImplemented
    op = RngBitGenerator(algorithm=ALGORITHMS[algorithm], dtype=wanted.dtype, shape=wanted.shape)
    return op(state)
