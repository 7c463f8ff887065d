"""Samples of attention's gradients: those of attention itself, with an upstream gradient."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from rlx.dtypes import DType, as_dtype
from rlx.errors import DTypeError, InconclusiveDimError, ShapeError
from rlx.ops.attention import Attention, MaskKind
from rlx.ops.backward import AttentionBackward, AttentionBackwardAll, AttentionBackwardWrt
from rlx.tolerances import Tolerance
from rlx.types import TensorType
from tests.samples import attention
from tests.samples.base import ErrorSample, Sample, SymbolicSample, draw

# Sums over keys and queries of products with the rounded weights; see tests/samples/attention.
LOOSE = {
    DType.F32: Tolerance(1e-5, 1e-4),
    DType.F64: Tolerance(1e-12, 1e-10),
    DType.BF16: Tolerance(6e-2, 2e-2),
    DType.F16: Tolerance(8e-3, 4e-3),
}
PARTS = (AttentionBackwardWrt.QUERY, AttentionBackwardWrt.KEY, AttentionBackwardWrt.VALUE)


def samples(rng: np.random.Generator) -> Iterator[Sample]:
    for number, forward in enumerate(attention.samples(rng)):
        op = forward.op
        assert isinstance(op, Attention)
        q, k, v, *mask = forward.inputs
        types = [TensorType(as_dtype(a.dtype), a.shape) for a in forward.inputs]
        dtype, shape = types[0].dtype, op.infer(*types).shape
        dy = draw(rng, dtype, tuple(int(n) for n in shape), low=-1.0, high=1.0)
        parts = (*PARTS, AttentionBackwardWrt.MASK) if op.mask_kind is MaskKind.BIAS else PARTS
        # A third of attention's samples; each of them by another input.
        if number % 3 == 0 or op.mask_kind is MaskKind.BIAS:
            wrt = parts[(number // 3 if number % 3 == 0 else number) % len(parts)]
            made = AttentionBackward(wrt=wrt, **op.attributes())
            arrays = (q, k, v, dy, *mask)
            label = f"{forward.label} {wrt.value}"
            yield Sample(made, arrays, label, tolerance=LOOSE[dtype])
        if number % 6 == 0 and q.shape == k.shape == v.shape:
            attributes = {n: a for n, a in op.attributes().items() if n != "v_head_dim"}
            made = AttentionBackwardAll(**attributes)
            yield Sample(made, (q, k, v, dy, *mask), forward.label, tolerance=LOOSE[dtype])
    for dtype in (DType.F32, DType.BF16, DType.F64):
        arrays = tuple(draw(rng, dtype, (1, 3, 2, 4), low=-1.0, high=1.0) for _ in range(4))
        made = AttentionBackwardAll(num_heads=2, head_dim=4, mask_kind=MaskKind.CAUSAL, softcap=2.0)
        yield Sample(made, arrays, f"{dtype} all", tolerance=LOOSE[dtype])


def error_samples() -> Iterator[ErrorSample]:
    x, short = "f32[1, 3, 2, 4]", "f32[1, 2, 2, 4]"

    def one(**changes: Any) -> Callable[[], AttentionBackward]:
        attributes = {"num_heads": 2, "head_dim": 4, "wrt": AttentionBackwardWrt.KEY, **changes}
        return lambda: AttentionBackward(**attributes)

    def packed(**changes: Any) -> Callable[[], AttentionBackwardAll]:
        return lambda: AttentionBackwardAll(**{"num_heads": 2, "head_dim": 4, **changes})

    for make in (one, packed):
        yield ErrorSample(make(head_dim=5), (x, x, x, x), ShapeError, "C1", "attention [C4]")
        yield ErrorSample(make(softcap=0.0), (x, x, x, x), ShapeError, "C1", "softcap")
        yield ErrorSample(make(), (x, x, "f16[1, 3, 2, 4]", x), DTypeError, "C1", "v: f16")
        yield ErrorSample(make(), (x, x, x, short), ShapeError, "C2", "dy")
        symbolic = (x, x, x, "f32[1, s, 2, 4]")
        yield ErrorSample(make(), symbolic, InconclusiveDimError, "C2", "dy")
    by_mask = one(wrt=AttentionBackwardWrt.MASK)
    yield ErrorSample(by_mask, (x, x, x, x), ShapeError, "C3", "bias")
    yield ErrorSample(packed(), (x, short, short, x), ShapeError, "C3", "one shape")


def symbolic_samples() -> Iterator[SymbolicSample]:
    binding = {"b": 2, "s": 3, "t": 4}
    q, k = "bf16[b, s, 4, 8]", "bf16[b, t, 2, 8]"
    for wrt in PARTS:
        op = AttentionBackward(num_heads=4, head_dim=8, wrt=wrt, mask_kind=MaskKind.CAUSAL)
        yield SymbolicSample(op, (q, k, k, q), binding)
    everything = AttentionBackwardAll(num_heads=4, head_dim=8)
    yield SymbolicSample(everything, (q, q, q, q), {"b": 2, "s": 3})
