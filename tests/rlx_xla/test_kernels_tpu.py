"""The Pallas kernels for TPUs: their numbers as JAX operations, and what TPU compilers say."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import rlx
import rlx_xla
from rlx.dtypes import DType, as_dtype
from rlx.ops.attention import Attention, MaskKind
from rlx.ops.sequence import SelectiveScan
from rlx.options.dispatch import KernelDispatch
from rlx.types import TensorType
from rlx_xla.aot import parse_target
from rlx_xla.aot.compiling import missing
from rlx_xla.kernels.base import Refused
from rlx_xla.kernels.select import kernels_for
from rlx_xla.kernels.tpu import attention, selective_scan

needs_compiler = pytest.mark.skipif(
    missing(parse_target("v5e-1")) is not None, reason="libtpu is not installed"
)

CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"mask_kind": MaskKind.CAUSAL},
    "window": {"mask_kind": MaskKind.SLIDING_WINDOW, "window": 70},
    "bhsd": {"mask_kind": MaskKind.CAUSAL, "layout": "bhsd"},
    "softcap": {"softcap": 3.0, "score_scale": 0.4},
}


def _types(arrays: dict[str, Any]) -> list[TensorType]:
    return [TensorType(as_dtype(a.dtype), a.shape) for a in arrays.values()]


def _close(found: Any, wanted: Any, error: float) -> None:
    left, right = np.asarray(found, np.float64), np.asarray(wanted, np.float64)
    assert np.linalg.norm(left - right) <= error * np.linalg.norm(right)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_attention(name: str, dtype: str, rng: np.random.Generator) -> None:
    options = CASES[name]
    heads, kv_heads, queries, keys, dim = 4, 2, 128, 384, 24
    drawn = [
        rng.standard_normal((2, length, h, dim)) * 2
        for length, h in ((queries, heads), (keys, kv_heads), (keys, kv_heads))
    ]
    if options.get("layout") == "bhsd":
        drawn = [np.swapaxes(x, 1, 2) for x in drawn]
    arrays = {n: x.astype(jnp.dtype(dtype)) for n, x in zip("qkv", drawn, strict=True)}
    op = Attention(num_heads=heads, head_dim=dim, **options)
    found = attention.make(op, _types(arrays), interpret=True)(*arrays.values())
    b = rlx.GraphBuilder()
    leaves = [b.input(n, t) for n, t in zip(arrays, _types(arrays), strict=True)]
    (wanted,) = rlx.interpret(b.build(op(*leaves)), arrays)
    _close(found, wanted, {"float32": 1e-6, "bfloat16": 8e-3}[dtype])


def test_selective_scan(rng: np.random.Generator) -> None:
    batch, length, width, state = 2, 20, 256, 16
    arrays = {
        "x": rng.standard_normal((batch, length, width)),
        "delta": np.abs(rng.standard_normal((batch, length, width))),
        "a": -np.abs(rng.standard_normal((width, state))),
        "b": rng.standard_normal((batch, length, state)),
        "c": rng.standard_normal((batch, length, state)),
    }
    arrays = {n: x.astype(np.float32) for n, x in arrays.items()}
    op = SelectiveScan(state_size=state)
    found = selective_scan.make(op, _types(arrays), steps=5, interpret=True)(*arrays.values())
    b = rlx.GraphBuilder()
    leaves = [b.input(n, t) for n, t in zip(arrays, _types(arrays), strict=True)]
    (wanted,) = rlx.interpret(b.build(op(*leaves)), arrays)
    _close(found, wanted, 1e-6)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"queries": 130}, "130 queries and 256 keys are no multiples of 128"),
        ({"keys": 128, "queries": 256}, "the first queries see no key"),
        ({"dtype": DType.F16}, "q is f16 and none of bf16, f32"),
        ({"mask_kind": MaskKind.LENGTHS}, "mask_kind lengths is none of"),
    ],
)
def test_what_attention_refuses(changes: dict[str, Any], reason: str) -> None:
    sizes = {"queries": 128, "keys": 256, "dtype": DType.F32, "mask_kind": MaskKind.CAUSAL}
    sizes |= changes
    q = TensorType(sizes["dtype"], (1, sizes["queries"], 2, 64))
    k = TensorType(sizes["dtype"], (1, sizes["keys"], 2, 64))
    op = Attention(num_heads=2, head_dim=64, mask_kind=sizes["mask_kind"])
    (kernel,) = kernels_for(Attention, "tpu")
    verdict = kernel.supports(op, [q, k, k], "tpu")
    assert isinstance(verdict, Refused)
    assert reason in verdict.reason


def _graph(length: int = 1024) -> rlx.Graph:
    b = rlx.GraphBuilder()
    q, k, v = (b.input(n, f"bf16[1, {length}, 4, 128]") for n in "qkv")
    return b.build(Attention(num_heads=4, head_dim=128, mask_kind=MaskKind.CAUSAL)(q, k, v))


def test_an_unproven_kernel_is_taken_only_when_forced() -> None:
    assert "tpu_custom_call" not in rlx_xla.stablehlo(_graph(), platform="tpu")
    (kernel,) = kernels_for(Attention, "tpu")
    assert kernel.unproven == "it has not been measured on a TPU"


def _forced(name: str) -> rlx.CompileOptions:
    return rlx.CompileOptions(kernel_dispatch=KernelDispatch(forced=frozenset({name})))


@needs_compiler
def test_attention_needs_no_memory_for_scores() -> None:
    graph = _graph(length=4096)
    plain = rlx_xla.preflight(graph, target="tpu:v5e:1x1")
    forced = rlx_xla.preflight(graph, target="tpu:v5e:1x1", options=_forced("attention.tpu.pallas"))
    assert plain.ok, str(plain)
    assert forced.ok, str(forced)
    assert forced.memory["temp"] < plain.memory["temp"] / 4


@needs_compiler
def test_the_compiler_of_a_tpu_takes_the_selective_scan() -> None:
    b = rlx.GraphBuilder()
    shapes = ["2, 256, 256", "2, 256, 256", "256, 16", "2, 256, 16", "2, 256, 16"]
    leaves = [b.input(f"x{i}", f"f32[{shape}]") for i, shape in enumerate(shapes)]
    graph = b.build(SelectiveScan(state_size=16)(*leaves))
    report = rlx_xla.preflight(
        graph, target="tpu:v5e:1x1", options=_forced("selective_scan.tpu.pallas")
    )
    assert report.ok, str(report)
