"""Samples of fused ops: products with what follows, residual norms, transformer parts, regions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from rlx.dtypes import DType
from rlx.errors import DTypeError, InconclusiveDimError, ShapeError
from rlx.ir.graph import Graph, Value
from rlx.ir.op import Op
from rlx.ir.operators import constant
from rlx.ops.activation_kinds import Activation
from rlx.ops.fused import (
    BatchElementwiseRegion,
    ElementwiseRegion,
    FusedAttentionBlock,
    FusedConvBiasAct,
    FusedMatmulBiasAct,
    FusedMatmulResidual,
    FusedResidualLn,
    FusedResidualRmsNorm,
    FusedSwiglu,
    FusedTransformerLayer,
    RegionPrologue,
    TransformRegion,
    TransformStep,
)
from rlx.ops.io import Input
from rlx.tolerances import Tolerance
from rlx.types import as_type
from tests.samples.base import FLOATS, ErrorSample, Sample, SymbolicSample, draw

# Intermediate results are rounded to the narrow dtype at other places than XLA's fusions round
# them: near zero a result is off by some units of the largest intermediate · 2^-8 or 2^-11.
LAYERS = {DType.BF16: Tolerance(6e-2, 3e-2), DType.F16: Tolerance(8e-3, 4e-3)}
UNBOUNDED = (Activation.LOG, Activation.SQRT, Activation.RSQRT, Activation.TAN, Activation.RECIP)
STEPPED = (Activation.ROUND, Activation.FLOOR, Activation.CEIL, Activation.SIGN)


def samples(rng: np.random.Generator) -> Iterator[Sample]:
    for dtype in FLOATS:
        yield from _products(rng, dtype)
        yield from _norms(rng, dtype)
        yield from _layers(rng, dtype)
        yield from _regions(rng, dtype)
    yield from _activations(rng)


def _products(rng: np.random.Generator, dtype: DType) -> Iterator[Sample]:
    for shape, size in (((3, 63), 5), ((2, 3, 8), 65), ((4,), 1), ((0, 4), 2), ((2, 0), 3)):
        # small, as a result near zero keeps the roundings of sums of 63 products
        weight = draw(rng, dtype, (shape[-1], size), low=-0.1, high=0.1)
        x, bias = draw(rng, dtype, shape), draw(rng, dtype, (size,))
        label = f"{dtype}{list(shape)}"
        for kind in (None, Activation.GELU, Activation.SILU):
            yield Sample(FusedMatmulBiasAct(activation=kind), (x, weight, bias), f"{label} {kind}")
        residual = draw(rng, dtype, (*shape[:-1], size))
        yield Sample(FusedMatmulResidual(), (x, weight, residual), label)
    for shape in ((3, 130), (0, 4), (2, 0), (2,), (2, 1, 126)):
        for first in (False, True):
            x = draw(rng, dtype, shape)
            op = FusedSwiglu(gate_first=first)
            yield Sample(op, (x,), f"{dtype}{list(shape)} {first}")
    for target in (DType.F32, DType.BF16):
        x = draw(rng, dtype, (3, 6))
        yield Sample(FusedSwiglu(cast_to=target), (x,), f"{dtype} to {target}")
    for shape, kernel, op in (
        ((2, 4, 7, 5), (6, 2, 3, 2), _conv(2, groups=2, padding=(1, 0), stride=(2, 1))),
        ((1, 3, 65), (2, 3, 1), _conv(1, activation=Activation.RELU)),
        ((0, 2, 5), (3, 2, 3), _conv(1)),
        ((1, 2, 4, 4, 3), (2, 2, 2, 2, 1), _conv(3, activation=Activation.SILU)),
    ):
        x, weight = draw(rng, dtype, shape), draw(rng, dtype, kernel, low=-0.5, high=0.5)
        bias = draw(rng, dtype, kernel[:1])
        yield Sample(op, (x, weight, bias), f"{dtype}{list(shape)}")
        leaves = [_leaf(f"{dtype}{list(a.shape)}") for a in (x, weight, bias)]
        residual = draw(rng, dtype, op(*leaves).shape)
        yield Sample(op, (x, weight, bias, residual), f"{dtype}{list(shape)} residual")


def _conv(spatial: int, **changes: Any) -> FusedConvBiasAct:
    ones, zeros = (1,) * spatial, (0,) * spatial
    return FusedConvBiasAct(**{"stride": ones, "padding": zeros, "dilation": ones, **changes})


def _activations(rng: np.random.Generator) -> Iterator[Sample]:
    """Every kind; where a small error of the product would be a large one, the product is exact."""
    for kind in Activation:
        exact = kind in (*UNBOUNDED, *STEPPED)
        x, weight = draw(rng, DType.F32, (4, 6)), draw(rng, DType.F32, (6, 5))
        bias = draw(rng, DType.F32, (5,))
        if exact:
            x, weight = np.round(x) + 4, np.abs(np.round(weight)) + 1
            bias = np.round(bias) + np.float32(0.25)
        yield Sample(FusedMatmulBiasAct(activation=kind), (x, weight, bias), f"{kind.value}")


def _norms(rng: np.random.Generator, dtype: DType) -> Iterator[Sample]:
    for shape in ((4, 63), (2, 3, 65), (0, 4), (3, 0), (1, 1), (7,)):
        x, residual = draw(rng, dtype, shape), draw(rng, dtype, shape)
        vectors = [draw(rng, dtype, shape[-1:], low=-1.2, high=1.2) for _ in range(3)]
        for op in (FusedResidualLn(eps=1e-3), FusedResidualRmsNorm(eps=1e-3)):
            for count in (2, 3):
                arrays = (x, residual, *vectors[:count])
                yield Sample(op, arrays, f"{dtype}{list(shape)} {count} vectors")


def _layers(rng: np.random.Generator, dtype: DType) -> Iterator[Sample]:
    batch, length, size, heads, width, inner = 2, 5, 6, 2, 4, 9
    hidden = draw(rng, dtype, (batch, length, size), low=-1, high=1)

    def weights(*shapes: tuple[int, ...]) -> list[Any]:
        return [draw(rng, dtype, shape, low=-0.5, high=0.5) for shape in shapes]

    angles = rng.uniform(0, 6, (length, width // 2))
    tables = [np.cos(angles).astype(dtype.numpy), np.sin(angles).astype(dtype.numpy)]
    packed = heads * width
    for bias in (False, True):
        for rope in (False, True):
            op = FusedAttentionBlock(num_heads=heads, head_dim=width, has_bias=bias, has_rope=rope)
            mask = rng.integers(0, 2, (batch, length)).astype(np.bool_)
            mask[0] = False
            extras = weights((3 * packed,), (3,)) if bias else []
            extras += tables if rope else []
            arrays = (hidden, *weights((size, 3 * packed), (packed, 3)), mask, *extras)
            label = f"{dtype} bias {bias} rope {rope}"
            yield Sample(op, arrays, label, tolerance=LAYERS.get(dtype))
    for activation, bias in ((Activation.GELU, True), (Activation.RELU, False)):
        layer = FusedTransformerLayer(
            num_heads=heads, head_dim=width, activation=activation, eps=1e-3
        )
        mask = rng.uniform(0, 1, (batch, length)).astype(np.float32)
        arrays = (
            hidden, *weights((size, 3 * packed), (packed, size)), mask,
            *weights((size,), (size,), (size, inner), (inner, size), (size,), (size,)),
            *(weights((3 * packed,), (size,), (inner,), (size,)) if bias else ()),
        )  # fmt: skip
        yield Sample(layer, arrays, f"{dtype} bias {bias}", tolerance=LAYERS.get(dtype))


def _leaf(spec: str, name: str = "x") -> Value:
    declared = as_type(spec)
    return Input(name=name, dtype=declared.dtype, shape=declared.shape)()


def body(dtypes: tuple[DType | str, ...], build: Callable[..., Any]) -> Graph:
    """A region's body from a function of scalars."""
    leaves = [_leaf(f"{dtype}[]", f"x{i}") for i, dtype in enumerate(dtypes)]
    made = build(*leaves)
    return Graph(leaves, (), made if isinstance(made, tuple) else (made,), name="body")


def _regions(rng: np.random.Generator, dtype: DType) -> Iterator[Sample]:
    two = body((dtype, dtype), lambda a, b: (a * b + 1.5).tanh())
    for shapes in (
        ((3, 65), (3, 65)), ((3, 5), (5,)), ((3, 1), (3, 5)), ((3, 1), (1, 5)), ((), (2, 3)),
        ((0, 3), (1, 3)), ((1,), (1,)), ((2, 1, 4), (3, 1)), ((), ()),
    ):  # fmt: skip
        arrays = tuple(draw(rng, dtype, shape) for shape in shapes)
        yield Sample(ElementwiseRegion(body=two), arrays, f"{dtype} {shapes}")

    def choose(c: Value, a: Value, b: Value) -> tuple[Value, ...]:
        from rlx.ops.compare import Select

        picked = Select()(c, a, b.gelu())
        return picked, picked.convert(DType.BF16), a > b, constant(2, DType.I32)

    many = ElementwiseRegion(body=body((DType.BOOL, dtype, dtype), choose))
    arrays = (
        draw(rng, DType.BOOL, (4, 1)), draw(rng, dtype, (3,)), draw(rng, dtype, (2, 1, 1)),
    )  # fmt: skip
    yield Sample(many, arrays, f"{dtype} four results")
    resized = ElementwiseRegion(
        body=two, prologue=RegionPrologue.RESIZE_NEAREST_2X, prologue_input=1
    )
    arrays = (draw(rng, dtype, (3, 4, 6)), draw(rng, dtype, (2, 1, 2, 3)))
    yield Sample(resized, arrays, f"{dtype} resized")
    for count, shape, shared in ((3, (2, 5), (5,)), (1, (1,), ()), (2, (0, 3), (1, 3))):
        op = BatchElementwiseRegion(body=two, num_batch_inputs=count)
        slices = [draw(rng, dtype, shape) for _ in range(count)]
        yield Sample(op, (*slices, draw(rng, dtype, shared)), f"{dtype} {count}×{list(shape)}")
    twice = BatchElementwiseRegion(body=body((dtype,), lambda a: (a.exp(), -a)), num_batch_inputs=2)
    slices = [draw(rng, dtype, (3, 2)) for _ in range(2)]
    yield Sample(twice, tuple(slices), f"{dtype} two results")
    step = TransformStep.RESIZE_NEAREST_2X
    image = draw(rng, dtype, (1, 2, 3, 2))
    for steps in (((step, 0),), ((step, 1), (step, 2)), ((step, 0), (step, 1))):
        xs = (image, draw(rng, dtype, (2, 1, 1, 0)))
        yield Sample(TransformRegion(steps=steps), xs, f"{dtype} {[i for _, i in steps]}")


def error_samples() -> Iterator[ErrorSample]:
    yield from _product_errors()
    yield from _norm_errors()
    yield from _layer_errors()
    yield from _region_errors()


def _make(op: type[Op], **attributes: Any) -> Callable[[], Op]:
    return lambda: op(**attributes)


def _product_errors() -> Iterator[ErrorSample]:
    for op, last in ((FusedMatmulBiasAct, "f32[5]"), (FusedMatmulResidual, "f32[2, 5]")):
        good = ("f32[2, 4]", "f32[4, 5]")
        yield ErrorSample(op, ("f32[2, 3]", good[1], last), ShapeError, "C1", "one K")
        yield ErrorSample(op, (good[0], "f32[2, 4, 5]", last), ShapeError, "C1", "[K, N]")
        yield ErrorSample(op, ("f32[]", good[1], last), ShapeError, "C1", "f32[]")
        yield ErrorSample(op, ("f32[2, k]", *good[1:], last), InconclusiveDimError, "C1", "one K")
        yield ErrorSample(op, (*good, "f32[4]"), ShapeError, "C2", "got f32[4]")
        yield ErrorSample(op, (*good, last.replace("32", "16")), DTypeError, "C3", "dtype of x")
        integers = tuple(t.replace("f", "i") for t in (*good, last))
        yield ErrorSample(op, integers, DTypeError, "C3", "one of f32")
    yield ErrorSample(FusedSwiglu, ("f32[]",), ShapeError, "C1", "2·N")
    yield ErrorSample(FusedSwiglu, ("f32[2, 3]",), ShapeError, "C1", "f32[2, 3]")
    yield ErrorSample(FusedSwiglu, ("f32[n]",), InconclusiveDimError, "C1", "f32[n]")
    yield ErrorSample(FusedSwiglu, ("i32[4]",), DTypeError, "C2", "i32[4]")
    cast = _make(FusedSwiglu, cast_to=DType.I8)
    yield ErrorSample(cast, ("f32[4]",), DTypeError, "C2", "got i8")
    good = ("f32[1, 4, 5]", "f32[6, 2, 3]", "f32[6]")

    def conv(**changes: Any) -> Callable[[], Op]:
        return lambda: _conv(1, **{"groups": 2, **changes})

    for changes in ({"stride": (1, 1)}, {"stride": (0,)}, {"padding": (-1,)}, {"groups": 0}):
        (name,) = changes
        yield ErrorSample(conv(**changes), good, ShapeError, "C1", f"{name} {changes[name]}")
    yield ErrorSample(conv(), ("f32[1, 4, 5]", "f32[6, 2]", "f32[6]"), ShapeError, "C1", "rank")
    yield ErrorSample(conv(), (*good[:2], "f32[4]"), ShapeError, "C2", "got f32[4]")
    yield ErrorSample(conv(), (*good, "f32[1, 6, 5]"), ShapeError, "C3", "f32[1, 6, 3]")
    yield ErrorSample(conv(), (*good[:2], "f16[6]"), DTypeError, "C4", "bias")
    yield ErrorSample(conv(groups=1), good, ShapeError, "C5", "× 1 groups")
    odd = ("f32[1, 4, 5]", "f32[5, 2, 3]", "f32[5]")
    yield ErrorSample(conv(), odd, ShapeError, "C5", "multiple of 2")


def _norm_errors() -> Iterator[ErrorSample]:
    for op in (FusedResidualLn, FusedResidualRmsNorm):
        good = ("f32[2, 3]", "f32[2, 3]", "f32[3]", "f32[3]")
        yield ErrorSample(op, ("f32[]",) * 4, ShapeError, "C1", "f32[]")
        yield ErrorSample(op, (good[0], "f32[3]", *good[2:]), ShapeError, "C1", "residual")
        yield ErrorSample(op, (*good[:3], "f32[2]"), ShapeError, "C2", "beta")
        yield ErrorSample(op, (*good, "f32[2, 3]"), ShapeError, "C2", "bias")
        yield ErrorSample(op, (*good[:2], "f16[3]", "f32[3]"), DTypeError, "C3", "gamma")
        yield ErrorSample(_make(op, eps=0.0), good, ShapeError, "C4", "got 0.0")


def _layer_errors() -> Iterator[ErrorSample]:
    def block(**changes: Any) -> Callable[[], Op]:
        return lambda: FusedAttentionBlock(**{"num_heads": 2, "head_dim": 4, **changes})

    good = ["f32[1, 3, 6]", "f32[6, 24]", "f32[8, 5]", "bool[1, 3]"]

    def other(position: int, spec: str) -> tuple[str, ...]:
        return (*good[:position], spec, *good[position + 1 :])

    yield ErrorSample(block(num_heads=0), tuple(good), ShapeError, "C1", "got 0, 4")
    odd = block(head_dim=3, has_rope=True)
    yield ErrorSample(odd, tuple(good), ShapeError, "C1", "has_rope = True")
    yield ErrorSample(block(), other(0, "f32[3, 6]"), ShapeError, "C2", "[B, S, E]")
    yield ErrorSample(block(), other(1, "f32[6, 8]"), ShapeError, "C2", "qkv_weight")
    yield ErrorSample(block(), other(2, "f32[6, 8]"), ShapeError, "C2", "one K")
    yield ErrorSample(block(), other(3, "bool[3]"), ShapeError, "C3", "mask")
    yield ErrorSample(block(has_bias=True), tuple(good), ShapeError, "C4", "got 0")
    biased = block(has_bias=True)
    yield ErrorSample(biased, (*good, "f32[24]", "f32[6]"), ShapeError, "C4", "out_bias")
    yield ErrorSample(block(), other(1, "f16[6, 24]"), DTypeError, "C5", "qkv_weight")

    def layer(**changes: Any) -> Callable[[], Op]:
        return lambda: FusedTransformerLayer(**{"num_heads": 2, "head_dim": 4, **changes})

    good = [
        "f32[1, 3, 6]", "f32[6, 24]", "f32[8, 6]", "bool[1, 3]", "f32[6]", "f32[6]",
        "f32[6, 7]", "f32[7, 6]", "f32[6]", "f32[6]",
    ]  # fmt: skip
    yield ErrorSample(layer(head_dim=0), tuple(good), ShapeError, "C1", "got 2, 0")
    yield ErrorSample(layer(eps=0.0), tuple(good), ShapeError, "C1", "0.0")
    yield ErrorSample(layer(), other(0, "f32[3, 6]"), ShapeError, "C2", "[B, S, E]")
    yield ErrorSample(layer(), other(6, "f32[6]"), ShapeError, "C2", "fc1_weight")
    yield ErrorSample(layer(), other(7, "f32[6, 7]"), ShapeError, "C2", "fc2_weight")
    yield ErrorSample(layer(), other(3, "bool[3, 1]"), ShapeError, "C3", "mask")
    yield ErrorSample(layer(), other(5, "f32[5]"), ShapeError, "C4", "ln1_beta")
    yield ErrorSample(layer(), (*good, "f32[24]"), ShapeError, "C4", "got 11")
    yield ErrorSample(layer(), other(8, "f64[6]"), DTypeError, "C5", "ln2_gamma")


def _region_errors() -> Iterator[ErrorSample]:
    two = body(("f32", "f32"), lambda a, b: a * b)
    region = _make(ElementwiseRegion, body=two)
    yield ErrorSample(region, ("f32[3]",), ShapeError, "C1", "required to have 1 inputs")
    silent = _make(ElementwiseRegion, body=Graph((), (), ()))
    yield ErrorSample(silent, (), ShapeError, "C1", "at least one output")
    summed = body(("f32",), lambda a: a.reshape(1).sum())
    yield ErrorSample(_make(ElementwiseRegion, body=summed), ("f32[3]",), ShapeError, "C2", "<")
    yield ErrorSample(region, ("f32[3]", "f16[3]"), DTypeError, "C3", "xs[1]")
    yield ErrorSample(region, ("f32[3]", "f32[2]"), ShapeError, "C4", "f32[3], f32[2]")
    yield ErrorSample(region, ("f32[s]", "f32[2]"), InconclusiveDimError, "C4", "f32[s]")
    for changes in (
        {"prologue_input": 1},
        {"prologue": RegionPrologue.RESIZE_NEAREST_2X},
        {"prologue": RegionPrologue.RESIZE_NEAREST_2X, "prologue_input": 2},
    ):
        wrong = _make(ElementwiseRegion, body=two, **changes)
        yield ErrorSample(wrong, ("f32[3]", "f32[3]"), ShapeError, "C5", "prologue_input")
    batch = _make(BatchElementwiseRegion, body=two, num_batch_inputs=2)
    slices = ("f32[2, 3]", "f32[2, 3]")
    yield ErrorSample(batch, slices, ShapeError, "C1", "required to have 1 inputs")
    single = _make(BatchElementwiseRegion, body=summed, num_batch_inputs=1)
    yield ErrorSample(single, ("f32[3]",), ShapeError, "C2", "<")
    yield ErrorSample(batch, (*slices, "f16[3]"), DTypeError, "C3", "xs[1]")
    yield ErrorSample(batch, (slices[0], "f32[3]", "f32[3]"), ShapeError, "C4", "one shape")
    yield ErrorSample(batch, ("f32[1, 3]", "f32[1, 3]", "f32[2, 3]"), ShapeError, "C4", "a slice")
    yield ErrorSample(batch, ("f32[]",) * 3, ShapeError, "C4", "rank ≥ 1")
    none = _make(BatchElementwiseRegion, body=two, num_batch_inputs=0)
    yield ErrorSample(none, slices, ShapeError, "C4", "got 0")
    step = TransformStep.RESIZE_NEAREST_2X
    image = ("f32[1, 2, 3, 4]",)
    yield ErrorSample(_make(TransformRegion, steps=()), image, ShapeError, "C1", "1 and 0")
    later = _make(TransformRegion, steps=((step, 1),))
    yield ErrorSample(later, image, ShapeError, "C2", "0 to 0; got 1")
    first = _make(TransformRegion, steps=((step, 0),))
    yield ErrorSample(first, ("f32[3, 4]",), ShapeError, "C3", "f32[3, 4]")


def symbolic_samples() -> Iterator[SymbolicSample]:
    sizes = {"b": 2, "s": 3}
    x, weight = "f32[b, s, 4]", "f32[4, 6]"
    yield SymbolicSample(FusedMatmulBiasAct(), (x, weight, "f32[6]"), sizes)
    yield SymbolicSample(FusedMatmulResidual(), (x, weight, "f32[b, s, 6]"), sizes)
    yield SymbolicSample(FusedSwiglu(), ("f32[b, 2*s]",), sizes)
    yield SymbolicSample(_conv(1), ("f32[b, 4, s + 2]", "f32[6, 4, 3]", "f32[6]"), sizes)
    for op in (FusedResidualLn(), FusedResidualRmsNorm()):
        yield SymbolicSample(op, (x, x, "f32[4]", "f32[4]", "f32[4]"), sizes)
    block = FusedAttentionBlock(num_heads=2, head_dim=4, has_rope=True)
    tables = ("f32[s, 2]", "f32[s, 2]")
    given = (x, "f32[4, 24]", "f32[8, 5]", "bool[b, s]", *tables)
    yield SymbolicSample(block, given, sizes)
    layer = FusedTransformerLayer(num_heads=2, head_dim=4)
    vector = ("f32[4]", "f32[4]")
    given = (
        x, "f32[4, 24]", "f32[8, 4]", "bool[b, s]", *vector, "f32[4, 7]", "f32[7, 4]", *vector,
    )  # fmt: skip
    yield SymbolicSample(layer, given, sizes)
    two = body(("f32", "f32"), lambda a, b: a * b)
    yield SymbolicSample(ElementwiseRegion(body=two), ("f32[b, 1]", "f32[b, s]"), sizes)
    batch = BatchElementwiseRegion(body=two, num_batch_inputs=2)
    yield SymbolicSample(batch, ("f32[b, s]", "f32[b, s]", "f32[s]"), sizes)
    steps = ((TransformStep.RESIZE_NEAREST_2X, 0),)
    yield SymbolicSample(TransformRegion(steps=steps), ("f32[b, 1, s, 2]",), sizes)
