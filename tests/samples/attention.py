"""Samples of attention: masks, layouts, grouped heads, rows without keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from rlx.dtypes import DType
from rlx.errors import DTypeError, InconclusiveDimError, ShapeError
from rlx.ops.attention import LENGTHS, MASKED_ROWS, Attention, MaskKind
from rlx.tolerances import Tolerance
from tests.samples.base import FLOATS, ErrorSample, Sample, SymbolicSample, draw

# The weights are rounded to the narrow dtype before they are summed over S_k keys: a result near
# zero is off by a few units of the largest |v| · 2^-8 (bf16) or 2^-11 (f16).
NARROW = {DType.BF16: Tolerance(2e-2, 1.6e-2), DType.F16: Tolerance(3e-3, 2e-3)}

ENUM = {
    MaskKind.NONE: {},
    MaskKind.CAUSAL: {},
    MaskKind.SLIDING_WINDOW: {"window": 2},
}


def samples(rng: np.random.Generator) -> Iterator[Sample]:
    for dtype in FLOATS:
        for kind, extra in ENUM.items():
            for lengths in ((5, 5), (2, 7), (7, 3), (1, 65)):
                op = Attention(num_heads=4, head_dim=8, mask_kind=kind, **extra)
                yield _sample(rng, op, dtype, (2, *lengths, 2, 5), f"{kind.value} {lengths}")
        for layout in ("bshd", "bhsd"):
            op = Attention(
                num_heads=6, head_dim=3, layout=layout, score_scale=0.7, softcap=2.0,
                mask_kind=MaskKind.CAUSAL,
            )  # fmt: skip
            yield _sample(rng, op, dtype, (1, 3, 4, 3, 3), layout)
        for sizes in ((0, 3, 3, 1, 2), (1, 0, 3, 1, 2), (1, 3, 0, 1, 2), (1, 1, 1, 1, 1)):
            yield _sample(rng, Attention(num_heads=2, head_dim=2), dtype, sizes, f"{sizes}")
        packed = Attention(num_heads=4, head_dim=3, v_head_dim=4)
        yield _sample(rng, packed, dtype, (2, 3, 5, 2, 4), "packed", packed=True)
        whole = _sample(rng, packed, dtype, (1, 3, 5, 2, 4), "one batch", packed=True)
        flat = tuple(a.reshape(a.shape[1:]) for a in whole.inputs)
        yield Sample(whole.op, flat, whole.label, tolerance=whole.tolerance)
    yield from _lengths(rng)
    for rows in MASKED_ROWS:
        op = Attention(
            num_heads=2, head_dim=4, mask_kind=MaskKind.CAUSAL, masked_rows=rows, layout="bhsd"
        )
        yield _sample(rng, op, DType.F32, (2, 6, 3, 1, 4), f"causal {rows}")
        custom = op.replace(mask_kind=MaskKind.CUSTOM)
        kept = rng.integers(0, 2, (2, 4))
        kept[0] = 0
        for dtype in (np.bool_, np.float32, np.int32):
            mask = kept.astype(dtype)
            yield _sample(rng, custom, DType.F32, (2, 3, 4, 1, 4), f"custom {rows}", mask)
        for shape in ((1, 1, 3, 4), (2, 2, 1, 4), (2, 1, 3, 1), (3, 4), (2, 2, 3, 4)):
            mask = rng.integers(0, 2, shape).astype(np.bool_)
            if len(shape) == 2:
                mask = mask.reshape(1, *shape)
            for layout in ("bshd", "bhsd"):
                given = custom.replace(layout=layout)
                yield _sample(rng, given, DType.F32, (2, 3, 4, 1, 4), f"{shape} {rows}", mask)
        biased = op.replace(mask_kind=MaskKind.BIAS)
        bias = draw(rng, DType.F32, (1, 2, 3, 4))
        bias[0, 1, 2] = -np.inf
        bias[0, 0, 1, 0] = -np.inf
        for dtype in (DType.F32, DType.BF16):
            yield _sample(rng, biased, dtype, (2, 3, 4, 2, 4), f"bias {rows}", bias)
        for lengths in ((3, 4), (4, 3)):
            given = draw(rng, DType.F32, (2, 1, *lengths))
            given[0, 0, 1] = -np.inf
            causal = biased.replace(causal=True)
            label = f"causal bias {rows} {lengths}"
            yield _sample(rng, causal, DType.F32, (2, *lengths, 2, 4), label, given)


def _lengths(rng: np.random.Generator) -> Iterator[Sample]:
    for number, dtype in enumerate(LENGTHS):
        op = Attention(
            num_heads=2,
            head_dim=4,
            mask_kind=MaskKind.LENGTHS,
            layout=("bshd", "bhsd")[number % 2],
            masked_rows=MASKED_ROWS[number % 3],
        )
        mask = np.array([0, 3, 4, rng.integers(1, 4)], dtype.numpy)
        yield _sample(rng, op, DType.F32, (4, 3, 4, 1, 4), f"lengths {dtype}", mask)
    more = np.array([-1, 2**40], np.int64)
    yield _sample(rng, op, DType.BF16, (2, 3, 4, 1, 4), "lengths outside", more)


def _sample(
    rng: np.random.Generator,
    op: Any,
    dtype: DType,
    sizes: tuple[int, int, int, int, int],
    label: str,
    mask: np.ndarray[Any, Any] | None = None,
    *,
    packed: bool = False,
) -> Sample:
    """Sizes are B, S_q, S_k, H_k, D_v."""
    batch, length, keys, kv_heads, v_dim = sizes
    arrays: list[np.ndarray[Any, Any]] = []
    for count, heads, width in (
        (length, op.num_heads, op.head_dim), (keys, kv_heads, op.head_dim), (keys, kv_heads, v_dim),
    ):  # fmt: skip
        shape = (batch, count, heads, width)
        if op.layout == "bhsd":
            shape = (batch, heads, count, width)
        if packed:
            shape = (batch, count, heads * width)
        # Small scores: the rounding of a large one would be an error of its weight many times over.
        arrays.append(draw(rng, dtype, shape, low=-1, high=1))
    if mask is not None:
        arrays.append(mask)
    return Sample(op, tuple(arrays), f"{dtype} {label}", tolerance=NARROW.get(dtype))


def error_samples() -> Iterator[ErrorSample]:
    good = ("f32[1, 3, 2, 4]",) * 3

    def op(**changes: Any) -> Callable[[], Attention]:
        return lambda: Attention(**{"num_heads": 2, "head_dim": 4, **changes})

    for changes, match in (
        ({"layout": "sbhd"}, "sbhd"),
        ({"masked_rows": "ones"}, "ones"),
        ({"num_heads": 0}, "num_heads"),
        ({"head_dim": 0}, "head_dim"),
        ({"score_scale": float("inf")}, "score_scale"),
        ({"softcap": 0.0}, "softcap"),
        ({"softcap": float("inf")}, "not inf"),
        ({"window": 3}, "window"),
        ({"causal": True}, "causal"),
        ({"mask_kind": MaskKind.SLIDING_WINDOW}, "window"),
        ({"mask_kind": MaskKind.SLIDING_WINDOW, "window": -1}, "window"),
    ):
        yield ErrorSample(op(**changes), good, ShapeError, "C1", match)
    yield ErrorSample(op(), ("f32[8]",) * 3, ShapeError, "C2", "f32[8]")
    yield ErrorSample(op(layout="bhsd"), ("f32[3, 8]",) * 3, ShapeError, "C2", "bhsd")
    yield ErrorSample(op(layout="bhsd"), ("f32[1, 3, 8]",) * 3, ShapeError, "C2", "bhsd")
    yield ErrorSample(op(), (*good[:2], "f16[1, 3, 2, 4]"), DTypeError, "C3", "v: f16")
    yield ErrorSample(op(), ("i32[1, 3, 2, 4]",) * 3, DTypeError, "C3", "i32")
    yield ErrorSample(op(layout="bhsd"), good, ShapeError, "C4", "layout 'bhsd'")
    yield ErrorSample(op(), (good[0], "f32[1, 3, 2, 5]", good[2]), ShapeError, "C4", "heads of 4")
    yield ErrorSample(op(), (good[0], good[1], "f32[1, 3, 1, 4]"), ShapeError, "C4", "v: f32")
    three = ("f32[1, 3, 2, 4]", "f32[1, 3, 3, 4]", "f32[1, 3, 3, 4]")
    yield ErrorSample(op(), three, ShapeError, "C4", "dividing 2")
    packed = ("f32[1, 3, 8]", "f32[1, 3, 6]", "f32[1, 3, 6]")
    yield ErrorSample(op(), packed, ShapeError, "C4", "heads of 4")
    yield ErrorSample(op(v_head_dim=3), good, ShapeError, "C4", "v_head_dim = 3")
    yield ErrorSample(op(), (*good[:2], "f32[1, 5, 2, 4]"), ShapeError, "C5", "one S_k")
    yield ErrorSample(op(), ("f32[2, 3, 2, 4]", *good[:2]), ShapeError, "C5", "one B")
    symbolic = (good[0], "f32[1, s, 2, 4]", "f32[1, t, 2, 4]")
    yield ErrorSample(op(), symbolic, InconclusiveDimError, "C5", "s")
    custom, bias = op(mask_kind=MaskKind.CUSTOM), op(mask_kind=MaskKind.BIAS)
    yield ErrorSample(custom, good, ShapeError, "C6", "got none with custom")
    yield ErrorSample(op(), (*good, "bool[1, 3]"), ShapeError, "C6", "bool[1, 3] with none")
    yield ErrorSample(custom, (*good, "bool[1, 4]"), ShapeError, "C6", "bool[1, 4]")
    yield ErrorSample(custom, (*good, "bool[1, 1, 1, 1, 3]"), ShapeError, "C6", "broadcast")
    yield ErrorSample(bias, (*good, "f32[2, 2, 3, 3]"), ShapeError, "C6", "f32[2, 2, 3, 3]")
    lengths = op(mask_kind=MaskKind.LENGTHS)
    yield ErrorSample(lengths, good, ShapeError, "C6", "got none with lengths")
    yield ErrorSample(lengths, (*good, "i32[2]"), ShapeError, "C6", "one for each batch")
    yield ErrorSample(lengths, (*good, "i32[1, 3]"), ShapeError, "C6", "i32[1, 3]")
    yield ErrorSample(lengths, (*good, "u64[1]"), DTypeError, "C7", "u64[1]")
    yield ErrorSample(custom, (*good, "c64[1, 3]"), DTypeError, "C7", "real number")
    yield ErrorSample(bias, (*good, "bool[3, 3]"), DTypeError, "C7", "required to be f32")


def symbolic_samples() -> Iterator[SymbolicSample]:
    binding = {"b": 2, "s": 3, "t": 4}
    q, k = "bf16[b, s, 4, 8]", "bf16[b, t, 2, 8]"
    op = Attention(num_heads=4, head_dim=8, mask_kind=MaskKind.CAUSAL)
    yield SymbolicSample(op, (q, k, k), binding)
    op = Attention(num_heads=4, head_dim=8, mask_kind=MaskKind.CUSTOM)
    yield SymbolicSample(op, (q, k, k, "bool[b, t]"), binding)
    yield SymbolicSample(op, (q, k, k, "bool[1, 1, s, t]"), binding)
    op = Attention(num_heads=4, head_dim=8, mask_kind=MaskKind.LENGTHS)
    yield SymbolicSample(op, (q, k, k, "i32[b]"), binding)
    op = Attention(num_heads=4, head_dim=8, v_head_dim=8)
    packed = ("f32[s, 32]", "f32[t, 16]", "f32[t, 16]")
    yield SymbolicSample(op, packed, {"s": 3, "t": 4})
