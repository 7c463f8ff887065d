"""Specialize on CPUs: gradients of convolutions as products and as one sum."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from rlx.ir.builder import GraphBuilder
from rlx.ir.graph import Graph
from rlx.ir.interpret import interpret
from rlx.ops.convolution import ConvGeneralDilated
from rlx.ops.shape import Reverse
from rlx.passes import PassContext, Specialize
from rlx.passes.specialize import convolution
from rlx.tolerances import tolerance

CPU = PassContext(platform="cpu")

# Logical axes are batch, feature, places; a 1×1 kernel lies [places, in, out].
LAST = (0, 3, 1, 2)
GRADIENT_OF_INPUT = ConvGeneralDilated(
    window_strides=(1, 1),
    padding=((0, 0), (0, 0)),
    lhs_dilation=(1, 1),
    rhs_dilation=(1, 1),
    lhs_spec=LAST,
    rhs_spec=(2, 3, 0, 1),
    out_spec=LAST,
)
GRADIENT_OF_WEIGHTS = dataclasses.replace(
    GRADIENT_OF_INPUT, lhs_spec=(3, 0, 1, 2), rhs_spec=(3, 0, 1, 2), out_spec=(2, 3, 0, 1)
)


def names(graph: Graph) -> list[str]:
    return [node.op.op_name for node in graph.nodes()]


def checked(
    op: Any, x: str, w: str, rng: np.random.Generator, *, reverse: tuple[int, ...] = ()
) -> Graph:
    """What Specialize makes of a convolution, which computes the same."""
    b = GraphBuilder()
    lhs, rhs = b.input("x", x), b.input("w", w)
    graph = b.build(op(lhs, Reverse(axes=reverse)(rhs) if reverse else rhs))
    made = Specialize().run(graph, CPU)
    feed = {
        v.name: rng.standard_normal(convolution.sizes(v.type.shape)).astype(v.type.dtype.numpy)
        for v in graph.inputs
    }
    (before,), (after,) = interpret(graph, feed), interpret(made, feed)
    assert after.dtype == before.dtype
    kept = tolerance(graph.outputs[0].type.dtype)
    np.testing.assert_allclose(
        after.astype(np.float64),
        before.astype(np.float64),
        rtol=10 * kept.rtol,
        atol=10 * kept.atol,
    )
    return made


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f64"])
def test_input_gradient_of_one_place(dtype: str, rng: np.random.Generator) -> None:
    made = checked(GRADIENT_OF_INPUT, f"{dtype}[2, 5, 4, 6]", f"{dtype}[1, 1, 3, 6]", rng)
    assert names(made).count("dot_general") == 1
    assert not {"conv_general_dilated", "transpose"} & set(names(made))


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f64"])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("turned", [False, True])
def test_weight_gradient_of_one_place(
    dtype: str, stride: int, turned: bool, rng: np.random.Generator
) -> None:
    # Where the stride leaves rows over, the gradient takes them away as padding below 0.
    op = dataclasses.replace(
        GRADIENT_OF_WEIGHTS,
        rhs_dilation=(stride, stride),
        padding=((0, 0), (0, 0)) if stride == 1 else ((0, -1), (0, 0)),
        out_spec=(3, 2, 0, 1) if turned else (2, 3, 0, 1),
    )
    x = f"{dtype}[3, {5 if stride == 1 else 6}, 7, 4]"
    w = f"{dtype}[3, {5 if stride == 1 else 3}, {7 if stride == 1 else 4}, 6]"
    made = checked(op, x, w, rng)
    assert names(made).count("dot_general") == 1
    assert not {"conv_general_dilated", "transpose"} & set(names(made))


PLAIN: dict[str, Any] = {"x": "f32[2, 5, 4, 6]", "w": "f32[1, 1, 3, 6]"}
WHOLE: dict[str, Any] = {"x": "f32[3, 5, 7, 4]", "w": "f32[3, 5, 7, 6]"}
LEFT: dict[str, tuple[Any, dict[str, Any]]] = {
    "a forward one, which XLA makes a product itself": (
        dataclasses.replace(GRADIENT_OF_INPUT, rhs_spec=(3, 2, 0, 1)),
        {**PLAIN, "w": "f32[1, 1, 6, 3]"},
    ),
    "stride": (dataclasses.replace(GRADIENT_OF_INPUT, window_strides=(2, 1)), PLAIN),
    "padding": (dataclasses.replace(GRADIENT_OF_INPUT, padding=((1, 0), (0, 0))), PLAIN),
    "dilated": (dataclasses.replace(GRADIENT_OF_INPUT, lhs_dilation=(2, 1)), PLAIN),
    "a wider kernel": (GRADIENT_OF_INPUT, {**PLAIN, "w": "f32[2, 1, 3, 6]"}),
    "channels first": (
        dataclasses.replace(GRADIENT_OF_INPUT, lhs_spec=(0, 1, 2, 3), out_spec=(0, 1, 2, 3)),
        {**PLAIN, "x": "f32[2, 6, 5, 4]"},
    ),
    "integers": (GRADIENT_OF_INPUT, {"x": "i32[2, 5, 4, 6]", "w": "i32[1, 1, 3, 6]"}),
    "padded weights' gradient": (
        dataclasses.replace(GRADIENT_OF_WEIGHTS, padding=((1, 0), (0, 0))),
        {**WHOLE, "x": "f32[3, 4, 7, 4]"},
    ),
    "two places": (GRADIENT_OF_WEIGHTS, {**WHOLE, "x": "f32[3, 6, 7, 4]"}),
    "other layouts": (
        dataclasses.replace(GRADIENT_OF_WEIGHTS, rhs_spec=(0, 3, 1, 2)),
        {**WHOLE, "w": "f32[6, 5, 7, 3]"},
    ),
}


@pytest.mark.parametrize("name", LEFT)
def test_other_convolutions_stay(name: str, rng: np.random.Generator) -> None:
    op, types = LEFT[name]
    made = checked(op, types["x"], types["w"], rng)
    assert "conv_general_dilated" in names(made)


def test_what_a_kernel_takes_stays() -> None:
    b = GraphBuilder()
    graph = b.build(GRADIENT_OF_INPUT(b.input("x", PLAIN["x"]), b.input("w", PLAIN["w"])))
    ctx = PassContext(platform="cpu", has_kernel=lambda node: True)
    assert Specialize().run(graph, ctx) is graph


def test_the_record_counts_products() -> None:
    b = GraphBuilder()
    graph = b.build(GRADIENT_OF_INPUT(b.input("x", PLAIN["x"]), b.input("w", PLAIN["w"])))
    ctx = PassContext(platform="cpu")
    Specialize().run(graph, ctx)
    assert ctx.notes == ["Gradient of a 1×1 convolution as a product of matrices × 1"]


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("draw", range(4))
def test_depthwise_weight_gradient(
    large: bool, draw: int, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once where that takes little memory, else place by place."""
    del draw
    if large:
        monkeypatch.setattr(convolution, "MAX_LAID_OUT", 0)
    groups, batch = (int(n) for n in rng.integers(2, 5, 2))
    strides, dilations = (tuple(int(n) for n in rng.integers(1, 4, 2)) for _ in range(2))
    places, along = (tuple(int(n) for n in rng.integers(low, 6, 2)) for low in (1, 3))
    low = tuple(int(n) for n in rng.integers(-1, 3, 2))
    space = tuple(
        (p - 1) * s + (a - 1) * d + 1 + int(rng.integers(0, s)) - n
        for p, s, a, d, n in zip(places, strides, along, dilations, low, strict=True)
    )
    lhs_spec, rhs_spec, out_spec = (tuple(int(n) for n in rng.permutation(4)) for _ in range(3))
    op = ConvGeneralDilated(
        window_strides=strides,
        padding=tuple((n, 0) for n in low),
        lhs_dilation=(1, 1),
        rhs_dilation=dilations,
        lhs_spec=lhs_spec,
        rhs_spec=rhs_spec,
        out_spec=out_spec,
        batch_group_count=groups,
    )
    x, w = (
        f"f32[{', '.join(str(logical[spec.index(axis)]) for axis in range(4))}]"
        for logical, spec in (
            ((groups, batch, *space), lhs_spec),
            ((groups, batch, *along), rhs_spec),
        )
    )
    made = checked(op, x, w, rng)
    assert "conv_general_dilated" not in names(made)
    sums = names(made).count("reduce_sum")
    assert sums == (places[0] * places[1] if large else 1)


def test_a_weight_gradient_reads_only_what_its_places_meet() -> None:
    """What lies beyond a place's rows is in no product of it: an Inf there is not 0 · Inf."""
    b = GraphBuilder()
    op = dataclasses.replace(
        GRADIENT_OF_WEIGHTS, lhs_spec=(3, 0, 1, 2), rhs_spec=(3, 0, 1, 2), batch_group_count=2
    )
    x, w = b.input("x", "f32[1, 4, 4, 2]"), b.input("w", "f32[1, 3, 3, 2]")
    graph = b.build(op(x, w))
    value = np.zeros((1, 4, 4, 2), np.float32)
    value[0, 0, 3, 0] = np.inf
    feed = {"x": value, "w": np.ones((1, 3, 3, 2), np.float32)}
    (wanted,) = interpret(graph, feed)
    (found,) = interpret(Specialize().run(graph, CPU), feed)
    np.testing.assert_array_equal(found, wanted)
    assert np.isinf(found).sum() == 1
    assert not np.isnan(found).any()


@pytest.mark.parametrize("reverse", [(0, 1), (1,), (0, 2), (3,)])
def test_reversed_kernels_are_cut_out_from_their_other_end(
    reverse: tuple[int, ...], rng: np.random.Generator
) -> None:
    op = dataclasses.replace(
        GRADIENT_OF_INPUT,
        padding=((1, 1), (0, 2)),
        rhs_spec=(3, 2, 0, 1),
        feature_group_count=4,
    )
    made = checked(op, "f32[2, 6, 5, 8]", "f32[3, 2, 2, 12]", rng, reverse=reverse)
    assert "conv_general_dilated" not in names(made)
    assert ("reverse" in names(made)) == bool(set(reverse) - {0, 1})
