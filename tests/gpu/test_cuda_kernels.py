"""The kernels for NVIDIA GPUs against the meaning of their ops, at ragged sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rlx
import rlx_xla
from rlx import quant
from rlx.dtypes import DType, as_dtype
from rlx.ops.attention import Attention, MaskKind
from rlx.ops.quantized import DequantMatmul, ScaledMatmul, ScaledQuantize, ScaledQuantScale
from rlx.ops.reduction import CumSum
from rlx.ops.sequence import GatedDeltaNet, Gru, Lstm, Rnn, SelectiveScan
from rlx.ops.sorting import TopK, TopNan
from rlx.options.dispatch import KernelDispatch
from rlx.quant.schemes import QuantScheme
from tests.rlx_xla.drawn_weights import quantized

pytestmark = pytest.mark.gpu

F32 = np.dtype(np.float32)


def run(
    build: Callable[..., Any],
    arrays: dict[str, np.ndarray[Any, Any]],
    kernel: str | None,
    *forced: str,
) -> tuple[list[Any], list[Any]]:
    """Results on the GPU and in NumPy; the kernel that must have run."""
    b = rlx.GraphBuilder()
    leaves = [b.input(n, rlx.TensorType(_name(a), a.shape)) for n, a in arrays.items()]
    made = build(*leaves)
    graph = b.build(*(made if isinstance(made, tuple) else (made,)))
    options = rlx.CompileOptions(kernel_dispatch=KernelDispatch(forced=frozenset(forced)))
    compiled = rlx.Session("cuda").compile(graph, options=options)
    names = [choice.implementation for choice in compiled.report().kernels]
    assert names == ([] if kernel is None else [kernel]), str(compiled.report())
    return compiled.run(arrays), rlx.interpret(graph, arrays)


def _name(array: np.ndarray[Any, Any]) -> DType:
    return as_dtype(array.dtype)


def close(found: Any, wanted: Any, error: float, least: float = 0.0) -> None:
    """Errors by the norm of what is wanted, or ``least``, where few numbers may nearly vanish."""
    left, right = np.asarray(found, np.float64), np.asarray(wanted, np.float64)
    np.testing.assert_array_equal(np.isnan(left), np.isnan(right))
    finite = np.isfinite(right)
    scale = max(np.linalg.norm(right[finite]), least) or 1.0
    assert np.linalg.norm(left[finite] - right[finite]) <= error * scale


@pytest.mark.parametrize(
    "shape", [(1, 1, 4, 16), (2, 63, 20, 16), (3, 65, 32, 8), (1, 200, 100, 64)]
)
def test_selective_scan(shape: tuple[int, ...], rng: np.random.Generator) -> None:
    batch, length, width, state = shape
    arrays = {
        "x": rng.standard_normal((batch, length, width)),
        "delta": np.abs(rng.standard_normal((batch, length, width))),
        "a": -np.abs(rng.standard_normal((width, state))),
        "b": rng.standard_normal((batch, length, state)),
        "c": rng.standard_normal((batch, length, state)),
    }
    arrays = {name: value.astype(F32) for name, value in arrays.items()}
    found, wanted = run(SelectiveScan(state_size=state), arrays, "selective_scan.cuda.ptx")
    close(found[0], wanted[0], 1e-5)


@pytest.mark.parametrize("width", [3, 6])
def test_selective_scan_of_other_widths_is_left_to_xla(
    width: int, rng: np.random.Generator
) -> None:
    shapes = {"x": (1, 9, width), "delta": (1, 9, width), "a": (width, 16)}
    shapes |= {"b": (1, 9, 16), "c": (1, 9, 16)}
    arrays = {n: np.abs(rng.standard_normal(s)).astype(F32) for n, s in shapes.items()}
    arrays["a"] *= -1
    found, wanted = run(SelectiveScan(state_size=16), arrays, None)
    close(found[0], wanted[0], 1e-5)


def run_in_f64(
    build: Callable[..., Any], arrays: dict[str, np.ndarray[Any, Any]], kernel: str | None
) -> tuple[list[Any], list[Any]]:
    """As `run`, with NumPy's side in f64."""
    wide = {n: a.astype(np.float64) for n, a in arrays.items()}
    graphs = []
    for version in (arrays, wide):
        b = rlx.GraphBuilder()
        leaves = [b.input(n, rlx.TensorType(_name(a), a.shape)) for n, a in version.items()]
        made = build(*leaves)
        graphs.append(b.build(*(made if isinstance(made, tuple) else (made,))))
    compiled = rlx.Session("cuda").compile(graphs[0])
    names = [choice.implementation for choice in compiled.report().kernels]
    assert names == ([] if kernel is None else [kernel]), str(compiled.report())
    return compiled.run(arrays), rlx.interpret(graphs[1], wide)


ERRORS = {"float32": 5e-6, "bfloat16": 4e-3, "float16": 5e-4}


@pytest.mark.parametrize("dtype", ERRORS)
@pytest.mark.parametrize("gates", [False, True])
@pytest.mark.parametrize("carry", [False, True])
@pytest.mark.parametrize("shape", [(2, 65, 3, 16), (2, 1, 3, 32), (3, 31, 2, 64), (1, 97, 5, 128)])
def test_gated_delta_net(
    dtype: str, gates: bool, carry: bool, shape: tuple[int, ...], rng: np.random.Generator
) -> None:
    batch, _, heads, size = shape
    q, k, v = (rng.standard_normal(shape) for _ in range(3))
    k /= np.linalg.norm(k, axis=-1, keepdims=True)
    arrays = {"q": q, "k": k, "v": v}
    arrays["g"] = -np.abs(rng.standard_normal(shape if gates else shape[:3]))
    arrays["beta"] = rng.uniform(0, 1, shape[:3])
    if carry:
        arrays["state"] = rng.standard_normal((batch, heads, size, size))
    arrays = {n: a.astype(jnp.dtype(dtype)) for n, a in arrays.items()}
    op = GatedDeltaNet(state_size=size, gate_per_channel=gates, carry_state=carry)
    found, wanted = run_in_f64(op, arrays, "gated_delta_net.cuda.ptx")
    for mine, theirs in zip(found, wanted, strict=True):
        close(mine, theirs, ERRORS[dtype])


def test_a_delta_net_with_a_state_of_256(rng: np.random.Generator) -> None:
    shape = (1, 40, 2, 256)
    arrays = {n: rng.standard_normal(shape) / 16 for n in "qkv"}
    arrays |= {"g": -np.abs(rng.standard_normal(shape[:3])), "beta": rng.uniform(0, 1, shape[:3])}
    arrays = {n: a.astype(F32) for n, a in arrays.items()}
    op = GatedDeltaNet(state_size=256)
    found, wanted = run_in_f64(op, arrays, "gated_delta_net.cuda.ptx")
    close(found[0], wanted[0], ERRORS["float32"])


NETWORKS = {"lstm": (Lstm, 4), "gru": (Gru, 3), "rnn": (Rnn, 1)}


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize(
    ("batch", "hidden", "layers", "bidirectional", "carry"),
    [
        (1, 32, 1, False, False),
        (3, 33, 2, True, True),
        (17, 100, 1, True, False),
        (31, 128, 1, False, True),
        (65, 256, 1, True, True),
        (128, 256, 2, False, False),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_recurrent_networks(
    name: str,
    batch: int,
    hidden: int,
    layers: int,
    bidirectional: bool,
    carry: bool,
    dtype: str,
    rng: np.random.Generator,
) -> None:
    kind, gates = NETWORKS[name]
    directions, width, length = 1 + bidirectional, 19, 33
    rows, all_rows = gates * hidden, layers * directions
    size = directions * rows * (width + (layers - 1) * directions * hidden)
    scale = hidden**-0.5
    arrays = {
        "x": rng.standard_normal((batch, length, width)),
        "w_ih": rng.standard_normal(size) * scale,
        "w_hh": rng.standard_normal((all_rows, rows, hidden)) * scale,
        "b": rng.standard_normal((all_rows, rows)) * 0.1,
    }
    if name == "gru":
        arrays["b_hh"] = rng.standard_normal((all_rows, rows)) * 0.1
    if carry:
        arrays["h"] = rng.standard_normal((all_rows, batch, hidden))
    if carry and name == "lstm":
        arrays["c"] = rng.standard_normal((all_rows, batch, hidden))
    arrays = {n: a.astype(jnp.dtype(dtype)) for n, a in arrays.items()}
    op = kind(hidden_size=hidden, num_layers=layers, bidirectional=bidirectional, carry=carry)
    found, wanted = run_in_f64(op, arrays, f"{name}.cuda.ptx")
    for mine, theirs in zip(found, wanted, strict=True):
        close(mine, theirs, {"float32": 2e-3, "bfloat16": 4e-3}[dtype])  # x · w is TF32


def test_a_relu_network_keeps_nan(rng: np.random.Generator) -> None:
    arrays = {
        "x": rng.standard_normal((3, 9, 8)),
        "w_ih": rng.standard_normal(40 * 8),
        "w_hh": rng.standard_normal((1, 40, 40)) / 7,
        "b": rng.standard_normal((1, 40)),
    }
    arrays = {n: a.astype(F32) for n, a in arrays.items()}
    arrays["x"][1, 4, 2] = np.nan
    found, wanted = run_in_f64(Rnn(hidden_size=40, relu=True), arrays, "rnn.cuda.ptx")
    close(found[0], wanted[0], 2e-3)


WIDE = {"lstm": 384, "gru": 448, "rnn": 512}


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("batch", [1, 28, 65])
@pytest.mark.parametrize("less", [0, 60])
def test_wide_networks(name: str, batch: int, less: int, rng: np.random.Generator) -> None:
    kind, gates = NETWORKS[name]
    hidden = WIDE[name] - less
    arrays = {
        "x": rng.standard_normal((batch, 21, 19)),
        "w_ih": rng.standard_normal(gates * hidden * 19) * hidden**-0.5,
        "w_hh": rng.standard_normal((1, gates * hidden, hidden)) * hidden**-0.5,
        "b": rng.standard_normal((1, gates * hidden)) * 0.1,
    }
    if name == "gru":
        arrays["b_hh"] = rng.standard_normal((1, gates * hidden)) * 0.1
    arrays = {n: a.astype(F32) for n, a in arrays.items()}
    few = batch <= (24 if name == "rnn" else 48)
    taken = f"{name}.cuda.wide" if few else None
    found, wanted = run(kind(hidden_size=hidden), arrays, taken)
    close(found[0], wanted[0], 2e-3)


def test_a_wide_lstm_is_left_to_xla(rng: np.random.Generator) -> None:
    arrays = {
        "x": rng.standard_normal((2, 5, 8)),
        "w_ih": rng.standard_normal(4 * 392 * 8) / 16,
        "w_hh": rng.standard_normal((1, 4 * 392, 392)) / 16,
        "b": rng.standard_normal((1, 4 * 392)),
    }
    arrays = {n: a.astype(F32) for n, a in arrays.items()}
    found, wanted = run_in_f64(Lstm(hidden_size=392), arrays, None)
    close(found[0], wanted[0], 2e-3)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("length", [256, 257, 1000, 4096, 5001])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("exclusive", [False, True])
def test_cumsum(
    dtype: str, length: int, reverse: bool, exclusive: bool, rng: np.random.Generator
) -> None:
    x = rng.standard_normal((131, length)).astype(jnp.dtype(dtype))
    x[0, length // 2] = np.inf
    x[1, length // 3] = np.nan
    op = CumSum(axis=1, reverse=reverse, exclusive=exclusive)
    found, wanted = run(op, {"x": x}, "cumsum.cuda.ptx")
    close(found[0], wanted[0], {"float32": 1e-5, "bfloat16": 4e-3, "float16": 5e-4}[dtype])


ATTENTION = {
    "plain": {},
    "causal": {"mask_kind": MaskKind.CAUSAL},
    "window": {"mask_kind": MaskKind.SLIDING_WINDOW, "window": 31},
    "lengths": {"mask_kind": MaskKind.LENGTHS},
    "bhsd": {"mask_kind": MaskKind.CAUSAL, "layout": "bhsd"},
    "scaled": {"score_scale": 0.3},
}


@pytest.mark.parametrize("name", ATTENTION)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("sizes", [(192, 4, 4, 64), (131, 8, 2, 40), (128, 3, 1, 128)])
def test_attention(name: str, dtype: str, sizes: tuple[int, ...], rng: np.random.Generator) -> None:
    length, heads, kv, dim = sizes
    options: dict[str, Any] = ATTENTION[name]
    q, k, v = (rng.standard_normal((2, length, h, dim)) for h in (heads, kv, kv))
    if options.get("layout") == "bhsd":
        q, k, v = (np.swapaxes(x, 1, 2) for x in (q, k, v))
    arrays = {n: x.astype(jnp.dtype(dtype)) for n, x in (("q", q), ("k", k), ("v", v))}
    if name == "lengths":
        arrays["mask"] = np.array([0, 77], np.int32)
    op = Attention(num_heads=heads, head_dim=dim, **options)
    found, wanted = run(op, arrays, "attention.cuda.cudnn")
    close(found[0], wanted[0], 8e-3)


def test_decode_attention_is_left_to_xla(rng: np.random.Generator) -> None:
    q, k, v = (rng.standard_normal((2, s, 4, 64)).astype(jnp.bfloat16) for s in (1, 512, 512))
    op = Attention(num_heads=4, head_dim=64, mask_kind=MaskKind.CAUSAL)
    found, wanted = run(op, {"q": q, "k": k, "v": v}, None)
    close(found[0], wanted[0], 8e-3)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32"])
@pytest.mark.parametrize("nan", list(TopNan))
def test_top_k(dtype: str, nan: TopNan, rng: np.random.Generator) -> None:
    x = np.round(rng.standard_normal((5, 32_771)) * 50).astype(jnp.dtype(dtype))
    if dtype != "int32":
        x[0, 5:9] = np.nan
        x[1] = -0.0
        x[1, 70] = 0.0
    found, wanted = run(TopK(k=50, nan=nan), {"x": x}, None)
    np.testing.assert_array_equal(found[1], wanted[1])
    np.testing.assert_array_equal(found[0].astype(np.float64), wanted[0].astype(np.float64))


SCHEMES = ["q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q4k", "q5k", "q6k"]


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("sizes", [(1, 256, 1), (1, 1024, 7), (3, 1280, 65), (5, 4096, 130)])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_dequant_matmul(
    scheme: str, sizes: tuple[int, ...], dtype: str, rng: np.random.Generator
) -> None:
    rows, inner, outer = sizes
    made = QuantScheme.parse(f"gguf_{scheme}")
    weight = rng.standard_normal((outer, inner)).astype(np.float32)
    packed = quant.encode(made, weight)
    x = rng.standard_normal((rows, inner)).astype(jnp.dtype(dtype))
    op = DequantMatmul(scheme=f"gguf_{scheme}")
    assert rows * {"float32": 3, "float16": 2, "bfloat16": 1}[dtype] <= 16
    found, wanted = run(op, {"x": x, "w": packed}, "dequant_matmul.cuda.ptx")
    usual = np.linalg.norm(x.astype(np.float32)) * np.sqrt(outer)  # of products with unit normals
    close(found[0], wanted[0], 1e-5 if dtype == "float32" else 4e-3, usual)


COLUMNS = [
    "int8/32",
    "int8/9999",
    "int8a/128",
    "int4/16",
    "int4/64",
    "fp8e4m3",
    "fp8e5m2",
    "nvfp4/16",
]


@pytest.mark.parametrize("scheme", COLUMNS)
@pytest.mark.parametrize(
    "sizes", [(1, 16, 16), (2, 272, 48), (3, 1040, 144), (5, 512, 1040), (1, 4096, 8192)]
)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_dequant_matmul_of_columns(
    scheme: str, sizes: tuple[int, ...], dtype: str, rng: np.random.Generator
) -> None:
    rows, inner, outer = sizes
    tensors = quantized(QuantScheme.parse(scheme), (inner, outer), rng)
    x = (rng.standard_normal((rows, inner)) * 1e-2).astype(jnp.dtype(dtype))
    arrays = dict(zip("xwsz", (x, *tensors), strict=False))
    found, wanted = run(DequantMatmul(scheme=scheme), arrays, "dequant_matmul.cuda.columns")
    close(found[0], wanted[0], {"float32": 1e-5, "float16": 5e-4, "bfloat16": 4e-3}[dtype])


@pytest.mark.parametrize("scheme", ["fp8e4m3", "fp8e5m2"])
def test_columns_keep_codes_that_are_no_numbers(scheme: str, rng: np.random.Generator) -> None:
    codes = np.arange(256, dtype=np.uint8).reshape(1, 256).repeat(64, 0)
    x = (rng.uniform(0.5, 1, (1, 64)) * 1e-2).astype(jnp.bfloat16)
    op = DequantMatmul(scheme=scheme)
    found, wanted = run(op, {"x": x, "w": codes}, "dequant_matmul.cuda.columns")
    close(found[0], wanted[0], 4e-3)
    np.testing.assert_array_equal(np.isinf(found[0]), np.isinf(wanted[0]))


TRITON = {
    "attention": {"bfloat16": 8e-3, "float16": 1e-3, "float32": 1e-5},
    "cumsum": {"bfloat16": 4e-3, "float16": 5e-4, "float32": 1e-5},
    "selective_scan": {"float32": 1e-5},
    "gated_delta_net": {"bfloat16": 4e-3, "float32": 1e-5},
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", TRITON)
def test_kernels_of_triton(name: str, dtype: str, rng: np.random.Generator) -> None:
    if dtype not in TRITON[name]:
        pytest.skip(f"{name} is drawn in {', '.join(TRITON[name])}")
    op, shapes = {
        "attention": (
            Attention(num_heads=4, head_dim=40, mask_kind=MaskKind.CAUSAL),
            {"q": (2, 131, 4, 40), "k": (2, 150, 2, 40), "v": (2, 150, 2, 72)},
        ),
        "cumsum": (CumSum(axis=1, exclusive=True), {"x": (131, 5001)}),
        "selective_scan": (
            SelectiveScan(state_size=12),
            {"x": (2, 63, 70), "d": (2, 63, 70), "a": (70, 12), "b": (2, 63, 12), "c": (2, 63, 12)},
        ),
        "gated_delta_net": (
            GatedDeltaNet(state_size=48),
            {**dict.fromkeys("qkv", (2, 31, 3, 48)), "g": (2, 31, 3), "beta": (2, 31, 3)},
        ),
    }[name]
    arrays = {n: rng.standard_normal(shape) for n, shape in shapes.items()}
    if "g" in arrays:
        arrays["k"] /= np.linalg.norm(arrays["k"], axis=-1, keepdims=True)
        arrays["g"], arrays["beta"] = -np.abs(arrays["g"]), np.abs(np.tanh(arrays["beta"]))
    if "d" in arrays:
        arrays["d"], arrays["a"] = np.abs(arrays["d"]), -np.abs(arrays["a"])
    arrays = {n: x.astype(jnp.dtype(dtype)) for n, x in arrays.items()}
    kernel = f"{name}.cuda.pallas"
    found, wanted = run(op, arrays, kernel, kernel)
    close(found[0], wanted[0], TRITON[name][dtype])


def test_dequant_matmul_of_many_rows_is_left_to_xla(rng: np.random.Generator) -> None:
    made = QuantScheme.parse("gguf_q4_0")
    packed = quant.encode(made, rng.standard_normal((64, 512)).astype(np.float32))
    x = rng.standard_normal((17, 512)).astype(np.float32)
    found, wanted = run(DequantMatmul(scheme="gguf_q4_0"), {"x": x, "w": packed}, None)
    close(found[0], wanted[0], 2e-3)  # f32 products are TF32 on the GPU unless asked otherwise


def test_kernels_run_inside_a_scan(rng: np.random.Generator) -> None:
    x = jnp.asarray(rng.standard_normal((4, 256, 300)), jnp.float32)

    def function(x: jax.Array) -> jax.Array:
        def step(carry: jax.Array, row: jax.Array) -> tuple[jax.Array, None]:
            return carry + jnp.cumsum(row, axis=1), None

        return jax.lax.scan(step, jnp.zeros(x.shape[1:]), x)[0]

    compiled = rlx.Session("cuda").compile(rlx_xla.trace(function, x))
    assert "cumsum.cuda.ptx" in {c.implementation for c in compiled.report().kernels}
    close(compiled(x), jax.jit(function)(x), 1e-5)


def test_kernels_survive_vmap_and_grad(rng: np.random.Generator) -> None:
    x = jnp.asarray(rng.standard_normal((3, 128, 300)), jnp.float32)

    def function(x: jax.Array) -> jax.Array:
        return jnp.sin(jnp.cumsum(x, axis=-1)).sum()

    fast = rlx_xla.jit(function)
    found = jax.jit(jax.vmap(jax.grad(fast)))(x)
    close(found, jax.vmap(jax.grad(function))(x), 1e-5)
    text = jax.jit(jax.vmap(jax.grad(fast))).lower(x).as_text()
    assert "xla.gpu.ptx" in text


@pytest.mark.parametrize("layout", ["per_tensor", "per_row"])
def test_scaled_products_run_on_8_bit_units(layout: str, rng: np.random.Generator) -> None:
    b = rlx.GraphBuilder()
    arrays = {n: rng.standard_normal((256, 512)).astype(F32) for n in "xw"}
    pairs = []
    for name, array in arrays.items():
        value = b.input(name, rlx.TensorType(DType.F32, array.shape))
        scale = ScaledQuantScale(layout=layout)(value)
        pairs.append((ScaledQuantize(layout=layout)(value, scale), scale))
    (left, left_scale), (right, right_scale) = pairs
    graph = b.build(ScaledMatmul(layout=layout)(left, right, left_scale, right_scale))
    compiled = rlx.Session("cuda").compile(graph)
    assert "tuning of 8-bit products" in compiled.report().decisions[0]
    close(compiled.run(arrays)[0], rlx.interpret(graph, arrays)[0], 1e-3)
