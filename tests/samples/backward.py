"""Samples of the gradient ops; tests/rlx_xla/test_backward.py compares them with JAX's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from rlx.dtypes import DType, as_dtype
from rlx.errors import DTypeError, InconclusiveDimError, ShapeError
from rlx.ir.graph import Graph, Value
from rlx.ir.op import Op
from rlx.ops.activation_kinds import Activation
from rlx.ops.backward import (
    ActivationBackward,
    AdaLayerNormBackward,
    BatchNormInferenceBackward,
    ComplexNormSqBackward,
    Conv2dBackwardInput,
    Conv2dBackwardWeight,
    Conv3dBackwardInput,
    Conv3dBackwardWeight,
    CumsumBackward,
    EighBackward,
    GatedDeltaNetBackward,
    GatedResidualBackward,
    GatherBackward,
    GroupNormBackwardBeta,
    GroupNormBackwardGamma,
    GroupNormBackwardInput,
    LayerNormBackwardGamma,
    LayerNormBackwardInput,
    LogMelBackward,
    MaxPool2dBackward,
    MaxPool3dBackward,
    ReluBackward,
    RmsNormBackwardBeta,
    RmsNormBackwardGamma,
    RmsNormBackwardInput,
    RopeBackward,
    ScanBackward,
    ScanBackwardXs,
    SoftmaxCrossEntropyBackward,
)
from rlx.ops.convolution import Conv
from rlx.ops.io import Input
from rlx.ops.position import RopeStyle
from rlx.tolerances import Tolerance
from rlx.types import as_type
from tests.samples.base import FLOATS, ErrorSample, Sample, SymbolicSample, draw

Array = np.ndarray[Any, Any]

NORMS: tuple[tuple[tuple[int, ...], int], ...] = (
    ((0, 4), 1), ((3, 0), 0), ((1, 1), 1), ((4, 63), -1), ((2, 65, 3), 1), ((5,), 0),
)  # fmt: skip
CONVOLUTIONS: tuple[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]], ...] = (
    ((2, 3, 7, 6), (4, 3, 3, 2), {}),
    (
        (1, 4, 9, 8),
        (6, 2, 3, 2),
        {"stride": (2, 3), "padding": (1, 2), "dilation": (2, 1), "groups": 2},
    ),
    ((2, 2, 5, 5), (2, 1, 1, 1), {"stride": (2, 2), "groups": 2}),
    ((0, 2, 5, 5), (3, 2, 2, 2), {}),
    ((1, 2, 1, 5), (3, 2, 2, 2), {}),
    (
        (2, 4, 5, 6, 4),
        (2, 2, 2, 3, 2),
        {"stride": (1, 2, 1), "padding": (1, 0, 2), "dilation": (1, 2, 1), "groups": 2},
    ),
    ((1, 1, 3, 3, 3), (1, 1, 3, 1, 2), {}),
)
"""Shapes of input and weight, and attributes."""

# The factor of a group is the square root of a mean of squares: where x is nearly constant the
# products of the two means lose digits in f32 that the tolerance of one product does not allow.
SUMS = Tolerance(1e-5, 1e-4)
CHAINS = {DType.F32: SUMS, DType.F64: Tolerance(1e-11, 1e-10)}
"""Of several products one after the other."""


def samples(rng: np.random.Generator) -> Iterator[Sample]:
    for dtype in FLOATS:
        yield from _activations(rng, dtype)
        yield from _norms(rng, dtype)
        yield from _convolutions(rng, dtype)
        yield from _lookups(rng, dtype)
        yield from _losses(rng, dtype)
        for length in (0, 1, 6):
            for carry in (False, True):
                yield _delta(rng, dtype, length, carry)
            yield from _scans(rng, dtype, length)
    for dtype in (DType.C64, DType.C128):
        for shape in ((0,), (3, 5), ()):
            arrays = (draw(rng, dtype, shape), draw(rng, dtype.real, shape))
            yield Sample(ComplexNormSqBackward(), arrays, f"{dtype}{list(shape)}")
    for dtype in (DType.F32, DType.F64):
        for shape in ((0, 0), (1, 1), (2, 5, 5), (0, 3, 3)):
            yield _eigh(rng, dtype, shape)
        for shape in ((3, 4), (2, 5, 6), (0, 2)):
            yield _log_mel(rng, dtype, shape)


def _activations(rng: np.random.Generator, dtype: DType) -> Iterator[Sample]:
    for size in (0, 1, 65):
        x, dy = (draw(rng, dtype, (size,), special=size == 65) for _ in range(2))
        yield Sample(ReluBackward(), (x, dy), f"{dtype}[{size}]")
    for kind in Activation:
        # Slopes of log and recip grow without bound near 0; sin and the like are periodic.
        low = 0.1 if kind in (Activation.LOG, Activation.RECIP) else -4.0
        for size in (0, 63) if kind is Activation.GELU else (63,):
            x, dy = draw(rng, dtype, (size,), low=low, high=4.0), draw(rng, dtype, (size,))
            yield Sample(ActivationBackward(kind=kind), (x, dy), f"{dtype} {kind.value}")


def _norms(rng: np.random.Generator, dtype: DType) -> Iterator[Sample]:
    tolerance = SUMS if dtype is DType.F32 else None
    for shape, axis in NORMS:
        label = f"{dtype}{list(shape)} axis {axis}"
        x, dy = draw(rng, dtype, shape), draw(rng, dtype, shape)
        gamma, beta = (draw(rng, dtype, (shape[axis],)) for _ in range(2))

        def sample(op: Op, *arrays: Array, label: str = label) -> Sample:
            return Sample(op, arrays, label, tolerance=tolerance)

        yield sample(LayerNormBackwardInput(axis=axis), x, gamma, dy)
        yield sample(LayerNormBackwardGamma(axis=axis), x, dy)
        for op in (RmsNormBackwardInput, RmsNormBackwardGamma, RmsNormBackwardBeta):
            yield sample(op(axis=axis, eps=1e-3), x, gamma, beta, dy)
    for shape, groups in (((2, 6, 5, 3), 3), ((1, 4, 0), 2), ((0, 2), 1), ((3, 7, 2), 7)):
        label = f"{dtype}{list(shape)} groups {groups}"
        x, dy = draw(rng, dtype, shape), draw(rng, dtype, shape)
        gamma, beta = (draw(rng, dtype, (shape[1],)) for _ in range(2))
        op = GroupNormBackwardInput(num_groups=groups, eps=1e-2)
        yield Sample(op, (x, gamma, beta, dy), label, tolerance=tolerance)
        for op in (GroupNormBackwardGamma, GroupNormBackwardBeta):
            made = op(num_groups=groups, eps=1e-2)
            yield Sample(made, (x, dy), label, tolerance=tolerance)
    for shape in ((3, 63), (0, 2), (2, 1, 1)):
        x, dy = draw(rng, dtype, shape), draw(rng, dtype, shape)
        gamma, beta, mean = (draw(rng, dtype, shape[-1:]) for _ in range(3))
        variance = draw(rng, dtype, shape[-1:], low=0.5, high=2.0)
        arrays = (x, gamma, beta, mean, variance, dy)
        yield Sample(BatchNormInferenceBackward(), arrays, f"{dtype}{list(shape)}")
    for shape, small in (((2, 5, 63), (2, 1, 63)), ((1, 2), (1,)), ((0, 3), (3,))):
        for rms in (False, True):
            arrays = tuple(draw(rng, dtype, s) for s in (shape, small, small, shape))
            op = AdaLayerNormBackward(rms=rms)
            yield Sample(op, arrays, f"{dtype}{list(shape)} rms={rms}", tolerance=tolerance)
    for shape, small in (((2, 5, 3), (2, 1, 3)), ((1, 2), (1,)), ((0, 3), (3,)), ((4,), (4,))):
        arrays = tuple(draw(rng, dtype, s) for s in (shape, shape, small, shape))
        yield Sample(GatedResidualBackward(), arrays, f"{dtype}{list(shape)}")


def _convolutions(rng: np.random.Generator, dtype: DType) -> Iterator[Sample]:
    tolerance = SUMS if dtype is DType.F32 else None
    for shape, kernel, attributes in CONVOLUTIONS:
        flat = len(shape) == 4
        ones = (1,) * (len(shape) - 2)
        conv = {"stride": ones, "padding": (0,) * len(ones), "dilation": ones, **attributes}
        x, w = draw(rng, dtype, shape), draw(rng, dtype, kernel)
        places = Conv(**conv).infer(_type(x), _type(w)).shape
        dy = draw(rng, dtype, tuple(int(n) for n in places))
        label = f"{dtype}{list(shape)}{list(kernel)} {attributes}"
        op = (Conv2dBackwardInput if flat else Conv3dBackwardInput)(
            input_size=shape[2:], **attributes
        )
        yield Sample(op, (dy, w), label, tolerance=tolerance)
        op = (Conv2dBackwardWeight if flat else Conv3dBackwardWeight)(
            kernel=kernel[2:], **attributes
        )
        yield Sample(op, (x, dy), label, tolerance=tolerance)
    for shape, kernel, stride, padding in (
        ((2, 3, 6, 7), (2, 3), (2, 1), (0, 1)),
        ((1, 1, 4, 4), (1, 1), (1, 1), (0, 0)),
        ((0, 1, 4, 4), (2, 2), (2, 2), (0, 0)),
    ):
        yield _pool(rng, dtype, shape, kernel=kernel, stride=stride, padding=padding)
    cube = {"kernel": (2, 2, 3), "stride": (2, 1, 1), "padding": (1, 0, 1)}
    yield _pool(rng, dtype, (1, 2, 4, 3, 5), **cube)


def _pool(
    rng: np.random.Generator,
    dtype: DType,
    shape: tuple[int, ...],
    **attributes: tuple[int, ...],
) -> Sample:
    sizes = zip(shape[2:], *attributes.values(), strict=True)
    places = [(n + 2 * pad - k) // step + 1 for n, k, step, pad in sizes]
    # Few different numbers, so that windows have several largest elements.
    x = rng.integers(0, 4, shape).astype(dtype.numpy)
    op = (MaxPool2dBackward if len(shape) == 4 else MaxPool3dBackward)(**attributes)
    return Sample(op, (x, draw(rng, dtype, (*shape[:2], *places))), f"{dtype}{list(shape)}")


def _lookups(rng: np.random.Generator, dtype: DType) -> Iterator[Sample]:
    for shape in ((0,), (1, 3), (4, 65)):
        for exclusive, reverse in ((False, False), (True, False), (False, True)):
            op = CumsumBackward(axis=len(shape) - 1, exclusive=exclusive, reverse=reverse)
            x = draw(rng, dtype, shape, low=0.5, high=3.0)  # sums that do not cancel
            yield Sample(op, (x,), f"{dtype}{list(shape)} {exclusive}")
    for axis, shape, picked in ((0, (5, 3), (7,)), (1, (2, 4, 3), (2, 3)), (0, (3,), ())):
        rows = shape[axis]
        indices = rng.integers(-1, rows + 1, picked).astype(np.int32)
        dy = draw(rng, dtype, (*shape[:axis], *picked, *shape[axis + 1 :]))
        op = GatherBackward(rows=rows, axis=axis)
        yield Sample(op, (dy, np.asarray(indices)), f"{dtype}{list(shape)} axis {axis}")
    none = np.zeros((0,), np.int64)
    yield Sample(GatherBackward(rows=3), (draw(rng, dtype, (0, 2)), none), f"{dtype} nothing read")
    for shape, n_rot, layout in (((2, 3, 2, 8), 8, "bshd"), ((1, 2, 3, 8), 6, "bhsd")):
        for style in RopeStyle:
            op = RopeBackward(head_dim=8, n_rot=n_rot, style=style, layout=layout)
            tables = (draw(rng, dtype, (3, n_rot // 2), low=-1.0, high=1.0) for _ in range(2))
            yield Sample(op, (draw(rng, dtype, shape), *tables), f"{dtype}{list(shape)} {layout}")


def _losses(rng: np.random.Generator, dtype: DType) -> Iterator[Sample]:
    for shape in ((0, 4), (1, 1), (5, 63), (2, 3, 5)):
        logits, targets = draw(rng, dtype, shape), draw(rng, dtype, shape, low=0.0, high=1.0)
        labels = rng.integers(-1, shape[-1] + 1, shape[:-1]).astype(np.int32)
        d_loss = draw(rng, dtype, shape[:-1])
        for given in (labels, targets):
            label = f"{dtype}{list(shape)} {given.dtype}"
            yield Sample(SoftmaxCrossEntropyBackward(), (logits, given, d_loss), label)


def _delta(rng: np.random.Generator, dtype: DType, length: int, carry: bool) -> Sample:
    tokens, state = (2, length, 2, 4), (2, 2, 4, 4)
    q, k, v, g, dy = (draw(rng, dtype, tokens, low=-1.0, high=1.0) for _ in range(5))
    beta = draw(rng, dtype, tokens[:3], low=0.0, high=1.0)
    g = -abs(g if carry else g[..., 0])
    op = GatedDeltaNetBackward(state_size=4, carry_state=carry, gate_per_channel=carry)
    states = [draw(rng, dtype, state, low=-1.0, high=1.0) for _ in range(2)] if carry else []
    # Some forty products in a row for each number, all rounded to f32.
    tolerance = {DType.F32: Tolerance(2e-5, 2e-4), DType.F64: Tolerance(1e-11, 1e-10)}.get(dtype)
    arrays = (q, k, v, g, beta, dy, *states)
    return Sample(op, arrays, f"{dtype} length {length} carry {carry}", tolerance=tolerance)


def step_gradient(dtype: DType, *, same: bool = False) -> Graph:
    """The gradient of the step carry · x + s, for slices x[3] and s[]."""
    types = (f"{dtype}[3]", f"{dtype}[3]", f"{dtype}[]", f"{dtype}[3]")
    leaves = _leaves(types)
    carry, x, _, d = leaves
    outputs = (d * x, d * carry, d.sum())
    return Graph(leaves, (), outputs[:1] if same else outputs, name="gradient")


def _scans(rng: np.random.Generator, dtype: DType, length: int) -> Iterator[Sample]:
    body = step_gradient(dtype)
    init, trajectory = draw(rng, dtype, (3,)), draw(rng, dtype, (length, 3))
    xs = (draw(rng, dtype, (length, 3), low=-1.0, high=1.0), draw(rng, dtype, (length,)))
    # Steps round to the narrow dtype, as the body says; XLA may keep more digits between them.
    loose = {DType.BF16: Tolerance(0.06, 0.04), DType.F16: Tolerance(8e-3, 5e-3)}.get(dtype)
    for saved in (False, True):
        upstream = draw(rng, dtype, (length, 3) if saved else (3,), low=-1.0, high=1.0)
        arrays, label = (init, trajectory, upstream, *xs), f"{dtype} length {length} {saved}"
        op = ScanBackward(body_vjp=body, length=length, save_trajectory=saved)
        yield Sample(op, arrays, label, tolerance=loose)
        for index in range(2):
            op = ScanBackwardXs(body_vjp=body, length=length, save_trajectory=saved, xs_index=index)
            yield Sample(op, arrays, label, tolerance=loose)


def _eigh(rng: np.random.Generator, dtype: DType, shape: tuple[int, ...]) -> Sample:
    x = draw(rng, dtype, shape)
    _, v = np.linalg.eigh(x + np.swapaxes(x, -1, -2))
    # Eigenvalues well apart: the gradient divides by their distances.
    apart = np.arange(shape[-1], dtype=dtype.numpy) + draw(rng, dtype, shape[:-1], low=0, high=0.5)
    arrays = (v.astype(dtype.numpy), apart, draw(rng, dtype, shape), draw(rng, dtype, shape[:-1]))
    return Sample(EighBackward(), arrays, f"{dtype}{list(shape)}", tolerance=CHAINS[dtype])


def _log_mel(rng: np.random.Generator, dtype: DType, shape: tuple[int, ...]) -> Sample:
    spectrum = draw(rng, dtype, shape, low=0.5, high=3.0)
    # One frame below the maximum less 8 decades, and one without power.
    spectrum[..., :1, :] *= 1e-5
    spectrum[..., 1:2, :] *= 1e-7 if len(shape) == 3 else 1.0
    filters = draw(rng, dtype, (3, shape[-1] // 2), low=0.1, high=1.0)
    arrays = (spectrum, filters, draw(rng, dtype, (*shape[:-1], 3)))
    return Sample(LogMelBackward(), arrays, f"{dtype}{list(shape)}", tolerance=CHAINS[dtype])


def error_samples() -> Iterator[ErrorSample]:
    for op in (ReluBackward, _make(ActivationBackward, kind=Activation.SILU)):
        yield ErrorSample(op, ("f32[2]", "f32[3]"), ShapeError, "C1", "dy")
        yield ErrorSample(op, ("f32[2]", "f16[2]"), DTypeError, "C2", "f16[2]")
        yield ErrorSample(op, ("i32[2]", "i32[2]"), DTypeError, "C3", "float")
    yield from _norm_errors()
    yield from _convolution_errors()
    yield ErrorSample(_make(CumsumBackward, axis=2), ("f32[2]",), ShapeError, "C1", "cumsum [C1]")
    gather = _make(GatherBackward, rows=3)
    yield ErrorSample(gather, ("f32[2, 4]", "f32[2]"), DTypeError, "C1", "integers")
    far = _make(GatherBackward, rows=3, axis=3)
    yield ErrorSample(far, ("f32[2, 4]", "i32[2]"), ShapeError, "C1", "gather [C2]")
    yield ErrorSample(gather, ("f32[2, 4]", "i32[3]"), ShapeError, "C2", "dy is required")
    rope = _make(RopeBackward, head_dim=4, n_rot=4)
    tables = ("f32[2, 2]", "f32[2, 2]")
    yield ErrorSample(rope, ("f32[1, 2, 3, 5]", *tables), ShapeError, "C1", "rope [C3]")
    mel = LogMelBackward
    spectrum = ("f32[2, 6]", "f32[4, 3]", "f32[2, 4]")
    yield ErrorSample(mel, ("f32[2, 6]", "f32[4, 6]", "f32[2, 4]"), ShapeError, "C1", "log_mel")
    yield ErrorSample(mel, (*spectrum[:2], "f32[2, 3]"), ShapeError, "C2", "dy")
    square = ComplexNormSqBackward
    yield ErrorSample(square, ("f32[2]", "f32[2]"), DTypeError, "C1", "complex")
    yield ErrorSample(square, ("c64[2]", "f64[2]"), DTypeError, "C2", "f32[2]")
    yield ErrorSample(square, ("c64[2]", "f32[3]"), ShapeError, "C2", "f32[3]")
    loss = SoftmaxCrossEntropyBackward
    yield ErrorSample(loss, ("f32[2, 3]", "i32[3]", "f32[2]"), ShapeError, "C1", "i32[3]")
    yield ErrorSample(loss, ("f32[2, 3]", "f32[2]", "f32[2]"), ShapeError, "C1", "f32[2]")
    yield ErrorSample(loss, ("f32[2, 3]", "i32[2]", "f32[3]"), ShapeError, "C2", "d_loss")
    symbolic = ("f32[a, 3]", "i32[a]", "f32[b]")
    yield ErrorSample(loss, symbolic, InconclusiveDimError, "C2", "f32[b]")
    yield from _delta_errors()
    for kind in (ScanBackward, ScanBackwardXs):
        yield from _scan_errors(kind)
    matrix, values = "f32[2, 3, 3]", "f32[2, 3]"
    eigh = EighBackward
    yield ErrorSample(eigh, ("f32[3]", "f32[]", "f32[3]", "f32[]"), ShapeError, "C1", "f32[3]")
    wide = "f32[2, 3]"
    yield ErrorSample(eigh, (wide, "f32[2]", wide, "f32[2]"), ShapeError, "C1", "[..., n, n]")
    yield ErrorSample(eigh, (matrix, "f64[2, 3]", matrix, values), DTypeError, "C2", "f64[2, 3]")
    yield ErrorSample(eigh, (matrix, values, "f32[3, 3]", values), ShapeError, "C3", "dv")
    yield ErrorSample(eigh, (matrix, values, matrix, "f32[3]"), ShapeError, "C3", "dw")


def _norm_errors() -> Iterator[ErrorSample]:
    x, vector = "f32[2, 4]", "f32[4]"
    bad, wrong = "f32[3]", "f16[2, 4]"
    layer = LayerNormBackwardInput
    yield ErrorSample(layer, (x, bad, x), ShapeError, "C1", "layer_norm [C2]")
    yield ErrorSample(_make(layer, eps=0.0), (x, vector, x), ShapeError, "C1", "got 0.0")
    yield ErrorSample(layer, (x, vector, wrong), DTypeError, "C2", "dy is required")
    gain = LayerNormBackwardGamma
    yield ErrorSample(_make(gain, axis=2), (x, x), ShapeError, "C1", "axis")
    yield ErrorSample(gain, (x, "f32[2, 3]"), ShapeError, "C2", "f32[2, 3]")
    for op in (RmsNormBackwardInput, RmsNormBackwardGamma, RmsNormBackwardBeta):
        yield ErrorSample(op, (x, vector, bad, x), ShapeError, "C1", "beta")
        yield ErrorSample(op, (x, vector, vector, "f32[4, 2]"), ShapeError, "C2", "dy")
    groups = _make(GroupNormBackwardInput, num_groups=2)
    yield ErrorSample(groups, (x, bad, vector, x), ShapeError, "C1", "gamma")
    yield ErrorSample(groups, (x, vector, vector, "f32[2]"), ShapeError, "C2", "dy")
    for op in (GroupNormBackwardGamma, GroupNormBackwardBeta):
        yield ErrorSample(_make(op, num_groups=3), (x, x), ShapeError, "C1", "divide C = 4")
        yield ErrorSample(_make(op, num_groups=2), (x, "f32[4]"), ShapeError, "C2", "dy")
    vectors = (vector,) * 4
    batch = BatchNormInferenceBackward
    yield ErrorSample(batch, (x, bad, *vectors[1:], x), ShapeError, "C1", "gamma")
    yield ErrorSample(batch, (x, *vectors, "f32[3, 4]"), ShapeError, "C2", "dy")
    gated = GatedResidualBackward
    yield ErrorSample(gated, (x, x, bad, x), ShapeError, "C1", "gate")
    yield ErrorSample(gated, (x, x, vector, vector), ShapeError, "C2", "dout")
    ada = AdaLayerNormBackward
    yield ErrorSample(ada, (x, bad, vector, x), ShapeError, "C1", "scale")
    yield ErrorSample(ada, (x, vector, vector, wrong), DTypeError, "C2", "dy")


def _convolution_errors() -> Iterator[ErrorSample]:
    for dims_, by_input, by_weight, by_pool in (
        (2, Conv2dBackwardInput, Conv2dBackwardWeight, MaxPool2dBackward),
        (3, Conv3dBackwardInput, Conv3dBackwardWeight, MaxPool3dBackward),
    ):
        tail = ", 4" * (dims_ - 1)
        x, w, dy = f"f32[1, 2, 4{tail}]", f"f32[3, 2{', 1' * dims_}]", f"f32[1, 3, 4{tail}]"
        size, kernel = (4,) * dims_, (1,) * dims_
        none = (0,) * dims_
        back = _make(by_input, input_size=size)
        still = _make(by_input, input_size=size, stride=none)
        yield ErrorSample(still, (dy, w), ShapeError, "C1", "conv [C2]")
        yield ErrorSample(back, (f"f32[1, 4, 4{tail}]", w), ShapeError, "C2", "dy")
        yield ErrorSample(back, ("f32[1, 3, 4]", w), ShapeError, "C3", "f32[1, 3, 4]")
        yield ErrorSample(_make(by_input, input_size=(4,)), (dy, w), ShapeError, "C3", "1 entries")
        back = _make(by_weight, kernel=kernel)
        still = _make(by_weight, kernel=kernel, dilation=none)
        yield ErrorSample(still, (x, dy), ShapeError, "C1", "conv [C2]")
        split = _make(by_weight, kernel=kernel, groups=0)
        yield ErrorSample(split, (x, dy), ShapeError, "C1", "conv [C2]")
        yield ErrorSample(back, (x, f"f32[1, 3, 3{tail}]"), ShapeError, "C2", "dy")
        yield ErrorSample(_make(by_weight, kernel=none), (x, dy), ShapeError, "C3", "kernel")
        pool = _make(by_pool, kernel=kernel, stride=kernel)
        still = _make(by_pool, kernel=kernel, stride=none)
        yield ErrorSample(still, (x, x), ShapeError, "C1", "pool [C2]")
        yield ErrorSample(pool, (x, dy), ShapeError, "C2", "dy")
        yield ErrorSample(pool, ("f32[1, 2, 4]", "f32[1, 2, 4]"), ShapeError, "C3", "rank")
        integers = x.replace("f32", "i32")
        yield ErrorSample(pool, (integers, integers), DTypeError, "C1", "floats")


def _delta_errors() -> Iterator[ErrorSample]:
    token, gate, state = "f32[1, 4, 2, 3]", "f32[1, 4, 2]", "f32[1, 2, 3, 3]"
    good = (token, token, token, gate, gate)
    op = _make(GatedDeltaNetBackward, state_size=3)
    carried = _make(GatedDeltaNetBackward, state_size=3, carry_state=True)
    yield ErrorSample(op, (token, *good[:4], token), ShapeError, "C1", "gated_delta_net [C1]")
    yield ErrorSample(op, (*good, gate), ShapeError, "C2", "dy")
    yield ErrorSample(carried, (*good, token, state, token), ShapeError, "C2", "d_last")
    yield ErrorSample(carried, (*good, token, state), ShapeError, "C3", "got none")
    yield ErrorSample(op, (*good, token, state, state), ShapeError, "C3", "carry_state=False")


def _scan_errors(kind: type[Op]) -> Iterator[ErrorSample]:
    body = step_gradient(DType.F32)
    good = ("f32[3]", "f32[5, 3]", "f32[3]", "f32[5, 3]", "f32[5]")
    op = _make(kind, body_vjp=body, length=5)
    yield ErrorSample(op, ("f32[3]", "f32[4, 3]", *good[2:]), ShapeError, "C1", "trajectory")
    yield ErrorSample(op, (*good[:3], "f32[4, 3]", good[4]), ShapeError, "C1", "xs[0]")
    yield ErrorSample(op, ("i32[3]", *good[1:]), DTypeError, "C1", "i32[3]")
    saved = _make(kind, body_vjp=body, length=5, save_trajectory=True)
    yield ErrorSample(saved, good, ShapeError, "C2", "upstream")
    yield ErrorSample(op, good[:4], ShapeError, "C3", "body_vjp")
    fewer = _make(kind, body_vjp=step_gradient(DType.F32, same=True), length=5)
    yield ErrorSample(fewer, good, ShapeError, "C4", "(f32[3])")
    if kind is ScanBackwardXs:
        far = _make(kind, body_vjp=body, length=5, xs_index=2)
        yield ErrorSample(far, good, ShapeError, "C5", "got 2")


def symbolic_samples() -> Iterator[SymbolicSample]:
    from rlx import dims

    b, h = dims.symbol("b"), dims.symbol("h")
    yield _symbolic(ReluBackward(), ("f32[b]", "f32[b]"))
    silu = ActivationBackward(kind=Activation.SILU)
    yield _symbolic(silu, ("f32[b]", "f32[b]"))
    x, vector = "f32[b, s, d]", "f32[d]"
    yield _symbolic(LayerNormBackwardInput(), (x, vector, x))
    yield _symbolic(LayerNormBackwardGamma(), (x, x))
    for op in (RmsNormBackwardInput, RmsNormBackwardGamma, RmsNormBackwardBeta):
        yield _symbolic(op(), (x, vector, vector, x))
    image, channels = "f32[b, 4, s]", "f32[4]"
    groups = GroupNormBackwardInput(num_groups=2)
    yield _symbolic(groups, (image, channels, channels, image))
    for op in (GroupNormBackwardGamma, GroupNormBackwardBeta):
        yield _symbolic(op(num_groups=2), (image, image))
    yield _symbolic(BatchNormInferenceBackward(), (x, *(vector,) * 4, x))
    yield _symbolic(AdaLayerNormBackward(), (x, "f32[b, 1, d]", vector, x))
    yield _symbolic(
        Conv2dBackwardInput(input_size=(h, 6), padding=(1, 1)),
        ("f32[b, 4, h, 6]", "f32[4, 2, 3, 3]"),
    )
    yield _symbolic(
        Conv2dBackwardWeight(kernel=(3, 3), padding=(1, 1)),
        ("f32[b, 2, h, 6]", "f32[b, 4, h, 6]"),
    )
    yield _symbolic(
        Conv3dBackwardInput(input_size=(h, 6, 6)), ("f32[b, 4, h, 6, 6]", "f32[4, 2, 1, 1, 1]"),
    )  # fmt: skip
    yield _symbolic(
        Conv3dBackwardWeight(kernel=(1, 1, 1)), ("f32[b, 2, h, 6, 6]", "f32[b, 4, h, 6, 6]"),
    )  # fmt: skip
    pool = MaxPool2dBackward(kernel=(1, 2), stride=(1, 2))
    yield _symbolic(pool, ("f32[b, 2, h, 6]", "f32[b, 2, h, 3]"))
    pool = MaxPool3dBackward(kernel=(1, 1, 2), stride=(1, 1, 2))
    yield _symbolic(pool, ("f32[b, 2, h, 6, 6]", "f32[b, 2, h, 6, 3]"))
    yield _symbolic(CumsumBackward(axis=1), ("f32[b, s]",))
    yield _symbolic(GatherBackward(rows=b + 1), ("f32[b, d]", "i32[b]"))
    gated = GatedResidualBackward()
    yield _symbolic(gated, (x, x, "f32[b, 1, d]", x))
    rope = RopeBackward(head_dim=8, n_rot=8)
    yield _symbolic(rope, ("f32[b, s, 2, 8]", "f32[s, 4]", "f32[s, 4]"))
    yield _symbolic(ComplexNormSqBackward(), ("c64[b]", "f32[b]"))
    loss = SoftmaxCrossEntropyBackward()
    yield _symbolic(loss, ("f32[b, d]", "i32[b]", "f32[b]"))
    token, gate = "f32[b, s, h, 3]", "f32[b, s, h]"
    delta = GatedDeltaNetBackward(state_size=3)
    yield _symbolic(delta, (token, token, token, gate, gate, token))
    body = step_gradient(DType.F32)
    types = ("f32[3]", "f32[b, 3]", "f32[3]", "f32[b, 3]", "f32[b]")
    yield _symbolic(ScanBackward(body_vjp=body, length=b), types)
    yield _symbolic(ScanBackwardXs(body_vjp=body, length=b, xs_index=1), types)
    yield _symbolic(LogMelBackward(), ("f32[b, s, 6]", "f32[d, 3]", "f32[b, s, d]"))
    matrix = "f32[b, 3, 3]"
    yield _symbolic(EighBackward(), (matrix, "f32[b, 3]", matrix, "f32[b, 3]"))


def _type(array: Array) -> Any:
    return as_type(f"{as_dtype(array.dtype)}{list(array.shape)}")


def _leaves(types: Sequence[str]) -> list[Value]:
    parsed = [as_type(t) for t in types]
    return [Input(name=f"x{i}", dtype=t.dtype, shape=t.shape)() for i, t in enumerate(parsed)]


def _symbolic(op: Op, types: tuple[str, ...]) -> SymbolicSample:
    symbols = {name for t in types for name in as_type(t).symbols}
    sizes = {"b": 2, "s": 3, "d": 4, "h": 5}
    return SymbolicSample(op, types, {name: sizes[name] for name in sorted(symbols)})


def _make(op: type[Op], **attributes: Any) -> Callable[[], Op]:
    return lambda: op(**attributes)
