"""How XLA computes the Haar step: one strided slice for each half."""

from __future__ import annotations

from rlx_xla._jax_compat.mlir import ir, stablehlo
from rlx_xla.lowering.context import LoweringContext, i64_array
from rlx_xla.lowering.registry import lowers
from tests.rlx_xla.wavelets.ops import WaveletsHaar


@lowers(WaveletsHaar)
def wavelets_haar(ctx: LoweringContext, op: WaveletsHaar, x: ir.Value) -> list[ir.Value]:
    (type_,) = ctx.input_types
    sizes, ones = [int(str(d)) for d in type_.shape], [1] * (type_.rank - 1)
    even, odd = (
        stablehlo.slice(
            x,
            i64_array([*[0] * (type_.rank - 1), start]),
            i64_array(sizes),
            i64_array([*ones, 2]),
        )
        for start in range(2)
    )
    gain = ctx.full(op.gain, ctx.output_types[0])
    halves = (stablehlo.add(even, odd), stablehlo.subtract(even, odd))
    return [stablehlo.multiply(half, gain) for half in halves]
