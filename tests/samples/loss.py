"""Samples of losses: labels outside, hidden classes, several leading axes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rlx.dtypes import DType
from rlx.errors import DTypeError, InconclusiveDimError, ShapeError
from rlx.ops.loss import FORMS, SoftmaxCrossEntropy, SoftmaxCrossEntropyWithLogits
from tests.samples.base import FLOATS, ErrorSample, Sample, SymbolicSample, draw

SHAPES = ((0, 4), (1, 1), (5, 63), (2, 3, 65), (7,))


def samples(rng: np.random.Generator) -> Iterator[Sample]:
    for dtype in FLOATS:
        for shape in SHAPES:
            logits, targets = draw(rng, dtype, shape), draw(rng, dtype, shape, low=0.0, high=1.0)
            label = f"{dtype}{list(shape)}"
            for form in ("logsumexp", "product"):
                given = rng.integers(0, shape[-1], shape[:-1]).astype(np.int32)
                op = SoftmaxCrossEntropyWithLogits(form=form)
                yield Sample(op, (logits, given), f"{label} {form}")
            yield Sample(SoftmaxCrossEntropy(), (logits, targets), label)
            for integer in (DType.I32, DType.I64, DType.U8):
                given = (rng.integers(0, shape[-1], shape[:-1])).astype(integer.numpy)
                yield Sample(SoftmaxCrossEntropyWithLogits(), (logits, given), f"{label} {integer}")
    for integer in (DType.I8, DType.U8):  # more classes than the dtype has numbers
        given = rng.integers(0, 100, 4).astype(integer.numpy)
        pair = (draw(rng, DType.F32, (4, 300)), given)
        yield Sample(SoftmaxCrossEntropyWithLogits(), pair, f"300 classes {integer}")
    logits, targets = draw(rng, DType.F32, (4, 3)), draw(rng, DType.F32, (4, 3), low=0.0, high=1.0)
    outside = np.asarray([-1, 3, -(2**31), 1], np.int32)
    for form in FORMS:
        op = SoftmaxCrossEntropyWithLogits(form=form)
        yield Sample(op, (logits.copy(), outside), f"labels outside {form}")
    logits[:, 1], targets[:, 1] = -np.inf, 0.0
    yield Sample(SoftmaxCrossEntropy(), (logits.copy(), targets), "a class that cannot be")
    zero = np.zeros(4, np.int32)
    # XLA writes one_hot · x as a choice, which hides what is infinite at other classes.
    chosen = [form for form in FORMS if form != "product"]
    for form in chosen:
        op = SoftmaxCrossEntropyWithLogits(form=form)
        yield Sample(op, (logits.copy(), zero), f"a class that cannot be {form}")
    logits[:, 1] = np.inf
    for form in chosen:
        op = SoftmaxCrossEntropyWithLogits(form=form)
        yield Sample(op, (logits.copy(), np.asarray([0, 1, 2, 5], np.int32)), f"infinite {form}")


def error_samples() -> Iterator[ErrorSample]:
    op = SoftmaxCrossEntropyWithLogits
    yield ErrorSample(op, ("f32[2, 3]", "i32[3]"), ShapeError, "C1", "i32[3]")
    yield ErrorSample(op, ("f32[2, 3]", "i32[2, 1]"), ShapeError, "C1", "[2]")
    yield ErrorSample(op, ("f32[]", "i32[]"), ShapeError, "C1", "f32[]")
    yield ErrorSample(op, ("f32[a, 3]", "i32[b]"), InconclusiveDimError, "C1", "i32[b]")
    yield ErrorSample(op, ("i32[2, 3]", "i32[2]"), DTypeError, "C2", "i32[2, 3]")
    yield ErrorSample(op, ("f32[2, 3]", "f32[2]"), DTypeError, "C3", "SoftmaxCrossEntropy")
    yield ErrorSample(op, ("f32[2, 3]", "bool[2]"), DTypeError, "C3", "bool[2]")
    other = lambda: op(form="sum")  # noqa: E731
    yield ErrorSample(other, ("f32[2, 3]", "i32[2]"), ShapeError, "C4", "got 'sum'")
    soft = SoftmaxCrossEntropy
    yield ErrorSample(soft, ("f32[2, 3]", "f32[2, 4]"), ShapeError, "C1", "f32[2, 4]")
    yield ErrorSample(soft, ("f32[]", "f32[]"), ShapeError, "C1", "f32[]")
    yield ErrorSample(soft, ("f32[2, 3]", "f16[2, 3]"), DTypeError, "C2", "targets: f16")


def symbolic_samples() -> Iterator[SymbolicSample]:
    binding = {"b": 2, "s": 3, "c": 4}
    op = SoftmaxCrossEntropyWithLogits()
    yield SymbolicSample(op, ("bf16[b, s, c]", "i32[b, s]"), binding)
    op = SoftmaxCrossEntropyWithLogits(form="logsumexp")
    yield SymbolicSample(op, ("f32[b, s, c]", "i32[b, s]"), binding)
    yield SymbolicSample(SoftmaxCrossEntropy(), ("f32[b, c]", "f32[b, c]"), {"b": 2, "c": 4})
