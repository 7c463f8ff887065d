"""Specialize: what it changes keeps its meaning, and what it must leave stays."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

from rlx.dtypes import DType
from rlx.ir.builder import GraphBuilder
from rlx.ir.graph import Graph, Value
from rlx.ir.interpret import interpret
from rlx.ir.text_parse import parse
from rlx.ops.activation import Gelu
from rlx.ops.arithmetic import Floor, Max
from rlx.ops.compare import Compare, Direction, Select
from rlx.ops.convolution import Conv, ConvGeneralDilated
from rlx.ops.quantized import ScaledMatmul, ScaledQuantize, ScaledQuantScale
from rlx.ops.reduction import ReduceMax, ReduceMin
from rlx.ops.sorting import TopK, TopNan
from rlx.options.compile import CompileOptions
from rlx.passes import PassContext, Specialize
from rlx.sharding import Mesh
from rlx.tolerances import tolerance
from rlx.types import TensorType

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


@pytest.mark.parametrize(
    ("layout", "dtype", "per_group", "left"),
    [
        ("nhwc", "f32", 1, True),
        ("nhwc", "f32", 2, False),
        ("nhwc", "bf16", 1, True),
        ("nchw", "f32", 1, False),
    ],
)
def test_depthwise_is_left_to_a_kernel(layout: str, dtype: str, per_group: int, left: bool) -> None:
    lhs_spec, rhs_spec, out_spec = LAYOUTS[layout]
    op = ConvGeneralDilated(
        window_strides=(1, 1),
        padding=((1, 1), (1, 1)),
        lhs_dilation=(1, 1),
        rhs_dilation=(1, 1),
        lhs_spec=lhs_spec,
        rhs_spec=rhs_spec,
        out_spec=out_spec,
        feature_group_count=4,
    )
    b = GraphBuilder()
    x = b.input("x", _type(dtype, placed((2, 4, 8, 8), lhs_spec)))
    w = b.input("w", _type(dtype, placed((4 * per_group, 1, 3, 3), rhs_spec)))
    graph = b.build(op(x, w))
    for has_kernel, kept in ((lambda node: True, left), (lambda node: False, False)):
        ctx = PassContext(platform="cpu", has_kernel=has_kernel)
        made = Specialize().run(graph, ctx)
        assert ("conv_general_dilated" in names(made)) == kept


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


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["i8", "i32", "u64", "i4", "f8e4m3fn"])
@pytest.mark.parametrize("kind", ["plain", "features", "batch"])
def test_integers_and_small_floats_on_gpus(
    layout: str, dtype: str, kind: str, rng: np.random.Generator
) -> None:
    lhs_spec, rhs_spec, out_spec = LAYOUTS[layout]
    op = ConvGeneralDilated(
        window_strides=(1, 2),
        padding=((1, -1), (2, 0)),
        lhs_dilation=(1, 2),
        rhs_dilation=(2, 1),
        lhs_spec=lhs_spec,
        rhs_spec=rhs_spec,
        out_spec=out_spec,
        feature_group_count=3 if kind == "features" else 1,
        batch_group_count=2 if kind == "batch" else 1,
    )
    b = GraphBuilder()
    x = b.input("x", _type(dtype, placed((4, 6, 7, 8), lhs_spec)))
    features = 2 if kind == "features" else 6
    w = b.input("w", _type(dtype, placed((6, features, 2, 3), rhs_spec)))
    graph = b.build(op(x, w))
    made = Specialize().run(graph, PassContext(platform="cuda"))
    assert "conv_general_dilated" not in names(made)
    low, high = -4, 4
    if x.dtype.is_integer:
        info = ml_dtypes.iinfo(x.dtype.numpy)
        low, high = int(info.min), int(info.max)
    feed = {
        v.name: rng.integers(
            low, high, static(v), np.int64 if low else np.uint64, endpoint=True
        ).astype(v.dtype.numpy)
        for v in graph.inputs
    }
    (before,), (after,) = interpret(graph, feed), interpret(made, feed)
    np.testing.assert_array_equal(after, before)


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


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16", "i32", "u32", "i8"])
@pytest.mark.parametrize("nan", list(TopNan))
def test_top_k_of_long_rows(dtype: str, nan: TopNan, rng: np.random.Generator) -> None:
    b = GraphBuilder()
    x = b.input("x", f"{dtype}[3, 16391]")
    graph = b.build(*TopK(k=17, nan=nan)(x))
    made = Specialize().run(graph, PassContext(platform="cuda"))
    assert made is not graph
    kind = x.dtype.numpy
    if dtype in ("i32", "u32", "i8"):
        info = np.iinfo(kind)
        data = rng.integers(info.min, info.max, (3, 16391), kind, endpoint=True)
        data[1] = info.min  # every element ties with the padding
    else:
        data = np.round(rng.standard_normal((3, 16391)) * 50).astype(kind)  # many ties
        data[0, rng.integers(0, 16391, 9)] = np.nan
        data[0, rng.integers(0, 16391, 9)] = -np.nan
        data[1] = -np.inf
        data[2] = -0.0
        data[2, rng.integers(0, 16391, 5)] = 0.0
    before, after = interpret(graph, {"x": data}), interpret(made, {"x": data})
    np.testing.assert_array_equal(after[0].view(np.uint8), before[0].view(np.uint8))
    np.testing.assert_array_equal(after[1], before[1])


def test_short_rows_keep_top_k() -> None:
    b = GraphBuilder()
    graph = b.build(*TopK(k=17)(b.input("x", "f32[3, 8192]")))
    assert Specialize().run(graph, PassContext(platform="cuda")) is graph


CHAINS = {
    "gelu": lambda x: x * (((x * x * x * 0.044715 + x) * 0.7978846).tanh() + 1.0) * 0.5,
    "silu": lambda x: x / ((-x).exp() + 1.0),
    "select": lambda x: Select()(x > 0.0, x * 1.5, x.exp() - 1.0),
    "composite": lambda x: Gelu(approximate=False)(x) * x,
}


@pytest.mark.parametrize("name", CHAINS)
def test_bf16_chains_round_once(name: str, rng: np.random.Generator) -> None:
    b = GraphBuilder()
    x = b.input("x", "bf16[65]")
    graph = b.build(CHAINS[name](x))
    made = Specialize().run(graph, CPU)
    assert made is not graph
    rounded = [n for n in made.nodes() if n.op.op_name == "convert" and "bf16" in str(n.types[0])]
    assert len(rounded) == 1
    data = (rng.standard_normal(65) * 3).astype(ml_dtypes.bfloat16)
    data[:4] = np.nan, np.inf, -np.inf, -0.0
    b = GraphBuilder()
    exact = b.build(CHAINS[name](b.input("x", "f64[65]")))
    (before,), (after,) = interpret(graph, {"x": data}), interpret(made, {"x": data})
    (wanted,) = interpret(exact, {"x": data.astype(np.float64)})
    assert after.dtype == before.dtype
    np.testing.assert_array_equal(np.isnan(after), np.isnan(before))
    finite = np.isfinite(wanted)
    error = np.abs(after.astype(np.float64)[finite] - wanted[finite])
    worse = np.abs(before.astype(np.float64)[finite] - wanted[finite])
    # Constants such as 0.044715 are themselves bf16, so neither is exact; ours is no further off.
    assert error.max() <= worse.max() + 2.0**-8 * np.abs(wanted[finite]).max()


def test_bf16_picks_join_a_chain_by_what_it_gives_not_by_what_it_reads() -> None:
    b = GraphBuilder()
    x, y, floor = (b.input(name, "bf16[65]") for name in ("x", "y", "floor"))
    graph = b.build(Max()(x * floor, floor), Max()(y, floor))
    made = Specialize().run(graph, CPU)
    kinds = [n.types[0].dtype for n in made.nodes() if n.op.op_name == "max"]
    assert sorted(kinds, key=str) == [DType.BF16, DType.F32]


@pytest.mark.parametrize(
    "build",
    [
        lambda x: Floor()(x * 1.5),  # a step: the rounded product decides
        lambda x: -x,  # exact, and alone
        lambda x: (x * x).convert("f32") * 2.0,  # the conversion rounds because it says so
        lambda x: Compare(direction=Direction.EQ)(x * x, x),  # a comparison sees what was rounded
    ],
)
def test_bf16_steps_see_rounded_values(
    build: Callable[[Value], Value], rng: np.random.Generator
) -> None:
    b = GraphBuilder()
    graph = b.build(build(b.input("x", "bf16[500]")))
    made = Specialize().run(graph, CPU)
    data = (rng.standard_normal(500) * 3).astype(ml_dtypes.bfloat16)
    (before,), (after,) = interpret(graph, {"x": data}), interpret(made, {"x": data})
    np.testing.assert_array_equal(after, before)


def test_strict_keeps_every_rounding() -> None:
    b = GraphBuilder()
    graph = b.build(CHAINS["gelu"](b.input("x", "bf16[65]")))
    strict = PassContext(CompileOptions(strict=True), platform="cpu")
    assert Specialize().run(graph, strict) is graph


def _type(dtype: str, shape: tuple[int, ...]) -> str:
    return f"{dtype}[{', '.join(map(str, shape))}]"


@pytest.mark.parametrize("layout", ["per_tensor", "per_row"])
@pytest.mark.parametrize("formats", [("f8e4m3", "f8e4m3"), ("f8e5m2", "f8e4m3")])
@pytest.mark.parametrize("with_bias", [False, True])
def test_scaled_products_multiply_codes(
    layout: str, formats: tuple[str, str], with_bias: bool, rng: np.random.Generator
) -> None:
    b = GraphBuilder()
    arrays = {
        "x": rng.standard_normal((7, 33)).astype(np.float32) * 300,
        "w": rng.standard_normal((5, 33)).astype(np.float32),
        "bias": rng.standard_normal(5).astype(np.float32),
    }
    x, w, bias = (b.input(n, TensorType(DType.F32, a.shape)) for n, a in arrays.items())
    pairs = []
    for value, form in zip((x, w), formats, strict=True):
        scale = ScaledQuantScale(format=form, layout=layout)(value)
        pairs.append((ScaledQuantize(format=form, layout=layout)(value, scale), scale))
    (left, left_scale), (right, right_scale) = pairs
    op = ScaledMatmul(lhs_format=formats[0], rhs_format=formats[1], layout=layout)
    more = (bias,) if with_bias else ()
    graph = b.build(op(left, right, left_scale, right_scale, *more), bias)
    made = Specialize().run(graph, PassContext(platform="cuda"))
    dots = [node for node in made.nodes() if node.op.op_name == "dot_general"]
    codes = dots[0].inputs
    if layout == "per_tensor":  # one scale for each operand is the product's own
        assert [v.node.op.op_name for v in codes] == ["mul", "mul"]
        codes = [v.node.inputs[0].node.inputs[0] for v in codes]
    assert [str(v.dtype) for v in codes] == [
        {"f8e4m3": "f8e4m3fn", "f8e5m2": "f8e5m2"}[form] for form in formats
    ]
    found, wanted = (interpret(g, arrays)[0] for g in (made, graph))
    np.testing.assert_allclose(found, wanted, rtol=2e-6, atol=2e-6 * np.abs(wanted).max())


@pytest.mark.parametrize(
    ("form", "layout"), [("f8e5m2", "per_tensor"), ("f8e4m3", "mx_e8m0/32"), ("f4e2m1", "per_row")]
)
def test_scaled_products_without_hardware_stay(form: str, layout: str) -> None:
    b = GraphBuilder()
    x = b.input("x", TensorType(DType.F32, (4, 64)))
    scale = ScaledQuantScale(format=form, layout=layout)(x)
    codes = ScaledQuantize(format=form, layout=layout)(x, scale)
    op = ScaledMatmul(lhs_format=form, rhs_format=form, layout=layout)
    graph = b.build(op(codes, codes, scale, scale))
    assert Specialize().run(graph, PassContext(platform="cuda")) is graph


@pytest.mark.parametrize(
    ("axes", "dtype", "wanted"),
    [
        ((1,), DType.F32, ["reduce"]),  # keys
        ((1,), DType.BF16, ["reduce"]),
        ((0, 1), DType.F64, ["reduce"]),
        ((0,), DType.F32, ["max", "reduce_max", "reduce_or"]),  # folded, a remainder
        ((0,), DType.BF16, ["max", "reduce_max", "reduce_or"]),  # folded as f32
        ((0,), DType.F16, ["reduce_max", "reduce_or"]),  # apart
    ],
)
@pytest.mark.parametrize("extreme", [ReduceMax, ReduceMin])
def test_extremes_find_nan(
    extreme: type[ReduceMax | ReduceMin],
    axes: tuple[int, ...],
    dtype: DType,
    wanted: list[str],
    rng: np.random.Generator,
) -> None:
    b = GraphBuilder()
    x = b.input("x", TensorType(dtype, (43, 33)))
    graph = b.build(extreme(axes=axes)(x))
    made = Specialize().run(graph, CPU)
    name = extreme.op_name
    forms = {"max", "min", "reduce", "reduce_or", name} & set(names(made))
    assert forms == {w.replace("max", "min") if extreme is ReduceMin else w for w in wanted}
    feed = rng.standard_normal((43, 33)).astype(dtype.numpy)
    for value in (0.0, np.nan, np.inf, -np.inf, -np.nan):
        feed[rng.integers(43), rng.integers(33)] = value
        (before,), (after,) = (interpret(g, {"x": feed}) for g in (graph, made))
        np.testing.assert_array_equal(before.astype(float), after.astype(float))
    assert np.isnan(after.astype(float)).any()


@pytest.mark.parametrize(
    ("type_", "slices"),
    [
        ("f32[4096, 1024]", 16),
        ("f32[1024, 1024]", 8),
        ("f64[4096, 1024]", 8),
        ("bf16[4096, 1024]", 8),
    ],
)
def test_extremes_of_large_arrays_are_folded_more(type_: str, slices: int) -> None:
    b = GraphBuilder()
    made = Specialize().run(b.build(ReduceMax(axes=(0,))(b.input("x", type_))), CPU)
    assert sum(node.op.op_name == "slice" for node in made.nodes()) == slices


@pytest.mark.parametrize(("type_", "mesh"), [("f32[64, 64]", {"d": 8}), ("f32[n, 64]", {})])
def test_extremes_over_devices_or_of_unknown_sizes_ask_apart(
    type_: str, mesh: dict[str, int]
) -> None:
    b = GraphBuilder()
    graph = b.build(ReduceMax(axes=(0, 1))(b.input("x", type_)))
    if mesh:
        graph = graph.with_shardings({"x": ("d", None)}, mesh=Mesh(mesh))
    found = names(Specialize().run(graph, CPU))
    assert {"reduce_or", "reduce_max"} <= found
    assert not {"max", "reduce", "slice"} & found


@pytest.mark.parametrize(("dtype", "rows"), [(DType.I32, 4096), (DType.F32, 8)])
def test_extremes_of_integers_and_of_few_stay(dtype: DType, rows: int) -> None:
    b = GraphBuilder()
    x = b.input("x", TensorType(dtype, (rows, 65)))
    graph = b.build(ReduceMax(axes=(1,))(x))
    assert Specialize().run(graph, CPU) is graph


@pytest.mark.parametrize(
    "options", [CompileOptions(strict=True), CompileOptions(matmul_precision="highest")]
)
def test_scaled_products_keep_sums_of_f32_where_they_are_asked_for(options: CompileOptions) -> None:
    b = GraphBuilder()
    x = b.input("x", TensorType(DType.F32, (4, 64)))
    scale = ScaledQuantScale()(x)
    codes = ScaledQuantize()(x, scale)
    graph = b.build(ScaledMatmul()(codes, codes, scale, scale))
    assert Specialize().run(graph, PassContext(options, "cuda")) is graph
