"""Samples for the kernels of attention: sizes about every tile, and numbers that are none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from rlx.dtypes import DType
from rlx.ir.op import Op
from rlx.ops.attention import Attention, MaskKind
from rlx.ops.backward import AttentionBackward, AttentionBackwardAll, AttentionBackwardWrt
from rlx.tolerances import Tolerance
from tests.samples.attention import NARROW
from tests.samples.backward_attention import LOOSE, PARTS
from tests.samples.base import Sample, draw

Arrays = tuple[np.ndarray[Any, Any], ...]
Sizes = tuple[int, int, int, int, int, int, int]
"""B, S_q, S_k, H, H_k, D, D_v."""

SIZES: tuple[Sizes, ...] = (
    (1, 1, 1000, 2, 2, 64, 64), (2, 1, 129, 6, 2, 7, 9), (1, 1, 65, 8, 1, 65, 63),
    (1, 2, 63, 1, 1, 8, 8), (1, 7, 7, 4, 2, 1, 1), (1, 63, 64, 2, 1, 16, 17),
    (2, 64, 65, 1, 1, 33, 31), (1, 65, 63, 3, 3, 5, 64),
    (1, 97, 257, 2, 2, 24, 24), (1, 130, 128, 2, 1, 64, 130),
)  # fmt: skip

KINDS = (
    (MaskKind.NONE, None), (MaskKind.CAUSAL, None), (MaskKind.SLIDING_WINDOW, 5),
    (MaskKind.SLIDING_WINDOW, 130), (MaskKind.CUSTOM, None), (MaskKind.BIAS, None),
    (MaskKind.LENGTHS, None),
)  # fmt: skip

CAUSAL_BIAS = (*KINDS, (MaskKind.BIAS, None))
"""The last one is causal too."""


def forward(rng: np.random.Generator) -> Iterator[tuple[Attention, Arrays, str]]:
    """Ops and inputs, of every kind of mask in both layouts."""
    rows = ("zeros", "nan", "uniform")
    for number, sizes in enumerate(SIZES):
        for place, (kind, window) in enumerate(CAUSAL_BIAS):
            dtype = (DType.F32, DType.F32, DType.BF16, DType.F16)[(number + place) % 4]
            op = Attention(
                num_heads=sizes[3], head_dim=sizes[5], mask_kind=kind, window=window,
                layout=("bshd", "bhsd")[(number + place) % 2], masked_rows=rows[number % 3],
                softcap=3.0 if place == number % 7 else None, causal=place == len(KINDS),
            )  # fmt: skip
            yield op, inputs(rng, op, sizes, dtype), f"{dtype} {sizes} {kind.value}"
    for place, (kind, window) in enumerate(CAUSAL_BIAS):
        for masked_rows in rows:
            # Blocks of keys that are hidden whole, and what lies in them all the same.
            sizes = (1, 100, 300, 1, 1, 3, 3)
            op = Attention(
                num_heads=1, head_dim=3, mask_kind=kind, window=window, masked_rows=masked_rows,
                causal=place == len(KINDS),
            )  # fmt: skip
            q, k, v, *mask = inputs(rng, op, sizes, DType.F32)
            if kind is MaskKind.LENGTHS:
                mask = [np.array([140], np.int32)]
            for key, number in ((3, np.nan), (250, np.inf), (299, -np.inf)):
                v[0, key, 0, key % 3] = number
                k[0, key, 0, 0] = number
            q[0, 7, 0, 0], q[0, 8, 0, 1], q[0, 9, 0, 2] = np.nan, np.inf, -np.inf
            yield op, (q, k, v, *mask), f"extremes {kind.value} {masked_rows}"
            plain = inputs(rng, op, sizes, DType.F32)
            plain[2][0, 299, 0, 1] = np.nan
            yield op, (*plain[:3], *mask), f"a hidden NaN {kind.value} {masked_rows}"
    tiny = Attention(num_heads=1, head_dim=4)
    small = inputs(rng, tiny, (1, 5, 9, 1, 1, 4, 4), DType.F32)
    yield tiny, tuple((a * 1e-40).astype(np.float32) for a in small), "subnormal"
    large = tuple((a * 50).astype(np.float32) for a in small[:2])
    yield tiny, (*large, small[2]), "far apart"


def inputs(rng: np.random.Generator, op: Attention, sizes: Sizes, dtype: DType) -> Arrays:
    """Random q, k, v and what mask the op takes."""
    batch, queries, keys, heads, kv_heads, depth, v_depth = sizes
    arrays: list[np.ndarray[Any, Any]] = []
    for steps, count, width in (
        (queries, heads, depth), (keys, kv_heads, depth), (keys, kv_heads, v_depth),
    ):  # fmt: skip
        order = (
            (batch, steps, count, width) if op.layout == "bshd" else (batch, count, steps, width)
        )
        arrays.append(draw(rng, dtype, order, low=-1, high=1))
    if op.mask_kind is MaskKind.CUSTOM:
        shapes = ((batch, keys), (queries, keys), (1, heads, 1, keys), (batch, 1, queries, keys))
        shape = shapes[int(rng.integers(len(shapes)))]
        if shape == (queries, keys):
            shape = (1, 1, queries, keys)
        kept = rng.random(shape) < 0.7
        arrays.append(kept.astype((np.bool_, np.float32, np.int8)[int(rng.integers(3))]))
    elif op.mask_kind is MaskKind.BIAS:
        bias = draw(rng, DType.F32, (heads, queries, keys), low=-1, high=1)
        bias[rng.random(bias.shape) < 0.1] = -np.inf
        bias[:, queries // 2] = -np.inf
        arrays.append(bias)
    elif op.mask_kind is MaskKind.LENGTHS:
        arrays.append(rng.integers(0, keys + 1, (batch,)).astype(np.int32))
    return tuple(arrays)


def attention(rng: np.random.Generator) -> Iterator[Sample]:
    """Samples of attention."""
    for op, arrays, label in forward(rng):
        dtype = DType.BF16 if "bf16" in label else DType.F16 if "f16" in label else DType.F32
        bound = Tolerance(1e-5, 2e-5) if label == "far apart" else NARROW.get(dtype)
        yield Sample(op, arrays, label, tolerance=bound)
    yield Sample(
        Attention(num_heads=1, head_dim=4),
        tuple(draw(rng, DType.F64, (1, 3, 1, 4)) for _ in range(3)),
        "f64",
    )


def attention_backward(rng: np.random.Generator) -> Iterator[Sample]:
    """Samples of its gradients, each by another input."""
    for number, (op, arrays, label) in enumerate(forward(rng)):
        if label == "far apart":
            continue
        q, k, v, *mask = arrays
        dtype = DType.BF16 if "bf16" in label else DType.F16 if "f16" in label else DType.F32
        shape = (*q.shape[:3], v.shape[3])
        dy = draw(rng, dtype, shape, low=-1, high=1)
        wrt = PARTS[number % 3]
        made = AttentionBackward(wrt=wrt, **op.attributes())
        # Sums over up to 300 keys or queries, taken in another order.
        bound = Tolerance(2e-5, 2e-4) if dtype is DType.F32 else LOOSE[dtype]
        yield Sample(made, (q, k, v, dy, *mask), f"{label} {wrt.value}", tolerance=bound)
    x = tuple(draw(rng, DType.F64, (1, 3, 1, 4)) for _ in range(4))
    yield Sample(AttentionBackward(num_heads=1, head_dim=4, wrt=AttentionBackwardWrt.KEY), x, "f64")


def attention_backward_all(rng: np.random.Generator) -> Iterator[Sample]:
    """Samples of the three gradients together."""
    for number, (kind, window) in enumerate(KINDS):
        for sizes in ((2, 65, 65, 2, 2, 16, 16), (1, 200, 200, 1, 1, 7, 7)):
            op = Attention(
                num_heads=sizes[3], head_dim=sizes[5], mask_kind=kind, window=window,
                layout=("bshd", "bhsd")[number % 2],
            )  # fmt: skip
            q, k, v, *mask = inputs(rng, op, sizes, DType.F32)
            dy = draw(rng, DType.F32, q.shape, low=-1, high=1)
            attributes = {n: a for n, a in op.attributes().items() if n != "v_head_dim"}
            yield Sample(
                AttentionBackwardAll(**attributes),
                (q, k, v, dy, *mask),
                f"{sizes} {kind.value}",
                tolerance=Tolerance(2e-5, 2e-4),
            )


TABLE: dict[type[Op], Callable[[np.random.Generator], Iterator[Sample]]] = {
    Attention: attention,
    AttentionBackward: attention_backward,
    AttentionBackwardAll: attention_backward_all,
}
