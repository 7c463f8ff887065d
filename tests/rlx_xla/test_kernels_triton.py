"""The Pallas kernels for GPUs through Triton: their numbers as JAX operations; their modules."""

from __future__ import annotations

import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rlx
import rlx_xla
from rlx.dtypes import as_dtype
from rlx.ir.op import Op
from rlx.ops.attention import Attention, MaskKind
from rlx.ops.reduction import CumSum
from rlx.ops.sequence import GatedDeltaNet, SelectiveScan
from rlx.options.dispatch import KernelDispatch
from rlx.types import TensorType
from rlx_xla.aot.lowering import lower_for
from rlx_xla.aot.targets import parse_target
from rlx_xla.kernels.base import Refused
from rlx_xla.kernels.select import kernels_for
from rlx_xla.kernels.triton import attention, cumsum, gated_delta_net, selective_scan

Arrays = dict[str, np.ndarray[Any, Any]]


def _types(arrays: Arrays) -> list[TensorType]:
    return [TensorType(as_dtype(a.dtype), a.shape) for a in arrays.values()]


def _graph(op: Op, arrays: Arrays) -> rlx.Graph:
    b = rlx.GraphBuilder()
    made: Any = op(*[b.input(n, t) for n, t in zip(arrays, _types(arrays), strict=True)])
    return b.build(*(made if isinstance(made, tuple) else (made,)))


def _both(module: types.ModuleType, op: Op, arrays: Arrays) -> list[tuple[Any, Any]]:
    """Results of the kernel as JAX operations, and of the op in NumPy."""
    found = module.make(op, _types(arrays), interpret=True)(*arrays.values())
    found = found if isinstance(found, tuple) else (found,)
    return list(zip(found, rlx.interpret(_graph(op, arrays), arrays), strict=True))


def _close(found: Any, wanted: Any, error: float) -> None:
    left, right = np.asarray(found, np.float64), np.asarray(wanted, np.float64)
    np.testing.assert_array_equal(np.isfinite(left), np.isfinite(right))
    finite = np.isfinite(right)
    np.testing.assert_array_equal(left[~finite], right[~finite])
    size = np.linalg.norm(right[finite])
    assert np.linalg.norm(left[finite] - right[finite]) <= error * size


ERRORS = {"float32": 2e-6, "bfloat16": 8e-3, "float16": 1e-3}

ATTENTION: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"mask_kind": MaskKind.CAUSAL},
    "window": {"mask_kind": MaskKind.SLIDING_WINDOW, "window": 19},
    "lengths": {"mask_kind": MaskKind.LENGTHS},
    "nan": {"mask_kind": MaskKind.LENGTHS, "masked_rows": "nan"},
    "bhsd": {"mask_kind": MaskKind.CAUSAL, "layout": "bhsd"},
    "softcap": {"softcap": 3.0, "score_scale": 0.4},
}


def _attended(
    rng: np.random.Generator, name: str, dtype: str, lengths: tuple[int, int]
) -> tuple[Attention, Arrays]:
    options = ATTENTION[name]
    heads, kv_heads, dim, v_dim = 4, 2, 24, 40
    queries, keys = lengths
    drawn = {
        "q": rng.standard_normal((2, queries, heads, dim)) * 2,
        "k": rng.standard_normal((2, keys, kv_heads, dim)) * 2,
        "v": rng.standard_normal((2, keys, kv_heads, v_dim)) * 2,
    }
    if options.get("layout") == "bhsd":
        drawn = {n: np.swapaxes(x, 1, 2) for n, x in drawn.items()}
    arrays = {n: x.astype(jnp.dtype(dtype)) for n, x in drawn.items()}
    if options.get("mask_kind") is MaskKind.LENGTHS:
        arrays["mask"] = np.array([0, keys - 5], np.int16)
    return Attention(num_heads=heads, head_dim=dim, **options), arrays


# Of 33 queries the first see no key of 20 where there is a causal mask.
LENGTHS = {"float32": (70, 131), "bfloat16": (1, 67), "float16": (33, 20)}
_QUICK = [
    ("plain", "bfloat16", (70, 131)),
    ("causal", "float16", (33, 20)),
    ("window", "float32", (70, 131)),
    ("lengths", "float32", (33, 20)),
    ("bhsd", "bfloat16", (1, 67)),
]
_WHOLE = [(n, d, s) for n in ATTENTION for d, s in LENGTHS.items() if (n, d, s) not in _QUICK]


@pytest.mark.parametrize(
    ("name", "dtype", "lengths"),
    [*_QUICK, *[pytest.param(*case, marks=pytest.mark.slow) for case in _WHOLE]],
)
def test_attention(
    name: str, dtype: str, lengths: tuple[int, int], rng: np.random.Generator
) -> None:
    op, arrays = _attended(rng, name, dtype, lengths)
    ((found, wanted),) = _both(attention, op, arrays)
    assert np.asarray(found).dtype == arrays["q"].dtype
    _close(found, wanted, ERRORS[dtype])


def test_attention_keeps_what_is_no_number(rng: np.random.Generator) -> None:
    op, arrays = _attended(rng, "causal", "float32", (70, 70))
    arrays["q"][0, 3, 1, 2] = np.nan
    arrays["v"][1, 5, 0, 7] = np.inf
    ((found, wanted),) = _both(attention, op, arrays)
    _close(found, wanted, ERRORS["float32"])


def _scanned(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Arrays:
    batch, length, width, state = shape
    arrays = {
        "x": rng.standard_normal((batch, length, width)),
        "delta": np.abs(rng.standard_normal((batch, length, width))),
        "a": -np.abs(rng.standard_normal((width, state))),
        "b": rng.standard_normal((batch, length, state)),
        "c": rng.standard_normal((batch, length, state)),
    }
    return {n: x.astype(jnp.dtype(dtype)) for n, x in arrays.items()}


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [("float32", (2, 17, 70, 16)), ("bfloat16", (1, 1, 3, 5)), ("float16", (1, 40, 33, 5))],
)
def test_selective_scan(shape: tuple[int, ...], dtype: str, rng: np.random.Generator) -> None:
    arrays = _scanned(rng, shape, dtype)
    ((found, wanted),) = _both(selective_scan, SelectiveScan(state_size=shape[3]), arrays)
    _close(found, wanted, ERRORS[dtype])


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize(
    ("dtype", "length"), [("float32", 5001), ("bfloat16", 300), ("float16", 1)]
)
def test_cumsum(length: int, exclusive: bool, dtype: str, rng: np.random.Generator) -> None:
    x = rng.standard_normal((3, 2, length)).astype(jnp.dtype(dtype))
    x[0, 0, length // 2] = np.inf
    x[1, 1, length // 3] = np.nan
    ((found, wanted),) = _both(cumsum, CumSum(axis=2, exclusive=exclusive), {"x": x})
    _close(found, wanted, 5 * ERRORS[dtype])


@pytest.mark.parametrize(
    ("gates", "carry", "dtype"),
    [
        (True, True, "float32"),
        (False, False, "bfloat16"),
        pytest.param(False, True, "float16", marks=pytest.mark.slow),
        pytest.param(True, False, "float32", marks=pytest.mark.slow),
    ],
)
def test_gated_delta_net(gates: bool, carry: bool, dtype: str, rng: np.random.Generator) -> None:
    op, arrays = _corrected(rng, dtype, gates=gates, carry=carry)
    for found, wanted in _both(gated_delta_net, op, arrays):
        _close(found, wanted, ERRORS[dtype])


def _corrected(
    rng: np.random.Generator, dtype: str, *, gates: bool, carry: bool
) -> tuple[GatedDeltaNet, Arrays]:
    shape = batch, _, heads, size = 2, 11, 3, 48
    arrays = {n: rng.standard_normal(shape) for n in "qkv"}
    arrays["k"] /= np.linalg.norm(arrays["k"], axis=-1, keepdims=True)
    arrays["g"] = -np.abs(rng.standard_normal(shape if gates else shape[:3]))
    arrays["beta"] = rng.uniform(0, 1, shape[:3])
    if carry:
        arrays["state"] = rng.standard_normal((batch, heads, size, size))
    op = GatedDeltaNet(state_size=size, gate_per_channel=gates, carry_state=carry)
    return op, {n: x.astype(jnp.dtype(dtype)) for n, x in arrays.items()}


def _cases(rng: np.random.Generator) -> dict[str, tuple[Op, Arrays]]:
    return {
        "attention": _attended(rng, "lengths", "bfloat16", (70, 131)),
        "selective_scan": (SelectiveScan(state_size=16), _scanned(rng, (2, 17, 70, 16), "float32")),
        "cumsum": (CumSum(axis=1), {"x": np.ones((131, 300), np.float32)}),
        "gated_delta_net": _corrected(rng, "float32", gates=True, carry=True),
    }


def _text(graph: rlx.Graph, target: str, *forced: str) -> tuple[str, str]:
    """The module for a target with kernels forced, and the report of the choice."""
    dispatch = KernelDispatch(forced=frozenset(forced))
    options = rlx.CompileOptions(kernel_dispatch=dispatch)
    lowered = lower_for(graph, parse_target(target), options)
    assert not lowered.refused, lowered.refused
    return lowered.text, str(lowered.unsupported)


CALL = "__gpu$xla.gpu.triton"
TARGETS = {"cuda": "cuda:h200", "rocm": "rocm:mi300x", "tpu": "tpu:v5e:1x1"}


@pytest.mark.parametrize("platform", ["cuda", "rocm"])
@pytest.mark.parametrize("name", ["attention", "selective_scan", "cumsum", "gated_delta_net"])
def test_a_forced_kernel_is_in_the_module(
    name: str, platform: str, rng: np.random.Generator
) -> None:
    graph = _graph(*_cases(rng)[name])
    target = TARGETS[platform]
    assert CALL not in _text(graph, target)[0]
    assert CALL in _text(graph, target, f"{name}.{platform}.pallas")[0]


def test_elsewhere_it_is_refused(rng: np.random.Generator) -> None:
    graph = _graph(*_cases(rng)["cumsum"])
    text, unsupported = _text(graph, TARGETS["tpu"], "cumsum.rocm.pallas")
    assert not text
    assert "registered for rocm; the platform asked is tpu" in unsupported


@pytest.mark.parametrize(
    ("op", "shapes", "reason"),
    [
        (Attention(num_heads=2, head_dim=8), ["f64[1, 4, 2, 8]"] * 3, "q is f64 and none of bf16"),
        (Attention(num_heads=2, head_dim=8), ["f32[4, 16]"] * 3, "to be static, of rank 4"),
        (
            Attention(num_heads=2, head_dim=8, mask_kind=MaskKind.CUSTOM),
            [*["f32[1, 4, 2, 8]"] * 3, "bool[1, 4]"],
            "mask_kind custom is none of none, causal, sliding_window, lengths",
        ),
        (Attention(num_heads=2, head_dim=264), ["f32[1, 4, 2, 264]"] * 3, "are above 256"),
        (Attention(num_heads=2, head_dim=8), ["f32[0, 4, 2, 8]"] * 3, "is empty"),
        (
            Attention(num_heads=2, head_dim=8, mask_kind=MaskKind.CAUSAL, masked_rows="uniform"),
            ["f32[1, 4, 2, 8]"] * 3,
            "a row without keys is not the mean of all values",
        ),
        (CumSum(axis=0), ["f32[8, 8]"], "axis 0 of f32[8, 8] is not the last"),
        (CumSum(axis=1, reverse=True), ["f32[8, 8]"], "Triton sums forward only"),
        (CumSum(axis=1), ["i32[8, 8]"], "x is i32 and none of"),
        (CumSum(axis=1), ["f32[0, 8]"], "is empty or too large"),
        (
            SelectiveScan(state_size=257),
            ["f32[1, 2, 3]", "f32[1, 2, 3]", "f32[3, 257]", "f32[1, 2, 257]", "f32[1, 2, 257]"],
            "state_size 257 is above 256",
        ),
        (
            GatedDeltaNet(state_size=257),
            [*["f32[1, 2, 3, 257]"] * 3, *["f32[1, 2, 3]"] * 2],
            "state_size 257 is above 256",
        ),
    ],
)
def test_what_is_refused(op: Op, shapes: list[str], reason: str) -> None:
    b = rlx.GraphBuilder()
    inputs = [b.input(f"x{i}", shape).type for i, shape in enumerate(shapes)]
    op.infer(*inputs)
    kernels = [k for k in kernels_for(type(op), "rocm") if k.name.endswith(".rocm.pallas")]
    (verdict,) = [k.supports(op, inputs, "rocm") for k in kernels]
    assert isinstance(verdict, Refused)
    assert reason in verdict.reason


def test_they_are_taken_only_when_forced() -> None:
    for op in (Attention, CumSum, GatedDeltaNet, SelectiveScan):
        for platform, reason in (
            ("cuda", "on an H200 it was no faster than what is taken instead"),
            ("rocm", "it has not been measured on an AMD GPU"),
        ):
            found = [k.unproven for k in kernels_for(op, platform) if "pallas" in k.name]
            assert found == [reason]


def test_a_batch_and_a_slope_take_them_as_well() -> None:
    def swept(x: jax.Array) -> jax.Array:
        return jnp.cumsum(jnp.sin(x), axis=-1)

    def batched(x: jax.Array) -> jax.Array:
        return jax.vmap(lambda row: jax.jvp(swept, (row,), (row,))[1])(x)

    graph = rlx_xla.trace(batched, "f32[3, 20, 300]").graph
    assert "cumsum(" in str(graph)
    assert CALL in _text(graph, TARGETS["rocm"], "cumsum.rocm.pallas")[0]
