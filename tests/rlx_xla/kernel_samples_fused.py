"""Samples for the kernels of fused ops: sizes about every tile, and what the kernels refuse."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from rlx.dtypes import DType
from rlx.ir.op import Op
from rlx.ops.activation_kinds import Activation
from rlx.ops.fused import FusedMatmulBiasAct, FusedResidualLn
from rlx.tolerances import Tolerance
from rlx_xla.kernels.library import fused_products
from tests.samples.base import Sample, draw

# Terms of up to 9 cancel, and are added up in another order.
_CANCELLED = Tolerance(rtol=1e-5, atol=1e-4)


def _matmul_bias_act(rng: np.random.Generator) -> Iterator[Sample]:
    def sample(dtype: DType, kind: Activation | None, rows: int, k: int, n: int) -> Sample:
        x, w = draw(rng, dtype, (rows, k)), draw(rng, dtype, (k, n))
        label = f"{rows} rows {k}x{n}"
        bound = _CANCELLED if dtype is DType.F32 else None
        return Sample(
            FusedMatmulBiasAct(activation=kind),
            (x, w, draw(rng, dtype, (n,))),
            label,
            tolerance=bound,
        )

    for kind in fused_products.ACTIVATIONS:
        for rows, k, n in ((2, 300, 97), (9, 129, 385), (17, 700, 48)):
            yield sample(DType.F32, kind, rows, k, n)
    for rows in (0, 1, 8, 16, 33, 64, 65):
        yield sample(DType.F32, Activation.GELU, rows, 200, 100)
    yield sample(DType.F32, Activation.TANH, 4, 200, 100)
    yield sample(DType.BF16, Activation.RELU, 4, 200, 100)
    x, w = draw(rng, DType.F32, (2, 3, 150)), draw(rng, DType.F32, (150, 130))
    x[0, 0, 7], x[1, 2, 8], w[3, 10] = np.nan, np.inf, -np.inf
    inputs = (x, w, draw(rng, DType.F32, (130,)))
    for kind in fused_products.ACTIVATIONS:
        yield Sample(
            FusedMatmulBiasAct(activation=kind), inputs, "infinities", tolerance=_CANCELLED
        )


def _residual_ln(rng: np.random.Generator) -> Iterator[Sample]:
    for dtype in (DType.F32, DType.BF16):
        for shape in ((600, 1), (80, 7), (2, 5, 65), (3, 384), (1, 5000), (2, 3)):
            for biased in (False, True):
                x, residual = draw(rng, dtype, shape), draw(rng, dtype, shape)
                vectors = [draw(rng, dtype, shape[-1:]) for _ in range(3 if biased else 2)]
                op = FusedResidualLn(eps=1e-3)
                yield Sample(op, (x, residual, *vectors), f"{shape} {biased}")
    x, residual = draw(rng, DType.F32, (4, 200)), draw(rng, DType.F32, (4, 200))
    x[0, 3], x[1, 4] = np.nan, np.inf
    x[2] = 1000.0
    residual[2] = 0.25
    vectors = [draw(rng, DType.F32, (200,)) for _ in range(2)]
    yield Sample(FusedResidualLn(eps=1e-3), (x, residual, *vectors), "infinities, and a mean alone")


TABLE: dict[type[Op], Callable[[np.random.Generator], Iterator[Sample]]] = {
    FusedMatmulBiasAct: _matmul_bias_act,
    FusedResidualLn: _residual_ln,
}
