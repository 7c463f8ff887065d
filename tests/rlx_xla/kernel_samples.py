"""Samples for kernels beyond those of their ops: sizes on both sides of every threshold and block.

Each function yields samples of one op; some are for the kernel to refuse.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from rlx.dtypes import DType
from rlx.ir.op import Op
from rlx.ops.dot import DotGeneral
from rlx.ops.quantized import DequantMatmul
from rlx.ops.reduction import Argmax, Argmin, CumLogSumExp, CumMax, CumMin, CumProd, CumSum
from rlx.ops.sorting import Sort, TopK, TopNan
from rlx.quant import QuantScheme, unpack
from rlx.quant.schemes import SchemeKind
from rlx.tolerances import Tolerance
from rlx_xla.kernels.library import argreduce, cumulative, dequant_matmul, sort, top_k
from tests.rlx_xla import (
    kernel_samples_attention,
    kernel_samples_fused,
    kernel_samples_recurrent,
    kernel_samples_windows,
)
from tests.samples import quantized_blocks
from tests.samples.base import SIZES, Sample, draw

RAGGED = (0, 1, 7, 63, 64, 65, 1000)

Samples = Callable[[np.random.Generator], Iterator[Sample]]
_TABLE: dict[type[Op], Samples] = {}


def kernel_samples(op: type[Op], rng: np.random.Generator) -> list[Sample]:
    """The samples of an op."""
    return list(_TABLE[op](rng)) if op in _TABLE else []


def _ties(rng: np.random.Generator, dtype: DType, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Few values, zeros of both signs, infinities, NaN and subnormals among them."""
    if not dtype.is_float:
        return draw(rng, dtype, shape, low=-2, high=2)
    tiny = float(np.float64(5e-324)) if dtype is DType.F64 else 1e-40
    values = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, tiny, -tiny]
    with np.errstate(all="ignore"):
        return rng.choice(np.array(values), shape).astype(dtype.numpy)


def _shuffled(rng: np.random.Generator, dtype: DType, shape: tuple[int, ...]) -> Any:
    """Any values, the extreme ones included, in any order along the last axis."""
    return rng.permuted(draw(rng, dtype, shape, special=True), axis=-1)


def _argreduce(op: type[Argmax] | type[Argmin]) -> Samples:
    def samples(rng: np.random.Generator) -> Iterator[Sample]:
        for dtype in (*argreduce.MIN_COLS, DType.BF16, DType.I8):
            for rows in SIZES:
                for cols in (1, 31, 32, 63, 64, 65, 127, 128, 200):
                    x = _shuffled(rng, dtype, (rows, cols))
                    yield Sample(op(axis=1), (x,), f"{rows}x{cols}")
            for n, inner in ((1, 8), (32, 0), (32, 7), (32, 8), (33, 65), (40, 1000)):
                x = _ties(rng, dtype, (2, n, inner))
                yield Sample(op(axis=1), (x,), f"2x{n}x{inner}")
        ties = rng.integers(0, 2, (5, 65)).astype(np.float32)
        yield Sample(op(axis=1), (np.where(ties == 0, -0.0, 0.0).astype(np.float32),), "zeros")
        yield Sample(op(axis=1), (ties,), "ties")
        yield Sample(op(axis=1, index_dtype=DType.I64), (ties,), "i64")
        yield Sample(op(axis=0), (ties,), "axis 0")
        yield Sample(op(axis=3), (draw(rng, DType.F64, (2, 1, 3, 65)),), "rank 4")
        yield Sample(op(axis=0), (draw(rng, DType.I32, (65,)),), "rank 1")

    return samples


def _sort(rng: np.random.Generator) -> Iterator[Sample]:
    for dtype in sort.KEYS:
        for n in (*RAGGED, 2, 96, 97):
            x = _shuffled(rng, dtype, (3, n))
            index = np.broadcast_to(np.arange(n, dtype=np.int32), x.shape).copy()
            yield Sample(Sort(axis=1), (x,), f"3x{n}")
            yield Sample(Sort(axis=1), (_ties(rng, dtype, (3, n)), index), f"3x{n} with index")
            yield Sample(Sort(axis=0), (_ties(rng, dtype, (n, 17)),), f"{n}x17")
        for n in (5, 200):
            keys = [_ties(rng, d, (2, n, 3)) for d in (dtype, DType.I8, DType.F64)]
            more = [draw(rng, d, (2, n, 3)) for d in (DType.C64, DType.BOOL, DType.I16, DType.C128)]
            op = Sort(axis=1, num_keys=3, is_stable=False)
            yield Sample(op, (*keys, *more), f"three keys of {n}")
    for dtype in (DType.F32, DType.I64, DType.BF16):
        for n in (20_000, 70_000):
            x = _ties(rng, dtype, (n,))
            yield Sample(Sort(axis=0), (_shuffled(rng, dtype, (n,)),), f"one row of {n}")
            yield Sample(Sort(axis=0), (x, draw(rng, DType.F64, (n,))), f"one row of {n} pairs")
    yield Sample(Sort(axis=0), (np.arange(70_000, 0, -1).astype(np.int32),), "descending")
    yield Sample(Sort(axis=0), (draw(rng, DType.C64, (5,)),), "complex key")
    yield Sample(Sort(axis=0), (draw(rng, DType.F8E5M2, (5,)),), "narrow key")


def _cumulative(op: type[cumulative.Cumulative]) -> Samples:
    def samples(rng: np.random.Generator) -> Iterator[Sample]:
        for dtype in (*cumulative.DTYPES, DType.I8):
            if op is CumLogSumExp and not dtype.is_float:
                continue
            for shape, axis in (
                *(((3, n), 1) for n in (*RAGGED, 31, 32, 33, 600)),
                *(((n, 3), 0) for n in (32, 65)),
                *(((2, 33, n), 1) for n in (*RAGGED, 600)),
                ((40_000,), 0),
            ):
                for reverse in (False, True):
                    # Products near 1 stay in range.
                    x = draw(rng, dtype, shape, low=0.9 if op is CumProd else -3.0, high=1.1)
                    yield Sample(op(axis=axis, reverse=reverse), (x,), f"{shape} {reverse}")
            # Where a sum or product overflows on the way depends on the order of its parts.
            some = _ties if op in (CumSum, CumProd) else _shuffled
            yield Sample(op(axis=1), (some(rng, dtype, (9, 70)),), "extremes")
            yield Sample(op(axis=0), (some(rng, dtype, (70, 9)),), "extremes, axis 0")
            yield Sample(op(axis=1, exclusive=True), (draw(rng, dtype, (9, 70)),), "exclusive")

    return samples


def _cumlogsumexp(rng: np.random.Generator) -> Iterator[Sample]:
    yield from _cumulative(CumLogSumExp)(rng)
    for dtype in (DType.F32, DType.BF16):
        rows = [
            np.linspace(-1000, 1000, 130),  # each block dwarfs what came before
            np.linspace(1000, -1000, 130),
            np.where(np.arange(130) < 70, -np.inf, 1.0),
            np.where(np.arange(130) == 70, np.inf, 1.0),
            np.where(np.arange(130) == 70, np.nan, 1.0),
            np.where(np.arange(130) % 64 == 63, 900.0, -900.0),
            np.full(130, -np.inf),
            np.zeros(130),
        ]
        x = np.stack(rows).astype(dtype.numpy)
        for reverse in (False, True):
            yield Sample(CumLogSumExp(axis=1, reverse=reverse), (x,), "far apart")


def _top_k(rng: np.random.Generator) -> Iterator[Sample]:
    for dtype in (*top_k.MIN_SIZE, DType.F64, DType.I8):
        for n in (*RAGGED, 16, 200):
            for k in {0, min(1, n), min(5, n), n // 2, min(n, 129), n}:
                for nan in TopNan:
                    x = _shuffled(rng, dtype, (3, n))
                    yield Sample(TopK(k=k, nan=nan), (x,), f"{k} of {n}")
                    ties = _ties(rng, dtype, (2, 2, n))
                    yield Sample(TopK(k=k, nan=nan), (ties,), f"{k} of {n}")
    for k in (3, 128, 200, 2000):
        up = np.arange(20_000, dtype=np.float32)
        yield Sample(TopK(k=k), (np.stack([up, -up, up % 7]),), f"{k} of runs")


def _dot(rng: np.random.Generator) -> Iterator[Sample]:
    """Few rows and a matrix either way round, at sizes about every tile."""
    wide = (DType.F32, DType.BF16, DType.F16)
    pairs = [(x, w, None) for x in wide for w in wide]
    pairs = [(x, w, DType.F32 if x is not w else None) for x, w, _ in pairs]
    pairs += [(DType.BF16, DType.BF16, DType.F32), (DType.F64, DType.F64, None)]
    # Terms of up to 9 cancel, and are added up in another order.
    sizes = ((7, 63), (64, 65), (63, 7), (0, 5), (5, 0), (129, 130), (1000, 65), (513, 600))
    cancelled = Tolerance(rtol=1e-5, atol=1e-4)
    for x_type, w_type, result in pairs:
        every = x_type is DType.F16 and w_type is not DType.F32
        for rows in (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 16) if every else (1, 3, 8):
            for k, n in sizes:
                x = draw(rng, x_type, (rows, k))
                w = draw(rng, w_type, (k, n))
                by_rows = np.ascontiguousarray(w.T)
                for matrix, axis in ((w, 0), (by_rows, 1)):
                    op = DotGeneral(
                        lhs_contracting=(1,), rhs_contracting=(axis,), preferred_element_type=result
                    )
                    bound = cancelled if (result or x_type) is DType.F32 else None
                    label = f"{rows} rows {k}x{n} {axis}"
                    yield Sample(op, (x, matrix), label, tolerance=bound)
    for axis in (0, 1):
        w = draw(rng, DType.F16, (200, 200))
        vector = draw(rng, DType.F16, (200,))
        yield Sample(
            DotGeneral(lhs_contracting=(axis,), rhs_contracting=(0,)), (w, vector), "matrix first"
        )
        batched = DotGeneral(
            lhs_contracting=(3,), rhs_contracting=(1 + axis,), lhs_batch=(0,), rhs_batch=(0,)
        )
        x, w = draw(rng, DType.F16, (3, 2, 2, 150)), draw(rng, DType.F16, (3, 150, 150))
        yield Sample(batched, (x, w), "batched")
    for left, right, sums in (
        ((2, 150), (150, 4, 30), ((1,), (0,))),
        ((2, 5, 30), (5, 30, 120), ((1, 2), (0, 1))),
        ((2, 5, 30), (4, 30, 5, 30), ((1, 2), (2, 3))),
        ((4, 30, 5, 30), (1, 5, 30), ((2, 3), (1, 2))),
        ((2, 30, 5), (5, 30, 120), ((1, 2), (1, 0))),
    ):
        x, w = draw(rng, DType.F16, left), draw(rng, DType.F16, right)
        yield Sample(DotGeneral(lhs_contracting=sums[0], rhs_contracting=sums[1]), (x, w), "axes")
    x, w = draw(rng, DType.F32, (5, 1100)), draw(rng, DType.F32, (1000, 1100))
    x[0, 7], x[1, 8], x[2, 9], w[3, 10], w[4, 1090] = np.nan, np.inf, -np.inf, np.nan, np.inf
    op = DotGeneral(lhs_contracting=(1,), rhs_contracting=(1,))
    yield Sample(op, (x, w), "infinities", tolerance=cancelled)


_SMALL_FLOATS = ("fp8e4m3", "fp8e5m2", "nvfp4/16")


def _dequant_matmul(rng: np.random.Generator) -> Iterator[Sample]:
    """Rows and columns on both sides of every tile, blocks that are not full, other schemes."""
    for kind in (*dequant_matmul.GGUF, SchemeKind.GGUF_TQ1_0):
        scheme = QuantScheme(kind)
        for rows in (0, 1, 7, 65):
            for blocks, n in ((1, 1), (2, 3), (3, 9), (0, 5)):
                yield _product(rng, str(scheme), rows, blocks * scheme.block_size, n)
        for n in (63, 64, 65, 1000) if scheme.block_size == 32 else (65,):
            yield _product(rng, str(scheme), 2, 3 * 256, n)
    for name in ("int8/32", "int8a/32", "int8a/5", "int4/32", "int4/7", *_SMALL_FLOATS):
        for rows in (0, 1, 7, 13, 65, 513):
            if rows > 64 and rng.integers(3):
                continue
            for k, n in ((1, 2), (7, 63), (63, 64), (65, 1000), (128, 514), (51, 5)):
                yield _product(rng, name, rows, k, n)
    yield _product(rng, "mlx_mxfp4/32", 3, 64, 8)
    for dtype in (DType.BF16, DType.F16, DType.F64):
        for name in ("gguf_q5k", "int8a/32", "int4/32"):
            yield _product(rng, name, 3, 256, 64, dtype)


def _product(
    rng: np.random.Generator, name: str, rows: int, k: int, n: int, dtype: DType = DType.F32
) -> Sample:
    scheme = QuantScheme.parse(name)
    x, tensors = draw(rng, dtype, (rows, k)), quantized_blocks.weight(rng, scheme, k, n)
    numbers = unpack(scheme, *tensors, size=k)
    bound = quantized_blocks.summing(x, numbers.T if scheme.is_rows else numbers)
    if dtype.bits == 16:
        bound = Tolerance(bound.atol, 2e-2 if dtype is DType.BF16 else 2e-3)
    label = f"{dtype} {rows}x{k}x{n} {name}"
    return Sample(DequantMatmul(scheme=name), (x, *tensors), label, tolerance=bound)


_TABLE |= {
    DequantMatmul: _dequant_matmul,
    DotGeneral: _dot,
    Argmax: _argreduce(Argmax),
    Argmin: _argreduce(Argmin),
    Sort: _sort,
    CumSum: _cumulative(CumSum),
    CumProd: _cumulative(CumProd),
    CumMax: _cumulative(CumMax),
    CumMin: _cumulative(CumMin),
    CumLogSumExp: _cumlogsumexp,
    TopK: _top_k,
} | kernel_samples_windows.TABLE
_TABLE |= kernel_samples_fused.TABLE
_TABLE |= kernel_samples_attention.TABLE | kernel_samples_recurrent.TABLE
