"""Samples of blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from rlx.dtypes import DType
from rlx.errors import DTypeError, ShapeError
from rlx.ir.op import Op
from rlx.ops.activation_kinds import Activation
from rlx.ops.attention import MaskKind
from rlx.ops.blocks import (
    AttentionBlock,
    DepthwiseConv1dCausal,
    Linear,
    LinearFused,
    LlamaDecoderBlock,
    ResidualRmsNorm,
    SharedLinearPair,
    SwigluBlock,
)
from rlx.tolerances import Tolerance
from tests.samples.base import FLOATS, ErrorSample, Sample, SymbolicSample, draw
from tests.samples.fused import LAYERS

# A sum of three roundings at the size of the sum, 2^-8 or 2^-11 each.
SUMS = {DType.BF16: Tolerance(2e-2, 1.6e-2), DType.F16: Tolerance(3e-3, 2e-3)}
LLAMA_INPUTS = 14


def samples(rng: np.random.Generator) -> Iterator[Sample]:
    for dtype in FLOATS:
        yield from _linear(rng, dtype)
        yield from _layers(rng, dtype)
    for dtype in (DType.F32, DType.BF16):
        yield from _decoders(rng, dtype)


def _linear(rng: np.random.Generator, dtype: DType) -> Iterator[Sample]:
    for shape, size in (((2, 3, 8), 5), ((0, 4), 1), ((65,), 2)):
        weight = draw(rng, dtype, (shape[-1], size), low=-0.1, high=0.1)
        x, bias = draw(rng, dtype, shape), draw(rng, dtype, (size,))
        label, bound = f"{dtype}{list(shape)}", SUMS.get(dtype)
        yield Sample(Linear(), (x, weight), label, tolerance=bound)
        op = Linear(activation=Activation.SILU, has_bias=True)
        yield Sample(op, (x, weight, bias), label, tolerance=bound)
        op = LinearFused(activation=Activation.GELU)
        yield Sample(op, (x, weight, bias), label, tolerance=bound)
        other = draw(rng, dtype, (shape[-1], 3), low=-0.1, high=0.1)
        for slot in (0, 1):
            pair = SharedLinearPair(slot=slot)
            yield Sample(pair, (x, weight, other), f"{label} {slot}", tolerance=bound)


def _layers(rng: np.random.Generator, dtype: DType) -> Iterator[Sample]:
    bound = LAYERS.get(dtype)
    for shape, inner, outer in (((2, 3, 8), 5, 6), ((0, 4), 3, 4), ((7,), 9, 1)):
        up, gate = (draw(rng, dtype, (shape[-1], inner), low=-0.4, high=0.4) for _ in range(2))
        down = draw(rng, dtype, (inner, outer), low=-0.4, high=0.4)
        arrays = (draw(rng, dtype, shape), up, gate, down)
        yield Sample(SwigluBlock(), arrays, f"{dtype}{list(shape)}", tolerance=bound)
    for shape in ((2, 3, 8), (0, 4), (63,)):
        arrays = tuple(draw(rng, dtype, s) for s in (shape, shape, shape[-1:], shape[-1:]))
        op = ResidualRmsNorm(eps=1e-3)
        yield Sample(op, arrays, f"{dtype}{list(shape)}", tolerance=bound)
    q, k, v = (draw(rng, dtype, (2, n, 2, 4), low=-1, high=1) for n in (3, 5, 5))
    lengths = np.array([2, 5], np.int32)
    for kind, extra in ((MaskKind.CAUSAL, ()), (MaskKind.LENGTHS, (lengths,))):
        attention = AttentionBlock(num_heads=2, head_dim=4, mask_kind=kind)
        yield Sample(attention, (q, k, v, *extra), f"{dtype} {kind.value}", tolerance=bound)
    for batch, length, channels, size, rank in (
        (2, 5, 3, 4, 2), (1, 1, 1, 1, 3), (2, 65, 2, 3, 3), (0, 3, 2, 2, 2), (1, 0, 2, 2, 2),
    ):  # fmt: skip
        kernel = (channels, size) if rank == 2 else (channels, 1, size)
        shapes = ((batch, length, channels), kernel, (batch, size - 1, channels))
        arrays = tuple(draw(rng, dtype, shape) for shape in shapes)
        op = DepthwiseConv1dCausal(kernel_size=size)
        yield Sample(op, arrays, f"{dtype}{list(shapes[0])}", tolerance=SUMS.get(dtype))


def llama_shapes(op: Any, batch: int, length: int, size: int, inner: int) -> list[Any]:
    """Shapes of a decoder block's inputs without the mask."""
    width, narrow = op.num_heads * op.head_dim, op.num_kv_heads * op.head_dim
    half = (op.n_rot or op.head_dim) // 2
    return [
        (batch, length, size), (size,), (size,), (size, width), (size, narrow), (size, narrow),
        (width, size), (size,), (size,), (size, inner), (size, inner), (inner, size),
        (length, half), (length, half),
    ]  # fmt: skip


def llama_arrays(rng: np.random.Generator, op: Any, dtype: DType, *sizes: int) -> list[Any]:
    """Arrays of a decoder block: B, S, E and F are the sizes."""
    shapes = llama_shapes(op, *sizes)
    arrays = [draw(rng, dtype, shape, low=-0.5, high=0.5) for shape in shapes[:-2]]
    angles = rng.uniform(0, 6, shapes[-1])
    return [*arrays, np.cos(angles).astype(dtype.numpy), np.sin(angles).astype(dtype.numpy)]


def _decoders(rng: np.random.Generator, dtype: DType) -> Iterator[Sample]:
    for changes in (
        {},
        {"num_kv_heads": 4, "n_rot": 2},
        {"mask_kind": MaskKind.SLIDING_WINDOW, "window": 2},
        {"num_kv_heads": 1, "mask_kind": MaskKind.CUSTOM},
    ):
        given: dict[str, Any] = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 4, **changes}
        op = LlamaDecoderBlock(**given, eps=1e-3)
        arrays = llama_arrays(rng, op, dtype, 2, 5, 6, 9)
        if op.mask_kind is MaskKind.CUSTOM:
            arrays.append(rng.integers(0, 2, (2, 1, 5, 5)).astype(np.bool_))
        yield Sample(op, tuple(arrays), f"{dtype} {changes}", tolerance=LAYERS.get(dtype))


def error_samples() -> Iterator[ErrorSample]:
    good = ("f32[2, 4]", "f32[4, 5]", "f32[5]")
    for op in (_make(Linear, has_bias=True), LinearFused):
        yield ErrorSample(op, ("f32[2, 3]", *good[1:]), ShapeError, "C1", "one K")
        yield ErrorSample(op, (good[0], "f32[4]"), ShapeError, "C1", "[K, N]")
        yield ErrorSample(op, (*good[:2], "f32[4]"), ShapeError, "C2", "bias")
        yield ErrorSample(op, (*good[:2], "f16[5]"), DTypeError, "C3", "bias")
    pair = (*good[:2], "f32[4, 3]")
    yield ErrorSample(_make(SharedLinearPair, slot=0), good, ShapeError, "C1", "[K, N]")
    yield ErrorSample(_make(SharedLinearPair, slot=2), pair, ShapeError, "C2", "got 2")
    yield ErrorSample(
        _make(SharedLinearPair, slot=1), (*pair[:2], "f16[4, 3]"), DTypeError, "C3", "weight1"
    )
    good = ("f32[2, 4]", "f32[4, 5]", "f32[4, 5]", "f32[5, 4]")
    yield ErrorSample(SwigluBlock, (*good[:3], "f32[4, 5]"), ShapeError, "C1", "one K")
    yield ErrorSample(SwigluBlock, (*good[:2], "f32[4, 6]", good[3]), ShapeError, "C2", "gate")
    yield ErrorSample(SwigluBlock, (*good[:3], "f64[5, 4]"), DTypeError, "C3", "down_weight")
    norm = ResidualRmsNorm
    good = ("f32[2, 3]", "f32[2, 3]", "f32[3]", "f32[3]")
    yield ErrorSample(norm, ("f32[]",), ShapeError, "C1", "one axis")
    yield ErrorSample(norm, (good[0], "f32[3]"), ShapeError, "C1", "residual")
    yield ErrorSample(norm, (*good[:3], "f32[2]"), ShapeError, "C2", "beta")
    yield ErrorSample(norm, ("i32[2, 3]",), DTypeError, "C3", "i32[2, 3]")
    yield ErrorSample(_make(norm, eps=-1.0), good, ShapeError, "C4", "-1.0")
    conv = _make(DepthwiseConv1dCausal, kernel_size=3)
    good = ("f32[1, 5, 2]", "f32[2, 3]", "f32[1, 2, 2]")
    yield ErrorSample(conv, ("f32[5, 2]",), ShapeError, "C1", "f32[5, 2]")
    yield ErrorSample(conv, ("f32[1, 5, c]",), ShapeError, "C1", "C a number")
    yield ErrorSample(conv, (good[0], "f32[3, 2]"), ShapeError, "C2", "weight")
    none = _make(DepthwiseConv1dCausal, kernel_size=0)
    yield ErrorSample(none, good, ShapeError, "C2", "got 0")
    yield ErrorSample(conv, (*good[:2], "f32[1, 3, 2]"), ShapeError, "C3", "left_pad")
    yield ErrorSample(conv, (good[0], "f16[2, 3]"), DTypeError, "C4", "weight")
    yield from _decoder_errors()


def _decoder_errors() -> Iterator[ErrorSample]:
    def llama(**changes: Any) -> Callable[[], Op]:
        given = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 4, **changes}
        return lambda: LlamaDecoderBlock(**given)

    good = [f"f32{list(shape)}" for shape in llama_shapes(llama()(), 1, 3, 6, 9)]

    def other(position: int, spec: str) -> tuple[str, ...]:
        return (*good[:position], spec, *good[position + 1 :])

    for changes, match in (
        ({"num_kv_heads": 3}, "4, 3, 4"),
        ({"head_dim": 0}, "4, 2, 0"),
        ({"eps": 0.0}, "0.0"),
        ({"window": 2}, "2 with causal"),
        ({"mask_kind": MaskKind.SLIDING_WINDOW}, "None with sliding_window"),
    ):
        yield ErrorSample(llama(**changes), tuple(good), ShapeError, "C1", match)
    yield ErrorSample(llama(), ("f32[3, 6]",), ShapeError, "C2", "[B, S, E]")
    yield ErrorSample(llama(), other(4, "f32[6, 16]"), ShapeError, "C3", "k_weight")
    yield ErrorSample(llama(), other(11, "f32[6, 9]"), ShapeError, "C3", "down_weight")
    yield ErrorSample(llama(), other(2, "f32[5]"), ShapeError, "C4", "ln1_beta")
    yield ErrorSample(llama(), other(6, "f16[16, 6]"), DTypeError, "C5", "o_weight")


def symbolic_samples() -> Iterator[SymbolicSample]:
    sizes = {"b": 2, "s": 3}
    x = "f32[b, s, 4]"
    yield SymbolicSample(Linear(has_bias=True), (x, "f32[4, 6]", "f32[6]"), sizes)
    yield SymbolicSample(LinearFused(), (x, "f32[4, 6]", "f32[6]"), sizes)
    yield SymbolicSample(SharedLinearPair(slot=1), (x, "f32[4, 6]", "f32[4, 3]"), sizes)
    yield SymbolicSample(SwigluBlock(), (x, "f32[4, 6]", "f32[4, 6]", "f32[6, 4]"), sizes)
    yield SymbolicSample(ResidualRmsNorm(), (x, x, "f32[4]", "f32[4]"), sizes)
    qkv = ("f32[b, s, 2, 4]",) * 3
    yield SymbolicSample(AttentionBlock(num_heads=2, head_dim=4), qkv, sizes)
    conv = DepthwiseConv1dCausal(kernel_size=3)
    yield SymbolicSample(conv, (x, "f32[4, 3]", "f32[b, 2, 4]"), sizes)
    llama = LlamaDecoderBlock(num_heads=2, num_kv_heads=1, head_dim=4)
    shapes = [f"f32{list(shape)}" for shape in llama_shapes(llama, 7, 5, 4, 9)]
    types = tuple(s.replace("7, 5, ", "b, s, ").replace("[5, 2]", "[s, 2]") for s in shapes)
    yield SymbolicSample(llama, types, sizes)


def _make(op: type[Op], **attributes: Any) -> Callable[[], Op]:
    return lambda: op(**attributes)
