"""Specialize: what it changes keeps its meaning, and what it must leave stays."""

from __future__ import annotations

import numpy as np
import pytest

from rlx.ir.builder import GraphBuilder
from rlx.ir.graph import Graph, Value
from rlx.ir.interpret import interpret
from rlx.ir.text_parse import parse
from rlx.ops.convolution import Conv, ConvGeneralDilated
from rlx.passes import PassContext, Specialize
from rlx.tolerances import tolerance

CPU = PassContext(platform="cpu")


def names(graph: Graph) -> set[str]:
    return {node.op.op_name for node in graph.nodes()}


def static(value: Value) -> tuple[int, ...]:
    return tuple(size for size in value.type.shape if isinstance(size, int))


def check(graph: Graph, rng: np.random.Generator, *, changed: bool = True) -> Graph:
    """The pass keeps what a graph of two inputs computes on random data."""
    made = Specialize().run(graph, CPU)
    assert (made is not graph) == changed
    feed = {v.name: rng.standard_normal(static(v)).astype(v.type.dtype.numpy) for v in graph.inputs}
    (before,), (after,) = interpret(graph, feed), interpret(made, feed)
    assert after.dtype == before.dtype
    assert after.shape == before.shape
    kept = tolerance(graph.outputs[0].type.dtype)
    np.testing.assert_allclose(
        after.astype(np.float64), before.astype(np.float64), rtol=kept.rtol, atol=kept.atol
    )
    return made


LAYOUTS = {
    "nchw": ((0, 1, 2, 3), (0, 1, 2, 3), (0, 1, 2, 3)),
    "nhwc": ((0, 3, 1, 2), (3, 2, 0, 1), (0, 3, 1, 2)),
    "mixed": ((3, 1, 0, 2), (2, 0, 3, 1), (1, 2, 3, 0)),
}


def placed(logical: tuple[int, ...], spec: tuple[int, ...]) -> tuple[int, ...]:
    """A shape in the axis order of a spec."""
    return tuple(logical[spec.index(axis)] for axis in range(len(spec)))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16", "f16"])
@pytest.mark.parametrize("draw", range(3))
def test_small_groups(layout: str, dtype: str, draw: int, rng: np.random.Generator) -> None:
    del draw
    groups, features, per_group = rng.integers(2, 6), rng.integers(1, 5), rng.integers(1, 4)
    kernel = tuple(int(n) for n in rng.integers(1, 4, 2))
    space = tuple(int(n) for n in rng.integers(5, 12, 2))
    lhs_spec, rhs_spec, out_spec = LAYOUTS[layout]
    op = ConvGeneralDilated(
        window_strides=tuple(int(n) for n in rng.integers(1, 3, 2)),
        padding=tuple((int(a), int(b)) for a, b in rng.integers(-1, 4, (2, 2))),
        lhs_dilation=tuple(int(n) for n in rng.integers(1, 3, 2)),
        rhs_dilation=tuple(int(n) for n in rng.integers(1, 3, 2)),
        lhs_spec=lhs_spec,
        rhs_spec=rhs_spec,
        out_spec=out_spec,
        feature_group_count=int(groups),
    )
    b = GraphBuilder()
    x = b.input("x", _type(dtype, placed((2, int(groups * features), *space), lhs_spec)))
    w = b.input(
        "w", _type(dtype, placed((int(groups * per_group), int(features), *kernel), rhs_spec))
    )
    made = check(b.build(op(x, w)), rng)
    assert "conv_general_dilated" not in names(made)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_weight_gradient(layout: str, dtype: str, rng: np.random.Generator) -> None:
    lhs_spec, rhs_spec, out_spec = LAYOUTS[layout]
    op = ConvGeneralDilated(
        window_strides=(1, 2),
        padding=((1, 1), (2, 0)),
        lhs_dilation=(1, 1),
        rhs_dilation=(2, 1),
        lhs_spec=lhs_spec,
        rhs_spec=rhs_spec,
        out_spec=out_spec,
        batch_group_count=5,
    )
    b = GraphBuilder()
    x = b.input("x", _type(dtype, placed((5, 3, 9, 8), lhs_spec)))
    w = b.input("w", _type(dtype, placed((5, 3, 4, 7), rhs_spec)))
    made = check(b.build(op(x, w)), rng)
    assert "conv_general_dilated" not in names(made)


def test_one_axis_and_three(rng: np.random.Generator) -> None:
    for space, kernel in (((20,), (4,)), ((6, 5, 4), (3, 2, 1))):
        b = GraphBuilder()
        rank = len(space)
        op = Conv(stride=(1,) * rank, padding=(1,) * rank, dilation=(1,) * rank, groups=4)
        x = b.input("x", _type("f32", (2, 4, *space)))
        w = b.input("w", _type("f32", (8, 1, *kernel)))
        check(b.build(op(x, w)), rng)


def test_special_values_of_x_stay(rng: np.random.Generator) -> None:
    b = GraphBuilder()
    op = Conv(stride=(1,), padding=(0,), dilation=(1,), groups=3)
    graph = b.build(op(b.input("x", "f32[1, 3, 9]"), b.input("w", "f32[3, 1, 2]")))
    x = rng.standard_normal((1, 3, 9)).astype(np.float32)
    x[0, 0, 2], x[0, 1, 4], x[0, 2, 8] = np.nan, np.inf, -np.inf
    feed = {"x": x, "w": rng.standard_normal((3, 1, 2)).astype(np.float32)}
    (before,), (after,) = interpret(graph, feed), interpret(Specialize().run(graph, CPU), feed)
    np.testing.assert_array_equal(np.isnan(after), np.isnan(before))
    np.testing.assert_allclose(after, before, rtol=1e-5)


@pytest.mark.parametrize(
    ("shapes", "groups"),
    [
        (("f32[2, 8, 9]", "f32[8, 8, 3]"), 1),  # no groups: XLA's product of matrices
        (("f32[2, 16, 9]", "f32[4, 8, 3]"), 2),  # many features in a group
        (("f32[2, 4, 300]", "f32[4, 1, 200]"), 4),  # a kernel with too many places
        (("f32[2, 4, 0]", "f32[4, 1, 1]"), 4),  # nothing to compute
        (("i32[2, 4, 9]", "i32[4, 1, 3]"), 4),  # integers
    ],
)
def test_left_alone(shapes: tuple[str, str], groups: int, rng: np.random.Generator) -> None:
    del rng
    b = GraphBuilder()
    x, w = b.input("x", shapes[0]), b.input("w", shapes[1])
    conv = Conv(stride=(1,), padding=(0,), dilation=(1,), groups=groups)
    graph = b.build(conv.decompose(x, w))
    assert Specialize().run(graph, CPU) is graph


def test_other_platforms_are_left_alone() -> None:
    graph = parse(
        'graph "g" { input %x "x": f32[1, 3, 9] input %w "w": f32[3, 1, 2] '
        "%0 = conv(%x, %w) {stride = (1,), padding = (0,), dilation = (1,), groups = 3}: "
        "f32[1, 3, 8] return %0 }"
    )
    assert Specialize().run(graph, PassContext(platform="tpu")) is graph


def test_the_record_says_what_was_done() -> None:
    b = GraphBuilder()
    op = Conv(stride=(1,), padding=(0,), dilation=(1,), groups=3)
    graph = b.build(op(b.input("x", "f32[1, 3, 9]"), b.input("w", "f32[3, 1, 2]")))
    ctx = PassContext(platform="cpu")
    Specialize().run(graph, ctx)
    assert ctx.notes == [
        "Convolution in many small groups taken apart × 1",
        "Convolution in many small groups as shifted products × 1",
    ]


def _type(dtype: str, shape: tuple[int, ...]) -> str:
    return f"{dtype}[{', '.join(map(str, shape))}]"
