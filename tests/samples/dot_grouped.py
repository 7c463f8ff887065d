"""Samples of products by expert and of low-rank corrections."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from rlx.dtypes import DType
from rlx.errors import DTypeError, InconclusiveDimError, ShapeError
from rlx.ops.dot import GroupedMatmul, LoraMatmul
from rlx.tolerances import Tolerance
from tests.samples.base import FLOATS, ErrorSample, Sample, SymbolicSample, draw

# Sums of up to 63 products of size 9, in another order.
_BOUND = {
    DType.F32: Tolerance(3e-5, 1e-5),
    DType.F64: Tolerance(1e-12, 1e-11),
    DType.F16: Tolerance(2e-3, 2e-3),
    DType.BF16: Tolerance(1.6e-2, 1.6e-2),
}


def samples(rng: np.random.Generator) -> Iterator[Sample]:
    for dtype in FLOATS:
        for rows, experts, inner, columns in ((2, 5, 63, 3), (9, 4, 7, 5), (5, 1, 1, 1)):
            x = draw(rng, dtype, (rows, inner))
            weight = draw(rng, dtype, (experts, inner, columns))
            kind = np.int32 if rows % 2 else np.int64
            ids = rng.integers(-2, experts + 2, rows).astype(kind)
            label = f"{dtype} {rows} rows {experts} experts"
            yield Sample(GroupedMatmul(), (x, weight, ids), label, tolerance=_BOUND[dtype])
        x, w = draw(rng, dtype, (3, 2, 9)), draw(rng, dtype, (9, 5))
        a, b = draw(rng, dtype, (9, 2)), draw(rng, dtype, (2, 5))
        for scale in (0.5, -1.25):
            op = LoraMatmul(scale=scale)
            yield Sample(op, (x, w, a, b), f"{dtype} {scale}", tolerance=_BOUND[dtype])
    yield from _edges(rng)


def _edges(rng: np.random.Generator) -> Iterator[Sample]:
    def arrays(*shapes: tuple[int, ...]) -> tuple[Any, ...]:
        return tuple(draw(rng, DType.F32, shape) for shape in shapes)

    none = np.zeros(0, np.int32)
    yield Sample(GroupedMatmul(), (*arrays((0, 3), (2, 3, 4)), none), "no rows")
    zeros = np.zeros(3, np.int32)
    yield Sample(GroupedMatmul(), (*arrays((3, 0), (2, 0, 4)), zeros), "no sum")
    yield Sample(GroupedMatmul(), (*arrays((3, 2), (2, 2, 0)), zeros), "no columns")
    x, weight = arrays((4, 3), (3, 3, 2))
    weight[1] = np.inf
    ids = np.array([0, 2, 2, 0], np.int32)
    yield Sample(GroupedMatmul(), (x, weight, ids), "an infinite expert that nobody asks")
    yield Sample(LoraMatmul(), arrays((3,), (3, 2), (3, 1), (1, 2)), "a vector")
    yield Sample(LoraMatmul(), arrays((2, 3), (3, 2), (3, 0), (0, 2)), "rank 0")
    yield Sample(LoraMatmul(), arrays((0, 3), (3, 2), (3, 1), (1, 2)), "no rows")


def error_samples() -> Iterator[ErrorSample]:
    x, weight, ids = "f32[4, 3]", "f32[2, 3, 5]", "i32[4]"
    for types in (
        (x, "f32[3, 5]", ids),
        (x, "f32[2, 4, 5]", ids),
        (x, weight, "i32[5]"),
        (x, "f32[0, 3, 5]", ids),
    ):
        match = f"got {types[0]}, {types[1]} and {types[2]}"
        yield ErrorSample(GroupedMatmul, types, ShapeError, "C1", match)
    unsure = (x, "f32[e - 1, 3, 5]", ids)
    yield ErrorSample(GroupedMatmul, unsure, InconclusiveDimError, "C1", "e - 1")
    integers = ("i32[4, 3]", "i32[2, 3, 5]", ids)
    yield ErrorSample(GroupedMatmul, integers, DTypeError, "C2", "required to be float")
    mixed = (x, "bf16[2, 3, 5]", ids)
    yield ErrorSample(GroupedMatmul, mixed, DTypeError, "C2", "x and weight are required")
    for dtype in ("f32", "u8"):
        wrong = (x, weight, f"{dtype}[4]")
        yield ErrorSample(GroupedMatmul, wrong, DTypeError, "C3", f"i64; got {dtype}[4]")
    lora = ("f32[4, 3]", "f32[3, 5]", "f32[3, 2]", "f32[2, 5]")
    for place, other in enumerate(("f32[4, 4]", "f32[3]", "f32[4, 2]", "f32[2, 4]")):
        types = (*lora[:place], other, *lora[place + 1 :])
        yield ErrorSample(LoraMatmul, types, ShapeError, "C1", f"got {', '.join(types[:3])} and")
    for place, name in enumerate(("weight", "a", "b"), start=1):
        types = (*lora[:place], lora[place].replace("f32", "f16"), *lora[place + 1 :])
        yield ErrorSample(LoraMatmul, types, DTypeError, "C2", f"x and {name} are required")
    integer = tuple(t.replace("f32", "i8") for t in lora)
    yield ErrorSample(LoraMatmul, integer, DTypeError, "C2", "required to be float")


def symbolic_samples() -> Iterator[SymbolicSample]:
    grouped = ("f32[m, k]", "f32[e, k, n]", "i32[m]")
    yield SymbolicSample(GroupedMatmul(), grouped, {"m": 3, "k": 2, "e": 4, "n": 5})
    lora = ("f32[b, m, k]", "f32[k, n]", "f32[k, 2]", "f32[2, n]")
    yield SymbolicSample(LoraMatmul(), lora, {"b": 2, "m": 3, "k": 2, "n": 5})
