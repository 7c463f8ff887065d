"""Samples of random bits and of draws from distributions."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from rlx import rng as streams
from rlx.dims import symbol
from rlx.dtypes import DType
from rlx.errors import DTypeError, InconclusiveDimError, ShapeError
from rlx.ops.random import (
    PhiloxBits,
    RngAlgorithm,
    RngBitGenerator,
    RngNormal,
    RngUniform,
    Threefry2x32,
)
from rlx.ops.random import Sample as Choice
from rlx.tolerances import Tolerance, tolerance
from tests.samples.base import (
    FLOATS,
    NARROW_FLOATS,
    UINTS,
    ErrorSample,
    Sample,
    SymbolicSample,
    draw,
)

SHAPES = ((), (0,), (1,), (63,), (65,), (3, 5), (4, 6), (2, 1, 3))


def samples(rng: np.random.Generator) -> Iterator[Sample]:
    for shape in SHAPES:
        inputs = tuple(draw(rng, DType.U32, shape, special=True) for _ in range(4))
        yield Sample(Threefry2x32(), inputs, f"{shape}")
    for shape in SHAPES:
        for algorithm in RngAlgorithm:
            op = RngBitGenerator(algorithm=algorithm, dtype=DType.U32, shape=shape)
            state = draw(rng, DType.U32, (4,), special=True)
            yield Sample(op, (rng.permutation(state),), f"{algorithm.value} {shape}")
    for dtype in UINTS:
        for algorithm in RngAlgorithm:
            op = RngBitGenerator(algorithm=algorithm, dtype=dtype, shape=(5, 3))
            states = (draw(rng, DType.U64, (2,)), np.array([7, 2**64 - 2], np.uint64))
            for state in states:
                yield Sample(op, (state,), f"{algorithm.value} {dtype}")
    yield from _draws(rng)
    yield from _choices(rng)


def _draws(rng: np.random.Generator) -> Iterator[Sample]:
    for shape in SHAPES:
        seed = draw(rng, DType.U32, (2,), special=True)
        yield Sample(PhiloxBits(shape=shape), (rng.permutation(seed),), f"{shape}")
        key = int(rng.integers(2**63))
        yield Sample(RngUniform(dtype=DType.F32, shape=shape, key=key), (), f"{shape}")
        normal = RngNormal(dtype=DType.F32, shape=shape, key=key)
        # A logarithm, a root, a cosine and a product: one in 30,000 is off by 3, none of 2 million
        # by 4.
        yield Sample(normal, (), f"{shape}", max_ulp=4)
    for dtype in (*FLOATS, *NARROW_FLOATS):
        low, width = rng.uniform(-3, 3), rng.uniform(0, 2)
        span = {"low": low, "high": low + width, "key": int(rng.integers(2**63))}
        yield Sample(RngUniform(dtype=dtype, shape=(9, 7), **span), (), f"{dtype}")
        yield Sample(RngUniform(dtype=dtype, shape=(63,), op_seed=1.5), (), f"{dtype} unit")
        shift = {"mean": low, "scale": width, "key": 2**64 - 1}
        # f64 holds numbers of f32, which are as far apart as those.
        tolerance = _twice(DType.F32 if dtype is DType.F64 else dtype)
        yield Sample(
            RngNormal(dtype=dtype, shape=(9, 7), **shift), (), f"{dtype}", tolerance=tolerance
        )
    yield Sample(RngUniform(dtype=DType.F32, shape=(5,), low=2.0, high=2.0), (), "no width")


def _choices(rng: np.random.Generator) -> Iterator[Sample]:
    for dtype in (*FLOATS, *NARROW_FLOATS):
        logits = draw(rng, dtype, (33, 17))
        for seed, (top_k, top_p) in enumerate(itertools.product((0, 5), (1.0, 0.7))):
            op = Choice(top_k=top_k, top_p=top_p, temperature=0.8, seed=seed)
            yield _choice(op, logits, f"{dtype} {top_k} {top_p}")
        yield Sample(Choice(temperature=0.0), (logits,), f"{dtype} cold")
    for shape in ((0, 3), (1, 1), (2, 1), (63, 5)):
        op = Choice(top_k=2, top_p=0.9, seed=7)
        yield _choice(op, draw(rng, DType.F32, shape), f"{shape}")
    tied = np.repeat(np.array([[1, 3, 3, 3, 0]], np.float32), 40, axis=0)
    yield _choice(Choice(top_k=1, seed=3), tied, "ties stay")
    yield _choice(Choice(top_p=0.5, seed=3), tied, "ties by index")
    masked = np.where(tied == 3, tied, np.float32(-np.inf))
    yield _choice(Choice(top_k=4, seed=3), masked, "masked")
    yield _choice(Choice(top_k=9, temperature=1e-9), tied, "large k")


def _twice(dtype: DType) -> Tolerance:
    """Twice that of the dtype: a normal number and its sum with the mean are each rounded."""
    bound = tolerance(dtype)
    return Tolerance(2 * bound.atol, 2 * bound.rtol)


def _choice(op: Choice, logits: Any, label: str) -> Sample:
    return Sample(op, (logits,), label, check=functools.partial(_check_choice, op))


def _check_choice(op: Choice, found: Any, wanted: Any, inputs: Any) -> None:
    """Both results lie where the uniform falls into the cumulative weights, computed in f64."""
    logits = inputs[0].astype(np.float64)
    uniforms = streams.Philox4x32(op.seed or 42).uniform(len(logits))
    for row, (numbers, r) in enumerate(zip(logits, uniforms, strict=True)):
        weights, decided = _weights(op, numbers)
        total = np.cumsum(weights)
        for result in (found, wanted):
            index = int(result[0][row])
            assert weights[index] > 0 or not decided, f"row {row}: {index} is not kept"
            before = total[index] - weights[index]
            near = before - 1e-5 <= r * total[-1] <= total[index] + 1e-5
            assert near or not decided, f"row {row}: {index}, uniform {r}, sums {total}"


def _weights(op: Choice, numbers: Any) -> tuple[Any, bool]:
    """Weights that are kept, and whether rounding to f32 could keep others."""
    scaled = numbers / max(op.temperature, 1e-6)
    if op.top_k:
        scaled[scaled < np.sort(scaled)[-min(op.top_k, len(scaled))]] = -np.inf
    weights = np.exp(scaled - scaled.max())
    weights /= weights.sum()
    order = np.argsort(-weights, kind="stable")
    before = np.cumsum(weights[order]) - weights[order]
    if op.top_p < 1:
        weights[order[before >= op.top_p]] = 0
    return weights, op.top_p == 1 or bool(np.abs(before - op.top_p).min() > 1e-6)


def error_samples() -> Iterator[ErrorSample]:
    word, two = "u32[3]", "u32[2]"
    yield ErrorSample(Threefry2x32, (word, word, word, two), ShapeError, "C1", "x2: u32[2]")
    symbolic = ("u32[b]", "u32[b]", "u32[b]", "u32[c]")
    yield ErrorSample(Threefry2x32, symbolic, InconclusiveDimError, "C1", "u32[c]")
    yield ErrorSample(Threefry2x32, ("u64[3]", word, word, word), DTypeError, "C2", "k1: u64[3]")
    yield ErrorSample(RngBitGenerator, ("u32[2]",), ShapeError, "C1", "got u32[2]")
    yield ErrorSample(RngBitGenerator, ("i64[2]",), ShapeError, "C1", "got i64[2]")
    yield ErrorSample(
        lambda: RngBitGenerator(dtype=DType.F32), ("u64[2]",), DTypeError, "C2", "got f32"
    )

    yield ErrorSample(lambda: PhiloxBits(shape=()), ("u32[3]",), ShapeError, "C1", "got u32[3]")
    yield ErrorSample(lambda: PhiloxBits(shape=()), ("i32[2]",), ShapeError, "C1", "got i32[2]")
    yield ErrorSample(lambda: PhiloxBits(shape=(-1,)), ("u32[2]",), ShapeError, "C2", "got [-1]")
    yield from _draw_errors()
    yield from _choice_errors()


def _draw_errors() -> Iterator[ErrorSample]:
    for op in (RngNormal, RngUniform):
        plain = functools.partial(op, shape=(2,))
        for dtype in (DType.I32, DType.C64):
            integer = functools.partial(plain, dtype=dtype)
            yield ErrorSample(integer, (), DTypeError, "C1", f"a real float; got {dtype}")
        negative = functools.partial(op, dtype=DType.F32, shape=(2, -3))
        yield ErrorSample(negative, (), ShapeError, "C2", "≥ 0; got [2, -3]")
        unsure = functools.partial(op, dtype=DType.F32, shape=(symbol("b") - 2,))
        yield ErrorSample(unsure, (), InconclusiveDimError, "C2", "b - 2")
        for key in (-1, -(2**60)):
            wrong = functools.partial(plain, dtype=DType.F32, key=key)
            yield ErrorSample(wrong, (), ShapeError, "C3", f"in [0, 2**64); got {key}")
    for low, high in ((1.0, 0.0), (0.0, float("inf")), (float("nan"), 1.0)):
        span = functools.partial(RngUniform, dtype=DType.F32, shape=(), low=low, high=high)
        yield ErrorSample(span, (), ShapeError, "C4", f"low ≤ high; got {low} and {high}")


def _choice_errors() -> Iterator[ErrorSample]:
    good = ("f32[2, 3]",)
    yield ErrorSample(Choice, ("f32[3]",), ShapeError, "C1", "[B, V] with V ≥ 1; got f32[3]")
    yield ErrorSample(Choice, ("f32[3, 0]",), ShapeError, "C1", "got f32[3, 0]")
    yield ErrorSample(Choice, ("f32[3, v - 1]",), InconclusiveDimError, "C1", "v - 1")
    yield ErrorSample(Choice, ("i32[2, 3]",), DTypeError, "C2", "logits is required to be float")
    for wrong in (
        {"top_k": -1},
        {"top_p": 0.0},
        {"top_p": 1.5},
        {"temperature": -1.0},
        {"temperature": float("inf")},
    ):
        build = functools.partial(Choice, **wrong)
        yield ErrorSample(build, good, ShapeError, "C3", "top_k ≥ 0, 0 < top_p ≤ 1 and a finite")
    for seed in (-1, -(2**60)):
        build = functools.partial(Choice, seed=seed)
        yield ErrorSample(build, good, ShapeError, "C4", f"in [0, 2**64); got {seed}")


def symbolic_samples() -> Iterator[SymbolicSample]:
    yield SymbolicSample(Threefry2x32(), ("u32[b, 3]",) * 4, {"b": 2})
    yield SymbolicSample(RngBitGenerator(shape=(2, 3)), ("u32[4]",))
    yield SymbolicSample(PhiloxBits(shape=(symbol("b"), 3)), ("u32[2]",), {"b": 2})
    for op in (RngNormal, RngUniform):
        yield SymbolicSample(op(dtype=DType.BF16, shape=(symbol("b"), 3)), (), {"b": 2})
    yield SymbolicSample(Choice(top_k=2), ("f32[b, v]",), {"b": 2, "v": 5})
