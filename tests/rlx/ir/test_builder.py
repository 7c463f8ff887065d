"""RLX's builder names: each makes the op that it stands for, and means what NumPy does."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.dtypes import DType
from rlx.errors import DTypeError, RegistryError, ShapeError
from rlx.ops.activation_kinds import Activation
from rlx.ops.attention import Attention, MaskKind
from rlx.ops.position import RopeStyle

Array = np.ndarray[Any, Any]
Made = Callable[..., Any]


def run(build: Made, *arrays: Array) -> Array:
    """Interpret what a builder method makes of arrays."""
    b = rlx.GraphBuilder()
    leaves = [b.input(f"x{i}", rlx.constant(a).type) for i, a in enumerate(arrays)]
    graph = b.build(build(b, *leaves))
    return rlx.interpret(graph, {f"x{i}": a for i, a in enumerate(arrays)})[0]


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide,
    "max": np.maximum, "min": np.minimum, "pow": np.power, "mod": np.fmod, "atan2": np.arctan2,
    "+": np.add, "-": np.subtract, "*": np.multiply, "/": np.divide, "**": np.power,
    "%": np.fmod, "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal,
    "gt": np.greater, "ge": np.greater_equal, "==": np.equal, "<": np.less,
}  # fmt: skip


@pytest.mark.parametrize("name", BINARY)
def test_binaries_by_name(rng: np.random.Generator, name: str) -> None:
    a, b = rng.uniform(0.5, 3, (2, 1, 3)), rng.uniform(0.5, 3, (4, 1))
    compares = BINARY[name](1.0, 1.0).dtype == bool
    found = run(lambda g, x, y: g.compare(name, x, y) if compares else g.binary(name, x, y), a, b)
    np.testing.assert_allclose(found, BINARY[name](a, b), rtol=1e-12)
    method = getattr(rlx.GraphBuilder, name, None)
    if method is not None and name not in ("max", "min"):
        np.testing.assert_array_equal(run(method, a, b), found)


def test_integer_binaries(rng: np.random.Generator) -> None:
    a, b = rng.integers(-99, 99, 5, np.int32), rng.integers(0, 8, 5, np.int32)
    for name, function in (
        ("bit_and", np.bitwise_and), ("bit_or", np.bitwise_or), ("bit_xor", np.bitwise_xor),
        ("shl", np.left_shift), ("shr", np.right_shift), ("mod", None),
    ):  # fmt: skip
        if function is None:
            a, b, function = a * 7, b + 1, np.fmod
        found = run(lambda g, x, y, name=name: g.binary(name, x, y), a, b)
        np.testing.assert_array_equal(found, function(a, b))
    top = np.array([2**32 - 1], np.uint32)
    found = run(lambda g, x: g.binary("shr", x, 1), top)
    assert found.tolist() == [2**31 - 1]


UNARY: dict[str, Callable[[Array], Array]] = {
    "silu": lambda x: x * sigmoid(x), "relu": lambda x: np.maximum(x, 0), "sigmoid": sigmoid,
    "exp": np.exp, "log": np.log, "sqrt": np.sqrt, "neg": np.negative, "tanh": np.tanh,
    "stop_gradient": np.array,
}  # fmt: skip


@pytest.mark.parametrize("name", UNARY)
def test_unaries(rng: np.random.Generator, name: str) -> None:
    x = rng.uniform(0.1, 3, (2, 3))
    found = run(getattr(rlx.GraphBuilder, name), x)
    np.testing.assert_allclose(found, UNARY[name](x), rtol=1e-12)


@pytest.mark.parametrize("name", ["gelu", "gelu_approx"])
def test_gelu(name: str) -> None:
    """What RLX's own test expects, within its bound."""
    x = np.array([1.5, -0.5, 0.5])
    found = run(getattr(rlx.GraphBuilder, name), x)
    np.testing.assert_allclose(found, [1.399, -0.154, 0.346], atol=0.01)
    by_kind = run(lambda g, v: g.activation(name, v), x)
    np.testing.assert_array_equal(by_kind, found)


def test_activation_takes_the_kind_or_its_name(rng: np.random.Generator) -> None:
    x = rng.uniform(-3, 3, 5)
    by_name = run(lambda g, v: g.activation("hard_swish", v), x)
    by_kind = run(lambda g, v: g.activation(Activation.HARD_SWISH, v), x)
    np.testing.assert_array_equal(by_name, by_kind)
    np.testing.assert_allclose(by_name, x * np.clip(x + 3, 0, 6) / 6, rtol=1e-12)


def test_unknown_names() -> None:
    b = rlx.GraphBuilder()
    x = b.input("x", "f32[2]")
    with pytest.raises(
        RegistryError, match=r"^activation: required one of gelu, .*; got 'gelo'\. Did you mean"
    ):
        b.activation("gelo", x)
    with pytest.raises(RegistryError, match=r"^binary: required one of add, .*; got 'plus'\."):
        b.binary("plus", x, x)
    with pytest.raises(RegistryError, match=r"^compare: required one of eq, .*; got 'is'\."):
        b.compare("is", x, x)
    with pytest.raises(
        RegistryError, match=r"^reduce: required one of sum, mean, max, min, prod; got 'xy'\.$"
    ):
        b.reduce("xy", x)
    with pytest.raises(
        RegistryError,
        match=r"^pad: required one of constant, reflect, replicate, circular; got 'mirror'\.",
    ):
        b.pad(x, [(1, 1)], "mirror")


def test_where(rng: np.random.Generator) -> None:
    c = rng.integers(0, 2, (3, 1)).astype(bool)
    a, b = rng.uniform(-1, 1, 4), rng.uniform(-1, 1, (2, 1, 1))
    found = run(lambda g, *v: g.where(*v), c, a, b)
    np.testing.assert_array_equal(found, np.where(c, a, b))
    numbers = rng.integers(0, 2, 4).astype(np.float64)
    found = run(lambda g, x, y: g.where(x, y, 0), numbers, a)
    np.testing.assert_array_equal(found, np.where(numbers != 0, a, 0))


def test_reductions(rng: np.random.Generator) -> None:
    x = rng.uniform(-1, 1, (2, 3, 4))
    for name, function in (
        ("sum", np.sum), ("mean", np.mean), ("max", np.max), ("min", np.min), ("prod", np.prod),
    ):  # fmt: skip
        for axes, keep in ((None, False), (1, True), ((0, -1), False), ((), False)):
            found = run(lambda g, v, n=name, a=axes, k=keep: g.reduce(n, v, a, keepdims=k), x)
            wanted = function(x, axis=axes, keepdims=keep)
            np.testing.assert_allclose(found, wanted, rtol=1e-12)
    np.testing.assert_allclose(run(lambda g, v: g.sum(v, 1), x), x.sum(1), rtol=1e-12)
    found = run(lambda g, v: g.mean(v, [0, 2], keepdims=True), x)
    np.testing.assert_allclose(found, x.mean((0, 2), keepdims=True), rtol=1e-12)
    found = run(lambda g, v: g.cumsum(v, 1), x)
    np.testing.assert_allclose(found, np.cumsum(x, 1), rtol=1e-12)
    found = run(lambda g, v: g.cumsum(v, exclusive=True), x)
    np.testing.assert_allclose(found, np.cumsum(x, -1) - x, rtol=1e-10, atol=1e-14)
    for name in ("sm", "softmax"):
        found = run(lambda g, v, n=name: getattr(g, n)(v, 1), x)
        np.testing.assert_allclose(found, np.exp(x) / np.exp(x).sum(1, keepdims=True), rtol=1e-12)


@pytest.mark.parametrize("suffix", ["", "_"])
def test_moves(rng: np.random.Generator, suffix: str) -> None:
    x = rng.uniform(-1, 1, (2, 3, 4))

    def made(name: str, *arguments: Any) -> Array:
        return run(lambda g, v: getattr(g, name + suffix)(v, *arguments), x)

    np.testing.assert_array_equal(made("reshape", (4, -1)), x.reshape(4, 6))
    np.testing.assert_array_equal(made("transpose", (2, 0, 1)), x.transpose(2, 0, 1))
    np.testing.assert_array_equal(made("narrow", -1, 1, 2), x[..., 1:3])
    joined = run(lambda g, v: getattr(g, "concat" + suffix)([v, v], 1), x)
    np.testing.assert_array_equal(joined, np.concatenate([x, x], 1))
    rows = np.array([[2, 0], [1, 1]], np.int32)
    found = run(lambda g, v, i: getattr(g, "gather" + suffix)(v, i, 1), x, rows)
    np.testing.assert_array_equal(found, np.take(x, rows, 1))


def test_concat_wants_values() -> None:
    with pytest.raises(ShapeError, match="a list of at least one value is required; got none"):
        rlx.GraphBuilder().concat([], 0)


def test_full_pad_roll_cast(rng: np.random.Generator) -> None:
    x = rng.uniform(-9, 9, (3, 4))
    found = run(lambda g, v: g.full((2, 3), 7, "i8"), x)
    np.testing.assert_array_equal(found, np.full((2, 3), 7, np.int8))
    assert found.dtype == np.int8
    pads = [(1, 2), (0, 3)]
    names = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}
    for mode, theirs in names.items():
        smaller = [(1, 2), (0, 3)]
        found = run(lambda g, v, m=mode, p=smaller: g.pad(v, p, m), x)
        np.testing.assert_array_equal(found, np.pad(x, smaller, theirs))  # type: ignore[call-overload]
    found = run(lambda g, v: g.pad(v, pads, value=2.5), x)
    np.testing.assert_array_equal(found, np.pad(x, pads, constant_values=2.5))
    found = run(lambda g, v: g.roll(v, 2, 1), x)
    np.testing.assert_array_equal(found, np.roll(x, 2, 1))
    found = run(lambda g, v: g.roll(v, (1, -1), (0, -1)), x)
    np.testing.assert_array_equal(found, np.roll(x, (1, -1), (0, 1)))
    np.testing.assert_array_equal(run(lambda g, v: g.cast(v, "i32"), x), np.trunc(x))
    with pytest.raises(ShapeError, match=r"^pad: one pair \(before, after\) is required"):
        run(lambda g, v: g.pad(v, [(1, 1)]), x)


def test_full_takes_symbols() -> None:
    b = rlx.GraphBuilder()
    x = b.input("x", "f32[n, 3]")
    graph = b.build(b.full(x.shape, 2.0) * x)
    found = rlx.interpret(graph, {"x": np.ones((2, 3), np.float32)})[0]
    assert found.tolist() == [[2.0] * 3] * 2


def test_products(rng: np.random.Generator) -> None:
    x, w = rng.uniform(-1, 1, (2, 3, 4)), rng.uniform(-1, 1, (4, 5))
    for name in ("mm", "matmul"):
        found = run(lambda g, *v, n=name: getattr(g, n)(*v), x, w)
        np.testing.assert_allclose(found, x @ w, rtol=1e-12)
    a, b = rng.uniform(-1, 1, (3, 3)) + 4 * np.eye(3), rng.uniform(-1, 1, 3)
    found = run(lambda g, *v: g.dense_solve(*v), a, b)
    np.testing.assert_allclose(found, np.linalg.solve(a, b), rtol=1e-9)


def test_convolutions(rng: np.random.Generator) -> None:
    x, w = rng.uniform(-1, 1, (1, 2, 5, 4)), rng.uniform(-1, 1, (3, 2, 2, 3))
    found = run(lambda g, *v: g.conv2d(*v, stride=(2, 1), padding=1), x, w)
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    wanted = np.zeros((1, 3, 3, 4))
    for i, j in np.ndindex(3, 4):
        window = padded[:, None, :, 2 * i : 2 * i + 2, j : j + 3]
        wanted[..., i, j] = (window * w).sum((2, 3, 4))
    np.testing.assert_allclose(found, wanted, rtol=1e-10)
    kernel = rng.uniform(-1, 1, (2, 3, 2, 2))
    found = run(lambda g, *v: g.conv_transpose2d(*v, stride=2, output_padding=(1, 0)), x, kernel)
    wanted = np.zeros((1, 3, 11, 8))
    for i, j in np.ndindex(5, 4):
        part = np.einsum("nc,cohw->nohw", x[..., i, j], kernel)
        wanted[..., 2 * i : 2 * i + 2, 2 * j : 2 * j + 2] += part
    np.testing.assert_allclose(found, wanted, rtol=1e-10, atol=1e-13)


def test_norms_make_their_ops(rng: np.random.Generator) -> None:
    b = rlx.GraphBuilder()
    x, image = b.input("x", "f32[2, 4]"), b.input("image", "f32[1, 4, 2, 3]")
    g, o, residual = b.param("g", "f32[4]"), b.param("o", "f32[4]"), b.param("r", "f32[2, 4]")
    made = {
        b.ln(x, g, o, 0.5): rlx.ops.LayerNorm(axis=1, eps=0.5),
        b.layer_norm(image, g, o, axis=1): rlx.ops.LayerNorm(axis=1),
        b.layer_norm2d(image, g, o): rlx.ops.LayerNorm2d(),
        b.group_norm(image, g, o, 2): rlx.ops.GroupNorm(num_groups=2),
        b.rms_norm(x, g, o): rlx.ops.RmsNorm(axis=1),
        b.fused_residual_ln(x, residual, g, o): rlx.ops.FusedResidualLn(),
        b.fused_residual_ln(x, residual, g, o, bias=g, eps=0.5): rlx.ops.FusedResidualLn(eps=0.5),
        b.fused_residual_rms_norm(x, residual, g, o): rlx.ops.FusedResidualRmsNorm(),
    }
    for value, op in made.items():
        assert value.node.op == op
    biased = [v for v in made if len(v.node.inputs) == 5]
    assert [v.node.inputs[4] for v in biased] == [g]


def test_attention_by_every_name() -> None:
    b = rlx.GraphBuilder()
    q, mask = b.input("q", "f32[2, 3, 8]"), b.input("mask", "f32[2, 3]")
    bias = b.input("bias", "f32[1, 2, 3, 3]")

    def op(**changes: Any) -> Attention:
        return Attention(num_heads=2, head_dim=4, **changes)

    for name in ("attention", "attention_"):
        method = getattr(b, name)
        assert method(q, q, q, None, 2, 4).node.op == op()
        custom = op(mask_kind=MaskKind.CUSTOM, score_scale=0.5)
        assert method(q, q, q, mask, 2, 4, score_scale=0.5).node.op == custom
    for kind, wanted in (
        ("none", op()),
        ("causal", op(mask_kind=MaskKind.CAUSAL)),
        (MaskKind.CAUSAL, op(mask_kind=MaskKind.CAUSAL)),
        ("sliding:5", op(mask_kind=MaskKind.SLIDING_WINDOW, window=5)),
    ):
        assert b.attention_kind(q, q, q, 2, 4, kind).node.op == wanted
    assert b.attention_bias(q, q, q, bias, 2, 4).node.op == op(mask_kind=MaskKind.BIAS)
    for wrong in ("sliding", "sliding:", "sliding:-1", "slide:2", "custom"):
        with pytest.raises(
            RegistryError,
            match=r"^attention_kind: required 'none', 'causal' or 'sliding:N'; got",
        ):
            b.attention_kind(q, q, q, 2, 4, wrong)


def test_rope_by_every_name() -> None:
    b = rlx.GraphBuilder()
    x, table = b.input("x", "f32[2, 3, 16]"), b.input("table", "f32[3, 4]")
    half = b.input("half", "f32[3, 2]")
    assert b.rope(x, table, table, 8).node.op == rlx.ops.Rope(head_dim=8, n_rot=8)
    made = b.rope_n(x, half, half, 8, 4, style="gptj")
    assert made.node.op == rlx.ops.Rope(head_dim=8, n_rot=4, style=RopeStyle.GPTJ)
    with pytest.raises(ShapeError, match=r"rope \[C1\]: n_rot is required to be even and from 2"):
        b.rope_n(x, half, half, 8, 3)
    with pytest.raises(ShapeError, match=r"to head_dim = 8; got 10"):
        b.rope_n(x, half, half, 8, 10)
    with pytest.raises(RegistryError, match=r"^rope: style is required to be one of \['neox'"):
        b.rope(x, table, table, 8, style="llama")
    grid = b.axial_rope2d(x, end_x=3, end_y=1, head_dim=8, num_heads=2)
    assert grid.node.op == rlx.ops.AxialRope2d(end_x=3, end_y=1, head_dim=8, num_heads=2)


def test_layers(rng: np.random.Generator) -> None:
    x, w, bias = (rng.uniform(-1, 1, s) for s in ((2, 3), (3, 4), (4,)))
    plain = x @ w + bias
    np.testing.assert_allclose(run(lambda g, *v: g.linear_bias(*v), x, w, bias), plain, rtol=1e-12)
    wanted = plain * sigmoid(plain)
    for name in ("linear_bias_act", "linear_fused", "fused_matmul_bias_act"):
        for kind in ("silu", Activation.SILU):
            found = run(lambda g, *v, n=name, k=kind: getattr(g, n)(*v, k), x, w, bias)
            np.testing.assert_allclose(found, wanted, rtol=1e-12)
    found = run(lambda g, *v: g.linear_fused(*v), x, w, bias)
    np.testing.assert_allclose(found, plain, rtol=1e-12)
    other = rng.uniform(-1, 1, (3, 5))
    for slot, weight in enumerate((w, other)):
        found = run(lambda g, *v, s=slot: g.shared_matmul_pair(*v)[s], x, w, other)
        np.testing.assert_allclose(found, x @ weight, rtol=1e-12)
    up, gate, down = (rng.uniform(-1, 1, s) for s in ((3, 5), (3, 5), (5, 2)))
    gated = x @ gate
    wanted = (gated * sigmoid(gated) * (x @ up)) @ down
    for name in ("swiglu_ffn", "fused_swiglu_ffn"):
        found = run(lambda g, *v, n=name: getattr(g, n)(*v), x, up, gate, down)
        np.testing.assert_allclose(found, wanted, rtol=1e-12)


def test_fused_layers_are_one_op() -> None:
    b = rlx.GraphBuilder()
    x, w, bias = b.input("x", "f32[2, 3]"), b.param("w", "f32[3, 4]"), b.param("b", "f32[4]")
    assert b.linear_fused(x, w, bias).node.op.op_name == "fused_matmul_bias_act"
    assert b.linear_bias(x, w, bias).node.op.op_name == "add"
    pair = b.shared_matmul_pair(x, w, w)
    assert pair[0].node is pair[1].node


@pytest.mark.parametrize("name", ["gelu", "relu", "cast", "sum", "softmax", "narrow", "where"])
def test_what_is_no_value_is_refused(name: str) -> None:
    more = {"cast": ("f32",), "narrow": (0, 0, 1), "where": (rlx.constant(1.0), 0)}.get(name, ())
    with pytest.raises(ShapeError, match=r"value(s are|s)? .*of a graph.*got|of a graph; input 0"):
        getattr(rlx.GraphBuilder(), name)([1.0], *more)


def test_mixed_dtypes_are_refused() -> None:
    b = rlx.GraphBuilder()
    with pytest.raises(DTypeError, match="one dtype"):
        b.add(b.input("x", "f32[2]"), b.input("y", "f16[2]"))


RLX_NAMES = (
    "input", "param", "constant", "mm", "add", "sub", "mul", "div", "gelu", "gelu_approx", "silu",
    "relu", "exp", "sqrt", "neg", "tanh", "ln", "layer_norm2d", "group_norm", "rms_norm",
    "conv2d", "conv_transpose2d", "sum", "mean", "sm", "reshape_", "transpose_", "narrow_",
    "concat_", "gather_", "eq", "lt", "attention_", "rope", "rope_n", "cast", "linear_bias",
    "linear_bias_act", "linear_fused", "shared_matmul_pair", "swiglu_ffn", "fused_swiglu_ffn",
    "stop_gradient", "full", "pad", "roll", "binary", "activation", "matmul", "layer_norm",
    "reduce", "softmax", "cumsum", "reshape", "gather", "concat", "attention", "attention_kind",
    "attention_bias", "axial_rope2d", "fused_matmul_bias_act", "fused_residual_ln",
    "fused_residual_rms_norm", "dense_solve", "compare", "where", "narrow", "transpose",
)  # fmt: skip


@pytest.mark.parametrize("name", RLX_NAMES)
def test_the_names_are_there(name: str) -> None:
    assert callable(getattr(rlx.GraphBuilder, name))


def test_equal_numbers_stay_different_constants() -> None:
    numbers: list[tuple[Any, DType]] = [
        (0.0, DType.F32), (-0.0, DType.F32), (1, DType.F32), (1.0, DType.F32), (1, DType.I32),
        (True, DType.I32), (True, DType.BOOL), (math.nan, DType.F32), (-2.5, DType.F64),
    ]  # fmt: skip
    for _ in range(2):  # the second time some are known
        for number, dtype in numbers:
            op: Any = rlx.constant(number, dtype).node.op
            assert op.value.array.dtype == dtype.numpy
            assert op.value.array.tobytes() == np.asarray(number, dtype.numpy).tobytes()
        for number, dtype in ((300, DType.I8), (1.5, DType.I32)):
            with pytest.raises(DTypeError):
                rlx.constant(number, dtype)


def test_broadcasts_of_one_shape_keep_their_sources() -> None:
    b = rlx.GraphBuilder("g")
    n = b.input("n", "f32[n, 3]")
    x, y = b.input("x", "f32[3]"), b.input("y", "f32[1, 3]")
    for _ in range(2):
        for value, axes in ((x, (1,)), (y, (0, 1))):
            made = value.broadcast_to((2, 3)).node
            assert made.inputs == (value,)
            assert made.op.attributes()["broadcast_dimensions"] == axes
    assert x.broadcast_to(n.shape).type == n.type
